//! Takes one observation of a cluster: first the list of all guests, then the lists of the nodes with guests in scope, then single guests
//! of which more is needed, and proof for guests that are not listed. Each request is sent once (G4); whatever fails is unknown, with its
//! cause.
//!
//! Must not depend on the choice of the endpoint (`client`) or on what follows from an observation (the core).

pub(super) mod absence;
mod extras;
mod guest_details;
mod node_lists;
mod notes;
mod rows;
mod unknown_reason;

use std::collections::{BTreeMap, BTreeSet};

use converger_core::desired::{GuestSelection, Scope};
use converger_core::failure::{FailureCode, READING_NO_QUORUM_REMEDY};
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

pub use converger_core::observe::{BirthNeed, BirthNeeds, CapacityOf, ExtraReads, GuestNeed, IntentNeeds, NodeReads, ReadSet};
use node_lists::{NodeLists, OwnRow};
use rows::NextRead;
pub(super) use rows::fallback_name;
pub use unknown_reason::{ReadingNote, UnknownReason};

/// The note about a list without any guest.
const LIST_EMPTY: &str = "the list of guests is empty";

/// What to observe.
#[derive(Clone, Debug)]
pub struct ObservationRequest<'q> {
    /// The environment that the observation is named after.
    pub environment: &'q EnvironmentName,
    /// The required name of the cluster; for a node without a cluster, the name of the node.
    pub cluster: Option<&'q str>,
    /// The id of the token, for messages.
    pub token: &'q str,
    /// The guests.
    pub scope: &'q Scope,
    /// What to read of the guests.
    pub needs: &'q ReadSet,
}

/// An observation with its notes for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxmoxReading {
    /// The observation. It still contains guests outside the scope.
    pub observation: Observation,
    /// Irregularities, in order.
    pub notes: Vec<ReadingNote>,
    /// The node of the endpoint, or another node that is online.
    pub node: Option<NodeName>,
}

impl ProxmoxReading {
    fn add_note(&mut self, note: ReadingNote, token: &str) {
        let notes = std::mem::take(&mut self.observation.notes).into_vec();
        self.observation.notes = notes.into_iter().chain([note.to_core_note(token)]).collect();
        self.notes.push(note);
    }
}

/// Why there is no observation at all.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReadingError {
    /// A read that everything else depends on failed.
    #[error("{endpoint}: {what} cannot be read: {}", failure.without_endpoint_name(endpoint))]
    Failed {
        /// The endpoint.
        endpoint: String,
        /// What was to be read.
        what: &'static str,
        /// The failure.
        failure: ProxmoxFailure,
        /// The remedy.
        remedy: String,
    },
    /// The endpoint belongs to another cluster.
    #[error("{endpoint} is in the cluster `{}`, not in `{}`", EscapedText(found), EscapedText(wanted))]
    OtherCluster {
        /// The endpoint.
        endpoint: String,
        /// The name of its cluster.
        found: String,
        /// The pinned name.
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

    /// The remedy.
    #[must_use]
    pub fn remedy(&self) -> &str {
        match self {
            Self::Failed { remedy, .. } => remedy,
            Self::OtherCluster { .. } => FailureCode::OtherCluster.entry().remedy.trim_end_matches('.'),
        }
    }
}

/// The remedy for a failure that prevents the observation: the one of the failure code, with concrete names if the token is at fault.
pub(super) fn failure_remedy(failure: &ProxmoxFailure, token: &str) -> String {
    let user = token.split_once('!').map_or(token, |(user, _)| user);
    match failure.cause {
        FailureCause::Forbidden => {
            let (user, token) = (quote(user), quote(token));
            format!("let the token read the cluster, on a node: pveum acl modify / --users {user} --tokens {token} --roles PVEAuditor")
        }
        FailureCause::Unauthenticated => format!(
            "check that the secret belongs to the token {token}, and that neither token nor user is deleted, disabled or expired; Proxmox \
             does not say which"
        ),
        FailureCause::NoQuorum => READING_NO_QUORUM_REMEDY.to_owned(),
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
    ReadingError::Failed { endpoint: session.endpoint_name().to_owned(), what, failure, remedy }
}

/// Takes one observation over a session.
///
/// # Errors
/// The cluster or the list of guests cannot be read, or the budget is exhausted.
pub async fn take_reading<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    question: &ObservationRequest<'_>,
) -> Result<ProxmoxReading, ReadingError> {
    take_reading_with_progress(session, question, &|_, _| {}).await
}

/// Called with the number of guests that were read one by one so far, and with their total number.
pub type ReadProgress<'p> = &'p (dyn Fn(u64, u64) + Sync);

/// Takes one observation over a session and reports its progress.
///
/// # Errors
/// There is no observation.
pub async fn take_reading_with_progress<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    question: &ObservationRequest<'_>,
    progress: ReadProgress<'_>,
) -> Result<ProxmoxReading, ReadingError> {
    let cluster = read_cluster(session).await;
    // Stop here if the token may not read the cluster, or if it is another cluster.
    let before = check_cluster(session, question, cluster)?;
    let list = read_list(session).await;
    finish_reading(session, question, before, list, progress).await
}

/// Takes one observation of the guests that a selection resolves to among the listed ones. Returns their ids too.
///
/// `question.scope` is ignored.
///
/// # Errors
/// There is no observation.
pub async fn take_selected_reading<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    question: &ObservationRequest<'_>,
    selection: &GuestSelection,
    progress: ReadProgress<'_>,
) -> Result<(ProxmoxReading, Scope), ReadingError> {
    let before = check_cluster(session, question, read_cluster(session).await)?;
    let list = read_list(session).await;
    // An incomplete row still belongs to a guest: it is in scope, and unknown.
    let listed = list.iter().flat_map(|list| list.rows.iter().map(|row| row.vmid).chain(list.unusable.keys().copied()));
    let scope = selection.resolve(listed);
    let is_list_empty = list.as_ref().is_ok_and(|list| list.rows.is_empty() && list.unusable.is_empty());
    let question = ObservationRequest { scope: &scope, ..question.clone() };
    let mut reading = finish_reading(session, &question, before, list, progress).await?;
    if is_list_empty && scope.ids().is_empty() && !selection.ranges().is_empty() {
        reading.add_note(ReadingNote::for_reading(UnknownReason::ListEmpty, LIST_EMPTY), question.token);
    }
    Ok((reading, scope))
}

/// Like [`take_reading`], with initial responses that were read a moment ago, so that nothing is read twice.
///
/// # Errors
/// As for [`take_reading`].
pub(super) async fn continue_reading<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    question: &ObservationRequest<'_>,
    begun_with: InitialAnswers,
) -> Result<ProxmoxReading, ReadingError> {
    let before = check_cluster(session, question, begun_with.cluster)?;
    finish_reading(session, question, before, begun_with.list, &|_, _| {}).await
}

/// The responses that an observation begins with.
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
    let needs = question.needs.for_listed(|| resources.rows.iter().map(|row| row.vmid).chain(resources.unusable.keys().copied()).collect());
    let question = &ObservationRequest { needs: &needs, ..question.clone() };
    let lists = {
        let unconfirmed_guests = guests_to_confirm(question, &before, &resources.rows);
        NodeLists::read(session, &unconfirmed_guests, before.local.as_ref()).await
    };
    let mut reading = ReadingBuilder::new(question, &before, resources, &lists);
    reading.read_tag_case(session).await;
    reading.read_details(session, progress).await;
    reading.read_extras(session).await;
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

/// Reads the state of the cluster.
pub(super) async fn read_cluster<E: ProxmoxTransport>(session: &ProxmoxSession<E>) -> Result<ClusterStatus, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::ClusterStatus)).await? {
        ProxmoxEvent::Cluster(cluster) => Ok(cluster),
        other => Err(other.unexpected_failure()),
    }
}

/// The cluster, if it could be read and is the expected one.
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
    ReadingError::OtherCluster {
        endpoint: session.endpoint_name().to_owned(),
        found: shorten(found).into(),
        wanted: shorten(wanted).into(),
    }
}

/// Reads the list of all guests.
pub(super) async fn read_list<E: ProxmoxTransport>(session: &ProxmoxSession<E>) -> Result<ResourceList, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::Resources)).await? {
        ProxmoxEvent::Resources(resources) => Ok(resources),
        other => Err(other.unexpected_failure()),
    }
}

/// The guests whose run-state is read from the lists of their nodes: those in scope on nodes that are online. If everything is needed, each
/// guest is read by itself instead.
fn guests_to_confirm<'r>(
    question: &ObservationRequest<'_>,
    cluster: &ClusterStatus,
    resources: &'r [GuestResource],
) -> Vec<&'r GuestResource> {
    let is_online = |resource: &GuestResource| cluster.nodes.get(&resource.node) == Some(&true);
    let is_asked = |resource: &&GuestResource| question.scope.contains(resource.vmid) && is_online(resource);
    match question.needs {
        ReadSet::Everything => Vec::new(),
        ReadSet::Lists | ReadSet::Declared(_) | ReadSet::DeclaredBirths(_) | ReadSet::Intent(_) => {
            resources.iter().filter(is_asked).collect()
        }
    }
}

/// An observation under construction.
struct ReadingBuilder<'q> {
    question: &'q ObservationRequest<'q>,
    quorate: bool,
    complete: bool,
    tag_case: Option<TagCase>,
    /// Guests in scope that the list lacks, each with the reason why it may exist nevertheless.
    unlisted: BTreeMap<Vmid, Option<UnknownReason>>,
    /// Sorted by name.
    nodes: Vec<ObservedNode>,
    /// The node of the endpoint.
    local: Option<NodeName>,
    /// The nodes that have responded so far.
    answering: BTreeSet<NodeName>,
    /// Failures instead of responses, by node and reason.
    unknown_causes: BTreeMap<(usize, UnknownReason), String>,
    /// Deviations from what is needed of a guest, resulting from the lists of the nodes.
    next_reads: BTreeMap<Vmid, NextRead>,
    /// Guests whose list rows are too incomplete to place them, each with the missing or invalid field.
    unusable: BTreeMap<Vmid, &'static str>,
    guests: Vec<ObservedGuest>,
    notes: Vec<ReadingNote>,
}

impl<'q> ReadingBuilder<'q> {
    fn new(question: &'q ObservationRequest<'q>, cluster: &ClusterStatus, list: ResourceList, lists: &NodeLists) -> Self {
        let ResourceList { rows: mut resources, unusable } = list;
        for resource in &mut resources {
            // A second row of the guest is unusable, so the first one may be out of date.
            resource.invalid_field = resource.invalid_field.or(unusable.get(&resource.vmid).copied());
        }
        let mut nodes: BTreeMap<NodeName, bool> = cluster.nodes.clone();
        for resource in &resources {
            // The config of a node that left the cluster may still exist; the node counts as offline.
            if !nodes.contains_key(&resource.node) {
                nodes.insert(resource.node.clone(), false);
            }
        }
        let nodes: Vec<ObservedNode> = nodes.into_iter().map(|(name, online)| ObservedNode::new(name, online)).collect();
        let mut notes = Vec::new();
        if resources.is_empty() && unusable.is_empty() && !question.scope.ids().is_empty() {
            notes.push(ReadingNote::for_reading(UnknownReason::ListEmpty, LIST_EMPTY));
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
            let (row, next) = rows::combine_rows(resource, own, index);
            if next != NextRead::AsNeeded {
                next_reads.insert(row.vmid, next);
            }
            guests.push(row);
        }
        let answering_nodes = cluster.local.iter().cloned().chain(lists.answering_nodes()).collect();
        let mut reading = Self {
            question,
            quorate: cluster.quorate,
            complete: true,
            tag_case: None,
            unlisted: BTreeMap::new(),
            nodes,
            local: cluster.local.clone(),
            answering: answering_nodes,
            unknown_causes: BTreeMap::new(),
            next_reads,
            unusable,
            guests,
            notes,
        };
        for (node, failure) in lists.failures() {
            if let Ok(index) = reading.nodes.binary_search_by(|own| own.name.cmp(node)) {
                reading.unknown_causes.entry((index, failure.reason)).or_insert_with(|| failure.text.clone());
            }
        }
        reading.mark_silent_nodes();
        reading
    }

    /// Reads the datacenter's rule for tags if it is needed. If that fails, the rule is unknown.
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
            let needs_hardware = self.question.needs.needs_hardware(row);
            self.notes.extend(hardware_note(row, &outcome).filter(|_| needs_hardware));
            match apply_detail(row, outcome, needs_hardware) {
                Some(note) if matches!(note.reason, UnknownReason::NodeSilent | UnknownReason::NoAnswer) => {
                    self.unknown_causes.entry((row.node, note.reason)).or_insert(note.text);
                }
                note => self.notes.extend(note),
            }
        }
        self.mark_silent_nodes();
    }

    /// A node that does not respond is not online, whatever the cluster reports.
    fn mark_silent_nodes(&mut self) {
        for (index, _) in self.unknown_causes.keys().filter(|(_, reason)| *reason == UnknownReason::NodeSilent) {
            if let Some(node) = self.nodes.get_mut(*index) {
                node.online = false;
            }
        }
    }

    /// What to read of a guest beyond the list, if it is in scope and its node is online.
    fn wanted_detail(&self, row: &ObservedGuest) -> Option<(GuestPath, ReadDetail)> {
        // The list row is invalid; nothing is built on it.
        if row.status == rows::unknown_status(UnknownReason::Malformed) {
            return None;
        }
        let node = self.nodes.get(row.node).filter(|node| node.online)?;
        let detail = match self.next_reads.get(&row.vmid) {
            // A guest that its node does not list stays unknown in an inventory.
            _ if *self.question.needs == ReadSet::Lists => ReadDetail::None,
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
        // In small groups: the session queues excess requests per node, and nothing waits for long.
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

    /// Guests with unusable list rows are neither read nor absent. Returns the others.
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

    /// Marks the observation as incomplete: none of the unlisted guests is proven absent.
    fn mark_incomplete(&mut self, reason: UnknownReason) {
        self.complete = false;
        for known in self.unlisted.values_mut() {
            known.get_or_insert(reason);
        }
    }

    /// A claim must hold both at the beginning and at the end.
    fn finish_with_cluster(&mut self, before: &ClusterStatus, after: &ClusterStatus) {
        self.quorate &= after.quorate;
        if before.local != after.local {
            // Two nodes may see two sides of a split. Each reported its quorum, but nobody knows whether both share one view.
            self.mark_incomplete(UnknownReason::ClusterUnread);
            self.notes.push(ReadingNote::for_reading(
                UnknownReason::ClusterUnread,
                "another node responded at the end than at the beginning, as behind a load balancer; configure a single node",
            ));
        }
        if !self.unlisted.is_empty() && !before.nodes.keys().eq(after.nodes.keys()) {
            self.mark_incomplete(UnknownReason::NotProven);
            self.notes.push(ReadingNote::for_reading(
                UnknownReason::NotProven,
                "the cluster listed other nodes at the end than at the beginning",
            ));
        }
        for node in &mut self.nodes {
            node.online &= after.nodes.get(&node.name) == Some(&true);
        }
        self.mark_silent_guests();
    }

    /// Keeps the quorum of the beginning. Whether it held until the end is unknown, so the observation is incomplete.
    fn finish_without_cluster(&mut self, unread: &ReadingError) {
        self.mark_incomplete(UnknownReason::ClusterUnread);
        self.notes.push(ReadingNote::for_reading(UnknownReason::ClusterUnread, unread.to_string()));
        self.mark_silent_guests();
    }

    /// Marks guests of nodes that are not online as unknown, unless a better reason is known already.
    fn mark_silent_guests(&mut self) {
        for row in &mut self.guests {
            let is_online = self.nodes.get(row.node).is_some_and(|node| node.online);
            if !is_online && matches!(row.status, ObservedStatus::Known(_)) {
                let reason = if self.unknown_causes.contains_key(&(row.node, UnknownReason::NodeSilent)) {
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
        self.notes.extend(notes::notes_of_rows(in_scope, &self.nodes, &self.unknown_causes));
        self.notes.sort();
        self.guests.sort_by_key(|row| row.vmid);
        // Without quorum, the list is what this side of a split knew last, so no unlisted guest is proven absent.
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

/// A note about a config that is understood, except for a disk or a CPU. The guest is known, but its hardware stays unread.
fn hardware_note(row: &ObservedGuest, outcome: &guest_details::DetailResult) -> Option<ReadingNote> {
    let config = &outcome.as_ref().ok()?.config;
    let key = config.hardware.as_ref().err().filter(|_| config.config.is_ok())?;
    let text = format!("guest {}: the value of `{}` is not understood, so its disks are not known", row.vmid, EscapedText(key));
    Some(ReadingNote::for_guest(row.vmid, UnknownReason::NotUnderstood, text))
}

/// Merges what was read of a guest into its row. Returns a note if something is wrong.
fn apply_detail(row: &mut ObservedGuest, outcome: guest_details::DetailResult, needs_hardware: bool) -> Option<ReadingNote> {
    let detailed = match outcome {
        Ok(detailed) => detailed,
        Err(note) => {
            row.status = rows::unknown_status(note.reason);
            return Some(note);
        }
    };
    let invalid_key = detailed.config.config.as_ref().err().cloned();
    let listed = row.name.clone();
    let status_name = detailed.status.as_ref().and_then(|node_status| node_status.status.name.clone());
    let reason = rows::complete_row(row, detailed, needs_hardware)?;
    let name = row.name.as_deref().unwrap_or_default();
    let text = match (reason, invalid_key) {
        (UnknownReason::NotUnderstood, Some(key)) => format!("guest {}: the value of `{}` is not understood", row.vmid, EscapedText(&key)),
        (UnknownReason::Malformed, _) => {
            format!("guest {}: its config came without a `digest`, which every release of Proxmox sends", row.vmid)
        }
        (UnknownReason::Replaced, _) => {
            format!("guest {}: its node reported one guest before its run-state and another one after it", row.vmid)
        }
        _ => match listed.filter(|listed| **listed != *name) {
            Some(listed) => format!("guest {}: its name is {listed:?} in the list and {name:?} on its node", row.vmid),
            None => {
                format!(
                    "guest {}: its name is {name:?} in its config and {:?} in its run-state",
                    row.vmid,
                    status_name.as_deref().unwrap_or_default()
                )
            }
        },
    };
    Some(ReadingNote::for_guest(row.vmid, reason, text))
}
