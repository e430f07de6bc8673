//! The kernel calls of convolutions, pools, softmaxes and sums.

use crate::arguments::{ConvolveArgs, PoolArgs, ReduceArgs, SoftmaxArgs, WindowSizes};
use crate::calls::{CallMaker, activation_code};
use crate::compile::Unit;
use crate::launch::Launch;
use backend::BackendError;
use graph::Node;
use graph::ops::{Conv, Pool, PoolFunction, Reduce, ReduceFunction, Softmax, WindowAxis};

/// Threads of a block.
const THREADS: u32 = 128;
/// Output channels of a thread, as `CONV_CHANNELS` in the kernels.
const CONV_CHANNELS: usize = 4;

/// Windows over the last axes of an input of this shape.
fn window_sizes(axes: &[WindowAxis], from: &[usize], to: &[usize]) -> WindowSizes {
    let missing = 3 - axes.len();
    let sizes = |shape: &[usize]| {
        let spatial = &shape[shape.len() - axes.len()..];
        let size = |i: usize| i.checked_sub(missing).map_or(1, |axis| spatial[axis]);
        std::array::from_fn(|i| size(i) as u32)
    };
    let of = |value: fn(&WindowAxis) -> usize, absent: u32| {
        let axis = |i: usize| i.checked_sub(missing).map(|axis| value(&axes[axis]) as u32);
        std::array::from_fn(|i| axis(i).unwrap_or(absent))
    };
    WindowSizes {
        from: sizes(from),
        to: sizes(to),
        size: of(|axis| axis.size, 1),
        stride: of(|axis| axis.stride, 1),
        dilation: of(|axis| axis.dilation, 1),
        before: of(|axis| axis.before, 0),
    }
}

impl CallMaker<'_> {
    pub(crate) fn convolution(&self, node: &Node, op: &Conv) -> Result<Vec<Launch>, BackendError> {
        let inputs = &node.inputs;
        let (x, to) = (self.shape(inputs[0]), self.shape(node.output));
        let positions: usize = to[2..].iter().product();
        let per_group = to[1] / op.groups;
        let blocks = per_group.div_ceil(CONV_CHANNELS);
        let arguments = ConvolveArgs {
            x: self.address(inputs[0]),
            weight: self.address(inputs[1]),
            bias: inputs.get(2).map_or(0, |bias| self.address(*bias)),
            residual: inputs.get(3).map_or(0, |residual| self.address(*residual)),
            out: self.address(node.output),
            positions: positions as u64,
            channels: x[1] as u32,
            inner: (x[1] / op.groups) as u32,
            outputs: to[1] as u32,
            per_group: per_group as u32,
            activation: activation_code(op.activation),
            blocks: blocks as u32,
            w: window_sizes(&op.axes, &x, &to),
        };
        let rows = to[0] * op.groups * blocks;
        if rows > MAX_GRID_ROWS {
            return Err(self.unsupported(node, "it has too many output channels"));
        }
        let function = self.device.function(Unit::General, "convolve")?;
        let grid = [positions.div_ceil(THREADS as usize) as u32, rows as u32];
        Ok(vec![Launch::new(function, grid, THREADS, 0, &arguments)])
    }

    pub(crate) fn pool(&self, node: &Node, op: &Pool) -> Result<Vec<Launch>, BackendError> {
        let (x, to) = (self.shape(node.inputs[0]), self.shape(node.output));
        let elements: usize = to.iter().product();
        let arguments = PoolArgs {
            x: self.address(node.inputs[0]),
            out: self.address(node.output),
            elements: elements as u64,
            sum: (op.function == PoolFunction::Sum).into(),
            unused: 0,
            w: window_sizes(&op.axes, &x, &to),
        };
        let blocks = elements.div_ceil(THREADS as usize);
        self.general("pool_windows", blocks, THREADS, &arguments)
    }

    pub(crate) fn softmax(&self, node: &Node, op: &Softmax) -> Result<Vec<Launch>, BackendError> {
        let shape = self.shape(node.output);
        let stride: usize = shape[op.axis + 1..].iter().product();
        let outer: usize = shape[..op.axis].iter().product();
        let lines = outer * stride;
        let arguments = SoftmaxArgs {
            x: self.address(node.inputs[0]),
            out: self.address(node.output),
            len: shape[op.axis] as u64,
            stride: stride as u64,
            lines: lines as u64,
            log: op.log.into(),
            unused: 0,
        };
        let blocks = (lines * 32).div_ceil(THREADS as usize);
        self.general("softmax_lines", blocks, THREADS, &arguments)
    }

    pub(crate) fn sum(&self, node: &Node, op: &Reduce) -> Result<Vec<Launch>, BackendError> {
        let Some(first) = op.axes.first().filter(|_| sums_neighbours(op)) else {
            return Err(self.unsupported(
                node,
                "only sums and means of neighbouring axes are computed",
            ));
        };
        let shape = self.shape(node.inputs[0]);
        let end = first + op.axes.len();
        let size = |axes: &[usize]| axes.iter().product::<usize>();
        let (outer, len, stride) = (
            size(&shape[..*first]),
            size(&shape[*first..end]),
            size(&shape[end..]),
        );
        let lines = outer * stride;
        let arguments = ReduceArgs {
            x: self.address(node.inputs[0]),
            out: self.address(node.output),
            len: len as u64,
            stride: stride as u64,
            lines: lines as u64,
            mean: (op.function == ReduceFunction::Mean).into(),
            unused: 0,
        };
        let blocks = (lines * 32).div_ceil(THREADS as usize);
        self.general("sum_lines", blocks, THREADS, &arguments)
    }
}

/// Whether a reduction is a sum or mean over neighbouring axes.
pub(crate) fn sums_neighbours(op: &Reduce) -> bool {
    let is_sum = matches!(op.function, ReduceFunction::Sum | ReduceFunction::Mean);
    is_sum && !op.axes.is_empty() && op.axes.windows(2).all(|pair| pair[0] + 1 == pair[1])
}

/// The most blocks of a grid along its second axis.
const MAX_GRID_ROWS: usize = 65_535;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_are_not_there_have_size_one() {
        let axis = WindowAxis {
            size: 3,
            stride: 2,
            dilation: 1,
            before: 1,
            after: 0,
        };
        let sizes = window_sizes(&[axis], &[1, 8, 10], &[1, 4, 5]);
        assert_eq!((sizes.from, sizes.to), ([1, 1, 10], [1, 1, 5]));
        assert_eq!((sizes.size, sizes.stride), ([1, 1, 3], [1, 1, 2]));
        assert_eq!((sizes.dilation, sizes.before), ([1, 1, 1], [0, 0, 1]));
    }
}
