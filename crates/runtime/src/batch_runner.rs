//! `BatchRunner`: decodes several sequences on one model and one pool of cells, with forks, batches and rewinds.

mod sequence;

pub use sequence::SequenceHandle;

use crate::context_shift::{ContextShift, ContextShifter};
use crate::decoder::Decoder;
use crate::kept_row::KeptRow;
use crate::memory::{CacheKind, MemoryPlan, MemoryUsage};
use crate::options::RunnerOptions;
use crate::snapshot::{self, Contents, Snapshot};
use crate::speculative::{FeatureRows, TreeProposal};
use crate::{Model, RuntimeError, RuntimeErrorKind};
use backend::{Backend, RowOutputs, RunMode, Wanted};
use kv::{CacheSession, CellRun, Cells, MAX_SEQUENCES, Role, SeqId, StepToken, make_seq_session};
use std::path::Path;

/// One token of a batched step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchToken {
    /// The sequence that it continues.
    pub seq: SeqId,
    /// The token id.
    pub id: u32,
    /// Whether the logits after it are computed and kept as the sequence's.
    pub logits: bool,
}

/// Decodes several sequences in one pool of cells, one forward for all.
pub struct BatchRunner {
    decoder: Decoder,
    session: CacheSession<Cells>,
    /// The tokens of each sequence and the outputs after the last one.
    states: Vec<SequenceState>,
    /// For each sequence, the position of its next token in the step that is being built.
    next: Vec<i32>,
    shifter: Option<ContextShifter>,
    planned_bytes: usize,
    /// Commits compact the pool when a sequence has more runs than this.
    max_runs: usize,
    /// The number of steps so far.
    steps: u64,
}

/// The lowest value of `max_runs`.
const MIN_COMPACTED_RUNS: usize = 64;

#[derive(Clone, Default)]
struct SequenceState {
    tokens: Vec<u32>,
    /// Whether the last token is pending: sampled, and not fed yet.
    pending: bool,
    row: KeptRow,
    shifts: Vec<ContextShift>,
    candidates: Candidates,
    /// The features of the last tokens, if the sequence keeps them.
    features: Option<KeptFeatures>,
}

impl SequenceState {
    /// The number of tokens whose keys and values are cached.
    fn fed(&self) -> usize {
        self.tokens.len() - usize::from(self.pending)
    }
}

/// The candidates after a sequence.
#[derive(Clone, Default)]
struct Candidates {
    nodes: Vec<CandidateNode>,
    /// The candidates from this one on are of the last step.
    last_step: usize,
    /// The row of the first of them among the outputs of the last step, and its token.
    first_row: usize,
    first_token: usize,
    /// The number of that step: the outputs last until the next one.
    step: u64,
}

#[derive(Clone, Copy)]
struct CandidateNode {
    id: u32,
    parent: Option<u32>,
    depth: u32,
}

/// Features of the last tokens of a sequence.
#[derive(Clone, Default)]
struct KeptFeatures {
    /// The position of the first row.
    first: usize,
    width: usize,
    rows: Vec<f32>,
}

impl KeptFeatures {
    /// Appends the features of the token at `position`. Begins again there if it does not follow the last one.
    fn push(&mut self, position: usize, features: &[f32]) {
        let next = self.first + self.rows.len() / self.width.max(1);
        if self.rows.is_empty() || next != position {
            self.rows.clear();
            self.first = position;
        }
        self.width = features.len();
        self.rows.extend_from_slice(features);
    }
}

impl BatchRunner {
    /// A runner of `model` on `backend`, for up to `options.max_logit_rows` sequences in one step.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
    ) -> Result<BatchRunner, RuntimeError> {
        BatchRunner::with_trees(model, backend, options, options.max_logit_rows, 0, 0)
    }

    /// A runner for up to `sequences` sequences in one step, each with up to `candidates` candidates, whose memory plan also
    /// counts `prefixes` retained prefixes.
    pub fn with_trees(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        sequences: usize,
        prefixes: usize,
        candidates: usize,
    ) -> Result<BatchRunner, RuntimeError> {
        let options = &RunnerOptions {
            max_logit_rows: sequences.saturating_mul(1 + candidates),
            ..options.clone()
        };
        let owners = u32::try_from(sequences.saturating_add(prefixes)).unwrap_or(u32::MAX);
        let kind = CacheKind::Cells { sequences: owners };
        let plan = MemoryPlan::for_decoder(model, backend, options, kind, None)?;
        let (session, binding) = make_seq_session(backend.id(), &plan.cache)?;
        let sequences = sequences.clamp(1, MAX_SEQUENCES as usize);
        Ok(BatchRunner {
            decoder: Decoder::load(model, backend, options, plan.step, sequences, binding)?,
            session,
            states: vec![SequenceState::default(); MAX_SEQUENCES as usize],
            next: Vec::new(),
            shifter: None,
            planned_bytes: plan.total_bytes(),
            max_runs: MIN_COMPACTED_RUNS,
            steps: 0,
        })
    }

    /// The run mode of steps: the one of the options, or the mode that the backend supports instead.
    pub fn run_mode(&self) -> RunMode {
        self.decoder.run_mode()
    }

    /// Changes the run mode of later steps. Keeps the weights and the cache.
    pub fn set_run_mode(&mut self, mode: RunMode) -> Result<(), RuntimeError> {
        self.decoder.set_run_mode(mode)
    }

    /// The number of recorded steps, and the maximum number.
    pub fn captures(&self) -> (usize, usize) {
        self.decoder.captures()
    }

    /// Enables context shifts: when the context is full, a generation keeps the first `keep` tokens of its sequence and
    /// drops the older half of the others.
    ///
    /// # Errors
    /// `Backend` if the keys of the model cannot be moved to other positions.
    pub fn enable_context_shift(&mut self, keep: usize) -> Result<(), RuntimeError> {
        let layers = self.session.config()?.layers.len();
        self.shifter = Some(ContextShifter::new(self.decoder.graph(), layers, keep)?);
        Ok(())
    }

    /// Shifts a sequence now, if [`enable_context_shift`](BatchRunner::enable_context_shift) was called. Returns `None`
    /// if nothing was dropped. Rows that other sequences share do not change.
    pub fn shift_context(&mut self, seq: SeqId) -> Result<Option<ContextShift>, RuntimeError> {
        let Some(shifter) = &self.shifter else {
            return Ok(None);
        };
        let fed = self.states.get(seq as usize).map_or(0, SequenceState::fed);
        let shift = shifter.shift(&self.session, seq, fed)?;
        if let Some(shift) = shift {
            let state = &mut self.states[seq as usize];
            shift.apply(&mut state.tokens);
            state.shifts.push(shift);
            if let Some(features) = &mut state.features {
                features.rows.clear();
            }
        }
        Ok(shift)
    }

    /// The shifts of a sequence since the last call, in order.
    pub fn take_shifts(&mut self, seq: SeqId) -> Vec<ContextShift> {
        let state = self.states.get_mut(seq as usize);
        state.map_or(vec![], |state| std::mem::take(&mut state.shifts))
    }

    /// The tokens of a sequence, with the pending one.
    pub fn tokens(&self, seq: SeqId) -> &[u32] {
        self.states.get(seq as usize).map_or(&[], |s| &s.tokens)
    }

    /// Whether the last token of a sequence is pending: a generation sampled it, and the next step of the sequence feeds it.
    pub fn is_pending(&self, seq: SeqId) -> bool {
        let state = self.states.get(seq as usize);
        state.is_some_and(|state| state.pending)
    }

    /// Appends a sampled token, which is pending from now on.
    pub(crate) fn append(&mut self, seq: SeqId, token: u32) {
        let state = &mut self.states[seq as usize];
        assert!(!state.pending, "the last token must be fed first");
        state.tokens.push(token);
        state.pending = true;
        state.row.clear();
    }

    /// Removes the pending token of a sequence, for a caller that feeds it.
    pub(crate) fn take_pending(&mut self, seq: SeqId) -> Option<u32> {
        let state = self.states.get_mut(seq as usize)?;
        std::mem::take(&mut state.pending).then(|| state.tokens.pop().expect("it is the last one"))
    }

    /// The logits after the last token of a sequence; empty if they were not computed, as after a generation whose sampler
    /// needed the most likely tokens only.
    pub fn logits(&self, seq: SeqId) -> &[f32] {
        self.row(seq).logits()
    }

    /// The outputs after the last token of a sequence.
    pub fn row(&self, seq: SeqId) -> RowOutputs<'_> {
        let state = self.states.get(seq as usize);
        state.map_or(RowOutputs::Logits(&[]), |state| state.row.outputs())
    }

    /// A handle on one sequence.
    pub fn sequence(&mut self, seq: SeqId) -> SequenceHandle<'_> {
        SequenceHandle { runner: self, seq }
    }

    /// An empty sequence that is not in `taken`.
    pub fn free_sequence(&self, taken: &[SeqId]) -> Option<SeqId> {
        (0..MAX_SEQUENCES).find(|id| self.tokens(*id).is_empty() && !taken.contains(id))
    }

    /// The maximum number of tokens in a step.
    pub fn max_step_tokens(&self) -> usize {
        self.decoder.max_step_tokens()
    }

    /// Makes `dst`, which must be empty, a copy of the first `len` tokens of `src`, which may be a retained prefix.
    /// Copies no rows. There are no logits until a token is fed.
    pub fn fork_prefix(&mut self, src: SeqId, dst: SeqId, len: usize) -> Result<(), RuntimeError> {
        let whole = self.is_pending(src) && len == self.tokens(src).len();
        let end = u32::try_from(len - usize::from(whole)).unwrap_or(u32::MAX);
        self.session.seq_cp(src, dst, ..end)?;
        let tokens = self.tokens(src);
        let tokens = tokens[..len.min(tokens.len())].to_vec();
        self.states[dst as usize] = SequenceState {
            tokens,
            pending: whole,
            ..SequenceState::default()
        };
        Ok(())
    }

    /// Retains the tokens of a sequence, except a pending one, as a read-only prefix that takes no sequence number, and returns
    /// its id.
    pub fn retain(&mut self, seq: SeqId) -> Result<SeqId, RuntimeError> {
        let id = self.session.retain(seq, ..)?;
        let state = &self.states[seq as usize];
        let tokens = state.tokens[..state.fed()].to_vec();
        let states = self.states.len().max(id as usize + 1);
        self.states.resize_with(states, SequenceState::default);
        self.states[id as usize].tokens = tokens;
        Ok(id)
    }

    /// Removes a retained prefix.
    pub fn release(&mut self, id: SeqId) -> Result<(), RuntimeError> {
        self.session.release(id)?;
        self.states[id as usize] = SequenceState::default();
        Ok(())
    }

    /// Makes `dst`, which must be empty, a copy of `src`. Copies no rows.
    pub fn fork(&mut self, src: SeqId, dst: SeqId) -> Result<(), RuntimeError> {
        self.session.seq_cp(src, dst, ..)?;
        self.states[dst as usize] = self.states[src as usize].clone();
        Ok(())
    }

    /// Removes all tokens of a sequence.
    pub fn remove(&mut self, seq: SeqId) -> Result<(), RuntimeError> {
        self.rewind(seq, 0)
    }

    /// Removes the tokens of all sequences except one.
    pub fn keep_only(&mut self, seq: SeqId) -> Result<(), RuntimeError> {
        self.session.seq_keep(seq)?;
        for (id, state) in (0..MAX_SEQUENCES).zip(&mut self.states) {
            if id != seq {
                *state = SequenceState::default();
            }
        }
        Ok(())
    }

    /// Removes all tokens after the first `len` of a sequence.
    pub fn rewind(&mut self, seq: SeqId, len: usize) -> Result<(), RuntimeError> {
        let keeps_pending = self.is_pending(seq) && len == self.tokens(seq).len();
        let fed = len - usize::from(keeps_pending);
        self.session
            .seq_rm(seq, u32::try_from(fed).unwrap_or(u32::MAX)..)?;
        let state = &mut self.states[seq as usize];
        state.tokens.truncate(len);
        state.pending = keeps_pending;
        state.row.clear();
        state.candidates = Candidates::default();
        if len == 0 {
            state.features = None;
        }
        if let Some(features) = &mut state.features {
            let kept = len.saturating_sub(features.first) * features.width;
            features.rows.truncate(kept);
        }
        Ok(())
    }

    /// The shortest non-zero length that a sequence can be rewound to. Ring layers have evicted the rows that a shorter
    /// one needs.
    pub fn rewind_floor(&self, seq: SeqId) -> Result<usize, RuntimeError> {
        let floor = self.session.with(|cells| cells.rewind_floor(seq))??;
        Ok(floor as usize)
    }

    /// Writes a sequence and the caller's notes to a snapshot file. An existing file is replaced atomically. A pending token has no
    /// keys and values and is left out: feeding nothing feeds it.
    pub fn save(
        &self,
        model: &Model,
        seq: SeqId,
        path: &Path,
        notes: &[u8],
    ) -> Result<(), RuntimeError> {
        let state = self.states.get(seq as usize);
        let tokens = state.map_or(&[][..], |state| &state.tokens[..state.fed()]);
        snapshot::save(path, model, &self.session, seq, Contents { tokens, notes })
    }

    /// Replaces the content of a sequence by a snapshot. There are no logits until a token is fed. An error leaves the
    /// sequence unchanged, except that a device error leaves it empty.
    pub fn restore(
        &mut self,
        model: &Model,
        seq: SeqId,
        snapshot: &Snapshot,
    ) -> Result<(), RuntimeError> {
        self.restore_prefix(model, seq, snapshot, snapshot.tokens().len())
    }

    /// Replaces the content of a sequence by the first `len` tokens of a snapshot, as [`restore`](BatchRunner::restore).
    pub(crate) fn restore_prefix(
        &mut self,
        model: &Model,
        seq: SeqId,
        snapshot: &Snapshot,
        len: usize,
    ) -> Result<(), RuntimeError> {
        let tokens = snapshot.tokens()[..len].to_vec();
        snapshot::restore(snapshot, model, &self.session, seq, len)?;
        self.states[seq as usize] = SequenceState {
            tokens,
            ..SequenceState::default()
        };
        Ok(())
    }

    /// Restores the longest common prefix of a snapshot and `prompt` in a sequence, and returns its length. At least the last
    /// token of `prompt` is left to be fed. Returns 0 if the snapshot's ring layers lack the rows of that prefix.
    pub fn resume(
        &mut self,
        model: &Model,
        seq: SeqId,
        snapshot: &Snapshot,
        prompt: &[u32],
    ) -> Result<usize, RuntimeError> {
        let most = prompt.len().saturating_sub(1).min(self.capacity()?);
        let known = crate::common_prefix_len(snapshot.tokens(), prompt).min(most);
        if known < snapshot.min_restore_len() {
            snapshot.check(model, &self.session.config()?)?;
            self.remove(seq)?;
            return Ok(0);
        }
        self.restore_prefix(model, seq, snapshot, known)?;
        Ok(known)
    }

    /// Whether the pending tokens of all sequences and `n` more tokens fit in the pool.
    pub fn can_extend(&self, n: usize) -> Result<bool, RuntimeError> {
        let pending = self.states.iter().filter(|state| state.pending).count();
        self.has_cells(n.saturating_add(pending))
    }

    /// Whether the pool has `n` free cells.
    pub(crate) fn has_cells(&self, n: usize) -> Result<bool, RuntimeError> {
        match u32::try_from(n) {
            Ok(n) => Ok(self.session.can_extend(n)?),
            Err(_) => Ok(false),
        }
    }

    /// The number of cells in the pool.
    pub fn capacity(&self) -> Result<usize, RuntimeError> {
        Ok(self.session.capacity()? as usize)
    }

    /// The number of cells in use. A shared cell counts once.
    pub fn cells_used(&self) -> Result<usize, RuntimeError> {
        Ok(self.session.len()? as usize)
    }

    /// The cell runs of a sequence.
    pub fn runs(&self, seq: SeqId) -> Result<Vec<CellRun>, RuntimeError> {
        Ok(self
            .session
            .with(|cells| cells.runs(seq).map(<[CellRun]>::to_vec))??)
    }

    /// For each cell up to the last one in use, the number of sequences that hold it.
    pub fn ref_counts(&self) -> Result<Vec<u16>, RuntimeError> {
        Ok(self.session.with(|cells| cells.ref_counts().to_vec())?)
    }

    /// Moves rows so that the pool has no holes.
    pub fn compact(&mut self) -> Result<(), RuntimeError> {
        Ok(self.session.compact()?)
    }

    /// The bytes of the memory plan: weights, activations, and keys and values once the pool is full.
    pub fn planned_bytes(&self) -> usize {
        self.planned_bytes
    }

    /// The memory in use now.
    pub fn memory(&self) -> Result<MemoryUsage, RuntimeError> {
        Ok(self.decoder.memory(self.session.resident_bytes()?))
    }

    /// Feeds the pending tokens of sequences in one forward and keeps the wanted outputs.
    pub(crate) fn feed_pending(
        &mut self,
        sequences: &[SeqId],
        wanted: Wanted,
    ) -> Result<(), RuntimeError> {
        let pending = sequences.iter().filter_map(|seq| {
            let id = self.take_pending(*seq)?;
            Some(BatchToken {
                seq: *seq,
                id,
                logits: true,
            })
        });
        let tokens: Vec<BatchToken> = pending.collect();
        let fed = self.run(&tokens, &[], wanted);
        if fed.is_err() {
            for token in &tokens {
                self.append(token.seq, token.id);
            }
        }
        fed
    }

    /// Runs one forward over tokens of any sequences. The pending token of a sequence is fed before its tokens.
    pub fn step(&mut self, tokens: &[BatchToken]) -> Result<(), RuntimeError> {
        self.step_wanted(tokens, &[], Wanted::Logits)
    }

    /// Runs one forward that feeds tokens and verifies a tree for each of these sequences. The candidates stay until a path
    /// of them is committed.
    pub fn step_trees(
        &mut self,
        tokens: &[BatchToken],
        trees: &[(SeqId, &TreeProposal)],
    ) -> Result<(), RuntimeError> {
        self.step_wanted(tokens, trees, Wanted::Logits)
    }

    /// Runs a step as [`step_trees`](BatchRunner::step_trees) does, and computes only the wanted outputs of its rows.
    pub fn step_wanted(
        &mut self,
        tokens: &[BatchToken],
        trees: &[(SeqId, &TreeProposal)],
        wanted: Wanted,
    ) -> Result<(), RuntimeError> {
        let of_trees = trees.iter().flat_map(|(_, tree)| tree.tokens());
        let ids = tokens.iter().map(|token| token.id);
        self.decoder.check_ids(ids.chain(of_trees.copied()))?;
        let part = |(seq, tree): &(SeqId, &TreeProposal)| -> CandidateStep {
            let nodes = tree.tokens().iter().zip(tree.parents());
            let nodes = nodes.map(|(id, parent)| (*id, *parent)).collect();
            (*seq, nodes)
        };
        let trees: Vec<CandidateStep> = trees.iter().map(part).collect();
        let sequences = tokens.iter().map(|token| token.seq);
        let sequences = sequences.chain(trees.iter().map(|(seq, _)| *seq));
        let mut pending = vec![];
        for seq in sequences {
            let id = self.take_pending(seq);
            pending.extend(id.map(|id| BatchToken {
                seq,
                id,
                logits: false,
            }));
        }
        let ran = match pending.is_empty() {
            true => self.run(tokens, &trees, wanted),
            false => self.run(&[&pending, tokens].concat(), &trees, wanted),
        };
        if ran.is_err() {
            for token in pending {
                self.append(token.seq, token.id);
            }
        }
        ran
    }

    /// Computes candidates of a sequence. Parents are among all its candidates since the last commit.
    pub(crate) fn step_candidates(
        &mut self,
        seq: SeqId,
        ids: &[u32],
        parents: &[Option<u32>],
    ) -> Result<(), RuntimeError> {
        self.decoder.check_ids(ids.iter().copied())?;
        let nodes = ids.iter().copied().zip(parents.iter().copied());
        self.run(&[], &[(seq, nodes.collect())], Wanted::Logits)
    }

    /// The logits after a candidate of the last step; empty if the step computed the best tokens only.
    ///
    /// # Panics
    /// If the last step did not compute the candidate.
    pub fn candidate_logits(&self, seq: SeqId, node: u32) -> &[f32] {
        self.candidate_row(seq, node).logits()
    }

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

    /// Whether a sequence has candidates.
    pub fn has_candidates(&self, seq: SeqId) -> bool {
        let state = self.states.get(seq as usize);
        state.is_some_and(|state| !state.candidates.nodes.is_empty())
    }

    /// Commits a chain of a sequence's candidates and removes the others. The outputs after the last one become the
    /// sequence's, if the last step computed it. Moves no rows, except that a pool with many short runs is compacted now and then.
    pub fn commit_path(&mut self, seq: SeqId, path: &[u32]) -> Result<(), RuntimeError> {
        self.session.accept(seq, path)?;
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
        let runs = self
            .session
            .with(|cells| cells.runs(seq).map(<[_]>::len))??;
        if runs > self.max_runs {
            self.session.compact()?;
            let runs = self
                .session
                .with(|cells| cells.runs(seq).map(<[_]>::len))??;
            self.max_runs = MIN_COMPACTED_RUNS.max(2 * runs);
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
        if on && self.decoder.graph().outputs().len() < 2 {
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
    pub(crate) fn features(&self, seq: SeqId) -> Option<FeatureRows<'_>> {
        let kept = self.states[seq as usize].features.as_ref()?;
        Some(FeatureRows {
            first: kept.first,
            width: kept.width,
            rows: &kept.rows,
        })
    }

    /// Forgets the kept features of tokens before `position`.
    pub(crate) fn drop_features(&mut self, seq: SeqId, position: usize) {
        if let Some(kept) = &mut self.states[seq as usize].features {
            let gone = position.saturating_sub(kept.first) * kept.width;
            kept.rows.drain(..gone.min(kept.rows.len()));
            kept.first = kept.first.max(position);
        }
    }

    /// Runs one forward. The caller has checked the token ids and taken the pending tokens.
    fn run(
        &mut self,
        tokens: &[BatchToken],
        trees: &[CandidateStep],
        wanted: Wanted,
    ) -> Result<(), RuntimeError> {
        self.next.clear();
        let sequences = &self.states[..MAX_SEQUENCES as usize];
        let held = sequences.iter().map(|state| state.tokens.len());
        self.next.extend(held.map(|tokens| tokens as i32));
        let step = &mut self.decoder.step;
        step.clear();
        for token in tokens {
            // The cache returns an error for an unknown sequence.
            let next = self.next.get_mut(token.seq as usize);
            let position = next.map_or(0, |next| std::mem::replace(next, *next + 1));
            let row = step.push(StepToken {
                id: token.id,
                position,
                seq: token.seq,
                role: Role::Next,
            });
            if token.logits {
                step.want(row);
            }
        }
        let mut rows = tokens.iter().filter(|token| token.logits).count();
        let mut added = Vec::with_capacity(trees.len());
        for (seq, nodes) in trees {
            // The cache returns an error for an unknown sequence and for an unknown parent.
            let state = self.states.get(*seq as usize);
            let mut candidates = state.map_or_else(Candidates::default, |s| s.candidates.clone());
            let base = state.map_or(0, |state| state.tokens.len());
            candidates.last_step = candidates.nodes.len();
            (candidates.first_row, candidates.first_token) = (rows, step.len());
            candidates.step = self.steps + 1;
            for &(id, parent) in nodes {
                let above = parent.and_then(|parent| candidates.nodes.get(parent as usize));
                let depth = above.map_or(0, |above| above.depth + 1);
                let row = step.push(StepToken {
                    id,
                    position: (base + depth as usize) as i32,
                    seq: *seq,
                    role: Role::Candidate { parent },
                });
                step.want(row);
                candidates.nodes.push(CandidateNode { id, parent, depth });
            }
            rows += nodes.len();
            added.push((*seq, candidates));
        }
        self.decoder.run(wanted)?;
        self.steps += 1;
        for (index, token) in tokens.iter().enumerate() {
            let state = &mut self.states[token.seq as usize];
            if let Some(features) = &mut state.features {
                let row = self.decoder.outputs.features(index);
                features.push(state.tokens.len(), row);
            }
            state.tokens.push(token.id);
            state.row.clear();
        }
        for (seq, candidates) in added {
            self.states[seq as usize].candidates = candidates;
        }
        for (row, token) in tokens.iter().filter(|token| token.logits).enumerate() {
            let kept = &mut self.states[token.seq as usize].row;
            kept.copy(self.decoder.outputs.row(row));
        }
        Ok(())
    }
}

/// A sequence and its new candidates, each with its parent.
type CandidateStep = (SeqId, Vec<(u32, Option<u32>)>);
