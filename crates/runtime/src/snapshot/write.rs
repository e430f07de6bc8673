//! Writes a snapshot. The rows are written before the header, which contains their checksums.

use super::{Format, HEADER_BYTES, LAYER_RECORD_BYTES, SnapshotErrorKind, VERSION, own_types_code};
use crate::{Model, RuntimeError};
use backend::RowLayout;
use base::{atomic_write, xxh64};
use kv::{CacheOperations, CellRun, KvBytes, KvStorage, SeqId, SequenceRows, Side};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
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
    let fingerprint = model.fingerprint();
    let mut written = Ok(());
    cache.read_rows(seq, &mut |held, bytes| {
        assert_eq!(held.len as usize, contents.tokens.len());
        written = atomic_write(path, |file| {
            write(file, fingerprint, &contents, held, bytes)
        });
    })?;
    let failed = |error| {
        let error = SnapshotErrorKind::Io(error).of(contents.format);
        error.in_file(path)
    };
    Ok(written.map_err(failed)?)
}

fn write(
    file: &mut File,
    fingerprint: u64,
    contents: &Contents<'_>,
    held: &SequenceRows,
    bytes: &dyn KvBytes,
) -> io::Result<()> {
    let (config, format) = (bytes.config(), contents.format);
    let states = config.layers.iter().position(|layer| layer.is_state());
    let states = states.map_or(vec![], |layer| saved_runs(format, held, bytes, layer));
    let states: Vec<u32> = states.iter().flat_map(CellRun::positions).collect();
    let numbers = contents.tokens.len() + states.len();
    let tables = 4 * numbers + LAYER_RECORD_BYTES * held.layers() + contents.notes.len();
    let rows_at = (HEADER_BYTES + tables + 8).next_multiple_of(format.alignment());
    file.seek(SeekFrom::Start(rows_at as u64))?;
    let mut end = rows_at;
    let mut sums = vec![];
    let mut rows = vec![];
    for (layer, facts) in config.layers.iter().enumerate() {
        for side in [Side::Key, Side::Value] {
            let row = config.row_bytes(layer, side);
            let runs = saved_runs(format, held, bytes, layer);
            let count: usize = runs.iter().map(|run| run.len as usize).sum();
            rows.resize(facts.kv_heads * count * row, 0);
            bytes
                .read_rows(layer, side, &runs, &mut rows)
                .map_err(io::Error::other)?;
            if format == Format::Prefix {
                rows = laid_out(RowLayout::of(config, layer, side), count, &rows);
            }
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
    header.extend((held.layers() as u32).to_le_bytes());
    header.extend((end as u64).to_le_bytes());
    header.extend(fingerprint.to_le_bytes());
    for storage in [config.key_storage, config.value_storage] {
        let mut name = [0; 8];
        name[..storage.name().len()].copy_from_slice(storage.name().as_bytes());
        header.extend(name);
    }
    header.extend(held.len.to_le_bytes());
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
        let numbers = [window, held.first_position(layer), types];
        header.extend(dims.iter().chain(&numbers).flat_map(|n| n.to_le_bytes()));
        header.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
    }
    header.extend(contents.notes);
    header.resize(rows_at - 8, 0);
    header.extend(xxh64(&header, 0).to_le_bytes());
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&header)
}

/// The runs of a layer that are saved: of a prefix's states only the last one.
fn saved_runs(
    format: Format,
    held: &SequenceRows,
    bytes: &dyn KvBytes,
    layer: usize,
) -> Vec<CellRun> {
    let runs = held.runs(layer);
    match format {
        Format::Prefix if bytes.config().layers[layer].is_state() => {
            let last = runs
                .last()
                .and_then(|run| run.clip(&(held.len - 1..held.len)));
            Vec::from_iter(last)
        }
        _ => runs.to_vec(),
    }
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
