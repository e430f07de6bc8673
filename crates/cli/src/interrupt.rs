//! Ctrl-C ends the program with exit code 130. While a [`Listening`] guard is alive, the first Ctrl-C only sets a flag, so
//! that the work can stop cleanly; the second one exits at once. Work that may stall in a call that cannot be cancelled
//! holds a [`Stalling`] guard: if it does not stop within a moment, the program ends without it.
//!
//! After [`stop_at_termination`], SIGTERM and SIGHUP set the flag too, for the rest of the program.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The number of SIGINT.
const SIGINT: u8 = 2;

static ASKED: AtomicBool = AtomicBool::new(false);
/// The signal that terminates the program; 0 for none.
static TERMINATION: AtomicU8 = AtomicU8::new(0);
/// Whether a termination may exit at once.
static IDLE: AtomicBool = AtomicBool::new(false);
/// Whether a second Ctrl-C exits at once.
static REPEAT_EXITS: AtomicBool = AtomicBool::new(true);
static LISTENERS: AtomicUsize = AtomicUsize::new(0);
/// The message when Ctrl-C leaves stalled work; `None` if nothing can stall.
static STALLING: Mutex<Option<String>> = Mutex::new(None);
/// The function that is called before an exit at once.
static CLEANUP: Mutex<Option<Cleanup>> = Mutex::new(None);
/// The time that work which may stall gets to stop by itself.
const STOP_TIME: Duration = Duration::from_millis(500);

type Cleanup = Box<dyn FnOnce() + Send>;

/// Installs the Ctrl-C handler; `note` prints the message when stalled work is left.
pub(crate) fn install(note: fn(&str)) {
    // If the handler cannot be installed, Ctrl-C keeps its default behaviour and ends the program at once.
    let _ = ctrlc::set_handler(move || {
        let again = ASKED.swap(true, Ordering::SeqCst) && REPEAT_EXITS.load(Ordering::SeqCst);
        if again || LISTENERS.load(Ordering::SeqCst) == 0 {
            exit(SIGINT);
        }
        if stalling().is_some() {
            std::thread::sleep(STOP_TIME);
            if let Some(message) = stalling() {
                note(&format!("error: {message}"));
                exit(SIGINT);
            }
        }
    });
}

/// Ends the program with the exit code of a signal.
fn exit(signal: u8) -> ! {
    let cleanup = CLEANUP
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(cleanup) = cleanup {
        cleanup();
    }
    std::process::exit((128 + signal).into());
}

/// The exit code if a signal ended the program.
pub(crate) fn exit_code() -> Option<u8> {
    match (TERMINATION.load(Ordering::SeqCst), requested()) {
        (0, false) => None,
        (0, true) => Some(128 + SIGINT),
        (signal, _) => Some(128 + signal),
    }
}

/// From now on, the first SIGTERM or SIGHUP sets the flag of [`requested`], which [`reset`] then no longer clears; the
/// second one, or one during an [`Idle`] guard, exits at once. A signal that the parent process ignores stays ignored.
#[cfg(unix)]
pub(crate) fn stop_at_termination() {
    use signal_hook::consts::{SIGHUP, SIGTERM};
    let signals = [SIGTERM, SIGHUP].into_iter().filter(|s| !is_ignored(*s));
    // If the handler cannot be installed, the signals keep their default behaviour and end the program at once.
    let Ok(mut signals) = signal_hook::iterator::Signals::new(signals) else {
        return;
    };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let signal = u8::try_from(signal).unwrap_or_default();
            let again = TERMINATION.swap(signal, Ordering::SeqCst) != 0;
            ASKED.store(true, Ordering::SeqCst);
            if again || IDLE.load(Ordering::SeqCst) {
                exit(signal);
            }
        }
    });
}

/// Windows has no such signals.
#[cfg(not(unix))]
pub(crate) fn stop_at_termination() {}

/// Whether a signal is ignored, as SIGHUP is after `nohup`. Known on Linux only.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Whether SIGTERM or SIGHUP was received.
pub(crate) fn terminated() -> bool {
    TERMINATION.load(Ordering::SeqCst) != 0
}

/// A guard for a wait during which a termination may exit at once: no work would be lost.
pub(crate) struct Idle(());

/// Starts such a wait; `None` if the program is to end already.
pub(crate) fn idle() -> Option<Idle> {
    IDLE.store(true, Ordering::SeqCst);
    let idle = Idle(());
    (!terminated()).then_some(idle)
}

impl Drop for Idle {
    fn drop(&mut self) {
        IDLE.store(false, Ordering::SeqCst);
    }
}

/// Sets what is called before an exit at once, such as restoring the terminal; `None` for nothing.
#[cfg(unix)]
pub(crate) fn before_exit(cleanup: Option<Cleanup>) {
    *CLEANUP.lock().unwrap_or_else(PoisonError::into_inner) = cleanup;
}

/// From now on, a second Ctrl-C is like the first one.
pub(crate) fn ignore_repeats() {
    REPEAT_EXITS.store(false, Ordering::SeqCst);
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

/// Whether the work is to stop: Ctrl-C was pressed, or the program is to end.
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
    // A termination that arrived before the line above stays.
    if terminated() {
        ask();
    }
}
