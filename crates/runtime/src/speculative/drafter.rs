//! `Drafter`: a second model that proposes candidates for all sequences of a target.

use super::draft::DraftModel;
use super::head::HeadDraft;
use super::level_search::{Children, TreeGrowth, TreeLevel};
use super::options::SpecType;
use super::proposal::Proposal;
use super::tree_proposal::TreeProposal;
use crate::options::RunnerOptions;
use crate::{Model, RuntimeError, RuntimeErrorKind};
use backend::Backend;
use import::{Artifact, FeatureLayers, HeadKind};
use kv::SeqId;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A second model that proposes candidates: a smaller model with the same vocabulary, or a head on the target's features.
///
/// All sequences of a target share it, each with a sequence of its own in the draft's cache. The trees of one round grow
/// together: each level is one forward for all of them.
#[derive(Clone)]
pub struct Drafter {
    state: Arc<Mutex<DrafterState>>,
    kind: SpecType,
}

struct DrafterState {
    draft: Box<dyn Draft>,
    /// The sequences of the draft that speculators use.
    taken: Vec<SeqId>,
    max_sequences: usize,
    forwards: usize,
}

/// The rows of one sequence in a forward of the draft.
pub(super) struct DraftPart<'a, T> {
    pub(super) seq: SeqId,
    pub(super) proposal: &'a Proposal<'a>,
    /// Positions of the history, or the nodes of a level.
    pub(super) rows: T,
}

/// The forwards of a draft. A sequence keeps the candidates of a round until the next round.
pub(super) trait Draft: Send {
    /// The maximum number of rows of a forward.
    fn max_step_tokens(&self) -> usize;

    /// Whether `n` more rows fit in the cache.
    fn can_extend(&self, n: usize) -> Result<bool, RuntimeError>;

    /// Commits the candidates of a sequence that a history continues with, and removes whatever differs from it. Returns the
    /// positions to feed, the last of which gives the children of the root; `None` if the sequence cannot be drafted for.
    fn follow(
        &mut self,
        seq: SeqId,
        proposal: &Proposal<'_>,
    ) -> Result<Option<Range<usize>>, RuntimeError>;

    /// Feeds positions of histories in one forward. Returns the children of the last position of each part; those of a
    /// position before the root are not used.
    fn feed(
        &mut self,
        parts: &[DraftPart<'_, Range<usize>>],
    ) -> Result<Vec<Children>, RuntimeError>;

    /// Computes a level of each tree in one forward. Returns the children of its nodes.
    fn expand(
        &mut self,
        parts: &[DraftPart<'_, TreeLevel>],
    ) -> Result<Vec<Vec<Children>>, RuntimeError>;

    /// The position of the first token whose features a sequence still needs.
    fn features_from(&self, _: SeqId) -> usize {
        usize::MAX
    }

    /// Removes a sequence.
    fn remove(&mut self, seq: SeqId);
}

impl Drafter {
    /// Loads a draft for a target: a head, or a smaller model. Its cache has the size of the target's.
    ///
    /// # Errors
    /// `InvalidOptions` if the draft does not fit the target. A token must have the same number and the same text in a smaller
    /// model; hidden size, vocabulary and layers must be those of a head, and the target must have been opened with its
    /// [`feature_layers`](Drafter::feature_layers).
    pub fn new(
        draft: &Model,
        target: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        sequences: usize,
    ) -> Result<Drafter, RuntimeError> {
        let kind = Drafter::kind_of(draft.artifact());
        let draft: Box<dyn Draft> = match kind {
            SpecType::Draft => {
                Box::new(DraftModel::new(draft, target, backend, options, sequences)?)
            }
            _ => Box::new(HeadDraft::new(draft, target, backend, options, sequences)?),
        };
        let state = DrafterState {
            draft,
            taken: vec![],
            max_sequences: sequences,
            forwards: 0,
        };
        Ok(Drafter {
            state: Arc::new(Mutex::new(state)),
            kind,
        })
    }

    /// The layers of the target whose inputs a head needs; `None` if the model is no head.
    pub fn feature_layers(head: &Artifact) -> Option<&FeatureLayers> {
        Some(&head.draft_head.as_ref()?.target_layers)
    }

    /// The kind of speculation that a model is a draft for.
    pub fn kind_of(draft: &Artifact) -> SpecType {
        match draft.draft_head.as_ref().map(|head| head.kind) {
            None => SpecType::Draft,
            Some(HeadKind::Eagle3) => SpecType::Eagle3,
            Some(HeadKind::Mtp | HeadKind::Assistant) => SpecType::Mtp,
        }
    }

    /// The kind of speculation that the draft is for.
    pub fn kind(&self) -> SpecType {
        self.kind
    }

    /// Whether the draft is a head, which needs the target's features.
    pub fn needs_features(&self) -> bool {
        self.kind != SpecType::Draft
    }

    /// The number of forwards so far. One forward computes rows of many sequences.
    pub fn forwards(&self) -> usize {
        self.lock().forwards
    }

    fn lock(&self) -> MutexGuard<'_, DrafterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sequence of the draft for one sequence of the target.
    pub(super) fn sequence(&self) -> Result<DraftSequence, RuntimeError> {
        let mut state = self.lock();
        let free = (0..state.max_sequences as u32).find(|seq| !state.taken.contains(seq));
        let seq = free.ok_or_else(|| {
            let reason = format!("the draft has {} sequences", state.max_sequences);
            RuntimeErrorKind::InvalidOptions(reason)
        })?;
        state.taken.push(seq);
        let drafter = self.clone();
        Ok(DraftSequence { drafter, seq })
    }

    /// Proposes a tree for each of these sequences. If a forward fails for several sequences, they are proposed for one by
    /// one, so that only those that fail alone get the error.
    pub(super) fn propose(
        &self,
        asked: &[(SeqId, &Proposal<'_>)],
    ) -> Vec<Result<TreeProposal, RuntimeError>> {
        let mut state = self.lock();
        match state.propose(asked) {
            Ok(trees) => trees.into_iter().map(Ok).collect(),
            Err(error) if asked.len() == 1 => vec![Err(error)],
            Err(_) => {
                let alone = asked.chunks(1).map(|one| state.propose(one));
                alone.map(|trees| Ok(trees?.remove(0))).collect()
            }
        }
    }
}

impl DrafterState {
    /// Grows a tree for each of these sequences: one forward for the tokens that the draft lacks, and one for each further
    /// level. What does not fit in one step takes several.
    fn propose(
        &mut self,
        asked: &[(SeqId, &Proposal<'_>)],
    ) -> Result<Vec<TreeProposal>, RuntimeError> {
        let roots = self.feed(asked)?;
        let growths = asked.iter().zip(roots);
        let mut growths: Vec<TreeGrowth<'_>> = growths
            .map(|((_, proposal), root)| TreeGrowth::new(proposal, root))
            .collect();
        let most = self.draft.max_step_tokens();
        loop {
            let mut levels = vec![];
            let mut rows = 0;
            for (index, growth) in growths.iter_mut().enumerate() {
                let Some(level) = growth.next_level() else {
                    continue;
                };
                let nodes = level.tokens.len();
                // Layers with a window have room for as many candidates of a sequence as a step has tokens.
                if growth.computed() <= most && self.draft.can_extend(rows + nodes)? {
                    rows += nodes;
                    levels.push((index, level));
                }
            }
            if levels.is_empty() {
                break;
            }
            while !levels.is_empty() {
                let mut rows = 0;
                let fits = levels.iter().take_while(|(_, level)| {
                    rows += level.tokens.len();
                    rows <= most
                });
                let step = levels.drain(..fits.count());
                let (indices, parts): (Vec<usize>, Vec<_>) = step
                    .map(|(index, rows)| {
                        let (seq, proposal) = asked[index];
                        let part = DraftPart {
                            seq,
                            proposal,
                            rows,
                        };
                        (index, part)
                    })
                    .unzip();
                self.forwards += 1;
                let children = self.draft.expand(&parts)?;
                for (index, children) in indices.into_iter().zip(children) {
                    growths[index].add_children(children);
                }
            }
        }
        Ok(growths.into_iter().map(TreeGrowth::into_tree).collect())
    }

    /// Makes the sequences hold their histories. Returns the children of the roots; none of a sequence that has no room.
    fn feed(&mut self, asked: &[(SeqId, &Proposal<'_>)]) -> Result<Vec<Children>, RuntimeError> {
        let mut roots = vec![vec![]; asked.len()];
        let mut missing = vec![];
        let mut rows = 0;
        for (index, (seq, proposal)) in asked.iter().enumerate() {
            let positions = self.draft.follow(*seq, proposal)?;
            let Some(positions) = positions.filter(|positions| !positions.is_empty()) else {
                continue;
            };
            if self.draft.can_extend(rows + positions.len())? {
                rows += positions.len();
                missing.push((index, positions));
            }
        }
        while !missing.is_empty() {
            let mut room = self.draft.max_step_tokens();
            let (mut indices, mut parts) = (vec![], vec![]);
            for (index, positions) in &mut missing {
                let end = positions.end.min(positions.start + room);
                let rows = std::mem::replace(&mut positions.start, end)..end;
                if rows.is_empty() {
                    break;
                }
                room -= rows.len();
                let (seq, proposal) = asked[*index];
                indices.push(*index);
                parts.push(DraftPart {
                    seq,
                    proposal,
                    rows,
                });
            }
            missing.retain(|(_, positions)| !positions.is_empty());
            self.forwards += 1;
            let children = self.draft.feed(&parts)?;
            for (index, children) in indices.into_iter().zip(children) {
                roots[index] = children;
            }
        }
        Ok(roots)
    }
}

/// A sequence of a draft. Dropping it removes its tokens.
pub(super) struct DraftSequence {
    drafter: Drafter,
    seq: SeqId,
}

impl DraftSequence {
    pub(super) fn drafter(&self) -> &Drafter {
        &self.drafter
    }

    pub(super) fn seq(&self) -> SeqId {
        self.seq
    }

    /// Whether it is a sequence of this draft.
    pub(super) fn is_of(&self, drafter: &Drafter) -> bool {
        Arc::ptr_eq(&self.drafter.state, &drafter.state)
    }

    /// The position of the first token whose features are still needed.
    pub(super) fn features_from(&self) -> usize {
        self.drafter.lock().draft.features_from(self.seq)
    }
}

impl Drop for DraftSequence {
    fn drop(&mut self) {
        let mut state = self.drafter.lock();
        state.draft.remove(self.seq);
        state.taken.retain(|seq| *seq != self.seq);
    }
}
