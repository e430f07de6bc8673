//! Removes nodes and constants that no output needs. Graph inputs stay: they are the caller's contract.

use super::renumber::retain;
use crate::GraphError;
use crate::graph::Graph;

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    let mut keep_tensor = vec![false; graph.tensors.len()];
    for id in graph.outputs.iter().chain(&graph.inputs) {
        keep_tensor[id.0 as usize] = true;
    }
    let mut keep_node = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        // A node with memory writes to the cache, which later steps read, even when this step does not use its result.
        if keep_tensor[node.output.0 as usize] || node.op.has_memory() {
            keep_node[i] = true;
            keep_tensor[node.output.0 as usize] = true;
            node.inputs
                .iter()
                .for_each(|id| keep_tensor[id.0 as usize] = true);
        }
    }
    let changed = keep_tensor.contains(&false);
    if changed {
        retain(graph, &keep_node, &keep_tensor);
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use crate::GraphBuilder;
    use crate::ops::{Activation, Scale, Unary, UpdateAndAttend};
    use base::DType;

    #[test]
    fn keeps_what_outputs_and_caches_need() {
        let mut b = GraphBuilder::new("g");
        let t = b.symbol("T");
        let x = b.input("x", DType::F32, [t, 2.into(), 4.into()]);
        let p = b.input("p", DType::I32, [t]);
        let unused = b
            .node(
                "unused",
                Unary {
                    function: Activation::Silu.into(),
                },
                &[x],
            )
            .unwrap();
        b.node("unused2", Scale { factor: 2.0 }, &[unused]).unwrap();
        let k = b.node("k", Scale { factor: 0.5 }, &[x]).unwrap();
        b.node(
            "stored",
            UpdateAndAttend {
                cache_id: 0,
                scale: 1.0,
                softcap: None,
            },
            &[x, k, x, p],
        )
        .unwrap();
        let y = b.node("y", Scale { factor: 3.0 }, &[x]).unwrap();
        let mut graph = b.finish(&[y]).unwrap();
        assert!(super::run(&mut graph).unwrap());
        graph.verify().unwrap();
        let expect = "\
graph g(x: f32[T, 2, 4], p: i32[T])
  k: f32[T, 2, 4] = scale(x) {factor: 0.5}
  stored: f32[T, 2, 4] = update_and_attend(x, k, x, p) {cache_id: 0, scale: 1}
  y: f32[T, 2, 4] = scale(x) {factor: 3}
  return y
";
        assert_eq!(graph.to_string(), expect);
        assert!(!super::run(&mut graph).unwrap());
    }
}
