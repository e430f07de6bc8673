//! `ScatterDecoder`: a decoder with static buffers, run as it was exported.

use crate::arrays::array_of;
use crate::error::{Error, Result};
use crate::options;
use kvark::inference::InferenceOptions;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A decoder with static buffers (`write_indices`, `nonpad_kv_seqlen`), run as it was exported.
#[pyclass(frozen, module = "kvark")]
pub struct ScatterDecoder {
    decoder: Mutex<kvark::inference::ScatterDecoder>,
    sequences: usize,
}

#[pymethods]
impl ScatterDecoder {
    /// Empty buffers for this many sequences.
    #[new]
    #[pyo3(signature = (path, sequences=1, *, threads=None, device=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        sequences: usize,
        threads: Option<usize>,
        device: Option<&str>,
    ) -> Result<ScatterDecoder> {
        let options = InferenceOptions {
            compile: options::compile(threads, None)?,
            ..InferenceOptions::default()
        };
        let decoder = py.detach(|| {
            let backend = options::backend(device.unwrap_or("cpu"))?;
            let session = kvark::InferenceSession::load(&path, &*backend, &options)?;
            Ok::<_, Error>(kvark::inference::ScatterDecoder::new(session, sequences)?)
        })?;
        Ok(ScatterDecoder {
            decoder: Mutex::new(decoder),
            sequences,
        })
    }

    /// Feeds tokens of each sequence in one step, and returns the outputs that are no buffers by name. Shorter sequences are
    /// padded; the outputs of pads mean nothing.
    fn feed<'py>(&self, py: Python<'py>, tokens: Vec<Vec<u32>>) -> Result<Bound<'py, PyDict>> {
        let outputs = py.detach(|| {
            let tokens: Vec<&[u32]> = tokens.iter().map(|own| &own[..]).collect();
            self.lock().feed(&tokens)
        })?;
        let found = PyDict::new(py);
        for (name, value) in outputs {
            found.set_item(name, array_of(py, value)?)?;
        }
        Ok(found)
    }

    /// Removes the tokens after the first `length` of a sequence.
    fn rewind(&self, py: Python<'_>, seq: u32, length: u32) -> Result<()> {
        Ok(py.detach(|| self.lock().rewind(seq, length))?)
    }

    /// The number of tokens of each sequence.
    #[getter]
    fn lengths(&self, py: Python<'_>) -> Result<Vec<u32>> {
        let lengths = py.detach(|| {
            let decoder = self.lock();
            let lengths = (0..self.sequences as u32).map(|seq| decoder.seq_len(seq));
            lengths.collect::<std::result::Result<_, _>>()
        })?;
        Ok(lengths)
    }
}

impl ScatterDecoder {
    fn lock(&self) -> MutexGuard<'_, kvark::inference::ScatterDecoder> {
        self.decoder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
