//! Kills the program at each request of a run that makes a guest from a template, and repeats the command until the guest is there.
//!
//! Each request is lost together with the program once, and answered to a dead program once. A program that is killed after it read an
//! answer leaves the same state as one that is killed at the next request; what it writes in between is killed by `cargo xtask crash`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use converger_lab::server::SharedWorld;
use converger_lab::{GuestVerb, RequestFault, RequestRecord, ResponseFault};
use serde_json::Value;

use crate::line::ScenarioLine;
use crate::run::PROGRAM_VARIABLES;
use crate::scenario::all_scenarios;
use crate::stage::ScenarioStage;

/// The id and the name of the guest that is made.
const NEW_ID: u32 = 120;
const NEW_NAME: &str = "web-7";
/// The template that it is made from.
const TEMPLATE_ID: u32 = 900;
/// The steps that make it, with the calls that count as their execution.
const STEPS: [(&str, GuestVerb, u32); 4] = [
    ("clone", GuestVerb::Clone, TEMPLATE_ID),
    ("provision", GuestVerb::Config, NEW_ID),
    ("disk.grow", GuestVerb::Resize, NEW_ID),
    ("start", GuestVerb::Start, NEW_ID),
];
/// A run that sends fewer requests than this is not the one that is meant.
const REQUESTS_MIN: usize = 30;
/// A person gives up after this many commands.
const COMMANDS_MAX: usize = 5;
/// The exit status of a run whose operation is held.
const HELD: i32 = 5;

/// How a guest is made.
#[derive(Clone, Copy, Debug)]
struct Making {
    /// The scenario whose lab and files are used.
    scenario: &'static str,
    /// The command of the person.
    command: &'static [&'static str],
    /// Whether each attempt has a key: the first one again after the kill, and then others.
    has_key: bool,
    /// Whether its first config has a password, which no reading shows.
    has_password: bool,
}

const REQUESTED: Making = Making {
    scenario: "action-clone-provision-killed",
    command: &["action", "vm.clone", "vm/900", "newid=120", "name=web-7", "memory=2GiB", "bridge=vmbr0", "disk-size=16GiB", "start=true"],
    has_key: true,
    has_password: false,
};

/// The same request from a caller who chose no key.
const REQUESTED_WITHOUT_KEY: Making = Making { has_key: false, ..REQUESTED };

const DECLARED: Making = Making { scenario: "from-makes-a-guest", command: &["apply", "desired.yaml"], has_key: false, has_password: true };

/// What happens to the request at which the program is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KillTime {
    /// It is lost.
    BeforeArrival,
    /// It is carried out.
    BeforeAnswer,
}

#[test]
fn requested_guest_is_made_once_after_a_kill_at_any_request() {
    check_all_kills(REQUESTED);
}

#[test]
fn requested_guest_without_a_key_is_made_once_after_a_kill_at_any_request() {
    check_all_kills(REQUESTED_WITHOUT_KEY);
}

#[test]
fn declared_guest_is_made_once_after_a_kill_at_any_request() {
    check_all_kills(DECLARED);
}

/// Kills at one request after the other, until a run sends fewer.
fn check_all_kills(making: Making) {
    let whole = play_kill(making, None).expect("it is not killed");
    assert_eq!(whole.faults, Vec::<String>::new(), "without a kill");
    for time in [KillTime::BeforeArrival, KillTime::BeforeAnswer] {
        let (next, played) = (AtomicUsize::new(1), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while let nth = next.fetch_add(1, Ordering::Relaxed)
                        && let Some(kill) = play_kill(making, Some((time, nth)))
                    {
                        played.lock().expect("no thread panicked").push((nth, kill));
                    }
                });
            }
        });
        let played: BTreeMap<usize, PlayedKill> = played.into_inner().expect("no thread panicked").into_iter().collect();
        check_kills(making, time, &whole, &played);
    }
}

/// All kills at one time: each is judged, and together they hit every request of an undisturbed run.
fn check_kills(making: Making, time: KillTime, whole: &PlayedKill, played: &BTreeMap<usize, PlayedKill>) {
    let mut faults = Vec::new();
    for (nth, kill) in played {
        let mut wrong = kill.faults.clone();
        if kill.guest != whole.guest {
            wrong.push(format!("the guest differs from that of an undisturbed run:\n  {}\n  {}", kill.guest, whole.guest));
        }
        wrong.extend(kill.unexplained_holds(making, time));
        if !wrong.is_empty() {
            let output = kill.outputs.join("\n---\n");
            faults.push(format!("== {time:?}, request {nth} ({}): {}\n{output}", kill.killed_at, wrong.join("; ")));
        }
    }
    assert!(faults.is_empty(), "{} of {} kills\n\n{}", faults.len(), played.len(), faults.join("\n"));
    assert!(played.len() >= REQUESTS_MIN && played.keys().copied().eq(1..=played.len()), "{:?}", played.keys());
    assert_eq!(played.len(), whole.requests, "an undisturbed run sends as many requests as there are kills");
    let changes: BTreeSet<&str> = played.values().map(|kill| kill.killed_at.as_str()).filter(|title| !title.starts_with("GET")).collect();
    assert_eq!(changes.len(), STEPS.len(), "each step is hit: {changes:?}");
}

/// What a kill led to.
struct PlayedKill {
    /// The request at which the program was killed.
    killed_at: String,
    /// How many requests the first command sent.
    requests: usize,
    /// The changes that were executed, and whose end the journal did not have when the program was killed.
    unproven: BTreeSet<&'static str>,
    /// The guest at the end, in one line.
    guest: String,
    /// The evidence of each operation that was held, by its change.
    holds: Vec<(String, Value)>,
    faults: Vec<String>,
    /// The output of all commands.
    outputs: Vec<String>,
}

impl PlayedKill {
    /// The holds that the kill does not explain. A change that was lost with the program may still arrive, as far as anybody can know. A
    /// password cannot be read back, so a first config with one stays unproven until its end is recorded. Everything else is settled by
    /// reading.
    fn unexplained_holds(&self, making: Making, time: KillTime) -> Vec<String> {
        let is_change = !self.killed_at.starts_with("GET");
        let is_explained = |(change, outcome): &(String, Value)| {
            let may_arrive = time == KillTime::BeforeArrival && is_change && outcome["evidence"]["may_come_until"].is_string();
            may_arrive || (making.has_password && change == "provision" && self.unproven.contains("provision"))
        };
        let unexplained = self.holds.iter().filter(|hold| !is_explained(hold) || self.holds.len() > 1);
        unexplained.map(|(change, outcome)| format!("{change} is held without need: {outcome}")).collect()
    }
}

/// Plays one kill and what the person does after it. `None` if the run sends fewer requests.
fn play_kill(making: Making, kill: Option<(KillTime, usize)>) -> Option<PlayedKill> {
    let scenario = all_scenarios().into_iter().find(|scenario| scenario.name == making.scenario).expect("there is such a scenario");
    let commands = format!("{}\n", making.command.join(" "));
    let mut person = Person {
        making,
        stage: ScenarioStage::start(&scenario, &PROGRAM_VARIABLES[0], &commands, None).expect("a lab"),
        outputs: Vec::new(),
        holds: Vec::new(),
        unproven: BTreeSet::new(),
        faults: Vec::new(),
    };
    let world = person.stage.lab().world().clone();
    let before = guest_ids(&world);
    if let Some((time, nth)) = kill {
        let line = ScenarioLine::parse(&format!("when * *#{nth} kill")).expect("a line");
        person.stage.execute_line(line).expect("it can be done");
        if time == KillTime::BeforeArrival {
            let nth = u64::try_from(nth).ok();
            world.lock().add_request_fault(RequestFault { nth, fault: Some(ResponseFault::LostBefore), ..RequestFault::default() });
        }
    }
    let (exit, requests) = person.run_command(0);
    if person.stage.take_unfired() > 0 {
        return None;
    }
    world.lock().clear_faults();
    if kill.is_some() {
        person.check_records();
        person.finish();
    } else if exit != 0 {
        person.faults.push(format!("it ended with {exit}"));
    }
    let killed_at = kill.and_then(|(_, nth)| requests.get(nth - 1)).map(request_title).unwrap_or_default();
    let guest = person.stage.lab().describe_guest(NEW_ID);
    person.check_end(&world, before);
    let Person { outputs, holds, unproven, faults, .. } = person;
    Some(PlayedKill { killed_at, requests: requests.len(), unproven, guest, holds, faults, outputs })
}

fn request_title(record: &RequestRecord) -> String {
    format!("{} {}", record.method, record.path)
}

fn guest_ids(world: &SharedWorld) -> BTreeSet<u32> {
    world.lock().guest_truths().map(|guest| guest.vmid).collect()
}

/// The person at the terminal, with what they saw.
struct Person {
    making: Making,
    stage: ScenarioStage<'static>,
    outputs: Vec<String>,
    holds: Vec<(String, Value)>,
    unproven: BTreeSet<&'static str>,
    faults: Vec<String>,
}

impl Person {
    /// Runs the command with the key of this attempt, and confirms what it asks. Attempts 0 and 1 are the same request with the same key.
    fn run_command(&mut self, attempt: usize) -> (i32, Vec<RequestRecord>) {
        let key = format!("key-{}", attempt.saturating_sub(1));
        let mut arguments = self.making.command.to_vec();
        if self.making.has_key {
            arguments.extend(["--key", &key]);
        }
        let (run, requests) = self.stage.run_plainly(&arguments, Some(&["yes".to_owned(), NEW_NAME.to_owned()]));
        self.outputs.push(format!("$ {}\n{}", arguments.join(" "), run.transcript()));
        (run.exit, requests)
    }

    /// Repeats the command until it succeeds. What is held is resolved as it really ended, which a person sees in the web interface.
    fn finish(&mut self) {
        for attempt in 1..=COMMANDS_MAX {
            let (exit, _) = self.run_command(attempt);
            if exit == 0 {
                return;
            }
            let held = self.held_operations();
            if (exit == HELD) == held.is_empty() {
                self.faults.push(format!("it ended with {exit}, and {} operations are held", held.len()));
            }
            held.iter().for_each(|operation| self.resolve(operation));
        }
        self.faults.push(format!("it did not succeed with {COMMANDS_MAX} commands"));
    }

    fn resolve(&mut self, history: &Value) {
        let (id, change) = (history["operation"]["id"].as_str().unwrap_or_default(), change_of(history));
        self.holds.push((change.to_owned(), history["ended"]["outcome"].clone()));
        let resolution = if self.executions(change) > 0 { "done" } else { "not-run" };
        let (run, _) = self.stage.run_plainly(&["ops", "resolve", "lab", id, "--as", resolution, "--reason", "a person looked"], None);
        self.outputs.push(format!("$ ops resolve --as {resolution}\n{}", run.transcript()));
    }

    /// How often a step was executed.
    fn executions(&self, change: &str) -> u64 {
        let world = self.stage.lab().world().lock();
        STEPS.iter().find(|(own, ..)| *own == change).map_or(0, |(_, verb, vmid)| world.executions(*verb, *vmid))
    }

    fn held_operations(&mut self) -> Vec<Value> {
        let mut all = self.journal();
        all.retain(|history| history["resolved"].is_null() && history["ended"]["outcome"]["end"] == "held");
        all
    }

    /// All operations in the journal.
    fn journal(&mut self) -> Vec<Value> {
        let (run, _) = self.stage.run_plainly(&["ops", "list", "lab", "--json"], None);
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("an operation")).collect()
    }

    /// Right after the kill: nothing was executed without a record of its intent.
    fn check_records(&mut self) {
        let journal = self.journal();
        for (change, ..) in STEPS {
            let recorded = journal.iter().find(|history| change_of(history) == change && vmid_of(history) == Some(NEW_ID));
            match recorded {
                _ if self.executions(change) == 0 => {}
                None => self.faults.push(format!("{change} was executed without a record")),
                Some(history) if history["ended"].is_null() => drop(self.unproven.insert(change)),
                Some(_) => {}
            }
        }
    }

    /// At the end: one new guest, made by steps that were executed once each, with its birth marks in the journal.
    fn check_end(&mut self, world: &SharedWorld, before: BTreeSet<u32>) {
        let mut expected = before;
        expected.insert(NEW_ID);
        let found = guest_ids(world);
        if found != expected {
            self.faults.push(format!("the guests are {found:?}"));
        }
        let journal = self.journal();
        for (change, ..) in STEPS {
            let is_done = |history: &&Value| {
                let end = history["resolved"]["resolution"].as_str().or_else(|| history["ended"]["outcome"]["end"].as_str());
                change_of(history) == change && end == Some("done")
            };
            let (executed, done) = (self.executions(change), journal.iter().filter(is_done).count());
            if (executed, done) != (1, 1) {
                self.faults.push(format!("{change} was executed {executed} times, and the journal has it as done {done} times"));
            }
        }
        let marks = world.lock().birth_marks(NEW_ID).and_then(|marks| marks.smbios1).unwrap_or_default();
        let is_own = |history: &&Value| history["ended"]["outcome"]["observed"]["uuid"].as_str().is_some_and(|uuid| marks.contains(uuid));
        if !journal.iter().filter(|history| change_of(history) == "clone").any(|history| is_own(&history)) {
            self.faults.push(format!("the journal does not have the birth marks {marks}"));
        }
        let (verified, _) = self.stage.run_plainly(&["verify"], None);
        if verified.exit != 0 {
            self.faults.push(format!("the ledger does not verify: {}", verified.transcript()));
        }
    }
}

fn change_of(history: &Value) -> &str {
    history["operation"]["step"]["change"].as_str().unwrap_or_default()
}

fn vmid_of(history: &Value) -> Option<u32> {
    history["operation"]["guest"]["vmid"].as_u64()?.try_into().ok()
}
