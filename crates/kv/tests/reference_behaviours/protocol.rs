//! One declaration, one forward: the step protocol, as a session and an executable follow it.

use crate::{config, refused};
use kv::{
    Cache, CacheConfig, CacheEntry, CellRun, Cells, Compaction, FrozenKv, GatherPlan, KvBytes,
    KvError, KvErrorKind, RowBlock, SeqCache, Side,
};
use std::sync::Arc;

/// Bytes that are never looked at.
struct NoBytes(CacheConfig);

impl KvBytes for NoBytes {
    fn config(&self) -> &CacheConfig {
        &self.0
    }

    fn resident_bytes(&self) -> usize {
        0
    }

    fn gather(&mut self, _: &GatherPlan) -> Result<(), KvError> {
        Ok(())
    }

    fn reorder(&mut self, _: &Compaction) -> Result<(), KvError> {
        Ok(())
    }

    fn read_rows(&self, _: usize, _: Side, _: &[CellRun], _: &mut [u8]) -> Result<(), KvError> {
        Ok(())
    }

    fn write_rows(&mut self, _: &[RowBlock<'_>]) -> Result<(), KvError> {
        Ok(())
    }

    fn freeze(&mut self, _: &[u32]) -> Result<Arc<dyn FrozenKv>, KvError> {
        Err(KvErrorKind::Config("nothing to freeze".into()).into())
    }
}

fn entry() -> CacheEntry {
    let config = config(&[None]);
    let bookkeeping = Box::new(Cells::new(&config));
    CacheEntry::new("cells", bookkeeping, Box::new(NoBytes(config)))
}

/// A cache operation between forwards, as a session calls it.
fn operation<R>(entry: &CacheEntry, operation: impl FnOnce(&mut Cells) -> R) -> R {
    let mut state = entry.try_lock().unwrap();
    let bookkeeping: &mut dyn std::any::Any = &mut *state.bookkeeping;
    operation(bookkeeping.downcast_mut().unwrap())
}

/// A forward that succeeds if it is planned.
fn forward(entry: &CacheEntry, positions: &[i32]) -> Result<(), KvError> {
    let mut state = entry.try_lock().unwrap();
    state.run_declared(positions, |_, _| Ok(()))
}

#[test]
fn the_step_protocol_is_enforced() {
    let entry = entry();
    let missing = "no step is declared: call begin_step before the forward";
    assert_eq!(refused(forward(&entry, &[0])), missing);
    let empty = operation(&entry, |cells| cells.begin_step(&[]));
    assert_eq!(refused(empty), "a step needs at least one token");

    operation(&entry, |cells| cells.begin_step(&[0, 0])).unwrap();
    let twice = operation(&entry, |cells| cells.begin_step(&[0]));
    assert_eq!(
        refused(twice),
        "a step is already declared and no forward has consumed it"
    );
    assert_eq!(
        refused(forward(&entry, &[0])),
        "the step was declared with 2 tokens, and the forward has 1"
    );
    // The failed attempt has spent the declaration.
    assert_eq!(refused(forward(&entry, &[0, 1])), missing);
    assert_eq!(operation(&entry, |cells| cells.len()), 0);

    operation(&entry, |cells| cells.begin_step(&[0])).unwrap();
    forward(&entry, &[0]).unwrap();
    assert_eq!(refused(forward(&entry, &[1])), missing);
    assert_eq!(operation(&entry, |cells| cells.len()), 1);
}

#[test]
fn an_operation_does_not_hide_a_missing_begin_step() {
    let entry = entry();
    operation(&entry, |cells| cells.begin_step(&[0, 1])).unwrap();
    forward(&entry, &[0, 0]).unwrap();
    operation(&entry, |cells| cells.seq_rm(2, ..)).unwrap();
    let missing = "no step is declared: call begin_step before the forward";
    assert_eq!(refused(forward(&entry, &[0, 0])), missing);
    // Nor does a cache operation take a declaration away, and what it changed is in the plan.
    operation(&entry, |cells| cells.begin_step(&[1])).unwrap();
    operation(&entry, |cells| cells.seq_rm(1, ..)).unwrap();
    forward(&entry, &[0]).unwrap();
    assert_eq!(operation(&entry, |cells| cells.seq_len(1)), Ok(1));
}
