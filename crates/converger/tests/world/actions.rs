//! The changes that the client can ask for, each with a guest on which it can be done, and what the lab knows about whether it was.
//!
//! What never enters: how the client itself finds that out.

use converger_adapters::proxmox::codec::{
    Basis, CloneDisks, ConfigSet, DiskKey, DiskSize, Event, GuestConfig, GuestPath, Migration, Read, SnapshotName, StorageName, Write,
};
use converger_core::action::FieldChange;
use converger_core::guest::{GuestName, Kind};
use converger_core::normalize::{Effect, Field, Value};
use converger_lab::{Act, Flavour, GuestSetting, Scalar, Scale, Setting, Truth, World};

use crate::spine::{ask, node, path, vmid};
use crate::way::Way;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
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
    /// A copy whose disks are on another storage.
    CloneElsewhere,
    /// A copy that is on another node.
    CloneAway,
    MigrateStopped,
    MigrateRunning,
    Grow,
    Delete,
}

use Action as A;

impl Action {
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

    /// The changes of a kind: a container is not rebooted, because Proxmox kills it after the timeout.
    pub(crate) fn of(kind: Kind) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |action| *action != A::Reboot || kind == Kind::Qemu)
    }

    fn needs_running(self) -> bool {
        matches!(self, A::Shutdown | A::Stop | A::Reboot | A::MigrateRunning)
    }

    /// Whether a task does it.
    pub(crate) fn has_task(self, flavour: Flavour, kind: Kind) -> bool {
        match self {
            A::ConfigSet => false,
            A::Grow => kind == Kind::Lxc || flavour != Flavour::V7,
            _ => true,
        }
    }
}

/// A way to a lab of three nodes with one guest, on which this can be done; asked at another node than the guest's.
pub(crate) fn prepared(flavour: Flavour, kind: Kind, action: Action) -> Way<()> {
    let mut setting = Setting::seeded(11, Scale { nodes: 3, guests: 0 }, flavour);
    setting.guests.push(guest(kind, action));
    let way = Way::new(&setting, "pve2", ());
    way.lab().pass(20_000);
    if action == A::CloneLinked {
        // A template has no snapshots.
        post(&way, kind, "template", "");
        return way;
    }
    // The later snapshot is where it stands; going back to the first is a change that can be seen.
    for (name, cores) in [("first", "2"), ("later", "4")] {
        way.lab().act(Act::Set(100, "cores".to_owned(), cores.to_owned()));
        post(&way, kind, "snapshot", &format!("snapname={name}"));
    }
    way
}

fn guest(kind: Kind, action: Action) -> GuestSetting {
    let of_kind = if kind == Kind::Qemu { converger_lab::Kind::Qemu } else { converger_lab::Kind::Lxc };
    let mut guest = GuestSetting::new(100, of_kind, "pve1");
    guest.name = Some("web".to_owned());
    guest.state = action.needs_running().then(|| "running".to_owned());
    let disk = if kind == Kind::Qemu { "scsi0" } else { "rootfs" };
    guest.config.insert(disk.to_owned(), Scalar::Text("tank:vm-100-disk-0,size=1G".to_owned()));
    guest
}

/// Somebody else does this to the guest.
fn post(way: &Way<()>, kind: Kind, what: &str, form: &str) {
    let path = format!("/api2/json/nodes/pve1/{}/100/{what}", kind.word());
    let request = converger_lab::Request::new("POST", &path).token("root@pam!lab=lab").form(form);
    let mut lab = way.lab();
    let now_ms = lab.now_ms;
    let answer = lab.world.answer_at(now_ms, "pve1", &request);
    assert_eq!(answer.status, 200, "{}", answer.reason);
    lab.pass(5_000);
}

/// The change, bound to what is read now where it has to be.
pub(crate) fn write(way: &Way<()>, kind: Kind, action: Action) -> Write {
    let guest = path("pve1", kind, 100);
    let snapshot = |name: &str| SnapshotName::new(name).unwrap_or_else(|| panic!("{name}"));
    let target = node("pve3");
    match action {
        A::Start => Write::Start(guest),
        A::Shutdown => Write::Shutdown { guest, timeout_secs: 30 },
        A::Stop => Write::Stop(guest),
        A::Reboot => Write::RebootQemu { node: guest.node, vmid: guest.vmid, timeout_secs: 30 },
        A::ConfigSet => Write::ConfigSet(config_set(way, guest)),
        A::SnapshotCreate => Write::SnapshotCreate { guest, name: snapshot("another"), description: "a=b; c".into() },
        A::SnapshotDelete => Write::SnapshotDelete { guest, name: snapshot("first") },
        A::SnapshotRollback => Write::SnapshotRollback { guest, name: snapshot("first") },
        A::Clone => clone(guest, None, CloneDisks::Full(None)),
        A::CloneLinked => clone(guest, None, CloneDisks::Linked),
        A::CloneElsewhere => clone(guest, None, CloneDisks::Full(Some(storage("local")))),
        A::CloneAway => clone(guest, Some("pve3"), CloneDisks::Full(None)),
        A::MigrateStopped => {
            let mode = if kind == Kind::Qemu { Migration::QemuOffline } else { Migration::LxcOffline };
            Write::Migrate { node: guest.node, vmid: guest.vmid, target, mode }
        }
        A::MigrateRunning => {
            let mode = if kind == Kind::Qemu { Migration::QemuLive } else { Migration::LxcRestart { timeout_secs: 30 } };
            Write::Migrate { node: guest.node, vmid: guest.vmid, target, mode }
        }
        A::Grow => {
            let disk = DiskKey::new(kind, if kind == Kind::Qemu { "scsi0" } else { "rootfs" }).unwrap_or_else(|| panic!("a disk"));
            let size = DiskSize::parse("2G").unwrap_or_else(|| panic!("a size"));
            Write::Grow { disk, size, digest: config(way, &guest).digest.unwrap_or_else(|| panic!("no digest")), guest }
        }
        A::Delete => Write::Delete(guest),
    }
}

/// A copy of a guest under the number 200.
pub(crate) fn clone(guest: GuestPath, target: Option<&str>, disks: CloneDisks) -> Write {
    let name = GuestName::new("copy").unwrap_or_else(|| panic!("a name"));
    Write::Clone { guest, to: vmid(200), name, target: target.map(node), disks }
}

pub(crate) fn storage(name: &str) -> StorageName {
    StorageName::new(name).unwrap_or_else(|| panic!("{name} is no storage"))
}

fn config(way: &Way<()>, guest: &GuestPath) -> GuestConfig {
    let Ok(Event::Config(config)) = ask(way, Read::GuestPending(guest.clone())) else { panic!("no config") };
    *config
}

fn config_set(way: &Way<()>, guest: GuestPath) -> ConfigSet {
    let after = Some(Value::Text("100 % = all; & more".into()));
    let change = FieldChange { field: Field::Description, before: None, after, pending: None, effect: Effect::Recorded };
    let basis = Basis::of(&config(way, &guest)).unwrap_or_else(|| panic!("no digest"));
    ConfigSet::new(guest, &[change], &basis).unwrap_or_else(|fault| panic!("{fault:?}"))
}

/// Whether it was really done, between these two moments of the lab.
pub(crate) fn is_done(action: Action, before: &World, after: &World) -> bool {
    let old = before.truth(100).unwrap_or_else(|| panic!("the guest is there before"));
    let Some(now) = after.truth(100) else { return action == A::Delete };
    let is_copied = |on: &str, disk: &str| {
        let is_there = |copy: &Truth| copy.name.as_deref() == Some("copy") && !copy.config.contains_key("lock") && copy.node == on;
        let has_disk = |copy: &Truth| [text(copy, "scsi0"), text(copy, "rootfs")].into_iter().any(|own| own.starts_with(disk));
        after.truth(200).is_some_and(|copy| is_there(&copy) && has_disk(&copy) && !copy.config.contains_key("template"))
    };
    match action {
        A::Start => now.process.is_some(),
        A::Shutdown | A::Stop => now.process.is_none(),
        A::Reboot => now.pid.is_some() && now.pid != old.pid,
        A::ConfigSet => text(&now, "description") == "100 % = all; & more",
        A::SnapshotCreate => now.snapshots.iter().any(|name| name == "another"),
        A::SnapshotDelete => now.snapshots.iter().all(|name| name != "first"),
        A::SnapshotRollback => text(&now, "cores") == "2" && text(&now, "parent") == "first",
        A::Clone | A::CloneLinked => is_copied("pve1", "tank:"),
        A::CloneElsewhere => is_copied("pve1", "local:"),
        A::CloneAway => is_copied("pve3", "tank:"),
        A::MigrateStopped => now.node == "pve3" && now.process.is_none(),
        A::MigrateRunning => now.node == "pve3" && now.process.is_some(),
        A::Grow => text(&now, "scsi0").contains("size=2G") || text(&now, "rootfs").contains("size=2G"),
        A::Delete => false,
    }
}

fn text<'t>(truth: &'t Truth, key: &str) -> &'t str {
    truth.config.get(key).map_or("", String::as_str)
}
