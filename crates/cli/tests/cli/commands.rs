//! The output of the commands.

use crate::support::*;
use serde_json::{Value, json};

fn run_json(folder: &Folder, model: &str, more: &[&str]) -> Value {
    folder
        .run(&[&["run", model, "--json"], more].concat())
        .json()
}

#[test]
fn run_reports_all_that_the_contract_names() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let report = run_json(
        &folder,
        tiny,
        &["-p", "ab c", "-n", "5", "--ignore-eos", "--temp", "0"],
    );
    assert_eq!(report["prompt_tokens"], json!([62, 55, 5]));
    assert_eq!(report["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(report["timings"]["prompt_n"], 3);
    assert_eq!(report["timings"]["predicted_n"], 5);
    for key in [
        "prompt_ms",
        "prompt_per_second",
        "predicted_ms",
        "predicted_per_second",
    ] {
        assert!(report["timings"][key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert!(report["seed"].is_u64());
    for key in ["weights_bytes", "kv_bytes", "arena_bytes"] {
        assert!(report["memory"][key].as_u64().unwrap() > 0, "{key}");
    }
    let text = report["text"].as_str().unwrap();
    let args = [
        "run",
        tiny,
        "-p",
        "ab c",
        "-n",
        "5",
        "--ignore-eos",
        "--temp",
        "0",
    ];
    assert_eq!(folder.run(&args).ok(), format!("ab c{text}\n"));
    let hidden = [&args[..], &["--no-display-prompt"]].concat();
    assert_eq!(folder.run(&hidden).ok(), format!("{text}\n"));
}

#[test]
fn a_model_without_a_tokenizer_runs_on_ids() {
    let folder = Folder::new();
    let bare = &*folder.file("bare.gguf", bare_model());
    let args = ["--token-ids", "1,2 3", "-n", "4", "--temp", "0"];
    let report = run_json(&folder, bare, &args);
    assert_eq!(report["prompt_tokens"], json!([1, 2, 3]));
    assert_eq!(
        (&report["text"], &report["finish_reason"]),
        (&json!(""), &json!("length"))
    );
    let ids: Vec<String> = report["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(Value::to_string)
        .collect();
    let shown = folder.run(&[&["run", bare], &args[..]].concat()).ok();
    assert_eq!(shown, format!("{}\n", ids.join(",")));
    let score = folder
        .run(&["score", bare, "--token-ids", "1,2,3", "--json"])
        .json();
    assert_eq!(score["argmax"].as_array().unwrap().len(), 3);
    assert_eq!(score["argmax"][2], report["tokens"][0]);
    assert_eq!(score["logprob"].as_array().unwrap().len(), 2);
    assert!(
        folder
            .run(&["score", bare, "--token-ids", "1,2,3"])
            .ok()
            .contains("perplexity")
    );
}

#[test]
fn a_seed_or_no_temperature_repeats_the_text() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let run = |more: &[&str]| {
        let args = [&["-p", "ab", "-n", "24", "--ignore-eos"], more].concat();
        run_json(&folder, tiny, &args)["tokens"].clone()
    };
    assert_eq!(
        run(&["--temp", "2", "--seed", "7"]),
        run(&["--temp", "2", "--seed", "7"])
    );
    assert_ne!(
        run(&["--temp", "2", "--seed", "7"]),
        run(&["--temp", "2", "--seed", "8"])
    );
    assert_eq!(run(&["--temp", "0"]), run(&["--temp", "0", "--seed", "9"]));
    assert_eq!(
        run(&["--temp", "0"]),
        run(&["--temp", "0", "--interpret", "-t", "1", "-b", "1"])
    );
}

#[test]
fn stop_strings_cut_and_a_full_context_ends() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let args = ["-p", "ab", "--ignore-eos", "--temp", "0"];
    let whole = run_json(&folder, tiny, &[&args[..], &["-n", "30"]].concat());
    let text: Vec<char> = whole["text"].as_str().unwrap().chars().collect();
    let stop: String = text[4..6].iter().collect();
    let text: String = text.iter().collect();
    let cut = run_json(
        &folder,
        tiny,
        &[&args[..], &["-n", "30", "--stop", &stop]].concat(),
    );
    assert_eq!(
        cut["text"].as_str().unwrap(),
        text.split(&stop).next().unwrap()
    );
    assert_eq!(cut["finish_reason"], "stop");

    let full = run_json(&folder, tiny, &[&args[..], &["-c", "8"]].concat());
    assert_eq!(full["finish_reason"], "context");
    // One token of the prompt, seven that were fed, and the last, which was not.
    assert_eq!(full["tokens"].as_array().unwrap().len(), 8);
}

#[test]
fn text_becomes_tokens_and_comes_back() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let file = &*folder.file("text", "ab a\na\n");
    let cases: &[(&[&str], &[u32])] = &[
        (&["-p", "ab a"], &[62, 55, 3]),
        (&["-p", ""], &[]),
        (&["-p", "-a"], &[3]),
        (&["--file", file], &[62, 55, 3, 56, 3]),
        (&["-f", file, "--bos"], &[1, 62, 55, 3, 56, 3]),
        (&["-p", "a<|im_end|>", "--special"], &[3, 2]),
    ];
    for (args, ids) in cases {
        let tokens = folder
            .run(&[&["tokenize", tiny, "--json"], *args].concat())
            .json();
        assert_eq!(tokens, json!({ "tokens": ids }), "{args:?}");
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        let shown = folder.run(&[&["tokenize", tiny], *args].concat()).ok();
        assert_eq!(shown, format!("{}\n", ids.join(",")));
    }
    let letters = folder.run(&["tokenize", tiny, "-p", "<|im_end|>"]).ok();
    assert_eq!(letters, "11,15,7,16,6\n", "its letters, not the token");

    let cases: &[(&[&str], &str)] = &[
        (&[tiny, "62,55,3"], "ab a"),
        (&[tiny, "62", "55", "3,3"], "ab aa"),
        (&["-m", tiny, "62"], "ab"),
        (&["-m", tiny, "--token-ids", "3,2"], "a<|im_end|>"),
        (&["--token-ids", "3,2", "--no-special", tiny], "a"),
    ];
    for (args, text) in cases {
        let shown = folder.run(&[&["detokenize"], *args].concat()).ok();
        assert_eq!(shown, format!("{text}\n"), "{args:?}");
        let value = folder
            .run(&[&["detokenize", "--json"], *args].concat())
            .json();
        assert_eq!(value, json!({ "text": text }));
    }
    // Part of a character is written as bytes; JSON cannot contain it.
    let output = folder
        .command(&["detokenize", tiny, "63"])
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"\xc3\n");
    assert_eq!(
        folder.run(&["detokenize", tiny, "63", "--json"]).json()["text"],
        "\u{fffd}"
    );
}

#[test]
fn inspect_shows_a_file() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let found = folder.run(&["inspect", tiny, "--json"]).json();
    assert_eq!(
        (&found["format"], &found["architecture"]),
        (&json!("gguf"), &json!("llama"))
    );
    assert_eq!(found["metadata"]["llama.block_count"], 2);
    assert_eq!(
        found["metadata"]["llama.attention.layer_norm_rms_epsilon"],
        1e-6
    );
    assert_eq!(
        found["metadata"]["tokenizer.ggml.tokens"]
            .as_array()
            .unwrap()
            .len(),
        64
    );
    assert_eq!(found["ops"]["update_and_attend"], 2);
    assert_eq!(found["tensors"].as_array().unwrap().len(), 20);
    let embedding =
        json!({ "name": "token_embd.weight", "dtype": "f32", "shape": [64, 32], "bytes": 8192 });
    assert_eq!(found["tensors"][0], embedding);
    let method = &found["methods"][0];
    assert_eq!(method["name"], "forward");
    assert_eq!(
        method["inputs"][0],
        json!({ "name": "tokens", "dtype": "i32", "shape": ["T"] })
    );
    assert_eq!(
        method["outputs"][0],
        json!({ "name": "logits", "dtype": "f32", "shape": ["R", 64] })
    );

    let shown = folder.run(&["inspect", tiny]).ok();
    assert!(shown.contains("forward(tokens: i32[T], "), "{shown}");
    assert!(shown.contains(", ...] (64 of string)"), "{shown}");
    let graph = folder.run(&["inspect", tiny, "--graph"]).ok();
    assert!(graph.starts_with("graph forward(tokens: i32[T]"), "{graph}");
}

#[test]
fn inspect_shows_a_file_of_an_unknown_architecture() {
    let folder = Folder::new();
    let odd = &*folder.file("odd.gguf", unknown_architecture());
    let found = folder.run(&["inspect", odd, "--json"]).json();
    assert_eq!(
        (&found["architecture"], &found["runs"]),
        (&json!("lmaoa"), &json!(false))
    );
    assert!(found["problem"].as_str().unwrap().contains("lmaoa"));
    assert_eq!(found["metadata"]["general.name"], "tiny llama_plain");
    assert_eq!(found["tensors"].as_array().unwrap().len(), 20);
    assert_eq!((&found["ops"], &found["methods"]), (&json!({}), &json!([])));
    assert!(
        folder
            .run(&["inspect", odd])
            .ok()
            .contains("cannot be run: ")
    );
}

#[test]
fn bench_names_its_tests() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let args = ["bench", tiny, "-p", "8", "-n", "4", "-d", "0,16", "-r", "2"];
    let report = folder.run(&[&args[..], &["--json"]].concat()).json();
    let rows = report["results"].as_array().unwrap();
    let tests: Vec<_> = rows
        .iter()
        .map(|row| row["test"].as_str().unwrap())
        .collect();
    assert_eq!(tests, ["pp8", "pp8@d16", "tg4", "tg4@d16"]);
    assert!(
        rows.iter()
            .all(|row| row["tokens_per_second_mean"].as_f64().unwrap() > 0.0)
    );
    assert!(folder.run(&args).ok().contains("tg4@d16"));
}

#[test]
fn the_drawn_seed_is_shown_and_gives_the_same_text_again() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let run = |more: &[&str]| {
        let args = [
            "run",
            &tiny,
            "-p",
            "Hi",
            "-n",
            "12",
            "--temp",
            "2",
            "--ignore-eos",
        ];
        folder.run(&[&args[..], more].concat())
    };
    let drawn = run(&["--json"]).json();
    let seed = drawn["seed"].to_string();
    let again = run(&["--json", "--seed", &seed]).json();
    assert_eq!(
        (&again["seed"], &again["tokens"]),
        (&drawn["seed"], &drawn["tokens"])
    );
    let plain = run(&["--seed", &seed]);
    assert!(
        plain.stderr.contains(&format!("; seed {seed}; length]")),
        "{plain:?}"
    );
    let several = run(&["--parallel", "2", "--json", "--seed", "7"]).json();
    assert_eq!(several["seed"], 7);
    let several = run(&["--parallel", "2", "--seed", "7"]);
    assert!(several.stderr.contains("; seeds from 7]"), "{several:?}");
}

#[test]
fn one_token_has_no_rate() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    // The token is sampled from the logits of the prompt, without a decode step.
    let args = ["run", &tiny, "-p", "H", "-n", "1", "--seed", "1"];
    let one = folder.run(&args);
    assert!(one.stderr.starts_with("[prompt 1 token, "), "{one:?}");
    assert!(
        one.stderr.contains("; generated 1 token; seed 1; "),
        "{one:?}"
    );
    // The most likely token needs no seed.
    let greedy = folder.run(&[&args[..], &["--temp", "0"]].concat());
    assert!(!greedy.stderr.contains("seed"), "{greedy:?}");
    let json = folder.run(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(json["timings"]["predicted_n"], 1);
    assert!(json["timings"]["predicted_per_second"].is_null());
}

#[test]
fn a_profile_keeps_its_columns_and_its_drawing_explains_itself() {
    let folder = Folder::new();
    let bare = folder.file("bare.gguf", bare_model());
    let svg = folder.path("profile.svg");
    let roofline = folder.path("roofline.svg");
    let args = [
        "bench",
        &bare,
        "-p",
        "4",
        "-n",
        "2",
        "-r",
        "1",
        "--roofline",
    ];
    let more = [
        roofline.to_str().unwrap(),
        "--profile",
        svg.to_str().unwrap(),
    ];
    let shown = folder.run(&[&args[..], &more].concat()).ok();
    let roofline = std::fs::read_to_string(roofline).unwrap();
    for part in [
        ">Roofline of a step: ",
        ">pp4<",
        ">tg2<",
        " linear ",
        "% of the roof",
    ] {
        assert!(roofline.contains(part), "{part}");
    }
    let drawing = std::fs::read_to_string(svg).unwrap();
    assert!(drawing.contains(">Where the time of a step goes: "));
    let tables: Vec<&str> = shown.split("\nop ").skip(1).collect();
    assert_eq!(tables.len(), 2, "{shown}");
    for table in tables {
        let (table, _) = table.split_once("\nbetween the nodes").unwrap();
        let table = format!("op {table}");
        let width = table.lines().next().unwrap().chars().count();
        for line in table.lines() {
            assert_eq!(line.chars().count(), width, "{table}");
            // The legend names every op with its share.
            let op = line.split(' ').next().unwrap();
            let named = format!(">{op}: ");
            assert!(
                op.is_empty() || op == "op" || drawing.contains(&named),
                "{op}"
            );
        }
    }
}

#[test]
fn every_run_mode_gives_the_same_tokens() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let run = |more: &[&str]| {
        let args = ["run", &tiny, "-p", "Hello!", "-n", "9", "--temp", "0"];
        folder.run(&[&args[..], &["--ignore-eos"], more].concat())
    };
    let expect = run(&["--json"]).json()["tokens"].clone();
    for mode in [
        "none",
        "piecewise",
        "full",
        "full_decode_only",
        "FULL_AND_PIECEWISE",
    ] {
        let found = run(&["--json", "--run-mode", mode]).json();
        assert_eq!(found["tokens"], expect, "{mode}");
    }
    let several = run(&["--parallel", "3", "--run-mode", "piecewise", "--json"]).json();
    for branch in several["branches"].as_array().unwrap() {
        assert_eq!(branch["tokens"], expect);
    }
    let all = run(&["--run-mode", "all"]).error();
    assert!(all.contains("--run-mode all is only supported by kvark bench"));
    let unknown = run(&["--run-mode", "sometimes"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("full_decode_only"), "{unknown:?}");
    let device = run(&["--device", "abacus"]);
    assert_eq!(device.code, Some(2));
    assert!(device.stderr.contains("possible values: cpu"), "{device:?}");
}

#[test]
fn a_gpu_that_is_not_there_is_named_on_one_line() {
    let folder = Folder::new();
    let bare = folder.file("bare.gguf", bare_model());
    let found = folder.run(&[
        "run",
        &bare,
        "--token-ids",
        "1,2",
        "-n",
        "2",
        "--device",
        "cuda",
    ]);
    if found.code == Some(0) {
        // There is one.
        return;
    }
    assert_eq!(found.code, Some(1), "{found:?}");
    let lines: Vec<&str> = found.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{found:?}");
    assert!(
        lines[0].contains("CUDA") || lines[0].contains("GPU"),
        "{found:?}"
    );
}

#[test]
fn bench_compares_run_modes() {
    let folder = Folder::new();
    let bare = folder.file("bare.gguf", bare_model());
    let args = ["bench", &bare, "-p", "4", "-n", "3", "-r", "1"];
    let found = folder
        .run(&[&args[..], &["--run-mode", "all", "--json"]].concat())
        .json();
    let names = |key: &str| -> Vec<String> {
        let rows = found["results"].as_array().unwrap().iter();
        rows.map(|row| row[key].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("test")[..5], ["pp4"; 5]);
    assert_eq!(names("test")[5..], ["tg3"; 5]);
    let modes = names("run_mode");
    assert_eq!(modes[..5], modes[5..]);
    assert_eq!((&modes[0][..], &modes[1][..]), ("none", "piecewise"));
}
