//! Products of 8-bit integers: `MatMulInteger`, `ConvInteger`, `QLinearMatMul`, `QLinearConv`.
//!
//! Differences of 8-bit numbers and their zero points are below 256, so f32 holds sums of [`EXACT_TERMS`] products of them
//! exactly, in any order. Longer sums are cut into such parts, which are added as integers.

use base::DType;
use graph::ops::{BinaryFunction as B, MatMul, UnaryFunction as U};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use super::windowed;
use crate::lowering::elements;
use crate::stored_type::StoredType;

/// Products of two 9-bit integers whose sum f32 holds exactly: 256 · 255² < 2²⁴.
const EXACT_TERMS: usize = 256;

/// Limit on the inner sizes of products, so that small files cannot make large graphs.
const MAX_DEPTH: usize = 1 << 18;

impl OnnxLowering<'_> {
    /// An 8-bit operand minus its zero point, in f32.
    fn centred(
        &mut self,
        call: &Call<'_>,
        (operand, zero): (usize, usize),
        by_row: bool,
    ) -> Result<TensorId, String> {
        let x = self.operand(call, operand)?;
        match self.operand_kind(call, operand) {
            Some(StoredType::U8 | StoredType::I8) => {}
            _ => return Err(format!("operand {operand} must have 8-bit integers")),
        }
        let x = self.cast(x, DType::F32)?;
        let Some(zero) = self.maybe(call, zero)? else {
            return Ok(x);
        };
        let zero = self.cast(zero, DType::F32)?;
        let zero = self.by_row_or_column(zero, by_row)?;
        self.binary(B::Sub, x, zero)
    }

    /// A number of a whole matrix, or a list of one for each row or column, so that it broadcasts to the matrix.
    fn by_row_or_column(&mut self, x: TensorId, by_row: bool) -> Result<TensorId, String> {
        match self.shape(x)[..] {
            [one] if one == Dim::from(1) => self.reshape(x, vec![]),
            [rows] if by_row => self.reshape(x, vec![rows, Dim::from(1)]),
            _ => Ok(x),
        }
    }

    /// The exact product of matrices of small integers, as i32.
    pub(super) fn exact_product(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, String> {
        let (rank_a, rank_b) = (self.rank(a), self.rank(b));
        if rank_a < 2 || rank_b < 2 {
            return Err("its operands must be matrices".into());
        }
        let depth = self.shape(a)[rank_a - 1].as_const();
        let depth = depth.filter(|depth| Dim::from(*depth) == self.shape(b)[rank_b - 2]);
        let depth = depth.filter(|depth| *depth <= MAX_DEPTH);
        let depth =
            depth.ok_or("its inner sizes must be constants that agree, and not too large")?;
        let mut sum: Option<TensorId> = None;
        for start in (0..depth).step_by(EXACT_TERMS) {
            let len = Dim::from(EXACT_TERMS.min(depth - start));
            let (mut left, mut right) = (a, b);
            if depth > EXACT_TERMS {
                left = self.slice(a, rank_a - 1, Dim::from(start), len)?;
                right = self.slice(b, rank_b - 2, Dim::from(start), len)?;
            }
            let part = self.emit(MatMul::default(), &[left, right])?;
            let part = self.cast(part, DType::I32)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => self.binary(B::Add, sum, part)?,
            });
        }
        sum.ok_or_else(|| "multiplies matrices without elements".into())
    }

    /// The exact convolution of small integers, as i32.
    fn exact_convolution(
        &mut self,
        call: &Call<'_>,
        x: TensorId,
        weight: TensorId,
    ) -> Result<TensorId, String> {
        let sizes = windowed::conv_sizes(self, call, x, weight)?;
        let shape = self.shape(weight);
        let taps = elements(shape.get(2..).unwrap_or_default())?;
        let channels = shape.get(1).and_then(Dim::as_const);
        let channels = channels.filter(|channels| *channels <= MAX_DEPTH);
        let channels = channels.ok_or("its channels must be constant and not too many")?;
        let most = EXACT_TERMS / taps.max(1);
        if most >= channels {
            let result = self.convolution(x, weight, None, &sizes)?;
            return self.cast(result, DType::I32);
        }
        if most == 0 || sizes.groups != 1 {
            return Err(format!(
                "sums of {taps} · {channels} products are not exact in f32"
            ));
        }
        let mut sum: Option<TensorId> = None;
        for start in (0..channels).step_by(most) {
            let (from, len) = (Dim::from(start), Dim::from(most.min(channels - start)));
            let (left, right) = (
                self.slice(x, 1, from, len)?,
                self.slice(weight, 1, from, len)?,
            );
            let part = self.convolution(left, right, None, &sizes)?;
            let part = self.cast(part, DType::I32)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => self.binary(B::Add, sum, part)?,
            });
        }
        sum.ok_or_else(|| "has no channels".into())
    }

    /// Rounds `x · factor`, adds the zero point and limits the result to its type.
    fn requantised(
        &mut self,
        call: &Call<'_>,
        x: TensorId,
        factor: TensorId,
        zero: usize,
    ) -> Result<TensorId, String> {
        let kind = self.operand_kind(call, zero);
        let kind = kind.ok_or_else(|| format!("operand {zero} has no stored type"))?;
        let (min, max) = kind
            .range()
            .filter(|_| kind.bits() == 8)
            .ok_or("its result must have 8-bit integers")?;
        let x = self.cast(x, DType::F32)?;
        let scaled = self.binary(B::Mul, x, factor)?;
        let rounded = self.unary(U::Round, scaled)?;
        let zero = self.operand(call, zero)?;
        let zero = self.cast(zero, DType::F32)?;
        let zero = match self.shape(zero)[..] {
            [one] if one == Dim::from(1) => self.reshape(zero, vec![])?,
            _ => zero,
        };
        let moved = self.binary(B::Add, rounded, zero)?;
        let low = self.with_number(B::Max, moved, min as f32)?;
        let within = self.with_number(B::Min, low, max as f32)?;
        self.set_kind(call, Some(kind));
        self.cast(within, DType::I64)
    }
}

pub(super) fn mat_mul_integer(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    lower.set_kind(call, Some(StoredType::I32));
    Ok(vec![product(lower, call, (0, 2), (1, 3))?])
}

/// The exact product of two operands of 8-bit integers with zero points, as i32.
pub(super) fn product(
    lower: &mut OnnxLowering<'_>,
    call: &Call<'_>,
    left: (usize, usize),
    right: (usize, usize),
) -> Result<TensorId, String> {
    let a = lower.centred(call, left, true)?;
    let b = lower.centred(call, right, false)?;
    lower.exact_product(a, b)
}

/// Weights of 8-bit integers minus their zero points, in f32.
pub(super) fn weights(
    lower: &mut OnnxLowering<'_>,
    call: &Call<'_>,
    places: (usize, usize),
) -> Result<TensorId, String> {
    lower.centred(call, places, false)
}

pub(super) fn q_linear_mat_mul(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let product = product(lower, call, (0, 2), (3, 5))?;
    let (left, right) = (lower.real(call, 1)?, lower.real(call, 4)?);
    let left = lower.by_row_or_column(left, true)?;
    let right = lower.by_row_or_column(right, false)?;
    let result = lower.real(call, 6)?;
    let result = lower.by_row_or_column(result, true)?;
    let factor = lower.binary(B::Mul, left, right)?;
    let factor = lower.binary(B::Div, factor, result)?;
    Ok(vec![lower.requantised(call, product, factor, 7)?])
}

/// A list with one element for each output channel, so that it broadcasts to `rank` axes from the axis `axis` on.
fn by_channel(
    lower: &mut OnnxLowering<'_>,
    x: TensorId,
    rank: usize,
    axis: usize,
) -> Result<TensorId, String> {
    match lower.shape(x)[..] {
        [] => Ok(x),
        [one] if one == Dim::from(1) => lower.reshape(x, vec![]),
        [count] => {
            let mut column = vec![Dim::from(1); rank - axis];
            column[0] = count;
            lower.reshape(x, column)
        }
        _ => Err("a scale or zero point must be a number or a list".into()),
    }
}

/// The weights of a convolution minus their zero points, in f32.
fn centred_weights(
    lower: &mut OnnxLowering<'_>,
    call: &Call<'_>,
    (operand, zero): (usize, usize),
) -> Result<TensorId, String> {
    let weight = lower.operand(call, operand)?;
    match lower.operand_kind(call, operand) {
        Some(StoredType::U8 | StoredType::I8) => {}
        _ => return Err("its weights must have 8-bit integers".into()),
    }
    let weight = lower.cast(weight, DType::F32)?;
    let Some(zero) = lower.maybe(call, zero)? else {
        return Ok(weight);
    };
    let zero = lower.cast(zero, DType::F32)?;
    let zero = by_channel(lower, zero, lower.rank(weight), 0)?;
    lower.binary(B::Sub, weight, zero)
}

pub(super) fn conv_integer(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.centred(call, (0, 2), false)?;
    let weight = centred_weights(lower, call, (1, 3))?;
    lower.set_kind(call, Some(StoredType::I32));
    Ok(vec![lower.exact_convolution(call, x, weight)?])
}

pub(super) fn q_linear_conv(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.centred(call, (0, 2), false)?;
    let weight = centred_weights(lower, call, (3, 5))?;
    let mut sum = lower.exact_convolution(call, x, weight)?;
    let rank = lower.rank(sum);
    if let Some(bias) = lower.maybe(call, 8)? {
        let bias = lower.cast(bias, DType::I32)?;
        let bias = by_channel(lower, bias, rank, 1)?;
        sum = lower.binary(B::Add, sum, bias)?;
    }
    let (input, weights) = (lower.real(call, 1)?, lower.real(call, 4)?);
    let result = lower.real(call, 6)?;
    let input = by_channel(lower, input, rank, 1)?;
    let weights = by_channel(lower, weights, rank, 1)?;
    let result = by_channel(lower, result, rank, 1)?;
    let factor = lower.binary(B::Mul, input, weights)?;
    let factor = lower.binary(B::Div, factor, result)?;
    Ok(vec![lower.requantised(call, sum, factor, 7)?])
}

pub(super) fn dynamic_quantize(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    for index in [0, 2] {
        if let Some(name) = call.result(index) {
            lower.kinds.insert(name.to_owned(), StoredType::U8);
        }
    }
    let [result, scale, place] = lower.dynamically_quantised(x)?;
    let result = lower.cast(result, DType::I64)?;
    Ok(vec![result, scale, lower.cast(place, DType::I64)?])
}
