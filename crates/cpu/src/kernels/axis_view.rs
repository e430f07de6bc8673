//! A tensor as lines along one axis, for kernels that work line by line.

/// Lines along one axis: `outer` blocks of `inner` lines, each with `len` elements `inner` apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AxisView {
    pub(crate) outer: usize,
    pub(crate) len: usize,
    pub(crate) inner: usize,
}

impl AxisView {
    pub(crate) fn new(shape: &[usize], axis: usize) -> AxisView {
        AxisView {
            outer: shape[..axis].iter().product(),
            len: shape[axis],
            inner: shape[axis + 1..].iter().product(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.outer * self.inner
    }

    /// The offset of a line's first element.
    #[inline(always)]
    pub(crate) fn start(&self, line: usize) -> usize {
        line / self.inner * self.len * self.inner + line % self.inner
    }
}
