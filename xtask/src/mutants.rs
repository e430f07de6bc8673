//! `cargo xtask mutants`: does a test fail when a line of the cache changes?

use crate::shell;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};

/// The version that is installed where there is none.
const VERSION: &str = "27.1.0";
/// The part of all mutants that tests must catch.
const TARGET: f64 = 0.95;

/// The exit statuses of cargo-mutants that have a result: every mutant caught, some missed, some timed out.
const COMPLETE: [i32; 3] = [0, 2, 3];

/// Change the cache's code in small ways and count the changes that no test notices (slow; not part of the tests)
#[derive(Args)]
pub(crate) struct Mutants {
    /// Shard of the mutants, such as 3/6 for the fourth sixth [default: 0/6, or all of them with --file]
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Only files whose path contains this text
    #[arg(long, value_name = "TEXT")]
    file: Option<String>,
}

impl Mutants {
    pub(crate) fn execute(self) -> Result<()> {
        let tool = tool()?;
        let out = shell::target().join("mutants");
        let mut run = shell::command("cargo");
        run.env("PATH", path_with(&tool)?);
        // The dependencies stay built between runs: cargo-mutants copies the tree to a new folder each time.
        run.env("CARGO_TARGET_DIR", out.join("target"));
        run.args(["mutants", "--package", "kvark-kv", "--baseline", "run"]);
        run.args(["--jobs", "1", "--profile", "mutants", "--output"]);
        run.arg(&out);
        if let Some(file) = &self.file {
            run.args(["--file", &format!("**/*{file}*")]);
        }
        match (self.shard, self.file) {
            (Some(shard), _) => run.args(["--shard", &shard]),
            (None, None) => run.args(["--shard", "0/6"]),
            (None, Some(_)) => &mut run,
        };
        let status = shell::status(run.args(["--", "--lib", "--tests"]))?;
        if !status.code().is_some_and(|code| COMPLETE.contains(&code)) {
            bail!("cargo-mutants found no result: {status}");
        }
        let list = |name: &str| -> Result<usize> {
            let path = out.join("mutants.out").join(name);
            let text = std::fs::read_to_string(&path);
            Ok(text
                .with_context(|| path.display().to_string())?
                .lines()
                .count())
        };
        let caught = list("caught.txt")? + list("timeout.txt")?;
        let missed = list("missed.txt")?;
        let share = caught as f64 / (caught + missed).max(1) as f64;
        println!(
            "{caught} of {} mutants caught: {:.1} %",
            caught + missed,
            100.0 * share
        );
        if share < TARGET {
            bail!("fewer than {:.0} % were caught", 100.0 * TARGET);
        }
        Ok(())
    }
}

/// The folder of cargo-mutants' program, which is installed under target/ where it is missing.
fn tool() -> Result<PathBuf> {
    let root = shell::target().join("tools");
    let bin = root.join("bin");
    if !bin.join("cargo-mutants").exists() {
        let mut install = shell::command("cargo");
        install.args(["install", "--locked", "cargo-mutants", "--version", VERSION]);
        shell::run(install.arg("--root").arg(&root))?;
    }
    Ok(bin)
}

/// The search path with this folder in front.
fn path_with(folder: &Path) -> Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_path_buf()).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(folders)?)
}
