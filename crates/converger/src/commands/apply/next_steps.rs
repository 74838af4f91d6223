//! What to do after a plan was not approved: its digest, and the command that would approve it.
//!
//! `approve::admit` decides whether it is approved.

use converger_core::action::ChangeClass;
use converger_core::approve::ApprovalMode;
use converger_core::artifact::{Digest, proposal_digest};
use converger_core::plan::Step;
use converger_core::refusal::{Refusal, RefusalCode};
use converger_core::safety::{JudgedVerdict, SafePlan};

use super::super::CommandError;
use crate::cli::ApplyArgs;
use crate::files;
use crate::render::{self, apply_style};

/// The plan that would be confirmed, and how.
pub(super) struct NextSteps {
    digest: Digest,
    has_steps: bool,
    help: String,
}

const OTHER_DIGEST: &str = "--confirm has the digest of another plan: something changed since that was made, or it is for other guests";

impl NextSteps {
    pub(super) fn for_plan(arguments: &ApplyArgs, safe: &SafePlan, mode: ApprovalMode) -> Result<Self, CommandError> {
        let digest = proposal_digest(safe.plan(), safe.judgement())
            .map_err(|error| CommandError::failure(format!("cannot write the plan: {error}")))?;
        let help = match mode {
            ApprovalMode::Shared => {
                "`mode = \"shared\"` needs the approval of someone else, which this version does not support yet; nothing can be applied"
                    .into()
            }
            ApprovalMode::Solo if judged_steps(safe).any(|step| step.class() > ChangeClass::Benign) => {
                format!("this plan is confirmed at a terminal: `{}`", repeat_command_line("apply", arguments))
            }
            ApprovalMode::Solo => {
                format!("if this plan is what you want: `{} --confirm {digest}`", repeat_command_line("apply", arguments))
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

/// The command line that gives the same plan again. For `apply` it has every option but the confirmation.
pub(super) fn repeat_command_line(verb: &str, arguments: &ApplyArgs) -> String {
    let mut parts = vec!["converger".to_owned(), verb.to_owned(), files::shell_argument(&arguments.source.desired)];
    let observation_arguments = &arguments.source.observation;
    let mut option = |name: &str, value: Option<String>| parts.extend(value.map(|value| format!("--{name} {value}")));
    option("config", observation_arguments.config.as_deref().map(files::shell_argument));
    let ids: Vec<String> = arguments.filter.only.iter().map(ToString::to_string).collect();
    option("only", (!ids.is_empty()).then(|| ids.join(",")));
    if verb != "apply" {
        return parts.join(" ");
    }
    option("plan", arguments.plan.as_deref().map(files::shell_argument));
    option("timeout", arguments.timeout.map(|seconds| seconds.to_string()));
    option("out", arguments.out.as_deref().map(files::shell_argument));
    let flags = [("--partial", arguments.partial), ("--fail-fast", arguments.fail_fast), ("--json", arguments.json)];
    parts.extend(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag.to_owned()));
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    #[test]
    fn suggested_command_repeats_the_arguments() {
        let typed = [
            "converger",
            "apply",
            "my file.yaml",
            "--config",
            "it's.toml",
            "--only",
            "101,102",
            "--plan",
            "p.json",
            "--timeout",
            "60",
            "--out",
            "r.json",
            "--partial",
            "--fail-fast",
            "--json",
        ];
        let CliCommand::Apply(arguments) = Cli::parse_from(typed).command else { panic!("an apply") };
        let (plan, apply) = (repeat_command_line("plan", &arguments), repeat_command_line("apply", &arguments));
        assert_eq!(plan, r"converger plan 'my file.yaml' --config 'it'\''s.toml' --only 101,102");
        assert_eq!(
            apply,
            format!("{} --plan p.json --timeout 60 --out r.json --partial --fail-fast --json", plan.replace(" plan ", " apply "))
        );
    }
}
