//! Weights of `MatMulNBits`: blocks along the depth, each with a scale and perhaps a zero point, as kvark's own formats.

use base::{Bytes, DType};
use half::f16;

use super::constant::Stored;
use crate::element::Kind;

/// Elements in a block of kvark's formats.
const BLOCK: usize = 32;

/// Larger blocks than any quantiser makes.
const MOST_BLOCK: usize = 1 << 20;

/// A weight matrix `[rows, depth]`; an element is `scale · (quant − zero)`.
pub(super) struct BlockWeights<'a> {
    pub(super) rows: usize,
    pub(super) depth: usize,
    pub(super) bits: usize,
    /// Elements of a row that share a scale.
    pub(super) block: usize,
    pub(super) quants: &'a Stored,
    pub(super) scales: &'a Stored,
    pub(super) zeros: Option<&'a Stored>,
}

/// The numbers of all blocks, row by row.
struct Numbers {
    scales: Vec<f32>,
    zeros: Vec<f32>,
    /// Whether every zero point is the one that is meant when there is none.
    symmetric: bool,
}

impl BlockWeights<'_> {
    /// The weights in the narrowest type that holds them.
    ///
    /// Blocks of 32, or multiples of it, keep their integers; their scales become f16. Others are multiplied out to f32.
    pub(super) fn packed(&self) -> Result<(DType, Bytes), String> {
        let numbers = self.numbers()?;
        let whole = self.block.is_multiple_of(BLOCK) && self.depth.is_multiple_of(BLOCK);
        let fits = |x: &f32| f16::from_f32(*x).is_finite();
        let fits = whole && numbers.scales.iter().all(fits);
        Ok(match (self.bits, numbers.symmetric) {
            (4, true) if fits => (DType::Q4_0, self.four_bits(&numbers, false)),
            (4, false) if fits => (DType::Q4_1, self.four_bits(&numbers, true)),
            (8, true) if fits => (DType::Q8_0, self.eight_bits(&numbers)),
            _ => (DType::F32, self.dense(&numbers)),
        })
    }

    fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block)
    }

    /// Bytes of a block's integers.
    fn block_bytes(&self) -> usize {
        self.block * self.bits / 8
    }

    fn numbers(&self) -> Result<Numbers, String> {
        if !matches!(self.bits, 4 | 8) {
            return Err(format!("weights of {} bits are not known", self.bits));
        }
        if !(16..=MOST_BLOCK).contains(&self.block)
            || !self.block.is_power_of_two()
            || self.rows == 0
            || self.depth == 0
        {
            return Err(format!("blocks of {} are not known", self.block));
        }
        let blocks = self.rows.checked_mul(self.blocks());
        let bytes = blocks.and_then(|n| n.checked_mul(self.block_bytes()));
        let (Some(blocks), Some(bytes)) = (blocks, bytes) else {
            return Err("its sizes overflow".into());
        };
        if self.quants.kind != Kind::U8 || self.quants.data.len() != bytes {
            let (found, kind) = (self.quants.data.len(), self.quants.type_name());
            return Err(format!(
                "has {found} bytes of {kind} weights, {bytes} of u8 are wanted"
            ));
        }
        let scales = reals(self.scales)?;
        if scales.len() != blocks {
            return Err(format!("has {} scales for {blocks} blocks", scales.len()));
        }
        let middle = (1 << (self.bits - 1)) as f32;
        let zeros = match self.zeros {
            None => vec![middle; blocks],
            Some(zeros) if zeros.kind == Kind::U8 => self.packed_zeros(zeros)?,
            Some(zeros) => reals(zeros)?,
        };
        if zeros.len() != blocks {
            return Err(format!(
                "has {} zero points for {blocks} blocks",
                zeros.len()
            ));
        }
        let symmetric = zeros.iter().all(|zero| *zero == middle);
        Ok(Numbers {
            scales,
            zeros,
            symmetric,
        })
    }

    /// Zero points as wide as the weights; every row begins with a whole byte.
    fn packed_zeros(&self, zeros: &Stored) -> Result<Vec<f32>, String> {
        let row = (self.blocks() * self.bits).div_ceil(8);
        if zeros.data.len() != self.rows * row {
            let (found, wanted) = (zeros.data.len(), self.rows * row);
            return Err(format!(
                "has {found} bytes of zero points, {wanted} are wanted"
            ));
        }
        let rows = zeros.data.chunks_exact(row);
        let list = rows.flat_map(|row| (0..self.blocks()).map(|at| f32::from(self.quant(row, at))));
        Ok(list.collect())
    }

    /// The integer at a place of packed ones.
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

    /// Calls `write` for every 32 elements: the block they are in, and where in it they begin.
    fn each_small_block(
        &self,
        bytes: usize,
        mut write: impl FnMut(&mut [u8], usize, usize),
    ) -> Bytes {
        let per_row = self.depth / BLOCK;
        Bytes::filled(self.rows * per_row * bytes, |out| {
            for (index, out) in out.chunks_exact_mut(bytes).enumerate() {
                let (row, at) = (index / per_row, index % per_row * BLOCK);
                let block = row * self.blocks() + at / self.block;
                write(out, block, at % self.block);
            }
        })
    }

    fn four_bits(&self, numbers: &Numbers, offset: bool) -> Bytes {
        let head = if offset { 4 } else { 2 };
        self.each_small_block(head + BLOCK / 2, |out, block, start| {
            let scale = numbers.scales[block];
            out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            if offset {
                let lowest = f16::from_f32(-scale * numbers.zeros[block]);
                out[2..4].copy_from_slice(&lowest.to_le_bytes());
            }
            let quants = self.block_quants(block);
            for (i, byte) in out[head..].iter_mut().enumerate() {
                let low = self.quant(quants, start + i);
                *byte = low | self.quant(quants, start + i + BLOCK / 2) << 4;
            }
        })
    }

    fn eight_bits(&self, numbers: &Numbers) -> Bytes {
        self.each_small_block(2 + BLOCK, |out, block, start| {
            out[..2].copy_from_slice(&f16::from_f32(numbers.scales[block]).to_le_bytes());
            let quants = &self.block_quants(block)[start..];
            for (byte, quant) in out[2..].iter_mut().zip(quants) {
                // From around 128 to around 0.
                *byte = quant ^ 0x80;
            }
        })
    }

    fn dense(&self, numbers: &Numbers) -> Bytes {
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

/// The numbers of a tensor of a real type.
fn reals(stored: &Stored) -> Result<Vec<f32>, String> {
    let value = stored.value().map_err(|e| e.to_string())?;
    let list = value.as_f32().map(<[f32]>::to_vec);
    list.ok_or_else(|| format!("has scales or zero points of type {}", stored.type_name()))
}
