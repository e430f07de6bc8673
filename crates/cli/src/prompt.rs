//! Turns text or a conversation into prompt tokens.

use crate::text_input::read_text;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use kvark::generate::common_prefix_len;
use kvark::text::{
    AnswerFormat, AnswerParser, ChatContinuation, ChatTemplate, EncodeOptions, Message, Prompt,
    ReasoningBudget, ReasoningFormat, TextError, keeping_variables, tools,
};
use kvark::{Model, RuntimeErrorKind};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::path::Path;

/// The number of answers whose tokens are known at most.
const MAX_ANSWERS: usize = 256;

/// Options of the chat template.
#[derive(Args)]
pub(crate) struct TemplateArgs {
    /// Chat template to use instead of the model's own: chatml, gemma, llama3, mistral-v1, mistral-v3, mistral-v7,
    /// phi3, phi4, vicuna, zephyr, or a file with a Jinja template
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) chat_template: Option<String>,
    /// Reasoning of earlier answers in a chat: keep (their tokens stay as they were generated) or drop (what the chat template
    /// makes of it)
    #[arg(long, value_name = "KIND", default_value = "keep", value_parser = ["keep", "drop"], hide_possible_values = true)]
    pub(crate) reasoning: String,
    #[command(flatten)]
    budget: ReasoningBudgetArgs,
    /// Parse control tokens such as <|im_end|> in the given text; without this flag they are plain text
    #[arg(long)]
    pub(crate) special: bool,
}

impl TemplateArgs {
    /// A template, for the beginning of a conversation.
    pub(crate) fn of(chat_template: Option<String>, special: bool) -> TemplateArgs {
        TemplateArgs {
            chat_template,
            reasoning: "keep".to_owned(),
            budget: ReasoningBudgetArgs {
                reasoning_budget: -1,
            },
            special,
        }
    }
}

/// The limit on the reasoning of an answer.
#[derive(Args)]
pub(crate) struct ReasoningBudgetArgs {
    /// Most tokens of reasoning in an answer, after which the model has to answer; -1 for no limit
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(-1..))]
    reasoning_budget: i64,
}

impl ReasoningBudgetArgs {
    pub(crate) fn tokens(&self) -> Option<usize> {
        usize::try_from(self.reasoning_budget).ok()
    }
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

/// Tokens of a text that continues others.
pub(crate) fn continuation(model: &Model, text: &str, special: bool) -> Result<Vec<u32>> {
    let options = EncodeOptions {
        bos: false,
        special,
        ..Default::default()
    };
    Ok(model.tokenizer()?.encode(text, options))
}

/// Formats and tokenizes conversations with a model's chat template.
pub(crate) struct Conversations<'a> {
    pub(crate) model: &'a Model,
    /// Template used instead of the model's own.
    template: Option<ChatTemplate>,
    /// Whether control tokens are parsed in messages.
    special: bool,
    /// Whether the reasoning of earlier answers is kept.
    keep_reasoning: bool,
    /// The maximum number of tokens of an answer's reasoning.
    reasoning_budget: Option<usize>,
    format: AnswerFormat,
    /// The tokens of conversations that end with an answer, the latest last.
    known: RefCell<Vec<(Vec<Message>, Vec<u32>)>>,
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
        let own = match &template {
            Some(template) => template,
            None => model.chat_template()?,
        };
        Ok(Conversations {
            format: AnswerFormat::of_model(own.source_text(), model.tokenizer()?),
            model,
            template,
            special: args.special,
            keep_reasoning: args.reasoning == "keep",
            reasoning_budget: args.budget.tokens(),
            known: RefCell::default(),
        })
    }

    fn template(&self) -> Result<&ChatTemplate> {
        Ok(match &self.template {
            Some(template) => template,
            None => self.model.chat_template()?,
        })
    }

    /// The control tokens that mark the parts of an answer.
    pub(crate) fn marks(&self) -> Result<Vec<u32>> {
        Ok(self.format.control_tokens(self.model.tokenizer()?, false))
    }

    /// A parser of the answer to a prompt. A constrained answer begins with its content, whatever the prompt ends with.
    pub(crate) fn parser(&self, prompt: &[u32], constrained: bool) -> Result<AnswerParser> {
        let mut parser = AnswerParser::new(self.format, &[]);
        if !constrained {
            let tokenizer = self.model.tokenizer()?;
            parser.begin_after(&self.format.reasoning.begun_by(tokenizer, prompt));
        }
        Ok(parser)
    }

    /// The limit on the reasoning of the answer to a prompt.
    pub(crate) fn reasoning_budget(&self, prompt: &[u32]) -> Result<Option<ReasoningBudget>> {
        let tokenizer = self.model.tokenizer()?;
        let after = |tokens| {
            let format = self.format.reasoning;
            ReasoningBudget::after(tokens, format, tokenizer, prompt)
        };
        Ok(self.reasoning_budget.map(after))
    }

    /// Keeps the tokens of a conversation that ends with an answer, if the model reasons and reasoning is kept.
    pub(crate) fn keep_answer(&self, messages: &[Message], tokens: Vec<u32>) {
        if !self.keep_reasoning || self.format.reasoning == ReasoningFormat::None {
            return;
        }
        let mut known = self.known.borrow_mut();
        known.retain(|(others, _)| others != messages);
        if known.len() == MAX_ANSWERS {
            known.remove(0);
        }
        known.push((messages.to_vec(), tokens));
    }

    /// The tokens of a conversation that goes on after an answer whose tokens are known.
    fn known_tokens(&self, messages: &[Value], of: &[Message]) -> Result<Option<Vec<u32>>> {
        let known = self.known.borrow();
        let begins = known.iter().filter(|(begin, _)| of.starts_with(begin));
        let Some((begin, held)) = begins.max_by_key(|(begin, _)| begin.len()) else {
            return Ok(None);
        };
        let continuation = ChatContinuation {
            template: self.template()?,
            tokenizer: self.model.tokenizer()?,
            messages,
            tools: &[],
            variables: &self.variables()?,
        };
        Ok(continuation.tokens(held, begin.len() - 1))
    }

    /// The variables of the template.
    fn variables(&self) -> Result<Map<String, Value>> {
        Ok(match self.keep_reasoning {
            true => keeping_variables(self.template()?.source_text()),
            false => Map::new(),
        })
    }

    /// Tokens of a conversation, up to the start of the assistant's answer.
    pub(crate) fn tokens(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let tokenizer = self.model.tokenizer()?;
        let template = self.template()?;
        let variables = self.variables()?;
        let message = |m: &Message| json!({ "role": m.role, "content": m.content });
        let values: Vec<Value> = messages.iter().map(message).collect();
        if let Some(known) = self.known_tokens(&values, messages)? {
            return Ok(known);
        }
        let prompt = match self.special {
            true => Prompt::trusted(template.render_with(&values, true, &variables)?),
            false => tools::prompt_with_tools(template, tokenizer, &values, &[], true, &variables)?,
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
    let template = model.compile_template(&template_source(name)?);
    match Path::new(name).exists() {
        true => template.with_context(|| name.to_owned()),
        false => Ok(template?),
    }
}

/// The source of a built-in template, or of a file. A text with Jinja's marks is a source itself.
pub(crate) fn template_source(name: &str) -> Result<String> {
    if let Some(source) = ChatTemplate::source(name) {
        return Ok(source.to_owned());
    }
    if name.contains("{{") || name.contains("{%") {
        return Ok(name.to_owned());
    }
    let path = Path::new(name);
    if !path.exists() {
        bail!(
            "unknown chat template {name}: neither a file nor one of {}",
            names()
        );
    }
    read_text(path)
}

fn names() -> String {
    ChatTemplate::names().collect::<Vec<_>>().join(", ")
}
