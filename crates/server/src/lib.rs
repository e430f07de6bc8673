//! An HTTP API over the engine: OpenAI-compatible, with conversations that fork and a page that shows the cache.
//!
//! [`Server::bind`] listens, [`Server::run`] serves until [`StopHandle::stop`] is called.
#![forbid(unsafe_code)]

mod access;
mod answer;
mod answer_store;
mod app;
mod body;
mod chat;
mod chat_answer;
mod chat_prompt;
mod completions;
mod constraint;
mod conversation;
mod conversation_routes;
mod conversation_store;
mod conversations;
mod embeddings;
mod error;
mod generation;
mod http;
mod infill;
mod messages;
mod metrics;
mod native;
mod ollama;
mod openai_answer;
mod openapi;
mod operation;
mod options;
mod page;
mod prompts;
mod registry;
mod response_answer;
mod responses;
mod routes;
mod sampling;
mod sse;
mod stored_responses;
mod token_clock;
mod tokenize;
mod volatile;

pub use answer::spec_object;
pub use openapi::document as openapi_document;
pub use options::{ReasoningHistory, ServerOptions};
pub use volatile::{VolatilePlace, VolatileText};

use app::App;
use kvark::backend::Backend;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// A server that could not start or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The runtime of the connections could not start.
    #[error("the server could not start: {0}")]
    Runtime(std::io::Error),
    /// The default model could not be loaded.
    #[error("{0}")]
    Model(String),
}

/// A server that listens.
pub struct Server {
    runtime: Runtime,
    listener: TcpListener,
    app: Arc<App>,
    /// The number of stops so far.
    stop: watch::Sender<u32>,
}

/// Stops a server from another thread.
#[derive(Clone)]
pub struct StopHandle(watch::Sender<u32>);

impl StopHandle {
    /// Accepts no more connections; running answers may go on for the grace time. Called again, it ends them.
    pub fn stop(&self) {
        self.0.send_modify(|stops| *stops += 1);
    }
}

impl Server {
    /// Listens on the address of the options. `backend` runs all models.
    pub fn bind(options: ServerOptions, backend: Box<dyn Backend>) -> Result<Server, ServerError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            // These threads only read requests and write answers; the engine has its own.
            .worker_threads(2)
            .thread_name("kvark-http")
            .enable_all()
            .build()
            .map_err(ServerError::Runtime)?;
        let address = options.address;
        let listener = runtime
            .block_on(TcpListener::bind(address))
            .map_err(|source| ServerError::Bind { address, source })?;
        Ok(Server {
            runtime,
            listener,
            app: Arc::new(App::new(options, backend)),
            stop: watch::channel(0).0,
        })
    }

    /// The address that it listens on; the port is known if 0 was asked for.
    pub fn address(&self) -> Result<SocketAddr, ServerError> {
        self.listener.local_addr().map_err(ServerError::Runtime)
    }

    /// A handle that stops the server.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.stop.clone())
    }

    /// Loads the default model, so that the first request does not wait for it.
    pub fn load_default(&self) -> Result<(), ServerError> {
        let loaded = self.app.models.get(None);
        loaded
            .map(|_| ())
            .map_err(|error| ServerError::Model(error.message))
    }

    /// Serves until it is stopped. Then answers go on for the grace time of the options, and prefixes are saved.
    pub fn run(self) {
        let Server {
            runtime,
            listener,
            app,
            stop,
        } = self;
        let mut stopped = stop.subscribe();
        let router = http::router(app.clone());
        let connections = runtime.spawn(http::serve(
            listener,
            router,
            app.options.header_time,
            stop.subscribe(),
        ));
        runtime.block_on(async {
            let mut terminations = Terminations::new();
            tokio::select! {
                _ = stopped.wait_for(|stops| *stops >= 1) => {}
                () = terminations.next() => stop.send_modify(|stops| *stops += 1),
            }
            // Engines end first: their streams end, and with them the connections.
            let models = app.clone();
            let mut stopping = tokio::task::spawn_blocking(move || models.models.stop());
            // A second stop does not wait for the grace time.
            tokio::select! {
                _ = &mut stopping => return,
                _ = stopped.wait_for(|stops| *stops >= 2) => {}
                () = terminations.next() => {}
            }
            app.models.stop_now();
            _ = stopping.await;
        });
        runtime.block_on(async {
            let rest = std::time::Duration::from_secs(2);
            _ = tokio::time::timeout(rest, connections).await;
        });
        runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    }
}

/// The signals that service managers stop programs with.
struct Terminations {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Terminations {
    fn new() -> Terminations {
        Terminations {
            #[cfg(unix)]
            signal: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok(),
        }
    }

    /// Waits for the next one; forever if there is none.
    async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal {
            signal.recv().await;
            return;
        }
        std::future::pending().await
    }
}
