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
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLinear {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) form: Form,
}

/// Rows of activations from which matrix tiles are faster than vectors.
const TILED: usize = 24;

struct SharedOperands(Operands);
// SAFETY: tasks read the operands and write disjoint columns of the output.
unsafe impl Sync for SharedOperands {}

/// Some strips of a product.
struct Task<'a> {
    linear: PackedLinear,
    operands: &'a SharedOperands,
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
        if self.m == 0 {
            return;
        }
        let scratch: *mut u8 = operands.scratch.cast();
        let layout = self.layout();
        let activations = Activations::at(scratch, layout);
        let shared = SharedOperands(operands);
        let shared = &shared;
        over_rows(ctx, self.m, self.k, &|start, end| {
            for row in start..end {
                ctx.isa.run_integers(Quantise {
                    // SAFETY: the caller vouches for `m` rows.
                    x: unsafe { shared.0.x.add(row * self.k) },
                    k: self.k,
                    row,
                    form: self.form,
                    to: activations,
                });
            }
        });
        let strips = self.n.div_ceil(STRIP);
        let tiled = ctx.isa.has_tiles() && self.m >= TILED;
        let step = if tiled {
            panel_strips()
        } else {
            strips.div_ceil(ctx.threads.count() * 4).max(1)
        };
        let panels = super::Shared(scratch.wrapping_add(layout.bytes()));
        ctx.threads.run(strips.div_ceil(step), &|i, thread| {
            let task = Task {
                linear: *self,
                operands: shared,
                activations,
                strips: i * step..((i + 1) * step).min(strips),
                // SAFETY: the scratch holds a panel for every thread.
                panel: unsafe { panels.at(thread * self.panel_bytes()) },
            };
            #[cfg(target_arch = "x86_64")]
            if tiled {
                ctx.isa.run_tiles(tiles::Panel(task));
                return;
            }
            ctx.isa.run_integers(Strips(task));
        });
    }
}

#[cfg(target_arch = "x86_64")]
fn panel_strips() -> usize {
    tiles::PANEL
}

#[cfg(not(target_arch = "x86_64"))]
fn panel_strips() -> usize {
    1
}
