//! `kvark serve`: an HTTP API and a web page.

use crate::args::{self, EngineArgs, ModelArgs, ShiftArgs};
use crate::catalogue::HubArgs;
use crate::prompt::{ReasoningBudgetArgs, template_source};
use crate::sampling::SamplingArgs;
use crate::{default_head, interrupt, output};
use anyhow::{Context, Result, bail};
use clap::Args;
use kvark::cache::KvStorage;
use kvark::catalogue::ModelStore;
use kvark::engine::HostRungs;
use kvark::snapshot::PrefixFile;
use kvark::speculative::SpecType;
use regex::Regex;
use serde_json::{Map, Value};
use server::{ReasoningHistory, Server, ServerOptions, VolatilePlace, VolatileText};
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Serve an OpenAI-compatible API, and a page to chat and to watch the cache
#[derive(Args)]
#[command(
    after_help = "The API is that of OpenAI (/v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/models), of \
Anthropic (/v1/messages) and of Ollama (/api/chat, /api/generate, /api/embed, /api/pull), with conversations that fork (/v1/kvark/conversations) and llama.cpp's helpers (/tokenize, /props, \
/slots, /health, /metrics). /openapi.json describes it. The page is at /.

Prefixes of all requests are kept and shared. With --cache-disk they survive a restart; conversations always do. Every answer says what was \
reused, and why not more, in kvark.cache.

Examples:
  kvark serve                                           the default model at http://127.0.0.1:8080
  kvark serve model.gguf -c 8192 -np 8 --cache-disk 4GiB
  kvark serve -m chat=a.gguf -m coder=b.gguf            several models, loaded on demand
  kvark serve --prefix system.txt                       chats with this system message compute it once
  kvark serve --prefix system.kvp                       chats with this system message never compute it
  kvark serve --host 0.0.0.0 --api-key-file key.txt     for other machines
  kvark serve --port 11434                              where clients of Ollama look for it

  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'"
)]
pub(crate) struct Serve {
    /// Paths or catalogue names of models; NAME=MODEL names one on the wire. The first is the default
    #[arg(value_name = "[NAME=]MODEL")]
    positional: Vec<String>,
    /// A model, as a flag; can be repeated
    #[arg(short, long, value_name = "[NAME=]MODEL")]
    model: Vec<String>,
    #[command(flatten)]
    hub: HubArgs,
    /// Draft of the default model for requests with spec_type: a smaller model, an Eagle3 head, mtp for the head that the
    /// model itself carries, or none; -md too [default: the Eagle3 head that lies beside the model as NAME.eagle3.gguf]
    #[arg(long, value_name = "MODEL")]
    model_draft: Option<String>,
    /// Speculation of requests that state no spec_type: auto, ngram, draft, eagle3, mtp or none [default: auto with --model-draft, else none]
    #[arg(long, value_name = "TYPE", value_parser = ["auto", "ngram", "draft", "eagle3", "mtp", "none"], hide_possible_values = true)]
    spec_type: Option<String>,
    /// Chat template of all models instead of their own: a name (see kvark chat --help) or a file
    #[arg(long, visible_alias = "chat-template-file", value_name = "NAME|FILE")]
    chat_template: Option<String>,
    /// Variables of the chat template for all chats, such as '{"enable_thinking": false}'; a request's own count more
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Most tokens of any answer
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    predict: Option<u32>,
    /// Address to listen on; 0.0.0.0 for all networks
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Requests that run at once
    #[arg(long, visible_alias = "slots", visible_alias = "np", value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: u32,
    /// Requests that wait for a slot; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: u32,
    /// Key that clients must send [default: KVARK_API_KEY, or none]
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,
    /// File with keys, one a line; each key sees its own conversations only
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Host name by which clients may address the server, besides localhost; can be repeated
    #[arg(long, value_name = "HOST[:PORT]")]
    allow_host: Vec<String>,
    /// Web origin whose pages may use the API from a browser; * for all
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Option<String>,
    /// Keep prefixes on disk, up to this size, in $KVARK_HOME/prefixes
    #[arg(long, value_name = "SIZE", value_parser = args::byte_size)]
    cache_disk: Option<u64>,
    /// Folder in which conversations are kept, or none: then they are gone when the server ends [default: prefixes/conversations
    /// in $KVARK_HOME]
    #[arg(long, value_name = "FOLDER")]
    conversations: Option<PathBuf>,
    /// Keep prefixes that leave the pool in this much memory, before they go to disk
    #[arg(long, value_name = "SIZE", value_parser = args::byte_size)]
    cache_ram: Option<u64>,
    /// With --cache-ram: smaller types in which they are stored one after the other when that memory is full, such as q8,q4. What comes
    /// back from them is an approximation
    #[arg(long, value_name = "TYPES", requires = "cache_ram", value_delimiter = ',', value_parser = args::storage_names(), hide_possible_values = true)]
    cache_ram_types: Vec<KvStorage>,
    /// Lines of system messages that change in every request, as a regular expression: they go to the end of the last message,
    /// so that everything before stays computed. A message with "volatile": true does the same
    #[arg(long, value_name = "REGEX")]
    volatile: Option<Regex>,
    /// Where volatile text goes: last, or drop (the model does not see it)
    #[arg(long, value_name = "PLACE", default_value = "last", value_parser = ["last", "drop"], hide_possible_values = true)]
    volatile_place: String,
    /// System message, from a text file, that is computed when a model is loaded, or a file of kvark prefix build, which is mapped.
    /// Chats and completions that begin with it share its keys and values
    #[arg(long, value_name = "FILE")]
    prefix: Option<PathBuf>,
    #[command(flatten)]
    shift: ShiftArgs,
    /// Reasoning of earlier answers in a chat: keep (their tokens stay as they were generated) or drop (what the chat template
    /// makes of it)
    #[arg(long, value_name = "KIND", default_value = "keep", value_parser = ["keep", "drop"], hide_possible_values = true)]
    reasoning: String,
    #[command(flatten)]
    budget: ReasoningBudgetArgs,
    /// Longest time of one answer in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// How long running answers may go on after Ctrl-C, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
    /// Ignore unknown parameters with a warning instead of refusing the request
    #[arg(long)]
    lenient: bool,
    /// Largest size of a request
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = args::byte_size)]
    max_body: u64,
    /// Write logs as JSON
    #[arg(long)]
    log_json: bool,
    #[command(flatten)]
    engine: EngineArgs,
    /// Defaults of requests that state nothing else.
    #[command(flatten)]
    sampling: SamplingArgs,
}

impl Serve {
    pub(crate) fn execute(self) -> Result<()> {
        self.engine.check_one_mode()?;
        self.start_logs();
        let options = self.options()?;
        let is_open = !options.address.ip().is_loopback() && options.api_keys.is_empty();
        if is_open {
            output::warn("everybody who reaches this address can use the server: set --api-key");
        }
        let backend = self.engine.device.backend()?;
        let server = Server::bind(options, backend)?;
        server.load_default()?;
        let address = server.address()?;
        output::note(&format!("kvark serves http://{address} (Ctrl-C stops)"));
        let stop = server.stop_handle();
        let _listening = interrupt::listen();
        std::thread::spawn(move || {
            while !interrupt::requested() {
                std::thread::sleep(Duration::from_millis(50));
            }
            stop.stop();
        });
        server.run();
        Ok(())
    }

    fn start_logs(&self) {
        let filter = tracing_subscriber::EnvFilter::try_from_env("KVARK_LOG");
        let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
        let logs = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        match self.log_json {
            true => logs.json().init(),
            false => logs.with_target(false).init(),
        }
    }

    fn options(&self) -> Result<ServerOptions> {
        let mut models = vec![];
        for text in self.positional.iter().chain(&self.model) {
            models.push(named_model(text)?);
        }
        if models.is_empty() {
            let default = ModelArgs::named(self.hub.reference());
            models.push((default.name()?, default.path()?));
        }
        for (index, (name, _)) in models.iter().enumerate() {
            if models[..index].iter().any(|(other, _)| other == name) {
                bail!("two models are named {name:?}: name one with NAME=MODEL");
            }
        }
        let cache_disk = match self.cache_disk {
            None => None,
            Some(size) => {
                let home = ModelStore::from_env()?;
                Some((home.root().join("prefixes"), size))
            }
        };
        let prefix_file = match &self.prefix {
            Some(path) if PrefixFile::is_at(path).unwrap_or(false) => Some(PrefixFile::open(path)?),
            _ => None,
        };
        let system = self.prefix.as_deref().filter(|_| prefix_file.is_none());
        Ok(ServerOptions {
            address: self.address()?,
            draft: match self.model_draft.as_deref() {
                Some("none") => None,
                Some(name) => Some(args::draft_path(name)?),
                // Without a head, requests speculate in other ways.
                None => default_head::beside(&models[0].1).unwrap_or(None),
            },
            models,
            speculation: self.speculation(),
            chat_template: self
                .chat_template
                .as_deref()
                .map(template_source)
                .transpose()?,
            template_variables: self.chat_template_kwargs.clone().unwrap_or_default(),
            sampling: self.sampling.given().to_vec(),
            max_tokens: self.predict.map(|n| n as usize),
            // Without a home there is no folder for downloads.
            store: ModelStore::from_env().ok(),
            runner: self.engine.runner_options()?,
            slots: self.parallel as usize,
            queue: self.queue as usize,
            api_keys: self.keys()?,
            allow_hosts: self.allow_host.clone(),
            cors_origin: self.cors_origin.clone(),
            cache_disk,
            conversations: self.conversations_folder(),
            cache_ram: HostRungs {
                limit: self.cache_ram.unwrap_or(0),
                types: self.cache_ram_types.clone(),
            },
            volatile: VolatileText {
                lines: self.volatile.clone(),
                place: match &*self.volatile_place {
                    "drop" => VolatilePlace::Drop,
                    _ => VolatilePlace::Last,
                },
            },
            prefix: system.map(system_message).transpose()?,
            prefix_file,
            context_shift: self.context_shift()?,
            reasoning: match &*self.reasoning {
                "drop" => ReasoningHistory::Drop,
                _ => ReasoningHistory::Keep,
            },
            reasoning_budget: self.budget.tokens(),
            timeout: Duration::from_secs(self.timeout),
            grace: Duration::from_secs(self.grace),
            lenient: self.lenient,
            max_body: self.max_body as usize,
            ..ServerOptions::default()
        })
    }

    /// The speculation of requests that state none.
    fn speculation(&self) -> Option<SpecType> {
        match self.spec_type.as_deref() {
            Some(name) => SpecType::from_name(name),
            None => {
                let draft = self.model_draft.as_deref();
                draft.filter(|name| *name != "none").map(|_| SpecType::Auto)
            }
        }
    }

    /// The folder of conversations, if there is one.
    fn conversations_folder(&self) -> Option<PathBuf> {
        match &self.conversations {
            Some(path) if path == Path::new("none") => None,
            Some(path) => Some(path.clone()),
            None => {
                let home = ModelStore::from_env().ok()?;
                Some(home.root().join("prefixes/conversations"))
            }
        }
    }

    fn context_shift(&self) -> Result<Option<usize>> {
        self.shift.check_no_stream(self.engine.is_stream())?;
        self.shift.keep(usize::MAX, None)
    }

    fn address(&self) -> Result<SocketAddr> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, self.port));
        }
        let mut found = (&*self.host, self.port)
            .to_socket_addrs()
            .with_context(|| format!("--host {}", self.host))?;
        found
            .next()
            .with_context(|| format!("--host {}: no address", self.host))
    }

    /// The keys: of the flag, the file or the environment.
    fn keys(&self) -> Result<Vec<String>> {
        let keys = match (&self.api_key, &self.api_key_file) {
            (Some(key), _) => vec![key.clone()],
            (None, Some(path)) => {
                let text = crate::text_input::read_text(path)?;
                let lines = text.lines().map(str::trim);
                let keys: Vec<String> = lines
                    .filter(|line| !line.is_empty())
                    .map(str::to_owned)
                    .collect();
                if keys.is_empty() {
                    bail!("--api-key-file {}: there is no key in it", path.display());
                }
                keys
            }
            (None, None) => std::env::var("KVARK_API_KEY")
                .ok()
                .filter(|key| !key.is_empty())
                .into_iter()
                .collect(),
        };
        match keys.iter().any(String::is_empty) {
            true => bail!("the API key is empty"),
            false => Ok(keys),
        }
    }
}

/// A JSON object.
fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("is no JSON object: {error}"))
}

/// The text of a file, without the end of its last line.
fn system_message(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

/// The name and the path of `NAME=MODEL` or `MODEL`. A path is named by its file's stem.
fn named_model(text: &str) -> Result<(String, PathBuf)> {
    let (name, model) = match text.split_once('=') {
        Some((name, model)) if !name.is_empty() && !std::path::Path::new(text).exists() => {
            (Some(name.to_owned()), model)
        }
        _ => (None, text),
    };
    let path = args::model_path(model)?;
    let stem = path
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned());
    let name = name.or(stem).unwrap_or_else(|| model.to_owned());
    Ok((name, path))
}
