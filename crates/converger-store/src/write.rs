//! Batches of writes that become durable together or not at all.

use std::sync::Arc;

use converger_core::apply::{
    EnvironmentBinding, EnvironmentRename, Freeze, Hold, JournalRecord, OperationEnd, OperationId, RunId, RunStart,
};
use converger_core::artifact::Digest;
use converger_core::evidence::{DecisionInputs, LedgerEntry};
use converger_core::guest::{EnvironmentName, Vmid};

/// One write. If it records a decision, the same transaction appends an entry to the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreWrite {
    /// A record of the journal.
    Record(JournalRecord),
    /// Data that is too large for a ledger entry, which refers to it by digest: the body of a plan, an observation or a declaration.
    /// Writing it again changes nothing.
    Blob {
        /// The digest of the bytes. Approvals bind to the digest of a plan's body.
        digest: Digest,
        /// The bytes.
        body: Arc<[u8]>,
    },
    /// A run starts.
    RunStarted {
        /// The run.
        run: RunStart,
        /// The inputs of its decisions.
        inputs: Box<DecisionInputs>,
    },
    /// A decision that is stored in the ledger only: a plan, a refusal, an approval, an admission, a recovery, a key, a resync.
    Decision(Box<LedgerEntry>),
    /// A run ends.
    RunEnded {
        /// The run.
        id: RunId,
        /// Its end.
        end: OperationEnd,
        /// When, in milliseconds since 1970.
        at_ms: u64,
    },
    /// A guest is not changed from now on.
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
    /// The environment name refers to this cluster. Writing the same binding again changes nothing and adds no entry.
    Bind(EnvironmentBinding),
    /// An environment gets another name. Everything in force or in flight moves to the new name.
    Rename(EnvironmentRename),
    /// Deletes the bytes that are stored under these digests. Ledger entries stay.
    Prune {
        /// The digests.
        digests: Box<[Digest]>,
        /// The size of the ledger when the search found that nothing needs the bytes. If the ledger has grown since, a new entry may need
        /// them.
        seen: u64,
        /// Who prunes them.
        by: Box<str>,
        /// Only decisions made before this time depend on the bytes, in milliseconds since 1970.
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
    /// A decision that is stored in the ledger only.
    #[must_use]
    pub fn decision(entry: LedgerEntry) -> Self {
        Self::Decision(Box::new(entry))
    }

    /// These bytes, stored under their digest.
    #[must_use]
    pub fn blob(body: Vec<u8>) -> Self {
        Self::Blob { digest: Digest::of_bytes(&body), body: body.into() }
    }

    /// The ledger entry that records this write. A blob has none; the entry that refers to its digest covers it.
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

    /// The size of the unbounded part of this write. The types bound everything else to a small size.
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
    /// The maximum number of writes in a batch.
    pub const WRITES_MAX: usize = 1024;
    /// The maximum number of body bytes in a batch.
    pub const BYTES_MAX: usize = 256 << 20;

    /// A batch of these writes.
    #[must_use]
    pub fn new(writes: Vec<StoreWrite>) -> Self {
        Self(writes)
    }

    /// Appends more writes: a write, a record or another batch.
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

    /// Whether the batch is acknowledged only once it is on disk. A batch of sending marks alone does not wait for the disk.
    pub(crate) fn must_be_durable(&self) -> bool {
        !self.0.iter().all(|write| matches!(write, StoreWrite::Record(record) if !record.must_be_durable()))
    }

    /// The number of body bytes in the batch.
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

/// The response to a batch that was accepted.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitAck {
    /// The whole batch is durable. A batch of sending marks alone is visible to the next process, and becomes durable with the next
    /// durable batch.
    Written {
        /// The transaction in which the batch becomes durable, counted from 1 since the store was opened. Batches can share a
        /// transaction.
        transaction: u64,
    },
    /// An intent in the batch carries an idempotency key that the same request used before. Nothing of the batch was written and nothing
    /// may be sent: the result of the first operation is the answer (G13).
    Repeated {
        /// The operation that used the key first.
        first: OperationId,
    },
}
