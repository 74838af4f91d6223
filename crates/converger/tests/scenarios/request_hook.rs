//! Events during a command, at a chosen request: the world has carried the request out, but its response has not been sent.

use std::sync::{Arc, Mutex};

use converger_lab::RequestRecord;
use converger_lab::server::{RequestWatcher, ServedExchange, SharedWorld};
use rustix::process::{Pid, kill_process};

use crate::line::{LineTrigger, ScenarioLine, ScenarioSignal};
use crate::run::RunningProcess;

/// Receives all requests.
#[derive(Default)]
pub(crate) struct RequestHook {
    triggers: Mutex<Vec<LineTrigger>>,
    /// The world, once it is served.
    world: Mutex<Option<SharedWorld>>,
    /// The program, while it runs.
    pub(crate) running: RunningProcess,
    /// Handles lines that concern neither the world nor the process.
    line_handler: Mutex<Option<LineHandler>>,
}

/// Executes a line.
pub(crate) type LineHandler = Box<dyn FnMut(&ScenarioLine) + Send>;

impl RequestHook {
    /// The watcher that calls this hook.
    pub(crate) fn watcher(self: &Arc<Self>) -> RequestWatcher {
        let hook = Arc::clone(self);
        Arc::new(move |passed: &ServedExchange<'_>| hook.on_request(passed.record))
    }

    /// Sets the world that events apply to.
    pub(crate) fn set_world(&self, world: &SharedWorld) {
        *self.world.lock().expect("nobody panicked") = Some(world.clone());
    }

    /// Adds a line to run during the next command.
    pub(crate) fn add_trigger(&self, when: LineTrigger) {
        self.triggers.lock().expect("nobody panicked").push(when);
    }

    /// Sets the handler of other lines during the next command.
    pub(crate) fn set_line_handler(&self, other: LineHandler) {
        *self.line_handler.lock().expect("nobody panicked") = Some(other);
    }

    /// Removes the lines that did not run; returns their number.
    pub(crate) fn take_unfired(&self) -> usize {
        *self.line_handler.lock().expect("nobody panicked") = None;
        std::mem::take(&mut *self.triggers.lock().expect("nobody panicked")).len()
    }

    /// Handles a request that was carried out.
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
            ScenarioLine::Act(event) => self.with_world(|world| {
                let now_ms = world.lock().records().next_back().map_or(0, |record| record.at_ms);
                world.lock().apply_event(now_ms, (**event).clone());
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
