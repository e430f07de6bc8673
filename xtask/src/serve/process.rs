//! `ServerProcess`: a `kvark serve` on a free port.

use crate::{model, shell};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// A running server. It is killed when it is dropped.
pub(super) struct ServerProcess {
    child: Child,
    /// The address, as `http://127.0.0.1:PORT`.
    pub(super) address: String,
    /// The file that its log goes to.
    pub(super) log: PathBuf,
}

impl ServerProcess {
    /// Builds kvark and starts a server of the test model. Waits until it listens.
    pub(super) fn start(folder: &Path, name: &str, flags: &[&str]) -> Result<ServerProcess> {
        ServerProcess::start_with(folder, name, &model::find(None)?, flags)
    }

    /// Builds kvark and starts a server of this model. Waits until it listens.
    pub(super) fn start_with(
        folder: &Path,
        name: &str,
        model: &Path,
        flags: &[&str],
    ) -> Result<ServerProcess> {
        let kvark = model::kvark()?;
        std::fs::create_dir_all(folder)?;
        let log = folder.join(format!("{name}.log"));
        let mut command = shell::command(kvark);
        command.arg("serve").arg(model).args(["--port", "0"]);
        // A check begins without those of the last one.
        command.args(["--conversations", "none"]);
        command.args(flags).env("KVARK_HOME", folder.join("home"));
        command.env_remove("KVARK_API_KEY");
        let file = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
        let child = command.stdin(Stdio::null()).stderr(file).spawn()?;
        let mut server = ServerProcess {
            child,
            address: String::new(),
            log,
        };
        server.address = server.wait_for_address()?;
        eprintln!("serving {} (log: {})", server.address, server.log.display());
        Ok(server)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the address from the line that says that the server listens.
    fn wait_for_address(&mut self) -> Result<String> {
        loop {
            let log = BufReader::new(std::fs::File::open(&self.log)?);
            for line in log.lines() {
                let line = line?;
                let found = line
                    .split_whitespace()
                    .find(|word| line.contains("kvark serves") && word.starts_with("http://"));
                if let Some(address) = found {
                    return Ok(address.to_owned());
                }
            }
            if let Some(status) = self.child.try_wait()? {
                let log = std::fs::read_to_string(&self.log)?;
                bail!("the server ended with {status}:\n{log}");
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
