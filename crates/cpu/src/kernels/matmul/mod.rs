//! Matrix products, by the format of the right side: f32, half precision, or packed quantised weights.

mod epilogue;
pub(crate) mod experts;
pub(crate) mod f32;
pub(crate) mod half;
mod operands;
pub(crate) mod quantised;

pub(crate) use epilogue::{Epilogue, Gate, Prologue};
pub(crate) use operands::LinearOperands;

/// Rows of a step up to which its time is the time to read weights and cache once; such calls are prefetched.
pub(crate) const MAX_MEMORY_BOUND_ROWS: usize = 8;

/// Whether a step with this many rows is memory-bound.
pub(crate) fn is_memory_bound(rows: usize) -> bool {
    rows <= MAX_MEMORY_BOUND_ROWS
}
