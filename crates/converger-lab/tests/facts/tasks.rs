//! Tasks: lists, waiting, end.

use converger_lab::{RequestFault, ResponseFault, TaskFault, TaskFaultEffect, WorldEvent};
use serde_json::Value;

use crate::lab::{FactsLab, SMALL, in_every_release, response_data};

const START: &str = "/nodes/pve1/qemu/100/status/start";

#[test]
fn second_tasks_wait_for_the_first_and_continue() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.request("POST", START, "");
        let stop = response_data(&lab.request("POST", "/nodes/pve1/qemu/100/status/stop", ""));
        let upid = stop.as_str().unwrap_or_default().to_owned();
        assert_eq!(lab.wait_for_task(&upid), "OK");
        let log = lab.get(&format!("/nodes/pve1/tasks/{upid}/log"));
        let lines: Vec<&str> = log.as_array().into_iter().flatten().filter_map(|line| line["t"].as_str()).collect();
        assert_eq!(lines, ["trying to acquire lock...", " OK", "TASK OK"]);
        assert_eq!(lab.get("/nodes/pve1/qemu/100/status/current")["status"], "stopped");
    });
}

#[test]
fn restarted_nodes_have_tasks_without_an_end_and_stale_locks() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let take = response_data(&lab.request("POST", "/nodes/pve1/qemu/100/snapshot", "snapname=s1"));
        lab.advance_ms(50);
        lab.apply_event(WorldEvent::NodeDown("pve1".to_owned()));
        lab.advance_ms(60_000);
        lab.apply_event(WorldEvent::NodeUp("pve1".to_owned()));
        lab.advance_ms(1_000);
        assert_eq!(lab.wait_for_task(take.as_str().unwrap_or_default()), "unexpected status");
        assert_eq!(lab.get("/nodes/pve1/qemu/100/status/current")["lock"], "snapshot");
        assert_eq!(lab.request_error("PUT", "/nodes/pve1/qemu/100/config", "cores=1"), "500 VM is locked (snapshot)");
    });
}

#[test]
fn tasks_can_fail_hang_and_warn() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let fault =
            |nth, effect| TaskFault { kind: Some("qmstart".to_owned()), nth: Some(nth), effect: Some(effect), ..TaskFault::default() };
        lab.world.add_task_fault(fault(1, TaskFaultEffect::Fail("start failed: QEMU exited with code 1".to_owned())));
        lab.world.add_task_fault(fault(1, TaskFaultEffect::Warnings(2)));
        lab.world.add_task_fault(fault(1, TaskFaultEffect::Hang));
        assert_eq!(lab.run_task("POST", START, ""), "start failed: QEMU exited with code 1");
        assert_eq!(lab.run_task("POST", START, ""), "WARNINGS: 2");
        assert_eq!(lab.get("/nodes/pve1/qemu/100/status/current")["status"], "running", "a task with warnings has succeeded");
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/stop", "");
        let upid = response_data(&lab.request("POST", START, ""));
        lab.advance_ms(3_600_000);
        let status = lab.get(&format!("/nodes/pve1/tasks/{}/status", upid.as_str().unwrap_or_default()));
        assert_eq!((&status["status"], status.get("exitstatus")), (&"running".into(), None));
        let error = lab.run_task("POST", "/nodes/pve1/qemu/100/status/stop", "");
        assert_eq!(error, "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout");
    });
}

#[test]
fn a_nested_task_is_listed_as_running_after_its_end() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", "/nodes/pve1/qemu", "vmid=300&memory=512&start=1");
        lab.advance_ms(1_000);
        let list = lab.get("/nodes/pve1/tasks?source=all&vmid=300");
        let start = list.as_array().into_iter().flatten().find(|task| task["type"] == "qmstart").cloned().unwrap_or_default();
        assert_eq!(start["status"], "RUNNING");
        let status = lab.get(&format!("/nodes/pve1/tasks/{}/status", start["upid"].as_str().unwrap_or_default()));
        assert_eq!((&status["status"], &status["exitstatus"]), (&"stopped".into(), &"OK".into()));
        lab.advance_ms(10_000);
        assert_eq!(lab.get("/nodes/pve1/tasks?source=active"), serde_json::json!([]));
    });
}

#[test]
fn a_finished_task_is_in_the_archive_and_a_running_one_is_not() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", START, "");
        lab.request("POST", "/nodes/pve1/qemu/100/status/shutdown", "");
        let kinds = |lab: &mut FactsLab, source: &str| {
            let list = lab.get(&format!("/nodes/pve1/tasks?source={source}"));
            list.as_array().into_iter().flatten().map(|task| task["type"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&mut lab, "archive"), ["qmstart"]);
        assert_eq!(kinds(&mut lab, "active"), ["qmshutdown"]);
        assert_eq!(kinds(&mut lab, "all"), ["qmshutdown", "qmstart"]);
    });
}

#[test]
fn task_lists_hold_fifty_tasks_running_first_then_latest_ended() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        for _ in 0..60 {
            lab.run_ok("POST", "/nodes/pve1/qemu/100/status/stop", "");
            lab.advance_ms(1_000);
        }
        lab.request("POST", START, "");
        let answer = lab.request("GET", "/nodes/pve1/tasks?source=all&vmid=100", "");
        let list = response_data(&answer);
        let list = list.as_array().unwrap_or_else(|| panic!("a list"));
        assert_eq!(list.len(), 50);
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        assert_eq!(body["total"], 61, "the total is returned next to the list");
        assert_eq!((&list[0]["type"], &list[0]["status"]), (&"qmstart".into(), &"RUNNING".into()));
        let ends: Vec<u64> = list[1..].iter().filter_map(|task| task["endtime"].as_u64()).collect();
        assert!(ends.len() == 49 && ends.is_sorted_by(|left, right| left >= right), "{ends:?}");
        let all = lab.get("/nodes/pve1/tasks?source=all&vmid=100&limit=500");
        assert_eq!(all.as_array().map(Vec::len), Some(61));
    });
}

#[test]
fn a_stopped_clone_leaves_nothing_behind() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let upid = response_data(&lab.request("POST", "/nodes/pve1/qemu/100/clone", "newid=300"));
        let upid = upid.as_str().unwrap_or_default().to_owned();
        lab.run_ok("DELETE", &format!("/nodes/pve1/tasks/{upid}"), "");
        assert_eq!(lab.wait_for_task(&upid), "received interrupt");
        assert_eq!(lab.get("/cluster/nextid?vmid=300"), "300");
    });
}

/// What a call rejects before it starts a worker is reported at once, and leaves no task.
#[test]
fn immediate_refusals_start_no_task() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let (qemu, lxc) = ("/nodes/pve1/qemu/100", "/nodes/pve1/lxc/200");
        let refused = |lab: &mut FactsLab, method: &str, path: String, form: &str, text: &str| {
            assert_eq!(lab.request_error(method, &path, form), format!("500 {text}"));
            assert_eq!(lab.get("/nodes/pve1/tasks?source=all"), serde_json::json!([]), "{method} {path}");
        };
        refused(&mut lab, "POST", format!("{lxc}/status/stop"), "", "CT 200 not running");
        refused(&mut lab, "POST", format!("{lxc}/status/shutdown"), "", "CT 200 not running");
        refused(&mut lab, "POST", format!("{qemu}/status/reboot"), "", "VM 100 not running");
        refused(&mut lab, "PUT", format!("{lxc}/resize"), "disk=rootfs&size=4G", "disk is already at specified size");
        refused(&mut lab, "PUT", format!("{lxc}/resize"), "disk=rootfs&size=2G", "unable to shrink disk size");
        let missing_text = "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist";
        refused(&mut lab, "DELETE", "/nodes/pve1/qemu/999".to_owned(), "", missing_text);
        lab.apply_event(WorldEvent::Set(100, "protection".to_owned(), "1".to_owned()));
        refused(&mut lab, "DELETE", qemu.to_owned(), "", "can't remove VM 100 - protection mode enabled");
        lab.apply_event(WorldEvent::Set(100, "protection".to_owned(), String::new()));
        lab.apply_event(WorldEvent::Lock(200, "backup".to_owned()));
        refused(&mut lab, "DELETE", lxc.to_owned(), "", "CT is locked (backup)");
        lab.apply_event(WorldEvent::Unlock(200));
        lab.apply_event(WorldEvent::Start(200));
        refused(&mut lab, "POST", format!("{lxc}/status/start"), "", "CT 200 already running");
        lab.apply_event(WorldEvent::Start(100));
        refused(&mut lab, "DELETE", qemu.to_owned(), "", "VM 100 is running - destroy failed");
        lab.apply_event(WorldEvent::Say(100, "paused".to_owned()));
        refused(&mut lab, "POST", format!("{qemu}/status/shutdown"), "", "VM is paused - cannot shutdown");
    });
}

/// For example, the lock of the task list can time out after the worker was started.
#[test]
fn completed_calls_may_return_an_error() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let reason = "can't lock file '/var/log/pve/tasks/.active.lock' - got timeout".to_owned();
        let fault = Some(ResponseFault::After { status: 500, reason: reason.clone() });
        lab.world.add_request_fault(RequestFault { method: Some("POST".to_owned()), fault, ..RequestFault::default() });
        let answer = lab.request("POST", "/nodes/pve1/qemu/100/status/start", "");
        assert_eq!((answer.status, answer.reason), (500, reason));
        assert_eq!(lab.get("/nodes/pve1/tasks?source=all").as_array().map(Vec::len), Some(1), "the worker runs nevertheless");
        lab.advance_ms(10_000);
        assert_eq!(lab.get("/nodes/pve1/qemu/100/status/current")["status"], "running");
    });
}

#[test]
fn handler_errors_have_null_data_and_earlier_errors_no_body() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let plain: Value = serde_json::from_slice(&lab.request("PUT", "/nodes/pve1/qemu/100/config", "").body).unwrap_or_default();
        let (_, extjs) = lab.request_extjs("PUT", "/nodes/pve1/qemu/100/config", "");
        for body in [plain, extjs] {
            assert_eq!(body.get("data"), Some(&Value::Null), "{body}");
        }
        let response = lab.with_token("root@pam!t=wrong").request("PUT", "/nodes/pve1/qemu/100/config", "cores=1");
        assert_eq!((response.status, response.body), (401, Vec::new()));
    });
}
