//! Differences between releases 7, 8 and 9.

use serde_json::Value;

use crate::lab::{CLUSTER, FactsLab, SMALL, response_data};

fn lab_of_release(flavour: u8) -> FactsLab {
    FactsLab::new(&format!("flavour: {flavour}\n{SMALL}"))
}

const CONFIG: &str = "/nodes/pve1/qemu/100/config";

#[test]
fn each_release_reports_its_version() {
    for (flavour, release) in [(7, "7.4"), (8, "8.4"), (9, "9.2")] {
        assert_eq!(lab_of_release(flavour).get("/version")["release"], release);
        assert_eq!(lab_of_release(flavour).get("/nodes/pve1/version")["release"], release);
    }
}

#[test]
fn error_texts_are_in_the_body_since_release_8() {
    for (flavour, message) in [(7, None), (8, Some("no options specified\n")), (9, Some("no options specified\n"))] {
        let answer = lab_of_release(flavour).request("PUT", CONFIG, "");
        assert_eq!((answer.status, answer.reason.as_str()), (500, "no options specified"));
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        assert_eq!(body.get("message").and_then(Value::as_str), message, "{flavour}");
    }
}

#[test]
fn memory_is_a_number_in_release_7_and_text_since() {
    for (flavour, memory) in [(7, Value::from(1024)), (8, "1024".into()), (9, "1024".into())] {
        assert_eq!(lab_of_release(flavour).get(CONFIG)["memory"], memory);
        let pending = lab_of_release(flavour).get("/nodes/pve1/qemu/100/pending");
        let item = pending.as_array().into_iter().flatten().find(|item| item["key"] == "memory").cloned().unwrap_or_default();
        assert_eq!(item["value"], memory);
    }
    assert_eq!(lab_of_release(7).request_error("PUT", CONFIG, "memory=current%3D2048"), "400 Parameter verification failed.");
    lab_of_release(8).run_ok("PUT", CONFIG, "memory=current%3D2048");
}

#[test]
fn digest_errors_are_misspelled_in_release_7_only() {
    let digest = "0".repeat(40);
    for (flavour, spelling) in [(7, "missmatch"), (8, "mismatch"), (9, "mismatch")] {
        let error = lab_of_release(flavour).request_error("PUT", CONFIG, &format!("cores=1&digest={digest}"));
        assert_eq!(error, format!("500 checksum {spelling} (file change by other user?)"));
    }
}

#[test]
fn resize_is_a_task_since_release_8() {
    for flavour in [7, 8, 9] {
        let mut lab = lab_of_release(flavour);
        let answer = response_data(&lab.request("PUT", "/nodes/pve1/qemu/100/resize", "disk=scsi0&size=16G"));
        assert_eq!(answer.is_null(), flavour == 7, "{flavour}");
        lab.advance_ms(1_000);
        assert_eq!(lab.get(CONFIG)["scsi0"], "tank:vm-100-disk-0,size=16G");
    }
    let shrink = lab_of_release(7).request_error("PUT", "/nodes/pve1/qemu/100/resize", "disk=scsi0&size=1G");
    assert_eq!(shrink, "500 shrinking disks is not supported");
}

#[test]
fn methods_and_parameters_are_refused_before_their_release() {
    let stop = "/nodes/pve1/qemu/100/status/stop";
    assert_eq!(lab_of_release(7).request_error("POST", stop, "overrule-shutdown=1"), "400 Parameter verification failed.");
    lab_of_release(8).run_ok("POST", stop, "overrule-shutdown=1");
    assert_eq!(lab_of_release(7).request_error("PUT", "/pools", "poolid=p"), "501 Method 'PUT /pools' not implemented");
    assert_eq!(lab_of_release(8).request_error("PUT", CONFIG, "allow-ksm=0"), "400 Parameter verification failed.");
    assert_eq!(
        lab_of_release(8).request_error("GET", "/nodes/pve1/lxc/200/migrate", ""),
        "501 Method 'GET /nodes/pve1/lxc/200/migrate' not implemented"
    );
    lab_of_release(9).get("/nodes/pve1/lxc/200/migrate");
}

#[test]
fn ha_groups_are_refused_since_release_9() {
    for (flavour, is_accepted) in [(7, true), (8, true), (9, false)] {
        let answer = lab_of_release(flavour).request("POST", "/cluster/ha/resources", "sid=vm%3A100&group=grp");
        assert_eq!(answer.status == 200, is_accepted, "{flavour}: {}", answer.reason);
    }
}

#[test]
fn privileges_depend_on_the_release() {
    for (flavour, monitor, agent, sdn) in [(7, true, false, false), (8, true, false, true), (9, false, true, true)] {
        let held = lab_of_release(flavour).get("/access/permissions?path=/")["/"].clone();
        let has = |name: &str| held.get(name).is_some();
        assert_eq!((has("VM.Monitor"), has("VM.GuestAgent.Audit"), has("SDN.Use")), (monitor, agent, sdn), "{flavour}");
    }
}

#[test]
fn release_7_refuses_json_booleans_and_loses_proxied_json_bodies() {
    let put = |flavour: u8, path: &str, body: &str| {
        let mut lab = FactsLab::new(&format!("flavour: {flavour}\n{CLUSTER}"));
        let request =
            converger_lab::LabRequest::new("PUT", path).with_token("root@pam!t=s").with_header("Content-Type", "application/json");
        let request = converger_lab::LabRequest { body: body.as_bytes().to_vec(), ..request };
        let answer = lab.world.answer(lab.now_ms, &request);
        format!("{} {}", answer.status, answer.reason)
    };
    let (local_path, remote_path) = ("/api2/json/nodes/a/qemu/101/config", "/api2/json/nodes/b/qemu/102/config");
    assert_eq!(put(7, local_path, "{\"onboot\":true}"), "400 Parameter verification failed.");
    for flavour in [8, 9] {
        assert_eq!(put(flavour, local_path, "{\"onboot\":true}"), "200 OK");
        assert_eq!(put(flavour, remote_path, "{\"onboot\":1}"), "200 OK");
    }
    assert_eq!(put(7, local_path, "{\"onboot\":1}"), "200 OK");
    assert_eq!(put(7, remote_path, "{\"onboot\":1}"), "500 no options specified");
}

#[test]
fn extjs_is_the_same_in_all_releases() {
    for flavour in [7, 8, 9] {
        let mut lab = lab_of_release(flavour);
        let request = converger_lab::LabRequest::new("PUT", &format!("/api2/extjs{CONFIG}")).with_token("root@pam!t=s");
        let answer = lab.world.answer(lab.now_ms, &request);
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        assert_eq!((answer.status, &body["success"], &body["message"]), (200, &0.into(), &"no options specified\n".into()));
    }
}
