//! Compiles every kernel for every supported architecture. NVRTC needs no GPU; without it the test says so.

use cuda::{CudaErrorKind, NVRTC_VARIABLE, Unit, compile};
use std::io::Write;

/// Architectures of A100, H100 and H200, and B200.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];
/// The most bytes that a kernel may spill: the sums that products of many rows keep between ranges.
const MAX_SPILLS: u32 = 320;

/// `KVARK_NVRTC` names NVRTC's library; then a missing library is an error.
#[test]
fn every_kernel_compiles_for_every_architecture() {
    let required = std::env::var_os(NVRTC_VARIABLE).is_some();
    let mut kernels = 0;
    for arch in ARCHITECTURES {
        for unit in Unit::all() {
            let compiled = match compile(unit, arch) {
                Ok(compiled) => compiled,
                Err(error) if !required && matches!(error.kind(), CudaErrorKind::NoCompiler) => {
                    let _ = writeln!(std::io::stderr(), "skipped: {error}");
                    return;
                }
                Err(error) => panic!("{error}"),
            };
            assert!(
                compiled.cubin.starts_with(b"\x7fELF"),
                "{arch} {}",
                unit.name()
            );
            for line in compiled
                .report
                .lines()
                .filter(|line| line.contains("spill stores"))
            {
                let spilled = line
                    .split(',')
                    .nth(1)
                    .and_then(|part| part.trim().split(' ').next());
                let spilled: u32 = spilled.and_then(|n| n.parse().ok()).unwrap_or(0);
                assert!(spilled <= MAX_SPILLS, "{arch} {}: {line}", unit.name());
                kernels += 1;
            }
            let warnings = compiled
                .report
                .lines()
                .filter(|line| line.contains("warning"));
            assert_eq!(warnings.count(), 0, "{}", compiled.report);
        }
    }
    assert!(
        kernels >= 25 * ARCHITECTURES.len(),
        "only {kernels} kernels were reported"
    );
}
