//! `kvark emit-c --tokenizer`: programs that take text.

use super::compiler;
use crate::support::{self, Folder};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Emits a model with its tokenizer and builds it by its Makefile; `None`, with a note, without the tools.
fn build(folder: &Folder, model: &str, name: &str, goal: &str, more: &[&str]) -> Option<PathBuf> {
    compiler("cc")?;
    compiler("make")?;
    let target = folder.path(name);
    let path = target.to_str().unwrap();
    let arguments = ["emit-c", model, "-o", path, "--tokenizer"];
    folder.run(&[&arguments[..], more].concat()).ok();
    let flags = "CFLAGS=-O2 -Werror";
    let output = Command::new("make")
        .current_dir(&target)
        .args([goal, flags])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(target.join(goal))
}

fn run(program: &Path, args: &[&str]) -> Output {
    Command::new(program)
        .current_dir(program.parent().unwrap())
        // The state is one allocation that lives until the program ends.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .args(args)
        .output()
        .unwrap()
}

#[track_caller]
fn printed(program: &Path, args: &[&str]) -> String {
    let output = run(program, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(program: &Path, args: &[&str]) -> String {
    let output = run(program, args);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The text of a program is that of its ids, and both are what kvark tokenizes.
#[test]
fn a_program_takes_and_prints_text() {
    let folder = Folder::new();
    let model = folder.file("tiny.gguf", support::model());
    for goal in ["model", "linked", "debug"] {
        let Some(program) = build(&folder, &model, "tiny", goal, &["-c", "64"]) else {
            return;
        };
        for flag in ["--help", "-h"] {
            let help = printed(&program, &[flag]);
            assert!(help.starts_with("Reads text or token ids"), "{help}");
            assert!(help.contains("[-p TEXT | ID...]\n"), "{help}");
        }
        let prompt = "Hi there";
        let tokenized = folder.run(&["tokenize", &model, "-p", prompt]).ok();
        let ids = printed(&program, &["-n", "12", tokenized.trim()]);
        let want = folder
            .run(&["detokenize", "-m", &model, "--no-special", ids.trim()])
            .ok();
        let found = printed(&program, &["-n", "12", "-p", prompt]);
        // Text ends where the model ends it, ids do not.
        assert!(
            want.starts_with(found.trim_end()),
            "{goal}: {found:?} {want:?}"
        );
        let logits = |args: &[&str]| {
            printed(&program, &[args, &["-n", "1", "-l", "logits"]].concat());
            std::fs::read(program.with_file_name("logits")).unwrap()
        };
        assert!(logits(&["-p", prompt]) == logits(&[tokenized.trim()]));
        let control = folder
            .run(&["tokenize", &model, "--special", "-p", "<|im_end|>H"])
            .ok();
        assert!(logits(&["-s", "-p", "<|im_end|>H"]) == logits(&[control.trim()]));
    }
}

#[test]
fn what_is_no_text_is_refused() {
    let folder = Folder::new();
    let model = folder.file("tiny.gguf", support::model());
    let Some(program) = build(&folder, &model, "tiny", "model", &["-c", "8"]) else {
        return;
    };
    let error = refused(&program, &["-p", &"H".repeat(70_000)]);
    assert_eq!(
        error,
        "error: the text: is longer than TOKENIZER_MAX_TEXT bytes\n"
    );
    let error = refused(&program, &["-p", &"H".repeat(60)]);
    assert_eq!(
        error,
        "error: the text: has more tokens than the context holds\n"
    );
    let error = refused(&program, &["-p", "H", "-t", "weights.bin"]);
    assert_eq!(
        error,
        "error: weights.bin: the tables are not those of this program\n"
    );
    let error = refused(&program, &["-p", "H", "-t", "nothing"]);
    assert_eq!(error, "error: nothing: cannot be read\n");
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let output = Command::new(&program)
            .current_dir(program.parent().unwrap())
            .arg("-p")
            .arg(std::ffi::OsStr::from_bytes(b"H\xFF"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, "error: the text: is not UTF-8\n");
    }
}

#[test]
fn an_encoder_takes_text() {
    let folder = Folder::new();
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/encoder/bert.gguf");
    let model = model.to_str().unwrap();
    let Some(program) = build(&folder, model, "bert", "model", &[]) else {
        return;
    };
    let ids = folder.run(&["tokenize", model, "-p", "Hello w"]).ok();
    let tokenizer = kvark::model::open_tokenizer(Path::new(model)).unwrap();
    let (first, last) = (tokenizer.bos().unwrap(), tokenizer.eos().unwrap());
    let framed = format!("{first},{},{last}", ids.trim());
    assert_eq!(
        printed(&program, &["-p", "Hello w"]),
        printed(&program, &[&framed])
    );
}

#[test]
fn a_tokenizer_that_is_missing_is_named_and_nothing_is_written() {
    let folder = Folder::new();
    let output = folder.path("out");
    let out = output.to_str().unwrap();
    let bare = folder.file("bare.gguf", support::bare_model());
    let error = folder
        .run(&["emit-c", &bare, "-o", out, "--tokenizer"])
        .error();
    assert!(error.contains("no usable tokenizer"), "{error}");
    let model = folder.file("tiny.gguf", support::model());
    let arguments = [
        "emit-c",
        &model,
        "-o",
        out,
        "--tokenizer",
        "--max-bytes",
        "1k",
    ];
    let error = folder.run(&arguments).error();
    assert!(
        error.contains("of tokenizer.bin; --max-bytes allows 1000"),
        "{error}"
    );
    assert!(!output.exists());
}

#[test]
fn the_default_model_takes_and_prints_text() {
    let Some(model) = crate::real::model() else {
        return;
    };
    let folder = Folder::new();
    let Some(program) = build(&folder, &model, "smollm2", "model", &["-c", "128"]) else {
        return;
    };
    let prompt = "The capital of France is";
    let found = printed(&program, &["-n", "8", "-p", prompt]);
    assert!(found.contains("Paris"), "{found}");
    let ids = folder.run(&["tokenize", &model, "-p", prompt]).ok();
    let more = printed(&program, &["-n", "8", ids.trim()]);
    let want = folder.run(&["detokenize", "-m", &model, more.trim()]).ok();
    assert_eq!(found, want);
    let map = std::fs::read_to_string(program.with_file_name("layout.map")).unwrap();
    assert!(
        map.contains("\nTOKENIZER\n") && map.contains("T_MERGES"),
        "{map}"
    );
}
