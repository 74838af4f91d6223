//! The changes of the client, each with a suitable guest, and whether they were done according to the lab.

use converger_adapters::proxmox::codec::{
    CloneDisks, ConfigSet, DiskKey, DiskSize, GuestConfig, GuestPath, MigrationMode, ProxmoxEvent, ProxmoxRead, ProxmoxWrite, SnapshotName,
    StorageName, WriteBasis,
};
use converger_core::action::FieldChange;
use converger_core::guest::{GuestKind, GuestName};
use converger_core::normalize::{ChangeEffect, Field, FieldValue};
use converger_lab::{Flavour, GuestSpec, GuestTruth, ScalarSpec, World, WorldEvent, WorldSize, WorldSpec};

use crate::client::{call_read, guest_path, node_name, vmid};
use crate::lab_transport::LabTransport;

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientChange {
    Start,
    Shutdown,
    Stop,
    Reboot,
    ConfigSet,
    SnapshotCreate,
    SnapshotDelete,
    SnapshotRollback,
    Clone,
    /// A copy that shares the disks of a template.
    CloneLinked,
    /// A copy with its disks on another storage.
    CloneElsewhere,
    /// A copy on another node.
    CloneAway,
    MigrateStopped,
    MigrateRunning,
    Grow,
    Delete,
}

use ClientChange as A;

impl ClientChange {
    const ALL: [Self; 16] = [
        A::Start,
        A::Shutdown,
        A::Stop,
        A::Reboot,
        A::ConfigSet,
        A::SnapshotCreate,
        A::SnapshotDelete,
        A::SnapshotRollback,
        A::Clone,
        A::CloneLinked,
        A::CloneElsewhere,
        A::CloneAway,
        A::MigrateStopped,
        A::MigrateRunning,
        A::Grow,
        A::Delete,
    ];

    /// The changes of a kind of guest. A container is not rebooted, because Proxmox kills it after the timeout.
    pub(crate) fn of_kind(kind: GuestKind) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |action| *action != A::Reboot || kind == GuestKind::Qemu)
    }

    fn needs_running(self) -> bool {
        matches!(self, A::Shutdown | A::Stop | A::Reboot | A::MigrateRunning)
    }

    /// Whether a task carries it out.
    pub(crate) fn has_task(self, flavour: Flavour, kind: GuestKind) -> bool {
        match self {
            A::ConfigSet => false,
            A::Grow => kind == GuestKind::Lxc || flavour != Flavour::V7,
            _ => true,
        }
    }
}

/// A lab of three nodes with one guest that allows this change; the endpoint is not the guest's node.
pub(crate) fn prepare_lab(flavour: Flavour, kind: GuestKind, action: ClientChange) -> LabTransport<()> {
    let mut spec = WorldSpec::from_seed(11, WorldSize { nodes: 3, guests: 0 }, flavour);
    spec.guests.push(guest_setting(kind, action));
    let transport = LabTransport::new(&spec, "pve2", ());
    transport.lock_lab().advance(20_000);
    if action == A::CloneLinked {
        // A template has no snapshots.
        post_as_other(&transport, kind, "template", "");
        return transport;
    }
    // The later snapshot is the current one; rolling back to the first is a visible change.
    for (name, cores) in [("first", "2"), ("later", "4")] {
        transport.lock_lab().inject_event(WorldEvent::Set(100, "cores".to_owned(), cores.to_owned()));
        post_as_other(&transport, kind, "snapshot", &format!("snapname={name}"));
    }
    transport
}

fn guest_setting(kind: GuestKind, action: ClientChange) -> GuestSpec {
    let of_kind = if kind == GuestKind::Qemu { converger_lab::LabGuestKind::Qemu } else { converger_lab::LabGuestKind::Lxc };
    let mut guest = GuestSpec::new(100, of_kind, "pve1");
    guest.name = Some("web".to_owned());
    guest.state = action.needs_running().then(|| "running".to_owned());
    let disk = if kind == GuestKind::Qemu { "scsi0" } else { "rootfs" };
    guest.config.insert(disk.to_owned(), ScalarSpec::Text("tank:vm-100-disk-0,size=1G".to_owned()));
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

/// Builds the change, bound to the current config if necessary.
pub(crate) fn build_write(transport: &LabTransport<()>, kind: GuestKind, action: ClientChange) -> ProxmoxWrite {
    let guest = guest_path("pve1", kind, 100);
    let snapshot = |name: &str| SnapshotName::new(name).unwrap_or_else(|| panic!("{name}"));
    let target = node_name("pve3");
    match action {
        A::Start => ProxmoxWrite::Start(guest),
        A::Shutdown => ProxmoxWrite::Shutdown { guest, timeout_secs: 30 },
        A::Stop => ProxmoxWrite::Stop(guest),
        A::Reboot => ProxmoxWrite::RebootQemu { node: guest.node, vmid: guest.vmid, timeout_secs: 30 },
        A::ConfigSet => ProxmoxWrite::ConfigSet(config_set(transport, guest)),
        A::SnapshotCreate => ProxmoxWrite::SnapshotCreate { guest, name: snapshot("another"), description: "a=b; c".into() },
        A::SnapshotDelete => ProxmoxWrite::SnapshotDelete { guest, name: snapshot("first") },
        A::SnapshotRollback => ProxmoxWrite::SnapshotRollback { guest, name: snapshot("first") },
        A::Clone => clone_write(guest, None, CloneDisks::Full(None)),
        A::CloneLinked => clone_write(guest, None, CloneDisks::Linked),
        A::CloneElsewhere => clone_write(guest, None, CloneDisks::Full(Some(storage_name("local")))),
        A::CloneAway => clone_write(guest, Some("pve3"), CloneDisks::Full(None)),
        A::MigrateStopped => {
            let mode = if kind == GuestKind::Qemu { MigrationMode::QemuOffline } else { MigrationMode::LxcOffline };
            ProxmoxWrite::Migrate { node: guest.node, vmid: guest.vmid, target, mode }
        }
        A::MigrateRunning => {
            let mode = if kind == GuestKind::Qemu { MigrationMode::QemuLive } else { MigrationMode::LxcRestart { timeout_secs: 30 } };
            ProxmoxWrite::Migrate { node: guest.node, vmid: guest.vmid, target, mode }
        }
        A::Grow => {
            let disk = DiskKey::new(kind, if kind == GuestKind::Qemu { "scsi0" } else { "rootfs" }).unwrap_or_else(|| panic!("a disk"));
            let size = DiskSize::parse("2G").unwrap_or_else(|| panic!("a size"));
            ProxmoxWrite::Grow { disk, size, digest: read_config(transport, &guest).digest.unwrap_or_else(|| panic!("no digest")), guest }
        }
        A::Delete => ProxmoxWrite::Delete(guest),
    }
}

/// A clone of a guest with the id 200.
pub(crate) fn clone_write(guest: GuestPath, target: Option<&str>, disks: CloneDisks) -> ProxmoxWrite {
    let name = GuestName::new("copy").unwrap_or_else(|| panic!("a name"));
    ProxmoxWrite::Clone { guest, to: vmid(200), name, target: target.map(node_name), disks }
}

pub(crate) fn storage_name(name: &str) -> StorageName {
    StorageName::new(name).unwrap_or_else(|| panic!("{name} is no storage"))
}

fn read_config(transport: &LabTransport<()>, guest: &GuestPath) -> GuestConfig {
    let Ok(ProxmoxEvent::Config(config)) = call_read(transport, ProxmoxRead::GuestPending(guest.clone())) else { panic!("no config") };
    *config
}

fn config_set(transport: &LabTransport<()>, guest: GuestPath) -> ConfigSet {
    let after = Some(FieldValue::Text("100 % = all; & more".into()));
    let change = FieldChange { field: Field::Description, before: None, after, pending: None, effect: ChangeEffect::Recorded };
    let basis = WriteBasis::from_config(&read_config(transport, &guest)).unwrap_or_else(|| panic!("no digest"));
    ConfigSet::new(guest, &[change], &basis).unwrap_or_else(|fault| panic!("{fault:?}"))
}

/// Whether the change was really done between these two states of the lab.
pub(crate) fn is_done(action: ClientChange, before: &World, after: &World) -> bool {
    let old = before.guest_truth(100).unwrap_or_else(|| panic!("the guest is there before"));
    let Some(now) = after.guest_truth(100) else { return action == A::Delete };
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
        A::SnapshotCreate => now.snapshots.iter().any(|name| name == "another"),
        A::SnapshotDelete => now.snapshots.iter().all(|name| name != "first"),
        A::SnapshotRollback => config_text(&now, "cores") == "2" && config_text(&now, "parent") == "first",
        A::Clone | A::CloneLinked => is_copied("pve1", "tank:"),
        A::CloneElsewhere => is_copied("pve1", "local:"),
        A::CloneAway => is_copied("pve3", "tank:"),
        A::MigrateStopped => now.node == "pve3" && now.process.is_none(),
        A::MigrateRunning => now.node == "pve3" && now.process.is_some(),
        A::Grow => config_text(&now, "scsi0").contains("size=2G") || config_text(&now, "rootfs").contains("size=2G"),
        A::Delete => false,
    }
}

fn config_text<'t>(truth: &'t GuestTruth, key: &str) -> &'t str {
    truth.config.get(key).map_or("", String::as_str)
}
