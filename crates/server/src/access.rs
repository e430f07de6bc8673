//! Who may use the server: keys, hosts and origins.

use crate::app::App;
use crate::error::ApiError;
use crate::messages;
use crate::options::ServerOptions;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;

/// Whose conversations a request sees: those of its key, or of everybody on a server without keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) Option<Arc<str>>);

impl Owner {
    /// The owner of a key. The name tells nothing about the key, so that it can be stored.
    fn of_key(key: &str) -> Owner {
        use sha2::{Digest, Sha256};
        let digest = Sha256::digest(key.as_bytes());
        let name: String = digest[..16].iter().map(|b| format!("{b:02x}")).collect();
        Owner(Some(name.into()))
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
    match path.starts_with(messages::PATH) {
        true => messages::error_response(&error),
        false => error.into_response(),
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
    let name = without_port(host);
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

/// The name of `NAME`, `NAME:PORT`, `[IPV6]` or `[IPV6]:PORT`.
fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    match host.rsplit_once(':') {
        // More than one colon: an IPv6 address without brackets.
        Some((name, _)) if !name.contains(':') => name,
        _ => host,
    }
}

/// Answers browsers of the allowed origin. A request from another origin is refused unless the origin is allowed: a page on
/// the web must not use the server through a visitor's browser.
pub(crate) async fn check_origin(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let allowed = app.options.cors_origin.clone();
    let headers = request.headers();
    let origin = headers.get(header::ORIGIN).cloned();
    let own = origin
        .as_ref()
        .is_some_and(|origin| is_own(origin, headers));
    let permitted = match (&origin, &allowed) {
        (None, _) => None,
        (Some(origin), Some(allowed)) if allowed == "*" || *origin == allowed => {
            Some(origin.clone())
        }
        (Some(_), _) if own => None,
        (Some(_), _) => {
            let refused = "requests from this origin are not allowed (--cors-origin)";
            return Err(ApiError::status(StatusCode::FORBIDDEN, refused));
        }
    };
    let preflight = request.method() == Method::OPTIONS && permitted.is_some();
    // Clients send headers of their own (x-stainless-…, anthropic-version, …). None of them can do harm here.
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = match preflight {
        true => StatusCode::NO_CONTENT.into_response(),
        false => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if let Some(origin) = permitted {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        let exposed = HeaderValue::from_static("x-kvark-cache");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        if preflight {
            let methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
            let usual = HeaderValue::from_static("authorization, content-type, x-api-key");
            let names = asked.unwrap_or(usual);
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
        }
    }
    Ok(response)
}

/// Whether the origin is the server's own page.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let origin = origin.to_str().ok().and_then(|origin| {
        origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"))
    });
    host.is_some() && host == origin
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
