//! Reads what only some intents need: snapshots, replication jobs, and memory, CPUs and storages of nodes. Each is one request, sent once
//! (G4): per guest, per node, or for all guests. Whatever fails stays unread, with a note; it is never empty instead.
//!
//! Must not decide which of it is needed (`ReadSet`) or what follows from it (the core).

use std::collections::BTreeSet;

use converger_core::guest::{NodeName, SnapshotName, Vmid};
use converger_core::observe::{ExtraReads, NodeCapacity, ObservedGuest, ObservedStatus, ObservedStorage, Reading, SnapshotTree};
use futures_util::future::join_all;

use super::ReadingBuilder;
use super::unknown_reason::{ReadingNote, UnknownReason};
use crate::proxmox::client::{ProxmoxSession, ProxmoxTransport, REQUESTS_PER_NODE_MAX};
use crate::proxmox::codec::{ConfigDigest, GuestPath, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead};

impl ReadingBuilder<'_> {
    /// Reads what is needed beyond rows and configs. Guests that are unknown and nodes that are offline are not asked.
    pub(super) async fn read_extras<E: ProxmoxTransport>(&mut self, session: &ProxmoxSession<E>) {
        self.read_snapshots(session).await;
        self.read_replication(session).await;
        self.read_nodes(session).await;
    }

    /// The needs of a guest in scope that is not unknown.
    fn extras_of(&self, row: &ObservedGuest) -> Option<&ExtraReads> {
        let is_known = self.question.scope.contains(row.vmid) && matches!(row.status, ObservedStatus::Known(_));
        self.question.needs.extras(row).filter(|_| is_known)
    }

    async fn read_snapshots<E: ProxmoxTransport>(&mut self, session: &ProxmoxSession<E>) {
        let wanted: Vec<SnapshotsToRead> = self.guests.iter().filter_map(|row| self.wanted_snapshots(row)).collect();
        // In small groups: the session queues excess requests per node, and nothing waits for long.
        for group in wanted.chunks(REQUESTS_PER_NODE_MAX) {
            let outcomes = join_all(group.iter().map(|wanted| wanted.read(session))).await;
            for (wanted, (tree, note)) in group.iter().zip(outcomes) {
                let row = self.guests.iter_mut().find(|row| row.vmid == wanted.guest.vmid);
                if let (Some(row), Some(tree)) = (row, tree) {
                    row.change_extras(|extras| extras.snapshots = Reading::Read(tree));
                }
                self.notes.extend(note);
            }
        }
    }

    fn wanted_snapshots(&self, row: &ObservedGuest) -> Option<SnapshotsToRead> {
        let extras = self.extras_of(row).filter(|extras| extras.needs_snapshots())?;
        let node = self.nodes.get(row.node).filter(|node| node.online)?;
        Some(SnapshotsToRead {
            guest: GuestPath { node: node.name.clone(), kind: row.kind, vmid: row.vmid },
            // Without its config, nothing shows that the snapshots belong to this guest and not to the next one with its id.
            digest: row.digest.as_deref().and_then(ConfigDigest::new)?,
            running_cpu_of: extras.running_cpu_of.clone(),
        })
    }

    /// One request for all guests. A guest that is listed is one whose jobs the token may see, because both need `VM.Audit`.
    async fn read_replication<E: ProxmoxTransport>(&mut self, session: &ProxmoxSession<E>) {
        let is_wanted = |row: &&ObservedGuest| self.extras_of(row).is_some_and(|extras| extras.replication);
        let wanted: BTreeSet<Vmid> = self.guests.iter().filter(is_wanted).map(|row| row.vmid).collect();
        if wanted.is_empty() {
            return;
        }
        match read_replicated_guests(session).await {
            Ok(replicated) => {
                for row in self.guests.iter_mut().filter(|row| wanted.contains(&row.vmid)) {
                    let is_replicated = replicated.contains(&row.vmid);
                    row.change_extras(|extras| extras.replicated = Reading::Read(is_replicated));
                }
            }
            Err(failure) => {
                let text = format!("the replication jobs could not be read: {}", failure.without_endpoint_name(session.endpoint_name()));
                self.notes.push(ReadingNote::for_reading(UnknownReason::ReplicationUnread, text));
            }
        }
    }

    async fn read_nodes<E: ProxmoxTransport>(&mut self, session: &ProxmoxSession<E>) {
        let (needs, scope) = (self.question.needs, self.question.scope);
        let in_scope = || self.guests.iter().filter(|row| scope.contains(row.vmid));
        let (capacity, storages) = (needs.capacity_nodes(&self.nodes, in_scope()), needs.storage_nodes(&self.nodes, in_scope()));
        let endpoint_name = session.endpoint_name();
        let reads = self.nodes.iter().enumerate().filter(|(_, node)| node.online).map(async |(index, node)| {
            let capacity = if capacity.contains(&index) { Some(read_capacity(session, &node.name).await) } else { None };
            let storages = if storages.contains(&index) { Some(read_storages(session, &node.name).await) } else { None };
            (index, capacity, storages)
        });
        for (index, capacity, storages) in join_all(reads.collect::<Vec<_>>()).await {
            let Some(node) = self.nodes.get_mut(index) else { continue };
            let name = node.name.as_str();
            match capacity {
                Some(Ok(capacity)) => node.capacity = Reading::Read(capacity),
                Some(Err(failure)) => {
                    let text =
                        format!("the memory and CPUs of node {name} could not be read: {}", failure.without_endpoint_name(endpoint_name));
                    self.notes.push(ReadingNote::for_reading(UnknownReason::CapacityUnread, text));
                }
                None => {}
            }
            match storages {
                // Every node has a storage, so the token may see none. That says nothing about the storages.
                Some(Ok(list)) if list.is_empty() => {
                    let text = format!("node {name} lists no storage that the token may see");
                    self.notes.push(ReadingNote::for_reading(UnknownReason::StoragesUnread, text));
                }
                Some(Ok(list)) => node.storages = Reading::Read(list),
                Some(Err(failure)) => {
                    let text = format!("the storages of node {name} could not be read: {}", failure.without_endpoint_name(endpoint_name));
                    self.notes.push(ReadingNote::for_reading(UnknownReason::StoragesUnread, text));
                }
                None => {}
            }
        }
    }
}

/// A guest whose snapshots are needed.
struct SnapshotsToRead {
    guest: GuestPath,
    /// The digest of its config as it was read.
    digest: ConfigDigest,
    running_cpu_of: Option<SnapshotName>,
}

impl SnapshotsToRead {
    /// Reads the snapshots with one request, and the CPU of one of them with another one if it contains memory.
    async fn read<E: ProxmoxTransport>(&self, session: &ProxmoxSession<E>) -> (Option<SnapshotTree>, Option<ReadingNote>) {
        let mut tree = match read_snapshot_tree(session, self).await {
            Ok(tree) => tree,
            Err(note) => return (None, Some(note)),
        };
        let wanted = self.running_cpu_of.as_ref().filter(|name| tree.find(name.as_str()).is_some_and(|snapshot| snapshot.ram));
        let Some(name) = wanted else { return (Some(tree), None) };
        match read_running_cpu(session, self, name).await {
            Ok(cpu) => {
                if let Some(snapshot) = tree.list.iter_mut().find(|snapshot| &*snapshot.name == name.as_str()) {
                    snapshot.cpu = cpu;
                }
                (Some(tree), None)
            }
            Err(note) => (Some(tree), Some(note)),
        }
    }

    fn note(&self, text: &str) -> ReadingNote {
        let (vmid, node) = (self.guest.vmid, self.guest.node.as_str());
        ReadingNote::for_guest(vmid, UnknownReason::SnapshotsUnread, format!("guest {vmid} on node {node}: {text}"))
    }

    /// The note about a read that failed, or about one that belongs to another state of the guest.
    fn check_digest(&self, digest: Option<&ConfigDigest>) -> Result<(), ReadingNote> {
        // The digest covers the whole config with its snapshots, so an equal one is of the same guest at the same moment.
        if digest == Some(&self.digest) { Ok(()) } else { Err(self.note("its config changed while its snapshots were read")) }
    }
}

async fn read_snapshot_tree<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    wanted: &SnapshotsToRead,
) -> Result<SnapshotTree, ReadingNote> {
    let failed = |failure: ProxmoxFailure| {
        wanted.note(&format!("its snapshots could not be read: {}", failure.without_endpoint_name(session.endpoint_name())))
    };
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::Snapshots(wanted.guest.clone()))).await.map_err(failed)? {
        ProxmoxEvent::Snapshots(listed) => wanted.check_digest(listed.digest.as_ref()).map(|()| listed.tree),
        other => Err(failed(other.unexpected_failure())),
    }
}

async fn read_running_cpu<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    wanted: &SnapshotsToRead,
    name: &SnapshotName,
) -> Result<Option<Box<str>>, ReadingNote> {
    let failed = |failure: ProxmoxFailure| {
        let text = failure.without_endpoint_name(session.endpoint_name());
        wanted.note(&format!("the CPU of its snapshot {} could not be read: {text}", name.as_str()))
    };
    let read = ProxmoxRead::SnapshotConfig { guest: wanted.guest.clone(), name: name.clone() };
    match session.call(&ProxmoxCommand::Read(read)).await.map_err(failed)? {
        ProxmoxEvent::SnapshotConfig(config) => wanted.check_digest(config.digest.as_ref()).map(|()| config.running_cpu),
        other => Err(failed(other.unexpected_failure())),
    }
}

async fn read_replicated_guests<E: ProxmoxTransport>(session: &ProxmoxSession<E>) -> Result<BTreeSet<Vmid>, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::ReplicationJobs)).await? {
        ProxmoxEvent::ReplicatedGuests(guests) => Ok(guests),
        other => Err(other.unexpected_failure()),
    }
}

async fn read_capacity<E: ProxmoxTransport>(session: &ProxmoxSession<E>, node: &NodeName) -> Result<NodeCapacity, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::NodeStatus(node.clone()))).await? {
        ProxmoxEvent::NodeCapacity(capacity) => Ok(capacity),
        other => Err(other.unexpected_failure()),
    }
}

async fn read_storages<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    node: &NodeName,
) -> Result<Box<[ObservedStorage]>, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::NodeStorages(node.clone()))).await? {
        ProxmoxEvent::Storages(storages) => Ok(storages),
        other => Err(other.unexpected_failure()),
    }
}
