//! What a backend is: compile a graph, run it over a cache, keep the KV bytes.
//!
//! [`mod@reference`] is the plainest backend and the oracle for all others; [`conformance`] is the suite that every backend
//! runs against it.
#![forbid(unsafe_code)]

pub mod conformance;
mod contract;
mod error;
mod pool;
mod profile;
pub mod reference;
mod rotation;
mod runnable;
pub mod storage;

pub use contract::{
    Backend, CacheStep, CompileOptions, Executable, ExecutorKind, Footprint, Loading, Trace,
};
pub use error::{BackendError, BackendErrorKind};
pub use pool::KvPool;
pub use profile::NodeTime;
pub use rotation::Rotations;
pub use runnable::{Runnable, attention_nodes, integer_source};
