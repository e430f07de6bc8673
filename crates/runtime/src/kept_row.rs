//! `KeptRow`: the outputs after the last token of a sequence, kept beyond the step that computed them.

use backend::{RowOutputs, ScoredToken};

/// A copy of a row's outputs: all logits, the best tokens, or nothing.
#[derive(Clone, Default)]
pub(crate) struct KeptRow {
    logits: Vec<f32>,
    best: Vec<ScoredToken>,
}

impl KeptRow {
    /// Forgets the outputs and keeps their memory.
    pub(crate) fn clear(&mut self) {
        self.logits.clear();
        self.best.clear();
    }

    /// Replaces the outputs.
    pub(crate) fn copy(&mut self, row: RowOutputs<'_>) {
        self.clear();
        match row {
            RowOutputs::Logits(logits) => self.logits.extend_from_slice(logits),
            RowOutputs::Best(best) => self.best.extend_from_slice(best),
        }
    }

    /// The outputs.
    pub(crate) fn outputs(&self) -> RowOutputs<'_> {
        match self.best.is_empty() {
            true => RowOutputs::Logits(&self.logits),
            false => RowOutputs::Best(&self.best),
        }
    }
}
