//! How to get on where a plan was not approved: the digest of what was shown, and the very command that would be obeyed.
//!
//! What never enters: whether it is approved. That is `approve::admit`'s.

use std::io;

use converger_core::action::Class;
use converger_core::approve::Mode;
use converger_core::artifact::{Digest, write_body};
use converger_core::plan::{Plan, Step, Verdict};
use converger_core::refusal::{Code, Refusal};
use converger_core::safety::SafePlan;

use super::super::Stop;
use crate::cli::Apply;
use crate::files;
use crate::render::{self, styled};

/// What would be said yes to, and how.
pub(super) struct NextSteps {
    digest: Digest,
    has_steps: bool,
    help: String,
}

/// Of a digest that was given and is not this plan's.
const OTHER: &str = "--confirm gave the digest of another plan: something changed since it was read, or other guests were chosen";

impl NextSteps {
    pub(super) fn of(arguments: &Apply, safe: &SafePlan, mode: Mode) -> Result<Self, Stop> {
        let plan = safe.plan();
        let digest = write_body(&mut io::sink(), plan).map_err(|error| Stop::failed(format!("the plan cannot be written: {error}")))?;
        let help = match mode {
            Mode::Shared => {
                "there is no way yet by which somebody else approves, so that nothing is carried out where `mode` is \"shared\"".into()
            }
            Mode::Solo if steps(plan).any(|step| step.class() > Class::Benign) => {
                format!("this is asked at a terminal: `{}`", again("apply", arguments))
            }
            Mode::Solo => format!("if this plan is what you want: `{} --confirm {digest}`", again("apply", arguments)),
        };
        let is_other = arguments.confirm.as_deref().and_then(Digest::parse).is_some_and(|given| given != digest);
        let help = if is_other { format!("{OTHER}; {help}") } else { help };
        Ok(Self { digest, has_steps: steps(plan).next().is_some(), help })
    }

    /// What a script confirms who read this plan. Nothing, where there is nothing to confirm.
    pub(super) fn digest_line(&self) -> String {
        if self.has_steps { format!("{}\n", styled(render::DIM, format!("digest: {}", self.digest))) } else { String::new() }
    }

    /// How to get on, if it is a word that is missing.
    pub(super) fn after(&self, refusals: &[Refusal]) -> String {
        let is_missing = refusals.iter().any(|refusal| refusal.code() == Code::ApprovalMissing);
        if is_missing { render::help(&self.help) } else { String::new() }
    }
}

fn steps(plan: &Plan) -> impl Iterator<Item = &Step> {
    plan.verdicts().iter().flat_map(|verdict| match verdict {
        Verdict::Steps(steps) => steps.iter(),
        Verdict::Converged { .. } | Verdict::Refused(_) => [].iter(),
    })
}

/// The command that leads to the same plan again; of an apply with all that was said but the confirmation.
pub(super) fn again(verb: &str, arguments: &Apply) -> String {
    let mut words = vec!["converger".to_owned(), verb.to_owned(), files::argument(&arguments.source.desired)];
    let look = &arguments.source.look;
    let mut option = |name: &str, value: Option<String>| words.extend(value.map(|value| format!("--{name} {value}")));
    option("config", look.config.as_deref().map(files::argument));
    let ids: Vec<String> = arguments.choice.only.iter().map(ToString::to_string).collect();
    option("only", (!ids.is_empty()).then(|| ids.join(",")));
    if verb != "apply" {
        return words.join(" ");
    }
    option("plan", arguments.plan.as_deref().map(files::argument));
    option("timeout", arguments.timeout.map(|seconds| seconds.to_string()));
    option("out", arguments.out.as_deref().map(files::argument));
    let flags = [("--partial", arguments.partial), ("--fail-fast", arguments.fail_fast), ("--json", arguments.json)];
    words.extend(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag.to_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    /// What is printed is what was said, word by word, and a shell reads it so.
    #[test]
    fn the_command_to_run_is_the_one_that_was_run() {
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
        let Command::Apply(arguments) = Cli::parse_from(said).command else { panic!("an apply") };
        let (plan, apply) = (again("plan", &arguments), again("apply", &arguments));
        assert_eq!(plan, r"converger plan 'my file.yaml' --config 'it'\''s.toml' --only 101,102");
        assert_eq!(
            apply,
            format!("{} --plan p.json --timeout 60 --out r.json --partial --fail-fast --json", plan.replace(" plan ", " apply "))
        );
    }
}
