//! A few guests that start, stop and accept config, and a clock that advances when someone waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use converger_core::action::{Change, FieldChange};
use converger_core::apply::{
    BootId, EnvFault, EnvFaultKind, EnvRequest, EnvResponse, GuestAddress, LiveConfig, LiveStatus, SendResult, TaskId, TaskState, Uptime,
};
use converger_core::guest::{GuestKind, NodeName, RunState};
use converger_core::normalize::{Field, FieldValue};
use converger_core::observe::{EffectiveValues, PendingChange};
use serde_json::{Value as Json, json};

use crate::clock::Clock;
use crate::executor::Actuator;
use crate::testing;

const TASK_MS: u64 = 2_000;

#[derive(Clone)]
struct EngineTestGuest {
    is_running: bool,
    up_since_ms: u64,
    cores: u32,
    pending: Option<u32>,
}

struct EngineTestTask {
    id: TaskId,
    vmid: u32,
    change: Change,
    began_ms: u64,
    is_failed: bool,
}

#[derive(Default)]
struct TestClusterState {
    now_ms: u64,
    /// How often the local machine was started, and when it was last.
    boots: u64,
    booted_ms: u64,
    guests: BTreeMap<u32, EngineTestGuest>,
    tasks: Vec<EngineTestTask>,
    sent: Vec<(u32, String)>,
    request_count: u64,
    /// Tasks of these guests fail.
    failing_guests: Vec<u32>,
    /// These guests ignore a shutdown.
    unresponsive_guests: Vec<u32>,
    on_send: Option<Box<dyn FnOnce() + Send>>,
    on_permit: Option<Box<dyn FnOnce() + Send>>,
    /// Hooks that run before each of the next clock reads.
    on_clock_reads: VecDeque<Box<dyn FnOnce() + Send>>,
    /// From this request on there are no responses.
    dies_at: Option<u64>,
    /// The responses to the sends with these numbers are lost.
    lost_responses: Vec<usize>,
    /// The node where all guests are now; they were planned on the nodes of their rows.
    current_node: Option<NodeName>,
    /// The maximum number of concurrent tasks so far.
    tasks_max: usize,
}

/// The cluster; clones share it.
#[derive(Clone, Default)]
pub(super) struct TestCluster(Arc<Mutex<TestClusterState>>);

/// A clock that advances with each wait, and the cluster with it.
pub(super) struct TestClusterClock(TestCluster);

impl TestClusterClock {
    pub(super) fn new(now_ms: u64, world: TestCluster) -> Self {
        {
            let mut inner = world.lock();
            inner.now_ms = inner.now_ms.max(now_ms);
        }
        Self(world)
    }
}

impl Clock for TestClusterClock {
    fn now_ms(&self) -> u64 {
        self.0.lock().now_ms
    }

    fn monotonic_ms(&self) -> u64 {
        let callback = self.0.lock().on_clock_reads.pop_front();
        if let Some(callback) = callback {
            callback();
        }
        self.now_ms()
    }

    fn uptime(&self) -> Option<Uptime> {
        let inner = self.0.lock();
        Some(Uptime { boot: BootId::new(&format!("boot-{}", inner.boots)).expect("an id"), ms: inner.now_ms - inner.booted_ms })
    }

    async fn sleep(&self, ms: u64) {
        self.0.lock().now_ms += ms;
        tokio::task::yield_now().await;
    }
}

impl TestCluster {
    pub(super) fn new(guests: &[(u32, &str)]) -> Self {
        let guest = |state: &str| EngineTestGuest { is_running: state == "running", up_since_ms: 0, cores: 2, pending: None };
        let guests = guests.iter().map(|(vmid, state)| (*vmid, guest(state))).collect();
        Self(Arc::new(Mutex::new(TestClusterState { guests, ..TestClusterState::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, TestClusterState> {
        self.0.lock().expect("unpoisoned")
    }

    pub(super) fn fail_tasks_of(&self, vmid: u32) {
        self.lock().failing_guests.push(vmid);
    }

    /// Its shutdown times out.
    pub(super) fn ignore_shutdown_of(&self, vmid: u32) {
        self.lock().unresponsive_guests.push(vmid);
    }

    pub(super) fn on_first_send(&self, callback: impl FnOnce() + Send + 'static) {
        self.lock().on_send = Some(Box::new(callback));
    }

    /// Runs a hook while the first change waits for its permit.
    pub(super) fn on_first_permit(&self, callback: impl FnOnce() + Send + 'static) {
        self.lock().on_permit = Some(Box::new(callback));
    }

    /// Runs a hook between the next clock read and the one after it.
    pub(super) fn after_next_clock_read(&self, callback: impl FnOnce() + Send + 'static) {
        self.lock().on_clock_reads = VecDeque::from([Box::new(|| ()) as Box<dyn FnOnce() + Send>, Box::new(callback)]);
    }

    /// From the request with this number on, counted from now, there are no responses.
    pub(super) fn stop_answering_at(&self, number: Option<u64>) {
        let mut inner = self.lock();
        inner.dies_at = number.map(|number| inner.request_count + number);
    }

    pub(super) fn advance_time(&self, ms: u64) {
        self.lock().now_ms += ms;
    }

    /// Restarts the local machine.
    pub(super) fn reboot_local_machine(&self) {
        let mut inner = self.lock();
        (inner.boots, inner.booted_ms) = (inner.boots + 1, inner.now_ms);
    }

    pub(super) fn request_count(&self) -> u64 {
        self.lock().request_count
    }

    /// Moves all guests to this node.
    pub(super) fn move_all_to(&self, node: &str) {
        self.lock().current_node = NodeName::new(node);
    }

    pub(super) fn concurrent_tasks_max(&self) -> usize {
        self.lock().tasks_max
    }

    /// The response to the send with this number is lost, after the change was executed.
    pub(super) fn lose_response_to(&self, number: usize) {
        self.lock().lost_responses.push(number);
    }

    /// The number of changes sent to each guest.
    pub(super) fn send_counts(&self) -> BTreeMap<u32, u32> {
        let mut sends = BTreeMap::new();
        for (vmid, _) in &self.lock().sent {
            *sends.entry(*vmid).or_default() += 1;
        }
        sends
    }

    /// The changes sent, in order.
    pub(super) fn sent_changes(&self) -> Vec<(u32, String)> {
        self.lock().sent.clone()
    }

    /// The rows of an observation, after all tasks have ended.
    pub(super) fn read_rows(&self) -> Vec<Json> {
        let mut inner = self.lock();
        inner.now_ms += 10 * TASK_MS;
        inner.finish_due_tasks();
        let rows = inner.guests.iter().map(|(vmid, guest)| {
            let mut row = testing::guest_row(*vmid, if guest.is_running { "running" } else { "stopped" });
            row["config"] = json!({ "cores": guest.cores });
            if let Some(cores) = guest.pending {
                row["pending"] = json!([{ "key": "cores", "value": cores }]);
            }
            row
        });
        rows.collect()
    }
}

impl TestClusterState {
    /// Applies the effects of tasks that are due.
    fn finish_due_tasks(&mut self) {
        let now_ms = self.now_ms;
        let ended: Vec<(u32, Change)> = self
            .tasks
            .iter()
            .filter(|task| !task.is_failed && task.began_ms + TASK_MS <= now_ms)
            .map(|task| (task.vmid, task.change.clone()))
            .collect();
        self.tasks.retain(|task| task.is_failed || task.began_ms + TASK_MS > now_ms);
        for (vmid, change) in ended {
            let guest = self.guests.get_mut(&vmid).expect("it is there");
            let was_up = guest.is_running;
            guest.is_running = change.resulting_state() == Some(RunState::Running);
            if guest.is_running && (!was_up || matches!(change, Change::Reboot { .. })) {
                guest.up_since_ms = now_ms;
            }
            guest.cores = guest.pending.take().unwrap_or(guest.cores);
        }
    }

    fn respond(&mut self, request: &EnvRequest) -> EnvResponse {
        self.finish_due_tasks();
        match (request, self.current_node.clone()) {
            (EnvRequest::Status(address) | EnvRequest::Config(address), Some(current_node)) if address.node != current_node => {
                EnvResponse::GuestNotFound(testing::test_fault(EnvFaultKind::GuestNotFound))
            }
            (EnvRequest::Locate(vmid), Some(node)) => EnvResponse::Located(Some(GuestAddress { node, kind: GuestKind::Qemu, vmid: *vmid })),
            _ => self.respond_on_node(request),
        }
    }

    fn respond_on_node(&mut self, request: &EnvRequest) -> EnvResponse {
        match request {
            EnvRequest::Cluster => testing::cluster_response(),
            EnvRequest::Status(address) => EnvResponse::Status(self.live_status(address.vmid.get())),
            EnvRequest::Config(address) => EnvResponse::Config(Box::new(self.live_config(address.vmid.get()))),
            EnvRequest::Snapshots(_) => EnvResponse::Snapshots(converger_core::observe::SnapshotTree::default()),
            EnvRequest::IdState(_) => EnvResponse::IdState(converger_core::apply::IdState::Free),
            EnvRequest::Locate(_) => EnvResponse::Located(None),
            EnvRequest::Send { address, change, .. } => EnvResponse::Sent(self.start_task(address.vmid.get(), change)),
            EnvRequest::Task(task) => EnvResponse::Task(match self.tasks.iter().find(|own| own.id == *task) {
                Some(own) if self.unresponsive_guests.contains(&own.vmid) => {
                    TaskState::Failed { cause: testing::test_fault(EnvFaultKind::ShutdownTimeout), age_secs: None }
                }
                Some(own) if own.is_failed => TaskState::Failed { cause: testing::test_fault(EnvFaultKind::Other), age_secs: None },
                Some(_) => TaskState::Running,
                None => TaskState::Ended { warnings: 0, age_secs: None },
            }),
            EnvRequest::Tasks { address, .. } => {
                let guest_tasks = self.tasks.iter().filter(|task| task.vmid == address.vmid.get());
                EnvResponse::Tasks(guest_tasks.map(|task| testing::running_task(task.id.as_str())).collect())
            }
        }
    }

    fn live_status(&self, vmid: u32) -> LiveStatus {
        let guest = &self.guests[&vmid];
        testing::live_status(if guest.is_running { "running" } else { "stopped" }, (self.now_ms - guest.up_since_ms) / 1000)
    }

    fn live_config(&self, vmid: u32) -> LiveConfig {
        let guest = &self.guests[&vmid];
        let pending = guest.pending.map(|cores| PendingChange::Known(Field::Cores, Some(FieldValue::Count(cores))));
        let values = EffectiveValues::new(vec![(Field::Cores, FieldValue::Count(guest.cores))]);
        LiveConfig { values, pending: pending.into_iter().collect(), ..testing::live_config(2) }
    }

    fn start_task(&mut self, vmid: u32, change: &Change) -> SendResult {
        assert!(self.tasks.iter().all(|task| task.vmid != vmid || task.is_failed), "two operations on guest {vmid} at once (G12)");
        self.sent.push((vmid, change.word().to_owned()));
        let number = self.sent.len();
        if let Some(callback) = self.on_send.take() {
            callback();
        }
        let sent = match change {
            Change::ConfigSet(fields) => self.write_config(vmid, fields),
            _ => {
                let id = testing::test_task_id(&format!("T{number}"));
                let is_failed = self.failing_guests.contains(&vmid)
                    || (self.unresponsive_guests.contains(&vmid) && matches!(change, Change::Shutdown { .. }));
                self.tasks.push(EngineTestTask { id: id.clone(), vmid, change: change.clone(), began_ms: self.now_ms, is_failed });
                self.tasks_max = self.tasks_max.max(self.tasks.len());
                SendResult::Task(id)
            }
        };
        if self.lost_responses.contains(&number) { SendResult::MaybeExecuted(testing::test_fault(EnvFaultKind::Other)) } else { sent }
    }

    fn write_config(&mut self, vmid: u32, fields: &[FieldChange]) -> SendResult {
        let guest = self.guests.get_mut(&vmid).expect("it is there");
        let [field] = fields else { panic!("{fields:?}") };
        let Some(FieldValue::Count(cores)) = field.after else { panic!("{fields:?}") };
        if guest.is_running {
            guest.pending = Some(cores);
        } else {
            guest.cores = cores;
        }
        SendResult::Done
    }
}

impl Actuator for TestCluster {
    type Permit = ();

    async fn acquire_permit(&self, _place: GuestAddress) -> Result<(), EnvFault> {
        let callback = self.lock().on_permit.take();
        if let Some(callback) = callback {
            callback();
            // Wait a while longer, so that other tasks continue.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    async fn send(&self, (): (), request: EnvRequest) -> EnvResponse {
        self.request(request).await
    }

    async fn request(&self, request: EnvRequest) -> EnvResponse {
        let answer = {
            let mut inner = self.lock();
            inner.request_count += 1;
            let is_dead = inner.dies_at.is_some_and(|at| inner.request_count >= at);
            // The request at which it dies is executed but not answered; later ones never arrive.
            (!is_dead || inner.dies_at == Some(inner.request_count)).then(|| inner.respond(&request)).filter(|_| !is_dead)
        };
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}
