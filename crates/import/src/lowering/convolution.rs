//! Convolutions, and transposed ones as convolutions of what is spread apart.

use base::{Bytes, DType};
use graph::ops::{Conv, Gather, Scalar, WindowAxis};
use graph::{Dim, TensorId};

use super::{LoweringBuilder, MAX_CONSTANT_ELEMENTS};

/// Sizes of a convolution, a number for each spatial axis.
#[derive(Clone, Debug)]
pub(crate) struct ConvSizes {
    pub(crate) stride: Vec<usize>,
    pub(crate) dilation: Vec<usize>,
    /// Padding before and after each axis.
    pub(crate) padding: Vec<[usize; 2]>,
    pub(crate) groups: usize,
}

impl ConvSizes {
    /// The windows of a kernel of these sizes.
    fn axes(&self, kernel: &[usize]) -> Result<Vec<WindowAxis>, String> {
        let lists = [self.stride.len(), self.dilation.len(), self.padding.len()];
        if lists.iter().any(|len| *len != kernel.len()) {
            return Err(format!(
                "a kernel of {kernel:?} needs {} strides, dilations and paddings",
                kernel.len()
            ));
        }
        let axis = |i: usize| WindowAxis {
            size: kernel[i],
            stride: self.stride[i],
            dilation: self.dilation[i],
            before: self.padding[i][0],
            after: self.padding[i][1],
        };
        Ok((0..kernel.len()).map(axis).collect())
    }
}

impl LoweringBuilder {
    /// The constant sizes of a kernel `[.., .., K..]`.
    pub(crate) fn kernel_sizes(&self, weight: TensorId) -> Result<Vec<usize>, String> {
        let shape = self.shape(weight);
        let sizes = shape.get(2..).unwrap_or_default().iter().map(Dim::as_const);
        let sizes = sizes.collect::<Option<Vec<usize>>>();
        let sizes = sizes.filter(|sizes| (1..=3).contains(&sizes.len()));
        sizes.ok_or_else(|| format!("a kernel of shape {shape:?} is not supported"))
    }

    /// A convolution of `x [N, C, S..]` with `weight [O, C / groups, K..]`.
    pub(crate) fn convolution(
        &mut self,
        x: TensorId,
        weight: TensorId,
        bias: Option<TensorId>,
        sizes: &ConvSizes,
    ) -> Result<TensorId, String> {
        let kernel = self.kernel_sizes(weight)?;
        let axes = sizes.axes(&kernel)?;
        if self.rank(x) != kernel.len() + 2 {
            let (x, kernel) = (self.shape(x), self.shape(weight));
            return Err(format!("x {x:?} and a kernel {kernel:?} do not match"));
        }
        let x = self.cast(x, DType::F32)?;
        let weight = self.cast(weight, DType::F32)?;
        let bias = bias.map(|bias| self.cast(bias, DType::F32)).transpose()?;
        let op = Conv {
            axes,
            groups: sizes.groups,
            activation: None,
        };
        let operands: Vec<_> = [x, weight].into_iter().chain(bias).collect();
        self.emit(op, &operands)
    }

    /// The gradient of a convolution with respect to its input, of `x [N, C, S..]` and `weight [C, O / groups, K..]`. The
    /// result is `output_padding` longer at the end of each axis.
    pub(crate) fn transposed_convolution(
        &mut self,
        x: TensorId,
        weight: TensorId,
        bias: Option<TensorId>,
        sizes: &ConvSizes,
        output_padding: &[usize],
    ) -> Result<TensorId, String> {
        let kernel = self.kernel_sizes(weight)?;
        let axes = sizes.axes(&kernel)?;
        let count = axes.len();
        if self.rank(x) != count + 2 || output_padding.len() != count {
            return Err("its operands do not have the same number of axes".into());
        }
        let mut x = self.cast(x, DType::F32)?;
        let mut padding = vec![];
        for (i, axis) in axes.iter().enumerate() {
            x = self.spread(x, 2 + i, axis.stride)?;
            let span = (axis.size.saturating_sub(1)).saturating_mul(axis.dilation);
            let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX / 4);
            let both = [axis.before, axis.after].map(|cut| signed(span) - signed(cut));
            let both = [both[0], both[1] + signed(output_padding[i])];
            // A negative padding crops.
            x = self.pad_axis(x, 2 + i, both.map(|n| n.min(0)), Scalar::F32(0.0))?;
            padding.push(both.map(|n| n.max(0) as usize));
        }
        // [C, O / groups, K..] -> [O, C / groups, K..], back to front.
        let shape = self.shape(weight);
        let groups = sizes.groups.max(1);
        let inner = shape[0]
            .checked_div(groups)
            .ok_or("its groups do not divide its channels")?;
        let mut apart = vec![Dim::from(groups), inner];
        apart.extend_from_slice(&shape[1..]);
        let order = [0, 2, 1].into_iter().chain(3..apart.len());
        let weight = self.reshape(weight, apart)?;
        let weight = self.permute(weight, order.collect())?;
        let mut joined = vec![shape[1] * groups, inner];
        joined.extend_from_slice(&shape[2..]);
        let mut weight = self.reshape(weight, joined)?;
        for axis in 2..2 + count {
            weight = self.reversed(weight, axis)?;
        }
        let forward = ConvSizes {
            stride: vec![1; count],
            dilation: sizes.dilation.clone(),
            padding,
            groups,
        };
        self.convolution(x, weight, bias, &forward)
    }

    /// Puts `stride - 1` zeros between the elements of an axis.
    fn spread(&mut self, x: TensorId, axis: usize, stride: usize) -> Result<TensorId, String> {
        if stride <= 1 {
            return Ok(x);
        }
        let shape = self.shape(x);
        let mut column = shape.clone();
        column.insert(axis + 1, Dim::from(1));
        let apart = self.reshape(x, column.clone())?;
        column[axis + 1] = Dim::from(stride - 1);
        let zeros = self.fill(Scalar::F32(0.0), DType::F32, column)?;
        let joined = self.concat(&[apart, zeros], axis + 1)?;
        let mut flat = shape.clone();
        flat[axis] = shape[axis] * stride;
        let joined = self.reshape(joined, flat)?;
        let len = shape[axis] * stride - Dim::from(stride - 1);
        self.slice(joined, axis, Dim::from(0), len)
    }

    /// Reverses an axis of constant size.
    pub(crate) fn reversed(&mut self, x: TensorId, axis: usize) -> Result<TensorId, String> {
        let size = self.shape(x).get(axis).and_then(Dim::as_const);
        let size = size.filter(|size| *size <= MAX_CONSTANT_ELEMENTS);
        let size = size.ok_or("an axis that is reversed must have a constant size")?;
        let places: Vec<i64> = (0..size as i64).rev().collect();
        let index = self.constant(DType::I64, &[size], Bytes::from_slice(&places))?;
        self.emit(Gather { axis }, &[x, index])
    }
}
