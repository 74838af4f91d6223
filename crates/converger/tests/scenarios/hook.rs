//! What happens while a command runs, at the very request that it is meant for: the world has carried that out, and its answer has
//! not gone out.
//!
//! What never enters: what the story says about it.

use std::sync::{Arc, Mutex};

use converger_lab::Record;
use converger_lab::server::{Passed, Shared, Watcher};
use rustix::process::{Pid, kill_process};

use crate::line::{Line, Signal, When};
use crate::run::Running;

/// Who is told of requests.
#[derive(Default)]
pub(crate) struct Hook {
    whens: Mutex<Vec<When>>,
    /// The world, once it is served.
    world: Mutex<Option<Shared>>,
    /// The program, while it runs.
    pub(crate) running: Running,
    /// Carries out what is neither about the world nor about the process.
    other: Mutex<Option<Other>>,
}

/// Carries out a line.
pub(crate) type Other = Box<dyn FnMut(&Line) + Send>;

impl Hook {
    /// Who tells it of requests.
    pub(crate) fn watcher(self: &Arc<Self>) -> Watcher {
        let hook = Arc::clone(self);
        Arc::new(move |passed: &Passed<'_>| hook.told(passed.record))
    }

    /// The world that it acts on.
    pub(crate) fn belongs_to(&self, world: &Shared) {
        *self.world.lock().expect("nobody panicked") = Some(world.clone());
    }

    /// Lets something happen while the next command runs.
    pub(crate) fn expect(&self, when: When) {
        self.whens.lock().expect("nobody panicked").push(when);
    }

    /// How other lines are carried out while the next command runs.
    pub(crate) fn carry_out_with(&self, other: Other) {
        *self.other.lock().expect("nobody panicked") = Some(other);
    }

    /// What was to happen and did not.
    pub(crate) fn left(&self) -> usize {
        *self.other.lock().expect("nobody panicked") = None;
        std::mem::take(&mut *self.whens.lock().expect("nobody panicked")).len()
    }

    /// A request was carried out.
    fn told(&self, record: &Record) {
        let mut coming = Vec::new();
        self.whens.lock().expect("nobody panicked").retain_mut(|when| {
            let comes = when.comes(record);
            if comes {
                coming.push(when.line.clone());
            }
            !comes
        });
        coming.iter().for_each(|line| self.carry_out(line));
    }

    fn carry_out(&self, line: &Line) {
        match line {
            Line::Act(act) => self.in_world(|world| {
                let now_ms = world.lock().records().next_back().map_or(0, |record| record.at_ms);
                world.lock().act(now_ms, (**act).clone());
            }),
            Line::Wait(milliseconds) => self.in_world(|world| {
                let mut world = world.lock();
                let now_ms = world.records().next_back().map_or(0, |record| record.at_ms);
                world.advance_to(now_ms + milliseconds);
            }),
            Line::Signal(signal) => self.send(*signal),
            line => {
                if let Some(other) = &mut *self.other.lock().expect("nobody panicked") {
                    other(line);
                }
            }
        }
    }

    fn in_world(&self, work: impl FnOnce(&Shared)) {
        work(self.world.lock().expect("nobody panicked").as_ref().expect("it is served"));
    }

    fn send(&self, signal: Signal) {
        let signal = match signal {
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::Interrupt => rustix::process::Signal::INT,
            Signal::Terminate => rustix::process::Signal::TERM,
            Signal::HangUp => rustix::process::Signal::HUP,
        };
        let running = self.running.lock().expect("nobody panicked");
        let pid = running.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).expect("it runs");
        kill_process(pid, signal).expect("sent");
    }
}
