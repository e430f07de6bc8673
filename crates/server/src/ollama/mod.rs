//! Ollama's API under `/api`, for its clients: requests become those of kvark's own chats, and go through the same generation.

mod answer;
mod chat;
mod embed;
mod generate;
mod keep_alive;
mod models;
mod options;
mod pull;

pub(crate) use chat::{OllamaChat, create as chat};
pub(crate) use embed::{
    IGNORED as EMBED_IGNORED, OllamaEmbed, OllamaEmbeddings, embed, embeddings,
};
pub(crate) use generate::{OllamaGenerate, create as generate};
pub(crate) use keep_alive::KeepAlive;
pub(crate) use models::{ModelDetails, OllamaShow, ps, show, tags, version};
pub(crate) use options::{IGNORED, OllamaRequest};
pub(crate) use pull::{OllamaPull, copy, create, delete, pull, push};

use crate::app::App;
use crate::error::ApiError;
use axum::response::Response;
use serde_json::json;

/// The beginning of the paths of this API, whose errors have a shape of their own.
pub(crate) const PATH: &str = "/api/";

/// The version of Ollama whose API this is: clients compare it with the versions that they need.
const VERSION: &str = "0.12.11";

/// The tag of a model whose name has none.
const LATEST: &str = ":latest";

/// An error in Ollama's shape.
pub(crate) fn error_response(error: &ApiError) -> Response {
    error.response(json!({ "error": error.message }))
}

/// The time now, as answers state it.
fn now() -> String {
    jiff::Timestamp::now().to_string()
}

/// The server's name of a model that a client names with or without the tag `latest`.
fn served_name(app: &App, name: Option<&str>) -> Result<String, ApiError> {
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        let error = ApiError::parameter("model", "is required");
        return Err(error.with_code("missing_required_parameter"));
    };
    let untagged = name.strip_suffix(LATEST).filter(|name| !name.is_empty());
    let tagged = format!("{name}{LATEST}");
    let names = [Some(name), untagged, Some(&*tagged)];
    let found = names.into_iter().flatten();
    // Clients pull a model that is not there, so no other one stands for it.
    let mut found = found.filter(|name| app.models.names().any(|(served, _)| served == *name));
    found.next().map(str::to_owned).ok_or_else(|| {
        let served: Vec<String> = app.models.names().map(|(name, _)| name).collect();
        let served = served.join(", ");
        let error =
            format!("model {name:?} not found; the models are {served}, and /api/pull adds others");
        let error = ApiError::not_found(error).of_parameter("model");
        error.with_code("model_not_found")
    })
}
