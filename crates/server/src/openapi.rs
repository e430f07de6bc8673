//! The OpenAPI document.

use axum::Json;
use serde_json::{Value, json};

/// `GET /openapi.json`
pub(crate) async fn serve() -> Json<Value> {
    Json(document())
}

/// The document.
pub fn document() -> Value {
    json!({ "openapi": "3.1.0" })
}
