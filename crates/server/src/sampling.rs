//! Sampling options in JSON: their values, and their properties in the OpenAPI document.

use crate::body::Body;
use crate::error::ApiError;
use kvark::Model;
use kvark::generate::{OptionKind, OptionValue, SAMPLING_OPTIONS, SamplerOptions, SamplingOption};
use kvark::text::EncodeOptions;
use serde_json::{Map, Value, json};

/// Names that other servers have for an option.
const ALIASES: [(&str, &str); 1] = [("repetition_penalty", "repeat_penalty")];

/// Sets the options that the server was started with.
pub(crate) fn set_defaults(
    given: &[(&'static SamplingOption, Vec<String>)],
    options: &mut SamplerOptions,
) -> Result<(), ApiError> {
    for (option, texts) in given {
        let set = option.set_texts(options, texts);
        set.map_err(|wrong| ApiError::parameter(option.name, wrong))?;
    }
    Ok(())
}

/// Sets the options that a request names.
pub(crate) fn read(
    body: &mut Body,
    model: &Model,
    options: &mut SamplerOptions,
) -> Result<(), ApiError> {
    for option in SAMPLING_OPTIONS {
        let aliases = ALIASES.iter().filter(|(_, name)| *name == option.name);
        let names = aliases.map(|(alias, _)| *alias).chain([option.name]);
        for name in names {
            let Some(mut value) = body.value(name) else {
                continue;
            };
            let wrong = |wrong: String| ApiError::parameter(name, wrong);
            if let (OptionKind::Biases(_), Value::Array(pairs)) = (&option.kind, &value) {
                value = biases(model, pairs).map_err(wrong)?;
            }
            option
                .set(options, option_value(value))
                .map_err(|error| wrong(error.to_string()))?;
        }
    }
    Ok(())
}

/// Biases in llama.cpp's form, `[[token or text, bias or false], …]`, as an object of token ids.
fn biases(model: &Model, pairs: &[Value]) -> Result<Value, String> {
    let wrong =
        || "must be an object of token ids, or pairs of a token or text and a bias".to_owned();
    let mut object = Map::new();
    for pair in pairs {
        let [token, bias] = pair.as_array().map(Vec::as_slice).ok_or_else(wrong)? else {
            return Err(wrong());
        };
        let bias = match bias {
            Value::Bool(false) => "-inf".into(),
            bias => bias.clone(),
        };
        match token {
            Value::Number(id) => _ = object.insert(id.to_string(), bias),
            Value::String(text) => {
                let tokenizer = model.tokenizer().map_err(|error| error.to_string())?;
                for id in tokenizer.encode(text, EncodeOptions::default()) {
                    object.insert(id.to_string(), bias.clone());
                }
            }
            _ => return Err(wrong()),
        }
    }
    Ok(object.into())
}

/// The values of all options by name.
pub(crate) fn values(options: &SamplerOptions) -> Map<String, Value> {
    let mut options = options.clone();
    let mut value = |option: &SamplingOption| match &option.kind {
        OptionKind::Number(_, field) => json!(*field(&mut options)),
        OptionKind::Count(_, field) | OptionKind::Choice(_, field) => json!(*field(&mut options)),
        OptionKind::Seed(field) => json!(*field(&mut options)),
        OptionKind::Samplers(field) => json!(*field(&mut options)),
        OptionKind::Texts(field) => json!(*field(&mut options)),
        OptionKind::Biases(field) => {
            let biases = field(&mut options).iter();
            biases
                .map(|(id, bias)| json!({ "token": id, "bias": bias }))
                .collect()
        }
    };
    let all = SAMPLING_OPTIONS.iter();
    all.map(|option| (option.name.to_owned(), value(option)))
        .collect()
}

fn option_value(value: Value) -> OptionValue {
    match value {
        Value::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(integer), _) => OptionValue::Integer(integer),
            (None, Some(number)) => OptionValue::Number(number),
            (None, None) => OptionValue::Other,
        },
        Value::String(text) => OptionValue::Text(text),
        Value::Array(items) => OptionValue::List(items.into_iter().map(option_value).collect()),
        Value::Object(entries) => {
            let entries = entries.into_iter();
            let entries = entries.map(|(name, value)| (name, option_value(value)));
            OptionValue::Object(entries.collect())
        }
        Value::Null | Value::Bool(_) => OptionValue::Other,
    }
}

/// The JSON schemas of all sampling options by name.
pub(crate) fn properties() -> Map<String, Value> {
    let property = |option: &SamplingOption| (option.name.to_owned(), schema(option));
    let mut all: Map<String, Value> = SAMPLING_OPTIONS.iter().map(property).collect();
    for (alias, name) in ALIASES {
        let mut schema = all[name].clone();
        schema["description"] = format!("The same as {name}").into();
        all.insert(alias.to_owned(), schema);
    }
    all
}

fn schema(option: &SamplingOption) -> Value {
    let number = json!({ "type": "number" });
    let strings = json!({ "type": "array", "items": { "type": "string" } });
    let mut schema = match &option.kind {
        OptionKind::Number(range, _) => {
            let mut schema = number;
            let low = match range.above {
                true => "exclusiveMinimum",
                false => "minimum",
            };
            for (name, bound) in [(low, range.low), ("maximum", range.high)] {
                if bound.is_finite() {
                    schema[name] = bound.into();
                }
            }
            schema
        }
        OptionKind::Count(minus_one, _) => {
            let least = if minus_one.is_some() { -1 } else { 0 };
            json!({ "type": "integer", "minimum": least })
        }
        OptionKind::Choice(choices, _) => json!({ "type": "integer", "enum": choices }),
        OptionKind::Seed(_) => {
            json!({ "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX })
        }
        OptionKind::Texts(_) | OptionKind::Samplers(_) => {
            json!({ "anyOf": [{ "type": "string" }, strings] })
        }
        OptionKind::Biases(_) => json!({
            "anyOf": [
                { "type": "object", "additionalProperties": { "anyOf": [number, { "const": "-inf" }] } },
                { "type": "array", "items": { "type": "array", "minItems": 2, "maxItems": 2 } },
            ],
        }),
    };
    schema["description"] = option.help().into();
    schema
}
