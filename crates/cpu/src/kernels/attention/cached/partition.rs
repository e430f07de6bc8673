//! Divides a step's attention into tasks, and derives the spans that each thread prefetches.

use super::kv_splits::{self, KV_SPLIT};
use super::{CachedAttention, FULL_TILE_VALUE_DIM, MAX_TILE_ROWS};
use crate::kernels::Context;
use crate::kernels::matmul::is_memory_bound;
use crate::kv::{CpuKv, HeadKv, HeadRows};
use crate::prefetch::{Span, SpanList};
use backend::TILE_CELLS;
use base::gate::chunk_start;
use kv::{AttentionSpans, QueryView};
use std::ops::Range;

/// Multiplications below which a step stays on the calling thread: waking others would cost more.
const SERIAL_PRODUCTS: usize = 400_000;

/// A step's attention divided into query tiles (some query heads of one KV head, for some queries) and KV splits.
pub(super) struct AttentionPartition {
    queries: usize,
    queries_per_tile: usize,
    /// Tiles along the queries, and along the heads.
    tiles: usize,
    columns: usize,
    /// Query heads of a KV head, and of a tile.
    group: usize,
    heads_per_tile: usize,
    /// The KV splits that any query sees.
    pub(super) kv_splits: Range<usize>,
    pub(super) schedule: Schedule,
}

/// How query tiles are given to threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// All on the calling thread.
    Serial,
    /// Whole tiles, to any thread that is free.
    Dynamic,
    /// Whole tiles, in one chunk per thread: with few queries the step is memory-bound, and the chunks are prefetched.
    Chunked,
    /// Split along the positions, because there are few tiles; a thread computes consecutive splits of a tile.
    SplitKv,
}

/// The queries and heads of a tile.
pub(super) struct TileRange {
    pub(super) queries: Range<usize>,
    pub(super) kv_head: usize,
    pub(super) first_head: usize,
    pub(super) heads: usize,
}

impl AttentionPartition {
    pub(super) fn new(
        op: &CachedAttention,
        queries: &[QueryView],
        threads: usize,
    ) -> AttentionPartition {
        let group = op.heads / op.kv_heads;
        let max_rows =
            (MAX_TILE_ROWS * FULL_TILE_VALUE_DIM / op.value_dim.max(1)).clamp(1, MAX_TILE_ROWS);
        let heads_per_tile = group.min(max_rows);
        let columns = op.kv_heads * group.div_ceil(heads_per_tile);
        let kv_splits = kv_splits::visible_splits(queries);
        let visible_keys = queries.iter().map(QueryView::len);
        let products = visible_keys.sum::<usize>() * op.heads * (op.key_dim + op.value_dim);
        let serial = products < SERIAL_PRODUCTS && kv_splits.len() <= 1;
        let fits = kv_splits::fits(queries.len() * op.heads, kv_splits.len(), op.value_dim);
        let splits = if fits { kv_splits.len().max(1) } else { 1 };
        // A tile takes the most queries that can share a pass and still leave enough tasks to balance the threads.
        let wanted_tiles = if serial {
            1
        } else {
            (2 * threads).div_ceil(columns * splits)
        };
        let tiles = queries
            .len()
            .div_ceil(max_rows / heads_per_tile)
            .max(wanted_tiles);
        let queries_per_tile = queries.len().div_ceil(tiles).max(1);
        let tiles = queries.len().div_ceil(queries_per_tile);
        let schedule = if serial {
            Schedule::Serial
        } else if tiles * columns < 4 * threads && kv_splits.len() > 1 && fits {
            Schedule::SplitKv
        } else if is_memory_bound(queries.len()) {
            Schedule::Chunked
        } else {
            Schedule::Dynamic
        };
        AttentionPartition {
            queries: queries.len(),
            queries_per_tile,
            tiles,
            columns,
            group,
            heads_per_tile,
            kv_splits,
            schedule,
        }
    }

    pub(super) fn tasks(&self) -> usize {
        match self.schedule {
            Schedule::SplitKv => self.tiles * self.columns * self.kv_splits.len(),
            _ => self.tiles * self.columns,
        }
    }

    /// The tasks that a thread starts with, if the schedule fixes them.
    fn chunk(&self, threads: usize, thread: usize) -> Range<usize> {
        match self.schedule {
            Schedule::Serial if thread == 0 => 0..self.tasks(),
            Schedule::Serial | Schedule::Dynamic => 0..0,
            Schedule::SplitKv | Schedule::Chunked => {
                let start = |thread| chunk_start(self.tasks(), threads, thread);
                start(thread)..start(thread + 1)
            }
        }
    }

    /// The tile of a task, and its KV split if tiles are split.
    pub(super) fn task(&self, task: usize) -> (TileRange, usize) {
        match self.schedule {
            Schedule::SplitKv => {
                let (query_tile, kv_split) =
                    (task / self.kv_splits.len(), task % self.kv_splits.len());
                (
                    self.query_tile(query_tile / self.columns, query_tile % self.columns),
                    kv_split,
                )
            }
            // The last queries of a causal step see the most keys, so their tiles are started first.
            _ => {
                let tile = self.tiles - 1 - task / self.columns;
                (self.query_tile(tile, task % self.columns), 0)
            }
        }
    }

    fn query_tile(&self, tile: usize, column: usize) -> TileRange {
        let splits = self.group.div_ceil(self.heads_per_tile);
        let (kv_head, split) = (column / splits, column % splits);
        let first_head = kv_head * self.group + split * self.heads_per_tile;
        let first = tile * self.queries_per_tile;
        TileRange {
            queries: first..(first + self.queries_per_tile).min(self.queries),
            kv_head,
            first_head,
            heads: self
                .heads_per_tile
                .min((kv_head + 1) * self.group - first_head),
        }
    }
}

impl CachedAttention {
    /// Sets the cache rows that every thread will read for this attention, if the partition fixes them in advance.
    pub(crate) fn plan_prefetch(
        &self,
        ctx: &Context<'_>,
        visible: &AttentionSpans,
        (kv, id): (&CpuKv, usize),
    ) {
        let threads = ctx.threads.count();
        let partition = AttentionPartition::new(self, super::attending(visible), threads);
        for thread in 0..threads {
            let mut found = KvSpans::default();
            for task in partition.chunk(threads, thread) {
                let (query_tile, kv_split) = partition.task(task);
                let positions = match partition.schedule {
                    Schedule::SplitKv => {
                        let kv_split = partition.kv_splits.start + kv_split;
                        kv_split * KV_SPLIT..(kv_split + 1) * KV_SPLIT
                    }
                    _ => 0..usize::MAX,
                };
                let queries = &visible.queries()[query_tile.queries];
                found.add(
                    visible,
                    queries,
                    positions,
                    &kv.head(id, query_tile.kv_head),
                );
            }
            ctx.threads.prefetch_plan(thread).set_next(&found.0);
        }
    }
}

/// The cache spans that a thread reads.
#[derive(Default)]
struct KvSpans(SpanList);

impl KvSpans {
    /// Adds the rows of a head that some queries read between some positions.
    fn add(
        &mut self,
        visible: &AttentionSpans,
        queries: &[QueryView],
        positions: Range<usize>,
        kv: &HeadKv<'_>,
    ) {
        for queries in queries.chunk_by(|a, b| a.list == b.list) {
            let first = queries.iter().map(|q| q.positions.start as usize).min();
            let end = queries.iter().map(|q| q.positions.end as usize).max();
            let first = first.unwrap_or(0).max(positions.start);
            let end = end.unwrap_or(0).min(positions.end);
            for run in visible.run_list(queries[0].list) {
                let (start, len) = (run.position as usize, run.len as usize);
                let visible_keys = first.max(start)..end.min(start + len);
                if visible_keys.is_empty() {
                    continue;
                }
                let cell = run.cell as usize + visible_keys.start - start;
                let cells = cell..cell + visible_keys.len();
                let middle = (kv.frozen_cells as usize).clamp(cells.start, cells.end);
                let own = kv.frozen_cells as usize;
                self.push(kv, true, cells.start..middle);
                self.push(kv, false, middle.max(own) - own..cells.end.max(own) - own);
            }
        }
    }

    fn push(&mut self, kv: &HeadKv<'_>, frozen: bool, cells: Range<usize>) {
        if cells.is_empty() {
            return;
        }
        let side = |rows: &HeadRows<'_>, tile: usize| {
            let bytes = if frozen { rows.frozen } else { rows.own };
            let start = (cells.start / tile * tile * rows.row_bytes).min(bytes.len());
            let end = (cells.end.next_multiple_of(tile) * rows.row_bytes).min(bytes.len());
            (bytes.as_ptr() as usize + start, end - start)
        };
        self.0.push(Span {
            regions: [side(&kv.keys, TILE_CELLS), side(&kv.values, 1)],
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kv::StepRows;
    use crate::thread_pool::ThreadPool;
    use kv::{CacheConfig, CacheManager, Contiguous, LayerConfig, StepPlan};

    const DIM: usize = 64;

    #[test]
    fn threads_prefetch_every_row_once() {
        let op = CachedAttention {
            heads: 9,
            kv_heads: 3,
            key_dim: DIM,
            value_dim: DIM,
            scale: 1.0,
            softcap: None,
        };
        for (held, schedule) in [
            (30, Schedule::Serial),
            (500, Schedule::Chunked),
            (1300, Schedule::SplitKv),
        ] {
            let layer = LayerConfig {
                kv_heads: op.kv_heads,
                key_dim: DIM,
                value_dim: DIM,
                window: None,
                sinks: 0,
            };
            let config = CacheConfig::new(2000, vec![layer]);
            let (mut cache, mut kv) = (Contiguous::new(&config), CpuKv::new(&config).unwrap());
            let mut plan = StepPlan::default();
            let positions: Vec<i32> = (0..held).collect();
            cache.plan_declared(&positions, &mut plan).unwrap();
            let rows = vec![0.5; held as usize * op.kv_heads * DIM];
            let step = plan.layer(0);
            let rows = StepRows {
                data: &rows,
                rotation: None,
            };
            let threads = ThreadPool::new(1);
            let ctx = Context {
                isa: Isa::GENERIC,
                threads: &threads,
            };
            kv.update(&ctx, 0, step, [rows, rows]).unwrap();
            cache.commit(&plan);
            cache.plan_declared(&[held], &mut plan).unwrap();
            let visible = &plan.layer(0).visible;
            for count in [1, 2, 3] {
                let threads = ThreadPool::new(count);
                let ctx = Context {
                    isa: Isa::GENERIC,
                    threads: &threads,
                };
                assert_eq!(
                    AttentionPartition::new(&op, visible.queries(), count).schedule,
                    schedule
                );
                op.plan_prefetch(&ctx, visible, (&kv, 0));
                let planned =
                    (0..count).flat_map(|thread| threads.prefetch_plan(thread).last_planned());
                let sides: Vec<_> = planned.flat_map(|span| span.regions).collect();
                let bytes: usize = sides.iter().map(|(_, len)| len).sum();
                // A partial tile of keys is prefetched in full, as far as it is allocated.
                let row = config.key_storage.row_bytes(DIM);
                let least = 2 * op.kv_heads * held as usize * row;
                assert!(
                    (least..=least + 3 * (TILE_CELLS + 1) * row).contains(&bytes),
                    "{bytes}"
                );
                for (start, len) in sides {
                    let inside = |rows: HeadRows<'_>| {
                        let own = rows.own.as_ptr_range();
                        (own.start as usize..=own.end as usize).contains(&start)
                            && start + len <= own.end as usize
                    };
                    let heads = (0..op.kv_heads).map(|head| kv.head(0, head));
                    let found = heads.flat_map(|head| [head.keys, head.values]).any(inside);
                    assert!(found, "outside of every head");
                }
            }
        }
    }
}
