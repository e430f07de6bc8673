//! A node's operands and attributes, as the rules ask for them. Errors are reasons; the caller adds the node's name.

use graph::TensorId;

use super::context::OnnxLowering;
use crate::onnx::file::Node;
use crate::onnx::schema::AttributeValue;
use crate::onnx::tensor::OnnxTensor;
use crate::stored_type::StoredType;

/// The node being lowered.
pub(super) struct Call<'a> {
    pub(super) node: &'a Node,
}

impl<'a> Call<'a> {
    /// The op's name without its domain.
    pub(super) fn op(&self) -> &'a str {
        let op = &self.node.op;
        op.rsplit_once("::").map_or(op, |(_, name)| name)
    }

    /// The version of the op's set.
    pub(super) fn version(&self) -> i64 {
        self.node.version
    }

    /// The name of an operand, `None` when it is left out.
    pub(super) fn name(&self, index: usize) -> Option<&'a str> {
        let name = self.node.inputs.get(index)?;
        Some(&name[..]).filter(|name| !name.is_empty())
    }

    /// How many operands are written down.
    pub(super) fn operands(&self) -> usize {
        self.node.inputs.len()
    }

    /// How many results are written down.
    pub(super) fn results(&self) -> usize {
        self.node.outputs.len()
    }

    /// Whether the result with this index is wanted.
    pub(super) fn wants(&self, index: usize) -> bool {
        self.node.outputs.get(index).is_some_and(|n| !n.is_empty())
    }

    /// The name of the result with this index.
    pub(super) fn result(&self, index: usize) -> Option<&'a str> {
        self.node.outputs.get(index).map(|name| &name[..])
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&'a AttributeValue> {
        let list = &self.node.attributes;
        list.iter().find(|a| a.name == name).map(|a| &a.value)
    }

    pub(super) fn int(&self, name: &str) -> Result<Option<i64>, String> {
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Int(n)) => Ok(Some(*n)),
            Some(_) => Err(format!("attribute {name} is no integer")),
        }
    }

    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64, String> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, String> {
        Ok(self.int_or(name, default.into())? != 0)
    }

    /// An attribute that counts something.
    pub(super) fn count(&self, name: &str) -> Result<Option<usize>, String> {
        let count = |n: i64| usize::try_from(n).map_err(|_| format!("attribute {name} is {n}"));
        self.int(name)?.map(count).transpose()
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f32>, String> {
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Float(x)) => Ok(Some(*x)),
            Some(_) => Err(format!("attribute {name} is no f32")),
        }
    }

    pub(super) fn float_or(&self, name: &str, default: f32) -> Result<f32, String> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    pub(super) fn ints(&self, name: &str) -> Result<Option<&'a [i64]>, String> {
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Ints(list)) => Ok(Some(list)),
            Some(_) => Err(format!("attribute {name} is no list of integers")),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        let wrong = || format!("attribute {name} is no text");
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Text(bytes)) => {
                std::str::from_utf8(bytes).map(Some).map_err(|_| wrong())
            }
            Some(_) => Err(wrong()),
        }
    }

    /// The tensor of an attribute.
    pub(super) fn stored(&self, name: &str) -> Option<&'a OnnxTensor> {
        let list = &self.node.tensors;
        list.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }
}

impl OnnxLowering<'_> {
    /// An operand that must be there.
    pub(super) fn operand(&mut self, call: &Call<'_>, index: usize) -> Result<TensorId, String> {
        let id = self.maybe(call, index)?;
        id.ok_or_else(|| format!("has no operand {index}"))
    }

    /// An operand that may be left out.
    pub(super) fn maybe(
        &mut self,
        call: &Call<'_>,
        index: usize,
    ) -> Result<Option<TensorId>, String> {
        call.name(index).map(|name| self.value(name)).transpose()
    }

    /// How the file would store an operand's elements.
    pub(super) fn operand_kind(&mut self, call: &Call<'_>, index: usize) -> Option<StoredType> {
        let name = call.name(index)?;
        if let Some(kind) = self.kind_of(name) {
            return Some(kind);
        }
        let id = self.value(name).ok()?;
        StoredType::of(self.dtype(id))
    }

    /// Integers that old versions have as an attribute and new ones as an operand.
    pub(super) fn ints_of(
        &mut self,
        call: &Call<'_>,
        attribute: &str,
        operand: usize,
    ) -> Result<Option<Vec<i64>>, String> {
        if let Some(list) = call.ints(attribute)? {
            return Ok(Some(list.to_vec()));
        }
        let id = self.maybe(call, operand)?;
        id.map(|id| self.numbers(id)).transpose()
    }
}
