//! torchao's weight-only quantisation: integers with a scale and zero point for each block.

use base::{Bytes, DType};
use graph::TensorId;
use half::f16;

use super::call::Call;
use super::context::Pt2Lowering;
use crate::pt2::tensor::Pt2Tensor;

type Results = Result<Vec<TensorId>, String>;

/// Elements of a block in kvark's formats.
const BLOCK: usize = 32;

/// A stored matrix of integers; an element is `scale · (integer - zero)`.
struct Quantised<'a> {
    integers: &'a [u8],
    rows: usize,
    depth: usize,
    /// Rows and columns that share a scale.
    block: [usize; 2],
    scales: Vec<f32>,
    zeros: Vec<f32>,
}

impl Quantised<'_> {
    fn parameter(&self, row: usize, column: usize) -> usize {
        let columns = self.depth / self.block[1];
        row / self.block[0] * columns + column / self.block[1]
    }

    fn integer(&self, row: usize, column: usize) -> i8 {
        self.integers[row * self.depth + column] as i8
    }

    /// The format whose blocks hold these integers, if there is one.
    fn format(&self, [low, high]: [i64; 2]) -> Option<DType> {
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

    fn pack(&self, format: DType) -> Bytes {
        let per_row = self.depth / BLOCK;
        let bytes = format.block_bytes();
        Bytes::filled(self.rows * per_row * bytes, |out| {
            for (index, out) in out.chunks_exact_mut(bytes).enumerate() {
                let (row, first) = (index / per_row, index % per_row * BLOCK);
                let scale = self.scales[self.parameter(row, first)];
                out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                for (i, byte) in out[2..].iter_mut().enumerate() {
                    let at = |i: usize| self.integer(row, first + i);
                    *byte = match format {
                        DType::Q4_0 => {
                            let nibble = |i: usize| (at(i) + 8) as u8 & 15;
                            nibble(i) | nibble(i + BLOCK / 2) << 4
                        }
                        _ => at(i) as u8,
                    };
                }
            }
        })
    }

    fn dense(&self) -> Bytes {
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
    let weights = Quantised {
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

/// The elements of a small stored tensor as f32.
fn reals(stored: &Pt2Tensor) -> Result<Vec<f32>, String> {
    let (dtype, data) = stored.computed()?;
    let value = graph::Data::from_bytes(dtype, &data, stored.len());
    match value {
        Some(graph::Data::F32(list)) => Ok(list),
        Some(graph::Data::I64(list)) => Ok(list.into_iter().map(|n| n as f32).collect()),
        Some(graph::Data::I32(list)) => Ok(list.into_iter().map(|n| n as f32).collect()),
        _ => Err(format!(
            "has scales or zero points of type {}",
            stored.type_name()
        )),
    }
}

pub(super) fn dequantize_affine(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let program = lower.program;
    let stored = |name: &str| -> Result<Option<&Pt2Tensor>, String> {
        let Some(name) = call.maybe_tensor(name)? else {
            return Ok(None);
        };
        let found = program.tensors.get(name);
        let found = found
            .ok_or_else(|| format!("{name} is computed; only stored weights are supported"))?;
        Ok(Some(found))
    };
    let integers = stored("input")?.ok_or("has no input")?;
    let scales = stored("scale")?.ok_or("has no scale")?;
    let zeros = stored("zero_point")?;
    let &[rows, depth] = &integers.shape[..] else {
        return Err("only matrices are supported".into());
    };
    if integers.type_name() != "i8" {
        let name = integers.type_name();
        return Err(format!(
            "integers of type {name} are not supported, only i8"
        ));
    }
    let block = call.ints("block_size")?.unwrap_or_default();
    let block: Vec<usize> = block
        .iter()
        .filter_map(|n| usize::try_from(*n).ok())
        .collect();
    let &[high, wide] = &block[..] else {
        return Err("its block_size must have two numbers".into());
    };
    if high == 0 || wide == 0 || !rows.is_multiple_of(high) || !depth.is_multiple_of(wide) {
        return Err(format!(
            "blocks of {block:?} do not divide [{rows}, {depth}]"
        ));
    }
    let count = (rows / high) * (depth / wide);
    let scales = reals(scales)?;
    let zeros = match zeros {
        Some(zeros) => reals(zeros)?,
        None => vec![0.0; count],
    };
    if scales.len() != count || zeros.len() != count {
        return Err(format!("has {} scales for {count} blocks", scales.len()));
    }
    let weights = Quantised {
        integers: &integers.data,
        rows,
        depth,
        block: [high, wide],
        scales,
        zeros,
    };
    let range = [call.int("quant_min", -128)?, call.int("quant_max", 127)?];
    let format = weights.format(range).filter(|_| {
        let name = call.results().first().copied().unwrap_or_default();
        lower.is_weight_only(name)
    });
    let (dtype, data) = match format {
        Some(format) => (format, weights.pack(format)),
        None => (DType::F32, weights.dense()),
    };
    Ok(vec![lower.constant(dtype, &[rows, depth], data)?])
}

impl Pt2Lowering<'_> {
    /// Whether a tensor is read only as the weight of products and embeddings.
    fn is_weight_only(&self, name: &str) -> bool {
        let outputs = self.graph.outputs.iter();
        if outputs
            .flat_map(crate::pt2::schema::Argument::names)
            .any(|n| n == name)
        {
            return false;
        }
        let mut readers = self.graph.nodes.iter().flat_map(|node| {
            let product = matches!(node.op(), "aten.linear.default" | "aten.embedding.default");
            let inputs = node.inputs.iter().map(move |input| (product, input));
            inputs.filter(|(_, input)| input.arg.names().contains(&name))
        });
        readers.all(|(product, input)| product && input.name == "weight")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_weights_are_the_same_numbers() {
        let integers: Vec<u8> = (0..128).map(|n| (n % 16 - 8) as i8 as u8).collect();
        let weights = |zeros: f32, block: usize| Quantised {
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
