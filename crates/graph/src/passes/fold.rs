//! Constant folding: replaces nodes whose operands are all constants by their results.

use super::rewrite::{GraphView, Patch, PatchBuilder, rewrite};
use crate::graph::{Graph, Node};
use crate::ops::Op;
use crate::{Dim, GraphError, Value};

/// Results up to this many bytes are always folded; larger ones only if they are no larger than their operands, so that a
/// fill or an expand never becomes a large constant.
const ALWAYS_FOLDED_BYTES: usize = 4 << 20;

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    rewrite(graph, rule)
}

fn rule(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    if node.op.has_memory() || !is_fixed(&node.op) {
        return None;
    }
    let ty = view.ty(node.output);
    let shape = ty.fixed_dims()?;
    let bytes = ty.bytes(&Default::default())?;
    let given = |id: &_| view.graph.tensor(*id).constant().map(|b| b.len());
    let operands: usize = node.inputs.iter().map(given).sum::<Option<usize>>()?;
    if bytes > ALWAYS_FOLDED_BYTES.max(operands) {
        return None;
    }
    let operands: Option<Vec<Value>> = node.inputs.iter().map(|id| view.constant(*id)).collect();
    let operands = operands?;
    let operands: Vec<&Value> = operands.iter().collect();
    // If evaluation fails, the node stays, and the run reports the error with the node's name.
    let result = node.op.evaluate(&operands, &shape, &Default::default());
    let mut patch = PatchBuilder::new(view, node);
    let folded = patch.constant("folded", &result.ok()?);
    patch.redirect(folded)
}

/// Whether no attribute of the op depends on a symbol. Shapes are checked by type inference.
fn is_fixed(op: &Op) -> bool {
    let fixed = |dim: &Dim| dim.as_number().is_some();
    match op {
        Op::Range(op) => fixed(&op.start),
        Op::Size(op) => fixed(&op.value),
        Op::Slice(op) => fixed(&op.start),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use crate::GraphBuilder;
    use crate::ops::{Binary, BinaryFunction, Fill, Scalar, Scale, Size};
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
        let add = Binary {
            function: BinaryFunction::Add,
        };
        let sum = b.node("sum", add.clone(), &[doubled, c]).unwrap();
        let y = b.node("y", add, &[x, sum]).unwrap();
        let mut graph = b.finish(&[y]).unwrap();
        assert!(super::run(&mut graph).unwrap());
        graph.verify().unwrap();
        assert_eq!(
            graph.to_string(),
            "graph g(x: f32[T, 2])\n  y: f32[T, 2] = add(x, sum)\n  return y\n"
        );
        let folded = graph.tensors().iter().find(|t| t.name == "sum").unwrap();
        let folded = folded.constant().unwrap();
        assert_eq!(folded.cast::<f32>().unwrap(), [3.0, -6.0]);
        assert!(
            graph.tensors().iter().all(|t| t.name != "c"),
            "what folding left over is removed"
        );
    }

    #[test]
    fn leaves_what_is_large_or_unknown() {
        let mut b = GraphBuilder::new("g");
        let t = b.symbol("T");
        let large = Fill {
            value: Scalar::F32(0.0),
            shape: vec![2048.into(), 1024.into()],
            dtype: DType::F32,
        };
        let large = b.node("large", large, &[]).unwrap();
        let size = b.node("size", Size { value: t }, &[]).unwrap();
        let mut graph = b.finish(&[large, size]).unwrap();
        assert!(!super::run(&mut graph).unwrap());
    }
}
