//! `POST /v1/embeddings`

use crate::app::App;
use crate::body::{Body, Int};
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
    /// Up to 2048 texts, each as a string or as all its tokens
    input: EmbeddingInput,
    /// Keep only so many elements of each vector, and scale them to unit length
    dimensions: Option<Int<1>>,
    /// How vectors are written
    encoding_format: Option<Encoding>,
}

/// Texts, as strings or tokens.
#[derive(Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "must be a string, a list of strings, a list of token ids or a list of such lists"
)]
#[schemars(inline)]
pub(crate) enum EmbeddingInput {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    Lists(Vec<Vec<u32>>),
}

impl EmbeddingInput {
    fn len(&self) -> usize {
        match self {
            EmbeddingInput::Text(_) | EmbeddingInput::Tokens(_) => 1,
            EmbeddingInput::Texts(texts) => texts.len(),
            EmbeddingInput::Lists(lists) => lists.len(),
        }
    }
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
    if !(1..=MAX_TEXTS).contains(&request.input.len()) {
        let wrong = format!("must have between 1 and {MAX_TEXTS} texts");
        return Err(ApiError::parameter("input", wrong));
    }
    body.finish(&["user"], &[], app.options.lenient)?;
    let (model, input) = (request.model, request.input);
    let (name, mut vectors) = app
        .blocking(move |app| app.models.embed(model.as_deref(), input))
        .await?;
    if let Some(wanted) = request.dimensions.map(Int::size) {
        let has = vectors.first().map_or(0, |vector| vector.values.len());
        if wanted > has {
            let wrong = format!("the model's vectors have {has} elements");
            return Err(ApiError::parameter("dimensions", wrong));
        }
        for vector in &mut vectors {
            shorten(&mut vector.values, wanted);
        }
    }
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

/// Keeps the first elements of a vector, with a length of 1. One that is not longer stays as it is.
pub(crate) fn shorten(vector: &mut Vec<f32>, wanted: usize) {
    if wanted >= vector.len() {
        return;
    }
    vector.truncate(wanted);
    let squares: f64 = vector.iter().map(|x| f64::from(*x).powi(2)).sum();
    let length = squares.sqrt().max(f64::from(f32::MIN_POSITIVE)) as f32;
    vector.iter_mut().for_each(|x| *x /= length);
}

#[cfg(test)]
mod tests {
    use super::shorten;

    #[test]
    fn shortened_vectors_have_the_length_1() {
        let shortened = |mut vector: Vec<f32>, wanted: usize| {
            shorten(&mut vector, wanted);
            vector
        };
        let vector = vec![3.0, 4.0, 12.0];
        assert_eq!(shortened(vector.clone(), 2), [0.6, 0.8]);
        assert_eq!(shortened(vector.clone(), 3), vector);
        assert_eq!(shortened(vec![0.0, 1.0], 1), [0.0]);
    }
}
