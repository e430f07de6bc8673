//! KV storage on the CPU: one pool per layer and side.

use backend::KvPool;
use half::f16;
use half::slice::HalfFloatSliceExt;
use kv::{CacheConfig, KvBytes, KvError, KvErrorKind, Rows, Storage};

/// The stored keys and values of one cache.
pub(crate) struct CpuKv {
    config: CacheConfig,
    layers: Vec<LayerKv>,
}

/// One layer's keys and values.
pub(crate) struct LayerKv {
    pub(crate) keys: CpuPool,
    pub(crate) values: CpuPool,
}

impl CpuKv {
    pub(crate) fn new(config: &CacheConfig) -> CpuKv {
        let pool = |heads, dim, storage| {
            CpuPool::new(heads, dim, storage, config.min_cells, config.capacity)
        };
        let layers = config.layers.iter().map(|l| LayerKv {
            keys: pool(l.kv_heads, l.key_dim, config.key_storage),
            values: pool(l.kv_heads, l.value_dim, config.value_storage),
        });
        CpuKv {
            config: config.clone(),
            layers: layers.collect(),
        }
    }

    pub(crate) fn layer(&mut self, id: usize) -> &mut LayerKv {
        &mut self.layers[id]
    }
}

impl KvBytes for CpuKv {
    fn config(&self) -> &CacheConfig {
        &self.config
    }

    fn resident_bytes(&self) -> usize {
        self.layers
            .iter()
            .map(|l| l.keys.resident_bytes() + l.values.resident_bytes())
            .sum()
    }
}

/// Rows of one layer and side, `[heads, cells, dim]`.
pub(crate) struct CpuPool {
    heads: usize,
    dim: usize,
    cells: usize,
    min_cells: usize,
    capacity: usize,
    rows: StoredRows,
}

enum StoredRows {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

/// One head's rows as a kernel reads them; row `i` begins at element `i · dim`.
#[derive(Clone, Copy)]
pub(crate) enum HeadRows<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
}

impl CpuPool {
    pub(crate) fn new(
        heads: usize,
        dim: usize,
        storage: Storage,
        min_cells: u32,
        capacity: u32,
    ) -> CpuPool {
        let rows = match storage {
            Storage::F32 => StoredRows::F32(Vec::new()),
            Storage::F16 => StoredRows::F16(Vec::new()),
        };
        CpuPool {
            heads,
            dim,
            cells: 0,
            min_cells: min_cells.max(1) as usize,
            capacity: capacity as usize,
            rows,
        }
    }

    /// The rows of one head.
    pub(crate) fn head(&self, head: usize) -> HeadRows<'_> {
        let range = head * self.cells * self.dim..(head + 1) * self.cells * self.dim;
        match &self.rows {
            StoredRows::F32(rows) => HeadRows::F32(&rows[range]),
            StoredRows::F16(rows) => HeadRows::F16(&rows[range]),
        }
    }

    /// Element index of a head's row.
    fn at(&self, head: usize, cell: u32) -> usize {
        (head * self.cells + cell as usize) * self.dim
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
        let (old, new) = (self.cells, doubled.min(self.capacity));
        let (heads, dim) = (self.heads, self.dim);
        match &mut self.rows {
            StoredRows::F32(rows) => *rows = grown(rows, heads, dim, old, new)?,
            StoredRows::F16(rows) => *rows = grown(rows, heads, dim, old, new)?,
        }
        self.cells = new;
        Ok(())
    }

    fn write(&mut self, rows: &Rows, data: &[f32]) {
        let dim = self.dim;
        for (token, heads) in data.chunks_exact(self.heads * dim).enumerate() {
            for (head, row) in heads.chunks_exact(dim).enumerate() {
                let at = self.at(head, rows.cell(token));
                match &mut self.rows {
                    StoredRows::F32(rows) => rows[at..at + dim].copy_from_slice(row),
                    StoredRows::F16(rows) => rows[at..at + dim].convert_from_f32_slice(row),
                }
            }
        }
    }

    fn read(&self, head: usize, cell: u32, out: &mut [f32]) {
        let at = self.at(head, cell);
        match &self.rows {
            StoredRows::F32(rows) => out.copy_from_slice(&rows[at..at + self.dim]),
            StoredRows::F16(rows) => rows[at..at + self.dim].convert_to_f32_slice(out),
        }
    }

    fn resident_bytes(&self) -> usize {
        let storage = match self.rows {
            StoredRows::F32(_) => Storage::F32,
            StoredRows::F16(_) => Storage::F16,
        };
        self.heads * self.cells * storage.row_bytes(self.dim)
    }
}

/// `[heads, new, dim]` with the rows of `[heads, old, dim]` in front of each head, zeros behind.
fn grown<T: Copy + Default>(
    rows: &[T],
    heads: usize,
    dim: usize,
    old: usize,
    new: usize,
) -> Result<Vec<T>, KvError> {
    let len = heads * new * dim;
    let mut out = Vec::new();
    out.try_reserve_exact(len)
        .map_err(|_| KvErrorKind::OutOfMemory(len * size_of::<T>()))?;
    for head in 0..heads {
        out.extend_from_slice(&rows[head * old * dim..(head + 1) * old * dim]);
        out.resize((head + 1) * new * dim, T::default());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_doubles_to_the_capacity_and_keeps_every_row() {
        for storage in Storage::ALL {
            let mut pool = CpuPool::new(3, 5, storage, 4, 50);
            let row = |cell: u32| -> Vec<f32> { (0..15).map(|i| (cell * 16 + i) as f32).collect() };
            let mut sizes = vec![];
            for cell in 0..50 {
                pool.ensure(cell + 1).unwrap();
                pool.write(
                    &Rows::Run {
                        start: cell,
                        len: 1,
                    },
                    &row(cell),
                );
                sizes.push(pool.resident_bytes() / 3 / storage.row_bytes(5));
            }
            sizes.dedup();
            assert_eq!(sizes, [4, 8, 16, 32, 50]);
            for cell in 0..50 {
                for head in 0..3 {
                    let mut out = [0.0; 5];
                    pool.read(head, cell, &mut out);
                    assert_eq!(
                        out,
                        row(cell)[head * 5..][..5],
                        "{storage} head {head} cell {cell}"
                    );
                }
            }
        }
    }
}
