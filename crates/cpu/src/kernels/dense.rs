//! Linear layers and batched products over f32 matrices, spread over threads.

use super::Context;
use super::gemm::{Finish, Left, PANEL, Product, Right};
use super::pack::Pack;
use crate::simd::LANES;
use graph::ops::Activation;

/// `out [batch.., m, n] = activation(alpha · a [.., m, k] · b [.., k, n] + bias [n])`.
#[derive(Clone, Debug)]
pub(crate) struct MatMul {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Per matrix of the result, which matrix of `a` and of `b` it is made of.
    pub(crate) batch: Vec<(usize, usize)>,
    /// Matrices in `b`.
    pub(crate) rights: usize,
    pub(crate) layout: Layout,
    pub(crate) alpha: f32,
    pub(crate) activation: Option<Activation>,
}

/// How the right side lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `[k, n]`.
    Plain,
    /// `[n, k]`.
    Transposed,
    /// Panels, made when the graph was compiled.
    Packed,
}

/// The operands of a product.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) a: *const f32,
    pub(crate) b: *const f32,
    /// Null without a bias.
    pub(crate) bias: *const f32,
    pub(crate) out: *mut f32,
    /// As many bytes as [`MatMul::scratch`] says.
    pub(crate) scratch: *mut f32,
}

/// Multiply-adds a thread does in about a microsecond.
const MACS_PER_MICROSECOND: usize = 64 * 1024;
/// Elements of a right side that a thread reads from a far cache in about a microsecond.
const READS_PER_MICROSECOND: usize = 6 * 1024;
/// Work below this stays on the calling thread: handing it out would cost as much.
const SERIAL_MICROSECONDS: usize = 4;
/// Tasks a thread, so that one that is held up does not hold up the rest.
const TASKS_PER_THREAD: usize = 2;

impl MatMul {
    fn pack(&self) -> Pack {
        Pack::new(self.n, self.k, self.layout == Layout::Transposed)
    }

    /// Whether the right side is laid out anew before it is used. A plain one is used as it is where whole vectors of
    /// columns follow each other within a page, or where it is used about once.
    fn packs(&self) -> bool {
        match self.layout {
            Layout::Packed => false,
            Layout::Transposed => true,
            Layout::Plain => !self.n.is_multiple_of(LANES) || (self.m > 24 && self.n > 1024),
        }
    }

    /// Bytes of work space: the right side in panels.
    pub(crate) fn scratch(&self) -> usize {
        if self.packs() {
            self.rights * self.pack().elements() * size_of::<f32>()
        } else {
            0
        }
    }

    fn right(&self, o: Operands, index: usize) -> Right {
        let size = self.pack().elements();
        match (self.packs(), self.layout) {
            (true, _) => Right::packed(o.scratch.wrapping_add(index * size), self.k),
            (false, Layout::Packed) => Right::packed(o.b.wrapping_add(index * size), self.k),
            _ => Right::plain(o.b.wrapping_add(index * self.k * self.n), self.n),
        }
    }

    /// # Safety
    /// The operands must be valid for the shapes of `self`, and the output must overlap none of them.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, operands: Operands) {
        let o = SharedOperands(operands);
        let threads = self.threads(ctx);
        if self.packs() {
            let pack = self.pack();
            let panel = |task: usize, _: usize| {
                let (matrix, panel) = (task / pack.panels(), task % pack.panels());
                let o = o.get();
                // SAFETY: the caller vouches for `rights` matrices and the scratch; every task writes its own panel.
                unsafe {
                    let from = o.b.add(matrix * self.k * self.n);
                    pack.panel(panel, from, o.scratch.add(matrix * pack.elements()));
                }
            };
            spread(ctx, threads, self.rights * pack.panels(), &panel);
        }
        let grid = Grid::new(self, threads);
        spread(ctx, threads, grid.tasks(), &|task, _| {
            let product = self.part(o.get(), &grid, task);
            // SAFETY: the caller vouches for the operands; the part lies inside them.
            unsafe { product.run(ctx.isa) };
        });
    }

    /// How many threads the work is worth.
    fn threads(&self, ctx: &Context<'_>) -> usize {
        let macs = self.batch.len() * self.m * self.n * self.k;
        let reads = self.rights * self.n * self.k;
        let estimate = (macs / MACS_PER_MICROSECOND).max(reads / READS_PER_MICROSECOND);
        if estimate < SERIAL_MICROSECONDS {
            1
        } else {
            ctx.threads.count()
        }
    }

    /// One task's part of the whole.
    fn part(&self, o: Operands, grid: &Grid, task: usize) -> Product {
        let (matrix, row, rows, column, columns) = grid.part(self, task);
        let (a, b) = self.batch[matrix];
        let mut right = self.right(o, b);
        right.at = right.at.wrapping_add(column / PANEL * right.panel);
        let at = |p: *const f32, offset: usize| {
            if p.is_null() {
                p
            } else {
                p.wrapping_add(offset)
            }
        };
        Product {
            m: rows,
            n: columns,
            k: self.k,
            left: Left {
                at: o.a.wrapping_add((a * self.m + row) * self.k),
                row: self.k,
            },
            right,
            out: o
                .out
                .wrapping_add((matrix * self.m + row) * self.n + column),
            out_row: self.n,
            finish: Finish {
                alpha: self.alpha,
                bias: at(o.bias, column),
                activation: self.activation,
                ..Finish::PLAIN
            },
        }
    }
}

/// Runs tasks in their threads' shares, or here when one thread is enough.
fn spread(ctx: &Context<'_>, threads: usize, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
    if threads == 1 {
        (0..tasks).for_each(|i| task(i, 0));
    } else {
        ctx.threads.run_near(tasks, task);
    }
}

/// How a product is cut: every matrix into rows of parts.
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
        let panels = op.n.div_ceil(PANEL).max(1);
        let column_parts = wanted.min(panels);
        // Whole tiles of the largest tier.
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

    /// Matrix, first row, rows, first column, columns. Parts of the same columns follow each other.
    fn part(&self, op: &MatMul, task: usize) -> (usize, usize, usize, usize, usize) {
        let parts = self.row_parts * self.column_parts;
        let (matrix, part) = (task / parts, task % parts);
        let (column, row) = (part / self.row_parts, part % self.row_parts);
        let panels = op.n.div_ceil(PANEL);
        let cut = |count: usize, parts: usize, i: usize| count * i / parts;
        let row_start = cut(op.m, self.row_parts, row);
        let row_end = cut(op.m, self.row_parts, row + 1);
        let start = (cut(panels, self.column_parts, column) * PANEL).min(op.n);
        let end = (cut(panels, self.column_parts, column + 1) * PANEL).min(op.n);
        (matrix, row_start, row_end - row_start, start, end - start)
    }
}

struct SharedOperands(Operands);
// SAFETY: tasks read the operands and write disjoint parts of the output and of the scratch.
unsafe impl Sync for SharedOperands {}

impl SharedOperands {
    fn get(&self) -> Operands {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::threads::Threads;
    use backend::conformance::TestRng;

    #[test]
    fn products_are_close_to_plain_loops_and_rows_do_not_depend_on_each_other() {
        let mut noise = TestRng::new(7);
        for isa in Isa::available() {
            for threads in [1, 3] {
                let threads = Threads::new(threads);
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
                    for layout in [Layout::Plain, Layout::Transposed, Layout::Packed] {
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
        layout: Layout,
    ) {
        let (a, bias) = (noise.units(2 * m * k), noise.units(n));
        let b = noise.units(n * k);
        let at = |row: usize, column: usize| match layout {
            Layout::Plain => b[row * n + column],
            _ => b[column * k + row],
        };
        let pack = Pack::new(n, k, true);
        let mut packed = vec![f32::NAN; pack.elements()];
        if layout == Layout::Packed {
            // SAFETY: `b` is a whole matrix, and `packed` has room for its panels.
            unsafe { pack.all(ctx, b.as_ptr(), packed.as_mut_ptr()) };
        }
        let compute = |m: usize, batch: Vec<(usize, usize)>, a: &[f32]| {
            let op = MatMul {
                m,
                n,
                k,
                batch,
                rights: 1,
                layout,
                alpha: 0.5,
                activation: Some(Activation::Silu),
            };
            let mut scratch = vec![0.0f32; op.scratch() / 4];
            let mut out = vec![f32::NAN; op.batch.len() * m * n];
            let operands = Operands {
                a: a.as_ptr(),
                b: if layout == Layout::Packed {
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

    /// `cargo test --release -p kvark-cpu gemm_speed -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    #[allow(clippy::print_stderr, reason = "a measurement prints its results")]
    fn gemm_speed() {
        let isa = *Isa::available().last().unwrap();
        for threads in [1, 2] {
            let threads = Threads::new(threads);
            let ctx = Context {
                isa,
                threads: &threads,
            };
            for (m, n, k) in [
                (1, 512, 512),
                (2, 512, 512),
                (4, 512, 512),
                (8, 512, 512),
                (12, 512, 512),
                (16, 64, 64),
                (32, 512, 512),
                (128, 512, 512),
                (1, 2048, 2048),
                (32, 2048, 2048),
                (512, 1024, 256),
            ] {
                let mut noise = TestRng::new(1);
                let (a, b) = (noise.units(m * k), noise.units(n * k));
                let mut out = vec![0.0; m * n];
                let op = MatMul {
                    m,
                    n,
                    k,
                    batch: vec![(0, 0)],
                    rights: 1,
                    layout: Layout::Packed,
                    alpha: 1.0,
                    activation: None,
                };
                let operands = Operands {
                    a: a.as_ptr(),
                    b: b.as_ptr(),
                    bias: std::ptr::null(),
                    out: out.as_mut_ptr(),
                    scratch: std::ptr::null_mut(),
                };
                let mut times: Vec<f64> = (0..60)
                    .map(|_| {
                        let start = std::time::Instant::now();
                        let repeats = (200_000_000 / (m * n * k) / 100).max(1);
                        for _ in 0..repeats {
                            // SAFETY: every operand has the size its shape says.
                            unsafe { op.run(&ctx, operands) };
                        }
                        start.elapsed().as_secs_f64() / repeats as f64
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                let best = times[5];
                eprintln!(
                    "{} threads {m}x{n}x{k}: {:.1} us, {:.1} GFLOP/s, {:.1} GB/s",
                    threads.count(),
                    best * 1e6,
                    2e-9 * (m * n * k) as f64 / best,
                    4e-9 * (n * k) as f64 / best
                );
            }
        }
    }
}
