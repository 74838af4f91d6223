//! Decodes the response to each command to one typed event.
//!
//! Unknown extra fields are ignored everywhere. A missing field makes a response malformed only if the response is useless without it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use converger_core::artifact::INTEGER_MAX;
use converger_core::guest::{ClusterIdentity, GuestKind, NodeName, Vmid};
use converger_core::normalize::WordSet;
use converger_core::observe::{NodeCapacity, ObservedStorage};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::access::{self, Permissions, ProxmoxUser, RolePrivileges};
use super::capacity;
use super::command::{ProxmoxCommand, ProxmoxRead};
use super::config::{self, GuestConfig};
use super::failure_cause::{FailureCause, classify_text};
use super::field;
use super::ha::{self, HaStatus};
use super::identifiers::GuestPath;
use super::object::{Object, UniqueMap};
use super::options::{self, OptionsRow, TagOptions};
use super::response::{self, CallEffect, Delivery, HttpResponse, ProxmoxFailure};
use super::scalar::PerlScalar;
use super::snapshots::{self, ListedSnapshots, SnapshotConfig};
use super::upid::Upid;

/// The result of a successful command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ProxmoxEvent {
    Version(ProxmoxVersion),
    Cluster(ClusterStatus),
    Resources(ResourceList),
    NodeGuests(Vec<NodeGuest>),
    Permissions(Permissions),
    NextId(IdAvailability),
    GuestStatus(GuestStatus),
    Config(Box<GuestConfig>),
    Snapshots(ListedSnapshots),
    SnapshotConfig(SnapshotConfig),
    User(ProxmoxUser),
    Roles(RolePrivileges),
    Ha(HaStatus),
    TagOptions(TagOptions),
    /// The clock of a node, in seconds since 1970.
    NodeTime(u64),
    /// The memory and CPUs of a node.
    NodeCapacity(NodeCapacity),
    /// The storages of a node that the token may see, sorted by name.
    Storages(Box<[ObservedStorage]>),
    /// The guests with a replication job, as far as the token may see them.
    ReplicatedGuests(BTreeSet<Vmid>),
    /// The identity of the cluster.
    Identity(ClusterIdentity),
    Task(ProxmoxTaskState),
    Tasks(Vec<ListedTask>),
    Accepted(AcceptedChange),
}

impl ProxmoxEvent {
    /// The failure for an event that belongs to another command. [`decode`] never returns one.
    #[must_use]
    pub fn unexpected_failure(&self) -> ProxmoxFailure {
        ProxmoxFailure::without_response(Delivery::NotDelivered, FailureCause::Malformed, "the response belongs to another command")
    }
}

/// The release of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxmoxVersion {
    /// The full version, such as `9.2.11`.
    pub version: Box<str>,
    /// The first part of the version.
    pub major: u32,
}

impl ProxmoxVersion {
    /// The major versions that this program supports.
    pub const MAJORS_KNOWN: std::ops::RangeInclusive<u32> = 7..=9;

    /// Whether this program supports the release.
    #[must_use]
    pub fn is_known(&self) -> bool {
        Self::MAJORS_KNOWN.contains(&self.major)
    }
}

/// The cluster and its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Its name; `None` for a node without a cluster.
    pub name: Option<Box<str>>,
    /// Whether it has quorum. A node without a cluster always has.
    pub quorate: bool,
    /// The nodes by name, with whether they are online.
    pub nodes: BTreeMap<NodeName, bool>,
    /// The node of the endpoint.
    pub local: Option<NodeName>,
}

impl ClusterStatus {
    /// The name of the cluster, or of a node without a cluster.
    #[must_use]
    pub fn effective_name(&self) -> &str {
        self.name.as_deref().or(self.local.as_ref().map(NodeName::as_str)).unwrap_or("")
    }
}

/// The cluster's list of guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceList {
    /// The guests whose rows have a kind and a node.
    pub rows: Vec<GuestResource>,
    /// Guests whose rows are too incomplete to place them, each with the missing or invalid field.
    pub unusable: BTreeMap<Vmid, &'static str>,
}

/// A guest in the cluster's list. Run-state and name come from a cache; lock, tags and node come from the config.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct GuestResource {
    pub vmid: Vmid,
    pub kind: GuestKind,
    pub node: NodeName,
    pub status: Box<str>,
    pub name: Option<Box<str>>,
    pub template: Option<bool>,
    pub lock: Option<Box<str>>,
    pub tags: WordSet,
    pub ha_state: Option<Box<str>>,
    pub cpus: Option<u32>,
    pub maxmem: Option<u64>,
    /// The uptime of its process at the node's last report. The difference to the current uptime is the age of the report.
    pub uptime_secs: Option<u64>,
    /// A field with a value of an impossible type.
    pub invalid_field: Option<&'static str>,
}

/// A guest in the list of its own node, as of the time of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct NodeGuest {
    pub vmid: Vmid,
    /// Running or stopped, depending on whether its process exists.
    pub status: Box<str>,
    /// The state of its monitor; only in a full list.
    pub qmp_status: Option<Box<str>>,
    pub name: Option<Box<str>>,
    pub template: bool,
    pub lock: Option<Box<str>>,
    pub tags: WordSet,
    pub cpus: Option<u32>,
    pub maxmem: Option<u64>,
    /// Seconds since its process started.
    pub uptime_secs: Option<u64>,
    /// A field with a value of an impossible type.
    pub invalid_field: Option<&'static str>,
}

impl NodeGuest {
    /// The word for its run-state, as [`GuestStatus::word`] forms it.
    #[must_use]
    pub fn word(&self) -> Box<str> {
        run_state_word(&self.status, self.qmp_status.as_deref())
    }
}

/// Whether an id is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdAvailability {
    /// No guest has it, according to the list behind this response.
    Free,
    /// A guest of some kind has it, whether or not the token may see the guest.
    Taken,
}

/// The run-state of a guest from its own node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestStatus {
    /// Running or stopped, depending on whether its process exists.
    pub status: Box<str>,
    /// The more specific state of a virtual machine, if its monitor responds.
    pub qmp_status: Option<Box<str>>,
    /// Its name, or one made of its id.
    pub name: Option<Box<str>>,
    /// The lock.
    pub lock: Option<Box<str>>,
    /// Seconds since its process started, including pauses.
    pub uptime_secs: Option<u64>,
    /// Its number of processors.
    pub cpus: Option<u32>,
    /// Its memory in bytes.
    pub maxmem: Option<u64>,
    /// High availability: `None` if the guest is not managed by it, otherwise its state, which may be missing.
    pub ha: Option<Option<Box<str>>>,
}

impl GuestStatus {
    /// The word for its run-state: that of the monitor, which is more specific for a running process. If the two contradict each other, the
    /// word combines both, which matches no known state.
    #[must_use]
    pub fn word(&self) -> Box<str> {
        run_state_word(&self.status, self.qmp_status.as_deref())
    }
}

fn run_state_word(status: &str, qmp_status: Option<&str>) -> Box<str> {
    match qmp_status {
        None => status.into(),
        Some(monitor_state) if monitor_state == status || (status == "running" && monitor_state != "stopped") => monitor_state.into(),
        Some(monitor_state) => format!("{status}/{monitor_state}").into(),
    }
}

/// The state of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxmoxTaskState {
    /// Its process exists.
    Running,
    /// It succeeded, possibly with warnings.
    Ended {
        /// Number of warnings.
        warnings: u32,
    },
    /// It failed, or its end is unknown; the cause of the latter is [`FailureCause::TaskKilled`].
    Failed {
        /// The cause, classified by the text.
        cause: FailureCause,
        /// Its exit status.
        text: Box<str>,
    },
}

/// A task in a list. Lists lag behind; only [`ProxmoxRead::TaskStatus`] tells whether it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTask {
    /// Its id.
    pub upid: Upid,
    /// How it ended, if the list contains that.
    pub end: Option<Box<str>>,
}

/// How a change was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceptedChange {
    /// It is complete.
    Done,
    /// A task carries it out; its end and the guest's state must be read.
    Task(Upid),
}

/// Decodes the response to a command.
///
/// # Errors
/// The command failed, or its result cannot be determined.
pub fn decode(command: &ProxmoxCommand, answer: &HttpResponse) -> Result<ProxmoxEvent, ProxmoxFailure> {
    match command {
        ProxmoxCommand::Read(read) => decode_read(read, answer),
        ProxmoxCommand::Write(_) => decode_accepted(command.effect(), answer).map(ProxmoxEvent::Accepted),
    }
}

fn decode_read(read: &ProxmoxRead, answer: &HttpResponse) -> Result<ProxmoxEvent, ProxmoxFailure> {
    match read {
        ProxmoxRead::Version | ProxmoxRead::NodeVersion(_) => {
            require_data(answer).and_then(|Object(row)| parse_version(answer, &row)).map(ProxmoxEvent::Version)
        }
        ProxmoxRead::ClusterStatus => objects(answer).and_then(|rows| parse_cluster(answer, &rows)).map(ProxmoxEvent::Cluster),
        ProxmoxRead::Resources => require_data(answer).map(ProxmoxEvent::Resources),
        ProxmoxRead::NodeGuests { .. } | ProxmoxRead::NodeGuestsInFull(_) => {
            objects(answer).map(|rows: Vec<NodeGuestRow<'_>>| ProxmoxEvent::NodeGuests(rows.into_iter().filter_map(node_guest).collect()))
        }
        ProxmoxRead::Permissions | ProxmoxRead::PermissionsOn(_) | ProxmoxRead::PermissionsOf(_) => {
            require_data(answer).map(|rows| ProxmoxEvent::Permissions(access::parse_permissions(rows)))
        }
        ProxmoxRead::User(_) => require_data(answer).map(|Object(row)| ProxmoxEvent::User(access::parse_user(row))),
        ProxmoxRead::Roles => objects(answer).map(|rows| ProxmoxEvent::Roles(access::parse_roles(rows))),
        ProxmoxRead::NextId(vmid) => decode_next_id(answer, *vmid).map(ProxmoxEvent::NextId),
        ProxmoxRead::GuestStatus(guest) => {
            require_guest_data(answer, guest).and_then(|Object(row)| parse_guest_status(answer, guest, row)).map(ProxmoxEvent::GuestStatus)
        }
        ProxmoxRead::GuestPending(guest) => require_guest_data(answer, guest).map(|items: Vec<Object<config::PendingItem<'_>>>| {
            let items: Vec<config::PendingItem<'_>> = items.into_iter().map(|Object(item)| item).collect();
            ProxmoxEvent::Config(config::from_items(guest.kind, &items).into())
        }),
        ProxmoxRead::Snapshots(guest) => require_guest_objects(answer, guest)
            .and_then(|rows| snapshots::parse_snapshots(&rows).map_err(|text| malformed(answer, text)))
            .map(ProxmoxEvent::Snapshots),
        ProxmoxRead::SnapshotConfig { guest, .. } => require_guest_data(answer, guest)
            .and_then(|Object(row)| snapshots::parse_snapshot_config(&row).map_err(|text| malformed(answer, text)))
            .map(ProxmoxEvent::SnapshotConfig),
        ProxmoxRead::NodeStatus(_) => require_data(answer)
            .and_then(|Object(row)| capacity::parse_capacity(&row).map_err(|key| malformed_field(answer, "the status of the node", key)))
            .map(ProxmoxEvent::NodeCapacity),
        ProxmoxRead::NodeStorages(_) => objects(answer)
            .and_then(|rows| capacity::parse_storages(&rows).map_err(|key| malformed_field(answer, "the list of storages", key)))
            .map(ProxmoxEvent::Storages),
        ProxmoxRead::ReplicationJobs => objects(answer)
            .and_then(|rows| {
                let guests = capacity::parse_replicated_guests(&rows);
                guests.ok_or_else(|| malformed_field(answer, "the list of replication jobs", "guest"))
            })
            .map(ProxmoxEvent::ReplicatedGuests),
        ProxmoxRead::HaStatus => objects(answer).map(|rows| ProxmoxEvent::Ha(ha::parse_ha_status(rows))),
        ProxmoxRead::TagOptions => require_data(answer).and_then(|Object(row)| tag_options(answer, &row)).map(ProxmoxEvent::TagOptions),
        ProxmoxRead::NodeTime(_) => require_data(answer).and_then(|Object(row)| parse_time(answer, &row)).map(ProxmoxEvent::NodeTime),
        ProxmoxRead::Certificates(_) => {
            objects(answer).and_then(|rows: Vec<CertificateRow<'_>>| identity(answer, &rows)).map(ProxmoxEvent::Identity)
        }
        ProxmoxRead::TaskStatus(upid) => {
            require_data(answer).and_then(|Object(row)| parse_task_state(answer, upid, &row)).map(ProxmoxEvent::Task)
        }
        ProxmoxRead::Tasks { .. } => {
            objects(answer).map(|rows: Vec<TaskRow<'_>>| ProxmoxEvent::Tasks(rows.into_iter().filter_map(parse_task).collect()))
        }
    }
}

/// The data of the response to a read, which is always present.
fn require_data<'a, T: Deserialize<'a>>(answer: &'a HttpResponse) -> Result<T, ProxmoxFailure> {
    response::parse_data(CallEffect::None, answer)?.ok_or_else(|| {
        ProxmoxFailure::malformed_response(
            CallEffect::None,
            answer.status,
            "the response has no `data`, which every response of Proxmox has",
        )
    })
}

/// Like [`require_data`], for a list of objects.
fn objects<'a, T: Deserialize<'a>>(answer: &'a HttpResponse) -> Result<Vec<T>, ProxmoxFailure> {
    require_data(answer).map(|rows: Vec<Object<T>>| rows.into_iter().map(|Object(row)| row).collect())
}

/// Like [`require_data`], for a single guest. The absence of a guest is proven only if the error names the requested guest.
fn require_guest_data<'a, T: Deserialize<'a>>(answer: &'a HttpResponse, guest: &GuestPath) -> Result<T, ProxmoxFailure> {
    require_data(answer).map_err(|failure| {
        let named = [format!("/{}.conf'", guest.vmid), format!(" {} on node '", guest.vmid)];
        let is_of_another = failure.cause == FailureCause::NoSuchGuest && !named.iter().any(|part| failure.text.contains(part));
        if is_of_another { ProxmoxFailure { cause: FailureCause::Malformed, ..failure } } else { failure }
    })
}

/// Like [`require_guest_data`], for a list of objects.
fn require_guest_objects<'a, T: Deserialize<'a>>(answer: &'a HttpResponse, guest: &GuestPath) -> Result<Vec<T>, ProxmoxFailure> {
    require_guest_data(answer, guest).map(|rows: Vec<Object<T>>| rows.into_iter().map(|Object(row)| row).collect())
}

fn malformed(answer: &HttpResponse, text: impl Into<Box<str>>) -> ProxmoxFailure {
    ProxmoxFailure::malformed_response(CallEffect::None, answer.status, text)
}

fn malformed_field(answer: &HttpResponse, what: &str, key: &str) -> ProxmoxFailure {
    malformed(answer, format!("{what} has no usable `{key}`"))
}

/// `data: null` is success too: some calls act before they respond.
fn decode_accepted(effect: CallEffect, answer: &HttpResponse) -> Result<AcceptedChange, ProxmoxFailure> {
    let Some(data) = response::parse_data::<PerlScalar<'_>>(effect, answer)?.filter(|data| !data.is_absent_or_null()) else {
        return Ok(AcceptedChange::Done);
    };
    let upid = data.text().and_then(|text| Upid::new(&text));
    upid.map(AcceptedChange::Task).ok_or_else(|| ProxmoxFailure::malformed_response(effect, answer.status, "the response is not a task id"))
}

#[derive(Default, Deserialize)]
struct VersionRow<'a> {
    #[serde(borrow, default)]
    version: PerlScalar<'a>,
}

fn parse_version(answer: &HttpResponse, row: &VersionRow<'_>) -> Result<ProxmoxVersion, ProxmoxFailure> {
    let text = row.version.text().unwrap_or_default();
    let major = text.split(['.', '-']).next().and_then(|part| part.parse().ok());
    let unclear = || ProxmoxFailure::malformed_response(CallEffect::None, answer.status, "the response names no version of Proxmox VE");
    Ok(ProxmoxVersion { version: text.clone().into(), major: major.ok_or_else(unclear)? })
}

#[derive(Default, Deserialize)]
struct CertificateRow<'a> {
    #[serde(borrow, default)]
    filename: PerlScalar<'a>,
    #[serde(borrow, default)]
    fingerprint: PerlScalar<'a>,
}

/// The file of the root CA that all nodes of a cluster share. Some releases list it with its directory, some without.
const ROOT_CA: &str = "pve-root-ca.pem";

/// The fingerprint of the root CA. A node that cannot read the file omits its row. The other certificates do not identify the cluster:
/// several clusters may share an uploaded one.
fn identity(answer: &HttpResponse, rows: &[CertificateRow<'_>]) -> Result<ClusterIdentity, ProxmoxFailure> {
    let odd = |text: String| ProxmoxFailure::malformed_response(CallEffect::None, answer.status, text);
    let is_root = |row: &&CertificateRow<'_>| row.filename.text().is_some_and(|name| name.rsplit('/').next() == Some(ROOT_CA));
    let mut roots = rows.iter().filter(is_root);
    match (roots.next(), roots.next()) {
        (None, _) => Err(odd(format!("the node does not list `{ROOT_CA}`"))),
        (Some(_), Some(_)) => Err(odd(format!("the node lists `{ROOT_CA}` twice"))),
        (Some(row), None) => row
            .fingerprint
            .text()
            .and_then(|text| ClusterIdentity::parse(&text))
            .ok_or_else(|| odd(format!("the fingerprint of `{ROOT_CA}` is not the SHA-256 of a certificate"))),
    }
}

#[derive(Default, Deserialize)]
struct ClusterRow<'a> {
    #[serde(borrow, default)]
    r#type: PerlScalar<'a>,
    #[serde(borrow, default)]
    name: PerlScalar<'a>,
    #[serde(borrow, default)]
    quorate: PerlScalar<'a>,
    #[serde(borrow, default)]
    online: PerlScalar<'a>,
    #[serde(borrow, default)]
    local: PerlScalar<'a>,
}

/// Contradicting rows are an error, because choosing one of them would be a guess.
fn parse_cluster(answer: &HttpResponse, rows: &[ClusterRow<'_>]) -> Result<ClusterStatus, ProxmoxFailure> {
    let odd = |text: &str| ProxmoxFailure::malformed_response(CallEffect::None, answer.status, text);
    let nodes = rows.iter().filter(|row| row.r#type.is_text("node"));
    let named = nodes.map(|row| Some((NodeName::new(&row.name.text()?)?, row)));
    let named: Vec<(NodeName, &ClusterRow)> = named.collect::<Option<_>>().ok_or_else(|| odd("the response has a node without a name"))?;
    let names: BTreeSet<&NodeName> = named.iter().map(|(name, _)| name).collect();
    if names.is_empty() || names.len() != named.len() {
        return Err(odd(if names.is_empty() { "the response names no node" } else { "the response names a node twice" }));
    }
    if named.iter().filter(|(_, row)| row.local.flag() == Some(true)).count() > 1 {
        return Err(odd("the response marks two nodes as local"));
    }
    let mut clusters = rows.iter().filter(|row| row.r#type.is_text("cluster"));
    let whole = clusters.next();
    if clusters.next().is_some() {
        return Err(odd("the response names two clusters"));
    }
    Ok(ClusterStatus {
        name: whole.and_then(|row| row.name.word()),
        // Without a row for the cluster, a single node is a node without a cluster.
        quorate: whole.map_or(named.len() == 1, |row| row.quorate.flag() == Some(true)),
        local: named.iter().find(|(_, row)| row.local.flag() == Some(true)).map(|(name, _)| name.clone()),
        nodes: named.into_iter().map(|(name, row)| (name, row.online.flag() == Some(true))).collect(),
    })
}

#[derive(Default, Deserialize)]
struct ResourceRow<'a> {
    #[serde(borrow, default)]
    vmid: PerlScalar<'a>,
    #[serde(borrow, default)]
    r#type: PerlScalar<'a>,
    #[serde(borrow, default)]
    node: PerlScalar<'a>,
    #[serde(borrow, default)]
    status: PerlScalar<'a>,
    #[serde(borrow, default)]
    name: PerlScalar<'a>,
    #[serde(borrow, default)]
    template: PerlScalar<'a>,
    #[serde(borrow, default)]
    lock: PerlScalar<'a>,
    #[serde(borrow, default)]
    tags: PerlScalar<'a>,
    #[serde(borrow, default)]
    hastate: PerlScalar<'a>,
    #[serde(borrow, default)]
    maxcpu: PerlScalar<'a>,
    #[serde(borrow, default)]
    maxmem: PerlScalar<'a>,
    #[serde(borrow, default)]
    uptime: PerlScalar<'a>,
}

impl<'de> Deserialize<'de> for ResourceList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ResourceVisitor)
    }
}

struct ResourceVisitor;

impl<'de> Visitor<'de> for ResourceVisitor {
    type Value = ResourceList;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<ResourceList, A::Error> {
        let (mut list, mut number) = (ResourceList::default(), 0_usize);
        while let Some(Object(row)) = rows.next_element::<Object<ResourceRow<'de>>>()? {
            number += 1;
            // The row may belong to any guest, so nothing can be said about guests that the list seems to lack.
            add_row(&mut list, row).map_err(|NoId| A::Error::custom(format!("row {number} of the list of guests has no usable `vmid`")))?;
        }
        Ok(list)
    }
}

/// A row without a usable id.
struct NoId;

/// Adds a guest's row to the list. Rows of other types and of ids outside this program's range are dropped.
fn add_row(list: &mut ResourceList, row: ResourceRow<'_>) -> Result<(), NoId> {
    if row.r#type.text().is_some_and(|type_name| OTHER_TYPES.contains(&&*type_name)) {
        return Ok(());
    }
    let Some(vmid) = Vmid::new(row.vmid.number().ok_or(NoId)?) else { return Ok(()) };
    let kind = row.r#type.text().and_then(|type_name| parse_kind(&type_name));
    let node = row.node.text().and_then(|name| NodeName::new(&name));
    match (kind, node) {
        (Some(kind), Some(node)) => list.rows.push(parse_resource(row, vmid, kind, node)),
        (None, _) => drop(list.unusable.insert(vmid, "type")),
        (_, None) => drop(list.unusable.insert(vmid, "node")),
    }
    Ok(())
}

fn parse_resource(row: ResourceRow<'_>, vmid: Vmid, kind: GuestKind, node: NodeName) -> GuestResource {
    let tags = row.tags.text().map_or_else(|| Some(WordSet::default()), |text| field::parse_tags(&text));
    let invalid_field = find_invalid_field(&row).or(tags.is_none().then_some("tags"));
    GuestResource {
        vmid,
        kind,
        node,
        status: row.status.word().unwrap_or_else(|| "unknown".into()),
        name: row.name.word(),
        template: row.template.flag(),
        lock: row.lock.word(),
        tags: tags.unwrap_or_default(),
        ha_state: row.hastate.word(),
        cpus: parse_processors(&row.maxcpu),
        maxmem: parse_memory(&row.maxmem),
        uptime_secs: row.uptime.number(),
        invalid_field,
    }
}

/// Types of resources other than guests, in case more is listed than requested.
const OTHER_TYPES: [&str; 5] = ["network", "node", "pool", "sdn", "storage"];

/// The first invalid field of a row, as for [`strange_field`].
fn find_invalid_field(row: &ResourceRow<'_>) -> Option<&'static str> {
    let guards = [("lock", &row.lock), ("tags", &row.tags), ("hastate", &row.hastate)];
    strange_field(&[("status", &row.status), ("name", &row.name)], &guards, &row.template, &row.maxmem)
}

/// The first invalid field: a list or map in place of a word, a guard that is `null`, a template flag that is neither 0 nor 1, or a memory
/// size that exceeds the integer range.
fn strange_field(
    text_fields: &[(&'static str, &PerlScalar<'_>)],
    guards: &[(&'static str, &PerlScalar<'_>)],
    template: &PerlScalar<'_>,
    maxmem: &PerlScalar<'_>,
) -> Option<&'static str> {
    let is_no_flag = *template != PerlScalar::Absent && template.flag().is_none();
    let invalid_key = text_fields.iter().find(|(_, value)| **value == PerlScalar::NotScalar).map(|(key, _)| *key);
    let invalid_key = invalid_key.or_else(|| guards.iter().find(|(_, value)| value.is_invalid_guard()).map(|(key, _)| *key));
    let is_too_much = maxmem.number().is_some_and(|bytes| bytes > INTEGER_MAX);
    invalid_key.or(is_no_flag.then_some("template")).or(is_too_much.then_some("maxmem"))
}

#[derive(Default, Deserialize)]
struct NodeGuestRow<'a> {
    #[serde(borrow, default)]
    vmid: PerlScalar<'a>,
    #[serde(borrow, default)]
    status: PerlScalar<'a>,
    #[serde(borrow, default)]
    qmpstatus: PerlScalar<'a>,
    #[serde(borrow, default)]
    name: PerlScalar<'a>,
    #[serde(borrow, default)]
    template: PerlScalar<'a>,
    #[serde(borrow, default)]
    lock: PerlScalar<'a>,
    #[serde(borrow, default)]
    tags: PerlScalar<'a>,
    #[serde(borrow, default)]
    cpus: PerlScalar<'a>,
    #[serde(borrow, default)]
    maxmem: PerlScalar<'a>,
    #[serde(borrow, default)]
    uptime: PerlScalar<'a>,
}

/// Parses a row with a valid id. A dropped row leaves its guest without a run-state; it never hides the guest.
fn node_guest(row: NodeGuestRow<'_>) -> Option<NodeGuest> {
    let tags = row.tags.text().map_or_else(|| Some(WordSet::default()), |text| field::parse_tags(&text));
    let text_fields = [("status", &row.status), ("qmpstatus", &row.qmpstatus), ("name", &row.name)];
    let invalid_field = strange_field(&text_fields, &[("lock", &row.lock), ("tags", &row.tags)], &row.template, &row.maxmem);
    Some(NodeGuest {
        vmid: row.vmid.number().and_then(Vmid::new)?,
        status: row.status.word().unwrap_or_else(|| "unknown".into()),
        qmp_status: row.qmpstatus.word(),
        name: row.name.word(),
        template: row.template.flag().unwrap_or(false),
        lock: row.lock.word(),
        // Proxmox lists every guest under a name, if necessary one made of its id.
        invalid_field: invalid_field.or(tags.is_none().then_some("tags")).or(row.name.word().is_none().then_some("name")),
        tags: tags.unwrap_or_default(),
        cpus: parse_processors(&row.cpus),
        maxmem: parse_memory(&row.maxmem),
        uptime_secs: row.uptime.number(),
    })
}

fn parse_kind(kind_name: &str) -> Option<GuestKind> {
    GuestKind::ALL.into_iter().find(|kind| kind.word() == kind_name)
}

/// Proxmox reports a taken id with 400 and an error for `vmid`. It reports a free id only by returning it.
fn decode_next_id(answer: &HttpResponse, vmid: Vmid) -> Result<IdAvailability, ProxmoxFailure> {
    match require_data::<PerlScalar<'_>>(answer) {
        Ok(free) if free.number().and_then(Vmid::new) == Some(vmid) => Ok(IdAvailability::Free),
        Ok(_) => Err(ProxmoxFailure::malformed_response(CallEffect::None, answer.status, "the response is about another id")),
        Err(failure) if failure.cause == FailureCause::AlreadyExists && failure.delivery == Delivery::Rejected => Ok(IdAvailability::Taken),
        Err(failure) => Err(failure),
    }
}

#[derive(Default, Deserialize)]
struct StatusRow<'a> {
    status: Box<str>,
    #[serde(borrow, default)]
    vmid: PerlScalar<'a>,
    #[serde(borrow, default)]
    qmpstatus: PerlScalar<'a>,
    #[serde(borrow, default)]
    name: PerlScalar<'a>,
    #[serde(borrow, default)]
    lock: PerlScalar<'a>,
    #[serde(borrow, default)]
    uptime: PerlScalar<'a>,
    #[serde(borrow, default)]
    cpus: PerlScalar<'a>,
    #[serde(borrow, default)]
    maxmem: PerlScalar<'a>,
    #[serde(borrow, default)]
    ha: UniqueMap<PerlScalar<'a>>,
}

fn parse_processors(value: &PerlScalar<'_>) -> Option<u32> {
    value.number().and_then(|number| u32::try_from(number).ok())
}

fn parse_memory(value: &PerlScalar<'_>) -> Option<u64> {
    value.number().filter(|bytes| *bytes <= INTEGER_MAX)
}

fn parse_guest_status(answer: &HttpResponse, guest: &GuestPath, row: StatusRow<'_>) -> Result<GuestStatus, ProxmoxFailure> {
    if !row.vmid.is_absent_or_null() && row.vmid.number().and_then(Vmid::new) != Some(guest.vmid) {
        return Err(ProxmoxFailure::malformed_response(CallEffect::None, answer.status, "the response is about another guest"));
    }
    let odd = |text: &str| ProxmoxFailure::malformed_response(CallEffect::None, answer.status, text);
    if [&row.qmpstatus, &row.name].into_iter().any(|value| *value == PerlScalar::NotScalar) || row.lock.is_invalid_guard() {
        return Err(odd("the response contains a list, a map or `null` in place of a word"));
    }
    // Every release reports it for every guest. If it is missing, high availability may manage the guest.
    let is_managed = row.ha.0.get("managed").and_then(PerlScalar::flag);
    let is_managed = is_managed.ok_or_else(|| odd("the response does not say whether high availability manages the guest"))?;
    Ok(GuestStatus {
        status: row.status,
        qmp_status: row.qmpstatus.word(),
        name: row.name.word(),
        lock: row.lock.word(),
        uptime_secs: row.uptime.number(),
        cpus: parse_processors(&row.cpus),
        maxmem: parse_memory(&row.maxmem),
        ha: is_managed.then(|| row.ha.0.get("state").and_then(PerlScalar::word)),
    })
}

#[derive(Default, Deserialize)]
struct TimeRow<'a> {
    #[serde(borrow, default)]
    time: PerlScalar<'a>,
}

fn tag_options(answer: &HttpResponse, row: &OptionsRow) -> Result<TagOptions, ProxmoxFailure> {
    let odd = |option| {
        ProxmoxFailure::malformed_response(CallEffect::None, answer.status, format!("the datacenter option `{option}` is not understood"))
    };
    options::tag_options(row).map_err(odd)
}

fn parse_time(answer: &HttpResponse, row: &TimeRow<'_>) -> Result<u64, ProxmoxFailure> {
    row.time.number().ok_or_else(|| ProxmoxFailure::malformed_response(CallEffect::None, answer.status, "the response contains no time"))
}

#[derive(Deserialize)]
struct TaskStatusRow<'a> {
    status: Box<str>,
    #[serde(borrow, default)]
    upid: PerlScalar<'a>,
    #[serde(borrow, default)]
    exitstatus: PerlScalar<'a>,
}

fn parse_task_state(answer: &HttpResponse, upid: &Upid, row: &TaskStatusRow<'_>) -> Result<ProxmoxTaskState, ProxmoxFailure> {
    if row.upid.text().is_some_and(|text| text != upid.as_str()) {
        return Err(ProxmoxFailure::malformed_response(CallEffect::None, answer.status, "the response is about another task"));
    }
    Ok(if &*row.status == "running" { ProxmoxTaskState::Running } else { parse_task_end(row) })
}

fn parse_task_end(row: &TaskStatusRow<'_>) -> ProxmoxTaskState {
    match row.exitstatus.text().as_deref() {
        Some("OK") => ProxmoxTaskState::Ended { warnings: 0 },
        Some(text) => match text.strip_prefix("WARNINGS: ").and_then(|count| count.parse().ok()) {
            Some(warnings) => ProxmoxTaskState::Ended { warnings },
            None => ProxmoxTaskState::Failed { cause: classify_text(text), text: text.into() },
        },
        None => ProxmoxTaskState::Failed { cause: FailureCause::TaskKilled, text: "no exit status".into() },
    }
}

#[derive(Default, Deserialize)]
struct TaskRow<'a> {
    #[serde(borrow, default)]
    upid: PerlScalar<'a>,
    #[serde(borrow, default)]
    status: PerlScalar<'a>,
}

fn parse_task(row: TaskRow<'_>) -> Option<ListedTask> {
    let end = row.status.word().filter(|text| &**text != "RUNNING");
    Some(ListedTask { upid: Upid::new(&row.upid.text()?)?, end })
}
