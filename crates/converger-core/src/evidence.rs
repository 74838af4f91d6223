//! Ledger entries: one entry for each decision, with its evidence, in canonical JSON.
//!
//! An entry is written in the transaction of what it evidences, and never changed. Anything too large for an entry (plans, observations,
//! the desired state, the configuration) is stored beside it and referenced by digest. An entry is evidence: nothing is ever done because
//! it exists.
//!
//! Must not depend on hashes or signatures of the log, on files, or on text for people.

mod admissions;
mod bundle;
mod canonical_check;
mod config;
mod decision_record;
mod entry_filter;
mod ledger_check;
mod observation_retention;
mod read;
mod receipt_check;
mod replay;
mod reproduce;
mod write;

#[cfg(test)]
mod tests;

use crate::apply::{
    EnvironmentBinding, EnvironmentRename, Evidence, Freeze, Hold, JournalRecord, OperationEnd, OperationId, RunId, RunStart, Slug,
};
use crate::artifact::Digest;
use crate::guest::{EnvironmentName, Vmid};
use crate::refusal::Refusal;

pub use admissions::{AdmissionTracker, Approval, RecordedAdmission};
pub use bundle::{Admissibility, AdmissionBundle, AdmissionGate, BUNDLE_SCHEMA, EvidenceFault, PolicyDecision, check_admissibility};
pub use config::{EffectiveConfig, ParseConfig};
pub use decision_record::{DecisionRecord, record_decision};
pub use entry_filter::{EntryFilter, EntryQuery};
pub use ledger_check::{LedgerCheck, LedgerFault};
pub use observation_retention::PrunedSet;
pub use read::parse_entry;
pub use receipt_check::{OperationProof, belongs_to_proof};
pub use replay::{LedgerReplay, MisplacedEntry, RunWithEnd};
pub use reproduce::{Decision, DecisionPart, ReplayableDecision, ReproduceError, reproduce};
pub use write::{write_bounded_entry, write_entry};

/// Schema id of an entry.
pub const ENTRY_SCHEMA: &str = "converger.entry/1";

/// The maximal size of an entry; larger evidence is referenced by digest.
pub const ENTRY_BYTES_MAX: usize = (64 << 10) - 1;

/// One entry of the ledger. Times are milliseconds since 1970 and for display; the order of entries is that of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerEntry {
    /// From here on, checkpoints are signed with this key.
    Key {
        /// The verifier key with which others check them.
        verifier: Box<str>,
        /// When.
        at_ms: u64,
    },
    /// A run started.
    RunStarted {
        /// The run.
        run: RunStart,
        /// The inputs of its decision.
        inputs: DecisionInputs,
    },
    /// A plan was made and judged.
    PlanMade {
        /// The run that it was made in.
        run: RunId,
        /// The digest of its body.
        plan: Digest,
        /// The digest of its proposal, which approvals bind.
        proposal: Digest,
        /// The digest of the judgement.
        judgement: Digest,
        /// When.
        at_ms: u64,
    },
    /// Something was refused.
    Refused {
        /// The run.
        run: RunId,
        /// The guest; `None` for the whole run.
        guest: Option<Vmid>,
        /// The stage that refused it.
        stage: Slug,
        /// The reason: a code of the refusal table.
        code: Slug,
        /// The supporting facts.
        evidence: Evidence,
        /// When.
        at_ms: u64,
    },
    /// A person approved a plan.
    Approved {
        /// The run.
        run: RunId,
        /// The proposal that the approval covers.
        proposal: Digest,
        /// Who.
        by: Box<str>,
        /// How: by typing, or by giving the digest.
        how: Slug,
        /// The guest names that were typed.
        names: Box<[Box<str>]>,
        /// When.
        at_ms: u64,
    },
    /// It was decided whether a plan may be applied.
    Admitted {
        /// The run.
        run: RunId,
        /// The plan.
        plan: Digest,
        /// The digest of the evidence that was considered.
        bundle: Digest,
        /// The result: a code of the table, or that the plan is admitted.
        answer: Slug,
        /// When.
        at_ms: u64,
    },
    /// A run found operations in flight from an earlier run and recovers them.
    Recovery {
        /// Their environment.
        environment: EnvironmentName,
        /// The operations.
        operations: Box<[OperationId]>,
        /// When.
        at_ms: u64,
    },
    /// The journal accepted a record.
    Record(JournalRecord),
    /// A run ended.
    RunEnded {
        /// The run.
        run: RunId,
        /// How.
        end: OperationEnd,
        /// When.
        at_ms: u64,
    },
    /// A guest was held.
    Hold(Hold),
    /// A guest was released.
    Release {
        /// Its environment.
        environment: EnvironmentName,
        /// The guest.
        guest: Vmid,
        /// Who released it.
        by: Box<str>,
        /// When.
        at_ms: u64,
    },
    /// An environment was frozen.
    Freeze(Freeze),
    /// An environment was thawed.
    Thaw {
        /// The environment.
        environment: EnvironmentName,
        /// Who thawed it.
        by: Box<str>,
        /// When.
        at_ms: u64,
    },
    /// A person put the state directory back into service after its witness had seen a longer log.
    Resync {
        /// Who.
        by: Box<str>,
        /// Why.
        reason: Box<str>,
        /// The number of entries that the witness had seen.
        size: u64,
        /// The root hash of that log, as in a checkpoint; `None` if the witness had seen nothing.
        root: Option<Box<str>>,
        /// The epoch that begins here, one above the last.
        epoch: u64,
        /// When.
        at_ms: u64,
    },
    /// A person put a backup in place of the store. The entries before this one are those of the backup.
    Restored {
        /// Who.
        by: Box<str>,
        /// Why.
        reason: Box<str>,
        /// The number of entries of the log that was given up: as the witness had seen it, or as the replaced store had it.
        size: u64,
        /// The root hash of that log, as in a checkpoint; `None` if none is known.
        root: Option<Box<str>>,
        /// The epoch that begins here: above the last one of the backup and of the replaced store.
        epoch: u64,
        /// When.
        at_ms: u64,
    },
    /// A person replaced the signing key because it was lost or must not be used any more. From here on, checkpoints are signed with the
    /// new key.
    Rekeyed {
        /// The new verifier key.
        verifier: Box<str>,
        /// The previous verifier key.
        previous: Box<str>,
        /// The last stored checkpoint of the previous key, as signed; `None` if none is stored.
        checkpoint: Option<Box<str>>,
        /// Who.
        by: Box<str>,
        /// Why.
        reason: Box<str>,
        /// When.
        at_ms: u64,
    },
    /// A person pruned observations that only decisions from before a given time use.
    Pruned {
        /// Who.
        by: Box<str>,
        /// The observations were used only by decisions from before this time, in milliseconds since 1970.
        before_ms: u64,
        /// The digests that are no longer stored.
        digests: Box<[Digest]>,
        /// When.
        at_ms: u64,
    },
    /// From here on, an environment name is bound to this cluster.
    Binding(EnvironmentBinding),
    /// A person renamed an environment.
    Rename(EnvironmentRename),
}

/// The inputs of a decision, each by digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionInputs {
    /// The version of the program.
    pub program: Box<str>,
    /// The version of the planner.
    pub planner: u32,
    /// The configuration as read.
    pub config: Digest,
    /// The intent: a desired state or a request.
    pub intent: Digest,
    /// The observation.
    pub observation: Digest,
    /// The protection rules and the table of fields.
    pub rules: Digest,
    /// The catalogue of actions.
    pub catalogue: Digest,
}

impl LedgerEntry {
    /// The entry for a refusal in a run: of one guest, or of the whole run.
    #[must_use]
    pub fn from_refusal(run: RunId, guest: Option<Vmid>, refusal: &Refusal, at_ms: u64) -> Self {
        let entry = refusal.code().entry();
        // INVARIANT: codes and stages of the refusal table are valid slugs; the test `every_code_is_a_word` checks the codes.
        let slug = |text: &str| Slug::new(text).unwrap_or_else(Slug::placeholder);
        let facts = refusal.evidence().iter();
        let evidence = facts.fold(Evidence::default(), |evidence, (key, datum)| evidence.with(key, datum));
        Self::Refused { run, guest, stage: slug(entry.stage.word()), code: slug(entry.word), evidence, at_ms }
    }

    /// When the entry was made.
    #[must_use]
    pub fn at_ms(&self) -> u64 {
        match self {
            Self::RunStarted { run, .. } => run.at_ms,
            Self::Record(record) => record.at_ms(),
            Self::Hold(hold) => hold.at_ms,
            Self::Freeze(freeze) => freeze.at_ms,
            Self::Binding(binding) => binding.at_ms,
            Self::Rename(rename) => rename.at_ms,
            Self::Key { at_ms, .. }
            | Self::PlanMade { at_ms, .. }
            | Self::Refused { at_ms, .. }
            | Self::Approved { at_ms, .. }
            | Self::Admitted { at_ms, .. }
            | Self::Recovery { at_ms, .. }
            | Self::RunEnded { at_ms, .. }
            | Self::Release { at_ms, .. }
            | Self::Thaw { at_ms, .. }
            | Self::Resync { at_ms, .. }
            | Self::Restored { at_ms, .. }
            | Self::Rekeyed { at_ms, .. }
            | Self::Pruned { at_ms, .. } => *at_ms,
        }
    }

    /// The name of its kind.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Key { .. } => "key",
            Self::RunStarted { .. } => "run-started",
            Self::PlanMade { .. } => "plan",
            Self::Refused { .. } => "refusal",
            Self::Approved { .. } => "approval",
            Self::Admitted { .. } => "admission",
            Self::Recovery { .. } => "recovery",
            Self::Record(JournalRecord::Intent { .. }) => "intent",
            Self::Record(JournalRecord::Sending { .. }) => "sending",
            Self::Record(JournalRecord::TaskStarted { .. }) => "task",
            Self::Record(JournalRecord::Ended { .. }) => "outcome",
            Self::Record(JournalRecord::Resolved { .. }) => "resolution",
            Self::RunEnded { .. } => "run-ended",
            Self::Hold(_) => "hold",
            Self::Release { .. } => "release",
            Self::Freeze(_) => "freeze",
            Self::Thaw { .. } => "thaw",
            Self::Resync { .. } => "resync",
            Self::Restored { .. } => "restore",
            Self::Pruned { .. } => "prune",
            Self::Rekeyed { .. } => "rekey",
            Self::Binding(_) => "binding",
            Self::Rename(_) => "rename",
        }
    }
}

/// The names of all kinds.
pub const ENTRY_KINDS: [&str; 23] = [
    "key",
    "run-started",
    "plan",
    "refusal",
    "approval",
    "admission",
    "recovery",
    "intent",
    "sending",
    "task",
    "outcome",
    "resolution",
    "run-ended",
    "hold",
    "release",
    "freeze",
    "thaw",
    "resync",
    "prune",
    "rekey",
    "binding",
    "rename",
    "restore",
];

/// The epoch of a new store. Each resync and each restore begins a later one; plans, approvals and signatures of earlier epochs are void.
pub const FIRST_EPOCH: u64 = 1;

/// The maximal number of digests in one prune entry, so that it stays below the size limit; more digests need more entries.
pub const PRUNED_DIGESTS_MAX: usize = 512;
