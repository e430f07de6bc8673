//! The memory of pools: each its own, or all in one region.

use base::Bytes;
use kv::{KvError, KvErrorKind};
use std::alloc::Layout;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The bytes of a pool.
pub(super) enum PoolMemory {
    /// Memory of its own, which grows.
    Own(Vec<u8>),
    /// A part of the region of all pools.
    Part(RegionPart),
    /// Rows of a prefix, perhaps in a mapped file, which are never written.
    Frozen(Bytes),
}

/// One allocation that is divided into parts.
struct Region {
    start: *mut u8,
    /// Keeps the memory alive; only parts access it.
    _bytes: Vec<u8>,
}

// SAFETY: the bytes are accessed only through parts, which do not overlap.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// A part of a region that no other part overlaps.
pub(super) struct RegionPart {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl RegionPart {
    /// Allocates a region of zeros and divides it into consecutive parts of these sizes.
    pub(super) fn divide(sizes: &[usize]) -> Result<Vec<RegionPart>, KvError> {
        let len = sizes
            .iter()
            .try_fold(0usize, |sum, size| sum.checked_add(*size));
        let len = len.ok_or(KvErrorKind::OutOfMemory(usize::MAX))?;
        let mut bytes = zeroed_buffer(len)?;
        let region = Arc::new(Region {
            start: bytes.as_mut_ptr(),
            _bytes: bytes,
        });
        let mut offset = 0;
        let part = |len: &usize| {
            let part = RegionPart {
                region: region.clone(),
                offset,
                len: *len,
            };
            offset += len;
            part
        };
        Ok(sizes.iter().map(part).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// `len` zero bytes. The system supplies zero pages as they are first touched, so a large pool costs memory only where
/// it has been used.
pub(super) fn zeroed_buffer(len: usize) -> Result<Vec<u8>, KvError> {
    let layout = Layout::array::<u8>(len).map_err(|_| KvErrorKind::OutOfMemory(len))?;
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout's size is not zero.
    let start = unsafe { std::alloc::alloc_zeroed(layout) };
    if start.is_null() {
        return Err(KvErrorKind::OutOfMemory(len).into());
    }
    // SAFETY: the global allocator allocated `len` initialised bytes with the layout of a `Vec<u8>` of that capacity.
    Ok(unsafe { Vec::from_raw_parts(start, len, len) })
}

impl PoolMemory {
    /// Memory that the pool owns and can grow. A part of a region is copied first: the rings of several sequences can
    /// outgrow the part.
    pub(super) fn detach(&mut self) -> &mut Vec<u8> {
        if let PoolMemory::Part(_) = self {
            *self = PoolMemory::Own(self.to_vec());
        }
        match self {
            PoolMemory::Own(bytes) => bytes,
            PoolMemory::Part(_) => unreachable!("it was just copied"),
            PoolMemory::Frozen(_) => unreachable!("frozen rows do not grow"),
        }
    }
}

impl Deref for PoolMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            PoolMemory::Own(bytes) => bytes,
            PoolMemory::Frozen(bytes) => bytes,
            PoolMemory::Part(part) => {
                let start = part.region.start.wrapping_add(part.offset);
                // SAFETY: the part lies in the region, which it keeps alive, and no other part overlaps it.
                unsafe { std::slice::from_raw_parts(start, part.len) }
            }
        }
    }
}

impl DerefMut for PoolMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            PoolMemory::Own(bytes) => bytes,
            PoolMemory::Frozen(_) => unreachable!("frozen rows are not written"),
            PoolMemory::Part(part) => {
                let start = part.region.start.wrapping_add(part.offset);
                // SAFETY: as above; the part is borrowed mutably.
                unsafe { std::slice::from_raw_parts_mut(start, part.len) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_consecutive_and_apart() {
        let parts = RegionPart::divide(&[3, 0, 5]).unwrap();
        let mut parts: Vec<PoolMemory> = parts.into_iter().map(PoolMemory::Part).collect();
        for (i, part) in parts.iter_mut().enumerate() {
            part.fill(i as u8 + 1);
        }
        assert_eq!(
            (&parts[0][..], &parts[1][..], &parts[2][..]),
            (&[1; 3][..], &[][..], &[3; 5][..])
        );
        assert_eq!(parts[2].as_ptr() as usize - parts[0].as_ptr() as usize, 3);
    }
}
