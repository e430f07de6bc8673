//! Which tensors share memory in PyTorch, so that an op that writes into one of them changes all.

use std::collections::{HashMap, HashSet};

use super::aliasing::{self, Aliasing};
use super::op_traits;
use crate::pt2::file::Program;
use crate::pt2::schema::{Argument, Graph, InputSpec, Node, OutputSpec, Signature};

/// Where the memory of a tensor comes from.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    /// The op that makes the view, or that writes into its operand.
    pub(super) node: &'a Node,
    /// The tensor that the op is applied to.
    pub(super) base: &'a str,
    /// Whether the file says that both share memory.
    pub(super) certain: bool,
}

/// Tensors of a program that may share memory, by name.
#[derive(Default)]
pub(in crate::pt2) struct Aliases<'a> {
    groups: HashMap<&'a str, usize>,
    members: Vec<Vec<&'a str>>,
    /// Where the memory of views and of tensors that were written into comes from, by their names.
    pub(super) makers: HashMap<&'a str, Maker<'a>>,
    /// The last node that reads a tensor; all nodes are before the program's end.
    last_read: HashMap<&'a str, usize>,
}

impl<'a> Aliases<'a> {
    /// The tensors of a program. Those that outlive a run (`kept`) are read at its end.
    fn new(graph: &'a Graph, kept: impl Iterator<Item = &'a str>) -> Aliases<'a> {
        let mut aliases = Aliases::default();
        for (index, node) in graph.nodes.iter().enumerate() {
            if op_traits::is_silent(node.op()) {
                continue;
            }
            for name in node.inputs.iter().flat_map(|input| input.arg.names()) {
                aliases.last_read.insert(name, index);
            }
            let written = op_traits::written(node).is_some();
            let aliasing = match written {
                true => Aliasing::View,
                false => aliasing::of(graph, node),
            };
            if aliasing == Aliasing::Fresh {
                continue;
            }
            let operands = node.inputs.iter().flat_map(|input| input.arg.names());
            // Only ops that are not understood have several operands that their results may be views of.
            let count = match aliasing {
                Aliasing::Unknown => usize::MAX,
                _ => 1,
            };
            for base in operands.take(count) {
                for result in node.outputs.iter().flat_map(Argument::names) {
                    aliases.join(base, result);
                    let certain = aliasing == Aliasing::View;
                    let maker = Maker {
                        node,
                        base,
                        certain,
                    };
                    aliases.makers.entry(result).or_insert(maker);
                }
            }
        }
        let outputs = graph.outputs.iter().flat_map(Argument::names);
        for name in outputs.chain(kept) {
            aliases.last_read.insert(name, usize::MAX);
        }
        aliases
    }

    /// The tensors of a program.
    pub(in crate::pt2) fn of(program: &'a Program) -> Aliases<'a> {
        Aliases::new(&program.graph, kept(&program.signature))
    }

    /// The tensors into whose memory the program's nodes write.
    pub(in crate::pt2) fn written_roots(graph: &'a Graph) -> HashSet<&'a str> {
        let aliases = Aliases::new(graph, std::iter::empty());
        aliases.roots_of_writes(graph)
    }

    /// The tensors into whose memory nodes write: each has memory of its own, or is given to the program.
    pub(super) fn roots_of_writes(&self, graph: &'a Graph) -> HashSet<&'a str> {
        let written = graph.nodes.iter().filter_map(op_traits::written);
        written.map(|name| self.root(name)).collect()
    }

    /// The tensor that a view is a view of, or the tensor itself.
    fn root(&self, name: &'a str) -> &'a str {
        let mut name = name;
        // A damaged file may have views of themselves.
        for _ in 0..self.makers.len() {
            match self.makers.get(name) {
                Some(maker) => name = maker.base,
                None => break,
            }
        }
        name
    }

    /// The group of a tensor that shares memory.
    fn group(&self, name: &str) -> Option<usize> {
        self.groups.get(name).copied()
    }

    fn join(&mut self, a: &'a str, b: &'a str) {
        let [a, b] = [a, b].map(|name| match self.groups.get(name) {
            Some(group) => *group,
            None => {
                self.groups.insert(name, self.members.len());
                self.members.push(vec![name]);
                self.members.len() - 1
            }
        });
        if a == b {
            return;
        }
        let (small, large) = match self.members[a].len() < self.members[b].len() {
            true => (a, b),
            false => (b, a),
        };
        let moved = std::mem::take(&mut self.members[small]);
        for name in &moved {
            self.groups.insert(name, large);
        }
        self.members[large].extend(moved);
    }

    /// The tensors that may share memory with `name` and are read after node `index`.
    pub(super) fn read_later(&self, name: &str, index: usize) -> Vec<&'a str> {
        let members = self.group(name).map(|group| &self.members[group][..]);
        let later = |other: &&&'a str| {
            **other != name
                && self
                    .last_read
                    .get(**other)
                    .is_some_and(|last| *last > index)
        };
        let members = members.unwrap_or_default();
        members.iter().filter(later).copied().collect()
    }
}

/// The tensors whose memory outlives a run: weights, buffers and inputs.
fn kept(signature: &Signature) -> impl Iterator<Item = &str> {
    let inputs = signature.input_specs.iter();
    inputs.filter_map(|input| match input {
        InputSpec::UserInput { arg } => arg.names().first().copied(),
        _ => input.weight().map(|(arg, _)| &arg.name[..]),
    })
}

/// Marks the nodes that the outputs depend on, or the tensors whose memory outlives a run.
pub(in crate::pt2) fn live(program: &Program) -> Vec<bool> {
    let graph = &program.graph;
    let aliases = Aliases::of(program);
    let mut wanted: HashSet<&str> = graph.outputs.iter().flat_map(Argument::names).collect();
    // Memory that is read later, under whatever name.
    let kept = kept(&program.signature);
    let mut memory: HashSet<usize> = wanted
        .iter()
        .copied()
        .chain(kept)
        .filter_map(|name| aliases.group(name))
        .collect();
    let mut live = vec![false; graph.nodes.len()];
    for (node, live) in graph.nodes.iter().zip(&mut live).rev() {
        let mut results = node.outputs.iter().flat_map(Argument::names);
        let written = op_traits::written(node).and_then(|name| aliases.group(name));
        *live = results.any(|name| wanted.contains(name))
            || written.is_some_and(|group| memory.contains(&group));
        if *live {
            for name in node.inputs.iter().flat_map(|input| input.arg.names()) {
                wanted.insert(name);
                memory.extend(aliases.group(name));
            }
        }
    }
    live
}

/// The use of a program's output.
pub(super) enum OutputRole<'a> {
    /// A result for the caller.
    Result,
    /// The new elements of a weight or buffer of this name in the module.
    Weight(&'a str),
    /// The new elements of an input.
    Input(&'a str),
}

/// The role of the output at this index. Other formats list no roles: all their outputs are results.
pub(super) fn output_role(signature: &Signature, index: usize) -> Result<OutputRole<'_>, String> {
    Ok(match signature.output_specs.get(index) {
        None | Some(OutputSpec::UserOutput(_) | OutputSpec::LossOutput(_)) => OutputRole::Result,
        Some(
            OutputSpec::BufferMutation { buffer_name: name }
            | OutputSpec::ParameterMutation {
                parameter_name: name,
            },
        ) => OutputRole::Weight(name),
        Some(OutputSpec::UserInputMutation {
            user_input_name: name,
        }) => OutputRole::Input(name),
        Some(OutputSpec::GradientToParameter(_) | OutputSpec::GradientToUserInput(_)) => {
            return Err("is a gradient, which is not supported".into());
        }
        Some(OutputSpec::Token(_)) => return Err("is a token, which is not supported".into()),
    })
}
