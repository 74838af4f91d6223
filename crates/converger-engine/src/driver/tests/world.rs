//! A few guests that start, stop and take config, and a clock that goes on when somebody waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use converger_core::action::{Change, FieldChange};
use converger_core::apply::{Answer, Ask, BootId, Cause, ConfigRead, Live, Place, Sent, TaskId, TaskState, Trouble, Uptime};
use converger_core::guest::{Kind, NodeName, RunState};
use converger_core::normalize::{Field, Value};
use converger_core::observe::{Config, Pending};
use serde_json::{Value as Json, json};

use crate::clock::Clock;
use crate::driver::Hand;
use crate::testing;

const TASK_MS: u64 = 2_000;

#[derive(Clone)]
struct Guest {
    runs: bool,
    up_since_ms: u64,
    cores: u32,
    pending: Option<u32>,
}

struct Task {
    id: TaskId,
    vmid: u32,
    change: Change,
    began_ms: u64,
    is_failed: bool,
}

#[derive(Default)]
struct Inner {
    now_ms: u64,
    /// How often our machine was started, and when last.
    boots: u64,
    booted_ms: u64,
    guests: BTreeMap<u32, Guest>,
    tasks: Vec<Task>,
    sent: Vec<(u32, String)>,
    asked: u64,
    /// Tasks of these guests fail.
    broken: Vec<u32>,
    /// These guests do not listen to a shutdown.
    deaf: Vec<u32>,
    on_send: Option<Box<dyn FnOnce() + Send>>,
    on_turn: Option<Box<dyn FnOnce() + Send>>,
    /// What happens before each of the next looks at the clock.
    on_looks: VecDeque<Box<dyn FnOnce() + Send>>,
    /// From this ask on nobody answers any more.
    dies_at: Option<u64>,
    /// The answer to the sends with these numbers is lost.
    lost: Vec<usize>,
    /// Where all guests are by now; they were planned on where their rows say.
    home: Option<NodeName>,
    /// The most tasks that were at work at once.
    most_tasks: usize,
}

/// The world; clones share it.
#[derive(Clone, Default)]
pub(super) struct World(Arc<Mutex<Inner>>);

/// A clock that goes on by what is waited, and the world with it.
pub(super) struct Ticking(World);

impl Ticking {
    pub(super) fn new(now_ms: u64, world: World) -> Self {
        {
            let mut inner = world.lock();
            inner.now_ms = inner.now_ms.max(now_ms);
        }
        Self(world)
    }
}

impl Clock for Ticking {
    fn now_ms(&self) -> u64 {
        self.0.lock().now_ms
    }

    fn awake_ms(&self) -> u64 {
        let act = self.0.lock().on_looks.pop_front();
        if let Some(act) = act {
            act();
        }
        self.now_ms()
    }

    fn uptime(&self) -> Option<Uptime> {
        let inner = self.0.lock();
        Some(Uptime { boot: BootId::new(&format!("boot-{}", inner.boots)).expect("an id"), ms: inner.now_ms - inner.booted_ms })
    }

    async fn wait(&self, ms: u64) {
        self.0.lock().now_ms += ms;
        tokio::task::yield_now().await;
    }
}

impl World {
    pub(super) fn new(guests: &[(u32, &str)]) -> Self {
        let guest = |state: &str| Guest { runs: state == "running", up_since_ms: 0, cores: 2, pending: None };
        let guests = guests.iter().map(|(vmid, state)| (*vmid, guest(state))).collect();
        Self(Arc::new(Mutex::new(Inner { guests, ..Inner::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("unpoisoned")
    }

    pub(super) fn fail_tasks_of(&self, vmid: u32) {
        self.lock().broken.push(vmid);
    }

    /// Its shutdown times out.
    pub(super) fn is_deaf(&self, vmid: u32) {
        self.lock().deaf.push(vmid);
    }

    pub(super) fn on_first_send(&self, act: impl FnOnce() + Send + 'static) {
        self.lock().on_send = Some(Box::new(act));
    }

    /// What happens while the first change waits for room.
    pub(super) fn on_first_turn(&self, act: impl FnOnce() + Send + 'static) {
        self.lock().on_turn = Some(Box::new(act));
    }

    /// What happens between the next look at the clock and the one after it.
    pub(super) fn after_next_look(&self, act: impl FnOnce() + Send + 'static) {
        self.lock().on_looks = VecDeque::from([Box::new(|| ()) as Box<dyn FnOnce() + Send>, Box::new(act)]);
    }

    /// From the ask with this number on, counted from now, nobody answers any more.
    pub(super) fn dies_at(&self, number: Option<u64>) {
        let mut inner = self.lock();
        inner.dies_at = number.map(|number| inner.asked + number);
    }

    /// Time goes by.
    pub(super) fn pass(&self, ms: u64) {
        self.lock().now_ms += ms;
    }

    /// Our machine is started anew.
    pub(super) fn reboot_ours(&self) {
        let mut inner = self.lock();
        (inner.boots, inner.booted_ms) = (inner.boots + 1, inner.now_ms);
    }

    pub(super) fn asked(&self) -> u64 {
        self.lock().asked
    }

    /// All guests are on this node from now on.
    pub(super) fn move_all_to(&self, node: &str) {
        self.lock().home = NodeName::new(node);
    }

    pub(super) fn most_tasks(&self) -> usize {
        self.lock().most_tasks
    }

    /// The answer to the send with this number is lost, after it was carried out.
    pub(super) fn loses_answer(&self, number: usize) {
        self.lock().lost.push(number);
    }

    /// How often something was sent to each guest.
    pub(super) fn sends(&self) -> BTreeMap<u32, u32> {
        let mut sends = BTreeMap::new();
        for (vmid, _) in &self.lock().sent {
            *sends.entry(*vmid).or_default() += 1;
        }
        sends
    }

    /// What was sent to whom, in order.
    pub(super) fn order(&self) -> Vec<(u32, String)> {
        self.lock().sent.clone()
    }

    /// A reading of it, after everything has come to rest.
    pub(super) fn rows(&self) -> Vec<Json> {
        let mut inner = self.lock();
        inner.now_ms += 10 * TASK_MS;
        inner.settle();
        let rows = inner.guests.iter().map(|(vmid, guest)| {
            let mut row = testing::row(*vmid, if guest.runs { "running" } else { "stopped" });
            row["config"] = json!({ "cores": guest.cores });
            if let Some(cores) = guest.pending {
                row["pending"] = json!([{ "key": "cores", "value": cores }]);
            }
            row
        });
        rows.collect()
    }
}

impl Inner {
    /// What tasks whose time has come have done.
    fn settle(&mut self) {
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
            let was_up = guest.runs;
            guest.runs = change.leads_to() == Some(RunState::Running);
            if guest.runs && (!was_up || matches!(change, Change::Reboot { .. })) {
                guest.up_since_ms = now_ms;
            }
            guest.cores = guest.pending.take().unwrap_or(guest.cores);
        }
    }

    fn answer(&mut self, ask: &Ask) -> Answer {
        self.settle();
        match (ask, self.home.clone()) {
            (Ask::Status(place) | Ask::Config(place), Some(home)) if place.node != home => {
                Answer::NotThere(testing::cause(Trouble::NotThere))
            }
            (Ask::Where(vmid), Some(node)) => Answer::Where(Some(Place { node, kind: Kind::Qemu, vmid: *vmid })),
            _ => self.answer_here(ask),
        }
    }

    fn answer_here(&mut self, ask: &Ask) -> Answer {
        match ask {
            Ask::Cluster => testing::cluster(),
            Ask::Status(place) => Answer::Status(self.live(place.vmid.get())),
            Ask::Config(place) => Answer::Config(Box::new(self.config(place.vmid.get()))),
            Ask::Where(_) => Answer::Where(None),
            Ask::Send { place, change, .. } => Answer::Sent(self.send(place.vmid.get(), change)),
            Ask::Task(task) => Answer::Task(match self.tasks.iter().find(|own| own.id == *task) {
                Some(own) if self.deaf.contains(&own.vmid) => {
                    TaskState::Failed { cause: testing::cause(Trouble::ShutdownTimeout), age_secs: None }
                }
                Some(own) if own.is_failed => TaskState::Failed { cause: testing::cause(Trouble::Other), age_secs: None },
                Some(_) => TaskState::Running,
                None => TaskState::Ended { warnings: 0, age_secs: None },
            }),
            Ask::Tasks { place, .. } => {
                let ours = self.tasks.iter().filter(|task| task.vmid == place.vmid.get());
                Answer::Tasks(ours.map(|task| testing::at_work(task.id.as_str())).collect())
            }
        }
    }

    fn live(&self, vmid: u32) -> Live {
        let guest = &self.guests[&vmid];
        testing::live(if guest.runs { "running" } else { "stopped" }, (self.now_ms - guest.up_since_ms) / 1000)
    }

    fn config(&self, vmid: u32) -> ConfigRead {
        let guest = &self.guests[&vmid];
        let pending = guest.pending.map(|cores| Pending::Known(Field::Cores, Some(Value::Count(cores))));
        let values = Config::new(vec![(Field::Cores, Value::Count(guest.cores))]);
        ConfigRead { values, pending: pending.into_iter().collect(), ..testing::config_read(2) }
    }

    fn send(&mut self, vmid: u32, change: &Change) -> Sent {
        assert!(self.tasks.iter().all(|task| task.vmid != vmid || task.is_failed), "two operations on guest {vmid} at once (G12)");
        self.sent.push((vmid, change.word().to_owned()));
        let number = self.sent.len();
        if let Some(act) = self.on_send.take() {
            act();
        }
        let sent = match change {
            Change::ConfigSet(fields) => self.write(vmid, fields),
            _ => {
                let id = testing::task_id(&format!("T{number}"));
                let is_failed = self.broken.contains(&vmid) || (self.deaf.contains(&vmid) && matches!(change, Change::Shutdown { .. }));
                self.tasks.push(Task { id: id.clone(), vmid, change: change.clone(), began_ms: self.now_ms, is_failed });
                self.most_tasks = self.most_tasks.max(self.tasks.len());
                Sent::Task(id)
            }
        };
        if self.lost.contains(&number) { Sent::MayHaveRun(testing::cause(Trouble::Other)) } else { sent }
    }

    fn write(&mut self, vmid: u32, fields: &[FieldChange]) -> Sent {
        let guest = self.guests.get_mut(&vmid).expect("it is there");
        let [field] = fields else { panic!("{fields:?}") };
        let Some(Value::Count(cores)) = field.after else { panic!("{fields:?}") };
        if guest.runs {
            guest.pending = Some(cores);
        } else {
            guest.cores = cores;
        }
        Sent::Done
    }
}

impl Hand for World {
    type Turn = ();

    async fn turn(&self, _place: Place) -> Result<(), Cause> {
        let act = self.lock().on_turn.take();
        if let Some(act) = act {
            act();
            // It waits for a while longer, and others go on meanwhile.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    async fn send(&self, (): (), ask: Ask) -> Answer {
        self.ask(ask).await
    }

    async fn ask(&self, ask: Ask) -> Answer {
        let answer = {
            let mut inner = self.lock();
            inner.asked += 1;
            let is_dead = inner.dies_at.is_some_and(|at| inner.asked >= at);
            // The one at which it dies is carried out and not answered; what comes after it never arrives.
            (!is_dead || inner.dies_at == Some(inner.asked)).then(|| inner.answer(&ask)).filter(|_| !is_dead)
        };
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}
