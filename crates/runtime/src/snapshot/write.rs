//! Writes a snapshot to a file or to memory. The rows are written before the header, which contains their checksums.

use super::{
    Format, HEADER_BYTES, LAYER_RECORD_BYTES, Snapshot, SnapshotError, SnapshotErrorKind, VERSION,
    own_types_code,
};
use crate::{Model, RuntimeError};
use backend::{RowLayout, transcode_rows};
use base::{Bytes, atomic_write, xxh64};
use kv::{CacheConfig, CacheOperations, CellRun, KvBytes, KvStorage, SeqId, SequenceRows, Side};
use std::io::{self, Cursor, Seek, SeekFrom, Write};
use std::path::Path;

/// The content of a snapshot, except its rows.
pub(crate) struct Contents<'a> {
    pub(crate) format: Format,
    pub(crate) tokens: &'a [u32],
    pub(crate) notes: &'a [u8],
}

/// Writes a sequence to `path`. An existing file is replaced atomically.
pub(crate) fn save(
    path: &Path,
    model: &Model,
    cache: &dyn CacheOperations,
    seq: SeqId,
    contents: Contents<'_>,
) -> Result<(), RuntimeError> {
    let mut written = Ok(());
    cache.read_rows(seq, &mut |held, bytes| {
        assert_eq!(held.len as usize, contents.tokens.len());
        let rows = CachedRows::new(contents.format, held, bytes);
        written = atomic_write(path, |file| {
            write(file, model.fingerprint(), &contents, &rows)
        });
    })?;
    let failed = |error| {
        let error = SnapshotErrorKind::Io(error).of(contents.format);
        error.in_file(path)
    };
    Ok(written.map_err(failed)?)
}

/// Copies a sequence to a snapshot in memory.
pub(crate) fn copy(
    model: &Model,
    cache: &dyn CacheOperations,
    seq: SeqId,
    contents: &Contents<'_>,
) -> Result<Snapshot, RuntimeError> {
    let mut copied = None;
    cache.read_rows(seq, &mut |held, bytes| {
        let rows = CachedRows::new(contents.format, held, bytes);
        copied = Some(in_memory(model.fingerprint(), contents, &rows));
    })?;
    Ok(copied.expect("the rows of a sequence were read")?)
}

impl Snapshot {
    /// The snapshot in memory with its rows in other types, one pair per layer. The states of recurrent layers stay as they are.
    pub(crate) fn in_types(
        &self,
        types: &[[KvStorage; 2]],
        notes: &[u8],
    ) -> Result<Snapshot, SnapshotError> {
        let contents = Contents {
            format: self.format,
            tokens: &self.tokens,
            notes,
        };
        let mut config =
            CacheConfig::new(self.tokens.len() as u32, self.layers().copied().collect());
        [config.key_storage, config.value_storage] = self.storage;
        for (layer, (record, types)) in self.layers.iter().zip(types).enumerate() {
            match record.facts.is_state() {
                true => config.states.storage = record.storage[1],
                false => _ = config.layer_storage.insert(layer, *types),
            }
        }
        let rows = TranscodedRows {
            from: self,
            config: &config,
        };
        in_memory(self.fingerprint, &contents, &rows)
    }

    /// Writes a snapshot that is in memory to `path`. An existing file is replaced atomically.
    pub(crate) fn write_to(&self, path: &Path) -> Result<(), SnapshotError> {
        let written = atomic_write(path, |file| file.write_all(&self.bytes));
        written.map_err(|error| SnapshotErrorKind::Io(error).of(self.format).in_file(path))
    }
}

/// The rows that a snapshot is written of.
trait RowSource {
    fn config(&self) -> &CacheConfig;
    /// The positions after which recurrent layers have states.
    fn states(&self) -> Vec<u32>;
    fn first_position(&self, layer: usize) -> u32;
    /// The number of rows of a head.
    fn count(&self, layer: usize) -> usize;
    /// Puts the encoded rows of a side in the place of what `rows` has.
    fn read(&self, layer: usize, side: Side, rows: &mut Vec<u8>) -> io::Result<()>;
}

/// The rows of a sequence of a cache.
struct CachedRows<'a> {
    format: Format,
    held: &'a SequenceRows,
    bytes: &'a dyn KvBytes,
}

impl<'a> CachedRows<'a> {
    fn new(format: Format, held: &'a SequenceRows, bytes: &'a dyn KvBytes) -> CachedRows<'a> {
        CachedRows {
            format,
            held,
            bytes,
        }
    }

    /// The runs of a layer that are saved: of a prefix's states only the last one.
    fn runs(&self, layer: usize) -> Vec<CellRun> {
        let runs = self.held.runs(layer);
        match self.format {
            Format::Prefix if self.config().layers[layer].is_state() => {
                let last = runs
                    .last()
                    .and_then(|run| run.clip(&(self.held.len - 1..self.held.len)));
                Vec::from_iter(last)
            }
            _ => runs.to_vec(),
        }
    }
}

impl RowSource for CachedRows<'_> {
    fn config(&self) -> &CacheConfig {
        self.bytes.config()
    }

    fn states(&self) -> Vec<u32> {
        let layers = &self.config().layers;
        let states = layers.iter().position(|layer| layer.is_state());
        let states = states.map_or(vec![], |layer| self.runs(layer));
        states.iter().flat_map(CellRun::positions).collect()
    }

    fn first_position(&self, layer: usize) -> u32 {
        self.held.first_position(layer)
    }

    fn count(&self, layer: usize) -> usize {
        self.runs(layer).iter().map(|run| run.len as usize).sum()
    }

    fn read(&self, layer: usize, side: Side, rows: &mut Vec<u8>) -> io::Result<()> {
        let count = self.count(layer);
        let row = self.config().row_bytes(layer, side);
        rows.resize(self.config().layers[layer].kv_heads * count * row, 0);
        let read = self.bytes.read_rows(layer, side, &self.runs(layer), rows);
        read.map_err(io::Error::other)?;
        if self.format == Format::Prefix {
            *rows = laid_out(RowLayout::of(self.config(), layer, side), count, rows);
        }
        Ok(())
    }
}

/// The rows of a snapshot, in other types.
struct TranscodedRows<'a> {
    from: &'a Snapshot,
    config: &'a CacheConfig,
}

impl RowSource for TranscodedRows<'_> {
    fn config(&self) -> &CacheConfig {
        self.config
    }

    fn states(&self) -> Vec<u32> {
        self.from.states.clone()
    }

    fn first_position(&self, layer: usize) -> u32 {
        self.from.layers[layer].first
    }

    fn count(&self, layer: usize) -> usize {
        match self.config.layers[layer].is_state() {
            true => self.from.states.len(),
            false => self.from.tokens.len() - self.from.layers[layer].first as usize,
        }
    }

    fn read(&self, layer: usize, side: Side, rows: &mut Vec<u8>) -> io::Result<()> {
        let (record, facts) = (&self.from.layers[layer], &self.config.layers[layer]);
        let (index, dim) = match side {
            Side::Key => (0, facts.key_dim),
            Side::Value => (1, facts.value_dim),
        };
        let stored = &self.from.bytes[record.sides[index].0.clone()];
        let types = [record.storage[index], self.config.storage(layer, side)];
        if types[0] == types[1] {
            rows.clear();
            rows.extend_from_slice(stored);
            return Ok(());
        }
        rows.resize(
            facts.kv_heads * self.count(layer) * types[1].row_bytes(dim),
            0,
        );
        transcode_rows(types, dim, stored, rows);
        Ok(())
    }
}

/// Writes a snapshot to memory.
fn in_memory(
    fingerprint: u64,
    contents: &Contents<'_>,
    rows: &dyn RowSource,
) -> Result<Snapshot, SnapshotError> {
    let (_, end) = extent(contents, rows);
    let mut written = Ok(());
    let bytes = Bytes::filled(end, |out| {
        written = write(&mut Cursor::new(out), fingerprint, contents, rows);
    });
    written.map_err(|error| SnapshotErrorKind::Io(error).of(contents.format))?;
    Snapshot::parse_tables(contents.format, bytes)
}

/// The offset of the rows, and the size of the whole.
fn extent(contents: &Contents<'_>, rows: &dyn RowSource) -> (usize, usize) {
    let (config, format) = (rows.config(), contents.format);
    let numbers = contents.tokens.len() + rows.states().len();
    let layers = config.layers.len();
    let tables = 4 * numbers + LAYER_RECORD_BYTES * layers + contents.notes.len();
    let rows_at = (HEADER_BYTES + tables + 8).next_multiple_of(format.alignment());
    let mut end = rows_at;
    for (layer, facts) in config.layers.iter().enumerate() {
        for side in [Side::Key, Side::Value] {
            let start = end.next_multiple_of(format.side_alignment());
            end = start + facts.kv_heads * rows.count(layer) * config.row_bytes(layer, side);
        }
    }
    (rows_at, end)
}

fn write(
    file: &mut (impl Write + Seek),
    fingerprint: u64,
    contents: &Contents<'_>,
    source: &dyn RowSource,
) -> io::Result<()> {
    let (config, format) = (source.config(), contents.format);
    let states = source.states();
    let (rows_at, _) = extent(contents, source);
    file.seek(SeekFrom::Start(rows_at as u64))?;
    let mut end = rows_at;
    let mut sums = vec![];
    let mut rows = vec![];
    for layer in 0..config.layers.len() {
        for side in [Side::Key, Side::Value] {
            source.read(layer, side, &mut rows)?;
            sums.push(xxh64(&rows, 0));
            let start = end.next_multiple_of(format.side_alignment());
            file.write_all(&vec![0; start - end])?;
            file.write_all(&rows)?;
            end = start + rows.len();
        }
    }

    let mut header = Vec::with_capacity(rows_at);
    header.extend(format.magic());
    header.extend(VERSION.to_le_bytes());
    header.extend((config.layers.len() as u32).to_le_bytes());
    header.extend((end as u64).to_le_bytes());
    header.extend(fingerprint.to_le_bytes());
    for storage in [config.key_storage, config.value_storage] {
        let mut name = [0; 8];
        name[..storage.name().len()].copy_from_slice(storage.name().as_bytes());
        header.extend(name);
    }
    header.extend((contents.tokens.len() as u32).to_le_bytes());
    header.extend((states.len() as u32).to_le_bytes());
    header.extend((contents.notes.len() as u64).to_le_bytes());
    let numbers = contents.tokens.iter().chain(&states);
    header.extend(numbers.flat_map(|number| number.to_le_bytes()));
    for (layer, (facts, sums)) in config.layers.iter().zip(sums.chunks(2)).enumerate() {
        let dims = [facts.kv_heads, facts.key_dim, facts.value_dim].map(|n| n as u32);
        let types = [Side::Key, Side::Value].map(|side| config.storage(layer, side));
        let types = match (facts.is_state(), types) {
            (true, [_, state]) => u32::from(state == KvStorage::F16),
            (false, types) if types == [config.key_storage, config.value_storage] => 0,
            (false, types) => own_types_code(types),
        };
        let window = facts.window.unwrap_or(0);
        let numbers = [window, source.first_position(layer), types];
        header.extend(dims.iter().chain(&numbers).flat_map(|n| n.to_le_bytes()));
        header.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
    }
    header.extend(contents.notes);
    header.resize(rows_at - 8, 0);
    header.extend(xxh64(&header, 0).to_le_bytes());
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&header)
}

/// Lays out encoded rows `[heads, rows, row]` as attention reads them.
fn laid_out(layout: RowLayout, count: usize, rows: &[u8]) -> Vec<u8> {
    let mut out = vec![0; rows.len()];
    let head = (count * layout.row_bytes()).max(1);
    for (from, to) in rows.chunks_exact(head).zip(out.chunks_exact_mut(head)) {
        layout.put_rows(to, 0, from);
    }
    out
}
