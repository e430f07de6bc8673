//! `GET /metrics`.

use crate::app::App;
use crate::error::ApiError;
use crate::operation::engine_state;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use kvark::engine::{Buckets, Counters, EngineState, Histogram};
use std::fmt::Write;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `GET /metrics`, in Prometheus' text format.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let loaded = app.models.loaded();
    let mut states = vec![];
    for model in &loaded {
        states.push((model, engine_state(&app, model).await?));
    }
    // Also of models that were unloaded: counters never go back.
    let all: Vec<_> = app.models.counters().collect();
    let counters = all.iter();
    let counters = counters.map(|(model, counters)| (&**model, counters_of(counters)));
    let gauges = states
        .iter()
        .map(|(model, state)| (&*model.name, gauges_of(state, model.engine().counters())));
    let text = metrics_text("counter", &counters.collect::<Vec<_>>())
        + &metrics_text("gauge", &gauges.collect::<Vec<_>>())
        + &histograms_text(&all);
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    Ok((kind, text).into_response())
}

/// A metric's name, its description and its value.
type Metric = (&'static str, &'static str, u64);

fn counters_of(c: &Counters) -> [Metric; 14] {
    let counters = [
        (
            "requests_started_total",
            "Requests that got a sequence",
            &c.started,
        ),
        (
            "requests_finished_total",
            "Requests that ended with an answer",
            &c.finished,
        ),
        (
            "requests_cancelled_total",
            "Requests that were cancelled",
            &c.cancelled,
        ),
        ("requests_failed_total", "Requests that failed", &c.failed),
        (
            "requests_refused_total",
            "Requests refused by a full queue",
            &c.refused,
        ),
        (
            "prompt_tokens_total",
            "Prompt tokens of all requests",
            &c.prompt_tokens,
        ),
        (
            "cached_tokens_total",
            "Prompt tokens that were reused",
            &c.cached_tokens,
        ),
        (
            "generated_tokens_total",
            "Generated tokens",
            &c.generated_tokens,
        ),
        ("steps_total", "Forwards", &c.steps),
        (
            "step_tokens_total",
            "Tokens of all forwards",
            &c.step_tokens,
        ),
        (
            "draft_forwards_total",
            "Forwards of the draft",
            &c.draft_forwards,
        ),
        (
            "preemptions_total",
            "Requests that gave up their cells",
            &c.preempted,
        ),
        (
            "swaps_total",
            "Requests whose rows were copied out when they gave up their cells",
            &c.swapped,
        ),
        (
            "missed_recordings_total",
            "Steps that no recording from before them served",
            &c.missed_recordings,
        ),
    ];
    counters.map(|(name, help, counter)| (name, help, counter.load(Ordering::Relaxed)))
}

fn gauges_of(s: &EngineState, counters: &Counters) -> [Metric; 11] {
    let running = s
        .sequences
        .iter()
        .filter(|info| info.request.is_some())
        .count();
    let shared = s.ref_counts.iter().filter(|n| **n > 1).count();
    let host = s.rungs.iter().filter(|rung| rung.name.starts_with("host"));
    let host: u64 = host.map(|rung| rung.bytes).sum();
    let gauges = [
        ("requests_running", "Requests that have a sequence", running),
        ("requests_waiting", "Requests that wait", s.waiting),
        (
            "prefixes_retained",
            "Prefixes in memory",
            s.sequences.len() - running,
        ),
        ("cells", "Cells of the pool", s.capacity),
        ("cells_used", "Cells in use", s.used),
        ("cells_shared", "Cells with several owners", shared),
        ("kv_bytes", "Bytes of keys and values", s.memory.kv),
        (
            "host_bytes",
            "Bytes of prefixes in host memory",
            host as usize,
        ),
        ("disk_bytes", "Bytes of prefixes on disk", s.disk.1 as usize),
        (
            "prefixes_evicted",
            "Prefixes that left memory since the model was loaded",
            s.evictions.total() as usize,
        ),
        (
            "longest_gap_microseconds",
            "Longest time between two tokens of one answer",
            counters.longest_gap_micros.load(Ordering::Relaxed) as usize,
        ),
    ];
    gauges.map(|(name, help, value)| (name, help, value as u64))
}

/// The histograms of all models in Prometheus' format.
fn histograms_text<C: Deref<Target = Counters>>(models: &[(String, C)]) -> String {
    let seconds = 1e-6;
    one_histogram(
        "queue_seconds",
        "Times that requests waited for a sequence",
        seconds,
        models,
        |c| &c.queue_times,
    ) + &one_histogram(
        "first_token_seconds",
        "Times to the first token of an answer",
        seconds,
        models,
        |c| &c.first_token_times,
    ) + &one_histogram(
        "token_gap_seconds",
        "Times between two tokens of an answer",
        seconds,
        models,
        |c| &c.gap_times,
    ) + &one_histogram(
        "step_size_tokens",
        "Tokens of a forward",
        1.0,
        models,
        |c| &c.step_sizes,
    )
}

/// A histogram of all models. Values are multiplied by `unit`.
fn one_histogram<B: Buckets + 'static, C: Deref<Target = Counters>>(
    name: &str,
    help: &str,
    unit: f64,
    models: &[(String, C)],
    of: impl Fn(&Counters) -> &Histogram<B>,
) -> String {
    let mut text = format!("# HELP kvark_{name} {help}\n# TYPE kvark_{name} histogram\n");
    for (model, counters) in models {
        let histogram = of(counters);
        for (bound, count) in histogram.up_to() {
            let bound = bound as f64 * unit;
            writeln!(
                text,
                "kvark_{name}_bucket{{model={model:?},le=\"{bound}\"}} {count}"
            )
            .ok();
        }
        let (count, sum) = (histogram.count(), histogram.sum() as f64 * unit);
        writeln!(
            text,
            "kvark_{name}_bucket{{model={model:?},le=\"+Inf\"}} {count}"
        )
        .ok();
        writeln!(text, "kvark_{name}_sum{{model={model:?}}} {sum}").ok();
        writeln!(text, "kvark_{name}_count{{model={model:?}}} {count}").ok();
    }
    text
}

/// The metrics of all models in Prometheus' format.
fn metrics_text<const N: usize>(kind: &str, models: &[(&str, [Metric; N])]) -> String {
    let mut text = String::new();
    for (i, (name, help, _)) in models.iter().take(1).flat_map(|(_, all)| all).enumerate() {
        let head = format!("# HELP kvark_{name} {help}\n# TYPE kvark_{name} {kind}");
        writeln!(text, "{head}").ok();
        for (model, metrics) in models {
            writeln!(text, "kvark_{name}{{model={model:?}}} {}", metrics[i].2).ok();
        }
    }
    text
}
