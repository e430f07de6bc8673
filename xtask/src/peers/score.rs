//! `cargo xtask score-peers`: how far kvark and llama.cpp are from float32 truth.

use super::script;
use crate::{model, shell};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Compare the accuracy of kvark and llama.cpp: how far each is from transformers in float32
#[derive(Args)]
#[command(
    after_help = "All three read the same GGUF file and the same token ids: eight short texts (xtask/peers/prompts.json) \
and a longer piece of prose (xtask/peers/prose.txt). The figure is the mean over all predicted tokens of |Δ log p| of \
the given next token; smaller is better."
)]
pub(crate) struct ScorePeers {
    /// Model (GGUF, of an architecture that transformers reads from GGUF) [default: SmolLM2-135M-Instruct]
    #[arg(short, long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// kvark binary to measure instead of the release build
    #[arg(long, value_name = "PATH")]
    kvark: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How the keys and values of kvark's runs are stored.
const STORAGES: [&str; 2] = ["f16", "f32"];
/// The sets of texts.
const SETS: [&str; 2] = ["short", "long"];

/// Running mean of absolute differences.
#[derive(Clone, Copy, Default)]
struct Distance {
    sum: f64,
    count: usize,
}

impl Distance {
    fn add(&mut self, truth: &[f64], other: &[f64]) -> Result<()> {
        if truth.len() != other.len() {
            bail!(
                "got {} log-probabilities, expected {}",
                other.len(),
                truth.len()
            );
        }
        self.sum += truth
            .iter()
            .zip(other)
            .map(|(a, b)| (a - b).abs())
            .sum::<f64>();
        self.count += truth.len();
        Ok(())
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }
}

impl ScorePeers {
    pub(crate) fn execute(self) -> Result<()> {
        let model = model::find(self.model)?;
        let kvark = match self.kvark {
            Some(path) => path
                .canonicalize()
                .with_context(|| path.display().to_string())?,
            None => model::kvark()?,
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut python = script::TRUTH.command()?;
        python.arg(&model).arg(threads.to_string());
        eprintln!("computing the truth (about a minute)");
        let peers: Value = serde_json::from_str(&shell::output(&mut python)?)?;

        // One row per program, one column per set.
        let names = ["kvark, f16 KV", "kvark, f32 KV", "llama.cpp, f16 KV"];
        let mut distances = [[Distance::default(); SETS.len()]; 3];
        let texts = peers["texts"]
            .as_array()
            .context("truth.py names no texts")?;
        for text in texts {
            let set = SETS.iter().position(|set| text["set"] == **set);
            let set = set.context("truth.py names an unknown set")?;
            let truth = numbers(&text["truth"])?;
            for (row, storage) in STORAGES.iter().enumerate() {
                let ids: Vec<String> = numbers(&text["ids"])?.iter().map(f64::to_string).collect();
                let mut score = shell::command(&kvark);
                score
                    .arg("score")
                    .arg(&model)
                    .args(["--json", "--token-ids", &ids.join(",")]);
                score.args(["--cache-type-k", storage, "--cache-type-v", storage]);
                let score: Value = serde_json::from_str(&shell::output(&mut score)?)?;
                distances[row][set].add(&truth, &numbers(&score["logprob"])?)?;
            }
            distances[2][set].add(&truth, &numbers(&text["llama"])?)?;
        }

        let file = model.file_name().unwrap_or_default().to_string_lossy();
        if self.json {
            let rows: Vec<Value> = names
                .iter()
                .zip(&distances)
                .map(|(name, row)| json!({ "name": name, "short": row[0].mean(), "long": row[1].mean() }))
                .collect();
            let report = json!({
                "model": file,
                "tokens": { "short": distances[0][0].count, "long": distances[0][1].count },
                "versions": peers["versions"],
                "mean_abs_log_p_difference": rows,
            });
            println!("{report}");
            return Ok(());
        }
        let versions: Vec<&str> = peers["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        println!(
            "{file}: mean |Δ log p| from float32 ({})\n",
            versions.join(", ")
        );
        println!(
            "| | short ({} tokens) | long ({} tokens) |",
            distances[0][0].count, distances[0][1].count
        );
        println!("|---|--:|--:|");
        for (name, row) in names.iter().zip(&distances) {
            println!("| {name} | {:.5} | {:.5} |", row[0].mean(), row[1].mean());
        }
        Ok(())
    }
}

fn numbers(value: &Value) -> Result<Vec<f64>> {
    let array = value.as_array().context("a list of numbers is missing")?;
    array
        .iter()
        .map(|x| x.as_f64().context("not a number"))
        .collect()
}
