//! What tasks do: checks when a task begins, effects when it ends.
//!
//! What never enters here: queues and time (see `engine`), and what a call checks before it forks a
//! task (see `api`).

mod backup;
pub(crate) mod clone;
mod create;
mod destroy;
mod disk;
mod migrate;
mod power;
mod snapshot;

use crate::guest::{Kind, Section};
use crate::task::{Task, TaskId};
use crate::update::{self, Update};
use crate::world::World;

pub(crate) use backup::Backing;
pub(crate) use clone::Cloning;
pub(crate) use disk::{Move, finish_resize, may_take_space, target_bytes};
pub(crate) use migrate::{Down, Migration, RESTART_TIMEOUT_MS, go_down, lacks_storage, local_disks};
pub(crate) use power::Shutdown;
pub(crate) use snapshot::Snapshotting;

/// The work of a task on a guest.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Start {
        kind: Kind,
        vmid: u32,
    },
    Stop {
        kind: Kind,
        vmid: u32,
        overrules: bool,
    },
    Shutdown(Shutdown),
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
        kind: Kind,
        vmid: u32,
    },
    Config(Box<Update>),
    Create {
        vmid: u32,
        section: Section,
        start: bool,
    },
    Destroy {
        vmid: u32,
        purge: bool,
    },
    Clone(Box<Cloning>),
    Template {
        vmid: u32,
    },
    Snapshot(Snapshotting),
    Resize {
        vmid: u32,
        key: String,
        size: String,
        digest: Option<String>,
    },
    Move(Move),
    Migrate(Migration),
    Manage {
        kind: Kind,
        sid: String,
        state: String,
    },
    Backup(Box<Backing>),
    /// A volume, a backup or a file goes.
    Free {
        volume: String,
    },
    /// A file comes from elsewhere.
    Fetch {
        volume: String,
    },
}

/// How long the work will take; `None`: it never ends by itself. An error fails the task.
pub(crate) type Begun = Result<Option<u64>, String>;

/// Check and start the work of a task.
pub(crate) fn begin(world: &mut World, id: TaskId) -> Begun {
    let Some(task) = world.tasks.get(id) else { return Ok(Some(0)) };
    let (work, node) = (task.work.clone(), task.node.clone());
    let took_ms = match work {
        Work::Start { kind, vmid } => power::begin_start(world, &node, kind, vmid),
        Work::Stop { kind, vmid, overrules } => power::begin_stop(world, id, kind, vmid, overrules),
        Work::Shutdown(shutdown) => power::begin_shutdown(world, id, &shutdown),
        Work::Reset { vmid } | Work::Pause { vmid } | Work::Hibernate { vmid } => power::begin_signal(world, &node, vmid),
        Work::Resume { vmid, .. } => power::begin_resume(world, vmid),
        Work::Config(update) => begin_config(world, id, &update),
        Work::Create { vmid, section, .. } => create::begin(world, id, vmid, section),
        Work::Destroy { vmid, purge } => destroy::begin(world, id, vmid, purge),
        Work::Clone(cloning) => clone::begin(world, id, &cloning),
        Work::Template { .. } => Ok(world.pace.template_ms),
        Work::Snapshot(snapshot) => snapshot::begin(world, id, &snapshot),
        Work::Resize { vmid, key, size, digest } => disk::begin_resize(world, id, vmid, &key, &size, digest.as_deref()),
        Work::Move(moving) => disk::begin_move(world, id, &moving),
        Work::Migrate(migration) => migrate::begin(world, id, &migration),
        Work::Manage { kind, sid, state } => begin_manage(world, id, kind, &sid, &state),
        Work::Backup(backing) => backup::begin(world, id, &backing),
        Work::Free { volume } => backup::begin_free(world, &volume),
        Work::Fetch { volume } => backup::begin_fetch(world, id, &volume),
    };
    took_ms.map(Some)
}

/// Apply the work of a task.
pub(crate) fn finish(world: &mut World, id: TaskId) -> Result<(), String> {
    let Some(task) = world.tasks.get(id) else { return Ok(()) };
    match task.work.clone() {
        Work::Start { vmid, .. } => power::finish_start(world, vmid),
        Work::Stop { kind, vmid, .. } => power::finish_stop(world, id, kind, vmid),
        Work::Shutdown(shutdown) => power::finish_shutdown(world, id, &shutdown),
        Work::Pause { vmid } => power::say(world, vmid, "paused"),
        Work::Hibernate { vmid } => power::finish_hibernate(world, vmid),
        Work::Resume { vmid, .. } => power::say(world, vmid, "running"),
        Work::Config(update) => finish_config(world, id, &update),
        Work::Create { vmid, start, .. } => create::finish(world, id, vmid, start),
        Work::Destroy { vmid, purge } => destroy::finish(world, vmid, purge),
        Work::Clone(cloning) => clone::finish(world, &cloning),
        Work::Template { vmid } => create::finish_template(world, vmid),
        Work::Snapshot(snapshot) => snapshot::finish(world, &snapshot),
        Work::Resize { vmid, key, size, .. } => disk::finish_resize(world, vmid, &key, &size),
        Work::Move(moving) => disk::finish_move(world, &moving),
        Work::Migrate(migration) => migrate::finish(world, &migration),
        Work::Manage { sid, state, .. } => finish_manage(world, &sid, &state),
        Work::Backup(backing) => backup::finish(world, id, &backing),
        Work::Free { volume } => backup::finish_free(world, id, &volume),
        Work::Fetch { volume } => backup::finish_fetch(world, &volume),
        Work::Reset { .. } => Ok(()),
    }
}

/// A task was told to stop while it was at work: locks that it had set stay behind only where Proxmox leaves them.
pub(crate) fn interrupted(world: &mut World, id: TaskId) {
    match world.tasks.get(id).map(|task| task.work.clone()) {
        Some(Work::Clone(cloning)) => clone::abandon(world, &cloning),
        Some(Work::Backup(backing)) => backup::abandon(world, &backing),
        _ => {}
    }
}

/// The kind of guest that a task is about.
pub(crate) fn kind_of(task: &Task) -> Kind {
    match &task.work {
        Work::Start { kind, .. } | Work::Stop { kind, .. } | Work::Resume { kind, .. } | Work::Manage { kind, .. } => *kind,
        Work::Shutdown(shutdown) => shutdown.kind,
        _ if task.kind.starts_with("vz") => Kind::Lxc,
        _ => Kind::Qemu,
    }
}

fn begin_config(world: &mut World, id: TaskId, update: &Update) -> Result<u64, String> {
    world.tasks.log(id, format!("update VM {}: {}", update.vmid, update.words));
    Ok(world.pace.config_ms)
}

fn finish_config(world: &mut World, id: TaskId, update: &Update) -> Result<(), String> {
    let node = world.tasks.get(id).map(|task| task.node.clone()).unwrap_or_default();
    update::write(world, &node, update).map(|_| ()).map_err(|fail| fail.one_line())
}

fn begin_manage(world: &mut World, id: TaskId, kind: Kind, sid: &str, state: &str) -> Result<u64, String> {
    let verb = if state == "started" { "start" } else { "stop" };
    let vmid = sid.split(':').nth(1).unwrap_or_default();
    world.tasks.log(id, format!("Requesting HA {verb} for {} {vmid}", kind.word()));
    Ok(world.pace.manage_ms)
}

fn finish_manage(world: &mut World, sid: &str, state: &str) -> Result<(), String> {
    world.ha.request(sid, state);
    Ok(())
}
