//! What the histories of all kinds share: simulated bytes, and the check of a plan against the facts.

use kv::{CacheConfig, KvError, KvErrorKind, LayerConfig, RingPolicy, StepPlan};
use proptest::prelude::*;

/// The name of one written token; 0 is a cell that was never written.
pub(crate) type Stamp = u32;

/// Histories per kind: a few in the ordinary run, `KVARK_HISTORIES` of them when it is set.
pub(crate) fn histories() -> ProptestConfig {
    let cases = std::env::var("KVARK_HISTORIES").map_or(512, |n| {
        n.parse()
            .expect("KVARK_HISTORIES is a number of histories per kind")
    });
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

pub(crate) fn config(
    capacity: u32,
    windows: &[Option<(u32, u32)>],
    ring: Option<RingPolicy>,
) -> CacheConfig {
    let layer = |window: &Option<(u32, u32)>| LayerConfig {
        kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
        window: window.map(|(len, _)| len),
        sinks: window.map_or(0, |(_, sinks)| sinks),
    };
    CacheConfig {
        ring,
        ..CacheConfig::new(capacity, windows.iter().map(layer).collect())
    }
}

/// The window and the sinks of each layer.
pub(crate) fn windows() -> impl Strategy<Value = Vec<Option<(u32, u32)>>> {
    let sinks = prop_oneof![2 => Just(0), 1 => 1u32..6];
    prop::collection::vec(prop::option::of((1u32..9, sinks)), 1..4)
}

/// The windows of layers without sinks.
pub(crate) fn plain_windows() -> impl Strategy<Value = Vec<Option<(u32, u32)>>> {
    let windows = prop::option::of((1u32..9).prop_map(|len| (len, 0)));
    prop::collection::vec(windows, 1..4)
}

/// How a step ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Commit,
    /// The forward fails after so many layers have been written.
    Fail {
        written: usize,
    },
}

pub(crate) fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        5 => Just(End::Commit),
        1 => Just(End::Fail { written: usize::MAX }),
        1 => (0usize..3).prop_map(|written| End::Fail { written }),
    ]
}

pub(crate) fn kind(result: Result<(), KvError>) -> Result<(), KvErrorKind> {
    result.map_err(|error| error.kind().clone())
}

/// The stored rows, one stamp for each.
pub(crate) struct Bytes {
    /// Layer, then cell.
    pub(crate) rows: Vec<Vec<Stamp>>,
    last: Stamp,
}

impl Bytes {
    pub(crate) fn new(config: &CacheConfig) -> Bytes {
        Bytes {
            rows: vec![vec![0; config.capacity as usize]; config.layers.len()],
            last: 0,
        }
    }

    /// Stamps for the tokens of a step.
    pub(crate) fn stamps(&mut self, tokens: usize) -> Vec<Stamp> {
        let first = self.last + 1;
        self.last += tokens as Stamp;
        (first..=self.last).collect()
    }

    /// Rows that nothing was moved to are lost: nobody may rely on them.
    pub(crate) fn reorder(&mut self, order: &kv::Compaction) {
        for (layer, rows) in self.rows.iter_mut().enumerate() {
            let Some(order) = order.layer(layer) else {
                continue;
            };
            let old = rows.clone();
            rows.fill(0);
            for (row, from) in rows.iter_mut().zip(order) {
                *row = old[*from as usize];
            }
        }
    }

    /// Copies in order, without a second buffer, as the contract of `GatherPlan` allows. A ring has the row of a cell at
    /// its remainder; rows of a flat layer after the copied ones are lost.
    pub(crate) fn gather(&mut self, gather: &kv::GatherPlan, config: &CacheConfig) {
        for (rows, layer) in self.rows.iter_mut().zip(&config.layers) {
            let ring = config.growth(layer).max_rows_per_sequence as usize;
            for (to, from) in (gather.base as usize..).zip(&gather.rows) {
                rows[to % ring] = rows[*from as usize % ring];
            }
            if ring == rows.len() {
                rows[gather.base as usize + gather.rows.len()..].fill(0);
            }
        }
    }
}

/// A planned step and what is true of it.
pub(crate) struct Step<'a> {
    pub(crate) plan: &'a StepPlan,
    pub(crate) config: &'a CacheConfig,
    pub(crate) stamps: &'a [Stamp],
    /// Per query, what it may see where no window narrows it: ascending in position, its own token last.
    pub(crate) visible: &'a [Vec<(u32, Stamp)>],
    /// Stamps that somebody holds.
    pub(crate) live: &'a dyn Fn(Stamp) -> bool,
}

impl Step<'_> {
    /// Writes the step's rows in the first `written` layers and checks what every query sees there.
    pub(crate) fn run(&self, bytes: &mut Bytes, written: usize) {
        let tokens = self.stamps.len();
        assert_eq!(self.plan.step().len(), tokens);
        assert_eq!(self.plan.layers(), self.config.layers.len());
        for (layer, facts) in self.config.layers.iter().enumerate() {
            let plan = self.plan.layer(layer);
            assert_eq!(plan.writes.len(), tokens);
            assert_eq!(plan.visible.queries().len(), tokens);
            assert!(plan.cells <= self.config.capacity);
            let is_ring = facts.window.is_some() && self.config.ring.is_some();
            let rows = &mut bytes.rows[layer];
            for (i, &cell) in plan.writes.iter().enumerate() {
                assert!(cell < plan.cells, "row {cell} of {}", plan.cells);
                assert!(!plan.writes[..i].contains(&cell), "cell {cell} twice");
                // A ring gives up rows that the sequence still counts; what it must keep is checked as visibility.
                let held = rows[cell as usize];
                assert!(is_ring || !(self.live)(held), "cell {cell} is held");
            }
            if layer >= written {
                continue;
            }
            for (&cell, &stamp) in plan.writes.iter().zip(self.stamps) {
                rows[cell as usize] = stamp;
            }
            self.check_layer(layer, facts, rows);
        }
    }

    fn check_layer(&self, layer: usize, facts: &LayerConfig, rows: &[Stamp]) {
        let plan = self.plan.layer(layer);
        let dense = plan.visible.dense_mask(plan.cells);
        let single = plan.visible.is_single_run();
        for (i, full) in self.visible.iter().enumerate() {
            let own = full.last().expect("a query sees itself").0;
            let in_window = |p: u32| {
                let latest = |w: u32| u64::from(p) + u64::from(w) > own.into();
                p < facts.sinks || facts.window.is_none_or(latest)
            };
            let expected = full.iter().copied().filter(|(p, _)| in_window(*p));
            let seen = || {
                plan.visible.runs(i).flat_map(|run| {
                    let cells = run.cells().map(|cell| rows[cell as usize]);
                    run.positions().zip(cells)
                })
            };
            assert!(
                seen().eq(expected.clone()),
                "layer {layer} query {i}: sees {:?}, should see {:?}",
                seen().collect::<Vec<_>>(),
                expected.collect::<Vec<_>>(),
            );
            assert!(!single || plan.visible.runs(i).count() == 1);
            let row = &dense[i * plan.cells as usize..][..plan.cells as usize];
            assert_eq!(
                row.iter().filter(|seen| **seen).count(),
                expected.count(),
                "layer {layer} query {i}: the dense mask has another number of cells"
            );
            for cell in plan.visible.runs(i).flat_map(|run| run.cells()) {
                assert!(row[cell as usize] && plan.visible.sees(i, cell));
            }
        }
    }
}
