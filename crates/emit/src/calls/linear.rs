//! The C of matrix products with packed weights.

use super::Calls;
use crate::kernels::values;
use crate::weights::Form;
use base::DType;
use cpu::PackedWeightKind;
use graph::{Node, ops};

impl Calls<'_> {
    pub(super) fn linear(
        &mut self,
        index: usize,
        node: &Node,
        op: &ops::Linear,
    ) -> Result<String, String> {
        let graph = self.plan.graph;
        let id = node.inputs[1];
        let ty = &graph.tensor(id).ty;
        let dims = ty.dims(&Default::default());
        let Some(&[n, k]) = dims
            .as_deref()
            .filter(|_| graph.tensor(id).constant().is_some())
        else {
            return Err("its weight is computed".to_owned());
        };
        let x = self.floats(node.inputs[0])?;
        let bias = match node.inputs.get(2) {
            Some(id) => self.floats(*id)?,
            None => "NULL".to_owned(),
        };
        let out = self.out(node)?;
        let shape = &graph.tensor(node.output).ty.shape;
        let rows = self.product(&shape[..shape.len() - 1])?;
        let call = match PackedWeightKind::of(ty.dtype) {
            Some(kind) => {
                let name = self.weight(id, Form::QuantisedPanels { n, k })?;
                let scratch = self.scratch(index, node)?;
                let operands =
                    format!("W({name}), {bias}, {x}, {out}, {scratch}, {rows}, {n}, {k}");
                match kind {
                    PackedWeightKind::RowScaled {
                        bits,
                        group,
                        centre,
                    } => {
                        self.kernels.add("linear_row_scaled");
                        let upper = bits.saturating_sub(4);
                        format!(
                            "k_linear_row_scaled({operands}, (struct row_scaled){{{group}, {centre}, {upper}}})"
                        )
                    }
                    PackedWeightKind::ByteQuants { .. } => {
                        self.kernels.add("linear_byte_quants");
                        let table = values(ty.dtype).map(|(name, part)| {
                            self.kernels.add(part);
                            name
                        });
                        let table = table.as_deref().unwrap_or("NULL");
                        format!("k_linear_byte_quants({operands}, {table})")
                    }
                }
            }
            None if ty.dtype == DType::F32 => {
                self.kernels.add("linear_f32");
                let name = self.weight(id, Form::F32Panels { n, k })?;
                format!("k_linear_f32(WF({name}), {bias}, {x}, {out}, {rows}, {n}, {k})")
            }
            None if matches!(ty.dtype, DType::F16 | DType::BF16) => {
                self.kernels.add("linear_half");
                let name = self.weight(id, Form::Raw)?;
                let brain = u8::from(ty.dtype == DType::BF16);
                format!(
                    "k_linear_half((const uint16_t *)W({name}), {bias}, {x}, {out}, {rows}, {n}, {k}, {brain})"
                )
            }
            None => return Err(format!("a weight of {}", ty.dtype)),
        };
        match op.activation {
            None => Ok(call),
            Some(function) => {
                let function = self.activation(function);
                Ok(format!(
                    "{call};\n    k_{function}({out}, {out}, {rows} * {n})"
                ))
            }
        }
    }
}
