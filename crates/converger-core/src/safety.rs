//! Judges a plan: checks limits, freeze, quorum and completeness, and checks the guarantees again on the finished plan.
//!
//! All violations are collected; one is enough to keep a [`Plan`] from becoming a [`SafePlan`].
//!
//! Must not share code with the planner: guarantees are checked independently here, so that a planner bug is detected.

mod guarantee;
mod hold;

use serde::Serialize;

use crate::desired::DesiredGuest;
use crate::guest::Vmid;
use crate::plan::{Plan, Step, Verdict};
use crate::policy::{Circumstances, Limits};
use crate::refusal::Refusal;

/// The result of a judgement.
#[must_use]
#[derive(Debug)]
pub enum Judged {
    /// No limit or guarantee is violated.
    Safe(SafePlan),
    /// At least one violation concerns the whole run.
    Refused(RefusedPlan),
}

/// A plan that was judged to be within all limits and guarantees. Made by [`judge`] only.
///
/// It is not approved yet, and it may contain refusals of single guests.
///
/// ```
/// fn count(plan: &converger_core::safety::SafePlan) -> usize {
///     plan.plan().verdicts().len()
/// }
/// ```
///
/// It cannot be made from a plan without a judgement:
///
/// ```compile_fail,E0451
/// use converger_core::{plan::Plan, safety::{Judgement, SafePlan}};
/// fn forge(plan: Plan, judgement: Judgement) -> SafePlan {
///     SafePlan { plan, judgement }
/// }
/// ```
///
/// A plan is not accepted in its place:
///
/// ```compile_fail,E0308
/// use converger_core::{plan::Plan, safety::SafePlan};
/// fn apply(_: SafePlan) {}
/// fn skip_the_judgement(plan: Plan) {
///     apply(plan);
/// }
/// ```
///
/// A refused plan is not accepted either:
///
/// ```compile_fail,E0308
/// use converger_core::safety::{RefusedPlan, SafePlan};
/// fn apply(_: SafePlan) {}
/// fn overrule(refused: RefusedPlan) {
///     apply(refused);
/// }
/// ```
///
/// It cannot be read from a file:
///
/// ```compile_fail,E0277
/// fn load(text: &str) -> converger_core::safety::SafePlan {
///     serde_json::from_str(text).unwrap()
/// }
/// ```
#[must_use]
#[derive(Debug)]
pub struct SafePlan {
    plan: Plan,
    judgement: Judgement,
}

/// A plan that must not be applied, with all reasons.
#[must_use]
#[derive(Debug)]
pub struct RefusedPlan {
    plan: Plan,
    judgement: Judgement,
}

/// What a plan was judged against, and the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    limits: Limits,
    circumstances: Circumstances,
    refusals: Vec<Refusal>,
    /// Sorted by id.
    guests: Vec<GuestJudgement>,
}

/// Why the circumstances refuse the steps of one guest. Members are sorted by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestJudgement {
    /// All reasons.
    pub refusals: Vec<Refusal>,
    /// The guest.
    pub vmid: Vmid,
}

/// What is decided about one guest, by the plan and by its judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgedVerdict<'p> {
    /// There is nothing to do.
    Converged {
        /// Declared config is written and takes effect at the next restart.
        pending_restart: bool,
    },
    /// The guest needs these steps, and no circumstance refuses them.
    Steps(&'p [Step]),
    /// Nothing is done, for all of these reasons of the plan or of the judgement.
    Refused(&'p [Refusal]),
}

impl Judgement {
    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The circumstances.
    #[must_use]
    pub fn circumstances(&self) -> &Circumstances {
        &self.circumstances
    }

    /// The refusals that concern the whole run.
    #[must_use]
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// The guests with steps that the circumstances refuse, sorted by id.
    #[must_use]
    pub fn guests(&self) -> &[GuestJudgement] {
        &self.guests
    }

    /// Each declared guest of a plan with its judged verdict, in the order of [`Plan::guests`].
    pub(crate) fn judged_guests<'p>(&'p self, plan: &'p Plan) -> impl Iterator<Item = (&'p DesiredGuest, JudgedVerdict<'p>)> {
        judged_guests(plan, &self.guests)
    }
}

fn judged_guests<'p>(plan: &'p Plan, refused: &'p [GuestJudgement]) -> impl Iterator<Item = (&'p DesiredGuest, JudgedVerdict<'p>)> {
    let judgement_of = |vmid: Vmid| refused.binary_search_by_key(&vmid, |guest| guest.vmid).ok().and_then(|at| refused.get(at));
    plan.guests().map(move |(guest, verdict)| {
        let verdict = match verdict {
            Verdict::Converged { pending_restart } => JudgedVerdict::Converged { pending_restart: *pending_restart },
            Verdict::Refused(refusals) => JudgedVerdict::Refused(refusals),
            Verdict::Steps(steps) => match judgement_of(guest.vmid) {
                Some(judgement) => JudgedVerdict::Refused(&judgement.refusals),
                None => JudgedVerdict::Steps(steps),
            },
        };
        (guest, verdict)
    })
}

impl SafePlan {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The judgement.
    #[must_use]
    pub fn judgement(&self) -> &Judgement {
        &self.judgement
    }

    /// Each declared guest with its judged verdict: dependencies first (`after`), otherwise by id.
    pub fn guests(&self) -> impl Iterator<Item = (&DesiredGuest, JudgedVerdict<'_>)> {
        self.judgement.judged_guests(&self.plan)
    }
}

impl Judged {
    /// Refuses the plan for one more reason that concerns the whole run.
    pub fn refuse(self, cause: Refusal) -> Self {
        let (plan, mut judgement) = match self {
            Self::Safe(SafePlan { plan, judgement }) | Self::Refused(RefusedPlan { plan, judgement }) => (plan, judgement),
        };
        judgement.refusals.push(cause);
        Self::Refused(RefusedPlan { plan, judgement })
    }

    /// The plan, safe or not, for display.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        match self {
            Self::Safe(SafePlan { plan, .. }) | Self::Refused(RefusedPlan { plan, .. }) => plan,
        }
    }

    /// The judgement.
    #[must_use]
    pub fn judgement(&self) -> &Judgement {
        match self {
            Self::Safe(SafePlan { judgement, .. }) | Self::Refused(RefusedPlan { judgement, .. }) => judgement,
        }
    }

    /// Each declared guest with its judged verdict: dependencies first (`after`), otherwise by id.
    pub fn guests(&self) -> impl Iterator<Item = (&DesiredGuest, JudgedVerdict<'_>)> {
        self.judgement().judged_guests(self.plan())
    }
}

/// Judges a plan. Collects all violations.
pub fn judge(plan: Plan, limits: Limits, circumstances: Circumstances) -> Judged {
    let circumstances =
        if circumstances.holds.is_empty() { circumstances } else { circumstances.restrict_to_scope(&plan.intent().scope()) };
    let guests = hold::refuse_held_guests(&plan, &circumstances);
    let mut refusals = guarantee::find_violations(&plan, &circumstances, &guests);
    refusals.extend(check_limits(&plan, &guests, limits));
    if let (Some(reason), true) = (&circumstances.freeze, has_steps(&plan, &guests)) {
        refusals.push(Refusal::changes_frozen(reason));
    }
    let is_safe = refusals.is_empty() && plan.refusals().is_empty();
    let judgement = Judgement { limits, circumstances, refusals, guests };
    if is_safe { Judged::Safe(SafePlan { plan, judgement }) } else { Judged::Refused(RefusedPlan { plan, judgement }) }
}

fn has_steps(plan: &Plan, refused: &[GuestJudgement]) -> bool {
    judged_guests(plan, refused).any(|(_, verdict)| matches!(verdict, JudgedVerdict::Steps(_)))
}

fn check_limits(plan: &Plan, refused: &[GuestJudgement], limits: Limits) -> Vec<Refusal> {
    let count = |is_counted: fn(&[Step]) -> bool| {
        let verdicts = judged_guests(plan, refused).map(|(_, verdict)| verdict);
        let guests = verdicts.filter(|verdict| matches!(verdict, JudgedVerdict::Steps(steps) if is_counted(steps))).count();
        u32::try_from(guests).unwrap_or(u32::MAX)
    };
    let changed = count(|_| true);
    let interrupted = count(|steps| steps.iter().any(Step::interrupts));
    let scope = u32::try_from(plan.verdicts().len()).unwrap_or(u32::MAX);
    let share = limits.guests_allowed(scope);
    let refusals = [
        (changed > limits.guests).then(|| Refusal::limit_guests(changed, limits.guests)),
        (changed > share).then(|| Refusal::limit_percent(changed, share, limits.percent, scope)),
        (interrupted > limits.stops).then(|| Refusal::limit_stops(interrupted, limits.stops)),
    ];
    refusals.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::action::Change;
    use crate::guest::RunState;
    use crate::plan::StepReason;
    use crate::policy::Rules;
    use crate::refusal::{Datum, RefusalCode};
    use crate::testing::TestWorld;

    /// The plan of `count` running guests in which the first `stops` are stopped and the next `starts` are started, regardless of their
    /// state.
    fn forged_plan(count: u64, stops: usize, starts: usize, reading: &Value) -> Plan {
        let guests: Vec<Value> = (0..count).map(|index| json!({ "vmid": 100 + index, "kind": "qemu", "name": "web" })).collect();
        let rows = guests.iter().map(|guest| {
            json!({ "vmid": guest["vmid"], "kind": "qemu", "name": "web", "node": "pve1", "status": "running", "lock": null, "ha": null,
                "template": false, "protection": false, "tags": [], "pending": [] })
        });
        let mut observation = json!({ "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
            "nodes": [{ "name": "pve1", "online": true }], "guests": rows.collect::<Value>() });
        for (key, value) in reading.as_object().into_iter().flatten() {
            observation[key] = value.clone();
        }
        let desired = json!({ "version": 1, "environment": "lab", "guests": guests });
        let plan = TestWorld { desired, observation, rules: Rules::default() }.parse().expect("it parses").plan();
        let step =
            |change| Verdict::Steps(vec![Step { change, reason: StepReason::StateDiffers, from: RunState::Running, wait: Box::new([]) }]);
        let converged = Verdict::Converged { pending_restart: false };
        let verdicts = std::iter::repeat_n(step(Change::Stop), stops)
            .chain(std::iter::repeat_n(step(Change::Start), starts))
            .chain(std::iter::repeat(converged))
            .take(usize::try_from(count).expect("small"));
        plan.with_verdicts(verdicts.collect())
    }

    fn refusal_codes(judged: &Judged) -> Vec<RefusalCode> {
        let all = judged.judgement().refusals().iter().chain(judged.plan().refusals());
        all.map(Refusal::code).collect()
    }

    fn limits(guests: u32, percent: u32, stops: u32) -> Limits {
        Limits { guests, percent, stops }
    }

    #[test]
    fn accepts_a_plan_at_its_limits_and_refuses_one_above() {
        let judged = |limits| judge(forged_plan(10, 2, 2, &json!({})), limits, Circumstances::default());
        assert!(matches!(judged(limits(4, 40, 2)), Judged::Safe(_)));
        assert_eq!(refusal_codes(&judged(limits(3, 40, 2))), [RefusalCode::LimitGuests]);
        assert_eq!(refusal_codes(&judged(limits(4, 39, 2))), [RefusalCode::LimitPercent]);
        assert_eq!(refusal_codes(&judged(limits(4, 40, 1))), [RefusalCode::LimitStops]);
    }

    #[test]
    fn limit_zero_means_none_and_not_unlimited() {
        let judged = |starts| judge(forged_plan(10, 0, starts, &json!({})), limits(0, 0, 0), Circumstances::default());
        assert_eq!(refusal_codes(&judged(1)), [RefusalCode::LimitGuests, RefusalCode::LimitPercent]);
        assert!(matches!(judged(0), Judged::Safe(_)));
    }

    #[test]
    fn limit_refusals_report_their_counts() {
        let judged = judge(forged_plan(10, 3, 1, &json!({})), limits(50, 30, 2), Circumstances::default());
        let evidence: Vec<_> = judged.judgement().refusals().iter().map(Refusal::evidence).collect();
        let number = |key, number| (key, Datum::Number(number));
        assert_eq!(evidence[0], [number("count", 4), number("max", 3), number("percent", 30), number("scope", 10)]);
        assert_eq!(evidence[1], [number("count", 3), number("max", 2)]);
    }

    #[test]
    fn freeze_refuses_steps_but_not_an_empty_plan() {
        let frozen = || Circumstances { cluster: None, epoch: None, freeze: Some("audit week".into()), ..Circumstances::default() };
        assert_eq!(refusal_codes(&judge(forged_plan(3, 0, 1, &json!({})), Limits::default(), frozen())), [RefusalCode::Frozen]);
        assert!(matches!(judge(forged_plan(3, 0, 0, &json!({})), Limits::default(), frozen()), Judged::Safe(_)));
    }

    #[test]
    fn incomplete_or_quorumless_observation_is_refused_even_without_steps() {
        for (reading, code) in
            [(json!({ "quorate": false }), RefusalCode::NotQuorate), (json!({ "complete": false }), RefusalCode::ObservationIncomplete)]
        {
            let judged = judge(forged_plan(3, 0, 0, &reading), Limits::default(), Circumstances::default());
            assert!(matches!(judged, Judged::Refused(_)));
            assert_eq!(refusal_codes(&judged), [code]);
        }
    }

    #[test]
    fn g10_all_violations_are_collected() {
        let reading = json!({ "quorate": false, "complete": false });
        let frozen = Circumstances { cluster: None, epoch: None, freeze: Some("audit week".into()), ..Circumstances::default() };
        let judged = judge(forged_plan(10, 4, 4, &reading), limits(2, 10, 1), frozen);
        let all = [
            RefusalCode::GuaranteeBroken,
            RefusalCode::LimitGuests,
            RefusalCode::LimitPercent,
            RefusalCode::LimitStops,
            RefusalCode::Frozen,
            RefusalCode::NotQuorate,
            RefusalCode::ObservationIncomplete,
        ];
        assert_eq!(refusal_codes(&judged), all);
        let Judged::Refused(refused) = judged else { panic!("expected a refusal") };
        assert_eq!(refused.judgement.refusals()[0].evidence()[0], ("guarantee", Datum::Text("G1".into())));
        assert_eq!(refused.judgement.refusals()[0].evidence()[1].1, Datum::Ids(refused.plan.desired().scope().ids()[..8].to_vec()));
    }
}
