//! Ctrl-C ends every command with code 130.

use crate::support::*;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

fn interrupt(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::INT).unwrap();
}

/// Waits for a condition; panics if it is not met in time.
fn wait_for(what: &str, happened: impl Fn() -> bool) {
    for _ in 0..2000 {
        if happened() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} never happened");
}

/// The end of a command: its code, the rest of stdout, and stderr.
fn end(mut child: Child) -> Output {
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    Output {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn start(folder: &Folder, args: &[&str]) -> Child {
    let mut command = folder.command(args);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_generation_ends_with_what_it_has() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let endless = ["--ignore-eos", "--context-shift"];
    for more in [&[][..], &["--chat"]] {
        let args = ["run", &tiny, "-p", "Hi"];
        let mut child = start(&folder, &[&args[..], &endless, more].concat());
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        interrupt(&child);
        let output = end(child);
        assert_eq!(output.code, Some(130), "{output:?}");
        assert!(output.stderr.contains("; interrupted]"), "{output:?}");
        assert!(output.stdout.ends_with('\n'), "{output:?}");
    }
}

#[test]
fn a_model_without_text_can_be_stopped_too() {
    let folder = Folder::new();
    let bare = folder.file("bare.gguf", bare_model());
    let cache = folder.path("out.kv");
    let cache = cache.to_str().unwrap();
    let args = [
        "run",
        &bare,
        "--token-ids",
        "1,2",
        "--context-shift",
        "--json",
    ];
    let child = start(&folder, &[&args[..], &["--prompt-cache", cache]].concat());
    wait_for("a handler for SIGINT", || handles_interrupts(&child));
    interrupt(&child);
    let output = end(child);
    assert_eq!(output.code, Some(130), "{output:?}");
}

/// Whether a process has a handler for SIGINT, from `/proc`.
fn handles_interrupts(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
    let status = status.unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 2 != 0)
}

#[test]
fn a_piped_chat_ends_between_two_messages() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.kv");
    let file = file.to_str().unwrap();
    let args = ["chat", &tiny, "-n", "2", "--prompt-cache", file];
    let mut child = start(&folder, &args);
    child.stdin.as_mut().unwrap().write_all(b"Hi\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    interrupt(&child);
    let kept = child.stdin.take();
    let output = end(child);
    drop(kept);
    assert_eq!(output.code, Some(130), "{output:?}");
    // The conversation is saved although it was interrupted.
    assert!(std::fs::metadata(file).is_ok());
}

#[test]
fn a_command_that_waits_for_its_input_ends_at_once() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let mut child = start(&folder, &["tokenize", &tiny, "-f", "-"]);
    let kept = child.stdin.take();
    wait_for("a handler for SIGINT", || handles_interrupts(&child));
    interrupt(&child);
    let output = end(child);
    drop(kept);
    assert_eq!(output.code, Some(130), "{output:?}");
}

#[test]
fn a_download_ends() {
    let folder = Folder::new();
    let begun = folder.path("begun");
    let bin = folder.path("bin");
    std::fs::create_dir(&bin).unwrap();
    let script = format!("#!/bin/sh\n: > '{}'\nexec sleep 600\n", begun.display());
    let python = bin.join("python3");
    std::fs::write(&python, script).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = folder.command(&["pull"]);
    let command = command.env("PATH", path).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    wait_for("a download", || begun.exists());
    interrupt(&child);
    let output = end(child);
    assert_eq!(output.code, Some(130), "{output:?}");
}

/// A hub that takes a connection and says nothing.
#[test]
fn a_download_that_stalls_can_be_left() {
    let folder = Folder::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let mut command = folder.command(&["pull", "hf:owner/name"]);
    command.env("HF_ENDPOINT", address);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let (mut connection, _) = silent.accept().unwrap();
    connection.read_exact(&mut [0]).unwrap();
    interrupt(&child);
    let output = end(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    let text = "interrupted; kvark pull hf:owner/name continues the download";
    assert!(output.stderr.contains(text), "{output:?}");
}

#[test]
fn a_replay_ends_while_a_server_is_silent() {
    let folder = Folder::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let child = start(&folder, &["agents-bench", "--url", &url]);
    let (mut asked, _) = listener.accept().unwrap();
    asked.read_exact(&mut [0]).unwrap();
    interrupt(&child);
    let output = end(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    assert!(output.stderr.ends_with("interrupted\n"), "{output:?}");
}
