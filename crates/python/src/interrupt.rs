//! Work that Ctrl-C ends at once, however long its current step takes.

use crate::error::Result;
use crate::loaded::lock;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a waiting call looks for signals, such as Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(20);

/// Tells work that its caller no longer waits for it.
#[derive(Clone, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs `work` on a thread of its own and waits for it without the interpreter's lock. What a signal handler raises is raised
/// here at once; the work is cancelled then and ends after its current step, with the locks that it holds.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Cancel) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = channel();
    let cancel = Cancel::default();
    let seen = cancel.clone();
    let thread = std::thread::spawn(move || _ = sender.send(work(&seen)));
    match wait(py, &Mutex::new(receiver), || cancel.set())? {
        Some(found) => found,
        // The work ended without a result: its thread panicked.
        None => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the work sends a result before it ends"),
        },
    }
}

/// Waits for a message without the interpreter's lock; `None` if the sender is gone. Calls `cancel` before it raises what a
/// signal handler raises.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    receiver: &Mutex<Receiver<T>>,
    cancel: impl FnOnce(),
) -> Result<Option<T>> {
    loop {
        match py.detach(|| lock(receiver).recv_timeout(SIGNAL_INTERVAL)) {
            Ok(found) => return Ok(Some(found)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(error) = py.check_signals() {
                    cancel();
                    return Err(error.into());
                }
            }
        }
    }
}
