//! The committed OpenAPI document is the one that the server gives.

use std::path::Path;

/// Set to write the document instead of comparing it.
const REWRITE: &str = "KVARK_UPDATE";

#[test]
fn the_committed_document_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let document = serde_json::to_string_pretty(&server::openapi_document()).unwrap() + "\n";
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(&path, &document).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(
        committed == document,
        "docs/openapi.json is old: run the tests of kvark-server with {REWRITE}=1"
    );
}
