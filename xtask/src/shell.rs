//! The tree's root, and commands run in it.

use anyhow::{Context, Result, anyhow, bail};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The folder of the workspace.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is a folder of the workspace")
}

/// Cargo's target folder: that of the environment, or the default.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A command in the root.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Prints and runs a command. A non-zero exit status is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("{}: {status}", show(command));
    }
    Ok(())
}

/// Prints and runs a command, and returns its exit status.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    let shown = show(command);
    eprintln!("$ {shown}");
    command
        .status()
        .with_context(|| format!("cannot start {shown}"))
}

/// Runs a command and returns its stdout; prints its stderr only if it fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {shown}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{shown}: {}\n{}", output.status, complaint.trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("the output of {shown} is not UTF-8"))
}

/// Like [`output`], for a command that is killed if it takes longer than `patience`.
pub(crate) fn output_within(command: &mut Command, patience: Duration) -> Result<String> {
    let shown = show(command);
    let start = Instant::now();
    command.stdin(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = child
        .as_mut()
        .map_err(|error| anyhow!("cannot start {shown}: {error}"))?;
    // Both pipes are read to their ends, or the command could wait for room in one.
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let stdout = std::thread::spawn(move || text(stdout));
    let stderr = std::thread::spawn(move || text(stderr));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            bail!("it took more than {} s", patience.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let [stdout, stderr] = [stdout, stderr].map(|thread| thread.join().unwrap_or_default());
    if !status.success() {
        bail!("{shown}: {status}\n{}", stderr.trim_end());
    }
    Ok(stdout)
}

/// All that comes out of a pipe.
fn text(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn show(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy()));
    let mut line = words.join(" ");
    if line.len() > 200 {
        line.truncate(
            (0..=200)
                .rev()
                .find(|i| line.is_char_boundary(*i))
                .unwrap_or(0),
        );
        line.push_str(" ...");
    }
    line
}
