//! From exported programs to graphs: one rule for each ATen op, no optimisation.

mod arguments;
mod arithmetic;
mod attention;
mod call;
mod create;
mod index;
mod matrix;
mod reduce;
mod shape;
mod table;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Deref, DerefMut};

use graph::{Dim, Graph, GraphBuilder, MAX_SYMBOLS, TensorId};

use super::schema::{self, Argument, InputSpec, Node, OutputSpec, SymInt, TensorMeta};
use super::tensor;
use super::{Program, Pt2, decoder};
use crate::error::ImportErrorDetail;
use crate::lowering::LoweringBuilder;
use crate::{Artifact, Format, ImportError, ImportOptions, Method};
use call::Call;

/// Lowers one node; the results in the order the op gives them, or the reason it cannot.
type Rule = fn(&mut Pt2Lowering<'_>, &Call<'_>) -> Result<Vec<TensorId>, String>;

/// Whether there is a rule for an op.
pub(super) fn is_known(op: &str) -> bool {
    is_silent(op) || find(op).is_some()
}

/// Turns a file into an artifact with a method for each program.
///
/// A program that attends over caches becomes the decoder that runners expect, unless the options ask for it as it is.
pub fn lower(file: Pt2, options: &ImportOptions) -> Result<Artifact, ImportError> {
    for program in &file.programs {
        let dependent = program.graph.nodes.iter();
        let dependent = dependent
            .zip(live(&program.graph))
            .filter(|(_, live)| *live);
        if let Some((node, _)) = dependent
            .into_iter()
            .find(|(n, _)| table::is_data_dependent(n.op()))
        {
            let (node, op) = (node.name().to_owned(), node.op().to_owned());
            let reason = "the shape of its result depends on data, and kvark only runs shapes that follow from the inputs' shapes".into();
            return Err(ImportErrorDetail::Op { node, op, reason }.into());
        }
    }
    let unknown: Vec<String> = file.programs.iter().flat_map(unknown).collect();
    if !unknown.is_empty() {
        let ops = unknown.join(", ");
        return Err(ImportErrorDetail::UnknownOps { ops }.into());
    }
    let mut methods = Vec::with_capacity(file.programs.len());
    let mut facts = None;
    for program in &file.programs {
        let name = program.name.clone();
        let graph = match decoder::shape(program).filter(|_| !options.as_exported) {
            Some(shape) => {
                let (graph, found) = decoder::lower(program, &shape, &file.extra)?;
                facts.get_or_insert(found);
                graph
            }
            None => plain(program)?,
        };
        methods.push(Method { name, graph });
    }
    let facts = match facts {
        Some(facts) => facts,
        None => decoder::bare_facts(&methods, &file.extra)?,
    };
    Ok(Artifact {
        format: Format::Pt2,
        name: Some(file.name.clone()).filter(|name| !name.is_empty()),
        architecture: file
            .extra
            .architecture()
            .unwrap_or_else(|| "torch.export".into()),
        methods,
        facts,
        gguf: None,
        pt2: Some(file),
        onnx: None,
        sidecars: Default::default(),
    })
}

fn unknown(program: &Program) -> Vec<String> {
    let list = program.unknown_ops().into_iter();
    list.map(|(op, node)| format!("{op} (node {node} of {})", program.name))
        .collect()
}

/// The program with the inputs and outputs it was exported with.
fn plain(program: &Program) -> Result<Graph, ImportError> {
    let mut lower = Pt2Lowering::new(program, &BTreeMap::new())?;
    for name in user_inputs(program)? {
        let meta = lower.input_meta(name)?;
        let (dtype, shape) = lower.input_type(name, meta)?;
        let id = lower.builder.input(name, dtype, shape);
        lower.values.insert(name.to_owned(), id);
    }
    let position = decoder::position(program);
    lower.position = position.and_then(|name| Some((name.to_owned(), *lower.values.get(name)?)));
    lower.nodes()?;
    let outputs = lower.outputs()?;
    Ok(lower.into_builder().finish(&outputs)?)
}

/// The names of the tensors that callers give.
pub(super) fn user_inputs(program: &Program) -> Result<Vec<&str>, ImportError> {
    let mut names = vec![];
    for input in &program.signature.input_specs {
        match input {
            InputSpec::UserInput {
                arg: Argument::AsTensor(tensor),
            } => names.push(&tensor.name[..]),
            InputSpec::UserInput { arg } => match arg.names().first() {
                Some(name) => {
                    let what = format!("input {name:?} of {}, which is no tensor,", program.name);
                    return Err(ImportError::unsupported(what));
                }
                // A number or None that was fixed at export.
                None => continue,
            },
            _ => continue,
        }
    }
    Ok(names)
}

/// The input or weight that `name` holds the elements of, in another form.
pub(super) fn origin<'a>(program: &'a Program, name: &'a str) -> &'a str {
    let mut name = name;
    for node in program.graph.nodes.iter().rev() {
        let gives = node
            .outputs
            .iter()
            .flat_map(Argument::names)
            .any(|n| n == name);
        let same = table::keeps_elements(node.op());
        let from = node
            .inputs
            .first()
            .and_then(|input| input.arg.names().first().copied());
        if let (true, true, Some(from)) = (gives, same, from) {
            name = from;
        }
    }
    name
}

/// Which nodes the outputs depend on.
pub(super) fn live(graph: &schema::Graph) -> Vec<bool> {
    let mut wanted: HashSet<&str> = graph.outputs.iter().flat_map(Argument::names).collect();
    let mut live = vec![false; graph.nodes.len()];
    for (node, live) in graph.nodes.iter().zip(&mut live).rev() {
        let results = node.outputs.iter().flat_map(Argument::names);
        let written = written(node);
        *live = results.chain(written).any(|name| wanted.contains(name));
        if *live {
            wanted.extend(node.inputs.iter().flat_map(|input| input.arg.names()));
        }
    }
    live
}

/// The tensor that a node writes into, for ops named like `aten.add_.Tensor`.
fn written(node: &Node) -> Option<&str> {
    in_place(node.op())?;
    node.inputs.first()?.arg.names().first().copied()
}

/// The op's name without the `_` of ops that write into their operand.
fn in_place(op: &str) -> Option<String> {
    let (name, overload) = op.rsplit_once('.')?;
    let name = name.strip_suffix('_').filter(|name| !name.ends_with('_'))?;
    Some(format!("{name}.{overload}"))
}

/// Nodes without effect on values: checks, and sizes, which the file has computed.
fn is_silent(op: &str) -> bool {
    op.starts_with("aten._assert_")
        || op.starts_with("aten.sym_")
        || op.starts_with("_operator.")
        || op.starts_with("aten.sym_constrain_range")
        || matches!(
            op,
            "math.trunc" | "torch.sym_float" | "aten._assert_async.msg"
        )
}

fn find(op: &str) -> Option<Rule> {
    table::rule(op).or_else(|| table::rule(&in_place(op)?))
}

/// A program on its way to a graph.
pub(super) struct Pt2Lowering<'a> {
    program: &'a Program,
    graph: &'a schema::Graph,
    emitter: LoweringBuilder,
    /// Dynamic sizes by the file's names.
    pub(super) symbols: BTreeMap<String, Dim>,
    /// Tensors by the file's names.
    pub(super) values: HashMap<String, TensorId>,
    /// Weights by where they are stored, and their shape.
    weights: HashMap<(usize, &'a [usize]), TensorId>,
    /// The input that holds positions, in the form that attention takes.
    pub(super) position: Option<(String, TensorId)>,
    /// Names that share memory with others: writing into them would change those.
    shared: HashSet<&'a str>,
}

impl Deref for Pt2Lowering<'_> {
    type Target = LoweringBuilder;

    fn deref(&self) -> &LoweringBuilder {
        &self.emitter
    }
}

impl DerefMut for Pt2Lowering<'_> {
    fn deref_mut(&mut self) -> &mut LoweringBuilder {
        &mut self.emitter
    }
}

impl<'a> Pt2Lowering<'a> {
    /// A program's graph with its symbols and nothing else.
    ///
    /// `names` are other names for some of the file's symbols.
    pub(super) fn new(
        program: &'a Program,
        names: &BTreeMap<String, &str>,
    ) -> Result<Pt2Lowering<'a>, ImportError> {
        let mut lower = Pt2Lowering {
            program,
            graph: &program.graph,
            emitter: LoweringBuilder::new(&program.name),
            symbols: BTreeMap::new(),
            values: HashMap::new(),
            weights: HashMap::new(),
            position: None,
            shared: HashSet::new(),
        };
        for name in user_inputs(program)? {
            let meta = lower.input_meta(name)?;
            for size in &meta.sizes {
                lower.declare(name, size, names)?;
            }
        }
        if let Some(changed) = mutated(&program.signature.output_specs) {
            let what = format!("{}, which writes into {changed:?},", program.name);
            return Err(ImportError::unsupported(what));
        }
        Ok(lower)
    }

    /// The graph built so far.
    pub(super) fn into_builder(self) -> GraphBuilder {
        self.emitter.builder
    }

    /// Makes a symbol of a dynamic size that inputs have.
    fn declare(
        &mut self,
        input: &str,
        size: &SymInt,
        names: &BTreeMap<String, &str>,
    ) -> Result<(), ImportError> {
        let SymInt::AsExpr(expr) = size else {
            return Ok(());
        };
        let affine = super::size_expr::SizeExpr::parse(&expr.expr_str);
        let affine =
            affine.map_err(|reason| self.wrong_input(input, format!("a size {reason}")))?;
        for name in affine.terms.keys() {
            if self.symbols.contains_key(name) {
                continue;
            }
            // One is left for the rows that decoders pick.
            if self.symbols.len() + 1 == MAX_SYMBOLS {
                let what = format!(
                    "{} with more than {} dynamic sizes",
                    self.program.name,
                    MAX_SYMBOLS - 1
                );
                return Err(ImportError::unsupported(what));
            }
            let (min, max) = self
                .program
                .ranges
                .get(name)
                .copied()
                .unwrap_or((0, i64::MAX));
            let bound = |n: i64| usize::try_from(n.max(0)).unwrap_or(usize::MAX);
            // What PyTorch writes for "no upper bound" is a large number.
            let max = if max >= i64::MAX / 2 {
                usize::MAX
            } else {
                bound(max)
            };
            let shown = names.get(name).copied().unwrap_or(name);
            let symbol = self.builder.symbol_in(shown, bound(min)..=max);
            self.symbols.insert(name.clone(), symbol);
        }
        Ok(())
    }

    pub(super) fn input_meta(&self, name: &str) -> Result<&'a TensorMeta, ImportError> {
        let missing = || self.wrong_input(name, "the file does not say what it is".into());
        self.graph.tensor_values.get(name).ok_or_else(missing)
    }

    pub(super) fn input_type(
        &self,
        name: &str,
        meta: &TensorMeta,
    ) -> Result<(base::DType, Vec<Dim>), ImportError> {
        let wrong = |reason| self.wrong_input(name, reason);
        let kind = tensor::kind(meta.dtype).map_err(wrong)?;
        if meta.layout != schema::STRIDED {
            return Err(wrong(format!(
                "has layout {}, which is not dense",
                meta.layout
            )));
        }
        let sizes = meta.sizes.iter().map(|size| self.sym_int(size));
        let sizes = sizes.collect::<Result<_, _>>().map_err(wrong)?;
        Ok((kind.dtype(), sizes))
    }

    fn wrong_input(&self, name: &str, reason: String) -> ImportError {
        let what = format!("input {name:?} of {}", self.program.name);
        ImportError::value(what, reason)
    }

    /// The tensor that the file calls `name`; weights come in when they are first asked for.
    fn value(&mut self, name: &str) -> Result<TensorId, String> {
        if let Some(id) = self.values.get(name) {
            return Ok(*id);
        }
        let stored = self.program.tensors.get(name);
        let stored = stored.ok_or_else(|| format!("there is no tensor {name}"))?;
        // Tied weights are stored once and become one constant.
        let place = (stored.data.as_ptr() as usize, &stored.shape[..]);
        let id = match self.weights.get(&place) {
            Some(id) => *id,
            None => {
                let (dtype, data) = stored.computed()?;
                let constant = self.builder.constant(name, dtype, &stored.shape, data);
                let id = constant.map_err(|e| e.to_string())?;
                self.weights.insert(place, id);
                id
            }
        };
        self.values.insert(name.to_owned(), id);
        Ok(id)
    }

    /// Lowers every node that the outputs depend on.
    pub(super) fn nodes(&mut self) -> Result<(), ImportError> {
        let graph = self.graph;
        for (node, live) in graph.nodes.iter().zip(live(graph)) {
            if live && !is_silent(node.op()) {
                self.lower_node(node).map_err(|reason| {
                    let (node, op) = (node.name().to_owned(), node.op().to_owned());
                    ImportErrorDetail::Op { node, op, reason }
                })?;
            }
        }
        Ok(())
    }

    fn lower_node(&mut self, node: &'a Node) -> Result<(), String> {
        let plain = in_place(node.op()).filter(|_| table::rule(node.op()).is_none());
        let op = plain.as_deref().unwrap_or(node.op());
        let rule = table::rule(op).ok_or("is not an op that kvark knows")?;
        self.begin_node(node.name());
        let call = Call {
            node,
            op: op.to_owned(),
        };
        let given = rule(self, &call)?;
        let names = call.results();
        if names.len() > given.len() {
            return Err(format!(
                "gives {} results, {} are wanted",
                given.len(),
                names.len()
            ));
        }
        for (index, (name, id)) in names.iter().zip(given).enumerate() {
            let id = self.settled(&call, index, id)?;
            self.own_name(id, name);
            self.values.insert((*name).to_owned(), id);
        }
        if plain.is_some()
            && let (Some(target), Some(result)) = (written(node), names.first())
        {
            if self.shared.contains(target) {
                return Err(format!(
                    "writes into {target}, which shares memory with other tensors: export with `run_decompositions()`"
                ));
            }
            let id = self.values[*result];
            self.values.insert(target.to_owned(), id);
        }
        if table::is_view(&call.op) {
            self.shared.extend(names.iter().copied());
            self.shared
                .extend(node.inputs.iter().flat_map(|input| input.arg.names()));
        }
        Ok(())
    }

    /// Gives what the current node made the name that the file has for it.
    pub(super) fn own_name(&mut self, id: TensorId, name: &str) {
        if self.take_emitted(id) && !self.values.contains_key(name) {
            self.builder.rename(id, name);
        }
    }

    /// A result in the type that the file says it has, if that is another; its shape must be the file's.
    fn settled(&mut self, call: &Call<'_>, index: usize, id: TensorId) -> Result<TensorId, String> {
        let dtype = self.result_dtype(call, index)?;
        let id = self.cast(id, dtype)?;
        match self.result_shape(call, index) {
            Ok(shape) if shape != self.shape(id) => Err(format!(
                "gives shape {:?}, and the file says {shape:?}",
                self.shape(id)
            )),
            Err(reason) => Err(reason),
            Ok(_) => Ok(id),
        }
    }

    /// The tensors that the program gives back.
    pub(super) fn outputs(&mut self) -> Result<Vec<TensorId>, ImportError> {
        let mut ids = vec![];
        for name in self.graph.outputs.iter().flat_map(Argument::names) {
            let wrong = |reason: String| {
                let what = format!("output {name:?} of {}", self.program.name);
                ImportError::value(what, reason)
            };
            if self.graph.sym_int_values.contains_key(name) {
                return Err(wrong("is a size, which kvark does not give back".into()));
            }
            let id = match self.values.get(name) {
                Some(id) => *id,
                None => return Err(wrong("is never computed".into())),
            };
            ids.push(id);
        }
        if ids.is_empty() {
            let what = format!("{}, which gives no tensor back,", self.program.name);
            return Err(ImportError::unsupported(what));
        }
        Ok(ids)
    }
}

/// A buffer or input that the program changes.
fn mutated(outputs: &[OutputSpec]) -> Option<&str> {
    outputs.iter().find_map(|output| match output {
        OutputSpec::BufferMutation { buffer_name: name }
        | OutputSpec::ParameterMutation {
            parameter_name: name,
        }
        | OutputSpec::UserInputMutation {
            user_input_name: name,
        } => Some(&name[..]),
        _ => None,
    })
}
