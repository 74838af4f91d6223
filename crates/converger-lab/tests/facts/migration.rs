//! Which migrations Proxmox refuses, and what migration does to a guest.

use converger_lab::{GuestVerb, TaskFault, TaskFaultEffect, WorldEvent};

use crate::lab::{FactsLab, in_every_release, response_data};

/// Three nodes: two have `fast`, each has its own `local`, and all share `tank`.
const MIGRATION_SPEC: &str = "
cluster: lab
nodes: { a: {}, b: {}, c: {} }
storages:
  tank: { type: rbd, shared: true }
  local: { path: /var/lib/vz }
  fast: { type: rbd, shared: true, nodes: [a, b] }
tokens: { root@pam!t: { secret: s, full: true } }
guests:
  - { vmid: 101, kind: qemu, node: a, name: shared, state: running, config: { scsi0: 'tank:vm-101-disk-0,size=1G' } }
  - { vmid: 102, kind: qemu, node: a, name: local, state: running, config: { scsi0: 'local:102/vm-102-disk-0.qcow2,size=1G' } }
  - { vmid: 103, kind: qemu, node: a, name: fast, config: { scsi0: 'fast:vm-103-disk-0,size=1G' } }
  - { vmid: 201, kind: lxc, node: a, name: dns, state: running, config: { rootfs: 'tank:vm-201-disk-0,size=1G' } }
  - { vmid: 202, kind: lxc, node: a, name: deaf, state: running, deaf: true, config: { rootfs: 'tank:vm-202-disk-0,size=1G' } }
  - { vmid: 203, kind: lxc, node: a, name: quick, config: { rootfs: 'fast:vm-203-disk-0,size=1G' } }
";

#[test]
fn a_container_does_not_move_while_it_runs() {
    in_every_release(|| {
        let mut lab = FactsLab::new(MIGRATION_SPEC);
        let outcome = lab.run_task("POST", "/nodes/a/lxc/201/migrate", "target=b&online=1");
        assert_eq!(outcome, "lxc live migration is currently not implemented");
        assert_eq!(lab.get("/nodes/a/lxc/201/status/current")["status"], "running", "the container keeps running on its node");
        assert!(lab.resource_row(201).get("lock").is_none(), "and is not locked");
    });
}

#[test]
fn live_migration_with_local_disks_needs_their_migration() {
    in_every_release(|| {
        let mut lab = FactsLab::new(MIGRATION_SPEC);
        let outcome = lab.run_task("POST", "/nodes/a/qemu/102/migrate", "target=b&online=1");
        assert_eq!(outcome, "can't live migrate attached local disks without with-local-disks option");
        assert_eq!(lab.resource_row(102)["node"], "a");
        lab.run_ok("POST", "/nodes/a/qemu/102/migrate", "target=b&online=1&with-local-disks=1");
        assert_eq!(lab.get("/nodes/b/qemu/102/status/current")["status"], "running");
        lab.run_ok("POST", "/nodes/a/qemu/101/migrate", "target=b&online=1");
    });
}

#[test]
fn migration_to_a_node_without_the_storage_is_refused() {
    in_every_release(|| {
        let mut lab = FactsLab::new(MIGRATION_SPEC);
        let error = lab.request_error("POST", "/nodes/a/qemu/103/migrate", "target=c");
        assert_eq!(error, "500 storage 'fast' is not available on node 'c'", "for a virtual machine, the call fails");
        let outcome = lab.run_task("POST", "/nodes/a/lxc/203/migrate", "target=c");
        assert_eq!(outcome, "storage 'fast' is not available on node 'c'", "for a container, the task fails");
        lab.run_ok("POST", "/nodes/a/qemu/103/migrate", "target=b");
        lab.run_ok("POST", "/nodes/a/lxc/203/migrate", "target=b");
    });
}

#[test]
fn containers_restart_on_the_target_node() {
    in_every_release(|| {
        let mut lab = FactsLab::new(MIGRATION_SPEC);
        let before = lab.get("/nodes/a/lxc/201/status/current");
        let upid = response_data(&lab.request("POST", "/nodes/a/lxc/201/migrate", "target=b&restart=1"));
        let mut seen = vec![before["status"].clone()];
        while lab.get(&format!("/nodes/a/tasks/{}/status", upid.as_str().unwrap_or_default()))["status"] == "running" {
            seen.push(lab.get("/nodes/a/lxc/201/status/current")["status"].clone());
            assert_eq!(lab.resource_row(201)["lock"], "migrate");
            lab.advance_ms(50);
        }
        seen.dedup();
        assert_eq!(seen, ["running", "stopped"]);
        let after = lab.get("/nodes/b/lxc/201/status/current");
        assert_eq!(after["status"], "running");
        assert!(after["uptime"].as_u64() < before["uptime"].as_u64(), "{after}");
    });
}

#[test]
fn containers_that_ignore_shutdown_are_not_migrated() {
    in_every_release(|| {
        let mut lab = FactsLab::new(MIGRATION_SPEC);
        let began_ms = lab.now_ms;
        assert_eq!(lab.run_task("POST", "/nodes/a/lxc/202/migrate", "target=b&restart=1&timeout=20"), "container did not stop");
        assert!((20_000..25_000).contains(&(lab.now_ms - began_ms)), "after its timeout");
        assert_eq!(lab.get("/nodes/a/lxc/202/status/current")["status"], "running");
        assert!(lab.resource_row(202).get("lock").is_none());
    });
}

#[test]
fn a_node_failure_during_migration_leaves_the_container_stopped_and_locked() {
    in_every_release(|| {
        let mut lab = FactsLab::new(MIGRATION_SPEC);
        lab.request("POST", "/nodes/a/lxc/201/migrate", "target=b&restart=1");
        lab.apply_event(WorldEvent::NodeDown("a".to_owned()));
        lab.advance_ms(60_000);
        lab.apply_event(WorldEvent::NodeUp("a".to_owned()));
        assert_eq!(lab.get("/nodes/a/lxc/201/status/current")["status"], "stopped");
        assert_eq!(lab.resource_row(201)["lock"], "migrate");
    });
}

/// A guest for each obstacle: a passed-through device, the node's CD drive, an image on local storage, a snapshot, a bind mount.
const OBSTACLES: &str = "
cluster: lab
nodes: { a: {}, b: {}, c: {} }
storages:
  tank: { type: rbd, shared: true }
  local: { path: /var/lib/vz, content: [images, iso, rootdir], files: [iso/debian.iso] }
  thin: { type: lvmthin }
  other: { type: lvmthin, nodes: [a, b] }
tokens: { root@pam!t: { secret: s, full: true } }
guests:
  - { vmid: 111, kind: qemu, node: a, config: { scsi0: 'tank:vm-111-disk-0,size=1G', hostpci0: '0000:01:00.0', usb0: 'host=1234:5678', usb1: spice } }
  - { vmid: 112, kind: qemu, node: a, config: { scsi0: 'tank:vm-112-disk-0,size=1G', ide2: 'cdrom,media=cdrom' } }
  - { vmid: 113, kind: qemu, node: a, config: { scsi0: 'tank:vm-113-disk-0,size=1G', ide2: 'local:iso/debian.iso,media=cdrom' } }
  - { vmid: 114, kind: qemu, node: a, config: { scsi0: 'thin:vm-114-disk-0,size=1G' }, taken: [{ name: s1, age_s: 60 }] }
  - { vmid: 115, kind: qemu, node: a, config: { scsi0: 'other:vm-115-disk-0,size=1G', unused0: 'thin:vm-115-disk-1' } }
  - { vmid: 211, kind: lxc, node: a, config: { rootfs: 'tank:vm-211-disk-0,size=1G', mp0: '/srv,mp=/srv' } }
";

#[test]
fn local_devices_images_snapshots_and_mounts_prevent_migration() {
    in_every_release(|| {
        let mut lab = FactsLab::new(OBSTACLES);
        for (guest, text) in [
            ("qemu/111", "can't migrate VM which uses local devices: hostpci0, usb0"),
            ("qemu/112", "can't migrate local cdrom drive"),
            ("qemu/113", "can't migrate local disk 'local:iso/debian.iso': local cdrom image"),
            ("qemu/114", "can't migrate local disk 'thin:vm-114-disk-0': non-migratable snapshot exists"),
            ("lxc/211", "cannot migrate local bind mount point 'mp0'"),
        ] {
            assert_eq!(lab.run_task("POST", &format!("/nodes/a/{guest}/migrate"), "target=b"), text, "{guest}");
            assert_eq!(lab.get(&format!("/nodes/a/{guest}/config")).get("lock"), None, "{guest} stays where it is, without a lock");
        }
    });
}

#[test]
fn preconditions_name_local_disks_local_devices_and_nodes_without_a_storage() {
    in_every_release(|| {
        let mut lab = FactsLab::new(OBSTACLES);
        let devices = lab.get("/nodes/a/qemu/111/migrate");
        assert_eq!((&devices["local_resources"], &devices["running"]), (&serde_json::json!(["hostpci0", "usb0"]), &0.into()));
        let disks = |lab: &mut FactsLab, vmid: u32| -> Vec<(String, u64, u64)> {
            let found = lab.get(&format!("/nodes/a/qemu/{vmid}/migrate"))["local_disks"].clone();
            let number = |disk: &serde_json::Value, key: &str| disk[key].as_u64().unwrap_or(9);
            let row = |disk: &serde_json::Value| {
                (disk["volid"].as_str().unwrap_or_default().to_owned(), number(disk, "cdrom"), number(disk, "is_unused"))
            };
            found.as_array().into_iter().flatten().map(row).collect()
        };
        assert_eq!(disks(&mut lab, 113), [("local:iso/debian.iso".to_owned(), 1, 0)]);
        assert_eq!(disks(&mut lab, 115), [("other:vm-115-disk-0".to_owned(), 0, 0), ("thin:vm-115-disk-1".to_owned(), 0, 1)]);
        let nodes = lab.get("/nodes/a/qemu/115/migrate");
        assert_eq!(nodes["allowed_nodes"], serde_json::json!(["b"]));
        assert_eq!(nodes["not_allowed_nodes"]["c"]["unavailable_storages"], serde_json::json!(["other"]));
        lab.apply_event(WorldEvent::Lock(115, "backup".to_owned()));
        assert_eq!(lab.request_error("GET", "/nodes/a/qemu/115/migrate", ""), "500 VM is locked (backup)");
    });
}

#[test]
fn nodes_are_listed_for_running_guests_and_containers_since_release_9() {
    in_every_release(|| {
        let mut lab = FactsLab::new(MIGRATION_SPEC);
        let running = lab.get("/nodes/a/qemu/101/migrate");
        assert_eq!(running["running"], 1);
        assert_eq!(running.get("allowed_nodes").is_some(), crate::lab::current_release() == 9);
        match crate::lab::current_release() {
            9 => assert_eq!(lab.get("/nodes/a/lxc/201/migrate")["allowed-nodes"], serde_json::json!(["b", "c"])),
            _ => assert!(lab.request_error("GET", "/nodes/a/lxc/201/migrate", "").starts_with("501")),
        }
    });
}

#[test]
fn local_disks_move_to_the_mapped_storage() {
    in_every_release(|| {
        let mut lab = FactsLab::new(OBSTACLES);
        let migrate = "/nodes/a/qemu/115/migrate";
        assert_eq!(lab.request_error("POST", migrate, "target=c"), "500 storage 'other' is not available on node 'c'");
        assert_eq!(lab.request_error("POST", migrate, "target=c&targetstorage=other"), "500 storage 'other' is not available on node 'c'");
        lab.run_ok("POST", migrate, "target=c&targetstorage=other%3Athin");
        let config = lab.get("/nodes/c/qemu/115/config");
        assert_eq!((&config["scsi0"], &config["unused0"]), (&"thin:vm-115-disk-0,size=1G".into(), &"thin:vm-115-disk-1".into()));
        let disk = lab.world.disk_truths(115).find(|disk| disk.key == "scsi0").unwrap_or_else(|| panic!("no disk"));
        assert_eq!(disk.volume_bytes, Some(1 << 30));
    });
}

#[test]
fn managed_guests_are_migrated_by_high_availability() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&format!("{MIGRATION_SPEC}ha: {{ 'vm:101': {{ state: started }} }}\n"));
        let upid = lab.run_ok("POST", "/nodes/a/qemu/101/migrate", "target=b&online=1");
        let upid = upid.as_str().unwrap_or_default().to_owned();
        assert!(upid.contains(":hamigrate:101:"), "{upid}");
        assert_eq!(lab.get(&format!("/nodes/a/tasks/{upid}/log"))[0]["t"], "Requesting HA migration for VM 101 to node b");
        assert_eq!(lab.resource_row(101)["node"], "a", "the task only asked for it");
        lab.advance_ms(60_000);
        assert_eq!(lab.resource_row(101)["node"], "b");
    });
}

#[test]
fn a_migration_can_fail_or_be_killed_after_the_config_moved() {
    in_every_release(|| {
        let mut lab = FactsLab::new(MIGRATION_SPEC);
        let fault = |effect| TaskFault { kind: Some("qmigrate".to_owned()), nth: Some(1), effect: Some(effect), ..TaskFault::default() };
        lab.world.add_task_fault(fault(TaskFaultEffect::FailAfter("migration problems".to_owned())));
        assert_eq!(lab.run_task("POST", "/nodes/a/qemu/101/migrate", "target=b&online=1"), "migration problems");
        let row = lab.resource_row(101);
        assert_eq!((&row["node"], row.get("lock")), (&"b".into(), None));
        assert_eq!(lab.world.executions(GuestVerb::Migrate, 101), 1);
        lab.world.clear_faults();
        lab.world.add_task_fault(fault(TaskFaultEffect::Killed));
        assert_eq!(lab.run_task("POST", "/nodes/b/qemu/101/migrate", "target=a&online=1"), "unexpected status");
        let row = lab.resource_row(101);
        assert_eq!((&row["node"], &row["lock"]), (&"a".into(), &"migrate".into()));
        assert_eq!(lab.get("/nodes/a/qemu/101/status/current")["status"], "running");
    });
}
