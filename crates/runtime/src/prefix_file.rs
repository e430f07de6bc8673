//! `PrefixFile`: a prompt prefix in a file, whose rows are read where they are mapped.
//!
//! The file has the tables of a [`Snapshot`](crate::Snapshot) after other magic bytes. Its rows begin with a page of memory, every side
//! of a layer with a multiple of 64 bytes, and each head's rows lie in the [`RowLayout`](backend::RowLayout) of the CPU's attention.
//! Recurrent layers have the state after the last token.

use crate::options::cache_config;
use crate::snapshot::{Format, Snapshot, SnapshotError, SnapshotErrorKind};
use crate::{Model, PromptPrefix, RunnerOptions, RuntimeError};
use backend::Backend;
use base::Bytes;
use kv::{CacheConfig, KvStorage, LayerConfig, PrefixCells, SharedPrefix};
use std::path::Path;

/// A checked prefix file. Processes that map the same file share the memory of its rows.
#[derive(Clone, Debug)]
pub struct PrefixFile {
    tables: Snapshot,
    cells: PrefixCells,
}

impl PrefixFile {
    /// Maps the file at `path` and verifies all its checksums.
    ///
    /// The file must not be changed while it is mapped. Writing another prefix to the same path replaces the file, and those who
    /// have mapped the old one keep it.
    pub fn open(path: &Path) -> Result<PrefixFile, SnapshotError> {
        let tables = Snapshot::open_as(Format::Prefix, path)?;
        PrefixFile::checked(tables).map_err(|error| error.in_file(path))
    }

    /// Parses a prefix file and verifies all its checksums.
    pub fn parse(bytes: Bytes) -> Result<PrefixFile, SnapshotError> {
        PrefixFile::checked(Snapshot::parse_as(Format::Prefix, bytes)?)
    }

    /// Whether the file at `path` begins as a prefix file does.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn is_at(path: &Path) -> std::io::Result<bool> {
        Format::Prefix.is_at(path)
    }

    /// Checks that a prefix file can be written to `path`: that its folder exists and is writable.
    ///
    /// # Errors
    /// `Io` if it cannot be written.
    pub fn check_writable(path: &Path) -> Result<(), SnapshotError> {
        Format::Prefix.check_writable(path)
    }

    /// Checks that the rows are those that the token after the prefix attends to.
    fn checked(tables: Snapshot) -> Result<PrefixFile, SnapshotError> {
        let malformed = |what: String| SnapshotErrorKind::Malformed(what).of(Format::Prefix);
        let len = tables.tokens().len() as u32;
        let config = CacheConfig::new(len, tables.layers().copied().collect());
        let after_last = Vec::from_iter(len.checked_sub(1).filter(|_| config.has_states()));
        if tables.states() != after_last {
            let reason = "recurrent layers must have the state after the last token only";
            return Err(malformed(reason.into()));
        }
        let first: Vec<u32> = tables.first_positions().collect();
        let cells = PrefixCells::consecutive(&config, len, &first);
        let cells = cells.map_err(|error| malformed(error.to_string()))?;
        Ok(PrefixFile { tables, cells })
    }

    /// The rows as a prefix that caches of a model can stand on. The CPU reads them where they are mapped; other backends copy them to
    /// their device.
    ///
    /// # Errors
    /// `Snapshot` if the file belongs to another model or has other storage types; the message names the file.
    pub fn shared(
        &self,
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
    ) -> Result<PromptPrefix, RuntimeError> {
        let config = cache_config(model.facts(), options)?;
        self.tables.check(model, &config)?;
        let rows: Vec<[Bytes; 2]> = self.tables.sides().collect();
        let frozen = backend.freeze_rows(&config, &self.cells.counts(), &rows)?;
        let shared = SharedPrefix::new(frozen, self.cells.clone(), config);
        Ok(PromptPrefix::new(shared, self.tokens().to_vec(), model))
    }

    /// The tokens of the prefix.
    pub fn tokens(&self) -> &[u32] {
        self.tables.tokens()
    }

    /// The notes that were saved with the tokens.
    pub fn notes(&self) -> &[u8] {
        self.tables.notes()
    }

    /// The fingerprint of the model that it was made with.
    pub fn fingerprint(&self) -> u64 {
        self.tables.fingerprint()
    }

    /// The storage types of keys and values.
    pub fn storage(&self) -> [KvStorage; 2] {
        self.tables.storage()
    }

    /// The shape of every layer's keys and values.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &LayerConfig> {
        self.tables.layers()
    }

    /// Bytes of the keys and values of all layers.
    pub fn kv_bytes(&self) -> usize {
        self.tables.kv_bytes()
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> usize {
        self.tables.file_bytes()
    }
}
