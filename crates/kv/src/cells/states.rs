//! The states of recurrent layers: planning, committing and giving up snapshots.
//!
//! A sequence holds states after some of its positions, in a cell space of their own. The last one is its live state, which the
//! next token continues. The others are snapshots, at which a rewind or a fork can end. A step writes to new cells only, so that a
//! failed step leaves the live states as they were.

use super::space::{CellSpace, Retention};
use super::{Cells, MAX_SEQUENCES};
use crate::candidate_tree::StepTree;
use crate::plan::{LayerPlan, NO_CELL, StateSource};
use crate::step::{Role, StepToken};
use crate::{KvError, KvErrorKind, SeqId, StatePolicy, Step};
use std::ops::Range;

impl Cells {
    /// The longest length, at most `len`, at which a sequence or a retained prefix can be rewound or forked. 0 if there is none.
    pub fn restorable(&self, seq: SeqId, len: u32) -> Result<u32, KvError> {
        let seq = self.check_owner(seq)?;
        let floor = self.floor(seq);
        let Some(space) = self.states() else {
            return Ok(if len >= floor { len } else { 0 });
        };
        let next = self.spaces[0].sequences[seq as usize].next().unwrap_or(0);
        let len = len.min(next);
        let nearest = space.nearest_state(seq, len);
        Ok(if nearest >= floor { nearest } else { 0 })
    }

    /// The positions after which a sequence has states, in order; empty if no layer has states.
    pub fn state_positions(&self, seq: SeqId) -> Result<Vec<u32>, KvError> {
        let seq = self.check_owner(seq)?;
        let held = self.states().map(|space| space.states(seq));
        Ok(held.map_or(vec![], |held| held.map(|(position, _)| position).collect()))
    }

    /// States in use, and the maximum number; zeros if no layer has states.
    pub fn states_used(&self) -> (u32, u32) {
        let space = self.states();
        space.map_or((0, 0), |space| (space.used, space.capacity()))
    }

    /// The cell space of states.
    pub(super) fn states(&self) -> Option<&CellSpace> {
        let last = self.spaces.last();
        last.filter(|space| space.policy().is_some())
    }

    /// Returns an error if `seq` would end without a state once these positions are removed.
    pub(super) fn check_states_after_removal(
        &self,
        seq: SeqId,
        range: &Range<u32>,
    ) -> Result<(), KvError> {
        let Some(space) = self.states() else {
            return Ok(());
        };
        let sequence = &self.spaces[0].sequences[seq as usize];
        let removed = sequence.count(range);
        let left = sequence.len - removed;
        if removed == 0 || left == 0 {
            return Ok(());
        }
        if sequence.count(&(range.end..u32::MAX)) > 0 || sequence.count(&(0..range.start)) < left {
            return Err(inside().into());
        }
        let kept = 0..range.start;
        let mut held = sequence.runs.iter().filter_map(|run| run.clip(&kept));
        let to = held.next_back().map_or(0, |run| run.position + run.len);
        space.check_state(seq, to)
    }

    /// Returns an error unless a sequence without tokens can share the tokens of `src` at these positions.
    pub(super) fn check_shared_states(
        &self,
        src: SeqId,
        dst: SeqId,
        range: &Range<u32>,
    ) -> Result<(), KvError> {
        let Some(space) = self.states() else {
            return Ok(());
        };
        let [from, to] = [src, dst].map(|seq| &self.spaces[0].sequences[seq as usize]);
        let shared = from.count(range);
        if shared == 0 {
            return Ok(());
        }
        if to.len > 0 || from.count(&(0..range.start)) > 0 {
            return Err(inside().into());
        }
        let mut runs = from.runs.iter().filter_map(|run| run.clip(range));
        let end = runs.next_back().map_or(0, |run| run.position + run.len);
        space.check_state(src, end)
    }

    /// Plans the states that a step reads and writes.
    pub(super) fn plan_states(
        &self,
        space: &CellSpace,
        policy: StatePolicy,
        step: &Step,
        trees: &[StepTree],
        plan: &mut LayerPlan,
    ) -> Result<(), KvError> {
        let tokens = &step.tokens()[..step.real_len()];
        plan.visible.clear();
        plan.writes.clear();
        plan.writes.resize(tokens.len(), NO_CELL);
        plan.evicted.clear();
        let before = predecessors(tokens, trees);
        let ends = sequence_ends(tokens);
        let mut is_needed: Vec<bool> = tokens
            .iter()
            .enumerate()
            .map(|(index, token)| token.role != Role::Next || ends.is_last(token, index))
            .collect();
        for (index, before) in before.iter().enumerate() {
            match before {
                Before::Token(token) if token + 1 != index => is_needed[*token] = true,
                _ => {}
            }
        }
        let mut room = space.room(plan);
        for (index, _) in is_needed.iter().enumerate().filter(|(_, needed)| **needed) {
            plan.writes[index] = room.take(None)?;
        }
        for (index, token) in tokens.iter().enumerate() {
            if !is_needed[index] && ends.is_snapshot(step, index, policy) {
                // A smaller gap than its own is closed for it.
                let is_asked_for = step.next_kept_state(index) == Some(index);
                let gap = match policy.is_regular(token.position as u32) && !is_asked_for {
                    true => policy.interval,
                    false => u32::MAX - 1,
                };
                plan.writes[index] = room.take(Some(gap)).unwrap_or(NO_CELL);
            }
        }
        plan.evicted = room.evicted;
        let LayerPlan {
            writes, sources, ..
        } = plan;
        sources.clear();
        sources.extend(
            before
                .iter()
                .enumerate()
                .map(|(index, before)| match *before {
                    Before::Live(seq) => match space.states(seq).next_back() {
                        Some((_, cell)) => StateSource::Cell(cell),
                        None => StateSource::Zero,
                    },
                    Before::Candidate(seq, node) => {
                        StateSource::Cell(space.sequences[seq as usize].candidates[node])
                    }
                    Before::Token(token) if token + 1 == index => StateSource::Previous,
                    Before::Token(token) => StateSource::Cell(writes[token]),
                }),
        );
        let written = writes.iter().filter(|cell| **cell != NO_CELL);
        plan.cells = written.fold(space.high_water, |most, cell| most.max(cell + 1));
        Ok(())
    }
}

impl StatePolicy {
    /// Whether the state after a position inside a prompt is kept.
    fn is_regular(&self, position: u32) -> bool {
        self.interval > 0 && (position + 1).is_multiple_of(self.interval)
    }
}

/// The predecessor of a token, whose state the token continues.
enum Before {
    /// The live state of its sequence.
    Live(SeqId),
    /// A candidate of an earlier step.
    Candidate(SeqId, usize),
    /// A token of the step.
    Token(usize),
}

fn predecessors(tokens: &[StepToken], trees: &[StepTree]) -> Vec<Before> {
    let mut last = [None; MAX_SEQUENCES as usize];
    // The tokens of the new candidates of each tree.
    let mut nodes: Vec<Vec<usize>> = vec![vec![]; trees.len()];
    let before = |(index, token): (usize, &StepToken)| {
        let seq = token.seq;
        let Role::Candidate { parent } = token.role else {
            let before = last[seq as usize].replace(index);
            return before.map_or(Before::Live(seq), Before::Token);
        };
        let tree = trees.iter().position(|tree| tree.is_of(seq));
        let tree = tree.expect("the check found the tree of every candidate");
        nodes[tree].push(index);
        match parent.map(|parent| parent as usize) {
            None => Before::Live(seq),
            Some(parent) => match parent.checked_sub(trees[tree].computed) {
                Some(new) => Before::Token(nodes[tree][new]),
                None => Before::Candidate(seq, parent),
            },
        }
    };
    tokens.iter().enumerate().map(before).collect()
}

/// The last token of each sequence in a step.
struct SequenceEnds([usize; MAX_SEQUENCES as usize]);

fn sequence_ends(tokens: &[StepToken]) -> SequenceEnds {
    let mut last = [usize::MAX; MAX_SEQUENCES as usize];
    for (index, token) in tokens.iter().enumerate() {
        last[token.seq as usize] = index;
    }
    SequenceEnds(last)
}

impl SequenceEnds {
    fn is_last(&self, token: &StepToken, index: usize) -> bool {
        self.0[token.seq as usize] == index
    }

    /// Whether the state after a token inside a prompt is kept, if there is room: where the step asks for it, before the last token of a
    /// prompt, so that the prompt can be answered again, and at regular positions, unless the step asks for one shortly after.
    fn is_snapshot(&self, step: &Step, index: usize, policy: StatePolicy) -> bool {
        let token = &step.tokens()[index];
        let next = step.tokens().get(index + 1);
        let ends_prompt = next.is_some_and(|next| {
            let continues = next.seq == token.seq && next.role == Role::Next;
            continues && self.is_last(next, index + 1) && step.rows().contains(&(index as u32 + 1))
        });
        let asked_for = step.next_kept_state(index);
        let soon = |kept: usize| {
            let same = step.tokens()[kept].seq == token.seq;
            same && (kept - index) as u32 <= policy.interval / 2
        };
        let is_regular = policy.is_regular(token.position as u32) && !asked_for.is_some_and(soon);
        token.role == Role::Next && (asked_for == Some(index) || is_regular || ends_prompt)
    }
}

fn inside() -> KvErrorKind {
    KvErrorKind::Unsupported {
        kind: "cells",
        operation: "share or remove tokens between others in a model with recurrent layers",
    }
}

/// Cells for the states of a step.
struct Room<'a> {
    space: &'a CellSpace,
    taken: Vec<bool>,
    /// No cell below this one is free.
    next: usize,
    evicted: Vec<u32>,
}

impl Room<'_> {
    /// A free cell, or the cell of the snapshot that is missed least. With a limit, only of a snapshot after at most so many tokens.
    fn take(&mut self, limit: Option<u32>) -> Result<u32, KvError> {
        let space = self.space;
        while self.next < self.taken.len() {
            let cell = self.next;
            self.next += 1;
            if space.ref_counts[cell] == 0 && !self.taken[cell] {
                self.taken[cell] = true;
                return Ok(cell as u32);
            }
        }
        let victim = space.least_missed(&self.evicted);
        let victim = victim.filter(|(gap, _)| limit.is_none_or(|limit| *gap <= limit));
        let (_, cell) = victim.ok_or_else(|| {
            let taken = self.taken.iter().filter(|taken| **taken).count();
            let live = space.used - self.evicted.len() as u32;
            KvErrorKind::StatesFull {
                needed: live + (taken + self.evicted.len()) as u32 + 1,
                slots: space.capacity(),
            }
        })?;
        self.evicted.push(cell);
        Ok(cell)
    }
}

impl CellSpace {
    /// The policy of a space of states.
    pub(super) fn policy(&self) -> Option<StatePolicy> {
        match self.retention {
            Retention::States(policy) => Some(policy),
            _ => None,
        }
    }

    /// The states of a sequence: position and cell.
    fn states(&self, seq: SeqId) -> impl DoubleEndedIterator<Item = (u32, u32)> + '_ {
        let runs = self.sequences[seq as usize].runs.iter();
        runs.flat_map(|run| run.positions().zip(run.cells()))
    }

    /// The longest length up to `len` that has a state, or 0.
    fn nearest_state(&self, seq: SeqId, len: u32) -> u32 {
        let mut lengths = self.states(seq).map(|(position, _)| position + 1);
        lengths.rfind(|length| *length <= len).unwrap_or(0)
    }

    pub(super) fn check_state(&self, seq: SeqId, to: u32) -> Result<(), KvError> {
        match self.nearest_state(seq, to) {
            nearest if nearest == to => Ok(()),
            nearest => Err(KvErrorKind::NoState { to, nearest }.into()),
        }
    }

    fn room<'a>(&'a self, plan: &mut LayerPlan) -> Room<'a> {
        Room {
            space: self,
            taken: vec![false; self.ref_counts.len()],
            next: self.first_free as usize,
            evicted: std::mem::take(&mut plan.evicted),
        }
    }

    /// The snapshot whose loss costs the fewest tokens, and that number. Live states, candidates and those `without` are none.
    fn least_missed(&self, without: &[u32]) -> Option<(u32, u32)> {
        const LIVE: u32 = u32::MAX;
        let mut costs = vec![0; self.high_water as usize];
        let mut positions = vec![0; self.high_water as usize];
        for (seq, sequence) in self.sequences.iter().enumerate() {
            let is_retained = seq >= MAX_SEQUENCES as usize;
            let mut before = 0;
            let mut held = self.states(seq as SeqId).peekable();
            while let Some((position, cell)) = held.next() {
                if without.contains(&cell) {
                    continue;
                }
                let is_live = held.peek().is_none() && !is_retained;
                let cost = if is_live { LIVE } else { position + 1 - before };
                before = position + 1;
                costs[cell as usize] = cost.max(costs[cell as usize]);
                positions[cell as usize] = position;
            }
            for cell in &sequence.candidates {
                costs[*cell as usize] = LIVE;
            }
        }
        let held = costs.iter().zip(&positions).zip(0..);
        let snapshots = held.filter(|((cost, _), _)| !matches!(**cost, 0 | LIVE));
        let least = snapshots.min_by_key(|((cost, position), cell)| (**cost, **position, *cell));
        least.map(|((cost, _), cell)| (*cost, cell))
    }

    /// Removes snapshots from all sequences.
    pub(super) fn evict_states(&mut self, cells: &[u32]) {
        for &cell in cells {
            for seq in 0..self.sequences.len() as SeqId {
                let held = self.states(seq).find(|(_, other)| *other == cell);
                if let Some((position, _)) = held {
                    self.remove(seq, &(position..position + 1));
                }
            }
        }
    }

    /// Gives up the snapshot that is missed least if no cell is free.
    pub(super) fn free_one_state(&mut self) {
        if self.used == self.capacity()
            && let Some((_, cell)) = self.least_missed(&[])
        {
            self.evict_states(&[cell]);
        }
    }

    /// Adds the states of a step that succeeded.
    pub(super) fn commit_states(&mut self, step: &Step, plan: &LayerPlan) {
        let policy = self.policy().expect("a space of states");
        self.evict_states(&plan.evicted);
        let tokens = &step.tokens()[..step.real_len()];
        let counts = Cells::counts(tokens.iter().map(|token| token.seq));
        let ends = sequence_ends(tokens);
        let mut seen = [false; MAX_SEQUENCES as usize];
        for (index, (token, &cell)) in tokens.iter().zip(&plan.writes).enumerate() {
            let seq = token.seq;
            if token.role != Role::Next {
                self.append_candidate(seq, cell);
                continue;
            }
            let is_first = !std::mem::replace(&mut seen[seq as usize], true);
            if is_first {
                self.replace_live(seq, counts[seq as usize] > 1);
            }
            let is_kept = ends.is_last(token, index) || ends.is_snapshot(step, index, policy);
            if cell != NO_CELL && is_kept {
                self.append(seq, token.position as u32, cell);
                let sequence = &mut self.sequences[seq as usize];
                sequence.keeps_live = step.next_kept_state(index) == Some(index);
            }
        }
    }

    /// Releases the live state of a sequence that goes on, unless a prompt begins there or something else ended there.
    pub(super) fn replace_live(&mut self, seq: SeqId, begins_prompt: bool) {
        let sequence = &mut self.sequences[seq as usize];
        let keeps = std::mem::take(&mut sequence.keeps_live) || begins_prompt;
        let live = self.states(seq).next_back();
        if let Some((position, _)) = live.filter(|_| !keeps) {
            self.remove(seq, &(position..position + 1));
        }
    }
}
