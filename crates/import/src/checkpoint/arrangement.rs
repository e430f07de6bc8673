//! Copies of tensors that a folder stores in another arrangement.

use base::{Bytes, DType};

use crate::error::ImportError;
use crate::transformer::{Weight, floats};

/// A tensor of plain elements: its type, sizes and bytes.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) data: Bytes,
}

impl Plain {
    fn element_bytes(&self) -> usize {
        self.dtype.block_bytes()
    }

    /// The last two dimensions exchanged; a vector stays as it is.
    pub(super) fn transposed(&self) -> Plain {
        let [outer @ .., rows, columns] = &self.shape[..] else {
            return self.clone();
        };
        let (rows, columns) = (*rows, *columns);
        let mut shape = outer.to_vec();
        shape.extend([columns, rows]);
        self.gathered(shape, |i| {
            let (matrix, at) = (i / (rows * columns), i % (rows * columns));
            matrix * rows * columns + (at % rows) * columns + at / rows
        })
    }

    /// The first or second of two tensors whose elements take turns along the last dimension; `None` if it is odd.
    pub(super) fn turn(&self, which: usize) -> Option<Plain> {
        let (last, outer) = self.shape.split_last()?;
        if !last.is_multiple_of(2) {
            return None;
        }
        let shape = outer.iter().copied().chain([last / 2]).collect();
        Some(self.gathered(shape, |i| 2 * i + which))
    }

    /// The first or second half of the rows, sharing the bytes; `None` if there is an odd number of them.
    pub(super) fn half(&self, which: usize) -> Option<Plain> {
        let (rows, inner) = self.shape.split_first()?;
        if !rows.is_multiple_of(2) {
            return None;
        }
        let half = self.data.len() / 2;
        Some(Plain {
            dtype: self.dtype,
            shape: std::iter::once(rows / 2)
                .chain(inner.iter().copied())
                .collect(),
            data: self.data.slice(which * half..(which + 1) * half)?,
        })
    }

    /// The elements that `from` names, in the order of `shape`.
    fn gathered(&self, shape: Vec<usize>, from: impl Fn(usize) -> usize) -> Plain {
        let size = self.element_bytes();
        let elements: usize = shape.iter().product();
        let data = Bytes::filled(elements * size, |out| {
            for (i, to) in out.chunks_exact_mut(size).enumerate() {
                let at = from(i) * size;
                to.copy_from_slice(&self.data[at..at + size]);
            }
        });
        Plain {
            dtype: self.dtype,
            shape,
            data,
        }
    }

    /// Every element plus 1, as f32.
    pub(super) fn plus_one(&self, name: &str) -> Result<Plain, ImportError> {
        let weight = Weight {
            dtype: self.dtype,
            shape: self.shape.clone(),
            data: Some(self.data.clone()),
        };
        let sums: Vec<f32> = floats(name, &weight)?.iter().map(|x| x + 1.0).collect();
        Ok(Plain {
            dtype: DType::F32,
            shape: self.shape.clone(),
            data: Bytes::from_slice(&sums),
        })
    }

    /// Tensors of one type and shape as one, with a new outermost dimension. `None` if they differ.
    pub(super) fn stacked(parts: &[Plain]) -> Option<Plain> {
        let first = parts.first()?;
        let alike = |part: &Plain| part.shape == first.shape && part.dtype == first.dtype;
        if !parts.iter().all(alike) {
            return None;
        }
        let bytes = first.data.len();
        let data = Bytes::filled(bytes * parts.len(), |out| {
            for (to, part) in out.chunks_exact_mut(bytes.max(1)).zip(parts) {
                to.copy_from_slice(&part.data);
            }
        });
        let shape = std::iter::once(parts.len()).chain(first.shape.iter().copied());
        Some(Plain {
            dtype: first.dtype,
            shape: shape.collect(),
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(shape: &[usize], values: &[u8]) -> Plain {
        Plain {
            dtype: DType::U8,
            shape: shape.to_vec(),
            data: Bytes::from(values),
        }
    }

    #[test]
    fn elements_are_where_they_belong() {
        let two = plain(&[2, 2, 3], &[0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]);
        let turned = two.transposed();
        assert_eq!(turned.shape, [2, 3, 2]);
        assert_eq!(&turned.data[..], [0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15]);
        let even = plain(&[2, 4], &[0, 1, 2, 3, 4, 5, 6, 7]);
        let odd = even.turn(1).unwrap();
        assert_eq!(
            (&odd.shape[..], &odd.data[..]),
            (&[2, 2][..], &[1, 3, 5, 7][..])
        );
        let second = even.half(1).unwrap();
        assert_eq!(
            (&second.shape[..], &second.data[..]),
            (&[1, 4][..], &[4, 5, 6, 7][..])
        );
        let vector = plain(&[3], &[1, 2, 3]);
        assert_eq!(vector.transposed().shape, [3]);
        assert!(vector.turn(0).is_none() && vector.half(0).is_none());
        let stacked = Plain::stacked(&[vector.clone(), plain(&[3], &[4, 5, 6])]).unwrap();
        assert_eq!(
            (&stacked.shape[..], &stacked.data[..]),
            (&[2, 3][..], &[1, 2, 3, 4, 5, 6][..])
        );
        assert!(Plain::stacked(&[vector, even]).is_none());
    }
}
