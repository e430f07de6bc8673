//! Stored responses, answers that the request has begun, and predictions.

mod common;

use common::{Running, start};
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";

fn respond(server: &Running, input: &str, more: Value) -> Value {
    let mut body = json!({ "input": input, "max_output_tokens": 12, "temperature": 0 });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    server.ask(PATH, &body)
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"]
        .as_str()
        .unwrap()
}

fn id(response: &Value) -> &str {
    response["id"].as_str().unwrap()
}

#[test]
fn a_response_goes_on_from_a_stored_one_without_computing_it_again() {
    let Some(server) = start(|_| {}) else { return };
    let first = respond(
        &server,
        "My name is Ada. Say hello.",
        json!({ "instructions": "Be short." }),
    );
    assert_eq!(first["store"], true);
    let stored = server.get(&format!("{PATH}/{}", id(&first))).json();
    assert_eq!(
        (text(&stored), &stored["status"]),
        (text(&first), &first["status"])
    );
    let more = json!({ "previous_response_id": id(&first), "instructions": "Be short." });
    let second = respond(&server, "What is my name?", more.clone());
    assert_eq!(second["previous_response_id"], first["id"]);
    let usage = |response: &Value, name: &str| response["usage"][name].as_u64().unwrap();
    let held = usage(&first, "total_tokens") - 1;
    let cached = second["usage"]["input_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    assert!(cached >= held, "{cached} of {held}");
    // The same as with all messages in one request.
    let messages = json!([
        { "role": "system", "content": "Be short." },
        { "role": "user", "content": "My name is Ada. Say hello." },
        { "role": "assistant", "content": text(&first) },
        { "role": "user", "content": "What is my name?" },
    ]);
    let plain = json!({ "messages": messages, "max_tokens": 12, "temperature": 0 });
    let plain = server.ask("/v1/chat/completions", &plain);
    assert_eq!(plain["choices"][0]["message"]["content"], text(&second));
    // A stored response can be gone on from several times, also as a stream.
    let mut body = json!({ "input": "What is my name?", "max_output_tokens": 12, "temperature": 0, "stream": true });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    let events = server.post(PATH, &body).events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(text(&last["response"]), text(&second));
    let again = server
        .get(&format!("{PATH}/{}", id(&last["response"])))
        .json();
    assert_eq!(text(&again), text(&second));
    // Other instructions: the messages stay, the system message does not.
    let other = respond(
        &server,
        "What is my name?",
        json!({ "previous_response_id": id(&first) }),
    );
    let expected = server.ask(
        "/v1/chat/completions",
        &json!({ "messages": &messages.as_array().unwrap()[1..], "max_tokens": 12, "temperature": 0 }),
    );
    assert_eq!(expected["choices"][0]["message"]["content"], text(&other));
    // All items before the output.
    let items = server
        .get(&format!("{PATH}/{}/input_items?order=asc", id(&second)))
        .json();
    let kinds: Vec<(&str, &str)> = items["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            (
                item["type"].as_str().unwrap(),
                item["role"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        kinds,
        [
            ("message", "user"),
            ("message", "assistant"),
            ("message", "user")
        ]
    );
    let page = server
        .get(&format!("{PATH}/{}/input_items?limit=2", id(&second)))
        .json();
    assert_eq!(
        (page["data"].as_array().unwrap().len(), &page["has_more"]),
        (2, &json!(true))
    );
    let after = page["last_id"].as_str().unwrap();
    let rest = server
        .get(&format!(
            "{PATH}/{}/input_items?limit=2&after={after}",
            id(&second)
        ))
        .json();
    assert_eq!(
        (rest["data"].as_array().unwrap().len(), &rest["has_more"]),
        (1, &json!(false))
    );
    // A count has what the answer was charged.
    let mut count = more;
    count["input"] = "What is my name?".into();
    let counted = server.ask(&format!("{PATH}/input_tokens"), &count);
    assert_eq!(
        counted["input_tokens"].as_u64(),
        Some(usage(&second, "input_tokens"))
    );
    // Without the response before it, its own items are left.
    server.send("DELETE", &format!("{PATH}/{}", id(&first)), "", b"");
    let own = server
        .get(&format!("{PATH}/{}/input_items", id(&second)))
        .json();
    assert_eq!(own["data"].as_array().unwrap().len(), 1);
    assert_eq!(
        text(&server.get(&format!("{PATH}/{}", id(&second))).json()),
        text(&second)
    );
    // The list of conversations does not show them.
    assert_eq!(
        server.get("/v1/kvark/conversations").json()["data"],
        json!([])
    );
}

#[test]
fn responses_are_deleted_or_not_stored() {
    let Some(server) = start(|options| options.api_keys = vec!["a".into(), "b".into()]) else {
        return;
    };
    let send = |method: &str, path: &str, key: &str, body: Value| {
        let key = format!("authorization: Bearer {key}\r\n");
        let body = if body.is_null() {
            vec![]
        } else {
            body.to_string().into_bytes()
        };
        server.send(method, path, &key, &body)
    };
    let ask = |more: Value| {
        let mut body = json!({ "input": "Hi", "max_output_tokens": 2 });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        send("POST", PATH, "a", body)
    };
    let first = ask(json!({})).json();
    let path = format!("{PATH}/{}", id(&first));
    assert_eq!(send("GET", &path, "a", Value::Null).status, 200);
    assert_eq!(
        send("GET", &path, "b", Value::Null).status,
        404,
        "it is another key's"
    );
    let next = ask(json!({ "previous_response_id": id(&first), "store": false })).json();
    let unstored = format!("{PATH}/{}", id(&next));
    assert_eq!(send("GET", &unstored, "a", Value::Null).status, 404);
    let plain = ask(json!({ "store": false })).json();
    assert_eq!(
        send("GET", &format!("{PATH}/{}", id(&plain)), "a", Value::Null).status,
        404
    );
    let deleted = send("DELETE", &path, "a", Value::Null).json();
    assert_eq!(
        deleted,
        json!({ "id": id(&first), "object": "response", "deleted": true })
    );
    assert_eq!(send("GET", &path, "a", Value::Null).status, 404);
    let gone = ask(json!({ "previous_response_id": id(&first) }));
    assert_eq!(
        (gone.status, &gone.json()["error"]["param"]),
        (404, &json!("previous_response_id"))
    );
    for (more, param) in [
        (json!({ "background": true }), "background"),
        (json!({ "truncation": "auto" }), "truncation"),
        (
            json!({ "input": [{ "type": "item_reference", "id": "x" }] }),
            "input",
        ),
        (json!({ "tools": [{ "type": "file_search" }] }), "tools"),
    ] {
        let reply = ask(more.clone());
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(param)),
            "{more}"
        );
    }
    // Refused requests have left nothing.
    let conversation = |response: &Value| id(response).replacen("resp_", "conv-", 1);
    for response in [&next, &plain] {
        let path = format!("/v1/kvark/conversations/{}", conversation(response));
        assert_eq!(send("GET", &path, "a", Value::Null).status, 404);
    }
}

#[test]
fn an_answer_goes_on_from_its_beginning() {
    let Some(server) = start(|_| {}) else { return };
    let question = json!({ "role": "user", "content": "What is the capital of France?" });
    let begun = "The city of";
    let messages = json!([question, { "role": "assistant", "content": begun }]);
    let chat = json!({ "messages": messages, "max_tokens": 8, "temperature": 0 });
    let answer = server.ask("/v1/chat/completions", &chat);
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let template = server.ask("/apply-template", &json!({ "messages": [question] }));
    let prompt = format!("{}{begun}", template["prompt"].as_str().unwrap());
    let completion = json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0 });
    let completion = server.ask("/v1/completions", &completion);
    assert_eq!(completion["choices"][0]["text"], content);
    let message = json!({ "messages": messages, "max_tokens": 8, "temperature": 0 });
    let message = server.ask("/v1/messages", &message);
    assert_eq!(message["content"][0]["text"], content);
    let count = server.ask(
        "/v1/messages/count_tokens",
        &json!({ "messages": messages }),
    );
    assert_eq!(count["input_tokens"], answer["usage"]["prompt_tokens"]);
    let twice = json!([question, { "role": "assistant", "content": "A" }, { "role": "assistant", "content": "B" }]);
    let twice = server.post("/v1/chat/completions", &json!({ "messages": twice }));
    assert_eq!(twice.json()["error"]["param"], "messages");
    let tool = json!([{ "type": "web_search_20250305", "name": "web_search" }]);
    let refused = json!({ "messages": [question], "max_tokens": 8, "tools": tool });
    let refused = server.post("/v1/messages", &refused);
    let error = refused.json();
    assert_eq!((refused.status, &error["type"]), (400, &json!("error")));
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("web_search")
    );
}

#[test]
fn a_prediction_changes_no_token() {
    let Some(server) = start(|_| {}) else { return };
    let body = json!({
        "messages": [{ "role": "user", "content": "Count from one to twelve in words." }],
        "max_tokens": 40, "temperature": 0,
    });
    let plain = server.ask("/v1/chat/completions", &body);
    let content = &plain["choices"][0]["message"]["content"];
    let mut predicted = body.clone();
    predicted["prediction"] = json!({ "type": "content", "content": content });
    let answer = server.ask("/v1/chat/completions", &predicted);
    assert_eq!(&answer["choices"][0]["message"]["content"], content);
    let accepted = answer["timings"]["draft_n_accepted"].as_u64().unwrap();
    assert!(accepted > 20, "{}", answer["timings"]);
    predicted["prediction"] =
        json!({ "type": "content", "content": [{ "type": "text", "text": "Something else." }] });
    let other = server.ask("/v1/chat/completions", &predicted);
    assert_eq!(&other["choices"][0]["message"]["content"], content);
    predicted["prediction"] = json!({ "type": "draft" });
    let wrong = server.post("/v1/chat/completions", &predicted);
    assert_eq!(wrong.json()["error"]["param"], "prediction");
}
