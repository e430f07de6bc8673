//! `kvark exec`: decoders with a cache per run, and invalid sizes.

use crate::support::*;
use serde_json::Value;
use std::path::Path;

fn fixture(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    path.to_str().unwrap().to_owned()
}

/// A decoder of every format, with the `--dim` that sets the length of its step.
fn decoders(folder: &Folder) -> Vec<(String, &'static str)> {
    let pt2 = |name: &str| fixture(&format!("import/tests/fixtures/pt2/{name}.pt2"));
    let onnx = |name: &str| fixture(&format!("kvark/tests/onnx/{name}.onnx"));
    vec![
        (folder.file("tiny.gguf", bare_model()), "T=5"),
        (fixture("import/tests/fixtures/decoder/gemma3.gguf"), "T=5"),
        (pt2("decoder_llama"), ""),
        (pt2("decoder_gemma3"), ""),
        (onnx("llama_past"), ""),
        (onnx("llama_gqa"), ""),
        (onnx("llama"), ""),
    ]
}

#[test]
fn decoders_run_and_trace_on_a_cache_of_the_call_s_own() {
    let folder = Folder::new();
    for (model, dim) in decoders(&folder) {
        let mut args = vec!["exec", &model, "--random", "--json"];
        if !dim.is_empty() {
            args.extend(["--dim", dim]);
        }
        let first = folder.run(&args).json();
        let logits = &first["outputs"][0];
        assert_eq!(logits["not_numbers"], 0, "{model}: {first}");
        assert_ne!(logits["min"], logits["max"], "{model}: {first}");
        // Every run begins with an empty cache, so runs can be repeated.
        let repeated = folder.run(&[&args[..], &["--repeat", "2"]].concat()).json();
        assert_eq!(repeated["outputs"], first["outputs"], "{model}");
        let traced = folder.run(&[&args[..], &["--trace"]].concat()).json();
        let nodes = traced["trace"].as_array().unwrap();
        assert!(nodes.len() > 10, "{model}: {traced}");
        let close = |key: &str| {
            let number = |report: &Value| report["outputs"][0][key].as_f64().unwrap();
            (number(&first) - number(&traced)).abs() < 1e-3
        };
        assert!(close("mean") && close("max"), "{model}: {first} {traced}");
    }
}

#[test]
fn random_tokens_lie_in_the_vocabulary_and_positions_count() {
    let folder = Folder::new();
    let model = folder.file("tiny.gguf", bare_model());
    let traces = folder.path("traces");
    let path = traces.to_str().unwrap();
    let args = ["exec", &model, "--random", "--dim", "T=40", "--dim", "R=3"];
    let shown = folder.run(&[&args[..], &["--trace", path, "--json"]].concat());
    let report = shown.json();
    assert_eq!(report["outputs"][0]["shape"], serde_json::json!([3, 64]));
    // Another seed gives other tokens.
    let run = |seed: &str| folder.run(&[&args[..], &["--seed", seed]].concat()).ok();
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn sizes_that_cannot_be_are_named() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", bare_model());
    let mlp = &*fixture("import/tests/fixtures/pt2/mlp.pt2");
    let past = &*fixture("kvark/tests/onnx_node/own/classic_cache/model.onnx");
    let huge = "past_sequence_length=999999999999";
    let overflow = "past_sequence_length=18446744073709551615";
    let cases: &[(&str, &str, &[&str])] = &[
        (tiny, "tokens=5", &["no dynamic size \"tokens\"", "T, R"]),
        (past, huge, &["needs", "are free"]),
        (past, overflow, &["too large"]),
        (tiny, "T=999999999999", &["needs", "are free"]),
        (
            mlp,
            "s31=999999999999",
            &["the size s31 is 999999999999, must be from 1 to 64"],
        ),
        (
            mlp,
            "batch=4",
            &["no dynamic size \"batch\"; the dynamic sizes are s31;"],
        ),
    ];
    for (model, dim, words) in cases {
        let error = folder
            .run(&["exec", model, "--random", "--dim", dim])
            .error();
        for word in *words {
            assert!(error.contains(word), "{dim}: {error}");
        }
    }
    for size in ["T=-3", "T=many"] {
        let bad = folder.run(&["exec", tiny, "--random", "--dim", size]);
        assert_eq!(bad.code, Some(2), "{bad:?}");
        assert!(bad.stderr.contains("whole number"), "{bad:?}");
    }
}

#[test]
fn steps_continue_in_the_static_buffers_of_a_decoder() {
    let folder = Folder::new();
    let model = fixture("kvark/tests/onnx/llama.onnx");
    let exec = |args: &[&str]| folder.run(&[&["exec", &model, "--json"], args].concat());
    let whole = exec(&["--step", "3,14,15,9"]).json();
    assert_eq!(whole["outputs"].as_array().unwrap().len(), 1, "{whole}");
    let parts = exec(&["--step", "3,14,15", "--step", "9"]).json();
    assert_eq!(parts["outputs"][0]["shape"], serde_json::json!([1, 1, 32]));
    let more = exec(&["--step", "3,14", "--step", "15", "--step", "9"]).json();
    assert_eq!(parts["outputs"], more["outputs"]);
    assert_ne!(parts["outputs"], exec(&["--step", "9"]).json()["outputs"]);
    // The second sequence is padded in the first step.
    let two = exec(&["--step", "3,14,15;7", "--step", "9;8"]).json();
    assert_eq!(two["outputs"][0]["shape"], serde_json::json!([2, 1, 32]));
    let error = exec(&["--step", "1;2", "--step", "1"]).error();
    assert!(error.contains("sequences"), "{error}");
    let long = ["1"; 17].join(",");
    let error = exec(&["--step", &long]).error();
    let text = "sequence 0 needs 17 rows, and static buffers have a max_seq_len of 16";
    assert!(error.contains(text), "{error}");
    let other = fixture("kvark/tests/onnx/llama_past.onnx");
    let error = folder.run(&["exec", &other, "--step", "1"]).error();
    assert!(error.contains("the model has no static buffers"), "{error}");
}
