//! Linear layers: projections with their weights and biases, stored apart or fused.

use graph::ops::Linear;
use graph::{Dim, TensorId};

use super::Weight;
use super::build::TransformerBuilder;
use super::weights::{self, Weights};
use crate::error::ImportError;

/// A matrix with an optional bias, not yet in the graph.
pub(super) struct Projection {
    name: String,
    rows: usize,
    weight: Weight,
    bias: Option<Weight>,
}

impl Projection {
    /// Makes a vector a matrix of one row.
    pub(super) fn make_matrix(&mut self) {
        if let [columns] = self.weight.shape[..] {
            self.weight.shape = vec![1, columns];
        }
    }
}

impl TransformerBuilder<'_> {
    /// The named projections: separate tensors, or parts of `fused`, which contains them in this order.
    pub(super) fn projections<const N: usize>(
        &self,
        prefix: &str,
        fused: &str,
        parts: [(&str, usize); N],
    ) -> Result<[Projection; N], ImportError> {
        let all = parts.iter().map(|(_, rows)| rows).sum();
        let first = format!("{prefix}{}.weight", parts[0].0);
        let name = format!("{prefix}{fused}.weight");
        let own_name = parts.iter().all(|(part, _)| *part != fused);
        let whole = self.weights.optional(&name).filter(|weight| {
            let holds_all = own_name || weight.shape.first() == Some(&all);
            holds_all && self.weights.optional(&first).is_none()
        });
        let bias_name = format!("{prefix}{fused}.bias");
        let bias = whole
            .as_ref()
            .and_then(|_| self.weights.optional(&bias_name));

        let mut start = 0;
        let mut result = Vec::with_capacity(N);
        for (part, rows) in parts {
            let part = format!("{prefix}{part}");
            result.push(match &whole {
                None => self.projection(&part, rows)?,
                Some(weight) => {
                    let cut = |name: &str, whole| Weights::part(name, whole, start, rows, all);
                    Projection {
                        name: part,
                        rows,
                        weight: cut(&name, weight)?,
                        bias: bias.as_ref().map(|b| cut(&bias_name, b)).transpose()?,
                    }
                }
            });
            start += rows;
        }
        let result = result.try_into();
        Ok(result.unwrap_or_else(|_| unreachable!("one projection a part")))
    }

    pub(super) fn projection(&self, name: &str, rows: usize) -> Result<Projection, ImportError> {
        Ok(Projection {
            name: name.to_owned(),
            rows,
            weight: self.weights.required(&format!("{name}.weight"))?,
            bias: self.weights.optional(&format!("{name}.bias")),
        })
    }

    pub(super) fn linear(
        &mut self,
        projection: Projection,
        x: TensorId,
        bias_needed: bool,
    ) -> Result<TensorId, ImportError> {
        let name = projection.name;
        let depth = self.graph.ty(x).shape.last().and_then(Dim::as_const);
        let shape = [
            projection.rows,
            depth.expect("activations have a known width"),
        ];
        let weight = weights::matrix(
            &mut self.graph,
            &format!("{name}.weight"),
            projection.weight,
            shape,
        )?;
        let mut operands = vec![x, weight];
        let bias_name = format!("{name}.bias");
        match projection.bias {
            Some(bias) => operands.push(self.vector(&bias_name, &bias, projection.rows)?),
            None if bias_needed => return Err(ImportError::missing_tensor(&bias_name)),
            None => {}
        }
        self.node(&name, Linear::default(), &operands)
    }
}
