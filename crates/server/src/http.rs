//! Routes, keys, origins, limits and connections.

use crate::app::App;
use crate::error::ApiError;
use crate::{
    chat, completions, conversation_routes, embeddings, messages, openapi, operation, page,
    responses, tokenize,
};
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;
use tower_service::Service;

/// The largest size of a request's line and headers.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// The largest number of connections.
const MAX_CONNECTIONS: usize = 4096;
/// A client that reads nothing for this long while there is something to send is disconnected.
const WRITE_TIME: Duration = Duration::from_secs(60);

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let api = Router::new()
        .route("/v1/models", get(operation::models))
        .route("/v1/models/{id}", get(operation::model))
        .route("/v1/completions", post(completions::create))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/responses", post(responses::create))
        .route(messages::PATH, post(messages::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/apply-template", post(tokenize::apply_template))
        .route("/props", get(operation::props))
        .route("/slots", get(operation::slots))
        .route("/metrics", get(operation::metrics))
        .route(
            "/v1/kvark/conversations",
            get(conversation_routes::list).post(conversation_routes::create),
        )
        .route(
            "/v1/kvark/conversations/{id}",
            get(conversation_routes::get).delete(conversation_routes::delete),
        )
        .route(
            "/v1/kvark/conversations/{id}/fork",
            post(conversation_routes::fork),
        )
        .route(
            "/v1/kvark/conversations/{id}/rewind",
            post(conversation_routes::rewind),
        )
        .route(
            "/v1/kvark/conversations/{id}/keep",
            post(conversation_routes::keep),
        )
        .route(
            "/v1/kvark/cache",
            get(operation::cache).delete(operation::clear_cache),
        )
        .route("/v1/kvark/cache/{seq}", get(operation::cache_tokens))
        .route("/v1/kvark/events", get(operation::events))
        // Bodies are read after the key was checked: others cannot use up memory.
        .layer(middleware::from_fn_with_state(app.clone(), read_body))
        .layer(middleware::from_fn_with_state(app.clone(), check_key))
        .layer(DefaultBodyLimit::disable());
    api.route("/health", get(operation::health))
        .route("/openapi.json", get(openapi::serve))
        .merge(page::routes())
        .fallback(|| async { ApiError::not_found("there is no such path") })
        .method_not_allowed_fallback(|| async {
            ApiError::status(
                StatusCode::METHOD_NOT_ALLOWED,
                "the method is not allowed here",
            )
        })
        .layer(middleware::map_response(json_error))
        .layer(middleware::from_fn_with_state(app.clone(), check_origin))
        .layer(middleware::from_fn(check_head))
        .with_state(app)
}

/// Refuses requests without the key.
async fn check_key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let Some(key) = &app.options.api_key else {
        return next.run(request).await;
    };
    let headers = request.headers();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let given = bearer.or_else(|| text("x-api-key")).unwrap_or_default();
    match equal_in_constant_time(given.as_bytes(), key.as_bytes()) {
        true => next.run(request).await,
        false => refuse(request.uri().path(), ApiError::unauthorized()),
    }
}

/// An error response in the shape of the path's API.
fn refuse(path: &str, error: ApiError) -> Response {
    match path == messages::PATH {
        true => messages::error_response(&error),
        false => error.into_response(),
    }
}

/// The framework's own refusals are plain text; clients expect JSON.
async fn json_error(response: Response) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_text = kind.is_none_or(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !is_text || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let text = axum::body::to_bytes(response.into_body(), 1 << 16).await;
    let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
    ApiError::status(status, text).into_response()
}

/// Compares without stopping at the first difference, so that times do not tell how much of a key was right.
fn equal_in_constant_time(given: &[u8], key: &[u8]) -> bool {
    let mut difference = given.len() ^ key.len();
    for (index, byte) in given.iter().enumerate() {
        difference |= usize::from(byte ^ key[index % key.len().max(1)]);
    }
    std::hint::black_box(difference) == 0
}

/// Refuses long heads. The connection's buffer only limits heads that arrive in several parts.
async fn check_head(request: Request, next: Next) -> Result<Response, ApiError> {
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| name.as_str().len() + value.len() + 4);
    let bytes = request.uri().to_string().len() + headers.sum::<usize>();
    match bytes > MAX_HEADER_BYTES {
        true => Err(ApiError::status(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            format!("the head of a request has at most {MAX_HEADER_BYTES} bytes"),
        )),
        false => Ok(next.run(request).await),
    }
}

/// Answers browsers of the allowed origin. A request from another origin, or for another host, is refused unless the
/// origin is allowed: a page on the web must not use the server through a visitor's browser.
async fn check_origin(
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
            let names = HeaderValue::from_static("authorization, content-type, x-api-key");
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

/// Refuses bodies that are too large or take too long to arrive.
async fn read_body(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let limit = app.options.max_body;
    let (parts, body) = request.into_parts();
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes (--max-body)");
        ApiError::status(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let error = if HttpBody::size_hint(&body).lower() > limit as u64 {
        too_large()
    } else {
        match tokio::time::timeout(app.options.body_time, collect(body, limit)).await {
            Ok(Ok(Some(bytes))) => {
                return next.run(Request::from_parts(parts, bytes.into())).await;
            }
            Ok(Ok(None)) => too_large(),
            Ok(Err(error)) => ApiError::invalid(format!("the body was cut off: {error}")),
            Err(_) => ApiError::status(StatusCode::REQUEST_TIMEOUT, "the body took too long"),
        }
    };
    refuse(parts.uri.path(), error)
}

/// Reads a body; `None` if it is larger than `limit`.
async fn collect(body: Body, limit: usize) -> Result<Option<Vec<u8>>, axum::Error> {
    let mut bytes = vec![];
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        if bytes.len() + chunk.len() > limit {
            return Ok(None);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Some(bytes))
}

/// Serves connections until `stop` changes, then until those have ended.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    header_time: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(header_time)
        .max_buf_size(MAX_HEADER_BYTES);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => break,
        };
        // Ended connections are forgotten as new ones come.
        while connections.try_join_next().is_some() {}
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many open files: wait for others to end.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            tracing::warn!("too many connections");
            continue;
        };
        _ = stream.set_nodelay(true);
        let router = router.clone();
        let service = hyper::service::service_fn(move |request| router.clone().call(request));
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(WRITE_TIME));
        let stream = TokioIo::new(Box::pin(stream));
        let connection = builder.serve_connection(stream, service);
        let mut stop = stop.clone();
        connections.spawn(async move {
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => {}
                _ = stop.changed() => {
                    connection.as_mut().graceful_shutdown();
                    _ = connection.await;
                }
            }
            drop(place);
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
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
}
