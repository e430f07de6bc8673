//! `POST /api/pull`, and what this server refuses to do with models.

use super::answer::lines;
use super::{LATEST, error_response, served_name};
use crate::app::App;
use crate::body::Body;
use crate::error::ApiError;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kvark::catalogue::FileState;
use kvark::hub::{
    FetchProgress, FetchStage, HubClient, HubError, HubErrorKind, HubOptions, ModelRef, OllamaStore,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The least time between two reports of progress.
const REPORT_TIME: Duration = Duration::from_millis(100);

/// The beginnings with which Ollama's clients name models of the Hugging Face hub.
const HUB_HOSTS: &[&str] = &["hf.co/", "huggingface.co/", "hf:"];

/// The parameters of `/api/pull`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct OllamaPull {
    /// A name of kvark's catalogue, hf.co/OWNER/REPO[:QUANT], or a model of an Ollama store on this machine
    model: Option<String>,
    /// An older name of model
    name: Option<String>,
    /// Report progress as lines of JSON [true]
    stream: Option<bool>,
}

/// `POST /api/pull`: downloads a model, and adds it to the models of the server.
pub(crate) async fn pull(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let pulled = begin(app, body).await;
    pulled.unwrap_or_else(|error| error_response(&error))
}

async fn begin(app: Arc<App>, body: Bytes) -> Result<Response, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: OllamaPull = body.read()?;
    body.finish(&["insecure"], &[], app.options.lenient)?;
    let name = request.model.or(request.name).unwrap_or_default();
    if name.is_empty() {
        let error = ApiError::parameter("model", "is required");
        return Err(error.with_code("missing_required_parameter"));
    }
    let (sender, mut receiver) = unbounded_channel();
    let work = tokio::task::spawn_blocking(move || {
        let result = download(&app, &name, &sender);
        if let Err(error) = &result {
            _ = sender.send(json!({ "error": error.message }));
        }
        result
    });
    if request.stream.unwrap_or(true) {
        return Ok(lines(receiver, next_line));
    }
    while receiver.recv().await.is_some() {}
    let failed = |error| {
        let message = format!("the download failed: {error}");
        ApiError::status(StatusCode::INTERNAL_SERVER_ERROR, message)
    };
    work.await.map_err(failed)??;
    Ok(Json(json!({ "status": "success" })).into_response())
}

type Reports = UnboundedReceiver<Value>;

async fn next_line(mut reports: Reports) -> Option<(String, Reports)> {
    let report = reports.recv().await?;
    Some((report.to_string(), reports))
}

/// Finds or downloads a model, and adds it. Reports what happens; nobody who listens any more cancels it.
fn download(app: &App, name: &str, reports: &UnboundedSender<Value>) -> Result<(), ApiError> {
    let report = |status: &str| reports.send(json!({ "status": status })).is_ok();
    report("pulling manifest");
    if served_name(app, Some(name)).is_err() {
        let path = find(app, name, reports)?;
        report("writing manifest");
        app.models.add(name, path);
    }
    report("success");
    Ok(())
}

/// The file of a model, which is downloaded if it is not there.
fn find(app: &App, name: &str, reports: &UnboundedSender<Value>) -> Result<PathBuf, ApiError> {
    let Some(store) = &app.options.store else {
        let refused =
            "this server has no folder for models: it answers for those that it was started with";
        return Err(ApiError::parameter("model", refused));
    };
    let mut progress = Progress::new(name, reports);
    let mut on = |done: FetchProgress| progress.report(done);
    let in_hub = HUB_HOSTS.iter().find_map(|host| name.strip_prefix(host));
    let bare = name.strip_suffix(LATEST).unwrap_or(name);
    if let Some(rest) = in_hub {
        let rest = rest.strip_suffix(LATEST).unwrap_or(rest);
        let reference = ModelRef::hub(rest).map_err(|error| hub_error(&error))?;
        return match store.stored(&reference) {
            Some(path) => Ok(path),
            None => {
                let client = HubClient::new(&HubOptions::from_env());
                let client = client.map_err(|error| hub_error(&error))?;
                let pulled = store.pull(&client, &reference, &mut on);
                pulled.map_err(|error| hub_error(&error))
            }
        };
    }
    if let Some(entry) = kvark::catalogue::find(bare) {
        if store.state(entry) == FileState::Present {
            return Ok(store.model_path(entry));
        }
        return store
            .fetch(entry, &mut on)
            .map_err(|error| failed(&error.to_string()));
    }
    in_ollama_store(name).ok_or_else(|| {
        let wrong = format!(
            "{name:?} is neither in kvark's catalogue nor in a store of Ollama on this machine; \
             hf.co/OWNER/REPO:QUANT names a model of the Hugging Face hub"
        );
        let error = ApiError::not_found(wrong).of_parameter("model");
        error.with_code("model_not_found")
    })
}

/// The file of a model that Ollama has downloaded on this machine.
fn in_ollama_store(name: &str) -> Option<PathBuf> {
    let reference = format!("ollama:{name}").parse().ok()?;
    let ModelRef::Ollama { name, tag } = reference else {
        return None;
    };
    let found = OllamaStore::from_env().find(&name, &tag).ok()?;
    Some(found.path)
}

fn hub_error(error: &HubError) -> ApiError {
    match error.kind() {
        HubErrorKind::Reference { .. } => ApiError::parameter("model", error),
        _ => failed(&error.to_string()),
    }
}

/// A download that did not succeed: another server's fault, or the network's.
fn failed(reason: &str) -> ApiError {
    ApiError::status(StatusCode::SERVICE_UNAVAILABLE, format!("pull: {reason}"))
}

/// Reports the progress of a download.
struct Progress<'a> {
    name: &'a str,
    reports: &'a UnboundedSender<Value>,
    last: Option<(FetchStage, Instant)>,
}

impl<'a> Progress<'a> {
    fn new(name: &'a str, reports: &'a UnboundedSender<Value>) -> Progress<'a> {
        Progress {
            name,
            reports,
            last: None,
        }
    }

    /// Whether to go on.
    fn report(&mut self, progress: FetchProgress) -> bool {
        let FetchProgress { stage, done, total } = progress;
        let soon = |(last, at): (FetchStage, Instant)| last == stage && at.elapsed() < REPORT_TIME;
        if self.last.is_some_and(soon) && done != total {
            return !self.reports.is_closed();
        }
        self.last = Some((stage, Instant::now()));
        let name = self.name;
        let report = match stage {
            FetchStage::Wait => {
                json!({ "status": format!("waiting for another download of {name}") })
            }
            FetchStage::Download => json!({
                "status": format!("pulling {name}"),
                "digest": name,
                "total": total,
                "completed": done,
            }),
            FetchStage::Unpack | FetchStage::Verify => {
                json!({ "status": "verifying sha256 digest", "total": total, "completed": done })
            }
        };
        self.reports.send(report).is_ok()
    }
}

/// Refuses a request by name.
fn refused(what: &str, instead: &str) -> Response {
    let message = format!("kvark serve does not {what} models: {instead}");
    let error = ApiError::invalid(message).with_code("unsupported_parameter");
    error_response(&error)
}

/// `DELETE /api/delete`
pub(crate) async fn delete() -> Response {
    refused("delete", "kvark rm NAME does, on the server's machine")
}

/// `POST /api/copy`
pub(crate) async fn copy() -> Response {
    refused("copy", "kvark serve NAME=MODEL gives one another name")
}

/// `POST /api/create`
pub(crate) async fn create() -> Response {
    refused(
        "create",
        "system messages and options are part of each request",
    )
}

/// `POST /api/push`
pub(crate) async fn push() -> Response {
    refused("push", "it only downloads them")
}
