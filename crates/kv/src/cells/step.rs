//! Planning and committing a step over many sequences.

use super::allocator::Allocator;
use super::space::CellSpace;
use super::{Cells, MAX_SEQUENCES};
use crate::candidate_tree::StepTree;
use crate::plan::LayerPlan;
use crate::step::{Role, StepToken};
use crate::{CacheManager, CellRun, KvError, KvErrorKind, SeqId, Step, StepPlan};

impl CacheManager for Cells {
    fn declared(&self, positions: &[i32], step: &mut Step) -> Result<(), KvError> {
        if self.declared.is_empty() {
            return Err(KvErrorKind::StepNotDeclared.into());
        }
        if self.declared.len() != positions.len() {
            let (declared, found) = (self.declared.len(), positions.len());
            return Err(KvErrorKind::TokenCount { declared, found }.into());
        }
        step.at(positions);
        for (token, (seq, role)) in step.tokens_mut().iter_mut().zip(&self.declared) {
            (token.seq, token.role) = (*seq, *role);
        }
        Ok(())
    }

    fn is_declared(&self) -> bool {
        !self.declared.is_empty()
    }

    fn plan(&self, step: &Step, plan: &mut StepPlan) -> Result<(), KvError> {
        let tokens = step.real()?;
        let checked = self.check(tokens)?;
        plan.reset(step, &self.classes);
        plan.trees = checked;
        let StepPlan {
            classes,
            scratch,
            trees,
            ..
        } = plan;
        // If every layer has a ring, the space of all positions belongs to no layer class. Its plan is stored after the
        // plans of the classes.
        let known = self.spaces.iter().map(|space| space.class + 1).max();
        let most = classes.len().max(known.unwrap_or(0));
        classes.resize_with(most, LayerPlan::default);
        for space in &self.spaces {
            let class = &mut classes[space.class];
            if let Some(policy) = space.policy() {
                self.plan_states(space, policy, step, trees, class)?;
                (tokens.len()..step.len()).for_each(|_| class.push_state_padding());
                continue;
            }
            self.plan_space(space, tokens, trees, class, scratch);
            (tokens.len()..step.len()).for_each(|_| class.push_padding());
        }
        if self.ring.is_none() && !self.classes.windows.is_empty() {
            plan.narrow_classes(&self.classes);
        }
        Ok(())
    }

    fn commit(&mut self, plan: &StepPlan) {
        let tokens = &plan.step.tokens()[..plan.step.real_len()];
        self.evict_for_step(tokens);
        for space in &mut self.spaces {
            let class = &plan.classes[space.class];
            if space.policy().is_some() {
                space.commit_states(&plan.step, class);
                space.advance_first_free();
                continue;
            }
            for (token, cell) in tokens.iter().zip(&class.writes) {
                match token.role {
                    Role::Candidate { .. } => space.append_candidate(token.seq, *cell),
                    _ => space.append(token.seq, token.position as u32, *cell),
                }
            }
            space.advance_first_free();
        }
        self.commit_trees(&plan.trees);
        self.declared.clear();
    }

    fn abort(&mut self, plan: Option<&StepPlan>) {
        // The failed step may have overwritten the oldest rows of the rings, and the snapshots that were to make room.
        if let Some(plan) = plan {
            self.evict_for_step(&plan.step.tokens()[..plan.step.real_len()]);
            for space in self
                .spaces
                .iter_mut()
                .filter(|space| space.policy().is_some())
            {
                space.evict_states(&plan.classes[space.class].evicted);
            }
        }
        self.declared.clear();
    }
}

/// Tokens of each sequence in a step.
type Counts = [u32; MAX_SEQUENCES as usize];

impl Cells {
    /// Tokens of each sequence in a step.
    pub(super) fn counts(seqs: impl Iterator<Item = SeqId>) -> Counts {
        let mut counts = [0; MAX_SEQUENCES as usize];
        seqs.for_each(|seq| counts[seq as usize] += 1);
        counts
    }

    /// Evicts the rows that a step overwrites from the rings.
    fn evict_for_step(&mut self, tokens: &[StepToken]) {
        let counts = Cells::counts(tokens.iter().map(|token| token.seq));
        for seq in (0..MAX_SEQUENCES).filter(|seq| counts[*seq as usize] > 0) {
            let next = self.spaces[0].sequences[seq as usize].next();
            let end = next.unwrap_or(0) + self.candidates(seq) + counts[seq as usize];
            for space in &mut self.spaces[1..] {
                space.remove(seq, &space.evicted_positions(end));
            }
        }
    }

    /// Returns an error if the tokens do not fit or do not continue their sequences.
    fn check(&self, tokens: &[StepToken]) -> Result<Vec<StepTree>, KvError> {
        self.check_tokens(tokens.iter().map(|token| token.seq))?;
        let trees = self.step_trees(tokens)?;
        // The next position of each sequence in the step.
        let mut next = [None; MAX_SEQUENCES as usize];
        let next_tokens = tokens.iter().enumerate();
        for (index, token) in next_tokens.filter(|(_, token)| token.role == Role::Next) {
            let sequence = &self.spaces[0].sequences[token.seq as usize];
            let expected = next[token.seq as usize].or(sequence.next());
            let position = u32::try_from(token.position).ok();
            let position = position.filter(|p| *p < i32::MAX as u32);
            let position = position.filter(|p| expected.is_none_or(|e| e == *p));
            let position = position.ok_or(KvErrorKind::Position {
                index,
                found: token.position.into(),
                expected: expected.unwrap_or(0),
            })?;
            next[token.seq as usize] = Some(position + 1);
        }
        Ok(trees)
    }

    /// Plans the step for the layers of one cell space.
    fn plan_space(
        &self,
        space: &CellSpace,
        tokens: &[StepToken],
        trees: &[StepTree],
        plan: &mut LayerPlan,
        marks: &mut Vec<u64>,
    ) {
        plan.visible.clear();
        plan.writes.clear();
        let mut allocator = Allocator::new(space, marks);
        if space.ring().is_some() {
            let counts = Cells::counts(tokens.iter().map(|token| token.seq));
            let evicted_positions = |seq: usize| {
                let next = self.spaces[0].sequences[seq]
                    .next()
                    .filter(|_| counts[seq] > 0);
                let added = self.trees[seq].len() + counts[seq];
                let gone = space.evicted_positions(next.map_or(0, |next| next + added));
                let runs = space.sequences[seq].runs.iter();
                runs.filter_map(move |run| run.clip(&gone))
            };
            let all = 0..MAX_SEQUENCES as usize;
            for cell in all
                .clone()
                .flat_map(evicted_positions)
                .flat_map(|run| run.cells())
            {
                let gives =
                    |seq: &usize| evicted_positions(*seq).any(|run| run.cells().contains(&cell));
                let ref_counts = usize::from(space.ref_counts[cell as usize]);
                if ref_counts == 1 || all.clone().filter(gives).count() == ref_counts {
                    allocator.mark_evicted(cell);
                }
            }
        }
        // For each sequence in the step: the cell after its last one, and its run list.
        let mut after = [None; MAX_SEQUENCES as usize];
        let mut lists = [u32::MAX; MAX_SEQUENCES as usize];
        for token in tokens {
            let seq = token.seq as usize;
            let sequence = &space.sequences[seq];
            let last = || sequence.runs.last().map(|run| run.cell + run.len);
            let last_candidate = || sequence.candidates.last().map(|cell| cell + 1);
            let wanted = after[seq].or_else(last_candidate).or_else(last);
            let cell = allocator.take(wanted);
            let cell = cell.expect("the check found room for the step");
            plan.writes.push(cell);
            after[seq] = Some(cell + 1);
        }
        let cells = plan.writes.iter().map(|cell| cell + 1);
        plan.cells = cells.fold(space.high_water, u32::max);
        let LayerPlan {
            writes, visible, ..
        } = plan;
        let mut candidate_lists = CandidateLists::new(trees.len());
        for (index, token) in tokens.iter().enumerate() {
            let (seq, position) = (token.seq, token.position as u32);
            let seen = space.seen(position);
            let rest = tokens.iter().zip(&*writes).skip(index);
            let own = rest.filter(|(token, _)| token.seq == seq);
            if let Some(tree) = trees.iter().position(|tree| tree.is_of(seq)) {
                let list = candidate_lists.next(tree, || {
                    let cells: Vec<u32> = own.map(|(_, cell)| *cell).collect();
                    trees[tree].open_lists(space, &cells, visible)
                });
                visible.push_query(list, seen);
                continue;
            }
            let list = &mut lists[seq as usize];
            if *list == u32::MAX {
                *list = visible.open_list();
                let runs = space.seen_runs(seq, position);
                runs.for_each(|run| visible.push_run(run));
                for (token, &cell) in own {
                    let (position, len) = (token.position as u32, 1);
                    visible.push_run(CellRun {
                        position,
                        cell,
                        len,
                    });
                }
            }
            visible.push_query(*list, seen);
        }
    }
}

/// The run lists of the candidates of a step, in token order for each tree.
struct CandidateLists(Vec<std::vec::IntoIter<u32>>);

impl CandidateLists {
    fn new(trees: usize) -> CandidateLists {
        CandidateLists((0..trees).map(|_| vec![].into_iter()).collect())
    }

    /// The list of the next candidate of a tree. `open` opens the lists of all of them.
    fn next(&mut self, tree: usize, open: impl FnOnce() -> Vec<u32>) -> u32 {
        let lists = &mut self.0[tree];
        if lists.len() == 0 {
            *lists = open().into_iter();
        }
        lists.next().expect("one list for each candidate")
    }
}
