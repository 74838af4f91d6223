//! A spinner on standard error while a person waits. Nothing is drawn if that is not a terminal, or with `--quiet`.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::{draw_target, line_wrap, verbosity};

/// A spinner, removed from the screen when it is dropped.
pub(crate) struct Spinner(ProgressBar);

/// Whether progress can be drawn on standard error: it is a terminal that can move its cursor, and progress is wanted.
pub(crate) fn stderr_is_screen() -> bool {
    !verbosity::is_quiet() && line_wrap::is_screen(&std::io::stderr())
}

/// Lines that were queued for another thread and not written yet.
static PENDING_LINES: (Mutex<u64>, Condvar) = (Mutex::new(0), Condvar::new());

/// Counts a line that another thread will write.
pub(crate) fn add_pending_line() {
    *PENDING_LINES.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
}

/// Counts such a line as written.
pub(crate) fn remove_pending_line() {
    let mut count = PENDING_LINES.0.lock().unwrap_or_else(PoisonError::into_inner);
    *count = count.saturating_sub(1);
    PENDING_LINES.1.notify_all();
}

/// Waits until every queued line is written, at most this long: the terminal may accept no output.
pub(crate) fn wait_for_pending_lines(patience: Duration) {
    let count = PENDING_LINES.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(PENDING_LINES.1.wait_timeout_while(count, patience, |count| *count > 0));
}

/// Writes a line above the spinners; false if it cannot.
type LinePrinter = Box<dyn Fn(&'static str) -> bool + Send>;

static LINE_PRINTER: Mutex<Option<LinePrinter>> = Mutex::new(None);

/// Sets or removes what writes lines above the spinners.
pub(crate) fn set_line_printer(printer: Option<LinePrinter>) {
    *LINE_PRINTER.lock().unwrap_or_else(PoisonError::into_inner) = printer;
}

/// Writes a line above the spinners; false if there are none. Written beside them, they would overwrite it.
pub(crate) fn print_above_spinner(line: &'static str) -> bool {
    LINE_PRINTER.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|printer| printer(line))
}

/// While it exists, no notice is written next to a question.
pub(crate) struct QuietGuard(());

/// Suppresses notices until the guard is dropped.
pub(crate) fn silence_notices() -> QuietGuard {
    set_line_printer(Some(Box::new(|_| true)));
    QuietGuard(())
}

impl Drop for QuietGuard {
    fn drop(&mut self) {
        set_line_printer(None);
    }
}

/// Starts a spinner with this text.
pub(crate) fn start_spinner(text: &str) -> Spinner {
    start_spinner_with_hint(text, String::new())
}

/// How long a spinner turns before its hint appears.
const HINT_DELAY: Duration = Duration::from_secs(2);

/// Starts a spinner with this text, and after a while with this hint behind it.
pub(crate) fn start_spinner_with_hint(text: &str, hint: String) -> Spinner {
    let bar = ProgressBar::with_draw_target(None, draw_target::stderr_draw_target());
    let style =
        ProgressStyle::with_template("{spinner:.cyan} {msg}{hint} {elapsed:.dim}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    let write_hint = move |state: &ProgressState, line: &mut dyn std::fmt::Write| {
        if state.elapsed() >= HINT_DELAY {
            let _ = line.write_str(&hint);
        }
    };
    bar.set_style(style.with_key("hint", write_hint));
    bar.set_message(text.to_owned());
    // Its thread is not needed if nothing is drawn. Notices are written above it.
    if stderr_is_screen() {
        draw_target::set_spinner_active(true);
        bar.enable_steady_tick(Duration::from_millis(120));
        let above = bar.clone();
        set_line_printer(Some(Box::new(move |line| {
            above.println(line);
            true
        })));
    }
    Spinner(bar)
}

impl Spinner {
    /// Replaces the text.
    pub(crate) fn set_message(&self, text: &str) {
        self.0.set_message(text.to_owned());
    }

    /// Removes it from the screen, so that later output has the line.
    pub(crate) fn clear(self) {
        drop(self);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        set_line_printer(None);
        draw_target::set_spinner_active(false);
        self.0.finish_and_clear();
    }
}
