//! A scenario with a lab: commands and events in between, shown as one transcript.
//!
//! Everything runs twice, each time in a new directory with a new lab, with different variables that must not matter.

use std::fmt::Write as _;

use crate::diff::diff_lines;
use crate::line::ScenarioLine;
use crate::run::{PROGRAM_VARIABLES, ProgramVariables};
use crate::scenario::Scenario;
use crate::stage::ScenarioStage;

/// Runs the scenario and compares the transcript.
pub(crate) fn check(scenario: &Scenario, faults: &mut Vec<String>) {
    let transcripts = PROGRAM_VARIABLES.map(|surroundings| run_transcript(scenario, &surroundings, faults));
    let [first, second] = match transcripts {
        [Ok(first), Ok(second)] => [first, second],
        [Err(fault), _] | [_, Err(fault)] => return faults.push(fault),
    };
    if first != second {
        faults.push(format!("told twice, it is another story:\n{}", diff_lines(&first, &second)));
    }
    scenario.compare_or_update("expected.txt", Some(first), faults);
}

/// Runs the scenario once and returns its transcript.
fn run_transcript(scenario: &Scenario, surroundings: &ProgramVariables, faults: &mut Vec<String>) -> Result<String, String> {
    let commands = scenario.read("commands").unwrap_or_else(|| "audit desired.yaml\n".into());
    let mut stage = ScenarioStage::start(scenario, surroundings, &commands)?;
    let mut transcript = String::new();
    for line in commands.lines().filter(|line| !line.trim().is_empty() && !line.starts_with(['#', '@'])) {
        if !transcript.is_empty() {
            transcript.push('\n');
        }
        match ScenarioLine::parse(line)? {
            ScenarioLine::Run(arguments) => stage.run_command(&arguments, None, None, &mut transcript, faults),
            ScenarioLine::Terminal(typed, arguments) => stage.run_command(&arguments, Some(&typed), None, &mut transcript, faults),
            ScenarioLine::Limit(kibibytes, arguments) => stage.run_command(&arguments, None, Some(kibibytes), &mut transcript, faults),
            other => {
                let _ = writeln!(transcript, "# {line}");
                transcript.push_str(&stage.execute_line(other)?);
            }
        }
    }
    Ok(transcript)
}
