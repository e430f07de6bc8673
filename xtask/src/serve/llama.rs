//! llama.cpp's server, built from the sources that llama-cpp-python carries.

use crate::peers::{script, venv};
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
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let log = shell::target().join("llama-server/server.log");
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
    let folder = shell::target().join("llama-server");
    let pins = script::pins(&shell::root().join("xtask/peers/requirements.txt"))?;
    let pin = pins.iter().find(|pin| pin.starts_with("llama-cpp-python"));
    let pin = pin.context("xtask/peers/requirements.txt names no llama-cpp-python")?;
    let flags = venv::build_flags(venv::Build::Whole);
    let binary = folder.join("build/bin/llama-server");
    let note = folder.join("installed");
    let wanted = format!("{pin}\n{flags}");
    let version = format!("llama-server of {}", pin.replace("==", " "));
    if binary.exists() && std::fs::read_to_string(&note).is_ok_and(|found| found == wanted) {
        return Ok((binary, version));
    }
    eprintln!("building llama-server from the sources of {pin} (minutes)");
    let list = shell::root().join("xtask/peers/requirements-llama-server.txt");
    let python = venv::make(
        "llama-server/venv",
        &list,
        &script::pins(&list)?,
        "",
        |_| {},
    )?;
    let mut download = shell::command(&python);
    download.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        "llama-cpp-python",
    ]);
    shell::run(download.arg(pin).arg("--dest").arg(&folder))?;
    let name = pin.replace("==", "-").replacen('-', "_", 2);
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut unpack = shell::command("tar");
    shell::run(unpack.arg("xzf").arg(archive).arg("-C").arg(&folder))?;
    let cmake = python.with_file_name("cmake");
    let build = folder.join("build");
    let path = std::env::var("PATH").unwrap_or_default();
    let bin = python.parent().expect("an interpreter has a folder");
    let path = format!("{}:{path}", bin.display());
    let mut configure = shell::command(&cmake);
    let source = folder.join(name).join("vendor/llama.cpp");
    configure.arg("-S").arg(source).arg("-B").arg(&build);
    configure.args(["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]);
    let off = [
        "BUILD_SHARED_LIBS",
        "LLAMA_BUILD_TESTS",
        "LLAMA_BUILD_EXAMPLES",
        "LLAMA_BUILD_APP",
    ];
    configure.args(off.map(|option| format!("-D{option}=OFF")));
    configure.args(["-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"]);
    configure.args(flags.split_whitespace()).env("PATH", &path);
    shell::run(&mut configure)?;
    let mut compile = shell::command(&cmake);
    compile.arg("--build").arg(&build).env("PATH", &path);
    shell::run(compile.args(["--target", "llama-server"]))?;
    std::fs::write(&note, wanted)?;
    Ok((binary, version))
}
