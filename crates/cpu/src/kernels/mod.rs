//! The kernels. Each takes raw operands, because results may overwrite dying operands in place.
#![allow(
    clippy::needless_range_loop,
    reason = "index loops over register tiles are what gets unrolled"
)]

pub(crate) mod attend;
pub(crate) mod attention;
pub(crate) mod copy;
pub(crate) mod dense;
pub(crate) mod elementwise;
pub(crate) mod format;
mod functions;
mod gemm;
pub(crate) mod index;
pub(crate) mod linear;
pub(crate) mod lines;
pub(crate) mod nest;
pub(crate) mod pack;
pub(crate) mod packed;
pub(crate) mod plain;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod rows;
mod stored;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiled;

use crate::isa::Isa;
use crate::simd::LANES;
use crate::threads::Threads;

/// What every kernel runs with.
pub(crate) struct Context<'a> {
    pub(crate) isa: Isa,
    pub(crate) threads: &'a Threads,
}

/// A pointer that tasks on several threads use for disjoint parts of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub(crate) *mut T);

// SAFETY: kernels hand every task its own part of the buffer.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The address `offset` elements on.
    ///
    /// # Safety
    /// The address must lie in the buffer.
    pub(crate) unsafe fn at(self, offset: usize) -> *mut T {
        // SAFETY: the caller vouches for the offset.
        unsafe { self.0.add(offset) }
    }
}

/// Rows of a step that weights are read once for, at most.
const FEW_ROWS: usize = 8;

/// Whether a step of so many rows reads everything once, and waits for it.
pub(crate) fn reads_once(rows: usize) -> bool {
    rows <= FEW_ROWS
}

/// Below this many elements a kernel stays on the calling thread: waking others would cost more.
pub(crate) const SERIAL_ELEMENTS: usize = 16 * 1024;

/// Splits `rows` rows of `width` elements into row ranges and runs them, on all threads when it is worth it.
pub(crate) fn over_rows(
    ctx: &Context<'_>,
    rows: usize,
    width: usize,
    body: &(dyn Fn(usize, usize) + Sync),
) {
    if rows * width < SERIAL_ELEMENTS || rows < 2 {
        body(0, rows);
        return;
    }
    let tasks = (ctx.threads.count() * 4).min(rows);
    ctx.threads.run_near(tasks, &|i, _| {
        body(rows * i / tasks, rows * (i + 1) / tasks)
    });
}

/// Full vectors in `n` elements, and how many elements are left over.
#[inline(always)]
pub(crate) fn split(n: usize) -> (usize, usize) {
    (n / LANES, n % LANES)
}
