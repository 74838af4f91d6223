//! The work of tasks: checks at the start, effects at the end.
//!
//! Queues and time are in `events`; what a call checks before it starts a task is in `api`.

mod backup;
pub(crate) mod clone;
mod create;
mod destroy;
mod disk;
mod migrate;
mod power;
mod snapshot;

use crate::config_update::{self, ConfigUpdate};
use crate::guest::{ConfigSection, LabGuest, LabGuestKind};
use crate::task::{LabTask, TaskId};
use crate::truth::GuestVerb;
use crate::world::World;

pub(crate) use backup::BackupWork;
pub(crate) use clone::CloneWork;
pub(crate) use create::finish_template;
pub(crate) use destroy::destroy_guest;
pub(crate) use disk::{DiskMove, actual_bytes, check_may_take_space, check_space_for_growth, finish_resize, parse_target_bytes};
pub(crate) use migrate::{
    GuestMigration, PreMoveShutdown, RESTART_TIMEOUT_MS, StorageMap, find_local_volumes, local_devices, missing_storage_error,
    missing_storages, stop_before_move,
};
pub(crate) use power::ShutdownWork;
pub(crate) use snapshot::{SnapshotWork, remove_snapshot, take_complete_snapshot};

/// The work of a task on a guest.
#[derive(Clone, Debug)]
pub(crate) enum TaskWork {
    Start {
        kind: LabGuestKind,
        vmid: u32,
    },
    Stop {
        kind: LabGuestKind,
        vmid: u32,
        overrules: bool,
    },
    Shutdown(ShutdownWork),
    Reset {
        vmid: u32,
    },
    Pause {
        vmid: u32,
    },
    Hibernate {
        vmid: u32,
    },
    Resume {
        kind: LabGuestKind,
        vmid: u32,
    },
    Config(Box<ConfigUpdate>),
    Create {
        vmid: u32,
        section: ConfigSection,
        start: bool,
    },
    Destroy {
        vmid: u32,
        purge: bool,
    },
    Clone(Box<CloneWork>),
    Template {
        vmid: u32,
    },
    Snapshot(SnapshotWork),
    Resize {
        vmid: u32,
        key: String,
        size: String,
        digest: Option<String>,
    },
    Move(DiskMove),
    Migrate(GuestMigration),
    Manage {
        kind: LabGuestKind,
        sid: String,
        state: String,
    },
    Backup(Box<BackupWork>),
    /// Deletes a volume, a backup or a file.
    RemoveContent {
        volume: String,
    },
    /// Downloads a file.
    Fetch {
        volume: String,
    },
}

/// How long the work takes; `None` if it never ends by itself. An error fails the task.
pub(crate) type WorkStart = Result<Option<u64>, String>;

/// Checks and starts the work of a task.
pub(crate) fn begin_work(world: &mut World, id: TaskId) -> WorkStart {
    let Some(task) = world.tasks.get(id) else { return Ok(Some(0)) };
    let (work, node) = (task.work.clone(), task.node.clone());
    let took_ms = match work {
        TaskWork::Start { kind, vmid } => power::begin_start(world, &node, kind, vmid),
        TaskWork::Stop { kind, vmid, overrules } => power::begin_stop(world, id, kind, vmid, overrules),
        TaskWork::Shutdown(shutdown) => power::begin_shutdown(world, id, &shutdown),
        TaskWork::Reset { vmid } | TaskWork::Pause { vmid } | TaskWork::Hibernate { vmid } => power::begin_signal(world, &node, vmid),
        TaskWork::Resume { vmid, .. } => power::begin_resume(world, vmid),
        TaskWork::Config(update) => begin_config(world, id, &update),
        TaskWork::Create { vmid, section, .. } => create::begin_create(world, id, vmid, section),
        TaskWork::Destroy { vmid, purge } => destroy::begin_destroy(world, id, vmid, purge),
        TaskWork::Clone(cloning) => clone::begin_clone(world, id, &cloning),
        TaskWork::Template { .. } => Ok(world.task_durations.template_ms),
        TaskWork::Snapshot(snapshot) => snapshot::begin_snapshot_work(world, id, &snapshot),
        TaskWork::Resize { vmid, key, size, digest } => disk::begin_resize(world, id, vmid, &key, &size, digest.as_deref()),
        TaskWork::Move(moving) => disk::begin_move(world, id, &moving),
        TaskWork::Migrate(migration) => migrate::begin_migration(world, id, &migration),
        TaskWork::Manage { kind, sid, state } => begin_manage(world, id, kind, &sid, &state),
        TaskWork::Backup(backing) => backup::begin_backup(world, id, &backing),
        TaskWork::RemoveContent { volume } => backup::begin_remove_content(world, &volume),
        TaskWork::Fetch { volume } => backup::begin_fetch(world, id, &volume),
    };
    took_ms.map(Some)
}

/// Applies the effects of a task, and counts them if they succeed.
pub(crate) fn finish_work(world: &mut World, id: TaskId) -> Result<(), String> {
    let Some(task) = world.tasks.get(id) else { return Ok(()) };
    let executed = verb_of_work(&task.work);
    apply_effects(world, id)?;
    if let Some((verb, vmid)) = executed {
        world.count_execution(verb, vmid);
    }
    Ok(())
}

/// The verb and the guest that an execution of this work counts for. A clone counts for its original.
fn verb_of_work(work: &TaskWork) -> Option<(GuestVerb, u32)> {
    Some(match work {
        TaskWork::Start { vmid, .. } => (GuestVerb::Start, *vmid),
        TaskWork::Stop { vmid, .. } => (GuestVerb::Stop, *vmid),
        TaskWork::Shutdown(shutdown) => (if shutdown.reboot { GuestVerb::Reboot } else { GuestVerb::Shutdown }, shutdown.vmid),
        TaskWork::Reset { vmid } => (GuestVerb::Reset, *vmid),
        TaskWork::Pause { vmid } | TaskWork::Hibernate { vmid } => (GuestVerb::Suspend, *vmid),
        TaskWork::Resume { vmid, .. } => (GuestVerb::Resume, *vmid),
        TaskWork::Config(update) => (GuestVerb::Config, update.vmid),
        TaskWork::Create { vmid, .. } => (GuestVerb::Create, *vmid),
        TaskWork::Destroy { vmid, .. } => (GuestVerb::Destroy, *vmid),
        TaskWork::Clone(cloning) => (GuestVerb::Clone, cloning.source),
        TaskWork::Template { vmid } => (GuestVerb::Template, *vmid),
        TaskWork::Snapshot(snapshot) => (snapshot.verb(), snapshot.vmid()),
        TaskWork::Resize { vmid, .. } => (GuestVerb::Resize, *vmid),
        TaskWork::Move(moving) => (GuestVerb::MoveDisk, moving.vmid),
        TaskWork::Migrate(migration) => (GuestVerb::Migrate, migration.vmid),
        TaskWork::Manage { .. } | TaskWork::Backup(_) | TaskWork::RemoveContent { .. } | TaskWork::Fetch { .. } => return None,
    })
}

fn apply_effects(world: &mut World, id: TaskId) -> Result<(), String> {
    let Some(task) = world.tasks.get(id) else { return Ok(()) };
    match task.work.clone() {
        TaskWork::Start { vmid, .. } => power::finish_start(world, vmid),
        TaskWork::Stop { kind, vmid, .. } => power::finish_stop(world, id, kind, vmid),
        TaskWork::Shutdown(shutdown) => power::finish_shutdown(world, id, &shutdown),
        TaskWork::Pause { vmid } => power::set_process_state(world, vmid, "paused"),
        TaskWork::Hibernate { vmid } => power::finish_hibernate(world, vmid),
        TaskWork::Resume { vmid, .. } => power::set_process_state(world, vmid, "running"),
        TaskWork::Config(update) => finish_config(world, id, &update),
        TaskWork::Create { vmid, start, .. } => create::finish_create(world, id, vmid, start),
        TaskWork::Destroy { vmid, purge } => {
            destroy::destroy_guest(world, vmid, purge);
            Ok(())
        }
        TaskWork::Clone(cloning) => clone::finish_clone(world, &cloning),
        TaskWork::Template { vmid } => {
            create::finish_template(world, vmid);
            Ok(())
        }
        TaskWork::Snapshot(snapshot) => snapshot::finish_snapshot_work(world, &snapshot),
        TaskWork::Resize { vmid, key, size, .. } => disk::finish_resize(world, vmid, &key, &size),
        TaskWork::Move(moving) => disk::finish_move(world, &moving),
        TaskWork::Migrate(migration) => migrate::finish_migration(world, &migration),
        TaskWork::Manage { sid, state, .. } => finish_manage(world, &sid, &state),
        TaskWork::Backup(backing) => backup::finish_backup(world, id, &backing),
        TaskWork::RemoveContent { volume } => backup::finish_remove_content(world, id, &volume),
        TaskWork::Fetch { volume } => backup::finish_fetch(world, &volume),
        TaskWork::Reset { .. } => Ok(()),
    }
}

/// Cleans up after a task that was stopped while it ran: its locks stay only where Proxmox leaves them behind.
pub(crate) fn interrupt_work(world: &mut World, id: TaskId) {
    match world.tasks.get(id).map(|task| task.work.clone()) {
        Some(TaskWork::Clone(cloning)) => clone::abandon_clone(world, &cloning),
        Some(TaskWork::Backup(backing)) => backup::abandon_backup(world, &backing),
        Some(TaskWork::Snapshot(snapshot)) => snapshot::abandon_snapshot_work(world, &snapshot),
        _ => {}
    }
}

/// Applies what a worker has done when it is killed halfway. Everything else that it did so far, it did at its start.
pub(crate) fn leave_half_done(world: &mut World, id: TaskId) {
    match world.tasks.get(id).map(|task| task.work.clone()) {
        Some(TaskWork::Resize { vmid, key, size, .. }) => disk::grow_volume(world, vmid, &key, &size),
        Some(TaskWork::Migrate(migration)) => drop(migrate::move_config(world, &migration)),
        _ => {}
    }
}

/// The guest that a task works on. It can be deleted or moved to another node while the task waits.
fn find_task_guest(world: &World, id: TaskId, vmid: u32) -> Result<&LabGuest, String> {
    let Some(task) = world.tasks.get(id) else { return Err("no such task".to_owned()) };
    let is_here = |guest: &&LabGuest| guest.node == task.node && !world.hidden.contains(&vmid);
    world.guests.get(&vmid).filter(is_here).ok_or_else(|| guest_kind_of(task).missing_config_text(&task.node, vmid))
}

/// The kind of guest that a task is about.
pub(crate) fn guest_kind_of(task: &LabTask) -> LabGuestKind {
    match &task.work {
        TaskWork::Start { kind, .. } | TaskWork::Stop { kind, .. } | TaskWork::Resume { kind, .. } | TaskWork::Manage { kind, .. } => *kind,
        TaskWork::Shutdown(shutdown) => shutdown.kind,
        _ if task.kind.starts_with("vz") => LabGuestKind::Lxc,
        _ => LabGuestKind::Qemu,
    }
}

fn begin_config(world: &mut World, id: TaskId, update: &ConfigUpdate) -> Result<u64, String> {
    world.tasks.log_line(id, format!("update VM {}: {}", update.vmid, update.log_text));
    Ok(world.task_durations.config_ms)
}

fn finish_config(world: &mut World, id: TaskId, update: &ConfigUpdate) -> Result<(), String> {
    let node = world.tasks.get(id).map(|task| task.node.clone()).unwrap_or_default();
    config_update::write_update(world, &node, update).map(|_| ()).map_err(|fail| fail.to_one_line())
}

fn begin_manage(world: &mut World, id: TaskId, kind: LabGuestKind, sid: &str, state: &str) -> Result<u64, String> {
    let vmid = sid.split(':').nth(1).unwrap_or_default();
    let line = match (state.strip_prefix("migrate "), state) {
        (Some(target), _) => format!("Requesting HA migration for {} {vmid} to node {target}", kind.error_word()),
        (None, "started") => format!("Requesting HA start for {} {vmid}", kind.error_word()),
        (None, _) => format!("Requesting HA stop for {} {vmid}", kind.error_word()),
    };
    world.tasks.log_line(id, line);
    Ok(world.task_durations.manage_ms)
}

fn finish_manage(world: &mut World, sid: &str, state: &str) -> Result<(), String> {
    world.ha.request_state(sid, state);
    Ok(())
}
