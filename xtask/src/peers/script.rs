//! The Python scripts of the comparisons, each with the list of packages that it runs with.

use super::venv;
use crate::shell;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A script and its requirements.
///
/// The environments are the same folder, so a package that one list lacks may be there because of another list. The
/// tests compare what a script imports with its own list.
pub(super) struct Script {
    /// The script's file, from the root of the tree.
    file: &'static str,
    /// Its list of requirements, from the root of the tree.
    requirements: &'static str,
}

pub(super) const IK_BENCH: Script = Script {
    file: "xtask/peers/ik_bench.py",
    requirements: "xtask/peers/requirements-ik.txt",
};
pub(super) const MISTRALRS_BENCH: Script = Script {
    file: "xtask/peers/mistralrs_bench.py",
    requirements: "xtask/peers/requirements-mistralrs.txt",
};
pub(super) const CONVERT: Script = Script {
    file: "xtask/peers/convert.py",
    requirements: "xtask/peers/requirements.txt",
};
pub(super) const OPENVINO_BENCH: Script = Script {
    file: "xtask/peers/openvino_bench.py",
    requirements: "xtask/peers/requirements-openvino.txt",
};
pub(super) const LLAMA_LOOKUP: Script = Script {
    file: "xtask/peers/llama_lookup.py",
    requirements: "xtask/peers/requirements.txt",
};
pub(super) const TRUTH: Script = Script {
    file: "xtask/peers/truth.py",
    requirements: "xtask/peers/requirements-truth.txt",
};
pub(super) const TORCH_BENCH: Script = Script {
    file: "xtask/peers/torch_bench.py",
    requirements: "xtask/peers/requirements-torch.txt",
};
pub(super) const ONNX_BENCH: Script = Script {
    file: "xtask/peers/onnx_bench.py",
    requirements: "xtask/peers/requirements-onnx.txt",
};
/// Runs with the exporter's requirements, because it loads models as the exporter does.
pub(super) const GREEDY: Script = Script {
    file: "xtask/peers/greedy.py",
    requirements: "python/requirements.txt",
};
pub(super) const ONNX_MODELS: Script = Script {
    file: "crates/kvark/tests/onnx/generate.py",
    requirements: "crates/kvark/tests/onnx/requirements.txt",
};
pub(super) const EMBEDDINGS: Script = Script {
    file: "crates/kvark/tests/embed/generate.py",
    requirements: "crates/kvark/tests/embed/requirements.txt",
};

impl Script {
    /// A command that runs the script in an environment with its requirements, which is made if need be.
    pub(super) fn command(&self) -> Result<Command> {
        let mut command = shell::command(self.python()?);
        command.arg(shell::root().join(self.file));
        Ok(command)
    }

    /// The interpreter of that environment.
    pub(super) fn python(&self) -> Result<PathBuf> {
        let list = shell::root().join(self.requirements);
        venv::python(&list, &pins(&list)?)
    }
}

/// The lines of a list that name packages, with those of the lists that it includes.
pub(crate) fn pins(list: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(list).with_context(|| list.display().to_string())?;
    let mut pins = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(included) = line.strip_prefix("-r ") {
            pins.extend(self::pins(&list.with_file_name(included))?);
        } else if !line.is_empty() && !line.starts_with('#') {
            pins.push(line.to_owned());
        }
    }
    Ok(pins)
}

#[cfg(test)]
mod tests;
