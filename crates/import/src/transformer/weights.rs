//! Weights by name, checked against the shape that the spec requires.

use base::{Bytes, DType, quant};
use graph::{Dim, GraphBuilder, TensorId};

use crate::error::{ImportError, ImportErrorDetail};

/// A tensor of the model file.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Stored element type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// The stored bytes. `None` in a model without weights, where a weight takes the shape that the spec requires.
    pub data: Option<Bytes>,
}

impl Weight {
    /// A weight without bytes, for models that are only planned.
    pub fn placeholder(dtype: DType) -> Weight {
        Weight {
            dtype,
            shape: vec![],
            data: None,
        }
    }

    /// `count` rows from row `start`, sharing the bytes; `None` if the weight is not a matrix with these rows.
    fn rows(&self, start: usize, count: usize) -> Option<Weight> {
        let (&rows, inner) = self.shape.split_first()?;
        let data = self.data.as_ref()?;
        let row_bytes = data.len().checked_div(rows)?;
        let end = start.checked_add(count).filter(|end| *end <= rows)?;
        let shape = std::iter::once(count).chain(inner.iter().copied());
        Some(Weight {
            dtype: self.dtype,
            shape: shape.collect(),
            data: Some(data.slice(start * row_bytes..end * row_bytes)?),
        })
    }
}

/// The weights of one model, by name.
pub(super) struct Weights<'a> {
    lookup: &'a dyn Fn(&str) -> Option<Weight>,
}

impl<'a> Weights<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<Weight>) -> Weights<'a> {
        Weights { lookup }
    }

    pub(super) fn optional(&self, name: &str) -> Option<Weight> {
        (self.lookup)(name)
    }

    pub(super) fn required(&self, name: &str) -> Result<Weight, ImportError> {
        self.optional(name)
            .ok_or_else(|| ImportError::missing_tensor(name))
    }

    /// Rows of a tensor that concatenates several weights and has `all` rows in total.
    pub(super) fn part(
        name: &str,
        fused: &Weight,
        start: usize,
        count: usize,
        all: usize,
    ) -> Result<Weight, ImportError> {
        let whole = fused.shape.first() == Some(&all);
        let part = whole.then(|| fused.rows(start, count)).flatten();
        part.ok_or_else(|| {
            let inner = fused.shape.iter().skip(1).copied();
            let wanted = std::iter::once(all).chain(inner).collect();
            wrong_shape(name, fused, wanted)
        })
    }
}

/// A constant of exactly this shape, in its stored type.
pub(super) fn matrix(
    builder: &mut GraphBuilder,
    name: &str,
    weight: Weight,
    shape: [usize; 2],
) -> Result<TensorId, ImportError> {
    let Some(stored) = weight.data.clone() else {
        return Ok(builder.input(name, weight.dtype, shape.map(Dim::from)));
    };
    check(name, &weight, &shape)?;
    // Copies weights of files with an odd alignment, so that elements can be read in place everywhere.
    let plain = !weight.dtype.is_quantised();
    let misaligned =
        plain && !(stored.as_ptr() as usize).is_multiple_of(weight.dtype.block_bytes());
    let data = if misaligned {
        Bytes::from(&stored[..])
    } else {
        stored
    };
    Ok(builder.constant(name, weight.dtype, &shape, data)?)
}

/// A constant matrix of f32 elements, converted if the file stores another type.
pub(super) fn f32_matrix(
    builder: &mut GraphBuilder,
    name: &str,
    weight: &Weight,
    shape: [usize; 2],
) -> Result<TensorId, ImportError> {
    if weight.data.is_none() {
        return Ok(builder.input(name, DType::F32, shape.map(Dim::from)));
    }
    check(name, weight, &shape)?;
    let data = Bytes::from_slice(&floats(name, weight)?);
    Ok(builder.constant(name, DType::F32, &shape, data)?)
}

/// A constant vector of `len` f32 elements, converted if the file stores another type.
pub(super) fn vector(
    builder: &mut GraphBuilder,
    name: &str,
    weight: &Weight,
    len: usize,
) -> Result<TensorId, ImportError> {
    let Some(stored) = &weight.data else {
        return Ok(builder.input(name, DType::F32, [Dim::from(len)]));
    };
    check(name, weight, &[len])?;
    let aligned = stored.cast::<f32>().is_some();
    let data = if weight.dtype == DType::F32 && aligned && cfg!(target_endian = "little") {
        stored.clone()
    } else {
        Bytes::from_slice(&floats(name, weight)?)
    };
    Ok(builder.constant(name, DType::F32, &[len], data)?)
}

/// A weight of one finite number; `None` in a model without weights.
pub(super) fn scalar(name: &str, weight: &Weight) -> Result<Option<f32>, ImportError> {
    if weight.data.is_none() {
        return Ok(None);
    }
    check(name, weight, &[1])?;
    match floats(name, weight)?[..] {
        [x] if x.is_finite() => Ok(Some(x)),
        _ => {
            let reason = "must be a finite number";
            Err(ImportError::value(format!("tensor {name}"), reason))
        }
    }
}

/// The elements of a weight of any real type.
pub(crate) fn floats(name: &str, weight: &Weight) -> Result<Vec<f32>, ImportError> {
    let len = weight.shape.iter().product();
    let mut out = vec![0.0; len];
    let data = weight.data.as_deref().unwrap_or_default();
    quant::dequantise(weight.dtype, data, &mut out).map_err(|_| not_real(name, weight))?;
    Ok(out)
}

fn check(name: &str, weight: &Weight, shape: &[usize]) -> Result<(), ImportError> {
    if weight.shape != shape {
        return Err(wrong_shape(name, weight, shape.to_vec()));
    }
    if !weight.dtype.is_real() {
        return Err(not_real(name, weight));
    }
    Ok(())
}

fn wrong_shape(name: &str, weight: &Weight, wanted: Vec<usize>) -> ImportError {
    ImportErrorDetail::Shape {
        name: name.to_owned(),
        found: weight.shape.clone(),
        wanted,
    }
    .into()
}

fn not_real(name: &str, weight: &Weight) -> ImportError {
    ImportErrorDetail::DType {
        name: name.to_owned(),
        dtype: weight.dtype,
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_the_bytes() {
        let fused = Weight {
            dtype: DType::Q8_0,
            shape: vec![3, 32],
            data: Some(Bytes::from(&[0u8, 1, 2].map(|row| [row; 34]).concat()[..])),
        };
        let part = Weights::part("qkv", &fused, 1, 2, 3).unwrap();
        let (data, whole) = (part.data.unwrap(), fused.data.clone().unwrap());
        assert_eq!((&part.shape[..], data.len()), (&[2, 32][..], 68));
        assert_eq!(data.as_ptr(), whole[34..].as_ptr());
        let error = Weights::part("qkv", &fused, 1, 2, 4).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tensor qkv has shape [3, 32], must have [4, 32]"
        );
    }

    #[test]
    fn vectors_become_f32() {
        let mut builder = GraphBuilder::new("g");
        let half = Weight {
            dtype: DType::F16,
            shape: vec![2],
            data: Some(Bytes::from(&[0x00, 0x3c, 0x00, 0xc0][..])),
        };
        let id = vector(&mut builder, "norm", &half, 2).unwrap();
        assert_eq!(builder.ty(id).dtype, DType::F32);
        assert_eq!(floats("norm", &half).unwrap(), [1.0, -2.0]);
        let whole = Weight {
            dtype: DType::I32,
            shape: vec![1],
            ..half
        };
        let error = vector(&mut builder, "count", &whole, 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tensor count is i32, must be of a real type"
        );
    }
}
