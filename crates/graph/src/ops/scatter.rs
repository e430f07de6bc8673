//! Writes to indexed places of a tensor.

use super::elementwise::Broadcast;
use super::operands::{
    broadcast, integers, require_broadcast, require_dtype, require_index, wrap_index,
};
use super::strided::strides;
use super::{BufferReuse, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Value};
use base::DType;

/// How a written element is combined with the one that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterFunction {
    /// The new element; the last one written to a place stays.
    Replace,
    /// The sum.
    Add,
    /// The product.
    Mul,
    /// The smaller one.
    Min,
    /// The larger one.
    Max,
}

impl ScatterFunction {
    /// Every function.
    pub const ALL: [ScatterFunction; 5] = [
        ScatterFunction::Replace,
        ScatterFunction::Add,
        ScatterFunction::Mul,
        ScatterFunction::Min,
        ScatterFunction::Max,
    ];

    /// Name in text form.
    pub fn name(self) -> &'static str {
        match self {
            ScatterFunction::Replace => "replace",
            ScatterFunction::Add => "add",
            ScatterFunction::Mul => "mul",
            ScatterFunction::Min => "min",
            ScatterFunction::Max => "max",
        }
    }

    /// The combined f32.
    pub fn real(self, old: f32, new: f32) -> f32 {
        match self {
            ScatterFunction::Replace => new,
            ScatterFunction::Add => old + new,
            ScatterFunction::Mul => old * new,
            ScatterFunction::Min => old.min(new),
            ScatterFunction::Max => old.max(new),
        }
    }

    /// The combined integer; overflow wraps.
    pub fn integer(self, old: i64, new: i64) -> i64 {
        match self {
            ScatterFunction::Replace => new,
            ScatterFunction::Add => old.wrapping_add(new),
            ScatterFunction::Mul => old.wrapping_mul(new),
            ScatterFunction::Min => old.min(new),
            ScatterFunction::Max => old.max(new),
        }
    }
}

/// `data` with `data[i0, i1, …]` combined with `values`: operands `data`, one index (i32 or i64) for each of its first axes,
/// broadcast together, and `values`, which broadcast to the common shape of the indices followed by the axes of `data` that
/// are not indexed. Negative indices count from the end. Elements are written in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Scatter {
    /// How elements are combined; booleans are only replaced.
    pub function: ScatterFunction,
}

impl OpDefinition for Scatter {
    fn name(&self) -> &'static str {
        "scatter"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("function: {}", self.function.name())]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [data, indices @ .., values] = inputs else {
            return Err("takes data, indices and values".into());
        };
        let types: &[DType] = match self.function {
            ScatterFunction::Replace => &[DType::F32, DType::I32, DType::I64, DType::Bool],
            _ => &[DType::F32, DType::I32, DType::I64],
        };
        require_dtype("data", data, types)?;
        require_dtype("values", values, &[data.dtype])?;
        let rest = data
            .shape
            .get(indices.len()..)
            .filter(|_| !indices.is_empty());
        let rest = rest.ok_or_else(|| {
            let axes = data.shape.len();
            format!("has {} indices for {axes} axes", indices.len())
        })?;
        let mut shape = Vec::new();
        for (i, index) in indices.iter().enumerate() {
            require_index(&format!("index {i}"), index)?;
            shape = broadcast(&shape, &index.shape)?;
        }
        shape.extend_from_slice(rest);
        require_broadcast("values", values, &shape)?;
        Ok((*data).clone())
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(1))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let [data, indices @ .., values] = inputs else {
            return Err("takes data, indices and values".into());
        };
        let mut common: Vec<usize> = Vec::new();
        for index in indices {
            let long = common.len().max(index.shape.len());
            let size = |shape: &[usize], i: usize| {
                (i + shape.len()).checked_sub(long).map_or(1, |i| shape[i])
            };
            let joined = |i: usize| match (size(&common, i), size(&index.shape, i)) {
                (1, n) => n,
                (n, _) => n,
            };
            common = (0..long).map(joined).collect();
        }
        let steps = strides(&data.shape);
        let mut starts = vec![0; common.iter().product()];
        for (axis, index) in indices.iter().enumerate() {
            let list = integers(index)?;
            let list = Broadcast::new(index, &common)
                .read(&list)
                .collect::<Vec<_>>();
            for (start, i) in starts.iter_mut().zip(list) {
                *start += wrap_index(i, data.shape[axis])? * steps[axis];
            }
        }
        let rest = &data.shape[indices.len()..];
        let block: usize = rest.iter().product();
        let places = starts.into_iter().flat_map(|start| start..start + block);
        let full: Vec<usize> = common.iter().chain(rest).copied().collect();
        let walk = Broadcast::new(values, &full);
        fn write<T: Copy>(
            old: &[T],
            places: impl Iterator<Item = usize>,
            new: impl Iterator<Item = T>,
            combine: impl Fn(T, T) -> T,
        ) -> Vec<T> {
            let mut out = old.to_vec();
            for (at, new) in places.zip(new) {
                out[at] = combine(out[at], new);
            }
            out
        }
        let function = self.function;
        let data = match (&data.data, &values.data) {
            (Data::F32(old), Data::F32(new)) => {
                Data::F32(write(old, places, walk.read(new), |a, b| {
                    function.real(a, b)
                }))
            }
            (Data::I32(old), Data::I32(new)) => {
                Data::I32(write(old, places, walk.read(new), |a, b| {
                    function.integer(a.into(), b.into()) as i32
                }))
            }
            (Data::I64(old), Data::I64(new)) => {
                Data::I64(write(old, places, walk.read(new), |a, b| {
                    function.integer(a, b)
                }))
            }
            (Data::Bool(old), Data::Bool(new)) => {
                Data::Bool(write(old, places, walk.read(new), |_, b| b))
            }
            _ => return Err("its operands have different types".into()),
        };
        Ok(Value {
            shape: shape.to_vec(),
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes() {
        let data = Value::i64([3, 2], vec![1; 6]);
        let rows = Value::i64([2, 1], vec![0, -1]);
        let columns = Value::i32([3], vec![1, 0, 1]);
        let values = Value::i64([3], vec![10, 20, 30]);
        let run = |function| {
            let op = Scatter { function };
            let operands = [&data, &rows, &columns, &values];
            let y = op.evaluate(&operands, &[3, 2], &Bindings::default());
            y.unwrap().as_i64().unwrap().to_vec()
        };
        assert_eq!(run(ScatterFunction::Replace), [20, 30, 1, 1, 20, 30]);
        assert_eq!(run(ScatterFunction::Add), [21, 41, 1, 1, 21, 41]);
        let block = Value::i64([2], vec![7, 8]);
        let one = Value::i64([], vec![1]);
        let op = Scatter {
            function: ScatterFunction::Max,
        };
        let y = op.evaluate(&[&data, &one, &block], &[3, 2], &Bindings::default());
        assert_eq!(y.unwrap().as_i64().unwrap(), [1, 1, 7, 8, 1, 1]);
    }
}
