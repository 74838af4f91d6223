//! The actual state of the world, for tests that compare claims with it. No API call returns this.
//!
//! Must not contain anything that depends on what a client can see.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::guest::drive::DriveValue;
use crate::guest::{ConfigSection, LabGuest, LabGuestKind, is_card_key, is_disk_key, is_unused_key};
use crate::world::World;

/// The actual state of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestTruth {
    /// The VMID.
    pub vmid: u32,
    /// Virtual machine or container.
    pub kind: LabGuestKind,
    /// The node that it is on.
    pub node: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The state of its process; `None` if it is stopped.
    pub process: Option<String>,
    /// The process id.
    pub pid: Option<u32>,
    /// Keys in effect.
    pub config: Arc<BTreeMap<String, String>>,
    /// Pending keys, applied at the next start.
    pub pending: Arc<BTreeMap<String, String>>,
    /// Keys to be deleted at the next start.
    pub pending_delete: Vec<String>,
    /// Names of its snapshots, without those that are still being taken or never were finished.
    pub snapshots: Vec<String>,
    /// The digest of its config.
    pub digest: String,
    /// Its HA state.
    pub ha: Option<HaTruth>,
    /// A fault hides it from all clients.
    pub hidden: bool,
}

/// The actual state of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotTruth {
    /// Its name.
    pub name: String,
    /// When it was taken, in seconds since 1970.
    pub taken_s: u64,
    /// The snapshot before it.
    pub parent: Option<String>,
    /// The volume of its RAM state.
    pub ram_volume: Option<String>,
    /// `prepare` or `delete` while its task runs, or forever if that task was killed.
    pub unfinished: Option<String>,
    /// All keys of its section.
    pub config: BTreeMap<String, String>,
}

/// A disk of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskTruth {
    /// The config key: `scsi0`, `rootfs`, `unused0`.
    pub key: String,
    /// The id of the volume.
    pub volume: String,
    /// The size of the volume itself; `None` if there is no such volume.
    pub volume_bytes: Option<u64>,
    /// The size that the config states; 0 if it states none.
    pub config_bytes: u64,
}

/// A call that changes a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each variant is named after its call")]
pub enum GuestVerb {
    Start,
    Stop,
    Shutdown,
    Reboot,
    Reset,
    Suspend,
    Resume,
    Config,
    Create,
    Destroy,
    Clone,
    Template,
    Snapshot,
    DeleteSnapshot,
    Rollback,
    Resize,
    MoveDisk,
    Migrate,
}

/// What distinguishes a guest from every other guest that ever had its VMID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BirthMarks {
    /// The creation time, which a clone inherits.
    pub meta: Option<String>,
    /// The SMBIOS settings with the UUID.
    pub smbios1: Option<String>,
    /// The generation id, which a rollback renews.
    pub vmgenid: Option<String>,
    /// Network cards with their MAC addresses, by key.
    pub cards: BTreeMap<String, String>,
}

/// The HA state of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaTruth {
    /// The requested state.
    pub wanted: String,
    /// The state that the manager reports; `None` before its first cycle.
    pub believed: Option<String>,
}

/// What a node broadcasts about a guest. Cheaper than [`GuestTruth`], for tests that keep many of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSummary {
    /// The VMID.
    pub vmid: u32,
    /// Its name, or the default derived from its VMID.
    pub name: String,
    /// The state of its process, or `stopped`.
    pub process_state: String,
    /// Whether it is a template.
    pub template: bool,
}

impl World {
    /// All guests as their nodes would broadcast them now, including hidden ones.
    pub fn guest_summaries(&self) -> impl Iterator<Item = GuestSummary> {
        self.guests.values().map(|guest| GuestSummary {
            vmid: guest.vmid,
            name: guest.display_name(),
            process_state: guest.process.as_ref().map_or("stopped", |process| process.qemu_state.as_str()).to_owned(),
            template: guest.is_template(),
        })
    }

    /// The actual state of all guests, including hidden ones.
    pub fn guest_truths(&self) -> impl Iterator<Item = GuestTruth> {
        self.guests.values().map(|guest| self.build_guest_truth(guest))
    }

    /// The actual state of one guest.
    #[must_use]
    pub fn guest_truth(&self, vmid: u32) -> Option<GuestTruth> {
        self.guests.get(&vmid).map(|guest| self.build_guest_truth(guest))
    }

    /// How often a call of this kind took effect on a guest, whatever its client was told. A clone counts for its original. Events that a
    /// person or a fault causes do not count.
    #[must_use]
    pub fn executions(&self, verb: GuestVerb, vmid: u32) -> u64 {
        self.executions.get(&(verb, vmid)).copied().unwrap_or(0)
    }

    /// All counts of [`World::executions`] that are not 0.
    pub fn all_executions(&self) -> impl Iterator<Item = (GuestVerb, u32, u64)> {
        self.executions.iter().map(|((verb, vmid), count)| (*verb, *vmid, *count))
    }

    pub(crate) fn count_execution(&mut self, verb: GuestVerb, vmid: u32) {
        *self.executions.entry((verb, vmid)).or_default() += 1;
    }

    /// The birth marks of a guest.
    #[must_use]
    pub fn birth_marks(&self, vmid: u32) -> Option<BirthMarks> {
        let guest = self.guests.get(&vmid)?;
        let text = |key: &str| guest.get(key).map(str::to_owned);
        let cards = guest.config.iter().filter(|(key, _)| is_card_key(key)).map(|(key, value)| (key.clone(), value.clone()));
        Some(BirthMarks { meta: text("meta"), smbios1: text("smbios1"), vmgenid: text("vmgenid"), cards: cards.collect() })
    }

    /// The snapshots of a guest, by name, including unfinished ones.
    pub fn snapshot_truths(&self, vmid: u32) -> impl Iterator<Item = SnapshotTruth> {
        let snapshots = self.guests.get(&vmid).into_iter().flat_map(|guest| &guest.snapshots);
        snapshots.map(|(name, values)| SnapshotTruth {
            name: name.clone(),
            taken_s: values.get("snaptime").and_then(|text| text.parse().ok()).unwrap_or(0),
            parent: values.get("parent").cloned(),
            ram_volume: values.get("vmstate").cloned(),
            unfinished: values.get("snapstate").cloned(),
            config: values.clone(),
        })
    }

    /// The disks of a guest, including unused ones and without CD drives, by key.
    pub fn disk_truths(&self, vmid: u32) -> impl Iterator<Item = DiskTruth> {
        let guest = self.guests.get(&vmid);
        let is_disk = |guest: &LabGuest, key: &str| is_disk_key(guest.kind, key) || is_unused_key(key);
        let disks = guest.into_iter().flat_map(move |guest| guest.config.iter().filter(move |(key, _)| is_disk(guest, key)));
        let parsed = disks.map(|(key, value)| (key, DriveValue::parse(value))).filter(|(_, drive)| !drive.is_cdrom());
        parsed.map(|(key, drive)| DiskTruth {
            key: key.clone(),
            volume_bytes: self.storages.volumes.get(&drive.file).map(|volume| volume.bytes),
            config_bytes: drive.size_bytes(),
            volume: drive.file,
        })
    }

    /// All volumes on all storages, with their sizes in bytes.
    pub fn volume_truths(&self) -> impl Iterator<Item = (&str, u64)> {
        self.storages.volumes.iter().map(|(id, volume)| (id.as_str(), volume.bytes))
    }

    /// The digest of a guest's config, which is enough to detect a change.
    #[must_use]
    pub fn config_digest(&self, vmid: u32) -> Option<String> {
        self.guests.get(&vmid).map(|guest| self.guests.digest_of(guest))
    }

    /// Whether a node reaches more than half of the cluster's nodes.
    #[must_use]
    pub fn has_quorum(&self, node: &str) -> bool {
        self.is_quorate(node)
    }

    /// Whether one node reaches another.
    #[must_use]
    pub fn can_reach(&self, from: &str, to: &str) -> bool {
        self.is_reachable(from, to)
    }

    /// The tasks about a guest, oldest first: UPID, and whether it has ended.
    pub fn tasks_for_guest(&self, vmid: u32) -> impl Iterator<Item = (&str, bool)> {
        let about = vmid.to_string();
        self.tasks.all.values().filter(move |task| task.about == about).map(|task| (task.upid.as_str(), task.is_over()))
    }

    fn build_guest_truth(&self, guest: &LabGuest) -> GuestTruth {
        let (config, pending) = self.guests.sections_of(guest);
        GuestTruth {
            vmid: guest.vmid,
            kind: guest.kind,
            node: guest.node.clone(),
            name: guest.get(guest.kind.name_key()).map(str::to_owned),
            process: guest.process.as_ref().map(|process| process.qemu_state.clone()),
            pid: guest.process.as_ref().map(|process| process.pid),
            config,
            pending,
            pending_delete: guest.deletions.keys().cloned().collect(),
            snapshots: guest.snapshots.iter().filter(|(_, values)| is_taken(values)).map(|(name, _)| name.clone()).collect(),
            digest: self.guests.digest_of(guest),
            ha: self.ha.find_for_guest(guest).map(|own| HaTruth { wanted: own.state.clone(), believed: own.believed.clone() }),
            hidden: self.hidden.contains(&guest.vmid),
        }
    }
}

/// Whether a snapshot was finished; one that is being deleted was.
fn is_taken(values: &ConfigSection) -> bool {
    values.get("snapstate").map(String::as_str) != Some("prepare")
}
