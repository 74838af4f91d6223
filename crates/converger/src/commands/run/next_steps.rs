//! What to do after a plan was not approved: its digest, and the command that would approve it.
//!
//! `approve::admit` decides whether it is approved.

use converger_core::action::ChangeClass;
use converger_core::approve::{ApprovalMode, needs_signature};
use converger_core::artifact::{Digest, proposal_digest};
use converger_core::plan::Step;
use converger_core::refusal::{Refusal, RefusalCode};
use converger_core::safety::{JudgedVerdict, SafePlan};

use super::super::CommandError;
use super::RunArguments;
use crate::render::{self, apply_style};

/// The plan that would be confirmed, and how.
pub(super) struct NextSteps {
    digest: Digest,
    has_steps: bool,
    help: String,
}

const OTHER_DIGEST: &str = "--confirm has the digest of another plan: something changed since that was made, or it is for other guests";

impl NextSteps {
    pub(super) fn for_plan(arguments: &RunArguments, safe: &SafePlan, mode: ApprovalMode) -> Result<Self, CommandError> {
        let digest = proposal_digest(safe.plan(), safe.judgement()).map_err(|error| super::super::unwritable_plan(&error))?;
        let help: String = match mode {
            ApprovalMode::Shared => {
                "`mode = \"shared\"` needs the approval of someone else, which this version does not support yet; nothing can be applied"
                    .into()
            }
            ApprovalMode::Solo if needs_signature(safe) => {
                "a step of this plan needs one signed approval, which this version does not support yet; it cannot be applied".into()
            }
            ApprovalMode::Solo if judged_steps(safe).any(|step| step.class() > ChangeClass::Benign) => {
                format!("this plan is confirmed at a terminal: `{}`", arguments.apply_command)
            }
            ApprovalMode::Solo => {
                format!("if this plan is what you want: `{} --confirm {digest}`", arguments.apply_command)
            }
        };
        let is_other = arguments.confirm.as_deref().and_then(Digest::parse).is_some_and(|confirmed| confirmed != digest);
        let help = if is_other { format!("{OTHER_DIGEST}; {help}") } else { help };
        Ok(Self { digest, has_steps: judged_steps(safe).next().is_some(), help })
    }

    /// The digest of the plan; empty if there is nothing to confirm. The full one is in [`Self::after`], where it is copied.
    pub(super) fn digest_line(&self) -> String {
        if self.has_steps {
            format!("{}\n", apply_style(render::DIM, format!("digest: {}", render::short_digest(self.digest))))
        } else {
            String::new()
        }
    }

    /// What to do, if only the confirmation is missing.
    pub(super) fn after(&self, refusals: &[Refusal]) -> String {
        let is_unconfirmed = refusals.iter().any(|refusal| refusal.code() == RefusalCode::ApprovalMissing);
        if is_unconfirmed { render::render_help(&self.help) } else { String::new() }
    }
}

fn judged_steps(safe: &SafePlan) -> impl Iterator<Item = &Step> {
    safe.guests().flat_map(|(_, verdict)| match verdict {
        JudgedVerdict::Steps(steps) => steps.iter(),
        JudgedVerdict::Converged { .. } | JudgedVerdict::Refused(_) => [].iter(),
    })
}
