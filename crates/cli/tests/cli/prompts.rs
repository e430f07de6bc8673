//! The ways to give `kvark run` a model and a prompt.

use crate::support::*;
use serde_json::Value;

const OPTIONS: [&str; 6] = ["--json", "-n", "4", "--temp", "0", "--ignore-eos"];

/// Prompt tokens and generated tokens of a run.
fn tokens(output: Output) -> (Value, Value) {
    let report = output.json();
    (report["prompt_tokens"].clone(), report["tokens"].clone())
}

/// A folder whose configuration names the tiny model as the default model, and the model's path.
fn with_default_model() -> (Folder, String) {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    std::fs::create_dir_all(folder.path("config/kvark")).unwrap();
    folder.file("config/kvark/config.toml", format!("model = {:?}\n", tiny));
    (folder, tiny)
}

#[test]
fn a_prompt_is_the_same_however_it_is_given() {
    let (folder, tiny) = with_default_model();
    let text = "ab cd";
    let file = folder.file("prompt.txt", text);
    let expect = tokens(folder.run(&[&["run", &tiny, "-p", text], &OPTIONS[..]].concat()));
    assert_eq!(expect.0.as_array().unwrap().len(), 4);
    let by_arguments: &[&[&str]] = &[
        &["run", &tiny, text],
        &["run", text],
        &["run", "-m", &tiny, text],
        &["run", text, "-m", &tiny],
        &["run", "-f", &file],
        &["run", &tiny, "-f", &file],
    ];
    for args in by_arguments {
        let found = tokens(folder.run(&[args, &OPTIONS[..]].concat()));
        assert_eq!(found, expect, "{args:?}");
    }
    // The line end of echo is not part of the prompt; one inside of it is.
    let by_pipe: &[&[&str]] = &[
        &["run"],
        &["run", &tiny],
        &["run", "-m", &tiny],
        &["run", "-p", "-"],
        &["run", "-f", "-"],
        &["run", &tiny, "-"],
        &["run", "-"],
    ];
    for args in by_pipe {
        for end in ["", "\n", "\r\n"] {
            let input = format!("{text}{end}");
            let found = folder.run_with_input(&[args, &OPTIONS[..]].concat(), &input);
            assert_eq!(tokens(found), expect, "{args:?} {end:?}");
        }
    }
    let run = |input: &str| {
        let output = folder.run_with_input(&[&["run"], &OPTIONS[..]].concat(), input);
        tokens(output).0.as_array().unwrap().len()
    };
    assert_eq!(run("ab\n\n"), run("ab") + 1);
    assert_eq!(run("ab\ncd\n"), run("abcd") + 1);
    // As in a pipe, the line end that an editor puts at the end of a file is not part of the prompt.
    for end in ["\n", "\r\n"] {
        let file = folder.file("line.txt", format!("{text}{end}"));
        let found = folder.run(&[&["run", "-f", &file], &OPTIONS[..]].concat());
        assert_eq!(tokens(found), expect, "{end:?}");
    }
    let file = folder.file("lines.txt", "ab\n\n");
    let found = folder.run(&[&["run", "-f", &file], &OPTIONS[..]].concat());
    assert_eq!(tokens(found).0.as_array().unwrap().len(), run("ab\n\n"));
}

#[test]
fn a_prompt_may_be_one_word() {
    let (folder, tiny) = with_default_model();
    let expect = tokens(folder.run(&[&["run", &tiny, "-p", "Hello"], &OPTIONS[..]].concat()));
    for args in [&["run", "Hello"][..], &["run", "-m", &tiny, "Hello"]] {
        let found = tokens(folder.run(&[args, &OPTIONS[..]].concat()));
        assert_eq!(found, expect, "{args:?}");
    }
}

#[test]
fn texts_of_score_tokenize_and_detokenize_are_arguments_or_piped() {
    let (folder, tiny) = with_default_model();
    let file = folder.file("text.txt", "ab cd\n");
    for (command, key) in [("tokenize", "tokens"), ("score", "ids")] {
        let expect = folder
            .run(&[command, &tiny, "-p", "ab cd", "--json"])
            .json()[key]
            .clone();
        assert!(expect.is_array(), "{command}");
        let given: &[&[&str]] = &[
            &[command, "ab cd"],
            &[command, &tiny, "ab cd"],
            &[command, "-m", &tiny, "ab cd"],
            &[command, "-f", &file],
        ];
        for args in given {
            let found = folder.run(&[args, &["--json"][..]].concat()).json();
            assert_eq!(found[key], expect, "{args:?}");
        }
        for args in [&[command][..], &[command, "-"], &[command, &tiny]] {
            let args = [args, &["--json"]].concat();
            let found = folder.run_with_input(&args, "ab cd\n").json();
            assert_eq!(found[key], expect, "{args:?}");
        }
        let error = folder.run(&[command]).error();
        assert!(error.contains("in a pipe"), "{error}");
    }
    let ids = folder.run(&["tokenize", "ab cd"]).ok();
    for args in [&["detokenize"][..], &["detokenize", &tiny]] {
        let text = folder.run_with_input(args, &ids).ok();
        assert_eq!(text, "ab cd\n", "{args:?}");
    }
    let error = folder.run_with_input(&["detokenize"], "ab").error();
    assert!(error.contains("\"ab\" is not a token id"), "{error}");
}

#[test]
fn a_catalogue_name_is_not_shadowed_by_a_folder() {
    let (folder, _) = with_default_model();
    let run = |args: &[&str]| finish(folder.command(args).current_dir(folder.path("")), "");
    std::fs::create_dir(folder.path("smollm2")).unwrap();
    // A file of the right size counts as the model until it is read.
    let place = folder.path("home/models/smollm2-135m-instruct.gguf");
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    let bytes = kvark::catalogue::default_entry().bytes;
    std::fs::File::create(&place)
        .unwrap()
        .set_len(bytes)
        .unwrap();
    let error = run(&["run", "smollm2", "-p", "a"]).error();
    assert!(error.contains("smollm2-135m-instruct.gguf"), "{error}");
    let error = run(&["run", "./smollm2", "-p", "a"]).error();
    assert!(error.contains("./smollm2"), "{error}");
    // A file that is a model is one, whatever its name.
    std::fs::remove_dir(folder.path("smollm2")).unwrap();
    folder.file("smollm2", model());
    run(&["run", "smollm2", "-p", "a", "-n", "1"]).ok();
}

#[test]
fn two_models_are_one_too_many() {
    let (folder, tiny) = with_default_model();
    for args in [
        &["run", "-m", &tiny, "-m", &tiny, "-p", "a"][..],
        &["chat", "-m", &tiny, "--model", &tiny],
        &["plan", "-m", &tiny, "-m", &tiny],
        &["tokenize", "-m", &tiny, "-m", &tiny, "-p", "a"],
    ] {
        let found = folder.run(args);
        assert_eq!(found.code, Some(2), "{found:?}");
        assert!(found.stderr.contains("'--model <MODEL>'"), "{found:?}");
    }
}

#[test]
fn flags_of_llama_cpp_are_taken_or_refused_by_name() {
    let (folder, tiny) = with_default_model();
    let args = [
        "run", &tiny, "-p", "ab", "-n", "1", "-ctk", "q8_0", "-ctv", "q8_0",
    ];
    folder.run(&args).ok();
    folder
        .run(&["run", &tiny, "--chat", "-sys", "ab", "-p", "Hi", "-n", "1"])
        .ok();
    for (flag, advice) in [
        ("-ngl", "--device cuda"),
        ("-fa", "leave it out"),
        ("-cnv", "kvark chat"),
    ] {
        let found = folder.run(&["run", &tiny, "-p", "ab", flag, "9"]);
        assert_eq!((found.code, &*found.stdout), (Some(2), ""), "{found:?}");
        assert_eq!(found.stderr.lines().count(), 1, "{found:?}");
        assert!(
            found.stderr.starts_with(&format!("error: {flag} ")),
            "{found:?}"
        );
        assert!(found.stderr.contains(advice), "{found:?}");
    }
}

#[test]
fn contexts_may_be_given_in_units_of_1024() {
    let (folder, tiny) = with_default_model();
    let context = |size: &str| folder.run(&["plan", &tiny, "-c", size, "--json"]);
    assert_eq!(context("1k").json()["context"], 1024);
    assert_eq!(context("2K").json()["context"], 2048);
    let wrong = context("8x");
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("such as 4096 or 8k"), "{wrong:?}");
}

#[test]
fn a_word_that_could_be_either_is_asked_back() {
    let (folder, tiny) = with_default_model();
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["run", "smolm2"],
            &[
                "\"smolm2\" is no file and no catalogue model (did you mean smollm2?)",
                "--prompt \"smolm2\"",
                "--model \"smolm2\"",
            ],
        ),
        (&["run", "llama3:8b"], &["see kvark list", "--prompt"]),
        (
            &["run", "-m", "gemma", "a text"],
            &["no such file or catalogue model: gemma (did you mean gemma3?)"],
        ),
        (
            &["run", "-f", &tiny, "a text"],
            &["the prompt is given twice, as an argument and by --file"],
        ),
        (
            &["run", "-p", "a text", "Hello"],
            &["\"Hello\" is no file", "--prompt gives the prompt already"],
        ),
        (&["run", "read my model.gguf"], &["--prompt", "--model"]),
        (&["run", "missing.gguf"], &["no prompt"]),
        (
            &["run", "missing.gguf", "a text"],
            &["no such file or catalogue model: missing.gguf"],
        ),
        (
            &["run", "-m", &tiny, "other.gguf"],
            &["the model is given twice", "other.gguf"],
        ),
        (
            &["run", "-m", &tiny, "one", "two"],
            &["the model is given twice", "in quotes"],
        ),
        (
            &["run", &tiny, "one text", "-p", "another"],
            &["the prompt is given twice"],
        ),
        (
            &["run", &tiny, "one text", "--token-ids", "1"],
            &["the prompt is given twice"],
        ),
        (&["run"], &["no prompt"]),
    ];
    for (args, says) in cases {
        let error = folder.run(args).error();
        for says in *says {
            assert!(error.contains(says), "{args:?}: {error}");
        }
    }
    assert_eq!(folder.run(&["run", "a", "b", "c"]).code, Some(2));
}

#[test]
fn the_last_of_a_repeated_flag_counts() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let args = ["run", &tiny, "--json", "--temp", "2", "--temp", "0"];
    let more = ["-p", "xy", "-n", "9", "-n", "4", "-p", "ab cd", "--json"];
    let found = tokens(folder.run(&[&args[..], &more, &["--ignore-eos"]].concat()));
    let expect = tokens(folder.run(&[&["run", &tiny, "-p", "ab cd"], &OPTIONS[..]].concat()));
    assert_eq!(found, expect);
    // Lists grow: either string ends the text.
    let whole = folder.run(&["run", &tiny, "ab cd", "--json", "-n", "30", "--temp", "0"]);
    let whole = whole.json()["text"].as_str().unwrap().to_owned();
    let letter = whole.chars().nth(2).unwrap().to_string();
    for stops in [
        ["--stop", &letter, "--stop", "~"],
        ["--stop", "~", "--stop", &letter],
    ] {
        let args = ["run", &tiny, "ab cd", "--json", "-n", "30", "--temp", "0"];
        let report = folder.run(&[&args[..], &stops].concat()).json();
        assert_eq!(report["finish_reason"], "stop");
        assert_eq!(report["text"], whole.split(&letter).next().unwrap());
    }
}

#[test]
fn conversations_have_a_system_message_and_a_file() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let run = |more: &[&str]| folder.run(&[&["run", &tiny], more, &OPTIONS[..]].concat());
    let plain = |text: &str| {
        let text = format!("{text}<|im_start|>assistant\n");
        tokens(run(&["--special", "-p", &text]))
    };
    let system = "<|im_start|>system\nab<|im_end|>\n";
    let user = "<|im_start|>user\nHi<|im_end|>\n";
    let answer = "<|im_start|>assistant\nc<|im_end|>\n";

    let found = tokens(run(&["--chat", "--system", "ab", "Hi there"]));
    let there = user.replace("Hi", "Hi there");
    assert_eq!(found, plain(&format!("{system}{there}")));

    let all = r#"[{"role": "system", "content": "ab"}, {"role": "user", "content": "Hi"},
                  {"role": "assistant", "content": "c"}, {"role": "user", "content": "Hi"}]"#;
    let expect = plain(&format!("{system}{user}{answer}{user}"));
    let file = folder.file("all.json", all);
    assert_eq!(tokens(run(&["--messages", &file])), expect);
    let wrapped = folder.file("wrapped.json", format!("{{\"messages\": {all}}}"));
    assert_eq!(tokens(run(&["--messages", &wrapped])), expect);
    let args = [&["run", &tiny, "--messages", "-"], &OPTIONS[..]].concat();
    assert_eq!(tokens(folder.run_with_input(&args, all)), expect);
    // Without the first and the last message, which flags add.
    let some = r#"[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "c"}]"#;
    let some = folder.file("some.json", some);
    let found = run(&["--messages", &some, "--system", "ab", "-p", "Hi"]);
    assert_eq!(tokens(found), expect);
    for text in ["Hi", "Hi there"] {
        let args = ["--messages", &some, "--system", "ab"];
        let by_flag = tokens(run(&[&args[..], &["-p", text]].concat()));
        let behind = folder.run(&[&["run", "-m", &tiny, text], &args[..], &OPTIONS].concat());
        assert_eq!(tokens(behind), by_flag);
    }

    let broken = folder.file("broken.json", "[{\"role\": ");
    let wrong = folder.file("wrong.json", r#"[{"role": "user"}]"#);
    for (args, says) in [
        (&["--messages", &broken][..], "broken.json is not JSON"),
        (
            &["--messages", &wrong],
            "wrong.json: message 1: has no \"content\"",
        ),
        (&["--messages", "missing.json"], "missing.json"),
        (
            &["--messages", &file, "--system", "x"],
            "has a system message already",
        ),
    ] {
        let error = run(args).error();
        assert!(error.contains(says), "{error}");
    }
    let usage = run(&["--system", "ab", "-p", "Hi"]);
    assert_eq!(usage.code, Some(2));
    assert!(usage.stderr.contains("--chat"), "{usage:?}");
}
