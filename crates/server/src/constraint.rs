//! Output constraints of a request: response formats and tool choices.

use crate::app::App;
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::registry::LoadedModel;
use kvark::engine::TokenConstraint;
use kvark::grammar::GrammarSource;
use serde_json::Value;
use std::sync::Arc;

/// Which tools the model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// The model decides.
    Auto,
    /// None.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

impl ToolChoice {
    /// Reads `tool_choice`.
    pub(crate) fn read(choice: Option<Value>, tools: &[Value]) -> Result<ToolChoice, ApiError> {
        let wrong = || {
            let choices = "must be \"auto\", \"none\", \"required\" or a function's name";
            ApiError::parameter("tool_choice", choices)
        };
        let choice = match choice {
            None => ToolChoice::Auto,
            Some(Value::String(name)) => match &*name {
                "auto" => ToolChoice::Auto,
                "none" => ToolChoice::None,
                "required" | "any" => ToolChoice::Required,
                _ => return Err(wrong()),
            },
            Some(object) => {
                let name = object.pointer("/function/name").or(object.get("name"));
                match (name.and_then(Value::as_str), object["type"].as_str()) {
                    (Some(name), _) => ToolChoice::Named(name.to_owned()),
                    (None, Some("auto")) => ToolChoice::Auto,
                    (None, Some("none")) => ToolChoice::None,
                    (None, Some("any")) => ToolChoice::Required,
                    _ => return Err(wrong()),
                }
            }
        };
        let needs_tools = matches!(choice, ToolChoice::Required | ToolChoice::Named(_));
        if needs_tools && tools.is_empty() {
            return Err(ApiError::parameter("tool_choice", "needs tools"));
        }
        if let ToolChoice::Named(name) = &choice {
            let is_it = |tool: &Value| {
                let function = tool.get("function").unwrap_or(tool);
                function["name"].as_str() == Some(name)
            };
            if !tools.iter().any(is_it) {
                let missing = format!("there is no tool {name:?}");
                return Err(ApiError::parameter("tool_choice", missing));
            }
        }
        Ok(choice)
    }
}

/// The constraint of an output.
#[derive(Clone, Debug)]
pub(crate) struct OutputFormat {
    grammar: Option<GrammarSource>,
    /// The parameter that the grammar comes from.
    parameter: &'static str,
}

impl OutputFormat {
    /// Reads `response_format`, `grammar` and `regex`; a forced tool call is a format too.
    pub(crate) fn read(
        request: &mut GenerationRequest,
        choice: &ToolChoice,
        tools: &[Value],
    ) -> Result<OutputFormat, ApiError> {
        let mut grammar = None;
        let mut parameter = "response_format";
        if let Some(format) = request.response_format.take() {
            grammar = match format.get("type").and_then(Value::as_str) {
                Some("text") => None,
                Some("json_object") => match format.get("schema") {
                    Some(schema) => Some(GrammarSource::JsonSchema(schema.clone())),
                    None => Some(GrammarSource::JsonObject),
                },
                Some("json_schema") => {
                    let schema = format.get("json_schema").and_then(|s| s.get("schema"));
                    let schema = schema.or(format.get("schema"));
                    let missing =
                        || ApiError::parameter("response_format", "has no json_schema.schema");
                    Some(GrammarSource::JsonSchema(
                        schema.ok_or_else(missing)?.clone(),
                    ))
                }
                other => {
                    let wrong = format!("unknown type {:?}", other.unwrap_or(""));
                    return Err(ApiError::parameter("response_format", wrong));
                }
            };
        }
        if let Some(schema) = request.json_schema.take() {
            grammar = Some(GrammarSource::JsonSchema(schema));
            parameter = "json_schema";
        }
        if let Some(source) = request.grammar.take() {
            grammar = Some(GrammarSource::Gbnf(source));
            parameter = "grammar";
        }
        if let Some(pattern) = request.regex.take() {
            grammar = Some(GrammarSource::Regex(pattern));
            parameter = "regex";
        }
        let only = match choice {
            ToolChoice::Required => Some(None),
            ToolChoice::Named(name) => Some(Some(&**name)),
            ToolChoice::Auto | ToolChoice::None => None,
        };
        if let Some(only) = only {
            let schema = kvark::text::tools::call_schema(tools, only);
            grammar = Some(GrammarSource::ToolCall(schema));
            parameter = "tools";
        }
        Ok(OutputFormat { grammar, parameter })
    }

    /// Whether the output is not free.
    pub(crate) fn is_constrained(&self) -> bool {
        self.grammar.is_some()
    }

    /// A constraint for each of `choices`; `None` if the output is free. The grammar is compiled on a thread that may block.
    pub(crate) async fn constraints(
        &self,
        app: &Arc<App>,
        model: &Arc<LoadedModel>,
        choices: usize,
    ) -> Result<Vec<Option<Box<dyn TokenConstraint>>>, ApiError> {
        let Some(source) = self.grammar.clone() else {
            return Ok((0..choices).map(|_| None).collect());
        };
        let (model, parameter) = (model.clone(), self.parameter);
        app.blocking(move |_| {
            let compiler = model.grammars()?;
            let constraint = |_| {
                let made = compiler.constraint(&source);
                made.map(Some)
                    .map_err(|error| ApiError::parameter(parameter, error))
            };
            (0..choices).map(constraint).collect()
        })
        .await
    }
}
