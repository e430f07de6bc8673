//! `keep_alive`: how long a model stays loaded after its last answer.

use crate::app::App;
use crate::error::ApiError;
use crate::registry::lock;
use kvark::engine::Counters;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The models for which a client has stated how long they stay loaded. All others stay until memory is short.
#[derive(Default)]
pub(crate) struct KeepAlive {
    models: Mutex<HashMap<String, State>>,
}

#[derive(Default)]
struct State {
    /// How long after the last answer; `None` for as long as the server runs.
    stay: Option<Duration>,
    /// The requests of this API that run.
    users: usize,
    /// When it is unloaded, unless a request comes before.
    expires: Option<Instant>,
}

impl KeepAlive {
    /// The time left until a model is unloaded; `None` if it stays loaded.
    pub(super) fn left(&self, model: &str) -> Option<Duration> {
        let models = lock(&self.models);
        let state = models.get(model)?;
        match state.expires {
            Some(at) => Some(at.saturating_duration_since(Instant::now())),
            None => state.stay,
        }
    }
}

/// A `keep_alive`: seconds as a number, or a text such as `5m` or `1h30m`; negative ones keep the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StatedTime(Option<Duration>);

impl StatedTime {
    /// Whether the model is to be unloaded at once.
    pub(super) fn is_zero(self) -> bool {
        self.0 == Some(Duration::ZERO)
    }

    pub(super) fn read(value: &Value) -> Result<StatedTime, ApiError> {
        let seconds = match value {
            Value::Number(seconds) => seconds.as_f64(),
            Value::String(text) => text.parse().ok().or_else(|| go_duration(text)),
            _ => None,
        };
        let wrong = || {
            let forms =
                "must be a number of seconds or a duration such as \"5m\"; -1 keeps the model";
            ApiError::parameter("keep_alive", forms)
        };
        match seconds {
            Some(seconds) if seconds < 0.0 => Ok(StatedTime(None)),
            // More than a century is forever.
            Some(seconds) if seconds > 3e9 => Ok(StatedTime(None)),
            Some(seconds) => {
                let time = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
                Ok(StatedTime(Some(time)))
            }
            None => Err(wrong()),
        }
    }
}

/// The seconds of a duration as Go writes it: `1h30m`, `300ms`, `-1m`.
fn go_duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    let mut seconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = &rest[digits..];
        let end = unit.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, after) = unit.split_at(end.unwrap_or(unit.len()));
        seconds += number
            * match unit {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = after;
    }
    Some(sign * seconds)
}

/// A request that uses a model. When the last one ends, the time begins after which the model is unloaded.
pub(super) struct ModelUse {
    app: Arc<App>,
    model: String,
}

impl ModelUse {
    /// Begins a use, with the time that the request states.
    pub(super) fn begin(app: &Arc<App>, model: &str, stated: Option<StatedTime>) -> ModelUse {
        let mut models = lock(&app.keep_alive.models);
        let state = models.entry(model.to_owned()).or_default();
        state.users += 1;
        state.expires = None;
        if let Some(StatedTime(stay)) = stated {
            state.stay = stay;
        }
        ModelUse {
            app: app.clone(),
            model: model.to_owned(),
        }
    }
}

impl Drop for ModelUse {
    fn drop(&mut self) {
        let mut models = lock(&self.app.keep_alive.models);
        let Some(state) = models.get_mut(&self.model) else {
            return;
        };
        state.users -= 1;
        let Some(stay) = state.stay.filter(|_| state.users == 0) else {
            return;
        };
        let at = Instant::now() + stay;
        state.expires = Some(at);
        // Without a runtime the server is ending, and unloads everything.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(expire(self.app.clone(), self.model.clone(), at));
        }
    }
}

/// How long to wait for answers of other clients.
const BUSY: Duration = Duration::from_millis(500);

/// Unloads a model at a time, unless requests of this API came meanwhile. Requests of other clients put it off.
async fn expire(app: Arc<App>, model: String, stated: Instant) {
    let mut at = stated;
    loop {
        tokio::time::sleep_until(at.into()).await;
        let loaded = app.models.get_loaded(Some(&model)).ok();
        let mut models = lock(&app.keep_alive.models);
        let waits = |state: &&mut State| state.users == 0 && state.expires == Some(at);
        let Some(state) = models.get_mut(&model).filter(waits) else {
            return;
        };
        let stay = state.stay.unwrap_or_default();
        let later = loaded
            .as_ref()
            .and_then(|loaded| match is_busy(loaded.engine().counters()) {
                true => Some(Instant::now() + BUSY),
                false => Some(loaded.last_use() + stay).filter(|next| *next > Instant::now()),
            });
        state.expires = later;
        let Some(later) = later else { break };
        at = later;
    }
    let unloading = app.blocking(move |app| app.models.unload(&model));
    if let Err(error) = unloading.await {
        tracing::warn!(%error, "a model could not be unloaded");
    }
}

/// Whether requests are running.
fn is_busy(counters: &Counters) -> bool {
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let ended = load(&counters.finished) + load(&counters.cancelled) + load(&counters.failed);
    load(&counters.started) > ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_are_read_as_ollama_reads_them() {
        let seconds = |n: f64| Some(StatedTime(Some(Duration::from_secs_f64(n))));
        let forever = Some(StatedTime(None));
        for (value, expected) in [
            (json!(0), seconds(0.0)),
            (json!("0"), seconds(0.0)),
            (json!(2.5), seconds(2.5)),
            (json!("5m"), seconds(300.0)),
            (json!("1h30m"), seconds(5400.0)),
            (json!("300ms"), seconds(0.3)),
            (json!("1.5s"), seconds(1.5)),
            (json!(-1), forever),
            (json!("-1"), forever),
            (json!("-1m"), forever),
            (json!("5 minutes"), None),
            (json!("m"), None),
            (json!(""), None),
            (json!(true), None),
            (json!("NaN"), None),
        ] {
            assert_eq!(StatedTime::read(&value).ok(), expected, "{value}");
        }
    }
}
