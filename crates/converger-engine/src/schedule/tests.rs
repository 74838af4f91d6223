//! Stories about schedules: what is submitted, how operations end, and what is started or never run because of that.

use converger_core::testing::Rng;

use super::*;
use crate::testing;

mod exhaustive_search;
mod makespan;
mod planted_bugs;

fn test_vmid(number: u32) -> Vmid {
    Vmid::new(u64::from(number)).expect("an id")
}

/// A step with the id `<run>-<vmid>-<number>`.
fn schedule_item(run: &str, guest: u32, number: u32) -> ScheduleItem {
    ScheduleItem {
        second: None,
        id: OperationId::new(&format!("{run}-{guest}-{number}")).expect("an id"),
        run: RunId::new(run).expect("an id"),
        vmid: test_vmid(guest),
        node: NodeName::new("pve1").expect("a node"),
        after: Box::new([]),
        is_power: true,
        is_convergent: true,
        completes_restart: false,
        is_recovered: false,
        on_failure: OnFailure::Continue,
    }
}

fn fail_fast(item: ScheduleItem) -> ScheduleItem {
    ScheduleItem { on_failure: OnFailure::Stop, ..item }
}

fn stop(code: FailureCode) -> ScheduleEvent {
    ScheduleEvent::Stop { scope: StopScope::Everything, code }
}

fn on_node(node: &str, item: ScheduleItem) -> ScheduleItem {
    ScheduleItem { node: NodeName::new(node).expect("a node"), ..item }
}

fn after_guests(guests: &[u32], item: ScheduleItem) -> ScheduleItem {
    ScheduleItem { after: guests.iter().copied().map(test_vmid).collect(), ..item }
}

fn render_command(command: &ScheduleCommand) -> String {
    match command {
        ScheduleCommand::Begin(id) => format!("begin {id}"),
        ScheduleCommand::Resume(id) => format!("resume {id}"),
        ScheduleCommand::NotRun { id, code, .. } => format!("{id} {}", code.word()),
    }
}

/// A schedule for one story.
struct ScheduleStory(Option<ScheduleState>);

impl ScheduleStory {
    fn new(per_node: u32, overall: u32) -> Self {
        Self(Some(ScheduleState::new(ConcurrencyLimits { per_node, overall })))
    }

    #[track_caller]
    fn check(&mut self, event: ScheduleEvent, expected: &[&str]) -> &mut Self {
        let (state, commands) = step(self.0.take().expect("a state"), event.clone());
        self.0 = Some(state);
        assert_eq!(commands.iter().map(render_command).collect::<Vec<_>>(), expected, "{event:?}");
        self
    }

    #[track_caller]
    fn check_submit(&mut self, items: &[ScheduleItem], expected: &[&str]) -> &mut Self {
        self.check(ScheduleEvent::Submit(items.to_vec()), expected)
    }

    #[track_caller]
    fn check_end(&mut self, id: &str, end: OperationEnd, expected: &[&str]) -> &mut Self {
        self.check(ScheduleEvent::Ended { id: OperationId::new(id).expect("an id"), end }, expected)
    }

    #[track_caller]
    fn check_idle(&self) {
        assert!(self.0.as_ref().expect("a state").is_idle());
    }
}

#[test]
fn g12_guest_queue_is_fifo_and_serial() {
    let mut story = ScheduleStory::new(9, 9);
    story.check_submit(
        &[schedule_item("r", 100, 0), schedule_item("r", 101, 0), schedule_item("r", 100, 1)],
        &["begin r-100-0", "begin r-101-0"],
    );
    story.check_end("r-101-0", OperationEnd::Done, &[]);
    story.check_end("r-100-0", OperationEnd::Done, &["begin r-100-1"]);
    story.check_end("r-100-1", OperationEnd::Done, &[]).check_idle();
}

#[test]
fn limits_hold_per_node_and_overall() {
    let mut story = ScheduleStory::new(2, 3);
    let items = [
        schedule_item("r", 100, 0),
        schedule_item("r", 101, 0),
        schedule_item("r", 102, 0),
        on_node("pve2", schedule_item("r", 200, 0)),
        on_node("pve2", schedule_item("r", 201, 0)),
    ];
    story.check_submit(&items, &["begin r-100-0", "begin r-101-0", "begin r-200-0"]);
    story.check_end("r-200-0", OperationEnd::Done, &["begin r-201-0"]);
    story.check_end("r-100-0", OperationEnd::Done, &["begin r-102-0"]);
}

#[test]
fn new_limits_hold_for_operations_that_begin_later() {
    let mut story = ScheduleStory::new(3, 9);
    let limit = |per_node| ScheduleEvent::SetLimits(ConcurrencyLimits { per_node, overall: 9 });
    let items: Vec<ScheduleItem> = (100..106).map(|vmid| schedule_item("r", vmid, 0)).collect();
    story.check_submit(&items, &["begin r-100-0", "begin r-101-0", "begin r-102-0"]);
    story.check(limit(1), &[]);
    story.check_end("r-100-0", OperationEnd::Done, &[]);
    story.check_end("r-101-0", OperationEnd::Done, &[]);
    story.check_end("r-102-0", OperationEnd::Done, &["begin r-103-0"]);
    story.check(limit(0), &[]);
    story.check(limit(2), &["begin r-104-0"]);
}

fn moved_event(id: &str, node: &str) -> ScheduleEvent {
    ScheduleEvent::Moved { id: OperationId::new(id).expect("an id"), node: NodeName::new(node).expect("a node") }
}

/// A node was emptied after planning: all its guests are on the other node, whose limit still holds.
#[test]
fn counts_a_moved_guest_on_its_new_node() {
    let mut story = ScheduleStory::new(1, 9);
    let items = [
        schedule_item("r", 100, 0),
        schedule_item("r", 101, 0),
        on_node("pve2", schedule_item("r", 200, 0)),
        on_node("pve2", schedule_item("r", 201, 0)),
    ];
    story.check_submit(&items, &["begin r-100-0", "begin r-200-0"]);
    story.check(moved_event("r-100-0", "pve2"), &["begin r-101-0"]);
    story.check(moved_event("r-101-0", "pve2"), &[]);
    story.check_end("r-200-0", OperationEnd::Done, &["resume r-100-0"]);
    story.check_end("r-100-0", OperationEnd::Done, &["resume r-101-0"]);
    story.check_end("r-101-0", OperationEnd::Done, &["begin r-201-0"]);
    story.check_end("r-201-0", OperationEnd::Done, &[]).check_idle();
}

/// Its intent is in the journal: it is not dropped, its guest gets no other operation, and it continues to its end.
#[test]
fn parked_operation_stays_in_flight() {
    let mut story = ScheduleStory::new(1, 9);
    let items = [
        schedule_item("r", 100, 0),
        schedule_item("r", 100, 1),
        on_node("pve2", schedule_item("r", 200, 0)),
        after_guests(&[100], on_node("pve3", schedule_item("r", 300, 0))),
    ];
    story.check_submit(&items, &["begin r-100-0", "begin r-200-0"]);
    story.check(moved_event("r-100-0", "pve2"), &[]);
    story.check(moved_event("r-100-0", "pve3"), &[]);
    story.check_submit(&[schedule_item("s", 100, 0)], &["r-100-1 superseded", "r-300-0 dependency-not-done"]);
    story.check(stop(FailureCode::RunStopped), &["s-100-0 run-stopped"]);
    story.check_end("r-200-0", OperationEnd::Done, &["resume r-100-0"]);
    story.check_end("r-100-0", OperationEnd::Failed, &[]).check_idle();
}

#[test]
fn resumes_at_once_on_a_free_node_and_moves_only_begun_operations() {
    let mut story = ScheduleStory::new(1, 9);
    story.check_submit(&[schedule_item("r", 100, 0), schedule_item("r", 100, 1), schedule_item("r", 101, 0)], &["begin r-100-0"]);
    story.check(moved_event("r-101-0", "pve2"), &[]);
    story.check(moved_event("r-100-0", "pve1"), &[]);
    story.check(moved_event("r-100-0", "pve2"), &["resume r-100-0", "begin r-101-0"]);
    // The next step of the guest counts against its new node, which has a free slot although the old one has none.
    story.check_end("r-100-0", OperationEnd::Done, &["begin r-100-1"]);
}

#[test]
fn zero_limit_counts_as_one() {
    let mut story = ScheduleStory::new(0, 0);
    story.check_submit(&[schedule_item("r", 100, 0), schedule_item("r", 101, 0)], &["begin r-100-0"]);
    story.check_end("r-100-0", OperationEnd::Done, &["begin r-101-0"]);
}

#[test]
fn l4_stuck_guest_blocks_only_itself_and_its_dependents() {
    let mut story = ScheduleStory::new(9, 9);
    let items = [
        schedule_item("r", 100, 0),
        schedule_item("r", 100, 1),
        after_guests(&[100], schedule_item("r", 101, 0)),
        schedule_item("r", 102, 0),
        schedule_item("r", 102, 1),
    ];
    story.check_submit(&items, &["begin r-100-0", "begin r-102-0"]);
    story.check_end("r-102-0", OperationEnd::Done, &["begin r-102-1"]);
    story.check_end("r-102-1", OperationEnd::Done, &[]);
    assert!(!story.0.as_ref().expect("a state").is_idle(), "guest 100 is still in flight");
}

#[test]
fn dependent_begins_after_all_power_steps_of_its_dependencies() {
    let config = ScheduleItem { is_power: false, ..schedule_item("r", 100, 0) };
    let items = [
        config,
        schedule_item("r", 100, 1),
        schedule_item("r", 100, 2),
        after_guests(&[100, 102], schedule_item("r", 101, 0)),
        schedule_item("r", 102, 0),
    ];
    let mut story = ScheduleStory::new(9, 9);
    story.check_submit(&items, &["begin r-100-0", "begin r-102-0"]);
    story.check_end("r-100-0", OperationEnd::Done, &["begin r-100-1"]);
    story.check_end("r-102-0", OperationEnd::Done, &[]);
    story.check_end("r-100-1", OperationEnd::Done, &["begin r-100-2"]);
    story.check_end("r-100-2", OperationEnd::Done, &["begin r-101-0"]);
}

#[test]
fn s16_begins_no_dependent_of_an_unsuccessful_step() {
    for end in [OperationEnd::Failed, OperationEnd::Refused, OperationEnd::Held, OperationEnd::NotRun] {
        let items = [
            schedule_item("r", 100, 0),
            schedule_item("r", 100, 1),
            after_guests(&[100], schedule_item("r", 101, 0)),
            schedule_item("r", 101, 1),
            after_guests(&[101], schedule_item("r", 102, 0)),
            schedule_item("r", 103, 0),
        ];
        let mut story = ScheduleStory::new(1, 1);
        story.check_submit(&items, &["begin r-100-0"]);
        let halted = ["r-100-1 lane-halted", "r-101-0 dependency-not-done", "r-101-1 lane-halted", "r-102-0 dependency-not-done"];
        story.check_end("r-100-0", end, &[&halted[..], &["begin r-103-0"]].concat());
        story.check_end("r-103-0", OperationEnd::Done, &[]).check_idle();
    }
}

#[test]
fn does_not_run_a_step_whose_dependency_was_left_out() {
    let mut story = ScheduleStory::new(9, 9);
    let config = ScheduleItem { is_power: false, ..schedule_item("r", 100, 0) };
    let items = [config, after_guests(&[100], schedule_item("r", 101, 0)), schedule_item("r", 101, 1)];
    story.check_submit(&items, &["r-101-0 dependency-not-done", "r-101-1 lane-halted", "begin r-100-0"]);
}

#[test]
fn stops_at_the_first_failure_if_requested() {
    let mut story = ScheduleStory::new(2, 2);
    let items =
        [schedule_item("r", 100, 0), schedule_item("r", 101, 0), schedule_item("r", 102, 0), schedule_item("r", 100, 1)].map(fail_fast);
    story.check_submit(&items, &["begin r-100-0", "begin r-101-0"]);
    story.check_end("r-100-0", OperationEnd::Refused, &["r-100-1 lane-halted", "r-102-0 run-stopped"]);
    story.check_submit(&[schedule_item("r", 103, 0)], &["r-103-0 run-stopped"]);
    story.check_end("r-101-0", OperationEnd::Done, &[]).check_idle();
}

#[test]
fn fail_fast_of_one_run_does_not_stop_another() {
    let mut story = ScheduleStory::new(1, 2);
    story.check_submit(&[schedule_item("r", 100, 0), schedule_item("r", 101, 0)].map(fail_fast), &["begin r-100-0"]);
    story.check_submit(&[schedule_item("s", 102, 0), on_node("pve2", schedule_item("s", 103, 0))], &["begin s-103-0"]);
    story.check_end("r-100-0", OperationEnd::Failed, &["r-101-0 run-stopped", "begin s-102-0"]);
    story.check_submit(&[on_node("pve3", schedule_item("t", 104, 0))], &[]);
    story.check_end("s-103-0", OperationEnd::Failed, &["begin t-104-0"]);
    story.check_end("s-102-0", OperationEnd::Done, &[]);
    story.check_end("t-104-0", OperationEnd::Done, &[]).check_idle();
}

#[test]
fn stop_of_one_run_does_not_stop_another_and_stop_of_all_open_runs_does_not_stop_a_later_one() {
    let scoped = |scope| ScheduleEvent::Stop { scope, code: FailureCode::JournalUnwritable };
    let run = |name: &str| StopScope::Run(RunId::new(name).expect("an id"));
    let mut story = ScheduleStory::new(1, 1);
    story.check_submit(&[schedule_item("r", 100, 0), schedule_item("r", 101, 0)], &["begin r-100-0"]);
    story.check_submit(&[schedule_item("s", 102, 0), schedule_item("s", 103, 0)], &[]);
    story.check(scoped(run("r")), &["r-101-0 journal-unwritable"]);
    story.check(scoped(run("nobody")), &[]);
    story.check_submit(&[schedule_item("r", 104, 0)], &["r-104-0 journal-unwritable"]);
    story.check_end("r-100-0", OperationEnd::Done, &["begin s-102-0"]);
    story.check(scoped(StopScope::OpenRuns), &["s-103-0 journal-unwritable"]);
    story.check_submit(&[schedule_item("t", 104, 0)], &[]);
    story.check_end("s-102-0", OperationEnd::Done, &["begin t-104-0"]);
    story.check_end("t-104-0", OperationEnd::Done, &[]).check_idle();
}

/// An operation leaves nothing behind: nodes, guests and runs that come and go are forgotten.
#[test]
fn schedule_forgets_runs_that_ended() {
    let mut state = ScheduleState::new(ConcurrencyLimits::default());
    for number in 0..1_000 {
        let (run, node) = (format!("r{number}"), format!("pve{}", number % 50));
        let first = on_node(&node, schedule_item(&run, 100 + number, 0));
        let new_node = NodeName::new(&format!("pve{}", number % 50 + 1)).expect("a node");
        let items = vec![
            first.clone(),
            on_node(&node, schedule_item(&run, 100 + number, 1)),
            fail_fast(after_guests(&[100 + number], schedule_item(&run, 5_000 + number, 0))),
        ];
        let ids: Vec<OperationId> = items.iter().map(|item| item.id.clone()).collect();
        state = step(state, ScheduleEvent::Submit(items)).0;
        assert!(state.entry_count() > 0);
        state = step(state, ScheduleEvent::Moved { id: first.id, node: new_node }).0;
        let end = if number % 3 == 0 { OperationEnd::Failed } else { OperationEnd::Done };
        for id in ids {
            state = step(state, ScheduleEvent::Ended { id, end }).0;
        }
        assert_eq!((state.is_idle(), state.entry_count(), state.in_flight_count()), (true, 0, 0), "run {number}");
    }
}

#[test]
fn drain_lets_operations_in_flight_finish() {
    let mut story = ScheduleStory::new(1, 1);
    story.check_submit(
        &[schedule_item("r", 100, 0), schedule_item("r", 100, 1), after_guests(&[100], schedule_item("r", 101, 0))],
        &["begin r-100-0"],
    );
    story.check(stop(FailureCode::JournalUnwritable), &["r-100-1 journal-unwritable", "r-101-0 journal-unwritable"]);
    story.check(stop(FailureCode::RunStopped), &[]);
    story.check_submit(&[schedule_item("s", 102, 0)], &["s-102-0 journal-unwritable"]);
    story.check_end("r-100-0", OperationEnd::Done, &[]).check_idle();
}

#[test]
fn newer_plan_supersedes_queued_steps() {
    let mut story = ScheduleStory::new(9, 9);
    let once = ScheduleItem { is_convergent: false, ..schedule_item("o", 100, 0) };
    story.check_submit(
        &[schedule_item("r", 100, 0), schedule_item("r", 100, 1), schedule_item("r", 101, 0)],
        &["begin r-100-0", "begin r-101-0"],
    );
    story.check_submit(&[once], &[]);
    story.check_submit(&[schedule_item("s", 100, 0), schedule_item("s", 100, 1)], &["r-100-1 superseded"]);
    story.check_end("r-100-0", OperationEnd::Failed, &["begin o-100-0"]);
    story.check_end("o-100-0", OperationEnd::Done, &["begin s-100-0"]);
    story.check_end("s-100-0", OperationEnd::Done, &["begin s-100-1"]);
}

#[test]
fn one_shot_request_supersedes_nothing() {
    let mut story = ScheduleStory::new(9, 9);
    story.check_submit(&[schedule_item("r", 100, 0), schedule_item("r", 100, 1)], &["begin r-100-0"]);
    story.check_submit(&[ScheduleItem { is_convergent: false, ..schedule_item("o", 100, 0) }], &[]);
    story.check_end("r-100-0", OperationEnd::Done, &["begin r-100-1"]);
    story.check_end("r-100-1", OperationEnd::Done, &["begin o-100-0"]);
}

#[test]
fn s17_recovery_continues_after_stop_and_failure() {
    let recovered = |guest| fail_fast(schedule_item("old", guest, 0)).into_recovered();
    let mut story = ScheduleStory::new(1, 1);
    story.check_submit(&[recovered(100), recovered(101), recovered(102)], &["begin old-100-0"]);
    story.check_submit(&[schedule_item("r", 103, 0)], &[]);
    story.check_end("old-100-0", OperationEnd::Held, &["begin old-101-0"]);
    story.check(stop(FailureCode::RunStopped), &["r-103-0 run-stopped"]);
    story.check_end("old-101-0", OperationEnd::Failed, &["begin old-102-0"]);
    story.check_submit(&[recovered(104), schedule_item("r", 105, 0)], &["r-105-0 run-stopped"]);
    story.check_end("old-102-0", OperationEnd::Done, &["begin old-104-0"]);
}

/// A guest that was stopped for a restart is started again.
#[test]
fn stop_lets_a_begun_restart_complete() {
    let second = |guest| ScheduleItem { completes_restart: true, ..schedule_item("r", guest, 1) };
    let mut story = ScheduleStory::new(1, 1);
    story.check_submit(&[schedule_item("r", 100, 0), second(100), schedule_item("r", 101, 0), second(101)], &["begin r-100-0"]);
    story.check(stop(FailureCode::RunStopped), &["r-101-0 run-stopped", "r-101-1 run-stopped"]);
    story.check_end("r-100-0", OperationEnd::Done, &["begin r-100-1"]);
    story.check_end("r-100-1", OperationEnd::Done, &[]).check_idle();
    let mut story = ScheduleStory::new(1, 1);
    story.check_submit(&[schedule_item("r", 100, 0), second(100)], &["begin r-100-0"]);
    story.check(stop(FailureCode::RunStopped), &[]);
    story.check_end("r-100-0", OperationEnd::Failed, &["r-100-1 lane-halted"]).check_idle();
}

#[test]
fn recovered_operation_comes_first_in_its_guest_queue() {
    let mut story = ScheduleStory::new(9, 9);
    let (operation, _) = testing::last_step_for("start");
    story.check_submit(&[ScheduleItem::for_recovered(&operation)], &["begin op-100-0"]);
    story.check_submit(&[schedule_item("r", 100, 0), schedule_item("r", 101, 0)], &["begin r-101-0"]);
    story.check_end("op-100-0", OperationEnd::Failed, &["begin r-100-0"]);
}

#[test]
fn s23_queue_is_bounded() {
    let many: Vec<ScheduleItem> =
        (0..u32::try_from(QUEUE_MAX).expect("small")).map(|number| schedule_item("r", 1000 + number, 0)).collect();
    let mut story = ScheduleStory::new(1, 1);
    story.check_submit(&many, &["begin r-1000-0"]);
    story.check_submit(&[schedule_item("s", 100, 0), schedule_item("s", 101, 0)], &["s-100-0 queue-full", "s-101-0 queue-full"]);
    story.check_end("r-1000-0", OperationEnd::Done, &["begin r-1001-0"]);
    story.check_submit(&[schedule_item("s", 100, 0)], &[]);
}

#[test]
fn drops_a_very_long_dependency_chain_without_recursion() {
    let count = 20_000;
    let chain = (0..count).map(|number| {
        if number == 0 { schedule_item("r", 1000, 0) } else { after_guests(&[999 + number], schedule_item("r", 1000 + number, 0)) }
    });
    let (state, _) = step(ScheduleState::new(ConcurrencyLimits::default()), ScheduleEvent::Submit(chain.collect()));
    let (state, commands) = step(state, ScheduleEvent::Ended { id: schedule_item("r", 1000, 0).id, end: OperationEnd::Failed });
    assert_eq!(commands.len(), usize::try_from(count).expect("small") - 1);
    assert!(state.is_idle());
}

#[test]
fn ignores_ends_of_idle_operations_and_duplicate_submissions() {
    let mut story = ScheduleStory::new(1, 1);
    story.check_submit(&[schedule_item("r", 100, 0), schedule_item("r", 100, 0), schedule_item("r", 101, 0)], &["begin r-100-0"]);
    story.check_submit(&[schedule_item("r", 100, 0), schedule_item("r", 101, 0)], &[]);
    story.check_end("r-101-0", OperationEnd::Done, &[]);
    story.check_end("nobody", OperationEnd::Done, &[]);
    story.check_end("r-100-0", OperationEnd::Done, &["begin r-101-0"]);
    story.check_end("r-100-0", OperationEnd::Done, &[]);
    story.check_end("r-101-0", OperationEnd::Done, &[]).check_idle();
}

/// What a random schedule has started, and what must hold.
#[derive(Default)]
struct ScheduleInvariants {
    in_flight: BTreeMap<OperationId, (Vmid, NodeName)>,
    /// Started, and waiting for a slot on another node.
    parked: BTreeMap<OperationId, Vmid>,
    begun: BTreeSet<OperationId>,
    closed: BTreeSet<OperationId>,
    done: BTreeSet<OperationId>,
    items: BTreeMap<OperationId, ScheduleItem>,
}

impl ScheduleInvariants {
    fn check_commands(&mut self, commands: &[ScheduleCommand], state: &ScheduleState, limits: ConcurrencyLimits) {
        for command in commands {
            match command {
                ScheduleCommand::Begin(id) => self.check_begin(id, state.node_of(id).expect("a node")),
                ScheduleCommand::Resume(id) => {
                    let vmid = self.parked.remove(id).unwrap_or_else(|| panic!("{id} did not wait for a slot"));
                    self.in_flight.insert(id.clone(), (vmid, state.node_of(id).expect("a node").clone()));
                }
                ScheduleCommand::NotRun { id, .. } => {
                    assert!(self.closed.insert(id.clone()) && !self.begun.contains(id), "{id} has ended before")
                }
            }
        }
        assert!(self.in_flight.len() <= limits.overall as usize);
        for (_, node) in self.in_flight.values() {
            let on_node = self.in_flight.values().filter(|(_, other)| other == node).count();
            assert!(on_node <= limits.per_node as usize, "{on_node} on {node:?}");
        }
    }

    fn end_random_operation(&mut self, rng: &mut Rng) -> Option<ScheduleEvent> {
        let in_flight: Vec<OperationId> = self.in_flight.keys().cloned().collect();
        let id = rng.pick(&in_flight)?.clone();
        let end = if rng.with_chance(80) { OperationEnd::Done } else { *rng.pick(&OperationEnd::ALL).expect("ends") };
        self.in_flight.remove(&id);
        self.closed.insert(id.clone());
        if end == OperationEnd::Done {
            self.done.insert(id.clone());
        }
        Some(ScheduleEvent::Ended { id, end })
    }

    /// The guest of a random operation is found on another node.
    fn move_random_operation(&mut self, rng: &mut Rng) -> Option<ScheduleEvent> {
        let in_flight: Vec<OperationId> = self.in_flight.keys().cloned().collect();
        let id = rng.pick(&in_flight)?.clone();
        let node = NodeName::new(rng.pick_word(&["pve1", "pve2", "pve3"])).expect("a node");
        if self.in_flight[&id].1 != node {
            let (vmid, _) = self.in_flight.remove(&id)?;
            self.parked.insert(id.clone(), vmid);
        }
        Some(ScheduleEvent::Moved { id, node })
    }

    fn check_begin(&mut self, id: &OperationId, node: &NodeName) {
        let item = &self.items[id];
        assert!(self.begun.insert(id.clone()) && !self.closed.contains(id), "{id} starts twice");
        let mut others = self.in_flight.values().map(|(vmid, _)| vmid).chain(self.parked.values());
        assert!(others.all(|vmid| *vmid != item.vmid), "two operations of guest {}", item.vmid);
        for wait in &item.after {
            let mut powers = self.items.values().filter(|own| own.vmid == *wait && own.run == item.run && own.is_power);
            assert!(powers.all(|own| self.done.contains(&own.id)), "{id} starts before guest {wait} is done");
        }
        self.in_flight.insert(id.clone(), (item.vmid, node.clone()));
    }
}

/// A plan for a few guests in which later ones depend on earlier ones.
fn random_plan(rng: &mut Rng, run: &str) -> Vec<ScheduleItem> {
    let mut items = Vec::new();
    for guest in 0..1 + rng.below(8) {
        let guest = 100 + u32::try_from(guest).expect("small");
        for number in 0..1 + rng.below(3) {
            let mut item = schedule_item(run, guest, u32::try_from(number).expect("small"));
            item.node = NodeName::new(rng.pick_word(&["pve1", "pve2", "pve3"])).expect("a node");
            item.is_power = rng.with_chance(70);
            item.is_convergent = rng.with_chance(80);
            if guest > 100 && rng.one_in(3) {
                item.after = [test_vmid(100 + u32::try_from(rng.below(u64::from(guest - 100))).expect("small"))].into();
            }
            items.push(item);
        }
    }
    items
}

#[test]
fn g12_operations_of_a_guest_never_overlap_and_all_end() {
    for seed in 0..3000 {
        testing::check_seed(seed, run_random_schedule);
    }
}

fn run_random_schedule(rng: &mut Rng) {
    let below = |rng: &mut Rng, bound| 1 + u32::try_from(rng.below(bound)).expect("small");
    let limits = ConcurrencyLimits { per_node: below(rng, 3), overall: below(rng, 5) };
    let mut state = ScheduleState::new(limits);
    let mut witness = ScheduleInvariants::default();
    let mut runs = 0;
    for _ in 0..500 {
        let event = if runs == 0 || (runs < 3 && rng.one_in(10)) {
            runs += 1;
            let on_failure = if rng.one_in(5) { OnFailure::Stop } else { OnFailure::Continue };
            let plan: Vec<ScheduleItem> =
                random_plan(rng, &format!("r{runs}")).into_iter().map(|item| ScheduleItem { on_failure, ..item }).collect();
            witness.items.extend(plan.iter().map(|item| (item.id.clone(), item.clone())));
            ScheduleEvent::Submit(plan)
        } else if rng.one_in(100) {
            let run = RunId::new(&format!("r{runs}")).expect("an id");
            let scope = rng.pick(&[StopScope::Everything, StopScope::OpenRuns, StopScope::Run(run)]).expect("scopes").clone();
            ScheduleEvent::Stop { scope, code: FailureCode::RunStopped }
        } else if rng.one_in(6)
            && let Some(event) = witness.move_random_operation(rng)
        {
            event
        } else {
            let Some(event) = witness.end_random_operation(rng) else { break };
            event
        };
        let (next, commands) = step(state, event);
        state = next;
        witness.check_commands(&commands, &state, limits);
    }
    assert!(state.is_idle(), "an operation waits forever");
    assert_eq!(state.entry_count(), 0, "the schedule keeps entries of ended operations");
    assert_eq!(witness.closed.len(), witness.items.len(), "an operation was lost");
}

#[test]
fn the_same_events_give_the_same_commands() {
    let run = || {
        let mut rng = Rng::new(7);
        let (state, commands) =
            step(ScheduleState::new(ConcurrencyLimits { per_node: 2, overall: 3 }), ScheduleEvent::Submit(random_plan(&mut rng, "r")));
        (format!("{state:?}"), commands)
    };
    assert_eq!(run(), run());
}
