//! Gathers by index. An index outside its axis is an error of the run.

use crate::kernels::loop_nest::LoopNest;
use base::DType;

/// i32 or i64 indices behind one address.
#[derive(Clone, Copy)]
pub(crate) struct IndexValues {
    pub(crate) at: *const u8,
    pub(crate) dtype: DType,
}

impl IndexValues {
    /// # Safety
    /// Element `i` must be readable.
    pub(crate) unsafe fn get(self, i: usize) -> i64 {
        // SAFETY: the caller guarantees the element, whose type is i64 or i32.
        unsafe {
            match self.dtype {
                DType::I64 => *self.at.cast::<i64>().add(i),
                _ => (*self.at.cast::<i32>().add(i)).into(),
            }
        }
    }
}

/// The index from the start of an axis; negative indices count from its end.
fn wrap(index: i64, size: usize) -> Result<usize, String> {
    let wrapped = if index < 0 {
        index.saturating_add(size as i64)
    } else {
        index
    };
    usize::try_from(wrapped)
        .ok()
        .filter(|i| *i < size)
        .ok_or_else(|| format!("index {index} is outside an axis of {size}"))
}

/// `numpy.take`: blocks of `block_bytes` picked along an axis of `size`, for each of `outer` parts of the data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatherBlocks {
    pub(crate) outer: usize,
    pub(crate) size: usize,
    pub(crate) count: usize,
    pub(crate) block_bytes: usize,
    pub(crate) index: DType,
}

impl GatherBlocks {
    /// # Safety
    /// `data` must hold `outer · size` blocks, `index` `count` numbers and `out` `outer · count` blocks.
    pub(crate) unsafe fn run(
        &self,
        data: *const u8,
        index: *const u8,
        out: *mut u8,
    ) -> Result<(), String> {
        let index = IndexValues {
            at: index,
            dtype: self.index,
        };
        for i in 0..self.count {
            // SAFETY: the caller guarantees `count` numbers.
            let row = wrap(unsafe { index.get(i) }, self.size)?;
            for outer in 0..self.outer {
                // SAFETY: the row was checked; the caller guarantees the blocks.
                unsafe {
                    let from = data.add((outer * self.size + row) * self.block_bytes);
                    let to = out.add((outer * self.count + i) * self.block_bytes);
                    std::ptr::copy_nonoverlapping(from, to, self.block_bytes);
                }
            }
        }
        Ok(())
    }
}

/// `torch.gather`: single elements along an axis; tensors of the loops are the indices (and the result) and the data,
/// which does not move along the axis.
#[derive(Clone, Debug)]
pub(crate) struct GatherElements {
    pub(crate) nest: LoopNest<2>,
    pub(crate) size: usize,
    /// Elements of the data from one index of the axis to the next.
    pub(crate) stride: usize,
    pub(crate) element_bytes: usize,
    pub(crate) index: DType,
}

impl GatherElements {
    /// # Safety
    /// The loops' tensors must lie in their buffers.
    pub(crate) unsafe fn run(
        &self,
        data: *const u8,
        index: *const u8,
        out: *mut u8,
    ) -> Result<(), String> {
        let index = IndexValues {
            at: index,
            dtype: self.index,
        };
        let whole = self.nest.full_range();
        let mut cursor = self.nest.cursor(0);
        for _ in 0..whole.rows {
            for column in 0..whole.columns {
                let [i, from] = [0, 1].map(|t| cursor.at[t] + column * self.nest.steps[t]);
                // SAFETY: the caller guarantees the loops; the index is checked.
                unsafe {
                    let from = from + wrap(index.get(i), self.size)? * self.stride;
                    std::ptr::copy_nonoverlapping(
                        data.add(from * self.element_bytes),
                        out.add(i * self.element_bytes),
                        self.element_bytes,
                    );
                }
            }
            cursor.advance();
        }
        Ok(())
    }
}

/// Advanced indexing of the first axes: blocks addressed by tuples of indices.
#[derive(Clone, Debug)]
pub(crate) struct AdvancedIndex {
    /// For each indexed axis: its size, the blocks from one index to the next, and the type of its indices.
    pub(crate) axes: Vec<(usize, usize, DType)>,
    /// For each indexed axis, the strides of its indices in their common shape.
    pub(crate) strides: Vec<Vec<usize>>,
    pub(crate) shape: Vec<usize>,
    pub(crate) block_bytes: usize,
}

impl AdvancedIndex {
    /// The block that the `i`th tuple of indices addresses.
    ///
    /// # Safety
    /// Every index tensor must hold its elements.
    pub(crate) unsafe fn block(&self, indices: &[*const u8], i: usize) -> Result<usize, String> {
        let mut block = 0;
        for (axis, (size, stride, dtype)) in self.axes.iter().enumerate() {
            let (mut rest, mut at) = (i, 0);
            for (extent, step) in self.shape.iter().zip(&self.strides[axis]).rev() {
                at += rest % extent * step;
                rest /= extent;
            }
            let index = IndexValues {
                at: indices[axis],
                dtype: *dtype,
            };
            // SAFETY: the caller guarantees the index tensor.
            block += wrap(unsafe { index.get(at) }, *size)? * stride;
        }
        Ok(block)
    }

    /// # Safety
    /// `data` must hold all blocks, every index tensor its elements, and `out` a block for each of the common shape.
    pub(crate) unsafe fn run(
        &self,
        data: *const u8,
        indices: &[*const u8],
        out: *mut u8,
    ) -> Result<(), String> {
        let count: usize = self.shape.iter().product();
        for i in 0..count {
            // SAFETY: the caller guarantees the index tensors.
            let block = unsafe { self.block(indices, i)? };
            // SAFETY: every index was checked; the caller guarantees the blocks.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    data.add(block * self.block_bytes),
                    out.add(i * self.block_bytes),
                    self.block_bytes,
                );
            }
        }
        Ok(())
    }
}
