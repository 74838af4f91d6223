//! An observation never claims more than the truth: random labs on random days, read by the client while things go on changing.

use std::collections::{BTreeMap, BTreeSet};

use converger_adapters::proxmox::observe::{Need, Needs, Reason, Taken, Unread};
use converger_core::desired::Scope;
use converger_core::guest::{Identity, Kind, RunState, Vmid};
use converger_core::normalize::{Field, Value, Words};
use converger_core::observe::{Config, Ha, Observation, ObservedGuest, Pending, Reading, Status};
use converger_core::testing::Rng;

use crate::claims::{Tally, check};
use crate::days::{self, Day};
use crate::spine;
use crate::trouble::Trouble;
use crate::way::Way;
use crate::witness::REMEMBERED_MS;

/// So many labs are read, unless the environment says otherwise.
const WORLDS: u64 = 50_000;

/// The variable that says otherwise.
const WORLDS_VARIABLE: &str = "CONVERGER_WORLDS";

/// A lab, read once.
struct Read {
    way: Way<Trouble>,
    scope: Vec<Vmid>,
    taken: Result<Taken, Unread>,
}

/// Guests that are there, often one that never was, and now and then far too many of those: proving an absence asks every node.
fn scope(rng: &mut Rng, day: &Day) -> Vec<Vmid> {
    let guests = u32::try_from(day.setting.guests.len()).unwrap_or(0);
    let more = if rng.one_in(40) { 40 } else { rng.pick(&[0, 0, 0, 1, 1, 2]).copied().unwrap_or(0) };
    (100..100 + guests + more).map(spine::vmid).collect()
}

fn needs(rng: &mut Rng, scope: &[Vmid]) -> Needs {
    if !rng.one_in(3) {
        return Needs::Everything;
    }
    let mut needs = BTreeMap::new();
    for vmid in scope {
        if rng.one_in(10) {
            continue;
        }
        let kind = if rng.one_in(4) { Kind::Lxc } else { Kind::Qemu };
        let state = rng.pick(&[None, Some(RunState::Running), Some(RunState::Stopped)]).copied().flatten();
        needs.insert(*vmid, Need { kind, state, config: rng.one_in(2), tags: rng.one_in(4) });
    }
    Needs::Declared(needs)
}

fn read(seed: u64) -> Read {
    let mut rng = Rng::new(seed);
    let day = days::day(&mut rng);
    let nodes: Vec<String> = day.setting.nodes.keys().cloned().collect();
    let entry = rng.pick(&nodes).cloned().unwrap_or_default();
    let scope = scope(&mut rng, &day);
    let needs = needs(&mut rng, &scope);
    let wrong_pin = rng.one_in(100).then_some("elsewhere");
    let trouble = Trouble::new(Rng::new(rng.next_u64()), day.restless, nodes);
    let way = Way::new(&day.setting, &entry, trouble);
    arrive(&way, day.at_ms);
    let taken = spine::read(&way, &Scope::new(scope.clone()), &needs, wrong_pin);
    Read { way, scope, taken }
}

/// Somebody looks at the lab at that time: the past is remembered, the reading begins.
fn arrive(way: &Way<Trouble>, at_ms: u64) {
    let mut lab = way.lab();
    let remembered_ms = at_ms.saturating_sub(REMEMBERED_MS);
    lab.world.advance_to(remembered_ms);
    lab.look();
    lab.pass_to(at_ms);
    let lab = &mut *lab;
    lab.bystander.witness.begin(&lab.world, &lab.entry);
}

/// Says which seed it was if something panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

/// What is wrong with the reading of a seed, and what it claimed.
fn judge(seed: u64, tally: &mut Tally) -> Vec<String> {
    let _seed = Seed(seed);
    let read = read(seed);
    let lab = read.way.lab();
    let taken = match &read.taken {
        Ok(taken) => taken,
        Err(unread) => {
            tally.count(("no reading", why(unread)));
            return Vec::new();
        }
    };
    let mut wrong = check(&taken.observation, &read.scope, &lab.bystander.witness, tally);
    wrong.extend(order(&taken.observation));
    let scoped = taken.observation.clone().within(&Scope::new(read.scope.clone()));
    for row in &scoped.guests {
        if let Status::Unknown(cause) = &row.status {
            tally.count(("unknown", known_cause(cause.as_deref().unwrap_or_default(), &mut wrong)));
        }
    }
    for note in &taken.notes {
        tally.count(("note", note.reason.word()));
    }
    wrong.into_iter().map(|text| format!("seed {seed}: {text}\n{:#?}", taken.notes)).collect()
}

fn why(unread: &Unread) -> &'static str {
    match unread {
        Unread::Failed { failure, .. } => failure.cause.word(),
        Unread::OtherCluster { .. } => "other cluster",
    }
}

/// A guest is listed once, and in order.
fn order(observation: &Observation) -> Option<String> {
    let ids: Vec<Vmid> = observation.guests.iter().map(|row| row.vmid).collect();
    let sorted: BTreeSet<Vmid> = ids.iter().copied().collect();
    (!ids.iter().eq(&sorted)).then(|| format!("not in order: {ids:?}"))
}

fn known_cause(cause: &str, wrong: &mut Vec<String>) -> &'static str {
    let words = Reason::ALL.iter().map(|reason| reason.word());
    match words.into_iter().find(|word| *word == cause) {
        Some(word) => word,
        None => {
            wrong.push(format!("nobody knows the cause {cause:?}"));
            ""
        }
    }
}

/// How many labs are to be read.
fn worlds() -> u64 {
    std::env::var(WORLDS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(WORLDS)
}

/// All seeds, on as many threads as there are processors. What is found does not depend on how many.
fn judge_all(worlds: u64) -> (Vec<String>, Tally) {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let work = |first: u64| {
        let mut tally = Tally::default();
        let mut wrong = Vec::new();
        for seed in (first..worlds).step_by(usize::try_from(threads).unwrap_or(1)) {
            wrong.extend(judge(seed, &mut tally));
        }
        (wrong, tally)
    };
    let parts: Vec<(Vec<String>, Tally)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || work(first))).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panic!("a thread failed"))).collect()
    });
    let mut all = (Vec::new(), Tally::default());
    for (wrong, tally) in parts {
        all.0.extend(wrong);
        all.1.add(&tally);
    }
    all
}

/// What must have been reached by so many readings: a story that never happens proves nothing.
const REACHED: &[(&str, &[&str])] = &[
    ("quorate", &["yes", "no"]),
    ("complete", &["yes", "no"]),
    ("node online", &["yes", "no"]),
    ("guest", &["missing"]),
    ("placed", &["qemu", "lxc"]),
    ("running", &["live", "node-list"]),
    ("stopped", &["live", "node-list"]),
    ("raw word", &["live", "node-list", "cache"]),
    ("name", &["read", "listed", "listed by its node", "made of its id"]),
    ("lock", &["yes", "no"]),
    ("lock listed", &["yes", "no"]),
    ("template", &["yes", "no"]),
    ("template listed", &["yes", "no"]),
    ("protection", &["yes", "no"]),
    ("tags", &["yes", "no"]),
    ("tags listed", &["yes", "no"]),
    ("ha", &["none", "managed", "without a word"]),
    ("identity", &["qemu", "lxc"]),
    ("run-state and config", &["of one guest"]),
    ("config", &["understood", "not read and not claimed", "digest", "whole"]),
    ("pending", &["none", "value", "removal", "other", "all of it"]),
    (
        "unknown",
        &[
            "node-offline",
            "node-silent",
            "no-answer",
            "run-state-unclear",
            "not-permitted",
            "moved-while-read",
            "node-list-unread",
            "gone-while-read",
            "renamed-while-read",
            "replaced-while-read",
            "config-not-understood",
            "answer-malformed",
            "unreadable",
        ],
    ),
    (
        "note",
        &[
            "hidden",
            "absence-not-proven",
            "list-empty",
            "list-shrunken",
            "cluster-unread",
            "not-permitted",
            "moved-while-read",
            "report-late",
        ],
    ),
    (
        "no reading",
        &[
            "interrupted",
            "malformed",
            "node-unreachable",
            "node-unknown",
            "not-permitted",
            "unauthenticated",
            "not-implemented",
            "redirected",
            "cluster-down",
            "too-slow",
            "other cluster",
            "other",
        ],
    ),
];

fn unreached(tally: &Tally) -> Vec<String> {
    let fields = Field::ALL.into_iter().filter(|field| *field != Field::Tags).map(|field| ("config", field.word()));
    let listed = REACHED.iter().flat_map(|(about, words)| words.iter().map(move |word| (*about, *word)));
    let lacking = listed.chain(fields).filter(|what| !tally.0.contains_key(what));
    lacking.map(|(about, which)| format!("{about}: {which}")).collect()
}

#[test]
fn g2_an_observation_never_claims_more_than_the_truth() {
    let worlds = worlds();
    let (wrong, tally) = judge_all(worlds);
    for ((about, which), count) in &tally.0 {
        println!("{count:>9} {about}: {which}");
    }
    assert!(wrong.is_empty(), "{} claims of {worlds} readings were never so; the first:\n{}", wrong.len(), wrong[0]);
    let unreached = unreached(&tally);
    assert!(worlds < WORLDS || unreached.is_empty(), "{worlds} readings never came to {unreached:?}");
}

#[test]
fn one_seed_is_one_story() {
    for seed in [3, 1_234, 40_001] {
        let story = |seed| {
            let mut tally = Tally::default();
            let wrong = judge(seed, &mut tally);
            (wrong, tally)
        };
        assert_eq!(story(seed), story(seed), "seed {seed}");
    }
}

/// The first readings that are whole and without any note, and while which nothing changed: something to spoil.
fn calm(count: usize) -> Vec<(Read, Observation)> {
    let reads = (0..).map(read).filter_map(|read| {
        let taken = read.taken.clone().ok().filter(|taken| taken.notes.is_empty() && taken.observation.complete)?;
        let whole = taken.observation.guests.iter().any(|row| row.digest.is_some() && matches!(row.status, Status::Known(_)));
        let is_still = read.way.lab().bystander.witness.reading().len() == 1;
        (whole && is_still).then_some((read, taken.observation))
    });
    reads.take(count).collect()
}

/// What a row could wrongly claim.
type Lie = fn(&mut ObservedGuest);

const LIES: &[(&str, Lie)] = &[
    ("another run-state", |row| {
        row.status = match row.status {
            Status::Known(RunState::Running) => Status::Known(RunState::Stopped),
            _ => Status::Known(RunState::Running),
        }
    }),
    ("another raw word", |row| row.run_state = Some("shutdown".into())),
    ("another name", |row| row.name = Some("somebody".into())),
    ("another kind", |row| row.kind = if row.kind == Kind::Qemu { Kind::Lxc } else { Kind::Qemu }),
    ("another digest", |row| row.digest = Some("00".into())),
    ("a lock", |row| row.lock = Reading::Read(Some("imagined".into()))),
    ("a manager", |row| row.ha = Reading::Read(Some(Ha { state: Some("imagined".into()) }))),
    ("another template", |row| row.template = Reading::Read(row.template != Reading::Read(true))),
    ("another protection", |row| row.protection = Reading::Read(row.protection != Reading::Read(true))),
    ("another tag", |row| row.tags = Reading::Read(Words::new(vec!["imagined".into()]))),
    ("other marks", |row| row.identity = Reading::Read(Box::new(Identity::Qemu { uuid: Some("imagined".into()), ctime: None }))),
    ("a lost config", |row| row.config = Reading::Read(Config::default())),
    ("another value", |row| row.config = Reading::Read(Config::new(vec![(Field::Cores, Value::Count(77))]))),
    ("something that waits", |row| row.pending = Reading::Read([Pending::Other("imagined".into())].into())),
    ("nothing that waits was read", |row| row.pending = Reading::Unread),
];

#[test]
fn a_claim_that_was_never_so_is_found() {
    for (read, observation) in calm(20) {
        let lab = read.way.lab();
        let found = |observation: &Observation| check(observation, &read.scope, &lab.bystander.witness, &mut Tally::default());
        assert_eq!(found(&observation), Vec::<String>::new());
        for (index, row) in
            observation.guests.iter().enumerate().filter(|(_, row)| row.digest.is_some() && row.source.as_deref() == Some("live"))
        {
            for (what, lie) in LIES {
                let mut spoilt = observation.clone();
                lie(&mut spoilt.guests[index]);
                assert!(!found(&spoilt).is_empty(), "{what} of {row:?}");
            }
        }
    }
}

/// One guest's run-state beside the config of the one that was made anew under its id and name: each was so, and not of one guest.
#[test]
fn a_run_state_and_a_config_of_two_guests_are_found() {
    let yaml = "
nodes: { pve1: {} }
tokens: { root@pam!lab: { secret: lab, full: true } }
guests:
  - { vmid: 100, kind: qemu, node: pve1, name: web, state: running }
  - { vmid: 101, kind: lxc, node: pve1, name: dns, state: running, config: { net0: 'name=eth0,bridge=vmbr0' } }
";
    let setting = converger_lab::Setting::from_yaml(yaml).unwrap_or_else(|error| panic!("{error}"));
    let way = Way::new(&setting, "pve1", Trouble::new(Rng::new(1), 0, vec!["pve1".to_owned()]));
    arrive(&way, setting.start_ms + 20_000);
    let scope: Vec<Vmid> = [100, 101].map(spine::vmid).into();
    let read = || spine::read(&way, &Scope::new(scope.clone()), &Needs::Everything, None).expect("a reading").observation;
    let before = read();
    [100, 101].into_iter().for_each(|vmid| way.lab().act(converger_lab::Act::Replace(vmid)));
    let after = read();
    let lab = way.lab();
    let found = |observation: &Observation| check(observation, &scope, &lab.bystander.witness, &mut Tally::default());
    assert_eq!((found(&before), found(&after)), (vec![], vec![]));
    for index in 0..scope.len() {
        let mut mixed = after.clone();
        let (old, row) = (&before.guests[index], &mut mixed.guests[index]);
        (row.status, row.run_state) = (old.status.clone(), old.run_state.clone());
        let found = found(&mixed);
        assert!(found.len() == 1 && found[0].contains("run-state and config of one guest was never so"), "{found:?}");
    }
}

#[test]
fn a_guest_that_is_left_out_of_a_complete_list_is_found() {
    for (read, observation) in calm(20) {
        let lab = read.way.lab();
        for row in observation.guests.iter().filter(|row| read.scope.contains(&row.vmid)) {
            let guests = observation.guests.iter().filter(|other| other.vmid != row.vmid).cloned().collect();
            let spoilt = Observation { complete: true, guests, ..observation.clone() };
            let found = check(&spoilt, &read.scope, &lab.bystander.witness, &mut Tally::default());
            assert_eq!(found, [format!("guest {}: guest missing was never so", row.vmid)]);
            let honest = Observation { complete: false, ..spoilt };
            assert!(check(&honest, &read.scope, &lab.bystander.witness, &mut Tally::default()).is_empty());
        }
    }
}
