//! The C of ops whose windows slide along axes.

use super::Calls;
use crate::c_text::float;
use graph::ops::{self, PoolFunction, WindowAxis};
use graph::{Dim, Node};

impl Calls<'_> {
    pub(super) fn windows(&mut self, node: &Node, op: &ops::Windows) -> Result<String, String> {
        self.kernels.add("windows");
        let graph = self.plan.graph;
        let from = &graph.tensor(node.inputs[0]).ty.shape;
        let to = &graph.tensor(node.output).ty.shape;
        let outer = from.len() - op.axes.len();
        let axes = self.axes(&op.axes, &from[outer..], &to[op.batch_axes..])?;
        let batch = self.product(&from[..op.batch_axes])?;
        let inner = self.product(&from[op.batch_axes..outer])?;
        let (x, out) = (self.floats(node.inputs[0])?, self.out(node)?);
        Ok(format!(
            "k_windows({x}, {out}, {batch}, {inner}, (struct windows){{{axes}, {}}})",
            float(op.padding)
        ))
    }

    pub(super) fn conv(&mut self, node: &Node, op: &ops::Conv) -> Result<String, String> {
        self.kernels.add("conv");
        let graph = self.plan.graph;
        let from = &graph.tensor(node.inputs[0]).ty.shape;
        let to = &graph.tensor(node.output).ty.shape;
        let axes = self.axes(&op.axes, &from[2..], &to[2..])?;
        let batch = self.product(&from[..1])?;
        let per_group = |channels: Dim| {
            let channels = channels.as_const().ok_or("its channels are not constant")?;
            Ok::<usize, String>(channels / op.groups)
        };
        let (inner, outer) = (per_group(from[1])?, per_group(to[1])?);
        let mut operands = vec![];
        for operand in [1, 2, 3, 0] {
            operands.push(match node.inputs.get(operand) {
                Some(id) => self.floats(*id)?,
                None => "NULL".to_owned(),
            });
        }
        let (operands, out) = (operands.join(", "), self.out(node)?);
        let call = format!(
            "k_conv({operands}, {out}, (struct conv){{{axes}, {batch}, {}, {inner}, {outer}}})",
            op.groups
        );
        Ok(match op.activation {
            None => call,
            Some(function) => {
                let function = self.activation(function);
                let count = self.product(to)?;
                format!("{call};\n    k_{function}({out}, {out}, {count})")
            }
        })
    }

    pub(super) fn pool(&mut self, node: &Node, op: &ops::Pool) -> Result<String, String> {
        self.kernels.add("pool");
        let graph = self.plan.graph;
        let from = &graph.tensor(node.inputs[0]).ty.shape;
        let to = &graph.tensor(node.output).ty.shape;
        let outer = from.len() - op.axes.len();
        let axes = self.axes(&op.axes, &from[outer..], &to[outer..])?;
        let planes = self.product(&from[..outer])?;
        let (x, out) = (self.floats(node.inputs[0])?, self.out(node)?);
        let is_max = u8::from(op.function == PoolFunction::Max);
        Ok(format!(
            "k_pool({x}, {out}, {planes}, (struct windows){{{axes}, 0.0f}}, {is_max})"
        ))
    }

    /// The initialiser of three axes, of which the first may have one element.
    fn axes(&self, axes: &[WindowAxis], from: &[Dim], to: &[Dim]) -> Result<String, String> {
        let mut list = vec!["{1, 1, 1, 1, 0, 1}".to_owned(); 3 - axes.len()];
        for (i, axis) in axes.iter().enumerate() {
            let (len, places) = (self.product(&[from[i]])?, self.product(&[to[i]])?);
            let WindowAxis {
                size,
                stride,
                dilation,
                before,
                ..
            } = axis;
            list.push(format!(
                "{{{len}, {size}, {stride}, {dilation}, {before}, {places}}}"
            ));
        }
        Ok(format!("{{{}}}", list.join(", ")))
    }
}
