//! A forward without caches, plans or backends: node by node, every key and value ever seen in a growing vector.

use std::collections::HashMap;

use graph::ops::{
    AttendedRow, CausalConv, LinearAttention, Op, UpdateAndAttend, attend_row_with_sink,
};
use graph::{Graph, Value};
use kv::LayerConfig;

/// What all earlier steps stored, per cache: one `(key, value)` of all heads for each position.
pub(crate) struct Plain<'a> {
    graph: &'a Graph,
    caches: &'a [LayerConfig],
    stored: Vec<Vec<(Vec<f32>, Vec<f32>)>>,
    constants: HashMap<u32, Value>,
}

impl<'a> Plain<'a> {
    pub(crate) fn new(graph: &'a Graph, caches: &'a [LayerConfig]) -> Plain<'a> {
        let constants = (0..).zip(graph.tensors()).filter_map(|(id, tensor)| {
            let bytes = tensor.constant()?;
            let shape = tensor.ty.dims(&Default::default()).unwrap();
            let mut data = vec![0.0; shape.iter().product()];
            base::quant::dequantise(tensor.ty.dtype, bytes, &mut data).unwrap();
            Some((id, Value::f32(shape, data)))
        });
        Plain {
            graph,
            caches,
            stored: vec![Vec::new(); caches.len()],
            constants: constants.collect(),
        }
    }

    /// One step with the next positions.
    pub(crate) fn run(&mut self, inputs: &[Value]) -> Vec<f32> {
        let shapes: Vec<&[usize]> = inputs.iter().map(|v| &v.shape[..]).collect();
        let bindings = self.graph.bind(&shapes).unwrap();
        let mut values = self.constants.clone();
        for (id, value) in self.graph.inputs().iter().zip(inputs) {
            values.insert(id.0, value.clone());
        }
        for node in self.graph.nodes() {
            let operands: Vec<&Value> = node.inputs.iter().map(|id| &values[&id.0]).collect();
            let result = match &node.op {
                Op::UpdateAndAttend(op) => self.attend(op, &operands),
                Op::CausalConv(op) => self.convolve(op, &operands),
                Op::LinearAttention(op) => self.scan(op, &operands),
                op => {
                    let shape = self.graph.tensor(node.output).ty.dims(&bindings).unwrap();
                    op.evaluate(&operands, &shape, &bindings).unwrap()
                }
            };
            values.insert(node.output.0, result);
        }
        let output = &values[&self.graph.outputs()[0].0];
        output.as_f32().unwrap().to_vec()
    }

    /// The state after all earlier steps; zeros before the first.
    fn state(&mut self, cache_id: u32) -> &mut Vec<f32> {
        let layer = self.caches[cache_id as usize];
        let stored = &mut self.stored[cache_id as usize];
        if stored.is_empty() {
            stored.push((vec![], vec![0.0; layer.kv_heads * layer.value_dim]));
        }
        &mut stored[0].1
    }

    fn convolve(&mut self, op: &CausalConv, operands: &[&Value]) -> Value {
        let [x, weight] = [0, 1].map(|i| operands[i].as_f32().unwrap());
        let bias = operands.get(3).map(|bias| bias.as_f32().unwrap());
        let (tokens, channels) = operands[0].rows();
        let mut out = vec![0.0; tokens * channels];
        let state = self.state(op.cache_id);
        for (x, out) in x.chunks(channels).zip(out.chunks_mut(channels)) {
            op.step(state, x, weight, bias, out);
        }
        Value::f32([tokens, channels], out)
    }

    fn scan(&mut self, op: &LinearAttention, operands: &[&Value]) -> Value {
        let [q, k, v, decay] = [0, 1, 2, 3].map(|i| operands[i].as_f32().unwrap());
        let beta = operands.get(5).map(|beta| beta.as_f32().unwrap());
        let [tokens, heads, width] = operands[2].shape[..] else {
            panic!("values have three dimensions");
        };
        let (groups, depth) = (operands[0].shape[1], operands[0].shape[2]);
        let mut out = vec![0.0; tokens * heads * width];
        let state = self.state(op.cache_id);
        for (i, out) in out.chunks_mut(width).enumerate() {
            let (token, head) = (i / heads, i % heads);
            let key = (token * groups + op.sharing.group(head, heads, groups)) * depth;
            op.step(
                &mut state[head * depth * width..][..depth * width],
                [
                    &q[key..][..depth],
                    &k[key..][..depth],
                    &v[i * width..][..width],
                ],
                decay[i],
                beta.map(|beta| beta[i]),
                out,
            );
        }
        Value::f32([tokens, heads, width], out)
    }

    fn attend(&mut self, op: &UpdateAndAttend, operands: &[&Value]) -> Value {
        let layer = self.caches[op.cache_id as usize];
        let stored = &mut self.stored[op.cache_id as usize];
        let [q, k, v] = [0, 1, 2].map(|i| operands[i].as_f32().unwrap());
        let keys = k.chunks(layer.kv_heads * layer.key_dim);
        let values = v.chunks(layer.kv_heads * layer.value_dim);
        // A node whose cache an earlier node of the step has filled stores the same rows again.
        stored.truncate(operands[3].as_i32().unwrap()[0] as usize);
        stored.extend(keys.zip(values).map(|(k, v)| (k.to_vec(), v.to_vec())));

        let (heads, dim) = (operands[0].shape[1], layer.value_dim);
        let mut out = vec![0.0; operands[0].shape[0] * heads * dim];
        let queries = q.chunks(layer.key_dim).zip(out.chunks_mut(dim));
        for (i, (query, out)) in queries.enumerate() {
            let position = operands[3].as_i32().unwrap()[i / heads] as usize;
            let window = layer.window.map_or(usize::MAX, |w| w as usize);
            let first = (position + 1).saturating_sub(window);
            let head = i % heads / (heads / layer.kv_heads);
            let seen = stored[first..=position].iter();
            let rows: Vec<_> = seen.map(|(k, v)| row(k, v, head, &layer)).collect();
            let sinks = operands.get(4).map(|sinks| sinks.as_f32().unwrap());
            let sink = sinks.map(|sinks| sinks[i % heads]);
            attend_row_with_sink(op.scoring(), query, &rows, sink, out);
        }
        Value::f32([operands[0].shape[0], heads, dim], out)
    }
}

fn row<'a>(k: &'a [f32], v: &'a [f32], head: usize, layer: &LayerConfig) -> AttendedRow<'a> {
    AttendedRow {
        key: &k[head * layer.key_dim..][..layer.key_dim],
        value: &v[head * layer.value_dim..][..layer.value_dim],
        bias: 0.0,
    }
}
