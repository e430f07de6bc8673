//! The memory layout of a cache, computed before anything is allocated.

use crate::{CacheConfig, KvStorage, LayerConfig};

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Keys.
    Key,
    /// Values.
    Value,
}

/// The keys or the values of one layer, `[heads, rows, dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideLayout {
    /// Number of heads. The rows of one head are contiguous.
    pub heads: usize,
    /// Rows of a head.
    pub rows: usize,
    /// Elements of a row.
    pub dim: usize,
    /// Encoding of the rows.
    pub storage: KvStorage,
    /// Offset of the first byte in the cache.
    pub offset: usize,
}

impl SideLayout {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.storage.row_bytes(self.dim)
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.heads
            .saturating_mul(self.rows)
            .saturating_mul(self.row_bytes())
    }

    /// Offset of the byte after the last one.
    pub fn end(&self) -> usize {
        self.offset.saturating_add(self.bytes())
    }

    /// Offset of a head's row in the cache: `offset + (head · rows + row) · row_bytes`.
    pub fn row(&self, head: usize, row: usize) -> usize {
        self.offset + (head * self.rows + row) * self.row_bytes()
    }
}

/// One layer of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerLayout {
    /// The layer's window, if it has one.
    pub window: Option<u32>,
    /// Its keys.
    pub keys: SideLayout,
    /// Its values, stored after the keys.
    pub values: SideLayout,
}

impl LayerLayout {
    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.keys.bytes().saturating_add(self.values.bytes())
    }

    /// Whether the layer has a state instead of keys and values.
    pub fn has_state(&self) -> bool {
        self.keys.dim == 0
    }

    /// One of its sides.
    pub fn side(&self, side: Side) -> &SideLayout {
        match side {
            Side::Key => &self.keys,
            Side::Value => &self.values,
        }
    }
}

/// The layout of a whole cache: layer-major, and head-major inside a layer.
///
/// If all layers have the same size and storage type, this is the array `[layers, 2, heads, rows, dim]`: element `d` of
/// a row has the index `(((layer · 2 + side) · heads + head) · rows + row) · dim + d`. A backend may allocate every
/// side separately, with this size and this order.
///
/// ```
/// use kv::{CacheConfig, LayerConfig, Side, KvStorage};
///
/// // Qwen3-0.6B.
/// let layer = LayerConfig { kv_heads: 8, key_dim: 128, value_dim: 128, window: None, sinks: 0 };
/// let mut config = CacheConfig::uniform(1024, 28, layer);
/// (config.key_storage, config.value_storage) = (KvStorage::F32, KvStorage::F32);
/// let layout = config.layout(1024, 1);
/// assert_eq!(layout.bytes(), 234_881_024);
/// let (layer, side, head, position) = (17, 1, 3, 912);
/// let element = (((layer * 2 + side) * 8 + head) * 1024 + position) * 128;
/// assert_eq!(layout.layers[layer].side(Side::Value).row(head, position), element * 4);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvLayout {
    /// One entry per cache id.
    pub layers: Vec<LayerLayout>,
}

impl KvLayout {
    /// Bytes of all layers.
    pub fn bytes(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.values.end())
    }

    /// Bytes of the layers with states, and the number of states; zeros if there are none.
    pub fn states(&self) -> (usize, usize) {
        let states = || self.layers.iter().filter(|layer| layer.has_state());
        let slots = states().map(|layer| layer.values.rows).max();
        (states().map(LayerLayout::bytes).sum(), slots.unwrap_or(0))
    }
}

/// How the pools of a layer grow.
///
/// A pool starts with `initial_rows` and doubles. A ring layer's pool grows up to the size of one ring; if several
/// sequences share the pool, it then grows by whole rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolGrowth {
    /// Rows of the first allocation.
    pub initial_rows: u32,
    /// The maximum number of rows of one sequence: the size of its ring, or the capacity.
    pub max_rows_per_sequence: u32,
    /// The maximum number of rows of the pool.
    pub capacity: u32,
}

impl PoolGrowth {
    /// The size of a pool that must hold `needed` rows.
    pub fn rows(&self, needed: u32) -> u32 {
        let rows = match needed {
            0 => 0,
            n if n > self.max_rows_per_sequence => {
                u64::from(self.max_rows_per_sequence)
                    * u64::from(n.div_ceil(self.max_rows_per_sequence))
            }
            n => {
                let first = u64::from(self.initial_rows.max(1));
                let doubled = first * u64::from(n).div_ceil(first).next_power_of_two();
                doubled.min(self.max_rows_per_sequence.into())
            }
        };
        rows.min(self.capacity.into()) as u32
    }

    /// The growth of a pool whose first rows are the `cells` cells of a shared prefix, stored elsewhere.
    pub fn after_prefix(self, cells: u32) -> PoolGrowth {
        let capacity = self.capacity.saturating_sub(cells);
        PoolGrowth {
            max_rows_per_sequence: self.max_rows_per_sequence.min(capacity),
            capacity,
            ..self
        }
    }
}

/// States of the first allocation of a pool, unless all are allocated at once.
const FIRST_STATES: u32 = 4;

impl CacheConfig {
    /// How the pools of a layer grow.
    pub fn growth(&self, layer: &LayerConfig) -> PoolGrowth {
        if layer.is_state() {
            let slots = self.states.slots;
            return PoolGrowth {
                initial_rows: match self.initial_cells {
                    CacheConfig::ALL_CELLS => slots,
                    _ => slots.min(FIRST_STATES),
                },
                max_rows_per_sequence: slots,
                capacity: slots,
            };
        }
        let max_rows_per_sequence = match layer.layer_window().zip(self.ring) {
            Some((window, ring)) => window.slots(ring).min(self.capacity),
            None => self.capacity,
        };
        PoolGrowth {
            initial_rows: self.initial_cells,
            max_rows_per_sequence,
            capacity: self.capacity,
        }
    }

    /// The layout once `tokens` tokens are stored in `sequences` sequences that share no cells.
    pub fn layout(&self, tokens: u32, sequences: u32) -> KvLayout {
        let tokens = tokens.min(self.capacity);
        let mut offset = 0;
        let mut side = |heads, dim, storage, rows| {
            let side = SideLayout {
                heads,
                rows,
                dim,
                storage,
                offset,
            };
            offset = side.end();
            side
        };
        let layer = |(index, layer): (usize, &LayerConfig)| {
            let growth = self.growth(layer);
            let rings = u64::from(growth.max_rows_per_sequence) * u64::from(sequences.max(1));
            let rows = match layer.is_state() {
                true => growth.rows(self.states.slots),
                false => growth.rows(rings.min(tokens.into()) as u32),
            };
            let rows = rows as usize;
            let [key, value] = [Side::Key, Side::Value].map(|side| self.storage(index, side));
            LayerLayout {
                window: layer.window,
                keys: side(layer.kv_heads, layer.key_dim, key, rows),
                values: side(layer.kv_heads, layer.value_dim, value, rows),
            }
        };
        KvLayout {
            layers: self.layers.iter().enumerate().map(layer).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RingPolicy;

    fn config() -> CacheConfig {
        let layer = |window| LayerConfig {
            kv_heads: 3,
            key_dim: 64,
            value_dim: 32,
            window,
            sinks: 0,
        };
        CacheConfig {
            ring: Some(RingPolicy {
                max_step: 512,
                max_rewind: 512,
            }),
            ..CacheConfig::new(32768, vec![layer(Some(512)), layer(None)])
        }
    }

    #[test]
    fn pools_double_and_rings_stop_at_their_size() {
        let config = config();
        let rows = |layer: usize, needed| config.growth(&config.layers[layer]).rows(needed);
        let needed = [0, 1, 256, 257, 1000, 1023, 1024, 2046, 2047, 40000];
        let ring = [0, 256, 256, 512, 1023, 1023, 2046, 2046, 3069, 32768];
        let flat = [0, 256, 256, 512, 1024, 1024, 1024, 2048, 2048, 32768];
        assert_eq!(needed.map(|n| rows(0, n)), ring);
        assert_eq!(needed.map(|n| rows(1, n)), flat);
        let odd = CacheConfig {
            initial_cells: 6,
            ..CacheConfig::new(50, config.layers.clone())
        };
        let rows = [5, 7, 13, 25, 50].map(|n| odd.growth(&odd.layers[1]).rows(n));
        assert_eq!(rows, [6, 12, 24, 48, 50]);
    }

    #[test]
    fn layers_lie_one_behind_the_other() {
        let layout = config().layout(u32::MAX, 1);
        let [local, global] = &layout.layers[..] else {
            unreachable!()
        };
        assert_eq!((local.keys.rows, global.keys.rows), (1023, 32768));
        assert_eq!(local.keys.offset, 0);
        assert_eq!(local.values.offset, 3 * 1023 * 128);
        assert_eq!(global.keys.offset, local.values.end());
        assert_eq!(layout.bytes(), local.bytes() + global.bytes());
        assert_eq!(
            global.keys.row(2, 5),
            global.keys.offset + (2 * 32768 + 5) * 128
        );
        // Two sequences that share nothing have two rings.
        assert_eq!(config().layout(u32::MAX, 2).layers[0].keys.rows, 2046);
        assert_eq!(config().layout(300, 2).layers[0].keys.rows, 512);
    }
}
