//! Ctrl-C: it ends the program with code 130. Work that listens is asked to stop first and ends it in good order; the
//! second Ctrl-C does not wait for that.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The exit code of a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);
static LISTENERS: AtomicUsize = AtomicUsize::new(0);

/// Handles Ctrl-C from now on.
pub(crate) fn install() {
    // Without a handler Ctrl-C ends the program at once, which is no worse than before.
    let _ = ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) || LISTENERS.load(Ordering::SeqCst) == 0 {
            std::process::exit(EXIT_CODE.into());
        }
    });
}

/// Work that looks at [`asked`] again and again while this is alive.
pub(crate) struct Listening(());

/// Announces work that looks at [`asked`].
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
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// Takes note of a Ctrl-C that came as a key and not as a signal.
pub(crate) fn ask() {
    ASKED.store(true, Ordering::SeqCst);
}

/// Forgets a Ctrl-C that has been acted upon.
pub(crate) fn reset() {
    ASKED.store(false, Ordering::SeqCst);
}
