//! Calls every method of the lab once for each guest. `FactsLab::request` checks the responses
//! against the official documentation.

use converger_lab::{Flavour, WorldSize, WorldSpec, documented_methods};

use crate::lab::FactsLab;

/// Replaces the captures of a template with values that exist in a seeded world.
fn fill_template(template: &str, vmid: u32, node: &str) -> String {
    let names = [("{node}", node), ("{vmid}", &vmid.to_string()), ("{userid}", "root@pam"), ("{tokenid}", "lab"), ("{roleid}", "PVEAdmin")];
    let more = [("{storage}", "tank"), ("{snapname}", "s1"), ("{poolid}", "p"), ("{sid}", "vm:100"), ("{pos}", "0")];
    let firewall = [("{name}", "lan"), ("{cidr}", "10.0.0.0/24"), ("{group}", "web"), ("{rule}", "apart"), ("{groupid}", "team")];
    names.iter().chain(&more).chain(&firewall).fold(template.to_owned(), |path, (name, value)| path.replace(name, value))
}

fn prepare_lab(flavour: Flavour) -> FactsLab {
    let mut spec = WorldSpec::from_seed(5, WorldSize { nodes: 2, guests: 12 }, flavour);
    spec.guests.iter_mut().for_each(|guest| drop(guest.config.remove("lock")));
    let mut lab = FactsLab::from_spec(&spec);
    lab.run_ok("POST", "/pools", "poolid=p");
    lab.run_ok("POST", "/access/groups", "groupid=team");
    lab.run_ok("POST", "/cluster/firewall/groups", "group=web");
    lab.run_ok("POST", "/cluster/firewall/groups/web", "type=in&action=ACCEPT");
    add_firewall_entries(&mut lab, "/cluster/firewall");
    for truth in lab.world.guest_truths().collect::<Vec<_>>() {
        let kind = if truth.kind == converger_lab::LabGuestKind::Qemu { "qemu" } else { "lxc" };
        let path = format!("/nodes/{}/{kind}/{}", truth.node, truth.vmid);
        lab.run_ok("POST", &format!("{path}/snapshot"), "snapname=s1");
        lab.run_ok("POST", &format!("{path}/firewall/rules"), "type=in&action=ACCEPT&enable=1");
        add_firewall_entries(&mut lab, &format!("{path}/firewall"));
    }
    lab.advance_ms(20_000);
    lab
}

fn add_firewall_entries(lab: &mut FactsLab, firewall: &str) {
    lab.run_ok("POST", &format!("{firewall}/rules"), "type=in&action=ACCEPT&enable=1");
    lab.run_ok("POST", &format!("{firewall}/aliases"), "name=lan&cidr=10.0.0.0/24");
    lab.run_ok("POST", &format!("{firewall}/ipset"), "name=lan");
    lab.run_ok("POST", &format!("{firewall}/ipset/lan"), "cidr=10.0.0.0/24");
}

#[test]
fn reads_return_the_documented_form() {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let mut lab = prepare_lab(flavour);
        let truths: Vec<converger_lab::GuestTruth> = lab.world.guest_truths().collect();
        let mut checked = 0;
        for (_, template) in documented_methods().filter(|(verb, _)| *verb == "GET") {
            for truth in &truths {
                let kind = if truth.kind == converger_lab::LabGuestKind::Qemu { "/qemu" } else { "/lxc" };
                if template.contains("{vmid}") && !template.contains(kind) {
                    continue;
                }
                let answer = lab.request("GET", &fill_template(template, truth.vmid, &truth.node), "");
                // Methods that the lab does not implement return an error, and so do missing objects.
                checked += u32::from(answer.status == 200);
            }
        }
        assert!(checked > 250, "{flavour:?}: only {checked}");
    }
}

#[test]
fn writes_return_a_task_or_nothing_as_documented() {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let mut lab = prepare_lab(flavour);
        let guest = lab
            .world
            .guest_truths()
            .find(|truth| truth.kind == converger_lab::LabGuestKind::Qemu)
            .unwrap_or_else(|| panic!("no guest of this kind"));
        let calls = [
            ("PUT", "/config", "description=x"),
            ("POST", "/config", "description=y"),
            ("POST", "/snapshot", "snapname=s2"),
            ("PUT", "/snapshot/s2/config", "description=z"),
            ("DELETE", "/snapshot/s2", ""),
            ("POST", "/status/stop", ""),
            ("PUT", "/resize", "disk=scsi0&size=900G"),
            ("POST", "/clone", "newid=900&full=1"),
            ("POST", "/status/start", ""),
            ("POST", "/status/reset", ""),
            ("PUT", "/firewall/options", "enable=0"),
        ];
        for (method, verb, form) in calls {
            let answer = lab.run_ok(method, &format!("/nodes/{}/qemu/{}{verb}", guest.node, guest.vmid), form);
            assert!(answer.is_null() || answer.is_string(), "{flavour:?} {method} {verb}: {answer}");
        }
    }
}
