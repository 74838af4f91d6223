//! What must hold of a run as a whole, and across runs:
//!
//! - S5: absence from a list alone proves nothing. An existing guest is not reported as missing, and a change is not reported as not
//!   carried out just because no list contains its task: the guest itself was read since.
//! - S8: plans never go back in time: each plan is based on an observation of its own process that is not older than that of the previous
//!   plan.
//! - S14: sent changes stay within the limits of a run: changed guests, interrupted guests, and changes in flight per node and overall.
//! - S23: the number of requests of an operation is bounded. Limits of queues and bodies are not reached here: the tests of `schedule`
//!   cover the queue, `FaultKind::Flooded` and the tests of the client cover bodies.
//! - L4: a stuck guest blocks only itself and its dependents. An operation that waits for nothing begins as soon as a slot is free, and an
//!   operation that is not run has a true reason.
//! - L5: nothing is done again that was done, once nobody else changes anything.
//!
//! Not covered here: S9 and S10 are properties of the planner (`converger-core/tests/properties`); S15 and S24 concern an agent that does
//! not exist yet.
//!
//! Must not depend on how the schedule chooses the next operation.

use std::collections::BTreeSet;

use converger_core::apply::{OperationEnd, OperationId, Outcome, RunId};
use converger_core::guest::Vmid;
use converger_core::policy;
use converger_engine::schedule;

use super::send::{ParsedMutation, RuleBreach};
use super::{Oracle, OracleCase, is_not_carried_out, requested};

/// Maximum number of requests of an operation in one life: it is checked five times, each of six reads is tried three times, and a hanging
/// task is polled until patience runs out.
const ASKS_MAX: u32 = 400;

/// What is known of the current run and of those before it.
#[derive(Clone, Default)]
pub(super) struct RunCourse {
    at_once: schedule::ConcurrencyLimits,
    budget: policy::Limits,
    /// When the process started, and when the observation of the last plan began.
    began_secs: u64,
    taken_secs: u64,
    run: Option<RunId>,
    /// Guests that were changed in the run, and those that were interrupted.
    changed: BTreeSet<u32>,
    interrupted: BTreeSet<u32>,
    /// A guest was followed to another node, where it waits for a slot.
    has_moved: bool,
    /// What was done since everything healed.
    done: BTreeSet<(u32, String)>,
}

impl Oracle {
    /// Sets the limits of a run.
    pub(crate) fn with_limits(mut self, at_once: schedule::ConcurrencyLimits, budget: policy::Limits) -> Self {
        self.run_course = RunCourse { at_once, budget, ..RunCourse::default() };
        self
    }

    /// A process starts at this time.
    pub(crate) fn on_process_start_at(&mut self, now_secs: u64) {
        (self.run_course.began_secs, self.run_course.has_moved) = (now_secs, false);
    }

    /// S8: a plan is made from an observation that began at this time.
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

    /// S5: an existing guest was reported as missing.
    pub(crate) fn report_false_absence(&mut self, vmid: u32) {
        self.report_violation("S5", format!("{vmid} is called missing, and it was there all the time: only a list lacked it"));
    }

    /// Whether this many guests may be changed and interrupted in one run.
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
        // A clone changes its new guest, and not its source.
        course.changed.insert(case.operation.guest.vmid.get());
        if requested::interrupts(sent) {
            course.interrupted.insert(sent.vmid);
        }
        let (changed, interrupted) = (course.changed.len(), course.interrupted.len());
        // The second half of a restart brings up what its first half took down; only the first half can be too much.
        let is_again = self.is_healed && course.done.contains(&case.done_key()) && !case.brings_up_again();
        let is_allowed = self.is_within_budget(changed, interrupted);
        self.require(is_allowed, "S14", || format!("{id} {}: {changed} guests changed in its run, {interrupted} interrupted", sent.vmid));
        let in_flight: Vec<&OracleCase> = self.cases.values().filter(|case| case.is_sent_in(self.process_number)).collect();
        let on_node = in_flight.iter().filter(|case| case.sent_to == sent.node).count();
        let schedule::ConcurrencyLimits { per_node, overall } = self.run_course.at_once;
        let fits = in_flight.len() <= overall.max(1) as usize && on_node <= per_node.max(1) as usize;
        self.require(fits, "S14", || format!("{id} {}: with it there is more under way at once than there may be", sent.vmid));
        self.require(!is_again, "L5", || {
            format!("{id} {} {}: that was done, nobody has changed it since, and it is done again", sent.verb, sent.vmid)
        });
    }

    /// An operation of this run is done.
    pub(super) fn remember_done(&mut self, id: &OperationId, outcome: &Outcome) {
        let Some(case) = self.cases.get(id).filter(|case| self.is_healed && case.sends > 0 && outcome.end() == OperationEnd::Done) else {
            return;
        };
        let done = case.done_key();
        self.run_course.done.insert(done);
    }

    /// A guest was followed to its new node and may wait for a slot there.
    pub(super) fn on_guest_moved(&mut self) {
        self.run_course.has_moved = true;
    }

    /// L4: time passes, so no operation that could begin may be waiting.
    pub(crate) fn on_time_passed(&mut self) {
        // A single guest cannot be blocked by others, and how a moved guest is counted is up to the schedule.
        if self.wanted.len() < 2 || self.run_course.has_moved {
            return;
        }
        let (life, schedule::ConcurrencyLimits { per_node, overall }) = (self.process_number, self.run_course.at_once);
        let in_flight: Vec<&OracleCase> = self.cases.values().filter(|case| case.is_under_way).collect();
        if in_flight.len() >= overall.max(1) as usize {
            return;
        }
        let has_room = |case: &OracleCase| {
            let node = |case: &OracleCase| case.operation.sending_address().node;
            let on_node = in_flight.iter().filter(|own| node(own) == node(case)).count();
            on_node < per_node.max(1) as usize
        };
        let is_waiting = |case: &OracleCase| case.process_number == life && !case.is_under_way && case.believed.is_none();
        let own = self.cases.values().find(|case| {
            is_waiting(case) && has_room(case) && self.unfinished_predecessors(case).next().is_none() && !self.is_behind_other_run(case)
        });
        if let Some(id) = own.map(|case| case.operation.id.clone()) {
            self.report_violation("L4", format!("{id} waits for its turn, there is room, and nothing of its own keeps it back"));
        }
    }

    /// Operations that must be done before this one and are not: earlier steps of its guest, and power steps of its dependencies.
    fn unfinished_predecessors<'o>(&'o self, case: &'o OracleCase) -> impl Iterator<Item = &'o OracleCase> {
        let own = &case.operation;
        let of_run = self.cases.values().filter(|other| other.operation.run == own.run && other.believed != Some(OperationEnd::Done));
        of_run.filter(|other| other.precedes(case) || (other.changes_power() && own.step.wait.contains(&other.operation.guest.vmid)))
    }

    /// Whether an operation of another run works on one of its guests, or came before it in the queue of one.
    fn is_behind_other_run(&self, case: &OracleCase) -> bool {
        let is_unfinished = |other: &OracleCase| other.process_number == case.process_number && other.believed.is_none();
        let is_before = |other: &OracleCase| other.is_under_way || (is_unfinished(other) && other.operation.id < case.operation.id);
        self.cases.values().any(|other| other.operation.run != case.operation.run && other.shares_guest(case) && is_before(other))
    }

    /// L4: an operation is not run for a reason of its own or of the whole run.
    pub(super) fn check_not_run_reason(&mut self, id: &OperationId, code: &str) {
        let Some(case) = self.cases.get(id) else { return };
        let has_failed = || self.unfinished_predecessors(case).any(|other| other.believed.is_some());
        let of_run = || self.cases.values().filter(|other| other.operation.run == case.operation.run && other.changes_power());
        let is_left_out = |vmid: &Vmid| of_run().all(|other| other.operation.guest.vmid != *vmid);
        let is_so = match code {
            "lane-halted" => has_failed(),
            // Its dependency was omitted from the plan, too.
            "dependency-not-done" => has_failed() || case.operation.step.wait.iter().any(is_left_out),
            "run-stopped" => self.is_stopped || self.halted.contains(&case.operation.run),
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

    /// Whether it changes the run-state, which dependents wait for.
    fn changes_power(&self) -> bool {
        self.operation.step.change.resulting_state().is_some()
    }

    /// Whether its change is in flight in this life.
    fn is_sent_in(&self, life: u32) -> bool {
        self.is_under_way && self.process_number == life && self.sends > 0
    }

    /// The guest and the change.
    fn done_key(&self) -> (u32, String) {
        (self.operation.guest.vmid.get(), format!("{:?}", self.operation.step.change))
    }

    /// S23: counts one more request.
    pub(super) fn count_request(&mut self) -> RuleBreach {
        self.asks += 1;
        (self.asks > ASKS_MAX).then(|| ("S23", format!("{} asks more than {ASKS_MAX} times", self.operation.id)))
    }

    /// S5: the guest was read before it is reported that nothing was carried out.
    pub(super) fn check_absence(&self, outcome: &Outcome) -> RuleBreach {
        let is_by_absence = self.sends > 0 && is_not_carried_out(outcome) && !self.is_read;
        is_by_absence.then(|| ("S5", "no list has its task, and nobody has read the guest since it was sent".into()))
    }
}
