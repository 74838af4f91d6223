//! The saga of every kind of operation: its story is told once undisturbed, and then once for each thing that can go wrong at each of
//! its steps. The process dies before and after each command, and again at each command of the recovery; each request fails in each way
//! that a wire has.
//!
//! What never enters: chance. These are all of them.

use converger_lab::Kind as Of;

use super::harm::{Harm, Kind, Moment};
use super::oracle::Violation;
use super::scene::{self, Scene};
use super::story::{Told, Undone, tell_of, tell_there_and_back};

/// The kinds of guests and operations. Proxmox's reboot of a container is none of ours: it is shut down and started.
const SAGAS: [(Of, &str); 10] = [
    (Of::Qemu, "start"),
    (Of::Qemu, "shutdown"),
    (Of::Qemu, "stop"),
    (Of::Qemu, "config.set"),
    (Of::Qemu, "reboot"),
    (Of::Lxc, "start"),
    (Of::Lxc, "shutdown"),
    (Of::Lxc, "stop"),
    (Of::Lxc, "config.set"),
    (Of::Lxc, "restart"),
];

/// What undoes a step. A restart is not undone.
const UNDONE_BY: [(&str, &str); 4] = [("start", "shutdown"), ("shutdown", "start"), ("stop", "start"), ("config.set", "config.unset")];

/// So many stories with how many commands were told, and what was wrong.
#[derive(Default)]
pub(crate) struct Sagas {
    pub(crate) stories: u64,
    pub(crate) sends: u64,
    pub(crate) wrong: Vec<String>,
}

/// All of them.
pub(crate) fn sagas() -> Sagas {
    let mut sagas = Sagas::default();
    for (kind, step) in SAGAS {
        sagas.of(kind, step);
        if let Some((_, back)) = UNDONE_BY.iter().find(|(there, _)| *there == step) {
            sagas.undone(kind, step, back);
        }
    }
    sagas
}

impl Sagas {
    fn of(&mut self, kind: Of, step: &str) {
        let scene = || scene::single(kind, step);
        let calm = tell_of(scene(), Vec::new(), 1);
        let (commands, requests, sends) = (calm.commands, calm.early, calm.sends);
        self.add(&format!("{kind:?} {step}"), &calm, sends);
        for at in 1..=commands {
            for death in [Kind::CrashBefore, Kind::CrashAfter] {
                self.death(&format!("{kind:?} {step}: {death:?} {at}"), &scene, Harm::at(death, Moment::Command(at)), sends);
            }
            for fault in [Kind::PowerLost, Kind::StoreFull, Kind::SyncLost, Kind::SyncLostWritten] {
                self.told(&format!("{kind:?} {step}: {fault:?} {at}"), scene(), vec![Harm::at(fault, Moment::Command(at))], sends);
            }
        }
        for at in 1..=requests {
            for wire in Kind::of_the_wire() {
                self.told(&format!("{kind:?} {step}: {wire:?} {at}"), scene(), vec![Harm::at(wire, Moment::Request(at))], sends);
            }
        }
    }

    /// The process dies, and dies again at each command of its recovery: twice is once.
    fn death(&mut self, name: &str, scene: &dyn Fn() -> Scene, first: Harm, sends: u64) {
        let Moment::Command(at) = first.moment else { return };
        let once = tell_of(scene(), vec![first.clone()], 2);
        self.add(name, &once, sends);
        for again in at + 1..=once.commands {
            for death in [Kind::CrashBefore, Kind::CrashAfter] {
                let second = Harm::at(death, Moment::Command(again));
                self.told(&format!("{name}, {death:?} {again}"), scene(), vec![first.clone(), second], sends);
            }
        }
    }

    /// Undone twice is undone once, wherever the process dies on the way back, twice too (S21).
    fn undone(&mut self, kind: Of, step: &str, back: &str) {
        let tell = |harms: &[(Kind, u64)]| tell_there_and_back(scene::single(kind, step), scene::single(kind, back), harms);
        let calm = tell(&[]);
        self.add_undone(&format!("{kind:?} {step}, undone"), &calm);
        for at in 1..=calm.commands {
            for death in [Kind::CrashBefore, Kind::CrashAfter] {
                self.add_undone(&format!("{kind:?} {step}, undone: {death:?} {at}"), &tell(&[(death, at)]));
                let twice = [(death, at), (Kind::CrashAfter, at + 2)];
                self.add_undone(&format!("{kind:?} {step}, undone: {death:?} {at} and later"), &tell(&twice));
            }
        }
    }

    fn add_undone(&mut self, name: &str, told: &Undone) {
        self.stories += 1;
        self.sends += told.sends.iter().sum::<u64>();
        let [before, once, twice] = &told.seen;
        let [done, undone, again] = told.sends;
        if let Some(Violation { rule, text }) = &told.violation {
            self.wrong.push(format!("{name}: {rule} {text}"));
        }
        if before != once || once != twice || done != 1 || !(1..=2).contains(&undone) || again != 0 {
            self.wrong.push(format!("{name}: {:?} changes, {:#?}", told.sends, told.seen));
        }
    }

    fn told(&mut self, name: &str, scene: Scene, harms: Vec<Harm>, sends: u64) {
        let told = tell_of(scene, harms, 3);
        self.add(name, &told, sends);
    }

    /// Nothing is sent more often than it would be undisturbed, and once more for each life in which it did not arrive.
    fn add(&mut self, name: &str, told: &Told, sends: u64) {
        self.stories += 1;
        self.sends += told.sends;
        if let Some(Violation { rule, text }) = &told.violation {
            self.wrong.push(format!("{name}: {rule} {text}"));
        }
        if told.sends > 2 * sends {
            self.wrong.push(format!("{name}: {} changes were sent, and {sends} are enough", told.sends));
        }
    }
}
