//! The verdict for a requested action: the guests that it names, what must hold before it, and the steps that it takes.
//!
//! Everything that an action needs must have been read: what was not read refuses (G1, G17). The guards of a guest are the same as for
//! desired state.

use super::guest::{self, check_guards, unread_guards};
use super::{Step, StepReason, Verdict};
use crate::action::{Change, DiskGrowth, ExistingSnapshot, NewSnapshot, SnapshotRollback};
use crate::desired::DesiredGuest;
use crate::guest::{DiskKey, DiskSize, GuestKind, RunState, SnapshotName, StorageName};
use crate::intent::{ActionRequest, RequestedAction};
use crate::observe::{GuestSnapshot, ObservedGuest, Reading, Scoped, Seen, SnapshotTree};
use crate::policy::Rules;
use crate::refusal::Refusal;

/// The changes of a guest, or all reasons against them.
pub(super) type Derived = Result<Vec<Change>, Vec<Refusal>>;

pub(super) fn verdict(
    request: &ActionRequest,
    guest: &DesiredGuest,
    listed: Option<&ObservedGuest>,
    observation: &Scoped,
    rules: &Rules,
) -> Verdict {
    if let RequestedAction::Clone(clone) = request.action() {
        return super::clone::verdict(request, clone, guest, listed, observation, rules);
    }
    let (row, state) = match observation.presence(guest.vmid, listed) {
        Seen::Missing => return Verdict::Refused(vec![Refusal::guest_missing()]),
        Seen::Unknown(cause) => return Verdict::Refused(vec![Refusal::guest_unknown(cause)]),
        Seen::Present(row, state) => (row, state),
    };
    if let Some(refusals) = guest::check_guest(guest, row, observation) {
        return Verdict::Refused(refusals);
    }
    let (changes, mut refusals) = match derive_changes(request.action(), guest, row, state, observation) {
        Ok(changes) => (changes, Vec::new()),
        Err(refusals) => (Vec::new(), refusals),
    };
    if changes.is_empty() && refusals.is_empty() {
        return Verdict::Converged { pending_restart: false };
    }
    let steps: Vec<Step> = changes.into_iter().map(|change| requested_step(change, state)).collect();
    // Identity binds a request to its guest: without birth marks, a recycled id could not be noticed.
    if !row.identity.is_read() {
        refusals.push(Refusal::guard_unread(vec!["identity".to_owned()]));
    }
    let mut all = check_guards(guest, row, &steps, rules);
    all.append(&mut refusals);
    if all.is_empty() { Verdict::Steps(steps) } else { Verdict::Refused(all) }
}

pub(super) fn requested_step(change: Change, from: RunState) -> Step {
    step(change, from, StepReason::Requested)
}

pub(super) fn step(change: Change, from: RunState, reason: StepReason) -> Step {
    Step { change, reason, from, wait: Box::new([]) }
}

fn derive_changes(action: &RequestedAction, guest: &DesiredGuest, row: &ObservedGuest, state: RunState, observation: &Scoped) -> Derived {
    match action {
        RequestedAction::Start | RequestedAction::Shutdown { .. } | RequestedAction::Stop | RequestedAction::ConfigSet(_) => {
            Ok(guest::plan_drift(guest, row, state, observation.tag_case).into_iter().map(|step| step.change).collect())
        }
        RequestedAction::Reboot { timeout_secs } => derive_reboot(guest.kind, state, *timeout_secs),
        RequestedAction::SnapshotCreate { name, ram, description } => {
            let tree = require(row.snapshots(), "snapshots")?;
            check_new_snapshot(row, state, tree, name, *ram)?;
            let new = NewSnapshot { description: description.clone(), name: name.clone(), ram: *ram };
            Ok(vec![Change::SnapshotCreate(Box::new(new))])
        }
        RequestedAction::SnapshotDelete { name } => {
            let (_, snapshot) = find_snapshot(row, name)?;
            Ok(vec![Change::SnapshotDelete(Box::new(snapshot))])
        }
        RequestedAction::SnapshotRollback { name } => derive_rollback(row, name, observation),
        RequestedAction::DiskGrow { disk, size } => derive_growth(row, disk, *size, observation),
        RequestedAction::Migrate(migration) => super::migration::derive_migration(migration, row, state, observation),
        // Handled by its own module, because the guest does not exist yet.
        RequestedAction::Clone(_) => Ok(Vec::new()),
    }
}

/// The value of a reading that the action needs.
pub(super) fn require<T>(reading: Reading<T>, what: &str) -> Result<T, Vec<Refusal>> {
    reading.into_option().ok_or_else(|| vec![Refusal::guard_unread(vec![what.to_owned()])])
}

fn derive_reboot(kind: GuestKind, state: RunState, timeout_secs: u32) -> Derived {
    if state != RunState::Running {
        return Err(vec![Refusal::run_state_unsuitable(RunState::Running, state)]);
    }
    match kind {
        GuestKind::Qemu => Ok(vec![Change::Reboot { timeout_secs }]),
        // Proxmox's reboot kills a container after the timeout.
        GuestKind::Lxc => Err(vec![Refusal::unsupported_change("reboot", "Proxmox ends a container by force after the timeout")]),
    }
}

fn check_new_snapshot(
    row: &ObservedGuest,
    state: RunState,
    tree: &SnapshotTree,
    name: &SnapshotName,
    ram: bool,
) -> Result<(), Vec<Refusal>> {
    let mut refusals: Vec<Refusal> = unfinished(tree).collect();
    // Proxmox compares names exactly, but storages may not: a name in another case is refused too.
    if let Some(existing) = tree.list.iter().find(|own| own.name.eq_ignore_ascii_case(name.as_str())) {
        refusals.push(Refusal::snapshot_exists(&existing.name, existing.made_at));
    }
    if ram {
        match (row.kind, state, row.host_devices()) {
            (GuestKind::Lxc, ..) => refusals.push(Refusal::ram_state_unavailable("a container has no memory state")),
            (_, RunState::Stopped, _) => refusals.push(Refusal::ram_state_unavailable("the guest is stopped")),
            (_, _, Reading::Unread) => refusals.push(Refusal::guard_unread(vec!["host_devices".to_owned()])),
            (_, _, Reading::Read(devices)) if !devices.is_empty() => {
                refusals.push(Refusal::ram_state_unavailable("a device of the node is passed through"));
            }
            _ => {}
        }
    }
    if refusals.is_empty() { Ok(()) } else { Err(refusals) }
}

fn unfinished(tree: &SnapshotTree) -> impl Iterator<Item = Refusal> {
    tree.list.iter().filter_map(|own| own.state.as_deref().map(|state| Refusal::snapshot_unfinished(&own.name, state)))
}

/// The snapshot of this name with all that identifies it. Its time was read, so that another one of the same name is noticed later.
fn find_snapshot<'r>(row: &'r ObservedGuest, name: &SnapshotName) -> Result<(&'r GuestSnapshot, ExistingSnapshot), Vec<Refusal>> {
    let tree = require(row.snapshots(), "snapshots")?;
    let blocked: Vec<Refusal> = unfinished(tree).collect();
    if !blocked.is_empty() {
        return Err(blocked);
    }
    let Some(found) = tree.find(name.as_str()) else {
        let existing = tree.list.iter().map(|own| own.name.to_string()).collect();
        return Err(vec![Refusal::snapshot_missing(name.as_str(), existing)]);
    };
    let Some(made_at) = found.made_at else { return Err(vec![Refusal::guard_unread(vec!["snapshot_time".to_owned()])]) };
    Ok((found, ExistingSnapshot { made_at, name: name.clone(), ram: found.ram }))
}

fn derive_rollback(row: &ObservedGuest, name: &SnapshotName, observation: &Scoped) -> Derived {
    let (found, snapshot) = find_snapshot(row, name)?;
    if found.ram {
        check_snapshot_cpu(found, observation)?;
    }
    let disks = require(row.disks(), "disks")?;
    let volumes = disks.iter().filter(|disk| !disk.is_cdrom).map(|disk| disk.volume.clone()).collect();
    let parent = require(row.snapshots(), "snapshots")?.current.clone();
    let state = if found.ram { RunState::Running } else { RunState::Stopped };
    Ok(vec![Change::SnapshotRollback(Box::new(SnapshotRollback { parent, snapshot, state, volumes }))])
}

/// Refuses to resume saved memory if the guest used the CPU of its node and the nodes differ: Proxmox does not record where it was saved.
fn check_snapshot_cpu(found: &GuestSnapshot, observation: &Scoped) -> Result<(), Vec<Refusal>> {
    let Some(cpu) = found.cpu.as_deref() else { return Err(vec![Refusal::guard_unread(vec!["snapshot_cpu".to_owned()])]) };
    let uses_host_cpu = cpu.split(',').any(|part| matches!(part.trim_start_matches("cputype="), "host" | "max"));
    if !uses_host_cpu {
        return Ok(());
    }
    let model = |capacity: &Reading<crate::observe::NodeCapacity>| match capacity {
        Reading::Read(capacity) => capacity.cpu_model.as_deref().unwrap_or("unknown").to_owned(),
        Reading::Unread => "not read".to_owned(),
    };
    let mut models: Vec<String> = observation.nodes.iter().map(|node| model(&node.capacity)).collect();
    models.sort();
    models.dedup();
    let is_same = models.len() == 1 && models.iter().all(|model| model != "unknown" && model != "not read");
    if is_same { Ok(()) } else { Err(vec![Refusal::snapshot_hardware(cpu, models)]) }
}

pub(super) fn derive_growth(row: &ObservedGuest, key: &DiskKey, size: DiskSize, observation: &Scoped) -> Derived {
    let Some((growth, storage)) = find_growth(row, key, size)? else { return Ok(Vec::new()) };
    let added_kib = growth.after.kib().saturating_sub(growth.before.kib());
    let refusals = super::placement::check_space(observation.node_of(row), storage, row.kind, added_kib);
    if !refusals.is_empty() {
        return Err(refusals);
    }
    Ok(vec![Change::DiskGrow(Box::new(growth))])
}

/// The growth of a disk with the storage that it is on, if it is smaller than this size. Whether there is space is not checked.
pub(super) fn find_growth<'r>(
    row: &'r ObservedGuest,
    key: &DiskKey,
    size: DiskSize,
) -> Result<Option<(DiskGrowth, &'r StorageName)>, Vec<Refusal>> {
    let disks = require(row.disks(), "disks")?;
    let found = disks.iter().find(|disk| disk.key == *key && !disk.is_cdrom);
    let Some((disk, before)) = found.and_then(|disk| Some((disk, disk.size?))) else {
        let existing = disks.iter().filter(|disk| !disk.is_cdrom).map(|disk| disk.key.as_str().to_owned()).collect();
        return Err(vec![Refusal::disk_missing(key, existing)]);
    };
    if size < before {
        return Err(vec![Refusal::disk_shrink(key, before, size)]);
    }
    if size == before {
        return Ok(None);
    }
    let Some(storage) = &disk.storage else {
        return Err(vec![Refusal::unsupported_change("disk.grow", "the disk is a path on the node, not a volume of a storage")]);
    };
    let volume = Some(disk.volume.clone());
    Ok(Some((DiskGrowth { after: size, before, disk: key.clone(), volume }, storage)))
}

/// The guards of a guest that a step only reads from, which must have been read too.
pub(super) fn check_source_read(row: &ObservedGuest) -> Vec<Refusal> {
    let mut unread = unread_guards(row);
    if !row.identity.is_read() {
        unread.push("identity".to_owned());
    }
    if row.digest.is_none() {
        unread.push("digest".to_owned());
    }
    if unread.is_empty() { Vec::new() } else { vec![Refusal::guard_unread(unread)] }
}
