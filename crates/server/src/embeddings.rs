//! `POST /v1/embeddings`

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde_json::{Value, json};
use std::sync::Arc;

/// The largest number of texts of a request, as OpenAI has it.
const MAX_TEXTS: usize = 2048;

/// The handler.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model")?;
    let base64 = match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let wrong = format!("{other:?} must be \"float\" or \"base64\"");
            return Err(ApiError::parameter("encoding_format", wrong));
        }
    };
    let texts = fields.strings("input")?;
    if texts.is_empty() || texts.len() > MAX_TEXTS {
        let wrong = format!("must have between 1 and {MAX_TEXTS} texts");
        return Err(ApiError::parameter("input", wrong));
    }
    fields.finish(&["user"], &["dimensions"], app.options.lenient)?;
    let (name, vectors) = app
        .blocking(move |app| app.models.embed(model.as_deref(), &texts))
        .await?;
    let tokens: usize = vectors.iter().map(|vector| vector.tokens).sum();
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding = match base64 {
            true => {
                let bytes = vector.values.iter().flat_map(|x| x.to_le_bytes());
                Value::from(BASE64.encode(bytes.collect::<Vec<u8>>()))
            }
            false => json!(vector.values),
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
