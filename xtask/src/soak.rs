//! `cargo xtask soak`: the long forms of tests that the suite runs in a short one.

use crate::{model, shell};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// Run the long tests: 100,000 random histories of every kind of cache, and speculative decoding on 100 prompts
#[derive(Args)]
pub(crate) struct Soak {
    /// A copy of SmolLM2-135M-Instruct (GGUF)
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Histories of every kind of cache
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    histories: u32,
    /// Prompts of speculative decoding, with 128 tokens each
    #[arg(long, value_name = "N", default_value_t = 100)]
    prompts: u32,
}

impl Soak {
    pub(crate) fn execute(self) -> Result<()> {
        let model = model::find(self.model)?;
        let test = |package: &str, target: &str| {
            let mut tests = shell::command("cargo");
            tests.args(["test", "--release", "--package", package, "--test", target]);
            tests
        };
        let histories = self.histories.to_string();
        shell::run(test("kvark-kv", "oracle").env("KVARK_HISTORIES", histories))?;
        let mut speculation = test("kvark", "speculative");
        speculation.env(model::VARIABLE, model);
        shell::run(speculation.env("KVARK_SPEC_PROMPTS", self.prompts.to_string()))
    }
}
