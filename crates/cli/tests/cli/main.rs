//! The built command, run as a user runs it.

mod bad_input;
mod catalogue;
mod chat;
mod commands;
mod embed;
mod exec;
mod export;
mod genai;
mod generated;
mod help;
#[cfg(target_os = "linux")]
mod interrupt;
mod numbers;
mod onnx;
mod plan;
mod pt2;
mod real;
mod snapshots;
mod support;
#[cfg(unix)]
mod terminal;
