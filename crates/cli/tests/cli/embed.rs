//! `kvark embed`, and the errors of other commands for an encoder.

use crate::support::*;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A tiny encoder of 32 positions, and the embeddings of some texts from transformers.
fn encoder() -> (Vec<u8>, Vec<Value>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/encoder");
    let truth = fs::read_to_string(folder.join("bert.json")).unwrap();
    let truth: Value = serde_json::from_str(&truth).unwrap();
    let texts = truth["texts"].as_array().unwrap().clone();
    (fs::read(folder.join("bert.gguf")).unwrap(), texts)
}

fn numbers(list: &Value) -> Vec<f64> {
    let list = list.as_array().unwrap().iter();
    list.map(|x| x.as_f64().unwrap()).collect()
}

#[track_caller]
fn near(found: &[f64], wanted: &Value) {
    let wanted = numbers(wanted);
    assert_eq!(found.len(), wanted.len());
    let far = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs());
    assert!(far.fold(0.0, f64::max) < 2e-6, "{found:?} {wanted:?}");
}

#[test]
fn texts_become_lines_and_json() {
    let folder = Folder::new();
    let (bytes, truth) = encoder();
    let model = &*folder.file("encoder.gguf", bytes);
    // The last text has no line end; one text holds a tab, which does not end a line.
    let texts: Vec<&str> = truth.iter().map(|t| t["text"].as_str().unwrap()).collect();
    let file = &*folder.file("texts", texts.join("\n") + "\n");
    let named = [&["embed", model], &texts[..]].concat();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/encoder/bert");
    let flagged = [&["embed", "-m", model], &texts[..], &["-t", "1"]].concat();
    let lines = folder.run(&named).ok();
    assert_eq!(lines.lines().count(), texts.len());
    for (line, truth) in lines.lines().zip(&truth) {
        let found: Vec<f64> = line.split(' ').map(|x| x.parse().unwrap()).collect();
        near(&found, &truth["mean"]);
    }
    assert_eq!(folder.run(&flagged).ok(), lines);
    // The same model as a folder of Hugging Face, with its tokenizer.
    let of_folder = [&["embed", own.to_str().unwrap()], &texts[..]].concat();
    assert_eq!(folder.run(&of_folder).ok(), lines);
    assert_eq!(folder.run(&["embed", model, "--file", file]).ok(), lines);
    for args in [&["embed", model, "-f", "-"][..], &["embed", model]] {
        let piped = folder.run_with_input(args, &texts.join("\r\n"));
        assert_eq!(piped.ok(), lines, "{args:?}");
    }
    for pooling in ["mean", "cls", "last"] {
        let args = ["embed", model, "-f", file, "--pooling", pooling, "--json"];
        let found = folder.run(&args).json();
        assert_eq!(
            (&found["pooling"], &found["dimensions"]),
            (&pooling.into(), &32.into())
        );
        assert_eq!(
            (&found["normalized"], &found["architecture"]),
            (&true.into(), &"bert".into())
        );
        assert_eq!(found["timings"]["texts_n"], texts.len());
        for (row, truth) in found["embeddings"].as_array().unwrap().iter().zip(&truth) {
            near(&numbers(&row["embedding"]), &truth[pooling]);
            assert_eq!(row["tokens"], truth["ids"].as_array().unwrap().len());
        }
    }
    let interpreted = [&named[..], &["--interpret", "--normalize"]].concat();
    assert_eq!(folder.run(&interpreted).ok(), lines);
    let plain = folder.run(&[&named[..], &["--no-normalize"]].concat()).ok();
    assert_ne!(plain, lines);
}

#[test]
fn what_cannot_be_embedded_is_named() {
    let folder = Folder::new();
    let encoder = &*folder.file("encoder.gguf", encoder().0);
    let bare = &*folder.file("bare.gguf", bare_model());
    let long = &*"cat ".repeat(40);
    let cases: &[(&[&str], &str)] = &[
        (&["embed"], "no model"),
        (&["embed", encoder], "nothing to embed"),
        (
            &["embed", encoder, "a", "-f", "b"],
            "or with --file, not both",
        ),
        (&["embed", "missing.gguf", "a"], "missing.gguf"),
        (&["embed", encoder, "-f", "missing.txt"], "missing.txt"),
        (
            &["embed", encoder, "a", long],
            "text 2 has 42 tokens and the model accepts 32",
        ),
        (
            &["embed", encoder, "a", "--mem-limit", "1k"],
            "the limit is 1.0 kB",
        ),
        (&["embed", bare, "a"], "no usable tokenizer"),
        (
            &["run", encoder, "-p", "a"],
            "the model (bert) is an encoder",
        ),
        (
            &["run", encoder, "-p", "a", "--parallel", "2"],
            "kvark embed",
        ),
        (&["chat", encoder, "-p", "a"], "kvark embed"),
        (&["score", encoder, "-p", "a"], "kvark embed"),
        (&["bench", encoder], "kvark embed"),
    ];
    for (args, named) in cases {
        let error = folder.run(args).error();
        assert!(error.contains(named), "{args:?}: {error}");
    }
    let cut = folder
        .run(&["embed", encoder, long, "--truncate", "--json"])
        .json();
    assert_eq!(cut["embeddings"][0]["tokens"], 32);
    let usage = folder.run(&["embed", encoder, "a", "--pooling", "max"]);
    assert_eq!(usage.code, Some(2));
}

#[test]
fn a_decoder_gives_its_last_hidden_state() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let found = folder.run(&["embed", tiny, "ab", "--json"]).json();
    assert_eq!(
        (&found["pooling"], &found["dimensions"]),
        (&"last".into(), &32.into())
    );
    let error = folder.run(&["embed", tiny, "ab", ""]).error();
    assert!(error.contains("text 2 has no tokens"), "{error}");
}

#[test]
fn other_commands_show_an_encoder() {
    let folder = Folder::new();
    let (bytes, truth) = encoder();
    let model = &*folder.file("encoder.gguf", bytes);
    let found = folder.run(&["inspect", model, "--json"]).json();
    assert_eq!(
        (&found["pooling"], &found["runs"]),
        (&"mean".into(), &true.into())
    );
    assert_eq!(
        (
            &found["ops"]["attention"],
            found["ops"].get("update_and_attend")
        ),
        (&2.into(), None)
    );
    let shown = folder.run(&["inspect", model]).ok();
    assert!(
        shown.contains("embedding     32 elements, pooling mean"),
        "{shown}"
    );

    let plan = folder.run(&["plan", model, "--json"]).json();
    assert_eq!(
        (&plan["kv"]["bytes"], &plan["logits"]["bytes"]),
        (&0.into(), &0.into())
    );
    assert_eq!(
        (&plan["context"], &plan["step"]["tokens"]),
        (&32.into(), &32.into())
    );
    assert!(folder.run(&["plan", model]).ok().contains("no cache"));
    folder.run(&["plan", model, "--map"]).ok();
    let svg = folder.path("plan.svg");
    folder
        .run(&["plan", model, "--svg", svg.to_str().unwrap()])
        .ok();
    assert!(fs::read_to_string(svg).unwrap().contains("no cache"));
    let error = folder.run(&["plan", model, "-c", "64"]).error();
    assert!(error.contains("32 rows"), "{error}");

    for text in &truth {
        let words = text["text"].as_str().unwrap();
        let found = folder
            .run(&["tokenize", model, "-p", words, "--bos", "--json"])
            .json();
        let mut wanted = text["ids"].as_array().unwrap().clone();
        wanted.pop();
        assert_eq!(found["tokens"], Value::Array(wanted));
    }
}
