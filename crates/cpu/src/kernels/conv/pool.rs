//! Pooling of windows, from the same copies as convolutions.

use super::copies::{Block, Copies};
use crate::kernels::elementwise::functions::{Add, Max, VectorFunction};
use crate::kernels::rearrange::windows::Slide;
use crate::kernels::{Context, SendPtr, for_tasks};
use crate::simd::{Kernel, LANES, Simd};
use graph::ops::PoolFunction;

/// Places of a block, about: their copies stay in L1.
const BLOCK_PLACES: usize = 2048;
/// Vectors of places that are pooled together.
const VECTORS: usize = 4;

/// The maximum or the sum of the windows of `x [planes, S..]`.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    function: PoolFunction,
    planes: usize,
    axes: [Slide; 3],
    copies: Copies,
}

impl Pool {
    pub(crate) fn new(function: PoolFunction, planes: usize, axes: [Slide; 3]) -> Pool {
        let padding = match function {
            PoolFunction::Max => f32::NEG_INFINITY,
            PoolFunction::Sum => 0.0,
        };
        Pool {
            function,
            planes,
            axes,
            copies: Copies::new(axes, BLOCK_PLACES, padding),
        }
    }

    /// Elements of scratch of a thread: the last row is read in whole vectors.
    fn thread_scratch(&self) -> usize {
        self.copies.channel() + LANES
    }

    /// Bytes of scratch with `threads` threads.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        threads * self.thread_scratch() * size_of::<f32>()
    }

    /// # Safety
    /// `x` must hold all planes and `out` all windows; they must not overlap. `scratch` must have the bytes of
    /// [`scratch`](Pool::scratch).
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        x: *const f32,
        out: *mut f32,
        scratch: *mut f32,
    ) {
        let (x, out, scratch) = (SendPtr(x.cast_mut()), SendPtr(out), SendPtr(scratch));
        let input: usize = self.axes.iter().map(|axis| axis.len).product();
        let output: usize = self.axes.iter().map(|axis| axis.places).product();
        let blocks = self.copies.blocks();
        let work = self.planes * output * self.copies.taps.len();
        for_tasks(ctx, self.planes * blocks, work, &|task, thread| {
            let (plane, block) = (task / blocks, self.copies.block(task % blocks));
            // SAFETY: the caller guarantees the tensors; every task writes its own places.
            unsafe {
                ctx.isa.run(PoolBlock {
                    op: self,
                    x: x.at(plane * input),
                    scratch: scratch.at(thread * self.thread_scratch()),
                    out: out.at(plane * output + block.place),
                    block,
                });
            }
        });
    }
}

/// A block of places of one plane. Every result is folded in the order of the window's elements.
struct PoolBlock<'a> {
    op: &'a Pool,
    block: Block,
    x: *const f32,
    scratch: *mut f32,
    out: *mut f32,
}

impl Kernel for PoolBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: `Pool::run` guarantees the plane and a thread's scratch.
        unsafe { self.op.copies.copy(s, self.x, &self.block, self.scratch) };
        match self.op.function {
            PoolFunction::Max => self.fold(s, Max, f32::NEG_INFINITY),
            PoolFunction::Sum => self.fold(s, Add, 0.0),
        }
    }
}

impl PoolBlock<'_> {
    #[inline(always)]
    fn fold<S: Simd>(&self, s: S, function: impl VectorFunction, start: f32) {
        let copies = &self.op.copies;
        let Block { rows, width, .. } = self.block;
        let across = width.div_ceil(LANES);
        let all = rows * across;
        for first in (0..all).step_by(VECTORS) {
            // The last vectors are pooled again where there are fewer than a tile has.
            let (mut from, mut to) = ([0; VECTORS], [0; VECTORS]);
            for v in 0..VECTORS {
                let vector = (first + v).min(all - 1);
                let (row, column) = (vector / across, vector % across * LANES);
                from[v] = row * copies.line + column;
                to[v] = row * width + column;
            }
            let mut folded = [s.splat(start); VECTORS];
            // SAFETY: a row of the copy may be read to a whole vector, and only places of the block are written. What is
            // written behind a row is overwritten by the next one.
            unsafe {
                for tap in &copies.taps {
                    for v in 0..VECTORS {
                        let x = s.load(self.scratch.add(tap + from[v]));
                        folded[v] = function.apply(s, folded[v], x);
                    }
                }
                for v in 0..VECTORS {
                    match rows * width - to[v] {
                        rest if rest < LANES => s.store_part(self.out.add(to[v]), folded[v], rest),
                        _ => s.store(self.out.add(to[v]), folded[v]),
                    }
                }
            }
        }
    }
}
