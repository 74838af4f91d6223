//! A scenario with a recording: one command, as text and as JSON, which must not change its directory.

use crate::diff::diff_lines;
use crate::run::{self, PROGRAM_VARIABLES, ProgramRun};
use crate::scenario::Scenario;

/// Runs the scenario and compares the output.
pub(crate) fn check(scenario: &Scenario, faults: &mut Vec<String>) {
    let arguments = command_arguments(scenario);
    let before = scenario.file_contents();
    let text = run_everywhere(scenario, &arguments, faults);
    let json = run_everywhere(scenario, &with_json(&arguments), faults);
    if scenario.file_contents() != before {
        faults.push("it changed a file in its directory, or left one there".into());
    }
    if (&text.stderr, text.exit) != (&json.stderr, json.exit) {
        faults.push(format!("with --json it ends in another way:\n{}", diff_lines(&text.transcript(), &json.transcript())));
    }
    // A command that has `--json` itself has no text to compare.
    let is_json_only = arguments.iter().any(|argument| argument == "--json");
    let expected = if is_json_only { ProgramRun { stdout: String::new(), ..text } } else { text };
    scenario.compare_or_update("expected.txt", Some(expected.transcript()), faults);
    // If the input was rejected, there is no JSON.
    let is_silent = json.stdout.is_empty() && json.exit == 2;
    let artifact = if is_silent { None } else { run::pretty_json(&json.stdout, &arguments[0], json.exit, faults) };
    scenario.compare_or_update("expected.json", artifact, faults);
}

fn command_arguments(scenario: &Scenario) -> Vec<String> {
    if let Some(command) = scenario.read("command") {
        return command.lines().map(str::to_owned).collect();
    }
    let desired = if scenario.directory.join("desired.yaml").exists() { "desired.yaml" } else { "desired.json" };
    ["audit", desired, "--replay", "current.json"].map(str::to_owned).into()
}

/// `--all` only affects the text.
fn with_json(arguments: &[String]) -> Vec<String> {
    let other_arguments = arguments.iter().filter(|argument| !["--all", "--json"].contains(&argument.as_str()));
    other_arguments.cloned().chain(["--json".to_owned()]).collect()
}

/// Runs the program in the scenario's directory, once with each set of variables; the output must be the same.
fn run_everywhere(scenario: &Scenario, arguments: &[String], faults: &mut Vec<String>) -> ProgramRun {
    let [first, second] =
        PROGRAM_VARIABLES.map(|surroundings| run::run_program(run::program(&scenario.directory, &surroundings), arguments, faults));
    if first != second {
        let differences = diff_lines(&first.transcript(), &second.transcript());
        faults.push(format!("it depends on the locale, the time zone or the width of the terminal:\n{differences}"));
    }
    first
}
