use super::*;
use crate::{Compaction, FrozenKv, GatherPlan, LayerConfig, RowBlock, Run, Side};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

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

    fn read_rows(&self, _: usize, _: Side, _: &[Run], _: &mut [u8]) -> Result<(), KvError> {
        Ok(())
    }

    fn write_rows(&mut self, _: &[RowBlock<'_>]) -> Result<(), KvError> {
        Ok(())
    }

    fn freeze(&mut self, _: u32) -> Result<Arc<dyn FrozenKv>, KvError> {
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
        },
    )
}

fn session() -> (CacheSession<Contiguous>, BackendOptions) {
    CacheBuilderRegistry::global().register("test", |config| Ok(Box::new(NoBytes(config.clone()))));
    make_decode_session("test", &config()).unwrap()
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
fn verbs_are_refused_while_a_forward_holds_the_cache() {
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
