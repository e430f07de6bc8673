//! The texts of tool calls: JSON, XML, and the literals of Gemma and Python.

use super::ToolCall;
use super::literal::{self, Literals};
use serde_json::{Map, Value};

pub(super) const FUNCTION: &str = "<function=";
pub(super) const FUNCTION_END: &str = "</function>";
pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const PARAMETER_END: &str = "</parameter>";

/// The keys that an object of a call begins with.
const FIRST_KEYS: [&str; 6] = ["name", "function", "arguments", "parameters", "type", "id"];

/// The tools that a model was told about, with the schemas of their parameters.
pub(super) struct OfferedTools(Vec<(String, Value)>);

impl OfferedTools {
    pub(super) fn new(tools: &[Value]) -> OfferedTools {
        let tool = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some((name, function["parameters"].clone()))
        };
        OfferedTools(tools.iter().filter_map(tool).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a tool has this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// The schema of a tool's parameter.
    fn parameter(&self, tool: &str, key: &str) -> &Value {
        let schema = self.0.iter().find(|(known, _)| known == tool);
        schema.map_or(&Value::Null, |(_, schema)| &schema["properties"][key])
    }

    /// Whether a parameter can only be text.
    pub(super) fn is_text(&self, tool: &str, key: &str) -> bool {
        let mut types = vec![];
        types_of(self.parameter(tool, key), &mut types);
        !types.is_empty() && types.iter().all(|name| name == "string")
    }

    /// The value of a parameter that is written as this text.
    pub(super) fn value(&self, tool: &str, key: &str, text: &str) -> Value {
        typed(text, self.parameter(tool, key))
    }

    /// Whether there are calls, and all name offered tools.
    pub(super) fn know(&self, calls: &[ToolCall]) -> bool {
        !calls.is_empty() && calls.iter().all(|call| self.has(&call.name))
    }

    /// The calls in a text, in any of the forms.
    pub(super) fn parse(&self, text: &str) -> Option<Vec<ToolCall>> {
        json_calls(text)
            .or_else(|| self.xml_calls(text))
            .or_else(|| gemma_calls(text))
            .or_else(|| python_calls(text))
    }

    /// The calls of offered tools in a JSON text.
    pub(super) fn parse_known(&self, text: &str) -> Option<Vec<ToolCall>> {
        json_calls(text).filter(|calls| self.know(calls))
    }

    /// `<function=NAME><parameter=NAME>VALUE</parameter></function>`, several times. A value has the type that the schema
    /// says. A function can also hold its arguments as a JSON object.
    fn xml_calls(&self, text: &str) -> Option<Vec<ToolCall>> {
        let mut calls = vec![];
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (name, body) = rest.strip_prefix(FUNCTION)?.split_once('>')?;
            let name = name.trim().trim_matches('"');
            let mut arguments = Map::new();
            rest = body.trim_start();
            if rest.starts_with('{') {
                let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
                let Value::Object(object) = values.next()?.ok()? else {
                    return None;
                };
                arguments = object;
                rest = rest[values.byte_offset()..].trim_start();
            }
            while let Some(parameter) = rest.strip_prefix(PARAMETER) {
                let (key, value) = parameter.split_once('>')?;
                let key = key.trim().trim_matches('"');
                let (value, after) = value_and_rest(value);
                let value = value.strip_prefix('\n').unwrap_or(value);
                let value = value.strip_suffix('\n').unwrap_or(value);
                let value = self.value(name, key, value);
                arguments.insert(key.to_owned(), value);
                rest = after.trim_start();
            }
            rest = match rest.strip_prefix(FUNCTION_END) {
                Some(after) => after.trim_start(),
                // The last one may be cut.
                None if rest.is_empty() => rest,
                None => return None,
            };
            calls.push(ToolCall {
                name: name.to_owned(),
                arguments: Value::Object(arguments).to_string(),
            });
        }
        (!calls.is_empty()).then_some(calls)
    }
}

/// A parameter's value and the text after its end. A value may hold the end's text: the end is followed by a parameter, the
/// function's end or nothing.
fn value_and_rest(text: &str) -> (&str, &str) {
    for (at, end) in text.match_indices(PARAMETER_END) {
        let after = text[at + end.len()..].trim_start();
        if after.is_empty() || after.starts_with(PARAMETER) || after.starts_with(FUNCTION_END) {
            return (&text[..at], after);
        }
    }
    let end = [PARAMETER, FUNCTION_END].map(|mark| text.find(mark).unwrap_or(text.len()));
    text.split_at(end[0].min(end[1]))
}

/// A value without a type of its own, as the schema has it.
fn typed(text: &str, schema: &Value) -> Value {
    let mut types = vec![];
    types_of(schema, &mut types);
    let plain = text.trim();
    let value = serde_json::from_str(plain).ok();
    let value: Option<Value> = value.or_else(|| match plain {
        "True" => Some(true.into()),
        "False" => Some(false.into()),
        "None" => Some(Value::Null),
        _ if plain.starts_with(['{', '[']) => literal::parse(plain),
        _ => None,
    });
    let fits = |value: &Value| {
        let names: &[&str] = match value {
            Value::Null => &["null"],
            Value::Bool(_) => &["boolean"],
            Value::Number(number) if number.is_f64() => &["number"],
            Value::Number(_) => &["integer", "number"],
            Value::String(_) => &[],
            Value::Array(_) => &["array"],
            Value::Object(_) => &["object"],
        };
        match types.is_empty() {
            true => !value.is_string(),
            false => names.iter().any(|name| types.iter().any(|t| t == name)),
        }
    };
    value.filter(fits).unwrap_or_else(|| text.into())
}

/// The types that a schema allows.
fn types_of(schema: &Value, types: &mut Vec<String>) {
    match &schema["type"] {
        Value::String(name) => types.push(name.clone()),
        Value::Array(names) => {
            types.extend(names.iter().filter_map(Value::as_str).map(str::to_owned));
        }
        _ => {}
    }
    for name in ["anyOf", "oneOf"] {
        let each = schema[name].as_array().into_iter().flatten();
        each.for_each(|schema| types_of(schema, types));
    }
    let values = schema["enum"].as_array().into_iter().flatten();
    if types.is_empty() && values.clone().count() > 0 && values.into_iter().all(Value::is_string) {
        types.push("string".to_owned());
    }
}

/// Whether a text may go on to be JSON calls: its first object begins with a key of a call.
pub(super) fn may_be_calls(text: &str) -> bool {
    let rest = text.trim_start();
    let rest = rest.strip_prefix('[').map_or(rest, str::trim_start);
    if rest.is_empty() {
        return true;
    }
    let Some(rest) = rest.strip_prefix('{') else {
        return false;
    };
    let rest = rest.trim_start();
    FIRST_KEYS.iter().any(|key| {
        let key = format!("\"{key}\"");
        rest.starts_with(&key) || key.starts_with(rest)
    })
}

/// The calls in a JSON object, a list of objects, or objects one after the other.
fn json_calls(text: &str) -> Option<Vec<ToolCall>> {
    let mut calls = vec![];
    let mut rest = text.trim();
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

/// `call:NAME{KEY:VALUE,…}`, several times.
fn gemma_calls(text: &str) -> Option<Vec<ToolCall>> {
    let mut calls = vec![];
    let mut rest = text.trim();
    while !rest.is_empty() {
        let after = rest.strip_prefix("call:")?;
        let (name, _) = after.split_once('{')?;
        let mut literals = Literals::new(&after[name.len()..]);
        let arguments = literals.value()?;
        calls.push(call_with(name, arguments));
        rest = literals.rest().trim_start_matches([',', ' ', '\n', '\t']);
    }
    (!calls.is_empty()).then_some(calls)
}

/// `NAME(KEY=VALUE, …)`, several times, in a list or not.
fn python_calls(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let mut calls = vec![];
    let mut rest = inner.unwrap_or(text).trim();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('(')?;
        if name.is_empty() || !name.chars().all(is_name_char) {
            return None;
        }
        let mut literals = Literals::new(after);
        let arguments = literals.keywords()?;
        calls.push(call_with(name, Value::Object(arguments)));
        rest = literals
            .rest()
            .trim_start_matches([',', ';', ' ', '\n', '\t']);
    }
    (!calls.is_empty()).then_some(calls)
}

/// Whether the name of a function that Python calls may hold this character.
pub(super) fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || "_.-".contains(c)
}

fn call_with(name: &str, arguments: Value) -> ToolCall {
    ToolCall {
        name: name.trim().to_owned(),
        arguments: arguments.to_string(),
    }
}
