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

const TEXT: &str = "text/plain; charset=utf-8";

/// The path, the media type and the content of a file beside this one's folder.
macro_rules! file {
    ($name:literal, $kind:ident) => {
        (
            concat!("/page/", $name),
            $kind,
            include_str!(concat!("../page/", $name)),
        )
    };
}

/// The files of the page: path, media type, content.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("../page/index.html")),
    file!("style.css", CSS),
    file!("answers.js", JS),
    file!("api.js", JS),
    file!("attachments.js", JS),
    file!("cells.js", JS),
    file!("chat.js", JS),
    file!("connection.js", JS),
    file!("dashboard.js", JS),
    file!("figures.js", JS),
    file!("fill.js", JS),
    file!("kept.js", JS),
    file!("main.js", JS),
    file!("markdown.js", JS),
    file!("maths.js", JS),
    file!("names.js", JS),
    file!("panels.js", JS),
    file!("settings.js", JS),
    file!("speculation.js", JS),
    file!("tokens.js", JS),
    file!("transfer.js", JS),
    file!("tree.js", JS),
    file!("turns.js", JS),
    file!("vendor.markdown.js", JS),
    file!("licences.txt", TEXT),
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

#[cfg(test)]
mod tests {
    use super::FILES;

    #[test]
    fn the_page_is_small_and_complete() {
        let bytes: usize = FILES.iter().map(|(_, _, content)| content.len()).sum();
        assert!(bytes < 400_000, "{bytes}");
        for (path, _, content) in FILES {
            for line in content.lines().filter(|line| line.starts_with("import ")) {
                let Some((_, from)) = line.split_once("\"./") else {
                    continue;
                };
                let wanted = format!("/page/{}", from.trim_end_matches("\";"));
                let is_there = FILES.iter().any(|(other, ..)| *other == wanted);
                assert!(is_there, "{path} imports {wanted}");
            }
        }
    }
}
