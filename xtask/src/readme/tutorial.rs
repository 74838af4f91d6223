//! Runs the tutorial of the README exactly as it is printed there: from an empty directory to
//! declared and converged guests.
//!
//! It starts the lab on free ports and runs everything after `$ cd lab`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::lab::{LabChild, LabTime};
use crate::shell::{self, TaskError, TaskResult};

const LAB_DIRECTORY: &str = "target/readme/lab";
/// The start of the block of commands that are typed next to a running lab.
const FIRST_COMMAND: &str = "$ cd lab\n";
const COMMAND_PREFIX: &str = "$ converger ";
/// The result of the tutorial.
const LAST_LINE: &str = "Converged: 3 converged, ";

/// Runs the tutorial. Every command must succeed, and the last one must find everything converged.
pub(super) fn run_tutorial(readme: &str) -> TaskResult {
    let directory = Path::new(LAB_DIRECTORY);
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(|error| TaskError::new(format!("cannot empty `{LAB_DIRECTORY}`: {error}")))?;
    }
    let lab = LabChild::start(shell::built_command("converger", &[]), &[], directory, LabTime::Real("1"))?;
    let mut output = String::new();
    for arguments in parse_commands(readme)? {
        output = shell::capture_stdout(command_in_lab(&arguments, lab.directory())?.env_remove("NO_COLOR"))?;
    }
    if output.lines().any(|line| line.starts_with(LAST_LINE)) {
        Ok(())
    } else {
        Err(TaskError::new(format!("the README's tutorial does not end with `{LAST_LINE}`, but with:\n{output}")))
    }
}

fn command_in_lab(arguments: &[String], directory: &Path) -> Result<Command, TaskError> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let near = shell::built_command("converger", &[]);
    let program = fs::canonicalize(near.get_program()).map_err(|error| TaskError::new(format!("converger is not built: {error}")))?;
    let mut command = shell::new_command(program, &arguments);
    command.current_dir(directory);
    Ok(command)
}

/// The arguments of all commands in the block, without the comments after them.
fn parse_commands(readme: &str) -> Result<Vec<Vec<String>>, TaskError> {
    let block = readme.split_once(FIRST_COMMAND).and_then(|(_, rest)| rest.split("```").next());
    let block = block.ok_or_else(|| TaskError::new(format!("the README has no block that starts with `{}`", FIRST_COMMAND.trim_end())))?;
    let lines = block.lines().filter_map(|line| line.strip_prefix(COMMAND_PREFIX)).map(|line| line.split(" #").next().unwrap_or(line));
    let commands: Vec<Vec<String>> = lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    if commands.is_empty() { Err(TaskError::new("the README's tutorial has no command")) } else { Ok(commands) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_parsed_without_comments() {
        let readme = "```console\n$ converger lab\n```\n```console\n$ cd lab\n$ converger doctor   # what is missing\n$ converger audit x.yaml\n```\n";
        assert_eq!(parse_commands(readme), Ok(vec![vec!["doctor".to_owned()], vec!["audit".to_owned(), "x.yaml".to_owned()]]));
        assert!(parse_commands("$ converger doctor").is_err());
        assert!(parse_commands("$ cd lab\n```\n$ converger doctor").is_err(), "after the block");
    }
}
