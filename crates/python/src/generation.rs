//! `Generation`: a running generation as an iterator over pieces of text.

use crate::error::Result;
use crate::loaded::lock;
use crate::result::GenerationResult;
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use std::sync::Mutex;

/// What a generation does next.
pub(crate) enum Event {
    /// Prompt tokens that are in the cache.
    Progress(usize),
    /// The text that a token completes; it may be empty.
    Text(String),
    /// The end.
    Finished(GenerationResult),
}

/// Where the events of a generation come from.
pub(crate) trait Source: Send + Sync {
    /// Waits for the next event. Raises what a signal handler raises; the generation is cancelled then.
    fn next(&self, py: Python<'_>) -> Result<Event>;
    /// Ends the generation after its current step.
    fn cancel(&self);
}

/// The pieces of text of a generation, as they come. Leaving a `with` block, `close()` and dropping it end the generation.
#[pyclass(frozen, module = "kvark")]
pub struct Generation {
    source: Box<dyn Source>,
    result: Mutex<Option<Py<GenerationResult>>>,
    progress: Option<Py<PyAny>>,
}

impl Generation {
    /// A generation with these events. `progress` is called with the number of prompt tokens done.
    pub(crate) fn new(source: impl Source + 'static, progress: Option<Py<PyAny>>) -> Generation {
        Generation {
            source: Box::new(source),
            result: Mutex::new(None),
            progress,
        }
    }

    /// The next piece of text that is not empty; `None` at the end.
    fn advance(&self, py: Python<'_>) -> Result<Option<String>> {
        if self.finished(py).is_some() {
            return Ok(None);
        }
        loop {
            match self.source.next(py)? {
                Event::Progress(done) => {
                    if let Some(progress) = &self.progress {
                        progress.call1(py, (done,))?;
                    }
                }
                Event::Text(text) if text.is_empty() => {}
                Event::Text(text) => return Ok(Some(text)),
                Event::Finished(result) => {
                    *lock(&self.result) = Some(Py::new(py, result)?);
                    return Ok(None);
                }
            }
        }
    }

    fn finished(&self, py: Python<'_>) -> Option<Py<GenerationResult>> {
        let result = lock(&self.result);
        result.as_ref().map(|result| result.clone_ref(py))
    }
}

#[pymethods]
impl Generation {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> Result<String> {
        match self.advance(py)? {
            Some(text) => Ok(text),
            None => Err(PyStopIteration::new_err(()).into()),
        }
    }

    /// Ends the generation after its current step. `result()` then has what was generated.
    fn cancel(&self) {
        self.source.cancel();
    }

    /// Ends the generation: the same as `cancel()`.
    fn close(&self) {
        self.cancel();
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.cancel();
    }

    /// Waits for the end and returns the whole result.
    pub(crate) fn result(&self, py: Python<'_>) -> Result<Py<GenerationResult>> {
        while self.advance(py)?.is_some() {}
        Ok(self.finished(py).expect("advance stored it"))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.finished(py) {
            Some(result) => format!("Generation(ended: {})", result.get().repr()),
            None => "Generation(running)".to_owned(),
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel();
    }
}
