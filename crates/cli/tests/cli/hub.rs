//! Models of a hub on loopback, of addresses and of Ollama's store, by name.

use crate::server::{Fault, Server};
use crate::support::*;
use crate::terminal::Terminal;
use crate::{server, splitter};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};

const REPOSITORY: &str = "owner/model";
/// Bytes of a piece of a download.
const PIECE: usize = 16 << 20;

fn hub(files: &[(&str, &[u8])]) -> Server {
    Server::start(REPOSITORY, files)
}

fn command(folder: &Folder, server: &Server, args: &[&str]) -> Command {
    let mut command = folder.command(args);
    command.env("HF_ENDPOINT", &server.address);
    command
}

fn run(folder: &Folder, server: &Server, args: &[&str]) -> Output {
    finish(&mut command(folder, server, args), "")
}

/// A file of three pieces. Only its first bytes are those of a GGUF file.
fn large_file() -> Vec<u8> {
    let numbers = (0..10 * PIECE as u32 / 16).flat_map(u32::to_le_bytes);
    b"GGUF".iter().copied().chain(numbers).collect()
}

/// Lets the first piece through and stops the others.
fn stop_after_the_first_piece(server: &Server) {
    server.set_fault(|request| {
        let (first, _) = request.range?;
        (first >= PIECE).then_some(Fault::SilentAfter(1000))
    });
}

/// Starts a download and returns when its first piece is stored.
fn start_and_wait(folder: &Folder, server: &Server) -> Child {
    let mut command = command(folder, server, &["pull", "hf:owner/model"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let state = folder.path("home/hub/owner/model/large.gguf.part.json");
    while !state.exists() {
        std::thread::yield_now();
    }
    child
}

#[test]
fn a_model_of_the_hub_is_pulled_used_listed_and_deleted() {
    let folder = Folder::new();
    let (tiny, other) = (model(), model_with_template(None));
    let server = hub(&[
        ("mmproj-Q4_K_M.gguf", b"GGUF"),
        ("tiny-Q8_0.gguf", &other),
        ("tiny-q4_k_m.gguf", &tiny),
    ]);
    let local = folder.file("tiny.gguf", &tiny);
    let args = ["-p", "ab", "-n", "4", "--temp", "0"];
    let want = folder.run(&[&["run", &local], &args[..]].concat()).ok();

    let first = run(
        &folder,
        &server,
        &[&["run", "-hf", REPOSITORY], &args[..]].concat(),
    );
    assert!(
        first.stderr.starts_with("fetching hf:owner/model ("),
        "{first:?}"
    );
    assert_eq!(first.ok(), want);
    let pulled = run(&folder, &server, &["pull", "hf:owner/model:q8_0"]).ok();
    assert!(
        pulled.starts_with("hf:owner/model:Q8_0: fetched, "),
        "{pulled}"
    );
    let path = folder.path("home/hub/owner/model/tiny-Q8_0.gguf");
    assert!(fs::read(&path).unwrap() == other);

    // From here on without the hub.
    drop(server);
    for named in [
        &["run", "hf:owner/model"][..],
        &["run", "-m", "hf:owner/model:Q4_K_M"],
    ] {
        assert_eq!(folder.run(&[named, &args].concat()).ok(), want);
    }
    let there = folder
        .run(&["pull", "--verify", "-hf", "owner/model:Q8_0"])
        .ok();
    assert!(there.contains("sha256 is right"), "{there}");
    let list = folder.run(&["list"]).ok();
    let line = list
        .lines()
        .find(|line| line.starts_with("hf:owner/model:Q4_K_M"));
    let line = line.unwrap_or_else(|| panic!("{list}"));
    for word in ["Q4_K_M", " 64 ", "just now", "tiny-q4_k_m.gguf"] {
        assert!(line.contains(word), "{word}: {list}");
    }
    let json = folder.run(&["list", "--json"]).json();
    let models = json["models"].as_array().unwrap();
    let find = |name: &str| models.iter().find(|m| m["name"] == name).unwrap();
    let used = find("hf:owner/model:Q4_K_M");
    assert_eq!(
        (&used["source"], &used["context"]),
        (&"hub".into(), &64.into())
    );
    assert!(used["last_use"].as_u64().unwrap() > 1_700_000_000);
    let unused = find("hf:owner/model:Q8_0");
    assert_eq!(
        (&unused["last_use"], &unused["quantisation"]),
        (&().into(), &"Q8_0".into())
    );

    fs::write(&path, vec![0; other.len()]).unwrap();
    let error = folder
        .run(&["pull", "hf:owner/model:Q8_0", "--verify"])
        .error();
    assert!(
        error.contains("is damaged") && error.contains("kvark pull --force"),
        "{error}"
    );
    let error = folder.run(&["rm", "hf:owner/model"]).error();
    assert!(
        error.contains("could be hf:owner/model:Q8_0 or hf:owner/model:Q4_K_M"),
        "{error}"
    );
    for name in ["hf:owner/model:Q8_0", "hf:owner/model:q4_k_m"] {
        assert!(folder.run(&["rm", name]).ok().starts_with("deleted "));
    }
    assert!(!folder.path("home/hub").exists());
    let error = folder.run(&["rm", "hf:owner/model:Q8_0"]).error();
    assert!(
        error.contains("hf:owner/model:Q8_0 is not stored here"),
        "{error}"
    );
}

#[test]
fn each_bad_reference_is_named_on_one_line() {
    let folder = Folder::new();
    let tiny = model();
    let parts = splitter::split(&tiny, 3);
    let server = hub(&[
        ("a-Q4_0.gguf", &tiny),
        ("a-Q6_K.gguf", &tiny),
        ("lost-Q2_K-00001-of-00003.gguf", &parts[0]),
        ("lost-Q2_K-00003-of-00003.gguf", &parts[2]),
    ]);
    let empty = Server::start("owner/none", &[("README.md", b"no model")]);
    for (number, part) in [(1, &parts[0]), (3, &parts[2])] {
        folder.file(&splitter::part_name("tiny", number, 3), part);
    }
    let first = folder.path(&splitter::part_name("tiny", 1, 3));
    let first = first.to_str().unwrap();
    let cases: &[(&Server, &[&str], &str)] = &[
        (
            &empty,
            &["pull", "hf:owner/none"],
            "hf:owner/none has no GGUF model",
        ),
        (
            &server,
            &["run", "-hf", "owner/model:Q5_0", "-p", "a"],
            "has no GGUF model \"Q5_0\"; it has Q4_0, Q6_K, Q2_K",
        ),
        (
            &server,
            &["pull", "hf:owner/model:Q2_K"],
            "has no file lost-Q2_K-00002-of-00003.gguf, a part of the split model",
        ),
        (
            &server,
            &["run", first, "-p", "a"],
            "tiny-00002-of-00003.gguf is missing: the model is split over 3 files",
        ),
        (&server, &["pull", "hf:owner/absent"], "does not exist"),
        (
            &server,
            &["pull", "hf:owner"],
            "it must be OWNER/REPOSITORY",
        ),
        (&server, &["pull", "http://example.com/a.gguf"], "use https"),
        (&server, &["chat", "ollama:none"], "has no such model"),
        (
            &server,
            &["pull", "ollama:none"],
            "ollama pull downloads them",
        ),
        (&server, &["rm", "ollama:none"], "ollama rm none:latest"),
        (&server, &["pull", first], "is a file already"),
    ];
    for (server, args, named) in cases {
        let error = run(&folder, server, args).error();
        assert!(error.contains(named), "{args:?}: {error}");
    }
    let mut command = folder.command(&["pull", "hf:o/r"]);
    let error = finish(command.env("HF_ENDPOINT", "nowhere"), "").error();
    assert!(
        error.contains("HF_ENDPOINT: nowhere is not an https address"),
        "{error}"
    );
    assert!(!folder.path("home/hub").exists());
}

#[test]
fn a_split_model_is_one_model() {
    let folder = Folder::new();
    let tiny = model();
    let local = folder.file("tiny.gguf", &tiny);
    let parts = splitter::split(&tiny, 3);
    let names: Vec<String> = (1..=3)
        .map(|n| format!("Q8_0/{}", splitter::part_name("tiny", n, 3)))
        .collect();
    let files: Vec<(&str, &[u8])> = names
        .iter()
        .map(|n| &**n)
        .zip(parts.iter().map(|p| &**p))
        .collect();
    let server = hub(&files);
    let args = ["-p", "ab", "-n", "4", "--temp", "0"];
    let want = folder.run(&[&["run", &local], &args[..]].concat()).ok();
    let output = run(
        &folder,
        &server,
        &[&["run", "hf:owner/model:q8_0"], &args[..]].concat(),
    );
    assert_eq!(output.ok(), want);
    let last = folder.path(&format!("home/hub/owner/model/{}", names[2]));
    let output = folder.run(&[&["run", last.to_str().unwrap()], &args[..]].concat());
    assert_eq!(output.ok(), want);
    // By its address too; any part names the model.
    let url = format!("{}/blob/{}", server.address, names[1]);
    let output = folder.run(&[&["run", &url], &args[..]].concat());
    assert_eq!(output.ok(), want);
    let json = folder.run(&["list", "--json"]).json();
    let sources: Vec<&str> = json["models"].as_array().unwrap()[3..]
        .iter()
        .map(|m| m["source"].as_str().unwrap())
        .collect();
    assert_eq!(sources, ["hub", "url"]);
}

#[test]
fn a_killed_download_is_listed_and_continues() {
    let folder = Folder::new();
    let file = large_file();
    let server = hub(&[("large.gguf", &file)]);
    stop_after_the_first_piece(&server);
    let mut child = start_and_wait(&folder, &server);
    child.kill().unwrap();
    child.wait().unwrap();
    let final_path = folder.path("home/hub/owner/model/large.gguf");
    assert!(!final_path.exists());
    let list = folder.run(&["list"]).ok();
    assert!(
        list.contains("unfinished of 41.9 MB; kvark pull hf:owner/model:large.gguf continues"),
        "{list}"
    );

    server.clear_fault();
    server.take_requests();
    run(&folder, &server, &["pull", "hf:owner/model"]).ok();
    assert!(fs::read(&final_path).unwrap() == file);
    let asked = server.take_asked_bytes();
    assert!(asked <= file.len() - PIECE, "{asked}");
    let mut left: Vec<_> = fs::read_dir(final_path.parent().unwrap())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["large.gguf", "large.gguf.json"]);
}

#[test]
fn an_interrupted_download_ends_at_once_and_can_be_deleted() {
    let folder = Folder::new();
    let file = large_file();
    let server = hub(&[("large.gguf", &file)]);
    stop_after_the_first_piece(&server);
    let child = start_and_wait(&folder, &server);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("interrupted; kvark pull hf:owner/model continues"),
        "{error}"
    );
    folder.run(&["rm", "hf:owner/model"]).ok();
    assert!(!folder.path("home/hub").exists());
}

#[test]
fn two_commands_download_once() {
    let folder = Folder::new();
    let file = large_file();
    let server = hub(&[("large.gguf", &file)]);
    let pull = || {
        let mut command = command(&folder, &server, &["pull", "hf:owner/model"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let both = [pull(), pull()];
    for child in both {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert!(fs::read(folder.path("home/hub/owner/model/large.gguf")).unwrap() == file);
    assert_eq!(server.take_asked_bytes(), file.len());
}

#[test]
fn a_bar_shows_speed_and_time_left() {
    let folder = Folder::new();
    let file = large_file();
    let server = hub(&[("large.gguf", &file)]);
    stop_after_the_first_piece(&server);
    for columns in [60, 120] {
        let mut terminal = Terminal::start(
            &mut command(&folder, &server, &["pull", "hf:owner/model"]),
            columns,
        );
        let shown = terminal.read_until(|screen| {
            let text = screen.contents();
            text.contains("download [") && text.contains("MB/41.9") && text.contains("/s ")
        });
        assert!(shown, "{}", terminal.contents());
        kill_process(Pid::from_child(&terminal.child), Signal::INT).unwrap();
        terminal.read_until(|_| false);
        assert_eq!(terminal.child.wait().unwrap().code(), Some(130));
        assert!(
            !terminal.contents().contains("download ["),
            "{}",
            terminal.contents()
        );
    }
}

#[test]
fn the_token_and_the_proxy_of_the_environment_are_used() {
    let folder = Folder::new();
    let tiny = model();
    let server = hub(&[("tiny.gguf", &tiny)]);
    fs::create_dir_all(folder.path("huggingface")).unwrap();
    folder.file("huggingface/token", "from-the-file\n");
    run(&folder, &server, &["pull", "hf:owner/model"]).ok();
    let tokens = |server: &Server| -> Vec<Option<String>> {
        let requests = server.take_requests().into_iter();
        requests
            .map(|r| r.headers.get("authorization").cloned())
            .collect()
    };
    let sent = tokens(&server);
    assert!(
        sent.iter()
            .all(|token| token.as_deref() == Some("Bearer from-the-file")),
        "{sent:?}"
    );

    // A hub that only the proxy knows; the token is not sent without encryption.
    let mut pull = folder.command(&["pull", "--force", "hf:owner/model"]);
    pull.env("HF_ENDPOINT", "http://hub.invalid")
        .env("HTTP_PROXY", &server.address);
    pull.env("ALL_PROXY", &server.address)
        .env_remove("NO_PROXY")
        .env_remove("no_proxy");
    finish(&mut pull, "").ok();
    let requests = server.take_requests();
    assert!(requests.len() >= 3, "{requests:?}");
    assert!(
        requests
            .iter()
            .all(|r| !r.headers.contains_key("authorization")),
        "{requests:?}"
    );
    assert!(fs::read(folder.path("home/hub/owner/model/tiny.gguf")).unwrap() == tiny);
}

#[test]
fn models_of_ollama_are_used_in_place() {
    let folder = Folder::new();
    let tiny = model();
    let local = folder.file("tiny.gguf", &tiny);
    let sum = server::sha256(&tiny);
    fs::create_dir_all(folder.path("ollama/blobs")).unwrap();
    let blob = folder.file(&format!("ollama/blobs/sha256-{sum}"), &tiny);
    fs::create_dir_all(folder.path("ollama/manifests/registry.ollama.ai/library/tiny")).unwrap();
    let manifest = format!(
        r#"{{"schemaVersion":2,"layers":[{{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:{sum}","size":{}}}]}}"#,
        tiny.len()
    );
    folder.file(
        "ollama/manifests/registry.ollama.ai/library/tiny/latest",
        manifest,
    );
    let args = ["-p", "ab", "-n", "4", "--temp", "0"];
    let want = folder.run(&[&["run", &local], &args[..]].concat()).ok();
    assert_eq!(
        folder
            .run(&[&["run", "ollama:tiny"], &args[..]].concat())
            .ok(),
        want
    );
    let list = folder.run(&["list"]).ok();
    let line = list
        .lines()
        .find(|line| line.starts_with("ollama:tiny:latest"));
    assert!(
        line.is_some_and(|line| line.contains("just now") && line.contains(&blob)),
        "{list}"
    );
    let error = folder.run(&["rm", "ollama:tiny"]).error();
    assert!(error.contains("ollama rm tiny:latest"), "{error}");
    assert!(fs::read(&blob).unwrap() == tiny);
    let files = fs::read_dir(folder.path("ollama/blobs")).unwrap().count();
    assert_eq!(files, 1);
}

/// On a disk of 600 kB that is mounted for the commands only.
#[cfg(target_os = "linux")]
#[test]
fn a_download_that_fills_the_disk_says_so_and_is_listed() {
    let folder = Folder::new();
    let file: Vec<u8> = large_file()[..2 << 20].to_vec();
    let server = hub(&[("large.gguf", &file)]);
    let home = folder.path("home");
    fs::create_dir_all(&home).unwrap();
    let mount = format!("mount -t tmpfs -o size=600k none {}", home.display());
    let kvark = env!("CARGO_BIN_EXE_kvark");
    let script = format!(
        "{mount} && {{ {kvark} pull hf:owner/model; echo code $?; {kvark} list; {kvark} rm hf:owner/model || ls -R {}; }}",
        home.display()
    );
    let in_own = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        command
    };
    if !in_own(&mount)
        .output()
        .is_ok_and(|output| output.status.success())
    {
        // Written past the test harness' capture, so that a run shows what it skipped.
        let _ = writeln!(
            std::io::stderr(),
            "skipped: this user cannot mount a small disk"
        );
        return;
    }
    let mut command = in_own(&script);
    command
        .env("KVARK_HOME", &home)
        .env("OLLAMA_MODELS", folder.path("ollama"))
        .env("HF_HOME", folder.path("huggingface"))
        .env("HF_ENDPOINT", &server.address);
    let output = finish(&mut command, "");
    assert!(output.stdout.contains("code 1\n"), "{output:?}");
    let error = output
        .stderr
        .lines()
        .find(|line| line.starts_with("error: "));
    let error = error.unwrap_or_default();
    assert!(
        error.starts_with("error: the disk is full: no room is left for "),
        "{output:?}"
    );
    assert!(error.contains("make room and pull again"), "{error}");
    // Either nothing could be stored that a later download continues, or it is listed and deleted.
    let listed = output.stdout.contains("unfinished");
    let deleted = output.stdout.contains("\ndeleted ");
    let nothing = output.stderr.contains("hf:owner/model is not stored here");
    assert!(listed && deleted || !listed && nothing, "{output:?}");
}
