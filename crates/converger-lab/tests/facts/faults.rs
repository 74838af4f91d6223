//! Faults on requests and in the world.

use converger_lab::{RequestFault, ResponseFault, WireDelivery, WorldEvent};

use crate::lab::{CLUSTER, FactsLab, SMALL, in_every_release};

const CONFIG: &str = "/nodes/pve1/qemu/100/config";

fn add_fault_to_first_put(lab: &mut FactsLab, fault: ResponseFault) {
    lab.world.add_request_fault(RequestFault {
        method: Some("PUT".to_owned()),
        nth: Some(1),
        fault: Some(fault),
        ..RequestFault::default()
    });
}

/// Checks the effect of a fault on a PUT.
fn check_put_with_fault(fault: ResponseFault, status: u16, delivery: WireDelivery, happened: bool) {
    let mut lab = FactsLab::new(SMALL);
    add_fault_to_first_put(&mut lab, fault.clone());
    let answer = lab.request("PUT", CONFIG, "cores=7");
    assert_eq!((answer.status, answer.delivery), (status, delivery), "{fault:?}");
    assert_eq!(lab.get(CONFIG)["cores"] == 7, happened, "{fault:?}");
}

#[test]
fn lost_requests_change_nothing_and_lost_responses_hide_a_change() {
    in_every_release(|| {
        check_put_with_fault(ResponseFault::LostBefore, 0, WireDelivery::LostBefore, false);
        check_put_with_fault(ResponseFault::LostAfter, 200, WireDelivery::LostAfter, true);
        check_put_with_fault(ResponseFault::Truncated(5), 200, WireDelivery::Truncated(5), true);
        check_put_with_fault(
            ResponseFault::After { status: 596, reason: "Connection timed out".to_owned() },
            596,
            WireDelivery::Deliver,
            true,
        );
        let html = ResponseFault::Instead { status: 502, reason: "Bad Gateway".to_owned(), body: "<html>".to_owned(), html: true };
        check_put_with_fault(html, 502, WireDelivery::Deliver, false);
    });
}

#[test]
fn slow_responses_arrive_late_and_complete() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        add_fault_to_first_put(&mut lab, ResponseFault::Slow(12_000));
        let answer = lab.request("PUT", CONFIG, "cores=7");
        assert_eq!((answer.status, answer.delay_ms, answer.delivery), (200, 12_000, WireDelivery::Deliver));
    });
}

#[test]
fn vanished_guests_are_gone_everywhere_and_can_reappear() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.apply_event(WorldEvent::Vanish(100));
        assert!(lab.resource_row(100).is_null());
        assert_eq!(lab.get("/cluster/nextid?vmid=100"), "100");
        assert_eq!(lab.request_error("GET", CONFIG, ""), "500 Configuration file 'nodes/pve1/qemu-server/100.conf' does not exist");
        lab.apply_event(WorldEvent::Reappear(100));
        assert_eq!(lab.resource_row(100)["name"], "web");
    });
}

#[test]
fn unlisted_guests_still_answer_on_their_own_path() {
    in_every_release(|| {
        for event in [WorldEvent::Unlist(100), WorldEvent::Blind("pve1".to_owned())] {
            let mut lab = FactsLab::new(SMALL);
            lab.apply_event(event.clone());
            assert!(lab.resource_row(100).is_null(), "{event:?}");
            assert_eq!(lab.get("/cluster/nextid?vmid=100"), "100", "{event:?}");
            assert_eq!(lab.get(CONFIG)["name"], "web", "{event:?}");
        }
    });
}

#[test]
fn a_recycled_id_is_another_guest() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let before = lab.get(CONFIG);
        lab.advance_ms(1_000);
        lab.apply_event(WorldEvent::Recycle(100));
        let after = lab.get(CONFIG);
        for key in ["name", "smbios1", "meta", "vmgenid"] {
            assert_ne!(before[key], after[key], "{key}");
        }
    });
}

#[test]
fn replaced_guests_keep_their_name_and_have_new_birth_marks() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let before = lab.get(CONFIG);
        lab.advance_ms(1_000);
        lab.apply_event(WorldEvent::Replace(100));
        let after = lab.get(CONFIG);
        assert_eq!((&before["name"], &before["cores"]), (&after["name"], &after["cores"]));
        for key in ["smbios1", "meta", "vmgenid", "digest"] {
            assert_ne!(before[key], after[key], "{key}");
        }
        assert_eq!(lab.get("/nodes/pve1/qemu/100/status/current")["status"], "stopped");
    });
}

#[test]
fn clock_jumps_change_the_node_time() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let before = lab.get("/nodes/pve1/time")["time"].as_i64().unwrap_or(0);
        lab.apply_event(WorldEvent::ClockJump(-3_600));
        assert_eq!(lab.get("/nodes/pve1/time")["time"].as_i64(), Some(before - 3_600));
    });
}

#[test]
fn a_task_is_dated_by_the_clock_of_its_own_node() {
    in_every_release(|| {
        let world = SMALL.replace("nodes: { pve1: {} }", "cluster: lab\nnodes: { pve0: {}, pve1: { clock_off_s: -40 } }");
        let mut lab = FactsLab::new(&world);
        let time = |lab: &mut FactsLab, node: &str| lab.get(&format!("/nodes/{node}/time"))["time"].as_i64().unwrap_or(0);
        assert_eq!(time(&mut lab, "pve1") - time(&mut lab, "pve0"), -40, "each node has its own clock");
        lab.apply_event(WorldEvent::NodeClockJump("pve1".to_owned(), 60));
        assert_eq!(time(&mut lab, "pve1") - time(&mut lab, "pve0"), 20);
        let before = time(&mut lab, "pve1");
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/start", "");
        let tasks = lab.get("/nodes/pve1/tasks?source=all");
        let (started, ended_at) = (tasks[0]["starttime"].as_i64().unwrap_or(0), tasks[0]["endtime"].as_i64().unwrap_or(0));
        let after = time(&mut lab, "pve1");
        assert!(before <= started && started <= ended_at && ended_at <= after, "{before} {tasks} {after}");
    });
}

#[test]
fn revoked_permissions_are_gone_immediately() {
    in_every_release(|| {
        let yaml = SMALL.replace("full: true", "full: false");
        let mut lab = FactsLab::new(&format!("{yaml}acl: [{{ path: /vms, role: PVEVMAdmin, token: 'root@pam!t' }}]\n"));
        assert_eq!(lab.resource_row(100)["name"], "web");
        lab.apply_event(WorldEvent::Revoke("/vms".to_owned()));
        assert!(lab.resource_row(100).is_null());
        assert_eq!(lab.request_error("GET", CONFIG, ""), "403 Permission check failed (/vms/100, VM.Audit)");
    });
}

#[test]
fn timed_events_of_a_file_happen_at_their_time() {
    in_every_release(|| {
        let faults = "faults: { moments: [{ at_ms: 60000, act: { node-down: c } }, { at_ms: 120000, act: { node-up: c } }] }\n";
        let mut lab = FactsLab::new(&format!("{CLUSTER}{faults}"));
        let status = |lab: &mut FactsLab| lab.request("GET", "/nodes/c/qemu/103/status/current", "").status;
        assert_eq!(status(&mut lab), 200);
        lab.advance_ms(60_000);
        assert_eq!(status(&mut lab), 595);
        lab.advance_ms(60_000);
        assert_eq!(status(&mut lab), 200);
    });
}

#[test]
fn unknown_fault_keys_in_a_file_are_refused() {
    for wrong in ["faults: { requests: [{ pat: x }] }", "faults: { moments: [{ at_ms: 1, act: { explode: pve1 } }] }"] {
        assert!(converger_lab::WorldSpec::from_yaml(&format!("{SMALL}{wrong}\n")).is_err(), "{wrong}");
    }
    let valid = "faults: { requests: [{ path: '*/config', times: 2, twist: lost-after }, { twist: { truncated: 3 } }], chance: { seed: 1, per_thousand: 5 } }";
    assert!(converger_lab::WorldSpec::from_yaml(&format!("{SMALL}{valid}\n")).is_ok());
}
