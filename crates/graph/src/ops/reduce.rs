//! Reductions over axes: sums, means, products, extremes and their indices.

use super::operands::{operands, require_axis, require_dtype};
use super::strided::{offsets, strides};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Dim, Value};
use base::DType;

/// Reduction function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceFunction {
    /// Sum.
    Sum,
    /// Mean; f32 only.
    Mean,
    /// Maximum; for bool, whether any element is true.
    Max,
    /// Minimum; for bool, whether all elements are true.
    Min,
    /// Product.
    Prod,
    /// Index of the first maximum, along one axis.
    ArgMax,
    /// Index of the first minimum, along one axis.
    ArgMin,
}

impl ReduceFunction {
    /// Every function.
    pub const ALL: [ReduceFunction; 7] = [
        ReduceFunction::Sum,
        ReduceFunction::Mean,
        ReduceFunction::Max,
        ReduceFunction::Min,
        ReduceFunction::Prod,
        ReduceFunction::ArgMax,
        ReduceFunction::ArgMin,
    ];

    /// Name in text form.
    pub fn name(self) -> &'static str {
        match self {
            ReduceFunction::Sum => "sum",
            ReduceFunction::Mean => "mean",
            ReduceFunction::Max => "max",
            ReduceFunction::Min => "min",
            ReduceFunction::Prod => "prod",
            ReduceFunction::ArgMax => "arg_max",
            ReduceFunction::ArgMin => "arg_min",
        }
    }

    /// Whether the result is an index.
    pub fn is_index(self) -> bool {
        matches!(self, ReduceFunction::ArgMax | ReduceFunction::ArgMin)
    }

    fn takes(self) -> &'static [DType] {
        match self {
            ReduceFunction::Mean => &[DType::F32],
            ReduceFunction::Max | ReduceFunction::Min => {
                &[DType::F32, DType::I32, DType::I64, DType::Bool]
            }
            _ => &[DType::F32, DType::I32, DType::I64],
        }
    }
}

/// `function` over `axes` of `x`.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// Reduction function.
    pub function: ReduceFunction,
    /// The reduced axes, in ascending order.
    pub axes: Vec<usize>,
    /// Whether reduced axes are kept with size 1.
    pub keep: bool,
}

impl OpDefinition for Reduce {
    fn name(&self) -> &'static str {
        "reduce"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mut list = vec![
            format!("function: {}", self.function.name()),
            format!("axes: {:?}", self.axes),
        ];
        if self.keep {
            list.push("keep".to_owned());
        }
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        require_dtype("x", x, self.function.takes())?;
        for axis in &self.axes {
            require_axis("x", x, *axis)?;
        }
        if !self.axes.is_sorted_by(|a, b| a < b) {
            return Err(format!("axes {:?} are not in ascending order", self.axes));
        }
        if self.function.is_index() && self.axes.len() != 1 {
            return Err(format!(
                "{} takes one axis, has {:?}",
                self.function.name(),
                self.axes
            ));
        }
        let axes = x.shape.iter().enumerate();
        let kept = axes.filter_map(|(axis, size)| match self.axes.contains(&axis) {
            false => Some(*size),
            true => self.keep.then_some(Dim::from(1)),
        });
        Ok(TensorType {
            dtype: if self.function.is_index() {
                DType::I64
            } else {
                x.dtype
            },
            shape: kept.collect(),
        })
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let groups = Groups::new(&inputs[0].shape, &self.axes);
        let needs_one = !matches!(
            self.function,
            ReduceFunction::Sum | ReduceFunction::Prod | ReduceFunction::Mean
        );
        if needs_one && groups.inner.contains(&0) {
            return Err(format!(
                "{} over zero elements is undefined",
                self.function.name()
            ));
        }
        let data = match (self.function, &inputs[0].data) {
            (ReduceFunction::Sum, Data::F32(x)) => {
                Data::F32(groups.map(x, |group| sum64(group) as f32))
            }
            (ReduceFunction::Mean, Data::F32(x)) => {
                let n: usize = groups.inner.iter().product();
                Data::F32(groups.map(x, |group| (sum64(group) / n as f64) as f32))
            }
            (ReduceFunction::Prod, Data::F32(x)) => {
                Data::F32(groups.map(x, |group| group.map(f64::from).product::<f64>() as f32))
            }
            (ReduceFunction::Sum, Data::I64(x)) => {
                Data::I64(groups.map(x, |group| group.fold(0, i64::wrapping_add)))
            }
            (ReduceFunction::Sum, Data::I32(x)) => {
                Data::I32(groups.map(x, |group| group.fold(0, i32::wrapping_add)))
            }
            (ReduceFunction::Prod, Data::I64(x)) => {
                Data::I64(groups.map(x, |group| group.fold(1, i64::wrapping_mul)))
            }
            (ReduceFunction::Prod, Data::I32(x)) => {
                Data::I32(groups.map(x, |group| group.fold(1, i32::wrapping_mul)))
            }
            (ReduceFunction::Max | ReduceFunction::Min, data) => {
                let best = self.best(data, &groups)?.into_iter();
                data.pick(best.map(|(at, _)| at))
            }
            (ReduceFunction::ArgMax | ReduceFunction::ArgMin, data) => {
                let best = self.best(data, &groups)?.into_iter();
                Data::I64(best.map(|(_, index)| index as i64).collect())
            }
            (function, data) => {
                return Err(format!(
                    "{} is not defined for {}",
                    function.name(),
                    data.dtype()
                ));
            }
        };
        let shape = shape.to_vec();
        Ok(Value { shape, data })
    }
}

impl Reduce {
    /// Offset of the extreme element of every group, and its index within the group.
    fn best(&self, data: &Data, groups: &Groups) -> Result<Vec<(usize, usize)>, String> {
        let largest = matches!(self.function, ReduceFunction::Max | ReduceFunction::ArgMax);
        fn find<T: Copy + PartialOrd>(
            x: &[T],
            groups: &Groups,
            largest: bool,
        ) -> Vec<(usize, usize)> {
            groups.fold(|best, at| match best {
                // NaN wins over every number, as in PyTorch.
                Some(old) => {
                    let (new, old) = (x[at], x[old]);
                    let ordered = old.partial_cmp(&old).is_some();
                    let beats = if largest { new > old } else { new < old };
                    ordered && (beats || new.partial_cmp(&new).is_none())
                }
                None => true,
            })
        }
        Ok(match data {
            Data::F32(x) => find(x, groups, largest),
            Data::I32(x) => find(x, groups, largest),
            Data::I64(x) => find(x, groups, largest),
            Data::Bool(x) => find(x, groups, largest),
        })
    }
}

fn sum64(group: impl Iterator<Item = f32>) -> f64 {
    group.map(f64::from).sum()
}

/// Offsets of the elements that reduce to each result element.
struct Groups {
    outer: Vec<usize>,
    outer_strides: Vec<usize>,
    inner: Vec<usize>,
    inner_strides: Vec<usize>,
}

impl Groups {
    fn new(shape: &[usize], axes: &[usize]) -> Groups {
        let steps = strides(shape);
        let select = |reduced: bool, from: &[usize]| -> Vec<usize> {
            let axes = (0..shape.len()).filter(|axis| axes.contains(axis) == reduced);
            axes.map(|axis| from[axis]).collect()
        };
        Groups {
            outer: select(false, shape),
            outer_strides: select(false, &steps),
            inner: select(true, shape),
            inner_strides: select(true, &steps),
        }
    }

    fn each(&self) -> impl Iterator<Item = impl Iterator<Item = usize>> {
        offsets(&self.outer, &self.outer_strides)
            .map(|start| offsets(&self.inner, &self.inner_strides).map(move |i| start + i))
    }

    fn map<T: Copy>(&self, x: &[T], function: impl Fn(&mut dyn Iterator<Item = T>) -> T) -> Vec<T> {
        self.each()
            .map(|group| function(&mut group.map(|at| x[at])))
            .collect()
    }

    /// The element of each group that `beats` every best before it.
    fn fold(&self, beats: impl Fn(Option<usize>, usize) -> bool) -> Vec<(usize, usize)> {
        let best = |group: &mut dyn Iterator<Item = usize>| {
            let mut best: Option<(usize, usize)> = None;
            for (index, at) in group.enumerate() {
                if beats(best.map(|(at, _)| at), at) {
                    best = Some((at, index));
                }
            }
            best.expect("groups are not empty")
        };
        self.each().map(|mut group| best(&mut group)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduces() {
        use ReduceFunction::*;
        let x = [1.0, 5.0, 3.0, -4.0, 2.0, 5.0];
        let f = Value::f32([2, 3], x.to_vec());
        let i = Value::i64([2, 3], x.map(|x| x as i64).to_vec());
        let run = |function, axes: &[usize], keep, x: &Value| {
            let op = Reduce {
                function,
                axes: axes.to_vec(),
                keep,
            };
            let ty = TensorType {
                dtype: x.dtype(),
                shape: x.shape.iter().map(|d| Dim::from(*d)).collect(),
            };
            let shape = op.infer(&[&ty])?.dims(&Bindings::default()).unwrap();
            op.evaluate(&[x], &shape, &Bindings::default())
        };
        for (function, rows) in [
            (Sum, [9.0, 3.0]),
            (Mean, [3.0, 1.0]),
            (Max, [5.0, 5.0]),
            (Min, [1.0, -4.0]),
            (Prod, [15.0, -40.0]),
        ] {
            assert_eq!(
                run(function, &[1], true, &f),
                Ok(Value::f32([2, 1], rows.to_vec()))
            );
            if function != Mean {
                let rows = rows.map(|x| x as i64).to_vec();
                assert_eq!(run(function, &[1], false, &i), Ok(Value::i64([2], rows)));
            }
        }
        assert_eq!(
            run(ArgMax, &[0], false, &f),
            Ok(Value::i64([3], vec![0, 0, 1]))
        );
        assert_eq!(
            run(ArgMin, &[1], true, &i),
            Ok(Value::i64([2, 1], vec![0, 0]))
        );
        assert_eq!(run(Sum, &[0, 1], false, &f), Ok(Value::f32([], vec![12.0])));
        assert_eq!(run(Sum, &[], false, &f), Ok(f.clone()));
        let any = Value::bool([2, 2], vec![false, true, false, false]);
        assert_eq!(
            run(Max, &[1], false, &any),
            Ok(Value::bool([2], vec![true, false]))
        );
        assert!(run(Mean, &[1], false, &i).is_err());
        assert!(run(ArgMax, &[0, 1], false, &f).is_err());
        assert!(run(Max, &[0], false, &Value::f32([0, 2], vec![])).is_err());
        let nan = Value::f32([3], vec![1.0, f32::NAN, 2.0]);
        assert_eq!(run(ArgMax, &[0], false, &nan), Ok(Value::i64([], vec![1])));
    }
}
