//! `kvark serve` as a process: prefixes on disk survive a kill and a restart.

use crate::real;
use crate::support::Folder;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

/// A running server. It is killed, not stopped, when it is dropped.
struct ServeProcess {
    child: Child,
    host: String,
}

impl ServeProcess {
    fn start(folder: &Folder, model: &str) -> ServeProcess {
        ServeProcess::start_with(folder, model, &["--cache-disk", "1GiB"])
    }

    fn start_with(folder: &Folder, model: &str, more: &[&str]) -> ServeProcess {
        let flags = ["-c", "4096", "-np", "2", "-t", "2", "--port", "0"];
        let args = [&["serve", model][..], &flags, more].concat();
        let mut command = folder.command(&args);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let host = lines
            .by_ref()
            .map(|line| line.unwrap())
            .find_map(|line| {
                let address = line.split_whitespace().find(|w| w.starts_with("http://"));
                let is_start = line.contains("kvark serves");
                address.filter(|_| is_start).map(|a| a[7..].to_owned())
            })
            .expect("the server says where it listens");
        // A full pipe would block the server.
        std::thread::spawn(move || lines.for_each(drop));
        ServeProcess { child, host }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Value {
        let (head, body) = self.answer(method, path, body);
        assert!(head.starts_with("HTTP/1.1 200"), "{head} {body}");
        body
    }

    /// The head and the body of an answer.
    fn answer(&self, method: &str, path: &str, body: &str) -> (String, Value) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), serde_json::from_str(body).unwrap())
    }

    /// The greedy answer to a chat.
    fn chat(&self, messages: &[Value]) -> Value {
        let body = json!({ "messages": messages, "max_tokens": 4, "temperature": 0 });
        self.send("POST", CHAT, &body.to_string())
    }

    /// Waits until this many prefixes are on disk.
    fn wait_for_files(&self, files: u64) {
        while self.send("GET", "/v1/kvark/cache", "")["disk"]["files"] != files {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// A chat whose system prompt has about this many tokens.
fn long_chat(words: usize, topic: &str) -> Vec<Value> {
    let sentence = format!("A note about the {topic}: it is long and wide. ");
    let system = sentence.repeat(words / 12);
    vec![
        message("system", &system),
        message("user", "What is it about?"),
    ]
}

/// All files under a folder.
fn files(folder: PathBuf) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return vec![];
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files(path),
            false => vec![path],
        })
        .collect()
}

#[test]
fn the_history_of_a_conversation_survives_a_kill() {
    let Some(model) = real::model() else { return };
    let folder = Folder::new();
    let mut chat = long_chat(2100, "river");
    let server = ServeProcess::start(&folder, &model);
    let first = server.chat(&chat);
    let history = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(history >= 2000, "{first}");
    server.wait_for_files(1);
    drop(server);
    // The same turn again gives the same answer, and the next turn computes only what is new.
    let server = ServeProcess::start(&folder, &model);
    let again = server.chat(&chat);
    assert_eq!(
        again["choices"][0]["message"],
        first["choices"][0]["message"]
    );
    assert_eq!(again["kvark"]["cache"]["source"], "disk", "{again}");
    assert_eq!(
        again["usage"]["prompt_tokens_details"]["cached_tokens"],
        history - 1
    );
    drop(server);
    let server = ServeProcess::start(&folder, &model);
    chat.push(first["choices"][0]["message"].clone());
    chat.push(message("user", "And how wide?"));
    let next = server.chat(&chat);
    let cached = next["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached.unwrap() >= history, "{next}");
}

#[test]
fn a_kill_while_prefixes_are_written_loses_no_earlier_one() {
    let Some(model) = real::model() else { return };
    let folder = Folder::new();
    let kept = long_chat(400, "lake");
    let server = ServeProcess::start(&folder, &model);
    let first = server.chat(&kept);
    server.wait_for_files(1);
    drop(server);
    let partials = || {
        let all = files(folder.path("home").join("prefixes"));
        all.into_iter()
            .filter(|path| path.extension().is_some_and(|e| e == "partial"))
            .count()
    };
    // The first file of the next prefix appears when the engine is idle; the kill comes while it is written, or right after.
    for topic in ["sea", "city", "wood"] {
        let server = ServeProcess::start(&folder, &model);
        server.chat(&long_chat(1500, topic));
        let before = files(folder.path("home").join("prefixes")).len();
        while partials() == 0 && files(folder.path("home").join("prefixes")).len() == before {}
        drop(server);
    }
    let server = ServeProcess::start(&folder, &model);
    assert_eq!(partials(), 0, "abandoned files are deleted at the start");
    let again = server.chat(&kept);
    assert_eq!(
        again["choices"][0]["message"],
        first["choices"][0]["message"]
    );
    assert_eq!(again["kvark"]["cache"]["source"], "disk", "{again}");
}

#[test]
fn the_head_beside_a_model_drafts_without_a_flag() {
    let Some(model) = real::model() else { return };
    let folder = Folder::new();
    let head = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../training/eagle3/smollm2-135m-instruct.eagle3.gguf"
    );
    let target = folder.path("beside.gguf");
    std::fs::copy(model, &target).unwrap();
    std::fs::copy(head, target.with_extension("eagle3.gguf")).unwrap();
    let ask = |kind: &str| {
        let body = json!({ "prompt": "The capital of France is", "max_tokens": 24, "temperature": 0, "spec_type": kind });
        body.to_string()
    };
    let target = target.to_str().unwrap();
    let server = ServeProcess::start_with(&folder, target, &[]);
    let text = |kind: &str| {
        let answer = server.send("POST", "/v1/completions", &ask(kind));
        answer["choices"][0]["text"].clone()
    };
    assert_eq!(text("eagle3"), text("none"));
    drop(server);
    let server = ServeProcess::start_with(&folder, target, &["-md", "none"]);
    let (head, body) = server.answer("POST", "/v1/completions", &ask("eagle3"));
    assert!(head.starts_with("HTTP/1.1 400"), "{head} {body}");
}

/// Kilobytes of a mapped file that are in a process's memory: all, its share of them, and those that only it has.
#[cfg(target_os = "linux")]
fn mapped(process: &ServeProcess, file: &str) -> [u64; 3] {
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", process.child.id())).unwrap();
    let mut sums = [0; 3];
    let mut is_file = false;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap();
        if !first.ends_with(':') {
            is_file = line.ends_with(file);
            continue;
        }
        let which = ["Rss:", "Pss:", "Private_Dirty:"];
        if let Some(which) = which
            .iter()
            .position(|name| *name == first)
            .filter(|_| is_file)
        {
            sums[which] += words.next().unwrap().parse::<u64>().unwrap();
        }
    }
    sums
}

#[test]
#[cfg(target_os = "linux")]
fn servers_share_the_memory_of_a_prefix_file() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", crate::support::model());
    let text = "It is a long text, and it goes on. ".repeat(115);
    let doc = folder.file("doc.txt", &text);
    let file = folder.path("doc.kvp").to_str().unwrap().to_owned();
    let args = [
        "prefix", "build", &tiny, "-f", &doc, "-o", &file, "-c", "4096",
    ];
    folder.run(&args).ok();
    let facts = folder.run(&["inspect", &file, "--json"]).json();
    let tokens = facts["tokens"].as_array().unwrap().len();
    assert!((3900..4090).contains(&tokens), "{tokens}");
    let prompt = format!("{text}So");
    let body = json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0 }).to_string();
    let ask = |server: &ServeProcess| server.send("POST", "/v1/completions", &body);
    let cold = ask(&ServeProcess::start_with(&folder, &tiny, &[]));
    let servers = [(); 2].map(|()| ServeProcess::start_with(&folder, &tiny, &["--prefix", &file]));
    for server in &servers {
        let warm = ask(server);
        assert_eq!(warm["choices"][0]["text"], cold["choices"][0]["text"]);
        let cached = warm["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        // The last tokens of the text may be others before more text.
        assert!(cached.unwrap() + 8 >= tokens as u64, "{warm}");
        assert_eq!(warm["kvark"]["cache"]["source"], "memory", "{warm}");
    }
    let [one, two] = servers.each_ref().map(|server| mapped(server, &file));
    let bytes = facts["kv"]["bytes"].as_u64().unwrap();
    for [resident, _, written] in [one, two] {
        assert!(resident * 1024 >= bytes, "{resident} kB of {bytes} bytes");
        assert_eq!(written, 0);
    }
    // Together they have little more than one of them.
    assert!((one[1] + two[1]) * 10 <= one[0] * 11, "{one:?} {two:?}");
    // The server keeps the file's prefix when its other prefixes are removed.
    servers[0].send("DELETE", "/v1/kvark/cache", "");
    let again = ask(&servers[0]);
    assert_eq!(again["choices"], ask(&servers[1])["choices"]);
    assert_eq!(again["kvark"]["cache"]["source"], "memory", "{again}");
}
