//! Graphs inside nodes that only say how gradients or types are treated while they run, put in the place of their nodes.

use std::collections::HashMap;

use super::schema::{Argument, Graph, GraphArgument, Node};

/// Whether a node runs the graph it holds just as it is.
fn is_transparent(node: &Node) -> bool {
    match node.op() {
        "higher_order.wrap_with_set_grad_enabled" => true,
        // Device, type, enabled, caching: with autocast on, types would change.
        "higher_order.wrap_with_autocast" => {
            let enabled = node.inputs.get(2).map(|input| &input.arg);
            matches!(enabled, Some(Argument::AsBool(false)))
        }
        _ => false,
    }
}

/// The graph without such nodes, or what is wrong with one of them.
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

/// Appends what a node runs.
fn splice(all: &mut Graph, index: usize, mut node: Node) -> Result<(), String> {
    let name = node.name().to_owned();
    let is_graph = |arg: &Argument| matches!(arg, Argument::AsGraph(_));
    let at = node.inputs.iter().position(|input| is_graph(&input.arg));
    let Some(at) = at else {
        return Err(format!("node {name:?} has no graph to run"));
    };
    let arguments = node.inputs.split_off(at + 1);
    let Some(Argument::AsGraph(GraphArgument { graph })) = node.inputs.pop().map(|i| i.arg) else {
        return Err(format!("node {name:?} has no graph to run"));
    };
    let inner = inline(graph)?;
    if inner.inputs.len() != arguments.len() || inner.outputs.len() != node.outputs.len() {
        let (takes, gives) = (inner.inputs.len(), inner.outputs.len());
        let (given, taken) = (arguments.len(), node.outputs.len());
        return Err(format!(
            "node {name:?} has {given} arguments and {taken} results, and its graph {takes} and {gives}"
        ));
    }
    // Inside, a value has the name of its argument, or one that says where it belongs.
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
