//! Tensors, nodes and the graph that holds them.

use crate::ops::Op;
use crate::tensor_type::TensorType;
use crate::{Bindings, GraphError, GraphErrorKind, Symbol};
use base::Bytes;
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// A tensor's index in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// A node's index in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Where a tensor's contents come from.
#[derive(Clone, Debug)]
pub enum TensorKind {
    /// Given by the caller at every run.
    Input,
    /// Part of the model.
    Constant(Bytes),
    /// Computed by a node.
    Value(NodeId),
}

/// A named edge of the graph.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Unique in the graph; kept from the model file for messages.
    pub name: String,
    /// Element type and shape.
    pub ty: TensorType,
    /// Input, constant or computed.
    pub kind: TensorKind,
}

impl Tensor {
    /// The bytes of a constant.
    pub fn constant(&self) -> Option<&Bytes> {
        match &self.kind {
            TensorKind::Constant(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// An op applied to operands, with one result.
#[derive(Clone, Debug)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// The operands, in the order the op documents.
    pub inputs: Vec<TensorId>,
    /// The result.
    pub output: TensorId,
}

/// A dynamic size: its name and range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolInfo {
    /// Name in text form.
    pub name: String,
    /// Allowed values.
    pub range: RangeInclusive<usize>,
}

/// A tensor that keeps its elements from one run to the next: the graph reads it from an input and returns its new elements.
#[derive(Clone, Debug)]
pub struct StateInfo {
    /// The name in the model.
    pub name: String,
    /// The elements before the first run.
    pub initial: Bytes,
}

/// A computation graph. Nodes are stored in execution order.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) symbols: Vec<SymbolInfo>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) inputs: Vec<TensorId>,
    pub(crate) outputs: Vec<TensorId>,
    pub(crate) states: Vec<StateInfo>,
}

impl Graph {
    /// The graph's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The symbols, in index order.
    pub fn symbols(&self) -> &[SymbolInfo] {
        &self.symbols
    }

    /// Graph inputs in call order; the last ones are the [`states`](Graph::states).
    pub fn inputs(&self) -> &[TensorId] {
        &self.inputs
    }

    /// Graph outputs in result order; the last ones are the new [`states`](Graph::states).
    pub fn outputs(&self) -> &[TensorId] {
        &self.outputs
    }

    /// Tensors that keep their elements between runs: each is one of the last inputs, and its new elements are one of the last
    /// outputs, in this order.
    pub fn states(&self) -> &[StateInfo] {
        &self.states
    }

    /// The inputs that the caller of a run gives: all but the states.
    pub fn caller_inputs(&self) -> &[TensorId] {
        &self.inputs[..self.inputs.len() - self.states.len()]
    }

    /// The outputs that the caller of a run gets: all but the new states.
    pub fn caller_outputs(&self) -> &[TensorId] {
        &self.outputs[..self.outputs.len() - self.states.len()]
    }

    /// The inputs that are states.
    pub fn state_inputs(&self) -> &[TensorId] {
        &self.inputs[self.inputs.len() - self.states.len()..]
    }

    /// The nodes in execution order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All tensors, by id.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor with this id.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// The node with this id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// A node's name: that of its output.
    pub fn node_name(&self, node: &Node) -> &str {
        &self.tensor(node.output).name
    }

    /// Bytes of all constants.
    pub fn constant_bytes(&self) -> usize {
        self.tensors
            .iter()
            .filter_map(Tensor::constant)
            .map(|b| b.len())
            .sum()
    }

    /// Replaces constants by equal ones of another graph of the same model, so that both hold the same bytes.
    pub fn share_constants(&mut self, other: &Graph) {
        let mut by_len: HashMap<usize, Vec<&Bytes>> = HashMap::new();
        for bytes in other.tensors.iter().filter_map(Tensor::constant) {
            by_len.entry(bytes.len()).or_default().push(bytes);
        }
        for tensor in &mut self.tensors {
            let TensorKind::Constant(own) = &mut tensor.kind else {
                continue;
            };
            let alike = by_len.get(&own.len()).into_iter().flatten();
            let mut alike = alike.copied();
            let is_same = |bytes: &Bytes| bytes.as_ptr() == own.as_ptr() || bytes[..] == own[..];
            if let Some(shared) = alike.find(|bytes| is_same(bytes)) {
                *own = shared.clone();
            }
        }
    }

    /// The symbols' values that make the inputs have these shapes.
    ///
    /// Every symbol of an input's dimensions is alone in one of them; anything else is refused by `verify`.
    pub fn bind(&self, shapes: &[&[usize]]) -> Result<Bindings, GraphError> {
        let fail = |tensor: &Tensor, reason: String| GraphErrorKind::Size {
            tensor: tensor.name.clone(),
            reason,
        };
        if shapes.len() != self.inputs.len() {
            let states = self.states.len();
            let reason = format!(
                "takes {} inputs, {} were given",
                self.inputs.len() - states,
                shapes.len().saturating_sub(states)
            );
            return Err(GraphErrorKind::Graph {
                graph: self.name.clone(),
                reason,
            }
            .into());
        }
        let mut bindings = Bindings::default();
        let mut bound = [false; crate::MAX_SYMBOLS];
        for (id, shape) in self.inputs.iter().zip(shapes) {
            let tensor = self.tensor(*id);
            if tensor.ty.shape.len() != shape.len() {
                let reason = format!(
                    "it has {} dimensions, {} were given",
                    tensor.ty.shape.len(),
                    shape.len()
                );
                return Err(fail(tensor, reason).into());
            }
            for (axis, (dim, &given)) in tensor.ty.shape.iter().zip(*shape).enumerate() {
                if let Some(Symbol(s)) = dim.as_symbol()
                    && !std::mem::replace(&mut bound[s as usize], true)
                {
                    let SymbolInfo { name, range } = &self.symbols[s as usize];
                    if !range.contains(&given) {
                        let (min, max) = (range.start(), range.end());
                        let reason = match *max {
                            usize::MAX => format!("at least {min}"),
                            max => format!("from {min} to {max}"),
                        };
                        let reason =
                            format!("dimension {axis} is {given}, {name} must be {reason}");
                        return Err(fail(tensor, reason).into());
                    }
                    bindings.0[s as usize] = given;
                }
            }
        }
        // Sums have a value once all symbols do.
        for (id, shape) in self.inputs.iter().zip(shapes) {
            let tensor = self.tensor(*id);
            for (axis, (dim, &given)) in tensor.ty.shape.iter().zip(*shape).enumerate() {
                if dim.eval(&bindings) != Some(given) {
                    let wanted = dim
                        .eval(&bindings)
                        .map_or("nothing".to_owned(), |d| d.to_string());
                    return Err(fail(
                        tensor,
                        format!("dimension {axis} is {given}, wanted {wanted}"),
                    )
                    .into());
                }
            }
        }
        Ok(bindings)
    }
}

#[cfg(test)]
mod tests {
    use crate::GraphBuilder;
    use base::DType;

    #[test]
    fn sums_follow_from_their_symbols() {
        let mut b = GraphBuilder::new("g");
        let (past, now) = (b.symbol("P"), b.symbol("T"));
        let mask = b.input("mask", DType::F32, [past + now]);
        b.input("past", DType::F32, [past]);
        let x = b.input("x", DType::F32, [now]);
        let graph = b.finish(&[mask, x]).unwrap();
        let bind = |mask: usize| graph.bind(&[&[mask], &[3], &[2]]).map(|b| b.0);
        assert_eq!(bind(5).unwrap(), [3, 2, 0, 0]);
        let error = bind(6).unwrap_err().to_string();
        assert!(error.contains("dimension 0 is 6, wanted 5"), "{error}");
        let mut b = GraphBuilder::new("g");
        let (past, now) = (b.symbol("P"), b.symbol("T"));
        let mask = b.input("mask", DType::F32, [past + now]);
        let x = b.input("x", DType::F32, [now]);
        let error = b.finish(&[mask, x]).unwrap_err().to_string();
        assert!(error.contains("P of input mask"), "{error}");
    }

    #[test]
    fn equal_constants_are_shared() {
        let graph = |last: f32| {
            let mut b = GraphBuilder::new("g");
            let data = |x: f32| base::Bytes::from_slice(&[1.0, 2.0, x]);
            let same = b.constant("same", DType::F32, &[3], data(3.0)).unwrap();
            let own = b.constant("own", DType::F32, &[3], data(last)).unwrap();
            b.finish(&[same, own]).unwrap()
        };
        let (first, mut second) = (graph(4.0), graph(5.0));
        second.share_constants(&first);
        let constants = |graph: &crate::Graph| -> Vec<base::Bytes> {
            let all = graph
                .tensors()
                .iter()
                .filter_map(|tensor| tensor.constant());
            all.cloned().collect()
        };
        let (a, b) = (constants(&first), constants(&second));
        assert_eq!(a[0].as_ptr(), b[0].as_ptr());
        assert_eq!(&b[1][..], &base::Bytes::from_slice(&[1.0f32, 2.0, 5.0])[..]);
    }

    #[test]
    fn sizes_out_of_range_are_named() {
        let mut b = GraphBuilder::new("g");
        let t = b.symbol_in("T", 1..=8);
        let open = b.symbol_in("B", 2..=usize::MAX);
        let x = b.input("x", DType::F32, [open, t]);
        let y = b.input("y", DType::F32, [t, 4.into()]);
        let graph = b.finish(&[x, y]).unwrap();
        let bind = |x: [usize; 2], y: [usize; 2]| {
            let bound = graph.bind(&[&x, &y]);
            bound.map(|b| b.0).map_err(|e| e.to_string())
        };
        assert_eq!(bind([2, 8], [8, 4]), Ok([8, 2, 0, 0]));
        let error = |reason: &str| Err(format!("tensor {reason}"));
        assert_eq!(
            bind([2, 9], [9, 4]),
            error("x has no size with these inputs: dimension 1 is 9, T must be from 1 to 8")
        );
        assert_eq!(
            bind([1, 8], [8, 4]),
            error("x has no size with these inputs: dimension 0 is 1, B must be at least 2")
        );
        assert_eq!(
            bind([2, 8], [7, 4]),
            error("y has no size with these inputs: dimension 0 is 7, wanted 8")
        );
    }
}
