//! Shared by interleaved benchmarks: flags, test cases, the kvark process and the driver of the peer.

use crate::shell;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Flags of a comparison.
#[derive(Args)]
pub(super) struct TurnArgs {
    /// Number of measurements per test and side
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Numbers of threads [default: all cores]
    #[arg(short, long, value_name = "N", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Prompt lengths to measure; 0 for none
    #[arg(
        short = 'p',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "512"
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
    /// Numbers of tokens in the context before the generated ones
    #[arg(
        short = 'd',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "0,512"
    )]
    n_depth: Vec<usize>,
    /// kvark binary to measure instead of the release build
    #[arg(long, value_name = "PATH")]
    kvark: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Also write the results as a Markdown document
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

impl TurnArgs {
    /// The tests that were asked for.
    pub(super) fn cases(&self) -> Vec<Case> {
        Case::all(&self.threads, &self.n_prompt, &self.n_gen, &self.n_depth)
    }

    /// The kvark side.
    pub(super) fn kvark(&self) -> Result<Kvark> {
        Kvark::new(self.kvark.as_deref())
    }

    /// Prints the results, and writes the document if one was asked for.
    pub(super) fn report(&self, markdown: &str, json: &Value) -> Result<()> {
        if let Some(file) = &self.markdown {
            std::fs::write(file, markdown).with_context(|| file.display().to_string())?;
        }
        if self.json {
            println!("{json}");
        } else {
            print!("{markdown}");
        }
        Ok(())
    }
}

/// A test case.
#[derive(Clone, Copy)]
pub(super) struct Case {
    /// `pp` for a prompt, `tg` for generated tokens.
    pub(super) kind: &'static str,
    pub(super) n: usize,
    /// Tokens in the context before the measured ones.
    pub(super) depth: usize,
    pub(super) threads: usize,
}

impl Case {
    /// The name that `kvark bench` gives it.
    pub(super) fn name(&self) -> String {
        let Case { kind, n, depth, .. } = self;
        match depth {
            0 => format!("{kind}{n}"),
            _ => format!("{kind}{n}@d{depth}"),
        }
    }

    /// Prompts of these lengths, then texts of these lengths at these depths, on so many threads each.
    pub(super) fn all(
        threads: &[usize],
        prompts: &[usize],
        texts: &[usize],
        depths: &[usize],
    ) -> Vec<Case> {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads.is_empty() { &[all] } else { threads };
        let mut cases = Vec::new();
        for &threads in threads {
            let mut add = |kind, n, depth| {
                if n > 0 {
                    cases.push(Case {
                        kind,
                        n,
                        depth,
                        threads,
                    });
                }
            };
            prompts.iter().for_each(|n| add("pp", *n, 0));
            for n in texts {
                depths.iter().for_each(|depth| add("tg", *n, *depth));
            }
        }
        cases
    }
}

/// The kvark side: one process per measurement.
pub(super) struct Kvark {
    program: PathBuf,
    /// The tier of kernels to force; otherwise the environment decides.
    pub(super) tier: Option<String>,
    /// The precision of quantised products; otherwise kvark's default.
    pub(super) precision: Option<String>,
    pub(super) version: String,
    pub(super) cpu: String,
    pub(super) isa: String,
}

/// Result of `kvark bench` for a test.
#[derive(Clone, Copy)]
pub(super) struct Speed {
    pub(super) tokens_per_second: f64,
    /// Bytes that a step reads.
    pub(super) step_bytes: f64,
    /// Measured read bandwidth of its threads, in bytes per second.
    pub(super) read_bytes_per_second: f64,
}

impl Kvark {
    /// The given program, or the tree's release build.
    fn new(program: Option<&Path>) -> Result<Kvark> {
        let (program, origin) = match program {
            Some(path) => {
                let path = path
                    .canonicalize()
                    .with_context(|| path.display().to_string())?;
                (path, "a given program".to_owned())
            }
            None => {
                let mut describe = shell::command("git");
                describe.args(["describe", "--always", "--dirty"]);
                let commit = shell::output(&mut describe).unwrap_or_default();
                (crate::model::kvark()?, format!("commit {}", commit.trim()))
            }
        };
        let version = shell::output(shell::command(&program).arg("--version"))?;
        Ok(Kvark {
            program,
            tier: None,
            precision: None,
            version: format!("{} ({origin})", version.trim()),
            cpu: String::new(),
            isa: String::new(),
        })
    }

    pub(super) fn command(&self) -> Command {
        let mut command = shell::command(&self.program);
        if let Some(tier) = &self.tier {
            command.env("KVARK_ISA", tier);
        }
        command
    }

    /// The speed of a test on a model.
    pub(super) fn measure(&mut self, model: &Path, case: Case, more: &[&str]) -> Result<Speed> {
        let n = case.n.to_string();
        let (prompt, generated) = if case.kind == "pp" {
            (n.as_str(), "0")
        } else {
            ("0", n.as_str())
        };
        let (depth, threads) = (case.depth.to_string(), case.threads.to_string());
        let tests = ["-r", "1", "-p", prompt, "-n", generated];
        let tests = [&tests, &["-d", &depth, "-t", &threads][..], more].concat();
        let speeds = self.bench(model, &tests)?;
        speeds.first().copied().context("nothing to measure")
    }

    /// The speeds of the tests that these flags of `kvark bench` name.
    pub(super) fn bench(&mut self, model: &Path, flags: &[&str]) -> Result<Vec<Speed>> {
        let mut bench = self.command();
        bench.arg("bench").arg(model).arg("--json").args(flags);
        if let Some(precision) = &self.precision {
            bench.args(["--precision", precision]);
        }
        let report: Value = serde_json::from_str(&shell::output(&mut bench)?)?;
        self.cpu = text(&report, "cpu")?;
        self.isa = text(&report, "isa")?;
        let results = report["results"].as_array().into_iter().flatten();
        results
            .map(|test| {
                Ok(Speed {
                    tokens_per_second: number(test, "/tokens_per_second_mean")?,
                    step_bytes: number(test, "/step/bytes")?,
                    read_bytes_per_second: number(&report, "/machine/read_bytes_per_second")?,
                })
            })
            .collect()
    }
}

/// A driver process of the peer: one JSON line of answer per JSON line of input.
pub(super) struct Driver {
    name: &'static str,
    process: Child,
    ask: Option<ChildStdin>,
    answers: Receiver<String>,
    /// The longest time that an answer may take; no limit by default.
    pub(super) patience: Option<Duration>,
}

impl Driver {
    pub(super) fn start(name: &'static str, command: &mut Command) -> Result<Driver> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the {name} driver"))?;
        let lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
        // A thread reads, so that a wait for an answer can end without one.
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Ok(Driver {
            name,
            ask: process.stdin.take(),
            process,
            answers,
            patience: None,
        })
    }

    /// The answer to a question. After an error the process has ended.
    pub(super) fn ask(&mut self, question: &Value) -> Result<Value> {
        let name = self.name;
        let ask = self.ask.as_mut().expect("open until dropped");
        let sent = writeln!(ask, "{question}").and_then(|()| ask.flush());
        let answer = match self.patience {
            Some(patience) => self.answers.recv_timeout(patience),
            None => self.answers.recv().map_err(RecvTimeoutError::from),
        };
        let line = match answer {
            Ok(line) if sent.is_ok() => line,
            Err(RecvTimeoutError::Timeout) => {
                let seconds = self.patience.unwrap_or_default().as_secs();
                self.process.kill()?;
                self.process.wait()?;
                bail!("{name} took more than {seconds} s");
            }
            _ => bail!("the {name} driver ended: {}", self.process.wait()?),
        };
        serde_json::from_str(&line).with_context(|| format!("the {name} driver answered {line:?}"))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The driver ends with its input.
        self.ask = None;
        let _ = self.process.wait();
    }
}

pub(super) fn text(value: &Value, key: &str) -> Result<String> {
    let text = value[key].as_str().map(str::to_owned);
    text.ok_or_else(|| anyhow!("{value} has no {key}"))
}

fn number(value: &Value, pointer: &str) -> Result<f64> {
    let number = value.pointer(pointer).and_then(Value::as_f64);
    number.ok_or_else(|| anyhow!("{value} has no {pointer}"))
}

/// Minimum and maximum.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(0.0, f64::max))
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_the_middle() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), 3.0);
    }

    #[test]
    fn tests_are_named_as_kvark_bench_names_them() {
        let cases = Case::all(&[1], &[128, 0], &[64], &[0, 512]);
        let names: Vec<String> = cases.iter().map(Case::name).collect();
        assert_eq!(names, ["pp128", "tg64", "tg64@d512"]);
    }
}
