//! The C of operands: addresses, sizes and strides.

use super::{Calls, INPUTS};
use crate::weights::Form;
use base::DType;
use graph::plan::{Holds, Place};
use graph::{Dim, Node, TensorId, TensorKind};

impl Calls<'_> {
    pub(super) fn strides(&self, shape: &[Dim]) -> Result<Vec<String>, String> {
        (0..shape.len())
            .map(|axis| self.product(&shape[axis + 1..]))
            .collect()
    }

    pub(super) fn product(&self, dims: &[Dim]) -> Result<String, String> {
        self.symbols
            .product(dims)
            .ok_or_else(|| "a size overflows".to_owned())
    }

    pub(super) fn type_text(&self, id: TensorId) -> String {
        let ty = &self.plan.graph.tensor(id).ty;
        let dims = ty
            .shape
            .iter()
            .map(|dim| self.product(&[*dim]).unwrap_or_default());
        format!("{}[{}]", ty.dtype, dims.collect::<Vec<_>>().join(", "))
    }

    pub(super) fn place(&self, id: TensorId) -> Place {
        self.plan.memory.place(id)
    }

    pub(super) fn weight(&mut self, id: TensorId, form: Form) -> Result<String, String> {
        let placed = self
            .weights
            .place(self.plan.graph, &mut self.names, id, form);
        placed.ok_or_else(|| format!("{} is not a constant", self.plan.graph.tensor(id).name))
    }

    /// The scratch of a node.
    pub(super) fn scratch(&self, index: usize, node: &Node) -> Result<String, String> {
        let slot = self.plan.memory.scratch(index);
        let slot = slot.ok_or_else(|| format!("{} has no scratch", node.op.name()))?;
        Ok(format!("state + A_ARENA + {}", slot.offset))
    }

    /// The arena offset of a tensor, as a C expression: that of the buffer that holds it, which is named after the first tensor
    /// in it.
    pub(super) fn buffer(&mut self, id: TensorId) -> Result<String, String> {
        let graph = self.plan.graph;
        let tensor = graph.tensor(id);
        let (Place::Arena(slot), TensorKind::Value(node)) = (self.place(id), &tensor.kind) else {
            return Err(format!("{} is not in the arena", tensor.name));
        };
        let node = node.0 as usize;
        let buffers = self.plan.memory.buffers.iter();
        let found = buffers.filter_map(|buffer| match buffer.holds {
            Holds::Tensor(owner) => Some((buffer, owner)),
            Holds::Scratch(_) => None,
        });
        let mut found = found.filter(|(buffer, _)| {
            let bytes = buffer.slot.offset..buffer.slot.offset + buffer.slot.len;
            let lives = buffer.first <= node && buffer.last.is_none_or(|last| node <= last);
            lives && (bytes.contains(&slot.offset) || bytes.start == slot.offset)
        });
        let (buffer, owner) = found
            .next()
            .ok_or_else(|| format!("{} has no buffer", tensor.name))?;
        let name = self.names.get("A_", owner, &graph.tensor(owner).name);
        if self.named.insert(owner) {
            let text = self.type_text(owner);
            self.buffers
                .push((name.clone(), buffer.slot.offset, buffer.slot.len, text));
        }
        Ok(match slot.offset - buffer.slot.offset {
            0 => name,
            bytes => format!("{name} + {bytes}"),
        })
    }

    /// A tensor as bytes.
    pub(super) fn bytes(&mut self, id: TensorId) -> Result<String, String> {
        match self.place(id) {
            Place::Arena(_) => Ok(format!("state + {}", self.buffer(id)?)),
            Place::Constant { id, offset } => {
                let name = self.weight(id, Form::Raw)?;
                Ok(format!("weights + {name} + {offset}"))
            }
            Place::Input { index, offset } if !self.has_tokens() => {
                Ok(format!("state + A_INPUT_{index} + {offset}"))
            }
            Place::Input { index, .. } => Ok(format!("(const uint8_t *){}", INPUTS[index])),
        }
    }

    /// An f32 tensor that is read.
    pub(super) fn floats(&mut self, id: TensorId) -> Result<String, String> {
        let dtype = self.plan.graph.tensor(id).ty.dtype;
        if dtype != DType::F32 {
            return Err(format!("an operand of {dtype}"));
        }
        match self.place(id) {
            Place::Arena(_) => Ok(format!("F({})", self.buffer(id)?)),
            Place::Constant { id, offset } => {
                let name = self.weight(id, Form::Raw)?;
                Ok(match offset {
                    0 => format!("WF({name})"),
                    _ => format!("WF({name} + {offset})"),
                })
            }
            Place::Input { index, offset } if !self.has_tokens() => Ok(match offset {
                0 => format!("F(A_INPUT_{index})"),
                _ => format!("F(A_INPUT_{index} + {offset})"),
            }),
            Place::Input { .. } => Err("an input of f32".to_owned()),
        }
    }

    /// An i32 tensor that is read: an input of the step.
    pub(super) fn integers(&mut self, id: TensorId) -> Result<String, String> {
        match self.place(id) {
            Place::Input { index, offset: 0 } if self.has_tokens() => Ok(INPUTS[index].to_owned()),
            _ => Err("integers that are computed".to_owned()),
        }
    }

    /// The f32 result of a node.
    pub(super) fn out(&mut self, node: &Node) -> Result<String, String> {
        Ok(format!("F({})", self.buffer(node.output)?))
    }
}
