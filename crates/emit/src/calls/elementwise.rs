//! The C of elementwise ops.

use super::Calls;
use crate::c_text::float;
use crate::kernels::activation;
use base::DType;
use graph::ops::{Activation, BinaryFunction, CompareFunction, UnaryFunction};
use graph::{Dim, Node, TensorId};

impl Calls<'_> {
    pub(super) fn unary(&mut self, node: &Node, function: UnaryFunction) -> Result<String, String> {
        let name = match function {
            UnaryFunction::Activation(function) => self.activation(function),
            UnaryFunction::RoundF16 | UnaryFunction::RoundBF16 => {
                self.kernels.add("round");
                function.name()
            }
            _ => return Err(format!("there is no C of {function:?}")),
        };
        let (x, out) = (self.floats(node.inputs[0])?, self.out(node)?);
        let count = self.product(&self.plan.graph.tensor(node.output).ty.shape)?;
        Ok(format!("k_{name}({x}, {out}, {count})"))
    }

    pub(super) fn gated(&mut self, node: &Node, function: Activation) -> Result<String, String> {
        let function = self.activation(function);
        let (a, b) = (self.floats(node.inputs[0])?, self.floats(node.inputs[1])?);
        let out = self.out(node)?;
        let count = self.product(&self.plan.graph.tensor(node.output).ty.shape)?;
        Ok(format!("k_{function}_gated({a}, {b}, {out}, {count})"))
    }

    pub(super) fn binary(
        &mut self,
        node: &Node,
        function: BinaryFunction,
    ) -> Result<String, String> {
        let dtype = self.plan.graph.tensor(node.output).ty.dtype;
        if dtype != DType::F32 {
            return Err(format!("arithmetic of {dtype}"));
        }
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

    pub(super) fn compare(
        &mut self,
        node: &Node,
        function: CompareFunction,
    ) -> Result<String, String> {
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

    pub(super) fn with_number(
        &mut self,
        kernel: &str,
        node: &Node,
        number: f32,
    ) -> Result<String, String> {
        self.kernels.add("scale");
        let (x, out) = (self.floats(node.inputs[0])?, self.out(node)?);
        let count = self.product(&self.plan.graph.tensor(node.output).ty.shape)?;
        Ok(format!("{kernel}({x}, {out}, {count}, {})", float(number)))
    }

    /// The name of an activation, whose kernels are added.
    pub(super) fn activation(&mut self, function: Activation) -> &'static str {
        let name = activation(function);
        self.kernels.add(&format!("activation_{name}"));
        name
    }
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
