//! What a request may contain, and that its stored form is read back exactly.

use super::*;

fn target(kind: GuestKind) -> ActionTarget {
    ActionTarget { kind, vmid: Vmid::new(101).expect("an id") }
}

fn parse(kind: GuestKind, action: &str, parameters: &[(&str, &str)]) -> Result<ActionRequest, Vec<ParameterFault>> {
    let environment = EnvironmentName::new("lab").expect("a name");
    ActionRequest::parse(environment, action, target(kind), parameters.iter().copied())
}

fn messages(kind: GuestKind, action: &str, parameters: &[(&str, &str)]) -> Vec<String> {
    parse(kind, action, parameters).expect_err("a fault").into_iter().map(|fault| fault.message).collect()
}

#[test]
fn reports_all_faults_of_a_request() {
    let faults = messages(GuestKind::Qemu, "vm.snapshot.create", &[("nam", "x"), ("ram", "yes"), ("ram", "true")]);
    assert_eq!(
        faults,
        [
            "`vm.snapshot.create` has no parameter `nam`",
            "parameter `ram` is given twice",
            "`vm.snapshot.create` needs parameter `name`",
            "parameter `ram` is `yes`, but must be `true` or `false`",
        ]
    );
    assert_eq!(messages(GuestKind::Qemu, "vm.snapshots.create", &[]), ["`vm.snapshots.create` is not an action"]);
}

#[test]
fn refuses_values_that_an_action_cannot_have() {
    let qemu: [(&str, &[(&str, &str)]); 14] = [
        ("vm.snapshot.create", &[("name", "current")]),
        ("vm.snapshot.create", &[("name", "../x")]),
        ("vm.disk.grow", &[("disk", "scsi0"), ("size", "+8G")]),
        ("vm.disk.grow", &[("disk", "scsi0"), ("size", "40")]),
        ("vm.disk.grow", &[("disk", "unused0"), ("size", "40G")]),
        ("vm.disk.grow", &[("disk", "rootfs"), ("size", "40G")]),
        ("vm.migrate", &[("node", "pve2"), ("mode", "restart")]),
        ("vm.migrate", &[("node", "pve2"), ("storage", "local")]),
        ("vm.migrate", &[("node", "../pve2")]),
        ("vm.clone", &[("newid", "101"), ("name", "copy")]),
        ("vm.clone", &[("newid", "99"), ("name", "copy")]),
        ("vm.clone", &[("newid", "120"), ("name", "copy"), ("disks", "linked"), ("storage", "local")]),
        ("vm.config.set", &[]),
        ("vm.config.set", &[("args", "-S")]),
    ];
    for (action, parameters) in qemu {
        assert!(parse(GuestKind::Qemu, action, parameters).is_err(), "{action} {parameters:?}");
    }
    assert!(parse(GuestKind::Lxc, "vm.migrate", &[("node", "pve2"), ("mode", "online")]).is_err());
    assert!(parse(GuestKind::Lxc, "vm.config.set", &[("balloon", "512MiB")]).is_err());
    assert!(parse(GuestKind::Qemu, "vm.shutdown", &[("timeout", "0")]).is_err());
}

/// One of both would be written, and the caller would not know which.
#[test]
fn refuses_a_key_that_is_set_and_unset() {
    let set = |parameters: &[(&str, &str)]| messages(GuestKind::Qemu, "vm.config.set", parameters);
    assert_eq!(set(&[("cores", "8"), ("unset", "cores")]), ["`cores` is given a value and in `unset`"]);
    assert_eq!(set(&[("unset", "balloon,balloon")]), ["`balloon` is given a value and in `unset`"]);
    assert_eq!(set(&[("unset", "")])[0], "parameter `unset` names no key");
}

#[test]
fn suggests_every_action_that_contains_what_was_typed() {
    let help = |name: &str| parse(GuestKind::Qemu, name, &[]).expect_err("no action")[0].help.clone().unwrap_or_default();
    assert!(
        help("vm.snap").starts_with("did you mean `vm.snapshot.create` or `vm.snapshot.delete` or `vm.snapshot.rollback`?"),
        "{}",
        help("vm.snap")
    );
    assert!(help("reboot").starts_with("did you mean `vm.reboot`?") && help("vm.strat").starts_with("did you mean `vm.start`?"));
    assert_eq!(help("frobnicate"), "`converger action list` shows all actions");
}

#[test]
fn a_container_keeps_the_address_that_it_is_recognised_by() {
    let faults = messages(GuestKind::Lxc, "vm.clone", &[("newid", "120"), ("name", "dns-2"), ("mac", "BC:24:11:00:00:07")]);
    assert_eq!(faults, ["parameter `mac` cannot be given for containers"]);
}

const SSH_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1Yv1y0b1kJ6l0oTq2p5bqg8m3f0yX9b2v7c4d5e6f7 me@host";

/// A virtual machine with everything that a new one can get.
const PROVISIONING: [(&str, &str); 22] = [
    ("newid", "120"),
    ("name", "web-7"),
    ("cores", "4"),
    ("sockets", "2"),
    ("cpu", "host"),
    ("memory", "8GiB"),
    ("balloon", "2GiB"),
    ("disk-size", "40GiB"),
    ("bridge", "vmbr1"),
    ("vlan", "30"),
    ("mac", "bc:24:11:00:00:07"),
    ("ci-user", "debian"),
    ("ssh-keys", SSH_KEY),
    ("addresses", "10.0.0.7/24,2001:db8::7/64"),
    ("gateway", "10.0.0.1"),
    ("dns", "10.0.0.53"),
    ("search-domain", "example.org"),
    ("password", "env:WEB_PASSWORD"),
    ("tags", "web,edge"),
    ("onboot", "true"),
    ("description", "made from \"debian\""),
    ("start", "true"),
];

#[test]
fn refuses_attributes_that_a_new_guest_cannot_get() {
    let new = [("newid", "120"), ("name", "web-7")];
    let clone = |kind, name, text| messages(kind, "vm.clone", &[new[0], new[1], (name, text)]);
    assert_eq!(clone(GuestKind::Qemu, "vlan", "4095"), ["parameter `vlan` is `4095`, but must be a number from 1 to 4094"]);
    assert_eq!(clone(GuestKind::Qemu, "disk", "scsi0"), ["parameter `disk` is given without a size"]);
    assert_eq!(clone(GuestKind::Qemu, "gateway", "10.0.0.1"), ["parameter `gateway` has 10.0.0.1, but no fixed address uses it"]);
    for key in ["cicustom", "args", "hookscript", "hostpci0", "usb0", "serial0", "mp0"] {
        assert_eq!(clone(GuestKind::Qemu, key, "x"), [format!("`{key}` reaches the host and cannot be written")]);
    }
    for (key, text) in [("cpu", "host"), ("ci-user", "me"), ("ssh-keys", SSH_KEY), ("password", "env:WEB_PASSWORD")] {
        assert_eq!(clone(GuestKind::Lxc, key, text), [format!("parameter `{key}` does not exist for containers")]);
    }
    assert!(clone(GuestKind::Lxc, "balloon", "1GiB")[0].contains("has no parameter `balloon`"));
}

#[test]
fn never_repeats_a_password_that_was_given_in_place_of_a_reference() {
    let faults = parse(GuestKind::Qemu, "vm.clone", &[("newid", "120"), ("name", "web-7"), ("password", "env:hunter2")]);
    let shown = format!("{:?}", faults.expect_err("not a reference"));
    assert!(shown.contains("where the password is stored") && !shown.contains("hunter2"), "{shown}");
}

/// A kind of guest, an action and its parameters.
type ActionSample = (GuestKind, &'static str, Vec<(&'static str, &'static str)>);

/// Every action with every parameter.
fn samples() -> Vec<ActionSample> {
    use GuestKind::{Lxc, Qemu};
    vec![
        (Qemu, "vm.start", vec![]),
        (Qemu, "vm.stop", vec![]),
        (Lxc, "vm.shutdown", vec![("timeout", "60")]),
        (Qemu, "vm.reboot", vec![]),
        (Qemu, "vm.config.set", vec![("cores", "4"), ("memory", "8GiB"), ("tags", "web,edge"), ("onboot", "true"), ("unset", "balloon")]),
        (Lxc, "vm.config.set", vec![("swap", "512MiB"), ("startup", "order=2,up=30"), ("cpulimit", "1.5"), ("description", "a \"b\"")]),
        (Qemu, "vm.snapshot.create", vec![("name", "pre-upgrade"), ("ram", "true"), ("description", "before 9.2")]),
        (Qemu, "vm.snapshot.delete", vec![("name", "pre-upgrade")]),
        (Qemu, "vm.snapshot.rollback", vec![("name", "pre-upgrade")]),
        (Lxc, "vm.disk.grow", vec![("disk", "rootfs"), ("size", "40GiB")]),
        (Qemu, "vm.migrate", vec![("node", "pve2"), ("mode", "online"), ("local-disks", "true"), ("storage", "local-zfs")]),
        (Lxc, "vm.migrate", vec![("node", "pve2")]),
        (
            Qemu,
            "vm.clone",
            vec![("newid", "120"), ("name", "web-3"), ("disks", "full"), ("node", "pve2"), ("storage", "ceph"), ("pool", "a/b")],
        ),
        (Qemu, "vm.clone", PROVISIONING.to_vec()),
        (
            Lxc,
            "vm.clone",
            vec![
                ("newid", "120"),
                ("name", "dns-2"),
                ("disk-size", "16G"),
                ("disk", "rootfs"),
                ("bridge", "vmbr1"),
                ("addresses", "dhcp,auto"),
                ("dns", "10.0.0.53,2001:db8::53"),
                ("swap", "512MiB"),
            ],
        ),
    ]
}

#[test]
fn stored_request_is_read_back_exactly() {
    for (kind, action, parameters) in samples() {
        let request = parse(kind, action, &parameters).unwrap_or_else(|faults| panic!("{action}: {faults:?}"));
        let bytes = serde_json::to_vec(&request).expect("it can be written");
        let again = Intent::parse_normal(&bytes).unwrap_or_else(|why| panic!("{action}: {why}"));
        assert_eq!(again, Intent::from(request), "{}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn refuses_a_stored_request_in_another_form() {
    let request = parse(GuestKind::Qemu, "vm.snapshot.delete", &[("name", "old")]).expect("a request");
    let text = String::from_utf8(serde_json::to_vec(&request).expect("it can be written")).expect("text");
    let edits = [
        text.replace("\"name\":\"old\"", "\"name\":\"old\",\"ram\":\"true\""),
        text.replace("converger.request/1", "converger.request/9"),
        text.replace(",\"schema\"", ", \"schema\""),
        text.replace("vm.snapshot.delete", "vm.delete"),
        text.replace("\"vmid\":101", "\"vmid\":1"),
    ];
    for edit in edits {
        assert_ne!(edit, text);
        assert!(Intent::parse_normal(edit.as_bytes()).is_err(), "{edit}");
    }
}

#[test]
fn order_of_parameters_does_not_matter() {
    let one = parse(GuestKind::Qemu, "vm.disk.grow", &[("disk", "scsi0"), ("size", "40G")]).expect("a request");
    let other = parse(GuestKind::Qemu, "vm.disk.grow", &[("size", "40GiB"), ("disk", "scsi0")]).expect("a request");
    assert_eq!(Intent::from(one).digest().expect("a digest"), Intent::from(other).digest().expect("a digest"));
}

#[test]
fn catalogue_and_requestable_actions_are_the_same() {
    // The first configuration of a new guest is a step of `vm.clone` and cannot be requested alone.
    let requestable = crate::action::CATALOGUE.iter().filter(|action| action.change != "provision");
    let catalogue: Vec<&str> = requestable.map(|action| action.action).collect();
    assert_eq!(ACTIONS.map(|action| action.name).to_vec(), catalogue);
    for action in &ACTIONS {
        assert!(action.parameters.is_sorted_by_key(|parameter| parameter.name), "{}", action.name);
    }
}
