//! Short causal convolutions of channels.

use super::{StepStates, for_tasks, load, rounded_to_f16, store};
use crate::kernels::elementwise::functions::{Identity, VectorFunction, with_activation};
use crate::kernels::{Context, SendPtr};
use crate::simd::{Kernel, LANES, Simd};
use graph::ops::Activation;
use kv::{NO_CELL, StateSource};

/// The maximum number of taps.
pub(crate) const MAX_TAPS: usize = 16;

/// A causal convolution of the channels of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CausalConv {
    pub(crate) cache_id: usize,
    pub(crate) tokens: usize,
    pub(crate) channels: usize,
    pub(crate) taps: usize,
    pub(crate) activation: Option<Activation>,
}

/// Addresses of a convolution; `bias` is null without one.
#[derive(Clone, Copy)]
pub(crate) struct CausalConvOperands {
    pub(crate) x: *const f32,
    pub(crate) weight: *const f32,
    pub(crate) bias: *const f32,
    pub(crate) out: *mut f32,
}

impl CausalConv {
    /// # Safety
    /// The operands must have the sizes of the op, and the plan of `states` as many tokens. `out` must overlap no operand.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        states: StepStates<'_>,
        operands: CausalConvOperands,
    ) {
        let CausalConvOperands {
            x,
            weight,
            bias,
            out,
        } = operands;
        let read = [x, weight, bias].map(|p| SendPtr(p.cast_mut()));
        let out = SendPtr(out);
        let work = self.tokens * self.channels * self.taps;
        for_tasks(ctx, self.channels.div_ceil(LANES), work, &|block| {
            // SAFETY: offset 0 is the operand's beginning.
            let (read, out) = unsafe { (read.map(|p| p.at(0).cast_const()), out.at(0)) };
            let [x, weight, bias] = read;
            ctx.isa.run(ConvBlock {
                op: *self,
                states,
                operands: CausalConvOperands {
                    x,
                    weight,
                    bias,
                    out,
                },
                first: block * LANES,
            });
        });
    }
}

/// The channels `first..first + 16`, as far as there are so many.
struct ConvBlock<'a> {
    op: CausalConv,
    states: StepStates<'a>,
    operands: CausalConvOperands,
    first: usize,
}

impl Kernel for ConvBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.op.activation {
            None => self.convolve(s, Identity),
            Some(activation) => with_activation!(activation, f => self.convolve(s, f)),
        }
    }
}

impl ConvBlock<'_> {
    #[inline(always)]
    fn convolve<S: Simd, F: VectorFunction>(&self, s: S, function: F) {
        let CausalConv {
            tokens,
            channels,
            taps,
            ..
        } = self.op;
        let CausalConvOperands {
            x,
            weight,
            bias,
            out,
        } = self.operands;
        let StepStates { plan, pool } = self.states;
        let round = pool.is_half;
        let (first, lanes) = (self.first, LANES.min(channels - self.first));
        let held = taps - 1;
        // SAFETY: `CausalConv::run`'s caller guarantees the operands; the pool has the cells of the plan, and this is the only task
        // of these channels.
        unsafe {
            let mut weights = [s.zero(); MAX_TAPS];
            for (tap, weights) in weights[..taps].iter_mut().enumerate() {
                let mut column = [0.0; LANES];
                for (lane, to) in column[..lanes].iter_mut().enumerate() {
                    *to = *weight.add((first + lane) * taps + tap);
                }
                *weights = s.load(column.as_ptr());
            }
            let bias = match bias.is_null() {
                true => s.zero(),
                false => load(s, bias.add(first), lanes),
            };
            let mut window = [s.zero(); MAX_TAPS];
            for token in 0..tokens {
                match plan.sources[token] {
                    StateSource::Previous => {}
                    StateSource::Zero => window = [s.zero(); MAX_TAPS],
                    StateSource::Cell(cell) => {
                        let state = self.states.stored(0, cell);
                        for (i, row) in window[..held].iter_mut().enumerate() {
                            *row = state.load(s, i * channels + first, lanes);
                        }
                    }
                }
                let at = token * channels + first;
                window[held] = load(s, x.add(at), lanes);
                let mut sum = bias;
                for tap in 0..taps {
                    sum = s.fma(weights[tap], window[tap], sum);
                }
                store(s, out.add(at), function.apply(s, sum, sum), lanes);
                if round {
                    window[held] = rounded_to_f16(s, window[held]);
                }
                for i in 0..held {
                    window[i] = window[i + 1];
                }
                let cell = plan.writes[token];
                if cell != NO_CELL {
                    let state = self.states.stored(0, cell);
                    for (i, row) in window[..held].iter().enumerate() {
                        state.store(s, i * channels + first, *row, lanes);
                    }
                }
            }
        }
    }
}
