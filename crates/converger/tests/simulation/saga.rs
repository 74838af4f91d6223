//! The saga of every kind of operation: it runs once undisturbed, and then once for each fault at each of its steps. The process dies
//! before and after each command, and again at each command of the recovery. Each request fails in each way that a transport can fail, and
//! its task in each way that a task can fail. The same request is repeated after each death. Whatever can be undone is undone twice, by the
//! inverse that plan.json publishes.
//!
//! Each of these effects is counted when it occurs, and a saga that lacks one is reported. Nothing is random; these are all combinations.

use std::collections::{BTreeMap, BTreeSet};

use converger_lab::LabGuestKind as Of;
use serde_json::Value as Json;

use super::faults::{FaultKind, FaultTrigger, ScheduledFault};
use super::oracle::RuleViolation;
use super::setup::{self, SimulationSetup};
use super::simulation::{SimulationResult, UndoResult, published_undo, simulate_setup, simulate_undo};

/// The kinds of guests and operations, with the changes that are sent for each. A virtual machine that is declared with a hard stop is
/// restarted by a stop and a start. A container is never restarted, because everything that can be declared of one takes effect at once.
pub(crate) const SAGAS: [(Of, &str, &[&str]); 27] = [
    (Of::Qemu, "start", &["start"]),
    (Of::Qemu, "shutdown", &["shutdown"]),
    (Of::Qemu, "stop", &["stop"]),
    (Of::Qemu, "config.set", &["config"]),
    (Of::Qemu, "config.unset", &["config"]),
    (Of::Qemu, "reboot", &["config", "reboot"]),
    (Of::Qemu, "restart", &["config", "start", "stop"]),
    (Of::Lxc, "start", &["start"]),
    (Of::Lxc, "shutdown", &["shutdown"]),
    (Of::Lxc, "stop", &["stop"]),
    (Of::Lxc, "config.set", &["config"]),
    (Of::Lxc, "config.unset", &["config"]),
    (Of::Qemu, "snapshot.create", &["snapshot"]),
    (Of::Qemu, "snapshot.ram", &["snapshot"]),
    (Of::Qemu, "snapshot.delete", &["delsnapshot"]),
    (Of::Qemu, "snapshot.rollback", &["rollback"]),
    (Of::Qemu, "disk.grow", &["resize"]),
    (Of::Qemu, "migrate.online", &["migrate"]),
    (Of::Qemu, "migrate.offline", &["migrate"]),
    (Of::Qemu, "clone.full", &["clone"]),
    (Of::Qemu, "clone.linked", &["clone"]),
    (Of::Qemu, "provision.full", &["clone", "config", "resize", "start"]),
    (Of::Qemu, "provision.linked", &["clone", "config", "resize", "start"]),
    (Of::Lxc, "disk.grow", &["resize"]),
    (Of::Lxc, "migrate.restart", &["migrate"]),
    (Of::Lxc, "clone.full", &["clone"]),
    (Of::Lxc, "provision.full", &["clone", "config", "resize", "start"]),
];

/// The effects that must occur in every saga.
const REQUIRED_EFFECTS: [&str; 7] = ["failed", "crashed before", "crashed after", "crashed again", "power lost", "not written", "repeated"];
/// For operations with a task: the task fails, hangs, is killed and warns.
const TASK_FAILED: &str = "task failed";
/// The faults of a task that is about to start.
const TASK_FAULTS: [FaultKind; 6] = [
    FaultKind::TaskFails,
    FaultKind::TaskFailsLate,
    FaultKind::TaskDoesNothing,
    FaultKind::TaskKilledHalfway,
    FaultKind::TaskHangs,
    FaultKind::TaskWarns,
];
/// For operations that take a guest down to start it again: the start fails.
const START_FAILED: &str = "start failed";
const RESTARTS: [&str; 2] = ["reboot", "restart"];
const UNDONE: &str = "undone";

/// Writes of the codec without a saga, and why. There are none: each is a change.
pub(crate) const UNPLAYED_WRITES: [(&str, &str); 0] = [];

/// The number of simulations and changes, and the faults that were found.
#[derive(Default)]
pub(crate) struct SagaResults {
    pub(crate) stories: u64,
    pub(crate) sends: u64,
    /// How often each effect occurred, by saga.
    pub(crate) played: BTreeMap<String, BTreeMap<&'static str, u64>>,
    /// The kinds of guests and changes that were sent.
    pub(crate) sent: BTreeSet<(String, String)>,
    pub(crate) wrong: Vec<String>,
}

/// Runs all sagas.
pub(crate) fn run_sagas() -> SagaResults {
    let mut sagas = SagaResults::default();
    for (kind, step, sent) in SAGAS {
        sagas.run_saga(kind, step, sent);
        sagas.check_repeated_request(kind, step);
        let undo = published_inverse(kind, step);
        if let Some(undo) = &undo {
            sagas.check_undo(kind, step, undo);
        }
        sagas.check_coverage(kind, step, undo.is_some());
    }
    sagas
}

/// The inverse that plan.json publishes, if the plan has one step that can be undone. The steps of a restart have sagas of their own.
fn published_inverse(kind: Of, step: &str) -> Option<Json> {
    let [undo] = <[Json; 1]>::try_from(published_undo(setup::single_guest(kind, step))).ok()?;
    undo.get("change").is_some().then_some(undo)
}

/// The guests that the tasks of a saga are about. The task of a clone is about its source.
fn task_guests(simulation_setup: &SimulationSetup) -> BTreeSet<u32> {
    let steps = simulation_setup.requests.iter().flat_map(|request| request.wanted.steps());
    let found: BTreeSet<u32> = steps.map(|step| step.vmid).collect();
    if found.is_empty() { BTreeSet::from([100]) } else { found }
}

fn saga_title(kind: Of, step: &str) -> String {
    format!("{kind:?} {step}")
}

impl SagaResults {
    fn run_saga(&mut self, kind: Of, step: &str, sent: &[&str]) {
        let (saga, new_setup) = (saga_title(kind, step), || setup::single_guest(kind, step));
        let undisturbed = simulate_setup(new_setup(), Vec::new(), 1);
        let (commands, requests, sends) = (undisturbed.commands, undisturbed.early_requests, undisturbed.sends);
        self.add_result(&saga, &undisturbed, sends);
        let verbs: Vec<&str> = undisturbed.sent.iter().map(|(_, verb)| verb.as_str()).collect();
        if verbs != sent {
            self.wrong.push(format!("{saga}: {verbs:?} is sent for it, and not {sent:?}"));
        }
        for at in 1..=commands {
            for (crash, effect) in [(FaultKind::CrashBefore, "crashed before"), (FaultKind::CrashAfter, "crashed after")] {
                self.check_death(&saga, effect, &new_setup, ScheduledFault::at(crash, FaultTrigger::Command(at)), sends);
            }
            self.check_with_faults(
                &saga,
                "power lost",
                new_setup(),
                vec![ScheduledFault::at(FaultKind::PowerLost, FaultTrigger::Command(at))],
                sends,
            );
            for fault in [FaultKind::StoreFull, FaultKind::SyncLost, FaultKind::SyncLostWritten] {
                self.check_with_faults(
                    &saga,
                    "not written",
                    new_setup(),
                    vec![ScheduledFault::at(fault, FaultTrigger::Command(at))],
                    sends,
                );
            }
        }
        for at in 1..=requests {
            for wire in FaultKind::wire_kinds() {
                self.check_with_faults(&saga, "failed", new_setup(), vec![ScheduledFault::at(wire, FaultTrigger::Request(at))], sends);
            }
        }
        for vmid in task_guests(&new_setup()) {
            let of_guest = |kind, trigger| ScheduledFault::at(kind, trigger).for_guest(vmid);
            for task in TASK_FAULTS {
                self.check_with_faults(&saga, TASK_FAILED, new_setup(), vec![of_guest(task, FaultTrigger::BeforeSend)], sends);
            }
            self.check_with_faults(&saga, TASK_FAILED, new_setup(), vec![of_guest(FaultKind::TaskKilled, FaultTrigger::AfterSend)], sends);
        }
        if RESTARTS.contains(&step) {
            self.left_down(&saga, &new_setup, commands, sends);
        }
    }

    /// The guest goes down for its restart and cannot start again; the process dies before and after each command of that.
    fn left_down(&mut self, saga: &str, new_setup: &dyn Fn() -> SimulationSetup, commands: u64, sends: u64) {
        let few = || ScheduledFault::at(FaultKind::FewCpus, FaultTrigger::BeforeSend);
        self.check_with_faults(saga, START_FAILED, new_setup(), vec![few()], sends);
        for at in 1..=commands {
            for crash in [FaultKind::CrashBefore, FaultKind::CrashAfter] {
                self.check_with_faults(
                    saga,
                    "crashed again",
                    new_setup(),
                    vec![few(), ScheduledFault::at(crash, FaultTrigger::Command(at))],
                    sends,
                );
            }
        }
    }

    /// The process dies, and dies again at each command of its recovery, without sending anything twice.
    fn check_death(
        &mut self,
        saga: &str,
        effect: &'static str,
        new_setup: &dyn Fn() -> SimulationSetup,
        first: ScheduledFault,
        sends: u64,
    ) {
        let FaultTrigger::Command(at) = first.trigger else { return };
        let once = simulate_setup(new_setup(), vec![first.clone()], 2);
        self.count_effect(saga, effect, once.struck.contains(&first.kind));
        self.add_result(&format!("{saga}: {:?} {at}", first.kind), &once, sends);
        for again in at + 1..=once.commands {
            for crash in [FaultKind::CrashBefore, FaultKind::CrashAfter] {
                let second = ScheduledFault::at(crash, FaultTrigger::Command(again));
                self.check_with_faults(saga, "crashed again", new_setup(), vec![first.clone(), second], sends);
            }
        }
    }

    /// The same request is repeated after each death and is not carried out again (G13).
    fn check_repeated_request(&mut self, kind: Of, step: &str) {
        let saga = saga_title(kind, step);
        // A request has a key anyway.
        let is_one_shot = setup::single_guest(kind, step).requests.is_empty();
        let new_setup = || SimulationSetup { is_one_shot, ..setup::single_guest(kind, step) };
        let undisturbed = simulate_setup(new_setup(), Vec::new(), 1);
        for at in 1..=undisturbed.commands {
            for crash in [FaultKind::CrashBefore, FaultKind::CrashAfter] {
                let result = simulate_setup(new_setup(), vec![ScheduledFault::at(crash, FaultTrigger::Command(at))], 3);
                self.count_effect(&saga, "repeated", result.seen.contains(&"a request was repeated"));
                self.add_result(&format!("{saga}, once: {crash:?} {at}"), &result, undisturbed.sends);
            }
        }
    }

    /// Undoing twice equals undoing once, wherever the process dies while undoing, even twice (S21).
    fn check_undo(&mut self, kind: Of, step: &str, undo: &Json) {
        let saga = saga_title(kind, step);
        let back = || setup::undo_setup(kind, step, undo).unwrap_or_else(|| panic!("{undo} cannot be asked for"));
        let tell = |faults: &[(FaultKind, u64)]| simulate_undo(setup::single_guest(kind, step), back(), faults);
        let undisturbed = tell(&[]);
        self.add_undo_result(&saga, "", &undisturbed);
        let verb = |change: &str| if change == "snapshot.delete" { "delsnapshot" } else { change.trim_end_matches(".set") }.to_owned();
        let published = undo["change"].as_str().map(verb).into_iter().collect();
        if undisturbed.sent != published {
            self.wrong.push(format!("{saga}, undone: {:?} is sent, and {published:?} is published", undisturbed.sent));
        }
        if undisturbed.commands == 0 {
            self.wrong.push(format!("{saga}, undone: nothing was done on the way back before everything healed"));
        }
        for at in 1..=undisturbed.commands {
            for crash in [FaultKind::CrashBefore, FaultKind::CrashAfter] {
                self.add_undo_result(&saga, &format!(": {crash:?} {at}"), &tell(&[(crash, at)]));
                let two_crashes = [(crash, at), (FaultKind::CrashAfter, at + 2)];
                self.add_undo_result(&saga, &format!(": {crash:?} {at} and later"), &tell(&two_crashes));
            }
        }
    }

    fn add_undo_result(&mut self, saga: &str, name: &str, result: &UndoResult) {
        self.stories += 1;
        self.sends += result.sends.iter().sum::<u64>();
        let [before, once, twice] = &result.seen;
        let [done, undone, again] = result.sends;
        self.count_effect(saga, UNDONE, undone > 0);
        if let Some(RuleViolation { rule, text }) = &result.violation {
            self.wrong.push(format!("{saga}, undone{name}: {rule} {text}"));
        }
        if before != once || once != twice || done != 1 || !(1..=2).contains(&undone) || again != 0 {
            self.wrong.push(format!("{saga}, undone{name}: {:?} changes, {:#?}", result.sends, result.seen));
        }
    }

    /// Runs the saga with these faults; the last one is the counted effect.
    fn check_with_faults(
        &mut self,
        saga: &str,
        effect: &'static str,
        simulation_setup: SimulationSetup,
        faults: Vec<ScheduledFault>,
        sends: u64,
    ) {
        let name: Vec<String> = faults.iter().map(|fault| format!("{:?} {:?}", fault.kind, fault.trigger)).collect();
        let result = simulate_setup(simulation_setup, faults.clone(), 3);
        self.count_effect(saga, effect, faults.last().is_some_and(|fault| result.struck.contains(&fault.kind)));
        self.add_result(&format!("{saga}: {}", name.join(", ")), &result, sends);
    }

    fn count_effect(&mut self, saga: &str, effect: &'static str, took_effect: bool) {
        if took_effect {
            *self.played.entry(saga.to_owned()).or_default().entry(effect).or_default() += 1;
        }
    }

    /// Nothing is sent more often than without faults, plus once for each life in which it did not arrive.
    fn add_result(&mut self, name: &str, result: &SimulationResult, sends: u64) {
        self.stories += 1;
        self.sends += result.sends;
        self.sent.extend(result.sent.iter().cloned());
        if let Some(RuleViolation { rule, text }) = &result.violation {
            self.wrong.push(format!("{name}: {rule} {text}"));
        }
        if result.sends > 2 * sends {
            self.wrong.push(format!("{name}: {} changes were sent, and {sends} are enough", result.sends));
        }
    }

    /// Reports the effects that should have occurred in a saga and did not.
    fn check_coverage(&mut self, kind: Of, step: &str, can_be_undone: bool) {
        let saga = saga_title(kind, step);
        let own = can_be_undone.then_some(UNDONE);
        // A config is written without a task.
        let task = (!step.starts_with("config")).then_some(TASK_FAILED);
        let played = self.played.get(&saga).cloned().unwrap_or_default();
        let start = RESTARTS.contains(&step).then_some(START_FAILED);
        let missing = REQUIRED_EFFECTS.into_iter().chain(own).chain(task).chain(start).filter(|effect| !played.contains_key(effect));
        self.wrong.extend(missing.map(|effect| format!("{saga}: never {effect}")));
    }
}

/// Whether wrong published inverses are detected.
#[cfg(test)]
pub(crate) fn detects_wrong_inverses() -> [bool; 2] {
    let to_another_value = serde_json::json!({ "change": "config.set", "fields": { "cores": 3 } });
    let nowhere = serde_json::json!({ "change": "start" });
    [("config.set", to_another_value), ("start", nowhere)].map(|(step, undo)| {
        let mut sagas = SagaResults::default();
        sagas.check_undo(Of::Qemu, step, &undo);
        !sagas.wrong.is_empty()
    })
}
