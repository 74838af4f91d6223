//! Refuses the steps of guests that must not be changed now, and the steps that depend on those through `after`.
//!
//! Must not share code with the planner, and must not read the observation: the steps of the plan are correct without holds, so a step is
//! lost only if a guest that it relies on loses its own. A hold can therefore never give another guest a step (G17).

use std::collections::{BTreeMap, BTreeSet};

use super::GuestJudgement;
use crate::guest::{RunState, Vmid};
use crate::plan::{Plan, Step, Verdict};
use crate::policy::{Circumstances, GuestBlock};
use crate::refusal::Refusal;

/// The guests with steps that are held, or whose steps depend on a held guest, sorted by id.
pub(super) fn refuse_held_guests(plan: &Plan, circumstances: &Circumstances) -> Vec<GuestJudgement> {
    if circumstances.holds.is_empty() {
        return Vec::new();
    }
    let graph = StepGraph::from_plan(plan);
    let refused = graph.find_refused(circumstances);
    let refusals = |vmid: Vmid| {
        let own: Vec<Refusal> = graph.guests_of(vmid).flat_map(|own| circumstances.holds_on(own)).map(GuestBlock::refusal).collect();
        if own.is_empty() { graph.dependency_refusals(vmid, &refused) } else { own }
    };
    refused.iter().map(|vmid| GuestJudgement { vmid: *vmid, refusals: refusals(*vmid) }).collect()
}

/// The guests with steps, and the edges of `after` between them.
struct StepGraph<'p> {
    guests: BTreeMap<Vmid, GuestSteps<'p>>,
    /// For each guest, the guests with steps that come after it, in the order of their ids.
    dependents: BTreeMap<Vmid, BTreeSet<Vmid>>,
}

struct GuestSteps<'p> {
    after: &'p [Vmid],
    /// Whether the guest ends up stopped.
    stops: bool,
    /// Other guests that its steps occupy, such as the source of a clone.
    second_guests: Vec<Vmid>,
}

impl<'p> StepGraph<'p> {
    fn from_plan(plan: &'p Plan) -> Self {
        let mut graph = Self { guests: BTreeMap::new(), dependents: BTreeMap::new() };
        for (guest, verdict) in plan.guests() {
            let Verdict::Steps(steps) = verdict else { continue };
            let second_guests = steps.iter().filter_map(|step| step.change.second_guest()).collect();
            graph.guests.insert(guest.vmid, GuestSteps { after: &guest.after, stops: end_stopped(steps), second_guests });
            for dependency in &guest.after {
                graph.dependents.entry(*dependency).or_default().insert(guest.vmid);
            }
        }
        graph
    }

    /// The held guests, and those that rely on a refused one. The set only grows, so the order of the walk does not matter.
    fn find_refused(&self, circumstances: &Circumstances) -> BTreeSet<Vmid> {
        let is_held = |vmid: Vmid| circumstances.holds_on(vmid).next().is_some();
        let held_with = self.guests.keys().copied().filter(|vmid| self.guests_of(*vmid).any(is_held));
        let mut work: Vec<Vmid> = circumstances.holds.iter().map(|hold| hold.vmid).chain(held_with).collect();
        let mut refused = BTreeSet::new();
        while let Some(vmid) = work.pop() {
            let Some(guest) = self.guests.get(&vmid) else { continue };
            if refused.insert(vmid) {
                work.extend(self.dependents_of(vmid));
                // A dependency may be stopped only after this guest, which now stays up.
                work.extend(guest.after.iter().filter(|_| guest.stops).filter(|on| self.stops(**on)));
            }
        }
        refused
    }

    fn dependency_refusals(&self, vmid: Vmid, refused: &BTreeSet<Vmid>) -> Vec<Refusal> {
        let after = self.guests.get(&vmid).map_or(&[][..], |guest| guest.after);
        let dependencies: Vec<Vmid> = after.iter().copied().filter(|on| refused.contains(on)).collect();
        let stays_up = |dependent: &Vmid| self.stops(vmid) && self.stops(*dependent) && refused.contains(dependent);
        let dependents: Vec<Vmid> = self.dependents_of(vmid).filter(stays_up).collect();
        let of = |ids: Vec<Vmid>, make: fn(Vec<Vmid>) -> Refusal| (!ids.is_empty()).then(|| make(ids));
        [of(dependencies, Refusal::dependency_refused), of(dependents, Refusal::dependent_running)].into_iter().flatten().collect()
    }

    /// A guest with steps, and the other guests that they occupy.
    fn guests_of(&self, vmid: Vmid) -> impl Iterator<Item = Vmid> + '_ {
        let second = self.guests.get(&vmid).into_iter().flat_map(|guest| guest.second_guests.iter().copied());
        std::iter::once(vmid).chain(second)
    }

    fn dependents_of(&self, vmid: Vmid) -> impl Iterator<Item = Vmid> + '_ {
        self.dependents.get(&vmid).into_iter().flatten().copied()
    }

    fn stops(&self, vmid: Vmid) -> bool {
        self.guests.get(&vmid).is_some_and(|guest| guest.stops)
    }
}

fn end_stopped(steps: &[Step]) -> bool {
    steps.iter().rev().find_map(|step| step.change.resulting_state()) == Some(RunState::Stopped)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Judged, JudgedVerdict, judge};
    use super::*;
    use crate::policy::{BlockedBy, Limits, Rules};
    use crate::refusal::{Datum, RefusalCode};
    use crate::testing::TestWorld;

    /// Guests as (id, observed, declared, after); each gets a power step if declared and observed differ.
    fn plan_of(guests: &[(u32, &str, &str, &[u32])]) -> Plan {
        let declared: Value = guests
            .iter()
            .map(|(vmid, _, state, after)| json!({ "vmid": vmid, "kind": "qemu", "name": "web", "state": state, "after": after }))
            .collect();
        let rows: Value = guests
            .iter()
            .map(|(vmid, status, ..)| {
                json!({ "vmid": vmid, "kind": "qemu", "name": "web", "node": "pve1", "status": status, "lock": null, "ha": null,
                    "template": false, "protection": false, "tags": [], "pending": [], "config": {} })
            })
            .collect();
        let observation = json!({ "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
            "nodes": [{ "name": "pve1", "online": true }], "guests": rows });
        let desired = json!({ "version": 1, "environment": "lab", "guests": declared });
        TestWorld { desired, observation, rules: Rules::default() }.parse().expect("it parses").plan()
    }

    fn hold(vmid: u64) -> GuestBlock {
        let by = BlockedBy::Person { by: "ann".into(), reason: "a look".into() };
        GuestBlock { vmid: Vmid::new(vmid).expect("an id"), by }
    }

    fn judge_with_holds(plan: Plan, held: &[u64]) -> Judged {
        let circumstances =
            Circumstances { cluster: None, epoch: None, freeze: None, holds: held.iter().map(|vmid| hold(*vmid)).collect() };
        judge(plan, Limits::default(), circumstances)
    }

    /// Each refused guest with its codes and, for a dependency, the guests that it names.
    fn refused(judged: &Judged) -> Vec<(u32, RefusalCode, Vec<u32>)> {
        let rows = judged.guests().filter_map(|(guest, verdict)| match verdict {
            JudgedVerdict::Refused(refusals) => Some((guest.vmid.get(), refusals)),
            _ => None,
        });
        let named = |refusal: &Refusal| match refusal.evidence() {
            [(_, Datum::Ids(ids))] => ids.iter().map(|id| id.get()).collect(),
            _ => Vec::new(),
        };
        rows.flat_map(|(vmid, refusals)| refusals.iter().map(move |refusal| (vmid, refusal.code(), named(refusal)))).collect()
    }

    #[test]
    fn a_hold_refuses_its_guest_and_the_starts_that_come_after_it() {
        let up = ("stopped", "running");
        let chain = plan_of(&[(100, up.0, up.1, &[]), (101, up.0, up.1, &[100]), (102, up.0, up.1, &[101]), (103, up.0, up.1, &[])]);
        let judged = judge_with_holds(chain, &[100]);
        let expected = [
            (100, RefusalCode::GuestHeld, vec![]),
            (101, RefusalCode::DependencyRefused, vec![100]),
            (102, RefusalCode::DependencyRefused, vec![101]),
        ];
        assert_eq!(refused(&judged), expected);
        let changed: Vec<u32> =
            judged.guests().filter(|(_, verdict)| matches!(verdict, JudgedVerdict::Steps(_))).map(|(guest, _)| guest.vmid.get()).collect();
        assert_eq!(changed, [103]);
    }

    #[test]
    fn a_hold_on_a_dependent_that_stays_up_refuses_the_stop_of_its_dependency() {
        let down = ("running", "stopped");
        let judged = judge_with_holds(plan_of(&[(100, down.0, down.1, &[]), (101, down.0, down.1, &[100])]), &[101]);
        assert_eq!(refused(&judged), [(100, RefusalCode::DependentRunning, vec![101]), (101, RefusalCode::GuestHeld, vec![])]);
    }

    #[test]
    fn a_held_guest_without_steps_stays_converged_and_refuses_nothing() {
        let judged = judge_with_holds(plan_of(&[(100, "running", "running", &[]), (101, "stopped", "running", &[100])]), &[100]);
        assert_eq!(refused(&judged), []);
        assert!(judged.judgement().guests().is_empty());
        assert_eq!(judged.judgement().circumstances().holds, [hold(100)]);
    }

    #[test]
    fn a_guest_that_the_planner_refuses_keeps_its_refusals() {
        let mut plan = plan_of(&[(100, "stopped", "running", &[])]);
        plan = plan.with_verdicts(vec![Verdict::Refused(vec![Refusal::guest_missing()])]);
        assert_eq!(refused(&judge_with_holds(plan, &[100])), [(100, RefusalCode::GuestMissing, vec![])]);
    }

    #[test]
    fn held_guests_count_for_no_limit() {
        let plan = || plan_of(&[(100, "running", "stopped", &[]), (101, "running", "stopped", &[])]);
        let one = Limits { guests: 1, percent: 50, stops: 1 };
        assert!(matches!(
            judge(plan(), one, Circumstances { cluster: None, epoch: None, freeze: None, holds: vec![hold(100)] }),
            Judged::Safe(_)
        ));
        assert!(matches!(judge(plan(), one, Circumstances::default()), Judged::Refused(_)));
    }

    #[test]
    fn holds_outside_the_scope_do_not_change_the_judgement() {
        let plan = || plan_of(&[(100, "stopped", "running", &[]), (101, "stopped", "running", &[])]);
        let (some, more) = (judge_with_holds(plan(), &[101]), judge_with_holds(plan(), &[999, 101, 102, 101]));
        assert_eq!(some.judgement(), more.judgement());
    }
}
