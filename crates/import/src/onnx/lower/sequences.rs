//! Sequences of tensors and optionals, whose lengths must be known at import time.

use base::{Bytes, DType};
use graph::Dim;
use graph::ops::Scalar;

use super::call::Call;
use super::context::OnnxLowering;
use super::control::{Bound, Operand};
use crate::lowering::LoweringBuilder;
use crate::onnx::file::Node;
use crate::stored_type::StoredType;

/// Limit on the tensors of a sequence.
const MAX_SEQUENCE: usize = 4096;

/// Whether an op makes or reads sequences or optionals.
pub(super) fn is_sequence_op(op: &str) -> bool {
    matches!(
        op,
        "SequenceEmpty"
            | "SequenceConstruct"
            | "SequenceInsert"
            | "SequenceErase"
            | "SequenceAt"
            | "SequenceLength"
            | "ConcatFromSequence"
            | "SplitToSequence"
            | "Optional"
            | "OptionalHasElement"
            | "OptionalGetElement"
    )
}

impl<'a> OnnxLowering<'a> {
    /// Lowers a node that makes or reads sequences; false if it is another one.
    pub(super) fn lower_sequence(&mut self, node: &'a Node) -> Result<bool, String> {
        let copies = node.op == "Identity"
            && node
                .inputs
                .first()
                .is_some_and(|name| self.sequences.contains_key(name));
        if !copies && !is_sequence_op(&node.op) {
            return Ok(false);
        }
        let call = Call { node };
        let result = match &node.op[..] {
            "SequenceEmpty" => sequence(vec![], None),
            "SequenceConstruct" => {
                let mut list = vec![];
                for index in 0..call.operands() {
                    list.push(self.operand(&call, index)?);
                }
                sequence(list, self.operand_kind(&call, 0))
            }
            "SequenceInsert" => {
                let mut list = self.sequence(&call, 0)?;
                let element = self.operand(&call, 1)?;
                let at = match call.name(2) {
                    None => list.len(),
                    Some(_) => self.place(&call, 2, list.len() + 1)?,
                };
                if list.len() == MAX_SEQUENCE {
                    return Err(format!(
                        "makes a sequence of more than {MAX_SEQUENCE} tensors"
                    ));
                }
                list.insert(at, element);
                sequence(list, self.operand_kind(&call, 1))
            }
            "SequenceErase" => {
                let mut list = self.sequence(&call, 0)?;
                let at = match call.name(1) {
                    None => list
                        .len()
                        .checked_sub(1)
                        .ok_or("erases from an empty sequence")?,
                    Some(_) => self.place(&call, 1, list.len())?,
                };
                list.remove(at);
                sequence(list, self.kind_of(&node.inputs[0]))
            }
            "SequenceAt" => {
                let list = self.sequence(&call, 0)?;
                let at = self.place(&call, 1, list.len())?;
                Bound {
                    operand: Operand::Tensor(list[at]),
                    kind: self.kind_of(&node.inputs[0]),
                }
            }
            "SequenceLength" => {
                let length = self.sequence(&call, 0)?.len() as i64;
                let length = self.constant(DType::I64, &[], Bytes::from_slice(&[length]))?;
                Bound {
                    operand: Operand::Tensor(length),
                    kind: Some(StoredType::I64),
                }
            }
            "ConcatFromSequence" => self.concat_from_sequence(&call)?,
            "SplitToSequence" => self.split_to_sequence(&call)?,
            // An optional without an operand states only a type.
            "Optional" if call.name(0).is_none() => {
                return Err("is empty, which is not supported".into());
            }
            "OptionalHasElement" => {
                let has = call.name(0).is_some();
                let has = self.scalar(Scalar::Bool(has), DType::Bool)?;
                Bound {
                    operand: Operand::Tensor(has),
                    kind: Some(StoredType::Bool),
                }
            }
            // `Identity`, `Optional` and `OptionalGetElement`.
            _ => {
                let name = call.name(0).ok_or("has no operand 0")?;
                self.bound(name)?
            }
        };
        if let Some(name) = node.outputs.first() {
            if let Operand::Tensor(id) = result.operand
                && self.loop_depth == 0
                && self.take_emitted(id)
            {
                self.builder.rename(id, name);
            }
            self.bind(name, result);
        }
        Ok(true)
    }

    /// The tensors of an operand that is a sequence.
    fn sequence(&self, call: &Call<'_>, index: usize) -> Result<Vec<graph::TensorId>, String> {
        let name = call
            .name(index)
            .ok_or_else(|| format!("has no operand {index}"))?;
        let list = self.sequences.get(name);
        Ok(list
            .ok_or_else(|| format!("{name} is not a sequence"))?
            .clone())
    }

    /// A constant position in a sequence of `len` places; negative ones count from the end.
    fn place(&mut self, call: &Call<'_>, index: usize, len: usize) -> Result<usize, String> {
        let id = self.operand(call, index)?;
        let [at] = self.numbers(id)?[..] else {
            return Err("its position must be a single integer".into());
        };
        let from_start = if at < 0 { at + len as i64 } else { at };
        let place = usize::try_from(from_start).ok().filter(|at| *at < len);
        place.ok_or_else(|| format!("position {at} is out of range for {len} places"))
    }

    fn concat_from_sequence(&mut self, call: &Call<'_>) -> Result<Bound, String> {
        let mut list = self.sequence(call, 0)?;
        let new = call.flag("new_axis", false)?;
        let first = *list.first().ok_or("joins an empty sequence")?;
        let axis = call.int("axis")?.ok_or("has no axis")?;
        let axis = LoweringBuilder::axis(axis, self.rank(first) + usize::from(new))?;
        if new {
            for element in &mut list {
                let mut shape = self.shape(*element);
                shape.insert(axis.min(shape.len()), Dim::from(1));
                *element = self.reshape(*element, shape)?;
            }
        }
        let joined = self.concat(&list, axis)?;
        Ok(Bound {
            operand: Operand::Tensor(joined),
            kind: call.name(0).and_then(|name| self.kind_of(name)),
        })
    }

    fn split_to_sequence(&mut self, call: &Call<'_>) -> Result<Bound, String> {
        let x = self.operand(call, 0)?;
        let axis = LoweringBuilder::axis(call.int_or("axis", 0)?, self.rank(x))?;
        let shape = self.shape(x);
        let size = shape.get(axis).and_then(Dim::as_const);
        let size = size.filter(|size| *size <= MAX_SEQUENCE);
        let size = size.ok_or("the axis that it splits must have a constant, small size")?;
        let mut keep = true;
        let parts: Vec<usize> = match self.maybe(call, 1)? {
            None => {
                keep = call.flag("keepdims", true)?;
                vec![1; size]
            }
            Some(id) => {
                let single = self.rank(id) == 0;
                let numbers = self.numbers(id)?.into_iter().map(usize::try_from);
                let numbers = numbers.collect::<Result<Vec<usize>, _>>();
                let numbers = numbers.map_err(|_| "has parts of negative size")?;
                match numbers[..] {
                    // Parts of one size; the last may be smaller.
                    [part] if single && part > 0 => {
                        let parts = (0..size).step_by(part);
                        parts.map(|start| part.min(size - start)).collect()
                    }
                    _ => numbers,
                }
            }
        };
        if parts
            .iter()
            .try_fold(0usize, |n, part| n.checked_add(*part))
            != Some(size)
        {
            return Err(format!("its parts do not add up to {size}"));
        }
        let (mut list, mut start) = (vec![], 0);
        for part in parts {
            let mut element = self.slice(x, axis, Dim::from(start), Dim::from(part))?;
            if !keep {
                let mut shape = self.shape(element);
                shape.remove(axis);
                element = self.reshape(element, shape)?;
            }
            list.push(element);
            start += part;
        }
        Ok(sequence(list, self.operand_kind(call, 0)))
    }
}

fn sequence(list: Vec<graph::TensorId>, kind: Option<StoredType>) -> Bound {
    Bound {
        operand: Operand::Sequence(list),
        kind,
    }
}
