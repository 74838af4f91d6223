//! Backups of guests, and downloading and removing files on storages.
//!
//! Files have no bytes; job schedules are in `api::backup`.

use crate::guest::drive::drives;
use crate::guest::{LabGuest, LabGuestKind};
use crate::storage::GuestBackup;
use crate::task::TaskId;
use crate::world::World;

/// A backup job: these guests, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct BackupWork {
    pub(crate) vmids: Vec<u32>,
    pub(crate) storage: String,
    pub(crate) mode: String,
    /// `zst`, `gz`, `lzo`, or `None`.
    pub(crate) ending: Option<String>,
    pub(crate) notes: Option<String>,
    pub(crate) protected: bool,
}

/// Checks the storage and locks every guest that is not locked.
pub(super) fn begin_backup(world: &mut World, id: TaskId, backing: &BackupWork) -> Result<u64, String> {
    let BackupWork { vmids, storage, mode, .. } = backing;
    let why = |error: String| format!("could not get storage information for '{storage}': {error}");
    let found = world.storages.find_storage(storage).map_err(why)?;
    if !found.content.contains("backup") {
        return Err(why(format!("can't use storage '{storage}' for backups - wrong content type")));
    }
    let list: Vec<String> = vmids.iter().map(u32::to_string).collect();
    world.tasks.log_line(id, format!("INFO: starting new backup job: vzdump {} --storage {storage} --mode {mode}", list.join(" ")));
    for vmid in vmids {
        let free = world.guests.get(vmid).is_some_and(|guest| guest.lock().is_none());
        if let Some(guest) = world.guests.change_guest(*vmid).filter(|_| free) {
            guest.config.insert("lock".to_owned(), "backup".to_owned());
        }
    }
    Ok(world.task_durations.backup_ms * vmids.len().max(1) as u64)
}

/// Saves each guest on its own; a failure does not stop the others.
pub(super) fn finish_backup(world: &mut World, id: TaskId, backing: &BackupWork) -> Result<(), String> {
    let mut failed = false;
    for vmid in &backing.vmids {
        if let Err(why) = save_guest(world, id, backing, *vmid) {
            world.tasks.log_line(id, format!("ERROR: Backup of VM {vmid} failed - {why}"));
            failed = true;
        }
    }
    if failed {
        return Err("job errors".to_owned());
    }
    world.tasks.log_line(id, "INFO: Backup job finished successfully");
    Ok(())
}

fn save_guest(world: &mut World, id: TaskId, backing: &BackupWork, vmid: u32) -> Result<(), String> {
    let Some(guest) = world.guests.get(&vmid) else { return Err(format!("unable to find VM '{vmid}'")) };
    if guest.lock() != Some("backup") {
        return Err(guest.lock_error().unwrap_or_default());
    }
    let backup = build_backup(world, backing, guest);
    let archive = archive_name(backing, &backup);
    let kind = backup.kind.name();
    world.tasks.log_line(id, format!("INFO: Starting Backup of VM {vmid} ({kind})"));
    world.tasks.log_line(id, format!("INFO: creating vzdump archive '{}'", world.storages.volume_path(&archive)));
    world.tasks.log_line(id, format!("INFO: Finished Backup of VM {vmid} (00:00:01)"));
    world.storages.backups.insert(archive, backup);
    unlock_guest(world, vmid);
    Ok(())
}

fn build_backup(world: &World, backing: &BackupWork, guest: &LabGuest) -> GuestBackup {
    let mut section = guest.config.clone();
    section.remove("lock");
    let bytes = drives(guest.kind, &section).filter(|(_, drive)| drive.is_owned()).map(|(_, drive)| drive.size_bytes()).sum();
    let name = guest.display_name();
    let fill_notes = |notes: &String| notes.replace("{{guestname}}", &name).replace("{{vmid}}", &guest.vmid.to_string());
    let notes = backing.notes.as_ref().map(fill_notes).map(|notes| notes.replace("{{node}}", &guest.node).replace("\\n", "\n"));
    GuestBackup { vmid: guest.vmid, kind: guest.kind, bytes, made_s: world.cluster_clock_s(), notes, protected: backing.protected, section }
}

/// `local:backup/vzdump-qemu-100-2026_11_15-12_00_00.vma.zst`
fn archive_name(backing: &BackupWork, backup: &GuestBackup) -> String {
    let format = if backup.kind == LabGuestKind::Qemu { "vma" } else { "tar" };
    let ending = backing.ending.as_ref().map(|ending| format!(".{ending}")).unwrap_or_default();
    let name = format!("vzdump-{}-{}-{}.{format}{ending}", backup.kind.name(), backup.vmid, archive_timestamp(backup.made_s));
    format!("{}:backup/{name}", backing.storage)
}

/// A time as in archive names, in UTC.
fn archive_timestamp(at_s: u64) -> String {
    let (days, rest) = (at_s / 86_400, at_s % 86_400);
    // Years start in March here, so that a leap day is the last day of its year. All 400-year eras are alike.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}_{month:02}_{day:02}-{:02}_{:02}_{:02}", rest / 3_600, rest / 60 % 60, rest % 60)
}

fn unlock_guest(world: &mut World, vmid: u32) {
    let is_backup_lock = world.guests.get(&vmid).is_some_and(|guest| guest.lock() == Some("backup"));
    if let Some(guest) = world.guests.change_guest(vmid).filter(|_| is_backup_lock) {
        guest.config.remove("lock");
    }
}

/// A stopped backup leaves no lock behind.
pub(super) fn abandon_backup(world: &mut World, backing: &BackupWork) {
    for vmid in &backing.vmids {
        unlock_guest(world, *vmid);
    }
}

pub(super) fn begin_remove_content(world: &mut World, volume: &str) -> Result<u64, String> {
    let (storage, name) = volume.split_once(':').unwrap_or(("", volume));
    if world.storages.backups.get(volume).is_some_and(|backup| backup.protected) {
        return Err(format!("cannot remove protected volume '{name}' on '{storage}'"));
    }
    if world.storages.is_base_in_use(volume) {
        return Err(format!("base volume '{name}' is still in use by linked cloned"));
    }
    Ok(world.task_durations.config_ms)
}

pub(super) fn finish_remove_content(world: &mut World, id: TaskId, volume: &str) -> Result<(), String> {
    world.storages.remove_content(volume);
    world.tasks.log_line(id, format!("Removed volume '{volume}'"));
    Ok(())
}

pub(super) fn begin_fetch(world: &mut World, id: TaskId, volume: &str) -> Result<u64, String> {
    let path = world.storages.volume_path(volume);
    if world.storages.has_file(volume) {
        return Err(format!("refusing to override existing file '{path}'"));
    }
    world.tasks.log_line(id, format!("downloading to {path}"));
    Ok(world.task_durations.create_ms)
}

pub(super) fn finish_fetch(world: &mut World, volume: &str) -> Result<(), String> {
    let (storage, file) = volume.split_once(':').unwrap_or(("", volume));
    if let Some(storage) = world.storages.all.get_mut(storage) {
        storage.files.insert(file.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_timestamps_have_the_format_of_proxmox() {
        assert_eq!(archive_timestamp(0), "1970_01_01-00_00_00");
        assert_eq!(archive_timestamp(951_782_399), "2000_02_28-23_59_59");
        assert_eq!(archive_timestamp(951_782_400), "2000_02_29-00_00_00");
        assert_eq!(archive_timestamp(1_794_700_800), "2026_11_15-00_00_00");
    }
}
