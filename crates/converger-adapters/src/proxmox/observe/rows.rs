//! One guest in the words of the core: from the cluster's list alone, and with what was read of it one by one.
//!
//! What the list says of a run-state is a cache; lock, tags and place in it come from the config. What was not read stays unread.

use converger_core::guest::{GuestKind, Vmid};
use converger_core::normalize::WordSet;
use converger_core::observe::{HaState, ObservedGuest, ObservedStatus, Reading};

use super::node_lists::{OwnRow, is_unreported};
use super::unknown_reason::{ReadingNote, UnknownReason};
use crate::proxmox::codec::{GuestConfig, GuestResource, GuestStatus, NodeGuest};

/// What was read of a guest beyond the list.
#[derive(Debug)]
pub(super) struct GuestDetails {
    pub(super) config: Box<GuestConfig>,
    pub(super) status: Option<NodeStatus>,
}

/// A run-state as a guest's own node told it.
#[derive(Debug)]
pub(super) struct NodeStatus {
    pub(super) status: GuestStatus,
    /// Whether it is that of the guest whose config was read.
    pub(super) is_of_same_guest: bool,
}

/// A guest as the list shows it. `node` is the index of its node, which answers or does not.
pub(super) fn row_from_list(resource: GuestResource, node: usize, is_online: bool) -> ObservedGuest {
    let status = match ObservedStatus::from_word(&resource.status) {
        _ if !is_online => unknown_status(UnknownReason::NodeOffline),
        _ if resource.invalid_field.is_some() => unknown_status(UnknownReason::Malformed),
        // A run-state without a name is none that pvestatd reported.
        ObservedStatus::Known(_) if is_unreported(&resource) => unknown_status(UnknownReason::NotReported),
        status => status,
    };
    // Of a guest that is not known nothing is claimed, though its config may be.
    let is_known = matches!(status, ObservedStatus::Known(_));
    let tags = if is_known { Reading::Read(resource.tags) } else { Reading::Unread };
    ObservedGuest {
        vmid: resource.vmid,
        kind: resource.kind,
        node,
        status,
        name: resource.name,
        run_state: Some(resource.status),
        cpus: resource.cpus,
        maxmem: resource.maxmem,
        source: Some("cache".into()),
        lock: if is_known { Reading::Read(resource.lock) } else { Reading::Unread },
        ha: if is_known { Reading::Read(resource.ha_state.map(|state| HaState { state: Some(state) })) } else { Reading::Unread },
        template: resource.template.filter(|_| is_known).map_or(Reading::Unread, Reading::Read),
        protection: Reading::Unread,
        tags,
        identity: Reading::Unread,
        macs: WordSet::default(),
        config: Reading::Unread,
        pending: Reading::Unread,
        digest: None,
    }
}

/// What follows from the list of its own node for the reading of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextRead {
    /// Whatever is needed of the guest.
    AsNeeded,
    /// The guest itself: the list of its node lacks it.
    Itself,
    /// Nothing: the guest stays unknown.
    Nothing,
}

/// A guest by the cluster's list and by the list of its own node, of which the second one counts. Only that the high-availability manager has
/// the guest, and that it is paused, is taken from the first one.
pub(super) fn confirmed(resource: GuestResource, own: OwnRow<'_>, node: usize) -> (ObservedGuest, NextRead) {
    let is_malformed = resource.invalid_field.is_some();
    match own {
        OwnRow::NotAsked => (row_from_list(resource, node, true), NextRead::AsNeeded),
        OwnRow::Present(own) if own.strange.is_none() && !is_malformed => (from_own_node(resource, own, node), NextRead::AsNeeded),
        OwnRow::Absent if !is_malformed => (unconfirmed(resource, node, UnknownReason::Moved), NextRead::Itself),
        OwnRow::Unreadable(failure) => (unconfirmed(resource, node, failure.reason), NextRead::Nothing),
        OwnRow::ListShort => (unconfirmed(resource, node, UnknownReason::ListShrunken), NextRead::Nothing),
        OwnRow::Present(_) | OwnRow::Absent => (unconfirmed(resource, node, UnknownReason::Malformed), NextRead::Nothing),
    }
}

/// A guest of which only the cluster's list tells, which may be five minutes old: nothing that it says of the guest is taken over.
fn unconfirmed(resource: GuestResource, node: usize, reason: UnknownReason) -> ObservedGuest {
    let mut row = row_from_list(resource, node, true);
    mark_unknown(&mut row, reason);
    row.run_state = None;
    row
}

/// Where the lists contradict each other, the one of the node is right: it looked at the process when it was asked.
fn from_own_node(resource: GuestResource, own: &NodeGuest, node: usize) -> ObservedGuest {
    let finer = is_finer(&resource, own).then(|| resource.status.clone());
    let word = finer.unwrap_or_else(|| own.word());
    let ha = Reading::Read(resource.ha_state.clone().map(|state| HaState { state: Some(state) }));
    let mut row = row_from_list(resource, node, true);
    row.status = ObservedStatus::from_word(&word);
    row.run_state = Some(word);
    row.name.clone_from(&own.name);
    (row.cpus, row.maxmem) = (own.cpus, own.maxmem);
    row.source = Some("node-list".into());
    // Of a guest that is not known nothing is claimed, though its config may be.
    if matches!(row.status, ObservedStatus::Known(_)) {
        row.ha = ha;
        row.lock = Reading::Read(own.lock.clone());
        row.template = Reading::Read(own.template);
        row.tags = Reading::Read(own.tags.clone());
    } else {
        (row.lock, row.ha, row.template, row.tags) = (Reading::Unread, Reading::Unread, Reading::Unread, Reading::Unread);
    }
    row
}

/// Whether the cluster's list tells more of a process that is there, such as `paused`. The list of the node does where it was asked for in full.
fn is_finer(resource: &GuestResource, own: &NodeGuest) -> bool {
    let is_plain = matches!(&*resource.status, "running" | "stopped" | "unknown");
    own.qmp_status.is_none() && &*own.status == "running" && !is_plain && !is_unreported(resource)
}

/// What is to be said about a guest whose row in a list makes no sense.
pub(super) fn invalid_row_note(resource: &GuestResource, own: OwnRow<'_>) -> Option<ReadingNote> {
    let of_list = |list: &str, key| {
        let text = format!("guest {}: {list} has a value of `{key}` that is none", resource.vmid);
        ReadingNote::for_guest(resource.vmid, UnknownReason::Malformed, text)
    };
    match own {
        _ if resource.invalid_field.is_some() => resource.invalid_field.map(|key| of_list("the list", key)),
        OwnRow::Present(own) => own.strange.map(|key| of_list("the list of its node", key)),
        _ => None,
    }
}

/// The guest cannot be said to run or to be stopped, for this reason.
pub(super) fn unknown_status(reason: UnknownReason) -> ObservedStatus {
    ObservedStatus::Unknown(Some(reason.word().into()))
}

/// Puts what was read one by one in the place of what the list said. The reason why the guest is unknown, if it now is.
pub(super) fn complete_row(row: &mut ObservedGuest, detailed: GuestDetails) -> Option<UnknownReason> {
    let GuestDetails { config, status } = detailed;
    let config = *config;
    let name = config.name.clone().unwrap_or_else(|| fallback_name(row.kind, row.vmid));
    let names = [row.name.as_deref(), status.as_ref().and_then(|told| told.status.name.as_deref())];
    let is_renamed = names.into_iter().flatten().any(|other| other != &*name);
    row.name = Some(name);
    let is_another = status.as_ref().is_some_and(|told| !told.is_of_same_guest);
    if let Some(told) = status {
        apply_status(row, told.status);
    }
    let values = match config.config {
        _ if is_renamed => return Some(mark_unknown(row, UnknownReason::Renamed)),
        _ if is_another => return Some(mark_unknown(row, UnknownReason::Replaced)),
        // What has none is cut off, or is no config; and no write could be bound to it.
        _ if config.digest.is_none() => return Some(mark_unknown(row, UnknownReason::Malformed)),
        Ok(values) => values,
        Err(_) => return Some(mark_unknown(row, UnknownReason::NotUnderstood)),
    };
    row.lock = Reading::Read(config.lock);
    row.template = Reading::Read(config.template);
    row.protection = Reading::Read(config.protection);
    row.tags = Reading::Read(config.tags);
    row.identity = Reading::Read(Box::new(config.identity));
    row.macs = config.macs;
    row.pending = Reading::Read(config.pending);
    row.digest = config.digest.map(|digest| digest.as_str().into());
    row.config = Reading::Read(values);
    None
}

/// Of a guest that is not known nothing is claimed, not even what the list said of it.
fn mark_unknown(row: &mut ObservedGuest, reason: UnknownReason) -> UnknownReason {
    row.status = unknown_status(reason);
    (row.lock, row.ha, row.template, row.tags) = (Reading::Unread, Reading::Unread, Reading::Unread, Reading::Unread);
    reason
}

/// What the guest's own node says of its run-state counts more than the list.
fn apply_status(row: &mut ObservedGuest, status: GuestStatus) {
    let raw = status.word();
    row.status = ObservedStatus::from_word(&raw);
    row.run_state = Some(raw);
    // By the list they are those of a while ago, and what was read would be another one once the list comes after.
    (row.cpus, row.maxmem) = (status.cpus, status.maxmem);
    // The guest's own node knows best: the list tells what the manager was at a while ago. Where the node does not say, nothing is known.
    row.ha = Reading::Read(status.ha.map(|state| HaState { state }));
    row.source = Some("live".into());
}

/// What Proxmox shows for a guest without a name.
pub(in crate::proxmox) fn fallback_name(kind: GuestKind, vmid: Vmid) -> Box<str> {
    match kind {
        GuestKind::Qemu => format!("VM {vmid}").into(),
        GuestKind::Lxc => format!("CT{vmid}").into(),
    }
}
