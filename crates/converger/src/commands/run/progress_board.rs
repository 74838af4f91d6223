//! Progress of operations on standard error: on a terminal a spinner for each operation in flight, elsewhere a line when one is sent and one when
//! it ends. With `--quiet` nothing.
//!
//! A terminal may stop accepting output (Ctrl-S, a pipe that nobody reads), so a separate thread writes it: operations never wait for a screen.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use converger_core::apply::{Operation, Outcome};
use converger_core::failure::FailureCode;
use converger_engine::operation::Phase;
use converger_runtime::event::OperationProgress;
use converger_runtime::operation_resolution::IN_FLIGHT;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::render::{self, apply_style, quote_untrusted};
use crate::{draw_target, progress, verbosity};

/// Shows the progress of operations until it is dropped.
pub(in crate::commands) struct ProgressBoard {
    subject: BoardSubject,
    lines: Option<mpsc::Sender<BoardLine>>,
    display_thread: Option<JoinHandle<()>>,
}

/// A line for the thread that writes.
enum BoardLine {
    /// The progress of an operation.
    Step { operation: String, text: String, phase: Phase, is_end: bool },
    /// A notice between them.
    Text(&'static str),
}

/// The operations that are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum BoardSubject {
    /// The steps of this run.
    Steps,
    /// Operations of earlier runs that are being recovered: nothing is sent.
    Recovery {
        /// Standard output has the outcomes afterwards, so they are not shown here too.
        is_reported_later: bool,
    },
}

impl BoardSubject {
    fn shows_ends(self) -> bool {
        self != Self::Recovery { is_reported_later: true }
    }
}

impl ProgressBoard {
    /// A board for `count` operations.
    pub(in crate::commands) fn new(subject: BoardSubject, count: usize) -> Self {
        if verbosity::is_quiet() {
            return Self { subject, lines: None, display_thread: None };
        }
        let (sender, lines) = mpsc::channel();
        let show = move || if progress::stderr_is_screen() { draw_lines(&lines, subject, count) } else { write_lines(&lines, subject) };
        let thread = thread::Builder::new().spawn(show).ok();
        if thread.is_some() {
            let lines = sender.clone();
            progress::set_line_printer(Some(Box::new(move |text| {
                progress::add_pending_line();
                lines.send(BoardLine::Text(text)).is_ok()
            })));
        }
        // Without a thread there is no progress; the result is shown all the same.
        Self { subject, lines: thread.is_some().then_some(sender), display_thread: thread }
    }

    /// Shows that an operation advanced.
    pub(in crate::commands) fn show_progress(&self, advanced: &OperationProgress) {
        let is_end = advanced.outcome.is_some();
        let text = if self.subject != BoardSubject::Steps && !is_end { recovery_text(advanced) } else { progress_text(advanced) };
        let line = BoardLine::Step { operation: advanced.operation.id.as_str().to_owned(), text, phase: advanced.phase, is_end };
        if let Some(lines) = &self.lines {
            progress::add_pending_line();
            // The thread ends only after the last line.
            let _ = lines.send(line);
        }
    }
}

impl Drop for ProgressBoard {
    /// Waits until every line is written, so that later output comes after it.
    fn drop(&mut self) {
        progress::set_line_printer(None);
        self.lines = None;
        if let Some(thread) = self.display_thread.take() {
            let _ = thread.join();
        }
    }
}

/// Draws a spinner for each operation in flight, a line for each that ended, and below them the number that ended.
fn draw_lines(lines: &mpsc::Receiver<BoardLine>, subject: BoardSubject, count: usize) {
    let (screen, mut bars) = (MultiProgress::with_draw_target(draw_target::stderr_draw_target()), BTreeMap::<String, ProgressBar>::new());
    // A single operation needs no count.
    let all = (count > 1).then(|| add_total_bar(&screen, count));
    // Drawn text bypasses the stream that strips styles.
    let is_plain = AutoStream::choice(&io::stderr()) == ColorChoice::Never;
    let strip_if_plain = |text: String| if is_plain { strip_str(&text).to_string() } else { text };
    for line in lines {
        match line {
            BoardLine::Text(text) => drop(screen.println(text)),
            BoardLine::Step { operation, text, is_end: true, .. } => {
                let bar = bars.remove(&operation);
                draw_target::set_spinner_active(!bars.is_empty());
                if let Some(bar) = bar {
                    bar.finish_and_clear();
                }
                if subject.shows_ends() {
                    let _ = screen.println(strip_if_plain(text));
                }
                all.iter().for_each(|all| all.inc(1));
            }
            BoardLine::Step { operation, text, .. } => {
                draw_target::set_spinner_active(true);
                bars.entry(operation).or_insert_with(|| add_spinner(&screen, all.as_ref())).set_message(strip_if_plain(text));
            }
        }
        progress::remove_pending_line();
    }
    // Operations that were left in flight have spinners still.
    draw_target::set_spinner_active(false);
    bars.values().chain(&all).for_each(ProgressBar::finish_and_clear);
}

/// Writes a line for each operation that is sent and for each that ends, where nothing can be redrawn.
fn write_lines(lines: &mpsc::Receiver<BoardLine>, subject: BoardSubject) {
    for line in lines {
        let text = match &line {
            BoardLine::Text(text) => Some(*text),
            BoardLine::Step { text, phase, is_end, .. } => {
                let is_shown = if *is_end { subject.shows_ends() } else { *phase == Phase::Sent && subject == BoardSubject::Steps };
                is_shown.then_some(text.as_str())
            }
        };
        text.into_iter().for_each(write_line);
        progress::remove_pending_line();
    }
}

/// Writes a line with one call, so that a process that is killed leaves whole lines.
fn write_line(text: &str) {
    let is_plain = AutoStream::choice(&io::stderr()) == ColorChoice::Never;
    let text = if is_plain { strip_str(text).to_string() } else { text.to_owned() };
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

fn add_total_bar(screen: &MultiProgress, count: usize) -> ProgressBar {
    let bar = screen.add(ProgressBar::new(u64::try_from(count).unwrap_or(u64::MAX)));
    let style = ProgressStyle::with_template("{bar:30.cyan/dim} {pos} of {len} ended").unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    // Not drawn before the first tick.
    bar.tick();
    bar
}

/// A spinner above the total.
fn add_spinner(screen: &MultiProgress, all: Option<&ProgressBar>) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let bar = all.map_or_else(|| screen.add(bar.clone()), |all| screen.insert_before(all, bar.clone()));
    let style = ProgressStyle::with_template("{spinner:.cyan} {msg} {elapsed:.dim}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn recovery_text(advanced: &OperationProgress) -> String {
    format!("{}: recovering", operation_title(&advanced.operation))
}

fn progress_text(advanced: &OperationProgress) -> String {
    let title = operation_title(&advanced.operation);
    match &advanced.outcome {
        Some(outcome) => format!("{title}: {}", outcome_text(&advanced.operation, outcome)),
        None => format!("{title}: {}", phase_text(advanced.phase)),
    }
}

/// The guest and the change.
pub(super) fn operation_title(operation: &Operation) -> String {
    let guest = &operation.guest;
    format!("{} {} {} {}", guest.vmid, guest.kind, apply_style(render::BOLD, quote_untrusted(&guest.name)), operation.step.change.word())
}

/// How an operation ended, with its cause if it has one.
pub(super) fn outcome_text(operation: &Operation, outcome: &Outcome) -> String {
    let style = match outcome {
        Outcome::Done(_) => render::GREEN,
        _ => render::RED,
    };
    let code = outcome
        .code()
        .map(|code| code.as_str())
        .or_else(|| render::nothing_sent(operation, outcome))
        .map(|code| format!(" ({code})"))
        .unwrap_or_default();
    format!("{}{code}", apply_style(style, outcome_word(outcome)))
}

/// The outcome in one word. An operation that was left open is shown as in flight, like in the journal and `ops list`.
pub(super) fn outcome_word(outcome: &Outcome) -> &'static str {
    let is_left = outcome.code().is_some_and(|code| code.as_str() == FailureCode::RunLeft.word());
    if is_left { IN_FLIGHT } else { outcome.end().word() }
}

fn phase_text(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Recorded => "checking",
        Phase::Checked => "sending",
        Phase::Sent => "sent",
        Phase::Tasked => IN_FLIGHT,
        Phase::Settled => "verifying",
        Phase::Ended => "ended",
    }
}
