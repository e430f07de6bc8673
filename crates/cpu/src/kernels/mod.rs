//! The kernels, grouped by what they compute. They take raw operands, because a result may overwrite an operand in
//! place.
#![allow(
    clippy::needless_range_loop,
    reason = "index loops over register tiles are what gets unrolled"
)]

pub(crate) mod attention;
pub(crate) mod axis_view;
pub(crate) mod conv;
pub(crate) mod decode;
pub(crate) mod elementwise;
pub(crate) mod grid_sample;
pub(crate) mod loop_nest;
pub(crate) mod matmul;
pub(crate) mod normalise;
pub(crate) mod rearrange;
pub(crate) mod recurrent;
pub(crate) mod reduce;

use crate::isa::Isa;
use crate::simd::LANES;
use crate::thread_pool::ThreadPool;

/// The tier and the threads that every kernel runs with.
pub(crate) struct Context<'a> {
    pub(crate) isa: Isa,
    pub(crate) threads: &'a ThreadPool,
}

/// A raw pointer that may be used on several threads, each for its own part of the buffer.
#[derive(Clone, Copy)]
pub(crate) struct SendPtr<T>(pub(crate) *mut T);

// SAFETY: kernels give every task its own part of the buffer.
unsafe impl<T> Send for SendPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SendPtr<T> {}

impl<T> SendPtr<T> {
    /// The address `offset` elements on.
    ///
    /// # Safety
    /// The address must lie in the buffer.
    pub(crate) unsafe fn at(self, offset: usize) -> *mut T {
        // SAFETY: the caller guarantees the offset.
        unsafe { self.0.add(offset) }
    }
}

/// Kernels with fewer elements stay on the calling thread: waking others would cost more.
pub(crate) const SERIAL_ELEMENTS: usize = 16 * 1024;

/// Divides `rows` rows of `width` elements into row ranges and runs them, on all threads if there are enough elements.
pub(crate) fn for_row_ranges(
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
    ctx.threads.run_chunked(tasks, &|i, _| {
        body(rows * i / tasks, rows * (i + 1) / tasks)
    });
}

/// Less work than this, in multiply-adds, stays on the calling thread.
const SERIAL_WORK: usize = 256 * 1024;

/// Runs tasks that together take `work` multiply-adds, on all threads if there is enough of it; each gets its number and its
/// thread's.
pub(crate) fn for_tasks(
    ctx: &Context<'_>,
    tasks: usize,
    work: usize,
    body: &(dyn Fn(usize, usize) + Sync),
) {
    let threads = match work < SERIAL_WORK || tasks < 2 {
        true => 1,
        false => ctx.threads.count(),
    };
    run_tasks(ctx, threads, tasks, body);
}

/// Runs tasks on the pool, in one chunk per thread, or on the calling thread if one thread is enough.
pub(crate) fn run_tasks(
    ctx: &Context<'_>,
    threads: usize,
    tasks: usize,
    task: &(dyn Fn(usize, usize) + Sync),
) {
    if threads == 1 {
        (0..tasks).for_each(|i| task(i, 0));
    } else {
        ctx.threads.run_chunked(tasks, task);
    }
}

/// The number of full vectors in `n` elements, and of the elements left.
#[inline(always)]
pub(crate) fn split_vectors(n: usize) -> (usize, usize) {
    (n / LANES, n % LANES)
}
