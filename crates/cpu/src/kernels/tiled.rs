//! Linear layers over f32 on matrix tiles.
//!
//! A tile multiplies bf16, so a number becomes three of them that add up to it, and of the nine products the six that
//! reach into an f32 are added, from the smallest on: the result is as close as one in f32. The order of the sums is
//! another than that of the panels, so only graphs without a cache take this path: theirs are the rows that never meet
//! again in a step of another size.

use super::functions::{Identity, Map, activate};
use super::{Context, Shared};
use crate::amx::{SIDE, Tiles};
use crate::isa::TileKernel;
use crate::simd::{Avx512, LANES, Simd};
use graph::ops::Activation;
use std::mem::MaybeUninit;
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
const SERIAL_STEPS: usize = 64;
/// Bytes of a weight up to which it stays in a core's own cache while rows pass over it.
const NEAR: usize = 1 << 20;
/// Blocks of rows that share what is read of a weight that comes from farther away.
const GROUP: usize = 4;
/// Blocks of columns that are worth taking rows apart for.
const FEW_COLUMNS: usize = 4;
/// Bytes before a thread's parts: which group they are of.
const HELD: usize = 64;

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

    /// Whether two products of the same rows can run together.
    pub(crate) fn joins(&self, other: &TiledLinear) -> bool {
        (self.m, self.k) == (other.m, other.k)
    }

    /// Whether a block is one tile high and four wide, and not two by two.
    fn one_high(&self) -> bool {
        self.m <= SIDE
    }

    /// Rows and columns of a block.
    fn block(&self) -> (usize, usize) {
        match self.one_high() {
            true => (SIDE, WIDE),
            false => (BLOCK, BLOCK),
        }
    }

    /// Blocks of rows that are taken apart together.
    fn group(&self, threads: usize) -> usize {
        let blocks = self.m.div_ceil(self.block().0);
        match self.weight().bytes() > NEAR {
            true => (blocks / threads).clamp(1, GROUP),
            false => 1,
        }
    }

    /// Bytes of a thread's work space.
    fn thread_scratch(&self, threads: usize) -> usize {
        let rows = self.group(threads) * self.block().0;
        HELD + rows / SIDE * strip_bytes(self.k)
    }

    /// Bytes of work space: a group of rows in parts for every thread.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        threads * self.thread_scratch(threads)
    }

    /// # Safety
    /// The operands must be valid for the shapes of `self`, the weight laid out, the scratch as large as
    /// [`scratch`](Self::scratch) says, and the output must overlap none of them. The tier must have tiles.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, o: Operands) {
        // SAFETY: as the caller vouches.
        unsafe { run_together(ctx, &[(*self, o)]) }
    }
}

/// Products of the same rows with several weights, each of which [`joins`](TiledLinear::joins) the first: a thread takes
/// rows apart once, in its own cache, and multiplies them with all weights.
///
/// # Safety
/// As for [`TiledLinear::run`], for every product; the scratch is the last one's.
pub(crate) unsafe fn run_together(ctx: &Context<'_>, products: &[(TiledLinear, Operands)]) {
    let Some((last, operands)) = products.last() else {
        return;
    };
    let threads = ctx.threads.count();
    let (height, width) = last.block();
    let down = last.m.div_ceil(height);
    let across = |(linear, _): &(TiledLinear, Operands)| linear.n.div_ceil(width);
    let columns = products.iter().map(across).sum::<usize>();
    let group = last.group(threads);
    let groups = down.div_ceil(group);
    let serial = threads == 1 || down * columns * last.k.div_ceil(STEP) < SERIAL_STEPS;
    let parts = match serial {
        true => 1,
        false => (2 * threads)
            .div_ceil(groups)
            .min(columns / FEW_COLUMNS)
            .max(1),
    };
    let scratch = Shared(operands.scratch.cast::<u8>());
    let thread_scratch = last.thread_scratch(threads);
    for thread in 0..threads {
        // SAFETY: the scratch has room for every thread.
        unsafe { scratch.at(thread * thread_scratch).cast::<usize>().write(0) };
    }
    let products = &SharedProducts(products);
    let task = |task: usize, thread: usize| {
        let (index, part) = (task / parts, task % parts);
        let rows = index * group..((index + 1) * group).min(down);
        // SAFETY: the caller vouches for the operands; a thread's scratch is its own.
        unsafe {
            let held = scratch.at(thread * thread_scratch);
            let to = held.add(HELD);
            if held.cast::<usize>().replace(index + 1) != index + 1 {
                ctx.isa.run_tiles(Split {
                    x: products.get()[0].1.x,
                    to,
                    k: last.k,
                    rows: rows.start * height..(rows.end * height).min(last.m),
                });
            }
            let (mut first, end) = (columns * part / parts, columns * (part + 1) / parts);
            let mut before = 0;
            for product in products.get() {
                let behind = before + across(product);
                if first < end.min(behind) {
                    ctx.isa.run_tiles(Blocks {
                        linear: product.0,
                        operands: product.1,
                        x: to,
                        rows: rows.clone(),
                        columns: first - before..end.min(behind) - before,
                    });
                    first = end.min(behind);
                }
                before = behind;
            }
        }
    };
    if serial {
        (0..groups * parts).for_each(|i| task(i, 0));
    } else {
        ctx.threads.run_near(groups * parts, &task);
    }
}

struct SharedProducts<'a>(&'a [(TiledLinear, Operands)]);
// SAFETY: tasks read the operands and write disjoint parts of the outputs and their own thread's scratch.
unsafe impl Sync for SharedProducts<'_> {}

impl SharedProducts<'_> {
    fn get(&self) -> &[(TiledLinear, Operands)] {
        self.0
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
                let row = row - self.rows.start;
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
    operands: Operands,
    /// The parts of the rows.
    x: *const u8,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// The products of a block's four tiles.
#[repr(align(64))]
struct Products([MaybeUninit<f32>; 4 * SIDE * SIDE]);

impl TileKernel for Blocks {
    #[inline(always)]
    fn run(self, s: Avx512<true>) {
        match self.linear.activation {
            None => self.multiply(s, Identity),
            Some(activation) => activate!(activation, f => self.multiply(s, f)),
        }
    }
}

impl Blocks {
    #[inline(always)]
    fn multiply(&self, s: Avx512<true>, activation: impl Map) {
        let steps = self.linear.k.div_ceil(STEP);
        let strip = strip_bytes(self.linear.k);
        // A block is finished while the next one is multiplied.
        let empty = || Products([MaybeUninit::uninit(); 4 * SIDE * SIDE]);
        let [mut first, mut second] = [empty(), empty()];
        let (mut now, mut before) = (&mut first, &mut second);
        let mut unfinished = None;
        // SAFETY: made by `run_together`, which takes this path only where tiles are there; its caller vouches for the
        // operands, which are padded to whole blocks.
        unsafe {
            let tiles = Tiles::new();
            let weights = self.operands.weight;
            for column in self.columns.clone() {
                for row in self.rows.clone() {
                    let to = now.0.as_mut_ptr().cast();
                    let own = row - self.rows.start;
                    if self.linear.one_high() {
                        let weight = weights.add(column * 4 * strip);
                        tiles.one_by_four(self.x.add(own * strip), weight, strip, steps, to);
                    } else {
                        let (x, weight) = (own * 2 * strip, column * 2 * strip);
                        tiles.two_by_two(self.x.add(x), weights.add(weight), strip, steps, to);
                    }
                    if let Some(place) = unfinished.replace((row, column)) {
                        self.finish(s, activation, before, place);
                    }
                    std::mem::swap(&mut now, &mut before);
                }
            }
            if let Some(place) = unfinished {
                self.finish(s, activation, before, place);
            }
        }
    }

    /// # Safety
    /// The block must be one of the result's, and its products be computed.
    #[inline(always)]
    unsafe fn finish(
        &self,
        s: Avx512<true>,
        activation: impl Map,
        products: &Products,
        (row, column): (usize, usize),
    ) {
        let TiledLinear { m, n, .. } = self.linear;
        let (height, width) = self.linear.block();
        let wide = width / SIDE;
        let (first_row, first) = (row * height, column * width);
        let rows = (m - first_row).min(height);
        let width = (n - first).min(width);
        // SAFETY: rows and columns that exist are written, and as many biases read.
        unsafe {
            let out = self.operands.out.add(first_row * n + first);
            for tile in 0..width.div_ceil(SIDE) {
                let count = (width - tile * SIDE).min(SIDE);
                let bias = if self.operands.bias.is_null() {
                    s.zero()
                } else {
                    s.load_part(self.operands.bias.add(first + tile * SIDE), count)
                };
                for r in 0..rows {
                    let at = ((r / SIDE * wide + tile) * SIDE + r % SIDE) * SIDE;
                    let sum = s.add(s.load(products.0.as_ptr().cast::<f32>().add(at)), bias);
                    let result = activation.apply(s, sum, sum);
                    s.store_part(out.add(r * n + tile * SIDE), result, count);
                }
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
    use backend::conformance::TestRng;

    fn compute(
        ctx: &Context<'_>,
        op: TiledLinear,
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
    ) -> Vec<f32> {
        let mut laid_out = Aligned::new(op.weight().bytes()).unwrap();
        let mut scratch = Aligned::new(op.scratch(ctx.threads.count())).unwrap();
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
        let mut noise = TestRng::new(3);
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
            let mut noise = TestRng::new(7);
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
