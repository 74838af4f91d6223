//! What a person sees while waiting: a spinner on standard error, and nothing where that is not a terminal.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::{draw_target, line_wrap};

/// A spinner that turns until it is ended or dropped.
pub(crate) struct Spinner(ProgressBar);

/// Whether lines on standard error can be drawn over.
pub(crate) fn stderr_is_screen() -> bool {
    line_wrap::is_screen(&std::io::stderr())
}

/// Lines that were said and are not shown yet.
static PENDING_LINES: (Mutex<u64>, Condvar) = (Mutex::new(0), Condvar::new());

/// A line was said that somebody else will show.
pub(crate) fn add_pending_line() {
    *PENDING_LINES.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
}

/// It is shown.
pub(crate) fn remove_pending_line() {
    let mut count = PENDING_LINES.0.lock().unwrap_or_else(PoisonError::into_inner);
    *count = count.saturating_sub(1);
    PENDING_LINES.1.notify_all();
}

/// Lets what was said be shown before the program ends at once, unless the terminal takes no lines.
pub(crate) fn wait_for_pending_lines(patience: Duration) {
    let count = PENDING_LINES.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(PENDING_LINES.1.wait_timeout_while(count, patience, |count| *count > 0));
}

/// Who shows a line above what turns.
type LinePrinter = Box<dyn Fn(&'static str) -> bool + Send>;

static LINE_PRINTER: Mutex<Option<LinePrinter>> = Mutex::new(None);

/// From now on lines are shown by somebody who draws on the screen, or by nobody any more.
pub(crate) fn set_line_printer(voice: Option<LinePrinter>) {
    *LINE_PRINTER.lock().unwrap_or_else(PoisonError::into_inner) = voice;
}

/// Prints a line above the spinner or progress bars; false if there are none. A line written directly would be drawn over.
pub(crate) fn print_above_spinner(line: &'static str) -> bool {
    LINE_PRINTER.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|voice| voice(line))
}

/// While it is kept, nobody says anything beside a question.
pub(crate) struct QuietGuard(());

/// Keeps quiet until it is dropped.
pub(crate) fn silence_notices() -> QuietGuard {
    set_line_printer(Some(Box::new(|_| true)));
    QuietGuard(())
}

impl Drop for QuietGuard {
    fn drop(&mut self) {
        set_line_printer(None);
    }
}

/// Shows that something is under way.
pub(crate) fn start_spinner(what: &str) -> Spinner {
    start_spinner_with_hint(what, String::new())
}

/// How long nothing more is said about what is waited for.
const HINT_DELAY: Duration = Duration::from_secs(2);

/// The same, which says after a while what else there is to know.
pub(crate) fn start_spinner_with_hint(what: &str, later: String) -> Spinner {
    let bar = ProgressBar::with_draw_target(None, draw_target::stderr_draw_target());
    let style =
        ProgressStyle::with_template("{spinner:.cyan} {msg}{later} {elapsed:.dim}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    let later = move |state: &ProgressState, line: &mut dyn std::fmt::Write| {
        if state.elapsed() >= HINT_DELAY {
            let _ = line.write_str(&later);
        }
    };
    bar.set_style(style.with_key("later", later));
    bar.set_message(what.to_owned());
    // It turns by a thread of its own, which nobody needs who sees nothing. What is said meanwhile stands above it.
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
    /// Says what is under way now.
    pub(crate) fn set_message(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// Takes it away, so that what comes next has the line for itself.
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
