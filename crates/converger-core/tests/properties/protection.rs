//! Protected guests are not interrupted and stay protected, in all random worlds. The predicate is written independently here and uses only
//! the files and plan.json.

use serde_json::Value;

use converger_core::testing::{TestWorld, plan_body};

use crate::platform_model::{PendingAtStop, PlatformModel, elements, steps_by_guest, text_of, vmid_of};
use crate::random_cases;

const SEED: u64 = 8;
const WORLDS: u64 = 4_000;

/// Whether a step of plan.json takes the guest down, by its change or by its stated impact.
pub(crate) fn interrupts(step: &Value) -> bool {
    ["stop", "shutdown", "reboot"].contains(&text_of(&step["change"]))
        || ["reboot", "stop", "data-loss"].contains(&text_of(&step["impact"]))
}

/// What protects a guest.
pub(crate) fn protection_grounds(world: &TestWorld, vmid: u64) -> Vec<String> {
    let find = |tree: &Value| elements(&tree["guests"]).find(|guest| vmid_of(guest) == vmid).cloned().unwrap_or_default();
    let (wanted, row) = (find(&world.desired), find(&world.observation));
    let begins = |name: &Value| world.rules.names().iter().any(|prefix| text_of(name).to_lowercase().starts_with(prefix.as_str()));
    let mut protectors: Vec<String> =
        [&wanted["name"], &row["name"]].into_iter().filter(|name| begins(name)).map(Value::to_string).collect();
    protectors.extend(protecting_tags(world, &row));
    protectors.extend((row["protection"] == true).then(|| "flag".to_owned()));
    protectors.extend(world.rules.ids().iter().any(|id| u64::from(id.get()) == vmid).then(|| "id".to_owned()));
    protectors
}

/// Declared tags that protect: a plan may write them and then interrupt the guest.
fn declared_protecting_tags(world: &TestWorld, vmid: u64) -> Vec<String> {
    let guest = elements(&world.desired["guests"]).find(|guest| vmid_of(guest) == vmid).expect("it is declared");
    protecting_tags(world, &guest["config"])
}

fn protecting_tags(world: &TestWorld, row: &Value) -> Vec<String> {
    let protects = |tag: &str| world.rules.tags().iter().any(|own| *own == tag.to_lowercase());
    elements(&row["tags"]).map(text_of).filter(|tag| protects(tag)).map(str::to_owned).collect()
}

fn plan_json_of(world: &TestWorld) -> Value {
    let inputs = world.parse().unwrap_or_else(|faults| panic!("{faults:#?}\n{world:?}"));
    serde_json::from_slice(&plan_body(&inputs.plan())).expect("a body is JSON")
}

#[test]
fn g3_no_plan_interrupts_a_protected_guest() {
    let (mut interrupted, mut protected) = (0_u64, 0_u64);
    for case in random_cases(SEED, WORLDS) {
        let plan = plan_json_of(&case.world);
        for (vmid, steps) in steps_by_guest(&plan) {
            let protectors = [protection_grounds(&case.world, vmid), declared_protecting_tags(&case.world, vmid)].concat();
            let goes_down = steps.iter().any(interrupts);
            assert!(!goes_down || protectors.is_empty(), "{vmid} is protected by {protectors:?}: {case:?}\n{plan}");
            interrupted += u64::from(goes_down);
            protected += u64::from(!protectors.is_empty());
        }
    }
    assert!(interrupted > crate::case_count(WORLDS) / 10, "only {interrupted} guests were interrupted");
    assert!(protected > crate::case_count(WORLDS) / 20, "only {protected} protected guests had other steps");
}

#[test]
fn g3_no_step_removes_what_protects() {
    let mut protected = 0_u64;
    for case in random_cases(SEED + 100, WORLDS) {
        let plan = plan_json_of(&case.world);
        let mut model = PlatformModel::new(&case.world.observation, PendingAtStop::Applies);
        for (vmid, steps) in steps_by_guest(&plan) {
            for step in steps {
                assert_eq!(model.apply_step(vmid, &step), Ok(()), "{vmid} {case:?}\n{plan}");
            }
        }
        let after = TestWorld { observation: model.observation_after(&case.world.observation), ..case.world.clone() };
        for vmid in elements(&case.world.desired["guests"]).map(vmid_of) {
            let (before, after) = (protection_grounds(&case.world, vmid), protection_grounds(&after, vmid));
            let lost: Vec<&String> = before.iter().filter(|protector| !after.contains(protector)).collect();
            assert!(lost.is_empty(), "{vmid} has lost {lost:?}: {case:?}\n{plan}");
            protected += u64::from(!before.is_empty());
        }
    }
    assert!(protected > crate::case_count(WORLDS) / 10, "only {protected} guests were protected");
}
