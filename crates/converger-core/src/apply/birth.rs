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
    let Change::Clone(clone) = &operation.step.change else { return None };
    let request = match &operation.source {
        OperationSource::OneShot { request, .. } => Some(*request),
        OperationSource::Convergent => None,
    };
    let (outcome, _) = history.ended.as_ref()?;
    let vmid = operation.guest.vmid;
    let Some(identity) = birth_marks_of(operation, outcome) else {
        // A person who found the guest took over from there: it is not made again, and nothing is left to do.
        return is_resolved_as_done(history).then_some(Birth {
            grown: true,
            identity: None,
            provisioned: true,
            request,
            started: true,
            vmid,
        });
    };
    let has_done = |is_meant: fn(&Change) -> bool| all.iter().any(|other| is_done_to(other, vmid, &identity, is_meant));
    let provisioned = !clone.provisions || has_done(|change| matches!(change, Change::Provision(_)));
    let grown = !clone.grows || has_done(|change| matches!(change, Change::DiskGrow(_)));
    let started = has_done(|change| matches!(change, Change::Start));
    Some(Birth { grown, identity: Some(identity), provisioned, request, started, vmid })
}

/// Whether an operation made such a change to this guest, as verified or as resolved by a person.
fn is_done_to(history: &OperationHistory, vmid: Vmid, identity: &GuestIdentity, is_meant: fn(&Change) -> bool) -> bool {
    let target = &history.operation.guest;
    let is_done = matches!(&history.ended, Some((Outcome::Done(_), _))) || is_resolved_as_done(history);
    let is_of_guest = target.vmid == vmid && target.identity.as_ref() == Some(identity);
    is_done && is_of_guest && is_meant(&history.operation.step.change)
}

fn is_resolved_as_done(history: &OperationHistory) -> bool {
    history.resolved.as_ref().is_some_and(|resolved| resolved.resolution == Resolution::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::{Findings, IdempotencyKey, OperationId, OperationTarget, ReleaseCondition, ResolutionRecord, RunId};
    use crate::failure::FailureCode;
    use crate::guest::EnvironmentName;
    use crate::plan::Verdict;
    use crate::testing::RequestWorld;

    const PARAMETERS: [(&str, &str); 4] = [("newid", "120"), ("name", "web-7"), ("bridge", "vmbr1"), ("start", "true")];

    fn marks(ctime: u64) -> GuestIdentity {
        GuestIdentity::Qemu { uuid: Some("0b0c".into()), ctime: Some(ctime) }
    }

    /// The steps of a clone request as histories with only their intents; the later ones have these birth marks.
    fn histories(identity: &GuestIdentity) -> Vec<OperationHistory> {
        let plan = RequestWorld::default().plan_action("vm.clone", GuestKind::Qemu, 900, &PARAMETERS);
        let request = plan.intent().digest().expect("a digest");
        let guest = plan.desired().guests().first().expect("the new guest");
        let Some(Verdict::Steps(steps)) = plan.verdicts().first() else { panic!("steps") };
        let history = |(position, step): (usize, &crate::plan::Step)| {
            let mut target = OperationTarget::from_plan(&plan, guest).expect("a target");
            target.identity = (position > 0).then(|| identity.clone());
            let id = OperationId::new(&format!("run-1-{position}")).expect("an id");
            let source = OperationSource::OneShot { key: IdempotencyKey::new("key-1").expect("a key"), request };
            let (run, environment) = (RunId::new("run-1").expect("an id"), EnvironmentName::new("lab").expect("a name"));
            let position = u32::try_from(position).expect("few");
            let operation = Operation::new(id, run, environment, target, step.clone(), position, request, source);
            OperationHistory::from_intent(Box::new(operation), 10)
        };
        steps.iter().enumerate().map(history).collect()
    }

    fn done_outcome(observed: Evidence) -> Option<(Outcome, u64)> {
        Some((Outcome::Done(Findings { observed, ..Findings::default() }), 20))
    }

    fn find_births(histories: &[OperationHistory]) -> Vec<(Option<GuestIdentity>, bool)> {
        let newest_first: Vec<OperationHistory> = histories.iter().rev().cloned().collect();
        births(&newest_first).into_iter().map(|birth| (birth.identity, birth.provisioned)).collect()
    }

    /// Cut off between each pair of steps: no birth before the clone is verified, then one that is not provisioned, then one that is.
    #[test]
    fn birth_follows_what_is_recorded_after_each_step() {
        let own = marks(1_763_000_500);
        let mut all = histories(&own);
        assert_eq!(find_births(&all[..1]), [], "in flight");
        all[0].ended = done_outcome(with_marks(Evidence::default(), &own));
        assert_eq!(find_births(&all[..1]), [(Some(own.clone()), false)]);
        assert_eq!(find_births(&all[..2]), [(Some(own.clone()), false)], "the first config may be written or not");
        all[1].ended = done_outcome(Evidence::default());
        assert_eq!(find_births(&all), [(Some(own), true)]);
    }

    #[test]
    fn only_a_verified_clone_and_a_write_to_the_same_guest_count() {
        let own = marks(1_763_000_500);
        let held = Outcome::new_held(FailureCode::OutcomeUnclear, ReleaseCondition::Person, Findings::default());
        let mut all = histories(&marks(1));
        all[0].ended = Some((held.clone(), 20));
        all[0].resolved = Some(ResolutionRecord { resolution: Resolution::Done, by: "ann".into(), reason: "seen".into(), at_ms: 30 });
        assert_eq!(find_births(&all), [(None, true)], "a person who says so gives no birth marks");
        all[0].ended = done_outcome(with_marks(Evidence::default(), &own));
        all[1].ended = done_outcome(Evidence::default());
        assert_eq!(find_births(&all), [(Some(own.clone()), false)], "the write was to a guest with other marks");
        let mut all = histories(&own);
        all[0].ended = done_outcome(with_marks(Evidence::default(), &own));
        all[1].ended = Some((held, 20));
        assert_eq!(find_births(&all), [(Some(own.clone()), false)]);
        all[1].resolved = Some(ResolutionRecord { resolution: Resolution::Done, by: "ann".into(), reason: "seen".into(), at_ms: 30 });
        assert_eq!(find_births(&all), [(Some(own), true)]);
    }

    #[test]
    fn birth_marks_read_back_as_recorded() {
        let all = histories(&marks(1));
        let clone = &all[0].operation;
        for own in [marks(1_763_000_500), GuestIdentity::Qemu { uuid: None, ctime: Some(7) }] {
            let (outcome, _) = done_outcome(with_marks(Evidence::default(), &own)).expect("an end");
            let stored = crate::apply::write_outcome(&outcome).expect("bytes");
            assert_eq!(birth_marks_of(clone, &crate::apply::parse_outcome(&stored).expect("an outcome")), Some(own));
        }
        assert_eq!(birth_marks_of(clone, &Outcome::Done(Findings::default())), None);
        assert_eq!(birth_marks_of(&all[1].operation, &done_outcome(with_marks(Evidence::default(), &marks(1))).expect("an end").0), None);
    }
}
