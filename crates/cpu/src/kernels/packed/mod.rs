//! Products with quantised weights, in integers.
//!
//! Activations become integers, so their products with quants are exact; what is rounded is rounded in one order. Neither
//! the number of rows in a step nor the tier changes the integers or that order, so a row's result never depends on its
//! neighbours.

mod grouped;
#[cfg(test)]
mod tests;
mod unpack;
pub(crate) mod weights;
mod whole;

use super::{Context, over_rows};
use crate::isa::Isa;
use crate::simd::Integers;
use std::ops::Range;
use weights::{Form, STRIP};

pub(crate) use super::linear::Operands;

/// `out [m, n] = x [m, k] · weightᵀ [n, k] (+ bias [n])` with a packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedLinear {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) form: Form,
}

/// Rows of activations from which matrix tiles are faster than vectors.
const TILED: usize = 24;
/// Most strips of a task on matrix tiles.
const PANEL: usize = 4;

struct SharedParts<'a>(&'a [(PackedLinear, Operands)]);
// SAFETY: tasks read the operands and write disjoint columns of the outputs.
unsafe impl Sync for SharedParts<'_> {}

impl SharedParts<'_> {
    /// The part that a task belongs to, and which of its tasks it is, when each part has as many as `tasks` says.
    fn find(
        &self,
        mut task: usize,
        tasks: impl Fn(&PackedLinear) -> usize,
    ) -> (&(PackedLinear, Operands), usize) {
        let mut parts = self.0.iter();
        loop {
            let part = parts.next().expect("every task belongs to a part");
            match tasks(&part.0) {
                count if task < count => return (part, task),
                count => task -= count,
            }
        }
    }
}

/// Some strips of a product.
struct Task<'a, A> {
    linear: PackedLinear,
    operands: &'a Operands,
    activations: A,
    strips: Range<usize>,
    /// Work space of the thread for the strips as tiles read them.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "only tiles use it")
    )]
    panel: *mut u8,
}

/// How activations are quantised, and multiplied with strips of weights.
trait Scheme: Copy + Sync {
    /// Bytes of the quantised activations, for matrix tiles or not.
    fn bytes(linear: &PackedLinear, tiled: bool) -> usize;
    /// Lays them out from `scratch` on, a multiple of 64.
    fn at(scratch: *mut u8, linear: &PackedLinear, tiled: bool) -> Self;
    /// Quantises a row.
    ///
    /// # Safety
    /// `k` activations must be readable at `x`, and the row be laid out.
    unsafe fn quantise(self, isa: Isa, x: *const f32, row: usize);
    /// Multiplies on vectors.
    ///
    /// # Safety
    /// As for [`PackedLinear::run`], within the task's strips.
    unsafe fn strips(task: Task<'_, Self>, isa: Isa);
    /// Multiplies on matrix tiles.
    ///
    /// # Safety
    /// As for [`PackedLinear::run`], within the task's strips, all of which the panel has room for.
    #[cfg(target_arch = "x86_64")]
    unsafe fn tiles(task: Task<'_, Self>, isa: Isa);
    /// Bytes of a strip in a panel.
    #[cfg(target_arch = "x86_64")]
    fn strip_bytes(linear: &PackedLinear) -> usize;
}

impl PackedLinear {
    /// Bytes of work space: quantised activations, and a panel per thread.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        let (activations, panel) = if self.form.whole() {
            self.work_space::<whole::Activations>()
        } else {
            self.work_space::<grouped::Activations>()
        };
        activations + threads * panel
    }

    /// Bytes of the activations and of a panel.
    fn work_space<A: Scheme>(&self) -> (usize, usize) {
        let tiled = self.m >= TILED;
        #[cfg(target_arch = "x86_64")]
        let panel = if tiled {
            PANEL * A::strip_bytes(self)
        } else {
            0
        };
        #[cfg(not(target_arch = "x86_64"))]
        let panel = 0;
        (A::bytes(self, tiled), panel)
    }

    /// # Safety
    /// The operands must be valid for the shapes of `self`, the weight packed in its form, the scratch as large as
    /// [`scratch`](Self::scratch) says, and the output must overlap none of them.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, operands: Operands) {
        // SAFETY: as the caller vouches.
        unsafe { run_together(ctx, &[(*self, operands)]) }
    }

    /// Whether two products of the same rows can run together: their activations are quantised alike.
    pub(crate) fn joins(&self, other: &PackedLinear) -> bool {
        PackedLinear {
            n: self.n,
            ..*other
        } == *self
    }

    /// Strips that a task takes, where a step has so many.
    fn task_strips(&self, ctx: &Context<'_>, strips: usize) -> usize {
        let threads = ctx.threads.count();
        if self.tiled(ctx) {
            // As many as fit a panel, or fewer where the threads then come out more even.
            let most = |step: &usize| strips.div_ceil(*step).div_ceil(threads) * step;
            (2..=PANEL).rev().min_by_key(most).unwrap_or(PANEL)
        } else {
            strips.div_ceil(threads * 4).max(1)
        }
    }

    fn tiled(&self, ctx: &Context<'_>) -> bool {
        ctx.isa.has_tiles() && self.m >= TILED
    }
}

/// Products of the same rows with several weights, each of which [`joins`](PackedLinear::joins) the first. The rows are
/// quantised once, and the weights' strips are shared among the threads as if they were one weight's.
///
/// # Safety
/// As for [`PackedLinear::run`], for every product; the scratch is the last one's.
pub(crate) unsafe fn run_together(ctx: &Context<'_>, parts: &[(PackedLinear, Operands)]) {
    let whole = parts.first().is_some_and(|(first, _)| first.form.whole());
    // SAFETY: as the caller vouches.
    unsafe {
        if whole {
            multiply::<whole::Activations>(ctx, parts);
        } else {
            multiply::<grouped::Activations>(ctx, parts);
        }
    }
}

/// # Safety
/// As for [`run_together`].
unsafe fn multiply<A: Scheme>(ctx: &Context<'_>, parts: &[(PackedLinear, Operands)]) {
    let [(linear, operands), ..] = parts else {
        return;
    };
    if linear.m == 0 {
        return;
    }
    let last = parts[parts.len() - 1].1;
    let scratch: *mut u8 = last.scratch.cast();
    let (activations_bytes, panel_bytes) = linear.work_space::<A>();
    let activations = A::at(scratch, linear, linear.tiled(ctx));
    let x = super::Shared(operands.x.cast_mut());
    over_rows(ctx, linear.m, linear.k, &|start, end| {
        for row in start..end {
            // SAFETY: the caller vouches for `m` rows and for the scratch.
            unsafe { activations.quantise(ctx.isa, x.at(row * linear.k), row) };
        }
    });
    let strips = |part: &PackedLinear| part.n.div_ceil(STRIP);
    let all = parts.iter().map(|(part, _)| strips(part)).sum();
    let step = linear.task_strips(ctx, all);
    let tasks = |part: &PackedLinear| strips(part).div_ceil(step);
    let panels = super::Shared(scratch.wrapping_add(activations_bytes));
    let count = parts.iter().map(|(part, _)| tasks(part)).sum();
    let parts = &SharedParts(parts);
    ctx.threads.run(count, &|task, thread| {
        let ((part, operands), i) = parts.find(task, tasks);
        let task = Task {
            linear: *part,
            operands,
            activations,
            strips: i * step..((i + 1) * step).min(strips(part)),
            // SAFETY: the scratch holds a panel for every thread.
            panel: unsafe { panels.at(thread * panel_bytes) },
        };
        // SAFETY: as the caller vouches; a task has no more strips than a panel has room for.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if part.tiled(ctx) {
                A::tiles(task, ctx.isa);
                return;
            }
            A::strips(task, ctx.isa);
        }
    });
}

/// Stores sixteen outputs of one row with their biases, or as many as there are.
///
/// # Safety
/// The row must be one of the output's, which has `n` columns.
#[inline(always)]
unsafe fn write<S: Integers>(
    s: S,
    o: &Operands,
    (n, row): (usize, usize),
    strip: usize,
    values: S::V,
) {
    let first = strip * STRIP;
    // SAFETY: the caller vouches for the row; no column past the last is touched.
    unsafe {
        let to = o.out.add(row * n + first);
        let count = (n - first).min(STRIP);
        if count == STRIP {
            let bias = if o.bias.is_null() {
                s.zero()
            } else {
                s.load(o.bias.add(first))
            };
            s.store(to, s.add(values, bias));
        } else {
            let bias = if o.bias.is_null() {
                s.zero()
            } else {
                s.load_part(o.bias.add(first), count)
            };
            s.store_part(to, s.add(values, bias), count);
        }
    }
}
