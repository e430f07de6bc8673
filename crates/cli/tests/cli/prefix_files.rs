//! Prefix files: built once, and used by runs and chats with the answers of a cold run.

use crate::support::*;
use serde_json::{Value, json};
use std::fs;

const TEXT: &str = "Hello my dear ab, it is a long text. ";

/// Builds a prefix of a text and returns its path.
fn build(folder: &Folder, model: &str, name: &str, more: &[&str]) -> String {
    let file = folder.path(name).to_str().unwrap().to_owned();
    let args = ["prefix", "build", model, "-o", &file, "-c", "200"];
    let output = folder.run(&[&args, more].concat());
    assert!(output.stderr.contains(" tokens, "), "{output:?}");
    assert_eq!(output.ok(), "");
    file
}

fn run(folder: &Folder, model: &str, more: &[&str]) -> Output {
    let args = [
        "run", model, "-c", "200", "-n", "6", "--temp", "0", "--json",
    ];
    folder.run(&[&args, more].concat())
}

/// The run of these tokens without a prefix.
fn cold(folder: &Folder, model: &str, warm: &Value) -> Value {
    let ids = warm["prompt_tokens"].as_array().unwrap();
    let ids: Vec<String> = ids.iter().map(Value::to_string).collect();
    run(folder, model, &["--token-ids", &ids.join(",")]).json()
}

#[test]
fn a_prompt_after_a_prefix_is_all_that_is_computed() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let doc = build(&folder, &tiny, "doc.kvp", &["-p", TEXT]);
    let tokens = folder.run(&["inspect", &doc, "--json"]).json();
    let len = tokens["tokens"].as_array().unwrap().len();
    for more in [
        &[][..],
        &["--cache", "cells"],
        &["--cache", "tree"],
        &["--spec-type", "ngram"],
    ] {
        let args = [&["--prefix", &doc, "-p", "Why is it so"], more].concat();
        let warm = run(&folder, &tiny, &args).json();
        let prompt = warm["prompt_tokens"].as_array().unwrap();
        assert_eq!(prompt[..len], tokens["tokens"].as_array().unwrap()[..]);
        assert_eq!(warm["reused_tokens"], len, "{more:?}");
        assert_eq!(warm["timings"]["prompt_n"], prompt.len() - len);
        assert_eq!(
            warm["tokens"],
            cold(&folder, &tiny, &warm)["tokens"],
            "{more:?}"
        );
    }
    let several = ["--prefix", &doc, "-p", "Why", "--parallel", "2"];
    let several = run(&folder, &tiny, &several).json();
    assert_eq!(several["reused_tokens"], len);
    // A prefix on it has the tokens of both texts.
    let more = build(
        &folder,
        &tiny,
        "more.kvp",
        &["-p", "And it goes on.", "--on", &doc],
    );
    let warm = run(&folder, &tiny, &["--prefix", &more, "-p", " So"]).json();
    assert!(warm["reused_tokens"].as_u64().unwrap() > len as u64 + 10);
    assert_eq!(warm["tokens"], cold(&folder, &tiny, &warm)["tokens"]);
    let facts = folder.run(&["inspect", &more]).ok();
    for says in [
        "kvark prefix 2",
        "model         tiny,",
        "keys f16",
        "plain prompts",
    ] {
        assert!(facts.contains(says), "{facts}");
    }
}

#[test]
fn a_chat_begins_with_the_system_message_of_a_prefix() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let system = build(&folder, &tiny, "system.kvp", &["-p", TEXT, "--chat"]);
    let chat = |more: &[&str]| {
        let args = ["chat", &tiny, "-c", "200", "-n", "6", "--temp", "0", "-v"];
        let input = "Hi\nab\n/clear\nHi\n/fork\nYo\n";
        folder.run_with_input(&[&args, more].concat(), input)
    };
    let warm = chat(&["--prefix", &system]);
    let cold = chat(&["--system", TEXT]);
    // The first turn computes the message alone, also after the conversation was cleared.
    let computed = |output: &Output| -> Vec<String> {
        let lines = output.stderr.lines().filter(|line| line.contains("prompt"));
        lines
            .map(|line| line.split(';').next().unwrap().to_owned())
            .collect()
    };
    assert_ne!(computed(&warm), computed(&cold));
    assert_eq!(warm.ok(), cold.ok());
    let one = run(&folder, &tiny, &["--chat", "--prefix", &system, "-p", "Hi"]).json();
    let other = run(&folder, &tiny, &["--chat", "--system", TEXT, "-p", "Hi"]).json();
    assert_eq!(one["tokens"], other["tokens"]);
    assert_eq!(one["prompt_tokens"], other["prompt_tokens"]);
    assert!(one["reused_tokens"].as_u64().unwrap() > 30, "{one}");
    let facts = folder.run(&["inspect", &system, "--json"]).json();
    assert_eq!(
        (&facts["format"], &facts["system"]),
        (&json!("prefix"), &json!(TEXT))
    );
    // Each kind of file is for its kind of prompt.
    let doc = build(&folder, &tiny, "doc.kvp", &["-p", TEXT]);
    for (args, says) in [
        (
            &["chat", &tiny, "--prefix", &doc][..],
            "doc.kvp is a plain text",
        ),
        (
            &["run", &tiny, "--prefix", &system, "-p", "Hi"],
            "is the system message of a chat",
        ),
        (
            &["run", &tiny, "--chat", "--prefix", &doc, "-p", "Hi"],
            "doc.kvp is a plain text",
        ),
        (
            &[
                "prefix", "build", &tiny, "--on", &system, "-p", "a", "-o", &doc,
            ],
            "is the system message of a chat",
        ),
        (
            &[
                "chat",
                &tiny,
                "--prefix",
                &system,
                "--chat-template",
                "gemma",
            ],
            "another chat template",
        ),
    ] {
        let error = folder.run(args).error();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_prefix_that_does_not_fit_is_refused_in_one_line() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let mut bytes = model();
    *bytes.last_mut().unwrap() ^= 1;
    let twin = folder.file("twin.gguf", bytes);
    let doc = build(&folder, &tiny, "doc.kvp", &["-p", TEXT]);
    let before = fs::read(&doc).unwrap();
    let with = |model: &str, more: &[&str]| {
        let args = ["--prefix", &doc, "-p", "Hi", "-c", "60"];
        run(&folder, model, &[&args, more].concat()).error()
    };
    assert!(with(&twin, &[]).contains("doc.kvp: it was made with another model"));
    assert!(with(&tiny, &["--cache-type-k", "q8"]).contains("doc.kvp: its keys are f16"));
    assert!(with(&tiny, &["-c", "20"]).contains("has no room after"));
    assert_eq!(fs::read(&doc).unwrap(), before);
    let mut damaged = before.clone();
    *damaged.last_mut().unwrap() ^= 8;
    let mut newer = before.clone();
    newer[8] = 9;
    for (bytes, says) in [
        (&before[..before.len() - 1], "truncated"),
        (&damaged, "checksum of the values"),
        (&newer, "it has version 9"),
        (b"hello", "not a kvark prefix"),
        (b"", "not a kvark prefix"),
    ] {
        fs::write(&doc, bytes).unwrap();
        let error = with(&tiny, &[]);
        assert!(error.contains(says) && error.contains("doc.kvp"), "{error}");
        assert_eq!(fs::read(&doc).unwrap(), bytes);
    }
    // The command replaces no file of another kind, and writes no file for a text that fills the context.
    let build =
        |more: &[&str]| folder.run(&[&["prefix", "build", &tiny, "-c", "20"], more].concat());
    let error = build(&["-p", "Hi", "-o", &tiny]).error();
    assert!(error.contains("is not replaced"), "{error}");
    assert_eq!(fs::read(&tiny).unwrap(), model());
    let nowhere = folder.path("none/doc.kvp");
    let error = build(&["-p", "Hi", "-o", nowhere.to_str().unwrap()]).error();
    assert!(error.contains("--output"), "{error}");
    let full = folder.path("full.kvp");
    let error = build(&["-p", TEXT, "-o", full.to_str().unwrap()]).error();
    assert!(error.contains("20"), "{error}");
    assert!(!full.exists());
    let error = build(&["-p", "", "-o", full.to_str().unwrap()]).error();
    assert!(error.contains("the text is empty"), "{error}");
}
