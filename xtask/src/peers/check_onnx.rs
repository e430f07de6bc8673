//! `cargo xtask check-onnx`: ONNX decoders in kvark against ONNX Runtime.

use super::script;
use crate::shell;
use anyhow::Result;
use clap::Args;

/// Check ONNX decoders: every architecture and cache form that mobius builds, in kvark against ONNX Runtime
#[derive(Args)]
#[command(
    after_help = "Builds decoders with random weights into target/check-onnx, records what ONNX Runtime computes with them, and \
runs the tests of crates/kvark/tests/onnx.rs on all of it: logits must be ONNX Runtime's within 1e-4, fed at once, in chunks, \
one by one and after a rewind. KVARK_PEERS_VENV names a virtual environment that has crates/kvark/tests/onnx/requirements.txt; \
else one is made under target/.

Examples:
  cargo xtask check-onnx
  KVARK_PEERS_VENV=.venv cargo xtask check-onnx"
)]
pub(crate) struct CheckOnnx {}

impl CheckOnnx {
    pub(crate) fn execute(self) -> Result<()> {
        let folder = shell::target().join("check-onnx");
        let mut generate = script::ONNX_MODELS.command()?;
        shell::run(generate.arg("--full").arg(&folder))?;
        let mut tests = shell::command("cargo");
        tests.args(["test", "--package", "kvark", "--test", "onnx"]);
        shell::run(tests.env("KVARK_TEST_ONNX", &folder))
    }
}
