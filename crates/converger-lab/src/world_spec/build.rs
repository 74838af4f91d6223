//! Builds a world from its spec, or reports the first inconsistency in it.
//!
//! Must not contain defaults of the API: guests get what a create request would give them.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::access::{AclEntry, Grantee, LabToken, LabUser, ResourcePool, UserGroup};
use crate::config_update;
use crate::digest::sha1_hex;
use crate::events::ScheduledEvent;
use crate::fault::ActiveFaults;
use crate::guest::drive::{self, DriveValue};
use crate::guest::{ConfigSection, GuestBehaviour, GuestProcess, LabGuest, LabGuestKind, is_card_key, is_disk_key, is_unused_key};
use crate::ha::HaResource;
use crate::node::LabNode;
use crate::replication::ReplicationJob;
use crate::storage::{CLOUD_INIT_BYTES, LabStorage, StorageVolume};
use crate::task_work;
use crate::world::{RootCa, World};

use super::{AclSpec, DEFAULT_START_MS, GuestSpec, NodeSpec, ReplicationSpec, ScalarSpec, StorageSpec, WorldSpec};

/// Maximum number of guests.
const GUESTS_MAX: usize = 10_000;

/// Builds the world that a spec describes.
pub(crate) fn build_world(spec: &WorldSpec) -> Result<World, String> {
    if spec.start_ms > START_MS_MAX {
        return Err(format!(
            "`start_ms` is {}, which is too late; it is in milliseconds since 1970, at most {START_MS_MAX}",
            spec.start_ms
        ));
    }
    if spec.guests.len() > GUESTS_MAX {
        return Err(format!("there are {} guests, and a lab supports at most {GUESTS_MAX}", spec.guests.len()));
    }
    let mut world = World::empty(spec.flavour, spec.seed, spec.start_ms);
    world.cluster.clone_from(&spec.cluster);
    world.task_durations = spec.pace.clone();
    let new = spec.new_guests;
    world.new_guest_behaviour = build_behaviour(new.ignores_shutdown, new.shutdown_ms, new.refuses_unplug);
    world.root_ca = root_ca(spec);
    add_nodes(&mut world, spec)?;
    add_storages(&mut world, spec);
    add_access(&mut world, spec)?;
    for (key, value) in &spec.options {
        world.options.set(key, value).map_err(|text| format!("option `{}`: {}", key.escape_debug(), text.escape_debug()))?;
    }
    for guest in &spec.guests {
        add_guest(&mut world, guest)?;
    }
    for (name, pool) in &spec.pools {
        let (guests, storages) = (pool.guests.iter().copied().collect(), pool.storages.iter().cloned().collect());
        world.access.pools.insert(name.clone(), ResourcePool { comment: None, guests, storages });
    }
    for (sid, ha) in &spec.ha {
        let state = ha.state.clone().unwrap_or_else(|| "started".to_owned());
        world.add_ha(sid, HaResource { state, is_fixed: ha.believed.is_some(), believed: ha.believed.clone(), ..HaResource::default() });
    }
    for job in &spec.replication {
        add_replication(&mut world, job)?;
    }
    set_usage(&mut world, spec);
    add_faults(&mut world, spec)?;
    Ok(world)
}

fn add_replication(world: &mut World, spec: &ReplicationSpec) -> Result<(), String> {
    let ReplicationSpec { guest, target, schedule, disabled } = spec;
    let Some(source) = world.guests.get(guest).map(|guest| guest.node.clone()) else {
        return Err(format!("a replication job names guest {guest}, which does not exist"));
    };
    if !world.nodes.contains_key(target) || *target == source {
        let shown = target.escape_debug();
        return Err(format!("the replication job of guest {guest} has target `{shown}`; it must be another node of the cluster"));
    }
    let (target, schedule, disabled) = (target.clone(), schedule.clone(), *disabled);
    world.replication.add(ReplicationJob { guest: *guest, source, target, schedule, disabled });
    Ok(())
}

/// Sets the given usage of storages, which includes what they hold at the start.
fn set_usage(world: &mut World, spec: &WorldSpec) {
    for (name, used) in spec.storages.iter().filter_map(|(name, storage)| storage.used.map(|used| (name, used))) {
        world.storages.set_usage(name, used);
    }
}

/// Derived by hashing, not drawn from the world's random numbers: drawing would change every later random value of existing seeds.
fn root_ca(spec: &WorldSpec) -> RootCa {
    let names: Vec<&str> = spec.cluster.as_deref().into_iter().chain(spec.nodes.keys().map(String::as_str)).collect();
    let of = |part: &str| sha1_hex(&format!("{part} {} {}", spec.seed, names.join(" ")));
    let digits = format!("{}{}", of("root"), of("ca")).to_ascii_uppercase();
    let pairs: Vec<&str> = (0..32).filter_map(|pair| digits.get(2 * pair..2 * pair + 2)).collect();
    let unit = of("unit");
    let part = |from: usize, to: usize| unit.get(from..to).unwrap_or_default();
    RootCa {
        fingerprint: spec.root_ca.clone().unwrap_or_else(|| pairs.join(":")),
        unit: [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-"),
        since_s: (spec.start_ms / 1_000).saturating_sub(30 * 86_400),
    }
}

/// The end of the year 9999. Later times have no textual form, and this bound keeps sums of times from overflowing.
const START_MS_MAX: u64 = 253_402_300_799_999;

fn add_faults(world: &mut World, spec: &WorldSpec) -> Result<(), String> {
    let faults = spec.faults.expand_bad_day(spec);
    for (number, moment) in (1..).zip(&faults.moments) {
        if let Some(node) = moment.event.node_names().into_iter().find(|node| !world.nodes.contains_key(*node)) {
            return Err(format!("entry {number} of `faults.moments` names node `{node}`, which does not exist"));
        }
        world.schedule(spec.start_ms.saturating_add(moment.at_ms), ScheduledEvent::WorldEvent(moment.event.clone()));
    }
    world.faults = ActiveFaults::new(&faults, spec.start_ms);
    Ok(())
}

fn add_nodes(world: &mut World, spec: &WorldSpec) -> Result<(), String> {
    match (spec.nodes.len(), &spec.cluster) {
        (0, _) => return Err("a world needs at least one node".to_owned()),
        (1, _) | (_, Some(_)) => {}
        (count, None) => return Err(format!("{count} nodes need a `cluster` name")),
    }
    if let Some(name) = spec.nodes.keys().find(|name| !is_node_name(name)) {
        let shown = name.escape_debug();
        return Err(format!("`{shown}` is not a valid node name: use letters, digits and `-` (not first or last), at most 63 characters"));
    }
    for (number, (name, node)) in (1..).zip(&spec.nodes) {
        let built = build_node(world, name, number, node);
        world.nodes.insert(name.clone(), built);
    }
    Ok(())
}

/// A node's name is a host name; it appears in paths and in task ids.
fn is_node_name(name: &str) -> bool {
    let fits = (1..=63).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    fits && !name.starts_with('-') && !name.ends_with('-')
}

fn build_node(world: &mut World, name: &str, number: u32, spec: &NodeSpec) -> LabNode {
    let mut node = LabNode::new(name, number, world.now_ms.saturating_sub(spec.uptime_s.saturating_mul(1_000)));
    node.cpus = spec.cpus.unwrap_or(node.cpus);
    node.cpu_model = spec.cpu_model.clone().unwrap_or(node.cpu_model);
    node.memory = spec.memory.unwrap_or(node.memory);
    node.memory_used = spec.memory_used;
    node.disk = spec.disk.unwrap_or(node.disk);
    node.ip = spec.ip.clone().unwrap_or(node.ip);
    node.bridges = spec.bridges.as_ref().map_or(node.bridges, |bridges| bridges.iter().cloned().collect());
    node.fingerprint = spec.fingerprint.clone().unwrap_or_else(|| random_fingerprint(world));
    node.cycle_ms = spec.cycle_ms.map_or(node.cycle_ms, NonZeroU64::get);
    node.cycle_offset_ms = spec.cycle_offset_ms;
    node.old_format_rounds = spec.old_rounds;
    node.clock_off_ms = spec.clock_off_s.saturating_mul(1_000);
    node
}

fn random_fingerprint(world: &mut World) -> String {
    let mut text = String::with_capacity(95);
    for index in 0..32 {
        let byte = world.random.number_below(256) as usize;
        if index > 0 {
            text.push(':');
        }
        text.push(char::from(DIGITS[byte / 16 % 16]));
        text.push(char::from(DIGITS[byte % 16]));
    }
    text
}

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

fn add_storages(world: &mut World, spec: &WorldSpec) {
    let local = StorageSpec { path: Some("/var/lib/vz".to_owned()), ..StorageSpec::default() };
    let default = BTreeMap::from([("local".to_owned(), local)]);
    let storages = if spec.storages.is_empty() { &default } else { &spec.storages };
    for (name, storage) in storages {
        world.storages.all.insert(name.clone(), build_storage(name, storage));
    }
}

fn build_storage(name: &str, spec: &StorageSpec) -> LabStorage {
    let content: BTreeSet<String> = spec.content.iter().cloned().collect();
    let usual = || BTreeSet::from(["images".to_owned(), "rootdir".to_owned()]);
    LabStorage {
        kind: spec.kind.clone().unwrap_or_else(|| "dir".to_owned()),
        path: spec.path.clone().or_else(|| Some(format!("/mnt/{name}"))),
        content: if content.is_empty() { usual() } else { content },
        shared: spec.shared,
        nodes: spec.nodes.as_ref().map(|nodes| nodes.iter().cloned().collect()),
        enabled: !spec.disabled,
        total: spec.total.unwrap_or(256 << 30),
        used: None,
        volume_bytes_at_start: 0,
        files: spec.files.iter().cloned().collect(),
        extra: spec.extra.clone(),
    }
}

fn add_access(world: &mut World, spec: &WorldSpec) -> Result<(), String> {
    let access = &mut world.access;
    for (id, user) in &spec.users {
        let (password, expire_s) = (user.password.clone(), user.expire_s);
        access.users.insert(id.clone(), LabUser { enabled: !user.disabled, expire_s, password, ..LabUser::default() });
    }
    for (group, members) in &spec.groups {
        let members = members.iter().cloned().collect();
        access.groups.insert(group.clone(), UserGroup { members, ..UserGroup::default() });
    }
    for (role, privileges) in &spec.roles {
        Arc::make_mut(&mut access.roles).insert(role.clone(), Arc::new(privileges.iter().cloned().collect()));
    }
    for (id, token) in &spec.tokens {
        let owner = id.split('!').next().unwrap_or_default();
        if !id.contains('!') || !access.users.contains_key(owner) {
            return Err(format!("the owner of token `{id}` is not among the users"));
        }
        let (secret, expire_s) = (token.secret.clone(), token.expire_s);
        access.tokens.insert(id.clone(), LabToken::new(id, secret, !token.full, expire_s));
    }
    spec.acl.iter().try_for_each(|entry| add_acl_entry(world, entry))
}

fn add_acl_entry(world: &mut World, entry: &AclSpec) -> Result<(), String> {
    let grantee = match (&entry.user, &entry.group, &entry.token) {
        (Some(user), None, None) => Grantee::User(user.clone()),
        (None, Some(group), None) => Grantee::Group(group.clone()),
        (None, None, Some(token)) => Grantee::Token(token.clone()),
        _ => return Err(format!("the `acl` entry on `{}` needs exactly one of `user`, `group` and `token`", entry.path)),
    };
    if !world.access.roles.contains_key(&entry.role) {
        return Err(format!("there is no role `{}`", entry.role));
    }
    let (path, role) = (entry.path.clone(), entry.role.clone());
    world.access.grants.insert(AclEntry { path, grantee, role, propagate: !entry.here_only });
    Ok(())
}

fn build_section(values: &BTreeMap<String, ScalarSpec>) -> ConfigSection {
    values.iter().map(|(key, value)| (key.clone(), value.to_text())).collect()
}

/// Adds a guest with everything that a create request would have given it.
pub(crate) fn add_guest(world: &mut World, spec: &GuestSpec) -> Result<(), String> {
    let (vmid, kind) = (spec.vmid, spec.kind);
    if !world.nodes.contains_key(&spec.node) {
        return Err(format!("guest {vmid} is on node `{}`, which does not exist", spec.node));
    }
    if world.guests.contains_key(&vmid) {
        return Err(format!("VMID {vmid} is used by two guests"));
    }
    let mut guest = LabGuest::new(vmid, kind, &spec.node);
    guest.config = build_section(&spec.config);
    guest.config.extend(spec.name.clone().map(|name| (kind.name_key().to_owned(), name)));
    guest.pending = build_section(&spec.pending);
    guest.deletions = spec.pending_delete.iter().map(|key| (key.clone(), false)).collect();
    guest.snapshots = spec.snapshots.iter().map(|(name, values)| (name.clone(), build_section(values))).collect();
    guest.raw.clone_from(&spec.raw);
    guest.behaviour = build_behaviour(spec.ignores_shutdown, spec.shutdown_ms, spec.refuses_unplug);
    if !spec.bare {
        complete_guest(world, &mut guest);
    }
    guest.process = build_process(world, spec);
    if guest.is_running() {
        guest.bake_cloud_init();
    }
    add_named_volumes(world, &guest);
    world.guests.put_guest(guest);
    take_snapshots(world, spec)?;
    if spec.template {
        task_work::finish_template(world, vmid);
    }
    Ok(())
}

/// Takes the snapshots of a guest, each at its time.
fn take_snapshots(world: &mut World, spec: &GuestSpec) -> Result<(), String> {
    for taken in &spec.taken {
        let shown = taken.name.escape_debug();
        let is_named = taken.name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
        let exists = world.guests.get(&spec.vmid).is_some_and(|guest| guest.snapshots.contains_key(&taken.name));
        if !is_named || exists {
            return Err(format!(
                "guest {}: a snapshot cannot be named `{shown}`; its name must start with a letter and be used once",
                spec.vmid
            ));
        }
        task_work::take_complete_snapshot(world, spec.vmid, &taken.name, taken.description.as_deref(), taken.ram)
            .map_err(|error| format!("guest {}: snapshot `{shown}`: {error}", spec.vmid))?;
        let taken_s = world.cluster_clock_s().saturating_sub(taken.age_s);
        let section = world.guests.change_guest(spec.vmid).and_then(|guest| guest.snapshots.get_mut(&taken.name));
        if let Some(section) = section {
            section.insert("snaptime".to_owned(), taken_s.to_string());
        }
    }
    Ok(())
}

fn build_behaviour(deaf: bool, shutdown_ms: Option<u64>, holds_cards: bool) -> GuestBehaviour {
    let shutdown_ms = if deaf { None } else { shutdown_ms.or(GuestBehaviour::default().shutdown_ms) };
    GuestBehaviour { shutdown_ms, allows_unplug: !holds_cards }
}

fn build_process(world: &mut World, spec: &GuestSpec) -> Option<GuestProcess> {
    let qemu_state = spec.state.clone().filter(|state| state != "stopped")?;
    let pid = world.nodes.get_mut(&spec.node).map_or(1, LabNode::next_process_id);
    Some(GuestProcess { pid, since_ms: world.now_ms.saturating_sub(spec.uptime_s.saturating_mul(1_000)), qemu_state })
}

fn complete_guest(world: &mut World, guest: &mut LabGuest) {
    let flavour = world.flavour;
    let cards: Vec<String> = guest.config.keys().filter(|key| is_card_key(key)).cloned().collect();
    for key in cards {
        let value = guest.config.get(&key).cloned().unwrap_or_default();
        let value = match guest.kind {
            LabGuestKind::Qemu => config_update::normalize_card(&key, &value, flavour, &mut world.random),
            LabGuestKind::Lxc => config_update::normalize_container_card(&key, &value, flavour, &mut world.random),
        };
        guest.config.insert(key, value);
    }
    let vmid = guest.vmid;
    let marks = [
        // Capped at the default start, so that a world that is started again later has the same guests.
        ("meta", format!("creation-qemu={},ctime={}", flavour.qemu_version(), world.cluster_clock_s().min(DEFAULT_START_MS / 1_000))),
        ("smbios1", format!("uuid={}", world.random.new_uuid())),
        ("vmgenid", world.random.new_uuid()),
    ];
    let container = || {
        [
            ("hostname", format!("CT{vmid}")),
            ("arch", "amd64".to_owned()),
            ("ostype", "debian".to_owned()),
            ("memory", "512".to_owned()),
            ("swap", "512".to_owned()),
            ("unprivileged", "1".to_owned()),
            ("rootfs", format!("local:{vmid}/vm-{vmid}-disk-0.raw,size=4G")),
        ]
    };
    let order = || ("boot", drive::default_boot_order(&guest.config));
    let usual: Vec<(&str, String)> = match guest.kind {
        LabGuestKind::Qemu => marks.into_iter().chain([order()]).collect(),
        LabGuestKind::Lxc => container().into_iter().collect(),
    };
    for (key, value) in usual {
        guest.config.entry(key.to_owned()).or_insert(value);
    }
}

/// Creates the volume of every disk that the guest's config names.
fn add_named_volumes(world: &mut World, guest: &LabGuest) {
    let named = guest.sections().flatten().filter(|(key, _)| is_disk_key(guest.kind, key) || is_unused_key(key));
    for drive in named.map(|(_, value)| DriveValue::parse(value)).filter(|drive| drive.is_owned() && drive.storage().is_some()) {
        let format = drive.file.rsplit_once('.').map_or("raw", |(_, format)| format).to_owned();
        let base = world.storages.base_of_volume(&drive.file);
        let bytes = if drive.is_cloud_init() { CLOUD_INIT_BYTES } else { drive.size_bytes() };
        let volume = StorageVolume { vmid: guest.vmid, bytes, format, base };
        world.storages.volumes.entry(drive.file).or_insert(volume);
    }
}
