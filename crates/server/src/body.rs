//! `Body`: the parameters of a request. Structs that implement `Deserialize` take theirs; those that none takes are refused.

use crate::error::ApiError;
use crate::options::ServerOptions;
use axum::body::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The parameters of a JSON body that are not read yet.
pub(crate) struct Body(Map<String, Value>);

impl Body {
    /// Parses a body, which must be a JSON object. An empty one has no parameters.
    pub(crate) fn parse(body: &Bytes) -> Result<Body, ApiError> {
        if body.is_empty() {
            return Ok(Body(Map::new()));
        }
        let text = std::str::from_utf8(body);
        let text =
            text.map_err(|error| ApiError::invalid(format!("the body is not UTF-8: {error}")))?;
        let value: Value = serde_json::from_str(text)
            .map_err(|error| ApiError::invalid(format!("the body is not JSON: {error}")))?;
        match value {
            Value::Object(map) => Ok(Body(map)),
            _ => Err(ApiError::invalid("the body must be a JSON object")),
        }
    }

    /// Parses a body whose parameters are the fields of `T` and no others.
    ///
    /// # Errors
    /// Those of [`parse`](Body::parse), [`read`](Body::read) and [`finish`](Body::finish).
    pub(crate) fn read_all<T>(body: &Bytes, options: &ServerOptions) -> Result<T, ApiError>
    where
        T: for<'de> Deserialize<'de>,
    {
        let mut body = Body::parse(body)?;
        let request = body.read()?;
        body.finish(&[], &[], options.lenient)?;
        Ok(request)
    }

    /// Takes a parameter; `null` is the same as leaving it out.
    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes the parameters that are fields of `T`.
    ///
    /// # Errors
    /// That a parameter is missing, or that its value is wrong, with its name.
    pub(crate) fn read<T: for<'de> Deserialize<'de>>(&mut self) -> Result<T, ApiError> {
        T::deserialize(self)
    }

    /// Refuses what was not read: `ignored` parameters cannot change the output, `unsupported` ones would. A lenient
    /// server ignores unknown ones with a warning.
    pub(crate) fn finish(
        self,
        ignored: &[&str],
        unsupported: &[&str],
        lenient: bool,
    ) -> Result<Vec<String>, ApiError> {
        let mut warnings = vec![];
        for (name, value) in &self.0 {
            if value.is_null() || ignored.contains(&name.as_str()) {
                continue;
            }
            if unsupported.contains(&name.as_str()) {
                return Err(ApiError::unsupported(name));
            }
            if !lenient {
                return Err(ApiError::unknown(name));
            }
            warnings.push(format!("the unknown parameter {name:?} was ignored"));
        }
        Ok(warnings)
    }
}

/// Parameters that an endpoint states itself.
impl From<Map<String, Value>> for Body {
    fn from(parameters: Map<String, Value>) -> Body {
        Body(parameters)
    }
}

/// A struct takes the parameters that it has fields for, and leaves the others.
impl<'de> Deserializer<'de> for &mut Body {
    type Error = ApiError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ApiError> {
        visitor.visit_map(Parameters {
            body: self,
            fields: fields.iter(),
            next: None,
        })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ApiError> {
        unreachable!("parameters are read as structs")
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct Parameters<'a> {
    body: &'a mut Body,
    fields: std::slice::Iter<'static, &'static str>,
    next: Option<(&'static str, Value)>,
}

impl<'de> MapAccess<'de> for Parameters<'_> {
    type Error = ApiError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ApiError> {
        let body = &mut *self.body;
        self.next = self
            .fields
            .find_map(|name| Some((*name, body.value(name)?)));
        let Some((name, _)) = &self.next else {
            return Ok(None);
        };
        seed.deserialize(StrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ApiError> {
        let (name, value) = self.next.take().expect("its key was read");
        let read = seed.deserialize(value);
        read.map_err(|wrong| ApiError::parameter(name, wrong))
    }
}

impl serde::de::Error for ApiError {
    fn custom<T: std::fmt::Display>(message: T) -> ApiError {
        ApiError::invalid(message.to_string())
    }

    fn missing_field(name: &'static str) -> ApiError {
        ApiError::parameter(name, "is required").with_code("missing_required_parameter")
    }
}

/// An integer from `LOW` to `HIGH`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int<const LOW: i64, const HIGH: i64 = { i64::MAX }>(pub(crate) i64);

impl<const LOW: i64, const HIGH: i64> Int<LOW, HIGH> {
    /// The number, which is not negative.
    pub(crate) fn size(self) -> usize {
        self.0 as usize
    }
}

impl<'de, const LOW: i64, const HIGH: i64> Deserialize<'de> for Int<LOW, HIGH> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let value = Value::deserialize(deserializer)?;
        // Clients of other languages write 16.0 for 16.
        let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 9e15).then_some(x as i64);
        let number = value.as_i64().or_else(|| value.as_f64().and_then(whole));
        let number = number.ok_or_else(|| D::Error::custom("must be an integer"))?;
        match (LOW..=HIGH).contains(&number) {
            true => Ok(Int(number)),
            false if HIGH == i64::MAX => {
                Err(D::Error::custom(format!("{number} must be at least {LOW}")))
            }
            false => Err(D::Error::custom(format!(
                "{number} must be between {LOW} and {HIGH}"
            ))),
        }
    }
}

impl<const LOW: i64, const HIGH: i64> JsonSchema for Int<LOW, HIGH> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Int_{LOW}_{HIGH}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        match HIGH {
            i64::MAX => json_schema!({ "type": "integer", "minimum": LOW }),
            _ => json_schema!({ "type": "integer", "minimum": LOW, "maximum": HIGH }),
        }
    }
}

/// A string or a list of strings.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "must be a string or a list of strings")]
#[schemars(inline)]
pub(crate) enum Strings {
    One(String),
    Many(Vec<String>),
}

impl From<Strings> for Vec<String> {
    fn from(strings: Strings) -> Vec<String> {
        match strings {
            Strings::One(text) => vec![text],
            Strings::Many(texts) => texts,
        }
    }
}

/// A name or an object.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) enum StringOrObject {
    Name(String),
    Object(Map<String, Value>),
}

/// A text or a list of objects.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) enum TextOrObjects {
    Text(String),
    Objects(Vec<Map<String, Value>>),
}
