//! `cargo xtask fuzz`: runs every fuzz target for a limited time.

use crate::{model, shell};
use anyhow::{Context, Result, bail};
use clap::Args;

/// Fuzz every reader for a limited time (needs a nightly compiler and cargo-fuzz)
#[derive(Args)]
pub(crate) struct Fuzz {
    /// Time per target
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    /// Only these targets
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

impl Fuzz {
    pub(crate) fn execute(self) -> Result<()> {
        let folder = shell::root().join("fuzz");
        let known = targets(&std::fs::read_to_string(folder.join("Cargo.toml"))?)?;
        if let Some(unknown) = self.targets.iter().find(|name| !known.contains(name)) {
            bail!("no fuzz target {unknown}: there are {}", known.join(", "));
        }
        let fuzz = |arguments: &[&str]| {
            let mut command = shell::command("cargo");
            command.args(["+nightly", "fuzz"]).args(arguments);
            command
        };
        if shell::output(&mut fuzz(&["--version"])).is_err() {
            bail!(
                "cargo-fuzz is not installed; to install it:\n  rustup toolchain install nightly\n  cargo install cargo-fuzz"
            );
        }
        shell::run(
            shell::command("python3")
                .arg("seeds.py")
                .current_dir(&folder),
        )?;
        for target in known {
            if !self.targets.is_empty() && !self.targets.contains(&target) {
                continue;
            }
            let mut run = fuzz(&["run", &target, "--"]);
            // Grammars are compiled for the tokenizer of a real model.
            if target == "grammar" {
                run.env(model::VARIABLE, model::find(None)?);
            }
            run.arg(format!("-max_total_time={}", self.seconds));
            let dictionary = folder.join(format!("{target}.dict"));
            if dictionary.exists() {
                run.arg(format!("-dict={}", dictionary.display()));
            }
            shell::run(&mut run)?;
        }
        Ok(())
    }
}

/// The names of a manifest's programs.
fn targets(manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = manifest.parse().context("fuzz/Cargo.toml")?;
    let programs = manifest.get("bin").and_then(toml::Value::as_array);
    let names = programs.into_iter().flatten().filter_map(|program| {
        let name = program.get("name")?.as_str()?;
        Some(name.to_owned())
    });
    Ok(names.collect())
}
