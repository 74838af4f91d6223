//! Tasks: their names (UPID), states, logs, and the lists that nodes keep of them.
//!
//! What never enters here: what a task does to a guest (see `work`), and when it goes on (see
//! `engine`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::access::ApiCaller;
use crate::task_work::TaskWork;

/// So many tasks that are over are remembered; a busy node forgets the older ones.
const ENDED_TASKS_MAX: usize = 4_096;

/// A task's number within the world, in the order of birth.
pub(crate) type TaskId = u64;

/// Where a task stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LabTaskState {
    /// Another worker holds the guest.
    Waiting,
    /// Ends then; `None`: never by itself.
    Running { ends_ms: Option<u64> },
    /// Over, with its exit status. A list may learn of it later.
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
    /// What it is about, mostly a guest's number.
    pub(crate) about: String,
    /// The full name of the caller, token included.
    pub(crate) user: String,
    pub(crate) state: LabTaskState,
    pub(crate) log: Vec<String>,
    pub(crate) work: TaskWork,
    /// The guest that it holds while it runs.
    pub(crate) holds: Option<u32>,
    /// How the work went, known before the task ends.
    pub(crate) outcome: Result<(), String>,
    /// Warnings that it will end with.
    pub(crate) warnings: u32,
    /// Forked by another task: the node's list learns late of its end.
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

    /// Who started it.
    pub(crate) fn caller(&self) -> ApiCaller {
        let (user, token) = self.owner();
        ApiCaller { user: user.to_owned(), token: token.map(str::to_owned) }
    }

    /// User and token apart: `root@pam`, `probe`.
    pub(crate) fn owner(&self) -> (&str, Option<&str>) {
        self.user.split_once('!').map_or((self.user.as_str(), None), |(user, token)| (user, Some(token)))
    }
}

/// A status that is no error.
pub(crate) fn is_success(status: &str) -> bool {
    status == "OK" || status.starts_with("WARNINGS: ")
}

/// What a UPID says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedUpid<'a> {
    pub(crate) node: &'a str,
    pub(crate) user: &'a str,
}

/// Parse `UPID:node:pid:pstart:starttime:type:id:user:`.
pub(crate) fn parse_upid(text: &str) -> Option<ParsedUpid<'_>> {
    let parts: Vec<&str> = text.split(':').collect();
    let [head, node, pid, pstart, start, kind, _, user, end] = parts.as_slice() else { return None };
    let hex = |part: &str, lengths: &[usize]| lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shaped = *head == "UPID" && end.is_empty() && !node.is_empty() && !kind.is_empty() && !user.is_empty();
    let numbers = hex(pid, &[8]) && hex(pstart, &[8, 9]) && hex(start, &[8]);
    (shaped && numbers).then_some(ParsedUpid { node, user })
}

/// All tasks of the world, and who holds which guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct LabTasks {
    pub(crate) all: BTreeMap<TaskId, LabTask>,
    by_upid: BTreeMap<String, TaskId>,
    next: TaskId,
    /// The task that holds a guest.
    pub(crate) holders: BTreeMap<u32, TaskId>,
    /// Guests whose lock files a process outside of Proxmox holds.
    pub(crate) lock_files: BTreeSet<u32>,
    /// Tasks that wait for a guest, first come first served.
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

    /// Tasks of a node, newest first.
    pub(crate) fn tasks_of_node<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a LabTask> {
        self.all.values().rev().filter(move |task| task.node == node)
    }

    /// Queue up for a guest.
    pub(crate) fn wait_for_guest(&mut self, vmid: u32, id: TaskId) {
        self.waiting.entry(vmid).or_default().push_back(id);
    }

    /// The next that waits for a guest; one that gave up is passed over.
    pub(crate) fn next_waiting(&mut self, vmid: u32) -> Option<TaskId> {
        let queue = self.waiting.get_mut(&vmid)?;
        let still = |id: &TaskId| self.all.get(id).is_some_and(|task| task.state == LabTaskState::Waiting);
        std::iter::from_fn(|| queue.pop_front()).find(still)
    }

    /// Remember a task that is over, and forget the oldest one if there are too many.
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
