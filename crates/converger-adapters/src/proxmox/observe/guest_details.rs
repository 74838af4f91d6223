//! Reads single guests, two at a time per node, each request once. A node that is unreachable is not asked again, nor is one that leaves
//! several requests in a row without a response. A single hanging guest does not affect the others on its node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use converger_core::guest::{GuestIdentity, NodeName, Vmid};
use converger_core::observe::ReadDetail;
use futures_util::future::join_all;

use super::ReadProgress;
use super::rows::{GuestDetails, NodeStatus};
use super::unknown_reason::{ReadingNote, UnknownReason};
use crate::proxmox::client::{ProxmoxSession, ProxmoxTransport, REQUESTS_PER_NODE_MAX};
use crate::proxmox::codec::{
    FailureCause, GuestConfig, GuestPath, GuestStatus, IdAvailability, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead,
};

/// The result of reading a guest.
pub(super) type DetailResult = Result<GuestDetails, ReadingNote>;

/// Number of requests in a row without a response after which a node that has responded before is abandoned. It is greater than one because
/// one hung storage can affect several guests.
const STALLS_MAX: usize = 4;

/// Reads all of these guests. The nodes in `answering` have responded during this observation. The results are sorted by guest, so that the
/// order of responses has no effect.
pub(super) async fn read_details<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    wanted: Vec<(GuestPath, ReadDetail)>,
    answering: &BTreeSet<NodeName>,
    progress: ReadProgress<'_>,
) -> BTreeMap<Vmid, DetailResult> {
    let counter = ReadCounter::start(wanted.len(), progress);
    let mut queues: BTreeMap<NodeName, VecDeque<(GuestPath, ReadDetail)>> = BTreeMap::new();
    for (guest, detail) in wanted {
        queues.entry(guest.node.clone()).or_default().push_back((guest, detail));
    }
    // Such a node has returned a list, so it cannot be reported as not responding at all.
    let lanes: Vec<NodeReads> = queues.into_iter().map(|(node, queue)| NodeReads::new(queue, answering.contains(&node))).collect();
    // Collected before joining, so that `join_all` knows their number and polls few of them in place.
    let workers: Vec<&NodeReads> = lanes.iter().flat_map(|lane| std::iter::repeat_n(lane, REQUESTS_PER_NODE_MAX)).collect();
    join_all(workers.into_iter().map(|lane| read_node_guests(session, lane, &counter))).await;
    lanes.into_iter().flat_map(NodeReads::into_outcomes).collect()
}

/// At most this many reports of progress for one reading, whatever its size: each is an event for every subscriber.
const PROGRESS_REPORTS_MAX: u64 = 100;

/// Counts the guests that were read, and reports the count.
struct ReadCounter<'p> {
    read: AtomicU64,
    total: u64,
    progress: ReadProgress<'p>,
}

impl<'p> ReadCounter<'p> {
    fn start(total: usize, progress: ReadProgress<'p>) -> Self {
        let total = u64::try_from(total).unwrap_or(u64::MAX);
        progress(0, total);
        Self { read: AtomicU64::new(0), total, progress }
    }

    fn count_guest(&self) {
        let read = self.read.fetch_add(1, Ordering::Relaxed) + 1;
        if read == self.total || read.is_multiple_of(self.total.div_ceil(PROGRESS_REPORTS_MAX).max(1)) {
            (self.progress)(read, self.total);
        }
    }
}

/// The guests of one node that are still to be read, and the results.
struct NodeReads {
    queue: Mutex<VecDeque<(GuestPath, ReadDetail)>>,
    responses: Mutex<NodeResponses>,
    outcomes: Mutex<BTreeMap<Vmid, DetailResult>>,
}

/// What a node has responded so far.
struct NodeResponses {
    /// Whether it responded at all.
    answered: bool,
    /// The failure when the node could not be reached.
    unreached: Option<String>,
    /// The number of requests in a row without a response, and the first failure among them.
    stalls: usize,
    stalled: Option<String>,
}

impl NodeReads {
    fn new(queue: VecDeque<(GuestPath, ReadDetail)>, answered: bool) -> Self {
        let heard = NodeResponses { answered, unreached: None, stalls: 0, stalled: None };
        Self { queue: Mutex::new(queue), responses: Mutex::new(heard), outcomes: Mutex::default() }
    }

    fn next_guest(&self) -> Option<(GuestPath, ReadDetail)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn with_responses<T>(&self, look: impl FnOnce(&mut NodeResponses) -> T) -> T {
        look(&mut self.responses.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record_answer(&self) {
        self.with_responses(|heard| (heard.answered, heard.stalls) = (true, 0));
    }

    /// Whether the node is not asked any more. A node that has not responded yet is abandoned after the first timeout, unless the
    /// concurrent request gets a response.
    fn is_abandoned(&self) -> bool {
        self.with_responses(|heard| heard.unreached.is_some() || heard.stalls >= if heard.answered { STALLS_MAX } else { 1 })
    }

    fn record_failure(&self, note: &ReadingNote) {
        self.with_responses(|heard| match note.reason {
            UnknownReason::NodeSilent => drop(heard.unreached.get_or_insert_with(|| note.text.clone())),
            UnknownReason::NoAnswer => {
                heard.stalls += 1;
                heard.stalled.get_or_insert_with(|| note.text.clone());
            }
            // The node itself responded. A missing permission is reported before the request reaches the node, so it does not count.
            UnknownReason::Gone | UnknownReason::Moved | UnknownReason::Unreadable => (heard.answered, heard.stalls) = (true, 0),
            _ => {}
        });
    }

    /// If nothing came from the node at all, the node is reported as not responding, and not the single guests.
    fn into_outcomes(self) -> BTreeMap<Vmid, DetailResult> {
        let heard = self.responses.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut outcomes = self.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        let unasked = self.queue.into_inner().unwrap_or_else(PoisonError::into_inner);
        let said = heard.stalled.clone().unwrap_or_default();
        outcomes.extend(
            unasked.iter().map(|(guest, _)| (guest.vmid, Err(ReadingNote::for_guest(guest.vmid, UnknownReason::NoAnswer, said.as_str())))),
        );
        let silent = heard.unreached.or(heard.stalled.filter(|_| !heard.answered));
        for note in outcomes.values_mut().filter_map(|outcome| outcome.as_mut().err()) {
            if let Some(said) = silent.as_ref().filter(|_| note.reason == UnknownReason::NoAnswer) {
                *note = ReadingNote { reason: UnknownReason::NodeSilent, text: said.clone(), ..*note };
            }
        }
        outcomes
    }
}

async fn read_node_guests<E: ProxmoxTransport>(session: &ProxmoxSession<E>, lane: &NodeReads, counter: &ReadCounter<'_>) {
    while let Some((guest, detail)) = lane.next_guest() {
        let vmid = guest.vmid;
        let outcome = read_guest(session, lane, guest, detail).await.inspect_err(|note| lane.record_failure(note));
        lane.outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(vmid, outcome);
        counter.count_guest();
        if lane.is_abandoned() {
            return;
        }
    }
}

async fn read_guest<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    lane: &NodeReads,
    guest: GuestPath,
    detail: ReadDetail,
) -> DetailResult {
    match read_config_and_status(session, lane, &guest, detail).await {
        Ok(detailed) => Ok(detailed),
        Err(failure) => Err(failure_note(session, &guest, failure).await),
    }
}

/// A run state does not identify its guest. So it is read between two reads of the config, of which the second one counts: a guest that
/// exists before and after also exists in between. A config alone is one response and is read once.
async fn read_config_and_status<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    lane: &NodeReads,
    guest: &GuestPath,
    detail: ReadDetail,
) -> Result<GuestDetails, ProxmoxFailure> {
    let first = read_config(session, guest.clone()).await.inspect(|_| lane.record_answer())?;
    match detail {
        ReadDetail::ConfigAndStatus => {
            let status = read_status(session, guest.clone()).await.inspect(|_| lane.record_answer())?;
            let config = read_config(session, guest.clone()).await.inspect(|_| lane.record_answer())?;
            Ok(GuestDetails { status: Some(NodeStatus { is_of_same_guest: is_same_guest(&first, &config), status }), config })
        }
        ReadDetail::Config | ReadDetail::None => Ok(GuestDetails { config: first, status: None }),
    }
}

/// Whether two reads of a config show the same guest: either nothing changed, or the birth marks did not. A guest without marks that was
/// changed cannot be identified, nor can a container by its root disk alone, because the next guest with this id has a root disk of the
/// same name.
fn is_same_guest(before: &GuestConfig, after: &GuestConfig) -> bool {
    let is_unchanged = before.digest.is_some() && before.digest == after.digest;
    let is_marked = match &before.identity {
        GuestIdentity::Qemu { uuid, ctime } => uuid.is_some() || ctime.is_some(),
        GuestIdentity::Lxc { mac, .. } => mac.is_some(),
    };
    is_unchanged || before == after || is_marked && before.identity == after.identity
}

async fn read_status<E: ProxmoxTransport>(session: &ProxmoxSession<E>, guest: GuestPath) -> Result<GuestStatus, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::GuestStatus(guest))).await? {
        ProxmoxEvent::GuestStatus(status) => Ok(status),
        other => Err(other.unexpected_failure()),
    }
}

/// `/pending` and not `/config`: it returns the values in effect and the pending ones, as of one moment.
async fn read_config<E: ProxmoxTransport>(session: &ProxmoxSession<E>, guest: GuestPath) -> Result<Box<GuestConfig>, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::GuestPending(guest))).await? {
        ProxmoxEvent::Config(config) => Ok(config),
        other => Err(other.unexpected_failure()),
    }
}

/// Why a guest could not be read. A node reports a missing guest only for itself; whether the id is free distinguishes a deleted guest from
/// a moved one.
async fn failure_note<E: ProxmoxTransport>(session: &ProxmoxSession<E>, guest: &GuestPath, failure: ProxmoxFailure) -> ReadingNote {
    let said = failure.without_endpoint_name(session.endpoint_name());
    match UnknownReason::from_failure(&failure) {
        _ if failure.cause == FailureCause::NoSuchGuest => {}
        // Reported once for all guests of the node.
        reason @ (UnknownReason::NodeSilent | UnknownReason::NoAnswer) => return ReadingNote::for_guest(guest.vmid, reason, said),
        reason => return ReadingNote::for_guest(guest.vmid, reason, describe_failure(guest, &said)),
    }
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::NextId(guest.vmid))).await {
        Ok(ProxmoxEvent::NextId(IdAvailability::Free)) => {
            ReadingNote::for_guest(guest.vmid, UnknownReason::Gone, describe_failure(guest, &said))
        }
        Ok(_) => ReadingNote::for_guest(guest.vmid, UnknownReason::Moved, describe_failure(guest, &said)),
        // Neither deleted nor moved is proven.
        Err(failure) => {
            let and = format!("{said}, and cannot read whether its id is free: {}", failure.without_endpoint_name(session.endpoint_name()));
            ReadingNote::for_guest(guest.vmid, UnknownReason::Unreadable, describe_failure(guest, &and))
        }
    }
}

fn describe_failure(guest: &GuestPath, said: &str) -> String {
    format!("guest {} on node {}: {said}", guest.vmid, guest.node.as_str())
}
