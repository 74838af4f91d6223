//! May it be done: limits, freeze, quorum and completeness, and the guarantees once more, checked on the finished plan.
//!
//! All violations are collected; one is enough to keep a [`Plan`] from becoming a [`SafePlan`].
//!
//! What never enters: the planner's reasoning. The guarantees are checked here by code of their own, so that a defect
//! of the planner does not pass.

mod guarantee;

use crate::plan::{Plan, Step, Verdict};
use crate::policy::{Circumstances, Limits};
use crate::refusal::Refusal;

/// The outcome of a judgement.
#[must_use]
#[derive(Debug)]
pub enum Judged {
    /// Nothing stands against it, as far as limits and guarantees go.
    Safe(SafePlan),
    /// At least one cause concerns the whole run.
    Refused(RefusedPlan),
}

/// A plan that was judged and found within all limits and guarantees. Made by [`judge`] only.
///
/// It is not yet an approval: refusals of single guests are still in it.
///
/// ```
/// fn count(plan: &converger_core::safety::SafePlan) -> usize {
///     plan.plan().verdicts().len()
/// }
/// ```
///
/// It cannot be made of a plan without a judgement:
///
/// ```compile_fail,E0451
/// use converger_core::{plan::Plan, safety::{Judgement, SafePlan}};
/// fn forge(plan: Plan, judgement: Judgement) -> SafePlan {
///     SafePlan { plan, judgement }
/// }
/// ```
///
/// a plan does not pass for one:
///
/// ```compile_fail,E0308
/// use converger_core::{plan::Plan, safety::SafePlan};
/// fn apply(_: SafePlan) {}
/// fn skip_the_judgement(plan: Plan) {
///     apply(plan);
/// }
/// ```
///
/// nor does one that was refused:
///
/// ```compile_fail,E0308
/// use converger_core::safety::{RefusedPlan, SafePlan};
/// fn apply(_: SafePlan) {}
/// fn overrule(refused: RefusedPlan) {
///     apply(refused);
/// }
/// ```
///
/// and none comes from a file:
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

/// A plan that is not to be carried out, with all causes.
#[must_use]
#[derive(Debug)]
pub struct RefusedPlan {
    plan: Plan,
    judgement: Judgement,
}

/// What a plan was held against, and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    limits: Limits,
    circumstances: Circumstances,
    refusals: Vec<Refusal>,
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

    /// What stands against the whole run.
    #[must_use]
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }
}

impl SafePlan {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl Judged {
    /// The plan, safe or not, to be shown.
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
}

/// Judges a plan. All violations are collected.
pub fn judge(plan: Plan, limits: Limits, circumstances: Circumstances) -> Judged {
    let mut refusals = guarantee::violations(&plan);
    refusals.extend(over_limits(&plan, limits));
    if let (Some(reason), true) = (&circumstances.freeze, has_steps(&plan)) {
        refusals.push(Refusal::frozen(reason));
    }
    let is_safe = refusals.is_empty() && plan.refusals().is_empty();
    let judgement = Judgement { limits, circumstances, refusals };
    if is_safe { Judged::Safe(SafePlan { plan, judgement }) } else { Judged::Refused(RefusedPlan { plan, judgement }) }
}

fn has_steps(plan: &Plan) -> bool {
    plan.verdicts().iter().any(|verdict| matches!(verdict, Verdict::Steps(_)))
}

fn over_limits(plan: &Plan, limits: Limits) -> Vec<Refusal> {
    let count = |is_counted: fn(&[Step]) -> bool| {
        let guests = plan.verdicts().iter().filter(|verdict| matches!(verdict, Verdict::Steps(steps) if is_counted(steps))).count();
        u32::try_from(guests).unwrap_or(u32::MAX)
    };
    let changed = count(|_| true);
    let interrupted = count(|steps| steps.iter().any(Step::interrupts));
    let scope = u32::try_from(plan.verdicts().len()).unwrap_or(u32::MAX);
    let share = limits.percent_of(scope);
    let refusals = [
        (changed > limits.guests).then(|| Refusal::limit_guests(changed, limits.guests)),
        (changed > share).then(|| Refusal::limit_percent(changed, share, limits.percent, scope)),
        (interrupted > limits.stops).then(|| Refusal::limit_stops(interrupted, limits.stops)),
    ];
    refusals.into_iter().flatten().collect()
}
