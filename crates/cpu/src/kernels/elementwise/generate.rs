//! Tensors generated without operands: fills and ranges.

use base::DType;

/// A tensor generated without operands.
#[derive(Clone, Debug)]
pub(crate) enum Generate {
    /// `len` copies of an element, given by its bits.
    Fill {
        bits: u64,
        element_bytes: usize,
        len: usize,
    },
    /// `start + i · step`.
    Range {
        start: i64,
        step: i64,
        len: usize,
        dtype: DType,
    },
}

impl Generate {
    /// # Safety
    /// `out` must hold `len` elements of the type.
    pub(crate) unsafe fn run(&self, out: *mut u8) {
        // SAFETY: the caller guarantees the elements.
        unsafe {
            match self {
                Generate::Fill {
                    bits,
                    element_bytes,
                    len,
                } => match element_bytes {
                    1 => out.write_bytes(*bits as u8, *len),
                    4 => std::slice::from_raw_parts_mut(out.cast::<u32>(), *len).fill(*bits as u32),
                    _ => std::slice::from_raw_parts_mut(out.cast::<u64>(), *len).fill(*bits),
                },
                Generate::Range {
                    start,
                    step,
                    len,
                    dtype,
                } => {
                    for i in 0..*len {
                        let x = start.wrapping_add((i as i64).wrapping_mul(*step));
                        match dtype {
                            DType::F32 => *out.cast::<f32>().add(i) = x as f32,
                            DType::I32 => *out.cast::<i32>().add(i) = x as i32,
                            _ => *out.cast::<i64>().add(i) = x,
                        }
                    }
                }
            }
        }
    }
}
