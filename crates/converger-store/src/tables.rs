//! What may be written: one judge over any tables, so that no store has rules of its own.
//!
//! [`take`] walks through a batch and asks before each write. It stops at the first write that may not be, and leaves it
//! to its caller to undo what the batch has written so far.
//!
//! What never enters: files, threads, SQL.

use std::collections::BTreeSet;

use converger_core::apply::{
    EnvironmentBinding, EnvironmentNames, EnvironmentRename, Freeze, History, Hold, IdempotencyKey, Illegal, NameConflict, Operation,
    OperationId, Progress, Record, Run, RunId, Source, TaskId, binding_conflict, is_remark, is_storable,
};
use converger_core::artifact::{Digest, INTEGER_MAX};
use converger_core::evidence::{Entry, Inputs, parse_entry, write_fitting};
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use converger_ledger::{Hash, Tile};

use crate::error::Refused;
use crate::query::{Filter, Heads, RunHistory};
use crate::write::{Batch, Write};

/// What is asked before a write, and by whoever reads.
///
/// Environments are asked for by the name that they have now ([`current`] finds it); reads of the past include what ran under former names.
pub(crate) trait Read {
    /// What goes wrong with these tables.
    type Error;

    fn progress(&self, id: &OperationId) -> Result<Option<Progress>, Self::Error>;
    /// The environment of an operation, by the name that it has now.
    fn environment(&self, id: &OperationId) -> Result<Option<EnvironmentName>, Self::Error>;
    /// The operation that is under way or held on a guest.
    fn occupant(&self, environment: &EnvironmentName, vmid: Vmid) -> Result<Option<OperationId>, Self::Error>;
    /// The operation of an environment that a task carries out.
    fn tasked(&self, environment: &EnvironmentName, task: &TaskId) -> Result<Option<OperationId>, Self::Error>;
    fn keyed(&self, environment: &EnvironmentName, key: &IdempotencyKey) -> Result<Option<(OperationId, Digest)>, Self::Error>;
    fn run(&self, id: &RunId) -> Result<Option<RunHistory>, Self::Error>;
    fn hold(&self, environment: &EnvironmentName, vmid: Vmid) -> Result<Option<Hold>, Self::Error>;
    fn freeze(&self, environment: &EnvironmentName) -> Result<Option<Freeze>, Self::Error>;
    /// The binding of a name.
    fn binding(&self, environment: &EnvironmentName) -> Result<Option<EnvironmentBinding>, Self::Error>;
    /// The binding of a cluster.
    fn bound_to(&self, cluster: &ClusterIdentity) -> Result<Option<EnvironmentBinding>, Self::Error>;
    /// The name that an environment has now, where this is a former one.
    fn renamed_to(&self, environment: &EnvironmentName) -> Result<Option<EnvironmentName>, Self::Error>;
    /// Whether an environment has runs, or holds or a freeze in force.
    fn has_state(&self, environment: &EnvironmentName) -> Result<bool, Self::Error>;
    /// All bindings and former names.
    fn names(&self) -> Result<EnvironmentNames, Self::Error>;

    fn operation(&self, id: &OperationId) -> Result<Option<History>, Self::Error>;
    fn open_operations(&self, environment: &EnvironmentName) -> Result<Vec<History>, Self::Error>;
    fn operations(&self, filter: &Filter, limit: u32) -> Result<Vec<History>, Self::Error>;
    fn runs(&self, environment: &EnvironmentName, limit: u32) -> Result<Vec<RunHistory>, Self::Error>;
    fn holds(&self, environment: &EnvironmentName) -> Result<Vec<Hold>, Self::Error>;
    fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Self::Error>;
    fn heads(&self) -> Result<Heads, Self::Error>;
    /// How long the ledger is, with what this transaction has written to it.
    fn length(&self) -> Result<u64, Self::Error>;
    /// Entries of the ledger from this place on, counted from 0.
    fn entries(&self, from: u64, limit: u32) -> Result<Vec<Vec<u8>>, Self::Error>;
    /// The hashes of a tile; none where the log is not so long.
    fn hashes(&self, tile: Tile) -> Result<Option<Vec<Hash>>, Self::Error>;
}

/// What is written once nothing stands against it. A journal record is given with how far its operation then is.
pub(crate) trait Put: Read {
    fn put_record(&mut self, record: Record, after: Progress) -> Result<(), Self::Error>;
    fn put_blob(&mut self, digest: Digest, body: &[u8]) -> Result<(), Self::Error>;
    fn put_run(&mut self, run: Run) -> Result<(), Self::Error>;
    fn put_run_end(&mut self, id: &RunId, end: converger_core::apply::End, at_ms: u64) -> Result<(), Self::Error>;
    fn put_hold(&mut self, hold: Hold) -> Result<(), Self::Error>;
    fn put_release(&mut self, environment: &EnvironmentName, vmid: Vmid, by: &str, at_ms: u64) -> Result<(), Self::Error>;
    fn put_freeze(&mut self, freeze: Freeze) -> Result<(), Self::Error>;
    fn put_thaw(&mut self, environment: &EnvironmentName, by: &str, at_ms: u64) -> Result<(), Self::Error>;
    fn put_binding(&mut self, binding: EnvironmentBinding) -> Result<(), Self::Error>;
    fn put_rename(&mut self, rename: &EnvironmentRename) -> Result<(), Self::Error>;
    /// Whether anybody will read the ledger.
    fn keeps_ledger(&self) -> bool {
        true
    }
    /// What is kept under this digest is kept no longer.
    fn put_pruned(&mut self, digest: &Digest) -> Result<(), Self::Error>;
    /// One entry more at the end of the ledger.
    fn put_entry(&mut self, entry: Vec<u8>) -> Result<(), Self::Error>;
}

/// The name that an environment has now: this one, unless it is a former one. Operations in flight keep the name that they began under, and
/// what holds for them is kept under the new one.
pub(crate) fn current<T: Read>(tables: &T, environment: &EnvironmentName) -> Result<EnvironmentName, T::Error> {
    Ok(tables.renamed_to(environment)?.unwrap_or_else(|| environment.clone()))
}

/// The same filter, with the name that its environment has now.
pub(crate) fn of_today<T: Read>(tables: &T, filter: Filter) -> Result<Filter, T::Error> {
    let environment = filter.environment.as_ref().map(|environment| current(tables, environment)).transpose()?;
    Ok(Filter { environment, ..filter })
}

/// Those of these tasks that an environment has, each with its operation.
pub(crate) fn owners<T: Read>(
    tables: &T,
    environment: &EnvironmentName,
    tasks: Vec<TaskId>,
) -> Result<Vec<(TaskId, OperationId)>, T::Error> {
    let environment = &current(tables, environment)?;
    let owned = |task: TaskId| tables.tasked(environment, &task).map(|by| by.map(|by| (task, by))).transpose();
    tasks.into_iter().filter_map(owned).collect()
}

/// Why a batch was not written to its end.
pub(crate) enum Stop<E> {
    /// It may not be.
    Refused(Refused),
    /// It was written before, as this operation.
    Repeated(OperationId),
    /// The tables failed.
    Failed(E),
}

impl<E> From<Refused> for Stop<E> {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

type Taken<E> = Result<(), Stop<E>>;

/// Writes a batch, as far as it may be written.
pub(crate) fn take<T: Put>(tables: &mut T, batch: Batch) -> Taken<T::Error> {
    if batch.writes().is_empty() {
        return Err(Refused::Empty.into());
    }
    if batch.writes().len() > Batch::WRITES_MAX || batch.weight() > Batch::BYTES_MAX {
        return Err(Refused::TooLarge.into());
    }
    batch.into_writes().into_iter().try_for_each(|write| take_one(tables, write))
}

/// A write, and the one entry that evidences it (C5).
fn take_one<T: Put>(tables: &mut T, write: Write) -> Taken<T::Error> {
    if is_recorded(tables, &write)? {
        return Ok(());
    }
    // Whether it fits is asked before anything is written, as everything is.
    let entry = if tables.keeps_ledger() { write.entry() } else { None };
    let entry = entry.map(|entry| fitting(&entry)).transpose()?;
    put_one(tables, write)?;
    entry.map_or(Ok(()), |entry| tables.put_entry(entry).map_err(Stop::Failed))
}

/// Whether this very binding is there already. Two processes that use a name for the first time both write it.
fn is_recorded<T: Put>(tables: &T, write: &Write) -> Result<bool, Stop<T::Error>> {
    let Write::Bind(binding) = write else { return Ok(false) };
    let recorded = tables.binding(&binding.environment).map_err(Stop::Failed)?;
    Ok(recorded.is_some_and(|recorded| recorded.cluster == binding.cluster))
}

fn fitting(entry: &Entry) -> Result<Vec<u8>, Refused> {
    write_fitting(entry).ok().flatten().ok_or(Refused::EntryTooLong { kind: entry.kind() })
}

fn put_one<T: Put>(tables: &mut T, write: Write) -> Taken<T::Error> {
    match write {
        Write::Record(Record::Intent { operation, at_ms }) => take_intent(tables, operation, at_ms),
        Write::Record(record) => take_record(tables, record),
        Write::Blob { digest, body } => take_blob(tables, digest, &body),
        Write::RunStarted { run, inputs } => take_run(tables, run, &inputs),
        Write::Decision(entry) => may_stand_alone(tables, &entry),
        Write::RunEnded { id, end, at_ms } => {
            running(tables, &id)?;
            storable(&[], at_ms)?;
            tables.put_run_end(&id, end, at_ms).map_err(Stop::Failed)
        }
        Write::Hold(hold) => take_hold(tables, hold),
        Write::Bind(binding) => take_binding(tables, binding),
        Write::Rename(rename) => take_rename(tables, &rename),
        Write::Release { environment, vmid, by, at_ms } => {
            storable(&[&by], at_ms)?;
            is_current(tables, &environment)?;
            let held = tables.hold(&environment, vmid).map_err(Stop::Failed)?;
            held.ok_or(Refused::NotHeld(vmid))?;
            tables.put_release(&environment, vmid, &by, at_ms).map_err(Stop::Failed)
        }
        Write::Freeze(freeze) => take_freeze(tables, freeze),
        Write::Thaw { environment, by, at_ms } => {
            storable(&[&by], at_ms)?;
            is_current(tables, &environment)?;
            let frozen = tables.freeze(&environment).map_err(Stop::Failed)?;
            frozen.ok_or_else(|| Refused::NotFrozen(environment.clone()))?;
            tables.put_thaw(&environment, &by, at_ms).map_err(Stop::Failed)
        }
        Write::Prune { digests, seen, by, before_ms, at_ms } => {
            storable(&[&by], at_ms.max(before_ms))?;
            take_prune(tables, &digests, seen)
        }
    }
}

/// One name for each cluster and one cluster for each name, decided here, where no other process can come between.
fn take_binding<T: Put>(tables: &mut T, binding: EnvironmentBinding) -> Taken<T::Error> {
    storable(&[&binding.by], binding.at_ms)?;
    let EnvironmentBinding { environment, cluster, .. } = &binding;
    let renamed_to = tables.renamed_to(environment).map_err(Stop::Failed)?;
    let of_name = tables.binding(environment).map_err(Stop::Failed)?;
    let of_cluster = tables.bound_to(cluster).map_err(Stop::Failed)?;
    if let Some(conflict) = binding_conflict(environment, cluster, renamed_to, of_name, of_cluster) {
        return Err(Refused::Name(conflict).into());
    }
    tables.put_binding(binding).map_err(Stop::Failed)
}

/// A new name is free, or is a former name of the same environment: a rename can be taken back.
fn take_rename<T: Put>(tables: &mut T, rename: &EnvironmentRename) -> Taken<T::Error> {
    let EnvironmentRename { from, to, by, reason, at_ms } = rename;
    storable(&[by, reason], *at_ms)?;
    is_current(tables, from)?;
    if !is_used(tables, from)? {
        return Err(Refused::EnvironmentUnrecorded(from.clone()).into());
    }
    let is_free = match tables.renamed_to(to).map_err(Stop::Failed)? {
        Some(now) => now == *from,
        None => !is_used(tables, to)?,
    };
    if !is_free {
        return Err(Refused::NameInUse(to.clone()).into());
    }
    tables.put_rename(rename).map_err(Stop::Failed)
}

/// Whether anything is recorded under a name.
fn is_used<T: Put>(tables: &T, environment: &EnvironmentName) -> Result<bool, Stop<T::Error>> {
    let is_bound = tables.binding(environment).map_err(Stop::Failed)?.is_some();
    Ok(is_bound || tables.has_state(environment).map_err(Stop::Failed)?)
}

/// Nothing new is said of an environment under a former name: it would bind nobody who uses the new one.
fn is_current<T: Put>(tables: &T, environment: &EnvironmentName) -> Taken<T::Error> {
    match tables.renamed_to(environment).map_err(Stop::Failed)? {
        None => Ok(()),
        Some(now) => Err(Refused::Name(NameConflict::Renamed { environment: environment.clone(), now }).into()),
    }
}

/// What is let go was found by walking through the ledger. A decision that came after that walk may rest on it: then nothing is let go.
fn take_prune<T: Put>(tables: &mut T, digests: &[Digest], seen: u64) -> Taken<T::Error> {
    if digests.is_empty() {
        return Err(Refused::Empty.into());
    }
    let now = tables.length().map_err(Stop::Failed)?;
    if now != seen {
        return Err(Refused::LedgerGrown { seen, now }.into());
    }
    for digest in digests {
        if tables.blob(digest).map_err(Stop::Failed)?.is_none() {
            return Err(Refused::NotKept(*digest).into());
        }
    }
    let each: BTreeSet<&Digest> = digests.iter().collect();
    each.into_iter().try_for_each(|digest| tables.put_pruned(digest).map_err(Stop::Failed))
}

/// An intent is what comes before sending, so that here everything is asked once more: a hold or a freeze that was
/// committed a moment ago stops it, whoever looked before that.
fn take_intent<T: Put>(tables: &mut T, operation: Box<Operation>, at_ms: u64) -> Taken<T::Error> {
    repeated(tables, &operation)?;
    let illegal = |illegal| Refused::Record { id: operation.id.clone(), illegal };
    if tables.progress(&operation.id).map_err(Stop::Failed)?.is_some() {
        return Err(illegal(Illegal::SecondIntent).into());
    }
    let run = running(tables, &operation.run)?;
    if run.environment != operation.environment || run.plan != operation.plan {
        return Err(Refused::OtherRun { id: operation.id }.into());
    }
    if tables.binding(&operation.environment).map_err(Stop::Failed)?.is_none() {
        is_current(tables, &operation.environment)?;
        return Err(Refused::EnvironmentUnbound(operation.environment).into());
    }
    free(tables, &operation)?;
    let record = Record::Intent { operation, at_ms };
    if !is_storable(&record) {
        return Err(Refused::Record { id: record.id().clone(), illegal: Illegal::NotStorable }.into());
    }
    tables.put_record(record, Progress::default()).map_err(Stop::Failed)
}

/// A key stands for one request, for ever.
fn repeated<T: Put>(tables: &T, operation: &Operation) -> Taken<T::Error> {
    let Source::OneShot { key, request } = &operation.source else { return Ok(()) };
    match tables.keyed(&operation.environment, key).map_err(Stop::Failed)? {
        None => Ok(()),
        Some((first, first_request)) if first_request == *request => Err(Stop::Repeated(first)),
        Some((first, _)) => Err(Refused::KeyReused { key: key.clone(), first }.into()),
    }
}

/// Nobody else has the guest, nobody holds it, and the environment is not frozen.
fn free<T: Put>(tables: &T, operation: &Operation) -> Taken<T::Error> {
    let (environment, vmid) = (&operation.environment, operation.guest.vmid);
    if let Some(by) = tables.occupant(environment, vmid).map_err(Stop::Failed)? {
        return Err(Refused::GuestTaken { vmid, by }.into());
    }
    if let Some(hold) = tables.hold(environment, vmid).map_err(Stop::Failed)? {
        return Err(Refused::GuestHeld(hold).into());
    }
    match tables.freeze(environment).map_err(Stop::Failed)? {
        Some(freeze) => Err(Refused::Frozen { environment: freeze.environment, reason: freeze.reason }.into()),
        None => Ok(()),
    }
}

/// What follows an intent is taken while a guest is held, an environment frozen and a run over: it says what happened.
fn take_record<T: Put>(tables: &mut T, record: Record) -> Taken<T::Error> {
    let progress = tables.progress(record.id()).map_err(Stop::Failed)?;
    let admitted = progress.ok_or(Illegal::NoIntent).and_then(|progress| progress.admits(&record).map(|()| progress));
    let progress = admitted.map_err(|illegal| Refused::Record { id: record.id().clone(), illegal })?;
    own_task(tables, &record)?;
    let after = progress.after(&record);
    tables.put_record(record, after).map_err(Stop::Failed)
}

/// A task carries out one operation.
fn own_task<T: Put>(tables: &T, record: &Record) -> Taken<T::Error> {
    let Record::Tasked { id, task, .. } = record else { return Ok(()) };
    let Some(environment) = tables.environment(id).map_err(Stop::Failed)? else { return Ok(()) };
    match tables.tasked(&environment, task).map_err(Stop::Failed)? {
        None => Ok(()),
        Some(by) => Err(Refused::TaskTaken { task: task.clone(), by }.into()),
    }
}

fn running<T: Put>(tables: &T, id: &RunId) -> Result<Run, Stop<T::Error>> {
    let found = tables.run(id).map_err(Stop::Failed)?;
    let found = found.ok_or_else(|| Refused::RunUnknown(id.clone()))?;
    match found.ended {
        None => Ok(found.run),
        Some(_) => Err(Refused::RunEnded(id.clone()).into()),
    }
}

fn take_blob<T: Put>(tables: &mut T, digest: Digest, body: &[u8]) -> Taken<T::Error> {
    let found = Digest::of_bytes(body);
    if found != digest {
        return Err(Refused::BlobDiffers { claimed: digest, found }.into());
    }
    tables.put_blob(digest, body).map_err(Stop::Failed)
}

/// What is written otherwise has its entry from there, and never a second one. A run decides only while it goes on.
fn may_stand_alone<T: Put>(tables: &T, entry: &Entry) -> Taken<T::Error> {
    match entry {
        Entry::PlanMade { run, .. } | Entry::Refused { run, .. } | Entry::Approved { run, .. } | Entry::Admitted { run, .. } => {
            running(tables, run)?;
        }
        Entry::Key { .. } => names_no_key(tables)?,
        Entry::Rekeyed { previous, verifier, .. } => names_last(tables, previous, verifier)?,
        Entry::Recovery { .. } | Entry::Resync { .. } => {}
        other => return Err(Refused::NotByItself { kind: other.kind() }.into()),
    }
    // It has no table that could refuse it: it must be read back as it is.
    let is_read_back = parse_entry(&fitting(entry)?).is_ok();
    if is_read_back { Ok(()) } else { Err(Refused::NotStorable.into()) }
}

/// A ledger names one key. Two who sign for the first time at once would name one each, and nobody could ever verify it again: who comes second
/// is told inside of the transaction, where nothing can come between.
///
/// All entries are looked through, which happens once in the life of a ledger and to whoever came second.
fn names_no_key<T: Put>(tables: &T) -> Taken<T::Error> {
    let mut next = 0;
    loop {
        let page = tables.entries(next, KEY_PAGE).map_err(Stop::Failed)?;
        if page.is_empty() {
            return Ok(());
        }
        if page.iter().any(|entry| key_named_in(entry).is_some()) {
            return Err(Refused::SecondKey.into());
        }
        next += page.len() as u64;
    }
}

/// A key is replaced by whoever knows which one is named last. Of two who do so at once one is refused.
fn names_last<T: Put>(tables: &T, previous: &str, new: &str) -> Taken<T::Error> {
    let (mut next, mut named) = (0, Vec::new());
    loop {
        let page = tables.entries(next, KEY_PAGE).map_err(Stop::Failed)?;
        if page.is_empty() {
            break;
        }
        named.extend(page.iter().filter_map(|entry| key_named_in(entry)));
        next += page.len() as u64;
    }
    let is_last = named.last().is_some_and(|last| **last == *previous) && named.iter().all(|own| **own != *new);
    if is_last { Ok(()) } else { Err(Refused::OtherKey.into()) }
}

/// So many entries are looked at before more are read.
const KEY_PAGE: u32 = 256;

/// The key that an entry names, if it is one of those that do. The kind of an entry stands behind its time, so that its first bytes tell; only what
/// looks like a key is read.
#[must_use]
pub fn key_named_in(entry: &[u8]) -> Option<Box<str>> {
    const KINDS: [&[u8]; 2] = [br#""kind":"key""#, br#""kind":"rekey""#];
    let beginning = entry.get(..64).unwrap_or(entry);
    let is_one = KINDS.iter().any(|kind| beginning.windows(kind.len()).any(|part| part == *kind));
    if !is_one {
        return None;
    }
    match parse_entry(entry).ok()? {
        Entry::Key { verifier, .. } | Entry::Rekeyed { verifier, .. } => Some(verifier),
        _ => None,
    }
}

fn take_run<T: Put>(tables: &mut T, run: Run, inputs: &Inputs) -> Taken<T::Error> {
    storable(&[&run.by, &inputs.program], run.at_ms)?;
    is_current(tables, &run.environment)?;
    if tables.run(&run.id).map_err(Stop::Failed)?.is_some() {
        return Err(Refused::RunExists(run.id).into());
    }
    tables.put_run(run).map_err(Stop::Failed)
}

fn take_hold<T: Put>(tables: &mut T, hold: Hold) -> Taken<T::Error> {
    storable(&[&hold.by, &hold.reason], hold.at_ms)?;
    is_current(tables, &hold.environment)?;
    if let Some(held) = tables.hold(&hold.environment, hold.vmid).map_err(Stop::Failed)? {
        return Err(Refused::AlreadyHeld(held).into());
    }
    tables.put_hold(hold).map_err(Stop::Failed)
}

fn take_freeze<T: Put>(tables: &mut T, freeze: Freeze) -> Taken<T::Error> {
    storable(&[&freeze.by, &freeze.reason], freeze.at_ms)?;
    is_current(tables, &freeze.environment)?;
    if let Some(frozen) = tables.freeze(&freeze.environment).map_err(Stop::Failed)? {
        return Err(Refused::Frozen { environment: frozen.environment, reason: frozen.reason }.into());
    }
    tables.put_freeze(freeze).map_err(Stop::Failed)
}

fn storable(remarks: &[&str], at_ms: u64) -> Result<(), Refused> {
    let fits = remarks.iter().all(|remark| is_remark(remark)) && at_ms <= INTEGER_MAX;
    if fits { Ok(()) } else { Err(Refused::NotStorable) }
}
