//! Weights as they lie in the model file, and the kernel that packs their strips.

use super::format::{PackedFormat, STRIP, StripSource};
use super::pack::pack_strip;
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
}

impl WeightSource<'_> {
    pub(super) fn key(&self) -> (usize, DType, usize) {
        (self.rows.as_ptr() as usize, self.dtype, self.k)
    }

    pub(super) fn packed_bytes(&self) -> usize {
        self.format.packed_bytes(self.n, self.k)
    }

    /// Packs a strip; missing rows after the last are zeros.
    #[inline(always)]
    fn pack<S: RowScaledDot>(&self, s: S, strip: usize, out: &mut [u8]) {
        let row_bytes = self.dtype.row_bytes(self.k).unwrap_or(0);
        let first = strip * STRIP;
        let count = STRIP.min(self.n - first);
        let rows = StripSource {
            source: self.dtype.format().expect("a quantised type"),
            format: self.format,
            k: self.k,
            bytes: &self.rows[first * row_bytes..][..count * row_bytes],
            row_bytes,
        };
        pack_strip(s, rows, out);
    }
}

/// Packs one strip with a tier's instructions; all tiers write the same bytes.
pub(super) struct PackStrip<'a> {
    pub(super) weight: &'a WeightSource<'a>,
    pub(super) strip: usize,
    pub(super) out: &'a mut [u8],
}

impl IntegerKernel for PackStrip<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: RowScaledDot>(self, s: S) {
        self.weight.pack(s, self.strip, self.out);
    }
}
