//! The OpenAPI document: every path with its parameters.

use axum::Json;
use serde_json::{Map, Value, json};

/// `GET /openapi.json`
pub(crate) async fn serve() -> Json<Value> {
    Json(document())
}

/// A parameter of a body: name, schema, description.
type Parameter = (&'static str, Value, &'static str);

/// The document.
pub fn document() -> Value {
    let mut paths = Map::new();
    let mut add = |path: &str, method: &str, operation: Value| {
        let entry = paths.entry(path).or_insert_with(|| json!({}));
        entry[method] = operation;
    };
    let generating = [
        (
            "/v1/chat/completions",
            "chat",
            "Answer a chat, as OpenAI's API",
            chat(),
            &["messages"][..],
        ),
        (
            "/v1/completions",
            "complete",
            "Continue a text, as OpenAI's API",
            completions(),
            &["prompt"],
        ),
        (
            "/v1/responses",
            "respond",
            "Answer a chat, as OpenAI's newer API",
            responses(),
            &["input"],
        ),
        (
            "/v1/messages",
            "message",
            "Answer a chat, as Anthropic's API",
            messages(),
            &["messages", "max_tokens"],
        ),
        (
            "/v1/embeddings",
            "embed",
            "Turn texts into vectors",
            embeddings(),
            &["input"],
        ),
        (
            "/tokenize",
            "tokenize",
            "Turn text into token ids",
            tokenize(),
            &["content"],
        ),
        (
            "/detokenize",
            "detokenize",
            "Turn token ids into text",
            detokenize(),
            &["tokens"],
        ),
        (
            "/apply-template",
            "applyTemplate",
            "Show the prompt of a chat",
            template(),
            &["messages"],
        ),
    ];
    for (index, (path, id, summary, parameters, required)) in generating.into_iter().enumerate() {
        let mut operation = post(id, summary, &parameters, required, &[]);
        let place = "/requestBody/content/application~1json/schema/properties";
        if index < 4
            && let Some(Value::Object(properties)) = operation.pointer_mut(place)
        {
            properties.extend(crate::sampling::properties());
        }
        add(path, "post", operation);
    }
    for (path, id, summary) in [
        ("/health", "health", "Whether the server answers"),
        ("/v1/models", "models", "The models"),
        (
            "/metrics",
            "metrics",
            "Counters and gauges in Prometheus' format",
        ),
        ("/openapi.json", "openapi", "This document"),
        (
            "/v1/kvark/conversations",
            "conversations",
            "All conversations",
        ),
    ] {
        add(path, "get", get(id, summary, &[]));
    }
    let model = [("model", "query", "string")];
    for (path, id, summary) in [
        ("/props", "props", "Properties of a model"),
        ("/slots", "slots", "What the slots of a model do"),
        (
            "/v1/kvark/cache",
            "cache",
            "The cells of a model's cache by owner",
        ),
        (
            "/v1/kvark/events",
            "events",
            "The cache as server-sent events",
        ),
    ] {
        add(path, "get", get(id, summary, &model));
    }
    add(
        "/v1/kvark/cache",
        "delete",
        get("clearCache", "Remove retained prefixes from memory", &model),
    );
    let seq = [("seq", "path", "integer"), model[0]];
    add(
        "/v1/kvark/cache/{seq}",
        "get",
        get("cacheTokens", "The tokens of a sequence", &seq),
    );
    let id = [("id", "path", "string")];
    add("/v1/models/{id}", "get", get("model", "A model", &id));
    let create = [
        ("model", string(), "The model; the default one if left out"),
        (
            "messages",
            array(object()),
            "The beginning of the conversation",
        ),
        ("metadata", object(), "Ignored"),
    ];
    let summary = "Begin a conversation with exact token ids";
    add(
        "/v1/kvark/conversations",
        "post",
        post("createConversation", summary, &create, &[], &[]),
    );
    let one = "/v1/kvark/conversations/{id}";
    add(
        one,
        "get",
        get(
            "conversation",
            "A conversation: its turns, tokens and forks",
            &id,
        ),
    );
    add(
        one,
        "delete",
        get(
            "deleteConversation",
            "Delete a conversation; forks of it stay",
            &id,
        ),
    );
    let at = [(
        "at",
        json!({ "oneOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "object", "properties": { "turn": { "type": "integer", "minimum": 0 } }, "required": ["turn"], "additionalProperties": false },
            { "type": "object", "properties": { "token": { "type": "integer", "minimum": 0 } }, "required": ["token"], "additionalProperties": false },
        ]}),
        "Turns (or tokens) that stay; all if left out",
    )];
    for (verb, name, summary, parameters) in [
        (
            "fork",
            "fork",
            "Fork a conversation, also while it is generating",
            &at[..],
        ),
        ("rewind", "rewind", "Cut a conversation", &at),
        (
            "keep",
            "keep",
            "Delete all other conversations of the tree",
            &[],
        ),
    ] {
        add(
            &format!("{one}/{verb}"),
            "post",
            post(name, summary, parameters, &[], &id),
        );
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "kvark serve",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI's and Anthropic's chat APIs over a KV cache that is shared, forked and explained.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Error": error_schema() },
        },
        "security": [{}, { "key": [] }],
    })
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "properties": { "error": {
            "type": "object",
            "properties": {
                "message": string(),
                "type": string(),
                "param": { "type": ["string", "null"] },
                "code": { "type": ["string", "null"] },
            },
            "required": ["message", "type"],
        }},
        "required": ["error"],
    })
}

fn results() -> Value {
    let error = json!({
        "description": "What is wrong, and with which parameter",
        "content": { "application/json": { "schema": { "type": "object" } } },
    });
    json!({
        "200": { "description": "The answer" },
        "400": error,
        "401": error,
        "403": error,
        "404": error,
        "409": error,
        "429": error,
        "503": error,
    })
}

fn path_parameters(parameters: &[(&str, &str, &str)]) -> Value {
    let parameter = |(name, place, kind): &(&str, &str, &str)| json!({ "name": name, "in": place, "required": *place == "path", "schema": { "type": kind } });
    parameters.iter().map(parameter).collect()
}

fn get(id: &str, summary: &str, parameters: &[(&str, &str, &str)]) -> Value {
    json!({
        "operationId": id,
        "summary": summary,
        "parameters": path_parameters(parameters),
        "responses": results(),
    })
}

fn post(
    id: &str,
    summary: &str,
    parameters: &[Parameter],
    required: &[&str],
    path: &[(&str, &str, &str)],
) -> Value {
    let property = |(name, schema, description): &Parameter| {
        let mut schema = schema.clone();
        schema["description"] = (*description).into();
        ((*name).to_owned(), schema)
    };
    let properties: Map<String, Value> = parameters.iter().map(property).collect();
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    let mut operation = get(id, summary, path);
    operation["requestBody"] = json!({
        "required": !required.is_empty(),
        "content": { "application/json": { "schema": schema } },
    });
    operation
}

fn string() -> Value {
    json!({ "type": "string" })
}

fn boolean() -> Value {
    json!({ "type": "boolean" })
}

fn object() -> Value {
    json!({ "type": "object" })
}

fn array(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn integer(minimum: i64) -> Value {
    json!({ "type": "integer", "minimum": minimum })
}

fn number(minimum: f64, maximum: f64) -> Value {
    json!({ "type": "number", "minimum": minimum, "maximum": maximum })
}

/// Sampling and limits, which all generating endpoints take.
fn generation() -> Vec<Parameter> {
    vec![
        ("model", string(), "The model; the default one if left out"),
        ("stream", boolean(), "Answer as server-sent events"),
        (
            "n",
            json!({ "type": "integer", "minimum": 1, "maximum": 128 }),
            "Number of choices",
        ),
        (
            "stop",
            json!({ "anyOf": [string(), array(string())] }),
            "Strings that end the answer",
        ),
        ("ignore_eos", boolean(), "Go on after the model's end"),
        (
            "timeout",
            number(0.001, 86400.0),
            "Longest time of the answer in seconds",
        ),
        (
            "priority",
            json!({ "type": "integer", "minimum": -1000, "maximum": 1000 }),
            "Higher ones are admitted first",
        ),
        (
            "spec_type",
            json!({ "type": "string", "enum": ["ngram", "draft", "eagle3", "auto", "none"] }),
            "Speculative decoding: the same text, sooner",
        ),
        (
            "spec_tree",
            json!({ "type": "integer", "minimum": 1, "maximum": 64 }),
            "Most candidates of a round",
        ),
        (
            "spec_depth",
            json!({ "type": "integer", "minimum": 1, "maximum": 64 }),
            "Most candidates that a round can accept",
        ),
        (
            "spec_topk",
            json!({ "type": "integer", "minimum": 1, "maximum": 64 }),
            "Most children of a candidate",
        ),
        (
            "spec_trace",
            boolean(),
            "Stream the tree of every round as `kvark.round` of a chunk without choices",
        ),
        (
            "cache_prompt",
            boolean(),
            "Reuse stored prefixes and store this one",
        ),
        (
            "json_schema",
            object(),
            "A JSON schema that the text must follow",
        ),
        (
            "grammar",
            string(),
            "A GBNF grammar that the text must follow",
        ),
        (
            "regex",
            string(),
            "A regular expression that the text must match",
        ),
        (
            "response_format",
            object(),
            "text, json_object or json_schema",
        ),
    ]
}

/// Parameters that are accepted and change nothing.
fn ignored() -> Vec<Parameter> {
    let anything = || json!({});
    crate::chat::IGNORED
        .iter()
        .map(|name| (*name, anything(), "Accepted; changes nothing"))
        .collect()
}

fn tools() -> Vec<Parameter> {
    vec![
        (
            "tools",
            array(object()),
            "Functions that the model may call",
        ),
        (
            "tool_choice",
            json!({ "anyOf": [string(), object()] }),
            "auto, none, required, or one function",
        ),
        (
            "conversation",
            string(),
            "The conversation that goes on, with its exact tokens",
        ),
    ]
}

fn chat() -> Vec<Parameter> {
    let own = vec![
        (
            "messages",
            array(object()),
            "The conversation, or what comes new to `conversation`",
        ),
        ("stream_options", object(), "include_usage"),
        ("logprobs", boolean(), "Return log-probabilities"),
        (
            "top_logprobs",
            json!({ "type": "integer", "minimum": 0, "maximum": 20 }),
            "How many of the most likely tokens",
        ),
        ("max_tokens", integer(1), "Most tokens of the answer"),
        ("max_completion_tokens", integer(1), "The same"),
        (
            "chat_template_kwargs",
            object(),
            "Further variables of the chat template",
        ),
    ];
    [own, tools(), generation(), ignored()].concat()
}

fn completions() -> Vec<Parameter> {
    let own = vec![
        (
            "prompt",
            json!({ "anyOf": [string(), array(json!({ "type": "integer" })), array(string())] }),
            "A text or token ids",
        ),
        ("max_tokens", integer(0), "Most tokens of the answer [16]"),
        ("n_predict", integer(0), "The same"),
        ("echo", boolean(), "Return the prompt before the text"),
        (
            "logprobs",
            json!({ "type": "integer", "minimum": 0, "maximum": 20 }),
            "Log-probabilities of this many tokens",
        ),
        ("stream_options", object(), "include_usage"),
    ];
    [own, generation(), ignored()].concat()
}

fn responses() -> Vec<Parameter> {
    let own = vec![
        (
            "input",
            json!({ "anyOf": [string(), array(object())] }),
            "A text or a list of items",
        ),
        ("instructions", string(), "The system message"),
        ("max_output_tokens", integer(1), "Most tokens of the answer"),
        ("text", object(), "format: text, json_object or json_schema"),
        ("include", array(string()), "Accepted; changes nothing"),
        ("max_tool_calls", integer(0), "Accepted; changes nothing"),
    ];
    [own, tools(), generation(), ignored()].concat()
}

fn messages() -> Vec<Parameter> {
    let own = vec![
        ("messages", array(object()), "The conversation"),
        (
            "system",
            json!({ "anyOf": [string(), array(object())] }),
            "The system message",
        ),
        ("max_tokens", integer(1), "Most tokens of the answer"),
        (
            "stop_sequences",
            array(string()),
            "Strings that end the answer",
        ),
        ("thinking", object(), "Only {\"type\": \"disabled\"}"),
        ("metadata", object(), "Accepted; changes nothing"),
        ("service_tier", string(), "Accepted; changes nothing"),
        ("container", json!({}), "Accepted; changes nothing"),
        ("mcp_servers", json!({}), "Accepted; changes nothing"),
    ];
    [own, tools(), generation()].concat()
}

fn embeddings() -> Vec<Parameter> {
    vec![
        ("model", string(), "The model; the default one if left out"),
        (
            "input",
            json!({ "anyOf": [string(), array(string())] }),
            "Up to 2048 texts",
        ),
        (
            "encoding_format",
            json!({ "type": "string", "enum": ["float", "base64"] }),
            "How vectors are written",
        ),
        ("user", json!({}), "Accepted; changes nothing"),
    ]
}

fn tokenize() -> Vec<Parameter> {
    vec![
        ("model", string(), "The model"),
        ("content", string(), "The text"),
        ("add_special", boolean(), "Add the token that begins a text"),
        (
            "parse_special",
            boolean(),
            "Recognise control tokens in the text",
        ),
        (
            "with_pieces",
            boolean(),
            "Return the texts of the tokens too",
        ),
    ]
}

fn detokenize() -> Vec<Parameter> {
    vec![
        ("model", string(), "The model"),
        ("tokens", array(integer(0)), "The token ids"),
    ]
}

fn template() -> Vec<Parameter> {
    vec![
        ("model", string(), "The model"),
        ("messages", array(object()), "The conversation"),
        (
            "tools",
            array(object()),
            "Functions that the model may call",
        ),
        (
            "chat_template_kwargs",
            object(),
            "Further variables of the template",
        ),
        (
            "add_generation_prompt",
            boolean(),
            "End where the assistant begins",
        ),
    ]
}
