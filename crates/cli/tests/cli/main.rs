//! The built command, run as a user runs it.

mod bad_input;
mod catalogue;
mod chat;
mod commands;
mod embed;
mod exec;
mod export;
mod genai;
mod help;
#[cfg(unix)]
mod hub;
#[cfg(target_os = "linux")]
mod interrupt;
mod numbers;
mod onnx;
mod plan;
mod pt2;
mod real;
#[cfg(unix)]
#[path = "../../../hub/tests/common/server.rs"]
mod server;
mod snapshots;
#[cfg(unix)]
#[path = "../../../import/tests/common/splitter.rs"]
mod splitter;
mod support;
#[cfg(unix)]
mod terminal;
