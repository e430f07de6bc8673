//! Messages, warnings and progress bars on stderr. Results are written to stdout by `writeln!`, and their errors are
//! returned, so that a closed pipe ends the program quietly.

use crate::interrupt;
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use kvark::backend::ProgressCallback;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Delay before a progress bar appears.
const A_WHILE: Duration = Duration::from_millis(300);

/// Prints an error on one line.
pub(crate) fn error(error: &anyhow::Error) {
    note(&format!("error: {}", error_text(error)));
}

/// An error and its causes on one line. A cause that the message before it has quoted is left out.
pub(crate) fn error_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

/// Prints a message to stderr. Write errors are ignored.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Suppresses progress bars and statistics from now on.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether progress bars and statistics are suppressed.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

static QUIET: AtomicBool = AtomicBool::new(false);

/// Prints the measurements of a run to stderr, unless they are suppressed.
pub(crate) fn statistics(line: &str) {
    if !is_quiet() {
        note(line);
    }
}

/// Prints a warning, once per text.
pub(crate) fn warn(what: &str) {
    static WARNED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if warned.iter().all(|other| other != what) {
        note(&format!("warning: {what}"));
        warned.push(what.to_owned());
    }
}

/// Whether a user types at a terminal and reads there.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Prints a part of an answer's reasoning to stderr, unless messages are suppressed.
pub(crate) fn reasoning(text: &str) -> io::Result<()> {
    match is_quiet() {
        true => Ok(()),
        false => io::stderr().write_all(text.as_bytes()),
    }
}

/// Prints text and flushes, so that partial lines appear.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Whether an error is a closed pipe, as after `head`.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Progress bar over `total` steps, shown only on a terminal and after a delay.
pub(crate) fn progress(what: &'static str, total: usize) -> ProgressBar {
    bar(what, total as u64, "{msg} [BAR] {pos}/{len} {rate} {eta}")
}

/// The same over bytes.
pub(crate) fn bytes_progress(what: &'static str, total: u64) -> ProgressBar {
    bar(
        what,
        total,
        "{msg:8} [BAR] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
    )
}

/// Formats a number of steps per second.
fn rate(per_second: f64) -> String {
    match per_second < 10.0 {
        true => format!("{per_second:.1}/s"),
        false => format!("{per_second:.0}/s"),
    }
}

/// Terminal width in columns from which a bar of 30 characters and its labels fit on one line.
const WIDE: u16 = 100;

/// Replaces `BAR` in the template by a bar of 30 characters, or of the remaining width on a narrow terminal.
fn bar(what: &'static str, total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
    if io::stderr().is_terminal() && total > 0 && !is_quiet() {
        let wide = Term::stderr()
            .size_checked()
            .is_some_and(|(_, columns)| columns >= WIDE);
        let template = template.replace("BAR", if wide { "{bar:30}" } else { "{wide_bar}" });
        let style = ProgressStyle::with_template(&template).expect("a valid template");
        let style = style.with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
            // The bar has no place for an error.
            let _ = write!(out, "{}", rate(state.per_sec()));
        });
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what);
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        // Drawn at once: the first steady tick may come after the work is done.
        bar.tick();
        bar.enable_steady_tick(Duration::from_millis(500));
    }
    bar
}

/// Progress callback for loading weights: shows a bar after a delay, and cancels on Ctrl-C.
pub(crate) fn loading() -> ProgressCallback {
    let shown = Mutex::new((None, None));
    ProgressCallback::new(move |done, total| {
        let goes_on = !interrupt::requested();
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        let (begun, bar): &mut (Option<Instant>, Option<ProgressBar>) = &mut shown;
        if done == total || !goes_on {
            *begun = None;
            if let Some(bar) = bar.take() {
                bar.finish_and_clear();
            }
        } else if begun.get_or_insert_with(Instant::now).elapsed() > A_WHILE {
            bar.get_or_insert_with(|| bytes_progress("weights", total as u64))
                .set_position(done as u64);
        }
        goes_on
    })
}

/// Formats a number of tokens.
pub(crate) fn tokens(n: usize) -> String {
    count(n, "token")
}

/// Formats a number of things, whose name takes an s in the plural.
pub(crate) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The seed for a line of statistics; empty where the most likely token is always taken, which needs none.
pub(crate) fn seed_note(sampling: &kvark::generate::SamplerOptions) -> String {
    match sampling.temperature > 0.0 {
        true => format!("seed {}; ", sampling.seed),
        false => String::new(),
    }
}

/// Formats a number of tokens, with tokens per second if measured.
pub(crate) fn measured(tokens: usize, rate: Option<f64>) -> String {
    let rate = rate.map_or(String::new(), |rate| format!(", {rate:.1}/s"));
    self::tokens(tokens) + &rate
}

/// Formats a number of bytes with a unit.
pub(crate) fn bytes(n: u64) -> String {
    kvark::memory::size_text(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn rates_have_few_digits() {
        assert_eq!(rate(116_090.603), "116091/s");
        assert_eq!(rate(4.26), "4.3/s");
    }

    #[test]
    fn a_cause_is_printed_once() {
        let cause = || io::Error::from(io::ErrorKind::NotFound);
        let plain = Err::<(), _>(cause()).context("cannot read x").unwrap_err();
        assert_eq!(error_text(&plain), "cannot read x: entity not found");
        let quoted = Err::<(), _>(cause())
            .context(format!("cannot read x: {}", cause()))
            .context("--grammar")
            .unwrap_err();
        let want = "--grammar: cannot read x: entity not found";
        assert_eq!(error_text(&quoted), want);
    }
}
