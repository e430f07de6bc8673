//! The integer hand-off from bookkeeping to the byte layer.

use std::sync::Arc;

/// Consecutive positions stored in consecutive cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Position of the first token.
    pub position: u32,
    /// Cell of the first token.
    pub cell: u32,
    /// Tokens in the run.
    pub len: u32,
}

/// Cells that the tokens of a step are written to, in token order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Consecutive cells from `start`.
    Run {
        /// First cell.
        start: u32,
        /// Number of cells.
        len: u32,
    },
    /// One cell per token.
    Cells(Vec<u32>),
}

impl Rows {
    /// The cell of token `i`.
    pub fn cell(&self, i: usize) -> u32 {
        match self {
            Rows::Run { start, .. } => start + i as u32,
            Rows::Cells(cells) => cells[i],
        }
    }
}

/// What each query of a step may see, as runs in ascending position order.
///
/// A query sees every position at most once, so "in position order" is a total order: attention that follows it gives
/// the same bits wherever the cells happen to lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visibility {
    runs: Vec<Run>,
    /// `runs[ends[i - 1]..ends[i]]` are query `i`'s.
    ends: Vec<u32>,
}

impl Visibility {
    /// Appends the next query's runs.
    pub fn push(&mut self, runs: impl IntoIterator<Item = Run>) {
        self.runs.extend(runs);
        self.ends.push(self.runs.len() as u32);
    }

    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.ends.len()
    }

    /// The runs that query `i` sees.
    pub fn runs(&self, i: usize) -> &[Run] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.runs[start..self.ends[i] as usize]
    }

    /// Whether query `i` sees `cell`: one element of the dense mask.
    pub fn sees(&self, i: usize, cell: u32) -> bool {
        self.runs(i)
            .iter()
            .any(|r| (r.cell..r.cell + r.len).contains(&cell))
    }
}

/// The plan of one step for the layers that share a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlan {
    /// Where the step's tokens are written.
    pub writes: Rows,
    /// What they see, their own rows included.
    pub visible: Visibility,
    /// Cells that must exist before the step is written.
    pub cells: u32,
}

/// The plan of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// Tokens in the step.
    pub tokens: u32,
    classes: Vec<LayerPlan>,
    class_of: Arc<[u16]>,
}

impl StepPlan {
    /// A plan from one [`LayerPlan`] per policy and, per layer, the index of its policy.
    pub fn new(tokens: u32, classes: Vec<LayerPlan>, class_of: Arc<[u16]>) -> StepPlan {
        assert!(
            class_of.iter().all(|&c| (c as usize) < classes.len()),
            "a layer without a plan"
        );
        StepPlan {
            tokens,
            classes,
            class_of,
        }
    }

    /// The plan for cache id `layer`.
    pub fn layer(&self, layer: usize) -> &LayerPlan {
        &self.classes[self.class_of[layer] as usize]
    }

    /// Number of cache ids the plan covers.
    pub fn layers(&self) -> usize {
        self.class_of.len()
    }
}
