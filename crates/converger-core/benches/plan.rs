//! Planning, compared with a bare sorted merge of the same two lists that compares the same fields and allocates nothing.
//!
//! `plan <guests> <repetitions>` prints one JSON object with the least CPU time of each, in nanoseconds. Both are measured alternately, on
//! one thread and the same data. The time of planning includes dropping the plan. With a third argument, `1`, all guests are missing and
//! made from a template.
#![expect(clippy::disallowed_methods, reason = "a bench takes arguments and reads its CPU time; core is handed what it needs")]

mod cpu;
mod fleet;

use std::hint::black_box;
use std::sync::Arc;

use converger_core::desired::{self, Desired, DesiredGuest, DesiredSetting};
use converger_core::document::Notation;
use converger_core::intent::Intent;
use converger_core::normalize::{Field, FieldValue};
use converger_core::observe::{self, Observation, ObservedGuest, ObservedStatus, Reading, Scoped};
use converger_core::plan::{Plan, Verdict, plan};
use converger_core::policy::Rules;
use converger_core::testing::RequestWorld;

use fleet::{BenchFleet, GuestShare};

fn main() {
    let numbers: Vec<u32> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let [guests, repetitions, ref rest @ ..] = numbers[..] else {
        eprintln!("plan <guests> <repetitions> [1]");
        return;
    };
    let (desired, observation) = if rest.is_empty() { write_fleet(guests) } else { write_births(guests) };
    let desired = desired::parse(desired.as_bytes(), Notation::Json).expect("the fleet is well-formed");
    let observation = observe::parse(observation.as_bytes()).expect("the fleet is well-formed");
    let scope = Intent::from(desired.clone()).scope();
    let inputs = BenchInputs { observation: Arc::new(observation.into_scoped(&scope)), desired: Arc::new(desired), rules: Arc::default() };
    let drifted = count_drifted(&inputs.desired, &inputs.observation);
    assert_eq!(drifted, count_unconverged(&inputs.plan()), "the merge and the planner must find the same guests");
    let [merge, plan] = cpu::measure_least(repetitions, &inputs, [merge_once, plan_once]);
    println!(r#"{{"guests":{guests},"drifted":{drifted},"merge_ns":{merge},"plan_ns":{plan}}}"#);
}

/// desired.json and current.json of guests that exist.
fn write_fleet(guests: u32) -> (String, String) {
    let fleet = BenchFleet { guests, drifted_share: GuestShare::OneIn(4), ordered_share: GuestShare::None };
    (fleet.desired_json(), fleet.current_json())
}

/// desired.json and current.json of guests that are all to be made from one template.
fn write_births(guests: u32) -> (String, String) {
    let guest = |index: u32| {
        format!(
            r#"{{"vmid":{vmid},"kind":"qemu","name":"web-{vmid}","state":"running","config":{{"cores":4,"tags":["web"]}},
            "from":{{"template":900,"identity":{{"ctime":1700000900}},"bridge":"vmbr1","addresses":"10.0.0.7/24","disk-size":"40GiB"}}}}"#,
            vmid = 1000 + index
        )
    };
    let guests: Vec<String> = (0..guests).map(guest).collect();
    let desired = format!(r#"{{"version":1,"environment":"lab","guests":[{}]}}"#, guests.join(","));
    (desired, RequestWorld::default().observation.to_string())
}

struct BenchInputs {
    desired: Arc<Desired>,
    observation: Arc<Scoped>,
    rules: Arc<Rules>,
}

impl BenchInputs {
    fn plan(&self) -> Plan {
        plan(Arc::clone(&self.desired), Arc::clone(&self.observation), Arc::clone(&self.rules))
    }
}

#[inline(never)]
fn plan_once(inputs: &BenchInputs) {
    drop(black_box(inputs.plan()));
}

#[inline(never)]
fn merge_once(inputs: &BenchInputs) {
    black_box(count_drifted(&inputs.desired, &inputs.observation));
}

fn count_unconverged(plan: &Plan) -> usize {
    plan.verdicts().iter().filter(|verdict| !matches!(verdict, Verdict::Converged { .. })).count()
}

/// The number of guests that are not as declared.
fn count_drifted(desired: &Desired, observation: &Observation) -> usize {
    let mut rows = observation.guests.iter().peekable();
    let is_drifted = |guest: &&DesiredGuest| {
        while rows.next_if(|row| row.vmid < guest.vmid).is_some() {}
        !rows.next_if(|row| row.vmid == guest.vmid).is_some_and(|row| is_as_declared(guest, row))
    };
    desired.guests().iter().filter(is_drifted).count()
}

fn is_as_declared(guest: &DesiredGuest, row: &ObservedGuest) -> bool {
    guest.kind == row.kind
        && guest.name.as_ref().is_none_or(|name| row.name.as_deref() == Some(name.as_str()))
        && guest.identity.as_ref().is_none_or(|pinned| matches!(&row.identity, Reading::Read(seen) if seen == pinned))
        && guest.state.is_none_or(|state| row.status == ObservedStatus::Known(state))
        && guest.config.iter().all(|setting| is_set(setting, row))
}

fn is_set(setting: &DesiredSetting, row: &ObservedGuest) -> bool {
    match (setting.field, &setting.wanted, &row.tags, &row.config) {
        (Field::Tags, Some(FieldValue::Tags(wanted)), Reading::Read(tags), _) => wanted == tags,
        (Field::Tags, None, Reading::Read(tags), _) => tags.is_empty(),
        (_, wanted, _, Reading::Read(config)) => config.get(setting.field) == wanted.as_ref(),
        _ => false,
    }
}
