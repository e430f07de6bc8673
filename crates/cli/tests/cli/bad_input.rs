//! Invalid input is reported on one line of stderr, with the right exit code and an empty stdout.

use crate::support::*;

#[test]
fn each_bad_input_is_named_on_one_line() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let bare = &*folder.file("bare.gguf", bare_model());
    let text = &*folder.file("text.gguf", "this is not a model\n");
    let empty = &*folder.file("empty.gguf", "");
    let whole = bare_model();
    let header = &*folder.file("header.gguf", &whole[..100]);
    let half = &*folder.file("half.gguf", &whole[..whole.len() / 2]);
    let architecture = &*folder.file("architecture.gguf", unknown_architecture());
    let dtype = &*folder.file("dtype.gguf", unknown_tensor_type());
    let latin1 = &*folder.file("latin1.txt", b"caf\xe9");
    let other = &*folder.file("model.bin", "what is this");
    let directory = folder.path("");
    let directory = directory.to_str().unwrap();

    let cases: &[(&[&str], &str)] = &[
        (
            &["run", "missing.gguf", "-p", "a"],
            "no such file or catalogue model: missing.gguf (see kvark list)",
        ),
        (&["run", "no-such-name", "-p", "a"], "no-such-name"),
        (
            &["run", directory, "-p", "a"],
            "the folder has no genai_config.json",
        ),
        (&["run", text, "-p", "a"], "text.gguf: not a GGUF file"),
        (&["run", other, "-p", "a"], "model.bin"),
        (
            &["run", empty, "-p", "a"],
            "empty.gguf: not a GGUF file: it is empty",
        ),
        (
            &["run", header, "-p", "a"],
            "header.gguf: the file is truncated or damaged: the tensor count is 20",
        ),
        (
            &["run", half, "-p", "a"],
            "half.gguf: the file is truncated: it has ",
        ),
        (
            &["run", architecture, "-p", "a"],
            "architecture \"lmaoa\" is not supported",
        ),
        (&["run", dtype, "-p", "a"], "blk.0.attn_q.weight"),
        (
            &["run", tiny, "-p", "abcdefgh", "-c", "4"],
            "the prompt has 7 tokens, and the context has room for 4 of its 4; -c 64",
        ),
        (
            &["run", tiny, "-p", "abcdefgh", "-c", "4", "--parallel", "2"],
            "-c 64",
        ),
        (
            &["run", tiny, "-p", "abcdefgh", "-c", "4", "--regex", "a*"],
            "-c 64",
        ),
        (
            &["run", tiny, "-p", "a", "--json-schema", "nosuch.json"],
            "--json-schema is neither JSON nor a file that can be read: cannot read nosuch.json: No such file",
        ),
        (
            &["run", tiny, "-p", "a", "--json-schema", "{\"type\": "],
            "the text of --json-schema is not JSON: EOF",
        ),
        (
            &["run", tiny, "-p", "a", "--json-schema", other],
            "model.bin is not JSON: expected value",
        ),
        (&["run", tiny, "-p", ""], "the prompt is empty"),
        (&["run", bare, "--token-ids", ""], "the prompt is empty"),
        (
            &["run", bare, "--token-ids", "3,64"],
            "token id 64 is outside the model's vocabulary of 64",
        ),
        (&["run", bare, "-p", "a"], "no usable tokenizer"),
        (&["run", tiny], "no prompt"),
        (
            &["run", tiny, "-f", latin1],
            "latin1.txt is not UTF-8: byte 3",
        ),
        (&["run", tiny, "-f", "missing.txt"], "missing.txt"),
        (&["chat", bare], "no usable tokenizer"),
        (&["score", tiny], "nothing to score"),
        (&["score", tiny, "-p", ""], "the prompt is empty"),
        (
            &["score", tiny, "-p", "abcdefgh", "-c", "4"],
            "-c 7 makes the context large enough, and --stride 2",
        ),
        (
            &["bench", tiny, "-p", "100"],
            "does not fit a context of 64",
        ),
        (&["inspect", text], "text.gguf: not a GGUF file"),
        (&["inspect", dtype], "blk.0.attn_q.weight"),
        (&["inspect", architecture, "--graph"], "there is no graph"),
        (&["tokenize", tiny], "nothing to tokenize"),
        (&["tokenize", bare, "-p", "a"], "no usable tokenizer"),
        (&["detokenize", tiny], "no token ids"),
        (&["detokenize", tiny, "1", "x"], "\"x\" is not a token id"),
        (
            &["detokenize", tiny, "64"],
            "token id 64 is outside the model's vocabulary of 64",
        ),
        (
            &["pull", "no-such-name"],
            "no such catalogue model: no-such-name",
        ),
        (
            &["rm", "no-such-name"],
            "no such catalogue model: no-such-name",
        ),
        (&["rm", "smollm2"], "smollm2-135m-instruct is not installed"),
    ];
    for (args, named) in cases {
        let error = folder.run(args).error();
        assert!(error.contains(named), "{args:?}: {error}");
        assert!(error.matches("os error").count() < 2, "{args:?}: {error}");
    }
}

#[test]
fn standard_input_is_called_that() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let latin1 = folder.file("latin1.txt", b"caf\xe9");
    for args in [
        &["run", tiny][..],
        &["run", tiny, "-f", "-"],
        &["run", tiny, "--messages", "-"],
        &["score", tiny, "-p", "-"],
    ] {
        let mut command = folder.command(args);
        let input = std::fs::File::open(&latin1).unwrap();
        let output = command.stdin(input).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            said,
            "error: standard input is not UTF-8: byte 3 is invalid\n"
        );
    }
}

#[test]
fn mistyped_commands_are_guessed() {
    let folder = Folder::new();
    for (args, guess) in [
        (&["rnu", "a"][..], "did you mean kvark run?"),
        (&["man", "rnu"], "did you mean run?"),
    ] {
        let found = folder.run(args);
        assert!(
            found.code != Some(0) && found.stderr.contains(guess),
            "{found:?}"
        );
    }
}

#[test]
fn bad_usage_is_code_2() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let cases: &[(&[&str], &str)] = &[
        (&["run", tiny, "-p", "a", "-n", "0"], "at least 1"),
        (&["run", tiny, "-p", "a", "-c", "0"], "at least 1"),
        (&["run", tiny, "-p", "a", "-t", "0"], "0 is not in"),
        (&["run", tiny, "-p", "a", "--temp", "-1"], "at least 0"),
        (&["run", tiny, "-p", "a", "--temp", "nan"], "at least 0"),
        (&["run", tiny, "-p", "a", "--top-p", "2"], "from 0 to 1"),
        (
            &["run", tiny, "--token-ids", "1,x"],
            "\"x\" is not a token id",
        ),
        (&["run", tiny, "--token-ids", "-1"], "-1"),
        (
            &["run", tiny, "-p", "a", "--cache-type-k", "q3"],
            "must be one of f32, f16",
        ),
        (&["run", tiny, "-p", "a", "-f", "b"], "cannot be used with"),
        (&["run", tiny, "-p", "a", "--nonsense"], "--nonsense"),
        (
            &["detokenize", "--token-ids", "one"],
            "\"one\" is not a token id",
        ),
        (&["nonsense"], "nonsense"),
        (&[], "Usage"),
    ];
    for (args, named) in cases {
        let output = folder.run(args);
        assert_eq!((output.code, &*output.stdout), (Some(2), ""), "{args:?}");
        assert!(output.stderr.contains(named), "{args:?}: {}", output.stderr);
    }
}

#[test]
fn an_unknown_instruction_set_is_named() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let mut command = folder.command(&["run", &tiny, "-p", "a", "-n", "1"]);
    let error = finish(command.env("KVARK_ISA", "nonsense"), "").error();
    assert!(error.contains("KVARK_ISA=nonsense is not among"), "{error}");
}

#[test]
fn a_closed_stdout_ends_quietly() {
    use std::io::Read;
    use std::process::Stdio;
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let cases: &[&[&str]] = &[
        &["run", tiny, "-p", "ab", "--ignore-eos"],
        &["run", tiny, "-p", "ab", "--json"],
        &["chat", tiny, "-p", "ab", "-n", "8"],
        &["inspect", tiny],
        &["inspect", tiny, "--graph"],
        &["tokenize", tiny, "-p", "ab"],
        &["list"],
    ];
    for args in cases {
        let mut child = folder
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(
            (child.wait().unwrap().code(), &*said),
            (Some(0), ""),
            "{args:?}"
        );
    }
}
