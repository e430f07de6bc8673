//! The calls and ops of a tape, and where their operands are.

use super::call::Call;
use crate::prefetch::SpanList;
use graph::NodeId;
use graph::passes::FusedKind;
use std::ops::Range;

/// A call of a tape.
pub(super) struct TapeCall {
    pub(super) call: Call,
    pub(super) node: NodeId,
    /// The indices of the operands in `locations`, followed by those of the result and the scratch.
    pub(super) operands: Range<usize>,
}

/// An op of a tape: calls that run as one.
pub(super) struct TapeOp {
    /// The indices of its calls.
    pub(super) calls: Range<usize>,
    pub(super) kind: FusedKind,
    /// The memory that the threads prefetch while this op runs; only memory-bound ops have it.
    pub(super) prefetch: Option<NextReads>,
}

impl TapeOp {
    /// The number of its first calls that serve the later ones: a norm before products, or what runs before an attention.
    pub(super) fn prologue_len(&self) -> usize {
        match &self.kind {
            FusedKind::Node => 0,
            FusedKind::Product(product) => product.norm.iter().len(),
            FusedKind::Attention { .. } => self.calls.len() - 1,
        }
    }
}

/// The location of a tensor, as far as it is known before the run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    None,
    Fixed(*const u8),
    Arena(usize),
    Input { index: usize, offset: usize },
}

/// The memory that the next memory-bound op reads; the threads prefetch it while an op runs.
pub(super) enum NextReads {
    /// The spans of weights that each thread reads.
    Weights(Vec<SpanList>),
    /// The cache rows that the attention at this index of the tape's calls reads.
    Attention(usize),
}
