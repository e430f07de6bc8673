//! Run modes: which steps replay recorded work, and which run node by node.
//!
//! All of it is pure code that knows no device. [`RunMode`] is the caller's choice, [`GraphSupport`] what an executable
//! can record; [`RunMode::downgrade`] joins the two. A [`Dispatcher`] maps each step's [`BatchDescriptor`] to a mode and
//! to the descriptor of a recorded size; a [`ReplayWrapper`] records and replays by descriptor. What a recording is
//! (a tape on the CPU, a captured graph on a GPU) is the executable's own business.

mod batch;
mod device;
mod dispatcher;
mod mode;
mod shape_cache;
mod wrapper;

pub use batch::BatchDescriptor;
pub use device::{Command, RecordingDevice};
pub use dispatcher::{CaptureSizes, Dispatch, Dispatcher, DispatcherOptions};
pub use mode::{GraphSupport, RunMode, UnknownRunMode};
pub use shape_cache::ShapeCache;
pub use wrapper::{Replay, ReplayCounts, ReplayError, ReplayWrapper};
