//! Routes, limits and connections.

use crate::access::{check_host, check_key, check_origin, cors, refuse};
use crate::app::App;
use crate::error::ApiError;
use crate::page;
use crate::routes::{self, Endpoint};
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::rejection::{BytesRejection, FailedToBufferBody};
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::{DeadlineBody, TimeoutBody, TimeoutError};
use tower_service::Service;

/// The largest size of a request's line and headers.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// The largest number of connections.
const MAX_CONNECTIONS: usize = 4096;
/// A client that reads nothing for this long while there is something to send is disconnected.
const WRITE_TIME: Duration = Duration::from_secs(60);

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let (private, open): (Vec<_>, Vec<_>) = routes::endpoints()
        .into_iter()
        .partition(|endpoint| endpoint.needs_key);
    let route = |router: Router<_>, endpoint: Endpoint| {
        let paths = [endpoint.path]
            .into_iter()
            .chain(endpoint.aliases.iter().copied());
        paths.fold(router, |router, path| {
            router.route(path, endpoint.handler.clone())
        })
    };
    let api = private
        .into_iter()
        .fold(Router::new(), route)
        // Bodies are read after the key was checked: others cannot use up memory.
        .layer(middleware::from_fn_with_state(app.clone(), read_body))
        .layer(middleware::from_fn_with_state(app.clone(), check_key))
        .layer(DefaultBodyLimit::max(app.options.max_body));
    let router = open
        .into_iter()
        .fold(api, route)
        .merge(page::routes())
        .fallback(|| async { ApiError::not_found("there is no such path") })
        .method_not_allowed_fallback(|| async {
            ApiError::status(
                StatusCode::METHOD_NOT_ALLOWED,
                "the method is not allowed here",
            )
        })
        .layer(middleware::map_response(json_error));
    let router = match &app.options.cors_origin {
        Some(origin) => router.layer(cors(origin)),
        None => router,
    };
    let no_sniffing = HeaderValue::from_static("nosniff");
    router
        .layer(middleware::from_fn_with_state(app.clone(), check_origin))
        .layer(middleware::from_fn_with_state(app.clone(), check_host))
        .layer(middleware::from_fn(check_head))
        .layer(SetResponseHeaderLayer::overriding(
            header::X_CONTENT_TYPE_OPTIONS,
            no_sniffing,
        ))
        .layer(middleware::from_fn(log_request))
        .with_state(app)
}

/// Logs a request and the head of its answer at the level debug.
async fn log_request(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let started = std::time::Instant::now();
    let response = next.run(request).await;
    let status = response.status().as_u16();
    let milliseconds = started.elapsed().as_millis() as u64;
    tracing::debug!(%method, path, status, milliseconds, "answered");
    response
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

/// Refuses bodies that are larger than `--max-body`, take too long, or pause for too long.
async fn read_body(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let options = &app.options;
    let too_large = || {
        let limit = options.max_body;
        let message = format!("the body is larger than {limit} bytes (--max-body)");
        ApiError::status(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let stated = request.body().size_hint().lower();
    let (parts, body) = request.into_parts();
    let error = if stated > options.max_body as u64 {
        too_large()
    } else {
        let body = DeadlineBody::new(options.body_time, body);
        let body = Body::new(TimeoutBody::new(options.header_time, body));
        match Bytes::from_request(Request::from_parts(parts.clone(), body), &()).await {
            Ok(bytes) => return next.run(Request::from_parts(parts, bytes.into())).await,
            Err(BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_))) => {
                too_large()
            }
            Err(error) if is_timeout(&error) => {
                ApiError::status(StatusCode::REQUEST_TIMEOUT, "the body took too long")
            }
            Err(error) => ApiError::invalid(format!("the body was cut off: {}", error.body_text())),
        }
    };
    refuse(parts.uri.path(), error)
}

/// Whether an error, or an error that caused it, is a timeout.
fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    error.is::<TimeoutError>() || error.source().is_some_and(is_timeout)
}

/// Serves connections until `stop` changes, then until those have ended.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    header_time: Duration,
    mut stop: watch::Receiver<u32>,
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
