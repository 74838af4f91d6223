//! Less information never leads to more steps: hiding any part of an observation never gives a guest a step that it did not have.
//!
//! A guest with steps keeps exactly those or loses them all; a guest without steps gets none, not even through `after`.

use std::collections::BTreeMap;

use converger_core::guest::Vmid;
use converger_core::observe::{Observation, ObservedGuest, ObservedStatus, Reading};
use converger_core::plan::{Plan, Step, Verdict};
use converger_core::testing::Rng;

use crate::random_cases;

const SEED: u64 = 3;
const WORLDS: u64 = 25_000;
/// Each world is hidden part by part, in two independent chains; every part is a case.
const CHAINS: u64 = 2;
const PIECES: u64 = 4;

/// Hides a part of a row.
type HideFn = fn(&mut ObservedGuest);

/// The parts of a row that can be hidden. Those that affect most decisions occur twice.
const PARTS: [(&str, HideFn); 17] = [
    ("status", |row| row.status = ObservedStatus::Unknown(None)),
    ("status with a cause", |row| row.status = ObservedStatus::Unknown(Some("node-offline".into()))),
    ("lock", |row| row.lock = Reading::Unread),
    ("ha", |row| row.ha = Reading::Unread),
    ("template", |row| row.template = Reading::Unread),
    ("protection", |row| row.protection = Reading::Unread),
    ("tags", |row| row.tags = Reading::Unread),
    ("identity", |row| row.identity = Reading::Unread),
    ("config", |row| row.config = Reading::Unread),
    ("config again", |row| row.config = Reading::Unread),
    ("pending", |row| row.pending = Reading::Unread),
    ("pending again", |row| row.pending = Reading::Unread),
    ("run_state", |row| row.run_state = None),
    ("cpus", |row| row.cpus = None),
    ("maxmem", |row| row.maxmem = None),
    ("source", |row| row.source = None),
    ("digest", |row| row.digest = None),
];

/// Hides one part of the observation and describes it.
fn hide(observation: &mut Observation, rng: &mut Rng) -> String {
    match rng.below(40) {
        0 => observation.complete = false,
        1 => observation.quorate = false,
        2 => observation.taken_at = Some("1970-01-01T00:00:00Z".into()),
        3 | 4 => {
            let index = rng.index(observation.nodes.len());
            if let Some(node) = observation.nodes.get_mut(index) {
                node.online = false;
                return format!("node {} goes offline", node.name.as_str());
            }
        }
        5..=7 => {
            let index = rng.index(observation.guests.len());
            let mut rows = std::mem::take(&mut observation.guests).into_vec();
            let dropped = (index < rows.len()).then(|| rows.remove(index));
            observation.guests = rows.into();
            return format!("the row of {:?} is lost", dropped.map(|row| row.vmid));
        }
        _ => {
            let index = rng.index(observation.guests.len());
            let (name, part) = PARTS[rng.index(PARTS.len())];
            if let Some(row) = observation.guests.get_mut(index) {
                part(row);
                return format!("{name} of {} is not read", row.vmid);
            }
        }
    }
    format!("complete {}, quorate {}", observation.complete, observation.quorate)
}

fn steps_of(plan: &Plan) -> BTreeMap<Vmid, &[Step]> {
    let guests = plan.guests().filter_map(|(guest, verdict)| match verdict {
        Verdict::Steps(steps) => Some((guest.vmid, steps.as_slice())),
        _ => None,
    });
    guests.collect()
}

/// The steps of `less` that `more` does not have.
fn added_steps(more: &Plan, less: &Plan) -> Vec<String> {
    let before = steps_of(more);
    let new = steps_of(less).into_iter().filter(|(vmid, steps)| before.get(vmid) != Some(steps));
    new.map(|(vmid, steps)| format!("{vmid}: {steps:?}, before: {:?}", before.get(&vmid))).collect()
}

#[test]
fn g17_hiding_information_never_adds_a_step() {
    let (mut compared, mut fewer_steps) = (0_u64, 0_u64);
    for mut case in random_cases(SEED, WORLDS) {
        let inputs = case.inputs();
        let whole = inputs.plan();
        for _ in 0..CHAINS {
            let mut observation = inputs.observation.clone();
            let mut hidden = Vec::new();
            let mut before = whole.clone();
            for _ in 0..PIECES {
                hidden.push(hide(&mut observation, &mut case.rng));
                let after = inputs.plan_on(observation.clone());
                let added = added_steps(&before, &after);
                assert!(added.is_empty(), "{case:?}\nhidden: {hidden:#?}\nadded: {added:#?}");
                fewer_steps += u64::from(steps_of(&after).len() < steps_of(&before).len());
                before = after;
                compared += 1;
            }
        }
    }
    assert!(compared >= crate::case_count(200_000), "{compared} cases");
    assert!(fewer_steps > compared / 50, "only {fewer_steps} of {compared} cases cost a step: too little is hidden where it matters");
}
