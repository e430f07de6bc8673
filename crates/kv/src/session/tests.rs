use super::*;
use crate::{CellRun, Compaction, FrozenKv, GatherPlan, LayerConfig, RowBlock, Side, Step};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

struct NoBytes(CacheConfig);

impl KvBytes for NoBytes {
    fn config(&self) -> &CacheConfig {
        &self.0
    }

    fn resident_bytes(&self) -> usize {
        self.0.bytes_for(2)
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

fn config() -> CacheConfig {
    CacheConfig::uniform(
        8,
        1,
        LayerConfig {
            kv_heads: 1,
            key_dim: 4,
            value_dim: 4,
            window: None,
            sinks: 0,
        },
    )
}

fn session() -> (CacheSession<Contiguous>, BackendOptions) {
    register();
    make_decode_session("test", &config()).unwrap()
}

fn register() {
    let registry = CacheBuilderRegistry::global();
    let registered = registry.register("test", |config| Ok(Box::new(NoBytes(config.clone()))));
    registered.unwrap();
}

/// A forward of the declared step that succeeds.
fn forward<K: CacheManager>(session: &CacheSession<K>, positions: &[i32]) -> Result<(), KvError> {
    let entry = CacheRegistry::global().get(session.key())?;
    entry.try_lock()?.run_declared(positions, |_, _| Ok(()))
}

fn kind<T: std::fmt::Debug>(result: Result<T, KvError>) -> KvErrorKind {
    result.unwrap_err().kind().clone()
}

#[test]
fn the_entry_lives_as_long_as_the_session() {
    let (session, options) = session();
    let key = options.cache_key.unwrap();
    let bound = CacheRegistry::global().get(&key).unwrap();
    drop(session);
    let gone = CacheRegistry::global().get(&key).err().unwrap();
    assert_eq!(gone.kind(), &KvErrorKind::UnknownKey(key.to_string()));
    assert!(bound.try_lock().is_ok(), "a bound module keeps its cache");
}

#[test]
fn cache_operations_are_refused_while_a_forward_holds_the_cache() {
    let (session, options) = session();
    let entry = CacheRegistry::global()
        .get(&options.cache_key.unwrap())
        .unwrap();
    let forward = entry.try_lock().unwrap();
    assert_eq!(session.clear().unwrap_err().kind(), &KvErrorKind::Busy);
    drop(forward);
    session.clear().unwrap();
}

#[test]
fn a_forward_that_panics_leaves_the_cache_unusable() {
    let (session, options) = session();
    let entry = CacheRegistry::global()
        .get(&options.cache_key.unwrap())
        .unwrap();
    let forward = AssertUnwindSafe(|| {
        let mut state = entry.try_lock().unwrap();
        state.run_declared(&[0], |_, _| -> Result<(), KvError> {
            panic!("in a kernel")
        })
    });
    assert!(catch_unwind(forward).is_err());
    assert_eq!(session.len().unwrap_err().kind(), &KvErrorKind::Poisoned);
}

#[test]
fn a_cache_of_another_kind_is_not_installed() {
    let bookkeeping = Box::new(Contiguous::new(&config()));
    let entry = CacheEntry::new("contiguous", bookkeeping, Box::new(NoBytes(config())));
    let registry = CacheRegistry::default();
    let error = CacheSession::<Cells>::install(&registry, entry, "cells");
    assert_eq!(
        error.err().unwrap().to_string(),
        "the cache is a contiguous cache, not a cells cache"
    );
}

#[test]
fn an_unknown_backend_is_named() {
    let error = make_decode_session("nowhere", &config()).err().unwrap();
    assert_eq!(error.to_string(), "backend \"nowhere\" is not registered");
}

#[test]
fn a_session_reports_the_state_that_forwards_and_cache_operations_leave() {
    let (session, _) = session();
    let state = || {
        let (len, empty) = (session.len().unwrap(), session.is_empty().unwrap());
        let room = (0..20).rev().find(|n| session.can_extend(*n).unwrap());
        (len, empty, room)
    };
    assert_eq!(session.config().unwrap(), config());
    assert_eq!(session.capacity().unwrap(), 8);
    assert_eq!(session.resident_bytes().unwrap(), 2 * config().bytes_for(1));
    assert_eq!(state(), (0, true, Some(8)));
    forward(&session, &[0, 1, 2]).unwrap();
    assert_eq!(state(), (3, false, Some(5)));
    session.rewind(2).unwrap();
    assert_eq!(state(), (2, false, Some(6)));
    let forward_only = KvErrorKind::RewindForward { to: 3, len: 2 };
    assert_eq!(kind(session.rewind(3)), forward_only);
    session.clear().unwrap();
    assert_eq!(state(), (0, true, Some(8)));
}

#[test]
fn a_session_of_sequences_changes_the_sequence_it_is_told() {
    register();
    let (session, _) = make_seq_session("test", &config()).unwrap();
    let lens = || [0, 1, 2].map(|seq| session.seq_len(seq).unwrap());
    session.begin_step(&[0, 1, 0]).unwrap();
    assert_eq!(kind(session.begin_step(&[0])), KvErrorKind::StepPending);
    forward(&session, &[0, 0, 1]).unwrap();
    assert_eq!(lens(), [2, 1, 0]);
    let next = [0, 1, 2].map(|seq| session.seq_next(seq).unwrap());
    assert_eq!(next, [Some(2), Some(1), None]);
    session.seq_cp(0, 2, ..1).unwrap();
    assert_eq!(lens(), [2, 1, 1]);
    assert_eq!(session.len().unwrap(), 3, "the copy shares its cell");
    session.seq_rm(0, 1..).unwrap();
    assert_eq!(lens(), [1, 1, 1]);
    session.seq_keep(1).unwrap();
    assert_eq!(lens(), [0, 1, 0]);
    let unknown = KvErrorKind::UnknownSequence {
        seq: crate::MAX_SEQUENCES,
        max: crate::MAX_SEQUENCES,
    };
    let seq = crate::MAX_SEQUENCES;
    for refused in [
        session.begin_step(&[seq]),
        session.seq_cp(0, seq, ..),
        session.seq_rm(seq, ..),
        session.seq_keep(seq),
        session.seq_len(seq).map(drop),
        session.seq_next(seq).map(drop),
    ] {
        assert_eq!(kind(refused), unknown);
    }
    assert_eq!(lens(), [0, 1, 0]);
}

#[test]
fn static_buffers_have_the_rows_of_all_their_sequences() {
    register();
    let config = CacheConfig {
        initial_cells: 3,
        ..config()
    };
    let (session, _) = make_scatter_session("test", &config, 3).unwrap();
    let all = CacheConfig {
        capacity: 24,
        initial_cells: 9,
        ..config.clone()
    };
    assert_eq!(session.config().unwrap(), all);
    assert_eq!(session.capacity().unwrap(), 24);
    // The first allocation is no larger than the buffers.
    let large = CacheConfig {
        initial_cells: 100,
        ..config.clone()
    };
    let (whole, _) = make_scatter_session("test", &large, 3).unwrap();
    assert_eq!(whole.config().unwrap().initial_cells, 24);
    let error = make_scatter_session("test", &config, u32::MAX)
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .contains("4294967295 static buffers of 8 rows")
    );

    session
        .begin_padded_step(&[(2, true), (0, true), (2, false)])
        .unwrap();
    forward(&session, &[0, 0, 1]).unwrap();
    let lens = [0, 1, 2].map(|seq| session.seq_len(seq).unwrap());
    assert_eq!(lens, [1, 0, 1], "a pad is not valid");
    let before = KvErrorKind::PadBefore { index: 1, seq: 1 };
    assert_eq!(
        kind(session.begin_padded_step(&[(1, false), (1, true)])),
        before
    );
}

#[test]
fn proposed_candidates_are_held_when_their_path_is_accepted() {
    register();
    let (session, _) = make_tree_session("test", &config()).unwrap();
    forward(&session, &[0]).unwrap();
    session.propose(&[None, Some(0), None]).unwrap();
    assert_eq!(kind(session.propose(&[None])), KvErrorKind::StepPending);
    // Nothing is computed: there is nothing to accept, and the declaration stays.
    session.accept(&[]).unwrap();
    forward(&session, &[1, 2, 1]).unwrap();
    session.propose(&[Some(1)]).unwrap();
    for path in [&[0, 1][..], &[]] {
        assert_eq!(kind(session.accept(path)), KvErrorKind::StepPending);
    }
    forward(&session, &[3]).unwrap();
    session.accept(&[0, 1]).unwrap();
    assert_eq!(session.len().unwrap(), 3);
    let entry = CacheRegistry::global().get(session.key()).unwrap();
    let mut state = entry.try_lock().unwrap();
    let next = Step::sequence(&[7], 3);
    state.run(&next, |_, _| Ok::<(), KvError>(())).unwrap();
}
