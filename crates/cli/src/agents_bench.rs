//! `kvark agents-bench`: the requests of agents, replayed against servers, and the tokens that each computes again.

mod own_server;
mod peer;
mod replay;
mod report;
mod trace;

use crate::args::{self, EngineArgs, ModelArgs};
use crate::{interrupt, output};
use anyhow::{Context, Result, bail};
use clap::Args;
use kvark::hub::PlainHttp;
use own_server::{CacheSize, OwnServer};
use peer::{Api, Peer};
use report::Replayed;
use std::io::Write;
use std::path::PathBuf;
use trace::Trace;

/// Replay agents' requests against servers, and count the tokens computed again
#[derive(Args)]
#[command(
    after_help = "The built-in trace is a coding agent's: a long system prompt with tools, results with the contents of files, branches that run at \
the same time, a long prompt that is cancelled and sent again, a compaction, and five other agents that come in between and return. All answers \
in it are fixed text, so every server gets the same requests, one server after the other; each generates a token, which is thrown away. \
--print-trace shows the format.

AGAIN counts the tokens that the server had computed for an earlier request of the trace and computes once more: the longest beginning of the \
prompt that an earlier one had, less the tokens that the server says it reused. They come from OpenAI's usage.prompt_tokens_details, llama.cpp's \
timings or Ollama's prompt_eval_cached_count. A server without /apply-template and /tokenize is counted by shares of the text, marked ~.

Without --url, kvark's own server is measured: it starts in this process on a free port, with memory for --parallel conversations.

Examples:
  kvark agents-bench                                    kvark alone, with the default model
  kvark agents-bench model.gguf --parallel 4 --cache-disk 2GiB
  kvark agents-bench model.gguf --url llama.cpp=http://127.0.0.1:8081
  kvark agents-bench --url ollama=http://127.0.0.1:11434 --served-model qwen3:0.6b
  kvark agents-bench --trace mine.json --json"
)]
pub(crate) struct AgentsBench {
    #[command(flatten)]
    model: ModelArgs,
    /// A server that runs already, over plain HTTP; can be repeated. kvark's own is then measured only if a MODEL is named
    #[arg(long, value_name = "[NAME=]URL")]
    url: Vec<String>,
    /// API of these servers: openai or ollama [default: found out]
    #[arg(long, value_name = "NAME", value_parser = ["openai", "ollama"], hide_possible_values = true)]
    api: Option<String>,
    /// Model that these servers are asked for [default: the one that each lists first]
    #[arg(long, value_name = "NAME")]
    served_model: Option<String>,
    /// Key of these servers
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Replay this trace instead of the built-in one
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Replay its first N requests only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    requests: Option<u32>,
    /// Print the built-in trace, as a beginning of another one
    #[arg(long, exclusive = true)]
    print_trace: bool,
    /// Conversations whose whole context fits in the memory of kvark's own server, and requests that it runs at once
    #[arg(long, visible_alias = "np", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: u32,
    /// Keep prefixes of kvark's own server that leave its pool in this much memory
    #[arg(long, value_name = "SIZE", value_parser = args::byte_size)]
    cache_ram: Option<u64>,
    /// Keep prefixes of kvark's own server on disk, up to this size, in a temporary folder
    #[arg(long, value_name = "SIZE", value_parser = args::byte_size)]
    cache_disk: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

impl AgentsBench {
    pub(crate) fn execute(self) -> Result<()> {
        let mut out = std::io::stdout();
        if self.print_trace {
            return Ok(out.write_all(trace::BUILT_IN.as_bytes())?);
        }
        self.engine.check_one_mode()?;
        let trace = self.read_trace()?;
        let others = self.others()?;
        let _listening = interrupt::listen();
        let mut servers = vec![];
        if self.url.is_empty() || self.model.is_named() {
            let own = OwnServer::start(&self.model, &self.engine, &self.cache_size(&trace))?;
            let http = PlainHttp::new(&own.address, None, interrupt::requested)?;
            servers.push(measure(
                Peer::connect(
                    "kvark".to_owned(),
                    http,
                    Some(Api::OpenAi),
                    None,
                    trace.context,
                )?,
                &trace,
            )?);
        }
        let api = match self.api.as_deref() {
            None => None,
            Some("ollama") => Some(Api::Ollama),
            Some(_) => Some(Api::OpenAi),
        };
        for (name, http) in others {
            let model = self.served_model.as_deref();
            let peer = Peer::connect(name, http, api, model, trace.context)?;
            servers.push(measure(peer, &trace)?);
        }
        if self.json {
            writeln!(out, "{}", report::report(&trace, &servers))?;
            return Ok(());
        }
        writeln!(out, "{} requests: {}", trace.requests(), trace.about)?;
        for server in &servers {
            write!(out, "\n{}", server.table())?;
        }
        Ok(out.flush()?)
    }

    fn read_trace(&self) -> Result<Trace> {
        let trace = match &self.trace {
            None => Trace::read(trace::BUILT_IN),
            Some(file) => {
                let text = crate::text_input::read_text(file)?;
                Trace::read(&text).with_context(|| file.display().to_string())
            }
        };
        let trace = trace?;
        Ok(match self.requests {
            None => trace,
            Some(n) => trace.shortened(n as usize),
        })
    }

    fn cache_size(&self, trace: &Trace) -> CacheSize {
        CacheSize {
            context: self.engine.ctx_size.map_or(trace.context, |n| n as usize),
            parallel: self.parallel as usize,
            host: self.cache_ram.unwrap_or(0),
            disk: self.cache_disk,
        }
    }

    /// The servers of `--url`, with names that differ.
    fn others(&self) -> Result<Vec<(String, PlainHttp)>> {
        let mut all: Vec<(String, PlainHttp)> = vec![];
        for text in &self.url {
            let (name, url) = match text.split_once("=http") {
                Some((name, rest)) if !name.is_empty() => {
                    (name, &text[text.len() - rest.len() - 4..])
                }
                _ => (&**text, &**text),
            };
            let http = PlainHttp::new(url, self.api_key.as_deref(), interrupt::requested);
            let http = http.context("--url")?;
            if all.iter().any(|(other, _)| other == name) {
                bail!("--url: two servers are named {name:?}; name one with NAME=URL");
            }
            all.push((name.to_owned(), http));
        }
        Ok(all)
    }
}

/// Replays the trace against a server.
fn measure(peer: Peer, trace: &Trace) -> Result<Replayed> {
    output::statistics(&format!(
        "{}: {} requests to {}",
        peer.name,
        trace.requests(),
        peer.address()
    ));
    let bar = output::progress("requests", trace.requests());
    let measured = replay::replay(&peer, trace, &mut |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    Ok(Replayed {
        requests: measured?,
        cache: peer.cache(),
        peer,
    })
}
