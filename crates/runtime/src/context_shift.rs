//! Context shifts: a full context keeps its first tokens and drops the older half of the others.

use crate::RuntimeError;
use backend::KeyRotations;
use graph::Graph;
use kv::{CacheOperations, SeqId};

/// A context shift: the tokens that were dropped from a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextShift {
    /// Tokens kept at the start of the sequence.
    pub keep: usize,
    /// Tokens dropped after them.
    pub dropped: usize,
}

impl ContextShift {
    /// Drops the same tokens from a list. Returns false and leaves the list unchanged if it is too short.
    pub fn apply(&self, tokens: &mut Vec<u32>) -> bool {
        let gap = self.keep..self.keep.saturating_add(self.dropped);
        let fits = gap.end <= tokens.len();
        if fits {
            tokens.drain(gap);
        }
        fits
    }
}

/// Shifts the sequences of a cache.
pub(crate) struct ContextShifter {
    rotations: KeyRotations,
    keep: usize,
}

impl ContextShifter {
    /// A shifter that keeps the first `keep` tokens.
    ///
    /// # Errors
    /// `Backend` if the keys of the model cannot be moved to other positions.
    pub(crate) fn new(
        graph: &Graph,
        layers: usize,
        keep: usize,
    ) -> Result<ContextShifter, RuntimeError> {
        let rotations = KeyRotations::from_graph(graph, layers)?;
        Ok(ContextShifter { rotations, keep })
    }

    /// Drops the older half of the tokens after those to keep, of a sequence of `len` tokens, or fewer if ring layers
    /// would lose rows of their window. Returns `None` if nothing can be dropped.
    pub(crate) fn shift(
        &self,
        cache: &dyn CacheOperations,
        seq: SeqId,
        len: usize,
    ) -> Result<Option<ContextShift>, RuntimeError> {
        let keep = self.keep.min(len);
        let half = (len - keep).div_ceil(2);
        let dropped = half.min(cache.max_shift(seq, keep as u32)? as usize);
        if dropped == 0 {
            return Ok(None);
        }
        cache.shift(seq, keep as u32, dropped as u32, &mut |shift, bytes| {
            self.rotations.shift(shift, bytes)
        })?;
        Ok(Some(ContextShift { keep, dropped }))
    }
}
