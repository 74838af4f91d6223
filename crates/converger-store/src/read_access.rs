//! All reads of a store, written once over any tables, so that every store of this crate answers them alike.
//!
//! Must not contain rules about what may be written (see `tables`) or access tables directly (each store does).

use std::future::Future;

use converger_core::apply::{EnvironmentNames, Freeze, Hold, IdempotencyKey, OperationHistory, OperationId, RunId, TaskId};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_ledger::{LogHash, Tile};

use crate::query::{
    GUEST_OPERATIONS_MAX, JournalOverview, LIST_MAX, LedgerHeads, LedgerRows, OperationFilter, RunHistory, StoreConditions,
};
use crate::tables::{ReadTables, current, find_task_owners, of_today};
use crate::{StoreError, StoreReader};

/// Runs one read on the tables of a store. The read sees one state of them.
pub(crate) trait ReadAccess: Send + Sync {
    /// Why the tables cannot be read.
    type Fault;
    /// The tables, within one transaction.
    type Tables<'t>: ReadTables<Error = Self::Fault>;

    /// Runs a read.
    fn run_read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self::Tables<'_>) -> Result<T, Self::Fault> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send;
}

impl<S: ReadAccess> StoreReader for S {
    fn operation(&self, id: OperationId) -> impl Future<Output = Result<Option<OperationHistory>, StoreError>> + Send {
        self.run_read(move |tables| tables.operation(&id))
    }

    fn open_operations(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<OperationHistory>, StoreError>> + Send {
        self.run_read(move |tables| tables.open_operations(&current(tables, &environment)?))
    }

    fn operations(&self, filter: OperationFilter, limit: u32) -> impl Future<Output = Result<Vec<OperationHistory>, StoreError>> + Send {
        self.run_read(move |tables| tables.operations(&of_today(tables, filter)?, limit.min(LIST_MAX)))
    }

    fn guest_operations(
        &self,
        environment: EnvironmentName,
        guests: Vec<Vmid>,
    ) -> impl Future<Output = Result<Vec<OperationHistory>, StoreError>> + Send {
        self.run_read(move |tables| {
            let environment = current(tables, &environment)?;
            let mut histories = Vec::new();
            for vmid in guests {
                let filter = OperationFilter { environment: Some(environment.clone()), vmid: Some(vmid), ..OperationFilter::default() };
                histories.extend(tables.operations(&filter, GUEST_OPERATIONS_MAX)?);
            }
            Ok(histories)
        })
    }

    fn operations_of_tasks(
        &self,
        environment: EnvironmentName,
        tasks: Vec<TaskId>,
    ) -> impl Future<Output = Result<Vec<(TaskId, OperationId)>, StoreError>> + Send {
        self.run_read(move |tables| find_task_owners(tables, &environment, tasks))
    }

    fn operation_of_key(
        &self,
        environment: EnvironmentName,
        key: IdempotencyKey,
    ) -> impl Future<Output = Result<Option<OperationHistory>, StoreError>> + Send {
        self.run_read(move |tables| match tables.request_of_key(&current(tables, &environment)?, &key)? {
            Some((id, _)) => tables.operation(&id),
            None => Ok(None),
        })
    }

    fn run(&self, id: RunId) -> impl Future<Output = Result<Option<RunHistory>, StoreError>> + Send {
        self.run_read(move |tables| tables.run(&id))
    }

    fn runs(&self, environment: EnvironmentName, limit: u32) -> impl Future<Output = Result<Vec<RunHistory>, StoreError>> + Send {
        self.run_read(move |tables| tables.runs(&current(tables, &environment)?, limit.min(LIST_MAX)))
    }

    fn conditions(&self, environment: EnvironmentName) -> impl Future<Output = Result<StoreConditions, StoreError>> + Send {
        self.run_read(move |tables| {
            let environment = &current(tables, &environment)?;
            Ok(StoreConditions {
                later_epoch: Some(tables.epoch()?).filter(|epoch| *epoch > 1),
                freeze: tables.freeze(environment)?,
                holds: tables.holds(environment)?,
                unsettled: tables.unsettled_operations(environment)?,
                names: tables.names()?,
                writes: Vec::new(),
            })
        })
    }

    fn holds(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<Hold>, StoreError>> + Send {
        self.run_read(move |tables| tables.holds(&current(tables, &environment)?))
    }

    fn freeze(&self, environment: EnvironmentName) -> impl Future<Output = Result<Option<Freeze>, StoreError>> + Send {
        self.run_read(move |tables| tables.freeze(&current(tables, &environment)?))
    }

    fn names(&self) -> impl Future<Output = Result<EnvironmentNames, StoreError>> + Send {
        self.run_read(|tables| tables.names())
    }

    fn journal_overview(&self) -> impl Future<Output = Result<JournalOverview, StoreError>> + Send {
        self.run_read(|tables| {
            let (runs, operations) = tables.start_order()?;
            let (holds, freezes) = tables.active_holds_and_freezes()?;
            Ok(JournalOverview {
                runs,
                operations,
                holds,
                freezes,
                names: tables.names()?,
                hold_history: tables.hold_history()?,
                idempotency_keys: tables.idempotency_rows()?,
                epoch: tables.epoch()?,
            })
        })
    }

    fn blob(&self, digest: Digest) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send {
        self.run_read(move |tables| tables.blob(&digest))
    }

    fn digests(&self) -> impl Future<Output = Result<Vec<Digest>, StoreError>> + Send {
        self.run_read(|tables| tables.digests())
    }

    fn heads(&self) -> impl Future<Output = Result<LedgerHeads, StoreError>> + Send {
        self.run_read(|tables| tables.heads())
    }

    fn epoch(&self) -> impl Future<Output = Result<u64, StoreError>> + Send {
        self.run_read(|tables| tables.epoch())
    }

    fn entries(&self, from: u64, limit: u32) -> impl Future<Output = Result<Vec<Vec<u8>>, StoreError>> + Send {
        self.run_read(move |tables| tables.entries(from, limit.min(LIST_MAX)))
    }

    fn hashes(&self, tile: Tile) -> impl Future<Output = Result<Option<Vec<LogHash>>, StoreError>> + Send {
        self.run_read(move |tables| tables.hashes(tile))
    }

    fn full_tile(&self, tile: Tile) -> impl Future<Output = Result<Option<Vec<LogHash>>, StoreError>> + Send {
        self.run_read(move |tables| tables.full_tile(tile))
    }

    fn ledger_rows(&self) -> impl Future<Output = Result<LedgerRows, StoreError>> + Send {
        self.run_read(|tables| tables.ledger_rows())
    }
}
