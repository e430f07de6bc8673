//! KV storage on the CPU: one pool per layer and side, rows encoded in their storage type.

use backend::{KvPool, storage};
use kv::{CacheConfig, FrozenKv, Gather, KvBytes, KvError, KvErrorKind, Storage};
use std::sync::Arc;

/// The stored keys and values of one cache.
pub(crate) struct CpuKv {
    config: CacheConfig,
    layers: Vec<LayerKv>,
    /// Rows of a shared prefix, in front of the own ones.
    prefix: Option<Arc<FrozenCpuKv>>,
}

/// One layer's keys and values.
pub(crate) struct LayerKv {
    pub(crate) keys: CpuPool,
    pub(crate) values: CpuPool,
}

impl CpuKv {
    pub(crate) fn new(config: &CacheConfig) -> Box<CpuKv> {
        Box::new(CpuKv {
            config: config.clone(),
            layers: empty_layers(config),
            prefix: None,
        })
    }

    /// Makes cells exist and writes a step's rows; cell numbers count the prefix.
    pub(crate) fn update(
        &mut self,
        id: usize,
        cells: u32,
        writes: &[u32],
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), KvError> {
        let behind = self.prefix.as_ref().map_or(0, |p| p.cells);
        let layer = &mut self.layers[id];
        for (pool, data) in [(&mut layer.keys, keys), (&mut layer.values, values)] {
            pool.ensure(cells - behind)?;
            pool.write_behind(behind, writes, data);
        }
        Ok(())
    }

    /// One head's keys and values.
    pub(crate) fn head(&self, id: usize, head: usize) -> HeadKv<'_> {
        let prefix = self.prefix.as_deref();
        let side = |side: fn(&LayerKv) -> &CpuPool| {
            let frozen = prefix.map_or(&[][..], |p| side(&p.layers[id]).head(head));
            let own = side(&self.layers[id]);
            HeadRows {
                frozen,
                own: own.head(head),
                storage: own.storage,
                row_bytes: own.row_bytes,
            }
        };
        HeadKv {
            keys: side(|layer| &layer.keys),
            values: side(|layer| &layer.values),
            frozen_cells: prefix.map_or(0, |p| p.cells),
        }
    }

    fn pools(&mut self) -> impl Iterator<Item = &mut CpuPool> {
        self.layers
            .iter_mut()
            .flat_map(|layer| [&mut layer.keys, &mut layer.values])
    }
}

fn empty_layers(config: &CacheConfig) -> Vec<LayerKv> {
    let pool =
        |heads, dim, storage| CpuPool::new(heads, dim, storage, config.min_cells, config.capacity);
    let layer = |l: &kv::LayerConfig| LayerKv {
        keys: pool(l.kv_heads, l.key_dim, config.key_storage),
        values: pool(l.kv_heads, l.value_dim, config.value_storage),
    };
    config.layers.iter().map(layer).collect()
}

fn layer_bytes(layers: &[LayerKv]) -> usize {
    layers
        .iter()
        .map(|l| l.keys.resident_bytes() + l.values.resident_bytes())
        .sum()
}

impl KvBytes for CpuKv {
    fn config(&self) -> &CacheConfig {
        &self.config
    }

    fn resident_bytes(&self) -> usize {
        layer_bytes(&self.layers)
    }

    fn gather(&mut self, gather: &Gather) {
        self.pools()
            .for_each(|pool| pool.gather_into(gather.base, &gather.rows));
    }

    fn reorder(&mut self, order: &[u32]) -> Result<(), KvError> {
        self.pools().try_for_each(|pool| pool.reorder(order))
    }

    fn freeze(&mut self, cells: u32) -> Result<Arc<dyn FrozenKv>, KvError> {
        if self.prefix.is_some() {
            return Err(KvErrorKind::Config(
                "the cache lies behind a shared prefix already".into(),
            )
            .into());
        }
        let layers = std::mem::replace(&mut self.layers, empty_layers(&self.config));
        let frozen = Arc::new(FrozenCpuKv {
            config: self.config.clone(),
            layers,
            cells,
        });
        self.prefix = Some(frozen.clone());
        Ok(frozen)
    }
}

/// Rows that no one writes any more.
struct FrozenCpuKv {
    config: CacheConfig,
    layers: Vec<LayerKv>,
    cells: u32,
}

impl FrozenKv for FrozenCpuKv {
    fn open(self: Arc<Self>) -> Box<dyn KvBytes> {
        let (config, layers) = (self.config.clone(), empty_layers(&self.config));
        Box::new(CpuKv {
            config,
            layers,
            prefix: Some(self),
        })
    }

    fn resident_bytes(&self) -> usize {
        layer_bytes(&self.layers)
    }
}

/// One head's rows as the attention kernel reads them.
#[derive(Clone, Copy)]
pub(crate) struct HeadKv<'a> {
    pub(crate) keys: HeadRows<'a>,
    pub(crate) values: HeadRows<'a>,
    /// Cells before this one lie in the frozen rows, the others in the own ones.
    pub(crate) frozen_cells: u32,
}

/// One head's keys or values: rows of a shared prefix and the cache's own.
#[derive(Clone, Copy)]
pub(crate) struct HeadRows<'a> {
    pub(crate) frozen: &'a [u8],
    pub(crate) own: &'a [u8],
    pub(crate) storage: Storage,
    pub(crate) row_bytes: usize,
}

/// Rows of one layer and side, `[heads, cells, row]`.
pub(crate) struct CpuPool {
    heads: usize,
    dim: usize,
    storage: Storage,
    row_bytes: usize,
    cells: usize,
    min_cells: usize,
    capacity: usize,
    bytes: Vec<u8>,
}

impl CpuPool {
    pub(crate) fn new(
        heads: usize,
        dim: usize,
        storage: Storage,
        min_cells: u32,
        capacity: u32,
    ) -> CpuPool {
        CpuPool {
            heads,
            dim,
            storage,
            row_bytes: storage.row_bytes(dim),
            cells: 0,
            min_cells: min_cells.max(1) as usize,
            capacity: capacity as usize,
            bytes: Vec::new(),
        }
    }

    /// The rows of one head.
    fn head(&self, head: usize) -> &[u8] {
        let len = self.cells * self.row_bytes;
        &self.bytes[head * len..(head + 1) * len]
    }

    /// Where a head's row of a cell lies.
    fn at(&self, head: usize, cell: usize) -> std::ops::Range<usize> {
        let start = (head * self.cells + cell) * self.row_bytes;
        start..start + self.row_bytes
    }

    /// Writes rows whose cell numbers count `behind` cells that lie elsewhere.
    fn write_behind(&mut self, behind: u32, cells: &[u32], data: &[f32]) {
        for (&cell, token) in cells.iter().zip(data.chunks_exact(self.heads * self.dim)) {
            for (head, row) in token.chunks_exact(self.dim).enumerate() {
                let at = self.at(head, (cell - behind) as usize);
                storage::encode(self.storage, row, &mut self.bytes[at]);
            }
        }
    }

    /// The same rows in a pool of `cells` cells, cell `i` from `from(i)` while there is one.
    fn rebuilt(
        &self,
        cells: usize,
        from: impl Iterator<Item = usize> + Clone,
    ) -> Result<Vec<u8>, KvError> {
        let len = self.heads * cells * self.row_bytes;
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(len)
            .map_err(|_| KvErrorKind::OutOfMemory(len))?;
        for head in 0..self.heads {
            for cell in from.clone() {
                bytes.extend_from_slice(&self.bytes[self.at(head, cell)]);
            }
            bytes.resize((head + 1) * cells * self.row_bytes, 0);
        }
        Ok(bytes)
    }
}

impl KvPool for CpuPool {
    fn ensure(&mut self, cells: u32) -> Result<(), KvError> {
        let needed = cells as usize;
        if needed <= self.cells {
            return Ok(());
        }
        assert!(
            needed <= self.capacity,
            "bookkeeping admits no step past the capacity"
        );
        let doubled = (self.cells * 2)
            .max(self.min_cells)
            .max(needed.next_power_of_two());
        let cells = doubled.min(self.capacity);
        self.bytes = self.rebuilt(cells, 0..self.cells)?;
        self.cells = cells;
        Ok(())
    }

    fn write(&mut self, cells: &[u32], data: &[f32]) {
        self.write_behind(0, cells, data);
    }

    fn gather_into(&mut self, base: u32, rows: &[u32]) {
        for head in 0..self.heads {
            for (to, &from) in (base as usize..).zip(rows) {
                if to != from as usize {
                    let (from, to) = (self.at(head, from as usize), self.at(head, to).start);
                    self.bytes.copy_within(from, to);
                }
            }
        }
    }

    fn reorder(&mut self, order: &[u32]) -> Result<(), KvError> {
        self.bytes = self.rebuilt(self.cells, order.iter().map(|old| *old as usize))?;
        Ok(())
    }

    fn read(&self, head: usize, cell: u32, out: &mut [f32]) {
        storage::decode(self.storage, &self.bytes[self.at(head, cell as usize)], out);
    }

    fn resident_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_doubles_to_the_capacity_and_keeps_every_row() {
        for storage in Storage::ALL {
            let mut pool = CpuPool::new(3, 5, storage, 4, 50);
            // Groups of equal elements are exact in every type.
            let row =
                |cell: u32| -> Vec<f32> { (0..15).map(|i| (cell * 4 + i / 5) as f32).collect() };
            let mut sizes = vec![];
            for cell in 0..50 {
                pool.ensure(cell + 1).unwrap();
                pool.write(&[cell], &row(cell));
                sizes.push(pool.resident_bytes() / 3 / storage.row_bytes(5));
            }
            sizes.dedup();
            assert_eq!(sizes, [4, 8, 16, 32, 50]);
            let check = |pool: &CpuPool, at: u32, cell: u32| {
                for head in 0..3 {
                    let mut out = [0.0; 5];
                    pool.read(head, at, &mut out);
                    assert_eq!(
                        out,
                        row(cell)[head * 5..][..5],
                        "{storage} head {head} cell {at}"
                    );
                }
            };
            (0..50).for_each(|cell| check(&pool, cell, cell));
            pool.gather_into(10, &[10, 13, 14, 20]);
            [10, 13, 14, 20]
                .into_iter()
                .zip(10..)
                .for_each(|(cell, at)| check(&pool, at, cell));
            pool.reorder(&[49, 0, 30]).unwrap();
            [49, 0, 30]
                .into_iter()
                .zip(0..)
                .for_each(|(cell, at)| check(&pool, at, cell));
        }
    }
}
