//! What a mask holds at each of its places, as a function of the place: ranges, comparisons, triangles, choices and
//! constants, followed through the ops that combine them.

use crate::ops::{BinaryFunction, CompareFunction, Op, Scalar, UnaryFunction};
use crate::passes::rewrite::View;
use crate::{Data, Dim, TensorId, Value};
use base::DType;
use std::ops::{Add, Neg};

/// Axes that a place is counted in, from the last one.
const AXES: usize = 8;

/// `constant + Σ coefficient · index`; axes are counted from the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Affine {
    coefficients: [i64; AXES],
    constant: Dim,
}

/// What holds at a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Truth {
    Always,
    Never,
    AtMostZero(Affine),
}

/// What a tensor's elements are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Meaning {
    /// Integers.
    Number(Affine),
    /// Truths.
    Truth(Truth),
    /// One number where something holds and another elsewhere.
    Level { truth: Truth, yes: f32, no: f32 },
}

impl Affine {
    pub(super) fn constant(constant: Dim) -> Affine {
        Affine {
            coefficients: [0; AXES],
            constant,
        }
    }

    /// The index along one axis times a number.
    pub(super) fn axis(axis: usize, coefficient: i64) -> Affine {
        let mut affine = Affine::constant(Dim::from(0));
        affine.coefficients[axis] = coefficient;
        affine
    }

    /// The number, when it does not depend on the place.
    fn number(&self) -> Option<i64> {
        let (constant, mut terms) = self.constant.terms();
        let fixed = self.coefficients == [0; AXES] && terms.next().is_none();
        fixed.then_some(constant)
    }

    /// The same with every axis moved to where `to` says.
    fn moved(&self, to: impl Fn(usize) -> Option<usize>) -> Option<Affine> {
        let mut moved = Affine::constant(self.constant);
        for (axis, coefficient) in self.coefficients.into_iter().enumerate() {
            if coefficient != 0 {
                *moved.coefficients.get_mut(to(axis)?)? = coefficient;
            }
        }
        Some(moved)
    }
}

impl Add for Affine {
    type Output = Affine;

    fn add(self, other: Affine) -> Affine {
        let mut sum = self;
        sum.constant = sum.constant + other.constant;
        for (a, b) in sum.coefficients.iter_mut().zip(other.coefficients) {
            *a = a.saturating_add(b);
        }
        sum
    }
}

impl Neg for Affine {
    type Output = Affine;

    fn neg(self) -> Affine {
        Affine {
            coefficients: self.coefficients.map(i64::saturating_neg),
            constant: -self.constant,
        }
    }
}

impl Truth {
    pub(super) fn not(self) -> Truth {
        match self {
            Truth::Always => Truth::Never,
            Truth::Never => Truth::Always,
            // Integers: not (x ≤ 0) is 1 − x ≤ 0.
            Truth::AtMostZero(x) => Truth::AtMostZero(-x + Affine::constant(Dim::from(1))),
        }
    }

    fn at_most_zero(affine: Affine) -> Truth {
        match affine.number() {
            Some(n) if n <= 0 => Truth::Always,
            Some(_) => Truth::Never,
            None => Truth::AtMostZero(affine),
        }
    }

    fn and(self, other: Truth) -> Option<Truth> {
        match (self, other) {
            (Truth::Never, _) | (_, Truth::Never) => Some(Truth::Never),
            (Truth::Always, x) | (x, Truth::Always) => Some(x),
            (a, b) => (a == b).then_some(a),
        }
    }
}

impl Meaning {
    /// What a tensor holds, if it can be said.
    pub(super) fn of(view: &View<'_>, id: TensorId) -> Option<Meaning> {
        if let Some(value) = view.constant(id) {
            return Meaning::of_constant(&value);
        }
        let (op, inputs) = view.made(id)?;
        let operand = |i: usize| Meaning::of(view, inputs[i]);
        match op {
            Op::Range(op) => {
                let start = Affine::constant(op.start);
                Some(Meaning::Number(start + Affine::axis(0, op.step)))
            }
            Op::Size(op) => Some(Meaning::Number(Affine::constant(op.value))),
            Op::Fill(op) => Some(Meaning::of_scalar(op.value, op.dtype)),
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
                let beyond = Affine::axis(0, 1) + Affine::axis(1, -1);
                let beyond = beyond + Affine::constant(Dim::constant(op.diagonal.saturating_neg()));
                let side = if op.upper { -beyond } else { beyond };
                operand(0)?.where_(Truth::at_most_zero(side))
            }
            // Positions that begin before the first: each part goes on where the one before ended.
            Op::Concat(op) => {
                let axis = view.rank(id) - 1 - op.axis;
                let (mut at, first) = (Dim::from(0), operand(0)?);
                for (i, part) in inputs.iter().enumerate() {
                    if operand(i)? != first.shifted(axis, at)? {
                        return None;
                    }
                    at = at + view.shape(*part)[op.axis];
                }
                Some(first)
            }
            // Of what is the same everywhere, any part is the same; sums of nothing are nothing.
            Op::Gather(_) | Op::GatherElements(_) | Op::Index(_) => {
                operand(0)?.even().map(Meaning::number)
            }
            Op::CumSum(_) => operand(0)?
                .even()
                .filter(|x| *x == 0.0)
                .map(Meaning::number),
            Op::Cast(op) => operand(0)?.cast(op.to),
            Op::Unary(op) => match (op.function, operand(0)?) {
                (UnaryFunction::Not, Meaning::Truth(truth)) => Some(Meaning::Truth(truth.not())),
                (UnaryFunction::Neg, Meaning::Number(x)) => Some(Meaning::Number(-x)),
                (UnaryFunction::Neg, level) => level.map(|x| -x),
                _ => None,
            },
            Op::Scale(op) => operand(0)?.map(|x| x * op.factor),
            Op::Binary(op) => Meaning::arithmetic(op.function, operand(0)?, operand(1)?),
            Op::Compare(op) => Meaning::comparison(op.function, operand(0)?, operand(1)?),
            Op::Where(_) => {
                let Meaning::Truth(truth) = operand(0)? else {
                    return None;
                };
                Meaning::choice(truth, operand(1)?, operand(2)?)
            }
            _ => None,
        }
    }

    fn of_scalar(value: Scalar, dtype: DType) -> Meaning {
        match dtype {
            DType::F32 => Meaning::number(value.to_f32()),
            DType::Bool if value.to_bool() => Meaning::Truth(Truth::Always),
            DType::Bool => Meaning::Truth(Truth::Never),
            _ => Meaning::Number(Affine::constant(Dim::constant(value.to_i64()))),
        }
    }

    fn number(x: f32) -> Meaning {
        Meaning::Level {
            truth: Truth::Always,
            yes: x,
            no: x,
        }
    }

    /// A constant that is even, counts along one axis, or has two sides of a diagonal.
    fn of_constant(value: &Value) -> Option<Meaning> {
        match &value.data {
            Data::F32(x) => {
                let (truth, yes, no) = sides(&value.shape, x)?;
                Some(Meaning::Level { truth, yes, no })
            }
            Data::Bool(x) => {
                let (truth, yes, no) = sides(&value.shape, x)?;
                Some(Meaning::Truth(match (yes, no) {
                    (true, true) => Truth::Always,
                    (true, false) => truth,
                    (false, true) => truth.not(),
                    (false, false) => Truth::Never,
                }))
            }
            Data::I64(x) => counted(&value.shape, x),
            Data::I32(x) => {
                let x: Vec<i64> = x.iter().map(|i| i64::from(*i)).collect();
                counted(&value.shape, &x)
            }
        }
    }

    fn moved(self, to: impl Fn(usize) -> Option<usize>) -> Option<Meaning> {
        self.with_places(|affine| affine.moved(&to))
    }

    /// The same read from `start` on along an axis.
    fn shifted(self, axis: usize, start: Dim) -> Option<Meaning> {
        self.with_places(|affine| {
            let steps = *affine.coefficients.get(axis)?;
            let size = usize::try_from(steps.unsigned_abs()).ok()?;
            let shift = start * size;
            let shift = if steps < 0 { -shift } else { shift };
            Some(*affine + Affine::constant(shift))
        })
    }

    fn with_places(self, change: impl Fn(&Affine) -> Option<Affine>) -> Option<Meaning> {
        let truth = |truth: Truth| match truth {
            Truth::AtMostZero(x) => change(&x).map(Truth::at_most_zero),
            other => Some(other),
        };
        Some(match self {
            Meaning::Number(x) => Meaning::Number(change(&x)?),
            Meaning::Truth(t) => Meaning::Truth(truth(t)?),
            Meaning::Level { truth: t, yes, no } => Meaning::Level {
                truth: truth(t)?,
                yes,
                no,
            },
        })
    }

    /// Truths and integers as numbers, where they have two values at most.
    fn level(self) -> Option<(Truth, f32, f32)> {
        match self {
            Meaning::Level { truth, yes, no } => Some((truth, yes, no)),
            Meaning::Truth(truth) => Some((truth, 1.0, 0.0)),
            Meaning::Number(x) => x.number().map(|n| (Truth::Always, n as f32, n as f32)),
        }
    }

    /// The number, when it is the same everywhere.
    fn even(self) -> Option<f32> {
        let (truth, yes, no) = self.level()?;
        match truth {
            Truth::Always => Some(yes),
            Truth::Never => Some(no),
            Truth::AtMostZero(_) => (yes == no).then_some(yes),
        }
    }

    fn map(self, function: impl Fn(f32) -> f32) -> Option<Meaning> {
        let (truth, yes, no) = self.level()?;
        Some(Meaning::Level {
            truth,
            yes: function(yes),
            no: function(no),
        })
    }

    fn cast(self, to: DType) -> Option<Meaning> {
        match (self, to) {
            (Meaning::Truth(_), DType::Bool) | (Meaning::Number(_), DType::I32 | DType::I64) => {
                Some(self)
            }
            (_, DType::Bool) => {
                Meaning::comparison(CompareFunction::Ne, self, Meaning::number(0.0))
            }
            (Meaning::Number(x), DType::F32) if x.number().is_none() => Some(self),
            _ => self.map(|x| x),
        }
    }

    /// This where something holds, zero elsewhere.
    fn where_(self, truth: Truth) -> Option<Meaning> {
        match self {
            Meaning::Truth(own) => own.and(truth).map(Meaning::Truth),
            other => Meaning::choice(truth, other, Meaning::number(0.0)),
        }
    }

    fn choice(truth: Truth, a: Meaning, b: Meaning) -> Option<Meaning> {
        match (truth, a, b) {
            (Truth::Always, a, _) => Some(a),
            (Truth::Never, _, b) => Some(b),
            (_, a, b) => Some(Meaning::Level {
                truth,
                yes: a.even()?,
                no: b.even()?,
            }),
        }
    }

    fn arithmetic(function: BinaryFunction, a: Meaning, b: Meaning) -> Option<Meaning> {
        match (function, a, b) {
            (BinaryFunction::And, Meaning::Truth(a), Meaning::Truth(b)) => {
                a.and(b).map(Meaning::Truth)
            }
            (BinaryFunction::Or, Meaning::Truth(a), Meaning::Truth(b)) => {
                let neither = a.not().and(b.not())?;
                Some(Meaning::Truth(neither.not()))
            }
            (BinaryFunction::Add, Meaning::Number(a), Meaning::Number(b)) => {
                Some(Meaning::Number(a + b))
            }
            (BinaryFunction::Sub, Meaning::Number(a), Meaning::Number(b)) => {
                Some(Meaning::Number(a + -b))
            }
            (BinaryFunction::And | BinaryFunction::Or | BinaryFunction::Xor, ..) => None,
            (_, a, b) => match (a.even(), b.even()) {
                (Some(a), _) => b.map(|b| function.apply(a, b)),
                (_, Some(b)) => a.map(|a| function.apply(a, b)),
                _ => None,
            },
        }
    }

    fn comparison(function: CompareFunction, a: Meaning, b: Meaning) -> Option<Meaning> {
        let one = Affine::constant(Dim::from(1));
        if let (Meaning::Number(a), Meaning::Number(b)) = (a, b) {
            if let Some(difference) = (a + -b).number() {
                let holds = function.apply(difference, 0);
                let truth = if holds { Truth::Always } else { Truth::Never };
                return Some(Meaning::Truth(truth));
            }
            let below = match function {
                CompareFunction::Lt => a + -b + one,
                CompareFunction::Le => a + -b,
                CompareFunction::Gt => b + -a + one,
                CompareFunction::Ge => b + -a,
                _ => return None,
            };
            return Some(Meaning::Truth(Truth::at_most_zero(below)));
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
        Some(Meaning::Truth(match (holds(yes), holds(no)) {
            (true, true) => Truth::Always,
            (true, false) => truth,
            (false, true) => truth.not(),
            (false, false) => Truth::Never,
        }))
    }
}

/// Where every axis of `from` is in `to`, both counted from the last, when the reshape only adds or drops axes of one.
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

/// The two values of a constant on both sides of a diagonal, and which places have the first.
fn sides<T: Copy + PartialEq>(shape: &[usize], x: &[T]) -> Option<(Truth, T, T)> {
    let first = *x.first()?;
    if x.iter().all(|x| *x == first) {
        return Some((Truth::Always, first, first));
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
    let affine = Affine::axis(0, 1) + Affine::axis(1, -1);
    let affine = affine + Affine::constant(Dim::constant(-diagonal));
    x.iter()
        .enumerate()
        .all(fits)
        .then_some((Truth::AtMostZero(affine), low, high))
}

/// Integers that are even or count along the only long axis.
fn counted(shape: &[usize], x: &[i64]) -> Option<Meaning> {
    let start = *x.first()?;
    let affine = Affine::constant(Dim::constant(start));
    if x.iter().all(|x| *x == start) {
        return Some(Meaning::Number(affine));
    }
    let mut long = shape.iter().rev().enumerate().filter(|(_, n)| **n != 1);
    let ((axis, _), None) = (long.next()?, long.next()) else {
        let truths: Vec<f32> = x.iter().map(|x| *x as f32).collect();
        let (truth, yes, no) = sides(shape, &truths)?;
        return Some(Meaning::Level { truth, yes, no });
    };
    let step = x[1].checked_sub(start)?;
    let even = x.windows(2).all(|w| w[1].checked_sub(w[0]) == Some(step));
    (even && axis < AXES).then(|| Meaning::Number(affine + Affine::axis(axis, step)))
}
