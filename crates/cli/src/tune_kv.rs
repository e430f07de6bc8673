//! `kvark tune-kv`: storage types for every layer's keys and values, chosen on a text.

use crate::args::{EngineArgs, byte_size};
use crate::plan::scene::{Anchor, Scene};
use crate::plan::svg;
use crate::positional::ModelTextArgs;
use crate::{interrupt, output, prompt};
use anyhow::{Context, Result, bail};
use clap::Args;
use kvark::cache::{KvStorage, TuneOptions, TunedKv, policy_text, tune_kv};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Choose how every layer stores its keys and values, by what it costs on a text
#[derive(Args)]
#[command(
    after_help = "The text is scored once for each layer, side and type, with that side alone in that type. Then those are chosen that \
free the most memory for the least change of the probabilities, until keys and values of a full context (-c) fit the budget. The chosen \
policy, points on the way to it and each type in all layers are scored whole.

The policy is written as TOML, which --kv-policy FILE.toml of other commands takes.

Examples:
  kvark tune-kv -f prose.txt --budget 50% -o policy.toml --svg curve.svg
  kvark tune-kv model.gguf -f prose.txt -c 32768 --budget 2GiB
  kvark run --kv-policy policy.toml -p \"Hello\""
)]
pub(crate) struct TuneKv {
    #[command(flatten)]
    input: ModelTextArgs,
    /// The most memory for keys and values of a full context: a size such as 2GiB, or a share of what they take now such as 50%
    #[arg(long, value_name = "SIZE", default_value = "50%", value_parser = budget)]
    budget: Budget,
    /// The types to choose from, beside those of --cache-type-k and --cache-type-v
    #[arg(long, value_name = "LIST", default_value = "q8,q4", value_delimiter = ',', hide_possible_values = true, value_parser = crate::args::storage_names())]
    types: Vec<KvStorage>,
    /// Use the first N tokens of the text
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..))]
    tokens: u32,
    /// Write the policy to FILE [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Draw the measured points to FILE
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Value of `--budget`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Budget {
    Bytes(u64),
    /// Of the bytes that keys and values take with the types of the options.
    Share(f64),
}

fn budget(text: &str) -> Result<Budget, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return byte_size(text).map(Budget::Bytes);
    };
    let percent: f64 = percent
        .trim()
        .parse()
        .map_err(|_| format!("{text:?} is no share"))?;
    match percent > 0.0 && percent <= 100.0 {
        true => Ok(Budget::Share(percent / 100.0)),
        false => Err("a share must be above 0% and at most 100%".to_owned()),
    }
}

impl TuneKv {
    pub(crate) fn execute(self) -> Result<()> {
        let (model, text) = self.input.resolve(None)?;
        let Some(text) = text else {
            bail!("there is no text: give one with --file or --prompt, or in a pipe");
        };
        let _listening = interrupt::listen();
        self.engine.check_one_mode()?;
        let model = model.open(&self.engine)?;
        let mut ids = prompt::plain(&model, &text)?;
        ids.truncate(self.tokens as usize);
        let mut runner = self.engine.scorer(&model)?;
        let capacity = runner.capacity()?;
        let full = runner.planned_kv_bytes()?;
        let budget = match self.budget {
            Budget::Bytes(bytes) => crate::args::as_bytes(bytes),
            Budget::Share(share) => (full as f64 * share) as usize,
        };
        let options = TuneOptions {
            budget,
            types: self.types.clone(),
        };
        let backend = self.engine.device.backend()?;
        let mut bar = None;
        let tuned = tune_kv(
            &mut runner,
            (&model, &*backend),
            &ids,
            &options,
            |done, runs| {
                bar.get_or_insert_with(|| output::progress("runs", runs))
                    .set_position(done as u64);
                !interrupt::requested()
            },
        );
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let Some(tuned) = tuned? else {
            bail!("interrupted; nothing was written");
        };
        if let Some(file) = &self.svg {
            let text = svg::text(&draw(&tuned, ids.len()));
            write(file, &text)?;
        }
        let policy = policy_text(&tuned.policy);
        let mut out = std::io::stdout();
        if let Some(file) = &self.output {
            write(file, &policy)?;
        }
        if self.json {
            writeln!(out, "{}", report(&tuned, ids.len(), capacity, full))?;
            return Ok(());
        }
        if self.output.is_none() {
            write!(out, "{policy}")?;
        }
        output::note(&summary(&tuned, ids.len(), full));
        Ok(())
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The change of the nll, in per cent.
fn change(tuned: &TunedKv, nll: f64) -> f64 {
    (nll / tuned.nll - 1.0) * 100.0
}

fn summary(tuned: &TunedKv, tokens: usize, full: usize) -> String {
    let line = |name: &str, point: &kvark::cache::TunedPoint| {
        format!(
            "{name:<10} {:>10}  {:>4.0} %  nll {:.5} ({:+.3} %), mean difference {:.5}\n",
            output::bytes(point.bytes as u64),
            point.bytes as f64 / full as f64 * 100.0,
            point.nll,
            change(tuned, point.nll),
            point.mean_logprob,
        )
    };
    let mut text = format!("{tokens} tokens of text\n");
    for (storage, point) in &tuned.uniform {
        text += &line(storage.name(), point);
    }
    for (i, point) in tuned.curve.iter().enumerate() {
        let is_last = i + 1 == tuned.curve.len();
        text += &line(if is_last { "the policy" } else { "on the way" }, point);
    }
    text.trim_end().to_owned()
}

fn report(tuned: &TunedKv, tokens: usize, context: usize, full: usize) -> serde_json::Value {
    let point = |point: &kvark::cache::TunedPoint| {
        json!({
            "bytes": point.bytes,
            "nll": point.nll,
            "nll_change": point.nll / tuned.nll - 1.0,
            "mean_difference": point.mean_logprob,
        })
    };
    let uniform = tuned
        .uniform
        .iter()
        .map(|(storage, at)| (storage.name().to_owned(), point(at)));
    json!({
        "policy": tuned.policy.to_string(),
        "tokens": tokens,
        "context": context,
        "bytes_before": full,
        "nll": tuned.nll,
        "curve": tuned.curve.iter().map(point).collect::<Vec<_>>(),
        "uniform": uniform.collect::<serde_json::Map<_, _>>(),
    })
}

/// The measured points: bytes to the right, the mean difference upwards.
fn draw(tuned: &TunedKv, tokens: usize) -> Scene {
    let [width, height, left, top]: [f32; 4] = [560.0, 260.0, 70.0, 50.0];
    let mut scene = Scene::new(left + width + 60.0, top + height + 60.0);
    let all = || {
        tuned
            .curve
            .iter()
            .chain(tuned.uniform.iter().map(|(_, point)| point))
    };
    let most = all().map(|point| point.bytes).max().unwrap_or(1).max(1) as f32;
    let worst = all().map(|point| point.mean_logprob).fold(1e-9, f64::max) as f32;
    let x = |bytes: usize| left + bytes as f32 / most * width;
    let y = |apart: f64| top + height - apart as f32 / worst * height;
    let (grey, blue, orange) = ([120, 120, 120], [40, 90, 160], [200, 110, 30]);
    scene.text(
        [left, 24.0],
        14.0,
        [30, 30, 30],
        Anchor::Start,
        format!("keys and values by layer, on {tokens} tokens"),
    );
    scene.rect([left, top + height, width, 1.0], grey);
    scene.rect([left, top, 1.0, height], grey);
    for share in 0..=4 {
        let bytes = (most * share as f32 / 4.0) as u64;
        let at = left + width * share as f32 / 4.0;
        scene.text(
            [at, top + height + 18.0],
            11.0,
            grey,
            Anchor::Middle,
            output::bytes(bytes),
        );
    }
    scene.text(
        [left - 6.0, top + 4.0],
        11.0,
        grey,
        Anchor::End,
        format!("{worst:.3}"),
    );
    scene.text(
        [left, top - 10.0],
        11.0,
        grey,
        Anchor::Start,
        "mean difference of log-probabilities".to_owned(),
    );
    let steps: Vec<(f32, f32)> = tuned
        .curve
        .iter()
        .map(|point| (x(point.bytes), y(point.mean_logprob)))
        .collect();
    for pair in steps.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        // A line of short pieces: scenes have rectangles.
        for step in 0..60 {
            let at = step as f32 / 60.0;
            scene.rect([x0 + (x1 - x0) * at, y0 + (y1 - y0) * at, 2.0, 2.0], blue);
        }
    }
    for (point, (x, y)) in tuned.curve.iter().zip(&steps) {
        let title = format!("{:+.3} % nll", change(tuned, point.nll));
        scene.titled([x - 3.0, y - 3.0, 8.0, 8.0], blue, Some(title));
    }
    for (storage, point) in &tuned.uniform {
        let (x, y) = (x(point.bytes), y(point.mean_logprob));
        scene.rect([x - 4.0, y - 4.0, 8.0, 8.0], orange);
        scene.text(
            [x + 8.0, y + 4.0],
            11.0,
            orange,
            Anchor::Start,
            format!("all {storage}"),
        );
    }
    scene
}
