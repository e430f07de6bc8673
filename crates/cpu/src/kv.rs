//! KV storage on the CPU: one pool per layer and side, rows encoded in their storage type.

pub(crate) mod pool;
mod region;

use crate::kernels::{Context, SERIAL_ELEMENTS};
use backend::RowLayout;
use base::{Bytes, parallel};
use kv::{
    CacheConfig, CellRun, Compaction, FrozenKv, GatherPlan, KvBytes, KvError, KvErrorKind,
    KvStorage, LayerPlan, RowBlock, Side,
};
use pool::{CpuPool, buffer};
use region::RegionPart;
use std::sync::Arc;

pub(crate) use pool::{StatePool, StepRows};

/// The stored keys and values of one cache.
pub(crate) struct CpuKv {
    config: CacheConfig,
    layers: Vec<LayerKv>,
    /// The rows of a shared prefix; their cells come before the cache's own.
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
    /// Empty storage. If all cells are wanted at once, the pools are parts of one region in the order of
    /// [`KvLayout`](kv::KvLayout).
    pub(crate) fn new(config: &CacheConfig) -> Result<CpuKv, KvError> {
        CpuKv::after(config, None)
    }

    /// Storage without rows of its own, after a prefix if there is one.
    fn after(config: &CacheConfig, prefix: Option<Arc<FrozenCpuKv>>) -> Result<CpuKv, KvError> {
        let mut kv = CpuKv {
            config: config.clone(),
            layers: empty_layers(config, prefix.as_deref()),
            prefix,
        };
        if config.initial_cells == CacheConfig::ALL_CELLS {
            let sizes: Vec<usize> = kv.pools().map(|pool| pool.full_bytes()).collect();
            let parts = RegionPart::divide(&sizes)?;
            kv.pools()
                .zip(parts)
                .for_each(|(pool, part)| pool.place(part));
        }
        Ok(kv)
    }

    /// Copies the states of a prefix to the cache's own first cells.
    fn copy_states(&mut self, frozen: &FrozenCpuKv) -> Result<(), KvError> {
        let layers = self.layers.iter_mut().zip(&frozen.layers).enumerate();
        for (id, (own, from)) in layers.filter(|(id, _)| self.config.layers[*id].is_state()) {
            let states = frozen.cells[id];
            own.keys.ensure(states)?;
            own.values.ensure(states)?;
            let mut rows = buffer(states as usize * own.values.row_bytes())?;
            rows.resize(states as usize * own.values.row_bytes(), 0);
            for head in 0..own.values.heads {
                from.values.read_rows(head, 0..states, &mut rows);
                own.values.write_rows(head, 0, &rows);
            }
        }
        Ok(())
    }

    /// Grows the pools to the step's cells and writes its keys and values; cell numbers count the prefix.
    pub(crate) fn update(
        &mut self,
        ctx: &Context<'_>,
        id: usize,
        step: &LayerPlan,
        [keys, values]: [StepRows<'_>; 2],
    ) -> Result<(), KvError> {
        let frozen_cells = frozen_cells(self.prefix.as_deref(), id);
        let layer = &mut self.layers[id];
        layer.keys.ensure(step.cells - frozen_cells)?;
        layer.values.ensure(step.cells - frozen_cells)?;
        let (heads, elements) = (layer.keys.heads, keys.data.len() + values.data.len());
        let writers = [
            layer.keys.writer(frozen_cells, &step.writes, keys),
            layer.values.writer(frozen_cells, &step.writes, values),
        ];
        // SAFETY: every task writes one head of one side, which no other task writes.
        let task = |i: usize| unsafe { writers[i / heads].write(i % heads) };
        if elements < SERIAL_ELEMENTS {
            (0..2 * heads).for_each(task);
        } else {
            ctx.threads.run(2 * heads, &|i, _| task(i));
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
            frozen_cells: frozen_cells(prefix, id),
        }
    }

    /// Whether the keys and the values of a layer are stored rotated.
    pub(crate) fn rotated(&self, id: usize) -> [bool; 2] {
        [Side::Key, Side::Value].map(|side| self.config.storage(id, side).rotated().is_some())
    }

    /// Grows the pool of a layer's states to the step's cells, and returns the states: `[heads, cells, elements]`.
    pub(crate) fn states(&mut self, id: usize, step: &LayerPlan) -> Result<StatePool, KvError> {
        let pool = &mut self.layers[id].values;
        pool.ensure(step.cells)?;
        Ok(pool.states())
    }

    fn pools(&mut self) -> impl Iterator<Item = &mut CpuPool> {
        self.layers
            .iter_mut()
            .flat_map(|layer| [&mut layer.keys, &mut layer.values])
    }
}

fn empty_layers(config: &CacheConfig, prefix: Option<&FrozenCpuKv>) -> Vec<LayerKv> {
    let layer = |(id, l): (usize, &kv::LayerConfig)| {
        let growth = config.growth(l).after_prefix(frozen_cells(prefix, id));
        let pool = |side, dim| {
            let layout = RowLayout::of(config, id, side);
            CpuPool::new(layout, l.kv_heads, dim, config.storage(id, side), growth)
        };
        LayerKv {
            keys: pool(Side::Key, l.key_dim),
            values: pool(Side::Value, l.value_dim),
        }
    };
    config.layers.iter().enumerate().map(layer).collect()
}

/// The number of a layer's cells that a prefix stores. States are copied from it, so that a cache's own states begin at cell 0.
fn frozen_cells(prefix: Option<&FrozenCpuKv>, id: usize) -> u32 {
    match prefix {
        Some(prefix) if !prefix.config.layers[id].is_state() => prefix.cells[id],
        _ => 0,
    }
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

    fn gather(&mut self, gather: &GatherPlan) -> Result<(), KvError> {
        self.pools()
            .try_for_each(|pool| pool.gather_into(gather.base, &gather.rows))
    }

    fn reorder(&mut self, order: &Compaction) -> Result<(), KvError> {
        // Allocate everything first: once a row has moved, nothing may fail.
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

    fn read_rows(
        &self,
        layer: usize,
        side: Side,
        runs: &[CellRun],
        out: &mut [u8],
    ) -> Result<(), KvError> {
        let prefix = self.prefix.as_deref();
        let frozen_cells = frozen_cells(prefix, layer);
        let own = self.layers[layer].side(side);
        let frozen = prefix.map_or(own, |p| p.layers[layer].side(side));
        let mut rest = out;
        for head in 0..own.heads {
            for cells in runs.iter().map(CellRun::cells) {
                let middle = frozen_cells.clamp(cells.start, cells.end);
                let parts = [
                    (frozen, cells.start..middle),
                    (
                        own,
                        middle - frozen_cells.min(middle)..cells.end - frozen_cells.min(middle),
                    ),
                ];
                for (pool, cells) in parts {
                    let rows;
                    (rows, rest) = rest.split_at_mut(cells.len() * own.row_bytes());
                    pool.read_rows(head, cells, rows);
                }
            }
        }
        Ok(())
    }

    fn write_rows(&mut self, blocks: &[RowBlock<'_>]) -> Result<(), KvError> {
        let prefix = self.prefix.clone();
        let frozen = |block: &RowBlock<'_>| frozen_cells(prefix.as_deref(), block.layer);
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
            *made = pool.ensure(block.cells.saturating_sub(frozen(block)));
        });
        jobs.iter().try_for_each(|(_, _, made)| made.clone())?;
        parallel::for_each(bytes, &mut jobs, |(pool, block, _)| {
            pool.take(frozen(block), block);
        });
        Ok(())
    }

    fn release_layer(&mut self, layer: usize) {
        self.layers[layer].keys.release();
        self.layers[layer].values.release();
    }

    fn freeze(&mut self, cells: &[u32]) -> Result<Arc<dyn FrozenKv>, KvError> {
        if self.prefix.is_some() {
            let reason = "the cache lies behind a shared prefix already".into();
            return Err(KvErrorKind::Config(reason).into());
        }
        let mut frozen = FrozenCpuKv {
            config: self.config.clone(),
            layers: vec![],
            cells: cells.to_vec(),
        };
        let layers = empty_layers(&self.config, Some(&frozen));
        frozen.layers = std::mem::replace(&mut self.layers, layers);
        let frozen = Arc::new(frozen);
        self.prefix = Some(frozen.clone());
        Ok(frozen)
    }
}

/// Read-only rows of a shared prefix.
pub(crate) struct FrozenCpuKv {
    config: CacheConfig,
    layers: Vec<LayerKv>,
    /// The cells of each layer; a ring layer has fewer.
    cells: Vec<u32>,
}

impl FrozenCpuKv {
    /// Rows that are read where they lie: `cells[i]` rows of every head of layer `i`, keys and values, in [`RowLayout`].
    pub(crate) fn new(config: &CacheConfig, cells: &[u32], rows: &[[Bytes; 2]]) -> FrozenCpuKv {
        let layers = empty_layers(config, None)
            .into_iter()
            .zip(rows.iter().zip(cells));
        let frozen = |(layer, ([keys, values], cells)): (LayerKv, (&[Bytes; 2], &u32))| LayerKv {
            keys: layer.keys.frozen(*cells, keys.clone()),
            values: layer.values.frozen(*cells, values.clone()),
        };
        FrozenCpuKv {
            layers: layers.map(frozen).collect(),
            config: config.clone(),
            cells: cells.to_vec(),
        }
    }
}

impl FrozenKv for FrozenCpuKv {
    fn open(self: Arc<Self>, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        let mut kv = CpuKv::after(config, Some(self.clone()))?;
        kv.copy_states(&self)?;
        Ok(Box::new(kv))
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
    /// Cells below this number lie in the frozen rows, the others in the cache's own.
    pub(crate) frozen_cells: u32,
}

/// One head's keys or values: rows of a shared prefix and the cache's own.
#[derive(Clone, Copy)]
pub(crate) struct HeadRows<'a> {
    pub(crate) frozen: &'a [u8],
    pub(crate) own: &'a [u8],
    pub(crate) storage: KvStorage,
    pub(crate) layout: RowLayout,
    pub(crate) row_bytes: usize,
}
