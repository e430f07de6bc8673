//! Candidates of sequences, and the features that draft heads read.

use super::{BatchRunner, MIN_COMPACTED_RUNS};
use crate::speculative::FeatureRows;
use crate::{RuntimeError, RuntimeErrorKind};
use backend::RowOutputs;
use kv::SeqId;

/// The candidates after a sequence.
#[derive(Clone, Default)]
pub(super) struct Candidates {
    pub(super) nodes: Vec<CandidateNode>,
    /// The candidates from this one on are of the last step.
    pub(super) last_step: usize,
    /// The row of the first of them among the outputs of the last step, and its token.
    pub(super) first_row: usize,
    pub(super) first_token: usize,
    /// The number of that step: the outputs last until the next one.
    pub(super) step: u64,
}

#[derive(Clone, Copy)]
pub(super) struct CandidateNode {
    pub(super) id: u32,
    pub(super) parent: Option<u32>,
    pub(super) depth: u32,
}

impl BatchRunner {
    /// The outputs after a candidate of the last step.
    ///
    /// # Panics
    /// If the last step did not compute the candidate.
    pub fn candidate_row(&self, seq: SeqId, node: u32) -> RowOutputs<'_> {
        let candidates = &self.states[seq as usize].candidates;
        assert_eq!(candidates.step, self.steps, "another step came after it");
        let row = candidates.first_row + (node as usize - candidates.last_step);
        self.decoder.outputs.row(row)
    }

    /// The logits after each candidate of a sequence that the last step computed.
    pub(crate) fn last_candidate_logits(&self, seq: SeqId) -> impl Iterator<Item = &[f32]> {
        let candidates = &self.states[seq as usize].candidates;
        let nodes = candidates.last_step..candidates.nodes.len();
        nodes.map(move |node| self.candidate_row(seq, node as u32).logits())
    }

    /// Whether a sequence has candidates.
    pub fn has_candidates(&self, seq: SeqId) -> bool {
        let state = self.states.get(seq as usize);
        state.is_some_and(|state| !state.candidates.nodes.is_empty())
    }

    /// Commits a chain of a sequence's candidates and removes the others. The outputs after the last one become the
    /// sequence's, if the last step computed it. Moves no rows, except that a pool with many short runs is compacted now and then.
    pub fn commit_path(&mut self, seq: SeqId, path: &[u32]) -> Result<(), RuntimeError> {
        self.cache.accept(seq, path)?;
        let state = &mut self.states[seq as usize];
        let candidates = std::mem::take(&mut state.candidates);
        let outputs = &self.decoder.outputs;
        let last_step = candidates.step == self.steps;
        let in_step = |node: u32| {
            let index = (node as usize).checked_sub(candidates.last_step);
            index.filter(|_| last_step)
        };
        for node in path {
            let in_step = in_step(*node);
            if let Some((features, in_step)) = state.features.as_mut().zip(in_step) {
                let row = outputs.features(candidates.first_token + in_step);
                features.push(state.tokens.len(), row);
            }
            state.tokens.push(candidates.nodes[*node as usize].id);
        }
        if let Some(last) = path.last() {
            state.row.clear();
            if let Some(in_step) = in_step(*last) {
                state.row.copy(outputs.row(candidates.first_row + in_step));
            }
        }
        if self.cache.run_count(seq)? > self.max_runs {
            self.cache.compact()?;
            self.max_runs = MIN_COMPACTED_RUNS.max(2 * self.cache.run_count(seq)?);
        }
        Ok(())
    }

    /// Commits the candidates whose tokens `next` begins with, and removes the others. Returns how many were committed.
    pub(crate) fn commit_matching(
        &mut self,
        seq: SeqId,
        next: &[u32],
    ) -> Result<usize, RuntimeError> {
        let nodes = &self.states[seq as usize].candidates.nodes;
        if nodes.is_empty() {
            return Ok(0);
        }
        let mut path: Vec<u32> = vec![];
        for token in next {
            let parent = path.last().copied();
            let child = (0..)
                .zip(nodes)
                .find(|(_, node)| node.parent == parent && node.id == *token);
            let Some((child, _)) = child else { break };
            path.push(child);
        }
        self.commit_path(seq, &path)?;
        Ok(path.len())
    }

    /// Keeps the features of the tokens that a sequence gets from now on, or stops it.
    ///
    /// # Errors
    /// `InvalidOptions` if the model was opened without features.
    pub fn keep_features(&mut self, seq: SeqId, on: bool) -> Result<(), RuntimeError> {
        if on && self.decoder.forward.graph().outputs().len() < 2 {
            let reason = "the model was opened without features".to_owned();
            return Err(RuntimeErrorKind::InvalidOptions(reason).into());
        }
        let kept = &mut self.states[seq as usize].features;
        match on {
            true => _ = kept.get_or_insert_default(),
            false => *kept = None,
        }
        Ok(())
    }

    /// The features of the last tokens of a sequence, if it keeps them.
    pub(crate) fn features(&self, seq: SeqId) -> Option<&FeatureRows> {
        self.states[seq as usize].features.as_ref()
    }

    /// Forgets the kept features of tokens before `position`.
    pub(crate) fn drop_features(&mut self, seq: SeqId, position: usize) {
        if let Some(kept) = &mut self.states[seq as usize].features {
            kept.drop_before(position);
        }
    }
}
