//! Elementwise comparison.

use super::elementwise::{Broadcast, infer_alike, zip};
use super::operands::{operands, require_unquantised};
use super::{BufferReuse, Dependence, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Value};
use base::DType;
use std::cmp::Ordering;

/// Comparison function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the usual abbreviations")]
pub enum CompareFunction {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl CompareFunction {
    /// Every comparison.
    pub const ALL: [CompareFunction; 6] = [
        CompareFunction::Eq,
        CompareFunction::Ne,
        CompareFunction::Lt,
        CompareFunction::Le,
        CompareFunction::Gt,
        CompareFunction::Ge,
    ];

    /// Compares two elements. NaN is unequal to everything.
    pub fn apply<T: PartialOrd>(self, a: T, b: T) -> bool {
        self.holds(a.partial_cmp(&b))
    }

    fn holds(self, order: Option<Ordering>) -> bool {
        match self {
            CompareFunction::Eq => order == Some(Ordering::Equal),
            CompareFunction::Ne => order != Some(Ordering::Equal),
            CompareFunction::Lt => order == Some(Ordering::Less),
            CompareFunction::Le => order.is_some_and(Ordering::is_le),
            CompareFunction::Gt => order == Some(Ordering::Greater),
            CompareFunction::Ge => order.is_some_and(Ordering::is_ge),
        }
    }
}

/// `function(a, b)`, elementwise; operands of one type broadcast to each other, the result is bool.
#[derive(Clone, Debug, PartialEq)]
pub struct Compare {
    /// Comparison function.
    pub function: CompareFunction,
}

impl OpDefinition for Compare {
    fn name(&self) -> &'static str {
        match self.function {
            CompareFunction::Eq => "eq",
            CompareFunction::Ne => "ne",
            CompareFunction::Lt => "lt",
            CompareFunction::Le => "le",
            CompareFunction::Gt => "gt",
            CompareFunction::Ge => "ge",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [a, b] = operands(inputs)?;
        require_unquantised("a", a)?;
        Ok(TensorType {
            dtype: DType::Bool,
            ..infer_alike(a, b)?
        })
    }

    fn sharing(&self, inputs: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(match inputs[0].dtype {
            DType::Bool => BufferReuse::InPlace(2),
            _ => BufferReuse::None,
        })
    }

    fn dependence(&self) -> Dependence {
        Dependence::Element
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let walks = (
            &Broadcast::new(inputs[0], shape),
            &Broadcast::new(inputs[1], shape),
        );
        let f = self.function;
        let truths = match (&inputs[0].data, &inputs[1].data) {
            (Data::F32(a), Data::F32(b)) => zip((a, b), walks, |a, b| f.apply(a, b)),
            (Data::I32(a), Data::I32(b)) => zip((a, b), walks, |a, b| f.apply(a, b)),
            (Data::I64(a), Data::I64(b)) => zip((a, b), walks, |a, b| f.apply(a, b)),
            (Data::Bool(a), Data::Bool(b)) => zip((a, b), walks, |a, b| f.apply(a, b)),
            _ => return Err("its operands have different types".into()),
        };
        Ok(Value::bool(shape, truths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares() {
        let x = Value::i64([3, 1], vec![0, 1, 2]);
        let y = Value::i64([3], vec![0, 1, 2]);
        let ge = Compare {
            function: CompareFunction::Ge,
        };
        let lower = ge.evaluate(&[&x, &y], &[3, 3], &Bindings::default());
        let expect = [[1, 0, 0], [1, 1, 0], [1, 1, 1]].as_flattened();
        let expect = expect.iter().map(|x| *x == 1).collect();
        assert_eq!(lower.unwrap(), Value::bool([3, 3], expect));
        let nan = CompareFunction::ALL.map(|f| f.apply(f32::NAN, 1.0));
        assert_eq!(nan, [false, true, false, false, false, false]);
        let less = CompareFunction::ALL.map(|f| f.apply(1, 2));
        assert_eq!(less, [false, true, true, true, false, false]);
    }
}
