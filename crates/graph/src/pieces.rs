//! Divides a graph into convex pieces, each for one device.

use crate::graph::{Graph, Node, NodeId, Tensor, TensorId, TensorKind};
use crate::{GraphError, Symbol};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Nodes of a graph that one device runs together, as a graph of their own.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The index of the device.
    pub device: usize,
    /// The nodes, in execution order.
    pub nodes: Vec<NodeId>,
    /// The piece as a graph.
    pub graph: Graph,
    /// The tensor of the whole graph that each tensor of the piece is.
    pub tensors: Vec<TensorId>,
    /// The tensors of the whole graph that are the piece's inputs: those of other pieces, and inputs of the graph.
    pub inputs: Vec<TensorId>,
    /// The tensors of the whole graph that other pieces or the caller need of it.
    pub outputs: Vec<TensorId>,
}

impl Graph {
    /// The nodes of each piece, in execution order, if node `i` runs on the device `device_of[i]`.
    ///
    /// A node is as many changes of device behind the graph's inputs as the longest way to it has. Nodes of one device and one such number
    /// are a piece: no way between two of them leaves it, and a piece needs only results of earlier ones.
    pub fn piece_nodes(&self, device_of: &[usize]) -> Vec<(usize, Vec<NodeId>)> {
        let mut changes = vec![0; self.nodes.len()];
        let mut pieces: BTreeMap<(usize, usize), Vec<NodeId>> = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let own = device_of[index];
            let producers = node.inputs.iter().filter_map(|id| self.producer(*id));
            let change = |NodeId(producer): NodeId| {
                let producer = producer as usize;
                changes[producer] + usize::from(device_of[producer] != own)
            };
            changes[index] = producers.map(change).max().unwrap_or(0);
            let piece = pieces.entry((changes[index], own)).or_default();
            piece.push(NodeId(index as u32));
        }
        let pieces = pieces.into_iter();
        pieces.map(|((_, device), nodes)| (device, nodes)).collect()
    }

    /// The pieces of the graph, in an order in which they can run, if node `i` runs on the device `device_of[i]`.
    ///
    /// # Errors
    /// If a piece is no valid graph, which is a defect of this function.
    pub fn pieces(&self, device_of: &[usize]) -> Result<Vec<Piece>, GraphError> {
        let pieces = self.piece_nodes(device_of).into_iter();
        pieces
            .map(|(device, nodes)| self.piece(device, nodes))
            .collect()
    }

    /// The node that computes a tensor.
    pub fn producer(&self, id: TensorId) -> Option<NodeId> {
        match self.tensor(id).kind {
            TensorKind::Value(node) => Some(node),
            _ => None,
        }
    }

    fn piece(&self, device: usize, nodes: Vec<NodeId>) -> Result<Piece, GraphError> {
        let own: HashSet<NodeId> = nodes.iter().copied().collect();
        let is_own = |id: TensorId| self.producer(id).is_some_and(|node| own.contains(&node));
        let operands = nodes.iter().flat_map(|node| &self.node(*node).inputs);
        let operands: BTreeSet<TensorId> = operands.copied().collect();
        let is_constant = |id: &TensorId| self.tensor(*id).constant().is_some();
        let (constants, others): (Vec<TensorId>, Vec<TensorId>) =
            operands.into_iter().partition(is_constant);
        let mut inputs: Vec<TensorId> = others.into_iter().filter(|id| !is_own(*id)).collect();
        self.add_sizes(&mut inputs);

        let elsewhere = self.nodes.iter().enumerate();
        let elsewhere = elsewhere.filter(|(index, _)| !own.contains(&NodeId(*index as u32)));
        let needed = elsewhere.flat_map(|(_, node)| &node.inputs);
        let needed: HashSet<TensorId> = needed.chain(&self.outputs).copied().collect();
        let results = nodes.iter().map(|node| self.node(*node).output);
        let outputs: Vec<TensorId> = results.filter(|id| needed.contains(id)).collect();

        let mut graph = Graph {
            name: self.name.clone(),
            symbols: self.symbols.clone(),
            tensors: vec![],
            nodes: vec![],
            inputs: vec![],
            outputs: vec![],
            states: vec![],
        };
        let mut tensors = vec![];
        let mut places: BTreeMap<TensorId, TensorId> = BTreeMap::new();
        let mut add = |graph: &mut Graph, id: TensorId, kind: TensorKind| {
            let place = TensorId(graph.tensors.len() as u32);
            let Tensor { name, ty, .. } = self.tensor(id).clone();
            graph.tensors.push(Tensor { name, ty, kind });
            tensors.push(id);
            places.insert(id, place);
            place
        };
        for id in &inputs {
            let place = add(&mut graph, *id, TensorKind::Input);
            graph.inputs.push(place);
        }
        for id in &constants {
            add(&mut graph, *id, self.tensor(*id).kind.clone());
        }
        for (index, node) in nodes.iter().enumerate() {
            let kind = TensorKind::Value(NodeId(index as u32));
            add(&mut graph, self.node(*node).output, kind);
        }
        for node in &nodes {
            let Node { op, inputs, output } = self.node(*node);
            graph.nodes.push(Node {
                op: op.clone(),
                inputs: inputs.iter().map(|id| places[id]).collect(),
                output: places[output],
            });
        }
        graph.outputs = outputs.iter().map(|id| places[id]).collect();
        graph.verify()?;
        Ok(Piece {
            device,
            nodes,
            graph,
            tensors,
            inputs,
            outputs,
        })
    }

    /// Adds inputs of the graph so that each of its symbols is a dimension of one of `inputs`.
    fn add_sizes(&self, inputs: &mut Vec<TensorId>) {
        let has = |id: TensorId, symbol: Symbol| {
            let shape = &self.tensor(id).ty.shape;
            shape.iter().any(|dim| dim.as_symbol() == Some(symbol))
        };
        for symbol in (0..self.symbols.len()).map(|index| Symbol(index as u8)) {
            if inputs.iter().any(|id| has(*id, symbol)) {
                continue;
            }
            let carriers = self.inputs.iter().filter(|id| has(**id, symbol));
            let smallest = carriers.min_by_key(|id| self.tensor(**id).ty.shape.len());
            inputs.extend(smallest.filter(|id| !inputs.contains(id)).copied());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::{Activation, Binary, BinaryFunction, Unary};
    use crate::{Graph, GraphBuilder};
    use base::DType;

    /// `a` and `b` of an input, `c` of both, `d` of `a` and `c`.
    fn graph() -> Graph {
        let mut b = GraphBuilder::new("g");
        let t = b.symbol("T");
        let x = b.input("x", DType::F32, [t, 4.into()]);
        let silu = Unary {
            function: Activation::Silu.into(),
        };
        let add = Binary {
            function: BinaryFunction::Add,
        };
        let first = b.node("a", silu.clone(), &[x]).unwrap();
        let second = b.node("b", silu, &[x]).unwrap();
        let third = b.node("c", add.clone(), &[first, second]).unwrap();
        let last = b.node("d", add, &[first, third]).unwrap();
        b.finish(&[last, first]).unwrap()
    }

    fn names(graph: &Graph, device_of: &[usize]) -> Vec<(usize, Vec<String>)> {
        let pieces = graph.pieces(device_of).unwrap().into_iter();
        let name = |id: &crate::NodeId| graph.node_name(graph.node(*id)).to_owned();
        pieces
            .map(|piece| (piece.device, piece.nodes.iter().map(name).collect()))
            .collect()
    }

    #[test]
    fn pieces_are_convex() {
        let graph = graph();
        let piece = |device: usize, nodes: &[&str]| {
            (device, nodes.iter().map(|name| name.to_string()).collect())
        };
        assert_eq!(
            names(&graph, &[0, 0, 0, 0]),
            [piece(0, &["a", "b", "c", "d"])]
        );
        // The way from a to d by c leaves device 0.
        assert_eq!(
            names(&graph, &[0, 0, 1, 0]),
            [piece(0, &["a", "b"]), piece(1, &["c"]), piece(0, &["d"])]
        );
        assert_eq!(
            names(&graph, &[1, 0, 0, 0]),
            [piece(0, &["b"]), piece(1, &["a"]), piece(0, &["c", "d"])]
        );
    }

    #[test]
    fn a_piece_names_what_it_takes_and_gives() {
        let graph = graph();
        let pieces = graph.pieces(&[0, 0, 1, 0]).unwrap();
        let text: Vec<String> = pieces.iter().map(|p| p.graph.to_string()).collect();
        assert_eq!(
            text[0],
            "graph g(x: f32[T, 4])\n  a: f32[T, 4] = unary(x) {function: silu}\n  \
             b: f32[T, 4] = unary(x) {function: silu}\n  return a, b\n"
        );
        assert_eq!(
            text[2],
            "graph g(a: f32[T, 4], c: f32[T, 4])\n  d: f32[T, 4] = add(a, c)\n  return d\n"
        );
    }
}
