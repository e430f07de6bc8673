//! `POST /api/embed`, and the older `POST /api/embeddings`.

use super::keep_alive::{ModelUse, StatedTime};
use super::{error_response, served_name};
use crate::app::App;
use crate::body::{Body, Int, Strings};
use crate::embeddings::{EmbeddingInput, shorten};
use crate::error::ApiError;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Parameters that change nothing: a text that is too long is refused and never cut, and models have the options that they
/// were loaded with.
pub(crate) const IGNORED: &[&str] = &["options", "truncate"];

/// The parameters of `/api/embed`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct OllamaEmbed {
    /// The model, with or without the tag latest
    model: Option<String>,
    /// A text or several
    input: Option<Strings>,
    /// The length of the vectors: their first elements, normalised
    dimensions: Option<Int<1>>,
    /// How long the model stays loaded
    #[schemars(with = "Option<f64>", extend("type" = ["number", "string", "null"]))]
    keep_alive: Option<Value>,
}

/// The parameters of `/api/embeddings`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct OllamaEmbeddings {
    /// The model, with or without the tag latest
    model: Option<String>,
    /// The text
    prompt: Option<String>,
    /// How long the model stays loaded
    #[schemars(with = "Option<f64>", extend("type" = ["number", "string", "null"]))]
    keep_alive: Option<Value>,
}

/// The handler of `/api/embed`.
pub(crate) async fn embed(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let answered = answer_embed(app, body).await;
    answered.map_or_else(|error| error_response(&error), IntoResponse::into_response)
}

/// The handler of `/api/embeddings`.
pub(crate) async fn embeddings(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let answered = answer_embeddings(app, body).await;
    answered.map_or_else(|error| error_response(&error), IntoResponse::into_response)
}

async fn answer_embed(app: Arc<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let started = Instant::now();
    let mut body = Body::parse(&body)?;
    let request: OllamaEmbed = body.read()?;
    body.finish(IGNORED, &[], app.options.lenient)?;
    let texts: Vec<String> = request.input.map_or(vec![], Strings::into);
    let asked = request.model.clone().unwrap_or_default();
    let (vectors, tokens) = vectors(&app, request.model, request.keep_alive, texts).await?;
    let wanted = request.dimensions.map(Int::size);
    let vectors: Vec<Vec<f32>> = vectors
        .into_iter()
        .map(|mut vector| {
            shorten(&mut vector, wanted.unwrap_or(usize::MAX));
            vector
        })
        .collect();
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Ok(Json(json!({
        "model": asked,
        "embeddings": vectors,
        "total_duration": nanoseconds(started.elapsed()),
        "load_duration": 0,
        "prompt_eval_count": tokens,
    })))
}

async fn answer_embeddings(app: Arc<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: OllamaEmbeddings = body.read()?;
    body.finish(IGNORED, &[], app.options.lenient)?;
    let texts = Vec::from_iter(request.prompt.filter(|text| !text.is_empty()));
    let (vectors, _) = vectors(&app, request.model, request.keep_alive, texts).await?;
    let vector = vectors.into_iter().next().unwrap_or_default();
    Ok(Json(json!({ "embedding": vector })))
}

/// The vectors of texts and the sum of their tokens.
async fn vectors(
    app: &Arc<App>,
    model: Option<String>,
    keep_alive: Option<Value>,
    texts: Vec<String>,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let name = served_name(app, model.as_deref())?;
    let stated = keep_alive.as_ref().map(StatedTime::read).transpose()?;
    let _model_use = ModelUse::begin(app, &name, stated);
    if texts.is_empty() {
        return Ok((vec![], 0));
    }
    let embed = move |app: &App| app.models.embed(Some(&name), EmbeddingInput::Texts(texts));
    let (_, embeddings) = app.blocking(embed).await?;
    let tokens = embeddings.iter().map(|embedding| embedding.tokens).sum();
    let vectors = embeddings.into_iter().map(|embedding| embedding.values);
    Ok((vectors.collect(), tokens))
}
