//! Forwards: what the plan must say, and the forwards that must be refused.

use super::*;

impl History {
    /// The first token whose position does not continue its sequence: candidates are looked at first.
    pub(super) fn misplaced(&self, positions: &[i32]) -> Option<KvErrorKind> {
        let error = |index: usize, found: i32, expected: u32| {
            Some(KvErrorKind::Position {
                index,
                found: found.into(),
                expected,
            })
        };
        let tokens = || self.declared.iter().zip(positions).enumerate();
        let mut bases: BTreeMap<SeqId, u32> = BTreeMap::new();
        let mut depths: BTreeMap<SeqId, Vec<u32>> = BTreeMap::new();
        for (index, (&(seq, role), &found)) in tokens() {
            let Some(parent) = role else { continue };
            let start = found.clamp(0, i32::MAX - 1) as u32;
            let base = *bases.entry(seq).or_insert(self.base(seq, start));
            let depths = depths.entry(seq).or_insert_with(|| {
                let tree = self.candidates[seq as usize].iter();
                tree.map(|c| c.position - base).collect()
            });
            depths.push(parent.map_or(0, |parent| depths[parent as usize] + 1));
            let expected = base + depths[depths.len() - 1];
            if i64::from(expected) != i64::from(found) {
                return error(index, found, expected);
            }
        }
        let mut last: BTreeMap<SeqId, u32> = BTreeMap::new();
        for (index, (&(seq, role), &found)) in tokens() {
            if role.is_some() {
                continue;
            }
            let held = self.held[seq as usize].last_key_value();
            let before = last.get(&seq).or(held.map(|(position, _)| position));
            let expected = before.map(|position| position + 1);
            let fits = (0..i32::MAX).contains(&found)
                && expected.is_none_or(|expected| i64::from(expected) == found.into());
            if !fits {
                return error(index, found, expected.unwrap_or(0));
            }
            last.insert(seq, found as u32);
        }
        None
    }

    /// The position of candidates that follow the committed tokens; `start` in an empty sequence.
    pub(super) fn base(&self, seq: SeqId, start: u32) -> u32 {
        let roots = self.candidates[seq as usize].first();
        let held = self.held[seq as usize].last_key_value();
        let next = held.map(|(position, _)| position + 1);
        roots.map(|root| root.position).or(next).unwrap_or(start)
    }

    pub(super) fn forward(&mut self, forward: &Forward) {
        let mut next: BTreeMap<SeqId, u32> = BTreeMap::new();
        let mut trees: BTreeMap<SeqId, Vec<Candidate>> = BTreeMap::new();
        let mut positions = vec![];
        for &(seq, role) in &self.declared {
            let base = self.base(seq, forward.start);
            if let Some(parent) = role {
                let tree = trees
                    .entry(seq)
                    .or_insert_with(|| self.candidates[seq as usize].clone());
                let position = parent.map_or(base, |parent| tree[parent as usize].position + 1);
                tree.push(Candidate {
                    parent,
                    position,
                    stamp: Stamp::default(),
                });
                positions.push(position as i32);
                continue;
            }
            let next = next.entry(seq).or_insert(base);
            positions.push(*next as i32);
            *next += 1;
        }
        if positions.is_empty() {
            let refused = kind(self.cache.plan_declared(&[0], &mut self.plan));
            assert_eq!(refused, Err(KvErrorKind::StepNotDeclared));
            return;
        }
        if let Some(wrong) = &forward.wrong {
            self.refused(wrong, &positions);
        }
        self.cache
            .plan_declared(&positions, &mut self.plan)
            .unwrap();
        let mut fresh = StepPlan::default();
        self.cache.plan_declared(&positions, &mut fresh).unwrap();
        for layer in 0..fresh.layers() {
            assert_eq!(fresh.layer(layer), self.plan.layer(layer));
        }
        let stamps = self.bytes.stamps(positions.len());
        let live = self.live();
        let mut tried = self.held.clone();
        let mut added: BTreeMap<SeqId, usize> = BTreeMap::new();
        let tokens = self.declared.iter().zip(&positions);
        for ((&(seq, role), &position), &stamp) in tokens.clone().zip(&stamps) {
            let index = added.entry(seq).or_insert(0);
            match role {
                None => _ = tried[seq as usize].insert(position as u32, stamp),
                Some(_) => {
                    let computed = self.candidates[seq as usize].len();
                    trees.get_mut(&seq).unwrap()[computed + *index].stamp = stamp;
                }
            }
            *index += 1;
        }
        let see = |((seq, role), position, stamp): (Declared, i32, Stamp)| {
            let committed = tried[seq as usize].range(..=position as u32);
            let mut seen: Vec<(u32, Stamp)> = committed.map(|(p, s)| (*p, *s)).collect();
            if role.is_some() {
                let tree = &trees[&seq];
                let own = tree.iter().position(|c| c.stamp == stamp).unwrap();
                let mut chain = vec![];
                let mut at = Some(own as u32);
                while let Some(node) = at {
                    let candidate = tree[node as usize];
                    chain.insert(0, (candidate.position, candidate.stamp));
                    at = candidate.parent;
                }
                seen.extend(chain);
            }
            seen
        };
        let tokens = tokens.zip(&stamps);
        let visible: Vec<Vec<(u32, Stamp)>> = tokens
            .map(|((declared, position), stamp)| see((*declared, *position, *stamp)))
            .collect();
        let written = match forward.end {
            End::Commit => usize::MAX,
            End::Fail { written } => written,
        };
        let step = Step {
            plan: &self.plan,
            config: &self.config,
            stamps: &stamps,
            visible: &visible,
            live: &|stamp| live.contains(&stamp),
        };
        step.run(&mut self.bytes, written);
        let committed = matches!(forward.end, End::Commit);
        for (&(seq, role), &position) in self.declared.iter().zip(&positions) {
            let next = match role {
                None => position as u32 + 1,
                Some(_) => {
                    let held = self.held[seq as usize].last_key_value();
                    let next = held.map_or(0, |(position, _)| position + 1);
                    next + trees[&seq].len() as u32
                }
            };
            for window in &mut self.kept {
                if committed && role.is_none() {
                    window.positions[seq as usize].insert(position as u32);
                }
                // A failed step has overwritten what a good one gives up.
                window.trim(seq as usize, next);
            }
        }
        if committed {
            for (seq, tree) in trees {
                self.candidates[seq as usize] = tree;
            }
        }
        match committed {
            true => {
                self.cache.commit(&self.plan);
                self.held = tried;
            }
            false => self.cache.abort(Some(&self.plan)),
        }
        self.declared.clear();
    }

    /// A forward that does not fit its declaration; the declaration stays until the step is ended.
    pub(super) fn refused(&mut self, wrong: &Wrong, positions: &[i32]) {
        let declared = positions.len();
        let mut positions = positions.to_vec();
        let expected = match *wrong {
            Wrong::TokenMissing => {
                positions.pop();
                let found = positions.len();
                Some(KvErrorKind::TokenCount { declared, found })
            }
            Wrong::TokenTooMany => {
                positions.push(0);
                let found = positions.len();
                Some(KvErrorKind::TokenCount { declared, found })
            }
            Wrong::Position { index, by } => {
                let position = &mut positions[index % declared];
                *position = position.saturating_add(by);
                self.misplaced(&positions)
            }
        };
        let before = self.cache.clone();
        let result = self.cache.plan_declared(&positions, &mut self.plan);
        assert_eq!(kind(result).err(), expected);
        assert_eq!(self.cache, before);
    }
}
