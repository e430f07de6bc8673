//! Grows a tree level by level from a draft's probabilities, as EAGLE-2 does: every level keeps the most likely nodes.

use super::proposal::Proposal;
use super::tree_proposal::TreeProposal;
use crate::score::LogSoftmax;

/// A level is not grown further if its most likely node is less likely than this.
const MIN_LIKELIHOOD: f32 = 0.08;

/// Tokens with their probabilities.
pub(super) type Children = Vec<(u32, f32)>;

/// The nodes of one level of a tree, which a draft computes in one forward.
#[derive(Debug, Default, PartialEq)]
pub(super) struct TreeLevel {
    /// Their tokens.
    pub(super) tokens: Vec<u32>,
    /// Their parents among the draft's candidates; `None` for children of the root.
    pub(super) parents: Vec<Option<u32>>,
    /// Their parents among the nodes of the level before; 0 for children of the root.
    pub(super) rows: Vec<usize>,
    /// Their depth; 1 for children of the root.
    pub(super) depth: usize,
}

/// A tree that grows.
pub(super) struct TreeGrowth<'p> {
    proposal: &'p Proposal<'p>,
    tree: TreeProposal,
    /// The likelihood of each node.
    likelihood: Vec<f32>,
    /// The nodes of the last level, and their numbers among the draft's candidates.
    level: Vec<(u32, Option<u32>)>,
    /// The children of those nodes, once they are computed.
    children: Vec<Children>,
    depth: usize,
    computed: usize,
}

impl<'p> TreeGrowth<'p> {
    /// A tree that grows from the children of its root.
    pub(super) fn new(proposal: &'p Proposal<'p>, root: Children) -> TreeGrowth<'p> {
        TreeGrowth {
            proposal,
            tree: TreeProposal::new(proposal.root()),
            likelihood: vec![1.0],
            level: vec![(0, None)],
            children: vec![root],
            depth: 0,
            computed: 0,
        }
    }

    /// Adds the most likely children of the last level to the tree. Returns them, for the draft to compute their children; `None`
    /// if the tree has grown enough, or if the children of the last level were not computed.
    pub(super) fn next_level(&mut self) -> Option<TreeLevel> {
        let proposal = self.proposal;
        let children = std::mem::take(&mut self.children);
        let mut found: Vec<(f32, usize, u32, f32)> = vec![];
        for (row, ((node, _), children)) in self.level.iter().zip(children).enumerate() {
            let above = self.likelihood[*node as usize];
            let children = children.into_iter();
            found.extend(children.map(|(token, p)| (above * p, row, token, p)));
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        found.truncate(match proposal.top_k {
            1 => 1,
            k => (2 * k).min(proposal.max_candidates),
        });
        let best = found.first()?.0;
        self.depth += 1;
        let mut next = TreeLevel {
            depth: self.depth,
            ..TreeLevel::default()
        };
        let mut level = vec![];
        for (above, row, token, p) in found {
            let (parent, candidate) = self.level[row];
            level.push((self.tree.push(parent, token, p), Some(self.computed as u32)));
            self.computed += 1;
            self.likelihood.push(above);
            next.tokens.push(token);
            next.parents.push(candidate);
            next.rows.push(row);
        }
        self.level = level;
        let unlikely = best < MIN_LIKELIHOOD.max(proposal.min_likelihood);
        (!unlikely && self.depth < proposal.max_depth).then_some(next)
    }

    /// The number of candidates of the draft, with those of the last level.
    pub(super) fn computed(&self) -> usize {
        self.computed
    }

    /// Sets the children of the nodes of the last level.
    pub(super) fn add_children(&mut self, children: Vec<Children>) {
        self.children = children;
    }

    /// The tree.
    pub(super) fn into_tree(self) -> TreeProposal {
        self.tree
    }
}

/// The `k` most likely tokens with their probabilities.
pub(super) fn most_likely(logits: &[f32], k: usize) -> Children {
    let softmax = LogSoftmax::new(logits);
    let mut best: Vec<(u32, f32)> = vec![];
    for (id, &logit) in (0..).zip(logits) {
        if best.len() == k && logit <= best[k - 1].1 {
            continue;
        }
        let at = best.partition_point(|(_, other)| *other >= logit);
        best.insert(at, (id, logit));
        best.truncate(k);
    }
    best.into_iter()
        .map(|(id, logit)| (id, softmax.of(logit).exp() as f32))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROPOSAL: Proposal<'_> = Proposal {
        history: &[7],
        max_candidates: 9,
        max_depth: 3,
        top_k: 2,
        min_likelihood: 0.0,
        features: None,
    };

    #[test]
    fn the_most_likely_tokens_come_first() {
        let found = most_likely(&[0.0, 2.0, 1.0, 2.0], 3);
        let ids: Vec<u32> = found.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 3, 2]);
        let total: f64 = [0.0f64, 2.0, 1.0, 2.0].iter().map(|l| l.exp()).sum();
        assert!((f64::from(found[0].1) - 2.0f64.exp() / total).abs() < 1e-6);
    }

    #[test]
    fn levels_keep_the_most_likely_nodes() {
        let mut growth = TreeGrowth::new(&PROPOSAL, vec![(1, 0.6), (2, 0.3)]);
        let children = |level: &TreeLevel| {
            let tokens = level.tokens.iter();
            let children = tokens.map(|t| vec![(10 * t, 0.9), (10 * t + 1, 0.1)]);
            children.collect::<Vec<_>>()
        };
        let level = growth.next_level().unwrap();
        assert_eq!((level.depth, &level.tokens[..]), (1, &[1, 2][..]));
        assert_eq!(
            (&level.parents, &level.rows),
            (&vec![None, None], &vec![0, 0])
        );
        growth.add_children(children(&level));
        let level = growth.next_level().unwrap();
        assert_eq!((level.depth, &level.tokens[..]), (2, &[10, 20, 11, 21][..]));
        assert_eq!(level.parents, [Some(0), Some(1), Some(0), Some(1)]);
        assert_eq!(level.rows, [0, 1, 0, 1]);
        growth.add_children(children(&level));
        assert_eq!(
            growth.next_level(),
            None,
            "the deepest level is not computed"
        );
        assert_eq!(growth.into_tree().max_depth(), 3);
    }

    #[test]
    fn a_level_that_was_not_computed_is_the_last_one() {
        let mut growth = TreeGrowth::new(&PROPOSAL, vec![(1, 0.6)]);
        assert!(growth.next_level().is_some());
        assert_eq!(growth.next_level(), None);
        assert_eq!(growth.into_tree().len(), 2);
        let mut none = TreeGrowth::new(&PROPOSAL, vec![]);
        assert_eq!(none.next_level(), None);
        assert_eq!(none.into_tree().len(), 1);
    }
}
