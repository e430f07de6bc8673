//! From chat messages to prompt tokens.

use crate::error::ApiError;
use crate::registry::LoadedModel;
use crate::tools::{self, ToolFormat};
use kvark::text::{EncodeOptions, Prompt};
use serde_json::{Map, Value, json};

/// The messages of a chat with its tools.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChatPrompt {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Vec<Value>,
    /// Further variables of the template (`chat_template_kwargs`).
    pub(crate) variables: Map<String, Value>,
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
        })
    }

    /// The tokens up to the beginning of the assistant's answer. If `held` is the beginning of the conversation, they
    /// begin with exactly these tokens.
    pub(crate) fn tokens(&self, model: &LoadedModel, held: &[u32]) -> Result<Vec<u32>, ApiError> {
        let prompt = self.render(model, true)?;
        let tokenizer = model.model.tokenizer()?;
        let exact = (!held.is_empty()).then(|| tokenizer.encode_prompt_after(held, &prompt));
        Ok(exact
            .flatten()
            .unwrap_or_else(|| tokenizer.encode_prompt(&prompt)))
    }

    /// The text that the model sees, with the ranges of untrusted text.
    pub(crate) fn render(&self, model: &LoadedModel, answer: bool) -> Result<Prompt, ApiError> {
        let template = model.model.chat_template()?;
        let tokenizer = model.model.tokenizer()?;
        let mut variables = self.variables.clone();
        let mut messages = self.messages.clone();
        if !self.tools.is_empty() {
            match tools::template_knows_tools(template.source_text()) {
                true => {
                    variables.insert("tools".to_owned(), self.tools.clone().into());
                }
                false => add_tools_message(&mut messages, &self.tools),
            }
        }
        let prompt = template.prompt_with(tokenizer, &messages, answer, &variables);
        Ok(prompt.map_err(kvark::RuntimeError::from)?)
    }

    /// How the model writes tool calls.
    pub(crate) fn tool_format(&self, model: &LoadedModel) -> ToolFormat {
        let template = model.model.chat_template();
        let source = template.map_or("", |template| template.source_text());
        match tools::template_knows_tools(source) {
            true => ToolFormat::of_template(source),
            false => ToolFormat::Tagged,
        }
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

/// Describes the tools in the system message, for templates that do not.
fn add_tools_message(messages: &mut Vec<Value>, list: &[Value]) {
    let text = tools::tools_message(list);
    match messages
        .first_mut()
        .filter(|first| first["role"] == "system")
    {
        Some(system) => {
            let own = system["content"].as_str().unwrap_or_default();
            system["content"] = format!("{own}\n\n{text}").into();
        }
        None => messages.insert(0, json!({ "role": "system", "content": text })),
    }
}

/// Checks a message and brings it into the shape that templates expect: text content, arguments as objects.
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
        let calls: Vec<Value> = calls.into_iter().map(parsed_arguments).collect();
        shaped.insert("tool_calls".to_owned(), calls.into());
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

/// A tool call whose arguments are an object instead of JSON text.
fn parsed_arguments(mut call: Value) -> Value {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && let Some(parsed) = arguments
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok())
    {
        *arguments = parsed;
    }
    call
}
