//! The rotary embedding applied to queries or keys.

use super::operands::{f32s, operands, require_f32};
use super::{BufferReuse, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// Pairing of the elements of a head that are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Element `2i` with `2i + 1`.
    Interleaved,
    /// Element `i` with `i + rotated/2`.
    Halves,
}

/// Rotates the first `R` elements of every head: operands `x [T, H, D]` and a [`RopeTable`](super::RopeTable)'s
/// `[T, R]`, `R ≤ D`; the other elements are unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Pairing of elements.
    pub layout: RopeLayout,
}

impl OpDefinition for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let layout = match self.layout {
            RopeLayout::Interleaved => "interleaved",
            RopeLayout::Halves => "halves",
        };
        vec![format!("layout: {layout}")]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x, table] = operands(inputs)?;
        require_f32("x", x)?;
        require_f32("table", table)?;
        let (&[tokens, _, dim], &[rows, rotated]) = (&x.shape[..], &table.shape[..]) else {
            return Err("takes x of three dimensions and a table of two".into());
        };
        match (dim.as_const(), rotated.as_const()) {
            (Some(d), Some(r)) if r <= d && tokens == rows => Ok(x.clone()),
            _ => Err(format!(
                "a table of shape {:?} does not match x of shape {:?}",
                table.shape, x.shape
            )),
        }
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(1))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let (mut out, table) = (f32s(&inputs[0])?.to_vec(), f32s(&inputs[1])?);
        let (heads, dim, rotated) = (shape[1], shape[2], inputs[1].shape[1]);
        let half = rotated / 2;
        for (row, head) in out.chunks_mut(dim.max(1)).enumerate() {
            let table = &table[row / heads * rotated..][..rotated];
            for i in 0..half {
                let (a, b) = match self.layout {
                    RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                    RopeLayout::Halves => (i, i + half),
                };
                let (cos, sin, x, y) = (table[i], table[half + i], head[a], head[b]);
                head[a] = x * cos - y * sin;
                head[b] = y * cos + x * sin;
            }
        }
        Ok(Value::f32(shape, out))
    }
}
