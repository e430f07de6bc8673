//! Migration: the cache of a runner becomes one of another kind, with other storage types, or on another device, with all it holds.

use super::{BatchRunner, new_kv};
use crate::context_shift::ContextShifter;
use crate::decoder::Decoder;
use crate::memory::{CacheKind, MemoryPlan, PlannedModel};
use crate::options::{MemoryLimit, RunnerOptions};
use crate::score::LogSoftmax;
use crate::{Model, RuntimeError, RuntimeErrorKind};
use backend::{Backend, StepOptions, argmax, migrate_rows};
use kv::{
    CacheConfig, CacheEntry, CacheManager, CacheOperations, CacheSession, Cells, Contiguous,
    KvBytes, KvError, KvPolicy, KvStorage, Migration, Prefixed, Restorable, SeqId, Side, Tree,
};
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most tokens whose probabilities are compared.
const MEASURED_TOKENS: usize = 16;

/// The storage that a cache moves to.
struct NewCache<'a> {
    config: &'a CacheConfig,
    bytes: Box<dyn KvBytes>,
    same_device: bool,
}

/// Plans to move a cache to an empty one, from the configurations of both.
type PlanMigration<K> =
    fn(&dyn CacheManager, [&CacheConfig; 2], &K) -> Result<Migration<K>, KvError>;

fn of_sequence<K: CacheManager + Restorable>(
    from: &dyn CacheManager,
    _: [&CacheConfig; 2],
    empty: &K,
) -> Result<Migration<K>, KvError> {
    Migration::of_sequence(from, empty)
}

fn of_pool(
    from: &dyn CacheManager,
    configs: [&CacheConfig; 2],
    empty: &Cells,
) -> Result<Migration<Cells>, KvError> {
    let any: &dyn Any = from;
    match any.downcast_ref::<Cells>() {
        Some(pool) if configs[0].layers == configs[1].layers => Migration::of_pool(pool, configs),
        // Other windows: each sequence has other rows.
        _ => Migration::of_sequence(from, empty),
    }
}

/// What the cache of a runner becomes. A part that is not named stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationOptions {
    /// The kind of cache.
    pub kind: Option<CacheKind>,
    /// The rules for single layers, in the place of those that the runner has.
    pub policy: Option<KvPolicy>,
    /// How keys are stored, in all layers that the new rules do not name.
    pub key_storage: Option<KvStorage>,
    /// How values are stored, in all layers that the new rules do not name.
    pub value_storage: Option<KvStorage>,
    /// The sequence whose last tokens are computed before and after the migration, to measure what it changed.
    pub measure: Option<SeqId>,
}

/// A migration that has happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MigrationReport {
    /// Cells in use.
    pub cells: usize,
    /// Bytes of keys and values allocated before and after.
    pub bytes: [usize; 2],
    /// The time that the rows took to move.
    pub time: Duration,
    /// What it changed, if that was asked for and the sequence can be rewound.
    pub distance: Option<MigrationDistance>,
}

/// The difference between the outputs after the last tokens of a sequence, computed before and after a migration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MigrationDistance {
    /// The number of tokens.
    pub tokens: usize,
    /// The mean difference of the log-probability of the token that was the most likely one.
    pub mean_logprob: f64,
    /// The number of tokens after which the most likely one is the same.
    pub same_best: usize,
}

impl BatchRunner {
    /// Moves the cache with all that it holds to one of another kind, with other storage types, or on another backend. Rows whose
    /// type does not change keep their bits; those of another type are encoded again. A pool of cells keeps its forks, retained
    /// prefixes and states; a kind that holds one sequence takes sequence 0 alone. On one device, layers move one by one, with the
    /// memory of one layer more than the larger of the two caches.
    ///
    /// # Errors
    /// `MemoryShortfall` if the new cache does not fit; `Cache` if it cannot hold what the old one holds. The runner is then unchanged.
    pub fn migrate(
        &mut self,
        model: &Model,
        backend: &dyn Backend,
        to: &MigrationOptions,
    ) -> Result<MigrationReport, RuntimeError> {
        let kind = to.kind.unwrap_or(self.kind);
        let mut options = RunnerOptions {
            // Its rows move with the others.
            prefix: None,
            ..self.options.clone()
        };
        if let Some(policy) = &to.policy {
            let own = &self.options.kv_policy;
            if policy
                .stream
                .is_some_and(|stream| Some(stream) != own.stream)
            {
                let reason = "a stream is chosen when its cache is made".to_owned();
                return Err(RuntimeErrorKind::InvalidOptions(reason).into());
            }
            options.kv_policy = KvPolicy {
                stream: own.stream,
                preallocate: policy.preallocate.or(own.preallocate),
                ..policy.clone()
            };
        } else if to.key_storage.is_some() || to.value_storage.is_some() {
            options.kv_policy = options.kv_policy.without_types();
        }
        if let Some(keys) = to.key_storage {
            options.key_storage = keys;
        }
        if let Some(values) = to.value_storage {
            options.value_storage = values;
        }
        let plan = self.migration_plan(model, backend, &options, kind)?;
        let bytes = new_kv(backend, &plan.cache)?;
        let is_here = self.decoder.forward.executable().takes(&*bytes).is_ok();
        let mut distance = None;
        let before = match to.measure {
            Some(seq) => self.last_outputs(seq)?,
            None => vec![],
        };
        let held = self.cache.resident_bytes()?;
        let start = Instant::now();
        let StepOptions {
            max_sequences,
            max_query_len,
            ..
        } = self.decoder.options;
        let place = NewCache {
            config: &plan.cache,
            bytes,
            same_device: is_here,
        };
        let (cache, decoder) = self.moved_cache(kind, place, |entry| {
            if is_here {
                return Ok(None);
            }
            let size = (max_sequences, max_query_len);
            Decoder::load(model, backend, &options, plan.step, size, entry).map(Some)
        })?;
        self.cache = cache;
        match decoder {
            Some(decoder) => self.decoder = decoder,
            None => {
                let Decoder {
                    forward, options, ..
                } = &mut self.decoder;
                forward.rebind(self.cache.entry())?;
                forward.prepare(options)?;
            }
        }
        let time = start.elapsed();
        self.planned_bytes = plan.total_bytes();
        (self.kind, self.options) = (kind, options);
        if let Some(sinks) = self.shifter.as_ref().map(ContextShifter::keep) {
            self.enable_stream(sinks)?;
        }
        if let Some(seq) = to.measure.filter(|_| !before.is_empty()) {
            let after = self.last_outputs(seq)?;
            distance = Some(MigrationDistance::between(&before, &after));
        }
        Ok(MigrationReport {
            cells: self.cells_used()?,
            bytes: [held, self.cache.resident_bytes()?],
            time,
            distance,
        })
    }

    /// The kind of the cache.
    pub fn kind(&self) -> CacheKind {
        self.kind
    }

    /// How keys and values are stored in layers that have no types of their own.
    pub fn storage(&self) -> [KvStorage; 2] {
        [self.options.key_storage, self.options.value_storage]
    }

    /// The rules for single layers.
    pub fn kv_policy(&self) -> &KvPolicy {
        &self.options.kv_policy
    }

    /// Bytes of the keys and values of one sequence that fills the context.
    pub fn planned_kv_bytes(&self) -> Result<usize, RuntimeError> {
        let config = self.cache.config()?;
        Ok(config.layout(config.capacity, 1).bytes())
    }

    /// The configuration of the cache.
    pub(crate) fn cache_config(&self) -> Result<CacheConfig, RuntimeError> {
        Ok(self.cache.config()?)
    }

    /// How the rows of every layer are stored.
    pub(crate) fn layer_types(&self) -> Vec<[KvStorage; 2]> {
        let Ok(config) = self.cache_config() else {
            return vec![];
        };
        let types = |layer| [Side::Key, Side::Value].map(|side| config.storage(layer, side));
        (0..config.layers.len()).map(types).collect()
    }

    /// The plan of the run after a migration, which fits beside all but this runner.
    fn migration_plan(
        &self,
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        kind: CacheKind,
    ) -> Result<MemoryPlan, RuntimeError> {
        let planned = PlannedModel::try_from(model.artifact())?;
        let plan = MemoryPlan::new(&planned, backend, options, kind, None)?;
        plan.check(options.memory, backend).or_else(|error| {
            // What this runner holds becomes free.
            let own = self.memory()?;
            let own = (own.kv + own.arena + own.packed + plan.resident_weights_bytes()) as u64;
            match (options.memory, backend.free_memory()) {
                (MemoryLimit::Machine, Some(free)) if plan.total_bytes() as u64 <= free + own => {
                    Ok(())
                }
                _ => Err(error),
            }
        })?;
        Ok(plan)
    }

    /// The cache after a migration, and what `prepare` returned for its entry before a row moved.
    fn moved_cache<T>(
        &self,
        kind: CacheKind,
        place: NewCache<'_>,
        prepare: impl FnOnce(Arc<CacheEntry>) -> Result<T, RuntimeError>,
    ) -> Result<(Box<dyn CacheOperations>, T), RuntimeError> {
        let config = place.config;
        match kind {
            CacheKind::Contiguous => {
                self.moved_to(&Contiguous::new(config), place, of_sequence, prepare)
            }
            CacheKind::Tree => self.moved_to(&Tree::new(config), place, of_sequence, prepare),
            CacheKind::Cells { .. } => self.moved_to(&Cells::new(config), place, of_pool, prepare),
        }
    }

    /// Moves the cache into an empty one.
    fn moved_to<K, T>(
        &self,
        empty: &K,
        place: NewCache<'_>,
        plan: PlanMigration<K>,
        prepare: impl FnOnce(Arc<CacheEntry>) -> Result<T, RuntimeError>,
    ) -> Result<(Box<dyn CacheOperations>, T), RuntimeError>
    where
        K: CacheManager + Prefixed + Clone,
        CacheSession<K>: CacheOperations + 'static,
    {
        let old = self.cache.entry();
        let migration = {
            let state = old.try_lock()?;
            let configs = [state.bytes.config(), place.config];
            plan(&*state.bookkeeping, configs, empty)?
        };
        let session = CacheSession::new(K::KIND, empty.clone(), place.bytes);
        let prepared = prepare(session.entry().clone())?;
        {
            let (mut from, mut to) = (old.try_lock()?, session.entry().try_lock()?);
            let (layers, to) = (&migration.layers, &mut *to);
            migrate_rows(layers, &mut *from.bytes, &mut *to.bytes, place.same_device)?;
            to.bookkeeping = Box::new(migration.bookkeeping);
        }
        Ok((Box::new(session), prepared))
    }

    /// The logits after the last tokens of a sequence, computed again. Empty if it cannot be rewound without computing more.
    fn last_outputs(&mut self, seq: SeqId) -> Result<Vec<Vec<f32>>, RuntimeError> {
        let fed = self.fed_tokens(seq).to_vec();
        let pending = self.tokens(seq)[fed.len()..].first().copied();
        let most = MEASURED_TOKENS.min(fed.len().saturating_sub(1));
        let mut from = None;
        for count in (1..=most).rev() {
            let len = fed.len() - count;
            if self.restorable(seq, len)? == len {
                from = Some(len);
                break;
            }
        }
        let Some(from) = from else {
            return Ok(vec![]);
        };
        self.rewind(seq, from)?;
        let mut rows = vec![];
        let mut handle = self.sequence(seq);
        handle.feed_all_logits(&fed[from..], |_, logits| {
            rows.push(logits.to_vec());
            true
        })?;
        if let Some(token) = pending {
            self.append(seq, token);
        }
        Ok(rows)
    }
}

impl MigrationDistance {
    fn between(before: &[Vec<f32>], after: &[Vec<f32>]) -> MigrationDistance {
        let pairs = before.iter().zip(after);
        let (mut sum, mut same_best) = (0.0, 0);
        for (before, after) in pairs {
            let best = argmax(before) as usize;
            let of = |row: &[f32]| LogSoftmax::new(row).of(row[best]);
            sum += (of(before) - of(after)).abs();
            same_best += usize::from(argmax(after) as usize == best);
        }
        MigrationDistance {
            tokens: before.len(),
            mean_logprob: sum / before.len().max(1) as f64,
            same_best,
        }
    }
}
