//! State of lowering one model: its tensors, their stored types and dynamic sizes, by the file's names.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};

use graph::{Dim, TensorId};

use crate::const_eval::{ConstValue, dim_as_i64};
use crate::lowering::LoweringBuilder;
use crate::onnx::file::Onnx;
use crate::onnx::tensor::OnnxTensor;
use crate::stored_type::StoredType;

/// The results of a node in the op's order, or the reason why the node cannot be lowered.
pub(super) type Results = Result<Vec<TensorId>, String>;

/// A model on its way to a graph.
pub(in crate::onnx) struct OnnxLowering<'a> {
    pub(in crate::onnx) file: &'a Onnx,
    pub(in crate::onnx) emitter: LoweringBuilder,
    /// Dynamic sizes by the file's names.
    pub(in crate::onnx) symbols: BTreeMap<String, Dim>,
    /// Tensors by the file's names.
    pub(in crate::onnx) values: HashMap<String, TensorId>,
    /// How the file would store them, where the graph's own type does not say.
    pub(in crate::onnx) kinds: HashMap<String, StoredType>,
}

impl Deref for OnnxLowering<'_> {
    type Target = LoweringBuilder;

    fn deref(&self) -> &LoweringBuilder {
        &self.emitter
    }
}

impl DerefMut for OnnxLowering<'_> {
    fn deref_mut(&mut self) -> &mut LoweringBuilder {
        &mut self.emitter
    }
}

impl<'a> OnnxLowering<'a> {
    pub(in crate::onnx) fn new(file: &'a Onnx) -> OnnxLowering<'a> {
        let mut emitter = LoweringBuilder::with_const_eval("forward");
        let ports = file.inputs.iter().map(|port| &port.name);
        let names = ports.chain(file.tensors.keys());
        let made = file.nodes.iter().flat_map(|node| &node.outputs);
        emitter.reserve(names.chain(made).cloned());
        OnnxLowering {
            file,
            emitter,
            symbols: BTreeMap::new(),
            values: HashMap::new(),
            kinds: HashMap::new(),
        }
    }

    /// How the file would store a tensor's elements, as far as that is known.
    pub(in crate::onnx) fn kind_of(&self, name: &str) -> Option<StoredType> {
        let stored = || self.file.tensors.get(name).map(|stored| stored.kind);
        self.kinds.get(name).copied().or_else(stored)
    }

    /// The tensor that the file calls `name`; weights come in when they are first asked for.
    pub(in crate::onnx) fn value(&mut self, name: &str) -> Result<TensorId, String> {
        if let Some(id) = self.values.get(name) {
            return Ok(*id);
        }
        let file = self.file;
        let stored = file.tensors.get(name);
        let stored = stored.ok_or_else(|| format!("there is no tensor {name}"))?;
        let (dtype, data) = stored.computed()?;
        let constant = self.builder.constant(name, dtype, &stored.shape, data);
        let id = constant.map_err(|e| e.to_string())?;
        self.values.insert(name.to_owned(), id);
        Ok(id)
    }

    /// A constant with what a tensor of the file holds.
    pub(in crate::onnx) fn stored(&mut self, stored: &OnnxTensor) -> Result<TensorId, String> {
        let (dtype, data) = stored.computed()?;
        self.constant(dtype, &stored.shape, data)
    }

    /// The integers of a tensor that decides shapes.
    pub(in crate::onnx) fn sizes(&self, id: TensorId) -> Result<Vec<Dim>, String> {
        match self.const_value(id) {
            Some(ConstValue::Dims(list)) => Ok(list),
            _ => Err("a shape depends on data, and kvark only runs shapes that follow from the inputs' shapes".into()),
        }
    }

    /// The integers of a tensor whose values are wanted as numbers.
    pub(in crate::onnx) fn numbers(&self, id: TensorId) -> Result<Vec<i64>, String> {
        let numbers = self
            .sizes(id)?
            .iter()
            .map(dim_as_i64)
            .collect::<Option<_>>();
        numbers.ok_or_else(|| "a number depends on a dynamic size".into())
    }
}
