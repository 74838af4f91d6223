//! `/storage` and `/nodes/{node}/storage`.
//!
//! What never enters here: what lies on a storage (see `content`), and uploads.

mod content;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Call, Route, need_quorum, nodes::subdirs};
use crate::respond::{Data, Fail};
use crate::schema::split_list;
use crate::sections::MODIFIED;
use crate::storage::Storage;
use crate::world::World;

pub(super) const ROUTES: &[Route] = &[
    ("GET", "/storage", list),
    ("POST", "/storage", create),
    ("GET", "/storage/{storage}", read),
    ("PUT", "/storage/{storage}", update),
    ("DELETE", "/storage/{storage}", delete),
    ("GET", "/nodes/{node}/storage", on_node),
    ("GET", "/nodes/{node}/storage/{storage}/status", status),
    ("GET", "/nodes/{node}/storage/{storage}", index),
    ("GET", "/nodes/{node}/storage/{storage}/content", content::list),
    ("POST", "/nodes/{node}/storage/{storage}/content", content::allocate),
    ("GET", "/nodes/{node}/storage/{storage}/content/{volume}", content::read),
    ("PUT", "/nodes/{node}/storage/{storage}/content/{volume}", content::update),
    ("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}", content::delete),
    ("POST", "/nodes/{node}/storage/{storage}/download-url", content::download),
    ("GET", "/nodes/{node}/aplinfo", content::appliances),
    ("POST", "/nodes/{node}/aplinfo", content::fetch_appliance),
];

/// What is used of every storage, as far as anybody looks.
const USED_TENTH: u64 = 10;

fn index(world: &mut World, call: &Call) -> Result<Data, Fail> {
    named(world, call)?;
    Ok(subdirs(&["content", "download-url", "status"]))
}

fn words(content: &BTreeSet<String>) -> String {
    content.iter().cloned().collect::<Vec<_>>().join(",")
}

fn digest(world: &World) -> String {
    let line = |(name, storage): (&String, &Storage)| format!("{name} {storage:?}\n");
    let text: String = world.storages.all.iter().map(line).collect();
    crate::digest::sha1(&text)
}

fn entry(world: &World, name: &str, storage: &Storage) -> Value {
    let mut fields = json!({ "storage": name, "type": storage.kind, "content": words(&storage.content), "digest": digest(world) });
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
        fields["nodes"] = json!(words(nodes));
    }
    for (key, value) in &storage.extra {
        fields[key] = json!(value);
    }
    fields
}

fn may_audit(world: &World, call: &Call, name: &str) -> bool {
    let privileges = world.access.privileges(&call.who, &format!("/storage/{name}"));
    privileges.contains_key("Datastore.Audit") || privileges.contains_key("Datastore.AllocateSpace")
}

fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let kind = call.text("type");
    let wanted = |name: &str, storage: &Storage| kind.is_none_or(|kind| kind == storage.kind) && may_audit(world, call, name);
    let all = world.storages.all.iter().filter(|(name, storage)| wanted(name, storage));
    let entries: Vec<Value> = all.map(|(name, storage)| entry(world, name, storage)).collect();
    Ok(json!(entries).into())
}

fn named<'a>(world: &'a World, call: &Call) -> Result<(&'a String, &'a Storage), Fail> {
    let name = call.text("storage").unwrap_or_default();
    let found = world.storages.all.get_key_value(name);
    found.ok_or_else(|| Fail::died(format!("storage '{name}' does not exist")))
}

fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let (name, storage) = named(world, call)?;
    Ok(entry(world, name, storage).into())
}

/// What a storage of a kind must say.
fn required(kind: &str) -> &'static [&'static str] {
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

/// Parameters that have a place of their own, or are never shown again.
const NOT_EXTRA: &[&str] = &[
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

fn extra(call: &Call) -> impl Iterator<Item = (String, String)> + '_ {
    call.values.iter().filter(|(key, _)| !NOT_EXTRA.contains(&key.as_str())).cloned()
}

fn list_of(call: &Call, key: &str) -> Option<BTreeSet<String>> {
    call.text(key).map(|text| split_list(text).map(str::to_owned).collect())
}

fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_quorum(world, &call.node)?;
    let (name, kind) = (call.text("storage").unwrap_or_default().to_owned(), call.text("type").unwrap_or_default().to_owned());
    if let Some(key) = required(&kind).iter().find(|key| call.text(key).is_none()) {
        return Err(Fail::died(format!("missing value for required option '{key}'")));
    }
    if world.storages.all.contains_key(&name) {
        return Err(Fail::died(format!("create storage failed: storage ID '{name}' already defined")));
    }
    // Where files come over the network, they lie under a place of the node's own choice.
    let mounted = ["nfs", "cifs", "cephfs"].contains(&kind.as_str()).then(|| format!("/mnt/pve/{name}"));
    let storage = Storage {
        kind: kind.clone(),
        path: call.text("path").map(str::to_owned).or(mounted),
        content: list_of(call, "content").unwrap_or_else(|| BTreeSet::from(["images".to_owned(), "rootdir".to_owned()])),
        shared: call.flag("shared") || ["nfs", "cifs", "cephfs", "rbd", "pbs"].contains(&kind.as_str()),
        nodes: list_of(call, "nodes"),
        enabled: !call.flag("disable"),
        total: 256 << 30,
        files: BTreeSet::new(),
        extra: extra(call).collect(),
    };
    world.storages.all.insert(name.clone(), storage);
    Ok(json!({ "storage": name, "type": kind }).into())
}

fn update(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_quorum(world, &call.node)?;
    let (name, storage) = named(world, call)?;
    if call.text("digest").is_some_and(|given| given != digest(world)) {
        return Err(Fail::died(MODIFIED));
    }
    let (name, kind) = (name.clone(), storage.kind.clone());
    if let Some(storage) = world.storages.all.get_mut(&name) {
        change(storage, call);
    }
    Ok(json!({ "storage": name, "type": kind }).into())
}

fn change(storage: &mut Storage, call: &Call) {
    storage.content = list_of(call, "content").unwrap_or_else(|| storage.content.clone());
    storage.nodes = list_of(call, "nodes").or_else(|| storage.nodes.clone());
    storage.shared = call.text("shared").map_or(storage.shared, |text| text == "1");
    storage.enabled = call.text("disable").map_or(storage.enabled, |text| text != "1");
    storage.extra.extend(extra(call));
    for key in call.text("delete").map(split_list).into_iter().flatten() {
        match key {
            "nodes" => storage.nodes = None,
            "disable" => storage.enabled = true,
            "shared" => storage.shared = false,
            _ => drop(storage.extra.remove(key)),
        }
    }
}

fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_quorum(world, &call.node)?;
    let name = named(world, call)?.0.clone();
    world.storages.all.remove(&name);
    Ok(Data::null())
}

fn usage(call: &Call, name: &str, storage: &Storage) -> Value {
    let active = u8::from(storage.is_on(&call.node));
    let (total, used) = (storage.total, storage.total / USED_TENTH);
    json!({ "storage": name, "type": storage.kind, "content": words(&storage.content), "enabled": u8::from(storage.enabled),
        "active": active, "shared": u8::from(storage.shared), "total": total, "used": used, "avail": total - used, "used_fraction": 0.1 })
}

fn on_node(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let content = call.text("content");
    let holds = |storage: &Storage| content.is_none_or(|list| split_list(list).any(|word| storage.content.contains(word)));
    let wanted = |name: &str, storage: &Storage| storage.is_on(&call.node) && holds(storage) && may_audit(world, call, name);
    let here = world.storages.all.iter().filter(|(name, storage)| wanted(name, storage));
    let one = |name: &str| call.text("storage").is_none_or(|wanted| wanted == name);
    let entries: Vec<Value> = here.filter(|(name, _)| one(name)).map(|(name, storage)| usage(call, name, storage)).collect();
    Ok(json!(entries).into())
}

fn status(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let (name, storage) = named(world, call)?;
    let mut fields = usage(call, name, storage);
    if let Value::Object(map) = &mut fields {
        map.remove("storage");
        map.remove("used_fraction");
    }
    Ok(fields.into())
}

/// Storages as `cluster/resources` lists them: once for each node.
pub(super) fn resources(world: &World, call: &Call) -> Vec<Value> {
    let seen = world.storages.all.iter().filter(|(name, _)| may_audit(world, call, name));
    let pairs =
        seen.flat_map(|(name, storage)| world.nodes.keys().filter(|node| storage.is_on(node)).map(move |node| (name, storage, node)));
    pairs.map(|(name, storage, node)| resource(world, call, name, storage, node)).collect()
}

/// A storage as a pool shows it: once, on the entry node where it is there.
pub(super) fn member(world: &World, call: &Call, name: &str) -> Option<Value> {
    let storage = world.storages.all.get(name)?;
    let elsewhere = storage.nodes.as_ref().filter(|nodes| !nodes.contains(&call.entry)).and_then(|nodes| nodes.first());
    Some(resource(world, call, name, storage, elsewhere.unwrap_or(&call.entry)))
}

fn resource(world: &World, call: &Call, name: &str, storage: &Storage, node: &str) -> Value {
    let known = world.views.heard(&call.entry, node, world.now_ms).is_some();
    json!({ "id": format!("storage/{node}/{name}"), "type": "storage", "storage": name, "node": node, "plugintype": storage.kind,
        "content": words(&storage.content), "shared": u8::from(storage.shared), "status": if known { "available" } else { "unknown" },
        "disk": storage.total / USED_TENTH, "maxdisk": storage.total })
}
