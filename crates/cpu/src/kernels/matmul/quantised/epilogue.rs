//! What rows of activations come from and what products become, where they are made: rows from a norm, or as they are;
//! a result, a sum with a residual, or a gate times its other half.

use crate::isa::Kernel;
use crate::kernels::elementwise::functions::{Gated, with_activation};
use crate::kernels::elementwise::row;
use crate::kernels::normalise::norm::Norm;
use crate::simd::Simd;
use graph::ops::Activation;

/// The norm that makes the rows of activations, each to its place, when they are read.
#[derive(Clone, Copy)]
pub(crate) struct NormPrologue {
    pub(crate) norm: Norm,
    pub(crate) x: *const f32,
    pub(crate) weight: *const f32,
    pub(crate) bias: *const f32,
}

// SAFETY: tasks norm different rows.
unsafe impl Sync for NormPrologue {}

/// What is done with the products of a run.
#[derive(Clone, Copy)]
pub(crate) enum Epilogue {
    /// They are the results.
    None,
    /// The only one is added to what is at `addend`, and the sum is written to `out`, which may be the same memory.
    Add {
        addend: *const f32,
        out: *mut f32,
    },
    Gate(GateEpilogue),
}

/// The activation of the first of two products of one shape, times the second.
#[derive(Clone, Copy)]
pub(crate) struct GateEpilogue {
    pub(crate) activation: Activation,
    pub(crate) out: *mut f32,
    /// Room for a product, where threads hold what they are about to multiply: nearer than the products' own places.
    pub(crate) scratch: *mut f32,
}

// SAFETY: tasks write disjoint columns of the result, and a part of the room that is their thread's.
unsafe impl Sync for GateEpilogue {}

impl GateEpilogue {
    /// The same, with its result so many elements on.
    ///
    /// # Safety
    /// The result must have so many.
    pub(super) unsafe fn offset_by(&self, elements: usize) -> GateEpilogue {
        GateEpilogue {
            // SAFETY: as the caller vouches.
            out: unsafe { self.out.add(elements) },
            ..*self
        }
    }
}

/// Where a task writes its products.
#[derive(Clone, Copy)]
pub(super) struct OutputTile {
    /// The place of the first row and the task's first column.
    pub(super) out: *mut f32,
    pub(super) first: usize,
    /// From one row to the next.
    pub(super) stride: usize,
    /// What is added to them, with as many columns as the product has; or null.
    pub(super) addend: *const f32,
}

/// Some columns of a gate and its other half, both with the same stride.
pub(super) struct ApplyGate {
    pub(super) gate: GateEpilogue,
    pub(super) products: [*const f32; 2],
    pub(super) stride: usize,
    pub(super) rows: usize,
    /// Columns of the result, and which of them.
    pub(super) n: usize,
    pub(super) columns: std::ops::Range<usize>,
}

impl Kernel for ApplyGate {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_activation!(self.gate.activation, f => {
            for i in 0..self.rows {
                // SAFETY: whoever made the kernel vouches for rows of the products and of the result.
                unsafe {
                    let [a, b] = self.products.map(|p| p.add(i * self.stride));
                    let out = self.gate.out.add(i * self.n + self.columns.start);
                    row::<S, true, true>(s, Gated(f), out, a, b, self.columns.len());
                }
            }
        });
    }
}
