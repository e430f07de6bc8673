//! The C of every node: one call, with the node's name and shape as a comment.

mod operands;

use crate::c_text::{StepSymbols, float};
use crate::error::{EmitError, EmitErrorKind};
use crate::kernels::{Kernels, activation, decoder, values};
use crate::names::Names;
use crate::plan::{ProgramKind, ProgramPlan};
use crate::weights::{Form, Weights};
use base::DType;
use cpu::PackedWeightKind;
use graph::ops::UnaryFunction;
use graph::ops::{self, Activation, BinaryFunction, BufferReuse, CompareFunction, Op};
use graph::plan::Place;
use graph::{Dim, Node, TensorId};
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
/// The most axes of a strided copy.
const MAX_AXES: usize = 4;

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
        for (index, node) in plan.graph.nodes().iter().enumerate() {
            calls.node(index, node).map_err(|reason| {
                EmitError::from(EmitErrorKind::Node {
                    node: plan.graph.node_name(node).to_owned(),
                    op: node.op.name(),
                    reason,
                })
            })?;
        }
        Ok(calls)
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
        let graph = self.plan.graph;
        let shape = &graph.tensor(node.output).ty.shape[..];
        let dtype = graph.tensor(node.output).ty.dtype;
        let (width, outer) = shape
            .split_last()
            .map_or((Dim::from(1), &[][..]), |(w, o)| (*w, o));
        let count = |this: &Self| this.product(shape);
        let need_f32 = |what: &str| match dtype {
            DType::F32 => Ok(()),
            other => Err(format!("{what} of {other}")),
        };
        match &node.op {
            Op::GatherRows(_) => self.gather_rows(node),
            Op::Linear(op) => self.linear(index, node, op),
            Op::RmsNorm(ops::RmsNorm { eps, .. }) | Op::LayerNorm(ops::LayerNorm { eps, .. }) => {
                self.kernels.add("norm");
                let bias = match node.inputs.get(2) {
                    Some(id) => self.floats(*id)?,
                    None => "NULL".to_owned(),
                };
                let (x, weight) = (self.floats(node.inputs[0])?, self.floats(node.inputs[1])?);
                let out = self.out(node)?;
                let (rows, width) = (self.product(outer)?, self.product(&[width])?);
                let eps = float(*eps);
                Ok(format!(
                    "k_norm({x}, {weight}, {bias}, {out}, {rows}, {width}, {eps})"
                ))
            }
            Op::Rope(op) => {
                self.kernels.add("rope");
                let rotated = graph.tensor(node.inputs[1]).ty.shape[1];
                let (x, table) = (self.floats(node.inputs[0])?, self.floats(node.inputs[1])?);
                let out = self.out(node)?;
                let dims: Vec<String> = [&shape[0], &shape[1], &shape[2], &rotated]
                    .into_iter()
                    .map(|dim| self.product(&[*dim]))
                    .collect::<Result<_, _>>()?;
                let interleaved = u8::from(op.layout == ops::RopeLayout::Interleaved);
                Ok(format!(
                    "k_rope({x}, {table}, {out}, {}, {interleaved})",
                    dims.join(", ")
                ))
            }
            Op::RopeTable(op) => {
                let positions = Place::Input {
                    index: 1,
                    offset: 0,
                };
                if !self.has_tokens() || self.place(node.inputs[0]) != positions {
                    return Err("its positions are computed".to_owned());
                }
                let form = Form::RopeTable {
                    positions: self.plan.context,
                    magnitude: op.magnitude,
                };
                let name = self.weight(node.inputs[1], form)?;
                let out = self.out(node)?;
                let width = self.product(&[width])?;
                Ok(format!(
                    "memcpy({out}, WF({name}) + position * {width}, {} * sizeof(float))",
                    count(self)?
                ))
            }
            Op::UpdateAndAttend(op) => {
                self.kernels.add("attend");
                let [q, k, v] = [0, 1, 2].map(|i| self.floats(node.inputs[i]));
                let (q, k, v) = (q?, k?, v?);
                let out = self.out(node)?;
                let (tokens, heads) = (self.product(&shape[..1])?, self.product(&shape[1..2])?);
                let layer = &self.plan.kv.layers.get(op.cache_id as usize);
                let layer = layer.ok_or("it has no cache")?;
                let window = layer.window.unwrap_or(0);
                let (scale, softcap) = (float(op.scale), float(op.softcap.unwrap_or(0.0)));
                Ok(format!(
                    "k_update_and_attend(kv_at(state, {}), {q}, {k}, {v}, {out}, {tokens}, {heads}, position, {window}, {scale}, {softcap})",
                    op.cache_id
                ))
            }
            Op::Attention(op) => self.attention(index, node, op),
            Op::Binary(op) => {
                need_f32("arithmetic")?;
                self.binary(node, op.function)
            }
            Op::Unary(ops::Unary {
                function: UnaryFunction::Activation(function),
            }) => {
                let function = self.activation(*function);
                let (x, out) = (self.floats(node.inputs[0])?, self.out(node)?);
                Ok(format!("k_{function}({x}, {out}, {})", count(self)?))
            }
            Op::Unary(ops::Unary {
                function: function @ (UnaryFunction::RoundF16 | UnaryFunction::RoundBF16),
            }) => {
                self.kernels.add("round");
                let (x, out) = (self.floats(node.inputs[0])?, self.out(node)?);
                Ok(format!(
                    "k_{}({x}, {out}, {})",
                    function.name(),
                    count(self)?
                ))
            }
            Op::Gated(op) => {
                let function = self.activation(op.function);
                let (a, b) = (self.floats(node.inputs[0])?, self.floats(node.inputs[1])?);
                let out = self.out(node)?;
                Ok(format!(
                    "k_{function}_gated({a}, {b}, {out}, {})",
                    count(self)?
                ))
            }
            Op::Scale(ops::Scale { factor }) => self.with_number("k_scale", node, *factor),
            Op::SoftCap(ops::SoftCap { cap }) => self.with_number("k_soft_cap", node, *cap),
            Op::Permute(op) => {
                let from = &graph.tensor(node.inputs[0]).ty.shape;
                let steps = self.strides(from)?;
                let steps: Vec<String> = op.axes.iter().map(|axis| steps[*axis].clone()).collect();
                self.copy(
                    node,
                    node.inputs[0],
                    shape,
                    &steps,
                    "0",
                    (&self.strides(shape)?, "0"),
                )
            }
            Op::Expand(_) => {
                let from = &graph.tensor(node.inputs[0]).ty.shape;
                let own = self.strides(from)?;
                let missing = shape.len() - from.len();
                let step = |axis: usize| match axis.checked_sub(missing) {
                    Some(i) if from[i] == shape[axis] => own[i].clone(),
                    _ => "0".to_owned(),
                };
                let steps: Vec<String> = (0..shape.len()).map(step).collect();
                self.copy(
                    node,
                    node.inputs[0],
                    shape,
                    &steps,
                    "0",
                    (&self.strides(shape)?, "0"),
                )
            }
            Op::Slice(op) => {
                let from = &graph.tensor(node.inputs[0]).ty.shape;
                let mut steps = self.strides(from)?;
                let start = format!("({}) * ({})", self.product(&[op.start])?, steps[op.axis]);
                steps[op.axis] = format!("{} * {}", steps[op.axis], op.step);
                self.copy(
                    node,
                    node.inputs[0],
                    shape,
                    &steps,
                    &start,
                    (&self.strides(shape)?, "0"),
                )
            }
            Op::Concat(op) => {
                let to = self.strides(shape)?;
                let mut before: Vec<Dim> = Vec::new();
                let mut calls = Vec::new();
                for id in &node.inputs {
                    let part = &graph.tensor(*id).ty.shape;
                    let at = before.iter().fold(Dim::from(0), |sum, dim| sum + *dim);
                    let offset = format!("({}) * ({})", self.product(&[at])?, to[op.axis]);
                    calls.push(self.copy(
                        node,
                        *id,
                        part,
                        &self.strides(part)?,
                        "0",
                        (&to, &offset),
                    )?);
                    before.push(part[op.axis]);
                }
                Ok(calls.join(";\n    "))
            }
            Op::Windows(op) => self.windows(node, op),
            Op::Compare(op) => self.compare(node, op.function),
            Op::Unary(op) => Err(format!("there is no C of {:?}", op.function)),
            _ => Err("there is no C of this op".to_owned()),
        }
    }

    fn gather_rows(&mut self, node: &Node) -> Result<String, String> {
        let graph = self.plan.graph;
        let (table, index) = (node.inputs[0], node.inputs[1]);
        let ty = &graph.tensor(table).ty;
        let (
            Place::Input {
                index: input,
                offset: 0,
            },
            true,
        ) = (self.place(index), self.has_tokens())
        else {
            return Err("its indices are not tokens, positions or rows".to_owned());
        };
        if graph.tensor(index).ty.dtype != DType::I32 {
            return Err("its indices are not i32".to_owned());
        }
        let (rows, width) = (ty.shape[0], ty.shape[1]);
        if let Some(rows) = rows.as_const() {
            if input == 0 {
                self.table_rows = self.table_rows.min(rows);
            } else if input == 1 && rows < self.plan.context {
                let context = self.plan.context;
                return Err(format!(
                    "a context of {context} is longer than its table of {rows} positions"
                ));
            }
        }
        let out = self.out(node)?;
        let count = self.product(&graph.tensor(index).ty.shape)?;
        let index = INPUTS[input];
        if ty.dtype == DType::F32 {
            self.kernels.add("copy_rows");
            let table = self.floats(table)?;
            let width = self.product(&[width])?;
            return Ok(format!(
                "k_copy_rows({table}, {index}, {out}, {count}, {width})"
            ));
        }
        let decode = decoder(ty.dtype).ok_or_else(|| format!("a table of {}", ty.dtype))?;
        self.kernels.add("gather_rows");
        self.kernels.add(decode);
        let width = width.as_const().ok_or("its rows have no fixed width")?;
        let row = ty
            .dtype
            .row_bytes(width)
            .ok_or("its rows are not whole blocks")?;
        let name = self.weight(table, Form::Raw)?;
        let (len, bytes) = (ty.dtype.block_len(), ty.dtype.block_bytes());
        Ok(format!(
            "k_gather_rows(W({name}), {index}, {out}, {count}, {width}, {row}, {len}, {bytes}, k_{decode})"
        ))
    }

    fn linear(&mut self, index: usize, node: &Node, op: &ops::Linear) -> Result<String, String> {
        let graph = self.plan.graph;
        let id = node.inputs[1];
        let ty = &graph.tensor(id).ty;
        let dims = ty.dims(&Default::default());
        let Some(&[n, k]) = dims
            .as_deref()
            .filter(|_| graph.tensor(id).constant().is_some())
        else {
            return Err("its weight is computed".to_owned());
        };
        let x = self.floats(node.inputs[0])?;
        let bias = match node.inputs.get(2) {
            Some(id) => self.floats(*id)?,
            None => "NULL".to_owned(),
        };
        let out = self.out(node)?;
        let shape = &graph.tensor(node.output).ty.shape;
        let rows = self.product(&shape[..shape.len() - 1])?;
        let call = match PackedWeightKind::of(ty.dtype) {
            Some(kind) => {
                let name = self.weight(id, Form::Strips { n, k })?;
                let scratch = self.scratch(index, node)?;
                let operands =
                    format!("W({name}), {bias}, {x}, {out}, {scratch}, {rows}, {n}, {k}");
                match kind {
                    PackedWeightKind::RowScaled {
                        bits,
                        group,
                        centre,
                    } => {
                        self.kernels.add("linear_row_scaled");
                        let wide = u8::from(bits > 4);
                        format!(
                            "k_linear_row_scaled({operands}, (struct row_scaled){{{group}, {centre}, {wide}}})"
                        )
                    }
                    PackedWeightKind::ByteQuants { .. } => {
                        self.kernels.add("linear_byte_quants");
                        let table = values(ty.dtype).map(|(name, part)| {
                            self.kernels.add(part);
                            name
                        });
                        let table = table.as_deref().unwrap_or("NULL");
                        format!("k_linear_byte_quants({operands}, {table})")
                    }
                }
            }
            None if ty.dtype == DType::F32 => {
                self.kernels.add("linear_f32");
                let name = self.weight(id, Form::Panels { n, k })?;
                format!("k_linear_f32(WF({name}), {bias}, {x}, {out}, {rows}, {n}, {k})")
            }
            None if matches!(ty.dtype, DType::F16 | DType::BF16) => {
                self.kernels.add("linear_half");
                let name = self.weight(id, Form::Raw)?;
                let brain = u8::from(ty.dtype == DType::BF16);
                format!(
                    "k_linear_half((const uint16_t *)W({name}), {bias}, {x}, {out}, {rows}, {n}, {k}, {brain})"
                )
            }
            None => return Err(format!("a weight of {}", ty.dtype)),
        };
        match op.activation {
            None => Ok(call),
            Some(function) => {
                let function = self.activation(function);
                Ok(format!(
                    "{call};\n    k_{function}({out}, {out}, {rows} * {n})"
                ))
            }
        }
    }

    fn attention(
        &mut self,
        index: usize,
        node: &Node,
        op: &ops::Attention,
    ) -> Result<String, String> {
        self.kernels.add("attention");
        let graph = self.plan.graph;
        let shape = |i: usize| &graph.tensor(node.inputs[i]).ty.shape[..];
        let (q, k, v) = (shape(0), shape(1), shape(2));
        let leading = q.len() - 3;
        if q[..leading].iter().any(|dim| dim.as_const() != Some(1)) {
            return Err("it has a batch".to_owned());
        }
        let (heads_at, tokens_at) = match op.token_major {
            true => (leading + 1, leading),
            false => (leading, leading + 1),
        };
        let dims = [
            q[heads_at],
            k[heads_at],
            q[tokens_at],
            k[tokens_at],
            q[leading + 2],
            v[leading + 2],
        ];
        let dims: Vec<String> = dims
            .iter()
            .map(|dim| self.product(&[*dim]))
            .collect::<Result<_, _>>()?;
        let (mask, mask_head, mask_query) = match node.inputs.get(3) {
            None => ("NULL".to_owned(), "0".to_owned(), "0".to_owned()),
            Some(id) => {
                let ty = &graph.tensor(*id).ty;
                if ty.dtype != DType::Bool {
                    return Err(format!("a mask of {}", ty.dtype));
                }
                let [outer @ .., queries, keys] = &ty.shape[..] else {
                    return Err("a mask without queries and keys".to_owned());
                };
                if outer.iter().any(|dim| dim.as_const() != Some(1))
                    || *queries != q[tokens_at]
                    || *keys != k[tokens_at]
                {
                    return Err("a mask that differs between heads".to_owned());
                }
                (self.bytes(*id)?, "0".to_owned(), self.product(&[*keys])?)
            }
        };
        let [q, k, v] = [0, 1, 2].map(|i| self.floats(node.inputs[i]));
        let (q, k, v) = (q?, k?, v?);
        let out = self.out(node)?;
        let scratch = self.scratch(index, node)?;
        let (scale, softcap) = (float(op.scale), float(op.softcap.unwrap_or(0.0)));
        let (causal, token_major) = (u8::from(op.causal), u8::from(op.token_major));
        Ok(format!(
            "k_attention({q}, {k}, {v}, {mask}, {out}, (float *)({scratch}), {}, {scale}, {softcap}, {causal}, {token_major}, {mask_head}, {mask_query})",
            dims.join(", ")
        ))
    }

    fn binary(&mut self, node: &Node, function: BinaryFunction) -> Result<String, String> {
        let name = match function {
            BinaryFunction::Add => "ADD",
            BinaryFunction::Sub => "SUB",
            BinaryFunction::Mul => "MUL",
            BinaryFunction::Div => "DIV",
            BinaryFunction::Min => "MIN",
            BinaryFunction::Max => "MAX",
            other => return Err(format!("there is no C of {other:?}")),
        };
        self.kernels.add("binary");
        let graph = self.plan.graph;
        let out_shape = &graph.tensor(node.output).ty.shape[..];
        let operand = |id: TensorId| graph.tensor(id).ty.shape.clone();
        let (a, b) = (operand(node.inputs[0]), operand(node.inputs[1]));
        // The axis that divides the two loops, and the steps of both operands.
        let split = (0..=out_shape.len()).find_map(|split| {
            Some((
                split,
                steps(&a, out_shape, split)?,
                steps(&b, out_shape, split)?,
            ))
        });
        let (split, a_steps, b_steps) = split.ok_or("it broadcasts along an axis in the middle")?;
        let (outer, inner) = (
            self.product(&out_shape[..split])?,
            self.product(&out_shape[split..])?,
        );
        let steps = |[moves_outer, moves_inner]: [bool; 2]| {
            let outer = match (moves_outer, moves_inner) {
                (false, _) => "0".to_owned(),
                (true, true) => inner.clone(),
                (true, false) => "1".to_owned(),
            };
            format!("(struct steps){{{outer}, {}}}", u8::from(moves_inner))
        };
        let (a_steps, b_steps) = (steps(a_steps), steps(b_steps));
        let (a, b) = (self.floats(node.inputs[0])?, self.floats(node.inputs[1])?);
        let out = self.out(node)?;
        Ok(format!(
            "k_binary({a}, {b}, {out}, {outer}, {inner}, {a_steps}, {b_steps}, {name})"
        ))
    }

    fn compare(&mut self, node: &Node, function: CompareFunction) -> Result<String, String> {
        let graph = self.plan.graph;
        let ty = |i: usize| &graph.tensor(node.inputs[i]).ty;
        let one = Some(1);
        let shapes = (&ty(0).shape[..], &ty(1).shape[..]);
        let ([rows, across], [down, columns]) = shapes else {
            return Err("operands that are not a column and a row".to_owned());
        };
        if function != CompareFunction::Eq || ty(0).dtype != DType::I32 {
            return Err(format!("there is no C of {function:?} of {}", ty(0).dtype));
        }
        if across.as_const() != one || down.as_const() != one {
            return Err("operands that are not a column and a row".to_owned());
        }
        self.kernels.add("equal");
        let (rows, columns) = (self.product(&[*rows])?, self.product(&[*columns])?);
        let (a, b) = (
            self.integers(node.inputs[0])?,
            self.integers(node.inputs[1])?,
        );
        let name = self.buffer(node.output)?;
        Ok(format!(
            "k_equal({a}, {b}, state + {name}, {rows}, {columns})"
        ))
    }

    fn windows(&mut self, node: &Node, op: &ops::Windows) -> Result<String, String> {
        self.kernels.add("windows");
        let graph = self.plan.graph;
        let from = &graph.tensor(node.inputs[0]).ty.shape;
        let to = &graph.tensor(node.output).ty.shape;
        let outer = from.len() - op.axes.len();
        let mut axes = vec!["{1, 1, 1, 1, 0, 1}".to_owned(); 3 - op.axes.len()];
        for (i, axis) in op.axes.iter().enumerate() {
            let len = self.product(&[from[outer + i]])?;
            let places = self.product(&[to[op.batch_axes + i]])?;
            let ops::WindowAxis {
                size,
                stride,
                dilation,
                before,
                ..
            } = axis;
            axes.push(format!(
                "{{{len}, {size}, {stride}, {dilation}, {before}, {places}}}"
            ));
        }
        let batch = self.product(&from[..op.batch_axes])?;
        let inner = self.product(&from[op.batch_axes..outer])?;
        let (x, out) = (self.floats(node.inputs[0])?, self.out(node)?);
        Ok(format!(
            "k_windows({x}, {out}, {batch}, {inner}, (struct windows){{{{{}}}, {}}})",
            axes.join(", "),
            float(op.padding)
        ))
    }

    /// Whether the program's inputs are tokens, positions and rows.
    fn has_tokens(&self) -> bool {
        self.plan.kind() != ProgramKind::Tensors
    }

    fn with_number(&mut self, kernel: &str, node: &Node, number: f32) -> Result<String, String> {
        self.kernels.add("scale");
        let (x, out) = (self.floats(node.inputs[0])?, self.out(node)?);
        let count = self.product(&self.plan.graph.tensor(node.output).ty.shape)?;
        Ok(format!("{kernel}({x}, {out}, {count}, {})", float(number)))
    }

    /// A strided copy of `shape` elements.
    fn copy(
        &mut self,
        node: &Node,
        from: TensorId,
        shape: &[Dim],
        from_steps: &[String],
        start: &str,
        (to_steps, offset): (&[String], &str),
    ) -> Result<String, String> {
        let moving: Vec<usize> = (0..shape.len())
            .filter(|axis| shape[*axis].as_const() != Some(1))
            .collect();
        if moving.len() > MAX_AXES {
            return Err(format!(
                "it has {} axes, at most {MAX_AXES} can be copied",
                moving.len()
            ));
        }
        self.kernels.add("copy");
        let size = self.plan.graph.tensor(node.output).ty.dtype.block_bytes();
        let padded = |own: Vec<String>, with: &str| {
            let missing = std::iter::repeat_n(with.to_owned(), MAX_AXES - own.len());
            missing.chain(own).collect::<Vec<_>>().join(", ")
        };
        let dims = moving
            .iter()
            .map(|axis| self.product(&[shape[*axis]]))
            .collect::<Result<Vec<_>, _>>()?;
        let of_moving = |steps: &[String]| moving.iter().map(|axis| steps[*axis].clone()).collect();
        let (dims, from_steps, to_steps) = (
            padded(dims, "1"),
            padded(of_moving(from_steps), "0"),
            padded(of_moving(to_steps), "0"),
        );
        let from = self.bytes(from)?;
        let name = self.buffer(node.output)?;
        Ok(format!(
            "k_copy({from}, state + {name}, {size}, (struct view){{{{{dims}}}, {{{from_steps}}}, {{{to_steps}}}, {start}, {offset}}})"
        ))
    }

    /// The name of an activation, whose kernels are added.
    fn activation(&mut self, function: Activation) -> &'static str {
        let name = activation(function);
        self.kernels.add(&format!("activation_{name}"));
        name
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

/// Whether an operand moves along the axes before and after `split`; `None` if two loops cannot say it.
fn steps(operand: &[Dim], out: &[Dim], split: usize) -> Option<[bool; 2]> {
    let missing = out.len().checked_sub(operand.len())?;
    let dim = |axis: usize| match axis.checked_sub(missing) {
        Some(i) => operand[i],
        None => Dim::from(1),
    };
    let one = Dim::from(1);
    let side = |axes: std::ops::Range<usize>| {
        let moves: Vec<bool> = axes
            .filter(|axis| out[*axis] != one)
            .map(|axis| dim(axis) == out[axis])
            .collect();
        let first = moves.first().copied().unwrap_or(true);
        moves.iter().all(|moves| *moves == first).then_some(first)
    };
    Some([side(0..split)?, side(split..out.len())?])
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
