//! `kvark export` with fake Python interpreters: the calls to them, and the errors when a module is missing.
#![cfg(unix)]

use crate::support::*;
use std::path::Path;
use std::process::Command;

/// A program that runs these shell commands.
fn script(folder: &Folder, name: &str, commands: &str) -> String {
    let path = folder.path(name).to_str().unwrap().to_owned();
    // Written by another process: a file that this process may still hold open for writing cannot be executed.
    let text = format!("#!/bin/sh\n{commands}\n");
    let write = "printf '%s' \"$1\" > \"$0\" && chmod +x \"$0\"";
    let status = Command::new("sh")
        .args(["-c", write, &path, &text])
        .status();
    assert!(status.unwrap().success());
    path
}

#[test]
fn what_python_lacks_is_named_with_the_command_that_installs_it() {
    let folder = Folder::new();
    let model = &*folder.file("model.gguf", bare_model());
    let bare = &*script(&folder, "bare-python", "echo torch transformers gguf");
    let lost = &*script(&folder, "lost-python", "echo kvark_export");
    let broken = &*script(&folder, "broken-python", "echo too old >&2; exit 3");
    let cases = [
        (
            "/no/such/python",
            "cannot start /no/such/python; set a Python interpreter with --python or KVARK_PYTHON: ".to_owned(),
        ),
        (
            bare,
            format!(
                "{bare} has no torch, transformers, gguf; install what is missing: {bare} -m pip install torch=={} \
                 transformers=={} gguf=={} (or ",
                pin("torch"),
                pin("transformers"),
                pin("gguf")
            ),
        ),
        (
            lost,
            format!(
                "{lost} has no kvark_export; install what is missing: {lost} -m pip install PATH/TO/KVARK"
            ),
        ),
        (
            broken,
            format!("{broken} is not a working Python 3: exit status: 3, too old"),
        ),
    ];
    for (python, expect) in cases {
        let args = ["export", model, "-o", "model.pt2"];
        let flagged = folder.run(&[&args[..], &["--python", python]].concat());
        let mut command = folder.command(&args);
        let named = finish(command.env("KVARK_PYTHON", python), "");
        for error in [flagged.error(), named.error()] {
            assert!(error.contains(&expect), "{expect}: {error}");
        }
    }
}

#[test]
fn a_python_without_anything_is_told_all_that_a_gguf_file_needs() {
    let folder = Folder::new();
    let model = &*folder.file("model.gguf", bare_model());
    // Has none of the modules.
    let empty = &*script(&folder, "empty-python", "shift 2; echo \"$@\"");
    let run = folder.run(&["export", model, "-o", "model.pt2", "--python", empty]);
    // transformers reads GGUF files by gguf and accelerate, and depends on neither.
    let needed = [
        "torch",
        "transformers",
        "accelerate",
        "gguf",
        "tokenizers",
        "numpy",
    ];
    let pins = needed.map(|name| format!("{name}=={}", pin(name)));
    let expect = format!(
        "{empty} has no {}, kvark_export; install what is missing: {empty} -m pip install {} PATH/TO/KVARK (or ",
        needed.join(", "),
        pins.join(" ")
    );
    let error = run.error();
    assert!(error.contains(&expect), "{expect}: {error}");
}

/// The version that the exporter was tested with.
fn pin(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/requirements.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let mut pins = text.lines().filter_map(|line| line.split_once("=="));
    pins.find(|pin| pin.0 == name).unwrap().1.to_owned()
}

#[test]
fn the_exporter_is_run_with_what_was_asked_for() {
    let folder = Folder::new();
    let model = &*folder.file("model.gguf", bare_model());
    let output = folder.path("model.pt2");
    let output = output.to_str().unwrap();
    // Has every module; prints its arguments as the exporter prints its progress.
    let good = "[ \"$1\" = -c ] && exit; echo \"$PYTHONPATH: $@\" >&2; : > \"$5\"";
    let good = &*script(&folder, "python", good);
    let args = ["export", model, "-o", output, "--python", good];
    let run = folder.run(&[&args[..], &["--features", "--max-step", "64"]].concat());
    assert_eq!((run.code, &*run.stdout), (Some(0), ""), "{run:?}");
    let said = format!(": -m kvark_export {model} --output {output} --features --max-step 64\n");
    assert!(run.stderr.ends_with(&said), "{run:?}");
    let paths = run.stderr.split(':').next().unwrap();
    assert!(
        Path::new(paths).join("kvark_export/op.py").exists(),
        "{paths}"
    );
    assert!(Path::new(output).exists());

    let bad = "[ \"$1\" = -c ] && exit; echo error: no such layer >&2; exit 1";
    let bad = &*script(&folder, "bad-python", bad);
    let run = folder.run(&["export", model, "-o", output, "--python", bad]);
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(run.code, Some(1));
    assert_eq!(lines[0], "error: no such layer");
    assert!(
        lines[1].starts_with("error: nothing was exported"),
        "{run:?}"
    );
}

#[test]
fn bad_arguments_do_not_reach_python() {
    let folder = Folder::new();
    let model = &*folder.file("model.gguf", bare_model());
    let cases: &[(&[&str], &str)] = &[
        (&[model], "--output"),
        (&[model, "-o", "model.onnx"], "must end in .pt2"),
        (&[model, "-o", "m.pt2", "--max-step", "1"], "1 is not in"),
    ];
    for (args, named) in cases {
        let output = folder.run(&[&["export"], *args].concat());
        assert_eq!((output.code, &*output.stdout), (Some(2), ""), "{args:?}");
        assert!(output.stderr.contains(named), "{args:?}: {}", output.stderr);
    }
}
