//! Parameters of the changes beyond config and run-state: snapshots, disk growth, migration and clones.
//!
//! Each names the second objects that it depends on (the snapshot with its time, the volume, the node, the source of a clone), so that a
//! proposal binds them and a check right before sending can compare them. Members are sorted by name, as in every artifact.
//!
//! Must not depend on what was observed or how a change is sent.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::guest::{DiskKey, DiskSize, GuestIdentity, GuestKind, GuestName, NodeName, RunState, SnapshotName, StorageName, Vmid};

/// A snapshot to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    /// Its description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<Box<str>>,
    /// Its name, which no snapshot of the guest has yet.
    #[serde(deserialize_with = "parse_snapshot_name")]
    pub name: SnapshotName,
    /// Whether the memory of the running guest is saved too.
    pub ram: bool,
}

/// An existing snapshot. Another one with the same name has another time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExistingSnapshot {
    /// When it was made, in seconds since 1970.
    pub made_at: u64,
    /// Its name.
    #[serde(deserialize_with = "parse_snapshot_name")]
    pub name: SnapshotName,
    /// Whether it has the memory of the guest.
    pub ram: bool,
}

/// A rollback to a snapshot: everything since is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRollback {
    /// The snapshot that the guest continued from so far. If it is the same snapshot, no later reading shows whether the rollback ran.
    pub parent: Option<Box<str>>,
    /// The snapshot.
    pub snapshot: ExistingSnapshot,
    /// The run-state afterwards: a guest runs again only if its memory was saved.
    #[serde(deserialize_with = "parse_run_state")]
    pub state: RunState,
    /// The volumes whose content is replaced.
    pub volumes: Box<[Box<str>]>,
}

/// A disk that grows to an absolute size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskGrowth {
    /// The new size in KiB.
    #[serde(deserialize_with = "parse_disk_size")]
    pub after: DiskSize,
    /// The size that it has, in KiB.
    #[serde(deserialize_with = "parse_disk_size")]
    pub before: DiskSize,
    /// The disk.
    #[serde(deserialize_with = "parse_disk_key")]
    pub disk: DiskKey,
    /// The volume behind it; `None` if the guest is only made by an earlier step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<Box<str>>,
}

/// A move to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migration {
    /// The node that it leaves.
    #[serde(deserialize_with = "parse_node_name")]
    pub from: NodeName,
    /// How it is moved.
    pub mode: MigrationMode,
    /// The storage for disks that are copied to the other node; `None` keeps the names of their storages.
    #[serde(default, deserialize_with = "parse_storage_name", skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageName>,
    /// The node that it goes to.
    #[serde(deserialize_with = "parse_node_name")]
    pub to: NodeName,
    /// The volumes on local storage that are copied to the other node.
    pub volumes: Box<[Box<str>]>,
}

/// How a guest is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MigrationMode {
    /// While it runs.
    Online,
    /// While it is stopped.
    Offline,
    /// A running container is shut down, moved and started again.
    Restart,
}

impl MigrationMode {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Offline => "offline",
            Self::Restart => "restart",
        }
    }
}

/// A new guest, made from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestClone {
    /// How its disks are made.
    pub disks: ClonedDisks,
    /// Whether a later step grows a disk of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub grows: bool,
    /// Its name.
    #[serde(deserialize_with = "parse_guest_name")]
    pub name: GuestName,
    /// The node that it is made on.
    #[serde(deserialize_with = "parse_node_name")]
    pub node: NodeName,
    /// The pool that it becomes a member of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Box<str>>,
    /// Whether a later step provisions it. Until that is done, no other intent starts it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provisions: bool,
    /// The guest that it is made from.
    pub source: CloneSource,
    /// The storage of its disks; `None` for the storages of the source.
    #[serde(default, deserialize_with = "parse_storage_name", skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageName>,
    /// Its id.
    #[serde(deserialize_with = "parse_vmid")]
    pub vmid: Vmid,
}

/// How the disks of a clone are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClonedDisks {
    /// Copied completely.
    Full,
    /// Based on the disks of a template, which must stay.
    Linked,
}

impl ClonedDisks {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Linked => "linked",
        }
    }
}

/// The guest that a clone is made from, as observed at plan time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CloneSource {
    /// The platform's digest of its config.
    pub digest: Box<str>,
    /// Its birth marks.
    pub identity: GuestIdentity,
    /// Its kind.
    pub kind: GuestKind,
    /// Its name. Untrusted text.
    pub name: Box<str>,
    /// The node that it was on.
    pub node: NodeName,
    /// Whether it is a template.
    pub template: bool,
    /// Its id.
    pub vmid: Vmid,
}

impl<'de> Deserialize<'de> for CloneSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct CloneSourceRow {
            digest: Box<str>,
            identity: BirthMarksRow,
            kind: Box<str>,
            name: Box<str>,
            #[serde(deserialize_with = "parse_node_name")]
            node: NodeName,
            template: bool,
            vmid: u64,
        }
        let row = CloneSourceRow::deserialize(deserializer)?;
        let kind = GuestKind::ALL.into_iter().find(|kind| kind.word() == &*row.kind);
        let kind = kind.ok_or_else(|| D::Error::custom("not a kind of guest"))?;
        let identity = row.identity.into_identity(kind).ok_or_else(|| D::Error::custom("birth marks of the other kind of guest"))?;
        let vmid = Vmid::new(row.vmid).ok_or_else(|| D::Error::custom("not the id of a guest"))?;
        let CloneSourceRow { digest, name, node, template, .. } = row;
        Ok(Self { digest, identity, kind, name, node, template, vmid })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BirthMarksRow {
    ctime: Option<u64>,
    mac: Option<Box<str>>,
    rootfs: Option<Box<str>>,
    uuid: Option<Box<str>>,
}

impl BirthMarksRow {
    /// The marks of a guest whose kind follows from them; `None` if there are none, or those of both kinds.
    pub(crate) fn into_known_identity(self) -> Option<GuestIdentity> {
        let is_qemu = self.uuid.is_some() || self.ctime.is_some();
        let is_lxc = self.mac.is_some() || self.rootfs.is_some();
        (is_qemu != is_lxc).then(|| self.into_identity(if is_qemu { GuestKind::Qemu } else { GuestKind::Lxc }))?
    }

    fn into_identity(self, kind: GuestKind) -> Option<GuestIdentity> {
        match (kind, self) {
            (GuestKind::Qemu, Self { ctime, uuid, mac: None, rootfs: None }) => Some(GuestIdentity::Qemu { uuid, ctime }),
            (GuestKind::Lxc, Self { mac, rootfs, ctime: None, uuid: None }) => Some(GuestIdentity::Lxc { rootfs, mac }),
            _ => None,
        }
    }
}

/// Parses text with a checked constructor.
fn parse_checked<'de, D: Deserializer<'de>, T>(deserializer: D, what: &str, new: impl FnOnce(&str) -> Option<T>) -> Result<T, D::Error> {
    let text = Box::<str>::deserialize(deserializer)?;
    new(&text).ok_or_else(|| D::Error::custom(format!("not {what}")))
}

fn parse_snapshot_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SnapshotName, D::Error> {
    parse_checked(deserializer, "the name of a snapshot", SnapshotName::new)
}

fn parse_guest_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GuestName, D::Error> {
    parse_checked(deserializer, "the name of a guest", GuestName::new)
}

fn parse_node_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NodeName, D::Error> {
    parse_checked(deserializer, "the name of a node", NodeName::new)
}

fn parse_storage_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<StorageName>, D::Error> {
    parse_checked(deserializer, "the name of a storage", StorageName::new).map(Some)
}

fn parse_disk_key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DiskKey, D::Error> {
    parse_checked(deserializer, "the key of a disk", |text| GuestKind::ALL.into_iter().find_map(|kind| DiskKey::new(kind, text)))
}

fn parse_run_state<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RunState, D::Error> {
    let find = |text: &str| [RunState::Running, RunState::Stopped].into_iter().find(|state| state.word() == text);
    parse_checked(deserializer, "a run-state", find)
}

fn parse_vmid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vmid, D::Error> {
    Vmid::new(u64::deserialize(deserializer)?).ok_or_else(|| D::Error::custom("not the id of a guest"))
}

fn parse_disk_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DiskSize, D::Error> {
    DiskSize::from_kib(u64::deserialize(deserializer)?).ok_or_else(|| D::Error::custom("a disk is not empty"))
}
