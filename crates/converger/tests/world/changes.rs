//! The changes of the client, each with a suitable guest, and whether they were done according to the lab.

use converger_adapters::proxmox::codec::{DiskKey, DiskSize, StorageName};
use converger_core::action::{
    Change, CloneSource, ClonedDisks, DiskGrowth, ExistingSnapshot, FieldChange, GuestClone, Migration, MigrationMode, NewSnapshot,
    Provisioning, SnapshotRollback,
};
use converger_core::apply::{EnvRequest, EnvResponse, GuestAddress, LiveConfig};
use converger_core::guest::{EnvironmentName, GuestKind, GuestName, RunState};
use converger_core::intent::{ActionRequest, ActionTarget, RequestedAction};
use converger_core::normalize::{ChangeEffect, Field, FieldValue};
use converger_core::observe::SnapshotTree;
use converger_lab::{Flavour, GuestSpec, GuestTruth, ScalarSpec, World, WorldEvent, WorldSize, WorldSpec};

use crate::client::{ask_environment, node_name, snapshot_name, vmid};
use crate::lab_transport::LabTransport;

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientChange {
    Start,
    Shutdown,
    Stop,
    Reboot,
    ConfigSet,
    /// The first config write of a new guest, with attributes that are not managed later.
    Provision,
    SnapshotCreate,
    /// A snapshot with the memory of a running virtual machine.
    SnapshotWithRam,
    SnapshotDelete,
    SnapshotRollback,
    /// A rollback to a snapshot with memory, after which the guest runs.
    RollbackToRam,
    Clone,
    /// A copy that shares the disks of a template.
    CloneLinked,
    /// A copy with its disks on another storage.
    CloneElsewhere,
    /// A copy on another node.
    CloneAway,
    MigrateStopped,
    MigrateRunning,
    /// A migration that also copies the disks from local storage.
    MigrateLocalDisks,
    Grow,
}

use ClientChange as A;

impl ClientChange {
    const ALL: [Self; 19] = [
        A::Start,
        A::Shutdown,
        A::Stop,
        A::Reboot,
        A::ConfigSet,
        A::Provision,
        A::SnapshotCreate,
        A::SnapshotWithRam,
        A::SnapshotDelete,
        A::SnapshotRollback,
        A::RollbackToRam,
        A::Clone,
        A::CloneLinked,
        A::CloneElsewhere,
        A::CloneAway,
        A::MigrateStopped,
        A::MigrateRunning,
        A::MigrateLocalDisks,
        A::Grow,
    ];

    /// The changes of a kind of guest. A container has no memory to save, and is not rebooted, because Proxmox kills it after the timeout.
    pub(crate) fn of_kind(kind: GuestKind) -> impl Iterator<Item = Self> {
        let is_for_qemu_only = |action: Self| matches!(action, A::Reboot | A::SnapshotWithRam | A::RollbackToRam);
        Self::ALL.into_iter().filter(move |action| kind == GuestKind::Qemu || !is_for_qemu_only(*action))
    }

    fn needs_running(self) -> bool {
        matches!(self, A::Shutdown | A::Stop | A::Reboot | A::SnapshotWithRam | A::RollbackToRam | A::MigrateRunning | A::MigrateLocalDisks)
    }

    /// Whether a task carries it out.
    pub(crate) fn has_task(self, flavour: Flavour, kind: GuestKind) -> bool {
        match self {
            A::ConfigSet | A::Provision => false,
            A::Grow => kind == GuestKind::Lxc || flavour != Flavour::V7,
            _ => true,
        }
    }
}

/// A lab of three nodes with one guest that allows this change; the endpoint is not the guest's node.
pub(crate) fn prepare_lab(flavour: Flavour, kind: GuestKind, action: ClientChange) -> LabTransport<()> {
    prepare_lab_with(flavour, kind, action, guest_setting(kind, action))
}

/// The same with this guest.
pub(crate) fn prepare_lab_with(flavour: Flavour, kind: GuestKind, action: ClientChange, guest: GuestSpec) -> LabTransport<()> {
    let mut spec = WorldSpec::from_seed(11, WorldSize { nodes: 3, guests: 0 }, flavour);
    spec.guests.push(guest);
    let transport = LabTransport::new(&spec, "pve2", ());
    transport.lock_lab().advance(20_000);
    if action == A::CloneLinked {
        // A template has no snapshots.
        post_as_other(&transport, kind, "template", "");
        return transport;
    }
    if action == A::MigrateLocalDisks {
        // A disk on local storage that has snapshots does not move while the guest runs.
        return transport;
    }
    // The later snapshot is the current one; rolling back to the first is a visible change.
    let memory = if action == A::RollbackToRam { "&vmstate=1" } else { "" };
    for (name, cores) in [("first", "2"), ("later", "4")] {
        transport.lock_lab().inject_event(WorldEvent::Set(100, "cores".to_owned(), cores.to_owned()));
        post_as_other(&transport, kind, "snapshot", &format!("snapname={name}{memory}"));
    }
    if action == A::RollbackToRam {
        transport.lock_lab().inject_event(WorldEvent::Stop(100));
    }
    transport
}

pub(crate) fn guest_setting(kind: GuestKind, action: ClientChange) -> GuestSpec {
    let of_kind = if kind == GuestKind::Qemu { converger_lab::LabGuestKind::Qemu } else { converger_lab::LabGuestKind::Lxc };
    let mut guest = GuestSpec::new(100, of_kind, "pve1");
    guest.name = Some("web".to_owned());
    guest.state = action.needs_running().then(|| "running".to_owned());
    let volume = match (action, kind) {
        (A::MigrateLocalDisks, GuestKind::Qemu) => "local:100/vm-100-disk-0.qcow2,size=1G",
        (A::MigrateLocalDisks, GuestKind::Lxc) => "local:100/vm-100-disk-0.raw,size=1G",
        _ => "tank:vm-100-disk-0,size=1G",
    };
    guest.config.insert(disk_key(kind).as_str().to_owned(), ScalarSpec::Text(volume.to_owned()));
    guest
}

/// Another user does this to the guest.
fn post_as_other(transport: &LabTransport<()>, kind: GuestKind, what: &str, form: &str) {
    let path = format!("/api2/json/nodes/pve1/{}/100/{what}", kind.word());
    let request = converger_lab::LabRequest::new("POST", &path).with_token("root@pam!lab=lab").with_form(form);
    let mut lab = transport.lock_lab();
    let now_ms = lab.now_ms;
    let answer = lab.world.answer_at(now_ms, "pve1", &request);
    assert_eq!(answer.status, 200, "{}", answer.reason);
    lab.advance(5_000);
}

/// The guest that every change is sent to.
pub(crate) fn address(kind: GuestKind) -> GuestAddress {
    GuestAddress { node: node_name("pve1"), kind, vmid: vmid(100) }
}

fn disk_key(kind: GuestKind) -> DiskKey {
    DiskKey::new(kind, if kind == GuestKind::Qemu { "scsi0" } else { "rootfs" }).unwrap_or_else(|| panic!("a disk"))
}

/// Builds the change as a plan would, on what the guest is now.
pub(crate) fn build_change(transport: &LabTransport<()>, kind: GuestKind, action: ClientChange) -> Change {
    match action {
        A::Start => Change::Start,
        A::Shutdown => Change::Shutdown { timeout_secs: 30 },
        A::Stop => Change::Stop,
        A::Reboot => Change::Reboot { timeout_secs: 30 },
        A::ConfigSet => Change::ConfigSet(Box::new([description_change()])),
        A::Provision => Change::Provision(Box::new(first_config(kind))),
        A::SnapshotCreate => new_snapshot("another", false),
        A::SnapshotWithRam => new_snapshot("another", true),
        A::SnapshotDelete => Change::SnapshotDelete(Box::new(existing_snapshot(&read_snapshots(transport, kind), "first"))),
        A::SnapshotRollback => rollback(transport, kind, RunState::Stopped),
        A::RollbackToRam => rollback(transport, kind, RunState::Running),
        A::Clone => clone_change(transport, kind, "pve1", ClonedDisks::Full, None),
        A::CloneLinked => clone_change(transport, kind, "pve1", ClonedDisks::Linked, None),
        A::CloneElsewhere => clone_change(transport, kind, "pve1", ClonedDisks::Full, Some("local")),
        A::CloneAway => clone_change(transport, kind, "pve3", ClonedDisks::Full, None),
        A::MigrateStopped => migration(transport, kind, MigrationMode::Offline),
        A::MigrateRunning | A::MigrateLocalDisks => migration(transport, kind, running_mode(kind)),
        A::Grow => growth(transport, kind),
    }
}

/// How a running guest of this kind moves.
pub(crate) fn running_mode(kind: GuestKind) -> MigrationMode {
    match kind {
        GuestKind::Qemu => MigrationMode::Online,
        GuestKind::Lxc => MigrationMode::Restart,
    }
}

/// The first config of a new guest, as a person requests it.
fn first_config(kind: GuestKind) -> Provisioning {
    let parameters =
        [("newid", "200"), ("name", "copy"), ("cores", "3"), ("description", "100 % = all; & more"), ("bridge", "vmbr0"), ("vlan", "30")];
    let environment = EnvironmentName::new("lab").unwrap_or_else(|| panic!("a name"));
    let request = ActionRequest::parse(environment, "vm.clone", ActionTarget { kind, vmid: vmid(100) }, parameters);
    match request.unwrap_or_else(|faults| panic!("{faults:?}")).action() {
        RequestedAction::Clone(clone) => clone.provisioning.clone(),
        other => panic!("{other:?}"),
    }
}

fn description_change() -> FieldChange {
    let after = Some(FieldValue::Text("100 % = all; & more".into()));
    FieldChange { field: Field::Description, before: None, after, pending: None, effect: ChangeEffect::Recorded }
}

pub(crate) fn new_snapshot(name: &str, ram: bool) -> Change {
    let description = Some("a=b; c".into());
    Change::SnapshotCreate(Box::new(NewSnapshot { description, name: snapshot_name(name), ram }))
}

fn existing_snapshot(tree: &SnapshotTree, name: &str) -> ExistingSnapshot {
    let found = tree.find(name).unwrap_or_else(|| panic!("no snapshot {name}"));
    let made_at = found.made_at.unwrap_or_else(|| panic!("no time of {name}"));
    ExistingSnapshot { made_at, name: snapshot_name(name), ram: found.ram }
}

fn rollback(transport: &LabTransport<()>, kind: GuestKind, state: RunState) -> Change {
    let tree = read_snapshots(transport, kind);
    let volumes = read_config(transport, kind).disks.iter().map(|disk| disk.volume.clone()).collect();
    let snapshot = existing_snapshot(&tree, "first");
    Change::SnapshotRollback(Box::new(SnapshotRollback { parent: tree.current, snapshot, state, volumes }))
}

/// A clone of the guest with the id 200.
pub(crate) fn clone_change(transport: &LabTransport<()>, kind: GuestKind, node: &str, disks: ClonedDisks, storage: Option<&str>) -> Change {
    let config = read_config(transport, kind);
    let GuestAddress { node: own_node, vmid: own_vmid, .. } = address(kind);
    let source = CloneSource {
        digest: config.digest.unwrap_or_else(|| panic!("no digest")),
        identity: config.identity,
        kind,
        name: config.name,
        node: own_node,
        template: config.template,
        vmid: own_vmid,
    };
    let name = GuestName::new("copy").unwrap_or_else(|| panic!("a name"));
    let storage = storage.map(|name| StorageName::new(name).unwrap_or_else(|| panic!("{name} is no storage")));
    Change::Clone(Box::new(GuestClone {
        disks,
        grows: false,
        name,
        node: node_name(node),
        pool: None,
        provisions: false,
        source,
        storage,
        vmid: vmid(200),
    }))
}

/// A migration to `pve3`, with the disks that are on local storage.
pub(crate) fn migration(transport: &LabTransport<()>, kind: GuestKind, mode: MigrationMode) -> Change {
    let disks = read_config(transport, kind).disks;
    let local = disks.iter().filter(|disk| disk.storage.as_ref().is_some_and(|storage| storage.as_str() == "local"));
    let volumes = local.map(|disk| disk.volume.clone()).collect();
    Change::Migrate(Box::new(Migration { from: node_name("pve1"), mode, storage: None, to: node_name("pve3"), volumes }))
}

fn growth(transport: &LabTransport<()>, kind: GuestKind) -> Change {
    let disk = disk_key(kind);
    let config = read_config(transport, kind);
    let own = config.disks.iter().find(|own| own.key == disk).unwrap_or_else(|| panic!("no disk"));
    let (before, after) = (own.size, DiskSize::parse("2G"));
    let (Some(before), Some(after)) = (before, after) else { panic!("no size") };
    Change::DiskGrow(Box::new(DiskGrowth { after, before, disk, volume: Some(own.volume.clone()) }))
}

pub(crate) fn read_config(transport: &LabTransport<()>, kind: GuestKind) -> LiveConfig {
    match ask_environment(transport, &EnvRequest::Config(address(kind))) {
        EnvResponse::Config(config) => *config,
        other => panic!("no config: {other:?}"),
    }
}

fn read_snapshots(transport: &LabTransport<()>, kind: GuestKind) -> SnapshotTree {
    match ask_environment(transport, &EnvRequest::Snapshots(address(kind))) {
        EnvResponse::Snapshots(tree) => tree,
        other => panic!("no snapshots: {other:?}"),
    }
}

/// Whether the change was really done between these two states of the lab.
pub(crate) fn is_done(action: ClientChange, before: &World, after: &World) -> bool {
    let old = before.guest_truth(100).unwrap_or_else(|| panic!("the guest is there before"));
    let Some(now) = after.guest_truth(100) else { return false };
    let is_copied = |on: &str, disk: &str| {
        let is_there = |copy: &GuestTruth| copy.name.as_deref() == Some("copy") && !copy.config.contains_key("lock") && copy.node == on;
        let has_disk =
            |copy: &GuestTruth| [config_text(copy, "scsi0"), config_text(copy, "rootfs")].into_iter().any(|own| own.starts_with(disk));
        after.guest_truth(200).is_some_and(|copy| is_there(&copy) && has_disk(&copy) && !copy.config.contains_key("template"))
    };
    match action {
        A::Start => now.process.is_some(),
        A::Shutdown | A::Stop => now.process.is_none(),
        A::Reboot => now.pid.is_some() && now.pid != old.pid,
        A::ConfigSet => config_text(&now, "description") == "100 % = all; & more",
        A::Provision => {
            let has_network = config_text(&now, "net0").contains("tag=30") && config_text(&now, "net0").contains("bridge=vmbr0");
            has_network && config_text(&now, "cores") == "3" && config_text(&now, "description") == "100 % = all; & more"
        }
        A::SnapshotCreate | A::SnapshotWithRam => {
            let has_ram = after.snapshot_truths(100).any(|own| own.name == "another" && own.ram_volume.is_some());
            now.snapshots.iter().any(|name| name == "another") && has_ram == (action == A::SnapshotWithRam)
        }
        A::SnapshotDelete => now.snapshots.iter().all(|name| name != "first"),
        A::SnapshotRollback | A::RollbackToRam => {
            let is_back = config_text(&now, "cores") == "2" && config_text(&now, "parent") == "first";
            is_back && now.process.is_some() == (action == A::RollbackToRam)
        }
        A::Clone | A::CloneLinked => is_copied("pve1", "tank:"),
        A::CloneElsewhere => is_copied("pve1", "local:"),
        A::CloneAway => is_copied("pve3", "tank:"),
        // A guest whose migration was cut off half way is on the new node with its lock.
        A::MigrateStopped => now.node == "pve3" && now.process.is_none() && !now.config.contains_key("lock"),
        A::MigrateRunning | A::MigrateLocalDisks => now.node == "pve3" && now.process.is_some() && !now.config.contains_key("lock"),
        A::Grow => config_text(&now, "scsi0").contains("size=2G") || config_text(&now, "rootfs").contains("size=2G"),
    }
}

fn config_text<'t>(truth: &'t GuestTruth, key: &str) -> &'t str {
    truth.config.get(key).map_or("", String::as_str)
}
