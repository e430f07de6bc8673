//! The sequences of a runner: their tokens, forks, rewinds, context shifts and snapshots.

use super::{Approximation, BatchRunner, Candidates, SequenceState};
use crate::context_shift::{ContextShift, ContextShifter};
use crate::prefix::PromptPrefix;
use crate::snapshot::{self, Contents, Format, Snapshot};
use crate::{Model, RuntimeError, RuntimeErrorKind, common_prefix_len};
use backend::{LogitsMode, RowOutputs};
use kv::{MAX_SEQUENCES, SeqId, StreamRule};
use std::path::Path;

impl BatchRunner {
    /// The tokens of a sequence, with the pending one.
    pub fn tokens(&self, seq: SeqId) -> &[u32] {
        self.states.get(seq as usize).map_or(&[], |s| &s.tokens)
    }

    /// The tokens of a sequence whose keys and values are cached.
    pub(crate) fn fed_tokens(&self, seq: SeqId) -> &[u32] {
        let state = self.states.get(seq as usize);
        state.map_or(&[], |state| &state.tokens[..state.fed()])
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
    pub(super) fn take_pending(&mut self, seq: SeqId) -> Option<u32> {
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

    /// An empty sequence that is not in `taken`.
    pub fn free_sequence(&self, taken: &[SeqId]) -> Option<SeqId> {
        (0..MAX_SEQUENCES).find(|id| self.tokens(*id).is_empty() && !taken.contains(id))
    }

    /// Enables context shifts: when the context is full, a generation keeps the first `keep` tokens of its sequence and
    /// drops the older half of the others.
    ///
    /// # Errors
    /// `Backend` if the keys of the model cannot be moved to other positions, `InvalidOptions` if sequences are streams.
    pub fn enable_context_shift(&mut self, keep: usize) -> Result<(), RuntimeError> {
        if self.stream_window().is_some() {
            let reason = "sequences are streams, which shift already".to_owned();
            return Err(RuntimeErrorKind::InvalidOptions(reason).into());
        }
        self.check_no_sinks()?;
        let config = self.cache.config()?;
        let layers = config.layers.len();
        self.shifter = Some(ContextShifter::new(
            self.decoder.forward.graph(),
            layers,
            keep,
        )?);
        Ok(())
    }

    /// The most tokens of a sequence: the window of a stream, or the cells of the cache.
    pub fn sequence_limit(&self) -> Result<usize, RuntimeError> {
        let capacity = self.capacity()?;
        Ok(self
            .stream_window()
            .map_or(capacity, |window| window.min(capacity)))
    }

    /// The window of the stream that every sequence is, if the policy of the options says so.
    pub fn stream_window(&self) -> Option<usize> {
        self.shifter.as_ref().and_then(ContextShifter::window)
    }

    /// Keeps the first `tokens` of every sequence if sequences are streams and the rule keeps fewer.
    ///
    /// # Errors
    /// `InvalidOptions` if no token of a window would be left to drop.
    pub fn keep_in_streams(&mut self, tokens: usize) -> Result<(), RuntimeError> {
        let Some(shifter) = self.shifter.as_ref().filter(|s| s.window().is_some()) else {
            return Ok(());
        };
        let sinks = shifter.keep().max(tokens);
        self.enable_stream(sinks)
    }

    /// Makes every sequence a stream that keeps its first `sinks` tokens, if the policy of the options says so.
    pub(super) fn enable_stream(&mut self, sinks: usize) -> Result<(), RuntimeError> {
        let Some(StreamRule { window, .. }) = self.options.kv_policy.stream else {
            return Ok(());
        };
        let sinks = u32::try_from(sinks).ok().filter(|sinks| *sinks < window);
        let sinks = sinks.ok_or_else(|| {
            RuntimeErrorKind::InvalidOptions(format!(
                "the first tokens that stay leave no token of a window of {window} to drop"
            ))
        })?;
        let rule = StreamRule { window, sinks };
        self.check_no_sinks()?;
        let config = self.cache.config()?;
        let graph = self.decoder.forward.graph();
        self.shifter = Some(ContextShifter::of_stream(graph, &config, rule)?);
        Ok(())
    }

    /// Returns an error if layers have sinks, whose rows do not move.
    pub(super) fn check_no_sinks(&self) -> Result<(), RuntimeError> {
        match self.cache.config()?.has_sinks() {
            true => {
                let reason = "the context of layers with sinks cannot be shifted, nor be a stream";
                Err(RuntimeErrorKind::InvalidOptions(reason.to_owned()).into())
            }
            false => Ok(()),
        }
    }

    /// The number of tokens that a sequence can be fed before the next shift of its stream, at least 1: a full window is shifted first.
    /// Without streams there is no limit. Shifts happen at the same tokens however a text is divided into steps.
    ///
    /// # Errors
    /// `Cache` if rows that others share have to be copied and there are too few cells.
    pub(crate) fn stream_room(&mut self, seq: SeqId) -> Result<usize, RuntimeError> {
        let Some(window) = self.stream_window() else {
            return Ok(usize::MAX);
        };
        loop {
            let fed = self.states.get(seq as usize).map_or(0, SequenceState::fed);
            if fed < window {
                return Ok(window - fed);
            }
            if self.shift_context(seq)?.is_none() {
                let reason = format!("no token of a window of {window} can be dropped");
                return Err(RuntimeErrorKind::InvalidOptions(reason).into());
            }
        }
    }

    /// Shifts a sequence now, if [`enable_context_shift`](BatchRunner::enable_context_shift) was called. Returns `None`
    /// if nothing was dropped. Rows that other sequences share do not change.
    pub fn shift_context(&mut self, seq: SeqId) -> Result<Option<ContextShift>, RuntimeError> {
        let Some(shifter) = &self.shifter else {
            return Ok(None);
        };
        let fed = self.states.get(seq as usize).map_or(0, SequenceState::fed);
        let shift = shifter.shift(&*self.cache, seq, fed)?;
        if let Some(shift) = shift {
            let state = &mut self.states[seq as usize];
            shift.apply(&mut state.tokens);
            state.shifts.push(shift);
            if let Some(features) = &mut state.features {
                features.clear();
            }
            self.mark_inexact(seq, shift.keep, Approximation::Moved);
        }
        Ok(shift)
    }

    /// Shifts sequences, if context shifts are enabled, until `n` more tokens fit. Returns whether they do.
    pub(crate) fn make_room(
        &mut self,
        sequences: &[SeqId],
        n: usize,
    ) -> Result<bool, RuntimeError> {
        for seq in sequences {
            self.stream_room(*seq)?;
        }
        for seq in sequences {
            if self.has_cells(n)? {
                break;
            }
            self.shift_context(*seq)?;
        }
        self.has_cells(n)
    }

    /// The shifts of a sequence since the last call, in order.
    pub fn take_shifts(&mut self, seq: SeqId) -> Vec<ContextShift> {
        let state = self.states.get_mut(seq as usize);
        state.map_or(vec![], |state| std::mem::take(&mut state.shifts))
    }

    /// Makes `dst`, which must be empty, a copy of the first `len` tokens of `src`, which may be a retained prefix.
    /// Copies no rows. There are no logits until a token is fed. Returns how many tokens were computed again: those after the last
    /// kept state of a model with recurrent layers.
    pub fn fork_prefix(
        &mut self,
        src: SeqId,
        dst: SeqId,
        len: usize,
    ) -> Result<usize, RuntimeError> {
        let whole = self.is_pending(src) && len == self.tokens(src).len();
        let tokens = self.tokens(src);
        let tokens = tokens[..len.min(tokens.len())].to_vec();
        let fed = tokens.len() - usize::from(whole);
        let kept = self.kept_state(src, fed)?;
        self.cache.fork(src, dst, kept as u32)?;
        self.states[dst as usize] = SequenceState {
            tokens: tokens[..kept].to_vec(),
            inexact: self.inexact(src).filter(|inexact| inexact.from < kept),
            ..SequenceState::default()
        };
        self.feed_again(dst, &tokens[kept..fed])?;
        if whole {
            self.append(dst, tokens[fed]);
        }
        Ok(fed - kept)
    }

    /// Makes `dst`, which must be empty, a copy of `src`. Copies no rows.
    pub fn fork(&mut self, src: SeqId, dst: SeqId) -> Result<(), RuntimeError> {
        let fed = self.fed_tokens(src).len() as u32;
        self.cache.fork(src, dst, fed)?;
        self.states[dst as usize] = self.states[src as usize].clone();
        Ok(())
    }

    /// The length up to `len` at which a sequence has a state; `len` itself in a model without recurrent layers.
    fn kept_state(&self, seq: SeqId, len: usize) -> Result<usize, RuntimeError> {
        match self.cache.states_used()? {
            (_, 0) => Ok(len),
            _ => Ok(self.cache.restorable(seq, len as u32)? as usize),
        }
    }

    /// Computes tokens of a sequence again.
    fn feed_again(&mut self, seq: SeqId, tokens: &[u32]) -> Result<(), RuntimeError> {
        if tokens.is_empty() {
            return Ok(());
        }
        let wanted = LogitsMode::Argmax;
        self.sequence(seq).feed_wanted(tokens, wanted, |_| true)?;
        self.states[seq as usize].row.clear();
        Ok(())
    }

    /// Retains the tokens of a sequence, except a pending one, as a read-only prefix that takes no sequence number, and returns
    /// its id.
    pub fn retain(&mut self, seq: SeqId) -> Result<SeqId, RuntimeError> {
        let id = self.cache.retain(seq)?;
        let tokens = self.fed_tokens(seq).to_vec();
        let states = self.states.len().max(id as usize + 1);
        self.states.resize_with(states, SequenceState::default);
        self.states[id as usize].tokens = tokens;
        self.states[id as usize].inexact = self.inexact(seq);
        Ok(id)
    }

    /// Removes a retained prefix.
    pub fn release(&mut self, id: SeqId) -> Result<(), RuntimeError> {
        self.cache.release(id)?;
        self.states[id as usize] = SequenceState::default();
        Ok(())
    }

    /// Freezes the tokens of a runner of one sequence into a prefix that other runners can share, after the pending token was
    /// fed. This runner continues after it. `model` is the runner's model.
    pub fn freeze(&mut self, model: &Model) -> Result<PromptPrefix, RuntimeError> {
        self.sequence(0).feed(&[], |_| true)?;
        let shared = self.cache.freeze()?;
        Ok(PromptPrefix::new(shared, self.tokens(0).to_vec(), model))
    }

    /// The sequence of the frozen prefix that a pool of cells stands on, to fork from; see
    /// [`RunnerOptions::prefix`](crate::RunnerOptions::prefix).
    pub fn prefix(&self) -> Option<SeqId> {
        self.cache.prefix().ok().flatten()
    }

    /// Begins an empty sequence with the frozen prefix that the cache stands on, and returns the prefix's length. A cache of one
    /// sequence has begun with it already. 0 without a prefix.
    pub fn begin_with_prefix(&mut self, seq: SeqId) -> Result<usize, RuntimeError> {
        if let Some(prefix) = self.prefix() {
            let len = self.tokens(prefix).len();
            self.fork_prefix(prefix, seq, len)?;
        }
        Ok(self.tokens(seq).len())
    }

    /// The number of the first `len` tokens of a sequence that another one can share: all, but for recurrent layers, which keep few
    /// states.
    pub(crate) fn shareable(&self, seq: SeqId, len: usize) -> usize {
        match self.has_states() {
            true => self.kept_state(seq, len).unwrap_or(0),
            false => len,
        }
    }

    /// Whether the model has recurrent layers, whose states are kept after some tokens only.
    pub fn has_states(&self) -> bool {
        self.cache.states_used().is_ok_and(|(_, slots)| slots > 0)
    }

    /// Slots of states in use and their number; zeros if the model has no recurrent layers.
    pub fn states_used(&self) -> Result<(u32, u32), RuntimeError> {
        Ok(self.cache.states_used()?)
    }

    /// Removes all tokens of a sequence.
    pub fn remove(&mut self, seq: SeqId) -> Result<(), RuntimeError> {
        self.rewind(seq, 0).map(|_| ())
    }

    /// Removes the tokens of all sequences except one.
    pub fn keep_only(&mut self, seq: SeqId) -> Result<(), RuntimeError> {
        self.cache.keep_only(seq)?;
        for (id, state) in (0..MAX_SEQUENCES).zip(&mut self.states) {
            if id != seq {
                *state = SequenceState::default();
            }
        }
        Ok(())
    }

    /// Removes all tokens after the first `len` of a sequence. Returns how many tokens were computed again: in a model with recurrent
    /// layers those after the nearest kept state. If that fails, the sequence ends at that state.
    pub fn rewind(&mut self, seq: SeqId, len: usize) -> Result<usize, RuntimeError> {
        let keeps_pending = self.is_pending(seq) && len == self.tokens(seq).len();
        let fed = len - usize::from(keeps_pending);
        let kept = match fed < self.fed_tokens(seq).len() {
            true => self.kept_state(seq, fed)?,
            false => fed,
        };
        if kept < fed {
            let again = self.tokens(seq)[kept..fed].to_vec();
            self.cut(seq, kept, false)?;
            self.feed_again(seq, &again)?;
            return Ok(again.len());
        }
        self.cut(seq, len, keeps_pending)?;
        Ok(0)
    }

    /// Removes all tokens after the first `len` of a sequence; the last one may be pending.
    fn cut(&mut self, seq: SeqId, len: usize, keeps_pending: bool) -> Result<(), RuntimeError> {
        let fed = len - usize::from(keeps_pending);
        self.cache
            .rewind(seq, u32::try_from(fed).unwrap_or(u32::MAX))?;
        let state = &mut self.states[seq as usize];
        state.tokens.truncate(len);
        state.inexact = state.inexact.filter(|inexact| inexact.from < fed);
        state.pending = keeps_pending;
        state.row.clear();
        state.candidates = Candidates::default();
        if len == 0 {
            state.features = None;
        }
        if let Some(features) = &mut state.features {
            features.truncate(len);
        }
        Ok(())
    }

    /// The longest length, at most `len`, at which a sequence or a retained prefix can go on without computing a token again; 0 if it
    /// can only begin anew. Ring layers have evicted the rows that a shorter one needs, and recurrent layers keep few states.
    pub fn restorable(&self, seq: SeqId, len: usize) -> Result<usize, RuntimeError> {
        let most = self.fed_tokens(seq).len();
        if len > most {
            return Ok(len.min(self.tokens(seq).len()));
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Ok(self.cache.restorable(seq, len)? as usize)
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
        self.save_as(Format::Snapshot, (model, seq), path, notes)
    }

    /// Writes a sequence and the caller's notes to a prefix file, as [`save`](BatchRunner::save).
    pub fn save_prefix(
        &self,
        model: &Model,
        seq: SeqId,
        path: &Path,
        notes: &[u8],
    ) -> Result<(), RuntimeError> {
        self.save_as(Format::Prefix, (model, seq), path, notes)
    }

    fn save_as(
        &self,
        format: Format,
        (model, seq): (&Model, SeqId),
        path: &Path,
        notes: &[u8],
    ) -> Result<(), RuntimeError> {
        let tokens = self.fed_tokens(seq);
        let contents = Contents {
            format,
            tokens,
            notes,
        };
        snapshot::save(path, model, &*self.cache, seq, contents)
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
    pub fn restore_prefix(
        &mut self,
        model: &Model,
        seq: SeqId,
        snapshot: &Snapshot,
        len: usize,
    ) -> Result<(), RuntimeError> {
        let tokens = snapshot.tokens()[..len].to_vec();
        snapshot::restore(snapshot, model, &*self.cache, seq, len)?;
        self.states[seq as usize] = SequenceState {
            tokens,
            ..SequenceState::default()
        };
        Ok(())
    }

    /// Appends the tokens of a snapshot up to `len` to a sequence that has its first ones. An error leaves the sequence unchanged,
    /// except that a device error leaves it empty.
    pub(crate) fn restore_rest(
        &mut self,
        model: &Model,
        seq: SeqId,
        snapshot: &Snapshot,
        len: usize,
    ) -> Result<(), RuntimeError> {
        let held = self.fed_tokens(seq).len();
        snapshot::restore_rest(snapshot, model, &*self.cache, seq, [held, len])?;
        let state = &mut self.states[seq as usize];
        state
            .tokens
            .extend_from_slice(&snapshot.tokens()[held..len]);
        state.row.clear();
        state.features = None;
        Ok(())
    }

    /// Copies a sequence to a snapshot in memory, without a pending token.
    pub fn snapshot(
        &self,
        model: &Model,
        seq: SeqId,
        notes: &[u8],
    ) -> Result<Snapshot, RuntimeError> {
        let contents = Contents {
            format: Format::Snapshot,
            tokens: self.fed_tokens(seq),
            notes,
        };
        snapshot::copy(model, &*self.cache, seq, &contents)
    }

    /// Restores the longest common prefix of a snapshot and `prompt` in a sequence, and returns its length. At least the last
    /// token of `prompt` is left to be fed. With recurrent layers, the prefix ends where there is
    /// a state. Returns 0 if the snapshot's ring layers lack the rows of that prefix.
    pub fn resume(
        &mut self,
        model: &Model,
        seq: SeqId,
        snapshot: &Snapshot,
        prompt: &[u32],
    ) -> Result<usize, RuntimeError> {
        let most = prompt.len().saturating_sub(1).min(self.capacity()?);
        let known = common_prefix_len(snapshot.tokens(), prompt).min(most);
        let known = snapshot.restorable().longest(known);
        if known == 0 {
            snapshot.check(model, &self.cache.config()?)?;
            self.remove(seq)?;
            return Ok(0);
        }
        self.restore_prefix(model, seq, snapshot, known)?;
        Ok(known)
    }
}
