//! Trees of candidates after the committed tokens of sequences in a pool.
//!
//! A candidate has a cell of its own in every cell space. It attends to the committed tokens of its sequence, its
//! ancestors and itself. Committing a path makes its cells part of the sequence and frees the others: no row moves,
//! because the position of a row is in the run list and not in its cell number.

use super::Cells;
use super::space::CellSpace;
use crate::candidate_tree::{CandidateTree, Node, StepTree};
use crate::plan::{AttentionSpans, push_run};
use crate::step::{Role, StepToken};
use crate::{CellRun, KvError, KvErrorKind, SeqId};

impl Cells {
    /// Declares candidates of a sequence as tokens of the next forward, after those of earlier calls. Each entry is the
    /// candidate's parent among all candidates of the sequence so far, or `None` for a candidate that follows the
    /// committed tokens. Other sequences may be declared before and after it.
    ///
    /// # Errors
    /// `StepPending` if the sequence is declared already, `Parent` for a parent that is no earlier candidate, and the
    /// errors of [`begin_step`](crate::SeqCache::begin_step).
    pub fn propose(&mut self, seq: SeqId, parents: &[Option<u32>]) -> Result<(), KvError> {
        if self.declared.iter().any(|(declared, _)| *declared == seq) {
            return Err(KvErrorKind::StepPending.into());
        }
        if parents.is_empty() {
            return Err(KvErrorKind::EmptyStep.into());
        }
        let declared = self.declared.iter().map(|(seq, _)| *seq);
        self.check_tokens(declared.chain(parents.iter().map(|_| seq)))?;
        let mut nodes = self.trees[seq as usize].nodes.clone();
        for &parent in parents {
            nodes.push(Node::behind(&nodes, parent)?);
        }
        let candidate = |parent: &Option<u32>| (seq, Role::Candidate { parent: *parent });
        self.declared.extend(parents.iter().map(candidate));
        Ok(())
    }

    /// Commits a chain of a sequence's candidates and removes the others. An empty chain removes all of them.
    ///
    /// # Errors
    /// `NotAChain` if a candidate is not a computed child of the one before it; `StepPending` if further candidates of the
    /// sequence are declared.
    pub fn commit_path(&mut self, seq: SeqId, accepted: &[u32]) -> Result<(), KvError> {
        let seq = self.check_seq(seq)?;
        self.check_undeclared(seq)?;
        let tree = &self.trees[seq as usize];
        let mut parent = None;
        for &node in accepted {
            let known = tree.nodes.get(node as usize);
            if known.is_none_or(|n| n.parent != parent) {
                return Err(KvErrorKind::NotAChain { node, parent }.into());
            }
            parent = Some(node);
        }
        self.end_tree(seq, accepted);
        Ok(())
    }

    /// Returns an error if removing the candidates of a sequence would change what the parents of declared ones mean.
    pub(super) fn check_undeclared(&self, seq: SeqId) -> Result<(), KvError> {
        let declared = self.declared.iter().any(|(other, _)| *other == seq);
        match declared && self.candidates(seq) > 0 {
            true => Err(KvErrorKind::StepPending.into()),
            false => Ok(()),
        }
    }

    /// Makes a chain of candidates part of the sequence and removes the others.
    fn end_tree(&mut self, seq: SeqId, accepted: &[u32]) {
        let base = self.trees[seq as usize].base;
        for space in &mut self.spaces {
            space.commit_candidates(seq, base, accepted);
        }
        self.trees[seq as usize] = CandidateTree::default();
    }

    /// Candidates of a sequence that a forward has computed since the last commit.
    pub fn candidates(&self, seq: SeqId) -> u32 {
        self.trees.get(seq as usize).map_or(0, CandidateTree::len)
    }

    /// The cells of a sequence's candidates in a layer.
    pub fn candidate_cells(&self, layer: usize, seq: SeqId) -> Result<&[u32], KvError> {
        let seq = self.check_seq(seq)?;
        Ok(&self.spaces[self.space_of(layer)].sequences[seq as usize].candidates)
    }

    /// Removes the candidates of a sequence.
    pub(super) fn drop_candidates(&mut self, seq: SeqId) {
        if self.candidates(seq) > 0 {
            self.end_tree(seq, &[]);
        }
    }

    /// Checks the candidates of a step and returns the trees after it, in the order of their first tokens.
    pub(super) fn step_trees(&self, tokens: &[StepToken]) -> Result<Vec<StepTree>, KvError> {
        let mut trees: Vec<StepTree> = vec![];
        for (index, token) in tokens.iter().enumerate() {
            let known = trees.iter().position(|tree| tree.seq == token.seq);
            let Role::Candidate { parent } = token.role else {
                if known.is_some() {
                    return Err(KvErrorKind::MixedStep { index }.into());
                }
                self.trees[token.seq as usize].check_empty()?;
                continue;
            };
            let mut earlier = tokens[..index].iter();
            if known.is_none() && earlier.any(|other| other.seq == token.seq) {
                return Err(KvErrorKind::MixedStep { index }.into());
            }
            let known = known.unwrap_or_else(|| {
                trees.push(self.begin_tree(token));
                trees.len() - 1
            });
            let tree = &mut trees[known].tree;
            let node = Node::behind(&tree.nodes, parent)?;
            token.check_position(index, tree.base + node.depth)?;
            tree.nodes.push(node);
        }
        Ok(trees)
    }

    /// The tree that the first candidate of a sequence in a step continues. An empty sequence may begin anywhere.
    fn begin_tree(&self, first: &StepToken) -> StepTree {
        let mut tree = self.trees[first.seq as usize].clone();
        if tree.nodes.is_empty() {
            let next = self.spaces[0].sequences[first.seq as usize].next();
            let position = u32::try_from(first.position).unwrap_or(0);
            tree.base = next.unwrap_or(position.min(i32::MAX as u32 - 1));
        }
        StepTree {
            seq: first.seq,
            computed: tree.nodes.len(),
            tree,
        }
    }

    /// Stores the trees of a step that succeeded. The spaces have the cells already.
    pub(super) fn commit_trees(&mut self, trees: &[StepTree]) {
        for step in trees {
            self.trees[step.seq as usize].clone_from(&step.tree);
        }
    }
}

impl StepTree {
    /// The run list of every new candidate in a cell space. A path from the committed tokens to a leaf is one list,
    /// which all its candidates share: a chain is planned like a prefill. `cells` are those of the new candidates.
    pub(super) fn open_lists(
        &self,
        space: &CellSpace,
        cells: &[u32],
        visible: &mut AttentionSpans,
    ) -> Vec<u32> {
        let nodes = &self.tree.nodes;
        let sequence = &space.sequences[self.seq as usize];
        let cell_of = |node: usize| match node.checked_sub(self.computed) {
            Some(new) => cells[new],
            None => sequence.candidates[node],
        };
        let mut lists = vec![u32::MAX; nodes.len() - self.computed];
        let mut chain = vec![];
        // A candidate comes after its parent, so the last one without a list is a leaf.
        for leaf in (self.computed..nodes.len()).rev() {
            if lists[leaf - self.computed] != u32::MAX {
                continue;
            }
            chain.clear();
            let mut at = Some(leaf as u32);
            while let Some(node) = at {
                chain.push(node as usize);
                at = nodes[node as usize].parent;
            }
            let list = visible.open_list();
            let runs = space.seen_runs(self.seq, self.tree.base);
            runs.for_each(|run| visible.push_run(run));
            for (position, &node) in (self.tree.base..).zip(chain.iter().rev()) {
                let (cell, len) = (cell_of(node), 1);
                visible.push_run(CellRun {
                    position,
                    cell,
                    len,
                });
                if let Some(new) = node.checked_sub(self.computed) {
                    lists[new] = match lists[new] {
                        u32::MAX => list,
                        known => known,
                    };
                }
            }
        }
        lists
    }
}

impl CellSpace {
    /// Appends the cell of a candidate.
    pub(super) fn append_candidate(&mut self, seq: SeqId, cell: u32) {
        self.retain(cell..cell + 1);
        self.sequences[seq as usize].candidates.push(cell);
    }

    /// Makes the cells of accepted candidates part of the sequence, from position `base` on, and frees the others.
    fn commit_candidates(&mut self, seq: SeqId, base: u32, accepted: &[u32]) {
        if self.policy().is_some() && !accepted.is_empty() {
            self.replace_live(seq, false);
        }
        // Of a path's states only the last one goes on.
        let (first, accepted) = match accepted.split_last() {
            Some((last, before)) if self.policy().is_some() => {
                (base + before.len() as u32, std::slice::from_ref(last))
            }
            _ => (base, accepted),
        };
        let sequence = &mut self.sequences[seq as usize];
        let cells = std::mem::take(&mut sequence.candidates);
        for (position, node) in (first..).zip(accepted) {
            let (cell, len) = (cells[*node as usize], 1);
            push_run(
                &mut sequence.runs,
                CellRun {
                    position,
                    cell,
                    len,
                },
            );
            sequence.len += 1;
        }
        let rejected = (0..).zip(cells);
        let rejected = rejected.filter(|(node, _)| !accepted.contains(node));
        for (_, cell) in rejected {
            self.release(cell..cell + 1);
        }
        self.lower_high_water();
    }
}
