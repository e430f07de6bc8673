//! Control flow that is decided at import time: the branch of an `If`, and bodies with their operands.

use base::DType;
use graph::{Data, TensorId};

use super::context::OnnxLowering;
use super::loops;
use crate::onnx::file::{Branch, Node};
use crate::stored_type::StoredType;

/// Lowers a node with bodies.
type ControlRule = for<'a> fn(&mut OnnxLowering<'a>, &'a Node) -> Result<(), String>;

/// The rule for an op with bodies.
pub(super) fn rule(op: &str) -> Option<ControlRule> {
    Some(match op {
        "If" => branch,
        "Loop" => loops::unroll_loop,
        "Scan" => loops::unroll_scan,
        "ai.onnx.preview::FlexAttention" => super::flex_attention::attention,
        _ => return None,
    })
}

/// Limit on the nodes that the unrolled loops of a model add.
const MAX_UNROLLED_NODES: usize = 1 << 16;

/// The value that a name is bound to: a tensor, or a sequence of tensors.
#[derive(Clone, Debug)]
pub(super) enum Operand {
    Tensor(TensorId),
    Sequence(Vec<TensorId>),
}

/// An operand with the stored type of its elements.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub(super) operand: Operand,
    pub(super) kind: Option<StoredType>,
}

impl<'a> OnnxLowering<'a> {
    /// The value that a name is bound to.
    pub(super) fn bound(&mut self, name: &str) -> Result<Bound, String> {
        let operand = match self.sequences.get(name) {
            Some(list) => Operand::Sequence(list.clone()),
            None => Operand::Tensor(self.value(name)?),
        };
        let kind = self.kind_of(name);
        Ok(Bound { operand, kind })
    }

    /// Lets a name stand for an operand, instead of what it stood for before.
    pub(super) fn bind(&mut self, name: &str, bound: Bound) {
        if name.is_empty() {
            return;
        }
        self.values.remove(name);
        self.sequences.remove(name);
        match bound.operand {
            Operand::Tensor(id) => {
                self.values.insert(name.to_owned(), id);
            }
            Operand::Sequence(list) => {
                self.sequences.insert(name.to_owned(), list);
            }
        }
        match bound.kind {
            Some(kind) => self.kinds.insert(name.to_owned(), kind),
            None => self.kinds.remove(name),
        };
    }

    /// Lowers the nodes of a body, whose operands have been bound.
    pub(super) fn body(&mut self, body: &'a Branch) -> Result<(), String> {
        for inner in &body.nodes {
            if self.loop_depth > 0 {
                self.count_unrolled()?;
            }
            self.node(inner)
                .map_err(|reason| format!("{} ({}) {reason}", inner.label, inner.op))?;
        }
        Ok(())
    }

    /// Counts a node, or an iteration, that a loop adds.
    pub(super) fn count_unrolled(&mut self) -> Result<(), String> {
        self.unrolled += 1;
        match self.unrolled > MAX_UNROLLED_NODES {
            true => Err(format!(
                "is a loop that unrolls to more than {MAX_UNROLLED_NODES} nodes"
            )),
            false => Ok(()),
        }
    }

    /// A boolean of one element that is known at import time.
    pub(super) fn known_bool(&self, id: TensorId) -> Option<bool> {
        match self.known(id)?.constant(DType::Bool)? {
            Data::Bool(list) if list.len() == 1 => Some(list[0]),
            _ => None,
        }
    }
}

/// Lowers the branch of an `If` that its condition selects, which must be known at import time.
fn branch<'a>(lower: &mut OnnxLowering<'a>, node: &'a Node) -> Result<(), String> {
    let condition = node.inputs.first().ok_or("has no condition")?;
    let condition = lower.value(condition)?;
    let taken = lower.known_bool(condition);
    let taken = taken.ok_or("its condition depends on data; only constants are supported")?;
    let name = if taken { "then_branch" } else { "else_branch" };
    let branch = node.branches.iter().find(|branch| branch.name == name);
    let branch = branch.ok_or_else(|| format!("has no {name}"))?;
    lower.body(branch)?;
    if branch.outputs.len() < node.outputs.len() {
        return Err(format!("{name} has too few results"));
    }
    for (name, inner) in node.outputs.iter().zip(&branch.outputs) {
        let bound = lower.bound(inner)?;
        lower.bind(name, bound);
    }
    Ok(())
}
