//! `modules.json` of sentence-transformers: what happens to the hidden states of a text.

use std::path::{Component, Path};

use base::Bytes;
use serde_json::{Map, Value};

use super::file::object;
use crate::error::ImportError;

const FILE: &str = "modules.json";

/// The modules of a folder in order, with the configuration of those that have one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Modules {
    list: Vec<(String, Map<String, Value>)>,
}

impl Modules {
    /// Reads the modules beside a model file; `None` if there are none.
    pub(super) fn beside(path: &Path) -> Result<Option<Modules>, ImportError> {
        let file = path.with_file_name(FILE);
        if !file.is_file() {
            return Ok(None);
        }
        let wrong = |reason: &str| ImportError::malformed(FILE, reason);
        let json: Value = serde_json::from_slice(&Bytes::read(&file)?)
            .map_err(|e| wrong(&format!("is not valid JSON: {e}")))?;
        let entries = json.as_array().ok_or_else(|| wrong("is not a list"))?;
        let mut list = vec![];
        for entry in entries {
            let kind = entry["type"].as_str();
            let kind = kind.ok_or_else(|| wrong("has a module without a type"))?;
            let folder = Path::new(entry["path"].as_str().unwrap_or(""));
            let mut parts = folder.components();
            if !parts.all(|part| matches!(part, Component::Normal(_))) {
                return Err(wrong("has a module outside of the folder"));
            }
            let config = path.with_file_name("").join(folder).join("config.json");
            // The first module is the model itself, whose configuration is the folder's.
            let own = !folder.as_os_str().is_empty() && config.is_file();
            let config = match own {
                true => object("a module's config.json", &Bytes::read(&config)?)?,
                false => Map::new(),
            };
            let name = kind.rsplit('.').next().unwrap_or(kind);
            list.push((name.to_owned(), config));
        }
        Ok(Some(Modules { list }))
    }

    /// GGUF's number of the pooling; `None` if no module pools.
    ///
    /// # Errors
    /// If there is a module of another kind, or a pooling that is not supported.
    pub(crate) fn pooling_type(&self) -> Result<Option<u32>, ImportError> {
        let mut pooling = None;
        for (kind, config) in &self.list {
            match &kind[..] {
                "Transformer" | "Normalize" => {}
                "Pooling" => pooling = Some(pooling_of(config)?),
                other => {
                    let what = format!("a module {other:?} in {FILE}");
                    return Err(ImportError::unsupported(what));
                }
            }
        }
        Ok(pooling)
    }
}

fn pooling_of(config: &Map<String, Value>) -> Result<u32, ImportError> {
    let flags = config
        .iter()
        .filter(|(_, value)| **value == Value::Bool(true));
    let flags = flags.filter_map(|(key, _)| key.strip_prefix("pooling_mode_"));
    let stated = config.get("pooling_mode").and_then(Value::as_str);
    let modes: Vec<&str> = stated.into_iter().chain(flags).collect();
    match modes[..] {
        ["mean_tokens" | "mean"] => Ok(1),
        ["cls_token" | "cls"] => Ok(2),
        ["lasttoken"] => Ok(3),
        _ => {
            let what = format!("the pooling {:?} of {FILE}", modes.join(" and "));
            Err(ImportError::unsupported(what))
        }
    }
}
