//! A call of a tape, and where its operands are.

use super::call::Call;
use super::fusion::FusedGroup;
use crate::prefetch::SpanList;
use graph::NodeId;
use std::ops::Range;

/// A call of a tape.
pub(super) struct TapeCall {
    pub(super) call: Call,
    pub(super) node: NodeId,
    /// The indices of the operands in `locations`, followed by those of the result and the scratch.
    pub(super) operands: Range<usize>,
    /// The fused group that starts with this call.
    pub(super) group: FusedGroup,
    /// The memory that the threads prefetch while this call runs; only the first call of a memory-bound group has it.
    pub(super) prefetch: Option<NextReads>,
}

/// The location of a tensor, as far as it is known before the run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    None,
    Fixed(*const u8),
    Arena(usize),
    Input { index: usize, offset: usize },
}

/// The memory that the next memory-bound group reads; the threads prefetch it while a call runs.
pub(super) enum NextReads {
    /// The spans of weights that each thread reads.
    Weights(Vec<SpanList>),
    /// The cache rows that the attention at this index of the tape reads.
    Attention(usize),
}
