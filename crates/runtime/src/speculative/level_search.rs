//! Grows a tree level by level from a draft's probabilities, as EAGLE-2 does: every level keeps the most likely nodes.

use super::proposer::Proposal;
use super::tree_proposal::TreeProposal;
use crate::RuntimeError;
use crate::score::LogSoftmax;

/// A level is not grown further if its most likely node is less likely than this.
const MIN_LIKELIHOOD: f32 = 0.08;

/// Tokens with their probabilities.
pub(super) type Children = Vec<(u32, f32)>;

/// The nodes of one level, which a draft computes in one forward.
#[derive(Debug, Default)]
pub(super) struct TreeLevel {
    /// Their numbers in the tree.
    nodes: Vec<u32>,
    /// Their tokens.
    pub(super) tokens: Vec<u32>,
    /// Their parents among the draft's candidates; `None` for children of the root.
    pub(super) parents: Vec<Option<u32>>,
    /// Their parents among the nodes of the level before; 0 for children of the root.
    pub(super) rows: Vec<usize>,
}

/// Grows `tree` from the children of its root. `expand` computes the nodes of a level and returns the children of each, or
/// `None` if there is no room for them.
pub(super) fn grow_tree(
    proposal: &Proposal<'_>,
    tree: &mut TreeProposal,
    root: Children,
    mut expand: impl FnMut(&TreeLevel) -> Result<Option<Vec<Children>>, RuntimeError>,
) -> Result<(), RuntimeError> {
    // The likelihood of each node, and its number among the draft's candidates.
    let mut likelihood: Vec<f32> = vec![1.0];
    let mut level = vec![(0u32, None, root)];
    let mut computed = 0u32;
    for depth in 1..=proposal.max_depth {
        let mut found: Vec<(f32, usize, u32, f32)> = vec![];
        for (row, (node, _, children)) in level.iter().enumerate() {
            let above = likelihood[*node as usize];
            let children = children.iter();
            found.extend(children.map(|(token, p)| (above * p, row, *token, *p)));
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        found.truncate(match proposal.top_k {
            1 => 1,
            k => (2 * k).min(proposal.max_candidates),
        });
        let mut next = TreeLevel::default();
        for (above, row, token, p) in found {
            let (parent, candidate, _) = &level[row];
            let node = tree.push(*parent, token, p);
            likelihood.resize(tree.len(), above);
            next.nodes.push(node);
            next.tokens.push(token);
            next.parents.push(*candidate);
            next.rows.push(row);
        }
        let best = next.nodes.first().map(|node| likelihood[*node as usize]);
        let unlikely = best.is_none_or(|best| best < MIN_LIKELIHOOD.max(proposal.min_likelihood));
        if unlikely || depth == proposal.max_depth {
            break;
        }
        // Nodes that cannot be among the best of the whole tree need no children.
        let Some(children) = expand(&next)? else {
            break;
        };
        let numbered = next.nodes.iter().zip(computed..).zip(children);
        level = numbered
            .map(|((node, candidate), children)| (*node, Some(candidate), children))
            .collect();
        computed += next.nodes.len() as u32;
    }
    Ok(())
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
        let proposal = Proposal {
            history: &[7],
            max_candidates: 9,
            max_depth: 3,
            top_k: 2,
            min_likelihood: 0.0,
            features: None,
        };
        let mut tree = TreeProposal::new(7);
        let root = vec![(1, 0.6), (2, 0.3)];
        let mut levels = vec![];
        grow_tree(&proposal, &mut tree, root, |level| {
            levels.push((
                level.tokens.clone(),
                level.parents.clone(),
                level.rows.clone(),
            ));
            let children = level
                .tokens
                .iter()
                .map(|t| vec![(10 * t, 0.9), (10 * t + 1, 0.1)]);
            Ok(Some(children.collect()))
        })
        .unwrap();
        assert_eq!(levels.len(), 2, "the deepest level is not computed");
        assert_eq!(levels[0], (vec![1, 2], vec![None, None], vec![0, 0]));
        let (tokens, parents, rows) = &levels[1];
        assert_eq!(tokens, &[10, 20, 11, 21]);
        assert_eq!(parents, &[Some(0), Some(1), Some(0), Some(1)]);
        assert_eq!(rows, &[0, 1, 0, 1]);
        assert_eq!(tree.max_depth(), 3);
    }
}
