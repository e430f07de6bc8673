//! Memory that starts at a cache line, so that vector loads never straddle two lines.

use backend::{BackendError, BackendErrorKind};

/// Zeroed memory that starts at a cache line.
#[derive(Default)]
pub(crate) struct AlignedBuffer {
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "read and written through raw addresses")] [u64; 8]);

impl AlignedBuffer {
    /// Allocates at least `bytes` zeroed bytes.
    ///
    /// # Errors
    /// Fails when the memory cannot be allocated.
    pub(crate) fn new(bytes: usize) -> Result<AlignedBuffer, BackendError> {
        let count = bytes.div_ceil(size_of::<Line>());
        let mut lines = Vec::new();
        base::fallible(|| lines.try_reserve_exact(count))
            .map_err(|_| BackendErrorKind::OutOfMemory(bytes))?;
        lines.resize(count, Line::default());
        Ok(AlignedBuffer { lines })
    }

    /// The bytes that are allocated for a request of `bytes`.
    pub(crate) fn rounded(bytes: usize) -> usize {
        bytes.next_multiple_of(size_of::<Line>())
    }

    /// The allocated bytes.
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
