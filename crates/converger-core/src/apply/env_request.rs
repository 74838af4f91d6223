//! What is asked of an environment while an operation is on its way, and what comes back, in words of the core.
//!
//! This is the seam: the engine asks and never knows Proxmox, an adapter answers and never knows the engine. Each
//! [`EnvRequest`] is exactly one external request, sent once; an adapter that needs two of them would hide one from the journal.
//!
//! What never enters: how anything is sent, and what follows from an answer (`check`, `promise`, and the engine).

use std::collections::BTreeMap;

use super::id::{Slug, TaskId};
use super::outcome::Evidence;
use crate::action::Change;
use crate::guest::{GuestIdentity, GuestKind, NodeName, Vmid};
use crate::normalize::WordSet;
use crate::observe::{EffectiveValues, HaState, ObservedStatus, PendingChange};

/// Where a guest is asked about: its node, its kind and its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestAddress {
    /// The node that has it at the moment.
    pub node: NodeName,
    /// Its kind.
    pub kind: GuestKind,
    /// Its id.
    pub vmid: Vmid,
}

/// One question to an environment, or the one change of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvRequest {
    /// Quorum, and which nodes are online.
    Cluster,
    /// The run-state, from the guest's own node.
    Status(GuestAddress),
    /// Values in effect, what waits, birth marks and guards, all of one moment and from the guest's own node.
    ///
    /// One question and not two: values and what waits for a restart, read one after the other, may belong to two configs.
    Config(GuestAddress),
    /// On which node a guest is that is not where it was.
    Locate(Vmid),
    /// Carry out the change. The only ask that changes anything.
    Send {
        /// On which guest.
        address: GuestAddress,
        /// What.
        change: Change,
        /// The reading that a config write is bound to (S7).
        revision: Option<ConfigRevision>,
    },
    /// How a task stands.
    Task(TaskId),
    /// The tasks of a guest that do what this change does.
    Tasks {
        /// The guest.
        address: GuestAddress,
        /// The change.
        change: Change,
        /// How many seconds ago the oldest that counts was begun: a list that may end before it tells nothing. What is at work counts
        /// however old it says that it is.
        age_secs_max: u64,
    },
}

impl EnvRequest {
    /// Whether it changes anything.
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        matches!(self, Self::Send { .. })
    }

    /// The word for it, for logs and traces.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Status(_) => "status",
            Self::Config(_) => "config",
            Self::Locate(_) => "where",
            Self::Send { .. } => "send",
            Self::Task(_) => "task",
            Self::Tasks { .. } => "tasks",
        }
    }
}

/// What an adapter needs back to bind a config write to the reading that it was checked on; opaque here.
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

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvResponse {
    /// To [`EnvRequest::Cluster`].
    Cluster(ClusterMembership),
    /// To [`EnvRequest::Status`].
    Status(LiveStatus),
    /// To [`EnvRequest::Config`].
    Config(Box<LiveConfig>),
    /// To [`EnvRequest::Where`]; `None`: it is not listed, which proves nothing (S5).
    Located(Option<GuestAddress>),
    /// To [`EnvRequest::Send`].
    Sent(SendResult),
    /// To [`EnvRequest::Task`].
    Task(TaskState),
    /// To [`EnvRequest::Tasks`].
    Tasks(Vec<ObservedTask>),
    /// The node says that it has no such guest.
    GuestNotFound(EnvFault),
    /// It could not be read. Nothing is known by it.
    Unreadable(EnvFault),
}

/// The cluster, as the node that answers sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterMembership {
    /// Whether it has quorum.
    pub quorate: bool,
    /// The nodes, and whether they are online.
    pub nodes: BTreeMap<NodeName, bool>,
}

/// The run-state of a guest, from its own node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveStatus {
    /// Known only where the platform's own word is plainly `running` or `stopped`; a paused guest is neither.
    pub status: ObservedStatus,
    /// The platform's word.
    pub word: Box<str>,
    /// The lock.
    pub lock: Option<Box<str>>,
    /// The high-availability manager's hold on it.
    pub ha: Option<HaState>,
    /// Seconds since it was started.
    pub uptime_secs: Option<u64>,
}

/// The config of a guest, all of one moment. What could not be understood is no reading at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveConfig {
    /// The name under which it is shown; words of others.
    pub name: Box<str>,
    /// The birth marks.
    pub identity: GuestIdentity,
    /// The hardware addresses of its network devices, in upper case.
    pub macs: WordSet,
    /// The values in effect.
    pub values: EffectiveValues,
    /// What waits for the next start.
    pub pending: Box<[PendingChange]>,
    /// The tags.
    pub tags: WordSet,
    /// The lock.
    pub lock: Option<Box<str>>,
    /// Whether it is a template.
    pub template: bool,
    /// Whether the platform's own protection is on.
    pub protection: bool,
    /// What binds a write to this reading; none where the platform gave nothing.
    pub revision: Option<ConfigRevision>,
}

/// What became of a change that was sent once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendResult {
    /// A task does it.
    Task(TaskId),
    /// It is done, as the environment says.
    Done,
    /// The environment decided against it, and nothing changed.
    Rejected(EnvFault),
    /// Nobody acted on it.
    NotDelivered(EnvFault),
    /// It may have been carried out, in part or whole: only reading tells.
    MaybeExecuted(EnvFault),
}

/// How a task stands. A lost one is neither done nor failed (S17).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It is at work.
    Running,
    /// It ended well.
    Ended {
        /// So many warnings.
        warnings: u32,
        /// It was begun so many seconds ago, by the clock of the node that it ran on. None where that clock was not heard.
        age_secs: Option<u64>,
    },
    /// It ended with an error.
    Failed {
        /// What it said.
        cause: EnvFault,
        /// As where it ended well.
        age_secs: Option<u64>,
    },
    /// How it ended is not known: killed, its node went down, or nobody remembers it.
    Lost(EnvFault),
}

/// A task that does what was asked for, whoever began it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedTask {
    /// Its id.
    pub task: TaskId,
    /// Where the list says that it has ended: how many seconds ago it was begun, by the clock of the node that it ran on. Clocks here and
    /// there, and of two nodes, may be hours apart. None where it is at work; lists lag behind, and only [`EnvRequest::Task`] tells.
    pub ended_age_secs: Option<u64>,
    /// Whether it was begun by whoever asks. What was sent before a crash may have been sent under another name.
    pub is_ours: bool,
}

/// Why something was not as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvFault {
    /// What it amounts to here.
    pub kind: EnvFaultKind,
    /// The adapter's word for it.
    pub word: Slug,
    /// What was said, shortened; words of others.
    pub text: Box<str>,
}

/// What a cause amounts to, as far as the engine goes different ways by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EnvFaultKind {
    /// The config is not the one that was read.
    ConfigChanged,
    /// A lock is set in the guest's config.
    Locked,
    /// Another process holds a lock file of the guest or of the cluster; nothing in the guest's config says so.
    LockFile,
    /// Protection is on.
    Protected,
    /// The cluster has no quorum.
    NotQuorate,
    /// The guest is not there.
    GuestNotFound,
    /// The guest is a template.
    Template,
    /// High availability owns it.
    HaOwned,
    /// This program cannot put it into a request.
    Unsupported,
    /// The guest did not go down in time; it still may.
    ShutdownTimeout,
    /// There was no room for the request, and it was not sent.
    Busy,
    /// Anything else.
    Other,
}

impl EnvFault {
    /// The longest text that is kept, in characters.
    pub const TEXT_CHARS_MAX: usize = 500;

    /// A cause; the text is shortened.
    #[must_use]
    pub fn new(trouble: EnvFaultKind, word: &str, text: &str) -> Self {
        let word = Slug::new(word).unwrap_or_else(Slug::placeholder);
        Self { kind: trouble, word, text: text.trim().chars().take(Self::TEXT_CHARS_MAX).collect::<String>().into() }
    }

    /// These facts and what this cause says.
    #[must_use]
    pub fn add_to_evidence(&self, evidence: Evidence) -> Evidence {
        let evidence = evidence.with("cause", self.word.as_str());
        if self.text.is_empty() { evidence } else { evidence.with("said", &*self.text) }
    }
}
