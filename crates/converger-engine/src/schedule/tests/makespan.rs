//! How close a run comes to the ideal schedule, in virtual time: both machines together, with a cost for every request and commit. No
//! clock is read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use converger_core::apply::{EnvRequest, EnvResponse, SendResult, TaskState};
use converger_core::testing::Rng;
use serde_json::json;

use super::*;
use crate::operation::{self, Patience};

const REQUEST_MS: u64 = 30;
const COMMIT_MS: u64 = 5;

/// Starts with given durations, in virtual time.
struct TimedWorld {
    now_ms: u64,
    durations_ms: BTreeMap<OperationId, u64>,
    started_ms: BTreeMap<OperationId, u64>,
    /// When events happen, and to which operation; the number keeps the order of simultaneous events.
    agenda: BinaryHeap<Reverse<(u64, u64, OperationId)>>,
    events: BTreeMap<u64, operation::OperationEvent>,
    next_number: u64,
}

impl TimedWorld {
    fn schedule_event(&mut self, ms: u64, id: &OperationId, event: operation::OperationEvent) {
        self.next_number += 1;
        self.events.insert(self.next_number, event);
        self.agenda.push(Reverse((self.now_ms + ms, self.next_number, id.clone())));
    }

    fn is_start_finished(&self, id: &OperationId) -> bool {
        self.started_ms.get(id).is_some_and(|at| at + self.durations_ms[id] <= self.now_ms)
    }

    fn execute_command(&mut self, id: &OperationId, command: operation::OperationCommand) {
        match command {
            operation::OperationCommand::Commit(_) | operation::OperationCommand::Mark => {
                self.schedule_event(COMMIT_MS, id, operation::OperationEvent::Committed)
            }
            operation::OperationCommand::FindTaskOwners(_) => {
                self.schedule_event(0, id, operation::OperationEvent::TaskOwnersFound(Vec::new()))
            }
            operation::OperationCommand::RecheckHolds => self.schedule_event(0, id, operation::OperationEvent::SendAllowed),
            operation::OperationCommand::Wait(ms) => self.schedule_event(ms, id, operation::OperationEvent::Woken),
            operation::OperationCommand::Request(request) => {
                let answer = self.respond(id, &request);
                self.schedule_event(REQUEST_MS, id, operation::OperationEvent::Responded(answer));
            }
        }
    }

    fn respond(&mut self, id: &OperationId, request: &EnvRequest) -> EnvResponse {
        match request {
            EnvRequest::Cluster => testing::cluster_response(),
            EnvRequest::Status(_) => testing::status_response(if self.is_start_finished(id) { "running" } else { "stopped" }),
            EnvRequest::Config(_) => testing::config_response(2),
            EnvRequest::Send { .. } => {
                assert!(self.started_ms.insert(id.clone(), self.now_ms).is_none(), "{id} was sent twice");
                EnvResponse::Sent(SendResult::Task(testing::test_task_id(id.as_str())))
            }
            EnvRequest::Task(_) if self.is_start_finished(id) => testing::task_ended_response(),
            EnvRequest::Task(_) => EnvResponse::Task(TaskState::Running),
            EnvRequest::Locate(_) | EnvRequest::Tasks { .. } | EnvRequest::Snapshots(_) | EnvRequest::IdState(_) => {
                panic!("nothing is lost here")
            }
        }
    }
}

/// The total time of these starts, each with its node and duration, and the theoretical minimum.
fn simulate_makespan(starts: &[(u32, u64)], limits: ConcurrencyLimits) -> (u64, u64) {
    let guests: Vec<_> =
        (0..starts.len()).map(|index| json!({ "vmid": 100 + index, "kind": "qemu", "name": "web", "state": "running" })).collect();
    let rows = starts.iter().zip(100..).map(|((node, _), vmid)| {
        let mut row = testing::guest_row(vmid, "stopped");
        row["node"] = json!(format!("pve{node}"));
        row
    });
    let operations = testing::plan_operations(&testing::plan_guests(&guests, &rows.collect::<Vec<_>>()));
    let lasts_ms = operations.iter().zip(starts).map(|((operation, _), (_, ms))| (operation.id.clone(), *ms)).collect();
    let mut world = TimedWorld {
        now_ms: 0,
        durations_ms: lasts_ms,
        started_ms: BTreeMap::new(),
        agenda: BinaryHeap::new(),
        events: BTreeMap::new(),
        next_number: 0,
    };
    let items = operations.iter().map(|(operation, _)| ScheduleItem::for_operation(operation, OnFailure::Continue)).collect();
    let fresh = |(operation, context): testing::PlannedOperation| {
        (operation.id.clone(), operation::OperationState::new(operation, context, Patience::default()))
    };
    let mut states: BTreeMap<OperationId, operation::OperationState> = operations.into_iter().map(fresh).collect();
    let (mut schedule, mut commands) = step(ScheduleState::new(limits), ScheduleEvent::Submit(items));
    loop {
        for command in commands.drain(..) {
            let ScheduleCommand::Begin(id) = command else { panic!("{command:?}") };
            world.schedule_event(0, &id, operation::OperationEvent::Begin);
        }
        let Some(Reverse((at_ms, number, id))) = world.agenda.pop() else { break };
        world.now_ms = at_ms;
        let event = world.events.remove(&number).expect("an event");
        let (state, command) = operation::step(states.remove(&id).expect("a state"), event, at_ms);
        if let Some(command) = command {
            world.execute_command(&id, command);
        }
        if let Some(outcome) = state.outcome() {
            assert_eq!(outcome.end(), OperationEnd::Done, "{id}: {outcome:?}");
            (schedule, commands) = step(schedule, ScheduleEvent::Ended { id: id.clone(), end: outcome.end() });
        }
        states.insert(id, state);
    }
    assert!(schedule.is_idle());
    (world.now_ms, ideal_makespan(starts, limits))
}

/// No schedule is faster than its busiest node, or than the overall limit allows.
fn ideal_makespan(starts: &[(u32, u64)], limits: ConcurrencyLimits) -> u64 {
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
        let (took_ms, least_ms) = simulate_makespan(starts, ConcurrencyLimits { per_node, overall });
        assert!(took_ms * 100 <= least_ms * 110, "{per_node} per node, {overall} overall: {took_ms} ms, ideal {least_ms} ms");
    }
}
