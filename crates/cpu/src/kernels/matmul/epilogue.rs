//! Prologue and epilogue of matrix products: one description for every weight format.
//!
//! A product of activation rows with a weight is computed as `norm? → quantise? → multiply → + bias → activation? → +
//! residual`, or as a gate of two products. What stands around the multiplication is applied while its operands are in
//! the cache.

use crate::isa::Isa;
use crate::kernels::elementwise::functions::{Add, Gated, with_activation};
use crate::kernels::elementwise::row;
use crate::kernels::normalise::norm::Norm;
use crate::simd::{Kernel, Simd};
use graph::ops::Activation;
use std::ops::Range;

/// A norm applied to activation rows just before they are multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Prologue {
    pub(crate) norm: Norm,
    pub(crate) x: *const f32,
    pub(crate) weight: *const f32,
    pub(crate) bias: *const f32,
}

// SAFETY: tasks normalise different rows.
unsafe impl Sync for Prologue {}

/// The bias, the activation and the residual that a kernel applies to a product, in this order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epilogue {
    /// One bias per column; null without a bias.
    pub(crate) bias: *const f32,
    pub(crate) activation: Option<Activation>,
    /// A residual of the product's shape; null without one. It may be the output's memory in quantised and half-precision
    /// products without an activation: others store the sum before they read the residual.
    pub(crate) residual: *const f32,
}

impl Epilogue {
    /// Stores the product unchanged.
    pub(crate) const NONE: Epilogue = Epilogue {
        bias: std::ptr::null(),
        activation: None,
        residual: std::ptr::null(),
    };

    /// The residual that a kernel adds as it stores sums: none if an activation comes before it.
    #[inline(always)]
    pub(super) fn stored_residual(&self) -> *const f32 {
        match self.activation {
            None => self.residual,
            Some(_) => std::ptr::null(),
        }
    }

    /// Applies the activation, and the residual after it, to columns of a product that have just been stored with their
    /// bias. `n` is the number of columns of the product.
    ///
    /// # Safety
    /// `rows` rows of the columns must be stored at the tile, from the product's first row on.
    pub(super) unsafe fn finish(
        &self,
        isa: Isa,
        tile: OutputTile,
        (rows, columns): (usize, Range<usize>),
        n: usize,
    ) {
        if self.activation.is_some() {
            isa.run(FinishTile {
                activation: self.activation,
                out: tile.out.wrapping_add(columns.start - tile.first),
                stride: tile.stride,
                residual: self.residual_at(columns.start),
                residual_stride: n,
                rows,
                columns: columns.len(),
            });
        }
    }

    /// The residual's address at an element, or null without a residual.
    #[inline(always)]
    pub(super) fn residual_at(&self, element: usize) -> *const f32 {
        if self.residual.is_null() {
            self.residual
        } else {
            self.residual.wrapping_add(element)
        }
    }
}

/// `activation(first) · second` of two products of one shape.
#[derive(Clone, Copy)]
pub(crate) struct Gate {
    pub(crate) activation: Activation,
    pub(crate) out: *mut f32,
    /// Scratch as large as a product, divided among the threads: both products of a task are stored here, where they
    /// stay in the cache.
    pub(crate) scratch: *mut f32,
}

// SAFETY: tasks write disjoint columns of the result, and their own thread's part of the scratch.
unsafe impl Sync for Gate {}

impl Gate {
    /// The same gate with its result address advanced by `elements`.
    ///
    /// # Safety
    /// The result must have that many elements.
    pub(super) unsafe fn offset_by(&self, elements: usize) -> Gate {
        Gate {
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
    /// The task's first column.
    pub(super) first: usize,
    /// Elements from one row to the next.
    pub(super) stride: usize,
}

/// Applies an activation, then a residual, to a part of a stored product.
pub(super) struct FinishTile {
    pub(super) activation: Option<Activation>,
    pub(super) out: *mut f32,
    /// Elements from one row to the next.
    pub(super) stride: usize,
    /// Null without a residual.
    pub(super) residual: *const f32,
    pub(super) residual_stride: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Kernel for FinishTile {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in 0..self.rows {
            // SAFETY: the kernel's constructor guarantees the rows of the product and of the residual.
            unsafe {
                let at = self.out.add(i * self.stride);
                if let Some(activation) = self.activation {
                    with_activation!(activation, f => {
                        row::<S, true, true>(s, f, at, at, at, self.columns);
                    });
                }
                if !self.residual.is_null() {
                    let residual = self.residual.add(i * self.residual_stride);
                    row::<S, true, true>(s, Add, at, at, residual, self.columns);
                }
            }
        }
    }
}

/// Applies a gate to some columns of both products, which have the same stride.
pub(super) struct ApplyGate {
    pub(super) gate: Gate,
    pub(super) products: [*const f32; 2],
    pub(super) stride: usize,
    pub(super) rows: usize,
    /// Columns of the result, and those that are computed.
    pub(super) n: usize,
    pub(super) columns: Range<usize>,
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
