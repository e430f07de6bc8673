//! From a model file to text: modules, runners, sampling and scoring, on any backend.
#![forbid(unsafe_code)]

mod batch_runner;
mod context_shift;
mod decode;
mod decoder;
mod detokenizer;
mod embed;
mod error;
mod fingerprint;
mod generation;
mod generator;
mod gguf_source;
mod inference;
mod memory;
mod model;
mod module;
mod options;
mod policy_file;
mod prefix;
mod prefix_file;
mod sampler;
mod scheduler;
mod score;
mod snapshot;
mod speculative;
mod stop;
mod tokenizer_source;
mod tune_kv;

pub use batch_runner::{
    Approximation, BatchRunner, BatchToken, Edit, Inexact, MigrationDistance, MigrationOptions,
    MigrationReport, Runner, SPLICE_SHARE, SequenceHandle, SequenceRunner, SpliceReport,
    recomputed,
};
pub use context_shift::ContextShift;
pub use decode::{GeneratedToken, Owned, Sequence, TokenConstraint, TokenLogprobs};
pub use embed::{EmbedOptions, Embedder, Embedding};
pub use error::{RuntimeError, RuntimeErrorKind};
pub use generation::{FinishReason, GenerateEvent, GenerateOptions, GenerateOutput, Timings};
pub use generator::{Generator, PausedGeneration, generate};
pub use gguf_source::GgufSource;
pub use inference::{
    InferenceOptions, InferenceSession, MAX_SHAPES, RandomInputs, ScatterDecoder, SessionCopies,
    TensorDim, TensorInfo,
};
pub use memory::{
    ArenaBuffer, ArenaPlan, CacheKind, LimitSource, MemoryPlan, MemoryShortfall, MemoryUsage,
    PlannedModel, Remedy, StateOffsets, WeightSection,
};
pub use model::{Model, OpenOptions, mtp_head, open_artifact, open_artifact_with, open_tokenizer};
pub use module::{MethodId, Module, ModuleOptions};
pub use options::{MemoryLimit, RunnerOptions, StepSize};
pub use policy_file::{policy_text, read_policy};
pub use prefix::{PromptPrefix, common_prefix_len};
pub use prefix_file::PrefixFile;
pub use sampler::{
    DEFAULT_SEQUENCE_BREAKERS, NumberRange, OptionKind, OptionValue, SAMPLING_OPTIONS, Sampler,
    SamplerOptions, SamplingOption, random_seed, sequence_breakers,
};
pub use scheduler::{
    BranchCells, Buckets, CacheMiss, CacheReport, CacheSource, Counters, Engine, EngineHandle,
    EngineState, EventSink, Eviction, EvictionLog, EvictionReason, Generation, Histogram,
    HostRungs, MissReason, MovedTokens, Request, RequestEvent, RequestHandle, RequestOutput, Rung,
    SchedulerOptions, SequenceInfo, Sizes, Times,
};
pub use score::{Score, log_softmax_at};
pub use snapshot::{RestorableLengths, Snapshot, SnapshotError, SnapshotErrorKind};
pub use speculative::{
    DepthStats, DraftSource, Drafter, RoundTrace, SpecOptions, SpecStats, SpecType, Speculator,
    TreeProposal, VerifyCosts, VerifyResult, verify_tree,
};
pub use tune_kv::{TuneOptions, TunedKv, TunedPoint, tune_kv};
