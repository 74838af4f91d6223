//! The content of storages: guest disks, ISO images, container templates, backups.
//!
//! Files have no bytes: a download is a task, and the file exists when it ends.

use serde_json::{Value, json};

use super::find_storage;
use crate::api::ApiCall;
use crate::events::NewTask;
use crate::guest::{LabGuestKind, size};
use crate::response::{ApiData, ApiError};
use crate::storage::{GuestBackup, StorageVolume};
use crate::task_work::TaskWork;
use crate::world::World;

/// Templates that Proxmox offers for download; a small selection.
const APPLIANCES: &[(&str, &str)] =
    &[("alpine-3.22-default_20250617_amd64.tar.xz", "alpine-3.22"), ("debian-12-standard_12.12-1_amd64.tar.zst", "debian-12")];

pub(super) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let (name, storage) = find_storage(world, call)?;
    let prefix = format!("{name}:");
    let volumes = world.storages.volumes.iter().filter(|(id, _)| id.starts_with(&prefix));
    let volumes = volumes.map(|(id, volume)| volume_json(world, id, volume));
    let files = storage.files.iter().map(|file| file_json(world, name, file));
    let backups = world.storages.backups.iter().filter(|(id, _)| id.starts_with(&prefix)).map(|(id, backup)| backup_json(id, backup));
    let kind = |entry: &Value| call.param("content").is_none_or(|kind| entry["content"] == kind);
    let owner = |entry: &Value| call.number_param("vmid").is_none_or(|vmid| entry["vmid"] == vmid);
    let entries: Vec<Value> = volumes.chain(files).chain(backups).filter(|entry| kind(entry) && owner(entry)).collect();
    Ok(json!(entries).into())
}

fn volume_json(world: &World, id: &str, volume: &StorageVolume) -> Value {
    let lxc = world.guests.get(&volume.vmid).is_some_and(|guest| guest.kind == LabGuestKind::Lxc);
    json!({ "volid": id, "vmid": volume.vmid, "size": volume.bytes, "format": volume.format, "ctime": world.cluster_clock_s(),
        "content": if lxc { "rootdir" } else { "images" } })
}

/// The size of every file.
const FILE_BYTES: u64 = 1 << 28;

/// `iso/debian.iso`, `vztmpl/debian.tar.zst`: the directory is the content type.
fn file_json(world: &World, storage: &str, file: &str) -> Value {
    let kind = file.split('/').next().unwrap_or_default();
    json!({ "volid": format!("{storage}:{file}"), "content": kind, "format": file_format(file), "size": FILE_BYTES, "ctime": world.cluster_clock_s() })
}

fn file_format(file: &str) -> &str {
    match file.rsplit('.').next().unwrap_or_default() {
        "zst" if file.ends_with(".vma.zst") => "vma.zst",
        "zst" if file.contains("vzdump-") => "tar.zst",
        "zst" => "tzst",
        "gz" => "tgz",
        "xz" => "txz",
        other => other,
    }
}

fn backup_json(id: &str, backup: &GuestBackup) -> Value {
    let mut entry = json!({ "volid": id, "content": "backup", "format": file_format(id), "size": backup.bytes, "ctime": backup.made_s,
        "vmid": backup.vmid, "subtype": backup.kind.name() });
    // Lists show only the first line of the notes.
    if let Some(line) = backup.notes.as_deref().and_then(|notes| notes.lines().next()) {
        entry["notes"] = json!(line);
    }
    if backup.protected {
        entry["protected"] = json!(1);
    }
    entry
}

/// The volume id `storage:name`; a request may omit the storage.
fn volume_id(call: &ApiCall) -> Result<String, ApiError> {
    let (storage, volume) = (call.param("storage").unwrap_or_default(), call.param("volume").unwrap_or_default());
    match volume.split_once(':') {
        None => Ok(format!("{storage}:{volume}")),
        Some((own, _)) if own == storage => Ok(volume.to_owned()),
        Some((own, _)) => Err(ApiError::parameter_error("storage", format!("storage ID missmatch ({own} != {storage})"))),
    }
}

/// Allocates a disk that no guest uses yet.
pub(super) fn allocate_volume(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let storage = find_storage(world, call)?.0.clone();
    let (vmid, file) = (call.vmid(), call.param("filename").unwrap_or_default());
    if !file.split('.').next().is_some_and(|stem| stem.starts_with(&format!("vm-{vmid}-"))) {
        return Err(ApiError::parameter_error("filename", format!("illegal name '{file}' - should be 'vm-{vmid}-*'")));
    }
    // A size without a unit is in KiB.
    let text = call.param("size").unwrap_or_default();
    let text = if text.ends_with(['M', 'G']) { text.to_owned() } else { format!("{text}K") };
    let bytes = size::parse(&text).ok_or_else(|| ApiError::parameter_error("size", "unable to parse size"))?;
    let format = call.param("format").or_else(|| file.split_once('.').map(|(_, ending)| ending)).unwrap_or("raw");
    let id = world.storages.allocate_named_volume(&storage, vmid, file, bytes, format).map_err(ApiError::internal_error)?;
    Ok(id.into())
}

pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let id = volume_id(call)?;
    check_may_read(world, call, &id)?;
    let path = world.storages.volume_path(&id);
    if let Some(backup) = world.storages.backups.get(&id) {
        let mut entry = json!({ "path": path, "format": file_format(&id), "size": backup.bytes, "used": backup.bytes });
        if let Some(notes) = &backup.notes {
            entry["notes"] = json!(notes);
        }
        if backup.protected {
            entry["protected"] = json!(1);
        }
        return Ok(entry.into());
    }
    let volume = world.storages.volumes.get(&id).map(|volume| (volume.bytes, volume.format.as_str()));
    match volume.or_else(|| world.storages.has_file(&id).then(|| (FILE_BYTES, file_format(&id)))) {
        Some((bytes, format)) => Ok(json!({ "path": path, "format": format, "size": bytes, "used": bytes }).into()),
        None => Err(missing_volume_error(&id)),
    }
}

fn missing_volume_error(id: &str) -> ApiError {
    ApiError::internal_error(format!("volume '{id}' does not exist"))
}

/// Requires the right to read the storage. For a backup, the right to back up its guest and to allocate space is enough.
fn check_may_read(world: &World, call: &ApiCall, id: &str) -> Result<(), ApiError> {
    let storage = call.param("storage").unwrap_or_default();
    let own = world.storages.backups.get(id).is_some_and(|backup| {
        let guest = format!("/vms/{}", backup.vmid);
        world.access.has_privilege(&call.caller, &guest, "VM.Backup")
    });
    let privileges: &[&str] = if own {
        &["Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.Audit"]
    } else {
        &["Datastore.Allocate", "Datastore.Audit"]
    };
    world.access.require_any_privilege(&call.caller, &format!("/storage/{storage}"), privileges)
}

/// Requires the right to manage the storage. For a backup, the right to back up its guest and to allocate space is enough.
fn check_may_change(world: &World, call: &ApiCall, id: &str) -> Result<(), ApiError> {
    let storage = format!("/storage/{}", call.param("storage").unwrap_or_default());
    let backup = world.storages.backups.get(id);
    let own = backup.is_some_and(|backup| world.access.has_privilege(&call.caller, &format!("/vms/{}", backup.vmid), "VM.Backup"));
    match own && world.access.has_privilege(&call.caller, &storage, "Datastore.AllocateSpace") {
        true => Ok(()),
        false => world.access.require_privilege(&call.caller, &storage, "Datastore.Allocate"),
    }
}

pub(super) fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let id = volume_id(call)?;
    check_may_change(world, call, &id)?;
    let exists = world.storages.volumes.contains_key(&id) || world.storages.has_file(&id);
    let Some(backup) = world.storages.backups.get_mut(&id) else {
        let attribute = if call.param("notes").is_some() { "notes" } else { "protected" };
        return Err(if exists {
            ApiError::internal_error(format!("only backups support attribute '{attribute}'"))
        } else {
            missing_volume_error(&id)
        });
    };
    if let Some(notes) = call.param("notes") {
        backup.notes = Some(notes.to_owned()).filter(|notes| !notes.is_empty());
    }
    if call.param("protected").is_some() {
        backup.protected = call.is_set("protected");
    }
    Ok(ApiData::null())
}

/// Deletes a volume in a task. The task fails for a protected volume.
pub(super) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let id = volume_id(call)?;
    check_may_change(world, call, &id)?;
    let storage = find_storage(world, call)?.0.clone();
    let owner = world.storages.volumes.get(&id).map(|volume| volume.vmid);
    let owner = owner.or_else(|| world.storages.backups.get(&id).map(|backup| backup.vmid));
    let about = owner.map_or_else(|| storage.clone(), |vmid| format!("{vmid}@{storage}"));
    Ok(world.start_task(NewTask::for_node(&call.node, &call.caller, "imgdel", &about, TaskWork::RemoveContent { volume: id })).into())
}

pub(super) fn download_file(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let (name, storage) = find_storage(world, call)?;
    let (content, file) = (call.param("content").unwrap_or_default(), call.param("filename").unwrap_or_default());
    if !storage.content.contains(content) {
        return Err(ApiError::internal_error(format!("storage '{name}' is not configured for content-type '{content}'")));
    }
    let volume = format!("{name}:{content}/{file}");
    let about = file.to_owned();
    Ok(world.start_task(NewTask::for_node(&call.node, &call.caller, "download", &about, TaskWork::Fetch { volume })).into())
}

pub(super) fn list_appliances(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    let entry = |(template, name): &(&str, &str)| {
        let (os, version) = name.split_once('-').unwrap_or((name, ""));
        json!({ "template": template, "package": format!("{name}-standard"), "os": name, "version": version, "type": "lxc",
            "architecture": "amd64", "section": "system", "source": "https://download.example", "headline": os })
    };
    Ok(json!(APPLIANCES.iter().map(entry).collect::<Vec<_>>()).into())
}

pub(super) fn fetch_appliance(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let (name, storage) = find_storage(world, call)?;
    let template = call.param("template").unwrap_or_default();
    if !APPLIANCES.iter().any(|(known, _)| *known == template) {
        return Err(ApiError::parameter_error("template", "no such template"));
    }
    if !storage.content.contains("vztmpl") {
        return Err(ApiError::internal_error(format!("storage '{name}' does not support templates")));
    }
    let volume = format!("{name}:vztmpl/{template}");
    Ok(world.start_task(NewTask::for_node(&call.node, &call.caller, "download", "", TaskWork::Fetch { volume })).into())
}
