//! `/api/tags`, `/api/ps`, `/api/show` and `/api/version`: what the models are.

use super::{VERSION, error_response, served_name};
use crate::app::App;
use crate::body::Body;
use crate::error::ApiError;
use crate::registry::lock;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use kvark::Model;
use kvark::hub::quantisation_of_name;
use kvark::model::gguf::Value as Metadatum;
use kvark::model::{ModelFile, OpenOptions};
use kvark::text::{AnswerFormat, ReasoningFormat};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// When a model that stays loaded is unloaded: later than anybody will ask.
const NEVER: &str = "2300-01-01T00:00:00Z";

/// `GET /api/version`
pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": VERSION, "kvark": env!("CARGO_PKG_VERSION") }))
}

/// The facts of model files, by the server's names.
#[derive(Default)]
pub(crate) struct ModelDetails(Mutex<HashMap<String, Arc<Description>>>);

/// The facts of a model file.
pub(super) struct Description {
    /// The object of the lists.
    listed: Value,
    /// Further facts for `/api/show`.
    shown: Value,
}

/// The description of a model, read from its file once.
fn description(app: &App, name: &str) -> Result<Arc<Description>, ApiError> {
    let known = lock(&app.model_details.0).get(name).cloned();
    if let Some(known) = known {
        return Ok(known);
    }
    let path = app.models.path(name)?;
    let read = match app.models.get_loaded(Some(name)) {
        Ok(loaded) => Description::read(name, &path, &loaded.model),
        Err(_) => Description::read(
            name,
            &path,
            &Model::open_with(&path, &OpenOptions::default())?,
        ),
    };
    let read = Arc::new(read);
    lock(&app.model_details.0).insert(name.to_owned(), read.clone());
    Ok(read)
}

impl Description {
    fn read(name: &str, path: &Path, model: &Model) -> Description {
        let metadata = path.metadata().ok();
        let size = metadata.as_ref().map_or(0, std::fs::Metadata::len);
        let modified = metadata.and_then(|metadata| metadata.modified().ok());
        let modified = modified.unwrap_or(SystemTime::UNIX_EPOCH);
        let modified = Timestamp::try_from(modified).unwrap_or_default();
        let modified = modified.to_string();
        let artifact = model.artifact();
        let family = &artifact.architecture;
        let (parameters, quantisation, mut info) = match &artifact.file {
            ModelFile::Gguf(file) => {
                let mut bytes = BTreeMap::new();
                for tensor in &file.tensors {
                    *bytes.entry(tensor.dtype.name()).or_insert(0) += tensor.data.len();
                }
                let most = bytes.into_iter().max_by_key(|(_, bytes)| *bytes);
                let most = most.map(|(name, _)| name.to_uppercase());
                let parameters = file.tensors.iter().map(|tensor| tensor.len() as u64);
                let info = file.metadata.iter();
                let info = info.map(|(key, value)| (key.to_owned(), metadatum(value)));
                let info: Map<String, Value> = info.collect();
                (Some(parameters.sum::<u64>()), most, info)
            }
            _ => (None, None, Map::new()),
        };
        info.insert("general.architecture".to_owned(), family.as_str().into());
        if let Some(parameters) = parameters {
            info.insert("general.parameter_count".to_owned(), parameters.into());
        }
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let quantisation = quantisation_of_name(&file).or(quantisation);
        let details = json!({
            "parent_model": "",
            "format": artifact.file.format().name().to_lowercase(),
            "family": family,
            "families": [family],
            "parameter_size": parameters.map_or(String::new(), size_in_words),
            "quantization_level": quantisation.unwrap_or_default(),
        });
        // The content is not hashed: it has gigabytes.
        let identity = format!("{}\n{size}\n{modified}", path.display());
        let digest = Sha256::digest(identity.as_bytes());
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let template = model.chat_template().ok();
        let template = template.map_or("", |template| template.source_text());
        let sampling = model.default_sampling();
        let defaults = [
            ("temperature", sampling.temperature.to_string()),
            ("top_k", sampling.top_k.to_string()),
            ("top_p", sampling.top_p.to_string()),
            ("min_p", sampling.min_p.to_string()),
            ("repeat_penalty", sampling.repeat_penalty.to_string()),
        ];
        let defaults = defaults.map(|(name, value)| format!("{name:<30} {value}"));
        Description {
            listed: json!({
                "name": name,
                "model": name,
                "modified_at": modified,
                "size": size,
                "digest": digest,
                "details": details,
            }),
            shown: json!({
                "license": info.get("general.license").cloned().unwrap_or_else(|| "".into()),
                "parameters": defaults.join("\n"),
                "template": template,
                "modelfile": "",
                "details": details,
                "model_info": info,
                "capabilities": capabilities(model, template),
                "modified_at": modified,
            }),
        }
    }
}

/// The abilities of a model, in Ollama's words.
fn capabilities(model: &Model, template: &str) -> Vec<&'static str> {
    if model.facts().pooling.is_some() {
        return vec!["embedding"];
    }
    let mut can = vec!["completion"];
    if !template.is_empty() {
        can.push("tools");
    }
    let format = model.tokenizer().ok();
    let format = format.map(|tokenizer| AnswerFormat::of_model(template, tokenizer));
    if format.is_some_and(|format| format.reasoning != ReasoningFormat::None) {
        can.push("thinking");
    }
    can
}

/// A value of a model file. Lists are left out, as Ollama leaves out long ones.
fn metadatum(value: &Metadatum) -> Value {
    match value {
        Metadatum::F32(number) => json!(number),
        Metadatum::F64(number) => json!(number),
        Metadatum::Bool(truth) => json!(truth),
        Metadatum::String(text) => json!(text),
        Metadatum::Array(_) => Value::Null,
        other => {
            let number = other.as_integer().unwrap_or_default();
            i64::try_from(number).map_or_else(|_| json!(number as u64), |number| json!(number))
        }
    }
}

/// A number of parameters as Ollama writes it: `134.52M`, `7.6B`.
fn size_in_words(parameters: u64) -> String {
    let number = parameters as f64;
    match parameters {
        0..1_000 => parameters.to_string(),
        1_000..1_000_000 => format!("{:.0}K", number / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2}M", number / 1e6),
        _ => format!("{:.1}B", number / 1e9),
    }
}

/// `GET /api/tags`: the models of the server.
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Response {
    let list = |app: &App| {
        let models = app.models.names().map(|(name, _)| {
            let described = description(app, &name);
            // A file that cannot be read is listed by its name, and refused when it is used.
            described.map_or_else(
                |_| json!({ "name": name, "model": name, "size": 0 }),
                |described| described.listed.clone(),
            )
        });
        Ok(Json(json!({ "models": models.collect::<Vec<Value>>() })))
    };
    let listed = app.blocking(list).await;
    listed.map_or_else(|error| error_response(&error), IntoResponse::into_response)
}

/// `GET /api/ps`: the loaded models.
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Response {
    let list = |app: &App| {
        let mut models = vec![];
        for model in app.models.loaded() {
            let mut object = description(app, &model.name)?.listed.clone();
            let bytes = model.engine().planned_bytes();
            let on_device = app.models.backend().has_own_memory();
            object["size"] = bytes.into();
            object["size_vram"] = if on_device { bytes } else { 0 }.into();
            object["context_length"] = model.engine().context().into();
            let left = app.keep_alive.left(&model.name);
            let expires = left.and_then(|left| Timestamp::now().checked_add(left).ok());
            object["expires_at"] = match expires {
                Some(at) => at.to_string().into(),
                None => NEVER.into(),
            };
            models.push(object);
        }
        Ok(Json(json!({ "models": models })))
    };
    let listed = app.blocking(list).await;
    listed.map_or_else(|error| error_response(&error), IntoResponse::into_response)
}

/// The parameters of `/api/show`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct OllamaShow {
    /// The model, with or without the tag latest
    model: Option<String>,
    /// An older name of model
    name: Option<String>,
}

/// `POST /api/show`
pub(crate) async fn show(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let shown = answer_show(app, body).await;
    shown.map_or_else(|error| error_response(&error), IntoResponse::into_response)
}

async fn answer_show(app: Arc<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: OllamaShow = body.read()?;
    body.finish(&["verbose"], &[], app.options.lenient)?;
    let name = request.model.or(request.name);
    let name = served_name(&app, name.as_deref())?;
    let described = app.blocking(move |app| description(app, &name)).await?;
    Ok(Json(described.shown.clone()))
}

#[cfg(test)]
mod tests {
    use super::size_in_words;

    #[test]
    fn sizes_are_written_as_ollama_writes_them() {
        for (parameters, expected) in [
            (12, "12"),
            (12_300, "12K"),
            (134_515_008, "134.52M"),
            (7_615_616_512, "7.6B"),
        ] {
            assert_eq!(size_in_words(parameters), expected);
        }
    }
}
