//! Access to a node's operands and attributes for lowering rules. Errors are reasons; the caller adds the node's name.

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

    /// Version of the op set that defines the op.
    pub(super) fn version(&self) -> i64 {
        self.node.version
    }

    /// The name of an operand; `None` if it is omitted.
    pub(super) fn name(&self, index: usize) -> Option<&'a str> {
        let name = self.node.inputs.get(index)?;
        Some(&name[..]).filter(|name| !name.is_empty())
    }

    /// The number of operands, including omitted ones before the last.
    pub(super) fn operands(&self) -> usize {
        self.node.inputs.len()
    }

    /// The number of results, including unused ones before the last.
    pub(super) fn results(&self) -> usize {
        self.node.outputs.len()
    }

    /// Whether the result with this index is used.
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
            Some(_) => Err(format!("attribute {name} is not an integer")),
        }
    }

    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64, String> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, String> {
        Ok(self.int_or(name, default.into())? != 0)
    }

    /// A non-negative integer attribute.
    pub(super) fn count(&self, name: &str) -> Result<Option<usize>, String> {
        let count = |n: i64| {
            usize::try_from(n).map_err(|_| format!("attribute {name} is {n}, must not be negative"))
        };
        self.int(name)?.map(count).transpose()
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f32>, String> {
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Float(x)) => Ok(Some(*x)),
            Some(_) => Err(format!("attribute {name} is not an f32")),
        }
    }

    pub(super) fn float_or(&self, name: &str, default: f32) -> Result<f32, String> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    pub(super) fn ints(&self, name: &str) -> Result<Option<&'a [i64]>, String> {
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Ints(list)) => Ok(Some(list)),
            Some(_) => Err(format!("attribute {name} is not a list of integers")),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        let wrong = || format!("attribute {name} is not a string");
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Text(bytes)) => {
                std::str::from_utf8(bytes).map(Some).map_err(|_| wrong())
            }
            Some(_) => Err(wrong()),
        }
    }

    pub(super) fn floats(&self, name: &str) -> Result<Option<&'a [f32]>, String> {
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Floats(list)) => Ok(Some(list)),
            Some(_) => Err(format!("attribute {name} is not a list of f32")),
        }
    }

    pub(super) fn texts(&self, name: &str) -> Result<Option<Vec<&'a str>>, String> {
        let wrong = || format!("attribute {name} is not a list of strings");
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Texts(list)) => {
                let list = list.iter().map(|bytes| std::str::from_utf8(bytes));
                list.collect::<Result<_, _>>()
                    .map(Some)
                    .map_err(|_| wrong())
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
    /// A required operand.
    pub(super) fn operand(&mut self, call: &Call<'_>, index: usize) -> Result<TensorId, String> {
        let id = self.maybe(call, index)?;
        id.ok_or_else(|| format!("has no operand {index}"))
    }

    /// An optional operand.
    pub(super) fn maybe(
        &mut self,
        call: &Call<'_>,
        index: usize,
    ) -> Result<Option<TensorId>, String> {
        call.name(index).map(|name| self.value(name)).transpose()
    }

    /// The stored type of an operand's elements.
    pub(super) fn operand_kind(&mut self, call: &Call<'_>, index: usize) -> Option<StoredType> {
        let name = call.name(index)?;
        if let Some(kind) = self.kind_of(name) {
            return Some(kind);
        }
        let id = self.value(name).ok()?;
        StoredType::of(self.dtype(id))
    }

    /// Records the stored type of the first result, if it is not that of the first operand.
    pub(super) fn set_kind(&mut self, call: &Call<'_>, kind: Option<StoredType>) {
        if let (Some(kind), Some(name)) = (kind, call.result(0)) {
            self.kinds.insert(name.to_owned(), kind);
        }
    }

    /// Records the stored type of a result.
    pub(super) fn set_kind_of(&mut self, call: &Call<'_>, result: usize, kind: StoredType) {
        if let Some(name) = call.result(result) {
            self.kinds.insert(name.to_owned(), kind);
        }
    }

    /// Integers that are an attribute in old opsets and an operand in new ones.
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
