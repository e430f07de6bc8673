//! Upper or lower triangle of a matrix (`triu`, `tril`).

use super::operands::{operands, require_unquantised};
use super::{BufferReuse, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::value::map_data;
use crate::{Bindings, Value};

/// `x` with zeros on one side of a diagonal of its last two axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Triangle {
    /// Keep the elements on and above the diagonal; otherwise those on and below it.
    pub upper: bool,
    /// Offset of the diagonal, where `column − row = diagonal`.
    pub diagonal: i64,
}

impl Triangle {
    /// Whether the element at this row and column is kept.
    pub fn keeps(&self, row: usize, column: usize) -> bool {
        let beyond = column as i64 - row as i64 - self.diagonal;
        if self.upper { beyond >= 0 } else { beyond <= 0 }
    }
}

impl OpDefinition for Triangle {
    fn name(&self) -> &'static str {
        "triangle"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let side = if self.upper { "upper" } else { "lower" };
        vec![side.to_owned(), format!("diagonal: {}", self.diagonal)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        require_unquantised("x", x)?;
        if x.shape.len() < 2 {
            return Err(format!("x has {} axes, must have two", x.shape.len()));
        }
        Ok(x.clone())
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(1))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let &[.., rows, columns] = shape else {
            return Err("x must have two axes".into());
        };
        let keep = |at: usize| self.keeps(at / columns % rows, at % columns);
        let data = map_data!(&inputs[0].data, x => {
            let elements = x.iter().enumerate();
            elements.map(|(at, x)| if keep(at) { *x } else { Default::default() }).collect()
        });
        let shape = shape.to_vec();
        Ok(Value { shape, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts() {
        let x = Value::i64([1, 2, 3], (1..7).collect());
        let run = |upper, diagonal| {
            let y = Triangle { upper, diagonal }.evaluate(&[&x], &[1, 2, 3], &Bindings::default());
            y.unwrap().as_i64().unwrap().to_vec()
        };
        assert_eq!(run(true, 0), [1, 2, 3, 0, 5, 6]);
        assert_eq!(run(true, 1), [0, 2, 3, 0, 0, 6]);
        assert_eq!(run(false, 0), [1, 0, 0, 4, 5, 0]);
        assert_eq!(run(false, -1), [0, 0, 0, 4, 0, 0]);
    }
}
