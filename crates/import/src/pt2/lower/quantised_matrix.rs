//! Matrices of integers with scales, and their blocks in kvark's formats.

use base::{Bytes, DType};
use half::f16;

/// Elements of a block in kvark's formats.
const BLOCK: usize = 32;

/// A stored matrix of integers; an element is `scale · (integer - zero)`.
pub(super) struct QuantisedMatrix<'a> {
    pub(super) integers: &'a [u8],
    pub(super) rows: usize,
    pub(super) depth: usize,
    /// Rows and columns that share a scale.
    pub(super) block: [usize; 2],
    pub(super) scales: Vec<f32>,
    pub(super) zeros: Vec<f32>,
}

impl QuantisedMatrix<'_> {
    fn parameter(&self, row: usize, column: usize) -> usize {
        let columns = self.depth / self.block[1];
        row / self.block[0] * columns + column / self.block[1]
    }

    fn integer(&self, row: usize, column: usize) -> i8 {
        self.integers[row * self.depth + column] as i8
    }

    /// The format whose blocks hold these integers, if there is one.
    pub(super) fn format(&self, [low, high]: [i64; 2]) -> Option<DType> {
        let whole = self.block[1].is_multiple_of(BLOCK) && self.depth.is_multiple_of(BLOCK);
        let finite = |x: &f32| f16::from_f32(*x).is_finite();
        let symmetric = self.zeros.iter().all(|zero| *zero == 0.0);
        if !whole || !symmetric || !self.scales.iter().all(finite) {
            return None;
        }
        let inside = |n: &u8| (low..=high).contains(&i64::from(*n as i8));
        let inside = self.integers.iter().all(inside);
        match (low, high) {
            (-8.., ..=7) if inside => Some(DType::Q4_0),
            _ => Some(DType::Q8_0),
        }
    }

    pub(super) fn pack(&self, dtype: DType) -> Bytes {
        let format = dtype.format().expect("a block format");
        let zero = if dtype == DType::Q4_0 { 8 } else { 0 };
        let per_row = self.depth / BLOCK;
        Bytes::filled(self.rows * per_row * format.bytes, |out| {
            for (index, out) in out.chunks_exact_mut(format.bytes).enumerate() {
                let (row, first) = (index / per_row, index % per_row * BLOCK);
                let scale = self.scales[self.parameter(row, first)];
                let code = |i: usize| self.integer(row, first + i).wrapping_add(zero) as u8;
                format.encode([scale, 0.0], code, out);
            }
        })
    }

    pub(super) fn dense(&self) -> Bytes {
        let mut values = Vec::with_capacity(self.rows * self.depth);
        for row in 0..self.rows {
            for column in 0..self.depth {
                let at = self.parameter(row, column);
                let integer = f32::from(self.integer(row, column));
                values.push(self.scales[at] * (integer - self.zeros[at]));
            }
        }
        Bytes::from_slice(&values)
    }
}

/// A matrix of int8 as Q8_0 whose scales are 1, so that its elements are exact; `None` if its rows are not whole blocks.
pub(super) fn int8_blocks(integers: &[u8], depth: usize) -> Option<Bytes> {
    let rows = integers.len().checked_div(depth)?;
    let weights = QuantisedMatrix {
        integers,
        rows,
        depth,
        block: [rows, depth],
        scales: vec![1.0],
        zeros: vec![0.0],
    };
    let format = weights.format([-128, 127])?;
    Some(weights.pack(format))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_weights_are_the_same_numbers() {
        let integers: Vec<u8> = (0..128).map(|n| (n % 16 - 8) as i8 as u8).collect();
        let weights = |zeros: f32, block: usize| QuantisedMatrix {
            integers: &integers,
            rows: 2,
            depth: 64,
            block: [1, block],
            scales: (0..2 * (64 / block))
                .map(|n| 0.25 * (n + 1) as f32)
                .collect(),
            zeros: vec![zeros; 2 * (64 / block)],
        };
        for (range, expect) in [([-8, 7], DType::Q4_0), ([-128, 127], DType::Q8_0)] {
            let weights = weights(0.0, 32);
            assert_eq!(weights.format(range), Some(expect));
            let mut packed = vec![0.0; 128];
            base::quant::dequantise(expect, &weights.pack(expect), &mut packed).unwrap();
            // Scales are multiples of 1/4, which f16 represents exactly.
            assert_eq!(weights.dense().cast::<f32>().unwrap(), packed);
        }
        let mut exact = vec![0.0; 128];
        let blocks = int8_blocks(&integers, 64).unwrap();
        base::quant::dequantise(DType::Q8_0, &blocks, &mut exact).unwrap();
        let direct: Vec<f32> = integers.iter().map(|n| f32::from(*n as i8)).collect();
        assert_eq!(exact, direct);
        assert!(int8_blocks(&integers, 16).is_none());
        assert_eq!(weights(1.0, 32).format([-8, 7]), None);
        assert_eq!(weights(0.0, 16).format([-8, 7]), None);
    }
}
