//! `kvark score`: how likely the model finds a text.

use crate::args::{EngineArgs, ModelArgs, TextArgs, token_ids};
use crate::{interrupt, output};
use anyhow::{Result, bail};
use clap::Args;
use kvark::EncodeOptions;
use serde_json::json;

/// Score a text: the log-probability of every token given those before it
#[derive(Args)]
#[command(
    after_help = "The nll is the mean negative log-probability (natural logarithm) per predicted token, and the \
perplexity its exponential.

Examples:
  kvark score -p \"The capital of France is Paris.\"
  kvark score model.gguf -f prose.txt --json
  kvark score --token-ids 504,3575,282,4649,314 --json"
)]
pub(crate) struct Score {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// The sequence as token ids, such as 1,2,3
    #[arg(long, value_name = "IDS", value_parser = token_ids, conflicts_with = "text")]
    token_ids: Option<TokenIds>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// A list that clap takes as one value.
type TokenIds = Vec<u32>;

impl Score {
    pub(crate) fn execute(self) -> Result<()> {
        let text = self.text.read()?;
        if text.is_none() && self.token_ids.is_none() {
            bail!("nothing to score: give --prompt, --file or --token-ids");
        }
        let model = self.model.open(&self.engine)?;
        let tokenizer = model.tokenizer();
        let encode = |text: String| {
            tokenizer.encode(
                &text,
                EncodeOptions {
                    bos: tokenizer.adds_bos(),
                    ..Default::default()
                },
            )
        };
        let ids = self
            .token_ids
            .unwrap_or_else(|| text.map(encode).unwrap_or_default());
        let mut runner = self.engine.runner(&model)?;
        let bar = output::progress("score", ids.len());
        let score = runner.score(&ids, |done| {
            bar.set_position(done as u64);
            !interrupt::asked()
        })?;
        bar.finish_and_clear();
        if interrupt::asked() {
            bail!(
                "interrupted after {} of {} tokens",
                score.argmax.len(),
                ids.len()
            );
        }
        if self.json {
            let report = json!({
                "ids": ids,
                "argmax": score.argmax,
                "logprob": score.logprob,
                "nll": score.nll(),
                "perplexity": score.perplexity(),
            });
            println!("{report}");
        } else {
            for (id, logprob) in ids.iter().skip(1).zip(&score.logprob) {
                println!("{logprob:>10.4}  {:?}", tokenizer.decode(&[*id], true));
            }
            println!(
                "{} tokens, nll {:.4}, perplexity {:.3}",
                ids.len(),
                score.nll(),
                score.perplexity()
            );
        }
        Ok(())
    }
}
