//! Tasks: lists, waiting, ends.

use converger_lab::{Act, TaskFault, TaskTwist};

use crate::lab::{Lab, SMALL, data, in_every_release};

const START: &str = "/nodes/pve1/qemu/100/status/start";

#[test]
fn a_second_task_waits_for_the_first_and_goes_on() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        lab.ask("POST", START, "");
        let stop = data(&lab.ask("POST", "/nodes/pve1/qemu/100/status/stop", ""));
        let upid = stop.as_str().unwrap_or_default().to_owned();
        assert_eq!(lab.wait(&upid), "OK");
        let log = lab.get(&format!("/nodes/pve1/tasks/{upid}/log"));
        let lines: Vec<&str> = log.as_array().into_iter().flatten().filter_map(|line| line["t"].as_str()).collect();
        assert_eq!(lines, ["trying to acquire lock...", " OK", "TASK OK"]);
        assert_eq!(lab.get("/nodes/pve1/qemu/100/status/current")["status"], "stopped");
    });
}

#[test]
fn a_node_that_comes_back_has_tasks_without_an_end_and_locks_that_stay() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let take = data(&lab.ask("POST", "/nodes/pve1/qemu/100/snapshot", "snapname=s1"));
        lab.pass(50);
        lab.act(Act::NodeDown("pve1".to_owned()));
        lab.pass(60_000);
        lab.act(Act::NodeUp("pve1".to_owned()));
        lab.pass(1_000);
        assert_eq!(lab.wait(take.as_str().unwrap_or_default()), "unexpected status");
        assert_eq!(lab.get("/nodes/pve1/qemu/100/status/current")["lock"], "snapshot");
        assert_eq!(lab.error("PUT", "/nodes/pve1/qemu/100/config", "cores=1"), "500 VM is locked (snapshot)");
    });
}

#[test]
fn tasks_can_fail_hang_and_warn() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let fault = |nth, twist| TaskFault { kind: Some("qmstart".to_owned()), nth: Some(nth), twist: Some(twist), ..TaskFault::default() };
        lab.world.add_task_fault(fault(1, TaskTwist::Fail("start failed: QEMU exited with code 1".to_owned())));
        lab.world.add_task_fault(fault(1, TaskTwist::Warnings(2)));
        lab.world.add_task_fault(fault(1, TaskTwist::Hang));
        assert_eq!(lab.task("POST", START, ""), "start failed: QEMU exited with code 1");
        assert_eq!(lab.task("POST", START, ""), "WARNINGS: 2");
        assert_eq!(lab.get("/nodes/pve1/qemu/100/status/current")["status"], "running", "a warning is a success");
        lab.done("POST", "/nodes/pve1/qemu/100/status/stop", "");
        let upid = data(&lab.ask("POST", START, ""));
        lab.pass(3_600_000);
        let status = lab.get(&format!("/nodes/pve1/tasks/{}/status", upid.as_str().unwrap_or_default()));
        assert_eq!((&status["status"], status.get("exitstatus")), (&"running".into(), None));
        let error = lab.task("POST", "/nodes/pve1/qemu/100/status/stop", "");
        assert_eq!(error, "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout");
    });
}

#[test]
fn a_nested_task_is_listed_as_running_after_its_end() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        lab.done("POST", "/nodes/pve1/qemu", "vmid=300&memory=512&start=1");
        lab.pass(1_000);
        let list = lab.get("/nodes/pve1/tasks?source=all&vmid=300");
        let start = list.as_array().into_iter().flatten().find(|task| task["type"] == "qmstart").cloned().unwrap_or_default();
        assert_eq!(start["status"], "RUNNING");
        let status = lab.get(&format!("/nodes/pve1/tasks/{}/status", start["upid"].as_str().unwrap_or_default()));
        assert_eq!((&status["status"], &status["exitstatus"]), (&"stopped".into(), &"OK".into()));
        lab.pass(10_000);
        assert_eq!(lab.get("/nodes/pve1/tasks?source=active"), serde_json::json!([]));
    });
}

#[test]
fn a_finished_task_is_in_the_archive_and_a_running_one_is_not() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        lab.done("POST", START, "");
        lab.ask("POST", "/nodes/pve1/qemu/100/status/shutdown", "");
        let kinds = |lab: &mut Lab, source: &str| {
            let list = lab.get(&format!("/nodes/pve1/tasks?source={source}"));
            list.as_array().into_iter().flatten().map(|task| task["type"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&mut lab, "archive"), ["qmstart"]);
        assert_eq!(kinds(&mut lab, "active"), ["qmshutdown"]);
        assert_eq!(kinds(&mut lab, "all"), ["qmshutdown", "qmstart"]);
    });
}

#[test]
fn a_stopped_clone_leaves_nothing_behind() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let upid = data(&lab.ask("POST", "/nodes/pve1/qemu/100/clone", "newid=300"));
        let upid = upid.as_str().unwrap_or_default().to_owned();
        lab.done("DELETE", &format!("/nodes/pve1/tasks/{upid}"), "");
        assert_eq!(lab.wait(&upid), "received interrupt");
        assert_eq!(lab.get("/cluster/nextid?vmid=300"), "300");
    });
}
