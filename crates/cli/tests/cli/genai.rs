//! GenAI folders on the command line.

use crate::support::*;
use serde_json::json;

/// A folder of ONNX Runtime GenAI with a model of one layer and a tokenizer of letters.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvark/tests/onnx/folder");

#[test]
fn a_genai_folder_runs_scores_and_chats() {
    let folder = Folder::new();
    let tokens = folder
        .run(&["tokenize", FOLDER, "--json", "-p", "abc d"])
        .json();
    assert_eq!(tokens["tokens"], json!([6, 7, 8, 5, 9]));

    let shown = folder.run(&["inspect", FOLDER]).ok();
    let caches = "KV caches     1\n  0           heads 2, keys of 8, values of 8\n";
    assert!(shown.contains(caches), "{shown}");

    let said = "architecture  llama\n";
    assert!(shown.contains(said), "{shown}");
    let inspected = folder.run(&["inspect", FOLDER, "--json"]).json();
    assert_eq!(inspected["metadata"]["model.eos_token_id"], json!([2, 4]));
    assert_eq!(inspected["metadata"]["search.top_k"], json!(7));

    // The configuration asks for greedy sampling, so the seed has no effect.
    let run = |seed: &str| {
        let args = [
            "run",
            FOLDER,
            "-p",
            "abc",
            "-n",
            "4",
            "--ignore-eos",
            "--json",
            "--seed",
            seed,
        ];
        folder.run(&args).json()
    };
    let (one, two) = (run("1"), run("2"));
    assert_eq!(one["tokens"], two["tokens"]);
    assert_eq!(one["prompt_tokens"], json!([6, 7, 8]));

    // The ids of a cold greedy run are those that scoring finds most likely.
    let ids: Vec<String> = ["prompt_tokens", "tokens"]
        .iter()
        .flat_map(|key| one[key].as_array().unwrap().iter().map(|id| id.to_string()))
        .collect();
    let score = folder
        .run(&["score", FOLDER, "--json", "--token-ids", &ids.join(",")])
        .json();
    let argmax = score["argmax"].as_array().unwrap();
    assert_eq!(argmax[2..6], one["tokens"].as_array().unwrap()[..]);
    let bare = format!("{FOLDER}/model.onnx");
    let again = folder.run(&["score", &bare, "--json", "-p", "abc"]).json();
    assert_eq!(again["logprob"][0], score["logprob"][0]);

    let chat = folder.run_with_input(&["chat", FOLDER, "-n", "2"], "hi\n");
    assert_eq!(chat.code, Some(0), "{chat:?}");
}

/// A folder that cannot be run is shown, with the reason.
#[test]
fn a_genai_folder_that_cannot_be_run_is_inspected() {
    let folder = Folder::new();
    let copy = folder.path("copy");
    std::fs::create_dir_all(&copy).unwrap();
    let path = std::path::Path::new(FOLDER);
    for entry in std::fs::read_dir(path).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, copy.join(from.file_name().unwrap())).unwrap();
    }
    let config = std::fs::read_to_string(path.join("genai_config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    // These are the names of keys.
    config["model"]["decoder"]["inputs"]["past_value_names"] = json!("key_cache.%d");
    config["search"]["num_beams"] = json!(4);
    std::fs::write(copy.join("genai_config.json"), config.to_string()).unwrap();
    let shown = folder.run(&["inspect", copy.to_str().unwrap()]).ok();
    for text in [
        "cannot be run: ",
        "architecture  llama\n",
        "search.num_beams: 4",
        "inputs\n  input_ids",
    ] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
}

#[test]
fn a_context_beyond_the_static_buffers_is_refused() {
    let folder = Folder::new();
    let error = folder
        .run(&["run", FOLDER, "-p", "abc", "-c", "17"])
        .error();
    let expected = "error: a context of 17 tokens is not possible: the model's buffers and tables have 16 rows\n";
    assert_eq!(error, expected);
    let long = "a".repeat(17);
    let error = folder.run(&["run", FOLDER, "-p", &long]).error();
    assert!(
        error.contains("17 tokens") && error.contains("16"),
        "{error}"
    );
}
