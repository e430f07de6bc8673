//! Convolutions without windows in memory. The input of a block of places is copied with its padding, so that every element
//! of a kernel reads contiguous rows of the copy; then either a matrix of these rows is multiplied with the weights
//! ([`dense`]) or the rows are summed in registers ([`direct`]).
//!
//! Every result is a chain of multiply-adds along [`K_BLOCK`] weights in their order, and the chains are added in order: both
//! ways have the same bits, for any number of threads.

mod copies;
mod dense;
mod direct;
mod finish;
pub(crate) mod pool;
#[cfg(test)]
mod tests;

use super::Context;
use super::rearrange::windows::Slide;
use copies::Copies;
use dense::Dense;
use direct::Direct;
use finish::FinishRows;
use graph::ops::Activation;

/// Weights of a result that are summed in one chain of multiply-adds.
const K_BLOCK: usize = 256;

/// A convolution of `x [batch, groups · inner, S..]` with `weight [groups · outer, inner, K..]`.
#[derive(Clone, Debug)]
pub(crate) struct Conv {
    shape: ConvShape,
    activation: Option<Activation>,
    method: Method,
}

/// Sizes of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvShape {
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    /// Input channels of a group.
    pub(crate) inner: usize,
    /// Output channels of a group.
    pub(crate) outer: usize,
    pub(crate) axes: [Slide; 3],
}

#[derive(Clone, Debug)]
enum Method {
    Dense(Dense),
    Direct(Direct),
}

/// Addresses of a convolution's operands, result and scratch.
#[derive(Clone, Copy)]
pub(crate) struct ConvOperands {
    pub(crate) x: *const f32,
    pub(crate) weight: *const f32,
    /// Null without a bias.
    pub(crate) bias: *const f32,
    /// Null without a residual.
    pub(crate) residual: *const f32,
    pub(crate) out: *mut f32,
    /// Scratch of [`Conv::scratch`] bytes.
    pub(crate) scratch: *mut f32,
}

// SAFETY: tasks read the operands and write disjoint parts of the output and of the scratch.
unsafe impl Sync for ConvOperands {}

impl ConvOperands {
    /// The operands with a thread's own scratch of `elements` elements.
    fn of_thread(self, thread: usize, elements: usize) -> ConvOperands {
        ConvOperands {
            scratch: self.scratch.wrapping_add(thread * elements),
            ..self
        }
    }
}

impl ConvShape {
    /// Elements of the kernel of a pair of channels.
    fn kernel(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Weights of an output channel.
    fn depth(&self) -> usize {
        self.inner * self.kernel()
    }

    /// Elements of an input channel.
    fn input_plane(&self) -> usize {
        self.axes.iter().map(|axis| axis.len).product()
    }

    /// Elements of an output channel.
    fn output_plane(&self) -> usize {
        self.axes.iter().map(|axis| axis.places).product()
    }

    /// Whether every place reads the element under it and nothing else.
    fn is_pointwise(&self) -> bool {
        self.axes.iter().all(|axis| {
            (axis.size, axis.stride, axis.before) == (1, 1, 0) && axis.len == axis.places
        })
    }

    /// The same convolution with pointwise axes as one axis.
    fn flattened(self) -> ConvShape {
        if !self.is_pointwise() {
            return self;
        }
        let plane = self.input_plane();
        let whole = Slide {
            len: plane,
            places: plane,
            ..Slide::ONE
        };
        ConvShape {
            axes: [Slide::ONE, Slide::ONE, whole],
            ..self
        }
    }

    /// Whether too few products share the rows to make a matrix of them.
    fn is_direct(&self) -> bool {
        self.outer < 24 || self.depth() < 32
    }

    /// Multiply-adds.
    fn work(&self) -> usize {
        self.batch * self.groups * self.outer * self.output_plane() * self.depth()
    }
}

impl Conv {
    pub(crate) fn new(shape: ConvShape, activation: Option<Activation>) -> Conv {
        let shape = shape.flattened();
        let method = match shape.is_direct() {
            true => Method::Direct(Direct::new(&shape)),
            false => Method::Dense(Dense::new(&shape)),
        };
        Conv {
            shape,
            activation,
            method,
        }
    }

    /// Bytes of scratch with `threads` threads.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        let elements = match &self.method {
            Method::Dense(op) => op.scratch(),
            Method::Direct(op) => op.scratch(),
        };
        threads * elements * size_of::<f32>()
    }

    /// # Safety
    /// The operands must have the sizes of the call, and the output must overlap none of them.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, operands: ConvOperands) {
        // SAFETY: as the caller guarantees.
        unsafe {
            match &self.method {
                Method::Dense(op) => op.run(ctx, self, operands),
                Method::Direct(op) => op.run(ctx, self, operands),
            }
        }
    }

    /// Adds bias and residual to finished sums and applies the activation: `count` places from `place` on, of `channels`
    /// channels from `channel` on, where `channel` counts the channels of all batches.
    ///
    /// # Safety
    /// As for [`run`](Conv::run); the sums must be stored.
    unsafe fn finish(
        &self,
        ctx: &Context<'_>,
        o: &ConvOperands,
        (channel, channels): (usize, usize),
        (place, count): (usize, usize),
    ) {
        if o.bias.is_null() && o.residual.is_null() && self.activation.is_none() {
            return;
        }
        let plane = self.shape.output_plane();
        let first = channel * plane + place;
        let of_batch = channel % (self.shape.groups * self.shape.outer);
        let at = |p: *const f32, offset: usize| match p.is_null() {
            true => p,
            false => p.wrapping_add(offset),
        };
        ctx.isa.run(FinishRows {
            out: o.out.wrapping_add(first),
            bias: at(o.bias, of_batch),
            residual: at(o.residual, first),
            activation: self.activation,
            rows: channels,
            stride: plane,
            columns: count,
        });
    }
}
