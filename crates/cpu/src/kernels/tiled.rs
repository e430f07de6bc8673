//! Linear layers over f32 on matrix tiles.
//!
//! A tile multiplies bf16, so a number becomes three of them that add up to it, and of the nine products the six that
//! reach into an f32 are added, from the smallest on: the result is as close as one in f32. The order of the sums is
//! another than that of the panels, so only graphs without a cache take this path: theirs are the rows that never meet
//! again in a step of another size.

use super::functions::activate;
use super::gemm::map_tile;
use super::{Context, Shared, over_rows};
use crate::amx::{SIDE, Tiles};
use crate::isa::TileKernel;
use crate::simd::{Avx512, LANES, Simd};
use graph::ops::Activation;
use std::ops::Range;

pub(crate) use super::linear::Operands;

/// `out [m, n] = activation(x [m, k] · weightᵀ [n, k] (+ bias [n]))` with a weight as [`Weight`] lays it out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TiledLinear {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) activation: Option<Activation>,
}

/// Rows from which tiles are used: half a tile.
const TILED: usize = 8;
/// The depth of a tile.
const STEP: usize = 32;
/// Bytes of a tile.
const TILE: usize = 1024;
/// Bytes of sixteen rows, or columns, of one step of the depth: its three parts, the largest first.
const STEP_BYTES: usize = 3 * TILE;
/// Rows, and columns, of a block.
const BLOCK: usize = 2 * SIDE;
/// Columns that a weight is padded to: as many as a block has that is one tile high.
const WIDE: usize = 4 * SIDE;
/// Steps of all blocks below which one thread does them: handing them out would cost as much.
const SERIAL_STEPS: usize = 32;

/// A weight `[n, k]` in the order that tiles read it in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl Weight {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.n.next_multiple_of(WIDE) / SIDE * strip_bytes(self.k)
    }

    /// Lays it out.
    ///
    /// # Safety
    /// The weight must be readable at `from` and [`bytes`](Self::bytes) zeros be writable at `to`.
    pub(crate) unsafe fn lay_out(&self, ctx: &Context<'_>, from: *const f32, to: *mut u8) {
        let (from, to) = (Shared(from.cast_mut()), Shared(to));
        let (n, k) = (self.n, self.k);
        ctx.threads.run(n.div_ceil(SIDE), &|strip, _| {
            for column in 0..SIDE.min(n - strip * SIDE) {
                for depth in 0..k {
                    // SAFETY: the caller vouches for both sides, and a strip is this task's alone.
                    unsafe {
                        let value = *from.at((strip * SIDE + column) * k + depth);
                        let pair = depth % STEP / 2 * SIDE + column;
                        let at = strip * strip_bytes(k) + depth / STEP * STEP_BYTES;
                        for (part, bits) in parts(value).into_iter().enumerate() {
                            let at = at + part * TILE + 4 * pair + 2 * (depth % 2);
                            to.at(at).cast::<u16>().write(bits);
                        }
                    }
                }
            }
        });
    }
}

/// Bytes of sixteen rows, or columns, of a certain depth.
fn strip_bytes(k: usize) -> usize {
    k.div_ceil(STEP) * STEP_BYTES
}

/// The three bf16 that add up to `x`.
fn parts(x: f32) -> [u16; 3] {
    let mut rest = x;
    std::array::from_fn(|_| {
        let part = f32::from_bits(rest.to_bits() & 0xffff_0000);
        rest = if x.is_finite() { rest - part } else { 0.0 };
        (part.to_bits() >> 16) as u16
    })
}

impl TiledLinear {
    /// The layer, where tiles are worth it.
    pub(crate) fn new(
        [m, n, k]: [usize; 3],
        activation: Option<Activation>,
    ) -> Option<TiledLinear> {
        (m >= TILED && n > 0 && k > 0).then_some(TiledLinear {
            m,
            n,
            k,
            activation,
        })
    }

    /// How its weight is laid out.
    pub(crate) fn weight(&self) -> Weight {
        Weight {
            n: self.n,
            k: self.k,
        }
    }

    /// Bytes of work space: the rows in parts.
    pub(crate) fn scratch(&self) -> usize {
        self.m.next_multiple_of(BLOCK) / SIDE * strip_bytes(self.k)
    }

    /// # Safety
    /// The operands must be valid for the shapes of `self`, the weight laid out, the scratch as large as
    /// [`scratch`](Self::scratch) says, and the output must overlap none of them. The tier must have tiles.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, o: Operands) {
        let one_high = self.m <= SIDE;
        let (height, width) = if one_high {
            (SIDE, WIDE)
        } else {
            (BLOCK, BLOCK)
        };
        let (down, across) = (self.m.div_ceil(height), self.n.div_ceil(width));
        let work = down * across * self.k.div_ceil(STEP);
        let threads = if work < SERIAL_STEPS {
            1
        } else {
            ctx.threads.count()
        };
        let o = Parts {
            linear: *self,
            operands: SharedOperands(o),
            one_high,
        };
        if threads == 1 {
            o.split(ctx, 0..self.m);
            o.multiply(ctx, 0..down, 0..across);
        } else if down >= 2 * threads {
            // A thread takes the same rows each time, from layer to layer: it finds what it wrote in its own cache.
            let tasks = 2 * threads;
            ctx.threads.run_near(tasks, &|i, _| {
                let rows = down * i / tasks..down * (i + 1) / tasks;
                o.split(ctx, rows.start * height..(rows.end * height).min(self.m));
                o.multiply(ctx, rows, 0..across);
            });
        } else {
            over_rows(ctx, self.m, self.k, &|start, end| o.split(ctx, start..end));
            let tasks = across.min(4 * threads);
            ctx.threads.run_near(tasks, &|i, _| {
                o.multiply(ctx, 0..down, across * i / tasks..across * (i + 1) / tasks);
            });
        }
    }
}

struct SharedOperands(Operands);
// SAFETY: tasks read the operands and write disjoint parts of the output and of the scratch.
unsafe impl Sync for SharedOperands {}

/// A product in parts.
struct Parts {
    linear: TiledLinear,
    operands: SharedOperands,
    /// Whether a block is one tile high and four wide, and not two by two.
    one_high: bool,
}

impl Parts {
    /// Takes rows apart.
    fn split(&self, ctx: &Context<'_>, rows: Range<usize>) {
        let o = &self.operands.0;
        ctx.isa.run_tiles(Split {
            x: o.x,
            to: o.scratch.cast(),
            k: self.linear.k,
            rows,
        });
    }

    /// Multiplies some blocks, those of the same columns after each other.
    fn multiply(&self, ctx: &Context<'_>, rows: Range<usize>, columns: Range<usize>) {
        let o = &self.operands.0;
        ctx.isa.run_tiles(Blocks {
            linear: self.linear,
            x: o.scratch.cast(),
            weight: o.weight,
            out: o.out,
            bias: o.bias,
            one_high: self.one_high,
            rows,
            columns,
        });
    }
}

/// Takes rows apart.
struct Split {
    x: *const f32,
    to: *mut u8,
    k: usize,
    rows: Range<usize>,
}

impl TileKernel for Split {
    #[inline(always)]
    fn run(self, s: Avx512<true>) {
        let strip = strip_bytes(self.k);
        for row in self.rows.clone() {
            // SAFETY: made by `TiledLinear::run`, whose caller vouches for the rows and the room for their parts.
            unsafe {
                let from = self.x.add(row * self.k);
                let to = self.to.add(row / SIDE * strip + row % SIDE * 2 * STEP);
                let whole = self.k / STEP;
                for step in 0..whole {
                    let x = from.add(step * STEP);
                    let x = [s.load(x), s.load(x.add(LANES))];
                    s.store_parts(x, to.add(step * STEP_BYTES), TILE);
                }
                let rest = self.k % STEP;
                if rest > 0 {
                    let x = from.add(whole * STEP);
                    let first = rest.min(LANES);
                    let x = [
                        s.load_part(x, first),
                        s.load_part(x.add(first), rest - first),
                    ];
                    s.store_parts(x, to.add(whole * STEP_BYTES), TILE);
                }
            }
        }
    }
}

/// Some blocks of the result.
struct Blocks {
    linear: TiledLinear,
    x: *const u8,
    weight: *const u8,
    out: *mut f32,
    bias: *const f32,
    one_high: bool,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// The products of a block's four tiles.
#[repr(align(64))]
struct Products([f32; 4 * SIDE * SIDE]);

impl TileKernel for Blocks {
    #[inline(always)]
    fn run(self, s: Avx512<true>) {
        let steps = self.linear.k.div_ceil(STEP);
        let strip = strip_bytes(self.linear.k);
        let mut products = Products([0.0; 4 * SIDE * SIDE]);
        // SAFETY: made by `TiledLinear::run`, which takes this path only where tiles are there; its caller vouches for
        // the operands, which are padded to whole blocks.
        unsafe {
            let tiles = Tiles::new();
            for (column, row) in self
                .columns
                .clone()
                .flat_map(|column| self.rows.clone().map(move |row| (column, row)))
            {
                let to = products.0.as_mut_ptr();
                if self.one_high {
                    let weight = self.weight.add(column * 4 * strip);
                    tiles.one_by_four(self.x.add(row * strip), weight, strip, steps, to);
                } else {
                    let (x, weight) = (row * 2 * strip, column * 2 * strip);
                    tiles.two_by_two(self.x.add(x), self.weight.add(weight), strip, steps, to);
                }
                self.finish(s, &products, row, column);
            }
        }
    }
}

impl Blocks {
    /// # Safety
    /// The block must be one of the result's.
    #[inline(always)]
    unsafe fn finish(&self, s: Avx512<true>, products: &Products, row: usize, column: usize) {
        let TiledLinear { m, n, .. } = self.linear;
        let (high, wide) = if self.one_high { (1, 4) } else { (2, 2) };
        let (first_row, first) = (row * high * SIDE, column * wide * SIDE);
        let rows = (m - first_row).min(high * SIDE);
        let width = (n - first).min(wide * SIDE);
        // SAFETY: rows and columns that exist are written, and as many biases read.
        unsafe {
            let out = self.out.add(first_row * n + first);
            for tile in 0..width.div_ceil(SIDE) {
                let count = (width - tile * SIDE).min(SIDE);
                let bias = if self.bias.is_null() {
                    s.zero()
                } else {
                    s.load_part(self.bias.add(first + tile * SIDE), count)
                };
                for r in 0..rows {
                    let at = ((r / SIDE * wide + tile) * SIDE + r % SIDE) * SIDE;
                    let sum = s.add(s.load(products.0.as_ptr().add(at)), bias);
                    s.store_part(out.add(r * n + tile * SIDE), sum, count);
                }
            }
            if let Some(activation) = self.linear.activation {
                activate!(activation, f => map_tile(s, f, out, n, rows, width));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aligned::Aligned;
    use crate::isa::Isa;
    use crate::threads::Threads;
    use backend::conformance::Noise;

    fn compute(
        ctx: &Context<'_>,
        op: TiledLinear,
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
    ) -> Vec<f32> {
        let mut laid_out = Aligned::new(op.weight().bytes()).unwrap();
        let mut scratch = Aligned::new(op.scratch()).unwrap();
        let mut out = vec![f32::NAN; op.m * op.n];
        // SAFETY: every operand has the size its shape says.
        unsafe {
            op.weight()
                .lay_out(ctx, weight.as_ptr(), laid_out.as_mut_ptr());
            let operands = Operands {
                x: x.as_ptr(),
                weight: laid_out.as_ptr(),
                bias: bias.as_ptr(),
                out: out.as_mut_ptr(),
                scratch: scratch.as_mut_ptr().cast(),
            };
            op.run(ctx, operands);
        }
        out
    }

    fn with_tiles(test: impl Fn(&Context<'_>)) {
        for isa in Isa::available().into_iter().filter(|isa| isa.has_tiles()) {
            for threads in [1, 3] {
                let threads = &Threads::new(threads);
                test(&Context { isa, threads });
            }
        }
    }

    #[test]
    fn parts_add_up() {
        let mut noise = Noise::new(3);
        for x in noise.units(1000).into_iter().chain([0.0, f32::MAX, 1e-30]) {
            let sum: f32 = parts(x)
                .map(|bits| f32::from_bits(u32::from(bits) << 16))
                .iter()
                .sum();
            assert_eq!(sum, x);
        }
        assert_eq!(parts(f32::NEG_INFINITY), [0xff80, 0, 0]);
    }

    #[test]
    fn products_are_as_close_as_in_f32() {
        with_tiles(|ctx| {
            let mut noise = Noise::new(7);
            for (m, n, k) in [
                (8, 1, 1),
                (9, 70, 33),
                (16, 64, 64),
                (17, 33, 100),
                (40, 130, 520),
                (65, 96, 32),
            ] {
                let (x, weight) = (noise.units(m * k), noise.units(n * k));
                let bias = noise.units(n);
                let activation = (m % 2 == 1).then_some(Activation::Relu);
                let op = TiledLinear::new([m, n, k], activation).unwrap();
                let found = compute(ctx, op, &x, &weight, &bias);
                for (i, found) in found.iter().enumerate() {
                    let (row, column) = (i / n, i % n);
                    let product =
                        |d: usize| f64::from(x[row * k + d]) * f64::from(weight[column * k + d]);
                    let mut expect = (0..k).map(product).sum::<f64>() + f64::from(bias[column]);
                    if activation.is_some() {
                        expect = expect.max(0.0);
                    }
                    let error = (f64::from(*found) - expect).abs();
                    let size: f64 = (0..k).map(|d| product(d).abs()).sum();
                    assert!(
                        error <= 3e-7 * (1.0 + size),
                        "{m}x{n}x{k} {row},{column}: {error}"
                    );
                }
            }
        });
    }

    #[test]
    fn what_is_not_finite_stays_in_its_row() {
        with_tiles(|ctx| {
            let (m, n, k) = (20, 20, 40);
            let op = TiledLinear::new([m, n, k], None).unwrap();
            let mut x = vec![1.0; m * k];
            x[3 * k + 7] = f32::INFINITY;
            x[5 * k + 2] = f32::NAN;
            let found = compute(ctx, op, &x, &vec![1.0; n * k], &vec![0.0; n]);
            for (row, found) in found.chunks(n).enumerate() {
                // An infinite number meets the zeros among the parts of a weight.
                let expected: fn(f32) -> bool = match row {
                    3 | 5 => f32::is_nan,
                    _ => |x| x == 40.0,
                };
                assert!(found.iter().all(|x| expected(*x)), "row {row}: {found:?}");
            }
        });
    }
}
