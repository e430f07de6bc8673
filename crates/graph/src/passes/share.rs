//! Common subexpression elimination, such as one rotary table for all layers.

use super::rewrite::{GraphView, Patch, PatchBuilder, rewrite};
use crate::GraphError;
use crate::graph::{Graph, Node, TensorKind};

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    rewrite(graph, rule)
}

fn rule(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    if node.op.has_memory() {
        return None;
    }
    let place = |node: &Node| match view.graph.tensor(node.output).kind {
        TensorKind::Value(id) => id,
        _ => unreachable!("a node's output is computed"),
    };
    let alike = |other: &&Node| {
        place(other) < place(node) && other.op == node.op && other.inputs == node.inputs
    };
    let first = match node.inputs.first() {
        Some(x) => view.readers(*x).find(alike),
        None => view.graph.nodes().iter().find(alike),
    };
    PatchBuilder::new(view, node).redirect(first?.output)
}

#[cfg(test)]
mod tests {
    use crate::GraphBuilder;
    use crate::ops::{Binary, BinaryFunction, Scale};
    use base::DType;

    #[test]
    fn shares_chains() {
        let mut b = GraphBuilder::new("g");
        let x = b.input("x", DType::F32, [2.into()]);
        let mut ends = Vec::new();
        for i in 0..2 {
            let a = b.node(&format!("a{i}"), Scale { factor: 2.0 }, &[x]);
            let c = b.node(&format!("c{i}"), Scale { factor: 3.0 }, &[a.unwrap()]);
            ends.push(c.unwrap());
        }
        let function = BinaryFunction::Add;
        let y = b.node("y", Binary { function }, &ends).unwrap();
        let mut graph = b.finish(&[y]).unwrap();
        assert!(super::run(&mut graph).unwrap());
        let expect = "\
graph g(x: f32[2])
  a0: f32[2] = scale(x) {factor: 2}
  c0: f32[2] = scale(a0) {factor: 3}
  y: f32[2] = add(c0, c0)
  return y
";
        assert_eq!(graph.to_string(), expect);
    }
}
