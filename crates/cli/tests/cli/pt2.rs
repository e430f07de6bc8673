//! Exported models: every command on the archives that `python/kvark_export` made.

use crate::support::*;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A checked-in export.
fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/pt2");
    folder.join(name)
}

fn export(name: &str) -> String {
    let path = fixture(&format!("{name}.pt2"));
    path.to_str().unwrap().to_owned()
}

/// A `.npy` file of this element type and shape.
fn npy(descr: &str, shape: &[usize], elements: &[u8]) -> Vec<u8> {
    let dims: String = shape.iter().map(|n| format!("{n},")).collect();
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}\n");
    let len = u16::try_from(header.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00", &len[..], header.as_bytes(), elements].concat()
}

fn floats(list: &[f32]) -> Vec<u8> {
    list.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A zip with one empty member.
fn zip(member: &str) -> Vec<u8> {
    let name_len = u16::try_from(member.len()).unwrap().to_le_bytes();
    let local = [
        b"PK\x03\x04\x14\x00",
        &[0; 20][..],
        &name_len,
        &[0; 2],
        member.as_bytes(),
    ]
    .concat();
    let central = [
        b"PK\x01\x02\x14\x00\x14\x00",
        &[0; 20][..],
        &name_len,
        &[0; 16],
        member.as_bytes(),
    ]
    .concat();
    let sizes = [central.len(), local.len()].map(|n| u32::try_from(n).unwrap().to_le_bytes());
    let end = [
        b"PK\x05\x06\x00\x00\x00\x00\x01\x00\x01\x00",
        &sizes.concat()[..],
        &[0; 2],
    ]
    .concat();
    [local, central, end].concat()
}

#[test]
fn inspect_shows_an_export() {
    let folder = Folder::new();
    let decoder = &*export("decoder_llama");
    let found = folder.run(&["inspect", decoder, "--json"]).json();
    assert_eq!(
        (&found["format"], &found["architecture"], &found["runs"]),
        (&json!("pt2"), &json!("llama"), &json!(true))
    );
    assert_eq!(
        (&found["context_length"], &found["vocab_size"]),
        (&json!(64), &json!(48))
    );
    assert_eq!(found["ops"]["update_and_attend"], 2);
    let program = &found["programs"][0];
    assert_eq!(program["ops"]["aten.embedding.default"], 1);
    assert_eq!(program["unknown_ops"], json!([]));
    let inputs = found["methods"][0]["inputs"].as_array().unwrap();
    let names: Vec<_> = inputs.iter().map(|input| &input["name"]).collect();
    assert_eq!(names, ["tokens", "position", "rows"]);

    let shown = folder.run(&["inspect", decoder]).ok();
    for line in [
        "format        pt2",
        "architecture  llama",
        "  update_and_attend",
        "  forward(tokens: i32[T], position: i32[T], rows: i32[R]) -> ",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let graph = folder.run(&["inspect", decoder, "--graph"]).ok();
    assert!(graph.starts_with("graph forward(tokens: i32[T]"), "{graph}");

    let methods = folder
        .run(&["inspect", &export("methods"), "--json"])
        .json();
    let methods = methods["methods"].as_array().unwrap();
    let mut names: Vec<_> = methods
        .iter()
        .map(|m| m["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["decode", "encode"]);
}

#[test]
fn buffers_that_a_program_writes_to_are_shown() {
    let folder = Folder::new();
    let model = &*export("states");
    let shown = folder.run(&["inspect", model]).ok();
    assert!(shown.contains("    keeps n: i64[]"), "{shown}");
    let found = folder.run(&["inspect", model, "--json"]).json();
    let methods = found["methods"].as_array().unwrap();
    let ring = methods.iter().find(|m| m["name"] == "ring").unwrap();
    let kept = ring["states"].as_array().unwrap().iter();
    let kept: Vec<_> = kept.map(|state| &state["name"]).collect();
    assert_eq!(kept, ["rows", "at"]);
    let args = ["exec", model, "--method", "counter", "--random"];
    let shown = folder.run(&args).ok();
    assert!(shown.contains("n (state): i64[] mean 1.000000"), "{shown}");
    // Every measured run is the first one.
    let report = folder
        .run(&[&args[..], &["--repeat", "3", "--json"]].concat())
        .json();
    assert_eq!(report["states"][0]["max"], 1.0);
}

#[test]
fn exec_gives_what_pytorch_gives() {
    let folder = Folder::new();
    let golden = fs::read_to_string(fixture("mlp.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let numbers = |tensor: &Value| -> Vec<f32> {
        let list = tensor["data"].as_array().unwrap().iter();
        list.map(|x| x.as_f64().unwrap() as f32).collect()
    };
    for case in golden["cases"].as_array().unwrap() {
        let (input, truth) = (&case["inputs"][0], &case["outputs"][0]);
        let rows = input["shape"][0].as_u64().unwrap() as usize;
        let x = npy("<f4", &[rows, 16], &floats(&numbers(input)));
        let x = format!("input={}", folder.file("x.npy", x));
        let results = folder.path("results");
        let results = results.to_str().unwrap();
        for more in [
            &[][..],
            &["--passes", "none"],
            &["--executor", "interpreted"],
        ] {
            let args = [
                "exec",
                &export("mlp"),
                "--input",
                &x,
                "--output",
                results,
                "--json",
            ];
            let report = folder.run(&[&args[..], more].concat()).json();
            let output = &report["outputs"][0];
            assert_eq!(output["shape"], truth["shape"], "{more:?}");
            let file = format!("{results}/{}.npy", output["name"].as_str().unwrap());
            let bytes = fs::read(file).unwrap();
            let (elements, _) = bytes[bytes.len() - rows * 8 * 4..].as_chunks();
            for (found, truth) in elements.iter().zip(numbers(truth)) {
                let found = f32::from_le_bytes(*found);
                assert!((found - truth).abs() < 1e-4, "{more:?}: {found} {truth}");
            }
        }
    }
}

#[test]
fn exec_makes_up_inputs_and_traces_every_node() {
    let folder = Folder::new();
    let mlp = &*export("mlp");
    let args = ["exec", mlp, "--random", "--json"];
    let first = folder.run(&args).json();
    assert_eq!(first["outputs"][0]["shape"], json!([1, 8]));
    assert!(first["arena_bytes"].as_u64().unwrap() > 0);
    assert_eq!(first, folder.run(&args).json(), "a seed repeats the run");
    let other = folder.run(&[&args[..], &["--seed", "9"]].concat()).json();
    assert_ne!(first, other);
    let timed = folder.run(&[&args[..], &["--repeat", "3"]].concat()).json();
    assert_eq!(timed["microseconds"]["runs"], 3);

    let traces = folder.path("traces");
    let trace = ["--trace", traces.to_str().unwrap(), "--passes", "none"];
    let traced = folder.run(&[&args[..], &trace].concat()).json();
    let nodes = traced["trace"].as_array().unwrap();
    assert!(nodes.len() >= 5, "{traced}");
    for node in nodes {
        let file = traces.join(format!("{}.npy", node["name"].as_str().unwrap()));
        let bytes = fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        assert!(bytes.starts_with(b"\x93NUMPY"), "{}", file.display());
    }
    assert_eq!(fs::read_dir(&traces).unwrap().count(), nodes.len());
    let mean = |report: &Value| report["outputs"][0]["mean"].as_f64().unwrap();
    assert!((mean(&traced) - mean(&first)).abs() < 1e-5);
    let shown = folder.run(&["exec", mlp, "--random", "--trace"]).ok();
    assert!(shown.contains(" (output): f32[1, 8] mean "), "{shown}");

    // A dynamic size, and one method of several.
    let sized = folder
        .run(&[
            "exec",
            mlp,
            "--random",
            "--dim",
            &symbol(&folder, mlp),
            "--json",
        ])
        .json();
    assert_eq!(sized["outputs"][0]["shape"], json!([5, 8]));
    let methods = &*export("methods");
    let decode = folder.run(&["exec", methods, "--method", "decode", "--random", "--json"]);
    assert_eq!(decode.json()["outputs"].as_array().unwrap().len(), 1);
}

/// A `--dim` that makes the first input's first size 5.
fn symbol(folder: &Folder, model: &str) -> String {
    let found = folder.run(&["inspect", model, "--json"]).json();
    let name = &found["methods"][0]["inputs"][0]["shape"][0];
    format!("{}=5", name.as_str().unwrap())
}

#[test]
fn run_and_score_decode_an_export() {
    let folder = Folder::new();
    for name in [
        "decoder_llama",
        "decoder_qwen2",
        "decoder_qwen3",
        "decoder_gemma3",
        "decoder_gpt2",
    ] {
        let decoder = &*export(name);
        let args = ["--token-ids", "1,2,3", "--json"];
        let run = |more: &[&str]| {
            let plain = ["run", decoder, "-n", "4", "--temp", "0", "--ignore-eos"];
            let report = folder.run(&[&plain[..], &args, more].concat()).json();
            assert_eq!(report["prompt_tokens"], json!([1, 2, 3]), "{name}");
            assert_eq!(report["timings"]["predicted_n"], 4, "{name}");
            assert!(report["memory"]["kv_bytes"].as_u64().unwrap() > 0);
            report["tokens"].clone()
        };
        let tokens = run(&[]);
        for more in [
            &[][..],
            &["--executor", "interpreted"],
            &["--passes", "none"],
            &["--batch-size", "1", "--threads", "1"],
        ] {
            assert_eq!(run(more), tokens, "{name} {more:?}");
        }
        let score = folder
            .run(&[&["score", decoder], &args[..]].concat())
            .json();
        assert_eq!(score["ids"], json!([1, 2, 3]));
        assert_eq!(score["argmax"][2], tokens[0], "{name}");
        assert_eq!(score["logprob"].as_array().unwrap().len(), 2);
        assert!(score["perplexity"].as_f64().unwrap() > 1.0);
    }
}

#[test]
fn each_bad_export_and_input_is_named_on_one_line() {
    let folder = Folder::new();
    let (mlp, decoder) = (&*export("mlp"), &*export("decoder_llama"));
    let whole = fs::read(mlp).unwrap();
    let half = &*folder.file("half.pt2", &whole[..whole.len() / 2]);
    let empty = &*folder.file("empty.pt2", "");
    let text = &*folder.file("text.pt2", "this is not a model\n");
    let other = &*folder.file("other.pt2", zip("hello.txt"));
    let tensor = |name: &str, bytes: Vec<u8>| format!("input={}", folder.file(name, bytes));
    let good = &*tensor("good.npy", npy("<f4", &[1, 16], &floats(&[0.5; 16])));
    let narrow = &*tensor("narrow.npy", npy("<f4", &[1, 15], &floats(&[0.5; 15])));
    let flat = &*tensor("flat.npy", npy("<f4", &[16], &floats(&[0.5; 16])));
    let long = &*tensor("long.npy", npy("<f4", &[65, 16], &floats(&[0.5; 65 * 16])));
    let integers = &*tensor("integers.npy", npy("<i8", &[1, 16], &[0; 128]));
    let short = &*tensor("short.npy", npy("<f4", &[1, 16], &[0; 4]));
    let misnamed = &*good.replace("input=", "output=");
    let exec = |input| ["exec", mlp, "--input", input];

    let cases: &[(&[&str], &str)] = &[
        (&["inspect", half], "half.pt2"),
        (&["exec", half, "--random"], "half.pt2"),
        (&["run", half, "--token-ids", "1"], "half.pt2"),
        (&["inspect", empty], "empty.pt2"),
        (&["inspect", text], "text.pt2"),
        (&["inspect", other], "other.pt2"),
        (&["exec", other, "--random"], "archive_format"),
        (&["exec", mlp], "the input input: f32["),
        (&exec(misnamed), "there is no input \"output\""),
        (&exec(narrow), "input"),
        (&exec(flat), "input"),
        (&exec(long), "must be from 1 to 64"),
        (&exec(integers), "input input is i64, must be f32"),
        (&exec(short), "short.npy is not a usable .npy file"),
        (&exec("input=missing.npy"), "missing.npy"),
        (
            &["exec", mlp, "--input", good, "--input", good],
            "the input \"input\" was given twice",
        ),
        (
            &["exec", mlp, "--random", "--method", "backward"],
            "\"backward\"",
        ),
        (&["exec", &export("methods"), "--random"], "name one of "),
        (
            &["exec", mlp, "--random", "--passes", "nonsense"],
            "nonsense",
        ),
        (
            &["exec", mlp, "--random", "--trace", "--executor", "compiled"],
            "--trace",
        ),
        (&["run", mlp, "--token-ids", "1"], "not a decoder"),
        (&["score", mlp, "--token-ids", "1,2"], "not a decoder"),
        (
            &["run", decoder, "--token-ids", "48"],
            "token id 48 is outside the model's vocabulary of 48",
        ),
        (&["run", decoder, "-p", "a"], "no usable tokenizer"),
    ];
    for (args, named) in cases {
        let error = folder.run(args).error();
        assert!(error.contains(named), "{args:?}: {error}");
    }
}
