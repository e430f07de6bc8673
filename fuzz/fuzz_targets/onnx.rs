//! Any model, as exported and as a decoder: an error or a graph, never a panic.

#![no_main]

use base::{Bytes, DType};
use graph::{Bindings, Data, MAX_SYMBOLS, Value};
use import::onnx::{self, Onnx};
use import::{ImportError, ImportOptions, Stage};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = onnx::read_tensor(&Bytes::from(bytes));
    let file = match Onnx::parse(Bytes::from(bytes), None) {
        Ok(file) => file,
        Err(error) => return check_message(&error),
    };
    file.ops();
    file.unknown_ops();
    for as_exported in [false, true] {
        let options = ImportOptions {
            as_exported,
            ..ImportOptions::default()
        };
        match onnx::lower(&file, None, &options) {
            Ok(model) => {
                for method in &model.methods {
                    assert!(method.graph.verify().is_ok());
                    let mut graph = method.graph.clone();
                    graph::passes::optimise(&mut graph).expect("passes keep graphs sound");
                }
            }
            Err(error) => check_message(&error),
        }
    }
    stages(Bytes::from(bytes));
});

/// Lowers what depends on data in stages, with zeros for what their graphs would give.
fn stages(bytes: Bytes) {
    let options = ImportOptions {
        as_exported: true,
        by_shape: true,
        ..ImportOptions::default()
    };
    let Ok(artifact) = import::open_bytes(bytes, &options) else {
        return;
    };
    for method in &artifact.shaped {
        let shapes = method.shapes(|_| Some(3)).expect("a size for every name");
        let elements = |shape: &Vec<usize>| shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if shapes.iter().any(|shape| elements(shape).is_none_or(|n| n > MAX_ELEMENTS)) {
            continue;
        }
        let views: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).collect();
        let inputs = method.inputs.iter().zip(&shapes);
        let inputs: Option<Vec<Value>> = inputs.map(|(info, shape)| zeros(info.dtype, shape)).collect();
        let Some(mut given) = inputs else { continue };
        let mut stage = artifact.first_stage(method, &views);
        for _ in 0..4 {
            let Ok(Stage { graph, next, .. }) = stage else { break };
            let mut outputs = vec![];
            if let Some(graph) = &graph {
                assert!(graph.verify().is_ok());
                // Sizes of an earlier count are symbols.
                let at = Bindings([2; MAX_SYMBOLS]);
                for output in graph.outputs() {
                    let ty = &graph.tensor(*output).ty;
                    let shape = ty.dims(&at).filter(|shape| elements(shape).is_some_and(|n| n <= MAX_ELEMENTS));
                    let Some(value) = shape.and_then(|shape| zeros(ty.dtype, &shape)) else { return };
                    outputs.push(value);
                }
            }
            let Some(cut) = next else { break };
            let views: Vec<_> = given.iter().map(Value::view).collect();
            let Ok(inputs) = cut.resume(&views, outputs) else { break };
            stage = artifact.next_stage(&cut, &inputs);
            given = inputs.values;
        }
    }
}

const MAX_ELEMENTS: usize = 1 << 16;

fn zeros(dtype: DType, shape: &[usize]) -> Option<Value> {
    let len = shape.iter().product();
    let data = match dtype {
        DType::F32 => Data::F32(vec![0.0; len]),
        DType::I32 => Data::I32(vec![0; len]),
        DType::I64 => Data::I64(vec![0; len]),
        DType::Bool => Data::Bool(vec![false; len]),
        _ => return None,
    };
    let shape = shape.to_vec();
    Some(Value { shape, data })
}

/// Messages are made from the file's own names and numbers, yet short and harmless to print.
fn check_message(error: &ImportError) {
    let message = error.to_string();
    assert!(!message.is_empty() && !message.contains(char::is_control), "{message:?}");
    assert!(message.len() < 200_000);
}
