//! Reads a model once, counting and hashing what passes.

use super::{CatalogueError, CatalogueErrorKind, Entry, OnProgress, Progress, Stage};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes between two reports of progress.
const CHUNK: usize = 1 << 20;

/// The count and checksum of the bytes seen so far of a model.
pub(super) struct Meter<'a> {
    entry: &'a Entry,
    stage: Stage,
    seen: u64,
    hash: Sha256,
}

/// Why a copy ended early.
pub(super) enum Broken {
    Read(io::Error),
    Write(io::Error),
    Interrupted,
}

impl<'a> Meter<'a> {
    pub(super) fn new(entry: &'a Entry, stage: Stage) -> Meter<'a> {
        Meter {
            entry,
            stage,
            seen: 0,
            hash: Sha256::new(),
        }
    }

    /// Takes all of `from`, handing every chunk to `to`; stops after one byte more than the model has.
    pub(super) fn pass(
        &mut self,
        from: &mut dyn Read,
        mut to: impl FnMut(&[u8]) -> io::Result<()>,
        on: OnProgress<'_>,
    ) -> Result<(), Broken> {
        let mut chunk = vec![0; CHUNK];
        // A hostile package must not fill the disk.
        while self.seen <= self.entry.bytes {
            let n = match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Broken::Read(error)),
            };
            self.hash.update(&chunk[..n]);
            to(&chunk[..n]).map_err(Broken::Write)?;
            self.seen += n as u64;
            let progress = Progress {
                stage: self.stage,
                done: self.seen.min(self.entry.bytes),
                total: self.entry.bytes,
            };
            if !on(progress) {
                return Err(Broken::Interrupted);
            }
        }
        Ok(())
    }

    /// Compares what was seen with the catalogue.
    pub(super) fn check(self) -> Result<(), CatalogueError> {
        let Entry {
            name: model,
            bytes: expected,
            sha256,
            ..
        } = *self.entry;
        if self.seen != expected {
            let found = self.seen;
            return Err(CatalogueErrorKind::Size {
                model,
                found,
                expected,
            }
            .into());
        }
        let mut found = String::new();
        for byte in self.hash.finalize() {
            let _ = write!(found, "{byte:02x}");
        }
        if found != sha256 {
            let expected = sha256;
            return Err(CatalogueErrorKind::Checksum {
                model,
                found,
                expected,
            }
            .into());
        }
        Ok(())
    }
}

/// Checks the size and the checksum of a file that is in place.
pub(super) fn verify(path: &Path, entry: &Entry, on: OnProgress<'_>) -> Result<(), CatalogueError> {
    let unreadable = |error| CatalogueError::io("read", path, error);
    let mut file = File::open(path).map_err(unreadable)?;
    let mut meter = Meter::new(entry, Stage::Verify);
    meter
        .pass(&mut file, |_| Ok(()), on)
        .map_err(|broken| match broken {
            Broken::Read(error) | Broken::Write(error) => unreadable(error),
            Broken::Interrupted => CatalogueErrorKind::Interrupted.into(),
        })?;
    meter.check()
}
