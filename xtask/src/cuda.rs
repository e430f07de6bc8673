//! `cargo xtask check-cuda` and `test-cuda`: the CUDA kernels without a GPU and with one.

use crate::shell;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};

/// NVRTC of the CUDA version whose functions the backend is built for.
const NVRTC: &str = "nvidia-cuda-nvrtc==13.0.88";

/// The tests that need a GPU: of the backend, and of everything above it.
const TESTS: [&str; 5] = ["device", "rows", "load", "ops", "two_devices"];

/// The files of the repository that these tests read.
const FILES: [&str; 3] = [
    "crates/import/tests/fixtures/decoder",
    "crates/import/tests/fixtures/assistant",
    "training/eagle3",
];

/// Compile all CUDA kernels for every supported architecture; needs no GPU
#[derive(Args)]
#[command(
    after_help = "Installs the PyPI package nvidia-cuda-nvrtc (90 MB) under target/nvrtc, unless KVARK_NVRTC names the library \
libnvrtc.so, and runs crates/cuda/tests/kernels.rs: every kernel must compile for sm_80, sm_90 and sm_100 without warnings, and \
none may spill more than a few registers.

Examples:
  cargo xtask check-cuda
  KVARK_NVRTC=/usr/local/cuda/lib64/libnvrtc.so.13 cargo xtask check-cuda"
)]
pub(crate) struct CheckCuda {
    /// Only install NVRTC
    #[arg(long)]
    install: bool,
}

impl CheckCuda {
    pub(crate) fn execute(self) -> Result<()> {
        let library = match std::env::var_os("KVARK_NVRTC").filter(|path| !path.is_empty()) {
            Some(path) => PathBuf::from(path),
            None => install()?,
        };
        if self.install {
            return Ok(());
        }
        let mut tests = shell::command("cargo");
        // The whole workspace, so that nothing is compiled once more after its tests.
        tests.args(["test", "--release", "--workspace", "--test", "kernels"]);
        shell::run(tests.env("KVARK_NVRTC", library))
    }
}

/// NVRTC's library, installed under target/ if it is not there.
fn install() -> Result<PathBuf> {
    let venv = shell::target().join("nvrtc");
    if let Some(library) = find(&venv) {
        return Ok(library);
    }
    shell::run(shell::command("python3").args(["-m", "venv"]).arg(&venv))?;
    let mut pip = shell::command(venv.join("bin/python"));
    shell::run(pip.args(["-m", "pip", "install", "--quiet", NVRTC]))?;
    find(&venv).with_context(|| format!("{NVRTC} holds no libnvrtc.so.13"))
}

/// The library in a virtual environment.
fn find(venv: &Path) -> Option<PathBuf> {
    let pythons = std::fs::read_dir(venv.join("lib")).ok()?.flatten();
    let inside = "site-packages/nvidia/cu13/lib/libnvrtc.so.13";
    let mut paths = pythons.map(|python| python.path().join(inside));
    paths.find(|path| path.exists())
}

/// Test the CUDA backend on a GPU: conformance suites, random histories and equal bits
#[derive(Args)]
#[command(
    after_help = "Runs crates/cuda/tests/device.rs, rows.rs, load.rs and ops.rs, and crates/kvark/tests/two_devices, which then fail without a GPU. \
KVARK_TEST_MODEL names a SmolLM2 file; without it, tiny models are run only. With --carry, the tests and the files that they read are put into a \
folder with a script: copy the folder to a machine with a GPU and NVRTC, and start run.sh there.

Examples:
  cargo xtask test-cuda
  cargo xtask test-cuda --histories 10000
  cargo xtask test-cuda --carry target/cuda-tests"
)]
pub(crate) struct TestCuda {
    /// Number of random histories of cache operations
    #[arg(long, value_name = "N", default_value_t = 400)]
    histories: u32,
    /// Put the tests into this folder instead of running them
    #[arg(long, value_name = "DIR")]
    carry: Option<PathBuf>,
}

impl TestCuda {
    pub(crate) fn execute(self) -> Result<()> {
        let histories = self.histories.to_string();
        let mut cargo = shell::command("cargo");
        cargo.args(["test", "--release", "--package", "kvark-cuda"]);
        cargo.args(["--package", "kvark"]);
        cargo.args(TESTS.iter().flat_map(|test| ["--test", test]));
        let Some(folder) = self.carry else {
            cargo
                .env("KVARK_REQUIRE_CUDA", "1")
                .env("KVARK_HISTORIES", histories);
            return shell::run(&mut cargo);
        };
        let messages = shell::output(cargo.args(["--no-run", "--message-format=json"]))?;
        let named = |line: &str| {
            let (_, rest) = line.split_once("\"executable\":\"")?;
            Some(PathBuf::from(rest.split_once('"')?.0))
        };
        let binaries: Vec<PathBuf> = messages.lines().filter_map(named).collect();
        if binaries.len() != TESTS.len() {
            bail!("cargo named {} test binaries", binaries.len());
        }
        std::fs::create_dir_all(&folder)?;
        for files in FILES {
            let to = folder.join(files);
            std::fs::create_dir_all(&to)?;
            for file in std::fs::read_dir(shell::root().join(files))? {
                let file = file?;
                std::fs::copy(file.path(), to.join(file.file_name()))?;
            }
        }
        let mut script = "#!/bin/sh\nset -e\ncd \"$(dirname \"$0\")\"\n".to_owned();
        script += &format!("export KVARK_REQUIRE_CUDA=1 KVARK_HISTORIES={histories}\n");
        script += "export KVARK_REPOSITORY=\"$PWD\" KVARK_CUBIN=\"$PWD/cubin\"\n";
        for binary in binaries {
            let name = binary.file_name().context("a file")?;
            std::fs::copy(&binary, folder.join(name))?;
            script += &format!("./{} --nocapture\n", name.to_string_lossy());
        }
        std::fs::write(folder.join("run.sh"), script)?;
        println!("{}: start run.sh on the other machine", folder.display());
        Ok(())
    }
}
