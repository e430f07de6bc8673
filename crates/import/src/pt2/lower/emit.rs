//! What rules build with: nodes, constants and the types of values.

use base::{Bytes, DType};
use graph::ops::{
    Binary, BinaryFunction, Cast, Compare, CompareFunction, Concat, Expand, Fill, Op, Permute,
    Reshape, Scalar, Size, Slice, Unary, UnaryFunction, Where,
};
use graph::{Dim, TensorId};

use super::Lower;
use super::call::{Call, Operand, SizeArg};
use crate::pt2::constant::Kind;
use crate::pt2::expr::Affine;
use crate::pt2::schema::SymInt;

/// Elements of a constant that a rule computes; larger ones would make large graphs of small files.
pub(super) const MOST_CONSTANT: usize = 1 << 24;

impl<'a> Lower<'a> {
    /// Adds a node.
    pub(in crate::pt2) fn emit(
        &mut self,
        op: impl Into<Op>,
        inputs: &[TensorId],
    ) -> Result<TensorId, String> {
        let name = self.fresh();
        let result = self.builder.node(&name, op, inputs);
        let id = result.map_err(|e| e.to_string())?;
        self.made.insert(id);
        Ok(id)
    }

    /// A name that no tensor has: the node's, and a number behind it.
    pub(super) fn fresh(&mut self) -> String {
        self.emitted += 1;
        format!("{}.{}", self.node_name, self.emitted)
    }

    pub(super) fn dtype(&self, id: TensorId) -> DType {
        self.builder.ty(id).dtype
    }

    pub(super) fn shape(&self, id: TensorId) -> Vec<Dim> {
        self.builder.ty(id).shape.clone()
    }

    pub(super) fn rank(&self, id: TensorId) -> usize {
        self.builder.ty(id).shape.len()
    }

    /// The tensor that an argument names.
    pub(super) fn tensor(&mut self, call: &Call<'_>, name: &str) -> Result<TensorId, String> {
        self.value(call.tensor(name)?)
    }

    /// The tensor that an argument names, if it is there.
    pub(super) fn maybe_tensor(
        &mut self,
        call: &Call<'_>,
        name: &str,
    ) -> Result<Option<TensorId>, String> {
        call.maybe_tensor(name)?.map(|n| self.value(n)).transpose()
    }

    /// An axis of a tensor of `rank` axes; negative ones count from the end.
    pub(super) fn axis(axis: i64, rank: usize) -> Result<usize, String> {
        // PyTorch takes 0 and -1 for the axes of a scalar too.
        let count = rank.max(1) as i64;
        let from_start = if axis < 0 { axis + count } else { axis };
        match usize::try_from(from_start) {
            Ok(axis) if axis < rank.max(1) => Ok(axis),
            _ => Err(format!("axis {axis} is none of {rank}")),
        }
    }

    /// The axes that an argument lists, rising; all of them when it is absent or empty.
    pub(super) fn axes(call: &Call<'_>, name: &str, rank: usize) -> Result<Vec<usize>, String> {
        let mut axes = match call.ints(name)? {
            Some(list) if !list.is_empty() => list
                .iter()
                .map(|axis| Self::axis(*axis, rank))
                .collect::<Result<Vec<_>, _>>()?,
            _ => (0..rank).collect(),
        };
        axes.sort_unstable();
        axes.dedup();
        axes.retain(|axis| *axis < rank);
        Ok(axes)
    }

    /// A size argument as a dimension.
    pub(super) fn dim(&self, size: SizeArg<'_>) -> Result<Dim, String> {
        match size {
            SizeArg::Number(n) => Ok(Dim::constant(n)),
            SizeArg::Name(name) => match self.graph.sym_int_values.get(name) {
                Some(size) => self.sym_int(size),
                None => Err(format!("size {name} is not known")),
            },
        }
    }

    /// A size of the file as a dimension.
    pub(super) fn sym_int(&self, size: &SymInt) -> Result<Dim, String> {
        let affine = match size {
            SymInt::AsInt(n) => return Ok(Dim::constant(*n)),
            SymInt::AsExpr(expr) => {
                let wrong = |reason| format!("a size {reason}");
                Affine::parse(&expr.expr_str).map_err(wrong)?
            }
        };
        let mut sum = Dim::constant(affine.constant);
        for (name, factor) in &affine.terms {
            let symbol = self.symbols.get(name).ok_or_else(|| {
                format!("a size depends on data ({name}), and kvark only runs shapes that follow from the inputs' shapes")
            })?;
            let size = usize::try_from(factor.unsigned_abs()).unwrap_or(usize::MAX);
            let term = *symbol * size.min(i64::MAX as usize);
            sum = if *factor < 0 { sum - term } else { sum + term };
        }
        Ok(sum)
    }

    /// The shape that the file gives a node's result.
    pub(super) fn result_shape(&self, call: &Call<'_>, index: usize) -> Result<Vec<Dim>, String> {
        let meta = self.result_meta(call, index)?;
        meta.sizes.iter().map(|size| self.sym_int(size)).collect()
    }

    /// The type that a node's result is computed in.
    pub(super) fn result_dtype(&self, call: &Call<'_>, index: usize) -> Result<DType, String> {
        Ok(Kind::new(self.result_meta(call, index)?.dtype)?.dtype())
    }

    fn result_meta(
        &self,
        call: &Call<'_>,
        index: usize,
    ) -> Result<&'a crate::pt2::schema::TensorMeta, String> {
        let results = call.results();
        let name = results.get(index).ok_or("has no result")?;
        let meta = self.graph.tensor_values.get(*name);
        meta.ok_or_else(|| format!("the file does not say what its result {name} is"))
    }

    /// A constant of one number.
    pub(super) fn scalar(&mut self, value: Scalar, dtype: DType) -> Result<TensorId, String> {
        self.filled(value, dtype, &[])
    }

    /// A constant of one number in every place.
    pub(super) fn filled(
        &mut self,
        value: Scalar,
        dtype: DType,
        shape: &[usize],
    ) -> Result<TensorId, String> {
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let elements = elements.filter(|n| *n <= MOST_CONSTANT);
        let elements =
            elements.ok_or_else(|| format!("needs more than {MOST_CONSTANT} numbers"))?;
        let data = value.repeat(dtype, elements);
        let data = data.ok_or_else(|| format!("there are no numbers of type {dtype}"))?;
        self.constant(dtype, shape, data.to_bytes())
    }

    /// A constant.
    pub(super) fn constant(
        &mut self,
        dtype: DType,
        shape: &[usize],
        data: Bytes,
    ) -> Result<TensorId, String> {
        let name = self.fresh();
        let constant = self.builder.constant(&name, dtype, shape, data);
        constant.map_err(|e| e.to_string())
    }

    /// A tensor of one value, its shape known only at run time.
    pub(super) fn fill(
        &mut self,
        value: Scalar,
        dtype: DType,
        shape: Vec<Dim>,
    ) -> Result<TensorId, String> {
        let fill = Fill {
            value,
            shape,
            dtype,
        };
        self.emit(fill, &[])
    }

    pub(in crate::pt2) fn reshape(
        &mut self,
        x: TensorId,
        shape: Vec<Dim>,
    ) -> Result<TensorId, String> {
        if self.builder.ty(x).shape == shape {
            return Ok(x);
        }
        self.emit(Reshape { shape }, &[x])
    }

    pub(super) fn permute(&mut self, x: TensorId, axes: Vec<usize>) -> Result<TensorId, String> {
        if axes.iter().enumerate().all(|(i, axis)| i == *axis) {
            return Ok(x);
        }
        self.emit(Permute { axes }, &[x])
    }

    /// The tensor with its last two axes exchanged.
    pub(super) fn transposed(&mut self, x: TensorId) -> Result<TensorId, String> {
        let rank = self.rank(x);
        if rank < 2 {
            return Ok(x);
        }
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.swap(rank - 2, rank - 1);
        self.permute(x, axes)
    }

    pub(super) fn expand(&mut self, x: TensorId, shape: Vec<Dim>) -> Result<TensorId, String> {
        if self.builder.ty(x).shape == shape {
            return Ok(x);
        }
        self.emit(Expand { shape }, &[x])
    }

    pub(in crate::pt2) fn cast(&mut self, x: TensorId, to: DType) -> Result<TensorId, String> {
        if self.dtype(x) == to {
            return Ok(x);
        }
        self.emit(Cast { to }, &[x])
    }

    pub(super) fn slice(
        &mut self,
        x: TensorId,
        axis: usize,
        start: Dim,
        len: Dim,
    ) -> Result<TensorId, String> {
        let slice = Slice {
            axis,
            start,
            len,
            step: 1,
        };
        self.emit(slice, &[x])
    }

    pub(super) fn concat(&mut self, list: &[TensorId], axis: usize) -> Result<TensorId, String> {
        match list {
            [one] => Ok(*one),
            _ => self.emit(Concat { axis }, list),
        }
    }

    pub(super) fn unary(
        &mut self,
        function: UnaryFunction,
        x: TensorId,
    ) -> Result<TensorId, String> {
        self.emit(Unary { function }, &[x])
    }

    /// A function of two tensors, brought to one type first.
    pub(super) fn binary(
        &mut self,
        function: BinaryFunction,
        a: TensorId,
        b: TensorId,
    ) -> Result<TensorId, String> {
        let (a, b) = self.promoted(a, b)?;
        self.emit(Binary { function }, &[a, b])
    }

    pub(super) fn compare(
        &mut self,
        function: CompareFunction,
        a: TensorId,
        b: TensorId,
    ) -> Result<TensorId, String> {
        let (a, b) = self.promoted(a, b)?;
        self.emit(Compare { function }, &[a, b])
    }

    pub(super) fn choose(
        &mut self,
        condition: TensorId,
        a: TensorId,
        b: TensorId,
    ) -> Result<TensorId, String> {
        let condition = self.cast(condition, DType::Bool)?;
        let (a, b) = self.promoted(a, b)?;
        self.emit(Where, &[condition, a, b])
    }

    /// A function of a tensor and a number, in the tensor's type.
    pub(super) fn with_number(
        &mut self,
        function: BinaryFunction,
        x: TensorId,
        number: f32,
    ) -> Result<TensorId, String> {
        let number = self.scalar(Scalar::F32(number), self.dtype(x))?;
        self.binary(function, x, number)
    }

    /// Both in the wider of their types, as PyTorch widens.
    pub(super) fn promoted(
        &mut self,
        a: TensorId,
        b: TensorId,
    ) -> Result<(TensorId, TensorId), String> {
        let (left, right) = (self.dtype(a), self.dtype(b));
        let to = if width(left) >= width(right) {
            left
        } else {
            right
        };
        Ok((self.cast(a, to)?, self.cast(b, to)?))
    }

    /// A tensor or number operand beside a tensor: a number takes the tensor's type unless it is of a wider sort.
    pub(super) fn operand(
        &mut self,
        call: &Call<'_>,
        name: &str,
        beside: DType,
    ) -> Result<TensorId, String> {
        let number = match call.operand(name)? {
            Operand::Tensor(name) => return self.value(name),
            Operand::Size(name) => {
                let value = self.dim(SizeArg::Name(name))?;
                let size = self.emit(Size { value }, &[])?;
                return match beside {
                    DType::Bool | DType::I64 => Ok(size),
                    other => self.cast(size, other),
                };
            }
            Operand::Number(number) => number,
        };
        let dtype = match (number, beside) {
            (Scalar::F32(_), _) => DType::F32,
            (Scalar::I64(_), DType::Bool) => DType::I64,
            _ => beside,
        };
        self.scalar(number, dtype)
    }
}

/// The order in which element types widen.
fn width(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 0,
        DType::I32 => 1,
        DType::I64 => 2,
        _ => 3,
    }
}
