//! Decoders of quantised block formats.
//!
//! [`dequantise`] turns any run of whole blocks into `f32`. Each format also has a function for one block, for
//! callers that know the format at compile time; formats whose scales are packed share their unpackers
//! ([`scales_q3`], [`scales_mins`], [`scales_iq4`]) with kernels that work on packed integers.
//!
//! Arithmetic is `f32` in a fixed order (scale times integer, then offset), so that every caller gets the same bits.
//!
//! ```
//! use base::{DType, quant};
//! let mut out = [0.0; 2];
//! quant::dequantise(DType::F16, &[0x00, 0x3c, 0x00, 0xc0], &mut out)?;
//! assert_eq!(out, [1.0, -2.0]);
//! # Ok::<(), quant::QuantError>(())
//! ```

#![forbid(unsafe_code)]

mod float;
mod iq4;
mod k_quants;
mod legacy;

use crate::DType;

pub use float::{bf16, f16, f32};
pub use iq4::{IQ4_VALUES, iq4_nl, iq4_xs, scales_iq4};
pub use k_quants::{q2_k, q3_k, q4_k, q5_k, q6_k, scales_mins, scales_q3};
pub use legacy::{q4_0, q4_1, q5_0, q5_1, q8_0};

/// An input that [`dequantise`] cannot decode into its output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The type is an integer type.
    #[error("{dtype} is not a type of real numbers")]
    NotReal {
        /// The type asked for.
        dtype: DType,
    },
    /// The input is not a whole number of blocks.
    #[error("{bytes} bytes are not whole {dtype} blocks of {} bytes", dtype.block_bytes())]
    PartialBlock {
        /// The type asked for.
        dtype: DType,
        /// The input's length.
        bytes: usize,
    },
    /// The length of the output is not the number of elements in the input.
    #[error("{bytes} bytes of {dtype} are {elements} elements, but the output holds {out}")]
    Length {
        /// The type asked for.
        dtype: DType,
        /// The input's length.
        bytes: usize,
        /// The input's elements.
        elements: usize,
        /// The output's length.
        out: usize,
    },
}

/// Decodes whole blocks of `dtype` into `out`, which must have one element for each encoded one.
///
/// All bytes are valid input: infinite or NaN scales give infinite or NaN elements.
pub fn dequantise(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    if !dtype.is_real() {
        return Err(QuantError::NotReal { dtype });
    }
    let len = bytes.len();
    if !len.is_multiple_of(dtype.block_bytes()) {
        return Err(QuantError::PartialBlock { dtype, bytes: len });
    }
    let blocks = len / dtype.block_bytes();
    // A number of elements that overflows cannot be the length of the output.
    let elements = blocks.saturating_mul(dtype.block_len());
    if elements != out.len() {
        return Err(QuantError::Length {
            dtype,
            bytes: len,
            elements,
            out: out.len(),
        });
    }
    match dtype {
        DType::F32 => each(bytes, out, f32),
        DType::F16 => each(bytes, out, f16),
        DType::BF16 => each(bytes, out, bf16),
        DType::Q4_0 => each(bytes, out, q4_0),
        DType::Q4_1 => each(bytes, out, q4_1),
        DType::Q5_0 => each(bytes, out, q5_0),
        DType::Q5_1 => each(bytes, out, q5_1),
        DType::Q8_0 => each(bytes, out, q8_0),
        DType::Q2_K => each(bytes, out, q2_k),
        DType::Q3_K => each(bytes, out, q3_k),
        DType::Q4_K => each(bytes, out, q4_k),
        DType::Q5_K => each(bytes, out, q5_k),
        DType::Q6_K => each(bytes, out, q6_k),
        DType::IQ4_NL => each(bytes, out, iq4_nl),
        DType::IQ4_XS => each(bytes, out, iq4_xs),
        DType::I64 | DType::I32 | DType::I8 | DType::U8 | DType::Bool => {
            return Err(QuantError::NotReal { dtype });
        }
    }
    Ok(())
}

/// Applies `expand` block by block. The caller has checked the lengths.
fn each<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    expand: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<LEN>();
    for (block, out) in blocks.iter().zip(outs) {
        expand(block, out);
    }
}

/// The half-precision number at byte `at`.
#[inline]
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_do_not_match_are_named() {
        let mut out = [0.0; 32];
        let table = [
            (DType::I32, 4, 1, "i32 is not a type of real numbers"),
            (
                DType::Q4_0,
                17,
                32,
                "17 bytes are not whole q4_0 blocks of 18 bytes",
            ),
            (
                DType::Q4_0,
                36,
                32,
                "36 bytes of q4_0 are 64 elements, but the output holds 32",
            ),
        ];
        for (dtype, bytes, len, message) in table {
            let error = dequantise(dtype, &vec![0; bytes], &mut out[..len]).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn nothing_expands_to_nothing() {
        for dtype in DType::ALL.into_iter().filter(|t| t.is_real()) {
            assert_eq!(dequantise(dtype, &[], &mut []), Ok(()));
        }
    }
}
