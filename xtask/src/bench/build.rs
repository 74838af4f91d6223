//! Builds the measured programs in release mode, and the simulation in its own profile. The program
//! is built separately from the benches, so that it does not get the features that they need.
//!
//! The simulation is built twice with profile-guided optimization: first to collect counts, then
//! with those counts. It runs through more code than the caches hold, and the counts let the
//! compiler place hot code together (docs/decisions/0018).

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::engine::recreate_directory;
use crate::shell::{self, TaskError};
use crate::tools;

/// The path of each program.
pub(super) struct BenchPrograms {
    pub(super) converger: PathBuf,
    pub(super) plan: PathBuf,
    pub(super) allocations: PathBuf,
    pub(super) decode: PathBuf,
    pub(super) fetch: PathBuf,
    pub(super) fleet: PathBuf,
    pub(super) store: StorePrograms,
}

/// The programs of the store.
pub(super) struct StorePrograms {
    pub(super) commits: PathBuf,
    pub(super) evidence: PathBuf,
}

pub(super) fn build_programs() -> Result<BenchPrograms, TaskError> {
    let program = cargo_build_messages(&["build", "--release", "--package", "converger"])?;
    // Named one by one: `--benches` would also build the unit tests of core.
    let core = ["bench", "--no-run", "--package", "converger-core", "--features", "testing"];
    let benches = cargo_build_messages(&[&core[..], &["--bench", "plan", "--bench", "allocations", "--bench", "decode"]].concat())?;
    let fetch = cargo_build_messages(&["build", "--release", "--package", "converger-adapters", "--example", "fetch"])?;
    let fleet = cargo_build_messages(&["build", "--release", "--package", "converger", "--example", "fleet"])?;
    Ok(BenchPrograms {
        converger: find_executable(&program, "converger")?,
        plan: find_executable(&benches, "plan")?,
        allocations: find_executable(&benches, "allocations")?,
        decode: find_executable(&benches, "decode")?,
        fetch: find_executable(&fetch, "fetch")?,
        fleet: find_executable(&fleet, "fleet")?,
        store: build_store_programs()?,
    })
}

/// Built separately, because they may be the only ones needed.
pub(super) fn build_store_programs() -> Result<StorePrograms, TaskError> {
    let store = ["build", "--release", "--package", "converger-store", "--features", "conformance"];
    let built = cargo_build_messages(&[&store[..], &["--example", "commits", "--example", "evidence"]].concat())?;
    Ok(StorePrograms { commits: find_executable(&built, "commits")?, evidence: find_executable(&built, "evidence")? })
}

/// The counts come from other schedules than those that are measured.
const PROFILE_ARGUMENTS: [&str; 6] = ["--threads", "1", "--from", "1000000", "--schedules", "1500"];

/// The directory of the simulation build, separate from everything else.
const PROFILE_DIRECTORY: &str = "target/counted";

/// Builds the simulation, which takes 15 minutes on two cores.
pub(super) fn build_simulation() -> Result<PathBuf, TaskError> {
    tools::ensure_profdata()?;
    let directory =
        std::path::absolute(PROFILE_DIRECTORY).map_err(|error| TaskError::new(format!("cannot resolve `{PROFILE_DIRECTORY}`: {error}")))?;
    let (counts, profile) = (directory.join("counts"), directory.join("simulate.profdata"));
    recreate_directory(&counts)?;
    // Also built with full link-time optimization, although that takes longer: with counts from a build without it, the result is a fifth
    // slower.
    let counting = build_simulation_with_flag(&format!("-Cprofile-generate={}", counts.display()))?;
    shell::capture_stdout(&mut shell::new_command(&counting, &PROFILE_ARGUMENTS))?;
    let names = [&counts, &profile].map(|path| path.display().to_string());
    shell::run_visibly(&mut shell::new_command(tools::PROFDATA, &["merge", "--output", &names[1], &names[0]]))?;
    build_simulation_with_flag(&format!("-Cprofile-use={}", profile.display()))
}

/// Builds the simulation with one more compiler flag. The target is named explicitly, so that build scripts and proc macros do not get that
/// flag.
fn build_simulation_with_flag(flag: &str) -> Result<PathBuf, TaskError> {
    let version = shell::capture_stdout(&mut shell::new_command("rustc", &["-vV"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| TaskError::new(format!("`rustc -vV` names no host: {version}")))?;
    let arguments = [
        "build",
        "--profile",
        "sim",
        "--package",
        "converger",
        "--example",
        "simulate",
        "--target",
        host,
        "--target-dir",
        PROFILE_DIRECTORY,
    ];
    eprintln!("$ RUSTFLAGS={flag} cargo {}", arguments.join(" "));
    find_executable(&cargo_messages(shell::cargo_command(&arguments).env("CARGO_ENCODED_RUSTFLAGS", flag))?, "simulate")
}

/// The messages of cargo about what it built, one JSON object per line.
fn cargo_build_messages(arguments: &[&str]) -> Result<String, TaskError> {
    eprintln!("$ cargo {}", arguments.join(" "));
    cargo_messages(&mut shell::cargo_command(arguments))
}

fn cargo_messages(cargo: &mut Command) -> Result<String, TaskError> {
    shell::capture_stdout(cargo.args(["--message-format", "json-render-diagnostics"]))
}

fn find_executable(messages: &str, name: &str) -> Result<PathBuf, TaskError> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut paths = messages.filter(|message| message["target"]["name"] == name).filter_map(|message| executable_path(&message));
    paths.next().ok_or_else(|| TaskError::new(format!("cargo built no program `{name}`")))
}

fn executable_path(message: &Value) -> Option<PathBuf> {
    message["executable"].as_str().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_found_in_cargo_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"plan"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"plan"},"executable":"target/release/deps/plan-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(find_executable(messages, "plan"), Ok(PathBuf::from("target/release/deps/plan-1")));
        assert!(find_executable(messages, "decode").is_err());
    }
}
