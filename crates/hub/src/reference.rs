//! What a model can be called: a path, a name of the catalogue, a repository of the hub, an address, a model of Ollama.

use crate::catalogue::{self, CatalogueEntry};
use crate::error::{HubError, HubErrorKind};
use crate::url;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A reference to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    /// A file or folder.
    Path(PathBuf),
    /// A model of the catalogue.
    Catalogue(&'static CatalogueEntry),
    /// `hf:OWNER/REPOSITORY[:QUANT]`: a GGUF file of a repository of the hub, or a folder's files if it has none.
    Hub {
        /// `OWNER/REPOSITORY`.
        repository: String,
        /// The quantisation, or the name of a GGUF file.
        quantisation: Option<String>,
    },
    /// `https://…/file.gguf`; plain http only on this machine.
    Url(String),
    /// `ollama:NAME[:TAG]`: a model in a store of Ollama on this machine.
    Ollama {
        /// The name, with its namespace and host if it has any.
        name: String,
        /// The tag.
        tag: String,
    },
}

const HUB: &str = "hf:";
const OLLAMA: &str = "ollama:";
/// The tag of a model of Ollama that has none.
const LATEST: &str = "latest";

impl ModelRef {
    /// Parses `OWNER/REPOSITORY[:QUANT]`, with or without `hf:`.
    ///
    /// # Errors
    /// If the text is not of this form.
    pub fn hub(text: &str) -> Result<ModelRef, HubError> {
        let rest = text.strip_prefix(HUB).unwrap_or(text);
        let (repository, quantisation) = match rest.split_once(':') {
            Some((repository, quantisation)) => (repository, Some(quantisation)),
            None => (rest, None),
        };
        let wrong = |reason| reference_error(text, reason);
        if quantisation.is_some_and(|q| !is_file_path(q)) {
            return Err(wrong(
                "after the second colon belongs a quantisation, such as Q4_K_M",
            ));
        }
        let valid = |part: &str| is_name(part);
        match repository.split_once('/') {
            Some((owner, name)) if valid(owner) && valid(name) => Ok(ModelRef::Hub {
                repository: repository.to_owned(),
                quantisation: quantisation.map(str::to_owned),
            }),
            _ => Err(wrong(
                "it must be OWNER/REPOSITORY or OWNER/REPOSITORY:QUANT",
            )),
        }
    }

    fn ollama(text: &str) -> Result<ModelRef, HubError> {
        let rest = text.strip_prefix(OLLAMA).unwrap_or(text);
        // The host may have a port, so only a colon after the last slash begins the tag.
        let at = rest.rfind('/').map_or(0, |at| at + 1);
        let (name, tag) = match rest[at..].split_once(':') {
            Some((name, tag)) => (&rest[..at + name.len()], tag),
            None => (rest, LATEST),
        };
        let parts = name.split('/');
        if parts.clone().count() > 3 || !parts.chain([tag]).all(is_name_or_host) {
            return Err(reference_error(
                text,
                "it must be ollama:NAME or ollama:NAME:TAG",
            ));
        }
        Ok(ModelRef::Ollama {
            name: name.to_owned(),
            tag: tag.to_owned(),
        })
    }

    fn url(text: &str) -> Result<ModelRef, HubError> {
        let wrong = |reason| Err(reference_error(text, reason));
        if !url::is_address(text) {
            return wrong("the address has no host, or characters that an address cannot have");
        }
        if !url::is_private(text) {
            return wrong("plain http is only used on this machine; use https");
        }
        if !url::path(text).to_ascii_lowercase().ends_with(".gguf") {
            return wrong("the address does not end with .gguf");
        }
        Ok(ModelRef::Url(text.to_owned()))
    }
}

/// Whether a path is a model: a folder with `genai_config.json` or `config.json`, or a file that begins as a GGUF file or an archive
/// does.
fn is_model(path: &Path) -> bool {
    if path.is_dir() {
        let names = ["genai_config.json", "config.json"];
        return names.iter().any(|name| path.join(name).is_file());
    }
    let mut start = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && [*b"GGUF", *b"PK\x03\x04"].contains(&start)
}

fn reference_error(text: &str, reason: &'static str) -> HubError {
    let text = crate::error::printable(text);
    HubErrorKind::Reference { text, reason }.into()
}

/// Whether a text is a name that can be a folder: letters, digits, `-`, `_` and `.`, and not only dots.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.chars().all(allowed) && !text.starts_with('.')
}

fn is_name_or_host(text: &str) -> bool {
    is_name(&text.replacen(':', "", 1))
}

/// Whether a path of a repository can be stored below a folder: relative, without `..`, without characters that a
/// system forbids.
pub(crate) fn is_file_path(path: &str) -> bool {
    let part = |part: &str| {
        let bad = |c: char| c.is_control() || r#"\:*?"<>|"#.contains(c);
        !part.is_empty() && !part.starts_with('.') && !part.contains(bad)
    };
    path.split('/').all(part)
}

impl FromStr for ModelRef {
    type Err = HubError;

    /// Parses a reference. A text of no other form is a name of the catalogue if there is one, or else a path. A file or folder
    /// that exists is a path; one that has a name of the catalogue and is no model must be written `./NAME`.
    fn from_str(text: &str) -> Result<ModelRef, HubError> {
        let path = PathBuf::from(text);
        if let Some(entry) = catalogue::find(text).filter(|_| !is_model(&path)) {
            return Ok(ModelRef::Catalogue(entry));
        }
        if path.exists() {
            return Ok(ModelRef::Path(path));
        }
        if text.starts_with(HUB) {
            return ModelRef::hub(text);
        }
        if text.starts_with(OLLAMA) {
            return ModelRef::ollama(text);
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return match scheme {
                "http" | "https" => ModelRef::url(text),
                _ => Err(reference_error(text, "only https addresses are downloaded")),
            };
        }
        Ok(ModelRef::Path(path))
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelRef::Path(path) => write!(f, "{}", path.display()),
            ModelRef::Catalogue(entry) => f.write_str(entry.name),
            ModelRef::Hub {
                repository,
                quantisation,
            } => match quantisation {
                Some(quantisation) => write!(f, "{HUB}{repository}:{quantisation}"),
                None => write!(f, "{HUB}{repository}"),
            },
            ModelRef::Url(url) => f.write_str(&url::shown(url)),
            ModelRef::Ollama { name, tag } => write!(f, "{OLLAMA}{name}:{tag}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_shown() {
        let table = [
            ("hf:o/r", "hf:o/r"),
            ("hf:o/r.GGUF:Q4_K_M", "hf:o/r.GGUF:Q4_K_M"),
            ("hf:o/r:sub/file.gguf", "hf:o/r:sub/file.gguf"),
            ("https://h.example/a.gguf?sig=1", "https://h.example/a.gguf"),
            ("http://127.0.0.1:1/a.GGUF", "http://127.0.0.1:1/a.GGUF"),
            ("ollama:llama3.2", "ollama:llama3.2:latest"),
            ("ollama:me/model:1b", "ollama:me/model:1b"),
            (
                "ollama:host:5000/me/model:1b",
                "ollama:host:5000/me/model:1b",
            ),
            ("SmolLM2", "smollm2-135m-instruct"),
            ("no/such.gguf", "no/such.gguf"),
            ("/", "/"),
        ];
        for (text, want) in table {
            let reference: ModelRef = text.parse().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(reference.to_string(), want);
        }
        assert_eq!(
            ModelRef::hub("o/r:Q8_0").unwrap().to_string(),
            "hf:o/r:Q8_0"
        );
    }

    #[test]
    fn a_folder_shadows_a_name_only_if_it_is_a_model() {
        let folder = std::env::temp_dir().join(format!("kvark-shadow-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.join(name), bytes).unwrap();
            is_model(&folder.join(name))
        };
        assert!(!is_model(&folder) && !is_model(&folder.join("none")));
        assert!(!file("Makefile", b"all:\n") && !file("short", b"GG"));
        assert!(file("model", b"GGUF...") && file("archive", b"PK\x03\x04..."));
        file("genai_config.json", b"{}");
        assert!(is_model(&folder));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_wrong_is_named() {
        let table = [
            ("hf:", "OWNER/REPOSITORY"),
            ("hf:name", "OWNER/REPOSITORY"),
            ("hf:a/b/c", "OWNER/REPOSITORY"),
            ("hf:../x", "OWNER/REPOSITORY"),
            ("hf:a/b:", "a quantisation"),
            ("hf:a/b:../../x.gguf", "a quantisation"),
            ("https://", "no host"),
            ("https://h.example/page.html", "does not end with .gguf"),
            ("http://h.example/a.gguf", "use https"),
            ("ftp://h.example/a.gguf", "only https"),
            ("ollama:", "ollama:NAME"),
            ("ollama:../x", "ollama:NAME"),
            ("ollama:a/b/c/d", "ollama:NAME"),
        ];
        for (text, want) in table {
            let error = text.parse::<ModelRef>().unwrap_err().to_string();
            assert!(error.starts_with(text) && error.contains(want), "{error}");
        }
    }
}
