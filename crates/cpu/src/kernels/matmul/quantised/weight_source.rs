//! Weights as they lie in the model file, and the kernel that packs their panels.

use super::format::{PANEL, PackedFormat, PanelSource};
use super::pack::pack_panel;
use crate::simd::{IntegerKernel, RowScaledDot};
use base::{Bytes, DType};

/// A weight to be packed: rows `[n, k]` of a type that has a packed format.
#[derive(Clone, Copy)]
pub(crate) struct WeightSource<'a> {
    pub(crate) dtype: DType,
    pub(crate) format: PackedFormat,
    pub(crate) rows: &'a Bytes,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Whether parts of the packed weight are read when they are needed, from its file: it is never resident as a whole.
    pub(crate) on_demand: bool,
}

impl WeightSource<'_> {
    pub(super) fn key(&self) -> (usize, DType, usize) {
        (self.rows.as_ptr() as usize, self.dtype, self.k)
    }

    pub(super) fn packed_bytes(&self) -> usize {
        self.format.packed_bytes(self.n, self.k)
    }

    /// Packs a panel; missing rows after the last are zeros.
    #[inline(always)]
    fn pack<S: RowScaledDot>(&self, s: S, panel: usize, out: &mut [u8]) {
        let row_bytes = self.dtype.row_bytes(self.k).unwrap_or(0);
        let first = panel * PANEL;
        let count = PANEL.min(self.n - first);
        let rows = PanelSource {
            source: self.dtype.format().expect("a quantised type"),
            format: self.format,
            k: self.k,
            bytes: &self.rows[first * row_bytes..][..count * row_bytes],
            row_bytes,
        };
        pack_panel(s, rows, out);
    }
}

/// Packs one panel with a tier's instructions; all tiers write the same bytes.
pub(super) struct PackPanel<'a> {
    pub(super) weight: &'a WeightSource<'a>,
    pub(super) panel: usize,
    pub(super) out: &'a mut [u8],
}

impl IntegerKernel for PackPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: RowScaledDot>(self, s: S) {
        self.weight.pack(s, self.panel, self.out);
    }
}
