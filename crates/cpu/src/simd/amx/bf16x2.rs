//! Tile products of numbers in one or two bf16 parts.

use super::{AmxTiles, TILE_ROW_BYTES, TILE_ROWS};

/// The instructions of one step of a bf16x2 product: a part of the rows times a part of four tiles of columns. A product
/// that adds to the same sums as another must be four products away from it, or it waits.
macro_rules! two_part_product {
    ($rows:literal, $first:literal, $second:literal, $third:literal, $fourth:literal) => {
        concat!(
            "tileloadd tmm6, [{right} + {line} + ",
            $first,
            "]\n",
            "tdpbf16ps tmm0, ",
            $rows,
            ", tmm6\n",
            "tileloadd tmm7, [{right} + {line} + ",
            $second,
            "]\n",
            "tdpbf16ps tmm1, ",
            $rows,
            ", tmm7\n",
            "tileloadd tmm6, [{right} + {line} + ",
            $third,
            "]\n",
            "tdpbf16ps tmm2, ",
            $rows,
            ", tmm6\n",
            "tileloadd tmm7, [{right} + {line} + ",
            $fourth,
            "]\n",
            "tdpbf16ps tmm3, ",
            $rows,
            ", tmm7\n",
        )
    };
}

/// Rows of numbers in two bf16 parts, the left side of a product.
#[derive(Clone, Copy)]
pub(crate) struct Bf16x2Rows {
    /// The higher and the lower parts.
    pub(crate) parts: [*const u8; 2],
    /// Bytes from one row to the next.
    pub(crate) stride: usize,
}

impl AmxTiles {
    /// Adds the products of rows and 64 columns over a depth of 32 to the accumulators, numbers being in two bf16 parts.
    /// The product of both lower parts is left out. Columns are eight tiles: four of the higher parts, then four of the
    /// lower ones.
    ///
    /// As in [`accumulate_planes`](AmxTiles::accumulate_planes), accumulators stay in registers from
    /// [`zero_accumulators`](AmxTiles::zero_accumulators) on.
    ///
    /// # Safety
    /// The tiles must be readable.
    #[inline(always)]
    pub(crate) unsafe fn accumulate_bf16x2(&self, left: Bf16x2Rows, right: *const u8) {
        let [high, low] = left.parts;
        // SAFETY: `self` proves that the tiles are configured; the caller guarantees the memory. The tile registers are
        // named as clobbered.
        unsafe {
            std::arch::asm!(
                "tileloadd tmm4, [{high} + {stride}]",
                "tileloadd tmm5, [{low} + {stride}]",
                two_part_product!("tmm5", 0, 1024, 2048, 3072),
                two_part_product!("tmm4", 4096, 5120, 6144, 7168),
                two_part_product!("tmm4", 0, 1024, 2048, 3072),
                high = in(reg) high,
                low = in(reg) low,
                stride = in(reg) left.stride,
                right = in(reg) right,
                line = in(reg) TILE_ROW_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }

    /// Adds the products of two tiles of bf16 rows, `stride` bytes apart, and two tiles of columns over a depth of 32:
    /// accumulators 0 and 1 belong to the first tile of rows. Columns are in two parts: a tile of higher ones, then one of lower
    /// ones.
    ///
    /// As in [`accumulate_planes`](AmxTiles::accumulate_planes), accumulators stay in registers from
    /// [`zero_accumulators`](AmxTiles::zero_accumulators) on.
    ///
    /// # Safety
    /// The tiles must be readable.
    #[inline(always)]
    pub(crate) unsafe fn accumulate_bf16_wide(
        &self,
        rows: [*const u8; 2],
        stride: usize,
        columns: [*const u8; 2],
    ) {
        // SAFETY: `self` proves that the tiles are configured; the caller guarantees the memory. The tile registers are
        // named as clobbered.
        unsafe {
            std::arch::asm!(
                "tileloadd tmm4, [{first} + {stride}]",
                "tileloadd tmm6, [{left} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{right} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{second} + {stride}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{left} + {line} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{right} + {line} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                first = in(reg) rows[0],
                second = in(reg) rows[1],
                stride = in(reg) stride,
                left = in(reg) columns[0],
                right = in(reg) columns[1],
                line = in(reg) TILE_ROW_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }

    /// As [`accumulate_bf16_wide`](AmxTiles::accumulate_bf16_wide), for four tiles of rows, each with its accumulator, and one of
    /// columns, whose rows are `column_stride` bytes apart.
    ///
    /// # Safety
    /// The tiles must be readable.
    #[inline(always)]
    pub(crate) unsafe fn accumulate_bf16_narrow(
        &self,
        rows: [*const u8; 4],
        stride: usize,
        (columns, column_stride): (*const u8, usize),
    ) {
        // SAFETY: `self` proves that the tiles are configured; the caller guarantees the memory. The tile registers are
        // named as clobbered.
        unsafe {
            std::arch::asm!(
                "tileloadd tmm6, [{columns} + {column_stride}]",
                "tileloadd tmm4, [{first} + {stride}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{second} + {stride}]",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "tileloadd tmm7, [{low} + {column_stride}]",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tileloadd tmm4, [{third} + {stride}]",
                "tdpbf16ps tmm2, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm7",
                "tileloadd tmm5, [{fourth} + {stride}]",
                "tdpbf16ps tmm3, tmm5, tmm6",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                first = in(reg) rows[0],
                second = in(reg) rows[1],
                third = in(reg) rows[2],
                fourth = in(reg) rows[3],
                stride = in(reg) stride,
                columns = in(reg) columns,
                low = in(reg) columns.wrapping_add(TILE_ROWS * column_stride),
                column_stride = in(reg) column_stride,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }

    /// Stores the accumulators of [`accumulate_bf16x2`](AmxTiles::accumulate_bf16x2) as rows of 64 products, `stride` bytes
    /// apart.
    ///
    /// # Safety
    /// `out` must hold the products.
    #[inline(always)]
    pub(crate) unsafe fn store_bf16x2(&self, out: *mut f32, stride: usize) {
        // SAFETY: `self` proves that the tiles are configured; the caller guarantees the memory.
        unsafe {
            std::arch::asm!(
                "tilestored [{out} + {stride}], tmm0",
                "tilestored [{out} + {stride} + 64], tmm1",
                "tilestored [{out} + {stride} + 128], tmm2",
                "tilestored [{out} + {stride} + 192], tmm3",
                out = in(reg) out,
                stride = in(reg) stride,
                options(nostack),
            );
        }
    }

    /// Multiplies rows with sixteen columns over a depth of `32 · steps`, in the order of
    /// [`accumulate_bf16x2`](AmxTiles::accumulate_bf16x2), and stores the products; `right` is the first of the four tiles.
    ///
    /// # Safety
    /// All operands must be readable, and `out` must hold the products. There must be at least one step.
    #[inline(always)]
    pub(crate) unsafe fn bf16x2_one_tile(
        &self,
        left: Bf16x2Rows,
        right: *const u8,
        steps: usize,
        (out, out_stride): (*mut f32, usize),
    ) {
        let [high, low] = left.parts;
        // SAFETY: `self` proves that the tiles are configured; the caller guarantees the memory. The tile registers are
        // named as clobbered.
        unsafe {
            std::arch::asm!(
                "tilezero tmm0",
                "2:",
                "tileloadd tmm4, [{high} + {stride}]",
                "tileloadd tmm5, [{low} + {stride}]",
                "tileloadd tmm6, [{right} + {line}]",
                "tdpbf16ps tmm0, tmm5, tmm6",
                "tileloadd tmm7, [{right} + {line} + 4096]",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "add {high}, 64",
                "add {low}, 64",
                "add {right}, 8192",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{out} + {out_stride}], tmm0",
                high = inout(reg) high => _,
                low = inout(reg) low => _,
                stride = in(reg) left.stride,
                right = inout(reg) right => _,
                steps = inout(reg) steps => _,
                out = in(reg) out,
                out_stride = in(reg) out_stride,
                line = in(reg) TILE_ROW_BYTES,
                out("tmm0") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}
