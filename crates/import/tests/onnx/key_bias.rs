//! A decoder over static buffers whose attention adds a bias that varies by key: with its buffers as inputs and outputs
//! it gives the numbers of plain loops.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend::reference::Reference;
use backend::{Backend, Runnable};
use base::Bytes;
use graph::Value;
use graph::ops::{AttendedRow, ScoreParams, attend_row};
use import::onnx::{Onnx, lower_with};

use crate::writer::{F32, I64, Model, int_attribute, node, port, tensor};

const ROWS: usize = 8;
const DIM: usize = 4;

/// The score that a key gets on top, whoever asks.
fn bias(key: usize) -> f32 {
    [0.5, -1.0, 2.0, 0.0, -3.0, 1.5, 0.25, -0.5][key]
}

/// One head: the new rows are written to the buffers at `write_indices`, and attention sees `nonpad_kv_seqlen` of them.
fn model() -> Model {
    let write = |cache: &str, rows: &str, to: &str| {
        let scatter = node("TensorScatter", &[cache, rows, "write_indices"], &[to]);
        scatter.message(5, &int_attribute("axis", 1))
    };
    let operands = [
        "q",
        "new_keys",
        "new_values",
        "bias",
        "",
        "",
        "nonpad_kv_seqlen",
    ];
    let attention = ["q_num_heads", "kv_num_heads", "is_causal"]
        .iter()
        .fold(node("Attention", &operands, &["y"]), |node, name| {
            node.message(5, &int_attribute(name, 1))
        });
    let biases: Vec<u8> = (0..ROWS).flat_map(|key| bias(key).to_le_bytes()).collect();
    let (step, buffer) = (["1", "tokens", "4"], ["1", "8", "4"]);
    Model {
        nodes: vec![
            write("keys", "k", "new_keys"),
            write("values", "v", "new_values"),
            attention,
        ],
        tensors: vec![tensor("bias", &[1, ROWS as i64], F32, &biases)],
        inputs: vec![
            port("q", F32, &step),
            port("k", F32, &step),
            port("v", F32, &step),
            port("keys", F32, &buffer),
            port("values", F32, &buffer),
            port("write_indices", I64, &["1"]),
            port("nonpad_kv_seqlen", I64, &["1"]),
        ],
        outputs: vec![
            port("y", F32, &step),
            port("new_keys", F32, &buffer),
            port("new_values", F32, &buffer),
        ],
        ..Model::default()
    }
}

/// Numbers around zero that differ.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0;
    (0..count).map(number).collect()
}

#[test]
fn a_bias_by_key_is_added_to_the_scores_of_static_buffers() {
    let file = Onnx::parse(Bytes::from(&model().bytes()[..]), None).unwrap();
    for optimised in [false, true] {
        let mut graph = lower_with(&file, &BTreeMap::new()).unwrap();
        if optimised {
            graph::passes::optimise(&mut graph).unwrap();
        }
        let graph = Arc::new(graph);
        let executable = Reference
            .compile(graph.clone(), &Default::default())
            .unwrap();
        let mut runnable = Runnable::bind(graph, executable, None).unwrap();
        // Rows that are not valid may hold anything.
        let mut buffers = [vec![9e9; ROWS * DIM], vec![9e9; ROWS * DIM]];
        let mut past: Vec<(Vec<f32>, Vec<f32>)> = vec![];
        for (step, tokens) in [3, 1, 2].into_iter().enumerate() {
            let [q, k, v] = [1, 2, 3].map(|seed| numbers(tokens * DIM, 3 * step + seed));
            let rows = |data: &Vec<f32>| Value::f32([1, tokens, DIM], data.clone());
            let index = |n: usize| Value::i64([1], vec![n as i64]);
            let [keys, values] = buffers.clone().map(|all| Value::f32([1, ROWS, DIM], all));
            let outputs = runnable
                .run(&[
                    rows(&q),
                    rows(&k),
                    rows(&v),
                    keys,
                    values,
                    index(past.len()),
                    index(past.len() + tokens),
                ])
                .unwrap();
            let outputs: Vec<Vec<f32>> = outputs
                .iter()
                .map(|value| value.as_f32().unwrap().to_vec())
                .collect();
            buffers = [outputs[1].clone(), outputs[2].clone()];
            for token in 0..tokens {
                let row = |all: &[f32]| all[token * DIM..][..DIM].to_vec();
                past.push((row(&k), row(&v)));
                let rows: Vec<AttendedRow<'_>> = past
                    .iter()
                    .enumerate()
                    .map(|(at, (key, value))| AttendedRow {
                        key,
                        value,
                        bias: bias(at),
                    })
                    .collect();
                let scoring = ScoreParams {
                    scale: 0.5,
                    softcap: None,
                };
                let mut expect = vec![0.0; DIM];
                attend_row(scoring, &row(&q), &rows, &mut expect);
                for (found, expect) in row(&outputs[0]).iter().zip(&expect) {
                    assert!((found - expect).abs() < 1e-5, "{found} instead of {expect}");
                }
            }
        }
    }
}
