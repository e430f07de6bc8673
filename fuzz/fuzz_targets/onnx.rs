//! Any model, as exported and as a decoder: an error or a graph, never a panic.

#![no_main]

use base::Bytes;
use import::onnx::{self, Onnx};
use import::{ImportError, ImportOptions};
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
});

/// Messages are made from the file's own names and numbers, yet short and harmless to print.
fn check_message(error: &ImportError) {
    let message = error.to_string();
    assert!(!message.is_empty() && !message.contains(char::is_control), "{message:?}");
    assert!(message.len() < 200_000);
}
