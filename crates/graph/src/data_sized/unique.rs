//! The different elements or slices of a tensor.

use std::cmp::Ordering;

use crate::ops::ArgSort;
use crate::value::map_data;
use crate::{Data, Value};

/// The different elements of `x`, or its different slices along an axis.
///
/// Four results: the elements or slices; the index at which each occurs first; for each element or slice of `x` the index of its equal
/// among the results; and how often each occurs. All NaN are equal, and greater than every number.
#[derive(Clone, Debug, PartialEq)]
pub struct Unique {
    /// The axis of the slices; `None` for elements of the flattened tensor.
    pub axis: Option<usize>,
    /// Whether the results are sorted, slices by their elements in order; else they are in the order of their first occurrence.
    pub sorted: bool,
}

impl Unique {
    pub(super) fn evaluate(&self, x: &Value) -> Result<Vec<Value>, String> {
        let shape = match self.axis {
            None => vec![x.len()],
            Some(axis) if axis < x.shape.len() => x.shape.clone(),
            Some(axis) => return Err(format!("axis {axis} is out of range")),
        };
        let axis = self.axis.unwrap_or(0);
        let outer: usize = shape[..axis].iter().product();
        let inner: usize = shape[axis + 1..].iter().product();
        let len = shape[axis];
        // Where the elements of a slice are, in the order in which they are compared.
        let elements = |slice: usize| {
            (0..outer * inner).map(move |at| (at / inner * len + slice) * inner + at % inner)
        };
        let compare = |a: &usize, b: &usize| match &x.data {
            Data::F32(list) => slice_order(list, elements(*a), elements(*b)),
            Data::I32(list) => slice_order(list, elements(*a), elements(*b)),
            Data::I64(list) => slice_order(list, elements(*a), elements(*b)),
            Data::Bool(list) => slice_order(list, elements(*a), elements(*b)),
        };
        let mut order: Vec<usize> = (0..len).collect();
        // Equal slices keep their order, so the first of a group is that which occurs first.
        order.sort_by(compare);
        let mut groups: Vec<Vec<usize>> = vec![];
        for slice in order {
            match groups.last_mut() {
                Some(group) if compare(&group[0], &slice) == Ordering::Equal => group.push(slice),
                _ => groups.push(vec![slice]),
            }
        }
        if !self.sorted {
            groups.sort_by_key(|group| group[0]);
        }
        let mut inverse = vec![0; len];
        for (at, group) in groups.iter().enumerate() {
            group.iter().for_each(|slice| inverse[*slice] = at as i64);
        }
        let count = groups.len();
        let mut picked = vec![0; outer * count * inner];
        for (at, group) in groups.iter().enumerate() {
            for (place, from) in elements(group[0]).enumerate() {
                picked[(place / inner * count + at) * inner + place % inner] = from;
            }
        }
        let mut unique = shape;
        unique[axis] = count;
        let list = |number: &dyn Fn(&Vec<usize>) -> usize| {
            let numbers = groups.iter().map(|group| number(group) as i64);
            Value::i64([count], numbers.collect())
        };
        Ok(vec![
            Value {
                shape: unique,
                data: map_data!(&x.data, from => picked.iter().map(|at| from[*at]).collect()),
            },
            list(&|group| group[0]),
            Value::i64([len], inverse),
            list(&|group| group.len()),
        ])
    }
}

/// The order of two slices, by their first elements that differ.
fn slice_order<T: PartialOrd>(
    list: &[T],
    a: impl Iterator<Item = usize>,
    b: impl Iterator<Item = usize>,
) -> Ordering {
    let mut orders = a.zip(b).map(|(a, b)| ArgSort::order(&list[a], &list[b]));
    let differs = orders.find(|order| *order != Ordering::Equal);
    differs.unwrap_or(Ordering::Equal)
}
