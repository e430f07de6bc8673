//! Products with quantised weights, in integers.
//!
//! Activations become integers, so their products with quants are exact; what is rounded is rounded in one order. Neither
//! the number of rows in a step nor the tier changes the integers or that order, so a row's result never depends on its
//! neighbours.

mod epilogue;
pub(crate) mod format;
mod group_scaled;
pub(crate) mod packed_file;
pub(crate) mod packed_weight;
mod partition;
mod quant_block;
mod row_scaled;
#[cfg(test)]
mod tests;

use crate::isa::Isa;
use crate::kernels::{Context, Shared, over_rows};
use crate::prefetch::Course;
use crate::simd::Integers;
use format::{Form, STRIP};
use std::ops::Range;

pub(crate) use super::LinearOperands;
pub(crate) use epilogue::{After, Before, Gate};
use epilogue::{GateColumns, Target};
use partition::Cut;
pub(crate) use partition::reading;

/// `out [m, n] = x [m, k] · weightᵀ [n, k] (+ bias [n])` with a packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedLinear {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) form: Form,
}

/// Rows of activations from which strips of weights are written out for matrix tiles before any of them is multiplied.
const PANELS: usize = 24;
/// Products of the same rows that run as one, at most: queries, keys and values.
pub(crate) const TOGETHER: usize = 3;

/// Some strips of a product.
struct Task<'a, A> {
    linear: PackedLinear,
    operands: &'a LinearOperands,
    activations: A,
    strips: Range<usize>,
    to: Target,
    /// What the thread brings near.
    course: &'a Course,
    /// Work space of the thread for a panel: strips as tiles read them.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "only tiles use it")
    )]
    panel: *mut u8,
}

/// How activations are quantised, and multiplied with strips of weights.
trait Scheme: Copy + Sync {
    /// Whether matrix tiles multiply so many rows faster than vectors.
    fn suits_tiles(rows: usize) -> bool;
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
    /// As for [`PackedLinear::run`], within the task's strips; from [`PANELS`] rows on, the panel has room for them.
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
            self.work_space::<row_scaled::Activations>()
        } else {
            self.work_space::<group_scaled::Activations>()
        };
        activations + threads * panel
    }

    /// Bytes of the activations and of a panel.
    fn work_space<A: Scheme>(&self) -> (usize, usize) {
        let tiled = A::suits_tiles(self.m);
        #[cfg(target_arch = "x86_64")]
        let panel = if tiled && self.m >= PANELS {
            partition::PANEL_STRIPS * A::strip_bytes(self)
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
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, operands: LinearOperands) {
        // SAFETY: as the caller vouches.
        unsafe { run_together(ctx, None, &[(*self, operands)], After::Nothing) }
    }

    /// Whether two products of the same rows can run together: their activations are quantised alike.
    pub(crate) fn joins(&self, other: &PackedLinear) -> bool {
        PackedLinear {
            n: self.n,
            ..*other
        } == *self
    }

    fn tiled<A: Scheme>(&self, ctx: &Context<'_>) -> bool {
        ctx.isa.has_tiles() && A::suits_tiles(self.m)
    }
}

/// Products of the same rows with several weights, each of which [`joins`](PackedLinear::joins) the first. The rows are
/// quantised once, and the weights' strips are shared among the threads as if they were one weight's.
///
/// # Safety
/// As for [`PackedLinear::run`], for every product; the scratch is the last one's. What comes after must suit the products:
/// one to be added to, or two of one shape, and their places, all of which the scratch does not overlap. Nor does it overlap
/// what is normed before; normed rows go to their place, which the products read.
pub(crate) unsafe fn run_together(
    ctx: &Context<'_>,
    before: Option<Before>,
    parts: &[(PackedLinear, LinearOperands)],
    after: After,
) {
    let whole = parts.first().is_some_and(|(first, _)| first.form.whole());
    // SAFETY: as the caller vouches.
    unsafe {
        if whole {
            multiply::<row_scaled::Activations>(ctx, before, parts, after);
        } else {
            multiply::<group_scaled::Activations>(ctx, before, parts, after);
        }
    }
}

/// # Safety
/// As for [`run_together`].
unsafe fn multiply<A: Scheme>(
    ctx: &Context<'_>,
    before: Option<Before>,
    parts: &[(PackedLinear, LinearOperands)],
    after: After,
) {
    let [(linear, operands), ..] = parts else {
        return;
    };
    if linear.m == 0 {
        return;
    }
    let last = parts[parts.len() - 1].1;
    let scratch: *mut u8 = last.scratch.cast();
    let (activations_bytes, panel_bytes) = linear.work_space::<A>();
    let activations = A::at(scratch, linear, linear.tiled::<A>(ctx));
    let x = Shared(operands.x.cast_mut());
    // An element takes about twice as long as it does elsewhere.
    over_rows(ctx, linear.m, 2 * linear.k, &|start, end| {
        for row in start..end {
            // SAFETY: the caller vouches for `m` rows, also of what is normed, and for the scratch.
            unsafe {
                let x = x.at(row * linear.k);
                if let Some(before) = &before {
                    let from = before.x.add(row * linear.k);
                    before.norm.row(ctx, from, before.weight, before.bias, x);
                }
                activations.quantise(ctx.isa, x, row);
            }
        }
    });
    let work = &Work {
        ctx,
        parts,
        activations,
        panels: Shared(scratch.wrapping_add(activations_bytes)),
        panel_bytes,
        after,
    };
    // SAFETY: as the caller vouches.
    unsafe {
        match after {
            After::Gate(gate) => work.gated(gate),
            _ => work.plain(),
        }
    }
}

/// Products whose rows are quantised.
struct Work<'a, A> {
    ctx: &'a Context<'a>,
    parts: &'a [(PackedLinear, LinearOperands)],
    activations: A,
    /// A panel for every thread.
    panels: Shared<u8>,
    panel_bytes: usize,
    after: After,
}

// SAFETY: tasks read the operands and write disjoint columns of the outputs, or what belongs to their thread.
unsafe impl<A: Sync> Sync for Work<'_, A> {}

impl<A: Scheme> Work<'_, A> {
    /// Every product to its place.
    ///
    /// # Safety
    /// As for [`run_together`].
    unsafe fn plain(&self) {
        let cut = Cut::in_turn(self.parts, self.in_panels(), self.ctx.threads.count());
        self.ctx.threads.run_near(cut.tasks(), &|task, thread| {
            for (part, strips) in cut.task(task) {
                let (linear, operands) = &self.parts[part];
                let (out, addend) = match self.after {
                    After::Add { addend, out } => (out, addend),
                    _ => (operands.out, std::ptr::null()),
                };
                let first = strips.start * STRIP;
                let to = Target {
                    out: out.wrapping_add(first),
                    first,
                    stride: linear.n,
                    addend,
                };
                // SAFETY: as the caller vouches; a task in panels has no more strips than a panel has room for.
                unsafe { self.task(part, strips, thread, to) };
            }
        });
    }

    /// The same columns of both products near by, and at once what they are for.
    ///
    /// # Safety
    /// As for [`run_together`]; there must be two products of one shape.
    unsafe fn gated(&self, gate: Gate) {
        let (linear, _) = self.parts[0];
        let PackedLinear { m, n, .. } = linear;
        let threads = self.ctx.threads.count();
        let Some(cut) = Cut::paired(&linear, self.in_panels(), threads) else {
            // Too many threads for the room.
            // SAFETY: as the caller vouches; the products' places are theirs.
            unsafe { self.plain() };
            let products = [0, 1].map(|part| Shared(self.parts[part].1.out));
            over_rows(self.ctx, m, n, &|start, end| {
                // SAFETY: the products and the result have `m` rows.
                let (gate, products) = unsafe {
                    let products = products.map(|p| p.at(start * n).cast_const());
                    (gate.behind(start * n), products)
                };
                self.ctx.isa.run(GateColumns {
                    gate,
                    products,
                    stride: n,
                    rows: end - start,
                    n,
                    columns: 0..n,
                });
            });
            return;
        };
        let (room, width) = (Shared(gate.room), cut.columns());
        self.ctx.threads.run_near(cut.tasks(), &|task, thread| {
            let mut products = [std::ptr::null(); 2];
            let mut columns = 0..0;
            for (part, strips) in cut.task(task) {
                let first = strips.start * STRIP;
                columns = first..n.min(strips.end * STRIP);
                // SAFETY: the room has as many columns as the threads need, or it were not cut so.
                let out = unsafe { room.at((2 * thread + part) * m * width) };
                let to = Target {
                    out,
                    first,
                    stride: width,
                    addend: std::ptr::null(),
                };
                // SAFETY: as the caller vouches; a task in panels has no more strips than a panel has room for.
                unsafe { self.task(part, strips, thread, to) };
                products[part] = out.cast_const();
            }
            self.ctx.isa.run(GateColumns {
                gate,
                products,
                stride: width,
                rows: m,
                n,
                columns,
            });
        });
    }

    fn tiled(&self) -> bool {
        self.parts[0].0.tiled::<A>(self.ctx)
    }

    /// Whether a task is a panel. Fewer rows take as long as their weights take to be read, as on vectors.
    fn in_panels(&self) -> bool {
        self.tiled() && self.parts[0].0.m >= PANELS
    }

    /// # Safety
    /// As for [`run_together`], within the strips; in panels, one must have room for them.
    unsafe fn task(&self, part: usize, strips: Range<usize>, thread: usize, to: Target) {
        let (linear, operands) = &self.parts[part];
        let task = Task {
            linear: *linear,
            operands,
            activations: self.activations,
            strips,
            to,
            course: self.ctx.threads.course(thread),
            // SAFETY: the scratch holds a panel for every thread.
            panel: unsafe { self.panels.at(thread * self.panel_bytes) },
        };
        // SAFETY: as the caller vouches.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if self.tiled() {
                A::tiles(task, self.ctx.isa);
                return;
            }
            A::strips(task, self.ctx.isa);
        }
    }
}

impl<A> Task<'_, A> {
    /// Where a strip of a row of the product goes.
    ///
    /// # Safety
    /// The strip must be one of the task's, the row one of the product's.
    #[inline(always)]
    unsafe fn place(&self, row: usize, strip: usize) -> *mut f32 {
        let Target {
            out, first, stride, ..
        } = self.to;
        // SAFETY: as the caller vouches.
        unsafe { out.add(row * stride + strip * STRIP - first) }
    }
}

/// Stores sixteen outputs of one row with their biases and what is added, or as many as there are.
///
/// # Safety
/// The strip must be one of the task's, the row one of the product's.
#[inline(always)]
unsafe fn write<S: Integers, A>(
    s: S,
    task: &Task<'_, A>,
    row: usize,
    strip: usize,
    mut values: S::V,
) {
    let (n, bias, addend) = (task.linear.n, task.operands.bias, task.to.addend);
    let first = strip * STRIP;
    let count = (n - first).min(STRIP);
    // SAFETY: the caller vouches for the row; no column past the last is touched.
    unsafe {
        let to = task.place(row, strip);
        for (from, at) in [(bias, first), (addend, row * n + first)] {
            if !from.is_null() {
                let more = if count == STRIP {
                    s.load(from.add(at))
                } else {
                    s.load_part(from.add(at), count)
                };
                values = s.add(values, more);
            }
        }
        if count == STRIP {
            s.store(to, values);
        } else {
            s.store_part(to, values, count);
        }
    }
}
