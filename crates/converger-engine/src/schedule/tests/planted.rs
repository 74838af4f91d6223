//! Mistakes that somebody could make in the schedule, or in how it is driven, each planted in turn. The search over all orders
//! must find every one: what it finds nothing wrong with would otherwise mean little.
//!
//! Each is made around the real `step`: by what goes in, by what comes out, or by spoiling what the schedule remembers.

use super::lanes::Setup;
use super::*;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    /// A lane forgets that something is under way on its guest.
    ForgetsBusy,
    OneTooManyOnANode,
    OneTooManyInAll,
    /// What has ended keeps its room on the node.
    KeepsRoomOnANode,
    KeepsRoomInAll,
    LastInFirstOut,
    /// `after` is not looked at.
    WaitsForNobody,
    /// What waits is let go when the other begins, not when it is done.
    WaitsForTheBeginning,
    TakesFailureForDone,
    /// The rest of a guest's steps goes on after a failure.
    HaltsNoLane,
    /// What waits for a step that failed goes on waiting.
    ForgetsWhoWaits,
    /// One guest's failure stops everybody.
    HaltsEverybody,
    /// The failure that stops one run stops the others, too.
    StopsOtherRuns,
    /// What was submitted after the journal was lost is never begun.
    StopsLaterRuns,
    /// Nothing stops at the first failure although that was asked for.
    GoesOnAfterFailure,
    HearsNoDrain,
    ForgetsTheDrainWhenAPlanComes,
    /// That a held operation is over is never heard.
    LosesHeldEnds,
    /// What is not run is not told.
    SaysNothingOfWhatIsNotRun,
    BeginsTwice,
    /// A newer plan takes the place of what a person asked for once.
    SupersedesWhatWasAskedForOnce,
    /// What the journal has is not found out at a start.
    RecoversNothing,
    /// It is, after the new plan.
    RecoversLast,
    /// A stop gives up what was found in the journal too.
    GivesUpTheRecovered,
    /// What waits for room on another node keeps what it had on the first.
    KeepsRoomWhenItMoves,
    /// It goes on at once, whether there is room on the other node or not.
    ResumesAtOnce,
    /// That it may go on is never said.
    NeverResumes,
    /// A stop gives up what waits for room on another node.
    GivesUpWhatMoved,
    /// What comes behind it is still counted on the first node.
    LeavesTheRestBehind,
    /// A stop leaves a guest down that was taken down to come up again.
    LeavesItDown,
}

impl Planted {
    /// Each of them, and what is to be said of the rule that it breaks.
    const ALL: [(Self, &str); 30] = [
        (Self::ForgetsBusy, "is under way on its guest"),
        (Self::OneTooManyOnANode, "beyond the limits"),
        (Self::OneTooManyInAll, "beyond the limits"),
        (Self::KeepsRoomOnANode, "waits for ever"),
        (Self::KeepsRoomInAll, "waits for ever"),
        (Self::LastInFirstOut, "which came first"),
        (Self::WaitsForNobody, "before guest 100 is done"),
        (Self::WaitsForTheBeginning, "before guest 100 is done"),
        (Self::TakesFailureForDone, "although 00-r-100-0 is Ended(Failed)"),
        (Self::HaltsNoLane, "although 00-r-100-0 is Ended(Failed)"),
        (Self::ForgetsWhoWaits, "waits for ever"),
        (Self::HaltsEverybody, "without a reason"),
        (Self::StopsOtherRuns, "run-stopped without a reason"),
        (Self::StopsLaterRuns, "journal-unwritable without a reason"),
        (Self::GoesOnAfterFailure, "after the stop"),
        (Self::HearsNoDrain, "after the stop"),
        (Self::ForgetsTheDrainWhenAPlanComes, "after the stop"),
        (Self::LosesHeldEnds, "waits for ever"),
        (Self::SaysNothingOfWhatIsNotRun, "is forgotten"),
        (Self::BeginsTwice, "while it is Begun"),
        (Self::SupersedesWhatWasAskedForOnce, "superseded without a reason"),
        (Self::RecoversNothing, "before it is known what became of"),
        (Self::RecoversLast, "before it is known what became of"),
        (Self::GivesUpTheRecovered, "is not found out"),
        (Self::KeepsRoomWhenItMoves, "although its turn has come"),
        (Self::ResumesAtOnce, "beyond the limits"),
        (Self::NeverResumes, "waits for ever"),
        (Self::GivesUpWhatMoved, "is said not to run while it is Parked"),
        (Self::LeavesTheRestBehind, "beyond the limits"),
        (Self::LeavesItDown, "without a reason"),
    ];

    pub(super) fn new_state(self, limits: Limits) -> State {
        let Limits { per_node, overall } = limits;
        match self {
            Self::OneTooManyOnANode => State::new(Limits { per_node: per_node + 1, overall }),
            Self::OneTooManyInAll => State::new(Limits { per_node, overall: overall + 1 }),
            _ => State::new(limits),
        }
    }

    pub(super) fn step(self, mut state: State, event: Event) -> (State, Vec<Command>) {
        let Some(event) = self.heard(event) else { return (state, Vec::new()) };
        self.spoil(&mut state, &event);
        let moved = if let Event::Moved { id, .. } = &event { state.places.get(id).copied() } else { None };
        let stops_run = |id: &OperationId| {
            let item = state.places.get(id).and_then(|place| state.entries.get(place)).map(|entry| &entry.item);
            item.is_some_and(|item| item.on_failure == OnFailure::Stop && !item.is_recovered)
        };
        let is_stopping = matches!(&event, Event::Ended { id, end } if *end != End::Done && stops_run(id));
        let (mut state, mut commands) = step(state, event);
        if self == Self::StopsOtherRuns && is_stopping {
            state.stop(&StopScope::OpenRuns, Code::RunStopped, &mut commands);
        }
        if let Some(place) = moved {
            self.spoil_the_moved(&mut state, place, &mut commands);
        }
        self.said(state, commands)
    }

    /// What it does wrongly about an operation whose guest moved.
    fn spoil_the_moved(self, state: &mut State, place: u64, commands: &mut Vec<Command>) {
        let Some(entry) = state.entries.get_mut(&place) else { return };
        match self {
            Self::ResumesAtOnce if entry.is_parked => {
                entry.is_parked = false;
                let (node, id) = (entry.item.node.clone(), entry.item.id.clone());
                state.ready.values_mut().for_each(|ready| ready.retain(|own| *own != place));
                state.busy_overall += 1;
                *state.busy.entry(node).or_default() += 1;
                commands.push(Command::Resume(id));
            }
            Self::LeavesTheRestBehind => {
                let (vmid, first) = (entry.item.vmid, NodeName::new("pve1").expect("a node"));
                let behind = state.entries.values_mut().filter(|entry| entry.item.vmid == vmid && !entry.is_begun);
                behind.for_each(|entry| entry.item.node = first.clone());
            }
            _ => {}
        }
    }

    /// What arrives of an event.
    fn heard(self, event: Event) -> Option<Event> {
        let changed = |items: Vec<Item>, change: fn(Item) -> Item| Event::Submit(items.into_iter().map(change).collect());
        match (self, event) {
            (Self::LastInFirstOut, Event::Submit(items)) => Some(Event::Submit(items.into_iter().rev().collect())),
            (Self::WaitsForNobody, Event::Submit(items)) => Some(changed(items, |item| Item { wait: Box::new([]), ..item })),
            (Self::SupersedesWhatWasAskedForOnce, Event::Submit(items)) => {
                Some(changed(items, |item| Item { is_convergent: true, ..item }))
            }
            (Self::HaltsEverybody, Event::Submit(items)) => Some(changed(items, fail_fast)),
            (Self::GoesOnAfterFailure, Event::Submit(items)) => Some(changed(items, |item| Item { on_failure: OnFailure::GoOn, ..item })),
            (Self::StopsLaterRuns, Event::Stop { code, .. }) => Some(stop(code)),
            (Self::TakesFailureForDone, Event::Ended { id, .. }) => Some(Event::Ended { id, end: End::Done }),
            (Self::LosesHeldEnds, Event::Ended { end: End::Held, .. }) | (Self::HearsNoDrain, Event::Stop { .. }) => None,
            (_, event) => Some(event),
        }
    }

    /// What the schedule remembers wrongly.
    fn spoil(self, state: &mut State, event: &Event) {
        match (self, event) {
            (Self::ForgetsBusy, _) => {
                let guests: Vec<Vmid> = state.lanes.keys().copied().collect();
                state.lanes.values_mut().for_each(|lane| lane.busy = false);
                guests.into_iter().for_each(|vmid| state.offer(vmid));
            }
            (Self::KeepsRoomOnANode, Event::Ended { id, .. }) => {
                let node = state.places.get(id).and_then(|place| state.entries.get(place)).map(|entry| entry.item.node.clone());
                node.into_iter().for_each(|node| *state.busy.entry(node).or_default() += 1);
            }
            (Self::KeepsRoomInAll, Event::Ended { .. }) => state.busy_overall += 1,
            (Self::HaltsNoLane, Event::Ended { end, .. }) if *end != End::Done => {
                let other = RunId::new("other").expect("an id");
                let queued = state.entries.values_mut().filter(|entry| !entry.is_begun);
                queued.for_each(|entry| entry.item.run = other.clone());
            }
            (Self::ForgetsWhoWaits, Event::Ended { end, .. }) if *end != End::Done => state.waiters.clear(),
            (Self::ForgetsTheDrainWhenAPlanComes, Event::Submit(_)) => state.stopped = None,
            (Self::KeepsRoomWhenItMoves, Event::Moved { .. }) => state.busy_overall += 1,
            (Self::GivesUpWhatMoved, Event::Stop { .. }) => {
                state.entries.values_mut().filter(|entry| entry.is_parked).for_each(|entry| entry.is_begun = false);
            }
            (Self::LeavesItDown, Event::Stop { .. }) => state.entries.values_mut().for_each(|entry| entry.item.completes = false),
            (Self::GivesUpTheRecovered, Event::Stop { .. }) => state.entries.values_mut().for_each(|entry| entry.item.is_recovered = false),
            _ => {}
        }
    }

    /// What is heard of what it commands.
    fn said(self, mut state: State, mut commands: Vec<Command>) -> (State, Vec<Command>) {
        match self {
            Self::SaysNothingOfWhatIsNotRun => commands.retain(|command| !matches!(command, Command::NotRun { .. })),
            Self::NeverResumes => commands.retain(|command| !matches!(command, Command::Resume(_))),
            Self::BeginsTwice => {
                let again = commands.iter().rev().find(|command| matches!(command, Command::Begin(_))).cloned();
                commands.extend(again);
            }
            Self::WaitsForTheBeginning => {
                let begun: Vec<u64> = state.entries.iter().filter(|(_, entry)| entry.is_begun).map(|(place, _)| *place).collect();
                begun.into_iter().for_each(|place| state.release(place));
                state.begin_what_fits(&mut commands);
            }
            _ => {}
        }
        (state, commands)
    }
}

#[test]
fn every_planted_mistake_is_found() {
    for (planted, rule) in Planted::ALL {
        let found = Setup::small().into_iter().find_map(|(name, setup)| {
            let broken = Setup { planted: Some(planted), ..setup }.explore().err()?;
            Some((name, broken))
        });
        let (name, broken) = found.unwrap_or_else(|| panic!("{planted:?} was not found"));
        println!("{planted:?} in {name}: {}, by {}", broken.rule, broken.way.join(", "));
        assert!(broken.rule.contains(rule), "{planted:?} in {name}: {}", broken.rule);
    }
}
