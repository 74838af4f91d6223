//! Converts a guest to core types: from the cluster's list alone, or with details read guest by guest.
//!
//! The run-state in the list is cached; lock, tags and node come from the config. Whatever was not read stays unread.

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

/// A run-state reported by the guest's own node.
#[derive(Debug)]
pub(super) struct NodeStatus {
    pub(super) status: GuestStatus,
    /// Whether it belongs to the guest whose config was read.
    pub(super) is_of_same_guest: bool,
}

/// A guest as the list shows it. `node` is the index of its node.
pub(super) fn row_from_list(resource: GuestResource, node: usize, is_online: bool) -> ObservedGuest {
    let status = match ObservedStatus::from_word(&resource.status) {
        _ if !is_online => unknown_status(UnknownReason::NodeOffline),
        _ if resource.invalid_field.is_some() => unknown_status(UnknownReason::Malformed),
        // pvestatd always reports a name along with a run-state, so a row without a name is not reported.
        ObservedStatus::Known(_) if is_unreported(&resource) => unknown_status(UnknownReason::NotReported),
        status => status,
    };
    // Nothing is claimed about a guest in an unknown state, although its config may be known.
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
        extras: None,
    }
}

/// What to read next of a guest, given the list of its own node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextRead {
    /// Whatever is needed of the guest.
    AsNeeded,
    /// The guest itself, because the list of its node lacks it.
    Itself,
    /// Nothing; the guest stays unknown.
    Nothing,
}

/// Combines a guest's rows in the cluster's list and in the list of its own node. The second one takes precedence; only high availability
/// and pauses are taken from the first one.
pub(super) fn combine_rows(resource: GuestResource, own: OwnRow<'_>, node: usize) -> (ObservedGuest, NextRead) {
    let is_malformed = resource.invalid_field.is_some();
    match own {
        OwnRow::NotAsked => (row_from_list(resource, node, true), NextRead::AsNeeded),
        OwnRow::Present(own) if own.invalid_field.is_none() && !is_malformed => (from_own_node(resource, own, node), NextRead::AsNeeded),
        OwnRow::Absent if !is_malformed => (unconfirmed_row(resource, node, UnknownReason::Moved), NextRead::Itself),
        OwnRow::Unreadable(failure) => (unconfirmed_row(resource, node, failure.reason), NextRead::Nothing),
        OwnRow::ListShort => (unconfirmed_row(resource, node, UnknownReason::ListShrunken), NextRead::Nothing),
        OwnRow::Present(_) | OwnRow::Absent => (unconfirmed_row(resource, node, UnknownReason::Malformed), NextRead::Nothing),
    }
}

/// A guest that only the cluster's list shows. That list may be five minutes old, so its state, lock, tags, template and HA state are
/// dropped.
fn unconfirmed_row(resource: GuestResource, node: usize, reason: UnknownReason) -> ObservedGuest {
    let mut row = row_from_list(resource, node, true);
    mark_unknown(&mut row, reason);
    row.run_state = None;
    row
}

/// If the lists contradict each other, the node's list is right, because the node inspected the process on request.
fn from_own_node(resource: GuestResource, own: &NodeGuest, node: usize) -> ObservedGuest {
    let detailed_status = is_finer(&resource, own).then(|| resource.status.clone());
    let run_state = detailed_status.unwrap_or_else(|| own.word());
    let ha = Reading::Read(resource.ha_state.clone().map(|state| HaState { state: Some(state) }));
    let mut row = row_from_list(resource, node, true);
    row.status = ObservedStatus::from_word(&run_state);
    row.run_state = Some(run_state);
    row.name.clone_from(&own.name);
    (row.cpus, row.maxmem) = (own.cpus, own.maxmem);
    row.source = Some("node-list".into());
    // Nothing is claimed about a guest in an unknown state, although its config may be known.
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

/// Whether the cluster's list has a more specific state of a running process, such as `paused`. The node's list has one only if it was read
/// in full.
fn is_finer(resource: &GuestResource, own: &NodeGuest) -> bool {
    let is_plain = matches!(&*resource.status, "running" | "stopped" | "unknown");
    own.qmp_status.is_none() && &*own.status == "running" && !is_plain && !is_unreported(resource)
}

/// A note about a guest with an invalid list row.
pub(super) fn invalid_row_note(resource: &GuestResource, own: OwnRow<'_>) -> Option<ReadingNote> {
    let of_list = |list: &str, key| {
        let text = format!("guest {}: {list} has an invalid `{key}`", resource.vmid);
        ReadingNote::for_guest(resource.vmid, UnknownReason::Malformed, text)
    };
    match own {
        _ if resource.invalid_field.is_some() => resource.invalid_field.map(|key| of_list("the list", key)),
        OwnRow::Present(own) => own.invalid_field.map(|key| of_list("the list of its node", key)),
        _ => None,
    }
}

/// The unknown status with this reason.
pub(super) fn unknown_status(reason: UnknownReason) -> ObservedStatus {
    ObservedStatus::Unknown(Some(reason.word().into()))
}

/// Replaces the values of the list with the details. Returns the reason if the guest is unknown now.
pub(super) fn complete_row(row: &mut ObservedGuest, detailed: GuestDetails, needs_hardware: bool) -> Option<UnknownReason> {
    let GuestDetails { config, status } = detailed;
    let config = *config;
    let name = config.name.clone().unwrap_or_else(|| fallback_name(row.kind, row.vmid));
    let names = [row.name.as_deref(), status.as_ref().and_then(|node_status| node_status.status.name.as_deref())];
    let is_renamed = names.into_iter().flatten().any(|other| other != &*name);
    row.name = Some(name);
    let is_another = status.as_ref().is_some_and(|node_status| !node_status.is_of_same_guest);
    if let Some(node_status) = status {
        apply_status(row, node_status.status);
    }
    let values = match config.config {
        _ if is_renamed => return Some(mark_unknown(row, UnknownReason::Renamed)),
        _ if is_another => return Some(mark_unknown(row, UnknownReason::Replaced)),
        // A config without a digest is truncated or not a config, and no write could be bound to it.
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
    if let Some(hardware) = config.hardware.ok().filter(|_| needs_hardware) {
        row.change_extras(|extras| extras.hardware = Reading::Read(hardware));
    }
    None
}

/// Marks a guest unknown and drops the guards taken from the list.
fn mark_unknown(row: &mut ObservedGuest, reason: UnknownReason) -> UnknownReason {
    row.status = unknown_status(reason);
    (row.lock, row.ha, row.template, row.tags) = (Reading::Unread, Reading::Unread, Reading::Unread, Reading::Unread);
    reason
}

/// The run-state from the guest's own node takes precedence over the list.
fn apply_status(row: &mut ObservedGuest, status: GuestStatus) {
    let raw = status.word();
    row.status = ObservedStatus::from_word(&raw);
    row.run_state = Some(raw);
    // The values of the list are outdated; mixing them in would make the observation depend on when the list is refreshed.
    (row.cpus, row.maxmem) = (status.cpus, status.maxmem);
    // The list shows an outdated state of the high-availability manager. If the node reports none, the guest is not managed by it.
    row.ha = Reading::Read(status.ha.map(|state| HaState { state }));
    row.source = Some("live".into());
}

/// The name that Proxmox shows for a guest without a name.
pub(in crate::proxmox) fn fallback_name(kind: GuestKind, vmid: Vmid) -> Box<str> {
    match kind {
        GuestKind::Qemu => format!("VM {vmid}").into(),
        GuestKind::Lxc => format!("CT{vmid}").into(),
    }
}
