//! What must hold on every trace, whatever goes wrong: the safety invariants, judged by the truth of the world and of the journal, and not
//! by the code under test.
//!
//! A rule has its number among the invariants of the design (S1, S2, ...). Must not depend on how an operation decides.

mod births;
mod effects;
mod freshness;
mod refusal_grounds;
mod requested;
mod run;
mod send;
pub(crate) mod truth;

use std::collections::{BTreeMap, BTreeSet};

use converger_core::action::Change;
use converger_core::apply::{
    EnvRequest, EnvResponse, JournalRecord, Operation, OperationEnd, OperationHistory, OperationId, OperationSource, Outcome,
    ReleaseCondition, RunId, SendResult, TaskId, TaskState,
};
use converger_core::guest::RunState;
use converger_core::plan::StepReason;
use converger_engine::schedule::OnFailure;

use super::requests::{SimulatedRequest, WantedRequest};
use super::setup::{TOKEN, WantedGuest};
use super::stage::TruthSnapshot;

use self::truth::BirthMarks;
use freshness::HoldCheck;
pub(crate) use freshness::HoldOrFreeze;
pub(crate) use refusal_grounds::RefusalGrounds;
use run::RunCourse;
pub(crate) use send::ParsedMutation;

/// How long a live process waits for the response to a change and searches for it afterwards. A recovery must not conclude earlier that the
/// change will not arrive.
const LATE_MS: u64 = 120_500;

/// A violated rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuleViolation {
    pub(crate) rule: &'static str,
    pub(crate) text: String,
}

/// What is known about one operation over all lives of the process.
#[derive(Clone)]
pub(crate) struct OracleCase {
    operation: Operation,
    /// The life in which it began.
    process_number: u32,
    is_under_way: bool,
    is_recovered: bool,
    /// What was read in this life, and the truth at that time.
    cluster: Option<TruthSnapshot>,
    status: Option<TruthSnapshot>,
    config: Option<TruthSnapshot>,
    snapshots: Option<TruthSnapshot>,
    /// The guest that had the new id.
    new_id: Option<TruthSnapshot>,
    /// The birth marks of the guest that was last read as the result of this clone.
    made: Option<BirthMarks>,
    /// The holds and freezes at the last hold check, if nothing was read since.
    hold_check: Option<HoldCheck>,
    /// The word of the last request.
    last: &'static str,
    sends: u32,
    /// The node that it was last sent to, and the verb.
    sent_to: String,
    sent_verb: String,
    /// Whether the guest itself was read in this life since it was sent.
    is_read: bool,
    /// The number of its requests in this life.
    asks: u32,
    /// When it was last sent.
    sent_ms: u64,
    /// Whether the world changed when it was sent.
    has_effect: bool,
    /// The environment rejected it, and nothing else happened.
    is_rejected: bool,
    may_have_run: bool,
    task_lost: bool,
    /// Whether its task was read in this life.
    is_task_read: bool,
    /// The journal did not accept its last record, and the process knows.
    is_record_rejected: bool,
    /// What was reported to the process as durable.
    acknowledged_intent: bool,
    acknowledged_mark: bool,
    acknowledged_task: Option<TaskId>,
    acknowledged_end: Option<Outcome>,
    /// What is durable in truth.
    intent: bool,
    task: Option<TaskId>,
    ended: Option<Outcome>,
    resolved: bool,
    /// A recovery or process concluded that nothing of it was carried out.
    is_given_up: bool,
    /// Our tasks of its guest at that time: whatever happened to them, they did not arrive later.
    known: Vec<String>,
    /// Its end according to the process.
    believed: Option<OperationEnd>,
}

impl OracleCase {
    fn occupies_guest(&self) -> bool {
        let is_held = matches!(self.ended, Some(Outcome::Held { .. })) && !self.resolved;
        self.intent && (self.ended.is_none() || is_held)
    }
}

/// Observes a simulation and records violations.
#[derive(Clone)]
pub(crate) struct Oracle {
    wanted: BTreeMap<u32, WantedGuest>,
    cases: BTreeMap<OperationId, OracleCase>,
    process_number: u32,
    is_stopped: bool,
    is_healed: bool,
    /// Runs that stop at the first failure and had one.
    halted: BTreeSet<RunId>,
    on_failure: OnFailure,
    /// Operations with a record that could not be written in this life.
    unwritten: BTreeSet<OperationId>,
    /// A failed write was reported to the process.
    is_unwritable: bool,
    sent_under_key: BTreeMap<String, u32>,
    /// The requests, by key.
    requests: BTreeMap<String, WantedRequest>,
    /// Requests that continue one of them under another key.
    continued: BTreeMap<String, WantedRequest>,
    run_course: RunCourse,
    /// Number of sent changes.
    pub(crate) sends: u64,
    /// The kinds of guests and changes among them.
    pub(crate) sent: BTreeSet<(String, String)>,
    pub(crate) violation: Option<RuleViolation>,
}

impl Oracle {
    pub(crate) fn new(wanted: BTreeMap<u32, WantedGuest>, on_failure: OnFailure) -> Self {
        Self {
            wanted,
            cases: BTreeMap::new(),
            process_number: 0,
            is_stopped: false,
            is_healed: false,
            halted: BTreeSet::new(),
            on_failure,
            unwritten: BTreeSet::new(),
            is_unwritable: false,
            sent_under_key: BTreeMap::new(),
            requests: BTreeMap::new(),
            continued: BTreeMap::new(),
            run_course: RunCourse::default(),
            sends: 0,
            sent: BTreeSet::new(),
            violation: None,
        }
    }

    /// Sets what is requested.
    pub(crate) fn with_requests(mut self, requests: &[SimulatedRequest]) -> Self {
        self.add_requests(requests);
        self
    }

    /// Adds what is requested.
    pub(crate) fn add_requests(&mut self, requests: &[SimulatedRequest]) {
        self.requests.extend(requests.iter().map(|request| (request.key.as_str().to_owned(), request.wanted.clone())));
    }

    /// The request that an operation is for.
    fn request_of(&self, case: &OracleCase) -> Option<&WantedRequest> {
        case.idempotency_key().and_then(|key| self.requests.get(&key).or_else(|| self.continued.get(&key)))
    }

    /// What is declared of the guest of an operation: by its request, or by the declared state.
    fn wanted_of(&self, case: &OracleCase) -> Option<&WantedGuest> {
        self.request_of(case).map(|request| &request.guest).or_else(|| self.wanted.get(&case.operation.guest.vmid.get()))
    }

    /// Changes the declared state.
    pub(crate) fn set_wanted(&mut self, wanted: BTreeMap<u32, WantedGuest>) {
        self.wanted = wanted;
    }

    /// No more faults occur from now on.
    pub(crate) fn on_healed(&mut self) {
        self.is_healed = true;
    }

    /// Keeps the first violation.
    fn report_violation(&mut self, rule: &'static str, text: String) {
        self.violation.get_or_insert(RuleViolation { rule, text });
    }

    fn require(&mut self, holds: bool, rule: &'static str, text: impl FnOnce() -> String) {
        if !holds {
            self.report_violation(rule, text());
        }
    }

    /// A process starts; after a power loss, marks may be missing.
    pub(crate) fn on_process_start(&mut self, was_dark: bool) {
        self.process_number += 1;
        (self.is_stopped, self.halted) = (false, BTreeSet::new());
        (self.unwritten, self.is_unwritable) = (BTreeSet::new(), false);
        for case in self.cases.values_mut() {
            case.is_under_way = false;
            (case.cluster, case.status, case.config, case.hold_check, case.last) = (None, None, None, None, "");
            (case.snapshots, case.new_id) = (None, None);
            (case.task_lost, case.is_record_rejected, case.is_read, case.asks) = (false, false, false, 0);
            case.is_task_read = false;
            case.acknowledged_mark &= !was_dark;
        }
    }

    /// An operation was created from a plan; nothing was done about it yet.
    pub(crate) fn on_planned(&mut self, operation: &Operation) {
        let case = OracleCase {
            operation: operation.clone(),
            process_number: self.process_number,
            is_under_way: false,
            is_recovered: false,
            cluster: None,
            status: None,
            config: None,
            snapshots: None,
            new_id: None,
            made: None,
            hold_check: None,
            last: "",
            sends: 0,
            sent_to: String::new(),
            sent_verb: String::new(),
            is_read: false,
            asks: 0,
            sent_ms: 0,
            has_effect: false,
            is_rejected: false,
            may_have_run: false,
            task_lost: false,
            is_task_read: false,
            is_record_rejected: false,
            acknowledged_intent: false,
            acknowledged_mark: false,
            acknowledged_task: None,
            acknowledged_end: None,
            intent: false,
            task: None,
            ended: None,
            resolved: false,
            is_given_up: false,
            known: Vec::new(),
            believed: None,
        };
        let is_new = self.cases.insert(operation.id.clone(), case).is_none();
        self.require(is_new, "G13", || format!("the id {} was used twice", operation.id));
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    pub(crate) fn on_drain(&mut self) {
        self.is_stopped = true;
    }

    /// An operation begins.
    pub(crate) fn on_begin(&mut self, id: &OperationId, is_recovered: bool) {
        let Some(case) = self.cases.get(id) else { return self.report_violation("S11", format!("{id} is not of any plan")) };
        let (vmid, run, position) = (case.operation.guest.vmid, case.operation.run.clone(), case.operation.position);
        let own_case = case;
        let wait = case.operation.step.wait.clone();
        let mut found = Vec::new();
        for (other, own) in self.cases.iter().filter(|(other, _)| *other != id) {
            let of_guest = own.operation.guest.vmid == vmid;
            if own.shares_guest(own_case) && own.is_under_way {
                found.push(("S3", format!("{id} begins while {other} of the same guest is under way")));
            }
            if is_recovered || own.operation.run != run {
                continue;
            }
            let is_done = own.believed == Some(OperationEnd::Done);
            if of_guest && own.operation.position < position && !is_done {
                found.push(("S16", format!("{id} begins although {other} before it did not end well")));
            }
            let is_power = own.operation.step.change.resulting_state().is_some();
            if is_power && wait.contains(&own.operation.guest.vmid) && !is_done {
                found.push(("S16", format!("{id} begins before {other}, for which it waits, is done")));
            }
        }
        if let Some((rule, text)) = found.into_iter().next() {
            self.report_violation(rule, text);
        }
        // A guest that was taken down for a restart is not left down (decision 0017).
        let brings_up_again = self.cases.get(id).is_some_and(OracleCase::brings_up_again);
        let goes_on = is_recovered || brings_up_again;
        self.require(goes_on || !self.is_stopped, "S16", || format!("{id} begins after the run was stopped"));
        let is_halted = self.halted.contains(&run);
        self.require(goes_on || !is_halted, "S16", || format!("{id} begins after a failure that ends the run"));
        self.require(goes_on || !self.is_unwritable, "S18", || format!("{id} begins although the journal cannot be written"));
        if let Some(case) = self.cases.get_mut(id) {
            (case.is_under_way, case.is_recovered) = (true, is_recovered);
        }
    }

    /// A record is in the journal.
    pub(crate) fn on_durable(&mut self, record: &JournalRecord) {
        let id = record.id().clone();
        if let JournalRecord::Intent { operation, .. } = record {
            let own: Vec<_> = operation.occupied_guests().collect();
            let is_shared = |case: &OracleCase| case.operation.occupied_guests().any(|vmid| own.contains(&vmid));
            let other = self.cases.iter().find(|(other, case)| **other != id && is_shared(case) && case.occupies_guest());
            let other = other.map(|(other, _)| other.clone());
            self.require(other.is_none(), "S3", || format!("{id} is recorded while {other:?} has the guest"));
        }
        let Some(case) = self.cases.get_mut(&id) else { return };
        match record {
            JournalRecord::Intent { operation, .. } => {
                case.intent = true;
                // The steps after a clone get the birth marks of the new guest only now.
                case.operation.guest.identity.clone_from(&operation.guest.identity);
            }
            JournalRecord::Sending { .. } => {}
            JournalRecord::TaskStarted { task, .. } => case.task = Some(task.clone()),
            JournalRecord::Ended { outcome, .. } => {
                case.is_given_up |= is_not_carried_out(outcome);
                case.ended = Some(outcome.clone());
            }
            JournalRecord::Resolved { reason, .. } => {
                case.is_given_up |= reason.contains("not-carried-out");
                case.resolved = true;
            }
        }
    }

    /// A record was reported to the process as written.
    pub(crate) fn on_acknowledged(&mut self, record: &JournalRecord) {
        let Some(case) = self.cases.get_mut(record.id()) else { return };
        match record {
            JournalRecord::Intent { .. } => case.acknowledged_intent = true,
            JournalRecord::Sending { .. } => case.acknowledged_mark = true,
            JournalRecord::TaskStarted { task, .. } => case.acknowledged_task = Some(task.clone()),
            JournalRecord::Ended { outcome, .. } => case.acknowledged_end = Some(outcome.clone()),
            JournalRecord::Resolved { .. } => {}
        }
    }

    /// A record was reported to the process as rejected.
    pub(crate) fn on_record_rejected(&mut self, id: &OperationId) {
        if let Some(case) = self.cases.get_mut(id) {
            case.is_record_rejected = true;
        }
    }

    /// A record of an operation could not be written, for a reason other than a rule.
    pub(crate) fn on_write_failed(&mut self, id: &OperationId) {
        self.unwritten.insert(id.clone());
    }

    /// The failed write was reported to the process: it sends nothing more in this run.
    pub(crate) fn on_write_failure_reported(&mut self) {
        self.is_unwritable = true;
    }

    /// A recovery or a run begins.
    pub(crate) fn on_run_start(&mut self) {
        self.is_unwritable = false;
    }

    /// Whether a record of an operation could not be written in this life.
    pub(crate) fn is_unwritten(&self, id: &OperationId) -> bool {
        self.unwritten.contains(id)
    }

    /// Checks the journal as the next life finds it (S19).
    pub(crate) fn check_journal(&mut self, id: &OperationId, history: Option<&OperationHistory>) {
        let Some(case) = self.cases.get(id) else { return };
        let has = |is_acknowledged: bool, is: bool| !is_acknowledged || is;
        let holds = has(case.acknowledged_intent, history.is_some())
            && has(case.acknowledged_mark, history.is_some_and(|history| history.sending.is_some()))
            && has(
                case.acknowledged_task.is_some(),
                history.is_some_and(|history| history.task.as_ref().map(|(task, _)| task) == case.acknowledged_task.as_ref()),
            )
            && has(
                case.acknowledged_end.is_some(),
                history.is_some_and(|history| history.ended.as_ref().map(|(end, _)| end) == case.acknowledged_end.as_ref()),
            );
        self.require(holds, "S19", || format!("what was acknowledged of {id} is not found after the crash"));
        // A record that was not acknowledged may exist nevertheless.
        if let (Some(case), Some(history)) = (self.cases.get_mut(id), history) {
            case.intent = true;
            case.task = history.task.as_ref().map(|(task, _)| task.clone());
            case.ended = history.ended.as_ref().map(|(end, _)| end.clone());
            case.is_given_up |= case.ended.as_ref().is_some_and(is_not_carried_out);
            case.resolved = history.resolved.is_some();
        }
    }

    pub(crate) fn operation_ids(&self) -> Vec<OperationId> {
        self.cases.keys().cloned().collect()
    }

    /// A request was answered, with the truth at that time.
    pub(crate) fn on_read(&mut self, id: &OperationId, request: &EnvRequest, answer: &EnvResponse, snapshot: Option<TruthSnapshot>) {
        if let EnvRequest::Task(task) = request {
            self.check_task_request(id, task);
        }
        let Some(case) = self.cases.get_mut(id) else { return };
        (case.last, case.hold_check) = (request.word(), None);
        // The node of a clone says that there is no such guest.
        let is_denied = matches!((request, answer), (EnvRequest::Config(_), EnvResponse::GuestNotFound(_)));
        // The run-state that is read for a clone is that of its source.
        case.is_read |= match answer {
            EnvResponse::Status(_) => !case.makes_guest(),
            EnvResponse::Config(_) => true,
            _ => is_denied && case.makes_guest(),
        };
        let violation = case.count_request();
        let is_own_task = !matches!(request, EnvRequest::Task(task) if case.is_start_after_reboot(task));
        match (answer, snapshot) {
            (EnvResponse::Cluster(_), snapshot) => case.cluster = snapshot,
            (EnvResponse::Status(_), snapshot) => case.status = snapshot,
            (EnvResponse::Config(_), snapshot) => {
                if case.makes_guest() && case.sends > 0 {
                    case.made = snapshot.as_ref().and_then(|read| read.guest.as_ref()).map(truth::birth_marks);
                }
                case.config = snapshot;
            }
            (EnvResponse::GuestNotFound(_), snapshot) if is_denied && case.makes_guest() => case.config = snapshot,
            (EnvResponse::Snapshots(_), snapshot) => case.snapshots = snapshot,
            // The id of the source is read as well: if it is called free, the list behind both answers is incomplete.
            (EnvResponse::IdState(_), snapshot) if matches!(request, EnvRequest::IdState(vmid) if *vmid == case.operation.guest.vmid) => {
                case.new_id = snapshot;
            }
            (EnvResponse::Task(state), _) if is_own_task => {
                (case.task_lost, case.is_task_read) = (matches!(state, TaskState::Lost(_)), true);
            }
            (EnvResponse::Located(Some(_)), _) => self.on_guest_moved(),
            _ => {}
        }
        if let Some((rule, text)) = violation {
            self.report_violation(rule, text);
        }
    }

    /// A task is read only once it is in the journal, and it must be one of ours on this guest. The start after a reboot is not ours, and
    /// is read once the reboot is in the journal.
    fn check_task_request(&mut self, id: &OperationId, task: &TaskId) {
        let Some(case) = self.cases.get(id) else { return };
        if case.is_start_after_reboot(task) {
            let is_written = case.task.is_some() || matches!(case.ended, Some(Outcome::Held { .. }));
            return self.require(is_written, "S1", || format!("{id} asks about the start {task}, and its own task is not in the journal"));
        }
        // A held operation keeps its records, and its task may have appeared since.
        let is_held = matches!(case.ended, Some(Outcome::Held { .. }));
        let is_written = case.task.as_ref() == Some(task) || is_held;
        let is_ours = task.as_str().contains(&format!(":{}:{TOKEN}:", case.sending_vmid()));
        self.require(is_written, "S1", || format!("{id} asks about the task {task}, which is not in the journal"));
        self.require(is_ours, "S2", || format!("{id} takes the task {task} for its own"));
    }

    /// The result of a change.
    pub(crate) fn on_answer(&mut self, id: &OperationId, sent: &SendResult, has_effect: bool) {
        let Some(case) = self.cases.get_mut(id) else { return };
        case.has_effect |= has_effect;
        case.is_rejected = matches!(sent, SendResult::Rejected(_) | SendResult::NotDelivered(_));
        case.may_have_run = matches!(sent, SendResult::MaybeExecuted(_));
    }

    /// A recovery concludes that nothing was carried out. By then, even slow requests have had their time (0016).
    pub(crate) fn on_given_up(&mut self, id: &OperationId, outcome: &Outcome, known: impl FnOnce() -> Vec<String>, now_ms: u64) {
        let Some(case) = self.cases.get_mut(id).filter(|case| case.sends > 0 && is_not_carried_out(outcome)) else { return };
        case.known = known();
        let is_early = case.is_recovered && now_ms < case.sent_ms + LATE_MS;
        self.require(!is_early, "S20", || format!("{id} was sent a moment ago, may still come, and is given up by a restart"));
    }

    /// An operation ended, according to the process.
    pub(crate) fn on_end(&mut self, id: &OperationId, outcome: &Outcome, is_recorded: bool, running_tasks: usize) {
        let Some(case) = self.cases.get_mut(id) else { return };
        case.believed = Some(outcome.end());
        case.is_under_way = false;
        let is_halted = outcome.end() != OperationEnd::Done && !case.is_recovered && self.on_failure == OnFailure::Stop;
        self.halted.extend(is_halted.then(|| case.operation.run.clone()));
        let case = &self.cases[id];
        let mut found = case.find_violation(outcome, self.wanted_of(case), running_tasks);
        found = found.or_else(|| case.check_absence(outcome));
        if self.is_healed && outcome.end() == OperationEnd::Refused && !self.is_guest_occupied(id) {
            found = found.or(Some(("L2", "nothing changes any more, and what was planned a moment ago is refused".to_owned())));
        }
        let needs_record = case.intent && outcome.end() != OperationEnd::NotRun;
        if needs_record && !is_recorded && case.ended.is_none() && !case.is_record_rejected {
            found = found.or(Some(("S19", "its end is told and not recorded".to_owned())));
        }
        if let Some((rule, text)) = found {
            self.report_violation(rule, format!("{id} {:?}: {text}", outcome_text(outcome)));
        }
        self.remember_done(id, outcome);
    }

    /// Whether an earlier operation with an unknown outcome occupies the guest of this one.
    fn is_guest_occupied(&self, id: &OperationId) -> bool {
        let Some(own) = self.cases.get(id) else { return false };
        self.cases.iter().any(|(other, case)| other != id && case.shares_guest(own) && case.occupies_guest())
    }

    /// An operation never began.
    pub(crate) fn on_not_run(&mut self, id: &OperationId, code: &str) {
        self.check_not_run_reason(id, code);
        let Some(case) = self.cases.get_mut(id) else { return };
        case.believed = Some(OperationEnd::NotRun);
        let is_clean = !case.intent && case.sends == 0;
        self.require(is_clean, "S16", || format!("{id} is told not to have run, and was recorded or sent"));
    }

    /// The process is idle: nothing is in flight, and nothing is waiting.
    pub(crate) fn on_rest(&mut self, is_idle: bool) {
        self.require(is_idle, "L3", || "something waits for its turn, and nothing goes on".into());
        let open = self.cases.iter().find(|(_, case)| case.is_under_way);
        let open = open.map(|(id, _)| id.clone());
        self.require(open.is_none(), "L3", || format!("{open:?} is still under way, and nothing goes on"));
    }

    /// Everything has healed and was recovered, so every operation has an end.
    pub(crate) fn check_settled(&mut self) {
        let open = self.cases.iter().find(|(_, case)| case.intent && case.ended.is_none()).map(|(id, _)| id.clone());
        self.require(open.is_none(), "L3", || format!("{open:?} has no end although everything has healed"));
    }

    /// Whether a task of ours is in no record although its operation was sent, and it was concluded that nothing was carried out: the task
    /// arrived too late. A recovery must not conclude that (`docs/decisions/0016-what-proves-that-nothing-ran.md`).
    pub(crate) fn record_late_task(&mut self, task: &str) -> bool {
        if self.cases.values().any(|case| case.task.as_ref().is_some_and(|own| own.as_str() == task)) {
            return false;
        }
        let is_of = |case: &&OracleCase| {
            let words = requested::task_words(&case.operation.step.change);
            words.iter().any(|word| task.contains(&format!("{word}{}:{TOKEN}:", case.sending_vmid())))
        };
        // A task that began in time and was lost since is not late: the guest was read, which shows its effects.
        let is_late = |case: &&OracleCase| case.sends > 0 && case.is_given_up && !case.known.iter().any(|known| known == task);
        let given_up = self.cases.values().filter(is_late).find(is_of);
        let Some((id, is_recovered)) = given_up.map(|case| (case.operation.id.clone(), case.is_recovered)) else { return false };
        self.require(!is_recovered, "S20", || format!("{id} came as {task} after a restart had given it up"));
        true
    }

    pub(crate) fn report(&mut self, rule: &'static str, text: String) {
        self.report_violation(rule, text);
    }
}

fn is_not_carried_out(outcome: &Outcome) -> bool {
    outcome.code().is_some_and(|code| code.as_str() == "not-carried-out")
}

fn outcome_text(outcome: &Outcome) -> String {
    let code = outcome.code().map_or("", |code| code.as_str());
    format!("{} {code}", outcome.end().word())
}

impl OracleCase {
    /// Whether it starts a guest that an earlier step of its plan took down for a restart.
    fn brings_up_again(&self) -> bool {
        let step = &self.operation.step;
        step.change == Change::Start && matches!(step.reason, StepReason::RestartForConfig(_)) && self.operation.position > 0
    }

    /// The violation in an end, if any.
    fn find_violation(&self, outcome: &Outcome, wanted: Option<&WantedGuest>, running_tasks: usize) -> Option<(&'static str, String)> {
        let code = outcome.code().map_or("", |code| code.as_str());
        match outcome {
            Outcome::Done(findings) if findings.evidence.get("not_needed").is_some() => self.check_needless_restart(wanted),
            Outcome::Done(_) if !self.is_proven(wanted) => Some(("S17", "nothing that was read shows that it is done".into())),
            Outcome::Done(_) if self.is_not_idempotent() && self.task.is_none() && self.ended.is_none() => {
                Some(("S17", "done, and no task shows that it was this and nobody else".into()))
            }
            Outcome::Refused { .. } if self.sends > 0 && !self.is_rejected => {
                Some(("S17", "refused, and it was sent and not turned down".into()))
            }
            Outcome::Refused { .. } if self.has_effect => Some(("S17", "refused, and the world changed".into())),
            Outcome::Failed { .. } if code == "not-delivered" && self.has_effect => {
                Some(("S17", "not delivered, and the world changed".into()))
            }
            Outcome::Failed { .. } if self.task_lost => Some(("S17", "nobody knows how its task ended, and it is not held".into())),
            Outcome::Failed { .. } if self.may_have_run && self.is_not_idempotent() && !self.has_task() && !self.is_clone_absent() => {
                Some(("S17", "it may have run, only a person could tell, and it is not held".into()))
            }
            Outcome::Failed { .. } if running_tasks > 0 && self.sends > 0 => Some(("S17", "failed, and its task is at work".into())),
            Outcome::Failed { .. } if self.is_recovered && self.last.is_empty() && self.sends > 0 => {
                Some(("S20", "it was sent, and nothing was read about it".into()))
            }
            // An operation that could not be delivered may not have got a permit.
            Outcome::Failed { .. } if self.sends == 0 && !self.is_recovered && code != "not-delivered" => {
                Some(("S17", "failed without having been sent".into()))
            }
            Outcome::NotRun { .. } if self.sends > 0 || self.is_recovered => {
                Some(("S16", "not run, and it was sent, or may have been".into()))
            }
            _ => None,
        }
    }

    /// The violation in a restart that is reported as not needed: the guest must run, with the new values in effect.
    fn check_needless_restart(&self, wanted: Option<&WantedGuest>) -> Option<(&'static str, String)> {
        let truth_of = |snapshot: &Option<TruthSnapshot>| snapshot.as_ref().and_then(|snapshot| snapshot.guest.clone());
        let StepReason::RestartForConfig(fields) = &self.operation.step.reason else {
            return Some(("S17", "not needed, and it is no restart".into()));
        };
        let is_up = truth_of(&self.status).is_some_and(|truth| truth::runs_as(&truth, RunState::Running));
        let is_in_effect = truth_of(&self.config).zip(wanted).is_some_and(|(truth, wanted)| truth::has_in_effect(&truth, wanted, fields));
        let is_right = self.sends == 0 && is_up && is_in_effect;
        (!is_right).then(|| ("S17", "not needed, and it was sent, or what it was for is not in effect".into()))
    }

    /// Whether a task is the start that follows this reboot.
    fn is_start_after_reboot(&self, task: &TaskId) -> bool {
        self.is_reboot() && task.as_str().contains(&format!(":qmstart:{}:", self.operation.guest.vmid))
    }

    /// Whether repeating the change has another effect, so that its result cannot be recognised.
    fn is_not_idempotent(&self) -> bool {
        match &self.operation.step.change {
            Change::Reboot { .. } | Change::Clone(_) => true,
            Change::SnapshotRollback(rollback) => rollback.parent.as_deref() == Some(rollback.snapshot.name.as_str()),
            _ => false,
        }
    }

    /// Whether its task is known. A held operation gets no more task records, and its task is read without one.
    fn has_task(&self) -> bool {
        self.task.is_some() || self.is_task_read
    }

    fn is_reboot(&self) -> bool {
        matches!(self.operation.step.change, Change::Reboot { .. })
    }

    fn makes_guest(&self) -> bool {
        matches!(self.operation.step.change, Change::Clone(_))
    }

    /// Whether the truth of what was read in this life shows that the change took effect.
    fn is_proven(&self, wanted: Option<&WantedGuest>) -> bool {
        let status = self.status.as_ref().and_then(|snapshot| snapshot.guest.as_ref());
        let config = self.config.as_ref().and_then(|snapshot| snapshot.guest.as_ref());
        let runs = |state: RunState| status.is_some_and(|truth| truth::runs_as(truth, state));
        match &self.operation.step.change {
            Change::ConfigSet(fields) => config.zip(wanted).is_some_and(|(truth, wanted)| truth::has_fields(truth, wanted, fields)),
            Change::Provision(_) => config.zip(wanted).is_some_and(|(truth, wanted)| truth::has_first_config(truth, wanted)),
            Change::Start | Change::Reboot { .. } => runs(RunState::Running),
            Change::Shutdown { .. } | Change::Stop => runs(RunState::Stopped),
            _ => self.is_request_proven(),
        }
    }

    fn idempotency_key(&self) -> Option<String> {
        match &self.operation.source {
            OperationSource::OneShot { key, .. } => Some(key.as_str().to_owned()),
            OperationSource::Convergent => None,
        }
    }
}

/// Whether a held operation waits for a read, so that a recovery checks it.
pub(crate) fn waits_for_reading(history: &OperationHistory) -> bool {
    let is_held = matches!(&history.ended, Some((Outcome::Held { release: ReleaseCondition::Reading, .. }, _)));
    is_held && history.resolved.is_none()
}

/// Config keys that we never write.
pub(crate) fn forbidden_keys() -> BTreeSet<&'static str> {
    BTreeSet::from([
        "skiplock",
        "force",
        "forceStop",
        "revert",
        "lock",
        "protection",
        "purge",
        "overrule-shutdown",
        "args",
        "hookscript",
        "name",
        "hostname",
    ])
}
