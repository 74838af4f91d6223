//! Tasks: their ids (UPID), states, logs, and the task lists of nodes.
//!
//! What a task does is in `task_work`; when it starts and ends is in `events`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::access::ApiCaller;
use crate::fault::TaskFaultEffect;
use crate::task_work::TaskWork;

/// How many finished tasks are kept; older ones are dropped.
const ENDED_TASKS_MAX: usize = 4_096;

/// A task's number within the world, in the order of creation.
pub(crate) type TaskId = u64;

/// The state of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LabTaskState {
    /// Waiting for a guest that another task holds.
    Waiting,
    /// Ends at that time; `None` if it never ends by itself.
    Running { ends_ms: Option<u64> },
    /// Ended with this exit status. The node's list may show it as running until `listed_ms`.
    Ended { at_s: u64, status: String, listed_ms: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct LabTask {
    pub(crate) upid: String,
    pub(crate) node: String,
    pub(crate) pid: u32,
    pub(crate) pstart: u64,
    pub(crate) start_s: u64,
    pub(crate) kind: String,
    /// What it is about, usually a VMID.
    pub(crate) about: String,
    /// The id of the user or token that started it.
    pub(crate) user: String,
    pub(crate) state: LabTaskState,
    pub(crate) log: Vec<String>,
    pub(crate) work: TaskWork,
    /// The guest that it holds while it runs.
    pub(crate) holds: Option<u32>,
    /// The result of the work, known before the task ends.
    pub(crate) outcome: Result<(), String>,
    /// The fault that applies to it.
    pub(crate) fault: Option<TaskFaultEffect>,
    /// Started by another task: the node's list shows its end late.
    pub(crate) nested: bool,
}

impl LabTask {
    pub(crate) fn status(&self) -> Option<&str> {
        match &self.state {
            LabTaskState::Ended { status, .. } => Some(status),
            LabTaskState::Waiting | LabTaskState::Running { .. } => None,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.status().is_some()
    }

    /// Whether the node's list still shows it as running.
    pub(crate) fn is_listed_active(&self, now_ms: u64) -> bool {
        match self.state {
            LabTaskState::Ended { listed_ms, .. } => listed_ms > now_ms,
            LabTaskState::Waiting | LabTaskState::Running { .. } => true,
        }
    }

    /// The caller that started it.
    pub(crate) fn caller(&self) -> ApiCaller {
        let (user, token) = self.owner();
        ApiCaller { user: user.to_owned(), token: token.map(str::to_owned) }
    }

    /// User and token separately: `root@pam`, `probe`.
    pub(crate) fn owner(&self) -> (&str, Option<&str>) {
        self.user.split_once('!').map_or((self.user.as_str(), None), |(user, token)| (user, Some(token)))
    }
}

/// Whether an exit status is a success.
pub(crate) fn is_success(status: &str) -> bool {
    status == "OK" || status.starts_with("WARNINGS: ")
}

/// The parts of a UPID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedUpid<'a> {
    pub(crate) node: &'a str,
    pub(crate) user: &'a str,
}

/// Parses `UPID:node:pid:pstart:starttime:type:id:user:`.
pub(crate) fn parse_upid(text: &str) -> Option<ParsedUpid<'_>> {
    let parts: Vec<&str> = text.split(':').collect();
    let [head, node, pid, pstart, start, kind, _, user, end] = parts.as_slice() else { return None };
    let hex = |part: &str, lengths: &[usize]| lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shaped = *head == "UPID" && end.is_empty() && !node.is_empty() && !kind.is_empty() && !user.is_empty();
    let numbers = hex(pid, &[8]) && hex(pstart, &[8, 9]) && hex(start, &[8]);
    (shaped && numbers).then_some(ParsedUpid { node, user })
}

/// All tasks of the world, and the tasks that hold guests.
#[derive(Clone, Debug, Default)]
pub(crate) struct LabTasks {
    pub(crate) all: BTreeMap<TaskId, LabTask>,
    by_upid: BTreeMap<String, TaskId>,
    next: TaskId,
    /// The task that holds each guest.
    pub(crate) holders: BTreeMap<u32, TaskId>,
    /// Guests whose lock file is held by a process outside Proxmox.
    pub(crate) lock_files: BTreeSet<u32>,
    /// Tasks that wait for a guest, in order of arrival.
    waiting: BTreeMap<u32, VecDeque<TaskId>>,
    over: VecDeque<TaskId>,
}

impl LabTasks {
    pub(crate) fn add_task(&mut self, task: LabTask) -> TaskId {
        self.next += 1;
        self.by_upid.insert(task.upid.clone(), self.next);
        self.all.insert(self.next, task);
        self.next
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<&LabTask> {
        self.all.get(&id)
    }

    pub(crate) fn find_by_upid(&self, upid: &str) -> Option<(TaskId, &LabTask)> {
        let id = *self.by_upid.get(upid)?;
        self.all.get(&id).map(|task| (id, task))
    }

    pub(crate) fn log_line(&mut self, id: TaskId, line: impl Into<String>) {
        if let Some(task) = self.all.get_mut(&id) {
            task.log.push(line.into());
        }
    }

    /// The tasks of a node, newest first.
    pub(crate) fn tasks_of_node<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a LabTask> {
        self.all.values().rev().filter(move |task| task.node == node)
    }

    /// Appends a task to the queue of a guest.
    pub(crate) fn wait_for_guest(&mut self, vmid: u32, id: TaskId) {
        self.waiting.entry(vmid).or_default().push_back(id);
    }

    /// Takes the next task from the queue of a guest; tasks that gave up are skipped.
    pub(crate) fn next_waiting(&mut self, vmid: u32) -> Option<TaskId> {
        let queue = self.waiting.get_mut(&vmid)?;
        let is_waiting = |id: &TaskId| self.all.get(id).is_some_and(|task| task.state == LabTaskState::Waiting);
        std::iter::from_fn(|| queue.pop_front()).find(is_waiting)
    }

    /// Archives a finished task and drops the oldest one if there are too many.
    pub(crate) fn archive_task(&mut self, id: TaskId) {
        self.over.push_back(id);
        if self.over.len() > ENDED_TASKS_MAX
            && let Some(task) = self.over.pop_front().and_then(|oldest| self.all.remove(&oldest))
        {
            self.by_upid.remove(&task.upid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_upids_are_refused() {
        let good = "UPID:pve1:000043FD:0009433D:6AFA0639:qmcreate:100:root@pam!probe:";
        assert_eq!(parse_upid(good), Some(ParsedUpid { node: "pve1", user: "root@pam!probe" }));
        assert!(parse_upid("UPID:pve1:000043FD:10009433D:6AFA0639:aptupdate::root@pam:").is_some(), "the id may be empty");
        for wrong in ["foo", "", &good[..good.len() - 1], &good.replace("000043FD", "43FD"), &good.replace("pve1", "")] {
            assert_eq!(parse_upid(wrong), None, "{wrong}");
        }
    }
}
