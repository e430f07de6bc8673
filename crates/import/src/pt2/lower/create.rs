//! Ops that create tensors.

use base::{Bytes, DType};
use graph::ops::{BinaryFunction as B, Range, Scalar, Triangle};
use graph::{Dim, TensorId};

use super::call::{Call, Operand, SizeArg};
use super::context::Pt2Lowering;
use crate::lowering::MAX_CONSTANT_ELEMENTS;

type Results = Result<Vec<TensorId>, String>;

pub(super) fn arange(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let dtype = lower.result_dtype(call, 0)?;
    let [len] = lower.result_shape(call, 0)?[..] else {
        return Err("its result must be a vector".into());
    };
    let step = call.number("step", Scalar::I64(1))?;
    let start = match call.get("start") {
        None => Some(Dim::from(0)),
        Some(_) => match call.operand("start")? {
            Operand::Size(name) => Some(lower.dim(SizeArg::Name(name))?),
            Operand::Number(Scalar::I64(n)) => Some(Dim::constant(n)),
            _ => None,
        },
    };
    if let (Some(start), Scalar::I64(step)) = (start, step) {
        let range = Range {
            start,
            step,
            len,
            dtype,
        };
        return Ok(vec![lower.emit(range, &[])?]);
    }
    let count = Range {
        start: Dim::from(0),
        step: 1,
        len,
        dtype: DType::F32,
    };
    let count = lower.emit(count, &[])?;
    let steps = lower.with_number(B::Mul, count, step.to_f32())?;
    let start = call.float("start", 0.0)?;
    Ok(vec![lower.with_number(B::Add, steps, start)?])
}

/// The constant size of a vector whose elements are computed at import.
fn known(lower: &Pt2Lowering<'_>, call: &Call<'_>) -> Result<Vec<usize>, String> {
    let shape = lower.result_shape(call, 0)?;
    let shape: Option<Vec<usize>> = shape.iter().map(Dim::as_const).collect();
    let shape = shape.ok_or("its shape must be constant")?;
    let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    match elements {
        Some(elements) if elements <= MAX_CONSTANT_ELEMENTS => Ok(shape),
        _ => Err(format!(
            "creates more than {MAX_CONSTANT_ELEMENTS} elements, which is not supported"
        )),
    }
}

pub(super) fn linspace(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let shape = known(lower, call)?;
    let count = shape.first().copied().unwrap_or(0);
    let (start, end) = (call.float("start", 0.0)?, call.float("end", 0.0)?);
    let step = f64::from(end - start) / (count.max(2) - 1) as f64;
    let values: Vec<f32> = (0..count)
        .map(|i| (f64::from(start) + step * i as f64) as f32)
        .collect();
    Ok(vec![lower.constant(
        DType::F32,
        &shape,
        Bytes::from_slice(&values),
    )?])
}

pub(super) fn eye(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let shape = known(lower, call)?;
    let [rows, columns] = shape[..] else {
        return Err("its result must be a matrix".into());
    };
    let at = |i: usize| f32::from(u8::from(i / columns == i % columns));
    let values: Vec<f32> = (0..rows * columns).map(at).collect();
    Ok(vec![lower.constant(
        DType::F32,
        &shape,
        Bytes::from_slice(&values),
    )?])
}

fn constant(lower: &mut Pt2Lowering<'_>, call: &Call<'_>, value: Scalar) -> Results {
    let (shape, dtype) = (lower.result_shape(call, 0)?, lower.result_dtype(call, 0)?);
    Ok(vec![lower.fill(value, dtype, shape)?])
}

pub(super) fn zeros(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    constant(lower, call, Scalar::I64(0))
}

pub(super) fn ones(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    constant(lower, call, Scalar::I64(1))
}

pub(super) fn full(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let names = ["fill_value", "value", "s"];
    let name = names.iter().find(|name| call.get(name).is_some());
    let name = name.ok_or("has no fill value")?;
    if let Operand::Number(value) = call.operand(name)? {
        return constant(lower, call, value);
    }
    let (shape, dtype) = (lower.result_shape(call, 0)?, lower.result_dtype(call, 0)?);
    let value = lower.operand(call, name, dtype)?;
    let value = lower.cast(value, dtype)?;
    Ok(vec![lower.expand(value, shape)?])
}

pub(super) fn triangle(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let op = Triangle {
        upper: call.op.starts_with("aten.triu"),
        diagonal: call.int("diagonal", 0)?,
    };
    Ok(vec![lower.emit(op, &[x])?])
}

/// Coordinates of a grid: each list along an axis of its own.
pub(super) fn meshgrid(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let by_column = call.text("indexing")? == Some("xy");
    let mut grids = vec![];
    for (at, name) in call.tensors("tensors")?.into_iter().enumerate() {
        let list = lower.value(name.ok_or("has an absent list")?)?;
        let shape = lower.result_shape(call, at)?;
        let axis = match at {
            0 | 1 if by_column && shape.len() > 1 => 1 - at,
            _ => at,
        };
        let mut column = vec![Dim::from(1); shape.len()];
        *column.get_mut(axis).ok_or("has more lists than axes")? = shape[axis];
        let list = lower.reshape(list, column)?;
        grids.push(lower.expand(list, shape)?);
    }
    Ok(grids)
}
