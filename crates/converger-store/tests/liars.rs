//! Stores that keep all rules but one: the conformance suite finds each of them, or it would prove nothing.

use std::future::{Future, ready};

use converger_core::apply::{EnvironmentNames, Freeze, History, Hold, IdempotencyKey, NameConflict, OperationId, RunId, TaskId};
use converger_core::artifact::Digest;
use converger_core::evidence::Entry;
use converger_core::guest::EnvironmentName;
use converger_store::conformance::{Stage, check, now};
use converger_store::{
    Batch, Filter, Hash, Head, Heads, LIST_MAX, MemoryStore, Receipt, Refused, RunHistory, Store, StoreError, Tile, Write,
};

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    None,
    ForgetsEverything,
    WritesHalves,
    OldestFirst,
    NoBound,
    NoFilter,
    NothingOpen,
    HeldIsOpen,
    RepeatedIsWritten,
    RefusedIsWritten,
    WritesTwice,
    HoldsNowhere,
    NeverFrozen,
    LosesTasks,
    LosesMarks,
    LosesBoots,
    BendsBlobs,
    TasksOfNobody,
    NoKeys,
    RunsOldestFirst,
    LosesEntries,
    BendsEntries,
    RefusedHasEntry,
    SaysLessIsThere,
    SaysLessIsDurable,
    BendsHashes,
    ForgetsNames,
    TakesAliases,
}

const LIES: [Lie; 27] = [
    Lie::ForgetsEverything,
    Lie::WritesHalves,
    Lie::OldestFirst,
    Lie::NoBound,
    Lie::NoFilter,
    Lie::NothingOpen,
    Lie::HeldIsOpen,
    Lie::RepeatedIsWritten,
    Lie::RefusedIsWritten,
    Lie::WritesTwice,
    Lie::HoldsNowhere,
    Lie::NeverFrozen,
    Lie::LosesTasks,
    Lie::LosesMarks,
    Lie::LosesBoots,
    Lie::BendsBlobs,
    Lie::TasksOfNobody,
    Lie::NoKeys,
    Lie::RunsOldestFirst,
    Lie::LosesEntries,
    Lie::BendsEntries,
    Lie::RefusedHasEntry,
    Lie::SaysLessIsThere,
    Lie::SaysLessIsDurable,
    Lie::BendsHashes,
    Lie::ForgetsNames,
    Lie::TakesAliases,
];

struct Liar(Lie, MemoryStore);

struct Lying(Lie);

impl Stage for Lying {
    type Store = Liar;

    fn fresh(&mut self) -> Liar {
        Liar(self.0, MemoryStore::new())
    }

    fn reopened(&mut self, store: Liar) -> Liar {
        Liar(self.0, if self.0 == Lie::ForgetsEverything { MemoryStore::new() } else { store.1.crash() })
    }
}

#[test]
fn every_lie_is_found() {
    assert_eq!(check(&mut Lying(Lie::None)), [], "whoever does not lie passes");
    for lie in LIES {
        assert!(!check(&mut Lying(lie)).is_empty(), "{lie:?} was not found");
    }
}

impl Liar {
    fn answer(&self, batch: Batch) -> Result<Receipt, StoreError> {
        let Self(lie, truth) = self;
        let half = Batch::new(batch.writes().iter().take(batch.writes().len() / 2).cloned().collect());
        match (lie, truth.commit_now(batch.clone())) {
            (Lie::WritesHalves, refused @ Err(StoreError::Refused(_))) => truth.commit_now(half).and(refused.clone()).or(refused),
            (Lie::RepeatedIsWritten, Ok(Receipt::Repeated { .. })) => Ok(Receipt::Written { transaction: 1 }),
            (Lie::RefusedIsWritten, Err(StoreError::Refused(_))) => Ok(Receipt::Written { transaction: 1 }),
            (Lie::RefusedHasEntry, refused @ Err(StoreError::Refused(_))) => {
                let entry = Write::decision(Entry::Resync { by: "liar".into(), reason: "refused".into(), size: 0, root: None, at_ms: 1 });
                truth.commit_now(entry.into()).and(refused)
            }
            (Lie::TakesAliases, Err(StoreError::Refused(Refused::Name(NameConflict::SecondName { .. })))) => {
                Ok(Receipt::Written { transaction: 1 })
            }
            // The batch is written a second time behind its caller's back.
            (Lie::WritesTwice, Ok(_)) => truth.commit_now(batch),
            (_, answer) => answer,
        }
    }

    fn without(&self, mut history: History) -> History {
        match self.0 {
            Lie::LosesTasks => history.task = None,
            Lie::LosesMarks => history.sending = None,
            Lie::LosesBoots => history.boot = None,
            _ => {}
        }
        history
    }
}

impl Store for Liar {
    fn commit(&self, batch: Batch) -> impl Future<Output = Result<Receipt, StoreError>> + Send {
        ready(self.answer(batch))
    }

    fn operation(&self, id: OperationId) -> impl Future<Output = Result<Option<History>, StoreError>> + Send {
        ready(now(self.1.operation(id)).map(|found| found.map(|history| self.without(history))))
    }

    fn open_operations(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<History>, StoreError>> + Send {
        let Self(lie, truth) = self;
        ready(match lie {
            Lie::NothingOpen => Ok(Vec::new()),
            Lie::HeldIsOpen => now(truth.operations(Filter { environment: Some(environment), ..Filter::default() }, LIST_MAX)).map(|all| {
                let occupying = all.into_iter().filter(|history| history.progress().occupies_guest());
                occupying.collect::<Vec<_>>().into_iter().rev().collect()
            }),
            _ => now(truth.open_operations(environment)),
        })
    }

    fn operations(&self, filter: Filter, limit: u32) -> impl Future<Output = Result<Vec<History>, StoreError>> + Send {
        let Self(lie, truth) = self;
        let filter = if *lie == Lie::NoFilter { Filter { before: filter.before, ..Filter::default() } } else { filter };
        let limit = if *lie == Lie::NoBound { LIST_MAX } else { limit };
        let mut list = now(truth.operations(filter, limit));
        if let (Lie::OldestFirst, Ok(list)) = (lie, &mut list) {
            list.reverse();
        }
        ready(list)
    }

    fn tasked(
        &self,
        environment: EnvironmentName,
        tasks: Vec<TaskId>,
    ) -> impl Future<Output = Result<Vec<(TaskId, OperationId)>, StoreError>> + Send {
        ready(if self.0 == Lie::TasksOfNobody { Ok(Vec::new()) } else { now(self.1.tasked(environment, tasks)) })
    }

    fn keyed(&self, environment: EnvironmentName, key: IdempotencyKey) -> impl Future<Output = Result<Option<History>, StoreError>> + Send {
        ready(if self.0 == Lie::NoKeys { Ok(None) } else { now(self.1.keyed(environment, key)) })
    }

    fn run(&self, id: RunId) -> impl Future<Output = Result<Option<RunHistory>, StoreError>> + Send {
        ready(now(self.1.run(id)))
    }

    fn runs(&self, environment: EnvironmentName, limit: u32) -> impl Future<Output = Result<Vec<RunHistory>, StoreError>> + Send {
        let mut runs = now(self.1.runs(environment, limit));
        if let (Lie::RunsOldestFirst, Ok(runs)) = (self.0, &mut runs) {
            runs.reverse();
        }
        ready(runs)
    }

    fn holds(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<Hold>, StoreError>> + Send {
        ready(if self.0 == Lie::HoldsNowhere { Ok(Vec::new()) } else { now(self.1.holds(environment)) })
    }

    fn freeze(&self, environment: EnvironmentName) -> impl Future<Output = Result<Option<Freeze>, StoreError>> + Send {
        ready(if self.0 == Lie::NeverFrozen { Ok(None) } else { now(self.1.freeze(environment)) })
    }

    fn names(&self) -> impl Future<Output = Result<EnvironmentNames, StoreError>> + Send {
        ready(if self.0 == Lie::ForgetsNames { Ok(EnvironmentNames::default()) } else { now(self.1.names()) })
    }

    fn blob(&self, digest: Digest) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send {
        let bend = |mut body: Vec<u8>| {
            if self.0 == Lie::BendsBlobs {
                body.push(b' ');
            }
            body
        };
        ready(now(self.1.blob(digest)).map(|found| found.map(bend)))
    }

    fn heads(&self) -> impl Future<Output = Result<Heads, StoreError>> + Send {
        let lied = |heads: Heads| match self.0 {
            Lie::SaysLessIsThere => Heads { all: Head::default(), ..heads },
            Lie::SaysLessIsDurable => Heads { durable: Head::default(), ..heads },
            _ => heads,
        };
        ready(now(self.1.heads()).map(lied))
    }

    fn entries(&self, from: u64, limit: u32) -> impl Future<Output = Result<Vec<Vec<u8>>, StoreError>> + Send {
        let mut entries = now(self.1.entries(from, limit));
        match (self.0, &mut entries) {
            (Lie::LosesEntries, Ok(entries)) if from == 0 => drop(entries.pop()),
            (Lie::BendsEntries, Ok(entries)) => entries.iter_mut().for_each(|entry| entry.push(b' ')),
            _ => {}
        }
        ready(entries)
    }

    fn hashes(&self, tile: Tile) -> impl Future<Output = Result<Option<Vec<Hash>>, StoreError>> + Send {
        let bend = |mut hashes: Vec<Hash>| {
            if self.0 == Lie::BendsHashes {
                hashes.reverse();
            }
            hashes
        };
        ready(now(self.1.hashes(tile)).map(|found| found.map(bend)))
    }
}
