//! KV storage on the CPU: one pool per layer and side, rows encoded in their storage type.

pub(crate) mod layout;

use backend::{KvPool, storage};
use base::parallel;
use kv::{
    CacheConfig, Compaction, FrozenKv, Gather, Growth, KvBytes, KvError, KvErrorKind, RowBlock,
    Run, Side, Storage,
};
use layout::RowLayout;
use std::ops::Range;
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

impl LayerKv {
    fn side(&self, side: Side) -> &CpuPool {
        match side {
            Side::Key => &self.keys,
            Side::Value => &self.values,
        }
    }
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
        let behind = self.prefix.as_ref().map_or(0, |p| p.cells[id]);
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
                layout: own.layout,
                row_bytes: own.row_bytes(),
            }
        };
        HeadKv {
            keys: side(|layer| &layer.keys),
            values: side(|layer| &layer.values),
            frozen_cells: prefix.map_or(0, |p| p.cells[id]),
        }
    }

    fn pools(&mut self) -> impl Iterator<Item = &mut CpuPool> {
        self.layers
            .iter_mut()
            .flat_map(|layer| [&mut layer.keys, &mut layer.values])
    }
}

fn empty_layers(config: &CacheConfig) -> Vec<LayerKv> {
    let layer = |l: &kv::LayerConfig| {
        let pool =
            |layout, dim, storage| CpuPool::new(layout, l.kv_heads, dim, storage, config.growth(l));
        let (keys, values) = (config.key_storage, config.value_storage);
        LayerKv {
            keys: pool(RowLayout::keys(keys, l.key_dim), l.key_dim, keys),
            values: pool(RowLayout::rows(values, l.value_dim), l.value_dim, values),
        }
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

    fn reorder(&mut self, order: &Compaction) -> Result<(), KvError> {
        // All memory first: once a row has moved, nothing may fail.
        let most = self.pools().map(|pool| pool.head_bytes()).max();
        let mut before = buffer(most.unwrap_or(0))?;
        for (id, layer) in self.layers.iter_mut().enumerate() {
            if let Some(order) = order.layer(id) {
                layer.keys.reorder_through(&mut before, order);
                layer.values.reorder_through(&mut before, order);
            }
        }
        Ok(())
    }

    fn read_rows(&self, layer: usize, side: Side, runs: &[Run], out: &mut [u8]) {
        let prefix = self.prefix.as_deref();
        let behind = prefix.map_or(0, |p| p.cells[layer]);
        let own = self.layers[layer].side(side);
        let frozen = prefix.map_or(own, |p| p.layers[layer].side(side));
        let mut rest = out;
        for head in 0..own.heads {
            for cells in runs.iter().map(Run::cells) {
                let middle = behind.clamp(cells.start, cells.end);
                let parts = [
                    (frozen, cells.start..middle),
                    (
                        own,
                        middle - behind.min(middle)..cells.end - behind.min(middle),
                    ),
                ];
                for (pool, cells) in parts {
                    let rows;
                    (rows, rest) = rest.split_at_mut(cells.len() * own.row_bytes());
                    pool.read_rows(head, cells, rows);
                }
            }
        }
    }

    fn write_rows(&mut self, blocks: &[RowBlock<'_>]) -> Result<(), KvError> {
        assert!(
            self.prefix.is_none(),
            "bookkeeping puts nothing back behind a prefix"
        );
        let mut by_pool: Vec<Option<&RowBlock<'_>>> = vec![None; 2 * self.layers.len()];
        for block in blocks {
            by_pool[2 * block.layer + block.side as usize] = Some(block);
        }
        let pools = self.pools().zip(by_pool);
        let mut jobs: Vec<_> = pools
            .filter_map(|(pool, b)| Some((pool, b?, Ok(()))))
            .collect();
        let bytes = blocks.iter().map(|block| block.bytes.len()).sum();
        parallel::for_each(bytes, &mut jobs, |(pool, block, made)| {
            *made = pool.ensure(block.cells);
        });
        jobs.iter().try_for_each(|(_, _, made)| made.clone())?;
        parallel::for_each(bytes, &mut jobs, |(pool, block, _)| pool.take(block));
        Ok(())
    }

    fn freeze(&mut self, cells: u32) -> Result<Arc<dyn FrozenKv>, KvError> {
        if self.prefix.is_some() {
            return Err(KvErrorKind::Config(
                "the cache lies behind a shared prefix already".into(),
            )
            .into());
        }
        let layers = std::mem::replace(&mut self.layers, empty_layers(&self.config));
        let kept = |layer| self.config.growth(layer).ring.min(cells);
        let cells = self.config.layers.iter().map(kept).collect();
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
    /// Per layer; a ring has fewer.
    cells: Vec<u32>,
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
    pub(crate) layout: RowLayout,
    pub(crate) row_bytes: usize,
}

/// Rows of one layer and side: head after head, each as the layout says.
pub(crate) struct CpuPool {
    heads: usize,
    dim: usize,
    storage: Storage,
    layout: RowLayout,
    cells: usize,
    growth: Growth,
    bytes: Vec<u8>,
    /// A row on its way.
    row: Vec<u8>,
}

/// An empty buffer with room for so many bytes.
fn buffer(bytes: usize) -> Result<Vec<u8>, KvError> {
    let mut buffer = Vec::new();
    buffer
        .try_reserve_exact(bytes)
        .map_err(|_| KvErrorKind::OutOfMemory(bytes))?;
    Ok(buffer)
}

/// The runs of a list in which every cell follows the one before: what a head can take in one block.
fn blocks(cells: &[u32]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = &cells[start..];
        let adjacent = rest.windows(2).take_while(|pair| pair[1] == pair[0] + 1);
        let len = (1 + adjacent.count()).min(rest.len());
        start += len;
        (len > 0).then(|| start - len..start)
    })
}

impl CpuPool {
    pub(crate) fn new(
        layout: RowLayout,
        heads: usize,
        dim: usize,
        storage: Storage,
        growth: Growth,
    ) -> CpuPool {
        CpuPool {
            heads,
            dim,
            storage,
            layout,
            cells: 0,
            growth,
            bytes: Vec::new(),
            row: vec![0; layout.row_bytes()],
        }
    }

    fn row_bytes(&self) -> usize {
        self.layout.row_bytes()
    }

    /// The rows of one head.
    fn head(&self, head: usize) -> &[u8] {
        let len = self.head_bytes();
        &self.bytes[head * len..(head + 1) * len]
    }

    fn head_bytes(&self) -> usize {
        self.cells * self.row_bytes()
    }

    /// Writes rows whose cell numbers count `behind` cells that lie elsewhere: a prefill in blocks, a decoded token as
    /// one row a head.
    fn write_behind(&mut self, behind: u32, cells: &[u32], data: &[f32]) {
        let width = self.heads * self.dim;
        for block in blocks(cells) {
            let first = (cells[block.start] - behind) as usize;
            self.write_block(first, &data[block.start * width..block.end * width]);
        }
    }

    /// Writes token-major rows to adjacent cells.
    fn write_block(&mut self, first: usize, data: &[f32]) {
        let (len, layout) = (self.head_bytes(), self.layout);
        for (h, head) in self.bytes.chunks_exact_mut(len.max(1)).enumerate() {
            let tokens = data.chunks_exact(self.heads * self.dim);
            for (cell, token) in (first..).zip(tokens) {
                storage::encode(
                    self.storage,
                    &token[h * self.dim..][..self.dim],
                    &mut self.row,
                );
                layout.put(head, cell, &self.row);
            }
        }
    }

    /// Stores the encoded rows of a block.
    fn take(&mut self, block: &RowBlock<'_>) {
        let row_bytes = self.row_bytes();
        for head in 0..self.heads {
            let mut from = head * block.head_stride;
            for run in block.runs {
                let len = run.len as usize * row_bytes;
                KvPool::write_rows(self, head, run.cell, &block.bytes[from..from + len]);
                from += len;
            }
        }
    }

    /// Gives cell `i` what cell `order[i]` held, by way of a copy of each head in turn.
    fn reorder_through(&mut self, before: &mut Vec<u8>, order: &[u32]) {
        let (len, layout) = (self.head_bytes(), self.layout);
        for head in self.bytes.chunks_exact_mut(len.max(1)) {
            before.clear();
            before.extend_from_slice(head);
            for (to, &from) in order.iter().enumerate() {
                layout.get(before, from as usize, &mut self.row);
                layout.put(head, to, &self.row);
            }
        }
    }
}

impl KvPool for CpuPool {
    fn ensure(&mut self, cells: u32) -> Result<(), KvError> {
        let needed = cells as usize;
        if needed <= self.cells {
            return Ok(());
        }
        let cells = self.growth.rows(cells) as usize;
        assert!(
            needed <= cells,
            "bookkeeping admits no step past the capacity"
        );
        let (old, new) = (self.head_bytes(), cells * self.row_bytes());
        let len = self.heads * new;
        self.bytes
            .try_reserve_exact(len - self.bytes.len())
            .map_err(|_| KvErrorKind::OutOfMemory(len))?;
        self.bytes.resize(len, 0);
        // From the last head down, no head is overwritten before it has moved.
        let moving = if old == 0 { 0 } else { self.heads };
        for head in (0..moving).rev() {
            self.bytes
                .copy_within(head * old..(head + 1) * old, head * new);
            let head = &mut self.bytes[head * new..(head + 1) * new];
            head[old..].fill(0);
            self.layout.widen(head, self.cells);
        }
        self.cells = cells;
        Ok(())
    }

    fn write(&mut self, cells: &[u32], data: &[f32]) {
        self.write_behind(0, cells, data);
    }

    fn gather_into(&mut self, base: u32, rows: &[u32]) {
        let (len, layout) = (self.head_bytes(), self.layout);
        let ring = self.growth.ring as usize;
        for head in self.bytes.chunks_exact_mut(len.max(1)) {
            for (to, &from) in (base as usize..).zip(rows) {
                if to != from as usize {
                    layout.get(head, from as usize % ring, &mut self.row);
                    layout.put(head, to % ring, &self.row);
                }
            }
        }
    }

    fn reorder(&mut self, order: &[u32]) -> Result<(), KvError> {
        let mut before = buffer(self.head_bytes())?;
        self.reorder_through(&mut before, order);
        Ok(())
    }

    fn read(&self, head: usize, cell: u32, out: &mut [f32]) {
        let mut row = vec![0; self.row_bytes()];
        self.layout.get(self.head(head), cell as usize, &mut row);
        storage::decode(self.storage, &row, out);
    }

    fn read_rows(&self, head: usize, cells: Range<u32>, out: &mut [u8]) {
        let first = cells.start as usize;
        if !cells.is_empty() {
            self.layout.get_rows(self.head(head), first, out);
        }
    }

    fn write_rows(&mut self, head: usize, first: u32, rows: &[u8]) {
        let len = self.head_bytes();
        let head = &mut self.bytes[head * len..(head + 1) * len];
        self.layout.put_rows(head, first as usize, rows);
    }

    fn resident_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefill_is_one_block_and_a_wrapped_one_two() {
        let count = |cells: &[u32]| blocks(cells).count();
        let prefill: Vec<u32> = (100..612).collect();
        assert_eq!(count(&prefill), 1);
        assert_eq!(count(&[612]), 1);
        assert_eq!(count(&[]), 0);
        let wrapped: Vec<u32> = (900..1023).chain(0..389).collect();
        assert!(blocks(&wrapped).eq([0..123, 123..512]));
        // Decoded tokens of four branches.
        assert_eq!(count(&[16, 40, 41, 7]), 3);
    }

    #[test]
    fn growth_doubles_to_the_capacity_and_keeps_every_row() {
        for storage in Storage::ALL {
            let growth = Growth {
                first: 4,
                ring: 50,
                capacity: 50,
            };
            for layout in [RowLayout::rows(storage, 5), RowLayout::keys(storage, 5)] {
                let mut pool = CpuPool::new(layout, 3, 5, storage, growth);
                // Groups of equal elements are exact in every type.
                let row = |cell: u32| -> Vec<f32> {
                    (0..15).map(|i| (cell * 4 + i / 5) as f32).collect()
                };
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
}
