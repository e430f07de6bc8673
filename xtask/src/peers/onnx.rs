//! `cargo xtask bench-onnx`: compares kvark and ONNX Runtime on the same decoders, interleaved.

use super::script;
use super::turns::{Case, Driver, Kvark, TurnArgs, median, range, text};
use crate::shell;
use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// Compare the speed of kvark and ONNX Runtime on the same decoders, interleaved on one machine
#[derive(Args)]
#[command(
    after_help = "The model is a llama of SmolLM2-135M's shape with random weights and a static cache, built by mobius, once in \
f32 and once with its products in int4 (MatMulNBits, blocks of 32). ONNX Runtime has past and present of every cache bound to \
one buffer. Its prompts are measured twice: with the model as it is, which computes the logits of all tokens, and with a copy \
that computes those of the last one, as kvark does; ratios are to the faster of the two. Both sides run a test once uncounted \
before it counts, and who goes first changes with the round. A ratio above 1 means that kvark is faster; it is the median of \
the rounds' own ratios.

Examples:
  cargo xtask bench-onnx
  cargo xtask bench-onnx --rounds 9 -t 1,2 --markdown docs/benchmarks/onnx.md
  cargo xtask bench-onnx --tiny --rounds 1 -p 32 -n 8 -d 0"
)]
pub(crate) struct BenchOnnx {
    #[command(flatten)]
    turns: TurnArgs,
    /// Build small models, to try the command
    #[arg(long)]
    tiny: bool,
}

/// How the model's products are stored.
const WEIGHTS: [&str; 2] = ["f32", "int4"];

/// Tokens per second of both sides, round by round.
struct Row {
    weights: &'static str,
    case: Case,
    kvark: Vec<f64>,
    /// ONNX Runtime with the model as it is.
    whole: Vec<f64>,
    /// ONNX Runtime with the copy that computes the last token's logits; for one token it is the same.
    last: Vec<f64>,
}

impl Row {
    fn ratios(&self) -> Vec<f64> {
        let theirs = self.whole.iter().zip(&self.last);
        let pairs = self.kvark.iter().zip(theirs);
        pairs.map(|(kvark, (a, b))| kvark / a.max(*b)).collect()
    }
}

/// Results and the machine they were measured on.
struct Report {
    rows: Vec<Row>,
    rounds: u32,
    model: String,
    cpu: String,
    isa: String,
    kvark_version: String,
    ort_version: String,
    /// Per kind of weights, the largest difference of logits.
    differences: Vec<(&'static str, f64)>,
}

impl BenchOnnx {
    pub(crate) fn execute(self) -> Result<()> {
        let report = self.measure(self.turns.kvark()?)?;
        self.turns.report(&report.markdown(), &report.json())
    }

    fn measure(&self, mut kvark: Kvark) -> Result<Report> {
        let cases = self.turns.cases();
        let longest = cases.iter().map(|case| case.n + case.depth).max();
        let longest = longest.context("nothing to measure")?;
        let mut ort = Driver::start("ONNX Runtime", &mut script::ONNX_BENCH.command()?)?;
        let folder = shell::target().join(if self.tiny {
            "bench-onnx-tiny"
        } else {
            "bench-onnx"
        });
        // Few distinct lengths, so that models built earlier can be reused.
        let context = longest.next_multiple_of(1024);
        let hello = ort.ask(
            &json!({ "do": "build", "folder": folder, "context": context, "tiny": self.tiny }),
        )?;
        let file = |weights: &str| folder.join(format!("{weights}.onnx"));
        let mut differences = Vec::new();
        for weights in WEIGHTS {
            let ids = [1, 5, 3, 8, 2, 7];
            let theirs = ort.ask(&json!({ "do": "score", "weights": weights, "ids": ids }))?;
            differences.push((
                weights,
                difference(&kvark.score(&file(weights), &ids)?, &theirs)?,
            ));
        }
        let mut rows: Vec<Row> = Vec::new();
        for weights in WEIGHTS {
            rows.extend(cases.iter().map(|case| Row {
                weights,
                case: *case,
                kvark: vec![],
                whole: vec![],
                last: vec![],
            }));
        }
        for round in 0..self.turns.rounds {
            for row in &mut rows {
                for turn in 0..2 {
                    if (round + turn) % 2 == 0 {
                        // The file's cache is f32, and so is ONNX Runtime's.
                        let storage = ["--cache-type-k", "f32", "--cache-type-v", "f32"];
                        let speed = kvark.measure(&file(row.weights), row.case, &storage)?;
                        row.kvark.push(speed.tokens_per_second);
                    } else {
                        row.whole.push(ask(&mut ort, row, false)?);
                        row.last.push(ask(&mut ort, row, true)?);
                    }
                }
                let last = round as usize;
                eprintln!(
                    "round {} of {}: {} {:<10} {} threads: kvark {:.1}, ONNX Runtime {:.1}, last row {:.1} tokens/s",
                    round + 1,
                    self.turns.rounds,
                    row.weights,
                    row.case.name(),
                    row.case.threads,
                    row.kvark[last],
                    row.whole[last],
                    row.last[last],
                );
            }
        }
        Ok(Report {
            rows,
            rounds: self.turns.rounds,
            model: text(&hello, "model")?,
            cpu: kvark.cpu,
            isa: kvark.isa,
            kvark_version: kvark.version,
            ort_version: text(&hello, "version")?,
            differences,
        })
    }
}

fn ask(ort: &mut Driver, row: &Row, last: bool) -> Result<f64> {
    let Case {
        kind,
        n,
        depth,
        threads,
    } = row.case;
    let answer = ort.ask(&json!({ "do": "time", "weights": row.weights, "last": last,
        "kind": kind, "n": n, "depth": depth, "threads": threads }))?;
    answer["tokens_per_second"]
        .as_f64()
        .with_context(|| format!("the ONNX Runtime driver measured nothing: {answer}"))
}

/// The largest difference of log-probabilities.
fn difference(ours: &Value, theirs: &Value) -> Result<f64> {
    let list = |value: &Value| -> Option<Vec<f64>> {
        value["logprob"]
            .as_array()?
            .iter()
            .map(Value::as_f64)
            .collect()
    };
    let (ours, theirs) = list(ours)
        .zip(list(theirs))
        .context("no log-probabilities")?;
    let away = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs());
    Ok(away.fold(0.0, f64::max))
}

impl Kvark {
    /// `kvark score` of a few tokens.
    fn score(&self, model: &Path, ids: &[u32]) -> Result<Value> {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        let mut score = self.command();
        score
            .arg("score")
            .arg(model)
            .args(["--json", "--token-ids", &ids.join(",")]);
        score.args(["--cache-type-k", "f32", "--cache-type-v", "f32"]);
        Ok(serde_json::from_str(&shell::output(&mut score)?)?)
    }
}

impl Report {
    fn markdown(&self) -> String {
        let mut out = String::from(
            "# kvark and ONNX Runtime on the same decoders\n\n\
             | weights | test | threads | kvark (tokens/s) | ONNX Runtime (tokens/s) | its last row only | ratio | ratio, least to most |\n\
             |---|---|--:|--:|--:|--:|--:|--:|\n",
        );
        for row in &self.rows {
            let ratios = row.ratios();
            let (least, most) = range(&ratios);
            let _ = writeln!(
                out,
                "| {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} to {:.2} |",
                row.weights,
                row.case.name(),
                row.case.threads,
                median(&row.kvark),
                median(&row.whole),
                median(&row.last),
                median(&ratios),
                least,
                most,
            );
        }
        let _ = write!(
            out,
            "\nMedians of {} rounds, both sides turn by turn; made by `cargo xtask bench-onnx`. Ratios are to the faster form of\n\
             ONNX Runtime: above 1 kvark is faster.\n\n\
             - model: {}\n- CPU: {}\n- {}, {} kernels, KV in f32\n- {}; past and present of every cache are one bound buffer\n",
            self.rounds, self.model, self.cpu, self.kvark_version, self.isa, self.ort_version,
        );
        for (weights, difference) in &self.differences {
            let _ = writeln!(
                out,
                "- log-probabilities of a few tokens with {weights} weights differ by {difference:.1e} at most"
            );
        }
        out
    }

    fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "weights": row.weights,
                "test": row.case.name(),
                "threads": row.case.threads,
                "kvark": row.kvark,
                "onnxruntime": row.whole,
                "onnxruntime_last_row": row.last,
                "kvark_median": median(&row.kvark),
                "ratio": median(&row.ratios()),
            })
        };
        json!({
            "results": self.rows.iter().map(row).collect::<Vec<_>>(),
            "rounds": self.rounds,
            "model": self.model,
            "cpu": self.cpu,
            "isa": self.isa,
            "kvark_version": self.kvark_version,
            "onnxruntime_version": self.ort_version,
            "differences": self.differences,
        })
    }
}
