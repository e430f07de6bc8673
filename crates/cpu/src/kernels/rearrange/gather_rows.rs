//! Gathers rows of a table, decoded to f32: embeddings, and the rows that the output head reads.

use super::gather::IndexValues;
use crate::kernels::Context;
use crate::kernels::decode::half::{Bf16, F16, HalfDecoder};
use crate::simd::{Kernel, LANES, Simd};
use base::{DType, quant};
use std::marker::PhantomData;

/// `out[i] = table[index[i]]`, decoded to f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatherRows {
    pub(crate) count: usize,
    pub(crate) table_rows: usize,
    pub(crate) width: usize,
    pub(crate) table: DType,
    /// Type of the indices.
    pub(crate) index: DType,
}

impl GatherRows {
    /// # Safety
    /// `table` must hold `table_rows` rows, `index` `count` numbers and `out` `count · width` elements.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        table: *const u8,
        index: *const u8,
        out: *mut f32,
    ) -> Result<(), String> {
        let index = IndexValues {
            at: index,
            dtype: self.index,
        };
        let row_bytes = self
            .table
            .row_bytes(self.width)
            .expect("the table's rows are whole blocks");
        for i in 0..self.count {
            // SAFETY: the caller guarantees `count` numbers.
            let row = unsafe { index.get(i) };
            let Some(row) = usize::try_from(row).ok().filter(|r| *r < self.table_rows) else {
                return Err(format!(
                    "index {row} is outside a table of {} rows",
                    self.table_rows
                ));
            };
            // SAFETY: `row` is in the table and `i` in the output.
            unsafe {
                let (from, to) = (table.add(row * row_bytes), out.add(i * self.width));
                let width = self.width;
                match self.table {
                    // When rows are picked for the output head, the source is an activation that the result may
                    // overlap.
                    DType::F32 => std::ptr::copy(from, to.cast::<u8>(), row_bytes),
                    DType::F16 => ctx.isa.run(DecodeRow::<F16>(from, to, width, PhantomData)),
                    DType::BF16 => ctx.isa.run(DecodeRow::<Bf16>(from, to, width, PhantomData)),
                    quantised => {
                        let from = std::slice::from_raw_parts(from, row_bytes);
                        let to = std::slice::from_raw_parts_mut(to, width);
                        quant::dequantise(quantised, from, to)
                            .expect("tables of integers are refused by type inference");
                    }
                }
            }
        }
        Ok(())
    }
}

struct DecodeRow<F>(*const u8, *mut f32, usize, PhantomData<F>);

impl<F: HalfDecoder> Kernel for DecodeRow<F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let DecodeRow(from, to, width, _) = self;
        let (blocks, tail) = (width / F::LEN, width % F::LEN);
        // SAFETY: `GatherRows::run` passes a whole row on both sides; the tail is decoded into a local buffer.
        unsafe {
            for block in 0..blocks {
                F::decode(s, from.add(block * F::BYTES), to.add(block * F::LEN));
            }
            if tail > 0 {
                let mut bytes = [0u8; 2 * LANES];
                let mut lanes = [0.0f32; LANES];
                std::ptr::copy_nonoverlapping(
                    from.add(blocks * F::BYTES),
                    bytes.as_mut_ptr(),
                    tail * F::BYTES / F::LEN,
                );
                F::decode(s, bytes.as_ptr(), lanes.as_mut_ptr());
                std::ptr::copy_nonoverlapping(lanes.as_ptr(), to.add(blocks * F::LEN), tail);
            }
        }
    }
}
