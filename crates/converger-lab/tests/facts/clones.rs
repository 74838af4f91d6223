//! Clones: what they refuse, what they leave behind, and who else takes their id.

use converger_lab::{GuestVerb, RequestFault, ResponseFault, TaskFault, TaskFaultEffect, WireDelivery, WorldEvent};

use crate::lab::{FactsLab, SMALL, in_every_release, response_data};

const GUEST: &str = "/nodes/pve1/qemu/100";

fn fault(kind: &str, effect: TaskFaultEffect) -> TaskFault {
    TaskFault { kind: Some(kind.to_owned()), effect: Some(effect), ..TaskFault::default() }
}

fn guest_event(make: fn(Box<converger_lab::GuestSpec>) -> WorldEvent, vmid: u32, name: &str) -> WorldEvent {
    let mut spec = converger_lab::GuestSpec::new(vmid, converger_lab::LabGuestKind::Qemu, "pve1");
    spec.name = Some(name.to_owned());
    make(Box::new(spec))
}

#[test]
fn clones_keep_cloud_init_and_creation_time_and_take_pool_format_and_description() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&format!("{SMALL}pools: {{ shop: {{}} }}\n"));
        lab.run_ok("PUT", &format!("{GUEST}/config"), "ciuser=ops&ipconfig0=ip%3Ddhcp&nameserver=9.9.9.9&searchdomain=lan&smbios1=uuid%3D11111111-2222-4333-8444-555555555555%2Cserial%3DQQ%3D%3D%2Cbase64%3D1");
        assert_eq!(lab.request_error("POST", &format!("{GUEST}/clone"), "newid=300&pool=none"), "500 pool 'none' does not exist");
        lab.run_ok("POST", &format!("{GUEST}/clone"), "newid=300&name=copy&pool=shop&storage=local&format=qcow2&description=mine");
        let (old, new) = (lab.get(&format!("{GUEST}/config")), lab.get("/nodes/pve1/qemu/300/config"));
        for key in ["ciuser", "ipconfig0", "nameserver", "searchdomain", "meta", "cores"] {
            assert_eq!(old[key], new[key], "{key}");
        }
        assert_eq!((&new["scsi0"], &new["description"]), (&"local:300/vm-300-disk-0.qcow2,size=8G".into(), &"mine".into()));
        let smbios = new["smbios1"].as_str().unwrap_or_default();
        assert!(smbios.starts_with("base64=1,serial=QQ==,uuid=") && !smbios.contains("1111"), "{smbios}");
        assert_eq!(lab.get("/pools/shop")["members"].as_array().map(Vec::len), Some(1));
        let (one, two) = (lab.world.birth_marks(100), lab.world.birth_marks(300));
        assert_eq!(one.as_ref().map(|marks| &marks.meta), two.as_ref().map(|marks| &marks.meta));
        assert!(one.zip(two).is_some_and(|(one, two)| one.vmgenid != two.vmgenid && one.cards != two.cards));
        assert_eq!(lab.world.executions(GuestVerb::Clone, 100), 1);
    });
}

#[test]
fn clone_parameters_are_checked_before_the_task() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace(
            "  local: { path: /var/lib/vz }",
            "  local: { path: /var/lib/vz }\n  iso: { path: /iso, content: [iso] }\n  off: { path: /off, disabled: true }",
        ));
        let clone = format!("{GUEST}/clone");
        assert_eq!(lab.request_error("POST", &clone, "newid=300&storage=iso"), "400 Parameter verification failed.");
        assert_eq!(lab.request_error("POST", &clone, "newid=300&storage=off"), "500 storage 'off' is disabled");
        assert_eq!(lab.request_error("POST", &clone, "newid=300&snapname=s1"), "500 snapshot 's1' does not exist");
        lab.run_ok("POST", &format!("{GUEST}/template"), "");
        assert_eq!(lab.request_error("POST", &clone, "newid=300&format=raw"), "500 parameter 'format' not allowed for linked clones");
        lab.run_ok("POST", &clone, "newid=300");
        assert_eq!(lab.get("/nodes/pve1/qemu/300/config")["scsi0"], "tank:base-100-disk-0/vm-300-disk-0,size=8G");
    });
}

#[test]
fn a_clone_of_a_snapshot_has_the_config_of_that_time() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", &format!("{GUEST}/snapshot"), "snapname=s1");
        lab.run_ok("PUT", &format!("{GUEST}/config"), "cores=4");
        lab.run_ok("POST", &format!("{GUEST}/clone"), "newid=300&snapname=s1&full=1");
        let config = lab.get("/nodes/pve1/qemu/300/config");
        assert_eq!((&config["cores"], config.get("parent"), config.get("snaptime")), (&2.into(), None, None));
        assert_eq!(lab.world.snapshot_truths(300).count(), 0);
    });
}

#[test]
fn a_running_container_is_cloned_from_a_snapshot_only_and_locked_meanwhile() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("name: dns,", "name: dns, state: running,"));
        let container = "/nodes/pve1/lxc/200";
        let refused = lab.request_error("POST", &format!("{container}/clone"), "newid=300");
        assert_eq!(refused, "500 Cannot do full clones on a running container without snapshots");
        lab.run_ok("POST", &format!("{container}/snapshot"), "snapname=s1");
        let upid = response_data(&lab.request("POST", &format!("{container}/clone"), "newid=300&snapname=s1&hostname=copy"));
        assert_eq!((lab.resource_row(300)["lock"].clone(), lab.resource_row(200)["lock"].clone()), ("create".into(), "disk".into()));
        assert_eq!(lab.wait_for_task(upid.as_str().unwrap_or_default()), "OK");
        assert_eq!((lab.resource_row(300).get("lock"), lab.resource_row(200).get("lock")), (None, None));
        assert_eq!(lab.get("/nodes/pve1/lxc/300/config")["hostname"], "copy");
    });
}

#[test]
fn a_killed_clone_leaves_a_locked_guest_and_a_stopped_one_nothing() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let upid = response_data(&lab.request("POST", &format!("{GUEST}/clone"), "newid=300"));
        lab.run_ok("DELETE", &format!("/nodes/pve1/tasks/{}", upid.as_str().unwrap_or_default()), "");
        assert!(lab.world.guest_truth(300).is_none());
        lab.world.add_task_fault(fault("qmclone", TaskFaultEffect::Killed));
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/clone"), "newid=301"), "unexpected status");
        let half = lab.get("/nodes/pve1/qemu/301/config");
        assert_eq!((&half["lock"], &half["description"], half.get("scsi0")), (&"clone".into(), &" qmclone temporary file".into(), None));
        assert_eq!(lab.run_task("DELETE", "/nodes/pve1/qemu/301", ""), "VM is locked (clone)");
        lab.world.clear_faults();
        lab.request("POST", &format!("{GUEST}/clone"), "newid=302");
        lab.apply_event(WorldEvent::KillTask(100));
        lab.advance_ms(60_000);
        assert_eq!(lab.resource_row(302)["lock"], "clone", "an event can kill the worker too");
        assert_eq!(lab.world.executions(GuestVerb::Clone, 100), 0);
    });
}

#[test]
fn a_killed_clone_of_a_container_leaves_settings_without_volumes_and_both_locks() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.world.add_task_fault(fault("vzclone", TaskFaultEffect::Killed));
        assert_eq!(lab.run_task("POST", "/nodes/pve1/lxc/200/clone", "newid=300&hostname=copy"), "unexpected status");
        let half = lab.get("/nodes/pve1/lxc/300/config");
        assert_eq!((&half["lock"], &half["hostname"], &half["memory"]), (&"create".into(), &"copy".into(), &512.into()));
        assert_eq!(half.get("rootfs"), None);
        assert_eq!(lab.get("/nodes/pve1/lxc/200/config")["lock"], "disk", "the original stays locked too");
    });
}

#[test]
fn a_container_with_local_disks_is_cloned_to_another_node_through_shared_storage() {
    in_every_release(|| {
        let spec = SMALL
            .replace("nodes: { pve1: {} }", "cluster: lab\nnodes: { pve1: {}, pve2: {} }")
            .replace("tank:vm-200-disk-0,size=4G", "local:200/vm-200-disk-0.raw,size=4G");
        let mut lab = FactsLab::new(&spec);
        let clone = "/nodes/pve1/lxc/200/clone";
        assert_eq!(lab.request_error("POST", clone, "newid=300&target=pve2"), "500 can't clone CT to node 'pve2' (CT uses local storage)");
        lab.run_ok("POST", clone, "newid=300&target=pve2&storage=tank");
        assert_eq!(lab.resource_row(300)["node"], "pve2");
        lab.apply_event(WorldEvent::Set(200, "mp0".to_owned(), "/srv,mp=/srv".to_owned()));
        assert_eq!(lab.request_error("POST", clone, "newid=301"), "500 unable to clone mountpoint 'mp0' (type bind)");
    });
}

#[test]
fn tasks_can_end_well_without_work_and_fail_after_their_work() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.world.add_task_fault(TaskFault { nth: Some(1), ..fault("qmclone", TaskFaultEffect::DoNothing) });
        lab.world
            .add_task_fault(TaskFault { nth: Some(1), ..fault("qmclone", TaskFaultEffect::FailAfter("clone failed: late".to_owned())) });
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/clone"), "newid=300"), "OK");
        assert!(lab.world.guest_truth(300).is_none(), "nothing was cloned");
        assert_eq!(lab.world.executions(GuestVerb::Clone, 100), 0);
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/clone"), "newid=300"), "clone failed: late");
        assert_eq!(lab.get("/nodes/pve1/qemu/300/config")["cores"], 2, "but it was cloned");
        assert_eq!(lab.world.executions(GuestVerb::Clone, 100), 1);
    });
}

#[test]
fn a_lost_answer_does_not_undo_a_clone() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let lost = RequestFault {
            method: Some("POST".to_owned()),
            nth: Some(1),
            fault: Some(ResponseFault::LostAfter),
            ..RequestFault::default()
        };
        lab.world.add_request_fault(lost);
        assert_eq!(lab.request("POST", &format!("{GUEST}/clone"), "newid=300").delivery, WireDelivery::LostAfter);
        lab.advance_ms(20_000);
        assert!(lab.world.guest_truth(300).is_some());
        assert_eq!(
            lab.request_error("POST", &format!("{GUEST}/clone"), "newid=300"),
            "500 unable to create VM 300: config file already exists"
        );
        assert_eq!(lab.world.executions(GuestVerb::Clone, 100), 1);
    });
}

#[test]
fn somebody_takes_the_id_between_the_check_and_the_clone() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        assert_eq!(lab.get("/cluster/nextid?vmid=300"), "300");
        lab.apply_event(guest_event(WorldEvent::CreateGuest, 300, "theirs"));
        assert_eq!(
            lab.request_error("POST", &format!("{GUEST}/clone"), "newid=300"),
            "500 unable to create VM 300: config file already exists"
        );
        lab.apply_event(guest_event(WorldEvent::CreateGuest, 300, "second"));
        let name = |lab: &FactsLab| lab.world.guest_truth(300).and_then(|truth| truth.name);
        assert_eq!(name(&lab).as_deref(), Some("theirs"), "a taken id is not overwritten");
        let before = lab.world.birth_marks(300);
        lab.apply_event(guest_event(WorldEvent::ReuseId, 300, "third"));
        assert_eq!(name(&lab).as_deref(), Some("third"));
        assert_ne!(lab.world.birth_marks(300), before);
        lab.apply_event(WorldEvent::DeleteGuest(300));
        assert!(lab.world.guest_truth(300).is_none());
        assert_eq!(lab.get("/cluster/nextid?vmid=300"), "300");
    });
}

#[test]
fn an_id_that_is_taken_on_another_node_fails_the_task_and_leaves_the_other_guest() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("nodes: { pve1: {} }", "cluster: lab\nnodes: { pve1: {}, pve2: {} }"));
        let mut spec = converger_lab::GuestSpec::new(300, converger_lab::LabGuestKind::Lxc, "pve2");
        spec.name = Some("theirs".to_owned());
        lab.apply_event(WorldEvent::CreateGuest(Box::new(spec)));
        let outcome = lab.run_task("POST", &format!("{GUEST}/clone"), "newid=300");
        assert_eq!(outcome, "close (rename) atomic file '/etc/pve/nodes/pve1/qemu-server/300.conf' failed: File exists");
        let truth = lab.world.guest_truth(300).unwrap_or_else(|| panic!("no guest"));
        assert_eq!((truth.name.as_deref(), truth.node.as_str()), (Some("theirs"), "pve2"));
        assert_eq!(lab.world.executions(GuestVerb::Clone, 100), 0);
    });
}

#[test]
fn people_act_at_their_times_in_world_files() {
    let mut lab = FactsLab::new(&format!(
        "{SMALL}faults:
  tasks: [{{ kind: qmclone, nth: 1, twist: killed }}, {{ kind: resize, twist: do-nothing }}, {{ kind: qmigrate, twist: {{ fail-after: late }} }}]
  moments:
    - {{ at_ms: 30000, act: {{ create-guest: {{ vmid: 300, kind: qemu, node: pve1, name: theirs }} }} }}
    - {{ at_ms: 40000, act: {{ reuse-id: {{ vmid: 300, kind: lxc, node: pve1, name: other }} }} }}
    - {{ at_ms: 50000, act: {{ delete-guest: 300 }} }}
    - {{ at_ms: 60000, act: {{ grow-disk: [100, scsi0, 32G] }} }}
    - {{ at_ms: 60000, act: {{ take-snapshot: [100, s1] }} }}
    - {{ at_ms: 70000, act: {{ retake-snapshot: [100, s1] }} }}
    - {{ at_ms: 80000, act: {{ delete-snapshot: [100, s1] }} }}
    - {{ at_ms: 80000, act: {{ fill-storage: [tank, 1000] }} }}
"
    ));
    let start_ms = lab.now_ms - 20_000;
    let mut seen = Vec::new();
    for at_ms in [25_000, 35_000, 45_000, 55_000, 65_000, 75_000, 85_000] {
        lab.world.advance_to(start_ms + at_ms);
        let kind = lab.world.guest_truth(300).map(|truth| truth.kind);
        seen.push((
            kind.is_some(),
            lab.world.disk_truths(100).map(|disk| disk.config_bytes >> 30).sum::<u64>(),
            lab.world.snapshot_truths(100).count(),
        ));
    }
    assert_eq!(seen, [(false, 8, 0), (true, 8, 0), (true, 8, 0), (false, 8, 0), (false, 32, 1), (false, 32, 1), (false, 32, 0)]);
}
