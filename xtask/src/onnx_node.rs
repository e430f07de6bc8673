//! `cargo xtask onnx-node`: ONNX's own node tests.

use crate::shell;
use anyhow::{Context, Result};
use clap::Args;
use std::path::PathBuf;

/// Run ONNX's node tests (`*/model.onnx`, `*/test_data_set_*/*.pb`) on the CPU backend
#[derive(Args)]
#[command(
    after_help = "Prints a line for each test and at last `N passed, N wrong, N refused`; fails when a test is wrong.

Examples:
  cargo xtask onnx-node ../shared/fixtures/onnx-node"
)]
pub(crate) struct OnnxNode {
    /// The folder of tests
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl OnnxNode {
    pub(crate) fn execute(self) -> Result<()> {
        let folder =
            std::path::absolute(&self.folder).with_context(|| self.folder.display().to_string())?;
        let mut tests = shell::command("cargo");
        tests.args(["test", "--release", "--quiet", "--workspace"]);
        tests.args(["--test", "onnx_node"]);
        shell::run(tests.env("KVARK_ONNX_NODE", folder))
    }
}
