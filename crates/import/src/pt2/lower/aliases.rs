//! Which tensors share memory in PyTorch, so that an op that writes into one of them changes all.

use std::collections::{HashMap, HashSet};

use super::op_traits;
use crate::pt2::schema::{Argument, Graph, Node};

/// Tensors of a program that may share memory, by name.
#[derive(Default)]
pub(in crate::pt2) struct Aliases<'a> {
    groups: HashMap<&'a str, usize>,
    members: Vec<Vec<&'a str>>,
    /// The node that makes a view, or that writes into its operand, by the name of its result.
    pub(super) makers: HashMap<&'a str, &'a Node>,
    /// The last node that reads a tensor; all nodes are before the program's outputs.
    last_read: HashMap<&'a str, usize>,
}

impl<'a> Aliases<'a> {
    pub(super) fn new(graph: &'a Graph) -> Aliases<'a> {
        let mut aliases = Aliases::default();
        for (index, node) in graph.nodes.iter().enumerate() {
            if op_traits::is_silent(node.op()) {
                continue;
            }
            for name in node.inputs.iter().flat_map(|input| input.arg.names()) {
                aliases.last_read.insert(name, index);
            }
            let written = op_traits::written(node).is_some();
            if !written && !op_traits::is_view(node.op()) {
                continue;
            }
            let Some(base) = op_traits::first_name(node) else {
                continue;
            };
            for result in node.outputs.iter().flat_map(Argument::names) {
                aliases.join(base, result);
                aliases.makers.insert(result, node);
            }
        }
        for name in graph.outputs.iter().flat_map(Argument::names) {
            aliases.last_read.insert(name, usize::MAX);
        }
        aliases
    }

    /// The group of a tensor that shares memory.
    pub(super) fn group(&self, name: &str) -> Option<usize> {
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

    /// The tensors that share memory with `name` and are read after node `index`.
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

/// Marks the nodes that the outputs depend on.
pub(in crate::pt2) fn live(graph: &Graph) -> Vec<bool> {
    let aliases = Aliases::new(graph);
    let mut wanted: HashSet<&str> = graph.outputs.iter().flat_map(Argument::names).collect();
    // Memory that is read later, under whatever name.
    let mut memory: HashSet<usize> = wanted.iter().filter_map(|n| aliases.group(n)).collect();
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
