//! The colours of a chat on a terminal: what is typed has the terminal's own, answers are green, and the rest is blue. There are
//! none if `NO_COLOR` is set or the output is not a terminal.

use crate::output;
use console::Term;
use std::io;

const ANSWER: &str = "\x1b[32m";
const REASONING: &str = "\x1b[2m";
const NOTE: &str = "\x1b[94m";
const RESET: &str = "\x1b[0m";

/// Prints a part of an answer to stdout.
pub(super) fn answer(text: &str) -> io::Result<()> {
    output::text(&painted(text, ANSWER, &Term::stdout()))
}

/// Prints a part of an answer's reasoning: dim on a terminal with colours, and to stderr elsewhere, so that stdout has the
/// answers only.
pub(crate) fn reasoning(text: &str) -> io::Result<()> {
    match Term::stdout().features().colors_supported() {
        true => output::text(&painted(text, REASONING, &Term::stdout())),
        false => output::reasoning(text),
    }
}

/// Prints a message of the chat itself to stderr.
pub(super) fn note(text: &str) {
    output::note(&painted(text, NOTE, &Term::stderr()));
}

/// Prints an answer from before to stderr.
pub(super) fn earlier_answer(text: &str) {
    output::note(&painted(text, ANSWER, &Term::stderr()));
}

/// The text in a colour, if `term` shows colours. Each piece ends with the terminal's own colour: the program may end after any.
fn painted(text: &str, colour: &str, term: &Term) -> String {
    match term.features().colors_supported() && !text.is_empty() {
        true => format!("{colour}{text}{RESET}"),
        false => text.to_owned(),
    }
}
