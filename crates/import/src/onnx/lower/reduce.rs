//! Reductions, cumulative sums and softmax.

use base::DType;
use graph::ops::{
    BinaryFunction as B, CumSum, Reduce, ReduceFunction as R, Scalar, Softmax, UnaryFunction as U,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use super::shape::axes;
use crate::lowering::LoweringBuilder;

impl OnnxLowering<'_> {
    fn reduced(
        &mut self,
        function: R,
        x: TensorId,
        axes: &[usize],
        keep: bool,
    ) -> Result<TensorId, String> {
        let axes = axes.to_vec();
        let reduce = Reduce {
            function,
            axes,
            keep,
        };
        self.emit(reduce, &[x])
    }
}

pub(super) fn reduce(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.operand(call, 0)?;
    let rank = lower.rank(x);
    let list = lower.ints_of(call, "axes", 1)?.unwrap_or_default();
    let keep = call.flag("keepdims", true)?;
    let over = match list.is_empty() {
        true if call.flag("noop_with_empty_axes", false)? => vec![],
        true => (0..rank).collect(),
        false => axes(&list, rank)?,
    };
    let op = call.op();
    let dtype = lower.dtype(x);
    match op {
        "ReduceL1" => x = lower.unary(U::Abs, x)?,
        "ReduceL2" | "ReduceSumSquare" => x = lower.binary(B::Mul, x, x)?,
        "ReduceLogSumExp" => return log_sum_exp(lower, x, &over, keep),
        _ => {}
    }
    let function = match op {
        "ReduceMean" => R::Mean,
        "ReduceMax" => R::Max,
        "ReduceMin" => R::Min,
        "ReduceProd" => R::Prod,
        _ => R::Sum,
    };
    let empty = over
        .iter()
        .any(|axis| lower.shape(x)[*axis] == Dim::from(0));
    let mut result = match function {
        _ if over.is_empty() => x,
        // The maximum or minimum of no elements is the limit of the type.
        R::Max | R::Min if empty => return of_nothing(lower, x, &over, keep, function),
        R::Mean => {
            let real = lower.cast(x, DType::F32)?;
            lower.reduced(function, real, &over, keep)?
        }
        _ => lower.reduced(function, x, &over, keep)?,
    };
    match op {
        "ReduceL2" => {
            let real = lower.cast(result, DType::F32)?;
            result = lower.unary(U::Sqrt, real)?;
        }
        "ReduceLogSum" => result = lower.unary(U::Log, result)?,
        _ => {}
    }
    Ok(vec![lower.cast(result, dtype)?])
}

fn of_nothing(
    lower: &mut OnnxLowering<'_>,
    x: TensorId,
    over: &[usize],
    keep: bool,
    function: R,
) -> Results {
    let shape = lower.shape(x).into_iter().enumerate();
    let shape = shape.filter_map(|(axis, dim)| match over.contains(&axis) {
        false => Some(dim),
        true => keep.then_some(Dim::from(1)),
    });
    let shape = shape.collect();
    let dtype = lower.dtype(x);
    let low = function == R::Max;
    let value = match dtype {
        DType::F32 if low => Scalar::F32(f32::NEG_INFINITY),
        DType::F32 => Scalar::F32(f32::INFINITY),
        DType::Bool => Scalar::Bool(!low),
        DType::I32 => Scalar::I64(if low {
            i32::MIN.into()
        } else {
            i32::MAX.into()
        }),
        _ => Scalar::I64(if low { i64::MIN } else { i64::MAX }),
    };
    Ok(vec![lower.fill(value, dtype, shape)?])
}

fn log_sum_exp(lower: &mut OnnxLowering<'_>, x: TensorId, over: &[usize], keep: bool) -> Results {
    if over.is_empty() {
        return Ok(vec![x]);
    }
    if over
        .iter()
        .any(|axis| lower.shape(x)[*axis] == Dim::from(0))
    {
        let sum = lower.reduced(R::Sum, x, over, keep)?;
        return Ok(vec![lower.unary(U::Log, sum)?]);
    }
    let max = lower.reduced(R::Max, x, over, true)?;
    let below = lower.binary(B::Sub, x, max)?;
    let powers = lower.unary(U::Exp, below)?;
    let sum = lower.reduced(R::Sum, powers, over, true)?;
    let log = lower.unary(U::Log, sum)?;
    let result = lower.binary(B::Add, log, max)?;
    if keep {
        return Ok(vec![result]);
    }
    let shape = lower.shape(result).into_iter().enumerate();
    let shape = shape
        .filter(|(axis, _)| !over.contains(axis))
        .map(|(_, d)| d);
    let shape = shape.collect();
    Ok(vec![lower.reshape(result, shape)?])
}

pub(super) fn arg(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let axis = LoweringBuilder::axis(call.int_or("axis", 0)?, lower.rank(x))?;
    let keep = call.flag("keepdims", true)?;
    let function = match call.op() {
        "ArgMax" => R::ArgMax,
        _ => R::ArgMin,
    };
    if let Some(name) = call.result(0) {
        lower
            .kinds
            .insert(name.to_owned(), crate::stored_type::StoredType::I64);
    }
    if !call.flag("select_last_index", false)? {
        return Ok(vec![lower.reduced(function, x, &[axis], keep)?]);
    }
    let size = *lower
        .shape(x)
        .get(axis)
        .ok_or("its operand is a scalar; it needs at least one axis")?;
    let backwards = lower.reversed(x, axis)?;
    let place = lower.reduced(function, backwards, &[axis], keep)?;
    let last = lower.emit(
        graph::ops::Size {
            value: size - Dim::from(1),
        },
        &[],
    )?;
    Ok(vec![lower.binary(B::Sub, last, place)?])
}

pub(super) fn cum_sum(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.operand(call, 0)?;
    let axis = lower.operand(call, 1)?;
    let axis = match lower.numbers(axis)?[..] {
        [axis] => LoweringBuilder::axis(axis, lower.rank(x))?,
        _ => return Err("its axis must be a single integer".into()),
    };
    let (exclusive, reverse) = (call.flag("exclusive", false)?, call.flag("reverse", false)?);
    if reverse {
        x = lower.reversed(x, axis)?;
    }
    let mut sum = lower.emit(CumSum { axis }, &[x])?;
    if exclusive {
        sum = lower.binary(B::Sub, sum, x)?;
    }
    Ok(vec![if reverse {
        lower.reversed(sum, axis)?
    } else {
        sum
    }])
}

/// Products of all elements up to each one, by doubling the span of products.
pub(super) fn cum_prod(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.operand(call, 0)?;
    let axis = lower.operand(call, 1)?;
    let axis = match lower.numbers(axis)?[..] {
        [axis] => LoweringBuilder::axis(axis, lower.rank(x))?,
        _ => return Err("its axis must be a single integer".into()),
    };
    let size = lower.shape(x).get(axis).and_then(Dim::as_const);
    let size = size.ok_or("its axis must have a constant size")?;
    let reverse = call.flag("reverse", false)?;
    if reverse {
        x = lower.reversed(x, axis)?;
    }
    let shifted = |lower: &mut OnnxLowering<'_>, x, by: usize| {
        let by = by.min(size);
        let rest = lower.slice(x, axis, Dim::from(0), Dim::from(size - by))?;
        let mut shape = lower.shape(x);
        shape[axis] = Dim::from(by);
        let dtype = lower.dtype(x);
        let ones = lower.fill(Scalar::F32(1.0), dtype, shape)?;
        lower.concat(&[ones, rest], axis)
    };
    if call.flag("exclusive", false)? && size > 0 {
        x = shifted(lower, x, 1)?;
    }
    let mut span = 1;
    while span < size {
        let before = shifted(lower, x, span)?;
        x = lower.binary(B::Mul, x, before)?;
        span *= 2;
    }
    Ok(vec![if reverse { lower.reversed(x, axis)? } else { x }])
}

/// One at the first maximum of an axis, zero elsewhere.
pub(super) fn hardmax(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let shape = lower.shape(x);
    let old = call.version() < 13;
    let axis = LoweringBuilder::axis(call.int_or("axis", if old { 1 } else { -1 })?, shape.len())?;
    let (mut rows, mut along) = (x, axis);
    if old {
        // All axes from `axis` on are one row.
        let joined = Dim::product(&shape[..axis]).zip(Dim::product(&shape[axis..]));
        let (outer, inner) =
            joined.ok_or("multiplies three dynamic sizes, which is not supported")?;
        rows = lower.reshape(x, vec![outer, inner])?;
        along = 1;
    }
    let sizes = lower.shape(rows);
    let size = *sizes.get(along).ok_or("its operand is a scalar")?;
    let place = lower.reduced(R::ArgMax, rows, &[along], true)?;
    let places = lower.count_from(Dim::from(0), size)?;
    let mut column = vec![Dim::from(1); sizes.len()];
    column[along] = size;
    let places = lower.reshape(places, column)?;
    let hit = lower.compare(graph::ops::CompareFunction::Eq, places, place)?;
    let result = lower.cast(hit, DType::F32)?;
    Ok(vec![lower.reshape(result, shape)?])
}

/// Divides by the norm of an axis; zero where that is zero.
pub(super) fn lp_normalization(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let axis = LoweringBuilder::axis(call.int_or("axis", -1)?, lower.rank(x))?;
    let norm = match call.int_or("p", 2)? {
        1 => {
            let size = lower.unary(U::Abs, x)?;
            lower.reduced(R::Sum, size, &[axis], true)?
        }
        2 => {
            let squares = lower.binary(B::Mul, x, x)?;
            let sum = lower.reduced(R::Sum, squares, &[axis], true)?;
            lower.unary(U::Sqrt, sum)?
        }
        p => return Err(format!("a norm of order {p} is not supported")),
    };
    let divided = lower.binary(B::Div, x, norm)?;
    let zero = lower.scalar(Scalar::F32(0.0), DType::F32)?;
    let empty = lower.compare(graph::ops::CompareFunction::Eq, norm, zero)?;
    Ok(vec![lower.choose(empty, zero, divided)?])
}

/// Subtracts the mean over some axes and divides by the deviation.
pub(super) fn mean_variance(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let over = axes(call.ints("axes")?.unwrap_or(&[0, 2, 3]), lower.rank(x))?;
    let mean = lower.reduced(R::Mean, x, &over, true)?;
    let away = lower.binary(B::Sub, x, mean)?;
    let squares = lower.binary(B::Mul, away, away)?;
    let variance = lower.reduced(R::Mean, squares, &over, true)?;
    let deviation = lower.unary(U::Sqrt, variance)?;
    let deviation = lower.with_number(B::Add, deviation, 1e-9)?;
    Ok(vec![lower.binary(B::Div, away, deviation)?])
}

/// The determinant of matrices of up to three rows.
pub(super) fn determinant(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let shape = lower.shape(x);
    let rank = shape.len();
    let size = shape
        .last()
        .and_then(Dim::as_const)
        .filter(|n| (1..=3).contains(n));
    let size = size.filter(|n| rank > 1 && shape[rank - 2] == Dim::from(*n));
    let size = size.ok_or("only matrices of 1 to 3 rows are supported")?;
    let outer = &shape[..rank - 2];
    let element = |lower: &mut OnnxLowering<'_>, row: usize, column: usize| {
        let row = lower.slice(x, rank - 2, Dim::from(row), Dim::from(1))?;
        let one = lower.slice(row, rank - 1, Dim::from(column), Dim::from(1))?;
        lower.reshape(one, outer.to_vec())
    };
    // The sum over all permutations, the even ones first.
    let orders: &[&[usize]] = match size {
        1 => &[&[0]],
        2 => &[&[0, 1], &[1, 0]],
        _ => &[
            &[0, 1, 2],
            &[1, 2, 0],
            &[2, 0, 1],
            &[0, 2, 1],
            &[1, 0, 2],
            &[2, 1, 0],
        ],
    };
    let mut sum: Option<TensorId> = None;
    for (index, order) in orders.iter().enumerate() {
        let mut product = element(lower, 0, order[0])?;
        for (row, column) in order.iter().enumerate().skip(1) {
            let next = element(lower, row, *column)?;
            product = lower.binary(B::Mul, product, next)?;
        }
        let odd = 2 * index >= orders.len().max(2);
        sum = Some(match (sum, odd) {
            (None, _) => product,
            (Some(sum), false) => lower.binary(B::Add, sum, product)?,
            (Some(sum), true) => lower.binary(B::Sub, sum, product)?,
        });
    }
    Ok(vec![sum.ok_or("has no elements")?])
}

pub(super) fn softmax(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let log = call.op() == "LogSoftmax";
    let shape = lower.shape(x);
    if call.version() >= 13 {
        let axis = LoweringBuilder::axis(call.int_or("axis", -1)?, shape.len())?;
        return Ok(vec![lower.emit(Softmax { axis, log }, &[x])?]);
    }
    // Before opset 13, all axes from `axis` on were flattened to one row.
    let axis = LoweringBuilder::axis(call.int_or("axis", 1)?, shape.len())?;
    let width = Dim::product(shape.get(axis..).unwrap_or_default())
        .ok_or("multiplies three dynamic sizes, which is not supported")?;
    let mut rows = shape.get(..axis).unwrap_or_default().to_vec();
    rows.push(width);
    let rows = lower.reshape(x, rows)?;
    let result = lower.emit(Softmax { axis, log }, &[rows])?;
    Ok(vec![lower.reshape(result, shape)?])
}
