//! The Python module `kvark._kvark`. The package `python/kvark` (beside `crates`) holds what is better written in Python.

// The macros of pyo3 expand to code that these lints do not like.
#![allow(unreachable_pub, clippy::useless_conversion, missing_docs)]

mod arrays;
mod branches;
mod download;
mod eager_cache;
mod error;
mod generation;
mod inference;
mod interrupt;
mod loaded;
mod model;
mod options;
mod providers;
mod request;
mod result;
mod scatter;
mod session;
mod speculation;

#[pyo3::pymodule]
mod _kvark {
    use pyo3::pyfunction;

    #[pymodule_export]
    use crate::branches::{Branch, Branches};
    #[pymodule_export]
    use crate::eager_cache::EagerCache;
    #[pymodule_export]
    use crate::generation::Generation;
    #[pymodule_export]
    use crate::inference::{InferenceSession, NodeArg};
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::result::GenerationResult;
    #[pymodule_export]
    use crate::scatter::ScatterDecoder;
    #[pymodule_export]
    use crate::session::{Prefix, Session};

    /// Runs the command line with these arguments, of which the first is the program's name. Returns the exit code.
    #[pyfunction]
    fn run_command(py: pyo3::Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
        py.detach(|| kvark_cli::main(arguments))
    }

    /// Whether this machine has a GPU that kvark runs on.
    #[pyfunction]
    fn has_cuda(py: pyo3::Python<'_>) -> bool {
        py.detach(crate::options::has_cuda)
    }

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyModuleMethods;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
