//! `POST /v1/embeddings`

use crate::app::App;
use crate::body::{Body, Strings};
use crate::error::ApiError;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The largest number of texts of a request, as OpenAI has it.
const MAX_TEXTS: usize = 2048;

/// The parameters.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct EmbeddingRequest {
    /// The model; the default one if left out
    model: Option<String>,
    /// Up to 2048 texts
    input: Strings,
    /// How vectors are written
    encoding_format: Option<Encoding>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Encoding {
    Float,
    Base64,
}

/// The handler.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: EmbeddingRequest = body.read()?;
    let texts: Vec<String> = request.input.into();
    if texts.is_empty() || texts.len() > MAX_TEXTS {
        let wrong = format!("must have between 1 and {MAX_TEXTS} texts");
        return Err(ApiError::parameter("input", wrong));
    }
    body.finish(&["user"], &["dimensions"], app.options.lenient)?;
    let (name, vectors) = app
        .blocking(move |app| app.models.embed(request.model.as_deref(), &texts))
        .await?;
    let tokens: usize = vectors.iter().map(|vector| vector.tokens).sum();
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding = match request.encoding_format {
            Some(Encoding::Base64) => {
                let bytes = vector.values.iter().flat_map(|x| x.to_le_bytes());
                Value::from(BASE64.encode(bytes.collect::<Vec<u8>>()))
            }
            _ => json!(vector.values),
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    let data: Vec<Value> = data.collect();
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "model": name,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}
