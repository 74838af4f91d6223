//! `converger apply`: converges the declared guests.

use converger_core::approve::RefusedGuestPolicy;
use converger_core::artifact::GuestOmission;
use converger_core::refusal::Refusal;
use converger_engine::schedule::OnFailure;
use converger_runtime::environment::check_contract;
use converger_runtime::reader::unconfigured_error;
use converger_runtime::{ConfigSource, ExpectedPlan, Planned, RunRequest};

use super::CommandError;
use super::display::Display;
use super::inputs::{self, RunInputs};
use super::run::{self, RunArguments};
use crate::cli::ApplyArgs;
use crate::exit_status::ExitStatus;
use crate::render::ReportOptions;
use crate::{files, host, verbosity};

const REFUSED_HELP: &str = "the plan says why; resolve that, leave refused guests out with --partial, or name the others with --only";

pub(super) async fn apply(arguments: &ApplyArgs) -> Result<ExitStatus, CommandError> {
    check_contract()?;
    let run_arguments = run_arguments(arguments);
    run_arguments.check_confirmation()?;
    let source = &arguments.source;
    let config = ConfigSource::read(source.observation.config.as_deref());
    run_arguments.check_result_file(&[Some(&source.desired), source.observation.replay.as_ref(), arguments.plan.as_ref()], &config)?;
    if source.observation.replay.is_some() {
        return show_recorded(arguments, &config).await;
    }
    let inputs = RunInputs::read(source, &arguments.filter, &config)?;
    if inputs.config.connection.is_none() {
        return Err(unconfigured_error(inputs.desired.environment()).into());
    }
    let display = Display::for_apply(arguments.json);
    let (desired, reader) = inputs.into_reader(&display);
    reader.approval_mode()?;
    // An unusable plan file is reported before any request is sent.
    let expected = arguments.plan.as_deref().map(|path| inputs::read_plan_file(path, ExpectedPlan::parse)).transpose()?;
    let request = RunRequest {
        intent: desired.into(),
        key: None,
        expected,
        narrowed: if arguments.filter.only.is_empty() { GuestOmission::Forbidden } else { GuestOmission::Allowed },
        refused: if arguments.partial { RefusedGuestPolicy::LeaveOut } else { RefusedGuestPolicy::StopRun },
        on_failure: if arguments.fail_fast { OnFailure::Stop } else { OnFailure::Continue },
        requested_by: host::actor().into(),
    };
    run::execute(&run_arguments, reader, &display, request).await
}

fn run_arguments(arguments: &ApplyArgs) -> RunArguments {
    RunArguments {
        confirm: arguments.confirm.clone(),
        json: arguments.json,
        out: arguments.out.clone(),
        overwrite: arguments.overwrite.overwrite,
        timeout: arguments.timeout,
        refused_help: (!arguments.partial).then_some(REFUSED_HELP),
        plan_command: repeat_command_line("plan", arguments),
        apply_command: repeat_command_line("apply", arguments),
    }
}

/// Shows the plan of a recorded observation, which is never applied (G7).
async fn show_recorded(arguments: &ApplyArgs, config: &ConfigSource) -> Result<ExitStatus, CommandError> {
    let planned = inputs::plan(&arguments.source, &arguments.filter, config).await?;
    show_refused_recording(planned, arguments.json)
}

/// Shows the plan of a recorded observation with the refusal to apply it.
pub(super) fn show_refused_recording(planned: Planned, json: bool) -> Result<ExitStatus, CommandError> {
    let Planned { judged, origin, provenance } = planned;
    let judged = judged.refuse(Refusal::replay_not_appliable());
    super::show_plan_outcome(&Planned { judged, origin, provenance }, json, ReportOptions::new(verbosity::current()))
}

/// The command line that gives the same plan again. For `apply` it has every option but the confirmation.
fn repeat_command_line(verb: &str, arguments: &ApplyArgs) -> String {
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
