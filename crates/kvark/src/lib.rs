//! kvark: a local LLM runtime whose KV cache can be swapped at run time behind one op.
//!
//! ```no_run
//! use kvark::prelude::*;
//!
//! let model = Model::open("model.gguf".as_ref(), None)?;
//! let cpu = Cpu::new()?;
//! let mut runner = Runner::new(&model, &cpu, &RunnerOptions::default())?;
//! let prompt = model.tokenizer()?.encode("The capital of France is", EncodeOptions { bos: true, ..Default::default() });
//! let mut sampler = Sampler::new(SamplerOptions::default());
//! let options = GenerateOptions { max_tokens: Some(16), ..Default::default() };
//! let answer = runner.generate(&model, &prompt, &mut sampler, &options, |event| {
//!     if let GenerateEvent::Text(text) = event { print!("{text}") }
//!     true
//! })?;
//! println!("\n{} tokens, {:?}", answer.tokens.len(), answer.finish);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each module holds what one task needs; a type that several tasks need is in each of their modules. The crate's
//! `examples` folder has a program for each of the common tasks.
#![forbid(unsafe_code)]

/// Models by name and the folder that stores them.
pub use ::hub::catalogue;

/// Models of a hub, of addresses and of a local Ollama store: references, downloads, and what is stored. Requests to running servers.
pub mod hub {
    pub use ::hub::catalogue::{FetchCallback, FetchProgress, FetchStage, ModelStore};
    pub use ::hub::{
        Heard, HubClient, HubError, HubErrorKind, HubOptions, ModelRef, ModelSource, OllamaModel,
        OllamaStore, PlainHttp, RunningServer, ServedModel, StoredModel, quantisation_of_name,
    };
}

/// Model files: opening, facts, and the readers of each format.
pub mod model {
    pub use ::import::hugging_face::Blueprint;
    pub use ::import::{
        Artifact, DraftHead, FeatureLayers, Format, HeadKind, ImportError, ImportErrorKind, Method,
        ModelFacts, ModelFile, Pooling, ShapedMethod, format_of, genai, gguf, onnx, pt2, pte,
        safetensors,
    };
    pub use ::runtime::{
        GgufSource, Model, OpenOptions, mtp_head, open_artifact, open_artifact_with, open_tokenizer,
    };
}

/// Text generation and scoring with a decoder: runners, samplers and the generation loop.
pub mod generate {
    pub use ::backend::{LogitsMode, RowOutputs, ScoredToken, argmax, topk};
    pub use ::kv::SeqId;
    pub use ::runtime::{
        Approximation, BatchRunner, BatchToken, ContextShift, DEFAULT_SEQUENCE_BREAKERS, Edit,
        FinishReason, GenerateEvent, GenerateOptions, GenerateOutput, GeneratedToken, Generator,
        Inexact, NumberRange, OptionKind, OptionValue, Owned, PausedGeneration, PromptPrefix,
        Runner, RunnerOptions, SAMPLING_OPTIONS, SPLICE_SHARE, Sampler, SamplerOptions,
        SamplingOption, Score, Sequence, SequenceHandle, SequenceRunner, SpliceReport, Timings,
        TokenConstraint, TokenLogprobs, common_prefix_len, generate, random_seed, recomputed,
        sequence_breakers,
    };
}

/// Speculative decoding: trees of candidates that the target verifies in one forward.
pub mod speculative {
    pub use ::runtime::{
        DepthStats, DraftSource, Drafter, RoundTrace, SpecOptions, SpecStats, SpecType, Speculator,
        TreeProposal, VerifyCosts, VerifyResult, verify_tree,
    };
}

/// An engine that serves many requests at once on a thread of its own: continuous batching, shared prefixes in memory and
/// on disk.
pub mod engine {
    pub use ::runtime::{
        BranchCells, Buckets, CacheMiss, CacheReport, CacheSource, Counters, Engine, EngineHandle,
        EngineState, EventSink, Eviction, EvictionLog, EvictionReason, GeneratedToken, Generation,
        Histogram, HostRungs, MissReason, MovedTokens, Request, RequestEvent, RequestHandle,
        RequestOutput, Rung, SchedulerOptions, SequenceInfo, Sizes, Times, TokenConstraint,
        TokenLogprobs,
    };
}

/// Output constraints for the requests of an engine: JSON schemas, regular expressions, Lark and GBNF grammars.
pub mod grammar {
    pub use ::grammar::{GrammarCompiler, GrammarError, GrammarSource};
}

/// Runs on tensors: sessions on named inputs, and modules whose steps the caller builds.
pub mod inference {
    pub use ::backend::{
        ExpertUse, LogitsMode, NodeProfile, OutputCallback, RowOutputs, Runnable, ScoredToken,
        StepOptions, StepOutputs, TraceCallback,
    };
    pub use ::base::{Bytes, DType};
    pub use ::graph::{Data, DataMut, DataRef, Value, ValueRef};
    pub use ::import::{ModelDescription, StoredType};
    pub use ::kv::BackendOptions;
    pub use ::runtime::{
        InferenceOptions, InferenceSession, MAX_SHAPES, MethodId, Module, ModuleOptions,
        RandomInputs, ScatterDecoder, SessionCopies, TensorDim, TensorInfo,
    };
}

/// Embeddings of texts.
pub mod embed {
    pub use ::import::Pooling;
    pub use ::runtime::{EmbedOptions, Embedder, Embedding};
}

/// Tokenizers and chat templates.
pub mod text {
    pub use ::text::tools;
    pub use ::text::{
        AnswerFormat, AnswerParser, AnswerPart, ChatContinuation, ChatTemplate, EncodeOptions,
        InfillRequest, InfillTokens, Message, Prompt, ReasoningBudget, ReasoningFormat,
        ReasoningGuard, ReasoningTags, TextError, TokenKind, Tokenizer, Utf8Stream,
        keeping_variables,
    };
}

/// The backend-neutral KV cache: sessions of every kind, their operations, configuration, and the plans that a backend
/// executes. A cache kind of one's own implements [`Cache`](cache::Cache) and [`CacheManager`](cache::CacheManager).
pub mod cache {
    pub use ::kv::metadata::MetadataValue;
    pub use ::kv::{
        AttentionSpans, BackendOptions, Cache, CacheConfig, CacheEntry, CacheKey, CacheManager,
        CacheOperations, CacheRegistry, CacheSession, CacheState, CellRun, Cells, Compaction,
        Contiguous, GatherPlan, KvError, KvErrorKind, KvLayout, KvStorage, LayerConfig,
        LayerLayout, LayerPlan, MAX_SEQUENCES, NO_CELL, OneSequence, PrefixCells, Prefixed,
        QuantGroup, QueryView, Restorable, RingPolicy, Role, ScatterIndex, ScatterStep, SeqCache,
        SeqId, SequenceRows, SessionResult, SharedPrefix, Side, SideLayout, Step, StepPlan,
        StepToken, Tree, TreeCache, make_decode_session, make_prefixed_session,
        make_scatter_session, make_seq_session, make_session_after, make_tree_session,
    };
    pub use ::kv::{InvalidPolicy, KvPolicy, KvRule, LayerSelection, StreamRule};
    pub use ::runtime::{
        MigrationDistance, MigrationOptions, MigrationReport, TuneOptions, TunedKv, TunedPoint,
        policy_text, read_policy, tune_kv,
    };
}

/// Memory plans: the memory of a run, computed before anything is loaded.
pub mod memory {
    pub use ::backend::ExpertFootprint;
    pub use ::base::{MemoryBound, size_text};
    pub use ::cpu::ExitingAllocator;
    pub use ::runtime::{
        ArenaBuffer, ArenaPlan, CacheKind, LimitSource, MemoryLimit, MemoryPlan, MemoryShortfall,
        MemoryUsage, PlannedModel, Remedy, StateOffsets, StepSize, WeightSection,
    };
}

/// A model as a C program with fixed addresses.
pub mod emit {
    pub use ::emit::{
        EmitError, EmitErrorKind, EmitOptions, Program, ProgramPlan, Regions, TokenizerProgram,
    };
}

/// Snapshots and prefix files: files with the tokens of a sequence and their keys and values.
pub mod snapshot {
    pub use ::runtime::{
        PrefixFile, RestorableLengths, Snapshot, SnapshotError, SnapshotErrorKind,
    };
}

/// The CPU and CUDA backends, and the interface of a backend of one's own: its executables, its KV bytes, their registration, and
/// the conformance suites.
pub mod backend {
    pub use ::backend::{
        Backend, BackendError, BackendErrorKind, BatchDescriptor, CacheStep, CaptureSizes,
        CompileOptions, Devices, Dispatch, Dispatcher, Executable, ExecutorKind, Footprint,
        FootprintRequest, GraphSupport, OutputCallback, PiecePlacement, Precision,
        ProgressCallback, Replay, ReplayError, ReplayWrapper, RunMode, TraceCallback,
        UnknownPrecision, UnknownRunMode, check_storage, reference, row_codec,
    };
    pub use ::conformance;
    pub use ::cpu::{Cpu, Isa, Probe, tidy_packed};
    pub use ::cuda::{Cuda, CudaError, CudaErrorKind, DeviceFacts};
    pub use ::kv::{CacheBuilderRegistry, FrozenKv, KvBytes, KvBytesBuilder, PoolGrowth, RowBlock};
}

/// The graph that a model is imported to: tensors, nodes, ops and passes.
pub mod graph {
    pub use ::graph::passes::{PassSelection, UnknownPass};
    pub use ::graph::{
        Bindings, Data, Dim, Graph, GraphBuilder, GraphError, GraphErrorKind, Node, NodeId,
        SymbolInfo, Tensor, TensorId, TensorKind, TensorType, Value, ops,
    };
}

/// What most applications need, for a glob import.
pub mod prelude {
    pub use crate::backend::Cpu;
    pub use crate::generate::{
        BatchRunner, BatchToken, FinishReason, GenerateEvent, GenerateOptions, GenerateOutput,
        Generator, Runner, RunnerOptions, Sampler, SamplerOptions, Sequence,
    };
    pub use crate::model::Model;
    pub use crate::text::{ChatTemplate, EncodeOptions, Message, Tokenizer};
    pub use ::runtime::RuntimeError;
}

pub use ::cpu::Cpu;
pub use ::runtime::{
    BatchRunner, InferenceSession, Model, Module, Runner, RunnerOptions, RuntimeError,
    RuntimeErrorKind,
};
