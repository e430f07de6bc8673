//! Shifts of every size, checked against rows that are simulated: a cell holds the token that wrote it.

use super::*;
use crate::{CacheManager, Cells, Contiguous, RingPolicy, Step, StepPlan};
use std::collections::HashMap;

const WINDOW: u32 = 4;
const CAPACITY: u32 = 32;

/// A full layer and one with a window, which is a ring or keeps all rows.
fn config(ring: bool) -> CacheConfig {
    let layer = |window| LayerConfig {
        kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
        window,
        sinks: 0,
    };
    CacheConfig {
        ring: ring.then_some(RingPolicy {
            max_step: 3,
            max_rewind: 3,
        }),
        ..CacheConfig::new(CAPACITY, vec![layer(None), layer(Some(WINDOW))])
    }
}

type Rows = HashMap<(usize, u32), u32>;

/// Appends tokens one by one, each written to its cell of every layer as its position.
fn fill<K: CacheManager>(cache: &mut K, rows: &mut Rows, positions: Range<u32>) {
    for position in positions {
        let mut plan = StepPlan::default();
        let step = Step::sequence(&[position], position);
        cache.plan(&step, &mut plan).unwrap();
        for layer in 0..plan.layers() {
            rows.insert((layer, plan.layer(layer).writes[0]), position);
        }
        cache.commit(&plan);
    }
}

/// The tokens at the positions that a layer holds.
fn held(rows: &Rows, located: &SequenceRows, layer: usize) -> Vec<u32> {
    let cells = located.runs(layer).iter().flat_map(CellRun::cells);
    let held: Vec<u32> = cells.map(|cell| rows[&(layer, cell)]).collect();
    assert_eq!(held.len(), located.row_count(layer));
    held
}

/// Drops every number of tokens after every number of kept ones.
fn every_shift<K: CacheManager + Restorable + Clone>(empty: &K, config: &CacheConfig, len: u32) {
    let (mut cache, mut rows) = (empty.clone(), Rows::new());
    fill(&mut cache, &mut rows, 0..len);
    let before = cache.sequence_rows(0).unwrap();
    assert_eq!((before.len, before.layers()), (len, 2));
    for keep in 0..=len + 1 {
        let max = before.max_shift(keep, config);
        for dropped in 0..=len + 1 {
            let planned = cache.plan_shift(0, keep, dropped);
            let tokens: Vec<u32> = (0..keep).chain(keep + dropped..len).collect();
            if dropped == 0 || keep + dropped > len {
                let refused = KvErrorKind::Shift { keep, dropped, len };
                assert_eq!(planned.err().unwrap().kind(), &refused);
                continue;
            }
            let Ok((mut after, located)) = planned else {
                assert!(
                    dropped > max,
                    "{dropped} of {len} after {keep}: {max} is promised"
                );
                continue;
            };
            // Beyond the promise, the tokens that are left do not fill a window.
            assert!(dropped <= max || len - keep - dropped < WINDOW - 1);
            let shift = RowShift::new(keep, dropped, before.clone(), located.clone());
            assert_eq!(shift.layers(), 2);
            let mut moved = rows.clone();
            for layer in 0..2 {
                let part = shift.layer(layer);
                let cells =
                    |runs: &[CellRun]| runs.iter().flat_map(CellRun::cells).collect::<Vec<_>>();
                let (from, to) = (cells(&part.from), cells(&part.to));
                assert_eq!((from.len(), to.len()), (part.positions.len(), from.len()));
                assert!(to.iter().all(|cell| *cell < part.cells));
                for (from, to) in from.iter().zip(&to) {
                    moved.insert((layer, *to), rows[&(layer, *from)]);
                }
            }
            for layer in 0..2 {
                let first = located.first_position(layer) as usize;
                assert_eq!(
                    held(&moved, &located, layer),
                    tokens[first..],
                    "layer {layer}"
                );
                let window = (located.len + 1).saturating_sub(WINDOW);
                assert!(first as u32 <= if layer == 0 { 0 } else { window });
            }
            let next = located.len;
            assert_eq!(after.len(), next);
            fill(&mut after, &mut moved, next..next + 1);
            let last = after.sequence_rows(0).unwrap();
            assert_eq!(held(&moved, &last, 1).last(), Some(&next));
        }
    }
}

#[test]
fn every_possible_shift_moves_the_rows_of_the_later_tokens() {
    for ring in [false, true] {
        let config = config(ring);
        for len in [1, WINDOW, 6, 7, 11] {
            every_shift(&Contiguous::new(&config), &config, len);
            every_shift(&Cells::new(&config), &config, len);
        }
    }
}

#[test]
fn a_shift_whose_end_overflows_is_refused() {
    let located = SequenceRows::new(5, vec![]);
    for (keep, dropped) in [(u32::MAX, 1), (1, u32::MAX), (3, 3), (2, 0)] {
        let refused = located.first_positions_after_shift(keep, dropped);
        let kind = KvErrorKind::Shift {
            keep,
            dropped,
            len: 5,
        };
        assert_eq!(refused.unwrap_err().kind(), &kind);
    }
    assert!(located.first_positions_after_shift(2, 3).is_ok());
}

#[test]
fn a_layer_that_lacks_a_row_which_is_seen_is_named() {
    let first = |rows: &[u32]| {
        let layers = rows.iter().copied().enumerate();
        first_restorable_position(layers, 4).map_err(|error| error.to_string())
    };
    assert_eq!(first(&[]), Ok(0));
    assert_eq!(
        first(&[0, 4, 2]),
        Ok(4),
        "all layers have rows from there on"
    );
    let error = first(&[4, 5]).unwrap_err();
    assert!(error.contains("layer 1 has rows from position 5 on, and position 4 is needed"));
}
