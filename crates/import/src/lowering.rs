//! Graph builder shared by the ONNX and `.pt2` lowerings: nodes, constants, type promotion and constant evaluation.

mod convolution;
mod dynamic_quantise;
mod einsum;
mod ordering;
mod pooling;
mod recurrent;
mod resize;

pub(crate) use convolution::ConvSizes;
pub(crate) use pooling::{Divisor, Pooling};
pub(crate) use recurrent::{Cell, Direction, State};
pub(crate) use resize::{Coordinates, Filter, Interpolation, Nearest};

use std::collections::{HashMap, HashSet};

use base::{Bytes, DType};
use graph::ops::{
    Binary, BinaryFunction, Cast, Compare, CompareFunction, Concat, Expand, Fill, Op, Permute,
    Reshape, Scalar, Slice, Unary, UnaryFunction, Where,
};
use graph::{Dim, GraphBuilder, TensorId, TensorType};

use crate::const_eval::ConstValue;
use crate::stored_type::StoredType;

/// Limit on the elements of a constant that a lowering rule computes, so that small files cannot make large graphs.
pub(crate) const MAX_CONSTANT_ELEMENTS: usize = 1 << 24;

/// Limit on the numbers that describe windows.
pub(crate) const MAX_WINDOW_NUMBER: i64 = 1 << 24;

/// A number that describes windows, such as a stride, of the attribute `name`.
pub(crate) fn window_number(name: &str, n: i64) -> Result<usize, String> {
    let number = usize::try_from(n).ok().filter(|_| n <= MAX_WINDOW_NUMBER);
    number.ok_or_else(|| format!("{name} {n} is out of range"))
}

/// Builds graph nodes for one source node at a time, named after it.
///
/// Errors are reasons only; the caller adds the node's name.
pub(crate) struct LoweringBuilder {
    pub(crate) builder: GraphBuilder,
    node_name: String,
    emitted: usize,
    /// Names of the file's own tensors.
    reserved: HashSet<String>,
    /// Tensors emitted for the current source node.
    emitted_ids: HashSet<TensorId>,
    /// Results of constant evaluation, if it is enabled.
    const_values: Option<HashMap<TensorId, ConstValue>>,
}

impl LoweringBuilder {
    /// An empty graph.
    pub(crate) fn new(name: &str) -> LoweringBuilder {
        LoweringBuilder {
            builder: GraphBuilder::new(name),
            node_name: String::new(),
            emitted: 0,
            reserved: HashSet::new(),
            emitted_ids: HashSet::new(),
            const_values: None,
        }
    }

    /// An empty graph with constant evaluation, for formats that compute shapes with ordinary ops. Tensors known at
    /// import time become constants.
    pub(crate) fn with_const_eval(name: &str) -> LoweringBuilder {
        LoweringBuilder {
            const_values: Some(HashMap::new()),
            ..LoweringBuilder::new(name)
        }
    }

    /// Elements of a tensor, if they are known at import time.
    pub(crate) fn const_value(&self, id: TensorId) -> Option<ConstValue> {
        if let Some(known) = self.const_values.as_ref().and_then(|map| map.get(&id)) {
            return Some(known.clone());
        }
        let bytes = self.builder.constant_bytes(id)?;
        ConstValue::of_constant(self.builder.ty(id), bytes)
    }

    /// Starts a source node; tensors emitted from now on are named after it.
    pub(crate) fn begin_node(&mut self, node: &str) {
        self.node_name = node.to_owned();
        self.emitted = 0;
        self.emitted_ids.clear();
    }

    /// Reserves names, so that no emitted tensor gets one of them.
    pub(crate) fn reserve(&mut self, names: impl Iterator<Item = String>) {
        self.reserved.extend(names);
    }

    /// Removes `id` from the tensors emitted for the current node and returns whether it was one of them, so that each
    /// tensor is renamed at most once.
    pub(crate) fn take_emitted(&mut self, id: TensorId) -> bool {
        self.emitted_ids.remove(&id)
    }

    /// Adds a node.
    pub(crate) fn emit(
        &mut self,
        op: impl Into<Op>,
        inputs: &[TensorId],
    ) -> Result<TensorId, String> {
        let op = op.into();
        let known = self.const_result(&op, inputs);
        if let Some((ty, known)) = &known
            && let Some(data) = known.constant(ty.dtype)
            && let Some(shape) = ty.dims(&Default::default())
        {
            return self.constant(ty.dtype, &shape, data.to_bytes());
        }
        let name = self.fresh_name();
        let result = self.builder.node(&name, op, inputs);
        let id = result.map_err(|e| e.to_string())?;
        self.emitted_ids.insert(id);
        if let (Some((_, known)), Some(map)) = (known, &mut self.const_values) {
            map.insert(id, known);
        }
        Ok(id)
    }

    /// Type and elements of a node's result, if constant evaluation is enabled and succeeds.
    fn const_result(&self, op: &Op, inputs: &[TensorId]) -> Option<(TensorType, ConstValue)> {
        self.const_values.as_ref()?;
        let operand = |id: &TensorId| (self.builder.ty(*id), self.const_value(*id));
        let operands: Vec<(&TensorType, Option<ConstValue>)> = inputs.iter().map(operand).collect();
        let types: Vec<&TensorType> = operands.iter().map(|(ty, _)| *ty).collect();
        let result = op.infer(&types).ok()?;
        let known = ConstValue::of_result(op, &operands, &result)?;
        Some((result, known))
    }

    /// A unique tensor name: the node's name and a number.
    pub(crate) fn fresh_name(&mut self) -> String {
        loop {
            self.emitted += 1;
            let name = format!("{}.{}", self.node_name, self.emitted);
            if self.reserved.insert(name.clone()) {
                return name;
            }
        }
    }

    pub(crate) fn dtype(&self, id: TensorId) -> DType {
        self.builder.ty(id).dtype
    }

    pub(crate) fn shape(&self, id: TensorId) -> Vec<Dim> {
        self.builder.ty(id).shape.clone()
    }

    pub(crate) fn rank(&self, id: TensorId) -> usize {
        self.builder.ty(id).shape.len()
    }

    /// Normalises an axis of a tensor of `rank` axes; negative axes count from the end.
    pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, String> {
        // PyTorch also accepts axes 0 and -1 of a scalar.
        let count = rank.max(1) as i64;
        let from_start = if axis < 0 { axis + count } else { axis };
        match usize::try_from(from_start) {
            Ok(axis) if axis < rank.max(1) => Ok(axis),
            _ => Err(format!("axis {axis} is out of range for {rank} axes")),
        }
    }

    /// A scalar constant.
    pub(crate) fn scalar(&mut self, value: Scalar, dtype: DType) -> Result<TensorId, String> {
        self.filled(value, dtype, &[])
    }

    /// A constant with all elements equal.
    pub(crate) fn filled(
        &mut self,
        value: Scalar,
        dtype: DType,
        shape: &[usize],
    ) -> Result<TensorId, String> {
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let elements = elements.filter(|n| *n <= MAX_CONSTANT_ELEMENTS);
        let elements = elements.ok_or_else(|| {
            format!("needs a constant of more than {MAX_CONSTANT_ELEMENTS} elements")
        })?;
        let data = value.repeat(dtype, elements);
        let data = data.ok_or_else(|| format!("a scalar of type {dtype} is not supported"))?;
        self.constant(dtype, shape, data.to_bytes())
    }

    /// A constant.
    pub(crate) fn constant(
        &mut self,
        dtype: DType,
        shape: &[usize],
        data: Bytes,
    ) -> Result<TensorId, String> {
        let name = self.fresh_name();
        let constant = self.builder.constant(&name, dtype, shape, data);
        constant.map_err(|e| e.to_string())
    }

    /// A tensor with all elements equal and a dynamic shape.
    pub(crate) fn fill(
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

    pub(crate) fn reshape(&mut self, x: TensorId, shape: Vec<Dim>) -> Result<TensorId, String> {
        if self.builder.ty(x).shape == shape {
            return Ok(x);
        }
        self.emit(Reshape { shape }, &[x])
    }

    pub(crate) fn permute(&mut self, x: TensorId, axes: Vec<usize>) -> Result<TensorId, String> {
        if axes.iter().enumerate().all(|(i, axis)| i == *axis) {
            return Ok(x);
        }
        self.emit(Permute { axes }, &[x])
    }

    /// Transposes the last two axes.
    pub(crate) fn transposed(&mut self, x: TensorId) -> Result<TensorId, String> {
        let rank = self.rank(x);
        if rank < 2 {
            return Ok(x);
        }
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.swap(rank - 2, rank - 1);
        self.permute(x, axes)
    }

    pub(crate) fn expand(&mut self, x: TensorId, shape: Vec<Dim>) -> Result<TensorId, String> {
        if self.builder.ty(x).shape == shape {
            return Ok(x);
        }
        self.emit(Expand { shape }, &[x])
    }

    pub(crate) fn cast(&mut self, x: TensorId, to: DType) -> Result<TensorId, String> {
        if self.dtype(x) == to {
            return Ok(x);
        }
        self.emit(Cast { to }, &[x])
    }

    pub(crate) fn slice(
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

    pub(crate) fn concat(&mut self, list: &[TensorId], axis: usize) -> Result<TensorId, String> {
        match list {
            [one] => Ok(*one),
            _ => self.emit(Concat { axis }, list),
        }
    }

    pub(crate) fn unary(
        &mut self,
        function: UnaryFunction,
        x: TensorId,
    ) -> Result<TensorId, String> {
        self.emit(Unary { function }, &[x])
    }

    /// Applies a binary function after promoting both operands to one type.
    pub(crate) fn binary(
        &mut self,
        function: BinaryFunction,
        a: TensorId,
        b: TensorId,
    ) -> Result<TensorId, String> {
        let (a, b) = self.promoted(a, b)?;
        self.emit(Binary { function }, &[a, b])
    }

    pub(crate) fn compare(
        &mut self,
        function: CompareFunction,
        a: TensorId,
        b: TensorId,
    ) -> Result<TensorId, String> {
        let (a, b) = self.promoted(a, b)?;
        self.emit(Compare { function }, &[a, b])
    }

    pub(crate) fn choose(
        &mut self,
        condition: TensorId,
        a: TensorId,
        b: TensorId,
    ) -> Result<TensorId, String> {
        let condition = self.cast(condition, DType::Bool)?;
        let (a, b) = self.promoted(a, b)?;
        self.emit(Where, &[condition, a, b])
    }

    /// Applies a binary function to a tensor and a number, in the tensor's type.
    pub(crate) fn with_number(
        &mut self,
        function: BinaryFunction,
        x: TensorId,
        number: f32,
    ) -> Result<TensorId, String> {
        let number = self.scalar(Scalar::F32(number), self.dtype(x))?;
        self.binary(function, x, number)
    }

    /// Promotes both tensors to the wider of their types, by PyTorch's rules.
    pub(crate) fn promoted(
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

    /// Pads an axis by `before` and `after` elements; negative counts crop.
    pub(crate) fn pad_axis(
        &mut self,
        x: TensorId,
        axis: usize,
        [before, after]: [i64; 2],
        value: Scalar,
    ) -> Result<TensorId, String> {
        let mut x = x;
        let cut = [
            before.saturating_neg().max(0),
            after.saturating_neg().max(0),
        ];
        if cut != [0, 0] {
            let size = self.shape(x)[axis];
            let len = size - Dim::constant(cut[0]) - Dim::constant(cut[1]);
            x = self.slice(x, axis, Dim::constant(cut[0]), len)?;
        }
        let mut list = vec![];
        let border =
            |emitter: &mut LoweringBuilder, count: i64| -> Result<Option<TensorId>, String> {
                if count <= 0 {
                    return Ok(None);
                }
                let mut shape = emitter.shape(x);
                shape[axis] = Dim::constant(count);
                let dtype = emitter.dtype(x);
                Ok(Some(emitter.fill(value, dtype, shape)?))
            };
        let (first, last) = (border(self, before)?, border(self, after)?);
        list.extend(first);
        list.push(x);
        list.extend(last);
        self.concat(&list, axis)
    }

    /// Wraps an integer result into the range of its stored type: narrow integers are computed in wider types.
    pub(crate) fn wrapped(&mut self, x: TensorId, kind: StoredType) -> Result<TensorId, String> {
        let narrow = kind.bits() < 64 && kind != StoredType::I32 && self.dtype(x) == DType::I64;
        let Some((min, _)) = kind.range().filter(|_| narrow) else {
            return Ok(x);
        };
        let period = self.scalar(Scalar::I64(1 << kind.bits()), DType::I64)?;
        if min == 0 {
            return self.binary(BinaryFunction::Mod, x, period);
        }
        let min = self.scalar(Scalar::I64(min), DType::I64)?;
        let above = self.binary(BinaryFunction::Sub, x, min)?;
        let above = self.binary(BinaryFunction::Mod, above, period)?;
        self.binary(BinaryFunction::Add, above, min)
    }

    /// `x` where it is positive, else `other`.
    pub(crate) fn positive_or(&mut self, x: TensorId, other: TensorId) -> Result<TensorId, String> {
        let zero = self.scalar(Scalar::F32(0.0), DType::F32)?;
        let positive = self.compare(CompareFunction::Gt, x, zero)?;
        self.choose(positive, x, other)
    }

    /// `scale · x` where `x` is positive, and `scale · alpha · (exp(inner · x) − 1)` elsewhere.
    pub(crate) fn elu(
        &mut self,
        x: TensorId,
        alpha: f32,
        scale: f32,
        inner: f32,
    ) -> Result<TensorId, String> {
        let times = |builder: &mut LoweringBuilder, x: TensorId, factor: f32| match factor {
            1.0 => Ok(x),
            factor => builder.with_number(BinaryFunction::Mul, x, factor),
        };
        let inside = times(self, x, inner)?;
        let power = self.unary(UnaryFunction::Expm1, inside)?;
        let below = times(self, power, alpha * scale)?;
        let above = times(self, x, scale)?;
        let zero = self.scalar(Scalar::F32(0.0), DType::F32)?;
        let positive = self.compare(CompareFunction::Gt, x, zero)?;
        self.choose(positive, above, below)
    }

    /// SELU with the constants of its paper.
    pub(crate) fn selu(&mut self, x: TensorId) -> Result<TensorId, String> {
        self.elu(x, 1.673_263_2, 1.050_701, 1.0)
    }
}

/// Number of elements of a constant shape.
pub(crate) fn elements(shape: &[Dim]) -> Result<usize, String> {
    let known = shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(d.as_const()?));
    let known = known.filter(|n| i64::try_from(*n).is_ok());
    known.ok_or_else(|| "its shape must be constant".into())
}

/// Rank of an element type in type promotion.
fn width(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 0,
        DType::I32 => 1,
        DType::I64 => 2,
        _ => 3,
    }
}
