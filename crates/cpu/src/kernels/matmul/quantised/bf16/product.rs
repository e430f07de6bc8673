//! A chunk of the inputs of two panels is expanded while all rows are multiplied with the chunk before it.
//!
//! Two tiles of rows are multiplied with two panels at a time. The expanded chunk of the panels stays in L1 while all rows pass; a chunk of
//! all activations stays in L2 while the panels of a task pass. Sums go to scratch between chunks, which changes no bit.

use super::super::block_scaled::{BlockQuants, for_quants};
use super::super::format::{LINE, PANEL};
use super::super::panel::RowScaledPanel;
use super::super::task::{PanelTask, QuantisedLinear, write};
use super::expand::BlockCursor;
use super::{Bf16Activations, PAIR_ROWS, S, TILE};
use crate::prefetch::prefetch_line;
use crate::simd::amx::{AmxTiles, TILE_ROWS};
use crate::simd::{BF16_WEIGHT_UNIT, Simd, TileKernel};
use std::ops::Range;

/// Blocks of a chunk.
const CHUNK: usize = 16;
/// Panels that are multiplied together.
const PANELS: usize = 2;
/// Bytes of the expanded chunk of these panels, of which there are two.
const EXPANDED: usize = PANELS * CHUNK * TILE;
/// Bytes of the sums of two tiles of rows and two panels.
const SUMS: usize = 4 * TILE;
/// Rows that are multiplied with a group, so that their activations stay in L2.
const PART_ROWS: usize = 1024;

/// Panels of a task if all activations stay in L2 from task to task, and otherwise: the first panels read every chunk from L3.
const RESIDENT_PANELS: usize = 8;
const STREAMED_PANELS: usize = 32;
/// The most bytes of activations that stay in L2.
const RESIDENT_BYTES: usize = 1 << 20;

/// The most panels of a task.
pub(in super::super) fn max_panels(linear: &QuantisedLinear) -> usize {
    match linear.m * linear.k * size_of::<u16>() {
        ..=RESIDENT_BYTES => RESIDENT_PANELS,
        _ => STREAMED_PANELS,
    }
}

/// Bytes of a thread's scratch: two expanded groups, and the sums of a part's rows for all panels of a task.
pub(in super::super) fn thread_scratch(linear: &QuantisedLinear) -> usize {
    let pairs = linear.m.min(PART_ROWS).div_ceil(PAIR_ROWS);
    2 * EXPANDED + max_panels(linear).div_ceil(PANELS) * pairs * SUMS
}

/// The kernel for the panels of a task.
pub(super) struct Bf16Product<'a>(pub(super) PanelTask<'a, Bf16Activations>);

impl TileKernel for Bf16Product<'_> {
    #[inline(always)]
    fn run(self, s: S) {
        let task = &self.0;
        let layout = &RowScaledPanel::new(&task.linear.format, task.linear.k);
        macro_rules! multiply {
            ($quants:ty) => {
                for first in (0..task.linear.m).step_by(PART_ROWS) {
                    let rows = first..task.linear.m.min(first + PART_ROWS);
                    Part { task, layout, rows }.multiply::<$quants>(s);
                }
            };
        }
        // SAFETY: `bf16::multiply`'s caller guarantees the operands and the scratch.
        unsafe { for_quants!(task.linear.format, multiply) }
    }
}

/// The panels of a task and a part of the rows, beginning with a pair of tiles.
struct Part<'a> {
    task: &'a PanelTask<'a, Bf16Activations>,
    layout: &'a RowScaledPanel,
    rows: Range<usize>,
}

/// A chunk of the inputs of one or two panels.
#[derive(Clone)]
struct Group {
    blocks: Range<usize>,
    panels: Range<usize>,
}

impl Group {
    fn tiles(&self) -> usize {
        self.blocks.len() * self.panels.len()
    }
}

impl Part<'_> {
    /// Multiplies all panels with the rows.
    ///
    /// # Safety
    /// As for [`super::multiply`].
    #[inline(always)]
    unsafe fn multiply<Q: BlockQuants>(&self, s: S) {
        let task = self.task;
        let mut buffers = [0, EXPANDED].map(|at| task.expanded.wrapping_add(at));
        let mut next = Some(self.first_group());
        // SAFETY: as the caller guarantees; whole pairs of tiles of rows are laid out.
        unsafe {
            let tiles = AmxTiles::new();
            let mut expander = Expander::new(self, next.clone(), buffers[0]);
            expander.expand::<Q>(s, PANELS * CHUNK);
            while let Some(group) = next {
                next = self.group_after(&group);
                let mut expander = Expander::new(self, next.clone(), buffers[1]);
                self.multiply_group::<Q>(s, &tiles, &group, buffers[0], &mut expander);
                buffers.swap(0, 1);
            }
        }
    }

    fn first_group(&self) -> Group {
        self.group(0, self.task.panels.start)
    }

    fn group(&self, block: usize, panel: usize) -> Group {
        Group {
            blocks: block..self.task.activations.blocks.min(block + CHUNK),
            panels: panel..self.task.panels.end.min(panel + PANELS),
        }
    }

    /// The groups of a chunk follow each other, and the chunks.
    fn group_after(&self, group: &Group) -> Option<Group> {
        if group.panels.end < self.task.panels.end {
            return Some(self.group(group.blocks.start, group.panels.end));
        }
        let more = group.blocks.end < self.task.activations.blocks;
        more.then(|| self.group(group.blocks.end, self.task.panels.start))
    }

    /// Multiplies a group with all rows, and stores the results after the last chunk. The next group is expanded meanwhile.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply); the group must be expanded at `weights`.
    #[inline(always)]
    unsafe fn multiply_group<Q: BlockQuants>(
        &self,
        s: S,
        tiles: &AmxTiles,
        group: &Group,
        weights: *const u8,
        expander: &mut Expander<'_>,
    ) {
        let x = &self.task.activations;
        let pairs = self.rows.len().div_ceil(PAIR_ROWS);
        let tiles_per_pair = expander.left.div_ceil(pairs);
        let columns = [weights, weights.wrapping_add(CHUNK * TILE)];
        let steps = group.blocks.len();
        // SAFETY: as the caller guarantees.
        unsafe {
            for (pair, row) in self.rows.clone().step_by(PAIR_ROWS).enumerate() {
                let sums = self.sums(group.panels.start, pair, pairs);
                if group.blocks.start == 0 {
                    tiles.zero_accumulators();
                } else {
                    tiles.load_accumulators(sums);
                    for line in 0..SUMS / LINE {
                        s.prefetch(sums.wrapping_add(SUMS + line * LINE));
                    }
                }
                let rows = x.line(row, group.blocks.start);
                if group.panels.len() == PANELS {
                    tiles.accumulate_bf16_steps::<PANELS>(rows, columns, steps);
                } else {
                    tiles.accumulate_bf16_steps::<1>(rows, columns, steps);
                }
                tiles.store_accumulators(sums.cast());
                // On vectors, while the tiles multiply.
                expander.expand::<Q>(s, tiles_per_pair);
                if group.blocks.end == x.blocks {
                    self.write_rows(s, group.panels.clone(), row, sums);
                }
            }
        }
    }

    /// The address of the sums of a pair of tiles of rows and two panels.
    fn sums(&self, panel: usize, pair: usize, pairs: usize) -> *mut u8 {
        let index = (panel - self.task.panels.start) / PANELS * pairs + pair;
        self.task.expanded.wrapping_add(2 * EXPANDED + index * SUMS)
    }

    /// Stores the results of a pair of tiles of rows.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply).
    #[inline(always)]
    unsafe fn write_rows(&self, s: S, panels: Range<usize>, first: usize, sums: *const u8) {
        // SAFETY: as the caller guarantees.
        unsafe {
            for (i, panel) in panels.enumerate() {
                let weight = self.task.operands.weight.add(panel * self.layout.bytes);
                let units = s.mul(s.load(weight.cast()), s.splat(BF16_WEIGHT_UNIT));
                for row in first..self.rows.end.min(first + PAIR_ROWS) {
                    let within = row - first;
                    let tile = within / TILE_ROWS * PANELS + i;
                    let at = (tile * TILE_ROWS + within % TILE_ROWS) * PANEL;
                    let sum = s.load(sums.cast::<f32>().add(at));
                    write(s, self.task, row, panel, s.mul(sum, units));
                }
            }
        }
    }
}

/// Expands a group step by step.
struct Expander<'a> {
    part: &'a Part<'a>,
    group: Group,
    to: *mut u8,
    /// The panel and the block that are expanded next, and the tiles that are left.
    panel: usize,
    block: usize,
    left: usize,
    cursor: BlockCursor,
}

impl<'a> Expander<'a> {
    /// An expander of a group, or of nothing.
    #[inline(always)]
    fn new(part: &'a Part<'a>, group: Option<Group>, to: *mut u8) -> Expander<'a> {
        let left = group.as_ref().map_or(0, Group::tiles);
        let group = group.unwrap_or(Group {
            blocks: 0..0,
            panels: 0..0,
        });
        Expander {
            part,
            to,
            panel: group.panels.start,
            block: group.blocks.start,
            left,
            cursor: BlockCursor::new(std::ptr::null(), part.layout, 0, 0),
            group,
        }
    }

    /// Expands at most `count` tiles.
    ///
    /// # Safety
    /// As for [`Part::multiply`].
    #[inline(always)]
    unsafe fn expand<Q: BlockQuants>(&mut self, s: S, count: usize) {
        let Group { blocks, panels } = &self.group;
        for _ in 0..count.min(self.left) {
            let layout = self.part.layout;
            // SAFETY: as the caller guarantees.
            unsafe {
                let from = self
                    .part
                    .task
                    .operands
                    .weight
                    .add(self.panel * layout.bytes);
                if self.block == blocks.start {
                    self.cursor = BlockCursor::new(from, layout, blocks.start, blocks.len());
                }
                // The same block of the panel that is expanded after this one.
                let ahead = from.add(layout.bytes + layout.quants(self.block));
                for line in 0..layout.block_bytes / LINE {
                    prefetch_line(ahead.wrapping_add(line * LINE).addr());
                }
                let index = (self.panel - panels.start) * CHUNK + self.block - blocks.start;
                let to = self.to.add(index * TILE);
                self.cursor.expand::<Q>(s, layout, None, to);
            }
            self.block += 1;
            if self.block == blocks.end {
                (self.panel, self.block) = (self.panel + 1, blocks.start);
            }
            self.left -= 1;
        }
    }
}
