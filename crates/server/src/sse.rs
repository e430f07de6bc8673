//! Server-sent events.

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

/// A comment is sent after this long without an event, so that a gone client is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A stream of `data:` lines: `next` gives the next one and the state after it.
pub(crate) fn response<S, F>(state: S, next: fn(S) -> F) -> Response
where
    S: Send + 'static,
    F: Future<Output = Option<(String, S)>> + Send + 'static,
{
    named(state, move |state| {
        let item = next(state);
        async move { item.await.map(|(data, state)| ((None, data), state)) }
    })
}

/// A stream of events with names.
pub(crate) fn named<S, F>(state: S, next: impl Fn(S) -> F + Send + 'static) -> Response
where
    S: Send + 'static,
    F: Future<Output = Option<((Option<&'static str>, String), S)>> + Send + 'static,
{
    let events = futures_util::stream::unfold(state, move |state| {
        let item = next(state);
        async move {
            let ((name, data), state) = item.await?;
            let event = Event::default().data(data);
            let event = match name {
                Some(name) => event.event(name),
                None => event,
            };
            Some((Ok::<Event, Infallible>(event), state))
        }
    });
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    sse.into_response()
}
