//! `ServerOptions`: the choices of the command line.

use crate::volatile::VolatileText;
use kvark::RunnerOptions;
use kvark::catalogue::ModelStore;
use kvark::engine::HostRungs;
use kvark::generate::SamplingOption;
use kvark::snapshot::PrefixFile;
use kvark::speculative::SpecType;
use serde_json::{Map, Value};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What becomes of the reasoning of earlier answers in a chat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningHistory {
    /// Answers keep the tokens that were generated, so that nothing before the new message is computed again.
    #[default]
    Keep,
    /// The chat template decides; most drop it.
    Drop,
}

/// The options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The models, the default one first: the name on the wire, and the file.
    pub models: Vec<(String, PathBuf)>,
    /// The folder that `/api/pull` downloads models to; without it, pulling is refused.
    pub store: Option<ModelStore>,
    /// A draft of the default model: a smaller model with the same vocabulary, an Eagle3 head, or [`DraftSource::MTP`](kvark::speculative::DraftSource::MTP).
    pub draft: Option<PathBuf>,
    /// Speculation of requests that state none.
    pub speculation: Option<SpecType>,
    /// The source of a chat template that is used instead of those of the models.
    pub chat_template: Option<String>,
    /// Variables of the chat template, for requests that do not state them.
    pub template_variables: Map<String, Value>,
    /// Sampling options of requests that state none, as the texts of the command's flags.
    pub sampling: Vec<(&'static SamplingOption, Vec<String>)>,
    /// The maximum number of tokens of any answer.
    pub max_tokens: Option<usize>,
    /// Context, cache types, threads and memory limit of every model. `pool_cells` is derived from the others.
    pub runner: RunnerOptions,
    /// The maximum number of requests of a model that run at once.
    pub slots: usize,
    /// The maximum number of requests of a model that wait.
    pub queue: usize,
    /// The keys of clients; every request must have one of them. Without keys, everybody is answered.
    pub api_keys: Vec<String>,
    /// Names by which clients may address the server, with or without a port. On loopback, `localhost` and loopback
    /// addresses are always allowed and all others are refused.
    pub allow_hosts: Vec<String>,
    /// The origin that browsers may send requests from; `*` for any.
    pub cors_origin: Option<String>,
    /// The folder of prefixes on disk and its size limit.
    pub cache_disk: Option<(PathBuf, u64)>,
    /// The folder of conversations; without it they are gone when the server ends.
    pub conversations: Option<PathBuf>,
    /// Host memory for prefixes that leave the pool of a model, before they go to disk.
    pub cache_ram: HostRungs,
    /// Text of messages that changes in every request.
    pub volatile: VolatileText,
    /// A system message whose beginning of a chat is computed when a model is loaded, and shared by all chats that have it.
    pub prefix: Option<String>,
    /// A prefix file that the pool of every model stands on. A model that it does not belong to is not loaded.
    pub prefix_file: Option<PrefixFile>,
    /// With `Some(keep)`, an answer whose context is full keeps the first `keep` tokens and drops the older half of the others,
    /// instead of ending.
    pub context_shift: Option<usize>,
    /// What becomes of the reasoning of earlier answers in a chat.
    pub reasoning: ReasoningHistory,
    /// The maximum number of tokens of an answer's reasoning, for requests that do not state one.
    pub reasoning_budget: Option<usize>,
    /// The longest time of one answer.
    pub timeout: Duration,
    /// How long running answers may go on after a stop.
    pub grace: Duration,
    /// Ignore unknown parameters with a warning.
    pub lenient: bool,
    /// The maximum size of a request body in bytes.
    pub max_body: usize,
    /// The longest time that a client may take to send the headers of a request, and the longest pause within a body.
    pub header_time: Duration,
    /// The longest time that a client may take to send a body.
    pub body_time: Duration,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            address: SocketAddr::from(([127, 0, 0, 1], 8080)),
            models: vec![],
            store: None,
            draft: None,
            speculation: None,
            chat_template: None,
            template_variables: Map::new(),
            sampling: vec![],
            max_tokens: None,
            runner: RunnerOptions::default(),
            slots: 8,
            queue: 64,
            api_keys: vec![],
            allow_hosts: vec![],
            cors_origin: None,
            cache_disk: None,
            conversations: None,
            cache_ram: HostRungs::default(),
            volatile: VolatileText::default(),
            prefix: None,
            prefix_file: None,
            context_shift: None,
            reasoning: ReasoningHistory::default(),
            reasoning_budget: None,
            timeout: Duration::from_secs(600),
            grace: Duration::from_secs(30),
            lenient: false,
            max_body: 16 << 20,
            header_time: Duration::from_secs(10),
            body_time: Duration::from_secs(30),
        }
    }
}
