//! `cargo xtask check-export`: the exporter, and its export of a real model against PyTorch.

use super::script;
use crate::{model, shell};
use anyhow::{Context, Result};
use clap::Args;
use std::path::PathBuf;

/// Check the exporter: its own tests, then an export of SmolLM2 in kvark against PyTorch
#[derive(Args)]
#[command(
    after_help = "Runs python/tests, exports the model to target/check-export/model.pt2, has PyTorch continue some prompts \
greedily in float32, and runs the tests of crates/kvark/tests/exported.rs on all of it: every cache must give the logits of \
a cold run bit for bit, and greedy tokens must be PyTorch's. KVARK_PEERS_VENV names a virtual environment that has \
python/requirements.txt; else one is made under target/.

Examples:
  cargo xtask check-export
  KVARK_PEERS_VENV=.venv cargo xtask check-export --model smollm2.gguf"
)]
pub(crate) struct CheckExport {
    /// Model (GGUF file or Hugging Face folder) [default: SmolLM2-135M-Instruct]
    #[arg(short, long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Number of tokens to generate per prompt
    #[arg(short = 'n', long, value_name = "N", default_value_t = 48)]
    predict: usize,
}

impl CheckExport {
    pub(crate) fn execute(self) -> Result<()> {
        let package = shell::root().join("python");
        let python = script::GREEDY.python()?;
        let mut pytest = shell::command(&python);
        shell::run(
            pytest
                .args(["-m", "pytest", "--quiet"])
                .env("PYTHONPATH", &package),
        )?;

        let model = model::find(self.model)?;
        let folder = shell::target().join("check-export");
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let (exported, tokens) = (folder.join("model.pt2"), folder.join("tokens.json"));
        let mut export = shell::command(&python);
        export.args(["-m", "kvark_export"]).arg(&model);
        shell::run(export.arg("-o").arg(&exported).env("PYTHONPATH", &package))?;
        let mut greedy = script::GREEDY.command()?;
        greedy.arg(&model).arg(self.predict.to_string());
        greedy.arg(&tokens);
        shell::run(greedy.env("PYTHONPATH", &package))?;

        let mut tests = shell::command("cargo");
        tests.args(["test", "--release", "--workspace", "--test", "exported"]);
        tests.env("KVARK_TEST_PT2", &exported);
        shell::run(tests.env("KVARK_TEST_PT2_TOKENS", &tokens))
    }
}
