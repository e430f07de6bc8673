//! Products with quantised weights, in integers.
//!
//! Activations become integers of fifteen bits, one scale for every 32, so the products of a group are exact integers;
//! each group's integer is scaled and added in f32, in order of the groups. Neither the number of rows in a step nor the
//! tier changes the integers or that order, so a row's result never depends on its neighbours.

mod activations;
mod strip;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
pub(crate) mod weights;

use super::{Context, over_rows};
use activations::{Activations, Layout, Quantise};
use std::ops::Range;
use strip::Strips;
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
struct Task<'a> {
    linear: PackedLinear,
    operands: &'a Operands,
    activations: Activations,
    strips: Range<usize>,
    /// Work space of the thread for a panel of bytes.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "only tiles use it")
    )]
    panel: *mut u8,
}

impl PackedLinear {
    /// Bytes of work space: quantised activations, and a panel per thread.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        self.layout().bytes() + threads * self.panel_bytes()
    }

    fn layout(&self) -> Layout {
        Layout::new(&self.form, self.m, self.k, self.m >= TILED)
    }

    #[cfg(target_arch = "x86_64")]
    fn panel_bytes(&self) -> usize {
        if self.m < TILED {
            0
        } else {
            tiles::panel_bytes(self.k / self.form.group)
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn panel_bytes(&self) -> usize {
        0
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
        if self.tiled(ctx) {
            panel_strips()
        } else {
            strips.div_ceil(ctx.threads.count() * 4).max(1)
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
    let [(linear, operands), ..] = parts else {
        return;
    };
    if linear.m == 0 {
        return;
    }
    let last = parts[parts.len() - 1].1;
    let scratch: *mut u8 = last.scratch.cast();
    let layout = linear.layout();
    let activations = Activations::at(scratch, layout);
    let x = super::Shared(operands.x.cast_mut());
    over_rows(ctx, linear.m, linear.k, &|start, end| {
        for row in start..end {
            ctx.isa.run_integers(Quantise {
                // SAFETY: the caller vouches for `m` rows.
                x: unsafe { x.at(row * linear.k) },
                k: linear.k,
                row,
                form: linear.form,
                to: activations,
            });
        }
    });
    let strips = |part: &PackedLinear| part.n.div_ceil(STRIP);
    let all = parts.iter().map(|(part, _)| strips(part)).sum();
    let step = linear.task_strips(ctx, all);
    let tasks = |part: &PackedLinear| strips(part).div_ceil(step);
    let panels = super::Shared(scratch.wrapping_add(layout.bytes()));
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
            panel: unsafe { panels.at(thread * part.panel_bytes()) },
        };
        #[cfg(target_arch = "x86_64")]
        if part.tiled(ctx) {
            ctx.isa.run_tiles(tiles::Panel(task));
            return;
        }
        ctx.isa.run_integers(Strips(task));
    });
}

#[cfg(target_arch = "x86_64")]
fn panel_strips() -> usize {
    tiles::PANEL
}

#[cfg(not(target_arch = "x86_64"))]
fn panel_strips() -> usize {
    1
}
