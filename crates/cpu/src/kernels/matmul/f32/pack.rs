//! Lays the right side of a product out in panels.

use super::microkernel::PANEL;
use crate::kernels::{Context, Shared};

/// A matrix `[k, n]`, or `[n, k]` when it is transposed, as `n / PANEL` panels of `k` rows of [`PANEL`] columns; columns
/// behind the last are zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pack {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) transposed: bool,
    /// Elements from one row of the matrix to the next.
    pub(crate) row: usize,
}

/// Rows of a transposed matrix that are read together: a line of each.
const STRIP: usize = 16;

impl Pack {
    /// A matrix whose rows follow each other.
    pub(crate) fn new(n: usize, k: usize, transposed: bool) -> Pack {
        Pack {
            n,
            k,
            transposed,
            row: if transposed { k } else { n },
        }
    }

    /// Elements of the packed matrix.
    pub(crate) fn elements(&self) -> usize {
        self.panels() * self.panel_elements()
    }

    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    fn panel_elements(&self) -> usize {
        self.k * PANEL
    }

    /// Packs all panels.
    ///
    /// # Safety
    /// The whole matrix must be readable at `from`, and all panels be writable at `to`.
    pub(crate) unsafe fn all(&self, ctx: &Context<'_>, from: *const f32, to: *mut f32) {
        let (from, to) = (Shared(from.cast_mut()), Shared(to));
        ctx.threads.run(self.panels(), &|panel, _| {
            // SAFETY: the caller vouches for the matrix and the panels, of which every task writes its own.
            unsafe { self.panel(panel, from.at(0), to.at(0)) };
        });
    }

    /// Packs one panel.
    ///
    /// # Safety
    /// The whole matrix must be readable at `from`, and all panels be writable at `to`.
    pub(crate) unsafe fn panel(&self, panel: usize, from: *const f32, to: *mut f32) {
        let first = panel * PANEL;
        let columns = PANEL.min(self.n - first);
        // SAFETY: the panel lies in the buffer and its columns in the matrix, as the caller vouches.
        unsafe {
            let to = to.add(panel * self.panel_elements());
            if columns < PANEL {
                to.write_bytes(0, self.panel_elements());
            }
            if self.transposed {
                for start in (0..self.k).step_by(STRIP) {
                    let end = (start + STRIP).min(self.k);
                    for c in 0..columns {
                        let row = from.add((first + c) * self.row);
                        for k in start..end {
                            *to.add(k * PANEL + c) = *row.add(k);
                        }
                    }
                }
            } else {
                for k in 0..self.k {
                    let row = from.add(k * self.row + first);
                    std::ptr::copy_nonoverlapping(row, to.add(k * PANEL), columns);
                }
            }
        }
    }
}
