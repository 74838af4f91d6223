//! What must hold of a run as a whole, and of one run after the other:
//!
//! - S5: nothing follows from absence in a list alone. A guest that is there is not called missing, and nobody says that a change was not carried out
//!   because no list has its task: the guest itself was read since.
//! - S8: what is planned on never goes back: each plan rests on a reading of its own process, and on none that is older than that of the plan before.
//! - S14: what is sent stays within the limits of a run: guests that are changed, guests that are interrupted, and changes that are under way
//!   at once, on a node and in all.
//! - S23: an operation asks so often and no more. Bounds of queues and bodies are not reached here: those of the queue are held by `schedule`'s own tests, those
//!   of bodies by `FaultKind::Flooded` and the client's.
//! - L4: a guest that is stuck blocks itself and what waits for it. Whoever waits for nobody has its turn while there is room, and what is not run
//!   names a reason that is so.
//! - L5: nothing is done again that was done, once nobody else does anything.
//!
//! What cannot be seen here: S9 and S10 are properties of the planner (`converger-core/tests/properties`), S15 and S24 of an agent that is not there yet.
//!
//! What never enters: how the schedule decides whose turn it is.

use std::collections::BTreeSet;

use converger_core::apply::{OperationEnd, OperationId, Outcome, RunId};
use converger_core::guest::Vmid;
use converger_core::policy;
use converger_engine::schedule;

use super::send::{ParsedMutation, RuleBreach};
use super::{Oracle, OracleCase, is_not_carried_out};

/// So often an operation asks in one life, at most: it is checked five times, each of six readings is tried three times, and a task that hangs is asked about for as
/// long as there is patience.
const ASKS_MAX: u32 = 400;

/// What is known of the run that goes on, and of those before it.
#[derive(Clone, Default)]
pub(super) struct RunCourse {
    at_once: schedule::ConcurrencyLimits,
    budget: policy::Limits,
    /// When the process began, and when the reading of the last plan did.
    began_secs: u64,
    taken_secs: u64,
    run: Option<RunId>,
    /// Guests that were changed in it, and those that were interrupted.
    changed: BTreeSet<u32>,
    interrupted: BTreeSet<u32>,
    /// A guest was followed to another node, where it waits for room.
    has_moved: bool,
    /// What was done since everything healed.
    done: BTreeSet<(u32, String)>,
}

impl Oracle {
    /// The same, where a run may do so much.
    pub(crate) fn with_limits(mut self, at_once: schedule::ConcurrencyLimits, budget: policy::Limits) -> Self {
        self.run_course = RunCourse { at_once, budget, ..RunCourse::default() };
        self
    }

    /// A process begins at this moment.
    pub(crate) fn on_process_start_at(&mut self, now_secs: u64) {
        (self.run_course.began_secs, self.run_course.has_moved) = (now_secs, false);
    }

    /// S8: a plan is made of a reading that was begun then.
    pub(crate) fn on_plan(&mut self, taken_secs: Option<u64>) {
        let Some(taken_secs) = taken_secs else {
            return self.report_violation("S8", "nobody knows how old the reading of a plan is".into());
        };
        let (began_secs, last_secs) = (self.run_course.began_secs, std::mem::replace(&mut self.run_course.taken_secs, taken_secs));
        self.require(taken_secs >= last_secs, "S8", || format!("a plan rests on a reading of {taken_secs}, after one of {last_secs}"));
        self.require(taken_secs >= began_secs, "S8", || {
            format!("a plan rests on a reading of {taken_secs}, and the process began at {began_secs}")
        });
    }

    /// S5: a guest that is there was called missing.
    pub(crate) fn report_false_absence(&mut self, vmid: u32) {
        self.report_violation("S5", format!("{vmid} is called missing, and it was there all the time: only a list lacked it"));
    }

    /// Whether so many guests may be changed and interrupted in one run.
    pub(crate) fn is_within_budget(&self, changed: usize, interrupted: usize) -> bool {
        let policy::Limits { guests, percent, stops } = self.run_course.budget;
        let share = match percent {
            0 => 0,
            percent => (self.wanted.len() * percent as usize / 100).max(1),
        };
        changed <= (guests as usize).min(share) && interrupted <= stops as usize
    }

    /// S14 and L5: a change is about to reach Proxmox.
    pub(super) fn check_limits(&mut self, id: &OperationId, sent: &ParsedMutation) {
        let Some(case) = self.cases.get(id) else { return };
        let course = &mut self.run_course;
        if course.run.as_ref() != Some(&case.operation.run) {
            (course.run, course.changed, course.interrupted) = (Some(case.operation.run.clone()), BTreeSet::new(), BTreeSet::new());
        }
        course.changed.insert(sent.vmid);
        if matches!(sent.verb.as_str(), "stop" | "shutdown" | "reboot") {
            course.interrupted.insert(sent.vmid);
        }
        let (changed, interrupted) = (course.changed.len(), course.interrupted.len());
        let is_again = self.is_healed && course.done.contains(&case.done_key());
        let is_allowed = self.is_within_budget(changed, interrupted);
        self.require(is_allowed, "S14", || format!("{id} {}: {changed} guests changed in its run, {interrupted} interrupted", sent.vmid));
        let under_way: Vec<&OracleCase> = self.cases.values().filter(|case| case.is_sent_in(self.life)).collect();
        let here = under_way.iter().filter(|case| case.sent_to == sent.node).count();
        let schedule::ConcurrencyLimits { per_node, overall } = self.run_course.at_once;
        let fits = under_way.len() <= overall.max(1) as usize && here <= per_node.max(1) as usize;
        self.require(fits, "S14", || format!("{id} {}: with it there is more under way at once than there may be", sent.vmid));
        self.require(!is_again, "L5", || {
            format!("{id} {} {}: that was done, nobody has changed it since, and it is done again", sent.verb, sent.vmid)
        });
    }

    /// Something of this run is done.
    pub(super) fn remember_done(&mut self, id: &OperationId, outcome: &Outcome) {
        let Some(case) = self.cases.get(id).filter(|case| self.is_healed && case.sends > 0 && outcome.end() == OperationEnd::Done) else {
            return;
        };
        let done = case.done_key();
        self.run_course.done.insert(done);
    }

    /// A guest was followed, and may wait for room where it is.
    pub(super) fn on_guest_moved(&mut self) {
        self.run_course.has_moved = true;
    }

    /// L4: time goes by, and nobody waits who could have its turn.
    pub(crate) fn on_time_passed(&mut self) {
        // Whoever is alone is blocked by nobody else, and where a guest that moved is counted is the schedule's own affair.
        if self.wanted.len() < 2 || self.run_course.has_moved {
            return;
        }
        let (life, schedule::ConcurrencyLimits { per_node, overall }) = (self.life, self.run_course.at_once);
        let under_way: Vec<&OracleCase> = self.cases.values().filter(|case| case.is_under_way).collect();
        if under_way.len() >= overall.max(1) as usize {
            return;
        }
        let has_room = |case: &OracleCase| {
            let on_node = under_way.iter().filter(|own| own.operation.guest.node == case.operation.guest.node).count();
            on_node < per_node.max(1) as usize
        };
        let waits = |case: &OracleCase| case.life == life && !case.is_under_way && case.believed.is_none();
        let own = self.cases.values().find(|case| waits(case) && has_room(case) && self.unfinished_predecessors(case).next().is_none());
        if let Some(id) = own.map(|case| case.operation.id.clone()) {
            self.report_violation("L4", format!("{id} waits for its turn, there is room, and nothing of its own keeps it back"));
        }
    }

    /// What must be done before an operation and is not: steps of its guest, and power steps of those that it waits for.
    fn unfinished_predecessors<'o>(&'o self, case: &'o OracleCase) -> impl Iterator<Item = &'o OracleCase> {
        let own = &case.operation;
        let of_run = self.cases.values().filter(|other| other.operation.run == own.run && other.believed != Some(OperationEnd::Done));
        of_run.filter(|other| other.precedes(case) || (other.changes_power() && own.step.wait.contains(&other.operation.guest.vmid)))
    }

    /// L4: an operation is not run for a reason of its own, or of the whole run.
    pub(super) fn check_not_run_reason(&mut self, id: &OperationId, code: &str) {
        let Some(case) = self.cases.get(id) else { return };
        let has_failed = || self.unfinished_predecessors(case).any(|other| other.believed.is_some());
        let of_run = || self.cases.values().filter(|other| other.operation.run == case.operation.run && other.changes_power());
        let is_left_out = |vmid: &Vmid| of_run().all(|other| other.operation.guest.vmid != *vmid);
        let is_so = match code {
            "lane-halted" => has_failed(),
            // What it waits for was left out of the plan, too.
            "dependency-not-done" => has_failed() || case.operation.step.wait.iter().any(is_left_out),
            "run-stopped" => self.is_stopped || self.is_halted,
            "journal-unwritable" => self.is_unwritable,
            _ => false,
        };
        self.require(is_so, "L4", || format!("{id} is not run, for `{code}`, and that is not so"));
    }
}

impl OracleCase {
    /// Whether it is an earlier step of the same guest in the same run.
    fn precedes(&self, other: &Self) -> bool {
        self.operation.guest.vmid == other.operation.guest.vmid && self.operation.position < other.operation.position
    }

    /// Whether it changes the run-state, which is what others wait for.
    fn changes_power(&self) -> bool {
        self.operation.step.change.resulting_state().is_some()
    }

    /// Whether its change is under way in this life.
    fn is_sent_in(&self, life: u32) -> bool {
        self.is_under_way && self.life == life && self.sends > 0
    }

    /// What is done by it, to whom.
    fn done_key(&self) -> (u32, String) {
        (self.operation.guest.vmid.get(), format!("{:?}", self.operation.step.change))
    }

    /// S23: one more question.
    pub(super) fn count_request(&mut self) -> RuleBreach {
        self.asks += 1;
        (self.asks > ASKS_MAX).then(|| ("S23", format!("{} asks more than {ASKS_MAX} times", self.operation.id)))
    }

    /// S5: that nothing was carried out is said of a guest that was read since.
    pub(super) fn check_absence(&self, outcome: &Outcome) -> RuleBreach {
        let is_by_absence = self.sends > 0 && is_not_carried_out(outcome) && !self.is_read;
        is_by_absence.then(|| ("S5", "no list has its task, and nobody has read the guest since it was sent".into()))
    }
}
