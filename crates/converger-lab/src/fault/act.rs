//! What happens to the world at a moment, by somebody else's hand: nodes fail, guests vanish, people
//! change things beside the API.
//!
//! What never enters here: faults on single requests and tasks.

use serde::Deserialize;

use crate::guest::{Guest, Kind, Process};
use crate::ha::HaResource;
use crate::node::Service;
use crate::route;
use crate::task::TaskId;
use crate::update;
use crate::wire::Face;
use crate::work::clone;
use crate::world::World;

/// A service of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The proxy that other nodes and clients talk to.
    Proxy,
    /// The privileged daemon behind it.
    Daemon,
    /// The cluster file system.
    Files,
    /// pvestatd, which reports guests and storages to the other nodes. Dead or hung makes no difference to a client: no report is renewed.
    Statd,
}

/// Something that happens to the world.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Act {
    /// A node loses its power: guests and tasks on it are gone without a word.
    NodeDown(String),
    /// A node comes back; guests with `onboot` start.
    NodeUp(String),
    /// Nodes are cut off from the rest and run on.
    Isolate(Vec<String>),
    /// The network is whole again.
    Heal,
    /// A service of a node refuses.
    ServiceDown(String, Part),
    /// A service of a node takes requests and does not answer.
    ServiceHung(String, Part),
    /// A service of a node works again. What it had taken is carried out.
    ServiceUp(String, Part),
    /// Every answer of a node takes so many milliseconds longer; from 30 seconds on the proxy gives up first.
    Slow(String, u64),
    /// A guest disappears from every list and path, as if its file were gone.
    Vanish(u32),
    /// And is there again.
    Reappear(u32),
    /// A guest is missing in the lists and free for `nextid`, but there under its own path: the list was read badly.
    Unlist(u32),
    /// And is listed again.
    Relist(u32),
    /// A node's list of guests is empty: its cluster file system is just restarting, and nothing says so.
    Blind(String),
    /// And it sees again.
    Seeing(String),
    /// The number now belongs to another guest: new name, new marks of birth.
    Recycle(u32),
    /// The number now belongs to another guest of the same name: new marks of birth, and it is stopped.
    Replace(u32),
    /// A guest is locked, as by a backup.
    Lock(u32, String),
    /// The lock is gone.
    Unlock(u32),
    /// A process outside of Proxmox holds the lock file of a guest; nothing in its config says so.
    HoldLockFile(u32),
    /// The lock file is free again.
    FreeLockFile(u32),
    /// A key of a guest's config is changed by hand; an empty value removes it.
    Set(u32, String, String),
    /// A key of a guest's config becomes pending by hand; an empty value takes back what waits.
    SetPending(u32, String, String),
    /// A guest's process starts by somebody else's hand.
    Start(u32),
    /// A guest's process ends by itself.
    Stop(u32),
    /// QEMU says another word about its state: `io-error`.
    Say(u32, String),
    /// Somebody moved a guest.
    Move(u32, String),
    /// A snapshot was begun and never finished.
    PrepareSnapshot(u32, String),
    /// The clocks of all nodes jump by so many seconds.
    ClockJump(i64),
    /// The clock of one node does.
    NodeClockJump(String, i64),
    /// A node has so many processors from now on, as with other hardware. Guests that run go on.
    Cpus(String, u64),
    /// All entries on a path are taken away.
    Revoke(String),
    /// What was taken away on a path is there again.
    Regrant(String),
    /// The running task of a guest is killed without a word.
    KillTask(u32),
    /// High availability takes a guest over, and wants it so: `started`.
    Manage(u32, String),
    /// A node shows another certificate, or none at all.
    Show(String, Face),
}

impl Act {
    /// The nodes that it is about. None can come later, as a guest can.
    pub(crate) fn nodes(&self) -> Vec<&str> {
        match self {
            Self::NodeDown(name) | Self::NodeUp(name) | Self::Blind(name) | Self::Seeing(name) => vec![name],
            Self::ServiceDown(name, _) | Self::ServiceHung(name, _) | Self::ServiceUp(name, _) => vec![name],
            Self::Slow(name, _) | Self::Show(name, _) | Self::Move(_, name) | Self::NodeClockJump(name, _) | Self::Cpus(name, _) => {
                vec![name]
            }
            Self::Isolate(names) => names.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }
}

/// Let it happen.
pub(crate) fn carry_out(world: &mut World, act: Act) {
    // A node that is there again may have something to tell at once.
    world.quiet_until_ms = 0;
    match act {
        Act::NodeDown(name) => node_down(world, &name),
        Act::NodeUp(name) => node_up(world, &name),
        Act::Isolate(names) => isolate(world, &names),
        Act::Heal => world.nodes.values_mut().for_each(|node| node.island = 0),
        Act::ServiceDown(name, part) => service(world, &name, part, Service::Down),
        Act::ServiceHung(name, part) => service(world, &name, part, Service::Hung),
        Act::ServiceUp(name, part) => service(world, &name, part, Service::Up),
        Act::Slow(name, slow_ms) => world.nodes.get_mut(&name).map_or((), |node| node.slow_ms = slow_ms),
        Act::Vanish(vmid) => drop(world.hidden.insert(vmid)),
        Act::Reappear(vmid) => drop(world.hidden.remove(&vmid)),
        Act::Unlist(vmid) => drop(world.unlisted.insert(vmid)),
        Act::Relist(vmid) => drop(world.unlisted.remove(&vmid)),
        Act::Blind(name) => world.nodes.get_mut(&name).map_or((), |node| node.blind = true),
        Act::Seeing(name) => world.nodes.get_mut(&name).map_or((), |node| node.blind = false),
        Act::Recycle(vmid) => recycle(world, vmid, Some(format!("other-{vmid}"))),
        Act::Replace(vmid) => recycle(world, vmid, None),
        Act::Lock(vmid, lock) => set(world, vmid, "lock", &lock),
        Act::Unlock(vmid) => set(world, vmid, "lock", ""),
        Act::HoldLockFile(vmid) => drop(world.tasks.lock_files.insert(vmid)),
        Act::FreeLockFile(vmid) => world.free_lock_file(vmid),
        Act::Set(vmid, key, value) => set(world, vmid, &key, &value),
        Act::SetPending(vmid, key, value) => set_pending(world, vmid, key, value),
        Act::Start(vmid) => start(world, vmid),
        Act::Stop(vmid) => stop(world, vmid),
        Act::Say(vmid, word) => drop(world.guests.change_process(vmid).and_then(Option::as_mut).map(|process| process.word = word)),
        Act::Move(vmid, node) => move_guest(world, vmid, &node),
        Act::PrepareSnapshot(vmid, name) => prepare_snapshot(world, vmid, &name),
        Act::ClockJump(seconds) => jump(&mut world.skew_ms, seconds),
        Act::Cpus(name, cpus) => world.nodes.get_mut(&name).map_or((), |node| node.cpus = cpus),
        Act::NodeClockJump(name, seconds) => world.nodes.get_mut(&name).map_or((), |node| jump(&mut node.clock_off_ms, seconds)),
        Act::Revoke(path) => world.access.revoke(&path),
        Act::Regrant(path) => world.access.regrant(&path),
        Act::KillTask(vmid) => kill_task(world, vmid),
        Act::Manage(vmid, state) => manage(world, vmid, state),
        Act::Show(name, face) => world.nodes.get_mut(&name).map_or((), |node| node.face = face),
    }
}

fn jump(clock_off_ms: &mut i64, seconds: i64) {
    *clock_off_ms = clock_off_ms.saturating_add(seconds.saturating_mul(1_000));
}

fn node_down(world: &mut World, name: &str) {
    let Some(node) = world.nodes.get_mut(name) else { return };
    node.online = false;
    node.backlog.clear();
    let running = |task: &crate::task::Task| task.node == name && !task.is_over();
    let ids: Vec<TaskId> = world.tasks.all.iter().filter(|(_, task)| running(task)).map(|(id, _)| *id).collect();
    for id in ids {
        world.kill(id);
    }
    let here: Vec<u32> = world.guests.values().filter(|guest| guest.node == name).map(|guest| guest.vmid).collect();
    for vmid in here {
        if let Some(process) = world.guests.change_process(vmid) {
            *process = None;
        }
    }
}

fn node_up(world: &mut World, name: &str) {
    let now_ms = world.now_ms;
    let Some(node) = world.nodes.get_mut(name).filter(|node| !node.online) else { return };
    (node.online, node.boot_ms) = (true, now_ms);
    let here: Vec<(u32, bool)> =
        world.guests.values().filter(|guest| guest.node == name).map(|guest| (guest.vmid, guest.is_on("onboot"))).collect();
    for (vmid, boots) in here {
        world.guests.tell_anew(vmid);
        if boots {
            start(world, vmid);
        }
    }
}

fn isolate(world: &mut World, names: &[String]) {
    let island = 1 + world.nodes.values().map(|node| node.island).max().unwrap_or(0);
    for node in world.nodes.values_mut().filter(|node| names.contains(&node.name)) {
        node.island = island;
    }
}

fn service(world: &mut World, name: &str, part: Part, state: Service) {
    let now_ms = world.now_ms;
    let Some(node) = world.nodes.get_mut(name) else { return };
    let field = match part {
        Part::Proxy => &mut node.proxy,
        Part::Daemon => &mut node.daemon,
        Part::Files => &mut node.files,
        Part::Statd => &mut node.statd,
    };
    if std::mem::replace(field, state) == state {
        return;
    }
    let wakes = part == Part::Daemon && state == Service::Up;
    let backlog = if wakes { std::mem::take(&mut node.backlog) } else { Vec::new() };
    if part == Part::Files {
        // What it knew is lost, and it hears nothing before the next round.
        (node.files_asked, node.told_ms) = (0, node.last_cycle(now_ms));
        world.views.forget(name);
    }
    for request in backlog {
        route::carry_out(world, name, &request);
    }
}

/// Another guest has the number from now on, under a name of its own or that of the one before.
fn recycle(world: &mut World, vmid: u32, name: Option<String>) {
    let Some(old) = world.guests.remove(vmid) else { return };
    world.views.freeze(vmid);
    let mut guest = Guest::new(vmid, old.kind, &old.node);
    guest.main = old.main;
    if name.is_none() {
        // Made anew from the same template: its own system does as the first one did.
        guest.manner = old.manner;
    }
    guest.main.extend(name.map(|name| (old.kind.name_key().to_owned(), name)));
    if old.kind == Kind::Qemu {
        let meta = format!("creation-qemu={},ctime={}", world.flavour.qemu(), world.wall_s());
        guest.main.insert("meta".to_owned(), meta);
        guest.main.insert("smbios1".to_owned(), format!("uuid={}", world.random.uuid()));
        guest.main.insert("vmgenid".to_owned(), world.random.uuid());
    }
    clone::renew_addresses(world, old.kind, &mut guest.main);
    world.guests.put(guest);
}

fn set(world: &mut World, vmid: u32, key: &str, value: &str) {
    // What is so already leaves all that was made of the guest as it is.
    if world.guests.get(&vmid).is_some_and(|guest| guest.main.get(key).map_or("", String::as_str) == value) {
        return;
    }
    let Some(guest) = world.guests.change(vmid) else { return };
    match value {
        "" => guest.main.remove(key),
        value => guest.main.insert(key.to_owned(), value.to_owned()),
    };
}

fn set_pending(world: &mut World, vmid: u32, key: String, value: String) {
    let Some(guest) = world.guests.change(vmid) else { return };
    match value.as_str() {
        "" => guest.pending.remove(&key),
        _ => guest.pending.insert(key, value),
    };
}

fn start(world: &mut World, vmid: u32) {
    let now_ms = world.now_ms;
    let Some(name) = world.guests.get(&vmid).map(|guest| guest.node.clone()) else { return };
    let pid = world.nodes.get_mut(&name).map_or(1, crate::node::Node::pid);
    // A start applies what is pending, whoever starts.
    update::apply_pending(world, vmid);
    if let Some(process) = world.guests.change_process(vmid) {
        *process = Some(Process { pid, since_ms: now_ms, word: "running".to_owned() });
    }
}

fn stop(world: &mut World, vmid: u32) {
    if let Some(process) = world.guests.change_process(vmid) {
        *process = None;
    }
    update::apply_pending(world, vmid);
}

fn move_guest(world: &mut World, vmid: u32, node: &str) {
    world.views.freeze(vmid);
    if let Some(guest) = world.guests.change(vmid) {
        node.clone_into(&mut guest.node);
    }
}

fn prepare_snapshot(world: &mut World, vmid: u32, name: &str) {
    let now_s = world.wall_s();
    let Some(guest) = world.guests.change(vmid) else { return };
    let mut values = guest.main.clone();
    values.insert("snaptime".to_owned(), now_s.to_string());
    values.insert("snapstate".to_owned(), "prepare".to_owned());
    values.insert("vmstate".to_owned(), format!("local:{vmid}/vm-{vmid}-state-{name}.raw"));
    guest.snapshots.insert(name.to_owned(), values);
    guest.main.insert("lock".to_owned(), "snapshot".to_owned());
}

fn kill_task(world: &mut World, vmid: u32) {
    if let Some(id) = world.tasks.holders.get(&vmid).copied() {
        world.kill(id);
    }
}

fn manage(world: &mut World, vmid: u32, state: String) {
    let Some(sid) = world.guests.get(&vmid).map(Guest::service) else { return };
    world.add_ha(&sid, HaResource { state, ..HaResource::default() });
}
