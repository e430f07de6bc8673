//! The tests of `python/tests`, on the library that this build made. `cargo xtask test` makes the interpreter's environment
//! and names it in `KVARK_TEST_PYTHON`; without it they are skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Files of tests that need no PyTorch.
const TESTS: [&str; 4] = [
    "test_kvark.py",
    "test_sessions.py",
    "test_inference.py",
    "test_routing.py",
];

/// Makes a package of the checked-in Python files and the built library, and returns its parent folder.
fn package() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.with_file_name(format!(
        "{}_kvark{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    ));
    let parent = tests
        .ancestors()
        .nth(2)
        .unwrap()
        .join(format!("python-package-{}", std::process::id()));
    let folder = parent.join("kvark");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/kvark");
    for part in ["", "replicas"] {
        std::fs::create_dir_all(folder.join(part)).unwrap();
        for entry in std::fs::read_dir(sources.join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                std::fs::copy(&path, folder.join(part).join(path.file_name().unwrap())).unwrap();
            }
        }
    }
    std::fs::copy(&built, folder.join("_kvark.abi3.so"))
        .unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    parent
}

#[test]
fn python_tests_pass() {
    let Some(python) = std::env::var_os("KVARK_TEST_PYTHON").filter(|path| !path.is_empty()) else {
        use std::io::Write;
        let note = b"skipped: KVARK_TEST_PYTHON names no interpreter\n";
        _ = std::io::stderr().write_all(note);
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let package = package();
    let tests = Command::new(python)
        .args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"])
        .args(TESTS.map(|name| root.join("python/tests").join(name)))
        // `-m` puts the folder in front of the path: it must have no package of that name.
        .current_dir(&root)
        .env("PYTHONPATH", &package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    std::fs::remove_dir_all(&package).unwrap();
    let text = String::from_utf8_lossy(&tests.stdout);
    let complaint = String::from_utf8_lossy(&tests.stderr);
    // Skipped tests pass too: pytest has its own status for a file without any other.
    assert!(tests.status.success(), "{text}{complaint}");
}
