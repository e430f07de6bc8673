//! From a model file to text: modules, runners, sampling, scoring. Knows backends only by their contract.
#![forbid(unsafe_code)]

mod error;
mod generate;
mod model;
mod module;
mod runner;
mod sampler;
mod score;
mod stop;

pub use error::{RuntimeError, RuntimeErrorKind};
pub use generate::{Finish, GenerateOptions, Generated, Piece, Timings};
pub use model::{Model, open_artifact, open_tokenizer};
pub use module::{Module, ModuleOptions};
pub use runner::{Memory, Policy, Runner};
pub use sampler::{Sampler, SamplerOptions};
pub use score::{Score, log_softmax_at};
