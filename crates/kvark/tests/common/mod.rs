//! Model files and fixtures that are not checked in. A test that needs one is skipped without it and says so.
#![allow(dead_code, reason = "each test uses some of these")]

use std::io::Write;
use std::path::{Path, PathBuf};

/// Reports a skipped test. Writes past the test harness' capture, so that a run shows what it left out.
pub(crate) fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// The file or folder that an environment variable names.
pub(crate) fn named_by(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty());
    if path.is_none() {
        skipped(&format!("{variable} is not set"));
    }
    path.map(PathBuf::from)
}

/// A folder of the outside fixtures: of `KVARK_FIXTURES`, or of `shared/fixtures` next to the repository.
pub(crate) fn outside_fixture(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    let folder = std::env::var_os("KVARK_FIXTURES").map_or(beside, PathBuf::from);
    let folder = folder.join(name);
    if !folder.exists() {
        skipped(&format!("{} does not exist", folder.display()));
        return None;
    }
    Some(folder)
}
