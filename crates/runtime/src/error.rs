//! The error type of the crate.

use backend::BackendError;
use import::ImportError;
use kv::KvError;

/// A load or a run that failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct RuntimeError(RuntimeErrorKind);

/// Why loading or running failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeErrorKind {
    /// The file could not be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The chat template is not usable or rejects the conversation.
    #[error(transparent)]
    Text(#[from] text::TextError),
    /// The file has no usable tokenizer.
    #[error("the model file has no usable tokenizer: {0}")]
    NoTokenizer(text::TextError),
    /// A cache call failed.
    #[error(transparent)]
    Cache(#[from] KvError),
    /// A step failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The model has a format whose models are not written as GGUF.
    #[error("a model of the format {0} cannot be written as GGUF")]
    NotGguf(&'static str),
    /// The model has no method of this name.
    #[error("the model has no method {0:?}")]
    UnknownMethod(String),
    /// The model has several methods and none was named.
    #[error("the model has several methods: name one of {0}")]
    AmbiguousMethod(String),
    /// The tokens do not fit in the context.
    #[error(
        "the prompt has {tokens} tokens, and the context has room for {room} of its {capacity}"
    )]
    PromptTooLong {
        /// Tokens in the prompt.
        tokens: usize,
        /// Tokens that would still fit.
        room: usize,
        /// The size of the context in tokens.
        capacity: usize,
    },
    /// The prompt is empty and there are no logits to continue from.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A score needs at least two tokens.
    #[error("there is nothing to predict: a score needs at least two tokens, and there is one")]
    NothingToPredict,
    /// A token id is outside the vocabulary.
    #[error("token id {id} is outside the model's vocabulary of {vocab}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The graph has no input of this name.
    #[error("there is no input {name:?}; the inputs are {inputs}")]
    UnknownInput {
        /// The name.
        name: String,
        /// The graph's inputs with their types.
        inputs: String,
    },
    /// The graph has no output of this name.
    #[error("there is no output {name:?}; the outputs are {outputs}")]
    UnknownOutput {
        /// The name.
        name: String,
        /// The graph's outputs with their types.
        outputs: String,
    },
    /// The caller's memory for an output does not fit it.
    #[error("the memory for the output {output} {reason}")]
    OutputMemory {
        /// The output's name.
        output: String,
        /// The reason why the caller's memory cannot be used.
        reason: String,
    },
    /// An input is missing.
    #[error("the input {0} is missing")]
    MissingInput(String),
    /// An input was given more than once.
    #[error("the input {0:?} was given twice")]
    DuplicateInput(String),
    /// The graph has no dynamic size of this name.
    #[error(
        "there is no dynamic size {name:?}; the dynamic sizes are {sizes}; the inputs are {inputs}"
    )]
    UnknownSize {
        /// The name.
        name: String,
        /// The names of the graph's dynamic sizes.
        sizes: String,
        /// The graph's inputs with their types.
        inputs: String,
    },
    /// A dynamic size is outside the range of the graph.
    #[error("the size {name} is {size}, must be {range}")]
    SizeRange {
        /// The name.
        name: String,
        /// The requested size.
        size: usize,
        /// The valid range.
        range: String,
    },
    /// The number of bytes of a tensor overflows.
    #[error("the tensor {0} is too large with these sizes")]
    TooLarge(String),
    /// A run with these sizes does not fit in the available memory.
    #[error(
        "a run of these sizes needs {} of memory, and {} are free: choose smaller sizes",
        base::size_text(*needed),
        base::size_text(*available)
    )]
    TooMuchMemory {
        /// Bytes of the inputs, the outputs and the intermediates.
        needed: u64,
        /// Available bytes.
        available: u64,
    },
    /// Random values are not supported for the type of an input.
    #[error("the input {0} has type {1}, for which no random values can be generated")]
    NotRandom(String, base::DType),
    /// The model is not a decoder.
    #[error(
        "the model is not a decoder: it does not turn tokens and positions into logits over caches"
    )]
    NotADecoder,
    /// The model is an encoder, which cannot generate text.
    #[error(
        "the model ({0}) is an encoder: it turns texts into embeddings (kvark embed) and cannot continue or score them"
    )]
    Encoder(String),
    /// The model has no hidden states output, which embeddings need.
    #[error(
        "the model ({0}) does not return hidden states, which embeddings need; GGUF files and exported encoders do"
    )]
    NoEmbedding(String),
    /// A text to embed has more tokens than the model allows.
    #[error(
        "text {index} has {tokens} tokens and the model accepts {limit}: shorten it or use --truncate"
    )]
    TextTooLong {
        /// Number of the text, from 1.
        index: usize,
        /// Its tokens.
        tokens: usize,
        /// The maximum number of tokens of a text.
        limit: usize,
    },
    /// A text to embed has no tokens, and the model adds none.
    #[error("text {0} has no tokens")]
    EmptyText(usize),
    /// A snapshot could not be restored or written.
    #[error(transparent)]
    Snapshot(#[from] crate::SnapshotError),
    /// The plan of a run exceeds its memory limit.
    #[error("{0}")]
    MemoryShortfall(Box<crate::MemoryShortfall>),
    /// Too many requests wait for a sequence.
    #[error("the queue is full: {limit} requests are waiting")]
    QueueFull {
        /// The maximum number of waiting requests.
        limit: usize,
    },
    /// The engine was stopped.
    #[error("the engine is stopping and accepts no requests")]
    EngineStopped,
    /// A constraint of a request failed.
    #[error("the output constraint failed: {0}")]
    Constraint(String),
    /// The options are not possible with this model.
    #[error("{0}")]
    InvalidOptions(String),
}

impl RuntimeError {
    /// Why it failed.
    pub fn kind(&self) -> &RuntimeErrorKind {
        &self.0
    }
}

impl<T: Into<RuntimeErrorKind>> From<T> for RuntimeError {
    fn from(kind: T) -> RuntimeError {
        RuntimeError(kind.into())
    }
}
