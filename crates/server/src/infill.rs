//! `POST /infill`: text in the middle, as llama.cpp's server has it.

use crate::app::App;
use crate::body::{Body, Int};
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::native::{NativeOptions, NativePrompts, respond};
use crate::registry::LoadedModel;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use kvark::text::{InfillRequest, InfillTokens};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;

/// The parameters of an infill, besides those of all generations.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct InfillParameters {
    /// The text in front of the answer
    #[serde(default)]
    input_prefix: String,
    /// The text behind the answer
    #[serde(default)]
    input_suffix: String,
    /// Other files, with filename and text
    #[serde(default)]
    input_extra: Vec<InfillFile>,
    /// The beginning of the answer
    #[serde(default)]
    prompt: String,
    /// Most tokens of the answer; -1 for no limit
    n_predict: Option<Int<-1>>,
}

/// A file beside the text.
#[derive(Deserialize, JsonSchema)]
#[schemars(inline)]
struct InfillFile {
    #[serde(default)]
    filename: String,
    text: String,
}

/// The handler.
pub(crate) async fn create(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let mut body = Body::parse(&body)?;
    let own: InfillParameters = body.read()?;
    let options: NativeOptions = body.read()?;
    let generation: GenerationRequest = body.read()?;
    let read = move |model: &LoadedModel| {
        let files = own.input_extra.iter();
        let files = files.map(|file| (&*file.filename, &*file.text));
        let request = InfillRequest {
            prefix: &own.input_prefix,
            suffix: &own.input_suffix,
            files: files.collect(),
            begun: &own.prompt,
        };
        let tokens = tokens(model, &request, "input_prefix")?;
        let text = model.model.tokenizer()?.decode(&tokens, true);
        Ok(NativePrompts {
            prompts: vec![(text, tokens)],
            is_list: false,
        })
    };
    respond(app, body, (generation, options, own.n_predict), read).await
}

/// The tokens of a request, or an error of `parameter` if the model was not trained for it.
pub(crate) fn tokens(
    model: &LoadedModel,
    request: &InfillRequest<'_>,
    parameter: &str,
) -> Result<Vec<u32>, ApiError> {
    let files = request.files.iter().map(|(_, text)| text.len());
    let bytes = request.prefix.len() + request.suffix.len() + files.sum::<usize>();
    model.check_length(bytes)?;
    let tokenizer = model.model.tokenizer()?;
    match InfillTokens::of(tokenizer) {
        Some(marks) => Ok(marks.prompt(tokenizer, request)),
        None => {
            let name = &model.name;
            let wrong = format!("the model {name:?} has no tokens for text in the middle");
            Err(ApiError::parameter(parameter, wrong).not_supported())
        }
    }
}
