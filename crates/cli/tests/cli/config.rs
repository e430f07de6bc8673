//! The configuration file, the environment and the flags.

use crate::support::*;
use serde_json::{Value, json};

fn folder_with(config: &str) -> Folder {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path("config/kvark")).unwrap();
    folder.file("config/kvark/config.toml", config);
    folder
}

/// The row of a key in `kvark config --json`.
fn row(report: &Value, command: Value, key: &str) -> Value {
    let rows = report["values"].as_array().unwrap().iter();
    let mut found = rows.filter(|row| row["key"] == key && row["command"] == command);
    let row = found.next().unwrap_or_else(|| panic!("no {key}: {report}"));
    assert!(found.next().is_none());
    row.clone()
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let folder = folder_with(
        "# defaults\ntemp = 2\nseed = 1\npredict = 6\n\n[chat]\npredict = 3\nsystem = \"ab\"\nverbose = true\n",
    );
    let tiny = &*folder.file("tiny.gguf", model());
    let run = |variables: &[(&str, &str)], more: &[&str]| {
        let args = ["run", tiny, "-p", "ab", "--json", "--ignore-eos"];
        let mut command = folder.command(&[&args[..], more].concat());
        command.envs(variables.iter().copied());
        let report = finish(&mut command, "").json();
        let count = report["tokens"].as_array().unwrap().len();
        (report["seed"].as_u64().unwrap(), count)
    };
    assert_eq!(run(&[], &[]), (1, 6));
    assert_eq!(run(&[("KVARK_SEED", "2")], &[]), (2, 6));
    let variables = [("KVARK_SEED", "2"), ("KVARK_PREDICT", "5")];
    assert_eq!(run(&variables, &["--seed", "3"]), (3, 5));
    assert_eq!(run(&variables, &["-n", "4", "--seed", "3"]), (3, 4));
    assert_eq!(run(&[("KVARK_SEED", "")], &[]), (1, 6));
    // A command's table takes precedence over the top-level keys.
    let said = folder.run_with_input(&["chat", tiny], "Hi\n/system\n");
    assert!(said.stderr.contains("cut after 3 tokens"), "{said:?}");
    assert!(said.stderr.contains("[prompt "), "{said:?}");
    assert!(said.stderr.ends_with("\nab\n"), "{said:?}");
    // Without the file, none of it.
    let mut command = folder.command(&["chat", tiny]);
    command.env("XDG_CONFIG_HOME", folder.path("elsewhere"));
    let said = finish(&mut command, "/system\n");
    assert!(said.stderr.contains("no system message"), "{said:?}");
}

#[test]
fn the_default_model_and_lists_can_be_configured() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let bare = &*folder.file("bare.gguf", bare_model());
    std::fs::create_dir_all(folder.path("config/kvark")).unwrap();
    let config = format!(
        "model = {tiny:?}\nlogit-bias = [\"5+1000\", \"6-1\"]\nctx_size = 48\nsystem = \"ab\"\ncontext-shift = true\n"
    );
    folder.file("config/kvark/config.toml", config);
    let report = folder.run(&["run", "ab cd", "-n", "3", "--json", "--keep", "2"]);
    assert_eq!(report.json()["tokens"], json!([5, 5, 5]));
    let mut command = folder.command(&["run", "ab cd", "-n", "3", "--json"]);
    command
        .env("HOME", folder.path(""))
        .env("KVARK_MODEL", "~/tiny.gguf");
    let report = finish(&mut command, "").json();
    assert_eq!(report["tokens"], json!([5, 5, 5]));
    // A flag replaces the list, and a model the default one.
    let report = folder.run(&["run", "ab cd", "-n", "3", "--json", "-l", "7+1000"]);
    assert_eq!(report.json()["tokens"], json!([7, 7, 7]));
    let args = ["run", bare, "--token-ids", "1,2", "-n", "2", "--json"];
    assert_eq!(folder.run(&args).json()["text"], "");
    // The system message is for conversations only.
    let chat = folder
        .run(&["run", "--chat", "a b", "-n", "1", "--json"])
        .json();
    let plain = folder.run(&["run", "a b", "-n", "1", "--json"]).json();
    assert_eq!(plain["prompt_tokens"].as_array().unwrap().len(), 3);
    let head = folder
        .run(&[
            "tokenize",
            "-m",
            &tiny,
            "--special",
            "-p",
            "<|im_start|>system\nab",
            "--json",
        ])
        .json();
    let head = head["tokens"].as_array().unwrap();
    let tokens = chat["prompt_tokens"].as_array().unwrap();
    assert_eq!(tokens[..head.len()], head[..]);
}

#[test]
fn what_is_wrong_in_the_file_is_named_with_its_line() {
    let cases = [
        (
            "temp = 1\nthread = 2\n",
            ":2: unknown key thread; did you mean threads?",
        ),
        (
            "\n\n[chat]\nsytem = \"a\"\n",
            ":4: unknown key sytem of kvark chat; did you mean system?",
        ),
        (
            "zzzzzzzz = 1\n",
            ":1: unknown key zzzzzzzz; kvark config lists the keys",
        ),
        ("prompt = \"a\"\n", ":1: unknown key prompt"),
        ("threads = 0\n", ":1: threads = \"0\": 0 is not in 1.."),
        (
            "temp = \"hot\"\n",
            ":1: temp = \"hot\": must be a number of at least 0",
        ),
        ("temp = [1, 2]\n", ":1: temp: takes one value, not a list"),
        ("temp = true\n", ":1: temp: must be a text or a number"),
        (
            "[chat]\nverbose = 1\n",
            ":2: verbose: must be true or false",
        ),
        (
            "cache-type-k = \"q3\"\n",
            ":1: cache-type-k = \"q3\": must be one of f32",
        ),
        (
            "[talk]\ntemp = 1\n",
            ":1: unknown table [talk]; there can be one of ",
        ),
        ("a = 1\nb = \n", ":2: "),
        ("temp = 1\ntemp = 2\n", ":2: "),
    ];
    for (text, says) in cases {
        let folder = folder_with(text);
        let tiny = &*folder.file("tiny.gguf", model());
        for args in [&["run", tiny, "-p", "a"][..], &["config"]] {
            let error = folder.run(args).error();
            let says = format!("config.toml{says}");
            assert!(error.contains(&says), "{text:?}: {error}");
        }
        // Commands that read no configuration still work, and so does help.
        folder.run(&["list"]).ok();
        folder.run(&["run", "--help"]).ok();
    }
    let folder = Folder::new();
    let with = |name: &str, value: &str| {
        let mut command = folder.command(&["config"]);
        finish(command.env(name, value), "").error()
    };
    let error = with("KVARK_CONFIG", "missing.toml");
    assert!(error.contains("KVARK_CONFIG=missing.toml: there is no such file"));
    let error = with("KVARK_THREADS", "many");
    assert!(
        error.contains("KVARK_THREADS: threads = \"many\": "),
        "{error}"
    );
    let error = with("KVARK_VERBOSE", "perhaps");
    assert!(
        error.contains("KVARK_VERBOSE: \"perhaps\" must be true or false"),
        "{error}"
    );
}

#[test]
fn every_value_is_shown_with_its_source() {
    let folder = folder_with("threads = 1\n\n[chat]\nsystem = \"ab\"\n");
    let path = folder.path("config/kvark/config.toml");
    let path = path.to_str().unwrap();
    assert_eq!(folder.run(&["config", "--path"]).ok(), format!("{path}\n"));
    let mut command = folder.command(&["config", "--json"]);
    let report = finish(command.env("KVARK_TOP_K", "9"), "").json();
    assert_eq!(
        (&report["file"], &report["exists"]),
        (&json!(path), &json!(true))
    );
    let found = |command: Value, key: &str| {
        let row = row(&report, command, key);
        let keys = ["value", "source", "line", "variable"];
        keys.map(|key| row[key].clone())
    };
    let null = Value::Null;
    let general = |key| found(Value::Null, key);
    assert_eq!(
        general("threads"),
        [json!("1"), json!("file"), json!(1), null.clone()]
    );
    assert_eq!(
        general("top-k"),
        [
            json!("9"),
            json!("environment"),
            null.clone(),
            json!("KVARK_TOP_K")
        ]
    );
    let default = |value: &str| [json!(value), json!("default"), Value::Null, Value::Null];
    assert_eq!(general("batch-size"), default("512"));
    assert_eq!(general("min-p"), default("0.05"));
    assert_eq!(general("verbose"), default("false"));
    assert_eq!(general("model"), default("smollm2-135m-instruct"));
    assert_eq!(general("system")[0], null);
    assert_eq!(
        found(json!("chat"), "system"),
        [json!("ab"), json!("file"), json!(4), null.clone()]
    );
    let shown = folder.run(&["config"]).ok();
    let line = |start: &str| {
        let line = shown.lines().find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("{shown}")).to_owned()
    };
    assert!(line("threads ").ends_with(&format!(" {path}:1")), "{shown}");
    let words = line("chat.system ");
    let words: Vec<&str> = words.split_whitespace().collect();
    assert_eq!(words, ["chat.system", "ab", &*format!("{path}:4")]);
    assert!(line("system ").contains("not set"), "{shown}");
    // The variable that selects passes is read by the command itself, before the file.
    let mut command = folder.command(&["config"]);
    let shown = finish(command.env("KVARK_PASSES", "none"), "").ok();
    let line = shown.lines().find(|line| line.starts_with("passes "));
    assert!(line.unwrap().ends_with(" KVARK_PASSES"), "{shown}");
    let mut command = folder.command(&["config", "--path"]);
    let other = folder.file("other.toml", "");
    let shown = finish(command.env("KVARK_CONFIG", &other), "").ok();
    assert_eq!(shown, format!("{other}\n"));
}
