//! Finds the inputs of a decoder that are KV caches, and their layout.

use std::collections::BTreeSet;

use crate::error::ImportError;
use crate::genai::{DecoderNames, GenAi};
use crate::onnx::file::{Onnx, Port};
use crate::onnx::schema::DimProto;
use crate::stored_type::StoredType;

/// The numbers of the layers that have a cache, ascending, from the names of a model's inputs.
///
/// In `pattern` one `%d` stands for the number. It must be a whole non-negative integer and no layer may be there twice;
/// layers without a cache may be left out.
///
/// ```
/// let names = ["input_ids", "key_cache.4", "value_cache.4", "key_cache.0"];
/// assert_eq!(import::onnx::discover_kv_layers(names, "key_cache.%d").unwrap(), [0, 4]);
/// assert!(import::onnx::discover_kv_layers(["key_cache.0.bad"], "key_cache.%d").is_err());
/// ```
pub fn discover_kv_layers<'a>(
    names: impl IntoIterator<Item = &'a str>,
    pattern: &str,
) -> Result<Vec<u32>, ImportError> {
    let Some((prefix, suffix)) = pattern.split_once("%d") else {
        let what = format!("the pattern {pattern:?}");
        return Err(ImportError::value(
            what,
            "has no place for a layer's number",
        ));
    };
    let mut layers = BTreeSet::new();
    for name in names {
        let number = name
            .strip_prefix(prefix)
            .and_then(|n| n.strip_suffix(suffix));
        let Some(number) = number.filter(|number| !number.is_empty()) else {
            continue;
        };
        let wrong = |reason: &str| ImportError::value(format!("cache {name:?}"), reason);
        // `parse` would accept a sign.
        let digits = number.bytes().all(|byte| byte.is_ascii_digit());
        let layer = number.parse().ok().filter(|_| digits);
        let layer = layer
            .ok_or_else(|| wrong(&format!("has {number:?} where a layer's number must be")))?;
        if !layers.insert(layer) {
            return Err(wrong(&format!("is a second one for layer {layer}")));
        }
    }
    Ok(layers.into_iter().collect())
}

/// Layout of a cache input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLayout {
    /// A static buffer that the model scatters into: `[batch, max_seq_len, kv_hidden]`.
    Static {
        /// Rows of the buffer.
        max_seq_len: usize,
        /// Elements of a row, all heads together.
        kv_hidden: usize,
    },
    /// Past keys or values by head: `[batch, heads, length, dim]`.
    Past {
        /// Heads that store keys and values.
        heads: usize,
        /// Number of rows, if it is not the length of the sequence.
        rows: Option<usize>,
    },
}

impl CacheLayout {
    /// Fixed number of rows, valid or not; `None` if it equals the number of tokens.
    pub(super) fn fixed_rows(self) -> Option<usize> {
        match self {
            CacheLayout::Static { max_seq_len, .. } => Some(max_seq_len),
            CacheLayout::Past { rows, .. } => rows,
        }
    }
}

/// The cache of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheInputs {
    /// The layer's number in the names.
    pub layer: u32,
    /// The input with the keys.
    pub key: String,
    /// The input with the values.
    pub value: String,
    /// Layout of the keys.
    pub form: CacheLayout,
}

/// The inputs that are caches, by layer.
///
/// A static cache has two index inputs (`write_indices`, `nonpad_kv_seqlen`); it is an error if one is missing or has the
/// wrong type.
pub fn cache_layers(file: &Onnx, names: &DecoderNames) -> Result<Vec<CacheInputs>, ImportError> {
    check_drivers(file, names)?;
    let mut layers = vec![];
    let mut patterns: Vec<(String, String)> = vec![];
    for names in [
        names,
        &DecoderNames::static_cache(),
        &DecoderNames::default(),
    ] {
        let pair = (names.past_key.clone(), names.past_value.clone());
        if !patterns.contains(&pair) {
            patterns.push(pair);
        }
    }
    for (key, value) in patterns {
        let inputs = || file.inputs.iter().map(|port| &port.name[..]);
        let keys = discover_kv_layers(inputs(), &key)?;
        let values = discover_kv_layers(inputs(), &value)?;
        for (found, missing, here, there) in [
            (&keys, &values, &key, &value),
            (&values, &keys, &value, &key),
        ] {
            if let Some(layer) = found.iter().find(|layer| !missing.contains(layer)) {
                let name = |pattern: &str| numbered(pattern, *layer);
                let what = format!("layer {layer}");
                let reason = format!("has the cache {:?} and no {:?}", name(here), name(there));
                return Err(ImportError::value(what, reason));
            }
        }
        for layer in keys {
            let (key, value) = (numbered(&key, layer), numbered(&value, layer));
            let form = form(port(file, &key)?)?;
            form_of_values(port(file, &value)?, form)?;
            layers.push(CacheInputs {
                layer,
                key,
                value,
                form,
            });
        }
    }
    layers.sort_by_key(|cache| cache.layer);
    Ok(layers)
}

impl Onnx {
    /// Replaces the dynamic size of a head, in the shapes of caches, by the number that the configuration states.
    pub(crate) fn set_head_size(&mut self, config: &GenAi) {
        let Some(number) = config.head_size.and_then(|size| i64::try_from(size).ok()) else {
            return;
        };
        let patterns = [&config.names.past_key, &config.names.past_value];
        let is_cache = |name: &str| {
            let mut parts = patterns
                .iter()
                .filter_map(|pattern| pattern.split_once("%d"));
            parts.any(|(prefix, suffix)| name.starts_with(prefix) && name.ends_with(suffix))
        };
        let mut sizes = BTreeSet::new();
        for port in self.inputs.iter().filter(|port| is_cache(&port.name)) {
            if let Some([_, _, _, DimProto::Symbol(size)]) = port.dims.as_deref() {
                sizes.insert(size.clone());
            }
        }
        for port in self.inputs.iter_mut().chain(&mut self.outputs) {
            let dims = port.dims.iter_mut().flatten().zip(&mut port.shape);
            for (dim, text) in dims {
                if matches!(dim, DimProto::Symbol(name) if sizes.contains(name)) {
                    *dim = DimProto::Number(number);
                    *text = number.to_string();
                }
            }
        }
    }
}

/// Input name of a layer by its pattern. The number must be written without leading zeros.
fn numbered(pattern: &str, layer: u32) -> String {
    pattern.replace("%d", &layer.to_string())
}

pub(super) fn port<'a>(file: &'a Onnx, name: &str) -> Result<&'a Port, ImportError> {
    let found = file.inputs.iter().find(|port| port.name == name);
    found.ok_or_else(|| ImportError::value(format!("input {name:?}"), "is missing: the file writes this layer's number in another form, such as with leading zeros"))
}

/// Checks that both index inputs of a static cache are present, or neither.
fn check_drivers(file: &Onnx, names: &DecoderNames) -> Result<(), ImportError> {
    let find = |name: &str| file.inputs.iter().find(|port| port.name == name);
    let (write, nonpad) = (&names.write_indices, &names.nonpad_kv_seqlen);
    match (find(write), find(nonpad)) {
        (None, None) => Ok(()),
        (Some(_), None) | (None, Some(_)) => {
            let (here, there) = match find(write) {
                Some(_) => (write, nonpad),
                None => (nonpad, write),
            };
            let reason = format!("is there without {there:?}, and a static cache needs both");
            Err(ImportError::value(format!("input {here:?}"), reason))
        }
        (Some(write), Some(nonpad)) => {
            for port in [write, nonpad] {
                if port.kind != Some(StoredType::I64) {
                    let reason = format!("is {}, must be int64", port.dtype);
                    return Err(ImportError::value(format!("input {:?}", port.name), reason));
                }
            }
            Ok(())
        }
    }
}

fn form(port: &Port) -> Result<CacheLayout, ImportError> {
    let wrong = |reason: String| ImportError::value(format!("cache {:?}", port.name), reason);
    let size = |dim: &DimProto| match dim {
        DimProto::Number(n) => usize::try_from(*n).ok().filter(|n| *n > 0),
        _ => None,
    };
    let is_dynamic = |dim: &DimProto| !matches!(dim, DimProto::Number(_));
    let shape = format!("[{}]", port.shape.join(", "));
    match port.dims.as_deref() {
        Some([_, rows, width]) => match (size(rows), size(width)) {
            (Some(max_seq_len), Some(kv_hidden)) => Ok(CacheLayout::Static {
                max_seq_len,
                kv_hidden,
            }),
            _ => Err(wrong(format!(
                "is {shape}: the rows and the width of a static buffer must be numbers"
            ))),
        },
        Some([_, heads, rows, dim]) => match (size(heads), size(dim)) {
            // The size of a head follows from the attention over it.
            (Some(heads), head) if head.is_some() || is_dynamic(dim) => Ok(CacheLayout::Past {
                heads,
                rows: size(rows),
            }),
            _ => Err(wrong(format!(
                "is {shape}: the number of heads must be stated, and a head must not be empty"
            ))),
        },
        _ => Err(wrong(format!(
            "is {shape}, which has neither three axes nor four"
        ))),
    }
}

/// Checks that values have the layout of the keys; only their width may differ.
fn form_of_values(port: &Port, keys: CacheLayout) -> Result<(), ImportError> {
    let same = match (keys, form(port)?) {
        (
            CacheLayout::Static { max_seq_len: a, .. },
            CacheLayout::Static { max_seq_len: b, .. },
        ) => a == b,
        (CacheLayout::Past { .. }, values @ CacheLayout::Past { .. }) => keys == values,
        _ => false,
    };
    match same {
        true => Ok(()),
        false => Err(ImportError::value(
            format!("cache {:?}", port.name),
            format!(
                "is [{}], which does not fit its keys",
                port.shape.join(", ")
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str]) -> Result<Vec<u32>, String> {
        let names = names.iter().copied();
        discover_kv_layers(names, "key_cache.%d").map_err(|error| error.to_string())
    }

    #[test]
    fn layers_come_sorted_and_may_be_sparse() {
        let names = [
            "input_ids",
            "key_cache.10",
            "value_cache.3",
            "key_cache.2",
            "key_cache.0",
            "key_cache.",
        ];
        assert_eq!(found(&names), Ok(vec![0, 2, 10]));
        assert_eq!(found(&["input_ids"]), Ok(vec![]));
        let names = [
            "past_key_values.1.key",
            "past_key_values.1.value",
            "past_key_values.0.key",
        ];
        assert_eq!(
            discover_kv_layers(names, "past_key_values.%d.key").unwrap(),
            [0, 1]
        );
    }

    #[test]
    fn malformed_numbers_are_refused() {
        for number in ["0.bad", "x", "-1", "+1", "1 ", "0x1", "99999999999", "१"] {
            let name = format!("key_cache.{number}");
            let error = found(&["key_cache.0", &name]).unwrap_err();
            assert_eq!(
                error,
                format!("cache {name:?} has {number:?} where a layer's number must be")
            );
        }
        assert!(discover_kv_layers(["key_cache.0"], "key_cache").is_err());
    }

    #[test]
    fn duplicates_are_refused() {
        let error = found(&["key_cache.0", "key_cache.1", "key_cache.01"]).unwrap_err();
        assert_eq!(error, "cache \"key_cache.01\" is a second one for layer 1");
    }
}
