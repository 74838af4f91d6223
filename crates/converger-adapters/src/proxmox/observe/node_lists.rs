//! The guest lists of the nodes themselves, which the run-states of guests come from.
//!
//! The cluster's list repeats the last report of each node's pvestatd. If pvestatd is dead or hangs, that report stays for five minutes,
//! and nothing in the list shows its age. A node computes its own lists on request, so they are current. However, they do not show pauses:
//! a paused virtual machine reads `running`. A pause is therefore taken from the cluster's list if its report is recent, which the uptime
//! of the process proves, and otherwise from a full list of the node, for which it queries every monitor.
//!
//! Must not decide what follows for a guest (`rows`).

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::{GuestKind, NodeName, Vmid};
use futures_util::future::join_all;

use super::absence::PROOFS_MAX;
use super::unknown_reason::{ReadingNote, UnknownReason};
use crate::proxmox::client::{ProxmoxSession, ProxmoxTransport};
use crate::proxmox::codec::{GuestResource, NodeGuest, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead};

/// An older report of pvestatd does not prove that a guest is not paused. pvestatd reports every ten seconds.
const REPORT_AGE_SECS_MAX: u64 = 30;

/// An older report is worth a note to people: pvestatd missed at least five reports.
const REPORT_LATE_SECS: u64 = 60;

/// One list of a node.
type NodeList = Result<BTreeMap<Vmid, NodeGuest>, ListFailure>;

/// Why a list of a node could not be read.
#[derive(Clone, Debug)]
pub(super) struct ListFailure {
    pub(super) reason: UnknownReason,
    pub(super) text: String,
}

/// The guest lists of all nodes.
#[derive(Debug)]
pub(super) struct NodeLists(BTreeMap<NodeName, OwnLists>);

/// The guest lists of one node.
#[derive(Debug, Default)]
struct OwnLists {
    lists: BTreeMap<GuestKind, NodeList>,
    /// How many guests a list lacks, if they are more than can have moved or vanished since the cluster's list was read.
    short: BTreeMap<GuestKind, usize>,
    /// The full list with monitor states, if the cluster's list does not show pauses.
    full: Option<NodeList>,
}

/// A guest in the list of its own node.
#[derive(Clone, Copy, Debug)]
pub(super) enum OwnRow<'l> {
    /// The node was not asked for this list.
    NotAsked,
    /// The list could not be read.
    Unreadable(&'l ListFailure),
    /// The list lacks the guest and too many others, and is not trusted.
    ListShort,
    /// The list lacks the guest: it was moved, deleted or hidden from the token in the meantime.
    Absent,
    /// The list contains the guest.
    Present(&'l NodeGuest),
}

impl NodeLists {
    /// Reads the lists of all nodes of these guests, one per kind of guest; each list is read once.
    ///
    /// `local` is the node of the endpoint, which has responded before.
    pub(super) async fn read<E: ProxmoxTransport>(
        session: &ProxmoxSession<E>,
        guests: &[&GuestResource],
        local: Option<&NodeName>,
    ) -> Self {
        let mut nodes: BTreeMap<&NodeName, Vec<&GuestResource>> = BTreeMap::new();
        for guest in guests {
            nodes.entry(&guest.node).or_default().push(guest);
        }
        let of_nodes = nodes.into_iter().map(async |(node, guests)| {
            let own = OwnLists::read(session, node, &guests, Some(node) == local).await;
            (node.clone(), own)
        });
        Self(join_all(of_nodes).await.into_iter().collect())
    }

    /// The row of a guest in the list of its own node.
    pub(super) fn row_of(&self, guest: &GuestResource) -> OwnRow<'_> {
        self.0.get(&guest.node).map_or(OwnRow::NotAsked, |own| own.row_of(guest))
    }

    /// The nodes that returned a list.
    pub(super) fn answering_nodes(&self) -> BTreeSet<NodeName> {
        self.0.iter().filter(|(_, own)| own.lists.values().any(Result::is_ok)).map(|(node, _)| node.clone()).collect()
    }

    /// The lists that could not be read, with their nodes.
    pub(super) fn failures(&self) -> impl Iterator<Item = (&NodeName, &ListFailure)> {
        self.0.iter().flat_map(|(node, own)| {
            let lists = own.lists.values().chain(&own.full);
            lists.filter_map(move |list| Some((node, list.as_ref().err()?)))
        })
    }

    /// Notes about lists that are not trusted and about late reports to the cluster.
    pub(super) fn notes(&self, guests: &[&GuestResource]) -> Vec<ReadingNote> {
        let short = self.0.iter().flat_map(|(node, own)| {
            own.short.iter().map(move |(kind, missing_count)| {
                let (kind, node) = (kind.word(), node.as_str());
                ReadingNote::for_reading(
                    UnknownReason::ListShrunken,
                    format!("the {kind} list of node {node} lacks {missing_count} guests that the cluster lists there"),
                )
            })
        });
        let mut late: BTreeMap<&NodeName, Report> = BTreeMap::new();
        for guest in guests {
            let OwnRow::Present(own) = self.row_of(guest) else { continue };
            if let Some(report) = Report::of(guest, own).filter(|report| report.is_late(own)) {
                let worst = late.entry(&guest.node).or_insert(report);
                *worst = report.max(*worst);
            }
        }
        short
            .chain(late.into_iter().map(|(node, report)| ReadingNote::for_reading(UnknownReason::ReportLate, report.describe(node))))
            .collect()
    }
}

impl OwnLists {
    async fn read<E: ProxmoxTransport>(session: &ProxmoxSession<E>, node: &NodeName, guests: &[&GuestResource], is_local: bool) -> Self {
        let kinds: BTreeSet<GuestKind> = guests.iter().map(|guest| guest.kind).collect();
        let mut own = Self::default();
        for kind in kinds {
            let silent_list = own.lists.values().find(|list| matches!(list, Err(failure) if failure.reason == UnknownReason::NodeSilent));
            let list = match silent_list {
                // A node that does not respond is not asked again.
                Some(silent_list) => silent_list.clone(),
                None => {
                    let has_answered = is_local || own.lists.values().any(Result::is_ok);
                    read_list(session, ProxmoxRead::NodeGuests { node: node.clone(), kind }, has_answered).await
                }
            };
            own.lists.insert(kind, list);
        }
        own.short = own.count_lacking(guests);
        let is_unclear = |guest: &&GuestResource| matches!(own.row_of(guest), OwnRow::Present(row) if lacks_monitor_state(guest, row));
        if guests.iter().any(is_unclear) {
            let full = read_list(session, ProxmoxRead::NodeGuestsInFull(node.clone()), true).await;
            own.full = Some(full.map(with_monitors));
        }
        own
    }

    fn row_of(&self, guest: &GuestResource) -> OwnRow<'_> {
        if self.short.contains_key(&guest.kind) {
            return OwnRow::ListShort;
        }
        let plain = find(self.lists.get(&guest.kind), guest.vmid);
        match (plain, &self.full) {
            (OwnRow::Present(own), Some(full)) if lacks_monitor_state(guest, own) => find(Some(full), guest.vmid),
            _ => plain,
        }
    }

    /// How many of these guests a list lacks, if they are too many to read one by one.
    fn count_lacking(&self, guests: &[&GuestResource]) -> BTreeMap<GuestKind, usize> {
        let mut missing_counts: BTreeMap<GuestKind, usize> = BTreeMap::new();
        for guest in guests.iter().filter(|guest| matches!(self.row_of(guest), OwnRow::Absent)) {
            *missing_counts.entry(guest.kind).or_default() += 1;
        }
        missing_counts.retain(|_, count| *count > PROOFS_MAX);
        missing_counts
    }
}

/// The report of pvestatd about a running guest, as the cluster has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Report {
    /// The minimum age of the report: how much longer the process of the guest has been running since.
    AgedSecs(u64),
    /// There is no report.
    Missing,
}

impl Report {
    /// `None` if the age is unknown: the guest does not run, or the report is about an earlier process.
    fn of(guest: &GuestResource, own: &NodeGuest) -> Option<Self> {
        let now_secs = own.uptime_secs.filter(|_| &*own.status == "running")?;
        if is_unreported(guest) {
            return Some(Self::Missing);
        }
        let then_secs = guest.uptime_secs.filter(|_| &*guest.status != "stopped")?;
        now_secs.checked_sub(then_secs).map(Self::AgedSecs)
    }

    /// Whether pvestatd should have reported the guest since. A guest that has just started may not have been reported yet.
    fn is_late(self, own: &NodeGuest) -> bool {
        let age_secs = match self {
            Self::AgedSecs(age_secs) => Some(age_secs),
            Self::Missing => own.uptime_secs,
        };
        age_secs.is_some_and(|age_secs| age_secs > REPORT_LATE_SECS)
    }

    fn describe(self, node: &NodeName) -> String {
        let node = node.as_str();
        match self {
            Self::AgedSecs(age_secs) => {
                format!(
                    "pvestatd on node {node} has not reported to the cluster for {age_secs} s; run-states were read from the node itself"
                )
            }
            Self::Missing => {
                format!("the cluster has no report of pvestatd on node {node}, or none yet; run-states were read from the node itself")
            }
        }
    }
}

/// Whether the cluster has no report about the guest. pvestatd always reports a name along with a run-state.
pub(super) fn is_unreported(guest: &GuestResource) -> bool {
    &*guest.status == "unknown" || guest.name.is_none()
}

/// Whether neither list shows that a running virtual machine is not paused, because the cluster has no recent report about its process.
fn lacks_monitor_state(guest: &GuestResource, own: &NodeGuest) -> bool {
    let is_recent = || matches!(Report::of(guest, own), Some(Report::AgedSecs(age_secs)) if age_secs <= REPORT_AGE_SECS_MAX);
    guest.kind == GuestKind::Qemu && &*own.status == "running" && !is_recent()
}

fn find(list: Option<&NodeList>, vmid: Vmid) -> OwnRow<'_> {
    match list {
        None => OwnRow::NotAsked,
        Some(Err(failure)) => OwnRow::Unreadable(failure),
        Some(Ok(guests)) => guests.get(&vmid).map_or(OwnRow::Absent, OwnRow::Present),
    }
}

async fn read_list<E: ProxmoxTransport>(session: &ProxmoxSession<E>, read: ProxmoxRead, has_answered: bool) -> NodeList {
    let rows = match session.call(&ProxmoxCommand::Read(read)).await {
        Ok(ProxmoxEvent::NodeGuests(rows)) => Ok(rows),
        Ok(other) => Err(other.unexpected_failure()),
        Err(failure) => Err(failure),
    };
    let rows = rows.map_err(|failure| list_failure(&failure, session.endpoint_name(), has_answered))?;
    let mut guests: BTreeMap<Vmid, NodeGuest> = BTreeMap::new();
    for row in rows {
        let vmid = row.vmid;
        if guests.insert(vmid, row).is_some()
            && let Some(twice) = guests.get_mut(&vmid)
        {
            twice.invalid_field = Some("vmid");
        }
    }
    Ok(guests)
}

/// A node that has never responded counts as not responding; one that has responded before only failed to return this list.
fn list_failure(failure: &ProxmoxFailure, endpoint_name: &str, has_answered: bool) -> ListFailure {
    let reason = match UnknownReason::from_failure(failure) {
        UnknownReason::NoAnswer if !has_answered => UnknownReason::NodeSilent,
        reason @ (UnknownReason::NodeSilent | UnknownReason::NoAnswer) => reason,
        _ => UnknownReason::NodeListUnread,
    };
    ListFailure { reason, text: failure.without_endpoint_name(endpoint_name) }
}

/// A full list contains the monitor state of every guest; a row without it is invalid.
fn with_monitors(mut guests: BTreeMap<Vmid, NodeGuest>) -> BTreeMap<Vmid, NodeGuest> {
    for guest in guests.values_mut().filter(|guest| guest.qmp_status.is_none()) {
        guest.invalid_field.get_or_insert("qmpstatus");
    }
    guests
}
