//! ONNX node tests: models with inputs and expected outputs. Runs those of ONNX, if they are among the outside fixtures, and
//! our own, which `own/generate.py` makes with ONNX Runtime; or those of the folder that `KVARK_ONNX_NODE` names.
//!
//! Has no test harness, so that `cargo xtask onnx-node` prints only a line for each test and the counts.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to a terminal"
)]

#[path = "../common/mod.rs"]
mod common;
mod suite;

use std::path::Path;
use std::process::ExitCode;
use suite::Outcome;

fn main() -> ExitCode {
    if let Some(folder) = std::env::var_os("KVARK_ONNX_NODE") {
        return run(folder.as_ref(), true);
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = run(&here.join("tests/onnx_node/own"), false);
    let Some(official) = common::outside_fixture("onnx-node") else {
        return own;
    };
    match run(&official, false) {
        ExitCode::SUCCESS => own,
        failure => failure,
    }
}

/// Runs a folder; `all` also prints the tests that pass.
fn run(folder: &Path, all: bool) -> ExitCode {
    let counts = suite::run_all(folder, |name, outcome| {
        if all || !matches!(outcome, Outcome::Passed) {
            println!("{name} {outcome}");
        }
    });
    match counts {
        Ok([passed, failed, skipped]) => {
            println!("{passed} passed, {failed} failed, {skipped} skipped");
            ExitCode::from(u8::from(failed > 0 || passed == 0))
        }
        Err(error) => {
            eprintln!("error: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}
