//! Graph builder for tests of passes, and a check that a pass does not change results.

use crate::graph::{Graph, TensorId, TensorKind};
use crate::ops::{
    Activation, AttendedRow, Binary, BinaryFunction, Compare, CompareFunction, Expand, MatMul, Op,
    Permute, Reduce, ReduceFunction, Reshape, Slice, Softmax, Unary, UnaryFunction,
    attend_row_with_sink,
};
use crate::{Bindings, Data, Dim, GraphBuilder, GraphError, Symbol, Value};
use base::{Bytes, DType};

/// A graph builder that generates names and constant values.
pub(super) struct TestGraphBuilder {
    pub(super) builder: GraphBuilder,
    nodes: usize,
    constants: usize,
}

impl TestGraphBuilder {
    pub(super) fn new() -> TestGraphBuilder {
        TestGraphBuilder {
            builder: GraphBuilder::new("g"),
            nodes: 0,
            constants: 0,
        }
    }

    pub(super) fn input(&mut self, name: &str, shape: impl Into<Vec<Dim>>) -> TensorId {
        self.builder.input(name, DType::F32, shape)
    }

    pub(super) fn op(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> TensorId {
        self.nodes += 1;
        let name = format!("n{}", self.nodes);
        self.builder.node(&name, op, inputs).unwrap()
    }

    /// A constant with these elements.
    pub(super) fn value(&mut self, value: &Value) -> TensorId {
        self.constants += 1;
        let (name, bytes) = (format!("c{}", self.constants), value.data.to_bytes());
        self.builder
            .constant(&name, value.dtype(), &value.shape, bytes)
            .unwrap()
    }

    pub(super) fn number(&mut self, x: f32) -> TensorId {
        self.value(&Value::f32([], vec![x]))
    }

    /// A constant with a name and arbitrary elements.
    pub(super) fn weight(&mut self, name: &str, shape: &[usize]) -> TensorId {
        let data = noise(shape.iter().product(), name.len() as u32 + 7);
        self.builder
            .constant(name, DType::F32, shape, Bytes::from_slice(&data))
            .unwrap()
    }

    pub(super) fn shape(&self, id: TensorId) -> Vec<Dim> {
        self.builder.ty(id).shape.clone()
    }

    pub(super) fn binary(
        &mut self,
        function: BinaryFunction,
        a: TensorId,
        b: TensorId,
    ) -> TensorId {
        self.op(Binary { function }, &[a, b])
    }

    pub(super) fn add(&mut self, a: TensorId, b: TensorId) -> TensorId {
        self.binary(BinaryFunction::Add, a, b)
    }

    pub(super) fn mul(&mut self, a: TensorId, b: TensorId) -> TensorId {
        self.binary(BinaryFunction::Mul, a, b)
    }

    pub(super) fn times(&mut self, x: TensorId, factor: f32) -> TensorId {
        let factor = self.number(factor);
        self.mul(x, factor)
    }

    pub(super) fn plus(&mut self, x: TensorId, number: f32) -> TensorId {
        let number = self.number(number);
        self.add(x, number)
    }

    pub(super) fn power(&mut self, x: TensorId, exponent: f32) -> TensorId {
        let exponent = self.number(exponent);
        self.binary(BinaryFunction::Pow, x, exponent)
    }

    pub(super) fn compare(
        &mut self,
        function: CompareFunction,
        a: TensorId,
        b: TensorId,
    ) -> TensorId {
        self.op(Compare { function }, &[a, b])
    }

    pub(super) fn unary(&mut self, function: impl Into<UnaryFunction>, x: TensorId) -> TensorId {
        let function = function.into();
        self.op(Unary { function }, &[x])
    }

    pub(super) fn silu(&mut self, x: TensorId) -> TensorId {
        self.unary(Activation::Silu, x)
    }

    pub(super) fn permute(&mut self, x: TensorId, axes: &[usize]) -> TensorId {
        let axes = axes.to_vec();
        self.op(Permute { axes }, &[x])
    }

    pub(super) fn transpose(&mut self, x: TensorId) -> TensorId {
        let rank = self.shape(x).len();
        self.op(Permute::transpose(rank), &[x])
    }

    pub(super) fn reshape(&mut self, x: TensorId, shape: impl Into<Vec<Dim>>) -> TensorId {
        let shape = shape.into();
        self.op(Reshape { shape }, &[x])
    }

    pub(super) fn expand(&mut self, x: TensorId, shape: impl Into<Vec<Dim>>) -> TensorId {
        let shape = shape.into();
        self.op(Expand { shape }, &[x])
    }

    pub(super) fn slice(&mut self, x: TensorId, axis: usize, start: usize, len: usize) -> TensorId {
        let (start, len) = (start.into(), len.into());
        self.op(
            Slice {
                axis,
                start,
                len,
                step: 1,
            },
            &[x],
        )
    }

    pub(super) fn mat_mul(&mut self, a: TensorId, b: TensorId) -> TensorId {
        self.op(MatMul::default(), &[a, b])
    }

    /// A linear layer as lowering emits it: a transposed weight, a product and a bias.
    pub(super) fn linear(&mut self, name: &str, x: TensorId, rows: usize, bias: bool) -> TensorId {
        let width = self.shape(x).last().and_then(Dim::as_const).unwrap();
        let weight = self.weight(&format!("{name}.weight"), &[rows, width]);
        let weight = self.transpose(weight);
        let y = self.mat_mul(x, weight);
        match bias {
            true => {
                let bias = self.weight(&format!("{name}.bias"), &[rows]);
                self.add(y, bias)
            }
            false => y,
        }
    }

    pub(super) fn softmax(&mut self, x: TensorId) -> TensorId {
        let axis = self.shape(x).len() - 1;
        self.op(Softmax { axis, log: false }, &[x])
    }

    /// A reduction of the last axis, which is kept.
    pub(super) fn reduce(&mut self, function: ReduceFunction, x: TensorId) -> TensorId {
        let axes = vec![self.shape(x).len() - 1];
        let op = Reduce {
            function,
            axes,
            keep: true,
        };
        self.op(op, &[x])
    }

    pub(super) fn finish(self, outputs: &[TensorId]) -> Graph {
        self.builder.finish(outputs).unwrap()
    }
}

/// Runs a pass, checks that the results are unchanged, and returns the text of the graph.
pub(super) fn after(graph: Graph, pass: impl Fn(&mut Graph) -> Result<bool, GraphError>) -> String {
    let mut changed = graph.clone();
    pass(&mut changed).unwrap();
    changed.verify().unwrap();
    for tokens in [1, 4] {
        let bindings = Bindings([tokens, 1, 3, 2]);
        let (before, after) = (run(&graph, &bindings), run(&changed, &bindings));
        for (a, b) in before.iter().zip(&after) {
            let (Some(a), Some(b)) = (a.as_f32(), b.as_f32()) else {
                assert_eq!(a, b);
                continue;
            };
            assert!(
                are_near(a, b),
                "{a:?} became {b:?} with T = {tokens} in\n{graph}and\n{changed}"
            );
        }
    }
    changed.to_string()
}

/// Whether two outputs are the same infinities and NaNs, and numbers that differ by little of the largest one.
fn are_near(a: &[f32], b: &[f32]) -> bool {
    let finite = a.iter().filter(|x| x.is_finite());
    let size = finite.fold(1.0f32, |size, x| size.max(x.abs()));
    let near = |(a, b): (&f32, &f32)| match a.is_finite() {
        true => (a - b).abs() <= 1e-4 * size,
        false => a == b || a.is_nan() && b.is_nan(),
    };
    a.len() == b.len() && a.iter().zip(b).all(near)
}

/// Number of nodes of each op in a graph's text, without reshapes.
pub(super) fn op_counts(text: &str) -> Vec<(String, usize)> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for line in text.lines().filter(|line| line.contains(" = ")) {
        let op = line.split(" = ").nth(1).unwrap().split('(').next().unwrap();
        match counts.iter_mut().find(|(name, _)| name == op) {
            Some((_, count)) => *count += 1,
            None => counts.push((op.to_owned(), 1)),
        }
    }
    counts.retain(|(name, _)| name != "reshape");
    counts.sort();
    counts
}

/// The outputs for arbitrary inputs, by the reference evaluators; caches are empty at the start.
fn run(graph: &Graph, bindings: &Bindings) -> Vec<Value> {
    let mut values: Vec<Option<Value>> = vec![None; graph.tensors().len()];
    for (i, tensor) in graph.tensors().iter().enumerate() {
        let Some(shape) = tensor.ty.dims(bindings) else {
            continue;
        };
        let len = shape.iter().product();
        let data = match (&tensor.kind, tensor.ty.dtype) {
            (TensorKind::Constant(bytes), dtype) => Data::from_bytes(dtype, bytes, len).unwrap(),
            (TensorKind::Input, DType::F32) => Data::F32(noise(len, tensor.name.len() as u32)),
            // Positions, token ids and rows.
            (TensorKind::Input, DType::I32) => Data::I32((0..len as i32).collect()),
            (TensorKind::Input, DType::I64) => Data::I64((0..len as i64).collect()),
            _ => continue,
        };
        values[i] = Some(Value { shape, data });
    }
    for node in graph.nodes() {
        let operands: Vec<&Value> = node
            .inputs
            .iter()
            .map(|id| values[id.0 as usize].as_ref().unwrap())
            .collect();
        let shape = graph.tensor(node.output).ty.dims(bindings).unwrap();
        let result = match &node.op {
            Op::UpdateAndAttend(_) => attend(&node.op, &operands, &shape),
            op => op.evaluate(&operands, &shape, bindings).unwrap(),
        };
        values[node.output.0 as usize] = Some(result);
    }
    let outputs = graph.outputs().iter();
    outputs
        .map(|id| values[id.0 as usize].clone().unwrap())
        .collect()
}

fn attend(op: &Op, operands: &[&Value], shape: &[usize]) -> Value {
    let Op::UpdateAndAttend(op) = op else {
        unreachable!("only attention is run here");
    };
    let [q, k, v] = [0, 1, 2].map(|i| operands[i].as_f32().unwrap());
    let sinks = operands.get(4).map(|sinks| sinks.as_f32().unwrap());
    let (heads, dim, value_dim) = (shape[1], operands[0].shape[2], shape[2]);
    let kv_heads = operands[1].shape[1];
    let mut out = vec![0.0; shape.iter().product()];
    for (i, out) in out.chunks_mut(value_dim).enumerate() {
        let (token, head) = (i / heads, i % heads / (heads / kv_heads));
        let row = |t: usize| AttendedRow {
            key: &k[(t * kv_heads + head) * dim..][..dim],
            value: &v[(t * kv_heads + head) * value_dim..][..value_dim],
            bias: 0.0,
        };
        let rows: Vec<AttendedRow<'_>> = (0..=token).map(row).collect();
        let sink = sinks.map(|sinks| sinks[i % heads]);
        attend_row_with_sink(op.scoring(), &q[i * dim..][..dim], &rows, sink, out);
    }
    Value::f32(shape, out)
}

/// Distinct numbers around zero.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let element = |i: u32| {
        let bits = (i + 1)
            .wrapping_mul(2654435761)
            .wrapping_add(seed.wrapping_mul(40503));
        (bits >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..len as u32).map(element).collect()
}

/// The first symbol, which every test with symbols calls `T`.
pub(super) fn tokens(sketch: &mut TestGraphBuilder) -> Dim {
    let dim = sketch.builder.symbol("T");
    assert_eq!(dim, Dim::from(Symbol(0)));
    dim
}

#[test]
fn outputs_with_an_infinity_are_compared_in_every_element() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let row = [inf, 1.0, -inf, nan, 2.0];
    assert!(are_near(&row, &row));
    assert!(are_near(&[inf, 1000.0], &[inf, 1000.01]));
    for (at, other) in [
        (0, -inf),
        (0, f32::MAX),
        (0, nan),
        (1, 1.1),
        (2, inf),
        (3, 0.0),
        (4, inf),
    ] {
        let mut changed = row;
        changed[at] = other;
        assert!(!are_near(&row, &changed), "{changed:?}");
    }
    assert!(!are_near(&row, &row[..4]));
}
