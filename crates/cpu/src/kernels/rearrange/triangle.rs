//! Triangular copies of matrices.

/// Copies the triangle of the last two axes on one side of a diagonal; the other elements become zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Triangle {
    pub(crate) upper: bool,
    pub(crate) diagonal: i64,
    pub(crate) matrices: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) element_bytes: usize,
}

impl Triangle {
    /// # Safety
    /// Both must hold all matrices; `out` may be `x`.
    pub(crate) unsafe fn run(&self, x: *const u8, out: *mut u8) {
        let size = self.element_bytes;
        for row in 0..self.matrices * self.rows {
            // Columns before `cut` lie below the diagonal.
            let first = (row % self.rows) as i64 + self.diagonal + i64::from(!self.upper);
            let cut = usize::try_from(first).unwrap_or(0).min(self.columns);
            let (kept, cleared) = if self.upper {
                (cut..self.columns, 0..cut)
            } else {
                (0..cut, cut..self.columns)
            };
            // SAFETY: the caller guarantees the rows; `copy` allows `x` to be `out`.
            unsafe {
                let at = row * self.columns * size;
                let start = at + kept.start * size;
                std::ptr::copy(x.add(start), out.add(start), kept.len() * size);
                out.add(at + cleared.start * size)
                    .write_bytes(0, cleared.len() * size);
            }
        }
    }
}
