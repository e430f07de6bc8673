//! `cargo xtask bench-spec`: speculative decoding, plain decoding and llama.cpp's prompt lookup, turn by turn.

use super::script::LLAMA_LOOKUP;
use super::turns::{Driver, median, range, text};
use crate::{model, shell};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Measure speculative decoding by prompt class and tree shape, interleaved with plain decoding and llama.cpp's prompt lookup
#[derive(Args)]
pub(crate) struct BenchSpec {
    /// A copy of SmolLM2-135M-Instruct (GGUF)
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// An Eagle3 head of the model [default: that of training/eagle3]
    #[arg(long, value_name = "PATH")]
    head: Option<PathBuf>,
    /// Tokens of an answer
    #[arg(short = 'n', long, value_name = "N", default_value_t = 200)]
    predict: u32,
    /// Temperature of all runs
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temp: f32,
    /// Times that every run is repeated; the medians count
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Only the classes whose name contains this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Leave llama.cpp out
    #[arg(long)]
    alone: bool,
    /// Write the tables to this document, such as docs/benchmarks/speculative.md
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// A class of prompts. None of them is built from the templates that heads are trained on.
struct PromptClass {
    name: &'static str,
    prompts: [&'static str; 2],
}

const CODE: &str = "def total_price(orders):\n    total = 0\n    for order in orders:\n        for item in order.items:\n            total += item.price * item.count\n    return total\n\ndef mean_price(orders):\n    return total_price(orders) / len(orders)\n";
const REPORT: &str = "The harbour of the town was built in 1821. It has two piers and a small lighthouse. In winter the harbour is closed for six weeks, because the ice is too thick for boats. In summer about forty fishing boats use it every day. The town council wants to repair the northern pier next year. The repair will cost two million euros, and half of the money comes from the region.";

const CLASSES: [PromptClass; 5] = [
    PromptClass {
        name: "chat",
        prompts: [
            "My sister starts university this autumn and worries about making friends. What would you tell her?",
            "How do noise-cancelling headphones work?",
        ],
    },
    PromptClass {
        name: "code",
        prompts: [
            "Write a Python class for a bank account with deposit, withdraw and a transaction history.",
            "Write a shell script that backs up a folder to a dated archive and deletes archives older than a week.",
        ],
    },
    PromptClass {
        name: "code repeat",
        prompts: [
            "Repeat this code exactly, with the variable total renamed to amount:\n\n{CODE}",
            "Add a docstring to every function and print the whole file again:\n\n{CODE}",
        ],
    },
    PromptClass {
        name: "summarise",
        prompts: [
            "Summarise this report in three sentences, in its own words:\n\n{REPORT}",
            "List all facts of this report, one a line, quoting the sentences:\n\n{REPORT}",
        ],
    },
    PromptClass {
        name: "edit",
        prompts: [
            "Correct the spelling and print the whole text again:\n\n{REPORT}",
            "Replace the word harbour by port everywhere and print the whole text:\n\n{REPORT}",
        ],
    },
];

/// A way to decode.
struct Shape {
    name: &'static str,
    flags: &'static [&'static str],
    needs_head: bool,
}

const SHAPES: [Shape; 6] = [
    Shape {
        name: "ngram, chain of 4",
        flags: &[
            "--spec-type",
            "ngram",
            "--spec-tree",
            "4",
            "--spec-topk",
            "1",
        ],
        needs_head: false,
    },
    Shape {
        name: "ngram, tree of 8",
        flags: &["--spec-type", "ngram", "--spec-tree", "8"],
        needs_head: false,
    },
    Shape {
        name: "eagle3, chain of 3",
        flags: &[
            "--spec-type",
            "eagle3",
            "--spec-tree",
            "3",
            "--spec-depth",
            "3",
            "--spec-topk",
            "1",
        ],
        needs_head: true,
    },
    Shape {
        name: "eagle3, tree of 7, depth 4",
        flags: &[
            "--spec-type",
            "eagle3",
            "--spec-tree",
            "7",
            "--spec-depth",
            "4",
        ],
        needs_head: true,
    },
    Shape {
        name: "eagle3, tree of 15, depth 6",
        flags: &[
            "--spec-type",
            "eagle3",
            "--spec-tree",
            "15",
            "--spec-depth",
            "6",
        ],
        needs_head: true,
    },
    Shape {
        name: "auto",
        flags: &["--spec-type", "auto"],
        needs_head: true,
    },
];

/// Candidates of a round of llama.cpp's prompt lookup; 0 is its plain decoding.
const LLAMA_DRAFTS: [usize; 2] = [0, 8];

/// What one run gave.
struct Sample {
    rate: f64,
    accepted_length: Option<f64>,
    prompt: Value,
    tokens: Value,
}

/// The rates of one way to decode, and its ratios to plain decoding of the same round.
#[derive(Default)]
struct WayResults {
    rates: Vec<f64>,
    ratios: Vec<f64>,
    lengths: Vec<f64>,
}

impl WayResults {
    fn line(&self, class: &str, way: &str) -> String {
        let mean = self.lengths.iter().sum::<f64>() / self.lengths.len().max(1) as f64;
        let length = match self.lengths.is_empty() {
            true => "–".to_owned(),
            false => format!("{mean:.2}"),
        };
        let (least, most) = range(&self.ratios);
        format!(
            "| {class} | {way} | {length} | {:.1} | {:.2}× | {least:.2} | {most:.2} |\n",
            median(&self.rates),
            median(&self.ratios),
        )
    }
}

impl BenchSpec {
    pub(crate) fn execute(self) -> Result<()> {
        let kvark = model::kvark()?;
        let model = model::find(self.model.clone())?;
        let head = self.head.clone();
        let head = head.unwrap_or_else(|| shell::root().join(HEAD));
        if !head.is_file() {
            bail!("no head at {}", head.display());
        }
        let head = head.to_str().context("the head's path is not UTF-8")?;
        let mut peer = match self.alone {
            true => None,
            false => Some(self.start_peer(&model)?),
        };
        let version = peer.as_ref().map(|(_, version)| version.clone());
        let mut page = self.introduction(&kvark, version.as_deref())?;
        page.push_str("| prompts | way | tokens a forward | tokens per second | against plain | least | most |\n|---|---|--:|--:|--:|--:|--:|\n");
        for class in &CLASSES {
            if self
                .only
                .as_deref()
                .is_some_and(|only| !class.name.contains(only))
            {
                continue;
            }
            let lines = self.class(class, &kvark, &model, head, peer.as_mut().map(|p| &mut p.0))?;
            eprint!("{lines}");
            page.push_str(&lines);
        }
        match &self.markdown {
            Some(file) => std::fs::write(shell::root().join(file), page)
                .with_context(|| format!("cannot write {}", file.display())),
            None => {
                println!("{page}");
                Ok(())
            }
        }
    }

    /// The lines of a class of prompts.
    fn class(
        &self,
        class: &PromptClass,
        kvark: &Path,
        model: &Path,
        head: &str,
        mut peer: Option<&mut Driver>,
    ) -> Result<String> {
        let mut plain = WayResults::default();
        let mut shapes: Vec<WayResults> = SHAPES.iter().map(|_| WayResults::default()).collect();
        let mut llama = LLAMA_DRAFTS.map(|_| WayResults::default());
        for prompt in class.prompts {
            let prompt = prompt.replace("{CODE}", CODE).replace("{REPORT}", REPORT);
            for round in 0..self.rounds {
                let run = |flags: &[&str]| self.run(kvark, model, &prompt, flags);
                let known = run(&[])?;
                plain.rates.push(known.rate);
                plain.ratios.push(1.0);
                // Another way begins with every round, so that none is always the first after plain decoding.
                for index in (0..SHAPES.len()).map(|i| (i + round) % SHAPES.len()) {
                    let shape = &SHAPES[index];
                    let mut flags = shape.flags.to_vec();
                    if shape.needs_head {
                        flags.extend(["--model-draft", head]);
                    }
                    let sample = run(&flags)?;
                    if sample.tokens != known.tokens {
                        bail!(
                            "{} gave other tokens than plain decoding for {prompt:?}",
                            shape.name
                        );
                    }
                    let way = &mut shapes[index];
                    way.rates.push(sample.rate);
                    way.ratios.push(sample.rate / known.rate);
                    way.lengths.extend(sample.accepted_length);
                }
                if let Some(peer) = peer.as_deref_mut() {
                    for (way, draft) in llama.iter_mut().zip(LLAMA_DRAFTS) {
                        let ask =
                            json!({ "prompt": known.prompt, "n": self.predict, "draft": draft });
                        let rate = peer.ask(&ask)?["tokens_per_second"].as_f64();
                        let rate = rate.context("llama.cpp generated no more than a token")?;
                        way.rates.push(rate);
                        way.ratios.push(rate / known.rate);
                    }
                }
            }
        }
        let mut lines = plain.line(class.name, "plain");
        for (shape, way) in SHAPES.iter().zip(&shapes) {
            lines.push_str(&way.line(class.name, shape.name));
        }
        for (way, draft) in llama.iter().zip(LLAMA_DRAFTS) {
            let name = match draft {
                0 => "llama.cpp, plain".to_owned(),
                n => format!("llama.cpp, prompt lookup of {n}"),
            };
            if peer.is_some() {
                lines.push_str(&way.line(class.name, &name));
            }
        }
        Ok(lines)
    }

    /// Starts llama.cpp, and returns its version too.
    fn start_peer(&self, model: &Path) -> Result<(Driver, String)> {
        if self.temp != 0.0 {
            bail!("llama.cpp is compared at temperature 0: leave it out with --alone");
        }
        let mut driver = Driver::start("llama.cpp", &mut LLAMA_LOOKUP.command()?)?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let load = json!({ "model": model, "context": CONTEXT, "threads": threads });
        let version = text(&driver.ask(&load)?, "version")?;
        Ok((driver, version))
    }

    fn run(&self, kvark: &Path, model: &Path, prompt: &str, flags: &[&str]) -> Result<Sample> {
        let mut command = shell::command(kvark);
        command
            .arg("run")
            .arg("-m")
            .arg(model)
            .args(["--chat", "--json", "--seed", "1"]);
        command.args([
            "-c",
            &CONTEXT.to_string(),
            "-n",
            &self.predict.to_string(),
            "--temp",
            &self.temp.to_string(),
        ]);
        command.args(flags).args(["-p", prompt]);
        let report: Value = serde_json::from_str(&shell::output(&mut command)?)?;
        let rate = report["timings"]["predicted_per_second"].as_f64();
        Ok(Sample {
            rate: rate.context("kvark run reported no rate")?,
            accepted_length: report["spec"]["mean_accepted_length"].as_f64(),
            prompt: report["prompt_tokens"].clone(),
            tokens: report["tokens"].clone(),
        })
    }

    fn introduction(&self, kvark: &Path, peer: Option<&str>) -> Result<String> {
        let version = shell::output(shell::command(kvark).arg("--version"))?;
        let mut page = String::from("# Speculative decoding\n\n");
        _ = writeln!(
            page,
            "Made by `cargo xtask bench-spec` ({}): SmolLM2-135M-Instruct Q4_1, {} tokens at temperature {}, {} rounds of 2 prompts a \
             class; a round runs every way once, one after the other. The ratio is the median of the rounds' own, each to plain decoding of \
             its round; every run of kvark gave exactly the tokens of plain decoding. *Tokens a forward* counts the bonus token. {}CPU: {}.\n",
            version.trim(),
            self.predict,
            self.temp,
            self.rounds,
            peer.map(|version| format!(
                "llama.cpp is {version} and its own loop in Python, with the same prompt tokens; its text may differ. "
            ))
            .unwrap_or_default(),
            cpu_name(),
        );
        Ok(page)
    }
}

/// The context of all runs, in tokens.
const CONTEXT: usize = 1024;
const HEAD: &str = "training/eagle3/smollm2-135m-instruct.eagle3.gguf";

/// The CPU's name and its number of threads.
fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name.map(|name| name.trim_start_matches(['\t', ' ', ':']));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {threads} threads", name.unwrap_or("unknown"))
}
