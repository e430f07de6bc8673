//! Checks of `kvark serve` from outside, with real clients.

pub(crate) mod agents;
pub(crate) mod bench;
pub(crate) mod check;
mod llama;
pub(crate) mod llama_tests;
mod load;
mod process;
pub(crate) mod soak;

use crate::peers::{script, venv};
use crate::shell;
use anyhow::Result;
use std::path::PathBuf;

/// Interpreter of the environment with a list of `python/clients`.
fn python(list: &str) -> Result<PathBuf> {
    python_in("serve-venv", list)
}

/// The same in an environment of its own.
fn python_in(folder: &str, list: &str) -> Result<PathBuf> {
    let list = shell::root().join("python/clients").join(list);
    venv::make(folder, &list, &script::pins(&list)?, "", |_| {})
}
