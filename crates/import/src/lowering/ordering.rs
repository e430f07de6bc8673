//! Sorting, and writes to indexed places.

use base::DType;
use graph::ops::{
    ArgSort, BinaryFunction as B, GatherElements, Range, Scatter, ScatterFunction, UnaryFunction,
};
use graph::{Dim, TensorId};

use super::LoweringBuilder;

impl LoweringBuilder {
    /// The first `count` elements along an axis in sorted order, and their indices.
    pub(crate) fn sorted(
        &mut self,
        x: TensorId,
        axis: usize,
        count: Dim,
        descending: bool,
    ) -> Result<[TensorId; 2], String> {
        let sort = ArgSort {
            axis,
            descending,
            count,
        };
        let index = self.emit(sort, &[x])?;
        let values = self.emit(GatherElements { axis }, &[x, index])?;
        Ok([values, index])
    }

    /// `data` with `values` written along an axis: element `[i, j, ..]` of `index` is the coordinate of element `[i, j, ..]`
    /// of the values along the axis.
    pub(crate) fn scatter_elements(
        &mut self,
        data: TensorId,
        axis: usize,
        index: TensorId,
        values: TensorId,
        function: ScatterFunction,
    ) -> Result<TensorId, String> {
        let shape = self.shape(index);
        if shape.len() != self.rank(data) || shape.is_empty() {
            let data = self.shape(data);
            return Err(format!("indices {shape:?} do not match data {data:?}"));
        }
        let mut operands = vec![data];
        for (at, size) in shape.iter().enumerate() {
            if at == axis {
                operands.push(index);
                continue;
            }
            let range = Range {
                start: Dim::from(0),
                step: 1,
                len: *size,
                dtype: DType::I64,
            };
            let range = self.emit(range, &[])?;
            let mut column = vec![Dim::from(1); shape.len()];
            column[at] = *size;
            operands.push(self.reshape(range, column)?);
        }
        operands.push(values);
        self.emit(Scatter { function }, &operands)
    }

    /// `(x - mean) / √(variance + eps) · weight + bias` by channel, the second axis.
    pub(crate) fn batch_norm(
        &mut self,
        x: TensorId,
        [mean, variance]: [TensorId; 2],
        [weight, bias]: [Option<TensorId>; 2],
        eps: f32,
    ) -> Result<TensorId, String> {
        let x = self.cast(x, DType::F32)?;
        let shape = self.shape(x);
        let channels = *shape.get(1).ok_or("its operand has no channels")?;
        let mut column = vec![Dim::from(1); shape.len() - 1];
        column[0] = channels;
        // One factor and one summand by channel, which are constants where the statistics are.
        let moved = self.with_number(B::Add, variance, eps)?;
        let mut factor = self.unary(UnaryFunction::Rsqrt, moved)?;
        if let Some(weight) = weight {
            factor = self.binary(B::Mul, factor, weight)?;
        }
        let shift = self.binary(B::Mul, mean, factor)?;
        let summand = match bias {
            Some(bias) => self.binary(B::Sub, bias, shift)?,
            None => self.unary(UnaryFunction::Neg, shift)?,
        };
        let factor = self.reshape(factor, column.clone())?;
        let summand = self.reshape(summand, column)?;
        let scaled = self.binary(B::Mul, x, factor)?;
        self.binary(B::Add, scaled, summand)
    }
}
