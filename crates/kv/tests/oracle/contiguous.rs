//! Histories of one sequence, with flat layers and rings.

use crate::facts::{Bytes, End, Stamp, Step, config, end, histories, kind, windows};
use kv::{Cache, CacheConfig, CacheManager, Contiguous, KvErrorKind, RingPolicy, StepPlan};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    Step { tokens: u32, end: End },
    WrongPosition { tokens: u32, index: u32, by: i32 },
    Rewind { to: u32 },
    RewindForward { by: u32 },
    Clear,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        10 => (0u32..9, end()).prop_map(|(tokens, end)| Operation::Step { tokens, end }),
        1 => (1u32..5, 0u32..5, prop::sample::select(vec![-30, -1, 1, 9]))
            .prop_map(|(tokens, index, by)| Operation::WrongPosition { tokens, index, by }),
        4 => (0u32..14).prop_map(|to| Operation::Rewind { to }),
        1 => (1u32..4).prop_map(|by| Operation::RewindForward { by }),
        1 => Just(Operation::Clear),
    ]
}

/// One history and its facts.
struct History {
    config: CacheConfig,
    cache: Contiguous,
    plan: StepPlan,
    bytes: Bytes,
    /// The stamp at each position held.
    held: Vec<Stamp>,
    /// Whether a step failed before it had written all layers: then more rows are left than the cache can know.
    partial: bool,
}

impl History {
    fn new(config: CacheConfig) -> History {
        History {
            cache: Contiguous::new(&config),
            plan: StepPlan::default(),
            bytes: Bytes::new(&config),
            held: vec![],
            partial: false,
            config,
        }
    }

    fn len(&self) -> u32 {
        self.held.len() as u32
    }

    /// The windows of the layers that are rings, with the rows they keep beyond them.
    fn rings(&self) -> impl Iterator<Item = (usize, u32, u32)> + '_ {
        let ring = self.config.ring;
        let layers = self.config.layers.iter().enumerate();
        layers.filter_map(move |(layer, facts)| {
            let (window, ring) = facts.window.zip(ring)?;
            Some((layer, window, ring.max_step.max(ring.max_rewind).max(1)))
        })
    }

    fn apply(&mut self, operation: &Operation) {
        let before = self.cache.clone();
        match *operation {
            Operation::Step { tokens, end } => self.step(tokens, end),
            Operation::WrongPosition { tokens, index, by } => {
                let fits = tokens.min(self.most_tokens());
                if fits == 0 {
                    return;
                }
                let index = (index % fits) as usize;
                let mut positions = self.positions(fits);
                let expected = positions[index] as u32;
                positions[index] += by;
                let found = positions[index].into();
                let wrong = KvErrorKind::Position {
                    index,
                    found,
                    expected,
                };
                let refused = self.cache.plan_declared(&positions, &mut self.plan);
                assert_eq!(kind(refused), Err(wrong));
                self.cache.abort(None);
                assert_eq!(self.cache, before);
                self.step(fits, End::Commit);
            }
            Operation::Rewind { to } => {
                // Mostly near the end, where rings decide.
                let to = self.len().saturating_sub(to);
                let kept = self.rows_kept(to);
                match kind(self.cache.rewind(to)) {
                    Ok(()) => {
                        assert!(kept, "a rewind to {to} would read lost rows");
                        self.held.truncate(to as usize);
                    }
                    Err(error) => {
                        let floor = self.cache.rewind_floor();
                        assert_eq!(error, KvErrorKind::RewindTooFar { to, floor });
                        assert!(to < floor);
                        assert_eq!(self.cache, before);
                        // Nothing that could have been kept is refused, but for what needs no rows at all: the
                        // beginning, which `clear` gives, and windows of one.
                        // The first positions of layers with sinks are kept, and the cache does not go back there.
                        let sinks = self.config.layers.iter().map(|layer| layer.sinks).max();
                        let needs_rows = to > sinks.unwrap_or(0)
                            && self.rings().all(|(_, window, _)| window > 1);
                        assert!(!kept || !needs_rows || self.partial, "{to} could be kept");
                    }
                }
            }
            Operation::RewindForward { by } => {
                let (to, len) = (self.len() + by, self.len());
                let refused = kind(self.cache.rewind(to));
                assert_eq!(refused, Err(KvErrorKind::RewindForward { to, len }));
                assert_eq!(self.cache, before);
            }
            Operation::Clear => {
                self.cache.clear();
                self.held.clear();
                self.partial = false;
                assert_eq!(self.cache, Contiguous::new(&self.config));
            }
        }
        assert_eq!(self.cache.len(), self.len());
        let room = self.config.capacity - self.len();
        assert!(self.cache.can_extend(room) && !self.cache.can_extend(room + 1));
    }

    /// Most tokens that the next step may have.
    fn most_tokens(&self) -> u32 {
        let room = self.config.capacity - self.len();
        let max = self.rings().map(|(_, _, slack)| slack).min();
        room.min(max.unwrap_or(u32::MAX))
    }

    fn positions(&self, tokens: u32) -> Vec<i32> {
        (self.len() as i32..).take(tokens as usize).collect()
    }

    /// Whether every ring still has the rows that the token at position `to` sees before itself.
    fn rows_kept(&self, to: u32) -> bool {
        self.rings().all(|(layer, window, slack)| {
            let (slots, sinks) = (window - 1 + slack, self.config.layers[layer].sinks);
            let cell = |position: u32| match position < sinks {
                true => position,
                false => sinks + (position - sinks) % slots,
            };
            let latest = to.saturating_sub(window - 1)..to;
            latest.chain(0..sinks.min(to)).all(|position| {
                let row = self.bytes.rows[layer][cell(position) as usize];
                row == self.held[position as usize]
            })
        })
    }

    fn refusal(&self, tokens: u32) -> Option<KvErrorKind> {
        let needed = u64::from(self.len() + tokens);
        let max = self.rings().map(|(_, _, slack)| slack).min();
        if tokens == 0 {
            Some(KvErrorKind::EmptyStep)
        } else if needed > self.config.capacity.into() {
            let capacity = self.config.capacity;
            Some(KvErrorKind::Full { needed, capacity })
        } else {
            max.filter(|max| tokens > *max)
                .map(|max| KvErrorKind::StepTooLong {
                    tokens: tokens as usize,
                    max,
                })
        }
    }

    fn step(&mut self, tokens: u32, end: End) {
        if let Some(wrong) = self.refusal(tokens) {
            let before = self.cache.clone();
            let positions = self.positions(tokens);
            let refused = self.cache.plan_declared(&positions, &mut self.plan);
            assert_eq!(kind(refused), Err(wrong));
            self.cache.abort(None);
            assert_eq!(self.cache, before);
            let fits = tokens.min(self.most_tokens());
            if fits > 0 {
                self.step(fits, end);
            }
            return;
        }
        let positions = self.positions(tokens);
        self.cache
            .plan_declared(&positions, &mut self.plan)
            .unwrap();
        let mut fresh = StepPlan::default();
        self.cache.plan_declared(&positions, &mut fresh).unwrap();
        for layer in 0..fresh.layers() {
            assert_eq!(fresh.layer(layer), self.plan.layer(layer));
        }
        let stamps = self.bytes.stamps(tokens as usize);
        let mut tried = self.held.clone();
        let mut visible = vec![];
        for stamp in &stamps {
            tried.push(*stamp);
            visible.push((0..).zip(tried.iter().copied()).collect());
        }
        let written = match end {
            End::Commit => usize::MAX,
            End::Fail { written } => written,
        };
        let held = &self.held;
        let step = Step {
            plan: &self.plan,
            config: &self.config,
            stamps: &stamps,
            visible: &visible,
            live: &|stamp| held.contains(&stamp),
        };
        step.run(&mut self.bytes, written);
        match end {
            End::Commit => {
                self.cache.commit(&self.plan);
                self.held = tried;
            }
            End::Fail { .. } => {
                self.cache.abort(Some(&self.plan));
                self.partial |= written < self.config.layers.len();
            }
        }
    }
}

proptest! {
    #![proptest_config(histories())]

    #[test]
    fn contiguous_histories(
        capacity in 4u32..48,
        windows in windows(),
        ring in prop::option::of((0u32..9, 0u32..9)),
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        let ring = ring.map(|(max_step, max_rewind)| RingPolicy { max_step, max_rewind });
        let mut history = History::new(config(capacity, &windows, ring));
        for operation in &operations {
            history.apply(operation);
        }
    }
}
