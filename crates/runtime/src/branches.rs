//! Several sequences on one model and one pool of cells: forks, batches, and going back.

use crate::generate::{Finish, GenerateOptions, Generated, Piece, Sequence, Timings, Writer};
use crate::memory::CacheKind;
use crate::runner::{Memory, Policy, check_ids, forward, plan_run};
use crate::shift::{Shift, Shifter};
use crate::snapshot::{self, Contents, Snapshot};
use crate::{Model, Module, ModuleOptions, RuntimeError, RuntimeErrorKind, Sampler};
use backend::Backend;
use kv::{CacheSession, Cells, MAX_SEQUENCES, Run, SeqId, make_seq_session};
use std::path::Path;
use std::time::Instant;

/// One token of a step: which branch it continues, and whether the logits behind it are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The branch.
    pub branch: SeqId,
    /// The token.
    pub id: u32,
    /// Whether its logits are kept as the branch's.
    pub logits: bool,
}

/// A model with many branches of text.
pub struct Branches {
    module: Module,
    session: CacheSession<Cells>,
    vocab: usize,
    batch: usize,
    /// Per sequence, its tokens and the logits behind the last one.
    states: Vec<State>,
    shifter: Option<Shifter>,
}

#[derive(Clone, Default)]
struct State {
    tokens: Vec<u32>,
    logits: Vec<f32>,
    shifts: Vec<Shift>,
}

impl Branches {
    /// Opens a session for `model` on `backend`.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        policy: &Policy,
    ) -> Result<Branches, RuntimeError> {
        let sequences = u32::try_from(policy.logit_rows).unwrap_or(u32::MAX);
        let plan = plan_run(model, backend, policy, CacheKind::Cells { sequences })?;
        let (session, options) = make_seq_session(backend.id(), &plan.cache)?;
        let options = ModuleOptions {
            backend: options,
            compile: policy.compile.clone(),
        };
        let mut module = Module::from_artifact(model.artifact(), backend, &options)?;
        module.reserve("forward", &plan.step.shapes())?;
        Ok(Branches {
            module,
            session,
            vocab: model.facts().vocab_size,
            batch: plan.step.tokens,
            states: vec![State::default(); MAX_SEQUENCES as usize],
            shifter: None,
        })
    }

    /// Lets generations go on past the end of the context: the first `keep` tokens of a branch stay, and the older half of
    /// its others makes room. Refused where the model's keys cannot be moved.
    pub fn allow_shifts(&mut self, keep: usize) -> Result<(), RuntimeError> {
        let layers = self.session.config()?.layers.len();
        self.shifter = Some(Shifter::new(&self.module, layers, keep)?);
        Ok(())
    }

    /// Makes room in a branch now, where [`allow_shifts`](Branches::allow_shifts) lets it; `None` where nothing can go.
    /// Rows that other branches share stay theirs.
    pub fn shift(&mut self, branch: SeqId) -> Result<Option<Shift>, RuntimeError> {
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

    /// What was taken out of a branch since this was last asked, in order.
    pub fn take_shifts(&mut self, branch: SeqId) -> Vec<Shift> {
        let state = self.states.get_mut(branch as usize);
        state.map_or(vec![], |state| std::mem::take(&mut state.shifts))
    }

    /// The tokens of a branch.
    pub fn tokens(&self, branch: SeqId) -> &[u32] {
        self.states.get(branch as usize).map_or(&[], |s| &s.tokens)
    }

    /// The logits behind a branch's last token; empty when there are none to continue from.
    pub fn logits(&self, branch: SeqId) -> &[f32] {
        self.states.get(branch as usize).map_or(&[], |s| &s.logits)
    }

    /// One branch, as a sequence of its own.
    pub fn branch(&mut self, id: SeqId) -> Branch<'_> {
        Branch { branches: self, id }
    }

    /// A branch that holds nothing, and is none of `taken`.
    pub fn spare(&self, taken: &[SeqId]) -> Option<SeqId> {
        (0..MAX_SEQUENCES).find(|id| self.tokens(*id).is_empty() && !taken.contains(id))
    }

    /// Makes `dst`, which must hold nothing, a copy of `src`; no bytes move.
    pub fn fork(&mut self, src: SeqId, dst: SeqId) -> Result<(), RuntimeError> {
        self.session.seq_cp(src, dst, ..)?;
        self.states[dst as usize] = self.states[src as usize].clone();
        Ok(())
    }

    /// Forgets a branch.
    pub fn remove(&mut self, branch: SeqId) -> Result<(), RuntimeError> {
        self.rewind(branch, 0)
    }

    /// Forgets all branches but one.
    pub fn keep(&mut self, branch: SeqId) -> Result<(), RuntimeError> {
        self.session.seq_keep(branch)?;
        for (id, state) in (0..).zip(&mut self.states) {
            if id != branch {
                *state = State::default();
            }
        }
        Ok(())
    }

    /// Forgets all but the first `len` tokens of a branch.
    pub fn rewind(&mut self, branch: SeqId, len: usize) -> Result<(), RuntimeError> {
        self.session
            .seq_rm(branch, u32::try_from(len).unwrap_or(u32::MAX)..)?;
        let state = &mut self.states[branch as usize];
        state.tokens.truncate(len);
        state.logits.clear();
        Ok(())
    }

    /// The shortest length that a branch can be cut back to without being forgotten: what its windows keep.
    pub fn rewind_floor(&self, branch: SeqId) -> Result<usize, RuntimeError> {
        let floor = self.session.with(|cells| cells.rewind_floor(branch))??;
        Ok(floor as usize)
    }

    /// Writes a branch to a file, in the place of what is there, with notes for whoever restores it. The old file stays
    /// whole until the new one is.
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

    /// Puts a snapshot in the place of what a branch holds. There are no logits until a token is fed. What is refused
    /// changes nothing.
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

    /// Whether `n` more tokens fit, over all branches.
    pub fn can_extend(&self, n: usize) -> Result<bool, RuntimeError> {
        match u32::try_from(n) {
            Ok(n) => Ok(self.session.can_extend(n)?),
            Err(_) => Ok(false),
        }
    }

    /// Most cells that all branches together may hold.
    pub fn capacity(&self) -> Result<usize, RuntimeError> {
        Ok(self.session.capacity()? as usize)
    }

    /// Cells in use, shared ones counted once.
    pub fn cells_used(&self) -> Result<usize, RuntimeError> {
        Ok(self.session.len()? as usize)
    }

    /// Where a branch's tokens lie.
    pub fn runs(&self, branch: SeqId) -> Result<Vec<Run>, RuntimeError> {
        Ok(self
            .session
            .with(|cells| cells.runs(branch).map(<[Run]>::to_vec))??)
    }

    /// How many branches hold each cell, up to the last one in use.
    pub fn holders(&self) -> Result<Vec<u8>, RuntimeError> {
        Ok(self.session.with(|cells| cells.holders().to_vec())?)
    }

    /// Moves rows together so that holes vanish.
    pub fn compact(&mut self) -> Result<(), RuntimeError> {
        Ok(self.session.compact()?)
    }

    /// Bytes held now.
    pub fn memory(&self) -> Result<Memory, RuntimeError> {
        Ok(Memory {
            weights: self.module.weights_bytes(),
            kv: self.session.resident_bytes()?,
            arena: self.module.arena_bytes(),
            packed: self.module.packed_bytes(),
        })
    }

    /// One forward over tokens of any branches.
    pub fn step(&mut self, tokens: &[Token]) -> Result<(), RuntimeError> {
        let ids: Vec<u32> = tokens.iter().map(|t| t.id).collect();
        check_ids(&ids, self.vocab)?;
        let seqs: Vec<SeqId> = tokens.iter().map(|t| t.branch).collect();
        self.session.begin_step(&seqs)?;
        let mut next: Vec<i32> = self.states.iter().map(|s| s.tokens.len() as i32).collect();
        let mut position = |branch: SeqId| {
            next[branch as usize] += 1;
            next[branch as usize] - 1
        };
        let positions = seqs.iter().map(|branch| position(*branch)).collect();
        let rows = (0..)
            .zip(tokens)
            .filter(|(_, t)| t.logits)
            .map(|(i, _)| i)
            .collect();
        let logits = forward(&mut self.module, &ids, positions, rows)?;
        for token in tokens {
            let state = &mut self.states[token.branch as usize];
            state.tokens.push(token.id);
            state.logits.clear();
        }
        for (token, row) in tokens
            .iter()
            .filter(|t| t.logits)
            .zip(logits.chunks(self.vocab))
        {
            let kept = &mut self.states[token.branch as usize].logits;
            kept.clear();
            kept.extend_from_slice(row);
        }
        Ok(())
    }

    /// Generates on several branches at once, one forward for all of them, each with its own sampler. Every branch must
    /// have logits to continue from. `show` learns which branch a text belongs to.
    pub fn generate(
        &mut self,
        model: &Model,
        branches: &mut [(SeqId, Sampler)],
        options: &GenerateOptions,
        mut show: impl FnMut(SeqId, Piece<'_>) -> bool,
    ) -> Result<Vec<Generated>, RuntimeError> {
        let start = Instant::now();
        let mut writers = Vec::new();
        for (id, _) in branches.iter() {
            if self.logits(*id).is_empty() {
                return Err(RuntimeErrorKind::EmptyPrompt.into());
            }
            writers.push(Writer::new(model, options, self.tokens(*id).iter()));
        }
        let mut ends: Vec<Option<Finish>> = vec![None; branches.len()];
        loop {
            let mut step = Vec::new();
            let mut go_on = true;
            for (((id, sampler), writer), end) in
                branches.iter_mut().zip(&mut writers).zip(&mut ends)
            {
                if end.is_none() {
                    let token = sampler.sample(&self.states[*id as usize].logits, writer.history());
                    let (text, finish) = writer.push(token);
                    go_on &= show(*id, Piece::Text(&text));
                    *end = finish;
                    step.extend(finish.is_none().then_some(Token {
                        branch: *id,
                        id: token,
                        logits: true,
                    }));
                }
            }
            let forced = match (go_on, self.can_extend(step.len())?) {
                (false, _) => Some(Finish::Interrupted),
                (true, false) => Some(Finish::Context),
                (true, true) => None,
            };
            if forced.is_some() {
                ends.iter_mut().for_each(|end| *end = end.or(forced));
            }
            if ends.iter().all(Option::is_some) {
                break;
            }
            self.step(&step)?;
        }
        let finish =
            |((writer, end), (id, _)): ((Writer<'_>, Option<Finish>), &(SeqId, Sampler))| {
                let mut generated = writer.finish(end.unwrap_or(Finish::Interrupted), |text| {
                    show(*id, Piece::Text(text));
                });
                let generated_tokens = generated.tokens.len();
                generated.timings = Timings {
                    generated_tokens,
                    generated: start.elapsed(),
                    // Every token but the last was fed.
                    decoded_tokens: generated_tokens.saturating_sub(1),
                    ..Timings::default()
                };
                generated
            };
        Ok(writers
            .into_iter()
            .zip(ends)
            .zip(branches.iter())
            .map(finish)
            .collect())
    }
}

/// A view of one branch.
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
        check_ids(tokens, self.branches.vocab)?;
        let mut done = 0;
        for chunk in tokens.chunks(self.branches.batch) {
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
