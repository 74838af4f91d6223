//! The file and its twin in memory get the same seeded batches, legal and not, and must answer and hold the same.

use std::collections::BTreeMap;
use std::path::Path;

use converger_core::apply::{End, EnvironmentBinding, EnvironmentRename, Freeze, Hold, Operation, Resolution, Run, RunId, Source};
use converger_core::evidence::{Replay, parse_entry};
use converger_core::guest::EnvironmentName;
use converger_core::testing::Rng;
use converger_store::conformance::{Sample, now};
use converger_store::{Agreement, Batch, Filter, Looked, MemoryStore, Receipt, Standing, Store, StoreError, Told, Write};

use super::{open, place};

/// What a seed draws from. Few guests, keys and runs, so that batches meet each other.
struct Draw {
    rng: Rng,
    sample: Sample,
    next: u64,
    made: Vec<Operation>,
}

impl Draw {
    fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), sample: Sample::new(seed), next: 0, made: Vec::new() }
    }

    fn run(&mut self) -> Run {
        let id = RunId::new(&format!("run-{}", self.rng.below(3))).expect("an id");
        Run { id, ..self.sample.run() }
    }

    fn operation(&mut self) -> Operation {
        if self.rng.one_in(12) && !self.made.is_empty() {
            return self.made[self.rng.index(self.made.len())].clone();
        }
        let (guest, run) = (self.rng.below(6), self.run().id);
        self.next += 1;
        let mut operation = if self.rng.one_in(4) {
            let (key, request) = (format!("key-{}", self.rng.below(8)), format!("request-{}", self.rng.below(2)));
            self.sample.one_shot(self.next, guest, &key, &request)
        } else {
            self.sample.operation(self.next, guest)
        };
        operation.run = run;
        self.made.push(operation.clone());
        operation
    }

    /// One that is likely to be under way.
    fn known(&mut self) -> Operation {
        let recent = self.made.len().saturating_sub(12);
        if self.made.is_empty() { self.operation() } else { self.made[recent + self.rng.index(self.made.len() - recent)].clone() }
    }

    fn write(&mut self) -> Batch {
        let (environment, vmid) = (self.sample.environment(), self.sample.guest(self.rng.below(6)));
        let write = match self.rng.below(42) {
            0 => Write::Hold(Hold { environment, vmid, by: "ann".into(), reason: "why".into(), at_ms: self.next }),
            1..4 => Write::Release { environment, vmid, by: "bob".into(), at_ms: self.next },
            4 => Write::Freeze(Freeze { environment, by: "ann".into(), reason: "why".into(), at_ms: self.next }),
            5..9 => Write::Thaw { environment, by: "bob".into(), at_ms: self.next },
            9..12 => return Sample::started(self.run()),
            12 if self.rng.one_in(4) => Write::RunEnded { id: self.run().id, end: End::Done, at_ms: self.next },
            12..24 => self.intent(),
            24..26 => self.naming(),
            _ => self.record(),
        };
        write.into()
    }

    /// A binding to one of two clusters, a rename, or more often the way back from it.
    fn naming(&mut self) -> Write {
        let (here, there) = (self.sample.environment(), EnvironmentName::new("lab-2").expect("a name"));
        let of = if self.rng.one_in(3) { &there } else { &here };
        let cluster = Sample::binding(if self.rng.one_in(2) { &there } else { &here }).cluster;
        let rename = |from: &EnvironmentName, to: &EnvironmentName| {
            let (from, to) = (from.clone(), to.clone());
            Write::Rename(EnvironmentRename { from, to, by: "ann".into(), reason: "why".into(), at_ms: 3 })
        };
        match self.rng.below(8) {
            0 => Write::Bind(EnvironmentBinding { environment: of.clone(), cluster, by: "ann".into(), at_ms: 2 }),
            1 => rename(&here, &there),
            _ => rename(&there, &here),
        }
    }

    fn intent(&mut self) -> Write {
        let operation = self.operation();
        self.sample.intent(&operation).into()
    }

    fn record(&mut self) -> Write {
        let operation = self.known();
        let record = match self.rng.below(5) {
            0 => self.sample.tasked(&operation),
            2 => self.sample.sending(&operation),
            1 => self.sample.resolved(&operation, *self.rng.pick(&Resolution::ALL).expect("one")),
            _ => {
                let end = *self.rng.pick(&End::ALL).expect("one");
                self.sample.ended(&operation, end)
            }
        };
        record.into()
    }

    fn batch(&mut self) -> Batch {
        let length = if self.rng.percent(60) { 1 } else { 1 + self.rng.below(4) };
        (0..length).fold(Batch::default(), |batch, _| batch.with(self.write()))
    }
}

/// Which transaction a batch came into depends on who waited beside it.
fn timeless(answer: Result<Receipt, StoreError>) -> Result<Receipt, StoreError> {
    answer.map(|receipt| match receipt {
        Receipt::Written { .. } => Receipt::Written { transaction: 0 },
        repeated => repeated,
    })
}

fn word(answer: &Result<Receipt, StoreError>) -> String {
    match answer {
        Ok(Receipt::Written { .. }) => "Written".into(),
        Ok(Receipt::Repeated { .. }) => "Repeated".into(),
        Err(StoreError::Refused(refused)) => {
            let text = format!("{refused:?}");
            text.split(['(', ' ', '{']).next().unwrap_or("").to_owned()
        }
        Err(error) => format!("{error:?}"),
    }
}

fn compare(seed: u64, sample: &Sample, made: &[Operation], file: &impl Store, twin: &impl Store) {
    let environment = || sample.environment();
    assert_eq!(now(file.entries(0, 1000)), now(twin.entries(0, 1000)), "seed {seed}");
    assert_eq!(now(file.heads()), now(twin.heads()), "seed {seed}");
    assert_eq!(now(file.open_operations(environment())), now(twin.open_operations(environment())), "seed {seed}");
    assert_eq!(now(file.holds(environment())), now(twin.holds(environment())), "seed {seed}");
    assert_eq!(now(file.freeze(environment())), now(twin.freeze(environment())), "seed {seed}");
    assert_eq!(now(file.runs(environment(), 9)), now(twin.runs(environment(), 9)), "seed {seed}");
    assert_eq!(now(file.names()), now(twin.names()), "seed {seed}");
    for standing in [None, Some(Standing::Open), Some(Standing::Held), Some(Standing::Settled)] {
        let filter = Filter { standing, ..Filter::default() };
        assert_eq!(now(file.operations(filter.clone(), 500)), now(twin.operations(filter, 500)), "seed {seed} {standing:?}");
    }
    for operation in made.iter().filter(|operation| operation.source != Source::Convergent) {
        let Source::OneShot { key, .. } = &operation.source else { continue };
        assert_eq!(now(file.keyed(environment(), key.clone())), now(twin.keyed(environment(), key.clone())), "seed {seed}");
    }
}

/// C7: the ledger, played again from its beginning, is the journal.
fn played(seed: u64, sample: &Sample, directory: &Path, file: &impl Store) {
    let (mut replay, mut told) = (Replay::default(), Told::default());
    for (index, bytes) in (0..).zip(now(file.entries(0, 1000)).expect("read")) {
        let entry = parse_entry(&bytes).unwrap_or_else(|error| panic!("seed {seed}: entry {index}: {error}"));
        told.take(index, &entry);
        assert_eq!(replay.take(entry), Ok(()), "seed {seed}: entry {index}");
    }
    let looked = Looked::open(directory).expect("opens").expect("there");
    assert_eq!(looked.disagreement(&replay, &told), Ok(None), "seed {seed}");
    // And what whoever only has the store is told.
    let mut agreement = Agreement::with(&replay, &told);
    now(file.operations(Filter::default(), 1000))
        .expect("read")
        .iter()
        .for_each(|history| assert_eq!(agreement.operation(history), Ok(())));
    now(file.runs(sample.environment(), 1000)).expect("read").iter().for_each(|run| assert_eq!(agreement.run(run), Ok(())));
    let (holds, freeze) = (now(file.holds(sample.environment())).expect("read"), now(file.freeze(sample.environment())).expect("read"));
    assert_eq!(agreement.ended().and_then(|()| agreement.in_force(&holds, freeze.as_slice())), Ok(()), "seed {seed}");
}

#[test]
fn thousands_of_random_batches_are_answered_alike() {
    let mut words: BTreeMap<String, u32> = BTreeMap::new();
    for seed in 0..25 {
        let (_above, directory) = place();
        let (mut file, mut twin, mut draw) = (open(&directory), MemoryStore::new(), Draw::new(seed));
        for round in 0..20 {
            // A group at once: the file sees them in this order, whatever it puts into one transaction.
            let batches: Vec<Batch> = (0..1 + draw.rng.below(24)).map(|_| draw.batch()).collect();
            let waiting: Vec<_> = batches.iter().map(|batch| file.commit(batch.clone())).collect();
            for (batch, answer) in batches.into_iter().zip(waiting) {
                let (answer, expected) = (timeless(now(answer)), timeless(twin.commit_now(batch.clone())));
                assert_eq!(answer, expected, "seed {seed}, round {round}: {batch:?}");
                *words.entry(word(&answer)).or_default() += 1;
            }
            if draw.rng.one_in(6) {
                drop(file);
                (file, twin) = (open(&directory), twin.crash());
            }
        }
        compare(seed, &draw.sample, &draw.made, &file, &twin);
        played(seed, &draw.sample, &directory, &file);
    }
    let total: u32 = words.values().sum();
    assert!(total > 5000, "{total} batches are too few");
    // Every answer that such batches can get was got, so that agreement means something.
    for wanted in [
        "Written",
        "Repeated",
        "Record",
        "GuestTaken",
        "GuestHeld",
        "AlreadyHeld",
        "NotHeld",
        "Frozen",
        "NotFrozen",
        "KeyReused",
        "RunUnknown",
        "RunExists",
        "RunEnded",
        "Name",
        "NameInUse",
        "EnvironmentUnrecorded",
    ] {
        assert!(words.get(wanted).is_some_and(|count| *count >= 10), "{wanted} was hardly met: {words:?}");
    }
}
