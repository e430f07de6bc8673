//! The model that tests and comparisons run on.

use crate::shell;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Names the model's file; the tests read it too.
pub(crate) const VARIABLE: &str = "KVARK_TEST_MODEL";

/// Why there is no model.
#[derive(Debug)]
pub(crate) enum Missing {
    /// The caller named a file that is not there.
    Named(anyhow::Error),
    /// No file was named, and the default one could not be downloaded.
    NotFetched(anyhow::Error),
}

impl From<Missing> for anyhow::Error {
    fn from(missing: Missing) -> anyhow::Error {
        match missing {
            Missing::Named(error) | Missing::NotFetched(error) => error,
        }
    }
}

/// The file that the caller or [`VARIABLE`] names, or the default model, downloaded if needed.
pub(crate) fn find(named: Option<PathBuf>) -> Result<PathBuf, Missing> {
    find_with(named, kvark)
}

/// Like [`find`], with the kvark that `kvark` gives.
pub(crate) fn find_with(
    named: Option<PathBuf>,
    kvark: impl FnOnce() -> Result<PathBuf>,
) -> Result<PathBuf, Missing> {
    let variable = || std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
    match named.or_else(|| variable().map(PathBuf::from)) {
        Some(path) => path
            .canonicalize()
            .with_context(|| format!("no model at {}", path.display()))
            .map_err(Missing::Named),
        None => kvark()
            .and_then(|kvark| fetch(&kvark))
            .map_err(Missing::NotFetched),
    }
}

/// The release build of kvark.
pub(crate) fn kvark() -> Result<PathBuf> {
    shell::run(shell::command("cargo").args(["build", "--release", "--package", "kvark-cli"]))?;
    Ok(shell::target().join("release/kvark"))
}

/// Downloads kvark's default model if needed, and returns its path.
fn fetch(kvark: &Path) -> Result<PathBuf> {
    shell::run(shell::command(kvark).arg("pull"))?;
    let list = shell::output(shell::command(kvark).args(["list", "--json"]))?;
    let list: Value = serde_json::from_str(&list)?;
    let path = list["models"][0]["path"].as_str().map(PathBuf::from);
    path.with_context(|| format!("kvark list names no default model: {list}"))
}
