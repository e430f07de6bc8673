//! Block formats of quantised weights: everything that is particular to one stands in its file.
//!
//! A [`BlockFormat`] says how a block is laid out, what its codes mean, and how code, scale and min of an element are read out of
//! it: in Rust ([`BlockFormat::unpack`]) and in device code ([`BlockFormat::element`]). Decoding to `f32` ([`dequantise`]), packing for
//! integer kernels, CUDA's functions and those of emitted C programs are derived from that.
//!
//! ```
//! use base::{DType, quant};
//! let mut out = [0.0; 2];
//! quant::dequantise(DType::F16, &[0x00, 0x3c, 0x00, 0xc0], &mut out)?;
//! assert_eq!(out, [1.0, -2.0]);
//! # Ok::<(), quant::QuantError>(())
//! ```

#![forbid(unsafe_code)]

mod device;
mod encode;
mod format;
mod iq2_xxs;
mod iq4;
mod k_quants;
mod legacy;
mod mxfp4;

use crate::DType;

pub use device::Dialect;
pub use encode::{can_quantise, mean_squared_error, quantise};
pub use format::{BlockFormat, Codes, MAX_LEN, Pack, QuantBlock, half_to_f32};
pub use iq2_xxs::IQ2_XXS;
pub use iq4::{IQ4_NL, IQ4_XS};
pub use k_quants::{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};
pub use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub use mxfp4::MXFP4;

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
    match (dtype, dtype.format()) {
        (_, Some(format)) => {
            let mut block = QuantBlock::default();
            let outs = out.chunks_exact_mut(format.len);
            for (bytes, out) in bytes.chunks_exact(format.bytes).zip(outs) {
                format.decode(bytes, &mut block, out);
            }
        }
        (DType::F16, _) => each(bytes, out, |two| half::f16::from_le_bytes(two).to_f32()),
        (DType::BF16, _) => each(bytes, out, |two| half::bf16::from_le_bytes(two).to_f32()),
        _ => each(bytes, out, f32::from_le_bytes),
    }
    Ok(())
}

/// Converts plain little-endian numbers.
fn each<const BYTES: usize>(bytes: &[u8], out: &mut [f32], to_f32: impl Fn([u8; BYTES]) -> f32) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = to_f32(*bytes);
    }
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
