//! Tile products of bf16 numbers, summed in f32.
//!
//! A product covers a depth of 32: `tdpbf16ps` sums the sixteen products at even and those at odd depths as two chains of fused
//! multiply-adds, and adds both to the accumulator. So the bits of a sum depend on the order of the products alone.

use super::{AmxTiles, TILE_ROW_BYTES};

impl AmxTiles {
    /// Adds the products of two tiles of rows and one or two tiles of columns over `steps` depths of 32 to the accumulators: 0 and 1
    /// are those of the first tile of rows, 2 and 3 those of the second. A step of rows has both tiles; the steps of the second tile
    /// of columns begin at `columns[1]`. The hint of the loads says that rows need not stay in L1.
    ///
    /// As in [`accumulate_planes`](AmxTiles::accumulate_planes), accumulators stay in registers from
    /// [`zero_accumulators`](AmxTiles::zero_accumulators) on.
    ///
    /// # Safety
    /// All steps must be readable, and there must be at least one.
    #[inline(always)]
    pub(crate) unsafe fn accumulate_bf16_steps<const COLUMN_TILES: usize>(
        &self,
        rows: *const u8,
        columns: [*const u8; 2],
        steps: usize,
    ) {
        macro_rules! accumulate {
            ($($line:literal),*) => {
                std::arch::asm!(
                    "2:",
                    $($line),*,
                    "add {rows}, 2048",
                    "add {first}, 1024",
                    "add {second}, 1024",
                    "dec {steps}",
                    "jnz 2b",
                    rows = inout(reg) rows => _,
                    first = inout(reg) columns[0] => _,
                    second = inout(reg) columns[1] => _,
                    steps = inout(reg) steps => _,
                    line = in(reg) TILE_ROW_BYTES,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly),
                )
            };
        }
        // SAFETY: `self` proves that the tiles are configured; the caller guarantees the memory. The tile registers are
        // named as clobbered.
        unsafe {
            match COLUMN_TILES {
                1 => accumulate!(
                    "tileloaddt1 tmm4, [{rows} + {line}]",
                    "tileloadd tmm6, [{first} + {line}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloaddt1 tmm5, [{rows} + {line} + 1024]",
                    "tdpbf16ps tmm2, tmm5, tmm6"
                ),
                _ => accumulate!(
                    "tileloaddt1 tmm4, [{rows} + {line}]",
                    "tileloadd tmm6, [{first} + {line}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{second} + {line}]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloaddt1 tmm5, [{rows} + {line} + 1024]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7"
                ),
            }
        }
    }

    /// Loads the accumulators as [`store_accumulators`](AmxTiles::store_accumulators) stored them.
    ///
    /// # Safety
    /// The sums must be readable.
    #[inline(always)]
    pub(crate) unsafe fn load_accumulators(&self, from: *const u8) {
        // SAFETY: `self` proves that the tiles are configured; the caller guarantees the memory.
        unsafe {
            std::arch::asm!(
                "tileloadd tmm0, [{from} + {line}]",
                "tileloadd tmm1, [{from} + {line} + 1024]",
                "tileloadd tmm2, [{from} + {line} + 2048]",
                "tileloadd tmm3, [{from} + {line} + 3072]",
                from = in(reg) from,
                line = in(reg) TILE_ROW_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, readonly),
            );
        }
    }
}
