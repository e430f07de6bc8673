//! Tool calls: how a model is told about tools, and how its calls are found in its text.

mod calls;
mod literal;
mod literal_copy;
mod parser;
mod stream;

pub use parser::ToolParser;
pub(crate) use parser::partial_suffix;

use crate::reasoning::place_reasoning;
use crate::system_messages::with_one_system_message;
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

/// A part of a call whose text is still coming. The arguments of a call's pieces are those of the call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallPiece {
    /// The name of the tool, in the first piece of a call.
    pub name: Option<String>,
    /// What follows of the arguments.
    pub arguments: String,
}

/// What a [`ToolParser`] finds in a text, in its order.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolPart {
    /// Text that is no part of a call.
    Text(String),
    /// A piece of a call that goes on.
    Piece(CallPiece),
    /// A complete call. Its pieces may have come before.
    Call(ToolCall),
}

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, also with a list of calls (Hermes, Qwen, SmolLM2).
    Tagged,
    /// The answer is JSON: an object, objects one after the other, or a list (Llama 3, Mistral). The control tokens
    /// before it are not part of the text.
    Json,
    /// `<tool_call><function=NAME><parameter=NAME>VALUE</parameter></function></tool_call>` (Qwen3.5, Nemotron 3).
    Xml,
    /// `<|tool_call>call:NAME{KEY:VALUE}<tool_call|>` (Gemma 4).
    Gemma,
    /// `<|tool_call_start|>[NAME(KEY=VALUE)]<|tool_call_end|>` (LFM2).
    Pythonic,
    /// `<|tool_call|>[{"name": …, "arguments": …}]` up to the end of the answer (Granite 3).
    Granite,
    /// A message to `functions.NAME` in a channel (gpt-oss).
    Harmony,
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const LFM_OPEN: &str = "<|tool_call_start|>";
const LFM_CLOSE: &str = "<|tool_call_end|>";
const GRANITE_OPEN: &str = "<|tool_call|>";

impl ToolFormat {
    /// The format of a model, from the source of its chat template and its special tokens.
    pub fn of_model(source: &str, tokenizer: &Tokenizer) -> ToolFormat {
        let special = |text: &str| tokenizer.special_token(text).is_some();
        match ToolFormat::of_template(source) {
            // The template of LFM2.5 says nothing of the tokens that its models write.
            ToolFormat::Tagged if !source.contains(OPEN) && special(LFM_OPEN) => {
                ToolFormat::Pythonic
            }
            format => format,
        }
    }

    /// The format that the source of a chat template shows. A template that does not show tools has them explained by
    /// [`prompt_with_tools`], with tags.
    pub fn of_template(source: &str) -> ToolFormat {
        let has = |mark: &str| source.contains(mark);
        if !template_knows_tools(source) {
            return ToolFormat::Tagged;
        }
        let json = [
            "[TOOL_CALLS]",
            "<|python_tag|>",
            "\"parameters\": dictionary",
        ];
        if has("<|channel|>") && has("<|message|>") {
            ToolFormat::Harmony
        } else if has("<|tool_call>") {
            ToolFormat::Gemma
        } else if has(LFM_OPEN) || has("<|tool_list_start|>") {
            ToolFormat::Pythonic
        } else if has("<function=") {
            ToolFormat::Xml
        } else if has(GRANITE_OPEN) {
            ToolFormat::Granite
        } else if !has(OPEN) && json.iter().any(|mark| has(mark)) {
            ToolFormat::Json
        } else {
            ToolFormat::Tagged
        }
    }

    /// The marks of the format that can be control tokens.
    pub(crate) fn marks(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Tagged | ToolFormat::Xml => &[OPEN, CLOSE],
            ToolFormat::Json => &[],
            ToolFormat::Gemma => &["<|tool_call>", "<tool_call|>", "<|\"|>"],
            ToolFormat::Pythonic => &[LFM_OPEN, LFM_CLOSE],
            ToolFormat::Granite => &[GRANITE_OPEN],
            ToolFormat::Harmony => &crate::harmony::MARKS,
        }
    }
}

/// The prompt of a chat with tools. A template that does not show tools, or does not write the calls of earlier answers, gets
/// them as text: in the system message, and in the answers. The reasoning of an answer is its `reasoning_content`. For a template that refuses
/// several system messages, they are joined.
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
        place_reasoning(message, template.source_text());
        if !template_knows_calls(template.source_text()) {
            write_calls(message, ToolFormat::of_template(template.source_text()));
        }
    }
    let prompt = |messages: &[Value]| {
        template.prompt_with(tokenizer, messages, add_generation_prompt, &variables)
    };
    match prompt(&messages) {
        // Many templates take one system message only; some clients send several.
        Err(refused @ TextError::TemplateRaised { .. }) => match with_one_system_message(&messages)
        {
            Some(merged) => prompt(&merged),
            None => Err(refused),
        },
        rendered => rendered,
    }
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
fn write_calls(message: &mut Value, format: ToolFormat) {
    let Some(calls) = message.get("tool_calls").and_then(Value::as_array) else {
        return;
    };
    let call = |call: &Value| {
        let function = call.get("function").unwrap_or(call);
        json!({ "name": function["name"], "arguments": function["arguments"] })
    };
    let calls: Vec<Value> = calls.iter().map(call).collect();
    let calls = match (format, &calls[..]) {
        (ToolFormat::Pythonic, calls) => {
            let calls: Vec<String> = calls.iter().map(literal::write_call).collect();
            format!("{LFM_OPEN}[{}]{LFM_CLOSE}", calls.join(", "))
        }
        (ToolFormat::Granite, calls) => format!("{GRANITE_OPEN}{}", Value::from(calls)),
        (_, [one]) => format!("{OPEN}\n{one}\n{CLOSE}"),
        (_, calls) => format!("{OPEN}\n{}\n{CLOSE}", Value::from(calls)),
    };
    let text = message["content"].as_str().unwrap_or_default();
    let blank = if text.is_empty() { "" } else { "\n" };
    message["content"] = format!("{text}{blank}{calls}").into();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (String, Vec<ToolCall>) {
        let tools = [
            json!({"type": "function", "function": {"name": "add"}}),
            json!({"name": "find"}),
        ];
        let whole = run(ToolParser::new(&tools), &[text]);
        // However the text is divided, the result is the same.
        for size in 1..6 {
            let chars: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(run(ToolParser::new(&tools), &pieces), whole);
        }
        whole
    }

    fn run(mut parser: ToolParser, pieces: &[&str]) -> (String, Vec<ToolCall>) {
        let (mut text, mut calls) = (String::new(), vec![]);
        let mut parts = vec![];
        for piece in pieces {
            parts.extend(parser.push(piece));
        }
        parts.extend(parser.finish());
        let mut streamed: Option<ToolCall> = None;
        for part in parts {
            match part {
                ToolPart::Text(shown) => text.push_str(&shown),
                ToolPart::Piece(piece) => {
                    if let Some(name) = piece.name {
                        assert!(streamed.is_none(), "a call begins within another");
                        streamed = Some(call(&name, ""));
                    }
                    let begun = streamed.as_mut().expect("the first piece has a name");
                    begun.arguments.push_str(&piece.arguments);
                }
                ToolPart::Call(call) => {
                    // The pieces of a call are the whole call.
                    if let Some(streamed) = streamed.take() {
                        assert_eq!(streamed, call);
                    }
                    calls.push(call);
                }
            }
        }
        assert!(streamed.is_none(), "a call does not end");
        (text, calls)
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
            write_calls(&mut message, ToolFormat::Tagged);
            let (shown, found) = parse(message["content"].as_str().unwrap());
            assert_eq!(shown, content);
            assert_eq!(found.len(), calls.as_array().unwrap().len());
            assert!(found.iter().all(|call| call.arguments == r#"{"a":1}"#));
        }
        let mut plain = json!({ "role": "assistant", "content": "Hi" });
        write_calls(&mut plain, ToolFormat::Tagged);
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
            assert_eq!(parse(&text), (shown.to_owned(), calls));
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
            assert_eq!(parse(text), (shown.to_owned(), calls));
        }
    }

    /// Parts of tool calls in any order, so that most texts are nearly right.
    const FRAGMENTS: [&str; 24] = [
        "<function=add>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "<|tool_call>call:add{a:<|\"|>x",
        "<|tool_call_start|>[add(a=1)]",
        "```json\n",
        "```",
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
            let whole = run(ToolParser::new(&tools), &[&text]);
            let parts = run(ToolParser::new(&tools), &pieces);
            proptest::prop_assert_eq!(whole, parts);
        }
    }

    /// The arguments that are there after a part of an answer, of a call that goes on.
    fn begun(text: &str) -> Option<(String, String)> {
        let parameters =
            json!({ "properties": { "a": { "type": "string" }, "n": { "type": "integer" } } });
        let mut parser = ToolParser::new(&[json!({ "name": "add", "parameters": parameters })]);
        let mut begun: Option<(String, String)> = None;
        for part in parser.push(text) {
            match part {
                ToolPart::Text(_) => {}
                ToolPart::Piece(piece) => {
                    if let Some(name) = piece.name {
                        begun = Some((name, String::new()));
                    }
                    begun.as_mut().unwrap().1.push_str(&piece.arguments);
                }
                ToolPart::Call(_) => begun = None,
            }
        }
        begun
    }

    #[test]
    fn arguments_come_while_they_are_written() {
        for (text, arguments) in [
            (r#"<tool_call>{"name": "add", "arg"#, None),
            (r#"<tool_call>{"name": "add", "arguments": "#, None),
            (r#"<tool_call>{"name": "add", "arguments": {"#, Some("{")),
            (
                r#"<tool_call>{"name": "add", "arguments": {"a": "x y\" {"#,
                Some(r#"{"a":"x y\" {"#),
            ),
            (
                r#"{"name": "add", "parameters": {"a": [1, "#,
                Some(r#"{"a":[1,"#),
            ),
            (
                r#"<|tool_call|>[{"name": "add", "arguments": {"n": 1}}, {"name": "add", "arguments": {"n": 2"#,
                Some(r#"{"n":2"#),
            ),
            ("<tool_call>\n<function=add>\n<para", None),
            ("<tool_call>\n<function=add>\n<parameter=", Some("")),
            (
                "<tool_call>\n<function=add>\n<parameter=a>\nOne \"line\"\nand",
                Some(r#"{"a":"One \"line\"\nand"#),
            ),
            (
                "<tool_call>\n<function=add>\n<parameter=a>\nx\n</parameter",
                Some(r#"{"a":"x"#),
            ),
            (
                "<function=add>\n<parameter=a>\nx\n</parameter>\n<parameter=n>\n12",
                Some(r#"{"a":"x","n":"#),
            ),
            // Another tool, arguments before the name, and another form.
            (r#"<tool_call>{"name": "other", "arguments": {"a": 1"#, None),
            (r#"<tool_call>{"arguments": {"a": 1}, "name": "ad"#, None),
            (r#"<|tool_call>call:other{a:1"#, None),
            ("[add(a=1", None),
            (
                "<|tool_call>call:add{a:<|\"|>x \"y\n<|",
                Some(r#"{"a":"x \"y\n"#),
            ),
            (
                "<|tool_call>call:add{a:<|\"|>x<|\"|>,n:[1, {k:tr",
                Some(r#"{"a":"x","n":[1,{"k":"#),
            ),
            (
                r#"<|tool_call_start|>[add(a='it\'s \u00e9 \u00"#,
                Some(r#"{"a":"it's é "#),
            ),
            (
                r#"<|tool_call_start|>[add(n=1, a=("x", None), "#,
                Some(r#"{"n":1,"a":["x",null]"#),
            ),
            (
                "```json\n{\"name\": \"add\", \"arguments\": {\"a\": \"```\\n",
                Some(r#"{"a":"```\n"#),
            ),
        ] {
            let wanted = arguments.map(|text| ("add".to_owned(), text.to_owned()));
            assert_eq!(begun(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_call_that_was_begun_stays_one() {
        for (text, shown, calls) in [
            // Literals that are cut, and those that are none.
            (
                "<|tool_call>call:add{a:<|\"|>b",
                "",
                vec![call("add", r#"{"a":"b"#)],
            ),
            (
                "<|tool_call_start|>[add(a=1, find(n=2)]<|tool_call_end|>",
                "find(n=2)",
                vec![call("add", r#"{"a":1"#)],
            ),
            // Cut in the arguments, and after them.
            (
                r#"<tool_call>{"name": "add", "arguments": {"a": "b"#,
                "",
                vec![call("add", r#"{"a":"b"#)],
            ),
            (
                r#"<tool_call>{"name": "add", "arguments": {"a": 1}"#,
                "",
                vec![call("add", r#"{"a":1}"#)],
            ),
            // A line end in a string, and text behind the call.
            (
                "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"b\nc\"}}</tool_call>",
                "",
                vec![call("add", r#"{"a":"b\nc"}"#)],
            ),
            (
                r#"{"name": "add", "arguments": {"a": 1}} That is it."#,
                "That is it.",
                vec![call("add", r#"{"a":1}"#)],
            ),
            // The first call is streamed, the second is not.
            (
                r#"<tool_call>[{"name": "add", "arguments": {"a": 1}}, {"name": "find"}]</tool_call>"#,
                "",
                vec![call("add", r#"{"a":1}"#), call("find", "{}")],
            ),
        ] {
            assert_eq!(parse(text), (shown.to_owned(), calls), "{text}");
        }
        // Parameters without ends, as the parser of whole texts reads them.
        for (text, arguments) in [
            (
                "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx",
                json!({ "a": 1, "b": "x" }),
            ),
            (
                "<function=add>\n<parameter=a>\nx\n<parameter=b>\n[1, 2]\n</function>",
                json!({ "a": "x", "b": [1, 2] }),
            ),
            ("<function=add>\n<parameter=a>\n", json!({ "a": "" })),
        ] {
            let calls = vec![call("add", &arguments.to_string())];
            assert_eq!(parse(text), (String::new(), calls), "{text}");
            let marked = format!("<tool_call>\n{text}\n</tool_call>");
            let (shown, calls) = parse(&marked);
            assert_eq!((&*shown, calls.len()), ("", 1), "{text}");
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
            ("{{ tools }}<tool_call>\n<function=f>", ToolFormat::Xml),
            ("{{ tools }}<|tool_call>call:", ToolFormat::Gemma),
            ("{{ tools }}<|tool_list_start|>", ToolFormat::Pythonic),
            ("{{ tools }}<|tool_call|>", ToolFormat::Granite),
            (
                "{{ tools }}<|channel|>final<|message|>",
                ToolFormat::Harmony,
            ),
            ("<|im_start|>", ToolFormat::Tagged),
        ] {
            assert_eq!(ToolFormat::of_template(source), format, "{source}");
        }
    }
}
