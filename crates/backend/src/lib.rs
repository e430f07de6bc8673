//! The backend interface: compile a graph, run it with a cache, store the KV bytes.
//!
//! [`mod@reference`] is the simplest backend and the oracle for all others; the crate `conformance` has the suites that
//! compare every backend with it.
#![forbid(unsafe_code)]

mod contract;
mod devices;
pub mod e4m3;
mod error;
mod frozen_rows;
mod hadamard;
mod key_rotation;
mod migration;
mod outputs;
mod profile;
pub mod reference;
pub mod row_codec;
mod row_layout;
mod row_span;
mod rows;
pub mod run_mode;
mod runnable;
mod states;

pub use contract::{
    Backend, CacheStep, CompileOptions, Executable, ExecutorKind, ExpertFootprint, Footprint,
    FootprintRequest, OutputCallback, Precision, ProgressCallback, StepInputs, TraceCallback,
    UnknownPrecision, check_storage,
};
pub use devices::{Devices, PiecePlacement};
pub use error::{BackendError, BackendErrorKind};
pub use hadamard::hadamard;
pub use key_rotation::KeyRotations;
pub use migration::{migrate_rows, transcode_rows};
pub use outputs::{LogitsMode, RowOutputs, ScoredToken, StepOutputs, argmax, topk};
pub use profile::{ExpertUse, NodeProfile, NodeProfiles};
pub use row_layout::{RowLayout, TILE_CELLS};
pub use row_span::RowSpan;
pub use rows::{SavedLayer, SavedRows, shift_rows};
pub use run_mode::{
    BatchDescriptor, CaptureSizes, Dispatch, Dispatcher, DispatcherOptions, GraphSupport, Replay,
    ReplayError, ReplayWrapper, RunMode, ShapeCache, UnknownRunMode,
};
pub use runnable::{Runnable, StepOptions, attention_nodes, cached_nodes, integer_source};
