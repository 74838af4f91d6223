//! Replays a ledger from its beginning: the result is what the journal must contain if both are correct (C7).
//!
//! Entries are applied in order, under the rules of the journal itself. The first entry that could not have been written shows where
//! something was removed, inserted or moved, even by somebody with the signing key.
//!
//! Must not read entries, or compare with a journal.

use std::collections::BTreeMap;
use std::fmt;

use super::observation_retention::ObservationUsage;
use super::{FIRST_EPOCH, LedgerEntry};
use crate::apply::{
    EnvironmentBinding, EnvironmentNames, EnvironmentRename, Freeze, Hold, IllegalRecord, JournalRecord, NameConflict, OperationEnd,
    OperationHistory, OperationId, RunId, RunStart,
};
use crate::artifact::Digest;
use crate::guest::{EnvironmentName, Vmid};

/// The state that entries add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerReplay {
    pub(super) operations: BTreeMap<OperationId, OperationHistory>,
    pub(super) runs: BTreeMap<RunId, RunWithEnd>,
    /// The operation that occupies a guest because it is open or held (G12).
    occupants: BTreeMap<(EnvironmentName, Vmid), OperationId>,
    /// The observation of each run.
    pub(super) observations: BTreeMap<RunId, Digest>,
    /// The users of each observation.
    pub(super) usage: BTreeMap<Digest, ObservationUsage>,
    /// The last run of each environment.
    pub(super) last_runs: BTreeMap<EnvironmentName, RunId>,
    holds: BTreeMap<(EnvironmentName, Vmid), Hold>,
    freezes: BTreeMap<EnvironmentName, Freeze>,
    pub(super) names: EnvironmentNames,
    keys: Vec<Box<str>>,
    /// The epoch that the last resync or restore began.
    later_epoch: Option<u64>,
}

/// A run, with its end and the time of it, if it ended.
pub type RunWithEnd = (RunStart, Option<(OperationEnd, u64)>);

/// Why an entry cannot have this position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MisplacedEntry {
    /// It concerns a run that has not started before it.
    RunUnknown(RunId),
    /// It concerns a run that has ended.
    RunOver(RunId),
    /// The run started before.
    RunTwice(RunId),
    /// It concerns an operation without an earlier intent.
    OperationUnknown(OperationId),
    /// It cannot follow the earlier records of the operation.
    Record(OperationId, IllegalRecord),
    /// The operation belongs to another plan or environment than its run.
    OtherRun(OperationId),
    /// It concerns another plan than that of its run.
    OtherPlan(RunId),
    /// Another operation occupies the guest: it is in flight or held.
    GuestTaken(Vmid, OperationId),
    /// It prunes something that is not an observation, or an observation that is still needed.
    Pruned(Digest),
    /// The guest was already held, or was not held.
    Hold(Vmid),
    /// The environment was already frozen, or was not frozen.
    Freeze(EnvironmentName),
    /// It begins an epoch that cannot follow the current one.
    Epoch {
        /// The epoch before it.
        now: u64,
        /// The epoch that it begins.
        epoch: u64,
    },
    /// The ledger already has a key.
    SecondKey,
    /// It does not replace the current key, or the new key was used before.
    OtherKey,
    /// The environment name is a former one or bound to another cluster, or its cluster has another name.
    Name(NameConflict),
    /// The environment is already bound to a cluster.
    BoundTwice(EnvironmentName),
    /// The environment has no state to rename, or the new name is in use.
    Rename {
        /// The old name.
        from: EnvironmentName,
        /// The new name.
        to: EnvironmentName,
    },
}

impl fmt::Display for MisplacedEntry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SecondKey => out.write_str("the ledger already has a key"),
            Self::OtherKey => out.write_str("it does not replace the current key, or the new key was used before"),
            Self::RunUnknown(run) => write!(out, "it is about the run {}, which has not started before it", run.as_str()),
            Self::RunOver(run) => write!(out, "it is about the run {}, which has ended", run.as_str()),
            Self::RunTwice(run) => write!(out, "the run {} started before", run.as_str()),
            Self::OperationUnknown(id) => write!(out, "it is about the operation {}, which has no intent before it", id.as_str()),
            Self::Record(id, illegal) => write!(out, "it cannot follow the earlier records of the operation {}: {illegal}", id.as_str()),
            Self::OtherRun(id) => write!(out, "the operation {} belongs to another plan or environment than its run", id.as_str()),
            Self::OtherPlan(run) => write!(out, "it is about another plan than that of the run {}", run.as_str()),
            Self::GuestTaken(vmid, by) => write!(out, "guest {vmid} is occupied by the operation {}", by.as_str()),
            Self::Pruned(digest) => write!(out, "it prunes {digest}, which is not an observation, or is still needed"),
            Self::Hold(vmid) => write!(out, "guest {vmid} was already held, or was not held"),
            Self::Freeze(environment) => write!(out, "`{environment}` was already frozen, or was not frozen"),
            Self::Name(conflict) => conflict.fmt(out),
            Self::Epoch { now, epoch } => write!(out, "it begins epoch {epoch}, which cannot follow epoch {now}"),
            Self::BoundTwice(environment) => write!(out, "`{environment}` is already bound to a cluster"),
            Self::Rename { from, to } => write!(out, "`{from}` had nothing to rename, or `{to}` was in use"),
        }
    }
}

impl LedgerReplay {
    /// Applies the next entry.
    ///
    /// # Errors
    /// The entry cannot have this position. The state is unchanged.
    pub fn apply_entry(&mut self, entry: LedgerEntry) -> Result<(), MisplacedEntry> {
        match entry {
            // A key is created once; only a `Rekeyed` entry replaces it (decision 0019).
            LedgerEntry::Key { .. } if !self.keys.is_empty() => return Err(MisplacedEntry::SecondKey),
            LedgerEntry::Key { verifier, .. } => self.keys.push(verifier),
            LedgerEntry::RunStarted { run, inputs } => return self.start_run(run, inputs.observation),
            LedgerEntry::PlanMade { run, plan, .. } | LedgerEntry::Admitted { run, plan, .. } => {
                if self.require_active_run(&run)?.plan != plan {
                    return Err(MisplacedEntry::OtherPlan(run));
                }
            }
            // Whether an approval covers this plan is checked with the admission.
            LedgerEntry::Refused { run, .. } | LedgerEntry::Approved { run, .. } => {
                self.require_active_run(&run)?;
            }
            LedgerEntry::Recovery { operations, .. } => {
                let unknown = operations.iter().find(|id| !self.operations.contains_key(id));
                return unknown.map_or(Ok(()), |id| Err(MisplacedEntry::OperationUnknown(id.clone())));
            }
            LedgerEntry::Record(record) => return self.apply_record(record),
            LedgerEntry::RunEnded { run, end, at_ms } => {
                self.require_active_run(&run)?;
                if self.is_run_active(&run) {
                    self.end_run(&run);
                }
                if let Some((_, ended)) = self.runs.get_mut(&run) {
                    *ended = Some((end, at_ms));
                }
            }
            LedgerEntry::Hold(hold) => return self.add_hold(hold),
            LedgerEntry::Release { environment, guest, .. } => {
                return self.holds.remove(&(environment, guest)).map(drop).ok_or(MisplacedEntry::Hold(guest));
            }
            LedgerEntry::Freeze(freeze) => return self.add_freeze(freeze),
            LedgerEntry::Thaw { environment, .. } => {
                return self.freezes.remove(&environment).map(drop).ok_or(MisplacedEntry::Freeze(environment));
            }
            LedgerEntry::Pruned { before_ms, digests, .. } => {
                let needed = digests.iter().find(|digest| !self.is_unneeded(digest, before_ms));
                return needed.map_or(Ok(()), |digest| Err(MisplacedEntry::Pruned(*digest)));
            }
            LedgerEntry::Rekeyed { verifier, previous, .. } => {
                if self.keys.last() != Some(&previous) || self.keys.contains(&verifier) {
                    return Err(MisplacedEntry::OtherKey);
                }
                self.keys.push(verifier);
            }
            LedgerEntry::Resync { epoch, .. } if epoch != self.epoch() + 1 => {
                return Err(MisplacedEntry::Epoch { now: self.epoch(), epoch });
            }
            LedgerEntry::Restored { epoch, .. } if epoch <= self.epoch() => return Err(MisplacedEntry::Epoch { now: self.epoch(), epoch }),
            LedgerEntry::Resync { epoch, .. } | LedgerEntry::Restored { epoch, .. } => self.later_epoch = Some(epoch),
            LedgerEntry::Binding(binding) => return self.bind(binding),
            LedgerEntry::Rename(rename) => return self.rename(&rename),
        }
        Ok(())
    }

    /// Applies a binding. A binding is recorded once: this program does not write a second entry that says the same.
    fn bind(&mut self, binding: EnvironmentBinding) -> Result<(), MisplacedEntry> {
        if let Some(conflict) = self.names.conflict(&binding.environment, &binding.cluster) {
            return Err(MisplacedEntry::Name(conflict));
        }
        if self.names.binding(&binding.environment).is_some() {
            return Err(MisplacedEntry::BoundTwice(binding.environment));
        }
        self.names.bind(binding);
        Ok(())
    }

    fn rename(&mut self, rename: &EnvironmentRename) -> Result<(), MisplacedEntry> {
        let EnvironmentRename { from, to, .. } = rename;
        self.check_current(from)?;
        let is_former_name = self.names.renamed_to(to) == Some(from);
        let is_free = self.names.renamed_to(to).is_none() && !self.has_state(to);
        if !self.has_state(from) || !(is_former_name || is_free) {
            return Err(MisplacedEntry::Rename { from: from.clone(), to: to.clone() });
        }
        self.names.rename(rename);
        let renamed = |environment: EnvironmentName| if environment == *from { to.clone() } else { environment };
        self.occupants = std::mem::take(&mut self.occupants).into_iter().map(|((own, vmid), id)| ((renamed(own), vmid), id)).collect();
        self.last_runs = std::mem::take(&mut self.last_runs).into_iter().map(|(own, run)| (renamed(own), run)).collect();
        let holds = std::mem::take(&mut self.holds).into_values().map(|hold| Hold { environment: renamed(hold.environment), ..hold });
        self.holds = holds.map(|hold| ((hold.environment.clone(), hold.vmid), hold)).collect();
        let freezes = std::mem::take(&mut self.freezes).into_values();
        let freezes = freezes.map(|freeze| Freeze { environment: renamed(freeze.environment), ..freeze });
        self.freezes = freezes.map(|freeze| (freeze.environment.clone(), freeze)).collect();
        Ok(())
    }

    /// Whether anything is recorded under a name: a binding, a run, a hold or a freeze.
    fn has_state(&self, environment: &EnvironmentName) -> bool {
        self.names.binding(environment).is_some()
            || self.last_runs.contains_key(environment)
            || self.freezes.contains_key(environment)
            || self.holds.keys().any(|(own, _)| own == environment)
    }

    /// Rejects new entries under a former name of an environment.
    fn check_current(&self, environment: &EnvironmentName) -> Result<(), MisplacedEntry> {
        match self.names.renamed_to(environment).cloned() {
            None => Ok(()),
            Some(now) => Err(MisplacedEntry::Name(NameConflict::Renamed { environment: environment.clone(), now })),
        }
    }

    /// The cluster bindings, and former names.
    #[must_use]
    pub fn names(&self) -> &EnvironmentNames {
        &self.names
    }

    fn require_active_run(&self, run: &RunId) -> Result<&RunStart, MisplacedEntry> {
        match self.runs.get(run) {
            None => Err(MisplacedEntry::RunUnknown(run.clone())),
            Some((_, Some(_))) => Err(MisplacedEntry::RunOver(run.clone())),
            Some((run, None)) => Ok(run),
        }
    }

    fn start_run(&mut self, run: RunStart, reading: Digest) -> Result<(), MisplacedEntry> {
        if self.runs.contains_key(&run.id) {
            return Err(MisplacedEntry::RunTwice(run.id));
        }
        self.check_current(&run.environment)?;
        if let Some(before) = self.last_runs.get(&run.environment).cloned().filter(|before| self.is_run_active(before)) {
            self.end_run(&before);
        }
        self.record_usage(run.id.clone(), run.at_ms, reading);
        self.last_runs.insert(run.environment.clone(), run.id.clone());
        self.runs.insert(run.id.clone(), (run, None));
        Ok(())
    }

    fn apply_record(&mut self, record: JournalRecord) -> Result<(), MisplacedEntry> {
        if let JournalRecord::Intent { operation, at_ms } = record {
            let id = operation.id.clone();
            let run = self.require_active_run(&operation.run)?;
            if run.environment != operation.environment || run.plan != operation.plan {
                return Err(MisplacedEntry::OtherRun(id));
            }
            let boot = run.boot.clone();
            let guests: Vec<(EnvironmentName, Vmid)> =
                operation.occupied_guests().map(|vmid| (operation.environment.clone(), vmid)).collect();
            if let Some((guest, by)) = guests.iter().find_map(|guest| Some((guest, self.occupants.get(guest)?))) {
                return Err(MisplacedEntry::GuestTaken(guest.1, by.clone()));
            }
            if self.operations.contains_key(&id) {
                return Err(MisplacedEntry::Record(id, IllegalRecord::SecondIntent));
            }
            self.count_open_operation(&operation.run);
            let history = OperationHistory { boot, ..OperationHistory::from_intent(operation, at_ms) };
            self.occupants.extend(guests.into_iter().map(|guest| (guest, id.clone())));
            self.operations.insert(id, history);
            return Ok(());
        }
        let id = record.id().clone();
        let history = self.operations.get_mut(&id).ok_or_else(|| MisplacedEntry::OperationUnknown(id.clone()))?;
        let had = history.progress().occupies_guest();
        history.add_record(record).map_err(|illegal| MisplacedEntry::Record(id, illegal))?;
        if had && !history.progress().occupies_guest() {
            let run = history.operation.run.clone();
            let environment = self.names.current(&history.operation.environment).clone();
            for vmid in history.operation.occupied_guests() {
                self.occupants.remove(&(environment.clone(), vmid));
            }
            self.count_settled_operation(&run);
        }
        Ok(())
    }

    fn add_hold(&mut self, hold: Hold) -> Result<(), MisplacedEntry> {
        self.check_current(&hold.environment)?;
        let guest_key = (hold.environment.clone(), hold.vmid);
        if self.holds.contains_key(&guest_key) {
            return Err(MisplacedEntry::Hold(hold.vmid));
        }
        self.holds.insert(guest_key, hold);
        Ok(())
    }

    fn add_freeze(&mut self, freeze: Freeze) -> Result<(), MisplacedEntry> {
        self.check_current(&freeze.environment)?;
        if self.freezes.contains_key(&freeze.environment) {
            return Err(MisplacedEntry::Freeze(freeze.environment));
        }
        self.freezes.insert(freeze.environment.clone(), freeze);
        Ok(())
    }

    /// The operations by id.
    #[must_use]
    pub fn operations(&self) -> &BTreeMap<OperationId, OperationHistory> {
        &self.operations
    }

    /// The runs with their ends, by id.
    #[must_use]
    pub fn runs(&self) -> &BTreeMap<RunId, RunWithEnd> {
        &self.runs
    }

    /// The current holds.
    pub fn holds(&self) -> impl Iterator<Item = &Hold> {
        self.holds.values()
    }

    /// The current freezes.
    pub fn freezes(&self) -> impl Iterator<Item = &Freeze> {
        self.freezes.values()
    }

    /// The epoch after the entries so far.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.later_epoch.unwrap_or(FIRST_EPOCH)
    }

    /// The keys, in order.
    #[must_use]
    pub fn keys(&self) -> &[Box<str>] {
        &self.keys
    }
}
