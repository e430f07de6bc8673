//! What a cache refuses, and the number that was wrong.

use crate::SeqId;
use std::fmt;

/// A refused cache call. The cache is as it was before the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvError(KvErrorKind);

/// Why a cache call was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvErrorKind {
    /// The step would store more than the capacity.
    #[error("the cache is full: {needed} cells are needed and its capacity is {capacity}")]
    Full {
        /// Cells the step would need in all.
        needed: u64,
        /// The cache's limit.
        capacity: u32,
    },
    /// A token's position is not the one that continues the sequence.
    #[error(
        "token {index} of the step has position {found}, but the cache continues at {expected}"
    )]
    Position {
        /// Which token of the step.
        index: usize,
        /// The position it came with.
        found: i64,
        /// The position it must have.
        expected: u32,
    },
    /// A step without tokens.
    #[error("a step needs at least one token")]
    EmptyStep,
    /// Rewinding to a length beyond the current one.
    #[error("cannot rewind to {to}: the cache holds {len}")]
    RewindForward {
        /// The length asked for.
        to: u32,
        /// The current length.
        len: u32,
    },
    /// Rewinding to what a window has given up, or into a shared prefix.
    #[error("cannot rewind to {to}: the windows keep nothing before {floor}")]
    RewindTooFar {
        /// The length asked for.
        to: u32,
        /// The shortest length possible.
        floor: u32,
    },
    /// A step that a ring cannot take at once.
    #[error("a step of {tokens} tokens is too long: the windows allow {max}")]
    StepTooLong {
        /// Tokens in the step.
        tokens: usize,
        /// Most tokens allowed.
        max: u32,
    },
    /// A sequence number that the cache does not have.
    #[error("sequence {seq} is out of range: the cache has {max}")]
    UnknownSequence {
        /// The number.
        seq: u32,
        /// How many there are, from 0 on.
        max: u32,
    },
    /// A copy would give a sequence a second cell for a position.
    #[error("sequence {seq} holds position {position} already, in another cell")]
    Occupied {
        /// The sequence copied to.
        seq: u32,
        /// The position.
        position: u32,
    },
    /// A forward came without a declared step.
    #[error("no step is declared: call begin_step before the forward")]
    StepNotDeclared,
    /// A step was declared on top of one that no forward has used.
    #[error("a step is declared already and no forward has used it")]
    StepPending,
    /// A forward carries another number of tokens than was declared.
    #[error("the step was declared with {declared} tokens, and the forward has {found}")]
    TokenCount {
        /// Tokens declared.
        declared: usize,
        /// Tokens in the forward.
        found: usize,
    },
    /// A step would write behind the end of a static buffer.
    #[error(
        "sequence {seq} needs {needed} rows, and static buffers have a max_seq_len of {max_seq_len}"
    )]
    StaticFull {
        /// The sequence.
        seq: u32,
        /// Rows it would need in all, those of pads included.
        needed: u64,
        /// Rows that its buffer has.
        max_seq_len: u32,
    },
    /// A pad comes before a real token of its sequence, which would so get another row than its position.
    #[error("token {index} of the step follows a pad of sequence {seq}: pads must come last")]
    PadBefore {
        /// The real token.
        index: usize,
        /// Its sequence.
        seq: u32,
    },
    /// A candidate came to a cache that holds no trees.
    #[error("token {index} of the step is a candidate, and only a tree cache holds candidates")]
    NoCandidates {
        /// The token.
        index: usize,
    },
    /// Candidates and tokens that continue the sequence came in one step.
    #[error("token {index} of the step is not a candidate, and those before it are")]
    MixedStep {
        /// The token.
        index: usize,
    },
    /// Numbers were given for another count of sequences.
    #[error("the cache has {declared} sequences, and the step has {found}")]
    SequenceCount {
        /// Sequences of the cache.
        declared: usize,
        /// Sequences of the step.
        found: usize,
    },
    /// A copy between sequences that have a static buffer each.
    #[error(
        "sequence {dst} cannot share rows of sequence {src}: each has a static buffer of its own"
    )]
    NotShared {
        /// The sequence copied from.
        src: u32,
        /// The sequence copied to.
        dst: u32,
    },
    /// A removal would leave a hole in a static buffer.
    #[error(
        "cannot remove the positions before {end}: sequence {seq} holds {len}, and a static buffer has no holes"
    )]
    Hole {
        /// The sequence.
        seq: u32,
        /// One past the last position to remove.
        end: u32,
        /// Tokens that the sequence holds.
        len: u32,
    },
    /// A candidate's parent is not one before it.
    #[error("candidate {node} names {parent} as its parent, which is not a candidate before it")]
    Parent {
        /// The candidate.
        node: u32,
        /// The parent it names.
        parent: u32,
    },
    /// Candidates wait to be committed.
    #[error("{candidates} candidates wait: propose more or commit a path first")]
    TreeActive {
        /// How many.
        candidates: u32,
    },
    /// The accepted candidates do not follow each other.
    #[error("candidate {node} is not a computed child of {parent:?}, so the path is no chain")]
    NotAChain {
        /// The candidate that does not fit.
        node: u32,
        /// The one before it in the path.
        parent: Option<u32>,
    },
    /// A control verb or a second forward came while a forward runs.
    #[error("the cache is busy: a forward is running on it")]
    Busy,
    /// A forward panicked while it held the cache, so its bytes are unknown.
    #[error("the cache was left unusable by a forward that panicked")]
    Poisoned,
    /// No cache under this key.
    #[error("no cache is registered under the key {0:?}")]
    UnknownKey(String),
    /// No backend of this name has registered how its KV bytes are made.
    #[error("backend {0:?} is not registered")]
    UnknownBackend(String),
    /// The cache behind a key is not of the expected kind or backend.
    #[error("the cache is a {found} cache, not a {wanted} cache")]
    WrongKind {
        /// What is registered.
        found: &'static str,
        /// What the caller needs.
        wanted: &'static str,
    },
    /// A sequence that lacks a position between others.
    #[error(
        "sequence {seq} has no token at position {position}: only one without gaps can be taken out"
    )]
    Gap {
        /// The sequence.
        seq: SeqId,
        /// The first position that it lacks.
        position: u32,
    },
    /// A shift that drops nothing, or more than there is.
    #[error("cannot drop {dropped} tokens behind the first {keep}: there are {len}")]
    Shift {
        /// Tokens to keep.
        keep: u32,
        /// Tokens to drop.
        dropped: u32,
        /// Tokens that the sequence holds.
        len: u32,
    },
    /// Saved rows that the cache cannot take.
    #[error("the saved rows do not fit the cache: {0}")]
    SavedRows(String),
    /// A verb that a cache behind a shared prefix does not have.
    #[error("the first {tokens} tokens are a shared prefix and cannot be given up")]
    PrefixReadOnly {
        /// Tokens of the prefix.
        tokens: u32,
    },
    /// The configuration cannot be built.
    #[error("bad cache configuration: {0}")]
    Config(String),
    /// A model file's cache facts cannot be read or written.
    #[error("the model's metadata is wrong: {key:?} {reason}")]
    Metadata {
        /// The key at fault.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A frozen prefix that does not fit the cache to be opened behind it.
    #[error("the shared prefix does not fit: {0}")]
    PrefixMismatch(String),
    /// An operation failed on the backend's device.
    #[error("the device failed: {0}")]
    Device(String),
    /// The backend could not allocate.
    #[error("out of memory: {:.1} MB of KV could not be allocated", *.0 as f64 / 1e6)]
    OutOfMemory(usize),
}

impl KvError {
    /// Why the call was refused.
    pub fn kind(&self) -> &KvErrorKind {
        &self.0
    }
}

impl From<KvErrorKind> for KvError {
    fn from(kind: KvErrorKind) -> KvError {
        KvError(kind)
    }
}

impl fmt::Display for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for KvError {}
