//! What an answer means: one typed event for each command.
//!
//! Unknown extra fields are borne everywhere; fields that are missing make an answer malformed only where nothing could be
//! said without them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use converger_core::artifact::INTEGER_MAX;
use converger_core::guest::{ClusterIdentity, Kind, NodeName, Vmid};
use converger_core::normalize::Words;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::access::{self, Permissions, Roles, User};
use super::answer::{self, Delivery, Effect, Failure, HttpAnswer};
use super::command::{Command, Read};
use super::config::{self, GuestConfig};
use super::field;
use super::ha::{self, HaStatus};
use super::object::{Object, UniqueMap};
use super::options::{self, OptionsRow, TagOptions};
use super::reason::{Cause, classify};
use super::scalar::Scalar;
use super::upid::Upid;
use super::words::GuestPath;

/// What a command that was carried out gave.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Event {
    Version(Version),
    Cluster(Cluster),
    Resources(ResourceList),
    NodeGuests(Vec<NodeGuest>),
    Permissions(Permissions),
    NextId(NextId),
    GuestStatus(GuestStatus),
    Config(Box<GuestConfig>),
    Snapshots(Snapshots),
    User(User),
    Roles(Roles),
    Ha(HaStatus),
    TagOptions(TagOptions),
    /// The clock of a node, seconds since 1970.
    NodeTime(u64),
    /// The identity of the cluster.
    Identity(ClusterIdentity),
    Task(TaskState),
    Tasks(Vec<Task>),
    Accepted(Accepted),
}

impl Event {
    /// The failure of having been given this for something else, which [`decode`] never does.
    #[must_use]
    pub fn unexpected(&self) -> Failure {
        Failure::lost(Delivery::NotDelivered, Cause::Malformed, "the answer belongs to another command")
    }
}

/// The release of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The whole of it, such as `9.2.11`.
    pub version: Box<str>,
    /// Its first part.
    pub major: u32,
}

impl Version {
    /// The first parts of the releases that this program knows.
    pub const MAJORS_KNOWN: std::ops::RangeInclusive<u32> = 7..=9;

    /// Whether this program knows the release.
    #[must_use]
    pub fn is_known(&self) -> bool {
        Self::MAJORS_KNOWN.contains(&self.major)
    }
}

/// The cluster and its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its name; a node that is in no cluster has none.
    pub name: Option<Box<str>>,
    /// Whether it has quorum. A node that is in no cluster always has.
    pub quorate: bool,
    /// The nodes, by name, and whether they are online.
    pub nodes: BTreeMap<NodeName, bool>,
    /// The node that answered.
    pub local: Option<NodeName>,
}

impl Cluster {
    /// The name that it is known by: its own, or that of a node that stands alone.
    #[must_use]
    pub fn known_as(&self) -> &str {
        self.name.as_deref().or(self.local.as_ref().map(NodeName::as_str)).unwrap_or("")
    }
}

/// The cluster's list of guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceList {
    /// The guests whose rows say what and where they are.
    pub rows: Vec<Resource>,
    /// Guests of which a row says too little to place them, each with the field that is missing or makes no sense.
    pub unusable: BTreeMap<Vmid, &'static str>,
}

/// A guest in the cluster's list. Run-state and name come from a cache; lock, tags and place from the config.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Resource {
    pub vmid: Vmid,
    pub kind: Kind,
    pub node: NodeName,
    pub status: Box<str>,
    pub name: Option<Box<str>>,
    pub template: Option<bool>,
    pub lock: Option<Box<str>>,
    pub tags: Words,
    pub ha_state: Option<Box<str>>,
    pub cpus: Option<u32>,
    pub maxmem: Option<u64>,
    /// How long its process ran when its node last reported it. Compared with what the node says now, it gives the age of the report.
    pub uptime_secs: Option<u64>,
    /// A field whose value is of no type that it can have.
    pub strange: Option<&'static str>,
}

/// A guest in the list of its own node: all of it is of the moment at which the node was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct NodeGuest {
    pub vmid: Vmid,
    /// Running or stopped, by whether its process is there.
    pub status: Box<str>,
    /// The state that its monitor reports; only in the list that was asked for in full.
    pub qmp_status: Option<Box<str>>,
    pub name: Option<Box<str>>,
    pub template: bool,
    pub lock: Option<Box<str>>,
    pub tags: Words,
    pub cpus: Option<u32>,
    pub maxmem: Option<u64>,
    /// Seconds since its process was started.
    pub uptime_secs: Option<u64>,
    /// A field whose value is of no type that it can have.
    pub strange: Option<&'static str>,
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
pub enum NextId {
    /// No guest has it, as far as the list behind this answer goes.
    Free,
    /// A guest has it, of whatever kind, whether or not the token may see it.
    Taken,
}

/// The run-state of a guest from its own node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestStatus {
    /// Running or stopped, by whether its process is there.
    pub status: Box<str>,
    /// The finer state of a virtual machine, where its monitor answers.
    pub qmp_status: Option<Box<str>>,
    /// Its name, or one made of its id.
    pub name: Option<Box<str>>,
    /// The lock.
    pub lock: Option<Box<str>>,
    /// Seconds since its process was started; also counts while it is paused.
    pub uptime_secs: Option<u64>,
    /// Its processors.
    pub cpus: Option<u32>,
    /// Its memory in bytes.
    pub maxmem: Option<u64>,
    /// What high availability has of it: `None` if nothing, else its word for the state, which may be missing.
    pub ha: Option<Option<Box<str>>>,
}

impl GuestStatus {
    /// The word for its run-state: that of the monitor, which tells more of a process that is there. Where one contradicts the other it is both, which no
    /// state is called.
    #[must_use]
    pub fn word(&self) -> Box<str> {
        run_state_word(&self.status, self.qmp_status.as_deref())
    }
}

fn run_state_word(status: &str, qmp_status: Option<&str>) -> Box<str> {
    match qmp_status {
        None => status.into(),
        Some(finer) if finer == status || (status == "running" && finer != "stopped") => finer.into(),
        Some(finer) => format!("{status}/{finer}").into(),
    }
}

/// The snapshots of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshots {
    /// All of them.
    pub list: Vec<Snapshot>,
    /// The one that the guest was last made from or rolled back to.
    pub parent: Option<Box<str>>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: Box<str>,
    /// Set while it is made or removed, and left so by an operation that did not end.
    pub state: Option<Box<str>>,
    /// When it was made, seconds since 1970.
    pub made_at: Option<u64>,
}

/// Where a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Its process is there.
    Running,
    /// It ended well; warnings count as well.
    Ended {
        /// How many warnings there were.
        warnings: u32,
    },
    /// It ended with an error, or nobody knows how: then the cause is [`Cause::TaskKilled`].
    Failed {
        /// What the text amounts to.
        cause: Cause,
        /// Its last words.
        text: Box<str>,
    },
}

/// A task in a list. Whether it runs is told by [`Read::TaskStatus`] only: lists lag behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its id.
    pub upid: Upid,
    /// How it ended, if the list says so.
    pub end: Option<Box<str>>,
}

/// How a change was taken on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is done.
    Done,
    /// A task does it; its end and the guest's state have to be read.
    Task(Upid),
}

/// What an answer to a command means.
///
/// # Errors
/// Why the command was not carried out, or why that cannot be told.
pub fn decode(command: &Command, answer: &HttpAnswer) -> Result<Event, Failure> {
    match command {
        Command::Read(read) => decode_read(read, answer),
        Command::Write(_) => accepted(command.effect(), answer).map(Event::Accepted),
    }
}

fn decode_read(read: &Read, answer: &HttpAnswer) -> Result<Event, Failure> {
    match read {
        Read::Version | Read::NodeVersion(_) => required(answer).and_then(|Object(row)| version(answer, &row)).map(Event::Version),
        Read::ClusterStatus => objects(answer).and_then(|rows| cluster(answer, &rows)).map(Event::Cluster),
        Read::Resources => required(answer).map(Event::Resources),
        Read::NodeGuests { .. } | Read::NodeGuestsInFull(_) => {
            objects(answer).map(|rows: Vec<NodeGuestRow<'_>>| Event::NodeGuests(rows.into_iter().filter_map(node_guest).collect()))
        }
        Read::Permissions | Read::PermissionsOn(_) | Read::PermissionsOf(_) => {
            required(answer).map(|rows| Event::Permissions(access::permissions(rows)))
        }
        Read::User(_) => required(answer).map(|Object(row)| Event::User(access::user(row))),
        Read::Roles => objects(answer).map(|rows| Event::Roles(access::roles(rows))),
        Read::NextId(vmid) => next_id(answer, *vmid).map(Event::NextId),
        Read::GuestStatus(guest) => {
            of_guest(answer, guest).and_then(|Object(row)| guest_status(answer, guest, row)).map(Event::GuestStatus)
        }
        Read::GuestPending(guest) => of_guest(answer, guest).map(|items: Vec<Object<config::Item<'_>>>| {
            let items: Vec<config::Item<'_>> = items.into_iter().map(|Object(item)| item).collect();
            Event::Config(config::from_items(guest.kind, &items).into())
        }),
        Read::Snapshots(_) => objects(answer).map(|rows| Event::Snapshots(snapshots(rows))),
        Read::HaStatus => objects(answer).map(|rows| Event::Ha(ha::ha_status(rows))),
        Read::TagOptions => required(answer).and_then(|Object(row)| tag_options(answer, &row)).map(Event::TagOptions),
        Read::NodeTime(_) => required(answer).and_then(|Object(row)| time(answer, &row)).map(Event::NodeTime),
        Read::Certificates(_) => objects(answer).and_then(|rows: Vec<CertificateRow<'_>>| identity(answer, &rows)).map(Event::Identity),
        Read::TaskStatus(upid) => required(answer).and_then(|Object(row)| task_state(answer, upid, &row)).map(Event::Task),
        Read::Tasks { .. } => objects(answer).map(|rows: Vec<TaskRow<'_>>| Event::Tasks(rows.into_iter().filter_map(task).collect())),
    }
}

/// The data of an answer to a reading, which always has some.
fn required<'a, T: Deserialize<'a>>(answer: &'a HttpAnswer) -> Result<T, Failure> {
    answer::data(Effect::None, answer)?
        .ok_or_else(|| Failure::malformed(Effect::None, answer.status, "the answer has no `data`, as every answer of Proxmox has"))
}

/// The same for a list of objects.
fn objects<'a, T: Deserialize<'a>>(answer: &'a HttpAnswer) -> Result<Vec<T>, Failure> {
    required(answer).map(|rows: Vec<Object<T>>| rows.into_iter().map(|Object(row)| row).collect())
}

/// The same for a reading of one guest. That a guest is not there is proof only where the guest is named that was asked for.
fn of_guest<'a, T: Deserialize<'a>>(answer: &'a HttpAnswer, guest: &GuestPath) -> Result<T, Failure> {
    required(answer).map_err(|failure| {
        let named = [format!("/{}.conf'", guest.vmid), format!(" {} on node '", guest.vmid)];
        let is_of_another = failure.cause == Cause::NoSuchGuest && !named.iter().any(|part| failure.text.contains(part));
        if is_of_another { Failure { cause: Cause::Malformed, ..failure } } else { failure }
    })
}

/// `data: null` is success too: some calls act before they answer.
fn accepted(effect: Effect, answer: &HttpAnswer) -> Result<Accepted, Failure> {
    let Some(data) = answer::data::<Scalar<'_>>(effect, answer)?.filter(|data| !data.is_nothing()) else {
        return Ok(Accepted::Done);
    };
    let upid = data.text().and_then(|text| Upid::new(&text));
    upid.map(Accepted::Task).ok_or_else(|| Failure::malformed(effect, answer.status, "the answer is not the id of a task"))
}

#[derive(Default, Deserialize)]
struct VersionRow<'a> {
    #[serde(borrow, default)]
    version: Scalar<'a>,
}

fn version(answer: &HttpAnswer, row: &VersionRow<'_>) -> Result<Version, Failure> {
    let text = row.version.text().unwrap_or_default();
    let major = text.split(['.', '-']).next().and_then(|part| part.parse().ok());
    let unclear = || Failure::malformed(Effect::None, answer.status, "the answer names no version of Proxmox VE");
    Ok(Version { version: text.clone().into(), major: major.ok_or_else(unclear)? })
}

#[derive(Default, Deserialize)]
struct CertificateRow<'a> {
    #[serde(borrow, default)]
    filename: Scalar<'a>,
    #[serde(borrow, default)]
    fingerprint: Scalar<'a>,
}

/// The file of the root CA that all nodes of a cluster share. Releases name it with or without its directory.
const ROOT_CA: &str = "pve-root-ca.pem";

/// The fingerprint of the root CA. A node that cannot read the file leaves its row out, and the certificates that are there say nothing about
/// the cluster: an uploaded one may be the same for several.
fn identity(answer: &HttpAnswer, rows: &[CertificateRow<'_>]) -> Result<ClusterIdentity, Failure> {
    let odd = |text: String| Failure::malformed(Effect::None, answer.status, text);
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
    r#type: Scalar<'a>,
    #[serde(borrow, default)]
    name: Scalar<'a>,
    #[serde(borrow, default)]
    quorate: Scalar<'a>,
    #[serde(borrow, default)]
    online: Scalar<'a>,
    #[serde(borrow, default)]
    local: Scalar<'a>,
}

/// Rows that contradict each other say nothing: which of them holds would be a guess.
fn cluster(answer: &HttpAnswer, rows: &[ClusterRow<'_>]) -> Result<Cluster, Failure> {
    let odd = |text: &str| Failure::malformed(Effect::None, answer.status, text);
    let nodes = rows.iter().filter(|row| row.r#type.is("node"));
    let named = nodes.map(|row| Some((NodeName::new(&row.name.text()?)?, row)));
    let named: Vec<(NodeName, &ClusterRow)> = named.collect::<Option<_>>().ok_or_else(|| odd("the answer has a node without a name"))?;
    let names: BTreeSet<&NodeName> = named.iter().map(|(name, _)| name).collect();
    if names.is_empty() || names.len() != named.len() {
        return Err(odd(if names.is_empty() { "the answer names no node" } else { "the answer names a node twice" }));
    }
    if named.iter().filter(|(_, row)| row.local.flag() == Some(true)).count() > 1 {
        return Err(odd("the answer says of two nodes that they gave it"));
    }
    let mut clusters = rows.iter().filter(|row| row.r#type.is("cluster"));
    let whole = clusters.next();
    if clusters.next().is_some() {
        return Err(odd("the answer names two clusters"));
    }
    Ok(Cluster {
        name: whole.and_then(|row| row.name.word()),
        // Without a row for the cluster the node stands alone, if it is the only one.
        quorate: whole.map_or(named.len() == 1, |row| row.quorate.flag() == Some(true)),
        local: named.iter().find(|(_, row)| row.local.flag() == Some(true)).map(|(name, _)| name.clone()),
        nodes: named.into_iter().map(|(name, row)| (name, row.online.flag() == Some(true))).collect(),
    })
}

#[derive(Default, Deserialize)]
struct ResourceRow<'a> {
    #[serde(borrow, default)]
    vmid: Scalar<'a>,
    #[serde(borrow, default)]
    r#type: Scalar<'a>,
    #[serde(borrow, default)]
    node: Scalar<'a>,
    #[serde(borrow, default)]
    status: Scalar<'a>,
    #[serde(borrow, default)]
    name: Scalar<'a>,
    #[serde(borrow, default)]
    template: Scalar<'a>,
    #[serde(borrow, default)]
    lock: Scalar<'a>,
    #[serde(borrow, default)]
    tags: Scalar<'a>,
    #[serde(borrow, default)]
    hastate: Scalar<'a>,
    #[serde(borrow, default)]
    maxcpu: Scalar<'a>,
    #[serde(borrow, default)]
    maxmem: Scalar<'a>,
    #[serde(borrow, default)]
    uptime: Scalar<'a>,
}

impl<'de> Deserialize<'de> for ResourceList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(EachRow)
    }
}

struct EachRow;

impl<'de> Visitor<'de> for EachRow {
    type Value = ResourceList;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<ResourceList, A::Error> {
        let (mut list, mut number) = (ResourceList::default(), 0_usize);
        while let Some(Object(row)) = rows.next_element::<Object<ResourceRow<'de>>>()? {
            number += 1;
            // It may be any guest, so that nothing can be said about those that the list seems to lack.
            add_row(&mut list, row).map_err(|NoId| A::Error::custom(format!("row {number} of the list of guests has no usable `vmid`")))?;
        }
        Ok(list)
    }
}

/// A row of a guest does not say which one it is.
struct NoId;

/// Adds a row of a guest to the list. Rows of anything else, and of ids that no guest of this program can have, are not kept.
fn add_row(list: &mut ResourceList, row: ResourceRow<'_>) -> Result<(), NoId> {
    if row.r#type.text().is_some_and(|word| OTHER_TYPES.contains(&&*word)) {
        return Ok(());
    }
    let Some(vmid) = Vmid::new(row.vmid.number().ok_or(NoId)?) else { return Ok(()) };
    let kind = row.r#type.text().and_then(|word| kind(&word));
    let node = row.node.text().and_then(|name| NodeName::new(&name));
    match (kind, node) {
        (Some(kind), Some(node)) => list.rows.push(resource(row, vmid, kind, node)),
        (None, _) => drop(list.unusable.insert(vmid, "type")),
        (_, None) => drop(list.unusable.insert(vmid, "node")),
    }
    Ok(())
}

fn resource(row: ResourceRow<'_>, vmid: Vmid, kind: Kind, node: NodeName) -> Resource {
    let tags = row.tags.text().map_or_else(|| Some(Words::default()), |text| field::tags(&text));
    let strange = strange(&row).or(tags.is_none().then_some("tags"));
    Resource {
        vmid,
        kind,
        node,
        status: row.status.word().unwrap_or_else(|| "unknown".into()),
        name: row.name.word(),
        template: row.template.flag(),
        lock: row.lock.word(),
        tags: tags.unwrap_or_default(),
        ha_state: row.hastate.word(),
        cpus: processors(&row.maxcpu),
        maxmem: memory(&row.maxmem),
        uptime_secs: row.uptime.number(),
        strange,
    }
}

/// What the list of resources holds beside guests where more is listed than was asked for.
const OTHER_TYPES: [&str; 5] = ["network", "node", "pool", "sdn", "storage"];

/// Lists and maps where a word belongs, guards that are `null`, a template that is neither one nor none, and memory that no number of ours can hold.
fn strange(row: &ResourceRow<'_>) -> Option<&'static str> {
    let guards = [("lock", &row.lock), ("tags", &row.tags), ("hastate", &row.hastate)];
    strange_field(&[("status", &row.status), ("name", &row.name)], &guards, &row.template, &row.maxmem)
}

/// Lists and maps where a word belongs, guards that are `null`, a template that is neither one nor none, and memory that no number of ours can hold.
fn strange_field(
    words: &[(&'static str, &Scalar<'_>)],
    guards: &[(&'static str, &Scalar<'_>)],
    template: &Scalar<'_>,
    maxmem: &Scalar<'_>,
) -> Option<&'static str> {
    let is_no_flag = *template != Scalar::Absent && template.flag().is_none();
    let word = words.iter().find(|(_, value)| **value == Scalar::Strange).map(|(key, _)| *key);
    let word = word.or_else(|| guards.iter().find(|(_, value)| value.is_no_guard()).map(|(key, _)| *key));
    let is_too_much = maxmem.number().is_some_and(|bytes| bytes > INTEGER_MAX);
    word.or(is_no_flag.then_some("template")).or(is_too_much.then_some("maxmem"))
}

#[derive(Default, Deserialize)]
struct NodeGuestRow<'a> {
    #[serde(borrow, default)]
    vmid: Scalar<'a>,
    #[serde(borrow, default)]
    status: Scalar<'a>,
    #[serde(borrow, default)]
    qmpstatus: Scalar<'a>,
    #[serde(borrow, default)]
    name: Scalar<'a>,
    #[serde(borrow, default)]
    template: Scalar<'a>,
    #[serde(borrow, default)]
    lock: Scalar<'a>,
    #[serde(borrow, default)]
    tags: Scalar<'a>,
    #[serde(borrow, default)]
    cpus: Scalar<'a>,
    #[serde(borrow, default)]
    maxmem: Scalar<'a>,
    #[serde(borrow, default)]
    uptime: Scalar<'a>,
}

/// A row with an id that a guest can have. A row that is left out leaves its guest without a run-state; it never hides one.
fn node_guest(row: NodeGuestRow<'_>) -> Option<NodeGuest> {
    let tags = row.tags.text().map_or_else(|| Some(Words::default()), |text| field::tags(&text));
    let words = [("status", &row.status), ("qmpstatus", &row.qmpstatus), ("name", &row.name)];
    let strange = strange_field(&words, &[("lock", &row.lock), ("tags", &row.tags)], &row.template, &row.maxmem);
    Some(NodeGuest {
        vmid: row.vmid.number().and_then(Vmid::new)?,
        status: row.status.word().unwrap_or_else(|| "unknown".into()),
        qmp_status: row.qmpstatus.word(),
        name: row.name.word(),
        template: row.template.flag().unwrap_or(false),
        lock: row.lock.word(),
        // Every guest is listed under a name, if need be one made of its id.
        strange: strange.or(tags.is_none().then_some("tags")).or(row.name.word().is_none().then_some("name")),
        tags: tags.unwrap_or_default(),
        cpus: processors(&row.cpus),
        maxmem: memory(&row.maxmem),
        uptime_secs: row.uptime.number(),
    })
}

fn kind(word: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.word() == word)
}

/// 400 with a word about `vmid` is how Proxmox says that an id is taken.
/// That it is free is said by naming it, and by nothing else.
fn next_id(answer: &HttpAnswer, vmid: Vmid) -> Result<NextId, Failure> {
    match required::<Scalar<'_>>(answer) {
        Ok(free) if free.number().and_then(Vmid::new) == Some(vmid) => Ok(NextId::Free),
        Ok(_) => Err(Failure::malformed(Effect::None, answer.status, "the answer is about another id")),
        Err(failure) if failure.cause == Cause::AlreadyExists && failure.delivery == Delivery::No => Ok(NextId::Taken),
        Err(failure) => Err(failure),
    }
}

#[derive(Default, Deserialize)]
struct StatusRow<'a> {
    status: Box<str>,
    #[serde(borrow, default)]
    vmid: Scalar<'a>,
    #[serde(borrow, default)]
    qmpstatus: Scalar<'a>,
    #[serde(borrow, default)]
    name: Scalar<'a>,
    #[serde(borrow, default)]
    lock: Scalar<'a>,
    #[serde(borrow, default)]
    uptime: Scalar<'a>,
    #[serde(borrow, default)]
    cpus: Scalar<'a>,
    #[serde(borrow, default)]
    maxmem: Scalar<'a>,
    #[serde(borrow, default)]
    ha: UniqueMap<Scalar<'a>>,
}

fn processors(value: &Scalar<'_>) -> Option<u32> {
    value.number().and_then(|number| u32::try_from(number).ok())
}

fn memory(value: &Scalar<'_>) -> Option<u64> {
    value.number().filter(|bytes| *bytes <= INTEGER_MAX)
}

fn guest_status(answer: &HttpAnswer, guest: &GuestPath, row: StatusRow<'_>) -> Result<GuestStatus, Failure> {
    if !row.vmid.is_nothing() && row.vmid.number().and_then(Vmid::new) != Some(guest.vmid) {
        return Err(Failure::malformed(Effect::None, answer.status, "the answer is about another guest"));
    }
    let odd = |text: &str| Failure::malformed(Effect::None, answer.status, text);
    if [&row.qmpstatus, &row.name].into_iter().any(|value| *value == Scalar::Strange) || row.lock.is_no_guard() {
        return Err(odd("the answer holds a list, a map or `null` where a word belongs"));
    }
    // Every release says it of every guest; where it is not said, high availability may have the guest.
    let is_managed = row.ha.0.get("managed").and_then(Scalar::flag);
    let is_managed = is_managed.ok_or_else(|| odd("the answer does not say whether high availability has the guest"))?;
    Ok(GuestStatus {
        status: row.status,
        qmp_status: row.qmpstatus.word(),
        name: row.name.word(),
        lock: row.lock.word(),
        uptime_secs: row.uptime.number(),
        cpus: processors(&row.cpus),
        maxmem: memory(&row.maxmem),
        ha: is_managed.then(|| row.ha.0.get("state").and_then(Scalar::word)),
    })
}

#[derive(Deserialize)]
struct SnapshotRow<'a> {
    #[serde(borrow, default)]
    name: Scalar<'a>,
    #[serde(borrow, default)]
    snapstate: Scalar<'a>,
    #[serde(borrow, default)]
    snaptime: Scalar<'a>,
    #[serde(borrow, default)]
    parent: Scalar<'a>,
}

fn snapshots(rows: Vec<SnapshotRow<'_>>) -> Snapshots {
    let current = rows.iter().find(|row| row.name.is("current"));
    let parent = current.and_then(|row| row.parent.word());
    Snapshots { list: rows.into_iter().filter_map(snapshot).collect(), parent }
}

/// The entry `current` is the guest itself and not a snapshot.
fn snapshot(row: SnapshotRow<'_>) -> Option<Snapshot> {
    let name = row.name.word().filter(|name| &**name != "current")?;
    Some(Snapshot { name, state: row.snapstate.word(), made_at: row.snaptime.number() })
}

#[derive(Default, Deserialize)]
struct TimeRow<'a> {
    #[serde(borrow, default)]
    time: Scalar<'a>,
}

fn tag_options(answer: &HttpAnswer, row: &OptionsRow) -> Result<TagOptions, Failure> {
    let odd = |option| Failure::malformed(Effect::None, answer.status, format!("the datacenter option `{option}` is not understood"));
    options::tag_options(row).map_err(odd)
}

fn time(answer: &HttpAnswer, row: &TimeRow<'_>) -> Result<u64, Failure> {
    row.time.number().ok_or_else(|| Failure::malformed(Effect::None, answer.status, "the answer names no time"))
}

#[derive(Deserialize)]
struct TaskStatusRow<'a> {
    status: Box<str>,
    #[serde(borrow, default)]
    upid: Scalar<'a>,
    #[serde(borrow, default)]
    exitstatus: Scalar<'a>,
}

fn task_state(answer: &HttpAnswer, upid: &Upid, row: &TaskStatusRow<'_>) -> Result<TaskState, Failure> {
    if row.upid.text().is_some_and(|text| text != upid.as_str()) {
        return Err(Failure::malformed(Effect::None, answer.status, "the answer is about another task"));
    }
    Ok(if &*row.status == "running" { TaskState::Running } else { task_end(row) })
}

fn task_end(row: &TaskStatusRow<'_>) -> TaskState {
    match row.exitstatus.text().as_deref() {
        Some("OK") => TaskState::Ended { warnings: 0 },
        Some(text) => match text.strip_prefix("WARNINGS: ").and_then(|count| count.parse().ok()) {
            Some(warnings) => TaskState::Ended { warnings },
            None => TaskState::Failed { cause: classify(text), text: text.into() },
        },
        None => TaskState::Failed { cause: Cause::TaskKilled, text: "no end is known".into() },
    }
}

#[derive(Default, Deserialize)]
struct TaskRow<'a> {
    #[serde(borrow, default)]
    upid: Scalar<'a>,
    #[serde(borrow, default)]
    status: Scalar<'a>,
}

fn task(row: TaskRow<'_>) -> Option<Task> {
    let end = row.status.word().filter(|text| &**text != "RUNNING");
    Some(Task { upid: Upid::new(&row.upid.text()?)?, end })
}
