//! Reasoning in every API, and answers that keep their tokens when a plain request sends them back.

mod common;

use common::{Running, model, start};
use serde_json::{Value, json};
use server::ReasoningHistory;
use std::path::PathBuf;

const CHAT: &str = "/v1/chat/completions";

/// A template that does not write the reasoning of earlier answers.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# </think> reasoning_content";

/// The test model with another chat template of the same length.
fn thinking_model() -> Option<PathBuf> {
    let mut bytes = std::fs::read(model()?).unwrap();
    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|window| window == key)? + key.len() + 4;
    let len = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let end = " #}";
    let blanks = " ".repeat(len.checked_sub(TEMPLATE.len() + end.len())?);
    let template = format!("{TEMPLATE}{blanks}{end}");
    bytes[at + 8..at + 8 + len].copy_from_slice(template.as_bytes());
    let name = format!(
        "kvark-thinking-{}-{:?}.gguf",
        std::process::id(),
        std::thread::current().id()
    );
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, bytes).unwrap();
    Some(path)
}

/// Runs a test on a server of that model.
fn with_thinking(history: ReasoningHistory, test: impl FnOnce(&Running)) {
    let Some(path) = thinking_model() else { return };
    let server = start(|options| {
        options.models = vec![("thinking".to_owned(), path.clone())];
        options.reasoning = history;
    });
    if let Some(server) = &server {
        test(server);
    }
    drop(server);
    std::fs::remove_file(path).unwrap();
}

const ANSWER: &str = "<think>\nBecause [a-z]{3,9} it is\\.\n</think>\n\nYes, [a-z]{3,9}\\.";

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn cached(answer: &Value) -> u64 {
    answer["kvark"]["cache"]["cached_tokens"].as_u64().unwrap()
}

/// The tokens of an answer's prompt and of the answer, without its last one, which may not be computed.
fn held(answer: &Value) -> u64 {
    let usage = &answer["usage"];
    usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap() - 2
}

#[test]
fn reasoning_is_apart_in_every_api_and_stays_in_the_cache() {
    with_thinking(ReasoningHistory::Keep, |server| {
        let body = json!({
            "messages": [user("Is it so?")], "regex": ANSWER, "temperature": 0, "max_tokens": 100,
        });
        let answer = server.ask(CHAT, &body);
        let message = &answer["choices"][0]["message"];
        let reasoning = message["reasoning_content"].as_str().unwrap();
        assert!(
            reasoning.starts_with("Because ") && reasoning.ends_with("it is."),
            "{answer}"
        );
        assert_eq!(message["reasoning"], reasoning);
        let content = message["content"].as_str().unwrap();
        assert!(content.starts_with("Yes, "), "{answer}");
        let details = &answer["usage"]["completion_tokens_details"];
        assert!(details["reasoning_tokens"].as_u64() > Some(3), "{answer}");

        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let (mut thought, mut said) = (String::new(), String::new());
        for event in server.post(CHAT, &streamed).events() {
            let Ok(chunk) = serde_json::from_str::<Value>(&event) else {
                continue;
            };
            let delta = &chunk["choices"][0]["delta"];
            thought += delta["reasoning_content"].as_str().unwrap_or_default();
            said += delta["content"].as_str().unwrap_or_default();
        }
        assert_eq!((&*thought, &*said), (reasoning, content));

        let mut anthropic = body.clone();
        anthropic["thinking"] = json!({ "type": "enabled", "budget_tokens": 1024 });
        let answered = server.ask("/v1/messages", &anthropic);
        assert_eq!(answered["content"][0]["thinking"], reasoning, "{answered}");
        assert_eq!(answered["content"][1]["text"], content);
        anthropic["stream"] = true.into();
        let events = server.post("/v1/messages", &anthropic).events();
        let events: Vec<Value> = events
            .iter()
            .filter_map(|event| serde_json::from_str(event).ok())
            .collect();
        let joined = |kind: &str, name: &str| -> String {
            let deltas = events.iter().filter(|event| event["delta"]["type"] == kind);
            deltas
                .filter_map(|event| event["delta"][name].as_str())
                .collect()
        };
        assert_eq!(joined("thinking_delta", "thinking"), reasoning);
        assert_eq!(joined("text_delta", "text"), content);

        let response = server.ask(
            "/v1/responses",
            &json!({ "input": "Is it so?", "regex": ANSWER, "temperature": 0, "max_output_tokens": 100 }),
        );
        assert_eq!(
            response["output"][0]["content"][0]["text"], reasoning,
            "{response}"
        );
        assert_eq!(response["output"][1]["content"][0]["text"], content);

        // The answer comes back with its reasoning, without it, and in the form of each API: its tokens are all there.
        let next = user("And then?");
        let plain = json!({ "role": "assistant", "content": content });
        let mut whole = plain.clone();
        whole["reasoning_content"] = reasoning.into();
        let blocks = json!({ "role": "assistant", "content": [
            { "type": "thinking", "thinking": reasoning, "signature": "" },
            { "type": "text", "text": content },
        ]});
        let items = json!([
            user("Is it so?"),
            response["output"][0],
            response["output"][1],
            next
        ]);
        for (path, request) in [
            (
                CHAT,
                json!({ "messages": [user("Is it so?"), plain, next], "max_tokens": 2 }),
            ),
            (
                CHAT,
                json!({ "messages": [user("Is it so?"), whole, next], "max_tokens": 2 }),
            ),
            (
                "/v1/messages",
                json!({ "messages": [user("Is it so?"), blocks, next], "max_tokens": 2 }),
            ),
            (
                "/v1/responses",
                json!({ "input": items, "max_output_tokens": 2 }),
            ),
        ] {
            let again = server.ask(path, &request);
            assert!(
                cached(&again) >= held(&answer),
                "{path}: {again}\nafter {answer}"
            );
        }
        // Another reasoning is another answer.
        whole["reasoning_content"] = "Because I say so.".into();
        let edited = server.ask(
            CHAT,
            &json!({ "messages": [user("Is it so?"), whole, next], "max_tokens": 2 }),
        );
        assert!(cached(&edited) < held(&answer), "{edited}");
    });
}

#[test]
fn dropped_reasoning_is_not_in_the_prompt() {
    with_thinking(ReasoningHistory::Drop, |server| {
        let first = json!({ "messages": [user("Is it so?")], "regex": ANSWER, "temperature": 0, "max_tokens": 100 });
        let answer = server.ask(CHAT, &first);
        let content = &answer["choices"][0]["message"]["content"];
        let plain = json!({ "role": "assistant", "content": content });
        let again = server.ask(
            CHAT,
            &json!({ "messages": [user("Is it so?"), plain, user("And then?")], "max_tokens": 2 }),
        );
        assert!(cached(&again) < held(&answer), "{again}");
        let all = again["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(all < held(&answer) + 14, "{again}");
    });
}

#[test]
fn calls_that_come_back_in_another_spelling_are_not_tokenised_again() {
    let Some(server) = start(|_| {}) else { return };
    let parameters = json!({ "type": "object", "required": ["city", "days"], "properties": {
        "city": { "enum": ["Paris"] }, "days": { "type": "integer", "minimum": 2, "maximum": 2 } } });
    let tools = json!([{ "type": "function", "function": { "name": "weather", "parameters": parameters } }]);
    let question = user("Weather in Paris?");
    let called = server.ask(CHAT, &json!({
        "messages": [question], "tools": tools, "tool_choice": "required", "max_tokens": 100, "temperature": 0,
    }));
    let id = &called["choices"][0]["message"]["tool_calls"][0]["id"];
    assert!(id.is_string(), "{called}");
    let result = json!({ "role": "tool", "tool_call_id": id, "content": "18 degrees" });
    let ask = |arguments: &str| {
        let call = json!({ "role": "assistant", "content": null, "tool_calls": [
            { "id": id, "type": "function", "function": { "name": "weather", "arguments": arguments } } ] });
        server.ask(CHAT, &json!({ "messages": [question, call, result], "tools": tools, "max_tokens": 4, "temperature": 0 }))
    };
    let mut texts = vec![];
    for arguments in [
        r#"{"city": "Paris", "days": 2}"#,
        r#"{"days":2,"city":"Paris"}"#,
        r#"{ "days" : 2.0, "city" : "\u0050aris" }"#,
    ] {
        let answer = ask(arguments);
        assert!(cached(&answer) >= held(&called), "{answer}\nafter {called}");
        texts.push(answer["choices"][0]["message"]["content"].clone());
    }
    assert!(texts.iter().all(|text| *text == texts[0]));
    // The same as Anthropic's blocks.
    let blocks = json!({
        "max_tokens": 4, "temperature": 0,
        "tools": [{ "name": "weather", "input_schema": parameters }],
        "messages": [
            question,
            { "role": "assistant", "content": [
                { "type": "tool_use", "id": "x", "name": "weather", "input": { "days": 2, "city": "Paris" } } ] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "x", "content": "18 degrees" }] },
        ],
    });
    let first = server.ask("/v1/messages", &json!({
        "max_tokens": 100, "temperature": 0, "tools": blocks["tools"], "tool_choice": { "type": "any" }, "messages": [question],
    }));
    assert_eq!(first["content"][0]["type"], "tool_use", "{first}");
    let usage = &first["usage"];
    let tokens = |name: &str| usage[name].as_u64().unwrap();
    let before =
        tokens("input_tokens") + tokens("cache_read_input_tokens") + tokens("output_tokens") - 2;
    let second = server.ask("/v1/messages", &blocks);
    assert!(cached(&second) >= before, "{second}\nafter {first}");
    // A call that means something else is tokenised as it is.
    let other = ask(r#"{"city": "Rome", "days": 2}"#);
    assert!(cached(&other) < held(&called), "{other}");
}

/// A model that would go on reasoning has to answer after its budget, in every API.
#[test]
fn reasoning_ends_with_its_budget() {
    with_thinking(ReasoningHistory::Keep, |server| {
        // The model does not reason by itself, so an expression makes it; the closing mark may stand anywhere.
        let open = "<think>([^<]{300,400}|[^<]{0,300}\\n</think>[^<]{20,60})";
        let body = |more: Value| {
            let mut body = json!({
                "messages": [user("Is it so?")], "regex": open, "temperature": 0, "max_tokens": 60,
            });
            let more = more.as_object().unwrap().clone();
            body.as_object_mut().unwrap().extend(more);
            body
        };
        let thought = |answer: &Value| {
            let details = &answer["usage"]["completion_tokens_details"];
            details["reasoning_tokens"].as_u64().unwrap()
        };
        let free = server.ask(CHAT, &body(json!({})));
        assert!(thought(&free) > 40, "{free}");
        for more in [
            json!({ "reasoning_budget": 7 }),
            json!({ "reasoning_budget": 7, "reasoning_effort": "high" }),
        ] {
            let bounded = server.ask(CHAT, &body(more));
            // The marks are a few tokens of this vocabulary.
            assert!((7..20).contains(&thought(&bounded)), "{bounded}");
            let content = bounded["choices"][0]["message"]["content"]
                .as_str()
                .unwrap();
            assert!(!content.is_empty(), "{bounded}");
            // The reasoning before the limit is the same.
            let of = |answer: &Value| {
                let text = answer["choices"][0]["message"]["reasoning_content"].clone();
                text.as_str().unwrap().to_owned()
            };
            assert!(of(&free).starts_with(&of(&bounded)), "{bounded}");
        }
        let unlimited = server.ask(CHAT, &body(json!({ "reasoning_budget": -1 })));
        assert_eq!(unlimited["choices"], free["choices"]);
        let none = server.ask(CHAT, &body(json!({ "reasoning_effort": "none" })));
        assert!(thought(&none) < 20, "{none}");
        let thinking = json!({ "type": "enabled", "budget_tokens": 7 });
        let answered = server.ask("/v1/messages", &body(json!({ "thinking": thinking })));
        assert_eq!(answered["content"][0]["type"], "thinking", "{answered}");
        assert_eq!(answered["content"][1]["type"], "text", "{answered}");
        let mut response = body(json!({ "reasoning_budget": 7, "input": "Is it so?" }));
        let fields = response.as_object_mut().unwrap();
        fields.remove("messages");
        let tokens = fields.remove("max_tokens").unwrap();
        fields.insert("max_output_tokens".to_owned(), tokens);
        let response = server.ask("/v1/responses", &response);
        assert_eq!(response["output"][0]["type"], "reasoning", "{response}");
        assert_eq!(response["output"][1]["type"], "message", "{response}");
        let wrong = json!({ "thinking": { "type": "enabled", "budget_tokens": "many" } });
        let refused = server.post("/v1/messages", &body(wrong));
        assert_eq!(refused.status, 400);
        assert!(refused.json().to_string().contains("budget_tokens"));
    });
}
