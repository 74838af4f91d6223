//! What requests did to the world by its end, whatever anybody was told: no change took effect more often than it was requested, and
//! nothing but the requested objects came into being, grew or disappeared.

use std::collections::BTreeSet;

use converger_lab::{GuestVerb, World};

use super::super::faults::FaultKind;
use super::super::requests::{LAST_SNAPSHOT, NEW_ID, OLD_SNAPSHOT, WantedRequest};
use super::super::setup::{SimulationSetup, TOKEN};
use super::Oracle;

const GIB: u64 = 1 << 30;
/// The size of every disk in the beginning, the requested one, and the one that another person grows a disk to.
const FIRST_BYTES: u64 = 8 * GIB;
const REQUESTED_BYTES: u64 = 10 * GIB;
const FOREIGN_BYTES: u64 = 12 * GIB;

/// The verb of a call of ours.
fn verb_of(call: GuestVerb) -> Option<&'static str> {
    Some(match call {
        GuestVerb::Start => "start",
        GuestVerb::Stop => "stop",
        GuestVerb::Shutdown => "shutdown",
        GuestVerb::Reboot => "reboot",
        GuestVerb::Clone => "clone",
        GuestVerb::Snapshot => "snapshot",
        GuestVerb::DeleteSnapshot => "delsnapshot",
        GuestVerb::Rollback => "rollback",
        GuestVerb::Resize => "resize",
        GuestVerb::Migrate => "migrate",
        _ => return None,
    })
}

impl Oracle {
    /// Checks the world at the end of a schedule.
    pub(crate) fn check_effects(&mut self, world: &World, setup: &SimulationSetup, struck: &BTreeSet<FaultKind>) {
        if setup.requests.is_empty() {
            return;
        }
        self.check_executions(world);
        self.check_new_guests(world, setup);
        self.check_disk_sizes(world, setup, struck);
        self.check_lost_snapshots(world, setup, struck);
    }

    /// G13: no call took effect more often than it was sent, and no request more than once.
    fn check_executions(&mut self, world: &World) {
        for (call, vmid, count) in world.all_executions() {
            let Some(verb) = verb_of(call) else { continue };
            let is_power = matches!(verb, "start" | "stop" | "shutdown" | "reboot");
            // Other users start and stop guests too, and so do high availability and the node itself after a reboot.
            let has_others = world.tasks_for_guest(vmid).any(|(upid, _)| !upid.contains(TOKEN));
            let is_cause = |own: &str| own == verb || (matches!(verb, "start" | "shutdown") && matches!(own, "reboot" | "migrate"));
            let of_guest = self.cases.values().filter(|case| case.sending_vmid() == vmid && is_cause(&case.sent_verb));
            let sent: u64 = of_guest.map(|case| u64::from(case.sends)).sum();
            let steps = self.requests.values().flat_map(WantedRequest::steps);
            let requested = steps.filter(|step| step.vmid == vmid && step.verb == verb).count() as u64;
            let is_once = is_power && has_others || count <= if is_power { sent } else { sent.min(requested) };
            self.require(is_once, "G13", || format!("{verb} of {vmid} took effect {count} times; {sent} sent, {requested} requested"));
        }
    }

    /// S22: the only guest that can come into being has the requested id.
    fn check_new_guests(&mut self, world: &World, setup: &SimulationSetup) {
        let known = setup.guest_ids();
        let unknown = world.guest_truths().find(|truth| !known.contains(&truth.vmid)).map(|truth| truth.vmid);
        self.require(unknown.is_none(), "S22", || format!("{unknown:?} exists, and nobody has requested it"));
        let was_requested = self.requests.values().any(|request| request.verb == "clone");
        let is_made = world.executions(GuestVerb::Create, NEW_ID) > 0;
        self.require(was_requested || !is_made, "S22", || format!("{NEW_ID} was made, and nobody has requested it"));
    }

    /// No disk is larger than requested.
    fn check_disk_sizes(&mut self, world: &World, setup: &SimulationSetup, struck: &BTreeSet<FaultKind>) {
        for vmid in setup.guest_ids() {
            let is_requested = self.requests.values().any(|request| request.vmid == vmid && request.verb == "resize");
            // A clone has the sizes of its source.
            let largest = match (struck.contains(&FaultKind::DiskGrown), is_requested || vmid == NEW_ID) {
                (true, _) => FOREIGN_BYTES,
                (false, true) => REQUESTED_BYTES,
                (false, false) => FIRST_BYTES,
            };
            let found = world.disk_truths(vmid).find(|disk| disk.config_bytes.max(disk.volume_bytes.unwrap_or(0)) > largest);
            self.require(found.is_none(), "S1", || format!("a disk of {vmid} is larger than anybody asked for: {found:?}"));
        }
    }

    /// S22: no snapshot disappears but the one whose deletion was requested, and those that another person deletes.
    fn check_lost_snapshots(&mut self, world: &World, setup: &SimulationSetup, struck: &BTreeSet<FaultKind>) {
        let is_replaced = [FaultKind::Recycled, FaultKind::Reborn, FaultKind::GuestDeleted, FaultKind::IdReused];
        let by_others = [FaultKind::SnapshotDeleted, FaultKind::SnapshotRetaken].iter().any(|kind| struck.contains(kind));
        if is_replaced.iter().any(|kind| struck.contains(kind)) {
            return;
        }
        for guest in setup.spec.guests.iter().filter(|guest| !guest.taken.is_empty()) {
            let is_requested = self
                .requests
                .values()
                .any(|request| request.vmid == guest.vmid && request.object == Some(OLD_SNAPSHOT) && request.verb == "delsnapshot");
            for name in [OLD_SNAPSHOT, LAST_SNAPSHOT] {
                let is_allowed = name == OLD_SNAPSHOT && (is_requested || by_others);
                let is_there = world.snapshot_truths(guest.vmid).any(|own| own.name == name);
                self.require(is_there || is_allowed, "S22", || format!("the snapshot `{name}` of {} is gone", guest.vmid));
            }
        }
    }
}
