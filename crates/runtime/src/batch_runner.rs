//! `BatchRunner`: decodes several sequences on one model and one pool of cells, with forks, batches and rewinds.

use crate::context_shift::{ContextShift, ContextShifter};
use crate::decoder::Decoder;
use crate::detokenizer::IncrementalDetokenizer;
use crate::generate::{
    DecodeContext, GenerateEvent, GenerateOptions, GenerateOutput, Lane, Sequences, Timings,
    generate_lanes,
};
use crate::memory::{CacheKind, MemoryPlan, MemoryUsage};
use crate::options::RunnerOptions;
use crate::snapshot::{self, Contents, Snapshot};
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
use backend::{Backend, RunMode};
use kv::{CacheSession, CellRun, Cells, MAX_SEQUENCES, Role, SeqId, StepToken, make_seq_session};
use std::path::Path;
use std::time::Instant;

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
    /// The tokens of each sequence and the logits after the last one.
    states: Vec<SequenceState>,
    /// For each sequence, the position of its next token in the step that is being built.
    next: Vec<i32>,
    shifter: Option<ContextShifter>,
    planned_bytes: usize,
}

#[derive(Clone, Default)]
struct SequenceState {
    tokens: Vec<u32>,
    logits: Vec<f32>,
    shifts: Vec<ContextShift>,
}

impl BatchRunner {
    /// A runner of `model` on `backend`, for up to `options.max_logit_rows` sequences in one step.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
    ) -> Result<BatchRunner, RuntimeError> {
        BatchRunner::with_prefixes(model, backend, options, options.max_logit_rows, 0)
    }

    /// A runner for up to `sequences` sequences in one step, whose memory plan also counts `prefixes` retained prefixes.
    pub(crate) fn with_prefixes(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        sequences: usize,
        prefixes: usize,
    ) -> Result<BatchRunner, RuntimeError> {
        let options = &RunnerOptions {
            max_logit_rows: sequences,
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
        let shift = shifter.shift(&self.session, seq, self.tokens(seq).len())?;
        if let Some(shift) = shift {
            let state = &mut self.states[seq as usize];
            shift.apply(&mut state.tokens);
            state.shifts.push(shift);
        }
        Ok(shift)
    }

    /// The shifts of a sequence since the last call, in order.
    pub fn take_shifts(&mut self, seq: SeqId) -> Vec<ContextShift> {
        let state = self.states.get_mut(seq as usize);
        state.map_or(vec![], |state| std::mem::take(&mut state.shifts))
    }

    /// The tokens of a sequence.
    pub fn tokens(&self, seq: SeqId) -> &[u32] {
        self.states.get(seq as usize).map_or(&[], |s| &s.tokens)
    }

    /// The logits after the last token of a sequence; empty if they were not computed.
    pub fn logits(&self, seq: SeqId) -> &[f32] {
        self.states.get(seq as usize).map_or(&[], |s| &s.logits)
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
        let end = u32::try_from(len).unwrap_or(u32::MAX);
        self.session.seq_cp(src, dst, ..end)?;
        let tokens = self.tokens(src);
        let tokens = tokens[..len.min(tokens.len())].to_vec();
        self.states[dst as usize] = SequenceState {
            tokens,
            ..SequenceState::default()
        };
        Ok(())
    }

    /// Retains the tokens of a sequence as a read-only prefix that takes no sequence number, and returns its id.
    pub fn retain(&mut self, seq: SeqId) -> Result<SeqId, RuntimeError> {
        let id = self.session.retain(seq, ..)?;
        let tokens = self.tokens(seq).to_vec();
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
        self.session
            .seq_rm(seq, u32::try_from(len).unwrap_or(u32::MAX)..)?;
        let state = &mut self.states[seq as usize];
        state.tokens.truncate(len);
        state.logits.clear();
        Ok(())
    }

    /// The shortest non-zero length that a sequence can be rewound to. Ring layers have evicted the rows that a shorter
    /// one needs.
    pub fn rewind_floor(&self, seq: SeqId) -> Result<usize, RuntimeError> {
        let floor = self.session.with(|cells| cells.rewind_floor(seq))??;
        Ok(floor as usize)
    }

    /// Writes a sequence and the caller's notes to a snapshot file. An existing file is replaced atomically.
    pub fn save(
        &self,
        model: &Model,
        seq: SeqId,
        path: &Path,
        notes: &[u8],
    ) -> Result<(), RuntimeError> {
        let tokens = self.tokens(seq);
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

    /// Whether `n` more tokens fit in the pool.
    pub fn can_extend(&self, n: usize) -> Result<bool, RuntimeError> {
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

    /// Runs one forward over tokens of any sequences.
    pub fn step(&mut self, tokens: &[BatchToken]) -> Result<(), RuntimeError> {
        self.decoder
            .check_ids(tokens.iter().map(|token| token.id))?;
        self.run(tokens.iter().copied())
    }

    /// Runs one forward. The caller has checked the token ids.
    fn run(
        &mut self,
        tokens: impl Iterator<Item = BatchToken> + Clone,
    ) -> Result<(), RuntimeError> {
        self.next.clear();
        let sequences = &self.states[..MAX_SEQUENCES as usize];
        let held = sequences.iter().map(|state| state.tokens.len());
        self.next.extend(held.map(|tokens| tokens as i32));
        let step = &mut self.decoder.step;
        step.clear();
        for token in tokens.clone() {
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
        self.decoder.run()?;
        for token in tokens.clone() {
            let state = &mut self.states[token.seq as usize];
            state.tokens.push(token.id);
            state.logits.clear();
        }
        for (row, token) in tokens.filter(|token| token.logits).enumerate() {
            let kept = &mut self.states[token.seq as usize].logits;
            kept.clear();
            kept.extend_from_slice(self.decoder.outputs.logits(row));
        }
        Ok(())
    }

    /// Generates on several sequences, with one forward for all and one sampler for each. Every sequence must have
    /// logits. `on_event` receives each event with its sequence and returns false to cancel. If
    /// [`enable_context_shift`](BatchRunner::enable_context_shift) was called, the sequences are shifted when the pool is
    /// full.
    pub fn generate(
        &mut self,
        model: &Model,
        sequences: &mut [(SeqId, Sampler)],
        options: &GenerateOptions,
        mut on_event: impl FnMut(SeqId, GenerateEvent<'_>) -> bool,
    ) -> Result<Vec<GenerateOutput>, RuntimeError> {
        let start = Instant::now();
        let mut lanes = Vec::new();
        for (seq, sampler) in sequences {
            if self.logits(*seq).is_empty() {
                return Err(RuntimeErrorKind::EmptyPrompt.into());
            }
            let history = self.tokens(*seq).iter();
            let detokenizer = IncrementalDetokenizer::new(options.clone(), history);
            lanes.push(Lane::new(*seq, sampler, model, detokenizer));
        }
        generate_lanes(self, &mut lanes, &mut on_event)?;
        let end = |lane: Lane<'_>| {
            let seq = lane.seq;
            let mut generated = lane.end(|text| {
                on_event(seq, GenerateEvent::Text(text));
            });
            generated.timings = Timings {
                generated_tokens: generated.tokens.len(),
                decode_time: start.elapsed(),
                decoded_tokens: generated.decoded(),
                ..Timings::default()
            };
            generated
        };
        Ok(lanes.into_iter().map(end).collect())
    }
}

impl Sequences for BatchRunner {
    fn logits(&self, seq: SeqId) -> &[f32] {
        BatchRunner::logits(self, seq)
    }

    fn ensure_capacity(&mut self, next: &[(SeqId, u32)]) -> Result<bool, RuntimeError> {
        for (seq, _) in next {
            if self.can_extend(next.len())? {
                break;
            }
            self.shift_context(*seq)?;
        }
        self.can_extend(next.len())
    }

    fn advance(&mut self, next: &[(SeqId, u32)]) -> Result<(), RuntimeError> {
        self.decoder.check_ids(next.iter().map(|(_, id)| *id))?;
        self.run(next.iter().map(|&(seq, id)| BatchToken {
            seq,
            id,
            logits: true,
        }))
    }
}

/// A mutable handle on one sequence.
pub struct SequenceHandle<'a> {
    runner: &'a mut BatchRunner,
    seq: SeqId,
}

impl DecodeContext for SequenceHandle<'_> {
    fn tokens(&self) -> &[u32] {
        self.runner.tokens(self.seq)
    }

    fn logits(&self) -> &[f32] {
        self.runner.logits(self.seq)
    }

    fn has_capacity(&self) -> Result<bool, RuntimeError> {
        self.runner.can_extend(1)
    }

    fn ensure_capacity(&mut self) -> Result<bool, RuntimeError> {
        if !self.runner.can_extend(1)? {
            self.runner.shift_context(self.seq)?;
        }
        self.runner.can_extend(1)
    }

    fn feed(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        if !self.runner.can_extend(tokens.len())? {
            let (capacity, used) = (self.runner.capacity()?, self.runner.cells_used()?);
            let room = capacity - used;
            return Err(RuntimeErrorKind::PromptTooLong {
                tokens: tokens.len(),
                room,
                capacity,
            }
            .into());
        }
        self.runner.decoder.check_ids(tokens.iter().copied())?;
        let mut done = 0;
        for chunk in tokens.chunks(self.runner.decoder.max_step_tokens()) {
            done += chunk.len();
            let last = done == tokens.len();
            let seq = self.seq;
            let token = move |(i, id): (usize, &u32)| BatchToken {
                seq,
                id: *id,
                logits: last && i + 1 == chunk.len(),
            };
            self.runner.run(chunk.iter().enumerate().map(token))?;
            if !progress(done) && !last {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
