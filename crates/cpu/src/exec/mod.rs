//! From a node to a kernel call. Both executors resolve nodes here and run the same kernels, so they agree bit for bit.

mod compiled;
mod interpreted;

pub(crate) use compiled::Compiled;
pub(crate) use interpreted::Interpreted;

use crate::kernels::Context;
use crate::kernels::attend::Attend;
use crate::kernels::elementwise::{Elementwise, Function};
use crate::kernels::linear::{Linear, Operands};
use crate::kernels::packed::PackedLinear;
use crate::kernels::packed::weights::{Form, Packed};
use crate::kernels::rope::{Rope, RopeTable};
use crate::kernels::rows::{Gather, Norm};
use crate::kv::CpuKv;
use crate::threads::Threads;
use backend::{BackendError, BackendErrorKind, CacheStep};
use base::Bytes;
use graph::ops::Op;
use graph::{Bindings, Data, Graph, Node, Tensor, TensorId, Value};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

/// A node's kernel with all sizes resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// The result is the first operand under another shape.
    Alias,
    Linear(Linear),
    PackedLinear(PackedLinear),
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

impl Addresses {
    /// The operands of a matrix product.
    fn product(&self) -> Operands {
        let [x, weight, bias, _] = self.inputs;
        Operands {
            x: x.cast(),
            weight,
            bias: bias.cast(),
            out: self.output.cast(),
            scratch: self.scratch.cast(),
        }
    }
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
            Op::Reshape(_) => Call::Alias,
            Op::Linear(_) => {
                let (m, n, k, weight) = (rows, width, input(1)?[1], dtype(1));
                match Form::of(weight) {
                    Some(form) => Call::PackedLinear(PackedLinear { m, n, k, form }),
                    None => Call::Linear(Linear { m, n, k, weight }),
                }
            }
            Op::GatherRows(_) => {
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
            Op::Binary(op) => {
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
            Op::Unary(op) => elementwise(Function::Unary(op.function), false),
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
            Op::RopeTable(op) => Call::RopeTable(RopeTable {
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
        })
    }

    /// Bytes of work space the call needs.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        match self {
            Call::Linear(linear) => linear.scratch(threads),
            Call::PackedLinear(linear) => linear.scratch(threads),
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
                Call::Alias => {}
                Call::Linear(op) => op.run(ctx, at.product()),
                Call::PackedLinear(op) => op.run(ctx, at.product()),
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

/// The bytes of every constant: moved where a misaligned file would break element access, packed where a product reads
/// them.
pub(crate) struct Constants {
    plain: Vec<Option<Bytes>>,
    packed: HashMap<TensorId, Arc<Packed>>,
}

impl Constants {
    pub(crate) fn new(graph: &Graph, threads: &Threads) -> Constants {
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
        let packed = |node: &Node| {
            let Op::Linear(_) = node.op else { return None };
            let (id, weight) = (node.inputs[1], graph.tensor(node.inputs[1]));
            let [n, k] = weight.ty.dims(&Default::default())?[..] else {
                return None;
            };
            let packed = Packed::new(weight.ty.dtype, weight.constant()?, n, k, threads)?;
            Some((id, packed))
        };
        Constants {
            plain: graph.tensors().iter().map(aligned).collect(),
            packed: graph.nodes().iter().filter_map(packed).collect(),
        }
    }

    pub(crate) fn address(&self, id: TensorId) -> *const u8 {
        self.plain[id.0 as usize]
            .as_ref()
            .expect("a constant")
            .as_ptr()
    }

    /// Where operand `index` of a call finds its constant.
    pub(crate) fn operand(&self, call: &Call, index: usize, id: TensorId) -> *const u8 {
        match (call, index) {
            (Call::PackedLinear(_), 1) => self.packed[&id].address(),
            _ => self.address(id),
        }
    }
}

/// A cache line of work memory.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct Line(
    #[allow(dead_code, reason = "read and written through raw addresses")] [u64; 8],
);

/// Where a caller's input begins.
fn input_address(value: &Value) -> *const u8 {
    match &value.data {
        Data::F32(v) => v.as_ptr().cast(),
        Data::I32(v) => v.as_ptr().cast(),
        Data::I64(v) => v.as_ptr().cast(),
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
            _ => Data::F32(std::slice::from_raw_parts(address.cast(), len).to_vec()),
        }
    };
    Value { shape, data }
}
