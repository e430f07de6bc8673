//! Memory that begins at a cache line: vector loads from it never straddle two.

use backend::{BackendError, BackendErrorKind};

/// Bytes from a line's beginning on, zero at first.
#[derive(Default)]
pub(crate) struct AlignedBuffer {
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "read and written through raw addresses")] [u64; 8]);

impl AlignedBuffer {
    /// At least this many bytes.
    pub(crate) fn new(bytes: usize) -> Result<AlignedBuffer, BackendError> {
        let count = bytes.div_ceil(size_of::<Line>());
        let mut lines = Vec::new();
        lines
            .try_reserve_exact(count)
            .map_err(|_| BackendErrorKind::OutOfMemory(bytes))?;
        lines.resize(count, Line::default());
        Ok(AlignedBuffer { lines })
    }

    /// Bytes that are held where so many are asked for.
    pub(crate) fn rounded(bytes: usize) -> usize {
        bytes.next_multiple_of(size_of::<Line>())
    }

    /// Bytes held.
    pub(crate) fn len(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }
}
