//! Clones: what a call refuses at once.
//!
//! What never enters here: the copy itself.

use super::create;
use crate::api::{Call, need_quorum};
use crate::engine::Fork;
use crate::guest::drive::drives;
use crate::guest::{Guest, Kind, is_card_key};
use crate::respond::{Data, Fail};
use crate::storage::name;
use crate::update;
use crate::work::{Cloning, Work};
use crate::world::World;

/// In the order in which Proxmox looks: first at what was asked for, then at the cluster, then at the guest and its disks.
pub(super) fn clone(world: &mut World, call: &Call) -> Result<Data, Fail> {
    may_go(world, call)?;
    need_quorum(world, &call.node)?;
    let source = call.vmid();
    let gone = || Fail::died(format!("unable to find configuration file for {} {source} on node '{}'", call.kind.word(), call.node));
    let guest = world.guest_on(&call.node, call.kind, source).ok_or_else(gone)?;
    if let Some(locked) = guest.locked() {
        return Err(Fail::died(locked));
    }
    let target = call.text("newid").and_then(|text| text.parse().ok()).unwrap_or(0);
    let cloning = cloning(call, guest, target);
    match call.kind {
        Kind::Qemu => {
            has_snapshot(guest, &cloning)?;
            stays_linked(&cloning)?;
            may_take(world, call, guest, &cloning)?;
            may_leave(world, call, guest, &cloning)?;
            is_free_here(world, call, target)?;
            can_be_linked(guest, &cloning)?;
        }
        Kind::Lxc => {
            create::is_free(world, call, target)?;
            stays_linked(&cloning)?;
            has_snapshot(guest, &cloning)?;
            may_take(world, call, guest, &cloning)?;
            can_be_linked(guest, &cloning)?;
            may_leave(world, call, guest, &cloning)?;
        }
    }
    let kind = format!("{}clone", call.kind.prefix());
    Ok(world.fork(Fork::beside(&call.node, &call.who, &kind, source, Work::Clone(Box::new(cloning)))).into())
}

/// Whether the copy can go where it is to go: the node is there, and so is the storage, for both nodes.
fn may_go(world: &World, call: &Call) -> Result<(), Fail> {
    let away = call.text("target").filter(|target| *target != call.node);
    if let Some(target) = away.filter(|target| !world.nodes.contains_key(*target)) {
        return Err(Fail::died(format!("no such cluster node '{target}'")));
    }
    let Some(storage) = call.text("storage") else { return Ok(()) };
    let found = world.storages.find(storage).map_err(Fail::died)?;
    if away.is_some() && !found.shared {
        return Err(Fail::died(format!("can't clone to non-shared storage '{storage}'")));
    }
    Ok(())
}

fn has_snapshot(guest: &Guest, cloning: &Cloning) -> Result<(), Fail> {
    match cloning.snapshot.as_ref().filter(|snapshot| !guest.snapshots.contains_key(*snapshot)) {
        Some(snapshot) => Err(Fail::died(format!("snapshot '{snapshot}' does not exist"))),
        None => Ok(()),
    }
}

/// A linked copy is where its original is.
fn stays_linked(cloning: &Cloning) -> Result<(), Fail> {
    let leaves = !cloning.full && cloning.storage.is_some();
    if leaves { Err(Fail::died("parameter 'storage' not allowed for linked clones".to_owned())) } else { Ok(()) }
}

/// Another guest of the same kind on this node is seen at once; one elsewhere only when the copy is written.
fn is_free_here(world: &World, call: &Call, target: u32) -> Result<(), Fail> {
    let is_taken = world.guests.get(&target).is_some_and(|other| other.node == call.node && other.kind == call.kind);
    let text = || format!("unable to create {} {target}: config file already exists", call.kind.word());
    if is_taken { Err(Fail::died(text())) } else { Ok(()) }
}

fn cloning(call: &Call, guest: &Guest, target: u32) -> Cloning {
    let own = |name: &str| call.text(name).map(str::to_owned);
    Cloning {
        source: guest.vmid,
        kind: call.kind,
        target,
        node: call.text("target").unwrap_or(&call.node).to_owned(),
        name: own(call.kind.name_key()),
        description: own("description"),
        full: call.text("full").map_or(!guest.is_template(), |text| text == "1"),
        snapshot: own("snapname"),
        storage: own("storage"),
        pool: own("pool"),
    }
}

/// Every disk needs space where its copy goes, linked or not, and since 8 every card the use of its bridge.
fn may_take(world: &World, call: &Call, guest: &Guest, cloning: &Cloning) -> Result<(), Fail> {
    for (_, drive) in drives(guest.kind, &guest.main).filter(|(_, drive)| !drive.is_cdrom()) {
        if let Some(storage) = cloning.storage.as_deref().or(drive.storage()) {
            world.access.need(&call.who, &format!("/storage/{storage}"), "Datastore.AllocateSpace")?;
        }
    }
    let mut cards = guest.main.iter().filter(|(key, _)| is_card_key(key));
    cards.try_for_each(|(key, value)| update::resources(world, call, guest.kind, key, value))
}

/// Whether anything of a guest is where only its own node gets at it, a CD in its drive as well.
fn uses_local(world: &World, guest: &Guest) -> bool {
    let is_shared = |name: &str| world.storages.all.get(name).is_some_and(|storage| storage.shared);
    drives(guest.kind, &guest.main).any(|(_, drive)| drive.storage().is_some_and(|name| !is_shared(name)))
}

fn may_leave(world: &World, call: &Call, guest: &Guest, cloning: &Cloning) -> Result<(), Fail> {
    if cloning.node == call.node || !uses_local(world, guest) {
        return Ok(());
    }
    let word = call.kind.word();
    Err(Fail::died(format!("can't clone {word} to node '{}' ({word} uses local storage)", cloning.node)))
}

fn can_be_linked(guest: &Guest, cloning: &Cloning) -> Result<(), Fail> {
    let mut disks = drives(guest.kind, &guest.main).filter(|(_, drive)| !drive.is_cdrom());
    match disks.find(|(_, drive)| !cloning.full && !name(&drive.file).starts_with("base")) {
        Some((key, drive)) if cloning.kind == Kind::Qemu => {
            Err(Fail::died(format!("Linked clone feature is not supported for '{}' ({key})", drive.file)))
        }
        Some((_, drive)) => Err(Fail::died(format!("Linked clone feature for '{}' is not available", drive.file))),
        None => Ok(()),
    }
}
