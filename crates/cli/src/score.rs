//! `kvark score`: how likely the model finds a text.

use crate::args::{EngineArgs, token_ids};
use crate::positional::ModelTextArgs;
use crate::{interrupt, output, prompt};
use anyhow::{Result, anyhow, bail};
use clap::Args;
use kvark::backend::Precision;
use kvark::generate::Score as TextScore;
use kvark::{Model, RuntimeErrorKind};
use serde_json::json;
use std::io::Write;

/// Score a text: the log-probability of every token given those before it
#[derive(Args)]
#[command(
    after_help = "The nll is the mean negative log-probability (natural logarithm) per predicted token, and the \
perplexity its exponential.

With --stride, a text longer than the context is scored in windows of the context's size that begin N tokens apart; each scores the \
tokens that the one before did not reach. A small stride gives each token more context, and takes longer. A stream (--kv-policy) scores \
a text of any length in one run.

Examples:
  kvark score \"The capital of France is Paris.\"
  kvark score -p \"The capital of France is Paris.\"
  kvark score model.gguf -f prose.txt --json
  kvark score -f book.txt -c 2048 --stride 1024
  kvark score -f book.txt --kv-policy \"stream window 2048 sinks 4\" --segment 10000
  kvark score -f prose.txt --compare-precision
  kvark score -f prose.txt --cache-type-k q8 --cache-type-v q4 --compare-cache
  kvark score --token-ids 504,3575,282,4649,314 --json"
)]
pub(crate) struct Score {
    #[command(flatten)]
    input: ModelTextArgs,
    /// The sequence as token ids, such as 1,2,3
    #[arg(long, value_name = "IDS", value_parser = token_ids, conflicts_with = "text")]
    token_ids: Option<TokenIds>,
    /// Score a text longer than the context in windows that begin N tokens apart; N is below the context's size
    #[arg(long, visible_alias = "ppl-stride", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    stride: Option<u32>,
    /// Print the nll of every N predicted tokens instead of every token
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["compare_precision", "compare_cache"])]
    segment: Option<u32>,
    /// Score the text in every precision and print the mean difference of the log-probabilities, and how many of the most likely
    /// tokens differ
    #[arg(long, conflicts_with_all = ["stride", "precision"])]
    compare_precision: bool,
    /// Score the text with keys and values in f16 and as the options store them, and print the mean difference of the
    /// log-probabilities, and how many of the most likely tokens differ
    #[arg(long, conflicts_with_all = ["stride", "compare_precision"])]
    compare_cache: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// A list that clap parses as one value.
type TokenIds = Vec<u32>;

impl Score {
    pub(crate) fn execute(self) -> Result<()> {
        let ids = self.token_ids.as_ref().map(|_| "--token-ids");
        let (model, text) = self.input.resolve(ids)?;
        if text.is_none() && self.token_ids.is_none() {
            bail!(
                "nothing to score: give a text after the model, with --prompt, --file or --token-ids, or in a pipe"
            );
        }
        let _listening = interrupt::listen();
        self.engine.check_one_mode()?;
        let model = model.open(&self.engine)?;
        let ids = match (self.token_ids, text) {
            (Some(ids), _) => ids,
            (None, text) => prompt::plain(&model, &text.unwrap_or_default())?,
        };
        if self.compare_precision {
            return compare_precision(self.engine, &model, &ids, self.json);
        }
        if self.compare_cache {
            return compare_cache(self.engine, &model, &ids, self.json);
        }
        let mut runner = self.engine.scorer(&model)?;
        let bar = output::progress("score", ids.len());
        let progress = |done| {
            bar.set_position(done as u64);
            !interrupt::requested()
        };
        let score = match self.stride {
            Some(stride) => {
                let tokenizer = model.tokenizer().ok();
                let bos = tokenizer.filter(|t| t.adds_bos()).and_then(|t| t.bos());
                runner.score_windows(&ids, stride as usize, bos, progress)
            }
            None => runner.score(&ids, progress),
        };
        bar.finish_and_clear();
        let score = score.map_err(|error| match error.kind() {
            RuntimeErrorKind::PromptTooLong {
                capacity, tokens, ..
            } => anyhow!(
                "{error}; -c {tokens} makes the context large enough, and --stride {} scores the text in windows",
                (capacity / 2).max(1)
            ),
            _ => error.into(),
        })?;
        if interrupt::requested() {
            bail!(
                "interrupted after {} of {} tokens",
                score.argmax.len(),
                ids.len()
            );
        }
        let mut out = std::io::stdout();
        if self.json {
            let mut report = json!({
                "ids": ids,
                "argmax": score.argmax,
                "logprob": score.logprob,
                "nll": score.nll(),
                "perplexity": score.perplexity(),
            });
            if let Some(tokens) = self.segment {
                let segments = score.segments(tokens as usize);
                let segments = segments.map(|(tokens, nll)| json!({"tokens": tokens, "nll": nll}));
                report["segments"] = segments.collect();
            }
            writeln!(out, "{report}")?;
        } else {
            if let Some(tokens) = self.segment {
                let mut begin = 1;
                for (tokens, nll) in score.segments(tokens as usize) {
                    let end = begin + tokens - 1;
                    let perplexity = nll.exp();
                    writeln!(
                        out,
                        "tokens {begin} to {end}: nll {nll:.4}, perplexity {perplexity:.3}"
                    )?;
                    begin = end + 1;
                }
            }
            let shown = if self.segment.is_some() { 0 } else { ids.len() };
            for (id, logprob) in ids.iter().skip(1).zip(&score.logprob).take(shown) {
                // The token's text; its id if the file has no tokenizer.
                let piece = match model.tokenizer().ok().and_then(|t| t.token_bytes(*id)) {
                    Some(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
                    None => id.to_string(),
                };
                writeln!(out, "{logprob:>10.4}  {piece}")?;
            }
            writeln!(
                out,
                "{} tokens, nll {:.4}, perplexity {:.3}",
                ids.len(),
                score.nll(),
                score.perplexity()
            )?;
        }
        Ok(())
    }
}

/// Prints how far the scores of a text in the other precisions are from those in high precision.
fn compare_precision(
    mut engine: EngineArgs,
    model: &Model,
    ids: &[u32],
    as_json: bool,
) -> Result<()> {
    let mut score = |precision: Precision| {
        engine.precision = precision;
        whole(precision.name(), &engine, model, ids)
    };
    let high = score(Precision::High)?;
    let others = [Precision::Balanced, Precision::Fast];
    let others = others.map(|precision| Ok((precision.name(), score(precision)?)));
    let others: Result<Vec<_>> = others.into_iter().collect();
    print_comparison(("in high precision", &high), &others?, as_json)
}

/// Prints how far the scores of a text with the cache of the options are from those with a cache in f16.
fn compare_cache(mut engine: EngineArgs, model: &Model, ids: &[u32], as_json: bool) -> Result<()> {
    let own = whole("cache", &engine, model, ids)?;
    engine.cache_in_f16();
    let plain = whole("f16", &engine, model, ids)?;
    let others = [("cache", own)];
    print_comparison(("with keys and values in f16", &plain), &others, as_json)
}

/// The score of a whole text.
fn whole(name: &'static str, engine: &EngineArgs, model: &Model, ids: &[u32]) -> Result<TextScore> {
    let bar = output::progress(name, ids.len());
    let score = engine.scorer(model)?.score(ids, |done| {
        bar.set_position(done as u64);
        !interrupt::requested()
    });
    bar.finish_and_clear();
    if interrupt::requested() {
        bail!("interrupted");
    }
    Ok(score?)
}

/// Prints a score, and how far others are from it.
fn print_comparison(
    (how, first): (&str, &TextScore),
    others: &[(&str, TextScore)],
    as_json: bool,
) -> Result<()> {
    let mut out = std::io::stdout();
    let tokens = first.argmax.len();
    let mut report = json!({"tokens": tokens, "nll": first.nll()});
    if !as_json {
        writeln!(out, "{tokens} tokens, nll {:.5} {how}", first.nll())?;
    }
    for (name, other) in others {
        let pairs = first.logprob.iter().zip(&other.logprob);
        let differences: Vec<f64> = pairs.map(|(a, b)| (a - b).abs()).collect();
        let mean = differences.iter().sum::<f64>() / differences.len() as f64;
        let largest = differences.iter().copied().fold(0.0, f64::max);
        let likely = first.argmax.iter().zip(&other.argmax);
        let others = likely.filter(|(a, b)| a != b).count();
        if as_json {
            report[*name] = json!({
                "mean_difference": mean,
                "largest_difference": largest,
                "other_most_likely_tokens": others,
                "nll": other.nll(),
            });
        } else {
            writeln!(
                out,
                "{name}: log-probabilities differ by {mean:.5} on average and {largest:.4} at most; the most likely token differs \
                 at {others}; nll {:.5} ({:+.2} %)",
                other.nll(),
                (other.nll() / first.nll() - 1.0) * 100.0
            )?;
        }
    }
    if as_json {
        writeln!(out, "{report}")?;
    }
    Ok(())
}
