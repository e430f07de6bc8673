//! Tile products of numbers in three bf16 parts: as exact as f32.

use super::{AmxTiles, TILE_ROW_BYTES};

/// The prefetch distance of columns in bytes: a block of columns if that fits L1, otherwise some steps of the depth.
fn prefetch_distance(block: usize) -> usize {
    const STEPS: usize = 4 * 3072;
    if block <= 2 * STEPS { block } else { STEPS }
}

/// The instructions of one step of a bf16x3 product. `left` and `right` load tiles with a part (0 is the most
/// significant); every line loads the operand that changed and multiplies.
macro_rules! split_product {
    (two_by_two) => {
        concat!(
            split_product!(left 0), split_product!(right 2048), split_product!(multiply),
            split_product!(ahead 0 64 128 192 256 320 384 448 512 576 640 704 768 832 896 960),
            split_product!(right 1024), split_product!(multiply),
            split_product!(left 1024), split_product!(multiply),
            split_product!(ahead 1024 1088 1152 1216 1280 1344 1408 1472 1536 1600 1664 1728 1792 1856 1920 1984),
            split_product!(right 0), split_product!(multiply),
            split_product!(left 2048), split_product!(multiply),
            split_product!(ahead 2048 2112 2176 2240 2304 2368 2432 2496 2560 2624 2688 2752 2816 2880 2944 3008),
            split_product!(left 0), split_product!(multiply),
        )
    };
    // Prefetches the columns of a later step: tile loads do not trigger the hardware prefetcher, and weights come from
    // memory.
    (ahead $($at:literal)*) => {
        concat!($(
            "prefetcht0 [{right} + {ahead} + ", $at, "]\n",
            "prefetcht0 [{next_right} + {ahead} + ", $at, "]\n",
        )*)
    };
    (four_ahead $($at:literal)*) => {
        concat!($(
            "prefetcht0 [{right} + {ahead} + ", $at, "]\n",
            "prefetcht0 [{second} + {ahead} + ", $at, "]\n",
            "prefetcht0 [{third} + {ahead} + ", $at, "]\n",
            "prefetcht0 [{fourth} + {ahead} + ", $at, "]\n",
        )*)
    };
    (left $part:literal) => {
        concat!(
            "tileloadd tmm4, [{left} + {line} + ", $part, "]\n",
            "tileloadd tmm5, [{next_left} + {line} + ", $part, "]\n",
        )
    };
    (right $part:literal) => {
        concat!(
            "tileloadd tmm6, [{right} + {line} + ", $part, "]\n",
            "tileloadd tmm7, [{next_right} + {line} + ", $part, "]\n",
        )
    };
    (multiply) => {
        "tdpbf16ps tmm0, tmm4, tmm6
        tdpbf16ps tmm1, tmm4, tmm7
        tdpbf16ps tmm2, tmm5, tmm6
        tdpbf16ps tmm3, tmm5, tmm7
        "
    };
    (one_by_four) => {
        concat!(
            "tileloadd tmm4, [{left} + {line}]\n",
            split_product!(four 2048),
            split_product!(four_ahead 2048 2112 2176 2240 2304 2368 2432 2496 2560 2624 2688 2752 2816 2880 2944 3008),
            split_product!(four 1024),
            "tileloadd tmm4, [{left} + {line} + 1024]\n",
            split_product!(four_ahead 1024 1088 1152 1216 1280 1344 1408 1472 1536 1600 1664 1728 1792 1856 1920 1984),
            split_product!(four 1024), split_product!(four 0),
            "tileloadd tmm4, [{left} + {line} + 2048]\n",
            split_product!(four_ahead 0 64 128 192 256 320 384 448 512 576 640 704 768 832 896 960),
            split_product!(four 0),
            "tileloadd tmm4, [{left} + {line}]\n",
            split_product!(four 0),
        )
    };
    (four $part:literal) => {
        concat!(
            "tileloadd tmm5, [{right} + {line} + ", $part, "]\n",
            "tdpbf16ps tmm0, tmm4, tmm5\n",
            "tileloadd tmm6, [{second} + {line} + ", $part, "]\n",
            "tdpbf16ps tmm1, tmm4, tmm6\n",
            "tileloadd tmm7, [{third} + {line} + ", $part, "]\n",
            "tdpbf16ps tmm2, tmm4, tmm7\n",
            "tileloadd tmm5, [{fourth} + {line} + ", $part, "]\n",
            "tdpbf16ps tmm3, tmm4, tmm5\n",
        )
    };
}

impl AmxTiles {
    /// Multiplies 32 rows with 32 columns of numbers in three bf16 parts, and stores the products as `[2, 2, 16, 16]`.
    /// A step covers 32 of the depth and has three tiles for sixteen rows or columns. All steps of the first sixteen
    /// are followed, `panel` bytes further, by those of the next sixteen.
    ///
    /// # Safety
    /// All operands must be readable, and `out` must hold the products. There must be at least one step.
    #[inline(always)]
    pub(crate) unsafe fn bf16x3_2x2(
        &self,
        left: *const u8,
        right: *const u8,
        panel: usize,
        steps: usize,
        out: *mut f32,
    ) {
        // SAFETY: `self` proves that the tiles are configured; the caller guarantees the memory. The tile registers are
        // named as clobbered.
        unsafe {
            std::arch::asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                split_product!(two_by_two),
                "add {left}, 3072",
                "add {next_left}, 3072",
                "add {right}, 3072",
                "add {next_right}, 3072",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{out} + {line}], tmm0",
                "tilestored [{out} + {line} + 1024], tmm1",
                "tilestored [{out} + {line} + 2048], tmm2",
                "tilestored [{out} + {line} + 3072], tmm3",
                left = inout(reg) left => _,
                next_left = inout(reg) left.wrapping_add(panel) => _,
                right = inout(reg) right => _,
                next_right = inout(reg) right.wrapping_add(panel) => _,
                steps = inout(reg) steps => _,
                out = in(reg) out,
                line = in(reg) TILE_ROW_BYTES,
                ahead = in(reg) prefetch_distance(2 * panel),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// As [`bf16x3_2x2`](AmxTiles::bf16x3_2x2), for sixteen rows and 64 columns: the products are `[4, 16, 16]`.
    ///
    /// # Safety
    /// As for [`bf16x3_2x2`](AmxTiles::bf16x3_2x2).
    #[inline(always)]
    pub(crate) unsafe fn bf16x3_1x4(
        &self,
        left: *const u8,
        right: *const u8,
        panel: usize,
        steps: usize,
        out: *mut f32,
    ) {
        // SAFETY: as above.
        unsafe {
            std::arch::asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                split_product!(one_by_four),
                "add {left}, 3072",
                "add {right}, 3072",
                "add {second}, 3072",
                "add {third}, 3072",
                "add {fourth}, 3072",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{out} + {line}], tmm0",
                "tilestored [{out} + {line} + 1024], tmm1",
                "tilestored [{out} + {line} + 2048], tmm2",
                "tilestored [{out} + {line} + 3072], tmm3",
                left = inout(reg) left => _,
                right = inout(reg) right => _,
                second = inout(reg) right.wrapping_add(panel) => _,
                third = inout(reg) right.wrapping_add(2 * panel) => _,
                fourth = inout(reg) right.wrapping_add(3 * panel) => _,
                steps = inout(reg) steps => _,
                out = in(reg) out,
                line = in(reg) TILE_ROW_BYTES,
                ahead = in(reg) prefetch_distance(4 * panel),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}
