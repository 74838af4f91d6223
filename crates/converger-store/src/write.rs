//! What is written: batches of writes that become durable together, or not at all.

use std::sync::Arc;

use converger_core::apply::{
    EnvironmentBinding, EnvironmentRename, Freeze, Hold, JournalRecord, OperationEnd, OperationId, RunId, RunStart,
};
use converger_core::artifact::Digest;
use converger_core::evidence::{DecisionInputs, LedgerEntry};
use converger_core::guest::{EnvironmentName, Vmid};

/// One thing that is written. What of it is a decision becomes an entry of the ledger, in the same transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreWrite {
    /// A line of the journal.
    Record(JournalRecord),
    /// Something that is too large for an entry and is named there by its digest: the body of a plan, a reading, what is declared. Writing it again changes nothing.
    Blob {
        /// The digest of its bytes. That of a plan's body is what approvals bind.
        digest: Digest,
        /// The bytes.
        body: Arc<[u8]>,
    },
    /// A run begins.
    RunStarted {
        /// The run.
        run: RunStart,
        /// What it decides on.
        inputs: Box<DecisionInputs>,
    },
    /// A decision that is kept in the ledger and nowhere else: a plan, a refusal, an approval, an admission, a recovery, a key, a resync.
    Decision(Box<LedgerEntry>),
    /// A run ends.
    RunEnded {
        /// The run.
        id: RunId,
        /// How.
        end: OperationEnd,
        /// When, in milliseconds since 1970.
        at_ms: u64,
    },
    /// A guest is left alone from now on.
    Hold(Hold),
    /// A guest is no longer held.
    Release {
        /// Its environment.
        environment: EnvironmentName,
        /// The guest.
        vmid: Vmid,
        /// Who released it.
        by: Box<str>,
        /// When, in milliseconds since 1970.
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
        /// When, in milliseconds since 1970.
        at_ms: u64,
    },
    /// The name of an environment stands for this cluster. Writing the same binding again changes nothing and makes no entry.
    Bind(EnvironmentBinding),
    /// An environment gets another name; what is in force and in flight goes with it.
    Rename(EnvironmentRename),
    /// Things that are kept under these digests are kept no longer. Entries stay.
    Prune {
        /// What.
        digests: Box<[Digest]>,
        /// How long the ledger was when it was seen that nothing needs them. Where it has grown since, something may.
        seen: u64,
        /// Who lets them go.
        by: Box<str>,
        /// Only decisions of before this rest on them, in milliseconds since 1970.
        before_ms: u64,
        /// When, in milliseconds since 1970.
        at_ms: u64,
    },
}

impl From<JournalRecord> for StoreWrite {
    fn from(record: JournalRecord) -> Self {
        Self::Record(record)
    }
}

impl StoreWrite {
    /// A decision that is kept in the ledger and nowhere else.
    #[must_use]
    pub fn decision(entry: LedgerEntry) -> Self {
        Self::Decision(Box::new(entry))
    }

    /// These bytes, under their digest.
    #[must_use]
    pub fn blob(body: Vec<u8>) -> Self {
        Self::Blob { digest: Digest::of_bytes(&body), body: body.into() }
    }

    /// The entry that evidences it. A body is none: what names it by its digest is.
    pub(crate) fn entry(&self) -> Option<LedgerEntry> {
        Some(match self {
            Self::Record(record) => LedgerEntry::Record(record.clone()),
            Self::Blob { .. } => return None,
            Self::RunStarted { run, inputs } => LedgerEntry::RunStarted { run: run.clone(), inputs: (**inputs).clone() },
            Self::Decision(entry) => (**entry).clone(),
            Self::RunEnded { id, end, at_ms } => LedgerEntry::RunEnded { run: id.clone(), end: *end, at_ms: *at_ms },
            Self::Hold(hold) => LedgerEntry::Hold(hold.clone()),
            Self::Release { environment, vmid, by, at_ms } => {
                LedgerEntry::Release { environment: environment.clone(), guest: *vmid, by: by.clone(), at_ms: *at_ms }
            }
            Self::Freeze(freeze) => LedgerEntry::Freeze(freeze.clone()),
            Self::Thaw { environment, by, at_ms } => LedgerEntry::Thaw { environment: environment.clone(), by: by.clone(), at_ms: *at_ms },
            Self::Bind(binding) => LedgerEntry::Binding(binding.clone()),
            Self::Rename(rename) => LedgerEntry::Rename(rename.clone()),
            Self::Prune { digests, by, before_ms, at_ms, .. } => {
                LedgerEntry::Pruned { by: by.clone(), before_ms: *before_ms, digests: digests.clone(), at_ms: *at_ms }
            }
        })
    }

    /// The bytes that it brings along unbounded; the rest of any write is small by the bounds of its types.
    fn body_bytes(&self) -> usize {
        match self {
            Self::Blob { body, .. } => body.len(),
            _ => 0,
        }
    }
}

/// Writes that become durable together, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch(Vec<StoreWrite>);

impl Batch {
    /// The most writes of one batch.
    pub const WRITES_MAX: usize = 1024;
    /// The most bytes of bodies in one batch.
    pub const BYTES_MAX: usize = 256 << 20;

    /// A batch of these writes.
    #[must_use]
    pub fn new(writes: Vec<StoreWrite>) -> Self {
        Self(writes)
    }

    /// These writes and more: a write, a record or another batch.
    #[must_use]
    pub fn with(mut self, more: impl Into<Self>) -> Self {
        self.0.extend(more.into().0);
        self
    }

    /// The writes.
    #[must_use]
    pub fn writes(&self) -> &[StoreWrite] {
        &self.0
    }

    pub(crate) fn into_writes(self) -> Vec<StoreWrite> {
        self.0
    }

    /// Whether it is acknowledged only once it is on the disk. What is a mark and nothing else waits for no disk.
    pub(crate) fn must_be_durable(&self) -> bool {
        !self.0.iter().all(|write| matches!(write, StoreWrite::Record(record) if !record.must_be_durable()))
    }

    /// The bytes of bodies in it.
    pub(crate) fn total_body_bytes(&self) -> usize {
        self.0.iter().map(StoreWrite::body_bytes).sum()
    }
}

impl From<JournalRecord> for Batch {
    fn from(record: JournalRecord) -> Self {
        Self(vec![record.into()])
    }
}

impl From<StoreWrite> for Batch {
    fn from(write: StoreWrite) -> Self {
        Self(vec![write])
    }
}

/// The answer to a batch that was taken.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitAck {
    /// All of it is durable. What is a mark and nothing else is there for the next process, and durable with the next batch that is.
    Written {
        /// The transaction that it becomes durable in, counted from 1 since the store was opened. Batches share them.
        transaction: u64,
    },
    /// An intent in it carries an idempotency key that the same request has used before. Nothing of the batch was
    /// written, and nothing may be sent: what the first operation did is the answer (G13).
    Repeated {
        /// The operation that the key stands for.
        first: OperationId,
    },
}
