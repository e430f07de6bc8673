//! Histories of sequences with states. A state is a hash of all tokens before it, so that a wrong source, a state that was overwritten
//! too early and a snapshot of another history show at once.

use kv::{
    CacheConfig, CacheManager, CellRun, Cells, KvErrorKind, LayerConfig, MAX_SEQUENCES, NO_CELL,
    Restorable, Role, SavedPositions, SeqCache, SeqId, SequenceRows, StatePolicy, StateSource,
    Step, StepPlan, StepToken,
};

const SEQUENCES: u32 = 4;
/// The layer with states.
const LAYER: usize = 1;

fn config(slots: u32, interval: u32) -> CacheConfig {
    let rows = LayerConfig {
        kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
        window: None,
        sinks: 0,
    };
    CacheConfig {
        states: StatePolicy {
            slots,
            interval,
            ..StatePolicy::default()
        },
        ..CacheConfig::new(400, vec![rows, LayerConfig::state(2, 8)])
    }
}

/// Numbers from a linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) % u64::from(end)) as u32
    }
}

/// The state after these tokens.
fn state(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0, |state, token| after(state, *token))
}

fn after(state: u64, token: u32) -> u64 {
    (state ^ u64::from(token + 1))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(17)
}

#[derive(Clone, Default)]
struct Sequence {
    tokens: Vec<u32>,
    /// Parent and token of each candidate.
    candidates: Vec<(Option<u32>, u32)>,
}

impl Sequence {
    /// The tokens up to a candidate.
    fn path(&self, node: Option<u32>) -> Vec<u32> {
        match node {
            None => self.tokens.clone(),
            Some(node) => {
                let (parent, token) = self.candidates[node as usize];
                let mut path = self.path(parent);
                path.push(token);
                path
            }
        }
    }
}

struct History {
    random: Random,
    cache: Cells,
    plan: StepPlan,
    /// What each cell holds.
    cells: Vec<u64>,
    sequences: Vec<Sequence>,
    retained: Vec<(SeqId, Vec<u32>)>,
    next_token: u32,
}

impl History {
    fn new(seed: u64) -> History {
        let mut random = Random(seed);
        let slots = 6 + random.below(20);
        let config = config(slots, [0, 3, 5, 8][random.below(4) as usize]);
        config.check().unwrap();
        History {
            random,
            cache: Cells::new(&config),
            plan: StepPlan::default(),
            cells: vec![0; slots as usize],
            sequences: vec![Sequence::default(); SEQUENCES as usize],
            retained: vec![],
            next_token: 0,
        }
    }

    fn token(&mut self) -> u32 {
        self.next_token += 1;
        self.next_token
    }

    fn run(&mut self) {
        for _ in 0..60 {
            match self.random.below(13) {
                0..6 => self.step(),
                6 => self.fork(),
                7 => self.rewind(),
                8 => self.retain(),
                9 => self.release(),
                10 => self.accept(),
                11 => self.compact(),
                _ => self.restore(),
            }
            self.audit();
        }
    }

    /// Steps of some sequences, one after the other or in turns, with chunks of prompts, single tokens or candidates.
    fn step(&mut self) {
        let mut parts: Vec<Vec<StepToken>> = vec![];
        let mut after_step = self.sequences.clone();
        for seq in 0..SEQUENCES {
            if self.random.below(3) == 0 {
                continue;
            }
            let count = 1 + self.random.below(3) * self.random.below(4);
            let held = self.sequences[seq as usize].candidates.len();
            let as_candidates = held > 0 || self.random.below(4) == 0;
            let mut part = vec![];
            for _ in 0..count {
                let id = self.token();
                let sequence = &mut after_step[seq as usize];
                let nodes = sequence.candidates.len() as u32;
                let (position, role) = if as_candidates {
                    let parent = self.random.below(nodes + 1).checked_sub(1);
                    sequence.candidates.push((parent, id));
                    let depth = sequence.path(parent).len();
                    (depth, Role::Candidate { parent })
                } else {
                    sequence.tokens.push(id);
                    (sequence.tokens.len() - 1, Role::Next)
                };
                part.push(StepToken {
                    id,
                    position: position as i32,
                    seq,
                    role,
                });
            }
            parts.push(part);
        }
        if parts.is_empty() {
            return;
        }
        let mut step = Step::default();
        if self.random.below(2) == 0 {
            parts
                .concat()
                .into_iter()
                .for_each(|token| _ = step.push(token));
        } else {
            for turn in 0..parts.iter().map(Vec::len).max().unwrap() {
                let of_turn = parts.iter().filter_map(|part| part.get(turn));
                of_turn.for_each(|token| _ = step.push(*token));
            }
        }
        let real = step.len();
        if self.random.below(2) == 0 {
            step.want_last();
        }
        step.pad_to(real + self.random.below(3) as usize, 0);
        let before = self.cache.clone();
        if let Err(error) = self.cache.plan(&step, &mut self.plan) {
            let live: usize = self
                .sequences
                .iter()
                .map(|s| usize::from(!s.tokens.is_empty()) + s.candidates.len())
                .sum();
            match error.kind() {
                KvErrorKind::StatesFull { needed, slots } => {
                    assert!(needed > slots);
                    assert!(
                        live + real > *slots as usize / 2,
                        "{live} live states, {real} tokens: {error}"
                    );
                }
                kind => assert!(matches!(kind, KvErrorKind::Full { .. }), "{kind:?}"),
            }
            assert_eq!(before, self.cache);
            return;
        }
        assert_eq!(before, self.cache, "planning changes nothing");
        self.forward(&step, real, &after_step);
        if self.random.below(6) == 0 {
            self.cache.abort(Some(&self.plan));
        } else {
            self.cache.commit(&self.plan);
            self.sequences = after_step;
        }
    }

    /// Computes the states of a step as a backend does, and checks each.
    fn forward(&mut self, step: &Step, real: usize, after_step: &[Sequence]) {
        let plan = self.plan.layer(LAYER);
        assert_eq!(
            (plan.sources.len(), plan.writes.len()),
            (step.len(), step.len())
        );
        let mut running = 0;
        let mut nodes: Vec<u32> = self
            .sequences
            .iter()
            .map(|s| s.candidates.len() as u32)
            .collect();
        for (index, token) in step.tokens().iter().enumerate() {
            match plan.sources[index] {
                StateSource::Zero => running = 0,
                StateSource::Previous => {}
                StateSource::Cell(cell) => running = self.cells[cell as usize],
            }
            if index >= real {
                assert_eq!(plan.writes[index], NO_CELL);
                continue;
            }
            running = after(running, token.id);
            let sequence = &after_step[token.seq as usize];
            let path = match token.role {
                Role::Next => sequence.tokens[..=token.position as usize].to_vec(),
                _ => {
                    nodes[token.seq as usize] += 1;
                    sequence.path(Some(nodes[token.seq as usize] - 1))
                }
            };
            assert_eq!(
                running,
                state(&path),
                "token {index} of {:?}",
                step.tokens()
            );
            let cell = plan.writes[index];
            if cell != NO_CELL {
                assert!(cell < plan.cells);
                self.cells[cell as usize] = running;
            }
        }
    }

    fn owner(&mut self) -> (SeqId, Vec<u32>) {
        let all = SEQUENCES + self.retained.len() as u32;
        let owner = self.random.below(all);
        match owner.checked_sub(SEQUENCES) {
            None => (owner, self.sequences[owner as usize].tokens.clone()),
            Some(retained) => self.retained[retained as usize].clone(),
        }
    }

    /// A length that the cache can go on from, checked against the states that are there.
    fn length(&mut self, owner: SeqId, tokens: &[u32]) -> u32 {
        let wanted = self.random.below(tokens.len() as u32 + 2);
        let positions = self.cache.state_positions(owner).unwrap();
        let nearest = positions
            .iter()
            .rev()
            .map(|p| p + 1)
            .find(|len| *len <= wanted);
        let found = self.cache.restorable(owner, wanted).unwrap();
        assert_eq!(found, nearest.unwrap_or(0));
        found
    }

    fn fork(&mut self) {
        let (src, tokens) = self.owner();
        let free = self
            .sequences
            .iter()
            .position(|s| s.tokens.is_empty() && s.candidates.is_empty());
        let Some(dst) = free else { return };
        let len = self.length(src, &tokens);
        let wrong = len + 1;
        if (wrong as usize) <= tokens.len() && self.cache.restorable(src, wrong).unwrap() != wrong {
            let before = self.cache.clone();
            let error = self.cache.seq_cp(src, dst as u32, 0..wrong).unwrap_err();
            assert_eq!(
                error.kind(),
                &KvErrorKind::NoState {
                    to: wrong,
                    nearest: len
                }
            );
            assert_eq!(before, self.cache);
        }
        self.cache.seq_cp(src, dst as u32, 0..len).unwrap();
        self.sequences[dst].tokens = tokens[..len as usize].to_vec();
    }

    fn rewind(&mut self) {
        let seq = self.random.below(SEQUENCES);
        if !self.sequences[seq as usize].candidates.is_empty() {
            return;
        }
        let tokens = self.sequences[seq as usize].tokens.clone();
        let len = self.length(seq, &tokens);
        if (len as usize) + 1 < tokens.len() && self.cache.restorable(seq, len + 1).unwrap() == len
        {
            let error = self.cache.seq_rm(seq, len + 1..).unwrap_err();
            assert!(matches!(error.kind(), KvErrorKind::NoState { .. }));
            assert!(
                self.cache.seq_rm(seq, 0..1).is_err(),
                "later tokens depend on the first"
            );
        }
        self.cache.seq_rm(seq, len..).unwrap();
        self.sequences[seq as usize].tokens.truncate(len as usize);
    }

    fn retain(&mut self) {
        let seq = self.random.below(SEQUENCES);
        let tokens = self.sequences[seq as usize].tokens.clone();
        if !tokens.is_empty() && self.retained.len() < 5 {
            let id = self.cache.retain(seq, ..).unwrap();
            assert!(id >= MAX_SEQUENCES);
            self.retained.push((id, tokens));
        }
    }

    fn release(&mut self) {
        if !self.retained.is_empty() {
            let index = self.random.below(self.retained.len() as u32) as usize;
            let (id, _) = self.retained.swap_remove(index);
            self.cache.release(id).unwrap();
        }
    }

    fn accept(&mut self) {
        let seq = self.random.below(SEQUENCES);
        let sequence = &mut self.sequences[seq as usize];
        let mut path = vec![];
        let mut parent = None;
        while self.random.below(4) > 0 {
            let nodes = (0..).zip(&sequence.candidates);
            let children: Vec<u32> = nodes
                .filter(|(_, (p, _))| *p == parent)
                .map(|(node, _)| node)
                .collect();
            if children.is_empty() {
                break;
            }
            let child = children[self.random.below(children.len() as u32) as usize];
            path.push(child);
            parent = Some(child);
        }
        self.cache.commit_path(seq, &path).unwrap();
        sequence.tokens = sequence.path(parent);
        sequence.candidates.clear();
    }

    fn compact(&mut self) {
        if let Some(order) = self.cache.compact()
            && let Some(order) = order.layer(LAYER)
        {
            let before = self.cells.clone();
            for (to, from) in self.cells.iter_mut().zip(order) {
                *to = before[*from as usize];
            }
        }
    }

    /// Saves one sequence and restores it, up to one of its states, as another.
    fn restore(&mut self) {
        let (src, mut tokens) = self.owner();
        let free = self
            .sequences
            .iter()
            .position(|s| s.tokens.is_empty() && s.candidates.is_empty());
        let (Some(dst), false) = (free, tokens.is_empty()) else {
            return;
        };
        let rows = match self.cache.sequence_rows(src) {
            Ok(rows) => rows,
            // The states of a retained prefix may have made room.
            Err(error) => {
                assert!(
                    matches!(error.kind(), KvErrorKind::NoState { .. }) && src >= MAX_SEQUENCES
                );
                return;
            }
        };
        assert_eq!(rows.len, tokens.len() as u32);
        let cells = |rows: &SequenceRows| -> Vec<u32> {
            rows.runs(LAYER).iter().flat_map(CellRun::cells).collect()
        };
        let states: Vec<u32> = rows.positions(LAYER).collect();
        let saved: Vec<u64> = cells(&rows)
            .iter()
            .map(|cell| self.cells[*cell as usize])
            .collect();
        let len = states[self.random.below(states.len() as u32) as usize] + 1;
        tokens.truncate(len as usize);
        let positions = SavedPositions {
            first: &[0, 0],
            states: &states,
        };
        match self.cache.plan_restore(dst as u32, len, positions) {
            Ok((after, rows)) => {
                let restored: Vec<u32> = rows.positions(LAYER).collect();
                assert_eq!(restored.last(), Some(&(len - 1)));
                for (position, cell) in restored.iter().zip(cells(&rows)) {
                    let state = states.binary_search(position).unwrap();
                    self.cells[cell as usize] = saved[state];
                }
                self.cache = after;
                self.sequences[dst].tokens = tokens;
            }
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    KvErrorKind::Full { .. } | KvErrorKind::StatesFull { .. }
                ),
                "{error}"
            ),
        }
    }

    /// Every state that a sequence holds is that of its tokens, and one that goes on has its last.
    fn audit(&self) {
        let live = (0..).zip(&self.sequences).map(|(seq, s)| (seq, &s.tokens));
        let retained = self.retained.iter().map(|(id, tokens)| (*id, tokens));
        let mut cells = std::collections::HashSet::new();
        for (seq, tokens) in live.chain(retained) {
            let runs = self.cache.layer_runs(LAYER, seq).unwrap();
            for (position, cell) in runs.iter().flat_map(|run| run.positions().zip(run.cells())) {
                let expected = state(&tokens[..=position as usize]);
                assert_eq!(
                    self.cells[cell as usize], expected,
                    "sequence {seq} at {position}"
                );
                cells.insert(cell);
            }
            let last = runs.last().map(|run| run.position + run.len);
            if seq < MAX_SEQUENCES && !tokens.is_empty() {
                assert_eq!(last, Some(tokens.len() as u32), "sequence {seq} goes on");
            }
            assert_eq!(self.cache.seq_len(seq).unwrap(), tokens.len() as u32);
        }
        for (seq, sequence) in (0..).zip(&self.sequences) {
            let held = self.cache.candidate_cells(LAYER, seq).unwrap();
            for (node, cell) in (0..).zip(held) {
                assert_eq!(
                    self.cells[*cell as usize],
                    state(&sequence.path(Some(node)))
                );
                cells.insert(*cell);
            }
        }
        let (used, slots) = self.cache.states_used();
        assert_eq!(used as usize, cells.len());
        assert!(used <= slots);
    }
}

#[test]
fn states_follow_their_sequences_through_random_histories() {
    // These are quicker than the others.
    for seed in 0..4 * crate::facts::histories().cases {
        History::new(u64::from(seed)).run();
    }
}

/// A prompt's ends stay as snapshots while its answer replaces its states, token by token.
#[test]
fn snapshots_are_kept_where_prompts_begin_and_end() {
    let mut cache = Cells::new(&config(16, 8));
    let mut plan = StepPlan::default();
    let mut feed = |cache: &mut Cells, from: u32, n: u32| {
        let ids: Vec<u32> = (0..n).collect();
        let mut step = Step::sequence(&ids, from);
        step.want_last();
        cache.plan(&step, &mut plan).unwrap();
        cache.commit(&plan);
    };
    feed(&mut cache, 0, 20);
    (20..25).for_each(|position| feed(&mut cache, position, 1));
    feed(&mut cache, 25, 3);
    (28..31).for_each(|position| feed(&mut cache, position, 1));
    // Every eighth token of a prompt, before the last of both prompts, the end of the first answer, and the last token.
    assert_eq!(cache.state_positions(0).unwrap(), [7, 15, 18, 24, 26, 30]);
    assert_eq!(cache.restorable(0, 26).unwrap(), 25);
    assert_eq!(cache.states_used(), (6, 16));
    cache.seq_rm(0, 25..).unwrap();
    feed(&mut cache, 25, 1);
    assert_eq!(
        cache.state_positions(0).unwrap(),
        [7, 15, 18, 24, 25],
        "a rewind can be made again"
    );
}

/// A step asks for states where messages end: also at its own end, if one token follows. A regular one shortly before is left out, but not
/// one of another sequence.
#[test]
fn snapshots_are_kept_where_a_step_asks_for_them() {
    let mut cache = Cells::new(&config(16, 8));
    let mut plan = StepPlan::default();
    let mut feed = |cache: &mut Cells, parts: &[(u32, u32, u32)], kept: &[u32]| {
        let mut step = Step::default();
        for (seq, from, n) in parts {
            step.extend(*seq, *from, &vec![1; *n as usize]);
        }
        kept.iter().for_each(|token| step.keep_state(*token));
        cache.plan(&step, &mut plan).unwrap();
        cache.commit(&plan);
    };
    // Positions 7 and 15 are regular; 17 is asked for two tokens after the second.
    feed(&mut cache, &[(0, 0, 20)], &[4, 17, 19]);
    assert_eq!(cache.state_positions(0).unwrap(), [4, 7, 17, 19]);
    feed(&mut cache, &[(0, 20, 1)], &[]);
    assert_eq!(cache.state_positions(0).unwrap(), [4, 7, 17, 19, 20]);
    feed(&mut cache, &[(0, 21, 1)], &[]);
    assert_eq!(cache.state_positions(0).unwrap(), [4, 7, 17, 19, 21]);
    // The last token of the step is the first of another sequence, and is asked for.
    feed(&mut cache, &[(1, 0, 10), (2, 0, 2)], &[10]);
    assert_eq!(cache.state_positions(1).unwrap(), [7, 9]);
    assert_eq!(cache.state_positions(2).unwrap(), [0, 1]);
}

/// What is missed least is given up: the snapshot after the fewest tokens since the one before.
#[test]
fn the_snapshots_that_are_missed_least_make_room() {
    let mut cache = Cells::new(&config(6, 0));
    let mut plan = StepPlan::default();
    let mut at = 0;
    for n in [10, 4, 10, 2, 30, 20] {
        let ids: Vec<u32> = (0..n).collect();
        cache.plan(&Step::sequence(&ids, at), &mut plan).unwrap();
        cache.commit(&plan);
        at += n;
    }
    assert_eq!(cache.state_positions(0).unwrap(), [9, 13, 23, 25, 55, 75]);
    let step = Step::sequence(&[1, 2], at);
    cache.plan(&step, &mut plan).unwrap();
    cache.commit(&plan);
    assert_eq!(cache.state_positions(0).unwrap(), [9, 13, 23, 55, 75, 77]);
    // A second sequence of one token takes the next cheapest.
    let mut step = Step::default();
    step.extend(1, 0, &[5, 6, 7]);
    cache.plan(&step, &mut plan).unwrap();
    cache.commit(&plan);
    assert_eq!(cache.state_positions(0).unwrap(), [9, 23, 55, 75, 77]);
    let mut step = Step::default();
    (2..9).for_each(|seq| step.extend(seq, 0, &[1]));
    let error = cache.plan(&step, &mut plan).unwrap_err();
    assert_eq!(
        error.kind(),
        &KvErrorKind::StatesFull {
            needed: 7,
            slots: 6
        }
    );
}
