//! Attention over a state: scans and delta rules.
//!
//! The columns of a state depend on each other nowhere, so a task takes some columns of one head through all tokens of a step, with
//! their part of the state in L1. One form serves prompts and single tokens: a row has the same bits in every step.

use super::{StepStates, for_tasks, load, rounded_to_f16, store};
use crate::kernels::{Context, SendPtr};
use crate::simd::{Kernel, LANES, Simd};
use graph::ops::HeadSharing;
use kv::{NO_CELL, StateSource};
use std::cell::RefCell;

/// Vectors of columns that a task takes.
const VECTORS: usize = 2;

/// The tokens of a step over the states of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearAttention {
    pub(crate) cache_id: usize,
    pub(crate) tokens: usize,
    /// Heads of queries and keys.
    pub(crate) groups: usize,
    /// Heads of values.
    pub(crate) heads: usize,
    /// Elements of a key, and rows of a state.
    pub(crate) depth: usize,
    /// Elements of a value, and columns of a state.
    pub(crate) width: usize,
    pub(crate) scale: f32,
    pub(crate) sharing: HeadSharing,
}

/// Addresses of the operands; `beta` is null without a delta rule.
#[derive(Clone, Copy)]
pub(crate) struct LinearAttentionOperands {
    pub(crate) q: *const f32,
    pub(crate) k: *const f32,
    pub(crate) v: *const f32,
    pub(crate) decay: *const f32,
    pub(crate) beta: *const f32,
    pub(crate) out: *mut f32,
}

thread_local! {
    /// A part of a state.
    static STATE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl LinearAttention {
    /// # Safety
    /// The operands must have the sizes of the op, and the plan of `states` as many tokens. `out` must overlap no operand.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        states: StepStates<'_>,
        operands: LinearAttentionOperands,
    ) {
        let LinearAttentionOperands {
            q,
            k,
            v,
            decay,
            beta,
            out,
        } = operands;
        let read = [q, k, v, decay, beta].map(|p| SendPtr(p.cast_mut()));
        let out = SendPtr(out);
        let blocks = self.width.div_ceil(VECTORS * LANES);
        let work = self.tokens * self.heads * self.depth * self.width * 3;
        for_tasks(ctx, self.heads * blocks, work, &|task| {
            // SAFETY: offset 0 is the operand's beginning.
            let (read, out) = unsafe { (read.map(|p| p.at(0).cast_const()), out.at(0)) };
            let [q, k, v, decay, beta] = read;
            STATE.with_borrow_mut(|state| {
                state.resize(self.depth * VECTORS * LANES, 0.0);
                ctx.isa.run(Columns {
                    op: *self,
                    states,
                    operands: LinearAttentionOperands {
                        q,
                        k,
                        v,
                        decay,
                        beta,
                        out,
                    },
                    head: task / blocks,
                    first: task % blocks * VECTORS * LANES,
                    state,
                });
            });
        });
    }
}

/// Columns `first..` of one head's states, as many as a task takes.
struct Columns<'a> {
    op: LinearAttention,
    states: StepStates<'a>,
    operands: LinearAttentionOperands,
    head: usize,
    first: usize,
    /// Their part of the state that the next token continues: `[depth, VECTORS · 16]`.
    state: &'a mut [f32],
}

impl Kernel for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let lanes = (VECTORS * LANES).min(self.op.width - self.first);
        let parts: [usize; VECTORS] =
            std::array::from_fn(|i| lanes.saturating_sub(i * LANES).min(LANES));
        let Columns {
            op,
            states,
            operands,
            head,
            first,
            state,
        } = self;
        let StepStates { plan, pool } = states;
        let group = op.sharing.group(head, op.heads, op.groups);
        // SAFETY: `LinearAttention::run`'s caller guarantees the operands; the pool has the cells of the plan, and this is the only
        // task of these columns. `state` has a row of vectors for each element of a key.
        unsafe {
            let state = state.as_mut_ptr();
            for token in 0..op.tokens {
                match plan.sources[token] {
                    StateSource::Previous => {}
                    StateSource::Zero => {
                        for i in 0..op.depth * VECTORS {
                            s.store(state.add(i * LANES), s.zero());
                        }
                    }
                    StateSource::Cell(cell) => {
                        let from = states.stored(head, cell);
                        for n in 0..op.depth {
                            for (i, lanes) in parts.into_iter().enumerate() {
                                let row = from.load(s, first + n * op.width + i * LANES, lanes);
                                s.store(state.add((n * VECTORS + i) * LANES), row);
                            }
                        }
                    }
                }
                let keys = (token * op.groups + group) * op.depth;
                let values = (token * op.heads + head) * op.width + first;
                let gate = token * op.heads + head;
                let beta = operands.beta;
                let result = one_token(
                    s,
                    &op,
                    state,
                    TokenOperands {
                        q: operands.q.add(keys),
                        k: operands.k.add(keys),
                        v: std::array::from_fn(|i| {
                            let at = values + (i * LANES).min(op.width - 1 - first);
                            load(s, operands.v.add(at), parts[i])
                        }),
                        decay: *operands.decay.add(gate),
                        beta: (!beta.is_null()).then(|| *beta.add(gate)),
                    },
                );
                for (i, lanes) in parts.into_iter().enumerate() {
                    if lanes > 0 {
                        store(s, operands.out.add(values + i * LANES), result[i], lanes);
                    }
                }
                if pool.is_half {
                    for i in 0..op.depth * VECTORS {
                        let at = state.add(i * LANES);
                        s.store(at, rounded_to_f16(s, s.load(at)));
                    }
                }
                let cell = plan.writes[token];
                if cell != NO_CELL {
                    let to = states.stored(head, cell);
                    for n in 0..op.depth {
                        for (i, lanes) in parts.into_iter().enumerate() {
                            let row = s.load(state.add((n * VECTORS + i) * LANES));
                            if lanes > 0 {
                                to.store(s, first + n * op.width + i * LANES, row, lanes);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// One token's query, key and gates, and its values in the columns of a task.
struct TokenOperands<V> {
    q: *const f32,
    k: *const f32,
    v: [V; VECTORS],
    decay: f32,
    beta: Option<f32>,
}

/// Takes the state past a token and returns the token's result.
///
/// # Safety
/// `state` must hold a row of vectors for each element of a key, and the token a query and a key.
#[inline(always)]
unsafe fn one_token<S: Simd>(
    s: S,
    op: &LinearAttention,
    state: *mut f32,
    token: TokenOperands<S::V>,
) -> [S::V; VECTORS] {
    let TokenOperands {
        q,
        k,
        v: mut update,
        decay,
        beta,
    } = token;
    let decay = s.exp(s.splat(decay));
    // Two sums, so that one waits for the other's multiplication.
    let mut sums = [[s.zero(); VECTORS]; 2];
    // SAFETY: the caller guarantees the state, the query and the key.
    unsafe {
        if let Some(beta) = beta {
            for n in 0..op.depth {
                let key = s.splat(*k.add(n));
                for (i, sum) in sums[n % 2].iter_mut().enumerate() {
                    *sum = s.fma(key, s.load(state.add((n * VECTORS + i) * LANES)), *sum);
                }
            }
            for (i, update) in update.iter_mut().enumerate() {
                let held = s.mul(decay, s.add(sums[0][i], sums[1][i]));
                *update = s.mul(s.splat(beta), s.sub(*update, held));
            }
            sums = [[s.zero(); VECTORS]; 2];
        }
        for n in 0..op.depth {
            let (key, query) = (s.splat(*k.add(n)), s.splat(*q.add(n)));
            for (i, sum) in sums[n % 2].iter_mut().enumerate() {
                let at = state.add((n * VECTORS + i) * LANES);
                let row = s.fma(key, update[i], s.mul(decay, s.load(at)));
                s.store(at, row);
                *sum = s.fma(query, row, *sum);
            }
        }
    }
    let scale = s.splat(op.scale);
    std::array::from_fn(|i| s.mul(scale, s.add(sums[0][i], sums[1][i])))
}
