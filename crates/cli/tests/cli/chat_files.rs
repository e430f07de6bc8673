//! Files of a chat: what is replaced, what is refused, and what `kvark inspect` shows of them.

use crate::support::*;
use std::fs;

const OPTIONS: [&str; 6] = ["--temp", "0", "-n", "4", "-c", "200"];

/// A chat without the warning about its long context.
fn chat(folder: &Folder, model: &str, more: &[&str], input: &str) -> Output {
    let args = [&["chat", model], &OPTIONS[..], more].concat();
    let output = folder.run_with_input(&args, input);
    let stderr = output.stderr.lines().map(|line| format!("{line}\n"));
    let stderr = stderr.filter(|line| !line.starts_with("warning: the model was trained for "));
    Output {
        stderr: stderr.collect(),
        ..output
    }
}

#[test]
fn a_save_replaces_nothing_but_a_snapshot_and_that_only_when_told() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let prompt = folder.file("prompt.txt", "The capital of France is");
    let empty = folder.file("empty.txt", "");
    for file in [&tiny, &prompt, &empty] {
        let before = fs::read(file).unwrap();
        for command in ["/save", "/save!"] {
            let refused = chat(&folder, &tiny, &[], &format!("Hi\n{command} {file}\n"));
            assert_eq!(refused.code, Some(1), "{refused:?}");
            let says = format!("[{file} is not a kvark snapshot, and /save replaces no other file");
            assert!(refused.stderr.contains(&says), "{refused:?}");
            assert_eq!(fs::read(file).unwrap(), before);
        }
    }
    let file = folder.path("talk.kv");
    let file = file.to_str().unwrap();
    chat(&folder, &tiny, &[], &format!("Hi\n/save {file}\n")).ok();
    let before = fs::read(file).unwrap();
    let refused = chat(&folder, &tiny, &[], &format!("ab\ncd\n/save {file}\n"));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let says = format!("[{file} holds a conversation of 1 turn; /save! {file} replaces it]");
    assert!(refused.stderr.contains(&says), "{refused:?}");
    assert_eq!(fs::read(file).unwrap(), before);
    let told = chat(&folder, &tiny, &[], &format!("ab\ncd\n/save! {file}\n"));
    assert!(told.stderr.contains("tokens saved]"), "{told:?}");
    told.ok();
    assert_ne!(fs::read(file).unwrap(), before);
    // A snapshot that is damaged is one too.
    fs::write(file, &before[..before.len() - 1]).unwrap();
    let damaged = chat(&folder, &tiny, &[], &format!("Hi\n/save {file}\n"));
    let says = "is a kvark snapshot that cannot be read; /save! ";
    assert!(damaged.stderr.contains(says), "{damaged:?}");
    chat(&folder, &tiny, &[], &format!("Hi\n/save! {file}\n")).ok();
    assert_eq!(fs::read(file).unwrap(), before);
}

#[test]
fn a_chat_and_a_run_leave_each_other_s_files_alone() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let cache = folder.path("prompt.kv");
    let cache = cache.to_str().unwrap();
    let args = ["run", &tiny, "-p", "Hello my dear", "--json"];
    let run = || folder.run(&[&args[..], &OPTIONS, &["--prompt-cache", cache]].concat());
    run().json();
    let before = fs::read(cache).unwrap();
    let refused = chat(&folder, &tiny, &["--prompt-cache", cache], "Hi\n").error();
    for says in [
        "prompt.kv holds a prompt of kvark run",
        "use it with kvark run --prompt-cache",
        "or name another file",
    ] {
        assert!(refused.contains(says), "{refused}");
    }
    assert_eq!(fs::read(cache).unwrap(), before);
    let refused = chat(&folder, &tiny, &[], &format!("Hi\n/save {cache}\n"));
    let says = "prompt.kv holds a prompt of kvark run; /save! ";
    assert!(refused.stderr.contains(says), "{refused:?}");
    assert_eq!(fs::read(cache).unwrap(), before);
    assert_eq!(run().json()["reused_tokens"], "Hello my dear".len() - 1);
}

#[test]
fn the_file_is_written_after_every_turn() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.kv");
    let file = file.to_str().unwrap();
    // The chat reads its own file: each copy holds what was said until then.
    let copy = folder.path("copy.kv");
    let copy = copy.to_str().unwrap();
    let input =
        format!("Hi\n/fork\n/load {file}\nab\n/load {file}\n/clear\n/load {file}\n/save {copy}\n");
    let talk = chat(&folder, &tiny, &["--prompt-cache", file], &input);
    let loaded: Vec<&str> = talk
        .stderr
        .lines()
        .filter(|line| line.starts_with("[turns loaded: "))
        .collect();
    let expect = [
        "[turns loaded: 1]",
        "[turns loaded: 2]",
        "[turns loaded: 0]",
    ];
    assert_eq!(loaded, expect, "{talk:?}");
    // A chat in which nothing is said makes no file.
    let other = folder.path("other.kv");
    let more = ["--prompt-cache", other.to_str().unwrap()];
    chat(&folder, &tiny, &more, "/branches\n").ok();
    assert!(!other.exists());
}

#[test]
fn a_conversation_that_cannot_be_printed_is_saved() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.kv");
    let args = [&["chat", &*tiny], &OPTIONS[..]].concat();
    let mut command = folder.command(&[&args[..], &["-p", "Hi", "--prompt-cache"]].concat());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command.arg(&file).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
    let listed = chat(
        &folder,
        &tiny,
        &["--prompt-cache", file.to_str().unwrap()],
        "/branches\n",
    );
    assert!(
        listed.stderr.contains("* main         1 turn, "),
        "{listed:?}"
    );
}

#[test]
fn what_was_said_is_shown_again() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.kv");
    let file = file.to_str().unwrap();
    let first = chat(
        &folder,
        &tiny,
        &["--prompt-cache", file],
        "Hi\n\"\"\"ab\ncd\"\"\"\n",
    )
    .ok();
    let (one, two) = first.trim_end().split_once('\n').unwrap();
    let said = format!("> Hi\n{one}\n> \"\"\"ab\n. cd\"\"\"\n{two}\n");

    let resumed = chat(&folder, &tiny, &["--prompt-cache", file], "");
    assert_eq!((&*resumed.stderr, &*resumed.stdout), (&*said, ""));
    let loaded = chat(&folder, &tiny, &[], &format!("/load {file}\n"));
    assert_eq!(loaded.stderr, format!("[turns loaded: 2]\n{said}"));
    let shown = chat(
        &folder,
        &tiny,
        &[],
        &format!("/history\n/load {file}\n/fork\n/rewind\n/switch main\n"),
    );
    assert!(
        shown
            .stderr
            .starts_with("[nothing was said in this branch]\n"),
        "{shown:?}"
    );
    assert!(
        shown.stderr.ends_with(&format!("[now in main]\n{said}")),
        "{shown:?}"
    );

    // Of a long conversation the last turns; /history has all.
    let long = "Hi\n/set n 1\n".to_owned() + &"a\n".repeat(4) + "/fork\n/switch main\n/history\n";
    let shown = chat(&folder, &tiny, &["-n", "1"], &long).stderr;
    let (_, shown) = shown.split_once("[now in main]\n").unwrap();
    let (short, all) = shown.split_once("> Hi\n").unwrap();
    assert!(
        short.starts_with("[2 earlier turns; /history shows all]\n> a\n"),
        "{shown}"
    );
    assert_eq!(short.matches("> a\n").count(), 3, "{shown}");
    assert_eq!(all.matches("> a\n").count(), 4, "{shown}");
}

#[test]
fn a_conversation_is_exported_as_markdown() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.md");
    let file = file.to_str().unwrap();
    let more = ["--system", "ab"];
    let first = chat(&folder, &tiny, &more, &format!("Hi\n/export {file}\n"));
    assert!(first.stderr.ends_with("[1 turn exported]\n"), "{first:?}");
    let answer = first.ok();
    let expect = format!(
        "# A conversation with tiny\n\n## System message\n\nab\n\n## You\n\nHi\n\n## Answer\n\n{answer}"
    );
    assert_eq!(fs::read_to_string(file).unwrap(), expect);
    let refused = chat(&folder, &tiny, &more, &format!("ab\n/export {file}\n"));
    let says = format!("[{file} exists already; /export! {file} replaces it]");
    assert!(refused.stderr.contains(&says), "{refused:?}");
    assert_eq!(refused.code, Some(1));
    assert_eq!(fs::read_to_string(file).unwrap(), expect);
    chat(&folder, &tiny, &more, &format!("ab\n/export! {file}\n")).ok();
    assert!(fs::read_to_string(file).unwrap().contains("## You\n\nab\n"));
    let nowhere = chat(&folder, &tiny, &more, "/export nowhere/talk.md\n/export\n");
    assert!(nowhere.stderr.contains("[nowhere/talk.md: "), "{nowhere:?}");
    assert!(
        nowhere.stderr.contains("/export takes the name of a file"),
        "{nowhere:?}"
    );
    assert_eq!(nowhere.code, Some(1));
}

#[test]
fn a_quiet_chat_or_run_prints_its_text_alone() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.kv");
    let cache = ["--prompt-cache", file.to_str().unwrap()];
    chat(&folder, &tiny, &cache, "Hi\n").ok();
    for quiet in ["-q", "--quiet"] {
        let more = [&cache[..], &[quiet]].concat();
        let talk = chat(&folder, &tiny, &more, "ab\n");
        assert_eq!((talk.code, &*talk.stderr), (Some(0), ""));
        assert_eq!(talk.stdout.lines().count(), 1);
        let args = ["run", &tiny, "-p", "Hi", quiet, "--temp", "0", "-n", "4"];
        let run = folder.run(&args);
        assert_eq!((run.code, &*run.stderr), (Some(0), ""));
        assert!(run.stdout.starts_with("Hi"));
        let args = [
            "run", &tiny, "-p", "Hi", quiet, "--regex", "[ab]+", "-n", "4",
        ];
        let run = folder.run(&args);
        assert_eq!((run.code, &*run.stderr), (Some(0), ""));
        let args = [
            "run",
            &tiny,
            "-p",
            "Hi",
            quiet,
            "--parallel",
            "2",
            "-n",
            "4",
        ];
        let run = folder.run(&args);
        assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    }
    // Requested output and errors are still printed.
    let talk = chat(&folder, &tiny, &["-q"], "/branches\n/load nowhere.kv\n");
    assert!(talk.stderr.contains("* main         0 turns"), "{talk:?}");
    assert!(talk.stderr.contains("nowhere.kv"), "{talk:?}");
}

#[test]
fn a_snapshot_can_be_inspected() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.kv");
    let file = file.to_str().unwrap();
    let input = format!("Hi\n/fork idea\nab\n/save {file}\n");
    let answers = chat(&folder, &tiny, &["--system", "be brief"], &input).ok();
    let (first, second) = answers.trim_end().split_once('\n').unwrap();
    let bytes = fs::metadata(file).unwrap().len();

    let found = folder.run(&["inspect", file, "--json"]).json();
    assert_eq!(found["format"], "snapshot");
    assert_eq!(found["model"], "tiny");
    assert_eq!(found["branch"], "idea");
    assert_eq!(found["turns"], 2);
    assert_eq!(found["file_bytes"], bytes);
    assert_eq!(found["kv"]["key_type"], "f16");
    let tokens = found["tokens"].as_array().unwrap().len();
    let kv = found["kv"]["bytes"].as_u64().unwrap();
    assert!(
        kv > 0 && kv < bytes && kv.is_multiple_of(tokens as u64),
        "{found}"
    );
    let said: Vec<[&str; 2]> = found["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| [m["role"].as_str().unwrap(), m["content"].as_str().unwrap()])
        .collect();
    let expect = [
        ["system", "be brief"],
        ["user", "Hi"],
        ["assistant", first],
        ["user", "ab"],
        ["assistant", second],
    ];
    assert_eq!(said, expect);

    let shown = folder.run(&["inspect", file]).ok();
    for says in [
        "format        kvark snapshot 2\n",
        "model         tiny, fingerprint ",
        &format!("tokens        {tokens}\n"),
        "conversation  2 turns\n",
        "branch        idea\n",
        "  user        Hi\n",
        &format!("  assistant   {second}\n"),
    ] {
        assert!(shown.contains(says), "{says}: {shown}");
    }
    let graph = folder.run(&["inspect", file, "--graph"]).error();
    assert!(graph.contains("is a snapshot"), "{graph}");

    let prompt = folder.path("prompt.kv");
    let prompt = prompt.to_str().unwrap();
    let args = [
        "run",
        &tiny,
        "-p",
        "Hi",
        "-n",
        "1",
        "--prompt-cache",
        prompt,
    ];
    folder.run(&args).ok();
    let found = folder.run(&["inspect", prompt, "--json"]).json();
    assert_eq!(found["model"], "tiny");
    assert!(found["messages"].is_null(), "{found}");
    let shown = folder.run(&["inspect", prompt]).ok();
    assert!(
        shown.contains("conversation  none: the prompt of a kvark run\n"),
        "{shown}"
    );

    // A damaged file is refused by name.
    let mut damaged = fs::read(file).unwrap();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    fs::write(file, damaged).unwrap();
    let error = folder.run(&["inspect", file]).error();
    assert!(
        error.contains("talk.kv") && error.contains("checksum"),
        "{error}"
    );
}
