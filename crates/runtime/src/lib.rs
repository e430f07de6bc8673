//! From a model file to text: modules, runners, sampling and scoring, on any backend.
#![forbid(unsafe_code)]

mod branches;
mod context_shift;
mod decoder;
mod embed;
mod error;
mod fingerprint;
mod generate;
mod inference;
mod memory;
mod model;
mod module;
mod runner;
mod sampler;
mod score;
mod snapshot;
mod stop;
mod tokenizer_source;

pub use branches::{Branch, Branches, Token};
pub use context_shift::ContextShift;
pub use embed::{EmbedOptions, Embedder, Embedding};
pub use error::{RuntimeError, RuntimeErrorKind};
pub use generate::{Finish, GenerateOptions, Generated, Piece, Sequence, Timings, generate};
pub use inference::{InferenceOptions, InferenceSession, RandomInputs, Size, TensorInfo};
pub use memory::{
    ArenaBuffer, ArenaPlan, CacheKind, MemoryLimit, MemoryPlan, MemoryShortfall, PlannedModel,
    Remedy, StepSize, WeightSection,
};
pub use model::{Model, OpenOptions, open_artifact, open_artifact_with, open_tokenizer};
pub use module::{MethodId, Module, ModuleOptions};
pub use runner::{MemoryUsage, Policy, Prefix, Runner};
pub use sampler::{Sampler, SamplerOptions};
pub use score::{Score, log_softmax_at};
pub use snapshot::{Snapshot, SnapshotError, SnapshotErrorKind};
