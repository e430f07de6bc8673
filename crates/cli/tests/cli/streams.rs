//! `--kv-policy "stream window N"`: texts without end.

use crate::support::*;

const POLICY: [&str; 2] = ["--kv-policy", "stream window 16 sinks 2"];

#[test]
fn runs_chats_and_scores_go_on_past_the_window() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let text = "Hello my dear ab ".repeat(20);
    let greedy = ["--temp", "0", "--ignore-eos", "-n", "60"];
    let args = [&["run", &tiny, "-p", &text, "--json"], &greedy[..]].concat();
    let long = folder.run(&[&args[..], &["-c", "16"]].concat()).error();
    assert!(long.contains("16"), "{long}");
    let run = |more: &[&str]| folder.run(&[&args[..], &POLICY, more].concat()).json();
    let whole = run(&[]);
    assert_eq!(whole["finish_reason"], "length");
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 60);
    for more in [&["-b", "3"][..], &["--cache", "cells"]] {
        assert_eq!(run(more)["tokens"], whole["tokens"], "{more:?}");
    }

    let chat = [&["chat", &tiny, "--temp", "0", "-n", "30"], &POLICY[..]].concat();
    let said = folder.run_with_input(&chat, &format!("{text}\nAnd now?\n"));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(!said.stderr.contains("context is full"), "{said:?}");

    let score = ["score", &tiny, "-p", &text, "--segment", "9"];
    let found = folder
        .run(&[&score[..], &POLICY, &["--json"]].concat())
        .json();
    let parts = found["segments"].as_array().unwrap();
    assert_eq!(
        parts.len(),
        found["logprob"].as_array().unwrap().len().div_ceil(9)
    );
    let shown = folder.run(&[&score[..], &POLICY].concat()).ok();
    assert!(shown.starts_with("tokens 1 to 9: nll "), "{shown}");

    let plan = folder
        .run(&["plan", &tiny, "--json", POLICY[0], POLICY[1]])
        .json();
    let rows = &plan["kv"]["layers"][0]["rows"];
    assert!(rows.as_u64().is_some_and(|rows| rows <= 16), "{plan}");
}

#[test]
fn what_does_not_fit_a_stream_is_named() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let run = |more: &[&str]| folder.run(&[&["run", &tiny, "-p", "Hello"], more].concat());
    let with = |more: &[&str]| run(&[&POLICY[..], more].concat()).error();
    assert!(with(&["--context-shift"]).contains("--context-shift is not for streams"));
    assert!(with(&["--keep", "3"]).contains("--keep is not for streams"));
    assert!(with(&["-c", "8"]).contains("does not fit a context of 8"));
    let wrong = run(&["--kv-policy", "stream sinks 4"]).stderr;
    assert!(wrong.contains("a stream needs a window"), "{wrong}");
    let kind = run(&["--kv-policy", "layers 0 cells"]).stderr;
    assert!(
        kind.contains("a cache has one kind with all of its layers"),
        "{kind}"
    );
}
