//! `TreeProposal`: a tree of candidate tokens, and its verification.

/// A tree of tokens that may continue a sequence. Node 0 is the root: the last token of the sequence, which is certain
/// and has no keys and values yet. A parent comes before its children.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreeProposal {
    tokens: Vec<u32>,
    parents: Vec<Option<u32>>,
    depths: Vec<u32>,
    /// The proposer's estimate that a node is accepted if its parent is.
    probabilities: Vec<f32>,
}

impl TreeProposal {
    /// A tree with nothing but its root.
    pub fn new(root: u32) -> TreeProposal {
        TreeProposal {
            tokens: vec![root],
            parents: vec![None],
            depths: vec![0],
            probabilities: vec![1.0],
        }
    }

    /// Appends a child and returns its number. A parent that has the token already keeps it, with the higher probability.
    ///
    /// # Panics
    /// If there is no such parent.
    pub fn push(&mut self, parent: u32, token: u32, probability: f32) -> u32 {
        if let Some(known) = self.child(parent, token) {
            let old = &mut self.probabilities[known as usize];
            *old = old.max(probability);
            return known;
        }
        let depth = self.depths[parent as usize] + 1;
        self.tokens.push(token);
        self.parents.push(Some(parent));
        self.depths.push(depth);
        self.probabilities.push(probability);
        self.tokens.len() as u32 - 1
    }

    /// The number of nodes, the root included.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no node at all; a tree has at least its root.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The tokens of all nodes.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The parents of all nodes.
    pub fn parents(&self) -> &[Option<u32>] {
        &self.parents
    }

    /// The depths of all nodes; the root has 0.
    pub fn depths(&self) -> &[u32] {
        &self.depths
    }

    /// The estimates that nodes are accepted if their parents are.
    pub fn probabilities(&self) -> &[f32] {
        &self.probabilities
    }

    /// The depth of the deepest node.
    pub fn max_depth(&self) -> u32 {
        self.depths.iter().copied().max().unwrap_or(0)
    }

    /// The child of a node that has this token.
    pub fn child(&self, parent: u32, token: u32) -> Option<u32> {
        self.children(parent)
            .find(|node| self.tokens[*node as usize] == token)
    }

    /// The children of a node.
    pub fn children(&self, parent: u32) -> impl Iterator<Item = u32> + '_ {
        let nodes = (parent + 1..).zip(&self.parents[parent as usize + 1..]);
        nodes
            .filter(move |(_, of)| **of == Some(parent))
            .map(|(node, _)| node)
    }

    /// The estimate that each node is accepted, given one for every node that it is accepted if its parent is.
    pub(crate) fn cumulative(&self, given_parent: &[f32]) -> Vec<f32> {
        let mut all: Vec<f32> = Vec::with_capacity(self.len());
        for (parent, p) in self.parents.iter().zip(given_parent) {
            all.push(parent.map_or(1.0, |parent| all[parent as usize] * p));
        }
        all
    }

    /// The tree of the `candidates` most likely nodes below the root, no deeper than `max_depth`. `cumulative` is the
    /// likelihood of each node and never rises from a parent to its child. A path of first children has consecutive
    /// numbers, so that the most likely path gets consecutive cells.
    pub(crate) fn select(
        &self,
        candidates: usize,
        max_depth: usize,
        cumulative: &[f32],
    ) -> TreeProposal {
        let mut order: Vec<usize> = (1..self.len())
            .filter(|node| self.depths[*node] as usize <= max_depth)
            .collect();
        // Among equals, the parent comes first: it has the lower number.
        order.sort_by(|a, b| cumulative[*b].total_cmp(&cumulative[*a]).then(a.cmp(b)));
        let mut kept = vec![false; self.len()];
        kept[0] = true;
        for node in order.into_iter().take(candidates) {
            kept[node] = true;
        }
        let mut selected = TreeProposal::new(self.tokens[0]);
        let mut stack = vec![(0u32, 0u32)];
        while let Some((old, new)) = stack.pop() {
            let new = match old {
                0 => 0,
                _ => {
                    let (token, p) = (self.tokens[old as usize], self.probabilities[old as usize]);
                    selected.push(new, token, p)
                }
            };
            let mut children: Vec<u32> = self.children(old).filter(|c| kept[*c as usize]).collect();
            let likely = |a: &u32, b: &u32| {
                let [a, b] = [a, b].map(|node| cumulative[*node as usize]);
                a.total_cmp(&b)
            };
            children.sort_by(likely);
            stack.extend(children.into_iter().map(|child| (child, new)));
        }
        selected
    }
}

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyResult {
    /// The accepted nodes: the root, and a chain below it.
    pub accepted: Vec<u32>,
    /// The token after the chain, which the target chose. It is the root of the next round.
    pub bonus: u32,
}

/// Descends from the root. `choose` returns the token that the target chooses after a node, and whether to stop there. A
/// child with that token is accepted; without one, the token is the bonus.
///
/// The target's own choice decides at every node, so the result has the target's distribution whatever was proposed: for a
/// proposal that is not random, this is rejection sampling.
///
/// # Errors
/// Those of `choose`.
pub fn verify_tree<E>(
    tree: &TreeProposal,
    mut choose: impl FnMut(u32) -> Result<(u32, bool), E>,
) -> Result<VerifyResult, E> {
    let mut accepted = vec![0];
    let mut node = 0;
    loop {
        let (token, stop) = choose(node)?;
        match tree.child(node, token).filter(|_| !stop) {
            Some(child) => {
                accepted.push(child);
                node = child;
            }
            None => {
                return Ok(VerifyResult {
                    accepted,
                    bonus: token,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// root 7 with children 1 (p 0.6) and 2 (0.3); 1 has 3 (0.5) and 4 (0.4); 2 has 5 (0.9).
    fn tree() -> TreeProposal {
        let mut tree = TreeProposal::new(7);
        let two = tree.push(0, 2, 0.3);
        let one = tree.push(0, 1, 0.6);
        tree.push(two, 5, 0.9);
        tree.push(one, 4, 0.4);
        tree.push(one, 3, 0.5);
        tree
    }

    #[test]
    fn the_most_likely_nodes_are_kept_and_likely_paths_are_consecutive() {
        let tree = tree();
        let cumulative = tree.cumulative(tree.probabilities());
        for (keep, depth, tokens, parents) in [
            (0, 9, &[7][..], &[None][..]),
            (1, 9, &[7, 1], &[None, Some(0)]),
            (3, 9, &[7, 1, 3, 2], &[None, Some(0), Some(1), Some(0)]),
            (
                4,
                9,
                &[7, 1, 3, 2, 5],
                &[None, Some(0), Some(1), Some(0), Some(3)],
            ),
            (9, 1, &[7, 1, 2], &[None, Some(0), Some(0)]),
        ] {
            let found = tree.select(keep, depth, &cumulative);
            assert_eq!((found.tokens(), found.parents()), (tokens, parents));
        }
        assert_eq!(tree.select(9, 9, &cumulative).len(), tree.len());
    }

    #[test]
    fn verification_follows_the_target() {
        let tree = tree();
        for (choices, accepted, bonus) in [
            (&[9][..], &[0][..], 9),
            (&[1, 3, 8], &[0, 2, 5], 8),
            (&[2, 6], &[0, 1], 6),
        ] {
            let mut choices = choices.iter();
            let choose = |_| Ok::<_, ()>((*choices.next().unwrap(), false));
            let found = verify_tree(&tree, choose).unwrap();
            assert_eq!((&found.accepted[..], found.bonus), (accepted, bonus));
        }
        let stopped = verify_tree(&tree, |_| Ok::<_, ()>((1, true))).unwrap();
        assert_eq!((&stopped.accepted[..], stopped.bonus), (&[0][..], 1));
    }

    #[test]
    fn a_token_is_proposed_once_by_a_parent() {
        let mut tree = tree();
        let len = tree.len();
        assert_eq!(tree.push(0, 1, 0.9), 2);
        assert_eq!((tree.len(), tree.probabilities()[2]), (len, 0.9));
    }
}
