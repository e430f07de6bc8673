//! The two kinds of files that have the tables of a snapshot.

use super::{SnapshotError, SnapshotErrorKind};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// A kind of file: what its rows are for decides how they lie in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// A sequence that is copied to a cache, `[heads, rows, row]`.
    #[default]
    Snapshot,
    /// A prefix whose rows are read where they lie, in [`RowLayout`](backend::RowLayout), head after head.
    Prefix,
}

impl Format {
    /// Whether the file at `path` begins with the magic bytes.
    pub(crate) fn is_at(self, path: &Path) -> io::Result<bool> {
        let mut start = vec![];
        File::open(path)?.take(8).read_to_end(&mut start)?;
        Ok(start == self.magic())
    }

    /// Checks that a file can be written to `path`: that its folder exists and is writable.
    pub(crate) fn check_writable(self, path: &Path) -> Result<(), SnapshotError> {
        let failed = |error| SnapshotErrorKind::Io(error).of(self).in_file(path);
        let name = path.file_name().filter(|_| !path.is_dir());
        let name = name.ok_or_else(|| failed(std::io::ErrorKind::IsADirectory.into()))?;
        let mut trial = std::ffi::OsString::from(".");
        trial.push(name);
        trial.push(format!(".trial-{}", std::process::id()));
        let trial = path.with_file_name(trial);
        std::fs::File::create(&trial).map_err(failed)?;
        std::fs::remove_file(&trial).map_err(failed)
    }

    pub(crate) const fn magic(self) -> &'static [u8; 8] {
        match self {
            Format::Snapshot => b"KVARKSNP",
            Format::Prefix => b"KVARKPFX",
        }
    }

    /// The rows begin at a multiple of this many bytes: those of a prefix with a page.
    pub(crate) const fn alignment(self) -> usize {
        match self {
            Format::Snapshot => 64,
            Format::Prefix => 4096,
        }
    }

    /// The keys and the values of a layer begin at a multiple of this many bytes; zeros are between them.
    pub(crate) const fn side_alignment(self) -> usize {
        match self {
            Format::Snapshot => 1,
            Format::Prefix => 64,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Snapshot => "snapshot",
            Format::Prefix => "prefix",
        })
    }
}
