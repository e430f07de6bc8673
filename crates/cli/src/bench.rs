//! `kvark bench`: tokens per second of prompt processing and generation.

mod cache;
mod cpu_name;
mod flame;
mod profile;
mod report;
mod restore;
mod roofline;
mod subject;

use crate::args::{self, EngineArgs, ModelArgs, ThreadCounts};
use crate::catalogue::HubArgs;
use crate::{interrupt, output};
use anyhow::{Result, bail};
use clap::Args;
use cpu_name::cpu_name;
use kvark::backend::{Isa, Probe, RunMode};
use kvark::{Cpu, Model, Runner};
use profile::StepProfile;
use report::{Earlier, Format, Report};
use serde_json::json;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;
use subject::Subject;

/// Measure tokens per second, like llama-bench
#[derive(Args)]
#[command(
    after_help = "The roofline floor of a step is the sum over its nodes of the longer of two times: reading the node's bytes, and \
computing its multiply-accumulates, at the rates measured before the tests. Weights and cached rows count once per step. Each \
test prints the share of the roofline that it reaches, which is the floor as a percentage of the measured time of a step: 100 % is \
as fast as this machine can be.

Examples:
  kvark bench -p 512 -n 128 -r 5
  kvark bench smollm2 gemma3 -t 1,2 -o md         several models and numbers of threads, as a table
  kvark bench -pg 512,128 --json > before.json    a prompt and its answer as one test
  kvark bench -pg 512,128 --compare before.json   the ratios to earlier results
  kvark bench --cache -r 5
  kvark bench --restore -r 5
  kvark bench --run-mode all -p 64 -n 64
  kvark bench -n 64 --profile
  kvark bench -p 512 -n 0 --profile prefill.svg
  kvark bench -p 512 -n 64 --roofline roofline.svg
  kvark bench model.gguf -p 128,512 -n 64 -d 0,4096 --json"
)]
pub(crate) struct Bench {
    /// Paths, catalogue names or references of models; SmolLM2-135M-Instruct when left out
    #[arg(value_name = "MODEL")]
    positional: Vec<String>,
    /// A model, as a flag; can be repeated
    #[arg(short, long, value_name = "MODEL")]
    model: Vec<String>,
    #[command(flatten)]
    hub: HubArgs,
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
    /// A prompt and the tokens generated after it, measured together; -pg too, can be repeated
    #[arg(long, value_name = "PROMPT,GEN", value_parser = prompt_and_generated)]
    n_prompt_gen: Vec<PromptAndGenerated>,
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
    /// Form of the results
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        conflicts_with = "json"
    )]
    output: Format,
    /// Print one JSON object, as -o json
    #[arg(long)]
    json: bool,
    /// Print the ratio of every result to that of an earlier kvark bench --json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cache", "restore"])]
    compare: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// The value of `--n-prompt-gen`.
type PromptAndGenerated = (usize, usize);

/// Parses two numbers of tokens of at least 1.
fn prompt_and_generated(text: &str) -> Result<PromptAndGenerated, String> {
    let numbers = text.split_once(',');
    let number = |text: &str| text.trim().parse().ok().filter(|n: &usize| *n > 0);
    let pair = numbers.and_then(|(prompt, generated)| Some((number(prompt)?, number(generated)?)));
    pair.ok_or_else(|| "must be two numbers of tokens, such as 512,128".to_owned())
}

/// A test of `bench`: a prompt, tokens generated one by one, or both, after `depth` tokens.
#[derive(Clone, Copy)]
struct Test {
    prompt: usize,
    generated: usize,
    depth: usize,
}

impl Test {
    /// The name, as llama-bench has it.
    fn name(self) -> String {
        let parts = [("pp", self.prompt), ("tg", self.generated)];
        let parts = parts.iter().filter(|(_, n)| *n > 0);
        let parts: Vec<String> = parts.map(|(kind, n)| format!("{kind}{n}")).collect();
        let name = parts.join("+");
        match self.depth {
            0 => name,
            depth => format!("{name}@d{depth}"),
        }
    }

    /// The number of tokens that are measured.
    fn n(self) -> usize {
        self.prompt + self.generated
    }
}

/// Measurements of one test over its repetitions.
struct Measured {
    subject: Rc<Subject>,
    threads: usize,
    /// The rates of the machine with this number of threads.
    probe: Rc<Probe>,
    test: String,
    mode: RunMode,
    n: usize,
    mean: f64,
    stddev: f64,
    /// Profile of one additional round.
    step: StepProfile,
}

impl Bench {
    pub(crate) fn execute(mut self) -> Result<()> {
        let _listening = interrupt::listen();
        let earlier = self.compare.as_deref().map(Earlier::read).transpose()?;
        let models = self.models();
        if self.cache || self.restore {
            let [only] = &models[..] else {
                bail!("--cache and --restore measure one model");
            };
            let model = only.open(&self.engine)?;
            let report = match self.cache {
                true => cache::run(&model, &self.engine, self.repetitions)?,
                false => restore::run(&model, &self.engine, self.repetitions)?,
            };
            return self.report_cache(&report);
        }
        let counts = match self.engine.threads.take() {
            Some(counts) => counts.each().collect(),
            None => vec![None],
        };
        let mut results = Vec::new();
        for args in &models {
            for threads in &counts {
                self.engine.threads = threads.clone();
                self.measure_model(args, &mut results)?;
            }
        }
        let named: Vec<_> = results.iter().map(|m| (&m.test[..], &m.step)).collect();
        let name = results.first().map_or("the model", |m| &m.subject.name);
        if let Some(Some(file)) = &self.profile {
            flame::write(file, name, &named)?;
        }
        if let (Some(file), Some(first)) = (&self.roofline, results.first()) {
            roofline::write(file, name, &named, &first.probe)?;
        }
        let format = match self.json {
            true => Format::Json,
            false => self.output,
        };
        let report = Report {
            results: &results,
            isa: Isa::detect()?,
            gpu: self.engine.device.gpu(),
            shows_modes: self.engine.compared_modes().is_some(),
            shows_profile: self.profile.is_some(),
            earlier,
        };
        let mut out = BufWriter::new(std::io::stdout().lock());
        report.print(&mut out, format)?;
        Ok(out.flush()?)
    }

    /// The models to measure.
    fn models(&self) -> Vec<ModelArgs> {
        let named = self.positional.iter().chain(&self.model).cloned();
        let all = named.chain(self.hub.reference());
        let mut all: Vec<_> = all.map(|name| ModelArgs::named(Some(name))).collect();
        if all.is_empty() {
            all.push(ModelArgs::named(None));
        }
        all
    }

    /// The tests, those of prompts first.
    fn tests(&self) -> Vec<Test> {
        let prompts = self.n_prompt.iter().map(|n| (*n, 0));
        let generated = self.n_gen.iter().map(|n| (0, *n));
        let both = self.n_prompt_gen.iter().copied();
        let sizes = prompts.chain(generated).chain(both);
        let sizes = sizes.filter(|(prompt, generated)| prompt + generated > 0);
        sizes
            .flat_map(|(prompt, generated)| {
                self.n_depth.iter().map(move |depth| Test {
                    prompt,
                    generated,
                    depth: *depth,
                })
            })
            .collect()
    }

    /// Runs all tests of a model with the threads of the options.
    fn measure_model(&self, args: &ModelArgs, results: &mut Vec<Measured>) -> Result<()> {
        let model = args.open(&self.engine)?;
        let mut runner = self.engine.runner(&model)?;
        let tests = self.tests();
        let longest = tests.iter().map(|test| test.n() + test.depth).max();
        let longest = longest.unwrap_or(0);
        if longest > runner.capacity()? {
            bail!(
                "a test of {longest} tokens does not fit a context of {} (-c {longest} makes it large enough)",
                runner.capacity()?
            );
        }
        let weights_bytes = runner.memory()?.weights;
        let subject = Rc::new(Subject::new(args, &model, weights_bytes)?);
        let threads = self.threads();
        let probe = Cpu::with_isa(Isa::detect()?).probe(threads, weights_bytes);
        let probe = Rc::new(probe);
        let modes = match self.engine.compared_modes() {
            Some(modes) => modes.to_vec(),
            None => vec![runner.run_mode()],
        };
        let rounds = self.repetitions as usize + 1;
        let bar = output::progress("bench", tests.len() * modes.len() * rounds);
        for test in tests {
            let mut rates = vec![Vec::new(); modes.len()];
            // The first round warms caches and is not counted. Modes are interleaved, so that a slow moment affects all of them.
            for round in 0..=self.repetitions {
                for (mode, rates) in modes.iter().zip(&mut rates) {
                    runner.set_run_mode(*mode)?;
                    let seconds = measure(&mut runner, &model, test)?;
                    if round > 0 {
                        rates.push(test.n() as f64 / seconds);
                    }
                    bar.inc(1);
                    if interrupt::requested() {
                        bail!("interrupted");
                    }
                }
            }
            let steps = test.prompt.div_ceil(self.engine.batch_size as usize) + test.generated;
            for (mode, rates) in modes.iter().zip(&rates) {
                runner.set_run_mode(*mode)?;
                runner.set_profiling(true);
                measure(&mut runner, &model, test)?;
                let seconds = test.n() as f64 / mean(rates);
                let step = StepProfile::new(runner.profile(), steps, seconds);
                runner.set_profiling(false);
                results.push(Measured {
                    subject: subject.clone(),
                    threads,
                    probe: probe.clone(),
                    test: test.name(),
                    mode: *mode,
                    n: test.n(),
                    mean: mean(rates),
                    stddev: stddev(rates),
                    step,
                });
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn report_cache(&self, report: &cache::Report) -> Result<()> {
        let mut out = std::io::stdout();
        if self.json || self.output == Format::Json {
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

    fn threads(&self) -> usize {
        let asked = self.engine.threads.as_ref().map(ThreadCounts::first);
        args::threads(asked).unwrap_or_else(Cpu::default_threads)
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// The standard deviation of a sample.
fn stddev(numbers: &[f64]) -> f64 {
    let mean = mean(numbers);
    let squares = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    (squares / (numbers.len() as f64 - 1.0).max(1.0)).sqrt()
}

/// Seconds to process the prompt in one call and the generated tokens one by one.
fn measure(runner: &mut Runner, model: &Model, test: Test) -> Result<f64> {
    let Test { prompt, depth, .. } = test;
    let vocab = model.facts().vocab_size as u32;
    let tokens: Vec<u32> = (0..(test.n() + depth) as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) % vocab)
        .collect();
    // The first `depth` tokens are computed once; later rounds reuse them from the cache.
    if runner.tokens().get(..depth) != Some(&tokens[..depth]) {
        runner.rewind(0)?;
        runner.feed(&tokens[..depth], |_| !interrupt::requested())?;
    }
    runner.rewind(depth)?;
    let start = Instant::now();
    if prompt > 0 {
        runner.feed(&tokens[depth..depth + prompt], |_| true)?;
    }
    for token in &tokens[depth + prompt..] {
        runner.feed(&[*token], |_| true)?;
    }
    Ok(start.elapsed().as_secs_f64())
}
