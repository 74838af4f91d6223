//! Shows the events of a run on standard error: a spinner and notes while an environment is observed, and the progress of operations.
//!
//! Events are shown in order, by the caller. Only the progress of operations has its own thread, so that a run never waits for a screen.

use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use converger_runtime::{EventSink, RunEvent};

use super::run::{BoardSubject, ProgressBoard, mention, recovered_text};
use crate::progress::{self, Spinner};
use crate::{line_wrap, output, render, verbosity};

/// Shown once while a response is late.
const SLOW_RESPONSE: &str = "no response for 2 s: still waiting, nothing is sent twice";

/// Shows events; owns what is on the screen.
#[derive(Default)]
pub(super) struct Display {
    shown: Mutex<Shown>,
}

#[derive(Default)]
struct Shown {
    spinner: Option<Spinner>,
    board: Option<ProgressBoard>,
    /// Called once, after the first observation: from then on a signal asks for an orderly end.
    on_observed: Option<Box<dyn FnOnce() + Send>>,
    /// Whether recovered operations are printed on standard output.
    prints_recovered: bool,
}

impl Display {
    /// A display for commands that read.
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A display for `apply`, which prints recovered operations unless standard output is for JSON.
    pub(super) fn for_apply(json: bool) -> Arc<Self> {
        let display = Self::new();
        display.lock().prints_recovered = !json;
        display
    }

    /// Registers a function to call after the first observation.
    pub(super) fn on_observed(&self, call: impl FnOnce() + Send + 'static) {
        self.lock().on_observed = Some(Box::new(call));
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSink for Display {
    fn publish(&self, event: RunEvent) {
        let mut shown = self.lock();
        match event {
            RunEvent::OperationsOpen(histories) | RunEvent::OperationsHeld(histories) => {
                let text: String = histories.iter().map(render::render_unsettled_operation).collect();
                output::print_notice(text.trim_end());
            }
            RunEvent::ObservationStarted { environment, endpoints } => {
                let hint = format!(": waiting for {}", endpoints.join(", "));
                shown.spinner = Some(progress::start_spinner_with_hint(&format!("reading {environment}"), hint));
            }
            RunEvent::ObservationAdvanced { read, total } => {
                if let Some(spinner) = shown.spinner.as_ref().filter(|_| total > 1) {
                    spinner.set_message(&format!("reading {read} of {}", render::count_with_noun(total, "guest")));
                }
            }
            RunEvent::ObservationTaken(report) => {
                shown.spinner = None;
                let text = render::render_reading_source(&report, verbosity::current());
                let _ = write!(anstream::stderr(), "{}", line_wrap::wrap_for_stderr(&text));
                let call = shown.on_observed.take();
                drop(shown);
                if let Some(call) = call {
                    call();
                }
            }
            RunEvent::Note(note) => output::print_warning(&note),
            RunEvent::ObservationFailed => shown.spinner = None,
            RunEvent::RecoveryStarted { operations } => {
                let count = render::count_with_noun(u64::try_from(operations).unwrap_or(u64::MAX), "operation");
                output::print_notice(&format!("recovering {count} left in flight by an earlier run"));
                let subject = BoardSubject::Recovery { is_reported_later: shown.prints_recovered };
                shown.board = Some(ProgressBoard::new(subject, operations));
            }
            RunEvent::RecoveryEnded(report) => {
                shown.board = None;
                if shown.prints_recovered {
                    let text = recovered_text(&report, verbosity::current());
                    let _ = write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&text));
                }
            }
            RunEvent::ApplyStarted { steps, .. } => shown.board = Some(ProgressBoard::new(BoardSubject::Steps, steps)),
            RunEvent::OperationAdvanced(progress) => {
                if let Some(board) = &shown.board {
                    board.show_progress(&progress);
                }
            }
            RunEvent::ApplyEnded { .. } => shown.board = None,
            RunEvent::ResponseSlow { .. } => {
                drop(shown);
                if !verbosity::is_quiet() {
                    drop(mention(SLOW_RESPONSE));
                }
            }
            // The error of the run says that the disk is full, and `stop` shows that it stops.
            RunEvent::StoreFull | RunEvent::StoreWritable | RunEvent::Draining { .. } => {}
            RunEvent::PlanRecorded { .. } | RunEvent::Admitted { .. } | RunEvent::RunEnded { .. } | RunEvent::Skipped { .. } => {}
        }
    }
}
