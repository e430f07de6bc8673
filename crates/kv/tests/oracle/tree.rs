//! Histories of a prefix with candidates after it.

use crate::facts::{Bytes, End, Stamp, Step, config, end, histories, kind, plain_windows};
use kv::{Cache, CacheConfig, CacheManager, KvErrorKind, RingPolicy, StepPlan, Tree, TreeCache};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    /// The frontier, or so many tokens after the prefix.
    Forward {
        tokens: usize,
        end: End,
    },
    /// A forward with a token too many, or at a wrong position, which is refused; then the right one.
    WrongForward {
        index: usize,
        by: i32,
    },
    /// Each choice picks a parent among the candidates before it.
    Propose {
        choices: Vec<u8>,
    },
    /// Each choice picks a child of the candidate before it; the path may be empty.
    Accept {
        choices: Vec<u8>,
    },
    /// Any numbers.
    AcceptAny {
        path: Vec<u32>,
    },
    Rewind {
        len: u32,
    },
    Clear,
    /// A forward that never got as far as a plan.
    Abort,
}

fn operation() -> impl Strategy<Value = Operation> {
    let choices = |max| prop::collection::vec(any::<u8>(), 0..max);
    prop_oneof![
        10 => (0usize..6, end()).prop_map(|(tokens, end)| Operation::Forward { tokens, end }),
        1 => (0usize..6, prop::sample::select(vec![-50, -1, 0, 1, 5]))
            .prop_map(|(index, by)| Operation::WrongForward { index, by }),
        7 => choices(8).prop_map(|choices| Operation::Propose { choices }),
        5 => choices(5).prop_map(|choices| Operation::Accept { choices }),
        1 => prop::collection::vec(0u32..9, 0..4).prop_map(|path| Operation::AcceptAny { path }),
        2 => (0u32..20).prop_map(|len| Operation::Rewind { len }),
        1 => Just(Operation::Clear),
        1 => Just(Operation::Abort),
    ]
}

#[derive(Clone, Copy)]
struct Candidate {
    parent: Option<u32>,
    /// Once a forward has computed it.
    stamp: Option<Stamp>,
}

/// One history and its facts.
struct History {
    config: CacheConfig,
    cache: Tree,
    plan: StepPlan,
    bytes: Bytes,
    /// The stamp at each position of the prefix.
    prefix: Vec<Stamp>,
    candidates: Vec<Candidate>,
}

impl History {
    fn new(config: CacheConfig) -> History {
        History {
            cache: Tree::new(&config),
            plan: StepPlan::default(),
            bytes: Bytes::new(&config),
            prefix: vec![],
            candidates: vec![],
            config,
        }
    }

    /// The candidate and its ancestors, the eldest first.
    fn chain(&self, node: u32) -> Vec<u32> {
        let mut chain = match self.candidates[node as usize].parent {
            Some(parent) => self.chain(parent),
            None => vec![],
        };
        chain.push(node);
        chain
    }

    /// Candidates that no forward has computed.
    fn frontier(&self) -> Vec<u32> {
        (0..self.candidates.len() as u32)
            .filter(|node| self.candidates[*node as usize].stamp.is_none())
            .collect()
    }

    fn used(&self) -> u64 {
        (self.prefix.len() + self.candidates.len()) as u64
    }

    fn active(&self) -> Option<KvErrorKind> {
        let candidates = self.candidates.len() as u32;
        (candidates > 0).then_some(KvErrorKind::TreeActive { candidates })
    }

    fn full(&self, more: usize) -> Option<KvErrorKind> {
        let capacity = self.config.capacity;
        let needed = self.used() + more as u64;
        (needed > capacity.into()).then_some(KvErrorKind::Full { needed, capacity })
    }

    /// The error that rings return for `tokens` tokens after the prefix, if any.
    fn too_long(&self, tokens: usize) -> Option<KvErrorKind> {
        let windows = self
            .config
            .layers
            .iter()
            .any(|layer| layer.window.is_some());
        let max = self.config.ring.filter(|_| windows)?.slack();
        (tokens > max as usize).then_some(KvErrorKind::StepTooLong { tokens, max })
    }

    /// Whether every ring still has the rows that the token at position `to` sees before itself.
    fn rows_kept(&self, to: u32) -> bool {
        let layers = self.config.layers.iter().zip(&self.bytes.rows);
        layers.into_iter().all(|(layer, rows)| {
            let Some(window) = layer.window else {
                return true;
            };
            let ring = self.config.growth(layer).max_rows_per_sequence;
            (to.saturating_sub(window - 1)..to)
                .all(|p| rows[(p % ring) as usize] == self.prefix[p as usize])
        })
    }

    fn apply(&mut self, operation: &Operation) {
        let before = self.cache.clone();
        match operation {
            &Operation::Forward { tokens, end } => self.forward(tokens, end),
            &Operation::WrongForward { index, by } => {
                let mut positions = self.positions(2);
                let refused = self.full(2).or(self.too_long(2));
                if positions.is_empty() || refused.is_some() {
                    return;
                }
                let index = index % positions.len();
                let expected = positions[index] as u32;
                positions[index] += by;
                let wrong = if by != 0 {
                    let found = positions[index].into();
                    KvErrorKind::Position {
                        index,
                        found,
                        expected,
                    }
                } else if self.candidates.is_empty() {
                    return;
                } else {
                    positions.push(0);
                    let (declared, found) = (positions.len() - 1, positions.len());
                    KvErrorKind::TokenCount { declared, found }
                };
                let refused = self.cache.plan_declared(&positions, &mut self.plan);
                assert_eq!(kind(refused), Err(wrong));
                assert_eq!(self.cache, before);
                self.forward(2, End::Commit);
            }
            Operation::Propose { choices } => {
                let first = self.candidates.len() as u32;
                let pick = |(node, &choice): (u32, &u8)| match choice {
                    250.. => Some(node + u32::from(choice) - 250),
                    _ => u32::from(choice).checked_rem(node + 1)?.checked_sub(1),
                };
                let parents: Vec<Option<u32>> = (first..).zip(choices).map(pick).collect();
                let stray = (first..).zip(&parents).find_map(|(node, parent)| {
                    let parent = parent.filter(|parent| *parent >= node)?;
                    Some(KvErrorKind::Parent { node, parent })
                });
                let expected = if !self.frontier().is_empty() {
                    Some(KvErrorKind::StepPending)
                } else if parents.is_empty() {
                    Some(KvErrorKind::EmptyStep)
                } else {
                    let candidates = self.candidates.len() + parents.len();
                    let full = self.full(parents.len());
                    full.or(self.too_long(candidates)).or(stray)
                };
                assert_eq!(kind(self.cache.propose(&parents)).err(), expected);
                if expected.is_none() {
                    let fresh = |&parent| Candidate {
                        parent,
                        stamp: None,
                    };
                    self.candidates.extend(parents.iter().map(fresh));
                } else {
                    assert_eq!(self.cache, before);
                }
            }
            Operation::Accept { choices } => {
                let mut path: Vec<u32> = vec![];
                for choice in choices {
                    let children: Vec<u32> = (0..)
                        .zip(&self.candidates)
                        .filter(|(_, c)| c.stamp.is_some() && c.parent == path.last().copied())
                        .map(|(node, _)| node)
                        .collect();
                    if children.is_empty() {
                        break;
                    }
                    path.push(children[usize::from(*choice) % children.len()]);
                }
                self.accept(&path);
            }
            Operation::AcceptAny { path } => self.accept(path),
            &Operation::Rewind { len } => {
                let held = self.prefix.len() as u32;
                let too_far =
                    (len > held).then_some(KvErrorKind::RewindForward { to: len, len: held });
                let floor = self.cache.rewind_floor();
                let lost = (len < floor).then_some(KvErrorKind::RewindTooFar { to: len, floor });
                let expected = self.active().or(too_far).or(lost);
                assert_eq!(kind(self.cache.rewind(len)).err(), expected);
                match expected {
                    None => {
                        assert!(
                            self.rows_kept(len),
                            "a rewind to {len} would read lost rows"
                        );
                        self.prefix.truncate(len as usize);
                    }
                    Some(_) => assert_eq!(self.cache, before),
                }
            }
            Operation::Clear => {
                self.cache.clear();
                self.prefix.clear();
                self.candidates.clear();
                assert_eq!(self.cache, Tree::new(&self.config));
            }
            Operation::Abort => {
                self.cache.abort(None);
                self.candidates.retain(|c| c.stamp.is_some());
            }
        }
        self.audit();
    }

    fn audit(&self) {
        assert_eq!(self.cache.len() as usize, self.prefix.len());
        assert_eq!(self.cache.candidates() as usize, self.candidates.len());
        let room = self.config.capacity - self.used() as u32;
        assert!(self.cache.can_extend(room) && !self.cache.can_extend(room + 1));
        for (layer, rows) in self.config.layers.iter().zip(&self.bytes.rows) {
            let is_flat = self.config.growth(layer).max_rows_per_sequence == self.config.capacity;
            let in_order = rows.starts_with(&self.prefix);
            assert!(!is_flat || in_order, "the prefix lies in order");
        }
        assert!(self.rows_kept(self.prefix.len() as u32));
        for node in 0..self.candidates.len() as u32 {
            let position = self.prefix.len() + self.chain(node).len() - 1;
            assert_eq!(self.cache.position(node), Some(position as u32));
        }
        assert_eq!(self.cache.position(self.candidates.len() as u32), None);
    }

    fn accept(&mut self, path: &[u32]) {
        let computed = self.candidates.iter().filter(|c| c.stamp.is_some()).count();
        if (1..self.candidates.len()).contains(&computed) {
            let before = self.cache.clone();
            let refused = self.cache.commit_path(path).unwrap_err();
            assert_eq!(*refused.kind(), KvErrorKind::StepPending);
            assert_eq!(self.cache, before);
            return;
        }
        let mut parent = None;
        let mut stray = None;
        for &node in path {
            let fits = self
                .candidates
                .get(node as usize)
                .is_some_and(|c| c.stamp.is_some() && c.parent == parent);
            if !fits {
                stray = Some(KvErrorKind::NotAChain { node, parent });
                break;
            }
            parent = Some(node);
        }
        let before = self.cache.clone();
        match (self.cache.commit_path(path), stray) {
            (Ok(gather), None) => {
                assert_eq!(gather.base as usize, self.prefix.len());
                assert!(gather.rows.is_sorted_by(|a, b| a < b));
                assert!(
                    (gather.base..)
                        .zip(&gather.rows)
                        .all(|(to, from)| to <= *from)
                );
                self.bytes.gather(&gather, &self.config);
                let stamps = path
                    .iter()
                    .filter_map(|n| self.candidates[*n as usize].stamp);
                self.prefix.extend(stamps);
                if computed > 0 {
                    self.candidates.clear();
                }
            }
            (Err(error), Some(stray)) => {
                assert_eq!(error.kind(), &stray);
                assert_eq!(self.cache, before);
                // The next correct call works: nothing is accepted.
                self.accept(&[]);
            }
            (result, stray) => panic!("{path:?}: {result:?}, expected {stray:?}"),
        }
    }

    /// The positions of the frontier, or of so many tokens after the prefix.
    fn positions(&self, tokens: usize) -> Vec<i32> {
        let len = self.prefix.len();
        if self.candidates.is_empty() {
            return (len as i32..).take(tokens).collect();
        }
        let position = |node: &u32| (len + self.chain(*node).len() - 1) as i32;
        self.frontier().iter().map(position).collect()
    }

    fn forward(&mut self, tokens: usize, end: End) {
        let frontier = self.frontier();
        let positions = self.positions(tokens);
        let expected = if self.candidates.is_empty() {
            let empty = (tokens == 0).then_some(KvErrorKind::EmptyStep);
            empty.or(self.full(tokens)).or(self.too_long(tokens))
        } else if frontier.is_empty() {
            self.active()
        } else {
            None
        };
        let before = self.cache.clone();
        if let Some(expected) = expected {
            let asked = match positions.is_empty() && tokens > 0 {
                true => vec![self.prefix.len() as i32],
                false => positions,
            };
            let expected = match asked.is_empty() {
                true => KvErrorKind::EmptyStep,
                false => expected,
            };
            let refused = self.cache.plan_declared(&asked, &mut self.plan);
            assert_eq!(kind(refused), Err(expected));
            assert_eq!(self.cache, before);
            return;
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
        let mut prefix = self.prefix.clone();
        let mut candidates = self.candidates.clone();
        let mut visible: Vec<Vec<(u32, Stamp)>> = vec![];
        if candidates.is_empty() {
            for stamp in &stamps {
                prefix.push(*stamp);
                visible.push((0..).zip(prefix.iter().copied()).collect());
            }
        } else {
            for (node, stamp) in frontier.iter().zip(&stamps) {
                candidates[*node as usize].stamp = Some(*stamp);
            }
            for node in &frontier {
                let chain = self.chain(*node);
                let own = chain
                    .iter()
                    .filter_map(|ancestor| candidates[*ancestor as usize].stamp);
                visible.push((0..).zip(prefix.iter().copied().chain(own)).collect());
            }
        }
        let written = match end {
            End::Commit => usize::MAX,
            End::Fail { written } => written,
        };
        let held = |stamp| {
            let computed = self.candidates.iter().any(|c| c.stamp == Some(stamp));
            computed || self.prefix.contains(&stamp)
        };
        let step = Step {
            plan: &self.plan,
            config: &self.config,
            stamps: &stamps,
            visible: &visible,
            live: &held,
        };
        step.run(&mut self.bytes, written);
        match end {
            End::Commit => {
                self.cache.commit(&self.plan);
                (self.prefix, self.candidates) = (prefix, candidates);
            }
            End::Fail { .. } => {
                self.cache.abort(Some(&self.plan));
                self.candidates.retain(|c| c.stamp.is_some());
            }
        }
    }
}

proptest! {
    #![proptest_config(histories())]

    #[test]
    fn tree_histories(
        capacity in 4u32..48,
        windows in plain_windows(),
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
