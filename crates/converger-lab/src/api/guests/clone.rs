//! Clones: what a call refuses at once.
//!
//! What never enters here: the copy itself.

use crate::api::{Call, need_quorum};
use crate::engine::Fork;
use crate::guest::drive::drives;
use crate::guest::{Guest, Kind, is_card_key};
use crate::respond::{Data, Fail};
use crate::storage::name;
use crate::update;
use crate::work::{Cloning, Work};
use crate::world::World;

pub(super) fn clone(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_quorum(world, &call.node)?;
    let source = call.vmid();
    let gone = || Fail::died(format!("unable to find configuration file for {} {source} on node '{}'", call.kind.word(), call.node));
    let guest = world.guest_on(&call.node, call.kind, source).ok_or_else(gone)?;
    if let Some(locked) = guest.locked() {
        return Err(Fail::died(locked));
    }
    let target = call.text("newid").and_then(|text| text.parse().ok()).unwrap_or(0);
    let cloning = cloning(call, guest, target);
    may_clone(world, call, guest, &cloning)?;
    let here = world.guests.get(&target).is_some_and(|other| other.node == call.node && other.kind == call.kind);
    if here {
        let word = call.kind.word();
        return Err(Fail::died(format!("unable to create {word} {target}: config file already exists")));
    }
    let kind = format!("{}clone", call.kind.prefix());
    Ok(world.fork(Fork::beside(&call.node, &call.who, &kind, source, Work::Clone(Box::new(cloning)))).into())
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

fn may_clone(world: &World, call: &Call, guest: &Guest, cloning: &Cloning) -> Result<(), Fail> {
    if let Some(snapshot) = cloning.snapshot.as_ref().filter(|snapshot| !guest.snapshots.contains_key(*snapshot)) {
        return Err(Fail::died(format!("snapshot '{snapshot}' does not exist")));
    }
    if !cloning.full && cloning.storage.is_some() {
        return Err(Fail::param("storage", "parameter 'storage' not allowed for linked clones"));
    }
    let is_away = cloning.node != call.node;
    if let Some(storage) = &cloning.storage {
        let found = world.storages.find(storage).map_err(Fail::died)?;
        if is_away && !found.shared {
            return Err(Fail::died(format!("can't clone to non-shared storage '{storage}'")));
        }
    }
    may_take(world, call, guest, cloning)?;
    if !world.nodes.contains_key(&cloning.node) {
        return Err(Fail::died(format!("no such cluster node '{}'", cloning.node)));
    }
    if is_away && uses_local(world, guest) {
        let word = call.kind.word();
        return Err(Fail::died(format!("can't clone {word} to node '{}' ({word} uses local storage)", cloning.node)));
    }
    let mut disks = drives(guest.kind, &guest.main).filter(|(_, drive)| !drive.is_cdrom());
    match disks.find(|(_, drive)| !cloning.full && !name(&drive.file).starts_with("base")) {
        Some((key, drive)) if cloning.kind == Kind::Qemu => {
            Err(Fail::died(format!("Linked clone feature is not supported for '{}' ({key})", drive.file)))
        }
        Some((_, drive)) => Err(Fail::died(format!("Linked clone feature for '{}' is not available", drive.file))),
        None => Ok(()),
    }
}
