//! What became of the change: found out by reading, after a task has ended, an answer was lost, or there was a crash.
//!
//! The promise of the change decides, never what a task said. A task that failed while the promise holds is done, and the
//! evidence says so: the declared state is reached, and the next plan finds nothing to do (S17 asks that a failed task is not
//! taken for a good one, and it is not; it is what was read that counts). A lost answer is looked for in the node's list of
//! tasks first, so that a task that is still at work is adopted and waited for.
//!
//! What never enters: sending. There is no way from here back to the change.

use std::cmp::Reverse;

use converger_core::action::Change;
use converger_core::apply::promise::{self, After, Kept, TaskEnd};
use converger_core::apply::{
    Answer, Ask, Cause, ConfigRead, Evidence, Fact, Findings, Live, Outcome, Place, Release, TaskId, TaskSeen, TaskState, Trouble,
};
use converger_core::failure::Code;
use converger_core::guest::RunState;
use converger_core::moment;
use converger_core::observe::Status;
use converger_core::plan::Reason;

use super::patience::next_ms;
use super::{Command, Stage, State, cause_of};

/// How much older than our intent a task that has ended may look and still be taken for ours: its node's clock and ours are read one after the
/// other, and both may be mended meanwhile. One that is still at work is ours, whenever it says that it began.
const SKEW_SECS: u64 = 10;
/// A guest that is down so long after its reboot was not started again at once: its start is looked for.
const START_MS: u64 = 2_000;
/// How often a guest is followed to another node.
const MOVES_MAX: u32 = 3;

/// Why it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The environment says that it is done.
    Sent,
    /// Its task ended well; it was begun so long ago.
    TaskEnded { warnings: u32, age_secs: Option<u64> },
    /// Its task ended with an error; it was begun so long ago.
    TaskFailed { cause: Cause, age_secs: Option<u64> },
    /// Nobody knows how its task ended.
    TaskLost(Cause),
    /// Nobody knows whether it arrived.
    Unknown { looks: usize },
}

/// What is being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proving {
    why: Why,
    read: Read,
    live: Option<Box<Live>>,
    others: Others,
    /// A guest that is down after its reboot, while its start task is looked for.
    down: Option<Box<Down>>,
    waited_ms: u64,
    /// What was waited because nothing could be read.
    unread_ms: u64,
    /// What answers took that told nothing. It is not among what was waited: a task is older by that, and only by what surely went by.
    asked_ms: u64,
    waiting: bool,
}

/// Tasks of others that do the same to the guest. What was sent before a crash may be one of them: the token can be another one since.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Others {
    /// There are none, or what was sent cannot be among them.
    None,
    /// One is at work: what comes of it can be read later.
    AtWork(Vec<Box<str>>),
    /// All have ended: nothing that is read later tells whose they were.
    Ended(Vec<Box<str>>),
}

/// What was read of a guest that is down after its reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Down {
    observed: Evidence,
    /// The last task that was to start it, once it was found.
    start: Option<TaskId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Tasks,
    Status,
    Config,
    Where,
    /// The start tasks of a guest that is down after its reboot.
    Starts,
    /// How the last of them ended.
    Start,
}

impl Proving {
    /// How old the task is that ended: as old as when that was read, and what was waited since. A guest that comes up meanwhile has
    /// been up for less than that.
    fn task_age_secs(&self) -> Option<u64> {
        let since_secs = self.waited_ms.saturating_add(self.unread_ms) / 1000;
        match self.why {
            Why::TaskEnded { age_secs, .. } | Why::TaskFailed { age_secs, .. } => age_secs.map(|secs| secs.saturating_add(since_secs)),
            Why::Sent | Why::TaskLost(_) | Why::Unknown { .. } => None,
        }
    }

    /// How the task ended, for a promise that it is part of.
    fn task_end(&self, is_moved: bool) -> Option<TaskEnd> {
        let is_failed = match self.why {
            Why::TaskEnded { .. } => false,
            Why::TaskFailed { .. } => true,
            Why::Sent | Why::TaskLost(_) | Why::Unknown { .. } => return None,
        };
        Some(TaskEnd { is_failed, age_secs: self.task_age_secs(), is_moved })
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting
    }
}

impl State {
    pub(super) fn prove(&mut self, why: Why) -> Option<Command> {
        let (read, live, others, waiting) = (Read::Status, None, Others::None, true);
        self.prove_again(Proving { why, read, live, others, down: None, waited_ms: 0, unread_ms: 0, asked_ms: 0, waiting })
    }

    /// From the first reading on: what was read before a wait is old.
    pub(super) fn prove_again(&mut self, proving: Proving) -> Option<Command> {
        let has_tasks = self.operation.step.change.leads_to().is_some();
        let read = match proving.why {
            Why::Unknown { .. } if has_tasks => Read::Tasks,
            _ => self.first_reading(),
        };
        self.look(Proving { read, live: None, down: None, waiting: false, ..proving })
    }

    fn first_reading(&self) -> Read {
        if promise::proof(&self.operation).status { Read::Status } else { Read::Config }
    }

    /// What was found in the journal is first shown to be the same guest.
    fn reads_config(&self) -> bool {
        promise::proof(&self.operation).config || self.is_recovered()
    }

    fn look(&mut self, proving: Proving) -> Option<Command> {
        let ask = match proving.read {
            Read::Tasks => Ask::Tasks {
                place: self.place.clone(),
                change: self.operation.step.change.clone(),
                // Whatever is at work counts, however old it says that it is. Of what has ended, a guest with a past would fill the
                // list with what cannot be ours, and a full list tells nothing.
                age_secs_max: self.age_secs_max(),
            },
            Read::Status => Ask::Status(self.place.clone()),
            Read::Config => Ask::Config(self.place.clone()),
            Read::Where => Ask::Where(self.place.vmid),
            Read::Starts => {
                Ask::Tasks { place: self.place.clone(), change: Change::Start, age_secs_max: self.start_age_secs_max(&proving) }
            }
            Read::Start => match proving.down.as_ref().and_then(|down| down.start.clone()) {
                Some(start) => Ask::Task(start),
                // INVARIANT: the start is read only once it was found; without it the guest is read again.
                None => Ask::Status(self.place.clone()),
            },
        };
        self.stage = Stage::Proving(proving);
        Some(Command::Ask(ask))
    }

    pub(super) fn proved(&mut self, proving: Proving, answer: Answer, now_ms: u64) -> Option<Command> {
        match (proving.read, answer) {
            (Read::Tasks, Answer::Tasks(tasks)) => self.found(proving, tasks, now_ms),
            (Read::Status, Answer::Status(live)) if self.reads_config() => {
                self.look(Proving { read: Read::Config, live: Some(Box::new(live)), ..proving })
            }
            (Read::Status, Answer::Status(live)) => {
                let proving = Proving { live: Some(Box::new(live)), ..proving };
                self.weigh(proving, None, now_ms)
            }
            (Read::Config, Answer::Config(config)) => self.weigh(proving, Some(&config), now_ms),
            (Read::Status | Read::Config, Answer::NotThere(_)) => self.look(Proving { read: Read::Where, ..proving }),
            (Read::Starts, Answer::Tasks(tasks)) => self.find_start(proving, &tasks, now_ms),
            (Read::Start, Answer::Task(TaskState::Failed { cause, .. })) => self.left_down(proving, &cause, now_ms),
            (Read::Starts | Read::Start, Answer::Unread(_)) => {
                let asked_ms = proving.asked_ms.saturating_add(self.asked_ms.max(1));
                self.still_down(Proving { asked_ms, ..proving }, now_ms)
            }
            // A start that is at work or ended well explains nothing: the guest is read again.
            (Read::Starts | Read::Start, _) => self.still_down(proving, now_ms),
            (Read::Where, Answer::Where(Some(found))) if self.is_elsewhere(&found) => {
                self.moves += 1;
                self.place = found;
                self.prove_again(proving)
            }
            (_, other) => self.not_proved(proving, &cause_of(&other), now_ms),
        }
    }

    /// How old a task of ours can be: not older than the intent, by the clock of whoever counts.
    fn age_secs_max(&self) -> u64 {
        (self.now_ms.saturating_sub(self.intent_ms) / 1000).saturating_add(SKEW_SECS)
    }

    fn is_elsewhere(&self, found: &Place) -> bool {
        self.moves < MOVES_MAX && found.kind == self.place.kind && found.vmid == self.place.vmid && found.node != self.place.node
    }

    /// Tasks that may be this operation's. What the journal has as that of another operation is not, however young it is: the guest may
    /// have had the same change a moment ago.
    fn found(&mut self, proving: Proving, tasks: Vec<TaskSeen>, now_ms: u64) -> Option<Command> {
        // Each by its own clock, of which only differences are compared.
        let age_secs_max = self.age_secs_max();
        let fits = |seen: &TaskSeen| seen.ended_age_secs.is_none_or(|age_secs| age_secs <= age_secs_max);
        let mut fitting: Vec<TaskSeen> = tasks.into_iter().filter(fits).collect();
        fitting.sort_by(|left, right| left.task.cmp(&right.task));
        fitting.dedup_by(|second, first| second.task == first.task);
        if fitting.is_empty() {
            return self.told(proving, &fitting, &[], now_ms);
        }
        let ids = fitting.iter().map(|seen| seen.task.clone()).collect();
        self.stage = Stage::Telling(proving, fitting);
        Some(Command::Whose(ids))
    }

    /// Which of these tasks is ours: exactly one is adopted, several are for a person to tell apart.
    pub(super) fn told(&mut self, proving: Proving, tasks: &[TaskSeen], taken: &[TaskId], now_ms: u64) -> Option<Command> {
        let left = tasks.iter().filter(|seen| !taken.contains(&seen.task));
        let (candidates, others): (Vec<&TaskSeen>, Vec<&TaskSeen>) = left.partition(|seen| seen.is_ours);
        match candidates.as_slice() {
            [] => self.look(Proving { read: self.first_reading(), others: self.weigh_others(&others), ..proving }),
            [one] => {
                let task = one.task.clone();
                self.evidence = std::mem::take(&mut self.evidence).with("adopted", "found in the list of tasks");
                self.tasked(task, now_ms)
            }
            several => {
                let ids = several.iter().map(|seen| seen.task.as_str().into()).collect();
                let evidence = self.evidence.clone().with("tasks", Fact::Words(ids));
                let findings = Findings { evidence, ..Findings::default() };
                self.end(Outcome::held(Code::OutcomeUnclear, Release::Person, findings), now_ms)
            }
        }
    }

    /// Without the journal nobody can say whose a task is.
    pub(super) fn not_told(&mut self, proving: Proving, why: &str, now_ms: u64) -> Option<Command> {
        self.not_proved(proving, &Cause::new(Trouble::Other, "journal-unreadable", why), now_ms)
    }

    /// Who still runs sends under the name that it asks with: what others began is theirs.
    fn weigh_others(&self, others: &[&TaskSeen]) -> Others {
        if others.is_empty() || !self.is_recovered() {
            return Others::None;
        }
        let ids = others.iter().map(|seen| seen.task.as_str().into()).collect();
        if others.iter().any(|seen| seen.ended_age_secs.is_none()) { Others::AtWork(ids) } else { Others::Ended(ids) }
    }

    fn weigh(&mut self, proving: Proving, config: Option<&ConfigRead>, now_ms: u64) -> Option<Command> {
        if let Some(found) = config.filter(|config| self.operation.guest.identity.as_ref().is_some_and(|own| *own != config.identity)) {
            let marks = found.identity.marks().into_iter().filter_map(|(name, mark)| Some(format!("{name}: {}", mark?).into()));
            let evidence = self.evidence.clone().with("other_guest", Fact::Words(marks.collect()));
            let findings = Findings { evidence, ..Findings::default() };
            return self.end(Outcome::held(Code::OutcomeUnclear, Release::Person, findings), now_ms);
        }
        let after = After {
            live: proving.live.as_deref(),
            config,
            uptime_before_secs: self.uptime_before_secs,
            passed_secs: self.passed_ms / 1000,
            recorded_uptime_secs: self.recorded_uptime_secs,
            task: proving.task_end(self.moves > 0),
        };
        match promise::kept(&self.operation, after) {
            Kept::Yes(seen) => self.kept(&proving.why, seen, now_ms),
            Kept::No(seen) => self.not_kept(proving, seen, now_ms),
            Kept::Unclear(seen) if promise::is_idempotent(&self.operation.step.change) => {
                self.not_proved(proving, &Cause::new(Trouble::Other, "unclear", &shown(&seen)), now_ms)
            }
            // A reboot that is not shown by what was read cannot be told from none, however often it is read.
            Kept::Unclear(seen) => self.unclear(&proving.why, seen, now_ms),
        }
    }

    fn kept(&mut self, why: &Why, observed: Evidence, now_ms: u64) -> Option<Command> {
        let is_idempotent = promise::is_idempotent(&self.operation.step.change);
        let evidence = self.with_task(self.evidence.clone());
        let evidence = match why {
            Why::Sent | Why::TaskEnded { warnings: 0, .. } => evidence,
            Why::TaskEnded { warnings, .. } => evidence.with("warnings", u64::from(*warnings)),
            Why::TaskFailed { cause, .. } => evidence.with("task_error", &*cause.text),
            Why::TaskLost(_) | Why::Unknown { .. } if !is_idempotent => return self.unclear(why, observed, now_ms),
            Why::TaskLost(cause) => evidence.with("task_lost", cause.word.as_str()),
            Why::Unknown { .. } => evidence.with("found_so", "after the answer was lost"),
        };
        self.end(Outcome::Done(Findings { evidence, observed }), now_ms)
    }

    /// It is as if it had not been done, or not yet.
    fn not_kept(&mut self, proving: Proving, observed: Evidence, now_ms: u64) -> Option<Command> {
        let change = &self.operation.step.change;
        let evidence = self.with_task(self.evidence.clone());
        match &proving.why {
            Why::TaskEnded { .. } if self.is_down_after_reboot(&proving) => self.look_for_start(proving, observed, now_ms),
            Why::Sent | Why::TaskEnded { .. } => self.not_yet_kept(proving, observed, now_ms),
            Why::TaskFailed { cause, .. } => {
                let findings = Findings { evidence: cause.onto(evidence), observed };
                self.end(self.task_failed(cause, findings), now_ms)
            }
            // However often it is read: a worker that is gone may have begun, and what it began may come later (S17).
            Why::TaskLost(_) => self.unclear(&proving.why, observed, now_ms),
            Why::Unknown { looks } => match self.patience.looks_ms.get(*looks).copied() {
                Some(ms) => {
                    let why = Why::Unknown { looks: looks + 1 };
                    self.stage = Stage::Proving(Proving { why, waiting: true, ..proving });
                    self.wait(ms)
                }
                None if proving.others != Others::None => self.of_others(&proving.others, observed, now_ms),
                None if promise::is_idempotent(change) && self.may_come_ms(now_ms) > 0 => self.may_come(evidence, observed, now_ms),
                None if promise::is_idempotent(change) => {
                    self.end(Outcome::failed(Code::NotCarriedOut, Findings { evidence, observed }), now_ms)
                }
                None => self.unclear(&proving.why, observed, now_ms),
            },
        }
    }

    /// The task ended well, and the guest is not as promised: it is read again for as long as that may take.
    fn not_yet_kept(&mut self, proving: Proving, observed: Evidence, now_ms: u64) -> Option<Command> {
        let (change, evidence) = (&self.operation.step.change, self.with_task(self.evidence.clone()));
        if proving.waited_ms < self.patience.of_promise(change) {
            return self.read_later(proving);
        }
        // Its task ended when it went down: nobody waits here until it is up, and nobody says that it never will be.
        if matches!(proving.why, Why::TaskEnded { .. }) && self.patience.may_come_up(change, proving.task_age_secs()) {
            return self.end(Outcome::held(Code::TaskAtWork, Release::Reading, Findings { evidence, observed }), now_ms);
        }
        let code = if self.is_down_after_reboot(&proving) { Code::GuestLeftDown } else { Code::PromiseBroken };
        self.end(Outcome::failed(code, Findings { evidence, observed }), now_ms)
    }

    /// Whether a guest is down although its reboot ended well: its node starts it by another task, which may have failed.
    fn is_down_after_reboot(&self, proving: &Proving) -> bool {
        let is_stopped = |live: &Live| live.status == Status::Known(RunState::Stopped);
        matches!(self.operation.step.change, Change::Reboot { .. }) && proving.live.as_deref().is_some_and(is_stopped)
    }

    /// Asks for the start tasks of a guest that is down after its reboot. Most guests are up a moment later, and nothing is asked about them;
    /// where readings fail it is asked once more, before the guest is given up.
    fn look_for_start(&mut self, proving: Proving, observed: Evidence, now_ms: u64) -> Option<Command> {
        let is_last = proving.waited_ms >= self.patience.of_promise(&self.operation.step.change);
        let is_early = proving.waited_ms < START_MS || proving.asked_ms > 0;
        if is_early && !is_last {
            return self.not_yet_kept(proving, observed, now_ms);
        }
        self.look(Proving { read: Read::Starts, down: Some(Box::new(Down { observed, start: None })), ..proving })
    }

    /// How old a start task may be to come after the reboot.
    fn start_age_secs_max(&self, proving: &Proving) -> u64 {
        proving.task_age_secs().unwrap_or_else(|| self.age_secs_max())
    }

    /// The last start after the reboot, whoever began it: the node itself does it under another name than ours.
    fn find_start(&mut self, proving: Proving, tasks: &[TaskSeen], now_ms: u64) -> Option<Command> {
        let age_secs_max = self.start_age_secs_max(&proving);
        let since = tasks.iter().filter(|seen| seen.ended_age_secs.is_none_or(|age_secs| age_secs <= age_secs_max));
        // One at work has no age here and comes before all others; of one second the later id counts.
        let last = since.min_by_key(|seen| (seen.ended_age_secs, Reverse(seen.task.clone())));
        match (last.filter(|seen| seen.ended_age_secs.is_some()), &proving.down) {
            (Some(seen), Some(down)) => {
                let down = Down { start: Some(seen.task.clone()), ..(**down).clone() };
                self.look(Proving { read: Read::Start, down: Some(Box::new(down)), ..proving })
            }
            _ => self.still_down(proving, now_ms),
        }
    }

    fn still_down(&mut self, proving: Proving, now_ms: u64) -> Option<Command> {
        let observed = proving.down.as_ref().map(|down| down.observed.clone()).unwrap_or_default();
        self.not_yet_kept(proving, observed, now_ms)
    }

    /// The guest went down for its reboot, and the task that was to start it failed: it stays down, and waiting does not help.
    fn left_down(&mut self, proving: Proving, cause: &Cause, now_ms: u64) -> Option<Command> {
        let Some(down) = proving.down.clone() else { return self.prove_again(proving) };
        let evidence = cause.onto(self.with_task(self.evidence.clone()));
        let evidence = down.start.iter().fold(evidence, |evidence, start| evidence.with("start_task", start.as_str()));
        self.end(Outcome::failed(Code::GuestLeftDown, Findings { evidence, observed: down.observed }), now_ms)
    }

    /// Nothing shows it, and it may have been sent so short a time ago that it still comes: the next start after that settles it.
    fn may_come(&mut self, evidence: Evidence, observed: Evidence, now_ms: u64) -> Option<Command> {
        let until_ms = now_ms.saturating_add(self.may_come_ms(now_ms));
        let evidence = evidence.with("may_come_until", &*moment::written(until_ms.div_ceil(1000)));
        self.end(Outcome::held(Code::OutcomeUnclear, Release::Reading, Findings { evidence, observed }), now_ms)
    }

    /// Nothing shows it but a task that somebody else began, or that was ours under another name: nobody can say that nothing was carried
    /// out, and it is not sent again.
    fn of_others(&mut self, others: &Others, observed: Evidence, now_ms: u64) -> Option<Command> {
        let is_idempotent = promise::is_idempotent(&self.operation.step.change);
        let (release, ids) = match others {
            Others::AtWork(ids) if is_idempotent => (Release::Reading, ids.clone()),
            Others::AtWork(ids) | Others::Ended(ids) => (Release::Person, ids.clone()),
            Others::None => (Release::Person, Vec::new()),
        };
        let evidence = self.with_task(self.evidence.clone()).with("tasks_of_others", Fact::Words(ids.into()));
        self.end(Outcome::held(Code::OutcomeUnclear, release, Findings { evidence, observed }), now_ms)
    }

    /// A guest that did not go down in time may still do so: it is held until it is read again (design 6.22).
    fn task_failed(&self, cause: &Cause, findings: Findings) -> Outcome {
        match cause.trouble {
            Trouble::ShutdownTimeout if self.is_read_again() => Outcome::failed(Code::ShutdownTimeout, findings),
            Trouble::ShutdownTimeout => Outcome::held(Code::ShutdownTimeout, Release::Reading, findings),
            _ if self.is_start_of_restart() => Outcome::failed(Code::GuestLeftDown, findings),
            _ => Outcome::failed(Code::TaskFailed, findings),
        }
    }

    /// Whether this start is the second half of a restart: the guest ran, and was taken down for it.
    fn is_start_of_restart(&self) -> bool {
        let step = &self.operation.step;
        step.change == Change::Start && matches!(step.reason, Reason::RestartForConfig(_))
    }

    /// What was read does not settle it. What leads to the same twice is settled by the next reading that shows it, and so is a reboot whose
    /// task ended and of which something could not be read this time.
    fn unclear(&mut self, why: &Why, observed: Evidence, now_ms: u64) -> Option<Command> {
        let is_incomplete = matches!(why, Why::TaskEnded { .. } | Why::TaskFailed { .. }) && observed.get("unread").is_some();
        let is_read_later = is_incomplete || promise::is_idempotent(&self.operation.step.change);
        let release = if is_read_later { Release::Reading } else { Release::Person };
        let evidence = self.with_task(self.evidence.clone());
        let (code, evidence) = match why {
            Why::TaskLost(cause) => (Code::TaskLost, cause.onto(evidence)),
            _ => (Code::OutcomeUnclear, evidence),
        };
        self.end(Outcome::held(code, release, Findings { evidence, observed }), now_ms)
    }

    /// The reading gave nothing.
    fn not_proved(&mut self, proving: Proving, cause: &Cause, now_ms: u64) -> Option<Command> {
        let proving = Proving { asked_ms: proving.asked_ms.saturating_add(self.asked_ms), ..proving };
        if proving.unread_ms.saturating_add(proving.asked_ms) < self.patience.unread_ms {
            let ms = next_ms(proving.unread_ms);
            self.stage = Stage::Proving(Proving { unread_ms: proving.unread_ms.saturating_add(ms), waiting: true, ..proving });
            return self.wait(ms);
        }
        let evidence = cause.onto(self.with_task(self.evidence.clone()));
        self.hold(Code::OutcomeUnread, evidence, now_ms)
    }

    fn read_later(&mut self, proving: Proving) -> Option<Command> {
        let ms = next_ms(proving.waited_ms);
        self.stage = Stage::Proving(Proving { waited_ms: proving.waited_ms.saturating_add(ms), waiting: true, ..proving });
        self.wait(ms)
    }
}

fn shown(evidence: &Evidence) -> String {
    evidence.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().join(", ")
}
