//! The closed set of what can be asked of Proxmox, and the request for each. There is no raw endpoint and no free parameter.
//!
//! What never enters: `skiplock`, `force`, `purge`, `overrule-shutdown`, relative sizes, and every config key that is not in
//! the core's table of fields.

use converger_core::action::FieldChange;
use converger_core::guest::{GuestName, Kind, NodeName, RunState, Vmid};

use super::answer::Effect;
use super::basis::Basis;
use super::field::{self, Unwritable, Written};
use super::request::{HttpRequest, Method, Parameters};
use super::upid::Upid;
use super::words::{Digest, DiskKey, DiskSize, GuestPath, SnapshotName, StorageName, UserId};

/// One thing that is asked of Proxmox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Reads; changes nothing.
    Read(Read),
    /// Changes a guest.
    Write(Write),
}

/// What can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Read {
    /// Which release answers.
    Version,
    /// The cluster's name, its quorum and its nodes.
    ClusterStatus,
    /// All guests that the token may see, from the cluster's cache.
    Resources,
    /// The guests of one kind on a node that the token may see, computed by the node when it is asked. A paused virtual machine reads `running`.
    NodeGuests {
        node: NodeName,
        kind: Kind,
    },
    /// The virtual machines of a node with the state that each monitor reports, such as `paused`. The node asks every monitor for it.
    NodeGuestsInFull(NodeName),
    /// What the token may do, on every path or on one guest's.
    Permissions,
    PermissionsOn(Vmid),
    /// What a user may do on every path, such as the owner of the token.
    PermissionsOf(UserId),
    /// A user, with its tokens.
    User(UserId),
    /// The roles that there are.
    Roles,
    /// Whether an id is free, over all kinds and permissions.
    NextId(Vmid),
    /// The run-state of a guest from its own node.
    GuestStatus(GuestPath),
    /// The values in effect and what waits for the next start, in one reading.
    GuestPending(GuestPath),
    /// The snapshots of a guest.
    Snapshots(GuestPath),
    /// What high availability believes of them, and whether it could fence.
    HaStatus,
    /// The datacenter's rules for tags.
    TagOptions,
    /// Which release a node runs, and what its clock says.
    NodeVersion(NodeName),
    NodeTime(NodeName),
    /// The certificates of a node, among them the root CA of its cluster.
    Certificates(NodeName),
    /// Whether a task runs, and how it ended.
    TaskStatus(Upid),
    /// The tasks of a guest on a node, those that run and those that have ended.
    Tasks {
        node: NodeName,
        vmid: Vmid,
    },
}

/// What can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Write {
    Start(GuestPath),
    /// Gracefully; after the timeout the guest is left as it is.
    Shutdown {
        guest: GuestPath,
        timeout_secs: u32,
    },
    /// At once, as if power were cut.
    Stop(GuestPath),
    /// Of a virtual machine only: Proxmox's reboot of a container kills it after the timeout.
    RebootQemu {
        node: NodeName,
        vmid: Vmid,
        timeout_secs: u32,
    },
    ConfigSet(ConfigSet),
    SnapshotCreate {
        guest: GuestPath,
        name: SnapshotName,
        description: Box<str>,
    },
    SnapshotDelete {
        guest: GuestPath,
        name: SnapshotName,
    },
    SnapshotRollback {
        guest: GuestPath,
        name: SnapshotName,
    },
    Clone {
        guest: GuestPath,
        to: Vmid,
        name: GuestName,
        target: Option<NodeName>,
        disks: CloneDisks,
    },
    Migrate {
        node: NodeName,
        vmid: Vmid,
        target: NodeName,
        mode: Migration,
    },
    /// To an absolute size, which must be larger than the present one.
    Grow {
        guest: GuestPath,
        disk: DiskKey,
        size: DiskSize,
        digest: Digest,
    },
    /// With all its own disks. Locks, protection and a running guest refuse it.
    Delete(GuestPath),
}

/// Where the disks of a clone go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloneDisks {
    /// They share what the template has.
    Linked,
    /// They are copied, to where the originals are or to another storage.
    Full(Option<StorageName>),
}

/// How a guest is moved, which depends on its kind: a container cannot be moved while it runs, and is restarted instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// A virtual machine that is stopped, and stays so.
    QemuOffline,
    /// A virtual machine that keeps running.
    QemuLive,
    /// A container that is stopped, and stays so.
    LxcOffline,
    /// A container that is stopped and started again.
    LxcRestart {
        /// Seconds that the stop may take.
        timeout_secs: u32,
    },
}

impl Migration {
    /// How the guest is before and after it.
    #[must_use]
    pub fn state(self) -> RunState {
        match self {
            Self::QemuOffline | Self::LxcOffline => RunState::Stopped,
            Self::QemuLive | Self::LxcRestart { .. } => RunState::Running,
        }
    }

    /// The kind of guest that is moved like this.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::QemuOffline | Self::QemuLive => Kind::Qemu,
            Self::LxcOffline | Self::LxcRestart { .. } => Kind::Lxc,
        }
    }
}

/// A write of config keys, bound to the reading that it was planned on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigSet {
    guest: GuestPath,
    parameters: Box<[(&'static str, String)]>,
    delete: Box<[&'static str]>,
    /// What was asked for, to compare with what is read afterwards.
    changes: Box<[FieldChange]>,
    digest: Digest,
}

impl ConfigSet {
    /// The write for these changes, bound to the reading that they were checked on.
    ///
    /// # Errors
    /// A field that this kind does not have, or that this program does not write, a value of another type, or something that waits for the next
    /// start and was not planned on.
    pub fn new(guest: GuestPath, changes: &[FieldChange], basis: &Basis) -> Result<Self, Unwritable> {
        if changes.is_empty() {
            return Err(Unwritable::Nothing);
        }
        if let Some(refusal) = basis.refusal(changes) {
            return Err(refusal);
        }
        let mut parameters = Vec::new();
        let mut delete = Vec::new();
        for change in changes {
            match field::write(guest.kind, change.field, change.after.as_ref(), basis.agent())? {
                Written::Set(text) => parameters.push((change.field.word(), text)),
                Written::Delete => delete.push(change.field.word()),
            }
        }
        Ok(Self { guest, parameters: parameters.into(), delete: delete.into(), changes: changes.into(), digest: basis.digest().clone() })
    }

    /// The guest that is written to.
    #[must_use]
    pub fn guest(&self) -> &GuestPath {
        &self.guest
    }

    /// The keys that are set, with the text that is sent.
    #[must_use]
    pub fn parameters(&self) -> &[(&'static str, String)] {
        &self.parameters
    }

    /// The fields with the values that they are to have.
    #[must_use]
    pub fn changes(&self) -> &[FieldChange] {
        &self.changes
    }

    /// The keys that are removed.
    #[must_use]
    pub fn delete(&self) -> &[&'static str] {
        &self.delete
    }
}

/// The request for a command.
#[must_use]
pub fn encode(command: &Command) -> HttpRequest {
    match command {
        Command::Read(read) => encode_read(read),
        Command::Write(write) => encode_write(write),
    }
}

fn encode_read(read: &Read) -> HttpRequest {
    let get = |segments: &[&str], parameters: Parameters| HttpRequest::new(Method::Get, segments, &parameters);
    let none = Parameters::none();
    match read {
        Read::Version => get(&["version"], none),
        Read::ClusterStatus => get(&["cluster", "status"], none),
        Read::Resources => get(&["cluster", "resources"], none.with("type", "vm")),
        Read::NodeGuests { node, kind } => get(&["nodes", node.as_str(), kind.word()], none),
        Read::NodeGuestsInFull(node) => get(&["nodes", node.as_str(), Kind::Qemu.word()], none.with("full", 1)),
        Read::Permissions => get(&["access", "permissions"], none),
        Read::PermissionsOn(vmid) => get(&["access", "permissions"], none.with("path", format!("/vms/{vmid}"))),
        Read::PermissionsOf(user) => get(&["access", "permissions"], none.with("userid", user.as_str())),
        Read::User(user) => get(&["access", "users", user.as_str()], none),
        Read::Roles => get(&["access", "roles"], none),
        Read::NextId(vmid) => get(&["cluster", "nextid"], none.with("vmid", vmid)),
        Read::GuestStatus(guest) => of_guest(Method::Get, guest, &["status", "current"], none),
        Read::GuestPending(guest) => of_guest(Method::Get, guest, &["pending"], none),
        Read::Snapshots(guest) => of_guest(Method::Get, guest, &["snapshot"], none),
        Read::HaStatus => get(&["cluster", "ha", "status", "current"], none),
        Read::TagOptions => get(&["cluster", "options"], none),
        Read::NodeVersion(node) => get(&["nodes", node.as_str(), "version"], none),
        Read::NodeTime(node) => get(&["nodes", node.as_str(), "time"], none),
        Read::Certificates(node) => get(&["nodes", node.as_str(), "certificates", "info"], none),
        Read::TaskStatus(upid) => get(&["nodes", upid.node().as_str(), "tasks", upid.as_str(), "status"], none),
        // By default only those that have ended are listed.
        Read::Tasks { node, vmid } => get(&["nodes", node.as_str(), "tasks"], none.with("vmid", vmid).with("source", "all")),
    }
}

fn encode_write(write: &Write) -> HttpRequest {
    let none = Parameters::none();
    match write {
        Write::Start(guest) => of_guest(Method::Post, guest, &["status", "start"], none),
        Write::Shutdown { guest, timeout_secs } => {
            of_guest(Method::Post, guest, &["status", "shutdown"], none.with("timeout", timeout_secs))
        }
        Write::Stop(guest) => of_guest(Method::Post, guest, &["status", "stop"], none),
        Write::RebootQemu { timeout_secs, .. } => {
            of_guest(Method::Post, &write.guest(), &["status", "reboot"], none.with("timeout", timeout_secs))
        }
        Write::ConfigSet(set) => encode_config(set),
        Write::SnapshotCreate { guest, name, description } => {
            let parameters = none.with("snapname", name.as_str()).with("description", description);
            of_guest(Method::Post, guest, &["snapshot"], parameters)
        }
        Write::SnapshotDelete { guest, name } => of_guest(Method::Delete, guest, &["snapshot", name.as_str()], none),
        Write::SnapshotRollback { guest, name } => of_guest(Method::Post, guest, &["snapshot", name.as_str(), "rollback"], none),
        Write::Clone { guest, to, name, target, disks } => {
            of_guest(Method::Post, guest, &["clone"], clone_parameters(guest.kind, *to, name, target.as_ref(), disks))
        }
        Write::Migrate { target, mode, .. } => {
            let parameters = none.with("target", target.as_str());
            let parameters = match mode {
                Migration::QemuOffline | Migration::LxcOffline => parameters,
                Migration::QemuLive => parameters.with("online", 1),
                Migration::LxcRestart { timeout_secs } => parameters.with("restart", 1).with("timeout", timeout_secs),
            };
            of_guest(Method::Post, &write.guest(), &["migrate"], parameters)
        }
        Write::Grow { guest, disk, size, digest } => {
            let parameters = none.with("disk", disk.as_str()).with("size", size).with("digest", digest.as_str());
            of_guest(Method::Put, guest, &["resize"], parameters)
        }
        Write::Delete(guest) => of_guest(Method::Delete, guest, &[], none.with("destroy-unreferenced-disks", 0)),
    }
}

fn of_guest(method: Method, guest: &GuestPath, rest: &[&str], parameters: Parameters) -> HttpRequest {
    let vmid = guest.vmid.to_string();
    let segments = [&["nodes", guest.node.as_str(), guest.kind.word(), vmid.as_str()], rest].concat();
    HttpRequest::new(method, &segments, &parameters)
}

fn encode_config(set: &ConfigSet) -> HttpRequest {
    let mut parameters = Parameters::none();
    for (key, text) in &set.parameters {
        parameters = parameters.with(key, text);
    }
    let delete = (!set.delete.is_empty()).then(|| set.delete.join(","));
    let parameters = parameters.with_some("delete", delete).with("digest", set.digest.as_str());
    of_guest(Method::Put, &set.guest, &["config"], parameters)
}

/// A container's name is its `hostname`; the wrong one of the two would be ignored in silence.
fn clone_parameters(kind: Kind, to: Vmid, name: &GuestName, target: Option<&NodeName>, disks: &CloneDisks) -> Parameters {
    let key = match kind {
        Kind::Qemu => "name",
        Kind::Lxc => "hostname",
    };
    let parameters = Parameters::none().with("newid", to).with(key, name.as_str()).with_some("target", target.map(NodeName::as_str));
    match disks {
        CloneDisks::Linked => parameters.with("full", 0),
        CloneDisks::Full(storage) => parameters.with("full", 1).with_some("storage", storage.as_ref().map(StorageName::as_str)),
    }
}

impl Command {
    /// The node that does the work; `None` where it is the one that was asked.
    #[must_use]
    pub fn node(&self) -> Option<NodeName> {
        match self {
            Self::Read(read) => read.node().cloned(),
            Self::Write(write) => Some(write.guest().node),
        }
    }

    /// Whether it changes something.
    #[must_use]
    pub fn is_change(&self) -> bool {
        matches!(self, Self::Write(_))
    }

    pub(super) fn effect(&self) -> Effect {
        match self {
            Self::Read(_) => Effect::None,
            // Growing a disk was synchronous in version 7.
            Self::Write(Write::ConfigSet(_) | Write::Grow { .. }) => Effect::Direct,
            Self::Write(_) => Effect::Task,
        }
    }
}

impl Read {
    fn node(&self) -> Option<&NodeName> {
        match self {
            Self::GuestStatus(guest) | Self::GuestPending(guest) | Self::Snapshots(guest) => Some(&guest.node),
            Self::TaskStatus(upid) => Some(upid.node()),
            Self::Tasks { node, .. } | Self::NodeGuests { node, .. } => Some(node),
            Self::NodeGuestsInFull(node) | Self::NodeVersion(node) | Self::NodeTime(node) | Self::Certificates(node) => Some(node),
            Self::Version
            | Self::ClusterStatus
            | Self::Resources
            | Self::Permissions
            | Self::PermissionsOn(_)
            | Self::PermissionsOf(_)
            | Self::User(_)
            | Self::Roles
            | Self::NextId(_)
            | Self::HaStatus
            | Self::TagOptions => None,
        }
    }
}

impl Write {
    /// The guest that is changed, and where it is taken to be.
    #[must_use]
    pub fn guest(&self) -> GuestPath {
        match self {
            Self::Start(guest) | Self::Stop(guest) | Self::Delete(guest) => guest.clone(),
            Self::Shutdown { guest, .. }
            | Self::SnapshotCreate { guest, .. }
            | Self::SnapshotDelete { guest, .. }
            | Self::SnapshotRollback { guest, .. }
            | Self::Clone { guest, .. }
            | Self::Grow { guest, .. } => guest.clone(),
            Self::RebootQemu { node, vmid, .. } => GuestPath { node: node.clone(), kind: Kind::Qemu, vmid: *vmid },
            Self::Migrate { node, vmid, mode, .. } => GuestPath { node: node.clone(), kind: mode.kind(), vmid: *vmid },
            Self::ConfigSet(set) => set.guest.clone(),
        }
    }
}
