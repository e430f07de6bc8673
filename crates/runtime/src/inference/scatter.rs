//! `ScatterDecoder`: a decoder with static buffers, run as it was exported.

use super::{InferenceSession, TensorDim, TensorInfo};
use crate::{RuntimeError, RuntimeErrorKind};
use base::DType;
use graph::Value;
use kv::{CacheConfig, LayerConfig, ScatterIndex, SeqCache, SeqId};

/// A decoder with static buffers, run as it was exported: a [`ScatterIndex`] says where a step is written.
///
/// The model's buffers are inputs that have an output named `updated_` and the input's name, and begin with zeros. Each of
/// several sequences has its part of them. The other inputs are `input_ids`, `write_indices`, `nonpad_kv_seqlen` and, if the model
/// has it, `position_ids`.
pub struct ScatterDecoder {
    session: InferenceSession,
    buffers: Vec<(String, Value)>,
    index: ScatterIndex,
}

impl ScatterDecoder {
    /// Empty buffers for `sequences` sequences.
    ///
    /// # Errors
    /// `InvalidOptions` if the model has no static buffers, or buffers for another number of sequences.
    pub fn new(
        session: InferenceSession,
        sequences: usize,
    ) -> Result<ScatterDecoder, RuntimeError> {
        let invalid = |reason: String| RuntimeErrorKind::InvalidOptions(reason);
        let has = |name: &str| session.inputs().iter().any(|info| info.name == name);
        let is_updated = |info: &&TensorInfo| {
            let updated =
                |output: &TensorInfo| output.name.strip_prefix(UPDATED) == Some(&info.name);
            session.outputs().iter().any(updated)
        };
        let mut buffers = vec![];
        let mut rows = None;
        for info in session.inputs().iter().filter(is_updated) {
            let mut shape = vec![];
            for (axis, dim) in info.shape.iter().enumerate() {
                shape.push(match dim {
                    TensorDim::Dynamic(_) if axis == 0 => sequences,
                    TensorDim::Fixed(n) if axis > 0 || *n == sequences => *n,
                    _ => return Err(invalid(format!(
                        "the buffer {info} has no room for {sequences} sequences: only its first size may be dynamic"
                    ))
                    .into()),
                });
            }
            let own = shape.len().checked_sub(2).map(|axis| shape[axis]);
            rows = rows.max(own);
            let zeros = vec![0.0; shape.iter().product()];
            buffers.push((info.name.clone(), Value::f32(shape, zeros)));
        }
        let rows = rows.filter(|_| has("write_indices") && has("nonpad_kv_seqlen"));
        let rows = rows
            .and_then(|rows| u32::try_from(rows).ok())
            .ok_or_else(|| {
                invalid(
                    "the model has no static buffers with write_indices and nonpad_kv_seqlen"
                        .to_owned(),
                )
            })?;
        // The index counts rows only; their sizes are those of the model's buffers.
        let layer = LayerConfig {
            kv_heads: 1,
            key_dim: 1,
            value_dim: 1,
            window: None,
            sinks: 0,
        };
        let config = CacheConfig::uniform(rows, 1, layer);
        Ok(ScatterDecoder {
            index: ScatterIndex::new(&config, sequences as u32),
            session,
            buffers,
        })
    }

    /// Feeds tokens of each sequence in one step. Shorter ones are padded: pads are not valid afterwards, and their outputs mean
    /// nothing. Returns the outputs that are no buffers. After an error, the sequences are as they were.
    ///
    /// # Errors
    /// `Cache` if a buffer has no room for the longest part, and the errors of [`InferenceSession::run`].
    pub fn feed(&mut self, tokens: &[&[u32]]) -> Result<Vec<(String, Value)>, RuntimeError> {
        let longest = tokens.iter().map(|own| own.len()).max().unwrap_or(0);
        let real: Vec<u32> = tokens.iter().map(|own| own.len() as u32).collect();
        let step = self.index.indices(longest as u32, &real)?;
        let padded = tokens.iter().flat_map(|own| {
            let pads = std::iter::repeat(&0);
            own.iter()
                .chain(pads)
                .take(longest)
                .map(|id| i64::from(*id))
        });
        let starts = step.write_indices.iter();
        let positions = starts.flat_map(|start| (*start..).take(longest));
        let (n, all) = (tokens.len(), vec![tokens.len(), longest]);
        let given = [
            ("input_ids", all.clone(), padded.collect()),
            ("position_ids", all, positions.collect()),
            ("write_indices", vec![n], step.write_indices.clone()),
            ("nonpad_kv_seqlen", vec![n], step.nonpad_kv_seqlen.clone()),
        ];
        let mut inputs = vec![];
        for (name, shape, numbers) in given {
            let info = self.session.inputs().iter().find(|info| info.name == name);
            let value = match info.map(|info| info.dtype) {
                None if name == "position_ids" => continue,
                Some(DType::I32) => {
                    Value::i32(shape, numbers.into_iter().map(|n: i64| n as i32).collect())
                }
                _ => Value::i64(shape, numbers),
            };
            inputs.push((name.to_owned(), value));
        }
        inputs.extend(self.buffers.iter().cloned());
        let outputs = self.session.run(inputs)?;
        self.index.advance(&step);
        let mut others = vec![];
        for (name, value) in outputs {
            let buffer = name.strip_prefix(UPDATED);
            let buffer = self
                .buffers
                .iter_mut()
                .find(|(own, _)| Some(&own[..]) == buffer);
            match buffer {
                Some((_, buffer)) => *buffer = value,
                None => others.push((name, value)),
            }
        }
        Ok(others)
    }

    /// Removes the tokens after the first `len` of a sequence.
    pub fn rewind(&mut self, seq: SeqId, len: u32) -> Result<(), RuntimeError> {
        Ok(self.index.seq_rm(seq, len..)?)
    }

    /// The number of tokens of a sequence.
    pub fn seq_len(&self, seq: SeqId) -> Result<u32, RuntimeError> {
        Ok(self.index.seq_len(seq)?)
    }

    /// Bytes of activations and scratch allocated now.
    pub fn arena_bytes(&self) -> usize {
        self.session.arena_bytes()
    }

    /// The buffers with their names, for callers that save or fill them.
    pub fn buffers(&mut self) -> &mut [(String, Value)] {
        &mut self.buffers
    }
}

/// The prefix of the output that is the new value of a buffer; the buffer's name follows.
const UPDATED: &str = "updated_";
