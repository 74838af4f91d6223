//! What goes wrong on the wire and in the world.

use converger_lab::{Act, Fate, RequestFault, Twist};

use crate::lab::{CLUSTER, Lab, SMALL, in_every_release};

const CONFIG: &str = "/nodes/pve1/qemu/100/config";

fn once(lab: &mut Lab, twist: Twist) {
    lab.world.add_request_fault(RequestFault {
        method: Some("PUT".to_owned()),
        nth: Some(1),
        twist: Some(twist),
        ..RequestFault::default()
    });
}

/// What a twisted PUT leaves behind.
fn check(twist: Twist, status: u16, fate: Fate, happened: bool) {
    let mut lab = Lab::new(SMALL);
    once(&mut lab, twist.clone());
    let answer = lab.ask("PUT", CONFIG, "cores=7");
    assert_eq!((answer.status, answer.fate), (status, fate), "{twist:?}");
    assert_eq!(lab.get(CONFIG)["cores"] == 7, happened, "{twist:?}");
}

#[test]
fn a_lost_request_changes_nothing_and_a_lost_answer_hides_a_change() {
    in_every_release(|| {
        check(Twist::LostBefore, 0, Fate::LostBefore, false);
        check(Twist::LostAfter, 200, Fate::LostAfter, true);
        check(Twist::Truncated(5), 200, Fate::Truncated(5), true);
        check(Twist::After { status: 596, reason: "Connection timed out".to_owned() }, 596, Fate::Deliver, true);
        let html = Twist::Instead { status: 502, reason: "Bad Gateway".to_owned(), body: "<html>".to_owned(), html: true };
        check(html, 502, Fate::Deliver, false);
    });
}

#[test]
fn a_slow_answer_is_late_and_whole() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        once(&mut lab, Twist::Slow(12_000));
        let answer = lab.ask("PUT", CONFIG, "cores=7");
        assert_eq!((answer.status, answer.delay_ms, answer.fate), (200, 12_000, Fate::Deliver));
    });
}

#[test]
fn a_vanished_guest_is_nowhere_and_comes_back() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        lab.act(Act::Vanish(100));
        assert!(lab.row(100).is_null());
        assert_eq!(lab.get("/cluster/nextid?vmid=100"), "100");
        assert_eq!(lab.error("GET", CONFIG, ""), "500 Configuration file 'nodes/pve1/qemu-server/100.conf' does not exist");
        lab.act(Act::Reappear(100));
        assert_eq!(lab.row(100)["name"], "web");
    });
}

#[test]
fn a_list_that_lies_leaves_the_guests_own_path_alone() {
    in_every_release(|| {
        for act in [Act::Unlist(100), Act::Blind("pve1".to_owned())] {
            let mut lab = Lab::new(SMALL);
            lab.act(act.clone());
            assert!(lab.row(100).is_null(), "{act:?}");
            assert_eq!(lab.get("/cluster/nextid?vmid=100"), "100", "{act:?}");
            assert_eq!(lab.get(CONFIG)["name"], "web", "{act:?}");
        }
    });
}

#[test]
fn a_recycled_id_is_another_guest() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let before = lab.get(CONFIG);
        lab.pass(1_000);
        lab.act(Act::Recycle(100));
        let after = lab.get(CONFIG);
        for key in ["name", "smbios1", "meta", "vmgenid"] {
            assert_ne!(before[key], after[key], "{key}");
        }
    });
}

#[test]
fn a_replaced_guest_has_the_name_of_the_one_before_and_nothing_else_that_tells_them_apart_but_marks() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let before = lab.get(CONFIG);
        lab.pass(1_000);
        lab.act(Act::Replace(100));
        let after = lab.get(CONFIG);
        assert_eq!((&before["name"], &before["cores"]), (&after["name"], &after["cores"]));
        for key in ["smbios1", "meta", "vmgenid", "digest"] {
            assert_ne!(before[key], after[key], "{key}");
        }
        assert_eq!(lab.get("/nodes/pve1/qemu/100/status/current")["status"], "stopped");
    });
}

#[test]
fn clocks_jump_and_tickets_with_them() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let before = lab.get("/nodes/pve1/time")["time"].as_i64().unwrap_or(0);
        lab.act(Act::ClockJump(-3_600));
        assert_eq!(lab.get("/nodes/pve1/time")["time"].as_i64(), Some(before - 3_600));
    });
}

#[test]
fn a_task_is_dated_by_the_clock_of_its_own_node() {
    in_every_release(|| {
        let world = SMALL.replace("nodes: { pve1: {} }", "cluster: lab\nnodes: { pve0: {}, pve1: { clock_off_s: -40 } }");
        let mut lab = Lab::new(&world);
        let time = |lab: &mut Lab, node: &str| lab.get(&format!("/nodes/{node}/time"))["time"].as_i64().unwrap_or(0);
        assert_eq!(time(&mut lab, "pve1") - time(&mut lab, "pve0"), -40, "each node has its own");
        lab.act(Act::NodeClockJump("pve1".to_owned(), 60));
        assert_eq!(time(&mut lab, "pve1") - time(&mut lab, "pve0"), 20);
        let before = time(&mut lab, "pve1");
        lab.done("POST", "/nodes/pve1/qemu/100/status/start", "");
        let tasks = lab.get("/nodes/pve1/tasks?source=all");
        let (started, ended) = (tasks[0]["starttime"].as_i64().unwrap_or(0), tasks[0]["endtime"].as_i64().unwrap_or(0));
        let after = time(&mut lab, "pve1");
        assert!(before <= started && started <= ended && ended <= after, "{before} {tasks} {after}");
    });
}

#[test]
fn a_permission_taken_away_is_gone_at_once() {
    in_every_release(|| {
        let yaml = SMALL.replace("full: true", "full: false");
        let mut lab = Lab::new(&format!("{yaml}acl: [{{ path: /vms, role: PVEVMAdmin, token: 'root@pam!t' }}]\n"));
        assert_eq!(lab.row(100)["name"], "web");
        lab.act(Act::Revoke("/vms".to_owned()));
        assert!(lab.row(100).is_null());
        assert_eq!(lab.error("GET", CONFIG, ""), "403 Permission check failed (/vms/100, VM.Audit)");
    });
}

#[test]
fn moments_of_a_file_come_at_their_time() {
    in_every_release(|| {
        let faults = "faults: { moments: [{ at_ms: 60000, act: { node-down: c } }, { at_ms: 120000, act: { node-up: c } }] }\n";
        let mut lab = Lab::new(&format!("{CLUSTER}{faults}"));
        let status = |lab: &mut Lab| lab.ask("GET", "/nodes/c/qemu/103/status/current", "").status;
        assert_eq!(status(&mut lab), 200);
        lab.pass(60_000);
        assert_eq!(status(&mut lab), 595);
        lab.pass(60_000);
        assert_eq!(status(&mut lab), 200);
    });
}

#[test]
fn faults_of_a_file_are_strict() {
    for wrong in ["faults: { requests: [{ pat: x }] }", "faults: { moments: [{ at_ms: 1, act: { explode: pve1 } }] }"] {
        assert!(converger_lab::Setting::from_yaml(&format!("{SMALL}{wrong}\n")).is_err(), "{wrong}");
    }
    let fine = "faults: { requests: [{ path: '*/config', times: 2, twist: lost-after }, { twist: { truncated: 3 } }], chance: { seed: 1, per_thousand: 5 } }";
    assert!(converger_lab::Setting::from_yaml(&format!("{SMALL}{fine}\n")).is_ok());
}
