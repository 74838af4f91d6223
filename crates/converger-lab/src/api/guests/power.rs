//! `status/start` and its siblings: what a call refuses at once, and the task that it forks.
//!
//! A 200 here proves nothing: most refusals come from the task. What never enters here: those.

use crate::api::{Call, need_quorum};
use crate::engine::Fork;
use crate::guest::{Guest, Kind};
use crate::respond::{Data, Fail};
use crate::work::{Shutdown, Work};
use crate::world::World;

/// An orderly shutdown waits so long where nobody says how long.
const SHUTDOWN_S: u64 = 60;

/// Options that exist for Proxmox's own use.
const INTERNAL: &[&str] = &["skiplock", "keepActive", "migratedfrom", "stateuri", "migration_type", "migration_network"];

fn holding(world: &mut World, call: &Call, name: &str, work: Work) -> Result<Data, Fail> {
    let kind = format!("{}{name}", call.kind.prefix());
    Ok(world.fork(Fork::holding(&call.node, &call.who, &kind, call.vmid(), work)).into())
}

/// The guest, wherever a missing one is a matter of the task.
fn guest<'a>(world: &'a World, call: &Call) -> Option<&'a Guest> {
    world.guest_on(&call.node, call.kind, call.vmid())
}

fn is_running(world: &World, call: &Call) -> bool {
    guest(world, call).is_some_and(Guest::is_running)
}

/// Under high availability a call only states what is wanted.
fn managed(world: &mut World, call: &Call, name: &str, state: &str) -> Option<Data> {
    let vmid = call.vmid();
    let sid = format!("{}:{vmid}", call.kind.service());
    if !world.ha.is_managed(&sid) {
        return None;
    }
    let work = Work::Manage { kind: call.kind, sid, state: state.to_owned() };
    Some(world.fork(Fork::beside(&call.node, &call.who, name, vmid, work)).into())
}

pub(super) fn start(world: &mut World, call: &Call) -> Result<Data, Fail> {
    call.root_only(INTERNAL)?;
    if call.kind == Kind::Lxc && is_running(world, call) {
        return Err(Fail::died(format!("CT {} already running", call.vmid())));
    }
    need_quorum(world, &call.node)?;
    if let Some(data) = managed(world, call, "hastart", "started") {
        return Ok(data);
    }
    holding(world, call, "start", Work::Start { kind: call.kind, vmid: call.vmid() })
}

/// Containers say at once that they do not run.
fn need_running(world: &World, call: &Call, word: &str) -> Result<(), Fail> {
    if is_running(world, call) { Ok(()) } else { Err(Fail::died(format!("{word} {} not running", call.vmid()))) }
}

/// QEMU's signals look for the config first.
fn need_running_config(world: &World, call: &Call) -> Result<(), Fail> {
    let vmid = call.vmid();
    if call.kind == Kind::Qemu && guest(world, call).is_none() {
        return Err(Fail::died(format!("unable to find configuration file for VM {vmid} on node '{}'", call.node)));
    }
    need_running(world, call, "VM")
}

pub(super) fn stop(world: &mut World, call: &Call) -> Result<Data, Fail> {
    call.root_only(INTERNAL)?;
    let overrules = call.flag("overrule-shutdown");
    if call.kind == Kind::Lxc {
        need_running(world, call, "CT")?;
    }
    let sid = format!("{}:{}", call.kind.service(), call.vmid());
    if overrules && world.ha.is_managed(&sid) {
        return Err(Fail::param("overrule-shutdown", "Not applicable for HA resources."));
    }
    if let Some(data) = managed(world, call, "hastop", "stopped") {
        return Ok(data);
    }
    if overrules {
        end_shutdowns(world, call);
    }
    holding(world, call, "stop", Work::Stop { kind: call.kind, vmid: call.vmid(), overrules })
}

/// The caller's own shutdown tasks give way.
fn end_shutdowns(world: &mut World, call: &Call) {
    let name = format!("{}shutdown", call.kind.prefix());
    let about = call.vmid().to_string();
    let user = call.who.id();
    let theirs = |task: &crate::task::Task| task.kind == name && task.about == about && task.user == user && !task.is_over();
    let ids: Vec<u64> = world.tasks.all.iter().filter(|(_, task)| theirs(task)).map(|(id, _)| *id).collect();
    for id in ids {
        world.interrupt(id);
    }
}

pub(super) fn shutdown(world: &mut World, call: &Call) -> Result<Data, Fail> {
    call.root_only(INTERNAL)?;
    let (kind, vmid, force) = (call.kind, call.vmid(), call.flag("forceStop"));
    if kind == Kind::Lxc {
        need_running(world, call, "CT")?;
    }
    let paused = guest(world, call).is_some_and(Guest::is_paused);
    if paused && !force {
        return Err(Fail::died("VM is paused - cannot shutdown"));
    }
    if let Some(data) = managed(world, call, "hastop", "stopped") {
        return Ok(data);
    }
    let timeout_ms = if paused { 0 } else { timeout_s(world, call).saturating_mul(1_000) };
    holding(world, call, "shutdown", Work::Shutdown(Shutdown { kind, vmid, timeout_ms, force, reboot: false }))
}

/// As asked, or as the guest's start order says, or a minute.
fn timeout_s(world: &World, call: &Call) -> u64 {
    let startup = guest(world, call).and_then(|guest| guest.get("startup")).unwrap_or_default();
    let down = startup.split(',').find_map(|part| part.strip_prefix("down=")).and_then(|text| text.parse().ok());
    call.number("timeout").or(down).unwrap_or(SHUTDOWN_S)
}

pub(super) fn reboot(world: &mut World, call: &Call) -> Result<Data, Fail> {
    if guest(world, call).is_some_and(Guest::is_paused) {
        return Err(Fail::died("VM is paused - cannot shutdown"));
    }
    need_running_config(world, call)?;
    let (kind, vmid) = (call.kind, call.vmid());
    // A container is killed after the timeout, a virtual machine is not.
    let force = kind == Kind::Lxc;
    let timeout_ms = timeout_s(world, call).saturating_mul(1_000);
    holding(world, call, "reboot", Work::Shutdown(Shutdown { kind, vmid, timeout_ms, force, reboot: true }))
}

pub(super) fn reset(world: &mut World, call: &Call) -> Result<Data, Fail> {
    call.root_only(INTERNAL)?;
    need_running_config(world, call)?;
    holding(world, call, "reset", Work::Reset { vmid: call.vmid() })
}

pub(super) fn suspend(world: &mut World, call: &Call) -> Result<Data, Fail> {
    call.root_only(INTERNAL)?;
    let vmid = call.vmid();
    if call.kind == Kind::Lxc {
        need_running(world, call, "CT")?;
        return holding(world, call, "suspend", Work::Pause { vmid });
    }
    need_running_config(world, call)?;
    if call.flag("todisk") {
        world.access.need(&call.who, &format!("/vms/{vmid}"), "VM.Config.Disk")?;
        return holding(world, call, "suspend", Work::Hibernate { vmid });
    }
    holding(world, call, "pause", Work::Pause { vmid })
}

pub(super) fn resume(world: &mut World, call: &Call) -> Result<Data, Fail> {
    call.root_only(&["skiplock", "nocheck"])?;
    let (kind, vmid) = (call.kind, call.vmid());
    let hibernated = guest(world, call).is_some_and(|guest| guest.lock() == Some("suspended"));
    if kind == Kind::Lxc && is_running(world, call) {
        return Err(Fail::died(format!("CT {vmid} already running")));
    }
    if kind == Kind::Qemu && !hibernated {
        need_running_config(world, call)?;
    }
    let work = if hibernated || kind == Kind::Lxc { Work::Start { kind, vmid } } else { Work::Resume { kind, vmid } };
    holding(world, call, "resume", work)
}
