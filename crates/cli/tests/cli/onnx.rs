//! ONNX models: inspecting and running them.

use crate::support::*;
use std::path::Path;

/// A checked-in model.
fn model(name: &str) -> String {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvark/tests/onnx_node/own");
    let path = own.join(name).join("model.onnx");
    path.to_str().unwrap().to_owned()
}

#[test]
fn inspect_shows_inputs_outputs_and_ops() {
    let folder = Folder::new();
    let shown = folder.run(&["inspect", &model("classic_cache")]).ok();
    for part in [
        "format        onnx IR 10, opset 17, com.microsoft 1",
        "\ninputs\n  ids: i64[batch, sequence_length]\n  mask: i64[batch, total_sequence_length]\n",
        "  past: f32[batch, 2, past_sequence_length, 8]\n",
        "\noutputs\n  y: f32[]\n",
        "  table  f32     [11, 16]\n",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    let json = folder
        .run(&["inspect", "--json", &model("gqa_decode")])
        .json();
    assert_eq!(json["format"], "onnx");
    assert_eq!(
        json["programs"][0]["ops"]["com.microsoft::GroupQueryAttention"],
        1
    );
    assert_eq!(
        json["programs"][0]["unknown_ops"].as_array().unwrap().len(),
        0
    );
    assert_eq!(
        json["programs"][0]["inputs"][0],
        "q: f32[1, sequence_length, 64]"
    );
}

#[test]
fn unknown_ops_are_listed_and_refused() {
    let folder = Folder::new();
    let bytes = std::fs::read(model("simplified")).unwrap();
    let name = b"SimplifiedLayerNormalization";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap();
    let mut changed = bytes.clone();
    changed[at..at + 10].copy_from_slice(b"Mysterious");
    let path = folder.file("model.onnx", &changed);
    let shown = folder.run(&["inspect", &path]).ok();
    assert!(shown.contains("cannot be run"), "{shown}");
    assert!(
        shown.contains("unknown op    MysteriousLayerNormalization"),
        "{shown}"
    );
    let error = folder.run(&["exec", &path, "--random"]).error();
    assert!(error.contains("MysteriousLayerNormalization"), "{error}");
    let broken = folder.file("broken.onnx", &bytes[..bytes.len() / 2]);
    let error = folder.run(&["inspect", &broken]).error();
    assert!(
        error.contains("broken.onnx: the model ends inside a field"),
        "{error}"
    );
}

#[test]
fn exec_makes_up_sizes_that_are_sums() {
    let folder = Folder::new();
    let dims = [
        "--dim",
        "past_sequence_length=3",
        "--dim",
        "sequence_length=2",
    ];
    let path = model("classic_cache");
    let args = [&["exec", &path[..], "--random", "--json"], &dims[..]].concat();
    let json = folder.run(&args).json();
    assert!(json.to_string().contains("present"), "{json}");
}
