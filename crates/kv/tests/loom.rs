//! The lifecycle of a cache under every interleaving of the threads that share it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p kvark-kv --test loom`
//!
//! Each test has a registry of its own, because loom's locks cannot live in statics. The bytes are a loom cell, which
//! fails the model when two threads reach it at once; loom also fails on a deadlock and on an entry that is never freed.
#![cfg(loom)]

use kv::{
    CacheConfig, CacheEntry, CacheKey, CacheRegistry, CacheSession, CellRun, Compaction,
    Contiguous, FrozenKv, GatherPlan, KvBytes, KvError, KvErrorKind, LayerConfig, RowBlock, Side,
};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes that two threads must not touch at once.
struct Watched {
    config: CacheConfig,
    rows: UnsafeCell<()>,
}

impl KvBytes for Watched {
    fn config(&self) -> &CacheConfig {
        &self.config
    }

    fn resident_bytes(&self) -> usize {
        self.rows.with(|_| 0)
    }

    fn gather(&mut self, _: &GatherPlan) -> Result<(), KvError> {
        self.rows.with_mut(|_| thread::yield_now());
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

fn session(registry: &CacheRegistry) -> (CacheSession<Contiguous>, CacheKey) {
    let layer = LayerConfig {
        kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
        window: None,
        sinks: 0,
    };
    let config = CacheConfig::uniform(8, 1, layer);
    let bookkeeping = Box::new(Contiguous::new(&config));
    let bytes = Watched {
        config,
        rows: UnsafeCell::new(()),
    };
    let entry = CacheEntry::new("contiguous", bookkeeping, Box::new(bytes));
    let (session, options) = CacheSession::install(registry, entry, "contiguous").unwrap();
    (session, options.cache_key.unwrap())
}

/// A forward of one token, as an executable runs it.
fn forward(entry: &CacheEntry, position: i32) -> Result<(), KvError> {
    let mut state = entry.try_lock()?;
    state.run_declared(&[position], |_, bytes| {
        bytes.gather(&GatherPlan::default());
        Ok(())
    })
}

fn is_gone(registry: &CacheRegistry, key: &CacheKey) -> bool {
    let gone = KvErrorKind::UnknownKey(key.to_string());
    registry.get(key).err().is_some_and(|e| e.kind() == &gone)
}

#[test]
fn a_session_may_go_while_its_module_runs() {
    loom::model(|| {
        let registry = CacheRegistry::default();
        let (session, key) = session(&registry);
        let module = registry.get(&key).unwrap();
        let running = thread::spawn(move || {
            forward(&module, 0).unwrap();
            forward(&module, 1).unwrap();
        });
        drop(session);
        assert!(is_gone(&registry, &key));
        running.join().unwrap();
    });
}

#[test]
fn a_cache_operation_during_a_forward_is_busy_or_whole() {
    // Over all interleavings: refused, before the forward, after it.
    let seen = Arc::new([const { AtomicBool::new(false) }; 3]);
    let see = seen.clone();
    loom::model(move || {
        let registry = CacheRegistry::default();
        let (session, key) = session(&registry);
        let module = registry.get(&key).unwrap();
        let running = thread::spawn(move || forward(&module, 0));
        let (bytes, len) = (session.resident_bytes(), session.len());
        let cleared = session.clear();
        for refused in [bytes.err(), len.as_ref().err().cloned(), cleared.err()] {
            assert!(refused.is_none_or(|e| e.kind() == &KvErrorKind::Busy));
        }
        // Before the forward or after it, nothing in between.
        let outcome = len.map_or(0, |len| 1 + len as usize);
        see[outcome].store(true, Relaxed);
        // The forward too may come while a cache operation has the cache.
        let ran = running.join().unwrap();
        assert!(ran.is_ok() || ran.is_err_and(|e| e.kind() == &KvErrorKind::Busy));
        session.clear().unwrap();
        assert_eq!(session.len(), Ok(0));
    });
    assert!(seen.iter().all(|outcome| outcome.load(Relaxed)), "{seen:?}");
}

#[test]
fn two_modules_on_one_key_take_turns() {
    loom::model(|| {
        let registry = CacheRegistry::default();
        let (session, key) = session(&registry);
        let run = || {
            let (registry, key) = (registry.clone(), key.clone());
            thread::spawn(move || forward(&registry.get(&key).unwrap(), 0))
        };
        let results = [run(), run()].map(|module| module.join().unwrap());
        // The second comes too soon, or to a cache that continues after the first.
        let expected = KvErrorKind::Position {
            index: 0,
            found: 0,
            expected: 1,
        };
        let done = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(done, 1);
        for error in results.into_iter().filter_map(Result::err) {
            assert!(error.kind() == &KvErrorKind::Busy || error.kind() == &expected);
        }
        assert_eq!(session.len(), Ok(1));
    });
}

#[test]
fn a_load_finds_the_cache_or_names_the_key() {
    loom::model(|| {
        let registry = CacheRegistry::default();
        let (session, key) = session(&registry);
        let load = {
            let (registry, key) = (registry.clone(), key.clone());
            thread::spawn(move || match registry.get(&key) {
                Ok(module) => forward(&module, 0).unwrap(),
                Err(error) => {
                    assert_eq!(error.kind(), &KvErrorKind::UnknownKey(key.to_string()));
                }
            })
        };
        drop(session);
        load.join().unwrap();
        assert!(is_gone(&registry, &key));
    });
}

#[test]
fn sessions_come_and_go_beside_each_other() {
    loom::model(|| {
        let registry = CacheRegistry::default();
        let beside = {
            let registry = registry.clone();
            thread::spawn(move || {
                let (session, key) = session(&registry);
                assert!(registry.get(&key).is_ok());
                drop(session);
                assert!(is_gone(&registry, &key));
            })
        };
        let (session, key) = session(&registry);
        forward(&registry.get(&key).unwrap(), 0).unwrap();
        beside.join().unwrap();
        assert_eq!(session.len(), Ok(1));
    });
}
