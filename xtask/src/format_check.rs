//! A second opinion on our formats: Python packages that share no code with us check what the
//! program writes.
//!
//! The checks themselves are in `xtask/python`.

mod reports;

use std::fs;
use std::path::PathBuf;

use crate::python;
use crate::shell::{self, TaskError, TaskResult};

const PLANS: &str = "target/plans.jsonl";
const SAMPLE: &str = "target/plans-sample.jsonl";
const LIST: &str = "target/documents.txt";
const PLANS_MIN: &str = "10000";
const SAMPLE_LINES: usize = 300;
const SCHEMAS_DIRECTORY: &str = "docs/reference/schemas";

/// Checks canonical JSON with `rfc8785`, then artifacts against the published schemas with `jsonschema`.
pub(crate) fn check_formats() -> TaskResult {
    write_plans()?;
    python::run_script("canonical.py", &[PLANS, PLANS_MIN])?;
    let list = [list_scenario_documents()?, reports::write_reports()?].concat().join("\n");
    fs::write(LIST, list).map_err(|error| TaskError::new(format!("cannot write `{LIST}`: {error}")))?;
    python::run_script("schemas.py", &[SCHEMAS_DIRECTORY, SAMPLE, LIST])
}

/// Writes random plans, one per line, with the example that the stage `build` has built.
fn write_plans() -> TaskResult {
    let plans = shell::capture_stdout(&mut shell::built_command("examples/random_plans", &[PLANS_MIN]))?;
    let sample: String = plans.lines().take(SAMPLE_LINES).flat_map(|line| [line, "\n"]).collect();
    let written = fs::create_dir_all("target").and_then(|()| fs::write(PLANS, &plans)).and_then(|()| fs::write(SAMPLE, sample));
    written.map_err(|error| TaskError::new(format!("cannot write `{PLANS}` or `{SAMPLE}`: {error}")))
}

/// All artifacts of scenarios that were read without an error: those have an `expected.json`.
fn list_scenario_documents() -> Result<Vec<String>, TaskError> {
    let listed = fs::read_dir("scenarios").map_err(|error| TaskError::new(format!("cannot list `scenarios`: {error}")))?;
    let mut directories: Vec<PathBuf> = listed.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    directories.sort();
    let read = directories.iter().filter(|directory| directory.join("expected.json").exists());
    let files = read.flat_map(|directory| ["expected.json", "current.json", "desired.json"].map(|file| directory.join(file)));
    Ok(files.filter(|file| file.exists()).map(|file| file.display().to_string()).collect())
}
