//! ONNX's node tests: those of the folder that `KVARK_ONNX_NODE` names, or of `../shared/fixtures`, when they are there.
//!
//! Without a harness, so that `cargo xtask onnx-node` shows nothing but a line for each test and the count.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to a terminal"
)]

mod suite;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use suite::Outcome;

fn main() -> ExitCode {
    let named = std::env::var_os("KVARK_ONNX_NODE").map(PathBuf::from);
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/onnx-node");
    let whole = named.is_some();
    let folder = named.unwrap_or(fixtures);
    if !whole && !folder.is_dir() {
        eprintln!("skipped: ../shared/fixtures/onnx-node is not here");
        return ExitCode::SUCCESS;
    }
    let counts = suite::run_all(&folder, |name, outcome| {
        if whole || !matches!(outcome, Outcome::Passed) {
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
