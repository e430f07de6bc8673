//! `KeyRotations`: finds the RoPE of each cache's keys in a graph, and rotates stored keys to other positions.

use crate::runnable::{attention_nodes, integer_source};
use crate::{BackendError, BackendErrorKind, row_codec};
use graph::ops::{Op, Rope, RopeLayout};
use graph::{Graph, Node, TensorId, TensorKind};
use kv::{CacheConfig, Side};
use std::ops::Range;

/// The RoPE of each cache's keys, in a graph that uses positions only to rotate queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRotations {
    /// One entry per cache id; `None` if the keys do not depend on positions.
    layers: Vec<Option<KeyRotation>>,
}

#[derive(Clone, Debug, PartialEq)]
struct KeyRotation {
    layout: RopeLayout,
    /// The angle per position of each pair of elements.
    frequency: Vec<f32>,
}

impl KeyRotations {
    /// Finds the rotations of a graph's keys.
    ///
    /// # Errors
    /// `ShiftUnsupported` if stored keys cannot be moved to other positions; the message says why.
    pub fn from_graph(graph: &Graph, layers: usize) -> Result<KeyRotations, BackendError> {
        let refuse = |reason: String| Err(BackendErrorKind::ShiftUnsupported(reason).into());
        let is_state =
            |node: &&Node| node.op.has_memory() && !matches!(node.op, Op::UpdateAndAttend(_));
        if let Some(node) = graph.nodes().iter().find(is_state) {
            let (name, op) = (graph.node_name(node), node.op.name());
            return refuse(format!(
                "the state of {name} ({op}) cannot be moved to other positions"
            ));
        }
        let Some((attention, _)) = attention_nodes(graph).next() else {
            return refuse("the model has no cache".into());
        };
        let position = integer_source(graph, attention.inputs[3]);
        for node in graph.nodes() {
            let takes = |id: &TensorId| integer_source(graph, *id) == position;
            let known = matches!(
                node.op,
                Op::RopeTable(_) | Op::UpdateAndAttend(_) | Op::Reshape(_) | Op::Cast(_)
            );
            if !known && node.inputs.iter().any(takes) {
                return refuse(format!(
                    "{} ({}) uses positions for more than rotating queries and keys",
                    graph.node_name(node),
                    node.op.name()
                ));
            }
        }
        let mut all: Vec<Option<Option<KeyRotation>>> = vec![None; layers];
        for (node, id) in attention_nodes(graph) {
            let rotation = match KeyRotation::of(graph, node.inputs[1]) {
                Ok(rotation) => rotation,
                Err(reason) => return refuse(format!("{}: {reason}", graph.node_name(node))),
            };
            match all.get_mut(id as usize) {
                Some(known) if known.as_ref().is_none_or(|k| *k == rotation) => {
                    *known = Some(rotation);
                }
                _ => return refuse(format!("cache {id} has keys with several rotations")),
            }
        }
        Ok(KeyRotations {
            layers: all.into_iter().map(Option::flatten).collect(),
        })
    }

    /// Rotates the encoded keys `[heads, rows, row]` of a layer from `positions` to those from `to` on.
    /// The angles are those that the graph computes in f32. Rows are decoded, rotated and encoded again.
    pub fn rotate(
        &self,
        config: &CacheConfig,
        layer: usize,
        positions: Range<u32>,
        to: u32,
        rows: &mut [u8],
    ) {
        let Some(rotation) = &self.layers[layer] else {
            return;
        };
        let storage = config.storage(layer, Side::Key);
        let dim = config.layers[layer].key_dim;
        let half = rotation.frequency.len();
        let start = positions.start;
        let turn = |position: u32, frequency: &f32| {
            let angle = |position: u32| f64::from(position as f32 * frequency);
            let turn = angle(to + (position - start)) - angle(position);
            (turn.cos() as f32, turn.sin() as f32)
        };
        let count = positions.len().max(1);
        let turns = positions.flat_map(|p| rotation.frequency.iter().map(move |f| turn(p, f)));
        let turns: Vec<(f32, f32)> = turns.collect();
        let mut row = vec![0.0; dim];
        for (i, encoded) in rows.chunks_exact_mut(storage.row_bytes(dim)).enumerate() {
            row_codec::decode(storage, encoded, &mut row);
            for (pair, (cos, sin)) in turns[i % count * half..][..half].iter().enumerate() {
                let (a, b) = match rotation.layout {
                    RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
                    RopeLayout::Halves => (pair, pair + half),
                };
                let (x, y) = (row[a], row[b]);
                (row[a], row[b]) = (x * cos - y * sin, y * cos + x * sin);
            }
            row_codec::encode(storage, &row, encoded);
        }
    }
}

impl KeyRotation {
    /// The rotation of a tensor of keys; `None` if it is not rotated.
    fn of(graph: &Graph, keys: TensorId) -> Result<Option<KeyRotation>, String> {
        let Some(node) = producer(graph, keys) else {
            return Err("its keys are not computed".into());
        };
        if let Op::Rope(Rope { layout }) = node.op {
            let table = producer(graph, node.inputs[1]);
            let table = table.filter(|node| matches!(node.op, Op::RopeTable(_)));
            let bytes = table.and_then(|node| graph.tensor(node.inputs[1]).constant());
            let Some(bytes) = bytes else {
                return Err("its rotary table is not made of constant frequencies".into());
            };
            let frequency = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
            let frequency = frequency.collect();
            return Ok(Some(KeyRotation { layout, frequency }));
        }
        match depends_on_positions(graph, keys) {
            true => Err("its keys are rotated in an unsupported way".into()),
            false => Ok(None),
        }
    }
}

fn producer(graph: &Graph, id: TensorId) -> Option<&Node> {
    match graph.tensor(id).kind {
        TensorKind::Value(node) => Some(graph.node(node)),
        _ => None,
    }
}

/// Whether the tensor depends on a rotation that comes after the previous attention.
fn depends_on_positions(graph: &Graph, id: TensorId) -> bool {
    let mut seen = std::collections::HashSet::new();
    let mut left = vec![id];
    while let Some(id) = left.pop() {
        let Some(node) = producer(graph, id).filter(|_| seen.insert(id)) else {
            continue;
        };
        match node.op {
            Op::Rope(_) | Op::RopeTable(_) => return true,
            Op::UpdateAndAttend(_) => {}
            _ => left.extend(&node.inputs),
        }
    }
    false
}
