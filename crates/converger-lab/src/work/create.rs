//! Making a guest, and making a template of it.
//!
//! What never enters here: clones.

use crate::access::Who;
use crate::engine::Fork;
use crate::guest::drive::{self, Drive};
use crate::guest::{Kind, Section, is_disk_key};
use crate::task::TaskId;
use crate::update;
use crate::work::Work;
use crate::world::World;

/// Make the disks. Until the task ends the guest's config is nothing but its lock.
pub(super) fn begin(world: &mut World, id: TaskId, vmid: u32, mut section: Section) -> Result<u64, String> {
    let Some(kind) = world.guests.get(&vmid).map(|guest| guest.kind) else { return Err(format!("guest {vmid} vanished")) };
    for (key, value) in section.iter_mut().filter(|(key, _)| is_disk_key(kind, key)) {
        let is_new = Drive::parse(value).wanted().is_some();
        *value = update::make_disk(world, vmid, value).inspect_err(|_| forget(world, vmid))?;
        if is_new {
            log_disk(world, id, key, value);
        }
    }
    if let Some(Work::Create { section: made, .. }) = world.tasks.all.get_mut(&id).map(|task| &mut task.work) {
        *made = section;
    }
    Ok(world.pace.create_ms)
}

fn pair((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

/// A create that fails takes its config with it.
fn forget(world: &mut World, vmid: u32) {
    world.guests.remove(vmid);
}

fn log_disk(world: &mut World, id: TaskId, key: &str, made: &str) {
    let drive = Drive::parse(made);
    if drive.file.ends_with(".qcow2") {
        let line = formatting(world, &drive.file, drive.bytes());
        world.tasks.log(id, line);
    } else if drive.file.ends_with(".raw") {
        let line = format!("Formatting '{}', fmt=raw size={} preallocation=off", world.storages.path(&drive.file), drive.bytes());
        world.tasks.log(id, line);
    }
    world.tasks.log(id, format!("{key}: successfully created disk '{made}'"));
}

/// What `qemu-img` says about a new image.
pub(super) fn formatting(world: &World, volume: &str, bytes: u64) -> String {
    let path = world.storages.path(volume);
    let options = "cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib";
    format!("Formatting '{path}', fmt=qcow2 {options} size={bytes} lazy_refcounts=off refcount_bits=16")
}

pub(super) fn finish(world: &mut World, id: TaskId, vmid: u32, start: bool) -> Result<(), String> {
    let Some(Work::Create { section, .. }) = world.tasks.get(id).map(|task| task.work.clone()) else { return Ok(()) };
    let Some(guest) = world.guests.change(vmid) else { return Ok(()) };
    guest.main = section;
    if guest.kind == Kind::Qemu && !guest.main.contains_key("boot") {
        let order = drive::default_order(&guest.main);
        guest.main.insert("boot".to_owned(), order);
    }
    let (node, kind) = (guest.node.clone(), guest.kind);
    if start {
        world.tasks.log(id, "Execute autostart");
        let user = world.tasks.get(id).map(|task| task.user.clone()).unwrap_or_default();
        let name = format!("{}start", kind.prefix());
        let fork = Fork::holding(&node, &Who::user(&user), &name, vmid, Work::Start { kind, vmid });
        // The create task still holds the guest for this moment; its own child does not wait for it.
        world.tasks.holders.remove(&vmid);
        world.fork_nested(fork);
    }
    Ok(())
}

/// Disks become base volumes, and the guest can no longer be started.
pub(super) fn finish_template(world: &mut World, vmid: u32) -> Result<(), String> {
    let Some(guest) = world.guests.get(&vmid) else { return Ok(()) };
    let disks: Vec<(String, String)> = guest.main.iter().filter(|(key, _)| is_disk_key(guest.kind, key)).map(pair).collect();
    for (key, value) in disks {
        let mut drive = Drive::parse(&value);
        if drive.is_cdrom() {
            continue;
        }
        drive.file = world.storages.make_base(&drive.file);
        if let Some(guest) = world.guests.change(vmid) {
            guest.main.insert(key, drive.print());
        }
    }
    if let Some(guest) = world.guests.change(vmid) {
        guest.main.insert("template".to_owned(), "1".to_owned());
    }
    Ok(())
}
