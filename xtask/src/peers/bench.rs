//! `cargo xtask bench-peers`: kvark and llama.cpp, turn by turn.

use super::turns::{Case, Driver, Kvark, median, text};
use super::{scripts, venv};
use crate::{model, shell};
use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Compare the speed of kvark and llama.cpp, turn by turn on one machine
#[derive(Args)]
#[command(
    after_help = "Every test of a round is measured on both sides, one right after the other; who goes first changes with \
the round. Both sides run a test once uncounted before it counts, with the same tokens, batches of 512, KV in the same \
type (llama.cpp's q8_0 and q4_0 beside q8 and q4) and the same number of threads. The side that waits sleeps. A ratio above 1 means that kvark is faster; it is the median of the \
rounds' own ratios.

Examples:
  cargo xtask bench-peers
  cargo xtask bench-peers --model model.gguf --rounds 9 -t 1,2 --markdown docs/benchmarks/cpu.md"
)]
pub(crate) struct BenchPeers {
    /// The model (GGUF); SmolLM2-135M-Instruct when left out
    #[arg(short, long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// How often every test is measured on both sides
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Numbers of threads; all cores when left out
    #[arg(short, long, value_name = "N", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Prompt lengths to measure; 0 for none
    #[arg(
        short = 'p',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "128,512"
    )]
    n_prompt: Vec<usize>,
    /// Numbers of generated tokens to measure; 0 for none
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "64"
    )]
    n_gen: Vec<usize>,
    /// Tokens in the context before the generated ones
    #[arg(
        short = 'd',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "0,512"
    )]
    n_depth: Vec<usize>,
    /// How keys and values are stored on both sides
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = ["f32", "f16", "q8", "q4"])]
    cache_type: String,
    /// Measure this kvark instead of the tree's release build
    #[arg(long, value_name = "PATH")]
    kvark: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the results as a Markdown document too
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Tokens per second of both sides, round by round.
struct Row {
    case: Case,
    kvark: Vec<f64>,
    llama: Vec<f64>,
}

impl Row {
    fn ratios(&self) -> Vec<f64> {
        let pairs = self.kvark.iter().zip(&self.llama);
        pairs.map(|(kvark, llama)| kvark / llama).collect()
    }
}

/// What was measured, on what.
struct Report {
    rows: Vec<Row>,
    model: String,
    rounds: u32,
    cache: String,
    cpu: String,
    isa: String,
    kvark_version: String,
    llama_version: String,
    llama_build: String,
    /// The share of the time between its turns that llama.cpp's process was busy.
    restless: f64,
}

impl BenchPeers {
    pub(crate) fn execute(self) -> Result<()> {
        let model = model::find(self.model.clone())?;
        let report = self.measure(&model, Kvark::new(self.kvark.as_deref())?)?;
        if let Some(file) = &self.markdown {
            std::fs::write(file, report.markdown()).with_context(|| file.display().to_string())?;
        }
        if self.json {
            println!("{}", report.json());
        } else {
            print!("{}", report.markdown());
        }
        Ok(())
    }

    fn measure(&self, model: &Path, mut kvark: Kvark) -> Result<Report> {
        let cases = Case::all(&self.threads, &self.n_prompt, &self.n_gen, &self.n_depth);
        let longest = cases.iter().map(|case| case.n + case.depth).max();
        let longest = longest.context("nothing to measure")?;
        let mut llama = Llama::start(model, longest, &self.cache_type)?;
        let cache = &self.cache_type[..];
        let own = ["--cache-type-k", cache, "--cache-type-v", cache];
        let mut rows: Vec<Row> = Vec::new();
        for case in &cases {
            rows.push(Row {
                case: *case,
                kvark: Vec::new(),
                llama: Vec::new(),
            });
        }
        for round in 0..self.rounds {
            for row in &mut rows {
                for turn in 0..2 {
                    if (round + turn) % 2 == 0 {
                        row.kvark.push(kvark.measure(model, row.case, &own)?);
                    } else {
                        row.llama.push(llama.measure(row.case)?);
                    }
                }
                let last = round as usize;
                eprintln!(
                    "round {} of {}: {:<10} {} threads: kvark {:.1}, llama.cpp {:.1} tokens/s",
                    round + 1,
                    self.rounds,
                    row.case.name(),
                    row.case.threads,
                    row.kvark[last],
                    row.llama[last]
                );
            }
        }
        Ok(Report {
            rows,
            model: model
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into(),
            rounds: self.rounds,
            cache: self.cache_type.clone(),
            cpu: kvark.cpu,
            isa: kvark.isa,
            kvark_version: kvark.version,
            llama_version: llama.version.clone(),
            llama_build: llama.build.clone(),
            restless: llama.busy / llama.waited,
        })
    }
}

/// Their side: a process that stays loaded and sleeps between its turns.
struct Llama {
    driver: Driver,
    version: String,
    build: String,
    rested: Instant,
    /// Seconds between its turns.
    waited: f64,
    /// CPU seconds that it took meanwhile.
    busy: f64,
}

impl Llama {
    fn start(model: &Path, context: usize, cache: &str) -> Result<Llama> {
        let mut python = shell::command(venv::python(&scripts().join("requirements.txt"))?);
        let mut driver = Driver::start("llama.cpp", python.arg(scripts().join("llama_bench.py")))?;
        let hello = driver.ask(&json!({ "model": model, "context": context, "cache": cache }))?;
        Ok(Llama {
            driver,
            version: text(&hello, "version")?,
            build: text(&hello, "system_info")?,
            rested: Instant::now(),
            waited: 0.0,
            busy: 0.0,
        })
    }

    fn measure(&mut self, case: Case) -> Result<f64> {
        let Case {
            kind,
            n,
            depth,
            threads,
        } = case;
        self.waited += self.rested.elapsed().as_secs_f64();
        let question = json!({ "kind": kind, "n": n, "depth": depth, "threads": threads });
        let answer = self.driver.ask(&question)?;
        self.busy += answer["idle_cpu_seconds"].as_f64().unwrap_or(0.0);
        self.rested = Instant::now();
        answer["tokens_per_second"]
            .as_f64()
            .with_context(|| format!("the llama.cpp driver measured nothing: {answer}"))
    }
}

impl Report {
    fn markdown(&self) -> String {
        let mut out = String::from(
            "| test | threads | kvark (tokens/s) | llama.cpp (tokens/s) | ratio | ratio, least to most |\n\
             |---|--:|--:|--:|--:|--:|\n",
        );
        for row in &self.rows {
            let ratios = row.ratios();
            writeln!(
                out,
                "| {} | {} | {:.1} | {:.1} | {:.2} | {:.2} to {:.2} |",
                row.case.name(),
                row.case.threads,
                median(&row.kvark),
                median(&row.llama),
                median(&ratios),
                ratios.iter().copied().fold(f64::INFINITY, f64::min),
                ratios.iter().copied().fold(0.0, f64::max),
            )
            .expect("a string takes everything");
        }
        out + &format!(
            "\nMedians of {} rounds, both sides turn by turn; made by `cargo xtask bench-peers`.\n\n\
             - model: {}, KV in {}\n- CPU: {}\n- kvark: {}, {} kernels\n- llama.cpp: {}, built for {}\n\
             - llama.cpp's process was busy for {:.1} % of the time between its turns\n",
            self.rounds,
            self.model,
            self.cache,
            self.cpu,
            self.kvark_version,
            self.isa,
            self.llama_version,
            self.llama_build,
            self.restless * 100.0
        )
    }

    fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "test": row.case.name(),
                "threads": row.case.threads,
                "kvark": row.kvark,
                "llama": row.llama,
                "kvark_median": median(&row.kvark),
                "llama_median": median(&row.llama),
                "ratio": median(&row.ratios()),
            })
        };
        json!({
            "results": self.rows.iter().map(row).collect::<Vec<_>>(),
            "model": self.model,
            "rounds": self.rounds,
            "cache_type": self.cache,
            "cpu": self.cpu,
            "isa": self.isa,
            "kvark_version": self.kvark_version,
            "llama_version": self.llama_version,
            "llama_build": self.llama_build,
            "restless": self.restless,
        })
    }
}
