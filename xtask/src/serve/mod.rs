//! Checks of `kvark serve` from outside, with real clients.

pub(crate) mod agents;
pub(crate) mod bench;
pub(crate) mod check;
mod llama;
mod load;
mod process;
pub(crate) mod soak;

use crate::peers::{script, venv};
use crate::shell;
use anyhow::Result;
use std::path::PathBuf;

/// Interpreter of the environment with a list of `python/clients`.
fn python(list: &str) -> Result<PathBuf> {
    let list = shell::root().join("python/clients").join(list);
    venv::make("serve-venv", &list, &script::pins(&list)?, "", |_| {})
}
