//! Histories of static buffers: several sequences, pads, rewinds.

use crate::facts::{Bytes, End, Stamp, Step, config, end, histories, kind, windows};
use kv::{Cache, CacheConfig, CacheManager, KvErrorKind, ScatterIndex, SeqCache, SeqId, StepPlan};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    /// Per sequence, real tokens and pads after them; all of one sequence after the other or in turns.
    Step {
        parts: Vec<(SeqId, u32, u32)>,
        in_turns: bool,
        wrong_position: Option<(usize, i32)>,
        end: End,
    },
    /// One step told as indices, in which every sequence has the same tokens.
    Indices {
        tokens: u32,
        real: Vec<u32>,
    },
    Remove {
        seq: SeqId,
        from: u32,
        upto: Option<u32>,
    },
    Keep {
        seq: SeqId,
    },
    Rewind {
        to: u32,
    },
    Clear,
}

fn operation() -> impl Strategy<Value = Operation> {
    let part = (0u32..4, 0u32..6, prop_oneof![3 => Just(0u32), 1 => 0u32..3]);
    let wrong = prop::option::weighted(0.1, (0usize..8, prop::sample::select(vec![-9, -1, 1, 4])));
    prop_oneof![
        12 => (prop::collection::vec(part, 1..4), any::<bool>(), wrong, end()).prop_map(
            |(parts, in_turns, wrong_position, end)| Operation::Step {
                parts, in_turns, wrong_position, end
            }
        ),
        3 => (0u32..5, prop::collection::vec(0u32..6, 4))
            .prop_map(|(tokens, real)| Operation::Indices { tokens, real }),
        4 => (0u32..4, 0u32..20, prop::option::weighted(0.2, 0u32..20))
            .prop_map(|(seq, from, upto)| Operation::Remove { seq, from, upto }),
        1 => (0u32..4).prop_map(|seq| Operation::Keep { seq }),
        2 => (0u32..20).prop_map(|to| Operation::Rewind { to }),
        1 => Just(Operation::Clear),
    ]
}

/// One history and its facts.
struct History {
    /// The buffers of all sequences together.
    all: CacheConfig,
    max_seq_len: u32,
    cache: ScatterIndex,
    plan: StepPlan,
    bytes: Bytes,
    /// Per sequence, the stamp at each position held.
    held: Vec<Vec<Stamp>>,
}

impl History {
    fn new(config: CacheConfig, sequences: u32) -> History {
        let all = CacheConfig {
            capacity: config.capacity * sequences,
            ..config.clone()
        };
        History {
            cache: ScatterIndex::new(&config, sequences),
            plan: StepPlan::default(),
            bytes: Bytes::new(&all),
            held: vec![vec![]; sequences as usize],
            max_seq_len: config.capacity,
            all,
        }
    }

    fn known(&self, seq: SeqId) -> Result<(), KvErrorKind> {
        let max = self.held.len() as u32;
        match seq < max {
            true => Ok(()),
            false => Err(KvErrorKind::UnknownSequence { seq, max }),
        }
    }

    fn longest(&self) -> u32 {
        self.held.iter().map(Vec::len).max().unwrap_or(0) as u32
    }

    fn apply(&mut self, operation: &Operation) {
        let before = self.cache.clone();
        let (expected, result) = match operation {
            Operation::Step {
                parts,
                in_turns,
                wrong_position,
                end,
            } => {
                let tokens = self.tokens(parts, *in_turns);
                self.step(&tokens, *wrong_position, *end);
                (Ok(()), Ok(()))
            }
            Operation::Indices { tokens, real } => {
                self.indices(*tokens, &real[..self.held.len()]);
                (Ok(()), Ok(()))
            }
            &Operation::Remove { seq, from, upto } => {
                let end = upto.unwrap_or(u32::MAX);
                let expected = self.known(seq).and_then(|()| {
                    let held = &mut self.held[seq as usize];
                    let len = held.len() as u32;
                    match from < end.min(len) {
                        true if end < len => Err(KvErrorKind::Hole { seq, end, len }),
                        true => {
                            held.truncate(from as usize);
                            Ok(())
                        }
                        false => Ok(()),
                    }
                });
                (expected, self.cache.seq_rm(seq, from..end))
            }
            &Operation::Keep { seq } => {
                let expected = self.known(seq);
                if expected.is_ok() {
                    let others = (0..).zip(&mut self.held).filter(|(s, _)| *s != seq);
                    others.for_each(|(_, held)| held.clear());
                }
                (expected, self.cache.seq_keep(seq))
            }
            &Operation::Rewind { to } => {
                let len = self.longest();
                let expected = match to > len {
                    true => Err(KvErrorKind::RewindForward { to, len }),
                    false => {
                        let all = self.held.iter_mut();
                        all.for_each(|held| held.truncate(to as usize));
                        Ok(())
                    }
                };
                (expected, self.cache.rewind(to))
            }
            Operation::Clear => {
                self.held.iter_mut().for_each(Vec::clear);
                self.cache.clear();
                (Ok(()), Ok(()))
            }
        };
        let result = kind(result);
        if result.is_err() {
            assert_eq!(self.cache, before, "a refused operation changed the cache");
        }
        assert_eq!(result, expected);
        self.audit();
    }

    fn audit(&self) {
        for (seq, held) in (0..).zip(&self.held) {
            assert_eq!(self.cache.seq_len(seq).unwrap() as usize, held.len());
        }
        let all: usize = self.held.iter().map(Vec::len).sum();
        assert_eq!(self.cache.len() as usize, all);
        let room = self.max_seq_len - self.longest();
        assert!(self.cache.can_extend(room) && !self.cache.can_extend(room + 1));
    }

    /// A step's tokens: the sequence, and whether it is real.
    fn tokens(&self, parts: &[(SeqId, u32, u32)], in_turns: bool) -> Vec<(SeqId, bool)> {
        let mut lists: Vec<(SeqId, Vec<bool>)> = vec![];
        for &(seq, real, pads) in parts {
            let seq = seq % (self.held.len() as u32 + 1);
            let tokens = (0..real + pads).map(|i| i < real);
            lists.push((seq, tokens.collect()));
        }
        if !in_turns {
            let flat = lists.into_iter();
            return flat
                .flat_map(|(seq, list)| list.into_iter().map(move |real| (seq, real)))
                .collect();
        }
        let longest = lists.iter().map(|(_, list)| list.len()).max().unwrap_or(0);
        let turn = |i: usize| {
            let there = lists
                .iter()
                .filter_map(move |(s, l)| Some((*s, *l.get(i)?)));
            there.collect::<Vec<_>>()
        };
        (0..longest).flat_map(turn).collect()
    }

    /// The first thing that is wrong with a declaration.
    fn refusal(&self, tokens: &[(SeqId, bool)]) -> Result<(), KvErrorKind> {
        if tokens.is_empty() {
            return Err(KvErrorKind::EmptyStep);
        }
        for (index, &(seq, real)) in tokens.iter().enumerate() {
            self.known(seq)?;
            let upto = || tokens[..=index].iter().filter(|t| t.0 == seq);
            let needed = self.held[seq as usize].len() as u64 + upto().count() as u64;
            if needed > self.max_seq_len.into() {
                let max_seq_len = self.max_seq_len;
                return Err(KvErrorKind::StaticFull {
                    seq,
                    needed,
                    max_seq_len,
                });
            }
            if real && upto().any(|t| !t.1) {
                return Err(KvErrorKind::PadBefore { index, seq });
            }
        }
        Ok(())
    }

    fn step(&mut self, tokens: &[(SeqId, bool)], wrong: Option<(usize, i32)>, end: End) {
        let expected = self.refusal(tokens);
        let before = self.cache.clone();
        assert_eq!(kind(self.cache.begin_padded_step(tokens)), expected);
        if expected.is_err() {
            assert_eq!(self.cache, before);
            return;
        }
        let stamps = self.bytes.stamps(tokens.len());
        let mut written = self.held.clone();
        let mut positions = vec![];
        for (&(seq, _), &stamp) in tokens.iter().zip(&stamps) {
            positions.push(written[seq as usize].len() as i32);
            written[seq as usize].push(stamp);
        }
        if let Some((index, by)) = wrong {
            let index = index % positions.len();
            let mut positions = positions.clone();
            let expected = positions[index] as u32;
            positions[index] += by;
            let found = positions[index].into();
            let refused = kind(self.cache.plan_declared(&positions, &mut self.plan));
            assert_eq!(
                refused,
                Err(KvErrorKind::Position {
                    index,
                    found,
                    expected
                })
            );
        }
        self.cache
            .plan_declared(&positions, &mut self.plan)
            .unwrap();
        let see = |(&(seq, _), &position): (&(SeqId, bool), &i32)| {
            let upto = &written[seq as usize][..=position as usize];
            (0..).zip(upto.iter().copied()).collect()
        };
        let visible: Vec<Vec<(u32, Stamp)>> = tokens.iter().zip(&positions).map(see).collect();
        let layers = match end {
            End::Commit => usize::MAX,
            End::Fail { written } => written,
        };
        let held = &self.held;
        Step {
            plan: &self.plan,
            config: &self.all,
            stamps: &stamps,
            visible: &visible,
            live: &|stamp| held.iter().flatten().any(|held| *held == stamp),
        }
        .run(&mut self.bytes, layers);
        match end {
            End::Commit => {
                self.cache.commit(&self.plan);
                for (&(seq, real), &stamp) in tokens.iter().zip(&stamps) {
                    self.held[seq as usize].extend(real.then_some(stamp));
                }
            }
            End::Fail { .. } => {
                self.cache.abort(Some(&self.plan));
                assert_eq!(self.cache, before);
            }
        }
    }

    /// The index stream says the same as the faces do; the state is put back, since no bytes were written.
    fn indices(&mut self, tokens: u32, real: &[u32]) {
        let before = self.cache.clone();
        let fits = |held: &Vec<Stamp>| held.len() as u32 + tokens <= self.max_seq_len;
        let valid =
            tokens > 0 && self.held.iter().all(fits) && real.iter().all(|real| *real <= tokens);
        let step = self.cache.indices(tokens, real);
        assert_eq!(self.cache, before, "asking changes nothing");
        assert_eq!(step.is_ok(), valid, "{step:?}");
        let Ok(step) = step else { return };
        self.cache.advance(&step);
        for (s, (held, real)) in self.held.iter().zip(real).enumerate() {
            let (len, after) = (held.len() as i64, held.len() as u32 + real);
            assert_eq!(
                (step.write_indices[s], step.nonpad_kv_seqlen[s]),
                (len, after.into())
            );
            assert_eq!(self.cache.seq_len(s as u32).unwrap(), after);
        }
        self.cache = before;
    }
}

proptest! {
    #![proptest_config(histories())]

    #[test]
    fn scatter_histories(
        max_seq_len in 1u32..24,
        sequences in 1u32..4,
        initial_cells in 1u32..9,
        windows in windows(),
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        let config = CacheConfig { initial_cells, ..config(max_seq_len, &windows, None) };
        let mut history = History::new(config, sequences);
        for operation in &operations {
            history.apply(operation);
        }
    }
}
