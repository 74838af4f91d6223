//! Power: the immediate response, the result of the task, and the effect on the guest.

use converger_lab::{TaskFault, TaskFaultEffect, WorldEvent};

use crate::lab::{CLUSTER, FactsLab, SMALL, in_every_release, response_data};

const GUEST: &str = "/nodes/pve1/qemu/100";
const CONTAINER: &str = "/nodes/pve1/lxc/200";

#[test]
fn a_200_for_a_virtual_machine_proves_nothing() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let status = |verb: &str| format!("{GUEST}/status/{verb}");
        assert_eq!(lab.run_task("POST", &status("stop"), ""), "OK", "the guest was already stopped");
        assert_eq!(lab.run_task("POST", &status("shutdown"), ""), "OK");
        lab.run_ok("POST", &status("start"), "");
        assert_eq!(lab.run_task("POST", &status("start"), ""), "VM 100 already running");
        let missing_text = "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist";
        assert_eq!(lab.run_task("POST", "/nodes/pve1/qemu/999/status/start", ""), missing_text);
        let stop = lab.run_task("POST", "/nodes/pve1/qemu/999/status/stop", "");
        assert_eq!(stop, "unable to find configuration file for VM 999 on node 'pve1'");
    });
}

#[test]
fn power_calls_on_a_stopped_container_fail_immediately() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        for verb in ["stop", "shutdown"] {
            assert_eq!(lab.request_error("POST", &format!("{CONTAINER}/status/{verb}"), ""), "500 CT 200 not running");
        }
        assert_eq!(lab.request_error("POST", &format!("{GUEST}/status/reboot"), ""), "500 VM 100 not running");
    });
}

#[test]
fn paused_guests_refuse_shutdown() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("name: web,", "name: web, state: paused,"));
        for verb in ["shutdown", "reboot"] {
            assert_eq!(lab.request_error("POST", &format!("{GUEST}/status/{verb}"), ""), "500 VM is paused - cannot shutdown");
        }
    });
}

#[test]
fn a_shutdown_that_times_out_leaves_the_guest_running() {
    in_every_release(|| {
        let deaf = SMALL.replace("name: web,", "name: web, state: running, deaf: true,");
        let mut lab = FactsLab::new(&deaf.replace("name: dns,", "name: dns, state: running, deaf: true,"));
        let error = lab.run_task("POST", &format!("{GUEST}/status/shutdown"), "timeout=5");
        assert_eq!(error, "VM quit/powerdown failed - got timeout");
        assert_eq!(lab.run_task("POST", &format!("{CONTAINER}/status/shutdown"), "timeout=5"), "container did not stop");
        for guest in [GUEST, CONTAINER] {
            assert_eq!(lab.get(&format!("{guest}/status/current"))["status"], "running");
        }
    });
}

#[test]
fn reboot_tasks_end_before_the_guest_runs_in_a_new_process() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("name: web,", "name: web, state: running,"));
        let pid = |lab: &mut FactsLab| lab.get(&format!("{GUEST}/status/current"))["pid"].clone();
        let before = pid(&mut lab);
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/status/reboot"), ""), "OK");
        assert_eq!(lab.get(&format!("{GUEST}/status/current"))["status"], "stopped", "the guest is stopped and not restarted yet");
        lab.advance_ms(5_000);
        let after = pid(&mut lab);
        assert!(before.is_number() && after.is_number() && before != after, "{before} {after}");
    });
}

/// Writing too many cores succeeds; only a start compares `sockets` times `cores` with the processors of the node, whatever `vcpus` says.
#[test]
fn a_virtual_machine_with_more_cores_than_its_node_has_does_not_start() {
    in_every_release(|| {
        let two = SMALL.replace("pve1: {}", "pve1: { cpus: 2 }");
        for (form, ends) in [("cores=2", "OK"), ("cores=3", TOO_MANY), ("sockets=2", TOO_MANY), ("cores=4&vcpus=2", TOO_MANY)] {
            let mut lab = FactsLab::new(&two);
            lab.run_ok("PUT", &format!("{GUEST}/config"), form);
            assert_eq!(lab.run_task("POST", &format!("{GUEST}/status/start"), ""), ends, "{form}");
            let status = if ends == "OK" { "running" } else { "stopped" };
            assert_eq!(lab.get(&format!("{GUEST}/status/current"))["status"], status, "{form}");
        }
        let mut lab = FactsLab::new(&two);
        lab.run_ok("PUT", &format!("{CONTAINER}/config"), "cores=4");
        lab.run_ok("POST", &format!("{CONTAINER}/status/start"), "");
    });
}

const TOO_MANY: &str = "MAX 2 vcpus allowed per VM on this node";

/// The reboot task succeeds; the failed start is a separate task of the node.
#[test]
fn a_reboot_into_more_cores_than_its_node_has_leaves_the_guest_down() {
    in_every_release(|| {
        let two = SMALL.replace("pve1: {}", "pve1: { cpus: 2 }").replace("name: web,", "name: web, state: running,");
        let mut lab = FactsLab::new(&two);
        lab.run_ok("PUT", &format!("{GUEST}/config"), "cores=4");
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/status/reboot"), ""), "OK");
        lab.advance_ms(5_000);
        assert_eq!(lab.get(&format!("{GUEST}/status/current"))["status"], "stopped");
        let tasks = lab.get("/nodes/pve1/tasks?source=all&vmid=100");
        let start = tasks.as_array().into_iter().flatten().find(|task| task["type"] == "qmstart").cloned().unwrap_or_default();
        assert_eq!((&start["status"], &start["user"]), (&TOO_MANY.into(), &"root@pam".into()), "{tasks}");
        let config = lab.get(&format!("{GUEST}/config?current=1"));
        assert_eq!(config["cores"], 4, "the stop applied pending changes");
    });
}

#[test]
fn locks_fail_starts_in_the_task_and_writes_immediately() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.apply_event(WorldEvent::Lock(100, "backup".to_owned()));
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/status/start"), ""), "VM is locked (backup)");
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/snapshot"), "snapname=s1"), "VM is locked (backup)");
        assert_eq!(lab.run_task("DELETE", GUEST, ""), "VM is locked (backup)");
        assert_eq!(lab.request_error("PUT", &format!("{GUEST}/config"), "cores=3"), "500 VM is locked (backup)");
        assert_eq!(lab.request_error("POST", &format!("{GUEST}/clone"), "newid=300"), "500 VM is locked (backup)");
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/status/stop"), ""), "OK", "a stop ignores the lock");
    });
}

#[test]
fn protected_and_running_guests_refuse_deletion_immediately() {
    in_every_release(|| {
        let running = SMALL.replace("name: web,", "name: web, state: running,").replace("cores: 1,", "cores: 1, protection: 1,");
        let mut lab = FactsLab::new(&running);
        assert_eq!(lab.request_error("DELETE", GUEST, ""), "500 VM 100 is running - destroy failed");
        assert_eq!(lab.request_error("DELETE", CONTAINER, ""), "500 can't remove CT 200 - protection mode enabled");
        let missing_text = "500 Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist";
        assert_eq!(lab.request_error("DELETE", "/nodes/pve1/qemu/999", ""), missing_text);
    });
}

#[test]
fn a_duplicate_snapshot_name_fails_in_the_task() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        for guest in [GUEST, CONTAINER] {
            lab.run_ok("POST", &format!("{guest}/snapshot"), "snapname=s1");
            assert_eq!(lab.run_task("POST", &format!("{guest}/snapshot"), "snapname=s1"), "snapshot name 's1' already used");
            let error = lab.request("DELETE", &format!("{guest}/snapshot/nosuch"), "");
            let text = response_data(&error).as_str().map(str::to_owned).map_or(error.reason, |upid| lab.wait_for_task(&upid));
            assert_eq!(text, "snapshot 'nosuch' does not exist");
        }
    });
}

#[test]
fn clones_to_a_used_id_are_refused() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", &format!("{GUEST}/clone"), "newid=300&name=copy&full=1");
        let error = lab.request_error("POST", &format!("{GUEST}/clone"), "newid=300&name=copy&full=1");
        assert_eq!(error, "500 unable to create VM 300: config file already exists");
        assert_eq!(lab.get("/nodes/pve1/qemu/300/config")["name"], "copy");
        lab.run_ok("POST", &format!("{CONTAINER}/clone"), "newid=400&hostname=copy&full=1");
        assert_eq!(lab.get("/nodes/pve1/lxc/400/config")["hostname"], "copy");
        let error = lab.request_error("POST", &format!("{CONTAINER}/clone"), "newid=300&hostname=copy&full=1");
        assert_eq!(error, "500 VM 300 already exists on node 'pve1'", "even if the other guest is of another kind");
    });
}

#[test]
fn running_guests_migrate_only_online_or_by_restart() {
    in_every_release(|| {
        let containers = CLUSTER.replace("vmid: 102, kind: qemu", "vmid: 102, kind: lxc");
        let mut lab = FactsLab::new(&containers);
        assert_eq!(lab.request_error("POST", "/nodes/a/qemu/101/migrate", "target=c"), "500 can't migrate running VM without --online");
        let error = lab.request_error("POST", "/nodes/b/lxc/102/migrate", "target=c");
        assert_eq!(error, "500 can't migrate running container without --online or --restart");
        lab.run_ok("POST", "/nodes/b/lxc/102/migrate", "target=c&restart=1&timeout=60");
        assert_eq!(lab.get("/nodes/c/lxc/102/status/current")["status"], "running");
    });
}

#[test]
fn a_write_waits_ten_seconds_for_a_task_that_holds_the_guest() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let hang = TaskFault { kind: Some("qmstart".to_owned()), effect: Some(TaskFaultEffect::Hang), ..TaskFault::default() };
        lab.world.add_task_fault(hang);
        lab.request("POST", &format!("{GUEST}/status/start"), "");
        let answer = lab.request("PUT", &format!("{GUEST}/config"), "cores=3");
        let text = "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout";
        assert_eq!((answer.status, answer.reason.as_str(), answer.delay_ms), (500, text, 10_000));
    });
}

#[test]
fn a_write_waits_ten_seconds_for_a_lock_file_that_no_task_holds() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.apply_event(WorldEvent::HoldLockFile(100));
        let answer = lab.request("PUT", &format!("{GUEST}/config"), "cores=3");
        let text = "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout";
        assert_eq!((answer.status, answer.reason.as_str(), answer.delay_ms), (500, text, 10_000));
        assert!(lab.get(&format!("{GUEST}/config"))["lock"].is_null(), "the config does not show the lock file");
        lab.apply_event(WorldEvent::FreeLockFile(100));
        assert_eq!(lab.request("PUT", &format!("{GUEST}/config"), "cores=3").status, 200);
    });
}

#[test]
fn unknown_tasks_have_no_status_and_an_empty_log() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let upid = "UPID:pve1:00000001:00000001:6AFA0639:qmstart:100:root@pam!t:";
        let (_, body) = lab.request_extjs("GET", &format!("/nodes/pve1/tasks/{upid}/status"), "");
        assert_eq!((&body["status"], &body["errors"]["upid"]), (&"400".into(), &"no such task".into()));
        let log = lab.get(&format!("/nodes/pve1/tasks/{upid}/log"));
        assert_eq!(log[0]["t"], "unable to open file - No such file or directory");
    });
}
