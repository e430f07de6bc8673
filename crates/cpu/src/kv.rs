//! KV storage on the CPU: one pool per layer and side, rows encoded in their storage type.

pub(crate) mod layout;
pub(crate) mod pool;
mod region;

use crate::kernels::{Context, SERIAL_ELEMENTS};
use base::parallel;
use kv::{
    CacheConfig, CellRun, Compaction, FrozenKv, GatherPlan, KvBytes, KvError, KvErrorKind,
    KvStorage, LayerPlan, RowBlock, Side,
};
use layout::RowLayout;
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
        let mut kv = CpuKv {
            config: config.clone(),
            layers: empty_layers(config),
            prefix: None,
        };
        if config.initial_cells == CacheConfig::ALL_CELLS {
            let layout = config.layout(config.capacity, 1);
            let sides = layout
                .layers
                .iter()
                .flat_map(|layer| [&layer.keys, &layer.values]);
            let sizes: Vec<usize> = sides.map(kv::SideLayout::bytes).collect();
            let parts = RegionPart::divide(&sizes)?;
            kv.pools()
                .zip(parts)
                .for_each(|(pool, part)| pool.place(part));
        }
        Ok(kv)
    }

    /// Grows the pools to the step's cells and writes its keys and values; cell numbers count the prefix.
    pub(crate) fn update(
        &mut self,
        ctx: &Context<'_>,
        id: usize,
        step: &LayerPlan,
        [keys, values]: [StepRows<'_>; 2],
    ) -> Result<(), KvError> {
        let frozen_cells = self.prefix.as_ref().map_or(0, |p| p.cells[id]);
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
            frozen_cells: prefix.map_or(0, |p| p.cells[id]),
        }
    }

    /// Whether the keys and the values of a layer are stored rotated.
    pub(crate) fn rotated(&self, id: usize) -> [bool; 2] {
        [Side::Key, Side::Value].map(|side| self.config.storage(id, side).rotated().is_some())
    }

    /// Grows the pool of a layer's states to the step's cells, and returns the states: `[heads, cells, elements]`.
    pub(crate) fn states(&mut self, id: usize, step: &LayerPlan) -> Result<StatePool, KvError> {
        assert!(self.prefix.is_none(), "a frozen prefix has no states");
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

fn empty_layers(config: &CacheConfig) -> Vec<LayerKv> {
    let layer = |(id, l): (usize, &kv::LayerConfig)| {
        let pool =
            |layout, dim, storage| CpuPool::new(layout, l.kv_heads, dim, storage, config.growth(l));
        let [keys, values] = [Side::Key, Side::Value].map(|side| config.storage(id, side));
        LayerKv {
            keys: match l.is_state() {
                true => pool(RowLayout::rows(keys, 0), 0, keys),
                false => pool(RowLayout::keys(keys, l.key_dim), l.key_dim, keys),
            },
            values: pool(RowLayout::rows(values, l.value_dim), l.value_dim, values),
        }
    };
    config.layers.iter().enumerate().map(layer).collect()
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
        let frozen_cells = prefix.map_or(0, |p| p.cells[layer]);
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

    fn release_layer(&mut self, layer: usize) {
        self.layers[layer].keys.release();
        self.layers[layer].values.release();
    }

    fn freeze(&mut self, cells: u32) -> Result<Arc<dyn FrozenKv>, KvError> {
        if self.prefix.is_some() {
            return Err(KvErrorKind::Config(
                "the cache lies behind a shared prefix already".into(),
            )
            .into());
        }
        let layers = std::mem::replace(&mut self.layers, empty_layers(&self.config));
        let kept = |layer| self.config.growth(layer).max_rows_per_sequence.min(cells);
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

/// Read-only rows of a shared prefix.
struct FrozenCpuKv {
    config: CacheConfig,
    layers: Vec<LayerKv>,
    /// The cells of each layer; a ring layer has fewer.
    cells: Vec<u32>,
}

impl FrozenKv for FrozenCpuKv {
    fn open(self: Arc<Self>) -> Result<Box<dyn KvBytes>, KvError> {
        let (config, layers) = (self.config.clone(), empty_layers(&self.config));
        Ok(Box::new(CpuKv {
            config,
            layers,
            prefix: Some(self),
        }))
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
