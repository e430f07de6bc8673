//! Tool calls: how a model is told about tools, and how its calls are found in its text.

use crate::{ChatTemplate, Prompt, TextError, Tokenizer};
use serde_json::{Map, Value, json};

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The name of the tool.
    pub name: String,
    /// The arguments as JSON text.
    pub arguments: String,
}

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, also with a list of calls (Hermes, Qwen, SmolLM2).
    Tagged,
    /// The answer is JSON: an object, objects one after the other, or a list (Llama 3, Mistral). The control tokens
    /// before it are not part of the text.
    Json,
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

impl ToolFormat {
    /// The format of a model, from the source of its chat template. A template that does not show tools has them explained by
    /// [`prompt_with_tools`], with tags.
    pub fn of_template(source: &str) -> ToolFormat {
        if !template_knows_tools(source) {
            return ToolFormat::Tagged;
        }
        let json = [
            "[TOOL_CALLS]",
            "<|python_tag|>",
            "\"parameters\": dictionary",
        ];
        match !source.contains(OPEN) && json.iter().any(|mark| source.contains(mark)) {
            true => ToolFormat::Json,
            false => ToolFormat::Tagged,
        }
    }
}

/// The prompt of a chat with tools. A template that does not show tools, or does not write the calls of earlier answers, gets
/// them as text: in the system message, and in the answers.
///
/// # Errors
/// As [`ChatTemplate::render`].
pub fn prompt_with_tools(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Value],
    tools: &[Value],
    add_generation_prompt: bool,
    variables: &Map<String, Value>,
) -> Result<Prompt, TextError> {
    let mut variables = variables.clone();
    let mut messages = messages.to_vec();
    if !tools.is_empty() {
        match template_knows_tools(template.source_text()) {
            true => _ = variables.insert("tools".to_owned(), tools.into()),
            false => add_tools_message(&mut messages, tools),
        }
    }
    for message in &mut messages {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        calls.into_iter().flatten().for_each(parse_arguments);
        if !template_knows_calls(template.source_text()) {
            write_calls(message);
        }
    }
    template.prompt_with(tokenizer, &messages, add_generation_prompt, &variables)
}

/// Makes the arguments of a call an object, as templates expect them, instead of JSON text.
fn parse_arguments(call: &mut Value) {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && let Some(text) = arguments.as_str()
        && let Ok(parsed) = serde_json::from_str(text)
    {
        *arguments = parsed;
    }
}

/// Describes the tools in the system message.
fn add_tools_message(messages: &mut Vec<Value>, list: &[Value]) {
    let text = tools_message(list);
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

/// Whether a template shows tools to the model by itself.
fn template_knows_tools(source: &str) -> bool {
    source.contains("tools")
}

/// Whether a template writes the calls of earlier answers by itself.
fn template_knows_calls(source: &str) -> bool {
    source.contains("tool_calls")
}

/// Writes the calls of a message into its text, for templates that do not: as the model was told to write them.
fn write_calls(message: &mut Value) {
    let Some(calls) = message.get("tool_calls").and_then(Value::as_array) else {
        return;
    };
    let call = |call: &Value| {
        let function = call.get("function").unwrap_or(call);
        json!({ "name": function["name"], "arguments": function["arguments"] })
    };
    let calls: Vec<Value> = calls.iter().map(call).collect();
    let calls = match &calls[..] {
        [one] => one.to_string(),
        _ => Value::from(calls).to_string(),
    };
    let text = message["content"].as_str().unwrap_or_default();
    let blank = if text.is_empty() { "" } else { "\n" };
    message["content"] = format!("{text}{blank}{OPEN}\n{calls}\n{CLOSE}").into();
}

/// A system message for templates that do not show tools.
fn tools_message(tools: &[Value]) -> String {
    let list: Vec<&Value> = tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool))
        .collect();
    let list = serde_json::to_string(&list).unwrap_or_default();
    format!(
        "You can call these functions:\n<tools>{list}</tools>\n\
         To call functions, answer with a JSON list of calls between tags, and nothing else:\n\
         {OPEN}[{{\"name\": \"FUNCTION\", \"arguments\": {{\"ARGUMENT\": \"VALUE\"}}}}]{CLOSE}\n\
         Call functions only if they help; otherwise answer in plain text."
    )
}

/// The JSON schema of a call of one of these tools, for constrained output.
pub fn call_schema(tools: &[Value], only: Option<&str>) -> Value {
    let function = |tool: &Value| tool.get("function").unwrap_or(tool).clone();
    let calls = tools.iter().map(function).filter_map(|function| {
        let name = function.get("name")?.as_str()?.to_owned();
        if only.is_some_and(|only| only != name) {
            return None;
        }
        let parameters = function.get("parameters").cloned();
        let mut parameters = parameters.unwrap_or_else(|| json!({ "type": "object" }));
        // Small models invent arguments. A schema that says nothing about others has none.
        if let Some(schema) = parameters
            .as_object_mut()
            .filter(|s| s.contains_key("properties"))
        {
            schema.entry("additionalProperties").or_insert(false.into());
        }
        Some(json!({
            "type": "object",
            "properties": { "name": { "const": name }, "arguments": parameters },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        }))
    });
    json!({ "anyOf": calls.collect::<Vec<Value>>() })
}

/// Separates the text of an answer from its tool calls, as the text arrives.
pub struct ToolParser {
    format: Option<ToolFormat>,
    /// The names of the tools; JSON that names none of them is text.
    names: Vec<String>,
    /// Text that may be a part of a call.
    held: String,
    /// Whether `held` follows an opening tag.
    inside: bool,
    started: bool,
    /// Whether there was an opening tag.
    called: bool,
}

impl ToolParser {
    /// A parser for these tools. Without tools, everything is text.
    pub fn new(format: ToolFormat, tools: &[Value]) -> ToolParser {
        let name = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            Some(function.get("name")?.as_str()?.to_owned())
        };
        let names: Vec<String> = tools.iter().filter_map(name).collect();
        ToolParser {
            format: (!names.is_empty()).then_some(format),
            names,
            held: String::new(),
            inside: false,
            started: false,
            called: false,
        }
    }

    /// Appends text. Returns what is certainly not part of a call, and the calls that are complete.
    pub fn push(&mut self, text: &str) -> (String, Vec<ToolCall>) {
        match self.format {
            None => (text.to_owned(), vec![]),
            Some(ToolFormat::Tagged) => self.push_tagged(text),
            Some(ToolFormat::Json) => self.push_json(text),
        }
    }

    fn push_tagged(&mut self, text: &str) -> (String, Vec<ToolCall>) {
        self.held.push_str(text);
        let mut shown = String::new();
        let mut calls = vec![];
        loop {
            if self.inside {
                let Some(end) = self.held.find(CLOSE) else {
                    return (shown, calls);
                };
                let body = self.held[..end].to_owned();
                self.held.drain(..end + CLOSE.len());
                self.inside = false;
                match parse_calls(&body) {
                    Some(parsed) => calls.extend(parsed),
                    None => shown.push_str(&format!("{OPEN}{body}{CLOSE}")),
                }
            } else if let Some(start) = self.held.find(OPEN) {
                shown.push_str(self.held[..start].trim_end());
                self.called = true;
                self.held.drain(..start + OPEN.len());
                self.inside = true;
            } else {
                // Blanks before a tag are not shown.
                let end = self.held.len() - partial_suffix(&self.held, OPEN);
                let certain = self.held[..end].trim_end().len();
                shown.extend(self.held.drain(..certain));
                return (shown, calls);
            }
        }
    }

    fn push_json(&mut self, text: &str) -> (String, Vec<ToolCall>) {
        self.held.push_str(text);
        let first = self.held.trim_start().chars().next();
        self.started |= first.is_some_and(|c| c != '{' && c != '[');
        match self.started {
            true => (std::mem::take(&mut self.held), vec![]),
            false => (String::new(), vec![]),
        }
    }

    /// Ends the answer. Returns the remaining text and calls.
    pub fn finish(mut self) -> (String, Vec<ToolCall>) {
        let held = std::mem::take(&mut self.held);
        if held.trim().is_empty() && !self.inside {
            let shown = if self.called { String::new() } else { held };
            return (shown, vec![]);
        }
        let known = |calls: &Vec<ToolCall>| {
            let known = |call: &ToolCall| self.names.contains(&call.name);
            !calls.is_empty() && calls.iter().all(known)
        };
        // An answer may end without the closing tag, for example where the tag's first token ends the generation.
        match parse_calls(&held).filter(known) {
            Some(calls) => (String::new(), calls),
            None if self.inside => (format!("{OPEN}{held}"), vec![]),
            None => (held, vec![]),
        }
    }
}

/// The number of bytes at the end of `text` that may be the beginning of `mark`.
fn partial_suffix(text: &str, mark: &str) -> usize {
    let longest = mark.len().min(text.len());
    let begins = |n: &usize| {
        text.is_char_boundary(text.len() - n) && mark.starts_with(&text[text.len() - n..])
    };
    (1..=longest).rev().find(begins).unwrap_or(0)
}

/// The calls in a JSON object, a list of objects, or objects one after the other.
fn parse_calls(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let mut calls = vec![];
    let mut rest = text;
    while !rest.is_empty() {
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let value = stream.next()?.ok()?;
        let end = stream.byte_offset();
        match value {
            Value::Array(items) => {
                for item in items {
                    calls.push(call_of(item.as_object()?)?);
                }
            }
            Value::Object(object) => calls.push(call_of(&object)?),
            _ => return None,
        }
        rest = rest[end..].trim_start_matches([';', ',', '\n', ' ', '\r', '\t']);
    }
    (!calls.is_empty()).then_some(calls)
}

fn call_of(object: &Map<String, Value>) -> Option<ToolCall> {
    let object = object
        .get("function")
        .and_then(Value::as_object)
        .unwrap_or(object);
    let name = object.get("name")?.as_str()?.to_owned();
    let arguments = object.get("arguments").or(object.get("parameters"));
    let arguments = match arguments {
        None => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    Some(ToolCall { name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(format: ToolFormat, text: &str) -> (String, Vec<ToolCall>) {
        let tools = [
            json!({"type": "function", "function": {"name": "add"}}),
            json!({"name": "find"}),
        ];
        let whole = run(ToolParser::new(format, &tools), &[text]);
        // However the text is divided, the result is the same.
        for size in 1..6 {
            let chars: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(run(ToolParser::new(format, &tools), &pieces), whole);
        }
        whole
    }

    fn run(mut parser: ToolParser, pieces: &[&str]) -> (String, Vec<ToolCall>) {
        let (mut text, mut calls) = (String::new(), vec![]);
        for piece in pieces {
            let (shown, found) = parser.push(piece);
            text.push_str(&shown);
            calls.extend(found);
        }
        let (shown, found) = parser.finish();
        (text + &shown, [calls, found].concat())
    }

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        }
    }

    #[test]
    fn calls_are_written_as_they_are_read() {
        let call = |name: &str| json!({ "id": "x", "type": "function", "function": { "name": name, "arguments": { "a": 1 } } });
        for (calls, content) in [
            (json!([call("add")]), "Wait."),
            (json!([call("add"), call("find")]), ""),
        ] {
            let mut message =
                json!({ "role": "assistant", "content": content, "tool_calls": calls });
            write_calls(&mut message);
            let (shown, found) = parse(ToolFormat::Tagged, message["content"].as_str().unwrap());
            assert_eq!(shown, content);
            assert_eq!(found.len(), calls.as_array().unwrap().len());
            assert!(found.iter().all(|call| call.arguments == r#"{"a":1}"#));
        }
        let mut plain = json!({ "role": "assistant", "content": "Hi" });
        write_calls(&mut plain);
        assert_eq!(plain["content"], "Hi");
    }

    #[test]
    fn finds_calls_between_tags() {
        let one = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        let add = call("add", r#"{"a":1}"#);
        for (text, shown, calls) in [
            (one.to_owned(), "", vec![add.clone()]),
            (format!("I will. {one}"), "I will.", vec![add.clone()]),
            (format!("{one}\n{one}"), "", vec![add.clone(), add.clone()]),
            (
                r#"<tool_call>[{"name":"find"},{"name":"add","arguments":{}}]</tool_call>"#.into(),
                "",
                vec![call("find", "{}"), call("add", "{}")],
            ),
            (
                r#"<tool_call>{"name":"find","arguments":{"q":"é"}}"#.into(),
                "",
                vec![call("find", r#"{"q":"é"}"#)],
            ),
            ("1 < 2 and <tool".into(), "1 < 2 and <tool", vec![]),
            (
                "<tool_call>no</tool_call>!".into(),
                "<tool_call>no</tool_call>!",
                vec![],
            ),
            ("plain".into(), "plain", vec![]),
        ] {
            assert_eq!(parse(ToolFormat::Tagged, &text), (shown.to_owned(), calls));
        }
    }

    #[test]
    fn finds_calls_that_are_the_whole_answer() {
        for (text, shown, calls) in [
            (
                r#"{"name": "add", "parameters": {"a": 1}}"#,
                "",
                vec![call("add", r#"{"a":1}"#)],
            ),
            (
                r#"[{"name":"add","arguments":{}},{"name":"find","arguments":"{}"}]"#,
                "",
                vec![call("add", "{}"), call("find", "{}")],
            ),
            (
                "{\"name\":\"add\"}; {\"name\":\"find\"}",
                "",
                vec![call("add", "{}"), call("find", "{}")],
            ),
            (r#"{"name":"other"}"#, r#"{"name":"other"}"#, vec![]),
            ("{not json", "{not json", vec![]),
            (
                "Hello {\"name\":\"add\"}",
                "Hello {\"name\":\"add\"}",
                vec![],
            ),
        ] {
            assert_eq!(parse(ToolFormat::Json, text), (shown.to_owned(), calls));
        }
    }

    /// Parts of tool calls in any order, so that most texts are nearly right.
    const FRAGMENTS: [&str; 16] = [
        "<tool_call>",
        "</tool_call>",
        "<tool",
        "_call>",
        "</",
        "{",
        "}",
        "[",
        "]",
        r#"{"name": "add", "arguments": {"a": 1}}"#,
        r#""name": "find""#,
        "\\\"",
        ";",
        "é🙂",
        "\u{0}",
        " \n",
    ];

    proptest::proptest! {
        #[test]
        fn any_text_in_any_pieces_gives_the_same_calls(
            parts in proptest::collection::vec((0..FRAGMENTS.len(), "[a-z<>{}\"]{0,3}", 1usize..9), 0..12),
        ) {
            let text: String = parts.iter().map(|(i, noise, _)| FRAGMENTS[*i].to_owned() + noise).collect();
            let mut pieces = vec![];
            let mut rest = text.as_str();
            for (_, _, size) in parts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let end = rest.char_indices().nth(*size).map_or(rest.len(), |(at, _)| at);
                let (piece, after) = rest.split_at(end);
                pieces.push(piece);
                rest = after;
            }
            let tools = [json!({"name": "add"}), json!({"name": "find"})];
            for format in [ToolFormat::Tagged, ToolFormat::Json] {
                let whole = run(ToolParser::new(format, &tools), &[&text]);
                let parts = run(ToolParser::new(format, &tools), &pieces);
                proptest::prop_assert_eq!(whole, parts);
            }
        }
    }

    #[test]
    fn knows_the_formats_of_templates() {
        for (source, format) in [
            ("<tools>{{ tools }}</tools> <tool_call>", ToolFormat::Tagged),
            (
                "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]",
                ToolFormat::Json,
            ),
            ("{{ tools }}<|python_tag|>", ToolFormat::Json),
            ("<|im_start|>", ToolFormat::Tagged),
        ] {
            assert_eq!(ToolFormat::of_template(source), format, "{source}");
        }
    }
}
