//! Context shifts: a full context keeps its first tokens and drops the older half of the others, or a small part of them in a stream.

use crate::RuntimeError;
use backend::KeyRotations;
use graph::Graph;
use kv::{CacheConfig, CacheOperations, SeqId, StreamRule};

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
    /// Set if sequences are streams.
    stream: Option<Stream>,
}

/// The sizes of a stream in tokens.
#[derive(Clone, Copy)]
struct Stream {
    window: usize,
    /// Tokens that one shift drops.
    step: usize,
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
        Ok(ContextShifter {
            rotations,
            keep,
            stream: None,
        })
    }

    /// A shifter of streams. The tokens that stay are the sinks of the rule.
    ///
    /// # Errors
    /// `Backend` if the keys of the model cannot be moved to other positions.
    pub(crate) fn of_stream(
        graph: &Graph,
        config: &CacheConfig,
        rule: StreamRule,
    ) -> Result<ContextShifter, RuntimeError> {
        // A layer with a shorter window must still hold all of it after a shift, whatever the slack of its ring.
        let windows = config.layers.iter().filter_map(|layer| layer.window);
        let shorter = windows.filter(|window| *window < rule.window);
        let most = shorter.map(|window| {
            (rule.window + 1)
                .saturating_sub(window)
                .saturating_sub(rule.sinks)
                .max(1)
        });
        let step = most.fold(rule.step(), u32::min);
        Ok(ContextShifter {
            rotations: KeyRotations::from_graph(graph, config.layers.len())?,
            keep: rule.sinks as usize,
            stream: Some(Stream {
                window: rule.window as usize,
                step: step as usize,
            }),
        })
    }

    /// The first tokens of a sequence, which stay.
    pub(crate) fn keep(&self) -> usize {
        self.keep
    }

    /// The most tokens of a sequence, if sequences are streams.
    pub(crate) fn window(&self) -> Option<usize> {
        self.stream.map(|stream| stream.window)
    }

    /// Drops the older half of the tokens after those to keep, of a sequence of `len` tokens, or one step of a stream; fewer if ring
    /// layers would lose rows of their window. Returns `None` if nothing can be dropped.
    pub(crate) fn shift(
        &self,
        cache: &dyn CacheOperations,
        seq: SeqId,
        len: usize,
    ) -> Result<Option<ContextShift>, RuntimeError> {
        let keep = self.keep.min(len);
        let wanted = match self.stream {
            Some(stream) => stream.step.min(len - keep),
            None => (len - keep).div_ceil(2),
        };
        let dropped = wanted.min(cache.max_shift(seq, keep as u32)? as usize);
        if dropped == 0 {
            return Ok(None);
        }
        cache.shift(seq, keep as u32, dropped as u32, &mut |shift, bytes| {
            self.rotations.shift(shift, bytes)
        })?;
        Ok(Some(ContextShift { keep, dropped }))
    }
}
