//! What happens while a command runs, at the very request that it is meant for: the world has carried that out, and its answer has
//! not gone out.
//!
//! What never enters: what the story says about it.

use std::sync::{Arc, Mutex};

use converger_lab::RequestRecord;
use converger_lab::server::{RequestWatcher, ServedExchange, SharedWorld};
use rustix::process::{Pid, kill_process};

use crate::line::{LineTrigger, ScenarioLine, ScenarioSignal};
use crate::run::RunningProcess;

/// Who is told of requests.
#[derive(Default)]
pub(crate) struct RequestHook {
    triggers: Mutex<Vec<LineTrigger>>,
    /// The world, once it is served.
    world: Mutex<Option<SharedWorld>>,
    /// The program, while it runs.
    pub(crate) running: RunningProcess,
    /// Carries out what is neither about the world nor about the process.
    line_handler: Mutex<Option<LineHandler>>,
}

/// Carries out a line.
pub(crate) type LineHandler = Box<dyn FnMut(&ScenarioLine) + Send>;

impl RequestHook {
    /// Who tells it of requests.
    pub(crate) fn watcher(self: &Arc<Self>) -> RequestWatcher {
        let hook = Arc::clone(self);
        Arc::new(move |passed: &ServedExchange<'_>| hook.on_request(passed.record))
    }

    /// The world that it acts on.
    pub(crate) fn set_world(&self, world: &SharedWorld) {
        *self.world.lock().expect("nobody panicked") = Some(world.clone());
    }

    /// Lets something happen while the next command runs.
    pub(crate) fn add_trigger(&self, when: LineTrigger) {
        self.triggers.lock().expect("nobody panicked").push(when);
    }

    /// How other lines are carried out while the next command runs.
    pub(crate) fn set_line_handler(&self, other: LineHandler) {
        *self.line_handler.lock().expect("nobody panicked") = Some(other);
    }

    /// What was to happen and did not.
    pub(crate) fn take_unfired(&self) -> usize {
        *self.line_handler.lock().expect("nobody panicked") = None;
        std::mem::take(&mut *self.triggers.lock().expect("nobody panicked")).len()
    }

    /// A request was carried out.
    fn on_request(&self, record: &RequestRecord) {
        let mut coming = Vec::new();
        self.triggers.lock().expect("nobody panicked").retain_mut(|when| {
            let comes = when.fires(record);
            if comes {
                coming.push(when.line.clone());
            }
            !comes
        });
        coming.iter().for_each(|line| self.execute_line(line));
    }

    fn execute_line(&self, line: &ScenarioLine) {
        match line {
            ScenarioLine::Act(act) => self.with_world(|world| {
                let now_ms = world.lock().records().next_back().map_or(0, |record| record.at_ms);
                world.lock().apply_event(now_ms, (**act).clone());
            }),
            ScenarioLine::Wait(milliseconds) => self.with_world(|world| {
                let mut world = world.lock();
                let now_ms = world.records().next_back().map_or(0, |record| record.at_ms);
                world.advance_to(now_ms + milliseconds);
            }),
            ScenarioLine::Signal(signal) => self.send_signal(*signal),
            line => {
                if let Some(other) = &mut *self.line_handler.lock().expect("nobody panicked") {
                    other(line);
                }
            }
        }
    }

    fn with_world(&self, work: impl FnOnce(&SharedWorld)) {
        work(self.world.lock().expect("nobody panicked").as_ref().expect("it is served"));
    }

    fn send_signal(&self, signal: ScenarioSignal) {
        let signal = match signal {
            ScenarioSignal::Kill => rustix::process::Signal::KILL,
            ScenarioSignal::Interrupt => rustix::process::Signal::INT,
            ScenarioSignal::Terminate => rustix::process::Signal::TERM,
            ScenarioSignal::HangUp => rustix::process::Signal::HUP,
        };
        let running = self.running.lock().expect("nobody panicked");
        let pid = running.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).expect("it runs");
        kill_process(pid, signal).expect("sent");
    }
}
