//! Run modes: which steps replay recorded work, and which run node by node.
//!
//! All of it is pure code that knows no device. [`RunMode`] is the caller's choice, [`GraphSupport`] what an executable
//! can record; [`RunMode::downgrade`] joins the two. A [`Dispatcher`] maps each step's [`BatchDescriptor`] to a mode and
//! to the descriptor of a recorded size; a [`ReplayWrapper`] records and replays by mode and descriptor. A backend supplies
//! recording and replaying ([`Replay`]).

mod batch;
mod dispatcher;
mod mode;
mod shape_cache;
mod wrapper;

pub use batch::BatchDescriptor;
pub use dispatcher::{CaptureSizes, Dispatch, Dispatcher, DispatcherOptions};
pub use mode::{GraphSupport, RunMode, UnknownRunMode};
pub use shape_cache::ShapeCache;
pub use wrapper::{Replay, ReplayError, ReplayWrapper};
