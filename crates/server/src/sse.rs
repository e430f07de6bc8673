//! Answers as server-sent events, and other streams of them.

use crate::chat_answer::{ChatAnswer, ChatEvent};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

/// A comment is sent after this long without an event, so that a gone client is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The name of a server-sent event, if it has one, and its data.
pub(crate) type Frame = (Option<&'static str>, String);

/// How an API states an answer: as frames while it comes, and whole.
pub(crate) trait AnswerFormat: Send + 'static {
    /// Adds what happened to the answer.
    fn event(&mut self, event: ChatEvent);

    /// The frames that are to be sent.
    fn ready(&mut self) -> &mut VecDeque<Frame>;

    /// The whole answer.
    fn whole(self) -> Value;

    /// The answer as it comes: server-sent events.
    fn stream(self, chat: ChatAnswer) -> Response
    where
        Self: Sized,
    {
        answer(chat, self)
    }
}

/// Streams an answer as server-sent events.
fn answer<F: AnswerFormat>(answer: ChatAnswer, format: F) -> Response {
    response((answer, format), next_frame)
}

/// The next frame of an answer; `None` after its end.
pub(crate) async fn next_frame<F: AnswerFormat>(
    (mut answer, mut format): (ChatAnswer, F),
) -> Option<(Frame, (ChatAnswer, F))> {
    loop {
        if let Some(frame) = format.ready().pop_front() {
            return Some((frame, (answer, format)));
        }
        format.event(answer.next().await?);
    }
}

/// A stream of events: `next` gives the next one and the state after it.
pub(crate) fn response<S, F>(state: S, next: impl Fn(S) -> F + Send + 'static) -> Response
where
    S: Send + 'static,
    F: Future<Output = Option<(Frame, S)>> + Send + 'static,
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
