//! The C of ops that move elements.

use super::{Calls, INPUTS};
use crate::kernels::{decoder, scale_bytes};
use crate::weights::{Form, PanelCodes};
use base::DType;
use graph::ops::Op;
use graph::plan::Place;
use graph::{Dim, Node, TensorId, ops};

/// The most axes of a strided copy.
const MAX_AXES: usize = 4;

impl Calls<'_> {
    pub(super) fn gather_rows(&mut self, node: &Node) -> Result<String, String> {
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
        if let Some(call) = self.gather_panels(node, (index, &out, &count))? {
            return Ok(call);
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

    /// The call that gathers rows of a table that is in panels, because it is also the weight of a product: it is stored once then.
    fn gather_panels(
        &mut self,
        node: &Node,
        (index, out, count): (&str, &str, &str),
    ) -> Result<Option<String>, String> {
        let graph = self.plan.graph;
        let table = node.inputs[0];
        let is_product = |node: &Node| matches!(node.op, Op::Linear(_)) && node.inputs[1] == table;
        let ty = &graph.tensor(table).ty;
        let scales = ty.dtype.format().and_then(scale_bytes);
        let dims = ty.dims(&Default::default());
        let (Some(codes), Some(scales), Some(&[n, k]), true) = (
            PanelCodes::of(ty.dtype),
            scales,
            dims.as_deref(),
            graph.nodes().iter().any(is_product),
        ) else {
            return Ok(None);
        };
        let decode = format!("join_{}", ty.dtype);
        self.kernels.add("gather_panels");
        self.kernels.add(&decode);
        let panels = self.weight(table, Form::QuantisedPanels { n, k })?;
        let (start, bytes) = (scales.start, scales.len());
        let scales = self.weight(table, Form::Scales { start, bytes })?;
        let PanelCodes { stride, upper, .. } = codes;
        let (is_byte, pairs) = (u8::from(codes.is_byte), u8::from(codes.pairs));
        let len = ty.dtype.block_len();
        Ok(Some(format!(
            "k_gather_panels(W({panels}), W({scales}), {index}, {out}, {count}, {k}, \
             (struct panel_codes){{{stride}, {upper}, {is_byte}, {pairs}}}, {len}, {bytes}, k_{decode})"
        )))
    }

    pub(super) fn permute(&mut self, node: &Node, op: &ops::Permute) -> Result<String, String> {
        let graph = self.plan.graph;
        let shape = &graph.tensor(node.output).ty.shape[..];
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

    pub(super) fn expand(&mut self, node: &Node) -> Result<String, String> {
        let graph = self.plan.graph;
        let shape = &graph.tensor(node.output).ty.shape[..];
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

    pub(super) fn slice(&mut self, node: &Node, op: &ops::Slice) -> Result<String, String> {
        let graph = self.plan.graph;
        let shape = &graph.tensor(node.output).ty.shape[..];
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

    pub(super) fn concat(&mut self, node: &Node, op: &ops::Concat) -> Result<String, String> {
        let graph = self.plan.graph;
        let shape = &graph.tensor(node.output).ty.shape[..];
        let to = self.strides(shape)?;
        let mut before: Vec<Dim> = Vec::new();
        let mut calls = Vec::new();
        for id in &node.inputs {
            let part = &graph.tensor(*id).ty.shape;
            let at = before.iter().fold(Dim::from(0), |sum, dim| sum + *dim);
            let offset = format!("({}) * ({})", self.product(&[at])?, to[op.axis]);
            calls.push(self.copy(node, *id, part, &self.strides(part)?, "0", (&to, &offset))?);
            before.push(part[op.axis]);
        }
        Ok(calls.join(";\n    "))
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
}
