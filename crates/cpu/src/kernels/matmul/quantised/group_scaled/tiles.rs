//! Expanded strips times many rows of activations, on AMX tiles.
//!
//! The tiles compute the same exact integers as the vector microkernel, and the f32 operations that follow are the same
//! in the same order, so both paths are bit-identical.

use super::super::format::{BLOCK, LINE, Quant};
use super::super::{StripTask, write};
use super::activations::{GroupScaledActivations, InterleavedRows};
use super::microkernel::{LoadQuants, StripScales, with_quants};
use crate::simd::amx::{AmxTiles, TILE_ROWS};
use crate::simd::{Avx512, IntDot, Simd, TileKernel};

/// The only tier with AMX tiles.
type S = Avx512<true>;

/// Products of the high and the low bytes of activations.
const PRODUCTS: usize = 2 * TILE_ROWS * TILE_ROWS;

/// Groups whose products wait to be scaled, so that tiles and vectors work at the same time.
const BUFFERS: usize = 4;

#[repr(align(64))]
struct GroupProducts([[i32; PRODUCTS]; BUFFERS]);

impl GroupProducts {
    /// Multiplies a group of sixteen rows with its weights. Tiles run ahead of the vectors by [`BUFFERS`] groups.
    ///
    /// # Safety
    /// As for [`run_tiles`].
    #[inline(always)]
    unsafe fn fill(
        &mut self,
        tiles: &AmxTiles,
        group: usize,
        x: InterleavedRows,
        weights: *const u8,
    ) {
        let to = self.0[group % BUFFERS].as_mut_ptr();
        // SAFETY: as the caller guarantees.
        unsafe {
            let x = x.block(group).cast_const();
            let quants = weights.add((LEAD + group * SPACING) * LINE);
            tiles.multiply_two(x, LINE, [quants, quants.sub(PLANE * LINE)], to);
        }
    }
}

/// Repeats `$body` for the rows of a tile with `$R` as a constant, so that the rows' sums stay in registers.
macro_rules! each_row {
    ($R:ident => $body:block) => {
        each_row!($R => $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($R:ident => $body:block, $($row:literal)*) => {$({
        const $R: usize = $row;
        $body
    })*};
}

/// The AMX kernel for the strips of a task and all rows of activations.
pub(super) struct GroupScaledTiles<'a>(pub(super) StripTask<'a, GroupScaledActivations>);

/// Lines from one group's quants to the next in an expanded strip: the quants, then zeros. A tile of sixteen lines can
/// be loaded at an offset where the quants meet the group's own activation bytes and all other bytes meet zeros.
const SPACING: usize = TILE_ROWS;
/// Lines of zeros before the first group: the largest offset at which a tile starts before its quants.
const LEAD: usize = 8;
/// Lines that meet high bytes; as many lines follow that meet low bytes.
const PLANE: usize = TILE_ROWS / 2;

/// Bytes of an expanded strip with `groups` groups.
pub(super) fn expanded_strip_bytes(groups: usize) -> usize {
    (LEAD + groups * SPACING) * LINE
}

impl TileKernel for GroupScaledTiles<'_> {
    #[inline(always)]
    fn run(self, s: S) {
        let format = self.0.linear.format;
        // SAFETY: `QuantisedLinear::run` takes this path only on a tier with tiles; its caller guarantees the operands.
        unsafe {
            with_quants!(format.quant, L => run_tiles::<L>(s, &self.0));
        }
    }
}

/// # Safety
/// As for [`super::QuantisedLinear::run`], within the task's strips; tiles must be available.
#[inline(always)]
unsafe fn run_tiles<L: LoadQuants>(s: S, task: &StripTask<'_, GroupScaledActivations>) {
    let linear = &task.linear;
    let strip_bytes = linear.format.strip_bytes(linear.k);
    let mut products = GroupProducts([[0; PRODUCTS]; BUFFERS]);
    // SAFETY: as the caller guarantees. Activations are laid out for whole tiles of rows, and the scratch holds the
    // task's expanded strips.
    unsafe {
        let tiles = AmxTiles::new();
        let spread = expanded_strip_bytes(linear.k / BLOCK);
        for (i, strip) in task.strips.clone().enumerate() {
            let start = task.operands.weight.add(strip * strip_bytes);
            expand_strip::<L>(s, task, start, task.expanded.add(i * spread));
        }
        for first in (0..linear.m).step_by(TILE_ROWS) {
            let rows = (linear.m - first).min(TILE_ROWS);
            for (i, strip) in task.strips.clone().enumerate() {
                let start = task.operands.weight.add(strip * strip_bytes);
                let weights = task.expanded.add(i * spread).cast_const();
                let scales = StripScales::of(linear.format, linear.k, start);
                tile(
                    s,
                    task,
                    &tiles,
                    (weights, scales),
                    (first, rows),
                    strip,
                    &mut products,
                );
            }
        }
    }
}

/// Computes sixteen rows and sixteen columns of the result.
///
/// # Safety
/// As for [`run_tiles`].
#[inline(always)]
unsafe fn tile(
    s: S,
    task: &StripTask<'_, GroupScaledActivations>,
    tiles: &AmxTiles,
    (weights, scales): (*const u8, StripScales),
    (first, rows): (usize, usize),
    strip: usize,
    products: &mut GroupProducts,
) {
    let linear = &task.linear;
    let count = linear.k / BLOCK;
    // SAFETY: as the caller guarantees; sixteen rows of activations are laid out from `first` on, used or not.
    unsafe {
        let x = task.activations.rows(first);
        let mut out = [s.zero(); TILE_ROWS];
        for group in 0..count.min(BUFFERS) {
            products.fill(tiles, group, x, weights);
        }
        for group in 0..count {
            let done = products.0[group % BUFFERS].as_ptr();
            let scale = scales.get(s, group);
            let x_group = x.group(group).cast_const();
            each_row!(R => {
                let x = *x_group.add(R);
                let sums = s.load_sums(done.add(R * TILE_ROWS), done.add((TILE_ROWS + R) * TILE_ROWS));
                let total = s.sums_to_f32(sums, x.offset);
                out[R] = s.fma(total, s.mul(scale, s.splat(x.scale)), out[R]);
            });
            if group + BUFFERS < count {
                products.fill(tiles, group + BUFFERS, x, weights);
            }
        }
        for (r, out) in out.iter().enumerate().take(rows) {
            write(s, task, first + r, strip, *out);
        }
    }
}

/// Writes a packed strip as byte operands of AMX tiles, zero-padded between groups.
///
/// # Safety
/// A packed strip must be at `from` and its expansion fit at `to`.
#[inline(always)]
unsafe fn expand_strip<L: LoadQuants>(
    s: S,
    task: &StripTask<'_, GroupScaledActivations>,
    from: *const u8,
    to: *mut u8,
) {
    let block_bytes = task.linear.format.block_bytes();
    // SAFETY: as the caller guarantees.
    unsafe {
        to.write_bytes(0, expanded_strip_bytes(task.linear.k / BLOCK));
        for block in 0..task.linear.k / BLOCK {
            for line in 0..BLOCK / 4 {
                let quants = from.add(block * block_bytes);
                let bytes = L::line(s, quants, line / 4, line % 4);
                let tile = to.add((LEAD + block * SPACING) * LINE);
                s.store_line(tile.add(line * LINE), bytes);
            }
        }
    }
}
