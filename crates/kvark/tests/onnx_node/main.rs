//! Models with a truth beside them: ONNX's node tests of `../shared/fixtures`, when they are there, and our own, which
//! `own/generate.py` made with ONNX Runtime; or those of the folder that `KVARK_ONNX_NODE` names.
//!
//! Without a harness, so that `cargo xtask onnx-node` shows nothing but a line for each test and the count.
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

/// Runs a folder; `all` shows the tests that pass too.
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
