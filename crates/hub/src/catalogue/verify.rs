//! Streaming size and SHA-256 check of a model file.

use super::{
    CatalogueEntry, CatalogueError, CatalogueErrorKind, FetchCallback, FetchProgress, FetchStage,
};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes between two reports of progress.
const CHUNK: usize = 1 << 20;

/// Counts and hashes the bytes of a transfer.
pub(super) struct ChecksumMeter<'a> {
    entry: &'a CatalogueEntry,
    stage: FetchStage,
    seen: u64,
    hash: Sha256,
}

/// Why a transfer ended early.
pub(super) enum TransferError {
    Read(io::Error),
    Write(io::Error),
    Interrupted,
}

impl<'a> ChecksumMeter<'a> {
    pub(super) fn new(entry: &'a CatalogueEntry, stage: FetchStage) -> ChecksumMeter<'a> {
        ChecksumMeter {
            entry,
            stage,
            seen: 0,
            hash: Sha256::new(),
        }
    }

    /// Reads all of `from` and passes every chunk to `to`. Stops one byte after the expected size.
    pub(super) fn transfer(
        &mut self,
        from: &mut dyn Read,
        mut to: impl FnMut(&[u8]) -> io::Result<()>,
        on: FetchCallback<'_>,
    ) -> Result<(), TransferError> {
        let mut chunk = vec![0; CHUNK];
        // A hostile package must not fill the disk.
        while self.seen <= self.entry.bytes {
            let n = match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(TransferError::Read(error)),
            };
            self.hash.update(&chunk[..n]);
            to(&chunk[..n]).map_err(TransferError::Write)?;
            self.seen += n as u64;
            let progress = FetchProgress {
                stage: self.stage,
                done: self.seen.min(self.entry.bytes),
                total: self.entry.bytes,
            };
            if !on(progress) {
                return Err(TransferError::Interrupted);
            }
        }
        Ok(())
    }

    /// Compares size and checksum with the catalogue.
    pub(super) fn check(self) -> Result<(), CatalogueError> {
        let CatalogueEntry {
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

/// Checks the size and the checksum of an installed file.
pub(super) fn verify(
    path: &Path,
    entry: &CatalogueEntry,
    on: FetchCallback<'_>,
) -> Result<(), CatalogueError> {
    let unreadable = |error| CatalogueError::io("read", path, error);
    let mut file = File::open(path).map_err(unreadable)?;
    let mut meter = ChecksumMeter::new(entry, FetchStage::Verify);
    meter
        .transfer(&mut file, |_| Ok(()), on)
        .map_err(|broken| match broken {
            TransferError::Read(error) | TransferError::Write(error) => unreadable(error),
            TransferError::Interrupted => CatalogueErrorKind::Interrupted.into(),
        })?;
    meter.check()
}
