//! Draws a world: first converged guests, then drift in some fields, then disturbances of some rows.
//!
//! Disturbances are rare enough that most guests pass every check but one, so that each check is the deciding one in many worlds.

use serde_json::{Map, Value, json};

use super::values::{HOSTILE_TEXTS, default_of, observed_values, to_declared_form, wanted_values};
use super::{Rng, TestWorld};
use crate::guest::{GuestKind, Vmid};
use crate::normalize::{Field, FieldRole, TABLE};
use crate::policy::{MachineIdentity, MachineMark, Rules};

type JsonObject = Map<String, Value>;

/// A guest while it is drawn: its declaration, its row, and the wanted values of its config.
struct RandomGuest {
    vmid: u32,
    kind: GuestKind,
    desired: JsonObject,
    row: JsonObject,
    wanted: Vec<(Field, Value)>,
}

/// How many problems a world has. In a calm world plans are long, and guests wait for each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorldMood {
    Calm,
    /// Calm, and most guests are stopped and declared as running.
    MostlyStarting,
    /// Calm, and most guests are running and declared as stopped.
    MostlyStopping,
    Disturbed,
}

pub(super) fn random_world(rng: &mut Rng, count: usize) -> TestWorld {
    let mood = rng
        .pick(&[WorldMood::Calm, WorldMood::MostlyStarting, WorldMood::MostlyStopping, WorldMood::Disturbed, WorldMood::Disturbed])
        .copied()
        .unwrap_or(WorldMood::Calm);
    let ids = random_ids(rng, count);
    let nodes = random_nodes(rng, mood);
    let mut guests: Vec<RandomGuest> = ids.iter().map(|vmid| random_guest(rng, *vmid, &nodes, mood)).collect();
    add_dependencies(rng, &mut guests);
    let rules = random_rules(rng, &ids);
    let desired: Vec<Value> = guests.iter().map(|guest| Value::Object(guest.desired.clone())).collect();
    let omission_odds = if mood == WorldMood::Disturbed { 25 } else { 100 };
    let mut rows: Vec<Value> = guests.into_iter().filter(|_| !rng.one_in(omission_odds)).map(|guest| Value::Object(guest.row)).collect();
    rows.extend(foreign_rows(rng, &ids, &nodes));
    TestWorld {
        desired: json!({ "version": 1, "environment": "lab", "guests": desired }),
        observation: random_observation(rng, &nodes, rows),
        rules,
    }
}

/// Ids with gaps, so that foreign rows can be between them.
fn random_ids(rng: &mut Rng, count: usize) -> Vec<u32> {
    let mut next = if rng.one_in(20) { Vmid::MAX / 2 } else { Vmid::MIN };
    let mut ids: Vec<u32> = Vec::with_capacity(count);
    for _ in 0..count {
        next += u32::try_from(rng.below(3)).unwrap_or(0);
        ids.push(next);
        next += 1;
    }
    ids
}

fn random_nodes(rng: &mut Rng, mood: WorldMood) -> Vec<Value> {
    let offline = if mood == WorldMood::Disturbed && rng.one_in(3) { rng.below(4) } else { 9 };
    (0..1 + rng.below(4)).map(|index| json!({ "name": format!("pve{index}"), "online": index != offline })).collect()
}

fn random_node(rng: &mut Rng, nodes: &[Value]) -> Value {
    rng.pick(nodes).and_then(|node| node.get("name")).cloned().unwrap_or_default()
}

/// The UUID of a virtual machine.
fn uuid_of(vmid: u32) -> String {
    format!("1c0d6f6e-5a0e-4a55-9d3c-{vmid:012x}")
}

fn random_rules(rng: &mut Rng, ids: &[u32]) -> Rules {
    if rng.one_in(2) {
        return Rules::default();
    }
    let listed = ids.iter().filter(|_| rng.one_in(6)).filter_map(|id| Vmid::new(u64::from(*id))).collect();
    let names = if rng.one_in(3) { vec!["Core-".to_owned()] } else { vec![] };
    let tags = if rng.one_in(2) { vec!["keep".to_owned()] } else { vec![] };
    let rules = Rules::new(listed, names, tags);
    match rng.pick(ids) {
        // A machine that recognises its guest, and one that cannot read its own UUID.
        Some(vmid) if rng.one_in(3) => rules.with_machine(match vmid % 3 {
            0 => MachineIdentity::default().with_unreadable([MachineMark::FirmwareUuid]),
            _ => MachineIdentity::new([], [uuid_of(*vmid)]),
        }),
        _ => rules,
    }
}

fn random_observation(rng: &mut Rng, nodes: &[Value], rows: Vec<Value>) -> Value {
    let mut reading = JsonObject::new();
    reading.insert("schema".into(), json!("converger.observation/1"));
    reading.insert("environment".into(), json!("lab"));
    reading.insert("complete".into(), json!(!rng.one_in(30)));
    reading.insert("quorate".into(), json!(!rng.one_in(30)));
    reading.insert("nodes".into(), json!(nodes));
    reading.insert("guests".into(), json!(rows));
    let extra = [("source", json!("proxmox")), ("taken_at", json!("2026-11-15T12:00:00Z")), ("unmanaged", json!(rng.below(5)))];
    reading.extend(extra.into_iter().filter(|_| rng.one_in(2)).map(|(key, value)| (key.to_owned(), value)));
    Value::Object(reading)
}

fn random_guest(rng: &mut Rng, vmid: u32, nodes: &[Value], mood: WorldMood) -> RandomGuest {
    let kind = if rng.with_chance(65) { GuestKind::Qemu } else { GuestKind::Lxc };
    let mut guest = RandomGuest { vmid, kind, desired: JsonObject::new(), row: JsonObject::new(), wanted: Vec::new() };
    let name = random_name(rng, vmid);
    guest.set_desired("vmid", json!(vmid));
    guest.set_desired("kind", json!(kind.word()));
    guest.set_observed("vmid", json!(vmid));
    guest.set_observed("kind", json!(kind.word()));
    guest.set_observed("node", random_node(rng, nodes));
    guest.set_observed("name", json!(name));
    add_identity(rng, &mut guest, &name);
    add_run_state(rng, &mut guest, mood);
    add_config(rng, &mut guest);
    add_guards(rng, &mut guest);
    add_informational_members(rng, &mut guest);
    let disturbances = match (mood, rng.below(10)) {
        (WorldMood::Disturbed, 9) => 2,
        (WorldMood::Disturbed, 5..=8) | (_, 9) => 1,
        _ => 0,
    };
    for _ in 0..disturbances {
        disturb_row(rng, &mut guest);
    }
    guest
}

impl RandomGuest {
    fn set_desired(&mut self, key: &str, value: Value) {
        self.desired.insert(key.into(), value);
    }

    fn set_observed(&mut self, key: &str, value: Value) {
        self.row.insert(key.into(), value);
    }

    fn remove_observed(&mut self, key: &str) {
        self.row.remove(key);
    }

    fn wanted_field(&self, field: Field) -> Option<&Value> {
        self.wanted.iter().find(|(own, _)| *own == field).map(|(_, value)| value)
    }
}

/// Most names have no meaning, some protect, and some only look as if they did.
fn random_name(rng: &mut Rng, vmid: u32) -> String {
    let stem = match rng.below(12) {
        0 => rng.pick_word(&["prod-db", "PROD-db", "Prod-web"]),
        1 => rng.pick_word(&["preprod-web", "prod", "production", "prodigy.example", "x-prod-db"]),
        2 => rng.pick_word(&["core-switch", "CORE-router"]),
        _ => rng.pick_word(&["web", "db", "dns", "cache", "Mail.example", "3com"]),
    };
    format!("{stem}-{vmid}")
}

fn add_identity(rng: &mut Rng, guest: &mut RandomGuest, name: &str) {
    let marks = match guest.kind {
        GuestKind::Qemu => [("uuid", json!(uuid_of(guest.vmid))), ("ctime", json!(1_700_000_000_u64 + rng.below(9)))],
        GuestKind::Lxc => [("rootfs", json!(format!("local-lvm:vm-{}-disk-0", guest.vmid))), ("mac", json!("BC:24:11:00:00:01"))],
    };
    let seen: JsonObject = marks.iter().filter(|_| !rng.one_in(5)).map(|(key, mark)| ((*key).to_owned(), mark.clone())).collect();
    let pinned: JsonObject = seen.iter().filter(|_| !rng.one_in(4)).map(|(key, mark)| (key.clone(), mark.clone())).collect();
    if !rng.one_in(6) {
        guest.set_observed("identity", Value::Object(seen));
    }
    let is_pinned = !pinned.is_empty() && rng.one_in(5);
    if is_pinned {
        guest.set_desired("identity", Value::Object(pinned));
    }
    if !is_pinned || !rng.one_in(2) {
        guest.set_desired("name", json!(name));
    }
}

fn add_run_state(rng: &mut Rng, guest: &mut RandomGuest, mood: WorldMood) {
    let (wanted, seen) = match mood {
        WorldMood::MostlyStarting if !rng.one_in(5) => ("running", "stopped"),
        WorldMood::MostlyStopping if !rng.one_in(5) => ("stopped", "running"),
        _ => (rng.pick_word(&["running", "running", "stopped", "stopped", ""]), rng.pick_word(&["running", "stopped"])),
    };
    let seen = if wanted.is_empty() || rng.one_in(2) { seen } else { wanted };
    guest.set_observed("status", json!(seen));
    if !wanted.is_empty() {
        guest.set_desired("state", json!(wanted));
    }
    for (key, values) in [("restart", ["when-needed", "never"]), ("stop", ["hard", "shutdown"]), ("stop_timeout", ["90s", "5m"])] {
        if rng.one_in(2) {
            guest.set_desired(key, json!(rng.pick_word(&values)));
        }
    }
}

/// Declared config and effective values: mostly equal, in one of the possible forms.
fn add_config(rng: &mut Rng, guest: &mut RandomGuest) {
    let kind = guest.kind;
    let declares = !rng.one_in(5);
    let drifts = rng.one_in(2);
    let mut config = JsonObject::new();
    let mut tags = None;
    for rule in TABLE.iter().filter(|rule| rule.kind == kind) {
        let field = rule.field;
        let is_wanted = rule.role == FieldRole::Managed && declares && rng.with_chance(30);
        let wanted = if is_wanted { Some(wanted_value(rng, kind, field)) } else { None };
        let seen = match &wanted {
            Some(wanted) if !drifts || rng.one_in(2) => effective_value(rng, kind, field, wanted),
            Some(_) => rng.pick(&observed_values(field)).cloned(),
            None => rng.one_in(3).then(|| rng.pick(&observed_values(field)).cloned().unwrap_or_default()),
        };
        match field {
            Field::Tags => tags = seen,
            _ => config.extend(seen.map(|seen| (field.word().to_owned(), seen))),
        }
        guest.wanted.extend(wanted.map(|wanted| (field, wanted)));
    }
    guest.wanted = drop_oversized_balloon(std::mem::take(&mut guest.wanted));
    if !guest.wanted.is_empty() {
        let settings: JsonObject =
            guest.wanted.iter().map(|(field, value)| (field.word().to_owned(), to_declared_form(*field, value, rng))).collect();
        guest.set_desired("config", Value::Object(settings));
    }
    if !guest.wanted.is_empty() || rng.one_in(2) {
        guest.set_observed("config", Value::Object(config));
    }
    guest.set_observed("tags", tags.unwrap_or_else(|| json!([])));
}

/// A wanted value. `null` (unset) is drawn more often than other values.
fn wanted_value(rng: &mut Rng, kind: GuestKind, field: Field) -> Value {
    let values = wanted_values(kind, field);
    let last = values.last().filter(|value| value.is_null() && rng.one_in(4));
    last.or_else(|| rng.pick(&values)).cloned().unwrap_or_default()
}

/// How a declared value reads back: as written or, if it is the default, possibly as an absent key.
fn effective_value(rng: &mut Rng, kind: GuestKind, field: Field, wanted: &Value) -> Option<Value> {
    let default = default_of(kind, field);
    if wanted.is_null() {
        return default.filter(|_| rng.one_in(2));
    }
    let is_default = default.as_ref() == Some(wanted);
    (!is_default || rng.one_in(2)).then(|| wanted.clone())
}

/// Removes a declared `balloon` above a declared `memory`, which the parser rejects.
fn drop_oversized_balloon(mut wanted: Vec<(Field, Value)>) -> Vec<(Field, Value)> {
    let number = |field: Field| wanted.iter().find(|(own, _)| *own == field).and_then(|(_, value)| value.as_u64());
    if let (Some(least), Some(most)) = (number(Field::Balloon), number(Field::Memory))
        && least > most
    {
        wanted.retain(|(field, _)| *field != Field::Balloon);
    }
    wanted
}

/// Guards that do not prevent a step.
fn add_guards(rng: &mut Rng, guest: &mut RandomGuest) {
    guest.set_observed("lock", Value::Null);
    let ha = if rng.one_in(12) { json!({ "state": rng.pick_word(&["ignored", "started", "stopped"]) }) } else { Value::Null };
    guest.set_observed("ha", ha);
    guest.set_observed("template", json!(false));
    guest.set_observed("protection", json!(rng.one_in(20)));
    let pending = if rng.one_in(5) { random_pending(rng, guest) } else { vec![] };
    guest.set_observed("pending", json!(pending));
}

/// Pending changes of declared fields: with the declared value, or with another one.
fn random_pending(rng: &mut Rng, guest: &RandomGuest) -> Vec<Value> {
    let declared = guest.wanted.iter().filter(|(field, _)| *field != Field::Tags);
    let entries = declared.filter_map(|(field, wanted)| {
        let value = match rng.below(4) {
            0 => rng.pick(&observed_values(*field)).cloned().unwrap_or_default(),
            1 | 2 => wanted.clone(),
            _ => return None,
        };
        Some(if value.is_null() { json!({ "key": field.word(), "delete": true }) } else { json!({ "key": field.word(), "value": value }) })
    });
    entries.collect()
}

/// Members that are for people and do not affect decisions.
fn add_informational_members(rng: &mut Rng, guest: &mut RandomGuest) {
    let extras = [
        ("run_state", guest.row.get("status").filter(|status| *status != "unknown").cloned().unwrap_or_else(|| json!("paused"))),
        ("cpus", json!(rng.below(64))),
        ("maxmem", json!(rng.below(1 << 40))),
        ("source", json!(rng.pick_word(&["live", "cache"]))),
        ("digest", json!(format!("{:040x}", rng.next_u64()))),
    ];
    for (key, value) in extras {
        if rng.one_in(4) {
            guest.set_observed(key, value);
        }
    }
}

/// One problem that prevents a step or hides the state of the guest.
fn disturb_row(rng: &mut Rng, guest: &mut RandomGuest) {
    match rng.below(16) {
        0 => make_unknown(rng, guest),
        1 => {
            let other = if guest.kind == GuestKind::Qemu { GuestKind::Lxc } else { GuestKind::Qemu };
            guest.set_observed("kind", json!(other.word()));
            for key in ["config", "identity", "pending"] {
                guest.remove_observed(key);
            }
        }
        2 => {
            let other = if rng.one_in(2) { rng.pick_word(HOSTILE_TEXTS) } else { rng.pick_word(&["other", "prod-other", "PROD-db", ""]) };
            guest.set_observed("name", json!(other));
        }
        3 => guest.set_observed("identity", json!({})),
        4 => guest.remove_observed("identity"),
        5 => guest.remove_observed("config"),
        6 | 7 => guest.remove_observed(rng.pick_word(&["lock", "ha", "template", "protection", "tags", "pending"])),
        8 => guest.set_observed(
            "lock",
            json!(if rng.one_in(4) { rng.pick_word(HOSTILE_TEXTS) } else { rng.pick_word(&["backup", "migrate", ""]) }),
        ),
        9 => guest.set_observed("template", json!(true)),
        10 => {
            let state = json!({ "state": rng.pick_word(&["started", "migrate", "relocate", "fence", "recovery", "error"]) });
            guest.set_observed("ha", if rng.one_in(5) { json!({}) } else { state });
        }
        11 => add_tag(rng, guest, &["converger-hold", "Converger-Hold"]),
        12 => add_tag(rng, guest, &["prod", "PROD", "keep", "production"]),
        13 => guest.set_observed("protection", json!(true)),
        14 => add_foreign_pending(rng, guest),
        _ => shrink_memory(guest),
    }
}

fn make_unknown(rng: &mut Rng, guest: &mut RandomGuest) {
    guest.set_observed("status", json!("unknown"));
    for key in ["lock", "ha", "template", "protection", "tags", "pending", "config", "identity", "name"] {
        if rng.one_in(2) {
            guest.remove_observed(key);
        }
    }
    if rng.one_in(2) {
        guest.set_observed("cause", json!(rng.pick_word(&["node-offline", "timeout", "permission"])));
    }
}

fn add_tag(rng: &mut Rng, guest: &mut RandomGuest, tags: &[&str]) {
    let tag = if rng.one_in(6) { rng.pick_word(&["Web", "prod.", "_prod", "prod+x", "PRODUCTION"]) } else { rng.pick_word(tags) };
    if let Some(Value::Array(own)) = guest.row.get_mut("tags") {
        own.push(json!(tag));
    }
}

/// A pending change of a key that is not declared.
fn add_foreign_pending(rng: &mut Rng, guest: &mut RandomGuest) {
    let undeclared =
        TABLE.iter().find(|rule| rule.kind == guest.kind && guest.wanted_field(rule.field).is_none() && rule.field != Field::Tags);
    let entry = match undeclared {
        _ if rng.one_in(5) => match guest.kind {
            GuestKind::Qemu => json!({ "key": "swap", "value": 512 }),
            GuestKind::Lxc => json!({ "key": "sockets", "delete": true }),
        },
        Some(rule) if rng.one_in(2) => match rng.pick(&observed_values(rule.field)) {
            Some(value) if rng.one_in(2) => json!({ "key": rule.field.word(), "value": value }),
            _ => json!({ "key": rule.field.word(), "delete": true }),
        },
        _ => {
            json!({ "key": if rng.one_in(4) { rng.pick_word(HOSTILE_TEXTS) } else { rng.pick_word(&["net0", "scsi0", "hostname", "args"]) } })
        }
    };
    if let Some(Value::Array(pending)) = guest.row.get_mut("pending")
        && pending.iter().all(|other| other.get("key") != entry.get("key"))
    {
        pending.push(entry);
    }
}

/// Memory that is too small for a declared balloon.
fn shrink_memory(guest: &mut RandomGuest) {
    if guest.wanted_field(Field::Memory).is_none()
        && let Some(Value::Object(config)) = guest.row.get_mut("config")
    {
        config.insert("memory".into(), json!(64));
    }
}

/// Adds `after` without cycles: each guest comes after some of those before it in a random order, which is not the order of ids.
fn add_dependencies(rng: &mut Rng, guests: &mut [RandomGuest]) {
    let mut order: Vec<u32> = guests.iter().map(|guest| guest.vmid).collect();
    rng.shuffle(&mut order);
    for guest in guests {
        if rng.one_in(2) {
            continue;
        }
        let earlier = order.iter().position(|vmid| *vmid == guest.vmid).unwrap_or(0);
        let mut after: Vec<u32> = order.iter().take(earlier).filter(|_| rng.one_in(2)).take(3).copied().collect();
        rng.shuffle(&mut after);
        if !after.is_empty() {
            guest.set_desired("after", json!(after));
        }
    }
}

/// Rows that are not declared, between and after the declared ones.
fn foreign_rows(rng: &mut Rng, ids: &[u32], nodes: &[Value]) -> Vec<Value> {
    let count = rng.below(3);
    let mut rows: Vec<Value> = Vec::new();
    let first = ids.first().copied().unwrap_or(Vmid::MIN);
    let last = ids.last().copied().unwrap_or(Vmid::MIN);
    for vmid in (first..=last.saturating_add(3)).filter(|vmid| ids.binary_search(vmid).is_err()) {
        if rows.len() as u64 >= count {
            break;
        }
        let kind = if rng.one_in(2) { GuestKind::Qemu } else { GuestKind::Lxc };
        let name = if rng.one_in(2) { rng.pick_word(HOSTILE_TEXTS) } else { "somebody-elses" };
        rows.push(json!({ "vmid": vmid, "kind": kind.word(), "name": name, "node": random_node(rng, nodes), "status": rng.pick_word(&["running", "stopped", "unknown"]) }));
    }
    rows
}
