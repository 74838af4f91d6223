//! What is written: batches of writes that become durable together, or not at all.

use std::sync::Arc;

use converger_core::apply::{End, Freeze, Hold, OperationId, Record, Run, RunId};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, Vmid};

/// One thing that is written. Later kinds (ledger entries, approvals, observations) join the same transaction here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// A line of the journal.
    Record(Record),
    /// The body of a plan, under the digest of it. Writing it again changes nothing.
    Plan {
        /// The digest that approvals bind.
        digest: Digest,
        /// The canonical bytes.
        body: Arc<[u8]>,
    },
    /// A run begins.
    RunStarted(Run),
    /// A run ends.
    RunEnded {
        /// The run.
        id: RunId,
        /// How.
        end: End,
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
}

impl From<Record> for Write {
    fn from(record: Record) -> Self {
        Self::Record(record)
    }
}

impl Write {
    /// The bytes that it brings along unbounded; the rest of any write is small by the bounds of its types.
    fn weight(&self) -> usize {
        match self {
            Self::Plan { body, .. } => body.len(),
            _ => 0,
        }
    }
}

/// Writes that become durable together, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch(Vec<Write>);

impl Batch {
    /// The most writes of one batch.
    pub const WRITES_MAX: usize = 1024;
    /// The most bytes of plans in one batch.
    pub const BYTES_MAX: usize = 256 << 20;

    /// A batch of these writes.
    #[must_use]
    pub fn new(writes: Vec<Write>) -> Self {
        Self(writes)
    }

    /// These writes and one more.
    #[must_use]
    pub fn with(mut self, write: impl Into<Write>) -> Self {
        self.0.push(write.into());
        self
    }

    /// The writes.
    #[must_use]
    pub fn writes(&self) -> &[Write] {
        &self.0
    }

    pub(crate) fn into_writes(self) -> Vec<Write> {
        self.0
    }

    /// Whether it is acknowledged only once it is on the disk. What is a mark and nothing else waits for no disk.
    pub(crate) fn must_be_durable(&self) -> bool {
        !self.0.iter().all(|write| matches!(write, Write::Record(record) if !record.must_be_durable()))
    }

    /// The bytes of plans in it.
    pub(crate) fn weight(&self) -> usize {
        self.0.iter().map(Write::weight).sum()
    }
}

impl From<Record> for Batch {
    fn from(record: Record) -> Self {
        Self(vec![record.into()])
    }
}

impl From<Write> for Batch {
    fn from(write: Write) -> Self {
        Self(vec![write])
    }
}

/// The answer to a batch that was taken.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receipt {
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
