//! Batched f32 products and linear layers: packing, task grid, threads.

pub(crate) mod microkernel;
pub(crate) mod pack;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;

use super::Epilogue;
use crate::kernels::{Context, run_tasks};
use crate::simd::LANES;
use graph::ops::Activation;
use microkernel::{Gemm, Lhs, PANEL_COLUMNS, Rhs};
use pack::PanelPacking;

/// `out [batch.., m, n] = activation(alpha · a [.., m, k] · b [.., k, n] + bias [n])`.
#[derive(Clone, Debug)]
pub(crate) struct MatMul {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// For each matrix of the result, the matrices of `a` and of `b` that are multiplied.
    pub(crate) batch: Vec<(usize, usize)>,
    /// The number of matrices in `b`.
    pub(crate) rhs_count: usize,
    pub(crate) layout: RhsLayout,
    pub(crate) alpha: f32,
    pub(crate) activation: Option<Activation>,
}

/// How the right side is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RhsLayout {
    /// `[k, n]`.
    RowMajor,
    /// `[n, k]`.
    Transposed,
    /// Panels, packed when the graph was compiled.
    Packed,
}

/// Addresses of a product's operands, result and scratch.
#[derive(Clone, Copy)]
pub(crate) struct MatMulOperands {
    pub(crate) a: *const f32,
    pub(crate) b: *const f32,
    /// Null without a bias.
    pub(crate) bias: *const f32,
    pub(crate) out: *mut f32,
    /// Scratch of [`MatMul::scratch`] bytes.
    pub(crate) scratch: *mut f32,
}

/// Multiply-adds of a thread in about a microsecond.
const MACS_PER_MICROSECOND: usize = 64 * 1024;
/// Elements of a right side that a thread reads from a shared cache in about a microsecond.
const READS_PER_MICROSECOND: usize = 6 * 1024;
/// Less work than this stays on the calling thread: distributing it would cost as much.
const SERIAL_MICROSECONDS: usize = 4;
/// Tasks per thread, so that a delayed thread does not delay the others.
const TASKS_PER_THREAD: usize = 2;

impl MatMul {
    fn pack(&self) -> PanelPacking {
        PanelPacking::new(self.n, self.k, self.layout == RhsLayout::Transposed)
    }

    /// Whether the right side is packed before it is used. A row-major one is used in place if its rows are whole
    /// vectors within a page, or if it is read about once.
    fn packs_rhs(&self) -> bool {
        match self.layout {
            RhsLayout::Packed => false,
            RhsLayout::Transposed => true,
            RhsLayout::RowMajor => !self.n.is_multiple_of(LANES) || (self.m > 24 && self.n > 1024),
        }
    }

    /// Bytes of scratch: the right side in panels.
    pub(crate) fn scratch(&self) -> usize {
        if self.packs_rhs() {
            self.rhs_count * self.pack().elements() * size_of::<f32>()
        } else {
            0
        }
    }

    fn right(&self, o: MatMulOperands, index: usize) -> Rhs {
        let size = self.pack().elements();
        match (self.packs_rhs(), self.layout) {
            (true, _) => Rhs::packed(o.scratch.wrapping_add(index * size), self.k),
            (false, RhsLayout::Packed) => Rhs::packed(o.b.wrapping_add(index * size), self.k),
            _ => Rhs::row_major(o.b.wrapping_add(index * self.k * self.n), self.n),
        }
    }

    /// # Safety
    /// The operands must be valid for the shapes of `self`, and the output must overlap none of them.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, operands: MatMulOperands) {
        let o = SharedMatMulOperands(operands);
        let threads = self.threads(ctx);
        if self.packs_rhs() {
            let pack = self.pack();
            let panel = |task: usize, _: usize| {
                let (matrix, panel) = (task / pack.panels(), task % pack.panels());
                let o = o.get();
                // SAFETY: the caller guarantees `rhs_count` matrices and the scratch; every task writes its own panel.
                unsafe {
                    let from = o.b.add(matrix * self.k * self.n);
                    pack.pack_panel(panel, from, o.scratch.add(matrix * pack.elements()));
                }
            };
            run_tasks(ctx, threads, self.rhs_count * pack.panels(), &panel);
        }
        let grid = Grid::new(self, threads);
        run_tasks(ctx, threads, grid.tasks(), &|task, _| {
            let product = self.task_product(o.get(), &grid, task);
            // SAFETY: the caller guarantees the operands; the task's range lies inside them.
            unsafe { product.run(ctx.isa) };
        });
    }

    /// The number of threads that the work is worth.
    fn threads(&self, ctx: &Context<'_>) -> usize {
        let macs = self.batch.len() * self.m * self.n * self.k;
        let reads = self.rhs_count * self.n * self.k;
        let estimate = (macs / MACS_PER_MICROSECOND).max(reads / READS_PER_MICROSECOND);
        if estimate < SERIAL_MICROSECONDS {
            1
        } else {
            ctx.threads.count()
        }
    }

    /// The product of one task.
    fn task_product(&self, o: MatMulOperands, grid: &Grid, task: usize) -> Gemm {
        let (matrix, row, rows, column, columns) = grid.task_range(self, task);
        let (a, b) = self.batch[matrix];
        let mut right = self.right(o, b);
        right.at = right
            .at
            .wrapping_add(column / PANEL_COLUMNS * right.panel_stride);
        let at = |p: *const f32, offset: usize| {
            if p.is_null() {
                p
            } else {
                p.wrapping_add(offset)
            }
        };
        Gemm {
            m: rows,
            n: columns,
            k: self.k,
            left: Lhs {
                at: o.a.wrapping_add((a * self.m + row) * self.k),
                row_stride: self.k,
            },
            right,
            out: o
                .out
                .wrapping_add((matrix * self.m + row) * self.n + column),
            out_row_stride: self.n,
            alpha: self.alpha,
            accumulate: false,
            epilogue: Epilogue {
                bias: at(o.bias, column),
                activation: self.activation,
                ..Epilogue::NONE
            },
        }
    }
}

/// The partition of a product: every matrix is divided into a grid of ranges of rows and columns.
struct Grid {
    row_parts: usize,
    column_parts: usize,
    matrices: usize,
}

impl Grid {
    fn new(op: &MatMul, threads: usize) -> Grid {
        let matrices = op.batch.len();
        let wanted = if threads == 1 {
            1
        } else {
            (threads * TASKS_PER_THREAD).div_ceil(matrices.max(1))
        };
        let panels = op.n.div_ceil(PANEL_COLUMNS).max(1);
        let column_parts = wanted.min(panels);
        // At least the register tile rows of the largest tier.
        let row_parts = wanted.div_ceil(column_parts).min(op.m.div_ceil(12)).max(1);
        Grid {
            row_parts,
            column_parts,
            matrices,
        }
    }

    fn tasks(&self) -> usize {
        self.matrices * self.row_parts * self.column_parts
    }

    /// Matrix, first row, rows, first column and columns of a task. Tasks with the same columns are consecutive.
    fn task_range(&self, op: &MatMul, task: usize) -> (usize, usize, usize, usize, usize) {
        let parts = self.row_parts * self.column_parts;
        let (matrix, part) = (task / parts, task % parts);
        let (column, row) = (part / self.row_parts, part % self.row_parts);
        let panels = op.n.div_ceil(PANEL_COLUMNS);
        let bound = |count: usize, parts: usize, i: usize| count * i / parts;
        let row_start = bound(op.m, self.row_parts, row);
        let row_end = bound(op.m, self.row_parts, row + 1);
        let start = (bound(panels, self.column_parts, column) * PANEL_COLUMNS).min(op.n);
        let end = (bound(panels, self.column_parts, column + 1) * PANEL_COLUMNS).min(op.n);
        (matrix, row_start, row_end - row_start, start, end - start)
    }
}

struct SharedMatMulOperands(MatMulOperands);
// SAFETY: tasks read the operands and write disjoint parts of the output and of the scratch.
unsafe impl Sync for SharedMatMulOperands {}

impl SharedMatMulOperands {
    fn get(&self) -> MatMulOperands {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::thread_pool::ThreadPool;
    use conformance::TestRng;

    #[test]
    fn products_are_close_to_plain_loops_and_rows_do_not_depend_on_each_other() {
        let mut noise = TestRng::new(7);
        for isa in Isa::available() {
            for threads in [1, 3] {
                let threads = ThreadPool::new(threads);
                let ctx = Context {
                    isa,
                    threads: &threads,
                };
                for (m, n, k) in [
                    (1, 1, 1),
                    (1, 200, 300),
                    (2, 33, 16),
                    (3, 130, 64),
                    (5, 100, 600),
                    (7, 64, 0),
                    (13, 48, 257),
                    (40, 96, 520),
                ] {
                    for layout in [
                        RhsLayout::RowMajor,
                        RhsLayout::Transposed,
                        RhsLayout::Packed,
                    ] {
                        check(&ctx, &mut noise, (m, n, k), layout);
                    }
                }
            }
        }
    }

    fn check(
        ctx: &Context<'_>,
        noise: &mut TestRng,
        (m, n, k): (usize, usize, usize),
        layout: RhsLayout,
    ) {
        let (a, bias) = (noise.units(2 * m * k), noise.units(n));
        let b = noise.units(n * k);
        let at = |row: usize, column: usize| match layout {
            RhsLayout::RowMajor => b[row * n + column],
            _ => b[column * k + row],
        };
        let pack = PanelPacking::new(n, k, true);
        let mut packed = vec![f32::NAN; pack.elements()];
        if layout == RhsLayout::Packed {
            // SAFETY: `b` is a whole matrix, and `packed` has room for its panels.
            unsafe { pack.pack_all(ctx, b.as_ptr(), packed.as_mut_ptr()) };
        }
        let compute = |m: usize, batch: Vec<(usize, usize)>, a: &[f32]| {
            let op = MatMul {
                m,
                n,
                k,
                batch,
                rhs_count: 1,
                layout,
                alpha: 0.5,
                activation: Some(Activation::Silu),
            };
            let mut scratch = vec![0.0f32; op.scratch() / 4];
            let mut out = vec![f32::NAN; op.batch.len() * m * n];
            let operands = MatMulOperands {
                a: a.as_ptr(),
                b: if layout == RhsLayout::Packed {
                    packed.as_ptr()
                } else {
                    b.as_ptr()
                },
                bias: bias.as_ptr(),
                out: out.as_mut_ptr(),
                scratch: scratch.as_mut_ptr(),
            };
            // SAFETY: every operand has the size its shape says.
            unsafe { op.run(ctx, operands) };
            out
        };
        let found = compute(m, vec![(0, 0), (1, 0)], &a);
        for row in 0..2 * m {
            for column in 0..n {
                let dot: f64 = (0..k)
                    .map(|i| f64::from(a[row * k + i]) * f64::from(at(i, column)))
                    .sum();
                let expect = Activation::Silu.apply(dot as f32 * 0.5 + bias[column]);
                let error = (found[row * n + column] - expect).abs();
                assert!(
                    error < 1e-5,
                    "{} {m}x{n}x{k} {layout:?} {row},{column}: {error}",
                    ctx.isa
                );
            }
            if k > 0 {
                let alone = compute(1, vec![(0, 0)], &a[row * k..][..k]);
                assert_eq!(alone, found[row * n..][..n], "{m}x{n}x{k} {layout:?} {row}");
            }
        }
    }
}
