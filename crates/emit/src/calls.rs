//! The C of every node: one call, with the node's name and shape as a comment.

mod attention;
mod elementwise;
mod linear;
mod operands;
mod rearrange;
mod windows;

use crate::c_text::StepSymbols;
use crate::error::{EmitError, EmitErrorKind};
use crate::kernels::Kernels;
use crate::names::Names;
use crate::plan::{ProgramKind, ProgramPlan};
use crate::weights::Weights;
use base::DType;
use graph::ops::{BufferReuse, Op};
use graph::passes::{FusedOp, NoFusion, fuse};
use graph::{Node, TensorId};
use std::collections::HashSet;

/// The inputs of a step, in the order of the graph's.
const INPUTS: [&str; 3] = ["tokens", "positions", "rows"];
/// The names of regions.
const RESERVED: [&str; 7] = [
    "A_KV_CACHE",
    "A_ARENA",
    "A_LOGITS",
    "A_TOKEN_IDS",
    "A_POSITIONS",
    "A_ROWS",
    "A_OUTPUT",
];

/// The calls of a program and what they use.
pub(crate) struct Calls<'a> {
    plan: &'a ProgramPlan<'a>,
    symbols: StepSymbols,
    pub(crate) names: Names,
    pub(crate) weights: Weights,
    pub(crate) kernels: Kernels,
    /// The body of the function that runs a step.
    pub(crate) body: String,
    /// The arena offsets that the calls name: name, offset in the arena, bytes, type and shape.
    pub(crate) buffers: Vec<(String, usize, usize, String)>,
    named: HashSet<TensorId>,
    /// Rows of the smallest table that token ids index.
    pub(crate) table_rows: usize,
}

impl<'a> Calls<'a> {
    /// Emits every node of the graph.
    pub(crate) fn new(plan: &'a ProgramPlan<'a>) -> Result<Calls<'a>, EmitError> {
        let mut calls = Calls {
            plan,
            symbols: step_symbols(plan)?,
            names: Names::reserving(&reserved(plan)),
            weights: Weights::default(),
            kernels: Kernels::default(),
            body: String::new(),
            buffers: Vec::new(),
            named: HashSet::new(),
            table_rows: usize::MAX,
        };
        // The C kernels have neither prologue nor epilogue.
        for op in fuse(plan.graph, &plan.memory.bindings, &NoFusion) {
            calls.op(&op)?;
        }
        Ok(calls)
    }

    /// Emits a call for every node of an op.
    fn op(&mut self, op: &FusedOp) -> Result<(), EmitError> {
        let graph = self.plan.graph;
        op.nodes.clone().try_for_each(|index| {
            let node = &graph.nodes()[index];
            self.node(index, node).map_err(|reason| {
                EmitError::from(EmitErrorKind::Node {
                    node: graph.node_name(node).to_owned(),
                    op: node.op.name(),
                    reason,
                })
            })
        })
    }

    fn node(&mut self, index: usize, node: &Node) -> Result<(), String> {
        if self.is_alias(node)? {
            return Ok(());
        }
        let call = self.call(index, node)?;
        let graph = self.plan.graph;
        let operands: Vec<&str> = node
            .inputs
            .iter()
            .map(|id| &*graph.tensor(*id).name)
            .collect();
        let comment = format!(
            "{index}: {} {} = {}({})",
            graph.node_name(node),
            self.type_text(node.output),
            node.op.name(),
            operands.join(", ")
        );
        let comment = comment.replace("*/", "* /");
        self.body += &format!("    /* {comment} */\n    {call}; STOP({index});\n");
        Ok(())
    }

    /// Whether a node's result is a view of its operand. Its offset must not depend on the size of the step.
    fn is_alias(&self, node: &Node) -> Result<bool, String> {
        let types: Vec<_> = node
            .inputs
            .iter()
            .map(|id| &self.plan.graph.tensor(*id).ty)
            .collect();
        let planned = &self.plan.memory.bindings;
        let BufferReuse::Alias { offset } = node.op.sharing(&types, planned)? else {
            return Ok(false);
        };
        let mut small = *planned;
        for symbol in [self.symbols.tokens, self.symbols.rows]
            .into_iter()
            .flatten()
        {
            small.0[symbol] = 1;
        }
        match node.op.sharing(&types, &small)? {
            BufferReuse::Alias { offset: other } if other == offset => Ok(true),
            _ => Err("where its result lies depends on the size of the step".to_owned()),
        }
    }

    fn call(&mut self, index: usize, node: &Node) -> Result<String, String> {
        match &node.op {
            Op::GatherRows(_) => self.gather_rows(node),
            Op::Linear(op) => self.linear(index, node, op),
            Op::RmsNorm(op) => self.norm(node, op.eps),
            Op::LayerNorm(op) => self.norm(node, op.eps),
            Op::Rope(op) => self.rope(node, op),
            Op::RopeTable(op) => self.rope_table(node, op),
            Op::UpdateAndAttend(op) => self.update_and_attend(node, op),
            Op::Attention(op) => self.attention(index, node, op),
            Op::Binary(op) => self.binary(node, op.function),
            Op::Unary(op) => self.unary(node, op.function),
            Op::Gated(op) => self.gated(node, op.function),
            Op::Scale(op) => self.with_number("k_scale", node, op.factor),
            Op::SoftCap(op) => self.with_number("k_soft_cap", node, op.cap),
            Op::Permute(op) => self.permute(node, op),
            Op::Expand(_) => self.expand(node),
            Op::Slice(op) => self.slice(node, op),
            Op::Concat(op) => self.concat(node, op),
            Op::Windows(op) => self.windows(node, op),
            Op::Conv(op) => self.conv(node, op),
            Op::Pool(op) => self.pool(node, op),
            Op::Compare(op) => self.compare(node, op.function),
            _ => Err("there is no C of this op".to_owned()),
        }
    }

    /// Whether the program's inputs are tokens, positions and rows.
    pub(super) fn has_tokens(&self) -> bool {
        self.plan.kind() != ProgramKind::Tensors
    }
}

/// The names of the regions of a program.
fn reserved(plan: &ProgramPlan<'_>) -> Vec<String> {
    let graph = plan.graph;
    let inputs = (0..graph.inputs().len()).map(|i| format!("A_INPUT_{i}"));
    let outputs = (0..graph.outputs().len()).map(|i| format!("A_OUTPUT_{i}"));
    let fixed = RESERVED.iter().map(|name| (*name).to_owned());
    fixed.chain(inputs).chain(outputs).collect()
}

/// The symbols of a step: that of the tokens, and that of the rows whose outputs are wanted.
fn step_symbols(plan: &ProgramPlan<'_>) -> Result<StepSymbols, EmitError> {
    let refuse = |reason: String| EmitError::from(EmitErrorKind::Graph(reason));
    let graph = plan.graph;
    if plan.kind() == ProgramKind::Tensors {
        for id in graph.inputs() {
            let tensor = graph.tensor(*id);
            let is_fixed = tensor.ty.shape.iter().all(|dim| dim.as_const().is_some());
            if tensor.ty.dtype != DType::F32 || !is_fixed {
                return Err(refuse(format!(
                    "its input {} is {}{:?}; inputs must be tokens, positions and rows, or f32 of fixed shapes",
                    tensor.name, tensor.ty.dtype, tensor.ty.shape
                )));
            }
        }
        if !graph.symbols().is_empty() {
            return Err(refuse("it has sizes that are not fixed".to_owned()));
        }
        return Ok(StepSymbols {
            tokens: None,
            rows: None,
        });
    }
    if graph.inputs().len() != INPUTS.len() {
        let count = graph.inputs().len();
        return Err(refuse(format!(
            "it has {count} inputs, a decoder or encoder has tokens, positions and rows"
        )));
    }
    let symbol = |input: usize| {
        let tensor = graph.tensor(graph.inputs()[input]);
        let dim = tensor
            .ty
            .shape
            .first()
            .filter(|_| tensor.ty.shape.len() == 1);
        let plain = tensor.ty.dtype == DType::I32;
        let dim = dim.filter(|_| plain);
        let dim =
            dim.ok_or_else(|| refuse(format!("its input {} is not a list of i32", tensor.name)))?;
        Ok::<_, EmitError>(dim.as_symbol().map(|symbol| symbol.0 as usize))
    };
    let (tokens, rows) = (symbol(0)?, symbol(2)?);
    let known = [tokens, rows];
    if (0..graph.symbols().len()).any(|s| !known.contains(&Some(s))) {
        return Err(refuse("it has sizes besides tokens and rows".to_owned()));
    }
    Ok(StepSymbols {
        tokens,
        rows: rows.filter(|rows| Some(*rows) != tokens),
    })
}
