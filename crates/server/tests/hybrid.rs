//! Chats with a model that has recurrent layers, as clients of OpenAI's API send them: whole histories, of which nothing is computed again.

mod common;

use common::Running;
use kvark::RunnerOptions;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

const CHAT: &str = "/v1/chat/completions";

/// A server of a tiny random hybrid.
fn start() -> Running {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    common::serve(|options| {
        options.models = vec![("hybrid".to_owned(), folder.join("hybrid_chat.gguf"))];
        options.runner = RunnerOptions {
            context: Some(4096),
            state_interval: 128,
            ..RunnerOptions::default()
        };
    })
}

/// Asks for an answer of letters, so that its text has the tokens that were generated.
fn ask(server: &Running, messages: &[Value]) -> Value {
    server.ask(
        CHAT,
        &json!({
            "messages": messages, "max_tokens": 24, "temperature": 1, "seed": 3,
            "regex": "[a-z]{8,16}",
        }),
    )
}

fn message(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}

/// A sentence of its own for each number.
fn sentence(n: usize) -> String {
    format!(
        "Message {n} asks for {} things, and says so at length.",
        n * 37 + 11
    )
}

fn number(reply: &Value, path: &str) -> usize {
    let found = reply.pointer(path).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("{path} of {reply}")) as usize
}

/// Tokens of a prompt, those that were cached, and those of its answer.
fn tokens(reply: &Value) -> [usize; 3] {
    let cached = "/usage/prompt_tokens_details/cached_tokens";
    ["/usage/prompt_tokens", cached, "/usage/completion_tokens"].map(|path| number(reply, path))
}

fn add_answer(messages: &mut Vec<Value>, reply: &Value) {
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.len() >= 8, "{reply}");
    messages.push(message("assistant", text));
}

#[test]
fn ten_turns_an_edit_and_a_return_compute_new_messages_only() {
    let server = start();
    let mut messages = vec![message("system", &sentence(100))];
    // The tokens of what was fed at the end of each turn.
    let mut ends = vec![0];
    for turn in 0..10 {
        messages.push(message("user", &sentence(turn)));
        let reply = ask(&server, &messages);
        let [prompt, cached, answer] = tokens(&reply);
        let earlier = ends[turn];
        assert!(
            cached >= earlier,
            "turn {turn}: {cached} of {earlier} are cached"
        );
        // The last token of an answer is fed by the next turn.
        ends.push(prompt + answer - 1);
        add_answer(&mut messages, &reply);
    }

    // Another last message: what comes before it is not computed again.
    let mut edited = messages[..messages.len() - 2].to_vec();
    edited.push(message("user", "Something else."));
    let [_, cached, _] = tokens(&ask(&server, &edited));
    assert!(cached >= ends[9], "{cached} of {}", ends[9]);

    // A sub-agent works from the middle on, and its parent goes on.
    let mut branch = messages[..10].to_vec();
    for turn in 20..23 {
        branch.push(message("user", &sentence(turn)));
        let reply = ask(&server, &branch);
        add_answer(&mut branch, &reply);
    }
    messages.push(message("user", &sentence(10)));
    let [_, cached, _] = tokens(&ask(&server, &messages));
    assert!(cached >= ends[10], "{cached} of {}", ends[10]);
}

#[test]
fn a_miss_between_states_is_named() {
    let server = start();
    let long: String = (0..12).map(sentence).collect();
    ask(&server, &[message("user", &long)]);
    // Differs inside the message, behind a kept state.
    let cut = long.len() * 3 / 4;
    let other = format!("{}another end", &long[..cut]);
    let reply = ask(&server, &[message("user", &other)]);
    let [_, cached, _] = tokens(&reply);
    assert!(cached > 0 && cached.is_multiple_of(128), "{reply}");
    assert_eq!(
        reply["kvark"]["cache"]["miss"]["reason"], "no_state",
        "{reply}"
    );
}

/// A history that arrives as one prompt keeps states where its messages end.
#[test]
fn an_edited_message_of_one_long_prompt_is_computed_alone() {
    let server = start();
    let mut messages = vec![message("system", &sentence(100))];
    for turn in 0..9 {
        messages.push(message("user", &sentence(turn)));
        messages.push(message("assistant", &sentence(50 + turn)));
    }
    messages.push(message("user", &sentence(9)));
    let [prompt, cached, _] = tokens(&ask(&server, &messages));
    assert!(prompt > 300 && cached == 0, "{cached} of {prompt}");
    let edit = message("user", "Something else, please.");
    *messages.last_mut().unwrap() = edit.clone();
    let [prompt, cached, _] = tokens(&ask(&server, &messages));
    let [alone, ..] = tokens(&ask(&server, &[edit]));
    assert!(
        prompt - cached <= alone,
        "{cached} of {prompt}, {alone} are new"
    );
}

/// The value of a counter of the model.
fn counter(server: &Running, name: &str) -> usize {
    let text = String::from_utf8(server.get("/metrics").body).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name}{{")));
    let line = line.unwrap_or_else(|| panic!("{name} is not in {text}"));
    line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as usize
}

/// A client that goes away while its prompt is computed, and asks again, waits for at most the tokens after the last state.
#[test]
fn a_prompt_that_was_cancelled_goes_on_from_its_last_state() {
    const INTERVAL: usize = 64;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let server = common::serve(|options| {
        options.models = vec![("hybrid".to_owned(), folder.join("hybrid_chat.gguf"))];
        options.runner = RunnerOptions {
            context: Some(4096),
            state_interval: INTERVAL as u32,
            // Many steps, so that the client leaves between two of them.
            max_step_tokens: 8,
            ..RunnerOptions::default()
        };
    });
    let text: String = (0..50).map(sentence).collect();
    let body = json!({
        "messages": [message("user", &text)], "max_tokens": 100, "temperature": 0,
    });
    let counted = server.ask(
        "/v1/messages/count_tokens",
        &json!({
            "model": "hybrid", "messages": [message("user", &text)],
        }),
    );
    let prompt = number(&counted, "/input_tokens");
    assert!(prompt > 1000, "{prompt}");
    let mut client = server.connect();
    let request = body.to_string();
    write!(
        client,
        "POST {CHAT} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{request}",
        server.address,
        request.len()
    )
    .unwrap();
    let mut computed = 0;
    while computed * 10 < prompt * 6 {
        computed = counter(&server, "kvark_step_tokens_total");
    }
    drop(client);
    let ended = || {
        counter(&server, "kvark_requests_cancelled_total")
            + counter(&server, "kvark_requests_finished_total")
    };
    while ended() == 0 {}
    // The server has noticed it at some later step.
    let all = counter(&server, "kvark_step_tokens_total");
    assert!(all >= computed, "{all}, {computed}");
    let before = all.min(prompt - 1);
    let reply = server.ask(CHAT, &body);
    let [again, cached, answer] = tokens(&reply);
    assert_eq!(again, prompt);
    // The tokens that were computed before the client left, without those behind the last state.
    assert!(cached + INTERVAL >= before, "{cached} of {before}");
    let new = counter(&server, "kvark_step_tokens_total") - all;
    assert!(
        new <= prompt - before + INTERVAL + answer,
        "{new} after {before} of {prompt}"
    );
}
