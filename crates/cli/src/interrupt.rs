//! Ctrl-C ends the program with exit code 130. While a [`Listening`] guard is alive, the first Ctrl-C only sets a flag, so
//! that the work can stop cleanly; the second one exits at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Exit code after Ctrl-C.
pub(crate) const EXIT_CODE: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);
static LISTENERS: AtomicUsize = AtomicUsize::new(0);

/// Installs the Ctrl-C handler.
pub(crate) fn install() {
    // If the handler cannot be installed, Ctrl-C keeps its default behaviour and ends the program at once.
    let _ = ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) || LISTENERS.load(Ordering::SeqCst) == 0 {
            std::process::exit(EXIT_CODE.into());
        }
    });
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
