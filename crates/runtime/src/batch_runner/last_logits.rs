//! `LastLogits`: the outputs after the last token of a sequence, kept beyond the step that computed them.

use backend::{RowOutputs, ScoredToken};

/// A copy of a logits row: all logits, the most likely tokens, or nothing.
#[derive(Clone, Default)]
pub(super) struct LastLogits {
    logits: Vec<f32>,
    best: Vec<ScoredToken>,
}

impl LastLogits {
    /// Forgets the outputs and keeps their memory.
    pub(super) fn clear(&mut self) {
        self.logits.clear();
        self.best.clear();
    }

    /// Whether there are no outputs.
    pub(super) fn is_empty(&self) -> bool {
        self.logits.is_empty() && self.best.is_empty()
    }

    /// Replaces the outputs.
    pub(super) fn copy(&mut self, row: RowOutputs<'_>) {
        self.clear();
        match row {
            RowOutputs::Logits(logits) => self.logits.extend_from_slice(logits),
            RowOutputs::Best(best) => self.best.extend_from_slice(best),
        }
    }

    /// The outputs.
    pub(super) fn outputs(&self) -> RowOutputs<'_> {
        match self.best.is_empty() {
            true => RowOutputs::Logits(&self.logits),
            false => RowOutputs::Best(&self.best),
        }
    }
}
