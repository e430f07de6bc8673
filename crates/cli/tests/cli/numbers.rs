//! Numbers on the command line: negative ones, too large ones, and those that cause a warning.

use crate::support::*;
use std::fs;

#[test]
fn negative_numbers_are_values_and_not_flags() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let run = ["run", tiny, "-p", "ab", "-n", "2"];
    // As in llama.cpp, -1 stands for a random seed, all tokens and the whole history.
    for flags in [
        ["--seed", "-1"],
        // OpenAI's clients may send any seed, and all doors take the same ones.
        ["--seed", "-2"],
        ["--top-k", "-1"],
        ["--top-k", "0"],
        ["--repeat-last-n", "-1"],
        ["-n", "-1"],
    ] {
        let args = match flags {
            ["-n", _] => [&run[..4], &flags].concat(),
            _ => [&run[..], &flags].concat(),
        };
        let output = folder.run(&args);
        assert_eq!(output.code, Some(0), "{flags:?}: {output:?}");
    }
    let refused: &[(&[&str], &str)] = &[
        (
            &["run", tiny, "-p", "a", "--temp", "-1"],
            "a number of at least 0",
        ),
        (
            &["run", tiny, "-p", "a", "--temp", "-0.5"],
            "a number of at least 0",
        ),
        (
            &["run", tiny, "-p", "a", "--top-k", "-2"],
            "at least 0, or -1",
        ),
        (
            &["run", tiny, "-p", "a", "--top-p", "-1"],
            "a number from 0 to 1",
        ),
        (
            &["run", tiny, "-p", "a", "--min-p", "-1"],
            "a number from 0 to 1",
        ),
        (
            &["run", tiny, "-p", "a", "--repeat-penalty", "-1"],
            "a number above 0",
        ),
        (
            &["run", tiny, "-p", "a", "--context-shift", "--keep", "-1"],
            "at least 0",
        ),
        (&["run", tiny, "-p", "a", "-c", "-1"], "of at least 1"),
        (&["run", tiny, "-p", "a", "-t", "-1"], "-1 is not in 1.."),
        (&["run", tiny, "-p", "a", "-b", "-1"], "-1 is not in 1.."),
        (
            &["run", tiny, "-p", "a", "--parallel", "-1"],
            "-1 is not in 1..=64",
        ),
        (
            &["run", tiny, "-p", "a", "--mem-limit", "-1"],
            "a number of bytes",
        ),
        (&["bench", tiny, "-p", "-1"], "at least 0"),
        (&["bench", tiny, "-n", "-1"], "at least 0"),
        (&["bench", tiny, "-r", "-1"], "-1 is not in 1.."),
        (&["plan", tiny, "-c", "-1"], "of at least 1"),
        (&["exec", tiny, "--repeat", "-1"], "at least 0"),
        (&["embed", tiny, "a", "-t", "-1"], "-1 is not in 1.."),
        (
            &["export", tiny, "-o", "x.pt2", "--max-step", "-1"],
            "-1 is not in 2..",
        ),
    ];
    for (args, rule) in refused {
        let output = folder.run(args);
        assert_eq!((output.code, &*output.stdout), (Some(2), ""), "{args:?}");
        let said = &output.stderr;
        assert!(said.contains("invalid value '-"), "{args:?}: {said}");
        assert!(said.contains(rule), "{args:?}: {said}");
    }
}

#[test]
fn more_threads_than_cores_are_not_started() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let cores = std::thread::available_parallelism().unwrap();
    let commands: [&[&str]; 6] = [
        &["run", tiny, "-p", "ab", "-n", "2"],
        &["score", tiny, "-p", "abc"],
        &["bench", tiny, "-p", "4", "-n", "2", "-r", "1"],
        &["exec", tiny, "--random"],
        &["plan", tiny],
        &["embed", tiny, "a text"],
    ];
    for command in commands {
        let output = folder.run(&[command, &["-t", "70000"]].concat());
        assert_eq!(output.code, Some(0), "{command:?}: {output:?}");
        let warning =
            format!("warning: 70000 threads were requested, but this machine has {cores} cores");
        let warnings = output.stderr.matches(&warning).count();
        assert_eq!(warnings, 1, "{command:?}: {}", output.stderr);
    }
    let quiet = folder.run(&["score", tiny, "-p", "abc", "-t", "1"]);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn a_context_beyond_the_trained_one_is_warned_of() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    for (command, rest) in [("run", &["-p", "ab", "-n", "2"][..]), ("plan", &[])] {
        let run = |context: &str| {
            let output = folder.run(&[&[command, tiny, "-c", context][..], rest].concat());
            assert_eq!(output.code, Some(0), "{output:?}");
            output.stderr
        };
        let said = run("65");
        let warning = "warning: the model was trained for a context of 64 tokens";
        assert!(said.contains(warning), "{command}: {said}");
        assert!(!run("64").contains("warning"), "{command}");
    }
}

#[test]
fn one_token_has_no_perplexity() {
    let folder = Folder::new();
    let bare = &*folder.file("bare.gguf", bare_model());
    for json in [&[][..], &["--json"]] {
        let error = folder
            .run(&[&["score", bare, "--token-ids", "5"], json].concat())
            .error();
        assert!(error.contains("nothing to predict"), "{error}");
    }
}

#[test]
fn settings_of_a_genai_folder_that_are_not_honoured_are_named() {
    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvark/tests/onnx/folder");
    let folder = Folder::new();
    let copy = folder.path("genai");
    fs::create_dir(&copy).unwrap();
    for file in fs::read_dir(FOLDER).unwrap().flatten() {
        fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    let path = copy.to_str().unwrap();
    let run = || {
        let output = folder.run(&["run", path, "-p", "abc", "-n", "2"]);
        assert_eq!(output.code, Some(0), "{output:?}");
        output.stderr
    };
    assert!(!run().contains("warning"));
    let config = copy.join("genai_config.json");
    let text = fs::read_to_string(&config).unwrap();
    let beams = text.replace(
        "\"top_k\": 7",
        "\"top_k\": 7, \"num_beams\": 4, \"min_length\": 3",
    );
    assert_ne!(text, beams);
    fs::write(&config, beams).unwrap();
    let said = run();
    let line = said.lines().find(|line| line.starts_with("warning: "));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("genai_config.json"), "{line}");
    assert!(line.contains("search.num_beams: 4"), "{line}");
    assert!(line.contains("search.min_length: 3"), "{line}");
}
