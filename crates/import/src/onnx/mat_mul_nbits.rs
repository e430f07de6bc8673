//! Converts `MatMulNBits` weights (blocks along the depth with a scale and an optional zero point) to kvark's formats.

use base::{Bytes, DType};
use half::f16;

use super::tensor::OnnxTensor;
use crate::stored_type::StoredType;

/// Elements of a block in kvark's formats.
const BLOCK: usize = 32;

/// Limit on the block size, above what quantisers produce.
const MAX_BLOCK: usize = 1 << 20;

/// A weight matrix `[rows, depth]`; an element is `scale · (quant − zero)`.
pub(super) struct NBitsWeights<'a> {
    pub(super) rows: usize,
    pub(super) depth: usize,
    pub(super) bits: usize,
    /// Elements of a row that share a scale.
    pub(super) block: usize,
    pub(super) quants: &'a OnnxTensor,
    pub(super) scales: &'a OnnxTensor,
    pub(super) zeros: Option<&'a OnnxTensor>,
}

/// Scales and zero points of all blocks, row by row.
struct BlockParams {
    scales: Vec<f32>,
    zeros: Vec<f32>,
    /// Whether every zero point equals the default of the format.
    symmetric: bool,
}

impl NBitsWeights<'_> {
    /// Converts the weights to the narrowest format that represents them.
    ///
    /// Blocks whose size is a multiple of 32 keep their integers and get f16 scales. Others are dequantised to f32.
    pub(super) fn to_kvark_blocks(&self) -> Result<(DType, Bytes), String> {
        let numbers = self.numbers()?;
        let whole = self.block.is_multiple_of(BLOCK) && self.depth.is_multiple_of(BLOCK);
        let fits = |x: &f32| f16::from_f32(*x).is_finite();
        let fits = whole && numbers.scales.iter().all(fits);
        Ok(match (self.bits, numbers.symmetric) {
            (4, true) if fits => self.pack(DType::Q4_0, &numbers),
            (4, false) if fits => self.pack(DType::Q4_1, &numbers),
            (8, true) if fits => self.pack(DType::Q8_0, &numbers),
            _ => (DType::F32, self.dense(&numbers)),
        })
    }

    fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block)
    }

    /// Bytes of a block's packed integers.
    fn block_bytes(&self) -> usize {
        self.block * self.bits / 8
    }

    fn numbers(&self) -> Result<BlockParams, String> {
        if !matches!(self.bits, 4 | 8) {
            return Err(format!(
                "weights of {} bits are not supported, only 4 and 8",
                self.bits
            ));
        }
        if !(16..=MAX_BLOCK).contains(&self.block)
            || !self.block.is_power_of_two()
            || self.rows == 0
            || self.depth == 0
        {
            return Err(format!("a block size of {} is not supported", self.block));
        }
        let blocks = self.rows.checked_mul(self.blocks());
        let bytes = blocks.and_then(|n| n.checked_mul(self.block_bytes()));
        let (Some(blocks), Some(bytes)) = (blocks, bytes) else {
            return Err("the size of its weights overflows".into());
        };
        if self.quants.kind != StoredType::U8 || self.quants.data.len() != bytes {
            let (found, kind) = (self.quants.data.len(), self.quants.type_name());
            return Err(format!(
                "has {found} bytes of {kind} weights, must have {bytes} of u8"
            ));
        }
        let scales = reals(self.scales)?;
        if scales.len() != blocks {
            return Err(format!("has {} scales for {blocks} blocks", scales.len()));
        }
        let middle = (1 << (self.bits - 1)) as f32;
        let zeros = match self.zeros {
            None => vec![middle; blocks],
            Some(zeros) if zeros.kind == StoredType::U8 => self.packed_zeros(zeros)?,
            Some(zeros) => reals(zeros)?,
        };
        if zeros.len() != blocks {
            return Err(format!(
                "has {} zero points for {blocks} blocks",
                zeros.len()
            ));
        }
        let symmetric = zeros.iter().all(|zero| *zero == middle);
        Ok(BlockParams {
            scales,
            zeros,
            symmetric,
        })
    }

    /// Unpacks zero points, which have the width of the weights; every row begins at a byte boundary.
    fn packed_zeros(&self, zeros: &OnnxTensor) -> Result<Vec<f32>, String> {
        let row = (self.blocks() * self.bits).div_ceil(8);
        if zeros.data.len() != self.rows * row {
            let (found, wanted) = (zeros.data.len(), self.rows * row);
            return Err(format!(
                "has {found} bytes of zero points, must have {wanted}"
            ));
        }
        let rows = zeros.data.chunks_exact(row);
        let list = rows.flat_map(|row| (0..self.blocks()).map(|at| f32::from(self.quant(row, at))));
        Ok(list.collect())
    }

    /// The packed integer at an index.
    fn quant(&self, bytes: &[u8], at: usize) -> u8 {
        match self.bits {
            4 => (bytes[at / 2] >> (at % 2 * 4)) & 15,
            _ => bytes[at],
        }
    }

    /// The integers of a block.
    fn block_quants(&self, block: usize) -> &[u8] {
        let len = self.block_bytes();
        &self.quants.data[block * len..][..len]
    }

    /// The weights as blocks of `Q4_0`, `Q4_1` or `Q8_0`.
    fn pack(&self, dtype: DType, numbers: &BlockParams) -> (DType, Bytes) {
        let format = dtype.format().expect("a block format");
        // Bytes are unsigned around 128, those of `Q8_0` signed around 0.
        let sign = if self.bits == 8 { 0x80 } else { 0 };
        let per_row = self.depth / BLOCK;
        let blocks = Bytes::filled(self.rows * per_row * format.bytes, |out| {
            for (index, out) in out.chunks_exact_mut(format.bytes).enumerate() {
                let (row, at) = (index / per_row, index % per_row * BLOCK);
                let block = row * self.blocks() + at / self.block;
                let (quants, start) = (self.block_quants(block), at % self.block);
                let scale = numbers.scales[block];
                let factors = [scale, -scale * numbers.zeros[block]];
                format.encode(factors, |i| self.quant(quants, start + i) ^ sign, out);
            }
        });
        (dtype, blocks)
    }

    fn dense(&self, numbers: &BlockParams) -> Bytes {
        let mut values = Vec::with_capacity(self.rows * self.depth);
        for row in 0..self.rows {
            for at in 0..self.depth {
                let block = row * self.blocks() + at / self.block;
                let quant = self.quant(self.block_quants(block), at % self.block);
                values.push(numbers.scales[block] * (f32::from(quant) - numbers.zeros[block]));
            }
        }
        Bytes::from_slice(&values)
    }
}

/// The elements of a real-valued tensor as f32.
fn reals(stored: &OnnxTensor) -> Result<Vec<f32>, String> {
    let value = stored.value().map_err(|e| e.to_string())?;
    let list = value.as_f32().map(<[f32]>::to_vec);
    list.ok_or_else(|| format!("has scales or zero points of type {}", stored.type_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(kind: StoredType, shape: &[usize], data: &[u8]) -> OnnxTensor {
        OnnxTensor {
            kind,
            shape: shape.to_vec(),
            data: Bytes::from(data),
        }
    }

    fn scales(count: usize) -> OnnxTensor {
        let list: Vec<f32> = (0..count).map(|n| 0.25 * (n + 1) as f32).collect();
        stored(StoredType::F32, &[count], bytemuck::cast_slice(&list))
    }

    /// Packed weights of two rows of `depth`, and the same dequantised.
    fn both(
        bits: usize,
        block: usize,
        depth: usize,
        zeros: Option<&[u8]>,
    ) -> (DType, Vec<f32>, Vec<f32>) {
        let blocks = depth.div_ceil(block);
        let bytes: Vec<u8> = (0..2 * blocks * block * bits / 8)
            .map(|n| (n * 37) as u8)
            .collect();
        let quants = stored(StoredType::U8, &[bytes.len()], &bytes);
        let scales = scales(2 * blocks);
        let zeros = zeros.map(|zeros| stored(StoredType::U8, &[zeros.len()], zeros));
        let weights = NBitsWeights {
            rows: 2,
            depth,
            bits,
            block,
            quants: &quants,
            scales: &scales,
            zeros: zeros.as_ref(),
        };
        let (dtype, data) = weights.to_kvark_blocks().unwrap();
        let mut packed = vec![0.0; 2 * depth];
        base::quant::dequantise(dtype, &data, &mut packed).unwrap();
        let dense = weights.dense(&weights.numbers().unwrap());
        (dtype, packed, dense.cast().unwrap().to_vec())
    }

    #[test]
    fn packed_weights_are_the_same_numbers() {
        let zeros = &[0x3A, 0x81][..];
        for (bits, block, depth, zeros, expect) in [
            (4, 32, 64, None, DType::Q4_0),
            (4, 128, 96, None, DType::Q4_0),
            (4, 32, 64, Some(zeros), DType::Q4_1),
            (8, 64, 64, None, DType::Q8_0),
            (8, 64, 64, Some(zeros), DType::F32),
            (4, 16, 64, None, DType::F32),
            (4, 32, 40, None, DType::F32),
        ] {
            let (dtype, packed, dense) = both(bits, block, depth, zeros);
            assert_eq!(dtype, expect);
            // Scales are multiples of 1/4, which f16 represents exactly.
            assert_eq!(packed, dense, "{bits} bits in blocks of {block}");
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        let (quants, scales) = (stored(StoredType::U8, &[32], &[0; 32]), scales(2));
        let weights = NBitsWeights {
            rows: 2,
            depth: 32,
            bits: 4,
            block: 32,
            quants: &quants,
            scales: &scales,
            zeros: None,
        };
        assert!(weights.to_kvark_blocks().is_ok());
        let refused = |weights: NBitsWeights<'_>| weights.to_kvark_blocks().unwrap_err();
        let error = refused(NBitsWeights { rows: 3, ..weights });
        assert!(
            error.contains("32 bytes of u8 weights, must have 48"),
            "{error}"
        );
        let weights = |bits, block| NBitsWeights {
            rows: 2,
            depth: 32,
            bits,
            block,
            quants: &quants,
            scales: &scales,
            zeros: None,
        };
        assert!(refused(weights(3, 32)).contains("3 bits"));
        assert!(refused(weights(4, 48)).contains("block size of 48"));
        assert!(refused(weights(4, usize::MAX / 2 + 1)).contains("block size of"));
        assert!(refused(weights(4, 16)).contains("scales for 4"));
    }
}
