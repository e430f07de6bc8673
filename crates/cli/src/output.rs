//! What goes to the terminal besides results: errors and progress, all on stderr.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// Prints an error on one line.
pub(crate) fn error(error: &anyhow::Error) {
    let text = format!("{error:#}");
    eprintln!(
        "error: {}",
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    );
}

/// A bar over `total` steps that shows only on a terminal and only when the work takes a while.
pub(crate) fn progress(what: &'static str, total: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::hidden());
    if std::io::stderr().is_terminal() && total > 0 {
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {per_sec} {eta}");
        bar.set_style(style.expect("a valid template").progress_chars("=> "));
        bar.set_message(what);
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        bar.enable_steady_tick(Duration::from_millis(500));
    }
    bar
}
