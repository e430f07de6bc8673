//! From ONNX models to graphs: one rule for each op, no optimisation.

mod arithmetic;
mod attention;
mod cache;
mod call;
mod create;
mod decoder;
mod group_query_attention;
mod index;
mod matrix;
mod norm;
mod quantised;
mod reduce;
mod rotary;
mod shape;
mod symbols;
mod table;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Deref, DerefMut};

use graph::ops::Reshape;
use graph::{Dim, Graph, TensorId, Value};

use super::tensor::OnnxTensor;
use super::{Node, Onnx};
use crate::const_eval::{ConstValue, dim_as_i64};
use crate::error::ImportErrorDetail;
use crate::genai::SidecarFiles;
use crate::lowering::LoweringBuilder;
use crate::stored_type::StoredType;
use crate::{Artifact, Format, ImportError, ImportOptions, Method, ModelFacts};
use call::Call;

/// What a rule gives: the results in the order the op has them, or the reason there are none.
type Results = Result<Vec<TensorId>, String>;

/// Lowers one node.
type Rule = fn(&mut OnnxLowering<'_>, &Call<'_>) -> Results;

/// Whether there is a rule for an op.
pub(super) fn is_known(op: &str) -> bool {
    table::rule(op).is_some()
}

/// Turns a model into an artifact with one method, `forward`.
///
/// A model that attends over caches becomes the decoder that runners expect, unless the options ask for it as it is.
pub fn lower(
    file: Onnx,
    sidecars: SidecarFiles,
    options: &ImportOptions,
) -> Result<Artifact, ImportError> {
    let genai = sidecars.genai.as_ref();
    let found = match options.as_exported {
        true => None,
        false => super::decoder::names(&file, genai)?,
    };
    let (graph, facts) = match found {
        Some((names, caches)) => {
            let context = genai.and_then(|config| config.context_length);
            let decoder = super::decoder::find(&file, names, &caches)?;
            let graph = decoder::lower(&file, &decoder)?;
            let facts = decoder.facts(&graph, context)?;
            (graph, facts)
        }
        None => (lower_with(&file, &BTreeMap::new())?, ModelFacts::none()),
    };
    let name = Some(file.name.clone()).filter(|name| !name.is_empty());
    let architecture = genai.map_or("onnx", |config| &config.model_type[..]);
    Ok(Artifact {
        format: Format::Onnx,
        name,
        architecture: architecture.to_owned(),
        methods: vec![Method {
            name: "forward".into(),
            graph,
        }],
        facts,
        gguf: None,
        pt2: None,
        onnx: Some(file),
        sidecars,
    })
}

/// The model's graph with the inputs and outputs it was exported with, except that inputs in `fixed` always have these
/// values.
///
/// Inputs that decide shapes must be fixed: kvark only runs shapes that follow from the inputs' shapes.
pub fn lower_with(file: &Onnx, fixed: &BTreeMap<String, Value>) -> Result<Graph, ImportError> {
    check_known(file.nodes.iter())?;
    let mut lower = OnnxLowering::new(file);
    lower.inputs(fixed)?;
    lower.nodes()?;
    let outputs = lower.outputs()?;
    Ok(lower.emitter.builder.finish(&outputs)?)
}

/// There must be a rule for every node.
fn check_known<'a>(nodes: impl Iterator<Item = &'a Node>) -> Result<(), ImportError> {
    let unknown = super::unknown_ops(nodes).into_iter();
    let unknown: Vec<String> = unknown
        .map(|(op, node)| format!("{op} (node {node})"))
        .collect();
    match unknown.is_empty() {
        true => Ok(()),
        false => {
            let ops = unknown.join(", ");
            Err(ImportErrorDetail::UnknownOps { ops }.into())
        }
    }
}

/// Which nodes the outputs depend on.
fn live(file: &Onnx) -> Vec<bool> {
    let mut wanted: HashSet<&str> = file.outputs.iter().map(|port| &port.name[..]).collect();
    let mut live = vec![false; file.nodes.len()];
    for (node, live) in file.nodes.iter().zip(&mut live).rev() {
        *live = node.outputs.iter().any(|name| wanted.contains(&name[..]));
        if *live {
            wanted.extend(node.inputs.iter().map(|name| &name[..]));
        }
    }
    live
}

/// A model on its way to a graph.
pub(super) struct OnnxLowering<'a> {
    file: &'a Onnx,
    emitter: LoweringBuilder,
    /// Dynamic sizes by the file's names.
    symbols: BTreeMap<String, Dim>,
    /// Tensors by the file's names.
    values: HashMap<String, TensorId>,
    /// How the file would store them, where the graph's own type does not say.
    kinds: HashMap<String, StoredType>,
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
    fn new(file: &'a Onnx) -> OnnxLowering<'a> {
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

    /// Makes the graph's inputs, but for those that always have one value.
    fn inputs(&mut self, fixed: &BTreeMap<String, Value>) -> Result<(), ImportError> {
        let file = self.file;
        for port in &file.inputs {
            let wrong =
                |reason: String| ImportError::value(format!("input {:?}", port.name), reason);
            let kind = port
                .kind
                .ok_or_else(|| wrong("is no tensor of a type that kvark computes with".into()))?;
            let id = match fixed.get(&port.name) {
                Some(value) => {
                    let data = value.data.to_bytes();
                    let constant =
                        self.builder
                            .constant(&port.name, value.dtype(), &value.shape, data);
                    constant?
                }
                None => {
                    let shape = self.input_shape(port).map_err(wrong)?;
                    self.builder.input(&port.name, kind.dtype(), shape)
                }
            };
            self.kinds.insert(port.name.clone(), kind);
            self.values.insert(port.name.clone(), id);
        }
        Ok(())
    }

    /// Lowers every node that the outputs depend on.
    fn nodes(&mut self) -> Result<(), ImportError> {
        let file = self.file;
        for (node, live) in file.nodes.iter().zip(live(file)) {
            if live {
                self.node(node).map_err(|reason| {
                    let (node, op) = (node.label.clone(), node.op.clone());
                    ImportErrorDetail::Op { node, op, reason }
                })?;
            }
        }
        Ok(())
    }

    fn node(&mut self, node: &'a Node) -> Result<(), String> {
        let rule = table::rule(&node.op).ok_or("is not an op that kvark knows")?;
        let name = node.outputs.iter().find(|name| !name.is_empty());
        self.begin_node(name.map_or(&node.label[..], |name| name));
        let call = Call { node };
        let given = rule(self, &call)?;
        if node.outputs.len() > given.len() {
            let wanted = node.outputs.iter().skip(given.len());
            if wanted.into_iter().any(|name| !name.is_empty()) {
                let (given, wanted) = (given.len(), node.outputs.len());
                return Err(format!("gives {given} results, {wanted} are wanted"));
            }
        }
        let first = node.inputs.first().and_then(|name| self.kind_of(name));
        for (name, id) in node.outputs.iter().zip(given) {
            if name.is_empty() {
                continue;
            }
            if self.take_emitted(id) {
                self.builder.rename(id, name);
            }
            self.values.insert(name.clone(), id);
            // Most ops keep their first operand's type.
            if let Some(kind) = first.filter(|kind| kind.dtype() == self.dtype(id)) {
                self.kinds.entry(name.clone()).or_insert(kind);
            }
        }
        Ok(())
    }

    /// How the file would store a tensor's elements, as far as that is known.
    fn kind_of(&self, name: &str) -> Option<StoredType> {
        let stored = || self.file.tensors.get(name).map(|stored| stored.kind);
        self.kinds.get(name).copied().or_else(stored)
    }

    /// The tensor that the file calls `name`; weights come in when they are first asked for.
    fn value(&mut self, name: &str) -> Result<TensorId, String> {
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
    fn stored(&mut self, stored: &OnnxTensor) -> Result<TensorId, String> {
        let (dtype, data) = stored.computed()?;
        self.constant(dtype, &stored.shape, data)
    }

    /// The integers of a tensor that decides shapes.
    fn sizes(&self, id: TensorId) -> Result<Vec<Dim>, String> {
        match self.const_value(id) {
            Some(ConstValue::Dims(list)) => Ok(list),
            _ => Err("a shape depends on data, and kvark only runs shapes that follow from the inputs' shapes".into()),
        }
    }

    /// The integers of a tensor whose values are wanted as numbers.
    fn numbers(&self, id: TensorId) -> Result<Vec<i64>, String> {
        let numbers = self
            .sizes(id)?
            .iter()
            .map(dim_as_i64)
            .collect::<Option<_>>();
        numbers.ok_or_else(|| "a number depends on a dynamic size".into())
    }

    /// The tensors that the model gives back, under the names it has for them.
    fn outputs(&mut self) -> Result<Vec<TensorId>, ImportError> {
        let file = self.file;
        let mut ids: Vec<TensorId> = vec![];
        for port in &file.outputs {
            let wrong =
                |reason: String| ImportError::value(format!("output {:?}", port.name), reason);
            let mut id = self.value(&port.name).map_err(wrong)?;
            // An input, a constant or another output under a second name.
            if self.builder.name(id) != port.name {
                let shape = self.shape(id);
                id = self.builder.node(&port.name, Reshape { shape }, &[id])?;
            }
            ids.push(id);
        }
        if ids.is_empty() {
            return Err(ImportError::unsupported("a model that gives nothing back"));
        }
        Ok(ids)
    }
}
