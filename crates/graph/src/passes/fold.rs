//! Replaces nodes whose operands are all constants by their results.

use crate::graph::{Graph, Tensor, TensorKind};
use crate::ops::Op;
use crate::{Data, Dim, GraphError, GraphErrorKind, NodeId, Value};
use base::DType;

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    let mut keep = vec![true; graph.nodes.len()];
    for (i, keep) in keep.iter_mut().enumerate() {
        let node = &graph.nodes[i];
        let operands: Option<Vec<Value>> = node
            .inputs
            .iter()
            .map(|id| plain_constant(graph.tensor(*id)))
            .collect();
        let (Some(operands), false) = (operands, matches!(node.op, Op::UpdateAndAttend(_))) else {
            continue;
        };
        let output = graph.tensor(node.output);
        let fixed = output.ty.shape.iter().map(Dim::as_const);
        let Some(shape) = fixed.collect::<Option<Vec<usize>>>() else {
            continue;
        };
        let operands: Vec<&Value> = operands.iter().collect();
        let result = node
            .op
            .evaluate(&operands, &shape, &Default::default())
            .map_err(|reason| GraphErrorKind::Node {
                node: output.name.clone(),
                op: node.op.name(),
                reason,
            })?;
        let bytes = result.data.to_bytes();
        graph.tensors[node.output.0 as usize].kind = TensorKind::Constant(bytes);
        *keep = false;
    }
    let changed = keep.contains(&false);
    if changed {
        let mut flags = keep.iter();
        graph
            .nodes
            .retain(|_| *flags.next().expect("one flag a node"));
        for (i, node) in graph.nodes.iter().enumerate() {
            graph.tensors[node.output.0 as usize].kind = TensorKind::Value(NodeId(i as u32));
        }
    }
    Ok(changed)
}

/// A constant's value. Quantised and half-precision weights stay as they are: unpacking them would cost memory.
fn plain_constant(tensor: &Tensor) -> Option<Value> {
    let bytes = tensor.constant()?;
    let shape = tensor.ty.dims(&Default::default())?;
    if tensor.ty.dtype.is_real() && tensor.ty.dtype != DType::F32 {
        return None;
    }
    let elements = shape.iter().product();
    let data = Data::from_bytes(tensor.ty.dtype, bytes, elements)?;
    Some(Value { shape, data })
}

#[cfg(test)]
mod tests {
    use crate::GraphBuilder;
    use crate::ops::{Binary, BinaryFunction, Scale};
    use base::{Bytes, DType};

    #[test]
    fn folds_chains_of_constants() {
        let mut b = GraphBuilder::new("g");
        let t = b.symbol("T");
        let x = b.input("x", DType::F32, [t, 2.into()]);
        let c = b
            .constant("c", DType::F32, &[2], Bytes::from_slice(&[1.0f32, -2.0]))
            .unwrap();
        let doubled = b.node("doubled", Scale { factor: 2.0 }, &[c]).unwrap();
        let sum = b
            .node(
                "sum",
                Binary {
                    function: BinaryFunction::Add,
                },
                &[doubled, c],
            )
            .unwrap();
        let y = b
            .node(
                "y",
                Binary {
                    function: BinaryFunction::Mul,
                },
                &[x, sum],
            )
            .unwrap();
        let mut graph = b.finish(&[y]).unwrap();
        crate::passes::optimise(&mut graph).unwrap();
        assert_eq!(
            graph.to_string(),
            "graph g(x: f32[T, 2])\n  y: f32[T, 2] = mul(x, sum)\n  return y\n"
        );
        let folded = graph
            .tensors()
            .iter()
            .find(|t| t.name == "sum")
            .unwrap()
            .constant()
            .unwrap();
        assert_eq!(folded.cast::<f32>().unwrap(), [3.0, -6.0]);
        assert!(
            graph.tensors().iter().all(|t| t.name != "c"),
            "what folding left over is removed"
        );
    }
}
