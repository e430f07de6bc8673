//! Range-checked access to the keys of one architecture.

use super::error::GgufError;
use super::metadata::{Metadata, Value};
use crate::error::ImportError;

/// Reads `<architecture>.<key>`.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) prefix: &'a str,
}

impl Keys<'_> {
    /// The key's full name.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// A size from 1 to `i32::MAX`, so that products of a few sizes do not overflow.
    pub(super) fn size(&self, key: &str) -> Result<usize, ImportError> {
        let size = self.optional_size(key)?;
        size.ok_or_else(|| GgufError::missing(&self.name(key)).into())
    }

    /// A size that may be absent.
    pub(super) fn optional_size(&self, key: &str) -> Result<Option<usize>, ImportError> {
        let name = self.name(key);
        let size = self.metadata.usize(&name)?;
        size.map(|size| in_range(&name, size)).transpose()
    }

    /// A count that may be absent or 0.
    pub(super) fn count(&self, key: &str) -> Result<usize, ImportError> {
        Ok(self.metadata.usize(&self.name(key))?.unwrap_or(0))
    }

    /// A size for each of `layers` layers: one for all of them, or an array with one each.
    pub(super) fn layer_sizes(
        &self,
        key: &str,
        layers: usize,
    ) -> Result<Option<Vec<usize>>, ImportError> {
        self.per_layer(key, layers, in_range)
    }

    /// A size for each of `layers` layers as [`layer_sizes`](Keys::layer_sizes), where layers may have 0.
    pub(super) fn layer_counts(
        &self,
        key: &str,
        layers: usize,
    ) -> Result<Option<Vec<usize>>, ImportError> {
        self.per_layer(key, layers, count_in_range)
    }

    fn per_layer(
        &self,
        key: &str,
        layers: usize,
        check: fn(&str, usize) -> Result<usize, ImportError>,
    ) -> Result<Option<Vec<usize>>, ImportError> {
        let name = self.name(key);
        let values = match self.metadata.get(&name) {
            Some(Value::Array(_)) => self.metadata.usizes(&name)?,
            _ => self.metadata.usize(&name)?.map(|value| vec![value; layers]),
        };
        let Some(values) = values else {
            return Ok(None);
        };
        if values.len() != layers {
            let reason = format!("has {} entries for {layers} layers", values.len());
            return Err(ImportError::value(name, reason));
        }
        let checked = values.into_iter().map(|value| check(&name, value));
        checked.collect::<Result<_, _>>().map(Some)
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, key: &str) -> Result<Option<f32>, ImportError> {
        let name = self.name(key);
        match self.metadata.f32(&name)? {
            Some(x) if !(x.is_finite() && x > 0.0) => {
                let reason = format!("is {x}, must be a finite number above 0");
                Err(ImportError::value(name, reason))
            }
            x => Ok(x),
        }
    }

    /// The same, where 0 means absent.
    pub(super) fn positive_or_zero(&self, key: &str) -> Result<Option<f32>, ImportError> {
        match self.metadata.f32(&self.name(key))? {
            Some(0.0) => Ok(None),
            _ => self.positive(key),
        }
    }

    pub(super) fn str(&self, key: &str) -> Result<Option<&str>, ImportError> {
        Ok(self.metadata.str(&self.name(key))?)
    }
}

fn count_in_range(name: &str, count: usize) -> Result<usize, ImportError> {
    match count {
        0 => Ok(0),
        count => in_range(name, count),
    }
}

fn in_range(name: &str, size: usize) -> Result<usize, ImportError> {
    if (1..=i32::MAX as usize).contains(&size) {
        return Ok(size);
    }
    let reason = format!("is {size}, must be from 1 to {}", i32::MAX);
    Err(ImportError::value(name, reason))
}
