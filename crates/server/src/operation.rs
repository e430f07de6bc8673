//! What a server tells about itself: health, models, properties, slots, metrics and the live state of the cache.

use crate::app::App;
use crate::body::Body;
use crate::error::ApiError;
use crate::registry::LoadedModel;
use crate::sampling;
use crate::sse::{self, Frame};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use kvark::cache::{InvalidPolicy, KvPolicy, KvStorage, MigrationOptions};
use kvark::engine::{CacheSource, Counters, EngineState, EvictionReason, MissReason};
use kvark::text::Tokenizer;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// `GET /health`
pub(crate) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// `GET /v1/models`
pub(crate) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let data = app
        .models
        .names()
        .map(|(name, loaded)| model_object(&name, loaded));
    Json(json!({ "object": "list", "data": data.collect::<Vec<Value>>() }))
}

/// `GET /v1/models/{id}`
pub(crate) async fn model(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let found = app.models.names().find(|(name, _)| *name == id);
    let found = found.map(|(name, loaded)| model_object(&name, loaded));
    let found = found.ok_or_else(|| ApiError::not_found(format!("there is no model {id:?}")))?;
    Ok(Json(found))
}

fn model_object(name: &str, loaded: bool) -> Value {
    json!({ "id": name, "object": "model", "created": 0, "owned_by": "kvark", "loaded": loaded })
}

/// The model that the query names, if it is loaded.
fn queried(app: &Arc<App>, query: &HashMap<String, String>) -> Result<Arc<LoadedModel>, ApiError> {
    app.models
        .get_loaded(query.get("model").map(String::as_str))
}

/// `GET /props`
pub(crate) async fn props(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Value>, ApiError> {
    let model = queried(&app, &query)?;
    let state = engine_state(&app, &model).await?;
    let sampling = model
        .model
        .sampling(|sampler| sampling::set_defaults(&app.options.sampling, sampler))?;
    let template = model.model.chat_template();
    let tokenizer = model.model.tokenizer().ok();
    let text = |id: Option<u32>| {
        let tokenizer = tokenizer.zip(id);
        tokenizer.map(|(tokenizer, id)| tokenizer.decode(&[id], true))
    };
    let limit = app.options.max_tokens.map_or(-1, |n| n as i64);
    let mut params = sampling::values(&sampling);
    params.insert("n_predict".to_owned(), limit.into());
    Ok(Json(json!({
        "model": model.name,
        "model_alias": model.name,
        "model_path": app.models.path(&model.name)?,
        "bos_token": text(tokenizer.and_then(Tokenizer::bos)),
        "eos_token": text(tokenizer.and_then(Tokenizer::eos)),
        "modalities": { "vision": false, "audio": false },
        "total_slots": app.options.slots,
        "chat_template": template.map_or(Value::Null, |t| t.source_text().into()),
        "default_generation_settings": {
            "n_ctx": model.engine().context(),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "params": params,
        },
        "n_vocab": model.model.facts().vocab_size,
        "pool_cells": state.capacity,
        "build_info": concat!("kvark ", env!("CARGO_PKG_VERSION")),
    })))
}

/// `GET /slots`
pub(crate) async fn slots(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Value>, ApiError> {
    let model = queried(&app, &query)?;
    let state = engine_state(&app, &model).await?;
    let busy: Vec<_> = state
        .sequences
        .iter()
        .filter(|s| s.request.is_some())
        .collect();
    let slot = |id: usize| match busy.get(id) {
        Some(info) => json!({
            "id": id,
            "is_processing": true,
            "id_task": info.request,
            "n_ctx": model.engine().context(),
            "n_past": info.tokens,
            "n_decoded": info.generated,
            "n_prompt_left": info.pending,
        }),
        None => json!({ "id": id, "is_processing": false, "n_ctx": model.engine().context() }),
    };
    Ok(Json((0..app.options.slots).map(slot).collect()))
}

/// The state of a model's engine, asked for on a thread that may block.
pub(crate) async fn engine_state(
    app: &Arc<App>,
    model: &Arc<LoadedModel>,
) -> Result<EngineState, ApiError> {
    let model = model.clone();
    app.blocking(move |_| Ok(model.engine().state()?)).await
}

/// The cache as JSON: runs of cells by owner.
pub(crate) fn cache_state(app: &App, model: &LoadedModel, state: &EngineState) -> Value {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = model.engine().counters();
    let sequences = state.sequences.iter().map(|info| {
        let runs = info
            .runs
            .iter()
            .map(|run| [run.cell, run.position, run.len]);
        json!({
            "seq": info.seq,
            "request": info.request,
            "tokens": info.tokens,
            "pending": info.pending,
            "generated": info.generated,
            "runs": runs.collect::<Vec<[u32; 3]>>(),
        })
    });
    let windows = model.model.facts().caches.iter().filter_map(|c| c.window);
    json!({
        "model": model.name,
        // The smallest sliding window: its layers keep no older rows.
        "window": windows.min(),
        "capacity": state.capacity,
        "used": state.used,
        "high_water": state.ref_counts.len(),
        "shared": state.ref_counts.iter().filter(|n| **n > 1).count(),
        "sequences": sequences.collect::<Vec<Value>>(),
        "waiting": state.waiting,
        "rungs": rungs(state),
        "reuse": reuse(counters),
        "evictions": state.evictions.total(),
        "evicted": evicted(state),
        "disk": { "files": state.disk.0, "bytes": state.disk.1 },
        "memory": {
            "weights": state.memory.weights,
            "packed": state.memory.packed,
            "kv": state.memory.kv,
            "arena": state.memory.arena,
            "limit": app.models.memory_limit(),
        },
        "counters": {
            "prompt_tokens": load(&counters.prompt_tokens),
            "cached_tokens": load(&counters.cached_tokens),
            "generated_tokens": load(&counters.generated_tokens),
            "steps": load(&counters.steps),
            "step_tokens": load(&counters.step_tokens),
            "step_micros": load(&counters.step_micros),
            "longest_gap_micros": load(&counters.longest_gap_micros),
        },
        "uptime": app.started.elapsed().as_secs_f64(),
    })
}

/// What is kept where, memory first.
fn rungs(state: &EngineState) -> Vec<Value> {
    let rungs = state.rungs.iter().map(|rung| {
        json!({
            "name": rung.name,
            "prefixes": rung.prefixes,
            "tokens": rung.tokens,
            "bytes": rung.bytes,
            "limit": rung.limit,
        })
    });
    rungs.collect()
}

/// Counts by name, without those that are 0.
fn named_counts(counts: impl Iterator<Item = (&'static str, u64)>) -> Map<String, Value> {
    let counted = counts.filter(|(_, count)| *count > 0);
    let named = counted.map(|(name, count)| (name.to_owned(), count.into()));
    named.collect()
}

/// Requests and their prompt tokens by where these came from, and computed prompt tokens by the reason.
fn reuse(counters: &Counters) -> Value {
    let by_source = |all: &[AtomicU64]| {
        let names = CacheSource::ALL.map(CacheSource::name).into_iter();
        named_counts(names.zip(all.iter().map(|n| n.load(Ordering::Relaxed))))
    };
    let reasons = MissReason::ALL.map(MissReason::name).into_iter();
    let computed = counters.computed_tokens_for.iter();
    let computed = reasons.zip(computed.map(|n| n.load(Ordering::Relaxed)));
    json!({
        "requests": by_source(&counters.requests_from),
        "tokens": by_source(&counters.cached_tokens_from),
        "computed": named_counts(computed),
    })
}

/// Evictions by reason, and the last ones.
fn evicted(state: &EngineState) -> Value {
    let log = &state.evictions;
    let reasons = EvictionReason::ALL.into_iter();
    let last = log.last().map(|eviction| {
        json!({
            "tokens": eviction.tokens,
            "reason": eviction.reason.name(),
            "kept_on": eviction.kept_on,
            "seconds_ago": eviction.at.elapsed().as_secs(),
        })
    });
    json!({
        "reasons": named_counts(reasons.map(|reason| (reason.name(), log.count(reason)))),
        "last": last.collect::<Vec<Value>>(),
    })
}

/// `GET /v1/kvark/cache`
pub(crate) async fn cache(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Value>, ApiError> {
    let model = queried(&app, &query)?;
    let state = engine_state(&app, &model).await?;
    Ok(Json(cache_state(&app, &model, &state)))
}

/// `DELETE /v1/kvark/cache`: removes the retained prefixes from memory.
pub(crate) async fn clear_cache(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Value>, ApiError> {
    let model = queried(&app, &query)?;
    model.engine().clear_prefixes()?;
    let state = engine_state(&app, &model).await?;
    Ok(Json(cache_state(&app, &model, &state)))
}

/// The parameters of a migration.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct MigrateRequest {
    /// The model; the default one if left out
    model: Option<String>,
    /// How keys and values are stored from now on, such as f16, q8 or q4
    cache_type: Option<String>,
    /// How keys are stored, if not as cache_type says
    cache_type_k: Option<String>,
    /// How values are stored, if not as cache_type says
    cache_type_v: Option<String>,
    /// Rules for single layers, in the place of those that there are, such as "layers 0-3 f16; others q8"
    policy: Option<String>,
    /// A running request, by its number in the cache, whose last tokens are computed before and after, to measure the difference
    measure: Option<u32>,
}

/// `POST /v1/kvark/cache/migrate`
pub(crate) async fn migrate(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: MigrateRequest = body.read()?;
    body.finish(&[], &[], app.options.lenient)?;
    let storage = |name: &'static str, value: &Option<String>| match value {
        None => Ok(None),
        Some(text) => KvStorage::from_name(text).map(Some).ok_or_else(|| {
            let names = KvStorage::ALL.map(KvStorage::name).join(", ");
            ApiError::parameter(name, format!("{text:?} is none of {names}"))
        }),
    };
    let both = storage("cache_type", &request.cache_type)?;
    let policy = request.policy.map(|text| {
        let parsed: Result<KvPolicy, InvalidPolicy> = text.parse();
        parsed.map_err(|error| ApiError::parameter("policy", error.to_string()))
    });
    let to = MigrationOptions {
        key_storage: storage("cache_type_k", &request.cache_type_k)?.or(both),
        value_storage: storage("cache_type_v", &request.cache_type_v)?.or(both),
        policy: policy.transpose()?,
        measure: request.measure,
        ..MigrationOptions::default()
    };
    if to.key_storage.is_none() && to.value_storage.is_none() && to.policy.is_none() {
        let reason = "names how keys and values are stored from now on, such as q8";
        return Err(ApiError::parameter("cache_type", reason.to_owned()));
    }
    let model = app.models.get_loaded(request.model.as_deref())?;
    let backend = app.models.backend().clone();
    let report = app
        .blocking(move |_| Ok(model.engine().migrate(backend, to)?))
        .await?;
    Ok(Json(json!({
        "object": "kvark.migration",
        "cells": report.cells,
        "bytes_before": report.bytes[0],
        "bytes_after": report.bytes[1],
        "seconds": report.time.as_secs_f64(),
        "distance": report.distance.map(|distance| json!({
            "tokens": distance.tokens,
            "mean_logprob": distance.mean_logprob,
            "same_best": distance.same_best,
        })),
    })))
}

/// `GET /v1/kvark/cache/{seq}`: the texts of a sequence's tokens.
pub(crate) async fn cache_tokens(
    State(app): State<Arc<App>>,
    Path(seq): Path<u32>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Value>, ApiError> {
    if app.options.api_keys.len() > 1 {
        let refused = "the texts of sequences are not shown on a server with several keys";
        return Err(ApiError::status(StatusCode::FORBIDDEN, refused));
    }
    let model = queried(&app, &query)?;
    let asked = model.clone();
    let ids = app
        .blocking(move |_| Ok(asked.engine().tokens(seq)?))
        .await?;
    if ids.is_empty() {
        return Err(ApiError::not_found(format!("there is no sequence {seq}")));
    }
    let tokenizer = model.model.tokenizer()?;
    let texts: Vec<String> = ids
        .iter()
        .map(|id| tokenizer.decode(&[*id], true))
        .collect();
    Ok(Json(json!({ "seq": seq, "ids": ids, "texts": texts })))
}

/// `GET /v1/kvark/events`: the state of the cache, a few times a second while it changes.
pub(crate) async fn events(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, ApiError> {
    let model = queried(&app, &query)?;
    Ok(sse::response((app, model, None), next_state))
}

type Watched = (Arc<App>, Arc<LoadedModel>, Option<(u64, usize)>);

/// Waits until something changed, at most a second, and gives the state.
async fn next_state((app, model, seen): Watched) -> Option<(Frame, Watched)> {
    for _ in 0..20 {
        let counters = model.engine().counters();
        let steps = counters.steps.load(Ordering::Relaxed);
        let now = (steps, model.engine().waiting());
        if seen != Some(now) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if seen.is_some() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let state = engine_state(&app, &model).await.ok()?;
    let steps = model.engine().counters().steps.load(Ordering::Relaxed);
    let data = cache_state(&app, &model, &state).to_string();
    let seen = Some((steps, state.waiting));
    Some(((None, data), (app, model, seen)))
}
