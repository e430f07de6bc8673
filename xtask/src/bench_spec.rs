//! `cargo xtask bench-spec`: speculative decoding against plain decoding, turn by turn.

use crate::{model, shell};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Measure speculative decoding by prompt class and tree shape, interleaved with plain decoding
#[derive(Args)]
pub(crate) struct BenchSpec {
    /// A copy of SmolLM2-135M-Instruct (GGUF)
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// An Eagle3 head of the model [default: that of training/eagle3]
    #[arg(long, value_name = "PATH")]
    head: Option<PathBuf>,
    /// Tokens of an answer
    #[arg(short, long, value_name = "N", default_value_t = 200)]
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
    /// Write the tables to this document
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

/// What one run gave.
struct Sample {
    rate: f64,
    accepted_length: Option<f64>,
    tokens: Value,
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
        let mut page = self.introduction(&kvark)?;
        page.push_str("| prompts | way | tokens a forward | speed against plain | least | most |\n|---|---|--:|--:|--:|--:|\n");
        for class in &CLASSES {
            if self
                .only
                .as_deref()
                .is_some_and(|only| !class.name.contains(only))
            {
                continue;
            }
            for shape in &SHAPES {
                let mut ratios = vec![];
                let mut lengths = vec![];
                for prompt in class.prompts {
                    let prompt = prompt.replace("{CODE}", CODE).replace("{REPORT}", REPORT);
                    for round in 0..self.rounds {
                        let run = |flags: &[&str]| self.run(&kvark, &model, &prompt, flags);
                        let mut flags = shape.flags.to_vec();
                        if shape.needs_head {
                            flags.extend([
                                "--model-draft",
                                head.to_str().context("the head's path")?,
                            ]);
                        }
                        // The side that begins changes with the round.
                        let (plain, spec) = match round % 2 {
                            0 => (run(&[])?, run(&flags)?),
                            _ => {
                                let spec = run(&flags)?;
                                (run(&[])?, spec)
                            }
                        };
                        if plain.tokens != spec.tokens {
                            bail!(
                                "{} gave other tokens than plain decoding for {prompt:?}",
                                shape.name
                            );
                        }
                        ratios.push(spec.rate / plain.rate);
                        lengths.extend(spec.accepted_length);
                    }
                }
                ratios.sort_by(f64::total_cmp);
                let mean = lengths.iter().sum::<f64>() / lengths.len().max(1) as f64;
                let line = format!(
                    "| {} | {} | {mean:.2} | {:.2}× | {:.2} | {:.2} |\n",
                    class.name,
                    shape.name,
                    ratios[ratios.len() / 2],
                    ratios[0],
                    ratios[ratios.len() - 1],
                );
                eprint!("{line}");
                page.push_str(&line);
            }
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

    fn run(&self, kvark: &Path, model: &Path, prompt: &str, flags: &[&str]) -> Result<Sample> {
        let mut command = shell::command(kvark);
        command
            .arg("run")
            .arg("-m")
            .arg(model)
            .args(["--chat", "--json", "--seed", "1"]);
        command.args([
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
            tokens: report["tokens"].clone(),
        })
    }

    fn introduction(&self, kvark: &Path) -> Result<String> {
        let version = shell::output(shell::command(kvark).arg("--version"))?;
        let mut page = String::from("# Speculative decoding\n\n");
        _ = writeln!(
            page,
            "Made by `cargo xtask bench-spec` ({}): SmolLM2-135M-Instruct Q4_1, {} tokens at temperature {}, {} rounds of 2 prompts a \
             class, each run right beside one of plain decoding. The ratio is the median of the rounds' own; every run gave exactly the \
             tokens of plain decoding. *Tokens a forward* counts the bonus token. CPU: {}.\n",
            version.trim(),
            self.predict,
            self.temp,
            self.rounds,
            cpu_name(),
        );
        Ok(page)
    }
}

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
