//! What can go wrong between a model file and its text.

use backend::BackendError;
use import::ImportError;
use kv::KvError;

/// A model that could not be loaded or a run that could not go on.
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
    /// The file's chat template cannot be used, or refuses the conversation.
    #[error(transparent)]
    Text(#[from] text::TextError),
    /// The file has no tokenizer that can be used, and one is needed.
    #[error("the model file has no usable tokenizer: {0}")]
    NoTokenizer(text::TextError),
    /// The cache refused.
    #[error(transparent)]
    Cache(#[from] KvError),
    /// A step failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The module has no such method.
    #[error("the model has no method {0:?}")]
    UnknownMethod(String),
    /// The model has several methods and none was named.
    #[error("the model has several methods: name one of {0}")]
    AmbiguousMethod(String),
    /// More tokens than the context holds.
    #[error(
        "the prompt has {tokens} tokens, and the context has room for {room} of its {capacity}"
    )]
    PromptTooLong {
        /// Tokens in the prompt.
        tokens: usize,
        /// Tokens that still fit.
        room: usize,
        /// The whole context.
        capacity: usize,
    },
    /// Nothing to continue from.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// One token to score, before which there is nothing.
    #[error("there is nothing to predict: a score needs at least two tokens, and there is one")]
    NothingToPredict,
    /// A token id that the model does not have.
    #[error("token id {id} is outside the model's vocabulary of {vocab}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A name that no input of the graph has.
    #[error("there is no input {name:?}; there are {inputs}")]
    UnknownInput {
        /// The name.
        name: String,
        /// The graph's inputs with their types.
        inputs: String,
    },
    /// An input that was not given.
    #[error("the input {0} is missing")]
    MissingInput(String),
    /// An input that was given more than once.
    #[error("the input {0:?} was given twice")]
    DuplicateInput(String),
    /// A name that no dynamic size of the graph has.
    #[error("there is no dynamic size {name:?}; there are: {sizes}; the inputs are {inputs}")]
    UnknownSize {
        /// The name.
        name: String,
        /// The names of the graph's dynamic sizes.
        sizes: String,
        /// The graph's inputs with their types.
        inputs: String,
    },
    /// A dynamic size that the graph was not made for.
    #[error("the size {name} is {size}, must be {range}")]
    SizeRange {
        /// The name.
        name: String,
        /// The size that was asked for.
        size: usize,
        /// The sizes that the graph takes.
        range: String,
    },
    /// A tensor whose number of bytes overflows.
    #[error("the tensor {0} is too large with these sizes")]
    TooLarge(String),
    /// A run on inputs of these sizes does not fit the machine.
    #[error(
        "a run of these sizes needs {} of memory, and {} are free: choose smaller sizes",
        base::size_text(*needed),
        base::size_text(*available)
    )]
    TooMuchMemory {
        /// Bytes of the inputs, the outputs and the intermediates.
        needed: u64,
        /// Bytes that the machine has free.
        available: u64,
    },
    /// An input of a type that cannot be made up.
    #[error("no {1} can be made up for the input {0}")]
    NotRandom(String, base::DType),
    /// The model does not turn tokens into logits.
    #[error(
        "the model is no decoder: it does not turn tokens and positions into logits over caches"
    )]
    NotADecoder,
    /// The model turns a text into an embedding and cannot continue one.
    #[error(
        "the model ({0}) is an encoder: it turns texts into embeddings (kvark embed) and cannot continue or score them"
    )]
    Encoder(String),
    /// The model gives no hidden states that an embedding could be made of.
    #[error(
        "the model ({0}) gives no hidden states to make embeddings of; only GGUF encoders and decoders do"
    )]
    NoEmbedding(String),
    /// A text to embed has more tokens than the model has positions.
    #[error(
        "text {index} has {tokens} tokens and the model takes {limit}: shorten it, or have it cut (--truncate)"
    )]
    TextTooLong {
        /// Which of the texts, from 1 on.
        index: usize,
        /// Its tokens.
        tokens: usize,
        /// Most tokens of a text.
        limit: usize,
    },
    /// A text to embed has no tokens, and the model adds none.
    #[error("text {0} has no tokens")]
    EmptyText(usize),
    /// A snapshot was refused, or could not be written.
    #[error(transparent)]
    Snapshot(#[from] crate::SnapshotError),
    /// The plan of a run needs more memory than it may have.
    #[error("{0}")]
    MemoryShortfall(Box<crate::MemoryShortfall>),
    /// A policy that the model cannot follow.
    #[error("{0}")]
    Policy(String),
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
