//! Panels times many rows of activations, on AMX tiles.
//!
//! Weights are expanded to two-byte integers, a chunk of a panel at a time: it stays in L1 while all rows are multiplied
//! with it, and a chunk of all activations stays in L2 while the panels of a task pass. The tiles compute the same exact
//! sums as the vector microkernel, and the f32 operations that follow are the same in the same order, so both paths are
//! bit-identical.

use super::activations::{CHUNK, TILE};
use super::byte_quants::{expand_line, quant_lines, stored_lines};
use super::factors::CENTRES;
use super::format::{BLOCK, LINE, PANEL, Quant};
use super::panel::{PanelBlocks, PanelReader, RowScaledPanel, block_lines};
use super::task::{PanelTask, QuantisedLinear, write};
use crate::prefetch::{Prefetcher, prefetch_line};
use crate::simd::amx::{AmxTiles, TILE_ROWS};
use crate::simd::{Avx512, ByteLines, Simd, TileKernel};

/// The only tier with AMX tiles.
type S = Avx512<true>;

/// Bytes of a step of 64 inputs: a tile of high and a tile of low bytes.
const STEP: usize = 2 * TILE_ROWS * LINE;
/// Bytes of an expanded chunk of a panel.
const EXPANDED: usize = CHUNK / TILE * STEP;
/// Rows that are converted to f32 during a step of the next tile.
const ROWS_PER_STEP: usize = 2;

/// The products of the high and low bytes of both sides.
const PRODUCTS: usize = 4 * TILE_ROWS * TILE_ROWS;
#[repr(align(64))]
struct PlaneProducts([[i32; PRODUCTS]; 2]);

/// Panels of a task if all activations stay in L2, and otherwise: the first panel reads every chunk of them from L3.
const RESIDENT_PANELS: usize = 8;
const STREAMED_PANELS: usize = 32;
/// The most bytes of activations that stay in L2 from task to task.
const RESIDENT_BYTES: usize = 1 << 20;

/// The most panels of a task.
pub(super) fn max_panels(linear: &QuantisedLinear) -> usize {
    if linear.m * linear.k * size_of::<i16>() <= RESIDENT_BYTES {
        RESIDENT_PANELS
    } else {
        STREAMED_PANELS
    }
}

/// Bytes of the sums of a panel.
fn panel_sums_bytes(linear: &QuantisedLinear) -> usize {
    linear.m.next_multiple_of(TILE_ROWS) * PANEL * size_of::<f32>()
}

/// Bytes of a thread's scratch for a task: an expanded chunk, and the sums of earlier chunks.
pub(super) fn scratch_bytes(linear: &QuantisedLinear) -> usize {
    let sums = match linear.k {
        ..=CHUNK => 0,
        _ => max_panels(linear) * panel_sums_bytes(linear),
    };
    EXPANDED + sums
}

/// The AMX kernel for the panels of a task and all rows of activations.
pub(super) struct RowScaledTiles<'a>(pub(super) PanelTask<'a>);

impl TileKernel for RowScaledTiles<'_> {
    #[inline(always)]
    fn run(self, s: S) {
        // SAFETY: `QuantisedLinear::run` takes this path only on a tier with tiles; its caller guarantees the operands.
        // Activations are laid out for whole tiles of rows, and the scratch has the size that `scratch_bytes` says.
        unsafe { run_chunks(s, &self.0) }
    }
}

/// A chunk of a panel that is multiplied with all rows.
struct ChunkTask<'a> {
    task: &'a PanelTask<'a>,
    panel: usize,
    chunk: usize,
    /// The sums of earlier chunks, of sixteen columns for each row.
    sums: *mut f32,
    units: <S as Simd>::V,
}

/// # Safety
/// As for [`QuantisedLinear::run`], within the task's panels; tiles must be available.
#[inline(always)]
unsafe fn run_chunks(s: S, task: &PanelTask<'_>) {
    let linear = &task.linear;
    let x = &task.activations;
    let layout = RowScaledPanel::new(&linear.format, linear.k);
    let panel_sums = linear.m.next_multiple_of(TILE_ROWS) * PANEL;
    let mut products = PlaneProducts([[0; PRODUCTS]; 2]);
    // SAFETY: as the caller guarantees; sixteen rows of activations are laid out from every multiple of sixteen on.
    unsafe {
        let tiles = AmxTiles::new();
        let weights = task.expanded;
        let sums: *mut f32 = task.expanded.add(EXPANDED).cast();
        for (chunk, inputs) in x.layout.chunk_ranges().enumerate() {
            let steps = inputs.len().div_ceil(TILE);
            let is_last_chunk = chunk + 1 == x.layout.chunks;
            // The weights of the next chunk are prefetched evenly while the tiles of rows are multiplied.
            let chunk_bytes = layout.bytes * inputs.len() / linear.k;
            let lines_per_tile = chunk_bytes
                .div_ceil(LINE)
                .div_ceil(linear.m.div_ceil(TILE_ROWS));
            for (i, panel) in task.panels.clone().enumerate() {
                let from = task.operands.weight.add(panel * layout.bytes);
                let mut reader = PanelReader::new(from, &layout, inputs.start / BLOCK);
                expand_inputs(s, &mut reader, None, inputs.len(), weights);
                let chunk_task = ChunkTask {
                    task,
                    panel,
                    chunk,
                    sums: sums.add(i * panel_sums),
                    units: s.load(from.cast()),
                };
                // The loop expands the same chunk of the next panel next. After the last panel it starts the next chunk; after the
                // last chunk, the thread's next task starts with the panel that follows.
                let (next_panel, next_input) = if panel + 1 < task.panels.end {
                    (panel + 1, inputs.start)
                } else if !is_last_chunk {
                    (task.panels.start, inputs.end)
                } else {
                    (panel + 1, 0)
                };
                let next_chunk = task.operands.weight.addr()
                    + next_panel * layout.bytes
                    + layout.header((next_input / BLOCK) >> layout.span_shift);
                let mut pending: Option<usize> = None;
                for (turn, first) in (0..linear.m).step_by(TILE_ROWS).enumerate() {
                    let [even, odd] = &mut products.0;
                    let (current, previous) = match turn % 2 {
                        0 => (even, odd),
                        _ => (odd, even),
                    };
                    let x_tiles = x.line(first, inputs.start / BLOCK).cast_const();
                    tiles.zero_accumulators();
                    for line in turn * lines_per_tile..(turn + 1) * lines_per_tile {
                        prefetch_line(next_chunk + line * LINE);
                    }
                    if is_last_chunk {
                        prefetch_residual(task, first, panel);
                    }
                    let mut row = 0;
                    for step in 0..steps {
                        let at = step * STEP;
                        tiles.accumulate_streamed_planes(x_tiles.add(at), weights.add(at));
                        // Vectors finish the previous tile meanwhile.
                        if let Some(first) = pending {
                            for _ in 0..ROWS_PER_STEP.min(TILE_ROWS - row) {
                                chunk_task.finish_row(s, previous.as_ptr(), first, row);
                                row += 1;
                            }
                        }
                    }
                    if let Some(first) = pending {
                        for row in row..TILE_ROWS {
                            chunk_task.finish_row(s, previous.as_ptr(), first, row);
                        }
                    }
                    tiles.store_accumulators(current.as_mut_ptr());
                    pending = Some(first);
                }
                if let Some(first) = pending {
                    let turns = linear.m.div_ceil(TILE_ROWS);
                    let last = products.0[(turns + 1) % 2].as_ptr();
                    for row in 0..TILE_ROWS {
                        chunk_task.finish_row(s, last, first, row);
                    }
                }
            }
        }
    }
}

/// Prefetches the residual that is added to a panel of a tile of rows.
#[inline(always)]
fn prefetch_residual(task: &PanelTask<'_>, first: usize, panel: usize) {
    let (linear, residual) = (&task.linear, task.operands.epilogue.stored_residual());
    if !residual.is_null() {
        for row in first..linear.m.min(first + TILE_ROWS) {
            let at = row * linear.n + panel * PANEL;
            prefetch_line(residual.wrapping_add(at).addr());
        }
    }
}

impl ChunkTask<'_> {
    /// Converts a row of products, adds it to the sums of the row, and stores the result after the last chunk.
    ///
    /// # Safety
    /// The products of the rows from `first` on must be readable.
    #[inline(always)]
    unsafe fn finish_row(&self, s: S, products: *const i32, first: usize, row: usize) {
        let x = &self.task.activations;
        // SAFETY: as the caller guarantees; the sums have whole tiles of rows.
        unsafe {
            let number =
                s.products_to_f32(products.add(row * TILE_ROWS), 2 * TILE_ROWS * TILE_ROWS);
            let scale = s.splat(*x.scale(first + row, self.chunk));
            let sums = self.sums.add((first + row) * PANEL);
            let before = if self.chunk == 0 {
                s.zero()
            } else {
                s.load(sums)
            };
            let sum = s.fma(number, scale, before);
            if self.chunk + 1 < x.layout.chunks {
                s.store(sums, sum);
            } else if first + row < self.task.linear.m {
                write(
                    s,
                    self.task,
                    first + row,
                    self.panel,
                    s.mul(sum, self.units),
                );
            }
        }
    }
}

/// Expands the next inputs of a packed panel to two-byte integers: for every 64 inputs, a tile of high and a tile of low
/// bytes. Prefetches along the prefetcher's plan, if there is one.
///
/// # Safety
/// The reader's panel must have `inputs` more inputs, and their integers fit at `to`.
#[inline(always)]
pub(super) unsafe fn expand_inputs(
    s: S,
    reader: &mut PanelReader,
    prefetcher: Option<&mut Prefetcher<'_>>,
    inputs: usize,
    to: *mut u8,
) {
    let layout = reader.layout();
    // SAFETY: as the caller guarantees.
    unsafe {
        match layout.quant {
            Quant::Nibble => expand::<ExpandBits<0>>(s, reader, prefetcher, inputs, to),
            Quant::Five => expand::<ExpandBits<1>>(s, reader, prefetcher, inputs, to),
            Quant::Six => expand::<ExpandBits<2>>(s, reader, prefetcher, inputs, to),
            Quant::Byte => expand::<ExpandBytes<false>>(s, reader, prefetcher, inputs, to),
            Quant::Table(_) => expand::<ExpandBytes<true>>(s, reader, prefetcher, inputs, to),
        }
    }
}

/// How the quants of a block become two-byte integers; chosen at compile time.
trait ExpandBlock {
    /// Lines of a block's quants.
    const LINES: usize;
    /// Expands a block to eight lines of high bytes and, a tile further, eight lines of low bytes.
    ///
    /// # Safety
    /// The block and its factors must be readable, and the lines writable.
    unsafe fn block(
        s: S,
        layout: &RowScaledPanel,
        quants: *const u8,
        factors: *const u8,
        to: *mut u8,
    );
    /// As [`PanelReader::next`].
    ///
    /// # Safety
    /// As for [`PanelReader::next`].
    unsafe fn next(s: S, reader: &mut PanelReader, most: usize) -> PanelBlocks;
}

/// Quants with `UPPER` bits above the fourth.
struct ExpandBits<const UPPER: usize>;

impl<const UPPER: usize> ExpandBlock for ExpandBits<UPPER> {
    const LINES: usize = 4 + UPPER;

    #[inline(always)]
    unsafe fn next(s: S, reader: &mut PanelReader, most: usize) -> PanelBlocks {
        // SAFETY: as the caller guarantees.
        unsafe { reader.next::<S, UPPER>(s, most) }
    }

    #[inline(always)]
    unsafe fn block(
        s: S,
        layout: &RowScaledPanel,
        quants: *const u8,
        factors: *const u8,
        to: *mut u8,
    ) {
        let centre = const { CENTRES[UPPER] as i16 };
        // The factors of the block's second half.
        let later = (layout.block_groups - 1) * LINE;
        // SAFETY: as the caller guarantees.
        unsafe {
            let lines = block_lines::<S, UPPER>(s, quants);
            let pairs = [s.load_bytes(factors), s.load_bytes(factors.add(later))];
            s.expand_block(lines, centre, pairs, to, TILE_ROWS * LINE);
        }
    }
}

/// Quants that are bytes, or indices into a table of bytes.
struct ExpandBytes<const TABLE: bool>;

impl<const TABLE: bool> ExpandBlock for ExpandBytes<TABLE> {
    const LINES: usize = stored_lines(TABLE);

    #[inline(always)]
    unsafe fn next(s: S, reader: &mut PanelReader, most: usize) -> PanelBlocks {
        // SAFETY: as the caller guarantees.
        unsafe { reader.next::<S, 0>(s, most) }
    }

    #[inline(always)]
    unsafe fn block(
        s: S,
        layout: &RowScaledPanel,
        quants: *const u8,
        factors: *const u8,
        to: *mut u8,
    ) {
        // SAFETY: as the caller guarantees.
        unsafe {
            let lines = quant_lines::<S, TABLE>(s, quants, layout.quant.table());
            let factors = s.load_bytes(factors);
            for line in 0..8 {
                let words = expand_line(s, lines[line], factors);
                s.store_planes_of_words(words, to.add(line * LINE), TILE_ROWS * LINE);
            }
        }
    }
}

/// As [`expand_inputs`], for one kind of quants.
///
/// # Safety
/// As for [`expand_inputs`].
#[inline(always)]
unsafe fn expand<E: ExpandBlock>(
    s: S,
    reader: &mut PanelReader,
    mut prefetcher: Option<&mut Prefetcher<'_>>,
    inputs: usize,
    to: *mut u8,
) {
    const HALF: usize = TILE_ROWS / 2 * LINE;
    let layout = reader.layout();
    let all = inputs / BLOCK;
    let mut block = 0;
    // SAFETY: as the caller guarantees.
    unsafe {
        while block < all {
            let blocks = E::next(s, reader, all - block);
            let (mut quants, mut factors) = (blocks.quants, blocks.factors);
            if let Some(prefetcher) = &mut prefetcher {
                prefetcher.consumed(blocks.header_bytes);
            }
            for _ in 0..blocks.count {
                if let Some(prefetcher) = &mut prefetcher {
                    prefetcher.reads(quants, E::LINES * LINE);
                }
                let to = to.add(block / 2 * STEP + block % 2 * HALF);
                E::block(s, &layout, quants, factors, to);
                quants = quants.add(blocks.quants_stride);
                factors = factors.add(blocks.factors_stride);
                block += 1;
            }
        }
        if !inputs.is_multiple_of(TILE) {
            // The missing half of the last tile meets zero activations, so it only has to be initialised.
            let tile = to.add(inputs / TILE * STEP + HALF);
            tile.write_bytes(0, HALF);
            tile.add(TILE_ROWS * LINE).write_bytes(0, HALF);
        }
    }
}
