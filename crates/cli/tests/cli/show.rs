//! `kvark show` and `kvark ps`.

use crate::support::*;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn a_model_is_shown_in_a_few_lines() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let text = folder.run(&["show", &tiny]).ok();
    for part in [
        "tiny\n",
        "architecture    llama",
        "64 tokens",
        "--template prints it",
        "--temp ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let report = folder.run(&["show", &tiny, "--json"]).json();
    assert_eq!(
        (&report["context"], &report["vocabulary"]),
        (&64.into(), &64.into())
    );
    let template = folder.run(&["show", &tiny, "--template"]).ok();
    assert_eq!(report["chat_template"], template.trim_end());
    assert!(template.contains("<|im_start|>"));
    let bare = folder.file("bare.gguf", bare_model());
    let error = folder.run(&["show", &bare, "--template"]).error();
    assert!(error.contains("no chat template"), "{error}");
}

/// A file of type 15 is Q4_K_M, whatever type most of its bytes have.
#[test]
fn the_quantisation_is_that_which_the_file_states() {
    let folder = Folder::new();
    let mut bytes = bare_model();
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let file_type = [
        text("general.file_type"),
        vec![4, 0, 0, 0],
        vec![15, 0, 0, 0],
    ]
    .concat();
    let padding =
        |n: usize| [text("test.padding"), vec![8, 0, 0, 0], text(&" ".repeat(n))].concat();
    // The data after it must stay aligned.
    let len = file_type.len() + padding(0).len();
    let added = [file_type, padding(len.next_multiple_of(32) - len)].concat();
    let count = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + 2;
    bytes[16..24].copy_from_slice(&count.to_le_bytes());
    bytes.splice(24..24, added);
    let file = folder.file("typed.gguf", bytes);
    let report = folder.run(&["show", &file, "--json"]).json();
    assert_eq!(report["quantisation"], "Q4_K_M");
}

#[test]
fn the_models_of_a_running_server_are_listed() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let other = folder.file("other.gguf", model());
    let mut server = folder.command(&["serve", &tiny, &other, "--port", "0", "-np", "3"]);
    let mut server = server.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let line = lines
        .map(Result::unwrap)
        .find(|line| line.contains("kvark serves http"));
    let line = line.expect("the server starts");
    let (_, port) = line.split_once("http://127.0.0.1:").unwrap();
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let shown = folder.run(&["ps", "--port", &port]);
    let report = folder.run(&["ps", "--port", &port, "--json"]);
    server.kill().unwrap();
    server.wait().unwrap();
    let shown = shown.ok();
    assert!(
        shown.contains("tiny ") && shown.contains("0 of 3 busy"),
        "{shown}"
    );
    assert!(shown.contains("not loaded"), "{shown}");
    let models = report.json()["models"].clone();
    assert_eq!(models[0]["name"], "tiny");
    assert_eq!(
        (&models[0]["loaded"], &models[1]["loaded"]),
        (&true.into(), &false.into())
    );
    assert_eq!(models[0]["slots"], 3);

    // Nobody listens there now.
    let error = folder.run(&["ps", "--port", &port]).error();
    assert!(
        error.contains("no server answers at http://127.0.0.1:"),
        "{error}"
    );
    assert!(error.contains("kvark serve"), "{error}");
}
