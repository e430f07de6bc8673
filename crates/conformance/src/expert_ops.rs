//! Attention sinks, and routed experts: the choice of each row, the product of each choice, and rows that do not depend on each other.

use crate::op_case::Operand::{Rows, Tensor, Weight};
use crate::op_case::Values::{Any, Whole};
use crate::op_case::{OpCase, Operand, SYMBOL_T as T};
use crate::{TestRng, cache_case, op_cases};
use backend::{Backend, CompileOptions};
use base::DType::{self, F32};
use graph::ops::{Activation, ExpertGate, ExpertGroups, ExpertScores, Experts, Op, RouteExperts};
use graph::{Graph, GraphBuilder, Value};
use std::sync::Arc;

/// Runs the suite and returns the number of cases.
pub(super) fn run(
    backend: &dyn Backend,
    options: &CompileOptions,
    tolerance: f32,
) -> Result<usize, String> {
    let cases = op_cases(cases(), backend, options, tolerance)?;
    let sinks = cache_case::cases_with_sinks(backend);
    for case in &sinks {
        case.check(backend, options, tolerance)
            .map_err(|e| format!("{case:?}: {e}"))?;
    }
    let dtypes = [F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_1];
    for dtype in dtypes {
        rows_alone(backend, options, dtype).map_err(|e| format!("experts of {dtype}: {e}"))?;
    }
    Ok(cases + sinks.len() + dtypes.len())
}

fn cases() -> Vec<OpCase> {
    let mut cases = Vec::new();
    let mut add = |op: Op, tokens: usize, operands: &[Operand]| {
        cases.push(OpCase::new(op, tokens, operands, cases.len() as u64 + 5000));
    };
    for tokens in [1, 3, 18] {
        for scores in [ExpertScores::Softmax, ExpertScores::Sigmoid] {
            for (used, normalise, groups) in [
                (1, false, None),
                (4, true, None),
                (3, true, Some(ExpertGroups { count: 4, used: 2 })),
            ] {
                let route = RouteExperts {
                    used,
                    scores,
                    normalise,
                    scale: 1.5,
                    groups,
                };
                let logits = || Rows(vec![12]);
                add(route.clone().into(), tokens, &[logits()]);
                let bias = Weight(F32, vec![12]);
                add(route.into(), tokens, &[logits(), bias]);
            }
        }
        for dtype in DType::ALL.into_iter().filter(|t| t.is_real()) {
            let block = dtype.block_len();
            let (count, depth, inner, width) = match block {
                1 => (5, 24, 9, 7),
                32 => (5, 64, 32, 48),
                _ => (3, 256, 256, 16),
            };
            let function = ExpertGate::Gated(Activation::Silu);
            let op = Experts { function, used: 2 };
            let operands = [
                Rows(vec![depth]),
                // Rows use none, some or all of the experts.
                Tensor(F32, vec![T, count], Whole(0, 2)),
                Weight(dtype, vec![count * inner, depth]),
                Weight(dtype, vec![count * inner, depth]),
                Weight(dtype, vec![count * width, inner]),
            ];
            add(op.into(), tokens, &operands);
            let any = Tensor(F32, vec![T, count], Any);
            let [x, _, gate, up, down] = operands;
            let function = ExpertGate::ClampedSwish {
                alpha: 1.5,
                limit: 4.0,
            };
            let op = Experts { function, used: 5 };
            let bias = |n: usize| Weight(F32, vec![count, n]);
            let biases = [bias(inner), bias(inner), bias(width)];
            let [gate_bias, up_bias, down_bias] = biases;
            let operands = [x, any, gate, up, down, gate_bias, up_bias, down_bias];
            add(op.into(), tokens, &operands);
        }
    }
    cases
}

/// Rows alone have the bits that they have among others.
fn rows_alone(backend: &dyn Backend, options: &CompileOptions, dtype: DType) -> Result<(), String> {
    const ROWS: usize = 37;
    let (count, depth, inner, width) = (6, 64, 96, 32);
    let mut noise = TestRng::new(77);
    let mut b = GraphBuilder::new("experts");
    let t = b.symbol("T");
    let x = b.input("x", F32, [t, depth.into()]);
    let logits = b.input("logits", F32, [t, count.into()]);
    let mut weight = |name: &str, shape: [usize; 2]| {
        let data = noise.weights(dtype, shape.iter().product());
        b.constant(name, dtype, &shape, data).expect("a weight")
    };
    let gate = weight("gate", [count * inner, depth]);
    let up = weight("up", [count * inner, depth]);
    let down = weight("down", [count * width, inner]);
    let route = RouteExperts {
        used: 2,
        scores: ExpertScores::Softmax,
        normalise: true,
        scale: 1.0,
        groups: None,
    };
    let weights = b.node("route", route, &[logits]).expect("a routing");
    let function = ExpertGate::Gated(Activation::Silu);
    let op = Experts { function, used: 2 };
    let y = b.node("experts", op, &[x, weights, gate, up, down]);
    let graph = b.finish(&[y.expect("experts")]).expect("a graph");
    let graph = Arc::new(graph);
    let xs = noise.units(ROWS * depth);
    let logits = noise.units(ROWS * count);
    let rows = |from: usize, to: usize| {
        [
            Value::f32([to - from, depth], xs[from * depth..to * depth].to_vec()),
            Value::f32(
                [to - from, count],
                logits[from * count..to * count].to_vec(),
            ),
        ]
    };
    let all = evaluate(backend, options, &graph, &rows(0, ROWS))?;
    for size in [1, 5] {
        for from in (0..ROWS).step_by(size) {
            let to = ROWS.min(from + size);
            let some = evaluate(backend, options, &graph, &rows(from, to))?;
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            if !some.iter().zip(&all[from * width..]).all(same) {
                return Err(format!(
                    "rows {from} to {to} differ from those among {ROWS}"
                ));
            }
        }
    }
    Ok(())
}

fn evaluate(
    backend: &dyn Backend,
    options: &CompileOptions,
    graph: &Arc<Graph>,
    inputs: &[Value],
) -> Result<Vec<f32>, String> {
    let executable = backend.compile(graph.clone(), options);
    let mut executable = executable.map_err(|e| e.to_string())?;
    let outputs = executable.run(inputs, None, None);
    let outputs = outputs.map_err(|e| e.to_string())?;
    Ok(outputs[0].as_f32().expect("f32").to_vec())
}
