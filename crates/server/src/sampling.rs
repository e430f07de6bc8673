//! Sampling options in JSON: their values, and their properties in the OpenAPI document.

use crate::body::Body;
use crate::error::ApiError;
use kvark::generate::{OptionKind, OptionValue, SAMPLING_OPTIONS, SamplerOptions, SamplingOption};
use serde_json::{Map, Value, json};

/// Sets the options that a request names.
pub(crate) fn read(body: &mut Body, options: &mut SamplerOptions) -> Result<(), ApiError> {
    for option in SAMPLING_OPTIONS {
        if let Some(value) = body.value(option.name) {
            let set = option.set(options, option_value(value));
            set.map_err(|wrong| ApiError::parameter(option.name, wrong))?;
        }
    }
    Ok(())
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
    SAMPLING_OPTIONS.iter().map(property).collect()
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
            "type": "object",
            "additionalProperties": { "anyOf": [number, { "const": "-inf" }] },
        }),
    };
    schema["description"] = option.help().into();
    schema
}
