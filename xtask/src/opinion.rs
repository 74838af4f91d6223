//! The second opinion on our formats: what the program writes, judged by Python packages that share no code with us.
//!
//! What never enters here: the judging. The scripts under `xtask/python` do that.

mod reports;

use std::fs;
use std::path::PathBuf;

use crate::python;
use crate::shell::{self, Failure, Outcome};

const PLANS: &str = "target/plans.jsonl";
const SAMPLE: &str = "target/plans-sample.jsonl";
const LIST: &str = "target/documents.txt";
const PLANS_LEAST: &str = "10000";
const SAMPLE_LINES: usize = 300;
const SCHEMAS: &str = "docs/reference/schemas";

/// Canonical JSON against `rfc8785`, then artifacts against the published schemas with `jsonschema`.
pub(crate) fn ask() -> Outcome {
    write_plans()?;
    python::run("canonical.py", &[PLANS, PLANS_LEAST])?;
    let list = [documents()?, reports::written()?].concat().join("\n");
    fs::write(LIST, list).map_err(|error| Failure::new(format!("cannot write `{LIST}`: {error}")))?;
    python::run("schemas.py", &[SCHEMAS, SAMPLE, LIST])
}

/// Random plans, one a line, by the example that `build` has built.
fn write_plans() -> Outcome {
    let plans = shell::capture(&mut shell::built("examples/random_plans", &[PLANS_LEAST]))?;
    let sample: String = plans.lines().take(SAMPLE_LINES).flat_map(|line| [line, "\n"]).collect();
    let written = fs::create_dir_all("target").and_then(|()| fs::write(PLANS, &plans)).and_then(|()| fs::write(SAMPLE, sample));
    written.map_err(|error| Failure::new(format!("cannot write `{PLANS}` or `{SAMPLE}`: {error}")))
}

/// Every artifact of a scenario that was read without a fault: those have an `expected.json`.
fn documents() -> Result<Vec<String>, Failure> {
    let listed = fs::read_dir("scenarios").map_err(|error| Failure::new(format!("cannot list `scenarios`: {error}")))?;
    let mut rooms: Vec<PathBuf> = listed.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    rooms.sort();
    let read = rooms.iter().filter(|room| room.join("expected.json").exists());
    let files = read.flat_map(|room| ["expected.json", "current.json", "desired.json"].map(|file| room.join(file)));
    Ok(files.filter(|file| file.exists()).map(|file| file.display().to_string()).collect())
}
