//! Why a snapshot is refused.

use kv::Storage;
use std::fmt;
use std::path::{Path, PathBuf};

/// A snapshot that could not be written, or was refused; the session is as it was.
#[derive(Debug)]
pub struct SnapshotError {
    path: Option<PathBuf>,
    kind: SnapshotErrorKind,
}

/// Why a snapshot was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotErrorKind {
    /// The file could not be read or written.
    #[error("{0}")]
    Io(std::io::Error),
    /// The file does not begin as a snapshot does.
    #[error("the file is no snapshot of kvark's")]
    NotASnapshot,
    /// The snapshot has another version.
    #[error(
        "it is of version {found}, and only version {} is understood",
        super::VERSION
    )]
    Version {
        /// The version it states.
        found: u32,
    },
    /// The file is not as long as it says.
    #[error("the file is cut off or damaged: it has {found} bytes{}", stated.map_or(String::new(), |n| format!(" and says {n}")))]
    Length {
        /// Bytes it has.
        found: u64,
        /// Bytes it says it has.
        stated: Option<u64>,
    },
    /// A checksum is wrong.
    #[error("the file is damaged: the checksum of {part} is wrong")]
    Damaged {
        /// What is damaged.
        part: String,
    },
    /// Numbers that cannot be, behind a right checksum.
    #[error("the file is malformed: {0}")]
    Malformed(String),
    /// The snapshot was made with another model, or with the same one for another context or with other passes.
    #[error("it was made with another model, or with other options that change the model's graph")]
    ModelMismatch,
    /// The rows are stored in another type.
    #[error(
        "its keys are {} and its values {}, and the session stores {} and {}", found[0], found[1], wanted[0], wanted[1]
    )]
    StorageMismatch {
        /// Types of keys and values in the snapshot.
        found: [Storage; 2],
        /// Types of keys and values in the session.
        wanted: [Storage; 2],
    },
    /// More tokens than the context holds.
    #[error("it has {tokens} tokens, and the context holds {capacity}")]
    TooLong {
        /// Tokens of the snapshot.
        tokens: usize,
        /// The whole context.
        capacity: usize,
    },
}

impl SnapshotError {
    /// Why it was refused.
    pub fn kind(&self) -> &SnapshotErrorKind {
        &self.kind
    }

    /// The same error, naming the file.
    pub fn in_file(self, path: &Path) -> SnapshotError {
        SnapshotError {
            path: Some(path.to_owned()),
            ..self
        }
    }
}

impl From<SnapshotErrorKind> for SnapshotError {
    fn from(kind: SnapshotErrorKind) -> SnapshotError {
        SnapshotError { path: None, kind }
    }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "snapshot {}: {}", path.display(), self.kind),
            None => write!(f, "the snapshot cannot be used: {}", self.kind),
        }
    }
}

impl std::error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind.source()
    }
}
