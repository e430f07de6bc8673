//! Linear layers with packed quantised weights, multiplied in integers.
//!
//! Activations are quantised to integers, so their products with quants are exact; the sums that are rounded are
//! rounded in one order. Neither the number of rows in a step nor the tier changes the integers or that order, so a
//! row's result never depends on its neighbours.

mod activations;
#[cfg(target_arch = "x86_64")]
mod bf16;
mod block_scaled;
mod byte_quants;
mod factors;
pub(crate) mod format;
mod microkernel;
mod multiply;
mod pack;
pub(crate) mod packed_file;
pub(crate) mod packed_weight;
mod panel;
mod panel_kernel;
mod partition;
pub(crate) mod portable;
mod task;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod tiles_small_m;
pub(crate) mod weight_source;

use super::epilogue::{ApplyGate, OutputTile};
use super::{Gate, LinearOperands, Prologue};
use crate::isa::Isa;
use crate::kernels::{Context, SendPtr, for_row_ranges};
use activations::RowScaledActivations;
use backend::Precision;
#[cfg(target_arch = "x86_64")]
use bf16::Bf16Activations;
use block_scaled::BlockScaledActivations;
use format::PANEL;
use partition::PanelPartition;
pub(crate) use partition::prefetch_spans;
use std::ops::Range;
use task::PanelTask;
pub(crate) use task::QuantisedLinear;

/// The most products of the same rows that run as one call: queries, keys and values.
pub(crate) const MAX_FUSED_PRODUCTS: usize = 3;

impl QuantisedLinear {
    /// Bytes of scratch: the quantised activations, and expanded panels for every thread.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        let (activations, expanded) = self.scratch_parts();
        activations + threads * expanded
    }

    /// Bytes of the quantised activations, and of one thread's expanded panels.
    fn scratch_parts(&self) -> (usize, usize) {
        #[cfg(target_arch = "x86_64")]
        if self.precision == Precision::Fast && crate::simd::amx::available() {
            return (Bf16Activations::bytes(self), bf16::thread_scratch(self));
        }
        if self.precision != Precision::High {
            let activations = BlockScaledActivations::bytes(self);
            return (activations, block_scaled::thread_scratch(self));
        }
        #[cfg(target_arch = "x86_64")]
        let expanded = if multiply::expands_panels(self.m) {
            tiles::scratch_bytes(self)
        } else {
            0
        };
        #[cfg(not(target_arch = "x86_64"))]
        let expanded = 0;
        let expanded = expanded.max(panel_kernel::unpacked_bytes(self));
        (RowScaledActivations::bytes(self), expanded)
    }

    /// Computes the product.
    ///
    /// # Safety
    /// The operands must be valid for the shapes of `self`, the weight packed in its format, the scratch as large as
    /// [`scratch`](Self::scratch) says, and the output must overlap none of them.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, operands: LinearOperands) {
        // SAFETY: as the caller guarantees.
        unsafe { run_fused(ctx, None, &[(*self, operands)], None) }
    }

    /// Whether two products of the same rows can be fused: they quantise their rows alike.
    pub(crate) fn can_fuse_with(&self, other: &QuantisedLinear) -> bool {
        QuantisedLinear {
            n: self.n,
            ..*other
        } == *self
    }

    /// Whether the product is computed on matrix tiles.
    fn tiled(&self, ctx: &Context<'_>) -> bool {
        let suits_tiles = match self.precision {
            Precision::High => multiply::suits_tiles(self.m),
            Precision::Balanced => false,
            Precision::Fast => true,
        };
        suits_tiles && ctx.isa.has_tiles()
    }
}

/// Runs products of the same rows as one call; each must be [fusible](QuantisedLinear::can_fuse_with) with the first.
/// The rows are quantised once, and the panels of all weights are divided among the threads as if they were one
/// weight's.
///
/// # Safety
/// As for [`QuantisedLinear::run`], for every product; the scratch is the last product's. A gate needs two products of
/// one shape without epilogues. The buffers of gate and epilogues must not overlap the scratch. The prologue's operand
/// must not overlap it either; the normalised rows are stored where the products read them.
pub(crate) unsafe fn run_fused(
    ctx: &Context<'_>,
    prologue: Option<Prologue>,
    parts: &[(QuantisedLinear, LinearOperands)],
    gate: Option<Gate>,
) {
    let [(linear, operands), ..] = parts else {
        return;
    };
    if linear.m == 0 {
        return;
    }
    let last = parts[parts.len() - 1].1;
    let scratch: *mut u8 = last.scratch.cast();
    let (activations_bytes, expanded_bytes) = linear.scratch_parts();
    let activations = Activations::in_scratch(scratch, linear, linear.tiled(ctx));
    let x = SendPtr(operands.x.cast_mut());
    // Quantising an element costs about twice as much as an element of other row kernels; the doubled width lowers the
    // serial threshold accordingly.
    for_row_ranges(ctx, linear.m, 2 * linear.k, &|start, end| {
        for row in start..end {
            // SAFETY: the caller guarantees `m` rows, also of the prologue's operand, and the scratch.
            unsafe {
                let x = x.at(row * linear.k);
                if let Some(prologue) = &prologue {
                    let from = prologue.x.add(row * linear.k);
                    prologue
                        .norm
                        .row(ctx, from, prologue.weight, prologue.bias, x);
                }
                activations.quantise(ctx.isa, x, row);
            }
        }
    });
    let work = &FusedProducts {
        ctx,
        parts,
        activations,
        expanded: SendPtr(scratch.wrapping_add(activations_bytes)),
        expanded_bytes,
    };
    // SAFETY: as the caller guarantees.
    unsafe {
        match gate {
            Some(gate) => work.run_gated(gate),
            None => work.run_each(),
        }
    }
}

/// Products of one row each, on vectors, that run as one call: their rows were quantised to their own scratch before.
pub(crate) struct SingleRows<'a> {
    pub(crate) count: usize,
    /// A product and its operands.
    pub(crate) product: &'a (dyn Fn(usize) -> (QuantisedLinear, LinearOperands) + Sync),
    /// Scratch of every thread, of [`expanded_bytes`](SingleRows::expanded_bytes) each.
    pub(crate) expanded: *mut u8,
}

impl SingleRows<'_> {
    /// Whether products of this shape and precision can be among them.
    pub(crate) fn suits(linear: &QuantisedLinear, ctx: &Context<'_>) -> bool {
        linear.m == 1 && !linear.tiled(ctx)
    }

    /// Bytes of a quantised row.
    pub(crate) fn row_bytes(linear: &QuantisedLinear) -> usize {
        linear.scratch_parts().0.next_multiple_of(64)
    }

    /// Bytes of one thread's expanded panels.
    pub(crate) fn expanded_bytes(linear: &QuantisedLinear) -> usize {
        linear.scratch_parts().1
    }

    /// Quantises the row of a product to its scratch.
    ///
    /// # Safety
    /// The operands must have the row and [`row_bytes`](SingleRows::row_bytes) of scratch, whose address is a multiple of 64.
    pub(crate) unsafe fn quantise(isa: Isa, linear: &QuantisedLinear, at: LinearOperands) {
        let row = Activations::in_scratch(at.scratch.cast(), linear, false);
        // SAFETY: as the caller guarantees.
        unsafe { row.quantise(isa, at.x, 0) }
    }

    /// Computes the products, which have the same shape.
    ///
    /// # Safety
    /// As for [`QuantisedLinear::run`], for every product, except that the scratch has its quantised row.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>) {
        if self.count == 0 {
            return;
        }
        let panels = (self.product)(0).0.n.div_ceil(PANEL);
        let tasks = ctx.threads.count() * partition::VECTOR_TASKS_PER_THREAD;
        let each = tasks.div_ceil(self.count).clamp(1, panels);
        let expanded = SendPtr(self.expanded);
        ctx.threads.run_chunked(self.count * each, &|task, thread| {
            let (linear, operands) = (self.product)(task / each);
            let start = |chunk: usize| panels * chunk / each;
            let panels = start(task % each)..start(task % each + 1);
            let product = FusedProducts {
                ctx,
                parts: &[(linear, operands)],
                activations: Activations::in_scratch(operands.scratch.cast(), &linear, false),
                expanded,
                expanded_bytes: SingleRows::expanded_bytes(&linear),
            };
            // SAFETY: as the caller guarantees.
            unsafe { product.store(0, panels, thread) }
        });
    }
}

/// The quantised rows of a step, as the precision wants them.
#[derive(Clone, Copy)]
enum Activations {
    RowScaled(RowScaledActivations),
    BlockScaled(BlockScaledActivations),
    #[cfg(target_arch = "x86_64")]
    Bf16(Bf16Activations),
}

impl Activations {
    /// The activations laid out in `scratch`, whose address is a multiple of 64.
    fn in_scratch(scratch: *mut u8, linear: &QuantisedLinear, tiled: bool) -> Activations {
        match linear.precision {
            Precision::High => {
                Activations::RowScaled(RowScaledActivations::in_scratch(scratch, linear, tiled))
            }
            #[cfg(target_arch = "x86_64")]
            Precision::Fast if tiled => {
                Activations::Bf16(Bf16Activations::in_scratch(scratch, linear))
            }
            Precision::Balanced | Precision::Fast => {
                Activations::BlockScaled(BlockScaledActivations::in_scratch(scratch, linear))
            }
        }
    }

    /// Quantises a row.
    ///
    /// # Safety
    /// `k` activations must be readable at `x`, and the row be laid out.
    unsafe fn quantise(self, isa: Isa, x: *const f32, row: usize) {
        // SAFETY: as the caller guarantees.
        unsafe {
            match self {
                Activations::RowScaled(activations) => activations.quantise(isa, x, row),
                Activations::BlockScaled(activations) => activations.quantise(isa, x, row),
                #[cfg(target_arch = "x86_64")]
                Activations::Bf16(activations) => activations.round(isa, x, row),
            }
        }
    }
}

/// Fused products whose rows have been quantised.
struct FusedProducts<'a> {
    ctx: &'a Context<'a>,
    parts: &'a [(QuantisedLinear, LinearOperands)],
    activations: Activations,
    /// Scratch of every thread for its expanded panels.
    expanded: SendPtr<u8>,
    expanded_bytes: usize,
}

// SAFETY: tasks read the operands and write disjoint columns of the outputs, or their own thread's scratch.
unsafe impl Sync for FusedProducts<'_> {}

impl FusedProducts<'_> {
    /// Stores every product at its output.
    ///
    /// # Safety
    /// As for [`run_fused`].
    unsafe fn run_each(&self) {
        let partition =
            PanelPartition::sequential(self.parts, self.max_panels(), self.ctx.threads.count());
        self.ctx
            .threads
            .run_chunked(partition.tasks(), &|task, thread| {
                for (part, panels) in partition.task(task) {
                    // SAFETY: as the caller guarantees; a task that expands its panels has at most as many as the
                    // scratch holds.
                    unsafe { self.store(part, panels, thread) }
                }
            });
    }

    /// Stores panels of one product at its output, with the epilogue.
    ///
    /// # Safety
    /// As for [`task`](Self::task).
    unsafe fn store(&self, part: usize, panels: Range<usize>, thread: usize) {
        let (linear, operands) = &self.parts[part];
        let first = panels.start * PANEL;
        let columns = first..linear.n.min(panels.end * PANEL);
        let output = OutputTile {
            out: operands.out.wrapping_add(first),
            first,
            stride: linear.n,
        };
        // SAFETY: as the caller guarantees.
        unsafe {
            self.task(part, panels, thread, output);
            let epilogue = &operands.epilogue;
            epilogue.finish(self.ctx.isa, output, (linear.m, columns), linear.n);
        }
    }

    /// Computes gate and up for the same columns into the thread's part of the scratch, then stores `activation(gate) ·
    /// up`.
    ///
    /// # Safety
    /// As for [`run_fused`]; there must be two products of one shape.
    unsafe fn run_gated(&self, gate: Gate) {
        let (linear, _) = self.parts[0];
        let QuantisedLinear { m, n, .. } = linear;
        let threads = self.ctx.threads.count();
        let Some(partition) = PanelPartition::paired(&linear, self.max_panels(), threads) else {
            // The scratch does not hold a task's columns for every thread: compute both products in full, then apply
            // the gate.
            // SAFETY: as the caller guarantees; the products have their own output buffers.
            unsafe { self.run_each() };
            let products = [0, 1].map(|part| SendPtr(self.parts[part].1.out));
            for_row_ranges(self.ctx, m, n, &|start, end| {
                // SAFETY: the products and the result have `m` rows.
                let (gate, products) = unsafe {
                    let products = products.map(|p| p.at(start * n).cast_const());
                    (gate.offset_by(start * n), products)
                };
                self.ctx.isa.run(ApplyGate {
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
        let (scratch, width) = (SendPtr(gate.scratch), partition.columns());
        self.ctx
            .threads
            .run_chunked(partition.tasks(), &|task, thread| {
                let mut products = [std::ptr::null(); 2];
                let mut columns = 0..0;
                for (part, panels) in partition.task(task) {
                    let first = panels.start * PANEL;
                    columns = first..n.min(panels.end * PANEL);
                    // SAFETY: `paired` returns a partition only if the scratch holds a task's columns for every thread.
                    let out = unsafe { scratch.at((2 * thread + part) * m * width) };
                    let output = OutputTile {
                        out,
                        first,
                        stride: width,
                    };
                    // SAFETY: as the caller guarantees; a task that expands its panels has at most as many as the
                    // scratch holds.
                    unsafe { self.task(part, panels, thread, output) };
                    products[part] = out.cast_const();
                }
                self.ctx.isa.run(ApplyGate {
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
        self.parts[0].0.tiled(self.ctx)
    }

    /// The most panels of a task; `None` if it may have any number, because it does not expand them.
    fn max_panels(&self) -> Option<usize> {
        let (linear, _) = &self.parts[0];
        match self.activations {
            #[cfg(target_arch = "x86_64")]
            Activations::Bf16(_) => Some(bf16::max_panels(linear)),
            #[cfg(target_arch = "x86_64")]
            Activations::RowScaled(_) if self.tiled() && multiply::expands_panels(linear.m) => {
                Some(tiles::max_panels(linear))
            }
            _ => None,
        }
    }

    /// Multiplies panels of one product on one thread.
    ///
    /// # Safety
    /// As for [`run_fused`], within the panels; if they are expanded, the thread's scratch must hold them.
    unsafe fn task(&self, part: usize, panels: Range<usize>, thread: usize, output: OutputTile) {
        let (linear, operands) = &self.parts[part];
        macro_rules! task {
            ($activations:expr) => {
                PanelTask {
                    linear: *linear,
                    operands,
                    activations: $activations,
                    panels,
                    output,
                    prefetch_plan: self.ctx.threads.prefetch_plan(thread),
                    // The scratch has a part for every thread.
                    expanded: self.expanded.at(thread * self.expanded_bytes),
                }
            };
        }
        // SAFETY: as the caller guarantees.
        unsafe {
            match self.activations {
                Activations::BlockScaled(x) => block_scaled::multiply(task!(x), self.ctx.isa),
                #[cfg(target_arch = "x86_64")]
                Activations::Bf16(x) => bf16::multiply(task!(x), self.ctx.isa),
                #[cfg(target_arch = "x86_64")]
                Activations::RowScaled(x) if self.tiled() => {
                    multiply::multiply_tiles(task!(x), self.ctx.isa);
                }
                Activations::RowScaled(x) => multiply::multiply_vectors(task!(x), self.ctx.isa),
            }
        }
    }
}
