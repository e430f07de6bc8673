//! What goes to the terminal. Results go to stdout by `writeln!`, whose errors are passed on so that a closed pipe ends
//! the program quietly; all else goes to stderr through here.

use crate::interrupt;
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kvark::ProgressCallback;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Loading that is done sooner is not shown.
const A_WHILE: Duration = Duration::from_millis(300);

/// Prints an error on one line.
pub(crate) fn error(error: &anyhow::Error) {
    let text = format!("{error:#}");
    let words: Vec<&str> = text.split_whitespace().collect();
    note(&format!("error: {}", words.join(" ")));
}

/// Prints a line for people. When nobody can read it there is nobody to tell.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Warns on a line of its own, once of each thing.
pub(crate) fn warn(what: &str) {
    static WARNED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if warned.iter().all(|other| other != what) {
        note(&format!("warning: {what}"));
        warned.push(what.to_owned());
    }
}

/// Prints text at once, be it a part of a line.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Whether whoever read our output has gone away, as `head` does.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// A bar over `total` steps that shows only on a terminal and only when the work takes a while.
pub(crate) fn progress(what: &'static str, total: usize) -> ProgressBar {
    bar(
        what,
        total as u64,
        "{msg} [BAR] {pos}/{len} {per_sec} {eta}",
    )
}

/// The same over bytes.
pub(crate) fn bytes_progress(what: &'static str, total: u64) -> ProgressBar {
    bar(
        what,
        total,
        "{msg:8} [BAR] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
    )
}

/// Columns of a terminal from which on a bar of 30 characters and all that stands beside it fit into a line.
const WIDE: u16 = 100;

/// A bar in the place of `BAR` in the template: of 30 characters, or of what a narrow terminal leaves for it.
fn bar(what: &'static str, total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
    if io::stderr().is_terminal() && total > 0 {
        let wide = Term::stderr()
            .size_checked()
            .is_some_and(|(_, columns)| columns >= WIDE);
        let template = template.replace("BAR", if wide { "{bar:30}" } else { "{wide_bar}" });
        let style = ProgressStyle::with_template(&template).expect("a valid template");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what);
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        // At once: the first tick of the steady ones may come when the work is done.
        bar.tick();
        bar.enable_steady_tick(Duration::from_millis(500));
    }
    bar
}

/// Shows a bar while weights are loaded, once that takes a while; Ctrl-C ends it.
pub(crate) fn loading() -> ProgressCallback {
    let shown = Mutex::new((None, None));
    ProgressCallback::new(move |done, total| {
        let goes_on = !interrupt::asked();
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

/// A number of tokens in words.
pub(crate) fn tokens(n: usize) -> String {
    format!("{n} token{}", if n == 1 { "" } else { "s" })
}

/// A count of bytes in a unit that people read.
pub(crate) fn bytes(n: u64) -> String {
    kvark::size_text(n)
}
