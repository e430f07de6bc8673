//! The error type of snapshots and prefix files.

use super::Format;
use kv::KvStorage;
use std::fmt;
use std::path::{Path, PathBuf};

/// A snapshot or prefix file that could not be read, restored or written. The session is unchanged.
#[derive(Debug)]
pub struct SnapshotError {
    format: Format,
    path: Option<PathBuf>,
    kind: SnapshotErrorKind,
}

/// Why a snapshot could not be read, restored or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotErrorKind {
    /// The file could not be read or written.
    #[error("{0}")]
    Io(std::io::Error),
    /// The file does not start with the magic bytes of a snapshot.
    #[error("the file is not a kvark snapshot")]
    NotASnapshot,
    /// The file does not start with the magic bytes of a prefix file.
    #[error("the file is not a kvark prefix")]
    NotAPrefix,
    /// The snapshot has another version.
    #[error(
        "it has version {found}, and only version {} is supported",
        super::VERSION
    )]
    Version {
        /// The version of the file.
        found: u32,
    },
    /// The length of the file differs from the length in its header.
    #[error("the file is truncated or damaged: it has {found} bytes{}", stated.map_or(String::new(), |n| format!(", and its header states {n}")))]
    Length {
        /// Bytes of the file.
        found: u64,
        /// Bytes according to the header, if it could be read.
        stated: Option<u64>,
    },
    /// A checksum is wrong.
    #[error("the file is damaged: the checksum of {part} is wrong")]
    Damaged {
        /// The damaged part.
        part: String,
    },
    /// The checksums are right, but the content is invalid.
    #[error("the file is malformed: {0}")]
    Malformed(String),
    /// The snapshot belongs to another model, or to the same model with another context or other passes.
    #[error("it was made with another model, or with other options that change the model's graph")]
    ModelMismatch,
    /// The storage types differ from those of the session.
    #[error(
        "its keys are {} and its values {}, and the session stores {} and {}", found[0], found[1], wanted[0], wanted[1]
    )]
    StorageMismatch {
        /// Types of keys and values in the snapshot.
        found: [KvStorage; 2],
        /// Types of keys and values in the session.
        wanted: [KvStorage; 2],
    },
    /// The storage type of recurrent layers' states differs from that of the session.
    #[error("its states are {found}, and the session stores {wanted}")]
    StateStorageMismatch {
        /// Type of the states in the snapshot.
        found: KvStorage,
        /// Type of the states in the session.
        wanted: KvStorage,
    },
    /// The snapshot has more tokens than the context.
    #[error("it has {tokens} tokens, and the context holds {capacity}")]
    TooLong {
        /// Tokens of the snapshot.
        tokens: usize,
        /// The size of the context in tokens.
        capacity: usize,
    },
}

impl SnapshotError {
    /// Why it failed.
    pub fn kind(&self) -> &SnapshotErrorKind {
        &self.kind
    }

    /// Adds the path of the file to the error.
    pub fn in_file(self, path: &Path) -> SnapshotError {
        SnapshotError {
            path: Some(path.to_owned()),
            ..self
        }
    }
}

impl From<SnapshotErrorKind> for SnapshotError {
    fn from(kind: SnapshotErrorKind) -> SnapshotError {
        kind.of(Format::Snapshot)
    }
}

impl SnapshotErrorKind {
    /// The error of a file in this format.
    pub(crate) fn of(self, format: Format) -> SnapshotError {
        SnapshotError {
            format,
            path: None,
            kind: self,
        }
    }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{} {}: {}", self.format, path.display(), self.kind),
            None => write!(f, "the {} cannot be used: {}", self.format, self.kind),
        }
    }
}

impl std::error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind.source()
    }
}
