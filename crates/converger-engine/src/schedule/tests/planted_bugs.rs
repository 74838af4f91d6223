//! Plausible bugs in the schedule or its caller, planted one at a time. The exhaustive search must find each of them; otherwise a search
//! without findings would mean little.
//!
//! Each bug wraps the real `step`: it alters events, alters commands, or corrupts the state.

use super::exhaustive_search::SearchSetup;
use super::*;

/// The planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlantedScheduleBug {
    /// A guest queue forgets that an operation of its guest is in flight.
    ForgetsBusy,
    OneTooManyOnANode,
    OneTooManyInAll,
    /// An ended operation keeps its slot on the node.
    LeaksNodeSlot,
    LeaksOverallSlot,
    LastInFirstOut,
    /// `after` is ignored.
    IgnoresDependencies,
    /// Dependents are released when a dependency starts, not when it is done.
    ReleasesDependentsAtBegin,
    TakesFailureForDone,
    /// The remaining steps of a guest continue after a failure.
    ContinuesQueueAfterFailure,
    /// Dependents of a failed step wait forever.
    ForgetsDependents,
    /// The failure of one guest stops everything.
    StopsEverythingOnFailure,
    /// A failure that stops one run stops the others, too.
    StopsOtherRuns,
    /// Runs that are submitted after the journal was lost never start.
    StopsLaterRuns,
    /// A failure stops nothing although `OnFailure::Stop` was requested.
    GoesOnAfterFailure,
    IgnoresDrain,
    ForgetsDrainOnNewPlan,
    /// The end of a held operation is lost.
    LosesHeldEnds,
    /// Operations that are not run are not reported.
    HidesNotRun,
    BeginsTwice,
    /// A newer plan supersedes a one-shot request.
    SupersedesOneShot,
    /// Operations in the journal are not recovered at startup.
    RecoversNothing,
    /// They are recovered after the new plan.
    RecoversLast,
    /// A stop drops recovered operations, too.
    StopDropsRecovered,
    /// An operation that waits for a slot on another node keeps its slot on the first.
    KeepsOldSlotOnMove,
    /// It resumes at once, even without a free slot on the other node.
    ResumesAtOnce,
    /// It never resumes.
    NeverResumes,
    /// A stop drops an operation that waits for a slot on another node.
    StopDropsMoved,
    /// The later steps of its queue still count against the first node.
    CountsQueueOnOldNode,
    /// A stop leaves a guest down that was stopped for a restart.
    StopLeavesGuestDown,
}

impl PlantedScheduleBug {
    /// All bugs, each with a part of the message of the rule that it breaks.
    const ALL: [(Self, &str); 30] = [
        (Self::ForgetsBusy, "is in flight on its guest"),
        (Self::OneTooManyOnANode, "beyond the limits"),
        (Self::OneTooManyInAll, "beyond the limits"),
        (Self::LeaksNodeSlot, "waits forever"),
        (Self::LeaksOverallSlot, "waits forever"),
        (Self::LastInFirstOut, "which came first"),
        (Self::IgnoresDependencies, "before guest 100 is done"),
        (Self::ReleasesDependentsAtBegin, "before guest 100 is done"),
        (Self::TakesFailureForDone, "although 00-r-100-0 is Ended(Failed)"),
        (Self::ContinuesQueueAfterFailure, "although 00-r-100-0 is Ended(Failed)"),
        (Self::ForgetsDependents, "waits forever"),
        (Self::StopsEverythingOnFailure, "without a reason"),
        (Self::StopsOtherRuns, "run-stopped without a reason"),
        (Self::StopsLaterRuns, "journal-unwritable without a reason"),
        (Self::GoesOnAfterFailure, "after the stop"),
        (Self::IgnoresDrain, "after the stop"),
        (Self::ForgetsDrainOnNewPlan, "after the stop"),
        (Self::LosesHeldEnds, "waits forever"),
        (Self::HidesNotRun, "is forgotten"),
        (Self::BeginsTwice, "while it is Begun"),
        (Self::SupersedesOneShot, "superseded without a reason"),
        (Self::RecoversNothing, "before the outcome of"),
        (Self::RecoversLast, "before the outcome of"),
        (Self::StopDropsRecovered, "is not recovered"),
        (Self::KeepsOldSlotOnMove, "although it could start"),
        (Self::ResumesAtOnce, "beyond the limits"),
        (Self::NeverResumes, "waits forever"),
        (Self::StopDropsMoved, "is reported as not run while it is Parked"),
        (Self::CountsQueueOnOldNode, "beyond the limits"),
        (Self::StopLeavesGuestDown, "without a reason"),
    ];

    pub(super) fn new_state(self, limits: ConcurrencyLimits) -> ScheduleState {
        let ConcurrencyLimits { per_node, overall } = limits;
        match self {
            Self::OneTooManyOnANode => ScheduleState::new(ConcurrencyLimits { per_node: per_node + 1, overall }),
            Self::OneTooManyInAll => ScheduleState::new(ConcurrencyLimits { per_node, overall: overall + 1 }),
            _ => ScheduleState::new(limits),
        }
    }

    pub(super) fn step(self, mut state: ScheduleState, event: ScheduleEvent) -> (ScheduleState, Vec<ScheduleCommand>) {
        let Some(event) = self.alter_event(event) else { return (state, Vec::new()) };
        self.corrupt_state(&mut state, &event);
        let moved_position = if let ScheduleEvent::Moved { id, .. } = &event { state.positions.get(id).copied() } else { None };
        let stops_run = |id: &OperationId| {
            let item = state.positions.get(id).and_then(|position| state.entries.get(position)).map(|entry| &entry.item);
            item.is_some_and(|item| item.on_failure == OnFailure::Stop && !item.is_recovered)
        };
        let is_stopping = matches!(&event, ScheduleEvent::Ended { id, end } if *end != OperationEnd::Done && stops_run(id));
        let (mut state, mut commands) = step(state, event);
        if self == Self::StopsOtherRuns && is_stopping {
            state.stop(&StopScope::OpenRuns, FailureCode::RunStopped, &mut commands);
        }
        if let Some(position) = moved_position {
            self.corrupt_move(&mut state, position, &mut commands);
        }
        self.alter_commands(state, commands)
    }

    /// Mishandles an operation whose guest moved.
    fn corrupt_move(self, state: &mut ScheduleState, position: u64, commands: &mut Vec<ScheduleCommand>) {
        let Some(entry) = state.entries.get_mut(&position) else { return };
        match self {
            Self::ResumesAtOnce if entry.is_parked => {
                entry.is_parked = false;
                let (node, id) = (entry.item.node.clone(), entry.item.id.clone());
                state.ready.values_mut().for_each(|ready| ready.retain(|own| *own != position));
                state.in_flight_overall += 1;
                *state.in_flight.entry(node).or_default() += 1;
                commands.push(ScheduleCommand::Resume(id));
            }
            Self::CountsQueueOnOldNode => {
                let (vmid, first) = (entry.item.vmid, NodeName::new("pve1").expect("a node"));
                let behind = state.entries.values_mut().filter(|entry| entry.item.vmid == vmid && !entry.is_begun);
                behind.for_each(|entry| entry.item.node = first.clone());
            }
            _ => {}
        }
    }

    /// Alters an event before the schedule sees it.
    fn alter_event(self, event: ScheduleEvent) -> Option<ScheduleEvent> {
        let changed = |items: Vec<ScheduleItem>, change: fn(ScheduleItem) -> ScheduleItem| {
            ScheduleEvent::Submit(items.into_iter().map(change).collect())
        };
        match (self, event) {
            (Self::LastInFirstOut, ScheduleEvent::Submit(items)) => Some(ScheduleEvent::Submit(items.into_iter().rev().collect())),
            (Self::IgnoresDependencies, ScheduleEvent::Submit(items)) => {
                Some(changed(items, |item| ScheduleItem { after: Box::new([]), ..item }))
            }
            (Self::SupersedesOneShot, ScheduleEvent::Submit(items)) => {
                Some(changed(items, |item| ScheduleItem { is_convergent: true, ..item }))
            }
            (Self::StopsEverythingOnFailure, ScheduleEvent::Submit(items)) => Some(changed(items, fail_fast)),
            (Self::GoesOnAfterFailure, ScheduleEvent::Submit(items)) => {
                Some(changed(items, |item| ScheduleItem { on_failure: OnFailure::Continue, ..item }))
            }
            (Self::StopsLaterRuns, ScheduleEvent::Stop { code, .. }) => Some(stop(code)),
            (Self::TakesFailureForDone, ScheduleEvent::Ended { id, .. }) => Some(ScheduleEvent::Ended { id, end: OperationEnd::Done }),
            (Self::LosesHeldEnds, ScheduleEvent::Ended { end: OperationEnd::Held, .. })
            | (Self::IgnoresDrain, ScheduleEvent::Stop { .. }) => None,
            (_, event) => Some(event),
        }
    }

    /// Corrupts the state of the schedule.
    fn corrupt_state(self, state: &mut ScheduleState, event: &ScheduleEvent) {
        match (self, event) {
            (Self::ForgetsBusy, _) => {
                let guests: Vec<Vmid> = state.guest_queues.keys().copied().collect();
                state.guest_queues.values_mut().for_each(|guest_queue| guest_queue.is_busy = false);
                guests.into_iter().for_each(|vmid| state.offer_queue_head(vmid));
            }
            (Self::LeaksNodeSlot, ScheduleEvent::Ended { id, .. }) => {
                let node = state.positions.get(id).and_then(|position| state.entries.get(position)).map(|entry| entry.item.node.clone());
                node.into_iter().for_each(|node| *state.in_flight.entry(node).or_default() += 1);
            }
            (Self::LeaksOverallSlot, ScheduleEvent::Ended { .. }) => state.in_flight_overall += 1,
            (Self::ContinuesQueueAfterFailure, ScheduleEvent::Ended { end, .. }) if *end != OperationEnd::Done => {
                let other = RunId::new("other").expect("an id");
                let queued = state.entries.values_mut().filter(|entry| !entry.is_begun);
                queued.for_each(|entry| entry.item.run = other.clone());
            }
            (Self::ForgetsDependents, ScheduleEvent::Ended { end, .. }) if *end != OperationEnd::Done => state.waiters.clear(),
            (Self::ForgetsDrainOnNewPlan, ScheduleEvent::Submit(_)) => state.stop_code = None,
            (Self::KeepsOldSlotOnMove, ScheduleEvent::Moved { .. }) => state.in_flight_overall += 1,
            (Self::StopDropsMoved, ScheduleEvent::Stop { .. }) => {
                state.entries.values_mut().filter(|entry| entry.is_parked).for_each(|entry| entry.is_begun = false);
            }
            (Self::StopLeavesGuestDown, ScheduleEvent::Stop { .. }) => {
                state.entries.values_mut().for_each(|entry| entry.item.completes_restart = false)
            }
            (Self::StopDropsRecovered, ScheduleEvent::Stop { .. }) => {
                state.entries.values_mut().for_each(|entry| entry.item.is_recovered = false)
            }
            _ => {}
        }
    }

    /// Alters the commands of the schedule.
    fn alter_commands(self, mut state: ScheduleState, mut commands: Vec<ScheduleCommand>) -> (ScheduleState, Vec<ScheduleCommand>) {
        match self {
            Self::HidesNotRun => commands.retain(|command| !matches!(command, ScheduleCommand::NotRun { .. })),
            Self::NeverResumes => commands.retain(|command| !matches!(command, ScheduleCommand::Resume(_))),
            Self::BeginsTwice => {
                let again = commands.iter().rev().find(|command| matches!(command, ScheduleCommand::Begin(_))).cloned();
                commands.extend(again);
            }
            Self::ReleasesDependentsAtBegin => {
                let begun_positions: Vec<u64> =
                    state.entries.iter().filter(|(_, entry)| entry.is_begun).map(|(position, _)| *position).collect();
                begun_positions.into_iter().for_each(|position| state.release_waiters(position));
                state.begin_ready(&mut commands);
            }
            _ => {}
        }
        (state, commands)
    }
}

#[test]
fn finds_every_planted_bug() {
    for (planted, rule) in PlantedScheduleBug::ALL {
        let found = SearchSetup::small_setups().into_iter().find_map(|(name, setup)| {
            let broken = SearchSetup { planted: Some(planted), ..setup }.explore_all().err()?;
            Some((name, broken))
        });
        let (name, broken) = found.unwrap_or_else(|| panic!("{planted:?} was not found"));
        println!("{planted:?} in {name}: {}, by {}", broken.rule, broken.path.join(", "));
        assert!(broken.rule.contains(rule), "{planted:?} in {name}: {}", broken.rule);
    }
}
