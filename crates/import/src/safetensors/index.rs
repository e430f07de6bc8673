//! Models split over several safetensors files: the index, and the file that stands for a folder's model.

use std::collections::{BTreeSet, HashSet};
use std::path::{Component, Path, PathBuf};

use base::Bytes;
use serde_json::Value;

use super::file::{Safetensors, object};
use crate::error::ImportError;

/// The names of a folder's files, in the order in which they are looked for.
const INDEX: &str = "model.safetensors.index.json";
const MODEL: &str = "model.safetensors";
const INDEX_ENDING: &str = ".safetensors.index.json";
/// The files of a sharded model that is read; more means a damaged index.
const MAX_SHARDS: usize = 4096;

/// Whether a path is that of an index.
pub(crate) fn is_index(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.ends_with(INDEX_ENDING))
}

/// The file that stands for a folder's weights: the index, `model.safetensors`, or the only other file.
pub(super) fn weights(folder: &Path) -> Result<PathBuf, ImportError> {
    for name in [INDEX, MODEL] {
        let path = folder.join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut files: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors") && path.is_file())
        .collect();
    match (files.pop(), files.is_empty()) {
        (Some(file), true) => Ok(file),
        (Some(_), false) => {
            let reason = format!("has several safetensors files and no {INDEX}");
            Err(ImportError::malformed("the folder", reason).in_file(folder))
        }
        (None, _) => {
            let reason = "has a config.json, but no weights (*.safetensors)";
            Err(ImportError::malformed("the folder", reason).in_file(folder))
        }
    }
}

/// Opens the files of an index as one. `config` is the configuration's text.
pub(super) fn open(path: &Path, config: &[u8]) -> Result<Safetensors, ImportError> {
    let index = object("the index", &Bytes::read(path)?)?;
    let map = index.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| {
        ImportError::malformed("the index", "has no object \"weight_map\"".to_owned())
    })?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        let name = file.as_str().filter(|name| is_file_name(name));
        let name = name.ok_or_else(|| {
            let reason = format!("is said to be in {file}, which is not a file of the folder");
            ImportError::malformed(format!("tensor {tensor:?}"), reason)
        })?;
        names.insert(name);
    }
    if names.is_empty() || names.len() > MAX_SHARDS {
        let reason = format!("names {} files", names.len());
        return Err(ImportError::malformed("the index", reason));
    }
    let mut whole: Option<Safetensors> = None;
    for name in names {
        let part = path.with_file_name(name);
        if !part.is_file() {
            let reason = format!("names {name}, which is not in the folder");
            return Err(ImportError::malformed("the index", reason));
        }
        let read = || Safetensors::parse(&Bytes::map(&part)?, config);
        let file = read().map_err(|error: ImportError| error.in_file(&part))?;
        match &mut whole {
            None => whole = Some(file),
            Some(whole) => whole.tensors.extend(file.tensors),
        }
    }
    let whole = whole.expect("there is a first file");
    let mut found = HashSet::new();
    for tensor in &whole.tensors {
        if !found.insert(&tensor.name) {
            let what = format!("tensor {:?}", tensor.name);
            return Err(ImportError::malformed(what, "is in two files of the index"));
        }
    }
    if let Some(missing) = map.keys().find(|name| !found.contains(name)) {
        return Err(ImportError::missing_tensor(missing));
    }
    Ok(whole)
}

/// Whether a name is that of a file directly inside the folder.
fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let normal = matches!(parts.next(), Some(Component::Normal(_)));
    normal && parts.next().is_none() && name.ends_with(".safetensors")
}
