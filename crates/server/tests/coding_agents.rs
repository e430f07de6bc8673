//! The requests of coding agents: their headers, fields and tools, recorded from the programs with their texts left out
//! (`fixtures/clients`; docs/agents.md names the versions).

mod common;

use common::start;
use serde_json::Value;
use std::path::Path;

/// Sends the requests of a client, with short answers, and returns the last event of each.
fn replay(client: &str) -> Vec<Value> {
    let path = Path::new("tests/fixtures/clients").join(format!("{client}.json"));
    let recorded: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let server = start(|options| {
        options.runner.context = Some(16384);
        options.max_tokens = Some(4);
    });
    let Some(server) = server else { return vec![] };
    let requests = recorded.as_array().unwrap().iter();
    let ends = requests.map(|request| {
        let headers = request["headers"].as_object().unwrap().iter();
        let headers =
            headers.map(|(name, value)| format!("{name}: {}\r\n", value.as_str().unwrap()));
        let headers: String = headers.collect();
        let path = request["path"].as_str().unwrap();
        let body = request["body"].to_string();
        let reply = server.send("POST", path, &headers, body.as_bytes());
        let text = String::from_utf8_lossy(&reply.body);
        assert_eq!(reply.status, 200, "{client} {path}: {text}");
        let events = reply.events();
        let last = events
            .iter()
            .rev()
            .find_map(|event| serde_json::from_str(event).ok());
        last.unwrap_or_else(|| panic!("{client} {path} has no events: {text}"))
    });
    ends.collect()
}

#[test]
fn claude_code_is_answered() {
    for end in replay("claude-code") {
        assert_eq!(end["type"], "message_stop", "{end}");
    }
}

#[test]
fn codex_is_answered() {
    for end in replay("codex") {
        let kind = end["type"].as_str().unwrap();
        assert!(
            ["response.completed", "response.incomplete"].contains(&kind),
            "{end}"
        );
    }
}

#[test]
fn opencode_is_answered() {
    for end in replay("opencode") {
        assert!(end["usage"]["prompt_tokens"].as_u64() > Some(10), "{end}");
    }
}
