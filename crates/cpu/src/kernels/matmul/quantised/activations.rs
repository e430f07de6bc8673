//! Activations as 14-bit integers with a scale per chunk of a row.

use super::factors::centre;
use super::format::{BLOCK, LINE, PackedFormat};
use crate::simd::{IntegerKernel, LANES, MAX_ROW_SCALED, RowScaledDot};
use std::ops::Range;

/// The most inputs of a chunk: the sum of that many products of the largest weight with an activation byte fits 32
/// bits.
pub(super) const CHUNK: usize = 960;
/// Inputs of a row of an AMX tile; chunks start at multiples of it.
pub(super) const TILE: usize = 64;
/// The most rows that are stored interleaved.
pub(super) const MAX_INTERLEAVED_ROWS: usize = 16;
/// The most rows whose high and low bytes share a tile.
pub(super) const HALF_TILE_ROWS: usize = 8;
/// Bytes of a plane of a block.
const PLANE: usize = BLOCK;
/// Chunks of a smaller magnitude are quantised to zeros: their inverse scale would not be finite.
const MIN_MAGNITUDE: f32 = 1e-30;

/// The sizes of a step's quantised activations.
///
/// Rows are interleaved in sets of sixteen, or all of them if there are fewer. For vectors, a block of a row is a line:
/// 32 high bytes, then 32 low bytes; for byte quants it is two lines, as [`RowScaledDot::store_word_pairs`] writes them. For AMX tiles, two blocks are a line of high bytes and a line of low bytes, so eight
/// interleaved rows are a tile with the high bytes in the upper and the low bytes in the lower half.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowScaledLayout {
    tiled: bool,
    /// Whether vectors multiply the activations as pairs of two-byte integers.
    word_pairs: bool,
    pub(super) interleaved_rows: usize,
    rows: usize,
    k: usize,
    /// Inputs of a group, and groups of a row whose sums are stored.
    group: usize,
    groups: usize,
    /// The centre of the weights' quants.
    centre: i32,
    /// The number of chunks, and the tiles of a chunk: quotient and remainder.
    pub(super) chunks: usize,
    chunk_tiles: [usize; 2],
}

impl RowScaledLayout {
    /// The layout of `m` rows of `k` activations.
    pub(crate) fn new(format: &PackedFormat, m: usize, k: usize, tiled: bool) -> RowScaledLayout {
        let least = if tiled { HALF_TILE_ROWS } else { 1 };
        let interleaved_rows = m.next_power_of_two().clamp(least, MAX_INTERLEAVED_ROWS);
        let (tiles, chunks) = (k.div_ceil(TILE), k.div_ceil(CHUNK));
        RowScaledLayout {
            tiled,
            word_pairs: !tiled && format.has_byte_quants(),
            interleaved_rows,
            rows: m.next_multiple_of(interleaved_rows),
            k,
            group: format.group,
            groups: if format.has_byte_quants() {
                0
            } else {
                k / format.group
            },
            centre: centre(format),
            chunks,
            chunk_tiles: [tiles / chunks.max(1), tiles % chunks.max(1)],
        }
    }

    /// Numbers that are stored for a group: the sums of its high and low bytes times 65536, and for centred quants the
    /// same sums times minus the centre.
    fn sum_words(&self) -> usize {
        if self.centre == 0 { 2 } else { 4 }
    }

    /// Lines of a row.
    fn lines(&self) -> usize {
        self.k.next_multiple_of(TILE) / if self.word_pairs { LANES } else { BLOCK }
    }

    /// The inputs of every chunk: whole tiles, divided as evenly as possible.
    #[inline(always)]
    pub(super) fn chunk_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let RowScaledLayout {
            k,
            chunks,
            chunk_tiles: [each, rest],
            ..
        } = *self;
        // The next boundary in tiles, and the remainder of its division; a division per chunk would take longer.
        let (mut boundary, mut remainder) = (0, 0);
        (0..chunks).map(move |_| {
            let start = boundary * TILE;
            (boundary, remainder) = (boundary + each, remainder + rest);
            if remainder >= chunks {
                (boundary, remainder) = (boundary + 1, remainder - chunks);
            }
            start..(boundary * TILE).min(k)
        })
    }

    /// Bytes of all lines, of all sums and of all scales. The rows are followed by padding for rows that a kernel reads
    /// but does not use.
    fn parts(&self) -> [usize; 3] {
        let rows = self.rows + MAX_INTERLEAVED_ROWS;
        [
            rows * self.lines() * LINE,
            rows * self.groups * self.sum_words() * size_of::<i32>(),
            rows * self.chunks * size_of::<f32>(),
        ]
    }

    /// Bytes of all activations.
    pub(crate) fn bytes(&self) -> usize {
        self.parts().iter().sum::<usize>().next_multiple_of(LINE)
    }
}

/// A step's quantised activations in scratch.
#[derive(Clone, Copy)]
pub(crate) struct RowScaledActivations {
    lines: *mut u8,
    sums: *mut i32,
    scales: *mut f32,
    pub(super) layout: RowScaledLayout,
}

// SAFETY: rows are written by one task each before any task reads them.
unsafe impl Send for RowScaledActivations {}
// SAFETY: as above.
unsafe impl Sync for RowScaledActivations {}

impl RowScaledActivations {
    /// The activations laid out in `scratch`, whose address is a multiple of 64.
    pub(crate) fn at(scratch: *mut u8, layout: RowScaledLayout) -> RowScaledActivations {
        let [lines, sums, _] = layout.parts();
        RowScaledActivations {
            lines: scratch,
            sums: scratch.wrapping_add(lines).cast(),
            scales: scratch.wrapping_add(lines + sums).cast(),
            layout,
        }
    }

    /// The position of number `index` of a row's `count` numbers; the same number of the next row follows it.
    #[inline(always)]
    fn index(&self, row: usize, count: usize, index: usize) -> usize {
        let interleaved_rows = self.layout.interleaved_rows;
        // A power of two, so no division is needed.
        let beside = row & (interleaved_rows - 1);
        (row - beside) * count + index * interleaved_rows + beside
    }

    /// A line of a row; the same line of the next row follows it.
    ///
    /// # Safety
    /// The row must be laid out and have the line.
    #[inline(always)]
    pub(super) unsafe fn line(&self, row: usize, line: usize) -> *mut u8 {
        // SAFETY: as the caller guarantees.
        unsafe {
            let index = self.index(row, self.layout.lines(), line);
            self.lines.add(index * LINE)
        }
    }

    /// The high and the low bytes of a block.
    ///
    /// # Safety
    /// The row must be laid out and have the block.
    #[inline(always)]
    unsafe fn planes(&self, row: usize, block: usize) -> [*mut u8; 2] {
        // SAFETY: as the caller guarantees.
        unsafe {
            if self.layout.tiled {
                let at = block % 2 * PLANE;
                [0, 1].map(|plane| self.line(row, block / 2 * 2 + plane).add(at))
            } else {
                let line = self.line(row, block);
                [line, line.add(PLANE)]
            }
        }
    }

    /// The [sums](RowScaledLayout::sum_words) of a group; those of the next row follow.
    ///
    /// # Safety
    /// The row must be laid out and have the group.
    #[inline(always)]
    pub(super) unsafe fn sums(&self, row: usize, group: usize) -> *mut i32 {
        let words = self.layout.sum_words();
        // SAFETY: as the caller guarantees.
        unsafe {
            let index = self.index(row, self.layout.groups, group);
            self.sums.add(index * words)
        }
    }

    /// The scale of a chunk; that of the next row follows it.
    ///
    /// # Safety
    /// The row must be laid out and have the chunk.
    #[inline(always)]
    pub(super) unsafe fn scale(&self, row: usize, chunk: usize) -> *mut f32 {
        // SAFETY: as the caller guarantees.
        unsafe { self.scales.add(self.index(row, self.layout.chunks, chunk)) }
    }
}

/// Quantises one row.
pub(super) struct QuantiseRowScaled {
    pub(super) x: *const f32,
    pub(super) row: usize,
    pub(super) to: RowScaledActivations,
}

impl IntegerKernel for QuantiseRowScaled {
    type Output = ();

    #[inline(always)]
    fn run<S: RowScaledDot>(self, s: S) {
        let layout = self.to.layout;
        // SAFETY: the kernel's constructor guarantees a row of `k` activations, a multiple of the block, and that the
        // row is laid out.
        unsafe {
            for (chunk, inputs) in layout.chunk_ranges().enumerate() {
                let mut top = s.zero();
                for at in inputs.clone().step_by(LANES) {
                    let x = s.load(self.x.add(at));
                    top = s.max(top, s.max(x, s.sub(s.zero(), x)));
                }
                let top = s.reduce_max(top);
                let (scale, inverse) = if top < MIN_MAGNITUDE {
                    (0.0, 0.0)
                } else {
                    (top / MAX_ROW_SCALED, MAX_ROW_SCALED / top)
                };
                self.to.scale(self.row, chunk).write(scale);
                let blocks = inputs.start / BLOCK..inputs.end / BLOCK;
                if layout.word_pairs {
                    for at in inputs.step_by(LANES) {
                        let x = s.load(self.x.add(at));
                        let x = s.round(s.mul(x, s.splat(inverse)));
                        s.store_word_pairs(x, self.to.line(self.row, at / LANES));
                    }
                    continue;
                }
                for block in blocks.clone() {
                    let [high, low] = self.to.planes(self.row, block);
                    for at in (0..BLOCK).step_by(LANES) {
                        let x = self.x.add(block * BLOCK + at);
                        // The next chunk or row is read while this one is stored.
                        s.prefetch(x.wrapping_add(inputs.len()).cast());
                        let x = s.load(x);
                        let x = s.round(s.mul(x, s.splat(inverse)));
                        s.store_planes(x, high.add(at), low.add(at));
                    }
                }
                if layout.groups > 0 && !layout.tiled {
                    for block in blocks {
                        self.write_sums(s, block);
                    }
                }
            }
            if layout.tiled && !layout.k.is_multiple_of(TILE) {
                for plane in self.to.planes(self.row, layout.k / BLOCK) {
                    plane.write_bytes(0, PLANE);
                }
            }
        }
    }
}

impl QuantiseRowScaled {
    /// Writes the sums of the high and low bytes of a block's groups.
    ///
    /// # Safety
    /// The block must be one of the row's, and quantised.
    #[inline(always)]
    unsafe fn write_sums<S: RowScaledDot>(&self, s: S, block: usize) {
        let RowScaledLayout { group, centre, .. } = self.to.layout;
        let count = BLOCK / group;
        // SAFETY: as the caller guarantees; a group is one or two vectors long.
        unsafe {
            let [high, low] = self.to.planes(self.row, block);
            for i in 0..count {
                let mut sums = [0; 2];
                for at in (i * group..(i + 1) * group).step_by(LANES) {
                    sums[0] += s.sum_of_bytes(high.add(at));
                    sums[1] += s.sum_of_bytes(low.add(at));
                }
                let to = self.to.sums(self.row, block * count + i);
                to.cast::<[i32; 2]>().write(sums.map(|sum| sum << 16));
                if centre > 0 {
                    let offsets = sums.map(|sum| -centre * sum);
                    to.add(2).cast::<[i32; 2]>().write(offsets);
                }
            }
        }
    }
}
