//! The rules for what may be written, defined once over any tables, so that no store has rules of its own.
//!
//! [`apply_batch`] checks each write of a batch before it applies it. It stops at the first write that is not allowed; the caller undoes
//! what the batch has written so far.
//!
//! Must not depend on files, threads or SQL.

use std::collections::BTreeSet;

use converger_core::apply::{
    EnvironmentBinding, EnvironmentNames, EnvironmentRename, Freeze, Hold, IdempotencyKey, IllegalRecord, JournalProgress, JournalRecord,
    NameConflict, Operation, OperationHistory, OperationId, OperationSource, RunId, RunStart, TaskId, binding_conflict, is_storable,
    is_valid_remark,
};
use converger_core::artifact::{Digest, INTEGER_MAX};
use converger_core::evidence::{DecisionInputs, LedgerEntry, parse_entry, write_bounded_entry};
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use converger_ledger::{LogHash, Tile};

use crate::error::StoreRefusal;
use crate::query::{HoldHistory, IdempotencyRow, LedgerHeads, LedgerRows, OperationFilter, RunHistory};
use crate::write::{Batch, StoreWrite};

/// Reads that checks and readers need.
///
/// Callers pass the current name of an environment ([`current`] finds it). Queries for past operations and runs include those under
/// former names.
pub(crate) trait ReadTables {
    /// The error type of these tables.
    type Error;

    fn progress(&self, id: &OperationId) -> Result<Option<JournalProgress>, Self::Error>;
    /// The environment of an operation, under its current name.
    fn operation_environment(&self, id: &OperationId) -> Result<Option<EnvironmentName>, Self::Error>;
    /// The operation that is in flight or held on a guest.
    fn occupant(&self, environment: &EnvironmentName, vmid: Vmid) -> Result<Option<OperationId>, Self::Error>;
    /// The operation of an environment that a task belongs to.
    fn operation_of_task(&self, environment: &EnvironmentName, task: &TaskId) -> Result<Option<OperationId>, Self::Error>;
    /// The first operation of a key, with the request that the key belongs to.
    fn request_of_key(&self, environment: &EnvironmentName, key: &IdempotencyKey) -> Result<Option<(OperationId, Digest)>, Self::Error>;
    /// The operation that began this change of the request of a key.
    fn step_of_key(&self, environment: &EnvironmentName, key: &IdempotencyKey, change: &str) -> Result<Option<OperationId>, Self::Error>;
    fn run(&self, id: &RunId) -> Result<Option<RunHistory>, Self::Error>;
    fn hold(&self, environment: &EnvironmentName, vmid: Vmid) -> Result<Option<Hold>, Self::Error>;
    fn freeze(&self, environment: &EnvironmentName) -> Result<Option<Freeze>, Self::Error>;
    /// The binding of a name.
    fn binding(&self, environment: &EnvironmentName) -> Result<Option<EnvironmentBinding>, Self::Error>;
    /// The binding of a cluster.
    fn bound_to(&self, cluster: &ClusterIdentity) -> Result<Option<EnvironmentBinding>, Self::Error>;
    /// The current name of an environment, if this is a former name.
    fn renamed_to(&self, environment: &EnvironmentName) -> Result<Option<EnvironmentName>, Self::Error>;
    /// Whether an environment has runs, active holds or an active freeze.
    fn find_state(&self, environment: &EnvironmentName) -> Result<bool, Self::Error>;
    /// All bindings and former names.
    fn names(&self) -> Result<EnvironmentNames, Self::Error>;

    fn operation(&self, id: &OperationId) -> Result<Option<OperationHistory>, Self::Error>;
    fn open_operations(&self, environment: &EnvironmentName) -> Result<Vec<OperationHistory>, Self::Error>;
    fn operations(&self, filter: &OperationFilter, limit: u32) -> Result<Vec<OperationHistory>, Self::Error>;
    fn runs(&self, environment: &EnvironmentName, limit: u32) -> Result<Vec<RunHistory>, Self::Error>;
    fn holds(&self, environment: &EnvironmentName) -> Result<Vec<Hold>, Self::Error>;
    fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Self::Error>;
    fn heads(&self) -> Result<LedgerHeads, Self::Error>;
    /// The current epoch.
    fn epoch(&self) -> Result<u64, Self::Error>;
    /// The size of the ledger, including the entries that this transaction has written.
    fn ledger_length(&self) -> Result<u64, Self::Error>;
    /// Ledger entries starting at index `from` (zero-based).
    fn entries(&self, from: u64, limit: u32) -> Result<Vec<Vec<u8>>, Self::Error>;
    /// The hashes of a tile; `None` if the log does not reach that far.
    fn hashes(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, Self::Error>;

    /// Operations that occupy their guests, open or held; oldest first.
    fn unsettled_operations(&self, environment: &EnvironmentName) -> Result<Vec<OperationHistory>, Self::Error>;
    /// The runs and operations in the order in which they started.
    fn start_order(&self) -> Result<(Vec<RunId>, Vec<OperationId>), Self::Error>;
    /// Holds and freezes in force, of all environments.
    fn active_holds_and_freezes(&self) -> Result<(Vec<Hold>, Vec<Freeze>), Self::Error>;
    /// All holds and freezes ever set, in order.
    fn hold_history(&self) -> Result<HoldHistory, Self::Error>;
    /// Every idempotency key, by environment and key.
    fn idempotency_rows(&self) -> Result<Vec<IdempotencyRow>, Self::Error>;
    /// All digests that have bytes, in their order.
    fn digests(&self) -> Result<Vec<Digest>, Self::Error>;
    /// The stored hashes of a full tile; none if they are not stored.
    fn full_tile(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, Self::Error>;
    /// How many rows the ledger has.
    fn ledger_rows(&self) -> Result<LedgerRows, Self::Error>;
}

/// Writes that were checked before. A journal record comes with the progress of its operation after the record.
pub(crate) trait WriteTables: ReadTables {
    fn put_record(&mut self, record: JournalRecord, after: JournalProgress) -> Result<(), Self::Error>;
    fn put_blob(&mut self, digest: Digest, body: &[u8]) -> Result<(), Self::Error>;
    fn put_run(&mut self, run: RunStart) -> Result<(), Self::Error>;
    fn put_run_end(&mut self, id: &RunId, end: converger_core::apply::OperationEnd, at_ms: u64) -> Result<(), Self::Error>;
    fn put_hold(&mut self, hold: Hold) -> Result<(), Self::Error>;
    fn put_release(&mut self, environment: &EnvironmentName, vmid: Vmid, by: &str, at_ms: u64) -> Result<(), Self::Error>;
    fn put_freeze(&mut self, freeze: Freeze) -> Result<(), Self::Error>;
    fn put_thaw(&mut self, environment: &EnvironmentName, by: &str, at_ms: u64) -> Result<(), Self::Error>;
    fn put_binding(&mut self, binding: EnvironmentBinding) -> Result<(), Self::Error>;
    fn put_rename(&mut self, rename: &EnvironmentRename) -> Result<(), Self::Error>;
    /// Begins a later epoch.
    fn put_epoch(&mut self, epoch: u64) -> Result<(), Self::Error>;
    /// Whether these tables keep a ledger.
    fn keeps_ledger(&self) -> bool {
        true
    }
    /// Deletes the bytes that are stored under this digest.
    fn remove_blob(&mut self, digest: &Digest) -> Result<(), Self::Error>;
    /// Appends an entry to the ledger.
    fn put_entry(&mut self, entry: Vec<u8>) -> Result<(), Self::Error>;
}

/// The current name of an environment: this name, or the one that replaced it. Operations in flight keep the name that they started
/// under; holds and freezes that apply to them are stored under the new one.
pub(crate) fn current<T: ReadTables>(tables: &T, environment: &EnvironmentName) -> Result<EnvironmentName, T::Error> {
    Ok(tables.renamed_to(environment)?.unwrap_or_else(|| environment.clone()))
}

/// The same filter, with the current name of its environment.
pub(crate) fn of_today<T: ReadTables>(tables: &T, filter: OperationFilter) -> Result<OperationFilter, T::Error> {
    let environment = filter.environment.as_ref().map(|environment| current(tables, environment)).transpose()?;
    Ok(OperationFilter { environment, ..filter })
}

/// The tasks among `tasks` that belong to operations of an environment, each with its operation.
pub(crate) fn find_task_owners<T: ReadTables>(
    tables: &T,
    environment: &EnvironmentName,
    tasks: Vec<TaskId>,
) -> Result<Vec<(TaskId, OperationId)>, T::Error> {
    let environment = &current(tables, environment)?;
    let owned = |task: TaskId| tables.operation_of_task(environment, &task).map(|by| by.map(|by| (task, by))).transpose();
    tasks.into_iter().filter_map(owned).collect()
}

/// Why a batch was not written completely.
pub(crate) enum ApplyBatchError<E> {
    /// A rule forbids it.
    Refused(StoreRefusal),
    /// It was written before, as this operation.
    Repeated(OperationId),
    /// The tables failed.
    Failed(E),
}

impl<E> From<StoreRefusal> for ApplyBatchError<E> {
    fn from(refused: StoreRefusal) -> Self {
        Self::Refused(refused)
    }
}

type ApplyResult<E> = Result<(), ApplyBatchError<E>>;

/// Writes a batch up to the first write that is not allowed.
pub(crate) fn apply_batch<T: WriteTables>(tables: &mut T, batch: Batch) -> ApplyResult<T::Error> {
    if batch.writes().is_empty() {
        return Err(StoreRefusal::Empty.into());
    }
    if batch.writes().len() > Batch::WRITES_MAX || batch.total_body_bytes() > Batch::BYTES_MAX {
        return Err(StoreRefusal::TooLarge.into());
    }
    batch.into_writes().into_iter().try_for_each(|write| apply_write(tables, write))
}

/// Applies a write and appends its ledger entry (C5).
fn apply_write<T: WriteTables>(tables: &mut T, write: StoreWrite) -> ApplyResult<T::Error> {
    if detect_repeated_binding(tables, &write)? {
        return Ok(());
    }
    // Encode the entry first: an entry that is too long must be refused before anything is written.
    let entry = if tables.keeps_ledger() { write.entry() } else { None };
    let entry = entry.map(|entry| encode_entry(&entry)).transpose()?;
    apply_to_tables(tables, write)?;
    entry.map_or(Ok(()), |entry| tables.put_entry(entry).map_err(ApplyBatchError::Failed))
}

/// Whether the same binding is already recorded. Two processes that use a name for the first time both write it.
fn detect_repeated_binding<T: WriteTables>(tables: &T, write: &StoreWrite) -> Result<bool, ApplyBatchError<T::Error>> {
    let StoreWrite::Bind(binding) = write else { return Ok(false) };
    let recorded = tables.binding(&binding.environment).map_err(ApplyBatchError::Failed)?;
    Ok(recorded.is_some_and(|recorded| recorded.cluster == binding.cluster))
}

fn encode_entry(entry: &LedgerEntry) -> Result<Vec<u8>, StoreRefusal> {
    write_bounded_entry(entry).ok().flatten().ok_or(StoreRefusal::EntryTooLong { kind: entry.kind() })
}

fn apply_to_tables<T: WriteTables>(tables: &mut T, write: StoreWrite) -> ApplyResult<T::Error> {
    match write {
        StoreWrite::Record(JournalRecord::Intent { operation, at_ms }) => apply_intent(tables, operation, at_ms),
        StoreWrite::Record(record) => apply_record(tables, record),
        StoreWrite::Blob { digest, body } => apply_blob(tables, digest, &body),
        StoreWrite::RunStarted { run, inputs } => apply_run(tables, run, &inputs),
        StoreWrite::Decision(entry) => {
            check_standalone_decision(tables, &entry)?;
            begin_epoch(tables, &entry)
        }
        StoreWrite::RunEnded { id, end, at_ms } => {
            require_running(tables, &id)?;
            check_storable(&[], at_ms)?;
            tables.put_run_end(&id, end, at_ms).map_err(ApplyBatchError::Failed)
        }
        StoreWrite::Hold(hold) => apply_hold(tables, hold),
        StoreWrite::Bind(binding) => take_binding(tables, binding),
        StoreWrite::Rename(rename) => take_rename(tables, &rename),
        StoreWrite::Release { environment, vmid, by, at_ms } => {
            check_storable(&[&by], at_ms)?;
            check_current(tables, &environment)?;
            let held = tables.hold(&environment, vmid).map_err(ApplyBatchError::Failed)?;
            held.ok_or(StoreRefusal::NotHeld(vmid))?;
            tables.put_release(&environment, vmid, &by, at_ms).map_err(ApplyBatchError::Failed)
        }
        StoreWrite::Freeze(freeze) => apply_freeze(tables, freeze),
        StoreWrite::Thaw { environment, by, at_ms } => {
            check_storable(&[&by], at_ms)?;
            check_current(tables, &environment)?;
            let frozen = tables.freeze(&environment).map_err(ApplyBatchError::Failed)?;
            frozen.ok_or_else(|| StoreRefusal::NotFrozen(environment.clone()))?;
            tables.put_thaw(&environment, &by, at_ms).map_err(ApplyBatchError::Failed)
        }
        StoreWrite::Prune { digests, seen, by, before_ms, at_ms } => {
            check_storable(&[&by], at_ms.max(before_ms))?;
            apply_prune(tables, &digests, seen)
        }
    }
}

/// Checks that each cluster has one name and each name one cluster. It is checked inside the transaction, so no other process can
/// interfere.
fn take_binding<T: WriteTables>(tables: &mut T, binding: EnvironmentBinding) -> ApplyResult<T::Error> {
    check_storable(&[&binding.by], binding.at_ms)?;
    let EnvironmentBinding { environment, cluster, .. } = &binding;
    let renamed_to = tables.renamed_to(environment).map_err(ApplyBatchError::Failed)?;
    let of_name = tables.binding(environment).map_err(ApplyBatchError::Failed)?;
    let of_cluster = tables.bound_to(cluster).map_err(ApplyBatchError::Failed)?;
    if let Some(conflict) = binding_conflict(environment, cluster, renamed_to, of_name, of_cluster) {
        return Err(StoreRefusal::Name(conflict).into());
    }
    tables.put_binding(binding).map_err(ApplyBatchError::Failed)
}

/// The new name must be free, or a former name of the same environment: a rename can be reverted.
fn take_rename<T: WriteTables>(tables: &mut T, rename: &EnvironmentRename) -> ApplyResult<T::Error> {
    let EnvironmentRename { from, to, by, reason, at_ms } = rename;
    check_storable(&[by, reason], *at_ms)?;
    check_current(tables, from)?;
    if !detect_name_use(tables, from)? {
        return Err(StoreRefusal::EnvironmentUnrecorded(from.clone()).into());
    }
    let is_free = match tables.renamed_to(to).map_err(ApplyBatchError::Failed)? {
        Some(now) => now == *from,
        None => !detect_name_use(tables, to)?,
    };
    if !is_free {
        return Err(StoreRefusal::NameInUse(to.clone()).into());
    }
    tables.put_rename(rename).map_err(ApplyBatchError::Failed)
}

/// Whether anything is recorded under a name.
fn detect_name_use<T: WriteTables>(tables: &T, environment: &EnvironmentName) -> Result<bool, ApplyBatchError<T::Error>> {
    let is_bound = tables.binding(environment).map_err(ApplyBatchError::Failed)?.is_some();
    Ok(is_bound || tables.find_state(environment).map_err(ApplyBatchError::Failed)?)
}

/// Refuses new holds, freezes and runs under a former name: they would not apply to processes that use the new name.
fn check_current<T: WriteTables>(tables: &T, environment: &EnvironmentName) -> ApplyResult<T::Error> {
    match tables.renamed_to(environment).map_err(ApplyBatchError::Failed)? {
        None => Ok(()),
        Some(now) => Err(StoreRefusal::Name(NameConflict::Renamed { environment: environment.clone(), now }).into()),
    }
}

/// The digests were found by searching the ledger. If an entry was added since, it may refer to one of them, and nothing is pruned.
fn apply_prune<T: WriteTables>(tables: &mut T, digests: &[Digest], seen: u64) -> ApplyResult<T::Error> {
    if digests.is_empty() {
        return Err(StoreRefusal::Empty.into());
    }
    let now = tables.ledger_length().map_err(ApplyBatchError::Failed)?;
    if now != seen {
        return Err(StoreRefusal::LedgerGrown { seen, now }.into());
    }
    for digest in digests {
        if tables.blob(digest).map_err(ApplyBatchError::Failed)?.is_none() {
            return Err(StoreRefusal::NotKept(*digest).into());
        }
    }
    let each: BTreeSet<&Digest> = digests.iter().collect();
    each.into_iter().try_for_each(|digest| tables.remove_blob(digest).map_err(ApplyBatchError::Failed))
}

/// Checks everything again, because an intent is the last write before sending: a hold or freeze that was committed a moment ago must
/// stop it, whatever was read before.
fn apply_intent<T: WriteTables>(tables: &mut T, operation: Box<Operation>, at_ms: u64) -> ApplyResult<T::Error> {
    check_not_repeated(tables, &operation)?;
    let illegal = |illegal| StoreRefusal::Record { id: operation.id.clone(), illegal };
    if tables.progress(&operation.id).map_err(ApplyBatchError::Failed)?.is_some() {
        return Err(illegal(IllegalRecord::SecondIntent).into());
    }
    let run = require_running(tables, &operation.run)?;
    if run.environment != operation.environment || run.plan != operation.plan {
        return Err(StoreRefusal::OtherRun { id: operation.id }.into());
    }
    if tables.binding(&operation.environment).map_err(ApplyBatchError::Failed)?.is_none() {
        check_current(tables, &operation.environment)?;
        return Err(StoreRefusal::EnvironmentUnbound(operation.environment).into());
    }
    check_guest_free(tables, &operation)?;
    let record = JournalRecord::Intent { operation, at_ms };
    if !is_storable(&record) {
        return Err(StoreRefusal::Record { id: record.id().clone(), illegal: IllegalRecord::NotStorable }.into());
    }
    tables.put_record(record, JournalProgress::default()).map_err(ApplyBatchError::Failed)
}

/// An idempotency key belongs to one request forever, and each change of the request begins at most once.
fn check_not_repeated<T: WriteTables>(tables: &T, operation: &Operation) -> ApplyResult<T::Error> {
    let OperationSource::OneShot { key, request } = &operation.source else { return Ok(()) };
    match tables.request_of_key(&operation.environment, key).map_err(ApplyBatchError::Failed)? {
        None => return Ok(()),
        Some((first, first_request)) if first_request != *request => return Err(StoreRefusal::KeyReused { key: key.clone(), first }.into()),
        Some(_) => {}
    }
    let change = operation.step.change.word();
    match tables.step_of_key(&operation.environment, key, change).map_err(ApplyBatchError::Failed)? {
        Some(first) => Err(ApplyBatchError::Repeated(first)),
        None => Ok(()),
    }
}

/// Checks that no other operation occupies a guest of this one, that none of them is held and that the environment is not frozen.
fn check_guest_free<T: WriteTables>(tables: &T, operation: &Operation) -> ApplyResult<T::Error> {
    let environment = &operation.environment;
    for vmid in operation.occupied_guests() {
        if let Some(by) = tables.occupant(environment, vmid).map_err(ApplyBatchError::Failed)? {
            return Err(StoreRefusal::GuestTaken { vmid, by }.into());
        }
        if let Some(hold) = tables.hold(environment, vmid).map_err(ApplyBatchError::Failed)? {
            return Err(StoreRefusal::GuestHeld(hold).into());
        }
    }
    match tables.freeze(environment).map_err(ApplyBatchError::Failed)? {
        Some(freeze) => Err(StoreRefusal::Frozen { environment: freeze.environment, reason: freeze.reason }.into()),
        None => Ok(()),
    }
}

/// Records after the intent are accepted even if the guest is held, the environment is frozen or the run has ended: they report what
/// happened.
fn apply_record<T: WriteTables>(tables: &mut T, record: JournalRecord) -> ApplyResult<T::Error> {
    let progress = tables.progress(record.id()).map_err(ApplyBatchError::Failed)?;
    let admitted = progress.ok_or(IllegalRecord::NoIntent).and_then(|progress| progress.check_record(&record).map(|()| progress));
    let progress = admitted.map_err(|illegal| StoreRefusal::Record { id: record.id().clone(), illegal })?;
    check_task_unowned(tables, &record)?;
    let after = progress.advance(&record);
    tables.put_record(record, after).map_err(ApplyBatchError::Failed)
}

/// Checks that the task belongs to no operation yet.
fn check_task_unowned<T: WriteTables>(tables: &T, record: &JournalRecord) -> ApplyResult<T::Error> {
    let JournalRecord::TaskStarted { id, task, .. } = record else { return Ok(()) };
    let Some(environment) = tables.operation_environment(id).map_err(ApplyBatchError::Failed)? else { return Ok(()) };
    match tables.operation_of_task(&environment, task).map_err(ApplyBatchError::Failed)? {
        None => Ok(()),
        Some(by) => Err(StoreRefusal::TaskTaken { task: task.clone(), by }.into()),
    }
}

fn require_running<T: WriteTables>(tables: &T, id: &RunId) -> Result<RunStart, ApplyBatchError<T::Error>> {
    let found = tables.run(id).map_err(ApplyBatchError::Failed)?;
    let found = found.ok_or_else(|| StoreRefusal::RunUnknown(id.clone()))?;
    match found.ended {
        None => Ok(found.run),
        Some(_) => Err(StoreRefusal::RunEnded(id.clone()).into()),
    }
}

fn apply_blob<T: WriteTables>(tables: &mut T, digest: Digest, body: &[u8]) -> ApplyResult<T::Error> {
    let found = Digest::of_bytes(body);
    if found != digest {
        return Err(StoreRefusal::BlobDiffers { claimed: digest, found }.into());
    }
    tables.put_blob(digest, body).map_err(ApplyBatchError::Failed)
}

/// Refuses entries that other writes produce, which would duplicate them, and decisions of a run that has ended.
fn check_standalone_decision<T: WriteTables>(tables: &T, entry: &LedgerEntry) -> ApplyResult<T::Error> {
    match entry {
        LedgerEntry::PlanMade { run, .. }
        | LedgerEntry::Refused { run, .. }
        | LedgerEntry::Approved { run, .. }
        | LedgerEntry::Admitted { run, .. } => {
            require_running(tables, run)?;
        }
        LedgerEntry::Key { .. } => check_no_key(tables)?,
        LedgerEntry::Rekeyed { previous, verifier, .. } => names_last(tables, previous, verifier)?,
        LedgerEntry::Recovery { .. } => {}
        LedgerEntry::Resync { epoch, .. } | LedgerEntry::Restored { epoch, .. } => {
            let now = tables.epoch().map_err(ApplyBatchError::Failed)?;
            // Only a restore may skip epochs: those of the store that it replaced.
            if *epoch <= now || matches!(entry, LedgerEntry::Resync { .. }) && *epoch != now + 1 {
                return Err(StoreRefusal::EpochOutOfOrder { now, epoch: *epoch }.into());
            }
        }
        other => return Err(StoreRefusal::NotStandalone { kind: other.kind() }.into()),
    }
    // No table constrains these entries, so an entry that cannot be parsed again is refused here.
    let is_read_back = parse_entry(&encode_entry(entry)?).is_ok();
    if is_read_back { Ok(()) } else { Err(StoreRefusal::NotStorable.into()) }
}

/// Raises the epoch together with the entry that says why.
fn begin_epoch<T: WriteTables>(tables: &mut T, entry: &LedgerEntry) -> ApplyResult<T::Error> {
    match entry {
        LedgerEntry::Resync { epoch, .. } | LedgerEntry::Restored { epoch, .. } => {
            tables.put_epoch(*epoch).map_err(ApplyBatchError::Failed)
        }
        _ => Ok(()),
    }
}

/// A ledger names one key. If two processes signed for the first time at once and each named its key, nobody could verify the ledger
/// again. The check runs inside the transaction, where no other process can interfere.
///
/// It reads all entries, which happens once in the life of a ledger, and for a process that lost the race.
fn check_no_key<T: WriteTables>(tables: &T) -> ApplyResult<T::Error> {
    let mut next = 0;
    loop {
        let page = tables.entries(next, KEY_PAGE_ENTRIES).map_err(ApplyBatchError::Failed)?;
        if page.is_empty() {
            return Ok(());
        }
        if page.iter().any(|entry| key_named_in(entry).is_some()) {
            return Err(StoreRefusal::SecondKey.into());
        }
        next += page.len() as u64;
    }
}

/// A key is replaced only by a process that knows the last one. If two replace it at once, one is refused.
fn names_last<T: WriteTables>(tables: &T, previous: &str, new: &str) -> ApplyResult<T::Error> {
    let (mut next, mut named) = (0, Vec::new());
    loop {
        let page = tables.entries(next, KEY_PAGE_ENTRIES).map_err(ApplyBatchError::Failed)?;
        if page.is_empty() {
            break;
        }
        named.extend(page.iter().filter_map(|entry| key_named_in(entry)));
        next += page.len() as u64;
    }
    let is_last = named.last().is_some_and(|last| **last == *previous) && named.iter().all(|own| **own != *new);
    if is_last { Ok(()) } else { Err(StoreRefusal::OtherKey.into()) }
}

/// How many entries are read at once.
const KEY_PAGE_ENTRIES: u32 = 256;

/// The key that an entry names, if it names one. The kind of an entry follows its time, so the first bytes suffice to skip other entries
/// without parsing them.
#[must_use]
pub fn key_named_in(entry: &[u8]) -> Option<Box<str>> {
    const KINDS: [&[u8]; 2] = [br#""kind":"key""#, br#""kind":"rekey""#];
    let beginning = entry.get(..64).unwrap_or(entry);
    let is_one = KINDS.iter().any(|kind| beginning.windows(kind.len()).any(|part| part == *kind));
    if !is_one {
        return None;
    }
    match parse_entry(entry).ok()? {
        LedgerEntry::Key { verifier, .. } | LedgerEntry::Rekeyed { verifier, .. } => Some(verifier),
        _ => None,
    }
}

fn apply_run<T: WriteTables>(tables: &mut T, run: RunStart, inputs: &DecisionInputs) -> ApplyResult<T::Error> {
    check_storable(&[&run.by, &inputs.program], run.at_ms)?;
    check_current(tables, &run.environment)?;
    if tables.run(&run.id).map_err(ApplyBatchError::Failed)?.is_some() {
        return Err(StoreRefusal::RunExists(run.id).into());
    }
    tables.put_run(run).map_err(ApplyBatchError::Failed)
}

fn apply_hold<T: WriteTables>(tables: &mut T, hold: Hold) -> ApplyResult<T::Error> {
    check_storable(&[&hold.by, &hold.reason], hold.at_ms)?;
    check_current(tables, &hold.environment)?;
    if let Some(held) = tables.hold(&hold.environment, hold.vmid).map_err(ApplyBatchError::Failed)? {
        return Err(StoreRefusal::AlreadyHeld(held).into());
    }
    tables.put_hold(hold).map_err(ApplyBatchError::Failed)
}

fn apply_freeze<T: WriteTables>(tables: &mut T, freeze: Freeze) -> ApplyResult<T::Error> {
    check_storable(&[&freeze.by, &freeze.reason], freeze.at_ms)?;
    check_current(tables, &freeze.environment)?;
    if let Some(frozen) = tables.freeze(&freeze.environment).map_err(ApplyBatchError::Failed)? {
        return Err(StoreRefusal::Frozen { environment: frozen.environment, reason: frozen.reason }.into());
    }
    tables.put_freeze(freeze).map_err(ApplyBatchError::Failed)
}

fn check_storable(remarks: &[&str], at_ms: u64) -> Result<(), StoreRefusal> {
    let fits = remarks.iter().all(|remark| is_valid_remark(remark)) && at_ms <= INTEGER_MAX;
    if fits { Ok(()) } else { Err(StoreRefusal::NotStorable) }
}
