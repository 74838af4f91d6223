//! The guarantees, checked on a finished plan by code that shares nothing with the planner.
//!
//! The planner never makes what is looked for here. If it did, this is where it stops.

use crate::action::Change;
use crate::desired::DesiredGuest;
use crate::guest::Vmid;
use crate::normalize::{Field, Value};
use crate::observe::{Observation, ObservedGuest, Reading, Status};
use crate::plan::{Plan, Step, Verdict};
use crate::policy::Rules;
use crate::refusal::Refusal;

/// A guarantee that a step of a guest can break.
type Check = fn(&Case<'_>) -> bool;

const CHECKS: [(&str, Check); 4] = [
    ("G1", |case| !case.is_wholly_known()),
    ("G2", |case| case.row.is_none()),
    ("G3", |case| case.interrupts_protected() || case.unprotects()),
    ("G12", |case| case.is_taken()),
];

/// One guest with steps.
struct Case<'p> {
    guest: &'p DesiredGuest,
    steps: &'p [Step],
    row: Option<&'p ObservedGuest>,
    observation: &'p Observation,
    rules: &'p Rules,
}

pub(super) fn violations(plan: &Plan) -> Vec<Refusal> {
    let found = CHECKS.iter().map(|(guarantee, check)| (*guarantee, guests_that(plan, *check)));
    found.filter(|(_, guests)| !guests.is_empty()).map(|(guarantee, guests)| Refusal::guarantee_broken(guarantee, guests)).collect()
}

fn guests_that(plan: &Plan, is_broken: Check) -> Vec<Vmid> {
    let cases = plan.desired().guests().iter().zip(plan.verdicts()).filter_map(|(guest, verdict)| match verdict {
        Verdict::Steps(steps) => {
            let observation = plan.observation();
            Some(Case { guest, steps, row: observation.find(guest.vmid), observation, rules: plan.rules() })
        }
        _ => None,
    });
    cases.filter(|case| is_broken(case)).map(|case| case.guest.vmid).collect()
}

impl Case<'_> {
    /// The reading is whole, and so is what was read of the guest, which is the declared one.
    fn is_wholly_known(&self) -> bool {
        let Some(row) = self.row else { return false };
        let reading = self.observation.quorate && self.observation.complete;
        let online = self.observation.nodes.get(row.node).is_some_and(|node| node.online);
        let status = matches!(row.status, Status::Known(_));
        let guards = row.lock.is_read() && row.ha.is_read() && row.template.is_read() && row.protection.is_read();
        let named = self.guest.name.as_ref().is_none_or(|name| row.name.as_deref() == Some(name.as_str()));
        let same = row.kind == self.guest.kind && named;
        reading && online && status && guards && row.tags.is_read() && row.pending.is_read() && same
    }

    fn interrupts_protected(&self) -> bool {
        let goes_down = self.steps.iter().any(|step| matches!(step.change, Change::Shutdown { .. } | Change::Stop | Change::Reboot { .. }));
        goes_down && self.is_protected()
    }

    /// The rules are data; who falls under them is looked up here anew and not by [`Rules::grounds`].
    fn is_protected(&self) -> bool {
        let rules = self.rules;
        let begins = |name: &str| {
            let name = name.to_ascii_lowercase();
            rules.names().iter().any(|prefix| name.starts_with(&**prefix))
        };
        let declared = self.guest.name.as_ref().is_some_and(|name| begins(name.as_str()));
        let seen = self.row.is_some_and(|row| {
            let tagged = matches!(&row.tags, Reading::Read(tags) if rules.tags().iter().any(|tag| tags.has(tag)));
            row.name.as_deref().is_some_and(begins) || tagged || row.protection == Reading::Read(true)
        });
        let wanted = |value: &Option<Value>| matches!(value, Some(Value::Tags(tags)) if rules.tags().iter().any(|tag| tags.has(tag)));
        let tagged = self.guest.config.iter().any(|setting| wanted(&setting.wanted));
        declared || tagged || seen || rules.ids().contains(&self.guest.vmid)
    }

    /// A protecting tag is there before a step and not after it.
    fn unprotects(&self) -> bool {
        let Some(ObservedGuest { tags: Reading::Read(before), .. }) = self.row else { return false };
        let written = self.steps.iter().find_map(|step| match &step.change {
            Change::ConfigSet(fields) => fields.iter().find(|field| field.field == Field::Tags),
            _ => None,
        });
        let Some(written) = written else { return false };
        let stays = |tag: &str| matches!(&written.after, Some(Value::Tags(after)) if after.has(tag));
        before.iter().any(|tag| self.rules.is_protecting_tag(tag) && !stays(tag))
    }

    /// Somebody else is at work on it: a lock, or high availability in motion.
    fn is_taken(&self) -> bool {
        let Some(row) = self.row else { return false };
        let locked = matches!(row.lock, Reading::Read(Some(_)));
        let moved = matches!(&row.ha, Reading::Read(Some(ha)) if ha.owns() && !ha.is_settled());
        locked || moved
    }
}
