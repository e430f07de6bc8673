//! The web page, embedded in the binary.

use crate::app::App;
use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use std::sync::Arc;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// Nothing from other hosts is loaded, and nothing but these files is run.
const POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";

/// The files of the page: path, media type, content.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("../page/index.html")),
    ("/page/style.css", CSS, include_str!("../page/style.css")),
    ("/page/answers.js", JS, include_str!("../page/answers.js")),
    ("/page/api.js", JS, include_str!("../page/api.js")),
    ("/page/cells.js", JS, include_str!("../page/cells.js")),
    ("/page/chat.js", JS, include_str!("../page/chat.js")),
    (
        "/page/dashboard.js",
        JS,
        include_str!("../page/dashboard.js"),
    ),
    ("/page/figures.js", JS, include_str!("../page/figures.js")),
    ("/page/main.js", JS, include_str!("../page/main.js")),
    ("/page/markdown.js", JS, include_str!("../page/markdown.js")),
    ("/page/panels.js", JS, include_str!("../page/panels.js")),
    ("/page/settings.js", JS, include_str!("../page/settings.js")),
    (
        "/page/speculation.js",
        JS,
        include_str!("../page/speculation.js"),
    ),
    ("/page/tokens.js", JS, include_str!("../page/tokens.js")),
    ("/page/tree.js", JS, include_str!("../page/tree.js")),
    ("/page/turns.js", JS, include_str!("../page/turns.js")),
];

/// The routes of the page's files.
pub(crate) fn routes() -> Router<Arc<App>> {
    FILES
        .iter()
        .fold(Router::new(), |router, (path, kind, content)| {
            let file = || async {
                let headers = [
                    (header::CONTENT_TYPE, *kind),
                    (header::CONTENT_SECURITY_POLICY, POLICY),
                    (header::CACHE_CONTROL, "no-cache"),
                ];
                (headers, *content).into_response()
            };
            router.route(path, get(file))
        })
}
