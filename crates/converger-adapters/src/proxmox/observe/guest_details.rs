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

/// Reads all of these guests. The nodes in `answering_nodes` have responded during this observation. The results are sorted by guest, so
/// the order of responses has no effect.
pub(super) async fn read_details<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    wanted: Vec<(GuestPath, ReadDetail)>,
    answering_nodes: &BTreeSet<NodeName>,
    progress: ReadProgress<'_>,
) -> BTreeMap<Vmid, DetailResult> {
    let counter = ReadCounter::start(wanted.len(), progress);
    let mut queues: BTreeMap<NodeName, VecDeque<(GuestPath, ReadDetail)>> = BTreeMap::new();
    for (guest, detail) in wanted {
        queues.entry(guest.node.clone()).or_default().push_back((guest, detail));
    }
    // Such a node has returned a list, so it cannot be reported as not responding at all.
    let reads_per_node: Vec<NodeReadQueue> =
        queues.into_iter().map(|(node, queue)| NodeReadQueue::new(queue, answering_nodes.contains(&node))).collect();
    // Collected before joining, so that `join_all` knows their number and polls few of them in place.
    let workers: Vec<&NodeReadQueue> = reads_per_node.iter().flat_map(|reads| std::iter::repeat_n(reads, REQUESTS_PER_NODE_MAX)).collect();
    join_all(workers.into_iter().map(|reads| read_node_guests(session, reads, &counter))).await;
    reads_per_node.into_iter().flat_map(NodeReadQueue::into_outcomes).collect()
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
struct NodeReadQueue {
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

impl NodeReadQueue {
    fn new(queue: VecDeque<(GuestPath, ReadDetail)>, answered: bool) -> Self {
        let responses = NodeResponses { answered, unreached: None, stalls: 0, stalled: None };
        Self { queue: Mutex::new(queue), responses: Mutex::new(responses), outcomes: Mutex::default() }
    }

    fn next_guest(&self) -> Option<(GuestPath, ReadDetail)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn with_responses<T>(&self, action: impl FnOnce(&mut NodeResponses) -> T) -> T {
        action(&mut self.responses.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record_answer(&self) {
        self.with_responses(|responses| (responses.answered, responses.stalls) = (true, 0));
    }

    /// Whether the node is not asked any more. A node that has not responded yet is abandoned after the first timeout, unless the
    /// concurrent request gets a response.
    fn is_abandoned(&self) -> bool {
        self.with_responses(|responses| {
            responses.unreached.is_some() || responses.stalls >= if responses.answered { STALLS_MAX } else { 1 }
        })
    }

    fn record_failure(&self, note: &ReadingNote) {
        self.with_responses(|responses| match note.reason {
            UnknownReason::NodeSilent => drop(responses.unreached.get_or_insert_with(|| note.text.clone())),
            UnknownReason::NoAnswer => {
                responses.stalls += 1;
                responses.stalled.get_or_insert_with(|| note.text.clone());
            }
            // The node itself responded. A missing permission is reported before the request reaches the node, so it does not count.
            UnknownReason::Gone | UnknownReason::Moved | UnknownReason::Unreadable => (responses.answered, responses.stalls) = (true, 0),
            _ => {}
        });
    }

    /// If nothing came from the node at all, the node is reported as not responding, and not the single guests.
    fn into_outcomes(self) -> BTreeMap<Vmid, DetailResult> {
        let responses = self.responses.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut outcomes = self.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        let remaining = self.queue.into_inner().unwrap_or_else(PoisonError::into_inner);
        let failure_text = responses.stalled.clone().unwrap_or_default();
        outcomes.extend(
            remaining
                .iter()
                .map(|(guest, _)| (guest.vmid, Err(ReadingNote::for_guest(guest.vmid, UnknownReason::NoAnswer, failure_text.as_str())))),
        );
        let node_failure = responses.unreached.or(responses.stalled.filter(|_| !responses.answered));
        for note in outcomes.values_mut().filter_map(|outcome| outcome.as_mut().err()) {
            if let Some(failure_text) = node_failure.as_ref().filter(|_| note.reason == UnknownReason::NoAnswer) {
                *note = ReadingNote { reason: UnknownReason::NodeSilent, text: failure_text.clone(), ..*note };
            }
        }
        outcomes
    }
}

async fn read_node_guests<E: ProxmoxTransport>(session: &ProxmoxSession<E>, reads: &NodeReadQueue, counter: &ReadCounter<'_>) {
    while let Some((guest, detail)) = reads.next_guest() {
        let vmid = guest.vmid;
        let outcome = read_guest(session, reads, guest, detail).await.inspect_err(|note| reads.record_failure(note));
        reads.outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(vmid, outcome);
        counter.count_guest();
        if reads.is_abandoned() {
            return;
        }
    }
}

async fn read_guest<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    reads: &NodeReadQueue,
    guest: GuestPath,
    detail: ReadDetail,
) -> DetailResult {
    match read_config_and_status(session, reads, &guest, detail).await {
        Ok(detailed) => Ok(detailed),
        Err(failure) => Err(failure_note(session, &guest, failure).await),
    }
}

/// A run-state does not identify its guest. So it is read between two reads of the config, of which the second one counts: a guest that
/// exists before and after also exists in between. A config alone is one response and is read once.
async fn read_config_and_status<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    reads: &NodeReadQueue,
    guest: &GuestPath,
    detail: ReadDetail,
) -> Result<GuestDetails, ProxmoxFailure> {
    let first = read_config(session, guest.clone()).await.inspect(|_| reads.record_answer())?;
    match detail {
        ReadDetail::ConfigAndStatus => {
            let status = read_status(session, guest.clone()).await.inspect(|_| reads.record_answer())?;
            let config = read_config(session, guest.clone()).await.inspect(|_| reads.record_answer())?;
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
    let failure_text = failure.without_endpoint_name(session.endpoint_name());
    match UnknownReason::from_failure(&failure) {
        _ if failure.cause == FailureCause::NoSuchGuest => {}
        // Reported once for all guests of the node.
        reason @ (UnknownReason::NodeSilent | UnknownReason::NoAnswer) => return ReadingNote::for_guest(guest.vmid, reason, failure_text),
        reason => return ReadingNote::for_guest(guest.vmid, reason, describe_failure(guest, &failure_text)),
    }
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::NextId(guest.vmid))).await {
        Ok(ProxmoxEvent::NextId(IdAvailability::Free)) => {
            ReadingNote::for_guest(guest.vmid, UnknownReason::Gone, describe_failure(guest, &failure_text))
        }
        Ok(_) => ReadingNote::for_guest(guest.vmid, UnknownReason::Moved, describe_failure(guest, &failure_text)),
        // Neither deleted nor moved is proven.
        Err(failure) => {
            let and = format!(
                "{failure_text}, and cannot read whether its id is free: {}",
                failure.without_endpoint_name(session.endpoint_name())
            );
            ReadingNote::for_guest(guest.vmid, UnknownReason::Unreadable, describe_failure(guest, &and))
        }
    }
}

fn describe_failure(guest: &GuestPath, failure_text: &str) -> String {
    format!("guest {} on node {}: {failure_text}", guest.vmid, guest.node.as_str())
}
