//! The commands of a chat that change its last turn, its options and its system message.

use crate::support::*;

const OPTIONS: [&str; 6] = ["--temp", "0", "-n", "4", "-c", "200"];

fn chat(folder: &Folder, model: &str, more: &[&str], input: &str) -> Output {
    let args = [&["chat", model], &OPTIONS[..], more].concat();
    folder.run_with_input(&args, input)
}

/// The answers of a chat, a line each.
fn answers(output: Output) -> Vec<String> {
    output.ok().lines().map(str::to_owned).collect()
}

#[test]
fn a_text_that_begins_with_a_slash_can_be_sent() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    // The tokenizer of the model has no slash: the answers are those to the letters.
    let word = chat(&folder, &tiny, &[], "help\n").ok();
    for input in ["//help\n", " /help\n", "\t/help\n"] {
        assert_eq!(chat(&folder, &tiny, &[], input).ok(), word, "{input:?}");
    }
    let unknown = chat(&folder, &tiny, &[], "/nonsense\n");
    assert!(
        unknown.stderr.contains("//nonsense sends it"),
        "{unknown:?}"
    );
    assert_eq!(unknown.ok(), "");
}

#[test]
fn several_lines_are_one_message_between_quotes() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let message = "ab\n\n/cd e";
    let file = folder.file("message", message);
    let args = ["run", &tiny, "--chat", "-f", &file];
    let expect = folder.run(&[&args[..], &OPTIONS].concat()).ok();
    for input in [
        format!("\"\"\"\n{message}\n\"\"\"\n"),
        format!("\"\"\"{message}\"\"\"\n"),
        format!("  \"\"\"\r\n{}\"\"\"\r\n", message.replace('\n', "\r\n")),
    ] {
        let output = chat(&folder, &tiny, &[], &input);
        assert_eq!(output.ok(), expect, "{input:?}");
    }
    assert_eq!(chat(&folder, &tiny, &[], "\"\"\"\"\"\"\n").ok(), "");
    let open = chat(&folder, &tiny, &[], "\"\"\"ab\ncd\n");
    assert_eq!((open.code, &*open.stdout), (Some(1), ""));
    assert!(open.stderr.contains("has no \"\"\" at its end"), "{open:?}");
}

#[test]
fn the_last_turn_is_answered_again_or_changed() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let plain = answers(chat(&folder, &tiny, &[], "Hi\nab\ncd\n"));
    let other = answers(chat(&folder, &tiny, &[], "Hi\nxyz z\ncd\n"));
    let found = answers(chat(&folder, &tiny, &[], "Hi\nab\n/regen\n/regen\ncd\n"));
    assert_eq!(found[1..4], [&*plain[1]; 3]);
    assert_eq!(found[4], plain[2], "the removed answers have no effect");
    let found = answers(chat(&folder, &tiny, &[], "Hi\nab\n/edit xyz z\ncd\n"));
    assert_eq!(found[2..], other[1..]);
    // With a temperature, the random numbers go on: other answers.
    let hot = ["--temp", "3", "--seed", "1", "--top-k", "0", "--min-p", "0"];
    let found = answers(chat(&folder, &tiny, &hot, "Hi\n/regen\n"));
    assert_ne!(found[0], found[1]);
    let nothing = chat(
        &folder,
        &tiny,
        &[],
        "/regen\n/edit x\nHi\n/edit\n/regen x\n",
    );
    for says in [
        "/regen needs a message",
        "/edit needs a message",
        "/edit takes the new text",
        "/regen takes nothing after it",
    ] {
        assert!(nothing.stderr.contains(says), "{nothing:?}");
    }
    // An edit that does not fit in the context does not change the turn that it was to replace.
    let long = "no room ".repeat(60);
    let input = format!("Hi\n/edit {long}\n/branches\nab\n");
    let kept = chat(&folder, &tiny, &[], &input);
    assert!(kept.stderr.contains("* main         1 turn, "), "{kept:?}");
    assert_eq!(kept.stdout.lines().nth(1), Some(&*plain[1]));
}

#[test]
fn options_are_set_while_it_runs() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let short = answers(chat(&folder, &tiny, &["-n", "2"], "Hi\n"));
    let long = answers(chat(&folder, &tiny, &[], "Hi\n"));
    let found = chat(
        &folder,
        &tiny,
        &[],
        "/set predict 2\nHi\n/set n 4\n/regen\n",
    );
    assert!(found.stderr.contains("[predict is 2]"), "{found:?}");
    assert_eq!(answers(found), [&*short[0], &*long[0]]);

    // The same as with the flags.
    let flags = ["--temp", "2", "--seed", "5", "--top-k", "7"];
    let expect = answers(chat(&folder, &tiny, &flags, "Hi\nab\n"));
    let set = "/set temp 2\n/set seed 5\n/set top_k 7\nHi\nab\n";
    assert_eq!(answers(chat(&folder, &tiny, &[], set)), expect);
    // The seed begins the random numbers again; another option does not.
    let again = format!("{set}/clear\n/set seed 5\n/set temperature 2.0\nHi\nab\n");
    let found = answers(chat(&folder, &tiny, &[], &again));
    assert_eq!(found[2..], expect);

    let listed = chat(&folder, &tiny, &[], "/set min-p 0.25\n/set\n");
    for says in [
        "temp                  0\n",
        "min-p                 0.25\n",
        "predict               4\n",
        "dry-penalty-last-n    -1\n",
        "logit-bias            none\n",
    ] {
        assert!(listed.stderr.contains(says), "{}", listed.stderr);
    }
    assert!(!listed.stderr.contains('?'), "{}", listed.stderr);
    // A seed has no effect at temperature 0.
    let seed = "seed                  not used at temperature 0\n";
    assert!(listed.stderr.contains(seed), "{}", listed.stderr);
    let input = "/set seed\n/set temp 0.5\n/set seed 7\n/set seed\n/set top_p\n/set n\n/set heat\n";
    let shown = chat(&folder, &tiny, &[], input).stderr;
    let expect = "[seed is not used at temperature 0]\n[temp is 0.5]\n[seed is 7]\n[seed is 7]\n[top-p is 0.95]\n\
        [predict is 4]\nunknown option heat; /set alone lists the options\n";
    assert!(shown.ends_with(expect), "{shown}");

    let input = "/set heat 3\n/set temp\n/set temp x\n/set logit-bias 64+1\n/set predict 0\n/set logit-bias 5+1000\nHi\n";
    let wrong = chat(&folder, &tiny, &[], input);
    for says in [
        "unknown option heat; /set alone lists the options",
        "[temp is 0]\n",
        "/set temp x: must be a number of at least 0",
        "token id 64 is outside the model's vocabulary of 64",
        "/set predict 0: must be a number of at least 1",
        "[logit-bias is 5+1000]",
    ] {
        assert!(wrong.stderr.contains(says), "{says}: {}", wrong.stderr);
    }
    assert_eq!(wrong.ok(), "cccc\n");
}

#[test]
fn the_system_message_changes_for_one_branch() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let without = answers(chat(&folder, &tiny, &[], "Hi\n"));
    let with = answers(chat(&folder, &tiny, &["--system", "ab cd"], "Hi\n"));
    let input = "/system ab cd\nHi\n/clear\n/system\n/fork other\n/system \"\"\nHi\n/system\n/switch main\nHi\n";
    let found = chat(&folder, &tiny, &[], input);
    for says in [
        "[the system message was changed]\n",
        "\nab cd\n",
        "[the system message was removed]\n",
        "[there is no system message; /system TEXT sets one]\n",
    ] {
        assert!(found.stderr.contains(says), "{says}: {}", found.stderr);
    }
    assert_eq!(answers(found), [&*with[0], &*without[0], &*with[0]]);
    // The turns so far stay, after the new message.
    let changed = answers(chat(
        &folder,
        &tiny,
        &["--system", "x"],
        "Hi\n/system ab cd\n/regen\n",
    ));
    assert_eq!(changed[1], with[0]);
}

#[test]
fn statistics_are_shown_when_asked() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let quiet = chat(&folder, &tiny, &["-n", "1"], "Hi\n");
    assert!(!quiet.stderr.contains("generated"), "{quiet:?}");
    let verbose = chat(&folder, &tiny, &["-v"], "Hi\nab\n");
    let lines: Vec<&str> = verbose
        .stderr
        .lines()
        .filter(|line| line.starts_with("[prompt "))
        .collect();
    assert_eq!(lines.len(), 2, "{verbose:?}");
    for line in lines {
        assert!(line.contains("/s; generated 4 tokens, "), "{line}");
        assert!(line.ends_with("; length]"), "{line}");
    }
    let stats = chat(&folder, &tiny, &[], "/stats\nHi\nab\n/stats\n").stderr;
    let none = "\nthis chat: prompt 0 tokens, generated 0 tokens\n";
    assert!(stats.contains(none), "{stats}");
    assert!(stats.contains("last answer: prompt "), "{stats}");
    assert!(stats.contains(", generated 8 tokens\n"), "{stats}");
    assert!(stats.contains(" of 200 cells in use, KV "), "{stats}");
}

#[test]
fn an_answer_that_was_cut_says_so() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let cut = chat(&folder, &tiny, &["-n", "3"], "Hi\n");
    let says =
        "[the answer was cut after 3 tokens (--predict); /set predict N changes the limit]\n";
    assert!(cut.stderr.ends_with(says), "{cut:?}");
    // The first message takes 21 tokens.
    let full = chat(&folder, &tiny, &["-c", "22", "-n", "-1"], "Hi\n");
    assert!(
        full.stderr
            .contains("[the answer was cut: the context is full; "),
        "{full:?}"
    );
}
