//! Runs the first command of the README and its tutorial exactly as they are printed there, so that
//! newcomers are not the first to try them.
//!
//! Only the profile differs: `ci` instead of release, because it is already built.

mod tutorial;

use std::fs;
use std::process::Output;
use std::time::{Duration, Instant};

use crate::shell::{self, TaskError, TaskResult};

const README: &str = "README.md";
const COMMAND: &str = "$ cargo run --release -- ";
/// The demo must succeed.
const EXIT: i32 = 0;
/// How long it may take, without the build: less than a minute.
const DEMO_MAX: Duration = Duration::from_secs(60);

pub(crate) fn check_readme() -> TaskResult {
    let readme = fs::read_to_string(README).map_err(|error| TaskError::new(format!("cannot read `{README}`: {error}")))?;
    let arguments = parse_arguments(&readme)?;
    shell::run_visibly(&mut shell::cargo_command(&["build", "--quiet", "--profile", "ci"]))?;
    let began = Instant::now();
    let output = run_demo(&arguments)?;
    check_duration(began.elapsed())?;
    if output.status.code() != Some(EXIT) {
        return Err(TaskError::new(format!("the first command of {README} ended with {}, expected exit code {EXIT}", output.status)));
    }
    check_excerpt(&readme, &String::from_utf8_lossy(&output.stdout))?;
    tutorial::run_tutorial(&readme)
}

/// The arguments of the command in the README.
fn parse_arguments(readme: &str) -> Result<Vec<String>, TaskError> {
    let line = readme.lines().find_map(|line| line.strip_prefix(COMMAND));
    let line = line.ok_or_else(|| TaskError::new(format!("{README} has no line that starts with `{COMMAND}`")))?;
    Ok(line.split_whitespace().map(str::to_owned).collect())
}

fn run_demo(arguments: &[String]) -> Result<Output, TaskError> {
    let before = ["run", "--quiet", "--profile", "ci", "--"];
    let all: Vec<&str> = before.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    shell::cargo_command(&all).output().map_err(|error| TaskError::new(format!("cannot run the first command of {README}: {error}")))
}

fn check_duration(took: Duration) -> TaskResult {
    println!("the first command of {README} took {} ms", took.as_millis());
    if took <= DEMO_MAX {
        return Ok(());
    }
    Err(TaskError::new(format!(
        "the first command of {README} took {} s, and must take less than {} s",
        took.as_secs(),
        DEMO_MAX.as_secs()
    )))
}

/// Checks that all lines of the README's excerpt are in the output, in this order; `...` stands for omitted lines.
fn check_excerpt(readme: &str, output: &str) -> TaskResult {
    let excerpt = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap_or("");
    let mut lines = output.lines();
    for shown in excerpt.lines().filter(|line| *line != "...") {
        if !lines.any(|line| line == shown) {
            return Err(TaskError::new(format!("{README} shows `{shown}`, which the program does not print there")));
        }
    }
    if excerpt.is_empty() { Err(TaskError::new(format!("{README} shows no output of its first command"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_found_and_split() {
        assert_eq!(parse_arguments("x\n$ cargo run --release -- audit a.yaml\n"), Ok(vec!["audit".to_owned(), "a.yaml".to_owned()]));
        assert!(parse_arguments("nothing here").is_err());
    }

    #[test]
    fn demos_longer_than_a_minute_fail() {
        assert_eq!(check_duration(DEMO_MAX), Ok(()));
        assert!(check_duration(DEMO_MAX + Duration::from_millis(1)).is_err());
    }

    #[test]
    fn excerpts_that_are_not_printed_are_found() {
        let readme = "```text\none\n...\nthree\n```\n";
        assert_eq!(check_excerpt(readme, "one\ntwo\nthree\n"), Ok(()));
        assert!(check_excerpt(readme, "three\none\n").is_err());
        assert!(check_excerpt("no excerpt", "one\n").is_err());
    }
}
