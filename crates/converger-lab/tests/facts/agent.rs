//! What guests report about themselves.

use serde_json::json;

use crate::lab::{FactsLab, SMALL};

const AGENT: &str = "/nodes/pve1/qemu/100/agent";

fn lab_with_agent(flavour: u8) -> FactsLab {
    let guests =
        SMALL.replace("net0: 'virtio,bridge=vmbr0'", "net0: 'virtio=BC:24:11:00:00:07,bridge=vmbr0', ipconfig0: 'ip=192.0.2.7/24'");
    let guests = guests.replace("rootfs:", "net0: 'name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:08,ip=dhcp', rootfs:");
    FactsLab::new(&format!("{guests}flavour: {flavour}\n"))
}

#[test]
fn the_agent_responds_if_configured_and_the_guest_runs() {
    for flavour in [7, 8, 9] {
        let mut lab = lab_with_agent(flavour);
        let names = format!("{AGENT}/get-host-name");
        assert_eq!(lab.request_error("GET", &names, ""), "500 No QEMU guest agent configured");
        lab.run_ok("PUT", "/nodes/pve1/qemu/100/config", "agent=1");
        assert_eq!(lab.request_error("GET", &names, ""), "500 VM 100 is not running");
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/start", "");
        assert_eq!(lab.get(&names), json!({ "result": { "host-name": "web" } }));
        assert_eq!(lab.run_ok("POST", &format!("{AGENT}/ping"), ""), json!({ "result": {} }));
        let cards = lab.get(&format!("{AGENT}/network-get-interfaces"));
        let expected = json!({ "name": "eth0", "hardware-address": "bc:24:11:00:00:07",
            "ip-addresses": [{ "ip-address": "192.0.2.7", "ip-address-type": "ipv4", "prefix": 24 }] });
        assert_eq!(cards["result"][1], expected);
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/suspend", "");
        assert_eq!(
            lab.request_error("GET", &names, ""),
            "500 QEMU guest agent is not running",
            "the agent of a paused guest does not respond"
        );
    }
}

#[test]
fn agent_privileges_depend_on_the_release() {
    for (flavour, needed) in [(8, "VM.Monitor"), (9, "VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted")] {
        let users_yaml = "users: { ops@pve: {} }\nroles: { Power: [VM.PowerMgmt] }\nacl: [{ path: /vms, role: Power, user: ops@pve }]\n";
        let tokens = "tokens: { ops@pve!t: { secret: s, full: true },";
        let mut lab =
            FactsLab::new(&format!("{SMALL}flavour: {flavour}\n{users_yaml}").replace("tokens: {", tokens)).with_token("ops@pve!t=s");
        let error = lab.request_error("GET", &format!("{AGENT}/get-time"), "");
        assert_eq!(error, format!("403 Permission check failed (/vms/100, {needed})"));
    }
}

#[test]
fn a_container_shows_its_interfaces_while_it_runs() {
    let mut lab = lab_with_agent(9);
    let interfaces = "/nodes/pve1/lxc/200/interfaces";
    assert_eq!(lab.get(interfaces), json!(null));
    lab.run_ok("POST", "/nodes/pve1/lxc/200/status/start", "");
    let list = lab.get(interfaces);
    assert_eq!((&list[1]["name"], &list[1]["hwaddr"]), (&json!("eth0"), &json!("bc:24:11:00:00:08")));
    assert!(list[1]["inet"].as_str().is_some_and(|text| text.starts_with("10.0.")), "{list}");
    assert_eq!(self::lab_with_agent(7).request("GET", interfaces, "").status, 501, "the method exists since release 8");
}

#[test]
fn features_of_guest_disks_are_reported() {
    let mut lab = lab_with_agent(9);
    let mut can = |guest: &str, feature: &str| lab.get(&format!("/nodes/pve1/{guest}/feature?feature={feature}"))["hasFeature"].clone();
    assert_eq!((can("qemu/100", "snapshot"), can("qemu/100", "clone"), can("lxc/200", "copy")), (json!(1), json!(0), json!(1)));
    lab.run_ok("PUT", "/nodes/pve1/qemu/100/config", "scsi1=local%3A1");
    assert_eq!(lab.get("/nodes/pve1/qemu/100/feature?feature=snapshot")["hasFeature"], 0, "all disks must support it");
}
