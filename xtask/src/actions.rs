//! Requested actions on a lab of each release: `proxmoxer` confirms the result of each, and each takes a known number of requests.
//!
//! What is requested, and what Proxmox must show afterwards, is in `xtask/python`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::lab::{self, LabChild, LabTime};
use crate::python;
use crate::shell::{self, TaskError, TaskResult};

const WORK_DIRECTORY: &str = "target/actions";
const WORLD: &str = "xtask/ansible/world.yaml";
const RELEASES: [&str; 3] = ["7", "8", "9"];
/// Needs the standard library only, so that the bench needs no venv.
const COUNTING_SCRIPT: &str = "xtask/python/program_actions.py";

/// The requests of an action: `plan` for `--plan`, `run` for a run, which reads everything again, plans, checks, sends, waits and verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActionRequests {
    pub(crate) action: &'static str,
    pub(crate) plan: u64,
    pub(crate) run: u64,
}

/// The requests of each action. More of them is a regression; fewer is an improvement that changes this table.
const EXPECTED: [ActionRequests; 11] = [
    ActionRequests { action: "vm.snapshot.create", plan: 8, run: 16 },
    ActionRequests { action: "vm.snapshot.create with memory", plan: 8, run: 16 },
    ActionRequests { action: "vm.config.set", plan: 7, run: 12 },
    ActionRequests { action: "vm.disk.grow", plan: 8, run: 14 },
    ActionRequests { action: "vm.clone", plan: 16, run: 24 },
    ActionRequests { action: "vm.start", plan: 9, run: 15 },
    ActionRequests { action: "vm.migrate", plan: 11, run: 21 },
    ActionRequests { action: "vm.migrate of a stopped guest", plan: 11, run: 21 },
    ActionRequests { action: "vm.reboot", plan: 7, run: 17 },
    ActionRequests { action: "vm.shutdown", plan: 9, run: 18 },
    ActionRequests { action: "vm.stop", plan: 9, run: 15 },
];

/// The same in a release. In 7, a disk of a virtual machine grows without a task that must be read.
fn expected_requests(release: &str) -> impl Iterator<Item = ActionRequests> {
    let is_without_task = release == "7";
    EXPECTED.into_iter().map(move |own| match own.action {
        "vm.disk.grow" if is_without_task => ActionRequests { run: own.run - 1, ..own },
        _ => own,
    })
}

/// Requests every action on a lab of each release, and has `proxmoxer` confirm the results.
pub(crate) fn check_actions() -> TaskResult {
    let program = shell::built_program("ci", "converger");
    for release in RELEASES {
        let confirmed = start_lab(&program, release, "confirmed")?;
        python::run_script("proxmoxer_actions.py", &[&display(confirmed.directory()), &display(&program)])?;
        check_lab(&confirmed)?;
        let counted = start_lab(&program, release, "counted")?;
        let counts = count_requests(&program, &counted)?;
        check_lab(&counted)?;
        compare_requests(&counts, release)?;
    }
    Ok(())
}

/// Counts the requests of each action on release 9; the program is built.
pub(crate) fn measure_requests(program: &Path) -> Result<Value, TaskError> {
    count_requests(program, &start_lab(program, "9", "bench")?)
}

/// The counts in the order of the table, for a report.
pub(crate) fn list_requests(counts: &Value) -> Result<Vec<ActionRequests>, TaskError> {
    EXPECTED.into_iter().map(|own| read_requests(counts, own.action)).collect()
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

/// A lab in an empty directory: each action depends on what the ones before it left.
fn start_lab(program: &Path, release: &str, purpose: &str) -> Result<LabChild, TaskError> {
    let directory = Path::new(WORK_DIRECTORY).join(format!("pve{release}-{purpose}"));
    let emptied = if directory.exists() { fs::remove_dir_all(&directory) } else { Ok(()) };
    emptied.map_err(|error| TaskError::new(format!("cannot empty `{}`: {error}", directory.display())))?;
    LabChild::start(Command::new(program), &[WORLD, "--flavour", release], &directory, LabTime::PerRequest)
}

fn check_lab(lab: &LabChild) -> TaskResult {
    let requests = lab.requests()?;
    lab::check_all_handled(&requests)?;
    lab::check_all_documented(&requests)
}

fn count_requests(program: &Path, lab: &LabChild) -> Result<Value, TaskError> {
    let arguments = ["-B", COUNTING_SCRIPT, &display(lab.directory()), &display(program)];
    let text = shell::capture_stdout(&mut shell::new_command("python3", &arguments))?;
    serde_json::from_str(&text).map_err(|error| TaskError::new(format!("`{COUNTING_SCRIPT}` printed no JSON: {error}\n{text}")))
}

fn read_requests(counts: &Value, action: &'static str) -> Result<ActionRequests, TaskError> {
    let number =
        |of: &str| counts[action][of].as_u64().ok_or_else(|| TaskError::new(format!("no number of requests for `{action}`: {counts}")));
    Ok(ActionRequests { action, plan: number("plan")?, run: number("run")? })
}

fn compare_requests(counts: &Value, release: &str) -> TaskResult {
    let measured = counts.as_object().map_or(0, serde_json::Map::len);
    let mut lines = Vec::new();
    if measured != EXPECTED.len() {
        lines.push(format!("  {measured} actions were measured instead of {}", EXPECTED.len()));
    }
    for expected in expected_requests(release) {
        let found = read_requests(counts, expected.action)?;
        if found != expected {
            let ActionRequests { action, plan, run } = found;
            lines.push(format!("  {action}: {plan} and {run}, expected {} and {}", expected.plan, expected.run));
        }
    }
    if lines.is_empty() {
        Ok(())
    } else {
        Err(TaskError::new(format!("requests of `--plan` and of a run on release {release}:\n{}", lines.join("\n"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn counts_of(release: &str) -> Value {
        expected_requests(release).map(|own| (own.action.to_owned(), json!({ "plan": own.plan, "run": own.run }))).collect()
    }

    #[test]
    fn reports_one_request_more_and_a_missing_action() {
        for release in RELEASES {
            assert_eq!(compare_requests(&counts_of(release), release), Ok(()));
        }
        let mut more = counts_of("9");
        more["vm.clone"]["run"] = json!(25);
        let failure = compare_requests(&more, "9").unwrap_err().to_string();
        assert!(failure.contains("vm.clone: 16 and 25, expected 16 and 24"), "{failure}");
        assert!(compare_requests(&counts_of("9"), "7").is_err(), "in 7, growth takes one request less");
        assert!(compare_requests(&json!({}), "9").is_err());
        let mut another = counts_of("9");
        another["vm.delete"] = json!({ "plan": 1, "run": 1 });
        assert!(compare_requests(&another, "9").is_err(), "an action without an expected number");
    }
}
