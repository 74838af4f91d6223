//! From a setting to a world, or to the first thing in it that cannot be.
//!
//! What never enters here: defaults of the API; a guest is completed as a create would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::access::{Grant, Grantee, Group, Pool, Token, User};
use crate::digest::sha1;
use crate::engine::Event;
use crate::fault::Faults;
use crate::guest::drive::{self, Drive};
use crate::guest::{Guest, Kind, Manner, Process, Section, is_card_key, is_disk_key, is_unused_key};
use crate::ha::HaResource;
use crate::node::Node;
use crate::storage::{Storage, Volume};
use crate::update;
use crate::world::{RootCa, World};

use super::{AclSetting, GuestSetting, NodeSetting, START_MS, Scalar, Setting, StorageSetting};

/// More guests than that and the numbers would no longer be those of a lab.
const GUESTS_MAX: usize = 10_000;

/// The world that a setting describes.
pub(crate) fn build(setting: &Setting) -> Result<World, String> {
    if setting.start_ms > START_MS_MAX {
        return Err(format!(
            "`start_ms` is {}, which leaves no time to live in; it is milliseconds since 1970, at most {START_MS_MAX}",
            setting.start_ms
        ));
    }
    if setting.guests.len() > GUESTS_MAX {
        return Err(format!("there are {} guests, and a lab has room for {GUESTS_MAX}", setting.guests.len()));
    }
    let mut world = World::empty(setting.flavour, setting.seed, setting.start_ms);
    world.cluster.clone_from(&setting.cluster);
    world.pace = setting.pace.clone();
    let new = setting.new_guests;
    world.new_manner = manner(new.deaf, new.shutdown_ms, new.holds_cards);
    world.root_ca = root_ca(setting);
    nodes(&mut world, setting)?;
    storages(&mut world, setting);
    people(&mut world, setting)?;
    for (key, value) in &setting.options {
        world.options.set(key, value).map_err(|text| format!("option `{}`: {}", key.escape_debug(), text.escape_debug()))?;
    }
    for guest in &setting.guests {
        add_guest(&mut world, guest)?;
    }
    for (name, pool) in &setting.pools {
        let (guests, storages) = (pool.guests.iter().copied().collect(), pool.storages.iter().cloned().collect());
        world.access.pools.insert(name.clone(), Pool { comment: None, guests, storages });
    }
    for (sid, ha) in &setting.ha {
        let state = ha.state.clone().unwrap_or_else(|| "started".to_owned());
        world.add_ha(sid, HaResource { state, fixed: ha.believed.is_some(), believed: ha.believed.clone(), ..HaResource::default() });
    }
    faults(&mut world, setting)?;
    Ok(world)
}

/// It draws nothing from the seed's chance, of which everything else has its share.
fn root_ca(setting: &Setting) -> RootCa {
    let names: Vec<&str> = setting.cluster.as_deref().into_iter().chain(setting.nodes.keys().map(String::as_str)).collect();
    let of = |part: &str| sha1(&format!("{part} {} {}", setting.seed, names.join(" ")));
    let digits = format!("{}{}", of("root"), of("ca")).to_ascii_uppercase();
    let pairs: Vec<&str> = (0..32).filter_map(|pair| digits.get(2 * pair..2 * pair + 2)).collect();
    let unit = of("unit");
    let part = |from: usize, to: usize| unit.get(from..to).unwrap_or_default();
    RootCa {
        fingerprint: setting.root_ca.clone().unwrap_or_else(|| pairs.join(":")),
        unit: [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-"),
        since_s: (setting.start_ms / 1_000).saturating_sub(30 * 86_400),
    }
}

/// The end of the year 9999: there is no way to write a later time, and every sum of a world's times stays within its numbers.
const START_MS_MAX: u64 = 253_402_300_799_999;

fn faults(world: &mut World, setting: &Setting) -> Result<(), String> {
    let faults = setting.faults.spelled_out(setting);
    for (number, moment) in (1..).zip(&faults.moments) {
        if let Some(node) = moment.act.nodes().into_iter().find(|node| !world.nodes.contains_key(*node)) {
            return Err(format!("moment {number} of the faults is about node `{node}`, which does not exist"));
        }
        world.schedule(setting.start_ms.saturating_add(moment.at_ms), Event::Fault(moment.act.clone()));
    }
    world.faults = Faults::new(&faults, setting.start_ms);
    Ok(())
}

fn nodes(world: &mut World, setting: &Setting) -> Result<(), String> {
    match (setting.nodes.len(), &setting.cluster) {
        (0, _) => return Err("a world needs a node".to_owned()),
        (1, _) | (_, Some(_)) => {}
        (count, None) => return Err(format!("{count} nodes need a `cluster` name")),
    }
    if let Some(name) = setting.nodes.keys().find(|name| !is_node_name(name)) {
        let shown = name.escape_debug();
        return Err(format!("`{shown}` is not the name of a node: letters, digits and `-`, neither first nor last, at most 63"));
    }
    for (number, (name, node)) in (1..).zip(&setting.nodes) {
        let built = node_of(world, name, number, node);
        world.nodes.insert(name.clone(), built);
    }
    Ok(())
}

/// A node's name is its host's, and stands in paths and in the ids of tasks.
fn is_node_name(name: &str) -> bool {
    let fits = (1..=63).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    fits && !name.starts_with('-') && !name.ends_with('-')
}

fn node_of(world: &mut World, name: &str, number: u32, setting: &NodeSetting) -> Node {
    let mut node = Node::new(name, number, world.now_ms.saturating_sub(setting.uptime_s.saturating_mul(1_000)));
    node.cpus = setting.cpus.unwrap_or(node.cpus);
    node.memory = setting.memory.unwrap_or(node.memory);
    node.disk = setting.disk.unwrap_or(node.disk);
    node.ip = setting.ip.clone().unwrap_or(node.ip);
    node.bridges = setting.bridges.as_ref().map_or(node.bridges, |bridges| bridges.iter().cloned().collect());
    node.fingerprint = setting.fingerprint.clone().unwrap_or_else(|| fingerprint(world));
    node.cycle_offset_ms = setting.cycle_offset_ms;
    node.old_rounds = setting.old_rounds;
    node.clock_off_ms = setting.clock_off_s.saturating_mul(1_000);
    node
}

fn fingerprint(world: &mut World) -> String {
    let mut text = String::with_capacity(95);
    for place in 0..32 {
        let byte = world.random.below(256) as usize;
        if place > 0 {
            text.push(':');
        }
        text.push(char::from(DIGITS[byte / 16 % 16]));
        text.push(char::from(DIGITS[byte % 16]));
    }
    text
}

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

fn storages(world: &mut World, setting: &Setting) {
    let local = StorageSetting { path: Some("/var/lib/vz".to_owned()), ..StorageSetting::default() };
    let default = BTreeMap::from([("local".to_owned(), local)]);
    let given = if setting.storages.is_empty() { &default } else { &setting.storages };
    for (name, storage) in given {
        world.storages.all.insert(name.clone(), storage_of(name, storage));
    }
}

fn storage_of(name: &str, setting: &StorageSetting) -> Storage {
    let content: BTreeSet<String> = setting.content.iter().cloned().collect();
    let usual = || BTreeSet::from(["images".to_owned(), "rootdir".to_owned()]);
    Storage {
        kind: setting.kind.clone().unwrap_or_else(|| "dir".to_owned()),
        path: setting.path.clone().or_else(|| Some(format!("/mnt/{name}"))),
        content: if content.is_empty() { usual() } else { content },
        shared: setting.shared,
        nodes: setting.nodes.as_ref().map(|nodes| nodes.iter().cloned().collect()),
        enabled: true,
        total: setting.total.unwrap_or(256 << 30),
        files: setting.files.iter().cloned().collect(),
        extra: setting.extra.clone(),
    }
}

fn people(world: &mut World, setting: &Setting) -> Result<(), String> {
    let access = &mut world.access;
    for (id, user) in &setting.users {
        let (password, expire_s) = (user.password.clone(), user.expire_s);
        access.users.insert(id.clone(), User { enabled: !user.disabled, expire_s, password, ..User::default() });
    }
    for (group, members) in &setting.groups {
        let members = members.iter().cloned().collect();
        access.groups.insert(group.clone(), Group { members, ..Group::default() });
    }
    for (role, privileges) in &setting.roles {
        Arc::make_mut(&mut access.roles).insert(role.clone(), Arc::new(privileges.iter().cloned().collect()));
    }
    for (id, token) in &setting.tokens {
        let owner = id.split('!').next().unwrap_or_default();
        if !id.contains('!') || !access.users.contains_key(owner) {
            return Err(format!("token `{id}` has no owner among the users"));
        }
        let (secret, expire_s) = (token.secret.clone(), token.expire_s);
        access.tokens.insert(id.clone(), Token::new(id, secret, !token.full, expire_s));
    }
    setting.acl.iter().try_for_each(|entry| grant(world, entry))
}

fn grant(world: &mut World, entry: &AclSetting) -> Result<(), String> {
    let grantee = match (&entry.user, &entry.group, &entry.token) {
        (Some(user), None, None) => Grantee::User(user.clone()),
        (None, Some(group), None) => Grantee::Group(group.clone()),
        (None, None, Some(token)) => Grantee::Token(token.clone()),
        _ => return Err(format!("the entry on `{}` needs one of user, group and token", entry.path)),
    };
    if !world.access.roles.contains_key(&entry.role) {
        return Err(format!("there is no role `{}`", entry.role));
    }
    let (path, role) = (entry.path.clone(), entry.role.clone());
    world.access.grants.insert(Grant { path, grantee, role, propagate: !entry.here_only });
    Ok(())
}

fn section(values: &BTreeMap<String, Scalar>) -> Section {
    values.iter().map(|(key, value)| (key.clone(), value.text())).collect()
}

/// Put a guest into the world, with everything that a create would have given it.
pub(crate) fn add_guest(world: &mut World, setting: &GuestSetting) -> Result<(), String> {
    let (vmid, kind) = (setting.vmid, setting.kind);
    if !world.nodes.contains_key(&setting.node) {
        return Err(format!("guest {vmid} is on node `{}`, which does not exist", setting.node));
    }
    if world.guests.contains_key(&vmid) {
        return Err(format!("there are two guests {vmid}"));
    }
    let mut guest = Guest::new(vmid, kind, &setting.node);
    guest.main = section(&setting.config);
    guest.main.extend(setting.name.clone().map(|name| (kind.name_key().to_owned(), name)));
    guest.pending = section(&setting.pending);
    guest.deletions = setting.pending_delete.iter().map(|key| (key.clone(), false)).collect();
    guest.snapshots = setting.snapshots.iter().map(|(name, values)| (name.clone(), section(values))).collect();
    guest.raw.clone_from(&setting.raw);
    guest.manner = manner(setting.deaf, setting.shutdown_ms, setting.holds_cards);
    if !setting.bare {
        complete(world, &mut guest);
    }
    guest.process = process(world, setting);
    volumes(world, &guest);
    world.guests.put(guest);
    Ok(())
}

fn manner(deaf: bool, shutdown_ms: Option<u64>, holds_cards: bool) -> Manner {
    let shutdown_ms = if deaf { None } else { shutdown_ms.or(Manner::default().shutdown_ms) };
    Manner { shutdown_ms, releases_cards: !holds_cards }
}

fn process(world: &mut World, setting: &GuestSetting) -> Option<Process> {
    let word = setting.state.clone().filter(|state| state != "stopped")?;
    let pid = world.nodes.get_mut(&setting.node).map_or(1, Node::pid);
    Some(Process { pid, since_ms: world.now_ms.saturating_sub(setting.uptime_s.saturating_mul(1_000)), word })
}

fn complete(world: &mut World, guest: &mut Guest) {
    let flavour = world.flavour;
    let cards: Vec<String> = guest.main.keys().filter(|key| is_card_key(key)).cloned().collect();
    for key in cards {
        let value = guest.main.get(&key).cloned().unwrap_or_default();
        let value = match guest.kind {
            Kind::Qemu => update::card(&key, &value, flavour, &mut world.random),
            Kind::Lxc => update::container_card(&key, &value, flavour, &mut world.random),
        };
        guest.main.insert(key, value);
    }
    let vmid = guest.vmid;
    let marks = [
        // Whatever the time is now: a world that is begun anew has the same guests.
        ("meta", format!("creation-qemu={},ctime={}", flavour.qemu(), world.wall_s().min(START_MS / 1_000))),
        ("smbios1", format!("uuid={}", world.random.uuid())),
        ("vmgenid", world.random.uuid()),
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
    let order = || ("boot", drive::default_order(&guest.main));
    let usual: Vec<(&str, String)> = match guest.kind {
        Kind::Qemu => marks.into_iter().chain([order()]).collect(),
        Kind::Lxc => container().into_iter().collect(),
    };
    for (key, value) in usual {
        guest.main.entry(key.to_owned()).or_insert(value);
    }
}

/// Every disk that the guest names is there.
fn volumes(world: &mut World, guest: &Guest) {
    let named = guest.sections().flatten().filter(|(key, _)| is_disk_key(guest.kind, key) || is_unused_key(key));
    for drive in named.map(|(_, value)| Drive::parse(value)).filter(|drive| !drive.is_cdrom() && drive.storage().is_some()) {
        let format = drive.file.rsplit_once('.').map_or("raw", |(_, format)| format).to_owned();
        let volume = Volume { vmid: guest.vmid, bytes: drive.bytes(), format, base: None };
        world.storages.volumes.entry(drive.file).or_insert(volume);
    }
}
