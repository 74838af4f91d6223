//! The verdict for a declared guest that is made from a template (`from` in desired.yaml), as long as it is not made completely; and what
//! is left for any guest whose making was cut off.
//!
//! `from` is used once. A guest that was made before and is missing is refused: making it again would replace a lost guest by an empty one.

use super::clone::{derive_changes, unfinished_disk, verdict_of_changes};
use super::request::{Derived, find_growth, step};
use super::{Step, StepReason, Verdict, guest};
use crate::action::{Change, Provisioning};
use crate::desired::{self, DesiredGuest, GuestOrigin};
use crate::guest::RunState;
use crate::intent::CloneRequest;
use crate::observe::{ObservedGuest, Reading, Scoped, Seen};
use crate::policy::{Birth, Rules};
use crate::refusal::Refusal;

/// The verdict of its birth; `None` if the guest is declared without `from`, or exists and is made completely.
pub(super) fn verdict(guest: &DesiredGuest, listed: Option<&ObservedGuest>, observation: &Scoped, rules: &Rules) -> Option<Verdict> {
    let (origin, request) = (guest.from.as_deref()?, guest.clone_request()?);
    match observation.presence(guest.vmid, listed) {
        Seen::Missing => Some(plan_birth(guest, origin, &request, observation, rules)),
        Seen::Present(row, state) => {
            // A request that made the guest continues by itself.
            let birth = rules.birth_of(row).filter(|birth| birth.request.is_none() && !(birth.provisioned && birth.grown))?;
            Some(continue_birth(birth, &request, guest, (row, state), observation, rules))
        }
        Seen::Unknown(_) => None,
    }
}

/// The steps that make a guest that is proven missing.
fn plan_birth(guest: &DesiredGuest, origin: &GuestOrigin, request: &CloneRequest, observation: &Scoped, rules: &Rules) -> Verdict {
    // Birth marks are written down only after a guest was seen.
    if rules.last_birth(guest.vmid).is_some() {
        return Verdict::Refused(vec![Refusal::guest_missing_again("it was made before")]);
    }
    if guest.identity.is_some() {
        return Verdict::Refused(vec![Refusal::guest_missing_again("its own `identity` is declared, so it existed before")]);
    }
    let changes = find_template(guest, origin, observation).and_then(|template| derive_changes(request, template, observation, rules));
    verdict_of_changes(changes, StepReason::MadeFromTemplate)
}

/// The template, if it is the declared one.
fn find_template<'o>(guest: &DesiredGuest, origin: &GuestOrigin, observation: &'o Scoped) -> Result<&'o ObservedGuest, Vec<Refusal>> {
    let template = origin.template;
    let unusable = |cause: &str| Err(vec![Refusal::template_unusable(template, cause)]);
    let row = match observation.presence(template, observation.find(template)) {
        Seen::Missing => return unusable("it does not exist"),
        Seen::Unknown(cause) => return unusable(&format!("its state is unknown ({cause})")),
        Seen::Present(row, _) if row.kind != guest.kind => return unusable(&format!("it is a guest of the kind {}", row.kind)),
        Seen::Present(row, _) => row,
    };
    let Reading::Read(marks) = &row.identity else { return unusable("its birth marks were not read") };
    match &origin.identity {
        None => Err(vec![Refusal::template_unpinned(template, desired::format_marks(marks))]),
        Some(pinned) if !pinned.holds_for(marks) => Err(vec![Refusal::template_mismatch(template, pinned.differences(marks))]),
        Some(_) if row.template == Reading::Read(false) => unusable("it is not a template"),
        Some(_) => Ok(row),
    }
}

/// The steps that are left for a guest that a request made before.
pub(super) fn continue_request(
    birth: &Birth,
    request: &CloneRequest,
    guest: &DesiredGuest,
    (row, state): (&ObservedGuest, RunState),
    observation: &Scoped,
    rules: &Rules,
) -> Verdict {
    let mut changes = match remaining_changes(birth, request, guest, (row, state), observation) {
        Ok(changes) => changes,
        Err(refusals) => return Verdict::Refused(refusals),
    };
    // A guest that was started once and is stopped now was stopped for a reason that this program does not know.
    if request.start && state == RunState::Stopped && !birth.started {
        changes.push(Change::Start);
    }
    let steps = changes.into_iter().map(|change| step(change, state, StepReason::Requested)).collect();
    settle_steps(steps, guest, row, rules)
}

/// The steps that are left for a declared guest whose making was cut off.
fn continue_birth(
    birth: &Birth,
    request: &CloneRequest,
    guest: &DesiredGuest,
    (row, state): (&ObservedGuest, RunState),
    observation: &Scoped,
    rules: &Rules,
) -> Verdict {
    let changes = match remaining_changes(birth, request, guest, (row, state), observation) {
        Ok(changes) => changes,
        Err(refusals) => return Verdict::Refused(refusals),
    };
    let start = (!birth.provisioned && request.start).then_some(Change::Start);
    let changes = changes.into_iter().chain(start);
    let mut steps: Vec<Step> = changes.map(|change| step(change, state, StepReason::MadeFromTemplate)).collect();
    // A guest that has its first configuration is compared with what is declared, like every other one.
    if birth.provisioned {
        steps.extend(guest::plan_drift(guest, row, state, observation.tag_case));
    }
    settle_steps(steps, guest, row, rules)
}

fn settle_steps(steps: Vec<Step>, guest: &DesiredGuest, row: &ObservedGuest, rules: &Rules) -> Verdict {
    if steps.is_empty() {
        return Verdict::Converged { pending_restart: false };
    }
    let refusals = guest::check_guards(guest, row, &steps, rules);
    if refusals.is_empty() { Verdict::Steps(steps) } else { Verdict::Refused(refusals) }
}

/// First configuration and growth, as far as they are not recorded as done, if the guest is the one that was made.
fn remaining_changes(
    birth: &Birth,
    request: &CloneRequest,
    guest: &DesiredGuest,
    (row, state): (&ObservedGuest, RunState),
    observation: &Scoped,
) -> Derived {
    if let Some(refusals) = guest::check_guest(guest, row, observation) {
        return Err(refusals);
    }
    let mut changes = Vec::new();
    if !birth.provisioned {
        // If another user started it, it would get most of its configuration only at its next start.
        if state == RunState::Running {
            return Err(vec![Refusal::run_state_unsuitable(RunState::Stopped, state)]);
        }
        changes.extend(first_config(&request.provisioning));
    }
    // The space was checked before the guest was made, and the storages are not read again for what is left.
    if !birth.grown
        && let Some((disk, size)) = unfinished_disk(request, row)?
        && let Some((growth, _)) = find_growth(row, &disk, size)?
    {
        changes.push(Change::DiskGrow(Box::new(growth)));
    }
    Ok(changes)
}

fn first_config(provisioning: &Provisioning) -> Option<Change> {
    (!provisioning.is_empty()).then(|| Change::Provision(Box::new(provisioning.clone())))
}
