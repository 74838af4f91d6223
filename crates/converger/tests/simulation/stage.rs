//! The world on a virtual clock, the faults that wait for their triggers, and the trace of all events.
//!
//! Our own process is in `process`, the rules are in `oracle`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use converger_adapters::proxmox::client::ProxmoxTransport;
use converger_adapters::proxmox::codec::{
    Delivery, FailureCause, HttpMethod, HttpRequest, HttpResponse, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure,
};
use converger_core::apply::{BootId, OperationEnd, Outcome, Uptime};
use converger_lab::{GuestTruth, LabRequest, LabResponse, NodeService, SnapshotTruth, TlsIdentity, World, WorldEvent, WorldSpec};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::decode_cache;
use super::faults::{self, FaultEffect, FaultKind, FaultTrigger, ScheduledFault};
use super::requests::LOCAL_STORAGE;
use super::setup::{OTHER_TOKEN, TOKEN};
use super::trace::SimulationTrace;
use super::wire;

/// Codes of ends that must occur sometimes.
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

macro_rules! change_states {
    ($($change:literal),*) => { &[$(($change, [
        concat!($change, " sent"), concat!($change, " done"), concat!($change, " failed"), concat!($change, " refused"),
        concat!($change, " held"), concat!($change, " recovered"),
    ])),*] };
}

/// For each requested change, the states that it must reach sometimes.
pub(crate) const CHANGE_STATES: &[(&str, [&str; 6])] =
    change_states!["snapshot.create", "snapshot.delete", "snapshot.rollback", "disk.grow", "migrate", "clone", "provision"];

/// The true state of a guest and its cluster when a request was answered.
#[derive(Clone, Debug)]
pub(crate) struct TruthSnapshot {
    /// The time of the snapshot.
    pub(crate) at_ms: u64,
    pub(crate) quorate: bool,
    /// Whether the entry node can reach the target node.
    pub(crate) online: bool,
    /// The guest; `None` if it does not exist or is hidden.
    pub(crate) guest: Option<GuestTruth>,
    /// Its snapshots, if they were read.
    pub(crate) snapshots: Vec<SnapshotTruth>,
}

/// The observable state of a guest and a node.
type VisibleState = (Option<GuestTruth>, Vec<(String, u64)>, Vec<bool>, bool, u64);

/// What was there of our changes to a guest before a request, or after it.
struct ChangeFootprint {
    digest: Option<String>,
    tasks: usize,
    /// Tasks of others that have ended.
    foreign_ended: usize,
}

impl ChangeFootprint {
    /// Whether the request in between had an effect. A config write waits for the lock of a task: if a task of another user ended meanwhile,
    /// that task may have changed the config, for instance a stop that applies what is pending.
    fn has_effect(&self, after: &Self) -> bool {
        self.tasks != after.tasks || (self.digest != after.digest && self.foreign_ended == after.foreign_ended)
    }
}

/// The result of a request.
pub(crate) struct RequestOutcome {
    pub(crate) answer: Result<HttpResponse, ProxmoxFailure>,
    /// When it reaches the client.
    pub(crate) at_ms: u64,
    /// Whether it changed the guest or started a task.
    pub(crate) has_effect: bool,
}

/// The world and its clock.
#[derive(Clone)]
pub(crate) struct SimulationStage {
    pub(crate) world: World,
    pub(crate) now_ms: u64,
    start_ms: u64,
    entry: String,
    /// Our last request.
    request: LabRequest,
    faults: Vec<ScheduledFault>,
    /// The number of boots of our machine, and the time of the last one.
    boots: u64,
    booted_ms: u64,
    /// How long it slept since then.
    asleep_ms: u64,
    /// It lost power, and its disk was not read since.
    is_dark: bool,
    requests: u64,
    commands: u64,
    /// Events that heal a fault, by time.
    healing: BTreeMap<(u64, u64), WorldEvent>,
    event_count: u64,
    /// Faults that wait for a request or a task.
    on_wire: Vec<FaultKind>,
    on_task: Vec<(FaultKind, u32, usize)>,
    /// Faults in the world that were not visible yet, and until when they last.
    unseen: Vec<(ScheduledFault, Option<u64>)>,
    /// The TLS identity of the endpoint.
    tls_identity: TlsIdentity,
    /// Our token once lost its privileges.
    is_revoked: bool,
    /// A storage was filled.
    is_storage_full: bool,
    /// Whether exchanges are checked against the API table.
    is_verified: bool,
    /// The faults that had an effect.
    pub(crate) struck: BTreeSet<FaultKind>,
    pub(crate) seen: BTreeSet<&'static str>,
    pub(crate) trace: SimulationTrace,
}

impl SimulationStage {
    pub(crate) fn new(spec: &WorldSpec, faults: Vec<ScheduledFault>, trace: SimulationTrace) -> Self {
        let mut world = World::new(spec).unwrap_or_else(|error| panic!("{error}"));
        world.disable_records();
        let mut stage = Self {
            world,
            now_ms: spec.start_ms,
            start_ms: spec.start_ms,
            entry: spec.nodes.keys().next().cloned().unwrap_or_default(),
            request: wire::request_template(&format!("{TOKEN}=s3cret")),
            faults,
            boots: 1,
            booted_ms: spec.start_ms,
            asleep_ms: 0,
            is_dark: false,
            requests: 0,
            commands: 0,
            healing: BTreeMap::new(),
            event_count: 0,
            on_wire: Vec::new(),
            on_task: Vec::new(),
            unseen: Vec::new(),
            tls_identity: TlsIdentity::Own,
            is_revoked: false,
            is_storage_full: false,
            is_verified: true,
            struck: BTreeSet::new(),
            seen: BTreeSet::new(),
            trace,
        };
        // Long enough for every node to report its guests.
        stage.advance(20_000);
        stage
    }

    /// From now on exchanges are not checked against the API table.
    pub(crate) fn without_verification(self) -> Self {
        Self { is_verified: false, ..self }
    }

    pub(crate) fn trace_line(&mut self, text: fmt::Arguments<'_>) {
        self.trace.add_line(self.now_ms - self.start_ms, text);
    }

    /// A state that must be reached sometimes was reached.
    pub(crate) fn note_reached(&mut self, what: &'static str) {
        self.seen.insert(what);
    }

    pub(crate) fn advance(&mut self, ms: u64) {
        self.advance_to(self.now_ms + ms);
    }

    /// Lets time pass; faults heal when their time has come.
    pub(crate) fn advance_to(&mut self, now_ms: u64) {
        while let Some(entry) = self.healing.first_entry().filter(|entry| entry.key().0 <= now_ms) {
            let ((at_ms, _), event) = entry.remove_entry();
            self.now_ms = self.now_ms.max(at_ms);
            self.trace_line(format_args!("world: {event:?}"));
            self.apply_event(event);
        }
        self.now_ms = self.now_ms.max(now_ms);
        self.world.advance_to(self.now_ms);
    }

    /// The uptime of our machine, with its boot id.
    pub(crate) fn uptime(&self) -> Uptime {
        let boot = BootId::new(&format!("boot-{}", self.boots)).unwrap_or_else(|| panic!("an id"));
        Uptime { boot, ms: self.awake_ms() }
    }

    /// How long our machine has been awake since its last boot.
    pub(crate) fn awake_ms(&self) -> u64 {
        self.now_ms - self.booted_ms - self.asleep_ms
    }

    /// Our machine sleeps for this long.
    pub(crate) fn sleep(&mut self, ms: u64) {
        self.asleep_ms += ms;
        self.advance(ms);
    }

    /// Our machine loses power and boots again.
    pub(crate) fn lose_power(&mut self) {
        (self.boots, self.booted_ms, self.asleep_ms, self.is_dark) = (self.boots + 1, self.now_ms, 0, true);
    }

    /// Whether it lost power since the last call.
    pub(crate) fn take_power_loss(&mut self) -> bool {
        std::mem::take(&mut self.is_dark)
    }

    /// Number of commands of our processes so far.
    pub(crate) fn commands(&self) -> u64 {
        self.commands
    }

    /// Number of our requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// Sets the faults that wait for their triggers.
    pub(crate) fn set_faults(&mut self, faults: Vec<ScheduledFault>) {
        self.faults = faults;
    }

    /// Number of faults that have not occurred yet.
    pub(crate) fn pending_fault_count(&self) -> usize {
        self.faults.len()
    }

    /// Counts a command of the process to the world or to its store; returns the faults that it triggers.
    pub(crate) fn count_command(&mut self, is_send: bool) -> Vec<ScheduledFault> {
        self.commands += 1;
        let now = self.commands;
        self.take_due(|moment| match moment {
            FaultTrigger::Command(at) => at <= now,
            FaultTrigger::Sending => is_send,
            FaultTrigger::Request(_) | FaultTrigger::BeforeSend | FaultTrigger::AfterSend => false,
        })
    }

    fn take_due(&mut self, is_due: impl Fn(FaultTrigger) -> bool) -> Vec<ScheduledFault> {
        // Most of the time there are none.
        if !self.faults.iter().any(|fault| is_due(fault.trigger)) {
            return Vec::new();
        }
        let (due, rest) = std::mem::take(&mut self.faults).into_iter().partition(|fault| is_due(fault.trigger));
        self.faults = rest;
        due
    }

    /// Lets faults of the world occur now.
    pub(crate) fn apply_faults(&mut self, scheduled_faults: Vec<ScheduledFault>) {
        for fault in scheduled_faults {
            self.trace_line(format_args!("harm: {:?} {} {}", fault.kind, fault.vmid, fault.node));
            match fault.effect() {
                None => {}
                Some(FaultEffect::Wire(response_fault)) => {
                    self.world.add_request_fault(faults::fault_on_next_request(response_fault));
                    self.on_wire.push(fault.kind);
                }
                Some(FaultEffect::Task(effect)) => {
                    self.world.add_task_fault(faults::fault_on_next_task(fault.vmid, effect));
                    self.on_task.push((fault.kind, fault.vmid, self.world.tasks_for_guest(fault.vmid).count()));
                }
                Some(FaultEffect::Other(request)) => {
                    let before = self.visible_state(&fault);
                    self.send_foreign_request(fault.vmid, &request);
                    self.count_effect(&fault, &before);
                }
                Some(FaultEffect::Act(event, healing_event)) => {
                    let before = self.visible_state(&fault);
                    self.apply_event(event);
                    self.count_effect(&fault, &before);
                    if let (Some(event), Some(ms)) = (healing_event, fault.heals_ms) {
                        self.event_count += 1;
                        self.healing.insert((self.now_ms + ms, self.event_count), event);
                    }
                }
            }
        }
    }

    fn apply_event(&mut self, event: WorldEvent) {
        if let WorldEvent::Show(node, identity) = &event
            && *node == self.entry
        {
            self.tls_identity = *identity;
        }
        self.is_revoked |= matches!(event, WorldEvent::Revoke(_));
        self.is_storage_full |= matches!(event, WorldEvent::FillStorage(..));
        self.world.apply_event(self.now_ms, event);
    }

    /// The state that a fault can visibly change: its guest, the tasks of the guest, the reachability of its node, and its clock.
    fn visible_state(&self, fault: &ScheduledFault) -> VisibleState {
        let tasks = self.world.tasks_for_guest(fault.vmid).map(|(_, is_over)| is_over).collect();
        let (sees, wall_s) = (self.world.can_reach(&self.entry, &fault.node), self.world.node_clock_s(&fault.node));
        let snapshots = self.world.snapshot_truths(fault.vmid).map(|own| (own.name, own.taken_s)).collect();
        (self.world.guest_truth(fault.vmid), snapshots, tasks, sees, wall_s)
    }

    /// A fault had an effect if the visible state changed; otherwise a later response may show it.
    fn count_effect(&mut self, fault: &ScheduledFault, before: &VisibleState) {
        if self.visible_state(fault) != *before {
            self.struck.insert(fault.kind);
        } else if !self.struck.contains(&fault.kind) {
            self.unseen.push((fault.clone(), fault.heals_ms.map(|ms| self.now_ms + ms)));
        }
    }

    /// Counts faults that affected this response, that it shows, or that affected a task that has started since.
    fn count_hits(&mut self, path: &str, answer: &LabResponse) {
        if let Some(at) = self.on_wire.iter().position(|kind| kind.is_visible_in(answer)) {
            self.struck.insert(self.on_wire.remove(at));
        } else if !self.unseen.is_empty() {
            let now_ms = self.now_ms;
            self.unseen.retain(|(_, until_ms)| until_ms.is_none_or(|until_ms| until_ms > now_ms));
            if let Some(at) = self.unseen.iter().position(|(fault, _)| fault.is_visible_in(&self.entry, path, answer)) {
                self.struck.insert(self.unseen.remove(at).0.kind);
            }
        }
        self.count_task_faults();
    }

    /// Nothing is sent to an endpoint with another TLS identity.
    fn reject_tls(&mut self) -> RequestOutcome {
        self.struck.insert(FaultKind::OtherFace);
        let cause = match self.tls_identity {
            TlsIdentity::Expired => FailureCause::CertificateExpired,
            TlsIdentity::OtherName => FailureCause::CertificateOtherName,
            TlsIdentity::OtherKey => FailureCause::Untrusted,
            TlsIdentity::Own | TlsIdentity::Noise => FailureCause::NotTls,
        };
        let failure = ProxmoxFailure::without_response(Delivery::NotDelivered, cause, format!("{}: {}", self.entry, cause.word()));
        RequestOutcome { answer: Err(failure), at_ms: self.now_ms, has_effect: false }
    }

    /// Counts faults that affected a task that has started since.
    fn count_task_faults(&mut self) {
        let world = &self.world;
        for (kind, _, _) in self.on_task.extract_if(.., |(_, vmid, before)| world.tasks_for_guest(*vmid).count() > *before) {
            self.struck.insert(kind);
        }
    }

    /// A fault of our own process had an effect.
    pub(crate) fn note_struck(&mut self, kind: FaultKind) {
        self.struck.insert(kind);
    }

    fn send_foreign_request(&mut self, vmid: u32, request: &LabRequest) {
        let Some(truth) = self.world.guest_truth(vmid) else { return };
        self.world.answer_at(self.now_ms, &truth.node, request);
    }

    /// Sends one request to the world now.
    pub(crate) fn carry_request(&mut self, sent: &HttpRequest, vmid: u32) -> RequestOutcome {
        self.requests += 1;
        let (number, is_change) = (self.requests, sent.method() != HttpMethod::Get);
        let due = self.take_due(|moment| match moment {
            FaultTrigger::Request(at) => at <= number,
            FaultTrigger::BeforeSend => is_change,
            FaultTrigger::AfterSend | FaultTrigger::Command(_) | FaultTrigger::Sending => false,
        });
        self.apply_faults(due);
        if self.tls_identity != TlsIdentity::Own {
            return self.reject_tls();
        }
        let before = is_change.then(|| self.change_footprint(vmid));
        self.request = wire::build_request(std::mem::take(&mut self.request), sent);
        let answer = self.world.answer_at(self.now_ms, &self.entry, &self.request);
        if self.is_verified {
            wire::verify_exchange(self.world.flavour(), &self.request, &answer);
        }
        self.count_hits(sent.path(), &answer);
        let has_effect = before.is_some_and(|before| before.has_effect(&self.change_footprint(vmid)));
        if is_change {
            let due = self.take_due(|moment| moment == FaultTrigger::AfterSend);
            self.apply_faults(due);
        }
        let deadline_ms = wire::deadline_ms();
        let at_ms = self.now_ms + answer.delay_ms.min(deadline_ms);
        RequestOutcome { answer: wire::receive_response(&self.entry, sent, answer, deadline_ms), at_ms, has_effect }
    }

    /// What an immediate effect of a change of ours alters: the config and the number of our tasks.
    fn change_footprint(&self, vmid: u32) -> ChangeFootprint {
        let tasks = self.world.tasks_for_guest(vmid).filter(|(upid, _)| upid.contains(TOKEN)).count();
        let foreign_ended = self.world.tasks_for_guest(vmid).filter(|(upid, is_over)| *is_over && !upid.contains(TOKEN)).count();
        ChangeFootprint { digest: self.world.config_digest(vmid), tasks, foreign_ended }
    }

    /// The true state of the cluster, without a guest.
    pub(crate) fn cluster_snapshot(&self, node: &str) -> TruthSnapshot {
        let (quorate, online) = (self.world.has_quorum(&self.entry), self.world.can_reach(&self.entry, node));
        TruthSnapshot { at_ms: self.now_ms, quorate, online, guest: None, snapshots: Vec::new() }
    }

    /// The true state of the cluster and a guest.
    pub(crate) fn guest_snapshot(&self, node: &str, vmid: u32) -> TruthSnapshot {
        TruthSnapshot { guest: self.world.guest_truth(vmid).filter(|truth| !truth.hidden), ..self.cluster_snapshot(node) }
    }

    /// The same with its snapshots.
    pub(crate) fn snapshot_list(&self, node: &str, vmid: u32) -> TruthSnapshot {
        TruthSnapshot { snapshots: self.world.snapshot_truths(vmid).collect(), ..self.guest_snapshot(node, vmid) }
    }

    /// Number of our running tasks on a guest, on any node.
    pub(crate) fn tasks_at_work(&self, vmid: u32) -> usize {
        self.world.tasks_for_guest(vmid).filter(|(upid, is_over)| !is_over && upid.contains(TOKEN)).count()
    }

    /// Our tasks of a guest.
    pub(crate) fn own_tasks(&self, vmid: u32) -> Vec<String> {
        self.world.tasks_for_guest(vmid).filter(|(upid, _)| upid.contains(TOKEN)).map(|(upid, _)| upid.to_owned()).collect()
    }

    /// Foreign tasks of a guest.
    pub(crate) fn foreign_tasks(&self, vmid: u32) -> Vec<String> {
        let foreign_tasks = self.world.tasks_for_guest(vmid).filter(|(upid, _)| !upid.contains(TOKEN));
        foreign_tasks.map(|(upid, _)| upid.to_owned()).collect()
    }

    /// Counts that a requested change was sent.
    pub(crate) fn note_change_sent(&mut self, change: &str) {
        self.note_change_state(change, 0);
    }

    fn note_change_state(&mut self, change: &str, state: usize) {
        let known = CHANGE_STATES.iter().find(|(own, _)| *own == change);
        self.seen.extend(known.map(|(_, states)| states[state]));
    }

    /// Counts how an operation ended, for the states that must occur sometimes.
    pub(crate) fn note_end(&mut self, change: &str, outcome: &Outcome, is_recovered: bool) {
        match (outcome.end(), is_recovered) {
            (_, true) => self.note_change_state(change, 5),
            (OperationEnd::Done, _) => self.note_change_state(change, 1),
            (OperationEnd::Failed, _) => self.note_change_state(change, 2),
            (OperationEnd::Refused, _) => self.note_change_state(change, 3),
            (OperationEnd::Held, _) => self.note_change_state(change, 4),
            (OperationEnd::NotRun, _) => {}
        }
        self.note_reached(match (outcome.end(), is_recovered) {
            (OperationEnd::Done, false) => "done",
            (OperationEnd::Failed, false) => "failed",
            (OperationEnd::Refused, false) => "refused",
            (OperationEnd::Held, false) => "held",
            (OperationEnd::NotRun, _) => "not run for want of a record",
            (OperationEnd::Done, true) => "recovered as done",
            (OperationEnd::Failed, true) => "recovered as failed",
            (OperationEnd::Held, true) => "recovered as held",
            (OperationEnd::Refused, true) => "recovered as refused",
        });
        let code_name = outcome.code().map_or("", |code| code.as_str());
        let named = ENDS.iter().find(|known| **known == code_name);
        self.seen.extend(named);
        let evidence = &outcome.findings().evidence;
        if evidence.get("adopted").is_some() {
            self.note_reached("a task was adopted");
        }
        if evidence.get("found_so").is_some() {
            self.note_reached("found so");
        }
        if evidence.get("task_error").is_some() {
            self.note_reached("done although its task failed");
        }
        if evidence.get("start_task").is_some() {
            self.note_reached("the start after a reboot failed");
        }
        if evidence.get("never_sent").is_some() {
            self.note_reached("never sent");
        }
        if evidence.get("may_come_until").is_some() {
            self.note_reached("may still come");
        }
        if evidence.get("warnings").is_some() {
            self.note_reached("done with warnings");
        }
    }

    /// Another user grants our token all privileges that it needs.
    fn grant_token(&mut self) {
        let form = "path=/&roles=Administrator&tokens=root%40pam%21bot";
        let grant = LabRequest::new("PUT", "/api2/json/access/acl").with_token(OTHER_TOKEN);
        let grant = grant.with_header("Content-Length", &form.len().to_string()).with_form(form);
        let entry = self.entry.clone();
        self.world.answer_at(self.now_ms, &entry, &grant);
    }

    /// A person rescans the disks. The worker of a resize that was killed halfway has grown a volume and not written its size into the config,
    /// and Proxmox changes nothing if a volume has the requested size already.
    fn rescan_disks(&mut self, vmids: &[u32]) {
        for vmid in vmids.iter().copied() {
            let Some(truth) = self.world.guest_truth(vmid) else { continue };
            let disks: Vec<_> = self.world.disk_truths(vmid).collect();
            for disk in disks.into_iter().filter(|disk| disk.volume_bytes.is_some_and(|bytes| bytes > disk.config_bytes)) {
                let text = truth.config.get(&disk.key).map_or("", String::as_str);
                let others: Vec<&str> = text.split(',').filter(|part| !part.starts_with("size=")).collect();
                let size = disk.volume_bytes.unwrap_or_default() >> 30;
                self.apply_event(WorldEvent::Set(vmid, disk.key, format!("{},size={size}G", others.join(","))));
            }
        }
    }

    /// Everything works again, and no more faults occur.
    pub(crate) fn heal(&mut self, vmids: &[u32]) {
        self.count_task_faults();
        self.faults.clear();
        self.healing.clear();
        self.world.clear_faults();
        let nodes: Vec<String> = self.world.node_names().map(str::to_owned).collect();
        self.unseen.clear();
        // A person makes room for what continues after that.
        if std::mem::take(&mut self.is_storage_full) {
            self.apply_event(WorldEvent::FillStorage(LOCAL_STORAGE.to_owned(), 0));
        }
        // The fault may have affected a task that was listed before it, and waited for another one.
        let has_hung = self.struck.contains(&FaultKind::TaskHangs) || self.on_task.iter().any(|(kind, ..)| *kind == FaultKind::TaskHangs);
        let mut events = vec![WorldEvent::Heal, WorldEvent::Show(self.entry.clone(), TlsIdentity::Own)];
        for node in nodes {
            events.extend(
                [NodeService::Files, NodeService::Proxy, NodeService::Daemon, NodeService::Statd]
                    .map(|part| WorldEvent::ServiceUp(node.clone(), part)),
            );
            events.extend([
                WorldEvent::Cpus(node.clone(), faults::CPUS),
                WorldEvent::NodeUp(node.clone()),
                WorldEvent::Slow(node.clone(), 0),
                WorldEvent::Seeing(node),
            ]);
        }
        for vmid in vmids.iter().copied() {
            let is_odd =
                self.world.guest_truth(vmid).and_then(|truth| truth.process).is_some_and(|process_state| process_state != "running");
            // The worker of a killed task leaves its lock, so a person unlocks the guest afterwards.
            events.extend(has_hung.then_some(WorldEvent::KillTask(vmid)));
            events.extend([WorldEvent::Reappear(vmid), WorldEvent::Relist(vmid), WorldEvent::Unlock(vmid), WorldEvent::FreeLockFile(vmid)]);
            events.extend(is_odd.then(|| WorldEvent::Say(vmid, "running".to_owned())));
        }
        for event in events {
            self.apply_event(event);
        }
        self.rescan_disks(vmids);
        if self.is_revoked {
            self.grant_token();
        }
        self.trace_line(format_args!("world: healed"));
    }
}

/// The observer's transport into the world: one request after the other.
#[derive(Clone)]
pub(crate) struct SimulatedTransport(Arc<Mutex<SimulationStage>>);

impl SimulatedTransport {
    pub(crate) fn new(stage: SimulationStage) -> Self {
        Self(Arc::new(Mutex::new(stage)))
    }

    pub(crate) fn lock_stage(&self) -> MutexGuard<'_, SimulationStage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_stage(self) -> Option<SimulationStage> {
        Arc::into_inner(self.0).map(|mutex| mutex.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ProxmoxTransport for SimulatedTransport {
    async fn exchange(&self, sent: &HttpRequest) -> Result<HttpResponse, ProxmoxFailure> {
        let mut stage = self.lock_stage();
        let outcome = stage.carry_request(sent, 0);
        stage.advance_to(outcome.at_ms);
        outcome.answer
    }

    fn decode(&self, command: &ProxmoxCommand, answer: &HttpResponse) -> Result<ProxmoxEvent, ProxmoxFailure> {
        decode_cache::decode_cached(command, answer)
    }

    fn endpoint_name(&self) -> &str {
        "pve1:8006"
    }
}
