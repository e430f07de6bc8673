//! Models in a store of Ollama on this machine: manifests by name, and files by checksum. They are used in place; nothing
//! is written or deleted there.

use crate::error::{HubError, HubErrorKind};
use crate::reference::ModelRef;
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The host and the namespace of a name that has none.
const HOST: &str = "registry.ollama.ai";
const NAMESPACE: &str = "library";
/// The folder of Ollama's service on Linux.
const SERVICE_FOLDER: &str = "/usr/share/ollama/.ollama/models";
const MODEL_LAYER: &str = "application/vnd.ollama.image.model";
const ADAPTER_LAYER: &str = "application/vnd.ollama.image.adapter";

/// A store of Ollama.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OllamaStore {
    root: PathBuf,
}

/// A model in a store of Ollama.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OllamaModel {
    /// The reference, `ollama:NAME:TAG`.
    pub name: String,
    /// The GGUF file.
    pub path: PathBuf,
    /// Bytes of the file.
    pub bytes: u64,
}

impl OllamaStore {
    /// `$OLLAMA_MODELS`, or else `.ollama/models` in the user's home or the folder of Ollama's service. The folder need not
    /// exist.
    pub fn from_env() -> OllamaStore {
        OllamaStore::from_variables(|name| std::env::var_os(name))
    }

    /// A store in this folder.
    pub fn at(root: impl Into<PathBuf>) -> OllamaStore {
        OllamaStore { root: root.into() }
    }

    fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> OllamaStore {
        let folder = |name| get(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let home = folder("HOME").or_else(|| folder("USERPROFILE"));
        let user = home.map(|home| home.join(".ollama/models"));
        let service = PathBuf::from(SERVICE_FOLDER);
        OllamaStore::at(match folder("OLLAMA_MODELS") {
            Some(root) => root,
            None => match user {
                Some(user) if user.exists() || !service.exists() => user,
                _ => service,
            },
        })
    }

    /// The folder of the store.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The model with this name and tag.
    ///
    /// # Errors
    /// If the store has no such model, or only a part of it.
    pub fn find(&self, name: &str, tag: &str) -> Result<OllamaModel, HubError> {
        let parts: Vec<&str> = name.split('/').collect();
        let path: PathBuf = match parts[..] {
            [name] => [HOST, NAMESPACE, name, tag].iter().collect(),
            [space, name] => [HOST, space, name, tag].iter().collect(),
            _ => parts.iter().copied().chain([tag]).collect(),
        };
        let reference = ModelRef::Ollama {
            name: name.to_owned(),
            tag: tag.to_owned(),
        };
        let manifest = self.root.join("manifests").join(path);
        self.read(&manifest, reference.to_string())
    }

    fn read(&self, manifest: &Path, name: String) -> Result<OllamaModel, HubError> {
        let fail = |reason: String| {
            let name = name.clone();
            HubErrorKind::Ollama { name, reason }
        };
        let root = self.root.display();
        let Ok(text) = fs::read_to_string(manifest) else {
            let reason = format!("Ollama's store {root} has no such model");
            return Err(fail(reason).into());
        };
        let manifest: Value = serde_json::from_str(&text).map_err(|e| {
            fail(format!(
                "its manifest {} is damaged: {e}",
                manifest.display()
            ))
        })?;
        let layers = manifest["layers"].as_array().map_or(&[][..], Vec::as_slice);
        let layer = |kind| layers.iter().find(|layer| layer["mediaType"] == kind);
        if layer(ADAPTER_LAYER).is_some() {
            return Err(fail("it has an adapter, which kvark does not apply".to_owned()).into());
        }
        let digest = layer(MODEL_LAYER).and_then(|layer| layer["digest"].as_str());
        let sum = digest.and_then(|digest| digest.strip_prefix("sha256:"));
        let Some(sum) = sum.filter(|sum| crate::repository::is_sha256(sum)) else {
            return Err(fail("its manifest names no model file".to_owned()).into());
        };
        let path = self.root.join("blobs").join(format!("sha256-{sum}"));
        match path.metadata() {
            Ok(meta) if meta.is_file() => Ok(OllamaModel {
                name,
                bytes: meta.len(),
                path,
            }),
            _ => Err(fail(format!("its file {} is missing", path.display())).into()),
        }
    }

    /// All models whose files are there, by name.
    pub fn list(&self) -> Vec<OllamaModel> {
        let manifests = self.root.join("manifests");
        let mut models = Vec::new();
        for host in names(&manifests) {
            for space in names(&manifests.join(&host)) {
                let folder = manifests.join(&host).join(&space);
                for name in names(&folder) {
                    for tag in names(&folder.join(&name)) {
                        let short = match (&*host, &*space) {
                            (HOST, NAMESPACE) => name.clone(),
                            (HOST, _) => format!("{space}/{name}"),
                            _ => format!("{host}/{space}/{name}"),
                        };
                        models.extend(self.find(&short, &tag).ok());
                    }
                }
            }
        }
        models.sort_by(|a, b| a.name.cmp(&b.name));
        models
    }
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn models_are_found_by_name_and_nothing_is_written() {
        let root = std::env::temp_dir().join(format!("kvark-ollama-{}", std::process::id()));
        let store = OllamaStore::at(&root);
        let sum = "a".repeat(64);
        let manifest = |path: &str, layers: Value| {
            let path = root.join("manifests").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, json!({ "layers": layers }).to_string()).unwrap();
        };
        let layer = |kind: &str, digest: &str| json!({ "mediaType": kind, "digest": digest });
        let model = layer(MODEL_LAYER, &format!("sha256:{sum}"));
        let config = layer("application/vnd.ollama.image.params", "sha256:00");
        manifest(
            "registry.ollama.ai/library/tiny/latest",
            json!([config, model]),
        );
        manifest("registry.ollama.ai/me/tiny/1b", json!([model]));
        manifest("hf.example/o/r/Q8_0", json!([model]));
        manifest(
            "registry.ollama.ai/library/tuned/latest",
            json!([model, layer(ADAPTER_LAYER, "x")]),
        );
        manifest(
            "registry.ollama.ai/library/evil/latest",
            json!([layer(MODEL_LAYER, "sha256:../../x")]),
        );

        let error = |name: &str| store.find(name, "latest").unwrap_err().to_string();
        assert!(error("tiny").contains("is missing"), "{}", error("tiny"));
        assert!(error("none").starts_with("ollama:none:latest: Ollama's store"));
        assert!(store.list().is_empty());
        fs::create_dir_all(root.join("blobs")).unwrap();
        let blob = root.join("blobs").join(format!("sha256-{sum}"));
        fs::write(&blob, "GGUF").unwrap();

        let found = store.find("tiny", "latest").unwrap();
        assert_eq!((found.path, found.bytes), (blob, 4));
        assert!(error("tuned").contains("adapter"));
        assert!(error("evil").contains("names no model file"));
        let names: Vec<String> = store.list().into_iter().map(|m| m.name).collect();
        let want = [
            "ollama:hf.example/o/r:Q8_0",
            "ollama:me/tiny:1b",
            "ollama:tiny:latest",
        ];
        assert_eq!(names, want);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_folder_follows_the_variables() {
        let at = |set: &[(&str, &str)]| {
            let get = |name: &str| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| OsString::from(value))
            };
            OllamaStore::from_variables(get).root
        };
        assert_eq!(
            at(&[("OLLAMA_MODELS", "/o"), ("HOME", "/h")]),
            Path::new("/o")
        );
        if !Path::new(SERVICE_FOLDER).exists() {
            assert_eq!(at(&[("HOME", "/h")]), Path::new("/h/.ollama/models"));
        }
    }
}
