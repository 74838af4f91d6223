//! What came back, in the words of the core. An answer that is not one to what was asked tells nothing: a reading is unread then, and
//! a change may have run.

use converger_core::action::Change;
use converger_core::apply::{Answer, Ask, Cause, ConfigRead, Live, Membership, Place, Sent, TaskId, TaskSeen, TaskState, Trouble};
use converger_core::guest::{Kind, Vmid};
use converger_core::observe::{Ha, Status};

use super::{Caller, revision};
use crate::proxmox::codec::{
    self, Accepted, Cluster, Command, Delivery, Event, Failure, GuestConfig, GuestStatus, Read, ResourceList, Task, Upid,
};
use crate::proxmox::observe::{Reason, fallback_name};

/// What Proxmox lists of tasks where it is not asked for more.
const TASKS_LISTED_MAX: usize = 50;

/// A list and a clock may take so long together, and everything in the list is that much older by then.
const SLOW_SECS: u64 = 120;

/// What an answer means to who asked. `time` is what came of reading the [`clock`] that it calls for.
#[must_use]
pub fn answer(caller: &Caller, ask: &Ask, came: Result<Event, Failure>, time: Option<Result<Event, Failure>>) -> Answer {
    let is_unheard = time.is_none() && clock(ask, &came).is_some();
    match (ask, came) {
        (Ask::Tasks { .. }, Ok(_)) if is_unheard => unread_because(Reason::NotProven, "the clock of the node was not read"),
        (Ask::Send { place, change, .. }, came) => Answer::Sent(sent(caller, place, change, came)),
        (Ask::Status(_) | Ask::Config(_), Err(failure)) if failure.cause == codec::Cause::NoSuchGuest => Answer::NotThere(cause(&failure)),
        (Ask::Task(_), Err(failure)) if failure.cause == codec::Cause::NoSuchTask => Answer::Task(TaskState::Lost(cause(&failure))),
        (_, Err(failure)) => Answer::Unread(unread(&failure)),
        (Ask::Cluster, Ok(Event::Cluster(cluster))) => membership(caller, cluster),
        (Ask::Status(_), Ok(Event::GuestStatus(status))) => Answer::Status(live(status)),
        (Ask::Config(place), Ok(Event::Config(config))) => config_read(place, *config),
        (Ask::Where(vmid), Ok(Event::Resources(list))) => found(*vmid, &list),
        (Ask::Task(task), Ok(Event::Task(state))) => Answer::Task(task_state(state, age_secs(task, time))),
        (Ask::Tasks { place, change, age_secs_max }, Ok(Event::Tasks(tasks))) => match aged(&tasks, time) {
            Ok(aged) => listed(caller, &aged, *age_secs_max, |upid| is_of(place, change, upid)),
            Err(failure) => Answer::Unread(unread(&failure)),
        },
        (_, Ok(other)) => Answer::Unread(unread(&other.unexpected())),
    }
}

/// The clock that has to be read for an answer: that of the node that dated the tasks in it, where their age decides. The date of an answer is
/// that of the node that it came over, which may be another one.
#[must_use]
pub fn clock(ask: &Ask, came: &Result<Event, Failure>) -> Option<Command> {
    let node = match (ask, came) {
        (Ask::Tasks { place, change, .. }, Ok(Event::Tasks(tasks))) => {
            let decides = |task: &Task| task.end.is_some() && is_of(place, change, &task.upid);
            (tasks.len() >= TASKS_LISTED_MAX || tasks.iter().any(decides)).then(|| place.node.clone())
        }
        // Of all that is sent, only a reboot leaves a guest that nothing else tells from one that was left alone.
        (Ask::Task(task), Ok(Event::Task(codec::TaskState::Ended { .. } | codec::TaskState::Failed { .. }))) => {
            Upid::new(task.as_str()).filter(|upid| upid.worker() == "qmreboot").map(|upid| upid.node().clone())
        }
        _ => None,
    };
    node.map(|node| Command::Read(Read::NodeTime(node)))
}

/// A failure in one word of the adapter and what it amounts to.
pub(super) fn cause(failure: &Failure) -> Cause {
    Cause::new(trouble(failure.cause), failure.cause.word(), &failure.to_string())
}

/// A reading that gave nothing, in the words that the observer uses too.
pub(super) fn unread(failure: &Failure) -> Cause {
    Cause::new(trouble(failure.cause), Reason::of(failure).word(), &failure.to_string())
}

fn unread_because(reason: Reason, text: &str) -> Answer {
    Answer::Unread(Cause::new(Trouble::Other, reason.word(), text))
}

fn trouble(cause: codec::Cause) -> Trouble {
    match cause {
        codec::Cause::Changed => Trouble::Changed,
        codec::Cause::Locked => Trouble::Locked,
        codec::Cause::LockTimeout => Trouble::LockFile,
        codec::Cause::Protected => Trouble::Protected,
        codec::Cause::NoQuorum => Trouble::NotQuorate,
        codec::Cause::NoSuchGuest => Trouble::NotThere,
        codec::Cause::Template => Trouble::Template,
        codec::Cause::HaError => Trouble::HaOwned,
        codec::Cause::ShutdownTimeout => Trouble::ShutdownTimeout,
        codec::Cause::Busy => Trouble::Busy,
        _ => Trouble::Other,
    }
}

fn membership(caller: &Caller, cluster: Cluster) -> Answer {
    let found = cluster.known_as();
    if let Some(wanted) = caller.cluster.as_deref().filter(|wanted| *wanted != found) {
        let text = format!("the cluster `{}` answered, not `{wanted}`", codec::Shown(found));
        return Answer::Unread(Cause::new(Trouble::Other, "other-cluster", &text));
    }
    if cluster.nodes.is_empty() {
        return unread_because(Reason::Malformed, "the answer names no node");
    }
    Answer::Cluster(Membership { quorate: cluster.quorate, nodes: cluster.nodes })
}

fn live(status: GuestStatus) -> Live {
    let word = status.word();
    let ha = status.ha.map(|state| Ha { state });
    Live { status: Status::of_word(&word), word, lock: status.lock, ha, uptime_secs: status.uptime_secs }
}

fn config_read(place: &Place, config: GuestConfig) -> Answer {
    // Every release gives the digest among the rest; what has none is cut off, or is no config.
    if config.digest.is_none() {
        return unread_because(Reason::Malformed, "the answer has no digest");
    }
    let revision = revision::of(&config);
    let values = match config.config {
        Ok(values) => values,
        Err(key) => return unread_because(Reason::NotUnderstood, &format!("the value of `{}` is not understood", codec::Shown(&key))),
    };
    Answer::Config(Box::new(ConfigRead {
        name: config.name.unwrap_or_else(|| fallback_name(place.kind, place.vmid)),
        identity: config.identity,
        macs: config.macs,
        values,
        pending: config.pending,
        tags: config.tags,
        lock: config.lock,
        template: config.template,
        protection: config.protection,
        revision,
    }))
}

/// A list that has the guest twice was read while it moved.
fn found(vmid: Vmid, list: &ResourceList) -> Answer {
    if let Some(field) = list.unusable.get(&vmid) {
        return unread_because(Reason::Malformed, &format!("the guest's row in the list of guests has no usable `{field}`"));
    }
    let mut own = list.rows.iter().filter(|row| row.vmid == vmid);
    let first = own.next();
    if own.next().is_some() {
        return unread_because(Reason::Moved, "the list has the guest twice");
    }
    Answer::Where(first.map(|row| Place { node: row.node.clone(), kind: row.kind, vmid }))
}

fn sent(caller: &Caller, place: &Place, change: &Change, came: Result<Event, Failure>) -> Sent {
    match came {
        Ok(Event::Accepted(Accepted::Task(upid))) => match task_id(&upid).filter(|_| is_ours(caller, &upid) && is_of(place, change, &upid))
        {
            Some(task) => Sent::Task(task),
            None => may_have_run("other-task", &format!("the answer names the task {upid}, which is not the one that was asked for")),
        },
        Ok(Event::Accepted(Accepted::Done)) if workers(place.kind, change).is_empty() => Sent::Done,
        Ok(Event::Accepted(Accepted::Done)) => may_have_run("no-task", "the answer names no task"),
        Ok(other) => may_have_run("malformed", &other.unexpected().to_string()),
        Err(failure) => match failure.delivery {
            Delivery::No => Sent::No(cause(&failure)),
            Delivery::NotDelivered => Sent::NotDelivered(cause(&failure)),
            Delivery::MayHaveRun => Sent::MayHaveRun(cause(&failure)),
        },
    }
}

fn may_have_run(word: &str, text: &str) -> Sent {
    Sent::MayHaveRun(Cause::new(Trouble::Other, word, text))
}

fn task_id(upid: &Upid) -> Option<TaskId> {
    TaskId::new(upid.as_str())
}

/// Whether a task is this change, on this guest, where it was sent.
fn is_of(place: &Place, change: &Change, upid: &Upid) -> bool {
    upid.node() == &place.node && upid.guest() == Some(place.vmid) && workers(place.kind, change).contains(&upid.worker())
}

fn is_ours(caller: &Caller, upid: &Upid) -> bool {
    upid.user() == caller.token.as_str()
}

/// The types of the tasks that a change is carried out by; none where it is done before it is answered. What high availability owns
/// is only handed to it.
fn workers(kind: Kind, change: &Change) -> &'static [&'static str] {
    match (kind, change) {
        (Kind::Qemu, Change::Start) => &["qmstart", "hastart"],
        (Kind::Qemu, Change::Shutdown { .. }) => &["qmshutdown", "hastop"],
        (Kind::Qemu, Change::Stop) => &["qmstop", "hastop"],
        (Kind::Qemu, Change::Reboot { .. }) => &["qmreboot"],
        (Kind::Lxc, Change::Start) => &["vzstart", "hastart"],
        (Kind::Lxc, Change::Shutdown { .. }) => &["vzshutdown", "hastop"],
        (Kind::Lxc, Change::Stop) => &["vzstop", "hastop"],
        // A container is never rebooted: nothing is sent for it.
        (Kind::Lxc, Change::Reboot { .. }) | (_, Change::ConfigSet(_)) => &[],
    }
}

/// How long ago a task was begun, where the clock of its node was heard.
fn age_secs(task: &TaskId, time: Option<Result<Event, Failure>>) -> Option<u64> {
    let Some(Ok(Event::NodeTime(now_secs))) = time else { return None };
    Some(now_secs.saturating_sub(Upid::new(task.as_str())?.started_at()))
}

fn task_state(state: codec::TaskState, age_secs: Option<u64>) -> TaskState {
    match state {
        codec::TaskState::Running => TaskState::Running,
        codec::TaskState::Ended { warnings } => TaskState::Ended { warnings, age_secs },
        codec::TaskState::Failed { cause: codec::Cause::TaskKilled, text } => {
            TaskState::Lost(Cause::new(Trouble::Other, codec::Cause::TaskKilled.word(), &text))
        }
        codec::TaskState::Failed { cause, text } => TaskState::Failed { cause: Cause::new(trouble(cause), cause.word(), &text), age_secs },
    }
}

/// A task, and how long ago it was begun where it has ended and that decides.
struct Aged<'t> {
    task: &'t Task,
    ended_age_secs: Option<u64>,
}

/// Tasks with their ages. A clock that was asked for and not heard leaves nothing that could be told from them.
fn aged(tasks: &[Task], time: Option<Result<Event, Failure>>) -> Result<Vec<Aged<'_>>, Failure> {
    let now_secs = match time {
        // Nothing of what has ended in the list decides anything.
        None => 0,
        Some(Ok(Event::NodeTime(now_secs))) => now_secs,
        Some(Ok(other)) => return Err(other.unexpected()),
        Some(Err(failure)) => return Err(failure),
    };
    let age_secs = |task: &Task| task.end.is_some().then(|| now_secs.saturating_sub(task.upid.started_at()));
    Ok(tasks.iter().map(|task| Aged { task, ended_age_secs: age_secs(task) }).collect())
}

impl Aged<'_> {
    fn seen(&self, caller: &Caller) -> Option<TaskSeen> {
        let upid = &self.task.upid;
        Some(TaskSeen { task: task_id(upid)?, ended_age_secs: self.ended_age_secs, is_ours: is_ours(caller, upid) })
    }
}

/// What runs is listed first, then what ended last: only a list that is full of younger tasks may lack ours.
fn listed(caller: &Caller, tasks: &[Aged<'_>], age_secs_max: u64, is_of_it: impl Fn(&Upid) -> bool) -> Answer {
    let can_count = |aged: &&Aged<'_>| aged.ended_age_secs.is_none_or(|age_secs| age_secs <= age_secs_max.saturating_add(SLOW_SECS));
    if tasks.len() >= TASKS_LISTED_MAX && tasks.iter().filter(can_count).count() == tasks.len() {
        return Answer::Unread(Cause::new(Trouble::Other, "list-full", "there are more tasks of this guest than are listed"));
    }
    Answer::Tasks(tasks.iter().filter(can_count).filter(|aged| is_of_it(&aged.task.upid)).filter_map(|aged| aged.seen(caller)).collect())
}
