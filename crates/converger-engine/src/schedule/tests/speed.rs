//! How close a run comes to the ideal schedule, in virtual time: both machines together, every request and every commit with
//! a price. No clock is read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use converger_core::apply::{Answer, Ask, Sent, TaskState};
use converger_core::testing::Rng;
use serde_json::json;

use super::*;
use crate::operation::{self, Patience};

const REQUEST_MS: u64 = 30;
const COMMIT_MS: u64 = 5;

/// Starts that take so long, one after the other in virtual time.
struct World {
    now_ms: u64,
    lasts_ms: BTreeMap<OperationId, u64>,
    started_ms: BTreeMap<OperationId, u64>,
    /// What happens when, to whom; the number keeps the order of what happens at once.
    agenda: BinaryHeap<Reverse<(u64, u64, OperationId)>>,
    events: BTreeMap<u64, operation::Event>,
    made: u64,
}

impl World {
    fn later(&mut self, ms: u64, id: &OperationId, event: operation::Event) {
        self.made += 1;
        self.events.insert(self.made, event);
        self.agenda.push(Reverse((self.now_ms + ms, self.made, id.clone())));
    }

    fn has_started(&self, id: &OperationId) -> bool {
        self.started_ms.get(id).is_some_and(|at| at + self.lasts_ms[id] <= self.now_ms)
    }

    fn carry_out(&mut self, id: &OperationId, command: operation::Command) {
        match command {
            operation::Command::Commit(_) | operation::Command::Mark => self.later(COMMIT_MS, id, operation::Event::Committed),
            operation::Command::Whose(_) => self.later(0, id, operation::Event::Taken(Vec::new())),
            operation::Command::Clear => self.later(0, id, operation::Event::Cleared),
            operation::Command::Wait(ms) => self.later(ms, id, operation::Event::Woken),
            operation::Command::Ask(ask) => {
                let answer = self.answer(id, &ask);
                self.later(REQUEST_MS, id, operation::Event::Answered(answer));
            }
        }
    }

    fn answer(&mut self, id: &OperationId, ask: &Ask) -> Answer {
        match ask {
            Ask::Cluster => testing::cluster(),
            Ask::Status(_) => testing::status(if self.has_started(id) { "running" } else { "stopped" }),
            Ask::Config(_) => testing::config(2),
            Ask::Send { .. } => {
                assert!(self.started_ms.insert(id.clone(), self.now_ms).is_none(), "{id} was sent twice");
                Answer::Sent(Sent::Task(testing::task_id(id.as_str())))
            }
            Ask::Task(_) if self.has_started(id) => testing::ended(),
            Ask::Task(_) => Answer::Task(TaskState::Running),
            Ask::Where(_) | Ask::Tasks { .. } => panic!("nothing is lost here"),
        }
    }
}

/// The time that the starts take, each with its node and duration, and the least that they could.
fn makespan(starts: &[(u32, u64)], limits: Limits) -> (u64, u64) {
    let guests: Vec<_> =
        (0..starts.len()).map(|index| json!({ "vmid": 100 + index, "kind": "qemu", "name": "web", "state": "running" })).collect();
    let rows = starts.iter().zip(100..).map(|((node, _), vmid)| {
        let mut row = testing::row(vmid, "stopped");
        row["node"] = json!(format!("pve{node}"));
        row
    });
    let operations = testing::operations(&testing::plan(&guests, &rows.collect::<Vec<_>>()));
    let lasts_ms = operations.iter().zip(starts).map(|((operation, _), (_, ms))| (operation.id.clone(), *ms)).collect();
    let mut world = World { now_ms: 0, lasts_ms, started_ms: BTreeMap::new(), agenda: BinaryHeap::new(), events: BTreeMap::new(), made: 0 };
    let items = operations.iter().map(|(operation, _)| Item::of(operation, OnFailure::GoOn)).collect();
    let fresh = |(operation, terms): testing::Task| (operation.id.clone(), operation::State::new(operation, terms, Patience::default()));
    let mut states: BTreeMap<OperationId, operation::State> = operations.into_iter().map(fresh).collect();
    let (mut schedule, mut commands) = step(State::new(limits), Event::Submit(items));
    loop {
        for command in commands.drain(..) {
            let Command::Begin(id) = command else { panic!("{command:?}") };
            world.later(0, &id, operation::Event::Begin);
        }
        let Some(Reverse((at_ms, number, id))) = world.agenda.pop() else { break };
        world.now_ms = at_ms;
        let event = world.events.remove(&number).expect("an event");
        let (state, command) = operation::step(states.remove(&id).expect("a state"), event, at_ms);
        if let Some(command) = command {
            world.carry_out(&id, command);
        }
        if let Some(outcome) = state.ended() {
            assert_eq!(outcome.end(), End::Done, "{id}: {outcome:?}");
            (schedule, commands) = step(schedule, Event::Ended { id: id.clone(), end: outcome.end() });
        }
        states.insert(id, state);
    }
    assert!(schedule.is_idle());
    (world.now_ms, least(starts, limits))
}

/// No schedule is faster than its busiest node, nor than everything side by side.
fn least(starts: &[(u32, u64)], limits: Limits) -> u64 {
    let mut nodes: BTreeMap<u32, u64> = BTreeMap::new();
    for (node, ms) in starts {
        *nodes.entry(*node).or_default() += ms;
    }
    let busiest = nodes.values().max().copied().unwrap_or(0) / u64::from(limits.per_node);
    let all = starts.iter().map(|(_, ms)| ms).sum::<u64>() / u64::from(limits.overall);
    busiest.max(all)
}

#[test]
fn a_thousand_starts_over_ten_nodes_are_within_a_tenth_of_the_ideal() {
    let mut rng = Rng::new(4);
    let spread: Vec<(u32, u64)> = (0..1000).map(|index| (1 + index % 10, 8_000 + rng.below(12_000))).collect();
    let uneven: Vec<(u32, u64)> = (0..1000).map(|index| (1 + (index % 17) % 10, 8_000 + rng.below(12_000))).collect();
    for (starts, per_node, overall) in [(&spread, 4, 40), (&spread, 4, 25), (&uneven, 4, 40), (&uneven, 8, 20)] {
        let (took_ms, least_ms) = makespan(starts, Limits { per_node, overall });
        assert!(took_ms * 100 <= least_ms * 110, "{per_node} per node, {overall} overall: {took_ms} ms, ideal {least_ms} ms");
    }
}
