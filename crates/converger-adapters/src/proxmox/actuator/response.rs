//! Converts responses to core types. A response that does not fit its request tells nothing: a read is unreadable then, and a change may
//! have run.

use converger_core::action::Change;
use converger_core::apply::{
    ClusterMembership, EnvFault, EnvFaultKind, EnvRequest, EnvResponse, GuestAddress, IdState, LiveConfig, LiveStatus, ObservedTask,
    SendResult, TaskId, TaskState,
};
use converger_core::guest::{GuestKind, Vmid};
use converger_core::observe::{HaState, ObservedStatus};

use super::{CallerIdentity, revision};
use crate::proxmox::codec::{
    self, AcceptedChange, ClusterStatus, Delivery, GuestConfig, GuestStatus, IdAvailability, ListedTask, ProxmoxCommand, ProxmoxEvent,
    ProxmoxFailure, ProxmoxRead, ResourceList, Upid,
};
use crate::proxmox::observe::{UnknownReason, fallback_name};

/// The number of tasks that Proxmox lists by default.
const TASKS_LISTED_MAX: usize = 50;

/// Upper bound for reading a task list and a clock together. Listed tasks may be older by this much.
const SLOW_SECS: u64 = 120;

/// Interprets a response to a request. `time` is the result of the [`clock_command`] that it needs, if any.
#[must_use]
pub fn interpret_response(
    caller: &CallerIdentity,
    request: &EnvRequest,
    result: Result<ProxmoxEvent, ProxmoxFailure>,
    time: Option<Result<ProxmoxEvent, ProxmoxFailure>>,
) -> EnvResponse {
    let is_unheard = time.is_none() && clock_command(request, &result).is_some();
    match (request, result) {
        (EnvRequest::Tasks { .. }, Ok(_)) if is_unheard => unread_response(UnknownReason::NotProven, "the clock of the node was not read"),
        (EnvRequest::Send { address, change, .. }, result) => EnvResponse::Sent(send_result(caller, address, change, result)),
        (EnvRequest::Status(_) | EnvRequest::Config(_) | EnvRequest::Snapshots(_), Err(failure))
            if failure.cause == codec::FailureCause::NoSuchGuest =>
        {
            EnvResponse::GuestNotFound(env_fault(&failure))
        }
        (EnvRequest::Task(_), Err(failure)) if failure.cause == codec::FailureCause::NoSuchTask => {
            EnvResponse::Task(TaskState::Lost(env_fault(&failure)))
        }
        (_, Err(failure)) => EnvResponse::Unreadable(unread_fault(&failure)),
        (EnvRequest::Cluster, Ok(ProxmoxEvent::Cluster(cluster))) => cluster_response(caller, cluster),
        (EnvRequest::Status(_), Ok(ProxmoxEvent::GuestStatus(status))) => EnvResponse::Status(live_status(status)),
        (EnvRequest::Config(address), Ok(ProxmoxEvent::Config(config))) => config_response(address, *config),
        (EnvRequest::Snapshots(_), Ok(ProxmoxEvent::Snapshots(listed))) => EnvResponse::Snapshots(listed.tree),
        (EnvRequest::IdState(_), Ok(ProxmoxEvent::NextId(found))) => EnvResponse::IdState(match found {
            IdAvailability::Free => IdState::Free,
            IdAvailability::Taken => IdState::Taken,
        }),
        (EnvRequest::Locate(vmid), Ok(ProxmoxEvent::Resources(list))) => location_response(*vmid, &list),
        (EnvRequest::Task(task), Ok(ProxmoxEvent::Task(state))) => EnvResponse::Task(convert_task_state(state, task_age_secs(task, time))),
        (EnvRequest::Tasks { address, change, age_secs_max }, Ok(ProxmoxEvent::Tasks(tasks))) => match age_tasks(&tasks, time) {
            Ok(aged) => tasks_response(caller, &aged, *age_secs_max, |upid| is_task_of_change(address, change, upid)),
            Err(failure) => EnvResponse::Unreadable(unread_fault(&failure)),
        },
        (_, Ok(other)) => EnvResponse::Unreadable(unread_fault(&other.unexpected_failure())),
    }
}

/// The command that reads the clock needed for a response: the clock of the node that dated the tasks, if their age matters. The `Date`
/// header does not serve, because the response may have come through another node.
#[must_use]
pub fn clock_command(request: &EnvRequest, result: &Result<ProxmoxEvent, ProxmoxFailure>) -> Option<ProxmoxCommand> {
    let node = match (request, result) {
        (EnvRequest::Tasks { address, change, .. }, Ok(ProxmoxEvent::Tasks(tasks))) => {
            let decides = |task: &ListedTask| task.end.is_some() && is_task_of_change(address, change, &task.upid);
            (tasks.len() >= TASKS_LISTED_MAX || tasks.iter().any(decides)).then(|| address.node.clone())
        }
        // Only a reboot leaves the guest in a state that does not show whether the change ran; the age of its task decides.
        (
            EnvRequest::Task(task),
            Ok(ProxmoxEvent::Task(codec::ProxmoxTaskState::Ended { .. } | codec::ProxmoxTaskState::Failed { .. })),
        ) => Upid::new(task.as_str()).filter(|upid| upid.worker() == "qmreboot").map(|upid| upid.node().clone()),
        _ => None,
    };
    node.map(|node| ProxmoxCommand::Read(ProxmoxRead::NodeTime(node)))
}

/// Converts a failure to a fault with the failure's word.
pub(super) fn env_fault(failure: &ProxmoxFailure) -> EnvFault {
    EnvFault::new(env_fault_kind(failure.cause), failure.cause.word(), &failure.to_string())
}

/// Converts a failed read to a fault with the word that the observer uses too.
pub(super) fn unread_fault(failure: &ProxmoxFailure) -> EnvFault {
    EnvFault::new(env_fault_kind(failure.cause), UnknownReason::from_failure(failure).word(), &failure.to_string())
}

fn unread_response(reason: UnknownReason, text: &str) -> EnvResponse {
    EnvResponse::Unreadable(EnvFault::new(EnvFaultKind::Other, reason.word(), text))
}

fn env_fault_kind(cause: codec::FailureCause) -> EnvFaultKind {
    match cause {
        codec::FailureCause::Changed => EnvFaultKind::ConfigChanged,
        codec::FailureCause::Locked => EnvFaultKind::Locked,
        codec::FailureCause::LockTimeout => EnvFaultKind::LockFile,
        codec::FailureCause::Protected => EnvFaultKind::Protected,
        codec::FailureCause::NoQuorum => EnvFaultKind::NotQuorate,
        codec::FailureCause::NoSuchGuest => EnvFaultKind::GuestNotFound,
        codec::FailureCause::Template => EnvFaultKind::Template,
        codec::FailureCause::HaError => EnvFaultKind::HaOwned,
        codec::FailureCause::ShutdownTimeout => EnvFaultKind::ShutdownTimeout,
        codec::FailureCause::Busy => EnvFaultKind::Busy,
        _ => EnvFaultKind::Other,
    }
}

fn cluster_response(caller: &CallerIdentity, cluster: ClusterStatus) -> EnvResponse {
    let found = cluster.effective_name();
    if let Some(wanted) = caller.cluster.as_deref().filter(|wanted| *wanted != found) {
        let text = format!("the cluster is `{}`, not `{wanted}`", codec::EscapedText(found));
        return EnvResponse::Unreadable(EnvFault::new(EnvFaultKind::Other, "other-cluster", &text));
    }
    if cluster.nodes.is_empty() {
        return unread_response(UnknownReason::Malformed, "the response names no node");
    }
    EnvResponse::Cluster(ClusterMembership { quorate: cluster.quorate, nodes: cluster.nodes })
}

fn live_status(status: GuestStatus) -> LiveStatus {
    let run_state = status.word();
    let ha = status.ha.map(|state| HaState { state });
    LiveStatus { status: ObservedStatus::from_word(&run_state), word: run_state, lock: status.lock, ha, uptime_secs: status.uptime_secs }
}

fn config_response(address: &GuestAddress, config: GuestConfig) -> EnvResponse {
    // Every release includes the digest. A config without one is truncated or not a config.
    if config.digest.is_none() {
        return unread_response(UnknownReason::Malformed, "the response has no digest");
    }
    let revision = revision::revision_of(&config);
    let digest = config.digest.as_ref().map(|digest| digest.as_str().into());
    let disks = match config.hardware {
        Ok(hardware) => hardware.disks,
        // A disk that is not understood hides only disks: other changes do not depend on them, and one that does finds none.
        Err(_) => Box::default(),
    };
    let values = match config.config {
        Ok(values) => values,
        Err(key) => {
            return unread_response(
                UnknownReason::NotUnderstood,
                &format!("the value of `{}` is not understood", codec::EscapedText(&key)),
            );
        }
    };
    EnvResponse::Config(Box::new(LiveConfig {
        name: config.name.unwrap_or_else(|| fallback_name(address.kind, address.vmid)),
        identity: config.identity,
        macs: config.macs,
        values,
        pending: config.pending,
        tags: config.tags,
        lock: config.lock,
        template: config.template,
        protection: config.protection,
        disks,
        day_one: config.day_one,
        digest,
        revision,
    }))
}

/// A list that contains the guest twice was read while the guest moved.
fn location_response(vmid: Vmid, list: &ResourceList) -> EnvResponse {
    if let Some(field) = list.unusable.get(&vmid) {
        return unread_response(UnknownReason::Malformed, &format!("the guest's row in the list of guests has no usable `{field}`"));
    }
    let mut own = list.rows.iter().filter(|row| row.vmid == vmid);
    let first = own.next();
    if own.next().is_some() {
        return unread_response(UnknownReason::Moved, "the list contains the guest twice");
    }
    EnvResponse::Located(first.map(|row| GuestAddress { node: row.node.clone(), kind: row.kind, vmid }))
}

fn send_result(
    caller: &CallerIdentity,
    address: &GuestAddress,
    change: &Change,
    result: Result<ProxmoxEvent, ProxmoxFailure>,
) -> SendResult {
    match result {
        Ok(ProxmoxEvent::Accepted(AcceptedChange::Task(upid))) => {
            match task_id(&upid).filter(|_| is_ours(caller, &upid) && is_task_of_change(address, change, &upid)) {
                Some(task) => SendResult::Task(task),
                None => {
                    unclear_send_result("other-task", &format!("the response names the task {upid}, which is not the task of this change"))
                }
            }
        }
        Ok(ProxmoxEvent::Accepted(AcceptedChange::Done)) if may_answer_directly(address.kind, change) => SendResult::Done,
        Ok(ProxmoxEvent::Accepted(AcceptedChange::Done)) => unclear_send_result("no-task", "the response names no task"),
        Ok(other) => unclear_send_result("malformed", &other.unexpected_failure().to_string()),
        Err(failure) => match failure.delivery {
            Delivery::Rejected => SendResult::Rejected(env_fault(&failure)),
            Delivery::NotDelivered => SendResult::NotDelivered(env_fault(&failure)),
            Delivery::MayHaveRun => SendResult::MaybeExecuted(env_fault(&failure)),
        },
    }
}

/// Whether a change can be complete with its response. In version 7, growing a disk of a virtual machine is.
fn may_answer_directly(kind: GuestKind, change: &Change) -> bool {
    worker_types(kind, change).is_empty() || (kind == GuestKind::Qemu && matches!(change, Change::DiskGrow(_)))
}

fn unclear_send_result(code: &str, text: &str) -> SendResult {
    SendResult::MaybeExecuted(EnvFault::new(EnvFaultKind::Other, code, text))
}

fn task_id(upid: &Upid) -> Option<TaskId> {
    TaskId::new(upid.as_str())
}

/// Whether a task carries out this change on this guest, at the node to which the change was sent.
fn is_task_of_change(address: &GuestAddress, change: &Change, upid: &Upid) -> bool {
    upid.node() == &address.node && upid.guest() == Some(address.vmid) && worker_types(address.kind, change).contains(&upid.worker())
}

fn is_ours(caller: &CallerIdentity, upid: &Upid) -> bool {
    upid.user() == caller.token.as_str()
}

/// The types of the tasks that carry out a change; empty if the change is complete with its response. For guests under high availability,
/// the task only hands the change over.
fn worker_types(kind: GuestKind, change: &Change) -> &'static [&'static str] {
    match (kind, change) {
        (GuestKind::Qemu, Change::Start) => &["qmstart", "hastart"],
        (GuestKind::Qemu, Change::Shutdown { .. }) => &["qmshutdown", "hastop"],
        (GuestKind::Qemu, Change::Stop) => &["qmstop", "hastop"],
        (GuestKind::Qemu, Change::Reboot { .. }) => &["qmreboot"],
        (GuestKind::Lxc, Change::Start) => &["vzstart", "hastart"],
        (GuestKind::Lxc, Change::Shutdown { .. }) => &["vzshutdown", "hastop"],
        (GuestKind::Lxc, Change::Stop) => &["vzstop", "hastop"],
        (GuestKind::Qemu, Change::SnapshotCreate(_)) => &["qmsnapshot"],
        (GuestKind::Qemu, Change::SnapshotDelete(_)) => &["qmdelsnapshot"],
        (GuestKind::Qemu, Change::SnapshotRollback(_)) => &["qmrollback"],
        (GuestKind::Qemu, Change::Migrate(_)) => &["qmigrate", "hamigrate"],
        (GuestKind::Qemu, Change::Clone(_)) => &["qmclone"],
        (GuestKind::Lxc, Change::SnapshotCreate(_)) => &["vzsnapshot"],
        (GuestKind::Lxc, Change::SnapshotDelete(_)) => &["vzdelsnapshot"],
        (GuestKind::Lxc, Change::SnapshotRollback(_)) => &["vzrollback"],
        (GuestKind::Lxc, Change::Migrate(_)) => &["vzmigrate", "hamigrate"],
        (GuestKind::Lxc, Change::Clone(_)) => &["vzclone"],
        (_, Change::DiskGrow(_)) => &["resize"],
        // A container is never rebooted through Proxmox; nothing is sent for it.
        (GuestKind::Lxc, Change::Reboot { .. }) | (_, Change::ConfigSet(_) | Change::Provision(_)) => &[],
    }
}

/// The age of a task; `None` if the clock of its node was not read.
fn task_age_secs(task: &TaskId, time: Option<Result<ProxmoxEvent, ProxmoxFailure>>) -> Option<u64> {
    let Some(Ok(ProxmoxEvent::NodeTime(now_secs))) = time else { return None };
    Some(now_secs.saturating_sub(Upid::new(task.as_str())?.started_at()))
}

fn convert_task_state(state: codec::ProxmoxTaskState, age_secs: Option<u64>) -> TaskState {
    match state {
        codec::ProxmoxTaskState::Running => TaskState::Running,
        codec::ProxmoxTaskState::Ended { warnings } => TaskState::Ended { warnings, age_secs },
        codec::ProxmoxTaskState::Failed { cause: codec::FailureCause::TaskKilled, text } => {
            TaskState::Lost(EnvFault::new(EnvFaultKind::Other, codec::FailureCause::TaskKilled.word(), &text))
        }
        codec::ProxmoxTaskState::Failed { cause, text } => {
            TaskState::Failed { cause: EnvFault::new(env_fault_kind(cause), cause.word(), &text), age_secs }
        }
    }
}

/// A listed task, with its age if it has ended and its age matters.
struct AgedTask<'t> {
    task: &'t ListedTask,
    ended_age_secs: Option<u64>,
}

/// Adds ages to tasks. If the clock was needed and could not be read, the list tells nothing.
fn age_tasks(tasks: &[ListedTask], time: Option<Result<ProxmoxEvent, ProxmoxFailure>>) -> Result<Vec<AgedTask<'_>>, ProxmoxFailure> {
    let now_secs = match time {
        // No ended task in the list matters.
        None => 0,
        Some(Ok(ProxmoxEvent::NodeTime(now_secs))) => now_secs,
        Some(Ok(other)) => return Err(other.unexpected_failure()),
        Some(Err(failure)) => return Err(failure),
    };
    let age_secs = |task: &ListedTask| task.end.is_some().then(|| now_secs.saturating_sub(task.upid.started_at()));
    Ok(tasks.iter().map(|task| AgedTask { task, ended_age_secs: age_secs(task) }).collect())
}

impl AgedTask<'_> {
    fn to_task_seen(&self, caller: &CallerIdentity) -> Option<ObservedTask> {
        let upid = &self.task.upid;
        Some(ObservedTask { task: task_id(upid)?, ended_age_secs: self.ended_age_secs, is_ours: is_ours(caller, upid) })
    }
}

/// Running tasks are listed first, then the ones that ended last. So only a list full of younger tasks may lack ours.
fn tasks_response(caller: &CallerIdentity, tasks: &[AgedTask<'_>], age_secs_max: u64, is_of_it: impl Fn(&Upid) -> bool) -> EnvResponse {
    let can_count = |aged: &&AgedTask<'_>| aged.ended_age_secs.is_none_or(|age_secs| age_secs <= age_secs_max.saturating_add(SLOW_SECS));
    if tasks.len() >= TASKS_LISTED_MAX && tasks.iter().filter(can_count).count() == tasks.len() {
        return EnvResponse::Unreadable(EnvFault::new(EnvFaultKind::Other, "list-full", "this guest has more tasks than Proxmox lists"));
    }
    EnvResponse::Tasks(
        tasks.iter().filter(can_count).filter(|aged| is_of_it(&aged.task.upid)).filter_map(|aged| aged.to_task_seen(caller)).collect(),
    )
}
