//! Deliberate bugs that prove that the oracles detect them: each one makes the engine, the actuator or the executor lack something.
//!
//! They are planted at the boundaries of the machines: in what is committed, requested, answered, started and recovered. An oracle sees
//! only requests and records, so to it that equals a bug inside a machine. None of it can ever be part of the program, because all of it
//! is in this directory.

mod requests;

use std::collections::{BTreeMap, BTreeSet};

use converger_core::action::Change;
use converger_core::apply::{
    EnvRequest, EnvResponse, JournalRecord, LiveStatus, Operation, OperationId, OperationSource, Outcome, SendResult, TaskState,
};
use converger_core::guest::{RunState, Vmid};
use converger_core::normalize::WordSet;
use converger_core::observe::{Observation, ObservedStatus, Reading};
use converger_core::policy;
use converger_engine::operation::{CommitFailure, OperationEvent, Patience};
use converger_engine::schedule::{ConcurrencyLimits, OnFailure};

use super::PANIC;
use super::setup::WantedGuest;

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PlantedBug {
    /// The intent is never written.
    SkipIntent,
    /// The intent is written after the change was sent.
    SendBeforeCommit,
    /// A commit is acknowledged before it is durable.
    AcknowledgeFirst,
    /// The mark before sending is not written.
    SkipMark,
    /// An open operation is given up before its change can no longer arrive.
    GiveUpEarly,
    /// The task is not recorded.
    ForgetTask,
    /// A change whose response was lost is sent again.
    RetryLostAnswer,
    /// A guest is not read again before it is changed.
    StaleRead,
    /// A write is bound to the current config, and not to the one that was read.
    IgnoreDigest,
    /// Locks are ignored.
    IgnoreLock,
    /// High availability is ignored.
    IgnoreHa,
    /// Birth marks and name are ignored.
    IgnoreIdentity,
    /// Protection is ignored.
    IgnoreProtection,
    /// Quorum and missing nodes are ignored.
    IgnoreQuorum,
    /// Pending changes are ignored.
    IgnorePending,
    /// A person's hold is ignored.
    IgnoreHold,
    /// The hold check before sending is skipped.
    SkipClear,
    /// The age of reads is ignored.
    OldReading,
    /// A paused guest is taken for the planned state.
    UnclearIsFine,
    /// An unreadable guest is taken for stopped.
    UnreadIsStopped,
    /// A lost task is taken for a failed one.
    LostIsFailed,
    /// The promise of a change is not verified.
    SkipPromise,
    /// An unclear outcome is reported as a failure.
    HeldIsFailed,
    /// A shutdown that takes too long is followed by a stop.
    Escalate,
    /// All steps of a guest begin at once.
    TwoAtOnce,
    /// Dependencies are ignored.
    IgnoreAfter,
    /// The steps after a failure continue.
    GoOnAfterFailure,
    /// A stopped run begins new steps.
    IgnoreStop,
    /// A run that should stop at the first failure continues.
    IgnoreFailFast,
    /// A record that could not be written is taken for written.
    GoOnUnwritten,
    /// An open operation is sent again.
    ResendOnRecovery,
    /// An open operation is ignored.
    DropRecovery,
    /// An open operation is reported as failed without reading.
    FailOnRecovery,
    /// A foreign task is taken for ours.
    AdoptForeignTask,
    /// A guest that moved is changed on its old node.
    PlannedNode,
    /// The change is sent to the neighbouring guest.
    OtherGuest,
    /// A request that was carried out is carried out again.
    RepeatRequest,
    /// A guest that was once read as locked counts as locked forever.
    LockForever,
    /// A guest that no list contains is reported as missing.
    AbsentIsMissing,
    /// A change whose task no list contains is taken for not carried out.
    BelieveTheList,
    /// Every plan is made from the very first observation.
    OldPlan,
    /// The limits of a run are not the configured ones.
    IgnoreBudget,
    /// Everything is in flight at once.
    IgnoreLimits,
    /// A failed read is retried endlessly.
    AskForEver,
    /// A held operation is never read again.
    ForgetHeld,
    /// One guest after the other, however long one takes.
    OneAfterTheOther,
    /// A failure of one guest stops all of them.
    FailureStopsAll,
    /// Every second plan declares the opposite.
    TurnRound,
    /// Guests are observed, but nothing of their declared state is planned.
    WantNothing,
    /// An operation that is in no plan is carried out.
    Uninvited,
    /// A guest that is not declared any more is changed as before.
    OldDeclaration,
    /// A clone whose response was lost is sent again.
    RepeatClone,
    /// A requested change is done if its task says so.
    BelieveTask,
    /// The source of a clone is not compared with the planned one.
    IgnoreSource,
    /// A hold on the source of a clone is ignored.
    IgnoreSourceHold,
    /// A clone gets an id that a guest has.
    TakeTakenId,
    /// Another snapshot of the same name is taken for the planned one.
    IgnoreSnapshotTime,
    /// A snapshot of the requested name is not noticed.
    OverwriteSnapshot,
    /// Another snapshot than the requested one is deleted.
    DeleteOtherSnapshot,
    /// The guest is rolled back to another snapshot.
    RollBackFurther,
    /// A growth is sent a second time.
    GrowTwice,
    /// A disk grows by more than was requested.
    GrowMore,
    /// The disk that is grown is not compared with the planned one.
    GrowOtherDisk,
    /// A guest is migrated whatever its birth marks are.
    MigrateUnknownGuest,
    /// A running guest is migrated as if it were stopped.
    MigrateStopped,
    /// The first config is written to the guest that has the id of the new one, whatever its birth marks are.
    ProvisionOtherGuest,
    /// A request that was cut off continues with the guest that has the id, whatever its birth marks are.
    ContinueWithoutMarks,
    /// The first config is written a second time.
    ProvisionTwice,
    /// A failed observation ends the process in a panic.
    Unwrap,
}

impl PlantedBug {
    /// All bugs.
    pub(crate) const ALL: [Self; 69] = [
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
        Self::RepeatClone,
        Self::BelieveTask,
        Self::IgnoreSource,
        Self::IgnoreSourceHold,
        Self::TakeTakenId,
        Self::IgnoreSnapshotTime,
        Self::OverwriteSnapshot,
        Self::DeleteOtherSnapshot,
        Self::RollBackFurther,
        Self::GrowTwice,
        Self::GrowMore,
        Self::GrowOtherDisk,
        Self::MigrateUnknownGuest,
        Self::MigrateStopped,
        Self::ProvisionOtherGuest,
        Self::ContinueWithoutMarks,
        Self::ProvisionTwice,
        Self::Unwrap,
    ];

    /// The rules that it violates; detection by another rule does not count.
    pub(crate) fn violated_rules(self) -> &'static [&'static str] {
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
            Self::RepeatClone | Self::GrowTwice | Self::ProvisionTwice => &["S2"],
            Self::BelieveTask => &["S17"],
            Self::IgnoreSource | Self::IgnoreSnapshotTime | Self::GrowOtherDisk | Self::MigrateUnknownGuest => &["S6"],
            Self::ProvisionOtherGuest | Self::ContinueWithoutMarks => &["S6"],
            Self::IgnoreSourceHold => &["S12"],
            Self::TakeTakenId | Self::OverwriteSnapshot => &["S4"],
            Self::DeleteOtherSnapshot | Self::RollBackFurther | Self::GrowMore | Self::MigrateStopped => &["S1"],
            Self::Unwrap => &[PANIC],
        }
    }
}

/// The patience with this bug.
pub(crate) fn buggy_patience(bug: Option<PlantedBug>, patience: Patience) -> Patience {
    if bug == Some(PlantedBug::GiveUpEarly) { Patience { late_arrival_ms: 0, ..patience } } else { patience }
}

/// The observation of an observer that never forgets a lock.
pub(crate) fn keep_locks_forever(locked: &mut BTreeSet<Vmid>, observation: &mut Observation) {
    for guest in &mut observation.guests {
        if matches!(guest.lock, Reading::Read(Some(_))) {
            locked.insert(guest.vmid);
        } else if locked.contains(&guest.vmid) {
            guest.lock = Reading::Read(Some("backup".into()));
        }
    }
}

/// The observation of an observer that takes every list for complete.
pub(crate) fn claim_complete_list(observation: &mut Observation) {
    (observation.complete, observation.unlisted) = (true, Default::default());
}

/// The current declared state, if a planner with this bug uses the previous one.
pub(crate) fn buggy_wanted(bug: Option<PlantedBug>, mut wanted: BTreeMap<u32, WantedGuest>) -> BTreeMap<u32, WantedGuest> {
    if bug == Some(PlantedBug::OldDeclaration) {
        wanted.pop_first();
    }
    wanted
}

/// The request with this bug.
pub(crate) fn buggy_request(bug: PlantedBug, operation: &Operation, request: EnvRequest, digest: Option<&str>) -> EnvRequest {
    let EnvRequest::Send { mut address, mut change, mut revision } = request else { return request };
    match bug {
        PlantedBug::IgnoreDigest if revision.is_some() => {
            revision = digest.and_then(converger_core::apply::ConfigRevision::new).or(revision);
        }
        PlantedBug::PlannedNode => address.node = operation.guest.node.clone(),
        PlantedBug::OtherGuest => address.vmid = Vmid::new(u64::from(address.vmid.get()) + 1).unwrap_or(address.vmid),
        _ => requests::corrupt_change(bug, &mut change),
    }
    EnvRequest::Send { address, change, revision }
}

/// The bug, if it affects the response to this request. The id of the source of a clone is believed in any case.
pub(crate) fn bug_of_response(bug: Option<PlantedBug>, operation: &Operation, request: &EnvRequest) -> Option<PlantedBug> {
    let is_other_id = matches!(request, EnvRequest::IdState(vmid) if *vmid != operation.guest.vmid);
    bug.filter(|bug| *bug != PlantedBug::TakeTakenId || !is_other_id)
}

/// The response with this bug. `has_sent`: the change was sent before.
pub(crate) fn buggy_response(bug: Option<PlantedBug>, operation: &Operation, answer: EnvResponse, has_sent: bool) -> EnvResponse {
    let Some(bug) = bug else { return answer };
    let answer = requests::buggy_reading(bug, operation, answer, has_sent);
    match answer {
        EnvResponse::Cluster(mut membership) if bug == PlantedBug::IgnoreQuorum => {
            membership.quorate = true;
            membership.nodes.insert(operation.guest.node.clone(), true);
            EnvResponse::Cluster(membership)
        }
        EnvResponse::Status(live) => EnvResponse::Status(buggy_status(bug, operation, live, has_sent)),
        EnvResponse::Config(mut config) => {
            match bug {
                PlantedBug::IgnoreLock => config.lock = None,
                PlantedBug::IgnoreIdentity => {
                    config.name = operation.guest.name.clone();
                    config.identity = operation.guest.identity.clone().unwrap_or(config.identity);
                }
                PlantedBug::IgnoreProtection => {
                    config.protection = operation.guest.guards.protection;
                    config.tags = operation.guest.guards.tags.clone();
                }
                PlantedBug::IgnorePending => config.pending = Box::new([]),
                PlantedBug::IgnoreHold => {
                    let other_tags = config.tags.iter().filter(|tag| *tag != "converger-hold").map(Into::into).collect();
                    config.tags = WordSet::new(other_tags);
                }
                _ => {}
            }
            EnvResponse::Config(config)
        }
        EnvResponse::Task(TaskState::Lost(cause)) if bug == PlantedBug::LostIsFailed => {
            EnvResponse::Task(TaskState::Failed { cause, age_secs: None })
        }
        EnvResponse::Unreadable(_) if bug == PlantedBug::UnreadIsStopped && !has_sent => EnvResponse::Status(LiveStatus {
            status: ObservedStatus::Known(RunState::Stopped),
            word: "stopped".into(),
            lock: None,
            ha: None,
            uptime_secs: None,
        }),
        other => other,
    }
}

fn buggy_status(bug: PlantedBug, operation: &Operation, mut live: LiveStatus, has_sent: bool) -> LiveStatus {
    match bug {
        PlantedBug::IgnoreLock => live.lock = None,
        PlantedBug::IgnoreHa => live.ha = None,
        PlantedBug::UnclearIsFine if !has_sent && matches!(live.status, ObservedStatus::Unknown(_)) => {
            live.status = ObservedStatus::Known(operation.step.from)
        }
        PlantedBug::SkipPromise if has_sent => {
            if let Some(state) = operation.step.change.resulting_state() {
                (live.status, live.word) = (ObservedStatus::Known(state), state.word().into());
            }
        }
        _ => {}
    }
    live
}

/// The hard stop that follows a shutdown.
pub(crate) fn escalate_shutdown(change: &Change) -> Option<Change> {
    matches!(change, Change::Shutdown { .. }).then_some(Change::Stop)
}

/// The record with this bug.
pub(crate) fn buggy_record(bug: Option<PlantedBug>, record: JournalRecord) -> JournalRecord {
    match record {
        JournalRecord::Ended { id, outcome: end, at_ms } => JournalRecord::Ended { id, outcome: buggy_outcome(bug, end), at_ms },
        other => other,
    }
}

/// The result of a commit with this bug.
pub(crate) fn buggy_commit_event(bug: Option<PlantedBug>, record: &JournalRecord, event: OperationEvent) -> OperationEvent {
    let is_failed =
        matches!(event, OperationEvent::NotCommitted(CommitFailure::Failed(_))) && !matches!(record, JournalRecord::Intent { .. });
    if bug == Some(PlantedBug::GoOnUnwritten) && is_failed { OperationEvent::Committed } else { event }
}

/// The result of the hold check with this bug.
pub(crate) fn buggy_hold_check(bug: Option<PlantedBug>, event: OperationEvent) -> OperationEvent {
    if bug == Some(PlantedBug::SkipClear) { OperationEvent::SendAllowed } else { event }
}

/// The planned operation with this bug.
pub(crate) fn corrupt_operation(bug: Option<PlantedBug>, operation: &mut Operation) {
    match bug {
        Some(PlantedBug::RepeatRequest) => operation.source = OperationSource::Convergent,
        Some(PlantedBug::IgnoreAfter) => operation.step.wait = Box::new([]),
        Some(PlantedBug::Uninvited) => {
            operation.id = OperationId::new(&format!("{}-more", operation.id)).unwrap_or_else(|| panic!("an id"))
        }
        _ => {}
    }
}

/// Whether a change is sent a second time, with this response to the first one.
pub(crate) fn sends_again(bug: Option<PlantedBug>, change: &Change, sent: &SendResult) -> bool {
    let is_lost = matches!(sent, SendResult::MaybeExecuted(_));
    match bug {
        Some(PlantedBug::RetryLostAnswer) => is_lost,
        Some(PlantedBug::RepeatClone) => is_lost && matches!(change, Change::Clone(_)),
        Some(PlantedBug::GrowTwice) => matches!(change, Change::DiskGrow(_)),
        Some(PlantedBug::ProvisionTwice) => matches!(change, Change::Provision(_)),
        _ => false,
    }
}

/// The guests whose holds are checked with this bug.
pub(crate) fn buggy_held_guests(bug: Option<PlantedBug>, operation: &Operation) -> Vec<Vmid> {
    let skipped = usize::from(bug == Some(PlantedBug::IgnoreSourceHold));
    operation.occupied_guests().take(2 - skipped).collect()
}

/// The reaction to a failure with this bug.
pub(crate) fn buggy_on_failure(bug: Option<PlantedBug>, on_failure: OnFailure) -> OnFailure {
    match bug {
        Some(PlantedBug::IgnoreFailFast) => OnFailure::Continue,
        Some(PlantedBug::FailureStopsAll) => OnFailure::Stop,
        _ => on_failure,
    }
}

/// The concurrency limits with this bug.
pub(crate) fn buggy_limits(bug: Option<PlantedBug>, limits: ConcurrencyLimits) -> ConcurrencyLimits {
    match bug {
        Some(PlantedBug::IgnoreLimits) => ConcurrencyLimits::default(),
        Some(PlantedBug::OneAfterTheOther) => ConcurrencyLimits { per_node: 1, overall: 1 },
        _ => limits,
    }
}

/// The limits of a run with this bug.
pub(crate) fn buggy_budget(bug: Option<PlantedBug>, budget: policy::Limits) -> policy::Limits {
    if bug == Some(PlantedBug::IgnoreBudget) { policy::Limits::default() } else { budget }
}

/// Whether a schedule with this bug begins an operation that is not to be run for this reason; `is_drained`: a stop was requested.
pub(crate) fn starts_anyway(bug: Option<PlantedBug>, code: &str, is_drained: bool) -> bool {
    match bug {
        Some(PlantedBug::IgnoreStop) => code == "run-stopped" && is_drained,
        Some(PlantedBug::GoOnAfterFailure) => matches!(code, "lane-halted" | "dependency-not-done"),
        _ => false,
    }
}

/// The outcome with this bug.
pub(crate) fn buggy_outcome(bug: Option<PlantedBug>, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Held { code, findings, .. } if bug == Some(PlantedBug::HeldIsFailed) => Outcome::Failed { code, findings },
        other => other,
    }
}
