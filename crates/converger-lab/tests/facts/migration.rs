//! Which migrations Proxmox refuses, and what migration does to a guest.

use converger_lab::WorldEvent;

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
