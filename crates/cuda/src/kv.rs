//! KV storage on the device: one pool per layer and side, rows encoded in their storage type, head after head. The states of a
//! recurrent layer are the rows of its values.

use crate::arguments::{CopyArgs, KvLayer};
use crate::compile::Unit;
use crate::device::{Buffer, Device};
use crate::error::CudaError;
use crate::launch::Launch;
use kv::{
    CacheConfig, CellRun, Compaction, FrozenKv, GatherPlan, KvBytes, KvError, KvErrorKind,
    KvStorage, PoolGrowth, QuantGroup, RowBlock, Side, StepPlan,
};
use std::sync::Arc;

/// The stored keys and values of one cache.
pub(crate) struct CudaKv {
    config: CacheConfig,
    device: Arc<Device>,
    /// Keys and values of each layer.
    layers: Vec<[Pool; 2]>,
    /// The rows of a shared prefix; their cells come before the cache's own.
    prefix: Option<Arc<FrozenCudaKv>>,
}

/// A storage type's number in the kernels.
fn storage_code(storage: KvStorage) -> u32 {
    match storage {
        KvStorage::F32 => 0,
        KvStorage::F16 => 1,
        KvStorage::BF16 => 2,
        KvStorage::Q8(QuantGroup::G32) => 3,
        KvStorage::Q8(QuantGroup::G64) => 4,
        KvStorage::Q4(QuantGroup::G32) => 5,
        KvStorage::Q4(QuantGroup::G64) => 6,
        KvStorage::F8E4M3 => 7,
        KvStorage::Q4Rotated => unreachable!("the backend says that it does not store it"),
    }
}

/// Rows of one layer and side, `[heads, rows, row]`.
struct Pool {
    heads: usize,
    row_bytes: usize,
    rows: usize,
    growth: PoolGrowth,
    buffer: Option<Buffer>,
}

impl Pool {
    fn address(&self) -> u64 {
        self.buffer.as_ref().map_or(0, Buffer::address)
    }

    fn head_bytes(&self) -> usize {
        self.rows * self.row_bytes
    }

    fn bytes(&self) -> usize {
        self.heads * self.head_bytes()
    }

    /// The address of one head's row.
    fn row(&self, head: usize, cell: u32) -> u64 {
        self.address() + (head * self.head_bytes() + cell as usize * self.row_bytes) as u64
    }

    /// Grows the pool to at least `cells` cells.
    fn ensure(&mut self, device: &Arc<Device>, cells: u32) -> Result<(), CudaError> {
        if cells as usize <= self.rows {
            return Ok(());
        }
        let rows = self.growth.rows(cells) as usize;
        assert!(
            cells as usize <= rows,
            "bookkeeping admits no step past the capacity"
        );
        let grown = Buffer::new(device, self.heads * rows * self.row_bytes)?;
        let (from, len) = (self.address(), self.head_bytes());
        if len > 0 {
            for head in 0..self.heads {
                let to = grown.address() + (head * rows * self.row_bytes) as u64;
                // SAFETY: the new pool has more rows for every head than the old one.
                unsafe { device.copy(to, from + (head * len) as u64, len)? };
            }
        }
        (self.rows, self.buffer) = (rows, Some(grown));
        Ok(())
    }

    /// Copies rows: from a copy of the pool, or in place, one after the other.
    fn copy_rows(
        &self,
        device: &Device,
        source: Option<&Buffer>,
        rows: &Buffer,
        [count, base]: [u32; 2],
    ) -> Result<(), CudaError> {
        if self.bytes() == 0 || count == 0 {
            return Ok(());
        }
        let arguments = CopyArgs {
            to: self.address(),
            from: source.map_or(0, Buffer::address),
            rows: rows.address(),
            to_stride: self.head_bytes() as u64,
            from_stride: self.head_bytes() as u64,
            count,
            row_bytes: self.row_bytes as u32,
            base,
            ring: self.growth.max_rows_per_sequence,
            in_place: source.is_none().into(),
            unused: 0,
        };
        let function = device.function(Unit::General, "copy_rows")?;
        let launch = Launch::new(function, [self.heads as u32, 1], 256, 0, &arguments);
        // SAFETY: bookkeeping names rows of the pool only, and both buffers have its size.
        unsafe { launch.run(device) }
    }
}

fn empty_layers(config: &CacheConfig, prefix: Option<&FrozenCudaKv>) -> Vec<[Pool; 2]> {
    let layer = |(id, layer): (usize, &kv::LayerConfig)| {
        let frozen = frozen_cells(prefix, id);
        [Side::Key, Side::Value].map(|side| Pool {
            heads: layer.kv_heads,
            row_bytes: config.row_bytes(id, side),
            rows: 0,
            growth: config.growth(layer).after_prefix(frozen),
            buffer: None,
        })
    };
    config.layers.iter().enumerate().map(layer).collect()
}

/// The number of a layer's cells that a prefix stores. States are copied from it, so that a cache's own states begin at cell 0.
fn frozen_cells(prefix: Option<&FrozenCudaKv>, id: usize) -> u32 {
    match prefix {
        Some(prefix) if !prefix.config.layers[id].is_state() => prefix.cells[id],
        _ => 0,
    }
}

fn pool_bytes(layers: &[[Pool; 2]]) -> usize {
    layers.iter().flatten().map(Pool::bytes).sum()
}

/// A list of numbers on the device.
fn uploaded(device: &Arc<Device>, numbers: &[u32]) -> Result<Buffer, CudaError> {
    let buffer = Buffer::new(device, size_of_val(numbers))?;
    // SAFETY: the buffer has the list's size.
    unsafe { device.upload(buffer.address(), bytemuck::cast_slice(numbers))? };
    Ok(buffer)
}

impl CudaKv {
    pub(crate) fn new(config: &CacheConfig, device: &Arc<Device>) -> CudaKv {
        CudaKv {
            config: config.clone(),
            device: device.clone(),
            layers: empty_layers(config, None),
            prefix: None,
        }
    }

    /// Whether a layer's memory is a state.
    pub(crate) fn is_state(&self, id: usize) -> bool {
        self.config.layers[id].is_state()
    }

    /// Grows the pools to the cells of a step.
    pub(crate) fn ensure(&mut self, plan: &StepPlan) -> Result<(), KvError> {
        for (id, pools) in self.layers.iter_mut().enumerate() {
            let frozen = frozen_cells(self.prefix.as_deref(), id);
            for pool in pools {
                pool.ensure(&self.device, plan.layer(id).cells - frozen)?;
            }
        }
        Ok(())
    }

    /// Where the kernels find a layer, whose class's plan lies at the offset `plan` of the step.
    pub(crate) fn entry(&self, id: usize, plan: u32) -> KvLayer {
        let [keys, values] = &self.layers[id];
        let prefix = self.prefix.as_deref();
        let frozen = prefix.map(|p| (&p.layers[id], frozen_cells(prefix, id)));
        KvLayer {
            keys: keys.address(),
            values: values.address(),
            frozen_keys: frozen.map_or(0, |(pools, _)| pools[0].address()),
            frozen_values: frozen.map_or(0, |(pools, _)| pools[1].address()),
            rows: keys.rows as u32,
            frozen_rows: frozen.map_or(0, |(pools, _)| pools[0].rows as u32),
            frozen_cells: frozen.map_or(0, |(_, cells)| cells),
            plan,
            key_storage: storage_code(self.config.storage(id, Side::Key)),
            value_storage: storage_code(self.config.storage(id, Side::Value)),
            key_row: keys.row_bytes as u32,
            value_row: values.row_bytes as u32,
        }
    }
}

impl KvBytes for CudaKv {
    fn config(&self) -> &CacheConfig {
        &self.config
    }

    fn resident_bytes(&self) -> usize {
        pool_bytes(&self.layers)
    }

    fn gather(&mut self, gather: &GatherPlan) -> Result<(), KvError> {
        let rows = uploaded(&self.device, &gather.rows)?;
        for pool in self.layers.iter().flatten() {
            pool.copy_rows(
                &self.device,
                None,
                &rows,
                [gather.rows.len() as u32, gather.base],
            )?;
        }
        Ok(())
    }

    fn reorder(&mut self, order: &Compaction) -> Result<(), KvError> {
        // Allocate everything first: once a row has moved, no allocation may fail.
        let most = self.layers.iter().flatten().map(Pool::bytes).max();
        let before = Buffer::new(&self.device, most.unwrap_or(0))?;
        let orders = (0..self.layers.len()).map(|layer| {
            let order = order.layer(layer);
            order
                .map(|order| Ok((uploaded(&self.device, order)?, order.len() as u32)))
                .transpose()
        });
        let orders: Result<Vec<_>, CudaError> = orders.collect();
        for (pools, order) in self.layers.iter().zip(orders?) {
            let Some((rows, count)) = order else { continue };
            // A layer with states has no bytes of keys.
            for pool in pools.iter().filter(|pool| pool.bytes() > 0) {
                // SAFETY: the copy has the size of the largest pool.
                unsafe {
                    self.device
                        .copy(before.address(), pool.address(), pool.bytes())?
                };
                pool.copy_rows(&self.device, Some(&before), &rows, [count, 0])?;
            }
        }
        Ok(())
    }

    fn read_rows(
        &self,
        layer: usize,
        side: Side,
        runs: &[CellRun],
        out: &mut [u8],
    ) -> Result<(), KvError> {
        let prefix = self.prefix.as_deref();
        let frozen_cells = frozen_cells(prefix, layer);
        let own = &self.layers[layer][side as usize];
        let frozen = prefix.map_or(own, |p| &p.layers[layer][side as usize]);
        let mut rest = out;
        for head in 0..own.heads {
            for cells in runs.iter().map(CellRun::cells) {
                let middle = frozen_cells.clamp(cells.start, cells.end);
                let skipped = frozen_cells.min(middle);
                let parts = [
                    (frozen, cells.start..middle),
                    (own, middle - skipped..cells.end - skipped),
                ];
                for (pool, cells) in parts {
                    let rows;
                    (rows, rest) = rest.split_at_mut(cells.len() * own.row_bytes);
                    if !rows.is_empty() {
                        // SAFETY: the caller ensures that the cells exist.
                        unsafe { self.device.download(pool.row(head, cells.start), rows)? };
                    }
                }
            }
        }
        Ok(())
    }

    fn write_rows(&mut self, blocks: &[RowBlock<'_>]) -> Result<(), KvError> {
        let prefix = self.prefix.clone();
        let frozen = |block: &RowBlock<'_>| frozen_cells(prefix.as_deref(), block.layer);
        for block in blocks {
            let cells = block.cells.saturating_sub(frozen(block));
            self.layers[block.layer][block.side as usize].ensure(&self.device, cells)?;
        }
        for block in blocks {
            let pool = &self.layers[block.layer][block.side as usize];
            if pool.row_bytes == 0 {
                continue;
            }
            for head in 0..pool.heads {
                let mut from = head * block.head_stride;
                for run in block.runs {
                    let len = run.len as usize * pool.row_bytes;
                    // SAFETY: the pool has the cells of the runs.
                    unsafe {
                        let row = pool.row(head, run.cell - frozen(block));
                        self.device.upload(row, &block.bytes[from..from + len])?
                    };
                    from += len;
                }
            }
        }
        Ok(())
    }

    fn freeze(&mut self, cells: &[u32]) -> Result<Arc<dyn FrozenKv>, KvError> {
        if self.prefix.is_some() {
            let reason = "the cache lies behind a shared prefix already".into();
            return Err(KvErrorKind::Config(reason).into());
        }
        let mut frozen = FrozenCudaKv {
            cells: cells.to_vec(),
            config: self.config.clone(),
            device: self.device.clone(),
            layers: vec![],
        };
        let layers = empty_layers(&self.config, Some(&frozen));
        frozen.layers = std::mem::replace(&mut self.layers, layers);
        let frozen = Arc::new(frozen);
        self.prefix = Some(frozen.clone());
        Ok(frozen)
    }
}

/// Read-only rows of a shared prefix.
struct FrozenCudaKv {
    config: CacheConfig,
    device: Arc<Device>,
    layers: Vec<[Pool; 2]>,
    /// The cells of each layer; a ring layer has fewer.
    cells: Vec<u32>,
}

impl FrozenKv for FrozenCudaKv {
    fn open(self: Arc<Self>, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        let mut layers = empty_layers(config, Some(&self));
        let pools = layers.iter_mut().zip(&self.layers).enumerate();
        for (id, (own, from)) in pools.filter(|(id, _)| config.layers[*id].is_state()) {
            let (states, [_, from]) = (self.cells[id], from);
            for pool in &mut *own {
                pool.ensure(&self.device, states)?;
            }
            let len = states as usize * from.row_bytes;
            for head in 0..from.heads {
                // SAFETY: both pools have the states of every head.
                unsafe {
                    let to = own[1].row(head, 0);
                    self.device.copy(to, from.row(head, 0), len)?
                };
            }
        }
        Ok(Box::new(CudaKv {
            config: config.clone(),
            device: self.device.clone(),
            layers,
            prefix: Some(self),
        }))
    }

    fn resident_bytes(&self) -> usize {
        pool_bytes(&self.layers)
    }
}
