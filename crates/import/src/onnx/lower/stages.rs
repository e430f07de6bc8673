//! Lowers a model in stages, each of which ends where a size, a branch or a trip count depends on data.

use std::collections::{BTreeMap, HashMap};

use base::{Bytes, DType};
use graph::{DataSized, Graph, TensorId, TensorType, Value};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use super::live;
use crate::const_eval::ConstValue;
use crate::error::{ImportError, ImportErrorDetail};
use crate::onnx::file::{Node, Onnx};
use crate::stages::{Cut, InputType, Source, Stage};
use crate::stored_type::StoredType;

/// Limit on the elements of operands that become constants because what a node computes of them is needed.
const MAX_KNOWN_ELEMENTS: usize = 4096;

/// Limit on the stages of a run.
const MAX_STAGES: usize = 256;

/// A value or results that a node's lowering needed before they can be known.
pub(super) enum Need {
    /// The elements of a tensor; inside a loop, where a name stands for other tensors in every iteration, or not.
    Elements { id: TensorId, in_loop: bool },
    /// The results of an op, by the name of the node's first result.
    Results {
        op: DataSized,
        operands: Vec<TensorId>,
        name: String,
    },
}

/// Where the lowering of a stage begins: a node, and what names stand for.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageStart {
    /// The first node.
    node: usize,
    /// The stages before.
    stages: usize,
    /// The names of the stage's inputs.
    inputs: Vec<String>,
    values: BTreeMap<String, Carried>,
    sequences: BTreeMap<String, Vec<Carried>>,
    kinds: HashMap<String, StoredType>,
    /// Results of ops of the first node that were computed before the stage.
    results: BTreeMap<String, Vec<Carried>>,
    /// Tensors inside the first node that became known before the stage.
    fixed: BTreeMap<String, Carried>,
}

/// A tensor that an earlier stage computed.
#[derive(Clone, Debug)]
enum Carried {
    /// An input of the stage.
    Input(usize),
    Constant(TensorType, Bytes),
}

impl StageStart {
    /// The start of a model.
    fn of_model(file: &Onnx) -> Result<StageStart, ImportError> {
        let mut start = StageStart::default();
        for (index, port) in file.inputs.iter().enumerate() {
            let kind = port.kind.ok_or_else(|| {
                let reason = "is not a tensor of a supported type";
                ImportError::value(format!("input {:?}", port.name), reason)
            })?;
            start.inputs.push(port.name.clone());
            start.kinds.insert(port.name.clone(), kind);
            let input = Carried::Input(index);
            start.values.insert(port.name.clone(), input);
        }
        Ok(start)
    }
}

/// Lowers a model from the start, or from the end of a stage, as far as sizes are known.
pub(in crate::onnx) fn lower_stage(
    file: &Onnx,
    from: Option<&StageStart>,
    inputs: &[InputType],
) -> Result<Stage, ImportError> {
    let of_model;
    let start = match from {
        Some(start) => start,
        None => {
            super::check_supported(file.nodes.iter())?;
            of_model = StageStart::of_model(file)?;
            &of_model
        }
    };
    // One graph for all counts is compiled once; where there is none, each count has its own.
    let counted = inputs.iter().any(|input| input.counted.is_some());
    let any = match counted {
        true => attempt(file, start, inputs, true).ok(),
        false => None,
    };
    match any {
        Some(stage) => Ok(stage),
        None => attempt(file, start, inputs, false),
    }
}

fn attempt(
    file: &Onnx,
    start: &StageStart,
    inputs: &[InputType],
    for_any_count: bool,
) -> Result<Stage, ImportError> {
    let mut lower = OnnxLowering::new(file);
    lower.reserve(start.inputs.iter().cloned());
    let builder = &mut lower.emitter.builder;
    let count = for_any_count.then(|| builder.symbol("n"));
    let ids = inputs.iter().zip(&start.inputs);
    let ids = ids.map(|(input, name)| input.add_to(builder, name, count));
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    lower.kinds = start.kinds.clone();
    lower.begin_node("kept");
    for (name, carried) in &start.values {
        let id = lower.carried(carried, &ids)?;
        lower.values.insert(name.clone(), id);
    }
    for (name, carried) in &start.fixed {
        let id = lower.carried(carried, &ids)?;
        lower.fixed.insert(name.clone(), id);
    }
    for (name, list) in &start.sequences {
        let list = lower.carried_list(list, &ids)?;
        lower.sequences.insert(name.clone(), list);
    }
    for (name, list) in &start.results {
        let list = lower.carried_list(list, &ids)?;
        lower.results.insert(name.clone(), list);
    }
    let live = live(file);
    for (at, node) in file.nodes.iter().enumerate().skip(start.node) {
        if !live[at] {
            continue;
        }
        if at > start.node {
            lower.results.clear();
            lower.fixed.clear();
        }
        let before = lower.builder.tensors();
        lower.need.take();
        if let Err(reason) = lower.node(node) {
            let ending = Ending {
                given: &ids,
                live: &live,
                node: at,
                before,
                stages: start.stages,
            };
            let ended = ending.end(lower, for_any_count);
            return ended.ok_or_else(|| node_error(node, reason))?;
        }
    }
    let outputs = lower.outputs()?;
    Ok(Stage {
        graph: Some(lower.emitter.builder.finish(&outputs)?),
        next: None,
        for_any_count,
    })
}

/// The error of a node.
pub(super) fn node_error(node: &Node, reason: String) -> ImportError {
    let (node, op) = (node.label.clone(), node.op.clone());
    ImportErrorDetail::Op { node, op, reason }.into()
}

impl OnnxLowering<'_> {
    /// The elements of a tensor that must be known; they end a stage if they depend on data.
    pub(super) fn known(&self, id: TensorId) -> Option<ConstValue> {
        let known = self.const_value(id);
        if known.is_none() {
            let in_loop = self.loop_depth > 0;
            self.need.set(Some(Need::Elements { id, in_loop }));
        }
        known
    }

    /// The results of an op that is computed between two stages.
    pub(super) fn between_stages(
        &mut self,
        call: &Call<'_>,
        op: DataSized,
        operands: Vec<TensorId>,
    ) -> Results {
        let reason = "its operand depends on data, and so would the size of its result";
        // A node of a loop's body has results of each iteration.
        if self.loop_depth > 0 {
            return Err(format!("{reason}, inside a loop"));
        }
        let name = call.node.outputs.iter().find(|name| !name.is_empty());
        let name = name.ok_or("has no result")?.clone();
        if let Some(results) = self.results.get(&name) {
            return Ok(results.clone());
        }
        let need = Need::Results { op, operands, name };
        self.need.set(Some(need));
        Err(reason.to_owned())
    }

    fn carried(&mut self, carried: &Carried, ids: &[TensorId]) -> Result<TensorId, ImportError> {
        match carried {
            Carried::Input(index) => Ok(ids[*index]),
            Carried::Constant(ty, bytes) => {
                let name = self.fresh_name();
                let shape = ty.dims(&Default::default()).expect("a constant's shape");
                let constant = self
                    .builder
                    .constant(&name, ty.dtype, &shape, bytes.clone());
                Ok(constant?)
            }
        }
    }

    fn carried_list(
        &mut self,
        list: &[Carried],
        ids: &[TensorId],
    ) -> Result<Vec<TensorId>, ImportError> {
        list.iter().map(|one| self.carried(one, ids)).collect()
    }
}

/// The end of a stage.
struct Ending<'a> {
    /// The stage's inputs.
    given: &'a [TensorId],
    /// The nodes that the model's outputs depend on.
    live: &'a [bool],
    /// The node that needs something that depends on data.
    node: usize,
    /// The number of tensors before its lowering began.
    before: usize,
    /// The stages before this one.
    stages: usize,
}

impl Ending<'_> {
    /// The stage; `None` if what the node needs cannot be computed before it.
    fn end(
        self,
        mut lower: OnnxLowering<'_>,
        for_any_count: bool,
    ) -> Option<Result<Stage, ImportError>> {
        let file = lower.file;
        let node = &file.nodes[self.node];
        let mut kept = Kept {
            given: self.given,
            sources: vec![],
            outputs: vec![],
            slots: HashMap::new(),
            names: vec![],
            known: vec![],
        };
        let mut start = StageStart {
            node: self.node,
            stages: self.stages + 1,
            ..StageStart::default()
        };
        if start.stages > MAX_STAGES {
            let reason = format!("needs more than {MAX_STAGES} stages whose sizes depend on data");
            return Some(Err(node_error(node, reason)));
        }
        let later = file.nodes.iter().zip(self.live).skip(self.node);
        let later = later.filter(|(_, live)| **live);
        let names = later.flat_map(|(node, _)| &node.inputs);
        for name in names.chain(file.outputs.iter().map(|port| &port.name)) {
            // Weights that were read already, and those that an output of the file renames, are read again.
            if let Some(id) = lower.values.get(name).copied()
                && id.0 < self.before as u32
                && !file.tensors.contains_key(name)
            {
                start.values.insert(name.clone(), kept.carry(&lower, id));
            } else if let Some(list) = lower.sequences.get(name) {
                let list = list.iter().map(|id| kept.carry(&lower, *id));
                start.sequences.insert(name.clone(), list.collect());
            }
        }
        for (name, id) in &lower.fixed {
            start.fixed.insert(name.clone(), kept.carry(&lower, *id));
        }
        for (name, list) in &lower.results {
            let list = list.iter().map(|id| kept.carry(&lower, *id));
            start.results.insert(name.clone(), list.collect());
        }
        let mut operands = vec![];
        let mut between = None;
        let mut results = 0;
        match lower.need.take()? {
            Need::Elements { id, .. } if id.0 < self.before as u32 => kept.know(&lower, id)?,
            Need::Elements { id, in_loop } => match lower.name_of(id) {
                Some(name) if !in_loop && !lower.fixed.contains_key(&name) => {
                    kept.know(&lower, id)?;
                    start.fixed.insert(name, kept.carry(&lower, id));
                }
                _ => self.know_operands(&lower, node, &mut kept)?,
            },
            Need::Results {
                op,
                operands: ids,
                name,
            } => {
                for id in ids {
                    operands.push(kept.operand(&lower, id)?);
                }
                results = op.counted_axes().len();
                start.results.insert(name, vec![]);
                between = Some(op);
            }
        }
        start.inputs = kept.names;
        let pending = start.results.iter_mut().find(|(_, list)| list.is_empty());
        if let Some((key, list)) = pending {
            for at in 0..results {
                list.push(Carried::Input(start.inputs.len()));
                start.inputs.push(format!("{key}#{at}"));
            }
        }
        start.kinds = std::mem::take(&mut lower.kinds);
        let graph: Option<Result<Graph, _>> =
            (!kept.outputs.is_empty()).then(|| lower.emitter.builder.finish(&kept.outputs));
        let graph = match graph.transpose() {
            Ok(graph) => graph,
            Err(error) => return Some(Err(error.into())),
        };
        Some(Ok(Stage {
            graph,
            next: Some(Cut {
                node: format!("{} ({})", node.label, node.op),
                op: between,
                operands,
                kept: kept.sources,
                known: kept.known,
                start,
            }),
            for_any_count,
        }))
    }

    /// Makes the small operands of a node known, because what it computes of them is needed.
    fn know_operands(
        &self,
        lower: &OnnxLowering<'_>,
        node: &Node,
        kept: &mut Kept<'_>,
    ) -> Option<()> {
        let mut found = None;
        for name in &node.inputs {
            let Some(id) = lower.values.get(name).copied() else {
                continue;
            };
            let size = |ty: &TensorType| {
                let shape = ty.dims(&Default::default())?;
                shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))
            };
            let elements = size(lower.builder.ty(id));
            let small = elements.is_some_and(|n| n <= MAX_KNOWN_ELEMENTS);
            if small && id.0 < self.before as u32 && kept.know(lower, id).is_some() {
                found = Some(());
            }
        }
        found
    }
}

impl OnnxLowering<'_> {
    /// The name that a tensor has in the file.
    fn name_of(&self, id: TensorId) -> Option<String> {
        let names = self.values.iter().filter(|(_, own)| **own == id);
        let names = names.map(|(name, _)| name).min();
        names.cloned()
    }
}

/// The tensors that a stage leaves to the next.
struct Kept<'a> {
    given: &'a [TensorId],
    /// Where the next stage's inputs are.
    sources: Vec<Source>,
    /// The graph's outputs.
    outputs: Vec<TensorId>,
    /// The next stage's input for a tensor.
    slots: HashMap<TensorId, usize>,
    names: Vec<String>,
    known: Vec<usize>,
}

impl Kept<'_> {
    /// The tensor as the next stage finds it.
    fn carry(&mut self, lower: &OnnxLowering<'_>, id: TensorId) -> Carried {
        if let Some(bytes) = lower.builder.constant_bytes(id) {
            return Carried::Constant(lower.builder.ty(id).clone(), bytes.clone());
        }
        if let Some(slot) = self.slots.get(&id) {
            return Carried::Input(*slot);
        }
        let source = self.source(id);
        let slot = self.sources.len();
        self.sources.push(source);
        self.names.push(lower.builder.name(id).to_owned());
        self.slots.insert(id, slot);
        // The next stage knows elements that are computed from sizes, because its sizes are numbers.
        if lower.const_value(id).is_some() {
            self.known.push(slot);
        }
        Carried::Input(slot)
    }

    /// Where a tensor that is no constant is at the end of the stage.
    fn source(&mut self, id: TensorId) -> Source {
        if let Some(index) = self.given.iter().position(|own| *own == id) {
            return Source::Given(index);
        }
        let at = self.outputs.iter().position(|own| *own == id);
        Source::Output(at.unwrap_or_else(|| {
            self.outputs.push(id);
            self.outputs.len() - 1
        }))
    }

    /// Makes the elements of a tensor known in the next stage; `None` if they are known already.
    fn know(&mut self, lower: &OnnxLowering<'_>, id: TensorId) -> Option<()> {
        let Carried::Input(slot) = self.carry(lower, id) else {
            return None;
        };
        if !self.known.contains(&slot) {
            self.known.push(slot);
        }
        Some(())
    }

    /// An operand of the op between the stages.
    fn operand(&mut self, lower: &OnnxLowering<'_>, id: TensorId) -> Option<Source> {
        let Some(bytes) = lower.builder.constant_bytes(id) else {
            return Some(self.source(id));
        };
        let ty = lower.builder.ty(id);
        let shape = ty.dims(&Default::default())?;
        let elements = shape.iter().product();
        let dtype = match ty.dtype {
            dtype if dtype.is_real() => DType::F32,
            dtype => dtype,
        };
        let data = graph::Data::from_bytes(ty.dtype, bytes, elements)?;
        debug_assert_eq!(data.dtype(), dtype);
        Some(Source::Constant(Value { shape, data }))
    }
}
