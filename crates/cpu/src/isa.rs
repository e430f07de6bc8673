//! Which instruction set the kernels use, and the one place where that choice becomes a call.

#[cfg(target_arch = "x86_64")]
use crate::simd::TileKernel;
use crate::simd::{IntegerKernel, Kernel};
use std::fmt;
use std::sync::OnceLock;

/// A tier of kernels. A tier other than `Generic` exists only after the CPU reported its features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Tier);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    Generic,
    Avx2,
    /// AVX2 with byte dot products.
    AvxVnni,
    Avx512,
    /// AVX-512 with byte dot products.
    Avx512Vnni,
    /// AVX-512 with byte dot products and matrix tiles.
    Amx,
}

/// The environment variable that forces a tier.
pub const ISA_VARIABLE: &str = "KVARK_ISA";

impl Isa {
    /// The tier that any CPU has.
    pub const GENERIC: Isa = Isa(Tier::Generic);

    /// The tiers this CPU has, slowest first.
    pub fn available() -> Vec<Isa> {
        let mut tiers = vec![Isa::GENERIC];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            let avx512 =
                avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq");
            let vnni = avx512 && has!("avx512vnni");
            let amx =
                vnni && has!("avx512vbmi") && has!("avx512fp16") && crate::simd::amx::available();
            let more = [
                (avx2, Tier::Avx2),
                (avx2 && has!("avxvnni"), Tier::AvxVnni),
                (avx512, Tier::Avx512),
                (vnni, Tier::Avx512Vnni),
                (amx, Tier::Amx),
            ];
            tiers.extend(
                more.into_iter()
                    .filter(|(has, _)| *has)
                    .map(|(_, tier)| Isa(tier)),
            );
        }
        tiers
    }

    /// The best tier, or the one that [`ISA_VARIABLE`] names; detected once per process.
    pub fn detect() -> Result<Isa, UnknownIsa> {
        static CHOICE: OnceLock<Result<Isa, UnknownIsa>> = OnceLock::new();
        CHOICE
            .get_or_init(|| Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref()))
            .clone()
    }

    fn choose(forced: Option<&str>) -> Result<Isa, UnknownIsa> {
        let tiers = Isa::available();
        match forced.filter(|name| !name.is_empty()) {
            None => Ok(*tiers.last().expect("generic is always there")),
            Some(name) => tiers
                .into_iter()
                .find(|t| t.name() == name)
                .ok_or_else(|| UnknownIsa(name.to_owned())),
        }
    }

    /// The name that [`ISA_VARIABLE`] takes.
    pub fn name(self) -> &'static str {
        match self.0 {
            Tier::Generic => "generic",
            Tier::Avx2 => "avx2",
            Tier::AvxVnni => "avxvnni",
            Tier::Avx512 => "avx512",
            Tier::Avx512Vnni => "avx512vnni",
            Tier::Amx => "amx",
        }
    }

    /// Whether the tier has matrix tiles.
    pub(crate) fn has_tiles(self) -> bool {
        self.0 == Tier::Amx
    }

    /// Runs a kernel compiled for this tier.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Tier::Generic => kernel.on_generic(),
            // SAFETY: an `Isa` of this tier is made only by `available`, after the CPU reported these features.
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 | Tier::AvxVnni => unsafe { kernel.on_avx2() },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 | Tier::Avx512Vnni | Tier::Amx => unsafe { kernel.on_avx512() },
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("only x86-64 has these tiers"),
        }
    }

    /// Runs an AMX kernel; the tier must have matrix tiles.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn run_tiles<K: TileKernel>(self, kernel: K) {
        assert!(self.has_tiles(), "{self} has no tiles");
        // SAFETY: an `Isa` of this tier is made only by `available`, after the CPU reported these features.
        unsafe { kernel.on_amx() }
    }

    /// Runs an integer kernel compiled for this tier.
    pub(crate) fn run_integers<K: IntegerKernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Tier::Generic => kernel.on_generic(),
            // SAFETY: an `Isa` of this tier is made only by `available`, after the CPU reported these features.
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => unsafe { kernel.on_avx2() },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Tier::AvxVnni => unsafe { kernel.on_avxvnni() },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => unsafe { kernel.on_avx512() },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512Vnni | Tier::Amx => unsafe { kernel.on_avx512vnni() },
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("only x86-64 has these tiers"),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The requested tier does not exist or is not supported by this CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownIsa(String);

impl fmt::Display for UnknownIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
        write!(
            f,
            "{ISA_VARIABLE}={} is not among this CPU's tiers: {}",
            self.0,
            names.join(", ")
        )
    }
}

impl std::error::Error for UnknownIsa {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_can_be_forced_and_an_unknown_one_is_named() {
        assert_eq!(Isa::choose(Some("generic")), Ok(Isa::GENERIC));
        assert_eq!(Isa::choose(None).ok(), Isa::available().pop());
        let error = Isa::choose(Some("sse9")).unwrap_err().to_string();
        assert!(
            error.starts_with("KVARK_ISA=sse9 is not among this CPU's tiers: generic"),
            "{error}"
        );
    }
}
