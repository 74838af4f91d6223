//! The README's walk over a lab, as it stands there: from an empty directory to guests that are declared and converged.
//!
//! Only the lab is started for it, on free ports; everything behind `$ cd lab` is typed for the reader.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::lab::{Lab, Time};
use crate::shell::{self, Failure, Outcome};

const ROOM: &str = "target/readme/lab";
/// What opens the block of commands that are typed beside a running lab.
const BEGINS: &str = "$ cd lab\n";
const PROGRAM: &str = "$ converger ";
/// What the walk comes to, whatever else the lab has.
const LAST_WORDS: &str = "Converged: 3 converged, 0 to change in 0 steps, 0 refused, ";

/// Takes the walk. Each command must end well, and the last one find everything as declared.
pub(super) fn take(readme: &str) -> Outcome {
    let room = Path::new(ROOM);
    if room.exists() {
        fs::remove_dir_all(room).map_err(|error| Failure::new(format!("cannot empty `{ROOM}`: {error}")))?;
    }
    let lab = Lab::start(shell::built("converger", &[]), &[], room, Time::Real("1"))?;
    let mut said = String::new();
    for arguments in commands(readme)? {
        said = shell::capture(in_room(&arguments, lab.room())?.env_remove("NO_COLOR"))?;
    }
    if said.lines().any(|line| line.starts_with(LAST_WORDS)) {
        Ok(())
    } else {
        Err(Failure::new(format!("the README's walk over the lab does not come to `{LAST_WORDS}`, but to:\n{said}")))
    }
}

fn in_room(arguments: &[String], room: &Path) -> Result<Command, Failure> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let near = shell::built("converger", &[]);
    let program = fs::canonicalize(near.get_program()).map_err(|error| Failure::new(format!("converger is not built: {error}")))?;
    let mut command = shell::command(program, &arguments);
    command.current_dir(room);
    Ok(command)
}

/// The arguments of every command of the block, without the remarks behind them.
fn commands(readme: &str) -> Result<Vec<Vec<String>>, Failure> {
    let block = readme.split_once(BEGINS).and_then(|(_, rest)| rest.split("```").next());
    let block = block.ok_or_else(|| Failure::new(format!("the README has no block that begins with `{}`", BEGINS.trim_end())))?;
    let lines = block.lines().filter_map(|line| line.strip_prefix(PROGRAM)).map(|line| line.split(" #").next().unwrap_or(line));
    let commands: Vec<Vec<String>> = lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    if commands.is_empty() { Err(Failure::new("the README's walk over the lab has no command")) } else { Ok(commands) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_without_their_remarks() {
        let readme = "```console\n$ converger lab\n```\n```console\n$ cd lab\n$ converger doctor   # what is missing\n$ converger audit x.yaml\n```\n";
        assert_eq!(commands(readme), Ok(vec![vec!["doctor".to_owned()], vec!["audit".to_owned(), "x.yaml".to_owned()]]));
        assert!(commands("$ converger doctor").is_err());
        assert!(commands("$ cd lab\n```\n$ converger doctor").is_err(), "behind the block");
    }
}
