//! External events: nodes fail, guests vanish, people change things without the API.
//!
//! Faults on single requests and tasks are in `fault`.

use serde::Deserialize;

use crate::config_update;
use crate::guest::{GuestProcess, LabGuest, LabGuestKind};
use crate::ha::HaResource;
use crate::node::ServiceState;
use crate::route;
use crate::task::{LabTask, TaskId};
use crate::task_work::{self, clone};
use crate::wire::TlsIdentity;
use crate::world::World;
use crate::world_spec::GuestSpec;

/// A service of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeService {
    /// The proxy that other nodes and clients talk to.
    Proxy,
    /// The privileged daemon behind it.
    Daemon,
    /// The cluster file system.
    Files,
    /// pvestatd, which reports guests and storages to the other nodes. Whether it is down or hung makes no difference to a client: the
    /// reports become stale.
    Statd,
}

/// An external event.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum WorldEvent {
    /// A node loses power; its guests and tasks end without a log line.
    NodeDown(String),
    /// A node boots; guests with `onboot` start.
    NodeUp(String),
    /// These nodes are cut off from the rest and keep running.
    Isolate(Vec<String>),
    /// All nodes reach each other again.
    Heal,
    /// A service of a node refuses connections.
    ServiceDown(String, NodeService),
    /// A service of a node accepts requests and does not answer.
    ServiceHung(String, NodeService),
    /// A service of a node works again. It executes the requests that it accepted while hung.
    ServiceUp(String, NodeService),
    /// Every response of a node takes this many milliseconds longer; from 30 seconds on, the proxy times out first.
    Slow(String, u64),
    /// A guest disappears from every list and path, as if its config file were deleted.
    Vanish(u32),
    /// A vanished guest is visible again.
    Reappear(u32),
    /// A guest is missing from lists, and `nextid` offers its VMID, but its own path works, as when the list was read incompletely.
    Unlist(u32),
    /// A guest is listed again.
    Relist(u32),
    /// A node's list of guests is empty without an error, as while its cluster file system restarts.
    Blind(String),
    /// A node's list of guests is complete again.
    Seeing(String),
    /// The VMID now belongs to another guest with a new name and new birth marks.
    Recycle(u32),
    /// The VMID now belongs to another guest with the same name and new birth marks; it is stopped.
    Replace(u32),
    /// A guest gets this config lock, as from a backup.
    Lock(u32, String),
    /// The config lock is removed.
    Unlock(u32),
    /// A process outside Proxmox holds a guest's lock file; the guest's config does not show it.
    HoldLockFile(u32),
    /// The lock file is released.
    FreeLockFile(u32),
    /// A key of a guest's config is changed outside the API; an empty value removes it.
    Set(u32, String, String),
    /// A key of a guest's config becomes pending outside the API; an empty value drops the pending change.
    SetPending(u32, String, String),
    /// A guest's process is started outside the API.
    Start(u32),
    /// A guest's process ends by itself.
    Stop(u32),
    /// QEMU reports another state, such as `io-error`.
    Say(u32, String),
    /// A guest is moved to another node outside the API.
    Move(u32, String),
    /// A guest keeps a snapshot that was never finished.
    PrepareSnapshot(u32, String),
    /// A person takes a snapshot; the RAM of a running virtual machine is not saved.
    TakeSnapshot(u32, String),
    /// A person deletes a snapshot.
    DeleteSnapshot(u32, String),
    /// A person deletes a snapshot and takes another one of the same name.
    RetakeSnapshot(u32, String),
    /// A person creates a guest; nothing happens if its VMID is taken or its node does not exist.
    CreateGuest(Box<GuestSpec>),
    /// A person deletes a guest with its disks, also if it is running, locked or protected.
    DeleteGuest(u32),
    /// A person deletes the guest with that VMID, if there is one, and creates this one.
    ReuseId(Box<GuestSpec>),
    /// A person grows a disk to this size, such as `32G`.
    GrowDisk(u32, String, String),
    /// A storage has this many used bytes from now on.
    FillStorage(String, u64),
    /// The clocks of all nodes jump by this many seconds.
    ClockJump(i64),
    /// The clock of one node jumps by this many seconds.
    NodeClockJump(String, i64),
    /// A node reports another number of processors, as after a hardware change. Running guests keep running.
    Cpus(String, u64),
    /// All access control entries on a path are removed.
    Revoke(String),
    /// The access control entries that were removed from a path are restored.
    Regrant(String),
    /// The running task of a guest is killed and writes no last log line.
    KillTask(u32),
    /// A guest becomes managed by HA with this requested state, such as `started`.
    Manage(u32, String),
    /// A node presents another certificate, or none.
    Show(String, TlsIdentity),
}

impl WorldEvent {
    /// The nodes that the event names. They must exist at the start, unlike guests, which can be created later.
    pub(crate) fn node_names(&self) -> Vec<&str> {
        match self {
            Self::NodeDown(name) | Self::NodeUp(name) | Self::Blind(name) | Self::Seeing(name) => vec![name],
            Self::ServiceDown(name, _) | Self::ServiceHung(name, _) | Self::ServiceUp(name, _) => vec![name],
            Self::Slow(name, _) | Self::Show(name, _) | Self::Move(_, name) | Self::NodeClockJump(name, _) | Self::Cpus(name, _) => {
                vec![name]
            }
            Self::CreateGuest(spec) | Self::ReuseId(spec) => vec![&spec.node],
            Self::Isolate(names) => names.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }
}

pub(crate) fn apply_world_event(world: &mut World, event: WorldEvent) {
    // A node that becomes reachable again may broadcast at once.
    world.no_broadcast_until_ms = 0;
    match event {
        WorldEvent::NodeDown(name) => power_off_node(world, &name),
        WorldEvent::NodeUp(name) => power_on_node(world, &name),
        WorldEvent::Isolate(names) => isolate_nodes(world, &names),
        WorldEvent::Heal => world.nodes.values_mut().for_each(|node| node.network_partition = 0),
        WorldEvent::ServiceDown(name, part) => set_service_state(world, &name, part, ServiceState::Down),
        WorldEvent::ServiceHung(name, part) => set_service_state(world, &name, part, ServiceState::Hung),
        WorldEvent::ServiceUp(name, part) => set_service_state(world, &name, part, ServiceState::Up),
        WorldEvent::Slow(name, slow_ms) => world.nodes.get_mut(&name).map_or((), |node| node.slow_ms = slow_ms),
        WorldEvent::Vanish(vmid) => drop(world.hidden.insert(vmid)),
        WorldEvent::Reappear(vmid) => drop(world.hidden.remove(&vmid)),
        WorldEvent::Unlist(vmid) => drop(world.unlisted.insert(vmid)),
        WorldEvent::Relist(vmid) => drop(world.unlisted.remove(&vmid)),
        WorldEvent::Blind(name) => world.nodes.get_mut(&name).map_or((), |node| node.lists_no_guests = true),
        WorldEvent::Seeing(name) => world.nodes.get_mut(&name).map_or((), |node| node.lists_no_guests = false),
        WorldEvent::Recycle(vmid) => recycle_vmid(world, vmid, Some(format!("other-{vmid}"))),
        WorldEvent::Replace(vmid) => recycle_vmid(world, vmid, None),
        WorldEvent::Lock(vmid, lock) => set_config_key(world, vmid, "lock", &lock),
        WorldEvent::Unlock(vmid) => set_config_key(world, vmid, "lock", ""),
        WorldEvent::HoldLockFile(vmid) => drop(world.tasks.lock_files.insert(vmid)),
        WorldEvent::FreeLockFile(vmid) => world.free_lock_file(vmid),
        WorldEvent::Set(vmid, key, value) => set_config_key(world, vmid, &key, &value),
        WorldEvent::SetPending(vmid, key, value) => set_pending_key(world, vmid, key, value),
        WorldEvent::Start(vmid) => start_guest(world, vmid),
        WorldEvent::Stop(vmid) => stop_guest(world, vmid),
        WorldEvent::Say(vmid, qemu_state) => {
            if let Some(Some(process)) = world.guests.change_process(vmid) {
                process.qemu_state = qemu_state;
            }
        }
        WorldEvent::Move(vmid, node) => move_guest(world, vmid, &node),
        WorldEvent::PrepareSnapshot(vmid, name) => prepare_snapshot(world, vmid, &name),
        WorldEvent::TakeSnapshot(vmid, name) => take_snapshot(world, vmid, &name),
        WorldEvent::DeleteSnapshot(vmid, name) => task_work::remove_snapshot(world, vmid, &name),
        WorldEvent::RetakeSnapshot(vmid, name) => {
            task_work::remove_snapshot(world, vmid, &name);
            take_snapshot(world, vmid, &name);
        }
        WorldEvent::CreateGuest(spec) => create_guest(world, &spec),
        WorldEvent::DeleteGuest(vmid) => delete_guest(world, vmid),
        WorldEvent::ReuseId(spec) => {
            delete_guest(world, spec.vmid);
            create_guest(world, &spec);
        }
        // A disk that does not exist does not grow.
        WorldEvent::GrowDisk(vmid, key, size) => drop(task_work::finish_resize(world, vmid, &key, &size)),
        WorldEvent::FillStorage(name, used) => world.storages.set_usage(&name, used),
        WorldEvent::ClockJump(seconds) => jump_clock(&mut world.clock_skew_ms, seconds),
        WorldEvent::Cpus(name, cpus) => world.nodes.get_mut(&name).map_or((), |node| node.cpus = cpus),
        WorldEvent::NodeClockJump(name, seconds) => {
            world.nodes.get_mut(&name).map_or((), |node| jump_clock(&mut node.clock_off_ms, seconds))
        }
        WorldEvent::Revoke(path) => world.access.revoke_path(&path),
        WorldEvent::Regrant(path) => world.access.regrant_path(&path),
        WorldEvent::KillTask(vmid) => kill_guest_task(world, vmid),
        WorldEvent::Manage(vmid, state) => add_to_ha(world, vmid, state),
        WorldEvent::Show(name, tls_identity) => world.nodes.get_mut(&name).map_or((), |node| node.tls_identity = tls_identity),
    }
}

fn jump_clock(clock_off_ms: &mut i64, seconds: i64) {
    *clock_off_ms = clock_off_ms.saturating_add(seconds.saturating_mul(1_000));
}

fn power_off_node(world: &mut World, name: &str) {
    let Some(node) = world.nodes.get_mut(name) else { return };
    node.online = false;
    node.backlog.clear();
    let running = |task: &LabTask| task.node == name && !task.is_over();
    let ids: Vec<TaskId> = world.tasks.all.iter().filter(|(_, task)| running(task)).map(|(id, _)| *id).collect();
    for id in ids {
        world.kill_task(id);
    }
    let vmids: Vec<u32> = world.guests.values().filter(|guest| guest.node == name).map(|guest| guest.vmid).collect();
    for vmid in vmids {
        if let Some(process) = world.guests.change_process(vmid) {
            *process = None;
        }
    }
}

fn power_on_node(world: &mut World, name: &str) {
    let now_ms = world.now_ms;
    let Some(node) = world.nodes.get_mut(name).filter(|node| !node.online) else { return };
    (node.online, node.boot_ms) = (true, now_ms);
    let guests: Vec<(u32, bool)> =
        world.guests.values().filter(|guest| guest.node == name).map(|guest| (guest.vmid, guest.is_enabled("onboot"))).collect();
    for (vmid, boots) in guests {
        world.guests.mark_changed(vmid);
        if boots {
            start_guest(world, vmid);
        }
    }
}

fn isolate_nodes(world: &mut World, names: &[String]) {
    let partition = 1 + world.nodes.values().map(|node| node.network_partition).max().unwrap_or(0);
    for node in world.nodes.values_mut().filter(|node| names.contains(&node.name)) {
        node.network_partition = partition;
    }
}

fn set_service_state(world: &mut World, name: &str, part: NodeService, state: ServiceState) {
    let now_ms = world.now_ms;
    let Some(node) = world.nodes.get_mut(name) else { return };
    let field = match part {
        NodeService::Proxy => &mut node.proxy,
        NodeService::Daemon => &mut node.daemon,
        NodeService::Files => &mut node.cluster_files,
        NodeService::Statd => &mut node.statd,
    };
    if std::mem::replace(field, state) == state {
        return;
    }
    let wakes = part == NodeService::Daemon && state == ServiceState::Up;
    let backlog = if wakes { std::mem::take(&mut node.backlog) } else { Vec::new() };
    if part == NodeService::Files {
        // A restart clears what the node knew; it receives nothing before the next broadcast.
        (node.cluster_files_requests, node.broadcast_ms) = (0, node.last_broadcast_ms(now_ms));
        world.views.forget_node(name);
    }
    for request in backlog {
        route::run_late_request(world, name, &request);
    }
}

/// Gives the VMID to another guest, with its own name or that of the old one.
fn recycle_vmid(world: &mut World, vmid: u32, name: Option<String>) {
    let Some(old) = world.guests.remove_guest(vmid) else { return };
    world.views.freeze_guest(vmid);
    let mut guest = LabGuest::new(vmid, old.kind, &old.node);
    guest.config = old.config;
    if name.is_none() {
        // The new guest comes from the same template, so it behaves like the old one.
        guest.behaviour = old.behaviour;
    }
    guest.config.extend(name.map(|name| (old.kind.name_key().to_owned(), name)));
    if old.kind == LabGuestKind::Qemu {
        let meta = format!("creation-qemu={},ctime={}", world.flavour.qemu_version(), world.cluster_clock_s());
        guest.config.insert("meta".to_owned(), meta);
        guest.config.insert("smbios1".to_owned(), format!("uuid={}", world.random.new_uuid()));
        guest.config.insert("vmgenid".to_owned(), world.random.new_uuid());
    }
    clone::renew_macs(world, old.kind, &mut guest.config);
    world.guests.put_guest(guest);
}

fn set_config_key(world: &mut World, vmid: u32, key: &str, value: &str) {
    // Without a change, keep what was cached for the guest.
    if world.guests.get(&vmid).is_some_and(|guest| guest.config.get(key).map_or("", String::as_str) == value) {
        return;
    }
    let Some(guest) = world.guests.change_guest(vmid) else { return };
    match value {
        "" => guest.config.remove(key),
        value => guest.config.insert(key.to_owned(), value.to_owned()),
    };
}

fn set_pending_key(world: &mut World, vmid: u32, key: String, value: String) {
    let Some(guest) = world.guests.change_guest(vmid) else { return };
    match value.as_str() {
        "" => guest.pending.remove(&key),
        _ => guest.pending.insert(key, value),
    };
}

fn start_guest(world: &mut World, vmid: u32) {
    let now_ms = world.now_ms;
    let Some(name) = world.guests.get(&vmid).map(|guest| guest.node.clone()) else { return };
    let pid = world.nodes.get_mut(&name).map_or(1, crate::node::LabNode::next_process_id);
    // Every start applies pending changes, also one outside the API.
    config_update::apply_pending(world, vmid);
    if let Some(process) = world.guests.change_process(vmid) {
        *process = Some(GuestProcess { pid, since_ms: now_ms, qemu_state: "running".to_owned() });
        world.guests.bake_cloud_init(vmid);
    }
}

fn stop_guest(world: &mut World, vmid: u32) {
    if let Some(process) = world.guests.change_process(vmid) {
        *process = None;
    }
    config_update::apply_pending(world, vmid);
}

fn move_guest(world: &mut World, vmid: u32, node: &str) {
    world.views.freeze_guest(vmid);
    if let Some(guest) = world.guests.change_guest(vmid) {
        node.clone_into(&mut guest.node);
    }
}

fn prepare_snapshot(world: &mut World, vmid: u32, name: &str) {
    let now_s = world.cluster_clock_s();
    let Some(guest) = world.guests.change_guest(vmid) else { return };
    let mut values = guest.config.clone();
    values.insert("snaptime".to_owned(), now_s.to_string());
    values.insert("snapstate".to_owned(), "prepare".to_owned());
    values.insert("vmstate".to_owned(), format!("local:{vmid}/vm-{vmid}-state-{name}.raw"));
    guest.snapshots.insert(name.to_owned(), values);
    guest.config.insert("lock".to_owned(), "snapshot".to_owned());
}

/// A clone does not hold its guest, but its task is about it.
fn kill_guest_task(world: &mut World, vmid: u32) {
    let about = vmid.to_string();
    let is_running = |task: &LabTask| task.about == about && !task.is_over();
    let running = || world.tasks.all.iter().find(|(_, task)| is_running(task)).map(|(id, _)| *id);
    if let Some(id) = world.tasks.holders.get(&vmid).copied().or_else(running) {
        world.kill_task(id);
    }
}

/// A name that is taken is not used again, as by a command that fails.
fn take_snapshot(world: &mut World, vmid: u32, name: &str) {
    if world.guests.get(&vmid).is_some_and(|guest| !guest.snapshots.contains_key(name)) {
        // Without RAM state nothing can fail.
        let _ = task_work::take_complete_snapshot(world, vmid, name, None, false);
    }
}

/// The guest exists at once. A spec that does not fit the world changes nothing, as a command that fails.
fn create_guest(world: &mut World, spec: &GuestSpec) {
    let _ = crate::world_spec::add_guest(world, spec);
}

fn delete_guest(world: &mut World, vmid: u32) {
    task_work::destroy_guest(world, vmid, true);
}

fn add_to_ha(world: &mut World, vmid: u32, state: String) {
    let Some(sid) = world.guests.get(&vmid).map(LabGuest::ha_service_id) else { return };
    world.add_ha(&sid, HaResource { state, ..HaResource::default() });
}
