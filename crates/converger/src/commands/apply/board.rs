//! What a person sees while steps are carried out: a line for each that is under way on a terminal, plain lines elsewhere.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Mutex;
use std::time::Duration;

use converger_core::apply::{Operation, Outcome};
use converger_engine::driver::Notice;
use converger_engine::operation::Phase;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::progress;
use crate::render::{self, styled, theirs};

/// The lines on the screen, by operation.
pub(super) struct Board {
    subject: Subject,
    lines: Option<(MultiProgress, Mutex<BTreeMap<String, ProgressBar>>)>,
}

/// What is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// Steps that are carried out.
    Steps,
    /// What became of steps of earlier runs: nothing is sent.
    Past,
}

impl Board {
    pub(super) fn new(subject: Subject) -> Self {
        let lines = progress::is_screen().then(|| (MultiProgress::new(), Mutex::default()));
        Self { subject, lines }
    }

    /// An operation is further than before.
    pub(super) fn notice(&self, notice: &Notice<'_>) {
        match (&self.lines, notice.outcome) {
            (None, None) if notice.phase != Phase::Sent || self.subject == Subject::Past => {}
            (None, _) => print(&text(notice)),
            (Some((screen, bars)), outcome) => {
                let mut bars = bars.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let key = notice.operation.id.as_str().to_owned();
                if outcome.is_some() {
                    if let Some(bar) = bars.remove(&key) {
                        bar.finish_and_clear();
                    }
                    let _ = screen.println(text(notice));
                    return;
                }
                let bar = bars.entry(key).or_insert_with(|| spinning(screen));
                bar.set_message(if self.subject == Subject::Past { looked_for(notice) } else { text(notice) });
            }
        }
    }
}

fn spinning(screen: &MultiProgress) -> ProgressBar {
    let bar = screen.add(ProgressBar::new_spinner());
    let style = ProgressStyle::with_template("{spinner:.cyan} {msg} {elapsed:.dim}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn print(line: &str) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

fn looked_for(notice: &Notice<'_>) -> String {
    format!("{}: finding out what became of it", title(notice.operation))
}

fn text(notice: &Notice<'_>) -> String {
    let title = title(notice.operation);
    match notice.outcome {
        Some(outcome) => format!("{title}: {}", ended(outcome)),
        None => format!("{title}: {}", phase(notice.phase)),
    }
}

/// The guest and what is done to it.
pub(super) fn title(operation: &Operation) -> String {
    let guest = &operation.guest;
    format!("{} {} {} {}", guest.vmid, guest.kind, styled(render::BOLD, theirs(&guest.name)), operation.step.change.word())
}

/// How it ended, with the cause where there is one.
pub(super) fn ended(outcome: &Outcome) -> String {
    let style = match outcome {
        Outcome::Done(_) => render::GREEN,
        _ => render::RED,
    };
    let code = outcome.code().map(|code| format!(" ({})", code.as_str())).unwrap_or_default();
    format!("{}{code}", styled(style, outcome.end().word()))
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting for its turn",
        Phase::Recorded => "recorded",
        Phase::Checked => "checking",
        Phase::Sent => "sent",
        Phase::Tasked => "under way",
        Phase::Settled => "proving",
        Phase::Ended => "ended",
    }
}
