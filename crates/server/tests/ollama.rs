//! Ollama's API: its clients get what kvark's own API gives, in Ollama's shapes.

mod common;

use common::{Reply, Running, model, start};
use kvark::catalogue::{ModelStore, default_entry};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

/// A greedy chat of a few tokens, whole.
fn chat() -> Value {
    json!({
        "model": "smol",
        "messages": user("What is the capital of France?"),
        "stream": false,
        "options": { "temperature": 0, "num_predict": 12 },
    })
}

fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}

/// The objects of a stream.
fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.json());
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    let text = String::from_utf8(reply.body.clone()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Posts, and expects an error in Ollama's shape.
fn refused(server: &Running, path: &str, body: &Value, status: u16) -> String {
    let reply = server.post(path, body);
    let answer = reply.json();
    assert_eq!(reply.status, status, "{answer}");
    let error = answer["error"].as_str();
    error.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Waits until a condition on the list of loaded models holds.
fn wait_for_loaded(server: &Running, condition: impl Fn(&[Value]) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let loaded = server.get("/api/ps").json();
        if condition(loaded["models"].as_array().unwrap()) {
            return;
        }
        assert!(Instant::now() < end, "{loaded}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_chat_is_the_one_of_openais_api() {
    let Some(server) = start(|_| {}) else { return };
    let own = json!({
        "messages": user("What is the capital of France?"), "temperature": 0, "max_tokens": 12,
    });
    let own = server.ask("/v1/chat/completions", &own);
    let answer = server.ask(CHAT, &chat());
    assert_eq!(answer["message"]["role"], "assistant");
    assert_eq!(
        answer["message"]["content"],
        own["choices"][0]["message"]["content"]
    );
    assert_eq!(
        (&answer["model"], &answer["done"]),
        (&json!("smol"), &json!(true))
    );
    assert_eq!(answer["prompt_eval_count"], own["usage"]["prompt_tokens"]);
    assert_eq!(answer["eval_count"], own["usage"]["completion_tokens"]);
    assert_eq!(answer["done_reason"], own["choices"][0]["finish_reason"]);
    let number = |name: &str| answer[name].as_u64().unwrap_or_else(|| panic!("{answer}"));
    assert!(number("total_duration") >= number("eval_duration"));
    assert!(number("prompt_eval_duration") > 0 && answer["load_duration"].is_u64());
    assert!(
        answer["created_at"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .is_ok()
    );
    assert!(answer["kvark"]["cache"]["cached_tokens"].as_u64() > Some(0));
}

#[test]
fn a_stream_is_the_default_and_adds_up_to_the_whole() {
    let Some(server) = start(|_| {}) else { return };
    let whole = server.ask(CHAT, &chat());
    let mut streamed = chat();
    streamed.as_object_mut().unwrap().remove("stream");
    let parts = lines(&server.post(CHAT, &streamed));
    let (last, before) = parts.split_last().unwrap();
    let text: String = before
        .iter()
        .map(|part| part["message"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(text, whole["message"]["content"].as_str().unwrap());
    assert!(
        before.len() > 2 && before.iter().all(|part| part["done"] == false),
        "{parts:?}"
    );
    assert_eq!(
        (&last["done"], &last["message"]["content"]),
        (&json!(true), &json!(""))
    );
    for name in ["done_reason", "eval_count", "prompt_eval_count"] {
        assert_eq!(last[name], whole[name], "{name}");
    }
}

#[test]
fn generate_answers_messages_and_continues_raw_texts() {
    let Some(server) = start(|_| {}) else { return };
    let generate = json!({
        "model": "smol",
        "prompt": "What is the capital of France?",
        "stream": false,
        "options": { "temperature": 0, "num_predict": 12 },
    });
    let answer = server.ask(GENERATE, &generate);
    let chatted = server.ask(CHAT, &chat());
    assert_eq!(answer["response"], chatted["message"]["content"]);
    let context = answer["context"].as_array().unwrap();
    let tokens = |name: &str| answer[name].as_u64().unwrap() as usize;
    assert_eq!(
        context.len(),
        tokens("prompt_eval_count") + tokens("eval_count")
    );

    let mut next = with(generate.clone(), "context", answer["context"].clone());
    next["prompt"] = "And of Italy?".into();
    let followed = server.ask(GENERATE, &next);
    assert!(followed["prompt_eval_count"].as_u64().unwrap() > context.len() as u64);
    // The last token of an answer may not have been computed.
    assert!(followed["prompt_eval_cached_count"].as_u64().unwrap() >= context.len() as u64 - 2);

    let system = with(generate.clone(), "system", "Answer in French.".into());
    let told = server.ask(GENERATE, &system);
    let own = json!({
        "messages": [
            { "role": "system", "content": "Answer in French." },
            { "role": "user", "content": "What is the capital of France?" },
        ],
        "temperature": 0, "max_tokens": 12,
    });
    let own = server.ask("/v1/chat/completions", &own);
    assert_eq!(told["response"], own["choices"][0]["message"]["content"]);

    let raw = with(generate.clone(), "raw", true.into());
    let raw = server.ask(GENERATE, &raw);
    let own =
        json!({ "prompt": "What is the capital of France?", "temperature": 0, "max_tokens": 12 });
    let own = server.ask("/v1/completions", &own);
    assert_eq!(raw["response"], own["choices"][0]["text"]);
    assert!(raw.get("context").is_none());

    for (name, value) in [
        ("suffix", json!("}")),
        ("template", json!("{{ .Prompt }}")),
        ("images", json!(["aGk="])),
    ] {
        let error = refused(&server, GENERATE, &with(generate.clone(), name, value), 400);
        assert!(error.contains(name), "{error}");
    }
    // Clients send empty ones.
    let empty = with(with(generate, "suffix", "".into()), "images", json!([]));
    assert_eq!(server.post(GENERATE, &empty).status, 200);
}

#[test]
fn options_are_obeyed_or_refused_by_name() {
    let Some(server) = start(|_| {}) else { return };
    let with_options = |options: Value| with(chat(), "options", options);
    let options = json!({ "temperature": 1.5, "seed": 7, "num_predict": 16, "top_k": 50, "num_ctx": 1024, "num_gpu": 1, "num_thread": 2 });
    let one = server.ask(CHAT, &with_options(options.clone()));
    let other = server.ask(CHAT, &with_options(options));
    assert_eq!(one["message"], other["message"]);

    let long = json!({ "temperature": 0, "num_predict": 5 });
    let cut = server.ask(CHAT, &with_options(long));
    assert_eq!(
        (&cut["eval_count"], &cut["done_reason"]),
        (&json!(5), &json!("length"))
    );
    let stopped = json!({ "temperature": 0, "num_predict": -1, "stop": ["capital"] });
    let stopped = server.ask(CHAT, &with_options(stopped));
    assert_eq!(stopped["done_reason"], "stop");
    let text = stopped["message"]["content"].as_str().unwrap();
    assert!(!text.contains("capital"), "{text}");

    for (name, value) in [
        ("num_ctx", json!(100_000)),
        ("temperature", json!(-1)),
        ("num_predict", json!("many")),
        ("no_such_option", json!(1)),
        ("penalize_newline", json!(true)),
    ] {
        let error = refused(&server, CHAT, &with_options(json!({ (name): value })), 400);
        assert!(error.contains(name), "{error}");
    }
    let error = refused(&server, CHAT, &with(chat(), "no_such_field", 1.into()), 400);
    assert!(error.contains("no_such_field"), "{error}");
    let pictures = json!([{ "role": "user", "content": "What is it?", "images": ["aGk="] }]);
    let error = refused(&server, CHAT, &with(chat(), "messages", pictures), 400);
    assert!(error.contains("images"), "{error}");
}

#[test]
fn formats_are_followed() {
    let Some(server) = start(|_| {}) else { return };
    let schema = json!({
        "type": "object",
        "properties": { "capital": { "type": "string", "maxLength": 12 } },
        "required": ["capital"],
        "additionalProperties": false,
    });
    let mut asked = with(chat(), "format", schema);
    asked["options"]["num_predict"] = 60.into();
    let answer = server.ask(CHAT, &asked);
    let content = answer["message"]["content"].as_str().unwrap();
    let object: Value = serde_json::from_str(content).unwrap();
    assert!(object["capital"].is_string(), "{content}");
    let any = server.ask(CHAT, &with(chat(), "format", "json".into()));
    let content = any["message"]["content"].as_str().unwrap();
    assert!(content.starts_with('{'), "{content}");
    let error = refused(&server, CHAT, &with(chat(), "format", "xml".into()), 400);
    assert!(error.contains("format"), "{error}");
}

#[test]
fn tool_calls_have_objects_and_their_results_are_read() {
    let Some(server) = start(|_| {}) else { return };
    let tools = json!([{ "type": "function", "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } },
    }}]);
    // A bare object that names an offered tool is a call.
    let format = json!({
        "type": "object",
        "properties": {
            "name": { "const": "weather" },
            "arguments": {
                "type": "object",
                "properties": { "city": { "type": "string", "maxLength": 8 } },
                "required": ["city"],
                "additionalProperties": false,
            },
        },
        "required": ["name", "arguments"],
        "additionalProperties": false,
    });
    let mut asked = with(with(chat(), "tools", tools.clone()), "format", format);
    asked["options"]["num_predict"] = 60.into();
    let answer = server.ask(CHAT, &asked);
    let call = answer["message"]["tool_calls"][0].clone();
    assert_eq!(call["function"]["name"], "weather", "{answer}");
    assert!(call["function"]["arguments"]["city"].is_string(), "{call}");
    let parts = lines(&server.post(CHAT, &with(asked, "stream", true.into())));
    let calls = parts
        .iter()
        .filter_map(|part| part["message"]["tool_calls"].as_array())
        .flatten();
    let functions: Vec<&Value> = calls.map(|call| &call["function"]).collect();
    assert_eq!(functions, [&call["function"]]);

    let mut after = with(chat(), "tools", tools);
    after["messages"] = json!([
        { "role": "user", "content": "What is the weather in Paris?" },
        { "role": "assistant", "content": "", "tool_calls": [{ "function": call["function"] }] },
        { "role": "tool", "tool_name": "weather", "content": "sunny" },
    ]);
    assert!(
        server.ask(CHAT, &after)["prompt_eval_count"].as_u64()
            > answer["prompt_eval_count"].as_u64()
    );
}

/// The test model with a template of the same length whose answers begin with reasoning.
fn thinking_model() -> Option<PathBuf> {
    const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                            {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}{# </think>";
    let mut bytes = std::fs::read(model()?).unwrap();
    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|window| window == key)? + key.len() + 4;
    let len = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let end = " #}";
    let blanks = " ".repeat(len.checked_sub(TEMPLATE.len() + end.len())?);
    bytes[at + 8..at + 8 + len].copy_from_slice(format!("{TEMPLATE}{blanks}{end}").as_bytes());
    let name = format!("kvark-ollama-thinking-{}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, bytes).unwrap();
    Some(path)
}

#[test]
fn thinking_is_apart_and_can_be_turned_off() {
    let Some(path) = thinking_model() else { return };
    let server =
        start(|options| options.models.push(("thinker".to_owned(), path.clone()))).unwrap();
    let asked = with(chat(), "model", "thinker".into());
    for think in [Value::Null, true.into(), "low".into()] {
        let answer = server.ask(CHAT, &with(asked.clone(), "think", think.clone()));
        let thought = answer["message"]["thinking"].as_str().unwrap_or_default();
        assert!(!thought.is_empty(), "{think}: {answer}");
    }
    let answer = server.ask(CHAT, &with(asked.clone(), "think", false.into()));
    assert!(answer["message"].get("thinking").is_none(), "{answer}");
    assert!(!answer["message"]["content"].as_str().unwrap().is_empty());
    let shown = server.ask("/api/show", &json!({ "model": "thinker" }));
    assert_eq!(
        shown["capabilities"],
        json!(["completion", "tools", "thinking"])
    );
    let error = refused(&server, CHAT, &with(chat(), "think", true.into()), 400);
    assert!(error.contains("does not support thinking"), "{error}");
    let error = refused(&server, CHAT, &with(asked, "think", "deeply".into()), 400);
    assert!(error.contains("think"), "{error}");
    drop(server);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn keep_alive_unloads_and_keeps() {
    let Some(server) = start(|_| {}) else { return };
    let kept = server.get("/api/ps").json();
    assert_eq!(kept["models"][0]["expires_at"], "2300-01-01T00:00:00Z");
    let unload = server.ask(
        CHAT,
        &json!({ "model": "smol", "messages": [], "keep_alive": 0 }),
    );
    assert_eq!(unload["done_reason"], "unload");
    assert_eq!(server.get("/api/ps").json()["models"], json!([]));
    let load = json!({ "model": "smol", "keep_alive": "10m" });
    let load = server.ask(GENERATE, &load);
    assert_eq!(
        (&load["done_reason"], &load["response"]),
        (&json!("load"), &json!(""))
    );
    let loaded = server.get("/api/ps").json();
    let expires = loaded["models"][0]["expires_at"].as_str().unwrap();
    let expires: jiff::Timestamp = expires.parse().unwrap();
    let left = expires.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((500..=600).contains(&left), "{left}");
    // An answer ends before its model goes, and the next request loads it again.
    for time in [json!(0), json!("30ms")] {
        let answer = server.ask(CHAT, &with(chat(), "keep_alive", time));
        assert!(!answer["message"]["content"].as_str().unwrap().is_empty());
        wait_for_loaded(&server, <[Value]>::is_empty);
    }
    server.ask(CHAT, &with(chat(), "keep_alive", (-1).into()));
    wait_for_loaded(&server, |loaded| {
        loaded.len() == 1 && loaded[0]["expires_at"] == "2300-01-01T00:00:00Z"
    });
    let error = refused(
        &server,
        CHAT,
        &with(chat(), "keep_alive", "soon".into()),
        400,
    );
    assert!(error.contains("keep_alive"), "{error}");
}

#[test]
fn models_are_listed_and_shown() {
    let Some(server) = start(|_| {}) else { return };
    let tags = server.get("/api/tags").json();
    let listed = &tags["models"][0];
    assert_eq!(
        (&listed["name"], &listed["model"]),
        (&json!("smol"), &json!("smol"))
    );
    assert_eq!(listed["digest"].as_str().unwrap().len(), 64);
    assert!(listed["size"].as_u64() > Some(1_000_000));
    assert_eq!(listed["details"]["format"], "gguf");
    assert_eq!(listed["details"]["family"], "llama");
    let loaded = server.get("/api/ps").json();
    assert_eq!(loaded["models"][0]["digest"], listed["digest"]);
    assert_eq!(loaded["models"][0]["context_length"], 2048);
    for name in ["smol", "smol:latest"] {
        let shown = server.ask("/api/show", &json!({ "model": name }));
        assert_eq!(shown["model_info"]["general.architecture"], "llama");
        assert!(shown["model_info"]["llama.context_length"].as_u64() > Some(0));
        assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
        assert!(shown["template"].as_str().unwrap().contains("im_start"));
    }
    let latest = server.ask(CHAT, &with(chat(), "model", "smol:latest".into()));
    assert_eq!(latest["model"], "smol:latest");
    for path in [CHAT, GENERATE, "/api/show", "/api/embed"] {
        let error = refused(&server, path, &json!({ "model": "other" }), 404);
        assert!(error.contains("\"other\" not found"), "{error}");
        let error = refused(&server, path, &json!({}), 400);
        assert!(error.contains("model"), "{error}");
    }
    let version = server.get("/api/version").json();
    assert!(version["version"].as_str().unwrap().starts_with("0."));
    // Clients look whether a server is there.
    let head = format!(
        "HEAD / HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
        server.address
    );
    let mut stream = server.connect();
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn vectors_are_those_of_openais_api() {
    let Some(server) = start(|_| {}) else { return };
    let texts = json!(["A river.", "A mountain."]);
    let own = server.ask("/v1/embeddings", &json!({ "input": texts }));
    let answer = server.ask("/api/embed", &json!({ "model": "smol", "input": texts }));
    for index in 0..2 {
        assert_eq!(answer["embeddings"][index], own["data"][index]["embedding"]);
    }
    assert_eq!(answer["prompt_eval_count"], own["usage"]["prompt_tokens"]);
    let one = json!({ "model": "smol", "prompt": "A river." });
    let one = server.ask("/api/embeddings", &one);
    assert_eq!(one["embedding"], own["data"][0]["embedding"]);
    let short = json!({ "model": "smol", "input": "A river.", "dimensions": 8 });
    let short = server.ask("/api/embed", &short);
    let vector = short["embeddings"][0].as_array().unwrap();
    let length: f64 = vector.iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert!(vector.len() == 8 && (length - 1.0).abs() < 1e-4, "{short}");
}

#[test]
fn pulled_models_are_served_and_the_rest_is_refused() {
    let Some(path) = model() else { return };
    let home = std::env::temp_dir().join(format!("kvark-ollama-pull-{}", std::process::id()));
    let store = ModelStore::at(&home);
    let there = store.model_path(default_entry());
    std::fs::create_dir_all(there.parent().unwrap()).unwrap();
    let is_default = std::fs::metadata(&path).unwrap().len() == default_entry().bytes;
    std::fs::copy(&path, &there).unwrap();
    let server = start(|options| options.store = Some(store.clone())).unwrap();
    // A model that is served needs no download.
    let parts = lines(&server.post("/api/pull", &json!({ "model": "smol:latest" })));
    assert_eq!(parts.last().unwrap()["status"], "success");
    if is_default {
        let pulled = json!({ "model": "smollm2", "stream": false });
        assert_eq!(
            server.ask("/api/pull", &pulled),
            json!({ "status": "success" })
        );
        let tags = server.get("/api/tags").json();
        assert_eq!(tags["models"][1]["name"], "smollm2");
        let answer = server.ask(CHAT, &with(chat(), "model", "smollm2".into()));
        assert_eq!(answer["message"], server.ask(CHAT, &chat())["message"]);
    }
    let unknown = json!({ "model": "no-such-model:1b" });
    let parts = lines(&server.post("/api/pull", &unknown));
    let error = parts.last().unwrap()["error"].as_str().unwrap();
    assert!(
        error.contains("no-such-model:1b") && error.contains("catalogue"),
        "{error}"
    );
    let unknown = with(unknown, "stream", false.into());
    refused(&server, "/api/pull", &unknown, 404);
    // A file of the machine is no name.
    let file = json!({ "model": "/etc/passwd", "stream": false });
    refused(&server, "/api/pull", &file, 404);
    for path in ["/api/copy", "/api/create", "/api/push"] {
        let error = refused(&server, path, &json!({ "model": "smol" }), 400);
        assert!(error.contains(path.rsplit('/').next().unwrap()), "{error}");
    }
    let deleted = server.send("DELETE", "/api/delete", "", br#"{"model": "smol"}"#);
    assert_eq!(deleted.status, 400);
    assert!(
        deleted.json()["error"]
            .as_str()
            .unwrap()
            .contains("kvark rm")
    );
    drop(server);
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn errors_before_the_handler_have_ollamas_shape_too() {
    let Some(server) = start(|options| {
        options.api_keys = vec!["secret".to_owned()];
        options.max_body = 1000;
    }) else {
        return;
    };
    let error = refused(&server, CHAT, &chat(), 401);
    assert!(error.contains("key"), "{error}");
    let key = "authorization: Bearer secret\r\n";
    let large = with(chat(), "messages", user(&"long ".repeat(400))).to_string();
    let reply = server.send("POST", CHAT, key, large.as_bytes());
    assert_eq!(reply.status, 413);
    assert!(
        reply.json()["error"]
            .as_str()
            .unwrap()
            .contains("--max-body")
    );
    let reply = server.send("POST", CHAT, key, b"{");
    assert!(reply.json()["error"].as_str().unwrap().contains("JSON"));
}

#[test]
fn log_probabilities_come_with_their_tokens() {
    let Some(server) = start(|_| {}) else { return };
    let asked = with(
        with(chat(), "logprobs", true.into()),
        "top_logprobs",
        2.into(),
    );
    let whole = server.ask(CHAT, &asked);
    let all = whole["logprobs"].as_array().unwrap();
    assert_eq!(all.len() as u64, whole["eval_count"].as_u64().unwrap());
    assert!(all[0]["logprob"].as_f64().unwrap() <= 0.0);
    assert_eq!(all[0]["top_logprobs"][0]["token"], all[0]["token"]);
    let parts = lines(&server.post(CHAT, &with(asked, "stream", true.into())));
    let streamed = parts.iter().filter_map(|part| part["logprobs"].as_array());
    let streamed: Vec<&Value> = streamed.flatten().collect();
    assert_eq!(streamed, all.iter().collect::<Vec<_>>());
}

#[test]
fn a_lenient_server_warns_of_what_it_ignores() {
    let Some(server) = start(|options| options.lenient = true) else {
        return;
    };
    let mut asked = with(chat(), "no_such_field", 1.into());
    asked["options"]["no_such_option"] = 1.into();
    let answer = server.ask(CHAT, &asked);
    let warnings = answer["kvark"]["warnings"].to_string();
    for name in ["no_such_field", "options.no_such_option"] {
        assert!(warnings.contains(name), "{warnings}");
    }
}
