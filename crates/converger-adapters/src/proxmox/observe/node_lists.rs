//! The guests of each node as the node itself lists them: where the run-state of a guest comes from.
//!
//! The cluster's list repeats what pvestatd of a node last reported. Where pvestatd is dead or hangs, that report stays for five minutes and nothing
//! in the list tells its age. A node computes its own lists when it is asked, so that they are as old as the reading. They do not show pauses: a
//! paused virtual machine reads `running`. A pause is therefore taken from the cluster's list where its report is recent, which the time that the
//! process has run proves, and otherwise from one more list of the node, in which every monitor is asked.
//!
//! What never enters: what follows for a guest (`rows`).

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::{GuestKind, NodeName, Vmid};
use futures_util::future::join_all;

use super::absence::PROOFS_MAX;
use super::unknown_reason::{ReadingNote, UnknownReason};
use crate::proxmox::client::{ProxmoxSession, ProxmoxTransport};
use crate::proxmox::codec::{GuestResource, NodeGuest, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead};

/// A report of pvestatd that is older does not show that a guest is not paused. It reports every ten seconds.
const REPORT_AGE_SECS_MAX: u64 = 30;

/// A report that is older is worth telling a person: pvestatd missed at least five of them.
const REPORT_LATE_SECS: u64 = 60;

/// What one list of a node gave.
type NodeList = Result<BTreeMap<Vmid, NodeGuest>, ListFailure>;

/// Why a list of a node could not be read.
#[derive(Clone, Debug)]
pub(super) struct ListFailure {
    pub(super) reason: UnknownReason,
    pub(super) text: String,
}

/// What the nodes said of their own guests.
#[derive(Debug)]
pub(super) struct NodeLists(BTreeMap<NodeName, OwnLists>);

/// What one node said of its own guests.
#[derive(Debug, Default)]
struct OwnLists {
    lists: BTreeMap<GuestKind, NodeList>,
    /// How many guests a list lacks, where those are more than can have moved or vanished since the cluster's list was read.
    short: BTreeMap<GuestKind, usize>,
    /// The list with the states of the monitors, where the cluster's list does not show pauses.
    full: Option<NodeList>,
}

/// What the list of its own node says of a guest.
#[derive(Clone, Copy, Debug)]
pub(super) enum OwnRow<'l> {
    /// The node was not asked for this list.
    NotAsked,
    /// The list could not be read.
    Unreadable(&'l ListFailure),
    /// The list lacks the guest and too many others, and is not believed.
    ListShort,
    /// The list lacks the guest: it moved, vanished or was hidden from the token in the meantime.
    Absent,
    /// The list has it.
    Present(&'l NodeGuest),
}

impl NodeLists {
    /// Reads the lists of all nodes that these guests are on, one for each kind that is among them; each is read once.
    ///
    /// `local` is the node that answers here: it has answered before.
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

    /// What the list of its own node says of a guest.
    pub(super) fn row_of(&self, guest: &GuestResource) -> OwnRow<'_> {
        self.0.get(&guest.node).map_or(OwnRow::NotAsked, |own| own.row_of(guest))
    }

    /// The nodes that gave a list.
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

    /// What people should know about lists that are not believed, and about reports to the cluster that are late.
    pub(super) fn notes(&self, guests: &[&GuestResource]) -> Vec<ReadingNote> {
        let short = self.0.iter().flat_map(|(node, own)| {
            own.short.iter().map(move |(kind, lacking)| {
                let (kind, node) = (kind.word(), node.as_str());
                ReadingNote::for_reading(
                    UnknownReason::ListShrunken,
                    format!("the {kind} list of node {node} lacks {lacking} guests that the cluster lists there"),
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
        short.chain(late.into_iter().map(|(node, report)| ReadingNote::for_reading(UnknownReason::ReportLate, report.told(node)))).collect()
    }
}

impl OwnLists {
    async fn read<E: ProxmoxTransport>(session: &ProxmoxSession<E>, node: &NodeName, guests: &[&GuestResource], is_local: bool) -> Self {
        let kinds: BTreeSet<GuestKind> = guests.iter().map(|guest| guest.kind).collect();
        let mut own = Self::default();
        for kind in kinds {
            let silent = own.lists.values().find(|list| matches!(list, Err(failure) if failure.reason == UnknownReason::NodeSilent));
            let list = match silent {
                // It is not asked again.
                Some(silent) => silent.clone(),
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

    /// How many of these guests a list lacks, where those are too many to be read one by one.
    fn count_lacking(&self, guests: &[&GuestResource]) -> BTreeMap<GuestKind, usize> {
        let mut lacking: BTreeMap<GuestKind, usize> = BTreeMap::new();
        for guest in guests.iter().filter(|guest| matches!(self.row_of(guest), OwnRow::Absent)) {
            *lacking.entry(guest.kind).or_default() += 1;
        }
        lacking.retain(|_, count| *count > PROOFS_MAX);
        lacking
    }
}

/// What the cluster has of pvestatd about a running guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Report {
    /// A report that is so old, at least: the process of the guest has run for so much longer since.
    AgedSecs(u64),
    /// None.
    Missing,
}

impl Report {
    /// `None` where nothing can be said: the guest does not run, or the report is of an earlier process.
    fn of(guest: &GuestResource, own: &NodeGuest) -> Option<Self> {
        let now_secs = own.uptime_secs.filter(|_| &*own.status == "running")?;
        if is_unreported(guest) {
            return Some(Self::Missing);
        }
        let then_secs = guest.uptime_secs.filter(|_| &*guest.status != "stopped")?;
        now_secs.checked_sub(then_secs).map(Self::AgedSecs)
    }

    /// Whether pvestatd should have reported the guest since. A guest that was started just now may not have been reported yet.
    fn is_late(self, own: &NodeGuest) -> bool {
        let age_secs = match self {
            Self::AgedSecs(age_secs) => Some(age_secs),
            Self::Missing => own.uptime_secs,
        };
        age_secs.is_some_and(|age_secs| age_secs > REPORT_LATE_SECS)
    }

    fn told(self, node: &NodeName) -> String {
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

/// Whether the cluster has no report of the guest. A run-state without a name is none that pvestatd reported.
pub(super) fn is_unreported(guest: &GuestResource) -> bool {
    &*guest.status == "unknown" || guest.name.is_none()
}

/// Whether neither list shows that a running virtual machine is not paused: the cluster's list has no recent report of its process.
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
            twice.strange = Some("vmid");
        }
    }
    Ok(guests)
}

/// A node that answered nothing at all does not answer; one that answered before did not answer for this list.
fn list_failure(failure: &ProxmoxFailure, place: &str, has_answered: bool) -> ListFailure {
    let reason = match UnknownReason::from_failure(failure) {
        UnknownReason::NoAnswer if !has_answered => UnknownReason::NodeSilent,
        reason @ (UnknownReason::NodeSilent | UnknownReason::NoAnswer) => reason,
        _ => UnknownReason::NodeListUnread,
    };
    ListFailure { reason, text: failure.without_endpoint_name(place) }
}

/// A list in full says of every guest what its monitor reports.
fn with_monitors(mut guests: BTreeMap<Vmid, NodeGuest>) -> BTreeMap<Vmid, NodeGuest> {
    for guest in guests.values_mut().filter(|guest| guest.qmp_status.is_none()) {
        guest.strange.get_or_insert("qmpstatus");
    }
    guests
}
