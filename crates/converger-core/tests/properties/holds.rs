//! Holds and operations in flight refuse steps of a finished plan: exactly as the planner refuses a guest that it must not change, and
//! without any effect on the plan itself.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::apply::{Operation, OperationId, OperationSource, OperationTarget, RunId};
use converger_core::artifact::{Digest, RecordedPlan, write_body};
use converger_core::desired::Desired;
use converger_core::guest::Vmid;
use converger_core::plan::Verdict;
use converger_core::policy::{BlockedBy, Circumstances, GuestBlock, Limits};
use converger_core::refusal::{Refusal, RefusalCode};
use converger_core::safety::{Judged, JudgedVerdict, judge};
use converger_core::testing::Rng;
use serde_json::json;

use crate::{PropertyCase, random_cases};

const SEED: u64 = 151;
const WORLDS: u64 = 5_000;

/// Holds of some of the declared guests, and sometimes of another one.
pub(crate) fn random_holds(rng: &mut Rng, desired: &Desired) -> Vec<GuestBlock> {
    let mut holds = Vec::new();
    for guest in desired.guests() {
        match rng.below(8) {
            0 => holds.push(GuestBlock { by: BlockedBy::Person { by: "ann".into(), reason: "a \"look\"\n".into() }, vmid: guest.vmid }),
            1 => holds.push(GuestBlock { by: BlockedBy::Operation("op-1".into()), vmid: guest.vmid }),
            _ => (),
        }
    }
    if rng.one_in(8) {
        let vmid = Vmid::new(999_999).expect("an id");
        holds.insert(0, GuestBlock { by: BlockedBy::Operation("op-2".into()), vmid });
    }
    holds
}

fn judge_with_holds(case: &PropertyCase, holds: Vec<GuestBlock>) -> Judged {
    judge(case.inputs().plan(), Limits::default(), Circumstances { cluster: None, epoch: None, freeze: None, holds })
}

fn body(judged: &Judged) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_body(&mut bytes, judged.plan()).expect("memory takes it");
    bytes
}

/// The refusals of each refused guest.
fn refusals(judged: &Judged) -> BTreeMap<Vmid, Vec<Refusal>> {
    let refused = judged.guests().filter_map(|(guest, verdict)| match verdict {
        JudgedVerdict::Refused(refusals) => Some((guest.vmid, refusals.to_vec())),
        _ => None,
    });
    refused.collect()
}

#[test]
fn g7_the_body_does_not_depend_on_holds() {
    for case in random_cases(SEED, WORLDS) {
        let holds = random_holds(&mut Rng::new(case.number), &case.inputs().desired);
        let (free, held) = (judge_with_holds(&case, Vec::new()), judge_with_holds(&case, holds));
        assert_eq!(body(&free), body(&held), "{case:?}");
    }
}

#[test]
fn g17_a_hold_only_removes_steps() {
    for case in random_cases(SEED + 1, WORLDS) {
        let holds = random_holds(&mut Rng::new(case.number), &case.inputs().desired);
        let held: BTreeSet<Vmid> = holds.iter().map(|hold| hold.vmid).collect();
        let judged = judge_with_holds(&case, holds);
        for ((guest, planned), (_, verdict)) in judged.plan().guests().zip(judged.guests()) {
            match (planned, verdict) {
                (Verdict::Converged { .. }, JudgedVerdict::Converged { .. }) => {}
                (Verdict::Refused(then), JudgedVerdict::Refused(now)) => assert_eq!(then, now, "{case:?} {}", guest.vmid),
                (Verdict::Steps(_), JudgedVerdict::Refused(now)) => assert!(!now.is_empty(), "{case:?} {}", guest.vmid),
                (Verdict::Steps(then), JudgedVerdict::Steps(now)) => {
                    assert!(then == now && !held.contains(&guest.vmid), "{case:?} {}", guest.vmid);
                    let waits = now.iter().flat_map(|step| &step.wait);
                    let refused = refusals(&judged);
                    assert_eq!(waits.filter(|vmid| refused.contains_key(*vmid)).count(), 0, "{case:?} {}", guest.vmid);
                }
                found => panic!("{case:?} {}: {found:?}", guest.vmid),
            }
        }
    }
}

/// `verify` refuses an operation that is not a step of the recorded plan; a step that the judgement refuses is none.
#[test]
fn g12_an_operation_on_a_held_guest_is_not_a_step_of_the_recorded_plan() {
    let (run, id) = (RunId::new("run-1").expect("an id"), OperationId::new("run-1-0").expect("an id"));
    let mut seen = BTreeSet::new();
    for case in random_cases(SEED + 3, WORLDS / 10) {
        let judged = judge_with_holds(&case, random_holds(&mut Rng::new(case.number), &case.inputs().desired));
        let (plan, recorded) = (judged.plan(), RecordedPlan::from_judged(&judged).expect("memory takes it"));
        for ((guest, planned), (_, verdict)) in plan.guests().zip(judged.guests()) {
            let Verdict::Steps(steps) = planned else { continue };
            let target = OperationTarget::from_plan(plan, guest).expect("steps need a reading");
            let (environment, step, digest) = (plan.desired().environment().clone(), steps[0].clone(), Digest::of_bytes(b"plan"));
            let operation = Operation::new(id.clone(), run.clone(), environment, target, step, 0, digest, OperationSource::Convergent);
            let is_step = matches!(verdict, JudgedVerdict::Steps(_));
            assert_eq!(recorded.contains_operation(&operation), is_step, "{case:?} {}", guest.vmid);
            seen.insert(is_step);
        }
    }
    assert_eq!(seen.len(), 2, "both must occur");
}

/// A lock is a reason of the planner, a hold one of the judgement: both refuse the same guests, and refuse their dependents alike.
#[test]
fn holds_refuse_what_the_planner_refuses_if_the_same_guests_are_locked() {
    let mut spread = 0;
    for mut case in random_cases(SEED + 2, WORLDS) {
        let holds = random_holds(&mut Rng::new(case.number), &case.inputs().desired);
        let held: BTreeSet<Vmid> = holds.iter().map(|hold| hold.vmid).collect();
        let (free, held_judged) = (refusals(&judge_with_holds(&case, Vec::new())), judge_with_holds(&case, holds));
        for row in case.world.observation["guests"].as_array_mut().into_iter().flatten() {
            let is_held = row["vmid"].as_u64().and_then(Vmid::new).is_some_and(|vmid| held.contains(&vmid));
            if is_held {
                row["lock"] = json!("backup");
            }
        }
        let (by_hold, by_lock) = (refusals(&held_judged), refusals(&judge_with_holds(&case, Vec::new())));
        let ids = |refused: &BTreeMap<Vmid, Vec<Refusal>>| refused.keys().copied().collect::<BTreeSet<_>>();
        assert_eq!(ids(&by_hold), ids(&by_lock), "{case:?}");
        for (vmid, refusals) in by_hold.iter().filter(|(vmid, _)| !free.contains_key(*vmid) && !held.contains(*vmid)) {
            assert_eq!(refusals, &by_lock[vmid], "{case:?} {vmid}");
            spread += 1;
        }
        let is_held = |(vmid, refusals): &(&Vmid, &Vec<Refusal>)| {
            held.contains(*vmid) && !free.contains_key(*vmid) && refusals.iter().all(|refusal| refusal.code() == RefusalCode::GuestHeld)
        };
        let own = by_hold.iter().filter(|(vmid, _)| held.contains(*vmid) && !free.contains_key(*vmid)).count();
        assert_eq!(by_hold.iter().filter(is_held).count(), own, "{case:?}");
    }
    assert!(spread > 100, "holds must reach dependents in many worlds, not in {spread}");
}
