//! What the ledger keeps: one entry for each decision, with all that it rests on, in canonical JSON.
//!
//! An entry is written in the transaction of what it evidences, and never changed. Whatever is too large for it (plans, readings, the declared
//! state, the configuration) is kept beside it and named by its digest. An entry is evidence: nothing is ever done because one is there.
//!
//! What never enters: hashes of the log and its signatures, files, and text for people.

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
pub use bundle::{Admissibility, AdmissionBundle, AdmissionGate, BUNDLE_SCHEMA, EvidenceFault, check_admissibility};
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

/// The schema id of an entry.
pub const ENTRY_SCHEMA: &str = "converger.entry/1";

/// An entry is shorter than this; larger evidence is named by its digest.
pub const ENTRY_BYTES_MAX: usize = (64 << 10) - 1;

/// One entry of the ledger. Times are milliseconds since 1970 and for people: the order of entries is that of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerEntry {
    /// From here on checkpoints are signed with this key.
    Key {
        /// Who can check them, as it is passed on.
        verifier: Box<str>,
        /// When.
        at_ms: u64,
    },
    /// A run began.
    RunStarted {
        /// The run.
        run: RunStart,
        /// What it decides on.
        inputs: DecisionInputs,
    },
    /// A plan was made and judged.
    PlanMade {
        /// The run that it was made in.
        run: RunId,
        /// The digest of its body.
        plan: Digest,
        /// The digest of what it was held against, and what was found.
        judgement: Digest,
        /// When.
        at_ms: u64,
    },
    /// Something was decided against.
    Refused {
        /// The run.
        run: RunId,
        /// The guest; none: the whole run.
        guest: Option<Vmid>,
        /// The stage that refused it.
        stage: Slug,
        /// Why: a code of the table.
        code: Slug,
        /// What that rests on.
        evidence: Evidence,
        /// When.
        at_ms: u64,
    },
    /// Somebody agreed to a plan.
    Approved {
        /// The run.
        run: RunId,
        /// The plan, by the digest that the approval binds.
        plan: Digest,
        /// Who.
        by: Box<str>,
        /// How: by typing, or by giving the digest.
        how: Slug,
        /// The names of guests that were typed.
        names: Box<[Box<str>]>,
        /// When.
        at_ms: u64,
    },
    /// It was decided whether a plan may be carried out.
    Admitted {
        /// The run.
        run: RunId,
        /// The plan.
        plan: Digest,
        /// The digest of the evidence that was weighed.
        bundle: Digest,
        /// What came of it: a code of the table, or that it may be.
        answer: Slug,
        /// When.
        at_ms: u64,
    },
    /// A run found operations of an earlier one that had not ended, and finds out what became of them.
    Recovery {
        /// Their environment.
        environment: EnvironmentName,
        /// The operations.
        operations: Box<[OperationId]>,
        /// When.
        at_ms: u64,
    },
    /// The journal took a record.
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
    /// A guest is left alone from now on.
    Hold(Hold),
    /// A guest is no longer held.
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
    /// Nothing is changed in an environment from now on.
    Freeze(Freeze),
    /// An environment is no longer frozen.
    Thaw {
        /// The environment.
        environment: EnvironmentName,
        /// Who thawed it.
        by: Box<str>,
        /// When.
        at_ms: u64,
    },
    /// A person took the state directory back into service, after a witness had seen a longer log.
    Resync {
        /// Who.
        by: Box<str>,
        /// Why.
        reason: Box<str>,
        /// How many entries the witness had seen.
        size: u64,
        /// The root of their log, as a checkpoint has it; none where the witness had seen nothing.
        root: Option<Box<str>>,
        /// When.
        at_ms: u64,
    },
    /// A person replaced the key that signs, because it was lost or must not be used any more. From here on checkpoints are signed with the new one.
    Rekeyed {
        /// Who can check them from here on.
        verifier: Box<str>,
        /// The key before.
        previous: Box<str>,
        /// The last checkpoint that is kept of the key before, as it was signed; none where none is kept.
        checkpoint: Option<Box<str>>,
        /// Who.
        by: Box<str>,
        /// Why.
        reason: Box<str>,
        /// When.
        at_ms: u64,
    },
    /// A person let readings go that only decisions of before a time rest on.
    Pruned {
        /// Who.
        by: Box<str>,
        /// The decisions were made before this, in milliseconds since 1970.
        before_ms: u64,
        /// What is no longer kept.
        digests: Box<[Digest]>,
        /// When.
        at_ms: u64,
    },
    /// From here on the name of an environment stands for this cluster.
    Binding(EnvironmentBinding),
    /// A person gave an environment another name.
    Rename(EnvironmentRename),
}

/// What a run decides on, each named by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionInputs {
    /// The version of the program.
    pub program: Box<str>,
    /// The version of the planner.
    pub planner: u32,
    /// The configuration, as it was read.
    pub config: Digest,
    /// The declared state.
    pub desired: Digest,
    /// The reading.
    pub observation: Digest,
    /// The rules of protection and the table of fields.
    pub rules: Digest,
    /// The catalogue of actions.
    pub catalogue: Digest,
}

impl LedgerEntry {
    /// That something was decided against in a run: of a guest, or of all of it.
    #[must_use]
    pub fn from_refusal(run: RunId, guest: Option<Vmid>, refusal: &Refusal, at_ms: u64) -> Self {
        let entry = refusal.code().entry();
        // INVARIANT: the words of our own tables are words; `every_code_is_a_word` and the table of stages hold it.
        let word = |text: &str| Slug::new(text).unwrap_or_else(Slug::placeholder);
        let facts = refusal.evidence().iter();
        let evidence = facts.fold(Evidence::default(), |evidence, (key, datum)| evidence.with(key, datum));
        Self::Refused { run, guest, stage: word(entry.stage.word()), code: word(entry.word), evidence, at_ms }
    }

    /// When it was made.
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
            | Self::Rekeyed { at_ms, .. }
            | Self::Pruned { at_ms, .. } => *at_ms,
        }
    }

    /// The word for its kind.
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
            Self::Pruned { .. } => "prune",
            Self::Rekeyed { .. } => "rekey",
            Self::Binding(_) => "binding",
            Self::Rename(_) => "rename",
        }
    }
}

/// The words for kinds.
pub const ENTRY_KINDS: [&str; 22] = [
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
];

/// So many digests are below the bound of an entry; what is more becomes another one.
pub const PRUNED_DIGESTS_MAX: usize = 512;
