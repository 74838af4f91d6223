//! Which operation comes next, as a pure state machine: lanes that are first in, first out per guest, limits per node and
//! overall, and `after` across guests.
//!
//! How to drive it: feed [`ScheduleEvent::Submit`] with the steps of a plan (what was found in the journal first), begin each
//! operation that a [`ScheduleCommand::Begin`] names, and feed [`ScheduleEvent::Ended`] for it. It is done when [`ScheduleState::is_idle`].
//!
//! One schedule serves many runs: plans may be submitted while others are in flight, and everything about an operation is forgotten when it has ended.
//! A failure or a stop of one run does not concern the others.
//!
//! What holds in every order of events: no two operations of a guest are under way at once (G12), a guest that is stuck
//! blocks only itself and what waits for it (L4), and what comes after a step that did not end well is never begun (S16).
//! The same events give the same commands.
//!
//! What never enters: what an operation does (`operation`), clocks, and the journal.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use converger_core::action::Change;
use converger_core::apply::{Evidence, Fact, Operation, OperationEnd, OperationId, OperationSource, RunId};
use converger_core::failure::FailureCode;
use converger_core::guest::{NodeName, Vmid};
use converger_core::plan::StepReason;

#[cfg(test)]
mod tests;

/// How much may be under way at once. Nothing is unlimited, and zero counts as one: a limit is no way to stop a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConcurrencyLimits {
    /// On one node.
    pub per_node: u32,
    /// In all.
    pub overall: u32,
}

impl Default for ConcurrencyLimits {
    /// A node starts a few guests at once without its other guests noticing.
    fn default() -> Self {
        Self { per_node: 4, overall: 40 }
    }
}

impl ConcurrencyLimits {
    fn at_least_one(self) -> Self {
        Self { per_node: self.per_node.max(1), overall: self.overall.max(1) }
    }
}

/// The most steps that are kept at once.
pub const QUEUE_MAX: usize = 65_536;

/// One step as far as its place in the order goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScheduleItem {
    /// The operation.
    pub id: OperationId,
    /// Its run.
    pub run: RunId,
    /// The guest whose lane it is in.
    pub vmid: Vmid,
    /// The node that it is counted on.
    pub node: NodeName,
    /// Guests whose power steps of the same submission come first.
    pub after: Box<[Vmid]>,
    /// Whether it changes the run-state: what others wait for.
    pub is_power: bool,
    /// Whether it follows from the declared state, so that a newer one may take its place.
    pub is_convergent: bool,
    /// Whether it is the second half of a restart: a stop does not keep it from being run once the first half was begun.
    pub completes_restart: bool,
    /// Whether it was found in the journal: it only reads, and what became of it is found out whatever else happens.
    pub is_recovered: bool,
    /// What its failure means for the rest of its run.
    pub on_failure: OnFailure,
}

impl ScheduleItem {
    /// The place of an operation, whose failure means this for the rest of its run.
    #[must_use]
    pub fn for_operation(operation: &Operation, on_failure: OnFailure) -> Self {
        Self {
            id: operation.id.clone(),
            run: operation.run.clone(),
            vmid: operation.guest.vmid,
            node: operation.guest.node.clone(),
            after: operation.step.wait.clone(),
            is_power: operation.step.change.resulting_state().is_some(),
            is_convergent: operation.source == OperationSource::Convergent,
            completes_restart: completes_restart(operation),
            is_recovered: false,
            on_failure,
        }
    }

    /// The place of an operation that was found in the journal: it reads only, and waits for nobody.
    #[must_use]
    pub fn for_recovered(operation: &Operation) -> Self {
        Self::for_operation(operation, OnFailure::Continue).into_recovered()
    }

    /// Nothing newer takes its place either: what became of it must be found out.
    fn into_recovered(self) -> Self {
        Self { after: Box::new([]), is_convergent: false, is_recovered: true, ..self }
    }
}

/// Whether an operation brings a guest up again that the step before it took down.
#[must_use]
pub fn completes_restart(operation: &Operation) -> bool {
    matches!((&operation.step.change, &operation.step.reason), (Change::Start, StepReason::RestartForConfig(_)))
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleEvent {
    /// Steps are to be carried out, those of one guest in this order. Ids that are known already are left out.
    Submit(Vec<ScheduleItem>),
    /// An operation that was begun has ended.
    Ended {
        /// Which.
        id: OperationId,
        /// How.
        end: OperationEnd,
    },
    /// An operation that was begun found its guest on another node, and has not sent anything: it waits for room there.
    Moved {
        /// Which.
        id: OperationId,
        /// Where its guest is.
        node: NodeName,
    },
    /// Nothing new of these runs is begun; what is in flight goes on to its end, and what was found in the journal is still found out.
    Stop {
        /// Whose.
        scope: StopScope,
        /// Why.
        code: FailureCode,
    },
    /// These limits hold for operations that begin from now on. Operations in flight are not stopped.
    SetLimits(ConcurrencyLimits),
}

/// Which runs a stop concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopScope {
    /// All runs, also those that are submitted later.
    Everything,
    /// All runs that have operations here now. Later ones begin.
    OpenRuns,
    /// One run.
    Run(RunId),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleCommand {
    /// Its turn has come.
    Begin(OperationId),
    /// There is room for it on the node that its guest is on: it goes on.
    Resume(OperationId),
    /// Its turn will never come.
    NotRun {
        /// Which.
        id: OperationId,
        /// Why.
        code: FailureCode,
        /// What that rests on.
        evidence: Evidence,
    },
}

/// What goes on with the rest of a run when a step does not end well. Other runs go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnFailure {
    /// The guest's other steps and what waits for them are not run; other guests go on.
    Continue,
    /// Nothing new of the run is begun.
    Stop,
}

/// The order of everything that is under way or waits. States have an order, so that a search over all of them knows where it
/// has been.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScheduleState {
    limits: ConcurrencyLimits,
    stop_code: Option<FailureCode>,
    /// Runs with operations here, except operations found in the journal.
    runs: BTreeMap<RunId, OpenRun>,
    next_position: u64,
    entries: BTreeMap<u64, ScheduleEntry>,
    positions: BTreeMap<OperationId, u64>,
    guest_queues: BTreeMap<Vmid, GuestQueue>,
    /// Who waits for an operation of another guest.
    waiters: BTreeMap<u64, Vec<u64>>,
    /// What could begin now if there is room, by node.
    ready: BTreeMap<NodeName, BTreeSet<u64>>,
    /// What has not ended, by node.
    remaining: BTreeMap<NodeName, usize>,
    in_flight: BTreeMap<NodeName, usize>,
    in_flight_overall: u32,
}

/// A run that has operations here.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct OpenRun {
    /// How many of its operations have not ended.
    left: usize,
    stopped: Option<FailureCode>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ScheduleEntry {
    item: ScheduleItem,
    /// How many operations of other guests it still waits for.
    pending_dependencies: usize,
    is_begun: bool,
    /// It was begun, and waits for room on another node.
    is_parked: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct GuestQueue {
    /// What waits for its turn.
    queue: VecDeque<u64>,
    is_busy: bool,
}

impl ScheduleState {
    /// An empty schedule.
    #[must_use]
    pub fn new(limits: ConcurrencyLimits) -> Self {
        Self {
            limits: limits.at_least_one(),
            stop_code: None,
            runs: BTreeMap::new(),
            next_position: 0,
            entries: BTreeMap::new(),
            positions: BTreeMap::new(),
            guest_queues: BTreeMap::new(),
            waiters: BTreeMap::new(),
            ready: BTreeMap::new(),
            remaining: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            in_flight_overall: 0,
        }
    }

    /// Whether nothing is under way and nothing waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many are under way.
    #[must_use]
    pub fn in_flight_count(&self) -> u32 {
        self.in_flight_overall
    }

    /// The node that an operation is counted on, while it waits or is under way.
    #[must_use]
    pub fn node_of(&self, id: &OperationId) -> Option<&NodeName> {
        self.positions.get(id).and_then(|place| self.entries.get(place)).map(|entry| &entry.item.node)
    }

    /// Why nothing new of an operation's run is begun any more, if that is so.
    #[must_use]
    pub fn stop_code(&self, id: &OperationId) -> Option<FailureCode> {
        let item = self.positions.get(id).and_then(|place| self.entries.get(place)).map(|entry| &entry.item);
        item.map_or(self.stop_code, |item| self.run_stop_code(&item.run))
    }

    fn run_stop_code(&self, run: &RunId) -> Option<FailureCode> {
        self.stop_code.or_else(|| self.runs.get(run)?.stopped)
    }

    /// How many entries all its collections have together: none once it is idle.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        let by_operation = self.entries.len() + self.positions.len() + self.waiters.len() + self.guest_queues.len() + self.runs.len();
        by_operation + self.ready.len() + self.remaining.len() + self.in_flight.len()
    }
}

/// One transition. An event about an operation that is not under way changes nothing.
#[must_use]
pub fn step(mut state: ScheduleState, event: ScheduleEvent) -> (ScheduleState, Vec<ScheduleCommand>) {
    let mut commands = Vec::new();
    match event {
        ScheduleEvent::Submit(items) => state.submit(items, &mut commands),
        ScheduleEvent::Ended { id, end } => state.end_operation(&id, end, &mut commands),
        ScheduleEvent::Moved { id, node } => state.move_operation(&id, node),
        ScheduleEvent::Stop { scope, code } => state.stop(&scope, code, &mut commands),
        ScheduleEvent::SetLimits(limits) => state.limits = limits.at_least_one(),
    }
    state.begin_ready(&mut commands);
    (state, commands)
}

impl ScheduleState {
    fn submit(&mut self, items: Vec<ScheduleItem>, commands: &mut Vec<ScheduleCommand>) {
        let mut new: Vec<ScheduleItem> = items.into_iter().filter(|item| !self.positions.contains_key(&item.id)).collect();
        let full = (self.entries.len() + new.len() > QUEUE_MAX).then_some(FailureCode::QueueFull);
        let refusal = |item: &ScheduleItem| self.run_stop_code(&item.run).or(full).filter(|_| !item.is_recovered);
        new.retain(|item| {
            let Some(code) = refusal(item) else { return true };
            commands.push(ScheduleCommand::NotRun { id: item.id.clone(), code, evidence: Evidence::default() });
            false
        });
        self.supersede(&new, commands);
        let first = self.next_position;
        for item in new {
            self.add(item);
        }
        self.link_dependencies(first, commands);
        let heads: Vec<Vmid> = self.entries.range(first..).map(|(_, entry)| entry.item.vmid).collect();
        for vmid in heads {
            self.offer_queue_head(vmid);
        }
    }

    /// A newer plan for a guest takes the place of what still waits for it, unless a person asked for that once.
    fn supersede(&mut self, new: &[ScheduleItem], commands: &mut Vec<ScheduleCommand>) {
        let guests: BTreeSet<Vmid> = new.iter().filter(|item| item.is_convergent).map(|item| item.vmid).collect();
        let runs: BTreeSet<&RunId> = new.iter().map(|item| &item.run).collect();
        let is_old = |place: &u64| self.entries.get(place).is_some_and(|entry| entry.item.is_convergent && !runs.contains(&entry.item.run));
        let queues = guests.iter().filter_map(|vmid| self.guest_queues.get(vmid)).flat_map(|lane| lane.queue.iter().copied());
        let old: Vec<DroppedStep> = queues.filter(is_old).map(|place| DroppedStep::new(place, FailureCode::Superseded)).collect();
        self.drop_queued(old, commands);
    }

    fn add(&mut self, item: ScheduleItem) {
        let place = self.next_position;
        // A second item of one submission with the same id is left out like one that is known.
        if self.positions.contains_key(&item.id) {
            return;
        }
        self.next_position += 1;
        self.positions.insert(item.id.clone(), place);
        self.guest_queues.entry(item.vmid).or_default().queue.push_back(place);
        *self.remaining.entry(item.node.clone()).or_default() += 1;
        if !item.is_recovered {
            self.runs.entry(item.run.clone()).or_default().left += 1;
        }
        self.entries.insert(place, ScheduleEntry { item, pending_dependencies: 0, is_begun: false, is_parked: false });
    }

    /// Each step that waits for a guest waits for the power steps of that guest in the same submission. That those are not
    /// there means that they were left out of it, and that nobody sees to what the step relies on.
    fn link_dependencies(&mut self, first: u64, commands: &mut Vec<ScheduleCommand>) {
        let mut powers: BTreeMap<Vmid, Vec<u64>> = BTreeMap::new();
        for (place, entry) in self.entries.range(first..).filter(|(_, entry)| entry.item.is_power) {
            powers.entry(entry.item.vmid).or_default().push(*place);
        }
        let waiting: Vec<(u64, Box<[Vmid]>)> = self
            .entries
            .range(first..)
            .map(|(place, entry)| (*place, entry.item.after.clone()))
            .filter(|(_, wait)| !wait.is_empty())
            .collect();
        // All waits first, and only then what cannot be relied on: whoever waits for that must be known by then.
        let mut drops = Vec::new();
        for (place, wait) in waiting {
            let missing: Vec<Vmid> = wait.iter().copied().filter(|vmid| !powers.contains_key(vmid)).collect();
            if !missing.is_empty() {
                drops.push(DroppedStep::for_dependency(place, &missing));
            }
            self.add_dependencies(place, wait.iter().filter_map(|vmid| powers.get(vmid)).flatten().copied());
        }
        self.drop_queued(drops, commands);
    }

    fn add_dependencies(&mut self, place: u64, on: impl Iterator<Item = u64>) {
        let mut waits = 0;
        for own in on {
            self.waiters.entry(own).or_default().push(place);
            waits += 1;
        }
        if let Some(entry) = self.entries.get_mut(&place) {
            entry.pending_dependencies = waits;
        }
    }

    fn end_operation(&mut self, id: &OperationId, end: OperationEnd, commands: &mut Vec<ScheduleCommand>) {
        let Some(place) = self.begun_position(id) else { return };
        let Some(entry) = self.remove_entry(place) else { return };
        let ScheduleItem { node, vmid, run, is_recovered, on_failure, .. } = entry.item;
        if !entry.is_parked {
            self.release_slot(&node);
        }
        if let Some(lane) = self.guest_queues.get_mut(&vmid) {
            lane.is_busy = false;
        }
        if end == OperationEnd::Done {
            self.release_waiters(place);
        } else {
            self.drop_rest_of_run(place, vmid, &run, commands);
            // What an earlier run left is no step of this one.
            if on_failure == OnFailure::Stop && !is_recovered {
                self.stop(&StopScope::Run(run), FailureCode::RunStopped, commands);
            }
        }
        self.offer_queue_head(vmid);
    }

    /// The place of an operation that was begun.
    fn begun_position(&self, id: &OperationId) -> Option<u64> {
        self.positions.get(id).copied().filter(|place| self.entries.get(place).is_some_and(|entry| entry.is_begun))
    }

    fn release_slot(&mut self, node: &NodeName) {
        self.in_flight_overall = self.in_flight_overall.saturating_sub(1);
        decrement(&mut self.in_flight, node);
    }

    /// It gives its room back and waits for room where its guest is, before whatever else waits there. What comes behind it in its lane
    /// is counted there from the start.
    fn move_operation(&mut self, id: &OperationId, node: NodeName) {
        let Some(place) = self.begun_position(id) else { return };
        let Some(entry) = self.entries.get_mut(&place).filter(|entry| entry.item.node != node && !entry.is_parked) else { return };
        entry.is_parked = true;
        let (old, vmid) = (entry.item.node.clone(), entry.item.vmid);
        self.release_slot(&old);
        let behind: Vec<u64> = self.guest_queues.get(&vmid).into_iter().flat_map(|lane| lane.queue.iter().copied()).collect();
        for own in std::iter::once(place).chain(behind) {
            let Some(entry) = self.entries.get_mut(&own).filter(|entry| entry.item.node == old) else { continue };
            entry.item.node = node.clone();
            decrement(&mut self.remaining, &old);
            *self.remaining.entry(node.clone()).or_default() += 1;
        }
        self.ready.entry(node).or_default().insert(place);
    }

    /// Whoever waited for it waits for one less.
    fn release_waiters(&mut self, place: u64) {
        for waiter in self.waiters.remove(&place).unwrap_or_default() {
            let Some(entry) = self.entries.get_mut(&waiter) else { continue };
            entry.pending_dependencies = entry.pending_dependencies.saturating_sub(1);
            let vmid = entry.item.vmid;
            self.offer_queue_head(vmid);
        }
    }

    /// The rest of its run in this lane is not run, nor is what waits for any of it (S16).
    fn drop_rest_of_run(&mut self, place: u64, vmid: Vmid, run: &RunId, commands: &mut Vec<ScheduleCommand>) {
        let mut drops = self.later_steps_of_run(place, vmid, run);
        drops.extend(self.take_dependents(place, vmid));
        self.drop_queued(drops, commands);
    }

    /// What comes behind a step in its lane and run.
    fn later_steps_of_run(&self, place: u64, vmid: Vmid, run: &RunId) -> Vec<DroppedStep> {
        let queue = self.guest_queues.get(&vmid).into_iter().flat_map(|lane| lane.queue.iter().copied()).filter(|own| *own > place);
        let of_run = queue.filter(|own| self.entries.get(own).is_some_and(|entry| entry.item.run == *run));
        of_run.map(|own| DroppedStep::new(own, FailureCode::LaneHalted)).collect()
    }

    /// What waits for a step of another guest.
    fn take_dependents(&mut self, place: u64, vmid: Vmid) -> Vec<DroppedStep> {
        self.waiters.remove(&place).unwrap_or_default().into_iter().map(|waiter| DroppedStep::for_dependency(waiter, &[vmid])).collect()
    }

    /// Takes steps that were not begun out of everything, and with each what comes behind it and what waits for it. By a list
    /// and not by recursion: a chain of `after` may be as long as the queue.
    fn drop_queued(&mut self, drops: Vec<DroppedStep>, commands: &mut Vec<ScheduleCommand>) {
        let mut work = VecDeque::from(drops);
        while let Some(DroppedStep { position: place, code, evidence }) = work.pop_front() {
            if self.entries.get(&place).is_none_or(|entry| entry.is_begun) {
                continue;
            }
            let Some(ScheduleEntry { item, .. }) = self.remove_entry(place) else { continue };
            work.extend(self.later_steps_of_run(place, item.vmid, &item.run));
            work.extend(self.take_dependents(place, item.vmid));
            if let Some(lane) = self.guest_queues.get_mut(&item.vmid) {
                lane.queue.retain(|own| *own != place);
            }
            commands.push(ScheduleCommand::NotRun { id: item.id, code, evidence });
            self.offer_queue_head(item.vmid);
        }
    }

    fn stop(&mut self, scope: &StopScope, code: FailureCode, commands: &mut Vec<ScheduleCommand>) {
        // The first reason stands.
        match scope {
            StopScope::Everything => self.stop_code = self.stop_code.or(Some(code)),
            StopScope::OpenRuns => self.runs.values_mut().for_each(|run| run.stopped = run.stopped.or(Some(code))),
            StopScope::Run(run) => {
                let Some(run) = self.runs.get_mut(run) else { return };
                run.stopped = run.stopped.or(Some(code));
            }
        }
        let is_meant = |item: &ScheduleItem| if let StopScope::Run(run) = scope { item.run == *run } else { true };
        let queued = self.entries.iter().filter(|(place, entry)| !entry.is_begun && !self.survives_stop(**place, &entry.item));
        let drops = queued.filter(|(_, entry)| is_meant(&entry.item)).map(|(place, _)| DroppedStep::new(*place, code)).collect();
        self.drop_queued(drops, commands);
    }

    /// What a stop does not touch: what was found in the journal, and the second half of a restart whose first half is before it no
    /// more.
    fn survives_stop(&self, place: u64, item: &ScheduleItem) -> bool {
        let is_next = || self.guest_queues.get(&item.vmid).is_some_and(|lane| lane.queue.front() == Some(&place));
        item.is_recovered || (item.completes_restart && is_next())
    }

    fn remove_entry(&mut self, place: u64) -> Option<ScheduleEntry> {
        let entry = self.entries.remove(&place)?;
        self.positions.remove(&entry.item.id);
        self.unready(&entry.item.node, place);
        decrement(&mut self.remaining, &entry.item.node);
        let run = &entry.item.run;
        if let Some(open) = self.runs.get_mut(run).filter(|_| !entry.item.is_recovered) {
            open.left = open.left.saturating_sub(1);
            if open.left == 0 {
                self.runs.remove(run);
            }
        }
        Some(entry)
    }

    /// It does not begin next on this node.
    fn unready(&mut self, node: &NodeName, place: u64) {
        let Some(ready) = self.ready.get_mut(node) else { return };
        ready.remove(&place);
        if ready.is_empty() {
            self.ready.remove(node);
        }
    }

    /// The head of a lane may begin once nothing of the guest is under way and nothing is waited for.
    fn offer_queue_head(&mut self, vmid: Vmid) {
        let Some(lane) = self.guest_queues.get(&vmid) else { return };
        if lane.queue.is_empty() && !lane.is_busy {
            self.guest_queues.remove(&vmid);
            return;
        }
        let Some(place) = lane.queue.front().copied().filter(|_| !lane.is_busy) else { return };
        let Some(entry) = self.entries.get(&place).filter(|entry| entry.pending_dependencies == 0) else { return };
        self.ready.entry(entry.item.node.clone()).or_default().insert(place);
    }

    fn begin_ready(&mut self, commands: &mut Vec<ScheduleCommand>) {
        while self.in_flight_overall < self.limits.overall
            && let Some(node) = self.next_node()
            && let Some(place) = self.ready.get(&node).and_then(|ready| ready.first().copied())
        {
            self.unready(&node, place);
            let Some(entry) = self.entries.get_mut(&place) else { continue };
            self.in_flight_overall += 1;
            *self.in_flight.entry(node).or_default() += 1;
            if std::mem::take(&mut entry.is_parked) {
                commands.push(ScheduleCommand::Resume(entry.item.id.clone()));
                continue;
            }
            entry.is_begun = true;
            if let Some(lane) = self.guest_queues.get_mut(&entry.item.vmid) {
                lane.queue.pop_front();
                lane.is_busy = true;
            }
            commands.push(ScheduleCommand::Begin(entry.item.id.clone()));
        }
    }

    /// Of the nodes with room the one with the most to do: the longest queue decides when everything is done.
    fn next_node(&self) -> Option<NodeName> {
        let has_room = |node: &NodeName| self.in_flight.get(node).copied().unwrap_or(0) < self.limits.per_node as usize;
        let open = self.ready.iter().filter(|(node, _)| has_room(node));
        let left = |node: &NodeName| self.remaining.get(node).copied().unwrap_or(0);
        // The first of those that have equally much, so that the order does not depend on anything else.
        open.map(|(node, _)| node).rev().max_by_key(|node| left(node)).cloned()
    }
}

/// One less on a node; a node with none is forgotten.
fn decrement(counts: &mut BTreeMap<NodeName, usize>, node: &NodeName) {
    let Some(count) = counts.get_mut(node) else { return };
    *count = count.saturating_sub(1);
    if *count == 0 {
        counts.remove(node);
    }
}

/// A step that is not to be run, and why.
struct DroppedStep {
    position: u64,
    code: FailureCode,
    evidence: Evidence,
}

impl DroppedStep {
    fn new(place: u64, code: FailureCode) -> Self {
        Self { position: place, code, evidence: Evidence::default() }
    }

    /// Because nothing good can be said of these guests.
    fn for_dependency(place: u64, guests: &[Vmid]) -> Self {
        let on = guests.iter().map(|vmid| vmid.to_string().into()).collect();
        Self { position: place, code: FailureCode::DependencyNotDone, evidence: Evidence::default().with("on", Fact::Words(on)) }
    }
}
