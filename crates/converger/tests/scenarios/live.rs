//! A scenario with a lab: commands and events in between, shown as one transcript.
//!
//! Everything runs twice, each time in a new directory with a new lab, with different variables that must not matter.

use std::fmt::Write as _;

use crate::diff::diff_lines;
use crate::line::ScenarioLine;
use crate::run::{PROGRAM_VARIABLES, ProgramVariables};
use crate::scenario::Scenario;
use crate::stage::ScenarioStage;

/// Runs the scenario and compares the transcript. With `@flavours`, it runs on each of these releases of Proxmox VE, and releases with the same
/// transcript share it.
pub(crate) fn check(scenario: &Scenario, faults: &mut Vec<String>) {
    let commands = scenario.read("commands").unwrap_or_else(|| "audit desired.yaml\n".into());
    let flavours = match parse_flavours(&commands) {
        Ok(flavours) => flavours,
        Err(fault) => return faults.push(fault),
    };
    let mut shared: Vec<(String, String)> = Vec::new();
    for flavour in flavours {
        let Some(transcript) = run_twice(scenario, &commands, flavour, faults) else { return };
        let name = flavour.map(|flavour| flavour.to_string()).unwrap_or_default();
        match shared.iter_mut().find(|(_, own)| *own == transcript) {
            Some((names, _)) => *names = format!("{names}, {name}"),
            None => shared.push((name, transcript)),
        }
    }
    let title = |names: &str| if names.is_empty() { String::new() } else { format!("=== Proxmox VE {names}\n\n") };
    let transcripts: Vec<String> = shared.iter().map(|(names, transcript)| format!("{}{transcript}", title(names))).collect();
    scenario.compare_or_update("expected.txt", Some(transcripts.join("\n")), faults);
}

/// The releases of `@flavours 7 8 9`; without that line, the one of the lab.
fn parse_flavours(commands: &str) -> Result<Vec<Option<u8>>, String> {
    let Some(line) = commands.lines().find_map(|line| line.strip_prefix("@flavours ")) else { return Ok(vec![None]) };
    line.split(' ').map(|word| word.parse().map(Some).map_err(|_| format!("`{word}` is not a release"))).collect()
}

/// The transcript, if both runs are the same.
fn run_twice(scenario: &Scenario, commands: &str, flavour: Option<u8>, faults: &mut Vec<String>) -> Option<String> {
    match PROGRAM_VARIABLES.map(|surroundings| run_transcript(scenario, commands, flavour, &surroundings, faults)) {
        [Ok(first), Ok(second)] => {
            if first != second {
                faults.push(format!("told twice, it is another story:\n{}", diff_lines(&first, &second)));
            }
            Some(first)
        }
        [Err(fault), _] | [_, Err(fault)] => {
            faults.push(fault);
            None
        }
    }
}

/// Runs the scenario once and returns its transcript.
fn run_transcript(
    scenario: &Scenario,
    commands: &str,
    flavour: Option<u8>,
    surroundings: &ProgramVariables,
    faults: &mut Vec<String>,
) -> Result<String, String> {
    let mut stage = ScenarioStage::start(scenario, surroundings, commands, flavour)?;
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
