//! The README's first command and its walk over a lab, run as they stand there: a newcomer's first minute must not be the first
//! time that anybody tries.
//!
//! Only the profile is another: `ci` instead of release, which is built already.

mod walk;

use std::fs;
use std::process::Output;
use std::time::{Duration, Instant};

use crate::shell::{self, Failure, Outcome};

const README: &str = "README.md";
const COMMAND: &str = "$ cargo run --release -- ";
/// The demo ends well, or it is none.
const EXIT: i32 = 0;
/// So long may it take, the build aside: the whole story in a minute.
const DEMO_MAX: Duration = Duration::from_secs(60);

pub(crate) fn check() -> Outcome {
    let readme = fs::read_to_string(README).map_err(|error| Failure::new(format!("cannot read `{README}`: {error}")))?;
    let arguments = arguments(&readme)?;
    shell::run(&mut shell::cargo(&["build", "--quiet", "--profile", "ci"]))?;
    let began = Instant::now();
    let output = run(&arguments)?;
    in_time(began.elapsed())?;
    if output.status.code() != Some(EXIT) {
        return Err(Failure::new(format!("the first command of {README} ended with {}, not with exit code {EXIT}", output.status)));
    }
    agrees(&readme, &String::from_utf8_lossy(&output.stdout))?;
    walk::take(&readme)
}

/// What stands behind the command in the README.
fn arguments(readme: &str) -> Result<Vec<String>, Failure> {
    let line = readme.lines().find_map(|line| line.strip_prefix(COMMAND));
    let line = line.ok_or_else(|| Failure::new(format!("{README} has no line that begins with `{COMMAND}`")))?;
    Ok(line.split_whitespace().map(str::to_owned).collect())
}

fn run(arguments: &[String]) -> Result<Output, Failure> {
    let before = ["run", "--quiet", "--profile", "ci", "--"];
    let all: Vec<&str> = before.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    shell::cargo(&all).output().map_err(|error| Failure::new(format!("cannot run the first command of {README}: {error}")))
}

fn in_time(took: Duration) -> Outcome {
    println!("the first command of {README} took {} ms", took.as_millis());
    if took <= DEMO_MAX {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the first command of {README} took {} s, and promises to take less than {}",
        took.as_secs(),
        DEMO_MAX.as_secs()
    )))
}

/// Every line of the README's excerpt is in the output, in this order; `...` stands for what is left out.
fn agrees(readme: &str, output: &str) -> Outcome {
    let excerpt = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap_or("");
    let mut lines = output.lines();
    for shown in excerpt.lines().filter(|line| *line != "...") {
        if !lines.any(|line| line == shown) {
            return Err(Failure::new(format!("{README} shows `{shown}`, which the program does not print there")));
        }
    }
    if excerpt.is_empty() { Err(Failure::new(format!("{README} shows no output of its first command"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_found_and_split() {
        assert_eq!(arguments("x\n$ cargo run --release -- audit a.yaml\n"), Ok(vec!["audit".to_owned(), "a.yaml".to_owned()]));
        assert!(arguments("nothing here").is_err());
    }

    #[test]
    fn a_demo_of_more_than_a_minute_is_none() {
        assert_eq!(in_time(DEMO_MAX), Ok(()));
        assert!(in_time(DEMO_MAX + Duration::from_millis(1)).is_err());
    }

    #[test]
    fn an_excerpt_that_the_program_does_not_print_is_found() {
        let readme = "```text\none\n...\nthree\n```\n";
        assert_eq!(agrees(readme, "one\ntwo\nthree\n"), Ok(()));
        assert!(agrees(readme, "three\none\n").is_err());
        assert!(agrees("no excerpt", "one\n").is_err());
    }
}
