//! `RadixIndex`: finds the longest stored prefix of a list of tokens.

use crate::common_prefix_len;
use std::collections::HashMap;

/// A radix tree over token ids. Every owner has one list of tokens, which ends at a node of the tree.
#[derive(Debug, Default)]
pub(crate) struct RadixIndex {
    root: Node,
}

#[derive(Debug, Default)]
struct Node {
    /// The tokens between the parent and this node; empty only at the root.
    edge: Vec<u32>,
    /// Children by the first token of their edge.
    children: HashMap<u32, Node>,
    /// The owners whose tokens end here.
    owners: Vec<u32>,
}

/// The longest common prefix of some tokens with the stored lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RadixMatch {
    /// Its length.
    pub(crate) len: usize,
    /// The owners whose tokens begin with it. Empty only if the index is empty.
    pub(crate) owners: Vec<u32>,
}

impl RadixIndex {
    /// Adds an owner with its tokens.
    pub(crate) fn insert(&mut self, tokens: &[u32], owner: u32) {
        self.root.insert(tokens, owner);
    }

    /// Removes an owner that was inserted with these tokens.
    pub(crate) fn remove(&mut self, tokens: &[u32], owner: u32) {
        self.root.remove(tokens, owner);
    }

    /// The longest common prefix of `tokens` with any stored list.
    pub(crate) fn find(&self, tokens: &[u32]) -> RadixMatch {
        let mut node = &self.root;
        let mut len = 0;
        while let Some(child) = tokens.get(len).and_then(|token| node.children.get(token)) {
            let common = common_prefix_len(&child.edge, &tokens[len..]);
            len += common;
            node = child;
            if common < child.edge.len() {
                break;
            }
        }
        let mut owners = vec![];
        node.collect(&mut owners);
        RadixMatch { len, owners }
    }
}

impl Node {
    fn insert(&mut self, tokens: &[u32], owner: u32) {
        let Some(first) = tokens.first() else {
            self.owners.push(owner);
            return;
        };
        let Some(child) = self.children.get_mut(first) else {
            let leaf = Node {
                edge: tokens.to_vec(),
                owners: vec![owner],
                ..Node::default()
            };
            self.children.insert(*first, leaf);
            return;
        };
        let common = common_prefix_len(&child.edge, tokens);
        if common < child.edge.len() {
            child.split(common);
        }
        child.insert(&tokens[common..], owner);
    }

    /// Divides the edge after its first `at` tokens: a new child gets the rest and everything below.
    fn split(&mut self, at: usize) {
        let rest = self.edge.split_off(at);
        let first = rest[0];
        let below = Node {
            edge: rest,
            children: std::mem::take(&mut self.children),
            owners: std::mem::take(&mut self.owners),
        };
        self.children.insert(first, below);
    }

    fn remove(&mut self, tokens: &[u32], owner: u32) {
        let Some(first) = tokens.first() else {
            self.owners.retain(|other| *other != owner);
            return;
        };
        let Some(child) = self.children.get_mut(first) else {
            return;
        };
        if !tokens.starts_with(&child.edge) {
            return;
        }
        child.remove(&tokens[child.edge.len()..], owner);
        if !child.owners.is_empty() {
            return;
        }
        match child.children.len() {
            0 => _ = self.children.remove(first),
            1 => child.merge_only_child(),
            _ => {}
        }
    }

    /// Appends the only child to this node, which has no owner.
    fn merge_only_child(&mut self) {
        let only = std::mem::take(&mut self.children).into_values().next();
        let only = only.expect("a node with one child");
        self.edge.extend(only.edge);
        self.children = only.children;
        self.owners = only.owners;
    }

    /// Appends the owners of this node and of all nodes below it.
    fn collect(&self, owners: &mut Vec<u32>) {
        owners.extend(&self.owners);
        self.children
            .values()
            .for_each(|child| child.collect(owners));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The same, from lists compared one by one.
    fn find_plainly(lists: &BTreeMap<u32, Vec<u32>>, tokens: &[u32]) -> (usize, Vec<u32>) {
        let common = |list: &Vec<u32>| common_prefix_len(list, tokens);
        let len = lists.values().map(common).max().unwrap_or(0);
        let owners = lists.iter().filter(|(_, list)| common(list) == len);
        (len, owners.map(|(owner, _)| *owner).collect())
    }

    /// Numbers from a linear congruential generator.
    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (*state >> 33) % below
    }

    #[test]
    fn finds_what_a_comparison_of_all_lists_finds() {
        let mut state = 7;
        for _ in 0..200 {
            let mut index = RadixIndex::default();
            let mut lists: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            for _ in 0..60 {
                let mut tokens = |longest| -> Vec<u32> {
                    let len = random(&mut state, longest);
                    (0..len).map(|_| random(&mut state, 3) as u32).collect()
                };
                let (new, asked) = (tokens(9), tokens(11));
                let owner = random(&mut state, 12) as u32;
                match lists.remove(&owner) {
                    Some(old) => index.remove(&old, owner),
                    None => {
                        index.insert(&new, owner);
                        lists.insert(owner, new);
                    }
                }
                let mut found = index.find(&asked);
                found.owners.sort_unstable();
                assert_eq!((found.len, found.owners), find_plainly(&lists, &asked));
            }
        }
    }

    #[test]
    fn an_emptied_index_has_no_nodes() {
        let mut index = RadixIndex::default();
        for (owner, list) in [(1, &[1, 2, 3][..]), (2, &[1, 2, 4]), (3, &[1])] {
            index.insert(list, owner);
        }
        index.remove(&[1, 2, 3], 1);
        index.remove(&[1], 3);
        let only = &index.root.children[&1];
        assert_eq!(
            (only.edge.as_slice(), only.children.len()),
            (&[1, 2, 4][..], 0)
        );
        index.remove(&[1, 2, 4], 2);
        assert!(index.root.children.is_empty());
    }
}
