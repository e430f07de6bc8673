//! The default model, if it is present: `KVARK_TEST_MODEL`, or the file that `kvark pull` downloaded to the tester's home.

use crate::support::Folder;
use kvark::catalogue::{FileState, ModelStore, default_entry};
use std::path::PathBuf;

/// The path of the default model; `None`, with a note, if there is none.
pub(crate) fn model() -> Option<String> {
    let named = std::env::var_os("KVARK_TEST_MODEL").map(PathBuf::from);
    let path = named
        .filter(|path| !path.as_os_str().is_empty())
        .or_else(|| {
            let home = ModelStore::from_env().ok()?;
            let there = home.state(default_entry()) == FileState::Present;
            there.then(|| home.model_path(default_entry()))
        });
    if path.is_none() {
        let note = b"skipped: no default model at hand\n";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), note);
    }
    Some(path?.to_str()?.to_owned())
}

#[test]
fn the_default_model_speaks() {
    let Some(model) = model() else { return };
    let folder = Folder::new();
    let args = [
        "run",
        &model,
        "-p",
        "The capital of France is",
        "-n",
        "8",
        "--temp",
        "0",
        "--json",
    ];
    let first = folder.run(&args).json();
    assert!(first["text"].as_str().unwrap().contains("Paris"), "{first}");
    // The second run uses the packed weights that the first one wrote.
    let packed = || folder.run(&["list", "--json"]).json()["packed"]["bytes"].as_u64();
    assert!(packed() > Some(90_000_000));
    assert_eq!(first["tokens"], folder.run(&args).json()["tokens"]);
    // A flipped bit is detected wherever it is: the weight is packed again and the file replaced.
    let file = std::fs::read_dir(folder.path("home/packed"))
        .unwrap()
        .next();
    let file = file.unwrap().unwrap().path();
    let clean = std::fs::read(&file).unwrap();
    for part in [0.0, 0.3, 0.6, 0.999_999_9] {
        let mut bytes = clean.clone();
        let at = (clean.len() as f64 * part) as usize;
        bytes[at] ^= 0x40;
        std::fs::write(&file, bytes).unwrap();
        let again = folder.run(&args).json();
        assert_eq!(first["tokens"], again["tokens"], "byte {at}");
        assert!(std::fs::read(&file).unwrap() == clean, "byte {at}");
    }
    folder.run(&["rm", "--packed"]).ok();
    let alone = folder.run(&[&args[..], &["--no-packed-file"]].concat());
    assert_eq!(first["tokens"], alone.json()["tokens"]);
    assert_eq!(packed(), Some(0));

    let text = "Grüße, 世界!  1234 tabs\tand\nlines";
    let ids = folder.run(&["tokenize", &model, "-p", text]).ok();
    assert_eq!(
        folder.run(&["detokenize", &model, ids.trim()]).ok(),
        format!("{text}\n")
    );

    let args = ["chat", &model, "--temp", "0", "-n", "12"];
    let answers = folder.run_with_input(
        &args,
        "What is the capital of France?\n/rewind\nWhat is the capital of France?\n",
    );
    let answers = answers.ok();
    let (a, b) = answers.split_at(answers.len() / 2);
    assert_eq!(a, b);
    assert!(a.contains("Paris"), "{a}");
}

#[test]
fn a_chat_shows_reasoning_apart_and_keeps_its_tokens() {
    let Some(model) = model() else { return };
    let folder = Folder::new();
    // A template that does not write the reasoning of earlier answers.
    let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# </think> reasoning_content #}";
    let template = folder.file("template.jinja", source);
    let answer = "<think>\nBecause it is so and can be no other way\\.\n</think>\n\nYes\\.";
    let chat = |reasoning: &str| {
        let args = [
            "chat",
            &model,
            "--chat-template",
            &template,
            "--regex",
            answer,
            "--verbose",
            "--reasoning",
            reasoning,
        ];
        let output = folder.run_with_input(&args, "Is it?\nIs it now?\n");
        let counts = output
            .stderr
            .lines()
            .filter_map(|line| line.strip_prefix("[prompt "));
        let counts = counts.filter_map(|line| line.split(' ').next()?.parse().ok());
        let counts: Vec<usize> = counts.collect();
        assert!(
            output.stderr.contains("Because it is so"),
            "{}",
            output.stderr
        );
        assert!(!output.stderr.contains("think>"), "{}", output.stderr);
        assert_eq!(counts.len(), 2, "{}", output.stderr);
        assert_eq!(output.ok(), "Yes.\nYes.\n");
        counts[1]
    };
    // Kept, only the new message is computed; the template's text differs from the reasoning on.
    assert!(chat("keep") < chat("drop"));
}
