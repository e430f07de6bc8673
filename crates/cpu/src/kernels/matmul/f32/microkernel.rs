//! The f32 microkernel: one product on one thread, with cache blocking, register tiles and an epilogue.
//!
//! The right side is read in panels of columns, one step of the depth after the other, and multiplied with a few rows
//! of the left side in registers. Every output is a chain of multiply-adds along [`K_BLOCK`] elements, and the chains
//! of one output are added in order. That order is the same for one row and for many, so a row's result never depends
//! on its neighbours.

use super::super::epilogue::{Epilogue, FinishTile};
use crate::isa::Isa;
use crate::simd::{Kernel, LANES, Simd};

/// Columns of a panel.
pub(crate) const PANEL_COLUMNS: usize = 2 * LANES;
/// Elements of the depth that are summed in registers: that part of a panel stays in L1.
const K_BLOCK: usize = 256;
/// The prefetch distance of columns, in steps of the depth. The hardware prefetcher alone reads a panel that is used
/// once from L2 at a quarter of the speed.
const PREFETCH_K_STEPS: usize = 16;

/// The left side: rows of `k` elements.
#[derive(Clone, Copy)]
pub(crate) struct Lhs {
    pub(crate) at: *const f32,
    /// Elements from one row to the next.
    pub(crate) row_stride: usize,
}

/// The right side, as panels of columns.
#[derive(Clone, Copy)]
pub(crate) struct Rhs {
    pub(crate) at: *const f32,
    /// Elements from one step of the depth to the next.
    pub(crate) row_stride: usize,
    /// Elements from one panel to the next.
    pub(crate) panel_stride: usize,
}

impl Rhs {
    /// Panels as [`PanelPacking`](super::pack::PanelPacking) writes them.
    pub(crate) fn packed(at: *const f32, k: usize) -> Rhs {
        Rhs {
            at,
            row_stride: PANEL_COLUMNS,
            panel_stride: k * PANEL_COLUMNS,
        }
    }

    /// A row-major matrix in place, with `width` elements per row; its columns must be a multiple of [`LANES`].
    pub(crate) fn row_major(at: *const f32, width: usize) -> Rhs {
        Rhs {
            at,
            row_stride: width,
            panel_stride: PANEL_COLUMNS,
        }
    }
}

/// `out [m, n] = epilogue(alpha · left [m, k] · right [k, n])`.
#[derive(Clone, Copy)]
pub(crate) struct Gemm {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) left: Lhs,
    pub(crate) right: Rhs,
    pub(crate) out: *mut f32,
    /// Elements from one row of the output to the next.
    pub(crate) out_row_stride: usize,
    pub(crate) alpha: f32,
    /// Whether the sum is added to the output instead of replacing it.
    pub(crate) accumulate: bool,
    /// Applied to whole sums; the residual has the output's strides.
    pub(crate) epilogue: Epilogue,
}

/// Calls the `GemmTile` for the values `$v` and `$r`. Tiles that do not fit a tier's registers are not compiled for it.
macro_rules! tile {
    ($self:ident, $s:ident, $at:expr, ($v:expr, $r:expr), $($V:literal: $($R:literal)*;)*) => {
        match ($v, $r) {
            $($(($V, $R) => {
                if const { fits::<S>($V, $R) } {
                    $s.call(GemmTile::<$V, $R> { gemm: $self, origin: $at });
                }
            })*)*
            (v, r) => unreachable!("a tile of {v} vectors and {r} rows"),
        }
    };
}

/// Whether a tile's sums fit the registers of a tier.
const fn fits<S: Simd>(vectors: usize, rows: usize) -> bool {
    vectors * rows <= accumulators::<S>() && rows <= tile_rows::<S>()
}

/// Vector accumulators that fit the registers of a tier.
const fn accumulators<S: Simd>() -> usize {
    S::REGISTER_TILE.0 * S::REGISTER_TILE.1
}

/// The most rows of a tile of a panel's width.
const fn tile_rows<S: Simd>() -> usize {
    accumulators::<S>() / 2
}

/// The first row and column of a register tile, and its range of the depth.
#[derive(Clone, Copy)]
struct TileOrigin {
    row: usize,
    column: usize,
    depth: usize,
    depth_end: usize,
}

impl Gemm {
    /// Computes the product.
    ///
    /// # Safety
    /// All operands must be valid for their sizes, panels readable to whole vectors, and the output must overlap none.
    pub(crate) unsafe fn run(&self, isa: Isa) {
        isa.run(GemmKernel(*self));
    }

    /// # Safety
    /// As for [`run`](Gemm::run).
    #[inline(always)]
    unsafe fn on<S: Simd>(&self, s: S) {
        let (m, n) = (self.m, self.n);
        if m == 0 {
            return;
        }
        // Few rows leave registers for more columns, which hides the latency of a chain.
        let wide = match accumulators::<S>() / m {
            8.. => 8,
            4..8 => 4,
            _ => 2,
        };
        let blocks = m.div_ceil(tile_rows::<S>());
        let rows = m.div_ceil(blocks);
        let mut column = 0;
        while column < n {
            let vectors = match n - column {
                rest if rest >= wide * LANES => wide,
                1..=LANES => 1,
                _ => 2,
            };
            let mut depth = 0;
            loop {
                let depth_end = (depth + K_BLOCK).min(self.k);
                for row in (0..m).step_by(rows) {
                    let origin = TileOrigin {
                        row,
                        column,
                        depth,
                        depth_end,
                    };
                    let count = rows.min(m - row);
                    // SAFETY: the tile lies inside the product, whose operands the caller guarantees.
                    unsafe {
                        tile!(self, s, origin, (vectors, count),
                            8: 1 2 3;
                            4: 1 2 3 4 5 6;
                            2: 1 2 3 4 5 6 7 8 9 10 11 12;
                            1: 1 2 3 4 5 6 7 8 9 10 11 12;);
                        if depth_end == self.k {
                            self.finish(s, origin, count, vectors);
                        }
                    }
                }
                depth = depth_end;
                if depth == self.k {
                    break;
                }
            }
            column += vectors * LANES;
        }
    }

    /// Computes one register tile.
    ///
    /// # Safety
    /// As for [`run`](Gemm::run); `R` rows and `V` vectors of columns must exist from the origin on.
    #[inline(always)]
    unsafe fn tile<S: Simd, const V: usize, const R: usize>(&self, s: S, origin: TileOrigin) {
        let mut sums = [[s.zero(); V]; R];
        // SAFETY: the caller guarantees the rows and columns; the depth lies inside both sides.
        unsafe {
            let left = self.left.at.add(origin.row * self.left.row_stride);
            let (panel, within) = (origin.column / PANEL_COLUMNS, origin.column % PANEL_COLUMNS);
            let mut right = self.right.at.add(
                panel * self.right.panel_stride + within + origin.depth * self.right.row_stride,
            );
            for k in origin.depth..origin.depth_end {
                let mut columns = [s.zero(); V];
                for v in 0..V {
                    columns[v] = s.load(right.add(v / 2 * self.right.panel_stride + v % 2 * LANES));
                }
                for v in 0..V {
                    let at = right.add(v / 2 * self.right.panel_stride + v % 2 * LANES);
                    s.prefetch(
                        at.wrapping_add(PREFETCH_K_STEPS * self.right.row_stride)
                            .cast(),
                    );
                }
                for r in 0..R {
                    let x = s.splat(*left.add(r * self.left.row_stride + k));
                    for v in 0..V {
                        sums[r][v] = s.fma(x, columns[v], sums[r][v]);
                    }
                }
                right = right.add(self.right.row_stride);
            }
            let scales = self.alpha != 1.0;
            let adds = self.accumulate || origin.depth > 0;
            let ends = origin.depth_end == self.k && !self.epilogue.bias.is_null();
            if scales {
                for sum in sums.as_flattened_mut() {
                    *sum = s.mul(*sum, s.splat(self.alpha));
                }
            }
            if origin.column + V * LANES > self.n {
                let mut lanes = [[[0.0; LANES]; V]; R];
                for r in 0..R {
                    for v in 0..V {
                        s.store(lanes[r][v].as_mut_ptr(), sums[r][v]);
                    }
                }
                self.store_part(origin, lanes.as_flattened().as_flattened(), R, adds, ends);
                return;
            }
            for r in 0..R {
                let out = self
                    .out
                    .add((origin.row + r) * self.out_row_stride + origin.column);
                for v in 0..V {
                    let at = out.add(v * LANES);
                    let mut sum = sums[r][v];
                    if adds {
                        sum = s.add(s.load(at), sum);
                    }
                    if ends {
                        let bias = self.epilogue.bias.add(origin.column + v * LANES);
                        sum = s.add(sum, s.load(bias));
                    }
                    s.store(at, sum);
                }
            }
        }
    }

    /// Stores the sums of a tile of `rows` rows that extends past the last column. One function serves all tiles: code of
    /// this length in each of them would take most of the kernel's compile time.
    ///
    /// # Safety
    /// As for [`run`](Gemm::run); the rows must exist from the origin on.
    #[inline(never)]
    unsafe fn store_part(
        &self,
        origin: TileOrigin,
        sums: &[f32],
        rows: usize,
        adds: bool,
        ends: bool,
    ) {
        let columns = self.n.saturating_sub(origin.column);
        for (r, sums) in sums.chunks_exact(sums.len() / rows).enumerate() {
            let at = (origin.row + r) * self.out_row_stride + origin.column;
            for (i, sum) in sums.iter().take(columns).enumerate() {
                let mut sum = *sum;
                // SAFETY: the caller guarantees the rows, and only columns below `n` are touched.
                unsafe {
                    if adds {
                        sum += *self.out.add(at + i);
                    }
                    if ends {
                        sum += *self.epilogue.bias.add(origin.column + i);
                    }
                    *self.out.add(at + i) = sum;
                }
            }
        }
    }

    /// Applies activation and residual to a finished tile, which is still in the cache.
    ///
    /// # Safety
    /// As for [`run`](Gemm::run); `rows` rows must exist from the origin on.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, origin: TileOrigin, rows: usize, vectors: usize) {
        let Epilogue {
            activation,
            residual,
            ..
        } = self.epilogue;
        if activation.is_some() || !residual.is_null() {
            let at = origin.row * self.out_row_stride + origin.column;
            s.call(FinishTile {
                activation,
                out: self.out.wrapping_add(at),
                stride: self.out_row_stride,
                residual: self.epilogue.residual_at(at),
                residual_stride: self.out_row_stride,
                rows,
                columns: (vectors * LANES).min(self.n - origin.column),
            });
        }
    }
}

/// One register tile of a product: `R` rows and `V` vectors of columns.
struct GemmTile<'a, const V: usize, const R: usize> {
    gemm: &'a Gemm,
    origin: TileOrigin,
}

impl<const V: usize, const R: usize> Kernel for GemmTile<'_, V, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: constructed only by `Gemm::on`, inside the product.
        unsafe { self.gemm.tile::<S, V, R>(s, self.origin) }
    }
}

/// The kernel of a product: its many tiles are compiled once per tier, shared by all callers.
struct GemmKernel(Gemm);

impl Kernel for GemmKernel {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: constructed only by `Gemm::run`, whose caller guarantees the operands.
        unsafe { self.0.on(s) }
    }
}
