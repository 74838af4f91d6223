//! Stores that break exactly one rule. The conformance suite must detect each of them; otherwise it would prove nothing.

use std::future::{Future, ready};

use converger_core::apply::{EnvironmentNames, Freeze, Hold, IdempotencyKey, NameConflict, OperationHistory, OperationId, RunId, TaskId};
use converger_core::artifact::Digest;
use converger_core::evidence::LedgerEntry;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_store::conformance::{StoreFixture, block_on, check_store};
use converger_store::{
    Batch, CommitAck, JournalOverview, LIST_MAX, LedgerHead, LedgerHeads, LedgerRows, LogHash, MemoryStore, OperationFilter, RunHistory,
    Store, StoreConditions, StoreError, StoreReader, StoreRefusal, StoreWrite, Tile,
};

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlantedStoreBug {
    None,
    ForgetsEverything,
    WritesPartialBatches,
    OldestFirst,
    IgnoresLimit,
    IgnoresFilter,
    HidesOpen,
    ListsHeldAsOpen,
    RepeatedIsWritten,
    RefusedIsWritten,
    WritesTwice,
    HidesHolds,
    HidesFreezes,
    LosesTasks,
    LosesMarks,
    LosesBoots,
    CorruptsBlobs,
    HidesTaskOwners,
    HidesKeys,
    RunsOldestFirst,
    LosesEntries,
    CorruptsEntries,
    RefusedHasEntry,
    UnderstatesSize,
    UnderstatesDurableSize,
    CorruptsHashes,
    ForgetsNames,
    TakesAliases,
    HidesUnsettled,
    MixesGuests,
    ForgetsReleases,
    HidesDigests,
    HidesFullTiles,
    CountsNoRows,
    ForgetsEpochs,
}

const PLANTED_BUGS: [PlantedStoreBug; 34] = [
    PlantedStoreBug::ForgetsEverything,
    PlantedStoreBug::WritesPartialBatches,
    PlantedStoreBug::OldestFirst,
    PlantedStoreBug::IgnoresLimit,
    PlantedStoreBug::IgnoresFilter,
    PlantedStoreBug::HidesOpen,
    PlantedStoreBug::ListsHeldAsOpen,
    PlantedStoreBug::RepeatedIsWritten,
    PlantedStoreBug::RefusedIsWritten,
    PlantedStoreBug::WritesTwice,
    PlantedStoreBug::HidesHolds,
    PlantedStoreBug::HidesFreezes,
    PlantedStoreBug::LosesTasks,
    PlantedStoreBug::LosesMarks,
    PlantedStoreBug::LosesBoots,
    PlantedStoreBug::CorruptsBlobs,
    PlantedStoreBug::HidesTaskOwners,
    PlantedStoreBug::HidesKeys,
    PlantedStoreBug::RunsOldestFirst,
    PlantedStoreBug::LosesEntries,
    PlantedStoreBug::CorruptsEntries,
    PlantedStoreBug::RefusedHasEntry,
    PlantedStoreBug::UnderstatesSize,
    PlantedStoreBug::UnderstatesDurableSize,
    PlantedStoreBug::CorruptsHashes,
    PlantedStoreBug::ForgetsNames,
    PlantedStoreBug::TakesAliases,
    PlantedStoreBug::HidesUnsettled,
    PlantedStoreBug::MixesGuests,
    PlantedStoreBug::ForgetsReleases,
    PlantedStoreBug::HidesDigests,
    PlantedStoreBug::HidesFullTiles,
    PlantedStoreBug::CountsNoRows,
    PlantedStoreBug::ForgetsEpochs,
];

struct BuggyStore(PlantedStoreBug, MemoryStore);

struct BuggyStoreFixture(PlantedStoreBug);

impl StoreFixture for BuggyStoreFixture {
    type Store = BuggyStore;

    fn new_store(&mut self) -> BuggyStore {
        BuggyStore(self.0, MemoryStore::new())
    }

    fn reopen_store(&mut self, store: BuggyStore) -> BuggyStore {
        BuggyStore(self.0, if self.0 == PlantedStoreBug::ForgetsEverything { MemoryStore::new() } else { store.1.crash() })
    }
}

#[test]
fn finds_every_planted_store_bug() {
    assert_eq!(check_store(&mut BuggyStoreFixture(PlantedStoreBug::None)), [], "a correct store passes");
    for lie in PLANTED_BUGS {
        assert!(!check_store(&mut BuggyStoreFixture(lie)).is_empty(), "{lie:?} was not found");
    }
}

impl BuggyStore {
    fn commit_with_bug(&self, batch: Batch) -> Result<CommitAck, StoreError> {
        let Self(lie, store) = self;
        let half = Batch::new(batch.writes().iter().take(batch.writes().len() / 2).cloned().collect());
        match (lie, store.commit_now(batch.clone())) {
            (PlantedStoreBug::WritesPartialBatches, refused @ Err(StoreError::Refused(_))) => {
                store.commit_now(half).and(refused.clone()).or(refused)
            }
            (PlantedStoreBug::RepeatedIsWritten, Ok(CommitAck::Repeated { .. })) => Ok(CommitAck::Written { transaction: 1 }),
            (PlantedStoreBug::RefusedIsWritten, Err(StoreError::Refused(_))) => Ok(CommitAck::Written { transaction: 1 }),
            (PlantedStoreBug::RefusedHasEntry, refused @ Err(StoreError::Refused(_))) => {
                let environment = EnvironmentName::new("lab").expect("a name");
                let entry = StoreWrite::decision(LedgerEntry::Recovery { environment, operations: Box::default(), at_ms: 1 });
                store.commit_now(entry.into()).and(refused)
            }
            (PlantedStoreBug::TakesAliases, Err(StoreError::Refused(StoreRefusal::Name(NameConflict::SecondName { .. })))) => {
                Ok(CommitAck::Written { transaction: 1 })
            }
            // The batch is written twice, without the caller's knowledge.
            (PlantedStoreBug::WritesTwice, Ok(_)) => store.commit_now(batch),
            (_, answer) => answer,
        }
    }

    fn strip_history(&self, mut history: OperationHistory) -> OperationHistory {
        match self.0 {
            PlantedStoreBug::LosesTasks => history.task = None,
            PlantedStoreBug::LosesMarks => history.sending = None,
            PlantedStoreBug::LosesBoots => history.boot = None,
            _ => {}
        }
        history
    }
}

impl Store for BuggyStore {
    fn commit(&self, batch: Batch) -> impl Future<Output = Result<CommitAck, StoreError>> + Send {
        ready(self.commit_with_bug(batch))
    }
}

impl StoreReader for BuggyStore {
    fn conditions(&self, environment: EnvironmentName) -> impl Future<Output = Result<StoreConditions, StoreError>> + Send {
        let mut conditions = block_on(self.1.conditions(environment));
        if let (PlantedStoreBug::HidesUnsettled, Ok(conditions)) = (self.0, &mut conditions) {
            conditions.unsettled.retain(|history| history.progress().is_open());
        }
        ready(conditions)
    }

    fn guest_operations(
        &self,
        environment: EnvironmentName,
        guests: Vec<Vmid>,
    ) -> impl Future<Output = Result<Vec<OperationHistory>, StoreError>> + Send {
        let mut found = block_on(self.1.guest_operations(environment, guests));
        if let (PlantedStoreBug::MixesGuests, Ok(found)) = (self.0, &mut found) {
            found.sort_by_key(|history| history.operation.guest.vmid);
        }
        ready(found)
    }

    fn journal_overview(&self) -> impl Future<Output = Result<JournalOverview, StoreError>> + Send {
        let mut overview = block_on(self.1.journal_overview());
        if let (PlantedStoreBug::ForgetsReleases, Ok(overview)) = (self.0, &mut overview) {
            overview.hold_history.holds.iter_mut().for_each(|(_, end)| *end = None);
        }
        ready(overview)
    }

    fn digests(&self) -> impl Future<Output = Result<Vec<Digest>, StoreError>> + Send {
        ready(if self.0 == PlantedStoreBug::HidesDigests { Ok(Vec::new()) } else { block_on(self.1.digests()) })
    }

    fn full_tile(&self, tile: Tile) -> impl Future<Output = Result<Option<Vec<LogHash>>, StoreError>> + Send {
        ready(if self.0 == PlantedStoreBug::HidesFullTiles { Ok(None) } else { block_on(self.1.full_tile(tile)) })
    }

    fn epoch(&self) -> impl Future<Output = Result<u64, StoreError>> + Send {
        ready(if self.0 == PlantedStoreBug::ForgetsEpochs { Ok(1) } else { block_on(self.1.epoch()) })
    }

    fn ledger_rows(&self) -> impl Future<Output = Result<LedgerRows, StoreError>> + Send {
        ready(if self.0 == PlantedStoreBug::CountsNoRows { Ok(LedgerRows::default()) } else { block_on(self.1.ledger_rows()) })
    }

    fn operation(&self, id: OperationId) -> impl Future<Output = Result<Option<OperationHistory>, StoreError>> + Send {
        ready(block_on(self.1.operation(id)).map(|found| found.map(|history| self.strip_history(history))))
    }

    fn open_operations(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<OperationHistory>, StoreError>> + Send {
        let Self(lie, store) = self;
        ready(match lie {
            PlantedStoreBug::HidesOpen => Ok(Vec::new()),
            PlantedStoreBug::ListsHeldAsOpen => block_on(
                store.operations(OperationFilter { environment: Some(environment), ..OperationFilter::default() }, LIST_MAX),
            )
            .map(|all| {
                let occupying = all.into_iter().filter(|history| history.progress().occupies_guest());
                occupying.collect::<Vec<_>>().into_iter().rev().collect()
            }),
            _ => block_on(store.open_operations(environment)),
        })
    }

    fn operations(&self, filter: OperationFilter, limit: u32) -> impl Future<Output = Result<Vec<OperationHistory>, StoreError>> + Send {
        let Self(lie, store) = self;
        let filter = if *lie == PlantedStoreBug::IgnoresFilter {
            OperationFilter { before: filter.before, ..OperationFilter::default() }
        } else {
            filter
        };
        let limit = if *lie == PlantedStoreBug::IgnoresLimit { LIST_MAX } else { limit };
        let mut list = block_on(store.operations(filter, limit));
        if let (PlantedStoreBug::OldestFirst, Ok(list)) = (lie, &mut list) {
            list.reverse();
        }
        ready(list)
    }

    fn operations_of_tasks(
        &self,
        environment: EnvironmentName,
        tasks: Vec<TaskId>,
    ) -> impl Future<Output = Result<Vec<(TaskId, OperationId)>, StoreError>> + Send {
        ready(if self.0 == PlantedStoreBug::HidesTaskOwners {
            Ok(Vec::new())
        } else {
            block_on(self.1.operations_of_tasks(environment, tasks))
        })
    }

    fn operation_of_key(
        &self,
        environment: EnvironmentName,
        key: IdempotencyKey,
    ) -> impl Future<Output = Result<Option<OperationHistory>, StoreError>> + Send {
        ready(if self.0 == PlantedStoreBug::HidesKeys { Ok(None) } else { block_on(self.1.operation_of_key(environment, key)) })
    }

    fn run(&self, id: RunId) -> impl Future<Output = Result<Option<RunHistory>, StoreError>> + Send {
        ready(block_on(self.1.run(id)))
    }

    fn runs(&self, environment: EnvironmentName, limit: u32) -> impl Future<Output = Result<Vec<RunHistory>, StoreError>> + Send {
        let mut runs = block_on(self.1.runs(environment, limit));
        if let (PlantedStoreBug::RunsOldestFirst, Ok(runs)) = (self.0, &mut runs) {
            runs.reverse();
        }
        ready(runs)
    }

    fn holds(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<Hold>, StoreError>> + Send {
        ready(if self.0 == PlantedStoreBug::HidesHolds { Ok(Vec::new()) } else { block_on(self.1.holds(environment)) })
    }

    fn freeze(&self, environment: EnvironmentName) -> impl Future<Output = Result<Option<Freeze>, StoreError>> + Send {
        ready(if self.0 == PlantedStoreBug::HidesFreezes { Ok(None) } else { block_on(self.1.freeze(environment)) })
    }

    fn names(&self) -> impl Future<Output = Result<EnvironmentNames, StoreError>> + Send {
        ready(if self.0 == PlantedStoreBug::ForgetsNames { Ok(EnvironmentNames::default()) } else { block_on(self.1.names()) })
    }

    fn blob(&self, digest: Digest) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send {
        let bend = |mut body: Vec<u8>| {
            if self.0 == PlantedStoreBug::CorruptsBlobs {
                body.push(b' ');
            }
            body
        };
        ready(block_on(self.1.blob(digest)).map(|found| found.map(bend)))
    }

    fn heads(&self) -> impl Future<Output = Result<LedgerHeads, StoreError>> + Send {
        let lied = |heads: LedgerHeads| match self.0 {
            PlantedStoreBug::UnderstatesSize => LedgerHeads { all: LedgerHead::default(), ..heads },
            PlantedStoreBug::UnderstatesDurableSize => LedgerHeads { durable: LedgerHead::default(), ..heads },
            _ => heads,
        };
        ready(block_on(self.1.heads()).map(lied))
    }

    fn entries(&self, from: u64, limit: u32) -> impl Future<Output = Result<Vec<Vec<u8>>, StoreError>> + Send {
        let mut entries = block_on(self.1.entries(from, limit));
        match (self.0, &mut entries) {
            (PlantedStoreBug::LosesEntries, Ok(entries)) if from == 0 => drop(entries.pop()),
            (PlantedStoreBug::CorruptsEntries, Ok(entries)) => entries.iter_mut().for_each(|entry| entry.push(b' ')),
            _ => {}
        }
        ready(entries)
    }

    fn hashes(&self, tile: Tile) -> impl Future<Output = Result<Option<Vec<LogHash>>, StoreError>> + Send {
        let bend = |mut hashes: Vec<LogHash>| {
            if self.0 == PlantedStoreBug::CorruptsHashes {
                hashes.reverse();
            }
            hashes
        };
        ready(block_on(self.1.hashes(tile)).map(|found| found.map(bend)))
    }
}
