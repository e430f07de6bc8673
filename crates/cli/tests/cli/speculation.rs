//! Speculative decoding on the command line: the text is that of plain decoding.

use crate::support::*;
use serde_json::Value;

fn fixture(path: &str) -> String {
    format!(
        "{}/../import/tests/fixtures/{path}",
        env!("CARGO_MANIFEST_DIR")
    )
}

fn run(folder: &Folder, model: &str, more: &[&str]) -> Value {
    let ids = ["--token-ids", "5,6,7,8,5,6,7,8,5,6", "--ignore-eos"];
    let args = [&["run", model][..], &ids, &["--temp", "0", "--json"], more].concat();
    folder.run(&args).json()
}

#[test]
fn every_draft_gives_the_tokens_of_plain_decoding() {
    let folder = Folder::new();
    let gguf = folder.file("bare.gguf", bare_model());
    let pt2 = fixture("pt2/decoder_features.pt2");
    let head = fixture("eagle3/midlayer");
    let file = fixture("eagle3/speculators/model.safetensors");
    let carrier = fixture("decoder/qwen35_mtp.gguf");
    let gemma = fixture("decoder/gemma4.gguf");
    let assistant = fixture("assistant/gemma4_assistant.gguf");
    for (model, spec) in [
        (&gemma, &["-md", &assistant][..]),
        (&gemma, &["-md", &assistant, "--spec-type", "auto"]),
        (&carrier, &["--spec-type", "mtp"]),
        (&carrier, &["-md", "mtp", "--spec-depth", "2"]),
        (&carrier, &["--spec-type", "auto"]),
        (&gguf, &["--spec-type", "ngram"][..]),
        (&gguf, &["-md", &gguf]),
        (&gguf, &["-md", &gguf, "--spec-type", "auto"]),
        (&pt2, &["-md", &head]),
        (
            &pt2,
            &["-md", &file, "--spec-tree", "3", "--spec-topk", "1"],
        ),
        (&pt2, &["-md", &head, "--spec-type", "auto"]),
    ] {
        let twenty = ["-n", "20"];
        let plain = run(&folder, model, &twenty);
        let found = run(&folder, model, &[&twenty[..], spec].concat());
        assert_eq!(found["tokens"], plain["tokens"], "{spec:?}");
        let rounds = found["spec"]["rounds"].as_u64().unwrap();
        let accepted = found["spec"]["accepted"].as_u64().unwrap();
        // The first token is sampled from the outputs of the prompt.
        assert_eq!(rounds + accepted, 19, "{found}");
    }
}

#[test]
fn continuations_in_a_batch_speculate_too() {
    let folder = Folder::new();
    let gguf = folder.file("bare.gguf", bare_model());
    let pt2 = fixture("pt2/decoder_features.pt2");
    let head = fixture("eagle3/midlayer");
    let several = ["-n", "12", "--parallel", "3", "--temp", "1", "--seed", "4"];
    for (model, spec) in [
        (&gguf, &["--spec-type", "ngram"][..]),
        (&gguf, &["-md", &gguf]),
        (&pt2, &["-md", &head]),
    ] {
        let plain = run(&folder, model, &several);
        let found = run(&folder, model, &[&several[..], spec].concat());
        assert_eq!(found["branches"], plain["branches"], "{spec:?}");
        assert_eq!(found["branches"].as_array().unwrap().len(), 3);
        assert!(found["spec"]["rounds"].as_u64().unwrap() > 0, "{found}");
    }
}

#[test]
fn a_chat_speculates_across_rewinds_and_branches() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let input = "Hi\n/rewind\nab\n/clear\nHi\n/fork other\n/rewind\nab\n/switch main\n/clear\nba\n";
    let chat = |more: &[&str]| {
        let options = ["--temp", "0", "-n", "8"];
        let args = [&["chat", &tiny[..]], &options[..], more].concat();
        folder.run_with_input(&args, input).ok()
    };
    let plain = chat(&[]);
    assert_eq!(chat(&["--spec-type", "ngram"]), plain);
    assert_eq!(chat(&["-md", &tiny]), plain);
    let trace = folder.path("trace.html");
    let shift = ["--context-shift", "-c", "48"];
    let shifted = chat(&shift);
    let traced = [
        "--spec-type",
        "auto",
        "--spec-trace",
        trace.to_str().unwrap(),
    ];
    assert_eq!(chat(&[&shift[..], &traced].concat()), shifted);
    assert!(std::fs::read_to_string(&trace).unwrap().contains("<svg"));
}

#[test]
fn heads_are_shown_counted_and_refused() {
    let folder = Folder::new();
    let gguf = folder.file("bare.gguf", bare_model());
    let head = fixture("eagle3/midlayer");
    let pt2 = fixture("pt2/decoder_features.pt2");
    let shown = folder.run(&["inspect", &head]).ok();
    for part in [
        "safetensors",
        "of a model of width 16",
        "2, L/2 and L - 3",
        "12 of the model's tokens",
    ] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    let with = folder.run(&["plan", &pt2, "-md", &head, "--json"]).json();
    let alone = folder.run(&["plan", &pt2, "--json"]).json();
    let total = |plan: &Value| plan["total_bytes"].as_u64();
    assert!(
        total(&with) > total(&alone) && total(&alone).is_some(),
        "{with}"
    );
    let refused = |model: &str, more: &[&str]| {
        let args = [&["run", model, "--token-ids", "1,2"][..], more].concat();
        folder.run(&args).error()
    };
    let error = refused(&gguf, &["-md", &head]);
    assert!(error.contains("a layer of the features"), "{error}");
    let listed = fixture("eagle3/speculators");
    let error = refused(&fixture("pt2/decoder_llama.pt2"), &["-md", &listed]);
    assert!(
        error.contains("is 2, and the model has 2 layers"),
        "{error}"
    );
    let error = refused(&head, &[]);
    assert!(!error.is_empty());
    let error = refused(&gguf, &["--spec-type", "eagle3"]);
    assert!(error.contains("needs a head"), "{error}");
}

#[test]
fn a_model_carries_its_own_head() {
    let folder = Folder::new();
    let carrier = fixture("decoder/qwen35_mtp_agrees.gguf");
    let found = run(&folder, &carrier, &["-n", "40", "--spec-type", "mtp"]);
    assert!(found["spec"]["accepted"].as_u64() > Some(20), "{found}");
    let with = folder
        .run(&["plan", &carrier, "-md", "mtp", "--json"])
        .json();
    let alone = folder.run(&["plan", &carrier, "--json"]).json();
    let total = |plan: &Value| plan["total_bytes"].as_u64();
    assert!(total(&with["draft"]) > Some(0), "{with}");
    assert!(total(&with) > total(&alone), "{with}");
    let gguf = folder.file("bare.gguf", bare_model());
    let refused = |more: &[&str]| {
        let args = [&["run", &gguf, "--token-ids", "1,2"][..], more].concat();
        folder.run(&args).error()
    };
    for more in [&["--spec-type", "mtp"][..], &["-md", "mtp"]] {
        let error = refused(more);
        let expected = "the model carries no MTP head: it needs llama.nextn_predict_layers";
        assert!(error.contains(expected), "{error}");
    }
    let error = refused(&["--spec-type", "eagle3", "-md", "mtp"]);
    assert!(error.contains("use --spec-type mtp"), "{error}");
    let error = refused(&["--spec-type", "mtp", "-md", &gguf]);
    assert!(error.contains("leave --model-draft out"), "{error}");
}

#[test]
fn an_assistant_is_a_file_of_its_own() {
    let folder = Folder::new();
    let gemma = fixture("decoder/gemma4_agrees.gguf");
    let assistant = fixture("assistant/gemma4_agrees_assistant.gguf");
    let spec = ["-n", "20", "--spec-type", "mtp", "-md", &assistant];
    let found = run(&folder, &gemma, &spec);
    assert!(found["spec"]["accepted"].as_u64() > Some(10), "{found}");
    // Its weights and its cache are counted.
    let with = folder.run(&["plan", &gemma, "-md", &assistant, "--json"]);
    let with = with.json();
    let alone = folder.run(&["plan", &gemma, "--json"]).json();
    let total = |plan: &Value| plan["total_bytes"].as_u64().unwrap();
    let draft = total(&with["draft"]);
    assert!(draft > 0, "{with}");
    assert!(total(&with) >= total(&alone) + draft, "{with}");
    let said = folder.run(&["inspect", &assistant]).ok();
    let expected =
        "of a model of width 32, with its last state, and the keys and values of its last layers";
    assert!(said.contains(expected), "{said}");
    let other = fixture("decoder/qwen35.gguf");
    let args = ["run", &other, "--token-ids", "1,2", "-md", &assistant];
    let error = folder.run(&args).error();
    assert!(
        error.contains("layers with a window, and the model has none"),
        "{error}"
    );
}

/// The head is stored beside the default model, and removed with it.
#[cfg(unix)]
#[test]
fn the_default_model_has_a_head() {
    let Some(model) = crate::real::model() else {
        return;
    };
    let folder = Folder::new();
    folder.link_default_model(&model);
    let args = [
        "run",
        "--temp",
        "0",
        "-n",
        "24",
        "--json",
        "The capital of France is",
    ];
    let plain = folder.run(&args).json();
    let found = folder
        .run(&[&args[..], &["--spec-type", "eagle3"]].concat())
        .json();
    assert_eq!(found["text"], plain["text"]);
    assert!(found["spec"]["accepted"].as_u64() > Some(0), "{found}");
    let head = folder.path("home/models/smollm2-135m-instruct.eagle3.gguf");
    assert!(head.is_file());
    folder.run(&["rm", "smollm2-135m-instruct"]).ok();
    assert!(!head.exists());
}
