//! What a person sees while steps are carried out: a line for each that is under way on a terminal, plain lines elsewhere.
//!
//! A terminal may stop taking lines (Ctrl-S, a pipe that nobody reads). Whatever is shown is therefore shown by a thread of its own: nothing
//! that is carried out ever waits for a screen.

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
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::render::{self, apply_style, quote_untrusted};
use crate::{draw_target, progress};

/// Where it is said how far operations are.
pub(in crate::commands) struct ProgressBoard {
    subject: BoardSubject,
    lines: Option<mpsc::Sender<BoardLine>>,
    display_thread: Option<JoinHandle<()>>,
}

/// What is to be shown.
enum BoardLine {
    /// How far an operation is.
    Step { operation: String, text: String, phase: Phase, is_end: bool },
    /// Something else that a person should know now.
    Text(&'static str),
}

/// What is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum BoardSubject {
    /// Steps that are carried out.
    Steps,
    /// What became of steps of earlier runs: nothing is sent.
    Recovery {
        /// How each ended is printed afterwards, so that it is not shown here too.
        is_reported_later: bool,
    },
}

impl BoardSubject {
    fn shows_ends(self) -> bool {
        self != Self::Recovery { is_reported_later: true }
    }
}

impl ProgressBoard {
    /// For so many operations.
    pub(in crate::commands) fn new(subject: BoardSubject, count: usize) -> Self {
        let (sender, lines) = mpsc::channel();
        let shows = move || if progress::stderr_is_screen() { draw_lines(&lines, subject, count) } else { write_lines(&lines, subject) };
        let painter = thread::Builder::new().spawn(shows).ok();
        if painter.is_some() {
            let lines = sender.clone();
            progress::set_line_printer(Some(Box::new(move |words| {
                progress::add_pending_line();
                lines.send(BoardLine::Text(words)).is_ok()
            })));
        }
        // Where no thread can be had nothing is shown on the way, and the result tells.
        Self { subject, lines: painter.is_some().then_some(sender), display_thread: painter }
    }

    /// An operation is further than before.
    pub(in crate::commands) fn show_progress(&self, show_progress: &OperationProgress) {
        let is_end = show_progress.outcome.is_some();
        let text = if self.subject != BoardSubject::Steps && !is_end { recovery_text(show_progress) } else { progress_text(show_progress) };
        let line = BoardLine::Step { operation: show_progress.operation.id.as_str().to_owned(), text, phase: show_progress.phase, is_end };
        if let Some(lines) = &self.lines {
            progress::add_pending_line();
            // The painter ends after the last line only.
            let _ = lines.send(line);
        }
    }
}

impl Drop for ProgressBoard {
    /// What was said is shown before anything else is.
    fn drop(&mut self) {
        progress::set_line_printer(None);
        self.lines = None;
        if let Some(painter) = self.display_thread.take() {
            let _ = painter.join();
        }
    }
}

/// A line that turns for each that is under way, one that stays for each that has ended, and below them how many of all have.
fn draw_lines(lines: &mpsc::Receiver<BoardLine>, subject: BoardSubject, count: usize) {
    let (screen, mut bars) = (MultiProgress::with_draw_target(draw_target::stderr_draw_target()), BTreeMap::<String, ProgressBar>::new());
    // One alone needs no counting.
    let all = (count > 1).then(|| add_total_bar(&screen, count));
    // What is drawn does not pass the stream that leaves colours out where nobody wants them.
    let is_plain = anstream::AutoStream::choice(&std::io::stderr()) == anstream::ColorChoice::Never;
    let shown = |text: String| if is_plain { anstream::adapter::strip_str(&text).to_string() } else { text };
    for line in lines {
        match line {
            BoardLine::Text(words) => drop(screen.println(words)),
            BoardLine::Step { operation, text, is_end: true, .. } => {
                let bar = bars.remove(&operation);
                draw_target::set_spinner_active(!bars.is_empty());
                if let Some(bar) = bar {
                    bar.finish_and_clear();
                }
                if subject.shows_ends() {
                    let _ = screen.println(shown(text));
                }
                all.iter().for_each(|all| all.inc(1));
            }
            BoardLine::Step { operation, text, .. } => {
                draw_target::set_spinner_active(true);
                bars.entry(operation).or_insert_with(|| add_spinner(&screen, all.as_ref())).set_message(shown(text));
            }
        }
        progress::remove_pending_line();
    }
    // What was left under way turns no more.
    draw_target::set_spinner_active(false);
    bars.values().chain(&all).for_each(ProgressBar::finish_and_clear);
}

/// What cannot be drawn over is said twice for each: when it was sent, and when it has ended.
fn write_lines(lines: &mpsc::Receiver<BoardLine>, subject: BoardSubject) {
    for line in lines {
        let said = match &line {
            BoardLine::Text(words) => Some(*words),
            BoardLine::Step { text, phase, is_end, .. } => {
                let is_shown = if *is_end { subject.shows_ends() } else { *phase == Phase::Sent && subject == BoardSubject::Steps };
                is_shown.then_some(text.as_str())
            }
        };
        said.into_iter().for_each(write_line);
        progress::remove_pending_line();
    }
}

/// In one write, so that a killed process leaves whole lines.
fn write_line(text: &str) {
    let is_plain = AutoStream::choice(&io::stderr()) == ColorChoice::Never;
    let text = if is_plain { strip_str(text).to_string() } else { text.to_owned() };
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

fn add_total_bar(screen: &MultiProgress, count: usize) -> ProgressBar {
    let bar = screen.add(ProgressBar::new(u64::try_from(count).unwrap_or(u64::MAX)));
    let style = ProgressStyle::with_template("{bar:30.cyan/dim} {pos} of {len} ended").unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    // It is not drawn before something moves it.
    bar.tick();
    bar
}

/// Above the line that counts.
fn add_spinner(screen: &MultiProgress, all: Option<&ProgressBar>) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let bar = all.map_or_else(|| screen.add(bar.clone()), |all| screen.insert_before(all, bar.clone()));
    let style = ProgressStyle::with_template("{spinner:.cyan} {msg} {elapsed:.dim}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn recovery_text(notice: &OperationProgress) -> String {
    format!("{}: finding out what became of it", operation_title(&notice.operation))
}

fn progress_text(notice: &OperationProgress) -> String {
    let title = operation_title(&notice.operation);
    match &notice.outcome {
        Some(outcome) => format!("{title}: {}", outcome_text(&notice.operation, outcome)),
        None => format!("{title}: {}", phase_text(notice.phase)),
    }
}

/// The guest and what is done to it.
pub(super) fn operation_title(operation: &Operation) -> String {
    let guest = &operation.guest;
    format!("{} {} {} {}", guest.vmid, guest.kind, apply_style(render::BOLD, quote_untrusted(&guest.name)), operation.step.change.word())
}

/// How it ended, with the cause where there is one.
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

/// What has no end yet.
pub(in crate::commands) const IN_FLIGHT: &str = "under way";

fn phase_text(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting for its turn",
        Phase::Recorded => "checking",
        Phase::Checked => "sending",
        Phase::Sent => "sent",
        Phase::Tasked => IN_FLIGHT,
        Phase::Settled => "proving",
        Phase::Ended => "ended",
    }
}
