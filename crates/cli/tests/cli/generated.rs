//! Completion scripts and manual pages: the files in `completions/` and `man/` are what the command prints.
//! `KVARK_UPDATE=1` rewrites them.

use crate::support::{Folder, finish};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

fn committed(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(folder)
}

/// The files of a folder by name.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (name(&path), fs::read_to_string(&path).unwrap()))
        .collect()
}

/// Compares a folder of the tree with a generated one, or replaces it.
#[track_caller]
fn compare(folder: &str, generated: &Path) {
    let (want, committed) = (files(generated), committed(folder));
    if std::env::var_os("KVARK_UPDATE").is_some_and(|value| !value.is_empty()) {
        let _ = fs::remove_dir_all(&committed);
        fs::create_dir_all(&committed).unwrap();
        for (name, text) in &want {
            fs::write(committed.join(name), text).unwrap();
        }
    }
    let found = files(&committed);
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&want), "{folder}/");
    for (name, text) in want {
        assert!(
            found[&name] == text,
            "{folder}/{name} is not what this command prints; `KVARK_UPDATE=1 cargo test --release --package \
             kvark-cli generated` rewrites it"
        );
    }
}

#[test]
fn completions_are_those_of_this_command() {
    let folder = Folder::new();
    let dir = folder.path("completions");
    fs::create_dir(&dir).unwrap();
    for shell in SHELLS {
        let to = dir.to_str().unwrap();
        let printed = folder.run(&["completions", shell]).ok();
        folder.run(&["completions", shell, "--dir", to]).ok();
        assert!(files(&dir).values().any(|text| *text == printed), "{shell}");
    }
    compare("completions", &dir);
}

#[test]
fn manual_pages_are_those_of_this_command() {
    let folder = Folder::new();
    let dir = folder.path("man");
    fs::create_dir(&dir).unwrap();
    folder.run(&["man", "--dir", dir.to_str().unwrap()]).ok();
    let pages = files(&dir);
    assert_eq!(pages["kvark.1"], folder.run(&["man"]).ok());
    assert_eq!(pages["kvark-run.1"], folder.run(&["man", "run"]).ok());
    assert!(pages["kvark-run.1"].contains(".SH EXAMPLES"));
    let error = folder.run(&["man", "sing"]).error();
    assert!(error.contains("no such command: sing"), "{error}");
    // A folder that is not there is made; one that cannot be made is named.
    let new = folder.path("new/man1").to_str().unwrap().to_owned();
    let below = folder.file("file", "") + "/man1";
    for args in [&["man", "--dir"][..], &["completions", "bash", "--dir"]] {
        folder.run(&[args, &[&new]].concat()).ok();
        let error = folder.run(&[args, &[&below]].concat()).error();
        assert!(
            error.contains("cannot create") && error.contains("man1"),
            "{error}"
        );
    }
    assert!(folder.path("new/man1/kvark.1").exists());
    compare("man", &dir);
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let folder = Folder::new();
    let script = folder.file("kvark.bash", folder.run(&["completions", "bash"]).ok());
    let complete = |words: &[&str]| {
        let last = words.len() - 1;
        let code = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                    _kvark kvark \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; echo \"${COMPREPLY[@]}\"";
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", code, "bash", &script]).args(words);
        assert!(last > 0);
        match bash.output() {
            // Not every machine has bash.
            Err(error) => Err(error),
            Ok(_) => Ok(finish(&mut bash, "").ok()),
        }
    };
    for (words, wants) in [
        (&["kvark", "ch"][..], "chat"),
        (&["kvark", "run", "--prompt-c"], "--prompt-cache"),
        (&["kvark", "run", "--executor", ""], "compiled interpreted"),
        (&["kvark", "run", "--cache-type-k", "q8"], "q8 q8g64"),
        (
            &["kvark", "run", "--run-mode", "full_d"],
            "full_decode_only",
        ),
        (&["kvark", "chat", "--spec-type", "e"], "eagle3"),
        // Models are names and files, not flags.
        (&["kvark", "run", "smol"], "smollm2"),
        (&["kvark", "plan", "-m", "gem"], "gemma3-270m"),
        (&["kvark", "inspect", "/et"], "/etc"),
    ] {
        match complete(words) {
            Ok(found) => assert_eq!(found.trim(), wants, "{words:?}"),
            Err(error) => {
                let text = format!("skipped: bash cannot be started: {error}\n");
                let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
                return;
            }
        }
    }
}

/// The sampling options of Python's stub are those of the schema.
#[test]
fn the_options_of_the_python_stub_are_generated() {
    use kvark::generate::{OptionKind, SAMPLING_OPTIONS};
    let path = committed("python/kvark").join("_kvark.pyi");
    let found = fs::read_to_string(&path).unwrap();
    let mut lines = String::new();
    for option in SAMPLING_OPTIONS {
        let kind = match option.kind {
            OptionKind::Number(..) => "float",
            OptionKind::Count(..) | OptionKind::Choice(..) | OptionKind::Seed(_) => "int",
            OptionKind::Samplers(_) | OptionKind::Texts(_) => "str | Sequence[str]",
            OptionKind::Biases(_) => "Mapping[int, float]",
        };
        lines += &format!("    {}: {kind} | None\n", option.name);
    }
    let (begin, end) = ("    # The sampler's options.\n", "\n@type_check_only");
    let (before, rest) = found.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let want = format!("{before}{begin}{lines}{end}{after}");
    if std::env::var_os("KVARK_UPDATE").is_some_and(|value| !value.is_empty()) {
        fs::write(&path, &want).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    assert!(
        found == want,
        "_kvark.pyi has other sampling options; `KVARK_UPDATE=1 cargo test --release --package kvark-cli generated` rewrites it"
    );
}
