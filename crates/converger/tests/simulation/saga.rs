//! The saga of every kind of operation: its story is told once undisturbed, and then once for each thing that can go wrong at each of
//! its steps. The process dies before and after each command, and again at each command of the recovery; each request fails in each way
//! that a wire has, and its task in each way that a task has; the same request is asked for again after each death; and what can be
//! undone is undone twice, by what plan.json publishes as its way back.
//!
//! Each of these words is counted where it took effect, and a saga that lacks one is told. What never enters: chance. These are all of
//! them.

use std::collections::{BTreeMap, BTreeSet};

use converger_lab::Kind as Of;
use serde_json::Value as Json;

use super::harm::{Harm, Kind, Moment};
use super::oracle::Violation;
use super::scene::{self, Scene};
use super::story::{Told, Undone, published_undo, tell_of, tell_there_and_back};

/// The kinds of guests and operations, with what is sent for each. A virtual machine that is declared with a hard stop is restarted by a
/// stop and a start; a container is never restarted, because all that can be declared of one takes effect at once.
pub(crate) const SAGAS: [(Of, &str, &[&str]); 12] = [
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
];

/// What must be played of every saga.
const WORDS: [&str; 7] = ["failed", "crashed before", "crashed after", "crashed again", "power lost", "not written", "repeated"];
/// Of those that have one, their task fails, hangs, is killed and warns.
const OF_A_TASK: &str = "task failed";
/// Of those that take a guest down to start it again, the start fails.
const START_FAILED: &str = "start failed";
const RESTARTS: [&str; 2] = ["reboot", "restart"];
const UNDONE: &str = "undone";

/// Writes that the codec knows and no saga plays, and why: none of them is an operation yet, so that there is nothing to record, recover or
/// undo. How each is encoded, decoded and proven is tested at the hand, against the lab.
pub(crate) const NOT_PLAYED: [(&str, &str); 7] = [
    ("SnapshotCreate", "nothing that can be declared has snapshots; they come with the actions of a person"),
    ("SnapshotDelete", "as for making one; it takes data away, and needs a signed approval"),
    ("SnapshotRollback", "as for making one; it takes data away, and needs a signed approval"),
    ("Clone", "a guest that is missing is refused; making one from a template is not declared yet"),
    ("Migrate", "the node is an attribute of a guest, and nobody declares it"),
    ("Grow", "disks are not declared, and growing one cannot be undone"),
    ("Delete", "nothing is deleted because it is absent, and no declared state asks for it"),
];

/// So many stories with how many commands were told, and what was wrong.
#[derive(Default)]
pub(crate) struct Sagas {
    pub(crate) stories: u64,
    pub(crate) sends: u64,
    /// How often each thing took effect, by saga.
    pub(crate) played: BTreeMap<String, BTreeMap<&'static str, u64>>,
    /// The kinds of guests and changes that were sent.
    pub(crate) sent: BTreeSet<(String, String)>,
    pub(crate) wrong: Vec<String>,
}

/// All of them.
pub(crate) fn sagas() -> Sagas {
    let mut sagas = Sagas::default();
    for (kind, step, sent) in SAGAS {
        sagas.of(kind, step, sent);
        sagas.repeated(kind, step);
        let undo = way_back(kind, step);
        if let Some(undo) = &undo {
            sagas.undone(kind, step, undo);
        }
        sagas.lacks(kind, step, undo.is_some());
    }
    sagas
}

/// What plan.json publishes as the way back, where it has one step and something undoes it. Of a restart each step is played by itself.
fn way_back(kind: Of, step: &str) -> Option<Json> {
    let [undo] = <[Json; 1]>::try_from(published_undo(scene::single(kind, step))).ok()?;
    undo.get("change").is_some().then_some(undo)
}

fn titled(kind: Of, step: &str) -> String {
    format!("{kind:?} {step}")
}

impl Sagas {
    fn of(&mut self, kind: Of, step: &str, sent: &[&str]) {
        let (saga, scene) = (titled(kind, step), || scene::single(kind, step));
        let calm = tell_of(scene(), Vec::new(), 1);
        let (commands, requests, sends) = (calm.commands, calm.early, calm.sends);
        self.add(&saga, &calm, sends);
        let verbs: Vec<&str> = calm.sent.iter().map(|(_, verb)| verb.as_str()).collect();
        if verbs != sent {
            self.wrong.push(format!("{saga}: {verbs:?} is sent for it, and not {sent:?}"));
        }
        for at in 1..=commands {
            for (death, word) in [(Kind::CrashBefore, "crashed before"), (Kind::CrashAfter, "crashed after")] {
                self.death(&saga, word, &scene, Harm::at(death, Moment::Command(at)), sends);
            }
            self.told(&saga, "power lost", scene(), vec![Harm::at(Kind::PowerLost, Moment::Command(at))], sends);
            for fault in [Kind::StoreFull, Kind::SyncLost, Kind::SyncLostWritten] {
                self.told(&saga, "not written", scene(), vec![Harm::at(fault, Moment::Command(at))], sends);
            }
        }
        for at in 1..=requests {
            for wire in Kind::of_the_wire() {
                self.told(&saga, "failed", scene(), vec![Harm::at(wire, Moment::Request(at))], sends);
            }
        }
        for task in [Kind::TaskFails, Kind::TaskHangs, Kind::TaskWarns] {
            self.told(&saga, OF_A_TASK, scene(), vec![Harm::at(task, Moment::BeforeSend)], sends);
        }
        self.told(&saga, OF_A_TASK, scene(), vec![Harm::at(Kind::TaskKilled, Moment::AfterSend)], sends);
        if RESTARTS.contains(&step) {
            self.left_down(&saga, &scene, commands, sends);
        }
    }

    /// The guest goes down for its restart and cannot start again; the process dies before and after each command of that.
    fn left_down(&mut self, saga: &str, scene: &dyn Fn() -> Scene, commands: u64, sends: u64) {
        let few = || Harm::at(Kind::FewCpus, Moment::BeforeSend);
        self.told(saga, START_FAILED, scene(), vec![few()], sends);
        for at in 1..=commands {
            for death in [Kind::CrashBefore, Kind::CrashAfter] {
                self.told(saga, "crashed again", scene(), vec![few(), Harm::at(death, Moment::Command(at))], sends);
            }
        }
    }

    /// The process dies, and dies again at each command of its recovery: twice is once.
    fn death(&mut self, saga: &str, word: &'static str, scene: &dyn Fn() -> Scene, first: Harm, sends: u64) {
        let Moment::Command(at) = first.moment else { return };
        let once = tell_of(scene(), vec![first.clone()], 2);
        self.count(saga, word, once.struck.contains(&first.kind));
        self.add(&format!("{saga}: {:?} {at}", first.kind), &once, sends);
        for again in at + 1..=once.commands {
            for death in [Kind::CrashBefore, Kind::CrashAfter] {
                let second = Harm::at(death, Moment::Command(again));
                self.told(saga, "crashed again", scene(), vec![first.clone(), second], sends);
            }
        }
    }

    /// The same request is asked for again after each death, and is not carried out a second time (G13).
    fn repeated(&mut self, kind: Of, step: &str) {
        let saga = titled(kind, step);
        let scene = || Scene { is_one_shot: true, ..scene::single(kind, step) };
        let calm = tell_of(scene(), Vec::new(), 1);
        for at in 1..=calm.commands {
            for death in [Kind::CrashBefore, Kind::CrashAfter] {
                let told = tell_of(scene(), vec![Harm::at(death, Moment::Command(at))], 3);
                self.count(&saga, "repeated", told.seen.contains(&"a request was repeated"));
                self.add(&format!("{saga}, once: {death:?} {at}"), &told, calm.sends);
            }
        }
    }

    /// Undone twice is undone once, wherever the process dies on the way back, twice too (S21).
    fn undone(&mut self, kind: Of, step: &str, undo: &Json) {
        let saga = titled(kind, step);
        let back = || scene::undone(kind, step, undo).unwrap_or_else(|| panic!("{undo} cannot be asked for"));
        let tell = |harms: &[(Kind, u64)]| tell_there_and_back(scene::single(kind, step), back(), harms);
        let calm = tell(&[]);
        self.add_undone(&saga, "", &calm);
        let published = undo["change"].as_str().map(|word| word.trim_end_matches(".set")).into_iter().map(str::to_owned).collect();
        if calm.sent != published {
            self.wrong.push(format!("{saga}, undone: {:?} is sent, and {published:?} is published", calm.sent));
        }
        if calm.commands == 0 {
            self.wrong.push(format!("{saga}, undone: nothing was done on the way back before everything healed"));
        }
        for at in 1..=calm.commands {
            for death in [Kind::CrashBefore, Kind::CrashAfter] {
                self.add_undone(&saga, &format!(": {death:?} {at}"), &tell(&[(death, at)]));
                let twice = [(death, at), (Kind::CrashAfter, at + 2)];
                self.add_undone(&saga, &format!(": {death:?} {at} and later"), &tell(&twice));
            }
        }
    }

    fn add_undone(&mut self, saga: &str, name: &str, told: &Undone) {
        self.stories += 1;
        self.sends += told.sends.iter().sum::<u64>();
        let [before, once, twice] = &told.seen;
        let [done, undone, again] = told.sends;
        self.count(saga, UNDONE, undone > 0);
        if let Some(Violation { rule, text }) = &told.violation {
            self.wrong.push(format!("{saga}, undone{name}: {rule} {text}"));
        }
        if before != once || once != twice || done != 1 || !(1..=2).contains(&undone) || again != 0 {
            self.wrong.push(format!("{saga}, undone{name}: {:?} changes, {:#?}", told.sends, told.seen));
        }
    }

    /// The story with these harms, of which the last one is what the word is about.
    fn told(&mut self, saga: &str, word: &'static str, scene: Scene, harms: Vec<Harm>, sends: u64) {
        let name: Vec<String> = harms.iter().map(|harm| format!("{:?} {:?}", harm.kind, harm.moment)).collect();
        let told = tell_of(scene, harms.clone(), 3);
        self.count(saga, word, harms.last().is_some_and(|harm| told.struck.contains(&harm.kind)));
        self.add(&format!("{saga}: {}", name.join(", ")), &told, sends);
    }

    fn count(&mut self, saga: &str, word: &'static str, took_effect: bool) {
        if took_effect {
            *self.played.entry(saga.to_owned()).or_default().entry(word).or_default() += 1;
        }
    }

    /// Nothing is sent more often than it would be undisturbed, and once more for each life in which it did not arrive.
    fn add(&mut self, name: &str, told: &Told, sends: u64) {
        self.stories += 1;
        self.sends += told.sends;
        self.sent.extend(told.sent.iter().cloned());
        if let Some(Violation { rule, text }) = &told.violation {
            self.wrong.push(format!("{name}: {rule} {text}"));
        }
        if told.sends > 2 * sends {
            self.wrong.push(format!("{name}: {} changes were sent, and {sends} are enough", told.sends));
        }
    }

    /// What should have been played of a saga and was not.
    fn lacks(&mut self, kind: Of, step: &str, can_be_undone: bool) {
        let saga = titled(kind, step);
        let own = can_be_undone.then_some(UNDONE);
        // A config is written at once.
        let task = (!step.starts_with("config")).then_some(OF_A_TASK);
        let played = self.played.get(&saga).cloned().unwrap_or_default();
        let start = RESTARTS.contains(&step).then_some(START_FAILED);
        let lacking = WORDS.into_iter().chain(own).chain(task).chain(start).filter(|word| !played.contains_key(word));
        self.wrong.extend(lacking.map(|word| format!("{saga}: never {word}")));
    }
}

/// Whether it is found that a plan publishes another way back than its own.
#[cfg(test)]
pub(crate) fn finds_wrong_ways_back() -> [bool; 2] {
    let to_another_value = serde_json::json!({ "change": "config.set", "fields": { "cores": 3 } });
    let nowhere = serde_json::json!({ "change": "start" });
    [("config.set", to_another_value), ("start", nowhere)].map(|(step, undo)| {
        let mut sagas = Sagas::default();
        sagas.undone(Of::Qemu, step, &undo);
        !sagas.wrong.is_empty()
    })
}
