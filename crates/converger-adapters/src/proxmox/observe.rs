//! One reading of a cluster: the list of all guests first, then the lists of the nodes that have guests in scope, then those guests one by one of
//! which more is needed, and proof for those that are not listed. Each request is made once (G4); what fails is unknown, with its cause.
//!
//! What never enters: which endpoint is asked (`client`), and what follows from a reading (the core).

pub(super) mod absence;
mod guest_details;
mod node_lists;
mod notes;
mod rows;
mod unknown_reason;

use std::collections::{BTreeMap, BTreeSet};

use converger_core::desired::Scope;
use converger_core::failure::FailureCode;
use converger_core::guest::{EnvironmentName, NodeName, Vmid};
use converger_core::observe::{Observation, ObservedGuest, ObservedNode, ObservedStatus, ReadDetail, TagCase, UnlistedGuest};
use futures_util::future::join_all;
use thiserror::Error;

use super::client::{ProxmoxSession, ProxmoxTransport, REQUESTS_PER_NODE_MAX};
use super::codec::{
    ClusterStatus, EscapedText, FailureCause, GuestPath, GuestResource, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead,
    ResourceList, shorten,
};
use super::shell_quote::quote;

pub use converger_core::observe::{GuestNeed, ReadSet};
use node_lists::{NodeLists, OwnRow};
use rows::NextRead;
pub(super) use rows::fallback_name;
pub use unknown_reason::{ReadingNote, UnknownReason};

/// What is to be read.
#[derive(Clone, Debug)]
pub struct ObservationRequest<'q> {
    /// The environment, whose name the reading carries.
    pub environment: &'q EnvironmentName,
    /// The name of the cluster that must answer; of a node that is in no cluster, its own name.
    pub cluster: Option<&'q str>,
    /// The id of the token that asks, for what is said to people.
    pub token: &'q str,
    /// The guests.
    pub scope: &'q Scope,
    /// What of them.
    pub needs: &'q ReadSet,
}

/// A reading, with what people should know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxmoxReading {
    /// The reading. What is outside of the scope is still in it.
    pub observation: Observation,
    /// What was not as it should be, in order.
    pub notes: Vec<ReadingNote>,
    /// The node that answered, or another one that is online.
    pub node: Option<NodeName>,
}

/// Why there is no reading at all.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReadingError {
    /// A reading that everything rests on failed.
    #[error("{place}: {what} cannot be read: {}", failure.without_endpoint_name(place))]
    Failed {
        /// Who was asked.
        place: String,
        /// For what.
        what: &'static str,
        /// What came of it.
        failure: ProxmoxFailure,
        /// What to do about it.
        remedy: String,
    },
    /// Another cluster answered.
    #[error("{place} is in the cluster `{}`, not in `{}`", EscapedText(found), EscapedText(wanted))]
    OtherCluster {
        /// Who was asked.
        place: String,
        /// The name of the cluster that answered.
        found: String,
        /// The name that is pinned.
        wanted: String,
    },
}

impl ReadingError {
    /// The code of the failure.
    #[must_use]
    pub fn code(&self) -> FailureCode {
        match self {
            Self::Failed { failure, .. } => failure.cause.code(),
            Self::OtherCluster { .. } => FailureCode::OtherCluster,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &str {
        match self {
            Self::Failed { remedy, .. } => remedy,
            Self::OtherCluster { .. } => FailureCode::OtherCluster.entry().remedy.trim_end_matches('.'),
        }
    }
}

/// What to do about a failure that leaves no reading: what the table of codes says, with the names where the token is what is wrong.
pub(super) fn failure_remedy(failure: &ProxmoxFailure, token: &str) -> String {
    let user = token.split_once('!').map_or(token, |(user, _)| user);
    match failure.cause {
        FailureCause::Forbidden => {
            let (user, token) = (quote(user), quote(token));
            format!("let the token read the cluster, on a node: pveum acl modify / --users {user} --tokens {token} --roles PVEAuditor")
        }
        FailureCause::Unauthenticated => format!(
            "check that the secret is that of the token {token}, and that neither token nor user is gone, disabled or expired; Proxmox \
             does not say which"
        ),
        cause => cause.code().entry().remedy.trim_end_matches('.').to_owned(),
    }
}

fn reading_error<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    question: &ObservationRequest<'_>,
    what: &'static str,
    failure: ProxmoxFailure,
) -> ReadingError {
    let remedy = failure_remedy(&failure, question.token);
    ReadingError::Failed { place: session.endpoint_name().to_owned(), what, failure, remedy }
}

/// Takes one reading over a session.
///
/// # Errors
/// Nothing can be said about anything.
pub async fn take_reading<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    question: &ObservationRequest<'_>,
) -> Result<ProxmoxReading, ReadingError> {
    take_reading_with_progress(session, question, &|_, _| {}).await
}

/// Called with the number of guests that were read one by one, and the number of all that are.
pub type ReadProgress<'p> = &'p (dyn Fn(u64, u64) + Sync);

/// Takes one reading over a session and reports its progress.
///
/// # Errors
/// Nothing can be said about anything.
pub async fn take_reading_with_progress<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    question: &ObservationRequest<'_>,
    progress: ReadProgress<'_>,
) -> Result<ProxmoxReading, ReadingError> {
    let cluster = read_cluster(session).await;
    // Whoever may not see the cluster is not asked for more, nor is another cluster.
    let before = check_cluster(session, question, cluster)?;
    let list = read_list(session).await;
    finish_reading(session, question, before, list, progress).await
}

/// The same where both of what a reading begins with were asked for just now: nothing is asked twice.
///
/// # Errors
/// Nothing can be said about anything.
pub(super) async fn continue_reading<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    question: &ObservationRequest<'_>,
    begun_with: InitialAnswers,
) -> Result<ProxmoxReading, ReadingError> {
    let before = check_cluster(session, question, begun_with.cluster)?;
    finish_reading(session, question, before, begun_with.list, &|_, _| {}).await
}

/// What a reading begins with.
pub(super) struct InitialAnswers {
    pub(super) cluster: Result<ClusterStatus, ProxmoxFailure>,
    pub(super) list: Result<ResourceList, ProxmoxFailure>,
}

async fn finish_reading<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    question: &ObservationRequest<'_>,
    before: ClusterStatus,
    list: Result<ResourceList, ProxmoxFailure>,
    progress: ReadProgress<'_>,
) -> Result<ProxmoxReading, ReadingError> {
    let resources = list.map_err(|failure| reading_error(session, question, "the list of guests", failure))?;
    let lists = {
        let asked = guests_to_confirm(question, &before, &resources.rows);
        NodeLists::read(session, &asked, before.local.as_ref()).await
    };
    let mut reading = ReadingBuilder::new(question, &before, resources, &lists);
    reading.read_tag_case(session).await;
    reading.read_details(session, progress).await;
    reading.prove_absences(session).await;
    let after = check_cluster(session, question, read_cluster(session).await);
    if let Some(failure) = session.budget_failure() {
        return Err(reading_error(session, question, "the whole environment", failure));
    }
    match after {
        Ok(after) if after.effective_name() != before.effective_name() => {
            return Err(other_cluster_error(session, after.effective_name(), before.effective_name()));
        }
        Ok(after) => reading.finish_with_cluster(&before, &after),
        Err(unread @ ReadingError::OtherCluster { .. }) => return Err(unread),
        Err(unread) => reading.finish_without_cluster(&unread),
    }
    Ok(reading.into_reading())
}

/// The state of the cluster as it was answered.
pub(super) async fn read_cluster<E: ProxmoxTransport>(session: &ProxmoxSession<E>) -> Result<ClusterStatus, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::ClusterStatus)).await? {
        ProxmoxEvent::Cluster(cluster) => Ok(cluster),
        other => Err(other.unexpected_failure()),
    }
}

/// The cluster, if it could be read and is the one that is meant.
fn check_cluster<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    question: &ObservationRequest<'_>,
    cluster: Result<ClusterStatus, ProxmoxFailure>,
) -> Result<ClusterStatus, ReadingError> {
    let cluster = cluster.map_err(|failure| reading_error(session, question, "the state of the cluster", failure))?;
    let found = cluster.effective_name();
    if let Some(wanted) = question.cluster.filter(|wanted| *wanted != found) {
        return Err(other_cluster_error(session, found, wanted));
    }
    Ok(cluster)
}

fn other_cluster_error<E: ProxmoxTransport>(session: &ProxmoxSession<E>, found: &str, wanted: &str) -> ReadingError {
    ReadingError::OtherCluster { place: session.endpoint_name().to_owned(), found: shorten(found).into(), wanted: shorten(wanted).into() }
}

/// The list of all guests.
pub(super) async fn read_list<E: ProxmoxTransport>(session: &ProxmoxSession<E>) -> Result<ResourceList, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::Resources)).await? {
        ProxmoxEvent::Resources(resources) => Ok(resources),
        other => Err(other.unexpected_failure()),
    }
}

/// The guests whose run-state their own nodes are asked for by lists: those in scope on nodes that are online. Where everything is read, each guest
/// is read by itself.
fn guests_to_confirm<'r>(
    question: &ObservationRequest<'_>,
    cluster: &ClusterStatus,
    resources: &'r [GuestResource],
) -> Vec<&'r GuestResource> {
    let is_online = |resource: &GuestResource| cluster.nodes.get(&resource.node) == Some(&true);
    let is_asked = |resource: &&GuestResource| question.scope.contains(resource.vmid) && is_online(resource);
    match question.needs {
        ReadSet::Everything => Vec::new(),
        ReadSet::Declared(_) => resources.iter().filter(is_asked).collect(),
    }
}

/// A reading in the making.
struct ReadingBuilder<'q> {
    question: &'q ObservationRequest<'q>,
    quorate: bool,
    complete: bool,
    tag_case: Option<TagCase>,
    /// The guests of the scope that the list lacks, with why that does not mean that they are absent.
    unlisted: BTreeMap<Vmid, Option<UnknownReason>>,
    /// Sorted by name.
    nodes: Vec<ObservedNode>,
    /// The node that answers here.
    local: Option<NodeName>,
    /// The nodes that answered so far.
    answering: BTreeSet<NodeName>,
    /// What came instead of an answer, by node and reason.
    came: BTreeMap<(usize, UnknownReason), String>,
    /// What follows from the lists of the nodes for reading a guest by itself, where that is not what is needed of it.
    next_reads: BTreeMap<Vmid, NextRead>,
    /// Guests whose rows in the list say too little to place them, each with the field that is missing or makes no sense.
    unusable: BTreeMap<Vmid, &'static str>,
    guests: Vec<ObservedGuest>,
    notes: Vec<ReadingNote>,
}

impl<'q> ReadingBuilder<'q> {
    fn new(question: &'q ObservationRequest<'q>, cluster: &ClusterStatus, list: ResourceList, lists: &NodeLists) -> Self {
        let ResourceList { rows: mut resources, unusable } = list;
        for resource in &mut resources {
            // A second row of the guest says too little, so that the first one may be out of date.
            resource.invalid_field = resource.invalid_field.or(unusable.get(&resource.vmid).copied());
        }
        let mut nodes: BTreeMap<NodeName, bool> = cluster.nodes.clone();
        for resource in &resources {
            // The config of a node that left the cluster may still be there; nobody answers for it.
            if !nodes.contains_key(&resource.node) {
                nodes.insert(resource.node.clone(), false);
            }
        }
        let nodes: Vec<ObservedNode> = nodes.into_iter().map(|(name, online)| ObservedNode { name, online }).collect();
        let mut notes = Vec::new();
        if resources.is_empty() && unusable.is_empty() && !question.scope.ids().is_empty() {
            notes.push(ReadingNote::for_reading(UnknownReason::ListEmpty, "the list of guests is empty"));
        }
        notes.extend(lists.notes(&guests_to_confirm(question, cluster, &resources)));
        let mut next_reads = BTreeMap::new();
        let mut guests = Vec::with_capacity(resources.len());
        for resource in resources {
            let Ok(index) = nodes.binary_search_by(|node| node.name.cmp(&resource.node)) else { continue };
            let (is_in_scope, is_online) = (question.scope.contains(resource.vmid), nodes.get(index).is_some_and(|node| node.online));
            if !is_in_scope || !is_online {
                notes.extend(rows::invalid_row_note(&resource, OwnRow::NotAsked).filter(|_| is_in_scope));
                guests.push(rows::row_from_list(resource, index, is_online));
                continue;
            }
            let own = lists.row_of(&resource);
            notes.extend(rows::invalid_row_note(&resource, own));
            let (row, next) = rows::confirmed(resource, own, index);
            if next != NextRead::AsNeeded {
                next_reads.insert(row.vmid, next);
            }
            guests.push(row);
        }
        let answering = cluster.local.iter().cloned().chain(lists.answering_nodes()).collect();
        let mut reading = Self {
            question,
            quorate: cluster.quorate,
            complete: true,
            tag_case: None,
            unlisted: BTreeMap::new(),
            nodes,
            local: cluster.local.clone(),
            answering,
            came: BTreeMap::new(),
            next_reads,
            unusable,
            guests,
            notes,
        };
        for (node, failure) in lists.failures() {
            if let Ok(index) = reading.nodes.binary_search_by(|own| own.name.cmp(node)) {
                reading.came.entry((index, failure.reason)).or_insert_with(|| failure.text.clone());
            }
        }
        reading.mark_silent_nodes();
        reading
    }

    /// The datacenter's rule for tags, where it is needed. Where it cannot be read, it is not known.
    async fn read_tag_case<E: ProxmoxTransport>(&mut self, session: &ProxmoxSession<E>) {
        let scope = self.question.scope;
        if self.question.needs.tag_case(self.guests.iter().filter(|row| scope.contains(row.vmid)))
            && let Ok(ProxmoxEvent::TagOptions(options)) = session.call(&ProxmoxCommand::Read(ProxmoxRead::TagOptions)).await
        {
            self.tag_case = Some(options.tag_case);
        }
    }

    async fn read_details<E: ProxmoxTransport>(&mut self, session: &ProxmoxSession<E>, progress: ReadProgress<'_>) {
        let wanted: Vec<(GuestPath, ReadDetail)> = self.guests.iter().filter_map(|row| self.wanted_detail(row)).collect();
        if wanted.is_empty() {
            return;
        }
        let mut outcomes = guest_details::read_details(session, wanted, &self.answering, progress).await;
        for row in &mut self.guests {
            let Some(outcome) = outcomes.remove(&row.vmid) else { continue };
            match apply_detail(row, outcome) {
                Some(note) if matches!(note.reason, UnknownReason::NodeSilent | UnknownReason::NoAnswer) => {
                    self.came.entry((row.node, note.reason)).or_insert(note.text);
                }
                note => self.notes.extend(note),
            }
        }
        self.mark_silent_nodes();
    }

    /// A node that does not answer is not online, whatever the cluster thinks of it.
    fn mark_silent_nodes(&mut self) {
        for (index, _) in self.came.keys().filter(|(_, reason)| *reason == UnknownReason::NodeSilent) {
            if let Some(node) = self.nodes.get_mut(*index) {
                node.online = false;
            }
        }
    }

    /// What is to be read of a guest beyond the list, if it is in scope and its node is online.
    fn wanted_detail(&self, row: &ObservedGuest) -> Option<(GuestPath, ReadDetail)> {
        // What the list said of it makes no sense, and no more is built on that.
        if row.status == rows::unknown_status(UnknownReason::Malformed) {
            return None;
        }
        let node = self.nodes.get(row.node).filter(|node| node.online)?;
        let detail = match self.next_reads.get(&row.vmid) {
            Some(NextRead::Nothing) => ReadDetail::None,
            Some(NextRead::Itself) => ReadDetail::ConfigAndStatus,
            Some(NextRead::AsNeeded) | None => self.question.needs.detail(row),
        };
        let is_wanted = self.question.scope.contains(row.vmid) && detail != ReadDetail::None;
        is_wanted.then(|| (GuestPath { node: node.name.clone(), kind: row.kind, vmid: row.vmid }, detail))
    }

    async fn prove_absences<E: ProxmoxTransport>(&mut self, session: &ProxmoxSession<E>) {
        let listed: BTreeSet<Vmid> = self.guests.iter().map(|row| row.vmid).collect();
        let unlisted: Vec<Vmid> = self.question.scope.ids().iter().copied().filter(|vmid| !listed.contains(vmid)).collect();
        self.unlisted = unlisted.iter().map(|vmid| (*vmid, None)).collect();
        let unlisted = self.doubt_unusable(unlisted);
        if unlisted.is_empty() || !self.quorate {
            return;
        }
        if unlisted.len() > absence::PROOFS_MAX {
            self.mark_incomplete(UnknownReason::ListShrunken);
            let text = format!("{} guests are not listed; that is too many at once to believe that they are gone", unlisted.len());
            self.notes.push(ReadingNote::for_reading(UnknownReason::ListShrunken, text));
            return;
        }
        let nodes = &self.nodes;
        // In small groups: the session holds back what a node has no room for, and nothing waits for long.
        for group in unlisted.chunks(REQUESTS_PER_NODE_MAX) {
            let doubts =
                join_all(group.iter().map(async |vmid| absence::search_nodes(session, nodes, *vmid).await.absence_doubt(*vmid))).await;
            for note in doubts.into_iter().flatten() {
                self.complete = false;
                self.unlisted.extend(note.vmid.map(|vmid| (vmid, Some(note.reason))));
                self.notes.push(note);
            }
        }
    }

    /// Guests whose rows in the list are unusable are neither read nor absent. Gives back the others.
    fn doubt_unusable(&mut self, unlisted: Vec<Vmid>) -> Vec<Vmid> {
        for vmid in &unlisted {
            let Some(field) = self.unusable.get(vmid) else { continue };
            self.complete = false;
            self.unlisted.insert(*vmid, Some(UnknownReason::Malformed));
            let text = format!("guest {vmid}: its row in the list of guests has no usable `{field}`");
            self.notes.push(ReadingNote::for_guest(*vmid, UnknownReason::Malformed, text));
        }
        unlisted.into_iter().filter(|vmid| !self.unusable.contains_key(vmid)).collect()
    }

    /// The reading is not whole, and of none of the guests that the list lacks it is known that they are absent.
    fn mark_incomplete(&mut self, reason: UnknownReason) {
        self.complete = false;
        for known in self.unlisted.values_mut() {
            known.get_or_insert(reason);
        }
    }

    /// What holds at the end must have held at the beginning.
    fn finish_with_cluster(&mut self, before: &ClusterStatus, after: &ClusterStatus) {
        self.quorate &= after.quorate;
        if before.local != after.local {
            // Two nodes may see two sides of a split. Both said what they said of quorum: what is not known is whether it is one view.
            self.mark_incomplete(UnknownReason::ClusterUnread);
            self.notes.push(ReadingNote::for_reading(
                UnknownReason::ClusterUnread,
                "another node answered at the end than at the beginning, as behind a load balancer; name a single node",
            ));
        }
        if !self.unlisted.is_empty() && !before.nodes.keys().eq(after.nodes.keys()) {
            self.mark_incomplete(UnknownReason::NotProven);
            self.notes
                .push(ReadingNote::for_reading(UnknownReason::NotProven, "the cluster named other nodes at the end than at the beginning"));
        }
        for node in &mut self.nodes {
            node.online &= after.nodes.get(&node.name) == Some(&true);
        }
        self.mark_silent_guests();
    }

    /// What was said of quorum at the beginning stays said; that it held until the end is not known, and so the reading is not whole.
    fn finish_without_cluster(&mut self, unread: &ReadingError) {
        self.mark_incomplete(UnknownReason::ClusterUnread);
        self.notes.push(ReadingNote::for_reading(UnknownReason::ClusterUnread, unread.to_string()));
        self.mark_silent_guests();
    }

    /// Guests of a node that is not online are unknown, unless a better reason is known already.
    fn mark_silent_guests(&mut self) {
        for row in &mut self.guests {
            let is_online = self.nodes.get(row.node).is_some_and(|node| node.online);
            if !is_online && matches!(row.status, ObservedStatus::Known(_)) {
                let reason = if self.came.contains_key(&(row.node, UnknownReason::NodeSilent)) {
                    UnknownReason::NodeSilent
                } else {
                    UnknownReason::NodeOffline
                };
                row.status = rows::unknown_status(reason);
            }
        }
    }

    fn into_reading(mut self) -> ProxmoxReading {
        let online = || self.nodes.iter().find(|node| node.online).map(|node| node.name.clone());
        let node = self.local.clone().or_else(online);
        let in_scope = self.guests.iter().filter(|row| self.question.scope.contains(row.vmid));
        self.notes.extend(notes::notes_of_rows(in_scope, &self.nodes, &self.came));
        self.notes.sort();
        self.guests.sort_by_key(|row| row.vmid);
        // Without quorum the list is what this side of a split last knew: nothing that it lacks is proven absent.
        let complete = self.complete && (self.quorate || self.unlisted.is_empty());
        let unlisted = self.unlisted.into_iter().filter_map(|(vmid, reason)| Some(UnlistedGuest { cause: reason?.word().into(), vmid }));
        let observation = Observation {
            environment: self.question.environment.clone(),
            source: Some("proxmox".into()),
            taken_at: None,
            complete,
            quorate: self.quorate,
            tag_case: self.tag_case,
            nodes: self.nodes.into(),
            guests: self.guests.into(),
            unlisted: unlisted.collect(),
            unmanaged: 0,
            notes: self.notes.iter().map(|note| note.to_core_note(self.question.token)).collect(),
        };
        ProxmoxReading { observation, notes: self.notes, node }
    }
}

/// Takes what was read of a guest into its row. What is wrong with it, if something is.
fn apply_detail(row: &mut ObservedGuest, outcome: guest_details::DetailResult) -> Option<ReadingNote> {
    let detailed = match outcome {
        Ok(detailed) => detailed,
        Err(note) => {
            row.status = rows::unknown_status(note.reason);
            return Some(note);
        }
    };
    let strange = detailed.config.config.as_ref().err().cloned();
    let listed = row.name.clone();
    let told = detailed.status.as_ref().and_then(|told| told.status.name.clone());
    let reason = rows::complete_row(row, detailed)?;
    let name = row.name.as_deref().unwrap_or_default();
    let text = match (reason, strange) {
        (UnknownReason::NotUnderstood, Some(key)) => format!("guest {}: the value of `{}` is not understood", row.vmid, EscapedText(&key)),
        (UnknownReason::Malformed, _) => {
            format!("guest {}: its config came without a `digest`, which every release of Proxmox sends", row.vmid)
        }
        (UnknownReason::Replaced, _) => {
            format!("guest {}: its node told of one guest before its run-state and of another one after it", row.vmid)
        }
        _ => match listed.filter(|listed| **listed != *name) {
            Some(listed) => format!("guest {}: the list calls it {listed:?}, and its node {name:?}", row.vmid),
            None => {
                format!("guest {}: its config calls it {name:?}, and its run-state {:?}", row.vmid, told.as_deref().unwrap_or_default())
            }
        },
    };
    Some(ReadingNote::for_guest(row.vmid, reason, text))
}
