//! Who may use the server: keys, hosts and origins.

use crate::app::App;
use crate::error::ApiError;
use crate::messages;
use crate::ollama;
use crate::options::ServerOptions;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Whose conversations a request sees: those of its key, or of everybody on a server without keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Owner(pub(crate) Option<String>);

impl Owner {
    /// The owner of a key. The name tells nothing about the key, so that it can be stored.
    fn of_key(key: &str) -> Owner {
        use sha2::{Digest, Sha256};
        let digest = Sha256::digest(key.as_bytes());
        Owner(Some(
            digest[..16].iter().map(|b| format!("{b:02x}")).collect(),
        ))
    }
}

/// Refuses requests without a key of the server, and tells handlers whose key it is.
pub(crate) async fn check_key(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let owner = match app.options.api_keys.is_empty() {
        true => Some(Owner::default()),
        false => {
            let given = given_key(request.headers()).unwrap_or_default();
            // All keys are compared, so that times do not tell which one was right.
            let mut owner = None;
            for key in &app.options.api_keys {
                if equal_in_constant_time(given.as_bytes(), key.as_bytes()) {
                    owner = Some(Owner::of_key(key));
                }
            }
            owner
        }
    };
    match owner {
        Some(owner) => {
            request.extensions_mut().insert(owner);
            next.run(request).await
        }
        None => refuse(request.uri().path(), ApiError::unauthorized()),
    }
}

/// The key of a request: `Authorization: Bearer KEY`, with the scheme in any case, or `x-api-key`.
fn given_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme
            .eq_ignore_ascii_case("bearer")
            .then(|| key.trim_start_matches(' '))
    });
    bearer.or_else(|| text("x-api-key"))
}

/// An error response in the shape of the path's API.
pub(crate) fn refuse(path: &str, error: ApiError) -> Response {
    match path {
        _ if path.starts_with(messages::PATH) => messages::error_response(&error),
        _ if path.starts_with(ollama::PATH) => ollama::error_response(&error),
        _ => error.into_response(),
    }
}

/// Compares without stopping at the first difference, so that times do not tell how much of a key was right.
fn equal_in_constant_time(given: &[u8], key: &[u8]) -> bool {
    let mut difference = given.len() ^ key.len();
    for (index, byte) in given.iter().enumerate() {
        difference |= usize::from(byte ^ key[index % key.len().max(1)]);
    }
    std::hint::black_box(difference) == 0
}

/// Refuses requests for another host. A page on the web can make a visitor's browser connect to this machine under a name of
/// its own (DNS rebinding); only the host header tells it from the server's page.
pub(crate) async fn check_host(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let host = request.headers().get(header::HOST);
    let host = host.map(|host| host.to_str().unwrap_or_default());
    let target = request.uri().host();
    match host
        .into_iter()
        .chain(target)
        .all(|host| is_allowed_host(&app.options, host))
    {
        true => Ok(next.run(request).await),
        false => {
            let host = host.or(target).unwrap_or_default();
            let refused = format!("the host {host:?} is not allowed (--allow-host)");
            Err(ApiError::status(StatusCode::FORBIDDEN, refused))
        }
    }
}

/// Whether requests for a host are answered. A server that listens for other machines is known to them by names that only
/// `--allow-host` can tell.
fn is_allowed_host(options: &ServerOptions, host: &str) -> bool {
    let authority = host.parse::<Authority>().ok();
    // A user is no part of a host.
    let authority = authority.filter(|_| !host.contains('@'));
    let name = authority
        .as_ref()
        .map_or(host, |authority| authority.host());
    let name = name.trim_matches(['[', ']']);
    let listed = options.allow_hosts.iter();
    if listed
        .clone()
        .any(|allowed| allowed.eq_ignore_ascii_case(name) || allowed.eq_ignore_ascii_case(host))
    {
        return true;
    }
    let local = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match options.address.ip().is_loopback() || listed.len() > 0 {
        true => local,
        false => true,
    }
}

/// Refuses requests of other origins, unless `--cors-origin` allows them: a page on the web must not use the server through a
/// visitor's browser.
pub(crate) async fn check_origin(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let headers = request.headers();
    let allowed = app.options.cors_origin.as_deref();
    let is_allowed = |origin: &HeaderValue| {
        allowed.is_some_and(|allowed| allowed == "*" || origin == allowed)
            || is_own(origin, headers)
    };
    match headers.get(header::ORIGIN).is_none_or(is_allowed) {
        true => Ok(next.run(request).await),
        false => {
            let refused = "requests from this origin are not allowed (--cors-origin)";
            Err(ApiError::status(StatusCode::FORBIDDEN, refused))
        }
    }
}

/// The headers with which browsers let pages of the origin `allowed` use the server.
pub(crate) fn cors(allowed: &str) -> CorsLayer {
    let origin = match allowed {
        "*" => AllowOrigin::any(),
        allowed => {
            let allowed = allowed.to_owned();
            AllowOrigin::predicate(move |origin, _| *origin == allowed)
        }
    };
    CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Clients send headers of their own (x-stainless-…, anthropic-version, …). None of them can do harm here.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static("x-kvark-cache")])
}

/// Whether the origin is the server's own page.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let origin = Uri::try_from(origin.as_bytes()).ok();
    let origin = origin.filter(|origin| matches!(origin.scheme_str(), Some("http" | "https")));
    let host = origin.as_ref().and_then(|origin| origin.authority());
    host.is_some_and(|host| {
        headers
            .get(header::HOST)
            .is_some_and(|own| own == host.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_compared_as_a_whole() {
        for (given, key, equal) in [
            ("", "", true),
            ("secret", "secret", true),
            ("secre", "secret", false),
            ("secretsecret", "secret", false),
            ("Secret", "secret", false),
            ("", "secret", false),
        ] {
            assert_eq!(
                equal_in_constant_time(given.as_bytes(), key.as_bytes()),
                equal
            );
        }
    }

    #[test]
    fn only_names_of_this_machine_are_answered_on_loopback() {
        let loopback = ServerOptions::default();
        let listed = ServerOptions {
            allow_hosts: vec!["kvark.lan".into(), "box:9000".into()],
            ..ServerOptions::default()
        };
        let open = ServerOptions {
            address: ([0, 0, 0, 0], 8080).into(),
            ..ServerOptions::default()
        };
        for (options, host, allowed) in [
            (&loopback, "localhost", true),
            (&loopback, "LOCALHOST:8080", true),
            (&loopback, "127.0.0.1:8080", true),
            (&loopback, "127.8.9.1", true),
            (&loopback, "[::1]:8080", true),
            (&loopback, "[::1]", true),
            (&loopback, "evil.com", false),
            (&loopback, "localhost.evil.com", false),
            (&loopback, "127.0.0.1.evil.com", false),
            (&loopback, "10.0.0.1", false),
            (&loopback, "evil.com@localhost", false),
            (&loopback, "", false),
            (&listed, "kvark.lan:8080", true),
            (&listed, "box:9000", true),
            (&listed, "box:9001", false),
            (&listed, "127.0.0.1", true),
            (&open, "evil.com", true),
        ] {
            assert_eq!(is_allowed_host(options, host), allowed, "{host}");
        }
    }
}
