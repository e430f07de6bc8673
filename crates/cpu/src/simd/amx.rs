//! AMX tile set-up and tile products: eight tile registers of sixteen rows of 64 bytes, in assembly because Rust has no
//! stable intrinsics for them.
//!
//! Measured on the machine that the kernels are tuned for (a Xeon of model 143): a product takes 5.5 to 7.3 ns, or 3.2
//! to 4.6 ns if its left side has at most eight rows; loading a tile takes 3 ns from L1 and about 10 ns from L2. After
//! 0.3 us without a product the unit is powered down, and the next product takes 0.27 to 0.3 us longer.

/// Whether the CPU has int8 and bf16 tiles and the OS lets this process use them.
pub(crate) fn available() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        static AVAILABLE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *AVAILABLE.get_or_init(|| detected() && permitted())
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn detected() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Leaf 7: bit 22 of EDX is AMX-BF16, bit 24 AMX-TILE, bit 25 AMX-INT8.
    const ALL: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & ALL == ALL
}

/// Requests that the kernel saves the tile state on context switches, which is off until a process requests it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers and changes nothing but this process's permission.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// The configured AMX state, released on drop.
///
/// All tiles have full size. Tiles of half the width take twice as long to load, so unused parts are multiplied with
/// zeros.
#[cfg(target_arch = "x86_64")]
pub(crate) struct AmxTiles(());

/// Rows of a tile, and columns of products.
pub(crate) const TILE_ROWS: usize = 16;
/// Bytes of a tile's row.
#[cfg(target_arch = "x86_64")]
const TILE_ROW_BYTES: usize = 64;

/// The instructions of one step of two-byte products, with the instruction that loads activations.
#[cfg(target_arch = "x86_64")]
macro_rules! plane_products {
    ($load:literal) => {
        concat!(
            $load,
            " tmm4, [{activations} + {line}]
            tileloadd tmm5, [{weights} + {line}]
            tdpbssd tmm0, tmm4, tmm5
            tileloadd tmm6, [{weights} + {line} + 1024]
            tdpbsud tmm1, tmm4, tmm6
            ",
            $load,
            " tmm7, [{activations} + {line} + 1024]
            tdpbssd tmm2, tmm7, tmm5
            tdpbsud tmm3, tmm7, tmm6"
        )
    };
}

#[cfg(target_arch = "x86_64")]
impl AmxTiles {
    /// Configures the tiles.
    ///
    /// # Safety
    /// [`available`] must have returned true.
    pub(crate) unsafe fn new() -> AmxTiles {
        // SAFETY: as the caller guarantees.
        unsafe { AmxTiles::with_rows(TILE_ROWS) }
    }

    /// Configures the tiles for left sides and products of fewer rows, which take less time: all tiles but 6 and 7.
    ///
    /// # Safety
    /// As for [`new`](AmxTiles::new).
    pub(crate) unsafe fn with_rows(rows: usize) -> AmxTiles {
        #[repr(C, align(64))]
        struct Config {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.rows[..6].fill(rows.clamp(1, TILE_ROWS) as u8);
        config.rows[6..8].fill(TILE_ROWS as u8);
        config.row_bytes[..8].fill(TILE_ROW_BYTES as u16);
        // SAFETY: the caller guarantees the instruction; the configuration is 64 bytes of a valid palette.
        unsafe {
            std::arch::asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly));
        }
        AmxTiles(())
    }

    /// Multiplies the current contents of the tiles, four times per iteration: the peak rate.
    pub(crate) fn peak_loop(&self, turns: usize) {
        if turns == 0 {
            return;
        }
        // SAFETY: `self` proves that the tiles are configured; nothing else is touched, and they are named as
        // clobbered.
        unsafe {
            std::arch::asm!(
                "2:",
                "tdpbsud tmm0, tmm4, tmm6",
                "tdpbsud tmm1, tmm4, tmm7",
                "tdpbsud tmm2, tmm5, tmm6",
                "tdpbsud tmm3, tmm5, tmm7",
                "dec {turns}",
                "jnz 2b",
                turns = inout(reg) turns => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem),
            );
        }
    }

    /// Zeroes the accumulators of [`accumulate_planes`](AmxTiles::accumulate_planes).
    #[inline(always)]
    pub(crate) fn zero_accumulators(&self) {
        // SAFETY: `self` proves that the tiles are configured; nothing else is touched.
        unsafe {
            std::arch::asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem),
            );
        }
    }

    /// Adds the products of a step. A step has a tile of high bytes (64 of each row or column) followed by a tile of
    /// low bytes, for activations and for weights; the low bytes of weights are unsigned.
    ///
    /// The accumulators stay in tile registers 0 to 3 from [`zero_accumulators`](AmxTiles::zero_accumulators) to
    /// [`store_accumulators`](AmxTiles::store_accumulators), across several blocks of assembly. The language does not
    /// guarantee that: a block can name tile registers as clobbered, not as inputs. It relies on three facts. The crate
    /// enables no AMX target feature, so the compiler itself never allocates a tile register. Tile registers are
    /// caller-saved, so a function called in between may change them only if it uses AMX, and between these calls only
    /// vector code and prefetches run. The kernel saves tile registers when it switches threads. Tests compare the sums
    /// with those of the vector kernels bit for bit, so a toolchain that breaks one of the facts fails them.
    ///
    /// # Safety
    /// The four tiles must be readable.
    #[inline(always)]
    pub(crate) unsafe fn accumulate_planes(&self, activations: *const u8, weights: *const u8) {
        // SAFETY: `self` proves that the tiles are configured; the caller guarantees the memory. The tile registers are
        // named as clobbered.
        unsafe {
            std::arch::asm!(
                plane_products!("tileloadd"),
                activations = in(reg) activations,
                weights = in(reg) weights,
                line = in(reg) TILE_ROW_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }

    /// As [`accumulate_planes`](AmxTiles::accumulate_planes), with a hint that activations need not stay in L1.
    ///
    /// # Safety
    /// The four tiles must be readable.
    #[inline(always)]
    pub(crate) unsafe fn accumulate_streamed_planes(
        &self,
        activations: *const u8,
        weights: *const u8,
    ) {
        // SAFETY: as for `accumulate_planes`.
        unsafe {
            std::arch::asm!(
                plane_products!("tileloaddt1"),
                activations = in(reg) activations,
                weights = in(reg) weights,
                line = in(reg) TILE_ROW_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }

    /// As [`accumulate_planes`](AmxTiles::accumulate_planes) for eight rows of activations, whose high bytes are the upper
    /// half of a tile and whose low bytes are the lower half. Accumulators 0 and 1 get the products.
    ///
    /// # Safety
    /// The three tiles must be readable.
    #[inline(always)]
    pub(crate) unsafe fn accumulate_joint_planes(
        &self,
        activations: *const u8,
        weights: *const u8,
    ) {
        // SAFETY: as for `accumulate_planes`.
        unsafe {
            std::arch::asm!(
                "tileloadd tmm4, [{activations} + {line}]",
                "tileloadd tmm5, [{weights} + {line}]",
                "tdpbssd tmm0, tmm4, tmm5",
                "tileloadd tmm6, [{weights} + {line} + 1024]",
                "tdpbsud tmm1, tmm4, tmm6",
                activations = in(reg) activations,
                weights = in(reg) weights,
                line = in(reg) TILE_ROW_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
                options(nostack, readonly),
            );
        }
    }

    /// Stores the accumulators of [`accumulate_planes`](AmxTiles::accumulate_planes): the products of high with high,
    /// high with low, low with high and low with low bytes as `[4, 16, 16]`.
    ///
    /// # Safety
    /// `out` must hold the products.
    #[inline(always)]
    pub(crate) unsafe fn store_accumulators(&self, out: *mut i32) {
        // SAFETY: `self` proves that the tiles are configured; the caller guarantees the memory.
        unsafe {
            std::arch::asm!(
                "tilestored [{out} + {line}], tmm0",
                "tilestored [{out} + {line} + 1024], tmm1",
                "tilestored [{out} + {line} + 2048], tmm2",
                "tilestored [{out} + {line} + 3072], tmm3",
                out = in(reg) out,
                line = in(reg) TILE_ROW_BYTES,
                options(nostack),
            );
        }
    }
}

/// The prefetch distance of columns in bytes: a block of columns if that fits L1, otherwise some steps of the depth.
#[cfg(target_arch = "x86_64")]
fn prefetch_distance(block: usize) -> usize {
    const STEPS: usize = 4 * 3072;
    if block <= 2 * STEPS { block } else { STEPS }
}

/// The instructions of one step of a bf16x3 product. `left` and `right` load tiles with a part (0 is the most
/// significant); every line loads the operand that changed and multiplies.
#[cfg(target_arch = "x86_64")]
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

#[cfg(target_arch = "x86_64")]
impl AmxTiles {
    /// Multiplies 32 rows with 32 columns of numbers in three bf16 parts, and stores the products as `[2, 2, 16, 16]`.
    /// A step covers 32 of the depth and has three tiles for sixteen rows or columns. All steps of the first sixteen
    /// are followed, `strip` bytes further, by those of the next sixteen.
    ///
    /// # Safety
    /// All operands must be readable, and `out` must hold the products. There must be at least one step.
    #[inline(always)]
    pub(crate) unsafe fn bf16x3_2x2(
        &self,
        left: *const u8,
        right: *const u8,
        strip: usize,
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
                next_left = inout(reg) left.wrapping_add(strip) => _,
                right = inout(reg) right => _,
                next_right = inout(reg) right.wrapping_add(strip) => _,
                steps = inout(reg) steps => _,
                out = in(reg) out,
                line = in(reg) TILE_ROW_BYTES,
                ahead = in(reg) prefetch_distance(2 * strip),
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
        strip: usize,
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
                second = inout(reg) right.wrapping_add(strip) => _,
                third = inout(reg) right.wrapping_add(2 * strip) => _,
                fourth = inout(reg) right.wrapping_add(3 * strip) => _,
                steps = inout(reg) steps => _,
                out = in(reg) out,
                line = in(reg) TILE_ROW_BYTES,
                ahead = in(reg) prefetch_distance(4 * strip),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// The instructions of one step of a bf16x2 product: a part of the rows times a part of four tiles of columns. A product
/// that adds to the same sums as another must be four products away from it, or it waits.
#[cfg(target_arch = "x86_64")]
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
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Bf16x2Rows {
    /// The higher and the lower parts.
    pub(crate) parts: [*const u8; 2],
    /// Bytes from one row to the next.
    pub(crate) stride: usize,
}

#[cfg(target_arch = "x86_64")]
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

#[cfg(target_arch = "x86_64")]
impl Drop for AmxTiles {
    fn drop(&mut self) {
        // SAFETY: the tiles are configured, so the instruction exists; it only clears them.
        unsafe {
            std::arch::asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem),
            );
        }
    }
}
