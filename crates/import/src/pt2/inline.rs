//! Inlines the subgraphs of nodes that only set gradient or autocast modes.

use std::collections::HashMap;

use super::schema::{Argument, Graph, GraphArgument, Node};

/// Whether a node runs its subgraph without changing any value.
fn is_transparent(node: &Node) -> bool {
    match node.op() {
        "higher_order.wrap_with_set_grad_enabled" => true,
        // Arguments: device, type, enabled, caching. Enabled autocast would change types.
        "higher_order.wrap_with_autocast" => {
            let enabled = node.inputs.get(2).map(|input| &input.arg);
            matches!(enabled, Some(Argument::AsBool(false)))
        }
        _ => false,
    }
}

/// Replaces such nodes by their subgraphs.
///
/// # Errors
/// The reason why a node cannot be inlined.
pub(super) fn inline(graph: Graph) -> Result<Graph, String> {
    let nodes = graph.nodes;
    let mut all = Graph {
        nodes: Vec::with_capacity(nodes.len()),
        ..graph
    };
    for (index, node) in nodes.into_iter().enumerate() {
        if is_transparent(&node) {
            splice(&mut all, index, node)?;
        } else {
            all.nodes.push(node);
        }
    }
    Ok(all)
}

/// Appends the subgraph of a node.
fn splice(all: &mut Graph, index: usize, mut node: Node) -> Result<(), String> {
    let name = node.name().to_owned();
    let is_graph = |arg: &Argument| matches!(arg, Argument::AsGraph(_));
    let at = node.inputs.iter().position(|input| is_graph(&input.arg));
    let Some(at) = at else {
        return Err(format!("node {name:?} has no subgraph"));
    };
    let arguments = node.inputs.split_off(at + 1);
    let Some(Argument::AsGraph(GraphArgument { graph })) = node.inputs.pop().map(|i| i.arg) else {
        return Err(format!("node {name:?} has no subgraph"));
    };
    let inner = inline(graph)?;
    if inner.inputs.len() != arguments.len() || inner.outputs.len() != node.outputs.len() {
        let (takes, gives) = (inner.inputs.len(), inner.outputs.len());
        let (given, taken) = (arguments.len(), node.outputs.len());
        return Err(format!(
            "node {name:?} has {given} arguments and {taken} results, but its subgraph has {takes} and {gives}"
        ));
    }
    // Inputs of the subgraph get the names of the arguments; other values get a prefix of their own.
    let mut names: HashMap<String, String> = HashMap::new();
    for (inside, argument) in inner.inputs.iter().zip(&arguments) {
        let outside = argument.arg.names().into_iter().map(str::to_owned);
        names.extend(inside.names().into_iter().map(str::to_owned).zip(outside));
    }
    let renamed = |value: &str| match names.get(value) {
        Some(name) => name.clone(),
        None => format!("{name}.{index}.{value}"),
    };
    let rename = |argument: &mut Argument| {
        for name in argument.names_mut() {
            *name = renamed(name);
        }
    };
    for mut node in inner.nodes {
        node.inputs
            .iter_mut()
            .for_each(|input| rename(&mut input.arg));
        node.outputs.iter_mut().for_each(rename);
        all.nodes.push(node);
    }
    for (mut value, result) in inner.outputs.into_iter().zip(node.outputs) {
        rename(&mut value);
        all.nodes.push(Node::alias(value, result));
    }
    for (name, meta) in inner.tensor_values {
        all.tensor_values.entry(renamed(&name)).or_insert(meta);
    }
    for (name, size) in inner.sym_int_values {
        all.sym_int_values.entry(renamed(&name)).or_insert(size);
    }
    Ok(())
}
