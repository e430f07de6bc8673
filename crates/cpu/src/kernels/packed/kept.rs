//! Packed weights in a file, so that the next start maps them and packs nothing.
//!
//! A file holds the weights of one model file, and has its stamp in its name: a model that was written to has no packed
//! weights. All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `KVARKPCK` |
//! | 4, 4 | version of the layouts, weights |
//! | 8 | bytes of the file |
//! | 8 | bytes of the model's path |
//! | 24 each | weights: key, first byte, bytes |
//! | ... | the model's path |
//! | 8 | XXH64 of all that |
//!
//! The weights begin at a multiple of 4096. They have no checksum: their names only appear once they have reached the disk,
//! and no byte of theirs can do more harm than a wrong number.

use super::load::Source;
use base::{Bytes, Origin, replace, xxh64};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The version of the packed layouts and of this file's. A layout that changes must raise it.
const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"KVARKPCK";
const EXTENSION: &str = "packed";
const HEAD: usize = 32;
const RECORD: usize = 24;
const ALIGNMENT: usize = 4096;
/// Fewer bytes are packed as fast as they are found.
const WORTH: usize = 4 << 20;
/// Bytes that are written at a time and reach the disk before the next.
const PIECE: usize = 32 << 20;
/// How long the rest may take when nobody uses the weights any more.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where weights lie in a file, by their keys.
type Places = HashMap<u64, Range<usize>>;

/// The packed weights of a model file.
pub(super) struct Kept {
    bytes: Bytes,
    places: Places,
}

impl Kept {
    /// What the folder has of the file that these weights are mapped from, all of them from one; `None` also for a file that
    /// is not whole, or of another version.
    pub(super) fn open(folder: &Path, weights: &[Source<'_>]) -> Option<Kept> {
        let bytes = Bytes::map(&file_name(folder, origin(weights)?)).ok()?;
        bytes.prefer_large_pages();
        let (places, _) = parse(&bytes)?;
        Some(Kept { bytes, places })
    }

    /// The packed form of a weight.
    pub(super) fn find(&self, weight: &Source<'_>) -> Option<Bytes> {
        let place = self.places.get(&key(weight)?)?.clone();
        let fits = place.len() == weight.packed_bytes();
        self.bytes.slice(place).filter(|_| fits)
    }
}

/// The file that all of the weights are mapped from.
fn origin<'a>(weights: &[Source<'a>]) -> Option<&'a Origin> {
    let (first, _) = weights.first()?.rows.origin()?;
    let same = |weight: &Source<'_>| weight.rows.origin().is_some_and(|(own, _)| own == first);
    weights.iter().all(same).then_some(first)
}

fn file_name(folder: &Path, origin: &Origin) -> PathBuf {
    let stem = origin.path().file_stem().unwrap_or_default();
    let stem = stem.to_string_lossy();
    folder.join(format!("{stem}-{:016x}.{EXTENSION}", origin.stamp()))
}

/// Which weight of its file it is: where it lies and what it is.
fn key(weight: &Source<'_>) -> Option<u64> {
    let (_, offset) = weight.rows.origin()?;
    let numbers = [offset, weight.n, weight.k].map(|n| (n as u64).to_le_bytes());
    Some(xxh64(
        weight.dtype.name().as_bytes(),
        xxh64(numbers.as_flattened(), 0),
    ))
}

/// Where the weights of a file lie, and the path of their model. Takes any bytes.
fn parse(bytes: &[u8]) -> Option<(Places, &[u8])> {
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
    let path_at = HEAD.checked_add(count.checked_mul(RECORD)?)?;
    let path_end = path_at.checked_add(size(24)?)?;
    if xxh64(bytes.get(..path_end)?, 0) != number(path_end)? {
        return None;
    }
    let mut places = Places::new();
    for record in (HEAD..path_at).step_by(RECORD) {
        let (start, len) = (size(record + 8)?, size(record + 16)?);
        let end = start.checked_add(len).filter(|end| *end <= bytes.len())?;
        // Kernels load whole lines.
        if !start.is_multiple_of(super::weights::LINE) {
            return None;
        }
        places.insert(number(record)?, start..end);
    }
    Some((places, &bytes[path_at..path_end]))
}

/// The bytes before the weights.
fn head(path: &str, weights: &[(u64, Bytes)]) -> Vec<u8> {
    let end = HEAD + weights.len() * RECORD + path.len() + 8;
    let mut at = end.next_multiple_of(ALIGNMENT);
    let mut records = Vec::new();
    for (key, bytes) in weights {
        let fields = [*key, at as u64, bytes.len() as u64];
        records.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        at += bytes.len();
    }
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((weights.len() as u32).to_le_bytes());
    head.extend((at as u64).to_le_bytes());
    head.extend((path.len() as u64).to_le_bytes());
    head.extend(records);
    head.extend(path.as_bytes());
    head.extend(xxh64(&head, 0).to_le_bytes());
    head.resize(end.next_multiple_of(ALIGNMENT), 0);
    head
}

/// A file that a thread is writing.
pub(super) struct Writing {
    hurry: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writing {
    /// Begins to keep packed weights in the folder, where they are worth it and the disk has room for them. That it fails
    /// costs the next start its time and nothing else, so nobody is told.
    pub(super) fn start(
        folder: &Path,
        weights: &[Source<'_>],
        packed: &[Bytes],
    ) -> Option<Writing> {
        let size: usize = packed.iter().map(|bytes| bytes.len()).sum();
        if size < WORTH {
            return None;
        }
        let origin = origin(weights)?;
        let packed = packed.iter().cloned();
        let keyed = weights.iter().zip(packed).map(|(w, b)| Some((key(w)?, b)));
        let keyed: Vec<(u64, Bytes)> = keyed.collect::<Option<_>>()?;
        let head = head(origin.path().to_str()?, &keyed);
        let (folder, path) = (folder.to_owned(), file_name(folder, origin));
        let hurry = Arc::new(AtomicBool::new(false));
        let told = hurry.clone();
        let write = move || {
            let made = fs::create_dir_all(&folder);
            tidy(&folder);
            // Half of what is free is for others.
            if made.is_ok() && free_bytes(&folder).is_none_or(|free| size as u64 <= free / 2) {
                let weights = keyed.iter().map(|(_, bytes)| &bytes[..]);
                let parts: Vec<&[u8]> = std::iter::once(&head[..]).chain(weights).collect();
                let _ = replace(&path, |file| write(file, &parts, &told));
            }
        };
        let thread = std::thread::Builder::new().name("kvark-keep".to_owned());
        Some(Writing {
            hurry,
            thread: Some(thread.spawn(write).ok()?),
        })
    }
}

impl Drop for Writing {
    /// Waits for the file, or for the thread to give up what would still take long.
    fn drop(&mut self) {
        self.hurry.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes the parts one behind the other. Pieces begin at multiples of their size, so that the system can keep them in large
/// pages, which are read faster.
fn write(file: &mut File, parts: &[&[u8]], hurry: &AtomicBool) -> io::Result<()> {
    let size: usize = parts.iter().map(|part| part.len()).sum();
    let (begun, mut written) = (Instant::now(), 0);
    let mut piece = Vec::with_capacity(PIECE);
    let mut parts = parts.iter().copied();
    let mut part: &[u8] = &[];
    while written < size {
        if written > 0 && hurry.load(Ordering::Relaxed) {
            let rest = (size - written) as f64 / written as f64;
            if begun.elapsed().mul_f64(rest) > PATIENCE {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        piece.clear();
        while piece.len() < PIECE.min(size - written) {
            if part.is_empty() {
                part = parts.next().unwrap_or_default();
            }
            let (now, later) = part.split_at(part.len().min(PIECE - piece.len()));
            piece.extend_from_slice(now);
            part = later;
        }
        file.write_all(&piece)?;
        file.sync_data()?;
        written += piece.len();
    }
    Ok(())
}

/// Removes packed weights whose model is gone or was written to, those that cannot be read, and what killed processes left.
pub fn tidy(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let unused = match path.extension().and_then(|e| e.to_str()) {
            Some(EXTENSION) => !is_used(folder, &path),
            // Who writes it holds its lock.
            Some("partial") => File::open(&path).is_ok_and(|file| file.try_lock().is_ok()),
            _ => false,
        };
        if unused {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether the file has the packed weights of a model that is there.
fn is_used(folder: &Path, path: &Path) -> bool {
    let Ok(bytes) = Bytes::map(path) else {
        return false;
    };
    let model = parse(&bytes).and_then(|(_, model)| std::str::from_utf8(model).ok());
    let model = model.and_then(|model| Origin::of(Path::new(model)).ok());
    model.is_some_and(|model| file_name(folder, &model) == path)
}

#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut facts = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero, and where the call succeeds it has written all of the facts.
    let facts = unsafe {
        if libc::statvfs(path.as_ptr(), facts.as_mut_ptr()) != 0 {
            return None;
        }
        facts.assume_init()
    };
    Some((facts.f_bavail as u64).saturating_mul(facts.f_frsize as u64))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests;
