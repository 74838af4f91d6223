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
use converger_core::failure::Code;
use converger_engine::operation::Phase;
use converger_runtime::event::OperationProgress;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::render::{self, styled, theirs};
use crate::{canvas, progress};

/// Where it is said how far operations are.
pub(in crate::commands) struct Board {
    subject: Subject,
    lines: Option<mpsc::Sender<Line>>,
    painter: Option<JoinHandle<()>>,
}

/// What is to be shown.
enum Line {
    /// How far an operation is.
    Step { operation: String, text: String, phase: Phase, is_end: bool },
    /// Something else that a person should know now.
    Words(&'static str),
}

/// What is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum Subject {
    /// Steps that are carried out.
    Steps,
    /// What became of steps of earlier runs: nothing is sent.
    Past {
        /// How each ended is printed afterwards, so that it is not shown here too.
        is_reported_later: bool,
    },
}

impl Subject {
    fn shows_ends(self) -> bool {
        self != Self::Past { is_reported_later: true }
    }
}

impl Board {
    /// For so many operations.
    pub(in crate::commands) fn new(subject: Subject, count: usize) -> Self {
        let (sender, lines) = mpsc::channel();
        let shows = move || if progress::is_screen() { paint(&lines, subject, count) } else { write(&lines, subject) };
        let painter = thread::Builder::new().spawn(shows).ok();
        if painter.is_some() {
            let lines = sender.clone();
            progress::give_voice(Some(Box::new(move |words| {
                progress::said();
                lines.send(Line::Words(words)).is_ok()
            })));
        }
        // Where no thread can be had nothing is shown on the way, and the result tells.
        Self { subject, lines: painter.is_some().then_some(sender), painter }
    }

    /// An operation is further than before.
    pub(in crate::commands) fn show_progress(&self, notice: &OperationProgress) {
        let is_end = notice.outcome.is_some();
        let text = if self.subject != Subject::Steps && !is_end { looked_for(notice) } else { text(notice) };
        let line = Line::Step { operation: notice.operation.id.as_str().to_owned(), text, phase: notice.phase, is_end };
        if let Some(lines) = &self.lines {
            progress::said();
            // The painter ends after the last line only.
            let _ = lines.send(line);
        }
    }
}

impl Drop for Board {
    /// What was said is shown before anything else is.
    fn drop(&mut self) {
        progress::give_voice(None);
        self.lines = None;
        if let Some(painter) = self.painter.take() {
            let _ = painter.join();
        }
    }
}

/// A line that turns for each that is under way, one that stays for each that has ended, and below them how many of all have.
fn paint(lines: &mpsc::Receiver<Line>, subject: Subject, count: usize) {
    let (screen, mut bars) = (MultiProgress::with_draw_target(canvas::target()), BTreeMap::<String, ProgressBar>::new());
    // One alone needs no counting.
    let all = (count > 1).then(|| counting(&screen, count));
    // What is drawn does not pass the stream that leaves colours out where nobody wants them.
    let is_plain = anstream::AutoStream::choice(&std::io::stderr()) == anstream::ColorChoice::Never;
    let shown = |text: String| if is_plain { anstream::adapter::strip_str(&text).to_string() } else { text };
    for line in lines {
        match line {
            Line::Words(words) => drop(screen.println(words)),
            Line::Step { operation, text, is_end: true, .. } => {
                let bar = bars.remove(&operation);
                canvas::turns(!bars.is_empty());
                if let Some(bar) = bar {
                    bar.finish_and_clear();
                }
                if subject.shows_ends() {
                    let _ = screen.println(shown(text));
                }
                all.iter().for_each(|all| all.inc(1));
            }
            Line::Step { operation, text, .. } => {
                canvas::turns(true);
                bars.entry(operation).or_insert_with(|| spinning(&screen, all.as_ref())).set_message(shown(text));
            }
        }
        progress::shown();
    }
    // What was left under way turns no more.
    canvas::turns(false);
    bars.values().chain(&all).for_each(ProgressBar::finish_and_clear);
}

/// What cannot be drawn over is said twice for each: when it was sent, and when it has ended.
fn write(lines: &mpsc::Receiver<Line>, subject: Subject) {
    for line in lines {
        let said = match &line {
            Line::Words(words) => Some(*words),
            Line::Step { text, phase, is_end, .. } => {
                let is_shown = if *is_end { subject.shows_ends() } else { *phase == Phase::Sent && subject == Subject::Steps };
                is_shown.then_some(text.as_str())
            }
        };
        said.into_iter().for_each(write_line);
        progress::shown();
    }
}

/// In one piece: whoever is killed meanwhile leaves whole lines.
fn write_line(text: &str) {
    let is_plain = AutoStream::choice(&io::stderr()) == ColorChoice::Never;
    let text = if is_plain { strip_str(text).to_string() } else { text.to_owned() };
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

fn counting(screen: &MultiProgress, count: usize) -> ProgressBar {
    let bar = screen.add(ProgressBar::new(u64::try_from(count).unwrap_or(u64::MAX)));
    let style = ProgressStyle::with_template("{bar:30.cyan/dim} {pos} of {len} ended").unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    // It is not drawn before something moves it.
    bar.tick();
    bar
}

/// Above the line that counts.
fn spinning(screen: &MultiProgress, all: Option<&ProgressBar>) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let bar = all.map_or_else(|| screen.add(bar.clone()), |all| screen.insert_before(all, bar.clone()));
    let style = ProgressStyle::with_template("{spinner:.cyan} {msg} {elapsed:.dim}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn looked_for(notice: &OperationProgress) -> String {
    format!("{}: finding out what became of it", title(&notice.operation))
}

fn text(notice: &OperationProgress) -> String {
    let title = title(&notice.operation);
    match &notice.outcome {
        Some(outcome) => format!("{title}: {}", ended(&notice.operation, outcome)),
        None => format!("{title}: {}", phase(notice.phase)),
    }
}

/// The guest and what is done to it.
pub(super) fn title(operation: &Operation) -> String {
    let guest = &operation.guest;
    format!("{} {} {} {}", guest.vmid, guest.kind, styled(render::BOLD, theirs(&guest.name)), operation.step.change.word())
}

/// How it ended, with the cause where there is one.
pub(super) fn ended(operation: &Operation, outcome: &Outcome) -> String {
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
    format!("{}{code}", styled(style, word(outcome)))
}

/// How it ended, in a word. What was left has not ended: the journal and `ops list` have it as under way, and so has whoever is told now.
pub(super) fn word(outcome: &Outcome) -> &'static str {
    let is_left = outcome.code().is_some_and(|code| code.as_str() == Code::RunLeft.word());
    if is_left { UNDER_WAY } else { outcome.end().word() }
}

/// What has no end yet.
pub(in crate::commands) const UNDER_WAY: &str = "under way";

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting for its turn",
        Phase::Recorded => "checking",
        Phase::Checked => "sending",
        Phase::Sent => "sent",
        Phase::Tasked => UNDER_WAY,
        Phase::Settled => "proving",
        Phase::Ended => "ended",
    }
}
