//! What a cache must know before it exists: model facts per layer and the caller's policy.

use std::fmt;

/// Element type of stored keys or values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    /// Four bytes an element, exact.
    F32,
    /// Two bytes an element.
    #[default]
    F16,
}

impl Storage {
    /// Every storage type.
    pub const ALL: [Storage; 2] = [Storage::F32, Storage::F16];

    /// The name used on the command line and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Storage::F32 => "f32",
            Storage::F16 => "f16",
        }
    }

    /// The storage type with this name.
    pub fn from_name(name: &str) -> Option<Storage> {
        Storage::ALL.into_iter().find(|s| s.name() == name)
    }

    /// Bytes of a row of `dim` elements.
    pub const fn row_bytes(self, dim: usize) -> usize {
        match self {
            Storage::F32 => dim * 4,
            Storage::F16 => dim * 2,
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One cache id's facts, fixed by the model.
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

/// Everything a cache is built from. Its kind is the function that builds it, never a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Most cells the cache may ever hold; the hard stop behind `can_extend`.
    pub capacity: u32,
    /// One entry per cache id.
    pub layers: Vec<LayerConfig>,
    /// How keys are stored.
    pub key_storage: Storage,
    /// How values are stored.
    pub value_storage: Storage,
    /// Cells of the first allocation; later ones double.
    pub min_cells: u32,
}

impl CacheConfig {
    /// `n_layers` equal layers with default storage and growth.
    pub fn uniform(capacity: u32, n_layers: usize, layer: LayerConfig) -> CacheConfig {
        CacheConfig::new(capacity, vec![layer; n_layers])
    }

    /// The given layers with default storage and growth.
    pub fn new(capacity: u32, layers: Vec<LayerConfig>) -> CacheConfig {
        CacheConfig {
            capacity,
            layers,
            key_storage: Storage::default(),
            value_storage: Storage::default(),
            min_cells: 256,
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
