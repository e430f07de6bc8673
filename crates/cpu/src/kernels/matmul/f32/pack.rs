//! Packs the right side of a product into panels.

use super::microkernel::PANEL_COLUMNS;
use crate::kernels::{Context, SendPtr};

/// Packs a matrix `[k, n]`, or `[n, k]` if transposed, into `n / PANEL_COLUMNS` panels of `k` rows of [`PANEL_COLUMNS`]
/// columns; columns after the last are zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelPacking {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) transposed: bool,
    /// Elements from one row of the matrix to the next.
    pub(crate) row: usize,
}

/// Rows of a transposed matrix that are read together: one cache line of each.
const TRANSPOSE_BLOCK: usize = 16;

impl PanelPacking {
    /// The packing of a matrix with contiguous rows.
    pub(crate) fn new(n: usize, k: usize, transposed: bool) -> PanelPacking {
        PanelPacking {
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
        self.n.div_ceil(PANEL_COLUMNS)
    }

    fn panel_elements(&self) -> usize {
        self.k * PANEL_COLUMNS
    }

    /// Packs all panels.
    ///
    /// # Safety
    /// The whole matrix must be readable at `from`, and all panels be writable at `to`.
    pub(crate) unsafe fn pack_all(&self, ctx: &Context<'_>, from: *const f32, to: *mut f32) {
        let (from, to) = (SendPtr(from.cast_mut()), SendPtr(to));
        ctx.threads.run(self.panels(), &|panel, _| {
            // SAFETY: the caller guarantees the matrix and the panels, of which every task writes its own.
            unsafe { self.pack_panel(panel, from.at(0), to.at(0)) };
        });
    }

    /// Packs one panel.
    ///
    /// # Safety
    /// The whole matrix must be readable at `from`, and all panels be writable at `to`.
    pub(crate) unsafe fn pack_panel(&self, panel: usize, from: *const f32, to: *mut f32) {
        let first = panel * PANEL_COLUMNS;
        let columns = PANEL_COLUMNS.min(self.n - first);
        // SAFETY: the panel lies in the buffer and its columns in the matrix, as the caller guarantees.
        unsafe {
            let to = to.add(panel * self.panel_elements());
            if columns < PANEL_COLUMNS {
                to.write_bytes(0, self.panel_elements());
            }
            if self.transposed {
                for start in (0..self.k).step_by(TRANSPOSE_BLOCK) {
                    let end = (start + TRANSPOSE_BLOCK).min(self.k);
                    for c in 0..columns {
                        let row = from.add((first + c) * self.row);
                        for k in start..end {
                            *to.add(k * PANEL_COLUMNS + c) = *row.add(k);
                        }
                    }
                }
            } else {
                for k in 0..self.k {
                    let row = from.add(k * self.row + first);
                    std::ptr::copy_nonoverlapping(row, to.add(k * PANEL_COLUMNS), columns);
                }
            }
        }
    }
}
