//! Writes to indexed places of a tensor. An index outside its axis is an error of the run.

use super::gather::AdvancedIndex;
use base::DType;
use graph::ops::ScatterFunction;

/// `data` with indexed blocks combined with values.
#[derive(Clone, Debug)]
pub(crate) struct Scatter {
    /// Finds the block of each tuple of indices.
    pub(crate) index: AdvancedIndex,
    pub(crate) function: ScatterFunction,
    pub(crate) dtype: DType,
    /// Bytes of the data.
    pub(crate) data_bytes: usize,
    /// Elements of a block.
    pub(crate) block: usize,
    /// For each element of a block and each tuple, the offset of its value: strides of the common shape and of the block's.
    pub(crate) value_strides: Vec<usize>,
    /// Sizes of the indices' common shape, then of a block.
    pub(crate) value_shape: Vec<usize>,
}

impl Scatter {
    /// # Safety
    /// `data` and `out` must hold all blocks and may be the same; indices and values must have the sizes of the call.
    pub(crate) unsafe fn run(
        &self,
        data: *const u8,
        indices: &[*const u8],
        values: *const u8,
        out: *mut u8,
    ) -> Result<(), String> {
        if !std::ptr::eq(data, out) {
            // SAFETY: the caller guarantees both; only the same address overlaps.
            unsafe { std::ptr::copy_nonoverlapping(data, out, self.data_bytes) };
        }
        let count: usize = self.index.shape.iter().product();
        for i in 0..count {
            // SAFETY: the caller guarantees the index tensors.
            let block = unsafe { self.index.block(indices, i)? };
            for j in 0..self.block {
                let from = self.value_offset(i * self.block + j);
                // SAFETY: the block was checked; the caller guarantees values and data.
                unsafe { self.combine(out, block * self.block + j, values, from) };
            }
        }
        Ok(())
    }

    /// The offset of the value for an element, in row-major order of the values' broadcast shape.
    fn value_offset(&self, element: usize) -> usize {
        let (mut rest, mut at) = (element, 0);
        for (size, stride) in self.value_shape.iter().zip(&self.value_strides).rev() {
            at += rest % size * stride;
            rest /= size;
        }
        at
    }

    /// # Safety
    /// Element `to` of `out` and element `from` of `values` must be in their buffers.
    unsafe fn combine(&self, out: *mut u8, to: usize, values: *const u8, from: usize) {
        let function = self.function;
        // SAFETY: as the caller guarantees; the type was fixed by inference.
        unsafe {
            match self.dtype {
                DType::F32 => {
                    let (old, new) = (out.cast::<f32>().add(to), *values.cast::<f32>().add(from));
                    *old = function.real(*old, new);
                }
                DType::I32 => {
                    let (old, new) = (out.cast::<i32>().add(to), *values.cast::<i32>().add(from));
                    *old = function.integer((*old).into(), new.into()) as i32;
                }
                DType::I64 => {
                    let (old, new) = (out.cast::<i64>().add(to), *values.cast::<i64>().add(from));
                    *old = function.integer(*old, new);
                }
                _ => *out.add(to) = *values.add(from),
            }
        }
    }
}
