//! A kernel with all its sizes resolved; it runs on addresses.

use crate::kernels::Context;
use crate::kernels::attention::cached::CachedAttention;
use crate::kernels::attention::plain::{Attention, AttentionOperands};
use crate::kernels::attention::rope::{Rope, RopeTable, Rotation};
use crate::kernels::conv::pool::Pool;
use crate::kernels::conv::{Conv, ConvOperands};
use crate::kernels::elementwise::Elementwise;
use crate::kernels::elementwise::generate::Generate;
use crate::kernels::elementwise::scalar::{Cast, Compare, IntegerBinary, IntegerUnary, Where};
use crate::kernels::grid_sample::GridSample;
use crate::kernels::matmul::experts::{ExpertOperands, Experts, ResidentExperts};
#[cfg(target_arch = "x86_64")]
use crate::kernels::matmul::f32::tiles::{self, AmxLinear};
use crate::kernels::matmul::f32::{MatMul, MatMulOperands};
use crate::kernels::matmul::half::HalfLinear;
use crate::kernels::matmul::quantised::{self, MAX_FUSED_PRODUCTS, QuantisedLinear};
use crate::kernels::matmul::{Epilogue, Gate, LinearOperands, Prologue};
use crate::kernels::normalise::norm::Norm;
use crate::kernels::normalise::softmax::Softmax;
use crate::kernels::rearrange::copy::CopyStrided;
use crate::kernels::rearrange::gather::{AdvancedIndex, GatherBlocks, GatherElements};
use crate::kernels::rearrange::gather_rows::GatherRows;
use crate::kernels::rearrange::scatter::Scatter;
use crate::kernels::rearrange::triangle::Triangle;
use crate::kernels::rearrange::windows::Windows;
use crate::kernels::recurrent::StepStates;
use crate::kernels::recurrent::causal_conv::{CausalConv, CausalConvOperands};
use crate::kernels::recurrent::linear_attention::{LinearAttention, LinearAttentionOperands};
use crate::kernels::reduce::Reduce;
use crate::kernels::reduce::arg_sort::ArgSort;
use crate::kernels::reduce::cumsum::CumSum;
use crate::kernels::reduce::route_experts::RouteExperts;
use crate::kv::{CpuKv, StepRows};
use backend::{BackendErrorKind, CacheStep};
use graph::ops::{Activation, Op};
use graph::passes::FusionSupport;

/// A node's kernel with all sizes resolved.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// The result is a view of a part of the first operand; the memory plan says where.
    Alias,
    /// A linear layer with a half-precision weight, and the activation applied to its result.
    HalfLinear(HalfLinear, Option<Activation>),
    /// A linear layer with a quantised weight, and the activation applied to its result.
    QuantisedLinear(QuantisedLinear, Option<Activation>),
    MatMul(MatMul),
    /// A linear layer with an f32 weight, on matrix tiles, and the activation applied to its result.
    #[cfg(target_arch = "x86_64")]
    AmxLinear(AmxLinear, Option<Activation>),
    Experts(Experts),
    RouteExperts(RouteExperts),
    Attention(Attention),
    GatherRows(GatherRows),
    Norm(Norm),
    Elementwise(Elementwise),
    Rope(Rope),
    RopeTable(RopeTable),
    /// Copies of every operand into the result.
    Copy(Vec<CopyStrided>),
    IntegerBinary(IntegerBinary),
    IntegerUnary(IntegerUnary),
    Compare(Compare),
    Where(Where),
    Cast(Cast),
    Triangle(Triangle),
    Generate(Generate),
    GatherBlocks(GatherBlocks),
    GatherElements(GatherElements),
    AdvancedIndex(AdvancedIndex),
    Reduce(Reduce),
    Softmax(Softmax),
    CumSum(CumSum),
    ArgSort(ArgSort),
    Conv(Conv),
    Pool(Pool),
    GridSample(GridSample),
    Scatter(Scatter),
    Windows(Windows),
    CachedAttention(CachedAttentionCall),
    CausalConv(CausalConv),
    LinearAttention(LinearAttention),
}

/// Attention over a cache and the step's own rows, which are stored first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedAttentionCall {
    pub(crate) attend: CachedAttention,
    pub(crate) cache_id: usize,
    pub(crate) tokens: usize,
}

/// Addresses of a call's operands, result and scratch; null where there is none.
#[derive(Clone, Copy)]
pub(crate) struct Addresses<'a> {
    pub(crate) inputs: &'a [*const u8],
    pub(crate) output: *mut u8,
    pub(crate) scratch: *mut u8,
}

impl Addresses<'_> {
    /// Operand `i`, or null if there are fewer.
    fn input<T>(&self, i: usize) -> *const T {
        self.inputs.get(i).map_or(std::ptr::null(), |p| p.cast())
    }

    /// The operands of experts, without their weights.
    pub(super) fn experts(&self) -> ExpertOperands {
        ExpertOperands {
            x: self.input(0),
            weights: self.input(1),
            biases: [5, 6, 7].map(|operand| self.input(operand)),
            out: self.output.cast(),
            scratch: self.scratch,
        }
    }

    /// The operands of a product with a weight.
    fn product(&self, activation: Option<Activation>) -> LinearOperands {
        LinearOperands {
            x: self.input(0),
            weight: self.input(1),
            epilogue: Epilogue {
                bias: self.input(2),
                activation,
                ..Epilogue::NONE
            },
            out: self.output.cast(),
            scratch: self.scratch.cast(),
        }
    }
}

/// Why a call failed.
pub(crate) enum CallError {
    /// The kernel's reason, to which the caller adds the node's name.
    Reason(String),
    Other(BackendErrorKind),
}

impl From<String> for CallError {
    fn from(reason: String) -> CallError {
        CallError::Reason(reason)
    }
}

impl Call {
    /// Bytes of scratch that the call needs.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        match self {
            Call::HalfLinear(op, _) => op.scratch(threads),
            Call::QuantisedLinear(op, _) => op.scratch(threads),
            Call::MatMul(op) => op.scratch(),
            Call::Conv(op) => op.scratch(threads),
            Call::Pool(op) => op.scratch(threads),
            #[cfg(target_arch = "x86_64")]
            Call::AmxLinear(op, _) => op.scratch(threads),
            Call::Attention(op) => op.scratch(threads),
            Call::Experts(op) => op.scratch(threads),
            _ => 0,
        }
    }

    /// The quantised product of a call without an activation.
    pub(crate) fn quantised_product(&self) -> Option<QuantisedLinear> {
        match self {
            Call::QuantisedLinear(op, None) => Some(*op),
            _ => None,
        }
    }

    /// Sets the cache rows that every thread prefetches for this attention.
    pub(crate) fn plan_prefetch(&self, ctx: &Context<'_>, cache: &Option<CacheStep<'_, CpuKv>>) {
        if let (Call::CachedAttention(op), Some(step)) = (self, cache) {
            let plan = step.plan.layer(op.cache_id);
            let kv = &*step.bytes;
            op.attend
                .plan_prefetch(ctx, &plan.visible, (kv, op.cache_id));
        }
    }

    /// The norm of this call as a prologue of quantised products.
    pub(crate) fn norm(&self, at: Addresses<'_>) -> Option<Prologue> {
        match self {
            Call::Norm(norm) => Some(Prologue {
                norm: *norm,
                x: at.input(0),
                weight: at.input(1),
                bias: at.input(2),
            }),
            _ => None,
        }
    }

    /// Runs an attention fused with the rotation of its keys, which are rotated as they are stored.
    ///
    /// # Safety
    /// As for [`run`](Call::run), for both calls.
    pub(crate) unsafe fn run_rotated(
        &self,
        ctx: &Context<'_>,
        (rotation, from): (&Call, Addresses<'_>),
        at: Addresses<'_>,
        cache: &mut Option<CacheStep<'_, CpuKv>>,
    ) -> Result<(), CallError> {
        let (Call::Rope(rope), Call::CachedAttention(attend)) = (rotation, self) else {
            unreachable!("{rotation:?} and {self:?} run alone");
        };
        // SAFETY: as the caller guarantees.
        unsafe {
            let rotation = Some(rope.rotation(from.input(1)));
            update_and_attend(ctx, attend, (from.input(0), rotation), at, cache)
        }
    }

    /// The operands of a product.
    pub(crate) fn operands(&self, at: Addresses<'_>) -> LinearOperands {
        let activation = match self {
            Call::HalfLinear(_, activation) | Call::QuantisedLinear(_, activation) => *activation,
            #[cfg(target_arch = "x86_64")]
            Call::AmxLinear(_, activation) => *activation,
            _ => None,
        };
        at.product(activation)
    }

    /// Runs products as one, as far as [`FusibleCalls`] says that their kernels can.
    ///
    /// # Safety
    /// As for [`run`](Call::run), for every call; the scratch is the last call's.
    pub(crate) unsafe fn run_fused(
        ctx: &Context<'_>,
        prologue: Option<Prologue>,
        calls: &[(&Call, LinearOperands)],
        gate: Option<Gate>,
    ) {
        /// The calls' products; the array is filled up with the last one.
        macro_rules! products {
            ($kind:pat => $op:ident) => {{
                let product = |i: usize| match calls[i.min(calls.len() - 1)] {
                    ($kind, operands) => (*$op, operands),
                    (other, _) => unreachable!("{other:?} runs alone"),
                };
                let all: [_; MAX_FUSED_PRODUCTS] = std::array::from_fn(product);
                all
            }};
        }
        // SAFETY: as the caller guarantees.
        unsafe {
            match calls {
                #[cfg(target_arch = "x86_64")]
                [(Call::AmxLinear(..), _), ..] => {
                    let all = products!(Call::AmxLinear(op, _) => op);
                    tiles::run_fused(ctx, &all[..calls.len()]);
                }
                [(Call::HalfLinear(op, _), operands)] => op.run(ctx, *operands),
                _ => {
                    let all = products!(Call::QuantisedLinear(op, _) => op);
                    quantised::run_fused(ctx, prologue, &all[..calls.len()], gate);
                }
            }
        }
    }

    /// Runs the call.
    ///
    /// # Safety
    /// The addresses must be valid for the resolved sizes, and the output may overlap only operands that the op allows
    /// to be overwritten.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        at: Addresses<'_>,
        cache: &mut Option<CacheStep<'_, CpuKv>>,
    ) -> Result<(), CallError> {
        let out = at.output.cast::<f32>();
        // SAFETY: the caller guarantees the addresses, whose types were fixed by inference.
        unsafe {
            match self {
                Call::Alias => {}
                Call::HalfLinear(op, _) => op.run(ctx, self.operands(at)),
                Call::QuantisedLinear(op, _) => op.run(ctx, self.operands(at)),
                #[cfg(target_arch = "x86_64")]
                Call::AmxLinear(op, _) => op.run(ctx, self.operands(at)),
                Call::MatMul(op) => op.run(
                    ctx,
                    MatMulOperands {
                        a: at.input(0),
                        b: at.input(1),
                        bias: at.input(2),
                        out,
                        scratch: at.scratch.cast(),
                    },
                ),
                Call::Attention(op) => op.run(
                    ctx,
                    AttentionOperands {
                        q: at.input(0),
                        k: at.input(1),
                        v: at.input(2),
                        mask: at.input(3),
                        out,
                        scratch: at.scratch.cast(),
                    },
                ),
                Call::Experts(op) => {
                    let first = [2, 3, 4].map(|operand| at.input(operand));
                    op.run(ctx, &mut ResidentExperts::new(op, first), at.experts())?;
                }
                Call::RouteExperts(op) => op.run(ctx, at.input(0), at.input(1), out),
                Call::GatherRows(op) => op.run(ctx, at.input(0), at.input(1), out)?,
                Call::Norm(op) => op.run(ctx, at.input(0), at.input(1), at.input(2), out),
                Call::Elementwise(op) => op.run(ctx, at.input(0), at.input(1), out),
                Call::Rope(op) => op.run(ctx, at.input(0), at.input(1), out),
                Call::RopeTable(op) => op.run(at.input(0), at.input(1), out),
                Call::Copy(parts) => {
                    for (i, part) in parts.iter().enumerate() {
                        part.run(ctx, at.input(i), at.output);
                    }
                }
                Call::IntegerBinary(op) => op.run(at.input(0), at.input(1), at.output)?,
                Call::IntegerUnary(op) => op.run(at.input(0), at.output),
                Call::Compare(op) => op.run(ctx, at.input(0), at.input(1), at.output),
                Call::Where(op) => {
                    op.run(ctx, at.input(0), at.input(1), at.input(2), at.output);
                }
                Call::Cast(op) => op.run(at.input(0), at.output),
                Call::Triangle(op) => op.run(at.input(0), at.output),
                Call::Generate(op) => op.run(at.output),
                Call::GatherBlocks(op) => op.run(at.input(0), at.input(1), at.output)?,
                Call::GatherElements(op) => op.run(at.input(0), at.input(1), at.output)?,
                Call::AdvancedIndex(op) => op.run(at.input(0), &at.inputs[1..], at.output)?,
                Call::Reduce(op) => op.run(ctx, at.input(0), at.output)?,
                Call::Softmax(op) => op.run(ctx, at.input(0), out),
                Call::CumSum(op) => op.run(at.input(0), at.output),
                Call::ArgSort(op) => op.run(ctx, at.input(0), at.output.cast()),
                Call::Conv(op) => {
                    let operands = ConvOperands {
                        x: at.input(0),
                        weight: at.input(1),
                        bias: at.input(2),
                        residual: at.input(3),
                        out,
                        scratch: at.scratch.cast(),
                    };
                    op.run(ctx, operands);
                }
                Call::Pool(op) => op.run(ctx, at.input(0), out, at.scratch.cast()),
                Call::GridSample(op) => op.run(ctx, at.input(0), at.input(1), out),
                Call::Scatter(op) => {
                    let last = at.inputs.len() - 1;
                    op.run(at.input(0), &at.inputs[1..last], at.input(last), at.output)?;
                }
                Call::Windows(op) => op.run(ctx, at.input(0), out),
                Call::CachedAttention(op) => {
                    update_and_attend(ctx, op, (at.input(1), None), at, cache)?;
                }
                Call::CausalConv(op) => {
                    let operands = CausalConvOperands {
                        x: at.input(0),
                        weight: at.input(1),
                        bias: at.input(3),
                        out,
                    };
                    op.run(ctx, states(cache, op.cache_id)?, operands);
                }
                Call::LinearAttention(op) => {
                    let operands = LinearAttentionOperands {
                        q: at.input(0),
                        k: at.input(1),
                        v: at.input(2),
                        decay: at.input(3),
                        beta: at.input(5),
                        out,
                    };
                    op.run(ctx, states(cache, op.cache_id)?, operands);
                }
            }
        }
        Ok(())
    }
}

/// The calls of a graph's nodes as what their kernels can fuse.
pub(crate) struct FusibleCalls<'a>(pub(crate) &'a [Call]);

impl FusionSupport for FusibleCalls<'_> {
    fn max_products(&self) -> usize {
        MAX_FUSED_PRODUCTS
    }

    fn shares_rows(&self, first: usize, other: usize) -> bool {
        match (&self.0[first], &self.0[other]) {
            (Call::QuantisedLinear(a, None), Call::QuantisedLinear(b, None)) => a.can_fuse_with(b),
            #[cfg(target_arch = "x86_64")]
            (Call::AmxLinear(a, _), Call::AmxLinear(b, _)) => a.can_fuse_with(b),
            _ => false,
        }
    }

    /// Quantised products normalise their rows as they quantise them.
    fn norm(&self, product: usize, _: &Op) -> bool {
        self.0[product].quantised_product().is_some()
    }

    fn gate(&self, product: usize) -> bool {
        self.0[product].quantised_product().is_some()
    }

    /// The sum may overwrite the residual, which other kernels would read too late.
    fn residual(&self, product: usize, gated: bool) -> bool {
        let call = &self.0[product];
        !gated
            && matches!(
                call,
                Call::QuantisedLinear(_, None) | Call::HalfLinear(_, None)
            )
    }

    /// Keys are rotated as they are stored.
    fn rotation(&self, operand: usize) -> bool {
        operand == 1
    }
}

/// The states of a layer in a step.
fn states<'a>(
    cache: &'a mut Option<CacheStep<'_, CpuKv>>,
    cache_id: usize,
) -> Result<StepStates<'a>, CallError> {
    let Some(step) = cache else {
        return Err("needs a cache".to_owned().into());
    };
    StepStates::new(step, cache_id).map_err(|e| CallError::Other(e.into()))
}

/// Stores this step's rows, with rotated keys if a rotation is given, and computes the attention of each query over the
/// rows it sees.
///
/// # Safety
/// As for [`Call::run`]; there must be as many keys as the call stores.
unsafe fn update_and_attend(
    ctx: &Context<'_>,
    op: &CachedAttentionCall,
    (keys, rotation): (*const f32, Option<Rotation<'_>>),
    at: Addresses<'_>,
    cache: &mut Option<CacheStep<'_, CpuKv>>,
) -> Result<(), CallError> {
    let Some(step) = cache else {
        return Err("needs a cache".to_owned().into());
    };
    let CachedAttentionCall {
        attend, cache_id, ..
    } = *op;
    let plan = step.plan.layer(cache_id);
    let kv = &mut *step.bytes;
    // SAFETY: the caller guarantees the operands.
    unsafe {
        let rows = |p, dim| std::slice::from_raw_parts(p, op.tokens * attend.kv_heads * dim);
        let keys = StepRows {
            data: rows(keys, attend.key_dim),
            rotation,
        };
        let values = StepRows {
            data: rows(at.input(2), attend.value_dim),
            rotation: None,
        };
        kv.update(ctx, cache_id, plan, [keys, values])
            .map_err(|e| CallError::Other(e.into()))?;
        let (q, sinks) = (at.input(0), at.input(4));
        attend.run(
            ctx,
            &plan.visible,
            (kv, cache_id),
            q,
            sinks,
            at.output.cast(),
        );
    }
    Ok(())
}
