//! What requested actions plan, and everything that they refuse. Each refusal is one detail away from a plan.

use serde_json::{Value, json};

use super::*;
use crate::guest::GuestKind::{Lxc, Qemu};
use crate::guest::{GuestIdentity, GuestKind};
use crate::policy::{Birth, Circumstances, Limits};
use crate::refusal::{Datum, RefusalCode};
use crate::safety::{Judged, judge};
use crate::testing::RequestWorld;

/// One request, by action, kind, guest and parameters.
type RequestCase = (&'static str, GuestKind, u64, &'static [(&'static str, &'static str)]);

const CREATE: RequestCase = ("vm.snapshot.create", Qemu, 100, &[("name", "new")]);
const CREATE_RAM: RequestCase = ("vm.snapshot.create", Qemu, 100, &[("name", "new"), ("ram", "true")]);
const DELETE: RequestCase = ("vm.snapshot.delete", Qemu, 100, &[("name", "old")]);
const ROLLBACK: RequestCase = ("vm.snapshot.rollback", Qemu, 100, &[("name", "old")]);
const ROLLBACK_RAM: RequestCase = ("vm.snapshot.rollback", Qemu, 100, &[("name", "warm")]);
const GROW: RequestCase = ("vm.disk.grow", Qemu, 100, &[("disk", "scsi0"), ("size", "40GiB")]);
const MIGRATE: RequestCase = ("vm.migrate", Qemu, 100, &[("node", "pve2")]);
const MIGRATE_COPY: RequestCase = ("vm.migrate", Qemu, 100, &[("node", "pve2"), ("local-disks", "true")]);
const CLONE: RequestCase = ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-3")]);
const CLONE_FULL: RequestCase = ("vm.clone", Qemu, 101, &[("newid", "120"), ("name", "web-3"), ("node", "pve2"), ("storage", "local")]);

fn plan_case(world: &RequestWorld, (action, kind, vmid, parameters): RequestCase) -> Plan {
    world.plan_action(action, kind, vmid, parameters)
}

/// The changes that a request plans, or the codes that refuse it.
fn outcome(world: &RequestWorld, case: RequestCase) -> Vec<&'static str> {
    match &plan_case(world, case).verdicts()[0] {
        Verdict::Steps(steps) => steps.iter().map(|step| step.change.word()).collect(),
        Verdict::Refused(refusals) => refusals.iter().map(|refusal| refusal.code().word()).collect(),
        Verdict::Converged { .. } => vec!["converged"],
    }
}

#[track_caller]
fn check(case: RequestCase, change: impl FnOnce(&mut RequestWorld), expected: &[&str]) {
    let mut world = RequestWorld::default();
    change(&mut world);
    assert_eq!(outcome(&world, case), expected, "{case:?}");
}

fn set_disk(world: &mut RequestWorld, vmid: u32, key: &str, value: Value) {
    world.guest_mut(vmid)["hardware"]["disks"][0][key] = value;
}

fn remove(world: &mut RequestWorld, vmid: u32, key: &str) {
    world.guest_mut(vmid).as_object_mut().expect("a row").remove(key);
}

#[test]
fn plans_every_action() {
    let cases: [(RequestCase, &str); 18] = [
        (("vm.start", Qemu, 101, &[]), "start"),
        (("vm.start", Qemu, 100, &[]), "converged"),
        (("vm.shutdown", Lxc, 102, &[]), "shutdown"),
        (("vm.stop", Qemu, 100, &[]), "stop"),
        (("vm.reboot", Qemu, 100, &[]), "reboot"),
        (("vm.config.set", Qemu, 100, &[("cores", "4")]), "config.set"),
        (("vm.config.set", Qemu, 100, &[("cores", "2")]), "converged"),
        (CREATE, "snapshot.create"),
        (CREATE_RAM, "snapshot.create"),
        (DELETE, "snapshot.delete"),
        (ROLLBACK, "snapshot.rollback"),
        (ROLLBACK_RAM, "snapshot.rollback"),
        (GROW, "disk.grow"),
        (("vm.disk.grow", Lxc, 102, &[("disk", "rootfs"), ("size", "32GiB")]), "converged"),
        (MIGRATE, "migrate"),
        (("vm.migrate", Lxc, 102, &[("node", "pve2"), ("mode", "restart")]), "migrate"),
        (CLONE, "clone"),
        (CLONE_FULL, "clone"),
    ];
    let world = RequestWorld::default();
    for (case, expected) in cases {
        assert_eq!(outcome(&world, case), [expected], "{case:?}");
        let judged = judge(plan_case(&world, case), Limits::default(), Circumstances::default());
        assert!(matches!(judged, Judged::Safe(_)), "{case:?}: {:?}", judged.judgement());
    }
}

#[test]
fn refuses_a_snapshot_name_that_exists_in_any_letter_case() {
    check(("vm.snapshot.create", Qemu, 100, &[("name", "old")]), |_| (), &["snapshot-exists"]);
    check(("vm.snapshot.create", Qemu, 100, &[("name", "OLD")]), |_| (), &["snapshot-exists"]);
}

#[test]
fn refuses_a_snapshot_that_does_not_exist() {
    check(("vm.snapshot.delete", Qemu, 100, &[("name", "gone")]), |_| (), &["snapshot-missing"]);
    check(("vm.snapshot.rollback", Qemu, 101, &[("name", "old")]), |_| (), &["snapshot-missing"]);
}

#[test]
fn refuses_snapshot_actions_while_a_snapshot_is_unfinished() {
    for case in [CREATE, DELETE, ROLLBACK] {
        check(case, |world| world.guest_mut(100)["snapshots"]["list"][1]["state"] = json!("prepare"), &["snapshot-unfinished"]);
    }
}

#[test]
fn g1_refuses_what_was_not_read() {
    for case in [CREATE, DELETE, ROLLBACK] {
        check(case, |world| remove(world, 100, "snapshots"), &["guard-unread"]);
    }
    for case in [CREATE_RAM, ROLLBACK, GROW, MIGRATE] {
        check(case, |world| remove(world, 100, "hardware"), &["guard-unread"]);
    }
    check(MIGRATE, |world| remove(world, 100, "replicated"), &["guard-unread"]);
    check(MIGRATE, |world| drop(world.observation["nodes"][1].as_object_mut().expect("a node").remove("capacity")), &["guard-unread"]);
    for case in [MIGRATE, MIGRATE_COPY] {
        check(case, |world| drop(world.observation["nodes"][1].as_object_mut().expect("a node").remove("storages")), &["guard-unread"]);
    }
    check(
        DELETE,
        |world| drop(world.guest_mut(100)["snapshots"]["list"][0].as_object_mut().expect("one").remove("made_at")),
        &["guard-unread"],
    );
    check(
        ROLLBACK_RAM,
        |world| drop(world.guest_mut(100)["snapshots"]["list"][1].as_object_mut().expect("one").remove("cpu")),
        &["guard-unread"],
    );
    for key in ["identity", "digest", "lock", "tags", "protection", "hardware"] {
        check(CLONE, |world| remove(world, 900, key), &["guard-unread"]);
    }
    check(CREATE, |world| remove(world, 100, "identity"), &["guard-unread"]);
}

#[test]
fn refuses_to_save_memory_that_cannot_be_saved() {
    check(("vm.snapshot.create", Qemu, 101, &[("name", "new"), ("ram", "true")]), |_| (), &["ram-state-unavailable"]);
    check(("vm.snapshot.create", Lxc, 102, &[("name", "new"), ("ram", "true")]), |_| (), &["ram-state-unavailable"]);
    check(CREATE_RAM, |world| world.guest_mut(100)["hardware"]["host_devices"] = json!(["hostpci0"]), &["ram-state-unavailable"]);
}

#[test]
fn refuses_to_resume_memory_on_other_hardware() {
    let use_host_cpu = |world: &mut RequestWorld| world.guest_mut(100)["snapshots"]["list"][1]["cpu"] = json!("host,+kvm_pv_eoi");
    check(ROLLBACK_RAM, use_host_cpu, &["snapshot.rollback"]);
    let set_model = |model: &'static str| {
        move |world: &mut RequestWorld| {
            use_host_cpu(world);
            world.observation["nodes"][2]["capacity"]["cpu_model"] = json!(model);
        }
    };
    check(ROLLBACK_RAM, set_model("Xeon 2"), &["snapshot-hardware"]);
    check(
        ROLLBACK_RAM,
        |world| {
            use_host_cpu(world);
            world.observation["nodes"][2].as_object_mut().expect("a node").remove("capacity");
        },
        &["snapshot-hardware"],
    );
}

#[test]
fn refuses_an_unsuitable_run_state() {
    check(("vm.reboot", Qemu, 101, &[]), |_| (), &["run-state-unsuitable"]);
    check(("vm.migrate", Qemu, 101, &[("node", "pve2"), ("mode", "online")]), |_| (), &["run-state-unsuitable"]);
    check(("vm.migrate", Qemu, 100, &[("node", "pve2"), ("mode", "offline")]), |_| (), &["run-state-unsuitable"]);
    check(("vm.migrate", Lxc, 102, &[("node", "pve2")]), |_| (), &["run-state-unsuitable"]);
    check(("vm.reboot", Lxc, 102, &[]), |_| (), &["unsupported-change"]);
}

#[test]
fn refuses_to_grow_a_disk_that_is_missing_or_would_shrink() {
    check(("vm.disk.grow", Qemu, 100, &[("disk", "scsi1"), ("size", "40GiB")]), |_| (), &["disk-missing"]);
    check(GROW, |world| set_disk(world, 100, "cdrom", json!(true)), &["disk-missing"]);
    check(
        GROW,
        |world| drop(world.guest_mut(100)["hardware"]["disks"][0].as_object_mut().expect("a disk").remove("size_kib")),
        &["disk-missing"],
    );
    check(("vm.disk.grow", Qemu, 100, &[("disk", "scsi0"), ("size", "31GiB")]), |_| (), &["disk-shrink"]);
    check(("vm.disk.grow", Qemu, 100, &[("disk", "scsi0"), ("size", "40TiB")]), |_| (), &["storage-full"]);
}

#[test]
fn refuses_to_move_a_guest_that_is_tied_to_its_node() {
    check(MIGRATE, |world| world.guest_mut(100)["hardware"]["host_devices"] = json!(["hostpci0"]), &["local-resources"]);
    let use_local_disk = |world: &mut RequestWorld| {
        set_disk(world, 100, "storage", json!("local"));
        set_disk(world, 100, "volume", json!("local:vm-100-disk-0"));
    };
    check(MIGRATE, use_local_disk, &["local-resources"]);
    check(MIGRATE_COPY, use_local_disk, &["migrate"]);
    check(
        MIGRATE_COPY,
        |world| {
            use_local_disk(world);
            set_disk(world, 100, "cdrom", json!(true));
        },
        &["local-resources"],
    );
    check(MIGRATE, |world| world.guest_mut(100)["replicated"] = json!(true), &["guest-replicated"]);
}

#[test]
fn refuses_a_node_that_cannot_take_the_guest() {
    check(MIGRATE, |world| world.observation["nodes"][1]["online"] = json!(false), &["node-offline"]);
    check(("vm.migrate", Qemu, 100, &[("node", "pve9")]), |_| (), &["node-offline"]);
    check(MIGRATE, |world| world.observation["nodes"][1]["capacity"]["memory_available"] = json!(1 << 30), &["node-memory"]);
    check(
        ("vm.migrate", Qemu, 101, &[("node", "pve2")]),
        |world| {
            world.observation["nodes"][1]["capacity"]["memory_available"] = json!(1 << 30);
        },
        &["migrate"],
    );
    let set_storage =
        |key: &'static str, value: Value| move |world: &mut RequestWorld| world.observation["nodes"][1]["storages"][1][key] = value;
    check(MIGRATE, set_storage("active", json!(false)), &["storage-unsuitable"]);
    check(MIGRATE, set_storage("content", json!(["iso"])), &["storage-unsuitable"]);
    check(
        MIGRATE,
        |world| drop(world.observation["nodes"][1]["storages"].as_array_mut().expect("storages").remove(1)),
        &["storage-unsuitable"],
    );
    let fill_local = |world: &mut RequestWorld| world.observation["nodes"][1]["storages"][0]["available"] = json!(1 << 30);
    check(CLONE_FULL, fill_local, &["storage-full"]);
    check(("vm.migrate", Qemu, 100, &[("node", "pve1")]), |_| (), &["converged"]);
}

#[test]
fn refuses_a_clone_onto_a_taken_or_unknown_id() {
    check(("vm.clone", Qemu, 900, &[("newid", "101"), ("name", "web-3")]), |_| (), &["id-taken"]);
    check(("vm.clone", Qemu, 900, &[("newid", "102"), ("name", "web-3")]), |_| (), &["id-taken"]);
    // A list that may lack guests proves nothing about an id.
    check(CLONE, |world| world.observation["complete"] = json!(false), &["observation-incomplete", "guest-unknown"]);
}

#[test]
fn refuses_a_source_that_cannot_be_cloned_so() {
    check(("vm.clone", Qemu, 101, &[("newid", "120"), ("name", "web-3"), ("disks", "linked")]), |_| (), &["not-a-template"]);
    check(CLONE, |world| world.guest_mut(900)["lock"] = json!("backup"), &["guest-locked"]);
    check(CLONE, |world| world.guest_mut(900)["tags"] = json!(["converger-hold"]), &["guest-held"]);
    check(CLONE, |world| world.guest_mut(900)["hardware"]["host_devices"] = json!(["usb0"]), &["local-resources"]);
    check(("vm.clone", Lxc, 900, &[("newid", "120"), ("name", "web-3")]), |_| (), &["kind-mismatch"]);
    // Proxmox copies a running container only from a snapshot.
    check(("vm.clone", Lxc, 102, &[("newid", "120"), ("name", "dns-2")]), |_| (), &["run-state-unsuitable"]);
    check(("vm.clone", Qemu, 901, &[("newid", "120"), ("name", "web-3")]), |_| (), &["guest-missing"]);
    check(CLONE, |world| world.guest_mut(900)["status"] = json!("unknown"), &["guest-unknown"]);
    check(CLONE_FULL, |world| set_disk(world, 101, "storage", json!("local")), &["local-resources"]);
}

/// Proxmox would store the values and report success, and the guest would never read them.
#[test]
fn refuses_cloud_init_parameters_without_a_cloud_init_drive() {
    let remove_drive = |world: &mut RequestWorld| {
        world.guest_mut(900)["hardware"]["disks"].as_array_mut().expect("disks").retain(|disk| disk["cdrom"] == false)
    };
    const BASE: [(&str, &str); 2] = [("newid", "120"), ("name", "web-7")];
    const EACH: [[(&str, &str); 3]; 4] = [
        [BASE[0], BASE[1], ("ci-user", "debian")],
        [BASE[0], BASE[1], ("addresses", "dhcp")],
        [BASE[0], BASE[1], ("dns", "10.0.0.1")],
        [BASE[0], BASE[1], ("password", "env:WEB")],
    ];
    for parameters in &EACH {
        check(("vm.clone", Qemu, 900, parameters), remove_drive, &["cloud-init-missing"]);
    }
    let mut world = RequestWorld::default();
    remove_drive(&mut world);
    let hardware_only = ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-7"), ("bridge", "vmbr1"), ("vlan", "7")][..]);
    assert!(matches!(plan_case(&world, hardware_only).verdicts(), [Verdict::Steps(_)]));
    for volume in ["local:900/vm-900-cloudinit.qcow2", "local:cloudinit", "shared:vm-900-cloudinit"] {
        let mut world = RequestWorld::default();
        world.guest_mut(900)["hardware"]["disks"][0] = json!({ "cdrom": true, "key": "ide2", "storage": "local", "volume": volume });
        assert!(matches!(plan_case(&world, ("vm.clone", Qemu, 900, &EACH[0])).verdicts(), [Verdict::Steps(_)]), "{volume}");
    }
}

/// A container without a network device has no birth mark of its own: every container under the id would be taken for it.
#[test]
fn refuses_steps_after_the_clone_of_a_container_without_birth_marks() {
    let unmarked = |world: &mut RequestWorld| {
        world.guest_mut(102)["status"] = json!("stopped");
        drop(world.guest_mut(102)["identity"].as_object_mut().expect("marks").remove("mac"));
    };
    const CLONE_ONLY: &[(&str, &str)] = &[("newid", "120"), ("name", "dns-2"), ("disks", "full")];
    const EACH: [[(&str, &str); 4]; 3] = [
        [CLONE_ONLY[0], CLONE_ONLY[1], CLONE_ONLY[2], ("bridge", "vmbr1")],
        [CLONE_ONLY[0], CLONE_ONLY[1], CLONE_ONLY[2], ("memory", "1GiB")],
        [CLONE_ONLY[0], CLONE_ONLY[1], CLONE_ONLY[2], ("start", "true")],
    ];
    for parameters in &EACH {
        check(("vm.clone", Lxc, 102, parameters), unmarked, &["unsupported-change"]);
        let mut marked = RequestWorld::default();
        marked.guest_mut(102)["status"] = json!("stopped");
        assert!(matches!(plan_case(&marked, ("vm.clone", Lxc, 102, parameters)).verdicts(), [Verdict::Steps(_)]), "{parameters:?}");
    }
    let mut world = RequestWorld::default();
    unmarked(&mut world);
    assert!(matches!(plan_case(&world, ("vm.clone", Lxc, 102, CLONE_ONLY)).verdicts(), [Verdict::Steps(_)]));
}

/// A typing error in the name of a node is no outage.
#[test]
fn names_the_nodes_that_exist() {
    let plan = plan_case(&RequestWorld::default(), ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-7"), ("node", "pve9")]));
    let [Verdict::Refused(refusals)] = plan.verdicts() else { panic!("{:?}", plan.verdicts()) };
    let nodes = Datum::Words(["pve1", "pve2", "pve3"].map(str::to_owned).into());
    assert!(
        refusals.iter().any(|refusal| refusal.evidence().iter().any(|(key, datum)| *key == "nodes" && *datum == nodes)),
        "{refusals:?}"
    );
}

#[test]
fn g3_refuses_to_copy_protection_that_was_not_requested() {
    check(CLONE, |world| world.guest_mut(900)["tags"] = json!(["prod"]), &["protection-copied"]);
    check(CLONE, |world| world.guest_mut(900)["protection"] = json!(true), &["protection-copied"]);
}

#[test]
fn g3_refuses_to_interrupt_a_protected_guest_by_request() {
    let protect = |world: &mut RequestWorld| world.guest_mut(100)["tags"] = json!(["prod"]);
    for case in [ROLLBACK, ROLLBACK_RAM, ("vm.stop", Qemu, 100, &[][..]), ("vm.reboot", Qemu, 100, &[])] {
        check(case, protect, &["protected-guest"]);
    }
    check(
        ("vm.migrate", Lxc, 102, &[("node", "pve2"), ("mode", "restart")]),
        |world| world.guest_mut(102)["tags"] = json!(["prod"]),
        &["protected-guest"],
    );
    check(("vm.migrate", Qemu, 101, &[("node", "pve2")]), |world| world.guest_mut(101)["name"] = json!("prod-db"), &["protected-guest"]);
    for case in [CREATE, GROW, MIGRATE] {
        assert_eq!(
            {
                let mut world = RequestWorld::default();
                protect(&mut world);
                outcome(&world, case).len()
            },
            1,
            "{case:?}"
        );
        check(
            case,
            protect,
            &[plan_case(&RequestWorld::default(), case).steps_of(crate::guest::Vmid::new(100).expect("an id"))[0].change.word()],
        );
    }
}

#[test]
fn refuses_every_action_on_a_guest_that_others_control() {
    for case in [CREATE, DELETE, ROLLBACK, GROW, MIGRATE] {
        check(case, |world| world.guest_mut(100)["lock"] = json!("backup"), &["guest-locked"]);
        check(case, |world| world.guest_mut(100)["tags"] = json!(["converger-hold"]), &["guest-held"]);
        check(case, |world| world.guest_mut(100)["status"] = json!("unknown"), &["guest-unknown"]);
        check(case, |world| world.observation["quorate"] = json!(false), &["not-quorate"]);
    }
    check(("vm.snapshot.create", Lxc, 100, &[("name", "new")]), |_| (), &["kind-mismatch"]);
    for case in [ROLLBACK, MIGRATE] {
        check(case, |world| world.guest_mut(100)["ha"] = json!({ "state": "started" }), &["ha-owned"]);
    }
    for case in [CREATE, GROW] {
        let word = outcome(&RequestWorld::default(), case);
        check(case, |world| world.guest_mut(100)["ha"] = json!({ "state": "started" }), &word);
    }
}

/// The guarantees are checked again on the finished plan, without the planner.
#[test]
fn judge_refuses_a_clone_that_the_planner_should_not_have_made() {
    let steps = plan_case(&RequestWorld::default(), CLONE).verdicts().to_vec();
    let broken = |change: &dyn Fn(&mut RequestWorld)| {
        let mut world = RequestWorld::default();
        change(&mut world);
        let judged = judge(plan_case(&world, CLONE).with_verdicts(steps.clone()), Limits::default(), Circumstances::default());
        judged.judgement().refusals().iter().map(|refusal| refusal.code()).collect::<Vec<_>>()
    };
    assert_eq!(broken(&|_| ()), []);
    let changes: [&dyn Fn(&mut RequestWorld); 6] = [
        &|world| world.observation["complete"] = json!(false),
        &|world| world.guest_mut(900)["template"] = json!(false),
        &|world| world.guest_mut(900)["lock"] = json!("backup"),
        &|world| world.guest_mut(900)["identity"]["uuid"] = json!("other"),
        &|world| world.guest_mut(900)["protection"] = json!(true),
        &|world| world.observation["nodes"][0]["online"] = json!(false),
    ];
    for change in changes {
        assert!(broken(change).contains(&RefusalCode::GuaranteeBroken));
    }
}

const PROVISION: RequestCase = (
    "vm.clone",
    Qemu,
    900,
    &[("newid", "120"), ("name", "web-7"), ("cores", "4"), ("bridge", "vmbr1"), ("disk-size", "40GiB"), ("start", "true")],
);
const PROVISION_DNS: RequestCase =
    ("vm.clone", Lxc, 102, &[("newid", "120"), ("name", "dns-2"), ("memory", "1GiB"), ("addresses", "dhcp"), ("start", "true")]);

/// The world after the clone of `PROVISION` was verified and before anything else happened.
fn world_with_birth(case: RequestCase, provisioned: bool) -> RequestWorld {
    let mut world = RequestWorld::default();
    let plan = plan_case(&world, case);
    let request = plan.intent().digest().expect("a digest");
    let mut born = world.guest_mut(101).clone();
    (born["vmid"], born["name"]) = (json!(120), json!("web-7"));
    born["identity"] = json!({ "ctime": 1_763_000_500, "uuid": "00000120-0000-4000-8000-000000000000" });
    world.observation["guests"].as_array_mut().expect("rows").insert(3, born);
    let identity = GuestIdentity::Qemu { uuid: Some("00000120-0000-4000-8000-000000000000".into()), ctime: Some(1_763_000_500) };
    let vmid = Vmid::new(120).expect("an id");
    let birth = Birth { grown: false, identity: Some(identity), provisioned, request: Some(request), started: false, vmid };
    world.rules = world.rules.with_births(vec![birth]);
    world
}

#[test]
fn provisions_a_new_guest_in_one_plan() {
    check(PROVISION, |_| (), &["clone", "provision", "disk.grow", "start"]);
    let stop = |world: &mut RequestWorld| world.guest_mut(102)["status"] = json!("stopped");
    check(PROVISION_DNS, stop, &["clone", "provision", "start"]);
    let case = ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-7"), ("disk-size", "32GiB")][..]);
    check(case, |_| (), &["clone"]);
    let plan = plan_case(&RequestWorld::default(), PROVISION);
    let Verdict::Steps(steps) = &plan.verdicts()[0] else { panic!("no steps") };
    let Change::DiskGrow(growth) = &steps[2].change else { panic!("no growth") };
    assert_eq!((growth.disk.as_str(), growth.before.to_string(), growth.volume.as_deref()), ("scsi0", "32G".to_owned(), None));
    assert_eq!(steps[1].class(), ChangeClass::Disruptive, "a script's word is not enough for it");
    let judged = judge(plan, Limits::default(), Circumstances::default());
    assert!(matches!(judged, Judged::Safe(_)), "{:?}", judged.judgement().refusals());
}

#[test]
fn refuses_to_provision_what_cannot_be() {
    let shrinking = ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-7"), ("disk-size", "8GiB")][..]);
    check(shrinking, |_| (), &["disk-shrink"]);
    let other_disk = ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-7"), ("disk", "scsi5"), ("disk-size", "40GiB")][..]);
    check(other_disk, |_| (), &["disk-missing"]);
    let balloon = ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-7"), ("balloon", "8GiB")][..]);
    check(balloon, |_| (), &["unsupported-change"]);
    let tags = ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-7"), ("tags", "Edge")][..]);
    check(tags, |_| (), &["config-unreadable"]);
    let huge = ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-7"), ("disk-size", "2TiB")][..]);
    check(huge, |_| (), &["storage-full"]);
    // The copied disks fit one by one, and not together.
    let full = ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-7"), ("disks", "full")][..]);
    check(full, |_| (), &["clone"]);
    check(full, |world| add_disk(world, 900, "scsi1", FREE_KIB - (16 << 20)), &["storage-full"]);
    // A guest that is started needs memory; the amount is what its first configuration gives it.
    let started = ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-7"), ("start", "true"), ("memory", "48GiB")][..]);
    check(started, |_| (), &["node-memory"]);
}

/// The free space of each storage.
const FREE_KIB: u64 = 500 << 20;

/// Adds a disk of this size, in KiB, to a guest.
fn add_disk(world: &mut RequestWorld, vmid: u32, key: &str, size_kib: u64) {
    let disk =
        json!({ "cdrom": false, "key": key, "size_kib": size_kib, "storage": "shared", "volume": format!("shared:vm-{vmid}-{key}") });
    world.guest_mut(vmid)["hardware"]["disks"].as_array_mut().expect("disks").push(disk);
}

/// Clones copy tags and flags: what protects the source would protect the new guest unasked.
#[test]
fn g3_a_protected_source_needs_a_guest_that_is_declared_protected() {
    let protect = |world: &mut RequestWorld| {
        world.guest_mut(900)["tags"] = json!(["prod"]);
        world.guest_mut(900)["protection"] = json!(true);
    };
    check(CLONE, protect, &["protection-copied"]);
    for parameters in [&[("newid", "120"), ("name", "web-7"), ("tags", "prod,web")][..], &[("newid", "120"), ("name", "prod-web")][..]] {
        let mut world = RequestWorld::default();
        protect(&mut world);
        let plan = plan_case(&world, ("vm.clone", Qemu, 900, parameters));
        assert!(matches!(plan.verdicts()[0], Verdict::Steps(_)), "{:?}", plan.verdicts());
        let judged = judge(plan, Limits::default(), Circumstances::default());
        assert!(matches!(judged, Judged::Safe(_)), "{:?}", judged.judgement().refusals());
    }
    // The name protects it, and its first configuration must not take the copied tag away.
    check(("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "prod-web"), ("tags", "web")]), protect, &["protection-copied"]);
}

/// The same request continues with what is left; every other guest under the id stays as it is.
#[test]
fn g13_a_request_that_was_cut_off_continues_with_its_own_guest_only() {
    let left = |provisioned| outcome(&world_with_birth(PROVISION, provisioned), PROVISION);
    assert_eq!((left(false), left(true)), (vec!["provision", "disk.grow", "start"], vec!["disk.grow", "start"]));
    let mut world = world_with_birth(PROVISION, true);
    set_disk(&mut world, 120, "size_kib", json!(40 << 20));
    assert_eq!(outcome(&world, PROVISION), ["start"]);
    world.guest_mut(120)["status"] = json!("running");
    assert_eq!(outcome(&world, PROVISION), ["converged"]);
    // It was complete and running once, and was stopped afterwards.
    let births: Vec<Birth> = world.rules.births().iter().map(|birth| Birth { grown: true, started: true, ..birth.clone() }).collect();
    world.rules = Rules::default().with_births(births);
    world.guest_mut(120)["status"] = json!("stopped");
    assert_eq!(outcome(&world, PROVISION), ["converged"]);
    // Another request, and the same id with other birth marks.
    let other = ("vm.clone", Qemu, 900, &[("newid", "120"), ("name", "web-7"), ("cores", "8")][..]);
    assert_eq!(outcome(&world_with_birth(PROVISION, false), other), ["id-taken"]);
    let mut recycled = world_with_birth(PROVISION, false);
    recycled.guest_mut(120)["identity"]["ctime"] = json!(1_763_000_501);
    assert_eq!(outcome(&recycled, PROVISION), ["id-taken"]);
    let mut forgotten = world_with_birth(PROVISION, false);
    forgotten.rules = Rules::default();
    assert_eq!(outcome(&forgotten, PROVISION), ["id-taken"]);
    let mut started = world_with_birth(PROVISION, false);
    started.guest_mut(120)["status"] = json!("running");
    assert_eq!(outcome(&started, PROVISION), ["run-state-unsuitable"]);
}

#[test]
fn a_guest_that_is_not_provisioned_yet_is_not_started_by_others() {
    let start = ("vm.start", Qemu, 120, &[][..]);
    assert_eq!(outcome(&world_with_birth(PROVISION, false), start), ["provisioning-unfinished"]);
    assert_eq!(outcome(&world_with_birth(PROVISION, true), start), ["start"]);
}
