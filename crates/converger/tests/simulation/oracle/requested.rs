//! Changes beyond config and run-state: what each of them sends, what must be true of its second objects when it is sent, and what shows
//! that it took effect.
//!
//! Judged by the truth of the world at the time of each reading. Must not use the checks and promises that it judges.

use std::collections::BTreeMap;

use converger_core::action::{Change, ClonedDisks, DiskGrowth, ExistingSnapshot, GuestClone, Migration, MigrationMode};
use converger_core::guest::{GuestKind, RunState};
use converger_lab::{GuestTruth, SnapshotTruth};

use super::super::stage::TruthSnapshot;
use super::send::{ParsedMutation, RuleBreach};
use super::{OracleCase, truth};

/// The words of a change's task, without the prefix of its kind.
pub(super) fn task_words(change: &Change) -> &'static [&'static str] {
    match change {
        Change::ConfigSet(_) | Change::Provision(_) => &[],
        Change::Start => &[":qmstart:", ":vzstart:"],
        Change::Shutdown { .. } => &[":qmshutdown:", ":vzshutdown:"],
        Change::Stop => &[":qmstop:", ":vzstop:"],
        Change::Reboot { .. } => &[":qmreboot:", ":vzreboot:"],
        Change::SnapshotCreate(_) => &[":qmsnapshot:", ":vzsnapshot:"],
        Change::SnapshotDelete(_) => &[":qmdelsnapshot:", ":vzdelsnapshot:"],
        Change::SnapshotRollback(_) => &[":qmrollback:", ":vzrollback:"],
        Change::DiskGrow(_) => &[":resize:"],
        Change::Migrate(_) => &[":qmigrate:", ":vzmigrate:"],
        Change::Clone(_) => &[":qmclone:", ":vzclone:"],
    }
}

/// The parameters that a requested change sends, all of them. `None` for the other changes.
pub(super) fn sent_parameters(change: &Change, sent: &ParsedMutation) -> Option<BTreeMap<&'static str, String>> {
    let text = |text: &str| Some(text.to_owned());
    let flag = |is_set: bool| is_set.then(|| "1".to_owned());
    let digest = ("digest", sent.value("digest").map(str::to_owned));
    let rows: Vec<(&'static str, Option<String>)> = match change {
        Change::SnapshotCreate(new) => vec![
            ("snapname", text(new.name.as_str())),
            ("description", new.description.as_deref().map(str::to_owned)),
            ("vmstate", flag(new.ram)),
        ],
        Change::SnapshotDelete(_) | Change::SnapshotRollback(_) => Vec::new(),
        Change::DiskGrow(growth) => vec![("disk", text(growth.disk.as_str())), ("size", text(&growth.after.to_string())), digest],
        Change::Migrate(migration) => migration_parameters(migration, &sent.kind),
        Change::Clone(clone) => clone_parameters(clone, sent),
        Change::ConfigSet(_) | Change::Provision(_) | Change::Start | Change::Shutdown { .. } | Change::Stop | Change::Reboot { .. } => {
            return None;
        }
    };
    Some(rows.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
}

fn migration_parameters(migration: &Migration, kind: &str) -> Vec<(&'static str, Option<String>)> {
    let storage_key = if kind == "qemu" { "targetstorage" } else { "target-storage" };
    let is_online = migration.mode == MigrationMode::Online;
    let is_restart = migration.mode == MigrationMode::Restart;
    let flag = |is_set: bool| is_set.then(|| "1".to_owned());
    vec![
        ("target", Some(migration.to.as_str().to_owned())),
        (storage_key, migration.storage.as_ref().map(|storage| storage.as_str().to_owned())),
        ("online", flag(is_online)),
        ("with-local-disks", flag(is_online && !migration.volumes.is_empty())),
        ("restart", flag(is_restart)),
        ("timeout", is_restart.then(|| "180".to_owned())),
    ]
}

fn clone_parameters(clone: &GuestClone, sent: &ParsedMutation) -> Vec<(&'static str, Option<String>)> {
    let name_key = if sent.kind == "qemu" { "name" } else { "hostname" };
    vec![
        ("newid", Some(clone.vmid.to_string())),
        (name_key, Some(clone.name.as_str().to_owned())),
        ("full", Some(u32::from(clone.disks == ClonedDisks::Full).to_string())),
        ("target", (clone.node.as_str() != sent.node).then(|| clone.node.as_str().to_owned())),
        ("pool", clone.pool.as_deref().map(str::to_owned)),
        ("storage", clone.storage.as_ref().map(|storage| storage.as_str().to_owned())),
    ]
}

/// The verb of a requested change, and the snapshot that its path names.
pub(super) fn verb_and_object(change: &Change) -> (&'static str, Option<&str>) {
    match change {
        Change::SnapshotCreate(_) => ("snapshot", None),
        Change::SnapshotDelete(snapshot) => ("delsnapshot", Some(snapshot.name.as_str())),
        Change::SnapshotRollback(rollback) => ("rollback", Some(rollback.snapshot.name.as_str())),
        Change::DiskGrow(_) => ("resize", None),
        Change::Migrate(_) => ("migrate", None),
        Change::Clone(_) => ("clone", None),
        other => (other.word(), None),
    }
}

/// Whether the request is exactly this change: its verb, the snapshot in its path, and every parameter.
pub(super) fn sends_exactly(change: &Change, sent: &ParsedMutation) -> bool {
    let (verb, object) = verb_and_object(change);
    let form: BTreeMap<&str, String> = sent.form.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    let is_parametrized = sent_parameters(change, sent).is_some_and(|expected| expected == form);
    verb == sent.verb && object == sent.object.as_deref() && is_parametrized
}

/// Whether a change with this verb needs no consent of high availability: it does not start, stop or move the guest.
pub(super) fn leaves_availability(verb: &str) -> bool {
    matches!(verb, "config" | "snapshot" | "delsnapshot" | "resize" | "clone")
}

/// Whether the request takes the guest down or makes it unavailable.
pub(super) fn interrupts(sent: &ParsedMutation) -> bool {
    matches!(sent.verb.as_str(), "stop" | "shutdown" | "reboot" | "rollback")
        || (sent.verb == "migrate" && sent.value("online") != Some("1"))
}

/// A disk in the config of a guest: its volume and its size in KiB.
pub(crate) fn find_disk(truth: &GuestTruth, key: &str) -> Option<(String, u64)> {
    let text = truth.config.get(key)?;
    let volume = text.split(',').next()?.to_owned();
    let size = text.split(',').find_map(|part| part.strip_prefix("size="))?;
    let (digits, unit) = size.split_at(size.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(size.len()));
    let number: u64 = digits.parse().ok()?;
    let kib = match unit {
        "" => number >> 10,
        "K" => number,
        "M" => number << 10,
        "G" => number << 20,
        _ => number << 30,
    };
    Some((volume, kib))
}

fn is_finished(found: &&SnapshotTruth) -> bool {
    found.unfinished.is_none()
}

impl OracleCase {
    /// The guest that the change is sent to: its own, or the source of a clone.
    pub(super) fn sending_vmid(&self) -> u32 {
        self.operation.sending_address().vmid.get()
    }

    /// Whether both operations work on a common guest.
    pub(super) fn shares_guest(&self, other: &Self) -> bool {
        self.operation.occupied_guests().any(|own| other.operation.occupied_guests().any(|of_other| of_other == own))
    }

    /// The last reading before the change is sent: that of the second object, if it has one.
    pub(super) fn last_check_reading(&self) -> &'static str {
        match &self.operation.step.change {
            Change::SnapshotCreate(_) | Change::SnapshotDelete(_) | Change::SnapshotRollback(_) => "snapshots",
            Change::Clone(_) => "id",
            _ => "config",
        }
    }

    /// S6 and S7: as they were read, the second objects were the planned ones.
    pub(super) fn check_second_objects(&self, sent: &ParsedMutation) -> RuleBreach {
        let snapshot = |planned: &ExistingSnapshot| self.check_planned_snapshot(planned);
        match &self.operation.step.change {
            Change::SnapshotCreate(new) => {
                let is_taken = self.read_snapshots().any(|found| found.name == new.name.as_str());
                is_taken.then(|| ("S4", format!("a snapshot `{}` existed", new.name.as_str())))
            }
            Change::SnapshotDelete(planned) => snapshot(planned),
            Change::SnapshotRollback(rollback) => snapshot(&rollback.snapshot),
            Change::DiskGrow(growth) => self.check_planned_disk(growth, sent),
            Change::Migrate(migration) => (sent.node != migration.from.as_str()).then(|| ("S4", format!("it left {}", sent.node))),
            _ => None,
        }
    }

    fn read_snapshots(&self) -> impl Iterator<Item = &SnapshotTruth> {
        self.snapshots.iter().flat_map(|read| &read.snapshots)
    }

    fn check_planned_snapshot(&self, planned: &ExistingSnapshot) -> RuleBreach {
        let is_planned = |found: &&SnapshotTruth| found.name == planned.name.as_str() && found.taken_s == planned.made_at;
        let is_there = self.read_snapshots().filter(is_finished).any(|found| is_planned(&found));
        (!is_there).then(|| ("S6", format!("the snapshot `{}` is another one than planned, or gone", planned.name.as_str())))
    }

    fn check_planned_disk(&self, growth: &DiskGrowth, sent: &ParsedMutation) -> RuleBreach {
        let config = self.config.as_ref()?.guest.as_ref()?;
        if sent.value("digest") != Some(config.digest.as_str()) {
            return Some(("S7", "the growth is not bound to the last reading".into()));
        }
        let found = find_disk(config, growth.disk.as_str());
        // The volume of a new guest is not known when its growth is planned, and neither is its size: storages round up, and another guest may
        // take the id of the source between the last check and the clone (decision 0017). The requested size is absolute.
        let Some(volume) = growth.volume.as_deref() else {
            return found.is_none().then(|| ("S6", format!("the new guest has no {}", growth.disk.as_str())));
        };
        let planned = Some((volume.to_owned(), growth.before.kib()));
        (found != planned).then(|| ("S6", format!("{} was {found:?}, and not as planned", growth.disk.as_str())))
    }

    /// S4 and S6 for a clone: the source was the planned one, nobody worked on it, and the new id was free.
    pub(super) fn check_clone_source(&self, clone: &GuestClone) -> RuleBreach {
        let config = self.config.as_ref()?.guest.as_ref()?;
        let (source, is_locked) = (&clone.source, config.config.contains_key("lock"));
        if !truth::has_identity(config, &source.identity) || config.name.as_deref() != Some(&*source.name) {
            return Some(("S6", "its source is another guest than the planned one".into()));
        }
        if *config.digest != *source.digest {
            return Some(("S6", "its source was changed since it was planned".into()));
        }
        if is_locked || truth::all_tags(config).any(|tag| tag == "converger-hold") {
            return Some(("S12", "its source was locked or held by its tag".into()));
        }
        let is_free = self.new_id.as_ref().is_some_and(|read| read.guest.is_none());
        (!is_free).then(|| ("S4", "nobody has read that the new id is free".into()))
    }

    /// Whether this is a clone, and no guest was being made when its new guest was read.
    pub(super) fn is_clone_absent(&self) -> bool {
        let is_being_made = |truth: &GuestTruth| truth.config.contains_key("lock");
        let is_absent = self.config.as_ref().is_some_and(|read| !read.guest.as_ref().is_some_and(is_being_made));
        self.makes_guest() && self.is_read && is_absent
    }

    /// Whether the truth of what was read in this life shows that a requested change took effect.
    pub(super) fn is_request_proven(&self) -> bool {
        let guest = |read: &Option<TruthSnapshot>| read.as_ref().and_then(|read| read.guest.clone());
        let (status, config) = (guest(&self.status), guest(&self.config));
        let runs = |state: RunState| status.as_ref().is_some_and(|truth| truth::runs_as(truth, state));
        match &self.operation.step.change {
            Change::SnapshotCreate(new) => {
                let is_new = |found: &SnapshotTruth| found.name == new.name.as_str() && found.ram_volume.is_some() == new.ram;
                self.read_snapshots().filter(is_finished).any(is_new)
            }
            Change::SnapshotDelete(planned) => {
                let is_planned = |found: &SnapshotTruth| found.name == planned.name.as_str() && found.taken_s == planned.made_at;
                self.snapshots.is_some() && !self.read_snapshots().any(is_planned)
            }
            Change::SnapshotRollback(rollback) => {
                let continues =
                    |truth: &GuestTruth| truth.config.get("parent").is_some_and(|parent| parent == rollback.snapshot.name.as_str());
                self.snapshots.as_ref().and_then(|read| read.guest.as_ref()).is_some_and(continues) && runs(rollback.state)
            }
            Change::DiskGrow(growth) => {
                let has_size =
                    |truth: &GuestTruth| find_disk(truth, growth.disk.as_str()).is_some_and(|(_, kib)| kib >= growth.after.kib());
                config.as_ref().is_some_and(has_size)
            }
            Change::Migrate(migration) => {
                let is_there = status.as_ref().is_some_and(|truth| truth.node == migration.to.as_str());
                is_there && runs(if migration.mode == MigrationMode::Offline { RunState::Stopped } else { RunState::Running })
            }
            Change::Clone(clone) => config.is_some_and(|truth| is_made(&truth, clone)),
            _ => false,
        }
    }
}

/// Whether a guest is the finished clone: its name, no lock, and birth marks of its own.
fn is_made(truth: &GuestTruth, clone: &GuestClone) -> bool {
    let kind = if truth.kind == converger_lab::LabGuestKind::Qemu { GuestKind::Qemu } else { GuestKind::Lxc };
    let is_own = !truth::has_identity(truth, &clone.source.identity) && kind == clone.source.kind;
    truth.vmid == clone.vmid.get() && truth.name.as_deref() == Some(clone.name.as_str()) && !truth.config.contains_key("lock") && is_own
}
