//! State of lowering one model: its tensors, their stored types and dynamic sizes, by the file's names.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};

use graph::{Dim, TensorId};

use super::stages::Need;
use crate::const_eval::ConstValue;
use crate::lowering::LoweringBuilder;
use crate::onnx::file::Onnx;
use crate::onnx::tensor::OnnxTensor;
use crate::stored_type::StoredType;

/// The results of a node in the op's order, or the reason why the node cannot be lowered.
pub(super) type Results = Result<Vec<TensorId>, String>;

/// State of lowering one model.
pub(in crate::onnx) struct OnnxLowering<'a> {
    pub(in crate::onnx) file: &'a Onnx,
    pub(in crate::onnx) emitter: LoweringBuilder,
    /// Dynamic sizes by the file's names.
    pub(in crate::onnx) symbols: BTreeMap<String, Dim>,
    /// Tensors by the file's names.
    pub(in crate::onnx) values: HashMap<String, TensorId>,
    /// Stored types of tensors, if they differ from the compute type.
    pub(in crate::onnx) kinds: HashMap<String, StoredType>,
    /// Sequences by the file's names: lists of tensors that are known at import time.
    pub(super) sequences: HashMap<String, Vec<TensorId>>,
    /// Nested loops around the node being lowered.
    pub(super) loop_depth: usize,
    /// Nodes of loop bodies that are lowered so far.
    pub(super) unrolled: usize,
    /// The value or the results that the node being lowered needs and that depend on data.
    pub(super) need: Cell<Option<Need>>,
    /// Results of ops that were computed before the stage, by the name of the node's first result.
    pub(super) results: HashMap<String, Vec<TensorId>>,
    /// Tensors of the node's branches that became known before the stage.
    pub(super) fixed: HashMap<String, TensorId>,
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
            sequences: HashMap::new(),
            loop_depth: 0,
            unrolled: 0,
            need: Cell::new(None),
            results: HashMap::new(),
            fixed: HashMap::new(),
        }
    }

    /// The stored type of a tensor, if it was recorded.
    pub(in crate::onnx) fn kind_of(&self, name: &str) -> Option<StoredType> {
        let stored = || self.file.tensors.get(name).map(|stored| stored.kind);
        self.kinds.get(name).copied().or_else(stored)
    }

    /// The tensor with this name in the file. Weights are added to the graph on first use.
    pub(in crate::onnx) fn value(&mut self, name: &str) -> Result<TensorId, String> {
        if let Some(id) = self.values.get(name) {
            return Ok(*id);
        }
        if self.sequences.contains_key(name) {
            return Err(format!("{name} is a sequence where a tensor is required"));
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

    /// A constant with the elements of a stored tensor.
    pub(in crate::onnx) fn stored(&mut self, stored: &OnnxTensor) -> Result<TensorId, String> {
        let (dtype, data) = stored.computed()?;
        self.constant(dtype, &stored.shape, data)
    }

    /// The elements of an integer tensor that determines shapes; they may depend on dynamic sizes.
    pub(in crate::onnx) fn sizes(&self, id: TensorId) -> Result<Vec<Dim>, String> {
        match self.known(id) {
            Some(ConstValue::Dims(list)) => Ok(list),
            _ => Err("a shape depends on data; only shapes that follow from the shapes of the inputs are supported".into()),
        }
    }

    /// The elements of an integer tensor that must be constants.
    pub(in crate::onnx) fn numbers(&self, id: TensorId) -> Result<Vec<i64>, String> {
        let numbers = self
            .sizes(id)?
            .iter()
            .map(Dim::as_number)
            .collect::<Option<_>>();
        numbers.ok_or_else(|| "depends on a dynamic size where a constant is required".into())
    }
}
