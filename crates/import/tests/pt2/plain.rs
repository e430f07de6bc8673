//! Programs without caches, every case of every fixture.

use std::path::Path;
use std::sync::Arc;

use backend::reference::Reference;
use backend::{Backend, Runnable};
use base::DType;
use graph::Graph;
use graph::ops::Op;

use crate::golden::{TOLERANCE, archive, distance, folder, json, names, tensor};

/// Runs all cases of a fixture on the file at `path`, its graphs changed by `prepare` first; the messages of those that went
/// wrong.
pub(crate) fn problems(path: &Path, name: &str, prepare: &dyn Fn(&mut Graph)) -> Vec<String> {
    let artifact = match import::open(path) {
        Ok(artifact) => artifact,
        Err(error) => return vec![error.to_string()],
    };
    let golden = json(&folder().join(format!("{name}.json")));
    let mut problems = vec![];
    for case in golden["cases"].as_array().unwrap() {
        let method = case["method"].as_str().unwrap();
        let mut graph = artifact.method(method).unwrap().graph.clone();
        prepare(&mut graph);
        let graph = Arc::new(graph);
        let executable = Reference
            .compile(graph.clone(), &Default::default())
            .unwrap();
        let mut runnable = Runnable::bind(graph, executable, None).unwrap();
        let list = |key: &str| case[key].as_array().unwrap().iter().map(tensor);
        let inputs: Vec<_> = list("inputs").collect();
        let outputs = match runnable.run(&inputs) {
            Ok(outputs) => outputs,
            Err(error) => {
                problems.push(format!("{name}/{method}: {error}"));
                continue;
            }
        };
        let truth: Vec<_> = list("outputs").collect();
        assert_eq!(outputs.len(), truth.len(), "{name}/{method}");
        for (found, truth) in outputs.iter().zip(&truth) {
            let right = match (found.as_f32(), truth.as_f32()) {
                _ if found.shape != truth.shape => false,
                (Some(a), Some(b)) => distance(a, b) <= TOLERANCE,
                _ => found.data == truth.data,
            };
            if !right {
                problems.push(format!("{name}/{method}: {found:?} is not {truth:?}"));
            }
        }
    }
    problems
}

fn all(prepare: &dyn Fn(&mut Graph)) {
    let names = names(|name| {
        ["decoder", "states", "refused"]
            .iter()
            .all(|kind| !name.starts_with(kind))
    });
    let problems: Vec<String> = names
        .iter()
        .flat_map(|name| problems(&archive(name), name, prepare))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn outputs_are_those_of_pytorch() {
    all(&|_| {});
}

#[test]
fn outputs_are_those_of_pytorch_after_the_passes() {
    all(&|graph| graph::passes::optimise(graph).unwrap());
}

#[test]
fn weights_stay_as_stored() {
    let table = [
        ("half_bf16", DType::BF16, 3),
        ("half_f16", DType::F16, 3),
        ("torchao_int8", DType::Q8_0, 2),
        ("torchao_int8_rows", DType::Q8_0, 2),
        ("torchao_int4", DType::Q4_0, 2),
    ];
    for (name, expect, count) in table {
        let artifact = import::open(&archive(name)).unwrap();
        let mut graph = artifact.method("forward").unwrap().graph.clone();
        graph::passes::optimise(&mut graph).unwrap();
        let weight = |node: &graph::Node| match node.op {
            Op::Linear(_) => Some(node.inputs[1]),
            Op::GatherRows(_) => Some(node.inputs[0]),
            Op::MatMul(_) | Op::Gather(_) => panic!("{name}: {}", graph.node_name(node)),
            _ => None,
        };
        let weights = graph.nodes().iter().filter_map(weight);
        let types: Vec<DType> = weights.map(|id| graph.tensor(id).ty.dtype).collect();
        assert_eq!(types, vec![expect; count], "{name}");
    }
}

#[test]
fn inputs_out_of_range_are_refused() {
    let artifact = import::open(&archive("mlp")).unwrap();
    let graph = Arc::new(artifact.method("forward").unwrap().graph.clone());
    let executable = Reference
        .compile(graph.clone(), &Default::default())
        .unwrap();
    let mut runnable = Runnable::bind(graph, executable, None).unwrap();
    let run = |runnable: &mut Runnable, rows: usize| {
        runnable.run(&[graph::Value::f32([rows, 16], vec![0.5; rows * 16])])
    };
    assert!(run(&mut runnable, 64).is_ok());
    for rows in [0, 65] {
        let error = run(&mut runnable, rows).unwrap_err().to_string();
        assert!(error.contains("from 1 to 64"), "{error}");
    }
}
