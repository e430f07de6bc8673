//! `kvark bench`: several models and numbers of threads, forms of the results, ratios to earlier ones.

use crate::support::*;
use serde_json::Value;

fn texts<'a>(report: &'a Value, key: &str) -> Vec<&'a str> {
    let rows = report["results"].as_array().unwrap().iter();
    rows.map(|row| row[key].as_str().unwrap()).collect()
}

#[test]
fn the_model_its_type_and_size_and_the_version_are_named() {
    let folder = Folder::new();
    let (one, two) = (
        folder.file("one.gguf", bare_model()),
        folder.file("two.gguf", bare_model()),
    );
    let run = |more: &[&str]| {
        let args = [
            "bench", &one, "-m", &two, "-t", "1", "-p", "4", "-n", "0", "-r", "1",
        ];
        folder.run(&[&args[..], more].concat())
    };
    let report = run(&["--json"]).json();
    assert_eq!(texts(&report, "model"), ["one", "two"]);
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    let model = &report["models"][1];
    assert_eq!(
        (&model["name"], &model["architecture"]),
        (&"two".into(), &"llama".into())
    );
    assert_eq!(model["quantisation"], "F32");
    assert!(
        model["bytes"].as_u64().unwrap() > 1000 && model["parameters"].as_u64().unwrap() > 1000
    );
    let text = run(&[]).ok();
    let version = format!("kvark {}\n", env!("CARGO_PKG_VERSION"));
    assert!(text.starts_with(&version), "{text}");
    assert!(text.contains("\none: llama F32, "), "{text}");
    assert!(text.contains("% of the roofline"), "{text}");
    assert_eq!(run(&["-o", "json"]).json()["models"], report["models"]);
}

#[test]
fn prompts_with_answers_threads_and_tables() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", bare_model());
    let args = [
        "bench", &tiny, "-p", "0", "-n", "3", "-pg", "8,4", "-r", "1",
    ];
    let run = |more: &[&str]| folder.run(&[&args[..], more].concat());
    let report = run(&["--json"]).json();
    assert_eq!(texts(&report, "test"), ["tg3", "pp8+tg4"]);
    assert_eq!(report["results"][1]["n"], 12);

    // The number of threads is limited to that of the cores.
    let cores = std::thread::available_parallelism().unwrap().get();
    let report = run(&["--json", "-t", "1,2"]).json();
    let threads = report["results"].as_array().unwrap().iter();
    let threads: Vec<u64> = threads
        .map(|row| row["threads"].as_u64().unwrap())
        .collect();
    let two = cores.min(2) as u64;
    assert_eq!(threads, [1, 1, two, two]);
    let error = folder
        .run(&["run", &tiny, "--token-ids", "1", "-t", "1,2"])
        .error();
    assert!(error.contains("only supported by kvark bench"), "{error}");

    let table = run(&["-o", "md"]).ok();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("| model | type | size |"), "{table}");
    let cells = |line: &str| line.matches('|').count();
    assert!(
        lines[..4].iter().all(|line| cells(line) == cells(lines[0])),
        "{table}"
    );
    assert!(lines[3].contains("| pp8+tg4 |"), "{table}");
    let csv = run(&["-o", "csv"]).ok();
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("version,cpu,model,type,size"), "{csv}");
    assert!(lines.len() == 3 && lines[2].contains(",pp8+tg4,"), "{csv}");
    let wrong = folder.run(&["bench", &tiny, "-pg", "512"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("such as 512,128"), "{wrong:?}");
}

#[test]
fn results_are_compared_with_earlier_ones() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", bare_model());
    let args = ["bench", &tiny, "-p", "4", "-n", "2", "-r", "1"];
    let mut earlier = folder.run(&[&args[..], &["--json"]].concat()).json();
    // The ratio to a speed of 1 is the speed.
    earlier["results"][0]["tokens_per_second_mean"] = 1.0.into();
    earlier["results"].as_array_mut().unwrap().pop();
    let file = folder.file("before.json", earlier.to_string());
    let compared = [&args[..], &["--compare", &file]].concat();
    let report = folder.run(&[&compared[..], &["--json"]].concat()).json();
    let first = &report["results"][0];
    assert_eq!(first["ratio"], first["tokens_per_second_mean"]);
    assert!(report["results"][1]["ratio"].is_null());
    let text = folder.run(&compared).ok();
    assert!(text.contains(&format!("times {file}\n")), "{text}");
    assert!(text.contains(&format!("not in {file}\n")), "{text}");
    let other = folder.file("other.json", "{}");
    let error = folder
        .run(&[&args[..], &["--compare", &other]].concat())
        .error();
    assert!(error.contains("kvark bench --json"), "{error}");
}
