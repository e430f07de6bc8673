//! The file of a model's packed weights: the next start maps it instead of packing.
//!
//! A file holds the weights of one model file and has that file's stamp in its name, so a model that was rewritten has
//! no packed file. All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `KVARKPCK` |
//! | 4, 4 | version of the layouts, weights |
//! | 8 | bytes of the file |
//! | 8 | bytes of the model's path |
//! | 24 each | weights: key, first byte, bytes |
//! | 8 each | XXH64 of every [`CHUNK`] of every weight, in the order of the weights |
//! | ... | the model's path |
//! | 8 | XXH64 of all that |
//!
//! The weights start at a multiple of 4096 bytes. A weight with a damaged chunk is packed again.
//!
//! A finished file is *sealed*: the fraction of a second of its modification time is a function of the last checksum, so that any later
//! write breaks the seal. Chunks are verified if the file is not sealed, or if any of it has to be read from disk. A sealed
//! file that is resident was verified when it was read, and is not verified again.

mod in_pieces;

use super::weight_source::WeightSource;
use base::{Bytes, FileIdentity, atomic_write, xxh64};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Version of the packed layouts and of the file format. It must be raised when either changes.
const VERSION: u32 = 4;
const MAGIC: &[u8; 8] = b"KVARKPCK";
const EXTENSION: &str = "packed";
const HEADER_BYTES: usize = 32;
const RECORD_BYTES: usize = 24;
const ALIGNMENT: usize = 4096;
/// Bytes of a weight that share a checksum; the last chunk of a weight may be shorter.
const CHUNK: usize = 1 << 20;
/// The smallest file that is written: packing fewer bytes is as fast as reading them.
const MIN_FILE_BYTES: usize = 4 << 20;
/// Bytes that are written and synced at a time.
const WRITE_CHUNK: usize = 32 << 20;
/// The longest wait for the writer when the weights are dropped, unless packing them took longer.
const CLOSE_WAIT: Duration = Duration::from_secs(3);

/// By key: the byte range of a weight, and the offset of its chunks' checksums.
type WeightRanges = HashMap<u64, (Range<usize>, usize)>;

/// A mapped file of packed weights.
pub(super) struct PackedFile {
    path: PathBuf,
    bytes: Bytes,
    ranges: WeightRanges,
    seal: Seal,
    /// Whether the file has not been written to since it was sealed.
    sealed: bool,
    /// Whether all of the file was resident before it was opened.
    resident: bool,
}

/// A chunk of a packed weight in a file, with its expected checksum.
pub(super) struct Chunk {
    bytes: Bytes,
    checksum: u64,
    /// Whether the chunk was verified when it was read into memory, or when its file was sealed if it is read on demand.
    verified: bool,
    /// Whether the chunk stays in its file until a part of it is needed.
    on_demand: bool,
}

impl Chunk {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Reads the chunk from its file; returns false if it is damaged.
    pub(super) fn load(&self) -> bool {
        if self.on_demand {
            return self.verified || self.is_intact_in_file();
        }
        self.bytes.populate();
        self.verified || xxh64(&self.bytes, 0) == self.checksum
    }

    fn is_intact_in_file(&self) -> bool {
        let mut copy = vec![0; self.len()];
        self.bytes.copy_to(&mut copy).is_ok() && xxh64(&copy, 0) == self.checksum
    }
}

impl PackedFile {
    /// Opens the packed file of the model file that all of these weights are mapped from. Returns `None` if there is
    /// none, or if it is truncated or has another version.
    pub(super) fn open(folder: &Path, weights: &[WeightSource<'_>]) -> Option<PackedFile> {
        let path = file_name(folder, origin(weights)?);
        let modified = fs::metadata(&path).and_then(|meta| meta.modified()).ok()?;
        let bytes = Bytes::map(&path).ok()?;
        // Asked before the header is read: that makes the system read ahead, and what it reads was never verified.
        let resident = is_resident(&bytes);
        bytes.advise_huge_pages();
        let Contents { ranges, seal, .. } = parse(&bytes)?;
        Some(PackedFile {
            path,
            bytes,
            ranges,
            seal,
            sealed: seal.is_on(modified),
            resident,
        })
    }

    /// Seals the file after `verified` of its weights were verified, unless it is sealed or has weights that were not
    /// verified.
    pub(super) fn reseal(&self, verified: usize) {
        if !self.sealed && verified == self.ranges.len() {
            // Without a seal the next start verifies the file again.
            let _ = File::open(&self.path)
                .and_then(|file| file.set_modified(self.seal.put_on(SystemTime::now())));
        }
    }

    /// Gives back the pages of the header, which are not read again.
    pub(super) fn release_header(&self) {
        let starts = self.ranges.values().map(|(range, _)| range.start);
        let end = starts.min().unwrap_or(self.bytes.len());
        if let Some(header) = self.bytes.slice(0..end) {
            header.release();
        }
    }

    /// The intact weights of the file that are not among these, with their keys: those of other graphs of the model file, such as
    /// a head that drafts. A file that is written anew keeps them.
    pub(super) fn others(&self, weights: &[WeightSource<'_>]) -> Vec<(u64, Bytes)> {
        let own: HashSet<u64> = weights.iter().filter_map(key).collect();
        let others = self.ranges.iter().filter(|(key, _)| !own.contains(key));
        let mut others: Vec<_> = others
            .filter_map(|(key, (range, sums_at))| {
                let bytes = self.bytes.slice(range.clone())?;
                let (sums, _) = self.bytes.get(*sums_at..)?.as_chunks::<8>();
                let mut chunks = bytes.chunks(CHUNK).zip(sums);
                let intact = chunks.all(|(chunk, sum)| xxh64(chunk, 0) == u64::from_le_bytes(*sum));
                intact.then_some((range.start, *key, bytes))
            })
            .collect();
        others.sort_unstable_by_key(|(start, ..)| *start);
        let keyed = others.into_iter().map(|(_, key, bytes)| (key, bytes));
        keyed.collect()
    }

    /// A packed weight and its chunks, which are not verified yet.
    pub(super) fn find(&self, weight: &WeightSource<'_>) -> Option<(Bytes, Vec<Chunk>)> {
        let (range, sums_at) = self.ranges.get(&key(weight)?)?.clone();
        let bytes = self.bytes.slice(range)?;
        if bytes.len() != weight.packed_bytes() {
            return None;
        }
        let (sums, _) = self.bytes.get(sums_at..)?.as_chunks::<8>();
        let starts = (0..bytes.len()).step_by(CHUNK);
        let chunk = |(start, sum): (usize, &[u8; 8])| {
            let end = bytes.len().min(start + CHUNK);
            Some(Chunk {
                bytes: bytes.slice(start..end)?,
                checksum: u64::from_le_bytes(*sum),
                // Reading all experts at every start would take longer than a run.
                verified: self.sealed && (self.resident || weight.on_demand),
                on_demand: weight.on_demand,
            })
        };
        let chunks = starts.zip(sums).map(chunk).collect::<Option<_>>()?;
        Some((bytes, chunks))
    }
}

/// The model file, if all weights are mapped from one.
fn origin<'a>(weights: &[WeightSource<'a>]) -> Option<&'a FileIdentity> {
    let (first, _) = weights.first()?.rows.file_identity()?;
    let same = |weight: &WeightSource<'_>| {
        weight
            .rows
            .file_identity()
            .is_some_and(|(own, _)| own == first)
    };
    weights.iter().all(same).then_some(first)
}

fn file_name(folder: &Path, origin: &FileIdentity) -> PathBuf {
    let stem = origin.path().file_stem().unwrap_or_default();
    let stem = stem.to_string_lossy();
    folder.join(format!("{stem}-{:016x}.{EXTENSION}", origin.change_stamp()))
}

/// The key of a weight: a hash of its offset in the model file, its shape and its type.
fn key(weight: &WeightSource<'_>) -> Option<u64> {
    let (_, offset) = weight.rows.file_identity()?;
    let numbers = [offset, weight.n, weight.k].map(|n| (n as u64).to_le_bytes());
    Some(xxh64(
        weight.dtype.name().as_bytes(),
        xxh64(numbers.as_flattened(), 0),
    ))
}

/// The header of a file.
struct Contents<'a> {
    ranges: WeightRanges,
    /// The path of the model file.
    model: &'a [u8],
    seal: Seal,
}

/// The mark of a file that was not written to since it was finished: the nanoseconds of its modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seal {
    nanoseconds: u32,
}

impl Seal {
    /// The coarsest unit of modification times that file systems with fractions of a second have, in nanoseconds.
    const UNIT: u64 = 100;

    /// The seal of a file with this checksum.
    fn of(checksum: u64) -> Seal {
        let units = checksum % (1_000_000_000 / Seal::UNIT);
        Seal {
            nanoseconds: (units * Seal::UNIT) as u32,
        }
    }

    /// A time in the same second that has the seal.
    fn put_on(self, time: SystemTime) -> SystemTime {
        let seconds = time.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = seconds.unwrap_or_default().as_secs();
        SystemTime::UNIX_EPOCH + Duration::new(seconds, self.nanoseconds)
    }

    fn is_on(self, time: SystemTime) -> bool {
        time == self.put_on(time)
    }
}

/// Parses the header of a file; accepts any bytes.
fn parse(bytes: &[u8]) -> Option<Contents<'_>> {
    let number = |at: usize| {
        let field = bytes.get(at..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*field))
    };
    let size = |at: usize| usize::try_from(number(at)?).ok();
    let known = (u64::from(VERSION), u64::from_le_bytes(*MAGIC));
    let versions = number(8)?;
    if (versions & 0xffff_ffff, number(0)?) != known || size(16)? != bytes.len() {
        return None;
    }
    let count = usize::try_from(versions >> 32).ok()?;
    let sums_at = HEADER_BYTES.checked_add(count.checked_mul(RECORD_BYTES)?)?;
    // The records are verified only by the checksum that follows them, so check their length first.
    bytes.get(..sums_at)?;
    let mut chunks = (HEADER_BYTES..sums_at).step_by(RECORD_BYTES).map(|record| {
        let len = size(record + 16)?;
        Some(len.div_ceil(CHUNK))
    });
    let chunks = chunks.try_fold(0usize, |all, own| all.checked_add(own?))?;
    let path_at = sums_at.checked_add(chunks.checked_mul(8)?)?;
    let path_end = path_at.checked_add(size(24)?)?;
    if xxh64(bytes.get(..path_end)?, 0) != number(path_end)? {
        return None;
    }
    let mut ranges = WeightRanges::new();
    let mut own_sums_at = sums_at;
    for record in (HEADER_BYTES..sums_at).step_by(RECORD_BYTES) {
        let (start, len) = (size(record + 8)?, size(record + 16)?);
        let end = start.checked_add(len).filter(|end| *end <= bytes.len())?;
        // Kernels load whole cache lines.
        if !start.is_multiple_of(super::format::LINE) {
            return None;
        }
        ranges.insert(number(record)?, (start..end, own_sums_at));
        own_sums_at += 8 * len.div_ceil(CHUNK);
    }
    Some(Contents {
        ranges,
        model: &bytes[path_at..path_end],
        seal: Seal::of(number(path_end)?),
    })
}

/// The checksums of a weight's chunks, as they are in a file.
fn checksums(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let sums = bytes.chunks(CHUNK).map(|chunk| xxh64(chunk, 0));
    sums.flat_map(u64::to_le_bytes)
}

/// The header as bytes, and the seal of the file, of weights with these keys, sizes and checksums.
fn head(path: &str, weights: &[(u64, usize)], sums: &[u8]) -> (Vec<u8>, Seal) {
    let end = HEADER_BYTES + weights.len() * RECORD_BYTES + sums.len() + path.len() + 8;
    let mut at = end.next_multiple_of(ALIGNMENT);
    let mut records = Vec::new();
    for (key, len) in weights {
        let fields = [*key, at as u64, *len as u64];
        records.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        at += len;
    }
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((weights.len() as u32).to_le_bytes());
    head.extend((at as u64).to_le_bytes());
    head.extend((path.len() as u64).to_le_bytes());
    head.extend(records);
    head.extend(sums);
    head.extend(path.as_bytes());
    let checksum = xxh64(&head, 0);
    head.extend(checksum.to_le_bytes());
    head.resize(end.next_multiple_of(ALIGNMENT), 0);
    (head, Seal::of(checksum))
}

pub(super) use in_pieces::write_in_pieces;

/// A thread that writes a packed file.
pub(super) struct PackedFileWriter {
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PackedFileWriter {
    /// Starts a thread that writes the packed weights to the folder, if they have at least [`MIN_FILE_BYTES`] and take
    /// at most half of the free disk space. `packing` is the time that packing them took: the writer may take as long
    /// when the weights are dropped, because the next start saves it. Write errors are ignored: the next start then packs
    /// the weights again. `others` are weights that the file keeps.
    pub(super) fn start(
        folder: &Path,
        weights: &[WeightSource<'_>],
        packed: &[Bytes],
        others: Vec<(u64, Bytes)>,
        packing: Duration,
    ) -> Option<PackedFileWriter> {
        let origin = origin(weights)?;
        let packed = packed.iter().cloned();
        let keyed = weights.iter().zip(packed).map(|(w, b)| Some((key(w)?, b)));
        let keyed = keyed.chain(others.into_iter().map(Some));
        let keyed: Vec<(u64, Bytes)> = keyed.collect::<Option<_>>()?;
        let size: usize = keyed.iter().map(|(_, bytes)| bytes.len()).sum();
        if size < MIN_FILE_BYTES {
            return None;
        }
        let model = origin.path().to_str()?.to_owned();
        let (folder, path) = (folder.to_owned(), file_name(folder, origin));
        let closing = Arc::new(AtomicBool::new(false));
        let is_closing = closing.clone();
        let write = move || {
            let made = fs::create_dir_all(&folder);
            remove_stale_packed_files(&folder);
            // Leave at least half of the free space.
            if made.is_ok() && free_bytes(&folder).is_none_or(|free| size as u64 <= free / 2) {
                let sizes = keyed.iter().map(|(key, bytes)| (*key, bytes.len()));
                let sums = keyed.iter().flat_map(|(_, bytes)| checksums(bytes));
                let sums: Vec<u8> = sums.collect();
                let (head, seal) = head(&model, &sizes.collect::<Vec<_>>(), &sums);
                let weights = keyed.iter().map(|(_, bytes)| &bytes[..]);
                let parts: Vec<&[u8]> = std::iter::once(&head[..]).chain(weights).collect();
                let _ = atomic_write(&path, |file| {
                    write(file, &parts, &is_closing, CLOSE_WAIT.max(packing))?;
                    // Without a seal every start verifies the file.
                    let _ = file.set_modified(seal.put_on(SystemTime::now()));
                    Ok(())
                });
            }
        };
        let thread = std::thread::Builder::new().name("kvark-keep".to_owned());
        Some(PackedFileWriter {
            closing,
            thread: Some(thread.spawn(write).ok()?),
        })
    }
}

impl Drop for PackedFileWriter {
    /// Waits until the file is written, or until the writer gives up because the rest would take too long.
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes the parts one after the other. Every write starts at a multiple of its size, so that the OS can cache the
/// file in huge pages, which are read faster.
fn write(
    file: &mut File,
    parts: &[&[u8]],
    closing: &AtomicBool,
    max_wait: Duration,
) -> io::Result<()> {
    let size: usize = parts.iter().map(|part| part.len()).sum();
    let (begun, mut written) = (Instant::now(), 0);
    let mut piece = Vec::with_capacity(WRITE_CHUNK);
    let mut parts = parts.iter().copied();
    let mut part: &[u8] = &[];
    while written < size {
        if written > 0 && closing.load(Ordering::Relaxed) {
            let rest = (size - written) as f64 / written as f64;
            if begun.elapsed().mul_f64(rest) > max_wait {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        piece.clear();
        while piece.len() < WRITE_CHUNK.min(size - written) {
            if part.is_empty() {
                part = parts.next().unwrap_or_default();
            }
            let (now, later) = part.split_at(part.len().min(WRITE_CHUNK - piece.len()));
            piece.extend_from_slice(now);
            part = later;
        }
        file.write_all(&piece)?;
        file.sync_data()?;
        written += piece.len();
    }
    Ok(())
}

/// Removes packed files whose model is gone or changed, unreadable ones, and partial files of dead processes.
pub fn remove_stale_packed_files(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let unused = match path.extension().and_then(|e| e.to_str()) {
            Some(EXTENSION) => !has_current_model(folder, &path),
            // The process that writes a partial file holds its lock.
            Some("partial") => File::open(&path).is_ok_and(|file| file.try_lock().is_ok()),
            _ => false,
        };
        if unused {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether the file belongs to a model file that exists and has not changed.
fn has_current_model(folder: &Path, path: &Path) -> bool {
    let Ok(bytes) = Bytes::map(path) else {
        return false;
    };
    let model = parse(&bytes).and_then(|contents| std::str::from_utf8(contents.model).ok());
    let model = model.and_then(|model| FileIdentity::of(Path::new(model)).ok());
    model.is_some_and(|model| file_name(folder, &model) == path)
}

/// Whether all of the bytes, which are mapped from a file, are resident in memory.
#[cfg(target_os = "linux")]
fn is_resident(bytes: &[u8]) -> bool {
    const PAGE: usize = 4096;
    let before = bytes.as_ptr() as usize % PAGE;
    let start = bytes.as_ptr().wrapping_sub(before);
    let len = before + bytes.len();
    let mut pages = vec![0u8; len.div_ceil(PAGE)];
    // SAFETY: the pages that hold the bytes are mapped, and the list has a byte for each of them. With larger pages,
    // the call fails or writes fewer bytes.
    let status = unsafe { libc::mincore(start as *mut _, len, pages.as_mut_ptr()) };
    status == 0 && pages.iter().all(|page| page & 1 == 1)
}

#[cfg(not(target_os = "linux"))]
fn is_resident(_: &[u8]) -> bool {
    false
}

/// The bytes that this user may still write to the disk of a folder; `None` if the system does not tell.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut facts = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero; if the call succeeds, it has written all fields.
    let facts = unsafe {
        if libc::statvfs(path.as_ptr(), facts.as_mut_ptr()) != 0 {
            return None;
        }
        facts.assume_init()
    };
    Some((facts.f_bavail as u64).saturating_mul(facts.f_frsize as u64))
}

#[cfg(windows)]
fn free_bytes(folder: &Path) -> Option<u64> {
    use std::os::windows::ffi::OsStrExt;
    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GetDiskFreeSpaceExW(
            folder: *const u16,
            free_to_caller: *mut u64,
            total: *mut u64,
            free: *mut u64,
        ) -> i32;
    }
    let path: Vec<u16> = folder.as_os_str().encode_wide().chain([0]).collect();
    let mut free = 0;
    let unused = std::ptr::null_mut();
    // SAFETY: the path ends with a zero, the number can be written, and the function accepts null for the others.
    let status = unsafe { GetDiskFreeSpaceExW(path.as_ptr(), &mut free, unused, unused) };
    (status != 0).then_some(free)
}

#[cfg(test)]
mod tests;
