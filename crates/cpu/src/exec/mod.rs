//! From a node to a kernel call. Both executors resolve nodes here and run the same kernels, so they agree bit for bit.

mod compiled;
mod interpreted;

pub(crate) use compiled::Compiled;
pub(crate) use interpreted::Interpreted;

use crate::kernels::Context;
use crate::kernels::attend::Attend;
use crate::kernels::elementwise::{Elementwise, Function};
use crate::kernels::linear::{Linear, Operands};
use crate::kernels::rope::{Rope, RopeTable};
use crate::kernels::rows::{Gather, Norm};
use crate::kv::CpuKv;
use backend::{BackendError, BackendErrorKind, CacheStep};
use base::{Bytes, DType};
use graph::ops::{Binary, BinaryFunction, Op, Sharing, Unary, UnaryFunction};
use graph::{Bindings, Data, Graph, Node, Tensor, TensorId, TensorType, Value};
use std::any::Any;

/// A node's kernel with all sizes resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// The result is the first operand under another shape, from this byte on.
    Alias {
        offset: usize,
    },
    Linear(Linear),
    Gather(Gather),
    Norm(Norm),
    Elementwise(Elementwise),
    Rope(Rope),
    RopeTable(RopeTable),
    Attend {
        attend: Attend,
        cache_id: usize,
        tokens: usize,
    },
}

/// Addresses of a call's operands, null where there is none.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) inputs: [*const u8; 4],
    pub(crate) output: *mut u8,
    pub(crate) scratch: *mut u8,
}

impl Call {
    /// Resolves `node` under concrete symbols.
    pub(crate) fn new(
        graph: &Graph,
        node: &Node,
        bindings: &Bindings,
    ) -> Result<Call, BackendError> {
        let dims = |id: TensorId| {
            let tensor = graph.tensor(id);
            tensor
                .ty
                .dims(bindings)
                .ok_or_else(|| node_error(graph, node, format!("{} has no size", tensor.name)))
        };
        let input = |i: usize| dims(node.inputs[i]);
        let dtype = |i: usize| graph.tensor(node.inputs[i]).ty.dtype;
        let types: Vec<&TensorType> = node.inputs.iter().map(|id| &graph.tensor(*id).ty).collect();
        let sharing = node.op.sharing(&types, bindings);
        if let Sharing::Alias { offset } = sharing.map_err(|e| node_error(graph, node, e))? {
            return Ok(Call::Alias { offset });
        }
        let output = dims(node.output)?;
        let (width, rows) = output
            .split_last()
            .map_or((1, 1), |(last, outer)| (*last, outer.iter().product()));
        let elementwise = |function, repeat| {
            Call::Elementwise(Elementwise {
                function,
                rows,
                width,
                repeat,
            })
        };
        Ok(match &node.op {
            Op::Linear(op) if op.activation.is_none() => Call::Linear(Linear {
                m: rows,
                n: width,
                k: input(1)?[1],
                weight: dtype(1),
            }),
            Op::GatherRows(_) if dtype(1) == DType::I32 => {
                let table = input(0)?;
                Call::Gather(Gather {
                    count: rows,
                    table_rows: table[0],
                    width: table[1],
                    table: dtype(0),
                })
            }
            Op::RmsNorm(op) => Call::Norm(Norm {
                rows,
                width,
                eps: op.eps,
                centred: false,
            }),
            Op::LayerNorm(op) => Call::Norm(Norm {
                rows,
                width,
                eps: op.eps,
                centred: true,
            }),
            Op::Binary(op) if has_fast_path(op, &types) => {
                let b: usize = input(1)?.iter().product();
                // `b` is repeated over the outer dimensions, so it is one row of the flattened result.
                let (rows, repeat) = if b == rows * width {
                    (rows, false)
                } else {
                    (rows * width / b.max(1), true)
                };
                let width = if repeat { b } else { width };
                Call::Elementwise(Elementwise {
                    function: Function::Binary(op.function),
                    rows,
                    width,
                    repeat,
                })
            }
            Op::Unary(Unary {
                function: UnaryFunction::Activation(activation),
            }) => elementwise(Function::Unary(*activation), false),
            Op::Gated(op) => elementwise(Function::Gated(op.function), false),
            Op::Scale(op) => elementwise(Function::Scale(op.factor), false),
            Op::SoftCap(op) => elementwise(Function::SoftCap(op.cap), false),
            Op::Rope(op) => Call::Rope(Rope {
                tokens: output[0],
                heads: output[1],
                dim: output[2],
                rotated: input(1)?[1],
                layout: op.layout,
            }),
            Op::RopeTable(op) if dtype(0) == DType::I32 => Call::RopeTable(RopeTable {
                tokens: output[0],
                half: output[1] / 2,
                magnitude: op.magnitude,
            }),
            Op::UpdateAndAttend(op) => {
                let (q, k) = (input(0)?, input(1)?);
                let attend = Attend {
                    heads: q[1],
                    kv_heads: k[1],
                    key_dim: q[2],
                    value_dim: output[2],
                    scale: op.scale,
                    softcap: op.softcap,
                };
                Call::Attend {
                    attend,
                    cache_id: op.cache_id as usize,
                    tokens: q[0],
                }
            }
            _ => {
                let reason = "not on this backend yet".to_owned();
                return Err(node_error(graph, node, reason));
            }
        })
    }

    /// Bytes of work space the call needs.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        match self {
            Call::Linear(linear) => linear.scratch(threads),
            _ => 0,
        }
    }

    /// Runs the call; the error is a reason, to which the caller adds the node's name.
    ///
    /// # Safety
    /// The addresses must be valid for the resolved sizes, and the output may overlap only operands that the op allows
    /// to be overwritten.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        at: Addresses,
        cache: &mut Option<CacheStep<'_>>,
    ) -> Result<(), BackendErrorKind> {
        let input = |i: usize| at.inputs[i].cast::<f32>();
        let out = at.output.cast::<f32>();
        // SAFETY: the caller vouches for the addresses, whose types were fixed by inference.
        unsafe {
            match self {
                Call::Alias { .. } => {}
                Call::Linear(op) => {
                    let [_, weight, ..] = at.inputs;
                    op.run(
                        ctx,
                        Operands {
                            x: input(0),
                            weight,
                            bias: input(2),
                            out,
                            scratch: at.scratch.cast(),
                        },
                    );
                }
                Call::Gather(op) => {
                    op.run(ctx, at.inputs[0], at.inputs[1].cast(), out)
                        .map_err(CallError::reason)?;
                }
                Call::Norm(op) => op.run(ctx, input(0), input(1), input(2), out),
                Call::Elementwise(op) => op.run(ctx, input(0), input(1), out),
                Call::Rope(op) => op.run(ctx, input(0), input(1), out),
                Call::RopeTable(op) => op.run(at.inputs[0].cast(), input(1), out),
                Call::Attend {
                    attend,
                    cache_id,
                    tokens,
                } => {
                    let step = cache
                        .as_mut()
                        .ok_or_else(|| CallError::reason("needs a cache".into()))?;
                    let plan = step.plan.layer(*cache_id);
                    let bytes: &mut dyn Any = step.bytes;
                    let Some(kv) = bytes.downcast_mut::<CpuKv>() else {
                        return Err(BackendErrorKind::CacheMismatch(
                            "it was not built by the CPU backend".into(),
                        ));
                    };
                    let rows =
                        |p, dim| std::slice::from_raw_parts(p, tokens * attend.kv_heads * dim);
                    let (keys, values) = (
                        rows(input(1), attend.key_dim),
                        rows(input(2), attend.value_dim),
                    );
                    kv.update(*cache_id, plan.cells, &plan.writes, keys, values)?;
                    attend.run(ctx, &plan.visible, (kv, *cache_id), input(0), out);
                }
            }
        }
        Ok(())
    }
}

/// Whether `b` is repeated over `a`'s outer dimensions, or is as large, and there is a kernel for it.
fn has_fast_path(op: &Binary, types: &[&TensorType]) -> bool {
    let known = matches!(op.function, BinaryFunction::Add | BinaryFunction::Mul);
    known && types[0].dtype == DType::F32 && types[0].shape.ends_with(&types[1].shape)
}

/// A kernel's reason for failing, before the node's name is known.
struct CallError;

impl CallError {
    fn reason(reason: String) -> BackendErrorKind {
        BackendErrorKind::Node {
            node: String::new(),
            op: "",
            reason,
        }
    }
}

fn node_error(graph: &Graph, node: &Node, reason: String) -> BackendError {
    BackendErrorKind::Node {
        node: graph.node_name(node).to_owned(),
        op: node.op.name(),
        reason,
    }
    .into()
}

/// Adds the node's name to a kernel's reason.
fn named(graph: &Graph, node: &Node, error: BackendErrorKind) -> BackendError {
    match error {
        BackendErrorKind::Node { reason, .. } => node_error(graph, node, reason),
        other => other.into(),
    }
}

/// The bytes of every constant, moved where a misaligned file would break element access.
pub(crate) struct Constants(Vec<Option<Bytes>>);

impl Constants {
    pub(crate) fn new(graph: &Graph) -> Constants {
        let aligned = |tensor: &Tensor| {
            let bytes = tensor.constant()?;
            let plain = !tensor.ty.dtype.is_quantised();
            let aligned = (bytes.as_ptr() as usize).is_multiple_of(tensor.ty.dtype.block_bytes());
            Some(if plain && !aligned {
                Bytes::from(&bytes[..])
            } else {
                bytes.clone()
            })
        };
        Constants(graph.tensors().iter().map(aligned).collect())
    }

    pub(crate) fn address(&self, id: TensorId) -> *const u8 {
        self.0[id.0 as usize].as_ref().expect("a constant").as_ptr()
    }
}

/// Where a caller's input begins.
fn input_address(value: &Value) -> *const u8 {
    match &value.data {
        Data::F32(v) => v.as_ptr().cast(),
        Data::I32(v) => v.as_ptr().cast(),
        Data::I64(v) => v.as_ptr().cast(),
        Data::Bool(v) => v.as_ptr().cast(),
    }
}

/// Copies an output out of the step's memory.
///
/// # Safety
/// The tensor's elements must be readable at `address`.
unsafe fn output_value(
    graph: &Graph,
    id: TensorId,
    bindings: &Bindings,
    address: *const u8,
) -> Value {
    let ty = &graph.tensor(id).ty;
    let shape = ty
        .dims(bindings)
        .expect("sizes were resolved before the run");
    let len = shape.iter().product();
    // SAFETY: the caller vouches for the elements.
    let data = unsafe {
        match ty.dtype {
            base::DType::I32 => Data::I32(std::slice::from_raw_parts(address.cast(), len).to_vec()),
            base::DType::I64 => Data::I64(std::slice::from_raw_parts(address.cast(), len).to_vec()),
            base::DType::Bool => {
                let bytes = std::slice::from_raw_parts(address, len);
                Data::Bool(bytes.iter().map(|b| *b != 0).collect())
            }
            _ => Data::F32(std::slice::from_raw_parts(address.cast(), len).to_vec()),
        }
    };
    Value { shape, data }
}
