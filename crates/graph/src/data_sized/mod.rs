//! Ops whose results have a size that depends on the elements of their operands.
//!
//! A graph's sizes are known before it runs, so these are no ops of a graph: a runtime computes them between two graphs, of which the
//! first gives their operands and the second takes their results.

mod non_max_suppression;
mod non_zero;
mod unique;

pub use non_max_suppression::NonMaxSuppression;
pub use unique::Unique;

use crate::Value;

/// An op whose results have a size that depends on data.
#[derive(Clone, Debug, PartialEq)]
pub enum DataSized {
    /// The indices of elements that are not zero: `x` → `[rank of x, n]`, a column per element in row-major order.
    NonZero,
    /// The different elements or slices of a tensor.
    Unique(Unique),
    /// The boxes that remain when those that overlap better ones are left out.
    NonMaxSuppression(NonMaxSuppression),
}

impl DataSized {
    /// For each result, the axis whose size depends on data. All these axes of one op have the same size.
    pub fn counted_axes(&self) -> Vec<Option<usize>> {
        match self {
            DataSized::NonZero => vec![Some(1)],
            DataSized::Unique(op) => vec![Some(op.axis.unwrap_or(0)), Some(0), None, Some(0)],
            DataSized::NonMaxSuppression(_) => vec![Some(0)],
        }
    }

    /// The results, in the order of [`counted_axes`](DataSized::counted_axes).
    ///
    /// # Errors
    /// The reason why the operands do not fit.
    pub fn evaluate(&self, operands: &[&Value]) -> Result<Vec<Value>, String> {
        match (self, operands) {
            (DataSized::NonZero, [x]) => Ok(vec![non_zero::places(x)]),
            (DataSized::Unique(op), [x]) => op.evaluate(x),
            (DataSized::NonMaxSuppression(op), [boxes, scores]) => {
                Ok(vec![op.evaluate(boxes, scores)?])
            }
            (_, operands) => Err(format!("got {} operands", operands.len())),
        }
    }
}

#[cfg(test)]
mod tests;
