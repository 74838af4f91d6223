//! How to get on where a plan was not approved: the digest of what was shown, and the very command that would be obeyed.
//!
//! What never enters: whether it is approved. That is `approve::admit`'s.

use std::io;

use converger_core::action::ChangeClass;
use converger_core::approve::ApprovalMode;
use converger_core::artifact::{Digest, write_body};
use converger_core::plan::{Plan, Step, Verdict};
use converger_core::refusal::{Refusal, RefusalCode};
use converger_core::safety::SafePlan;

use super::super::CommandError;
use crate::cli::ApplyArgs;
use crate::files;
use crate::render::{self, apply_style};

/// What would be said yes to, and how.
pub(super) struct NextSteps {
    digest: Digest,
    has_steps: bool,
    help: String,
}

/// Of a digest that was given and is not this plan's.
const OTHER_DIGEST: &str = "--confirm gave the digest of another plan: something changed since it was read, or other guests were chosen";

impl NextSteps {
    pub(super) fn for_plan(arguments: &ApplyArgs, safe: &SafePlan, mode: ApprovalMode) -> Result<Self, CommandError> {
        let plan = safe.plan();
        let digest =
            write_body(&mut io::sink(), plan).map_err(|error| CommandError::failure(format!("the plan cannot be written: {error}")))?;
        let help = match mode {
            ApprovalMode::Shared => {
                "there is no way yet by which somebody else approves, so that nothing is carried out where `mode` is \"shared\"".into()
            }
            ApprovalMode::Solo if plan_steps(plan).any(|step| step.class() > ChangeClass::Benign) => {
                format!("this is asked at a terminal: `{}`", repeat_command_line("apply", arguments))
            }
            ApprovalMode::Solo => {
                format!("if this plan is what you want: `{} --confirm {digest}`", repeat_command_line("apply", arguments))
            }
        };
        let is_other = arguments.confirm.as_deref().and_then(Digest::parse).is_some_and(|given| given != digest);
        let help = if is_other { format!("{OTHER_DIGEST}; {help}") } else { help };
        Ok(Self { digest, has_steps: plan_steps(plan).next().is_some(), help })
    }

    /// What a script confirms who read this plan. Nothing, where there is nothing to confirm.
    pub(super) fn digest_line(&self) -> String {
        if self.has_steps { format!("{}\n", apply_style(render::DIM, format!("digest: {}", self.digest))) } else { String::new() }
    }

    /// How to get on, if it is a word that is missing.
    pub(super) fn after(&self, refusals: &[Refusal]) -> String {
        let is_missing = refusals.iter().any(|refusal| refusal.code() == RefusalCode::ApprovalMissing);
        if is_missing { render::render_help(&self.help) } else { String::new() }
    }
}

fn plan_steps(plan: &Plan) -> impl Iterator<Item = &Step> {
    plan.verdicts().iter().flat_map(|verdict| match verdict {
        Verdict::Steps(steps) => steps.iter(),
        Verdict::Converged { .. } | Verdict::Refused(_) => [].iter(),
    })
}

/// The command that leads to the same plan again; of an apply with all that was said but the confirmation.
pub(super) fn repeat_command_line(verb: &str, arguments: &ApplyArgs) -> String {
    let mut words = vec!["converger".to_owned(), verb.to_owned(), files::shell_argument(&arguments.source.desired)];
    let look = &arguments.source.observation;
    let mut option = |name: &str, value: Option<String>| words.extend(value.map(|value| format!("--{name} {value}")));
    option("config", look.config.as_deref().map(files::shell_argument));
    let ids: Vec<String> = arguments.filter.only.iter().map(ToString::to_string).collect();
    option("only", (!ids.is_empty()).then(|| ids.join(",")));
    if verb != "apply" {
        return words.join(" ");
    }
    option("plan", arguments.plan.as_deref().map(files::shell_argument));
    option("timeout", arguments.timeout.map(|seconds| seconds.to_string()));
    option("out", arguments.out.as_deref().map(files::shell_argument));
    let flags = [("--partial", arguments.partial), ("--fail-fast", arguments.fail_fast), ("--json", arguments.json)];
    words.extend(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag.to_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    /// What is printed is what was said, word by word, and a shell reads it so.
    #[test]
    fn suggested_command_repeats_the_arguments() {
        let said = [
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
        let CliCommand::Apply(arguments) = Cli::parse_from(said).command else { panic!("an apply") };
        let (plan, apply) = (repeat_command_line("plan", &arguments), repeat_command_line("apply", &arguments));
        assert_eq!(plan, r"converger plan 'my file.yaml' --config 'it'\''s.toml' --only 101,102");
        assert_eq!(
            apply,
            format!("{} --plan p.json --timeout 60 --out r.json --partial --fail-fast --json", plan.replace(" plan ", " apply "))
        );
    }
}
