//! The indices of elements that are not zero.

use crate::{Data, Value};

/// The indices of elements that are not zero, i64 `[rank of x, n]`; of a scalar `[0, n]`.
pub(super) fn places(x: &Value) -> Value {
    fn set<T: Copy + Default + PartialEq>(list: &[T]) -> Vec<usize> {
        let all = list.iter().enumerate();
        let set = all.filter(|(_, element)| **element != T::default());
        set.map(|(at, _)| at).collect()
    }
    let found = match &x.data {
        Data::F32(list) => set(list),
        Data::I32(list) => set(list),
        Data::I64(list) => set(list),
        Data::Bool(list) => set(list),
    };
    let mut rows = Vec::with_capacity(x.shape.len() * found.len());
    for (axis, size) in x.shape.iter().enumerate() {
        let step: usize = x.shape[axis + 1..].iter().product();
        rows.extend(found.iter().map(|at| (at / step % size) as i64));
    }
    Value::i64([x.shape.len(), found.len()], rows)
}
