//! Creates guests and converts them to templates.
//!
//! Clones have a module of their own.

use crate::access::ApiCaller;
use crate::config_update;
use crate::events::NewTask;
use crate::guest::drive::{self, DriveValue};
use crate::guest::{ConfigSection, LabGuestKind, is_disk_key};
use crate::task::TaskId;
use crate::task_work::TaskWork;
use crate::world::World;

/// Creates the disks. Until the task ends, the guest's config contains only its lock.
pub(super) fn begin_create(world: &mut World, id: TaskId, vmid: u32, mut section: ConfigSection) -> Result<u64, String> {
    let kind = super::find_task_guest(world, id, vmid)?.kind;
    for (key, value) in section.iter_mut().filter(|(key, _)| is_disk_key(kind, key)) {
        let is_new = DriveValue::parse(value).new_disk_request().is_some();
        *value = config_update::make_disk(world, vmid, value).inspect_err(|_| remove_guest(world, vmid))?;
        if is_new {
            log_disk(world, id, key, value);
        }
    }
    if let Some(TaskWork::Create { section: created_section, .. }) = world.tasks.all.get_mut(&id).map(|task| &mut task.work) {
        *created_section = section;
    }
    Ok(world.task_durations.create_ms)
}

fn clone_pair((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

/// A failed create removes the guest's config.
fn remove_guest(world: &mut World, vmid: u32) {
    world.guests.remove_guest(vmid);
}

fn log_disk(world: &mut World, id: TaskId, key: &str, drive_text: &str) {
    let drive = DriveValue::parse(drive_text);
    if drive.file.ends_with(".qcow2") {
        let line = image_format_line(world, &drive.file, drive.size_bytes());
        world.tasks.log_line(id, line);
    } else if drive.file.ends_with(".raw") {
        let line =
            format!("Formatting '{}', fmt=raw size={} preallocation=off", world.storages.volume_path(&drive.file), drive.size_bytes());
        world.tasks.log_line(id, line);
    }
    world.tasks.log_line(id, format!("{key}: successfully created disk '{drive_text}'"));
}

/// The output of `qemu-img` for a new image.
pub(super) fn image_format_line(world: &World, volume: &str, bytes: u64) -> String {
    let path = world.storages.volume_path(volume);
    let options = "cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib";
    format!("Formatting '{path}', fmt=qcow2 {options} size={bytes} lazy_refcounts=off refcount_bits=16")
}

pub(super) fn finish_create(world: &mut World, id: TaskId, vmid: u32, start: bool) -> Result<(), String> {
    let Some(TaskWork::Create { section, .. }) = world.tasks.get(id).map(|task| task.work.clone()) else { return Ok(()) };
    let Some(guest) = world.guests.change_guest(vmid) else { return Ok(()) };
    guest.config = section;
    if guest.kind == LabGuestKind::Qemu && !guest.config.contains_key("boot") {
        let order = drive::default_boot_order(&guest.config);
        guest.config.insert("boot".to_owned(), order);
    }
    let (node, kind) = (guest.node.clone(), guest.kind);
    if start {
        world.tasks.log_line(id, "Execute autostart");
        let user = world.tasks.get(id).map(|task| task.user.clone()).unwrap_or_default();
        let name = format!("{}start", kind.task_prefix());
        let fork = NewTask::holding_guest(&node, &ApiCaller::for_user(&user), &name, vmid, TaskWork::Start { kind, vmid });
        // The create task still holds the guest at this point; its nested task must not wait for it.
        world.tasks.holders.remove(&vmid);
        world.start_nested_task(fork);
    }
    Ok(())
}

/// Converts disks to base volumes; the guest can no longer be started.
pub(crate) fn finish_template(world: &mut World, vmid: u32) {
    let Some(guest) = world.guests.get(&vmid) else { return };
    let disks: Vec<(String, String)> = guest.config.iter().filter(|(key, _)| is_disk_key(guest.kind, key)).map(clone_pair).collect();
    for (key, value) in disks {
        let mut drive = DriveValue::parse(&value);
        if drive.is_cdrom() {
            continue;
        }
        drive.file = world.storages.convert_to_base(&drive.file);
        if let Some(guest) = world.guests.change_guest(vmid) {
            guest.config.insert(key, drive.to_text());
        }
    }
    if let Some(guest) = world.guests.change_guest(vmid) {
        guest.config.insert("template".to_owned(), "1".to_owned());
    }
}
