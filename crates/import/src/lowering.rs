//! What the lowerings of exported graphs build with: nodes, constants and the types of values.

use std::collections::{HashMap, HashSet};

use base::{Bytes, DType};
use graph::ops::{
    Binary, BinaryFunction, Cast, Compare, CompareFunction, Concat, Expand, Fill, Op, Permute,
    Reshape, Scalar, Slice, Unary, UnaryFunction, Where,
};
use graph::{Dim, GraphBuilder, TensorId, TensorType};

use crate::const_eval::ConstValue;

/// Elements of a constant that a rule computes; larger ones would make large graphs of small files.
pub(crate) const MAX_CONSTANT_ELEMENTS: usize = 1 << 24;

/// A graph under construction, its nodes named after the file's.
///
/// Errors are reasons; the caller adds the node's name.
pub(crate) struct LoweringBuilder {
    pub(crate) builder: GraphBuilder,
    node_name: String,
    emitted: usize,
    /// Names that the file has for its own tensors.
    reserved: HashSet<String>,
    /// What the current node made so far.
    made: HashSet<TensorId>,
    /// What computed tensors hold, where sizes are followed.
    known: Option<HashMap<TensorId, ConstValue>>,
}

impl LoweringBuilder {
    /// An empty graph.
    pub(crate) fn new(name: &str) -> LoweringBuilder {
        LoweringBuilder {
            builder: GraphBuilder::new(name),
            node_name: String::new(),
            emitted: 0,
            reserved: HashSet::new(),
            made: HashSet::new(),
            known: None,
        }
    }

    /// An empty graph for a file that computes shapes with ordinary ops: what is known before a run is not computed in
    /// it.
    pub(crate) fn with_const_eval(name: &str) -> LoweringBuilder {
        LoweringBuilder {
            known: Some(HashMap::new()),
            ..LoweringBuilder::new(name)
        }
    }

    /// What a tensor holds, as far as that is known before a run.
    pub(crate) fn known(&self, id: TensorId) -> Option<ConstValue> {
        if let Some(known) = self.known.as_ref().and_then(|map| map.get(&id)) {
            return Some(known.clone());
        }
        let bytes = self.builder.constant_bytes(id)?;
        ConstValue::of_constant(self.builder.ty(id), bytes)
    }

    /// Names what is emitted next after `node`.
    pub(crate) fn begin_node(&mut self, node: &str) {
        self.node_name = node.to_owned();
        self.emitted = 0;
        self.made.clear();
    }

    /// Keeps names from being given to what has none in the file.
    pub(crate) fn reserve(&mut self, names: impl Iterator<Item = String>) {
        self.reserved.extend(names);
    }

    /// Whether the current node made this; it can be asked once.
    pub(crate) fn take_emitted(&mut self, id: TensorId) -> bool {
        self.made.remove(&id)
    }

    /// Adds a node.
    pub(crate) fn emit(
        &mut self,
        op: impl Into<Op>,
        inputs: &[TensorId],
    ) -> Result<TensorId, String> {
        let op = op.into();
        let known = self.known_result(&op, inputs);
        if let Some((ty, known)) = &known
            && let Some(data) = known.constant(ty.dtype)
            && let Some(shape) = ty.dims(&Default::default())
        {
            return self.constant(ty.dtype, &shape, data.to_bytes());
        }
        let name = self.fresh_name();
        let result = self.builder.node(&name, op, inputs);
        let id = result.map_err(|e| e.to_string())?;
        self.made.insert(id);
        if let (Some((_, known)), Some(map)) = (known, &mut self.known) {
            map.insert(id, known);
        }
        Ok(id)
    }

    /// What a node's result will hold, where sizes are followed and it is known before a run.
    fn known_result(&self, op: &Op, inputs: &[TensorId]) -> Option<(TensorType, ConstValue)> {
        self.known.as_ref()?;
        let operand = |id: &TensorId| (self.builder.ty(*id), self.known(*id));
        let operands: Vec<(&TensorType, Option<ConstValue>)> = inputs.iter().map(operand).collect();
        let types: Vec<&TensorType> = operands.iter().map(|(ty, _)| *ty).collect();
        let result = op.infer(&types).ok()?;
        let known = ConstValue::of_result(op, &operands, &result)?;
        Some((result, known))
    }

    /// A name that no tensor has: the node's, and a number behind it.
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

    /// An axis of a tensor of `rank` axes; negative ones count from the end.
    pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, String> {
        // PyTorch takes 0 and -1 for the axes of a scalar too.
        let count = rank.max(1) as i64;
        let from_start = if axis < 0 { axis + count } else { axis };
        match usize::try_from(from_start) {
            Ok(axis) if axis < rank.max(1) => Ok(axis),
            _ => Err(format!("axis {axis} is none of {rank}")),
        }
    }

    /// A constant of one number.
    pub(crate) fn scalar(&mut self, value: Scalar, dtype: DType) -> Result<TensorId, String> {
        self.filled(value, dtype, &[])
    }

    /// A constant of one number in every place.
    pub(crate) fn filled(
        &mut self,
        value: Scalar,
        dtype: DType,
        shape: &[usize],
    ) -> Result<TensorId, String> {
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let elements = elements.filter(|n| *n <= MAX_CONSTANT_ELEMENTS);
        let elements =
            elements.ok_or_else(|| format!("needs more than {MAX_CONSTANT_ELEMENTS} numbers"))?;
        let data = value.repeat(dtype, elements);
        let data = data.ok_or_else(|| format!("there are no numbers of type {dtype}"))?;
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

    /// A tensor of one value, its shape known only at run time.
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

    /// The tensor with its last two axes exchanged.
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

    /// A function of two tensors, brought to one type first.
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

    /// A function of a tensor and a number, in the tensor's type.
    pub(crate) fn with_number(
        &mut self,
        function: BinaryFunction,
        x: TensorId,
        number: f32,
    ) -> Result<TensorId, String> {
        let number = self.scalar(Scalar::F32(number), self.dtype(x))?;
        self.binary(function, x, number)
    }

    /// Both in the wider of their types, as PyTorch widens.
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

    /// The tensor with `before` and `after` more places along an axis; negative counts take away.
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

    /// `x` where it is positive, else `other`.
    pub(crate) fn positive_or(&mut self, x: TensorId, other: TensorId) -> Result<TensorId, String> {
        let zero = self.scalar(Scalar::F32(0.0), DType::F32)?;
        let positive = self.compare(CompareFunction::Gt, x, zero)?;
        self.choose(positive, x, other)
    }

    /// `log(1 + exp(x))`, written so that large values stay exact.
    pub(crate) fn soft_plus(&mut self, x: TensorId) -> Result<TensorId, String> {
        let size = self.unary(UnaryFunction::Abs, x)?;
        let small = self.unary(UnaryFunction::Neg, size)?;
        let power = self.unary(UnaryFunction::Exp, small)?;
        let sum = self.with_number(BinaryFunction::Add, power, 1.0)?;
        let log = self.unary(UnaryFunction::Log, sum)?;
        let positive = self.with_number(BinaryFunction::Max, x, 0.0)?;
        self.binary(BinaryFunction::Add, positive, log)
    }
}

/// The number of elements of a shape that is known.
pub(crate) fn elements(shape: &[Dim]) -> Result<usize, String> {
    let known = shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(d.as_const()?));
    let known = known.filter(|n| i64::try_from(*n).is_ok());
    known.ok_or_else(|| "its shape must be known at export".into())
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
