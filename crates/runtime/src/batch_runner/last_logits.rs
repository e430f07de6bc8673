//! `LastLogits`: the outputs after the last token of a sequence, kept beyond the step that computed them.

use backend::{RowOutputs, ScoredToken};

/// A copy of a logits row: all logits, the most likely tokens, or nothing.
#[derive(Clone, Default)]
pub(super) struct LastLogits {
    logits: Vec<f32>,
    topk: Vec<ScoredToken>,
}

impl LastLogits {
    /// Forgets the outputs and keeps their memory.
    pub(super) fn clear(&mut self) {
        self.logits.clear();
        self.topk.clear();
    }

    /// Whether there are no outputs.
    pub(super) fn is_empty(&self) -> bool {
        self.logits.is_empty() && self.topk.is_empty()
    }

    /// Replaces the outputs.
    pub(super) fn copy(&mut self, row: RowOutputs<'_>) {
        self.clear();
        match row {
            RowOutputs::Logits(logits) => self.logits.extend_from_slice(logits),
            RowOutputs::TopK(topk) => self.topk.extend_from_slice(topk),
        }
    }

    /// The outputs.
    pub(super) fn outputs(&self) -> RowOutputs<'_> {
        match self.topk.is_empty() {
            true => RowOutputs::Logits(&self.logits),
            false => RowOutputs::TopK(&self.topk),
        }
    }
}
