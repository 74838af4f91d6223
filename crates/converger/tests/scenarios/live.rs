//! A story on a lab: commands and what happens to the world between them, told as one transcript.
//!
//! Everything is done twice, each time in a new directory and on a new lab, in surroundings that must not matter. What never
//! enters: what is expected, and where the story plays (`stage`).

use std::fmt::Write as _;

use crate::diff::diff;
use crate::line::Line;
use crate::run::{SURROUNDINGS, Surroundings};
use crate::scenario::Scenario;
use crate::stage::Stage;

/// Runs the story and compares.
pub(crate) fn check(scenario: &Scenario, faults: &mut Vec<String>) {
    let told = SURROUNDINGS.map(|surroundings| tell(scenario, &surroundings, faults));
    let [first, second] = match told {
        [Ok(first), Ok(second)] => [first, second],
        [Err(fault), _] | [_, Err(fault)] => return faults.push(fault),
    };
    if first != second {
        faults.push(format!("told twice, it is another story:\n{}", diff(&first, &second)));
    }
    scenario.settle("expected.txt", Some(first), faults);
}

/// The transcript of one telling.
fn tell(scenario: &Scenario, surroundings: &Surroundings, faults: &mut Vec<String>) -> Result<String, String> {
    let commands = scenario.read("commands").unwrap_or_else(|| "audit desired.yaml\n".into());
    let mut stage = Stage::set(scenario, surroundings, &commands)?;
    let mut transcript = String::new();
    for line in commands.lines().filter(|line| !line.trim().is_empty() && !line.starts_with(['#', '@'])) {
        if !transcript.is_empty() {
            transcript.push('\n');
        }
        match Line::read(line)? {
            Line::Run(arguments) => stage.run(&arguments, None, None, &mut transcript, faults),
            Line::Terminal(typed, arguments) => stage.run(&arguments, Some(&typed), None, &mut transcript, faults),
            Line::Limit(kibibytes, arguments) => stage.run(&arguments, None, Some(kibibytes), &mut transcript, faults),
            other => {
                let _ = writeln!(transcript, "# {line}");
                transcript.push_str(&stage.between(other)?);
            }
        }
    }
    Ok(transcript)
}
