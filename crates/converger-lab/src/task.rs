//! Tasks: their names (UPID), states, logs, and the lists that nodes keep of them.
//!
//! What never enters here: what a task does to a guest (see `work`), and when it goes on (see
//! `engine`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::access::Who;
use crate::work::Work;

/// So many tasks that are over are remembered; a busy node forgets the older ones.
const REMEMBERED_MAX: usize = 4_096;

/// A task's number within the world, in the order of birth.
pub(crate) type TaskId = u64;

/// Where a task stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Another worker holds the guest.
    Waiting,
    /// Ends then; `None`: never by itself.
    Running { ends_ms: Option<u64> },
    /// Over, with its exit status. A list may learn of it later.
    Ended { at_s: u64, status: String, listed_ms: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct Task {
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
    pub(crate) state: State,
    pub(crate) log: Vec<String>,
    pub(crate) work: Work,
    /// The guest that it holds while it runs.
    pub(crate) holds: Option<u32>,
    /// How the work went, known before the task ends.
    pub(crate) outcome: Result<(), String>,
    /// Warnings that it will end with.
    pub(crate) warnings: u32,
    /// Forked by another task: the node's list learns late of its end.
    pub(crate) nested: bool,
}

impl Task {
    pub(crate) fn status(&self) -> Option<&str> {
        match &self.state {
            State::Ended { status, .. } => Some(status),
            State::Waiting | State::Running { .. } => None,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.status().is_some()
    }

    /// Whether the node's list still shows it as running.
    pub(crate) fn is_listed_active(&self, now_ms: u64) -> bool {
        match self.state {
            State::Ended { listed_ms, .. } => listed_ms > now_ms,
            State::Waiting | State::Running { .. } => true,
        }
    }

    /// Who started it.
    pub(crate) fn who(&self) -> Who {
        let (user, token) = self.owner();
        Who { user: user.to_owned(), token: token.map(str::to_owned) }
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
pub(crate) struct Upid<'a> {
    pub(crate) node: &'a str,
    pub(crate) user: &'a str,
}

/// Parse `UPID:node:pid:pstart:starttime:type:id:user:`.
pub(crate) fn parse(text: &str) -> Option<Upid<'_>> {
    let parts: Vec<&str> = text.split(':').collect();
    let [head, node, pid, pstart, start, kind, _, user, end] = parts.as_slice() else { return None };
    let hex = |part: &str, lengths: &[usize]| lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shaped = *head == "UPID" && end.is_empty() && !node.is_empty() && !kind.is_empty() && !user.is_empty();
    let numbers = hex(pid, &[8]) && hex(pstart, &[8, 9]) && hex(start, &[8]);
    (shaped && numbers).then_some(Upid { node, user })
}

/// All tasks of the world, and who holds which guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    pub(crate) all: BTreeMap<TaskId, Task>,
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

impl Tasks {
    pub(crate) fn add(&mut self, task: Task) -> TaskId {
        self.next += 1;
        self.by_upid.insert(task.upid.clone(), self.next);
        self.all.insert(self.next, task);
        self.next
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<&Task> {
        self.all.get(&id)
    }

    pub(crate) fn find(&self, upid: &str) -> Option<(TaskId, &Task)> {
        let id = *self.by_upid.get(upid)?;
        self.all.get(&id).map(|task| (id, task))
    }

    pub(crate) fn log(&mut self, id: TaskId, line: impl Into<String>) {
        if let Some(task) = self.all.get_mut(&id) {
            task.log.push(line.into());
        }
    }

    /// Tasks of a node, newest first.
    pub(crate) fn of_node<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Task> {
        self.all.values().rev().filter(move |task| task.node == node)
    }

    /// Queue up for a guest.
    pub(crate) fn wait(&mut self, vmid: u32, id: TaskId) {
        self.waiting.entry(vmid).or_default().push_back(id);
    }

    /// The next that waits for a guest; one that gave up is passed over.
    pub(crate) fn next_waiting(&mut self, vmid: u32) -> Option<TaskId> {
        let queue = self.waiting.get_mut(&vmid)?;
        let still = |id: &TaskId| self.all.get(id).is_some_and(|task| task.state == State::Waiting);
        std::iter::from_fn(|| queue.pop_front()).find(still)
    }

    /// Remember a task that is over, and forget the oldest one if there are too many.
    pub(crate) fn archive(&mut self, id: TaskId) {
        self.over.push_back(id);
        if self.over.len() > REMEMBERED_MAX
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
    fn what_is_no_upid_is_refused() {
        let good = "UPID:pve1:000043FD:0009433D:6AFA0639:qmcreate:100:root@pam!probe:";
        assert_eq!(parse(good), Some(Upid { node: "pve1", user: "root@pam!probe" }));
        assert!(parse("UPID:pve1:000043FD:10009433D:6AFA0639:aptupdate::root@pam:").is_some(), "the id may be empty");
        for wrong in ["foo", "", &good[..good.len() - 1], &good.replace("000043FD", "43FD"), &good.replace("pve1", "")] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
