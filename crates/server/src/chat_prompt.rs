//! From chat messages to prompt tokens.

use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::options::ReasoningHistory;
use crate::registry::LoadedModel;
use kvark::text::tools;
use kvark::text::{
    AnswerFormat, ChatContinuation, EncodeOptions, Prompt, ReasoningFormat, keeping_variables,
};
use serde_json::{Map, Value};

/// The messages of a chat with its tools.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChatPrompt {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Vec<Value>,
    /// Further variables of the template (`chat_template_kwargs`).
    pub(crate) variables: Map<String, Value>,
    /// What becomes of the reasoning of earlier answers.
    pub(crate) reasoning: ReasoningHistory,
    /// The beginning of the answer, which the request has written.
    pub(crate) begun: String,
}

impl ChatPrompt {
    /// Checks messages and tools in OpenAI's shape.
    pub(crate) fn new(
        messages: Vec<Value>,
        tools: Vec<Value>,
        variables: Map<String, Value>,
    ) -> Result<ChatPrompt, ApiError> {
        let messages = (0..).zip(messages).map(|(i, m)| message(i, m));
        for (i, tool) in tools.iter().enumerate() {
            let kind = tool.get("type").and_then(Value::as_str);
            if let Some(other) = kind.filter(|kind| *kind != "function") {
                let wrong = format!(
                    "tools[{i}] of type {other:?}: only functions that the client runs are supported"
                );
                return Err(ApiError::parameter("tools", wrong));
            }
            let function = tool.get("function").unwrap_or(tool);
            if function.get("name").and_then(Value::as_str).is_none() {
                let wrong = format!("tools[{i}] has no function with a name");
                return Err(ApiError::parameter("tools", wrong));
            }
        }
        Ok(ChatPrompt {
            messages: messages.collect::<Result<_, _>>()?,
            tools,
            variables,
            reasoning: ReasoningHistory::default(),
            begun: String::new(),
        })
    }

    /// Takes an answer at the end of the messages as the beginning of the one that is asked for. One with calls is complete.
    ///
    /// # Errors
    /// 400 if two answers are at the end.
    pub(crate) fn take_begun_answer(&mut self) -> Result<(), ApiError> {
        let begins = |last: &&Value| {
            let text = last["content"].as_str().unwrap_or_default();
            last["role"] == "assistant" && last.get("tool_calls").is_none() && !text.is_empty()
        };
        if self.messages.len() > 1 && self.messages.last().filter(begins).is_some() {
            let last = self.messages.pop().unwrap_or_default();
            last["content"]
                .as_str()
                .unwrap_or_default()
                .clone_into(&mut self.begun);
            if self.messages.last().filter(begins).is_some() {
                let wrong = "two answers at the end cannot be gone on from";
                return Err(ApiError::parameter("messages", wrong));
            }
        }
        Ok(())
    }

    /// Appends the tokens of the answer's beginning. Returns the length of the prompt before them.
    ///
    /// # Errors
    /// 400 if the prompt ends within reasoning, of which a beginning is no part.
    pub(crate) fn append_begun(
        &self,
        model: &LoadedModel,
        tokens: &mut Vec<u32>,
    ) -> Result<usize, ApiError> {
        let before = tokens.len();
        if self.begun.is_empty() {
            return Ok(before);
        }
        let tokenizer = model.model.tokenizer()?;
        let format = self.answer_format(model);
        if format.is_some_and(|format| !format.reasoning.begun_by(tokenizer, tokens).is_empty()) {
            let wrong = "the last one begins an answer, but the chat template begins with reasoning: \
                         set chat_template_kwargs {\"enable_thinking\": false}";
            return Err(ApiError::parameter("messages", wrong));
        }
        tokens.extend(tokenizer.encode(&self.begun, EncodeOptions::default()));
        Ok(before)
    }

    /// Whether answers of a model keep their exact tokens.
    pub(crate) fn keeps_answers(&self, model: &LoadedModel) -> bool {
        self.reasoning == ReasoningHistory::Keep
            || self
                .answer_format(model)
                .is_none_or(|format| format.reasoning == ReasoningFormat::None)
    }

    /// Refuses messages whose text is longer than any context of the model, before it is rendered and tokenised.
    pub(crate) fn check_length(&self, model: &LoadedModel) -> Result<(), ApiError> {
        let text = |message: &Value| message["content"].as_str().map_or(0, str::len);
        model.check_length(self.messages.iter().map(text).sum())
    }

    /// The tokens up to the beginning of the assistant's answer.
    pub(crate) fn tokens(&self, model: &LoadedModel) -> Result<Vec<u32>, ApiError> {
        self.check_length(model)?;
        let prompt = self.render(model, true)?;
        Ok(model.model.tokenizer()?.encode_prompt(&prompt))
    }

    /// The tokens up to the answer of a conversation whose messages these begin with. They begin with exactly the
    /// conversation's tokens, unless the template renders its messages otherwise than before.
    pub(crate) fn continued_tokens(
        &self,
        model: &LoadedModel,
        it: &Conversation,
    ) -> Result<Vec<u32>, ApiError> {
        self.check_length(model)?;
        let tokenizer = model.model.tokenizer()?;
        let last = it.messages.last();
        if self.messages.len() == it.messages.len() {
            if last.is_some_and(|turn| turn.partial) || it.tokens.len() > it.turns_end() {
                return Ok(it.tokens.to_vec());
            }
            let refused = match last {
                None => Some("must not be empty"),
                Some(turn) if turn.message["role"] == "assistant" => {
                    Some("must not be empty: the last answer is complete")
                }
                Some(_) => None,
            };
            if let Some(refused) = refused {
                return Err(ApiError::parameter("messages", refused));
            }
        }
        let held = &it.tokens[..it.turns_end()];
        let prompt = self.render(model, true)?;
        if !self.keeps_answers(model) {
            return Ok(tokenizer.encode_prompt(&prompt));
        }
        let exact = (!held.is_empty()).then(|| tokenizer.encode_prompt_after(held, &prompt));
        let exact = exact.flatten().or_else(|| {
            let answer = last.filter(|turn| turn.generated)?;
            debug_assert_eq!(answer.message["role"], "assistant");
            self.tokens_after(model, held, it.messages.len() - 1)
        });
        Ok(exact.unwrap_or_else(|| tokenizer.encode_prompt(&prompt)))
    }

    /// The tokens that go on after the exact tokens of all messages up to message `answer`, which was generated.
    pub(crate) fn tokens_after(
        &self,
        model: &LoadedModel,
        held: &[u32],
        answer: usize,
    ) -> Option<Vec<u32>> {
        let template = model.model.chat_template().ok()?;
        let continuation = ChatContinuation {
            template,
            tokenizer: model.model.tokenizer().ok()?,
            messages: &self.messages,
            tools: &self.tools,
            variables: &self.template_variables(template.source_text()),
        };
        continuation.tokens(held, answer)
    }

    /// The variables of the template: those of the request, and those that keep reasoning.
    fn template_variables(&self, source: &str) -> Map<String, Value> {
        let mut variables = match self.reasoning {
            ReasoningHistory::Keep => keeping_variables(source),
            ReasoningHistory::Drop => Map::new(),
        };
        variables.extend(self.variables.clone());
        variables
    }

    /// The text that the model sees, with the ranges of untrusted text.
    pub(crate) fn render(&self, model: &LoadedModel, answer: bool) -> Result<Prompt, ApiError> {
        let template = model.model.chat_template()?;
        let tokenizer = model.model.tokenizer()?;
        let prompt = tools::prompt_with_tools(
            template,
            tokenizer,
            &self.messages,
            &self.tools,
            answer,
            &self.template_variables(template.source_text()),
        );
        Ok(prompt.map_err(kvark::RuntimeError::from)?)
    }

    /// How the model writes answers; `None` without a tokenizer.
    pub(crate) fn answer_format(&self, model: &LoadedModel) -> Option<AnswerFormat> {
        let template = model.model.chat_template();
        let source = template.map_or("", |template| template.source_text());
        let tokenizer = model.model.tokenizer().ok()?;
        Some(AnswerFormat::of_model(source, tokenizer))
    }
}

/// Tokens of plain text, with BOS if the model asks for it.
pub(crate) fn plain_tokens(model: &LoadedModel, text: &str) -> Result<Vec<u32>, ApiError> {
    let tokenizer = model.model.tokenizer()?;
    let options = EncodeOptions {
        bos: tokenizer.adds_bos(),
        special: true,
        ..EncodeOptions::default()
    };
    Ok(tokenizer.encode(text, options))
}

/// Checks a message and brings it into the shape that templates expect: text content.
fn message(index: usize, message: Value) -> Result<Value, ApiError> {
    let wrong = |what: String| ApiError::parameter("messages", format!("messages[{index}] {what}"));
    let Value::Object(mut message) = message else {
        return Err(wrong("must be an object".to_owned()));
    };
    let role = match message.get("role").and_then(Value::as_str) {
        Some("developer") => "system".to_owned(),
        Some("function") => "tool".to_owned(),
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role.to_owned(),
        Some(other) => return Err(wrong(format!("has an unknown role {other:?}"))),
        None => return Err(wrong("has no role".to_owned())),
    };
    let content = match message.remove("content") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(Value::Array(parts)) => Some(join_parts(&parts).map_err(wrong)?),
        Some(_) => {
            return Err(wrong(
                "has a content that is neither text nor parts".to_owned(),
            ));
        }
    };
    let calls = match message.remove("tool_calls") {
        None | Some(Value::Null) => vec![],
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err(wrong("has tool_calls that are not a list".to_owned())),
    };
    if content.is_none() && calls.is_empty() && role != "assistant" {
        return Err(wrong("has no content".to_owned()));
    }
    let mut shaped = Map::new();
    shaped.insert("role".to_owned(), role.into());
    shaped.insert("content".to_owned(), content.unwrap_or_default().into());
    if !calls.is_empty() {
        shaped.insert("tool_calls".to_owned(), calls.into());
    }
    let mut reasoning = None;
    for name in ["reasoning_content", "reasoning", "thinking"] {
        match message.remove(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => reasoning = reasoning.or(Some(text)),
            Some(_) => return Err(wrong(format!("has a {name} that is not text"))),
        }
    }
    let is_answer = shaped["role"] == "assistant";
    if let Some(text) = reasoning.filter(|text| is_answer && !text.is_empty()) {
        shaped.insert("reasoning_content".to_owned(), text.into());
    }
    match message.remove("volatile") {
        None | Some(Value::Null) => {}
        Some(Value::Bool(is)) => _ = is.then(|| shaped.insert("volatile".to_owned(), is.into())),
        Some(_) => {
            return Err(wrong(
                "has a volatile that is neither true nor false".to_owned(),
            ));
        }
    }
    for name in ["name", "tool_call_id"] {
        if let Some(value) = message.remove(name) {
            shaped.insert(name.to_owned(), value);
        }
    }
    Ok(Value::Object(shaped))
}

/// The text of content parts.
fn join_parts(parts: &[Value]) -> Result<String, String> {
    let mut text = String::new();
    for part in parts {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
        let own = part.get("text").and_then(Value::as_str);
        match own.filter(|_| ["text", "input_text", "output_text"].contains(&kind)) {
            Some(own) => text.push_str(own),
            None => {
                return Err(format!(
                    "has a content part of type {kind:?}; only text is supported"
                ));
            }
        }
    }
    Ok(text)
}
