//! The list of files of a repository of the hub.

use crate::client::{Failure, HubClient};
use crate::error::{HubError, HubErrorKind, printable};
use crate::reference::is_file_path;
use crate::url;
use serde_json::Value;

/// Pages of a list that are read.
const MAX_PAGES: usize = 100;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepositoryFile {
    /// The path in the repository.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// The checksum that the hub states, in lower-case hexadecimal digits; large files have one.
    pub(crate) sha256: Option<String>,
}

impl HubClient {
    /// The files of the repository's main branch.
    pub(crate) fn files(
        &self,
        repository: &str,
        cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<RepositoryFile>, HubError> {
        let endpoint = &self.options.endpoint;
        let mut page = format!("{endpoint}/api/models/{repository}/tree/main?recursive=true");
        let mut files = Vec::new();
        for _ in 0..MAX_PAGES {
            let read = || {
                let (text, headers) = self.text(&page)?;
                let wrong = |message: &str| {
                    Failure::Final(HubErrorKind::Listing {
                        repository: format!("hf:{repository}"),
                        message: printable(message),
                    })
                };
                let list = serde_json::from_str(&text).map_err(|e| wrong(&e.to_string()))?;
                let found = parse(&list).ok_or_else(|| wrong("it is not a list of files"))?;
                let link = headers.get("link").and_then(|link| link.to_str().ok());
                Ok((found, link.and_then(next_page)))
            };
            let (found, next) = self.persist(&page, cancelled, read)?;
            files.extend(found);
            // A list must not send the token elsewhere; `get` does not, but another host's list is not this repository's.
            let next = next.and_then(|next| url::join(&page, &next));
            match next.filter(|next| url::origin(next) == url::origin(endpoint)) {
                Some(next) => page = next,
                None => break,
            }
        }
        Ok(files)
    }

    /// The address of a file of a repository.
    pub(crate) fn file_url(&self, repository: &str, path: &str) -> String {
        let endpoint = &self.options.endpoint;
        format!(
            "{endpoint}/{repository}/resolve/main/{}",
            url::encode_path(path)
        )
    }
}

/// The files of one page. Files whose paths cannot be stored are left out.
fn parse(list: &Value) -> Option<Vec<RepositoryFile>> {
    let mut files = Vec::new();
    for entry in list.as_array()? {
        if entry["type"].as_str()? != "file" {
            continue;
        }
        let path = entry["path"].as_str()?;
        let lfs = &entry["lfs"];
        let sha256 = lfs["oid"].as_str().map(str::to_ascii_lowercase);
        let sha256 = sha256.map(|oid| {
            oid.strip_prefix("sha256:")
                .map(str::to_owned)
                .unwrap_or(oid)
        });
        let bytes = lfs["size"].as_u64().or_else(|| entry["size"].as_u64())?;
        if is_file_path(path) {
            files.push(RepositoryFile {
                path: path.to_owned(),
                bytes,
                sha256: sha256.filter(|sum| is_sha256(sum)),
            });
        }
    }
    Some(files)
}

/// Whether a text is a SHA-256 sum in hexadecimal digits.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The address of the next page in a `Link` header.
fn next_page(link: &str) -> Option<String> {
    link.split(',').find_map(|link| {
        let (target, relation) = link.split_once(';')?;
        let target = target.trim().strip_prefix('<')?.strip_suffix('>')?;
        relation.contains("rel=\"next\"").then(|| target.to_owned())
    })
}
