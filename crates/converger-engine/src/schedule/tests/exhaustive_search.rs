//! Exhaustive search over the real schedule in small worlds: every order of events, and the rules that must hold in each of them.
//!
//! The environment of the schedule is minimal. A started operation makes its intent durable or is refused by the journal, may find its
//! guest on another node, and ends in one of all ways. People drain, hold, release and submit a newer plan. The journal becomes
//! unwritable and writable again. The process crashes, and another one starts with what the journal has. The model never decides what
//! starts next.
//!
//! Must not model what an operation does between its intent and its end (`operation`), or time.

mod setups;

use super::planted_bugs::PlantedScheduleBug;
use super::*;
use crate::testing::explore::{BrokenRule, SearchModel, SearchSummary, explore};

/// What may happen in a search, besides the start and end of operations.
#[derive(Clone, Debug)]
pub(super) struct SearchSetup {
    pub(super) limits: ConcurrencyLimits,
    pub(super) on_failure: OnFailure,
    /// Submitted in this order, each as its own run. The first one is submitted at the start, and again after a crash.
    pub(super) plans: Vec<Vec<ScheduleItem>>,
    /// How operations may end once they are in the journal.
    pub(super) ends: &'static [OperationEnd],
    pub(super) may_drain: bool,
    /// The guest that a person may hold and release again.
    pub(super) may_hold: Option<u32>,
    /// The guest that any of its operations may find on another node before it has sent anything.
    pub(super) may_move: Option<(u32, &'static str)>,
    pub(super) may_lose_journal: bool,
    pub(super) crashes_max: usize,
    /// The bug in the schedule or in its caller, if any.
    pub(super) planted: Option<PlantedScheduleBug>,
}

/// The progress of one operation, as the process and the journal have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OperationLife {
    /// Not submitted.
    Absent,
    Waiting,
    /// Started; nothing is durable.
    Begun,
    /// Its intent is durable.
    Open,
    /// It found its guest on another node, and waits for a slot there.
    Parked,
    /// Recovered from the journal, and not read yet.
    Unsettled,
    /// Recovered from the journal, and being read.
    Reading,
    /// Ended for this process, but still open in the journal.
    Left,
    Ended(OperationEnd),
    NotRun(FailureCode),
    /// Lost with its process before anything was durable.
    Gone,
}

impl OperationLife {
    fn is_in_flight(self) -> bool {
        matches!(self, Self::Begun | Self::Open | Self::Parked | Self::Reading)
    }

    /// It takes a slot on its node and overall.
    fn occupies_slot(self) -> bool {
        self.is_in_flight() && self != Self::Parked
    }

    fn is_waiting(self) -> bool {
        matches!(self, Self::Waiting | Self::Unsettled)
    }

    /// The journal has no end of it.
    fn is_open_in_journal(self) -> bool {
        matches!(self, Self::Open | Self::Parked | Self::Unsettled | Self::Reading | Self::Left)
    }

    fn is_over_and_not_done(self) -> bool {
        matches!(self, Self::Ended(end) if end != OperationEnd::Done) || matches!(self, Self::NotRun(_) | Self::Left | Self::Gone)
    }

    /// It only grows while a process lives, except when a guest moves, which `progress` counts separately.
    fn rank(self) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Waiting | Self::Unsettled | Self::Parked => 1,
            Self::Begun | Self::Reading => 2,
            Self::Open => 3,
            Self::Left | Self::Ended(_) | Self::NotRun(_) | Self::Gone => 4,
        }
    }
}

/// The hold on the one guest that may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PersonHold {
    /// Not held so far.
    NeverHeld,
    Held,
    Released,
}

/// Whether the journal can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Journal {
    Writable,
    Full,
    WritableAgain,
}

/// The whole state at one moment. Fields that differ most often come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ScheduleWorld {
    /// By index in the table of all items.
    operations: Vec<OperationLife>,
    /// Which of them count against the node to which the guest moved.
    moved_operations: Vec<bool>,
    /// The items that were submitted to this process, in order.
    order: Vec<usize>,
    /// The number of plans that were submitted to this process.
    submitted: usize,
    crashes: usize,
    /// All runs were stopped by a drain.
    stopped: bool,
    /// Runs that were stopped by their own failure.
    stopped_runs: BTreeSet<RunId>,
    /// Runs that were open when a record could not be written.
    unwritable_runs: BTreeSet<RunId>,
    journal: Journal,
    held: PersonHold,
    schedule: ScheduleState,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ScheduleAction {
    /// The next plan is submitted.
    Submit,
    /// The journal answers an intent.
    Intent(usize),
    /// The journal becomes unwritable, and this intent is the first to notice.
    LoseJournal(usize),
    /// The journal becomes writable again.
    FindRoom,
    End(usize, OperationEnd),
    /// An operation finds its guest on the other node.
    Moved(usize),
    Drain,
    Hold,
    Release,
    /// The process crashes, and the next one starts.
    Crash,
}

/// A setup with all possible items: those of each plan, for each process.
pub(super) struct ScheduleModel {
    setup: SearchSetup,
    items: Vec<ScheduleItem>,
}

impl ScheduleModel {
    pub(super) fn new(setup: SearchSetup) -> Self {
        let mut items = Vec::new();
        for process in 0..=setup.crashes_max {
            for (number, plan) in setup.plans.iter().enumerate() {
                let on_failure = setup.on_failure;
                let items_of_run = plan.iter().map(|item| with_run(&format!("{process}{number}"), item));
                items.extend(items_of_run.map(|item| ScheduleItem { on_failure, ..item }));
            }
        }
        Self { setup, items }
    }

    /// The indices of the items of a plan.
    fn item_range(&self, process: usize, plan: usize) -> std::ops::Range<usize> {
        let of_process: usize = self.setup.plans.iter().map(Vec::len).sum();
        let before: usize = self.setup.plans[..plan].iter().map(Vec::len).sum();
        let first = process * of_process + before;
        first..first + self.setup.plans[plan].len()
    }

    /// The same step of the plan in earlier processes.
    fn same_step_before<'w>(&'w self, world: &'w ScheduleWorld, index: usize) -> impl Iterator<Item = usize> + 'w {
        let of_process: usize = self.setup.plans.iter().map(Vec::len).sum();
        (0..world.crashes).map(move |process| process * of_process + index % of_process)
    }

    /// Feeds an event to the schedule and executes its commands.
    fn feed_schedule(&self, mut world: ScheduleWorld, event: ScheduleEvent) -> Result<ScheduleWorld, String> {
        let schedule = std::mem::replace(&mut world.schedule, ScheduleState::new(self.setup.limits));
        let (schedule, commands) = match self.setup.planted {
            Some(planted) => planted.step(schedule, event),
            None => step(schedule, event),
        };
        world.schedule = schedule;
        for command in commands {
            match command {
                ScheduleCommand::Begin(id) => self.begin_operation(&mut world, &id)?,
                ScheduleCommand::Resume(id) => self.resume_operation(&mut world, &id)?,
                ScheduleCommand::NotRun { id, code, .. } => self.end_not_run(&mut world, &id, code)?,
            }
        }
        Ok(world)
    }

    fn index_of(&self, id: &OperationId) -> Result<usize, String> {
        self.items.iter().position(|item| item.id == *id).ok_or_else(|| format!("unknown operation {id}"))
    }

    fn begin_operation(&self, world: &mut ScheduleWorld, id: &OperationId) -> Result<(), String> {
        let index = self.index_of(id)?;
        self.check_begin_rules(world, index).map_err(|rule| format!("{id} begins {rule}"))?;
        world.operations[index] =
            if world.operations[index] == OperationLife::Unsettled { OperationLife::Reading } else { OperationLife::Begun };
        self.check_limits(world, index)
    }

    /// It takes a slot again, on the node of its guest.
    fn resume_operation(&self, world: &mut ScheduleWorld, id: &OperationId) -> Result<(), String> {
        let index = self.index_of(id)?;
        if world.operations[index] != OperationLife::Parked {
            return Err(format!("{id} resumes while it is {:?}", world.operations[index]));
        }
        world.operations[index] = OperationLife::Open;
        self.check_limits(world, index)
    }

    /// The conditions for an operation to start. They depend on the model only, never on the state of the schedule.
    fn check_begin_rules(&self, world: &ScheduleWorld, index: usize) -> Result<(), String> {
        let life = world.operations[index];
        if !life.is_waiting() {
            return Err(format!("while it is {life:?}"));
        }
        // A recovered operation only reads, and is settled after a stop, too; a guest that was stopped for a restart is started again.
        let run = &self.items[index].run;
        let is_stopped = world.stopped || world.stopped_runs.contains(run) || world.unwritable_runs.contains(run);
        if is_stopped && life == OperationLife::Waiting && !self.completes_restart(world, index) {
            return Err("after the stop".into());
        }
        for (other, other_life) in self.others_of_guest(world, index) {
            if other_life.is_in_flight() {
                return Err(format!("while {} is in flight on its guest", self.items[other].id));
            }
            if life == OperationLife::Waiting && other_life.is_open_in_journal() {
                return Err(format!("before the outcome of {} is known", self.items[other].id));
            }
        }
        if let Some(first) = self.earlier_of_guest(world, index).find(|other| world.operations[*other].is_waiting()) {
            return Err(format!("before {}, which came first", self.items[first].id));
        }
        if life == OperationLife::Waiting
            && let Some(behind) =
                self.earlier_in_run(world, index).find(|other| world.operations[*other] != OperationLife::Ended(OperationEnd::Done))
        {
            return Err(format!("although {} is {:?}", self.items[behind].id, world.operations[behind]));
        }
        match self.unfinished_dependency(world, index).filter(|_| life == OperationLife::Waiting) {
            Some(guest) => Err(format!("before guest {guest} is done")),
            None => Ok(()),
        }
    }

    /// Whether it starts a guest again that was stopped: the first half of the restart has started.
    fn completes_restart(&self, world: &ScheduleWorld, index: usize) -> bool {
        let is_begun = |other: usize| {
            matches!(
                world.operations[other],
                OperationLife::Begun | OperationLife::Open | OperationLife::Parked | OperationLife::Ended(OperationEnd::Done)
            )
        };
        self.items[index].completes_restart && self.earlier_in_run(world, index).last().is_some_and(is_begun)
    }

    fn check_limits(&self, world: &ScheduleWorld, index: usize) -> Result<(), String> {
        let ConcurrencyLimits { per_node, overall } = self.setup.limits;
        let (on_node, all) = self.in_flight_counts(world, index);
        if on_node > per_node as usize || all > overall as usize {
            return Err(format!("{on_node} operations on one node and {all} overall are in flight, beyond the limits"));
        }
        Ok(())
    }

    /// The number of operations in flight on its node, and overall.
    fn in_flight_counts(&self, world: &ScheduleWorld, index: usize) -> (usize, usize) {
        let in_flight: Vec<usize> = (0..self.items.len()).filter(|other| world.operations[*other].occupies_slot()).collect();
        let on_node = in_flight.iter().filter(|other| self.node_of(world, **other) == self.node_of(world, index)).count();
        (on_node, in_flight.len())
    }

    /// The node that it counts against: the planned one, until an operation finds its guest on another.
    fn node_of<'w>(&'w self, world: &ScheduleWorld, index: usize) -> &'w str {
        match self.setup.may_move {
            Some((_, node)) if world.moved_operations[index] => node,
            _ => self.items[index].node.as_str(),
        }
    }

    /// Whether an operation may find its guest on another node than the one it counts against.
    fn may_move(&self, world: &ScheduleWorld, index: usize) -> bool {
        let (item, is_counted_there) = (&self.items[index], world.moved_operations[index]);
        self.setup.may_move.is_some_and(|(guest, node)| item.vmid.get() == guest && item.node.as_str() != node && !is_counted_there)
    }

    fn others_of_guest<'w>(&'w self, world: &'w ScheduleWorld, index: usize) -> impl Iterator<Item = (usize, OperationLife)> + 'w {
        let lives = world.operations.iter().copied().enumerate();
        lives.filter(move |(other, _)| *other != index && self.items[*other].vmid == self.items[index].vmid)
    }

    /// Items that were submitted earlier for the same guest.
    fn earlier_of_guest<'w>(&'w self, world: &'w ScheduleWorld, index: usize) -> impl Iterator<Item = usize> + 'w {
        let earlier = world.order.iter().copied().take_while(move |other| *other != index);
        earlier.filter(move |other| self.items[*other].vmid == self.items[index].vmid)
    }

    fn earlier_in_run<'w>(&'w self, world: &'w ScheduleWorld, index: usize) -> impl Iterator<Item = usize> + 'w {
        self.earlier_of_guest(world, index).filter(move |other| self.items[*other].run == self.items[index].run)
    }

    /// A dependency whose power steps are missing or not all done.
    fn unfinished_dependency(&self, world: &ScheduleWorld, index: usize) -> Option<Vmid> {
        let mut wait = self.items[index].after.iter().copied();
        wait.find(|guest| {
            let mut powers = self.power_steps(world, index, *guest).peekable();
            powers.peek().is_none() || powers.any(|other| world.operations[other] != OperationLife::Ended(OperationEnd::Done))
        })
    }

    fn power_steps<'w>(&'w self, world: &'w ScheduleWorld, index: usize, guest: Vmid) -> impl Iterator<Item = usize> + 'w {
        let of_run = move |other: &usize| self.items[*other].run == self.items[index].run && self.items[*other].is_power;
        world.order.iter().copied().filter(of_run).filter(move |other| self.items[*other].vmid == guest)
    }

    fn end_not_run(&self, world: &mut ScheduleWorld, id: &OperationId, code: FailureCode) -> Result<(), String> {
        let index = self.index_of(id)?;
        let life = world.operations[index];
        if !life.is_waiting() {
            return Err(format!("{id} is reported as not run while it is {life:?}"));
        }
        if !self.has_reason(world, index, code) {
            return Err(format!("{id} is dropped as {} without a reason", code.word()));
        }
        if life == OperationLife::Unsettled {
            return Err(format!("{id} is not recovered"));
        }
        world.operations[index] = OperationLife::NotRun(code);
        Ok(())
    }

    /// A step is not dropped for a reason that does not concern it (L4).
    fn has_reason(&self, world: &ScheduleWorld, index: usize, code: FailureCode) -> bool {
        let is_over = |other: usize| world.operations[other].is_over_and_not_done();
        let run = &self.items[index].run;
        match code {
            FailureCode::RunStopped => (world.stopped || world.stopped_runs.contains(run)) && !self.completes_restart(world, index),
            FailureCode::JournalUnwritable => world.unwritable_runs.contains(run) && !self.completes_restart(world, index),
            FailureCode::LaneHalted => self.earlier_in_run(world, index).any(is_over),
            FailureCode::DependencyNotDone => self.items[index].after.iter().any(|guest| {
                let mut powers = self.power_steps(world, index, *guest).peekable();
                powers.peek().is_none() || powers.any(is_over)
            }),
            FailureCode::Superseded => {
                let newer = world.order.iter().copied().skip_while(|other| *other != index).skip(1);
                let is_newer = |other: usize| self.items[other].run != self.items[index].run && self.items[other].is_convergent;
                let mut newer = newer.filter(|other| self.items[*other].vmid == self.items[index].vmid);
                self.items[index].is_convergent && newer.any(is_newer)
            }
            _ => false,
        }
    }

    fn submit_plan(&self, mut world: ScheduleWorld) -> Result<ScheduleWorld, String> {
        let indices = self.item_range(world.crashes, world.submitted);
        world.submitted += 1;
        // Steps that were done before a crash are not planned again.
        let done = |index: &usize| {
            self.same_step_before(&world, *index).any(|other| world.operations[other] == OperationLife::Ended(OperationEnd::Done))
        };
        let fresh: Vec<usize> = indices.filter(|index| !done(index)).collect();
        for index in &fresh {
            world.operations[*index] = OperationLife::Waiting;
        }
        // A guest that is found stopped gets a plain start, not the second half of a restart.
        let is_second = |index: &usize| index.checked_sub(1).is_some_and(|first| fresh.contains(&first));
        let planned = |index: &usize| ScheduleItem {
            completes_restart: self.items[*index].completes_restart && is_second(index),
            ..self.items[*index].clone()
        };
        let items = fresh.iter().map(planned).collect();
        world.order.extend(fresh);
        self.feed_schedule(world, ScheduleEvent::Submit(items))
    }

    /// The journal accepts an intent, or refuses it because the guest is held by a person or by an operation with an unknown result.
    fn record_intent(&self, mut world: ScheduleWorld, index: usize) -> Result<ScheduleWorld, String> {
        let is_held = world.held == PersonHold::Held && self.setup.may_hold == Some(self.items[index].vmid.get());
        let is_taken = self.others_of_guest(&world, index).any(|(_, life)| life == OperationLife::Ended(OperationEnd::Held));
        if world.journal == Journal::Full {
            let world = self.fail_commit(world)?;
            self.end_operation(world, index, OperationEnd::NotRun)
        } else if is_held || is_taken {
            self.end_operation(world, index, OperationEnd::Refused)
        } else {
            world.operations[index] = OperationLife::Open;
            Ok(world)
        }
    }

    /// Releases the slot; later steps of the guest count against its new node.
    fn move_guest(&self, mut world: ScheduleWorld, index: usize) -> Result<ScheduleWorld, String> {
        let (_, node) = self.setup.may_move.ok_or("nothing moves")?;
        world.operations[index] = OperationLife::Parked;
        let behind = world.order.iter().copied().filter(|other| world.operations[*other].is_waiting() && self.may_move(&world, *other));
        for own in std::iter::once(index).chain(behind.collect::<Vec<_>>()) {
            world.moved_operations[own] = true;
        }
        self.feed_schedule(world, ScheduleEvent::Moved { id: self.items[index].id.clone(), node: NodeName::new(node).expect("a node") })
    }

    /// As in the run machine: open runs are stopped first, and then the schedule learns of the end.
    fn fail_commit(&self, mut world: ScheduleWorld) -> Result<ScheduleWorld, String> {
        world.journal = Journal::Full;
        let is_open = |index: &usize| {
            matches!(world.operations[*index], OperationLife::Waiting | OperationLife::Begun | OperationLife::Open | OperationLife::Parked)
        };
        let open = (0..self.items.len()).filter(is_open).map(|index| self.items[index].run.clone());
        world.unwritable_runs.extend(open.collect::<Vec<_>>());
        self.feed_schedule(world, ScheduleEvent::Stop { scope: StopScope::OpenRuns, code: FailureCode::JournalUnwritable })
    }

    fn end_operation(&self, mut world: ScheduleWorld, index: usize, end: OperationEnd) -> Result<ScheduleWorld, String> {
        let is_recovered = world.operations[index] == OperationLife::Reading;
        let is_known = world.journal != Journal::Full || world.operations[index] == OperationLife::Begun;
        if !is_known {
            world = self.fail_commit(world)?;
        }
        world.operations[index] = if is_known { OperationLife::Ended(end) } else { OperationLife::Left };
        // An end that the journal does not accept is not reported: the operation is held.
        let end = if is_known { end } else { OperationEnd::Held };
        if end != OperationEnd::Done && !is_recovered && self.setup.on_failure == OnFailure::Stop {
            world.stopped_runs.insert(self.items[index].run.clone());
        }
        self.feed_schedule(world, ScheduleEvent::Ended { id: self.items[index].id.clone(), end })
    }

    /// The next process starts with what the journal has: it recovers that first, then submits the plan again.
    fn crash_process(&self, mut world: ScheduleWorld) -> Result<ScheduleWorld, String> {
        let mut found = Vec::new();
        for (index, life) in world.operations.iter_mut().enumerate() {
            *life = match *life {
                OperationLife::Waiting | OperationLife::Begun => OperationLife::Gone,
                OperationLife::Open
                | OperationLife::Parked
                | OperationLife::Unsettled
                | OperationLife::Reading
                | OperationLife::Left
                | OperationLife::Ended(OperationEnd::Held) => OperationLife::Unsettled,
                other => other,
            };
            found.extend((*life == OperationLife::Unsettled).then_some(index));
        }
        world.crashes += 1;
        world.moved_operations.fill(false);
        (world.submitted, world.stopped, world.journal, world.order) = (0, false, Journal::Writable, found.clone());
        world.stopped_runs.clear();
        world.unwritable_runs.clear();
        world.schedule = self.new_schedule();
        let recovered = ScheduleEvent::Submit(found.iter().map(|index| self.items[*index].clone().into_recovered()).collect());
        match self.setup.planted {
            Some(PlantedScheduleBug::RecoversNothing) => self.submit_plan(world),
            Some(PlantedScheduleBug::RecoversLast) => self.submit_plan(world).and_then(|world| self.feed_schedule(world, recovered)),
            _ => self.feed_schedule(world, recovered).and_then(|world| self.submit_plan(world)),
        }
    }

    fn new_schedule(&self) -> ScheduleState {
        let limits = self.setup.limits;
        self.setup.planted.map_or_else(|| ScheduleState::new(limits), |planted| planted.new_state(limits))
    }

    /// Fails if an operation waits although nothing in flight could change that, or although it could start.
    fn check_nothing_forgotten(&self, world: &ScheduleWorld) -> Result<(), String> {
        let is_busy = world.operations.iter().any(|life| life.occupies_slot());
        if !is_busy && !world.schedule.is_idle() {
            return Err("the schedule waits forever".into());
        }
        let waits_for_slot = |life: OperationLife| life.is_waiting() || life == OperationLife::Parked;
        for index in (0..self.items.len()).filter(|index| waits_for_slot(world.operations[*index])) {
            if !is_busy {
                return Err(format!("{} is forgotten", self.items[index].id));
            }
            let (on_node, all) = self.in_flight_counts(world, index);
            let has_room = on_node < self.setup.limits.per_node as usize && all < self.setup.limits.overall as usize;
            if has_room && (world.operations[index] == OperationLife::Parked || self.check_begin_rules(world, index).is_ok()) {
                return Err(format!("{} waits although it could start", self.items[index].id));
            }
        }
        Ok(())
    }

    /// Events about operations that are not in flight change nothing.
    fn check_unexpected_events(&self, world: &ScheduleWorld) -> Result<(), String> {
        let is_believed = |event: ScheduleEvent| {
            let (after, commands) = step(world.schedule.clone(), event);
            after != world.schedule || !commands.is_empty()
        };
        let elsewhere = NodeName::new("pve9").expect("a node");
        let move_event = |index: usize| ScheduleEvent::Moved { id: self.items[index].id.clone(), node: elsewhere.clone() };
        if let Some(index) = world
            .order
            .iter()
            .copied()
            .find(|index| world.operations[*index] == OperationLife::Parked)
            .filter(|own| is_believed(move_event(*own)))
        {
            return Err(format!("{} moved while it waited for a slot, and the schedule accepted that", self.items[index].id));
        }
        let Some(index) = world.order.iter().copied().find(|index| !world.operations[*index].is_in_flight()) else { return Ok(()) };
        let id = self.items[index].id.clone();
        if is_believed(ScheduleEvent::Ended { id: id.clone(), end: OperationEnd::Failed }) || is_believed(move_event(index)) {
            return Err(format!("{id} ended or moved while it was {:?}, and the schedule accepted that", world.operations[index]));
        }
        Ok(())
    }
}

fn with_run(run: &str, item: &ScheduleItem) -> ScheduleItem {
    let id = OperationId::new(&format!("{run}-{}", item.id)).expect("an id");
    ScheduleItem { id, run: RunId::new(run).expect("an id"), ..item.clone() }
}

impl SearchModel for ScheduleModel {
    type World = ScheduleWorld;
    type Action = ScheduleAction;

    fn initial_world(&self) -> ScheduleWorld {
        ScheduleWorld {
            operations: vec![OperationLife::Absent; self.items.len()],
            moved_operations: vec![false; self.items.len()],
            order: Vec::new(),
            submitted: 0,
            crashes: 0,
            stopped: false,
            stopped_runs: BTreeSet::new(),
            unwritable_runs: BTreeSet::new(),
            journal: Journal::Writable,
            held: PersonHold::NeverHeld,
            schedule: self.new_schedule(),
        }
    }

    fn actions(&self, world: &ScheduleWorld) -> Vec<ScheduleAction> {
        if world.submitted == 0 {
            return vec![ScheduleAction::Submit];
        }
        let SearchSetup { plans, ends, may_drain, may_hold, may_lose_journal, crashes_max, .. } = &self.setup;
        let mut actions = Vec::new();
        for (index, life) in world.operations.iter().enumerate() {
            match life {
                OperationLife::Begun => {
                    actions.push(ScheduleAction::Intent(index));
                    actions.extend((*may_lose_journal && world.journal == Journal::Writable).then_some(ScheduleAction::LoseJournal(index)));
                }
                OperationLife::Open | OperationLife::Reading => {
                    actions.extend(ends.iter().map(|end| ScheduleAction::End(index, *end)));
                    actions.extend((*life == OperationLife::Open && self.may_move(world, index)).then_some(ScheduleAction::Moved(index)));
                }
                _ => {}
            }
        }
        actions.extend((world.submitted < plans.len()).then_some(ScheduleAction::Submit));
        actions.extend((world.journal == Journal::Full).then_some(ScheduleAction::FindRoom));
        // Events after everything has ended change nothing that is checked here.
        if !world.schedule.is_idle() {
            actions.extend((*may_drain && !world.stopped).then_some(ScheduleAction::Drain));
            actions.extend((may_hold.is_some() && world.held == PersonHold::NeverHeld).then_some(ScheduleAction::Hold));
            actions.extend((world.held == PersonHold::Held).then_some(ScheduleAction::Release));
            actions.extend((world.crashes < *crashes_max).then_some(ScheduleAction::Crash));
        }
        actions
    }

    fn apply_action(&self, world: &ScheduleWorld, action: &ScheduleAction) -> Result<ScheduleWorld, String> {
        let mut world = world.clone();
        match *action {
            ScheduleAction::Submit => self.submit_plan(world),
            ScheduleAction::Intent(index) => self.record_intent(world, index),
            ScheduleAction::LoseJournal(index) => {
                let world = self.fail_commit(world)?;
                self.end_operation(world, index, OperationEnd::NotRun)
            }
            ScheduleAction::FindRoom => Ok(ScheduleWorld { journal: Journal::WritableAgain, ..world }),
            ScheduleAction::End(index, end) => self.end_operation(world, index, end),
            ScheduleAction::Moved(index) => self.move_guest(world, index),
            ScheduleAction::Drain => {
                world.stopped = true;
                self.feed_schedule(world, stop(FailureCode::RunStopped))
            }
            ScheduleAction::Hold => Ok(ScheduleWorld { held: PersonHold::Held, ..world }),
            ScheduleAction::Release => Ok(ScheduleWorld { held: PersonHold::Released, ..world }),
            ScheduleAction::Crash => self.crash_process(world),
        }
    }

    fn check(&self, world: &ScheduleWorld) -> Result<(), String> {
        self.check_nothing_forgotten(world)?;
        self.check_unexpected_events(world)
    }

    fn progress(&self, world: &ScheduleWorld) -> (u64, u64) {
        let lives: u64 = world.operations.iter().map(|life| life.rank()).sum();
        // More than an operation falls back when it waits for a slot.
        let moves = 3 * world.moved_operations.iter().filter(|is_elsewhere| **is_elsewhere).count() as u64;
        let flags = world.submitted as u64 + u64::from(world.stopped) + world.journal as u64 + world.held as u64;
        let stopped_runs = (world.stopped_runs.len() + world.unwritable_runs.len()) as u64;
        (world.crashes as u64, lives + moves + flags + stopped_runs)
    }
}

/// All orders keep all rules, and the search visits at least this many worlds: a small search proves little.
#[track_caller]
fn check_all_orders(name: &str, setup: SearchSetup, worlds_min: usize) {
    match setup.explore_all() {
        Ok(explored) => {
            println!("{name}: {explored:?}");
            assert!(explored.worlds >= worlds_min && explored.ends > 0, "{name}: {explored:?}, fewer than {worlds_min}");
        }
        Err(BrokenRule { rule, path }) => panic!("{name}: {rule}, by {path:#?}"),
    }
}

#[test]
fn g12_no_order_of_three_operations_on_two_guests_overlaps() {
    check_all_orders("everything", SearchSetup::all_faults(), 2_500);
}

#[test]
fn no_order_breaks_the_limits_or_leaves_room_unused() {
    check_all_orders("limited", SearchSetup::with_tight_limits(), 1_200);
}

#[test]
fn no_order_loses_a_newer_plan_or_a_one_shot_request() {
    check_all_orders("newer", SearchSetup::with_newer_plan(), 5_000);
}

#[test]
fn s16_no_order_begins_anything_after_a_stopping_failure() {
    check_all_orders("wave", SearchSetup::stop_on_failure(), 2_000);
}

#[test]
fn no_order_leaves_an_open_operation_unrecovered() {
    check_all_orders("recovery", SearchSetup::recovery_setup(), 1_000);
}

#[test]
fn g12_no_order_of_guest_moves_overlaps_or_exceeds_limits() {
    check_all_orders("moved", SearchSetup::moved_guest(), 500);
}

#[test]
fn no_stop_leaves_a_restarting_guest_down() {
    check_all_orders("restart", SearchSetup::restart_in_two_steps(), 1_000);
}

#[test]
fn g12_no_two_crashes_make_operations_of_a_guest_overlap() {
    check_all_orders("crashes", SearchSetup::two_crashes(), 80_000);
}

#[test]
fn g12_no_order_of_five_operations_on_four_guests_overlaps() {
    check_all_orders("large", SearchSetup::large_plan(), 100_000);
}
