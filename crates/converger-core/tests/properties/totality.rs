//! A plan is total: whatever is declared and observed, every declared guest gets exactly one complete verdict, and no step violates a
//! guard. The guards are evaluated here from the files themselves.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use converger_core::plan::Verdict;
use converger_core::policy::{Circumstances, Limits};
use converger_core::refusal::RefusalStage;
use converger_core::safety::judge;
use converger_core::testing::{TestInputs, TestWorld, plan_body};

use crate::platform_model::{elements, text_of, vmid_of};
use crate::protection::{interrupts, protection_grounds};
use crate::random_cases;

const SEED: u64 = 7;
const WORLDS: u64 = 3_000;

fn check_shape(inputs: &TestInputs) -> Result<(), String> {
    let plan = inputs.plan();
    if plan.verdicts().len() != inputs.desired.guests().len() {
        return Err("not exactly one verdict per guest".into());
    }
    for (guest, verdict) in plan.guests() {
        let fault = match verdict {
            Verdict::Converged { .. } => None,
            Verdict::Steps(steps) if steps.is_empty() => Some("a steps verdict without steps"),
            Verdict::Refused(refusals) if refusals.is_empty() => Some("refused without a refusal"),
            Verdict::Refused(refusals) if refusals.iter().any(|refusal| refusal.code().entry().stage != RefusalStage::Plan) => {
                Some("the planner gave a code of another stage")
            }
            Verdict::Steps(steps) if steps.iter().skip(1).any(|step| step.change.resulting_state().is_none()) => {
                Some("a config write after another step")
            }
            Verdict::Steps(_) if !plan.refusals().is_empty() => Some("a step although the whole observation is refused"),
            Verdict::Steps(_) | Verdict::Refused(_) => None,
        };
        if let Some(fault) = fault {
            return Err(format!("{}: {fault}: {verdict:?}", guest.vmid));
        }
    }
    let order: Vec<u32> = plan.guests().map(|(guest, _)| guest.vmid.get()).collect();
    let distinct: BTreeSet<u32> = order.iter().copied().collect();
    if distinct.len() != inputs.desired.guests().len() {
        return Err(format!("not every guest exactly once: {order:?}"));
    }
    Ok(())
}

/// Why no step may exist for a guest, derived from the two files only.
fn step_objections(world: &TestWorld, vmid: u64, steps: &[Value]) -> Vec<String> {
    let seen = &world.observation;
    let wanted = elements(&world.desired["guests"]).find(|guest| vmid_of(guest) == vmid).expect("it is declared");
    let Some(row) = elements(&seen["guests"]).find(|row| vmid_of(row) == vmid) else { return vec!["it is not listed".into()] };
    let node = elements(&seen["nodes"]).find(|node| node["name"] == row["node"]);
    let config = wanted["config"].as_object();
    let manages_config = config.is_some_and(|config| config.keys().any(|key| key != "tags"));
    let pinned = wanted["identity"].as_object().into_iter().flatten();
    let power = steps.iter().any(|step| step["change"] != "config.set");
    let ha = &row["ha"];
    let ha_rests = ["started", "stopped", "enabled", "disabled"].contains(&text_of(&ha["state"]));
    let foreign = |entry: &Value| config.is_none_or(|config| !config.contains_key(text_of(&entry["key"])));
    let unread = ["lock", "ha", "template", "protection", "tags", "pending"].iter().any(|key| row.get(*key).is_none());
    let checks = [
        (seen["quorate"] != json!(true), "no quorum"),
        (seen["complete"] != json!(true), "the list is incomplete"),
        (node.is_none_or(|node| node["online"] != json!(true)), "its node is offline"),
        (!["running", "stopped"].contains(&text_of(&row["status"])), "its status is unknown"),
        (row["kind"] != wanted["kind"], "it has another kind"),
        (wanted.get("name").is_some_and(|name| *name != row["name"]), "it has another name"),
        (pinned.into_iter().any(|(mark, value)| row["identity"][mark] != *value), "it has other birth marks"),
        (unread, "a guard was not read"),
        (row["lock"] != Value::Null, "it is locked"),
        (row["template"] != json!(false), "it is a template"),
        (!ha.is_null() && ha["state"] != "ignored" && (power || !ha_rests), "high availability owns it"),
        (elements(&row["tags"]).any(|tag| text_of(tag).eq_ignore_ascii_case("converger-hold")), "it is held"),
        (elements(&row["pending"]).any(foreign), "changes of others are pending"),
        (manages_config && row.get("config").is_none(), "its config was not read"),
        (steps.iter().any(interrupts) && !protection_grounds(world, vmid).is_empty(), "it is protected"),
    ];
    checks.into_iter().filter(|(speaks_against, _)| *speaks_against).map(|(_, why)| why.to_owned()).collect()
}

#[test]
fn every_guest_gets_one_verdict_and_no_step_violates_a_guard() {
    let mut with_steps = 0_u64;
    for mut case in random_cases(SEED, WORLDS) {
        // The observation of one world hardly matches the declarations of another.
        let other_world = TestWorld::random_small(&mut case.rng);
        let mixed = TestWorld { observation: other_world.observation, ..case.world.clone() };
        for world in [&case.world, &mixed] {
            let inputs = world.parse().unwrap_or_else(|faults| panic!("{case}: {faults:#?}"));
            assert_eq!(check_shape(&inputs), Ok(()), "{case:?}\n{world:?}");
            let plan: Value = serde_json::from_slice(&plan_body(&inputs.plan())).expect("a body is JSON");
            for (vmid, steps) in crate::platform_model::steps_by_guest(&plan) {
                assert_eq!(step_objections(world, vmid, &steps), Vec::<String>::new(), "{vmid} {case:?}\n{world:?}\n{plan}");
                with_steps += 1;
            }
        }
    }
    assert!(with_steps > crate::case_count(WORLDS) / 2, "only {with_steps} guests had steps");
}

/// `wait` contains only guests from `after` (for a stop: dependents) with a power step in the same direction, and there is no cycle. The
/// platform model executes every plan to its end elsewhere.
#[test]
fn wait_lists_follow_after() {
    let mut wait_count = 0_u64;
    for case in random_cases(SEED + 100, WORLDS) {
        let plan: Value = serde_json::from_slice(&plan_body(&case.inputs().plan())).expect("a body is JSON");
        let steps = crate::platform_model::steps_by_guest(&plan);
        let declared = |vmid: u64| elements(&case.world.desired["guests"]).find(|guest| vmid_of(guest) == vmid).expect("it is declared");
        let names = |guest: u64, on: u64| elements(&declared(guest)["after"]).any(|id| id.as_u64() == Some(on));
        let ends = |vmid: u64| steps.get(&vmid).and_then(|steps| steps.last()).map_or("", |step| text_of(&step["change"]));
        let goes_down = |vmid: u64| ["stop", "shutdown"].contains(&ends(vmid));
        for (vmid, own) in &steps {
            for other in own.iter().flat_map(|step| elements(&step["wait"])).map(|other| other.as_u64().expect("an id")) {
                wait_count += 1;
                let fits =
                    if goes_down(*vmid) { names(other, *vmid) && goes_down(other) } else { names(*vmid, other) && !goes_down(other) };
                assert!(fits && ends(other) != "config.set", "{vmid} waits for {other}: {case:?}\n{plan}");
            }
        }
    }
    assert!(wait_count > crate::case_count(WORLDS) / 50, "only {wait_count} waits");
}

/// The judgement decides independently and accepts what the planner makes.
#[test]
fn planner_never_breaks_a_guarantee() {
    let unlimited = Limits { guests: u32::MAX, percent: 100, stops: u32::MAX };
    for case in random_cases(SEED + 200, WORLDS) {
        let judged = judge(case.inputs().plan(), unlimited, Circumstances::default());
        assert!(judged.judgement().refusals().is_empty(), "{:?}\n{case:?}", judged.judgement());
    }
}

/// Observations that no parser returns but an observer could: unsorted and duplicate rows, on nodes that do not exist.
#[test]
fn planning_accepts_any_constructed_observation() {
    for mut case in random_cases(SEED + 300, WORLDS) {
        let inputs = case.inputs();
        let mut observation = inputs.observation.clone();
        let mut rows = observation.guests.to_vec();
        rows.extend(rows.clone().into_iter().filter(|_| case.rng.one_in(3)));
        for row in &mut rows {
            row.node = case.rng.index(6);
        }
        case.rng.shuffle(&mut rows);
        observation.guests = rows.into();
        let plan = inputs.plan_on(observation);
        assert_eq!(plan.verdicts().len(), inputs.desired.guests().len(), "{case:?}");
        let unlimited = Limits { guests: u32::MAX, percent: 100, stops: u32::MAX };
        let judged = judge(plan, unlimited, Circumstances::default());
        assert!(judged.judgement().refusals().is_empty(), "{:?}\n{case:?}", judged.judgement());
    }
}
