//! Storages on a node: which are listed, how full they are, and what a full one refuses.

use converger_lab::{GuestVerb, RequestFault, ResponseFault, TaskFault, TaskFaultEffect, WorldEvent};

use crate::lab::{FactsLab, current_release, in_every_release};

const STORAGES: &str = "
cluster: lab
nodes: { pve1: {}, pve2: {} }
storages:
  lvm: { type: lvm, total: 107374182400, used: 96636764160 }
  zfs: { type: zfspool, total: 107374182400, used: 96636764160 }
  dir: { path: /mnt/dir, content: [images, iso, rootdir], total: 107374182400, used: 96636764160 }
  tank: { type: rbd, shared: true }
  away: { type: dir, nodes: [pve2] }
  off: { type: dir, disabled: true }
tokens: { root@pam!t: { secret: s, full: true } }
guests:
  - { vmid: 100, kind: qemu, node: pve1, config: { scsi0: 'lvm:vm-100-disk-0,size=8G', scsi1: 'zfs:vm-100-disk-0,size=8G', scsi2: 'dir:100/vm-100-disk-0.qcow2,size=8G', ide2: 'none,media=cdrom' } }
  - { vmid: 101, kind: qemu, node: pve1, config: { scsi0: 'tank:vm-101-disk-0,size=40G' } }
  - { vmid: 200, kind: lxc, node: pve1, config: { rootfs: 'zfs:vm-200-disk-0,size=4G' } }
";

fn names(lab: &mut FactsLab, query: &str) -> Vec<String> {
    let rows = lab.get(&format!("/nodes/pve1/storage{query}"));
    rows.as_array().into_iter().flatten().filter_map(|row| row["storage"].as_str().map(str::to_owned)).collect()
}

fn storage_row(lab: &mut FactsLab, name: &str) -> serde_json::Value {
    lab.get(&format!("/nodes/pve1/storage?storage={name}"))[0].clone()
}

/// The end of a resize: the error of the call or of the task.
fn resize(lab: &mut FactsLab, guest: &str, form: &str) -> String {
    match (current_release(), guest) {
        (7, "qemu/100") => {
            let answer = lab.request("PUT", &format!("/nodes/pve1/{guest}/resize"), form);
            if answer.status == 200 { "OK".to_owned() } else { answer.reason }
        }
        _ => lab.run_task("PUT", &format!("/nodes/pve1/{guest}/resize"), form),
    }
}

#[test]
fn node_storages_are_filtered_by_content_name_state_and_target() {
    in_every_release(|| {
        let mut lab = FactsLab::new(STORAGES);
        assert_eq!(names(&mut lab, ""), ["away", "dir", "lvm", "off", "tank", "zfs"]);
        assert_eq!(names(&mut lab, "?enabled=1"), ["away", "dir", "lvm", "tank", "zfs"]);
        assert_eq!(names(&mut lab, "?content=images"), ["dir", "lvm", "tank", "zfs"], "only what the node has");
        assert_eq!(names(&mut lab, "?content=iso"), ["dir"]);
        assert_eq!(names(&mut lab, "?target=pve2"), ["tank"], "only what both nodes share");
        let (away, dir) = (storage_row(&mut lab, "away"), storage_row(&mut lab, "dir"));
        assert_eq!((&away["enabled"], &away["active"], &away["total"]), (&0.into(), &0.into(), &0.into()));
        assert_eq!((&dir["enabled"], &dir["active"], &dir["avail"]), (&1.into(), &1.into(), &10_737_418_240_u64.into()));
        assert_eq!(lab.request_error("GET", "/nodes/pve1/storage?storage=none", ""), "400 Parameter verification failed.");
    });
}

#[test]
fn growing_disks_fill_storages_that_reserve_space() {
    in_every_release(|| {
        let mut lab = FactsLab::new(STORAGES);
        assert_eq!(resize(&mut lab, "qemu/100", "disk=scsi0&size=16G"), "OK");
        assert_eq!(storage_row(&mut lab, "lvm")["avail"], 2_u64 << 30);
        let full = resize(&mut lab, "qemu/100", "disk=scsi0&size=20G");
        assert_eq!(full, "lvextend error:   Insufficient free space: 1024 extents needed, but only 512 available");
        let full = resize(&mut lab, "qemu/100", "disk=scsi1&size=32G");
        assert_eq!(full, "zfs error: cannot set property for 'zfs/vm-100-disk-0': size is greater than available space");
        assert_eq!(resize(&mut lab, "qemu/100", "disk=scsi2&size=64G"), "OK", "an image is sparse");
        let full = resize(&mut lab, "lxc/200", "disk=rootfs&size=64G");
        assert!(full.ends_with("size is greater than available space"), "{full}");
        let sizes: Vec<(String, u64)> = lab.world.disk_truths(100).map(|disk| (disk.key, disk.config_bytes >> 30)).collect();
        assert_eq!(sizes, [("scsi0".to_owned(), 16), ("scsi1".to_owned(), 8), ("scsi2".to_owned(), 64)]);
        assert_eq!(resize(&mut lab, "qemu/100", "disk=ide2&size=64G"), "you can't resize a cdrom");
    });
}

#[test]
fn a_clone_that_does_not_fit_leaves_nothing() {
    in_every_release(|| {
        let mut lab = FactsLab::new(STORAGES);
        for storage in ["dir", "lvm", "zfs"] {
            let outcome = lab.run_task("POST", "/nodes/pve1/qemu/101/clone", &format!("newid=300&storage={storage}"));
            assert!(outcome.starts_with("clone failed: "), "{storage}: {outcome}");
            assert!(lab.world.guest_truth(300).is_none(), "{storage}");
        }
        lab.apply_event(WorldEvent::FillStorage("dir".to_owned(), 0));
        lab.run_ok("POST", "/nodes/pve1/qemu/101/clone", "newid=300&storage=dir");
        assert_eq!(storage_row(&mut lab, "dir")["used"], 40_u64 << 30);
    });
}

#[test]
fn an_interrupted_resize_grows_the_volume_and_not_the_config() {
    for flavour in [8, 9] {
        let mut lab = FactsLab::new(&format!("flavour: {flavour}\n{STORAGES}"));
        let killed =
            TaskFault { kind: Some("resize".to_owned()), nth: Some(1), effect: Some(TaskFaultEffect::Killed), ..TaskFault::default() };
        lab.world.add_task_fault(killed);
        let path = "/nodes/pve1/qemu/100/resize";
        assert_eq!(lab.run_task("PUT", path, "disk=scsi0&size=12G"), "unexpected status");
        let disk = |lab: &FactsLab| {
            let disk = lab.world.disk_truths(100).find(|disk| disk.key == "scsi0");
            disk.map(|disk| (disk.volume_bytes.unwrap_or(0) >> 30, disk.config_bytes >> 30))
        };
        assert_eq!(disk(&lab), Some((12, 8)));
        assert_eq!(lab.world.executions(GuestVerb::Resize, 100), 0);
        assert_eq!(lab.run_task("PUT", path, "disk=scsi0&size=12G"), "OK");
        assert_eq!(disk(&lab), Some((12, 8)), "the volume already has that size, so nothing is written");
        assert_eq!(lab.run_task("PUT", path, "disk=scsi0&size=10G"), "shrinking disks is not supported");
        assert_eq!(lab.run_task("PUT", path, "disk=scsi0&size=13G"), "OK");
        assert_eq!(disk(&lab), Some((13, 13)));
    }
}

/// The disk of a container grows in a task in every release.
#[test]
fn an_interrupted_growth_of_a_container_leaves_its_config() {
    in_every_release(|| {
        let mut lab = FactsLab::new(STORAGES);
        let killed =
            TaskFault { kind: Some("resize".to_owned()), nth: Some(1), effect: Some(TaskFaultEffect::Killed), ..TaskFault::default() };
        lab.world.add_task_fault(killed);
        let path = "/nodes/pve1/lxc/200/resize";
        assert_eq!(lab.run_task("PUT", path, "disk=rootfs&size=6G"), "unexpected status");
        let disk = |lab: &FactsLab| {
            let disk = lab.world.disk_truths(200).find(|disk| disk.key == "rootfs");
            disk.map(|disk| (disk.volume_bytes.unwrap_or(0) >> 30, disk.config_bytes >> 30))
        };
        assert_eq!(disk(&lab), Some((6, 4)));
        assert_eq!(lab.world.executions(GuestVerb::Resize, 200), 0);
    });
}

#[test]
fn a_resize_with_a_lost_answer_was_executed_once() {
    in_every_release(|| {
        let mut lab = FactsLab::new(STORAGES);
        let fault = RequestFault { method: Some("PUT".to_owned()), fault: Some(ResponseFault::LostAfter), ..RequestFault::default() };
        lab.world.add_request_fault(fault);
        lab.request("PUT", "/nodes/pve1/qemu/100/resize", "disk=scsi0&size=%2B1G");
        lab.advance_ms(10_000);
        lab.get("/version");
        assert_eq!(lab.world.disk_truths(100).find(|disk| disk.key == "scsi0").and_then(|disk| disk.volume_bytes), Some(9 << 30));
        assert_eq!(lab.world.executions(GuestVerb::Resize, 100), 1);
    });
}

#[test]
fn work_on_a_node_that_lost_the_guest_fails() {
    in_every_release(|| {
        let mut lab = FactsLab::new(STORAGES);
        let wrong = "/nodes/pve2/qemu/101/snapshot";
        let missing = "Configuration file 'nodes/pve2/qemu-server/101.conf' does not exist";
        match current_release() {
            9 => assert_eq!(lab.request_error("POST", wrong, "snapname=s1"), format!("500 {missing}")),
            _ => assert_eq!(lab.run_task("POST", wrong, "snapname=s1"), missing),
        }
        assert_eq!(lab.run_task("DELETE", &format!("{wrong}/s1"), ""), missing);
        assert_eq!(lab.world.snapshot_truths(101).count(), 0);
    });
}
