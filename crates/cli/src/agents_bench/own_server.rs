//! `OwnServer`: kvark's server in this process, with an empty cache.

use crate::args::{EngineArgs, ModelArgs};
use anyhow::{Context, Result};
use kvark::engine::HostRungs;
use server::{Server, ServerOptions, StopHandle};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

/// The memory that the server's cache may take.
pub(super) struct CacheSize {
    /// Tokens of one conversation.
    pub(super) context: usize,
    /// Conversations whose whole context fits at once, and requests that run at once.
    pub(super) parallel: usize,
    /// Bytes of prefixes in host memory, outside the pool.
    pub(super) host: u64,
    /// Bytes of prefixes on disk.
    pub(super) disk: Option<u64>,
}

/// A running server. It stops when it is dropped, and deletes what it kept on disk.
pub(super) struct OwnServer {
    pub(super) address: String,
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
    folder: Option<PathBuf>,
}

impl OwnServer {
    /// Loads the model and listens on a free port of loopback.
    pub(super) fn start(
        model: &ModelArgs,
        engine: &EngineArgs,
        size: &CacheSize,
    ) -> Result<OwnServer> {
        // Prefixes of an earlier replay would be found in a folder that stays.
        let folder =
            std::env::temp_dir().join(format!("kvark-agents-bench-{}", std::process::id()));
        let disk = size.disk.map(|bytes| (folder.clone(), bytes));
        if disk.is_some() {
            std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        let mut runner = engine.runner_options()?;
        runner.context = Some(size.context);
        let options = ServerOptions {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            models: vec![(model.name()?, model.path()?)],
            runner,
            slots: size.parallel,
            cache_disk: disk.clone(),
            cache_ram: HostRungs {
                limit: size.host,
                types: vec![],
            },
            grace: Duration::from_millis(100),
            ..ServerOptions::default()
        };
        let server = Server::bind(options, engine.device.backend()?)?;
        server.load_default()?;
        let address = format!("http://{}", server.address()?);
        Ok(OwnServer {
            address,
            stop: server.stop_handle(),
            thread: Some(std::thread::spawn(move || server.run())),
            folder: disk.map(|(folder, _)| folder),
        })
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
        if let Some(folder) = &self.folder {
            _ = std::fs::remove_dir_all(folder);
        }
    }
}
