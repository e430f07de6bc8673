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
        return run(folder.as_ref(), None);
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = run(&here.join("tests/onnx_node/own"), Some(0));
    let Some(official) = common::outside_fixture("onnx-node") else {
        return own;
    };
    match run(&official, Some(MAX_REFUSED)) {
        ExitCode::SUCCESS => own,
        failure => failure,
    }
}

/// Tests of the outside fixtures that are refused: sequences as inputs or outputs.
const MAX_REFUSED: usize = 3;

/// Runs a folder of which at most `refusals` tests are refused; without that number, also prints the tests that pass.
fn run(folder: &Path, refusals: Option<usize>) -> ExitCode {
    let counts = suite::run_all(folder, |name, outcome| {
        if refusals.is_none() || !matches!(outcome, Outcome::Passed) {
            println!("{name} {outcome}");
        }
    });
    match counts {
        Ok([passed, wrong, refused]) => {
            println!("{passed} passed, {wrong} wrong, {refused} refused");
            let broken = wrong > 0 || passed == 0 || refusals.is_some_and(|most| refused > most);
            ExitCode::from(u8::from(broken))
        }
        Err(error) => {
            eprintln!("error: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}
