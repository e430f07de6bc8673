//! The API on the real model, over real connections.

mod common;

use common::{Running, start};
use kvark::generate::{OptionKind, SAMPLING_OPTIONS, SamplerOptions};
use serde_json::{Value, json};

fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

/// A greedy chat.
fn chat(server: &Running, messages: &Value, max_tokens: usize) -> Value {
    server.ask(
        "/v1/chat/completions",
        &json!({ "messages": messages, "max_tokens": max_tokens, "temperature": 0 }),
    )
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[test]
fn a_stream_has_the_text_of_the_whole_answer() {
    let Some(server) = start(|_| {}) else { return };
    let messages = user("What is the capital of France?");
    let whole = chat(&server, &messages, 24);
    assert_eq!(whole["object"], "chat.completion");
    assert!(content(&whole).contains("Paris"), "{whole}");
    assert_eq!(
        whole["usage"]["completion_tokens"],
        whole["timings"]["predicted_n"]
    );
    let reply = server.post(
        "/v1/chat/completions",
        &json!({
            "messages": messages, "max_tokens": 24, "temperature": 0, "stream": true,
            "stream_options": { "include_usage": true }, "logprobs": true, "top_logprobs": 2,
        }),
    );
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let events = reply.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, content(&whole));
    let probabilities = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    for entry in probabilities.flatten() {
        // Greedy: the token is the most likely one.
        assert_eq!(entry["token"], entry["top_logprobs"][0]["token"]);
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
    }
    let usage = chunks.last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    // All but the last token of the prompt were there.
    let prompt = usage["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(
        usage["usage"]["prompt_tokens_details"]["cached_tokens"],
        prompt - 1
    );
}

#[test]
fn twenty_turns_compute_only_their_new_tokens() {
    let Some(server) = start(|_| {}) else { return };
    let system = "You are a careful assistant. ".repeat(20);
    let mut messages = vec![json!({ "role": "system", "content": system })];
    let mut before = 0;
    for turn in 0..20 {
        messages.push(json!({ "role": "user", "content": format!("Count to {turn}.") }));
        let answer = chat(&server, &json!(messages), 8);
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap();
        let prompt = usage["prompt_tokens"].as_u64().unwrap();
        // The cache holds the last prompt and the answer but for its last token.
        assert!(
            cached >= before,
            "turn {turn}: {cached} of {prompt}, {before} were held"
        );
        before = prompt;
        let text = content(&answer).to_owned();
        messages.push(json!({ "role": "assistant", "content": text }));
    }
    assert!(before > 400);
}

#[test]
fn conversations_keep_exact_tokens_and_fork() {
    let Some(server) = start(|_| {}) else { return };
    let base = "/v1/kvark/conversations";
    let system = json!([{ "role": "system", "content": "You answer in one short sentence." }]);
    let trunk = server.ask(base, &json!({ "messages": system }));
    let id = trunk["id"].as_str().unwrap();
    assert_eq!(
        (&trunk["parent"], &trunk["turns"][0]["role"]),
        (&Value::Null, &json!("system"))
    );
    let say = |id: &str, text: &str, n: usize| {
        let body = json!({
            "conversation": id, "messages": user(text), "max_tokens": n, "temperature": 0,
        });
        server.ask("/v1/chat/completions", &body)
    };
    say(id, "Name a river.", 6);
    let held = server.get(&format!("{base}/{id}")).json();
    let tokens = held["tokens"].as_u64().unwrap();
    assert_eq!(held["turns"].as_array().unwrap().len(), 3);
    // A fork continues with exactly the same tokens, although the answer was cut in the middle.
    let fork = server.ask(&format!("{base}/{id}/fork"), &json!({}));
    assert_eq!(
        (&fork["parent"], &fork["tokens"]),
        (&json!(id), &json!(tokens))
    );
    let forked = fork["id"].as_str().unwrap();
    let next = say(forked, "Another one?", 6);
    let cached = &next["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(
        cached.as_u64().unwrap(),
        tokens - 1,
        "all but the sampled token"
    );
    assert_eq!(next["kvark"]["conversation"], forked);
    // The parent is as it was, and a fork at a turn or a token is shorter.
    assert_eq!(server.get(&format!("{base}/{id}")).json()["tokens"], tokens);
    let at_turn = server.ask(
        &format!("{base}/{id}/fork"),
        &json!({ "at": { "turn": 1 } }),
    );
    assert_eq!(at_turn["turns"].as_array().unwrap().len(), 1);
    assert_eq!(at_turn["tokens"], trunk["tokens"]);
    let at_token = server.ask(
        &format!("{base}/{id}/fork"),
        &json!({ "at": { "token": 10 } }),
    );
    assert_eq!(
        (&at_token["tokens"], &at_token["at"]),
        (&json!(10), &json!(10))
    );
    let back = server.ask(&format!("{base}/{forked}/rewind"), &json!({ "at": 3 }));
    assert_eq!(back["tokens"], tokens);
    // The same question gives the same answer again: nothing is left of the first one.
    let again = say(forked, "Another one?", 6);
    assert_eq!(content(&again), content(&next));
    let children = server.get(&format!("{base}/{id}")).json()["children"].clone();
    assert_eq!(children.as_array().unwrap().len(), 3);
    let kept = server.ask(&format!("{base}/{forked}/keep"), &json!({}));
    assert_eq!(kept["parent"], Value::Null);
    assert_eq!(server.get(&format!("{base}/{id}")).status, 404);
    let all = server.get(base).json();
    assert_eq!(all["data"].as_array().unwrap().len(), 1);
    for (at, message) in [
        (json!({ "turn": 9 }), "there are 5 turns"),
        (json!({ "token": 1_000_000 }), "tokens"),
        (json!("x"), "must be"),
    ] {
        let reply = server.post(&format!("{base}/{forked}/fork"), &json!({ "at": at }));
        assert_eq!(reply.status, 400);
        assert!(
            reply.json()["error"]["message"]
                .as_str()
                .unwrap()
                .contains(message)
        );
    }
    let deleted = server.send("DELETE", &format!("{base}/{forked}"), "", b"");
    assert_eq!(deleted.json()["deleted"], true);
    assert_eq!(server.get(&format!("{base}/{forked}")).status, 404);
}

#[test]
fn output_follows_schema_regex_and_grammar() {
    let Some(server) = start(|_| {}) else { return };
    let ask = |format: Value| {
        let mut body =
            json!({ "messages": user("A person, please."), "max_tokens": 80, "seed": 1 });
        for (name, value) in format.as_object().unwrap() {
            body[name] = value.clone();
        }
        server.ask("/v1/chat/completions", &body)
    };
    let schema = json!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 12 }, "age": { "type": "integer", "minimum": 0, "maximum": 130 } },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": schema } });
    let answer = ask(json!({ "response_format": format }));
    let person: Value = serde_json::from_str(content(&answer)).unwrap();
    assert!(
        person["name"].is_string() && person["age"].is_u64(),
        "{person}"
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let answer = ask(json!({ "regex": "[A-Z][a-z]{2,6}, [1-9][0-9]" }));
    let (name, age) = content(&answer).split_once(", ").unwrap();
    assert!(name.len() <= 7 && age.parse::<u8>().unwrap() >= 10);
    let gbnf = "root ::= (\"yes\" | \"no\") \"!\"{2}";
    let answer = ask(json!({ "grammar": gbnf }));
    assert!(["yes!!", "no!!"].contains(&content(&answer)));
    let bad = json!({ "messages": user("x"), "grammar": "root ::= missing" });
    let reply = server.post("/v1/chat/completions", &bad);
    assert_eq!(reply.status, 400);
    assert!(
        reply.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("\"missing\" is not defined")
    );
}

/// The arguments of a call come as they are generated, in every API, and are those of the whole answer.
#[test]
fn the_arguments_of_a_call_are_streamed() {
    let Some(server) = start(|_| {}) else { return };
    let parameters = json!({ "type": "object", "required": ["city", "days"], "properties": {
        "city": { "type": "string", "minLength": 3, "maxLength": 20 }, "days": { "type": "integer" },
    }});
    let function = json!({ "name": "weather", "parameters": parameters });
    let body = json!({
        "messages": user("What is the weather in Paris?"), "tools": [{ "type": "function", "function": function }],
        "tool_choice": "required", "max_tokens": 100, "temperature": 0,
    });
    let whole = server.ask("/v1/chat/completions", &body);
    let call = &whole["choices"][0]["message"]["tool_calls"][0];
    let arguments = call["function"]["arguments"].as_str().unwrap();
    let events = |path: &str, body: &Value| -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let events = server.post(path, &body).events();
        let events = events.iter().map(|event| serde_json::from_str(event).ok());
        events.flatten().collect()
    };
    let chunks = events("/v1/chat/completions", &body);
    let deltas = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0]);
    let deltas: Vec<&Value> = deltas.filter(|delta| !delta.is_null()).collect();
    let pieces = deltas.iter().map(|delta| &delta["function"]["arguments"]);
    let pieces: Vec<&str> = pieces.map(|piece| piece.as_str().unwrap()).collect();
    assert_eq!(pieces.concat(), arguments);
    assert!(pieces.len() > 4, "{pieces:?}");
    assert_eq!(deltas[0]["function"]["name"], "weather");
    assert_eq!(deltas[0]["type"], "function");
    assert!(deltas[0]["id"].is_string());
    assert!(deltas.iter().all(|delta| delta["index"] == 0));
    assert!(deltas[1..].iter().all(|delta| delta.get("id").is_none()));
    let reason = |chunk: &&Value| !chunk["choices"][0]["finish_reason"].is_null();
    let last = chunks.iter().find(reason).unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");

    let anthropic = json!({
        "messages": user("What is the weather in Paris?"), "max_tokens": 100, "temperature": 0,
        "tools": [{ "name": "weather", "input_schema": parameters }], "tool_choice": { "type": "any" },
    });
    let found = events("/v1/messages", &anthropic);
    let of = |kind: &str, name: &str| -> Vec<String> {
        let deltas = found.iter().filter(|event| event["delta"]["type"] == kind);
        let texts = deltas.filter_map(|event| event["delta"][name].as_str());
        texts.map(str::to_owned).collect()
    };
    let pieces = of("input_json_delta", "partial_json");
    assert!(pieces.len() > 4, "{pieces:?}");
    let message = server.ask("/v1/messages", &anthropic);
    let input: Value = serde_json::from_str(&pieces.concat()).unwrap();
    assert_eq!(message["content"][0]["input"], input);
    let kinds: Vec<&str> = found
        .iter()
        .filter_map(|event| event["type"].as_str())
        .collect();
    let count = |kind: &str| kinds.iter().filter(|other| **other == kind).count();
    assert_eq!(
        (count("content_block_start"), count("content_block_stop")),
        (1, 1)
    );

    let response = json!({
        "input": "What is the weather in Paris?", "max_output_tokens": 100, "temperature": 0,
        "tools": body["tools"], "tool_choice": "required",
    });
    let found = events("/v1/responses", &response);
    let of = |kind: &'static str| found.iter().filter(move |event| event["type"] == kind);
    let pieces = of("response.function_call_arguments.delta");
    let pieces: Vec<&str> = pieces.filter_map(|event| event["delta"].as_str()).collect();
    assert!(pieces.len() > 4, "{pieces:?}");
    let done = of("response.function_call_arguments.done").next().unwrap();
    assert_eq!(done["arguments"], pieces.concat());
    let added = of("response.output_item.added").next().unwrap();
    assert_eq!(added["item"]["status"], "in_progress");
    let whole = of("response.completed").next().unwrap();
    assert_eq!(whole["response"]["output"][0]["arguments"], pieces.concat());
    assert_eq!(whole["response"]["output"][0]["id"], added["item"]["id"]);
}

#[test]
fn a_required_tool_is_called_with_arguments_of_its_schema() {
    let Some(server) = start(|_| {}) else { return };
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string", "maxLength": 20 } }, "required": ["city"] });
    let tools = json!([{ "type": "function", "function": { "name": "weather", "description": "The weather", "parameters": parameters } }]);
    let body = json!({
        "messages": user("What is the weather in Paris?"), "tools": tools, "tool_choice": "required",
        "temperature": 0, "max_tokens": 80,
    });
    let answer = server.ask("/v1/chat/completions", &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather");
    let arguments = call["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert!(arguments["city"].is_string());
    // The result goes back, as text for a template without tools.
    let messages = json!([
        { "role": "user", "content": "What is the weather in Paris?" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": call["id"], "content": "sunny" },
    ]);
    let next = server.post(
        "/v1/chat/completions",
        &json!({ "messages": messages, "tools": tools, "max_tokens": 8 }),
    );
    assert_eq!(next.status, 200);
    let anthropic = json!({
        "messages": user("What is the weather in Paris?"), "max_tokens": 80, "temperature": 0,
        "tools": [{ "name": "weather", "description": "The weather", "input_schema": parameters }],
        "tool_choice": { "type": "tool", "name": "weather" },
    });
    let message = server.ask("/v1/messages", &anthropic);
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["content"][0]["type"], "tool_use");
}

#[test]
fn other_interfaces_give_the_same_answer() {
    let Some(server) = start(|_| {}) else { return };
    let question = "What is the capital of France?";
    let whole = chat(&server, &user(question), 12);
    let text = content(&whole);
    let message = server.ask(
        "/v1/messages",
        &json!({ "messages": user(question), "max_tokens": 12, "temperature": 0 }),
    );
    assert_eq!(message["content"][0]["text"], text);
    let counted = server.ask(
        "/v1/messages/count_tokens",
        &json!({ "messages": user(question) }),
    );
    let usage = &message["usage"];
    let prompt = ["input_tokens", "cache_read_input_tokens"].map(|name| usage[name].as_u64());
    assert_eq!(
        counted["input_tokens"].as_u64(),
        Some(prompt[0].unwrap() + prompt[1].unwrap())
    );
    let response = server.ask(
        "/v1/responses",
        &json!({ "input": question, "max_output_tokens": 12, "temperature": 0 }),
    );
    assert_eq!(response["output"][0]["content"][0]["text"], text);
    let prompt = server.ask("/apply-template", &json!({ "messages": user(question) }));
    let completion = server.ask(
        "/v1/completions",
        &json!({ "prompt": prompt["prompt"], "max_tokens": 12, "temperature": 0, "logprobs": 1 }),
    );
    assert_eq!(completion["choices"][0]["text"], text);
    let tokens = completion["choices"][0]["logprobs"]["tokens"]
        .as_array()
        .unwrap();
    assert_eq!(
        json!(tokens.len()),
        completion["usage"]["completion_tokens"]
    );
    let ids = server.ask("/tokenize", &json!({ "content": "Hello world" }));
    let back = server.ask("/detokenize", &json!({ "tokens": ids["tokens"] }));
    assert_eq!(back["content"], "Hello world");
    for (path, name) in [
        ("/v1/messages", "message_stop"),
        ("/v1/responses", "response.completed"),
    ] {
        let mut body = json!({ "temperature": 0, "stream": true });
        match path {
            "/v1/messages" => {
                body["messages"] = user(question);
                body["max_tokens"] = 12.into();
            }
            _ => {
                body["input"] = question.into();
                body["max_output_tokens"] = 12.into();
            }
        }
        let reply = server.post(path, &body);
        let last: Value = serde_json::from_str(reply.events().last().unwrap()).unwrap();
        assert_eq!(last["type"], name);
        let deltas: String = reply
            .events()
            .iter()
            .map(|event| serde_json::from_str::<Value>(event).unwrap())
            .filter_map(|event| match &event["delta"] {
                Value::String(text) => Some(text.clone()),
                delta => delta["text"].as_str().map(str::to_owned),
            })
            .collect();
        assert_eq!(deltas, text, "{path}");
    }
}

#[test]
fn choices_differ_by_seed_and_share_the_prompt() {
    let Some(server) = start(|_| {}) else { return };
    let body = json!({ "messages": user("Invent a name."), "n": 4, "seed": 7, "max_tokens": 10, "temperature": 1.5 });
    let answer = server.ask("/v1/chat/completions", &body);
    let choices = answer["choices"].as_array().unwrap();
    let texts: std::collections::BTreeSet<&str> = choices
        .iter()
        .map(|choice| choice["message"]["content"].as_str().unwrap())
        .collect();
    assert!(texts.len() > 1, "{texts:?}");
    let again = server.ask("/v1/chat/completions", &body);
    assert_eq!(
        again["choices"], answer["choices"],
        "a seed repeats the answer"
    );
    let alone = json!({ "messages": user("Invent a name."), "seed": 9, "max_tokens": 10, "temperature": 1.5 });
    let alone = server.ask("/v1/chat/completions", &alone);
    assert_eq!(
        content(&alone),
        choices[2]["message"]["content"],
        "choice 2 has seed 7 + 2"
    );
}

#[test]
fn wrong_parameters_are_named() {
    let Some(server) = start(|_| {}) else { return };
    let path = "/v1/chat/completions";
    for (extra, param, code) in [
        (
            json!({ "temperature": "hot" }),
            "temperature",
            "invalid_value",
        ),
        (json!({ "temperature": -1 }), "temperature", "invalid_value"),
        (json!({ "top_p": 2 }), "top_p", "invalid_value"),
        (json!({ "n": 0 }), "n", "invalid_value"),
        (json!({ "n": 1.5 }), "n", "invalid_value"),
        (json!({ "stream": "yes" }), "stream", "invalid_value"),
        (json!({ "stop": [1] }), "stop", "invalid_value"),
        (json!({ "timeout": 0 }), "timeout", "invalid_value"),
        (json!({ "tools": {} }), "tools", "invalid_value"),
        (
            json!({ "messages": null }),
            "messages",
            "missing_required_parameter",
        ),
        (json!({ "max_tokens": 0 }), "max_tokens", "invalid_value"),
        (json!({ "audio": {} }), "audio", "unsupported_parameter"),
        (
            json!({ "temprature": 1 }),
            "temprature",
            "unknown_parameter",
        ),
        (
            json!({ "messages": [{ "role": "king", "content": "x" }] }),
            "messages",
            "invalid_value",
        ),
        (json!({ "messages": [] }), "messages", "invalid_value"),
        (
            json!({ "top_logprobs": 2 }),
            "top_logprobs",
            "invalid_value",
        ),
        (
            json!({ "tool_choice": "required" }),
            "tool_choice",
            "invalid_value",
        ),
        (
            json!({ "logit_bias": { "x": 1 } }),
            "logit_bias",
            "invalid_value",
        ),
        (
            json!({ "response_format": { "type": "xml" } }),
            "response_format",
            "invalid_value",
        ),
    ] {
        let mut body = json!({ "messages": user("Hi"), "max_tokens": 2 });
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        let reply = server.post(path, &body);
        let error = &reply.json()["error"];
        assert!(reply.status == 400 || reply.status == 404, "{extra}");
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(param), &json!(code)),
            "{extra}"
        );
    }
    // What cannot change the output is accepted.
    let body = json!({ "messages": user("Hi"), "max_tokens": 2, "user": "me", "store": false, "metadata": {}, "service_tier": "auto", "temperature": null });
    server.ask(path, &body);
    let long = "word ".repeat(4000);
    let reply = server.post(path, &json!({ "messages": user(&long) }));
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
}

/// Every endpoint that generates takes every sampling option with its default, and names one that is wrong.
#[test]
fn every_endpoint_takes_every_sampling_option() {
    let Some(server) = start(|_| {}) else { return };
    let endpoints = [
        (
            "/v1/chat/completions",
            json!({ "messages": user("Hi"), "max_tokens": 2 }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": "Hi", "max_tokens": 2 }),
        ),
        (
            "/v1/responses",
            json!({ "input": "Hi", "max_output_tokens": 2 }),
        ),
        (
            "/v1/messages",
            json!({ "messages": user("Hi"), "max_tokens": 2 }),
        ),
    ];
    for (path, body) in &endpoints {
        let mut all = body.clone();
        for option in SAMPLING_OPTIONS {
            let text = option.text(&SamplerOptions::default());
            all[option.name] = match &option.kind {
                OptionKind::Samplers(_) => json!(text.split(';').collect::<Vec<_>>()),
                OptionKind::Texts(_) => json!(["\n", ":"]),
                OptionKind::Biases(_) => json!({ "5": -100, "6": 1.5, "7": "-inf" }),
                _ => serde_json::from_str(&text).unwrap(),
            };
            let mut wrong = body.clone();
            wrong[option.name] = json!({ "x": [] });
            let reply = server.post(path, &wrong);
            assert_eq!(reply.status, 400, "{path} {}", option.name);
            let message = reply.json()["error"]["message"].to_string();
            let says = format!("{}: must be {}", option.name, option.range());
            assert!(message.contains(&says), "{message}");
        }
        all["dry_multiplier"] = 0.8.into();
        server.ask(path, &all);
    }
    // The same seed draws the same text through each of them, from the same defaults.
    let mut texts = vec![];
    for (path, body) in &endpoints {
        if *path == "/v1/completions" {
            continue;
        }
        let mut body = body.clone();
        body["seed"] = 11.into();
        let limit = match body.get("max_tokens") {
            Some(_) => "max_tokens",
            None => "max_output_tokens",
        };
        body[limit] = 12.into();
        let answer = server.ask(path, &body);
        let places = [
            "/choices/0/message/content",
            "/output/0/content/0/text",
            "/content/0/text",
        ];
        let text = places.iter().find_map(|place| answer.pointer(place));
        texts.push(text.unwrap().clone());
    }
    assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "{texts:?}");
}

#[test]
fn n_probs_asks_for_log_probabilities() {
    let Some(server) = start(|_| {}) else { return };
    let body = json!({ "prompt": "One, two,", "max_tokens": 3, "temperature": 0 });
    let with = |name: &str, n: usize| {
        let mut body = body.clone();
        body[name] = n.into();
        server.ask("/v1/completions", &body)["choices"][0].clone()
    };
    assert_eq!(with("n_probs", 2), with("logprobs", 2));
    assert_eq!(with("n_probs", 0)["logprobs"], Value::Null);
    let body = json!({ "messages": user("Hi"), "max_tokens": 2, "n_probs": 3 });
    let answer = server.ask("/v1/chat/completions", &body);
    let list = &answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"];
    assert_eq!(list.as_array().unwrap().len(), 3);
}

#[test]
fn a_lenient_server_ignores_unknown_parameters_with_a_warning() {
    let Some(server) = start(|options| options.lenient = true) else {
        return;
    };
    let body = json!({ "messages": user("Hi"), "max_tokens": 2, "temprature": 1 });
    let answer = server.ask("/v1/chat/completions", &body);
    let warning = answer["kvark"]["warnings"][0].as_str().unwrap();
    assert!(warning.contains("temprature"));
}

#[test]
fn conversations_survive_a_restart_with_their_tree() {
    let folder = std::env::temp_dir().join(format!("kvark-restart-{}", std::process::id()));
    _ = std::fs::remove_dir_all(&folder);
    let disk = || Some(folder.clone());
    let Some(server) = start(|options| options.conversations = disk()) else {
        return;
    };
    let base = "/v1/kvark/conversations";
    let say = |server: &Running, id: &str, text: &str| {
        let body = json!({
            "conversation": id, "messages": user(text), "max_tokens": 12, "temperature": 0,
        });
        server.ask("/v1/chat/completions", &body)
    };
    let system = json!({ "messages": [{ "role": "system", "content": "Be short." }] });
    let root = server.ask(base, &system)["id"].as_str().unwrap().to_owned();
    say(&server, &root, "Name a river.");
    let forked = server.ask(
        &format!("{base}/{root}/fork"),
        &json!({ "at": { "turn": 1 } }),
    );
    let fork = forked["id"].as_str().unwrap().to_owned();
    say(&server, &fork, "Name a lake.");
    let gone = server.ask(base, &json!({}))["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let deleted = server.send("DELETE", &format!("{base}/{gone}"), "", b"");
    assert_eq!(deleted.status, 200);
    let get = |server: &Running, path: &str| server.send("GET", path, "", b"").json();
    let before = get(&server, base);
    assert_eq!(before["data"].as_array().unwrap().len(), 2);
    drop(server);

    let server = start(|options| options.conversations = disk()).unwrap();
    let rested = common::without_rungs(get(&server, base));
    assert_eq!(rested, common::without_rungs(before));
    let restored = get(&server, &format!("{base}/{fork}"));
    assert_eq!(restored["parent"], root.as_str());
    // The exact tokens are continued, and new numbers do not collide with old ones.
    let tokens = restored["tokens"].as_u64().unwrap();
    let answer = say(&server, &fork, "And its depth?");
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt > tokens, "{answer}");
    let new = server.ask(base, &json!({}))["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(new != root && new != fork);
    drop(server);

    // Without the folder there is nothing, and another model's conversations are not shown.
    let server = start(|options| {
        options.conversations = disk();
        options.models[0].0 = "other".to_owned();
    });
    assert_eq!(get(&server.unwrap(), base)["data"], json!([]));
    let server = start(|_| {}).unwrap();
    assert_eq!(get(&server, base)["data"], json!([]));
    _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn rounds_of_speculation_are_streamed_if_they_are_asked_for() {
    let Some(server) = start(|_| {}) else { return };
    let ask = |more: Value| {
        let mut body = json!({
            "messages": user("Repeat this list twice: apple, pear, plum, cherry, quince."),
            "max_tokens": 40, "temperature": 0, "stream": true,
        });
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let reply = server.post("/v1/chat/completions", &body);
        let events = reply.events();
        let chunks = events[..events.len() - 1].iter();
        chunks
            .map(|event| serde_json::from_str(event).unwrap())
            .collect::<Vec<Value>>()
    };
    let text = |chunks: &[Value]| -> String {
        let parts = chunks.iter();
        parts
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
            .collect()
    };
    let rounds = |chunks: &[Value]| -> Vec<Value> {
        let rounds = chunks.iter().map(|chunk| chunk["kvark"]["round"].clone());
        rounds.filter(Value::is_object).collect()
    };
    let plain = ask(json!({}));
    let quiet = ask(json!({ "spec_type": "ngram" }));
    let traced = ask(json!({ "spec_type": "ngram", "spec_trace": true }));
    assert_eq!(text(&quiet), text(&plain));
    assert_eq!(text(&traced), text(&plain));
    assert!(rounds(&quiet).is_empty());
    let rounds = rounds(&traced);
    let last = traced.last().unwrap();
    assert_eq!(last["timings"]["spec"]["rounds"], rounds.len());
    let mut accepted = 0;
    for round in &rounds {
        let nodes = round["tokens"].as_array().unwrap().len();
        assert_eq!(round["parents"].as_array().unwrap().len(), nodes);
        assert_eq!(round["probabilities"].as_array().unwrap().len(), nodes);
        accepted += round["accepted"].as_array().unwrap().len() - 1;
    }
    assert_eq!(last["timings"]["spec"]["accepted"], accepted);
}

/// The beginning of chats with the system message of the options is computed once, when the model is loaded.
#[test]
fn chats_share_the_system_message_of_the_options() {
    let system = "You are a patient teacher of geography. ".repeat(20);
    let prefix = system.clone();
    let Some(server) = common::start(move |options| options.prefix = Some(prefix)) else {
        return;
    };
    let cached = |system: &str, text: &str| {
        let chat = json!({
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
            "max_tokens": 2,
        });
        let answer = server.post("/v1/chat/completions", &chat).json();
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        (usage["prompt_tokens"].as_u64().unwrap(), cached.unwrap())
    };
    for text in [
        "Where is Oslo?",
        "What is a fjord, and how does one come to be?",
    ] {
        let (tokens, cached) = cached(&system, text);
        assert!(cached > 100 && tokens - cached < 32, "{cached} of {tokens}");
    }
    let (tokens, cached) = cached("Be brief.", "Where is Oslo?");
    assert!(cached < 10, "{cached} of {tokens}");
}
