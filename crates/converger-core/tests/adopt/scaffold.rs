//! What a desired state for existing guests looks like, what it omits, and which guests have none.

use converger_core::adopt::{AdoptedGuest, Scaffold, scaffold};
use converger_core::observe::Scoped;
use serde_json::{Value, json};

use crate::{UUID, guest_row, observation_of, scope_of};

/// The text without its leading comments, and its only guest.
fn scaffold_one(members: &Value) -> (String, AdoptedGuest) {
    let kind = members["kind"].as_str().unwrap_or("qemu");
    let observation = observation_of(&[guest_row(100, kind, members)], &json!({}));
    match scaffold(&observation, &scope_of(&[100])) {
        Scaffold::Declared { text, guests } => {
            let [guest] = &guests[..] else { panic!("{guests:?}") };
            let at = text.find("  - vmid").expect("a guest");
            (text[at..].to_owned(), guest.clone())
        }
        refused => panic!("{members}: {refused:#?}"),
    }
}

/// The refusal codes of each guest, with those of the whole observation under 0.
fn scaffold_refusals(observation: &Scoped, wanted: &[u64]) -> Vec<(u32, Vec<&'static str>)> {
    match scaffold(observation, &scope_of(wanted)) {
        Scaffold::Refused { refusals, guests } => {
            let codes =
                |refusals: &[converger_core::refusal::Refusal]| refusals.iter().map(|refusal| refusal.code().word()).collect::<Vec<_>>();
            let run = (!refusals.is_empty()).then(|| (0, codes(&refusals)));
            run.into_iter().chain(guests.iter().map(|guest| (guest.vmid.get(), codes(&guest.refusals)))).collect()
        }
        declared => panic!("{declared:#?}"),
    }
}

#[test]
fn one_unreadable_guest_refuses_the_whole_file() {
    for (members, codes) in [
        (json!({ "vmid": 101 }), &["guest-missing"][..]),
        (json!({ "status": "unknown", "cause": "timeout" }), &["guest-unknown"]),
        (json!({ "status": "unknown", "run_state": "paused" }), &["guest-unknown"]),
        (json!({ "node": "pve2" }), &["node-offline"]),
        (json!({ "identity": null }), &["guard-unread"]),
        (json!({ "config": null }), &["config-unreadable"]),
        (json!({ "tags": null }), &["guard-unread"]),
        (json!({ "pending": null }), &["guard-unread"]),
        (json!({ "lock": null, "ha": null }), &["guard-unread"]),
        (json!({ "config": null, "template": null }), &["guard-unread", "config-unreadable"]),
        (json!({ "name": "VM 100", "identity": {} }), &["guest-unknown"]),
    ] {
        let mut broken = guest_row(100, "qemu", &members);
        // `null` for a lock is a value that was read; here the key must be absent.
        if members.get("lock").is_some() {
            broken.as_object_mut().expect("a row").retain(|key, _| !["lock", "ha"].contains(&key.as_str()));
        }
        let observation = observation_of(&[broken, guest_row(102, "qemu", &json!({}))], &json!({}));
        assert_eq!(scaffold_refusals(&observation, &[100, 102]), [(100, codes.to_vec())], "{members}");
    }
}

#[test]
fn declares_nothing_on_an_untrustworthy_observation() {
    let rows = [guest_row(100, "qemu", &json!({}))];
    assert_eq!(scaffold_refusals(&observation_of(&rows, &json!({ "quorate": false })), &[100]), [(0, vec!["not-quorate"])]);
    let incomplete = observation_of(&rows, &json!({ "complete": false }));
    assert_eq!(scaffold_refusals(&incomplete, &[100, 101]), [(0, vec!["observation-incomplete"]), (101, vec!["guest-unknown"])]);
}

#[test]
fn declares_a_guest_as_observed() {
    let config = json!({
        "agent": true, "balloon": 0, "boot": ["scsi0", "net0"], "cores": 4, "cpulimit": 1500, "cpuunits": 100,
        "description": "front end", "hotplug": ["disk"], "memory": 8192, "numa": true, "onboot": true, "sockets": 1,
        "startup": { "order": 2, "up": 30 },
    });
    let observation = observation_of(
        &[
            guest_row(101, "qemu", &json!({ "config": config, "tags": ["web", "edge"] })),
            guest_row(100, "lxc", &json!({ "name": "dns", "status": "stopped" })),
        ],
        &json!({ "taken_at": "2026-11-15T12:00:00Z" }),
    );
    let Scaffold::Declared { text, guests } = scaffold(&observation, &scope_of(&[101, 100])) else { panic!("refused") };
    let expected = format!(
        "\
# Guests of lab as observed at 2026-11-15T12:00:00Z, written by `converger init`. Adopting them changes nothing.
# Only what is listed is managed: remove a line to stop managing its value.
# `converger explain fields` lists the config keys. A guest can also have `restart: when-needed`, `after`, `stop` and `stop_timeout`.
version: 1
environment: lab

guests:
  - vmid: 100
    kind: lxc
    name: dns
    identity: {{ rootfs: \"local-lvm:vm-100-disk-0\", mac: \"BC:24:11:00:00:01\" }}
    state: stopped

  - vmid: 101
    kind: qemu
    name: web-1
    identity: {{ uuid: {UUID}, ctime: 1700000000 }}
    state: running
    config:
      agent: true
      balloon: 0MiB
      boot: [scsi0, net0]
      cores: 4
      cpulimit: \"1.5\"
      cpuunits: 100
      description: front end
      memory: 8GiB
      onboot: true
      sockets: 1
      startup: {{ order: 2, up: 30 }}
      tags: [edge, web]
"
    );
    assert_eq!(text, expected);
    assert!(guests.iter().all(|guest| guest.left_out.is_empty() && guest.absent.is_empty()), "{guests:?}");
}

#[test]
fn description_is_a_literal_block_or_quoted() {
    for (description, lines) in [
        ("# Web\n\nsee: [wiki] \"x\"", "description: |-\n        # Web\n\n        see: [wiki] \"x\"\n"),
        ("yes", "description: \"yes\"\n"),
        ("0x10", "description: \"0x10\"\n"),
        ("a: b # c", "description: \"a: b # c\"\n"),
        (" indented\nsecond", "description: \" indented\\nsecond\"\n"),
        ("blanks  \nbehind", "description: \"blanks  \\nbehind\"\n"),
        ("größer", "description: \"größer\"\n"),
        ("tab\there", "description: \"tab\\there\"\n"),
    ] {
        let (text, guest) = scaffold_one(&json!({ "config": { "description": description } }));
        assert!(text.ends_with(&format!("    config:\n      {lines}")), "{description:?}\n{text}");
        assert_eq!(guest.left_out, [], "{description:?}");
    }
}

#[test]
fn ambiguous_names_and_tags_are_quoted() {
    for (name, written) in [
        ("true", "\"true\""),
        ("0x10", "\"0x10\""),
        ("null", "\"null\""),
        ("1e3", "\"1e3\""),
        ("12", "\"12\""),
        ("web.example", "web.example"),
    ] {
        let (text, _) = scaffold_one(&json!({ "name": name, "tags": [name] }));
        assert!(text.contains(&format!("\n    name: {written}\n")) && text.contains(&format!("\n      tags: [{written}]\n")), "{text}");
    }
}

/// Checks that a key is omitted for this reason.
fn check_left_out(members: &Value, key: &str, why: &str) {
    let (text, guest) = scaffold_one(members);
    let found: Vec<(&str, &str)> = guest.left_out.iter().map(|left| (&*left.key, left.reason.as_str())).collect();
    let [(found_key, found_why)] = found[..] else { panic!("{members}: {found:?}\n{text}") };
    assert_eq!((found_key, found_why), (key, why), "{members}");
    assert!(text.contains(&format!("\n    # {key} is left out: {why}\n")), "{text}");
    assert!(!text.contains(&format!(" {key}: ")), "{text}");
}

#[test]
fn omits_and_reports_what_must_not_be_managed() {
    check_left_out(&json!({ "template": true, "status": "stopped" }), "state", "a template does not run");
    check_left_out(&json!({ "lock": "backup" }), "state", "the guest was locked (backup) when it was read");
    check_left_out(&json!({ "ha": { "state": "started" } }), "state", "high availability owns it (started)");
    check_left_out(&json!({ "ha": {} }), "state", "high availability owns it (not known yet)");
    check_left_out(&json!({ "name": "VM 100" }), "name", "it cannot be declared; the birth marks identify the guest");
    let hold = "they include `converger-hold`, which would be set again after somebody removes it";
    check_left_out(&json!({ "tags": ["web", "Converger-Hold"] }), "tags", hold);
    let (text, _) = scaffold_one(&json!({ "ha": { "state": "ignored" } }));
    assert!(text.contains("state: running"), "{text}");
}

#[test]
fn omits_values_with_a_pending_change() {
    let pending = |change: Value| json!({ "config": { "cores": 2 }, "pending": [change] });
    let why = "2 is in effect and 4 is pending until the next start; declare the one that you want";
    check_left_out(&pending(json!({ "key": "cores", "value": 4 })), "cores", why);
    let why = "2 is in effect and its removal is pending until the next start; declare the one that you want";
    check_left_out(&pending(json!({ "key": "cores", "delete": true })), "cores", why);
    let pending_memory = json!({ "pending": [{ "key": "memory", "value": 4096 }] });
    check_left_out(
        &pending_memory,
        "memory",
        "the default is in effect and 4GiB is pending until the next start; declare the one that you want",
    );
    check_left_out(&json!({ "pending": [{ "key": "net0" }] }), "net0", "a change of it is pending until the next start");
}

#[test]
fn omits_undeclarable_values_with_the_parser_message() {
    for (config, key, reason) in [
        (json!({ "boot": "cdn" }), "boot", "`boot` must be a list"),
        (json!({ "boot": ["usb0"] }), "boot", "`usb0` is not a device to boot from"),
        (json!({ "boot": [] }), "boot", "`boot` of qemu guests must be between 1 and 32 entries long"),
        (json!({ "cpuunits": 262_144 }), "cpuunits", "`cpuunits` of qemu guests must be between 2 and 10000"),
        (json!({ "startup": {} }), "startup", "`startup` is empty"),
        (json!({ "balloon": 2048, "memory": 1024 }), "memory", "`balloon` is the least memory and cannot be more than `memory`"),
        (json!({ "description": "bell\u{7}" }), "description", "`description` has the control character \\u{7}"),
    ] {
        check_left_out(&json!({ "config": config }), key, &format!("it cannot be declared ({reason})"));
    }
    let unread = "whether the datacenter stores tags in lower case was not read";
    check_left_out(&json!({ "tags": ["Web"] }), "tags", unread);
}

#[test]
fn declares_a_guest_without_values_that_are_not_understood() {
    let (text, guest) = scaffold_one(&json!({ "config": { "cores": 2, "memory": 512 }, "not_understood": { "boot": " ", "numa": "odd" } }));
    assert!(text.contains("      cores: 2\n") && !text.contains("memory: "), "{text}");
    let left_out: Vec<(&str, &str)> = guest.left_out.iter().map(|own| (&*own.key, own.reason.as_str())).collect();
    let expected = [
        ("boot", r#"`boot` has the value " ", which is not understood"#),
        ("memory", r#"`numa` has the value "odd", which is not understood"#),
    ];
    assert_eq!(left_out, expected, "{text}");
}

#[test]
fn reports_absent_birth_marks() {
    let (text, guest) = scaffold_one(&json!({ "identity": { "uuid": UUID } }));
    assert_eq!(guest.absent, ["ctime"]);
    assert!(text.contains(&format!("    identity: {{ uuid: {UUID} }}\n")), "{text}");
    let (text, guest) = scaffold_one(&json!({ "kind": "lxc", "identity": {} }));
    assert_eq!(guest.absent, ["mac", "rootfs"]);
    assert!(text.contains("    # it has no birth marks: only its name identifies it\n") && !text.contains("identity:"), "{text}");
}

#[test]
fn empty_scope_declares_no_guests() {
    let Scaffold::Declared { text, guests } = scaffold(&observation_of(&[], &json!({})), &scope_of(&[])) else { panic!("refused") };
    assert!(text.ends_with("environment: lab\n\nguests: []\n") && guests.is_empty(), "{text}");
}
