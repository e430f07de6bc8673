//! Ctrl-C ends the program with exit code 130. While a [`Listening`] guard is alive, the first Ctrl-C only sets a flag, so
//! that the work can stop cleanly; the second one exits at once. Work that may stall in a call that cannot be cancelled
//! holds a [`Stalling`] guard: if it does not stop within a moment, the program ends without it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Exit code after Ctrl-C.
pub(crate) const EXIT_CODE: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);
static LISTENERS: AtomicUsize = AtomicUsize::new(0);
/// The message when Ctrl-C leaves stalled work; `None` if nothing can stall.
static STALLING: Mutex<Option<String>> = Mutex::new(None);
/// The time that work which may stall gets to stop by itself.
const STOP_TIME: Duration = Duration::from_millis(500);

/// Installs the Ctrl-C handler; `note` prints the message when stalled work is left.
pub(crate) fn install(note: fn(&str)) {
    // If the handler cannot be installed, Ctrl-C keeps its default behaviour and ends the program at once.
    let _ = ctrlc::set_handler(move || {
        if ASKED.swap(true, Ordering::SeqCst) || LISTENERS.load(Ordering::SeqCst) == 0 {
            std::process::exit(EXIT_CODE.into());
        }
        if stalling().is_some() {
            std::thread::sleep(STOP_TIME);
            if let Some(message) = stalling() {
                note(&format!("error: {message}"));
                std::process::exit(EXIT_CODE.into());
            }
        }
    });
}

fn stalling() -> Option<String> {
    let message = STALLING.lock().unwrap_or_else(PoisonError::into_inner);
    message.clone()
}

/// A guard for work that may stall in a call that cannot be cancelled, such as a read from the network.
pub(crate) struct Stalling(());

/// Starts work that may stall and can be left at any time. `message` is printed when Ctrl-C leaves it.
pub(crate) fn may_stall(message: String) -> Stalling {
    *STALLING.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    Stalling(())
}

impl Drop for Stalling {
    fn drop(&mut self) {
        *STALLING.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A guard for work that polls [`requested`].
pub(crate) struct Listening(());

/// Starts work that polls [`requested`].
pub(crate) fn listen() -> Listening {
    LISTENERS.fetch_add(1, Ordering::SeqCst);
    Listening(())
}

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENERS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether Ctrl-C was pressed.
pub(crate) fn requested() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// Sets the flag for a Ctrl-C that arrived as a key press instead of a signal.
pub(crate) fn ask() {
    ASKED.store(true, Ordering::SeqCst);
}

/// Clears the flag after a Ctrl-C was handled.
pub(crate) fn reset() {
    ASKED.store(false, Ordering::SeqCst);
}
