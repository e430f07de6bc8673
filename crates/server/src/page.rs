//! The web page, embedded in the binary.

use crate::app::App;
use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use std::sync::Arc;

/// The files of the page: path, media type, content.
const FILES: &[(&str, &str, &str)] = &[(
    "/",
    "text/html; charset=utf-8",
    include_str!("../page/index.html"),
)];

/// The routes of the page's files.
pub(crate) fn routes() -> Router<Arc<App>> {
    FILES
        .iter()
        .fold(Router::new(), |router, (path, kind, content)| {
            let file = || async {
                let policy =
                    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:";
                let headers = [
                    (header::CONTENT_TYPE, *kind),
                    (header::CONTENT_SECURITY_POLICY, policy),
                    (header::CACHE_CONTROL, "no-cache"),
                ];
                (headers, *content).into_response()
            };
            router.route(path, get(file))
        })
}
