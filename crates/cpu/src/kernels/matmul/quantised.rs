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
use crate::kernels::{Context, SendPtr, for_row_ranges};
use crate::prefetch::PrefetchPlan;
use crate::simd::IntDot;
use format::{PackedFormat, STRIP};
use std::ops::Range;

pub(crate) use super::LinearOperands;
use epilogue::{ApplyGate, OutputTile};
pub(crate) use epilogue::{Epilogue, GateEpilogue, NormPrologue};
use partition::StripPartition;
pub(crate) use partition::prefetch_spans;

/// `out [m, n] = x [m, k] · weightᵀ [n, k] (+ bias [n])` with a packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuantisedLinear {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) form: PackedFormat,
}

/// Rows of activations from which strips of weights are written out for matrix tiles before any of them is multiplied.
const MIN_EXPANDED_ROWS: usize = 24;
/// Products of the same rows that run as one, at most: queries, keys and values.
pub(crate) const MAX_FUSED_PRODUCTS: usize = 3;

/// Some strips of a product.
struct StripTask<'a, A> {
    linear: QuantisedLinear,
    operands: &'a LinearOperands,
    activations: A,
    strips: Range<usize>,
    output: OutputTile,
    /// What the thread brings near.
    prefetch_plan: &'a PrefetchPlan,
    /// Work space of the thread for a panel: strips as tiles read them.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "only tiles use it")
    )]
    expanded: *mut u8,
}

/// How activations are quantised, and multiplied with strips of weights.
trait QuantScheme: Copy + Sync {
    /// Whether matrix tiles multiply so many rows faster than vectors.
    fn suits_tiles(rows: usize) -> bool;
    /// Bytes of the quantised activations, for matrix tiles or not.
    fn bytes(linear: &QuantisedLinear, tiled: bool) -> usize;
    /// Lays them out from `scratch` on, a multiple of 64.
    fn in_scratch(scratch: *mut u8, linear: &QuantisedLinear, tiled: bool) -> Self;
    /// Quantises a row.
    ///
    /// # Safety
    /// `k` activations must be readable at `x`, and the row be laid out.
    unsafe fn quantise(self, isa: Isa, x: *const f32, row: usize);
    /// Multiplies on vectors.
    ///
    /// # Safety
    /// As for [`QuantisedLinear::run`], within the task's strips.
    unsafe fn multiply_vectors(task: StripTask<'_, Self>, isa: Isa);
    /// Multiplies on matrix tiles.
    ///
    /// # Safety
    /// As for [`QuantisedLinear::run`], within the task's strips; from [`MIN_EXPANDED_ROWS`] rows on, the panel has room for them.
    #[cfg(target_arch = "x86_64")]
    unsafe fn multiply_tiles(task: StripTask<'_, Self>, isa: Isa);
    /// Bytes of a strip in a panel.
    #[cfg(target_arch = "x86_64")]
    fn expanded_strip_bytes(linear: &QuantisedLinear) -> usize;
}

impl QuantisedLinear {
    /// Bytes of work space: quantised activations, and a panel per thread.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        let (activations, expanded) = if self.form.is_row_scaled() {
            self.scratch_parts::<row_scaled::RowScaledActivations>()
        } else {
            self.scratch_parts::<group_scaled::GroupScaledActivations>()
        };
        activations + threads * expanded
    }

    /// Bytes of the activations and of a panel.
    fn scratch_parts<A: QuantScheme>(&self) -> (usize, usize) {
        let tiled = A::suits_tiles(self.m);
        #[cfg(target_arch = "x86_64")]
        let expanded = if tiled && self.m >= MIN_EXPANDED_ROWS {
            partition::MAX_EXPANDED_STRIPS * A::expanded_strip_bytes(self)
        } else {
            0
        };
        #[cfg(not(target_arch = "x86_64"))]
        let expanded = 0;
        (A::bytes(self, tiled), expanded)
    }

    /// # Safety
    /// The operands must be valid for the shapes of `self`, the weight packed in its form, the scratch as large as
    /// [`scratch`](Self::scratch) says, and the output must overlap none of them.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, operands: LinearOperands) {
        // SAFETY: as the caller vouches.
        unsafe { run_fused(ctx, None, &[(*self, operands)], Epilogue::None) }
    }

    /// Whether two products of the same rows can run together: their activations are quantised alike.
    pub(crate) fn can_fuse_with(&self, other: &QuantisedLinear) -> bool {
        QuantisedLinear {
            n: self.n,
            ..*other
        } == *self
    }

    fn tiled<A: QuantScheme>(&self, ctx: &Context<'_>) -> bool {
        ctx.isa.has_tiles() && A::suits_tiles(self.m)
    }
}

/// Products of the same rows with several weights, each of which [`can_fuse_with`](QuantisedLinear::can_fuse_with) the first. The rows are
/// quantised once, and the weights' strips are shared among the threads as if they were one weight's.
///
/// # Safety
/// As for [`QuantisedLinear::run`], for every product; the scratch is the last one's. What comes after must suit the products:
/// one to be added to, or two of one shape, and their places, all of which the scratch does not overlap. Nor does it overlap
/// what is normed before; normed rows go to their place, which the products read.
pub(crate) unsafe fn run_fused(
    ctx: &Context<'_>,
    prologue: Option<NormPrologue>,
    parts: &[(QuantisedLinear, LinearOperands)],
    epilogue: Epilogue,
) {
    let whole = parts
        .first()
        .is_some_and(|(first, _)| first.form.is_row_scaled());
    // SAFETY: as the caller vouches.
    unsafe {
        if whole {
            multiply::<row_scaled::RowScaledActivations>(ctx, prologue, parts, epilogue);
        } else {
            multiply::<group_scaled::GroupScaledActivations>(ctx, prologue, parts, epilogue);
        }
    }
}

/// # Safety
/// As for [`run_fused`].
unsafe fn multiply<A: QuantScheme>(
    ctx: &Context<'_>,
    prologue: Option<NormPrologue>,
    parts: &[(QuantisedLinear, LinearOperands)],
    epilogue: Epilogue,
) {
    let [(linear, operands), ..] = parts else {
        return;
    };
    if linear.m == 0 {
        return;
    }
    let last = parts[parts.len() - 1].1;
    let scratch: *mut u8 = last.scratch.cast();
    let (activations_bytes, expanded_bytes) = linear.scratch_parts::<A>();
    let activations = A::in_scratch(scratch, linear, linear.tiled::<A>(ctx));
    let x = SendPtr(operands.x.cast_mut());
    // An element takes about twice as long as it does elsewhere.
    for_row_ranges(ctx, linear.m, 2 * linear.k, &|start, end| {
        for row in start..end {
            // SAFETY: the caller vouches for `m` rows, also of what is normed, and for the scratch.
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
        epilogue,
    };
    // SAFETY: as the caller vouches.
    unsafe {
        match epilogue {
            Epilogue::Gate(gate) => work.run_gated(gate),
            _ => work.run_each(),
        }
    }
}

/// Products whose rows are quantised.
struct FusedProducts<'a, A> {
    ctx: &'a Context<'a>,
    parts: &'a [(QuantisedLinear, LinearOperands)],
    activations: A,
    /// A panel for every thread.
    expanded: SendPtr<u8>,
    expanded_bytes: usize,
    epilogue: Epilogue,
}

// SAFETY: tasks read the operands and write disjoint columns of the outputs, or what belongs to their thread.
unsafe impl<A: Sync> Sync for FusedProducts<'_, A> {}

impl<A: QuantScheme> FusedProducts<'_, A> {
    /// Every product to its place.
    ///
    /// # Safety
    /// As for [`run_fused`].
    unsafe fn run_each(&self) {
        let partition =
            StripPartition::sequential(self.parts, self.expands_strips(), self.ctx.threads.count());
        self.ctx
            .threads
            .run_chunked(partition.tasks(), &|task, thread| {
                for (part, strips) in partition.task(task) {
                    let (linear, operands) = &self.parts[part];
                    let (out, addend) = match self.epilogue {
                        Epilogue::Add { addend, out } => (out, addend),
                        _ => (operands.out, std::ptr::null()),
                    };
                    let first = strips.start * STRIP;
                    let output = OutputTile {
                        out: out.wrapping_add(first),
                        first,
                        stride: linear.n,
                        addend,
                    };
                    // SAFETY: as the caller vouches; a task in panels has no more strips than a panel has room for.
                    unsafe { self.task(part, strips, thread, output) };
                }
            });
    }

    /// The same columns of both products near by, and at once what they are for.
    ///
    /// # Safety
    /// As for [`run_fused`]; there must be two products of one shape.
    unsafe fn run_gated(&self, gate: GateEpilogue) {
        let (linear, _) = self.parts[0];
        let QuantisedLinear { m, n, .. } = linear;
        let threads = self.ctx.threads.count();
        let Some(partition) = StripPartition::paired(&linear, self.expands_strips(), threads)
        else {
            // Too many threads for the room.
            // SAFETY: as the caller vouches; the products' places are theirs.
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
                for (part, strips) in partition.task(task) {
                    let first = strips.start * STRIP;
                    columns = first..n.min(strips.end * STRIP);
                    // SAFETY: the room has as many columns as the threads need, or it were not cut so.
                    let out = unsafe { scratch.at((2 * thread + part) * m * width) };
                    let output = OutputTile {
                        out,
                        first,
                        stride: width,
                        addend: std::ptr::null(),
                    };
                    // SAFETY: as the caller vouches; a task in panels has no more strips than a panel has room for.
                    unsafe { self.task(part, strips, thread, output) };
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
        self.parts[0].0.tiled::<A>(self.ctx)
    }

    /// Whether a task is a panel. Fewer rows take as long as their weights take to be read, as on vectors.
    fn expands_strips(&self) -> bool {
        self.tiled() && self.parts[0].0.m >= MIN_EXPANDED_ROWS
    }

    /// # Safety
    /// As for [`run_fused`], within the strips; in panels, one must have room for them.
    unsafe fn task(&self, part: usize, strips: Range<usize>, thread: usize, output: OutputTile) {
        let (linear, operands) = &self.parts[part];
        let task = StripTask {
            linear: *linear,
            operands,
            activations: self.activations,
            strips,
            output,
            prefetch_plan: self.ctx.threads.prefetch_plan(thread),
            // SAFETY: the scratch holds a panel for every thread.
            expanded: unsafe { self.expanded.at(thread * self.expanded_bytes) },
        };
        // SAFETY: as the caller vouches.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if self.tiled() {
                A::multiply_tiles(task, self.ctx.isa);
                return;
            }
            A::multiply_vectors(task, self.ctx.isa);
        }
    }
}

impl<A> StripTask<'_, A> {
    /// Where a strip of a row of the product goes.
    ///
    /// # Safety
    /// The strip must be one of the task's, the row one of the product's.
    #[inline(always)]
    unsafe fn place(&self, row: usize, strip: usize) -> *mut f32 {
        let OutputTile {
            out, first, stride, ..
        } = self.output;
        // SAFETY: as the caller vouches.
        unsafe { out.add(row * stride + strip * STRIP - first) }
    }
}

/// Stores sixteen outputs of one row with their biases and what is added, or as many as there are.
///
/// # Safety
/// The strip must be one of the task's, the row one of the product's.
#[inline(always)]
unsafe fn write<S: IntDot, A>(
    s: S,
    task: &StripTask<'_, A>,
    row: usize,
    strip: usize,
    mut values: S::V,
) {
    let (n, bias, addend) = (task.linear.n, task.operands.bias, task.output.addend);
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
