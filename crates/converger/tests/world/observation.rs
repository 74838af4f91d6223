//! An observation never claims more than the truth: random labs on random days, observed by the client while they keep changing.

use std::collections::{BTreeMap, BTreeSet};

use converger_adapters::proxmox::observe::{ExtraReads, GuestNeed, ProxmoxReading, ReadSet, ReadingError, UnknownReason};
use converger_core::desired::Scope;
use converger_core::guest::{GuestIdentity, GuestKind, RunState, Vmid};
use converger_core::normalize::{Field, FieldValue, WordSet};
use converger_core::observe::{EffectiveValues, HaState, Observation, ObservedGuest, ObservedStatus, PendingChange, Reading};
use converger_core::testing::Rng;

use crate::claims::{ClaimTally, check_claims};
use crate::client;
use crate::interference::RandomInterference;
use crate::lab_transport::LabTransport;
use crate::random_labs::{self, LabDay};
use crate::truth_history::REMEMBERED_MS;

/// The default number of labs.
const DEFAULT_WORLDS: u64 = 50_000;

/// The variable that changes it.
const WORLDS_VARIABLE: &str = "CONVERGER_WORLDS";

/// A lab, observed once.
struct SeededReading {
    transport: LabTransport<RandomInterference>,
    scope: Vec<Vmid>,
    reading: Result<ProxmoxReading, ReadingError>,
}

/// Existing guests, often one that never existed, and now and then far too many of those: proving an absence asks every node.
fn draw_scope(rng: &mut Rng, day: &LabDay) -> Vec<Vmid> {
    let guests = u32::try_from(day.spec.guests.len()).unwrap_or(0);
    let more = if rng.one_in(40) { 40 } else { rng.pick(&[0, 0, 0, 1, 1, 2]).copied().unwrap_or(0) };
    (100..100 + guests + more).map(client::vmid).collect()
}

fn draw_needs(rng: &mut Rng, scope: &[Vmid]) -> ReadSet {
    if !rng.one_in(3) {
        return ReadSet::Everything;
    }
    let mut needs = BTreeMap::new();
    for vmid in scope {
        if rng.one_in(10) {
            continue;
        }
        let kind = if rng.one_in(4) { GuestKind::Lxc } else { GuestKind::Qemu };
        let state = rng.pick(&[None, Some(RunState::Running), Some(RunState::Stopped)]).copied().flatten();
        needs.insert(*vmid, GuestNeed { kind, state, config: rng.one_in(2), tags: rng.one_in(4), extras: ExtraReads::default() });
    }
    ReadSet::Declared(needs)
}

fn read_seed(seed: u64) -> SeededReading {
    let mut rng = Rng::new(seed);
    let day = random_labs::draw_day(&mut rng);
    let nodes: Vec<String> = day.spec.nodes.keys().cloned().collect();
    let entry = rng.pick(&nodes).cloned().unwrap_or_default();
    let scope = draw_scope(&mut rng, &day);
    let read_set = draw_needs(&mut rng, &scope);
    let wrong_pin = rng.one_in(100).then_some("elsewhere");
    let interference = RandomInterference::new(Rng::new(rng.next_u64()), day.interference_per_mille, nodes);
    let transport = LabTransport::new(&day.spec, &entry, interference);
    start_reading_at(&transport, day.at_ms);
    let reading = client::take_reading(&transport, &Scope::new(scope.clone()), &read_set, wrong_pin);
    SeededReading { transport, scope, reading }
}

/// Advances to the beginning of the observation and records the past that the cluster's list may remember.
fn start_reading_at(transport: &LabTransport<RandomInterference>, at_ms: u64) {
    let mut lab = transport.lock_lab();
    let remembered_ms = at_ms.saturating_sub(REMEMBERED_MS);
    lab.world.advance_to(remembered_ms);
    lab.notify_bystander();
    lab.advance_to(at_ms);
    let lab = &mut *lab;
    lab.bystander.history.start_reading(&lab.world, &lab.entry);
}

/// Prints the seed if something panics.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

/// Checks the observation of a seed and counts its claims; returns the faults.
fn check_seed(seed: u64, tally: &mut ClaimTally) -> Vec<String> {
    let _seed = SeedOnPanic(seed);
    let read = read_seed(seed);
    let lab = read.transport.lock_lab();
    let reading = match &read.reading {
        Ok(reading) => reading,
        Err(unread) => {
            tally.count(("no reading", failure_word(unread)));
            return Vec::new();
        }
    };
    let mut wrong = check_claims(&reading.observation, &read.scope, &lab.bystander.history, tally);
    wrong.extend(check_order(&reading.observation));
    let scoped = reading.observation.clone().into_scoped(&Scope::new(read.scope.clone()));
    for row in &scoped.guests {
        if let ObservedStatus::Unknown(cause) = &row.status {
            tally.count(("unknown", known_cause(cause.as_deref().unwrap_or_default(), &mut wrong)));
        }
    }
    for note in &reading.notes {
        tally.count(("note", note.reason.word()));
    }
    wrong.into_iter().map(|text| format!("seed {seed}: {text}\n{:#?}", reading.notes)).collect()
}

fn failure_word(unread: &ReadingError) -> &'static str {
    match unread {
        ReadingError::Failed { failure, .. } => failure.cause.word(),
        ReadingError::OtherCluster { .. } => "other cluster",
    }
}

/// Guests are listed once, in order.
fn check_order(observation: &Observation) -> Option<String> {
    let ids: Vec<Vmid> = observation.guests.iter().map(|row| row.vmid).collect();
    let sorted: BTreeSet<Vmid> = ids.iter().copied().collect();
    (!ids.iter().eq(&sorted)).then(|| format!("not in order: {ids:?}"))
}

fn known_cause(cause: &str, wrong: &mut Vec<String>) -> &'static str {
    let names = UnknownReason::ALL.iter().map(|reason| reason.word());
    match names.into_iter().find(|name| *name == cause) {
        Some(name) => name,
        None => {
            wrong.push(format!("nobody knows the cause {cause:?}"));
            ""
        }
    }
}

/// The number of labs to observe.
fn world_count() -> u64 {
    std::env::var(WORLDS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_WORLDS)
}

/// Checks all seeds on all processors. The result does not depend on their number.
fn check_all_seeds(worlds: u64) -> (Vec<String>, ClaimTally) {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let work = |first: u64| {
        let mut tally = ClaimTally::default();
        let mut wrong = Vec::new();
        for seed in (first..worlds).step_by(usize::try_from(threads).unwrap_or(1)) {
            wrong.extend(check_seed(seed, &mut tally));
        }
        (wrong, tally)
    };
    let parts: Vec<(Vec<String>, ClaimTally)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || work(first))).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panic!("a thread failed"))).collect()
    });
    let mut all = (Vec::new(), ClaimTally::default());
    for (wrong, tally) in parts {
        all.0.extend(wrong);
        all.1.add(&tally);
    }
    all
}

/// Claims that must have occurred in this many observations: a claim that never occurs proves nothing.
const REQUIRED_CLAIMS: &[(&str, &[&str])] = &[
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

fn unreached_claims(tally: &ClaimTally) -> Vec<String> {
    let fields = Field::ALL.into_iter().filter(|field| *field != Field::Tags).map(|field| ("config", field.word()));
    let listed = REQUIRED_CLAIMS.iter().flat_map(|(about, claims)| claims.iter().map(move |claim| (*about, *claim)));
    let missing = listed.chain(fields).filter(|what| !tally.0.contains_key(what));
    missing.map(|(about, which)| format!("{about}: {which}")).collect()
}

#[test]
fn g2_an_observation_never_claims_more_than_the_truth() {
    let worlds = world_count();
    let (wrong, tally) = check_all_seeds(worlds);
    for ((about, which), count) in &tally.0 {
        println!("{count:>9} {about}: {which}");
    }
    assert!(wrong.is_empty(), "{} claims of {worlds} readings were never so; the first:\n{}", wrong.len(), wrong[0]);
    let unreached = unreached_claims(&tally);
    assert!(worlds < DEFAULT_WORLDS || unreached.is_empty(), "{worlds} readings never came to {unreached:?}");
}

#[test]
fn same_seed_gives_same_observation() {
    for seed in [3, 1_234, 40_001] {
        let seed_result = |seed| {
            let mut tally = ClaimTally::default();
            let wrong = check_seed(seed, &mut tally);
            (wrong, tally)
        };
        assert_eq!(seed_result(seed), seed_result(seed), "seed {seed}");
    }
}

/// The first observations that are complete, without notes and without concurrent changes, as a basis for false claims.
fn undisturbed_readings(count: usize) -> Vec<(SeededReading, Observation)> {
    let reads = (0..).map(read_seed).filter_map(|read| {
        let reading = read.reading.clone().ok().filter(|reading| reading.notes.is_empty() && reading.observation.complete)?;
        let whole = reading.observation.guests.iter().any(|row| row.digest.is_some() && matches!(row.status, ObservedStatus::Known(_)));
        let is_still = read.transport.lock_lab().bystander.history.reading_moments().len() == 1;
        (whole && is_still).then_some((read, reading.observation))
    });
    reads.take(count).collect()
}

/// A change of a row to a false claim.
type FalseClaim = fn(&mut ObservedGuest);

const FALSE_CLAIMS: &[(&str, FalseClaim)] = &[
    ("another run-state", |row| {
        row.status = match row.status {
            ObservedStatus::Known(RunState::Running) => ObservedStatus::Known(RunState::Stopped),
            _ => ObservedStatus::Known(RunState::Running),
        }
    }),
    ("another raw word", |row| row.run_state = Some("shutdown".into())),
    ("another name", |row| row.name = Some("somebody".into())),
    ("another kind", |row| row.kind = if row.kind == GuestKind::Qemu { GuestKind::Lxc } else { GuestKind::Qemu }),
    ("another digest", |row| row.digest = Some("00".into())),
    ("a lock", |row| row.lock = Reading::Read(Some("imagined".into()))),
    ("a manager", |row| row.ha = Reading::Read(Some(HaState { state: Some("imagined".into()) }))),
    ("another template", |row| row.template = Reading::Read(row.template != Reading::Read(true))),
    ("another protection", |row| row.protection = Reading::Read(row.protection != Reading::Read(true))),
    ("another tag", |row| row.tags = Reading::Read(WordSet::new(vec!["imagined".into()]))),
    ("other marks", |row| row.identity = Reading::Read(Box::new(GuestIdentity::Qemu { uuid: Some("imagined".into()), ctime: None }))),
    ("a lost config", |row| row.config = Reading::Read(EffectiveValues::default())),
    ("another value", |row| row.config = Reading::Read(EffectiveValues::new(vec![(Field::Cores, FieldValue::Count(77))]))),
    ("something that waits", |row| row.pending = Reading::Read([PendingChange::Other("imagined".into())].into())),
    ("nothing that waits was read", |row| row.pending = Reading::Unread),
];

#[test]
fn detects_a_false_claim() {
    for (read, observation) in undisturbed_readings(20) {
        let lab = read.transport.lock_lab();
        let found = |observation: &Observation| check_claims(observation, &read.scope, &lab.bystander.history, &mut ClaimTally::default());
        assert_eq!(found(&observation), Vec::<String>::new());
        for (index, row) in
            observation.guests.iter().enumerate().filter(|(_, row)| row.digest.is_some() && row.source.as_deref() == Some("live"))
        {
            for (what, lie) in FALSE_CLAIMS {
                let mut spoilt = observation.clone();
                lie(&mut spoilt.guests[index]);
                assert!(!found(&spoilt).is_empty(), "{what} of {row:?}");
            }
        }
    }
}

/// The run-state of one guest with the config of another one that was recreated with its id and name: each was true, but not of one guest.
#[test]
fn detects_run_state_and_config_of_two_different_guests() {
    let yaml = "
nodes: { pve1: {} }
tokens: { root@pam!lab: { secret: lab, full: true } }
guests:
  - { vmid: 100, kind: qemu, node: pve1, name: web, state: running }
  - { vmid: 101, kind: lxc, node: pve1, name: dns, state: running, config: { net0: 'name=eth0,bridge=vmbr0' } }
";
    let spec = converger_lab::WorldSpec::from_yaml(yaml).unwrap_or_else(|error| panic!("{error}"));
    let transport = LabTransport::new(&spec, "pve1", RandomInterference::new(Rng::new(1), 0, vec!["pve1".to_owned()]));
    start_reading_at(&transport, spec.start_ms + 20_000);
    let scope: Vec<Vmid> = [100, 101].map(client::vmid).into();
    let read = || client::take_reading(&transport, &Scope::new(scope.clone()), &ReadSet::Everything, None).expect("a reading").observation;
    let before = read();
    [100, 101].into_iter().for_each(|vmid| transport.lock_lab().inject_event(converger_lab::WorldEvent::Replace(vmid)));
    let after = read();
    let lab = transport.lock_lab();
    let found = |observation: &Observation| check_claims(observation, &scope, &lab.bystander.history, &mut ClaimTally::default());
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
fn detects_a_guest_left_out_of_a_complete_list() {
    for (read, observation) in undisturbed_readings(20) {
        let lab = read.transport.lock_lab();
        for row in observation.guests.iter().filter(|row| read.scope.contains(&row.vmid)) {
            let guests = observation.guests.iter().filter(|other| other.vmid != row.vmid).cloned().collect();
            let spoilt = Observation { complete: true, guests, ..observation.clone() };
            let found = check_claims(&spoilt, &read.scope, &lab.bystander.history, &mut ClaimTally::default());
            assert_eq!(found, [format!("guest {}: guest missing was never so", row.vmid)]);
            let honest = Observation { complete: false, ..spoilt };
            assert!(check_claims(&honest, &read.scope, &lab.bystander.history, &mut ClaimTally::default()).is_empty());
        }
    }
}
