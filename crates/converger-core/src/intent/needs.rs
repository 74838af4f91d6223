//! What must be read to plan a request. Snapshots, storages, capacities and replication are read only for the actions that depend on them.

use std::collections::{BTreeMap, BTreeSet};

use super::{ActionRequest, CloneRequest, MigrationRequest, RequestedAction};
use crate::desired::{Desired, DesiredGuest, DesiredSetting};
use crate::guest::{NodeName, RunState, SnapshotName};
use crate::normalize::Field;
use crate::observe::{BirthNeed, BirthNeeds, CapacityOf, ExtraReads, GuestNeed, IntentNeeds, NodeReads, ReadSet};

pub(super) fn read_set(request: &ActionRequest) -> ReadSet {
    let action = request.action();
    let state = match action {
        RequestedAction::Start => Some(RunState::Running),
        RequestedAction::Shutdown { .. } | RequestedAction::Stop => Some(RunState::Stopped),
        _ => None,
    };
    let tags = match action {
        RequestedAction::ConfigSet(settings) => writes_tags(settings),
        RequestedAction::Clone(clone) => writes_tags(&clone.provisioning.fields),
        _ => false,
    };
    // The birth marks are in the config: a request is bound to the guest that it was planned on.
    let need = GuestNeed { kind: request.target().kind, state, config: true, tags, extras: extra_reads(action) };
    let mut guests = BTreeMap::from([(request.target().vmid, need)]);
    // The new guest exists if an earlier run of this request was cut off.
    if let RequestedAction::Clone(clone) = action {
        let extras = ExtraReads { disks: true, own_node_storages: true, ..ExtraReads::default() };
        guests.insert(clone.vmid, GuestNeed { kind: request.target().kind, state: None, config: true, tags: false, extras });
    }
    ReadSet::Intent(IntentNeeds { guests, nodes: node_reads(action) })
}

/// What planning towards a desired state needs. Templates are read only for guests that have to be made.
pub(super) fn declared_read_set(desired: &Desired) -> ReadSet {
    let read_set = ReadSet::for_desired(desired);
    let births: Vec<BirthNeed> = desired.guests().iter().filter_map(birth_need).collect();
    let ReadSet::Declared(mut declared) = read_set else { return read_set };
    if births.is_empty() {
        return ReadSet::Declared(declared);
    }
    // A guest whose making was cut off may have a disk that is still to grow. Its birth marks show that it is the guest that was made.
    for guest in desired.guests().iter().filter(|guest| guest.from.is_some()) {
        let grows = guest.from.as_ref().is_some_and(|from| from.disk_size.is_some());
        if let Some(need) = declared.get_mut(&guest.vmid) {
            need.config = true;
            need.extras.disks = grows;
        }
    }
    ReadSet::DeclaredBirths(BirthNeeds { declared, births })
}

fn birth_need(guest: &DesiredGuest) -> Option<BirthNeed> {
    let (origin, clone) = (guest.from.as_deref()?, guest.clone_request()?);
    let tags = writes_tags(&clone.provisioning.fields);
    let action = RequestedAction::Clone(Box::new(clone));
    let need = GuestNeed { kind: guest.kind, state: None, config: true, tags, extras: extra_reads(&action) };
    Some(BirthNeed { vmid: guest.vmid, template: origin.template, need, nodes: node_reads(&action) })
}

fn writes_tags(settings: &[DesiredSetting]) -> bool {
    settings.iter().any(|setting| setting.field == Field::Tags)
}

fn extra_reads(action: &RequestedAction) -> ExtraReads {
    let snapshots =
        |name: Option<&SnapshotName>| ExtraReads { snapshots: true, disks: true, running_cpu_of: name.cloned(), ..ExtraReads::default() };
    match action {
        RequestedAction::SnapshotCreate { .. } | RequestedAction::SnapshotDelete { .. } => snapshots(None),
        RequestedAction::SnapshotRollback { name } => snapshots(Some(name)),
        RequestedAction::DiskGrow { .. } => ExtraReads { disks: true, own_node_storages: true, ..ExtraReads::default() },
        // Only a guest that is started needs memory.
        RequestedAction::Clone(clone) => {
            let own_node_capacity = clone.start && clone.node.is_none();
            ExtraReads { disks: true, own_node_storages: true, own_node_capacity, ..ExtraReads::default() }
        }
        RequestedAction::Migrate(_) => ExtraReads { disks: true, replication: true, own_node_storages: true, ..ExtraReads::default() },
        RequestedAction::Start
        | RequestedAction::Shutdown { .. }
        | RequestedAction::Stop
        | RequestedAction::Reboot { .. }
        | RequestedAction::ConfigSet(_) => ExtraReads::default(),
    }
}

fn node_reads(action: &RequestedAction) -> NodeReads {
    let one = |node: &NodeName| BTreeSet::from([node.clone()]);
    match action {
        RequestedAction::Migrate(MigrationRequest { node, .. }) => {
            NodeReads { capacity: CapacityOf::Nodes(one(node)), storages: one(node) }
        }
        RequestedAction::Clone(clone) => match &**clone {
            CloneRequest { node: Some(node), start, .. } => {
                let capacity = if *start { one(node) } else { BTreeSet::new() };
                NodeReads { capacity: CapacityOf::Nodes(capacity), storages: one(node) }
            }
            CloneRequest { node: None, .. } => NodeReads::default(),
        },
        // Nobody records on which CPU the memory of a snapshot was saved.
        RequestedAction::SnapshotRollback { .. } => NodeReads { capacity: CapacityOf::AllNodes, ..NodeReads::default() },
        _ => NodeReads::default(),
    }
}
