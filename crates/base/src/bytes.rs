//! `Bytes`: a shared, immutable range of a mapped file or of memory, cheap to clone and to slice.
#![allow(
    unsafe_code,
    reason = "mapping a file is unsafe: another process may change it"
)]

use crate::FileIdentity;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A range of shared immutable bytes. Cloning and slicing copy no data and keep the whole source alive.
#[derive(Clone)]
pub struct Bytes {
    source: Arc<Backing>,
    range: Range<usize>,
}

enum Backing {
    Mapped(MappedFile),
    /// 64-byte aligned so that typed and SIMD readers can rely on it.
    Owned(Vec<AlignedBlock>, usize),
    /// Like `Owned`, in huge pages if the system has them.
    HugePages(memmap2::MmapMut),
}

/// A mapped file, which stays open so that parts of it can be read without mapping their pages.
struct MappedFile {
    map: memmap2::Mmap,
    identity: FileIdentity,
    file: File,
}

/// Owned bytes of at least this size are allocated in huge pages, which makes sequential reads faster.
const MIN_HUGE_PAGE_BYTES: usize = 4 << 20;

#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct AlignedBlock([u8; 64]);

/// A file that could not be mapped.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct MapError {
    /// The path of the file.
    pub path: PathBuf,
    /// The I/O error.
    pub source: std::io::Error,
}

impl Bytes {
    /// Maps a file read-only. An empty file gives empty bytes.
    ///
    /// The file must not be truncated while mapped: reading past the new end raises SIGBUS, as in every program
    /// that maps model files.
    pub fn map(path: &Path) -> Result<Bytes, MapError> {
        let fail = |source| MapError {
            path: path.to_owned(),
            source,
        };
        let file = open(path).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        if meta.len() == 0 {
            return Ok(Bytes::from(&[][..]));
        }
        // SAFETY: the map is private and read-only; kvark never writes model files that are mapped, and the
        // documented contract above leaves truncation by others to the user.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(fail)?;
        let range = 0..map.len();
        let identity = FileIdentity::new(path, &meta).map_err(fail)?;
        Ok(Bytes {
            source: Arc::new(Backing::Mapped(MappedFile {
                map,
                identity,
                file,
            })),
            range,
        })
    }

    /// Reads a file into memory.
    ///
    /// Use this for files that may be replaced while their content is in use: Windows cannot replace a mapped file.
    pub fn read(path: &Path) -> Result<Bytes, MapError> {
        let read = || {
            let mut file = open(path)?;
            let len = usize::try_from(file.metadata()?.len())
                .map_err(|_| std::io::ErrorKind::FileTooLarge)?;
            let mut result = Ok(());
            let bytes = Bytes::filled(len, |bytes| result = file.read_exact(bytes));
            result.map(|()| bytes)
        };
        read().map_err(|source| MapError {
            path: path.to_owned(),
            source,
        })
    }

    /// The part of these bytes at `range`, or `None` if it is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Bytes {
            source: self.source.clone(),
            range: start..start + range.len(),
        })
    }

    /// Owned bytes holding `values` in memory order.
    pub fn from_slice<T: bytemuck::NoUninit>(values: &[T]) -> Bytes {
        Bytes::from(bytemuck::cast_slice::<T, u8>(values))
    }

    /// Owned bytes, initially zero, that `fill` writes in place.
    pub fn filled(len: usize, fill: impl FnOnce(&mut [u8])) -> Bytes {
        let source = match huge_pages(len) {
            Some(mut map) => {
                fill(&mut map);
                Backing::HugePages(map)
            }
            None => {
                let mut lines = vec![AlignedBlock([0; 64]); len.div_ceil(64)];
                fill(&mut bytemuck::cast_slice_mut(&mut lines)[..len]);
                Backing::Owned(lines, len)
            }
        };
        Bytes {
            source: Arc::new(source),
            range: 0..len,
        }
    }

    /// The bytes as elements of a plain type; `None` if misaligned or not a whole number of elements.
    pub fn cast<T: bytemuck::AnyBitPattern>(&self) -> Option<&[T]> {
        bytemuck::try_cast_slice(self).ok()
    }

    /// Whether the bytes are in a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(*self.source, Backing::Mapped(..))
    }

    /// The mapped file and the offset of these bytes in it; `None` for owned bytes.
    pub fn file_identity(&self) -> Option<(&FileIdentity, usize)> {
        match &*self.source {
            Backing::Mapped(mapped) => Some((&mapped.identity, self.range.start)),
            _ => None,
        }
    }

    /// Asks the kernel to use huge pages for the mapped file, for the part that is not in memory yet (Linux only).
    pub fn advise_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if let Backing::Mapped(MappedFile { map, .. }) = &*self.source {
            // A failure is ignored: normal pages are only a little slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
    }

    /// Gives the pages of mapped bytes back: they leave this process and are mapped from the file again at the next access (Linux
    /// only).
    pub fn release(&self) {
        #[cfg(target_os = "linux")]
        if let Backing::Mapped(MappedFile { map, .. }) = &*self.source {
            let Range { start, end } = self.range.clone();
            // SAFETY: the map is a private, read-only one of a file and was never written, so that pages that are dropped are the
            // file's when they are read again.
            let released = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
            };
            // A failure is ignored: the pages then stay until the system wants them.
            let _ = released;
        }
    }

    /// Copies the bytes. Those of a mapped file are read from it, so that none of its pages become resident in this process.
    ///
    /// # Errors
    /// The I/O error, if the file cannot be read.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn copy_to(&self, out: &mut [u8]) -> io::Result<()> {
        assert_eq!(out.len(), self.len(), "the copy has the size of the bytes");
        match &*self.source {
            Backing::Mapped(mapped) => read_exact_at(&mapped.file, out, self.range.start as u64),
            _ => {
                out.copy_from_slice(self);
                Ok(())
            }
        }
    }

    /// Asks the kernel to read mapped bytes into its cache of the file, without waiting for them (not on Windows).
    pub fn prefetch(&self) {
        #[cfg(unix)]
        if let Backing::Mapped(MappedFile { map, .. }) = &*self.source {
            let Range { start, end } = self.range.clone();
            // A failure is ignored: the bytes are then read when they are needed.
            let _ = map.advise_range(memmap2::Advice::WillNeed, start, end - start);
        }
    }

    /// Asks the kernel to read the mapped bytes from the file now instead of on first access (not on Windows).
    pub fn populate(&self) {
        #[cfg(all(unix, not(target_os = "linux")))]
        if let Backing::Mapped(MappedFile { map, .. }) = &*self.source {
            let Range { start, end } = self.range.clone();
            let _ = map.advise_range(memmap2::Advice::WillNeed, start, end - start);
        }
        #[cfg(target_os = "linux")]
        if let Backing::Mapped(MappedFile { map, .. }) = &*self.source {
            let Range { start, end } = self.range.clone();
            // A failure is ignored: the bytes are then read on first access.
            let _ = map.advise_range(memmap2::Advice::PopulateRead, start, end - start);
        }
    }
}

/// Reads bytes at an offset of a file, whatever its cursor is.
fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, out, offset);
    #[cfg(windows)]
    {
        let (mut rest, mut offset) = (out, offset);
        while !rest.is_empty() {
            let read = std::os::windows::fs::FileExt::seek_read(file, rest, offset)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            rest = &mut rest[read..];
            offset += read as u64;
        }
        Ok(())
    }
}

/// Opens a file, and no folder. Windows denies access to a folder, Unix opens it.
fn open(path: &Path) -> std::io::Result<File> {
    if path.is_dir() {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    File::open(path)
}

/// Zeroed memory in huge pages; `None` if `len` is too small for them or the system has none.
fn huge_pages(len: usize) -> Option<memmap2::MmapMut> {
    if len < MIN_HUGE_PAGE_BYTES {
        return None;
    }
    #[cfg(target_os = "linux")]
    {
        let map = memmap2::MmapMut::map_anon(len).ok()?;
        // A failure is ignored: the map then has normal pages.
        let _ = map.advise(memmap2::Advice::HugePage);
        Some(map)
    }
    #[cfg(not(target_os = "linux"))]
    None
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &*self.source {
            Backing::Mapped(mapped) => &mapped.map,
            Backing::Owned(lines, len) => &bytemuck::cast_slice(lines)[..*len],
            Backing::HugePages(map) => map,
        };
        &all[self.range.clone()]
    }
}

impl From<&[u8]> for Bytes {
    fn from(data: &[u8]) -> Bytes {
        Bytes::filled(data.len(), |bytes| bytes.copy_from_slice(data))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Bytes({} bytes{})",
            self.len(),
            if self.is_mapped() { ", mapped" } else { "" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_and_check_bounds() {
        let b = Bytes::from_slice(&[1u32, 2, 3]);
        assert_eq!(b.cast::<u32>(), Some(&[1, 2, 3][..]));
        let tail = b.slice(4..12).unwrap();
        assert_eq!(tail.cast::<u32>(), Some(&[2, 3][..]));
        assert!(tail.slice(0..9).is_none());
        assert!(b.slice(1..5).unwrap().cast::<u32>().is_none(), "misaligned");
    }

    #[test]
    fn a_file_that_was_read_equals_the_mapped_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let (read, mapped) = (Bytes::read(&path).unwrap(), Bytes::map(&path).unwrap());
        assert_eq!(read[..], mapped[..]);
        assert!(!read.is_mapped() && mapped.is_mapped());
        for open in [Bytes::read, Bytes::map] {
            let error = open(path.parent().unwrap()).unwrap_err();
            assert_eq!(error.source.kind(), std::io::ErrorKind::IsADirectory);
        }
    }

    #[test]
    fn released_bytes_are_the_same_when_they_are_read_again() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let (read, mapped) = (Bytes::read(&path).unwrap(), Bytes::map(&path).unwrap());
        assert_eq!(read[..], mapped[..]);
        let tail = mapped.slice(7..mapped.len()).unwrap();
        for bytes in [&mapped, &tail, &read] {
            bytes.release();
        }
        assert_eq!(read[..], mapped[..]);
        assert_eq!(read[7..], tail[..]);
    }

    #[test]
    fn bytes_of_a_file_are_copied_without_mapping_them() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let (read, mapped) = (Bytes::read(&path).unwrap(), Bytes::map(&path).unwrap());
        for bytes in [read.slice(3..40).unwrap(), mapped.slice(3..40).unwrap()] {
            bytes.prefetch();
            let mut out = [0; 37];
            bytes.copy_to(&mut out).unwrap();
            assert_eq!(out, read[3..40]);
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let err = Bytes::map(Path::new("no/such.gguf")).unwrap_err();
        assert!(err.to_string().starts_with("cannot read no/such.gguf: "));
    }
}
