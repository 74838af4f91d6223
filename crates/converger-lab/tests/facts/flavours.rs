//! Releases 7, 8 and 9: what differs, and nothing else.

use serde_json::Value;

use crate::lab::{CLUSTER, Lab, SMALL, data};

fn lab(flavour: u8) -> Lab {
    Lab::new(&format!("flavour: {flavour}\n{SMALL}"))
}

const CONFIG: &str = "/nodes/pve1/qemu/100/config";

#[test]
fn each_release_says_its_name() {
    for (flavour, release) in [(7, "7.4"), (8, "8.4"), (9, "9.2")] {
        assert_eq!(lab(flavour).get("/version")["release"], release);
        assert_eq!(lab(flavour).get("/nodes/pve1/version")["release"], release);
    }
}

#[test]
fn the_text_of_an_error_is_in_the_body_since_eight() {
    for (flavour, message) in [(7, None), (8, Some("no options specified\n")), (9, Some("no options specified\n"))] {
        let answer = lab(flavour).ask("PUT", CONFIG, "");
        assert_eq!((answer.status, answer.reason.as_str()), (500, "no options specified"));
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        assert_eq!(body.get("message").and_then(Value::as_str), message, "{flavour}");
    }
}

#[test]
fn memory_is_a_number_in_seven_and_a_text_since() {
    for (flavour, memory) in [(7, Value::from(1024)), (8, "1024".into()), (9, "1024".into())] {
        assert_eq!(lab(flavour).get(CONFIG)["memory"], memory);
        let pending = lab(flavour).get("/nodes/pve1/qemu/100/pending");
        let item = pending.as_array().into_iter().flatten().find(|item| item["key"] == "memory").cloned().unwrap_or_default();
        assert_eq!(item["value"], memory);
    }
    assert_eq!(lab(7).error("PUT", CONFIG, "memory=current%3D2048"), "400 Parameter verification failed.");
    lab(8).done("PUT", CONFIG, "memory=current%3D2048");
}

#[test]
fn the_digest_error_lost_a_letter_after_seven() {
    let digest = "0".repeat(40);
    for (flavour, word) in [(7, "missmatch"), (8, "mismatch"), (9, "mismatch")] {
        let error = lab(flavour).error("PUT", CONFIG, &format!("cores=1&digest={digest}"));
        assert_eq!(error, format!("500 checksum {word} (file change by other user?)"));
    }
}

#[test]
fn a_resize_is_a_task_since_eight() {
    for flavour in [7, 8, 9] {
        let mut lab = lab(flavour);
        let answer = data(&lab.ask("PUT", "/nodes/pve1/qemu/100/resize", "disk=scsi0&size=16G"));
        assert_eq!(answer.is_null(), flavour == 7, "{flavour}");
        lab.pass(1_000);
        assert_eq!(lab.get(CONFIG)["scsi0"], "tank:vm-100-disk-0,size=16G");
    }
    let shrink = lab(7).error("PUT", "/nodes/pve1/qemu/100/resize", "disk=scsi0&size=1G");
    assert_eq!(shrink, "500 shrinking disks is not supported");
}

#[test]
fn what_came_later_is_refused_before() {
    let stop = "/nodes/pve1/qemu/100/status/stop";
    assert_eq!(lab(7).error("POST", stop, "overrule-shutdown=1"), "400 Parameter verification failed.");
    lab(8).done("POST", stop, "overrule-shutdown=1");
    assert_eq!(lab(7).error("PUT", "/pools", "poolid=p"), "501 Method 'PUT /pools' not implemented");
    assert_eq!(lab(8).error("PUT", CONFIG, "allow-ksm=0"), "400 Parameter verification failed.");
    assert_eq!(lab(8).error("GET", "/nodes/pve1/lxc/200/migrate", ""), "501 Method 'GET /nodes/pve1/lxc/200/migrate' not implemented");
    lab(9).get("/nodes/pve1/lxc/200/migrate");
}

#[test]
fn groups_of_high_availability_ended_with_nine() {
    for (flavour, fine) in [(7, true), (8, true), (9, false)] {
        let answer = lab(flavour).ask("POST", "/cluster/ha/resources", "sid=vm%3A100&group=grp");
        assert_eq!(answer.status == 200, fine, "{flavour}: {}", answer.reason);
    }
}

#[test]
fn privileges_follow_the_release() {
    for (flavour, monitor, agent, sdn) in [(7, true, false, false), (8, true, false, true), (9, false, true, true)] {
        let held = lab(flavour).get("/access/permissions?path=/")["/"].clone();
        let has = |name: &str| held.get(name).is_some();
        assert_eq!((has("VM.Monitor"), has("VM.GuestAgent.Audit"), has("SDN.Use")), (monitor, agent, sdn), "{flavour}");
    }
}

#[test]
fn json_truth_is_refused_in_seven_and_a_json_body_lost_on_the_way_to_another_node() {
    let put = |flavour: u8, path: &str, body: &str| {
        let mut lab = Lab::new(&format!("flavour: {flavour}\n{CLUSTER}"));
        let request = converger_lab::Request::new("PUT", path).token("root@pam!t=s").header("Content-Type", "application/json");
        let request = converger_lab::Request { body: body.as_bytes().to_vec(), ..request };
        let answer = lab.world.answer(lab.now_ms, &request);
        format!("{} {}", answer.status, answer.reason)
    };
    let (here, there) = ("/api2/json/nodes/a/qemu/101/config", "/api2/json/nodes/b/qemu/102/config");
    assert_eq!(put(7, here, "{\"onboot\":true}"), "400 Parameter verification failed.");
    for flavour in [8, 9] {
        assert_eq!(put(flavour, here, "{\"onboot\":true}"), "200 OK");
        assert_eq!(put(flavour, there, "{\"onboot\":1}"), "200 OK");
    }
    assert_eq!(put(7, here, "{\"onboot\":1}"), "200 OK");
    assert_eq!(put(7, there, "{\"onboot\":1}"), "500 no options specified");
}

#[test]
fn extjs_is_the_same_in_all_releases() {
    for flavour in [7, 8, 9] {
        let mut lab = lab(flavour);
        let request = converger_lab::Request::new("PUT", &format!("/api2/extjs{CONFIG}")).token("root@pam!t=s");
        let answer = lab.world.answer(lab.now_ms, &request);
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        assert_eq!((answer.status, &body["success"], &body["message"]), (200, &0.into(), &"no options specified\n".into()));
    }
}
