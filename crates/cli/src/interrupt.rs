//! Ctrl-C: the first one asks the work at hand to stop, the second ends the program.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Starts to listen.
pub(crate) fn install() {
    // Without a handler Ctrl-C ends the program at once, which is no worse than before.
    let _ = ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    });
}

/// Whether Ctrl-C was pressed.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// Forgets a Ctrl-C that has been acted upon.
pub(crate) fn reset() {
    ASKED.store(false, Ordering::SeqCst);
}
