//! Restores backups to a new guest or over an existing one.
//!
//! Taking a backup is in `task_work`.

use crate::api::ApiCall;
use crate::guest::drive::{DriveValue, drives};
use crate::guest::{ConfigSection, LabGuestKind, is_card_key, is_unused_key};
use crate::response::ApiError;
use crate::storage::GuestBackup;
use crate::world::World;

/// The backup that a create request names, if any.
pub(super) fn find_backup<'a>(world: &'a World, call: &'a ApiCall) -> Result<Option<&'a GuestBackup>, ApiError> {
    let volume = match call.kind {
        LabGuestKind::Qemu => call.param("archive"),
        LabGuestKind::Lxc => call.param("ostemplate").filter(|_| call.is_set("restore")),
    };
    let Some(volume) = volume else { return Ok(None) };
    let storage = volume.split(':').next().unwrap_or_default();
    let found = world.storages.backups.get(volume);
    let owner = found.map(|backup| format!("/vms/{}", backup.vmid));
    let own = owner.is_some_and(|guest| world.access.has_privilege(&call.caller, &guest, "VM.Backup"));
    let privileges: &[&str] = if own { &["Datastore.Allocate", "Datastore.AllocateSpace"] } else { &["Datastore.Allocate"] };
    world.access.require_any_privilege(&call.caller, &format!("/storage/{storage}"), privileges)?;
    found.map(Some).ok_or_else(|| ApiError::internal_error(format!("volume '{volume}' does not exist")))
}

/// Checks whether the restore may overwrite an existing guest.
pub(super) fn check_may_overwrite(world: &World, call: &ApiCall) -> Result<(), ApiError> {
    let vmid = call.vmid();
    let Some(guest) = world.guests.get(&vmid) else { return Ok(()) };
    let kind_word = call.kind.error_word();
    let refused = |why: &str| Err(ApiError::internal_error(format!("unable to restore {kind_word} {vmid} - {why}")));
    match () {
        () if !call.is_set("force") => refused(&format!("{} {vmid} already exists on node '{}'", guest.kind.error_word(), guest.node)),
        () if guest.kind != call.kind || guest.node != call.node => refused("it exists elsewhere or is of another kind"),
        () if guest.is_protected() => refused("protection mode enabled"),
        () if guest.is_running() => refused("vm is running"),
        () => Ok(()),
    }
}

/// The config of the backup with new disks and the settings of the request.
pub(super) fn restored_section(world: &mut World, call: &ApiCall, backup: &GuestBackup, requested: ConfigSection) -> ConfigSection {
    let mut section = backup.section.clone();
    section.retain(|key, _| !is_unused_key(key) && !["parent", "template"].contains(&key.as_str()));
    let disks: Vec<(String, DriveValue)> = drives(backup.kind, &section).map(|(key, drive)| (key.clone(), drive)).collect();
    for (key, mut drive) in disks.into_iter().filter(|(_, drive)| drive.is_owned()) {
        let storage = call.param("storage").or_else(|| drive.storage()).unwrap_or("local").to_owned();
        let gibibytes = drive.size_bytes().div_ceil(1 << 30).max(1);
        drive.file = if drive.is_cloud_init() { format!("{storage}:cloudinit") } else { format!("{storage}:{gibibytes}") };
        drive.options.remove("size");
        section.insert(key, drive.to_text());
    }
    if call.is_set("unique") {
        let prefix = world.flavour.mac_prefix();
        for (_, value) in section.iter_mut().filter(|(key, _)| is_card_key(key)) {
            *value = replace_mac(value, &world.random.new_mac(prefix));
        }
    }
    section.extend(requested);
    section
}

/// A network card of either guest kind with another MAC address.
fn replace_mac(card: &str, address: &str) -> String {
    let is_mac = |text: &str| text.split(':').count() == 6;
    let renewed = |part: &str| match part.split_once('=') {
        Some((key, value)) if is_mac(value) => format!("{key}={address}"),
        _ => part.to_owned(),
    };
    card.split(',').map(renewed).collect::<Vec<_>>().join(",")
}
