//! Cache facts in the metadata of model files, and the configuration built from them.
//!
//! Two forms are read and written: the versioned `kv_cache.*` keys ([`ModelCacheParams`], one size for all layers), and
//! the constant methods of ExecuTorch programs (`get_n_caches`, `get_kv_heads`, …, sizes and windows per cache). A file
//! may have either or both; if it has both, they must agree. Importers fill a [`Metadata`] map from the file, so this
//! module does not depend on a file format.
//!
//! ```
//! use kv::metadata::{self, CachePolicy, Metadata, MetadataValue};
//!
//! let file = Metadata::from([
//!     ("kv_cache.schema_version".to_owned(), MetadataValue::Int(1)),
//!     ("kv_cache.n_layers".to_owned(), MetadataValue::Int(30)),
//!     ("kv_cache.n_kv_heads".to_owned(), MetadataValue::Int(3)),
//!     ("kv_cache.head_dim".to_owned(), MetadataValue::Int(64)),
//! ]);
//! let facts = metadata::read(&file).unwrap().expect("the file has cache facts");
//! let config = metadata::make_config(&facts, &CachePolicy::new(8192));
//! assert_eq!((config.capacity, config.layers.len()), (8192, 30));
//! assert!(config.check().is_ok());
//! ```

use crate::{CacheConfig, KvError, KvErrorKind, KvStorage, LayerConfig, RingPolicy, StatePolicy};
use std::collections::BTreeMap;
use std::fmt::Display;

/// The supported version of the `kv_cache.*` keys.
pub const SCHEMA_VERSION: i64 = 1;

const VERSION: &str = "kv_cache.schema_version";
const N_LAYERS: &str = "kv_cache.n_layers";
const N_KV_HEADS: &str = "kv_cache.n_kv_heads";
const HEAD_DIM: &str = "kv_cache.head_dim";

const N_CACHES: &str = "get_n_caches";
const KV_HEADS: &str = "get_kv_heads";
const HEAD_DIMS: &str = "get_head_dims";
const WINDOWS: &str = "get_windows";
const PREFILL_CHUNK: &str = "get_prefill_chunk_size";
const MAX_CONTEXT: &str = "get_max_ctx_len";

/// Every key that this module writes.
const CACHE_KEYS: [&str; 10] = [
    VERSION,
    N_LAYERS,
    N_KV_HEADS,
    HEAD_DIM,
    N_CACHES,
    KV_HEADS,
    HEAD_DIMS,
    WINDOWS,
    PREFILL_CHUNK,
    MAX_CONTEXT,
];

/// The maximum number of layers, of heads and of elements per head. A larger number indicates a damaged file.
const MAX_SIZE: i64 = u16::MAX as i64;
/// The maximum length: positions are i32.
const MAX_POSITIONS: i64 = i32::MAX as i64;

/// A metadata value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataValue {
    /// One number.
    Int(i64),
    /// A vector of numbers.
    Ints(Vec<i64>),
}

/// The metadata of a file. Keys that are not about caches are ignored.
pub type Metadata = BTreeMap<String, MetadataValue>;

/// The `kv_cache.*` keys: layers of one size, without windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCacheParams {
    /// Number of caches.
    pub n_layers: u32,
    /// Heads that store keys and values (not query heads).
    pub n_kv_heads: u32,
    /// Elements of a key or a value, per head.
    pub head_dim: u32,
}

/// The model's facts about its caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFacts {
    /// One entry per cache id.
    pub layers: Vec<LayerConfig>,
    /// Tokens per step of the exported prefill.
    pub prefill_chunk: Option<u32>,
    /// The maximum context that the model was exported for.
    pub max_context: Option<u32>,
}

/// The caller's choices for a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePolicy {
    /// The maximum number of cells.
    pub capacity: u32,
    /// How keys are stored.
    pub key_storage: KvStorage,
    /// How values are stored.
    pub value_storage: KvStorage,
    /// The layers whose keys and values are stored otherwise.
    pub layer_storage: BTreeMap<usize, [KvStorage; 2]>,
    /// Cells of a pool's first allocation; later allocations double.
    pub initial_cells: u32,
    /// The size of the rings of sliding-window layers; `None` keeps all rows in all layers.
    pub ring: Option<RingPolicy>,
    /// How many states are kept, if layers have states.
    pub states: StatePolicy,
}

impl CachePolicy {
    /// Default storage and growth up to this many cells.
    pub fn new(capacity: u32) -> CachePolicy {
        let CacheConfig {
            key_storage,
            value_storage,
            layer_storage,
            initial_cells,
            ring,
            states,
            ..
        } = CacheConfig::new(capacity, vec![]);
        CachePolicy {
            capacity,
            key_storage,
            value_storage,
            layer_storage,
            initial_cells,
            ring,
            states,
        }
    }
}

/// The cache configuration from the model's facts and the caller's policy.
pub fn make_config(facts: &CacheFacts, policy: &CachePolicy) -> CacheConfig {
    CacheConfig {
        capacity: policy.capacity,
        layers: facts.layers.clone(),
        key_storage: policy.key_storage,
        value_storage: policy.value_storage,
        layer_storage: policy.layer_storage.clone(),
        initial_cells: policy.initial_cells,
        ring: policy.ring,
        states: policy.states,
    }
}

/// Reads the cache facts of a file; `None` if it has neither form.
pub fn read(file: &Metadata) -> Result<Option<CacheFacts>, KvError> {
    let params = ModelCacheParams::read(file)?;
    let layers = match (read_constant_methods(file)?, params) {
        (Some(layers), Some(params)) => {
            check_agreement(&layers, &params)?;
            layers
        }
        (Some(layers), None) => layers,
        (None, Some(params)) => params.layers(),
        (None, None) => return Ok(None),
    };
    let positive = |key| match file.contains_key(key) {
        true => int(file, key, 1..=MAX_POSITIONS).map(|n| Some(n as u32)),
        false => Ok(None),
    };
    Ok(Some(CacheFacts {
        layers,
        prefill_chunk: positive(PREFILL_CHUNK)?,
        max_context: positive(MAX_CONTEXT)?,
    }))
}

/// Writes the facts in every form that can represent them: always as constant methods, and as `kv_cache.*` keys if all
/// layers are equal and none has a window.
///
/// # Errors
/// `Metadata` if a layer's values have another size than its keys, which neither form can represent.
pub fn write(facts: &CacheFacts, file: &mut Metadata) -> Result<(), KvError> {
    let mut keys = Metadata::new();
    facts.write_constant_methods(&mut keys)?;
    if let Ok(params) = ModelCacheParams::of(facts) {
        params.write(&mut keys);
    }
    // Remove all cache keys first: an old key that is not rewritten would contradict the new ones.
    file.retain(|key, _| !CACHE_KEYS.contains(&key.as_str()));
    file.extend(keys);
    Ok(())
}

impl ModelCacheParams {
    /// Reads the `kv_cache.*` keys; `None` if the file has none of them.
    pub fn read(file: &Metadata) -> Result<Option<ModelCacheParams>, KvError> {
        if !file.keys().any(|key| key.starts_with("kv_cache.")) {
            return Ok(None);
        }
        match value(file, VERSION)? {
            MetadataValue::Int(SCHEMA_VERSION) => {}
            MetadataValue::Int(version) => {
                let known = format!("only version {SCHEMA_VERSION} is understood");
                return Err(metadata_error(
                    VERSION,
                    format!("is {version}, and {known}"),
                ));
            }
            MetadataValue::Ints(_) => {
                return Err(metadata_error(VERSION, "is a list and not a number"));
            }
        }
        let size = |key| int(file, key, 1..=MAX_SIZE).map(|n| n as u32);
        Ok(Some(ModelCacheParams {
            n_layers: size(N_LAYERS)?,
            n_kv_heads: size(N_KV_HEADS)?,
            head_dim: size(HEAD_DIM)?,
        }))
    }

    /// The parameters that represent these facts.
    ///
    /// # Errors
    /// `Metadata` if the layers differ or have a window, which the schema cannot represent.
    pub fn of(facts: &CacheFacts) -> Result<ModelCacheParams, KvError> {
        let first = facts.layers.first();
        let first = first.ok_or_else(|| metadata_error(N_LAYERS, "would be 0"))?;
        for (i, layer) in facts.layers.iter().enumerate() {
            if layer.kv_heads != first.kv_heads {
                return Err(not_uniform(N_KV_HEADS, i, layer.kv_heads, first.kv_heads));
            }
            for dim in [layer.key_dim, layer.value_dim] {
                if dim != first.key_dim {
                    return Err(not_uniform(HEAD_DIM, i, dim, first.key_dim));
                }
            }
            if let Some(window) = layer.window {
                let reason = format!("cannot represent the window {window} of layer {i}");
                return Err(metadata_error(VERSION, reason));
            }
        }
        Ok(ModelCacheParams {
            n_layers: checked_size(N_LAYERS, facts.layers.len())? as u32,
            n_kv_heads: checked_size(N_KV_HEADS, first.kv_heads)? as u32,
            head_dim: checked_size(HEAD_DIM, first.key_dim)? as u32,
        })
    }

    /// Writes the `kv_cache.*` keys.
    pub fn write(&self, file: &mut Metadata) {
        file.extend([
            (VERSION.to_owned(), MetadataValue::Int(SCHEMA_VERSION)),
            (
                N_LAYERS.to_owned(),
                MetadataValue::Int(self.n_layers.into()),
            ),
            (
                N_KV_HEADS.to_owned(),
                MetadataValue::Int(self.n_kv_heads.into()),
            ),
            (
                HEAD_DIM.to_owned(),
                MetadataValue::Int(self.head_dim.into()),
            ),
        ]);
    }

    /// The layers that the parameters describe.
    pub fn layers(&self) -> Vec<LayerConfig> {
        let layer = LayerConfig {
            kv_heads: self.n_kv_heads as usize,
            key_dim: self.head_dim as usize,
            value_dim: self.head_dim as usize,
            window: None,
            sinks: 0,
        };
        vec![layer; self.n_layers as usize]
    }
}

impl CacheFacts {
    /// Writes ExecuTorch's constant methods.
    pub fn write_constant_methods(&self, file: &mut Metadata) -> Result<(), KvError> {
        if self.layers.is_empty() {
            return Err(metadata_error(N_CACHES, "would be 0"));
        }
        let (mut heads, mut dims, mut windows) = (vec![], vec![], vec![]);
        for (i, layer) in self.layers.iter().enumerate() {
            if layer.value_dim != layer.key_dim {
                return Err(not_uniform(HEAD_DIMS, i, layer.value_dim, layer.key_dim));
            }
            let window = layer.window.map_or(0, i64::from);
            if layer.window == Some(0) || window > MAX_POSITIONS {
                let reason = format!("cannot represent the window {window} of cache {i}");
                return Err(metadata_error(WINDOWS, reason));
            }
            heads.push(checked_size(KV_HEADS, layer.kv_heads)?);
            dims.push(checked_size(HEAD_DIMS, layer.key_dim)?);
            windows.push(window);
        }
        let caches = checked_size(N_CACHES, self.layers.len())?;
        let mut all = vec![
            (N_CACHES, MetadataValue::Int(caches)),
            (KV_HEADS, MetadataValue::Ints(heads)),
            (HEAD_DIMS, MetadataValue::Ints(dims)),
            (WINDOWS, MetadataValue::Ints(windows)),
        ];
        for (key, number) in [
            (PREFILL_CHUNK, self.prefill_chunk),
            (MAX_CONTEXT, self.max_context),
        ] {
            if let Some(number) = number.map(i64::from) {
                if !(1..=MAX_POSITIONS).contains(&number) {
                    return Err(metadata_error(key, format!("cannot be {number}")));
                }
                all.push((key, MetadataValue::Int(number)));
            }
        }
        file.extend(all.into_iter().map(|(key, value)| (key.to_owned(), value)));
        Ok(())
    }
}

/// Reads the layers from the constant methods; `None` if the file has no constant method about caches.
fn read_constant_methods(file: &Metadata) -> Result<Option<Vec<LayerConfig>>, KvError> {
    let about_caches = [N_CACHES, KV_HEADS, HEAD_DIMS, WINDOWS];
    if !about_caches.iter().any(|key| file.contains_key(*key)) {
        return Ok(None);
    }
    let caches = int(file, N_CACHES, 1..=MAX_SIZE)? as usize;
    let heads = ints(file, KV_HEADS, caches, 1..=MAX_SIZE)?;
    let dims = ints(file, HEAD_DIMS, caches, 1..=MAX_SIZE)?;
    let windows = ints(file, WINDOWS, caches, 0..=MAX_POSITIONS)?;
    let layer = |((&heads, &dim), &window): ((&i64, &i64), &i64)| LayerConfig {
        kv_heads: heads as usize,
        key_dim: dim as usize,
        value_dim: dim as usize,
        window: (window > 0).then_some(window as u32),
        sinks: 0,
    };
    let layers = heads.iter().zip(dims).zip(windows).map(layer);
    Ok(Some(layers.collect()))
}

fn check_agreement(layers: &[LayerConfig], params: &ModelCacheParams) -> Result<(), KvError> {
    let differs = |key, found: String, other: &str, wanted: u32| {
        Err(metadata_error(
            key,
            format!("{found}, but {other} is {wanted}"),
        ))
    };
    if layers.len() != params.n_layers as usize {
        let found = format!("is {}", layers.len());
        return differs(N_CACHES, found, N_LAYERS, params.n_layers);
    }
    for (i, layer) in layers.iter().enumerate() {
        if layer.kv_heads != params.n_kv_heads as usize {
            let found = format!("has {} for cache {i}", layer.kv_heads);
            return differs(KV_HEADS, found, N_KV_HEADS, params.n_kv_heads);
        }
        if layer.key_dim != params.head_dim as usize {
            let found = format!("has {} for cache {i}", layer.key_dim);
            return differs(HEAD_DIMS, found, HEAD_DIM, params.head_dim);
        }
    }
    Ok(())
}

fn metadata_error(key: &str, reason: impl Display) -> KvError {
    let (key, reason) = (key.to_owned(), reason.to_string());
    KvErrorKind::Metadata { key, reason }.into()
}

fn not_uniform(key: &str, layer: usize, found: usize, first: usize) -> KvError {
    metadata_error(
        key,
        format!("cannot represent both {first} and {found} of layer {layer}"),
    )
}

/// Converts a size to the number in the file; an error if a reader would refuse it.
fn checked_size(key: &str, size: usize) -> Result<i64, KvError> {
    let number = i64::try_from(size).ok();
    number
        .filter(|n| (1..=MAX_SIZE).contains(n))
        .ok_or_else(|| metadata_error(key, format!("cannot be {size}")))
}

fn value<'a>(file: &'a Metadata, key: &str) -> Result<&'a MetadataValue, KvError> {
    file.get(key)
        .ok_or_else(|| metadata_error(key, "is missing"))
}

type Bounds = std::ops::RangeInclusive<i64>;

fn int(file: &Metadata, key: &str, bounds: Bounds) -> Result<i64, KvError> {
    match value(file, key)? {
        MetadataValue::Int(number) => {
            within(key, *number, &bounds)?;
            Ok(*number)
        }
        MetadataValue::Ints(_) => Err(metadata_error(key, "is a list and not a number")),
    }
}

fn ints<'a>(
    file: &'a Metadata,
    key: &str,
    caches: usize,
    bounds: Bounds,
) -> Result<&'a [i64], KvError> {
    let numbers = match value(file, key)? {
        MetadataValue::Ints(numbers) => numbers,
        MetadataValue::Int(_) => return Err(metadata_error(key, "is a number and not a list")),
    };
    if numbers.len() != caches {
        let reason = format!("has {} entries, but {N_CACHES} is {caches}", numbers.len());
        return Err(metadata_error(key, reason));
    }
    for number in numbers {
        within(key, *number, &bounds)?;
    }
    Ok(numbers)
}

fn within(key: &str, number: i64, bounds: &Bounds) -> Result<(), KvError> {
    if bounds.contains(&number) {
        return Ok(());
    }
    let (least, most) = (bounds.start(), bounds.end());
    let reason = format!("has {number}, which is not between {least} and {most}");
    Err(metadata_error(key, reason))
}

#[cfg(test)]
mod tests;
