//! The configuration of a cache: the model's facts about each layer and the caller's choices.

use crate::{KvError, KvErrorKind, Side};
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
}

impl KvStorage {
    /// Every storage type.
    pub const ALL: [KvStorage; 8] = [
        KvStorage::F32,
        KvStorage::F16,
        KvStorage::BF16,
        KvStorage::F8E4M3,
        KvStorage::Q8(QuantGroup::G32),
        KvStorage::Q8(QuantGroup::G64),
        KvStorage::Q4(QuantGroup::G32),
        KvStorage::Q4(QuantGroup::G64),
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
        }
    }
}

impl fmt::Display for KvStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The model's facts about one cached layer (cache id).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// Heads that store keys and values (not query heads).
    pub kv_heads: usize,
    /// Elements of a key, per head.
    pub key_dim: usize,
    /// Elements of a value, per head.
    pub value_dim: usize,
    /// A query sees only the last `window` positions, its own included; `None` sees all.
    pub window: Option<u32>,
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
    /// Cells of a pool's first allocation; later allocations double.
    pub initial_cells: u32,
    /// The size of the rings of sliding-window layers; `None` keeps all rows in all layers.
    pub ring: Option<RingPolicy>,
}

impl CacheConfig {
    /// As [`initial_cells`](CacheConfig::initial_cells): all cells are allocated when the cache is made, and nothing grows.
    pub const ALL_CELLS: u32 = u32::MAX;

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
            initial_cells: 256,
            ring: None,
        }
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
            if heads == 0 || key == 0 || value == 0 {
                let sizes = format!("{heads} heads, keys of {key} and values of {value}");
                return bad(format!("layer {i} has {sizes}"));
            }
            let ring = self.ring.map_or(0, |ring| ring.slack());
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
        Ok(())
    }

    /// Bytes of one row of one head.
    pub fn row_bytes(&self, layer: usize, side: Side) -> usize {
        let layer = &self.layers[layer];
        match side {
            Side::Key => self.key_storage.row_bytes(layer.key_dim),
            Side::Value => self.value_storage.row_bytes(layer.value_dim),
        }
    }

    /// Bytes that `cells` cells take over all layers, keys and values together.
    pub fn bytes_for(&self, cells: u32) -> usize {
        let row = |l: &LayerConfig| {
            l.kv_heads
                * (self.key_storage.row_bytes(l.key_dim)
                    + self.value_storage.row_bytes(l.value_dim))
        };
        self.layers.iter().map(row).sum::<usize>() * cells as usize
    }
}

#[cfg(test)]
mod tests;
