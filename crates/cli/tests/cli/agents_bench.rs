//! `kvark agents-bench`: what is computed again, on kvark's own server and on others that tell less, and bad traces.

use crate::real;
use crate::support::{Folder, Output};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

/// A tiny random hybrid that can be talked to, with a token for every byte.
const TINY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../server/tests/fixtures/hybrid_chat.gguf"
);

fn message(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}

/// Four agents that come one after the other and return twice.
fn returning_agents() -> Value {
    let mut steps = vec![];
    let names: Vec<String> = (0..4).map(|n| format!("agent {n}")).collect();
    for name in &names {
        let task = format!("{name} reads this. ").repeat(40);
        let messages = [message("system", &task), message("user", "Begin.")];
        steps.push(json!({ "begin": name, "messages": messages }));
        steps.push(json!({ "ask": name, "kind": "begin" }));
    }
    for _ in 0..2 {
        for name in &names {
            let add = [message("assistant", "I did."), message("user", "Go on.")];
            steps.push(json!({ "ask": name, "kind": "return", "add": add }));
        }
    }
    json!({ "format": 1, "about": "four agents", "context": 1024, "max_tokens": 1, "steps": steps })
}

fn sums<'a>(report: &'a Value, kind: &str) -> &'a Value {
    &report["servers"][0]["kinds"][kind]
}

#[test]
fn with_a_disk_nothing_is_computed_again_and_without_one_what_was_evicted() {
    let folder = Folder::new();
    let trace = folder.file("trace.json", returning_agents().to_string());
    let flags = [
        "agents-bench",
        TINY,
        "--trace",
        &trace,
        "--parallel",
        "2",
        "-c",
        "1024",
        "--json",
    ];
    let with_disk = [&flags[..], &["--cache-disk", "64MiB"]].concat();
    let report = folder.run(&with_disk).json();
    assert_eq!(report["requests"], 12);
    let server = &report["servers"][0];
    assert_eq!(
        (&server["exact"], &server["states_reuse"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(
        server["notes"],
        json!([]),
        "/tokenize tells the tokens that are computed"
    );
    assert_eq!(sums(&report, "return")["computed_again"], 0, "{report}");
    let cache = &server["cache"];
    assert!(cache["evictions"].as_u64().unwrap() > 0, "{cache}");
    let names = |list: &Value| -> Vec<String> {
        let list = list.as_array().unwrap().iter();
        list.map(|rung| rung["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&cache["rungs"]), ["memory", "disk"]);
    assert_eq!(cache["evicted"]["last"][0]["kept_on"], "disk", "{cache}");

    let report = folder.run(&flags).json();
    let again = sums(&report, "return")["computed_again"].as_u64().unwrap();
    let prompts = sums(&report, "return")["prompt_tokens"].as_u64().unwrap();
    assert!(again > prompts / 2, "{report}");
    let cache = &report["servers"][0]["cache"];
    assert_eq!(names(&cache["rungs"]), ["memory"]);
    assert_eq!(
        cache["evicted"]["last"][0]["kept_on"],
        Value::Null,
        "{cache}"
    );
    let computed = cache["reuse"]["computed"].as_object().unwrap();
    let missed: u64 = computed.values().filter_map(Value::as_u64).sum();
    assert!(missed >= again, "{cache}");

    let shown = folder.run(&[&flags[..8], &["--requests", "5"]].concat());
    let text = shown.ok();
    assert!(text.starts_with("5 requests: four agents\n"), "{text}");
    assert!(
        text.contains("KIND") && text.contains("begin") && text.contains("\nall "),
        "{text}"
    );
}

#[test]
fn the_default_model_computes_nothing_of_an_agent_again() {
    let Some(model) = real::model() else { return };
    let folder = Folder::new();
    // Up to the retry of the prompt that is cancelled.
    let args = [
        "agents-bench",
        &model,
        "--requests",
        "13",
        "--parallel",
        "2",
        "-t",
        "2",
        "--cache-disk",
        "1GiB",
        "--json",
    ];
    let report = folder.run(&args).json();
    for kind in ["turn", "tool result", "parallel tools", "fork", "retry"] {
        assert_eq!(sums(&report, kind)["computed_again"], 0, "{kind}: {report}");
    }
    let requests = report["servers"][0]["requests"].as_array().unwrap();
    assert_eq!(requests.len(), 13);
    let [cancelled, retry] = &requests[11..] else {
        unreachable!("two are left")
    };
    // A prompt that is computed before anybody asks how far it is cannot be cancelled.
    if cancelled["cancelled"] == true {
        let known = |one: &Value| one["known_tokens"].as_u64().unwrap();
        assert!(known(retry) > known(cancelled), "{retry} {cancelled}");
    }
}

/// Answers requests until the test ends: an answer by path, or none for paths that are not there.
fn serve(answer: fn(&str, usize) -> Option<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (count, stream) in listener.incoming().enumerate() {
            _ = stream.and_then(|stream| reply(stream, count, answer));
        }
    });
    address
}

fn reply(
    mut stream: TcpStream,
    count: usize,
    answer: fn(&str, usize) -> Option<String>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut length = 0;
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    let (status, body) = match answer(&path, count) {
        Some(body) => ("200 OK", body),
        None => ("404 Not Found", "{}".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes())
}

/// Ollama, as far as it is asked: of every prompt of 100 tokens, 60 are reused.
fn ollama(path: &str, _: usize) -> Option<String> {
    match path {
        "/api/version" => Some(json!({ "version": "0.40.0" }).to_string()),
        "/api/tags" => Some(json!({ "models": [{ "name": "tiny:latest" }] }).to_string()),
        "/api/chat" => {
            let text = json!({ "message": { "content": "a" }, "done": false });
            let end = json!({
                "message": { "content": "" }, "done": true, "prompt_eval_count": 100, "prompt_eval_cached_count": 60,
            });
            Some(format!("{text}\n{end}\n"))
        }
        _ => None,
    }
}

/// A server of OpenAI's API that does not say what it reuses.
fn silent(path: &str, _: usize) -> Option<String> {
    let chunk = |choice: Value| json!({ "choices": [choice] }).to_string();
    match path {
        "/v1/models" => Some(json!({ "data": [{ "id": "m" }] }).to_string()),
        "/v1/chat/completions" => Some(format!(
            "data: {}\n\ndata: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
            chunk(json!({ "delta": { "content": "a" }, "finish_reason": null })),
            chunk(json!({ "delta": {}, "finish_reason": "length" })),
            json!({ "choices": [], "usage": { "prompt_tokens": 100 } }),
        )),
        _ => None,
    }
}

#[test]
fn servers_that_tell_less_are_counted_as_far_as_they_tell() {
    let folder = Folder::new();
    let trace = folder.file("trace.json", returning_agents().to_string());
    let (ollama, silent) = (serve(ollama), serve(silent));
    let named = [format!("ollama={ollama}"), format!("silent={silent}/v1")];
    let flags = [
        "agents-bench",
        "--trace",
        &trace,
        "--url",
        &named[0],
        "--url",
        &named[1],
    ];
    let report = folder.run(&[&flags[..], &["--json"]].concat()).json();
    let [first, second] = &report["servers"].as_array().unwrap()[..] else {
        panic!("{report}")
    };
    assert_eq!(
        (&first["api"], &first["model"]),
        (&json!("ollama"), &json!("tiny:latest"))
    );
    assert_eq!(
        (&first["exact"], &first["states_reuse"]),
        (&json!(false), &json!(true))
    );
    // Nearly all of a returning agent's 100 tokens are known, and 60 were reused.
    let again = first["kinds"]["return"]["computed_again"].as_u64().unwrap();
    assert!((8 * 30..8 * 40).contains(&again), "{again}");
    assert_eq!(first["kinds"]["begin"]["computed_again"], 0);
    assert_eq!(second["states_reuse"], false);
    assert_eq!(second["all"]["computed_again"], Value::Null);
    let text = folder.run(&flags).ok();
    assert!(text.contains(&format!("~{again}")), "{text}");
    assert!(
        text.contains("does not say which tokens it reused"),
        "{text}"
    );
}

#[test]
fn what_is_wrong_is_named() {
    let folder = Folder::new();
    let error = |args: &[&str]| folder.run(&[&["agents-bench"], args].concat()).error();
    let cut = folder.file("cut.json", "{\"format\": 1,\n \"steps\": [");
    let wrong = folder.file(
        "wrong.json",
        json!({ "format": 1, "context": 9, "max_tokens": 1, "steps": [{ "ask": "nobody" }] })
            .to_string(),
    );
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let nowhere = format!("gone=http://{free}");
    let other = serve(|_, _| None);
    for (args, parts) in [
        (&["--trace", &cut][..], &["cut.json", "line 2"][..]),
        (
            &["--trace", &wrong],
            &["wrong.json", "steps[0]", "\"nobody\""],
        ),
        (&["--trace", "there-is-none.json"], &["there-is-none.json"]),
        (&["--url", &nowhere], &["gone", &nowhere[5..]]),
        (&["--url", &other], &["neither OpenAI's API"]),
        (&["--url", "ftp://x"], &["--url", "ftp://x"]),
        (&["--url", "https://x"], &["only http"]),
        (&["--url", &other, "--url", &other], &["two servers"]),
    ] {
        let message = error(args);
        for part in parts {
            assert!(message.contains(part), "{args:?}: {message}");
        }
    }
    let printed = folder.run(&["agents-bench", "--print-trace"]).ok();
    let trace: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(trace["format"], 1);
    let Output { code, stderr, .. } = folder.run(&["agents-bench", "--print-trace", "--json"]);
    assert_eq!(code, Some(2), "{stderr}");
}
