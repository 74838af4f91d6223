//! Time: events in order, tasks that begin, wait, end, and the guests that they hold meanwhile.
//!
//! What never enters here: what a task does (see `work`), and what nodes tell each other (see
//! `view`).

use crate::access::Who;
use crate::fault::{Act, TaskTwist};
use crate::task::{State, Task, TaskId};
use crate::wire::Request;
use crate::work::{self, Work};
use crate::world::World;

/// A worker waits so long for a guest that another one holds.
pub(crate) const LOCK_WAIT_MS: u64 = 10_000;

/// A task that fails at once still takes a moment.
const FAILED_MS: u64 = 40;

/// What happens later.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A task comes to its end.
    Ends(TaskId),
    /// A task has waited long enough.
    GivesUp(TaskId),
    /// A container goes down that a task moves to another node.
    GoesDown(TaskId),
    /// A request that a slow node carries out although nobody waits any more.
    Later(String, Request),
    /// High availability looks around.
    Manage,
    /// Something goes wrong, or right again.
    Fault(Act),
}

/// What a task is forked with.
pub(crate) struct Fork<'a> {
    pub(crate) node: &'a str,
    pub(crate) user: String,
    pub(crate) kind: String,
    pub(crate) about: String,
    /// The guest that it must hold.
    pub(crate) holds: Option<u32>,
    pub(crate) work: Work,
}

impl<'a> Fork<'a> {
    /// A task about a guest, which it holds while it runs.
    pub(crate) fn holding(node: &'a str, who: &Who, kind: &str, vmid: u32, work: Work) -> Self {
        Self { node, user: who.id(), kind: kind.to_owned(), about: vmid.to_string(), holds: Some(vmid), work }
    }

    /// A task of a node that is about something else than a guest.
    pub(crate) fn of_node(node: &'a str, who: &Who, kind: &str, about: &str, work: Work) -> Self {
        Self { node, user: who.id(), kind: kind.to_owned(), about: about.to_owned(), holds: None, work }
    }

    /// A task about a guest that leaves it free for others.
    pub(crate) fn beside(node: &'a str, who: &Who, kind: &str, vmid: u32, work: Work) -> Self {
        Self { holds: None, ..Self::holding(node, who, kind, vmid, work) }
    }
}

impl World {
    /// Let time pass. Events come in order; between them nodes tell each other about their guests.
    pub(crate) fn advance(&mut self, to_ms: u64) {
        while let Some(next) = self.events.first_entry().filter(|next| next.key().0 <= to_ms) {
            let ((at_ms, _), event) = next.remove_entry();
            // Nobody has to tell anything between looks at what is as wanted: an hour has hundreds of them.
            if matches!(event, Event::Manage) && self.is_managed() {
                self.now_ms = self.now_ms.max(at_ms);
                self.look_again();
                continue;
            }
            self.pass(at_ms);
            self.happen(event);
        }
        self.pass(to_ms);
    }

    fn pass(&mut self, to_ms: u64) {
        self.now_ms = self.now_ms.max(to_ms);
        self.tell();
    }

    pub(crate) fn schedule(&mut self, at_ms: u64, event: Event) {
        self.events_made += 1;
        self.events.insert((at_ms, self.events_made), event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ends(id) => self.end(id),
            Event::GivesUp(id) => self.give_up(id),
            Event::GoesDown(id) => work::go_down(self, id),
            Event::Later(entry, request) => {
                crate::route::carry_out(self, &entry, &request);
            }
            Event::Manage => self.manage(),
            Event::Fault(act) => crate::fault::carry_out(self, act),
        }
    }

    /// Start a task and return its UPID.
    pub(crate) fn fork(&mut self, fork: Fork<'_>) -> String {
        let id = self.add_task(fork, false);
        self.try_begin(id);
        self.tasks.get(id).map(|task| task.upid.clone()).unwrap_or_default()
    }

    /// Start a task out of another one: the list of the node learns late of its end.
    pub(crate) fn fork_nested(&mut self, fork: Fork<'_>) {
        let id = self.add_task(fork, true);
        self.try_begin(id);
    }

    fn add_task(&mut self, fork: Fork<'_>, nested: bool) -> TaskId {
        let (now_ms, start_s) = (self.now_ms, self.wall_s_of(fork.node));
        let (pid, pstart) = self.nodes.get_mut(fork.node).map_or((1, 0), |node| (node.pid(), node.ticks(now_ms)));
        let Fork { node, user, kind, about, holds, work } = fork;
        let upid = format!("UPID:{node}:{pid:08X}:{pstart:08X}:{start_s:08X}:{kind}:{about}:{user}:");
        let state = State::Waiting;
        let node = node.to_owned();
        self.tasks.add(Task {
            upid,
            node,
            pid,
            pstart,
            start_s,
            kind,
            about,
            user,
            state,
            log: Vec::new(),
            work,
            holds,
            outcome: Ok(()),
            warnings: 0,
            nested,
        })
    }

    fn try_begin(&mut self, id: TaskId) {
        let holds = self.tasks.get(id).and_then(|task| task.holds);
        match holds {
            Some(vmid) if self.tasks.holders.contains_key(&vmid) || self.tasks.lock_files.contains(&vmid) => self.queue(id, vmid),
            _ => self.begin(id),
        }
    }

    fn queue(&mut self, id: TaskId, vmid: u32) {
        self.tasks.log(id, "trying to acquire lock...");
        self.tasks.wait(vmid, id);
        self.schedule(self.now_ms.saturating_add(LOCK_WAIT_MS), Event::GivesUp(id));
    }

    fn begin(&mut self, id: TaskId) {
        if let Some(vmid) = self.tasks.get(id).and_then(|task| task.holds) {
            self.tasks.holders.insert(vmid, id);
        }
        let twist = self.faults.task(&self.tasks, id);
        let warnings = twist.as_ref().map_or(0, TaskTwist::warnings);
        let begun = twist.and_then(|twist| twist.begin()).unwrap_or_else(|| work::begin(self, id));
        let (ends_ms, outcome) = match begun {
            Ok(Some(duration_ms)) => (Some(self.now_ms.saturating_add(duration_ms)), Ok(())),
            Ok(None) => (None, Ok(())),
            Err(error) => (Some(self.now_ms.saturating_add(FAILED_MS)), Err(error)),
        };
        if let Some(task) = self.tasks.all.get_mut(&id) {
            task.state = State::Running { ends_ms };
            task.outcome = outcome;
            task.warnings = warnings;
        }
        if let Some(at_ms) = ends_ms {
            self.schedule(at_ms, Event::Ends(id));
        }
    }

    /// The work is done: apply it and write the last line.
    fn end(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id).filter(|task| matches!(task.state, State::Running { .. })) else { return };
        let warnings = task.warnings;
        let outcome = task.outcome.clone().and_then(|()| work::finish(self, id));
        match outcome {
            Ok(()) if warnings > 0 => self.conclude(id, format!("TASK WARNINGS: {warnings}"), format!("WARNINGS: {warnings}")),
            Ok(()) => self.conclude(id, "TASK OK".to_owned(), "OK".to_owned()),
            Err(error) => self.conclude(id, format!("TASK ERROR: {error}"), error),
        }
    }

    fn give_up(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id).filter(|task| task.state == State::Waiting) else { return };
        let kind = crate::work::kind_of(task);
        let error = task.holds.map_or(String::new(), |vmid| lock_timeout(&kind.lock_file(vmid)));
        self.conclude(id, format!("TASK ERROR: {error}"), error);
    }

    /// End a task from outside. Its work is not applied; what it had done stays.
    pub(crate) fn interrupt(&mut self, id: TaskId) {
        if self.tasks.get(id).is_some_and(|task| !task.is_over()) {
            work::interrupted(self, id);
            self.conclude(id, "TASK ERROR: received interrupt".to_owned(), "received interrupt".to_owned());
        }
    }

    /// A task whose process is gone without a word, as after a crash of its node.
    pub(crate) fn kill(&mut self, id: TaskId) {
        if self.tasks.get(id).is_some_and(|task| !task.is_over()) {
            self.conclude_silently(id, "unexpected status".to_owned());
        }
    }

    fn conclude(&mut self, id: TaskId, line: String, status: String) {
        self.tasks.log(id, line);
        self.conclude_silently(id, status);
    }

    fn conclude_silently(&mut self, id: TaskId, status: String) {
        let Some(task) = self.tasks.get(id) else { return };
        let at_s = self.wall_s_of(&task.node);
        let late =
            self.nodes.get(&task.node).and_then(|node| node.last_cycle(self.now_ms)).map(|last| last.saturating_add(crate::node::CYCLE_MS));
        let listed_ms = if task.nested { late.unwrap_or(self.now_ms) } else { self.now_ms };
        let holds = task.holds.filter(|vmid| self.tasks.holders.get(vmid) == Some(&id));
        if let Some(task) = self.tasks.all.get_mut(&id) {
            task.state = State::Ended { at_s, status, listed_ms };
        }
        self.tasks.archive(id);
        if let Some(vmid) = holds {
            self.release(vmid);
        }
    }

    fn release(&mut self, vmid: u32) {
        self.tasks.holders.remove(&vmid);
        if self.tasks.lock_files.contains(&vmid) {
            return;
        }
        if let Some(next) = self.tasks.next_waiting(vmid) {
            self.tasks.log(next, " OK");
            self.begin(next);
        }
    }

    /// The process outside of Proxmox that held a guest's lock file has ended.
    pub(crate) fn free_lock_file(&mut self, vmid: u32) {
        if self.tasks.lock_files.remove(&vmid) && !self.tasks.holders.contains_key(&vmid) {
            self.release(vmid);
        }
    }

    /// Wait until nobody holds a guest, as a synchronous call does: how long it took, or the error after ten seconds.
    ///
    /// The world moves on while the caller waits.
    pub(crate) fn wait_for(&mut self, vmid: u32, lock_file: &str) -> Result<u64, (String, u64)> {
        if self.tasks.lock_files.contains(&vmid) {
            return Err((lock_timeout(lock_file), LOCK_WAIT_MS));
        }
        let began_ms = self.now_ms;
        while let Some(holder) = self.tasks.holders.get(&vmid).and_then(|id| self.tasks.get(*id)) {
            let ends = match holder.state {
                State::Running { ends_ms: Some(ends_ms) } if ends_ms <= began_ms + LOCK_WAIT_MS => ends_ms,
                _ => return Err((lock_timeout(lock_file), LOCK_WAIT_MS)),
            };
            self.advance(ends);
        }
        Ok(self.now_ms - began_ms)
    }
}

fn lock_timeout(file: &str) -> String {
    format!("can't lock file '{file}' - got timeout")
}
