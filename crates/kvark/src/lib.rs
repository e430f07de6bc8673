//! kvark: a local LLM runtime whose KV cache can be swapped at run time behind one op.
//!
//! ```no_run
//! use kvark::{Cpu, GenerateOptions, Model, Piece, Policy, Runner, Sampler, SamplerOptions, EncodeOptions};
//!
//! let model = Model::open("model.gguf".as_ref(), None)?;
//! let cpu = Cpu::new()?;
//! let mut runner = Runner::new(&model, &cpu, &Policy::default())?;
//! let prompt = model.tokenizer()?.encode("The capital of France is", EncodeOptions { bos: true, ..Default::default() });
//! let mut sampler = Sampler::new(SamplerOptions::default());
//! let options = GenerateOptions { max_tokens: Some(16), ..Default::default() };
//! let answer = runner.generate(&model, &prompt, &mut sampler, &options, |piece| {
//!     if let Piece::Text(text) = piece { print!("{text}") }
//!     true
//! })?;
//! println!("\n{} tokens, {:?}", answer.tokens.len(), answer.finish);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod catalogue;

pub use backend::{
    Backend, CompileOptions, ExecutorKind, NodeProfile, ProgressCallback, RunMode, ScoredToken,
    StepOptions, StepOutputs, TraceCallback, UnknownRunMode, Wanted,
};
pub use base::{Bytes, DType, size_text};
pub use cpu::{Cpu, Isa, Probe};
pub use graph::passes::{PassSelection, UnknownPass};
pub use graph::{Data, Graph, TensorId, Value};
pub use import::hugging_face::Blueprint;
pub use import::{
    Artifact, Format, ImportError, ImportErrorKind, ModelFacts, ModelFile, Pooling, format_of,
    genai, gguf, onnx, pt2,
};
pub use kv::metadata::MetadataValue as CacheMetadata;
/// The backend-neutral cache: sessions of every kind, their verbs, and the plans that a backend executes.
pub mod cache {
    pub use kv::{
        Bookkeeping, Cache, CacheConfig, CacheSession, Cells, Contiguous, LayerConfig, RingPolicy,
        Role, ScatterIndex, ScatterStep, SeqCache, SharedPrefix, Step, StepPlan, StepToken, Tree,
        TreeCache, make_decode_session, make_prefixed_session, make_scatter_session,
        make_seq_session, make_tree_session,
    };
}

pub use kv::{
    CacheConfig, Group, KvError, KvLayout, LayerConfig, LayerLayout, Run, SeqId, Side, SideLayout,
    Storage,
};
pub use runtime::{
    ArenaBuffer, ArenaPlan, Branch, Branches, CacheKind, ContextShift, EmbedOptions, Embedder,
    Embedding, Finish, GenerateOptions, Generated, InferenceOptions, InferenceSession, MemoryLimit,
    MemoryPlan, MemoryShortfall, MemoryUsage, MethodId, Model, Module, ModuleOptions, OpenOptions,
    Piece, PlannedModel, Policy, Prefix, RandomInputs, Remedy, Runner, RuntimeError,
    RuntimeErrorKind, Sampler, SamplerOptions, Score, Sequence, Size, Snapshot, SnapshotError,
    SnapshotErrorKind, StepSize, TensorInfo, Timings, Token, WeightSection, generate,
    open_artifact, open_artifact_with, open_tokenizer,
};
pub use text::{ChatTemplate, EncodeOptions, Message, Prompt, TextError, Tokenizer, Utf8Stream};
