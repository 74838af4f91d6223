//! Stores that keep all rules but one: the conformance suite finds each of them, or it would prove nothing.

use std::future::{Future, ready};

use converger_core::apply::{Freeze, History, Hold, IdempotencyKey, OperationId, RunId, TaskId};
use converger_core::artifact::Digest;
use converger_core::guest::EnvironmentName;
use converger_store::conformance::{Stage, check, now};
use converger_store::{Batch, Filter, LIST_MAX, MemoryStore, Receipt, RunHistory, Store, StoreError};

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
    BendsPlans,
    TasksOfNobody,
    NoKeys,
    RunsOldestFirst,
}

const LIES: [Lie; 19] = [
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
    Lie::BendsPlans,
    Lie::TasksOfNobody,
    Lie::NoKeys,
    Lie::RunsOldestFirst,
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

    fn plan(&self, digest: Digest) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send {
        let bend = |mut body: Vec<u8>| {
            if self.0 == Lie::BendsPlans {
                body.push(b' ');
            }
            body
        };
        ready(now(self.1.plan(digest)).map(|found| found.map(bend)))
    }
}
