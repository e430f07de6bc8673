//! Prologue and epilogues of quantised products: a norm applied as rows are quantised; a residual added, or a gate
//! applied, as products are stored.

use crate::kernels::elementwise::functions::{Gated, with_activation};
use crate::kernels::elementwise::row;
use crate::kernels::normalise::norm::Norm;
use crate::simd::{Kernel, Simd};
use graph::ops::Activation;

/// A norm applied to activation rows just before they are quantised.
#[derive(Clone, Copy)]
pub(crate) struct NormPrologue {
    pub(crate) norm: Norm,
    pub(crate) x: *const f32,
    pub(crate) weight: *const f32,
    pub(crate) bias: *const f32,
}

// SAFETY: tasks normalise different rows.
unsafe impl Sync for NormPrologue {}

/// What is fused into the write-back of quantised products.
#[derive(Clone, Copy)]
pub(crate) enum Epilogue {
    /// Nothing: the products are the results.
    None,
    /// The single product plus the residual at `addend`, stored at `out`, which may be the same memory.
    Add {
        addend: *const f32,
        out: *mut f32,
    },
    Gate(GateEpilogue),
}

/// `activation(first) · second` of two products of one shape.
#[derive(Clone, Copy)]
pub(crate) struct GateEpilogue {
    pub(crate) activation: Activation,
    pub(crate) out: *mut f32,
    /// Scratch as large as a product, divided among the threads: both products of a task are stored here, where they
    /// stay in the cache.
    pub(crate) scratch: *mut f32,
}

// SAFETY: tasks write disjoint columns of the result, and their own thread's part of the scratch.
unsafe impl Sync for GateEpilogue {}

impl GateEpilogue {
    /// The same gate with its result address advanced by `elements`.
    ///
    /// # Safety
    /// The result must have that many elements.
    pub(super) unsafe fn offset_by(&self, elements: usize) -> GateEpilogue {
        GateEpilogue {
            // SAFETY: as the caller guarantees.
            out: unsafe { self.out.add(elements) },
            ..*self
        }
    }
}

/// Where a task stores its columns of a product.
#[derive(Clone, Copy)]
pub(super) struct OutputTile {
    /// The address of the first row at the task's first column.
    pub(super) out: *mut f32,
    pub(super) first: usize,
    /// Elements from one row to the next.
    pub(super) stride: usize,
    /// The residual, with as many columns as the product; null without one.
    pub(super) addend: *const f32,
}

/// Applies a gate to some columns of both products, which have the same stride.
pub(super) struct ApplyGate {
    pub(super) gate: GateEpilogue,
    pub(super) products: [*const f32; 2],
    pub(super) stride: usize,
    pub(super) rows: usize,
    /// Columns of the result, and those that are computed.
    pub(super) n: usize,
    pub(super) columns: std::ops::Range<usize>,
}

impl Kernel for ApplyGate {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_activation!(self.gate.activation, f => {
            for i in 0..self.rows {
                // SAFETY: the kernel's constructor guarantees rows of the products and of the result.
                unsafe {
                    let [a, b] = self.products.map(|p| p.add(i * self.stride));
                    let out = self.gate.out.add(i * self.n + self.columns.start);
                    row::<S, true, true>(s, Gated(f), out, a, b, self.columns.len());
                }
            }
        });
    }
}
