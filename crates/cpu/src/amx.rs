//! Matrix tiles: eight registers of sixteen rows of 64 bytes, reached through assembly because Rust has no stable
//! intrinsics for them.

/// Whether the CPU has byte tiles and the system lets this process use them.
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
    // Leaf 7: bit 24 of EDX is AMX-TILE, bit 25 AMX-INT8.
    const TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILE_AND_INT8 == TILE_AND_INT8
}

/// Asks the kernel for the tiles' state to be kept over context switches; it is off until a process asks.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers and changes nothing but this process's permission.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// The tiles, set up while it lives: 0 holds activations, 1 and 2 weights, 3 and 4 products.
///
/// All are whole. Tiles of half the width take twice the time to load, so what is not to be multiplied is multiplied
/// with zeros.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Tiles(());

/// Rows of a tile, and columns of products.
pub(crate) const SIDE: usize = 16;
/// Bytes of a tile's row.
#[cfg(target_arch = "x86_64")]
const ROW: usize = 64;

#[cfg(target_arch = "x86_64")]
impl Tiles {
    /// # Safety
    /// [`available`] must have been true.
    pub(crate) unsafe fn new() -> Tiles {
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
        config.rows[..5].fill(SIDE as u8);
        config.row_bytes[..5].fill(ROW as u16);
        // SAFETY: the caller vouches for the instruction; the configuration is 64 bytes of a valid palette.
        unsafe {
            std::arch::asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly));
        }
        Tiles(())
    }

    /// Multiplies sixteen rows of 64 signed activations, `stride` bytes apart, with sixteen lines of weights, and stores
    /// the products as `[16, 16]`.
    ///
    /// # Safety
    /// All of that must be readable, and `out` have room for the products.
    #[inline(always)]
    pub(crate) unsafe fn multiply(
        &self,
        activations: *const u8,
        stride: usize,
        weights: *const u8,
        out: *mut i32,
    ) {
        // SAFETY: `self` says that tiles 0 to 3 are set up; the caller vouches for the memory. The tile registers are
        // named as clobbered.
        unsafe {
            std::arch::asm!(
                "tileloadd tmm0, [{activations} + {stride}]",
                "tileloadd tmm1, [{weights} + {line}]",
                "tilezero tmm3",
                // Signed activations times weights without a sign.
                "tdpbsud tmm3, tmm0, tmm1",
                "tilestored [{out} + {line}], tmm3",
                activations = in(reg) activations,
                stride = in(reg) stride,
                weights = in(reg) weights,
                out = in(reg) out,
                line = in(reg) ROW,
                out("tmm0") _, out("tmm1") _, out("tmm3") _,
                options(nostack),
            );
        }
    }

    /// Multiplies sixteen rows of 64 signed activations, `stride` bytes apart, with two tiles of weights, sixteen lines
    /// each, and stores the products as `[2, 16, 16]`.
    ///
    /// # Safety
    /// All of that must be readable, and `out` have room for the products.
    #[inline(always)]
    pub(crate) unsafe fn multiply_both(
        &self,
        activations: *const u8,
        stride: usize,
        weights: [*const u8; 2],
        out: *mut i32,
    ) {
        // SAFETY: `self` says that tiles 0 to 4 are set up; the caller vouches for the memory. The tile registers are
        // named as clobbered.
        unsafe {
            std::arch::asm!(
                "tileloadd tmm0, [{activations} + {stride}]",
                "tileloadd tmm1, [{first} + {line}]",
                "tilezero tmm3",
                // Signed activations times weights without a sign.
                "tdpbsud tmm3, tmm0, tmm1",
                "tileloadd tmm2, [{second} + {line}]",
                "tilezero tmm4",
                "tdpbsud tmm4, tmm0, tmm2",
                "tilestored [{out} + {line}], tmm3",
                "tilestored [{out} + {line} + 1024], tmm4",
                activations = in(reg) activations,
                stride = in(reg) stride,
                first = in(reg) weights[0],
                second = in(reg) weights[1],
                out = in(reg) out,
                line = in(reg) ROW,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                options(nostack),
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: tiles are set up, so the instruction exists; it only clears them.
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
