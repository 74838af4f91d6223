//! Guests one by one: two at a time per node, each asked once. A node that cannot be reached is not asked again, nor is one that leaves
//! several requests in a row without an answer; a guest that hangs says nothing about the others of its node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use converger_core::guest::{Identity, NodeName, Vmid};
use converger_core::observe::Detail;
use futures_util::future::join_all;

use super::causes::{Note, Reason};
use super::rows::{Detailed, Told};
use crate::proxmox::client::{Exchange, REQUESTS_PER_NODE_MAX, Session};
use crate::proxmox::codec::{Cause, Command, Event, Failure, GuestConfig, GuestPath, GuestStatus, NextId, Read};

/// What came of reading a guest.
pub(super) type Outcome = Result<Detailed, Note>;

/// So many requests in a row may go without an answer before a node that answered is asked for nothing more: one hung storage has several
/// guests.
const STALLS_MAX: usize = 4;

/// Reads all of these; the nodes in `answering` have answered in this reading. The outcomes are by guest, so that the order in which answers came does not show.
pub(super) async fn read<E: Exchange>(
    session: &Session<E>,
    wanted: Vec<(GuestPath, Detail)>,
    answering: &BTreeSet<NodeName>,
) -> BTreeMap<Vmid, Outcome> {
    let mut queues: BTreeMap<NodeName, VecDeque<(GuestPath, Detail)>> = BTreeMap::new();
    for (guest, detail) in wanted {
        queues.entry(guest.node.clone()).or_default().push_back((guest, detail));
    }
    // A list came from such a node: that it does not answer at all cannot be said of it.
    let lanes: Vec<Lane> = queues.into_iter().map(|(node, queue)| Lane::new(queue, answering.contains(&node))).collect();
    // Counted before they are joined: few are then polled in place.
    let workers: Vec<&Lane> = lanes.iter().flat_map(|lane| std::iter::repeat_n(lane, REQUESTS_PER_NODE_MAX)).collect();
    join_all(workers.into_iter().map(|lane| work(session, lane))).await;
    lanes.into_iter().flat_map(Lane::into_outcomes).collect()
}

/// The guests of one node.
struct Lane {
    queue: Mutex<VecDeque<(GuestPath, Detail)>>,
    heard: Mutex<Heard>,
    outcomes: Mutex<BTreeMap<Vmid, Outcome>>,
}

/// What came from a node so far.
struct Heard {
    /// Something did.
    answered: bool,
    /// What was said when the node could not be reached.
    unreached: Option<String>,
    /// How many requests in a row went without an answer, and what was said of the first one.
    stalls: usize,
    stalled: Option<String>,
}

impl Lane {
    fn new(queue: VecDeque<(GuestPath, Detail)>, answered: bool) -> Self {
        let heard = Heard { answered, unreached: None, stalls: 0, stalled: None };
        Self { queue: Mutex::new(queue), heard: Mutex::new(heard), outcomes: Mutex::default() }
    }

    fn next(&self) -> Option<(GuestPath, Detail)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn heard<T>(&self, look: impl FnOnce(&mut Heard) -> T) -> T {
        look(&mut self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn answered(&self) {
        self.heard(|heard| (heard.answered, heard.stalls) = (true, 0));
    }

    /// Whether who waited in vain asks for nothing more. Where nothing came from the node yet, the other of the two goes on if it is answered.
    fn is_left(&self) -> bool {
        self.heard(|heard| heard.unreached.is_some() || heard.stalls >= if heard.answered { STALLS_MAX } else { 1 })
    }

    fn failed(&self, note: &Note) {
        self.heard(|heard| match note.reason {
            Reason::NodeSilent => drop(heard.unreached.get_or_insert_with(|| note.text.clone())),
            Reason::NoAnswer => {
                heard.stalls += 1;
                heard.stalled.get_or_insert_with(|| note.text.clone());
            }
            // The node itself said so. That something is not permitted is said on the way to it.
            Reason::Gone | Reason::Moved | Reason::Unreadable => (heard.answered, heard.stalls) = (true, 0),
            _ => {}
        });
    }

    /// Where nothing came from the node, it is the node that does not answer, whichever guest was asked for.
    fn into_outcomes(self) -> BTreeMap<Vmid, Outcome> {
        let heard = self.heard.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut outcomes = self.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        let unasked = self.queue.into_inner().unwrap_or_else(PoisonError::into_inner);
        let said = heard.stalled.clone().unwrap_or_default();
        outcomes.extend(unasked.iter().map(|(guest, _)| (guest.vmid, Err(Note::of_guest(guest.vmid, Reason::NoAnswer, said.as_str())))));
        let silent = heard.unreached.or(heard.stalled.filter(|_| !heard.answered));
        for note in outcomes.values_mut().filter_map(|outcome| outcome.as_mut().err()) {
            if let Some(said) = silent.as_ref().filter(|_| note.reason == Reason::NoAnswer) {
                *note = Note { reason: Reason::NodeSilent, text: said.clone(), ..*note };
            }
        }
        outcomes
    }
}

async fn work<E: Exchange>(session: &Session<E>, lane: &Lane) {
    while let Some((guest, detail)) = lane.next() {
        let vmid = guest.vmid;
        let outcome = one(session, lane, guest, detail).await.inspect_err(|note| lane.failed(note));
        lane.outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(vmid, outcome);
        if lane.is_left() {
            return;
        }
    }
}

async fn one<E: Exchange>(session: &Session<E>, lane: &Lane, guest: GuestPath, detail: Detail) -> Outcome {
    match both(session, lane, &guest, detail).await {
        Ok(detailed) => Ok(detailed),
        Err(failure) => Err(note(session, &guest, failure).await),
    }
}

/// A run-state does not say whose it is: it is read between two readings of the config, of which the second one counts. Who is there
/// before and after it is there while it is told. A config alone is of one answer, and is read once.
async fn both<E: Exchange>(session: &Session<E>, lane: &Lane, guest: &GuestPath, detail: Detail) -> Result<Detailed, Failure> {
    let first = config(session, guest.clone()).await.inspect(|_| lane.answered())?;
    match detail {
        Detail::ConfigAndStatus => {
            let status = status(session, guest.clone()).await.inspect(|_| lane.answered())?;
            let config = config(session, guest.clone()).await.inspect(|_| lane.answered())?;
            Ok(Detailed { status: Some(Told { is_its_own: is_one_guest(&first, &config), status }), config })
        }
        Detail::Config | Detail::None => Ok(Detailed { config: first, status: None }),
    }
}

/// Whether two readings of a config are of one guest: nothing changed, or the birth marks did not. Of a guest without marks that was
/// changed nobody can say so, nor of a container by its root disk alone: the next one under its id has one of the same name.
fn is_one_guest(before: &GuestConfig, after: &GuestConfig) -> bool {
    let is_unchanged = before.digest.is_some() && before.digest == after.digest;
    let is_marked = match &before.identity {
        Identity::Qemu { uuid, ctime } => uuid.is_some() || ctime.is_some(),
        Identity::Lxc { mac, .. } => mac.is_some(),
    };
    is_unchanged || before == after || is_marked && before.identity == after.identity
}

async fn status<E: Exchange>(session: &Session<E>, guest: GuestPath) -> Result<GuestStatus, Failure> {
    match session.call(&Command::Read(Read::GuestStatus(guest))).await? {
        Event::GuestStatus(status) => Ok(status),
        other => Err(other.unexpected()),
    }
}

/// `/pending` and not `/config`: it gives both the values in effect and what waits, as of one moment.
async fn config<E: Exchange>(session: &Session<E>, guest: GuestPath) -> Result<Box<GuestConfig>, Failure> {
    match session.call(&Command::Read(Read::GuestPending(guest))).await? {
        Event::Config(config) => Ok(config),
        other => Err(other.unexpected()),
    }
}

/// Why a guest could not be read. "Not there" is said by a node for itself only: whether the id is free tells gone from moved.
async fn note<E: Exchange>(session: &Session<E>, guest: &GuestPath, failure: Failure) -> Note {
    let said = failure.without_place(session.place());
    match Reason::of(&failure) {
        _ if failure.cause == Cause::NoSuchGuest => {}
        // It is said once for all guests of the node.
        reason @ (Reason::NodeSilent | Reason::NoAnswer) => return Note::of_guest(guest.vmid, reason, said),
        reason => return Note::of_guest(guest.vmid, reason, told(guest, &said)),
    }
    match session.call(&Command::Read(Read::NextId(guest.vmid))).await {
        Ok(Event::NextId(NextId::Free)) => Note::of_guest(guest.vmid, Reason::Gone, told(guest, &said)),
        Ok(_) => Note::of_guest(guest.vmid, Reason::Moved, told(guest, &said)),
        // Neither gone nor moved is known.
        Err(failure) => {
            let and = format!("{said}, and whether its id is free: {}", failure.without_place(session.place()));
            Note::of_guest(guest.vmid, Reason::Unreadable, told(guest, &and))
        }
    }
}

fn told(guest: &GuestPath, said: &str) -> String {
    format!("guest {} on node {}: {said}", guest.vmid, guest.node.as_str())
}
