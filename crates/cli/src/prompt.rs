//! Turns text or a conversation into prompt tokens.

use crate::text_input::read_text;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use kvark::generate::common_prefix_len;
use kvark::text::{ChatTemplate, EncodeOptions, Message, Prompt, TextError};
use kvark::{Model, RuntimeErrorKind};
use std::path::Path;

/// Options of the chat template.
#[derive(Args)]
pub(crate) struct TemplateArgs {
    /// Chat template to use instead of the model's own: chatml, gemma, llama3, mistral-v1, mistral-v3, mistral-v7,
    /// phi3, phi4, vicuna, zephyr, or a file with a Jinja template
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) chat_template: Option<String>,
    /// Parse control tokens such as <|im_end|> in the given text; without this flag they are plain text
    #[arg(long)]
    pub(crate) special: bool,
}

/// Tokens of plain text, with BOS if the model asks for it.
pub(crate) fn plain(model: &Model, text: &str) -> Result<Vec<u32>> {
    encode(model, text, false)
}

/// Like [`plain`]; with `special`, control tokens in the text are parsed.
pub(crate) fn encode(model: &Model, text: &str, special: bool) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer()?;
    let options = EncodeOptions {
        bos: tokenizer.adds_bos(),
        special,
        ..Default::default()
    };
    Ok(tokenizer.encode(text, options))
}

/// Formats and tokenizes conversations with a model's chat template.
pub(crate) struct Conversations<'a> {
    pub(crate) model: &'a Model,
    /// Template used instead of the model's own.
    template: Option<ChatTemplate>,
    /// Whether control tokens are parsed in messages.
    special: bool,
}

impl<'a> Conversations<'a> {
    /// Resolves the template: the requested one, or the model's own.
    pub(crate) fn new(model: &'a Model, args: &TemplateArgs) -> Result<Conversations<'a>> {
        model.tokenizer()?;
        let template = match &args.chat_template {
            Some(name) => Some(named_template(model, name)?),
            None => None,
        };
        if template.is_none()
            && let Err(error) = model.chat_template()
        {
            return Err(match error.kind() {
                RuntimeErrorKind::Text(TextError::NoTemplate) => anyhow!(
                    "{error}; set one with --chat-template NAME|FILE, where NAME is one of {}",
                    names()
                ),
                _ => error.into(),
            });
        }
        Ok(Conversations {
            model,
            template,
            special: args.special,
        })
    }

    /// Tokens of a conversation, up to the start of the assistant's answer.
    pub(crate) fn tokens(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let tokenizer = self.model.tokenizer()?;
        let template = match &self.template {
            Some(template) => template,
            None => self.model.chat_template()?,
        };
        let prompt = match self.special {
            true => Prompt::trusted(template.render(messages, true)?),
            false => template.prompt(tokenizer, messages, true)?,
        };
        Ok(tokenizer.encode_prompt(&prompt))
    }

    /// Tokens shared by all conversations that begin with `messages`, up to the user's next message.
    pub(crate) fn beginning(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let with = |text: &str| {
            let next = [Message::new("user", text)];
            self.tokens(&[messages, &next].concat())
        };
        let mut tokens = with("a")?;
        tokens.truncate(common_prefix_len(&tokens, &with("b")?));
        Ok(tokens)
    }
}

/// A built-in template, or that of a file.
fn named_template(model: &Model, name: &str) -> Result<ChatTemplate> {
    if let Some(source) = ChatTemplate::source(name) {
        return Ok(model.compile_template(source)?);
    }
    let path = Path::new(name);
    if !path.exists() {
        bail!(
            "unknown chat template {name}: neither a file nor one of {}",
            names()
        );
    }
    let source = read_text(path)?;
    let template = model.compile_template(&source);
    template.with_context(|| name.to_owned())
}

fn names() -> String {
    ChatTemplate::names().collect::<Vec<_>>().join(", ")
}
