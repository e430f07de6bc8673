//! `DequantizeLinear` and `QuantizeLinear`.

use base::{Bytes, DType};
use graph::ops::{
    BinaryFunction as B, Cast, CompareFunction as C, Gather, Reduce, ReduceFunction, Scalar,
    UnaryFunction as U,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::LoweringBuilder;
use crate::onnx::tensor;
use crate::stored_type::StoredType;

impl OnnxLowering<'_> {
    /// Reshapes a scale or zero point so that it broadcasts to `x`: per tensor, per index of an axis, or per block of an
    /// axis.
    fn per_element(
        &mut self,
        call: &Call<'_>,
        scale: TensorId,
        x: TensorId,
    ) -> Result<TensorId, String> {
        let (shape, own) = (self.shape(x), self.shape(scale));
        let block = call.count("block_size")?.filter(|size| *size > 0);
        if own.iter().all(|dim| *dim == Dim::from(1)) && block.is_none() {
            return self.reshape(scale, vec![]);
        }
        let axis = LoweringBuilder::axis(call.int_or("axis", 1)?, shape.len())?;
        if axis >= shape.len() || block.is_some() && own.len() != shape.len() {
            return Err(format!(
                "a scale of shape {own:?} does not broadcast to {shape:?}"
            ));
        }
        let Some(block) = block else {
            let [count] = own[..] else {
                return Err(format!(
                    "a scale of shape {own:?} does not broadcast to {shape:?}"
                ));
            };
            let mut column = vec![Dim::from(1); shape.len()];
            column[axis] = count;
            return self.reshape(scale, column);
        };
        // The scale of each block is repeated over its elements; the last block may be shorter.
        let (mut apart, mut joined) = (own.clone(), own);
        apart.insert(axis + 1, Dim::from(1));
        let scale = self.reshape(scale, apart.clone())?;
        apart[axis + 1] = Dim::from(block);
        let scale = self.expand(scale, apart)?;
        joined[axis] = joined[axis] * block;
        let scale = self.reshape(scale, joined.clone())?;
        match joined[axis] == shape[axis] {
            true => Ok(scale),
            false => self.slice(scale, axis, Dim::from(0), shape[axis]),
        }
    }

    /// Rounds real numbers to the nearest value of a narrow float type, ties to even.
    pub(super) fn rounded(
        &mut self,
        x: TensorId,
        kind: StoredType,
        saturate: bool,
    ) -> Result<TensorId, String> {
        let Some(float) = Narrow::new(kind) else {
            return Ok(x);
        };
        let mut x = x;
        if kind == StoredType::F4E2M1 {
            // The type has no NaN.
            let number = self.compare(C::Eq, x, x)?;
            let zero = self.scalar(Scalar::F32(0.0), DType::F32)?;
            x = self.choose(number, x, zero)?;
        }
        // The spacing of values doubles at every power of two; count the powers below to find it.
        let powers: Vec<f32> = (float.lowest + 1..=float.highest).map(power).collect();
        let lowest = float.lowest - float.mantissa;
        let steps: Vec<f32> = (0..=powers.len() as i32)
            .map(|n| power(lowest + n))
            .collect();
        let bounds = self.constant(DType::F32, &[powers.len()], Bytes::from_slice(&powers))?;
        let steps = self.constant(DType::F32, &[steps.len()], Bytes::from_slice(&steps))?;
        let size = self.unary(U::Abs, x)?;
        let mut column = self.shape(size);
        column.push(Dim::from(1));
        let last = column.len() - 1;
        let apart = self.reshape(size, column)?;
        let below = self.compare(C::Ge, apart, bounds)?;
        let below = self.emit(Cast { to: DType::I64 }, &[below])?;
        let count = Reduce {
            function: ReduceFunction::Sum,
            axes: vec![last],
            keep: false,
        };
        let count = self.emit(count, &[below])?;
        let step = self.emit(Gather { axis: 0 }, &[steps, count])?;
        let whole = self.binary(B::Div, x, step)?;
        let whole = self.unary(U::Round, whole)?;
        let rounded = self.binary(B::Mul, whole, step)?;
        if saturate {
            let low = self.with_number(B::Max, rounded, -float.largest)?;
            return self.with_number(B::Min, low, float.largest);
        }
        let size = self.unary(U::Abs, rounded)?;
        let most = self.scalar(Scalar::F32(float.largest), DType::F32)?;
        let beyond = self.compare(C::Gt, size, most)?;
        let outside = match float.infinite {
            true => {
                let sign = self.unary(U::Sign, x)?;
                self.with_number(B::Mul, sign, f32::INFINITY)?
            }
            false => self.scalar(Scalar::F32(f32::NAN), DType::F32)?,
        };
        self.choose(beyond, outside, rounded)
    }
}

fn power(exponent: i32) -> f32 {
    2f32.powi(exponent)
}

/// A float format of at most 8 bits.
struct Narrow {
    /// Mantissa bits.
    mantissa: i32,
    /// Exponents of the smallest and the largest normal number.
    lowest: i32,
    highest: i32,
    largest: f32,
    infinite: bool,
}

impl Narrow {
    fn new(kind: StoredType) -> Option<Narrow> {
        let (mantissa, lowest, highest, largest) = match kind {
            StoredType::F8E4M3FN => (3, -6, 8, 448.0),
            StoredType::F8E4M3FNUZ => (3, -7, 7, 240.0),
            StoredType::F8E5M2 | StoredType::F8E5M2FNUZ => (
                2,
                if kind == StoredType::F8E5M2 { -14 } else { -15 },
                15,
                57344.0,
            ),
            StoredType::F4E2M1 => (1, 0, 2, 6.0),
            _ => return None,
        };
        Some(Narrow {
            mantissa,
            lowest,
            highest,
            largest,
            infinite: kind == StoredType::F8E5M2,
        })
    }
}

pub(super) fn dequantize(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let scale = lower.real(call, 1)?;
    let scale = lower.per_element(call, scale, x)?;
    let x = match lower.maybe(call, 2)? {
        None => x,
        Some(zero) => {
            let zero = lower.per_element(call, zero, x)?;
            lower.binary(B::Sub, x, zero)?
        }
    };
    let x = lower.cast(x, DType::F32)?;
    Ok(vec![lower.binary(B::Mul, x, scale)?])
}

pub(super) fn quantize(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let scale = lower.real(call, 1)?;
    let scale = lower.per_element(call, scale, x)?;
    let kind = match (lower.operand_kind(call, 2), call.int("output_dtype")?) {
        (Some(kind), _) => kind,
        (None, Some(code)) if code != 0 => tensor::kind(code)?,
        _ => StoredType::U8,
    };
    let zero = match lower.maybe(call, 2)? {
        Some(zero) => Some(lower.per_element(call, zero, x)?),
        None => None,
    };
    if let Some(name) = call.result(0) {
        lower.kinds.insert(name.to_owned(), kind);
    }
    let scaled = lower.binary(B::Div, x, scale)?;
    let Some((min, max)) = kind.range() else {
        let moved = match zero {
            Some(zero) => lower.binary(B::Add, scaled, zero)?,
            None => scaled,
        };
        return Ok(vec![lower.rounded(
            moved,
            kind,
            call.flag("saturate", true)?,
        )?]);
    };
    let whole = lower.unary(U::Round, scaled)?;
    let whole = lower.cast(whole, DType::I64)?;
    let moved = match zero {
        Some(zero) => lower.binary(B::Add, whole, zero)?,
        None => whole,
    };
    let min = lower.scalar(Scalar::I64(min), DType::I64)?;
    let max = lower.scalar(Scalar::I64(max), DType::I64)?;
    let low = lower.binary(B::Max, moved, min)?;
    let within = lower.binary(B::Min, low, max)?;
    Ok(vec![lower.cast(within, kind.dtype())?])
}
