//! Limits of memory that the system sets are seen before a run, and an allocation that fails is one line.

use crate::support::*;
use std::process::Command;

/// Runs the command with an address space of this many kilobytes.
fn limited(folder: &Folder, kilobytes: u64, args: &[&str]) -> Output {
    let kvark = folder.command(args);
    let script = format!("ulimit -v {kilobytes} && exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script])
        .arg(kvark.get_program())
        .args(args);
    for (name, value) in kvark.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    finish(shell.env("RUST_BACKTRACE", "1"), "")
}

#[test]
fn a_run_above_the_limit_of_the_address_space_is_refused() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let run = |kilobytes: u64, context: &str| {
        let args = [
            "run", &tiny, "-p", "a", "-n", "1", "--temp", "0", "-c", context,
        ];
        limited(&folder, kilobytes, &args)
    };
    let plan = folder.run(&["plan", &tiny, "-c", "40m", "--json"]).json();
    let needed = plan["total_bytes"].as_u64().unwrap();
    assert!(needed > 3_000_000_000, "{needed}");
    let error = run(2_000_000, "40m");
    let lines: Vec<&str> = error.stderr.lines().collect();
    let error = (error.code, lines.last().copied().unwrap_or_default());
    assert_eq!(error.0, Some(1), "{error:?}");
    assert!(error.1.contains("see ulimit -v"), "{error:?}");
    assert!(error.1.contains("it would fit with"), "{error:?}");
    run(2_000_000, "64").ok();
    // The plan says the same.
    let plan = |context: &str| limited(&folder, 2_000_000, &["plan", &tiny, "-c", context]).ok();
    let large = plan("40m");
    assert!(
        large.contains("see ulimit -v: the run does not fit; it would with"),
        "{large}"
    );
    assert!(plan("64").ends_with(": the run fits\n"));
}

#[test]
fn an_allocation_that_fails_is_one_line() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let text = folder.path("text.txt");
    let bytes = 4u64 << 30;
    std::fs::File::create(&text)
        .unwrap()
        .set_len(bytes)
        .unwrap();
    let args = ["tokenize", &tiny, "-f", text.to_str().unwrap()];
    let error = limited(&folder, 2_000_000, &args).error();
    let want = format!("error: out of memory: an allocation of {bytes} bytes failed");
    assert!(error.starts_with(&want), "{error}");
}
