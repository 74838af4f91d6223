//! The programs that are measured, built in release, and the simulation in its own profile. The program is built apart from the benches,
//! so that the feature that those need is not in it.
//!
//! The simulation is built twice: so that it counts what it passes through, and once more with those counts. It passes through more code than
//! the caches hold, and what is passed through often then lies together (docs/decisions/0018).

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::engine::emptied;
use crate::shell::{self, Failure};
use crate::tools;

/// Where each program is.
pub(super) struct Programs {
    pub(super) converger: PathBuf,
    pub(super) plan: PathBuf,
    pub(super) allocations: PathBuf,
    pub(super) decode: PathBuf,
    pub(super) fetch: PathBuf,
    pub(super) fleet: PathBuf,
    pub(super) of_store: OfStore,
}

/// Those of the store.
pub(super) struct OfStore {
    pub(super) commits: PathBuf,
    pub(super) evidence: PathBuf,
}

pub(super) fn programs() -> Result<Programs, Failure> {
    let program = built(&["build", "--release", "--package", "converger"])?;
    // Named one by one: `--benches` would build the unit tests of core too.
    let core = ["bench", "--no-run", "--package", "converger-core", "--features", "testing"];
    let benches = built(&[&core[..], &["--bench", "plan", "--bench", "allocations", "--bench", "decode"]].concat())?;
    let fetch = built(&["build", "--release", "--package", "converger-adapters", "--example", "fetch"])?;
    let fleet = built(&["build", "--release", "--package", "converger", "--example", "fleet"])?;
    Ok(Programs {
        converger: executable(&program, "converger")?,
        plan: executable(&benches, "plan")?,
        allocations: executable(&benches, "allocations")?,
        decode: executable(&benches, "decode")?,
        fetch: executable(&fetch, "fetch")?,
        fleet: executable(&fleet, "fleet")?,
        of_store: of_store()?,
    })
}

/// Built apart, because they may be all that is asked for.
pub(super) fn of_store() -> Result<OfStore, Failure> {
    let store = ["build", "--release", "--package", "converger-store", "--features", "conformance"];
    let built = built(&[&store[..], &["--example", "commits", "--example", "evidence"]].concat())?;
    Ok(OfStore { commits: executable(&built, "commits")?, evidence: executable(&built, "evidence")? })
}

/// What is counted is counted in other schedules than those that are measured.
const COUNTED: [&str; 6] = ["--threads", "1", "--from", "1000000", "--schedules", "1500"];

/// Where the simulation is built with its counts, apart from everything else.
const ROOM: &str = "target/counted";

/// The simulation, which takes a quarter of an hour on two cores.
pub(super) fn simulate() -> Result<PathBuf, Failure> {
    tools::profdata_ready()?;
    let room = std::path::absolute(ROOM).map_err(|error| Failure::new(format!("no directory `{ROOM}` can be named: {error}")))?;
    let (counts, profile) = (room.join("counts"), room.join("simulate.profdata"));
    emptied(&counts)?;
    // Linked as a whole as well, although that takes longer: with counts of one that was not, it is a fifth slower.
    let counting = in_its_profile(&format!("-Cprofile-generate={}", counts.display()))?;
    shell::capture(&mut shell::command(&counting, &COUNTED))?;
    let names = [&counts, &profile].map(|path| path.display().to_string());
    shell::run(&mut shell::command(tools::PROFDATA, &["merge", "--output", &names[1], &names[0]]))?;
    in_its_profile(&format!("-Cprofile-use={}", profile.display()))
}

/// The simulation, built with one more flag of the compiler. For a target that is named, so that nothing which only runs while it is built has
/// that flag too.
fn in_its_profile(flag: &str) -> Result<PathBuf, Failure> {
    let version = shell::capture(&mut shell::command("rustc", &["-vV"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| Failure::new(format!("`rustc -vV` names no host: {version}")))?;
    let arguments =
        ["build", "--profile", "sim", "--package", "converger", "--example", "simulate", "--target", host, "--target-dir", ROOM];
    eprintln!("$ RUSTFLAGS={flag} cargo {}", arguments.join(" "));
    executable(&messages(shell::cargo(&arguments).env("CARGO_ENCODED_RUSTFLAGS", flag))?, "simulate")
}

/// What cargo says about what it built, one JSON object on each line.
fn built(arguments: &[&str]) -> Result<String, Failure> {
    eprintln!("$ cargo {}", arguments.join(" "));
    messages(&mut shell::cargo(arguments))
}

fn messages(cargo: &mut Command) -> Result<String, Failure> {
    shell::capture(cargo.args(["--message-format", "json-render-diagnostics"]))
}

fn executable(messages: &str, name: &str) -> Result<PathBuf, Failure> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut paths = messages.filter(|message| message["target"]["name"] == name).filter_map(|message| path(&message));
    paths.next().ok_or_else(|| Failure::new(format!("cargo built no program `{name}`")))
}

fn path(message: &Value) -> Option<PathBuf> {
    message["executable"].as_str().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_name_is_found_among_what_cargo_says() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"plan"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"plan"},"executable":"target/release/deps/plan-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "plan"), Ok(PathBuf::from("target/release/deps/plan-1")));
        assert!(executable(messages, "decode").is_err());
    }
}
