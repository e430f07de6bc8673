//! `ScatterIndex`: static buffers with a valid length each, the cache of ONNX decoders with `write_indices` and
//! `nonpad_kv_seqlen`.

use crate::cells::resolve_positions;
use crate::plan::LayerClasses;
use crate::sequence_rows::first_restorable_position;
use crate::step::{Role, StepToken, no_candidates};
use crate::{
    Cache, CacheConfig, CacheManager, CellRun, KvError, KvErrorKind, Restorable, SavedPositions,
    SeqCache, SeqId, SequenceRows, Step, StepPlan,
};
use std::ops::{Range, RangeBounds};

/// One static buffer of `max_seq_len` rows for each of a fixed number of sequences.
///
/// The state of a sequence is its number of valid rows. A step writes to the rows after the valid ones; its real tokens
/// are valid afterwards. Pad tokens may follow the real ones: their rows are written but stay invalid, and the next
/// step overwrites them. A step of pads alone does not change the state.
///
/// The buffers grow together. With `m` cells in the first allocation, the rows `0..m` of all sequences come first, then
/// the rows `m..2m` of all sequences, then `2m..4m`. So the number of cells depends on the longest sequence, and growth
/// renumbers no cell. With one sequence, row `r` is in cell `r`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScatterIndex {
    classes: LayerClasses,
    max_seq_len: u32,
    /// Rows of a sequence in the first block of cells.
    first_block_rows: u32,
    /// The number of valid rows of each sequence.
    valid_rows: Vec<u32>,
    /// The sequence of every token of the declared step and whether it is real; empty when no step is declared.
    declared: Vec<(SeqId, bool)>,
}

/// The inputs that describe a step to a graph with static buffers, one number per sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScatterStep {
    /// The row of the step's first token: the number of valid rows before the step.
    pub write_indices: Vec<i64>,
    /// The number of valid rows after the step.
    pub nonpad_kv_seqlen: Vec<i64>,
}

impl ScatterIndex {
    /// Empty buffers of `config.capacity` rows for each of `sequences` sequences.
    pub fn new(config: &CacheConfig, sequences: u32) -> ScatterIndex {
        ScatterIndex {
            classes: LayerClasses::new(&config.layers),
            max_seq_len: config.capacity,
            first_block_rows: config.initial_cells.clamp(1, config.capacity.max(1)),
            valid_rows: vec![0; sequences as usize],
            declared: Vec::new(),
        }
    }

    /// The number of sequences.
    pub fn sequences(&self) -> u32 {
        self.valid_rows.len() as u32
    }

    /// The number of valid rows of a sequence; 0 if there is no such sequence.
    pub(crate) fn valid_rows(&self, seq: SeqId) -> u32 {
        self.valid_rows.get(seq as usize).copied().unwrap_or(0)
    }

    /// Rows of each buffer.
    pub fn max_seq_len(&self) -> u32 {
        self.max_seq_len
    }

    /// The indices of a step with `tokens` tokens per sequence. The first `real[s]` tokens of sequence `s` are real,
    /// the others are pads. Does not change the state: call [`advance`](ScatterIndex::advance) after the forward.
    pub fn indices(&self, tokens: u32, real: &[u32]) -> Result<ScatterStep, KvError> {
        if tokens == 0 {
            return Err(KvErrorKind::EmptyStep.into());
        }
        if real.len() != self.valid_rows.len() {
            let (declared, found) = (self.valid_rows.len(), real.len());
            return Err(KvErrorKind::SequenceCount { declared, found }.into());
        }
        for ((seq, &valid), &real) in (0..).zip(&self.valid_rows).zip(real) {
            self.check_room(seq, valid, tokens)?;
            if real > tokens {
                let (declared, found) = (tokens as usize, real as usize);
                return Err(KvErrorKind::TokenCount { declared, found }.into());
            }
        }
        let after = self
            .valid_rows
            .iter()
            .zip(real)
            .map(|(valid, real)| valid + real);
        Ok(ScatterStep {
            write_indices: self.valid_rows.iter().map(|n| i64::from(*n)).collect(),
            nonpad_kv_seqlen: after.map(i64::from).collect(),
        })
    }

    /// Adds the real tokens of a step to the cache. Called after its forward succeeded.
    ///
    /// # Panics
    /// If the cache has changed since [`indices`](ScatterIndex::indices) made the step.
    pub fn advance(&mut self, step: &ScatterStep) {
        let before = self.valid_rows.iter().map(|n| i64::from(*n));
        assert!(
            before.eq(step.write_indices.iter().copied()),
            "the step was planned on another state of the cache"
        );
        for (valid, after) in self.valid_rows.iter_mut().zip(&step.nonpad_kv_seqlen) {
            *valid = *after as u32;
        }
    }

    /// Declares the tokens of the next forward like [`SeqCache::begin_step`], with a flag whether a token is real. Pads
    /// must follow the real tokens of their sequence.
    pub fn begin_padded_step(&mut self, tokens: &[(SeqId, bool)]) -> Result<(), KvError> {
        if !self.declared.is_empty() {
            return Err(KvErrorKind::StepPending.into());
        }
        if tokens.is_empty() {
            return Err(KvErrorKind::EmptyStep.into());
        }
        self.check_tokens(tokens.iter().copied())?;
        self.declared.extend_from_slice(tokens);
        Ok(())
    }

    fn check_seq(&self, seq: SeqId) -> Result<usize, KvError> {
        let max = self.sequences();
        match seq < max {
            true => Ok(seq as usize),
            false => Err(KvErrorKind::UnknownSequence { seq, max }.into()),
        }
    }

    fn check_room(&self, seq: SeqId, valid: u32, tokens: u32) -> Result<(), KvError> {
        let needed = u64::from(valid) + u64::from(tokens);
        if needed > u64::from(self.max_seq_len) {
            let max_seq_len = self.max_seq_len;
            return Err(KvErrorKind::StaticFull {
                seq,
                needed,
                max_seq_len,
            }
            .into());
        }
        Ok(())
    }

    /// The rows that are in the same block of cells as `row`.
    fn block(&self, row: u32) -> Range<u32> {
        let start = match row < self.first_block_rows {
            true => return 0..self.first_block_rows,
            false => self.first_block_rows << (row / self.first_block_rows).ilog2(),
        };
        start..start.saturating_mul(2).min(self.max_seq_len)
    }

    fn cell(&self, seq: usize, row: u32) -> u32 {
        let block = self.block(row);
        let before = block.start * self.sequences() + seq as u32 * (block.end - block.start);
        before + (row - block.start)
    }

    /// The runs of the first `rows` rows of a sequence.
    fn runs(&self, seq: usize, rows: u32) -> impl Iterator<Item = CellRun> + '_ {
        let mut row = 0;
        std::iter::from_fn(move || {
            let position = (row < rows).then_some(row)?;
            row = self.block(position).end.min(rows);
            Some(CellRun {
                position,
                cell: self.cell(seq, position),
                len: row - position,
            })
        })
    }

    /// Returns an error if the tokens do not fit their buffers or if a pad precedes a real token of its sequence.
    fn check_tokens(&self, tokens: impl Iterator<Item = (SeqId, bool)>) -> Result<(), KvError> {
        let mut counts = vec![0; self.valid_rows.len()];
        let mut padded = vec![false; self.valid_rows.len()];
        for (index, (seq, real)) in tokens.enumerate() {
            let s = self.check_seq(seq)?;
            counts[s] += 1;
            self.check_room(seq, self.valid_rows[s], counts[s])?;
            if real && padded[s] {
                return Err(KvErrorKind::PadBefore { index, seq }.into());
            }
            padded[s] |= !real;
        }
        Ok(())
    }
}

impl Cache for ScatterIndex {
    /// Whether `n` more tokens fit in every sequence.
    fn can_extend(&self, n: u32) -> bool {
        let longest = self.valid_rows.iter().max().copied().unwrap_or(0);
        n <= self.max_seq_len - longest
    }

    fn capacity(&self) -> u32 {
        self.max_seq_len * self.sequences()
    }

    fn len(&self) -> u32 {
        self.valid_rows.iter().sum()
    }

    fn clear(&mut self) {
        self.valid_rows.fill(0);
        self.declared.clear();
    }

    /// Removes all tokens after the first `len` of every sequence.
    fn rewind(&mut self, to: u32) -> Result<(), KvError> {
        let len = self.valid_rows.iter().max().copied().unwrap_or(0);
        if to > len {
            return Err(KvErrorKind::RewindForward { to, len }.into());
        }
        self.valid_rows.iter_mut().for_each(|n| *n = to.min(*n));
        Ok(())
    }
}

impl SeqCache for ScatterIndex {
    fn begin_step(&mut self, seqs: &[SeqId]) -> Result<(), KvError> {
        let tokens: Vec<(SeqId, bool)> = seqs.iter().map(|seq| (*seq, true)).collect();
        self.begin_padded_step(&tokens)
    }

    /// Always fails for two different sequences: each has its own buffer.
    fn seq_cp(&mut self, src: SeqId, dst: SeqId, _: impl RangeBounds<u32>) -> Result<(), KvError> {
        self.check_seq(src)?;
        self.check_seq(dst)?;
        match src == dst {
            true => Ok(()),
            false => Err(KvErrorKind::NotShared { src, dst }.into()),
        }
    }

    /// Removes the last positions of a sequence. A removal that would leave a hole fails.
    fn seq_rm(&mut self, seq: SeqId, range: impl RangeBounds<u32>) -> Result<(), KvError> {
        let s = self.check_seq(seq)?;
        let len = self.valid_rows[s];
        let Range { start, end } = resolve_positions(range);
        if start >= end.min(len) {
            return Ok(());
        }
        if end < len {
            return Err(KvErrorKind::Hole { seq, end, len }.into());
        }
        self.valid_rows[s] = start;
        Ok(())
    }

    fn seq_keep(&mut self, seq: SeqId) -> Result<(), KvError> {
        let keep = self.check_seq(seq)?;
        let others = self
            .valid_rows
            .iter_mut()
            .enumerate()
            .filter(|(s, _)| *s != keep);
        others.for_each(|(_, valid)| *valid = 0);
        Ok(())
    }

    fn seq_len(&self, seq: SeqId) -> Result<u32, KvError> {
        Ok(self.valid_rows[self.check_seq(seq)?])
    }

    fn seq_next(&self, seq: SeqId) -> Result<Option<u32>, KvError> {
        Ok(Some(self.seq_len(seq)?))
    }
}

impl Restorable for ScatterIndex {
    fn sequence_rows(&self, seq: SeqId) -> Result<SequenceRows, KvError> {
        let s = self.check_seq(seq)?;
        let mut held = SequenceRows::new(self.valid_rows[s], self.classes.class_of.clone());
        let runs: Vec<CellRun> = self.runs(s, self.valid_rows[s]).collect();
        let cells = runs.last().map_or(0, |run| run.cell + run.len);
        for _ in &self.classes.windows {
            held.push(runs.iter().copied(), cells);
        }
        Ok(held)
    }

    fn plan_restore(
        &self,
        seq: SeqId,
        len: u32,
        saved: SavedPositions<'_>,
    ) -> Result<(ScatterIndex, SequenceRows), KvError> {
        let s = self.check_seq(seq)?;
        if self.is_declared() {
            return Err(KvErrorKind::StepPending.into());
        }
        self.check_room(seq, 0, len)?;
        first_restorable_position(saved.first.iter().copied().enumerate(), 0)?;
        let mut after = self.clone();
        after.valid_rows[s] = len;
        let held = after.sequence_rows(seq)?;
        Ok((after, held))
    }

    fn forget(&mut self, seq: SeqId) {
        if let Some(valid) = self.valid_rows.get_mut(seq as usize) {
            *valid = 0;
        }
    }
}

/// Whether a token is real.
fn is_real(token: &StepToken) -> bool {
    token.role != Role::Padding
}

impl CacheManager for ScatterIndex {
    /// With one sequence, no declaration is needed.
    fn declared(&self, positions: &[i32], step: &mut Step) -> Result<(), KvError> {
        step.at(positions);
        if positions.is_empty() || (self.declared.is_empty() && self.sequences() == 1) {
            return Ok(());
        }
        if self.declared.is_empty() {
            return Err(KvErrorKind::StepNotDeclared.into());
        }
        let (declared, found) = (self.declared.len(), positions.len());
        if declared != found {
            return Err(KvErrorKind::TokenCount { declared, found }.into());
        }
        step.clear();
        for (&(seq, real), &position) in self.declared.iter().zip(positions) {
            let role = if real { Role::Next } else { Role::Padding };
            step.push(StepToken {
                id: 0,
                position,
                seq,
                role,
            });
        }
        Ok(())
    }

    fn is_declared(&self) -> bool {
        !self.declared.is_empty()
    }

    fn plan(&self, step: &Step, plan: &mut StepPlan) -> Result<(), KvError> {
        self.classes.check_no_states("scatter")?;
        let tokens = step.tokens();
        if tokens.is_empty() {
            return Err(KvErrorKind::EmptyStep.into());
        }
        no_candidates(tokens)?;
        self.check_tokens(tokens.iter().map(|token| (token.seq, is_real(token))))?;
        let mut after = self.valid_rows.clone();
        for (index, token) in tokens.iter().enumerate() {
            let next = &mut after[token.seq as usize];
            token.check_position(index, *next)?;
            *next += 1;
        }
        plan.reset(step, &self.classes);
        let Some(first) = plan.classes.first_mut() else {
            return Ok(());
        };
        first.visible.clear();
        let cell = |token: &StepToken| self.cell(token.seq as usize, token.position as u32);
        first.writes.clear();
        first.writes.extend(tokens.iter().map(cell));
        first.cells = first.writes.iter().max().map_or(0, |last| last + 1);
        let mut lists = vec![None; self.valid_rows.len()];
        for token in tokens {
            let s = token.seq as usize;
            let list = *lists[s].get_or_insert_with(|| {
                let list = first.visible.open_list();
                self.runs(s, after[s])
                    .for_each(|run| first.visible.push_run(run));
                list
            });
            let seen = (0..token.position as u32 + 1, 0);
            first.visible.push_query(list, seen);
        }
        plan.narrow_classes(&self.classes);
        Ok(())
    }

    fn commit(&mut self, plan: &StepPlan) {
        for token in plan.step.tokens() {
            self.valid_rows[token.seq as usize] += u32::from(is_real(token));
        }
        self.declared.clear();
    }

    fn abort(&mut self, _: Option<&StepPlan>) {
        self.declared.clear();
    }
}

#[cfg(test)]
mod tests;
