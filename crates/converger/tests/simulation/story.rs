//! One schedule from its seed: lives of the process in a world in which things go wrong, then healing, and then what must be lively:
//! everything comes to rest as it is wanted, and stays so without another change.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use converger_adapters::proxmox::client::Session;
use converger_adapters::proxmox::observe::{self, Needs, Question};
use converger_core::action::Change;
use converger_core::apply::{End, History, IdempotencyKey, Operation, OperationId, Record, Resolution, Run, RunId, Source, Terms};
use converger_core::approve::{self, Admission, Admitted, Confirmation, Mode, Refused};
use converger_core::artifact::{Digest, Provenance, write_plan};
use converger_core::desired::Desired;
use converger_core::evidence::Inputs;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::moment;
use converger_core::observe::Observation;
use converger_core::plan::{self, Plan, Step, Verdict};
use converger_core::policy::Circumstances;
use converger_core::safety::{self, Judged};
use converger_core::testing::{Rng, some_binding, some_inputs};
use converger_engine::drive::Drive;
use converger_engine::driver::unsettled;
use converger_engine::schedule::OnFailure;
use converger_store::{Filter, MemoryStore, Standing, Store as _, Write};
use futures_util::FutureExt as _;
use serde_json::Value as Json;

use super::PLAYED_AGAIN;
use super::book;
use super::bugs::{self, Bug};
use super::harm::{self, Harm, Kind, Moment, Undisturbed};
use super::oracle::{Grounds, Oracle, Violation, truth, waits_for_reading};
use super::process::{Died, Life};
use super::scene::{self, Scene, TOKEN};
use super::stage::{Stage, Way};
use super::trace::Trace;
use super::turns::{alone, others};

/// Whoever dies is started again while things go wrong, up to so many lives.
const LIVES_MAX: u64 = 3;

/// After healing it may take so many runs until nothing is left to do.
const RUNS_MAX: usize = 4;

/// What a guest that nothing can bring there does in the second run, it does in every run from then on.
const RUNS_HOPELESS_MAX: usize = 2;

/// So many schedules take place in one world, each with harms of its own.
pub(crate) const SCHEDULES_A_WORLD: u64 = 16;

/// Of so many schedules one is looked at closely: it has a ledger, which is played again, and the form of all that is asked and answered is
/// held against the table of the API. In one world that is its first schedule, in the next but one its second, and so on.
pub(crate) const CLOSELY_ONE_IN: u64 = 2 * SCHEDULES_A_WORLD + 1;

/// What every run decides on, as far as its journal is told: nobody looks at it here.
static INPUTS: LazyLock<Inputs> = LazyLock::new(some_inputs);

/// What came of a schedule.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) hash: u64,
    pub(crate) violation: Option<Violation>,
    pub(crate) struck: Vec<Kind>,
    pub(crate) seen: Vec<&'static str>,
    pub(crate) lines: Vec<String>,
    /// Changes that reached Proxmox.
    pub(crate) sends: u64,
    /// The kinds of guests and changes among them.
    pub(crate) sent: BTreeSet<(String, String)>,
    /// Requests of any kind.
    pub(crate) requests: u64,
    /// What our processes did to the world and to their store before everything healed.
    pub(crate) commands: u64,
    /// Requests of ours before everything healed.
    pub(crate) early: u64,
}

/// The story of a seed. Whoever wants its lines is told all of it; the others are told from where it is another one than its neighbours,
/// which is the same story.
pub(crate) async fn tell(seed: u64, bug: Option<Bug>, keeps_lines: bool) -> Told {
    let world = seed / SCHEDULES_A_WORLD;
    let mut rng = Rng::new(seed);
    let (mut story, harms) = opening(world, bug, |opening| {
        // Once in a world nothing may go wrong: a second time would be the same story.
        let least = usize::from(!seed.is_multiple_of(SCHEDULES_A_WORLD));
        let harms = harm::draw(&mut rng, &opening.begun.scene, least, opening.undisturbed());
        let story = if keeps_lines { Story::begun(world, Trace::new(true), bug) } else { opening.last_before(&harms).fork() };
        (story, harms)
    });
    // What carries a key is asked for again.
    let lives = (*rng.pick(&[1, 1, 2]).unwrap_or(&1)).max(if story.scene.is_one_shot { 2 } else { 1 });
    story.stage().expect(harms);
    story.rng = rng;
    // A ledger costs more than the journal, and to read it strictly more than to write it: of many seeds some are enough.
    let story = if seed.is_multiple_of(CLOSELY_ONE_IN) { story } else { story.seen_from_afar() };
    others().await;
    story.told(lives).await
}

/// What the schedules of one world have in common: how it begins, and the first life up to what it means to do, where nothing strikes
/// before.
struct Opening {
    world: u64,
    bug: Option<Bug>,
    begun: Story,
    intends: Option<Story>,
}

thread_local! {
    /// The world that was last told of: the schedules of one are told one after the other.
    static OPENING: RefCell<Option<Opening>> = const { RefCell::new(None) };
}

fn opening<T>(world: u64, bug: Option<Bug>, of: impl FnOnce(&Opening) -> T) -> T {
    OPENING.with_borrow_mut(|known| {
        drop(known.take_if(|known| (known.world, known.bug) != (world, bug)));
        of(known.get_or_insert_with(|| Opening::of(world, bug)))
    })
}

/// A store that knows which cluster the environment of all stories leads to: an apply records it before anything else.
fn bound(store: MemoryStore) -> MemoryStore {
    let lab = EnvironmentName::new("lab").unwrap_or_else(|| panic!("a name"));
    let written = store.commit_now(Write::Bind(some_binding(&lab)).into());
    assert!(written.is_ok(), "{written:?}");
    store
}

impl Opening {
    fn of(world: u64, bug: Option<Bug>) -> Self {
        let begun = Story::begun(world, Trace::new(false), bug);
        let mut intends = begun.fork();
        let came_to = alone(intends.intends());
        intends.intention = came_to.ok();
        let is_whole = intends.intention.is_some() && !intends.is_broken();
        Self { world, bug, begun, intends: is_whole.then_some(intends) }
    }

    /// How the first life goes where nothing strikes.
    fn undisturbed(&self) -> Undisturbed {
        let Some(Story { stage: Some(stage), intention: Some(None), .. }) = &self.intends else { return Undisturbed::Acts };
        Undisturbed::Reads(stage.requests())
    }

    /// As far as the story has come before any of these harms strikes.
    fn last_before(&self, harms: &[Harm]) -> &Story {
        let is_later = |story: &&Story| {
            let asked = story.stage.as_ref().map_or(0, Stage::requests);
            harms.iter().all(|harm| !matches!(harm.moment, Moment::Request(at) if at <= asked))
        };
        self.intends.as_ref().filter(is_later).unwrap_or(&self.begun)
    }
}

/// The story of a scene in which these harms strike, and nothing else.
pub(crate) fn tell_of(scene: Scene, harms: Vec<Harm>, lives: u64) -> Told {
    let stage = Stage::new(&scene.setting, harms, Trace::new(false));
    alone(Story::new(scene, stage, Rng::new(0), None).told(lives))
}

/// What came of something that was done, undone, and undone again.
pub(crate) struct Undone {
    pub(crate) violation: Option<Violation>,
    /// What our processes did while it was undone.
    pub(crate) commands: u64,
    /// Changes that were sent to do it, to undo it, and to undo it again.
    pub(crate) sends: [u64; 3],
    /// The words of those that undid it.
    pub(crate) sent: BTreeSet<String>,
    /// How the guest was before, after it was undone, and after it was undone again: whether it ran, and its config.
    pub(crate) seen: [String; 3],
}

/// What plan.json publishes as the way back from each step of a scene's plan, in their order.
pub(crate) fn published_undo(scene: Scene) -> Vec<Json> {
    let stage = Stage::new(&scene.setting, Vec::new(), Trace::new(false));
    let mut story = Story::new(scene, stage, Rng::new(0), None);
    let seen = story.read().unwrap_or_else(|| panic!("nothing goes wrong, and there is no reading"));
    let plan = story.plan(seen);
    let mut text = Vec::new();
    let judged = safety::judge(plan, story.scene.budget, Circumstances::default());
    let written = write_plan(&mut text, &judged, Provenance::Live).map_err(|error| error.to_string());
    let json: Json =
        written.and_then(|_| serde_json::from_slice(&text).map_err(|error| error.to_string())).unwrap_or_else(|error| panic!("{error}"));
    let guests = json["body"]["guests"].as_array().into_iter().flatten();
    guests.flat_map(|guest| guest["steps"].as_array().into_iter().flatten()).map(|step| step["undo"].clone()).collect()
}

/// One guest is brought there and back again, in one world and with one journal. These harms strike on the way back, each at a
/// command counted from its beginning.
pub(crate) fn tell_there_and_back(there: Scene, back: Scene, harms: &[(Kind, u64)]) -> Undone {
    let stage = Stage::new(&there.setting, Vec::new(), Trace::new(false));
    let mut story = Story::new(there, stage, Rng::new(0), None);
    let before = story.guest();
    alone(story.bad_days(1));
    // The lists of the cluster are some seconds behind: whoever plans by them at once finds nothing to undo.
    story.stage().pass(30_000);
    let (done, begun) = (story.oracle.sends, story.stage().commands());
    story.oracle.sent.clear();
    story.oracle.wants(back.wanted.clone());
    story.scene = Arc::new(back);
    let harms = harms.iter().map(|(kind, at)| Harm::at(*kind, Moment::Command(begun + at))).collect();
    story.stage().expect(harms);
    alone(story.bad_days(3));
    let commands = story.stage().commands() - begun;
    alone(story.good_days());
    let (undone, once) = (story.oracle.sends, story.guest());
    let sent = std::mem::take(&mut story.oracle.sent).into_iter().map(|(_, verb)| verb).collect();
    let _ = alone(story.live());
    let sends = [done, undone - done, story.oracle.sends - undone];
    Undone { sends, sent, commands, seen: [before, once, story.guest()], violation: story.oracle.violation.take() }
}

struct Story {
    /// Taken out while the observer has it.
    stage: Option<Stage>,
    store: MemoryStore,
    oracle: Oracle,
    scene: Arc<Scene>,
    rng: Rng,
    bug: Option<Bug>,
    runs: u64,
    is_healed: bool,
    /// Whether it has a ledger, which is played again in the end.
    is_audited: bool,
    /// Guests that a planted bug takes for locked.
    locked: BTreeSet<Vmid>,
    /// The reading of which a planted bug makes all plans.
    kept: Option<Observation>,
    /// What the last plan decided about each guest.
    verdicts: Vec<(u32, Verdict)>,
    /// What the process that is at work executes: first what it recovers, then its plan.
    drive: Drive,
    /// What the process that is at work means to do, where that is known before its life goes on.
    intention: Option<Intention>,
}

/// What a process means to do, if anything.
type Intention = Option<Vec<(Operation, Terms)>>;

impl Story {
    /// The first moment of a world, in which nothing is about to go wrong yet.
    fn begun(world: u64, trace: Trace, bug: Option<Bug>) -> Self {
        // Not the numbers that any schedule draws its harms from.
        let scene = scene::draw(&mut Rng::new(!world));
        let stage = Stage::new(&scene.setting, Vec::new(), trace);
        Self::new(scene, stage, Rng::new(0), bug)
    }

    /// The same story once more, as far as it has come before anything was written.
    fn fork(&self) -> Self {
        Self {
            stage: self.stage.clone(),
            store: bound(MemoryStore::new()),
            oracle: self.oracle.clone(),
            scene: Arc::clone(&self.scene),
            rng: self.rng.clone(),
            locked: self.locked.clone(),
            kept: self.kept.clone(),
            verdicts: self.verdicts.clone(),
            drive: self.drive.clone(),
            intention: self.intention.clone(),
            ..*self
        }
    }

    fn new(scene: Scene, stage: Stage, rng: Rng, bug: Option<Bug>) -> Self {
        let wanted = bugs::wanted(bug, scene.wanted.clone());
        let (store, oracle) = (bound(MemoryStore::new()), Oracle::new(wanted, scene.on_failure).within(scene.limits, scene.budget));
        Self {
            stage: Some(stage),
            store,
            oracle,
            drive: Drive::new(bugs::limits(bug, scene.limits)),
            scene: Arc::new(scene),
            rng,
            bug,
            runs: 0,
            is_healed: false,
            is_audited: true,
            locked: BTreeSet::new(),
            kept: None,
            verdicts: Vec::new(),
            intention: None,
        }
    }

    /// Nobody will ask for its ledger, nor for the form of what is asked and answered from here on.
    fn seen_from_afar(self) -> Self {
        Self { is_audited: false, store: bound(MemoryStore::without_ledger()), stage: self.stage.map(Stage::unverified), ..self }
    }

    async fn told(mut self, lives: u64) -> Told {
        self.bad_days(lives).await;
        let (commands, early) = (self.stage().commands(), self.stage().requests());
        self.good_days().await;
        self.audited();
        let stage = self.stage.take().unwrap_or_else(|| panic!("the stage is there"));
        Told {
            hash: stage.trace.hash(),
            violation: self.oracle.violation.take(),
            struck: stage.struck.iter().copied().collect(),
            seen: stage.seen.iter().copied().collect(),
            sends: self.oracle.sends,
            sent: std::mem::take(&mut self.oracle.sent),
            requests: stage.world.requests(),
            commands,
            early,
            lines: stage.trace.into_lines(),
        }
    }

    /// What the ledger says of all that happened is what the journal says.
    fn audited(&mut self) {
        if !self.is_audited || self.is_broken() {
            return;
        }
        self.stage().sometimes(PLAYED_AGAIN);
        if let Some(text) = book::differs(&self.store, self.scene.desired.environment()) {
            self.oracle.broken_by("C7", text);
        }
    }

    /// The first guest as it really is.
    fn guest(&mut self) -> String {
        let truth = self.stage().world.truth(100);
        truth.map_or_else(String::new, |truth| format!("{:?} {:?} {:?}", truth.process, truth.config, truth.pending))
    }

    fn stage(&mut self) -> &mut Stage {
        self.stage.as_mut().unwrap_or_else(|| panic!("the stage is there"))
    }

    fn is_broken(&self) -> bool {
        self.oracle.violation.is_some()
    }

    /// So many lives, and one more for whoever dies in the last one. A life in which nothing struck and nothing was sent is the last one:
    /// the next one would be the same again.
    async fn bad_days(&mut self, lives: u64) {
        let mut left = lives;
        for _ in 0..lives.max(LIVES_MAX) {
            if self.is_broken() || left == 0 {
                return;
            }
            let before = (self.stage().harms(), self.oracle.sends);
            left -= 1;
            if self.live().await.is_err() {
                left = left.max(1);
                self.stage().sometimes("the process died");
                self.stage().tell(format_args!("the process is dead"));
            } else if self.stage().harms() == 0 || (self.stage().harms(), self.oracle.sends) == before {
                return;
            }
            let within = *self.rng.pick(&[1_000, 30_000, 600_000]).unwrap_or(&1_000);
            let ms = self.rng.below(within);
            self.stage().pass(ms);
        }
    }

    /// One process, from its start to its end or death.
    async fn live(&mut self) -> Result<(), Died> {
        let intention = match self.intention.take() {
            Some(intention) => intention,
            None => self.intends().await?,
        };
        let ran = intention.map_or(Ok(()), |operations| self.run(operations));
        others().await;
        ran
    }

    /// A process starts, finds out what is open, and what is to be done.
    async fn intends(&mut self) -> Result<Intention, Died> {
        self.restart();
        for id in self.oracle.ids() {
            let history = self.store.operation(id.clone()).now_or_never().and_then(Result::ok).flatten();
            self.oracle.found(&id, history.as_ref());
        }
        self.recover()?;
        others().await;
        let seen = self.seen();
        others().await;
        let plan = seen.and_then(|seen| self.planned(seen));
        others().await;
        let intention = plan.and_then(|plan| self.admitted(plan));
        others().await;
        Ok(intention)
    }

    /// How everything is. Whoever was told to stop begins no run.
    fn seen(&mut self) -> Option<Observation> {
        if self.oracle.is_stopped() {
            return None;
        }
        self.verdicts.clear();
        let seen = self.read();
        if seen.is_none() {
            assert!(self.bug != Some(Bug::Unwrap), "nobody thought of a reading that there is not");
            self.demand_reading();
        }
        seen
    }

    /// What is to be done, if anything is.
    fn planned(&mut self, seen: Observation) -> Option<Plan> {
        let plan = self.plan(seen);
        self.verdicts = plan.guests().map(|(guest, verdict)| (guest.vmid.get(), verdict.clone())).collect();
        self.demand_presence();
        // The plan of a world that has come to rest has nothing to admit.
        let is_at_rest = plan.guests().all(|(_, verdict)| matches!(verdict, Verdict::Converged { .. }));
        (!is_at_rest).then_some(plan)
    }

    /// The store as the next process finds it.
    fn restart(&mut self) {
        let was_dark = self.stage().was_dark();
        self.store = if was_dark { self.store.lose_power() } else { self.store.crash() };
        self.oracle.begins(was_dark);
        self.drive = Drive::new(bugs::limits(self.bug, self.scene.limits));
        let now_ms = self.stage().now_ms;
        self.oracle.begins_at(now_ms / 1000);
    }

    fn demand_reading(&mut self) {
        if self.is_healed {
            self.oracle.broken_by("L1", "everything has healed, and there is no reading".into());
        }
    }

    /// S5: whoever is there is not called missing, however badly the lists are read.
    fn demand_presence(&mut self) {
        let is_called_missing = |verdict: &Verdict| matches!(verdict, Verdict::Refused(refusals) if refusals.iter().any(|refusal| refusal.code().word() == "guest-missing"));
        let Some(stage) = self.stage.as_ref().filter(|stage| !stage.struck.contains(&Kind::Vanished)) else { return };
        let missed = self.verdicts.iter().find(|(vmid, verdict)| is_called_missing(verdict) && stage.world.truth(*vmid).is_some());
        if let Some((vmid, _)) = missed {
            self.oracle.missed(*vmid);
        }
    }

    /// What is declared.
    fn declared(&self) -> Arc<Desired> {
        match self.bug {
            Some(Bug::TurnRound) if !self.runs.is_multiple_of(2) => Arc::new(scene::turned_round(&self.scene)),
            Some(Bug::WantNothing) => Arc::new(scene::unwanted(&self.scene)),
            _ => Arc::clone(&self.scene.desired),
        }
    }

    /// What is open, or held until a reading tells, is found out first.
    fn recover(&mut self) -> Result<(), Died> {
        let mut open = self.open();
        if self.bug == Some(Bug::ForgetHeld) {
            open.retain(|history| !waits_for_reading(history));
        }
        if open.is_empty() || self.bug == Some(Bug::DropRecovery) {
            return Ok(());
        }
        self.stage().tell(format_args!("recovery of {}", open.len()));
        self.stage().sometimes(if open.iter().any(|history| history.task.is_some()) {
            "recovery with a task"
        } else {
            "recovery without a task"
        });
        let is_planted = matches!(self.bug, Some(Bug::ResendOnRecovery | Bug::FailOnRecovery));
        let Self { stage, store, oracle, scene, bug, drive, .. } = self;
        let stage = stage.as_mut().unwrap_or_else(|| panic!("the stage is there"));
        let mut life = Life::new(stage, store.clone(), oracle, scene, *bug, drive);
        if let Some(history) = open.iter().find(|history| is_planted && history.task.is_none()) {
            return life.planted_recovery(&history.operation);
        }
        life.resolve(open)?;
        self.recovered_twice();
        Ok(())
    }

    /// S20: what a recovery left is what it would leave again: nothing is open.
    fn recovered_twice(&mut self) {
        // What could not be written stays open, for the next start.
        let is_left = |history: &&History| !waits_for_reading(history) && !self.oracle.is_unwritten(history.id());
        if let Some(id) = self.open().iter().find(is_left).map(|history| history.id().clone()) {
            self.oracle.broken_by("S20", format!("{id} is open after the recovery"));
        }
    }

    fn open(&self) -> Vec<History> {
        let environment = self.scene.desired.environment();
        unsettled(&self.store, environment).now_or_never().and_then(Result::ok).unwrap_or_default()
    }

    /// A fresh reading, if there is one.
    fn read(&mut self) -> Option<Observation> {
        let stage = self.stage.take().unwrap_or_else(|| panic!("the stage is there"));
        let taken_at = moment::written(stage.now_ms / 1000);
        let way = Way::new(stage);
        let desired = self.declared();
        let (environment, scope, needs) = (desired.environment().clone(), desired.scope(), Needs::of(&desired));
        let question = Question { environment: &environment, cluster: None, token: TOKEN, scope: &scope, needs: &needs };
        let session = Session::new(way.clone());
        let taken = observe::read(&session, &question).now_or_never().unwrap_or_else(|| panic!("nothing here waits"));
        drop(session);
        self.stage = way.into_stage();
        let mut observation = match taken {
            Ok(taken) => taken.observation,
            Err(unread) => {
                self.stage().tell(format_args!("no reading: {unread}"));
                self.stage().sometimes("no reading");
                return None;
            }
        };
        if self.bug == Some(Bug::LockForever) {
            bugs::locked_for_ever(&mut self.locked, &mut observation);
        }
        if self.bug == Some(Bug::AbsentIsMissing) {
            bugs::absent_is_missing(&mut observation);
        }
        observation.taken_at = Some(taken_at.into());
        if self.bug == Some(Bug::OldPlan) {
            observation = self.kept.get_or_insert(observation).clone();
        }
        Some(observation)
    }

    /// What is to be done, on a reading.
    fn plan(&mut self, seen: Observation) -> Plan {
        let desired = self.declared();
        let scoped = seen.within(&desired.scope());
        let plan = plan::plan(desired, Arc::new(scoped), Arc::clone(&self.scene.rules));
        self.oracle.plans_on(plan.observation().taken_at.as_deref().and_then(moment::read));
        plan
    }

    fn admitted(&mut self, plan: Plan) -> Option<Vec<(Operation, Terms)>> {
        let has_steps = plan.guests().any(|(_, verdict)| matches!(verdict, Verdict::Steps(_)));
        let names = plan.guests().filter_map(|(guest, _)| plan.name_of(guest).map(Into::into)).collect();
        let is_within = self.is_within_limits();
        let safe = match safety::judge(plan, bugs::budget(self.bug, self.scene.budget), Circumstances::default()) {
            Judged::Safe(safe) => safe,
            Judged::Refused(_) => {
                self.stage().tell(format_args!("the plan is refused"));
                self.stage().sometimes(if is_within { "the plan is refused" } else { "the plan is over its limits" });
                if self.is_healed && is_within {
                    self.oracle.broken_by("L2", "the whole plan is refused although everything has healed".into());
                }
                return None;
            }
        };
        if !has_steps {
            return None;
        }
        let admission = Admission {
            mode: Mode::Solo,
            provenance: Provenance::Live,
            confirmation: Confirmation::Typed { by: "ann".into(), names },
            refused: Refused::IsLeftOut,
            now_ms: self.stage().now_ms,
            age_secs_max: Admission::AGE_SECS_MAX,
        };
        let approved = match approve::admit(safe, &admission) {
            Ok(Admitted::Approved(approved)) => approved,
            // It was read for so long that nobody knows any more how it is.
            Ok(Admitted::Refused(refusals)) => {
                if self.is_healed {
                    self.oracle.broken_by("L2", format!("nothing is admitted although everything has healed: {refusals:?}"));
                }
                return None;
            }
            Err(error) => panic!("everything was typed: {error:?}"),
        };
        self.runs += 1;
        let runs = self.runs;
        let run = RunId::new(&format!("run-{runs}")).unwrap_or_else(|| panic!("an id"));
        approved.into_operations(&run, |number| OperationId::new(&format!("op-{runs}-{number}")))
    }

    fn run(&mut self, mut operations: Vec<(Operation, Terms)>) -> Result<(), Died> {
        let Some((first, _)) = operations.first() else { return Ok(()) };
        let (id, environment, plan, at_ms) = (first.run.clone(), first.environment.clone(), first.plan, self.stage().now_ms);
        if self.scene.is_one_shot && !self.is_healed {
            operations.iter_mut().for_each(|(operation, _)| operation.source = once(operation));
        }
        let boot = Some(self.stage().uptime().boot);
        let Self { stage, store, oracle, scene, bug, drive, .. } = self;
        let stage = stage.as_mut().unwrap_or_else(|| panic!("the stage is there"));
        let mut life = Life::new(stage, store.clone(), oracle, scene, *bug, drive);
        let run = Run { id: id.clone(), environment, plan, by: "ann".into(), at_ms, boot };
        if !life.write(Write::RunStarted { run, inputs: Box::new(INPUTS.clone()) })? {
            return Ok(());
        }
        life.carry_out(operations)?;
        life.write(Write::RunEnded { id, end: End::Done, at_ms })?;
        Ok(())
    }

    /// Everything works again: it must come to rest as it is wanted, and stay so.
    async fn good_days(&mut self) {
        if self.is_broken() {
            return;
        }
        self.is_healed = true;
        self.oracle.heals();
        // Whoever lets go of something does so in a process of their own.
        self.restart();
        let vmids: Vec<u32> = self.scene.wanted.keys().copied().collect();
        self.stage().heal(vmids.into_iter());
        self.stage().pass(600_000);
        self.thaw();
        let runs_max = if self.is_any_hopeless() { RUNS_HOPELESS_MAX } else { RUNS_MAX };
        for _ in 0..runs_max {
            self.release();
            let sends = self.oracle.sends;
            if self.live().await.is_err() || self.is_broken() {
                break;
            }
            // Nothing was sent and nothing is held: this is how it stays.
            if self.oracle.sends == sends && self.held().is_empty() {
                self.oracle.settled();
                self.came_late();
                return self.rests();
            }
            self.stage().pass(60_000);
        }
        if !self.is_broken() && !self.is_any_hopeless() {
            self.oracle.broken_by("L1", format!("still at work after {RUNS_MAX} runs, although everything has healed"));
        }
    }

    /// A restart that gave up what came later is wrong. That a living process did is known, and not forbidden: how often is told.
    fn came_late(&mut self) {
        let Some(stage) = self.stage.as_mut() else { return };
        for vmid in self.scene.wanted.keys() {
            let tasks: Vec<String> = stage.world.tasks_about(*vmid).map(|(upid, _)| upid.to_owned()).collect();
            let late = tasks.iter().any(|upid| self.oracle.came_late(upid));
            stage.seen.extend(late.then_some("a change came after it was given up"));
        }
    }

    fn is_any_hopeless(&self) -> bool {
        self.scene.wanted.values().any(|wanted| wanted.is_hopeless)
    }

    /// A person lets go of what was held and frozen.
    fn thaw(&mut self) {
        let (environment, at_ms) = (self.scene.desired.environment().clone(), self.stage().now_ms);
        let by: Box<str> = "ann".into();
        for vmid in self.scene.desired.scope().ids() {
            let release = Write::Release { environment: environment.clone(), vmid: *vmid, by: by.clone(), at_ms };
            let _ = self.store.commit_now(release.into());
        }
        let _ = self.store.commit_now(Write::Thaw { environment, by, at_ms }.into());
    }

    fn held(&self) -> Vec<History> {
        let filter = Filter { standing: Some(Standing::Held), ..Filter::default() };
        self.store.operations(filter, 1000).now_or_never().and_then(Result::ok).unwrap_or_default()
    }

    /// A person looks at what is held for a person, or still held after everything healed, and says what became of it.
    fn release(&mut self) {
        for history in self.held() {
            let at_ms = self.stage().now_ms;
            let (id, resolution) = (history.id().clone(), Resolution::Failed);
            let record = Record::Resolved { id, resolution, by: "ann".into(), reason: "looked".into(), at_ms };
            // What a reading may release is first read once.
            let was_read = self.stage().seen.contains("read after healing");
            if waits_for_reading(&history) && !was_read {
                continue;
            }
            if waits_for_reading(&history) && self.has_come_about(&history.operation) {
                let id = history.id();
                self.oracle.broken_by("L3", format!("{id} came about, everything has healed and was read, and it is still held"));
            }
            self.stage().tell(format_args!("a person resolves {}", history.id()));
            if self.store.commit_now(record.clone().into()).is_ok() {
                self.oracle.durable(&record);
            }
        }
        self.stage().sometimes("read after healing");
    }

    /// Whether a power change is as it promised, in truth and on the very guest.
    fn has_come_about(&mut self, operation: &Operation) -> bool {
        // Whatever the guest is: a task that hangs for ever keeps it, since it may still do something.
        if self.stage().tasks_at_work(operation.guest.vmid.get()) > 0 {
            return false;
        }
        let Some(truth) = self.stage().world.truth(operation.guest.vmid.get()) else { return false };
        let is_same = operation.guest.identity.as_ref().is_none_or(|identity| truth::is_same(&truth, identity));
        // That it runs says nothing about whether it was rebooted.
        let leads_to = operation.step.change.leads_to().filter(|_| !matches!(operation.step.change, Change::Reboot { .. }));
        is_same && leads_to.is_some_and(|state| truth::runs_as(&truth, state))
    }

    /// L1 and L2: what is left to do is nothing, for each guest that nothing stands against, and nothing stands against it but what
    /// somebody put there.
    fn rests(&mut self) {
        let is_within_limits = self.is_within_limits();
        let verdicts = std::mem::take(&mut self.verdicts);
        let is_refused = |verdict: &Verdict| matches!(verdict, Verdict::Refused(_));
        let refused = verdicts.iter().filter(|(_, verdict)| is_refused(verdict)).map(|(vmid, _)| *vmid).collect();
        let world = self.stage.as_ref().map(|stage| &stage.world);
        let real = self.scene.wanted.keys().filter_map(|vmid| Some((*vmid, world?.truth(*vmid)?))).collect();
        let grounds = Grounds { wanted: &self.scene.wanted, real: &real, refused: &refused, is_within_limits };
        let found = verdicts.iter().find_map(|(vmid, verdict)| self.amiss(*vmid, verdict, &grounds));
        if verdicts.iter().any(|(_, verdict)| matches!(verdict, Verdict::Converged { .. })) {
            self.stage().sometimes("a guest converged after healing");
        }
        if !refused.is_empty() {
            self.stage().sometimes("a guest is refused after healing");
        }
        if let Some((rule, text)) = found {
            self.oracle.broken_by(rule, text);
        }
    }

    /// Whether a run may do all that the last plan has.
    fn is_within_limits(&self) -> bool {
        let steps = || self.verdicts.iter().filter_map(|(_, verdict)| if let Verdict::Steps(steps) = verdict { Some(steps) } else { None });
        let takes_down = |step: &Step| matches!(step.change, Change::Shutdown { .. } | Change::Stop | Change::Reboot { .. });
        self.oracle.allows(steps().count(), steps().filter(|steps| steps.iter().any(takes_down)).count())
    }

    /// What is wrong with the last verdict on a guest.
    fn amiss(&self, vmid: u32, verdict: &Verdict, grounds: &Grounds<'_>) -> Option<(&'static str, String)> {
        let (wanted, real) = (&self.scene.wanted[&vmid], grounds.real.get(&vmid));
        match verdict {
            Verdict::Converged { .. } if real.is_some_and(|real| truth::is_as_wanted(real, wanted)) => None,
            Verdict::Converged { .. } => Some(("L1", format!("{vmid} is called converged and is {real:?}"))),
            Verdict::Refused(refusals) => {
                let code = refusals.iter().map(|refusal| refusal.code().word()).find(|code| !grounds.has(vmid, code))?;
                Some(("L2", format!("{vmid} is refused with `{code}`, and nothing gives cause for that any more: {real:?}")))
            }
            Verdict::Steps(_) if wanted.is_hopeless || self.waits_for_hopeless(vmid) => None,
            Verdict::Steps(_) if !grounds.is_within_limits => None,
            Verdict::Steps(steps) => {
                let words: Vec<&str> = steps.iter().map(|step| step.change.word()).collect();
                Some(("L1", format!("{vmid} still has steps although everything has healed: {words:?}")))
            }
        }
    }

    /// Whoever comes after a guest that cannot get there does not get there either.
    fn waits_for_hopeless(&self, vmid: u32) -> bool {
        let is_hopeless = |vmid: &u32| self.scene.wanted.get(vmid).is_some_and(|wanted| wanted.is_hopeless);
        let before = self.scene.wanted[&vmid].after.iter().any(is_hopeless);
        // A run that stops at the first failure never gets past it.
        let is_stuck = self.scene.on_failure == OnFailure::Stop && self.scene.wanted.keys().any(is_hopeless);
        let behind = self.scene.wanted.iter().any(|(other, wanted)| wanted.after.contains(&vmid) && is_hopeless(other));
        before || behind || is_stuck
    }
}

/// The same step of the same guest is the same request.
fn once(operation: &Operation) -> Source {
    let text = format!("{}-{}", operation.guest.vmid, operation.step.change.word());
    let key = IdempotencyKey::new(&text).unwrap_or_else(|| panic!("a key"));
    Source::OneShot { key, request: Digest::of_bytes(text.as_bytes()) }
}
