//! What a proposal binds: a change of a step, a guest or a second object gives another digest, and nothing else does.

use converger_core::artifact::{Digest, proposal_digest};
use converger_core::guest::{ClusterIdentity, GuestKind};
use converger_core::plan::Plan;
use converger_core::policy::{BlockedBy, Circumstances, GuestBlock, Limits};
use converger_core::safety::{Judged, judge};
use converger_core::testing::RequestWorld;
use serde_json::{Value, json};

use super::{PropertyCase, random_cases};

const SEED: u64 = 0x0091_7020;
const CASES: u64 = 2_000;

fn proposal_of(plan: Plan, circumstances: Circumstances) -> Digest {
    let judged: Judged = judge(plan, Limits::default(), circumstances);
    proposal_digest(judged.plan(), judged.judgement()).expect("memory takes it")
}

fn proposal_of_case(case: &PropertyCase) -> Digest {
    proposal_of(case.inputs().plan(), Circumstances::default())
}

/// The guests with steps, as the plan body has them.
fn proposed_rows(case: &PropertyCase) -> Vec<Value> {
    let mut body = Vec::new();
    converger_core::artifact::write_body(&mut body, &case.inputs().plan()).expect("memory takes it");
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    body["guests"].as_array().expect("guests").iter().filter(|row| row["verdict"] == "steps").cloned().collect()
}

/// Edits that no step depends on: another description of a guest without steps, its tags, its memory, a note.
#[test]
fn g15_edit_of_a_guest_without_steps_does_not_change_the_proposal() {
    let mut edits = 0;
    for mut case in random_cases(SEED, CASES) {
        let before = (proposal_of_case(&case), proposed_rows(&case));
        let ids: Vec<Value> = before.1.iter().map(|row| row["vmid"].clone()).collect();
        let rows = case.world.observation["guests"].as_array_mut().expect("rows");
        for row in rows.iter_mut().filter(|row| !ids.contains(&row["vmid"])) {
            row["cpus"] = json!(77);
            row["maxmem"] = json!(1_u64 << 40);
            edits += 1;
        }
        case.world.observation["notes"] = json!([]);
        // A changed row may still give or take steps through `after`; then the proposal is another one, and rightly so.
        if proposed_rows(&case) == before.1 {
            assert_eq!(proposal_of_case(&case), before.0, "{case:?}");
        }
    }
    assert!(edits > CASES / 2, "{edits} edits");
}

/// Two worlds have the same proposal exactly if they propose the same steps on the same guests.
#[test]
fn g15_proposals_are_equal_exactly_if_the_proposed_steps_are() {
    let (mut equal, mut different) = (0, 0);
    for mut case in random_cases(SEED ^ 1, CASES) {
        let before = (proposal_of_case(&case), proposed_rows(&case));
        let index = case.rng.index(case.world.observation["guests"].as_array().map_or(1, Vec::len));
        let status = case.world.observation["guests"][index]["status"].clone();
        // A guest whose state is unknown has no name, and a row with a state needs one.
        if status != "running" && status != "stopped" {
            continue;
        }
        let Some(row) = case.world.observation["guests"].get_mut(index) else { continue };
        row["status"] = json!(if status == "running" { "stopped" } else { "running" });
        row.as_object_mut().expect("a row").remove("run_state");
        let after = (proposal_of_case(&case), proposed_rows(&case));
        let shown = |rows: &[Value]| rows.iter().map(without_guards).collect::<Vec<_>>();
        assert_eq!(before.0 == after.0, shown(&before.1) == shown(&after.1), "{case:?}");
        if before.0 == after.0 { equal += 1 } else { different += 1 }
    }
    assert!(equal > 100 && different > 100, "{equal} equal, {different} different");
}

/// A row as the proposal has it: birth marks instead of guards, and no reasons.
fn without_guards(row: &Value) -> Value {
    let mut row = row.clone();
    row["precondition"] = row["precondition"]["identity"].clone();
    for step in row["steps"].as_array_mut().into_iter().flatten() {
        step.as_object_mut().expect("a step").remove("reason");
    }
    row
}

fn request_proposal(world: &RequestWorld, action: &str, vmid: u64, parameters: &[(&str, &str)]) -> Digest {
    proposal_of(world.plan_action(action, GuestKind::Qemu, vmid, parameters), Circumstances::default())
}

/// Every second object of a request is part of its proposal.
#[test]
fn g15_second_objects_change_the_proposal() {
    type Edit = (&'static str, u64, &'static [(&'static str, &'static str)], fn(&mut RequestWorld));
    const CLONE: &[(&str, &str)] = &[("newid", "120"), ("name", "web-3")];
    let edits: [Edit; 10] = [
        ("vm.snapshot.delete", 100, &[("name", "old")], |world| world.guest_mut(100)["snapshots"]["list"][0]["made_at"] = json!(7)),
        ("vm.snapshot.rollback", 100, &[("name", "old")], |world| world.guest_mut(100)["snapshots"]["list"][0]["made_at"] = json!(7)),
        ("vm.snapshot.rollback", 100, &[("name", "old")], |world| world.guest_mut(100)["snapshots"]["current"] = json!("old")),
        ("vm.snapshot.rollback", 100, &[("name", "old")], |world| {
            world.guest_mut(100)["hardware"]["disks"][0]["volume"] = json!("shared:vm-100-disk-9");
        }),
        ("vm.disk.grow", 100, &[("disk", "scsi0"), ("size", "40GiB")], |world| {
            world.guest_mut(100)["hardware"]["disks"][0]["volume"] = json!("shared:vm-100-disk-9");
        }),
        ("vm.disk.grow", 100, &[("disk", "scsi0"), ("size", "40GiB")], |world| {
            world.guest_mut(100)["hardware"]["disks"][0]["size_kib"] = json!(33 << 20);
        }),
        ("vm.clone", 900, CLONE, |world| world.guest_mut(900)["digest"] = json!("0fe8dcaad38c42e5626b836ae80a400e0792ac21")),
        ("vm.clone", 900, CLONE, |world| world.guest_mut(900)["identity"]["uuid"] = json!("other")),
        ("vm.clone", 900, CLONE, |world| world.guest_mut(900)["node"] = json!("pve2")),
        ("vm.migrate", 100, &[("node", "pve3")], |world| world.guest_mut(100)["node"] = json!("pve2")),
    ];
    for (action, vmid, parameters, edit) in edits {
        let mut world = RequestWorld::default();
        let before = request_proposal(&world, action, vmid, parameters);
        world.guest_mut(101)["name"] = json!("renamed");
        world.guest_mut(101)["digest"] = json!("aa");
        assert_eq!(request_proposal(&world, action, vmid, parameters), before, "{action}: another guest was edited");
        edit(&mut world);
        assert_ne!(request_proposal(&world, action, vmid, parameters), before, "{action}");
    }
}

#[test]
fn g15_parameters_environment_and_cluster_change_the_proposal() {
    let world = RequestWorld::default();
    let grow = |size: &str| request_proposal(&world, "vm.disk.grow", 100, &[("disk", "scsi0"), ("size", size)]);
    assert_eq!(grow("40GiB"), grow("40960M"));
    assert_ne!(grow("40GiB"), grow("41GiB"));
    let cluster = |pair: &str| {
        let cluster = ClusterIdentity::parse(&[pair; 32].join(":"));
        let plan = world.plan_action("vm.stop", GuestKind::Qemu, 100, &[]);
        proposal_of(plan, Circumstances { cluster, ..Circumstances::default() })
    };
    assert_ne!(cluster("0A"), cluster("0B"));
}

/// After a restore, the store does not know what was done with the approvals of the epochs before.
#[test]
fn g15_a_later_epoch_changes_the_proposal() {
    let world = RequestWorld::default();
    let proposal = |epoch| {
        let plan = world.plan_action("vm.stop", GuestKind::Qemu, 100, &[]);
        proposal_of(plan, Circumstances { epoch, ..Circumstances::default() })
    };
    assert_ne!(proposal(None), proposal(Some(2)));
    assert_ne!(proposal(Some(2)), proposal(Some(3)));
}

/// A held guest is not proposed, so a proposal of the time of the hold does not cover its steps after the release.
#[test]
fn g15_a_released_guest_changes_the_proposal() {
    let world = RequestWorld::default();
    let plan = || world.plan_action("vm.stop", GuestKind::Qemu, 100, &[]);
    let vmid = converger_core::guest::Vmid::new(100).expect("an id");
    let holds = vec![GuestBlock { vmid, by: BlockedBy::Operation("run-0".into()) }];
    assert_ne!(proposal_of(plan(), Circumstances { holds, ..Circumstances::default() }), proposal_of(plan(), Circumstances::default()));
}

/// Edits of guests with steps, of keys that are not declared of them: no step depends on those.
#[test]
fn g15_edit_of_an_undeclared_key_does_not_change_the_proposal() {
    let mut edits = 0;
    for mut case in random_cases(SEED ^ 2, CASES) {
        let before = proposal_of_case(&case);
        let ids: Vec<Value> = proposed_rows(&case).iter().map(|row| row["vmid"].clone()).collect();
        let declared = case.world.desired["guests"].as_array().cloned().unwrap_or_default();
        let declares_key = |vmid: &Value, key: &str| {
            let config = declared.iter().find(|guest| guest["vmid"] == *vmid).and_then(|guest| guest["config"].as_object().cloned());
            config.is_some_and(|config| config.contains_key(key))
        };
        let rows = case.world.observation["guests"].as_array_mut().expect("rows");
        for row in rows.iter_mut().filter(|row| ids.contains(&row["vmid"]) && row["config"].is_object()) {
            let vmid = row["vmid"].clone();
            if declares_key(&vmid, "description") {
                continue;
            }
            row["config"]["description"] = json!("edited by somebody else");
            row["maxmem"] = json!(1_u64 << 40);
            edits += 1;
        }
        assert_eq!(proposal_of_case(&case), before, "{case:?}");
    }
    assert!(edits > CASES / 8, "{edits} edits");
}
