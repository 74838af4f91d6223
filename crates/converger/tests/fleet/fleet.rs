//! Starting a fleet: the real runtime, executor and actuator with the lab in process, on a clock that advances only when all tasks wait. No
//! sockets and no real time; the numbers are the same on every machine.
//!
//! Every request and every commit costs virtual time, so that the engine's work between two tasks counts. The expectations are in
//! `main.rs`.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use converger_adapters::proxmox::actuator::{CallerIdentity, ProxmoxActuator};
use converger_adapters::proxmox::client::{NodePermit, ProxmoxSession, ProxmoxTransport, TokenId};
use converger_adapters::proxmox::codec::{HttpRequest, HttpResponse, ProxmoxFailure};
use converger_adapters::proxmox::observe::{self, ObservationRequest, ReadSet};
use converger_core::apply::{
    BootId, EnvFault, EnvRequest, EnvResponse, EnvironmentNames, Freeze, GuestAddress, Hold, IdempotencyKey, OperationEnd,
    OperationHistory, OperationId, RunId, RunStart as Started, TaskId, Uptime,
};
use converger_core::approve::{Admission, Admitted, ApprovalMode, ApprovedPlan, Confirmation, RefusedGuestPolicy, admit};
use converger_core::artifact::{Digest, Provenance};
use converger_core::desired::{self, Desired};
use converger_core::document::Notation;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::policy::{self, Circumstances, Rules};
use converger_core::safety::{Judged, judge};
use converger_core::testing::{some_binding, some_inputs};
use converger_core::{plan, safety};
use converger_engine::clock::Clock;
use converger_engine::executor::{Actuator, ExecutionReport, Executor, RunOptions, RunSignal, RunSubmission};
use converger_engine::schedule::ConcurrencyLimits;
use converger_lab::{GuestSpec, LabGuestKind, LabRequest, NodeSpec, TokenSpec, WireDelivery, World, WorldSpec};
use converger_store::{
    Batch, CommitAck, JournalOverview, LedgerHeads, LedgerRows, LogHash, MemoryStore, OperationFilter, RunHistory, Store, StoreConditions,
    StoreError, StoreReader, StoreWrite, Tile,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

const TOKEN: &str = "root@pam!fleet";
const SECRET: &str = "fleet";
/// The default start time of a lab.
const START_TIME: &str = "2026-11-15T00:00:00Z";
/// Round-trip time of a request.
const REQUEST_MS: u64 = 30;
/// Duration of a commit on a slow disk.
const COMMIT_MS: u64 = 5;

/// The fleet to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fleet {
    pub(crate) guests: u32,
    pub(crate) nodes: u32,
    /// Duration of one start task.
    pub(crate) start_ms: u64,
    pub(crate) limits: ConcurrencyLimits,
}

/// Records the run in the journal before anything else of it.
async fn record_run(store: &impl Store, approved: &ApprovedPlan) -> RunId {
    let id = RunId::new("fleet").unwrap_or_else(|| panic!("an id"));
    let environment = approved.plan().desired().environment().clone();
    let binding = StoreWrite::Bind(some_binding(&environment));
    let run = Started { id: id.clone(), environment, plan: approved.digest(), by: approved.approver().into(), at_ms: 1, boot: None };
    let started = store.commit(Batch::from(binding).with(StoreWrite::RunStarted { run, inputs: Box::new(some_inputs()) })).await;
    assert!(matches!(started, Ok(CommitAck::Written { .. })), "{started:?}");
    id
}

/// The result of starting a fleet.
pub(crate) struct FleetResult {
    pub(crate) report: ExecutionReport,
    pub(crate) took_ms: u64,
    pub(crate) requests: u64,
}

impl Fleet {
    /// A lower bound for any schedule: the busiest node, or everything in parallel, with tasks only and no gaps.
    pub(crate) fn ideal_ms(&self) -> u64 {
        let rounds = |starts: u32, at_once: u32| u64::from(starts.div_ceil(at_once.max(1)));
        let busiest = rounds(self.guests.div_ceil(self.nodes), self.limits.per_node);
        busiest.max(rounds(self.guests, self.limits.overall)) * self.start_ms
    }

    /// Starts the fleet with a store in memory; a commit takes its time.
    pub(crate) fn start(&self, store: &MemoryStore) -> FleetResult {
        store.delay_commits();
        let disk = store.clone();
        self.start_with(store.clone(), async move {
            loop {
                sleep(Duration::from_millis(COMMIT_MS)).await;
                while disk.commit_oldest() {}
            }
        })
    }

    /// Like [`Self::start`], with a store that works on other threads. Its work takes no virtual time, so only the counts are meaningful.
    pub(crate) fn start_on_threads(&self, store: impl Store + 'static) -> FleetResult {
        self.start_with(ThreadedStore(store), async {})
    }

    fn start_with(&self, store: impl Store + 'static, beside: impl Future<Output = ()> + Send + 'static) -> FleetResult {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap_or_else(|error| panic!("{error}")).block_on(async {
            // It ends with the runtime.
            tokio::spawn(beside);
            self.execute_fleet(store).await
        })
    }

    async fn execute_fleet(&self, store: impl Store + 'static) -> FleetResult {
        let yard = FleetLab::new(&self.setting());
        let desired = self.desired();
        let session = ProxmoxSession::new(yard.clone());
        let approved = approve_plan(&session, &desired, yard.now_ms()).await;
        let caller = CallerIdentity { token: TokenId::new(TOKEN).unwrap_or_else(|| panic!("a token")), cluster: Some("fleet".into()) };
        let actuator = Arc::new(FleetActuator(ProxmoxActuator::new(session, caller)));
        let store = Arc::new(store);
        let (_says, hears) = watch::channel(RunSignal::Continue);
        let environment = EnvironmentName::new("fleet").unwrap_or_else(|| panic!("a name"));
        let (executor, task) = Executor::new(environment, Arc::clone(&store), Arc::new(yard), self.limits, hears);
        tokio::spawn(task);
        let run = record_run(&*store, &approved).await;
        let (began, before) = (Instant::now(), actuator.0.request_count());
        let submission = RunSubmission {
            plan: approved,
            run,
            ids: Box::new(|number| OperationId::new(&format!("fleet-{number}"))),
            key: None,
            actuator: Arc::clone(&actuator),
            options: RunOptions::default(),
            on_notice: Box::new(|_| ()),
        };
        let slot = executor.reserve_slot().unwrap_or_else(|error| panic!("{error}"));
        let report = executor.submit(slot, submission).wait().await.unwrap_or_else(|error| panic!("{error}"));
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        FleetResult { report, took_ms, requests: actuator.0.request_count() - before }
    }

    fn setting(&self) -> WorldSpec {
        let node = |index: u32| format!("pve{}", 1 + index % self.nodes);
        let guest = |index: u32| GuestSpec {
            name: Some(format!("guest-{index}")),
            state: Some("stopped".to_owned()),
            ..GuestSpec::new(1_000 + index, LabGuestKind::Qemu, &node(index))
        };
        let mut spec = WorldSpec {
            cluster: Some("fleet".to_owned()),
            nodes: (0..self.nodes).map(|index| (node(index), NodeSpec::default())).collect(),
            guests: (0..self.guests).map(guest).collect(),
            tokens: [(TOKEN.to_owned(), TokenSpec { secret: SECRET.to_owned(), full: true, expire_s: 0 })].into(),
            ..WorldSpec::default()
        };
        spec.pace.start_ms = self.start_ms;
        spec
    }

    fn desired(&self) -> Desired {
        let guest = |index: u32| format!(r#"{{"vmid":{},"kind":"qemu","name":"guest-{index}","state":"running"}}"#, 1_000 + index);
        let guests = (0..self.guests).map(guest).collect::<Vec<_>>().join(",");
        let text = format!(r#"{{"version":1,"environment":"fleet","guests":[{guests}]}}"#);
        desired::parse(text.as_bytes(), Notation::Json).unwrap_or_else(|faults| panic!("{faults:?}"))
    }
}

impl FleetResult {
    /// The number of operations that succeeded.
    pub(crate) fn done_count(&self) -> usize {
        self.report.operations().iter().filter(|reported| reported.outcome.end() == OperationEnd::Done).count()
    }
}

/// Observes, plans, judges and approves, as a person at a terminal would.
async fn approve_plan(session: &ProxmoxSession<FleetLab>, desired: &Desired, now_ms: u64) -> ApprovedPlan {
    let environment = EnvironmentName::new("fleet").unwrap_or_else(|| panic!("a name"));
    let (scope, read_set) = (desired.scope(), ReadSet::for_desired(desired));
    let question = ObservationRequest { environment: &environment, cluster: Some("fleet"), token: TOKEN, scope: &scope, needs: &read_set };
    let mut observation = observe::take_reading(session, &question).await.unwrap_or_else(|unread| panic!("{unread}")).observation;
    observation.taken_at = Some(START_TIME.into());
    let seen = Arc::new(observation.into_scoped(&scope));
    let plan = plan::plan(Arc::new(desired.clone()), seen, Arc::new(Rules::default()));
    let limits = policy::Limits { guests: u32::MAX, ..policy::Limits::default() };
    let safe: safety::SafePlan = match judge(plan, limits, Circumstances::default()) {
        Judged::Safe(safe) => safe,
        Judged::Refused(refused) => panic!("{refused:?}"),
    };
    let admission = Admission {
        mode: ApprovalMode::Solo,
        provenance: Provenance::Live,
        confirmation: Confirmation::Typed { by: "ann".into(), names: Vec::new() },
        refused: RefusedGuestPolicy::StopRun,
        now_ms,
        age_secs_max: Admission::AGE_SECS_MAX,
    };
    match admit(safe, &admission).unwrap_or_else(|error| panic!("{error}")) {
        Admitted::Approved(plan) => plan,
        Admitted::Refused(refusals) => panic!("{refusals:?}"),
    }
}

/// The lab with its clock, which is the clock of the runtime. Clones share it.
#[derive(Clone)]
struct FleetLab {
    world: Arc<Mutex<World>>,
    began: Instant,
    start_ms: u64,
}

impl FleetLab {
    fn new(spec: &WorldSpec) -> Self {
        let world = World::new(spec).unwrap_or_else(|error| panic!("{error}"));
        Self { world: Arc::new(Mutex::new(world)), began: Instant::now(), start_ms: spec.start_ms }
    }
}

impl Clock for FleetLab {
    fn now_ms(&self) -> u64 {
        self.start_ms + self.monotonic_ms()
    }

    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn uptime(&self) -> Option<Uptime> {
        BootId::new("boot-1").map(|boot| Uptime { boot, ms: self.monotonic_ms() })
    }

    async fn sleep(&self, ms: u64) {
        sleep(Duration::from_millis(ms)).await;
    }
}

impl ProxmoxTransport for FleetLab {
    async fn exchange(&self, sent: &HttpRequest) -> Result<HttpResponse, ProxmoxFailure> {
        let request = LabRequest::new(sent.method().word(), sent.path()).with_token(&format!("{TOKEN}={SECRET}"));
        let request = match sent.form() {
            Some(form) => request.with_form(form).with_header("Content-Length", &form.len().to_string()),
            None => request,
        };
        sleep(Duration::from_millis(REQUEST_MS / 2)).await;
        let answer = self.world.lock().unwrap_or_else(PoisonError::into_inner).answer_at(self.now_ms(), "pve1", &request);
        assert_eq!(answer.delivery, WireDelivery::Deliver, "nothing goes wrong in this lab");
        sleep(Duration::from_millis(answer.delay_ms + REQUEST_MS / 2)).await;
        Ok(HttpResponse { status: answer.status, reason: answer.reason, body: answer.body })
    }

    fn endpoint_name(&self) -> &str {
        "pve1:8006"
    }
}

struct FleetActuator(ProxmoxActuator<FleetLab>);

impl Actuator for FleetActuator {
    type Permit = NodePermit;

    async fn acquire_permit(&self, address: GuestAddress) -> Result<NodePermit, EnvFault> {
        self.0.acquire_permit(&address).await
    }

    async fn send(&self, permit: NodePermit, request: EnvRequest) -> EnvResponse {
        self.0.send_with_permit(permit, &request).await
    }

    async fn request(&self, request: EnvRequest) -> EnvResponse {
        self.0.request(&request).await
    }
}

/// A store that works on other threads. A paused clock advances when all tasks are idle, and would jump by seconds while the disk works; so
/// a task that waits for the store is never idle.
struct ThreadedStore<S>(S);

async fn poll_without_idling<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        let polled = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        match polled {
            Poll::Ready(done) => return done,
            Poll::Pending => tokio::task::yield_now().await,
        }
    }
}

impl<S: Store> Store for ThreadedStore<S> {
    async fn commit(&self, batch: Batch) -> Result<CommitAck, StoreError> {
        poll_without_idling(self.0.commit(batch)).await
    }
}

impl<S: Store> StoreReader for ThreadedStore<S> {
    async fn guest_operations(&self, environment: EnvironmentName, guests: Vec<Vmid>) -> Result<Vec<OperationHistory>, StoreError> {
        poll_without_idling(self.0.guest_operations(environment, guests)).await
    }

    async fn conditions(&self, environment: EnvironmentName) -> Result<StoreConditions, StoreError> {
        poll_without_idling(self.0.conditions(environment)).await
    }

    async fn journal_overview(&self) -> Result<JournalOverview, StoreError> {
        poll_without_idling(self.0.journal_overview()).await
    }

    async fn digests(&self) -> Result<Vec<Digest>, StoreError> {
        poll_without_idling(self.0.digests()).await
    }

    async fn full_tile(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, StoreError> {
        poll_without_idling(self.0.full_tile(tile)).await
    }

    async fn ledger_rows(&self) -> Result<LedgerRows, StoreError> {
        poll_without_idling(self.0.ledger_rows()).await
    }

    async fn operation(&self, id: OperationId) -> Result<Option<OperationHistory>, StoreError> {
        poll_without_idling(self.0.operation(id)).await
    }

    async fn open_operations(&self, environment: EnvironmentName) -> Result<Vec<OperationHistory>, StoreError> {
        poll_without_idling(self.0.open_operations(environment)).await
    }

    async fn operations(&self, filter: OperationFilter, limit: u32) -> Result<Vec<OperationHistory>, StoreError> {
        poll_without_idling(self.0.operations(filter, limit)).await
    }

    async fn operations_of_tasks(
        &self,
        environment: EnvironmentName,
        tasks: Vec<TaskId>,
    ) -> Result<Vec<(TaskId, OperationId)>, StoreError> {
        poll_without_idling(self.0.operations_of_tasks(environment, tasks)).await
    }

    async fn operation_of_key(&self, environment: EnvironmentName, key: IdempotencyKey) -> Result<Option<OperationHistory>, StoreError> {
        poll_without_idling(self.0.operation_of_key(environment, key)).await
    }

    async fn run(&self, id: RunId) -> Result<Option<RunHistory>, StoreError> {
        poll_without_idling(self.0.run(id)).await
    }

    async fn runs(&self, environment: EnvironmentName, limit: u32) -> Result<Vec<RunHistory>, StoreError> {
        poll_without_idling(self.0.runs(environment, limit)).await
    }

    async fn holds(&self, environment: EnvironmentName) -> Result<Vec<Hold>, StoreError> {
        poll_without_idling(self.0.holds(environment)).await
    }

    async fn freeze(&self, environment: EnvironmentName) -> Result<Option<Freeze>, StoreError> {
        poll_without_idling(self.0.freeze(environment)).await
    }

    async fn names(&self) -> Result<EnvironmentNames, StoreError> {
        poll_without_idling(self.0.names()).await
    }

    async fn blob(&self, digest: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        poll_without_idling(self.0.blob(digest)).await
    }

    async fn heads(&self) -> Result<LedgerHeads, StoreError> {
        poll_without_idling(self.0.heads()).await
    }

    async fn epoch(&self) -> Result<u64, StoreError> {
        poll_without_idling(self.0.epoch()).await
    }

    async fn entries(&self, from: u64, limit: u32) -> Result<Vec<Vec<u8>>, StoreError> {
        poll_without_idling(self.0.entries(from, limit)).await
    }

    async fn hashes(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, StoreError> {
        poll_without_idling(self.0.hashes(tile)).await
    }
}
