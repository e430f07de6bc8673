//! Translates a folder's tensors and configuration.

use std::collections::{BTreeMap, HashMap};

use base::DType;
use serde_json::{Map, Value};

use super::arrangement::Plain;
use super::config::{Config, name as key_name};
use super::keys;
use super::model_type::ModelType;
use super::names::{self, Place, Stored};
use super::rope;
use crate::error::{ImportError, ImportErrorDetail};
use crate::gguf::{Gguf, GgufTensor};
use crate::safetensors::{Safetensors, SafetensorsTensor};

/// A folder in the names of GGUF files.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Metadata without a vocabulary, and the tensors.
    pub file: Gguf,
    row: ModelType,
    /// The folder's names of the tensors; the first one of those stored in several parts.
    names: HashMap<String, String>,
    /// The text before the folder's names, in a layer and outside the layers.
    prefixes: [String; 2],
}

impl Checkpoint {
    /// The name that the folder has, or would have, for a tensor.
    pub(super) fn stored_name(&self, name: &str) -> Option<String> {
        if let Some(stored) = self.names.get(name) {
            return Some(stored.clone());
        }
        let prefixes = [&self.prefixes[0][..], &self.prefixes[1][..]];
        names::stored_name(name, self.row.names, prefixes)
    }
}

/// Translates a folder.
///
/// # Errors
/// If `config.json` states no known model type, a value that is not supported, or a key that is not known and may change what the model
/// computes, or if tensors cannot be arranged as GGUF files have them.
pub fn translate(file: &Safetensors) -> Result<Checkpoint, ImportError> {
    let (row, json) = model_type(&file.config)?;
    if let Some(found) = file
        .config
        .get("quantization_config")
        .filter(|v| !v.is_null())
    {
        let method = found.get("quant_method").and_then(Value::as_str);
        let method = method.unwrap_or("unknown");
        let what = format!("quantization_config of config.json (method {method:?})");
        return Err(ImportError::unsupported(what));
    }
    let config = Config::new(json, row.defaults());
    let layers = keys::layer_count(&config)?;
    let tied = config.flag("tie_word_embeddings")?.unwrap_or(false);

    let mut tensors = Arranged::new(&row, layers);
    for tensor in &file.tensors {
        let leftover = tied && tensor.name.ends_with("lm_head.weight");
        if !leftover {
            tensors.add(tensor)?;
        }
    }
    let Arranged {
        mut tensors, names, ..
    } = tensors.joined()?;
    let encodes = row.architecture == "bert";
    if !tied && !encodes && !tensors.contains_key("output.weight") {
        return Err(ImportError::missing_tensor("lm_head.weight"));
    }
    let rope = rope::read(&config, &row)?;
    for (name, factors) in rope.factors() {
        let shape = vec![factors.len()];
        let data = base::Bytes::from_slice(factors);
        let dtype = DType::F32;
        tensors.insert(name.to_owned(), Plain { dtype, shape, data });
    }
    let shape = |name: &str| tensors.get(name).map(|tensor| &tensor.shape[..]);
    let metadata = keys::metadata(&config, &row, &rope, &shape, file.modules.as_ref())?;
    config.refuse_unknown()?;

    let embedding = file.tensors.iter().map(|tensor| &tensor.name);
    let mut layer_names = embedding.filter_map(|name| names::layer_prefix(name));
    let of_layer = layer_names
        .next()
        .unwrap_or_else(|| "model.layers.{}.".to_owned());
    let lists = ["layers.{}.", "h.{}.", "encoder.layer.{}."];
    let of_model = lists.iter().find_map(|list| of_layer.strip_suffix(list));
    let of_model = of_model.unwrap_or("").to_owned();
    let tensors = tensors.into_iter().map(|(name, plain)| GgufTensor {
        name,
        dtype: plain.dtype,
        shape: plain.shape,
        data: plain.data,
    });
    Ok(Checkpoint {
        file: Gguf::from_parts(metadata, tensors.collect(), row.rope),
        row,
        names,
        prefixes: [of_layer, of_model],
    })
}

/// The row of the configuration's model type, and the part of the configuration that describes the text model.
fn model_type(
    config: &Map<String, Value>,
) -> Result<(ModelType, &Map<String, Value>), ImportError> {
    const KEY: &str = "model_type";
    // Configurations of models for images keep those of the text decoder apart.
    let text = config.get("text_config").and_then(Value::as_object);
    let json = text.unwrap_or(config);
    let kind = config.get(KEY).filter(|value| !value.is_null());
    let Some(kind) = kind else {
        return Err(ImportError::value(key_name(KEY), "is missing"));
    };
    let kind = kind.as_str().unwrap_or_default();
    match ModelType::find(kind) {
        Some(row) => Ok((row, json)),
        None => Err(ImportErrorDetail::UnknownModelType {
            name: kind.to_owned(),
            known: ModelType::names(),
        }
        .into()),
    }
}

/// The tensors in the arrangement of GGUF files, by name.
struct Arranged<'a> {
    row: &'a ModelType,
    layers: usize,
    tensors: BTreeMap<String, Plain>,
    /// The folder's names.
    names: HashMap<String, String>,
    /// Parts of tensors that are stored one by one, by number.
    parts: HashMap<String, BTreeMap<usize, (String, Plain)>>,
}

impl<'a> Arranged<'a> {
    fn new(row: &'a ModelType, layers: usize) -> Arranged<'a> {
        Arranged {
            row,
            layers,
            tensors: BTreeMap::new(),
            names: HashMap::new(),
            parts: HashMap::new(),
        }
    }

    fn add(&mut self, tensor: &SafetensorsTensor) -> Result<(), ImportError> {
        let mut plain = Plain {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            data: tensor.data.clone(),
        };
        let stored = &tensor.name;
        let Some(place) = Place::find(stored, self.row.names) else {
            // The builder does not use it, and the lowering says so.
            return self.insert(stored, stored.clone(), plain);
        };
        // Layers behind the last one predict further tokens.
        if place.layer.is_some_and(|layer| layer >= self.layers) {
            return Ok(());
        }
        let odd = || {
            let shape = &tensor.shape;
            let reason = format!("has shape {shape:?}, which does not hold two tensors");
            ImportError::value(format!("tensor {stored}"), reason)
        };
        match place.stored {
            Stored::NotNeeded => Ok(()),
            Stored::Is(name) => {
                let name = place.name(name);
                if let Some(number) = place.number {
                    let parts = self.parts.entry(name).or_default();
                    parts.insert(number, (stored.clone(), plain));
                    return Ok(());
                }
                if self.row.norms_offset && name.ends_with("norm.weight") {
                    plain = plain.plus_one(stored)?;
                }
                // Convolutions of single channels have a dimension of 1 between.
                if name.ends_with("shortconv.conv.weight")
                    && let [channels, 1, taps] = plain.shape[..]
                {
                    plain.shape = vec![channels, taps];
                }
                // Some biases of experts are stored as a matrix of one row.
                if name.ends_with("exp_probs_b.bias") {
                    plain.shape = vec![plain.shape.iter().product()];
                }
                self.insert(stored, name, plain)
            }
            Stored::Transposed(name) => self.insert(stored, place.name(name), plain.transposed()),
            Stored::OneBelowOther(names) => {
                for (i, name) in names.into_iter().enumerate() {
                    let half = plain.half(i).ok_or_else(odd)?;
                    self.insert(stored, place.name(name), half)?;
                }
                Ok(())
            }
            Stored::InTurns(names, transposed) => {
                for (i, name) in names.into_iter().enumerate() {
                    let turn = plain.turn(i).ok_or_else(odd)?;
                    let turn = if transposed { turn.transposed() } else { turn };
                    self.insert(stored, place.name(name), turn)?;
                }
                Ok(())
            }
        }
    }

    fn insert(&mut self, stored: &str, name: String, plain: Plain) -> Result<(), ImportError> {
        self.names.insert(name.clone(), stored.to_owned());
        match self.tensors.insert(name, plain) {
            None => Ok(()),
            Some(_) => {
                let reason = "is stored twice, under two names";
                Err(ImportError::malformed(format!("tensor {stored}"), reason))
            }
        }
    }

    /// The same with tensors that are stored one by one joined.
    fn joined(mut self) -> Result<Self, ImportError> {
        for (name, parts) in std::mem::take(&mut self.parts) {
            let (first, _) = parts.values().next().expect("made with a part").clone();
            let gap = (0..parts.len()).find(|number| !parts.contains_key(number));
            if let Some(missing) = gap {
                let other = parts.keys().next().expect("made with a part");
                // The number of the layer stands before that of the part.
                let missing = match first.rsplit_once(&format!(".{other}.")) {
                    Some((before, after)) => format!("{before}.{missing}.{after}"),
                    None => first,
                };
                return Err(ImportError::missing_tensor(&missing));
            }
            let parts: Vec<Plain> = parts.into_values().map(|(_, part)| part).collect();
            let Some(whole) = Plain::stacked(&parts) else {
                let reason = "has another shape or type than its like";
                return Err(ImportError::value(format!("tensor {first}"), reason));
            };
            self.insert(&first, name, whole)?;
        }
        Ok(self)
    }
}
