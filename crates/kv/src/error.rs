//! The error type of the crate.

use crate::SeqId;
use std::fmt;

/// A cache call that failed. The cache is unchanged unless the call documents otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvError(KvErrorKind);

/// Why a cache call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvErrorKind {
    /// The step needs more cells than the capacity.
    #[error("the cache is full: {needed} cells are needed and its capacity is {capacity}")]
    Full {
        /// Cells in use after the step.
        needed: u64,
        /// The maximum number of cells.
        capacity: u32,
    },
    /// A token's position does not continue its sequence.
    #[error(
        "token {index} of the step has position {found}, but the cache continues at {expected}"
    )]
    Position {
        /// Which token of the step.
        index: usize,
        /// Its position.
        found: i64,
        /// The next position of the sequence.
        expected: u32,
    },
    /// A step without tokens.
    #[error("a step needs at least one token")]
    EmptyStep,
    /// A cache policy that does not fit the cache.
    #[error("cache policy: {0}")]
    Policy(String),
    /// A cache that cannot become the one that was asked for.
    #[error("the cache cannot be migrated: {0}")]
    Migration(String),
    /// Rewinding to a length beyond the current one.
    #[error("cannot rewind to {to}: the cache holds {len}")]
    RewindForward {
        /// The length asked for.
        to: u32,
        /// The current length.
        len: u32,
    },
    /// The length is below the rewind floor: ring layers have overwritten rows that it needs, or it lies inside a
    /// shared prefix.
    #[error("cannot rewind to {to}: the shortest possible length is {floor}")]
    RewindTooFar {
        /// The length asked for.
        to: u32,
        /// The shortest length possible.
        floor: u32,
    },
    /// No state is kept at this length, so nothing can go on there.
    #[error("cannot go on after {to} tokens: the nearest kept state before is after {nearest}")]
    NoState {
        /// The length asked for.
        to: u32,
        /// The longest length below it that has a state; 0 for the beginning.
        nearest: u32,
    },
    /// The live states of a step need more slots than the cache has.
    #[error("{needed} states are needed and the cache has {slots}")]
    StatesFull {
        /// States that cannot be given up.
        needed: u32,
        /// The maximum number of states.
        slots: u32,
    },
    /// The step has more tokens than the slack of the ring layers.
    #[error("a step of {tokens} tokens is too long: the ring layers allow {max}")]
    StepTooLong {
        /// Tokens in the step.
        tokens: usize,
        /// The maximum number of tokens.
        max: u32,
    },
    /// The sequence number is out of range.
    #[error("sequence {seq} is out of range: the cache has {max}")]
    UnknownSequence {
        /// The number.
        seq: u32,
        /// The number of sequences; numbers begin at 0.
        max: u32,
    },
    /// The pool retains its maximum number of prefixes.
    #[error("the cache retains {max} prefixes: release one before retaining another")]
    TooManyRetained {
        /// The maximum number.
        max: usize,
    },
    /// The target of a copy already holds a position, in another cell.
    #[error("sequence {seq} already holds position {position}, in another cell")]
    Occupied {
        /// The sequence copied to.
        seq: u32,
        /// The position.
        position: u32,
    },
    /// A forward was started without a declared step.
    #[error("no step is declared: call begin_step before the forward")]
    StepNotDeclared,
    /// A step is already declared and no forward has consumed it.
    #[error("a step is already declared and no forward has consumed it")]
    StepPending,
    /// The forward has another number of tokens than the declared step.
    #[error("the step was declared with {declared} tokens, and the forward has {found}")]
    TokenCount {
        /// Tokens declared.
        declared: usize,
        /// Tokens in the forward.
        found: usize,
    },
    /// The step would write past the end of a static buffer.
    #[error(
        "sequence {seq} needs {needed} rows, and static buffers have a max_seq_len of {max_seq_len}"
    )]
    StaticFull {
        /// The sequence.
        seq: u32,
        /// Rows that the sequence needs, those of pads included.
        needed: u64,
        /// Rows of its buffer.
        max_seq_len: u32,
    },
    /// A pad precedes a real token of the same sequence. The row of the real token would differ from its position.
    #[error("token {index} of the step follows a pad of sequence {seq}: pads must come last")]
    PadBefore {
        /// The real token.
        index: usize,
        /// Its sequence.
        seq: u32,
    },
    /// The step has a candidate, and the cache holds none.
    #[error("token {index} of the step is a candidate, and this kind of cache holds no candidates")]
    NoCandidates {
        /// The token.
        index: usize,
    },
    /// The step mixes candidates with tokens that continue the sequence.
    #[error(
        "token {index} of the step: candidates cannot be mixed with tokens that continue the same sequence"
    )]
    MixedStep {
        /// The token.
        index: usize,
    },
    /// The step is for another number of sequences than the cache has.
    #[error("the cache has {declared} sequences, and the step has {found}")]
    SequenceCount {
        /// Sequences of the cache.
        declared: usize,
        /// Sequences of the step.
        found: usize,
    },
    /// A copy between sequences of a static cache, which cannot share rows.
    #[error(
        "sequence {dst} cannot share rows of sequence {src}: each sequence has its own static buffer"
    )]
    NotShared {
        /// The sequence copied from.
        src: u32,
        /// The sequence copied to.
        dst: u32,
    },
    /// The removal would leave a hole in a static buffer.
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
    /// The parent of a candidate is not an earlier candidate.
    #[error("candidate {node} names {parent} as its parent, which is not a candidate before it")]
    Parent {
        /// The candidate.
        node: u32,
        /// Its parent.
        parent: u32,
    },
    /// The call is not possible while there are uncommitted candidates.
    #[error("{candidates} candidates are uncommitted: propose more or commit a path first")]
    TreeActive {
        /// The number of candidates.
        candidates: u32,
    },
    /// The accepted candidates do not form a chain.
    #[error("candidate {node} is not a computed child of {parent:?}, so the path is not a chain")]
    NotAChain {
        /// The candidate that breaks the chain.
        node: u32,
        /// The candidate before it in the path.
        parent: Option<u32>,
    },
    /// A forward is running on the cache.
    #[error("the cache is busy: a forward is running on it")]
    Busy,
    /// A forward panicked while it held the lock, so the content of the cache is undefined.
    #[error("the cache was left unusable by a forward that panicked")]
    Poisoned,
    /// No cache is registered under this key.
    #[error("no cache is registered under the key {0:?}")]
    UnknownKey(String),
    /// No backend of this name has registered a builder of KV bytes.
    #[error("backend {0:?} is not registered")]
    UnknownBackend(String),
    /// Another backend has registered under this name.
    #[error("another backend is registered as {0:?}: a backend needs a name of its own")]
    BackendTaken(String),
    /// The cache is not of the expected kind or backend.
    #[error("the cache is a {found} cache, not a {wanted} cache")]
    WrongKind {
        /// The kind of the cache.
        found: &'static str,
        /// The kind that the caller needs.
        wanted: &'static str,
    },
    /// Layers keep the first rows of a sequence besides those of their windows, which the operation does not know.
    #[error("the rows of layers with sinks cannot be {operation}")]
    Sinks {
        /// The operation.
        operation: &'static str,
    },
    /// The kind of the cache does not have the operation.
    #[error("a {kind} cache cannot {operation}")]
    Unsupported {
        /// The kind of the cache.
        kind: &'static str,
        /// The operation.
        operation: &'static str,
    },
    /// The sequence has a gap, so its rows cannot be saved.
    #[error(
        "sequence {seq} has no token at position {position}: only a sequence without gaps can be saved"
    )]
    Gap {
        /// The sequence.
        seq: SeqId,
        /// The first missing position.
        position: u32,
    },
    /// The shift drops no token, or more tokens than the sequence has.
    #[error("cannot drop {dropped} tokens after the first {keep}: the sequence has {len}")]
    Shift {
        /// Tokens to keep.
        keep: u32,
        /// Tokens to drop.
        dropped: u32,
        /// Tokens that the sequence holds.
        len: u32,
    },
    /// The saved rows do not fit the cache.
    #[error("the saved rows do not fit the cache: {0}")]
    SavedRows(String),
    /// The call would change a shared prefix, which is read-only.
    #[error("the first {tokens} tokens are a shared prefix, which is read-only")]
    PrefixReadOnly {
        /// Tokens of the prefix.
        tokens: u32,
    },
    /// No cache can be built from the configuration.
    #[error("bad cache configuration: {0}")]
    Config(String),
    /// The cache facts of a model file cannot be read or written.
    #[error("the model's metadata is wrong: {key:?} {reason}")]
    Metadata {
        /// The key at fault.
        key: String,
        /// The fault.
        reason: String,
    },
    /// The frozen prefix does not match the configuration of the cache.
    #[error("the shared prefix does not fit: {0}")]
    PrefixMismatch(String),
    /// An operation failed on the backend's device.
    #[error("the device failed: {0}")]
    Device(String),
    /// The backend could not allocate this many bytes.
    #[error("out of memory: {:.1} MB of KV could not be allocated", *.0 as f64 / 1e6)]
    OutOfMemory(usize),
}

impl KvError {
    /// Why the call failed.
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
