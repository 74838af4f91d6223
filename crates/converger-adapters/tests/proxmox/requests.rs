//! Every request of the client, checked against the lab's API table of each release: method, path and parameters. The commands are
//! extracted from the codec's source, so that none is missing.

use std::collections::BTreeMap;

use converger_adapters::proxmox::codec::{
    ConfigDigest, ConfigSet, DiskKey, DiskSize, GuestPath, HttpRequest, ProvisionWrite, ProxmoxCommand, ProxmoxRead, ProxmoxWrite,
    SnapshotName, StorageName, Upid, UserId, WriteBasis, encode,
};
use converger_core::action::{CloneSource, ClonedDisks, FieldChange, GuestClone, Migration, MigrationMode, NewSnapshot, Provisioning};
use converger_core::desired::DesiredSetting;
use converger_core::guest::{DayOne, GuestIdentity, GuestKind, GuestName, NodeName, Vmid};
use converger_core::normalize::{
    BootOrder, ChangeEffect, Field, FieldRole, FieldValue, StartupOrder, TABLE, ValueShape, WordSet, reaches_host,
};
use converger_lab::{Flavour, LabRequest, verify_request};

use crate::commands::unused_variants;
use crate::wire;

fn node_name(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

fn guest_path(kind: GuestKind) -> GuestPath {
    GuestPath { node: node_name("n1"), kind, vmid: Vmid::new(100).expect("an id") }
}

fn test_digest() -> ConfigDigest {
    ConfigDigest::new("0fe8dcaad38c42e5626b836ae80a400e0792ac21").expect("a digest")
}

fn snapshot_name() -> SnapshotName {
    SnapshotName::new("before-upgrade").expect("a name")
}

fn all_reads() -> Vec<ProxmoxRead> {
    let upid = Upid::new("UPID:n1:000043FD:0009433D:6AFA0639:qmstart:100:root@pam!probe:").expect("an id");
    let vmid = Vmid::new(100).expect("an id");
    let user = UserId::new("jö#rg@pve").expect("an id");
    let mut reads = vec![
        ProxmoxRead::Version,
        ProxmoxRead::ClusterStatus,
        ProxmoxRead::Resources,
        ProxmoxRead::NodeGuestsInFull(node_name("n1")),
        ProxmoxRead::Permissions,
        ProxmoxRead::PermissionsOn(vmid),
        ProxmoxRead::PermissionsOf(user.clone()),
        ProxmoxRead::User(user),
        ProxmoxRead::Roles,
        ProxmoxRead::NextId(vmid),
        ProxmoxRead::HaStatus,
        ProxmoxRead::TagOptions,
        ProxmoxRead::NodeVersion(node_name("n1")),
        ProxmoxRead::NodeTime(node_name("n1")),
        ProxmoxRead::Certificates(node_name("n1")),
        ProxmoxRead::ReplicationJobs,
        ProxmoxRead::NodeStatus(node_name("n1")),
        ProxmoxRead::NodeStorages(node_name("n1")),
        ProxmoxRead::TaskStatus(upid),
    ];
    reads.push(ProxmoxRead::Tasks { node: node_name("n1"), vmid });
    for kind in GuestKind::ALL {
        reads.push(ProxmoxRead::NodeGuests { node: node_name("n1"), kind });
        reads.extend([
            ProxmoxRead::GuestStatus(guest_path(kind)),
            ProxmoxRead::GuestPending(guest_path(kind)),
            ProxmoxRead::Snapshots(guest_path(kind)),
            ProxmoxRead::SnapshotConfig { guest: guest_path(kind), name: snapshot_name() },
        ]);
    }
    reads
}

fn sample_value(field: Field) -> FieldValue {
    match field.shape() {
        ValueShape::Flag => FieldValue::Flag(true),
        ValueShape::Count => FieldValue::Count(4),
        ValueShape::Mib => FieldValue::Mib(2048),
        ValueShape::Thousandths => FieldValue::Thousandths(1500),
        ValueShape::Text => FieldValue::Text("a=b;c&d+e%f ä\n".into()),
        ValueShape::Tags => FieldValue::Tags(WordSet::new(vec!["a".into(), "b".into()])),
        ValueShape::Startup => FieldValue::Startup(StartupOrder { order: Some(1), up: Some(2), down: Some(3) }),
        ValueShape::Boot => FieldValue::Boot(BootOrder::Devices(["scsi0".into(), "net0".into()].into())),
        ValueShape::Features => panic!("not managed"),
    }
}

/// The basis of a write: the digest, followed by `rest`.
fn test_basis(rest: &str) -> WriteBasis {
    WriteBasis::parse(&format!("{}\n{rest}", test_digest().as_str())).expect("a basis")
}

pub(crate) fn field_change(field: Field, after: Option<FieldValue>) -> FieldChange {
    FieldChange { field, before: None, after, pending: None, effect: ChangeEffect::Recorded }
}

/// One write that sets every managed field of a kind, and one that removes all removable fields.
fn config_writes(kind: GuestKind) -> Vec<ProxmoxWrite> {
    let rules: Vec<_> = TABLE.iter().filter(|rule| rule.kind == kind && rule.role == FieldRole::Managed).collect();
    let set: Vec<FieldChange> = rules.iter().map(|rule| field_change(rule.field, Some(sample_value(rule.field)))).collect();
    let unset: Vec<FieldChange> = rules.iter().filter(|rule| rule.can_unset).map(|rule| field_change(rule.field, None)).collect();
    [set, unset]
        .iter()
        .map(|changes| {
            ProxmoxWrite::ConfigSet(ConfigSet::new(guest_path(kind), changes, &test_basis("agent 0,type=isa")).expect("writable"))
        })
        .collect()
}

/// Everything that a new guest of a kind can get.
fn provision_writes(kind: GuestKind) -> Vec<ProxmoxWrite> {
    let network =
        [("bridge", "vmbr1"), ("vlan", "30"), ("mac", "BC:24:11:00:00:07"), ("addresses", "10.0.0.7/24"), ("gateway", "10.0.0.1")];
    let shared = [("dns", "10.0.0.53"), ("search-domain", "example.org")];
    let of_kind: &[(&str, &str)] = if kind == GuestKind::Qemu { &[("cpu", "host"), ("ci-user", "debian")] } else { &[] };
    let all = network.iter().chain(&shared).chain(of_kind);
    let attributes = all.fold(DayOne::default(), |all, (name, text)| all.with(name, text).expect("an attribute"));
    let fields = Box::new([DesiredSetting { field: Field::Cores, wanted: Some(FieldValue::Count(2)) }]);
    let provisioning = Provisioning { attributes, fields, kind, password: None };
    let net0 = if kind == GuestKind::Qemu { "virtio=BC:24:11:00:00:01,bridge=vmbr0" } else { "name=eth0,bridge=vmbr0,type=veth" };
    let write = ProvisionWrite::new(guest_path(kind), &provisioning, &test_basis(&format!("net0 {net0}"))).expect("writable");
    vec![ProxmoxWrite::Provision(Box::new(write))]
}

fn snapshot_writes(kind: GuestKind) -> Vec<ProxmoxWrite> {
    let guest = || guest_path(kind);
    let create = |description: Option<&str>, ram| ProxmoxWrite::SnapshotCreate {
        guest: guest(),
        snapshot: NewSnapshot { description: description.map(Into::into), name: snapshot_name(), ram },
    };
    let mut writes = vec![
        create(None, false),
        create(Some("a=b; by converger"), false),
        ProxmoxWrite::SnapshotDelete { guest: guest(), name: snapshot_name() },
        ProxmoxWrite::SnapshotRollback { guest: guest(), name: snapshot_name() },
    ];
    // Only a virtual machine has memory that can be saved.
    writes.extend((kind == GuestKind::Qemu).then(|| create(None, true)));
    writes
}

fn clone_write(kind: GuestKind, node: &str, disks: ClonedDisks, pool: Option<&str>, storage: Option<&str>) -> ProxmoxWrite {
    let identity = match kind {
        GuestKind::Qemu => GuestIdentity::Qemu { uuid: None, ctime: None },
        GuestKind::Lxc => GuestIdentity::Lxc { rootfs: None, mac: None },
    };
    let guest = guest_path(kind);
    let source = CloneSource {
        digest: test_digest().as_str().into(),
        identity,
        kind,
        name: "web".into(),
        node: guest.node.clone(),
        template: disks == ClonedDisks::Linked,
        vmid: guest.vmid,
    };
    let name = GuestName::new("copy").expect("a name");
    let (vmid, storage) = (Vmid::new(200).expect("an id"), storage.map(|name| StorageName::new(name).expect("a name")));
    let clone = GuestClone {
        disks,
        grows: false,
        name,
        node: node_name(node),
        pool: pool.map(Into::into),
        provisions: false,
        source,
        storage,
        vmid,
    };
    ProxmoxWrite::Clone { guest, clone: Box::new(clone) }
}

fn clone_writes(kind: GuestKind) -> Vec<ProxmoxWrite> {
    vec![
        clone_write(kind, "n1", ClonedDisks::Linked, None, None),
        clone_write(kind, "n1", ClonedDisks::Full, Some("shop"), Some("dir1")),
        clone_write(kind, "n2", ClonedDisks::Full, None, None),
    ]
}

fn migration_write(kind: GuestKind, mode: MigrationMode, storage: Option<&str>, volumes: &[&str]) -> ProxmoxWrite {
    let guest = guest_path(kind);
    let storage = storage.map(|name| StorageName::new(name).expect("a name"));
    let volumes = volumes.iter().map(|volume| (*volume).into()).collect();
    let migration = Migration { from: guest.node.clone(), mode, storage, to: node_name("n2"), volumes };
    ProxmoxWrite::Migrate { guest, migration: Box::new(migration) }
}

fn migration_writes(kind: GuestKind) -> Vec<ProxmoxWrite> {
    let local = ["dir1:100/vm-100-disk-0.raw"];
    let running = match kind {
        GuestKind::Qemu => MigrationMode::Online,
        GuestKind::Lxc => MigrationMode::Restart,
    };
    [MigrationMode::Offline, running]
        .into_iter()
        .flat_map(|mode| {
            [
                migration_write(kind, mode, None, &[]),
                migration_write(kind, mode, None, &local),
                migration_write(kind, mode, Some("dir2"), &local),
            ]
        })
        .collect()
}

fn all_writes(kind: GuestKind) -> Vec<ProxmoxWrite> {
    let guest = || guest_path(kind);
    let disk = DiskKey::new(kind, if kind == GuestKind::Qemu { "scsi0" } else { "rootfs" }).expect("a disk");
    let mut writes = vec![
        ProxmoxWrite::Start(guest()),
        ProxmoxWrite::Shutdown { guest: guest(), timeout_secs: 180 },
        ProxmoxWrite::Stop(guest()),
        ProxmoxWrite::Grow { guest: guest(), disk, size: DiskSize::parse("32G").expect("a size"), digest: test_digest() },
    ];
    writes.extend(snapshot_writes(kind));
    writes.extend(clone_writes(kind));
    writes.extend(migration_writes(kind));
    writes.extend(config_writes(kind));
    writes.extend(provision_writes(kind));
    writes
}

fn all_commands() -> Vec<ProxmoxCommand> {
    let vmid = Vmid::new(100).expect("an id");
    let reboot = ProxmoxWrite::RebootQemu { node: node_name("n1"), vmid, timeout_secs: 180 };
    let writes = GuestKind::ALL.into_iter().flat_map(all_writes).chain([reboot]);
    all_reads().into_iter().map(ProxmoxCommand::Read).chain(writes.map(ProxmoxCommand::Write)).collect()
}

fn request_parameters(request: &HttpRequest) -> BTreeMap<String, String> {
    let query = request.path().split_once('?').map(|(_, query)| query);
    let pairs = request.form().or(query).unwrap_or("").split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').expect("a pair")).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn every_request_is_known_to_every_release() {
    let commands = all_commands();
    assert_eq!(unused_variants(&commands), [""; 0], "commands without a checked request");
    for command in &commands {
        let request = wire::build_request(wire::request_template("svc@pve!probe=s"), &encode(command));
        for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
            verify_request(flavour, &request).unwrap_or_else(|error| panic!("{flavour:?} {command:?}: {error}"));
        }
    }
}

#[test]
fn api_table_refuses_unknown_requests() {
    for (method, path) in
        [("GET", "/api2/extjs/nodes/n1/qemu/100/nothing"), ("POST", "/api2/extjs/version"), ("PUT", "/api2/extjs/nodes/n1/qemu/100/resize")]
    {
        assert!(verify_request(Flavour::V9, &LabRequest::new(method, path)).is_err(), "{method} {path}");
    }
}

#[test]
fn only_writes_use_other_methods_than_get_and_only_post_and_put_have_a_body() {
    for command in all_commands() {
        let request = encode(&command);
        assert_eq!(request.method().word() == "GET", matches!(command, ProxmoxCommand::Read(_)), "{command:?}");
        assert_eq!(request.form().is_some(), matches!(request.method().word(), "POST" | "PUT"), "{command:?}");
    }
}

#[test]
fn never_sends_a_key_that_reaches_the_host_or_overrides_a_guard() {
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
    for command in all_commands() {
        for key in request_parameters(&encode(&command)).keys() {
            assert!(!banned.contains(&key.as_str()) && !reaches_host(key), "{key} in {command:?}");
        }
    }
}

/// A guest that does not respond must not block the observation of the cluster, and nothing is executed inside a guest.
#[test]
fn no_request_reaches_inside_a_guest() {
    for command in all_commands() {
        let request = encode(&command);
        let inside = ["agent", "monitor", "vncproxy", "termproxy", "spiceproxy", "execute", "sendkey"];
        let found = request.path().split(['/', '?']).find(|word| inside.contains(word));
        assert_eq!(found, None, "{command:?}");
    }
}

#[test]
fn encodes_a_config_write() {
    let set = ConfigSet::new(
        guest_path(GuestKind::Qemu),
        &[
            field_change(Field::Agent, Some(FieldValue::Flag(true))),
            field_change(Field::Balloon, None),
            field_change(Field::Boot, Some(sample_value(Field::Boot))),
            field_change(Field::Cpulimit, Some(FieldValue::Thousandths(1500))),
            field_change(Field::Description, Some(FieldValue::Text("a=b; c".into()))),
            field_change(Field::Memory, Some(FieldValue::Mib(4096))),
            field_change(Field::Startup, Some(sample_value(Field::Startup))),
            field_change(Field::Tags, Some(FieldValue::Tags(WordSet::default()))),
        ],
        &test_basis("agent 0,fstrim_cloned_disks=1"),
    );
    let request = encode(&ProxmoxCommand::Write(ProxmoxWrite::ConfigSet(set.expect("writable"))));
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
fn task_id_is_one_path_segment() {
    let upid = Upid::new("UPID:n1:000043FD:0009433D:6AFA0639:qmstart:100:root@pam!probe:").expect("an id");
    let request = encode(&ProxmoxCommand::Read(ProxmoxRead::TaskStatus(upid)));
    let expected = "/api2/extjs/nodes/n1/tasks/UPID%3An1%3A000043FD%3A0009433D%3A6AFA0639%3Aqmstart%3A100%3Aroot%40pam%21probe%3A/status";
    assert_eq!(request.path(), expected);
}

/// The request of a write: method, path after the guest, and parameters.
fn write_text(write: ProxmoxWrite) -> String {
    let request = encode(&ProxmoxCommand::Write(write));
    let path = request.path().rsplit_once("/100/").expect("a path of guest 100").1;
    format!("{} {path} {}", request.method().word(), request.form().unwrap_or_default()).trim_end().to_owned()
}

/// Each kind of guest has its own words: `hostname` and `target-storage` for containers. Proxmox ignores or refuses the other ones.
#[test]
fn encodes_the_requested_changes() {
    let texts = |writes: Vec<ProxmoxWrite>| writes.into_iter().map(write_text).collect::<Vec<_>>();
    assert_eq!(
        texts(snapshot_writes(GuestKind::Qemu)),
        [
            "POST snapshot snapname=before-upgrade",
            "POST snapshot snapname=before-upgrade&description=a%3Db%3B%20by%20converger",
            "DELETE snapshot/before-upgrade",
            "POST snapshot/before-upgrade/rollback",
            "POST snapshot snapname=before-upgrade&vmstate=1",
        ]
    );
    assert_eq!(
        texts(clone_writes(GuestKind::Qemu)),
        [
            "POST clone newid=200&name=copy&full=0",
            "POST clone newid=200&name=copy&full=1&pool=shop&storage=dir1",
            "POST clone newid=200&name=copy&full=1&target=n2",
        ]
    );
    assert_eq!(
        texts(clone_writes(GuestKind::Lxc)),
        [
            "POST clone newid=200&hostname=copy&full=0",
            "POST clone newid=200&hostname=copy&full=1&pool=shop&storage=dir1",
            "POST clone newid=200&hostname=copy&full=1&target=n2",
        ]
    );
    assert_eq!(
        texts(migration_writes(GuestKind::Qemu)),
        [
            "POST migrate target=n2",
            "POST migrate target=n2",
            "POST migrate target=n2&targetstorage=dir2",
            "POST migrate target=n2&online=1",
            "POST migrate target=n2&online=1&with-local-disks=1",
            "POST migrate target=n2&targetstorage=dir2&online=1&with-local-disks=1",
        ]
    );
    assert_eq!(
        texts(migration_writes(GuestKind::Lxc)),
        [
            "POST migrate target=n2",
            "POST migrate target=n2",
            "POST migrate target=n2&target-storage=dir2",
            "POST migrate target=n2&restart=1&timeout=180",
            "POST migrate target=n2&restart=1&timeout=180",
            "POST migrate target=n2&target-storage=dir2&restart=1&timeout=180",
        ]
    );
    let disk = DiskKey::new(GuestKind::Lxc, "rootfs").expect("a disk");
    let size = DiskSize::parse("32G").expect("a size");
    let grow = ProxmoxWrite::Grow { guest: guest_path(GuestKind::Lxc), disk, size, digest: test_digest() };
    assert_eq!(write_text(grow), format!("PUT resize disk=rootfs&size=32G&digest={}", test_digest().as_str()));
}
