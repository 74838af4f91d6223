//! What commands report about a lab, written down to be judged: findings, pins, adopted guests, results, the journal.
//!
//! What never enters here: the judging, and what the reports should say beyond their form.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::lab::{Lab, Time};
use crate::shell::{self, Failure};

const ROOM: &str = "target/opinion";
const WORLD: &str = "xtask/crash/world.yaml";
const DESIRED: &str = "xtask/crash/script.yaml";

/// Runs the commands, and names the files that hold what each of them printed.
pub(super) fn written() -> Result<Vec<String>, Failure> {
    let room = Path::new(ROOM);
    let emptied = if room.exists() { fs::remove_dir_all(room) } else { Ok(()) };
    emptied.and_then(|()| fs::create_dir_all(room)).map_err(|error| unwritten(room, &error))?;
    let _lab = Lab::start(shell::built("converger", &[]), &[WORLD], room, Time::Asked)?;
    fs::copy(DESIRED, room.join("desired.yaml")).map_err(|error| unwritten(room, &error))?;
    let mut files = vec![
        write("doctor.jsonl", &["doctor", "--json"])?,
        write("init.jsonl", &["init", "--vmid", "101,104,107", "--environment", "lab", "--dry-run", "--json"])?,
        write("init-refused.jsonl", &["init", "--vmid", "101,999", "--environment", "lab", "--dry-run", "--json"])?,
        write("pin.jsonl", &["pin", "desired.yaml", "--check", "--json"])?,
        applied("result.jsonl")?,
        write("history.jsonl", &["ops", "list", "lab", "--json"])?,
    ];
    files.extend(evidence()?);
    Ok(files)
}

/// What the ledger has of it, and what those print who check it and make it again.
fn evidence() -> Result<[String; 12], Failure> {
    let digest = planned()?;
    shell::hush(&mut converger(&["ledger", "export", "evidence"])?)?;
    shell::hush(&mut converger(&["ledger", "prove", &operation()?, "--out", "receipt.txt"])?)?;
    Ok([
        write("verified.jsonl", &["verify", "--json"])?,
        write("verified-export.jsonl", &["verify", "evidence", "--json"])?,
        write("reproduced.jsonl", &["reproduce", &digest, "--json"])?,
        write("diff.jsonl", &["diff", &digest, &digest, "--json"])?,
        write("verified-receipt.jsonl", &["verify", "receipt.txt", "--key", "evidence/log.vkey", "--json"])?,
        write("backtest.jsonl", &["backtest", "--config", "converger.toml", "--json"])?,
        write("explained.jsonl", &["explain", &digest, "--json"])?,
        write("pruned.jsonl", &["ledger", "prune", "--before", "0d", "--json"])?,
        write("explained-pruned.jsonl", &["explain", &digest, "--json"])?,
        write("verified-pruned.jsonl", &["verify", "--json"])?,
        write("broken.jsonl", &["verify", "evidence", "--since", "desired.yaml", "--json"])?,
        write("entry.jsonl", &["ledger", "tail", "-n", "1000", "--json"])?,
    ])
}

fn converger(arguments: &[&str]) -> Result<Command, Failure> {
    let program = shell::built_as("ci", "converger");
    let program = program.canonicalize().map_err(|error| unwritten(&program, &error))?;
    let mut command = shell::command(program, arguments);
    command.current_dir(ROOM).env("STATE_DIRECTORY", Path::new("state"));
    Ok(command)
}

/// Whatever it ends with: refusals have a form too.
fn write(file: &str, arguments: &[&str]) -> Result<String, Failure> {
    let path = Path::new(ROOM).join(file);
    let output = converger(arguments)?.output().map_err(|error| unwritten(&path, &error))?;
    if output.stdout.is_empty() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("`converger {}` printed nothing: {said}", arguments.join(" "))));
    }
    fs::write(&path, output.stdout).map_err(|error| unwritten(&path, &error))?;
    Ok(path.display().to_string())
}

/// One guest is held, so that both a step that is done and one that is refused are among them.
fn applied(file: &str) -> Result<String, Failure> {
    shell::hush(&mut converger(&["hold", "lab", "107", "--reason", "to see a refusal"])?)?;
    write(PLAN, &["plan", "desired.yaml", "--json"])?;
    write(file, &["apply", "desired.yaml", "--confirm", &planned()?, "--partial", "--json"])
}

/// An operation that has ended.
fn operation() -> Result<String, Failure> {
    let list = Path::new(ROOM).join("history.jsonl");
    let text = fs::read_to_string(&list).map_err(|error| unwritten(&list, &error))?;
    let rows = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = rows.filter(|row| !row["ended"].is_null()).find_map(|row| Some(row["operation"]["id"].as_str()?.to_owned()));
    found.ok_or_else(|| Failure::new(format!("`{}` has no operation that has ended", list.display())))
}

const PLAN: &str = "plan.jsonl";

/// The digest of the plan that was applied.
fn planned() -> Result<String, Failure> {
    let plan = Path::new(ROOM).join(PLAN);
    let text = fs::read(&plan).map_err(|error| unwritten(&plan, &error))?;
    let digest = serde_json::from_slice::<Value>(&text).ok().and_then(|plan| Some(plan["digest"].as_str()?.to_owned()));
    digest.ok_or_else(|| Failure::new(format!("`{}` has no digest", plan.display())))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("`{}`: {error}", path.display()))
}
