//! Which tensors share memory in PyTorch, so that an op that writes into one of them changes all.

use std::collections::HashMap;

use graph::TensorId;

use super::call::Call;
use super::context::Pt2Lowering;
use super::{op_traits, write};
use crate::pt2::schema::{Argument, Graph, Node};

/// Tensors of a program that may share memory, by name.
#[derive(Default)]
pub(in crate::pt2) struct Aliases<'a> {
    groups: HashMap<&'a str, usize>,
    members: Vec<Vec<&'a str>>,
    /// The node that makes a view, or that writes into its operand, by the name of its result.
    makers: HashMap<&'a str, &'a Node>,
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

    /// The tensors that share memory with `name` and are read behind node `index`.
    fn read_later(&self, name: &str, index: usize) -> Vec<&'a str> {
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

impl<'a> Pt2Lowering<'a> {
    /// Gives `target`, into which node `index` wrote, its new elements, and all tensors that share its memory and are read
    /// later.
    pub(super) fn write_back(
        &mut self,
        target: &'a str,
        new: TensorId,
        index: usize,
    ) -> Result<(), String> {
        let mut stale = self.aliases.read_later(target, index);
        // Tensors that do not exist yet will be made from the new elements.
        stale.retain(|name| {
            self.values.contains_key(*name) || self.program.tensors.contains_key(*name)
        });
        stale.retain(|name| self.values.get(*name) != Some(&new));
        self.values.insert(target.to_owned(), new);
        let (mut name, mut new) = (target, new);
        // A damaged file may have views of themselves.
        let mut steps = self.aliases.makers.len();
        while !stale.is_empty() {
            let refused = || {
                format!(
                    "writes into {target}, which shares memory with {}: export with `run_decompositions()`",
                    stale[0]
                )
            };
            steps = steps.checked_sub(1).ok_or_else(refused)?;
            let node = *self.aliases.makers.get(name).ok_or_else(refused)?;
            let base = op_traits::first_name(node).ok_or_else(refused)?;
            let call = Call {
                node,
                op: node.op().to_owned(),
            };
            new = match op_traits::written(node) {
                Some(_) => new,
                None => write::replaced(self, &call, new)?.ok_or_else(refused)?,
            };
            self.values.insert(base.to_owned(), new);
            stale.retain(|other| *other != base);
            name = base;
        }
        Ok(())
    }
}
