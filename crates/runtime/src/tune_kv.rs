//! `tune_kv`: finds storage types for each layer's keys and values by what they cost on a text.

use crate::batch_runner::MigrationOptions;
use crate::score::Score;
use crate::{Model, Runner, RuntimeError, RuntimeErrorKind};
use backend::Backend;
use kv::{CacheConfig, KvPolicy, KvRule, KvStorage, LayerSelection, Side};
use std::collections::BTreeMap;

/// The number of measured points between the first and the last of a curve.
const CURVE_POINTS: usize = 4;

/// What is tuned, and how far.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// The most bytes of keys and values of a full context.
    pub budget: usize,
    /// The types to choose from, beside those of the runner.
    pub types: Vec<KvStorage>,
}

/// A policy, and what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedKv {
    /// The policy.
    pub policy: KvPolicy,
    /// The mean negative log-probability of the text with the runner's own types.
    pub nll: f64,
    /// The policies on the way, from the largest cache to the smallest; the last one is the policy.
    pub curve: Vec<TunedPoint>,
    /// All layers in each type.
    pub uniform: Vec<(KvStorage, TunedPoint)>,
}

/// What a policy costs on the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TunedPoint {
    /// Bytes of keys and values of a full context.
    pub bytes: usize,
    /// The mean negative log-probability.
    pub nll: f64,
    /// The mean difference of the log-probabilities from those with the runner's own types.
    pub mean_logprob: f64,
}

/// The types of every layer's keys and values.
type Types = BTreeMap<(usize, bool), KvStorage>;

/// Measures how much each type changes the probabilities of a text when the keys or the values of one layer have it, and chooses those
/// that free the most memory for the least change until the cache fits the budget. The measured policies are then scored whole.
/// `progress` receives the runs done and their number, and returns false to cancel; the result is then `None`.
///
/// # Errors
/// `InvalidOptions` if no choice fits the budget, `NothingToPredict` for a text of fewer than two tokens.
pub fn tune_kv(
    runner: &mut Runner,
    (model, backend): (&Model, &dyn Backend),
    text: &[u32],
    options: &TuneOptions,
    mut progress: impl FnMut(usize, usize) -> bool,
) -> Result<Option<TunedKv>, RuntimeError> {
    let mut tuner = Tuner {
        base: runner.batch().cache_config()?,
        windows: runner.batch().kv_policy().without_types(),
        runner,
        model,
        backend,
        text,
    };
    let base = tuner.base.clone();
    let is_tuned = |layer: &usize| !base.layers[*layer].is_state();
    let sides = (0..base.layers.len())
        .filter(is_tuned)
        .flat_map(|layer| [(layer, true), (layer, false)]);
    let sides: Vec<(usize, bool)> = sides.collect();
    let before: Types = sides
        .iter()
        .map(|side| (*side, type_of(&base, *side)))
        .collect();
    let smaller = |storage: &KvStorage, side: (usize, bool)| {
        let dim = dim_of(&base, side);
        storage.row_bytes(dim) < before[&side].row_bytes(dim)
    };
    let mut trials = vec![];
    for side in &sides {
        let types = options
            .types
            .iter()
            .filter(|storage| smaller(storage, *side));
        trials.extend(types.map(|storage| (*side, *storage)));
    }
    let runs = 1 + trials.len() + options.types.len() + CURVE_POINTS + 1;
    let mut done = 0;
    let mut tick = || {
        done += 1;
        progress(done, runs)
    };

    let own = tuner.score(&before)?;
    if !tick() {
        return Ok(None);
    }
    let mut costs: BTreeMap<((usize, bool), &'static str), f64> = BTreeMap::new();
    for (side, storage) in &trials {
        let types = with(&before, *side, *storage);
        let score = tuner.score(&types)?;
        let pairs = own.logprob.iter().zip(&score.logprob);
        // Errors of different layers add like those of independent noise: by their squares.
        let squares: f64 = pairs.map(|(a, b)| (a - b) * (a - b)).sum();
        costs.insert((*side, storage.name()), squares / own.logprob.len() as f64);
        if !tick() {
            return Ok(None);
        }
    }

    let mut path = vec![before.clone()];
    while tuner.bytes(path.last().expect("it has the first")) > options.budget {
        let types = path.last().expect("it has the first");
        let held = tuner.bytes(types);
        let cost = |side: &(usize, bool), storage: KvStorage| {
            costs.get(&(*side, storage.name())).copied().unwrap_or(0.0)
        };
        let gain = |(side, storage): &((usize, bool), KvStorage)| {
            let freed = held.checked_sub(tuner.bytes(&with(types, *side, *storage)))?;
            let more = cost(side, *storage) - cost(side, types[side]);
            (freed > 0).then_some((more.max(0.0) / freed as f64, *side, *storage))
        };
        let best = trials
            .iter()
            .filter_map(gain)
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, side, storage)) = best else {
            let reason = format!(
                "no choice of these types makes keys and values smaller than {held} bytes, and {} are the budget",
                options.budget
            );
            return Err(RuntimeErrorKind::InvalidOptions(reason).into());
        };
        path.push(with(types, side, storage));
    }

    let mut curve = vec![];
    let last = path.len() - 1;
    for point in 0..=CURVE_POINTS {
        curve.push(tuner.point(&path[last * point / CURVE_POINTS], &own)?);
        if !tick() {
            return Ok(None);
        }
    }
    let mut uniform = vec![];
    for storage in &options.types {
        let types = sides.iter().map(|side| (*side, *storage)).collect();
        uniform.push((*storage, tuner.point(&types, &own)?));
        if !tick() {
            return Ok(None);
        }
    }
    tuner.migrate(&path[last])?;
    Ok(Some(TunedKv {
        policy: tuner.policy(&path[last]),
        nll: own.nll(),
        curve,
        uniform,
    }))
}

struct Tuner<'a> {
    runner: &'a mut Runner,
    model: &'a Model,
    backend: &'a dyn Backend,
    text: &'a [u32],
    base: CacheConfig,
    /// The rules for windows that the runner has.
    windows: KvPolicy,
}

impl Tuner<'_> {
    /// Scores the text with these types.
    fn score(&mut self, types: &Types) -> Result<Score, RuntimeError> {
        self.migrate(types)?;
        let score = self.runner.score(self.text, |_| true);
        self.runner.rewind(0)?;
        score
    }

    fn migrate(&mut self, types: &Types) -> Result<(), RuntimeError> {
        let to = MigrationOptions {
            policy: Some(self.policy(types)),
            ..MigrationOptions::default()
        };
        self.runner.batch().migrate(self.model, self.backend, &to)?;
        Ok(())
    }

    fn policy(&self, types: &Types) -> KvPolicy {
        let mut policy = policy_of(types);
        policy.rules.extend(self.windows.rules.iter().cloned());
        KvPolicy {
            rules: policy.rules,
            ..self.windows.clone()
        }
    }

    /// Bytes of keys and values of a full context.
    fn bytes(&self, types: &Types) -> usize {
        let mut config = self.base.clone();
        for layer in 0..config.layers.len() {
            if let Some(keys) = types.get(&(layer, true)) {
                config
                    .layer_storage
                    .insert(layer, [*keys, types[&(layer, false)]]);
            }
        }
        config.layout(config.capacity, 1).bytes()
    }

    fn point(&mut self, types: &Types, own: &Score) -> Result<TunedPoint, RuntimeError> {
        let score = self.score(types)?;
        let pairs = own.logprob.iter().zip(&score.logprob);
        let apart: f64 = pairs.map(|(a, b)| (a - b).abs()).sum();
        Ok(TunedPoint {
            bytes: self.bytes(types),
            nll: score.nll(),
            mean_logprob: apart / own.logprob.len() as f64,
        })
    }
}

fn type_of(config: &CacheConfig, (layer, is_key): (usize, bool)) -> KvStorage {
    config.storage(layer, if is_key { Side::Key } else { Side::Value })
}

fn dim_of(config: &CacheConfig, (layer, is_key): (usize, bool)) -> usize {
    let layer = &config.layers[layer];
    if is_key {
        layer.key_dim
    } else {
        layer.value_dim
    }
}

fn with(types: &Types, side: (usize, bool), storage: KvStorage) -> Types {
    let mut types = types.clone();
    types.insert(side, storage);
    types
}

/// The rules of these types: one for all layers of the same two.
fn policy_of(types: &Types) -> KvPolicy {
    let mut rules: Vec<(KvRule, Vec<usize>)> = vec![];
    for (&(layer, _), &keys) in types.iter().filter(|((_, is_key), _)| *is_key) {
        let rule = KvRule {
            keys: Some(keys),
            values: Some(types[&(layer, false)]),
            ..KvRule::default()
        };
        match rules.iter_mut().find(|(known, _)| *known == rule) {
            Some((_, layers)) => layers.push(layer),
            None => rules.push((rule, vec![layer])),
        }
    }
    let rules = rules.into_iter().map(|(rule, layers)| {
        let mut ranges: Vec<std::ops::RangeInclusive<usize>> = vec![];
        for layer in layers {
            match ranges.last_mut() {
                Some(last) if *last.end() + 1 == layer => *last = *last.start()..=layer,
                _ => ranges.push(layer..=layer),
            }
        }
        KvRule {
            layers: LayerSelection::Layers(ranges),
            ..rule
        }
    });
    KvPolicy {
        rules: rules.collect(),
        ..KvPolicy::default()
    }
}
