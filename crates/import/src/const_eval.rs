//! Constant evaluation during import: small constants, and integers that are polynomials in the dynamic sizes.
//!
//! Exported graphs compute shapes with ordinary ops. Evaluating those ops symbolically turns such tensors back into
//! dimensions.

use base::DType;
use graph::ops::{Binary, BinaryFunction, Compare, CompareFunction, Expand, Op};
use graph::{Bindings, Data, Dim, TensorType, Value};

/// Limit on the elements of a tensor that is evaluated; shapes have few.
const MAX_ELEMENTS: usize = 4096;

/// Elements of a tensor that are known at import time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConstValue {
    /// Integers, each a polynomial in the dynamic sizes.
    Dims(Vec<Dim>),
    /// Concrete numbers or booleans.
    Elements(Data),
}

impl ConstValue {
    /// Elements of a small constant.
    pub(crate) fn of_constant(ty: &TensorType, bytes: &[u8]) -> Option<ConstValue> {
        let elements = small(ty)?.iter().product();
        if ty.dtype.is_real() && ty.dtype != DType::F32 {
            return None;
        }
        Some(ConstValue::from_data(Data::from_bytes(
            ty.dtype, bytes, elements,
        )?))
    }

    fn from_data(data: Data) -> ConstValue {
        match data {
            Data::I64(list) => ConstValue::Dims(list.into_iter().map(Dim::constant).collect()),
            Data::I32(list) => {
                ConstValue::Dims(list.into_iter().map(|n| Dim::constant(n.into())).collect())
            }
            data => ConstValue::Elements(data),
        }
    }

    /// Concrete elements, if none depends on a dynamic size.
    pub(crate) fn constant(&self, dtype: DType) -> Option<Data> {
        match self {
            ConstValue::Elements(data) => Some(data.clone()),
            ConstValue::Dims(list) => {
                let numbers = list
                    .iter()
                    .map(Dim::as_number)
                    .collect::<Option<Vec<i64>>>()?;
                Some(match dtype {
                    DType::I32 => Data::I32(numbers.into_iter().map(|n| n as i32).collect()),
                    _ => Data::I64(numbers),
                })
            }
        }
    }

    /// Evaluates an op; `None` if its result is not known at import time.
    pub(crate) fn of_result(
        op: &Op,
        operands: &[(&TensorType, Option<ConstValue>)],
        result: &TensorType,
    ) -> Option<ConstValue> {
        let shape = small(result)?;
        if op.has_memory() {
            return None;
        }
        let follow = ConstEvaluator {
            op,
            operands,
            shape: &shape,
        };
        follow.sizes().or_else(|| follow.constants())
    }
}

/// Shape of a tensor that is small enough to be evaluated.
fn small(ty: &TensorType) -> Option<Vec<usize>> {
    let shape = ty.shape.iter().map(Dim::as_const);
    let shape = shape.collect::<Option<Vec<usize>>>()?;
    let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    (elements <= MAX_ELEMENTS).then_some(shape)
}

struct ConstEvaluator<'a> {
    op: &'a Op,
    operands: &'a [(&'a TensorType, Option<ConstValue>)],
    shape: &'a [usize],
}

impl ConstEvaluator<'_> {
    /// Evaluates an op on concrete operands.
    fn constants(&self) -> Option<ConstValue> {
        let symbolic = match self.op {
            Op::Range(op) => op.start.as_number().is_none(),
            Op::Size(op) => op.value.as_number().is_none(),
            Op::Slice(op) => op.start.as_number().is_none(),
            _ => false,
        };
        if symbolic {
            return None;
        }
        let value = |(ty, known): &(&TensorType, Option<ConstValue>)| {
            Some(Value {
                shape: small(ty)?,
                data: known.as_ref()?.constant(ty.dtype)?,
            })
        };
        let values = self.operands.iter().map(value);
        let values = values.collect::<Option<Vec<Value>>>()?;
        let values: Vec<&Value> = values.iter().collect();
        let result = self.op.evaluate(&values, self.shape, &Bindings::default());
        Some(ConstValue::from_data(result.ok()?.data))
    }

    /// Evaluates an op that moves, combines, compares or selects symbolic integers.
    fn sizes(&self) -> Option<ConstValue> {
        match self.op {
            Op::Size(op) => Some(ConstValue::Dims(vec![op.value])),
            Op::Cast(op) if op.to == DType::I64 || op.to == DType::I32 => {
                Some(ConstValue::Dims(self.list(0)?.to_vec()))
            }
            Op::Reshape(_) | Op::Permute(_) | Op::Expand(_) | Op::Concat(_) => {
                self.moved(self.operands.len())
            }
            Op::Slice(op) if op.start.as_number().is_some() => self.moved(1),
            Op::Gather(_) => self.moved(1),
            Op::Binary(Binary { function }) => {
                let pairs = self.broadcast(0)?.into_iter().zip(self.broadcast(1)?);
                let results = pairs.map(|(a, b)| combine(*function, a, b));
                Some(ConstValue::Dims(results.collect::<Option<_>>()?))
            }
            Op::Compare(Compare { function }) => {
                let pairs = self.broadcast(0)?.into_iter().zip(self.broadcast(1)?);
                let truths = pairs.map(|(a, b)| decide(*function, a, b));
                Some(ConstValue::Elements(Data::Bool(
                    truths.collect::<Option<_>>()?,
                )))
            }
            Op::Where(_) => {
                let (ty, known) = &self.operands[0];
                let condition = Value {
                    shape: small(ty)?,
                    data: known.as_ref()?.constant(DType::Bool)?,
                };
                let shape = self.shape.iter().map(|d| Dim::from(*d)).collect();
                let expand = Op::from(Expand { shape });
                let condition = expand.evaluate(&[&condition], self.shape, &Bindings::default());
                let condition = condition.ok()?;
                let either = self.broadcast(1)?.into_iter().zip(self.broadcast(2)?);
                let chosen = condition.as_bool()?.iter().zip(either);
                let chosen = chosen.map(|(c, (a, b))| if *c { a } else { b });
                Some(ConstValue::Dims(chosen.collect()))
            }
            _ => None,
        }
    }

    fn list(&self, operand: usize) -> Option<&[Dim]> {
        match self.operands.get(operand)?.1.as_ref()? {
            ConstValue::Dims(list) => Some(list),
            ConstValue::Elements(_) => None,
        }
    }

    /// Evaluates an op that only moves elements of its first `data` operands, by running it on element indices.
    fn moved(&self, data: usize) -> Option<ConstValue> {
        let mut all = vec![];
        let mut values = vec![];
        for (index, (ty, known)) in self.operands.iter().enumerate() {
            let shape = small(ty)?;
            let data = if index < data {
                let list = self.list(index)?;
                let first = all.len() as i64;
                all.extend_from_slice(list);
                Data::I64((first..first + list.len() as i64).collect())
            } else {
                known.as_ref()?.constant(ty.dtype)?
            };
            values.push(Value { shape, data });
        }
        let values: Vec<&Value> = values.iter().collect();
        let result = self.op.evaluate(&values, self.shape, &Bindings::default());
        let places = result.ok()?;
        let places = places.as_i64()?.iter();
        Some(ConstValue::Dims(
            places.map(|at| all[*at as usize]).collect(),
        ))
    }

    /// Elements of an operand, broadcast to the result's shape.
    fn broadcast(&self, operand: usize) -> Option<Vec<Dim>> {
        let (ty, known) = self.operands.get(operand)?;
        let shape = self.shape.iter().map(|d| Dim::from(*d)).collect();
        let follow = ConstEvaluator {
            op: &Op::from(Expand { shape }),
            operands: &[(*ty, known.clone())],
            shape: self.shape,
        };
        match follow.moved(1)? {
            ConstValue::Dims(list) => Some(list),
            ConstValue::Elements(_) => None,
        }
    }
}

/// Arithmetic on two symbolic integers; `None` if the result is not a polynomial of second degree.
fn combine(function: BinaryFunction, a: Dim, b: Dim) -> Option<Dim> {
    use BinaryFunction as B;
    if let (Some(a), Some(b)) = (a.as_number(), b.as_number()) {
        return function.apply_integer(a, b).ok().map(Dim::constant);
    }
    match function {
        B::Add => Some(a + b),
        B::Sub => Some(a - b),
        B::Mul => a.checked_mul(&b),
        B::Div | B::FloorDiv => a.checked_div(usize::try_from(b.as_number()?).ok()?),
        B::Mod => {
            a.checked_div(usize::try_from(b.as_number()?).ok()?)?;
            Some(Dim::from(0))
        }
        // Sizes are not negative, so a lower bound of at most zero has no effect.
        B::Max if b.as_number().is_some_and(|b| b <= 0) && a.is_nonnegative() => Some(a),
        B::Max if a.as_number().is_some_and(|a| a <= 0) && b.is_nonnegative() => Some(b),
        B::Min | B::Max if a == b => Some(a),
        _ => None,
    }
}

/// Compares two symbolic integers; `None` if the result depends on the dynamic sizes.
fn decide(function: CompareFunction, a: Dim, b: Dim) -> Option<bool> {
    use CompareFunction as C;
    if let Some(difference) = (a - b).as_number() {
        return Some(function.apply(difference, 0));
    }
    // A size is greater than every negative number.
    let above = |a: &Dim, b: &Dim| a.is_nonnegative() && b.as_number().is_some_and(|b| b < 0);
    let larger = match (above(&a, &b), above(&b, &a)) {
        (true, _) => true,
        (_, true) => false,
        _ => return None,
    };
    Some(match function {
        C::Eq => false,
        C::Ne => true,
        C::Gt | C::Ge => larger,
        C::Lt | C::Le => !larger,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowering::LoweringBuilder;
    use graph::TensorId;
    use graph::ops::{Gather, Range, Scalar, Size};

    fn sizes(emitter: &LoweringBuilder, id: TensorId) -> Option<Vec<Dim>> {
        match emitter.const_value(id)? {
            ConstValue::Dims(list) => Some(list),
            ConstValue::Elements(_) => None,
        }
    }

    /// `[T, 4]` as a tensor.
    fn shape(emitter: &mut LoweringBuilder, t: Dim) -> TensorId {
        let parts = [t, Dim::from(4)].map(|value| {
            let size = emitter.emit(Size { value }, &[]).unwrap();
            emitter.reshape(size, vec![Dim::from(1)]).unwrap()
        });
        emitter.concat(&parts, 0).unwrap()
    }

    #[test]
    fn sizes_are_followed_through_ops() {
        let mut e = LoweringBuilder::with_const_eval("g");
        let t = e.builder.symbol("T");
        let shape = shape(&mut e, t);
        assert_eq!(sizes(&e, shape), Some(vec![t, Dim::from(4)]));
        let three = e.scalar(Scalar::I64(3), DType::I64).unwrap();
        let product = e.binary(BinaryFunction::Mul, shape, three).unwrap();
        assert_eq!(sizes(&e, product), Some(vec![t * 3, Dim::from(12)]));
        let back = e.binary(BinaryFunction::Div, product, three).unwrap();
        assert_eq!(sizes(&e, back), Some(vec![t, Dim::from(4)]));
        let zero = e.scalar(Scalar::I64(0), DType::I64).unwrap();
        let first = e.emit(Gather { axis: 0 }, &[shape, zero]).unwrap();
        assert_eq!(sizes(&e, first), Some(vec![t]));
        // Exporters replace the -1 of a shape this way.
        let open = e.scalar(Scalar::I64(-1), DType::I64).unwrap();
        let is_open = e.compare(CompareFunction::Eq, shape, open).unwrap();
        let chosen = e.choose(is_open, three, shape).unwrap();
        assert_eq!(sizes(&e, chosen), Some(vec![t, Dim::from(4)]));
    }

    #[test]
    fn what_is_not_known_is_left_to_the_run() {
        let mut e = LoweringBuilder::with_const_eval("g");
        let t = e.builder.symbol("T");
        let shape = shape(&mut e, t);
        let half = e.scalar(Scalar::I64(2), DType::I64).unwrap();
        let halves = e.binary(BinaryFunction::Div, shape, half).unwrap();
        assert_eq!(sizes(&e, halves), None);
        let square = e.binary(BinaryFunction::Mul, shape, shape).unwrap();
        assert_eq!(
            sizes(&e, square),
            t.checked_mul(&t).map(|square| vec![square, Dim::from(16)])
        );
        let cube = e.binary(BinaryFunction::Mul, square, shape).unwrap();
        assert_eq!(sizes(&e, cube), None);
        let five = e.scalar(Scalar::I64(5), DType::I64).unwrap();
        let long = e.compare(CompareFunction::Gt, shape, five).unwrap();
        assert_eq!(e.const_value(long), None);
        let input = e.builder.input("x", DType::I64, [Dim::from(2)]);
        let sum = e.binary(BinaryFunction::Add, input, shape).unwrap();
        assert_eq!(e.const_value(sum), None);
    }

    #[test]
    fn constants_are_computed_once() {
        let mut e = LoweringBuilder::with_const_eval("g");
        let range = Range {
            start: Dim::from(2),
            step: 3,
            len: Dim::from(3),
            dtype: DType::I64,
        };
        let range = e.emit(range, &[]).unwrap();
        let real = e.cast(range, DType::F32).unwrap();
        let sum = e.with_number(BinaryFunction::Add, real, 0.5).unwrap();
        let known = e
            .const_value(sum)
            .and_then(|known| known.constant(DType::F32));
        assert_eq!(known, Some(Data::F32(vec![2.5, 5.5, 8.5])));
        assert!(e.builder.constant_bytes(sum).is_some());
    }
}
