//! Applying a plan in the model and planning again leaves nothing to do: for whole worlds, for every prefix of a guest's steps, and for
//! every managed field of both kinds with every pair of values.

use serde_json::{Value, json};

use converger_core::guest::GuestKind;
use converger_core::normalize::{Field, FieldRole, TABLE};
use converger_core::policy::Rules;
use converger_core::testing::{Rng, TestWorld, observed_values, plan_body, to_declared_form, wanted_values};

use crate::platform_model::{
    PendingAtStop, PlatformModel, apply_plan, elements, has_pending_declared, is_same_effect, steps_by_guest, text_of, vmid_of,
};
use crate::random_cases;

const SEED: u64 = 4;
const WORLDS: u64 = 3_000;

fn plan_body_of(world: &TestWorld) -> Value {
    let inputs = world.parse().unwrap_or_else(|faults| panic!("{faults:#?}\n{world:?}"));
    serde_json::from_slice(&plan_body(&inputs.plan())).expect("a body is JSON")
}

fn guest_of(body: &Value, vmid: u64) -> &Value {
    elements(&body["guests"]).find(|guest| vmid_of(guest) == vmid).expect("every declared guest is in the plan")
}

#[test]
fn planning_after_a_full_run_finds_nothing_to_do() {
    let mut changed = 0_u64;
    for mut case in random_cases(SEED, WORLDS) {
        let plan = plan_body_of(&case.world);
        for at_stop in [PendingAtStop::Applies, PendingAtStop::Keeps] {
            let mut model = PlatformModel::new(&case.world.observation, at_stop);
            let done = apply_plan(&mut model, &case.world.desired, &plan, &mut case.rng);
            assert_eq!(done, Ok(()), "{at_stop:?} {case:?}\nplan: {plan}");
            let after = TestWorld { observation: model.observation_after(&case.world.observation), ..case.world.clone() };
            let again = plan_body_of(&after);
            for vmid in steps_by_guest(&plan).into_keys() {
                let verdict = guest_of(&again, vmid);
                assert_eq!(verdict["verdict"], "converged", "{vmid} {at_stop:?} {case:?}\nplan: {plan}\nagain: {again}");
                assert_eq!(
                    verdict["pending_restart"] == json!(true),
                    has_pending_declared(&after.desired, &after.observation, vmid),
                    "{vmid} {at_stop:?} {case:?}\nagain: {again}"
                );
                changed += 1;
            }
        }
    }
    assert!(changed > crate::case_count(WORLDS), "only {changed} guests were changed");
}

/// Planning again after a run stopped in the middle gives exactly the remaining steps.
#[test]
fn planning_after_a_partial_run_gives_the_remaining_steps() {
    let mut taken_up = 0_u64;
    for case in random_cases(SEED + 100, WORLDS) {
        let plan = plan_body_of(&case.world);
        for (vmid, steps) in steps_by_guest(&plan).into_iter().filter(|(_, steps)| steps.len() > 1) {
            for done in 1..steps.len() {
                let mut model = PlatformModel::new(&case.world.observation, PendingAtStop::Applies);
                for step in steps.iter().take(done) {
                    assert_eq!(model.apply_step(vmid, step), Ok(()), "{vmid} {case:?}\nplan: {plan}");
                }
                let after = TestWorld { observation: model.observation_after(&case.world.observation), ..case.world.clone() };
                let again = plan_body_of(&after);
                let rest = &guest_of(&again, vmid)["steps"];
                let changes =
                    |steps: &mut dyn Iterator<Item = &Value>| steps.map(|step| text_of(&step["change"]).to_owned()).collect::<Vec<_>>();
                assert_eq!(
                    changes(&mut elements(rest)),
                    changes(&mut steps.iter().skip(done)),
                    "{vmid} after {done} steps, {case:?}\nplan: {plan}\nagain: {}",
                    guest_of(&again, vmid)
                );
                taken_up += 1;
            }
        }
    }
    assert!(taken_up > crate::case_count(WORLDS) / 20, "only {taken_up} plans were interrupted");
}

/// A world of one guest with one declared field.
struct SingleFieldCase {
    kind: GuestKind,
    field: Field,
    wanted: Value,
    seen: Option<Value>,
    pending: Vec<Value>,
    is_running: bool,
    restart: &'static str,
    memory_hotplug: bool,
}

impl SingleFieldCase {
    fn world(&self) -> TestWorld {
        let mut rng = Rng::new(SEED);
        let mut config = json!({});
        if self.memory_hotplug {
            config = json!({ "hotplug": ["memory"], "numa": true });
        }
        let mut tags = json!([]);
        if let Some(seen) = &self.seen {
            if self.field == Field::Tags { tags = seen.clone() } else { config[self.field.word()] = seen.clone() }
        }
        let desired = json!({ "version": 1, "environment": "lab", "guests": [{
            "vmid": 100, "kind": self.kind.word(), "name": "web", "restart": self.restart,
            "config": { self.field.word(): to_declared_form(self.field, &self.wanted, &mut rng) } }] });
        let row = json!({ "vmid": 100, "kind": self.kind.word(), "name": "web", "node": "pve1",
            "status": if self.is_running { "running" } else { "stopped" }, "lock": null, "ha": null, "template": false,
            "protection": false, "tags": tags, "pending": self.pending, "config": config });
        let observation = json!({ "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
            "nodes": [{ "name": "pve1", "online": true }], "guests": [row] });
        TestWorld { desired, observation, rules: Rules::default() }
    }

    fn is_met(&self) -> bool {
        is_same_effect(self.kind, self.field, &self.wanted, self.seen.as_ref().unwrap_or(&Value::Null))
    }
}

/// Every wanted value with every observed one, running and stopped, with and without permission to restart.
fn all_single_field_cases() -> Vec<SingleFieldCase> {
    let mut singles = Vec::new();
    for rule in TABLE.iter().filter(|rule| rule.role == FieldRole::Managed) {
        let (kind, field) = (rule.kind, rule.field);
        let seen_values = observed_values(field).into_iter().map(Some).chain([None]);
        for seen in seen_values {
            for wanted in wanted_values(kind, field) {
                for (is_running, restart, memory_hotplug) in [
                    (true, "never", false),
                    (true, "when-needed", false),
                    (true, "never", true),
                    (false, "never", false),
                    (false, "when-needed", true),
                ] {
                    let memory_hotplug = memory_hotplug && kind == GuestKind::Qemu;
                    let pending = vec![];
                    singles.push(SingleFieldCase {
                        kind,
                        field,
                        wanted: wanted.clone(),
                        seen: seen.clone(),
                        pending,
                        is_running,
                        restart,
                        memory_hotplug,
                    });
                }
            }
        }
    }
    singles
}

#[test]
fn every_managed_field_converges_after_one_write() {
    let mut written = std::collections::BTreeSet::new();
    for single in all_single_field_cases() {
        let world = single.world();
        let plan = plan_body_of(&world);
        let verdict = guest_of(&plan, 100);
        // The platform rejects a balloon above the memory of the guest.
        if elements(&verdict["refusals"]).any(|refusal| refusal["code"] == "unsupported-change") && single.field == Field::Balloon {
            continue;
        }
        // A tag that protects or holds is not removed.
        if single.field == Field::Tags && elements(&verdict["refusals"]).next().is_some() {
            let protected =
                elements(&verdict["refusals"]).all(|refusal| ["protection-change", "guest-held"].contains(&text_of(&refusal["code"])));
            assert!(protected, "{world:?}\n{plan}");
            continue;
        }
        let is_met = single.is_met();
        assert_eq!(verdict["verdict"], if is_met { "converged" } else { "steps" }, "{world:?}\n{plan}");
        let mut model = PlatformModel::new(&world.observation, PendingAtStop::Applies);
        assert_eq!(apply_plan(&mut model, &world.desired, &plan, &mut Rng::new(SEED)), Ok(()), "{world:?}\n{plan}");
        let after = TestWorld { observation: model.observation_after(&world.observation), ..world };
        let again = plan_body_of(&after);
        assert_eq!(guest_of(&again, 100)["verdict"], "converged", "{after:?}\n{plan}\n{again}");
        assert_eq!(
            guest_of(&again, 100)["pending_restart"] == json!(true),
            has_pending_declared(&after.desired, &after.observation, 100),
            "{after:?}\n{again}"
        );
        assert!(
            !has_pending_declared(&after.desired, &after.observation, 100) || (single.is_running && single.restart == "never"),
            "{after:?}"
        );
        if !is_met {
            written.insert((single.kind, single.field));
        }
    }
    let managed = TABLE.iter().filter(|rule| rule.role == FieldRole::Managed).count();
    assert_eq!(written.len(), managed, "{written:?}");
}

/// Pending changes of a declared field: the declared value is kept, another value is overwritten, and a restart follows only if a declared
/// value is pending.
#[test]
fn declared_field_with_a_pending_value_converges() {
    let mut interrupted = 0;
    for mut single in all_single_field_cases().into_iter().filter(|single| single.field != Field::Tags && single.field != Field::Balloon) {
        for value in observed_values(single.field).into_iter().chain([Value::Null]) {
            let key = single.field.word();
            single.pending =
                vec![if value.is_null() { json!({ "key": key, "delete": true }) } else { json!({ "key": key, "value": value }) }];
            let world = single.world();
            let plan = plan_body_of(&world);
            let mut model = PlatformModel::new(&world.observation, PendingAtStop::Applies);
            assert_eq!(apply_plan(&mut model, &world.desired, &plan, &mut Rng::new(SEED)), Ok(()), "{world:?}\n{plan}");
            let reboots = elements(&guest_of(&plan, 100)["steps"]).any(|step| step["change"] == "reboot");
            let is_met = single.is_met();
            assert!(!reboots || !is_met, "a restart for what is already in effect: {world:?}\n{plan}");
            interrupted += u64::from(reboots);
            let after = TestWorld { observation: model.observation_after(&world.observation), ..world };
            let again = plan_body_of(&after);
            assert_eq!(guest_of(&again, 100)["verdict"], "converged", "{after:?}\n{plan}\n{again}");
        }
    }
    assert!(interrupted > 0);
}
