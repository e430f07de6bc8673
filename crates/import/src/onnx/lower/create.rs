//! Ops that create tensors from shapes and attributes.

use base::{Bytes, DType};
use graph::Dim;
use graph::ops::{Binary, BinaryFunction as B, Range, Scalar, Size, Triangle};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::onnx::schema::AttributeValue;
use crate::onnx::tensor;
use crate::stored_type::StoredType;

pub(super) fn constant(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    if let Some(stored) = call.stored("value") {
        if let Some(name) = call.result(0) {
            lower.kinds.insert(name.to_owned(), stored.kind);
        }
        return Ok(vec![lower.stored(stored)?]);
    }
    for name in ["value_float", "value_floats", "value_int", "value_ints"] {
        let constant = match call.attribute(name) {
            None => continue,
            Some(AttributeValue::Float(x)) => {
                lower.constant(DType::F32, &[], Bytes::from_slice(&[*x]))
            }
            Some(AttributeValue::Int(n)) => {
                lower.constant(DType::I64, &[], Bytes::from_slice(&[*n]))
            }
            Some(AttributeValue::Floats(list)) => {
                lower.constant(DType::F32, &[list.len()], Bytes::from_slice(list))
            }
            Some(AttributeValue::Ints(list)) => {
                lower.constant(DType::I64, &[list.len()], Bytes::from_slice(list))
            }
            Some(_) => return Err(format!("attribute {name} is not a number")),
        };
        return Ok(vec![constant?]);
    }
    Err("has no value of a supported type".into())
}

pub(super) fn constant_of_shape(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let shape = lower.operand(call, 0)?;
    let shape = lower.sizes(shape)?;
    let (value, dtype) = match call.stored("value") {
        None => (Scalar::F32(0.0), DType::F32),
        Some(stored) => {
            if let Some(name) = call.result(0) {
                lower.kinds.insert(name.to_owned(), stored.kind);
            }
            let value = stored.value().map_err(|e| e.to_string())?;
            let scalar = match &value.data {
                graph::Data::F32(list) => list.first().map(|x| Scalar::F32(*x)),
                graph::Data::I64(list) => list.first().map(|n| Scalar::I64(*n)),
                graph::Data::I32(list) => list.first().map(|n| Scalar::I64((*n).into())),
                graph::Data::Bool(list) => list.first().map(|t| Scalar::Bool(*t)),
            };
            (scalar.ok_or("has a value without elements")?, value.dtype())
        }
    };
    Ok(vec![lower.fill(value, dtype, shape)?])
}

pub(super) fn shape(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let shape = lower.shape(x);
    let rank = shape.len() as i64;
    let place = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank);
    let start = place(call.int_or("start", 0)?);
    let end = place(call.int_or("end", rank)?).max(start);
    lower.set_kind(call, Some(StoredType::I64));
    let sizes = &shape[start as usize..end as usize];
    let mut parts = vec![];
    for value in sizes {
        let size = lower.emit(Size { value: *value }, &[])?;
        parts.push(lower.reshape(size, vec![Dim::from(1)])?);
    }
    if parts.is_empty() {
        return Ok(vec![lower.constant(
            DType::I64,
            &[0],
            Bytes::from(&[][..]),
        )?]);
    }
    Ok(vec![lower.concat(&parts, 0)?])
}

pub(super) fn size(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let shape = lower.shape(x);
    lower.set_kind(call, Some(StoredType::I64));
    if let Some(value) = Dim::product(&shape) {
        return Ok(vec![lower.emit(Size { value }, &[])?]);
    }
    let mut product = lower.scalar(Scalar::I64(1), DType::I64)?;
    for value in shape {
        let size = lower.emit(Size { value }, &[])?;
        product = lower.emit(Binary { function: B::Mul }, &[product, size])?;
    }
    Ok(vec![product])
}

pub(super) fn range(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let ids = [
        lower.operand(call, 0)?,
        lower.operand(call, 1)?,
        lower.operand(call, 2)?,
    ];
    let dtype = lower.dtype(ids[0]);
    if dtype == DType::F32 {
        return float_range(lower, ids);
    }
    let one = |id| -> Result<Dim, String> {
        match lower.sizes(id)?[..] {
            [one] => Ok(one),
            _ => Err("a bound must be a single number".into()),
        }
    };
    let [start, limit, step] = [one(ids[0])?, one(ids[1])?, one(ids[2])?];
    let step = step.as_number().filter(|step| *step != 0);
    let step = step.ok_or("its step must be a non-zero constant")?;
    let span = limit - start;
    let len = match span.as_number() {
        // Rounded up; empty if the step points away from the limit.
        Some(span) => {
            let steps = span.saturating_add(step - step.signum()).checked_div(step);
            Dim::constant(steps.ok_or("its number of elements overflows")?.max(0))
        }
        None if step == 1 => span,
        None => {
            return Err(
                "has a step other than 1 over a dynamic size, which is not supported".into(),
            );
        }
    };
    let range = Range {
        start,
        step,
        len,
        dtype,
    };
    Ok(vec![lower.emit(range, &[])?])
}

/// A range of real numbers with constant bounds.
fn float_range(lower: &mut OnnxLowering<'_>, ids: [graph::TensorId; 3]) -> Results {
    let one = |id| match lower.known(id)?.constant(DType::F32)? {
        graph::Data::F32(list) if list.len() == 1 => Some(f64::from(list[0])),
        _ => None,
    };
    let ends = one(ids[0]).zip(one(ids[1])).zip(one(ids[2]));
    let ((start, limit), step) =
        ends.ok_or("its bounds depend on data; real bounds must be constants")?;
    let len = ((limit - start) / step).ceil();
    if !len.is_finite() || len > crate::lowering::MAX_CONSTANT_ELEMENTS as f64 {
        return Err(format!("has {len} elements, too many for a constant"));
    }
    let elements = (0..len.max(0.0) as usize).map(|i| (start + i as f64 * step) as f32);
    let elements: Vec<f32> = elements.collect();
    let constant = lower.constant(DType::F32, &[elements.len()], Bytes::from_slice(&elements))?;
    Ok(vec![constant])
}

const MAX_DIAGONAL: i64 = 1 << 40;

pub(super) fn trilu(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let diagonal = match lower.maybe(call, 1)? {
        Some(id) => match lower.numbers(id)?[..] {
            // Beyond any matrix, yet small enough that sums do not overflow.
            [k] => k.clamp(-MAX_DIAGONAL, MAX_DIAGONAL),
            _ => return Err("its diagonal must be a single integer".into()),
        },
        None => 0,
    };
    let upper = call.flag("upper", true)?;
    Ok(vec![lower.emit(Triangle { upper, diagonal }, &[x])?])
}

pub(super) fn eye_like(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let [rows, columns] = lower.shape(x)[..] else {
        return Err("its operand must be a matrix".into());
    };
    let kind = match call.int("dtype")? {
        Some(code) => Some(tensor::kind(code)?),
        None => lower.operand_kind(call, 0),
    };
    let dtype = kind.map_or(lower.dtype(x), |kind| kind.dtype());
    lower.set_kind(call, kind);
    let range = |lower: &mut OnnxLowering<'_>, start, len| {
        let range = Range {
            start: Dim::constant(start),
            step: 1,
            len,
            dtype: DType::I64,
        };
        lower.emit(range, &[])
    };
    let row = range(lower, call.int_or("k", 0)?, rows)?;
    let row = lower.reshape(row, vec![rows, Dim::from(1)])?;
    let column = range(lower, 0, columns)?;
    let same = lower.compare(graph::ops::CompareFunction::Eq, row, column)?;
    Ok(vec![lower.cast(same, dtype)?])
}
