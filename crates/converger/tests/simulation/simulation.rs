//! One schedule from its seed: lives of the process in a world with faults, then healing, and then liveness: everything reaches its
//! declared state and stays there without further changes.

mod births;
mod intention;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use converger_core::action::Change;
use converger_core::apply::{JournalRecord, Operation, OperationHistory, Resolution};
use converger_core::artifact::{Provenance, write_plan};
use converger_core::desired::Desired;
use converger_core::evidence::DecisionInputs;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::intent::Intent;
use converger_core::observe::Observation;
use converger_core::plan::{Step, Verdict};
use converger_core::policy::Circumstances;
use converger_core::safety;
use converger_core::testing::{Rng, some_binding, some_inputs};
use converger_engine::executor::load_unsettled;
use converger_engine::run_machine::RunMachine;
use converger_engine::schedule::OnFailure;
use converger_lab::GuestTruth;
use converger_store::{MemoryStore, OperationFilter, OperationStatus, StoreReader as _, StoreWrite};
use futures_util::FutureExt as _;
use serde_json::Value as Json;

use super::LEDGER_REPLAYED;
use super::faults::{self, FaultFreeRun, FaultKind, FaultTrigger, ScheduledFault};
use super::interleaving::{run_alone, yield_turn};
use super::ledger_agreement;
use super::oracle::{Oracle, RefusalGrounds, RuleViolation, truth, waits_for_reading};
use super::planted_bugs::{self, PlantedBug};
use super::process::{ProcessDied, SimulatedProcess};
use super::setup::{self, RequestedWork, SimulationSetup};
use super::stage::SimulationStage;
use super::trace::SimulationTrace;
use births::RequestVerdict;
use intention::IntendedRuns;

/// A process that dies is restarted while faults occur, up to this many lives.
const LIVES_MAX: u64 = 3;

/// After healing, this many runs may be needed until nothing is left to do.
const RUNS_AFTER_HEALING_MAX: usize = 4;

/// What a guest that cannot reach its declared state does in the second run, it does in all later runs.
const RUNS_HOPELESS_MAX: usize = 2;

/// A change that was sent arrives within this time, or never.
const LATE_ARRIVAL_MS: u64 = 150_000;

/// Number of schedules per world, each with its own faults.
pub(crate) const SCHEDULES_PER_WORLD: u64 = 16;

/// Seeds from here on have no requested actions, only the declared state.
pub(crate) const DECLARED_ONLY_SEEDS: u64 = 1 << 40;

/// One in this many schedules is audited: it has a ledger, which is replayed, and all requests and responses are checked against the API
/// table. In one world that is its first schedule, in the next but one its second, and so on.
pub(crate) const AUDIT_INTERVAL: u64 = 2 * SCHEDULES_PER_WORLD + 1;

/// The inputs of every decision in the journal; their content does not matter here.
static INPUTS: LazyLock<DecisionInputs> = LazyLock::new(some_inputs);

/// The result of a schedule.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct SimulationResult {
    pub(crate) hash: u64,
    pub(crate) violation: Option<RuleViolation>,
    pub(crate) struck: Vec<FaultKind>,
    pub(crate) seen: Vec<&'static str>,
    pub(crate) lines: Vec<String>,
    /// Changes that reached Proxmox.
    pub(crate) sends: u64,
    /// The kinds of guests and changes among them.
    pub(crate) sent: BTreeSet<(String, String)>,
    /// Requests of any kind.
    pub(crate) requests: u64,
    /// Commands of our processes to the world and to their store before everything healed.
    pub(crate) commands: u64,
    /// Our requests before everything healed.
    pub(crate) early_requests: u64,
}

/// Runs the simulation of a seed. With lines it runs completely; without them it is forked from the shared opening of its world, which
/// gives the same schedule.
pub(crate) async fn simulate(seed: u64, bug: Option<PlantedBug>, keeps_lines: bool) -> SimulationResult {
    let world = seed / SCHEDULES_PER_WORLD;
    let mut rng = Rng::new(seed);
    let (mut simulation, scheduled_faults) = with_opening(world, bug, |opening| {
        // Only one schedule of a world may be without faults; a second one would be the same.
        let least = usize::from(!seed.is_multiple_of(SCHEDULES_PER_WORLD));
        let scheduled_faults = faults::draw_faults(&mut rng, &opening.begun.setup, least, opening.fault_free_run());
        let simulation = if keeps_lines {
            Simulation::start(world, SimulationTrace::new(true), bug)
        } else {
            opening.last_before(&scheduled_faults).fork()
        };
        (simulation, scheduled_faults)
    });
    // A request with a key is repeated.
    let lives = (*rng.pick(&[1, 1, 2]).unwrap_or(&1)).max(if simulation.setup.is_one_shot { 2 } else { 1 });
    let lives = lives.max(simulation.setup.jobs.len() as u64);
    simulation.stage_mut().set_faults(scheduled_faults);
    simulation.rng = rng;
    // A ledger costs more than the journal, and verifying it costs more than writing it, so only some seeds have one.
    let simulation = if seed.is_multiple_of(AUDIT_INTERVAL) { simulation } else { simulation.without_audit() };
    yield_turn().await;
    simulation.run_to_end(lives).await
}

/// The common beginning of the schedules of one world: its setup, and the first process up to its planned operations, as long as no fault
/// occurs before.
struct SharedOpening {
    world: u64,
    bug: Option<PlantedBug>,
    begun: Simulation,
    planned: Option<Simulation>,
}

thread_local! {
    /// The last world; the schedules of one world run one after the other.
    static OPENING: RefCell<Option<SharedOpening>> = const { RefCell::new(None) };
}

fn with_opening<T>(world: u64, bug: Option<PlantedBug>, of: impl FnOnce(&SharedOpening) -> T) -> T {
    OPENING.with_borrow_mut(|known| {
        drop(known.take_if(|known| (known.world, known.bug) != (world, bug)));
        of(known.get_or_insert_with(|| SharedOpening::new(world, bug)))
    })
}

/// A store with the cluster binding of the environment, which an apply records before anything else.
fn bound(store: MemoryStore) -> MemoryStore {
    let lab = EnvironmentName::new("lab").unwrap_or_else(|| panic!("a name"));
    let written = store.commit_now(StoreWrite::Bind(some_binding(&lab)).into());
    assert!(written.is_ok(), "{written:?}");
    store
}

impl SharedOpening {
    fn new(world: u64, bug: Option<PlantedBug>) -> Self {
        let started = Simulation::start(world, SimulationTrace::new(false), bug);
        let mut intends = started.fork();
        let came_to = run_alone(intends.recover_and_plan());
        intends.intention = came_to.ok();
        let is_whole = intends.intention.is_some() && !intends.is_broken();
        Self { world, bug, begun: started, planned: is_whole.then_some(intends) }
    }

    /// What the first process does without faults.
    fn fault_free_run(&self) -> FaultFreeRun {
        match &self.planned {
            Some(Simulation { stage: Some(stage), intention: Some(runs), setup, .. }) if runs.is_empty() && setup.jobs.is_empty() => {
                FaultFreeRun::Reads(stage.requests())
            }
            _ => FaultFreeRun::Acts,
        }
    }

    /// The latest shared state before any of these faults occurs.
    fn last_before(&self, faults: &[ScheduledFault]) -> &Simulation {
        let is_later = |simulation: &&Simulation| {
            let request_count = simulation.stage.as_ref().map_or(0, SimulationStage::requests);
            faults.iter().all(|fault| !matches!(fault.trigger, FaultTrigger::Request(at) if at <= request_count))
        };
        self.planned.as_ref().filter(is_later).unwrap_or(&self.begun)
    }
}

/// Runs a simulation of a setup with exactly these faults.
pub(crate) fn simulate_setup(simulation_setup: SimulationSetup, faults: Vec<ScheduledFault>, lives: u64) -> SimulationResult {
    let stage = SimulationStage::new(&simulation_setup.spec, faults, SimulationTrace::new(false));
    run_alone(Simulation::new(simulation_setup, stage, Rng::new(0), None).run_to_end(lives))
}

/// The result of doing, undoing, and undoing again.
pub(crate) struct UndoResult {
    pub(crate) violation: Option<RuleViolation>,
    /// Commands of our processes while undoing.
    pub(crate) commands: u64,
    /// Changes that were sent to do it, to undo it, and to undo it again.
    pub(crate) sends: [u64; 3],
    /// The verbs of the changes that undid it.
    pub(crate) sent: BTreeSet<String>,
    /// The guest before, after undoing, and after undoing again: its process and its config.
    pub(crate) seen: [String; 3],
}

/// The inverses that plan.json publishes for the steps of a plan, in order.
pub(crate) fn published_undo(simulation_setup: SimulationSetup) -> Vec<Json> {
    let stage = SimulationStage::new(&simulation_setup.spec, Vec::new(), SimulationTrace::new(false));
    let mut simulation = Simulation::new(simulation_setup, stage, Rng::new(0), None);
    let desired = || Intent::Desired(simulation.desired_state());
    let intent = simulation.setup.requests.first().map_or_else(desired, |request| request.intent.clone());
    let seen = simulation.take_reading(&intent).unwrap_or_else(|| panic!("nothing goes wrong, and there is no reading"));
    let plan = simulation.make_plan(&intent, seen);
    let mut text = Vec::new();
    let judged = safety::judge(plan, simulation.setup.budget, Circumstances::default());
    let written = write_plan(&mut text, &judged, Provenance::Live).map_err(|error| error.to_string());
    let json: Json =
        written.and_then(|_| serde_json::from_slice(&text).map_err(|error| error.to_string())).unwrap_or_else(|error| panic!("{error}"));
    let guests = json["body"]["guests"].as_array().into_iter().flatten();
    guests.flat_map(|guest| guest["steps"].as_array().into_iter().flatten()).map(|step| step["undo"].clone()).collect()
}

/// Changes one guest and undoes the change, in one world and with one journal. The faults occur while undoing, each at a command counted
/// from its beginning.
pub(crate) fn simulate_undo(forward: SimulationSetup, back: SimulationSetup, faults: &[(FaultKind, u64)]) -> UndoResult {
    let stage = SimulationStage::new(&forward.spec, Vec::new(), SimulationTrace::new(false));
    let mut simulation = Simulation::new(forward, stage, Rng::new(0), None);
    let before = simulation.describe_guest();
    run_alone(simulation.run_with_faults(1));
    // The cluster's lists are some seconds behind: planning right away would find nothing to undo.
    simulation.stage_mut().advance(30_000);
    let (done, commands_before) = (simulation.oracle.sends, simulation.stage_mut().commands());
    simulation.oracle.sent.clear();
    simulation.oracle.set_wanted(back.wanted.clone());
    simulation.oracle.add_requests(&back.requests);
    (simulation.setup, simulation.lives) = (Arc::new(back), 0);
    let faults = faults.iter().map(|(kind, at)| ScheduledFault::at(*kind, FaultTrigger::Command(commands_before + at))).collect();
    simulation.stage_mut().set_faults(faults);
    run_alone(simulation.run_with_faults(3));
    // A request that may still arrive holds its guest: a person tries again later, with another key.
    while simulation.lives < simulation.setup.jobs.len() && !simulation.is_broken() {
        simulation.stage_mut().advance(LATE_ARRIVAL_MS);
        let _ = run_alone(simulation.run_process());
    }
    let commands = simulation.stage_mut().commands() - commands_before;
    run_alone(simulation.run_after_healing());
    let (undone, once) = (simulation.oracle.sends, simulation.describe_guest());
    let sent = std::mem::take(&mut simulation.oracle.sent).into_iter().map(|(_, verb)| verb).collect();
    let _ = run_alone(simulation.run_process());
    let sends = [done, undone - done, simulation.oracle.sends - undone];
    UndoResult { sends, sent, commands, seen: [before, once, simulation.describe_guest()], violation: simulation.oracle.violation.take() }
}

struct Simulation {
    /// Taken out while the observer uses it.
    stage: Option<SimulationStage>,
    store: MemoryStore,
    oracle: Oracle,
    setup: Arc<SimulationSetup>,
    rng: Rng,
    bug: Option<PlantedBug>,
    runs: u64,
    is_healed: bool,
    /// Whether it has a ledger, which is replayed at the end.
    is_audited: bool,
    /// Guests that a planted bug takes for locked.
    locked: BTreeSet<Vmid>,
    /// The observation from which a planted bug makes all plans.
    first_reading: Option<Observation>,
    /// The verdicts of the last plan.
    verdicts: Vec<(u32, Verdict)>,
    /// The machine of the current process, for its recovery and its plan.
    drive: RunMachine,
    /// The planned operations of the current process, if they are known already.
    intention: Option<IntendedRuns>,
    /// The number of processes that have planned something.
    lives: usize,
    /// The last plans of the requests that are continued after healing.
    continued: Vec<RequestVerdict>,
}

impl Simulation {
    /// The first moment of a world, without faults yet.
    fn start(world: u64, trace: SimulationTrace, bug: Option<PlantedBug>) -> Self {
        // Not the numbers from which any schedule draws its faults.
        let simulation_setup = setup::draw_setup(&mut Rng::new(!world), RequestedWork::of_world(world));
        let stage = SimulationStage::new(&simulation_setup.spec, Vec::new(), trace);
        Self::new(simulation_setup, stage, Rng::new(0), bug)
    }

    /// Forks the simulation at a point before anything was written.
    fn fork(&self) -> Self {
        Self {
            stage: self.stage.clone(),
            store: bound(MemoryStore::new()),
            oracle: self.oracle.clone(),
            setup: Arc::clone(&self.setup),
            rng: self.rng.clone(),
            locked: self.locked.clone(),
            first_reading: self.first_reading.clone(),
            verdicts: self.verdicts.clone(),
            drive: self.drive.clone(),
            intention: self.intention.clone(),
            continued: self.continued.clone(),
            ..*self
        }
    }

    fn new(simulation_setup: SimulationSetup, stage: SimulationStage, rng: Rng, bug: Option<PlantedBug>) -> Self {
        let wanted = planted_bugs::buggy_wanted(bug, simulation_setup.wanted.clone());
        let (store, oracle) = (
            bound(MemoryStore::new()),
            Oracle::new(wanted, simulation_setup.on_failure)
                .with_requests(&simulation_setup.requests)
                .with_limits(simulation_setup.limits, simulation_setup.budget),
        );
        Self {
            stage: Some(stage),
            store,
            oracle,
            drive: RunMachine::new(planted_bugs::buggy_limits(bug, simulation_setup.limits)),
            setup: Arc::new(simulation_setup),
            rng,
            bug,
            runs: 0,
            is_healed: false,
            is_audited: true,
            locked: BTreeSet::new(),
            first_reading: None,
            verdicts: Vec::new(),
            intention: None,
            lives: 0,
            continued: Vec::new(),
        }
    }

    /// From now on there is no ledger, and exchanges are not checked.
    fn without_audit(self) -> Self {
        Self {
            is_audited: false,
            store: bound(MemoryStore::without_ledger()),
            stage: self.stage.map(SimulationStage::without_verification),
            ..self
        }
    }

    async fn run_to_end(mut self, lives: u64) -> SimulationResult {
        self.run_with_faults(lives).await;
        let (commands, early) = (self.stage_mut().commands(), self.stage_mut().requests());
        self.run_after_healing().await;
        self.check_ledger();
        self.check_effects();
        let stage = self.stage.take().unwrap_or_else(|| panic!("the stage is there"));
        SimulationResult {
            hash: stage.trace.hash(),
            violation: self.oracle.violation.take(),
            struck: stage.struck.iter().copied().collect(),
            seen: stage.seen.iter().copied().collect(),
            sends: self.oracle.sends,
            sent: std::mem::take(&mut self.oracle.sent),
            requests: stage.world.requests(),
            commands,
            early_requests: early,
            lines: stage.trace.into_lines(),
        }
    }

    fn check_effects(&mut self) {
        if let Some(stage) = &self.stage {
            self.oracle.check_effects(&stage.world, &self.setup, &stage.struck);
        }
    }

    /// Checks that ledger and journal agree.
    fn check_ledger(&mut self) {
        if !self.is_audited || self.is_broken() {
            return;
        }
        self.stage_mut().note_reached(LEDGER_REPLAYED);
        if let Some(text) = ledger_agreement::find_difference(&self.store) {
            self.oracle.report("C7", text);
        }
    }

    /// The true state of the first guest.
    fn describe_guest(&mut self) -> String {
        let truth = self.stage_mut().world.guest_truth(100);
        let snapshots: Vec<String> = self.stage_mut().world.snapshot_truths(100).map(|own| own.name).collect();
        let describe =
            |truth: GuestTruth| format!("{} {:?} {:?} {:?} {snapshots:?}", truth.node, truth.process, truth.config, truth.pending);
        truth.map_or_else(String::new, describe)
    }

    fn stage_mut(&mut self) -> &mut SimulationStage {
        self.stage.as_mut().unwrap_or_else(|| panic!("the stage is there"))
    }

    fn is_broken(&self) -> bool {
        self.oracle.violation.is_some()
    }

    /// Runs this many lives, and one more if the process dies in the last one. A life without faults and without changes is the last one,
    /// because the next one would be the same.
    async fn run_with_faults(&mut self, lives: u64) {
        let mut left = lives;
        for _ in 0..lives.max(LIVES_MAX) {
            if self.is_broken() || left == 0 {
                return;
            }
            let before = (self.stage_mut().pending_fault_count(), self.oracle.sends);
            left -= 1;
            if self.run_process().await.is_err() {
                left = left.max(1);
                self.stage_mut().note_reached("the process died");
                self.stage_mut().trace_line(format_args!("the process is dead"));
            } else if self.lives >= self.setup.jobs.len()
                && (self.stage_mut().pending_fault_count() == 0 || (self.stage_mut().pending_fault_count(), self.oracle.sends) == before)
            {
                return;
            }
            let within = *self.rng.pick(&[1_000, 30_000, 600_000]).unwrap_or(&1_000);
            let ms = self.rng.below(within);
            self.stage_mut().advance(ms);
        }
    }

    /// One process, from its start to its end or death.
    async fn run_process(&mut self) -> Result<(), ProcessDied> {
        let intention = match self.intention.take() {
            Some(intention) => intention,
            None => self.recover_and_plan().await?,
        };
        let run_result = self.execute_runs(intention);
        yield_turn().await;
        run_result
    }

    /// A process starts, recovers open operations, and plans.
    async fn recover_and_plan(&mut self) -> Result<IntendedRuns, ProcessDied> {
        self.restart();
        for id in self.oracle.operation_ids() {
            let history = self.store.operation(id.clone()).now_or_never().and_then(Result::ok).flatten();
            self.oracle.check_journal(&id, history.as_ref());
        }
        self.recover()?;
        yield_turn().await;
        Ok(self.plan_runs().await)
    }

    /// The store as the next process finds it.
    fn restart(&mut self) {
        let was_dark = self.stage_mut().take_power_loss();
        self.store = if was_dark { self.store.lose_power() } else { self.store.crash() };
        self.oracle.on_process_start(was_dark);
        self.drive = RunMachine::new(planted_bugs::buggy_limits(self.bug, self.setup.limits));
        let now_ms = self.stage_mut().now_ms;
        self.oracle.on_process_start_at(now_ms / 1000);
    }

    fn require_reading(&mut self) {
        if self.is_healed {
            self.oracle.report("L1", "everything has healed, and there is no reading".into());
        }
    }

    /// S5: an existing guest is not reported as missing, however badly the lists are read.
    fn require_presence(&mut self) {
        let is_called_missing = |verdict: &Verdict| matches!(verdict, Verdict::Refused(refusals) if refusals.iter().any(|refusal| refusal.code().word() == "guest-missing"));
        let Some(stage) = self.stage.as_ref().filter(|stage| !stage.struck.contains(&FaultKind::Vanished)) else { return };
        let missed = self.verdicts.iter().find(|(vmid, verdict)| is_called_missing(verdict) && stage.world.guest_truth(*vmid).is_some());
        if let Some((vmid, _)) = missed {
            self.oracle.report_false_absence(*vmid);
        }
    }

    /// The declared state.
    fn desired_state(&self) -> Arc<Desired> {
        match self.bug {
            Some(PlantedBug::TurnRound) if !self.runs.is_multiple_of(2) => Arc::new(setup::inverted_desired(&self.setup)),
            Some(PlantedBug::WantNothing) => Arc::new(setup::empty_desired(&self.setup)),
            _ => Arc::clone(&self.setup.desired),
        }
    }

    /// Recovers operations that are open or held until a read.
    fn recover(&mut self) -> Result<(), ProcessDied> {
        let mut open = self.unsettled_operations();
        if self.bug == Some(PlantedBug::ForgetHeld) {
            open.retain(|history| !waits_for_reading(history));
        }
        if open.is_empty() || self.bug == Some(PlantedBug::DropRecovery) {
            return Ok(());
        }
        self.stage_mut().trace_line(format_args!("recovery of {}", open.len()));
        self.stage_mut().note_reached(if open.iter().any(|history| history.task.is_some()) {
            "recovery with a task"
        } else {
            "recovery without a task"
        });
        let is_planted = matches!(self.bug, Some(PlantedBug::ResendOnRecovery | PlantedBug::FailOnRecovery));
        let Self { stage, store, oracle, setup: simulation_setup, bug, drive, .. } = self;
        let stage = stage.as_mut().unwrap_or_else(|| panic!("the stage is there"));
        let mut process = SimulatedProcess::new(stage, store.clone(), oracle, simulation_setup, *bug, drive);
        if let Some(history) = open.iter().find(|history| is_planted && history.task.is_none()) {
            return process.planted_recovery(&history.operation);
        }
        process.recover_operations(open)?;
        self.check_recovery_is_final();
        Ok(())
    }

    /// S20: a second recovery would leave the same: nothing is open.
    fn check_recovery_is_final(&mut self) {
        // An operation that could not be written stays open for the next start.
        let is_left = |history: &&OperationHistory| !waits_for_reading(history) && !self.oracle.is_unwritten(history.id());
        if let Some(id) = self.unsettled_operations().iter().find(is_left).map(|history| history.id().clone()) {
            self.oracle.report("S20", format!("{id} is open after the recovery"));
        }
    }

    fn unsettled_operations(&self) -> Vec<OperationHistory> {
        let environment = self.setup.desired.environment();
        load_unsettled(&self.store, environment).now_or_never().and_then(Result::ok).unwrap_or_default()
    }

    /// Everything works again: the declared state must be reached and stay.
    async fn run_after_healing(&mut self) {
        if self.is_broken() {
            return;
        }
        self.is_healed = true;
        self.oracle.on_healed();
        // Holds are released by another process.
        self.restart();
        let vmids = self.setup.guest_ids();
        self.stage_mut().heal(&vmids);
        self.stage_mut().advance(600_000);
        self.release_holds();
        let runs_max = if self.is_any_hopeless() { RUNS_HOPELESS_MAX } else { self.runs_after_healing_max() };
        for _ in 0..runs_max {
            self.resolve_held();
            let sends = self.oracle.sends;
            if self.run_process().await.is_err() || self.is_broken() {
                break;
            }
            // Nothing was sent and nothing is held, so this is the final state.
            if self.oracle.sends == sends && self.held_operations().is_empty() {
                self.oracle.check_settled();
                self.check_late_tasks();
                self.check_continued_requests();
                return self.check_rest();
            }
            self.stage_mut().advance(60_000);
        }
        if !self.is_broken() && !self.is_any_hopeless() {
            self.oracle.report("L1", format!("still at work after {runs_max} runs, although everything has healed"));
        }
    }

    /// What is requested is continued after the declared state is reached.
    fn runs_after_healing_max(&self) -> usize {
        let continues = self.setup.requests.iter().any(|request| request.wanted.provisions());
        if continues { 2 * RUNS_AFTER_HEALING_MAX } else { RUNS_AFTER_HEALING_MAX }
    }

    /// A recovery must not give up a change that arrives later. A live process may; the occurrences are counted.
    fn check_late_tasks(&mut self) {
        let Some(stage) = self.stage.as_mut() else { return };
        for vmid in self.setup.guest_ids() {
            let tasks: Vec<String> = stage.world.tasks_for_guest(vmid).map(|(upid, _)| upid.to_owned()).collect();
            let late = tasks.iter().any(|upid| self.oracle.record_late_task(upid));
            stage.seen.extend(late.then_some("a change came after it was given up"));
        }
    }

    fn is_any_hopeless(&self) -> bool {
        self.setup.wanted.values().any(|wanted| wanted.is_hopeless)
    }

    /// A person releases all holds and freezes.
    fn release_holds(&mut self) {
        let (environment, at_ms) = (self.setup.desired.environment().clone(), self.stage_mut().now_ms);
        let by: Box<str> = "ann".into();
        for vmid in self.setup.guest_ids().into_iter().filter_map(|vmid| Vmid::new(u64::from(vmid))) {
            let release = StoreWrite::Release { environment: environment.clone(), vmid, by: by.clone(), at_ms };
            let _ = self.store.commit_now(release.into());
        }
        let _ = self.store.commit_now(StoreWrite::Thaw { environment, by, at_ms }.into());
    }

    fn held_operations(&self) -> Vec<OperationHistory> {
        let filter = OperationFilter { status: Some(OperationStatus::Held), ..OperationFilter::default() };
        self.store.operations(filter, 1000).now_or_never().and_then(Result::ok).unwrap_or_default()
    }

    /// A person resolves operations that are held for a person, or still held after everything healed.
    fn resolve_held(&mut self) {
        for history in self.held_operations() {
            let at_ms = self.stage_mut().now_ms;
            let (id, resolution) = (history.id().clone(), Resolution::Failed);
            let record = JournalRecord::Resolved { id, resolution, by: "ann".into(), reason: "looked".into(), at_ms };
            // An operation that a read may release is read once first.
            let was_read = self.stage_mut().seen.contains("read after healing");
            if waits_for_reading(&history) && !was_read {
                continue;
            }
            if waits_for_reading(&history) && self.has_come_about(&history.operation) {
                let id = history.id();
                self.oracle.report("L3", format!("{id} came about, everything has healed and was read, and it is still held"));
            }
            self.stage_mut().trace_line(format_args!("a person resolves {}", history.id()));
            if self.store.commit_now(record.clone().into()).is_ok() {
                self.oracle.on_durable(&record);
            }
        }
        self.stage_mut().note_reached("read after healing");
    }

    /// Whether a power change has taken effect, in truth and on the same guest.
    fn has_come_about(&mut self, operation: &Operation) -> bool {
        // Whatever its state: a hanging task keeps the guest, because it may still act.
        if self.stage_mut().tasks_at_work(operation.guest.vmid.get()) > 0 {
            return false;
        }
        let Some(truth) = self.stage_mut().world.guest_truth(operation.guest.vmid.get()) else { return false };
        let is_same = operation.guest.identity.as_ref().is_none_or(|identity| truth::has_identity(&truth, identity));
        // A run-state does not prove that the guest was rebooted or rolled back.
        let is_shown = matches!(operation.step.change, Change::Start | Change::Shutdown { .. } | Change::Stop);
        let leads_to = operation.step.change.resulting_state().filter(|_| is_shown);
        is_same && leads_to.is_some_and(|state| truth::runs_as(&truth, state))
    }

    /// L1 and L2: nothing is left to do for guests that nothing blocks, and nothing blocks a guest except what somebody did.
    fn check_rest(&mut self) {
        let is_within_limits = self.is_within_limits();
        let verdicts = std::mem::take(&mut self.verdicts);
        let is_refused = |verdict: &Verdict| matches!(verdict, Verdict::Refused(_));
        let refused = verdicts.iter().filter(|(_, verdict)| is_refused(verdict)).map(|(vmid, _)| *vmid).collect();
        let world = self.stage.as_ref().map(|stage| &stage.world);
        let real = self.setup.wanted.keys().filter_map(|vmid| Some((*vmid, world?.guest_truth(*vmid)?))).collect();
        let grounds = RefusalGrounds { wanted: &self.setup.wanted, real: &real, refused: &refused, is_within_limits };
        let found = verdicts.iter().find_map(|(vmid, verdict)| self.find_violation(*vmid, verdict, &grounds));
        if verdicts.iter().any(|(_, verdict)| matches!(verdict, Verdict::Converged { .. })) {
            self.stage_mut().note_reached("a guest converged after healing");
        }
        if !refused.is_empty() {
            self.stage_mut().note_reached("a guest is refused after healing");
        }
        if let Some((rule, text)) = found {
            self.oracle.report(rule, text);
        }
    }

    /// Whether the last plan is within the limits of a run.
    fn is_within_limits(&self) -> bool {
        let steps = || self.verdicts.iter().filter_map(|(_, verdict)| if let Verdict::Steps(steps) = verdict { Some(steps) } else { None });
        let takes_down = |step: &Step| matches!(step.change, Change::Shutdown { .. } | Change::Stop | Change::Reboot { .. });
        self.oracle.is_within_budget(steps().count(), steps().filter(|steps| steps.iter().any(takes_down)).count())
    }

    /// The violation in the last verdict on a guest.
    fn find_violation(&self, vmid: u32, verdict: &Verdict, grounds: &RefusalGrounds<'_>) -> Option<(&'static str, String)> {
        let (wanted, real) = (&self.setup.wanted[&vmid], grounds.real.get(&vmid));
        match verdict {
            Verdict::Converged { .. } if real.is_some_and(|real| truth::is_as_wanted(real, wanted)) => None,
            Verdict::Converged { .. } => Some(("L1", format!("{vmid} is called converged and is {real:?}"))),
            Verdict::Refused(refusals) => {
                let code = refusals.iter().map(|refusal| refusal.code().word()).find(|code| !grounds.justifies(vmid, code))?;
                Some(("L2", format!("{vmid} is refused with `{code}`, and nothing gives cause for that any more: {real:?}")))
            }
            Verdict::Steps(_) if wanted.is_hopeless || self.waits_for_hopeless(vmid) => None,
            Verdict::Steps(_) if !grounds.is_within_limits => None,
            Verdict::Steps(steps) => {
                let changes: Vec<&str> = steps.iter().map(|step| step.change.word()).collect();
                Some(("L1", format!("{vmid} still has steps although everything has healed: {changes:?}")))
            }
        }
    }

    /// A dependent of a guest that cannot reach its declared state cannot reach its own.
    fn waits_for_hopeless(&self, vmid: u32) -> bool {
        let is_hopeless = |vmid: &u32| self.setup.wanted.get(vmid).is_some_and(|wanted| wanted.is_hopeless);
        let before = self.setup.wanted[&vmid].after.iter().any(is_hopeless);
        // A run that stops at the first failure never gets past it.
        let is_stuck = self.setup.on_failure == OnFailure::Stop && self.setup.wanted.keys().any(is_hopeless);
        let behind = self.setup.wanted.iter().any(|(other, wanted)| wanted.after.contains(&vmid) && is_hopeless(other));
        before || behind || is_stuck
    }
}
