//! An OpenAI-compatible HTTP API over the engine.
#![forbid(unsafe_code)]
