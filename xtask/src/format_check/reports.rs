//! Writes the reports of commands on a lab to files for checking: findings, pins, adopted guests,
//! results, the journal.
//!
//! Must not judge them, beyond their form.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::lab::{LabChild, LabTime};
use crate::shell::{self, TaskError};

const WORK_DIRECTORY: &str = "target/opinion";
const WORLD_FILE: &str = "xtask/crash/world.yaml";
const DESIRED_FILE: &str = "xtask/crash/script.yaml";

/// Runs the commands and returns the files with their output.
pub(super) fn write_reports() -> Result<Vec<String>, TaskError> {
    let directory = Path::new(WORK_DIRECTORY);
    let emptied = if directory.exists() { fs::remove_dir_all(directory) } else { Ok(()) };
    emptied.and_then(|()| fs::create_dir_all(directory)).map_err(|error| file_error(directory, &error))?;
    let _lab = LabChild::start(shell::built_command("converger", &[]), &[WORLD_FILE], directory, LabTime::PerRequest)?;
    fs::copy(DESIRED_FILE, directory.join("desired.yaml")).map_err(|error| file_error(directory, &error))?;
    let mut files = vec![
        write_report("doctor.jsonl", &["doctor", "--json"])?,
        write_report("guests.jsonl", &["guests", "--json"])?,
        write_report("init.jsonl", &["init", "--vmid", "101,104,107", "--environment", "lab", "--dry-run", "--json"])?,
        write_report("init-refused.jsonl", &["init", "--vmid", "101,999", "--environment", "lab", "--dry-run", "--json"])?,
        write_report("pin.jsonl", &["pin", "desired.yaml", "--check", "--json"])?,
        write_apply_report("result.jsonl")?,
        write_report("history.jsonl", &["ops", "list", "lab", "--json"])?,
    ];
    files.extend(write_evidence_reports()?);
    Ok(files)
}

/// What the ledger contains of it, and the output of the commands that verify and reproduce it.
fn write_evidence_reports() -> Result<[String; 13], TaskError> {
    let digest = read_plan_member("digest")?;
    shell::run_quietly(&mut converger_command(&["ledger", "export", "evidence"])?)?;
    shell::run_quietly(&mut converger_command(&["ledger", "prove", &find_ended_operation()?, "--out", "receipt.txt"])?)?;
    Ok([
        write_report("verified.jsonl", &["verify", "--json"])?,
        write_report("verified-export.jsonl", &["verify", "evidence", "--json"])?,
        write_report("reproduced.jsonl", &["reproduce", &digest, "--json"])?,
        write_report("diff.jsonl", &["diff", &digest, &digest, "--json"])?,
        write_report("diff-files.jsonl", &["diff", PLAN_FILE, PLAN_FILE, "--json"])?,
        write_report("verified-receipt.jsonl", &["verify", "receipt.txt", "--key", "evidence/log.vkey", "--json"])?,
        write_report("backtest.jsonl", &["backtest", "--config", "converger.toml", "--json"])?,
        write_report("explained.jsonl", &["explain", &digest, "--json"])?,
        write_report("pruned.jsonl", &["ledger", "prune", "--before", "0d", "--json"])?,
        write_report("explained-pruned.jsonl", &["explain", &digest, "--json"])?,
        write_report("verified-pruned.jsonl", &["verify", "--json"])?,
        write_report("broken.jsonl", &["verify", "evidence", "--since", "desired.yaml", "--json"])?,
        write_report("entry.jsonl", &["ledger", "tail", "-n", "1000", "--json"])?,
    ])
}

fn converger_command(arguments: &[&str]) -> Result<Command, TaskError> {
    let program = shell::built_program("ci", "converger");
    let program = program.canonicalize().map_err(|error| file_error(&program, &error))?;
    let mut command = shell::new_command(program, arguments);
    command.current_dir(WORK_DIRECTORY).env("STATE_DIRECTORY", Path::new("state"));
    Ok(command)
}

/// Any exit code is fine: refusals have a form too.
fn write_report(file: &str, arguments: &[&str]) -> Result<String, TaskError> {
    let path = Path::new(WORK_DIRECTORY).join(file);
    let output = converger_command(arguments)?.output().map_err(|error| file_error(&path, &error))?;
    if output.stdout.is_empty() {
        let error_output = String::from_utf8_lossy(&output.stderr);
        return Err(TaskError::new(format!("`converger {}` printed nothing: {error_output}", arguments.join(" "))));
    }
    fs::write(&path, output.stdout).map_err(|error| file_error(&path, &error))?;
    Ok(path.display().to_string())
}

/// One guest is held, so that the reports contain both a step that is done and one that is refused.
fn write_apply_report(file: &str) -> Result<String, TaskError> {
    shell::run_quietly(&mut converger_command(&["hold", "lab", "107", "--reason", "to see a refusal"])?)?;
    write_report(PLAN_FILE, &["plan", "desired.yaml", "--json"])?;
    write_report(file, &["apply", "desired.yaml", "--confirm", &read_plan_member("proposal")?, "--partial", "--json"])
}

/// An operation that has ended.
fn find_ended_operation() -> Result<String, TaskError> {
    let list = Path::new(WORK_DIRECTORY).join("history.jsonl");
    let text = fs::read_to_string(&list).map_err(|error| file_error(&list, &error))?;
    let rows = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = rows.filter(|row| !row["ended"].is_null()).find_map(|row| Some(row["operation"]["id"].as_str()?.to_owned()));
    found.ok_or_else(|| TaskError::new(format!("`{}` has no operation that has ended", list.display())))
}

const PLAN_FILE: &str = "plan.jsonl";

/// A digest in the plan that was applied: `digest` covers its body, `proposal` what is confirmed.
fn read_plan_member(member: &str) -> Result<String, TaskError> {
    let plan = Path::new(WORK_DIRECTORY).join(PLAN_FILE);
    let text = fs::read(&plan).map_err(|error| file_error(&plan, &error))?;
    let digest = serde_json::from_slice::<Value>(&text).ok().and_then(|plan| Some(plan[member].as_str()?.to_owned()));
    digest.ok_or_else(|| TaskError::new(format!("`{}` has no {member}", plan.display())))
}

fn file_error(path: &Path, error: &std::io::Error) -> TaskError {
    TaskError::new(format!("`{}`: {error}", path.display()))
}
