//! Conversations and prompts that outlive their process.

use crate::support::*;
use kvark::snapshot::Snapshot;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const OPTIONS: [&str; 4] = ["--temp", "0", "-n", "4"];

fn chat(folder: &Folder, model: &str, more: &[&str], input: &str) -> Output {
    let args = [&["chat", model], &OPTIONS[..], more].concat();
    folder.run_with_input(&args, input)
}

#[test]
fn a_prompt_is_computed_once() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let cache = folder.path("prompt.kv");
    let cache = cache.to_str().unwrap();
    let run = |prompt: &str, more: &[&str]| {
        let args = ["run", &tiny, "-p", prompt, "--json"];
        folder.run(&[&args, &OPTIONS[..], more].concat())
    };
    let cached = ["--prompt-cache", cache];
    let cold = run("Hello my dear ab", &[]).json();
    let first = run("Hello my dear ab", &cached).json();
    assert_eq!(first["reused_tokens"], 0);
    let prompt = first["prompt_tokens"].as_array().unwrap().len();
    // All but the last token, whose logits are needed.
    let again = run("Hello my dear ab", &cached).json();
    assert_eq!(again["reused_tokens"], prompt - 1);
    assert_eq!(again["timings"]["prompt_n"], 1);
    for found in [&first, &again] {
        assert_eq!(found["tokens"], cold["tokens"]);
        assert_eq!(found["prompt_tokens"], cold["prompt_tokens"]);
    }
    let other = run("Hello my friend", &cached).json();
    assert_eq!(other["reused_tokens"], "Hello my ".len());
    assert_eq!(
        other["tokens"],
        run("Hello my friend", &[]).json()["tokens"]
    );

    // A refused file is not changed.
    let before = fs::read(cache).unwrap();
    let mut bytes = model();
    *bytes.last_mut().unwrap() ^= 1;
    let twin = folder.file("twin.gguf", bytes);
    let other = folder.run(&["run", &twin, "-p", "Hello", cached[0], cached[1]]);
    let stored = run("Hello", &[cached[0], cached[1], "--cache-type-k", "q8"]);
    for (output, says) in [(other, "another model"), (stored, "its keys are f16")] {
        let error = output.error();
        assert!(
            error.contains(says) && error.contains("prompt.kv"),
            "{error}"
        );
        assert_eq!(fs::read(cache).unwrap(), before);
    }
    let mut damaged = before.clone();
    damaged[2000] ^= 8;
    for (bytes, says) in [
        (&before[..before.len() - 1], "truncated"),
        (&damaged, "checksum"),
        (b"hello", "not a kvark snapshot"),
        (b"", "not a kvark snapshot"),
    ] {
        fs::write(cache, bytes).unwrap();
        let error = run("Hello", &cached).error();
        assert!(
            error.contains(says) && error.contains("prompt.kv"),
            "{error}"
        );
        assert_eq!(fs::read(cache).unwrap(), bytes);
    }
}

#[test]
fn a_conversation_goes_on_in_another_process() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let whole = chat(&folder, &tiny, &["-c", "200"], "Hi\nab\nHi\n").ok();
    let file = folder.path("my talk.kv");
    let file = file.to_str().unwrap();
    let save = chat(
        &folder,
        &tiny,
        &["-c", "200"],
        &format!("Hi\nab\n/save {file}\n"),
    );
    assert!(save.stderr.contains("tokens saved]"), "{save:?}");
    let before = save.ok();
    let input = format!("Yo\n/load {file}\n/branches\nHi\n");
    let load = chat(&folder, &tiny, &["-c", "200"], &input);
    assert!(load.stderr.contains("[turns loaded: 2]"), "{load:?}");
    let said = load.ok();
    let after = said.split_once('\n').unwrap().1;
    assert_eq!(format!("{before}{after}"), whole);

    // A failed load does not change the conversation.
    let input = format!("Hi\n/load {tiny}\n/load nowhere.kv\n/load\n/save\nab\nHi\n");
    let refused = chat(&folder, &tiny, &["-c", "200"], &input);
    for says in [
        "not a kvark snapshot",
        "nowhere.kv",
        "/load takes the name",
        "/save takes",
    ] {
        assert!(refused.stderr.contains(says), "{refused:?}");
    }
    assert_eq!((refused.code, refused.stdout), (Some(1), whole));
    let short = chat(&folder, &tiny, &["-c", "30"], &format!("/load {file}\n"));
    assert!(
        short.stderr.contains("and the context holds 30"),
        "{short:?}"
    );
}

#[test]
fn a_chat_s_prompt_cache_is_the_conversation_itself() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let whole = chat(&folder, &tiny, &["-c", "200", "--system", "ab"], "Hi\nab\n").ok();
    let file = folder.path("chat.kv");
    let more = [
        "-c",
        "200",
        "--system",
        "ab",
        "--prompt-cache",
        file.to_str().unwrap(),
    ];
    let first = chat(&folder, &tiny, &more, "Hi\n").ok();
    let second = chat(&folder, &tiny, &more, "ab\n").ok();
    assert_eq!(format!("{first}{second}"), whole);
}

/// Whether a snapshot holds a text, in its notes or as tokens of [`model`] one after another.
fn holds(file: &str, text: &str) -> bool {
    let snapshot = Snapshot::open(file.as_ref()).unwrap();
    let all = tokens();
    let ids: Vec<u32> = text
        .chars()
        .map(|c| {
            all.iter()
                .position(|token| *token == c.to_string())
                .unwrap() as u32
        })
        .collect();
    let bytes = fs::read(file).unwrap();
    let raw = |bytes: &[u8], needle: &[u8]| bytes.windows(needle.len()).any(|w| w == needle);
    let spelled: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    assert_eq!(
        snapshot.tokens().windows(ids.len()).any(|w| w == ids),
        raw(&bytes, &spelled)
    );
    raw(&bytes, text.as_bytes()) || raw(&bytes, &spelled)
}

#[test]
fn what_is_forgotten_is_not_saved() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.kv");
    let file = file.to_str().unwrap();
    let secret = "xyzzy";
    for (forget, before) in [("", ""), ("/clear\n", ""), ("/rewind\n", "Hi\n")] {
        let _ = fs::remove_file(file);
        let input = format!("{before}{secret}\n{forget}/save {file}\n");
        chat(&folder, &tiny, &["-c", "200"], &input).ok();
        assert_eq!(holds(file, secret), forget.is_empty(), "{forget}");
        fs::remove_file(file).unwrap();
        let input = format!("{before}{secret}\n{forget}");
        let more = ["-c", "200", "--prompt-cache", file];
        chat(&folder, &tiny, &more, &input).ok();
        assert_eq!(holds(file, secret), forget.is_empty(), "{forget}");
    }
}

#[test]
fn a_run_does_not_overwrite_a_conversation() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.kv");
    let file = file.to_str().unwrap();
    chat(&folder, &tiny, &["--prompt-cache", file], "Hi\n").ok();
    let before = fs::read(file).unwrap();
    let error = folder
        .run(&["run", &tiny, "-p", "Hi", "--prompt-cache", file])
        .error();
    for says in [
        "talk.kv",
        "a conversation of 1 turn,",
        "kvark chat --prompt-cache",
    ] {
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(fs::read(file).unwrap(), before);
}

#[test]
fn a_system_message_replaces_the_one_that_was_saved() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.kv");
    let file = file.to_str().unwrap();
    let with = |system: &str, input: &str| {
        let more = ["-c", "200", "--prompt-cache", file, "--system", system];
        chat(&folder, &tiny, &more, input)
    };
    with("xyzzy", "Hi\n").ok();
    let replaced = with("ab", "/exit\n");
    assert!(
        replaced
            .stderr
            .contains("[--system replaces the system message of "),
        "{replaced:?}"
    );
    replaced.ok();
    let notes = Snapshot::open(file.as_ref()).unwrap();
    let notes = String::from_utf8(notes.notes().to_vec()).unwrap();
    assert!(
        notes.contains("{\"role\":\"system\",\"content\":\"ab\"}"),
        "{notes}"
    );
    assert!(!holds(file, "xyzzy"));
    // The model sees the new message from then on; there is no note if it is the same.
    let same = with("ab", "/branches\n/exit\n");
    assert!(!same.stderr.contains("replaces"), "{same:?}");
    assert!(same.stderr.contains("* main         1 turn, "), "{same:?}");
}

#[test]
fn a_place_that_cannot_be_written_is_refused_before_any_work() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let nowhere = folder.path("nowhere/talk.kv");
    let home = folder.path("");
    for place in [nowhere.to_str().unwrap(), home.to_str().unwrap()] {
        let cache = ["--prompt-cache", place];
        let run = folder.run(&[&["run", &tiny, "-p", "Hi"], &OPTIONS[..], &cache].concat());
        let talk = chat(&folder, &tiny, &cache, "Hi\n");
        for error in [run.error(), talk.error()] {
            assert!(
                error.contains("--prompt-cache") && error.contains(place),
                "{error}"
            );
        }
    }
}

#[test]
fn text_is_not_lost_to_a_save_that_fails() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    fs::create_dir(folder.path("goes")).unwrap();
    let cache = folder.path("goes/talk.kv");
    let args = [
        "run",
        &tiny,
        "-p",
        "Hi",
        "--ignore-eos",
        "--context-shift",
        "--temp",
        "0",
        "-n",
        "20000",
    ];
    let mut command =
        folder.command(&[&args[..], &["--prompt-cache", cache.to_str().unwrap()]].concat());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    // The folder is removed while the text is generated.
    fs::remove_dir(folder.path("goes")).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(output.stdout.len() > 1000);
    let (statistics, error) = errors.trim_end().split_once('\n').unwrap();
    assert!(statistics.starts_with("[prompt 2 tokens"), "{errors}");
    assert!(
        error.starts_with("error: cannot save: ") && error.contains("talk.kv"),
        "{errors}"
    );
}

/// Starts a chat that sends a message and then saves to `file` repeatedly.
fn save_for_ever(folder: &Folder, model: &str, said: &str, file: &str) -> Command {
    let lines = format!("{said}\n{}", format!("/save! {file}\n").repeat(4000));
    let input = folder.file("input", lines);
    let mut command = folder.command(&["chat", model, "-c", "200", "--temp", "0", "-n", "4"]);
    command
        .stdin(fs::File::open(input).unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

#[test]
fn a_save_that_is_killed_leaves_the_old_snapshot_or_the_new_one() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("killed.kv");
    let text = file.to_str().unwrap();
    let said = ["Hi", "ab and a longer story"];
    chat(
        &folder,
        &tiny,
        &["-c", "200"],
        &format!("{}\n/save {text}\n", said[1]),
    )
    .ok();
    let mut random = 88_172_645_463_325_252u64;
    let mut found_new = 0;
    for round in 0..100 {
        let mut child = save_for_ever(&folder, &tiny, said[round % 2], text)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        // Every third process is killed at any time, the others during their second save.
        let mut line = String::new();
        while round % 3 > 0 && !line.contains("saved]") {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it saves for ever");
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let most = if round % 3 > 0 { 4_000 } else { 60_000 };
        std::thread::sleep(Duration::from_micros(random % most));
        child.kill().unwrap();
        child.wait().unwrap();
        let snapshot = Snapshot::open(&file).unwrap_or_else(|e| panic!("round {round}: {e}"));
        let notes = String::from_utf8(snapshot.notes().to_vec()).unwrap();
        let which = said.iter().position(|said| notes.contains(said));
        found_new += usize::from(which.expect("one of the two") == round % 2);
    }
    assert!(found_new >= 60, "only {found_new} of 100 had saved");
    let load = chat(
        &folder,
        &tiny,
        &["-c", "200"],
        &format!("/load {text}\nHi\n"),
    );
    assert!(load.stderr.contains("[turns loaded: 1]"), "{load:?}");
}

#[test]
fn a_text_goes_on_past_its_context_where_it_is_told_to() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let args = [
        "run",
        &tiny,
        "-p",
        "Hello",
        "-c",
        "16",
        "-n",
        "60",
        "--temp",
        "0",
        "--ignore-eos",
    ];
    let ended = folder.run(&args);
    assert!(
        ended.stderr.contains("use --context-shift to continue"),
        "{ended:?}"
    );
    let run = |more: &[&str]| folder.run(&[&args[..], &["--json"], more].concat());
    assert_eq!(run(&[]).json()["finish_reason"], "context");
    let shifted = run(&["--context-shift"]).json();
    assert_eq!(shifted["finish_reason"], "length");
    assert_eq!(shifted["tokens"].as_array().unwrap().len(), 60);
    let kept = run(&["--context-shift", "--keep", "5"]).json();
    assert_eq!(kept["finish_reason"], "length");
    assert_ne!(run(&["--keep", "5"]).code, Some(0));
    // A --keep that leaves nothing to drop is refused with the reason.
    for (keep, context) in [("16", "16"), ("999", "64")] {
        let keep = ["--context-shift", "--keep", keep];
        let run = folder.run(&[&["run", &tiny, "-p", "Hello", "-c", context], &keep[..]].concat());
        let talk = chat(
            &folder,
            &tiny,
            &[&["-c", context], &keep[..]].concat(),
            "Hi\n",
        );
        for error in [run.error(), talk.error()] {
            let says = format!(
                "--keep {} leaves no tokens to drop: the context has {context} tokens",
                keep[2]
            );
            assert!(error.contains(&says), "{error}");
            assert!(
                error.contains(&format!("must be below {context}")),
                "{error}"
            );
        }
    }

    // A conversation is shifted too, and continues after it was saved.
    let talk = ["Hi"; 6].join("\n");
    let whole = chat(&folder, &tiny, &["-c", "64", "--context-shift"], &talk);
    let cut = "[the answer was cut after 4 tokens (--predict); ";
    assert!(
        whole.stderr.lines().all(|line| line.starts_with(cut)),
        "{whole:?}"
    );
    let whole = whole.ok();
    let file = folder.path("long.kv");
    let more = [
        "-c",
        "64",
        "--context-shift",
        "--prompt-cache",
        file.to_str().unwrap(),
    ];
    let first = chat(&folder, &tiny, &more, &["Hi"; 4].join("\n")).ok();
    let second = chat(&folder, &tiny, &more, &["Hi"; 2].join("\n")).ok();
    assert_eq!(format!("{first}{second}"), whole);
}
