//! Elementwise arithmetic of two tensors.

use super::elementwise::{Broadcast, infer_alike, zip};
use super::operands::{operands, require_dtype};
use super::{BufferReuse, Dependence, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Value};
use base::DType;

/// Binary function. All take f32 and integers, except the logical ones, which take bool, [`Atan2`](BinaryFunction::Atan2), which
/// takes f32, and those on bits, which take integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryFunction {
    /// `a + b`.
    Add,
    /// `a − b`.
    Sub,
    /// `a · b`.
    Mul,
    /// `a / b`; integer division truncates towards zero.
    Div,
    /// `a` to the power `b`.
    Pow,
    /// Minimum; NaN if either is NaN.
    Min,
    /// Maximum; NaN if either is NaN.
    Max,
    /// Remainder of `a / b`, with the sign of `b`.
    Mod,
    /// `a / b`, rounded down.
    FloorDiv,
    /// Remainder of `a / b`, with the sign of `a`.
    Rem,
    /// The angle of the point (`b`, `a`).
    Atan2,
    /// Bitwise and.
    BitAnd,
    /// Bitwise or.
    BitOr,
    /// Bitwise exclusive or.
    BitXor,
    /// `a` shifted by `b` bits to the left; zero for shifts that are negative or 64 and more.
    ShiftLeft,
    /// `a` shifted by `b` bits to the right, with its sign; only the sign is left of shifts that are negative or 64 and more.
    ShiftRight,
    /// Logical and.
    And,
    /// Logical or.
    Or,
    /// Logical exclusive or.
    Xor,
}

impl BinaryFunction {
    /// Every function.
    pub const ALL: [BinaryFunction; 19] = [
        BinaryFunction::Add,
        BinaryFunction::Sub,
        BinaryFunction::Mul,
        BinaryFunction::Div,
        BinaryFunction::Pow,
        BinaryFunction::Min,
        BinaryFunction::Max,
        BinaryFunction::Mod,
        BinaryFunction::FloorDiv,
        BinaryFunction::Rem,
        BinaryFunction::Atan2,
        BinaryFunction::BitAnd,
        BinaryFunction::BitOr,
        BinaryFunction::BitXor,
        BinaryFunction::ShiftLeft,
        BinaryFunction::ShiftRight,
        BinaryFunction::And,
        BinaryFunction::Or,
        BinaryFunction::Xor,
    ];

    /// Whether the operands are bool.
    pub fn is_logical(self) -> bool {
        matches!(
            self,
            BinaryFunction::And | BinaryFunction::Or | BinaryFunction::Xor
        )
    }

    /// The element types of its operands.
    pub fn takes(self) -> &'static [DType] {
        match self {
            _ if self.is_logical() => &[DType::Bool],
            BinaryFunction::Atan2 => &[DType::F32],
            BinaryFunction::BitAnd
            | BinaryFunction::BitOr
            | BinaryFunction::BitXor
            | BinaryFunction::ShiftLeft
            | BinaryFunction::ShiftRight => &[DType::I32, DType::I64],
            _ => &[DType::F32, DType::I32, DType::I64],
        }
    }

    /// The function of two numbers; logical functions treat zero as false.
    pub fn apply(self, a: f32, b: f32) -> f32 {
        match self {
            BinaryFunction::Add => a + b,
            BinaryFunction::Sub => a - b,
            BinaryFunction::Mul => a * b,
            BinaryFunction::Div => a / b,
            BinaryFunction::Pow => a.powf(b),
            BinaryFunction::Min | BinaryFunction::Max if a.is_nan() || b.is_nan() => f32::NAN,
            BinaryFunction::Min => a.min(b),
            BinaryFunction::Max => a.max(b),
            BinaryFunction::Mod => {
                let rest = a % b;
                if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
                    rest + b
                } else {
                    rest
                }
            }
            BinaryFunction::FloorDiv => (a / b).floor(),
            BinaryFunction::Rem => a % b,
            BinaryFunction::Atan2 => a.atan2(b),
            _ => self.apply_bool(a != 0.0, b != 0.0).into(),
        }
    }

    /// The function of two integers, or the reason why it is undefined. Overflow wraps, as in PyTorch.
    pub fn apply_integer(self, a: i64, b: i64) -> Result<i64, String> {
        let divides = matches!(
            self,
            BinaryFunction::Div
                | BinaryFunction::Mod
                | BinaryFunction::FloorDiv
                | BinaryFunction::Rem
        );
        let shift = u32::try_from(b).ok().filter(|bits| *bits < i64::BITS);
        if divides && b == 0 {
            return Err("divides an integer by zero".into());
        }
        Ok(match self {
            BinaryFunction::Add => a.wrapping_add(b),
            BinaryFunction::Sub => a.wrapping_sub(b),
            BinaryFunction::Mul => a.wrapping_mul(b),
            BinaryFunction::Div => a.wrapping_div(b),
            BinaryFunction::Pow => {
                let power = u32::try_from(b).map_err(|_| {
                    format!("raises an integer to the power {b}, which is not supported")
                })?;
                a.wrapping_pow(power)
            }
            BinaryFunction::Min => a.min(b),
            BinaryFunction::Max => a.max(b),
            BinaryFunction::Mod => a.wrapping_sub(b.wrapping_mul(floor_div(a, b))),
            BinaryFunction::FloorDiv => floor_div(a, b),
            BinaryFunction::Rem => a.wrapping_rem(b),
            BinaryFunction::Atan2 => return Err("atan2 does not support integers".into()),
            BinaryFunction::BitAnd => a & b,
            BinaryFunction::BitOr => a | b,
            BinaryFunction::BitXor => a ^ b,
            BinaryFunction::ShiftLeft => shift.map_or(0, |bits| a << bits),
            BinaryFunction::ShiftRight => a >> shift.unwrap_or(i64::BITS - 1),
            _ => self.apply_bool(a != 0, b != 0).into(),
        })
    }

    /// The logical function of two bools; false for arithmetic functions.
    pub fn apply_bool(self, a: bool, b: bool) -> bool {
        match self {
            BinaryFunction::And => a && b,
            BinaryFunction::Or => a || b,
            BinaryFunction::Xor => a != b,
            _ => false,
        }
    }
}

fn floor_div(a: i64, b: i64) -> i64 {
    let quotient = a.wrapping_div(b);
    let inexact = a.wrapping_rem(b) != 0;
    quotient - i64::from(inexact && (a < 0) != (b < 0))
}

/// `function(a, b)`, elementwise; operands of one type broadcast to each other as in numpy.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    /// Binary function.
    pub function: BinaryFunction,
}

impl OpDefinition for Binary {
    fn name(&self) -> &'static str {
        match self.function {
            BinaryFunction::Add => "add",
            BinaryFunction::Sub => "sub",
            BinaryFunction::Mul => "mul",
            BinaryFunction::Div => "div",
            BinaryFunction::Pow => "pow",
            BinaryFunction::Min => "min",
            BinaryFunction::Max => "max",
            BinaryFunction::Mod => "mod",
            BinaryFunction::FloorDiv => "floor_div",
            BinaryFunction::Rem => "rem",
            BinaryFunction::Atan2 => "atan2",
            BinaryFunction::BitAnd => "bit_and",
            BinaryFunction::BitOr => "bit_or",
            BinaryFunction::BitXor => "bit_xor",
            BinaryFunction::ShiftLeft => "shift_left",
            BinaryFunction::ShiftRight => "shift_right",
            BinaryFunction::And => "and",
            BinaryFunction::Or => "or",
            BinaryFunction::Xor => "xor",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [a, b] = operands(inputs)?;
        require_dtype("a", a, self.function.takes())?;
        infer_alike(a, b)
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(2))
    }

    fn dependence(&self) -> Dependence {
        Dependence::Element
    }

    fn keeps_operand(&self, is_number: &dyn Fn(usize, i64) -> bool) -> bool {
        match self.function {
            BinaryFunction::Add | BinaryFunction::Sub => is_number(1, 0),
            BinaryFunction::Mul | BinaryFunction::Div => is_number(1, 1),
            _ => false,
        }
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let walks = (
            &Broadcast::new(inputs[0], shape),
            &Broadcast::new(inputs[1], shape),
        );
        let f = self.function;
        let data = match (&inputs[0].data, &inputs[1].data) {
            (Data::F32(a), Data::F32(b)) => Data::F32(zip((a, b), walks, |a, b| f.apply(a, b))),
            (Data::I32(a), Data::I32(b)) => {
                let results = zip((a, b), walks, |a, b| {
                    Ok(f.apply_integer(a.into(), b.into())? as i32)
                });
                Data::I32(results.into_iter().collect::<Result<_, String>>()?)
            }
            (Data::I64(a), Data::I64(b)) => {
                let results = zip((a, b), walks, |a, b| f.apply_integer(a, b));
                Data::I64(results.into_iter().collect::<Result<_, _>>()?)
            }
            (Data::Bool(a), Data::Bool(b)) => {
                Data::Bool(zip((a, b), walks, |a, b| f.apply_bool(a, b)))
            }
            _ => return Err("its operands have different types".into()),
        };
        let shape = shape.to_vec();
        Ok(Value { shape, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dim;
    use proptest::prelude::*;

    fn run(function: BinaryFunction, a: &Value, b: &Value) -> Result<Value, String> {
        let ty = |v: &Value| TensorType {
            dtype: v.dtype(),
            shape: v.shape.iter().map(|d| Dim::from(*d)).collect(),
        };
        let result = Binary { function }.infer(&[&ty(a), &ty(b)])?;
        let shape = result.dims(&Bindings::default()).unwrap();
        Binary { function }.evaluate(&[a, b], &shape, &Bindings::default())
    }

    #[test]
    fn numbers() {
        use BinaryFunction::*;
        let (a, b) = (
            Value::f32([4], vec![7.0, -7.0, 7.0, -7.0]),
            Value::f32([4], vec![2.0, 2.0, -2.0, -2.0]),
        );
        let (ia, ib) = (
            Value::i64([4], vec![7, -7, 7, -7]),
            Value::i64([4], vec![2, 2, -2, -2]),
        );
        for (function, expect) in [
            (Add, [9.0, -5.0, 5.0, -9.0]),
            (Sub, [5.0, -9.0, 9.0, -5.0]),
            (Mul, [14.0, -14.0, -14.0, 14.0]),
            (Min, [2.0, -7.0, -2.0, -7.0]),
            (Max, [7.0, 2.0, 7.0, -2.0]),
            (Mod, [1.0, 1.0, -1.0, -1.0]),
            (FloorDiv, [3.0, -4.0, -4.0, 3.0]),
        ] {
            assert_eq!(
                run(function, &a, &b).unwrap(),
                Value::f32([4], expect.to_vec())
            );
            let expect = expect.map(|x| x as i64).to_vec();
            assert_eq!(run(function, &ia, &ib).unwrap(), Value::i64([4], expect));
        }
        let half = [3.5, -3.5, -3.5, 3.5];
        assert_eq!(run(Div, &a, &b).unwrap(), Value::f32([4], half.to_vec()));
        let cut = vec![3, -3, -3, 3];
        assert_eq!(run(Div, &ia, &ib).unwrap(), Value::i64([4], cut));
        assert_eq!(
            run(Pow, &a, &Value::f32([], vec![2.0])).unwrap(),
            Value::f32([4], vec![49.0; 4])
        );
        for (function, b) in [(Div, 0), (Mod, 0), (Pow, -1)] {
            assert!(run(function, &ia, &Value::i64([], vec![b])).is_err());
        }
    }

    #[test]
    fn truths_and_refusals() {
        let (a, b) = (
            Value::bool([2, 1], vec![false, true]),
            Value::bool([2], vec![false, true]),
        );
        for (function, expect) in [
            (BinaryFunction::And, [false, false, false, true]),
            (BinaryFunction::Or, [false, true, true, true]),
            (BinaryFunction::Xor, [false, true, true, false]),
        ] {
            assert_eq!(
                run(function, &a, &b).unwrap(),
                Value::bool([2, 2], expect.to_vec())
            );
        }
        assert!(run(BinaryFunction::Add, &a, &b).is_err());
        let x = Value::f32([3], vec![0.0; 3]);
        let error = run(BinaryFunction::Add, &x, &Value::f32([2], vec![0.0; 2])).unwrap_err();
        assert_eq!(error, "shapes [3] and [2] do not broadcast");
        assert!(run(BinaryFunction::Add, &x, &Value::i64([3], vec![0; 3])).is_err());
    }

    proptest! {
        /// Every element of a broadcast result is the function of the elements at its clipped coordinates.
        #[test]
        fn broadcasts_by_coordinates(
            axes in prop::collection::vec((1usize..4, 0u8..3), 0..4), cut in 0usize..4, swap: bool,
        ) {
            let full = |one: u8| axes.iter().map(|(n, k)| if *k == one { 1 } else { *n }).collect::<Vec<_>>();
            let (a, b) = (full(1), full(2).split_off(cut.min(axes.len())));
            let (a, b) = if swap { (b, a) } else { (a, b) };
            let value = |shape: &[usize], start: i64| {
                let n = shape.iter().product::<usize>() as i64;
                Value::i64(shape, (start..start + n).collect())
            };
            let (va, vb) = (value(&a, 100), value(&b, 1000));
            let sum = run(BinaryFunction::Add, &va, &vb).unwrap();
            for (flat, found) in sum.as_i64().unwrap().iter().enumerate() {
                let element = |v: &Value| {
                    let (mut rest, mut at, mut step) = (flat, 0, 1);
                    for axis in (0..sum.shape.len()).rev() {
                        let coordinate = rest % sum.shape[axis];
                        rest /= sum.shape[axis];
                        if let Some(own) = (axis + v.shape.len()).checked_sub(sum.shape.len()) {
                            at += coordinate.min(v.shape[own] - 1) * step;
                            step *= v.shape[own];
                        }
                    }
                    v.as_i64().unwrap()[at]
                };
                prop_assert_eq!(*found, element(&va) + element(&vb));
            }
        }
    }
}
