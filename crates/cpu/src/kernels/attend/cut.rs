//! How a step's attention is cut into tasks, and what the threads therefore read.

use super::parts::{self, PART};
use super::{Attend, MOST_DIM, ROWS};
use crate::ahead::{Stretch, Stretches};
use crate::kernels::{Context, reads_once};
use crate::kv::layout::TILE;
use crate::kv::{CpuKv, HeadKv, HeadRows};
use base::gate::chunk_start;
use kv::{QueryView, Visibility};
use std::ops::Range;

/// Products below which a step stays on the calling thread: waking others would cost more.
const SERIAL_PRODUCTS: usize = 400_000;

/// Items are some query heads of one KV head, for some queries of the step; each has parts of the positions.
pub(super) struct Cut {
    queries: usize,
    queries_per_item: usize,
    /// Items behind each other, and beside each other.
    tiles: usize,
    columns: usize,
    /// Query heads of a KV head, and how many of them an item has.
    group: usize,
    heads_per_item: usize,
    /// The parts that any query sees.
    pub(super) parts: Range<usize>,
    pub(super) how: How,
}

/// How items are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// All to the calling thread.
    Alone,
    /// Whole, to whoever is free.
    Whole,
    /// Whole, to every thread its share: there are few queries, so what they read is waited for, and asked for before.
    Shared,
    /// Part by part, because there are few of them: a thread goes from part to part of an item.
    Apart,
}

/// Which queries and heads an item has.
pub(super) struct Which {
    pub(super) queries: Range<usize>,
    pub(super) kv_head: usize,
    pub(super) first_head: usize,
    pub(super) heads: usize,
}

impl Cut {
    pub(super) fn new(op: &Attend, queries: &[QueryView], threads: usize) -> Cut {
        let group = op.heads / op.kv_heads;
        let most_rows = (ROWS * MOST_DIM / op.value_dim.max(1)).clamp(1, ROWS);
        let heads_per_item = group.min(most_rows);
        let columns = op.kv_heads * group.div_ceil(heads_per_item);
        let parts = parts::of(queries);
        let seen = queries.iter().map(|query| query.positions.len());
        let products = seen.sum::<usize>() * op.heads * (op.key_dim + op.value_dim);
        let alone = products < SERIAL_PRODUCTS && parts.len() <= 1;
        // As many queries as share a pass, but enough items for the threads to come out even.
        let wanted_tiles = if alone {
            1
        } else {
            (2 * threads).div_ceil(columns)
        };
        let queries_per_item = (most_rows / heads_per_item)
            .min(queries.len().div_ceil(wanted_tiles))
            .max(1);
        let tiles = queries.len().div_ceil(queries_per_item);
        let room = parts::fit(queries.len() * op.heads, parts.len(), op.value_dim);
        let how = if alone {
            How::Alone
        } else if tiles * columns < 4 * threads && parts.len() > 1 && room {
            How::Apart
        } else if reads_once(queries.len()) {
            How::Shared
        } else {
            How::Whole
        };
        Cut {
            queries: queries.len(),
            queries_per_item,
            tiles,
            columns,
            group,
            heads_per_item,
            parts,
            how,
        }
    }

    pub(super) fn tasks(&self) -> usize {
        match self.how {
            How::Apart => self.tiles * self.columns * self.parts.len(),
            _ => self.tiles * self.columns,
        }
    }

    /// The tasks that a thread begins with, where that is known.
    fn share(&self, threads: usize, thread: usize) -> Range<usize> {
        match self.how {
            How::Alone if thread == 0 => 0..self.tasks(),
            How::Alone | How::Whole => 0..0,
            How::Apart | How::Shared => {
                let start = |thread| chunk_start(self.tasks(), threads, thread);
                start(thread)..start(thread + 1)
            }
        }
    }

    /// The item of a task, and of an item that is taken apart, which part.
    pub(super) fn task(&self, task: usize) -> (Which, usize) {
        match self.how {
            How::Apart => {
                let (item, part) = (task / self.parts.len(), task % self.parts.len());
                (self.item(item / self.columns, item % self.columns), part)
            }
            // The last queries of a causal step see most, so their tiles are taken first.
            _ => {
                let tile = self.tiles - 1 - task / self.columns;
                (self.item(tile, task % self.columns), 0)
            }
        }
    }

    fn item(&self, tile: usize, column: usize) -> Which {
        let splits = self.group.div_ceil(self.heads_per_item);
        let (kv_head, split) = (column / splits, column % splits);
        let first_head = kv_head * self.group + split * self.heads_per_item;
        let first = tile * self.queries_per_item;
        Which {
            queries: first..(first + self.queries_per_item).min(self.queries),
            kv_head,
            first_head,
            heads: self
                .heads_per_item
                .min((kv_head + 1) * self.group - first_head),
        }
    }
}

impl Attend {
    /// Tells every thread what it will read of the cache, where that is known before.
    pub(crate) fn read_ahead(
        &self,
        ctx: &Context<'_>,
        visible: &Visibility,
        (kv, id): (&CpuKv, usize),
    ) {
        let threads = ctx.threads.count();
        let cut = Cut::new(self, super::attending(visible), threads);
        for thread in 0..threads {
            let mut found = Found::default();
            for task in cut.share(threads, thread) {
                let (item, part) = cut.task(task);
                let positions = match cut.how {
                    How::Apart => {
                        let part = cut.parts.start + part;
                        part * PART..(part + 1) * PART
                    }
                    _ => 0..usize::MAX,
                };
                let queries = &visible.queries()[item.queries];
                found.add(visible, queries, positions, &kv.head(id, item.kv_head));
            }
            ctx.threads.course(thread).tell(&found.0);
        }
    }
}

/// The stretches of a thread so far.
#[derive(Default)]
struct Found(Stretches);

impl Found {
    /// What some queries read of a head, between some positions.
    fn add(
        &mut self,
        visible: &Visibility,
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
                let seen = first.max(start)..end.min(start + len);
                if seen.is_empty() {
                    continue;
                }
                let cell = run.cell as usize + seen.start - start;
                let cells = cell..cell + seen.len();
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
        self.0.push(Stretch {
            sides: [side(&kv.keys, TILE), side(&kv.values, 1)],
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kv::Rows;
    use crate::threads::Threads;
    use kv::{Bookkeeping, CacheConfig, Contiguous, LayerConfig, StepPlan};

    const DIM: usize = 64;

    #[test]
    fn the_threads_are_told_every_row_once() {
        let op = Attend {
            heads: 9,
            kv_heads: 3,
            key_dim: DIM,
            value_dim: DIM,
            scale: 1.0,
            softcap: None,
        };
        for (held, how) in [(30, How::Alone), (500, How::Shared), (1300, How::Apart)] {
            let layer = LayerConfig {
                kv_heads: op.kv_heads,
                key_dim: DIM,
                value_dim: DIM,
                window: None,
            };
            let config = CacheConfig::new(2000, vec![layer]);
            let (mut cache, mut kv) = (Contiguous::new(&config), CpuKv::new(&config));
            let mut plan = StepPlan::default();
            let positions: Vec<i32> = (0..held).collect();
            cache.plan_declared(&positions, &mut plan).unwrap();
            let rows = vec![0.5; held as usize * op.kv_heads * DIM];
            let step = plan.layer(0);
            let rows = Rows {
                data: &rows,
                rotation: None,
            };
            let threads = Threads::new(1);
            let ctx = Context {
                isa: Isa::GENERIC,
                threads: &threads,
            };
            kv.update(&ctx, 0, step, [rows, rows]).unwrap();
            cache.commit(&plan);
            cache.plan_declared(&[held], &mut plan).unwrap();
            let visible = &plan.layer(0).visible;
            for count in [1, 2, 3] {
                let threads = Threads::new(count);
                let ctx = Context {
                    isa: Isa::GENERIC,
                    threads: &threads,
                };
                assert_eq!(Cut::new(&op, visible.queries(), count).how, how);
                op.read_ahead(&ctx, visible, (&kv, 0));
                let told = (0..count).flat_map(|thread| threads.course(thread).last_told());
                let sides: Vec<_> = told.flat_map(|stretch| stretch.sides).collect();
                let bytes: usize = sides.iter().map(|(_, len)| len).sum();
                // A tile of keys that is not full is told whole, as far as there is room for it.
                let row = config.key_storage.row_bytes(DIM);
                let least = 2 * op.kv_heads * held as usize * row;
                assert!(
                    (least..=least + 3 * (TILE + 1) * row).contains(&bytes),
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
