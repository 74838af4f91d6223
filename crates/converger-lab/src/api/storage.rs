//! `/storage` and `/nodes/{node}/storage`.
//!
//! What is on a storage is in `content`. Uploads are not implemented.

mod content;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{ApiCall, ApiRoute, nodes::subdirectory_index, require_quorum};
use crate::response::{ApiData, ApiError};
use crate::schema::split_list;
use crate::sections::MODIFIED_TEXT;
use crate::storage::LabStorage;
use crate::world::World;

pub(super) const ROUTES: &[ApiRoute] = &[
    ("GET", "/storage", list),
    ("POST", "/storage", create),
    ("GET", "/storage/{storage}", read),
    ("PUT", "/storage/{storage}", update),
    ("DELETE", "/storage/{storage}", delete),
    ("GET", "/nodes/{node}/storage", list_on_node),
    ("GET", "/nodes/{node}/storage/{storage}/status", status),
    ("GET", "/nodes/{node}/storage/{storage}", index),
    ("GET", "/nodes/{node}/storage/{storage}/content", content::list),
    ("POST", "/nodes/{node}/storage/{storage}/content", content::allocate_volume),
    ("GET", "/nodes/{node}/storage/{storage}/content/{volume}", content::read),
    ("PUT", "/nodes/{node}/storage/{storage}/content/{volume}", content::update),
    ("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}", content::delete),
    ("POST", "/nodes/{node}/storage/{storage}/download-url", content::download_file),
    ("GET", "/nodes/{node}/aplinfo", content::list_appliances),
    ("POST", "/nodes/{node}/aplinfo", content::fetch_appliance),
];

fn index(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    find_storage(world, call)?;
    Ok(subdirectory_index(&["content", "download-url", "status"]))
}

fn join_content(content: &BTreeSet<String>) -> String {
    content.iter().cloned().collect::<Vec<_>>().join(",")
}

fn storages_digest(world: &World) -> String {
    let line = |(name, storage): (&String, &LabStorage)| format!("{name} {storage:?}\n");
    let text: String = world.storages.all.iter().map(line).collect();
    crate::digest::sha1_hex(&text)
}

fn storage_json(world: &World, name: &str, storage: &LabStorage) -> Value {
    let mut fields =
        json!({ "storage": name, "type": storage.kind, "content": join_content(&storage.content), "digest": storages_digest(world) });
    if let Some(path) = &storage.path {
        fields["path"] = json!(path);
    }
    if storage.shared {
        fields["shared"] = json!(1);
    }
    if !storage.enabled {
        fields["disable"] = json!(1);
    }
    if let Some(nodes) = &storage.nodes {
        fields["nodes"] = json!(join_content(nodes));
    }
    for (key, value) in &storage.extra {
        fields[key] = json!(value);
    }
    fields
}

fn may_audit(world: &World, call: &ApiCall, name: &str) -> bool {
    let privileges = world.access.privileges_on(&call.caller, &format!("/storage/{name}"));
    privileges.contains_key("Datastore.Audit") || privileges.contains_key("Datastore.AllocateSpace")
}

fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let kind = call.param("type");
    let wanted = |name: &str, storage: &LabStorage| kind.is_none_or(|kind| kind == storage.kind) && may_audit(world, call, name);
    let all = world.storages.all.iter().filter(|(name, storage)| wanted(name, storage));
    let entries: Vec<Value> = all.map(|(name, storage)| storage_json(world, name, storage)).collect();
    Ok(json!(entries).into())
}

fn find_storage<'a>(world: &'a World, call: &ApiCall) -> Result<(&'a String, &'a LabStorage), ApiError> {
    let name = call.param("storage").unwrap_or_default();
    let found = world.storages.all.get_key_value(name);
    found.ok_or_else(|| ApiError::internal_error(format!("storage '{name}' does not exist")))
}

fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let (name, storage) = find_storage(world, call)?;
    Ok(storage_json(world, name, storage).into())
}

/// The options that a storage of this type requires.
fn required_options(kind: &str) -> &'static [&'static str] {
    match kind {
        "dir" | "btrfs" => &["path"],
        "nfs" => &["export", "server"],
        "cifs" => &["server", "share"],
        "zfspool" => &["pool"],
        "lvm" => &["vgname"],
        "lvmthin" => &["thinpool", "vgname"],
        "pbs" => &["datastore", "server"],
        "iscsi" => &["portal", "target"],
        _ => &[],
    }
}

/// Parameters that have fields of their own, or that the API never returns.
const NON_EXTRA_PARAMS: &[&str] = &[
    "storage",
    "type",
    "path",
    "content",
    "shared",
    "nodes",
    "disable",
    "delete",
    "digest",
    "password",
    "keyring",
    "encryption-key",
    "master-pubkey",
];

fn extra_params(call: &ApiCall) -> impl Iterator<Item = (String, String)> + '_ {
    call.values.iter().filter(|(key, _)| !NON_EXTRA_PARAMS.contains(&key.as_str())).cloned()
}

fn parse_list(call: &ApiCall, key: &str) -> Option<BTreeSet<String>> {
    call.param(key).map(|text| split_list(text).map(str::to_owned).collect())
}

fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_quorum(world, &call.node)?;
    let (name, kind) = (call.param("storage").unwrap_or_default().to_owned(), call.param("type").unwrap_or_default().to_owned());
    if let Some(key) = required_options(&kind).iter().find(|key| call.param(key).is_none()) {
        return Err(ApiError::internal_error(format!("missing value for required option '{key}'")));
    }
    if world.storages.all.contains_key(&name) {
        return Err(ApiError::internal_error(format!("create storage failed: storage ID '{name}' already defined")));
    }
    // A network storage is mounted at a path that Proxmox chooses.
    let mounted = ["nfs", "cifs", "cephfs"].contains(&kind.as_str()).then(|| format!("/mnt/pve/{name}"));
    let storage = LabStorage {
        kind: kind.clone(),
        path: call.param("path").map(str::to_owned).or(mounted),
        content: parse_list(call, "content").unwrap_or_else(|| BTreeSet::from(["images".to_owned(), "rootdir".to_owned()])),
        shared: call.is_set("shared") || ["nfs", "cifs", "cephfs", "rbd", "pbs"].contains(&kind.as_str()),
        nodes: parse_list(call, "nodes"),
        enabled: !call.is_set("disable"),
        total: 256 << 30,
        used: None,
        volume_bytes_at_start: 0,
        files: BTreeSet::new(),
        extra: extra_params(call).collect(),
    };
    world.storages.all.insert(name.clone(), storage);
    Ok(json!({ "storage": name, "type": kind }).into())
}

fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_quorum(world, &call.node)?;
    let (name, storage) = find_storage(world, call)?;
    if call.param("digest").is_some_and(|digest| digest != storages_digest(world)) {
        return Err(ApiError::internal_error(MODIFIED_TEXT));
    }
    let (name, kind) = (name.clone(), storage.kind.clone());
    if let Some(storage) = world.storages.all.get_mut(&name) {
        apply_changes(storage, call);
    }
    Ok(json!({ "storage": name, "type": kind }).into())
}

fn apply_changes(storage: &mut LabStorage, call: &ApiCall) {
    storage.content = parse_list(call, "content").unwrap_or_else(|| storage.content.clone());
    storage.nodes = parse_list(call, "nodes").or_else(|| storage.nodes.clone());
    storage.shared = call.param("shared").map_or(storage.shared, |text| text == "1");
    storage.enabled = call.param("disable").map_or(storage.enabled, |text| text != "1");
    storage.extra.extend(extra_params(call));
    for key in call.param("delete").map(split_list).into_iter().flatten() {
        match key {
            "nodes" => storage.nodes = None,
            "disable" => storage.enabled = true,
            "shared" => storage.shared = false,
            _ => drop(storage.extra.remove(key)),
        }
    }
}

fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_quorum(world, &call.node)?;
    let name = find_storage(world, call)?.0.clone();
    world.storages.all.remove(&name);
    Ok(ApiData::null())
}

/// The usage of a storage on a node. A storage that is disabled, or that the node does not have, is neither enabled nor active and has no
/// size.
fn usage_json(world: &World, call: &ApiCall, name: &str, storage: &LabStorage) -> Value {
    let available = storage.is_available_on(&call.node);
    let (total, used) = if available { (storage.total, world.storages.used_bytes(name)) } else { (0, 0) };
    let mut fields = json!({ "storage": name, "type": storage.kind, "content": join_content(&storage.content),
        "enabled": u8::from(available), "active": u8::from(available), "shared": u8::from(storage.shared), "total": total, "used": used,
        "avail": total - used });
    if total > 0 {
        fields["used_fraction"] = json!((used as f64 / total as f64 * 1_000.0).round() / 1_000.0);
    }
    fields
}

/// With a content type, only storages that the node has are listed; without one, all are.
fn list_on_node(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let content = call.param("content");
    let holds = |storage: &LabStorage| {
        let is_asked_for = |list: &str| split_list(list).any(|content_type| storage.content.contains(content_type));
        content.is_none_or(|list| is_asked_for(list) && storage.is_available_on(&call.node))
    };
    if call.param("storage").is_some_and(|name| !world.storages.all.get(name).is_some_and(holds)) {
        return Err(ApiError::parameter_error("storage", "No such storage."));
    }
    let away = call.param("target").filter(|target| *target != call.node && *target != "localhost");
    let reaches = |storage: &LabStorage, node: &str| storage.nodes.as_ref().is_none_or(|nodes| nodes.contains(node));
    let on_both =
        |storage: &LabStorage| away.is_none_or(|target| storage.shared && reaches(storage, &call.node) && reaches(storage, target));
    let one = |name: &str| call.param("storage").is_none_or(|wanted| wanted == name);
    let wanted = |name: &str, storage: &LabStorage| {
        let is_on = !call.is_set("enabled") || storage.enabled;
        one(name) && is_on && holds(storage) && on_both(storage) && may_audit(world, call, name)
    };
    let listed = world.storages.all.iter().filter(|(name, storage)| wanted(name, storage));
    let entries: Vec<Value> = listed.map(|(name, storage)| usage_json(world, call, name, storage)).collect();
    Ok(json!(entries).into())
}

fn status(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let (name, storage) = find_storage(world, call)?;
    let mut fields = usage_json(world, call, name, storage);
    if let Value::Object(map) = &mut fields {
        map.remove("storage");
        map.remove("used_fraction");
    }
    Ok(fields.into())
}

/// The rows of `cluster/resources`: one per storage and node.
pub(super) fn resource_rows(world: &World, call: &ApiCall) -> Vec<Value> {
    let seen = world.storages.all.iter().filter(|(name, _)| may_audit(world, call, name));
    let pairs = seen
        .flat_map(|(name, storage)| world.nodes.keys().filter(|node| storage.is_available_on(node)).map(move |node| (name, storage, node)));
    pairs.map(|(name, storage, node)| resource_row(world, call, name, storage, node)).collect()
}

/// A storage as a member of a pool: one row, for the entry node if the storage is available there.
pub(super) fn pool_member_row(world: &World, call: &ApiCall, name: &str) -> Option<Value> {
    let storage = world.storages.all.get(name)?;
    let elsewhere = storage.nodes.as_ref().filter(|nodes| !nodes.contains(&call.entry)).and_then(|nodes| nodes.first());
    Some(resource_row(world, call, name, storage, elsewhere.unwrap_or(&call.entry)))
}

fn resource_row(world: &World, call: &ApiCall, name: &str, storage: &LabStorage, node: &str) -> Value {
    let known = world.views.last_heard_ms(&call.entry, node, world.now_ms).is_some();
    json!({ "id": format!("storage/{node}/{name}"), "type": "storage", "storage": name, "node": node, "plugintype": storage.kind,
        "content": join_content(&storage.content), "shared": u8::from(storage.shared), "status": if known { "available" } else { "unknown" },
        "disk": world.storages.used_bytes(name), "maxdisk": storage.total })
}
