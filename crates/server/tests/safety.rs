//! Hostile and broken clients: each is refused or dropped, and the next normal request works.

mod common;

use common::{Running, start};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";

/// A normal request.
fn works(server: &Running) {
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 2, "temperature": 0 });
    server.ask(CHAT, &body);
}

fn request(head: &str, body: &[u8]) -> Vec<u8> {
    [head.as_bytes(), b"\r\n\r\n", body].concat()
}

/// The state of the cache when `done` holds. Waits for the engine's next steps, without a limit of its own.
fn wait_for(server: &Running, done: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let state = server.get("/v1/kvark/cache").json();
        if done(&state) {
            return state;
        }
        let longest = Duration::from_secs(300);
        assert!(begun.elapsed() < longest, "nothing happens: {state}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn running(state: &Value) -> usize {
    let sequences = state["sequences"].as_array().unwrap();
    let running = sequences.iter().filter(|s| !s["request"].is_null());
    running.count() + state["waiting"].as_u64().unwrap() as usize
}

/// Waits until nothing runs, clears the prefixes, and expects all cells to be free.
fn all_cells_are_free(server: &Running) {
    wait_for(server, |state| running(state) == 0);
    server.send("DELETE", "/v1/kvark/cache", "", b"");
    let state = wait_for(server, |state| running(state) == 0);
    assert_eq!(state["used"], 0, "{state}");
}

#[test]
fn broken_bodies_are_refused() {
    let Some(server) = start(|options| options.max_body = 1 << 20) else {
        return;
    };
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let deep_field = [
        &br#"{"messages":"#[..],
        &b"[".repeat(5000),
        &b"]".repeat(5000),
        b"}",
    ]
    .concat();
    let huge = vec![b' '; (1 << 20) + 1];
    for path in [CHAT, "/v1/messages", "/v1/kvark/conversations", "/tokenize"] {
        for (body, status) in [
            (&b""[..], 400),
            (b"{", 400),
            (b"nonsense", 400),
            (b"[]", 400),
            (b"null", 400),
            (b"{\"a\":1}{", 400),
            (b"{\"messages\": [\"\xff\xfe\"]}", 400),
            (b"{\"messages\": \"\\ud800\"}", 400),
            (&deep, 400),
            (&deep_field, 400),
            (&huge, 413),
        ] {
            // A conversation can begin without anything.
            if body.is_empty() && path == "/v1/kvark/conversations" {
                continue;
            }
            let reply = server.send("POST", path, "", body);
            let start = String::from_utf8_lossy(&body[..body.len().min(20)]);
            assert_eq!(reply.status, status, "{path} {start}");
            assert!(reply.json()["error"]["message"].is_string());
        }
    }
    // Without a length, the limit holds while the body arrives.
    let head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked";
    let chunk = [&b"80000\r\n"[..], &[b' '; 0x80000], b"\r\n"].concat();
    let body = [&chunk[..], &chunk, &chunk, b"0\r\n\r\n"].concat();
    if let Some(reply) = server.raw(&request(head, &body)) {
        assert_eq!(reply.status, 413);
        assert_eq!(reply.json()["error"]["type"], "request_too_large");
    }
    works(&server);
}

#[test]
fn broken_heads_are_refused() {
    let Some(server) = start(|_| {}) else { return };
    let long = "a".repeat(100_000);
    let many: String = (0..300).map(|n| format!("x-{n}: 1\r\n")).collect();
    for (head, allowed) in [
        (
            format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx-long: {long}"),
            &[431][..],
        ),
        (
            format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{many}x: y"),
            &[431],
        ),
        (
            format!("GET /{long} HTTP/1.1\r\nhost: localhost"),
            &[414, 431],
        ),
        (
            "GET /../../etc/passwd HTTP/1.1\r\nhost: localhost".into(),
            &[404],
        ),
        (
            "GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nhost: localhost".into(),
            &[404],
        ),
        (
            "GET //etc/passwd HTTP/1.1\r\nhost: localhost".into(),
            &[404],
        ),
        (
            "GET /v1/models/..%2f..%2fx HTTP/1.1\r\nhost: localhost".into(),
            &[404],
        ),
        (
            "GET /v1/models/%ff HTTP/1.1\r\nhost: localhost".into(),
            &[400],
        ),
        (
            "GET /v1/kvark/cache/abc HTTP/1.1\r\nhost: localhost".into(),
            &[400],
        ),
        (
            "GET /v1/kvark/cache/99999 HTTP/1.1\r\nhost: localhost".into(),
            &[400, 404],
        ),
        (
            "GET /v1/kvark/conversations/%00 HTTP/1.1\r\nhost: localhost".into(),
            &[404],
        ),
        (
            "GET /v1/chat/completions HTTP/1.1\r\nhost: localhost".into(),
            &[405],
        ),
        ("TRACE /health HTTP/1.1\r\nhost: localhost".into(), &[405]),
        (
            "NONSENSE /health HTTP/1.1\r\nhost: localhost".into(),
            &[405],
        ),
        ("nonsense".into(), &[400]),
        (
            "GET /health HTTP/9.9\r\nhost: localhost".into(),
            &[400, 505],
        ),
        (
            "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6"
                .into(),
            &[400],
        ),
        (
            "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1".into(),
            &[400],
        ),
        (
            "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip".into(),
            &[400],
        ),
        (
            "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked, identity"
                .into(),
            &[400],
        ),
        (
            "GET /health HTTP/1.1\r\nhost: localhost\r\nbad header: 1".into(),
            &[400],
        ),
        (
            "GET /health HTTP/1.1\r\nhost: localhost\r\nx: a\0b".into(),
            &[400],
        ),
    ] {
        let reply = server.raw(&request(&head, b""));
        let start = &head[..head.len().min(90)];
        // The server may close a connection with a broken head without an answer.
        if let Some(reply) = reply {
            assert!(allowed.contains(&reply.status), "{start}: {}", reply.status);
        }
        works(&server);
    }
}

#[test]
fn a_request_cannot_be_hidden_in_a_body() {
    let Some(server) = start(|_| {}) else { return };
    // With both headers, the chunks count, and what follows is not a request.
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked";
    let hidden = b"0\r\n\r\nDELETE /v1/kvark/cache HTTP/1.1\r\nhost: localhost\r\n\r\n";
    works(&server);
    let before = server.get("/v1/kvark/cache").json()["used"].clone();
    let mut stream = server.connect();
    stream.write_all(&request(head, hidden)).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    _ = stream.read_to_string(&mut answer);
    assert_eq!(
        server.get("/v1/kvark/cache").json()["used"],
        before,
        "{answer}"
    );
    works(&server);
}

#[test]
fn slow_clients_are_dropped() {
    let Some(server) = start(|options| {
        options.header_time = Duration::from_millis(100);
        options.body_time = Duration::from_millis(100);
    }) else {
        return;
    };
    let mut stream = server.connect();
    stream
        .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
        .unwrap();
    let mut answer = String::new();
    // The server ends the connection; the client's own limit is two minutes.
    _ = stream.read_to_string(&mut answer);
    assert!(!answer.contains(" 200 "), "{answer}");
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100";
    let reply = server.raw(&request(head, b"{")).unwrap();
    assert_eq!(reply.status, 408);
    works(&server);
}

#[test]
fn a_thousand_idle_connections_do_no_harm() {
    let Some(server) = start(|_| {}) else { return };
    let idle: Vec<_> = (0..1000).map(|_| server.connect()).collect();
    works(&server);
    drop(idle);
    works(&server);
}

#[test]
fn clients_that_vanish_free_their_cells() {
    let Some(server) = start(|_| {}) else { return };
    let long = "many words and more words ".repeat(300);
    for (text, stream, first) in [
        // In the middle of a stream, before an answer as a whole, and in prefill.
        ("Tell a story.", true, true),
        ("Tell a story.", false, false),
        (&*long, true, false),
    ] {
        let body = json!({
            "messages": [{ "role": "user", "content": text }],
            "stream": stream, "max_tokens": 1900 - 6 * text.len() / 26, "ignore_eos": true,
        })
        .to_string();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}",
            body.len()
        );
        let mut client = server.connect();
        client.write_all(&request(&head, body.as_bytes())).unwrap();
        if first {
            let mut bytes = [0; 600];
            client.read_exact(&mut bytes).unwrap();
        } else {
            wait_for(&server, |state| running(state) > 0);
        }
        drop(client);
        all_cells_are_free(&server);
        works(&server);
    }
    let metrics = String::from_utf8(server.get("/metrics").body).unwrap();
    assert!(
        metrics.contains("kvark_requests_cancelled_total{model=\"smol\"} 3"),
        "{metrics}"
    );
}

#[test]
fn keys_and_origins_are_checked() {
    let Some(server) = start(|options| options.api_keys = vec!["secret".to_owned()]) else {
        return;
    };
    for (header, status) in [
        ("", 401),
        ("authorization: Bearer wrong\r\n", 401),
        ("authorization: secret\r\n", 401),
        ("authorization: Bearer \r\n", 401),
        ("x-api-key: secre\r\n", 401),
        ("authorization: Bearer secret\r\n", 200),
        ("x-api-key: secret\r\n", 200),
        ("x-api-key: secret\r\norigin: https://evil.example\r\n", 403),
        ("x-api-key: secret\r\norigin: null\r\n", 403),
    ] {
        let reply = server.send("GET", "/v1/models", header, b"");
        assert_eq!(reply.status, status, "{header}");
    }
    // The key is checked before the body is read.
    let head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000";
    let reply = server.raw(&request(head, b"")).unwrap();
    assert_eq!(reply.status, 401);
    assert_eq!(reply.json()["error"]["type"], "authentication_error");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_full_queue_refuses_and_recovers() {
    let Some(server) = start(|options| (options.slots, options.queue) = (1, 1)) else {
        return;
    };
    let long = json!({
        "messages": [{ "role": "user", "content": "Tell a story." }],
        "stream": true, "max_tokens": 1800, "ignore_eos": true,
    })
    .to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}",
        long.len()
    );
    // One runs and one waits. A request that arrives before the first has left the queue is refused, so more are sent
    // until both places are taken.
    let mut clients = Vec::new();
    while running(&server.get("/v1/kvark/cache").json()) < 2 {
        assert!(clients.len() < 1000, "two requests never stay");
        let mut client = server.connect();
        client.write_all(&request(&head, long.as_bytes())).unwrap();
        clients.push(client);
        std::thread::sleep(Duration::from_millis(50));
    }
    let refused = server.send("POST", CHAT, "", long.as_bytes());
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"]["code"], "queue_full");
    assert_eq!(refused.header("retry-after"), Some("1"));
    drop(clients);
    all_cells_are_free(&server);
    works(&server);
}

#[test]
fn a_context_that_is_too_long_is_refused() {
    let Some(server) = start(|_| {}) else { return };
    let content = "word ".repeat(5000);
    let reply = server.post(
        CHAT,
        &json!({ "messages": [{ "role": "user", "content": content }] }),
    );
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    works(&server);
}

#[test]
fn grammars_of_any_depth_end_no_process() {
    let Some(server) = start(|_| {}) else { return };
    let chain = |n: usize, link: fn(Value) -> Value| {
        let next = |i: usize| match i + 1 < n {
            true => link(json!({ "$ref": format!("#/$defs/a{}", i + 1) })),
            false => json!({ "type": "string" }),
        };
        let definitions: serde_json::Map<String, Value> =
            (0..n).map(|i| (format!("a{i}"), next(i))).collect();
        json!({ "$ref": "#/$defs/a0", "$defs": definitions })
    };
    let mut rules: String = (0..1000)
        .map(|i| format!("a{i} ::= \"x\" a{}\n", i + 1))
        .collect();
    rules.push_str("a1000 ::= \"y\"\nroot ::= a0\n");
    let array = |next| json!({ "type": "array", "items": next });
    let groups = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
    let alternatives = format!("root ::= {}\"z\"", "\"word\" | ".repeat(80_000));
    let constraints = [
        ("json_schema", chain(300, array), 200),
        ("json_schema", chain(5000, array), 400),
        ("json_schema", chain(1000, |next| next), 200),
        ("grammar", rules.into(), 200),
        ("grammar", groups.into(), 400),
        ("grammar", alternatives.into(), 400),
        ("regex", "(".repeat(5000).into(), 400),
    ];
    // All at once: the others answer meanwhile.
    std::thread::scope(|scope| {
        for (name, value, status) in &constraints {
            let server = &server;
            scope.spawn(move || {
                let mut body = json!({
                    "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 2,
                });
                body[*name] = value.clone();
                let reply = server.post(CHAT, &body);
                let text = String::from_utf8_lossy(&reply.body).into_owned();
                assert_eq!(reply.status, *status, "{name}: {text}");
                assert!(!text.contains("backtrace"), "{text}");
                if *status == 400 {
                    assert_eq!(reply.json()["error"]["param"], *name);
                }
            });
        }
        assert_eq!(server.get("/health").status, 200);
    });
    works(&server);
}
