//! Conversations: with tools, used twice at once, forked while they generate, continued, and kept apart by keys.

mod common;

use common::{Running, start};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;

const CHAT: &str = "/v1/chat/completions";
const BASE: &str = "/v1/kvark/conversations";

fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

fn new_conversation(server: &Running) -> String {
    server.ask(BASE, &json!({}))["id"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn get(server: &Running, id: &str) -> Value {
    server.get(&format!("{BASE}/{id}")).json()
}

fn roles(conversation: &Value) -> Vec<&str> {
    let turns = conversation["turns"].as_array().unwrap().iter();
    turns.map(|turn| turn["role"].as_str().unwrap()).collect()
}

/// The turns of a conversation add up to its tokens, in order.
fn is_consistent(conversation: &Value) {
    let mut before = 0;
    for turn in conversation["turns"].as_array().unwrap() {
        let (end, tokens) = (
            turn["end"].as_u64().unwrap(),
            turn["tokens"].as_u64().unwrap(),
        );
        assert_eq!(before + tokens, end, "{conversation}");
        before = end;
    }
    assert!(
        before <= conversation["tokens"].as_u64().unwrap(),
        "{conversation}"
    );
}

/// A completion that streams until the client reads no more.
struct Stream(BufReader<TcpStream>);

impl Stream {
    /// Starts a long answer in a conversation, and waits for its first token.
    fn start(server: &Running, id: &str) -> Stream {
        let body = json!({
            "conversation": id, "messages": user("Tell a very long story."),
            "stream": true, "max_tokens": 1500, "ignore_eos": true, "temperature": 0,
        })
        .to_string();
        let mut client = server.connect();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}",
            body.len()
        );
        client
            .write_all(format!("{head}\r\n\r\n{body}").as_bytes())
            .unwrap();
        let mut stream = Stream(BufReader::new(client));
        while !stream.line().contains("\"content\":\"") {}
        assert!(stream.line().len() < 1 << 20);
        stream
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the stream ended");
        line
    }

    /// Reads to the end, and returns the finish reason.
    fn finish_reason(mut self) -> Option<String> {
        let mut finish = None;
        loop {
            let line = self.line();
            if let Some(data) = line.strip_prefix("data: ") {
                if data.starts_with("[DONE]") {
                    return finish;
                }
                let chunk: Value = serde_json::from_str(data).unwrap();
                let reason = chunk["choices"][0]["finish_reason"].as_str();
                finish = reason.map(str::to_owned).or(finish);
            }
        }
    }
}

#[test]
fn tool_calls_and_results_are_turns_with_their_exact_tokens() {
    let Some(server) = start(|_| {}) else { return };
    let tools = json!([{ "type": "function", "function": { "name": "weather", "parameters": {
        "type": "object", "properties": { "city": { "type": "string", "maxLength": 12 } }, "required": ["city"] } } }]);
    let id = server.ask(
        BASE,
        &json!({ "messages": [{ "role": "system", "content": "Be short." }] }),
    );
    let id = id["id"].as_str().unwrap();
    let called = server.ask(
        CHAT,
        &json!({
            "conversation": id, "messages": user("Weather in Paris?"), "tools": tools,
            "tool_choice": "required", "max_tokens": 100, "temperature": 0,
        }),
    );
    let call = &called["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather", "{called}");
    let before = get(&server, id);
    is_consistent(&before);
    assert_eq!(before["turns"][2]["tool_calls"][0]["id"], call["id"]);
    let answered = server.ask(
        CHAT,
        &json!({
            "conversation": id, "tools": tools, "max_tokens": 12, "temperature": 0,
            "messages": [{ "role": "tool", "tool_call_id": call["id"], "content": "18 degrees" }],
        }),
    );
    let after = get(&server, id);
    is_consistent(&after);
    assert_eq!(
        roles(&after),
        ["system", "user", "assistant", "tool", "assistant"]
    );
    assert!(after["tokens"].as_u64() > before["tokens"].as_u64());
    // Nothing of the conversation is computed again.
    let cached = answered["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    assert!(
        cached + 2 >= before["tokens"].as_u64().unwrap(),
        "{answered}"
    );
    for turns in 0..=5 {
        let fork = server.ask(
            &format!("{BASE}/{id}/fork"),
            &json!({ "at": { "turn": turns } }),
        );
        assert_eq!(roles(&fork), roles(&after)[..turns]);
        is_consistent(&fork);
    }
}

#[test]
fn a_template_without_tool_calls_shows_them_all_the_same() {
    let Some(server) = start(|_| {}) else { return };
    let messages = json!([
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "a", "type": "function", "function": { "name": "weather", "arguments": "{\"city\": \"Paris\"}" } }] },
        { "role": "tool", "tool_call_id": "a", "content": "18 degrees" },
    ]);
    let text =
        server.ask("/apply-template", &json!({ "messages": messages }))["prompt"].to_string();
    for part in ["weather", "Paris", "<tool_call>", "18 degrees"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_conversation_generates_once_at_a_time() {
    let Some(server) = start(|_| {}) else { return };
    let id = new_conversation(&server);
    let stream = Stream::start(&server, &id);
    let other = server.post(
        CHAT,
        &json!({ "conversation": id, "messages": user("Hi"), "max_tokens": 2 }),
    );
    assert_eq!(
        (other.status, &other.json()["error"]["code"]),
        (409, &json!("conversation_busy"))
    );
    let rewind = server.post(&format!("{BASE}/{id}/rewind"), &json!({ "at": 0 }));
    assert_eq!(rewind.status, 409);
    // A fork has the answer as far as it is.
    let fork = server.ask(&format!("{BASE}/{id}/fork"), &json!({}));
    let partial = fork["turns"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&partial["role"], &partial["partial"]),
        (&json!("assistant"), &json!(true))
    );
    assert!(!partial["content"].as_str().unwrap().is_empty());
    is_consistent(&fork);
    let forked = fork["id"].as_str().unwrap();
    let more = server.ask(
        CHAT,
        &json!({ "conversation": forked, "messages": [], "max_tokens": 3, "temperature": 0 }),
    );
    let now = get(&server, forked);
    assert_eq!(roles(&now), roles(&fork));
    let whole = format!(
        "{}{}",
        partial["content"].as_str().unwrap(),
        more["choices"][0]["message"]["content"].as_str().unwrap()
    );
    assert_eq!(
        now["turns"].as_array().unwrap().last().unwrap()["content"],
        whole
    );
    // Deleting the conversation ends its answer.
    assert_eq!(
        server
            .send("DELETE", &format!("{BASE}/{id}"), "", b"")
            .status,
        200
    );
    assert_eq!(stream.finish_reason().as_deref(), Some("abort"));
    assert_eq!(server.get(&format!("{BASE}/{id}")).status, 404);
}

#[test]
fn an_answer_that_was_cut_goes_on_and_a_complete_one_does_not() {
    let Some(server) = start(|_| {}) else { return };
    let ask = |id: &str, messages: Value, n: usize, ignore: bool| {
        server.post(CHAT, &json!({
            "conversation": id, "messages": messages, "max_tokens": n, "temperature": 0, "ignore_eos": ignore,
        }))
    };
    let (one, two) = (new_conversation(&server), new_conversation(&server));
    assert_eq!(ask(&one, user("Count to ten."), 12, true).status, 200);
    assert_eq!(ask(&two, user("Count to ten."), 6, true).status, 200);
    assert_eq!(ask(&two, json!([]), 6, true).status, 200);
    let content = |id: &str| get(&server, id)["turns"].clone();
    assert_eq!(content(&one)[1]["content"], content(&two)[1]["content"]);
    assert_eq!(get(&server, &one)["tokens"], get(&server, &two)["tokens"]);
    let done = new_conversation(&server);
    let stopped = json!({
        "conversation": done, "messages": user("Say a word."), "max_tokens": 40, "regex": "(yes|no)",
    });
    assert_eq!(server.post(CHAT, &stopped).status, 200);
    assert_eq!(get(&server, &done)["turns"][1]["partial"], false);
    let refused = ask(&done, json!([]), 6, false);
    assert_eq!(refused.status, 400, "{}", refused.json());
    assert_eq!(ask(&done, user("Sure?"), 6, false).status, 200);
    assert_eq!(
        roles(&get(&server, &done)),
        ["user", "assistant", "user", "assistant"]
    );
}

#[test]
fn a_conversation_has_one_model() {
    let Some(server) = start(|options| {
        let same = options.models[0].1.clone();
        options.models.push(("other".into(), same));
        options.slots = 2;
    }) else {
        return;
    };
    let id = new_conversation(&server);
    let ask = |model: &str| {
        server.post(
            CHAT,
            &json!({ "conversation": id, "model": model, "messages": user("Hi"), "max_tokens": 2 }),
        )
    };
    assert_eq!(ask("smol").status, 200);
    let refused = ask("other");
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("model"))
    );
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][1]["loaded"], false, "{models}");
}

#[test]
fn messages_at_creation_are_computed_once() {
    let Some(server) = start(|_| {}) else { return };
    let long = "many words and more words ".repeat(60);
    let id = server.ask(
        BASE,
        &json!({ "messages": [{ "role": "system", "content": long }] }),
    );
    let (tokens, id) = (
        id["tokens"].as_u64().unwrap(),
        id["id"].as_str().unwrap().to_owned(),
    );
    server.ask(
        CHAT,
        &json!({ "conversation": id, "messages": user("Hi"), "max_tokens": 2 }),
    );
    let computed = loop {
        let state = server.get("/v1/kvark/cache").json();
        let sequences = state["sequences"].as_array().unwrap();
        let busy = sequences.iter().any(|s| !s["request"].is_null());
        if !busy && state["waiting"] == 0 {
            break state["counters"]["step_tokens"].as_u64().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert!(
        computed < tokens + tokens / 2,
        "{computed} computed for {tokens}"
    );
}

#[test]
fn keys_see_their_own_conversations_and_ids_cannot_be_guessed() {
    let Some(server) = start(|options| options.api_keys = vec!["one".into(), "two".into()]) else {
        return;
    };
    let send = |method: &str, path: &str, key: &str, body: &Value| {
        let header = format!("authorization: bearer {key}\r\n");
        server.send(method, path, &header, body.to_string().as_bytes())
    };
    let mine = send("POST", BASE, "one", &json!({ "messages": user("Hi") })).json();
    let id = mine["id"].as_str().unwrap();
    assert!(id.len() >= 32, "{id}");
    let list = |key: &str| {
        send("GET", BASE, key, &Value::Null).json()["data"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!((list("one"), list("two")), (1, 0));
    let path = format!("{BASE}/{id}");
    assert_eq!(send("GET", &path, "one", &Value::Null).status, 200);
    for (method, path) in [
        ("GET", path.clone()),
        ("POST", format!("{path}/fork")),
        ("POST", format!("{path}/rewind")),
        ("POST", format!("{path}/keep")),
        ("DELETE", path.clone()),
    ] {
        assert_eq!(
            send(method, &path, "two", &json!({})).status,
            404,
            "{method} {path}"
        );
    }
    let chat = json!({ "conversation": id, "messages": user("Hi"), "max_tokens": 2 });
    assert_eq!(send("POST", CHAT, "two", &chat).status, 404);
    assert_eq!(
        send("GET", "/v1/kvark/cache/0", "two", &Value::Null).status,
        403
    );
    assert_eq!(send("GET", BASE, "three", &Value::Null).status, 401);
}

#[test]
fn other_hosts_are_refused() {
    let Some(server) = start(|options| options.allow_hosts = vec!["kvark.lan".into()]) else {
        return;
    };
    for (host, status) in [
        ("evil.com", 403),
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("kvark.lan:8080", 200),
    ] {
        for path in ["/health", BASE, "/"] {
            let request = format!(
                "GET {path} HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\nconnection: close\r\n\r\n"
            );
            let reply = server.raw(request.as_bytes()).unwrap();
            assert_eq!(reply.status, status, "{host} {path}");
        }
    }
}

#[test]
fn browsers_may_send_the_headers_of_their_clients() {
    let Some(server) = start(|options| options.cors_origin = Some("https://app.example".into()))
    else {
        return;
    };
    let asked = "authorization,content-type,x-stainless-os,anthropic-version,anthropic-dangerous-direct-browser-access";
    let headers = format!(
        "origin: https://app.example\r\naccess-control-request-method: POST\r\naccess-control-request-headers: {asked}\r\n"
    );
    let reply = server.send("OPTIONS", CHAT, &headers, b"");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("access-control-allow-headers"), Some(asked));
}

#[test]
fn time_limits_and_a_second_stop_have_names_of_their_own() {
    let Some(server) = start(|options| options.grace = std::time::Duration::from_secs(600)) else {
        return;
    };
    let late = server.ask(CHAT, &json!({
        "messages": user("Tell a story."), "max_tokens": 1500, "ignore_eos": true, "timeout": 0.3,
    }));
    assert_eq!(late["choices"][0]["finish_reason"], "timeout", "{late}");
    let id = new_conversation(&server);
    let stream = Stream::start(&server, &id);
    let stop = server.stop_handle();
    stop.stop();
    // The first stop has arrived when new requests are refused.
    while TcpStream::connect(server.address).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    stop.stop();
    assert_eq!(stream.finish_reason().as_deref(), Some("abort"));
}

#[test]
fn a_model_that_cannot_fit_unloads_no_other() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    let tiny = std::fs::read_dir(tiny)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let tiny = tiny.filter(|path| path.extension().is_some_and(|e| e == "gguf"));
    let tiny = tiny.min().expect("a tiny model");
    let Some(server) = start(|options| {
        options.models.insert(0, ("tiny".into(), tiny));
        options.runner.context = Some(64);
        options.runner.memory = kvark::memory::MemoryLimit::Bytes(60 << 20);
    }) else {
        return;
    };
    let loaded = || {
        let models = server.get("/v1/models").json();
        let data = models["data"].as_array().unwrap().clone();
        data.iter()
            .map(|model| model["loaded"].as_bool().unwrap())
            .collect::<Vec<bool>>()
    };
    assert_eq!(loaded(), [true, false]);
    let refused = server.post(CHAT, &json!({ "model": "smol", "messages": user("Hi") }));
    assert_eq!(refused.status, 503, "{}", refused.json());
    assert_eq!(loaded(), [true, false]);
    // Looking at a model does not load it, and its counters are there all the same.
    let props = server.get("/props?model=smol");
    assert_eq!(
        (props.status, &props.json()["error"]["code"]),
        (409, &json!("model_not_loaded"))
    );
    let metrics = String::from_utf8(server.get("/metrics").body).unwrap();
    assert!(
        metrics.contains("kvark_requests_started_total{model=\"smol\"} 0"),
        "{metrics}"
    );
}

#[test]
fn a_prompt_of_megabytes_is_refused_before_it_is_tokenised() {
    let Some(server) = start(|_| {}) else { return };
    let text = "word ".repeat(3 << 20);
    for (path, body) in [
        (CHAT, json!({ "messages": user(&text) })),
        ("/v1/completions", json!({ "prompt": text })),
        (BASE, json!({ "messages": user(&text) })),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (400, &json!("context_length_exceeded"))
        );
    }
}

/// The value of a counter of the only model.
fn counter(server: &Running, name: &str) -> u64 {
    let text = String::from_utf8(server.get("/metrics").body).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("kvark_{name}_total{{")));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.unwrap().parse().unwrap()
}

/// A fork shares the cells of its parent, which memory pressure takes from nobody who lives before those that nobody holds.
#[test]
fn a_fork_of_a_long_conversation_computes_nothing() {
    let running = start(|options| {
        options.runner.context = Some(3072);
        options.slots = 2;
    });
    let Some(server) = running else { return };
    let long = "The sea is wide, the sky is high and the boat is small. ".repeat(150);
    let id = new_conversation(&server);
    let say = |id: &str, text: &str| {
        server.ask(
            CHAT,
            &json!({
                "conversation": id, "messages": user(text), "max_tokens": 6, "temperature": 0, "ignore_eos": true,
            }),
        )
    };
    say(&id, &long);
    let tokens = get(&server, &id)["tokens"].as_u64().unwrap();
    assert!(tokens >= 2000, "{tokens}");
    let before = (counter(&server, "steps"), counter(&server, "prompt_tokens"));
    let fork = server.ask(&format!("{BASE}/{id}/fork"), &json!({}))["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let after = (counter(&server, "steps"), counter(&server, "prompt_tokens"));
    assert_eq!(after, before, "a fork runs no forward");
    // The next turn computes its own tokens, and the last one of the answer, which no forward has seen.
    let turn = |id: &str, text: &str| {
        let held = get(&server, id)["tokens"].as_u64().unwrap();
        let asked = |name: &str| counter(&server, name);
        let (prompt, cached) = (asked("prompt_tokens"), asked("cached_tokens"));
        let answer = say(id, text);
        let reused = asked("cached_tokens") - cached;
        assert!(reused >= held - 1, "{held}, {}", answer["kvark"]);
        let computed = asked("prompt_tokens") - prompt - reused;
        assert!(computed < 40, "{computed}");
    };
    turn(&fork, "Why?");
    turn(&id, "How long?");
    // Other prompts fill the pool twice. What conversations hold stays.
    for n in 0..4 {
        let prompt = format!("Number {n}. {long}");
        let body = json!({ "prompt": prompt, "max_tokens": 1, "temperature": 0 });
        server.ask("/v1/completions", &body);
    }
    turn(&fork, "Who says so?");
    turn(&id, "And then?");
}
