//! `cargo xtask test`: every test, with what they need.

use crate::peers::{script, venv};
use crate::{model, shell};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// Run every test: units, properties, fixtures, conformance, layers, documentation, and those on a real model
#[derive(Args)]
#[command(
    after_help = "The tests on a real model use SmolLM2-135M-Instruct. `kvark pull` fetches it unless it is there or \
--model or KVARK_TEST_MODEL names a copy. The tests of the Python module run in a virtual environment that this task makes \
under target/. Without a network these tests are skipped and the others run."
)]
pub(crate) struct Test {
    /// A copy of SmolLM2-135M-Instruct (GGUF)
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
}

/// Names the interpreter of the module's tests.
const PYTHON_VARIABLE: &str = "KVARK_TEST_PYTHON";

/// The interpreter of an environment with what the module's tests need.
fn python() -> Result<PathBuf> {
    let list = shell::root().join("python/tests/requirements.txt");
    venv::make("python-venv", &list, &script::pins(&list)?, "", |_| {})
}

impl Test {
    pub(crate) fn execute(self) -> Result<()> {
        let cargo_test = || {
            let mut tests = shell::command("cargo");
            tests.args(["test", "--workspace", "--release"]);
            tests
        };
        // The tests' build makes the command too; a build of its own would compile most crates once more.
        shell::run(cargo_test().arg("--no-run"))?;
        let mut tests = cargo_test();
        let built = || Ok(shell::target().join("release/kvark"));
        match model::find_with(self.model, built) {
            Ok(path) => {
                tests.env(model::VARIABLE, path);
            }
            Err(model::Missing::Named(error)) => return Err(error),
            Err(model::Missing::NotFetched(error)) => {
                eprintln!("no model, so the tests that need one are skipped: {error:#}");
                tests.env_remove(model::VARIABLE);
            }
        }
        match python() {
            Ok(path) => {
                tests.env(PYTHON_VARIABLE, path);
            }
            Err(error) => {
                eprintln!(
                    "no Python environment, so the tests of the module are skipped: {error:#}"
                );
                tests.env_remove(PYTHON_VARIABLE);
            }
        }
        shell::run(&mut tests)
    }
}
