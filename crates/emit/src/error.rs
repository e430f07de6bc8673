//! The error type of the crate.

use std::path::PathBuf;

/// A model that cannot be emitted, or a folder that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct EmitError(Box<EmitErrorKind>);

/// Why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitErrorKind {
    /// A node has no C.
    #[error("{node} ({op}) cannot be emitted: {reason}")]
    Node {
        /// The node's name.
        node: String,
        /// Its op.
        op: &'static str,
        /// The attribute or type that the C kernels do not support.
        reason: String,
    },
    /// The graph as a whole cannot be emitted.
    #[error("the model cannot be emitted: {0}")]
    Graph(String),
    /// The tokenizer has no C.
    #[error("the tokenizer cannot be emitted: {0}")]
    Tokenizer(text::TextError),
    /// The program needs more memory than is allowed.
    #[error("the program needs {needed} bytes, {state} of state and {weights} of weights; {limit}")]
    TooLarge {
        /// Bytes of state and weights.
        needed: u128,
        /// Bytes of the state.
        state: u128,
        /// Bytes of the weights.
        weights: u128,
        /// The limit, in words.
        limit: String,
    },
    /// The folder is there and holds other files.
    #[error("{} is not empty and was not written by emit-c", .0.display())]
    NotOurs(PathBuf),
    /// A file could not be written.
    #[error("cannot write {}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The progress callback cancelled writing.
    #[error("interrupted")]
    Interrupted,
}

impl EmitError {
    /// Why it failed.
    pub fn kind(&self) -> &EmitErrorKind {
        &self.0
    }
}

impl From<EmitErrorKind> for EmitError {
    fn from(kind: EmitErrorKind) -> EmitError {
        EmitError(Box::new(kind))
    }
}
