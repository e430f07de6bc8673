//! The built command, run as a user runs it.

mod agents_bench;
mod bad_input;
mod bench;
mod catalogue;
mod chat;
mod chat_commands;
mod chat_files;
#[cfg(target_os = "linux")]
mod chat_terminal;
mod commands;
mod config;
mod constrained;
#[cfg(unix)]
mod documents;
mod embed;
mod emit_c;
mod exec;
mod export;
mod folders;
mod genai;
mod generated;
mod help;
#[cfg(unix)]
mod hub;
#[cfg(target_os = "linux")]
mod interrupt;
#[cfg(target_os = "linux")]
mod memory;
mod numbers;
mod onnx;
#[cfg(unix)]
mod picture;
mod plan;
mod prefix_files;
mod prompts;
mod pt2;
mod real;
mod sampling;
mod score;
mod serve;
#[cfg(unix)]
#[path = "../../../hub/tests/common/server.rs"]
mod server;
mod show;
mod snapshots;
mod speculation;
#[cfg(unix)]
#[path = "../../../import/tests/common/splitter.rs"]
mod splitter;
mod streams;
mod support;
#[cfg(unix)]
mod terminal;
