//! What agents do to a server: many of them share little memory, they cancel and ask again, and the cache changes its types under them.

mod common;

use common::{Running, serve, start};
use kvark::RunnerOptions;
use regex::Regex;
use serde_json::{Value, json};
use server::{VolatilePlace, VolatileText};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const AGENTS: usize = 24;
const RETURNS: usize = 4;

/// A server of a tiny random hybrid whose pool holds a third of the agents.
fn small_server(disk: Option<PathBuf>) -> Running {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    serve(|options| {
        options.models = vec![("hybrid".to_owned(), folder.join("hybrid_chat.gguf"))];
        options.runner = RunnerOptions {
            context: Some(4096),
            pool_cells: Some(8 * 1900),
            ..RunnerOptions::default()
        };
        options.cache_disk = disk.map(|folder| (folder, 1 << 32));
    })
}

fn message(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}

/// An agent's conversation, and the tokens that were computed for it.
struct Agent {
    messages: Vec<Value>,
    fed: usize,
}

impl Agent {
    fn new(number: usize) -> Agent {
        let task = |n: usize| format!("Agent {number} has to do {} of them. ", n * 31 + number);
        let tasks: String = (0..52).map(task).collect();
        Agent {
            messages: vec![message("system", &tasks)],
            fed: 0,
        }
    }

    /// Asks for an answer of letters, and returns the number of tokens that were computed again.
    fn turn(&mut self, server: &Running, text: &str) -> usize {
        self.messages.push(message("user", text));
        let body = json!({
            "messages": self.messages, "max_tokens": 12, "temperature": 1, "seed": 3, "regex": "[a-z]{6,10}",
        });
        let reply = server.ask(CHAT, &body);
        let number = |path: &str| reply.pointer(path).and_then(Value::as_u64).unwrap() as usize;
        let cached = number("/usage/prompt_tokens_details/cached_tokens");
        let again = self.fed.saturating_sub(cached);
        // The last token of an answer is fed by the next turn.
        self.fed = number("/usage/prompt_tokens") + number("/usage/completion_tokens") - 1;
        let answer = &reply["choices"][0]["message"]["content"];
        self.messages
            .push(message("assistant", answer.as_str().unwrap()));
        again
    }
}

/// All agents begin, and come back in an order without a pattern. Returns the tokens computed again, and evictions.
fn come_back(server: &Running) -> (usize, u64) {
    let mut agents: Vec<Agent> = (0..AGENTS).map(Agent::new).collect();
    let mut visits: Vec<usize> = (0..AGENTS * RETURNS).map(|i| i % AGENTS).collect();
    let mut state = 11u64;
    for i in (1..visits.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        visits.swap(i, (state >> 33) as usize % (i + 1));
    }
    for agent in &mut agents {
        agent.turn(server, "Begin.");
        assert!((1300..1800).contains(&agent.fed), "{} tokens", agent.fed);
    }
    let again = visits
        .iter()
        .map(|agent| agents[*agent].turn(server, "Go on."));
    let again = again.sum();
    let state = server.get("/v1/kvark/cache").json();
    (again, state["evictions"].as_u64().unwrap())
}

#[test]
fn agents_on_a_third_of_their_memory_compute_nothing_again() {
    let folder = std::env::temp_dir().join(format!("kvark-agents-{}", std::process::id()));
    _ = std::fs::remove_dir_all(&folder);
    let server = small_server(Some(folder.clone()));
    let (again, evictions) = come_back(&server);
    assert_eq!(again, 0, "with a disk");
    assert!(evictions > 0);
    drop(server);
    _ = std::fs::remove_dir_all(&folder);
    // Without one, no more than what was evicted.
    let server = small_server(None);
    let (again, evictions) = come_back(&server);
    assert!(evictions > 0 && again > 0);
    assert!(
        again <= evictions as usize * 1900,
        "{again} tokens, {evictions} evictions"
    );
}

/// The state of the cache when `done` holds. Waits without a limit of its own.
fn wait_for(server: &Running, done: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let state = server.get("/v1/kvark/cache").json();
        if done(&state) {
            return state;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(300),
            "nothing happens: {state}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn running(state: &Value) -> Option<&Value> {
    let sequences = state["sequences"].as_array().unwrap();
    sequences
        .iter()
        .find(|sequence| !sequence["request"].is_null())
}

/// Sends a request and does not read its answer.
fn send_only(server: &Running, body: &Value) -> std::net::TcpStream {
    let body = body.to_string();
    let mut stream = server.connect();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n",
        server.address,
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

#[test]
fn a_cancelled_prompt_is_kept_for_the_retry() {
    let Some(server) = start(|options| options.runner.context = Some(4608)) else {
        return;
    };
    let line = |n: usize| format!("Line {n} of the log says that {} bytes came. ", n * 7919);
    let log: String = (0..190).map(line).collect();
    let body = json!({ "messages": [message("user", &log)], "max_tokens": 1, "temperature": 0, "stream": true });
    let stream = send_only(&server, &body);
    let tokens = |state: &Value| running(state).and_then(|request| request["tokens"].as_u64());
    let state = wait_for(&server, |state| {
        tokens(state).is_some_and(|done| done >= 2400)
    });
    let done = tokens(&state).unwrap();
    drop(stream);
    wait_for(&server, |state| running(state).is_none());
    let mut body = body;
    body["stream"] = json!(false);
    let reply = server.ask(CHAT, &body);
    let number = |path: &str| reply.pointer(path).and_then(Value::as_u64).unwrap();
    let prompt = number("/usage/prompt_tokens");
    assert!((3600..4500).contains(&prompt), "{prompt} tokens");
    let cached = number("/usage/prompt_tokens_details/cached_tokens");
    assert!(cached >= done, "{cached} of {done} are kept");
}

#[test]
fn the_cache_changes_its_types_under_conversations() {
    const MIGRATE: &str = "/v1/kvark/cache/migrate";
    let server = small_server(None);
    let mut agents: Vec<Agent> = (0..3).map(Agent::new).collect();
    agents
        .iter_mut()
        .for_each(|agent| _ = agent.turn(&server, "Begin."));
    let kv = |server: &Running| {
        let state = server.get("/v1/kvark/cache").json();
        state["memory"]["kv"].as_u64().unwrap()
    };
    let before = kv(&server);
    // An answer is being generated.
    let long = json!({
        "messages": [message("user", "Write.")], "max_tokens": 2000, "temperature": 1, "seed": 1, "regex": "[a-z ]{3000}",
    });
    let stream = send_only(&server, &long);
    let state = wait_for(&server, |state| running(state).is_some());
    let cells = state["used"].as_u64().unwrap();
    let report = server.ask(MIGRATE, &json!({ "cache_type": "q8" }));
    assert!(report["cells"].as_u64().unwrap() >= cells, "{report}");
    assert_eq!(report["bytes_after"], kv(&server), "{report}");
    assert!(report["bytes_before"].as_u64().unwrap() >= before);
    assert!(kv(&server) < before, "{report}");
    assert!(
        running(&server.get("/v1/kvark/cache").json()).is_some(),
        "it goes on"
    );
    drop(stream);
    for agent in &mut agents {
        assert_eq!(agent.turn(&server, "Go on."), 0);
    }
    let policy = json!({ "policy": "layers 3 f32; others q4" });
    let layers = server.post(MIGRATE, &policy).json();
    let report = match layers.pointer("/error/message").and_then(Value::as_str) {
        // The model's layers with attention are not all layers.
        Some(reason) => {
            assert!(reason.contains("layer 3"), "{reason}");
            server.ask(MIGRATE, &json!({ "policy": "others q4" }))
        }
        None => layers,
    };
    assert!(report["seconds"].as_f64().unwrap() >= 0.0);
    for agent in &mut agents {
        assert_eq!(agent.turn(&server, "Go on."), 0);
    }
    let held = kv(&server);
    for (body, part) in [
        (json!({ "cache_type": "q9" }), "q9"),
        (json!({}), "cache_type"),
        (json!({ "policy": "layers 99 q8" }), "no layer 99"),
        (json!({ "policy": "layers 1 q8; layers 1 q4" }), "layer 1"),
        (json!({ "cache_type": "q8", "kind": "tree" }), "kind"),
    ] {
        let reply = server.post(MIGRATE, &body);
        assert_eq!(reply.status, 400, "{body}: {}", reply.json());
        let text = reply.json().to_string();
        assert!(text.contains(part), "{body}: {text}");
        assert_eq!(kv(&server), held, "{body}: nothing changed");
    }
}

#[test]
fn turns_in_the_middle_are_replaced() {
    let server = small_server(None);
    let base = "/v1/kvark/conversations";
    let given = [
        message("system", "Answer with letters."),
        message("user", "What is the höchste Berg?"),
        message("assistant", "abcdefgh"),
        message("user", "And the second?"),
        message("assistant", "ijklmnop"),
    ];
    let begin = |messages: &[Value]| {
        let begun = server.ask(base, &json!({ "messages": messages }));
        begun["id"].as_str().unwrap().to_owned()
    };
    let say = |id: &str| {
        let body = json!({
            "conversation": id, "messages": [message("user", "And now?")], "max_tokens": 12, "temperature": 0,
            "regex": "[a-z]{8,10}",
        });
        server.ask(CHAT, &body)["choices"][0]["message"]["content"].clone()
    };
    let id = begin(&given);
    let get = || common::without_rungs(server.get(&format!("{base}/{id}")).json());
    let before = get();
    let splice = format!("{base}/{id}/splice");
    for (body, part) in [
        (json!({ "from": 3, "to": 2 }), "to"),
        (json!({ "from": 6, "to": 6 }), "5 turns"),
        (json!({ "from": 1, "to": 9 }), "5 turns"),
        (json!({ "from": 1 }), "to"),
        (
            json!({ "from": 1, "to": 2, "messages": [{ "role": "king" }] }),
            "king",
        ),
    ] {
        let reply = server.post(&splice, &body);
        assert_eq!(reply.status, 400, "{body}: {}", reply.json());
        assert!(
            reply.json().to_string().contains(part),
            "{body}: {}",
            reply.json()
        );
    }
    assert_eq!(get(), before, "nothing changed");
    let refused = server.post(&splice, &json!({ "from": 1, "to": 3, "approximate": true }));
    assert_eq!(refused.status, 400);
    let reason = refused.json()["error"]["message"].clone();
    assert!(
        reason.as_str().unwrap().contains("cannot be moved"),
        "{reason}"
    );
    assert_eq!(get(), before, "nothing changed");

    let new = [
        message("user", "Wie heißt der Fluß?"),
        message("assistant", "qrstuvwx"),
    ];
    let edited = server.ask(&splice, &json!({ "from": 1, "to": 3, "messages": new }));
    let turns = edited["turns"].as_array().unwrap();
    let texts: Vec<&Value> = turns.iter().map(|turn| &turn["content"]).collect();
    assert_eq!(
        texts[1..4],
        [&new[0]["content"], &new[1]["content"], &given[3]["content"]]
    );
    let kept = edited["kept_tokens"].as_u64().unwrap();
    assert!(
        kept >= before["turns"][0]["end"].as_u64().unwrap(),
        "{edited}"
    );
    let all = edited["tokens"].as_u64().unwrap();
    assert_eq!(edited["computed_tokens"].as_u64().unwrap(), all - kept);
    // The conversation goes on as one that was always so.
    let same: Vec<Value> = [&given[..1], &new, &given[3..]].concat();
    assert_eq!(say(&id), say(&begin(&same)));
    // Turns go without others in their place, also those of an answer that was generated.
    let count = server.get(&format!("{base}/{id}")).json()["turns"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(count, 7);
    let cut = server.ask(&splice, &json!({ "from": 1, "to": 5 }));
    assert_eq!(cut["turns"].as_array().unwrap().len(), 3);
    assert!(say(&id).as_str().unwrap().len() >= 8);
}

/// An edit that moves rows says how many, serves its conversation, and nobody else who has the same messages.
#[test]
fn an_approximate_edit_stays_in_its_conversation() {
    let Some(server) = start(|_| {}) else { return };
    let base = "/v1/kvark/conversations";
    let story = |name: &str| {
        let line = |n: usize| format!("Then {name} walked {n} miles and met {} friends. ", n % 7);
        (0..12).map(line).collect::<String>()
    };
    let given = [
        message("system", "You are a helpful assistant."),
        message("user", &story("Ada")),
        message("assistant", &story("Bob")),
        message("user", &story("Cyd")),
        message("assistant", &story("Dan")),
    ];
    let begun = server.ask(base, &json!({ "messages": given }));
    let id = begun["id"].as_str().unwrap().to_owned();
    let question = message("user", "Who walked?");
    let say = |more: Value| {
        let mut body = json!({ "messages": [question], "max_tokens": 8, "temperature": 0 });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        server.ask(CHAT, &body)
    };
    say(json!({ "conversation": id, "max_tokens": 1 }));
    let splice = format!("{base}/{id}/splice");
    for share in [-0.1, 1.5] {
        let body = json!({ "from": 1, "to": 3, "approximate": true, "share": share });
        assert_eq!(server.post(&splice, &body).status, 400);
    }
    let edited = server.ask(&splice, &json!({ "from": 1, "to": 3, "approximate": true }));
    let number = |name: &str| edited[name].as_u64().unwrap();
    let moved = number("approximate_tokens");
    assert!(moved > 200, "{edited}");
    let all = number("kept_tokens") + number("computed_tokens") + moved;
    assert_eq!(all, number("tokens"));
    let answer = say(json!({ "conversation": id }));
    let cache = &answer["kvark"]["cache"];
    // The last token of an answer has no row yet. What was computed after moved rows has seen them, and counts if it is there.
    assert!(
        cache["approximate_tokens"].as_u64() >= Some(moved - 1),
        "{cache}"
    );
    let messages = [&given[..1], &given[3..], &[message("user", "Who walked?")]].concat();
    let apart = server.ask(
        CHAT,
        &json!({ "messages": messages, "max_tokens": 8, "temperature": 0 }),
    );
    assert_eq!(apart["kvark"]["cache"]["approximate_tokens"], 0);
}

/// Text that changes in every request costs no prefix when it is declared.
#[test]
fn volatile_text_costs_no_prefix() {
    let lines = Regex::new("^Time: ").unwrap();
    for place in [VolatilePlace::Last, VolatilePlace::Drop] {
        let lines = Some(lines.clone());
        let Some(server) = start(|options| {
            options.volatile = VolatileText { lines, place };
        }) else {
            return;
        };
        let cached = |number: usize| {
            let rules = "Answer in one word. ".repeat(40);
            let system = format!("Time: 12:{number}\n{rules}");
            let nonce = json!({ "role": "system", "content": format!("request {number}"), "volatile": true });
            let messages = [
                message("system", &system),
                nonce,
                message("user", "Say yes."),
            ];
            let body = json!({ "messages": messages, "max_tokens": 1, "temperature": 0 });
            let answer = server.ask(CHAT, &body);
            let usage = &answer["usage"];
            let tokens = usage["prompt_tokens"].as_u64().unwrap();
            (
                tokens,
                usage["prompt_tokens_details"]["cached_tokens"]
                    .as_u64()
                    .unwrap(),
            )
        };
        cached(10);
        let (tokens, reused) = cached(57);
        let volatile = if place == VolatilePlace::Drop { 1 } else { 40 };
        assert!(reused + volatile >= tokens, "{reused} of {tokens}");
    }
}

/// Idle conversations go down to host memory, and every conversation says where it is.
#[test]
fn conversations_say_on_which_rung_they_are() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let server = serve(|options| {
        options.models = vec![("hybrid".to_owned(), folder.join("hybrid_chat.gguf"))];
        options.runner.context = Some(1024);
        options.runner.pool_cells = Some(2048);
        options.slots = 2;
        options.cache_ram.limit = 1 << 30;
    });
    let base = "/v1/kvark/conversations";
    let begin = |number: usize| {
        let text = format!("Agent {number} counts {}. ", number * 37).repeat(40);
        let begun = server.ask(base, &json!({ "messages": [message("user", &text)] }));
        let id = begun["id"].as_str().unwrap().to_owned();
        let body =
            json!({ "conversation": id, "messages": [], "max_tokens": 2, "regex": "[a-z]{2,4}" });
        server.ask(CHAT, &body);
        id
    };
    let ids: Vec<String> = (0..6).map(begin).collect();
    let rung = |id: &String| {
        let object = server.get(&format!("{base}/{id}")).json();
        object["cache"]["rung"].as_str().unwrap().to_owned()
    };
    assert_eq!(rung(&ids[0]), "host");
    assert_eq!(rung(&ids[5]), "memory");
    let cache = server.get("/v1/kvark/cache").json();
    let host = cache["rungs"].as_array().unwrap();
    let host = host.iter().find(|rung| rung["name"] == "host").unwrap();
    assert!(host["prefixes"].as_u64().unwrap() > 0 && host["bytes"].as_u64().unwrap() > 0);
    let listed = server.get(base).json();
    assert!(
        listed["data"]
            .as_array()
            .unwrap()
            .iter()
            .all(|c| c["cache"]["tokens"].as_u64() > Some(0))
    );
}
