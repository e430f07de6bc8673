//! `kvark tokenize` and `detokenize`: text to token ids and back, from the file's header alone.

use crate::args::{ModelArgs, token_ids};
use crate::catalogue::HubArgs;
use crate::positional::ModelTextArgs;
use crate::text_input;
use anyhow::{Context, Result, bail};
use clap::Args;
use kvark::model::open_tokenizer;
use kvark::text::EncodeOptions;
use serde_json::json;
use std::io::Write;

/// Turn text into token ids
#[derive(Args)]
#[command(after_help = "Examples:
  kvark tokenize \"Hello, world\"
  echo \"Hello, world\" | kvark tokenize
  kvark tokenize model.gguf --file prose.txt --bos --json
  kvark tokenize --special -p \"<|im_start|>user\"")]
pub(crate) struct Tokenize {
    #[command(flatten)]
    input: ModelTextArgs,
    /// Add the model's BOS token, if it has one
    #[arg(long)]
    bos: bool,
    /// Parse special tokens in the text
    #[arg(long)]
    special: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Turn token ids into text
#[derive(Args)]
#[command(after_help = "Examples:
  kvark detokenize 19556,28,905
  kvark tokenize \"Hello, world\" | kvark detokenize
  kvark detokenize model.gguf 1 2 3
  kvark detokenize -m model.gguf --token-ids 1,2,3 --json")]
pub(crate) struct Detokenize {
    /// Path, name or reference, unless it is a token id; then token ids
    #[arg(value_name = "MODEL|ID")]
    positional: Vec<String>,
    /// Model, as a flag
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    hub: HubArgs,
    /// The token ids, such as 1,2,3
    #[arg(long = "token-ids", value_name = "IDS", value_parser = token_ids)]
    token_ids: Option<TokenIds>,
    /// Omit control tokens such as BOS
    #[arg(long)]
    no_special: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A list that clap parses as one value.
type TokenIds = Vec<u32>;

impl Tokenize {
    pub(crate) fn execute(self) -> Result<()> {
        let (model, text) = self.input.resolve(None)?;
        let text = text.context(
            "nothing to tokenize: give a text after the model, with --prompt or --file, or in a pipe",
        )?;
        let tokenizer = open_tokenizer(&model.path()?)?;
        let options = EncodeOptions {
            bos: self.bos,
            special: self.special,
            eos: false,
        };
        let tokens = tokenizer.encode(&text, options);
        let mut out = std::io::stdout();
        if self.json {
            writeln!(out, "{}", json!({ "tokens": tokens }))?;
        } else {
            let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
            writeln!(out, "{}", ids.join(","))?;
        }
        Ok(())
    }
}

impl Detokenize {
    pub(crate) fn execute(self) -> Result<()> {
        let (model, ids) = self.arguments()?;
        let tokenizer = open_tokenizer(&model.path()?)?;
        let vocab = tokenizer.vocab_size();
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            bail!("token id {id} is outside the model's vocabulary of {vocab}");
        }
        let mut out = std::io::stdout();
        if self.json {
            let text = tokenizer.decode(&ids, !self.no_special);
            writeln!(out, "{}", json!({ "text": text }))?;
        } else {
            out.write_all(&tokenizer.decode_bytes(&ids, !self.no_special))?;
            writeln!(out)?;
        }
        Ok(())
    }

    /// The model and the ids; the first positional argument can be either.
    fn arguments(&self) -> Result<(ModelArgs, TokenIds)> {
        let mut rest = self.positional.as_slice();
        let piped: Vec<String>;
        let mut named = self.model.clone().or_else(|| self.hub.reference());
        if let (None, [first, more @ ..]) = (&named, rest)
            && token_ids(first).is_err()
        {
            named = Some(first.clone());
            rest = more;
        }
        if rest.is_empty() && self.token_ids.is_none() {
            piped = text_input::piped()?.into_iter().collect();
            rest = &piped;
        }
        let ids = match (&self.token_ids, rest) {
            (Some(ids), []) => ids.clone(),
            (Some(_), [extra, ..]) => {
                bail!("unexpected argument {extra:?}: token ids are already given by --token-ids")
            }
            (None, []) => {
                bail!("no token ids: give ids after the model, with --token-ids, or in a pipe")
            }
            (None, words) => {
                let lists: Result<Vec<_>, _> = words.iter().map(|word| token_ids(word)).collect();
                lists.map_err(anyhow::Error::msg)?.concat()
            }
        };
        Ok((ModelArgs::named(named), ids))
    }
}
