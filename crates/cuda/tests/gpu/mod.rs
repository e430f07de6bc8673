//! The GPU of the tests. Without one, tests say so and pass; `KVARK_REQUIRE_CUDA=1` makes them fail.

use cuda::Cuda;
use std::io::Write;

/// The GPU, if there is one. `KVARK_CUBIN` names a folder for compiled kernels.
pub(crate) fn device() -> Option<Cuda> {
    let folder = std::env::var_os("KVARK_CUBIN").map(Into::into);
    match Cuda::new(folder) {
        Ok(cuda) => {
            let facts = cuda.facts();
            let (name, arch, driver) = (&facts.name, &facts.arch, &facts.driver);
            let _ = writeln!(
                std::io::stderr(),
                "on {name} ({arch}), driver for CUDA {driver}"
            );
            Some(cuda)
        }
        Err(error) if std::env::var_os("KVARK_REQUIRE_CUDA").is_some() => panic!("{error}"),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            None
        }
    }
}
