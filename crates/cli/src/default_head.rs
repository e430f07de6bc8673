//! The Eagle3 head of the default model: it is part of the command, and stored beside the model on first use.

use anyhow::{Context, Result};
use kvark::catalogue::{self, ModelStore};
use std::fs;
use std::path::{Path, PathBuf};

/// Made by `training/eagle3`.
static DEFAULT_HEAD: &[u8] =
    include_bytes!("../../../training/eagle3/smollm2-135m-instruct.eagle3.gguf");

/// The draft head that is a sidecar file of a model, `NAME.eagle3.gguf`. The default model's is written if it is
/// missing.
pub(crate) fn beside(model: &Path) -> Result<Option<PathBuf>> {
    let head = model.with_extension("eagle3.gguf");
    let default = ModelStore::from_env()?.model_path(catalogue::default_entry());
    if !head.is_file() && model == default {
        store(&head).with_context(|| format!("cannot store {}", head.display()))?;
    }
    Ok(head.is_file().then_some(head))
}

/// Removes the head of the default model if it is the stored one. The model is removed, so a failure only leaves a file behind.
pub(crate) fn remove_beside(model: &Path) {
    let head = model.with_extension("eagle3.gguf");
    if fs::read(&head).is_ok_and(|bytes| bytes == DEFAULT_HEAD) {
        _ = fs::remove_file(head);
    }
}

/// Writes the file under another name first, so that no other process sees a part of it.
fn store(head: &Path) -> std::io::Result<()> {
    let partial = head.with_extension(format!("{}.part", std::process::id()));
    let stored = fs::write(&partial, DEFAULT_HEAD).and_then(|()| fs::rename(&partial, head));
    if stored.is_err() {
        _ = fs::remove_file(&partial);
    }
    stored
}
