//! Rows of a table by index: embeddings, learned positions, and the rows whose logits are requested.

use super::OpDefinition;
use super::operands::{f32s, integers, operands, require_index};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `table[index]`: operands `table [N, D]` of any real type and `index [M]` i32 or i64; the result is f32 `[M, D]`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatherRows;

impl OpDefinition for GatherRows {
    fn name(&self) -> &'static str {
        "gather_rows"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [table, index] = operands(inputs)?;
        require_index("index", index)?;
        let (&[_, width], &[count]) = (&table.shape[..], &index.shape[..]) else {
            return Err("takes a table of two dimensions and an index of one".into());
        };
        if !table.dtype.is_real() {
            return Err(format!("the table is {}, must be a real type", table.dtype));
        }
        Ok(TensorType::f32([count, width]))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let (table, (rows, width)) = (f32s(&inputs[0])?, inputs[0].rows());
        let mut out = Vec::with_capacity(shape.iter().product());
        for i in integers(inputs[1])? {
            let row = usize::try_from(i).ok().filter(|r| *r < rows);
            let row = row.ok_or_else(|| format!("index {i} is outside a table of {rows} rows"))?;
            out.extend_from_slice(&table[row * width..][..width]);
        }
        Ok(Value::f32(shape, out))
    }
}
