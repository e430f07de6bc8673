//! Compiles a grammar on a thread of its own, with a deep stack and a time limit.
//!
//! llguidance walks a grammar recursively and cannot be interrupted. A thread with a stack of its own keeps a deep grammar from
//! ending the process, and callers stop waiting when the time is over.

use crate::GrammarError;
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The stack of a compiling thread. Only the pages that a grammar reaches are ever in memory.
const STACK_BYTES: usize = 256 << 20;

/// The largest number of threads that compile at once. A thread whose caller stopped waiting counts until it ends.
const MAX_THREADS: usize = 2;

/// Counts the compiling threads of the process.
#[derive(Default)]
struct Threads {
    running: Mutex<usize>,
    ended: Condvar,
}

static THREADS: Threads = Threads {
    running: Mutex::new(0),
    ended: Condvar::new(),
};

/// A place among the compiling threads; dropping it frees the place.
struct Place;

impl Place {
    /// Waits for a place until `deadline`.
    fn take(deadline: Instant) -> Option<Place> {
        let mut running = lock(&THREADS.running);
        while *running >= MAX_THREADS {
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = THREADS.ended.wait_timeout(running, left);
            running = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *running += 1;
        Some(Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *lock(&THREADS.running) -= 1;
        THREADS.ended.notify_one();
    }
}

fn lock(count: &Mutex<usize>) -> MutexGuard<'_, usize> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fresh matcher of a grammar.
///
/// # Errors
/// `Invalid` for a grammar that llguidance refuses, `TooSlow` after `limit`.
pub(crate) fn compile(
    factory: &Arc<ParserFactory>,
    grammar: TopLevelGrammar,
    limit: Duration,
) -> Result<Matcher, GrammarError> {
    let too_slow = || GrammarError::TooSlow {
        seconds: limit.as_secs(),
    };
    let deadline = Instant::now() + limit;
    let place = Place::take(deadline).ok_or_else(too_slow)?;
    let (sender, receiver) = channel();
    let factory = factory.clone();
    let work = move || {
        let matcher = Matcher::new(factory.create_parser(grammar));
        let error = matcher.get_error();
        drop(place);
        _ = sender.send(match error {
            None => Ok(matcher),
            Some(error) => Err(GrammarError::Invalid(error_text(&error))),
        });
    };
    let thread = std::thread::Builder::new()
        .name("kvark-grammar".to_owned())
        .stack_size(STACK_BYTES);
    thread.spawn(work).map_err(|error| {
        GrammarError::Invalid(format!("no thread to compile the grammar: {error}"))
    })?;
    let left = deadline.saturating_duration_since(Instant::now());
    match receiver.recv_timeout(left) {
        Ok(compiled) => compiled,
        Err(RecvTimeoutError::Timeout) => Err(too_slow()),
        Err(RecvTimeoutError::Disconnected) => Err(GrammarError::Invalid(
            "the grammar cannot be compiled".to_owned(),
        )),
    }
}

/// The longest line of an error; longer ones quote the grammar.
const MAX_ERROR_LINE: usize = 200;

/// The error message without long quotations of the grammar, and without the backtrace that llguidance appends to a failed
/// assertion of its own.
fn error_text(error: &str) -> String {
    let message = error.split("<backtrace>").next().unwrap_or(error).trim();
    if let Some(assertion) = message.strip_prefix("panic: ") {
        let line = assertion.lines().next().unwrap_or_default();
        return format!("the grammar cannot be compiled ({line})");
    }
    let shortened = |line: &str| match line.char_indices().nth(MAX_ERROR_LINE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    };
    let lines: Vec<String> = message.lines().take(8).map(shortened).collect();
    lines.join("\n")
}
