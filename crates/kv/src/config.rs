//! The configuration of a cache: the model's facts about each layer and the caller's choices.

use crate::window::LayerWindow;
use crate::{KvError, KvErrorKind, Side};
use std::collections::BTreeMap;
use std::fmt;

/// The number of elements of a quantised row that share a scale and an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantGroup {
    /// 32 elements.
    G32,
    /// 64 elements.
    G64,
}

impl QuantGroup {
    /// The number of elements.
    pub const fn len(self) -> usize {
        match self {
            QuantGroup::G32 => 32,
            QuantGroup::G64 => 64,
        }
    }

    /// Always false: a group has 32 or 64 elements.
    pub const fn is_empty(self) -> bool {
        false
    }
}

/// The encoding of stored keys or values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvStorage {
    /// Four bytes an element, exact.
    F32,
    /// Two bytes an element.
    #[default]
    F16,
    /// Two bytes an element, with f32's range.
    BF16,
    /// One byte an element: a sign, four bits of exponent and three of mantissa, up to ±448, without infinities
    /// (OCP's e4m3fn). Larger numbers become ±448.
    F8E4M3,
    /// One byte an element, affine in groups.
    Q8(QuantGroup),
    /// Half a byte an element, affine in groups.
    Q4(QuantGroup),
    /// As [`Q4`](KvStorage::Q4) in groups of 32, of the row after a Hadamard transform, which spreads large elements over all.
    Q4Rotated,
}

impl KvStorage {
    /// Every storage type.
    pub const ALL: [KvStorage; 9] = [
        KvStorage::F32,
        KvStorage::F16,
        KvStorage::BF16,
        KvStorage::F8E4M3,
        KvStorage::Q8(QuantGroup::G32),
        KvStorage::Q8(QuantGroup::G64),
        KvStorage::Q4(QuantGroup::G32),
        KvStorage::Q4(QuantGroup::G64),
        KvStorage::Q4Rotated,
    ];

    /// The name used on the command line and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            KvStorage::F32 => "f32",
            KvStorage::F16 => "f16",
            KvStorage::BF16 => "bf16",
            KvStorage::F8E4M3 => "f8_e4m3",
            KvStorage::Q8(QuantGroup::G32) => "q8",
            KvStorage::Q8(QuantGroup::G64) => "q8g64",
            KvStorage::Q4(QuantGroup::G32) => "q4",
            KvStorage::Q4(QuantGroup::G64) => "q4g64",
            KvStorage::Q4Rotated => "q4h",
        }
    }

    /// The storage type with this name. Also accepts llama.cpp's names of the nearest types, and vLLM's of FP8.
    pub fn from_name(name: &str) -> Option<KvStorage> {
        match name {
            "fp8" | "fp8_e4m3" => Some(KvStorage::F8E4M3),
            "q8_0" => Some(KvStorage::Q8(QuantGroup::G32)),
            "q4_0" | "q4_1" => Some(KvStorage::Q4(QuantGroup::G32)),
            _ => KvStorage::ALL.into_iter().find(|s| s.name() == name),
        }
    }

    /// Bytes of a row of `dim` elements.
    ///
    /// A quantised row is a pair of f16 (scale, offset) per group, followed by the codes. Q8 codes are bytes, padded to
    /// a multiple of 16. Q4 codes take 16 bytes per 32 elements: the low nibbles are elements 0 to 15, the high nibbles
    /// elements 16 to 31.
    pub const fn row_bytes(self, dim: usize) -> usize {
        match self {
            KvStorage::F32 => dim * 4,
            KvStorage::F16 | KvStorage::BF16 => dim * 2,
            KvStorage::F8E4M3 => dim,
            KvStorage::Q8(group) => dim.div_ceil(group.len()) * 4 + dim.next_multiple_of(16),
            KvStorage::Q4(group) => dim.div_ceil(group.len()) * 4 + dim.next_multiple_of(32) / 2,
            KvStorage::Q4Rotated => KvStorage::Q4(QuantGroup::G32).row_bytes(dim),
        }
    }

    /// The type of the row after its transform, if rows of this type are transformed first.
    pub const fn rotated(self) -> Option<KvStorage> {
        match self {
            KvStorage::Q4Rotated => Some(KvStorage::Q4(QuantGroup::G32)),
            _ => None,
        }
    }
}

impl fmt::Display for KvStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The model's facts about one cached layer (cache id).
///
/// A layer's memory is rows, a key and a value for each position, or a *state*: one value for a sequence, which every token
/// replaces. A state is stored like the value of the token that it follows, and has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// Heads that store keys and values (not query heads), or heads of the state.
    pub kv_heads: usize,
    /// Elements of a key, per head; 0 for a state.
    pub key_dim: usize,
    /// Elements of a value or of the state, per head.
    pub value_dim: usize,
    /// A query sees only the last `window` positions, its own included; `None` sees all.
    pub window: Option<u32>,
    /// The first positions of a sequence, which queries see besides their window and the cache keeps. 0 without a window. (The attention
    /// sinks of some models are weights, which no cache knows.)
    pub sinks: u32,
}

impl LayerConfig {
    /// A layer with a state.
    pub const fn state(heads: usize, elements: usize) -> LayerConfig {
        LayerConfig {
            kv_heads: heads,
            key_dim: 0,
            value_dim: elements,
            window: None,
            sinks: 0,
        }
    }

    /// The window with its sinks.
    pub(crate) fn layer_window(&self) -> Option<LayerWindow> {
        let sinks = self.sinks;
        self.window.map(|len| LayerWindow { len, sinks })
    }

    /// Whether the layer's memory is a state.
    pub const fn is_state(&self) -> bool {
        self.key_dim == 0
    }
}

/// How many states layers with a state keep. All such layers of a model keep them at the same positions.
///
/// A sequence needs its *live* state, which its next token replaces. The others are *snapshots*: a rewind, a fork or a shared
/// prefix can end there. A state is kept as a snapshot where a prompt begins, before its last token, where a sequence was forked or
/// rewound, and at regular positions inside prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePolicy {
    /// The maximum number of states in the pool, live ones included. A step writes new states before it releases those that it
    /// replaces, so each sequence of a step needs two, and each candidate one.
    pub slots: u32,
    /// A snapshot is kept after every position of a prompt that is a multiple of this; 0 keeps none inside prompts.
    pub interval: u32,
    /// How states are stored, f32 or f16. A state in f16 is rounded after every token, so that it is the same wherever a sequence is
    /// divided into steps.
    pub storage: KvStorage,
}

impl Default for StatePolicy {
    fn default() -> StatePolicy {
        StatePolicy {
            slots: 32,
            interval: 256,
            storage: KvStorage::F32,
        }
    }
}

/// The limits that size the rings of sliding-window layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPolicy {
    /// The maximum number of tokens in one step.
    pub max_step: u32,
    /// The maximum number of tokens that a rewind removes.
    pub max_rewind: u32,
}

impl RingPolicy {
    /// Rows kept in addition to the window, for the longest step or rewind.
    pub fn slack(&self) -> u32 {
        self.max_step.max(self.max_rewind).max(1)
    }

    /// Rows in the ring of a layer with this window.
    pub fn slots(&self, window: u32) -> u32 {
        window.max(1) - 1 + self.slack()
    }
}

/// The configuration of a cache. The kind of the cache is not part of it: the `make_*_session` functions choose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// The maximum number of cells.
    pub capacity: u32,
    /// One entry per cache id.
    pub layers: Vec<LayerConfig>,
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

impl CacheConfig {
    /// As [`initial_cells`](CacheConfig::initial_cells): all cells are allocated when the cache is made, and nothing grows.
    pub const ALL_CELLS: u32 = u32::MAX;

    /// As [`initial_cells`](CacheConfig::initial_cells): a small first allocation of a cache that grows.
    pub const GROWN_CELLS: u32 = 256;

    /// `n_layers` equal layers with default storage and growth.
    pub fn uniform(capacity: u32, n_layers: usize, layer: LayerConfig) -> CacheConfig {
        CacheConfig::new(capacity, vec![layer; n_layers])
    }

    /// The given layers with default storage and growth.
    pub fn new(capacity: u32, layers: Vec<LayerConfig>) -> CacheConfig {
        CacheConfig {
            capacity,
            layers,
            key_storage: KvStorage::default(),
            value_storage: KvStorage::default(),
            layer_storage: BTreeMap::new(),
            initial_cells: CacheConfig::GROWN_CELLS,
            ring: None,
            states: StatePolicy::default(),
        }
    }

    /// Whether a layer's memory is a state.
    pub fn has_states(&self) -> bool {
        self.layers.iter().any(LayerConfig::is_state)
    }

    /// Whether layers have sinks.
    pub fn has_sinks(&self) -> bool {
        self.layers.iter().any(|layer| layer.sinks > 0)
    }

    /// Returns an error if layers have sinks, with which rows cannot be this (such as `"saved"`).
    pub(crate) fn check_no_sinks(&self, operation: &'static str) -> Result<(), KvError> {
        match self.has_sinks() {
            true => Err(KvErrorKind::Sinks { operation }.into()),
            false => Ok(()),
        }
    }

    /// How a side of a layer is stored.
    pub fn storage(&self, layer: usize, side: Side) -> KvStorage {
        if self.layers[layer].is_state() {
            return self.states.storage;
        }
        let of_layer = self.layer_storage.get(&layer);
        let [keys, values] = *of_layer.unwrap_or(&[self.key_storage, self.value_storage]);
        match side {
            Side::Key => keys,
            Side::Value => values,
        }
    }

    /// Stores the keys and values of all layers so.
    pub fn store_as(&mut self, keys: KvStorage, values: KvStorage) {
        (self.key_storage, self.value_storage) = (keys, values);
        self.layer_storage.clear();
    }

    /// Checks that a cache can be built from this configuration. Builders only receive checked configurations.
    pub fn check(&self) -> Result<(), KvError> {
        let bad = |reason: String| Err(KvErrorKind::Config(reason).into());
        let max = i32::MAX as u32;
        if self.capacity == 0 || self.capacity > max {
            return bad(format!("a capacity of {} cells", self.capacity));
        }
        if self.layers.len() > u16::MAX as usize {
            return bad(format!("{} layers", self.layers.len()));
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let (heads, key, value) = (layer.kv_heads, layer.key_dim, layer.value_dim);
            if layer.is_state() && layer.window.is_some() {
                return bad(format!("layer {i} has a state and a window"));
            }
            if heads == 0 || value == 0 {
                let sizes = format!("{heads} heads, keys of {key} and values of {value}");
                return bad(format!("layer {i} has {sizes}"));
            }
            if layer.sinks > 0 && layer.window.is_none() {
                return bad(format!("layer {i} has {} sinks and no window", layer.sinks));
            }
            let ring = self.ring.map_or(0, |ring| ring.slack());
            let ring = ring.saturating_add(layer.sinks);
            match layer.window {
                Some(0) => return bad(format!("layer {i} has a window of 0")),
                Some(window) if window > max || ring > max => {
                    return bad(format!(
                        "layer {i} has a window of {window} and {ring} rows more"
                    ));
                }
                _ => {}
            }
        }
        let is_stored = |layer: &usize| self.layers.get(*layer).is_some_and(|l| !l.is_state());
        if let Some(layer) = self.layer_storage.keys().find(|layer| !is_stored(layer)) {
            return bad(format!(
                "storage types of layer {layer}, which has no keys and values"
            ));
        }
        let StatePolicy { slots, storage, .. } = self.states;
        if !matches!(storage, KvStorage::F32 | KvStorage::F16) {
            return bad(format!("states in {storage}, must be in f32 or f16"));
        }
        if self.has_states() && !(2..=max).contains(&slots) {
            return bad(format!("{slots} states, must be at least 2"));
        }
        Ok(())
    }

    /// Bytes of one row of one head.
    pub fn row_bytes(&self, layer: usize, side: Side) -> usize {
        let config = &self.layers[layer];
        let dim = match side {
            Side::Key => config.key_dim,
            Side::Value => config.value_dim,
        };
        self.storage(layer, side).row_bytes(dim)
    }

    /// Bytes of a row of all heads, key and value together.
    fn cell_bytes(&self, layer: usize) -> usize {
        let sides = [Side::Key, Side::Value].map(|side| self.row_bytes(layer, side));
        self.layers[layer].kv_heads * sides.iter().sum::<usize>()
    }

    /// Bytes that `cells` cells take over all layers with rows, keys and values together.
    pub fn bytes_for(&self, cells: u32) -> usize {
        let layers = 0..self.layers.len();
        let rows = layers.filter(|layer| !self.layers[*layer].is_state());
        rows.map(|layer| self.cell_bytes(layer)).sum::<usize>() * cells as usize
    }

    /// Bytes of one state over all layers; 0 if no layer has one.
    pub fn state_bytes(&self) -> usize {
        let layers = 0..self.layers.len();
        let states = layers.filter(|layer| self.layers[*layer].is_state());
        states.map(|layer| self.cell_bytes(layer)).sum()
    }
}

#[cfg(test)]
mod tests;
