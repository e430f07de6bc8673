//! `MigratedRows`: where the rows of a cache lie when it becomes another cache. Planned in integers, as everything is.

use crate::{
    CacheConfig, CacheManager, CellRun, Cells, Contiguous, KvError, KvErrorKind, Restorable,
    SavedPositions, ScatterIndex, SequenceRows, Tree,
};
use std::any::Any;

/// The rows of one layer that move to another cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigratedRows {
    /// Their cells.
    pub from: Vec<CellRun>,
    /// Their cells in the new cache, in the same order.
    pub to: Vec<CellRun>,
    /// Cells that the pool of the layer must have.
    pub cells: u32,
}

/// A cache after a migration, and the rows that have to move before it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration<K> {
    /// The bookkeeping of the new cache.
    pub bookkeeping: K,
    /// One entry per cache id.
    pub layers: Vec<MigratedRows>,
}

impl<K: CacheManager + Restorable> Migration<K> {
    /// Plans to move the only sequence of a cache of any kind to `empty`, an empty cache of another kind or other sizes.
    ///
    /// # Errors
    /// `Migration` if several sequences hold tokens, `TreeActive` if candidates wait, `StepPending` if a step is declared, and `Full` or
    /// `SavedRows` if `empty` has no room for the rows or needs rows that are gone.
    pub fn of_sequence(from: &dyn CacheManager, empty: &K) -> Result<Migration<K>, KvError> {
        let before = only_sequence(from)?;
        let layers = 0..before.layers();
        if let Some(layer) = layers.clone().find(|layer| before.has_gap(*layer)) {
            let reason = format!(
                "layer {layer} holds the first and the latest rows of a sequence only, which a pool moves to another of the same windows, and nothing else"
            );
            return Err(KvErrorKind::Migration(reason).into());
        }
        let first: Vec<u32> = layers.clone().map(|i| before.first_position(i)).collect();
        let saved = SavedPositions {
            first: &first,
            states: &[],
        };
        let (bookkeeping, after) = empty.plan_restore(0, before.len, saved)?;
        let rows = |layer| {
            let held = after.runs(layer).iter().map(CellRun::positions);
            MigratedRows {
                from: held.flat_map(|held| before.clipped(layer, &held)).collect(),
                to: after.runs(layer).to_vec(),
                cells: after.cells(layer),
            }
        };
        Ok(Migration {
            layers: layers.map(rows).collect(),
            bookkeeping,
        })
    }
}

impl Migration<Cells> {
    /// Plans to move a pool with all its sequences, retained prefixes and states to a pool of the same sizes, whose rows may be stored
    /// otherwise.
    ///
    /// # Errors
    /// `Migration` if the sizes differ, `StepPending` if a step is declared.
    pub fn of_pool(
        from: &Cells,
        [before, after]: [&CacheConfig; 2],
    ) -> Result<Migration<Cells>, KvError> {
        if from.is_declared() {
            return Err(KvErrorKind::StepPending.into());
        }
        let sizes = |config: &CacheConfig| {
            let states = (config.states.slots, config.states.interval);
            (config.capacity, config.ring, config.layers.clone(), states)
        };
        if sizes(before) != sizes(after) {
            let reason = "the pools have other sizes, windows or numbers of states".to_owned();
            return Err(KvErrorKind::Migration(reason).into());
        }
        let rows = |layer| {
            let cells = from.layer_cells(layer);
            let all = CellRun {
                position: 0,
                cell: 0,
                len: cells,
            };
            let all = Vec::from_iter((cells > 0).then_some(all));
            MigratedRows {
                from: all.clone(),
                to: all,
                cells,
            }
        };
        Ok(Migration {
            // The rows of a frozen prefix become those of the new pool.
            bookkeeping: from.without_prefix(),
            layers: (0..before.layers.len()).map(rows).collect(),
        })
    }
}

/// The location of the rows of the only sequence of a cache.
fn only_sequence(cache: &dyn CacheManager) -> Result<SequenceRows, KvError> {
    if cache.is_declared() {
        return Err(KvErrorKind::StepPending.into());
    }
    let any: &dyn Any = cache;
    if let Some(cache) = any.downcast_ref::<Contiguous>() {
        return cache.sequence_rows(0);
    }
    if let Some(cache) = any.downcast_ref::<Tree>() {
        return cache.sequence_rows(0);
    }
    if let Some(cache) = any.downcast_ref::<ScatterIndex>() {
        let others = (1..cache.sequences()).filter(|seq| cache.valid_rows(*seq) > 0);
        check_alone(others)?;
        return cache.sequence_rows(0);
    }
    if let Some(cache) = any.downcast_ref::<Cells>() {
        let others = cache.live().filter(|seq| *seq > 0);
        let retained = cache.retained().filter(|id| Some(*id) != cache.prefix());
        check_alone(others.chain(retained))?;
        return cache.sequence_rows(0);
    }
    let reason = "the cache is of a kind whose rows cannot be located".to_owned();
    Err(KvErrorKind::Migration(reason).into())
}

/// Returns an error that names the first of the other sequences, if there is one.
fn check_alone(mut others: impl Iterator<Item = u32>) -> Result<(), KvError> {
    let Some(seq) = others.next() else {
        return Ok(());
    };
    let reason = format!("sequence {seq} holds tokens too, and the new cache holds one sequence");
    Err(KvErrorKind::Migration(reason).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LayerConfig, RingPolicy};

    fn config() -> CacheConfig {
        let layer = |window| LayerConfig {
            kv_heads: 1,
            key_dim: 4,
            value_dim: 4,
            window,
            sinks: 0,
        };
        CacheConfig {
            initial_cells: 4,
            ..CacheConfig::new(64, vec![layer(None), layer(Some(6))])
        }
    }

    fn cells(runs: &[CellRun]) -> Vec<(u32, u32)> {
        let cells = |run: &CellRun| run.positions().zip(run.cells()).collect::<Vec<_>>();
        runs.iter().flat_map(cells).collect()
    }

    /// Static buffers in blocks, and a ring that holds less than they do.
    #[test]
    fn rows_of_static_buffers_find_their_cells() {
        let all = SavedPositions {
            first: &[0, 0],
            states: &[],
        };
        let empty = ScatterIndex::new(&config(), 2);
        let (mut buffers, _) = empty.plan_restore(0, 20, all).unwrap();
        let flat = Migration::of_sequence(&buffers, &Contiguous::new(&config())).unwrap();
        for rows in &flat.layers {
            // The second block of both sequences begins after the first of both.
            let from = cells(&rows.from);
            assert_eq!(from[3..6], [(3, 3), (4, 8), (5, 9)]);
            assert_eq!(cells(&rows.to), (0..20).map(|p| (p, p)).collect::<Vec<_>>());
        }
        let back = Migration::of_sequence(&flat.bookkeeping, &empty).unwrap();
        assert_eq!(back.bookkeeping, buffers);
        assert_eq!(back.layers[0].to, flat.layers[0].from);

        let rings = CacheConfig {
            ring: Some(RingPolicy {
                max_step: 2,
                max_rewind: 1,
            }),
            ..config()
        };
        let ring = Migration::of_sequence(&buffers, &Tree::new(&rings)).unwrap();
        let positions: Vec<u32> = cells(&ring.layers[1].from)
            .iter()
            .map(|(p, _)| *p)
            .collect();
        assert_eq!(positions, (13..20).collect::<Vec<_>>());
        assert_eq!(ring.layers[1].cells, 7);
        // A ring has lost rows that static buffers need.
        let error = Migration::of_sequence(&ring.bookkeeping, &empty).unwrap_err();
        assert!(matches!(error.kind(), KvErrorKind::SavedRows(_)), "{error}");

        (buffers, _) = buffers.plan_restore(1, 3, all).unwrap();
        let error = Migration::of_sequence(&buffers, &Contiguous::new(&config())).unwrap_err();
        assert!(
            error.to_string().contains("sequence 1 holds tokens too"),
            "{error}"
        );
    }

    #[test]
    fn pools_of_other_sizes_are_refused() {
        let pool = Cells::new(&config());
        let mut larger = config();
        larger.capacity = 128;
        let error = Migration::of_pool(&pool, [&config(), &larger]).unwrap_err();
        assert!(matches!(error.kind(), KvErrorKind::Migration(_)));
    }
}
