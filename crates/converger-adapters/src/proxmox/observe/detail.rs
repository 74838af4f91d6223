//! Guests one by one: two at a time per node, each asked once; a node that does not answer is not asked again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use converger_core::guest::{NodeName, Vmid};
use converger_core::observe::Detail;
use futures_util::future::join_all;

use super::causes::{Note, Reason};
use super::rows::Detailed;
use crate::proxmox::client::{Exchange, REQUESTS_PER_NODE_MAX, Session};
use crate::proxmox::codec::{Cause, Command, Event, Failure, GuestConfig, GuestPath, GuestStatus, NextId, Read};

/// What came of reading a guest.
pub(super) type Outcome = Result<Detailed, Note>;

/// Reads all of these. The outcomes are by guest, so that the order in which answers came does not show.
pub(super) async fn read<E: Exchange>(session: &Session<E>, wanted: Vec<(GuestPath, Detail)>) -> BTreeMap<Vmid, Outcome> {
    let mut queues: BTreeMap<NodeName, VecDeque<(GuestPath, Detail)>> = BTreeMap::new();
    for (guest, detail) in wanted {
        queues.entry(guest.node.clone()).or_default().push_back((guest, detail));
    }
    let lanes: Vec<Lane> = queues.into_values().map(Lane::new).collect();
    let outcomes = Mutex::new(BTreeMap::new());
    let workers = lanes.iter().flat_map(|lane| std::iter::repeat_n(lane, REQUESTS_PER_NODE_MAX));
    join_all(workers.map(|lane| work(session, lane, &outcomes))).await;
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The guests of one node that are still to be read.
struct Lane {
    queue: Mutex<VecDeque<(GuestPath, Detail)>>,
    /// What the node said, or did not say, when it fell silent.
    silent: Mutex<Option<String>>,
}

impl Lane {
    fn new(queue: VecDeque<(GuestPath, Detail)>) -> Self {
        Self { queue: Mutex::new(queue), silent: Mutex::new(None) }
    }

    fn next(&self) -> Option<(GuestPath, Detail)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn silence(&self) -> Option<String> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fell_silent(&self, text: &str) {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| text.to_owned());
    }
}

async fn work<E: Exchange>(session: &Session<E>, lane: &Lane, outcomes: &Mutex<BTreeMap<Vmid, Outcome>>) {
    while let Some((guest, detail)) = lane.next() {
        let vmid = guest.vmid;
        let outcome = match lane.silence() {
            Some(text) => Err(Note::of_guest(vmid, Reason::NodeSilent, text)),
            None => one(session, guest, detail).await,
        };
        if let Err(note) = &outcome
            && note.reason == Reason::NodeSilent
        {
            lane.fell_silent(&note.text);
        }
        outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(vmid, outcome);
    }
}

/// The run-state first: what is read of the config after it is then not older.
async fn one<E: Exchange>(session: &Session<E>, guest: GuestPath, detail: Detail) -> Outcome {
    let status = match detail {
        Detail::ConfigAndStatus => match status(session, guest.clone()).await {
            Ok(status) => Some(status),
            Err(failure) => return Err(note(session, &guest, failure).await),
        },
        Detail::Config | Detail::None => None,
    };
    match config(session, guest.clone()).await {
        Ok(config) => Ok(Detailed { config, status }),
        Err(failure) => Err(note(session, &guest, failure).await),
    }
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
        // It is the node that does not answer, whichever guest was asked for.
        Reason::NodeSilent => return Note::of_guest(guest.vmid, Reason::NodeSilent, said),
        reason => return Note::of_guest(guest.vmid, reason, told(guest, &said)),
    }
    let reason = match session.call(&Command::Read(Read::NextId(guest.vmid))).await {
        Ok(Event::NextId(NextId::Free)) => Reason::Gone,
        _ => Reason::Moved,
    };
    Note::of_guest(guest.vmid, reason, told(guest, &said))
}

fn told(guest: &GuestPath, said: &str) -> String {
    format!("guest {} on node {}: {said}", guest.vmid, guest.node.as_str())
}
