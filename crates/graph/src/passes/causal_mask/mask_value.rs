//! Symbolic evaluation of mask tensors as functions of the element index: ranges, comparisons, triangles, selections and
//! constants, and the ops that combine them.

use crate::ops::{BinaryFunction, CompareFunction, Op, Scalar, UnaryFunction};
use crate::passes::rewrite::GraphView;
use crate::{Data, Dim, TensorId, Value};
use base::DType;
use std::ops::{Add, Neg};

/// Maximum number of axes of a mask, counted from the last.
const MAX_MASK_AXES: usize = 8;

/// `constant + Σ coefficient · index`; axes are counted from the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct IndexExpr {
    coefficients: [i64; MAX_MASK_AXES],
    constant: Dim,
}

/// Condition on an element's index: always, never, or an index expression being at most zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Predicate {
    Always,
    Never,
    AtMostZero(IndexExpr),
}

/// Symbolic elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum MaskValue {
    /// Integers.
    Number(IndexExpr),
    /// Booleans.
    Predicate(Predicate),
    /// `yes` where the predicate holds, `no` elsewhere.
    TwoValued { truth: Predicate, yes: f32, no: f32 },
}

impl IndexExpr {
    pub(super) fn constant(constant: Dim) -> IndexExpr {
        IndexExpr {
            coefficients: [0; MAX_MASK_AXES],
            constant,
        }
    }

    /// The index along one axis times a coefficient.
    pub(super) fn axis(axis: usize, coefficient: i64) -> IndexExpr {
        let mut affine = IndexExpr::constant(Dim::from(0));
        affine.coefficients[axis] = coefficient;
        affine
    }

    /// The value, if it depends on neither index nor symbols.
    fn number(&self) -> Option<i64> {
        let constant = self.constant.as_number()?;
        (self.coefficients == [0; MAX_MASK_AXES]).then_some(constant)
    }

    /// Removes the coefficients of axes of size 1, whose index is always zero: the tensor may be broadcast along them.
    fn in_shape(&self, shape: &[Dim]) -> IndexExpr {
        let mut fixed = *self;
        let axes = shape.iter().rev().map(|dim| dim.as_const() == Some(1));
        let axes = axes.chain(std::iter::repeat(true));
        for (coefficient, _) in fixed
            .coefficients
            .iter_mut()
            .zip(axes)
            .filter(|(_, one)| *one)
        {
            *coefficient = 0;
        }
        fixed
    }

    /// Renumbers the axes by `to`.
    fn moved(&self, to: impl Fn(usize) -> Option<usize>) -> Option<IndexExpr> {
        let mut moved = IndexExpr::constant(self.constant);
        for (axis, coefficient) in self.coefficients.into_iter().enumerate() {
            if coefficient != 0 {
                *moved.coefficients.get_mut(to(axis)?)? = coefficient;
            }
        }
        Some(moved)
    }
}

impl Add for IndexExpr {
    type Output = IndexExpr;

    fn add(self, other: IndexExpr) -> IndexExpr {
        let mut sum = self;
        sum.constant = sum.constant + other.constant;
        for (a, b) in sum.coefficients.iter_mut().zip(other.coefficients) {
            *a = a.saturating_add(b);
        }
        sum
    }
}

impl Neg for IndexExpr {
    type Output = IndexExpr;

    fn neg(self) -> IndexExpr {
        IndexExpr {
            coefficients: self.coefficients.map(i64::saturating_neg),
            constant: -self.constant,
        }
    }
}

impl Predicate {
    pub(super) fn not(self) -> Predicate {
        match self {
            Predicate::Always => Predicate::Never,
            Predicate::Never => Predicate::Always,
            // Integers: not (x ≤ 0) is 1 − x ≤ 0.
            Predicate::AtMostZero(x) => {
                Predicate::AtMostZero(-x + IndexExpr::constant(Dim::from(1)))
            }
        }
    }

    fn at_most_zero(affine: IndexExpr) -> Predicate {
        match affine.number() {
            Some(n) if n <= 0 => Predicate::Always,
            Some(_) => Predicate::Never,
            None => Predicate::AtMostZero(affine),
        }
    }

    fn and(self, other: Predicate) -> Option<Predicate> {
        match (self, other) {
            (Predicate::Never, _) | (_, Predicate::Never) => Some(Predicate::Never),
            (Predicate::Always, x) | (x, Predicate::Always) => Some(x),
            (a, b) => (a == b).then_some(a),
        }
    }
}

impl MaskValue {
    /// Evaluates a tensor symbolically; `None` if it has no such form. Coefficients of axes of size 1 are zero, and bools are
    /// predicates.
    pub(super) fn of(view: &GraphView<'_>, id: TensorId) -> Option<MaskValue> {
        let value = MaskValue::evaluated(view, id)?;
        let value = value.with_places(|affine| Some(affine.in_shape(view.shape(id))))?;
        match value {
            MaskValue::TwoValued { .. } if view.ty(id).dtype == DType::Bool => {
                MaskValue::comparison(CompareFunction::Ne, value, MaskValue::number(0.0))
            }
            value => Some(value),
        }
    }

    fn evaluated(view: &GraphView<'_>, id: TensorId) -> Option<MaskValue> {
        if let Some(value) = view.constant(id) {
            return MaskValue::of_constant(&value);
        }
        let (op, inputs) = view.defining_op(id)?;
        let operand = |i: usize| MaskValue::of(view, inputs[i]);
        match op {
            Op::Range(op) => {
                let start = IndexExpr::constant(op.start);
                Some(MaskValue::Number(start + IndexExpr::axis(0, op.step)))
            }
            Op::Size(op) => Some(MaskValue::Number(IndexExpr::constant(op.value))),
            Op::Fill(op) => Some(MaskValue::of_scalar(op.value, op.dtype)),
            Op::Expand(_) => operand(0),
            Op::Reshape(_) => {
                let to = unit_axes(view.shape(inputs[0]), view.shape(id))?;
                operand(0)?.moved(|axis| to.get(axis).copied().flatten())
            }
            Op::Permute(op) => {
                let last = op.axes.len() - 1;
                let to = |axis: usize| {
                    let source = last.checked_sub(axis)?;
                    Some(last - op.axes.iter().position(|a| *a == source)?)
                };
                operand(0)?.moved(to)
            }
            Op::Slice(op) if op.step == 1 => {
                let axis = view.rank(id) - 1 - op.axis;
                operand(0)?.shifted(axis, op.start)
            }
            Op::Triangle(op) => {
                let beyond = IndexExpr::axis(0, 1) + IndexExpr::axis(1, -1);
                let beyond =
                    beyond + IndexExpr::constant(Dim::constant(op.diagonal.saturating_neg()));
                let side = if op.upper { -beyond } else { beyond };
                operand(0)?.where_(Predicate::at_most_zero(side))
            }
            // A concatenation of ranges is one range if each part continues the one before.
            Op::Concat(op) => {
                let axis = view.rank(id) - 1 - op.axis;
                let parts = || {
                    let mut at = Dim::from(0);
                    inputs.iter().map(move |part| {
                        let (shape, start) = (view.shape(*part), at);
                        at = at + shape[op.axis];
                        (*part, shape, start)
                    })
                };
                // A part of size 1 does not show how the elements go on.
                let shown = parts().find(|(_, shape, _)| shape[op.axis].as_const() != Some(1));
                let (part, _, start) = shown.or_else(|| parts().next())?;
                let whole = MaskValue::of(view, part)?.shifted(axis, Dim::from(0) - start)?;
                for (part, shape, start) in parts() {
                    let expected = whole.shifted(axis, start)?;
                    let expected = expected.with_places(|affine| Some(affine.in_shape(shape)))?;
                    if MaskValue::of(view, part)? != expected {
                        return None;
                    }
                }
                Some(whole)
            }
            // A gather of a uniform tensor is uniform with the same value; a running sum of zeros is zero.
            Op::Gather(_) | Op::GatherElements(_) | Op::Index(_) => {
                operand(0)?.even().map(MaskValue::number)
            }
            Op::CumSum(_) => operand(0)?
                .even()
                .filter(|x| *x == 0.0)
                .map(MaskValue::number),
            Op::Cast(op) => operand(0)?.cast(op.to),
            Op::Unary(op) => match (op.function, operand(0)?) {
                (UnaryFunction::Not, MaskValue::Predicate(truth)) => {
                    Some(MaskValue::Predicate(truth.not()))
                }
                (UnaryFunction::Neg, MaskValue::Number(x)) => Some(MaskValue::Number(-x)),
                (UnaryFunction::Neg, level) => level.map(|x| Some(-x)),
                _ => None,
            },
            Op::Scale(op) => operand(0)?.map(|x| Some(x * op.factor)),
            Op::Binary(op) => {
                let integer = view.ty(id).dtype != DType::F32;
                MaskValue::arithmetic(op.function, operand(0)?, operand(1)?, integer)
            }
            Op::Compare(op) => MaskValue::comparison(op.function, operand(0)?, operand(1)?),
            Op::Where(_) => {
                let MaskValue::Predicate(truth) = operand(0)? else {
                    return None;
                };
                MaskValue::choice(truth, operand(1)?, operand(2)?)
            }
            _ => None,
        }
    }

    fn of_scalar(value: Scalar, dtype: DType) -> MaskValue {
        match dtype {
            DType::F32 => MaskValue::number(value.to_f32()),
            DType::Bool if value.to_bool() => MaskValue::Predicate(Predicate::Always),
            DType::Bool => MaskValue::Predicate(Predicate::Never),
            _ => MaskValue::Number(IndexExpr::constant(Dim::constant(value.to_i64()))),
        }
    }

    fn number(x: f32) -> MaskValue {
        MaskValue::TwoValued {
            truth: Predicate::Always,
            yes: x,
            no: x,
        }
    }

    /// Matches a constant that is uniform, an arithmetic sequence along one axis, or two-valued around a diagonal.
    fn of_constant(value: &Value) -> Option<MaskValue> {
        match &value.data {
            Data::F32(x) => {
                let (truth, yes, no) = sides(&value.shape, x)?;
                Some(MaskValue::TwoValued { truth, yes, no })
            }
            Data::Bool(x) => {
                let (truth, yes, no) = sides(&value.shape, x)?;
                Some(MaskValue::Predicate(match (yes, no) {
                    (true, true) => Predicate::Always,
                    (true, false) => truth,
                    (false, true) => truth.not(),
                    (false, false) => Predicate::Never,
                }))
            }
            Data::I64(x) => counted(&value.shape, x),
            Data::I32(x) => {
                let x: Vec<i64> = x.iter().map(|i| i64::from(*i)).collect();
                counted(&value.shape, &x)
            }
        }
    }

    fn moved(self, to: impl Fn(usize) -> Option<usize>) -> Option<MaskValue> {
        self.with_places(|affine| affine.moved(&to))
    }

    /// Shifts the index of an axis by `start`.
    fn shifted(self, axis: usize, start: Dim) -> Option<MaskValue> {
        self.with_places(|affine| {
            let steps = *affine.coefficients.get(axis)?;
            let size = usize::try_from(steps.unsigned_abs()).ok()?;
            let shift = start * size;
            let shift = if steps < 0 { -shift } else { shift };
            Some(*affine + IndexExpr::constant(shift))
        })
    }

    fn with_places(self, change: impl Fn(&IndexExpr) -> Option<IndexExpr>) -> Option<MaskValue> {
        let truth = |truth: Predicate| match truth {
            Predicate::AtMostZero(x) => change(&x).map(Predicate::at_most_zero),
            other => Some(other),
        };
        Some(match self {
            MaskValue::Number(x) => MaskValue::Number(change(&x)?),
            MaskValue::Predicate(t) => MaskValue::Predicate(truth(t)?),
            MaskValue::TwoValued { truth: t, yes, no } => MaskValue::TwoValued {
                truth: truth(t)?,
                yes,
                no,
            },
        })
    }

    /// The value as a predicate and two numbers, if it has at most two values.
    fn level(self) -> Option<(Predicate, f32, f32)> {
        match self {
            MaskValue::TwoValued { truth, yes, no } => Some((truth, yes, no)),
            MaskValue::Predicate(truth) => Some((truth, 1.0, 0.0)),
            MaskValue::Number(x) => {
                let exact = x.number().filter(|n| n.unsigned_abs() <= MAX_EXACT);
                exact.map(|n| (Predicate::Always, n as f32, n as f32))
            }
        }
    }

    /// The value of a uniform tensor.
    fn even(self) -> Option<f32> {
        let (truth, yes, no) = self.level()?;
        match truth {
            Predicate::Always => Some(yes),
            Predicate::Never => Some(no),
            Predicate::AtMostZero(_) => (yes == no).then_some(yes),
        }
    }

    fn map(self, function: impl Fn(f32) -> Option<f32>) -> Option<MaskValue> {
        let (truth, yes, no) = self.level()?;
        Some(MaskValue::TwoValued {
            truth,
            yes: function(yes)?,
            no: function(no)?,
        })
    }

    fn cast(self, to: DType) -> Option<MaskValue> {
        match (self, to) {
            (MaskValue::Predicate(_), DType::Bool)
            | (MaskValue::Number(_), DType::I32 | DType::I64) => Some(self),
            (_, DType::Bool) => {
                MaskValue::comparison(CompareFunction::Ne, self, MaskValue::number(0.0))
            }
            (MaskValue::Number(x), DType::F32) if x.number().is_none() => Some(self),
            (_, DType::F32) => self.map(Some),
            _ => self.map(|x| exact(x.trunc())),
        }
    }

    /// Multiplies by a predicate: the value where it holds, zero elsewhere.
    fn where_(self, truth: Predicate) -> Option<MaskValue> {
        match self {
            MaskValue::Predicate(own) => own.and(truth).map(MaskValue::Predicate),
            other => MaskValue::choice(truth, other, MaskValue::number(0.0)),
        }
    }

    fn choice(truth: Predicate, a: MaskValue, b: MaskValue) -> Option<MaskValue> {
        match (truth, a, b) {
            (Predicate::Always, a, _) => Some(a),
            (Predicate::Never, _, b) => Some(b),
            (_, a, b) => Some(MaskValue::TwoValued {
                truth,
                yes: a.even()?,
                no: b.even()?,
            }),
        }
    }

    fn arithmetic(
        function: BinaryFunction,
        a: MaskValue,
        b: MaskValue,
        integer: bool,
    ) -> Option<MaskValue> {
        let apply = |a: f32, b: f32| match integer {
            false => Some(function.apply(a, b)),
            true => {
                let result = function.apply_integer(exact(a)? as i64, exact(b)? as i64);
                exact(result.ok()? as f32)
            }
        };
        match (function, a, b) {
            (BinaryFunction::And, MaskValue::Predicate(a), MaskValue::Predicate(b)) => {
                a.and(b).map(MaskValue::Predicate)
            }
            (BinaryFunction::Or, MaskValue::Predicate(a), MaskValue::Predicate(b)) => {
                let neither = a.not().and(b.not())?;
                Some(MaskValue::Predicate(neither.not()))
            }
            (BinaryFunction::Add, MaskValue::Number(a), MaskValue::Number(b)) => {
                Some(MaskValue::Number(a + b))
            }
            (BinaryFunction::Sub, MaskValue::Number(a), MaskValue::Number(b)) => {
                Some(MaskValue::Number(a + -b))
            }
            (BinaryFunction::And | BinaryFunction::Or | BinaryFunction::Xor, ..) => None,
            (_, a, b) => match (a.even(), b.even()) {
                (Some(a), _) => b.map(|b| apply(a, b)),
                (_, Some(b)) => a.map(|a| apply(a, b)),
                _ => None,
            },
        }
    }

    fn comparison(function: CompareFunction, a: MaskValue, b: MaskValue) -> Option<MaskValue> {
        let one = IndexExpr::constant(Dim::from(1));
        if let (MaskValue::Number(a), MaskValue::Number(b)) = (a, b) {
            if let Some(difference) = (a + -b).number() {
                let holds = function.apply(difference, 0);
                let truth = if holds {
                    Predicate::Always
                } else {
                    Predicate::Never
                };
                return Some(MaskValue::Predicate(truth));
            }
            let below = match function {
                CompareFunction::Lt => a + -b + one,
                CompareFunction::Le => a + -b,
                CompareFunction::Gt => b + -a + one,
                CompareFunction::Ge => b + -a,
                _ => return None,
            };
            return Some(MaskValue::Predicate(Predicate::at_most_zero(below)));
        }
        let ((truth, yes, no), flipped, limit) = match (a.even(), b.even()) {
            (_, Some(limit)) => (a.level()?, false, limit),
            (Some(limit), _) => (b.level()?, true, limit),
            _ => return None,
        };
        let holds = |x: f32| match flipped {
            true => function.apply(limit, x),
            false => function.apply(x, limit),
        };
        Some(MaskValue::Predicate(match (holds(yes), holds(no)) {
            (true, true) => Predicate::Always,
            (true, false) => truth,
            (false, true) => truth.not(),
            (false, false) => Predicate::Never,
        }))
    }
}

/// The largest integer up to which f32 has all of them.
const MAX_EXACT: u64 = 1 << 24;

/// A number that is an integer, and small enough that f32 has its neighbours too.
fn exact(x: f32) -> Option<f32> {
    (x == x.trunc() && x.abs() <= MAX_EXACT as f32).then_some(x)
}

/// Maps axes of `from` to axes of `to`, both counted from the last; `None` unless the reshape only adds or drops unit axes.
fn unit_axes(from: &[Dim], to: &[Dim]) -> Option<Vec<Option<usize>>> {
    let is_long = |dim: &&Dim| dim.as_const() != Some(1);
    let mut targets = to.iter().rev().enumerate().filter(|(_, d)| is_long(d));
    let mut places = Vec::new();
    for dim in from.iter().rev() {
        places.push(match is_long(&dim) {
            true => Some(targets.next().filter(|(_, d)| *d == dim)?.0),
            false => None,
        });
    }
    targets.next().is_none().then_some(places)
}

/// Matches a constant with one value on each side of a diagonal: both values, and the predicate of the first.
fn sides<T: Copy + PartialEq>(shape: &[usize], x: &[T]) -> Option<(Predicate, T, T)> {
    let first = *x.first()?;
    if x.iter().all(|x| *x == first) {
        return Some((Predicate::Always, first, first));
    }
    let [ones @ .., rows, columns] = shape else {
        return None;
    };
    if ones.iter().any(|n| *n != 1) {
        return None;
    }
    let (low, high) = (x[(rows - 1) * columns], x[columns - 1]);
    // The last diagonal of the lower side, by the column where the first row changes, or the first column does.
    let diagonal = match x[..*columns].iter().position(|x| *x == high)? {
        0 => {
            let below = (0..*rows).position(|row| x[row * columns] == low)?;
            -(below as i64)
        }
        column => column as i64 - 1,
    };
    let lower = |at: usize| (at % columns) as i64 - (at / columns) as i64 <= diagonal;
    let fits = |(at, x): (usize, &T)| *x == if lower(at) { low } else { high };
    let affine = IndexExpr::axis(0, 1) + IndexExpr::axis(1, -1);
    let affine = affine + IndexExpr::constant(Dim::constant(-diagonal));
    x.iter()
        .enumerate()
        .all(fits)
        .then_some((Predicate::AtMostZero(affine), low, high))
}

/// Matches integers that are uniform or an arithmetic sequence along the only axis longer than one.
fn counted(shape: &[usize], x: &[i64]) -> Option<MaskValue> {
    let start = *x.first()?;
    let affine = IndexExpr::constant(Dim::constant(start));
    if x.iter().all(|x| *x == start) {
        return Some(MaskValue::Number(affine));
    }
    let mut long = shape.iter().rev().enumerate().filter(|(_, n)| **n != 1);
    let ((axis, _), None) = (long.next()?, long.next()) else {
        let truths: Vec<f32> = x.iter().map(|x| *x as f32).collect();
        let (truth, yes, no) = sides(shape, &truths)?;
        return Some(MaskValue::TwoValued { truth, yes, no });
    };
    let step = x[1].checked_sub(start)?;
    let even = x.windows(2).all(|w| w[1].checked_sub(w[0]) == Some(step));
    (even && axis < MAX_MASK_AXES).then(|| MaskValue::Number(affine + IndexExpr::axis(axis, step)))
}
