//! Snapshots: RAM state, unfinished operations, and what a rollback replaces.

use converger_lab::{GuestVerb, TaskFault, TaskFaultEffect, WorldEvent};
use serde_json::Value;

use crate::lab::{FactsLab, SMALL, in_every_release, response_data};

const GUEST: &str = "/nodes/pve1/qemu/100";
const CONTAINER: &str = "/nodes/pve1/lxc/200";

fn snapshot_entry(lab: &mut FactsLab, path: &str, name: &str) -> Option<Value> {
    let list = lab.get(&format!("{path}/snapshot"));
    list.as_array().into_iter().flatten().find(|entry| entry["name"] == name).cloned()
}

fn volumes(lab: &FactsLab) -> Vec<String> {
    lab.world.volume_truths().map(|(id, _)| id.to_owned()).collect()
}

#[test]
fn ram_is_saved_for_running_virtual_machines_only() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", &format!("{GUEST}/snapshot"), "snapname=cold&vmstate=1");
        assert_eq!(snapshot_entry(&mut lab, GUEST, "cold").map(|entry| entry["vmstate"].clone()), Some(0.into()));
        lab.run_ok("POST", &format!("{GUEST}/status/start"), "");
        lab.run_ok("POST", &format!("{GUEST}/snapshot"), "snapname=disks");
        lab.run_ok("POST", &format!("{GUEST}/snapshot"), "snapname=warm&vmstate=1");
        assert_eq!(snapshot_entry(&mut lab, GUEST, "disks").map(|entry| entry["vmstate"].clone()), Some(0.into()));
        assert_eq!(snapshot_entry(&mut lab, GUEST, "warm").map(|entry| entry["vmstate"].clone()), Some(1.into()));
        let config = lab.get(&format!("{GUEST}/config?snapshot=warm"));
        assert_eq!((&config["vmstate"], &config["parent"]), (&"tank:vm-100-state-warm".into(), &"disks".into()));
        assert!(config["runningmachine"].as_str().is_some_and(|machine| machine.starts_with("pc-i440fx-")), "{config}");
        assert!(config["runningcpu"].as_str().is_some_and(|cpu| cpu.starts_with("kvm64,")), "{config}");
        let ram = lab.world.volume_truths().find(|(id, _)| *id == "tank:vm-100-state-warm").map(|(_, bytes)| bytes);
        assert_eq!(ram, Some((1024 * 2 + 500) << 20), "twice the memory and the state of the devices");
        assert_eq!(
            lab.request_error("POST", &format!("{CONTAINER}/snapshot"), "snapname=s1&vmstate=1"),
            "400 Parameter verification failed."
        );
    });
}

#[test]
fn ram_state_goes_with_its_snapshot_and_with_its_guest() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("name: web,", "name: web, state: running,"));
        for name in ["s1", "s2"] {
            lab.run_ok("POST", &format!("{GUEST}/snapshot"), &format!("snapname={name}&vmstate=1"));
        }
        lab.run_ok("DELETE", &format!("{GUEST}/snapshot/s1"), "");
        assert!(!volumes(&lab).contains(&"tank:vm-100-state-s1".to_owned()));
        assert!(volumes(&lab).contains(&"tank:vm-100-state-s2".to_owned()));
        lab.run_ok("POST", &format!("{GUEST}/status/stop"), "");
        lab.run_ok("DELETE", GUEST, "");
        assert_eq!(volumes(&lab), ["tank:vm-200-disk-0"]);
    });
}

#[test]
fn a_rollback_stops_the_guest_and_restarts_it_if_its_ram_was_saved() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("name: web,", "name: web, state: running,"));
        lab.run_ok("POST", &format!("{GUEST}/snapshot"), "snapname=disks");
        lab.run_ok("POST", &format!("{GUEST}/snapshot"), "snapname=warm&vmstate=1");
        let upid = response_data(&lab.request("POST", &format!("{GUEST}/snapshot/warm/rollback"), ""));
        assert_eq!(lab.get(&format!("{GUEST}/status/current"))["status"], "stopped", "while the task runs");
        assert_eq!(lab.get(&format!("{GUEST}/config"))["lock"], "rollback");
        assert_eq!(lab.wait_for_task(upid.as_str().unwrap_or_default()), "OK");
        assert_eq!(lab.get(&format!("{GUEST}/status/current"))["status"], "running");
        let config = lab.get(&format!("{GUEST}/config"));
        for key in ["lock", "vmstate", "runningmachine", "runningcpu", "snaptime"] {
            assert_eq!(config.get(key), None, "{key}");
        }
        lab.run_ok("POST", &format!("{GUEST}/snapshot/disks/rollback"), "");
        assert_eq!(lab.get(&format!("{GUEST}/status/current"))["status"], "stopped");
    });
}

#[test]
fn a_rollback_restores_disk_sizes_and_keeps_newer_disks_as_unused() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", &format!("{GUEST}/snapshot"), "snapname=s1");
        lab.run_ok("PUT", &format!("{GUEST}/resize"), "disk=scsi0&size=20G");
        lab.run_ok("PUT", &format!("{GUEST}/config"), "scsi1=tank%3A2&tags=new");
        lab.run_ok("POST", &format!("{GUEST}/snapshot/s1/rollback"), "");
        let config = lab.get(&format!("{GUEST}/config"));
        assert_eq!((&config["scsi0"], config.get("scsi1"), config.get("tags")), (&"tank:vm-100-disk-0,size=8G".into(), None, None));
        assert_eq!(config["unused0"], "tank:vm-100-disk-1");
        let disk = lab.world.disk_truths(100).find(|disk| disk.key == "scsi0").unwrap_or_else(|| panic!("no disk"));
        assert_eq!((disk.volume_bytes, disk.config_bytes), (Some(8 << 30), 8 << 30));
    });
}

#[test]
fn unfinished_snapshots_are_marked_while_their_task_runs() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.request("POST", &format!("{GUEST}/snapshot"), "snapname=s1&description=first");
        let entry = snapshot_entry(&mut lab, GUEST, "s1").unwrap_or_default();
        assert_eq!((&entry["snapstate"], &entry["description"]), (&"prepare".into(), &"first".into()));
        assert_eq!(lab.get(&format!("{GUEST}/config"))["lock"], "snapshot");
        assert_eq!(snapshot_entry(&mut lab, GUEST, "current").and_then(|entry| entry.get("parent").cloned()), None);
        lab.advance_ms(1_000);
        assert_eq!(snapshot_entry(&mut lab, GUEST, "s1").and_then(|entry| entry.get("snapstate").cloned()), None);
        lab.request("DELETE", &format!("{GUEST}/snapshot/s1"), "");
        assert_eq!(snapshot_entry(&mut lab, GUEST, "s1").map(|entry| entry["snapstate"].clone()), Some("delete".into()));
        assert_eq!(lab.get(&format!("{GUEST}/config"))["lock"], "snapshot-delete");
        lab.advance_ms(1_000);
        assert_eq!(snapshot_entry(&mut lab, GUEST, "s1"), None);
    });
}

#[test]
fn a_killed_snapshot_stays_unfinished_and_a_stopped_one_is_cleaned_up() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("name: web,", "name: web, state: running,"));
        let upid = response_data(&lab.request("POST", &format!("{GUEST}/snapshot"), "snapname=s1&vmstate=1"));
        let upid = upid.as_str().unwrap_or_default().to_owned();
        lab.run_ok("DELETE", &format!("/nodes/pve1/tasks/{upid}"), "");
        assert_eq!(lab.wait_for_task(&upid), "received interrupt");
        assert_eq!((snapshot_entry(&mut lab, GUEST, "s1"), lab.get(&format!("{GUEST}/config")).get("lock")), (None, None));
        assert!(!volumes(&lab).iter().any(|id| id.contains("-state-")));
        lab.world.add_task_fault(TaskFault {
            kind: Some("qmsnapshot".to_owned()),
            effect: Some(TaskFaultEffect::Killed),
            ..TaskFault::default()
        });
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/snapshot"), "snapname=s2&vmstate=1"), "unexpected status");
        let truth: Vec<_> = lab.world.snapshot_truths(100).map(|snapshot| (snapshot.name, snapshot.unfinished)).collect();
        assert_eq!(truth, [("s2".to_owned(), Some("prepare".to_owned()))]);
        assert_eq!(lab.get(&format!("{GUEST}/config"))["lock"], "snapshot");
        assert_eq!(lab.world.executions(GuestVerb::Snapshot, 100), 0);
        assert_eq!(
            lab.run_task("POST", &format!("{GUEST}/snapshot/s2/rollback"), ""),
            "unable to rollback to incomplete snapshot (snapstate = prepare)"
        );
        lab.world.clear_faults();
        assert_eq!(lab.run_task("DELETE", &format!("{GUEST}/snapshot/s2"), ""), "VM is locked (snapshot)");
        lab.run_ok("DELETE", &format!("{GUEST}/snapshot/s2?force=1"), "");
        assert_eq!(lab.world.snapshot_truths(100).count(), 0);
    });
}

#[test]
fn snapshot_tasks_refuse_taken_names_missing_names_and_templates() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", &format!("{GUEST}/snapshot"), "snapname=s1");
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/snapshot"), "snapname=s1"), "snapshot name 's1' already used");
        for (method, path) in [("DELETE", format!("{GUEST}/snapshot/s9")), ("POST", format!("{GUEST}/snapshot/s9/rollback"))] {
            assert_eq!(lab.run_task(method, &path, ""), "snapshot 's9' does not exist");
        }
        lab.run_ok("DELETE", &format!("{GUEST}/snapshot/s1"), "");
        lab.run_ok("POST", &format!("{GUEST}/template"), "");
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/snapshot"), "snapname=s1"), "you can't take a snapshot if it's a template");
    });
}

#[test]
fn zfs_goes_back_to_the_most_recent_snapshot_only() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("type: rbd", "type: zfspool"));
        for name in ["s1", "s2"] {
            lab.run_ok("POST", &format!("{GUEST}/snapshot"), &format!("snapname={name}"));
        }
        let refused = lab.run_task("POST", &format!("{GUEST}/snapshot/s1/rollback"), "");
        assert_eq!(refused, "can't rollback, 's1' is not most recent snapshot on 'tank:vm-100-disk-0'");
        lab.run_ok("POST", &format!("{GUEST}/snapshot/s2/rollback"), "");
    });
}

#[test]
fn people_take_delete_and_replace_snapshots() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let on_guest = |name: &str| (100, name.to_owned());
        let (vmid, name) = on_guest("s1");
        lab.apply_event(WorldEvent::TakeSnapshot(vmid, name));
        let first = lab.world.snapshot_truths(100).next().unwrap_or_else(|| panic!("no snapshot"));
        lab.advance_ms(60_000);
        let (vmid, name) = on_guest("s1");
        lab.apply_event(WorldEvent::RetakeSnapshot(vmid, name));
        let second = lab.world.snapshot_truths(100).next().unwrap_or_else(|| panic!("no snapshot"));
        assert_eq!((second.name.as_str(), second.taken_s, second.parent), ("s1", first.taken_s + 60, None));
        let (vmid, name) = on_guest("s1");
        lab.apply_event(WorldEvent::DeleteSnapshot(vmid, name));
        assert_eq!(lab.world.snapshot_truths(100).count(), 0);
        assert_eq!(lab.get(&format!("{GUEST}/config")).get("parent"), None);
        assert_eq!(lab.world.executions(GuestVerb::Snapshot, 100), 0, "people do not count");
    });
}
