//! Stories of schedules: what is submitted, what ends how, and what is begun or never run because of it.

use converger_core::testing::Rng;

use super::*;
use crate::testing;

mod lanes;
mod planted;
mod speed;

fn vmid(number: u32) -> Vmid {
    Vmid::new(u64::from(number)).expect("an id")
}

/// A step called `<run>-<vmid>-<number>`.
fn item(run: &str, guest: u32, number: u32) -> Item {
    Item {
        id: OperationId::new(&format!("{run}-{guest}-{number}")).expect("an id"),
        run: RunId::new(run).expect("an id"),
        vmid: vmid(guest),
        node: NodeName::new("pve1").expect("a node"),
        wait: Box::new([]),
        is_power: true,
        is_convergent: true,
        completes: false,
        is_recovered: false,
        on_failure: OnFailure::GoOn,
    }
}

fn fail_fast(item: Item) -> Item {
    Item { on_failure: OnFailure::Stop, ..item }
}

fn stop(code: Code) -> Event {
    Event::Stop { scope: StopScope::Everything, code }
}

fn on(node: &str, item: Item) -> Item {
    Item { node: NodeName::new(node).expect("a node"), ..item }
}

fn after(guests: &[u32], item: Item) -> Item {
    Item { wait: guests.iter().copied().map(vmid).collect(), ..item }
}

fn shown(command: &Command) -> String {
    match command {
        Command::Begin(id) => format!("begin {id}"),
        Command::Resume(id) => format!("resume {id}"),
        Command::NotRun { id, code, .. } => format!("{id} {}", code.word()),
    }
}

/// A schedule that is told a story.
struct Story(Option<State>);

impl Story {
    fn new(per_node: u32, overall: u32) -> Self {
        Self(Some(State::new(Limits { per_node, overall })))
    }

    #[track_caller]
    fn check(&mut self, event: Event, expected: &[&str]) -> &mut Self {
        let (state, commands) = step(self.0.take().expect("a state"), event.clone());
        self.0 = Some(state);
        assert_eq!(commands.iter().map(shown).collect::<Vec<_>>(), expected, "{event:?}");
        self
    }

    #[track_caller]
    fn check_submit(&mut self, items: &[Item], expected: &[&str]) -> &mut Self {
        self.check(Event::Submit(items.to_vec()), expected)
    }

    #[track_caller]
    fn check_end(&mut self, id: &str, end: End, expected: &[&str]) -> &mut Self {
        self.check(Event::Ended { id: OperationId::new(id).expect("an id"), end }, expected)
    }

    #[track_caller]
    fn check_idle(&self) {
        assert!(self.0.as_ref().expect("a state").is_idle());
    }
}

#[test]
fn g12_a_lane_is_first_in_first_out_and_one_at_a_time() {
    let mut story = Story::new(9, 9);
    story.check_submit(&[item("r", 100, 0), item("r", 101, 0), item("r", 100, 1)], &["begin r-100-0", "begin r-101-0"]);
    story.check_end("r-101-0", End::Done, &[]);
    story.check_end("r-100-0", End::Done, &["begin r-100-1"]);
    story.check_end("r-100-1", End::Done, &[]).check_idle();
}

#[test]
fn limits_hold_per_node_and_overall() {
    let mut story = Story::new(2, 3);
    let items = [item("r", 100, 0), item("r", 101, 0), item("r", 102, 0), on("pve2", item("r", 200, 0)), on("pve2", item("r", 201, 0))];
    story.check_submit(&items, &["begin r-100-0", "begin r-101-0", "begin r-200-0"]);
    story.check_end("r-200-0", End::Done, &["begin r-201-0"]);
    story.check_end("r-100-0", End::Done, &["begin r-102-0"]);
}

fn moved(id: &str, node: &str) -> Event {
    Event::Moved { id: OperationId::new(id).expect("an id"), node: NodeName::new(node).expect("a node") }
}

/// A node was emptied after the plan was made: all its guests are on the other one, which takes no more at once for that.
#[test]
fn a_guest_that_moved_is_counted_where_it_is() {
    let mut story = Story::new(1, 9);
    let items = [item("r", 100, 0), item("r", 101, 0), on("pve2", item("r", 200, 0)), on("pve2", item("r", 201, 0))];
    story.check_submit(&items, &["begin r-100-0", "begin r-200-0"]);
    story.check(moved("r-100-0", "pve2"), &["begin r-101-0"]);
    story.check(moved("r-101-0", "pve2"), &[]);
    story.check_end("r-200-0", End::Done, &["resume r-100-0"]);
    story.check_end("r-100-0", End::Done, &["resume r-101-0"]);
    story.check_end("r-101-0", End::Done, &["begin r-201-0"]);
    story.check_end("r-201-0", End::Done, &[]).check_idle();
}

/// Its intent is in the journal: it is not dropped, its guest is not touched by anything else, and it goes on to its end.
#[test]
fn what_waits_for_room_elsewhere_is_under_way_all_the_same() {
    let mut story = Story::new(1, 9);
    let items = [item("r", 100, 0), item("r", 100, 1), on("pve2", item("r", 200, 0)), after(&[100], on("pve3", item("r", 300, 0)))];
    story.check_submit(&items, &["begin r-100-0", "begin r-200-0"]);
    story.check(moved("r-100-0", "pve2"), &[]);
    story.check(moved("r-100-0", "pve3"), &[]);
    story.check_submit(&[item("s", 100, 0)], &["r-100-1 superseded", "r-300-0 dependency-not-done"]);
    story.check(stop(Code::RunStopped), &["s-100-0 run-stopped"]);
    story.check_end("r-200-0", End::Done, &["resume r-100-0"]);
    story.check_end("r-100-0", End::Failed, &[]).check_idle();
}

#[test]
fn where_there_is_room_it_goes_on_at_once_and_what_is_not_begun_does_not_move() {
    let mut story = Story::new(1, 9);
    story.check_submit(&[item("r", 100, 0), item("r", 100, 1), item("r", 101, 0)], &["begin r-100-0"]);
    story.check(moved("r-101-0", "pve2"), &[]);
    story.check(moved("r-100-0", "pve1"), &[]);
    story.check(moved("r-100-0", "pve2"), &["resume r-100-0", "begin r-101-0"]);
    // The next step of the guest is counted where the guest is: there is room on that node although none on the other.
    story.check_end("r-100-0", End::Done, &["begin r-100-1"]);
}

#[test]
fn zero_is_no_way_to_say_unlimited_or_never() {
    let mut story = Story::new(0, 0);
    story.check_submit(&[item("r", 100, 0), item("r", 101, 0)], &["begin r-100-0"]);
    story.check_end("r-100-0", End::Done, &["begin r-101-0"]);
}

#[test]
fn l4_a_stuck_guest_blocks_only_itself_and_what_waits_for_it() {
    let mut story = Story::new(9, 9);
    let items = [item("r", 100, 0), item("r", 100, 1), after(&[100], item("r", 101, 0)), item("r", 102, 0), item("r", 102, 1)];
    story.check_submit(&items, &["begin r-100-0", "begin r-102-0"]);
    story.check_end("r-102-0", End::Done, &["begin r-102-1"]);
    story.check_end("r-102-1", End::Done, &[]);
    assert!(!story.0.as_ref().expect("a state").is_idle(), "guest 100 is still under way");
}

#[test]
fn what_waits_begins_after_all_power_steps_of_the_others() {
    let config = Item { is_power: false, ..item("r", 100, 0) };
    let items = [config, item("r", 100, 1), item("r", 100, 2), after(&[100, 102], item("r", 101, 0)), item("r", 102, 0)];
    let mut story = Story::new(9, 9);
    story.check_submit(&items, &["begin r-100-0", "begin r-102-0"]);
    story.check_end("r-100-0", End::Done, &["begin r-100-1"]);
    story.check_end("r-102-0", End::Done, &[]);
    story.check_end("r-100-1", End::Done, &["begin r-100-2"]);
    story.check_end("r-100-2", End::Done, &["begin r-101-0"]);
}

#[test]
fn s16_nothing_that_depends_on_a_step_that_did_not_end_well_begins() {
    for end in [End::Failed, End::Refused, End::Held, End::NotRun] {
        let items = [
            item("r", 100, 0),
            item("r", 100, 1),
            after(&[100], item("r", 101, 0)),
            item("r", 101, 1),
            after(&[101], item("r", 102, 0)),
            item("r", 103, 0),
        ];
        let mut story = Story::new(1, 1);
        story.check_submit(&items, &["begin r-100-0"]);
        let halted = ["r-100-1 lane-halted", "r-101-0 dependency-not-done", "r-101-1 lane-halted", "r-102-0 dependency-not-done"];
        story.check_end("r-100-0", end, &[&halted[..], &["begin r-103-0"]].concat());
        story.check_end("r-103-0", End::Done, &[]).check_idle();
    }
}

#[test]
fn a_step_that_waits_for_what_was_left_out_is_not_run() {
    let mut story = Story::new(9, 9);
    let config = Item { is_power: false, ..item("r", 100, 0) };
    let items = [config, after(&[100], item("r", 101, 0)), item("r", 101, 1)];
    story.check_submit(&items, &["r-101-0 dependency-not-done", "r-101-1 lane-halted", "begin r-100-0"]);
}

#[test]
fn at_the_first_failure_nothing_new_begins_where_that_is_asked_for() {
    let mut story = Story::new(2, 2);
    let items = [item("r", 100, 0), item("r", 101, 0), item("r", 102, 0), item("r", 100, 1)].map(fail_fast);
    story.check_submit(&items, &["begin r-100-0", "begin r-101-0"]);
    story.check_end("r-100-0", End::Refused, &["r-100-1 lane-halted", "r-102-0 run-stopped"]);
    story.check_submit(&[item("r", 103, 0)], &["r-103-0 run-stopped"]);
    story.check_end("r-101-0", End::Done, &[]).check_idle();
}

#[test]
fn fail_fast_of_one_run_does_not_stop_another() {
    let mut story = Story::new(1, 2);
    story.check_submit(&[item("r", 100, 0), item("r", 101, 0)].map(fail_fast), &["begin r-100-0"]);
    story.check_submit(&[item("s", 102, 0), on("pve2", item("s", 103, 0))], &["begin s-103-0"]);
    story.check_end("r-100-0", End::Failed, &["r-101-0 run-stopped", "begin s-102-0"]);
    story.check_submit(&[on("pve3", item("t", 104, 0))], &[]);
    story.check_end("s-103-0", End::Failed, &["begin t-104-0"]);
    story.check_end("s-102-0", End::Done, &[]);
    story.check_end("t-104-0", End::Done, &[]).check_idle();
}

#[test]
fn stop_of_one_run_does_not_stop_another_and_stop_of_all_open_runs_does_not_stop_a_later_one() {
    let scoped = |scope| Event::Stop { scope, code: Code::JournalUnwritable };
    let run = |name: &str| StopScope::Run(RunId::new(name).expect("an id"));
    let mut story = Story::new(1, 1);
    story.check_submit(&[item("r", 100, 0), item("r", 101, 0)], &["begin r-100-0"]);
    story.check_submit(&[item("s", 102, 0), item("s", 103, 0)], &[]);
    story.check(scoped(run("r")), &["r-101-0 journal-unwritable"]);
    story.check(scoped(run("nobody")), &[]);
    story.check_submit(&[item("r", 104, 0)], &["r-104-0 journal-unwritable"]);
    story.check_end("r-100-0", End::Done, &["begin s-102-0"]);
    story.check(scoped(StopScope::OpenRuns), &["s-103-0 journal-unwritable"]);
    story.check_submit(&[item("t", 104, 0)], &[]);
    story.check_end("s-102-0", End::Done, &["begin t-104-0"]);
    story.check_end("t-104-0", End::Done, &[]).check_idle();
}

/// Everything about an operation is forgotten with it: nodes, guests and runs that come and go leave nothing behind.
#[test]
fn schedule_of_many_runs_keeps_nothing_of_those_that_ended() {
    let mut state = State::new(Limits::default());
    for number in 0..1_000 {
        let (run, node) = (format!("r{number}"), format!("pve{}", number % 50));
        let first = on(&node, item(&run, 100 + number, 0));
        let moved = NodeName::new(&format!("pve{}", number % 50 + 1)).expect("a node");
        let items =
            vec![first.clone(), on(&node, item(&run, 100 + number, 1)), fail_fast(after(&[100 + number], item(&run, 5_000 + number, 0)))];
        let ids: Vec<OperationId> = items.iter().map(|item| item.id.clone()).collect();
        state = step(state, Event::Submit(items)).0;
        assert!(state.entry_count() > 0);
        state = step(state, Event::Moved { id: first.id, node: moved }).0;
        let end = if number % 3 == 0 { End::Failed } else { End::Done };
        for id in ids {
            state = step(state, Event::Ended { id, end }).0;
        }
        assert_eq!((state.is_idle(), state.entry_count(), state.under_way()), (true, 0, 0), "run {number}");
    }
}

#[test]
fn a_drain_lets_what_is_under_way_go_on() {
    let mut story = Story::new(1, 1);
    story.check_submit(&[item("r", 100, 0), item("r", 100, 1), after(&[100], item("r", 101, 0))], &["begin r-100-0"]);
    story.check(stop(Code::JournalUnwritable), &["r-100-1 journal-unwritable", "r-101-0 journal-unwritable"]);
    story.check(stop(Code::RunStopped), &[]);
    story.check_submit(&[item("s", 102, 0)], &["s-102-0 journal-unwritable"]);
    story.check_end("r-100-0", End::Done, &[]).check_idle();
}

#[test]
fn a_newer_plan_takes_the_place_of_what_still_waits() {
    let mut story = Story::new(9, 9);
    let once = Item { is_convergent: false, ..item("o", 100, 0) };
    story.check_submit(&[item("r", 100, 0), item("r", 100, 1), item("r", 101, 0)], &["begin r-100-0", "begin r-101-0"]);
    story.check_submit(&[once], &[]);
    story.check_submit(&[item("s", 100, 0), item("s", 100, 1)], &["r-100-1 superseded"]);
    story.check_end("r-100-0", End::Failed, &["begin o-100-0"]);
    story.check_end("o-100-0", End::Done, &["begin s-100-0"]);
    story.check_end("s-100-0", End::Done, &["begin s-100-1"]);
}

#[test]
fn what_a_person_asked_for_once_takes_nobodys_place() {
    let mut story = Story::new(9, 9);
    story.check_submit(&[item("r", 100, 0), item("r", 100, 1)], &["begin r-100-0"]);
    story.check_submit(&[Item { is_convergent: false, ..item("o", 100, 0) }], &[]);
    story.check_end("r-100-0", End::Done, &["begin r-100-1"]);
    story.check_end("r-100-1", End::Done, &["begin o-100-0"]);
}

#[test]
fn s17_no_stop_and_no_failure_keeps_what_was_found_in_the_journal_from_being_found_out() {
    let recovered = |guest| fail_fast(item("old", guest, 0)).recovered();
    let mut story = Story::new(1, 1);
    story.check_submit(&[recovered(100), recovered(101), recovered(102)], &["begin old-100-0"]);
    story.check_submit(&[item("r", 103, 0)], &[]);
    story.check_end("old-100-0", End::Held, &["begin old-101-0"]);
    story.check(stop(Code::RunStopped), &["r-103-0 run-stopped"]);
    story.check_end("old-101-0", End::Failed, &["begin old-102-0"]);
    story.check_submit(&[recovered(104), item("r", 105, 0)], &["r-105-0 run-stopped"]);
    story.check_end("old-102-0", End::Done, &["begin old-104-0"]);
}

/// A guest that was taken down to come up again is not left down.
#[test]
fn the_second_half_of_a_restart_goes_on_after_a_stop_and_one_that_was_not_begun_does_not() {
    let second = |guest| Item { completes: true, ..item("r", guest, 1) };
    let mut story = Story::new(1, 1);
    story.check_submit(&[item("r", 100, 0), second(100), item("r", 101, 0), second(101)], &["begin r-100-0"]);
    story.check(stop(Code::RunStopped), &["r-101-0 run-stopped", "r-101-1 run-stopped"]);
    story.check_end("r-100-0", End::Done, &["begin r-100-1"]);
    story.check_end("r-100-1", End::Done, &[]).check_idle();
    let mut story = Story::new(1, 1);
    story.check_submit(&[item("r", 100, 0), second(100)], &["begin r-100-0"]);
    story.check(stop(Code::RunStopped), &[]);
    story.check_end("r-100-0", End::Failed, &["r-100-1 lane-halted"]).check_idle();
}

#[test]
fn what_was_found_in_the_journal_comes_first_in_its_lane() {
    let mut story = Story::new(9, 9);
    let (operation, _) = testing::step_of("start");
    story.check_submit(&[Item::of_recovered(&operation)], &["begin op-100-0"]);
    story.check_submit(&[item("r", 100, 0), item("r", 101, 0)], &["begin r-101-0"]);
    story.check_end("op-100-0", End::Failed, &["begin r-100-0"]);
}

#[test]
fn s23_the_queue_has_a_bound() {
    let many: Vec<Item> = (0..u32::try_from(QUEUE_MAX).expect("small")).map(|number| item("r", 1000 + number, 0)).collect();
    let mut story = Story::new(1, 1);
    story.check_submit(&many, &["begin r-1000-0"]);
    story.check_submit(&[item("s", 100, 0), item("s", 101, 0)], &["s-100-0 queue-full", "s-101-0 queue-full"]);
    story.check_end("r-1000-0", End::Done, &["begin r-1001-0"]);
    story.check_submit(&[item("s", 100, 0)], &[]);
}

#[test]
fn a_chain_as_long_as_the_queue_is_dropped_without_falling_over() {
    let count = 20_000;
    let chain = (0..count).map(|number| if number == 0 { item("r", 1000, 0) } else { after(&[999 + number], item("r", 1000 + number, 0)) });
    let (state, _) = step(State::new(Limits::default()), Event::Submit(chain.collect()));
    let (state, commands) = step(state, Event::Ended { id: item("r", 1000, 0).id, end: End::Failed });
    assert_eq!(commands.len(), usize::try_from(count).expect("small") - 1);
    assert!(state.is_idle());
}

#[test]
fn what_is_not_under_way_cannot_end_and_what_is_known_is_not_taken_twice() {
    let mut story = Story::new(1, 1);
    story.check_submit(&[item("r", 100, 0), item("r", 100, 0), item("r", 101, 0)], &["begin r-100-0"]);
    story.check_submit(&[item("r", 100, 0), item("r", 101, 0)], &[]);
    story.check_end("r-101-0", End::Done, &[]);
    story.check_end("nobody", End::Done, &[]);
    story.check_end("r-100-0", End::Done, &["begin r-101-0"]);
    story.check_end("r-100-0", End::Done, &[]);
    story.check_end("r-101-0", End::Done, &[]).check_idle();
}

/// What a random schedule has begun, and what must hold of it.
#[derive(Default)]
struct Witness {
    under_way: BTreeMap<OperationId, (Vmid, NodeName)>,
    /// Begun, and waiting for room on another node.
    parked: BTreeMap<OperationId, Vmid>,
    begun: BTreeSet<OperationId>,
    closed: BTreeSet<OperationId>,
    done: BTreeSet<OperationId>,
    items: BTreeMap<OperationId, Item>,
}

impl Witness {
    fn saw(&mut self, commands: &[Command], state: &State, limits: Limits) {
        for command in commands {
            match command {
                Command::Begin(id) => self.begins(id, state.node_of(id).expect("a node")),
                Command::Resume(id) => {
                    let vmid = self.parked.remove(id).unwrap_or_else(|| panic!("{id} did not wait for room"));
                    self.under_way.insert(id.clone(), (vmid, state.node_of(id).expect("a node").clone()));
                }
                Command::NotRun { id, .. } => assert!(self.closed.insert(id.clone()) && !self.begun.contains(id), "{id} has ended before"),
            }
        }
        assert!(self.under_way.len() <= limits.overall as usize);
        for (_, node) in self.under_way.values() {
            let here = self.under_way.values().filter(|(_, other)| other == node).count();
            assert!(here <= limits.per_node as usize, "{here} on {node:?}");
        }
    }

    fn lets_one_end(&mut self, rng: &mut Rng) -> Option<Event> {
        let under_way: Vec<OperationId> = self.under_way.keys().cloned().collect();
        let id = rng.pick(&under_way)?.clone();
        let end = if rng.percent(80) { End::Done } else { *rng.pick(&End::ALL).expect("ends") };
        self.under_way.remove(&id);
        self.closed.insert(id.clone());
        if end == End::Done {
            self.done.insert(id.clone());
        }
        Some(Event::Ended { id, end })
    }

    /// The guest of one of them is found elsewhere.
    fn lets_one_move(&mut self, rng: &mut Rng) -> Option<Event> {
        let under_way: Vec<OperationId> = self.under_way.keys().cloned().collect();
        let id = rng.pick(&under_way)?.clone();
        let node = NodeName::new(rng.word(&["pve1", "pve2", "pve3"])).expect("a node");
        if self.under_way[&id].1 != node {
            let (vmid, _) = self.under_way.remove(&id)?;
            self.parked.insert(id.clone(), vmid);
        }
        Some(Event::Moved { id, node })
    }

    fn begins(&mut self, id: &OperationId, node: &NodeName) {
        let item = &self.items[id];
        assert!(self.begun.insert(id.clone()) && !self.closed.contains(id), "{id} begins twice");
        let mut others = self.under_way.values().map(|(vmid, _)| vmid).chain(self.parked.values());
        assert!(others.all(|vmid| *vmid != item.vmid), "two operations of guest {}", item.vmid);
        for wait in &item.wait {
            let mut powers = self.items.values().filter(|own| own.vmid == *wait && own.run == item.run && own.is_power);
            assert!(powers.all(|own| self.done.contains(&own.id)), "{id} begins before guest {wait} is done");
        }
        self.under_way.insert(id.clone(), (item.vmid, node.clone()));
    }
}

/// A plan of a few guests in which later ones wait for earlier ones.
fn random_plan(rng: &mut Rng, run: &str) -> Vec<Item> {
    let mut items = Vec::new();
    for guest in 0..1 + rng.below(8) {
        let guest = 100 + u32::try_from(guest).expect("small");
        for number in 0..1 + rng.below(3) {
            let mut item = item(run, guest, u32::try_from(number).expect("small"));
            item.node = NodeName::new(rng.word(&["pve1", "pve2", "pve3"])).expect("a node");
            item.is_power = rng.percent(70);
            item.is_convergent = rng.percent(80);
            if guest > 100 && rng.one_in(3) {
                item.wait = [vmid(100 + u32::try_from(rng.below(u64::from(guest - 100))).expect("small"))].into();
            }
            items.push(item);
        }
    }
    items
}

#[test]
fn g12_whatever_ends_how_no_two_operations_of_a_guest_overlap_and_everything_ends() {
    for seed in 0..3000 {
        testing::check_seed(seed, any_schedule);
    }
}

fn any_schedule(rng: &mut Rng) {
    let below = |rng: &mut Rng, bound| 1 + u32::try_from(rng.below(bound)).expect("small");
    let limits = Limits { per_node: below(rng, 3), overall: below(rng, 5) };
    let mut state = State::new(limits);
    let mut witness = Witness::default();
    let mut runs = 0;
    for _ in 0..500 {
        let event = if runs == 0 || (runs < 3 && rng.one_in(10)) {
            runs += 1;
            let on_failure = if rng.one_in(5) { OnFailure::Stop } else { OnFailure::GoOn };
            let plan: Vec<Item> = random_plan(rng, &format!("r{runs}")).into_iter().map(|item| Item { on_failure, ..item }).collect();
            witness.items.extend(plan.iter().map(|item| (item.id.clone(), item.clone())));
            Event::Submit(plan)
        } else if rng.one_in(100) {
            let run = RunId::new(&format!("r{runs}")).expect("an id");
            let scope = rng.pick(&[StopScope::Everything, StopScope::OpenRuns, StopScope::Run(run)]).expect("scopes").clone();
            Event::Stop { scope, code: Code::RunStopped }
        } else if rng.one_in(6)
            && let Some(event) = witness.lets_one_move(rng)
        {
            event
        } else {
            let Some(event) = witness.lets_one_end(rng) else { break };
            event
        };
        let (next, commands) = step(state, event);
        state = next;
        witness.saw(&commands, &state, limits);
    }
    assert!(state.is_idle(), "something waits for ever");
    assert_eq!(state.entry_count(), 0, "something of what ended is kept");
    assert_eq!(witness.closed.len(), witness.items.len(), "something was lost");
}

#[test]
fn the_same_events_give_the_same_commands() {
    let run = || {
        let mut rng = Rng::new(7);
        let (state, commands) = step(State::new(Limits { per_node: 2, overall: 3 }), Event::Submit(random_plan(&mut rng, "r")));
        (format!("{state:?}"), commands)
    };
    assert_eq!(run(), run());
}
