//! Convolutions as products of the weights with a matrix of shifted rows, made for a block of places and a part of the depth
//! at a time.

use super::copies::Block;
use super::{Conv, ConvOperands, ConvShape, Copies, K_BLOCK};
use crate::kernels::matmul::Epilogue;
use crate::kernels::matmul::f32::microkernel::{Gemm, Lhs, Rhs};
use crate::kernels::{Context, for_tasks};
use crate::simd::{Kernel, LANES, Simd};
use std::ops::Range;

/// The most places of a block: its matrix stays in a core's own cache.
const BLOCK_PLACES: usize = 224;
/// Fewer output channels than this are not divided: the matrix is made once for each part.
const PART_CHANNELS: usize = 48;
/// Tasks per thread, so that a delayed thread does not delay the others.
const TASKS_PER_THREAD: usize = 2;

#[derive(Clone, Debug)]
pub(super) struct Dense {
    copies: Copies,
    /// Whether the matrix's rows are those of the input: nothing is copied before.
    in_place: bool,
}

impl Dense {
    pub(super) fn new(shape: &ConvShape) -> Dense {
        Dense {
            copies: Copies::new(shape.axes, BLOCK_PLACES, 0.0),
            in_place: shape.is_pointwise(),
        }
    }

    /// Elements from one row of the matrix to the next. An odd number of vectors spreads the rows over the cache's sets.
    fn stride(&self) -> usize {
        let vectors = (self.copies.rows * self.copies.width).div_ceil(LANES) + 1;
        (vectors | 1) * LANES
    }

    /// Elements of the copies of the channels that a part of the depth reads.
    fn copied(&self) -> usize {
        match self.in_place {
            true => 0,
            false => (K_BLOCK / self.copies.taps.len() + 2) * self.copies.channel() + LANES,
        }
    }

    /// Elements of scratch of a thread.
    pub(super) fn scratch(&self) -> usize {
        K_BLOCK * self.stride() + self.copied() + LANES
    }

    /// # Safety
    /// As for [`Conv::run`].
    pub(super) unsafe fn run(&self, ctx: &Context<'_>, op: &Conv, o: ConvOperands) {
        let shape = op.shape;
        let blocks = self.copies.blocks();
        let whole = shape.batch * shape.groups * blocks;
        let parts = match ctx.threads.count() {
            1 => 1,
            threads => (threads * TASKS_PER_THREAD)
                .div_ceil(whole.max(1))
                .min(shape.outer / PART_CHANNELS)
                .max(1),
        };
        for_tasks(ctx, whole * parts, shape.work(), &|task, thread| {
            let o = o.of_thread(thread, self.scratch());
            let (part, rest) = (task % parts, task / parts);
            let (block, group) = (self.copies.block(rest % blocks), rest / blocks);
            let channels = shape.outer * part / parts..shape.outer * (part + 1) / parts;
            // SAFETY: the caller guarantees the operands; every task writes its own channels of its own places.
            unsafe { self.block(ctx, op, &o, group, channels, &block) };
        });
    }

    /// Some channels of a block; `group` counts the groups of all batches.
    ///
    /// # Safety
    /// As for [`Conv::run`].
    unsafe fn block(
        &self,
        ctx: &Context<'_>,
        op: &Conv,
        o: &ConvOperands,
        group: usize,
        channels: Range<usize>,
        block: &Block,
    ) {
        let shape = &op.shape;
        let (depth, plane) = (shape.depth(), shape.output_plane());
        let channel = group * shape.outer + channels.start;
        let own = group % shape.groups * shape.outer + channels.start;
        let count = block.rows * block.width;
        let x = o.x.wrapping_add(group * shape.inner * shape.input_plane());
        for start in (0..depth).step_by(K_BLOCK) {
            let part = start..(start + K_BLOCK).min(depth);
            // SAFETY: the caller guarantees the operands; channels, places and the part of the depth are inside them.
            unsafe {
                self.matrix(ctx, shape, x, o.scratch, part.clone(), block);
                let product = Gemm {
                    m: channels.len(),
                    n: count,
                    k: part.len(),
                    left: Lhs {
                        at: o.weight.add(own * depth + start),
                        row_stride: depth,
                    },
                    right: Rhs::row_major(o.scratch, self.stride()),
                    out: o.out.add(channel * plane + block.place),
                    out_row_stride: plane,
                    alpha: 1.0,
                    accumulate: start > 0,
                    epilogue: Epilogue::NONE,
                };
                product.run(ctx.isa);
            }
        }
        // SAFETY: as above; all sums are stored.
        unsafe { op.finish(ctx, o, (channel, channels.len()), (block.place, count)) };
    }

    /// Makes the matrix of a block and a part of the depth: a row of the block's places for every weight.
    ///
    /// # Safety
    /// `x` must be the group's input and `scratch` a thread's.
    unsafe fn matrix(
        &self,
        ctx: &Context<'_>,
        shape: &ConvShape,
        x: *const f32,
        scratch: *mut f32,
        part: Range<usize>,
        block: &Block,
    ) {
        let (kernel, plane) = (self.copies.taps.len(), shape.input_plane());
        if self.in_place {
            for (row, channel) in part.enumerate() {
                // SAFETY: a pointwise convolution has one weight a channel and its block is contiguous in the channel.
                unsafe {
                    let from = x.add(channel * plane + block.place);
                    let to = scratch.add(row * self.stride());
                    std::ptr::copy_nonoverlapping(from, to, block.width);
                }
            }
            return;
        }
        let copies = scratch.wrapping_add(K_BLOCK * self.stride());
        let channels = part.start / kernel..part.end.div_ceil(kernel);
        let first = channels.start;
        ctx.isa.run(ShiftedRows {
            op: self,
            x: x.wrapping_add(first * plane),
            plane,
            channels: channels.len(),
            copies,
            weights: part.start - first * kernel..part.end - first * kernel,
            block,
            to: scratch,
        });
    }
}

/// Copies channels and makes rows of a matrix of them.
struct ShiftedRows<'a> {
    op: &'a Dense,
    x: *const f32,
    plane: usize,
    channels: usize,
    copies: *mut f32,
    /// The rows, as weights from the first channel on.
    weights: Range<usize>,
    block: &'a Block,
    to: *mut f32,
}

impl Kernel for ShiftedRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let copies = &self.op.copies;
        let (channel, kernel) = (copies.channel(), copies.taps.len());
        let Block { rows, width, .. } = *self.block;
        // SAFETY: `Dense::matrix` guarantees the channels and the scratch. A row is written in whole vectors: what the last
        // one writes after the row is overwritten by the next row, or is padding of the matrix.
        unsafe {
            for i in 0..self.channels {
                let x = self.x.add(i * self.plane);
                copies.copy(s, x, self.block, self.copies.add(i * channel));
            }
            let mut to = self.to;
            for weight in self.weights {
                let (i, tap) = (weight / kernel, weight % kernel);
                let from = self
                    .copies
                    .add(i * channel + *copies.taps.get_unchecked(tap));
                for row in 0..rows {
                    let (from, to) = (from.add(row * copies.line), to.add(row * width));
                    for at in (0..width).step_by(LANES) {
                        s.store(to.add(at), s.load(from.add(at)));
                    }
                }
                to = to.add(self.op.stride());
            }
        }
    }
}
