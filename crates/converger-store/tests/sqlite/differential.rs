//! Both stores get the same seeded batches, legal and illegal, and must give the same answers and contain the same data.

use std::collections::BTreeMap;
use std::path::Path;

use converger_core::apply::{
    EnvironmentBinding, EnvironmentRename, Freeze, Hold, Operation, OperationEnd, OperationSource, Resolution, RunId, RunStart,
};
use converger_core::evidence::{LedgerReplay, parse_entry};
use converger_core::guest::EnvironmentName;
use converger_core::testing::Rng;
use converger_store::conformance::{OperationSample, block_on};
use converger_store::{
    Batch, CommitAck, JournalCheck, LedgerIndex, MemoryStore, OperationFilter, OperationStatus, Store, StoreError, StoreReader, StoreView,
    StoreWrite, find_journal_mismatch,
};

use super::{open_store, state_directory_path};

/// Draws batches from a seed. Few guests, keys and runs, so that batches conflict.
struct BatchGenerator {
    rng: Rng,
    sample: OperationSample,
    next: u64,
    operations: Vec<Operation>,
}

impl BatchGenerator {
    fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), sample: OperationSample::new(seed), next: 0, operations: Vec::new() }
    }

    fn run(&mut self) -> RunStart {
        let id = RunId::new(&format!("run-{}", self.rng.below(3))).expect("an id");
        RunStart { id, ..self.sample.run() }
    }

    fn operation(&mut self) -> Operation {
        if self.rng.one_in(12) && !self.operations.is_empty() {
            return self.operations[self.rng.index(self.operations.len())].clone();
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
        self.operations.push(operation.clone());
        operation
    }

    /// An operation that is probably still in flight.
    fn recent_operation(&mut self) -> Operation {
        let recent = self.operations.len().saturating_sub(12);
        if self.operations.is_empty() {
            self.operation()
        } else {
            self.operations[recent + self.rng.index(self.operations.len() - recent)].clone()
        }
    }

    fn write(&mut self) -> Batch {
        let (environment, vmid) = (self.sample.environment(), self.sample.vmid(self.rng.below(6)));
        let write = match self.rng.below(42) {
            0 => StoreWrite::Hold(Hold { environment, vmid, by: "ann".into(), reason: "why".into(), at_ms: self.next }),
            1..4 => StoreWrite::Release { environment, vmid, by: "bob".into(), at_ms: self.next },
            4 => StoreWrite::Freeze(Freeze { environment, by: "ann".into(), reason: "why".into(), at_ms: self.next }),
            5..9 => StoreWrite::Thaw { environment, by: "bob".into(), at_ms: self.next },
            9..12 => return OperationSample::start_write_of(self.run()),
            12 if self.rng.one_in(4) => StoreWrite::RunEnded { id: self.run().id, end: OperationEnd::Done, at_ms: self.next },
            12..24 => self.intent(),
            24..26 => self.naming(),
            _ => self.record(),
        };
        write.into()
    }

    /// A binding to one of two clusters, a rename, or more often its reversal.
    fn naming(&mut self) -> StoreWrite {
        let (environment, other_environment) = (self.sample.environment(), EnvironmentName::new("lab-2").expect("a name"));
        let of = if self.rng.one_in(3) { &other_environment } else { &environment };
        let cluster = OperationSample::binding(if self.rng.one_in(2) { &other_environment } else { &environment }).cluster;
        let rename = |from: &EnvironmentName, to: &EnvironmentName| {
            let (from, to) = (from.clone(), to.clone());
            StoreWrite::Rename(EnvironmentRename { from, to, by: "ann".into(), reason: "why".into(), at_ms: 3 })
        };
        match self.rng.below(8) {
            0 => StoreWrite::Bind(EnvironmentBinding { environment: of.clone(), cluster, by: "ann".into(), at_ms: 2 }),
            1 => rename(&environment, &other_environment),
            _ => rename(&other_environment, &environment),
        }
    }

    fn intent(&mut self) -> StoreWrite {
        let operation = self.operation();
        self.sample.intent_record(&operation).into()
    }

    fn record(&mut self) -> StoreWrite {
        let operation = self.recent_operation();
        let record = match self.rng.below(5) {
            0 => self.sample.task_record(&operation),
            2 => self.sample.sending_record(&operation),
            1 => self.sample.resolution_record(&operation, *self.rng.pick(&Resolution::ALL).expect("one")),
            _ => {
                let end = *self.rng.pick(&OperationEnd::ALL).expect("one");
                self.sample.end_record(&operation, end)
            }
        };
        record.into()
    }

    fn batch(&mut self) -> Batch {
        let length = if self.rng.with_chance(60) { 1 } else { 1 + self.rng.below(4) };
        (0..length).fold(Batch::default(), |batch, _| batch.with(self.write()))
    }
}

/// The transaction number depends on which other batches were waiting, so it is not compared.
fn without_transaction(answer: Result<CommitAck, StoreError>) -> Result<CommitAck, StoreError> {
    answer.map(|receipt| match receipt {
        CommitAck::Written { .. } => CommitAck::Written { transaction: 0 },
        repeated => repeated,
    })
}

fn answer_word(answer: &Result<CommitAck, StoreError>) -> String {
    match answer {
        Ok(CommitAck::Written { .. }) => "Written".into(),
        Ok(CommitAck::Repeated { .. }) => "Repeated".into(),
        Err(StoreError::Refused(refused)) => {
            let text = format!("{refused:?}");
            text.split(['(', ' ', '{']).next().unwrap_or("").to_owned()
        }
        Err(error) => format!("{error:?}"),
    }
}

fn compare_stores(seed: u64, sample: &OperationSample, operations: &[Operation], file: &impl StoreReader, twin: &impl StoreReader) {
    let environment = || sample.environment();
    assert_eq!(block_on(file.entries(0, 1000)), block_on(twin.entries(0, 1000)), "seed {seed}");
    assert_eq!(block_on(file.heads()), block_on(twin.heads()), "seed {seed}");
    assert_eq!(block_on(file.open_operations(environment())), block_on(twin.open_operations(environment())), "seed {seed}");
    assert_eq!(block_on(file.holds(environment())), block_on(twin.holds(environment())), "seed {seed}");
    assert_eq!(block_on(file.freeze(environment())), block_on(twin.freeze(environment())), "seed {seed}");
    assert_eq!(block_on(file.runs(environment(), 9)), block_on(twin.runs(environment(), 9)), "seed {seed}");
    assert_eq!(block_on(file.names()), block_on(twin.names()), "seed {seed}");
    assert_eq!(block_on(file.conditions(environment())), block_on(twin.conditions(environment())), "seed {seed}");
    assert_eq!(block_on(file.journal_overview()), block_on(twin.journal_overview()), "seed {seed}");
    assert_eq!(block_on(file.digests()), block_on(twin.digests()), "seed {seed}");
    for status in [None, Some(OperationStatus::Open), Some(OperationStatus::Held), Some(OperationStatus::Settled)] {
        let filter = OperationFilter { status, ..OperationFilter::default() };
        assert_eq!(block_on(file.operations(filter.clone(), 500)), block_on(twin.operations(filter, 500)), "seed {seed} {status:?}");
    }
    for operation in operations.iter().filter(|operation| operation.source != OperationSource::Convergent) {
        let OperationSource::OneShot { key, .. } = &operation.source else { continue };
        assert_eq!(
            block_on(file.operation_of_key(environment(), key.clone())),
            block_on(twin.operation_of_key(environment(), key.clone())),
            "seed {seed}"
        );
    }
}

/// C7: replaying the ledger from its beginning gives the journal.
fn check_replay(seed: u64, sample: &OperationSample, directory: &Path, (file, twin): (&impl StoreReader, &impl StoreReader)) {
    let (mut replay, mut ledger_index) = (LedgerReplay::default(), LedgerIndex::default());
    for (index, bytes) in (0..).zip(block_on(file.entries(0, 1000)).expect("read")) {
        let entry = parse_entry(&bytes).unwrap_or_else(|error| panic!("seed {seed}: entry {index}: {error}"));
        ledger_index.add_entry(index, &entry);
        assert_eq!(replay.apply_entry(entry), Ok(()), "seed {seed}: entry {index}");
    }
    let view = StoreView::open(directory).expect("opens").expect("there");
    assert_eq!(block_on(find_journal_mismatch(&view, &replay, &ledger_index)), Ok(None), "seed {seed}");
    assert_eq!(block_on(find_journal_mismatch(twin, &replay, &ledger_index)), Ok(None), "seed {seed}");
    // The same check, as `JournalCheck` performs it on the rows of the store.
    let mut agreement = JournalCheck::new(&replay, &ledger_index);
    block_on(file.operations(OperationFilter::default(), 1000))
        .expect("read")
        .iter()
        .for_each(|history| assert_eq!(agreement.check_operation(history), Ok(())));
    block_on(file.runs(sample.environment(), 1000)).expect("read").iter().for_each(|run| assert_eq!(agreement.check_run(run), Ok(())));
    let (holds, freeze) =
        (block_on(file.holds(sample.environment())).expect("read"), block_on(file.freeze(sample.environment())).expect("read"));
    assert_eq!(agreement.check_complete().and_then(|()| agreement.check_active_holds(&holds, freeze.as_slice())), Ok(()), "seed {seed}");
}

#[test]
fn both_stores_answer_random_batches_alike() {
    let mut answer_counts: BTreeMap<String, u32> = BTreeMap::new();
    for seed in 0..25 {
        let (_above, directory) = state_directory_path();
        let (mut file, mut memory_store, mut draw) = (open_store(&directory), MemoryStore::new(), BatchGenerator::new(seed));
        for round in 0..20 {
            // A group is queued at once: the file sees the batches in this order, however it groups them.
            let batches: Vec<Batch> = (0..1 + draw.rng.below(24)).map(|_| draw.batch()).collect();
            let waiting: Vec<_> = batches.iter().map(|batch| file.commit(batch.clone())).collect();
            for (batch, answer) in batches.into_iter().zip(waiting) {
                let (answer, expected) =
                    (without_transaction(block_on(answer)), without_transaction(memory_store.commit_now(batch.clone())));
                assert_eq!(answer, expected, "seed {seed}, round {round}: {batch:?}");
                *answer_counts.entry(answer_word(&answer)).or_default() += 1;
            }
            if draw.rng.one_in(6) {
                drop(file);
                (file, memory_store) = (open_store(&directory), memory_store.crash());
            }
        }
        compare_stores(seed, &draw.sample, &draw.operations, &file, &memory_store);
        check_replay(seed, &draw.sample, &directory, (&file, &memory_store));
    }
    let total: u32 = answer_counts.values().sum();
    assert!(total > 5000, "{total} batches are too few");
    // Every answer that such batches can get must occur, so that agreement means something.
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
        assert!(answer_counts.get(wanted).is_some_and(|count| *count >= 10), "{wanted} was hardly met: {answer_counts:?}");
    }
}
