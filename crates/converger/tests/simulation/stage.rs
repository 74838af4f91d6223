//! The world on a virtual clock, with the harms that wait for their moment, and the trace of everything that happens.
//!
//! What never enters: our own process (`process`), and what must hold (`oracle`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use converger_adapters::proxmox::client::Exchange;
use converger_adapters::proxmox::codec::{Cause, Command, Delivery, Event, Failure, HttpAnswer, HttpRequest, Method};
use converger_core::apply::{BootId, End, Outcome, Uptime};
use converger_lab::{Act, Answer, Face, Part, Request, Setting, Truth, World};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::harm::{self, Blow, Harm, Kind, Moment};
use super::recall;
use super::scene::{OTHER, TOKEN};
use super::trace::Trace;
use super::wire;

/// Codes of ends that must be reached sometimes.
pub(crate) const ENDS: &[&str] = &[
    "plan-stale",
    "guest-unknown",
    "guest-locked",
    "ha-owned",
    "identity-mismatch",
    "name-mismatch",
    "protected-guest",
    "config-pending",
    "node-offline",
    "not-quorate",
    "guest-held",
    "frozen",
    "not-delivered",
    "change-rejected",
    "task-failed",
    "promise-broken",
    "guest-left-down",
    "not-carried-out",
    "shutdown-timeout",
    "task-overdue",
    "task-at-work",
    "task-lost",
    "outcome-unread",
    "outcome-unclear",
    "journal-unwritable",
    "request-repeated",
];

/// How a guest and its cluster really were when a request was answered.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// When that was.
    pub(crate) at_ms: u64,
    pub(crate) quorate: bool,
    /// Whether the node that was asked is there for the entry node.
    pub(crate) online: bool,
    /// The guest; none where it is not there, or hidden.
    pub(crate) truth: Option<Truth>,
}

/// What can be looked at of a guest and of a node.
type Shown = (Option<Truth>, Vec<bool>, bool, u64);

/// What came of a request.
pub(crate) struct Came {
    pub(crate) answer: Result<HttpAnswer, Failure>,
    /// When the client has it.
    pub(crate) at_ms: u64,
    /// Whether it changed the guest, or began a task.
    pub(crate) has_effect: bool,
}

/// The world and its clock.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) now_ms: u64,
    start_ms: u64,
    entry: String,
    /// The last request of ours.
    request: Request,
    harms: Vec<Harm>,
    /// How often our machine was started, and when last.
    boots: u64,
    booted_ms: u64,
    /// What it slept since then.
    asleep_ms: u64,
    /// It lost its power, and nobody has looked at its disk since.
    is_dark: bool,
    requests: u64,
    commands: u64,
    /// What makes something good again, and when.
    healing: BTreeMap<(u64, u64), Act>,
    made: u64,
    /// Harms that wait for the request or the task that they hit.
    on_wire: Vec<Kind>,
    on_task: Vec<(Kind, u32, usize)>,
    /// Harms to the world of which nothing was seen yet, and until when they last.
    unseen: Vec<(Harm, Option<u64>)>,
    /// What our way into the world shows to those who begin TLS.
    face: Face,
    /// Our token was once denied what it needs.
    is_revoked: bool,
    /// Whether what is asked and answered is held against the table of the API.
    is_verified: bool,
    /// What took effect.
    pub(crate) struck: BTreeSet<Kind>,
    pub(crate) seen: BTreeSet<&'static str>,
    pub(crate) trace: Trace,
}

impl Stage {
    pub(crate) fn new(setting: &Setting, harms: Vec<Harm>, trace: Trace) -> Self {
        let mut world = World::new(setting).unwrap_or_else(|error| panic!("{error}"));
        world.keep_no_records();
        let mut stage = Self {
            world,
            now_ms: setting.start_ms,
            start_ms: setting.start_ms,
            entry: setting.nodes.keys().next().cloned().unwrap_or_default(),
            request: wire::unsent(&format!("{TOKEN}=s3cret")),
            harms,
            boots: 1,
            booted_ms: setting.start_ms,
            asleep_ms: 0,
            is_dark: false,
            requests: 0,
            commands: 0,
            healing: BTreeMap::new(),
            made: 0,
            on_wire: Vec::new(),
            on_task: Vec::new(),
            unseen: Vec::new(),
            face: Face::Own,
            is_revoked: false,
            is_verified: true,
            struck: BTreeSet::new(),
            seen: BTreeSet::new(),
            trace,
        };
        // Long enough for every node to have told of its guests.
        stage.pass(20_000);
        stage
    }

    /// From now on nobody looks at the form of what is asked and answered.
    pub(crate) fn unverified(self) -> Self {
        Self { is_verified: false, ..self }
    }

    pub(crate) fn tell(&mut self, text: fmt::Arguments<'_>) {
        self.trace.line(self.now_ms - self.start_ms, text);
    }

    /// Something that must be reached sometimes was.
    pub(crate) fn sometimes(&mut self, what: &'static str) {
        self.seen.insert(what);
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.pass_to(self.now_ms + ms);
    }

    /// Time goes by, and what heals by then does so when its time has come.
    pub(crate) fn pass_to(&mut self, now_ms: u64) {
        while let Some(entry) = self.healing.first_entry().filter(|entry| entry.key().0 <= now_ms) {
            let ((at_ms, _), act) = entry.remove_entry();
            self.now_ms = self.now_ms.max(at_ms);
            self.tell(format_args!("world: {act:?}"));
            self.act(act);
        }
        self.now_ms = self.now_ms.max(now_ms);
        self.world.advance_to(self.now_ms);
    }

    /// How long our machine has been awake, and since which start.
    pub(crate) fn uptime(&self) -> Uptime {
        let boot = BootId::new(&format!("boot-{}", self.boots)).unwrap_or_else(|| panic!("an id"));
        Uptime { boot, ms: self.awake_ms() }
    }

    /// How long our machine has been awake since its last start.
    pub(crate) fn awake_ms(&self) -> u64 {
        self.now_ms - self.booted_ms - self.asleep_ms
    }

    /// Our machine sleeps for so long.
    pub(crate) fn sleep(&mut self, ms: u64) {
        self.asleep_ms += ms;
        self.pass(ms);
    }

    /// Our machine loses its power, and starts again.
    pub(crate) fn lose_power(&mut self) {
        (self.boots, self.booted_ms, self.asleep_ms, self.is_dark) = (self.boots + 1, self.now_ms, 0, true);
    }

    /// Whether it did since this was last asked.
    pub(crate) fn was_dark(&mut self) -> bool {
        std::mem::take(&mut self.is_dark)
    }

    /// How much our processes have done so far.
    pub(crate) fn commands(&self) -> u64 {
        self.commands
    }

    /// How many requests of ours there were so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// From now on these harms wait for their moment.
    pub(crate) fn expect(&mut self, harms: Vec<Harm>) {
        self.harms = harms;
    }

    /// How much is still to go wrong.
    pub(crate) fn harms(&self) -> usize {
        self.harms.len()
    }

    /// Another thing that the process does to the world or to its store. What strikes the process at it.
    pub(crate) fn command(&mut self, is_send: bool) -> Vec<Harm> {
        self.commands += 1;
        let now = self.commands;
        self.take(|moment| match moment {
            Moment::Command(at) => at <= now,
            Moment::Sending => is_send,
            Moment::Request(_) | Moment::BeforeSend | Moment::AfterSend => false,
        })
    }

    fn take(&mut self, is_due: impl Fn(Moment) -> bool) -> Vec<Harm> {
        // Most of the time nothing waits.
        if !self.harms.iter().any(|harm| is_due(harm.moment)) {
            return Vec::new();
        }
        let (due, rest) = std::mem::take(&mut self.harms).into_iter().partition(|harm| is_due(harm.moment));
        self.harms = rest;
        due
    }

    fn strike(&mut self, harms: Vec<Harm>) {
        for harm in harms {
            self.tell(format_args!("harm: {:?} {} {}", harm.kind, harm.vmid, harm.node));
            match harm.blow() {
                None => {}
                Some(Blow::Wire(twist)) => {
                    self.world.add_request_fault(harm::next_request(twist));
                    self.on_wire.push(harm.kind);
                }
                Some(Blow::Task(twist)) => {
                    self.world.add_task_fault(harm::next_task(harm.vmid, twist));
                    self.on_task.push((harm.kind, harm.vmid, self.world.tasks_about(harm.vmid).count()));
                }
                Some(Blow::Other(request)) => {
                    let before = self.shown(&harm);
                    self.somebody_else(harm.vmid, &request);
                    self.count(&harm, &before);
                }
                Some(Blow::Act(act, good)) => {
                    let before = self.shown(&harm);
                    self.act(act);
                    self.count(&harm, &before);
                    if let (Some(act), Some(ms)) = (good, harm.heals_ms) {
                        self.made += 1;
                        self.healing.insert((self.now_ms + ms, self.made), act);
                    }
                }
            }
        }
    }

    fn act(&mut self, act: Act) {
        if let Act::Show(node, face) = &act
            && *node == self.entry
        {
            self.face = *face;
        }
        self.is_revoked |= matches!(act, Act::Revoke(_));
        self.world.act(self.now_ms, act);
    }

    /// What a harm can change and what can be looked at: its guest, the tasks about it, whether its node is there, and what its clock says.
    fn shown(&self, harm: &Harm) -> Shown {
        let tasks = self.world.tasks_about(harm.vmid).map(|(_, is_over)| is_over).collect();
        let (sees, wall_s) = (self.world.sees(&self.entry, &harm.node), self.world.wall_s_of(&harm.node));
        (self.world.truth(harm.vmid), tasks, sees, wall_s)
    }

    /// It took effect if something is another than before; of what cannot be looked at a later answer tells.
    fn count(&mut self, harm: &Harm, before: &Shown) {
        if self.shown(harm) != *before {
            self.struck.insert(harm.kind);
        } else if !self.struck.contains(&harm.kind) {
            self.unseen.push((harm.clone(), harm.heals_ms.map(|ms| self.now_ms + ms)));
        }
    }

    /// Harms that hit this answer, that it shows, or that hit a task that has begun meanwhile.
    fn count_hits(&mut self, path: &str, answer: &Answer) {
        if let Some(at) = self.on_wire.iter().position(|kind| kind.is_seen_in(answer)) {
            self.struck.insert(self.on_wire.remove(at));
        } else if !self.unseen.is_empty() {
            let now_ms = self.now_ms;
            self.unseen.retain(|(_, until_ms)| until_ms.is_none_or(|until_ms| until_ms > now_ms));
            if let Some(at) = self.unseen.iter().position(|(harm, _)| harm.is_seen_in(&self.entry, path, answer)) {
                self.struck.insert(self.unseen.remove(at).0.kind);
            }
        }
        self.count_tasks();
    }

    /// Nothing is asked of whoever shows another face, and nothing arrives there.
    fn turned_away(&mut self) -> Came {
        self.struck.insert(Kind::OtherFace);
        let cause = match self.face {
            Face::Expired => Cause::CertificateExpired,
            Face::OtherName => Cause::CertificateOtherName,
            Face::OtherKey => Cause::Untrusted,
            Face::Own | Face::Noise => Cause::NotTls,
        };
        let failure = Failure::lost(Delivery::NotDelivered, cause, format!("{}: {}", self.entry, cause.word()));
        Came { answer: Err(failure), at_ms: self.now_ms, has_effect: false }
    }

    /// Harms that hit a task that has begun meanwhile, whoever began it.
    fn count_tasks(&mut self) {
        let world = &self.world;
        for (kind, _, _) in self.on_task.extract_if(.., |(_, vmid, before)| world.tasks_about(*vmid).count() > *before) {
            self.struck.insert(kind);
        }
    }

    /// A harm to our own process took effect.
    pub(crate) fn has_struck(&mut self, kind: Kind) {
        self.struck.insert(kind);
    }

    fn somebody_else(&mut self, vmid: u32, request: &Request) {
        let Some(truth) = self.world.truth(vmid) else { return };
        self.world.answer_at(self.now_ms, &truth.node, request);
    }

    /// One request reaches for the world, now.
    pub(crate) fn carry(&mut self, sent: &HttpRequest, vmid: u32) -> Came {
        self.requests += 1;
        let (number, is_change) = (self.requests, sent.method() != Method::Get);
        let due = self.take(|moment| match moment {
            Moment::Request(at) => at <= number,
            Moment::BeforeSend => is_change,
            Moment::AfterSend | Moment::Command(_) | Moment::Sending => false,
        });
        self.strike(due);
        if self.face != Face::Own {
            return self.turned_away();
        }
        let before = is_change.then(|| self.footprint(vmid));
        self.request = wire::request(std::mem::take(&mut self.request), sent);
        let answer = self.world.answer_at(self.now_ms, &self.entry, &self.request);
        if self.is_verified {
            wire::verify(self.world.flavour(), &self.request, &answer);
        }
        self.count_hits(sent.path(), &answer);
        let has_effect = before.is_some_and(|before| before != self.footprint(vmid));
        if is_change {
            let due = self.take(|moment| moment == Moment::AfterSend);
            self.strike(due);
        }
        let deadline_ms = wire::deadline_ms();
        let at_ms = self.now_ms + answer.delay_ms.min(deadline_ms);
        Came { answer: wire::received(&self.entry, sent, answer, deadline_ms), at_ms, has_effect }
    }

    /// What a change of ours leaves behind at once: another config, or a task.
    fn footprint(&self, vmid: u32) -> (Option<String>, usize) {
        let tasks = self.world.tasks_about(vmid).filter(|(upid, _)| upid.contains(TOKEN)).count();
        (self.world.config_digest(vmid), tasks)
    }

    /// How the cluster really is, without any guest.
    pub(crate) fn membership(&self, node: &str) -> Snapshot {
        let (quorate, online) = (self.world.quorate(&self.entry), self.world.sees(&self.entry, node));
        Snapshot { at_ms: self.now_ms, quorate, online, truth: None }
    }

    /// How things really are.
    pub(crate) fn snapshot(&self, node: &str, vmid: u32) -> Snapshot {
        Snapshot { truth: self.world.truth(vmid).filter(|truth| !truth.hidden), ..self.membership(node) }
    }

    /// How many tasks of ours are at work on a guest, wherever.
    pub(crate) fn tasks_at_work(&self, vmid: u32) -> usize {
        self.world.tasks_about(vmid).filter(|(upid, is_over)| !is_over && upid.contains(TOKEN)).count()
    }

    /// Our own tasks about a guest.
    pub(crate) fn own_tasks(&self, vmid: u32) -> Vec<String> {
        self.world.tasks_about(vmid).filter(|(upid, _)| upid.contains(TOKEN)).map(|(upid, _)| upid.to_owned()).collect()
    }

    /// The tasks of others about a guest.
    pub(crate) fn foreign_tasks(&self, vmid: u32) -> Vec<String> {
        let foreign = self.world.tasks_about(vmid).filter(|(upid, _)| !upid.contains(TOKEN));
        foreign.map(|(upid, _)| upid.to_owned()).collect()
    }

    /// How an operation ended, for what must be reached sometimes.
    pub(crate) fn ended(&mut self, outcome: &Outcome, is_recovered: bool) {
        self.sometimes(match (outcome.end(), is_recovered) {
            (End::Done, false) => "done",
            (End::Failed, false) => "failed",
            (End::Refused, false) => "refused",
            (End::Held, false) => "held",
            (End::NotRun, _) => "not run for want of a record",
            (End::Done, true) => "recovered as done",
            (End::Failed, true) => "recovered as failed",
            (End::Held, true) => "recovered as held",
            (End::Refused, true) => "recovered as refused",
        });
        let word = outcome.code().map_or("", |code| code.as_str());
        let named = ENDS.iter().find(|known| **known == word);
        self.seen.extend(named);
        let evidence = &outcome.findings().evidence;
        if evidence.get("adopted").is_some() {
            self.sometimes("a task was adopted");
        }
        if evidence.get("found_so").is_some() {
            self.sometimes("found so");
        }
        if evidence.get("task_error").is_some() {
            self.sometimes("done although its task failed");
        }
        if evidence.get("start_task").is_some() {
            self.sometimes("the start after a reboot failed");
        }
        if evidence.get("never_sent").is_some() {
            self.sometimes("never sent");
        }
        if evidence.get("may_come_until").is_some() {
            self.sometimes("may still come");
        }
        if evidence.get("warnings").is_some() {
            self.sometimes("done with warnings");
        }
    }

    /// Somebody gives our token everything that it needs.
    fn grant(&mut self) {
        let form = "path=/&roles=Administrator&tokens=root%40pam%21bot";
        let grant = Request::new("PUT", "/api2/json/access/acl").token(OTHER);
        let grant = grant.header("Content-Length", &form.len().to_string()).form(form);
        let entry = self.entry.clone();
        self.world.answer_at(self.now_ms, &entry, &grant);
    }

    /// Everything works again, and nothing goes wrong from now on.
    pub(crate) fn heal(&mut self, vmids: impl Iterator<Item = u32>) {
        self.count_tasks();
        self.harms.clear();
        self.healing.clear();
        self.world.clear_faults();
        let nodes: Vec<String> = self.world.node_names().map(str::to_owned).collect();
        self.unseen.clear();
        // It may have hit a task that was listed before it, and waited for another.
        let has_hung = self.struck.contains(&Kind::TaskHangs) || self.on_task.iter().any(|(kind, ..)| *kind == Kind::TaskHangs);
        let mut acts = vec![Act::Heal, Act::Show(self.entry.clone(), Face::Own)];
        for node in nodes {
            acts.extend([Part::Files, Part::Proxy, Part::Daemon, Part::Statd].map(|part| Act::ServiceUp(node.clone(), part)));
            acts.extend([Act::Cpus(node.clone(), harm::CPUS), Act::NodeUp(node.clone()), Act::Slow(node.clone(), 0), Act::Seeing(node)]);
        }
        for vmid in vmids {
            let is_odd = self.world.truth(vmid).and_then(|truth| truth.process).is_some_and(|word| word != "running");
            acts.extend([Act::Reappear(vmid), Act::Relist(vmid), Act::Unlock(vmid)]);
            acts.extend(is_odd.then(|| Act::Say(vmid, "running".to_owned())));
            if has_hung {
                acts.push(Act::KillTask(vmid));
            }
        }
        for act in acts {
            self.act(act);
        }
        if self.is_revoked {
            self.grant();
        }
        self.tell(format_args!("world: healed"));
    }
}

/// The observer's way into the world: one request after the other.
#[derive(Clone)]
pub(crate) struct Way(Arc<Mutex<Stage>>);

impl Way {
    pub(crate) fn new(stage: Stage) -> Self {
        Self(Arc::new(Mutex::new(stage)))
    }

    pub(crate) fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_stage(self) -> Option<Stage> {
        Arc::into_inner(self.0).map(|mutex| mutex.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Exchange for Way {
    async fn exchange(&self, sent: &HttpRequest) -> Result<HttpAnswer, Failure> {
        let mut stage = self.stage();
        let came = stage.carry(sent, 0);
        stage.pass_to(came.at_ms);
        came.answer
    }

    fn decode(&self, command: &Command, answer: &HttpAnswer) -> Result<Event, Failure> {
        recall::decode(command, answer)
    }

    fn place(&self) -> &str {
        "pve1:8006"
    }
}
