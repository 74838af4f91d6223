//! Starts, stops and pauses guests.
//!
//! What the call checks before the task starts is in `api`.

use crate::access::{ApiCaller, ROOT};
use crate::config_update;
use crate::events::NewTask;
use crate::guest::{GuestProcess, LabGuest, LabGuestKind, is_card_key};
use crate::task::{LabTaskState, TaskId};
use crate::task_work::TaskWork;
use crate::world::World;

/// Additional time if a guest that ignores the shutdown is stopped by force.
pub(super) const FORCED_STOP_MS: u64 = 300;

/// A graceful shutdown.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownWork {
    pub(crate) kind: LabGuestKind,
    pub(crate) vmid: u32,
    pub(crate) timeout_ms: u64,
    /// Stop it by force after the timeout.
    pub(crate) force: bool,
    /// Start it again afterwards.
    pub(crate) reboot: bool,
}

pub(super) fn begin_start(world: &mut World, node: &str, kind: LabGuestKind, vmid: u32) -> Result<u64, String> {
    let guest = world.guest_on(node, kind, vmid).ok_or_else(|| kind.missing_config_text(node, vmid))?;
    if guest.is_template() {
        let what = if kind == LabGuestKind::Qemu { "vm" } else { "CT" };
        return Err(format!("you can't start a {what} if it's a template"));
    }
    // During a backup, starting a running guest only resumes it; a hibernated guest wakes up.
    let resumes = guest.is_running() && guest.lock() == Some("backup") && kind == LabGuestKind::Qemu;
    let allowed = guest.lock() == Some("suspended") || (kind == LabGuestKind::Lxc && guest.lock() == Some("mounted"));
    match guest.lock_error() {
        Some(_) if resumes => return Ok(world.task_durations.signal_ms),
        Some(locked) if !allowed => return Err(locked),
        _ if guest.is_running() => return Err(format!("{} {vmid} already running", kind.error_word())),
        _ => {}
    }
    if let Some(error) = too_many_cpus(world, node, guest) {
        // Proxmox applies pending changes before it counts the processors, so they stay applied even if the start fails.
        config_update::apply_pending(world, vmid);
        return Err(error);
    }
    check_bridges(world, node, guest)?;
    config_update::apply_pending(world, vmid);
    Ok(world.task_durations.start_ms)
}

/// The error if a virtual machine has more processors than its node. `vcpus` does not count. Containers are not checked, because their
/// `cores` are only a limit.
fn too_many_cpus(world: &World, node: &str, guest: &LabGuest) -> Option<String> {
    let (config, allowed) = (guest.merge_pending(), world.nodes.get(node)?.cpus);
    let number = |key: &str| config.get(key).and_then(|text| text.parse::<u64>().ok()).filter(|number| *number > 0);
    let wanted = number("sockets").or_else(|| number("smp")).unwrap_or(1).saturating_mul(number("cores").unwrap_or(1));
    (guest.kind == LabGuestKind::Qemu && wanted > allowed).then(|| format!("MAX {allowed} vcpus allowed per VM on this node"))
}

fn check_bridges(world: &World, node: &str, guest: &LabGuest) -> Result<(), String> {
    let bridges = world.nodes.get(node).map(|node| &node.bridges);
    let cards = guest.merge_pending().into_iter().filter(|(key, _)| is_card_key(key));
    let mut named = cards.filter_map(|(_, card)| card.split(',').find_map(|part| part.strip_prefix("bridge=").map(str::to_owned)));
    let missing = named.find(|bridge| bridges.is_none_or(|known| !known.contains(bridge)));
    missing.map_or(Ok(()), |bridge| Err(format!("bridge '{bridge}' does not exist")))
}

pub(super) fn finish_start(world: &mut World, vmid: u32) -> Result<(), String> {
    let now_ms = world.now_ms;
    let Some(node) = world.guests.get(&vmid).map(|guest| guest.node.clone()) else { return Ok(()) };
    let pid = world.nodes.get_mut(&node).map_or(1, crate::node::LabNode::next_process_id);
    if let Some(process) = world.guests.change_process(vmid).filter(|process| process.is_none()) {
        *process = Some(GuestProcess { pid, since_ms: now_ms, qemu_state: "running".to_owned() });
        world.guests.bake_cloud_init(vmid);
        let is_suspended = world.guests.get(&vmid).is_some_and(|guest| guest.lock() == Some("suspended"));
        if let Some(guest) = is_suspended.then(|| world.guests.change_guest(vmid)).flatten() {
            guest.config.remove("lock");
            guest.config.remove("vmstate");
        }
    }
    Ok(())
}

/// The guest to stop; `None` if it is already stopped.
fn find_running(world: &World, id: TaskId, kind: LabGuestKind, vmid: u32) -> Result<Option<&LabGuest>, String> {
    let node = world.tasks.get(id).map(|task| task.node.as_str()).unwrap_or_default();
    let not_found = || format!("unable to find configuration file for VM {vmid} on node '{node}'");
    let guest = world.guest_on(node, kind, vmid).ok_or_else(not_found)?;
    if !guest.is_running() {
        return Ok(None);
    }
    match guest.lock_error() {
        Some(locked) if guest.lock() != Some("mounted") => Err(locked),
        _ => Ok(Some(guest)),
    }
}

pub(super) fn begin_stop(world: &mut World, id: TaskId, kind: LabGuestKind, vmid: u32, overrules: bool) -> Result<u64, String> {
    if overrules {
        log_overruled_shutdowns(world, id, vmid);
    }
    let stop_ms = world.task_durations.stop_ms;
    Ok(find_running(world, id, kind, vmid)?.map_or(0, |_| stop_ms))
}

/// A stop that overrules shutdown tasks lists them in its log; the call has already ended them.
fn log_overruled_shutdowns(world: &mut World, id: TaskId, vmid: u32) {
    let interrupted = |task: &crate::task::LabTask| {
        task.about == vmid.to_string()
            && task.kind.ends_with("shutdown")
            && matches!(&task.state, LabTaskState::Ended { status, listed_ms, .. } if status == "received interrupt" && *listed_ms == world.now_ms)
    };
    let names: Vec<String> = world.tasks.all.values().filter(|task| interrupted(task)).map(|task| task.upid.clone()).collect();
    if !names.is_empty() {
        world.tasks.log_line(id, format!("overruled qmshutdown tasks: {}", names.join(", ")));
    }
}

pub(super) fn begin_shutdown(world: &mut World, id: TaskId, shutdown: &ShutdownWork) -> Result<u64, String> {
    let Some(guest) = find_running(world, id, shutdown.kind, shutdown.vmid)? else { return Ok(0) };
    let listens_ms = guest.behaviour.shutdown_ms.filter(|needed_ms| *needed_ms <= shutdown.timeout_ms && !guest.is_paused());
    match (listens_ms, shutdown.force) {
        (Some(needed_ms), _) => Ok(needed_ms),
        (None, true) => Ok(shutdown.timeout_ms.saturating_add(FORCED_STOP_MS)),
        (None, false) => Ok(shutdown.timeout_ms),
    }
}

pub(super) fn finish_shutdown(world: &mut World, id: TaskId, shutdown: &ShutdownWork) -> Result<(), String> {
    let vmid = shutdown.vmid;
    let Some(guest) = find_running(world, id, shutdown.kind, vmid)? else { return Ok(()) };
    let listens = guest.behaviour.shutdown_ms.is_some_and(|needed_ms| needed_ms <= shutdown.timeout_ms) && !guest.is_paused();
    if !listens && !shutdown.force {
        return Err(shutdown_timeout_text(shutdown.kind).to_owned());
    }
    if !listens && shutdown.kind == LabGuestKind::Qemu {
        world.tasks.log_line(id, "VM still running - terminating now with SIGTERM");
    }
    finish_stop(world, id, shutdown.kind, vmid)?;
    if shutdown.reboot {
        restart_guest(world, shutdown.kind, vmid);
    }
    Ok(())
}

/// The error of a guest that did not shut down in time.
pub(super) fn shutdown_timeout_text(kind: LabGuestKind) -> &'static str {
    match kind {
        LabGuestKind::Qemu => "VM quit/powerdown failed - got timeout",
        LabGuestKind::Lxc => "container did not stop",
    }
}

/// The node itself starts a rebooted guest, after the reboot task has ended.
fn restart_guest(world: &mut World, kind: LabGuestKind, vmid: u32) {
    let Some(node) = world.guests.get(&vmid).map(|guest| guest.node.clone()) else { return };
    let name = format!("{}start", kind.task_prefix());
    world.start_task(NewTask::holding_guest(&node, &ApiCaller::for_user(ROOT), &name, vmid, TaskWork::Start { kind, vmid }));
}

/// Ends the process and applies pending changes, unless the cluster file system is read-only.
pub(super) fn finish_stop(world: &mut World, id: TaskId, kind: LabGuestKind, vmid: u32) -> Result<(), String> {
    let Some(process) = world.guests.change_process(vmid).filter(|process| process.is_some()) else { return Ok(()) };
    *process = None;
    let has_pending = |guest: &&LabGuest| !guest.pending.is_empty() || !guest.deletions.is_empty();
    let Some(node) = world.guests.get(&vmid).filter(has_pending).map(|guest| guest.node.clone()) else { return Ok(()) };
    if world.is_quorate(&node) {
        config_update::apply_pending(world, vmid);
        return Ok(());
    }
    let pid = world.tasks.get(id).map(|task| task.pid);
    let line = config_update::read_only_text(world, &node, kind, vmid, pid);
    world.tasks.log_line(id, line);
    Ok(())
}

/// Reset, pause and hibernate need a guest that is not locked.
pub(super) fn begin_signal(world: &World, node: &str, vmid: u32) -> Result<u64, String> {
    let guest =
        world.guests.get(&vmid).filter(|guest| guest.node == node).ok_or_else(|| LabGuestKind::Qemu.missing_config_text(node, vmid))?;
    match guest.lock_error() {
        Some(locked) if guest.lock() != Some("backup") => Err(locked),
        _ => Ok(world.task_durations.signal_ms),
    }
}

pub(super) fn begin_resume(world: &World, vmid: u32) -> Result<u64, String> {
    match world.guests.get(&vmid) {
        Some(guest) if guest.lock().is_some_and(|lock| lock != "backup" && lock != "suspended") => {
            Err(guest.lock_error().unwrap_or_default())
        }
        _ => Ok(world.task_durations.signal_ms),
    }
}

/// Sets the state that the process reports.
pub(super) fn set_process_state(world: &mut World, vmid: u32, state: &str) -> Result<(), String> {
    if let Some(process) = world.guests.change_process(vmid).and_then(Option::as_mut) {
        state.clone_into(&mut process.qemu_state);
    }
    Ok(())
}

/// Suspends to disk: the process ends and a lock stays.
pub(super) fn finish_hibernate(world: &mut World, vmid: u32) -> Result<(), String> {
    if let Some(guest) = world.guests.change_guest(vmid) {
        guest.process = None;
        guest.config.insert("lock".to_owned(), "suspended".to_owned());
    }
    Ok(())
}
