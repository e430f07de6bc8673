//! `kvark bench`: tokens per second of prompt processing and generation.

mod cache;
mod cpu_name;
mod flame;
mod profile;
mod restore;
mod roofline;

use crate::args::{self, EngineArgs, ModelArgs};
use crate::{interrupt, output};
use anyhow::{Result, bail};
use clap::Args;
use cpu_name::cpu_name;
use kvark::backend::{Isa, Probe, RunMode};
use kvark::{Cpu, Model, Runner};
use profile::StepProfile;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// Measure tokens per second, like llama-bench
#[derive(Args)]
#[command(
    after_help = "The roofline floor of a step is the sum over its nodes of the longer of two times: reading the node's bytes, and \
computing its multiply-accumulates, at the rates measured before the tests. Weights and cached rows count once per step. Each \
test prints the floor as a percentage of its measured step time.

Examples:
  kvark bench -p 512 -n 128 -r 5
  kvark bench --cache -r 5
  kvark bench --restore -r 5
  kvark bench --run-mode all -p 64 -n 64
  kvark bench -n 64 --profile
  kvark bench -p 512 -n 0 --profile prefill.svg
  kvark bench -p 512 -n 64 --roofline roofline.svg
  kvark bench model.gguf -p 128,512 -n 64 -d 0,4096 --json"
)]
pub(crate) struct Bench {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompt lengths to measure; 0 for none
    #[arg(
        short = 'p',
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = args::whole::<usize>,
        default_value = "512"
    )]
    n_prompt: Vec<usize>,
    /// Numbers of generated tokens to measure; 0 for none
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = args::whole::<usize>,
        default_value = "128"
    )]
    n_gen: Vec<usize>,
    /// Number of tokens already in the context when a test starts
    #[arg(
        short = 'd',
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = args::whole::<usize>,
        default_value = "0"
    )]
    n_depth: Vec<usize>,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Measure cache operations and branches that share a prefix instead
    #[arg(long)]
    cache: bool,
    /// Compare restoring a conversation of 2,000 tokens from a file with computing it again
    #[arg(long, conflicts_with = "cache")]
    restore: bool,
    /// Show the time of a step by op; with FILE, also draw it as SVG
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    profile: Option<Option<PathBuf>>,
    /// Draw the ops of a step against the machine's measured bandwidth and product rates as SVG
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["cache", "restore"])]
    roofline: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Measurements of one test over its repetitions.
struct Measured {
    test: String,
    mode: RunMode,
    n: usize,
    mean: f64,
    stddev: f64,
    /// Profile of one additional round.
    step: StepProfile,
}

impl Bench {
    pub(crate) fn execute(self) -> Result<()> {
        let _listening = interrupt::listen();
        let model = self.model.open(&self.engine)?;
        if self.cache {
            return self.report_cache(&cache::run(&model, &self.engine, self.repetitions)?);
        }
        if self.restore {
            return self.report_cache(&restore::run(&model, &self.engine, self.repetitions)?);
        }
        let mut runner = self.engine.runner(&model)?;
        let kinds = [("pp", &self.n_prompt), ("tg", &self.n_gen)];
        let tests: Vec<(&str, usize, usize)> = kinds
            .into_iter()
            .flat_map(|(kind, sizes)| {
                let depths = &self.n_depth;
                sizes
                    .iter()
                    .filter(|n| **n > 0)
                    .flat_map(move |n| depths.iter().map(move |d| (kind, *n, *d)))
            })
            .collect();
        let longest = tests.iter().map(|(_, n, d)| n + d).max().unwrap_or(0);
        if longest > runner.capacity()? {
            bail!(
                "a test of {longest} tokens does not fit a context of {}",
                runner.capacity()?
            );
        }
        let weights_bytes = runner.memory()?.weights;
        let probe = Cpu::with_isa(Isa::detect()?).probe(self.threads(), weights_bytes);
        let modes = match self.engine.compared_modes() {
            Some(modes) => modes.to_vec(),
            None => vec![runner.run_mode()],
        };
        let rounds = self.repetitions as usize + 1;
        let bar = output::progress("bench", tests.len() * modes.len() * rounds);
        let mut results = Vec::new();
        for (kind, n, depth) in tests {
            let mut rates = vec![Vec::new(); modes.len()];
            // The first round warms caches and is not counted. Modes are interleaved, so that a slow moment affects all of them.
            for round in 0..=self.repetitions {
                for (mode, rates) in modes.iter().zip(&mut rates) {
                    runner.set_run_mode(*mode)?;
                    let seconds = measure(&mut runner, &model, kind, n, depth)?;
                    if round > 0 {
                        rates.push(n as f64 / seconds);
                    }
                    bar.inc(1);
                    if interrupt::requested() {
                        bail!("interrupted");
                    }
                }
            }
            let test = match depth {
                0 => format!("{kind}{n}"),
                _ => format!("{kind}{n}@d{depth}"),
            };
            let steps = match kind {
                "pp" => n.div_ceil(self.engine.batch_size as usize),
                _ => n,
            };
            for (mode, rates) in modes.iter().zip(&rates) {
                runner.set_run_mode(*mode)?;
                runner.set_profiling(true);
                measure(&mut runner, &model, kind, n, depth)?;
                let step = StepProfile::new(runner.profile(), steps, n as f64 / mean(rates));
                runner.set_profiling(false);
                results.push(Measured::new(test.clone(), *mode, n, rates, step));
            }
        }
        bar.finish_and_clear();
        if let Some(Some(file)) = &self.profile {
            let named: Vec<_> = results.iter().map(|m| (&m.test[..], &m.step)).collect();
            let name = model.artifact().name.as_deref().unwrap_or("the model");
            flame::write(file, name, &named)?;
        }
        if let Some(file) = &self.roofline {
            let named: Vec<_> = results.iter().map(|m| (&m.test[..], &m.step)).collect();
            let name = model.artifact().name.as_deref().unwrap_or("the model");
            roofline::write(file, name, &named, &probe)?;
        }
        self.report(&results, &probe)
    }

    fn report_cache(&self, report: &cache::Report) -> Result<()> {
        let mut out = std::io::stdout();
        if self.json {
            writeln!(
                out,
                "{}",
                json!({ "cache": report.json(), "cpu": cpu_name() })
            )?;
            return Ok(());
        }
        for (name, value, unit) in &report.rows {
            writeln!(out, "{name:<56} {value:>10.2} {unit}")?;
        }
        Ok(())
    }

    /// Name of a test, with its run mode if several modes are compared.
    fn label(&self, measured: &Measured) -> String {
        match self.engine.compared_modes() {
            Some(_) => format!("{:<8} {:<18}", measured.test, measured.mode.name()),
            None => measured.test.clone(),
        }
    }

    fn threads(&self) -> usize {
        args::threads(self.engine.threads).unwrap_or_else(Cpu::default_threads)
    }

    fn report(&self, results: &[Measured], probe: &Probe) -> Result<()> {
        let threads = self.threads();
        let isa = Isa::detect()?;
        let mut out = std::io::stdout();
        if self.json {
            let row = |m: &Measured| {
                json!({
                    "test": m.test,
                    "run_mode": m.mode.name(),
                    "n": m.n,
                    "tokens_per_second_mean": m.mean,
                    "tokens_per_second_stddev": m.stddev,
                    "step": m.step.json(probe),
                })
            };
            let rows: Vec<_> = results.iter().map(row).collect();
            writeln!(
                out,
                "{}",
                json!({
                    "results": rows,
                    "device": self.engine.device.gpu(),
                    "cpu": cpu_name(),
                    "isa": isa.name(),
                    "threads": threads,
                    "machine": profile::machine(probe),
                })
            )?;
        } else {
            match self.engine.device.gpu() {
                Some(gpu) => writeln!(out, "{gpu}")?,
                None => {
                    writeln!(out, "{}, {isa}, {threads} threads", cpu_name())?;
                    writeln!(out, "{}", profile::machine_line(probe))?;
                }
            }
            for m in results {
                let Measured { mean, stddev, .. } = m;
                let test = self.label(m);
                let step = match self.engine.device.gpu() {
                    Some(_) => m.step.time(),
                    None => m.step.line(probe),
                };
                writeln!(
                    out,
                    "{test:<16} {mean:>10.2} ± {stddev:.2} tokens/s   {step}"
                )?;
            }
            if self.profile.is_some() {
                for m in results {
                    writeln!(out, "\n{}\n{}", self.label(m), m.step.table(probe))?;
                }
            }
        }
        Ok(())
    }
}

impl Measured {
    fn new(test: String, mode: RunMode, n: usize, rates: &[f64], step: StepProfile) -> Measured {
        let count = rates.len() as f64;
        let mean = mean(rates);
        let variance =
            rates.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        Measured {
            test,
            mode,
            n,
            mean,
            stddev: variance.sqrt(),
            step,
        }
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// Seconds to process `n` prompt tokens in one call, or `n` tokens one by one, after `depth` tokens.
fn measure(runner: &mut Runner, model: &Model, kind: &str, n: usize, depth: usize) -> Result<f64> {
    let vocab = model.facts().vocab_size as u32;
    let tokens: Vec<u32> = (0..(n + depth) as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) % vocab)
        .collect();
    // The first `depth` tokens are computed once; later rounds reuse them from the cache.
    if runner.tokens().get(..depth) != Some(&tokens[..depth]) {
        runner.rewind(0)?;
        runner.feed(&tokens[..depth], |_| !interrupt::requested())?;
    }
    runner.rewind(depth)?;
    let start = Instant::now();
    if kind == "pp" {
        runner.feed(&tokens[depth..], |_| true)?;
    } else {
        for token in &tokens[depth..] {
            runner.feed(&[*token], |_| true)?;
        }
    }
    Ok(start.elapsed().as_secs_f64())
}
