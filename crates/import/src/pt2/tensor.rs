//! Stored tensors of an archive; strided views are made contiguous.

use base::{Bytes, DType};

use super::schema::{STRIDED, ScalarType, SymInt, TensorMeta};
use crate::stored_type::StoredType;

/// A parameter, buffer or constant of a program.
#[derive(Clone, Debug)]
pub struct Pt2Tensor {
    /// The name in the module.
    pub name: String,
    /// Stored element type.
    pub(super) kind: StoredType,
    /// Row-major dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The elements in row-major order.
    pub data: Bytes,
    /// Whether the elements are complex numbers: the last axis holds their real and imaginary parts.
    pub(super) complex: bool,
    /// The address of the storage that the tensor is a view of.
    storage: usize,
}

/// The element type of a PyTorch type code.
pub(super) fn kind(code: ScalarType) -> Result<StoredType, String> {
    Ok(match code.0 {
        1 => StoredType::U8,
        2 => StoredType::I8,
        3 => StoredType::I16,
        4 => StoredType::I32,
        5 => StoredType::I64,
        6 => StoredType::F16,
        7 => StoredType::F32,
        8 => StoredType::F64,
        12 => StoredType::Bool,
        13 => StoredType::BF16,
        code => {
            let name = match code {
                9..=11 => "complex",
                28 | 34 | 35 => "an unsigned type",
                29..=33 => "an 8-bit float",
                _ => "unknown",
            };
            return Err(format!(
                "has elements of type code {code} ({name}), which is not supported"
            ));
        }
    })
}

/// PyTorch's code for complex numbers of two f32.
const COMPLEX64: u32 = 10;

impl Pt2Tensor {
    /// The view of a storage that `meta` describes. A view that is not contiguous is copied.
    pub(crate) fn new(name: &str, meta: &TensorMeta, storage: &Bytes) -> Result<Pt2Tensor, String> {
        let complex = meta.dtype.0 == COMPLEX64;
        let kind = match complex {
            true => StoredType::F32,
            false => kind(meta.dtype)?,
        };
        let width = kind.bits() / 8;
        if meta.layout != STRIDED {
            return Err(format!(
                "has layout {}, must be dense (strided)",
                meta.layout
            ));
        }
        let mut sizes = numbers("sizes", &meta.sizes)?;
        let mut strides = numbers("strides", &meta.strides)?;
        let [mut offset] = numbers("offset", std::slice::from_ref(&meta.storage_offset))?[..]
        else {
            unreachable!("one number gives one number");
        };
        if complex {
            sizes.push(2);
            for number in strides.iter_mut().chain([&mut offset]) {
                *number = number.saturating_mul(2);
            }
            strides.push(1);
        }
        if sizes.len() != strides.len() {
            return Err(format!(
                "has {} sizes but {} strides",
                sizes.len(),
                strides.len()
            ));
        }
        let elements = sizes.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let elements = elements.ok_or("its number of elements overflows")?;
        let held = storage.len() / width;
        if elements > held {
            return Err(format!(
                "has {elements} elements, but its storage has {held}"
            ));
        }
        let data = if contiguous(&sizes, &strides) {
            let start = offset.checked_mul(width);
            let end = offset
                .checked_add(elements)
                .and_then(|n| n.checked_mul(width));
            let range = start.zip(end);
            range.and_then(|(start, end)| storage.slice(start..end))
        } else {
            gather(&sizes, &strides, offset, width, storage)
        };
        Ok(Pt2Tensor {
            name: name.to_owned(),
            kind,
            complex,
            shape: sizes,
            data: data.ok_or("has elements outside its storage")?,
            storage: storage.as_ptr() as usize,
        })
    }

    /// The stored element type's name.
    pub fn type_name(&self) -> &'static str {
        self.kind.name()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as a 16-bit float type, if they are stored as one.
    pub(super) fn half(&self) -> Option<DType> {
        match self.kind {
            StoredType::F16 => Some(DType::F16),
            StoredType::BF16 => Some(DType::BF16),
            _ => None,
        }
    }

    /// Whether both are views of one storage.
    pub(super) fn shares_storage(&self, other: &Pt2Tensor) -> bool {
        self.storage == other.storage && !self.is_empty() && !other.is_empty()
    }

    /// Whether the elements are signed bytes.
    pub(super) fn is_int8(&self) -> bool {
        self.kind == StoredType::I8
    }

    /// The elements in their compute type, without a copy if that is the stored type.
    pub(super) fn computed(&self) -> Result<(DType, Bytes), String> {
        let data = self.kind.computed(&self.data, self.len())?;
        Ok((self.kind.dtype(), data))
    }
}

fn numbers(what: &str, list: &[SymInt]) -> Result<Vec<usize>, String> {
    let number = |n: &SymInt| match n {
        SymInt::AsInt(n) => {
            usize::try_from(*n).map_err(|_| format!("has the invalid value {n} in its {what}"))
        }
        SymInt::AsExpr(_) => Err(format!("has {what} that are not constant")),
    };
    list.iter().map(number).collect()
}

/// Whether the elements are contiguous in row-major order.
fn contiguous(sizes: &[usize], strides: &[usize]) -> bool {
    let mut wanted = 1usize;
    for (size, stride) in sizes.iter().zip(strides).rev() {
        if *size != 1 && *stride != wanted {
            // An empty tensor is always contiguous.
            return sizes.contains(&0);
        }
        wanted = wanted.saturating_mul(*size);
    }
    true
}

/// Copies a strided view in row-major order; `None` if an element is outside the storage.
fn gather(
    sizes: &[usize],
    strides: &[usize],
    offset: usize,
    width: usize,
    storage: &[u8],
) -> Option<Bytes> {
    let elements: usize = sizes.iter().product();
    let mut out = Vec::with_capacity(elements.checked_mul(width)?);
    let mut index = vec![0usize; sizes.len()];
    for _ in 0..elements {
        let mut at = offset;
        for (i, stride) in index.iter().zip(strides) {
            at = at.checked_add(i.checked_mul(*stride)?)?;
        }
        let start = at.checked_mul(width)?;
        out.extend_from_slice(storage.get(start..start.checked_add(width)?)?);
        for (i, size) in index.iter_mut().zip(sizes).rev() {
            *i += 1;
            if *i < *size {
                break;
            }
            *i = 0;
        }
    }
    Some(Bytes::from(&out[..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(code: u32, sizes: &[i64], strides: &[i64], offset: i64) -> TensorMeta {
        let list = |list: &[i64]| list.iter().map(|n| SymInt::AsInt(*n)).collect();
        TensorMeta {
            dtype: ScalarType(code),
            sizes: list(sizes),
            strides: list(strides),
            storage_offset: SymInt::AsInt(offset),
            layout: STRIDED,
        }
    }

    #[test]
    fn views_are_put_in_order() {
        let storage = Bytes::from_slice(&[0i32, 1, 2, 3, 4, 5]);
        let read = |sizes: &[i64], strides: &[i64], offset| {
            let stored = Pt2Tensor::new("w", &meta(4, sizes, strides, offset), &storage)?;
            Ok::<_, String>(stored.data.cast::<i32>().unwrap().to_vec())
        };
        assert_eq!(read(&[2, 3], &[3, 1], 0), Ok(vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(read(&[3, 2], &[1, 3], 0), Ok(vec![0, 3, 1, 4, 2, 5]));
        assert_eq!(read(&[2, 2], &[3, 1], 1), Ok(vec![1, 2, 4, 5]));
        assert_eq!(read(&[2, 1], &[0, 9], 4), Ok(vec![4, 4]));
        assert_eq!(read(&[], &[], 5), Ok(vec![5]));
        let table = [
            (&[7][..], &[1][..], 0, "7 elements"),
            (&[2], &[9], 0, "outside"),
            (&[2], &[1], 5, "outside"),
            (&[2], &[1], i64::MAX, "outside"),
            (&[2], &[i64::MAX], 1, "outside"),
            (&[-1], &[1], 0, "-1"),
            (&[1 << 40, 1 << 40], &[0, 0], 0, "overflow"),
            (&[2], &[], 0, "1 sizes but 0 strides"),
        ];
        for (sizes, strides, offset, want) in table {
            let error = read(sizes, strides, offset).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn elements_become_what_graphs_compute_with() {
        let one = |code, bytes: &[u8]| {
            let stored =
                Pt2Tensor::new("w", &meta(code, &[1], &[1], 0), &Bytes::from(bytes)).unwrap();
            stored.computed().unwrap()
        };
        let floats = [
            (6, &[0x00, 0x3c][..]),
            (13, &[0x80, 0x3f]),
            (8, &1f64.to_le_bytes()),
            (7, &1f32.to_le_bytes()),
        ];
        for (code, bytes) in floats {
            let (dtype, data) = one(code, bytes);
            assert_eq!((dtype, data.cast::<f32>()), (DType::F32, Some(&[1.0][..])));
        }
        for (code, bytes) in [(1, &[255][..]), (2, &[255]), (3, &[255, 255])] {
            let (dtype, data) = one(code, bytes);
            let want = if code == 1 { 255 } else { -1 };
            assert_eq!((dtype, data.cast::<i64>()), (DType::I64, Some(&[want][..])));
        }
        assert_eq!(&one(12, &[7]).1[..], [1]);
        for code in [0, 9, 29, 34] {
            let storage = Bytes::from(&[0; 16][..]);
            let error = Pt2Tensor::new("w", &meta(code, &[1], &[1], 0), &storage).unwrap_err();
            assert!(error.contains(&code.to_string()), "{error}");
        }
    }
}
