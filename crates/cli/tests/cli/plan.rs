//! `kvark plan`: expected sizes, the map of all buffers, and valid pictures.

use crate::support::{Folder, bare_model};
use serde_json::Value;
use std::path::Path;

fn config(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config");
    folder.join(name).to_str().unwrap().to_owned()
}

/// What one sequence holds at its context, as the table of the memory document has it (in GiB, and half of it in f16).
#[test]
fn known_models_come_out_as_they_are_known() {
    let gib = |n: u64| n << 30;
    let table = [
        ("qwen3-0.6b.json", 1024, 234_881_024),
        ("llama-3-8b.json", 8192, gib(2)),
        ("llama-3-70b.json", 8192, gib(5)),
        ("llama-3-405b.json", 131_072, gib(126)),
    ];
    let folder = Folder::new();
    for (name, context, f32_bytes) in table {
        let context = context.to_string();
        let args = [
            "plan",
            &config(name),
            "-c",
            &context,
            "--compare",
            "f32,f16",
            "--json",
        ];
        let plan = folder.run(&args).json();
        assert_eq!(plan["kv"]["bytes"], f32_bytes, "{name}");
        let [full, half] = &plan["table"].as_array().unwrap()[..] else {
            panic!("{plan}")
        };
        assert_eq!(full["kv_bytes"], f32_bytes, "{name}");
        assert_eq!(half["kv_bytes"], f32_bytes / 2, "{name}");
        let less = full["total_bytes"].as_u64().unwrap() - half["total_bytes"].as_u64().unwrap();
        assert_eq!(less, f32_bytes / 2, "{name}");
    }
    let args = ["plan", &config("qwen3-0.6b.json"), "-c", "1024", "--json"];
    let plan = folder.run(&args).json();
    assert_eq!(
        plan["kv"]["shape"],
        serde_json::json!([28, 2, 8, 1024, 128])
    );
    let text = folder.run(&args[..4]).ok();
    assert!(text.contains("[28, 2, 8, 1024, 128] f16"), "{text}");
}

#[test]
fn json_adds_up() {
    let folder = Folder::new();
    let model = folder.file("m.gguf", bare_model());
    let plan = folder.run(&["plan", &model, "-c", "64", "--json"]).json();
    let number = |value: &Value| value.as_u64().unwrap();
    let sum = number(&plan["weights"]["resident_bytes"])
        + number(&plan["weights"]["packed_bytes"])
        + number(&plan["kv"]["bytes"])
        + number(&plan["arena"]["bytes"])
        + number(&plan["logits"]["bytes"]);
    assert_eq!(plan["total_bytes"], sum);
    let mut at = 0;
    for layer in plan["kv"]["layers"].as_array().unwrap() {
        for side in ["keys", "values"] {
            assert_eq!(layer[side]["offset"], at);
            at = number(&layer[side]["end"]);
        }
    }
    assert_eq!(plan["kv"]["bytes"], at);
    for buffer in plan["arena"]["buffers"].as_array().unwrap() {
        assert!(number(&buffer["end"]) <= number(&plan["arena"]["bytes"]));
        assert!(
            buffer["name"].is_string() && buffer["shape"].is_array(),
            "{buffer}"
        );
    }
    // The run uses the planned memory.
    let args = [
        "run",
        &model,
        "--token-ids",
        "1,2",
        "-n",
        "62",
        "-c",
        "64",
        "--ignore-eos",
        "--json",
    ];
    let memory = &folder.run(&args).json()["memory"];
    assert_eq!(memory["kv_bytes"], plan["kv"]["bytes"]);
    assert_eq!(memory["arena_bytes"], plan["arena"]["bytes"]);
    assert_eq!(memory["packed_bytes"], plan["weights"]["packed_bytes"]);
}

#[test]
fn the_map_has_every_buffer() {
    let folder = Folder::new();
    let model = folder.file("m.gguf", bare_model());
    let plan = folder.run(&["plan", &model, "--json"]).json();
    let map = folder.run(&["plan", &model, "--map"]).ok();
    let lines: Vec<&str> = map.lines().filter(|line| line.starts_with("0x")).collect();
    let count = |path: &str| plan.pointer(path).unwrap().as_array().unwrap().len();
    let sections = plan["weights"]["sections"].as_array().unwrap();
    let packed = sections.iter().filter(|s| s["packed_bytes"] != 0).count();
    let rows = count("/weights/sections") + packed + 2 * count("/kv/layers");
    assert_eq!(lines.len(), rows + count("/arena/buffers") + 3);
    for line in &lines {
        let mut words = line.split_whitespace();
        let mut hex = || {
            let word = words.next().unwrap().strip_prefix("0x").unwrap();
            u64::from_str_radix(word, 16).unwrap()
        };
        let (offset, end) = (hex(), hex());
        let size = words.by_ref().take(2).collect::<Vec<_>>().join(" ");
        assert_eq!(kvark::memory::size_text(end - offset), size, "{line}");
        // Parts start at multiples of 64, with 64 bytes between them.
        assert!(
            end <= plan["total_bytes"].as_u64().unwrap() + 4 * 128,
            "{line}"
        );
    }
    assert!(map.contains(" kv_cache "), "{map}");
}

#[test]
fn a_draft_is_a_path_or_a_catalogue_name() {
    let folder = Folder::new();
    let model = folder.file("m.gguf", bare_model());
    let plan = folder
        .run(&["plan", &model, "--model-draft", &model, "--json"])
        .json();
    assert!(plan["draft"]["total_bytes"].as_u64().unwrap() > 0);
    // A catalogue name is resolved to its file, which is not a model here.
    let home = folder.path("home/models");
    std::fs::create_dir_all(&home).unwrap();
    let entry = kvark::catalogue::default_entry();
    let file = std::fs::File::create(home.join(format!("{}.gguf", entry.name))).unwrap();
    file.set_len(entry.bytes).unwrap();
    let error = folder.run(&["plan", &model, "--md", "smollm2"]).error();
    assert!(error.contains("smollm2-135m-instruct.gguf"), "{error}");
    let error = folder.run(&["plan", &model, "--md", "nonsense"]).error();
    assert!(error.contains("no such file or catalogue model"), "{error}");
}

#[test]
fn pictures_are_pictures() {
    let folder = Folder::new();
    let model = folder.file("m.gguf", bare_model());
    let svg = folder.path("plan.svg");
    let path = svg.to_str().unwrap();
    folder.run(&["plan", &model, "--svg", path]).ok();
    let text = std::fs::read_to_string(svg).unwrap();
    assert!(
        text.starts_with("<svg ") && text.ends_with("</svg>\n"),
        "{text}"
    );
    assert_eq!(
        text.matches("<text ").count(),
        text.matches("</text>").count()
    );
    for part in ["Arena over time", "Keys and values by layer", "in all"] {
        assert!(text.contains(part), "{part}");
    }
    let missing = folder.run(&["plan", &model, "--svg", "no/such/folder/x.svg"]);
    assert!(missing.error().contains("no/such/folder/x.svg"));
}

#[test]
fn what_does_not_fit_is_refused_with_a_way_out() {
    let folder = Folder::new();
    let model = folder.file("m.gguf", bare_model());
    let run = ["run", &model, "--token-ids", "1,2", "-n", "2"];
    let too_small = [&run[..], &["--mem-limit", "10k"]].concat();
    let error = folder.run(&too_small).error();
    assert!(error.contains("the limit is 10.0 kB"), "{error}");
    let enough = [&run[..], &["--mem-limit", "1GiB"]].concat();
    folder.run(&enough).ok();
    for (command, rest) in [
        ("score", &["--token-ids", "1,2,3"][..]),
        ("bench", &["-p", "4", "-n", "2", "-r", "1"]),
        ("plan", &[]),
    ] {
        let args = [&[command, &model, "--mem-limit", "10k"][..], rest].concat();
        let error = folder.run(&args).error();
        assert!(error.contains("the limit is 10.0 kB"), "{command}: {error}");
    }
    let config = config("qwen3-0.6b.json");
    let args = ["plan", &config, "-c", "32768", "--mem-limit", "4G"];
    let error = folder.run(&args).error();
    let words = "(--cache-type-k q8 --cache-type-v q8), or with a context of ";
    assert!(error.contains(words), "{error}");
    // The advised options fit.
    let context = error
        .split("-c ")
        .nth(1)
        .unwrap()
        .split(')')
        .next()
        .unwrap();
    let advised = ["plan", &config, "-c", context, "--mem-limit", "4G"];
    folder.run(&advised).ok();
    for bad in ["many", "-5", "1X", "1e300G"] {
        let args = format!("--mem-limit={bad}");
        let found = folder.run(&["plan", &config, &args]);
        assert_eq!(found.code, Some(2), "{bad}: {found:?}");
    }
}

#[test]
fn what_is_no_model_is_named() {
    let folder = Folder::new();
    let table = [
        (r#"{"model_type": "mamba"}"#, "mamba"),
        ("{}", "architecture"),
        ("[1", "not valid JSON"),
        (
            r#"{"model_type": "llama", "hidden_size": 4}"#,
            "num_hidden_layers",
        ),
    ];
    for (text, part) in table {
        let path = folder.file("config.json", text);
        let error = folder.run(&["plan", &path]).error();
        assert!(
            error.contains(part) && error.contains("config.json"),
            "{error}"
        );
    }
}

/// A budget for experts is counted instead of all experts, and said; a limit chooses one.
#[test]
fn experts_are_counted_by_their_budget() {
    let folder = Folder::new();
    let path = "../import/tests/fixtures/decoder/qwen3moe.gguf";
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let model = model.to_str().unwrap();
    let plan = |more: &[&str]| folder.run(&[&["plan", model, "-c", "64"], more].concat());
    let number = |value: &Value| value.as_u64().unwrap();
    let whole = plan(&["--json"]).json();
    let experts = &whole["weights"]["experts"];
    assert_eq!(experts["bounded"], false, "{experts}");
    let all = number(&experts["bytes"]);
    assert_eq!(number(&experts["held_bytes"]), all);
    let budget = (all / 2).max(number(&experts["minimum_bytes"])).to_string();
    let half = plan(&["--json", "--expert-budget", &budget]).json();
    let held = number(&half["weights"]["experts"]["held_bytes"]);
    assert!(held <= number(&budget.parse::<u64>().unwrap().into()));
    let less = number(&whole["total_bytes"]) - number(&half["total_bytes"]);
    assert!(less.abs_diff(all - held) * 10 <= all, "{less} {all} {held}");
    let text = plan(&["--expert-budget", &budget]).ok();
    let line = text.lines().find(|line| line.starts_with("experts"));
    assert!(line.is_some_and(|line| line.contains("held of")), "{text}");

    let limit = (number(&whole["total_bytes"]) - 1).to_string();
    let chosen = plan(&["--json", "--mem-limit", &limit]).json();
    assert_eq!(chosen["weights"]["experts"]["bounded"], true);
    assert!(number(&chosen["total_bytes"]) <= number(&limit.parse::<u64>().unwrap().into()));
    let error = plan(&["--expert-budget", "1"]).error();
    assert!(error.contains("is too small"), "{error}");

    // On the CPU experts are in the host's memory anyway.
    for flags in [&["--cpu-moe"][..], &["--n-cpu-moe", "1"]] {
        let plan = plan(&[flags, &["--json"]].concat()).json();
        assert_eq!(plan["weights"], whole["weights"]);
        assert_eq!(plan["total_bytes"], whole["total_bytes"]);
    }
    assert_eq!(plan(&["--cpu-moe", "--n-cpu-moe", "1"]).code, Some(2));

    // A run holds it, with the tokens of one that holds all.
    let run = |more: &[&str]| {
        let ids = ["run", model, "--token-ids", "1,2,3", "-n", "8", "-c", "64"];
        let args = [&ids[..], &["--temp", "0", "--json"], more].concat();
        folder.run(&args).json()
    };
    let (plain, bounded) = (run(&[]), run(&["--expert-budget", &budget]));
    assert_eq!(plain["tokens"], bounded["tokens"]);
    let packed = |run: &Value| run["memory"]["packed_bytes"].clone();
    assert_eq!(packed(&bounded), half["weights"]["packed_bytes"]);
    let bench = ["bench", model, "-p", "0", "-n", "4", "-r", "1", "--profile"];
    let args = [&bench[..], &["--json", "--expert-budget", &budget]].concat();
    let bench = folder.run(&args).json();
    let found = bench.to_string();
    assert!(
        found.contains("\"misses\"") && found.contains("\"hit_rate\""),
        "{found}"
    );
}
