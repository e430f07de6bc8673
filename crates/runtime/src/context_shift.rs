//! Going on past the end of the context: the older half of what is not to be kept makes room.

use crate::RuntimeError;
use backend::KeyRotations;
use graph::Graph;
use kv::{Bookkeeping, CacheSession, Restorable, SeqId};

/// Tokens that were taken out of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextShift {
    /// Tokens before the gap.
    pub keep: usize,
    /// Tokens taken out.
    pub dropped: usize,
}

impl ContextShift {
    /// Takes the same tokens out of a list; false, and nothing is done, where it does not have them.
    pub fn apply(&self, tokens: &mut Vec<u32>) -> bool {
        let gap = self.keep..self.keep.saturating_add(self.dropped);
        let fits = gap.end <= tokens.len();
        if fits {
            tokens.drain(gap);
        }
        fits
    }
}

/// How a session shifts its sequences.
pub(crate) struct ContextShifter {
    rotations: KeyRotations,
    keep: usize,
}

impl ContextShifter {
    /// Shifts that keep the first `keep` tokens, if the model's keys can be moved.
    pub(crate) fn new(
        graph: &Graph,
        layers: usize,
        keep: usize,
    ) -> Result<ContextShifter, RuntimeError> {
        let rotations = KeyRotations::from_graph(graph, layers)?;
        Ok(ContextShifter { rotations, keep })
    }

    /// Drops the older half of what a sequence of `len` tokens has behind those to keep, or as much of that as its windows
    /// let go; `None` where that is nothing.
    pub(crate) fn shift<K: Bookkeeping + Restorable>(
        &self,
        session: &CacheSession<K>,
        seq: SeqId,
        len: usize,
    ) -> Result<Option<ContextShift>, RuntimeError> {
        let keep = self.keep.min(len);
        let half = (len - keep).div_ceil(2);
        let dropped = half.min(session.max_shift(seq, keep as u32)? as usize);
        if dropped == 0 {
            return Ok(None);
        }
        session.shift(seq, keep as u32, dropped as u32, |shift, bytes| {
            self.rotations.shift(shift, bytes)
        })?;
        Ok(Some(ContextShift { keep, dropped }))
    }
}
