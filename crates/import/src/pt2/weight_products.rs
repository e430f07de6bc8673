//! Products with stored integers, which torchao's `Int8WeightOnlyConfig` exports as `mm(x, weight.t().to(float))` before it
//! multiplies by the scales. They become `linear(x, weight)`, which reads the integers as they are stored.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::lower::aliases::Aliases;
use super::schema::{Argument, Graph, Named, NamedArgument, Node};
use super::tensor::{Pt2Tensor, kind};
use crate::stored_type::StoredType;

/// Rewrites products whose weight is a stored int8 matrix to `linear`, which reads the integers as they are stored.
/// Transposes and casts that nothing else reads are dead then.
pub(super) fn join_int8_products(graph: &mut Graph, tensors: &BTreeMap<String, Pt2Tensor>) {
    let is_int8 = |name: &str| {
        let stored = tensors.get(name);
        stored.is_some_and(|stored| stored.is_int8() && stored.shape.len() == 2)
    };
    if !tensors.keys().any(|name| is_int8(name)) {
        return;
    }
    let written: HashSet<String> = Aliases::written_roots(graph)
        .into_iter()
        .map(str::to_owned)
        .collect();
    let by_result: HashMap<&str, &Node> = graph
        .nodes
        .iter()
        .filter_map(|node| Some((node.outputs.first()?.names().first().copied()?, node)))
        .collect();
    let weight = |product: &Node| -> Option<String> {
        if !matches!(product.op(), "aten.mm.default" | "aten.matmul.default") {
            return None;
        }
        let cast = *by_result.get(operand(product, 1)?)?;
        if !matches!(cast.op(), "aten.to.dtype" | "aten._to_copy.default") {
            return None;
        }
        let result = cast.outputs.first()?.names().first().copied()?;
        let real = kind(graph.tensor_values.get(result)?.dtype).is_ok_and(StoredType::is_real);
        let turned = *by_result.get(operand(cast, 0)?)?;
        let swaps = match turned.op() {
            "aten.t.default" | "aten.numpy_T.default" => true,
            "aten.transpose.int" => {
                let axes = [1, 2].map(|at| integer(&turned.inputs.get(at)?.arg));
                axes == [Some(0), Some(1)] || axes == [Some(1), Some(0)]
            }
            "aten.permute.default" => {
                matches!(&turned.inputs.get(1)?.arg, Argument::AsInts(axes) if axes[..] == [1, 0])
            }
            _ => false,
        };
        let weight = operand(turned, 0)?;
        (real && swaps && is_int8(weight) && !written.contains(weight)).then(|| weight.to_owned())
    };
    let weights: Vec<Option<String>> = graph.nodes.iter().map(weight).collect();
    for (node, weight) in graph.nodes.iter_mut().zip(weights) {
        let (Some(name), Some(input)) = (weight, node.inputs.first()) else {
            continue;
        };
        let argument = |name: &str, arg: Argument| NamedArgument {
            name: name.to_owned(),
            arg,
        };
        node.inputs = vec![
            argument("input", input.arg.clone()),
            argument("weight", Argument::AsTensor(Named { name })),
        ];
        node.target = "torch.ops.aten.linear.default".into();
    }
}

/// The name of an operand that is a tensor.
fn operand(node: &Node, index: usize) -> Option<&str> {
    match &node.inputs.get(index)?.arg {
        Argument::AsTensor(tensor) => Some(&tensor.name),
        _ => None,
    }
}

fn integer(argument: &Argument) -> Option<i64> {
    match argument {
        Argument::AsInt(n) => Some(*n),
        _ => None,
    }
}
