//! Activations of eight bits with a scale for every block, and a second plane where a block stands out.

use super::super::format::{BLOCK, LINE};
use super::super::task::QuantisedLinear;
use crate::isa::Isa;
use crate::simd::{IntegerKernel, LANES, RowScaledDot};

/// A block has a second plane if its largest activation is above this many times the root mean square of its row.
const OUTLIER: f32 = 5.0;
/// The largest magnitude of a quantised activation.
const MAX: f32 = 127.0;
/// Steps of the second plane in a step of the first.
const FINER: f32 = 254.0;
/// Blocks of a smaller magnitude are quantised to zeros: their inverse scale would not be finite.
const MIN_MAGNITUDE: f32 = 1e-30;
/// Numbers that are stored for a plane of a block: its scale, and for each half of the inputs what [`Sums`] says.
pub(super) const NUMBERS: usize = 4;
/// The most rows whose sums are in registers.
pub(super) const MAX_FEW_ROWS: usize = 4;

/// The numbers behind a block's scale.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sums {
    /// The sum of all inputs times the scale, for the mins.
    Whole,
    /// The sums of both halves times the scale.
    Halves,
    /// The sum of all inputs times -128, as an integer: the offset of signed quants.
    Offset,
}

/// Where a step's activations lie in scratch. Blocks of the same inputs of all rows are side by side.
#[derive(Clone, Copy)]
pub(in super::super) struct BlockScaledActivations {
    planes: *mut u8,
    numbers: *mut f32,
    /// Whether a block has a second plane.
    flags: *mut u8,
    rows: usize,
    pub(super) blocks: usize,
    sums: Sums,
}

// SAFETY: rows are written by one task each before any task reads them.
unsafe impl Send for BlockScaledActivations {}
// SAFETY: as above.
unsafe impl Sync for BlockScaledActivations {}

impl BlockScaledActivations {
    /// Bytes of both planes, their numbers and the flags.
    fn parts(linear: &QuantisedLinear) -> [usize; 3] {
        let blocks = linear.m.next_multiple_of(MAX_FEW_ROWS) * linear.k / BLOCK;
        [
            2 * blocks * BLOCK,
            2 * blocks * NUMBERS * size_of::<f32>(),
            blocks,
        ]
    }

    pub(in super::super) fn bytes(linear: &QuantisedLinear) -> usize {
        let bytes: usize = BlockScaledActivations::parts(linear).iter().sum();
        bytes.next_multiple_of(LINE)
    }

    /// The activations in `scratch`, whose address is a multiple of 64.
    pub(in super::super) fn in_scratch(
        scratch: *mut u8,
        linear: &QuantisedLinear,
    ) -> BlockScaledActivations {
        let [planes, numbers, _] = BlockScaledActivations::parts(linear);
        BlockScaledActivations {
            planes: scratch,
            numbers: scratch.wrapping_add(planes).cast(),
            flags: scratch.wrapping_add(planes + numbers),
            rows: linear.m.next_multiple_of(MAX_FEW_ROWS),
            blocks: linear.k / BLOCK,
            sums: match (linear.format.has_byte_quants(), linear.format.group) {
                (true, _) => Sums::Offset,
                (false, BLOCK) => Sums::Whole,
                _ => Sums::Halves,
            },
        }
    }

    #[inline(always)]
    fn index(&self, plane: usize, block: usize, row: usize) -> usize {
        (plane * self.blocks + block) * self.rows + row
    }

    /// The bytes of a plane of a block; those of the next row follow.
    #[inline(always)]
    pub(super) fn plane(&self, plane: usize, block: usize, row: usize) -> *mut u8 {
        self.planes
            .wrapping_add(self.index(plane, block, row) * BLOCK)
    }

    /// The numbers of a plane of a block; those of the next row follow.
    #[inline(always)]
    pub(super) fn numbers(&self, plane: usize, block: usize, row: usize) -> *mut f32 {
        self.numbers
            .wrapping_add(self.index(plane, block, row) * NUMBERS)
    }

    /// The bytes and the numbers of a plane of a block, for adjacent rows.
    #[inline(always)]
    pub(super) fn adjacent<const ROWS: usize>(
        &self,
        plane: usize,
        block: usize,
        first: usize,
    ) -> ([*const u8; ROWS], [*const f32; ROWS]) {
        let mut planes = [self.plane(plane, block, first).cast_const(); ROWS];
        let mut numbers = [self.numbers(plane, block, first).cast_const(); ROWS];
        for row in 1..ROWS {
            planes[row] = planes[0].wrapping_add(row * BLOCK);
            numbers[row] = numbers[0].wrapping_add(row * NUMBERS);
        }
        (planes, numbers)
    }

    #[inline(always)]
    pub(super) fn flag(&self, block: usize, row: usize) -> *mut u8 {
        self.flags.wrapping_add(self.index(0, block, row))
    }

    /// Quantises a row.
    ///
    /// # Safety
    /// The row's activations must be readable at `x`, and the row be laid out.
    pub(in super::super) unsafe fn quantise(self, isa: Isa, x: *const f32, row: usize) {
        isa.run_integers(QuantiseBlocks { x, row, to: self });
    }
}

/// Quantises one row.
struct QuantiseBlocks {
    x: *const f32,
    row: usize,
    to: BlockScaledActivations,
}

impl IntegerKernel for QuantiseBlocks {
    type Output = ();

    #[inline(always)]
    fn run<S: RowScaledDot>(self, s: S) {
        let QuantiseBlocks { x, row, to } = self;
        let k = to.blocks * BLOCK;
        // SAFETY: the kernel's constructor guarantees a row of `k` activations, and that the row is laid out.
        unsafe {
            // The largest magnitude of a block lies where its scale will be. All are found before the first is used, so that
            // no block waits for the one before it.
            let mut squares = s.zero();
            for block in 0..to.blocks {
                let x = x.add(block * BLOCK);
                let (first, last) = (s.load(x), s.load(x.add(LANES)));
                squares = s.fma(last, last, s.fma(first, first, squares));
                let top = s.max(
                    s.max(first, s.sub(s.zero(), first)),
                    s.max(last, s.sub(s.zero(), last)),
                );
                to.numbers(0, block, row).write(s.reduce_max(top));
            }
            let limit = OUTLIER * (s.reduce_sum(squares) / k as f32).sqrt();
            for block in 0..to.blocks {
                let x = x.add(block * BLOCK);
                let (first, last) = (s.load(x), s.load(x.add(LANES)));
                let top = to.numbers(0, block, row).read();
                let (scale, inverse) = if top < MIN_MAGNITUDE {
                    (0.0, 0.0)
                } else {
                    (top * (1.0 / MAX), MAX / top)
                };
                let inverses = s.splat(inverse);
                let rounded = [
                    s.round(s.mul(first, inverses)),
                    s.round(s.mul(last, inverses)),
                ];
                write_plane(s, &to, (0, block, row), rounded, scale);
                let has_second = top > limit;
                to.flag(block, row).write(u8::from(has_second));
                if has_second {
                    let (step, inverses) = (s.splat(-scale), s.splat(inverse * FINER));
                    let first = s.mul(s.fma(step, rounded[0], first), inverses);
                    let last = s.mul(s.fma(step, rounded[1], last), inverses);
                    let rounded = [s.round(first), s.round(last)];
                    write_plane(s, &to, (1, block, row), rounded, scale / FINER);
                }
            }
        }
    }
}

/// Writes a plane of a block: its bytes, its scale and its sums.
///
/// # Safety
/// The plane, block and row must be laid out.
#[inline(always)]
unsafe fn write_plane<S: RowScaledDot>(
    s: S,
    to: &BlockScaledActivations,
    (plane, block, row): (usize, usize, usize),
    halves: [S::V; 2],
    scale: f32,
) {
    // SAFETY: as the caller guarantees.
    unsafe {
        let bytes = to.plane(plane, block, row);
        s.store_i8(halves[0], bytes);
        s.store_i8(halves[1], bytes.add(LANES));
        let sums = [s.sum_of_bytes(bytes), s.sum_of_bytes(bytes.add(LANES))];
        let numbers = match to.sums {
            Sums::Whole => [scale, scale * (sums[0] + sums[1]) as f32, 0.0, 0.0],
            Sums::Halves => [scale, scale * sums[0] as f32, scale * sums[1] as f32, 0.0],
            Sums::Offset => {
                let offset = -128 * (sums[0] + sums[1]);
                [scale, f32::from_bits(offset as u32), 0.0, 0.0]
            }
        };
        to.numbers(plane, block, row)
            .cast::<[f32; 4]>()
            .write(numbers);
    }
}
