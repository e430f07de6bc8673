//! A matrix product with a weight that may be quantised.

use super::operands::{f32s, last_dim, require_f32, require_shape};
use super::{Activation, Dependence, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `activation(x · weightᵀ (+ bias))`: operands `x [.., K]` f32, `weight [N, K]` of any real type, and optionally
/// `bias [N]` f32.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Linear {
    /// Activation applied to the result, if any.
    pub activation: Option<Activation>,
}

impl OpDefinition for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let text = |a: Activation| format!("activation: {}", a.name());
        self.activation.map(text).into_iter().collect()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let (&[x, weight], bias) = inputs
            .split_at_checked(2)
            .ok_or("takes x, weight and optionally a bias")?
        else {
            return Err("takes x, weight and optionally a bias".into());
        };
        require_f32("x", x)?;
        let depth = last_dim("x", x)?;
        if !weight.dtype.is_real() {
            return Err(format!("weight is {}, must be a real type", weight.dtype));
        }
        let &[n, k] = &weight.shape[..] else {
            return Err(format!(
                "weight has {} dimensions, must have 2",
                weight.shape.len()
            ));
        };
        if k.as_const() != Some(depth) {
            return Err(format!("x has {depth} columns, weight has {k:?}"));
        }
        match bias {
            [] => {}
            [bias] => {
                require_f32("bias", bias)?;
                require_shape("bias", bias, &[n])?;
            }
            _ => return Err(format!("takes 2 or 3 operands, has {}", inputs.len())),
        }
        let mut shape = x.shape.clone();
        *shape.last_mut().expect("x has a last dimension") = n;
        Ok(TensorType::f32(shape))
    }

    fn dependence(&self) -> Dependence {
        Dependence::Row
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let (x, weight) = (f32s(&inputs[0])?, f32s(&inputs[1])?);
        let bias = inputs.get(2).map(f32s).transpose()?;
        let (rows, depth) = inputs[0].rows();
        let (n, _) = inputs[1].rows();
        let mut out = Vec::with_capacity(rows * n);
        for x in x.chunks(depth.max(1)).take(rows) {
            for (j, w) in weight.chunks(depth.max(1)).take(n).enumerate() {
                let dot: f64 = x.iter().zip(w).map(|(x, w)| *x as f64 * *w as f64).sum();
                let sum = dot as f32 + bias.map_or(0.0, |b| b[j]);
                out.push(self.activation.map_or(sum, |a| a.apply(sum)));
            }
        }
        Ok(Value::f32(shape, out))
    }
}
