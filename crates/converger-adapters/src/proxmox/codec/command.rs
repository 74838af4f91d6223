//! The closed set of commands for Proxmox, and the request for each. There is no raw endpoint and no free parameter.
//!
//! Never sent: `skiplock`, `force`, `purge`, `overrule-shutdown`, relative sizes, and config keys that are not in the core's table of
//! fields.

use converger_core::action::{ClonedDisks, FieldChange, GuestClone, Migration, MigrationMode, NewSnapshot};
use converger_core::guest::{GuestKind, NodeName, Vmid};

use super::field::{self, FieldWrite, UnwritableChange};
use super::identifiers::{ConfigDigest, DiskKey, DiskSize, GuestPath, SnapshotName, StorageName, UserId};
use super::provision::{ProvisionWrite, WritePassword};
use super::request::{FormParameters, HttpMethod, HttpRequest};
use super::response::CallEffect;
use super::upid::Upid;
use super::write_basis::WriteBasis;

/// A command for Proxmox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxmoxCommand {
    /// Reads; changes nothing.
    Read(ProxmoxRead),
    /// Changes a guest.
    Write(ProxmoxWrite),
}

/// What can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ProxmoxRead {
    /// The release of the endpoint.
    Version,
    /// The cluster's name, its quorum and its nodes.
    ClusterStatus,
    /// All guests that the token may see, from the cluster's cache.
    Resources,
    /// The guests of one kind on a node that the token may see, computed by the node on request. A paused virtual machine reads `running`.
    NodeGuests {
        node: NodeName,
        kind: GuestKind,
    },
    /// The virtual machines of a node with the states of their monitors, such as `paused`. The node queries every monitor for it.
    NodeGuestsInFull(NodeName),
    /// The privileges of the token, on every path or on the path of one guest.
    Permissions,
    PermissionsOn(Vmid),
    /// The privileges of a user on every path, such as of the owner of the token.
    PermissionsOf(UserId),
    /// A user with its tokens.
    User(UserId),
    /// All roles.
    Roles,
    /// Whether an id is free, across all kinds and permissions.
    NextId(Vmid),
    /// The run-state of a guest from its own node.
    GuestStatus(GuestPath),
    /// The values in effect and the pending ones, in one response.
    GuestPending(GuestPath),
    /// The snapshots of a guest.
    Snapshots(GuestPath),
    /// The config of a guest in one of its snapshots.
    SnapshotConfig {
        guest: GuestPath,
        name: SnapshotName,
    },
    /// The replication jobs of all guests that the token may see.
    ReplicationJobs,
    /// The memory and CPUs of a node.
    NodeStatus(NodeName),
    /// The storages of a node that the token may see.
    NodeStorages(NodeName),
    /// The states of guests in high availability, and whether it can fence.
    HaStatus,
    /// The datacenter's rules for tags.
    TagOptions,
    /// The release and the clock of a node.
    NodeVersion(NodeName),
    NodeTime(NodeName),
    /// The certificates of a node, including the root CA of its cluster.
    Certificates(NodeName),
    /// Whether a task runs, and how it ended.
    TaskStatus(Upid),
    /// The running and ended tasks of a guest on a node.
    Tasks {
        node: NodeName,
        vmid: Vmid,
    },
}

/// What can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ProxmoxWrite {
    Start(GuestPath),
    /// Gracefully; after the timeout the guest keeps running.
    Shutdown {
        guest: GuestPath,
        timeout_secs: u32,
    },
    /// Immediately, like a power cut.
    Stop(GuestPath),
    /// Virtual machines only: Proxmox's reboot of a container kills it after the timeout.
    RebootQemu {
        node: NodeName,
        vmid: Vmid,
        timeout_secs: u32,
    },
    ConfigSet(ConfigSet),
    Provision(Box<ProvisionWrite>),
    SnapshotCreate {
        guest: GuestPath,
        snapshot: NewSnapshot,
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
        /// The source.
        guest: GuestPath,
        clone: Box<GuestClone>,
    },
    Migrate {
        guest: GuestPath,
        migration: Box<Migration>,
    },
    /// To an absolute size, which must be larger than the current one.
    Grow {
        guest: GuestPath,
        disk: DiskKey,
        size: DiskSize,
        digest: ConfigDigest,
    },
}

/// How long a container may take to shut down before it is moved. Proxmox then kills it; a container that needs longer is moved offline.
const RESTART_TIMEOUT_SECS: u32 = 180;

/// A write of config keys, bound to the config that it was planned on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigSet {
    guest: GuestPath,
    parameters: Box<[(&'static str, String)]>,
    delete: Box<[&'static str]>,
    /// The requested changes, for comparison with the config after the write.
    changes: Box<[FieldChange]>,
    digest: ConfigDigest,
}

impl ConfigSet {
    /// The write for these changes, bound to the config that they were checked against.
    ///
    /// # Errors
    /// A field that this kind does not have or that this program does not write, a value of another type, or a pending change that was not
    /// part of the plan.
    pub fn new(guest: GuestPath, changes: &[FieldChange], basis: &WriteBasis) -> Result<Self, UnwritableChange> {
        if changes.is_empty() {
            return Err(UnwritableChange::Nothing);
        }
        if let Some(refusal) = basis.unwritable_reason(changes) {
            return Err(refusal);
        }
        let mut parameters = Vec::new();
        let mut delete = Vec::new();
        for change in changes {
            match field::encode_field(guest.kind, change.field, change.after.as_ref(), basis.agent())? {
                FieldWrite::Set(text) => parameters.push((change.field.word(), text)),
                FieldWrite::Delete => delete.push(change.field.word()),
            }
        }
        Ok(Self { guest, parameters: parameters.into(), delete: delete.into(), changes: changes.into(), digest: basis.digest().clone() })
    }

    /// The guest that is written to.
    #[must_use]
    pub fn guest(&self) -> &GuestPath {
        &self.guest
    }

    /// The keys to set, with their texts.
    #[must_use]
    pub fn parameters(&self) -> &[(&'static str, String)] {
        &self.parameters
    }

    /// The fields with their new values.
    #[must_use]
    pub fn changes(&self) -> &[FieldChange] {
        &self.changes
    }

    /// The keys to remove.
    #[must_use]
    pub fn removed_keys(&self) -> &[&'static str] {
        &self.delete
    }
}

/// Encodes a command as a request.
#[must_use]
pub fn encode(command: &ProxmoxCommand) -> HttpRequest {
    match command {
        ProxmoxCommand::Read(read) => encode_read(read),
        ProxmoxCommand::Write(write) => encode_write(write),
    }
}

fn encode_read(read: &ProxmoxRead) -> HttpRequest {
    let get = |segments: &[&str], parameters: FormParameters| HttpRequest::new(HttpMethod::Get, segments, &parameters);
    let none = FormParameters::empty();
    match read {
        ProxmoxRead::Version => get(&["version"], none),
        ProxmoxRead::ClusterStatus => get(&["cluster", "status"], none),
        ProxmoxRead::Resources => get(&["cluster", "resources"], none.with("type", "vm")),
        ProxmoxRead::NodeGuests { node, kind } => get(&["nodes", node.as_str(), kind.word()], none),
        ProxmoxRead::NodeGuestsInFull(node) => get(&["nodes", node.as_str(), GuestKind::Qemu.word()], none.with("full", 1)),
        ProxmoxRead::Permissions => get(&["access", "permissions"], none),
        ProxmoxRead::PermissionsOn(vmid) => get(&["access", "permissions"], none.with("path", format!("/vms/{vmid}"))),
        ProxmoxRead::PermissionsOf(user) => get(&["access", "permissions"], none.with("userid", user.as_str())),
        ProxmoxRead::User(user) => get(&["access", "users", user.as_str()], none),
        ProxmoxRead::Roles => get(&["access", "roles"], none),
        ProxmoxRead::NextId(vmid) => get(&["cluster", "nextid"], none.with("vmid", vmid)),
        ProxmoxRead::GuestStatus(guest) => guest_request(HttpMethod::Get, guest, &["status", "current"], none),
        ProxmoxRead::GuestPending(guest) => guest_request(HttpMethod::Get, guest, &["pending"], none),
        ProxmoxRead::Snapshots(guest) => guest_request(HttpMethod::Get, guest, &["snapshot"], none),
        ProxmoxRead::SnapshotConfig { guest, name } => {
            guest_request(HttpMethod::Get, guest, &["config"], none.with("snapshot", name.as_str()))
        }
        ProxmoxRead::ReplicationJobs => get(&["cluster", "replication"], none),
        ProxmoxRead::NodeStatus(node) => get(&["nodes", node.as_str(), "status"], none),
        ProxmoxRead::NodeStorages(node) => get(&["nodes", node.as_str(), "storage"], none),
        ProxmoxRead::HaStatus => get(&["cluster", "ha", "status", "current"], none),
        ProxmoxRead::TagOptions => get(&["cluster", "options"], none),
        ProxmoxRead::NodeVersion(node) => get(&["nodes", node.as_str(), "version"], none),
        ProxmoxRead::NodeTime(node) => get(&["nodes", node.as_str(), "time"], none),
        ProxmoxRead::Certificates(node) => get(&["nodes", node.as_str(), "certificates", "info"], none),
        ProxmoxRead::TaskStatus(upid) => get(&["nodes", upid.node().as_str(), "tasks", upid.as_str(), "status"], none),
        // By default, Proxmox lists only ended tasks.
        ProxmoxRead::Tasks { node, vmid } => get(&["nodes", node.as_str(), "tasks"], none.with("vmid", vmid).with("source", "all")),
    }
}

fn encode_write(write: &ProxmoxWrite) -> HttpRequest {
    let none = FormParameters::empty();
    match write {
        ProxmoxWrite::Start(guest) => guest_request(HttpMethod::Post, guest, &["status", "start"], none),
        ProxmoxWrite::Shutdown { guest, timeout_secs } => {
            guest_request(HttpMethod::Post, guest, &["status", "shutdown"], none.with("timeout", timeout_secs))
        }
        ProxmoxWrite::Stop(guest) => guest_request(HttpMethod::Post, guest, &["status", "stop"], none),
        ProxmoxWrite::RebootQemu { timeout_secs, .. } => {
            guest_request(HttpMethod::Post, &write.guest(), &["status", "reboot"], none.with("timeout", timeout_secs))
        }
        ProxmoxWrite::ConfigSet(set) => encode_config(set),
        ProxmoxWrite::Provision(write) => encode_provision(write),
        ProxmoxWrite::SnapshotCreate { guest, snapshot } => {
            let parameters = none.with("snapname", snapshot.name.as_str()).with_optional("description", snapshot.description.as_deref());
            // Containers have no such parameter.
            let parameters = if snapshot.ram { parameters.with("vmstate", 1) } else { parameters };
            guest_request(HttpMethod::Post, guest, &["snapshot"], parameters)
        }
        ProxmoxWrite::SnapshotDelete { guest, name } => guest_request(HttpMethod::Delete, guest, &["snapshot", name.as_str()], none),
        ProxmoxWrite::SnapshotRollback { guest, name } => {
            guest_request(HttpMethod::Post, guest, &["snapshot", name.as_str(), "rollback"], none)
        }
        ProxmoxWrite::Clone { guest, clone } => guest_request(HttpMethod::Post, guest, &["clone"], clone_parameters(guest, clone)),
        ProxmoxWrite::Migrate { guest, migration } => {
            guest_request(HttpMethod::Post, guest, &["migrate"], migration_parameters(guest.kind, migration))
        }
        ProxmoxWrite::Grow { guest, disk, size, digest } => {
            let parameters = none.with("disk", disk.as_str()).with("size", size).with("digest", digest.as_str());
            guest_request(HttpMethod::Put, guest, &["resize"], parameters)
        }
    }
}

fn guest_request(method: HttpMethod, guest: &GuestPath, rest: &[&str], parameters: FormParameters) -> HttpRequest {
    let vmid = guest.vmid.to_string();
    let segments = [&["nodes", guest.node.as_str(), guest.kind.word(), vmid.as_str()], rest].concat();
    HttpRequest::new(method, &segments, &parameters)
}

fn encode_config(set: &ConfigSet) -> HttpRequest {
    let mut parameters = FormParameters::empty();
    for (key, text) in &set.parameters {
        parameters = parameters.with(key, text);
    }
    let delete = (!set.delete.is_empty()).then(|| set.delete.join(","));
    let parameters = parameters.with_optional("delete", delete).with("digest", set.digest.as_str());
    guest_request(HttpMethod::Put, &set.guest, &["config"], parameters)
}

/// A password that was not read yet is left out; the actuator reads it before it sends.
fn encode_provision(write: &ProvisionWrite) -> HttpRequest {
    let mut parameters = FormParameters::empty();
    for (key, text) in &write.parameters {
        parameters = parameters.with(key, text);
    }
    let password = match &write.password {
        Some(WritePassword::Text(password)) => Some(password.as_str()),
        Some(WritePassword::Reference(_)) | None => None,
    };
    let delete = (!write.delete.is_empty()).then(|| write.delete.join(","));
    let parameters = parameters.with_optional("cipassword", password).with_optional("delete", delete);
    guest_request(HttpMethod::Put, &write.guest, &["config"], parameters.with("digest", write.digest.as_str()))
}

/// A container's name is its `hostname`. Proxmox would silently ignore the wrong one of the two keys.
fn clone_parameters(guest: &GuestPath, clone: &GuestClone) -> FormParameters {
    let key = match guest.kind {
        GuestKind::Qemu => "name",
        GuestKind::Lxc => "hostname",
    };
    // A target is accepted for shared storage only, and not needed on the same node.
    let target = (clone.node != guest.node).then(|| clone.node.as_str());
    let full = u32::from(clone.disks == ClonedDisks::Full);
    FormParameters::empty()
        .with("newid", clone.vmid)
        .with(key, clone.name.as_str())
        .with("full", full)
        .with_optional("target", target)
        .with_optional("pool", clone.pool.as_deref())
        .with_optional("storage", clone.storage.as_ref().map(StorageName::as_str))
}

/// Local disks of a stopped guest are copied without being asked for; those of a running virtual machine only on request.
fn migration_parameters(kind: GuestKind, migration: &Migration) -> FormParameters {
    let storage = migration.storage.as_ref().map(StorageName::as_str);
    let storage_key = match kind {
        GuestKind::Qemu => "targetstorage",
        GuestKind::Lxc => "target-storage",
    };
    let parameters = FormParameters::empty().with("target", migration.to.as_str()).with_optional(storage_key, storage);
    match migration.mode {
        MigrationMode::Offline => parameters,
        MigrationMode::Online if migration.volumes.is_empty() => parameters.with("online", 1),
        MigrationMode::Online => parameters.with("online", 1).with("with-local-disks", 1),
        MigrationMode::Restart => parameters.with("restart", 1).with("timeout", RESTART_TIMEOUT_SECS),
    }
}

impl ProxmoxCommand {
    /// The node that carries it out; `None` for the node of the endpoint.
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

    pub(super) fn effect(&self) -> CallEffect {
        match self {
            Self::Read(_) => CallEffect::None,
            // In version 7, growing a disk is synchronous.
            Self::Write(ProxmoxWrite::ConfigSet(_) | ProxmoxWrite::Provision(_) | ProxmoxWrite::Grow { .. }) => CallEffect::Direct,
            Self::Write(_) => CallEffect::Task,
        }
    }
}

impl ProxmoxRead {
    fn node(&self) -> Option<&NodeName> {
        match self {
            Self::GuestStatus(guest) | Self::GuestPending(guest) | Self::Snapshots(guest) => Some(&guest.node),
            Self::TaskStatus(upid) => Some(upid.node()),
            Self::SnapshotConfig { guest, .. } => Some(&guest.node),
            Self::Tasks { node, .. } | Self::NodeGuests { node, .. } => Some(node),
            Self::NodeStatus(node) | Self::NodeStorages(node) => Some(node),
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
            | Self::ReplicationJobs
            | Self::HaStatus
            | Self::TagOptions => None,
        }
    }
}

impl ProxmoxWrite {
    /// The guest to change and its expected location.
    #[must_use]
    pub fn guest(&self) -> GuestPath {
        match self {
            Self::Start(guest) | Self::Stop(guest) => guest.clone(),
            Self::Shutdown { guest, .. }
            | Self::SnapshotCreate { guest, .. }
            | Self::SnapshotDelete { guest, .. }
            | Self::SnapshotRollback { guest, .. }
            | Self::Clone { guest, .. }
            | Self::Migrate { guest, .. }
            | Self::Grow { guest, .. } => guest.clone(),
            Self::RebootQemu { node, vmid, .. } => GuestPath { node: node.clone(), kind: GuestKind::Qemu, vmid: *vmid },
            Self::ConfigSet(set) => set.guest.clone(),
            Self::Provision(write) => write.guest.clone(),
        }
    }
}
