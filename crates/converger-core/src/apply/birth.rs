//! Which guests this program made as clones, according to its journal, and with which birth marks.
//!
//! The marks are recorded with the outcome of a clone, right after it was verified. Later steps of the same request rely on them.
//!
//! Must not read the journal itself.

use super::history::OperationHistory;
use super::operation::{Operation, OperationSource};
use super::outcome::{Evidence, Fact, Outcome, Resolution};
use crate::action::Change;
use crate::guest::{GuestIdentity, GuestKind, Vmid};
use crate::policy::Birth;

/// The names of the facts that hold birth marks, by kind of guest.
const QEMU_MARKS: [&str; 2] = ["ctime", "uuid"];
const LXC_MARKS: [&str; 2] = ["mac", "rootfs"];

/// Adds birth marks to the facts about a new guest.
pub(super) fn with_marks(evidence: Evidence, identity: &GuestIdentity) -> Evidence {
    match identity {
        GuestIdentity::Qemu { uuid, ctime } => {
            let [ctime_key, uuid_key] = QEMU_MARKS;
            let evidence = ctime.iter().fold(evidence, |evidence, ctime| evidence.with(ctime_key, *ctime));
            uuid.iter().fold(evidence, |evidence, uuid| evidence.with(uuid_key, &**uuid))
        }
        GuestIdentity::Lxc { rootfs, mac } => {
            let [mac_key, rootfs_key] = LXC_MARKS;
            let evidence = mac.iter().fold(evidence, |evidence, mac| evidence.with(mac_key, &**mac));
            rootfs.iter().fold(evidence, |evidence, rootfs| evidence.with(rootfs_key, &**rootfs))
        }
    }
}

/// The birth marks of the guest that an operation made, if it made one and recorded any mark of it.
#[must_use]
pub fn birth_marks_of(operation: &Operation, outcome: &Outcome) -> Option<GuestIdentity> {
    let (Change::Clone(_), Outcome::Done(findings)) = (&operation.step.change, outcome) else { return None };
    let text = |key: &str| match findings.observed.get(key) {
        Some(Fact::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let identity = match operation.guest.kind {
        GuestKind::Qemu => {
            let [ctime_key, uuid_key] = QEMU_MARKS;
            let ctime = match findings.observed.get(ctime_key) {
                Some(Fact::Number(ctime)) => Some(*ctime),
                _ => None,
            };
            GuestIdentity::Qemu { uuid: text(uuid_key), ctime }
        }
        GuestKind::Lxc => {
            let [mac_key, rootfs_key] = LXC_MARKS;
            GuestIdentity::Lxc { rootfs: text(rootfs_key), mac: text(mac_key) }
        }
    };
    identity.marks().iter().any(|(_, mark)| mark.is_some()).then_some(identity)
}

/// The guests that this program made, given the histories of some guests, newest first. Only the last clone to an id counts.
#[must_use]
pub fn births(newest_first: &[OperationHistory]) -> Vec<Birth> {
    let mut births: Vec<Birth> = Vec::new();
    for history in newest_first {
        let vmid = history.operation.guest.vmid;
        if births.iter().any(|birth| birth.vmid == vmid) {
            continue;
        }
        births.extend(birth_of(history, newest_first));
    }
    births
}

fn birth_of(history: &OperationHistory, all: &[OperationHistory]) -> Option<Birth> {
    let operation = &history.operation;
    let (Change::Clone(clone), OperationSource::OneShot { request, .. }) = (&operation.step.change, &operation.source) else {
        return None;
    };
    let (outcome, _) = history.ended.as_ref()?;
    let identity = birth_marks_of(operation, outcome)?;
    let vmid = operation.guest.vmid;
    let provisioned = !clone.provisions || all.iter().any(|other| is_provisioning_of(other, vmid, &identity));
    Some(Birth { identity, provisioned, request: *request, vmid })
}

/// Whether an operation wrote the first configuration of this guest, as verified or as resolved by a person.
fn is_provisioning_of(history: &OperationHistory, vmid: Vmid, identity: &GuestIdentity) -> bool {
    let target = &history.operation.guest;
    let is_done = matches!(&history.ended, Some((Outcome::Done(_), _)))
        || history.resolved.as_ref().is_some_and(|resolved| resolved.resolution == Resolution::Done);
    let is_of_guest = target.vmid == vmid && target.identity.as_ref() == Some(identity);
    is_done && is_of_guest && matches!(history.operation.step.change, Change::Provision(_))
}
