//! Continued texts: lists of prompts, log-probabilities of prompts, and llama.cpp's shape of answers.

mod common;

use common::{Running, start};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

fn texts(answer: &Value) -> Vec<&str> {
    let choices = answer["choices"].as_array().unwrap();
    choices
        .iter()
        .map(|c| c["text"].as_str().unwrap())
        .collect()
}

fn tokens(server: &Running, text: &str) -> Value {
    server.ask("/tokenize", &json!({ "content": text }))["tokens"].clone()
}

#[test]
fn each_prompt_of_a_list_is_answered_as_it_is_alone() {
    let Some(server) = start(|_| {}) else { return };
    let prompts = ["The capital of France is", "One, two, three,", "Water is"];
    let body = |prompt: Value| json!({ "prompt": prompt, "max_tokens": 6, "temperature": 0 });
    let alone: Vec<Value> = prompts
        .iter()
        .map(|p| server.ask(PATH, &body(json!(p))))
        .collect();
    let alone: Vec<&str> = alone.iter().flat_map(texts).collect();
    let together = server.ask(PATH, &body(json!(prompts)));
    assert_eq!(texts(&together), alone);
    assert_eq!(together["usage"]["completion_tokens"], 18);
    let ids: Vec<Value> = prompts.iter().map(|text| tokens(&server, text)).collect();
    let counts: usize = ids.iter().map(|ids| ids.as_array().unwrap().len()).sum();
    assert_eq!(together["usage"]["prompt_tokens"], counts);
    assert_eq!(texts(&server.ask(PATH, &body(json!(ids)))), alone);
    // Texts and ids in one prompt; two answers to each prompt.
    let mixed = json!([ids[0], "One, two,", [ids[1][0]]]);
    assert_eq!(texts(&server.ask(PATH, &body(mixed))).len(), 3);
    let mut two = body(json!(prompts));
    two["n"] = 2.into();
    two["echo"] = true.into();
    let two = server.ask(PATH, &two);
    for (index, text) in texts(&two).iter().enumerate() {
        assert_eq!(*text, format!("{}{}", prompts[index / 2], alone[index / 2]));
    }
    for wrong in [
        json!([]),
        json!(null),
        json!({ "x": 1 }),
        json!([1, -2]),
        json!([[1.5]]),
        json!(true),
    ] {
        let reply = server.post(PATH, &body(wrong.clone()));
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!("prompt")),
            "{wrong}"
        );
    }
}

#[test]
fn an_echoed_prompt_has_log_probabilities() {
    let Some(server) = start(|_| {}) else { return };
    let prompt = "The capital of France is Paris";
    let ids = tokens(&server, prompt);
    let count = ids.as_array().unwrap().len();
    for prompt_form in [json!(prompt), ids] {
        let body = json!({
            "prompt": prompt_form, "echo": true, "logprobs": 2, "max_tokens": 2, "temperature": 0,
        });
        let answer = server.ask(PATH, &body);
        let choice = &answer["choices"][0];
        assert!(choice["text"].as_str().unwrap().starts_with(prompt));
        let logprobs = &choice["logprobs"];
        let list = |name: &str| logprobs[name].as_array().unwrap();
        assert!(
            ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
                .iter()
                .all(|name| list(name).len() == count + 2)
        );
        assert!(logprobs["token_logprobs"][0].is_null());
        assert!(
            list("token_logprobs")[1..]
                .iter()
                .all(|p| p.as_f64().unwrap() <= 0.0)
        );
        let joined: String = list("tokens").iter().map(|t| t.as_str().unwrap()).collect();
        assert_eq!(joined, choice["text"].as_str().unwrap());
        for (text, offset) in list("tokens").iter().zip(list("text_offset")) {
            let at = offset.as_u64().unwrap() as usize;
            assert!(joined[at..].starts_with(text.as_str().unwrap()));
        }
        // The most likely token here is the one that greedy sampling gives.
        let paris = &list("top_logprobs")[count - 1];
        assert!(paris.get(" Paris").is_some(), "{paris}");
    }
    let whole = json!({ "prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 0 });
    let whole = server.ask(PATH, &whole);
    assert_eq!(whole["choices"][0]["text"], prompt);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(
        whole["choices"][0]["logprobs"]["tokens"]
            .as_array()
            .unwrap()
            .len(),
        count
    );
    let refused = json!({ "prompt": prompt, "echo": true, "logprobs": 1, "stream": true });
    assert_eq!(server.post(PATH, &refused).json()["error"]["param"], "echo");
}

#[test]
fn the_best_of_several_answers_is_returned() {
    let Some(server) = start(|_| {}) else { return };
    let prompt = "My favourite animal is";
    let body = json!({ "prompt": prompt, "max_tokens": 5, "temperature": 1.2, "seed": 3 });
    let with = |name: &str, n: usize, logprobs: bool| {
        let mut body = body.clone();
        body[name] = n.into();
        if logprobs {
            body["logprobs"] = 0.into();
        }
        server.ask(PATH, &body)
    };
    let all = with("n", 4, true);
    let mean = |choice: &Value| -> f64 {
        let list = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        list.iter().map(|p| p.as_f64().unwrap()).sum::<f64>() / list.len() as f64
    };
    let choices = all["choices"].as_array().unwrap();
    let best = choices
        .iter()
        .max_by(|a, b| mean(a).total_cmp(&mean(b)))
        .unwrap();
    let found = with("best_of", 4, false);
    assert_eq!(texts(&found), [best["text"].as_str().unwrap()]);
    assert!(found["choices"][0]["logprobs"].is_null());
    let reply = server.post(PATH, &json!({ "prompt": prompt, "n": 3, "best_of": 2 }));
    assert_eq!(reply.json()["error"]["param"], "best_of");
}

#[test]
fn limits_and_stops_have_the_names_of_several_servers() {
    let Some(server) = start(|_| {}) else { return };
    let prompt = "The capital of France is";
    let paris = tokens(&server, " Paris");
    let mut body =
        json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0, "stop_token_ids": paris });
    let stopped = server.ask(PATH, &body);
    assert_eq!(
        (
            &stopped["choices"][0]["text"],
            &stopped["choices"][0]["finish_reason"]
        ),
        (&json!(""), &json!("stop"))
    );
    body["min_tokens"] = 3.into();
    let longer = server.ask(PATH, &body);
    assert!(
        longer["usage"]["completion_tokens"].as_u64() >= Some(3),
        "{longer}"
    );
    // Without a limit, a stop string ends it.
    let open = json!({ "prompt": "1, 2, 3, 4,", "max_tokens": -1, "top_k": -1, "temperature": 0, "stop": ["9"] });
    let open = server.ask(PATH, &open);
    assert!(
        open["choices"][0]["text"].as_str().unwrap().contains('8'),
        "{open}"
    );
    let penalty = json!({ "prompt": prompt, "max_tokens": 2, "repetition_penalty": 1.1 });
    assert_eq!(server.post(PATH, &penalty).status, 200);
    let suffix = server.post(PATH, &json!({ "prompt": "def f(", "suffix": "return x" }));
    assert_eq!(
        (suffix.status, &suffix.json()["error"]["param"]),
        (501, &json!("suffix"))
    );
}

#[test]
fn llama_cpps_shape_says_the_same() {
    let Some(server) = start(|_| {}) else { return };
    let prompt = "The capital of France is";
    let expected = server.ask(
        PATH,
        &json!({ "prompt": prompt, "max_tokens": 6, "temperature": 0 }),
    );
    let expected = texts(&expected)[0];
    let body = json!({ "prompt": prompt, "n_predict": 6, "temperature": 0, "seed": 4 });
    let with = |more: Value| {
        let mut body = body.clone();
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    };
    let whole = server.ask(
        "/completion",
        &with(json!({ "return_tokens": true, "n_probs": 3 })),
    );
    assert_eq!(whole["content"], expected);
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(
        (&whole["stop_type"], &whole["stop"], &whole["truncated"]),
        (&json!("limit"), &json!(true), &json!(false))
    );
    assert_eq!(whole["generation_settings"]["seed"], 4);
    assert_eq!(whole["generation_settings"]["n_predict"], 6);
    let entries = whole["completion_probabilities"].as_array().unwrap();
    assert_eq!(entries.len(), 6);
    assert!(
        entries
            .iter()
            .all(|e| e["top_logprobs"].as_array().unwrap().len() == 3)
    );
    assert_eq!(
        whole["tokens_evaluated"],
        tokens(&server, prompt).as_array().unwrap().len()
    );

    let stream = server.post(
        "/completion",
        &with(json!({ "stream": true, "return_progress": true, "timings_per_token": true })),
    );
    let events: Vec<Value> = stream
        .events()
        .iter()
        .map(|e| serde_json::from_str(e).unwrap())
        .collect();
    let (last, chunks) = events.split_last().unwrap();
    assert!(last["stop"] == true && chunks.iter().all(|chunk| chunk["stop"] == false));
    let text: String = chunks
        .iter()
        .map(|chunk| chunk["content"].as_str().unwrap())
        .collect();
    assert_eq!(text, expected);
    assert!(
        chunks
            .iter()
            .any(|chunk| chunk["prompt_progress"]["total"].as_u64() > Some(3)),
        "{chunks:?}"
    );
    assert!(
        chunks
            .iter()
            .any(|chunk| chunk["timings"]["predicted_n"] == 6),
        "{chunks:?}"
    );

    let several = server.ask(
        "/completion",
        &with(json!({ "prompt": [prompt, tokens(&server, prompt), { "prompt_string": prompt }] })),
    );
    assert_eq!(several.as_array().unwrap().len(), 3);
    assert!(
        several
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["content"] == expected)
    );
    let fields = ["content", "generation_settings/n_predict"];
    let some = server.ask("/completion", &with(json!({ "response_fields": fields })));
    assert_eq!(
        some,
        json!({ "content": expected, "generation_settings/n_predict": 6 })
    );
    let stopped = server.ask(
        "/completion",
        &with(json!({ "stop": [expected.split_at(2).1] })),
    );
    assert_eq!(stopped["stop_type"], "word");

    for (path, body, status) in [
        (
            "/completion",
            with(json!({ "post_sampling_probs": true })),
            400,
        ),
        (
            "/completion",
            with(json!({ "prompt": { "prompt_string": "x", "multimodal_data": "y" } })),
            400,
        ),
        (
            "/infill",
            json!({ "input_prefix": "a", "input_suffix": "b" }),
            501,
        ),
    ] {
        assert_eq!(server.post(path, &body).status, status, "{path} {body}");
    }
    // Other paths, and any name of the only model.
    let named =
        json!({ "model": "davinci-002", "prompt": prompt, "max_tokens": 6, "temperature": 0 });
    assert_eq!(texts(&server.ask(PATH, &named)), [expected]);
    assert_eq!(server.ask("/completions", &body)["content"], expected);
    for path in ["/models", "/v1/models", "/v1/health", "/health"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}
