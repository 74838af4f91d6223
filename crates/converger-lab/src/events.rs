//! Time: scheduled events in order, the life cycle of tasks, and the guest locks that tasks hold.
//!
//! What a task does is in `task_work`; what nodes broadcast to each other is in `node_view`.

use crate::access::ApiCaller;
use crate::fault::{TaskFaultEffect, WorldEvent};
use crate::task::{LabTask, LabTaskState, TaskId};
use crate::task_work::{self, TaskWork};
use crate::wire::LabRequest;
use crate::world::World;

/// How long a worker waits for a guest that another task holds.
pub(crate) const LOCK_WAIT_MS: u64 = 10_000;

/// How long a task takes that fails at once.
const FAILED_TASK_MS: u64 = 40;

/// An event that is scheduled for a later time.
#[derive(Clone, Debug)]
pub(crate) enum ScheduledEvent {
    /// The work of a task is done.
    TaskEnds(TaskId),
    /// A task stops waiting for its guest lock.
    TaskGivesUp(TaskId),
    /// A container stops because a task migrates it to another node.
    ContainerGoesDown(TaskId),
    /// A slow node executes a request whose client has already timed out.
    DelayedRequest(String, LabRequest),
    /// The HA manager runs its next cycle.
    RunHaManager,
    /// An external event: a fault or a recovery.
    WorldEvent(WorldEvent),
}

/// What is needed to start a task.
pub(crate) struct NewTask<'a> {
    pub(crate) node: &'a str,
    pub(crate) user: String,
    pub(crate) kind: String,
    pub(crate) about: String,
    /// The guest that it must lock.
    pub(crate) holds: Option<u32>,
    pub(crate) work: TaskWork,
}

impl<'a> NewTask<'a> {
    /// A task about a guest, which holds the guest's lock while it runs.
    pub(crate) fn holding_guest(node: &'a str, caller: &ApiCaller, kind: &str, vmid: u32, work: TaskWork) -> Self {
        Self { node, user: caller.id(), kind: kind.to_owned(), about: vmid.to_string(), holds: Some(vmid), work }
    }

    /// A task of a node that is not about a guest.
    pub(crate) fn for_node(node: &'a str, caller: &ApiCaller, kind: &str, about: &str, work: TaskWork) -> Self {
        Self { node, user: caller.id(), kind: kind.to_owned(), about: about.to_owned(), holds: None, work }
    }

    /// A task about a guest that does not lock it.
    pub(crate) fn without_guest_lock(node: &'a str, caller: &ApiCaller, kind: &str, vmid: u32, work: TaskWork) -> Self {
        Self { holds: None, ..Self::holding_guest(node, caller, kind, vmid, work) }
    }
}

impl World {
    /// Advances time. Handles events in order; between them, nodes broadcast their guests.
    pub(crate) fn advance(&mut self, to_ms: u64) {
        while let Some(next) = self.events.first_entry().filter(|next| next.key().0 <= to_ms) {
            let ((at_ms, _), event) = next.remove_entry();
            // While HA is settled, its cycles change nothing: skip the broadcasts, because an hour has hundreds of cycles.
            if matches!(event, ScheduledEvent::RunHaManager) && self.is_ha_settled() {
                self.now_ms = self.now_ms.max(at_ms);
                self.schedule_ha_manager();
                continue;
            }
            self.move_clock(at_ms);
            self.handle_event(event);
        }
        self.move_clock(to_ms);
    }

    fn move_clock(&mut self, to_ms: u64) {
        self.now_ms = self.now_ms.max(to_ms);
        self.broadcast_guests();
    }

    pub(crate) fn schedule(&mut self, at_ms: u64, event: ScheduledEvent) {
        self.events_scheduled += 1;
        self.events.insert((at_ms, self.events_scheduled), event);
    }

    fn handle_event(&mut self, event: ScheduledEvent) {
        match event {
            ScheduledEvent::TaskEnds(id) => self.end_task(id),
            ScheduledEvent::TaskGivesUp(id) => self.give_up_waiting(id),
            ScheduledEvent::ContainerGoesDown(id) => task_work::stop_before_move(self, id),
            ScheduledEvent::DelayedRequest(entry, request) => {
                crate::route::run_late_request(self, &entry, &request);
            }
            ScheduledEvent::RunHaManager => self.run_ha_manager(),
            ScheduledEvent::WorldEvent(world_event) => crate::fault::apply_world_event(self, world_event),
        }
    }

    /// Starts a task and returns its UPID.
    pub(crate) fn start_task(&mut self, fork: NewTask<'_>) -> String {
        let id = self.add_task(fork, false);
        self.begin_or_queue(id);
        self.tasks.get(id).map(|task| task.upid.clone()).unwrap_or_default()
    }

    /// Starts a task from within another task. The node's task list shows its end late.
    pub(crate) fn start_nested_task(&mut self, fork: NewTask<'_>) {
        let id = self.add_task(fork, true);
        self.begin_or_queue(id);
    }

    fn add_task(&mut self, fork: NewTask<'_>, nested: bool) -> TaskId {
        let (now_ms, start_s) = (self.now_ms, self.node_clock_s(fork.node));
        let (pid, pstart) = self.nodes.get_mut(fork.node).map_or((1, 0), |node| (node.next_process_id(), node.boot_ticks(now_ms)));
        let NewTask { node, user, kind, about, holds, work } = fork;
        let upid = format!("UPID:{node}:{pid:08X}:{pstart:08X}:{start_s:08X}:{kind}:{about}:{user}:");
        let state = LabTaskState::Waiting;
        let node = node.to_owned();
        self.tasks.add_task(LabTask {
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
            fault: None,
            nested,
        })
    }

    fn begin_or_queue(&mut self, id: TaskId) {
        let holds = self.tasks.get(id).and_then(|task| task.holds);
        match holds {
            Some(vmid) if self.tasks.holders.contains_key(&vmid) || self.tasks.lock_files.contains(&vmid) => self.queue_for_guest(id, vmid),
            _ => self.begin_task(id),
        }
    }

    fn queue_for_guest(&mut self, id: TaskId, vmid: u32) {
        self.tasks.log_line(id, "trying to acquire lock...");
        self.tasks.wait_for_guest(vmid, id);
        self.schedule(self.now_ms.saturating_add(LOCK_WAIT_MS), ScheduledEvent::TaskGivesUp(id));
    }

    fn begin_task(&mut self, id: TaskId) {
        if let Some(vmid) = self.tasks.get(id).and_then(|task| task.holds) {
            self.tasks.holders.insert(vmid, id);
        }
        let fault = self.faults.next_task_fault(&self.tasks, id);
        let start_result = fault.as_ref().and_then(TaskFaultEffect::start_result).unwrap_or_else(|| task_work::begin_work(self, id));
        let (ends_ms, outcome) = match start_result {
            Ok(Some(duration_ms)) => {
                let duration_ms = fault.as_ref().map_or(duration_ms, |fault| fault.shorten(duration_ms));
                (Some(self.now_ms.saturating_add(duration_ms)), Ok(()))
            }
            Ok(None) => (None, Ok(())),
            Err(error) => (Some(self.now_ms.saturating_add(FAILED_TASK_MS)), Err(error)),
        };
        if let Some(task) = self.tasks.all.get_mut(&id) {
            task.state = LabTaskState::Running { ends_ms };
            task.outcome = outcome;
            task.fault = fault;
        }
        if let Some(at_ms) = ends_ms {
            self.schedule(at_ms, ScheduledEvent::TaskEnds(id));
        }
    }

    /// The work is done: apply its effects and write the last log line.
    fn end_task(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id).filter(|task| matches!(task.state, LabTaskState::Running { .. })) else { return };
        let (began, fault) = (task.outcome.clone(), task.fault.clone());
        let outcome = match (&began, &fault) {
            (Err(_), _) | (_, Some(TaskFaultEffect::DoNothing)) => began,
            (_, Some(TaskFaultEffect::Killed)) => {
                task_work::leave_half_done(self, id);
                return self.kill_task(id);
            }
            (_, Some(TaskFaultEffect::FailAfter(text))) => task_work::finish_work(self, id).and(Err(text.clone())),
            _ => task_work::finish_work(self, id),
        };
        match (outcome, fault) {
            (Ok(()), Some(TaskFaultEffect::Warnings(count))) if count > 0 => {
                self.end_with_log_line(id, format!("TASK WARNINGS: {count}"), format!("WARNINGS: {count}"));
            }
            (Ok(()), _) => self.end_with_log_line(id, "TASK OK".to_owned(), "OK".to_owned()),
            (Err(error), _) => self.end_with_log_line(id, format!("TASK ERROR: {error}"), error),
        }
    }

    fn give_up_waiting(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id).filter(|task| task.state == LabTaskState::Waiting) else { return };
        let kind = crate::task_work::guest_kind_of(task);
        let error = task.holds.map_or(String::new(), |vmid| lock_timeout_text(&kind.lock_file(vmid)));
        self.end_with_log_line(id, format!("TASK ERROR: {error}"), error);
    }

    /// Stops a task on request. Its final effects are not applied; what it already did stays.
    pub(crate) fn interrupt_task(&mut self, id: TaskId) {
        if self.tasks.get(id).is_some_and(|task| !task.is_over()) {
            task_work::interrupt_work(self, id);
            self.end_with_log_line(id, "TASK ERROR: received interrupt".to_owned(), "received interrupt".to_owned());
        }
    }

    /// Ends a task whose process disappeared without a log line, as after a crash of its node.
    pub(crate) fn kill_task(&mut self, id: TaskId) {
        if self.tasks.get(id).is_some_and(|task| !task.is_over()) {
            self.end_with_status(id, "unexpected status".to_owned());
        }
    }

    fn end_with_log_line(&mut self, id: TaskId, line: String, status: String) {
        self.tasks.log_line(id, line);
        self.end_with_status(id, status);
    }

    fn end_with_status(&mut self, id: TaskId, status: String) {
        let Some(task) = self.tasks.get(id) else { return };
        let at_s = self.node_clock_s(&task.node);
        let late = self.nodes.get(&task.node).and_then(|node| Some(node.last_broadcast_ms(self.now_ms)?.saturating_add(node.cycle_ms)));
        let listed_ms = if task.nested { late.unwrap_or(self.now_ms) } else { self.now_ms };
        let holds = task.holds.filter(|vmid| self.tasks.holders.get(vmid) == Some(&id));
        if let Some(task) = self.tasks.all.get_mut(&id) {
            task.state = LabTaskState::Ended { at_s, status, listed_ms };
        }
        self.tasks.archive_task(id);
        if let Some(vmid) = holds {
            self.release_guest(vmid);
        }
    }

    fn release_guest(&mut self, vmid: u32) {
        self.tasks.holders.remove(&vmid);
        if self.tasks.lock_files.contains(&vmid) {
            return;
        }
        if let Some(next) = self.tasks.next_waiting(vmid) {
            self.tasks.log_line(next, " OK");
            self.begin_task(next);
        }
    }

    /// Releases the lock file that a process outside Proxmox held.
    pub(crate) fn free_lock_file(&mut self, vmid: u32) {
        if self.tasks.lock_files.remove(&vmid) && !self.tasks.holders.contains_key(&vmid) {
            self.release_guest(vmid);
        }
    }

    /// Waits until no task holds the guest, as a synchronous call does. Returns how long that took, or the error after ten seconds.
    ///
    /// Time in the world advances while the caller waits.
    pub(crate) fn wait_for_guest_lock(&mut self, vmid: u32, lock_file: &str) -> Result<u64, (String, u64)> {
        if self.tasks.lock_files.contains(&vmid) {
            return Err((lock_timeout_text(lock_file), LOCK_WAIT_MS));
        }
        let began_ms = self.now_ms;
        while let Some(holder) = self.tasks.holders.get(&vmid).and_then(|id| self.tasks.get(*id)) {
            let ends = match holder.state {
                LabTaskState::Running { ends_ms: Some(ends_ms) } if ends_ms <= began_ms + LOCK_WAIT_MS => ends_ms,
                _ => return Err((lock_timeout_text(lock_file), LOCK_WAIT_MS)),
            };
            self.advance(ends);
        }
        Ok(self.now_ms - began_ms)
    }
}

fn lock_timeout_text(file: &str) -> String {
    format!("can't lock file '{file}' - got timeout")
}
