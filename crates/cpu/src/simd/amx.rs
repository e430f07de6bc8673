//! AMX tile set-up and tile products: eight tile registers of sixteen rows of 64 bytes, in assembly because Rust has no
//! stable intrinsics for them.
//!
//! Measured on the machine that the kernels are tuned for (a Xeon of model 143): a product takes 5.5 to 7.3 ns, or 3.2
//! to 4.6 ns if its left side has at most eight rows; loading a tile takes 3 ns from L1 and about 10 ns from L2. After
//! 0.3 us without a product the unit is powered down, and the next product takes 0.27 to 0.3 us longer.

#[cfg(target_arch = "x86_64")]
mod bf16;
#[cfg(target_arch = "x86_64")]
mod bf16x2;
#[cfg(target_arch = "x86_64")]
mod bf16x3;

#[cfg(target_arch = "x86_64")]
pub(crate) use bf16x2::Bf16x2Rows;

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
/// Tiles have full size unless a constructor says otherwise. Tiles of half the width take twice as long to load, so unused
/// parts are multiplied with zeros.
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
        // SAFETY: as the caller guarantees.
        unsafe { AmxTiles::configure(rows, TILE_ROW_BYTES) }
    }

    /// Configures the tiles for right sides and products of one column: all tiles but 4 and 5.
    ///
    /// # Safety
    /// As for [`new`](AmxTiles::new).
    pub(crate) unsafe fn with_one_column() -> AmxTiles {
        // SAFETY: as the caller guarantees.
        unsafe { AmxTiles::configure(TILE_ROWS, size_of::<f32>()) }
    }

    unsafe fn configure(rows: usize, column_bytes: usize) -> AmxTiles {
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
        config.row_bytes[..8].fill(column_bytes as u16);
        config.row_bytes[4..6].fill(TILE_ROW_BYTES as u16);
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
