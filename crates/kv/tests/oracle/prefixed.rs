//! Caches on a frozen prefix against cold ones that computed the same tokens: the same results, the same errors, and every token sees
//! the same rows.

use crate::facts::{Bytes, End, Stamp, config, end, histories, kind, plain_windows};
use kv::{
    Cache, CacheConfig, CacheManager, Cells, Compaction, Contiguous, GatherPlan, KvErrorKind,
    MAX_SEQUENCES, PrefixCells, Prefixed, Restorable, RingPolicy, SeqCache, SeqId, Step, StepPlan,
    Tree, TreeCache,
};
use proptest::prelude::*;

/// A cache and its rows.
#[derive(Clone)]
struct Stored<K> {
    cache: K,
    /// Layer, then cell.
    rows: Vec<Vec<Stamp>>,
    /// The cells of the prefix in each layer.
    frozen: Vec<u32>,
}

/// What a token sees in a layer.
type Seen = Vec<(u32, Stamp)>;

impl<K: CacheManager> Stored<K> {
    /// Plans a step, writes its rows and returns what its tokens see, layer by layer.
    fn step(
        &mut self,
        plan: impl FnOnce(&K, &mut StepPlan) -> Result<(), kv::KvError>,
        stamps: &[Stamp],
        end: End,
    ) -> Result<Vec<Vec<Seen>>, KvErrorKind> {
        let mut planned = StepPlan::default();
        if let Err(error) = plan(&self.cache, &mut planned) {
            self.cache.abort(None);
            return Err(error.kind().clone());
        }
        let written = match end {
            End::Commit => usize::MAX,
            End::Fail { written } => written,
        };
        let mut seen = vec![];
        for (layer, rows) in self.rows.iter_mut().enumerate().take(written) {
            let plan = planned.layer(layer);
            assert!(plan.writes.iter().all(|cell| *cell >= self.frozen[layer]));
            for (cell, stamp) in plan.writes.iter().zip(stamps) {
                rows[*cell as usize] = *stamp;
            }
            let of_token = |token| {
                let runs = plan.visible.runs(token);
                let row = |(position, cell): (u32, u32)| (position, rows[cell as usize]);
                runs.flat_map(|run| run.positions().zip(run.cells()).map(row))
                    .collect()
            };
            seen.push((0..stamps.len()).map(of_token).collect());
        }
        match end {
            End::Commit => self.cache.commit(&planned),
            End::Fail { .. } => self.cache.abort(Some(&planned)),
        }
        Ok(seen)
    }

    fn reorder(&mut self, order: &Compaction) {
        for (layer, rows) in self.rows.iter_mut().enumerate() {
            let frozen = self.frozen[layer] as usize;
            let old = rows.clone();
            for (to, from) in order.layer(layer).into_iter().flatten().enumerate() {
                rows[frozen + to] = old[frozen + *from as usize];
            }
        }
    }

    fn gather(&mut self, gather: &GatherPlan, config: &CacheConfig) {
        for (layer, rows) in self.rows.iter_mut().enumerate() {
            let frozen = self.frozen[layer];
            let growth = config.growth(&config.layers[layer]).after_prefix(frozen);
            let (frozen, ring) = (frozen as usize, growth.max_rows_per_sequence as usize);
            for (to, from) in (gather.base as usize..).zip(&gather.rows) {
                rows[frozen + to % ring] = rows[frozen + *from as usize % ring];
            }
        }
    }
}

/// A cold cache that computed `prefix` tokens, and one of the same configuration on their frozen rows.
struct Twins<K> {
    cold: Stored<K>,
    warm: Stored<K>,
    config: CacheConfig,
    prefix: u32,
    last: Stamp,
}

impl<K: Prefixed + Clone> Twins<K> {
    /// `computed` is a cold cache after the prefix, whose token at position `p` has the stamp `p + 1`.
    fn new(config: CacheConfig, prefix: u32, computed: Stored<K>, first: &[u32]) -> Twins<K> {
        let cells = PrefixCells::consecutive(&config, prefix, first).unwrap();
        let mut warm = Stored {
            cache: K::after_prefix(&config, &cells).unwrap(),
            rows: Bytes::new(&config).rows,
            frozen: cells.counts(),
        };
        for (rows, first) in warm.rows.iter_mut().zip(first) {
            for (row, position) in rows.iter_mut().zip(*first..prefix) {
                *row = position + 1;
            }
        }
        Twins {
            cold: computed,
            warm,
            config,
            prefix,
            last: prefix,
        }
    }

    /// Calls an operation on both.
    fn both<T: PartialEq + std::fmt::Debug>(
        &mut self,
        operation: impl Fn(&mut Stored<K>) -> T,
    ) -> T {
        let cold = operation(&mut self.cold);
        assert_eq!(operation(&mut self.warm), cold);
        cold
    }

    fn stamps(&mut self, tokens: usize) -> Vec<Stamp> {
        let first = self.last + 1;
        self.last += tokens as Stamp;
        (first..=self.last).collect()
    }

    /// Runs a declared step on both. What a failed forward did not write is not compared.
    fn step(&mut self, positions: &[i32], end: End) {
        let stamps = self.stamps(positions.len());
        let plan = |cache: &K, plan: &mut StepPlan| cache.plan_declared(positions, plan);
        let _ = self.both(|stored| stored.step(plan, &stamps, end));
    }
}

fn empty<K>(cache: K, config: &CacheConfig) -> Stored<K> {
    Stored {
        cache,
        rows: Bytes::new(config).rows,
        frozen: vec![0; config.layers.len()],
    }
}

/// A cold cache of one sequence after the tokens of the prefix.
fn computed<K: CacheManager>(cache: K, config: &CacheConfig, prefix: u32) -> Stored<K> {
    let mut stored = empty(cache, config);
    let most = config.ring.map_or(prefix, |ring| ring.slack());
    for start in (0..prefix).step_by(most as usize) {
        let positions: Vec<i32> = (start as i32..(start + most).min(prefix) as i32).collect();
        let stamps: Vec<Stamp> = positions.iter().map(|p| *p as Stamp + 1).collect();
        let plan = |cache: &K, plan: &mut StepPlan| cache.plan_declared(&positions, plan);
        stored.step(plan, &stamps, End::Commit).unwrap();
    }
    stored
}

/// The rows that a prefix file has of each layer: at least those that the next token sees, at most all.
fn first_rows(config: &CacheConfig, prefix: u32, more: u32) -> Vec<u32> {
    let first = |layer: &kv::LayerConfig| match layer.window.zip(config.ring) {
        Some((window, _)) => (prefix + 1).saturating_sub(window + more % 4).min(prefix),
        None => 0,
    };
    config.layers.iter().map(first).collect()
}

fn policy(ring: Option<(u32, u32)>) -> Option<RingPolicy> {
    ring.map(|(max_step, max_rewind)| RingPolicy {
        max_step,
        max_rewind,
    })
}

#[derive(Clone, Debug)]
enum Move {
    Step {
        tokens: u32,
        end: End,
    },
    Rewind {
        by: u32,
    },
    Clear,
    /// Candidates with these parents, of which the first chain is accepted up to a length.
    Tree {
        parents: Vec<u32>,
        accepted: usize,
    },
}

fn one_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => (1u32..9, end()).prop_map(|(tokens, end)| Move::Step { tokens, end }),
        3 => (0u32..14).prop_map(|by| Move::Rewind { by }),
        1 => Just(Move::Clear),
        4 => (prop::collection::vec(0u32..6, 1..6), 0usize..5)
            .prop_map(|(parents, accepted)| Move::Tree { parents, accepted }),
    ]
}

impl<K: Prefixed + Clone> Twins<K> {
    /// A move of a cache of one sequence. Rings of the cold cache have lost more, so a rewind that it refuses is not compared.
    fn advance(&mut self, step: &Move) {
        let len = self.warm.cache.len();
        match *step {
            Move::Step { tokens, end } => {
                let positions: Vec<i32> = (len as i32..).take(tokens as usize).collect();
                self.step(&positions, end);
            }
            Move::Rewind { by } => {
                let to = len.saturating_sub(by);
                if to < self.prefix {
                    let refused = kind(self.warm.cache.rewind(to));
                    assert!(
                        matches!(refused, Err(KvErrorKind::RewindTooFar { .. })),
                        "{refused:?}"
                    );
                } else if self.cold.cache.clone().rewind(to).is_ok() {
                    self.both(|stored| kind(stored.cache.rewind(to))).unwrap();
                }
            }
            Move::Clear => {
                self.warm.cache.clear();
                assert_eq!(self.warm.cache.len(), self.prefix);
                let to = self.prefix;
                if self.cold.cache.clone().rewind(to).is_err() {
                    return self.start_again();
                }
                self.cold.cache.rewind(to).unwrap();
            }
            Move::Tree { .. } => {}
        }
        assert_eq!(self.warm.cache.len(), self.cold.cache.len());
    }

    fn start_again(&mut self) {
        self.cold.cache.clear();
        let (config, prefix) = (self.config.clone(), self.prefix);
        self.cold = computed(self.cold.cache.clone(), &config, prefix);
    }
}

impl Twins<Tree> {
    fn speculate(&mut self, parents: &[u32], accepted: usize) {
        let parents = parents.iter().enumerate();
        // A parent after its child means none.
        let parents: Vec<Option<u32>> = parents
            .map(|(i, parent)| Some(*parent).filter(|p| (*p as usize) < i))
            .collect();
        let proposed = self.both(|stored| kind(stored.cache.propose(&parents)));
        if proposed.is_err() {
            return;
        }
        let position = |node| self.warm.cache.position(node).unwrap() as i32;
        let positions: Vec<i32> = (0..parents.len() as u32).map(position).collect();
        self.step(&positions, End::Commit);
        let mut path = vec![];
        while path.len() < accepted {
            let next = parents
                .iter()
                .position(|parent| *parent == path.last().copied());
            path.extend(next.map(|node| node as u32));
            if next.is_none() {
                break;
            }
        }
        for stored in [&mut self.cold, &mut self.warm] {
            let gather = stored.cache.commit_path(&path).unwrap();
            stored.gather(&gather, &self.config);
        }
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Step { parts: Vec<(SeqId, u32)>, end: End },
    Begin { seq: SeqId, less: u32 },
    Copy { from: SeqId, to: SeqId, len: u32 },
    Remove { seq: SeqId, from: u32 },
    Restore { seq: SeqId, len: u32 },
    Shift { seq: SeqId, keep: u32, dropped: u32 },
    Keep { seq: SeqId },
    Compact,
}

fn operation() -> impl Strategy<Value = Operation> {
    let seq = || 0u32..4;
    prop_oneof![
        6 => (prop::collection::vec((seq(), 1u32..5), 1..4), end())
            .prop_map(|(parts, end)| Operation::Step { parts, end }),
        4 => (seq(), 0u32..3).prop_map(|(seq, less)| Operation::Begin { seq, less }),
        2 => (seq(), seq(), 0u32..40).prop_map(|(from, to, len)| Operation::Copy { from, to, len }),
        3 => (seq(), 0u32..40).prop_map(|(seq, from)| Operation::Remove { seq, from }),
        1 => (seq(), 1u32..12).prop_map(|(seq, len)| Operation::Restore { seq, len }),
        1 => (seq(), 0u32..4, 0u32..9)
            .prop_map(|(seq, keep, dropped)| Operation::Shift { seq, keep, dropped }),
        1 => seq().prop_map(|seq| Operation::Keep { seq }),
        2 => Just(Operation::Compact),
    ]
}

impl Twins<Cells> {
    fn operate(&mut self, operation: &Operation) {
        let prefix = MAX_SEQUENCES;
        match *operation {
            Operation::Step { ref parts, end } => {
                let mut positions = vec![];
                let mut seqs = vec![];
                for (seq, tokens) in parts {
                    if seqs.contains(seq) {
                        continue;
                    }
                    let next = self.warm.cache.seq_next(*seq).unwrap().unwrap_or(0) as i32;
                    positions.extend(next..next + *tokens as i32);
                    seqs.extend(std::iter::repeat_n(*seq, *tokens as usize));
                }
                if self
                    .both(|stored| kind(stored.cache.begin_step(&seqs)))
                    .is_ok()
                {
                    self.step(&positions, end);
                }
            }
            Operation::Begin { seq, less } => {
                let len = self.prefix.saturating_sub(less);
                let begun = |stored: &mut Stored<Cells>| {
                    kind(stored.cache.seq_rm(seq, ..))?;
                    kind(stored.cache.seq_cp(prefix, seq, ..len))
                };
                let _ = self.both(begun);
            }
            Operation::Copy { from, to, len } => {
                let _ = self.both(|stored| kind(stored.cache.seq_cp(from, to, ..len)));
            }
            Operation::Remove { seq, from } => {
                let _ = self.both(|stored| kind(stored.cache.seq_rm(seq, from..)));
            }
            Operation::Restore { seq, len } => {
                let stamps = self.stamps(len as usize);
                let first = vec![0; self.config.layers.len()];
                let restored = |stored: &mut Stored<Cells>| {
                    let saved = kv::SavedPositions {
                        first: &first,
                        states: &[],
                    };
                    let planned = stored.cache.plan_restore(seq, len, saved);
                    let (after, rows) = planned.map_err(|error| error.kind().clone())?;
                    for (layer, stored) in stored.rows.iter_mut().enumerate() {
                        for run in rows.runs(layer) {
                            for (position, cell) in run.positions().zip(run.cells()) {
                                stored[cell as usize] = stamps[position as usize];
                            }
                        }
                    }
                    stored.cache = after;
                    Ok::<(), KvErrorKind>(())
                };
                let _ = self.both(restored);
            }
            Operation::Shift { seq, keep, dropped } => {
                let shifted = |stored: &mut Stored<Cells>| {
                    let fails = |error: kv::KvError| error.kind().clone();
                    let before = stored.cache.sequence_rows(seq).map_err(fails)?;
                    let planned = stored.cache.plan_shift(seq, keep, dropped);
                    let (after, rows) = planned.map_err(fails)?;
                    for (layer, stored) in stored.rows.iter_mut().enumerate() {
                        let old = stored.clone();
                        let cell_of = |position: u32| {
                            let mut runs = before.runs(layer).iter();
                            let run = runs.find(|run| run.positions().contains(&position));
                            run.map(|run| run.cell + position - run.position)
                        };
                        for run in rows.runs(layer) {
                            for (to, cell) in run.positions().zip(run.cells()) {
                                let moved = if to >= keep { to + dropped } else { to };
                                let from = cell_of(moved).expect("a row that was held");
                                stored[cell as usize] = old[from as usize];
                            }
                        }
                    }
                    stored.cache = after;
                    Ok::<(), KvErrorKind>(())
                };
                let _ = self.both(shifted);
            }
            Operation::Keep { seq } => {
                let _ = self.both(|stored| kind(stored.cache.seq_keep(seq)));
            }
            Operation::Compact => {
                for stored in [&mut self.cold, &mut self.warm] {
                    if let Some(order) = stored.cache.compact() {
                        stored.reorder(&order);
                    }
                }
            }
        }
        for seq in 0..4 {
            self.both(|stored| {
                let cache = &stored.cache;
                (
                    cache.seq_len(seq).unwrap(),
                    cache.rewind_floor(seq).unwrap(),
                )
            });
        }
        self.both(|stored| (stored.cache.len(), stored.cache.seq_len(prefix).unwrap()));
    }
}

proptest! {
    #![proptest_config(histories())]

    #[test]
    fn contiguous_caches_on_a_prefix(
        capacity in 24u32..48,
        prefix in 1u32..20,
        more in 0u32..4,
        windows in plain_windows(),
        ring in prop::option::of((1u32..9, 0u32..9)),
        moves in prop::collection::vec(one_move(), 1..30),
    ) {
        let config = config(capacity, &windows, policy(ring));
        let first = first_rows(&config, prefix, more);
        let cold = computed(Contiguous::new(&config), &config, prefix);
        let mut twins = Twins::new(config, prefix, cold, &first);
        moves.iter().for_each(|step| twins.advance(step));
    }

    #[test]
    fn trees_on_a_prefix(
        capacity in 24u32..48,
        prefix in 1u32..20,
        more in 0u32..4,
        windows in plain_windows(),
        ring in prop::option::of((1u32..9, 0u32..9)),
        moves in prop::collection::vec(one_move(), 1..30),
    ) {
        let config = config(capacity, &windows, policy(ring));
        let first = first_rows(&config, prefix, more);
        let cold = computed(Tree::new(&config), &config, prefix);
        let mut twins = Twins::new(config, prefix, cold, &first);
        for step in &moves {
            match step {
                Move::Tree { parents, accepted } => twins.speculate(parents, *accepted),
                step => twins.advance(step),
            }
        }
    }

    #[test]
    fn pools_on_a_prefix(
        capacity in 40u32..90,
        prefix in 1u32..20,
        windows in plain_windows(),
        ring in prop::option::of((1u32..9, 0u32..9)),
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        let config = config(capacity, &windows, policy(ring));
        let mut cold = empty(Cells::new(&config), &config);
        let most = config.ring.map_or(prefix, |ring| ring.slack());
        for start in (0..prefix).step_by(most as usize) {
            let positions: Vec<i32> = (start as i32..(start + most).min(prefix) as i32).collect();
            let stamps: Vec<Stamp> = positions.iter().map(|p| *p as Stamp + 1).collect();
            cold.cache.begin_step(&vec![0; positions.len()]).unwrap();
            let plan = |cache: &Cells, plan: &mut StepPlan| cache.plan_declared(&positions, plan);
            cold.step(plan, &stamps, End::Commit).unwrap();
        }
        assert_eq!(cold.cache.retain(0, ..).unwrap(), MAX_SEQUENCES);
        cold.cache.seq_rm(0, ..).unwrap();
        let rows = cold.cache.sequence_rows(MAX_SEQUENCES).unwrap();
        let first: Vec<u32> = (0..rows.layers()).map(|layer| rows.first_position(layer)).collect();
        let mut twins = Twins::new(config, prefix, cold, &first);
        operations.iter().for_each(|operation| twins.operate(operation));
        // The prefix is nobody's to remove, and a cleared pool has it still.
        let read_only = Err(KvErrorKind::PrefixReadOnly { tokens: prefix });
        let pool = &mut twins.warm.cache;
        assert_eq!(kind(pool.release(MAX_SEQUENCES)), read_only);
        assert_eq!(kind(pool.rewind(prefix - 1)), read_only);
        pool.clear();
        assert_eq!((pool.len(), pool.seq_len(MAX_SEQUENCES).unwrap()), (prefix, prefix));
    }
}

#[test]
fn a_prefix_ends_with_the_state_of_recurrent_layers() {
    let mut config = config(24, &[None], None);
    config.layers.push(kv::LayerConfig::state(1, 4));
    config.states.slots = 4;
    let cells = PrefixCells::consecutive(&config, 5, &[0, 0]).unwrap();
    assert_eq!(cells.counts(), [5, 1]);
    let mut pool = Cells::after_prefix(&config, &cells).unwrap();
    let prefix = pool.prefix().unwrap();
    assert_eq!(pool.state_positions(prefix).unwrap(), [4]);
    let no_state = KvErrorKind::NoState { to: 4, nearest: 0 };
    assert_eq!(kind(pool.seq_cp(prefix, 0, ..4)), Err(no_state));
    for seq in [0, 1] {
        pool.seq_cp(prefix, seq, ..5).unwrap();
        let mut step = Step::default();
        step.extend(seq, 5, &[7]);
        let mut plan = StepPlan::default();
        pool.plan(&step, &mut plan).unwrap();
        // Every sequence continues the state of the prefix, and none overwrites it.
        assert_eq!(plan.layer(1).sources, [kv::StateSource::Cell(0)]);
        assert_ne!(plan.layer(1).writes, [0]);
        pool.commit(&plan);
    }
    assert!(Contiguous::after_prefix(&config, &cells).is_err());
    assert!(Tree::after_prefix(&config, &cells).is_err());
}

#[test]
fn a_prefix_without_the_rows_that_are_needed_is_refused() {
    let ring = policy(Some((4, 4)));
    let full = config(24, &[None, Some((4, 0))], ring);
    let consecutive = |len, first: &[u32]| PrefixCells::consecutive(&full, len, first);
    assert!(consecutive(9, &[0, 6]).is_ok());
    for (len, first) in [
        (9, &[0, 7][..]),
        (9, &[1, 6]),
        (9, &[0]),
        (0, &[0, 0]),
        (9, &[0, 11]),
    ] {
        assert!(
            consecutive(len, first).is_err(),
            "{len} tokens from {first:?}"
        );
    }
    // A pool that keeps all rows of window layers needs all of the prefix.
    let cells = consecutive(9, &[0, 6]).unwrap();
    let flat = config(24, &[None, Some((4, 0))], None);
    let refused = Cells::after_prefix(&flat, &cells).unwrap_err();
    assert!(refused.to_string().contains("keeps all rows"), "{refused}");
    assert!(Contiguous::after_prefix(&flat, &cells).is_ok());
}
