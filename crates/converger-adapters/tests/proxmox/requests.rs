//! Every request that the client can send, held against the lab's table of Proxmox's API in each release: method, path and parameters. Which
//! commands there are is read out of the codec's source, so that none is left out.

use std::collections::BTreeMap;

use converger_adapters::proxmox::codec::{
    Basis, CloneDisks, Command, ConfigSet, Digest, DiskKey, DiskSize, GuestPath, HttpRequest, Migration, Read, SnapshotName, StorageName,
    Upid, UserId, Write, encode,
};
use converger_core::action::FieldChange;
use converger_core::guest::{GuestName, Kind, NodeName, Vmid};
use converger_core::normalize::{Boot, Effect, Field, Role, Shape, Startup, TABLE, Value, Words, reaches_host};
use converger_lab::{Flavour, Request, verify_request};

use crate::commands::left_out;
use crate::wire;

fn node(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

fn path(kind: Kind) -> GuestPath {
    GuestPath { node: node("n1"), kind, vmid: Vmid::new(100).expect("an id") }
}

fn digest() -> Digest {
    Digest::new("0fe8dcaad38c42e5626b836ae80a400e0792ac21").expect("a digest")
}

fn snapshot() -> SnapshotName {
    SnapshotName::new("before-upgrade").expect("a name")
}

fn reads() -> Vec<Read> {
    let upid = Upid::new("UPID:n1:000043FD:0009433D:6AFA0639:qmstart:100:root@pam!probe:").expect("an id");
    let vmid = Vmid::new(100).expect("an id");
    let user = UserId::new("jö#rg@pve").expect("an id");
    let mut reads = vec![
        Read::Version,
        Read::ClusterStatus,
        Read::Resources,
        Read::NodeGuestsInFull(node("n1")),
        Read::Permissions,
        Read::PermissionsOn(vmid),
        Read::PermissionsOf(user.clone()),
        Read::User(user),
        Read::Roles,
        Read::NextId(vmid),
        Read::HaStatus,
        Read::TagOptions,
        Read::NodeVersion(node("n1")),
        Read::NodeTime(node("n1")),
        Read::Certificates(node("n1")),
        Read::TaskStatus(upid),
    ];
    reads.push(Read::Tasks { node: node("n1"), vmid });
    for kind in Kind::ALL {
        reads.push(Read::NodeGuests { node: node("n1"), kind });
        reads.extend([Read::GuestStatus(path(kind)), Read::GuestPending(path(kind)), Read::Snapshots(path(kind))]);
    }
    reads
}

fn sample(field: Field) -> Value {
    match field.shape() {
        Shape::Flag => Value::Flag(true),
        Shape::Count => Value::Count(4),
        Shape::Mib => Value::Mib(2048),
        Shape::Thousandths => Value::Thousandths(1500),
        Shape::Text => Value::Text("a=b;c&d+e%f ä\n".into()),
        Shape::Tags => Value::Tags(Words::new(vec!["a".into(), "b".into()])),
        Shape::Startup => Value::Startup(Startup { order: Some(1), up: Some(2), down: Some(3) }),
        Shape::Boot => Value::Boot(Boot::Devices(["scsi0".into(), "net0".into()].into())),
        Shape::Features => panic!("not managed"),
    }
}

/// What a write rests on: the digest, and this.
fn basis(rest: &str) -> Basis {
    Basis::parse(&format!("{}\n{rest}", digest().as_str())).expect("a basis")
}

pub(crate) fn change(field: Field, after: Option<Value>) -> FieldChange {
    FieldChange { field, before: None, after, pending: None, effect: Effect::Recorded }
}

/// One write that sets every managed field of a kind, and one that removes all that can be.
fn config_writes(kind: Kind) -> Vec<Write> {
    let rules: Vec<_> = TABLE.iter().filter(|rule| rule.kind == kind && rule.role == Role::Managed).collect();
    let set: Vec<FieldChange> = rules.iter().map(|rule| change(rule.field, Some(sample(rule.field)))).collect();
    let unset: Vec<FieldChange> = rules.iter().filter(|rule| rule.can_unset).map(|rule| change(rule.field, None)).collect();
    [set, unset]
        .iter()
        .map(|changes| Write::ConfigSet(ConfigSet::new(path(kind), changes, &basis("agent 0,type=isa")).expect("writable")))
        .collect()
}

fn writes(kind: Kind) -> Vec<Write> {
    let guest = || path(kind);
    let name = GuestName::new("copy").expect("a name");
    let to = Vmid::new(200).expect("an id");
    let disk = DiskKey::new(kind, if kind == Kind::Qemu { "scsi0" } else { "rootfs" }).expect("a disk");
    let mut writes = vec![
        Write::Start(guest()),
        Write::Shutdown { guest: guest(), timeout_secs: 180 },
        Write::Stop(guest()),
        Write::SnapshotCreate { guest: guest(), name: snapshot(), description: "by converger".into() },
        Write::SnapshotDelete { guest: guest(), name: snapshot() },
        Write::SnapshotRollback { guest: guest(), name: snapshot() },
        Write::Clone { guest: guest(), to, name: name.clone(), target: None, disks: CloneDisks::Linked },
        Write::Clone { guest: guest(), to, name, target: Some(node("n2")), disks: CloneDisks::Full(StorageName::new("dir1")) },
        Write::Grow { guest: guest(), disk, size: DiskSize::parse("32G").expect("a size"), digest: digest() },
        Write::Delete(guest()),
    ];
    writes.extend(config_writes(kind));
    writes
}

fn commands() -> Vec<Command> {
    let vmid = Vmid::new(100).expect("an id");
    let modes = [Migration::QemuOffline, Migration::QemuLive, Migration::LxcOffline, Migration::LxcRestart { timeout_secs: 60 }];
    let migrations = modes.map(|mode| Write::Migrate { node: node("n1"), vmid, target: node("n2"), mode });
    let reboot = Write::RebootQemu { node: node("n1"), vmid, timeout_secs: 180 };
    let writes = Kind::ALL.into_iter().flat_map(writes).chain(migrations).chain([reboot]);
    reads().into_iter().map(Command::Read).chain(writes.map(Command::Write)).collect()
}

fn parameters(request: &HttpRequest) -> BTreeMap<String, String> {
    let query = request.path().split_once('?').map(|(_, query)| query);
    let pairs = request.form().or(query).unwrap_or("").split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').expect("a pair")).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn every_request_is_one_that_the_api_knows_in_every_release() {
    let commands = commands();
    assert_eq!(left_out(&commands), [""; 0], "commands of which no request is checked");
    for command in &commands {
        let request = wire::request(wire::unsent("svc@pve!probe=s"), &encode(command));
        for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
            verify_request(flavour, &request).unwrap_or_else(|error| panic!("{flavour:?} {command:?}: {error}"));
        }
    }
}

#[test]
fn what_the_api_does_not_know_is_refused_by_the_table() {
    for (method, path) in
        [("GET", "/api2/extjs/nodes/n1/qemu/100/nothing"), ("POST", "/api2/extjs/version"), ("PUT", "/api2/extjs/nodes/n1/qemu/100/resize")]
    {
        assert!(verify_request(Flavour::V9, &Request::new(method, path)).is_err(), "{method} {path}");
    }
}

#[test]
fn only_writes_have_another_method_than_get_and_only_post_and_put_a_body() {
    for command in commands() {
        let request = encode(&command);
        assert_eq!(request.method().word() == "GET", matches!(command, Command::Read(_)), "{command:?}");
        assert_eq!(request.form().is_some(), matches!(request.method().word(), "POST" | "PUT"), "{command:?}");
    }
}

#[test]
fn nothing_that_reaches_the_host_or_overrides_a_guard_is_ever_sent() {
    let banned = [
        "lock",
        "skiplock",
        "force",
        "forceStop",
        "purge",
        "overrule-shutdown",
        "revert",
        "keepActive",
        "migratedfrom",
        "archive",
        "restore",
        "protection",
        "template",
    ];
    for command in commands() {
        for key in parameters(&encode(&command)).keys() {
            assert!(!banned.contains(&key.as_str()) && !reaches_host(key), "{key} in {command:?}");
        }
    }
}

/// A guest that does not answer must not keep anybody from reading the cluster, and nothing is run in one or beside one.
#[test]
fn nothing_inside_of_a_guest_is_asked_or_waited_for() {
    for command in commands() {
        let request = encode(&command);
        let inside = ["agent", "monitor", "vncproxy", "termproxy", "spiceproxy", "execute", "sendkey"];
        let found = request.path().split(['/', '?']).find(|word| inside.contains(word));
        assert_eq!(found, None, "{command:?}");
    }
}

#[test]
fn a_config_write_looks_like_this() {
    let set = ConfigSet::new(
        path(Kind::Qemu),
        &[
            change(Field::Agent, Some(Value::Flag(true))),
            change(Field::Balloon, None),
            change(Field::Boot, Some(sample(Field::Boot))),
            change(Field::Cpulimit, Some(Value::Thousandths(1500))),
            change(Field::Description, Some(Value::Text("a=b; c".into()))),
            change(Field::Memory, Some(Value::Mib(4096))),
            change(Field::Startup, Some(sample(Field::Startup))),
            change(Field::Tags, Some(Value::Tags(Words::default()))),
        ],
        &basis("agent 0,fstrim_cloned_disks=1"),
    );
    let request = encode(&Command::Write(Write::ConfigSet(set.expect("writable"))));
    assert_eq!((request.method().word(), request.path()), ("PUT", "/api2/extjs/nodes/n1/qemu/100/config"));
    let expected = [
        "agent=enabled%3D1%2Cfstrim_cloned_disks%3D1",
        "boot=order%3Dscsi0%3Bnet0",
        "cpulimit=1.5",
        "description=a%3Db%3B%20c",
        "memory=4096",
        "startup=order%3D1%2Cup%3D2%2Cdown%3D3",
        "delete=balloon%2Ctags",
        "digest=0fe8dcaad38c42e5626b836ae80a400e0792ac21",
    ];
    assert_eq!(request.form().expect("a form").split('&').collect::<Vec<_>>(), expected);
}

#[test]
fn the_id_of_a_task_is_one_segment() {
    let upid = Upid::new("UPID:n1:000043FD:0009433D:6AFA0639:qmstart:100:root@pam!probe:").expect("an id");
    let request = encode(&Command::Read(Read::TaskStatus(upid)));
    let expected = "/api2/extjs/nodes/n1/tasks/UPID%3An1%3A000043FD%3A0009433D%3A6AFA0639%3Aqmstart%3A100%3Aroot%40pam%21probe%3A/status";
    assert_eq!(request.path(), expected);
}
