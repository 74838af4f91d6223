//! Bugs that are planted on purpose, so that the oracles are known to find them: each turns the engine, the hand or the driver into
//! one that lacks something.
//!
//! They are planted where the machines meet the rest: in what is committed, asked, answered, begun and recovered. To an oracle, which
//! sees requests and records only, that is the same as a machine that is wrong inside; and nothing of it can ever be in the program,
//! because all of it is in this directory.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::action::Change;
use converger_core::apply::{Answer, Ask, Live, Operation, OperationId, Outcome, Record, Source, TaskState};
use converger_core::guest::{RunState, Vmid};
use converger_core::normalize::Words;
use converger_core::observe::{Observation, Reading, Status};
use converger_core::policy;
use converger_engine::operation::{Event, NotCommitted, Patience};
use converger_engine::schedule::{Limits, OnFailure};

use super::PANIC;
use super::scene::Wanted;

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bug {
    /// The intent is never written.
    SkipIntent,
    /// The intent is written after the change was sent.
    SendBeforeCommit,
    /// Whoever waits for a commit is told before it is durable.
    AcknowledgeFirst,
    /// Nobody is told that a change is about to be sent.
    SkipMark,
    /// What is found open is given up before it can no longer come.
    GiveUpEarly,
    /// The task is not written down.
    ForgetTask,
    /// A change whose answer was lost is sent again.
    RetryLostAnswer,
    /// A guest is not read again before it is changed.
    StaleRead,
    /// A write is bound to the config as it is, and not as it was read.
    IgnoreDigest,
    /// Locks are not looked at.
    IgnoreLock,
    /// Nor is high availability.
    IgnoreHa,
    /// Nor are the birth marks and the name.
    IgnoreIdentity,
    /// Nor is protection.
    IgnoreProtection,
    /// Nor are quorum and nodes that are gone.
    IgnoreQuorum,
    /// Nor is what waits for the next start.
    IgnorePending,
    /// Nor is a person's hold.
    IgnoreHold,
    /// Nobody asks what people said since the intent was taken.
    SkipClear,
    /// However old a reading is, it is taken for young.
    OldReading,
    /// A paused guest is taken for what it was planned on.
    UnclearIsFine,
    /// A guest that cannot be read is taken for stopped.
    UnreadIsStopped,
    /// A lost task is taken for one that failed.
    LostIsFailed,
    /// What a change promised is believed.
    SkipPromise,
    /// What cannot be told is called a failure.
    HeldIsFailed,
    /// A shutdown that takes too long is followed by a stop.
    Escalate,
    /// All steps of a guest begin at once.
    TwoAtOnce,
    /// Nobody waits for anybody.
    IgnoreAfter,
    /// What follows a failure goes on.
    GoOnAfterFailure,
    /// A run that was stopped begins new steps.
    IgnoreStop,
    /// A run that stops at the first failure goes on.
    IgnoreFailFast,
    /// A record that could not be written is taken for written.
    GoOnUnwritten,
    /// What is found open is sent again.
    ResendOnRecovery,
    /// What is found open is left alone.
    DropRecovery,
    /// What is found open is called a failure without looking.
    FailOnRecovery,
    /// Somebody else's task is taken for ours.
    AdoptForeignTask,
    /// A guest that moved is changed where it was.
    PlannedNode,
    /// The change goes to the guest beside it.
    OtherGuest,
    /// A request that was carried out is carried out again.
    RepeatRequest,
    /// A guest that was once read as locked is taken for locked ever after.
    LockForever,
    /// A guest that no list has is taken for missing.
    AbsentIsMissing,
    /// A change whose task no list has is taken for not carried out.
    BelieveTheList,
    /// Every plan is made of the first reading that there ever was.
    OldPlan,
    /// The limits of a run are those of another.
    IgnoreBudget,
    /// Everything is under way at once.
    IgnoreLimits,
    /// What gives no answer is asked until it does.
    AskForEver,
    /// What is held is never read again.
    ForgetHeld,
    /// One guest after the other, however long one takes.
    OneAfterTheOther,
    /// What fails for one guest stops all of them.
    FailureStopsAll,
    /// Every second plan wants the opposite.
    TurnRound,
    /// Guests are looked for, and nothing that is wanted of them is.
    WantNothing,
    /// An operation that no plan has is carried out.
    Uninvited,
    /// A guest that is no longer declared is changed as it was.
    OldDeclaration,
    /// A reading that there is not ends the process in a panic.
    Unwrap,
}

impl Bug {
    /// All bugs.
    pub(crate) const ALL: [Self; 52] = [
        Self::SkipIntent,
        Self::SendBeforeCommit,
        Self::AcknowledgeFirst,
        Self::SkipMark,
        Self::GiveUpEarly,
        Self::ForgetTask,
        Self::RetryLostAnswer,
        Self::StaleRead,
        Self::IgnoreDigest,
        Self::IgnoreLock,
        Self::IgnoreHa,
        Self::IgnoreIdentity,
        Self::IgnoreProtection,
        Self::IgnoreQuorum,
        Self::IgnorePending,
        Self::IgnoreHold,
        Self::SkipClear,
        Self::OldReading,
        Self::UnclearIsFine,
        Self::UnreadIsStopped,
        Self::LostIsFailed,
        Self::SkipPromise,
        Self::HeldIsFailed,
        Self::Escalate,
        Self::TwoAtOnce,
        Self::IgnoreAfter,
        Self::GoOnAfterFailure,
        Self::IgnoreStop,
        Self::IgnoreFailFast,
        Self::GoOnUnwritten,
        Self::ResendOnRecovery,
        Self::DropRecovery,
        Self::FailOnRecovery,
        Self::AdoptForeignTask,
        Self::PlannedNode,
        Self::OtherGuest,
        Self::RepeatRequest,
        Self::LockForever,
        Self::AbsentIsMissing,
        Self::BelieveTheList,
        Self::OldPlan,
        Self::IgnoreBudget,
        Self::IgnoreLimits,
        Self::AskForEver,
        Self::ForgetHeld,
        Self::OneAfterTheOther,
        Self::FailureStopsAll,
        Self::TurnRound,
        Self::WantNothing,
        Self::Uninvited,
        Self::OldDeclaration,
        Self::Unwrap,
    ];

    /// The rules that it breaks: found for another reason, it is not found.
    pub(crate) fn rules(self) -> &'static [&'static str] {
        match self {
            Self::SkipIntent | Self::SkipMark | Self::SendBeforeCommit | Self::ForgetTask | Self::Escalate | Self::OtherGuest => &["S1"],
            Self::AcknowledgeFirst => &["S1", "S19"],
            Self::RetryLostAnswer | Self::AdoptForeignTask => &["S2"],
            Self::ResendOnRecovery => &["S2", "S20"],
            Self::StaleRead | Self::OldReading | Self::IgnoreQuorum | Self::UnclearIsFine | Self::UnreadIsStopped | Self::PlannedNode => {
                &["S4"]
            }
            Self::IgnoreDigest => &["S7"],
            Self::IgnoreLock | Self::IgnoreHa | Self::IgnorePending | Self::IgnoreHold | Self::SkipClear => &["S12"],
            Self::IgnoreIdentity => &["S6"],
            Self::IgnoreProtection => &["S13"],
            Self::LostIsFailed | Self::SkipPromise | Self::HeldIsFailed => &["S17"],
            Self::TwoAtOnce => &["S3"],
            Self::IgnoreAfter | Self::GoOnAfterFailure | Self::IgnoreStop | Self::IgnoreFailFast => &["S16"],
            Self::GoOnUnwritten => &["S18"],
            Self::DropRecovery | Self::ForgetHeld => &["L3"],
            Self::FailOnRecovery | Self::GiveUpEarly => &["S20"],
            Self::RepeatRequest => &["G13"],
            Self::LockForever => &["L2"],
            Self::AbsentIsMissing | Self::BelieveTheList => &["S5"],
            Self::OldPlan => &["S8"],
            Self::IgnoreBudget | Self::IgnoreLimits => &["S14"],
            Self::AskForEver => &["S23"],
            Self::OneAfterTheOther | Self::FailureStopsAll => &["L4"],
            Self::TurnRound => &["L5"],
            Self::WantNothing => &["L1"],
            Self::Uninvited => &["S11"],
            Self::OldDeclaration => &["S22"],
            Self::Unwrap => &[PANIC],
        }
    }
}

/// How long a machine with this bug would wait.
pub(crate) fn patience(bug: Option<Bug>, patience: Patience) -> Patience {
    if bug == Some(Bug::GiveUpEarly) { Patience { late_ms: 0, ..patience } } else { patience }
}

/// What an observer that never forgets a lock would read.
pub(crate) fn locked_for_ever(locked: &mut BTreeSet<Vmid>, observation: &mut Observation) {
    for guest in &mut observation.guests {
        if matches!(guest.lock, Reading::Read(Some(_))) {
            locked.insert(guest.vmid);
        } else if locked.contains(&guest.vmid) {
            guest.lock = Reading::Read(Some("backup".into()));
        }
    }
}

/// What an observer that believes a list would read.
pub(crate) fn absent_is_missing(observation: &mut Observation) {
    (observation.complete, observation.unlisted) = (true, Default::default());
}

/// What is declared now, where a planner with this bug has what was declared before.
pub(crate) fn wanted(bug: Option<Bug>, mut wanted: BTreeMap<u32, Wanted>) -> BTreeMap<u32, Wanted> {
    if bug == Some(Bug::OldDeclaration) {
        wanted.pop_first();
    }
    wanted
}

/// What a machine with this bug would ask in the place of this.
pub(crate) fn ask(bug: Bug, operation: &Operation, ask: Ask, digest: Option<&str>) -> Ask {
    let Ask::Send { mut place, change, mut revision } = ask else { return ask };
    match bug {
        Bug::IgnoreDigest if revision.is_some() => {
            revision = digest.and_then(converger_core::apply::Revision::new).or(revision);
        }
        Bug::PlannedNode => place.node = operation.guest.node.clone(),
        Bug::OtherGuest => place.vmid = Vmid::new(u64::from(place.vmid.get()) + 1).unwrap_or(place.vmid),
        _ => {}
    }
    Ask::Send { place, change, revision }
}

/// What a machine with this bug would take an answer for. `has_sent`: the change was sent before.
pub(crate) fn answer(bug: Option<Bug>, operation: &Operation, answer: Answer, has_sent: bool) -> Answer {
    let Some(bug) = bug else { return answer };
    match answer {
        Answer::Cluster(mut membership) if bug == Bug::IgnoreQuorum => {
            membership.quorate = true;
            membership.nodes.insert(operation.guest.node.clone(), true);
            Answer::Cluster(membership)
        }
        Answer::Status(live) => Answer::Status(status(bug, operation, live, has_sent)),
        Answer::Config(mut config) => {
            match bug {
                Bug::IgnoreLock => config.lock = None,
                Bug::IgnoreIdentity => {
                    config.name = operation.guest.name.clone();
                    config.identity = operation.guest.identity.clone().unwrap_or(config.identity);
                }
                Bug::IgnoreProtection => {
                    config.protection = operation.guest.guards.protection;
                    config.tags = operation.guest.guards.tags.clone();
                }
                Bug::IgnorePending => config.pending = Box::new([]),
                Bug::IgnoreHold => {
                    let kept = config.tags.iter().filter(|tag| *tag != "converger-hold").map(Into::into).collect();
                    config.tags = Words::new(kept);
                }
                _ => {}
            }
            Answer::Config(config)
        }
        Answer::Task(TaskState::Lost(cause)) if bug == Bug::LostIsFailed => Answer::Task(TaskState::Failed { cause, age_secs: None }),
        Answer::Unread(_) if bug == Bug::UnreadIsStopped && !has_sent => Answer::Status(Live {
            status: Status::Known(RunState::Stopped),
            word: "stopped".into(),
            lock: None,
            ha: None,
            uptime_secs: None,
        }),
        other => other,
    }
}

fn status(bug: Bug, operation: &Operation, mut live: Live, has_sent: bool) -> Live {
    match bug {
        Bug::IgnoreLock => live.lock = None,
        Bug::IgnoreHa => live.ha = None,
        Bug::UnclearIsFine if !has_sent && matches!(live.status, Status::Unknown(_)) => live.status = Status::Known(operation.step.from),
        Bug::SkipPromise if has_sent => {
            if let Some(state) = operation.step.change.leads_to() {
                (live.status, live.word) = (Status::Known(state), state.word().into());
            }
        }
        _ => {}
    }
    live
}

/// The hard way after the soft one.
pub(crate) fn escalated(change: &Change) -> Option<Change> {
    matches!(change, Change::Shutdown { .. }).then_some(Change::Stop)
}

/// What a machine with this bug would write in the place of this.
pub(crate) fn record(bug: Option<Bug>, record: Record) -> Record {
    match record {
        Record::Ended { id, outcome: end, at_ms } => Record::Ended { id, outcome: outcome(bug, end), at_ms },
        other => other,
    }
}

/// What a store's answer is taken for with this bug.
pub(crate) fn committed(bug: Option<Bug>, record: &Record, event: Event) -> Event {
    let is_failed = matches!(event, Event::NotCommitted(NotCommitted::Failed(_))) && !matches!(record, Record::Intent { .. });
    if bug == Some(Bug::GoOnUnwritten) && is_failed { Event::Committed } else { event }
}

/// What a machine with this bug takes the last word for.
pub(crate) fn cleared(bug: Option<Bug>, said: Event) -> Event {
    if bug == Some(Bug::SkipClear) { Event::Cleared } else { said }
}

/// What a plan with this bug would have.
pub(crate) fn operation(bug: Option<Bug>, operation: &mut Operation) {
    match bug {
        Some(Bug::RepeatRequest) => operation.source = Source::Convergent,
        Some(Bug::IgnoreAfter) => operation.step.wait = Box::new([]),
        Some(Bug::Uninvited) => operation.id = OperationId::new(&format!("{}-more", operation.id)).unwrap_or_else(|| panic!("an id")),
        _ => {}
    }
}

/// What a schedule with this bug does about a failure.
pub(crate) fn on_failure(bug: Option<Bug>, on_failure: OnFailure) -> OnFailure {
    match bug {
        Some(Bug::IgnoreFailFast) => OnFailure::GoOn,
        Some(Bug::FailureStopsAll) => OnFailure::Stop,
        _ => on_failure,
    }
}

/// How much a schedule with this bug has under way at once.
pub(crate) fn limits(bug: Option<Bug>, limits: Limits) -> Limits {
    match bug {
        Some(Bug::IgnoreLimits) => Limits::default(),
        Some(Bug::OneAfterTheOther) => Limits { per_node: 1, overall: 1 },
        _ => limits,
    }
}

/// What a judge with this bug lets a run do.
pub(crate) fn budget(bug: Option<Bug>, budget: policy::Limits) -> policy::Limits {
    if bug == Some(Bug::IgnoreBudget) { policy::Limits::default() } else { budget }
}

/// Whether a schedule with this bug begins what is not to be run, for this reason; `is_drained`: somebody asked for a stop.
pub(crate) fn begins_all_the_same(bug: Option<Bug>, code: &str, is_drained: bool) -> bool {
    match bug {
        Some(Bug::IgnoreStop) => code == "run-stopped" && is_drained,
        Some(Bug::GoOnAfterFailure) => matches!(code, "lane-halted" | "dependency-not-done"),
        _ => false,
    }
}

/// How an operation ends with this bug.
pub(crate) fn outcome(bug: Option<Bug>, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Held { code, findings, .. } if bug == Some(Bug::HeldIsFailed) => Outcome::Failed { code, findings },
        other => other,
    }
}
