//! From a node to a kernel call. All run modes resolve nodes here and run the same kernels, so they agree bit for bit.

mod call;
mod constants;
mod executable;
mod hot_experts;
mod mapped;
mod prefetch;
mod profile;
mod resolve;
mod shared_panels;
mod tape;
mod tape_call;
mod weight_layouts;

pub(crate) use constants::realigned_bytes;
pub(crate) use executable::CpuRecorder;
pub(crate) use hot_experts::ExpertPlan;
pub(crate) use mapped::mapped_bytes;
pub(crate) use tape::PlannedStep;
pub(crate) use weight_layouts::WeightLayouts;

use backend::{BackendError, BackendErrorKind};
use base::DType;
use graph::{Bindings, DataRef, Graph, Node, TensorId, Value, ValueRef};

/// An error of a node, with its name.
fn node_error(graph: &Graph, node: &Node, reason: String) -> BackendError {
    BackendErrorKind::Node {
        node: graph.node_name(node).to_owned(),
        op: node.op.name(),
        reason,
    }
    .into()
}

/// Adds the node's name to a kernel's reason.
fn named(graph: &Graph, node: &Node, error: call::CallError) -> BackendError {
    match error {
        call::CallError::Reason(reason) => node_error(graph, node, reason),
        call::CallError::Other(kind) => kind.into(),
    }
}

/// Copies a tensor out of the step's memory.
///
/// # Safety
/// The tensor's elements must be readable at `address`.
unsafe fn value_at(graph: &Graph, id: TensorId, bindings: &Bindings, address: *const u8) -> Value {
    let mut value = None;
    // SAFETY: as the caller guarantees.
    unsafe {
        with_view(graph, id, bindings, address, |view| {
            value = Some(view.to_value())
        })
    };
    value.expect("the view was given")
}

/// Calls `output` with a view of a tensor in the step's memory.
///
/// # Safety
/// The tensor's elements must be readable at `address`.
unsafe fn with_view(
    graph: &Graph,
    id: TensorId,
    bindings: &Bindings,
    address: *const u8,
    output: impl FnOnce(ValueRef<'_>),
) {
    let ty = &graph.tensor(id).ty;
    // SAFETY: the caller guarantees the elements.
    unsafe {
        let shape = ty
            .dims(bindings)
            .expect("sizes were resolved before the run");
        let len = shape.iter().product();
        let truths: Vec<bool>;
        let data = match ty.dtype {
            DType::I32 => DataRef::I32(slice(address, len)),
            DType::I64 => DataRef::I64(slice(address, len)),
            DType::Bool => {
                // Bytes that are not known to be 0 or 1 are converted.
                truths = slice::<u8>(address, len).iter().map(|b| *b != 0).collect();
                DataRef::Bool(&truths)
            }
            _ => DataRef::F32(slice(address, len)),
        };
        output(ValueRef {
            shape: &shape,
            data,
        });
    }
}

/// # Safety
/// `len` elements must be readable at `address`, if any, for as long as the slice is used.
unsafe fn slice<'a, T>(address: *const u8, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees the elements.
    unsafe { std::slice::from_raw_parts(address.cast(), len) }
}
