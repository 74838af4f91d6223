//! Every method that the lab plays, once for each guest: answers are checked by `Lab::ask` against what the official documentation
//! says that the method returns.

use converger_lab::{Flavour, Scale, Setting, documented_methods};

use crate::lab::Lab;

/// What a path's captures can be in a seeded world.
fn filled(template: &str, vmid: u32, node: &str) -> String {
    let names = [("{node}", node), ("{vmid}", &vmid.to_string()), ("{userid}", "root@pam"), ("{tokenid}", "lab"), ("{roleid}", "PVEAdmin")];
    let more = [("{storage}", "tank"), ("{snapname}", "s1"), ("{poolid}", "p"), ("{sid}", "vm:100"), ("{pos}", "0")];
    let firewall = [("{name}", "lan"), ("{cidr}", "10.0.0.0/24"), ("{group}", "web"), ("{rule}", "apart"), ("{groupid}", "team")];
    names.iter().chain(&more).chain(&firewall).fold(template.to_owned(), |path, (name, value)| path.replace(name, value))
}

fn prepared(flavour: Flavour) -> Lab {
    let mut setting = Setting::seeded(5, Scale { nodes: 2, guests: 12 }, flavour);
    setting.guests.iter_mut().for_each(|guest| drop(guest.config.remove("lock")));
    let mut lab = Lab::of(&setting);
    lab.done("POST", "/pools", "poolid=p");
    lab.done("POST", "/access/groups", "groupid=team");
    lab.done("POST", "/cluster/firewall/groups", "group=web");
    lab.done("POST", "/cluster/firewall/groups/web", "type=in&action=ACCEPT");
    named_addresses(&mut lab, "/cluster/firewall");
    for truth in lab.world.truths().collect::<Vec<_>>() {
        let kind = if truth.kind == converger_lab::Kind::Qemu { "qemu" } else { "lxc" };
        let path = format!("/nodes/{}/{kind}/{}", truth.node, truth.vmid);
        lab.done("POST", &format!("{path}/snapshot"), "snapname=s1");
        lab.done("POST", &format!("{path}/firewall/rules"), "type=in&action=ACCEPT&enable=1");
        named_addresses(&mut lab, &format!("{path}/firewall"));
    }
    lab.pass(20_000);
    lab
}

fn named_addresses(lab: &mut Lab, firewall: &str) {
    lab.done("POST", &format!("{firewall}/rules"), "type=in&action=ACCEPT&enable=1");
    lab.done("POST", &format!("{firewall}/aliases"), "name=lan&cidr=10.0.0.0/24");
    lab.done("POST", &format!("{firewall}/ipset"), "name=lan");
    lab.done("POST", &format!("{firewall}/ipset/lan"), "cidr=10.0.0.0/24");
}

#[test]
fn what_is_read_has_the_documented_shape() {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let mut lab = prepared(flavour);
        let truths: Vec<converger_lab::Truth> = lab.world.truths().collect();
        let mut checked = 0;
        for (_, template) in documented_methods().filter(|(verb, _)| *verb == "GET") {
            for truth in &truths {
                let kind = if truth.kind == converger_lab::Kind::Qemu { "/qemu" } else { "/lxc" };
                if template.contains("{vmid}") && !template.contains(kind) {
                    continue;
                }
                let answer = lab.ask("GET", &filled(template, truth.vmid, &truth.node), "");
                // What the lab does not play says so, and what is not there too.
                checked += u32::from(answer.status == 200);
            }
        }
        assert!(checked > 250, "{flavour:?}: only {checked}");
    }
}

#[test]
fn what_is_written_returns_a_task_or_nothing_as_documented() {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let mut lab = prepared(flavour);
        let guest = lab.world.truths().find(|truth| truth.kind == converger_lab::Kind::Qemu).unwrap_or_else(|| panic!("there is one"));
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
            let answer = lab.done(method, &format!("/nodes/{}/qemu/{}{verb}", guest.node, guest.vmid), form);
            assert!(answer.is_null() || answer.is_string(), "{flavour:?} {method} {verb}: {answer}");
        }
    }
}
