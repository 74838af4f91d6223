//! Requests to an environment during an operation, and the responses, in terms of the core.
//!
//! This is the interface between engine and adapters: the engine never knows Proxmox, and an adapter never knows the engine. Each
//! [`EnvRequest`] is exactly one external request, sent once; an adapter that needed two would hide one from the journal.
//!
//! Must not know how anything is sent, or what follows from a response (see `check`, `promise`, and the engine).

use std::collections::BTreeMap;

use super::id::{Slug, TaskId};
use super::outcome::Evidence;
use crate::action::Change;
use crate::guest::{DayOne, GuestIdentity, GuestKind, NodeName, Vmid};
use crate::normalize::WordSet;
use crate::observe::{EffectiveValues, GuestDisk, HaState, ObservedStatus, PendingChange, SnapshotTree};

/// The address of a guest: node, kind and id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestAddress {
    /// The node that it is on at the moment.
    pub node: NodeName,
    /// Its kind.
    pub kind: GuestKind,
    /// Its id.
    pub vmid: Vmid,
}

/// One query to an environment, or the change of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvRequest {
    /// Reads quorum, and which nodes are online.
    Cluster,
    /// Reads the run-state from the guest's own node.
    Status(GuestAddress),
    /// Reads effective and pending values, birth marks and guards, all at the same moment and from the guest's own node.
    ///
    /// This is one request because effective and pending values that are read one after the other may belong to different configs.
    Config(GuestAddress),
    /// Reads the snapshots of a guest.
    Snapshots(GuestAddress),
    /// Reads whether an id is free in the whole cluster.
    IdState(Vmid),
    /// Finds the node of a guest that is not where it was.
    Locate(Vmid),
    /// Sends the change. The only request that changes anything.
    Send {
        /// The guest.
        address: GuestAddress,
        /// The change.
        change: Change,
        /// The config revision that a write is bound to (S7).
        revision: Option<ConfigRevision>,
    },
    /// Reads the state of a task.
    Task(TaskId),
    /// Lists the tasks of a guest that do what this change does.
    Tasks {
        /// The guest.
        address: GuestAddress,
        /// The change.
        change: Change,
        /// The maximal age of tasks that count, in seconds; a list that may end before this age proves nothing. Running tasks count
        /// whatever their reported age.
        age_secs_max: u64,
    },
}

impl EnvRequest {
    /// Whether the request changes anything.
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        matches!(self, Self::Send { .. })
    }

    /// The guest that the request is about, if its node is known.
    #[must_use]
    pub fn guest_address(&self) -> Option<&GuestAddress> {
        match self {
            Self::Status(address)
            | Self::Config(address)
            | Self::Snapshots(address)
            | Self::Send { address, .. }
            | Self::Tasks { address, .. } => Some(address),
            Self::Cluster | Self::IdState(_) | Self::Locate(_) | Self::Task(_) => None,
        }
    }

    /// The name of the request in logs and traces.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Status(_) => "status",
            Self::Config(_) => "config",
            Self::Snapshots(_) => "snapshots",
            Self::IdState(_) => "id",
            Self::Locate(_) => "where",
            Self::Send { .. } => "send",
            Self::Task(_) => "task",
            Self::Tasks { .. } => "tasks",
        }
    }
}

/// What an adapter needs to bind a config write to the reading that was checked; opaque here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigRevision(Box<str>);

impl ConfigRevision {
    /// Text of an adapter: not empty, at most 4096 bytes.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        (1..=4096).contains(&text.len()).then(|| Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvResponse {
    /// To [`EnvRequest::Cluster`].
    Cluster(ClusterMembership),
    /// To [`EnvRequest::Status`].
    Status(LiveStatus),
    /// To [`EnvRequest::Config`].
    Config(Box<LiveConfig>),
    /// To [`EnvRequest::Snapshots`].
    Snapshots(SnapshotTree),
    /// To [`EnvRequest::IdState`].
    IdState(IdState),
    /// To [`EnvRequest::Locate`]; `None` if it is not listed, which proves nothing (S5).
    Located(Option<GuestAddress>),
    /// To [`EnvRequest::Send`].
    Sent(SendResult),
    /// To [`EnvRequest::Task`].
    Task(TaskState),
    /// To [`EnvRequest::Tasks`].
    Tasks(Vec<ObservedTask>),
    /// The node says that it has no such guest.
    GuestNotFound(EnvFault),
    /// The read failed. It proves nothing.
    Unreadable(EnvFault),
}

/// Whether an id is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdState {
    /// No guest of any kind has it.
    Free,
    /// A guest has it.
    Taken,
}

/// The cluster, as seen by the node that responds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterMembership {
    /// Whether it has quorum.
    pub quorate: bool,
    /// The nodes, and whether they are online.
    pub nodes: BTreeMap<NodeName, bool>,
}

/// The status of a guest, from its own node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveStatus {
    /// Known only if the platform plainly says `running` or `stopped`; a paused guest is neither.
    pub status: ObservedStatus,
    /// What the platform calls the state.
    pub word: Box<str>,
    /// The lock.
    pub lock: Option<Box<str>>,
    /// Its high-availability state, if it is an HA resource.
    pub ha: Option<HaState>,
    /// Seconds since the guest was started.
    pub uptime_secs: Option<u64>,
}

/// The config of a guest, all read at the same moment. A config that cannot be understood is not a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveConfig {
    /// The displayed name. Untrusted text.
    pub name: Box<str>,
    /// The birth marks.
    pub identity: GuestIdentity,
    /// The MAC addresses of its network devices, in upper case.
    pub macs: WordSet,
    /// The values in effect.
    pub values: EffectiveValues,
    /// The changes that are pending until the next start.
    pub pending: Box<[PendingChange]>,
    /// The tags.
    pub tags: WordSet,
    /// The lock.
    pub lock: Option<Box<str>>,
    /// Whether it is a template.
    pub template: bool,
    /// Whether the platform's protection flag is set.
    pub protection: bool,
    /// The disks and drives, sorted by key.
    pub disks: Box<[GuestDisk]>,
    /// Attributes outside the table of fields.
    pub day_one: LiveDayOne,
    /// The platform's digest of the config; `None` if it gave none.
    pub digest: Option<Box<str>>,
    /// What binds a write to this reading; `None` if the platform gave nothing.
    pub revision: Option<ConfigRevision>,
}

/// Attributes of a guest that are written once, when it is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveDayOne {
    /// Those that it has and that are understood.
    pub attributes: DayOne,
    /// Whether it has a password for the user that cloud-init makes. Platforms do not show it.
    pub has_password: bool,
}

/// The result of sending a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendResult {
    /// The environment started a task.
    Task(TaskId),
    /// The environment says that the change is done.
    Done,
    /// The environment rejected the change, and nothing changed.
    Rejected(EnvFault),
    /// The change was not delivered, so nothing acted on it.
    NotDelivered(EnvFault),
    /// The change may have been executed, in part or as a whole; only reading can tell.
    MaybeExecuted(EnvFault),
}

/// The state of a task. A lost task is neither done nor failed (S17).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It is running.
    Running,
    /// It succeeded.
    Ended {
        /// The number of warnings.
        warnings: u32,
        /// Seconds since it started, by the clock of its node; `None` if that clock was not read.
        age_secs: Option<u64>,
    },
    /// It ended with an error.
    Failed {
        /// The error.
        cause: EnvFault,
        /// Seconds since it started, by the clock of its node; `None` if that clock was not read.
        age_secs: Option<u64>,
    },
    /// How it ended is unknown: it was killed, its node went down, or no record of it is left.
    Lost(EnvFault),
}

/// A task that does what was requested, regardless of who started it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedTask {
    /// Its id.
    pub task: TaskId,
    /// For a task that ended according to the list: seconds since it started, by the clock of its node. Clocks of this machine and of nodes
    /// may be hours apart. `None` while it is running; lists lag behind, and only [`EnvRequest::Task`] is authoritative.
    pub ended_age_secs: Option<u64>,
    /// Whether the user of this client started it. A change sent before a crash may have been sent as another user.
    pub is_ours: bool,
}

/// Why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvFault {
    /// The kind, as far as the engine distinguishes it.
    pub kind: EnvFaultKind,
    /// The adapter's code for it.
    pub word: Slug,
    /// What the environment said, shortened. Untrusted text.
    pub text: Box<str>,
}

/// The kinds of faults that the engine treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EnvFaultKind {
    /// The config is not the one that was read.
    ConfigChanged,
    /// A lock is set in the guest's config.
    Locked,
    /// Another process holds a lock file of the guest or of the cluster; nothing in the guest's config says so.
    LockFile,
    /// The protection flag is set.
    Protected,
    /// The cluster has no quorum.
    NotQuorate,
    /// The guest does not exist there.
    GuestNotFound,
    /// The guest is a template.
    Template,
    /// High availability owns it.
    HaOwned,
    /// This program cannot express the change as a request.
    Unsupported,
    /// The guest did not shut down in time; it may still do so.
    ShutdownTimeout,
    /// No capacity was left for the request, and it was not sent.
    Busy,
    /// Anything else.
    Other,
}

impl EnvFault {
    /// The longest text that is stored, in characters.
    pub const TEXT_CHARS_MAX: usize = 500;

    /// Creates a fault and shortens the text.
    #[must_use]
    pub fn new(kind: EnvFaultKind, word: &str, text: &str) -> Self {
        let word = Slug::new(word).unwrap_or_else(Slug::placeholder);
        Self { kind, word, text: text.trim().chars().take(Self::TEXT_CHARS_MAX).collect::<String>().into() }
    }

    /// Adds this fault to the evidence.
    #[must_use]
    pub fn add_to_evidence(&self, evidence: Evidence) -> Evidence {
        let evidence = evidence.with("cause", self.word.as_str());
        if self.text.is_empty() { evidence } else { evidence.with("said", &*self.text) }
    }
}
