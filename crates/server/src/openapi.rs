//! The OpenAPI document, made from the endpoints and the structs that they read.

use crate::routes;
use axum::Json;
use serde_json::{Map, Value, json};

/// `GET /openapi.json`
pub(crate) async fn serve() -> Json<Value> {
    Json(document())
}

/// The document.
pub fn document() -> Value {
    let mut paths = Map::new();
    let responses = responses();
    for endpoint in routes::endpoints() {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        path[endpoint.method] = endpoint.operation(&responses);
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
    let nullable = json!({ "type": ["string", "null"] });
    json!({
        "type": "object",
        "properties": { "error": {
            "type": "object",
            "properties": {
                "message": { "type": "string" },
                "type": { "type": "string" },
                "param": nullable,
                "code": nullable,
            },
            "required": ["message", "type"],
        }},
        "required": ["error"],
    })
}

fn responses() -> Value {
    let error = json!({
        "description": "What is wrong, and with which parameter",
        "content": { "application/json": { "schema": { "type": "object" } } },
    });
    let mut responses = json!({ "200": { "description": "The answer" } });
    for status in ["400", "401", "403", "404", "409", "429", "503"] {
        responses[status] = error.clone();
    }
    responses
}
