//! A model as a C program: every buffer has an offset that is known before the program runs, the KV cache is a closed-form
//! index, and nothing is allocated while it decodes.
//!
//! [`Program::new`] turns a graph and its memory plan into source texts and a list of weights; [`Program::write`] writes them to
//! a folder. The C computes in the order of the CPU backend's generic tier, so its logits are the same bits.
#![forbid(unsafe_code)]

mod c_text;
mod calls;
mod error;
mod folder;
mod header;
mod kernels;
mod layout_map;
mod names;
mod plan;
mod program;
mod sources;
mod tokenizer;
mod weights;

pub use error::{EmitError, EmitErrorKind};
pub use plan::{EmitOptions, ProgramPlan, Regions};
pub use program::Program;
pub use tokenizer::TokenizerProgram;
