//! `Fields`: reads the parameters of a request body one by one, and refuses those that nobody reads.

use crate::error::ApiError;
use axum::body::Bytes;
use serde_json::{Map, Value};

/// The parameters of a JSON body that are not read yet.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Parameters that were ignored because the server is lenient.
    pub(crate) warnings: Vec<String>,
}

impl Fields {
    /// Parses a body, which must be a JSON object.
    pub(crate) fn parse(body: &Bytes) -> Result<Fields, ApiError> {
        let text = std::str::from_utf8(body);
        let text =
            text.map_err(|error| ApiError::invalid(format!("the body is not UTF-8: {error}")))?;
        let value: Value = serde_json::from_str(text)
            .map_err(|error| ApiError::invalid(format!("the body is not JSON: {error}")))?;
        match value {
            Value::Object(map) => Ok(Fields {
                map,
                warnings: vec![],
            }),
            _ => Err(ApiError::invalid("the body must be a JSON object")),
        }
    }

    /// Takes a parameter; `null` is the same as leaving it out.
    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Puts a parameter in the place of another one's part.
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.map.insert(name.to_owned(), value);
    }

    pub(crate) fn required(&mut self, name: &str) -> Result<Value, ApiError> {
        let missing = || ApiError {
            code: Some("missing_required_parameter"),
            ..ApiError::parameter(name, "is required")
        };
        self.value(name).ok_or_else(missing)
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::parameter(name, "must be a string")),
        }
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(ApiError::parameter(name, "must be true or false")),
        }
    }

    /// An integer within a range.
    pub(crate) fn integer(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.value(name) else {
            return Ok(None);
        };
        // Clients of other languages write 16.0 for 16.
        let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 9e15).then_some(x as i64);
        let number = value.as_i64().or_else(|| value.as_f64().and_then(whole));
        let number = number.ok_or_else(|| ApiError::parameter(name, "must be an integer"))?;
        match range.contains(&number) {
            true => Ok(Some(number)),
            false => {
                let (low, high) = range.into_inner();
                let bounds = match high {
                    i64::MAX => format!("at least {low}"),
                    _ => format!("between {low} and {high}"),
                };
                Err(ApiError::parameter(
                    name,
                    format!("{number} must be {bounds}"),
                ))
            }
        }
    }

    /// A number within a range.
    pub(crate) fn number(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.value(name) else {
            return Ok(None);
        };
        let number = value.as_f64();
        let number = number.ok_or_else(|| ApiError::parameter(name, "must be a number"))?;
        match range.contains(&number) {
            true => Ok(Some(number as f32)),
            false => {
                let (low, high) = range.into_inner();
                let bounds = format!("{number} must be between {low} and {high}");
                Err(ApiError::parameter(name, bounds))
            }
        }
    }

    /// A string or a list of strings.
    pub(crate) fn strings(&mut self, name: &str) -> Result<Vec<String>, ApiError> {
        let wrong = || ApiError::parameter(name, "must be a string or a list of strings");
        match self.value(name) {
            None => Ok(vec![]),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(items)) => {
                let text = |item: Value| match item {
                    Value::String(text) => Ok(text),
                    _ => Err(wrong()),
                };
                items.into_iter().map(text).collect()
            }
            Some(_) => Err(wrong()),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(ApiError::parameter(name, "must be an object")),
        }
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(ApiError::parameter(name, "must be a list")),
        }
    }

    /// Refuses what was not read: `ignored` parameters cannot change the output, `unsupported` ones would. A lenient
    /// server ignores unknown ones with a warning.
    pub(crate) fn finish(
        mut self,
        ignored: &[&str],
        unsupported: &[&str],
        lenient: bool,
    ) -> Result<Vec<String>, ApiError> {
        for (name, value) in &self.map {
            if value.is_null() || ignored.contains(&name.as_str()) {
                continue;
            }
            if unsupported.contains(&name.as_str()) {
                return Err(ApiError::unsupported(name));
            }
            if !lenient {
                return Err(ApiError::unknown(name));
            }
            self.warnings
                .push(format!("the unknown parameter {name:?} was ignored"));
        }
        Ok(self.warnings)
    }
}
