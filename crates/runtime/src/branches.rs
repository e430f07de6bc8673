//! `Branches`: decodes several sequences on one model and one pool of cells, with forks, batches and rewinds.

use crate::context_shift::{ContextShift, ContextShifter};
use crate::decoder::Decoder;
use crate::generate::{
    GenerateOptions, Generated, IncrementalDetokenizer, Lane, Piece, Sequence, Sequences, Timings,
    generate_lanes,
};
use crate::memory::CacheKind;
use crate::runner::{MemoryUsage, Policy, plan_run};
use crate::snapshot::{self, Contents, Snapshot};
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
use backend::{Backend, RunMode};
use kv::{CacheSession, Cells, MAX_SEQUENCES, Role, Run, SeqId, StepToken, make_seq_session};
use std::path::Path;
use std::time::Instant;

/// One token of a batched step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The branch that it continues.
    pub branch: SeqId,
    /// The token id.
    pub id: u32,
    /// Whether the logits after it are computed and kept as those of the branch.
    pub logits: bool,
}

/// Decodes several branches (sequences) in one pool of cells, one forward for all.
pub struct Branches {
    decoder: Decoder,
    session: CacheSession<Cells>,
    /// The tokens of each sequence and the logits after the last one.
    states: Vec<State>,
    /// For each sequence, the position of its next token in the step that is being built.
    next: Vec<i32>,
    shifter: Option<ContextShifter>,
}

#[derive(Clone, Default)]
struct State {
    tokens: Vec<u32>,
    logits: Vec<f32>,
    shifts: Vec<ContextShift>,
}

impl Branches {
    /// Branches of `model` on `backend`.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        policy: &Policy,
    ) -> Result<Branches, RuntimeError> {
        let sequences = u32::try_from(policy.logit_rows).unwrap_or(u32::MAX);
        let kind = CacheKind::Cells { sequences };
        let plan = plan_run(model, backend, policy, kind, None)?;
        let (session, options) = make_seq_session(backend.id(), &plan.cache)?;
        let sequences = policy.logit_rows.clamp(1, MAX_SEQUENCES as usize);
        Ok(Branches {
            decoder: Decoder::load(model, backend, policy, plan.step, sequences, options)?,
            session,
            states: vec![State::default(); MAX_SEQUENCES as usize],
            next: Vec::new(),
            shifter: None,
        })
    }

    /// The run mode of steps: the policy's, after a possible downgrade by the backend.
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

    /// Enables context shifts: when the context is full, a generation keeps the first `keep` tokens of its branch and
    /// drops the older half of the others.
    ///
    /// # Errors
    /// `Backend` if the keys of the model cannot be moved to other positions.
    pub fn allow_shifts(&mut self, keep: usize) -> Result<(), RuntimeError> {
        let layers = self.session.config()?.layers.len();
        self.shifter = Some(ContextShifter::new(self.decoder.graph(), layers, keep)?);
        Ok(())
    }

    /// Shifts a branch now, if [`allow_shifts`](Branches::allow_shifts) was called. Returns `None` if nothing was
    /// dropped. Rows that other branches share do not change.
    pub fn shift(&mut self, branch: SeqId) -> Result<Option<ContextShift>, RuntimeError> {
        let Some(shifter) = &self.shifter else {
            return Ok(None);
        };
        let shift = shifter.shift(&self.session, branch, self.tokens(branch).len())?;
        if let Some(shift) = shift {
            let state = &mut self.states[branch as usize];
            shift.apply(&mut state.tokens);
            state.shifts.push(shift);
        }
        Ok(shift)
    }

    /// The shifts of a branch since the last call, in order.
    pub fn take_shifts(&mut self, branch: SeqId) -> Vec<ContextShift> {
        let state = self.states.get_mut(branch as usize);
        state.map_or(vec![], |state| std::mem::take(&mut state.shifts))
    }

    /// The tokens of a branch.
    pub fn tokens(&self, branch: SeqId) -> &[u32] {
        self.states.get(branch as usize).map_or(&[], |s| &s.tokens)
    }

    /// The logits after the last token of a branch; empty if they were not computed.
    pub fn logits(&self, branch: SeqId) -> &[f32] {
        self.states.get(branch as usize).map_or(&[], |s| &s.logits)
    }

    /// A handle on one branch.
    pub fn branch(&mut self, id: SeqId) -> Branch<'_> {
        Branch { branches: self, id }
    }

    /// An empty branch that is not in `taken`.
    pub fn spare(&self, taken: &[SeqId]) -> Option<SeqId> {
        (0..MAX_SEQUENCES).find(|id| self.tokens(*id).is_empty() && !taken.contains(id))
    }

    /// Makes `dst`, which must be empty, a copy of `src`. Copies no rows.
    pub fn fork(&mut self, src: SeqId, dst: SeqId) -> Result<(), RuntimeError> {
        self.session.seq_cp(src, dst, ..)?;
        self.states[dst as usize] = self.states[src as usize].clone();
        Ok(())
    }

    /// Removes all tokens of a branch.
    pub fn remove(&mut self, branch: SeqId) -> Result<(), RuntimeError> {
        self.rewind(branch, 0)
    }

    /// Removes the tokens of all branches except one.
    pub fn keep(&mut self, branch: SeqId) -> Result<(), RuntimeError> {
        self.session.seq_keep(branch)?;
        for (id, state) in (0..).zip(&mut self.states) {
            if id != branch {
                *state = State::default();
            }
        }
        Ok(())
    }

    /// Removes all tokens after the first `len` of a branch.
    pub fn rewind(&mut self, branch: SeqId, len: usize) -> Result<(), RuntimeError> {
        self.session
            .seq_rm(branch, u32::try_from(len).unwrap_or(u32::MAX)..)?;
        let state = &mut self.states[branch as usize];
        state.tokens.truncate(len);
        state.logits.clear();
        Ok(())
    }

    /// The shortest non-zero length that a branch can be rewound to. Ring layers have evicted the rows that a shorter
    /// one needs.
    pub fn rewind_floor(&self, branch: SeqId) -> Result<usize, RuntimeError> {
        let floor = self.session.with(|cells| cells.rewind_floor(branch))??;
        Ok(floor as usize)
    }

    /// Writes a branch and the caller's notes to a snapshot file. An existing file is replaced atomically.
    pub fn save(
        &self,
        model: &Model,
        branch: SeqId,
        path: &Path,
        notes: &[u8],
    ) -> Result<(), RuntimeError> {
        let tokens = self.tokens(branch);
        snapshot::save(
            path,
            model,
            &self.session,
            branch,
            Contents { tokens, notes },
        )
    }

    /// Replaces the content of a branch by a snapshot. There are no logits until a token is fed. An error leaves the
    /// branch unchanged, except that a device error leaves it empty.
    pub fn restore(
        &mut self,
        model: &Model,
        branch: SeqId,
        snapshot: &Snapshot,
    ) -> Result<(), RuntimeError> {
        let tokens = snapshot.tokens().to_vec();
        snapshot::restore(snapshot, model, &self.session, branch, tokens.len())?;
        self.states[branch as usize] = State {
            tokens,
            ..State::default()
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

    /// The cell runs of a branch.
    pub fn runs(&self, branch: SeqId) -> Result<Vec<Run>, RuntimeError> {
        Ok(self
            .session
            .with(|cells| cells.runs(branch).map(<[Run]>::to_vec))??)
    }

    /// For each cell up to the last one in use, the number of branches that hold it.
    pub fn holders(&self) -> Result<Vec<u8>, RuntimeError> {
        Ok(self.session.with(|cells| cells.ref_counts().to_vec())?)
    }

    /// Moves rows so that the pool has no holes.
    pub fn compact(&mut self) -> Result<(), RuntimeError> {
        Ok(self.session.compact()?)
    }

    /// The memory in use now.
    pub fn memory(&self) -> Result<MemoryUsage, RuntimeError> {
        Ok(self.decoder.memory(self.session.resident_bytes()?))
    }

    /// Runs one forward over tokens of any branches.
    pub fn step(&mut self, tokens: &[Token]) -> Result<(), RuntimeError> {
        self.run(tokens.iter().copied())
    }

    fn run(&mut self, tokens: impl Iterator<Item = Token> + Clone) -> Result<(), RuntimeError> {
        self.decoder.check(tokens.clone().map(|token| token.id))?;
        self.next.clear();
        let held = self.states.iter().map(|state| state.tokens.len());
        self.next.extend(held.map(|tokens| tokens as i32));
        let step = &mut self.decoder.step;
        step.clear();
        for token in tokens.clone() {
            // The cache returns an error for an unknown branch.
            let next = self.next.get_mut(token.branch as usize);
            let position = next.map_or(0, |next| std::mem::replace(next, *next + 1));
            let row = step.push(StepToken {
                id: token.id,
                position,
                seq: token.branch,
                role: Role::Next,
            });
            if token.logits {
                step.want(row);
            }
        }
        self.decoder.run()?;
        for token in tokens.clone() {
            let state = &mut self.states[token.branch as usize];
            state.tokens.push(token.id);
            state.logits.clear();
        }
        for (row, token) in tokens.filter(|token| token.logits).enumerate() {
            let kept = &mut self.states[token.branch as usize].logits;
            kept.clear();
            kept.extend_from_slice(self.decoder.outputs.logits(row));
        }
        Ok(())
    }

    /// Generates on several branches, with one forward for all and one sampler for each. Every branch must have logits.
    /// `show` receives the branch of each text. If [`allow_shifts`](Branches::allow_shifts) was called, the generated
    /// branches are shifted when the pool is full.
    pub fn generate(
        &mut self,
        model: &Model,
        branches: &mut [(SeqId, Sampler)],
        options: &GenerateOptions,
        mut show: impl FnMut(SeqId, Piece<'_>) -> bool,
    ) -> Result<Vec<Generated>, RuntimeError> {
        let start = Instant::now();
        let mut lanes = Vec::new();
        for (id, sampler) in branches {
            if self.logits(*id).is_empty() {
                return Err(RuntimeErrorKind::EmptyPrompt.into());
            }
            let detokenizer = IncrementalDetokenizer::new(model, options, self.tokens(*id).iter());
            lanes.push(Lane::new(*id, sampler, detokenizer));
        }
        generate_lanes(self, &mut lanes, &mut show)?;
        let end = |lane: Lane<'_>| {
            let seq = lane.seq;
            let mut generated = lane.end(|text| {
                show(seq, Piece::Text(text));
            });
            generated.timings = Timings {
                generated_tokens: generated.tokens.len(),
                generated: start.elapsed(),
                decoded_tokens: generated.decoded(),
                ..Timings::default()
            };
            generated
        };
        Ok(lanes.into_iter().map(end).collect())
    }
}

impl Sequences for Branches {
    fn logits(&self, seq: SeqId) -> &[f32] {
        Branches::logits(self, seq)
    }

    fn make_room(&mut self, next: &[(SeqId, u32)]) -> Result<bool, RuntimeError> {
        for (branch, _) in next {
            if self.can_extend(next.len())? {
                break;
            }
            self.shift(*branch)?;
        }
        self.can_extend(next.len())
    }

    fn advance(&mut self, next: &[(SeqId, u32)]) -> Result<(), RuntimeError> {
        self.run(next.iter().map(|&(branch, id)| Token {
            branch,
            id,
            logits: true,
        }))
    }
}

/// A mutable handle on one branch.
pub struct Branch<'a> {
    branches: &'a mut Branches,
    id: SeqId,
}

impl Sequence for Branch<'_> {
    fn tokens(&self) -> &[u32] {
        self.branches.tokens(self.id)
    }

    fn logits(&self) -> &[f32] {
        self.branches.logits(self.id)
    }

    fn has_room(&self) -> Result<bool, RuntimeError> {
        self.branches.can_extend(1)
    }

    fn make_room(&mut self) -> Result<bool, RuntimeError> {
        if !self.branches.can_extend(1)? {
            self.branches.shift(self.id)?;
        }
        self.branches.can_extend(1)
    }

    fn feed(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        if !self.branches.can_extend(tokens.len())? {
            let (capacity, used) = (self.branches.capacity()?, self.branches.cells_used()?);
            let room = capacity - used;
            return Err(RuntimeErrorKind::PromptTooLong {
                tokens: tokens.len(),
                room,
                capacity,
            }
            .into());
        }
        self.branches.decoder.check(tokens.iter().copied())?;
        let mut done = 0;
        for chunk in tokens.chunks(self.branches.decoder.batch()) {
            done += chunk.len();
            let last = done == tokens.len();
            let token = |(i, id): (usize, &u32)| Token {
                branch: self.id,
                id: *id,
                logits: last && i + 1 == chunk.len(),
            };
            let step: Vec<Token> = chunk.iter().enumerate().map(token).collect();
            self.branches.step(&step)?;
            if !progress(done) && !last {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
