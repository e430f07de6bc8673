//! `Typeahead`: the settings of the terminal during a chat. Keys that are pressed while the model answers are neither
//! echoed into the answer nor lost: they wait for the next prompt.

use crate::interrupt;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use std::io::Write;

/// A guard that restores the settings of the terminal.
pub(super) struct Typeahead(Termios);

impl Typeahead {
    /// Changes the settings of the terminal that stdin is; `None` if that is not possible.
    ///
    /// A terminal that edits lines itself cuts them at 4,096 bytes and drops what was typed when Ctrl-C is pressed. The line
    /// editor keeps these settings as the ones to return to after each line.
    pub(super) fn begin() -> Option<Typeahead> {
        // The line editor leaves editing to these.
        let term = std::env::var("TERM").unwrap_or_default();
        if ["dumb", "cons25", "emacs"].contains(&&*term) {
            return None;
        }
        let stdin = rustix::stdio::stdin();
        let original = tcgetattr(stdin).ok()?;
        let mut changed = original.clone();
        changed.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        changed.local_modes |= LocalModes::NOFLSH;
        changed.special_codes[SpecialCodeIndex::VMIN] = 1;
        changed.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(stdin, OptionalActions::Now, &changed).ok()?;
        let at_exit = original.clone();
        interrupt::before_exit(Some(Box::new(move || {
            restore(&at_exit);
            // The line editor has asked for bracketed paste if it waits for a line.
            let _ = writeln!(std::io::stderr(), "\x1b[?2004l");
        })));
        Some(Typeahead(original))
    }
}

impl Drop for Typeahead {
    fn drop(&mut self) {
        interrupt::before_exit(None);
        restore(&self.0);
    }
}

fn restore(settings: &Termios) {
    let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, settings);
}
