//! `kvark run`: completes a prompt.

use crate::args::{EngineArgs, ModelArgs, SamplingArgs, TextArgs, token_ids};
use crate::{interrupt, output};
use anyhow::{Result, bail};
use clap::Args;
use kvark::{
    EncodeOptions, GenerateOptions, Generated, Memory, Message, Model, Piece, Sampler, Timings,
};
use serde_json::{Value, json};
use std::io::Write;

/// Complete a prompt
#[derive(Args)]
#[command(after_help = "Examples:
  kvark run -p \"The capital of France is\" -n 16 --temp 0
  kvark run --chat -p \"Why is the sky blue?\"
  kvark run model.gguf -f prompt.txt --json")]
pub(crate) struct Run {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// The prompt as token ids, such as 1,2,3
    #[arg(long, value_name = "IDS", value_parser = token_ids, conflicts_with = "text")]
    token_ids: Option<TokenIds>,
    /// Treat the prompt as a user's message and apply the model's chat template
    #[arg(long, conflicts_with = "token_ids")]
    chat: bool,
    /// Most tokens to generate; -1 until the model ends or the context is full
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_hyphen_values = true, value_parser = predict)]
    predict: i64,
    /// End the text at this string; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on past the model's end of text
    #[arg(long)]
    ignore_eos: bool,
    /// Do not repeat the prompt in the output
    #[arg(long)]
    no_display_prompt: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// A list that clap takes as one value.
type TokenIds = Vec<u32>;

pub(crate) fn predict(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(n) if n == -1 || n > 0 => Ok(n),
        _ => Err("must be a number of at least 1, or -1 for no limit".into()),
    }
}

impl Run {
    pub(crate) fn execute(self) -> Result<()> {
        let text = self.text.read()?;
        if text.is_none() && self.token_ids.is_none() {
            bail!("no prompt: give one with --prompt, --file or --token-ids");
        }
        let model = self.model.open(&self.engine)?;
        let (prompt, shown) = self.prompt(&model, text)?;
        let mut runner = self.engine.runner(&model)?;
        let mut sampler = Sampler::new(self.sampling.options());
        let options = GenerateOptions {
            max_tokens: usize::try_from(self.predict).ok(),
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
        };
        if let (Some(text), false) = (&shown, self.json || self.no_display_prompt) {
            print!("{text}");
            std::io::stdout().flush()?;
        }
        let bar = output::progress("prompt", prompt.len());
        let mut broken = None;
        let generated = runner.generate(&model, &prompt, &mut sampler, &options, |piece| {
            match piece {
                Piece::Prompt(done) => bar.set_position(done as u64),
                Piece::Text(text) => {
                    bar.finish_and_clear();
                    if !self.json {
                        let written = write!(std::io::stdout(), "{text}")
                            .and_then(|()| std::io::stdout().flush());
                        broken = written.err();
                    }
                }
            }
            !interrupt::asked() && broken.is_none()
        })?;
        bar.finish_and_clear();
        if let Some(error) = broken {
            return Err(error.into());
        }
        if self.json {
            println!("{}", report(&prompt, &generated, runner.memory()?));
        } else {
            println!();
            let Timings {
                prompt_tokens,
                prompt,
                generated_tokens,
                generated: time,
            } = generated.timings;
            eprintln!(
                "[prompt {prompt_tokens} tokens, {:.1}/s; generated {generated_tokens} tokens, {:.1}/s; {}]",
                per_second(prompt_tokens, prompt),
                per_second(generated_tokens, time),
                generated.finish.name(),
            );
        }
        Ok(())
    }

    /// The prompt's tokens, and its text to show.
    fn prompt(&self, model: &Model, text: Option<String>) -> Result<(Vec<u32>, Option<String>)> {
        if let Some(ids) = &self.token_ids {
            return Ok((ids.clone(), None));
        }
        let text = text.unwrap_or_default();
        if self.chat {
            let rendered = model
                .template()
                .render(&[Message::new("user", text)], true)?;
            return Ok((
                model.tokenizer().encode(
                    &rendered,
                    EncodeOptions {
                        special: true,
                        ..Default::default()
                    },
                ),
                None,
            ));
        }
        let options = EncodeOptions {
            bos: model.tokenizer().adds_bos(),
            ..Default::default()
        };
        Ok((model.tokenizer().encode(&text, options), Some(text)))
    }
}

pub(crate) fn per_second(n: usize, time: std::time::Duration) -> f64 {
    n as f64 / time.as_secs_f64().max(1e-9)
}

fn report(prompt: &[u32], generated: &Generated, memory: Memory) -> Value {
    let t = generated.timings;
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    json!({
        "prompt_tokens": prompt,
        "tokens": generated.tokens,
        "text": generated.text,
        "finish_reason": generated.finish.name(),
        "timings": {
            "prompt_n": t.prompt_tokens,
            "prompt_ms": ms(t.prompt),
            "prompt_per_second": per_second(t.prompt_tokens, t.prompt),
            "predicted_n": t.generated_tokens,
            "predicted_ms": ms(t.generated),
            "predicted_per_second": per_second(t.generated_tokens, t.generated),
        },
        "memory": { "weights_bytes": memory.weights, "kv_bytes": memory.kv, "arena_bytes": memory.arena },
    })
}
