//! Decides which operation starts next, as a pure state machine: one FIFO queue per guest, limits per node and overall, and `after`
//! across guests.
//!
//! Usage: feed [`ScheduleEvent::Submit`] with the steps of a plan (recovered operations first), start each operation that a
//! [`ScheduleCommand::Begin`] names, and feed [`ScheduleEvent::Ended`] for it. It is done when [`ScheduleState::is_idle`].
//!
//! One schedule serves many runs: plans may be submitted while others are in flight, and an operation is forgotten when it has ended. A
//! failure or a stop of one run does not affect the others.
//!
//! In every order of events: no two operations of a guest are in flight at once (G12), a stuck guest blocks only itself and its
//! dependents (L4), and what depends on a step that did not succeed is never started (S16). The same events give the same commands.
//!
//! Must not depend on what an operation does (`operation`), on clocks or on the journal.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use converger_core::action::Change;
use converger_core::apply::{Evidence, Fact, Operation, OperationEnd, OperationId, OperationSource, RunId};
use converger_core::failure::FailureCode;
use converger_core::guest::{NodeName, Vmid};
use converger_core::plan::StepReason;

#[cfg(test)]
mod tests;

/// How many operations may be in flight at once. Zero counts as one: a limit is not a way to stop a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConcurrencyLimits {
    /// On one node.
    pub per_node: u32,
    /// Overall.
    pub overall: u32,
}

impl Default for ConcurrencyLimits {
    /// A node can start a few guests at once without disturbing its other guests.
    fn default() -> Self {
        Self { per_node: 4, overall: 40 }
    }
}

impl ConcurrencyLimits {
    fn at_least_one(self) -> Self {
        Self { per_node: self.per_node.max(1), overall: self.overall.max(1) }
    }
}

/// The maximum number of steps in the schedule.
pub const QUEUE_MAX: usize = 65_536;

/// What the schedule knows about a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScheduleItem {
    /// The operation.
    pub id: OperationId,
    /// Its run.
    pub run: RunId,
    /// The guest in whose queue it is.
    pub vmid: Vmid,
    /// A second guest that it occupies, such as the source of a clone. It is in the queue of both and starts when it is first in both.
    pub second: Option<Vmid>,
    /// The node whose limit it counts against.
    pub node: NodeName,
    /// Guests whose power steps in the same submission come first.
    pub after: Box<[Vmid]>,
    /// Whether it changes the run-state, which dependents wait for.
    pub is_power: bool,
    /// Whether it follows from the desired state; a newer plan may then supersede it.
    pub is_convergent: bool,
    /// Whether it is the second half of a restart: once the first half has started, a stop does not prevent it.
    pub completes_restart: bool,
    /// Whether it was recovered from the journal: it only reads, and must be settled whatever else happens.
    pub is_recovered: bool,
    /// What its failure means for the rest of its run.
    pub on_failure: OnFailure,
}

impl ScheduleItem {
    /// The item of an operation, with what its failure means for the rest of its run.
    #[must_use]
    pub fn for_operation(operation: &Operation, on_failure: OnFailure) -> Self {
        Self {
            id: operation.id.clone(),
            run: operation.run.clone(),
            vmid: operation.guest.vmid,
            second: operation.step.change.second_guest(),
            node: operation.sending_address().node,
            after: operation.step.wait.clone(),
            is_power: operation.step.change.resulting_state().is_some(),
            is_convergent: operation.source == OperationSource::Convergent && operation.step.reason != StepReason::MadeFromTemplate,
            completes_restart: completes_restart(operation),
            is_recovered: false,
            on_failure,
        }
    }

    /// The guests that it occupies.
    fn guests(&self) -> impl Iterator<Item = Vmid> + use<> {
        std::iter::once(self.vmid).chain(self.second)
    }

    /// The item of a recovered operation: it only reads, and depends on nothing.
    #[must_use]
    pub fn for_recovered(operation: &Operation) -> Self {
        Self::for_operation(operation, OnFailure::Continue).into_recovered()
    }

    /// Also excludes it from being superseded: a recovered operation must be settled.
    fn into_recovered(self) -> Self {
        Self { after: Box::new([]), is_convergent: false, is_recovered: true, ..self }
    }
}

/// Whether an operation starts a guest that the step before it stopped.
#[must_use]
pub fn completes_restart(operation: &Operation) -> bool {
    matches!((&operation.step.change, &operation.step.reason), (Change::Start, StepReason::RestartForConfig(_)))
}

/// An event that the schedule reacts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleEvent {
    /// Executes steps; those of one guest in this order. Ids that are already known are skipped.
    Submit(Vec<ScheduleItem>),
    /// A started operation has ended.
    Ended {
        /// The operation.
        id: OperationId,
        /// Its end.
        end: OperationEnd,
    },
    /// A started operation found its guest on another node before sending anything: it waits for a slot there.
    Moved {
        /// The operation.
        id: OperationId,
        /// The node of its guest.
        node: NodeName,
    },
    /// Starts nothing new of these runs. Operations in flight continue to their end, and recovery continues.
    Stop {
        /// The runs.
        scope: StopScope,
        /// The reason.
        code: FailureCode,
    },
    /// These limits hold for operations that begin from now on. Operations in flight are not stopped.
    SetLimits(ConcurrencyLimits),
}

/// The runs that a stop affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopScope {
    /// All runs, including later ones.
    Everything,
    /// All runs that have operations in the schedule now. Later ones start.
    OpenRuns,
    /// One run.
    Run(RunId),
}

/// What the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleCommand {
    /// Start this operation.
    Begin(OperationId),
    /// Continue this operation: there is a slot on the node of its guest.
    Resume(OperationId),
    /// This operation will never start.
    NotRun {
        /// The operation.
        id: OperationId,
        /// The reason.
        code: FailureCode,
        /// The evidence for it.
        evidence: Evidence,
    },
}

/// What happens to the rest of a run if a step does not succeed. Other runs continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnFailure {
    /// The other steps of the guest and their dependents are not run; other guests continue.
    Continue,
    /// Nothing new of the run is started.
    Stop,
}

/// Everything that is in flight or queued. States are ordered, so that an exhaustive search can recognise states that it has visited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScheduleState {
    limits: ConcurrencyLimits,
    stop_code: Option<FailureCode>,
    /// Runs with operations in the schedule, not counting recovered operations.
    runs: BTreeMap<RunId, OpenRun>,
    next_position: u64,
    entries: BTreeMap<u64, ScheduleEntry>,
    positions: BTreeMap<OperationId, u64>,
    guest_queues: BTreeMap<Vmid, GuestQueue>,
    /// Which entries wait for an entry of another guest.
    waiters: BTreeMap<u64, Vec<u64>>,
    /// Entries that could start now if there is a slot, by node.
    ready: BTreeMap<NodeName, BTreeSet<u64>>,
    /// The number of entries that have not ended, by node.
    remaining: BTreeMap<NodeName, usize>,
    in_flight: BTreeMap<NodeName, usize>,
    in_flight_overall: u32,
}

/// A run that has operations in the schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct OpenRun {
    /// The number of its operations that have not ended.
    left: usize,
    stopped: Option<FailureCode>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ScheduleEntry {
    item: ScheduleItem,
    /// How many operations of other guests it still waits for.
    pending_dependencies: usize,
    is_begun: bool,
    /// It was started, and waits for a slot on another node.
    is_parked: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct GuestQueue {
    /// Entries that have not started.
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

    /// Whether nothing is in flight or queued.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of operations in flight.
    #[must_use]
    pub fn in_flight_count(&self) -> u32 {
        self.in_flight_overall
    }

    /// The node whose limit an operation counts against, while it is queued or in flight.
    #[must_use]
    pub fn node_of(&self, id: &OperationId) -> Option<&NodeName> {
        self.positions.get(id).and_then(|position| self.entries.get(position)).map(|entry| &entry.item.node)
    }

    /// Why nothing new of an operation's run is started, if it was stopped.
    #[must_use]
    pub fn stop_code(&self, id: &OperationId) -> Option<FailureCode> {
        let item = self.positions.get(id).and_then(|position| self.entries.get(position)).map(|entry| &entry.item);
        item.map_or(self.stop_code, |item| self.run_stop_code(&item.run))
    }

    fn run_stop_code(&self, run: &RunId) -> Option<FailureCode> {
        self.stop_code.or_else(|| self.runs.get(run)?.stopped)
    }

    /// The total size of all collections; zero when it is idle. For leak checks.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        let by_operation = self.entries.len() + self.positions.len() + self.waiters.len() + self.guest_queues.len() + self.runs.len();
        by_operation + self.ready.len() + self.remaining.len() + self.in_flight.len()
    }
}

/// Makes one transition. An event about an operation that is not in flight changes nothing.
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
        let heads: Vec<Vmid> = self.entries.range(first..).flat_map(|(_, entry)| entry.item.guests()).collect();
        for vmid in heads {
            self.offer_queue_head(vmid);
        }
    }

    /// A newer plan for a guest supersedes its queued steps, except one-shot requests.
    fn supersede(&mut self, new: &[ScheduleItem], commands: &mut Vec<ScheduleCommand>) {
        let guests: BTreeSet<Vmid> = new.iter().filter(|item| item.is_convergent).map(|item| item.vmid).collect();
        let runs: BTreeSet<&RunId> = new.iter().map(|item| &item.run).collect();
        let is_old =
            |position: &u64| self.entries.get(position).is_some_and(|entry| entry.item.is_convergent && !runs.contains(&entry.item.run));
        let queues = guests.iter().filter_map(|vmid| self.guest_queues.get(vmid)).flat_map(|guest_queue| guest_queue.queue.iter().copied());
        let old: Vec<DroppedStep> = queues.filter(is_old).map(|position| DroppedStep::new(position, FailureCode::Superseded)).collect();
        self.drop_queued(old, commands);
    }

    fn add(&mut self, item: ScheduleItem) {
        let position = self.next_position;
        // A second item with the same id in one submission is skipped, like one that is already known.
        if self.positions.contains_key(&item.id) {
            return;
        }
        self.next_position += 1;
        self.positions.insert(item.id.clone(), position);
        for vmid in item.guests() {
            self.guest_queues.entry(vmid).or_default().queue.push_back(position);
        }
        *self.remaining.entry(item.node.clone()).or_default() += 1;
        if !item.is_recovered {
            self.runs.entry(item.run.clone()).or_default().left += 1;
        }
        self.entries.insert(position, ScheduleEntry { item, pending_dependencies: 0, is_begun: false, is_parked: false });
    }

    /// Each step waits for the power steps of its dependencies in the same submission. If these are missing they were left out of it, and
    /// nothing ensures the state that the step depends on.
    fn link_dependencies(&mut self, first: u64, commands: &mut Vec<ScheduleCommand>) {
        let mut powers: BTreeMap<Vmid, Vec<u64>> = BTreeMap::new();
        for (position, entry) in self.entries.range(first..).filter(|(_, entry)| entry.item.is_power) {
            powers.entry(entry.item.vmid).or_default().push(*position);
        }
        let waiting: Vec<(u64, Box<[Vmid]>)> = self
            .entries
            .range(first..)
            .map(|(position, entry)| (*position, entry.item.after.clone()))
            .filter(|(_, wait)| !wait.is_empty())
            .collect();
        // Link all dependencies before dropping steps, so that the dependents of a dropped step are known.
        let mut drops = Vec::new();
        for (position, wait) in waiting {
            let missing: Vec<Vmid> = wait.iter().copied().filter(|vmid| !powers.contains_key(vmid)).collect();
            if !missing.is_empty() {
                drops.push(DroppedStep::for_dependency(position, &missing));
            }
            self.add_dependencies(position, wait.iter().filter_map(|vmid| powers.get(vmid)).flatten().copied());
        }
        self.drop_queued(drops, commands);
    }

    fn add_dependencies(&mut self, position: u64, on: impl Iterator<Item = u64>) {
        let mut dependency_count = 0;
        for own in on {
            self.waiters.entry(own).or_default().push(position);
            dependency_count += 1;
        }
        if let Some(entry) = self.entries.get_mut(&position) {
            entry.pending_dependencies = dependency_count;
        }
    }

    fn end_operation(&mut self, id: &OperationId, end: OperationEnd, commands: &mut Vec<ScheduleCommand>) {
        let Some(position) = self.begun_position(id) else { return };
        let Some(entry) = self.remove_entry(position) else { return };
        let ScheduleItem { vmid, second, ref node, ref run, is_recovered, on_failure, .. } = entry.item;
        if !entry.is_parked {
            self.release_slot(node);
        }
        for guest in entry.item.guests() {
            if let Some(guest_queue) = self.guest_queues.get_mut(&guest) {
                guest_queue.is_busy = false;
            }
        }
        if end == OperationEnd::Done {
            self.release_waiters(position);
        } else {
            self.drop_rest_of_run(position, vmid, run, commands);
            // A recovered operation of an earlier run is no step of this run.
            if on_failure == OnFailure::Stop && !is_recovered {
                self.stop(&StopScope::Run(run.clone()), FailureCode::RunStopped, commands);
            }
        }
        for guest in std::iter::once(vmid).chain(second) {
            self.offer_queue_head(guest);
        }
    }

    /// The position of a started operation.
    fn begun_position(&self, id: &OperationId) -> Option<u64> {
        self.positions.get(id).copied().filter(|position| self.entries.get(position).is_some_and(|entry| entry.is_begun))
    }

    fn release_slot(&mut self, node: &NodeName) {
        self.in_flight_overall = self.in_flight_overall.saturating_sub(1);
        decrement(&mut self.in_flight, node);
    }

    /// Releases the slot and waits for one on the node of the guest, ahead of other entries there. Later entries of its queue count
    /// against that node from the start.
    fn move_operation(&mut self, id: &OperationId, node: NodeName) {
        let Some(position) = self.begun_position(id) else { return };
        let Some(entry) = self.entries.get_mut(&position).filter(|entry| entry.item.node != node && !entry.is_parked) else { return };
        entry.is_parked = true;
        let (old, vmid) = (entry.item.node.clone(), entry.item.vmid);
        self.release_slot(&old);
        let behind: Vec<u64> = self.guest_queues.get(&vmid).into_iter().flat_map(|guest_queue| guest_queue.queue.iter().copied()).collect();
        for own in std::iter::once(position).chain(behind) {
            let is_of_guest = |entry: &&mut ScheduleEntry| entry.item.node == old && entry.item.vmid == vmid;
            let Some(entry) = self.entries.get_mut(&own).filter(is_of_guest) else { continue };
            entry.item.node = node.clone();
            decrement(&mut self.remaining, &old);
            *self.remaining.entry(node.clone()).or_default() += 1;
        }
        self.ready.entry(node).or_default().insert(position);
    }

    /// Each waiter has one dependency less.
    fn release_waiters(&mut self, position: u64) {
        for waiter in self.waiters.remove(&position).unwrap_or_default() {
            let Some(entry) = self.entries.get_mut(&waiter) else { continue };
            entry.pending_dependencies = entry.pending_dependencies.saturating_sub(1);
            let vmid = entry.item.vmid;
            self.offer_queue_head(vmid);
        }
    }

    /// Drops the later steps of its run on this guest, and all dependents (S16).
    fn drop_rest_of_run(&mut self, position: u64, vmid: Vmid, run: &RunId, commands: &mut Vec<ScheduleCommand>) {
        let mut drops = self.later_steps_of_run(position, vmid, run);
        drops.extend(self.take_dependents(position, vmid));
        self.drop_queued(drops, commands);
    }

    /// The later steps of the same run in a queue.
    fn later_steps_of_run(&self, position: u64, vmid: Vmid, run: &RunId) -> Vec<DroppedStep> {
        let queue = self
            .guest_queues
            .get(&vmid)
            .into_iter()
            .flat_map(|guest_queue| guest_queue.queue.iter().copied())
            .filter(|own| *own > position);
        let of_run = queue.filter(|own| self.entries.get(own).is_some_and(|entry| entry.item.run == *run));
        of_run.map(|own| DroppedStep::new(own, FailureCode::LaneHalted)).collect()
    }

    /// Removes and returns the dependents of a step.
    fn take_dependents(&mut self, position: u64, vmid: Vmid) -> Vec<DroppedStep> {
        self.waiters.remove(&position).unwrap_or_default().into_iter().map(|waiter| DroppedStep::for_dependency(waiter, &[vmid])).collect()
    }

    /// Drops steps that have not started, and with each the later steps of its run and its dependents. Uses a work list instead of
    /// recursion: a chain of `after` may be as long as the queue.
    fn drop_queued(&mut self, drops: Vec<DroppedStep>, commands: &mut Vec<ScheduleCommand>) {
        let mut work = VecDeque::from(drops);
        while let Some(DroppedStep { position, code, evidence }) = work.pop_front() {
            if self.entries.get(&position).is_none_or(|entry| entry.is_begun) {
                continue;
            }
            let Some(ScheduleEntry { item, .. }) = self.remove_entry(position) else { continue };
            work.extend(self.later_steps_of_run(position, item.vmid, &item.run));
            work.extend(self.take_dependents(position, item.vmid));
            for vmid in item.guests() {
                if let Some(guest_queue) = self.guest_queues.get_mut(&vmid) {
                    guest_queue.queue.retain(|own| *own != position);
                }
            }
            let guests = item.guests();
            commands.push(ScheduleCommand::NotRun { id: item.id, code, evidence });
            guests.for_each(|vmid| self.offer_queue_head(vmid));
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
        let queued = self.entries.iter().filter(|(position, entry)| !entry.is_begun && !self.survives_stop(**position, &entry.item));
        let drops = queued.filter(|(_, entry)| is_meant(&entry.item)).map(|(position, _)| DroppedStep::new(*position, code)).collect();
        self.drop_queued(drops, commands);
    }

    /// Whether a stop does not affect an entry: recovered operations, and the second half of a restart whose first half has left the
    /// queue.
    fn survives_stop(&self, position: u64, item: &ScheduleItem) -> bool {
        let is_next = || self.guest_queues.get(&item.vmid).is_some_and(|guest_queue| guest_queue.queue.front() == Some(&position));
        item.is_recovered || (item.completes_restart && is_next())
    }

    fn remove_entry(&mut self, position: u64) -> Option<ScheduleEntry> {
        let entry = self.entries.remove(&position)?;
        self.positions.remove(&entry.item.id);
        self.unready(&entry.item.node, position);
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

    /// Removes an entry from the ready set of a node.
    fn unready(&mut self, node: &NodeName, position: u64) {
        let Some(ready) = self.ready.get_mut(node) else { return };
        ready.remove(&position);
        if ready.is_empty() {
            self.ready.remove(node);
        }
    }

    /// Marks the head of a queue as ready if nothing of the guest is in flight and it has no pending dependency.
    fn offer_queue_head(&mut self, vmid: Vmid) {
        let Some(guest_queue) = self.guest_queues.get(&vmid) else { return };
        if guest_queue.queue.is_empty() && !guest_queue.is_busy {
            self.guest_queues.remove(&vmid);
            return;
        }
        let Some(position) = guest_queue.queue.front().copied().filter(|_| !guest_queue.is_busy) else { return };
        let Some(entry) = self.entries.get(&position).filter(|entry| entry.pending_dependencies == 0) else { return };
        // Both queues have the order of the positions, so two entries never wait for each other.
        let is_first = |vmid: Vmid| self.guest_queues.get(&vmid).is_some_and(|own| !own.is_busy && own.queue.front() == Some(&position));
        if !entry.item.guests().all(is_first) {
            return;
        }
        self.ready.entry(entry.item.node.clone()).or_default().insert(position);
    }

    fn begin_ready(&mut self, commands: &mut Vec<ScheduleCommand>) {
        while self.in_flight_overall < self.limits.overall
            && let Some(node) = self.next_node()
            && let Some(position) = self.ready.get(&node).and_then(|ready| ready.first().copied())
        {
            self.unready(&node, position);
            let Some(entry) = self.entries.get_mut(&position) else { continue };
            self.in_flight_overall += 1;
            *self.in_flight.entry(node).or_default() += 1;
            if std::mem::take(&mut entry.is_parked) {
                commands.push(ScheduleCommand::Resume(entry.item.id.clone()));
                continue;
            }
            entry.is_begun = true;
            let (guests, id) = (entry.item.guests(), entry.item.id.clone());
            for vmid in guests {
                if let Some(guest_queue) = self.guest_queues.get_mut(&vmid) {
                    guest_queue.queue.pop_front();
                    guest_queue.is_busy = true;
                }
            }
            commands.push(ScheduleCommand::Begin(id));
        }
    }

    /// Of the nodes with a free slot, the one with the most remaining work: the longest queue determines the total time.
    fn next_node(&self) -> Option<NodeName> {
        let has_room = |node: &NodeName| self.in_flight.get(node).copied().unwrap_or(0) < self.limits.per_node as usize;
        let open = self.ready.iter().filter(|(node, _)| has_room(node));
        let left = |node: &NodeName| self.remaining.get(node).copied().unwrap_or(0);
        // The first of equals, so that the order is deterministic.
        open.map(|(node, _)| node).rev().max_by_key(|node| left(node)).cloned()
    }
}

/// Decrements the count of a node and removes it at zero.
fn decrement(counts: &mut BTreeMap<NodeName, usize>, node: &NodeName) {
    let Some(count) = counts.get_mut(node) else { return };
    *count = count.saturating_sub(1);
    if *count == 0 {
        counts.remove(node);
    }
}

/// A step that will not be run, and the reason.
struct DroppedStep {
    position: u64,
    code: FailureCode,
    evidence: Evidence,
}

impl DroppedStep {
    fn new(position: u64, code: FailureCode) -> Self {
        Self { position, code, evidence: Evidence::default() }
    }

    /// Dropped because these guests are not as required.
    fn for_dependency(position: u64, guests: &[Vmid]) -> Self {
        let on = guests.iter().map(|vmid| vmid.to_string().into()).collect();
        Self { position, code: FailureCode::DependencyNotDone, evidence: Evidence::default().with("on", Fact::Words(on)) }
    }
}
