//! Row-major strides, broadcast strides and iteration over strided views.

/// Row-major strides of a shape, in elements.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Strides to read a tensor of shape `from` broadcast to the shape `to`.
pub fn broadcast_strides(from: &[usize], to: &[usize]) -> Vec<usize> {
    let own = strides(from);
    let tail = to.len() - from.len();
    let stride = |axis: usize| match axis.checked_sub(tail) {
        Some(i) if from[i] == to[axis] => own[i],
        _ => 0,
    };
    (0..to.len()).map(stride).collect()
}

/// The offsets of a strided view's elements, in row-major order.
pub(crate) fn offsets(shape: &[usize], strides: &[usize]) -> Offsets {
    debug_assert_eq!(shape.len(), strides.len());
    Offsets {
        shape: shape.to_vec(),
        strides: strides.to_vec(),
        index: vec![0; shape.len()],
        at: 0,
        left: shape.iter().product(),
    }
}

/// See [`offsets`].
pub(crate) struct Offsets {
    shape: Vec<usize>,
    strides: Vec<usize>,
    index: Vec<usize>,
    at: usize,
    left: usize,
}

impl Iterator for Offsets {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let now = self.at;
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            self.at += self.strides[axis];
            if self.index[axis] < self.shape[axis] {
                break;
            }
            self.at -= self.strides[axis] * self.shape[axis];
            self.index[axis] = 0;
        }
        Some(now)
    }
}

/// One-dimensional lanes of a tensor along one axis: count, length, stride and start offsets.
pub(crate) struct Lines {
    pub(crate) len: usize,
    pub(crate) stride: usize,
    outer: usize,
}

impl Lines {
    pub(crate) fn new(shape: &[usize], axis: usize) -> Lines {
        Lines {
            len: shape[axis],
            stride: shape[axis + 1..].iter().product(),
            outer: shape[..axis].iter().product(),
        }
    }

    /// Offset of the first element of every lane.
    pub(crate) fn starts(&self) -> impl Iterator<Item = usize> + use<> {
        let (stride, block) = (self.stride, self.stride * self.len);
        (0..self.outer * stride).map(move |i| i / stride * block + i % stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks() {
        let walk = |shape: &[usize], strides: &[usize]| offsets(shape, strides).collect::<Vec<_>>();
        assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(walk(&[3, 2], &[1, 3]), [0, 3, 1, 4, 2, 5]);
        assert_eq!(walk(&[], &[]), [0]);
        assert_eq!(walk(&[2, 0], &[1, 1]), [0; 0]);
        assert_eq!(broadcast_strides(&[3, 1], &[2, 3, 4]), [0, 1, 0]);
        let lines = Lines::new(&[2, 3, 2], 1);
        assert_eq!(lines.starts().collect::<Vec<_>>(), [0, 1, 6, 7]);
    }
}
