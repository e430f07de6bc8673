//! `Snapshot`: a file with the tokens of a sequence and their encoded keys and values.
//!
//! All numbers are little-endian. The file starts with a *header* of 64 bytes, the tokens, the positions after which
//! recurrent layers have states, one record per layer, the caller's notes, zero padding, and a checksum of all these, which ends at a multiple of 64 bytes. The header is:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `KVARKSNP` |
//! | 4, 4 | version, layers |
//! | 8 | bytes of the file |
//! | 8 | fingerprint of the model |
//! | 8, 8 | names of the storage types of keys and values, padded with zeros |
//! | 4, 4 | tokens, states |
//! | 8 | bytes of the notes |
//!
//! A layer record is 40 bytes: heads, elements of a key, elements of a value, window (0 for none), first position held, storage
//! types (4 bytes each), checksums of its keys and of its values (8 bytes each). After the checksum follow the rows,
//! layer by layer, keys before values, each `[heads, rows, row]` in position order, independent of the backend. The rows of a
//! recurrent layer are its states.
//!
//! The storage types of a layer are 0 for those of the header, else `1 + keys + 16 · values`, which count the types in the order of
//! `KvStorage::ALL`. For a recurrent layer, 0 is f32 and 1 is f16.
//! Checksums are XXH64.
//!
//! A [`PrefixFile`](crate::PrefixFile) has the same tables in another [`Format`].

mod error;
mod format;
mod write;

pub use error::{SnapshotError, SnapshotErrorKind};
pub(crate) use format::Format;
pub(crate) use write::{Contents, copy, save};

use crate::decoder::check_token_ids;
use crate::{Model, RuntimeError};
use backend::{SavedLayer, SavedRows};
use base::{Bytes, parallel, xxh64};
use kv::{CacheConfig, CacheOperations, KvStorage, LayerConfig, SeqId, Side};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The version of the format: the one that is written, and the only one that is read.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 64;
const LAYER_RECORD_BYTES: usize = 40;

/// A checked snapshot. Its rows stay in the mapped file until they are copied to a cache.
#[derive(Clone, Debug)]
pub struct Snapshot {
    format: Format,
    /// The file it was opened from.
    path: Option<PathBuf>,
    bytes: Bytes,
    fingerprint: u64,
    /// Storage types of keys and values.
    storage: [KvStorage; 2],
    tokens: Vec<u32>,
    /// The positions after which recurrent layers have states, ascending.
    states: Vec<u32>,
    layers: Vec<LayerRecord>,
    notes: Range<usize>,
}

#[derive(Clone, Debug)]
struct LayerRecord {
    facts: LayerConfig,
    first: u32,
    /// Storage types of keys and values; of a state both.
    storage: [KvStorage; 2],
    /// Byte ranges and checksums of its keys and values.
    sides: [(Range<usize>, u64); 2],
}

impl Snapshot {
    /// Maps (on Windows: reads) the snapshot at `path` and verifies all its checksums.
    pub fn open(path: &Path) -> Result<Snapshot, SnapshotError> {
        Snapshot::open_as(Format::Snapshot, path)
    }

    pub(crate) fn open_as(format: Format, path: &Path) -> Result<Snapshot, SnapshotError> {
        // Windows replaces no file that is mapped, and a conversation is saved to the file that it was loaded from. A prefix is mapped
        // to be shared.
        let open = if cfg!(windows) && format == Format::Snapshot {
            Bytes::read
        } else {
            Bytes::map
        };
        let bytes = open(path).map_err(|e| SnapshotErrorKind::Io(e.source).of(format));
        let snapshot = bytes.and_then(|bytes| Snapshot::parse_as(format, bytes));
        let snapshot = snapshot.map_err(|error| error.in_file(path))?;
        Ok(Snapshot {
            path: Some(path.to_owned()),
            ..snapshot
        })
    }

    /// Maps the snapshot at `path` and verifies the checksum of its tables, not those of its rows.
    pub(crate) fn open_tables(path: &Path) -> Result<Snapshot, SnapshotError> {
        let bytes = Bytes::map(path).map_err(|e| SnapshotErrorKind::Io(e.source));
        let snapshot = bytes.map_err(SnapshotError::from);
        let snapshot = snapshot.and_then(|bytes| Snapshot::parse_tables(Format::Snapshot, bytes));
        snapshot.map_err(|error| error.in_file(path))
    }

    /// Checks that a snapshot can be written to `path`: that its folder exists and is writable.
    ///
    /// # Errors
    /// `Io` if it cannot be written.
    pub fn check_writable(path: &Path) -> Result<(), SnapshotError> {
        Format::Snapshot.check_writable(path)
    }

    /// Parses a snapshot and verifies all its checksums.
    pub fn parse(bytes: Bytes) -> Result<Snapshot, SnapshotError> {
        Snapshot::parse_as(Format::Snapshot, bytes)
    }

    pub(crate) fn parse_as(format: Format, bytes: Bytes) -> Result<Snapshot, SnapshotError> {
        let snapshot = Snapshot::parse_tables(format, bytes)?;
        let whole = snapshot.check_rows();
        whole.map_err(|kind| kind.of(format))?;
        Ok(snapshot)
    }

    /// Parses everything but the rows.
    fn parse_tables(format: Format, bytes: Bytes) -> Result<Snapshot, SnapshotError> {
        let parsed = Snapshot::parse_header(format, bytes);
        parsed.map_err(|kind| kind.of(format))
    }

    fn parse_header(format: Format, bytes: Bytes) -> Result<Snapshot, SnapshotErrorKind> {
        let mut reader = ByteReader {
            bytes: &bytes,
            at: 0,
        };
        if reader.array() != Some(*format.magic()) {
            return Err(match format {
                Format::Snapshot => SnapshotErrorKind::NotASnapshot,
                Format::Prefix => SnapshotErrorKind::NotAPrefix,
            });
        }
        let cut_off = || SnapshotErrorKind::Length {
            found: bytes.len() as u64,
            stated: None,
        };
        let version = reader.u32().ok_or_else(cut_off)?;
        if version != VERSION {
            return Err(SnapshotErrorKind::Version { found: version });
        }
        let header = Header::read(&mut reader).ok_or_else(cut_off)?;
        if header.file != bytes.len() as u64 {
            return Err(SnapshotErrorKind::Length {
                found: bytes.len() as u64,
                stated: Some(header.file),
            });
        }
        let damaged = |part: String| SnapshotErrorKind::Damaged { part };
        let rows = header.rows_at(format).filter(|at| *at <= bytes.len());
        let rows = rows.ok_or_else(|| damaged("the header".into()))?;
        let (covered, sum) = bytes[..rows].split_at(rows - 8);
        if xxh64(covered, 0).to_le_bytes() != *sum {
            return Err(damaged("the header".into()));
        }
        header.parse_body(&mut reader, &bytes, (format, rows))
    }

    /// The version of the format.
    pub const VERSION: u32 = VERSION;

    /// Whether the file at `path` begins as a snapshot does.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn is_at(path: &Path) -> std::io::Result<bool> {
        Format::Snapshot.is_at(path)
    }

    /// The fingerprint of the model that it was made with.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The storage types of keys and values.
    pub fn storage(&self) -> [KvStorage; 2] {
        self.storage
    }

    /// The storage types of every layer's keys and values; of a state both are its own.
    pub(crate) fn layer_types(&self) -> Vec<[KvStorage; 2]> {
        self.layers.iter().map(|layer| layer.storage).collect()
    }

    /// The shape of every layer's keys and values.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &LayerConfig> {
        self.layers.iter().map(|layer| &layer.facts)
    }

    /// Bytes of the keys and values of all layers.
    pub fn kv_bytes(&self) -> usize {
        let sides = self.layers.iter().flat_map(|layer| &layer.sides);
        sides.map(|(range, _)| range.len()).sum()
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The tokens of the sequence.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The notes that the caller saved with the tokens.
    pub fn notes(&self) -> &[u8] {
        &self.bytes[self.notes.clone()]
    }

    /// The positions after which recurrent layers have states.
    pub(crate) fn states(&self) -> &[u32] {
        &self.states
    }

    /// The first position that each layer has a row of.
    pub(crate) fn first_positions(&self) -> impl Iterator<Item = u32> + '_ {
        self.layers.iter().map(|layer| layer.first)
    }

    /// The bytes of every layer's keys and values.
    pub(crate) fn sides(&self) -> impl Iterator<Item = [Bytes; 2]> + '_ {
        let bytes = |(range, _): &(Range<usize>, u64)| self.bytes.slice(range.clone());
        let sides = self
            .layers
            .iter()
            .map(move |layer| layer.sides.each_ref().map(bytes));
        sides.map(|sides| sides.map(|bytes| bytes.expect("parsing checked the ranges")))
    }

    /// The prefixes that can be restored.
    pub fn restorable(&self) -> RestorableLengths {
        let shortest = |layer: &LayerRecord| match (layer.first, layer.facts.window) {
            (0, _) | (_, None) => 0,
            (first, Some(window)) => first as usize + window as usize - 1,
        };
        let has_states = self.layers.iter().any(|layer| layer.facts.is_state());
        RestorableLengths {
            shortest: self.layers.iter().map(shortest).max().unwrap_or(0),
            states: has_states.then(|| self.states.clone()),
        }
    }

    /// Returns an error if the snapshot belongs to another model or has other storage types.
    pub(crate) fn check(&self, model: &Model, config: &CacheConfig) -> Result<(), RuntimeError> {
        if self.fingerprint != model.fingerprint() {
            return Err(self.refused(SnapshotErrorKind::ModelMismatch));
        }
        if !self
            .layers
            .iter()
            .map(|l| l.facts)
            .eq(config.layers.iter().copied())
        {
            return Err(self.refused(SnapshotErrorKind::Malformed(
                "its layers are not the model's".into(),
            )));
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let wanted = [Side::Key, Side::Value].map(|side| config.storage(i, side));
            if !layer.facts.is_state() && layer.storage != wanted {
                let found = layer.storage;
                return Err(self.refused(SnapshotErrorKind::StorageMismatch { found, wanted }));
            }
        }
        let states = self.layers.iter().find(|layer| layer.facts.is_state());
        let wanted = config.states.storage;
        if let Some(&LayerRecord {
            storage: [_, found],
            ..
        }) = states
            && found != wanted
        {
            return Err(self.refused(SnapshotErrorKind::StateStorageMismatch { found, wanted }));
        }
        check_token_ids(self.tokens.iter().copied(), model.facts().vocab_size)
    }

    fn refused(&self, kind: SnapshotErrorKind) -> RuntimeError {
        let error = kind.of(self.format);
        match &self.path {
            Some(path) => error.in_file(path).into(),
            None => error.into(),
        }
    }

    fn rows(&self) -> SavedRows<'_> {
        let layer = |layer: &LayerRecord| {
            let [keys, values] = layer.sides.clone().map(|(range, _)| range);
            SavedLayer {
                first: layer.first,
                keys: &self.bytes[keys],
                values: &self.bytes[values],
            }
        };
        SavedRows {
            len: self.tokens.len() as u32,
            states: &self.states,
            layers: self.layers.iter().map(layer).collect(),
        }
    }

    fn check_rows(&self) -> Result<(), SnapshotErrorKind> {
        let sides = self.layers.iter().enumerate().flat_map(|(i, layer)| {
            let [keys, values] = &layer.sides;
            [(i, "keys", keys, true), (i, "values", values, true)]
        });
        let mut sides: Vec<_> = sides.collect();
        let work = |(_, _, (range, sum), whole): &mut (usize, &str, &(Range<usize>, u64), bool)| {
            *whole = xxh64(&self.bytes[range.clone()], 0) == *sum;
        };
        parallel::for_each(self.bytes.len(), &mut sides, work);
        match sides.iter().find(|(_, _, _, whole)| !whole) {
            Some((layer, side, ..)) => Err(SnapshotErrorKind::Damaged {
                part: format!("the {side} of layer {layer}"),
            }),
            None => Ok(()),
        }
    }
}

/// The lengths of the prefixes that can be restored from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorableLengths {
    /// Ring layers lack the rows that a shorter one needs.
    shortest: usize,
    /// The positions after which recurrent layers have states, if there are such layers.
    states: Option<Vec<u32>>,
}

impl RestorableLengths {
    /// Whether there are recurrent layers.
    pub fn has_states(&self) -> bool {
        self.states.is_some()
    }

    /// The longest one that is at most `len`; 0 if there is none.
    pub fn longest(&self, len: usize) -> usize {
        let longest = match &self.states {
            None => len,
            Some(states) => {
                let mut lengths = states.iter().map(|position| *position as usize + 1);
                lengths.rfind(|length| *length <= len).unwrap_or(0)
            }
        };
        if longest >= self.shortest { longest } else { 0 }
    }
}

/// Replaces the content of `seq` by the first `len` tokens of a snapshot. An error leaves the cache unchanged, except
/// that a device error leaves `seq` empty.
pub(crate) fn restore(
    snapshot: &Snapshot,
    model: &Model,
    cache: &dyn CacheOperations,
    seq: SeqId,
    len: usize,
) -> Result<(), RuntimeError> {
    let config = cache.config()?;
    snapshot.check(model, &config)?;
    if len > config.capacity as usize {
        return Err(snapshot.refused(SnapshotErrorKind::TooLong {
            tokens: len,
            capacity: config.capacity as usize,
        }));
    }
    Ok(snapshot.rows().restore(cache, seq, len as u32)?)
}

/// Appends the tokens of a snapshot that follow the first `held`, which `seq` has, up to `len`. An error leaves the cache unchanged,
/// except that a device error leaves `seq` empty.
pub(crate) fn restore_rest(
    snapshot: &Snapshot,
    model: &Model,
    cache: &dyn CacheOperations,
    seq: SeqId,
    [held, len]: [usize; 2],
) -> Result<(), RuntimeError> {
    snapshot.check(model, &cache.config()?)?;
    let rows = snapshot.rows();
    Ok(rows.append(cache, seq, held as u32, len as u32)?)
}

/// The fields of the header after magic and version.
struct Header {
    layers: u32,
    file: u64,
    fingerprint: u64,
    storage: [[u8; 8]; 2],
    tokens: u32,
    states: u32,
    notes: u64,
}

impl Header {
    fn read(reader: &mut ByteReader<'_>) -> Option<Header> {
        let (layers, file, fingerprint) = (reader.u32()?, reader.u64()?, reader.u64()?);
        let storage = [reader.array()?, reader.array()?];
        let (tokens, states, notes) = (reader.u32()?, reader.u32()?, reader.u64()?);
        Some(Header {
            layers,
            file,
            fingerprint,
            storage,
            tokens,
            states,
            notes,
        })
    }

    /// The offset of the rows.
    fn rows_at(&self, format: Format) -> Option<usize> {
        let size = |count: u32, each: usize| usize::try_from(count).ok()?.checked_mul(each);
        let notes = usize::try_from(self.notes).ok()?;
        let numbers = size(self.tokens, 4)?.checked_add(size(self.states, 4)?)?;
        let tables = numbers.checked_add(size(self.layers, LAYER_RECORD_BYTES)?)?;
        let all = HEADER_BYTES.checked_add(tables)?.checked_add(notes)?;
        all.checked_add(8)?
            .checked_next_multiple_of(format.alignment())
    }

    /// Parses the tables after the header. The caller has verified their checksum; the rows begin at `rows`.
    fn parse_body(
        &self,
        reader: &mut ByteReader<'_>,
        bytes: &Bytes,
        (format, rows_at): (Format, usize),
    ) -> Result<Snapshot, SnapshotErrorKind> {
        let malformed = |what: &str| SnapshotErrorKind::Malformed(what.to_owned());
        let storage = |name: &[u8; 8]| {
            let name = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
            KvStorage::ALL.into_iter().find(|s| s.name() == name)
        };
        let [keys, values] = self.storage.each_ref().map(storage);
        let storage = keys.zip(values).map(<[KvStorage; 2]>::from);
        let storage = storage.ok_or_else(|| malformed("it names no known storage type"))?;
        let short = || malformed("its tables end too early");
        let mut numbers =
            |count: u32| -> Option<Vec<u32>> { (0..count).map(|_| reader.u32()).collect() };
        let tokens = numbers(self.tokens).ok_or_else(short)?;
        let states = numbers(self.states).ok_or_else(short)?;
        let ascend = states.is_sorted_by(|a, b| a < b);
        if !ascend || states.last().is_some_and(|last| *last >= self.tokens) {
            return Err(malformed("its states are not after ascending positions"));
        }
        let mut layers = vec![];
        let mut place = (format, rows_at);
        for _ in 0..self.layers {
            let layer = LayerRecord::read(reader, [self.tokens, self.states], storage, &mut place);
            layers.push(layer.ok_or_else(|| malformed("a layer's sizes are impossible"))?);
        }
        if place.1 != bytes.len() {
            return Err(malformed("its layers do not add up to its bytes"));
        }
        let notes = reader.at..reader.at + self.notes as usize;
        Ok(Snapshot {
            format,
            path: None,
            bytes: bytes.clone(),
            fingerprint: self.fingerprint,
            storage,
            tokens,
            states,
            layers,
            notes,
        })
    }
}

impl LayerRecord {
    /// Reads the record of the layer whose rows begin at or after `at`, and advances `at` past them.
    fn read(
        reader: &mut ByteReader<'_>,
        [tokens, states]: [u32; 2],
        storage: [KvStorage; 2],
        (format, at): &mut (Format, usize),
    ) -> Option<LayerRecord> {
        let [kv_heads, key_dim, value_dim, window, first, own_types] = {
            let mut numbers = [0; 6];
            for number in &mut numbers {
                *number = reader.u32()?;
            }
            numbers
        };
        let sums = [reader.u64()?, reader.u64()?];
        // An element takes at most four bytes, so the size of a row does not overflow.
        let small = |n: u32| (n < 1 << 24).then_some(n as usize);
        let facts = LayerConfig {
            kv_heads: kv_heads as usize,
            key_dim: small(key_dim)?,
            value_dim: small(value_dim)?,
            window: (window > 0).then_some(window),
            sinks: 0,
        };
        let rows = match facts.is_state() {
            true => states,
            false => tokens.checked_sub(first)?,
        };
        let rows = (rows as usize).checked_mul(facts.kv_heads)?;
        let mut side = |dim: usize, storage: KvStorage, sum| {
            let start = at.checked_next_multiple_of(format.side_alignment())?;
            let padding = reader.bytes.get(*at..start)?;
            *at = start.checked_add(rows.checked_mul(storage.row_bytes(dim))?)?;
            let fits = *at <= reader.bytes.len() && padding.iter().all(|byte| *byte == 0);
            fits.then_some((start..*at, sum))
        };
        let storage = match (facts.is_state(), own_types) {
            (false, 0) => storage,
            (false, code) => own_types_of(code)?,
            (true, 0) => [KvStorage::F32; 2],
            (true, _) => [KvStorage::F16; 2],
        };
        let keys = side(facts.key_dim, storage[0], sums[0])?;
        let values = side(facts.value_dim, storage[1], sums[1])?;
        Some(LayerRecord {
            facts,
            first,
            storage,
            sides: [keys, values],
        })
    }
}

/// The number that stands for the storage types of a layer that has its own.
fn own_types_code(types: [KvStorage; 2]) -> u32 {
    let place = |storage| KvStorage::ALL.iter().position(|other| *other == storage);
    let [keys, values] = types.map(|storage| place(storage).expect("it lists all types") as u32);
    1 + keys + 16 * values
}

/// The storage types that such a number stands for.
fn own_types_of(code: u32) -> Option<[KvStorage; 2]> {
    let of = |place: u32| KvStorage::ALL.get(place as usize).copied();
    let code = code.checked_sub(1)?;
    Some([of(code % 16)?, of(code / 16)?])
}

/// Reads little-endian numbers in order; `None` after the end.
struct ByteReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl ByteReader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let array = self.bytes.get(self.at..)?.first_chunk()?;
        self.at += N;
        Some(*array)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
