//! `cargo xtask test`: every test, with what they need.

use crate::{model, shell};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// Run every test: units, properties, fixtures, conformance, layers, documentation, and those on a real model
#[derive(Args)]
#[command(
    after_help = "The tests on a real model use SmolLM2-135M-Instruct. `kvark pull` fetches it unless it is there or \
--model or KVARK_TEST_MODEL names a copy. Without a network these tests are skipped and the others run."
)]
pub(crate) struct Test {
    /// A copy of SmolLM2-135M-Instruct (GGUF)
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
}

impl Test {
    pub(crate) fn execute(self) -> Result<()> {
        let mut tests = shell::command("cargo");
        tests.args(["test", "--workspace", "--release"]);
        match model::find(self.model) {
            Ok(path) => {
                tests.env(model::VARIABLE, path);
            }
            Err(model::Missing::Named(error)) => return Err(error),
            Err(model::Missing::NotFetched(error)) => {
                eprintln!("no model, so the tests that need one are skipped: {error:#}");
                tests.env_remove(model::VARIABLE);
            }
        }
        shell::run(&mut tests)
    }
}
